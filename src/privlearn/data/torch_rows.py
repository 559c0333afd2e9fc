"""Rows of PyTorch's own data sets and loaders, read once into tensors.

A look at all rows once, for the data's curator: outside any guarantee, and before anything is
spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data.dataloader import default_collate

from privlearn.core.rows import Rows, TensorRows
from privlearn.data.dataset import Dataset
from privlearn.data.dataset_rows import DatasetRows
from privlearn.errors import BadInput, first_line

_UNKNOWN = "nothing says how likely a row is to be drawn, and how often"


def rows_of(dataset: TorchDataset[Any]) -> Dataset:
    """Read a map-style data set of pairs (input, target), each row once.

    Random transforms are thereby frozen: a row is what it is at this one reading. (For changing
    copies there is `privlearn.Augmentation`, whose copies are averaged before clipping.) A row must
    depend on one example alone: a data set that mixes examples, or standardises them by figures of
    all, is not noticed and not covered.

    Raises:
        BadInput: an iterable data set, one without a length, or rows that are no such pairs or do
            not fit each other.
    """
    if isinstance(dataset, IterableDataset):
        raise BadInput(
            f"{type(dataset).__name__} is an iterable data set: its rows have no numbers, so it is "
            "not known with which probability one of them is drawn. Give a map-style data set, "
            "for example list(dataset) put into tensors"
        )
    if isinstance(dataset, TensorDataset):
        if len(dataset.tensors) != 2:
            raise BadInput(
                f"the TensorDataset has {len(dataset.tensors)} tensors: expected two, the inputs "
                "and the targets"
            )
        return Dataset.of((dataset.tensors[0], dataset.tensors[1]))
    try:
        length = len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError) as error:
        raise BadInput(
            f"{type(dataset).__name__} has no length: expected a map-style data set, with __len__ "
            "and __getitem__"
        ) from error
    if length == 0:
        raise BadInput(f"{type(dataset).__name__} has no rows: expected at least one")
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for number in range(length):
        row = dataset[number]
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 2:
            raise BadInput(
                (
                    f"row {number} of {type(dataset).__name__} is {_describe(row)}: expected a "
                    "pair (input, target)"
                ),
                row=number,
            )
        inputs.append(_tensor(row[0], "input", number))
        targets.append(_tensor(row[1], "target", number))
        for part, values in (("input", inputs), ("target", targets)):
            if (values[-1].shape, values[-1].dtype) != (values[0].shape, values[0].dtype):
                raise BadInput(
                    f"the {part} of row {number} is {_describe(values[-1])}, and that of row 0 is "
                    f"{_describe(values[0])}: "
                    "expected one shape and type; bring rows to it one by one, in the data set",
                    row=number,
                )
    return Dataset(torch.stack(inputs), torch.stack(targets), name=type(dataset).__name__)


def declaration_of(name: str, rows: Any) -> str:
    """How rows in a form of PyTorch's are declared, in words; empty of anything else.

    Args:
        name: what the rows are called where they were given.
        rows: them.
    """
    parts = f"*{name}"
    if isinstance(rows, DataLoader):
        rows, parts = rows.dataset, f"*{name}.dataset"
    if isinstance(rows, TensorDataset):
        parts += ".tensors"
    elif isinstance(rows, TorchDataset):
        parts = "x, y"
    elif not isinstance(rows, tuple | list) or len(rows) != 2:
        return ""
    return (
        f"pv.Dataset({parts}, classes=K), of the inputs and the targets. It declares how many "
        "classes there are, or target_bounds=(low, high), because nothing may follow from private "
        "targets"
    )


def shuffled_batch_size(loader: DataLoader[Any]) -> int:
    """The size of the batches of a loader that shuffles all rows afresh every epoch and cuts them
    one after another.

    No row is read.

    Raises:
        BadInput: the loader draws its batches in another way.
    """
    if isinstance(loader.dataset, IterableDataset):
        rows_of(loader.dataset)
    if type(loader) is not DataLoader:
        raise _refusal(f"is a {type(loader).__name__}", _UNKNOWN)
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        kind = "no batches" if loader.batch_sampler is None else "a batch_sampler of its own"
        raise _refusal(f"has {kind}", _UNKNOWN)
    if type(loader.sampler) is SequentialSampler:
        raise _refusal(
            "takes the rows in their order (shuffle=False)",
            "every epoch would have the same batches",
        )
    if type(loader.sampler) is not RandomSampler:
        raise _refusal(f"has a sampler of its own ({type(loader.sampler).__name__})", _UNKNOWN)
    if loader.sampler.replacement:
        raise _refusal(
            "draws with replacement",
            "a row can come several times in a batch, which nothing here accounts for",
        )
    rows = len(loader.dataset)  # type: ignore[arg-type]
    if loader.sampler.num_samples != rows:
        raise _refusal(f"draws {loader.sampler.num_samples} of {rows} rows an epoch", _UNKNOWN)
    if loader.collate_fn is not default_collate:
        raise _refusal(
            "has a collate_fn of its own", "it could change rows, or mix those of a batch"
        )
    if loader.drop_last and rows % loader.batch_size:
        raise _refusal(
            "leaves out the last, smaller batch (drop_last=True)",
            "privlearn's pv.Shuffle trains on it",
        )
    return loader.batch_size


def share_rows(one: Any, other: Any) -> bool:
    """Whether some row is known to be in both data sets.

    Followed are parts and joined data sets of torch.utils.data, lists of rows, tensors in one
    memory, and what Hugging Face's datasets selects, filters, sorts, shuffles or splits. Rows that
    were copied (by `map`, or by reading a file again) are not recognised.
    """
    if one is other:
        return one is not None
    return bool(np.isin(_originals(one), _originals(other)).any())


#: Where a cell of a row comes from: which data set, memory or list, and its number there.
_ORIGIN = np.dtype([("place", np.int64), ("number", np.int64)])


def _originals(dataset: Any) -> NDArray[np.void]:
    """Where the cells of each row of a data set come from, shape (rows, columns): two rows that
    share one are the same.
    """
    if isinstance(dataset, Subset):
        return _originals(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64).reshape(-1)]
    if isinstance(dataset, ConcatDataset):
        return _joined([_originals(part) for part in dataset.datasets])
    if isinstance(dataset, list | tuple):
        return _origins(0, np.asarray(list(map(id, dataset)), dtype=np.int64))
    if isinstance(dataset, TensorDataset):
        first = dataset.tensors[0]
        begin, stride = int(first.storage_offset()), int(first.stride(0))
        return _origins(first.untyped_storage().data_ptr(), begin + stride * np.arange(len(first)))
    table = getattr(getattr(dataset, "data", None), "table", None)
    if hasattr(dataset, "with_format") and hasattr(table, "itercolumns"):
        return _originals_in_arrow(dataset, table)
    return _origins(id(dataset), np.arange(len(dataset) if hasattr(dataset, "__len__") else 0))


def _originals_in_arrow(dataset: Any, table: Any) -> NDArray[np.void]:
    """Those of a data set of Hugging Face, by where its table lies in memory."""
    columns = [
        np.concatenate(
            [_origins(0, np.arange(0)), *(_origins(*_place_of(chunk)) for chunk in column.chunks)]
        )
        for column in table.itercolumns()
    ]
    cells = np.concatenate(columns, axis=1) if columns else _origins(0, np.arange(0))
    chosen = getattr(dataset, "_indices", None)  # the rows of the table that are selected
    return cells if chosen is None else cells[np.asarray(chosen.column(0).to_pylist(), np.int64)]


def _place_of(chunk: Any) -> tuple[int, NDArray[np.int64]]:
    """Where an array of Arrow lies, and the numbers of its rows there."""
    address = next((part.address for part in chunk.buffers() if part is not None), id(chunk))
    return address, chunk.offset + np.arange(len(chunk))


def _joined(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """One under the other, the last column repeated where a part has fewer."""
    width = max((part.shape[1] for part in parts), default=1)
    return np.concatenate(
        [part[:, np.minimum(np.arange(width), part.shape[1] - 1)] for part in parts]
    )


def _origins(place: int, numbers: NDArray[np.int64]) -> NDArray[np.void]:
    rows = np.zeros((len(numbers), 1), _ORIGIN)
    rows["place"], rows["number"] = place, numbers[:, None]
    return rows


def resampled(loader: Any) -> tuple[Rows, int]:
    """The rows of a loader and its batch size: what is needed to draw other batches from the same
    rows.

    Its data set, collate function, workers and batch size are used. How it draws is not: whether it
    shuffles does not matter. One that accelerate prepared is taken for the one that it was made of,
    and a `DistributedSampler` of the processes that train together for none: the whole batch is
    drawn in each process.

    Raises:
        BadInput: it is no `DataLoader`, its data set has no numbered rows, or it draws in a way
            that is not priced here.
    """
    if not isinstance(loader, DataLoader):
        raise BadInput(
            f"loader is a {type(loader).__name__}: expected a DataLoader, such as "
            "DataLoader(dataset, batch_size=64), whose batch size is the expected number of "
            "examples in a batch. What a wrapper does to batches, do to rows, in the data set"
        )
    prepared, loader = loader, getattr(loader, "base_dataloader", loader)
    dataset, drawn = loader.dataset, loader.batch_sampler
    if loader is not prepared and hasattr(drawn, "split_batches"):  # of several processes
        if drawn.num_processes > 1 and not drawn.split_batches:
            raise BadInput(
                f"accelerate prepared a loader with batches of {drawn.batch_size} for each "
                "process, and schedulers that step once for each: here a batch is of all "
                "processes together. Give "
                "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))"
            )
        drawn = drawn.batch_sampler
    if isinstance(dataset, IterableDataset):
        rows_of(dataset)
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise BadInput(
            f"the loader is a {type(loader).__name__}, which makes its batches in its own way: "
            "give the plain DataLoader(dataset, batch_size=B, collate_fn=...) that is behind it"
        )
    if type(drawn) is not BatchSampler or (loader is prepared and loader.batch_size is None):
        raise BadInput(
            f"the loader has {'no batches' if drawn is None else 'a batch_sampler of its own'}, "
            "and batches are drawn at random here. Give DataLoader(dataset, batch_size=B) without "
            "it, and sampling= for other ways"
        )
    if not hasattr(dataset, "__len__"):
        raise BadInput(
            f"the loader's data set is a {type(dataset).__name__}, which has no numbered rows: "
            "expected a map-style data set. Of a pv.Dataset give TensorDataset(*data.tensors()), "
            "and groups=data.groups if it has person ids"
        )
    _require_plain(drawn.sampler, len(dataset))
    if drawn.drop_last:
        raise BadInput(
            "the loader has drop_last=True, and batches are drawn at random here: none is the "
            "last. Leave it out; of a loader that a function makes, give "
            "DataLoader(loader.dataset, batch_size=B, collate_fn=loader.collate_fn)"
        )
    if loader.collate_fn is default_collate and (tensors := _tensors_of(dataset)) is not None:
        held = TensorRows(tensors)
        held.source = dataset
        return held, drawn.batch_size
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    rows = DatasetRows(
        dataset, collate, loader.num_workers, fresh=True, begin=loader.worker_init_fn
    )
    if collate is not None:
        rows.try_collate()
    return rows, drawn.batch_size


def _require_plain(sampler: Any, rows: int) -> None:
    """Refuse a sampler that gives some rows another chance than others, or leaves rows out."""
    if isinstance(sampler, SequentialSampler):
        return
    name = type(sampler).__name__
    if type(sampler) is DistributedSampler and len(sampler.dataset) == rows:  # type: ignore[arg-type]
        if sampler.num_replicas == (
            dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        ):
            return
        raise BadInput(
            f"the loader has a DistributedSampler for {sampler.num_replicas} processes, which are "
            "not here: the others would train on the same rows. Start them by torchrun, or leave "
            "the sampler out"
        )
    if isinstance(sampler, WeightedRandomSampler):
        raise BadInput(
            "the loader has a WeightedRandomSampler: a row that is drawn more often would need "
            "more noise than is priced here. Leave the sampler out, and weigh each example in the "
            "loss instead, before it is clipped"
        )
    if isinstance(sampler, SubsetRandomSampler):
        raise BadInput(
            "the loader has a SubsetRandomSampler: give the rows themselves, "
            "DataLoader(torch.utils.data.Subset(dataset, indices), batch_size=B)"
        )
    if not isinstance(sampler, RandomSampler):
        raise BadInput(
            f"the loader has a sampler of its own, {name}: {_UNKNOWN}. Leave it out; batches are "
            "drawn by sampling=, Poisson sampling by default"
        )
    if sampler.replacement or sampler.num_samples != rows:
        raise BadInput(
            f"the loader draws {sampler.num_samples} of {rows} rows "
            f"{'with' if sampler.replacement else 'without'} replacement: give DataLoader(dataset, "
            "batch_size=B), and choose the number of steps with epochs="
        )


def _tensors_of(dataset: Any) -> list[Tensor] | None:
    """The rows of a data set of tensors, or of a part of one; None if it is another."""
    if type(dataset) is TensorDataset:
        return list(dataset.tensors)
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        places = torch.as_tensor(dataset.indices, device="cpu")
        return [tensor[places] for tensor in dataset.dataset.tensors]
    return None


def _refusal(does: str, why: str) -> BadInput:
    return BadInput(
        f"the DataLoader {does}: {why}. privlearn draws its own batches: give loader.dataset, and "
        "say in the plan how, with pv.Poisson, pv.Partition or pv.Shuffle"
    )


def _tensor(value: Any, part: str, number: int) -> Tensor:
    try:
        tensor: Tensor = torch.as_tensor(value, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"the {part} of row {number} is {_describe(value)}: expected a tensor, an array or a "
            "number; convert it in the data set (images: to tensors of pixels)",
            row=number,
        ) from error
    return tensor.float() if isinstance(value, float) else tensor


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


@final
@dataclass(frozen=True, repr=False)
class Checked:
    """The result of a look at all rows. It tells of private rows: keep it to yourself.

    Attributes:
        rows: how many there are.
        unusable: for each row that training would count as absent, its number and why.
    """

    rows: int
    unusable: tuple[tuple[int, str], ...] = ()

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if not self.unusable:
            return f"{self.rows} rows, all can be used"
        first = "; ".join(f"row {number}: {why}" for number, why in self.unusable[:5])
        return (
            f"{len(self.unusable)} of {self.rows} rows can't be used and would count as "
            f"absent: {first}"
        )


def check_rows(
    data: Dataset | Rows | TorchDataset[Any] | tuple[Any, Any] | dict[str, Any],
) -> Checked:
    """Fetch every row once.

    A `Dataset` is checked as a whole (`Dataset.checked`), as those are that `pv.load` reads. Of
    other rows, a pair of arrays or tensors for example, each that can't be made, or holds numbers
    that are not finite, is named: in training it would count as absent.

    Raises:
        BadInput: a `Dataset` that can't be trained on, with the first row in which that shows.
    """
    if isinstance(data, Dataset):
        return Checked(len(data.checked().x))
    if isinstance(data, tuple | dict):
        data = TensorRows(data)
    rows: Rows = DatasetRows(data) if isinstance(data, TorchDataset) else data
    numbered = ((number, _trouble(rows, number)) for number in range(len(rows)))
    return Checked(len(rows), tuple((number, why) for number, why in numbered if why))


def _trouble(rows: Rows, number: int) -> str:
    """Why a row can't be used; empty if it can."""
    try:
        leaves = rows.fetch(torch.tensor([number], device="cpu"))
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"
    differs = [
        leaf for leaf, like in zip(leaves, rows.like, strict=True) if leaf.dtype != like.dtype
    ]
    if differs:
        return f"{differs[0].dtype} values, where other rows have another type"
    return (
        "" if all(bool(leaf.isfinite().all()) for leaf in leaves) else "a value that is not finite"
    )
