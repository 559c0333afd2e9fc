"""The directions in which public features differ most, among images that nobody took."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from privlearn._files import write_durably
from privlearn.encoders.made_up import made_up_images
from privlearn.errors import BadInput

#: Made-up images, and what is added to a variance, as a part of the mean of those kept, before its root is divided by.
_IMAGES, _ADDED = 12_000, 0.1
#: 1 would make all directions vary alike, 0 would leave them as they are.
_WHITENED = 0.7
_ROWS_AT_ONCE = 256


def learned(
    name: str,
    shape: Sequence[int],
    cache: Path | None,
    learn: Callable[[], dict[str, Tensor]],
    begin: Callable[[], None] | None = None,
) -> dict[str, Tensor]:
    """What `learn` learns from made-up images, from the cache where it was learned before.

    Args:
        name: of the features.
        shape: of one image.
        cache: a folder to keep tensors in, for learning takes a minute; None: nowhere.
        learn: called where there is nothing in the cache.
        begin: called before that.
    """
    sizes = "x".join(map(str, shape))
    # Everything that they follow from stands in the name.
    told = f"{name}-{sizes}-{_IMAGES}-{_ADDED}-{_WHITENED}".replace(":", "-").replace(",", "-")
    path = None if cache is None else cache / f"{told}.safetensors"
    if path is not None and path.exists():
        try:
            return load_file(path)
        except (SafetensorError, OSError):
            path.unlink()
    if begin:
        begin()
    found = learn()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(found))
    return found


def directions(features: Callable[[Tensor], Tensor], shape: Sequence[int], kept: int) -> dict[str, Tensor]:
    """`mean` (features,) of features of made-up images, and `components` (features, kept): their principal directions.

    Each is over a power of its variance. That is most of whitening: directions in which features hardly differ count for more,
    and not for as much as the others. No data have a part in it.

    Args:
        features: images (rows, *shape) to features (rows, ...).
        shape: of one image.
        kept: how many directions.

    Raises:
        BadInput: fewer features, or made-up images, than directions.
    """
    rows = torch.cat([features(part).flatten(1) for part in images(shape)])
    if kept > min(rows.shape):
        raise BadInput(f"{kept} directions are to be kept, and there are {rows.shape[1]} features: expected fewer")
    mean = rows.mean(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, spread, components = torch.svd_lowrank(rows - mean, q=min(kept + 100, *rows.shape), niter=3)
    variances = spread[:kept].square() / len(rows)
    scaled = components[:, :kept] * (variances + _ADDED * variances.mean()) ** (-_WHITENED / 2)
    return {"mean": mean, "components": scaled.contiguous()}


def projected(features: Tensor, mean: Tensor, components: Tensor) -> Tensor:
    """Features (rows, ...) along the directions, each row brought to norm sqrt(kept): shape (rows, kept)."""
    rows = (features.flatten(1) - mean) @ components
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    return cast(Tensor, rows / lengths * math.sqrt(rows.shape[1]))


def images(shape: Sequence[int], most: int | None = None) -> tuple[Tensor, ...]:
    """Made-up images of `shape`, all or the first `most`, in blocks."""
    return torch.from_numpy(made_up_images(shape, min(_IMAGES, most or _IMAGES))).split(_ROWS_AT_ONCE)  # type: ignore[no-any-return, no-untyped-call]
