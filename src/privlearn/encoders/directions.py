"""The directions in which public features differ most, among images that nobody took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

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


def directions(
    features: Callable[[Tensor], Tensor], shape: Sequence[int], kept: int, name: str, cache: Path | None
) -> tuple[Tensor, Tensor]:
    """The mean of features of made-up images, and `kept` principal directions, each over a root of its variance.

    That is most of whitening: directions in which features hardly differ count for more, and not for as much as the others.
    No data have a part in it.

    Args:
        features: images (rows, *shape) to features (rows, ...).
        shape: of one image.
        kept: how many directions.
        name: of the features, for the file they are kept in.
        cache: a folder to keep them in, for they take a minute; None: nowhere.

    Returns:
        mean (features,) and directions (features, kept).

    Raises:
        BadInput: fewer features, or made-up images, than directions.
    """
    sizes = "x".join(map(str, shape))
    # Everything that they follow from stands in the name.
    told = f"{name}-{sizes}-{_IMAGES}-{_ADDED}-{_WHITENED}".replace(":", "-").replace(",", "-")
    path = None if cache is None else cache / f"{told}.safetensors"
    if path is not None and path.exists():
        try:
            found = load_file(path)
            return found["mean"], found["components"]
        except (SafetensorError, KeyError, OSError):
            path.unlink()
    rows = torch.cat([features(part).flatten(1) for part in _images(shape)])
    if kept > min(rows.shape):
        raise BadInput(f"{kept} directions are to be kept, and there are {rows.shape[1]} features: expected fewer")
    mean = rows.mean(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, spread, components = torch.svd_lowrank(rows - mean, q=min(kept + 100, *rows.shape), niter=3)
    variances = spread[:kept].square() / len(rows)
    scaled = components[:, :kept] * (variances + _ADDED * variances.mean()) ** (-_WHITENED / 2)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save({"mean": mean, "components": scaled.contiguous()}))
    return mean, scaled.contiguous()


def _images(shape: Sequence[int]) -> tuple[Tensor, ...]:
    return torch.from_numpy(made_up_images(shape, _IMAGES)).split(_ROWS_AT_ONCE)  # type: ignore[no-any-return, no-untyped-call]
