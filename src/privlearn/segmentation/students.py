"""Students of maps: a copy of a network that learns from released answers, and from public maps beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from privlearn.data.dataset import Dataset, as_tensor
from privlearn.errors import BadInput
from privlearn.methods.ensemble.answers import Answers
from privlearn.models import Scale
from privlearn.segmentation.references import as_probabilities
from privlearn.segmentation.training import Training, maps_of


@final
@dataclass(frozen=True, eq=False)
class MapStudent:
    """A recipe for students: a copy of `start`, trained on answers, and on public volumes about half as often.

    Attributes:
        start: what the student begins as; never changed.
        training: how it learns.
        labelled: public volumes with maps of classes; None: it learns from answers alone.
        recover: from the released numbers to maps, shape (queries, classes, *size); by default they are maps already.
        seed: of everything that is drawn; public.
    """

    start: nn.Module
    training: Training = Training()  # noqa: RUF009 - a frozen value
    labelled: Dataset | None = None
    recover: Callable[[Tensor], Tensor] = as_probabilities
    seed: int = 0

    def __call__(self, answers: Answers) -> nn.Module:
        """Train it.

        Raises:
            BadInput: public maps that are not declared public, or recovered answers that are no maps.
        """
        volumes, released = answers.learnable()
        maps = self.recover(released)
        if maps.dim() != volumes.dim() or maps.shape[2:] != volumes.shape[2:]:
            raise BadInput(
                f"answers become {tuple(maps.shape)} for volumes of shape {tuple(volumes.shape)}: expected a probability "
                "for each class and voxel"
            )
        if self.labelled is not None:
            known, truth = public_maps(self.labelled, maps.shape[1])
            times = max(1, len(volumes) // (2 * len(known)))
            volumes, maps = torch.cat([volumes, *[known] * times]), torch.cat([maps, *[truth] * times])
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.training(copy.deepcopy(self.start), volumes, maps)


def public_maps(labelled: Dataset, classes: int) -> tuple[Tensor, Tensor]:
    """Public volumes, scaled as a student sees them, and their maps as probabilities.

    Raises:
        BadInput: they are not declared public.
    """
    if not labelled.public:
        raise BadInput(
            "maps that a student learns from beside the answers are not protected: give public ones, "
            "pv.Dataset(x, y, public=True)"
        )
    return scaled(labelled), maps_of(labelled.tensors()[1], classes)


def scaled(data: Dataset) -> Tensor:
    """The volumes of `data` as networks see them: clipped to their declared bounds, and scaled."""
    x = as_tensor(data.x, whole_is_float=data.low is not None)
    found: Tensor = x if data.low is None else Scale(*data.bounds())(x)
    return found
