"""What a run may be given: rows, in memory or fetched by index, and how it is to compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from privlearn.accounting.ledger import Ledger
from privlearn.clipping.augmentation import Augmentation
from privlearn.data.dataset import Dataset
from privlearn.data.dataset_rows import DatasetRows
from privlearn.data.rows import Rows, TensorRows, TransformedRows
from privlearn.data.torch_rows import rows_of, shuffled_batch_size
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.refusals import OptimizerFactory
from privlearn.sampling import Sampler, Shuffle
from privlearn.schedules import Schedule, Validation
from privlearn.streams import Streams
from privlearn.world import World

#: Rows to learn from: a `Dataset`, a pair (inputs, targets) or any nest of arrays or tensors with one row for each example;
#: or a map-style `torch.utils.data.Dataset`, whose rows are fetched by index (`data.rows`). Of a `DataLoader` only the rows
#: are used; it must shuffle, and the plan's sampling be `pv.Shuffle` with its batch size.
Given = Dataset | Rows | tuple[Any, Any] | TorchDataset[Any] | DataLoader[Any]


class Compute(TypedDict, total=False):
    """How a run computes; none of it touches the guarantee.

    Keys:
        augmentation: changed copies of each row, whose gradients are averaged before clipping. Rows are changed as the
            network gets them: scaled; not in front of public features, whose images a change would have to come before.
        microbatch: examples computed at once, or None for what fits into memory; the result is the same.
        device: where to compute, for example "cuda"; by default where the model is. The result is on the CPU.
        precision: "float32", or "bf16" to run the model in bfloat16; norms, sums and noise stay in single precision.
        world: the processes that train together; by default this one alone.
    """

    augmentation: Augmentation | None
    microbatch: int | None
    device: str | torch.device | None
    precision: str
    world: World


class RunArguments(Compute, total=False):
    """The named arguments of `descent.dpsgd.Run`."""

    optimizer: OptimizerFactory
    learning_rate_schedule: Schedule
    average: float | None
    validation: Dataset | None
    ledger: Ledger | None
    streams: Streams | None
    checkpoint: Checkpoint | str | Path | None


def rows(given: Given, sampling: Sampler) -> Dataset:
    """Read what was given into memory.

    Raises:
        BadInput: no data set, or a loader that draws other batches than the plan.
    """
    if isinstance(given, DataLoader):
        return rows_of(dataset_of(given, sampling))
    return rows_of(given) if isinstance(given, TorchDataset) else Dataset.of(given)  # type: ignore[arg-type]


def dataset_of(loader: DataLoader[Any], sampling: Sampler) -> TorchDataset[Any]:
    """The data set of a loader.

    The plan's sampler draws the batches, whatever was given. So a loader must be one that `sampling` describes: it shuffles,
    which is `Shuffle` with its batch size, and is not amplified.

    Raises:
        BadInput: it draws other batches than the plan.
    """
    size = shuffled_batch_size(loader)
    if sampling != Shuffle(size):
        raise BadInput(
            f"the DataLoader shuffles and cuts batches of {size}, and the plan says {sampling}: expected "
            f"pv.Shuffle(batch_size={size}), whose guarantee has no amplification by sampling. To have one, give "
            "loader.dataset instead, and pv.Poisson or pv.Partition in the plan: privlearn draws the batches itself",
            batch_size=size,
        )
    return loader.dataset


def by_index(given: Given, plan: Plan) -> tuple[Dataset | None, Rows | None]:
    """What was given, as rows in memory or as rows that are fetched by index: one of the two.

    Memory-mapped arrays and map-style data sets are fetched by index, but where a release before training or a validation
    that is paid for computes on all rows.
    """
    whole, workers = bool(plan.releases) or isinstance(plan.schedule, Validation), 0
    if isinstance(given, DataLoader):
        workers = given.num_workers
        given = dataset_of(given, plan.sampling)
    if isinstance(given, dict) or (isinstance(given, tuple) and any(isinstance(part, dict | tuple) for part in given)):
        given = TensorRows(given)
    if isinstance(given, TensorRows | DatasetRows | TransformedRows):
        if whole:
            raise BadInput(
                "a release before training, or a validation schedule, computes on all rows, and these are fetched by index: "
                "give a privlearn Dataset or a pair of arrays, or leave it out"
            )
        return None, given
    if isinstance(given, TorchDataset) and not isinstance(given, TensorDataset) and not whole and _indexed(given):
        return None, DatasetRows(given, workers=workers)
    data = rows(given, plan.sampling)
    if any(isinstance(part, np.memmap) for part in (data.x, data.y)) and not whole:
        return data, TensorRows((data.x, data.y))
    return data, None


def _indexed(given: TorchDataset[Any]) -> bool:
    return hasattr(given, "__getitem__") and hasattr(given, "__len__")
