"""Values as tensors: what rows, targets and answers are turned into before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor


def as_tensor(values: Any, what: str = "the data", *, whole_is_float: bool = False) -> Tensor:
    """`values` as a tensor: floats in float32, whole numbers in int64 (in float32 with
    `whole_is_float`).

    Tensors stay as they are.

    Raises:
        BadInput: there are none, or they are no numbers; with the name of `what` they are.
    """
    import torch

    if values is None:
        raise BadInput(
            f"{what} are missing: expected one for each row. Give targets: Dataset(x, y), or y "
            "beside x in the file"
        )
    if isinstance(values, torch.Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise BadInput(
            f"{what} hold {array.dtype} values: expected numbers; turn names and categories into "
            "whole numbers from 0"
        )
    kind = np.float32 if array.dtype.kind == "f" or whole_is_float else np.int64
    # memory-mapped, say: a tensor could be written to
    array = array if array.flags.writeable else array.copy()
    return torch.from_numpy(np.ascontiguousarray(array, dtype=kind))
