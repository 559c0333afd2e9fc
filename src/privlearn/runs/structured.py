"""This file takes data sets and loaders of PyTorch, and data sets of Hugging Face, as rows that a
run trains on.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from privlearn.core.sampling import Sampler, Shuffle
from privlearn.data.dataset import Dataset
from privlearn.data.dataset_rows import DatasetRows, NumberedRows
from privlearn.data.torch_rows import rows_of, shuffled_batch_size
from privlearn.errors import BadInput


def read(source: Any, sampling: Sampler, *, whole: bool) -> Any:
    """What a loader loads, or a data set: fetched by index if it is map-style, else as it is.

    Args:
        source: a data set or a loader.
        sampling: of the plan.
        whole: whether something computes on all rows, so that none are fetched by index.

    Raises:
        BadInput: a loader that draws other batches than the plan.
    """
    workers = 0
    if isinstance(source, DataLoader):
        workers = source.num_workers
        source = dataset_of(source, sampling)
    if hasattr(source, "with_format") and _is_map_style(source):
        source = NumberedRows(source)
    if (
        isinstance(source, TorchDataset)
        and not isinstance(source, TensorDataset)
        and not whole
        and _is_map_style(source)
    ):
        return DatasetRows(source, workers=workers)
    return source


def rows_in_memory(source: TorchDataset[Any] | DataLoader[Any], sampling: Sampler) -> Dataset:
    """Read a data set, or that of a loader, into memory.

    Raises:
        BadInput: rows of other forms, or a loader that draws other batches than the plan.
    """
    return rows_of(dataset_of(source, sampling) if isinstance(source, DataLoader) else source)


def dataset_of(loader: DataLoader[Any], sampling: Sampler) -> TorchDataset[Any]:
    """The data set of a loader.

    The plan's sampler draws the batches, whatever was given. So a loader must be one that
    `sampling` describes: it shuffles, which is `Shuffle` with its batch size, and is not amplified.

    Raises:
        BadInput: it draws other batches than the plan.
    """
    size = shuffled_batch_size(loader)
    if sampling != Shuffle(size):
        raise BadInput(
            f"the DataLoader shuffles and cuts batches of {size}, and the plan says {sampling}: "
            f"expected pv.Shuffle(batch_size={size}), whose guarantee has no amplification by "
            "sampling. To have one, give loader.dataset instead, and pv.Poisson or pv.Partition "
            "in the plan: privlearn draws the batches itself",
            batch_size=size,
        )
    return loader.dataset


def _is_map_style(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")
