"""Students: models that learn from public inputs and released answers. All of it is
post-processing.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import (
    between,
    checked,
    count,
    one_of,
    positive,
    probability,
    with_plain_numbers,
)
from privlearn.core.clipping.losses import Loss
from privlearn.core.clipping.randomness import generators_at
from privlearn.errors import BadInput, TrainingWarning, first_line, warn
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.recipes import Neighbourhood

#: From inputs and answers to a trained module, which takes inputs of that shape.
StudentRecipe = Callable[[Answers], nn.Module]

#: Steps of Adam, and epochs, that a student takes at least.
_STEPS, _EPOCHS = 1000, 20
#: A student that has this share of a constant's loss learned little; of fewer answers nothing is
#: said.
_LEARNED, _FEW = 0.9, 20

_LOSSES: dict[str, Loss] = {
    # whole numbers, or probabilities of classes along the first dimension
    "cross_entropy": F.cross_entropy,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
}


@with_plain_numbers
@final
@dataclass(frozen=True)
class Spread:
    """Spreads labels from the answered inputs to all public ones before the student learns.

    Label spreading (Zhou et al. 2004) on the principal components of the public inputs. Noisy
    answers are outvoted by those to similar inputs, and inputs without an answer get one.

    Attributes:
        components: principal components of the inputs that distances are taken in; 0: the inputs
            themselves.
        neighbours: how many neighbours an input is connected to.
        alpha: how much of its label an input takes from its neighbours, in (0, 1).
        agreement: how many of the teachers are expected to agree, as a share: how far a noisy count
            can be believed.
    """

    components: int = 50
    neighbours: int = 10
    alpha: float = 0.95
    agreement: float = 0.8

    def __post_init__(self) -> None:
        count("components", self.components, least=0), count("neighbours", self.neighbours)
        between("alpha", self.alpha, 1e-9, 1 - 1e-9), probability("agreement", self.agreement)

    def __call__(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """All inputs, and the class of each.

        Raises:
            BadInput: answers that are no classes.
        """
        if answers.classes is None:
            raise BadInput(
                "labels are spread, and these answers are not classes: leave out spread="
            )
        near = Neighbourhood(answers.inputs, self.components, self.neighbours)
        beliefs = np.zeros((len(answers.inputs), answers.classes))
        beliefs[: len(answers.targets)] = answers.beliefs(self.agreement).numpy()
        return answers.inputs, torch.from_numpy(near.spread(beliefs, self.alpha).argmax(1))


@checked
@final
@dataclass(frozen=True)
class Student:
    """A torch module that is trained on released answers.

    Attributes:
        make: makes the module from the shape of one input; initial weights follow from `seed`.
        loss: "cross_entropy" (classes, or soft targets along the first dimension of a target),
            "binary_cross_entropy" (soft targets, outputs are logits) or "mse" (targets of any
            kind); or a function of outputs and targets, such as CrossEntropyLoss(reduction="none"),
            of whose values the mean is taken. None: "cross_entropy" for votes, "mse" for decoded
            targets.
        epochs: times that each input is seen; None: 20, or as many as make 1,000 steps.
        batch_size: inputs in a step of Adam.
        learning_rate: of Adam.
        spread: how answers reach inputs without one; None: only answered ones are learned from.
        augment: changes each batch of inputs before a step, at random, say; None: they are learned
            from as they are.
        seed: of initial weights and of the order of inputs; public.
    """

    make: Callable[[tuple[int, ...]], nn.Module]
    loss: str | Loss | None = None
    epochs: int | None = None
    batch_size: int = 128
    learning_rate: float = 1e-3
    spread: Spread | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not callable(self.loss) and self.loss is not None:
            one_of("loss", self.loss, _LOSSES)
        count("epochs", 1 if self.epochs is None else self.epochs)
        count("batch_size", self.batch_size)
        positive("learning_rate", self.learning_rate)
        count("seed", self.seed, least=0, most=2**63 - 1)
        if not callable(self.make):
            raise BadInput(
                f"make is {str(self.make)[:60]}: expected a function from the shape of one input "
                "to a module"
            )

    def __call__(self, answers: Answers) -> nn.Module:
        """Train it.

        Raises:
            BadInput: no query has an answer, or a loss that is not for such answers.
        """
        ready = self.settled(answers)
        if not bool(answers.answered.any()):
            raise BadInput(
                "no query was answered, so there is nothing to learn from; what was asked is "
                "spent. Use a lower threshold, more teachers or less noise"
            )
        inputs, targets = ready._lesson(answers)
        module = ready._make_module(inputs)
        ready._taught(module, inputs, targets)
        ready._warn_of_little(module.eval(), inputs, targets)
        return module

    def settled(self, answers: Answers) -> Student:
        """Itself with a loss that is for such answers, and a number of epochs.

        Raises:
            BadInput: it has another.
        """
        votes = answers.classes is not None
        if votes and self.loss in ("mse", "binary_cross_entropy"):
            raise BadInput(
                f"loss is {self.loss!r}, and the answers are classes: use 'cross_entropy', or "
                "leave it out"
            )
        inputs = int(answers.answered.sum()) if self.spread is None else len(answers.inputs)
        enough = math.ceil(_STEPS / math.ceil(max(inputs, 1) / self.batch_size))
        return replace(
            self,
            loss=self.loss or ("cross_entropy" if votes else "mse"),
            epochs=self.epochs or max(_EPOCHS, enough),
        )

    def rehearsed(self, answers: Answers) -> Student:
        """Itself, with the network that it is going to train, after a copy of that learned from
        made-up answers.

        So mistakes show before anything is spent. Global generators are afterwards what they were,
        and what it learns later is to the last bit what it would have learned without.

        Args:
            answers: made up, of a few queries.

        Raises:
            BadInput: it fails, or has outputs of another shape than its loss takes.
        """
        ready = self.settled(answers)
        try:
            inputs, targets = ready._lesson(answers)
            module = ready._make_module(inputs)
            copied = copy.deepcopy(module)
            tried = replace(ready, epochs=1, augment=copy.deepcopy(self.augment))
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size")  # that is broadcast
                tried._taught(copied, inputs, targets)
            with torch.no_grad(), generators_at(self.seed):
                outputs = copied.eval()(inputs)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"the student fails on {len(answers.targets)} made-up answers of the right shape: "
                f"{type(error).__name__}: {first_line(error)}. Nothing was charged; expected a "
                f"network of inputs of shape {tuple(answers.inputs.shape[1:])}, and a loss of its "
                f"outputs and {_describe_targets(answers)}"
            ) from error
        expected = (len(inputs), answers.classes) if answers.classes else tuple(targets.shape)
        if not isinstance(outputs, Tensor) or (
            isinstance(ready.loss, str) and tuple(outputs.shape) != expected
        ):
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise BadInput(
                f"the student turns {len(inputs)} inputs into shape {shape}: expected {expected}, "
                f"for {_describe_targets(answers)}. Nothing was charged"
            )
        return replace(ready, make=lambda shape: module, epochs=self.epochs)

    def _lesson(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """What it learns from: inputs, and a target for each."""
        return answers.learnable() if self.spread is None else self.spread(answers)

    def _make_module(self, inputs: Tensor) -> nn.Module:
        with generators_at(self.seed):
            module = self.make(tuple(inputs.shape[1:]))
        if not isinstance(module, nn.Module):
            raise BadInput(f"make gives a {type(module).__name__}: expected a torch.nn.Module")
        return module

    def _taught(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        """Train `module` in place; the generators are at the seed for that."""
        assert self.loss is not None
        assert self.epochs is not None
        compare = _LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        descent = torch.optim.Adam(module.parameters(), lr=self.learning_rate)
        with generators_at(self.seed):
            module.train()
            for _ in range(self.epochs):
                for rows in torch.randperm(len(inputs), device="cpu").split(self.batch_size):  # type: ignore[no-untyped-call]
                    batch = inputs[rows] if self.augment is None else self.augment(inputs[rows])
                    descent.zero_grad()
                    compare(module(batch), targets[rows]).mean().backward()  # type: ignore[no-untyped-call]
                    descent.step()

    def _warn_of_little(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        """Say so where it is hardly better than the same output for all inputs."""
        if self.loss not in ("mse", "cross_entropy") or len(inputs) < _FEW:
            return
        judged, total = copy.deepcopy(module), 0.0  # a module may count its calls
        with torch.no_grad(), generators_at(self.seed):
            for rows in torch.arange(len(inputs), device="cpu").split(self.batch_size):  # type: ignore[no-untyped-call]
                total += float(_LOSSES[self.loss](judged(inputs[rows]), targets[rows])) * len(rows)
        reached = total / len(inputs)
        if self.loss == "mse":
            figure, least = "mean squared error", float(targets.var(0, correction=0).mean())
        else:
            figure, classes = "cross-entropy", targets[targets >= 0].flatten()
            shares = (
                targets.transpose(0, 1).flatten(1).mean(1)
                if targets.is_floating_point()
                else torch.bincount(classes).double() / len(classes)
            )
            least = float(torch.special.entr(shares).sum())
        if reached > _LEARNED * least:
            warn(
                f"the student learned little: its {figure} on the answers is {reached:.3g}, and "
                f"{least:.3g} if every input gets the same. Train longer (epochs=) or at a higher "
                "learning_rate=; if that changes little, the answers are mostly noise: ask fewer "
                "queries=, or take a larger epsilon=",
                TrainingWarning,
            )

    def describe(self) -> dict[str, Any]:
        """Its public numbers, for certificates."""
        numbers = {
            name: value
            for name, value in vars(self).items()
            if name not in ("make", "loss", "spread", "augment")
        }
        loss = self.loss
        if isinstance(loss, nn.Module):
            loss = type(loss).__name__
        elif callable(loss):
            loss = getattr(loss, "__qualname__", type(loss).__qualname__)
        return {
            "loss": loss,
            **numbers,
            "augmented": self.augment is not None,
            "spread": None if self.spread is None else dict(vars(self.spread)),
        }


def _describe_targets(answers: Answers) -> str:
    """What the targets are, for messages."""
    if answers.classes is not None:
        return f"classes from 0 to {answers.classes - 1}"
    return f"targets of shape {tuple(answers.targets.shape[1:])}"
