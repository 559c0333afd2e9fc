"""What every reducer can do, and what it may be fitted on: public data, which whoever holds them declares."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from privlearn._validate import probability
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput

_ROWS_AT_ONCE = 256


class Reducer:
    """A public map from targets to short codes and back. Codes are what teachers' answers are averaged and released as.

    What is fitted on data must be fitted on public data: a map that was fitted on private targets would give them away.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers in a code."""

    @property
    @abstractmethod
    def centre(self) -> Tensor:
        """The public target that stands in for one that can't be used."""

    @property
    def code_centre(self) -> Tensor:
        """The public code that codes are clipped about, which stands in for a teacher that can't be used, shape (size,).

        It is the centre's code; 0 for reducers whose codes are bounded, which are not shifted before they are clipped.
        """
        return self.encode(self.centre[None])[0]

    @property
    def matrix(self) -> Tensor | None:
        """The linear map (size, numbers in a target), applied after the centre is taken off; None if it is not linear."""
        return None

    @property
    def is_identity(self) -> bool:
        """Whether codes are the targets themselves, less the centre."""
        return False

    @abstractmethod
    def encode(self, targets: Tensor) -> Tensor:
        """Codes, shape (rows, size), of targets (rows, *shape)."""

    @abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """Targets, shape (rows, *shape), that belong to codes (rows, size)."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Its kind and public numbers, for certificates."""

    def radius(self, public: Dataset, share: float = 1.0) -> float:
        """The radius about `code_centre` within which this share of the codes of public targets lie, for `pv.Ball`.

        Raises:
            BadInput: data that are not declared public, or targets of another shape.
        """
        targets = public_targets(public)
        if tuple(targets.shape[1:]) != self.shape:
            raise BadInput(f"targets have shape {tuple(targets.shape[1:])}: this reducer takes {self.shape}")
        centre = self.code_centre
        lengths = [(self.encode(part) - centre).norm(dim=1) for part in targets.split(_ROWS_AT_ONCE)]  # type: ignore[no-untyped-call]
        return float(torch.quantile(torch.cat(lengths).double(), probability("share", share)))


def public_targets(public: Dataset) -> Tensor:
    """The targets of public data as floating-point numbers, shape (rows, ...).

    Raises:
        BadInput: data that are not declared public, or targets that are no finite numbers or labels.
    """
    if not isinstance(public, Dataset) or not public.public:
        raise BadInput(
            "a reducer is fitted on data that are declared public, pv.Dataset(x, y, public=True): fitted on private targets "
            "it would give them away, unpaid. Those of the teachers' records are private"
        )
    _, targets = public.tensors()
    if targets.dim() < 2 or len(targets) < 2 or math.prod(targets.shape[1:]) < 1:
        raise BadInput(
            f"the public targets have shape {tuple(targets.shape)}: expected at least two rows, each a target of one or more "
            "dimensions. For labels ask for votes, pv.Votes(classes), which need no reducer"
        )
    targets = targets if targets.is_floating_point() else targets.float()
    if not bool(targets.isfinite().all()):
        raise BadInput("the public targets hold values that are not finite: leave such rows out")
    return targets
