"""A made-up package with a tiny encoder, in the place of one that privlearn knows."""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from privlearn.transforms import packaged
from privlearn.transforms.packaged import ShippedEncoder

#: The encoder whose place the made-up one takes.
TAKEN = "mobilenet-v2"
FEATURES = 6
PACKAGE, FOLDER, FILE = "made-up-encoder", "made_up_encoder", "made_up_encoder/weights.pt"


def network(content: bytes) -> nn.Module:
    """A convolution with the weights of the file, and no negative answers."""
    layer = nn.Conv2d(3, FEATURES, 5, 4, 2)
    layer.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
    return nn.Sequential(layer, nn.ReLU())


def mixing(content: bytes) -> nn.Module:
    """The same behind a norm over the batch."""
    return nn.Sequential(
        nn.BatchNorm2d(3, affine=False, track_running_stats=False), network(content)
    )


def weights() -> bytes:
    """The content of the file."""
    drawn = torch.Generator().manual_seed(3)
    values: dict[str, Tensor] = {
        "weight": torch.randn(FEATURES, 3, 5, 5, generator=drawn) / 3,
        "bias": torch.rand(FEATURES, generator=drawn),
    }
    file = io.BytesIO()
    torch.save(values, file)
    return file.getvalue()


@contextmanager
def installed(version: str = "1.0", content: bytes | None = None, **row: Any) -> Iterator[str]:
    """A block in which the made-up package is installed; gives the spec of its encoder.

    Args:
        version: that the package says of itself.
        content: of its file; None: the weights that are known.
        row: of the table, what differs.
    """
    known = weights()
    shipped = ShippedEncoder(
        package=PACKAGE,
        version="1.0",
        file=FILE,
        digest=hashlib.sha256(known).hexdigest(),
        network=f"{__name__}:network",
        features=FEATURES,
        size=32,
        mean=(0.5, 0.4, 0.3),
        deviation=(0.2, 0.3, 0.4),
        licence="none",
        trained_on="nothing",
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FOLDER).mkdir()
        (Path(folder) / FILE).write_bytes(known if content is None else content)
        about = Path(folder) / f"{FOLDER}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n"
        )
        with (
            mock.patch.object(sys, "path", [folder, *sys.path]),
            mock.patch.dict(packaged.SHIPPED, {TAKEN: replace(shipped, **row)}),
        ):
            yield f"package:{TAKEN}"


@contextmanager
def missing() -> Iterator[str]:
    """A block in which the made-up package is known, and not installed."""
    with installed() as spec, mock.patch.object(sys, "path", sys.path[1:]):
        yield spec
