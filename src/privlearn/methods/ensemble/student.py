"""Students: models that learn from public inputs and released answers. All of it is post-processing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._validate import between, count, one_of, positive, probability
from privlearn.errors import BadInput
from privlearn.methods.ensemble.aggregator import Answers
from privlearn.teachers.spreading import Neighbourhood

#: From inputs and answers to a trained module, which takes inputs of that shape.
StudentRecipe = Callable[[Answers], nn.Module]

_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": F.cross_entropy,  # whole numbers, or probabilities of classes along the first dimension
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
}


@final
@dataclass(frozen=True)
class Spread:
    """Spreads labels from the answered inputs to all public ones before the student learns.

    Label spreading (Zhou et al. 2004) on the principal components of the public inputs. Noisy answers are outvoted by
    those to similar inputs, and inputs without an answer get one.

    Attributes:
        components: principal components of the inputs that distances are taken in; 0: the inputs themselves.
        neighbours: how many neighbours an input is connected to.
        alpha: how much of its label an input takes from its neighbours, in (0, 1).
        agreement: how many of the teachers are expected to agree, as a share: how far a noisy count can be believed.
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
            raise BadInput("labels are spread, and these answers are no classes: leave out spread=")
        near = Neighbourhood(answers.inputs, self.components, self.neighbours)
        beliefs = np.zeros((len(answers.inputs), answers.classes))
        beliefs[: len(answers.targets)] = answers.beliefs(self.agreement).numpy()
        return answers.inputs, torch.from_numpy(near.spread(beliefs, self.alpha).argmax(1))


@final
@dataclass(frozen=True)
class Student:
    """A torch module that is trained on released answers.

    Attributes:
        make: makes the module from the shape of one input.
        loss: "cross_entropy" (classes, or soft targets), "binary_cross_entropy" or "mse" (recovered targets).
        epochs: times that each input is seen.
        batch_size: inputs in a step of Adam.
        learning_rate: of Adam.
        spread: how answers reach inputs without one; None: only answered ones are learned from.
        augment: changes each batch of inputs before a step, at random, say; None: they are learned from as they are.
        seed: of the order of inputs; public.
    """

    make: Callable[[tuple[int, ...]], nn.Module]
    loss: str = "cross_entropy"
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    spread: Spread | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("loss", self.loss, _LOSSES)
        count("epochs", self.epochs), count("batch_size", self.batch_size)
        positive("learning_rate", self.learning_rate)
        count("seed", self.seed, least=0, most=2**63 - 1)
        if not callable(self.make):
            raise BadInput(
                f"make is {str(self.make)[:60]}: expected a function from the shape of one input to a module"
            )

    def __call__(self, answers: Answers) -> nn.Module:
        """Train it.

        Raises:
            BadInput: no query has an answer.
        """
        inputs, targets = answers.learnable() if self.spread is None else self.spread(answers)
        if not bool(answers.answered.any()):
            raise BadInput(
                "no query was answered, so there is nothing to learn from; what was asked is spent. Use a lower threshold, "
                "more teachers or less noise"
            )
        module = self.make(tuple(inputs.shape[1:]))
        compare = _LOSSES[self.loss]
        descent = torch.optim.Adam(module.parameters(), lr=self.learning_rate)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            module.train()
            for _ in range(self.epochs):
                for rows in torch.randperm(len(inputs)).split(self.batch_size):  # type: ignore[no-untyped-call]
                    own = inputs[rows] if self.augment is None else self.augment(inputs[rows])
                    descent.zero_grad()
                    compare(module(own), targets[rows]).backward()  # type: ignore[no-untyped-call]
                    descent.step()
        return module.eval()

    def describe(self) -> dict[str, Any]:
        """Its public numbers, for certificates."""
        numbers = {name: value for name, value in vars(self).items() if name not in ("make", "spread", "augment")}
        return {
            **numbers,
            "augmented": self.augment is not None,
            "spread": None if self.spread is None else dict(vars(self.spread)),
        }
