"""Public features by name, made of rows in blocks, and kept in a file where that is wanted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privlearn._checks import checked
from privlearn._storage import draft_of
from privlearn.core.row_transform import MAKE_FEATURES, RowTransform, in_blocks
from privlearn.core.transform import PublicTransform
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.transforms.precomputed import FeatureFolder, is_folder
from privlearn.transforms.specs import RowNorm, parse


@checked
def read_features(features: str, dataset: Dataset) -> tuple[tuple[PublicTransform, ...], Dataset]:
    """The transforms in front of a network for `features`, and the data that it takes: a folder's
    replace the rows.

    Args:
        features: as `parse` reads them, or a folder of features that were made elsewhere
            (`save_features`). Features of a packaged encoder are evened out by `RowNorm`.
        dataset: the rows.

    Raises:
        BadInput: features that are unknown, or a folder that can't be used, or is of other rows.
    """
    if not isinstance(features, str):
        raise BadInput(
            f"features is {repr(features)[:60]}: expected a text, such as 'scatter:J=2', or a "
            "folder of them"
        )
    if is_folder(features):
        folder = FeatureFolder.read(features)
        return (folder.encoder,), folder.of(dataset)
    transform = parse(features)
    if transform is None:
        return (), dataset
    evened = (RowNorm(),) if transform.kind == "packaged" else ()  # as suits features of networks
    return (transform, *evened), dataset


_KEPT: ContextVar[tuple[Path | None, Callable[[int, int], None] | None]] = ContextVar(
    "kept", default=(None, None)
)


@contextmanager
@checked
def feature_cache(
    folder: str | Path | None, progress: Callable[[int, int], None] | None = None
) -> Iterator[None]:
    """A block in which runs keep the public features that a plan's front makes of rows, for later
    runs on the same.

    Args:
        folder: where to keep them, as secret as the rows; None: nowhere.
        progress: called with (rows done, rows in all) while they are made.
    """
    token = _KEPT.set((None if folder is None else Path(folder), progress))
    maker = MAKE_FEATURES.set(features_of)
    try:
        yield
    finally:
        MAKE_FEATURES.reset(maker)
        _KEPT.reset(token)


def features_of(encoder: RowTransform, x: Tensor) -> Tensor:
    """What a public module makes of the rows `x` (rows, ...), one for each; kept where
    `feature_cache` says.

    Raises:
        BadInput: rows that it does not take, or a folder that can't be written.
    """
    folder, progress = _KEPT.get()
    # what is named by no spec is quickly made
    if encoder.at_once or folder is None or "spec" not in encoder.config():
        return in_blocks(encoder, x, progress)
    path = folder / f"{_digest(encoder, x)}.npy"
    if path.exists():
        return torch.from_numpy(np.load(path, allow_pickle=False))
    encoded = in_blocks(encoder, x, progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = draft_of(path)
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            np.save(file, encoded.numpy())
        draft.replace(path)
    except OSError as error:
        raise BadInput(
            f"features can't be kept in {folder}: {error.strerror or error}. Give another folder, "
            "or none"
        ) from error
    return encoded


def _digest(encoder: RowTransform, x: Tensor) -> str:
    """What the features follow from: the encoder, the rows and the versions that compute them."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("privlearn", "torch", "kymatio"))
    digest = hashlib.sha256(
        f"{encoder.describe()}; {versions}; {tuple(x.shape)} {x.dtype} ".encode()
    )
    digest.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _version(name: str) -> str:
    """Of an installed distribution; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
