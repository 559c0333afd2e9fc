"""Students: models that learn from public inputs and released answers. All of it is post-processing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._validate import between, count, one_of, positive
from privlearn.errors import BadInput
from privlearn.methods.ensemble.aggregator import Answers

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
    """Spreads labels from the answered inputs to all public ones, along their nearest neighbours, before the student learns.

    Label spreading (Zhou et al. 2004) on the principal components of the public inputs. Noisy answers are outvoted by
    their neighbours, and inputs without an answer get one, as a probability of each class.

    Attributes:
        components: principal components of the inputs that distances are taken in; 0: the inputs themselves.
        neighbours: how many neighbours an input is connected to.
        alpha: how much of its label an input takes from its neighbours, in (0, 1).
    """

    components: int = 50
    neighbours: int = 10
    alpha: float = 0.5

    def __post_init__(self) -> None:
        count("components", self.components, least=0), count("neighbours", self.neighbours)
        between("alpha", self.alpha, 1e-9, 1 - 1e-9)

    def __call__(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """All inputs, and for each the probabilities of the classes.

        Raises:
            BadInput: answers that are no classes.
        """
        from sklearn.decomposition import PCA
        from sklearn.semi_supervised import LabelSpreading

        if answers.classes is None:
            raise BadInput("labels are spread, and these answers are no classes: leave out spread=")
        rows = answers.inputs.flatten(1).numpy()
        kept = min(self.components, *rows.shape)
        if kept:
            rows = PCA(kept, random_state=0).fit_transform(rows)
        labels = np.full(len(rows), -1)
        labels[: len(answers.targets)] = np.where(answers.answered, answers.targets, -1)
        probabilities = np.full((len(rows), answers.classes), 1 / answers.classes)
        if (labels >= 0).any():
            near = min(self.neighbours, len(rows) - 1)
            spreading = LabelSpreading(kernel="knn", n_neighbors=near, alpha=self.alpha, max_iter=100)
            found = spreading.fit(rows, labels)
            # An input that no label reaches has no distribution of its own: it stays at "any".
            reached = np.nan_to_num(found.label_distributions_).sum(1) > 0
            own = np.zeros((len(rows), answers.classes))
            own[:, found.classes_.astype(np.int64)] = np.nan_to_num(found.label_distributions_)
            probabilities[reached] = own[reached]
        return answers.inputs, torch.from_numpy(probabilities).float()


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
        seed: of the order of inputs; public.
    """

    make: Callable[[tuple[int, ...]], nn.Module]
    loss: str = "cross_entropy"
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    spread: Spread | None = None
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
                    descent.zero_grad()
                    compare(module(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
                    descent.step()
        return module.eval()

    def describe(self) -> dict[str, Any]:
        """Its public numbers, for certificates."""
        numbers = {name: value for name, value in vars(self).items() if name not in ("make", "spread")}
        return {**numbers, "spread": None if self.spread is None else dict(vars(self.spread))}
