"""What may be given as a data set, whether a loader's batches are the plan's, and the transforms in front of a network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from privlearn.data.dataset import Dataset
from privlearn.data.torch_rows import rows_of, shuffled_batch_size
from privlearn.encoders import External
from privlearn.errors import BadInput
from privlearn.models import Scale
from privlearn.sampling import Sampler, Shuffle

#: Rows to learn from, in any of the ways in which they may be given.
Rows = Dataset | tuple[Any, Any] | TorchDataset[Any] | DataLoader[Any]


def rows(given: Rows, sampling: Sampler) -> Dataset:
    """Read what was given as a data set.

    The plan's sampler draws the batches, whatever was given. So a loader must be one that `sampling` describes: it shuffles,
    which is `Shuffle` with its batch size, and is not amplified.

    Raises:
        BadInput: no data set, or a loader that draws other batches than the plan.
    """
    if isinstance(given, DataLoader):
        size = shuffled_batch_size(given)
        if sampling != Shuffle(size):
            raise BadInput(
                f"the DataLoader shuffles and cuts batches of {size}, and the plan says {sampling}: expected "
                f"pv.Shuffle(batch_size={size}), whose guarantee has no amplification by sampling. To have one, give "
                "loader.dataset instead, and pv.Poisson or pv.Partition in the plan: privlearn draws the batches itself",
                batch_size=size,
            )
        return rows_of(given.dataset)
    return rows_of(given) if isinstance(given, TorchDataset) else Dataset.of(given)


def front(data: Dataset, x: Tensor, *, finite: bool = True) -> tuple[list[nn.Module], Tensor]:
    """The public transforms that stand in front of a network: what scales rows, and what makes features of them.

    Args:
        data: says which.
        x: rows of it, or of the same form.
        finite: whether features by the user's own code must be finite: before anything is spent, never afterwards.

    Returns:
        the transforms, and what they make of `x`.

    Raises:
        BadInput: features that are not finite, or rows that the encoder does not take.
    """
    transforms: list[nn.Module] = [] if data.low is None else [Scale(*data.bounds())]
    x = through(transforms, x)
    if data.features is None:
        return transforms, x
    encoder, features = data.features.encoder, data.features(x)
    if finite and isinstance(encoder, External):
        encoder.require_finite(features, x)
    return [*transforms, encoder], features


def through(transforms: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply public, per-example transforms to all rows."""
    with torch.no_grad():
        for transform in transforms:
            x = transform(x)
    return x
