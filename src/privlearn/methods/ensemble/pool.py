"""The public inputs of a PATE run: which are asked about, and how a student gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.data.dataset import Dataset, as_tensor
from privlearn.errors import BadInput
from privlearn.models import Scale


@final
@dataclass(frozen=True, eq=False)
class Pool:
    """Public inputs.

    Attributes:
        raw: as they were given, shape (pool, ...).
        inputs: as a student gets them: scaled, where bounds are declared.
        transforms: what stands in front of the student for that.
    """

    raw: Tensor
    inputs: Tensor
    transforms: tuple[nn.Module, ...]

    @classmethod
    def of(cls, given: Dataset | Any, queries: int) -> Pool:
        """The pool of an array, a tensor or a data set that is declared public, of which the targets are not looked at.

        Raises:
            BadInput: a data set that is not declared public, inputs that are not finite, or fewer than `queries`.
        """
        if isinstance(given, Dataset) and not given.public:
            raise BadInput(
                "the inputs that teachers are asked about are not protected: give public ones, pv.Dataset(x, y, public=True), "
                "or an array of them"
            )
        bounded = isinstance(given, Dataset) and given.low is not None
        raw = as_tensor(given.x, whole_is_float=bounded) if isinstance(given, Dataset) else as_tensor(given)
        if raw.dim() < 2 or (raw.is_floating_point() and not bool(raw.isfinite().all())):
            raise BadInput(
                f"public inputs of shape {tuple(raw.shape)} can't be asked about: expected finite rows of numbers"
            )
        if len(raw) < queries:
            raise BadInput(
                f"there are {len(raw)} public inputs, and the plan asks {queries} queries: expected an input for each. "
                "Nothing was charged; use a plan of fewer queries"
            )
        if not bounded:
            return cls(raw, raw, ())
        scale = Scale(*given.bounds())
        with torch.no_grad():
            return cls(raw, scale(raw), (scale,))
