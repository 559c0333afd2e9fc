"""How one teacher is trained: from the records of its shard to a function that answers.

A teacher may be anything, as long as nothing of it reaches another teacher. So the global random generators are set to
a seed of the teacher's own while it is trained, whatever it draws; its warnings, which tell of its records, are not
shown; and one that fails has no answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn._validate import count
from privlearn.clipping.codes import Shapes, plain
from privlearn.clipping.generators import generators_at
from privlearn.data.dataset import as_tensor
from privlearn.errors import BadInput, first_line
from privlearn.models import made_up_batch

#: From public inputs to a row for each: labels, scores, or targets of any shape.
Predictor = Callable[[Tensor], Any]
#: From the inputs and targets of a shard to its teacher.
Recipe = Callable[[Tensor, Tensor], Predictor]

_REHEARSED = 60  # made-up rows
_ROWS_AT_ONCE = 1024


@final
@dataclass(frozen=True)
class Estimator:
    """Teachers that are scikit-learn estimators, or anything with `fit(x, y)` and `predict(x)`.

    Rows are given flat, as numpy arrays.

    Attributes:
        make: makes a new one for each teacher, for example `lambda: LogisticRegression(C=0.1)`.
        classes: None: what `predict` says. Else the number of classes: a teacher then gives the probability of each by
            `predict_proba`, 0 for classes that it never saw.
    """

    make: Callable[[], Any]
    classes: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise BadInput(
                f"make is {str(self.make)[:60]}: expected a function that makes an estimator, for example "
                "lambda: LogisticRegression()"
            )
        if self.classes is not None:
            count("classes", self.classes, least=2)

    def __call__(self, x: Tensor, y: Tensor) -> Predictor:
        """Fit one."""
        fitted = self.make()
        fitted.fit(x.flatten(1).numpy(), y.numpy())

        def predict(inputs: Tensor) -> NDArray[Any]:
            rows = inputs.flatten(1).numpy()
            if self.classes is None:
                return np.asarray(fitted.predict(rows))
            scores = np.zeros((len(rows), self.classes))
            known = np.asarray(fitted.classes_, dtype=np.int64)
            there = (known >= 0) & (known < self.classes)  # -1 would be the last one
            scores[:, known[there]] = np.asarray(fitted.predict_proba(rows))[:, there]
            return scores

        return predict

    def require_apart(self) -> None:
        """Raise `BadInput` if two teachers would be one object."""
        if self.make() is self.make():
            raise BadInput(
                "make gives the same estimator twice: teachers would go on where others ended. Make a new one at each call"
            )


@final
@dataclass(frozen=True)
class Network:
    """Teachers that are torch modules, of any kind and size.

    Attributes:
        make: makes a new module for each teacher.
        fit: trains it in place, `fit(module, x, y)`.
    """

    make: Callable[[], nn.Module]
    fit: Callable[[nn.Module, Tensor, Tensor], Any]

    def __post_init__(self) -> None:
        if not callable(self.make) or isinstance(self.make, nn.Module) or not callable(self.fit):
            raise BadInput(
                "make is a function that makes a torch.nn.Module, and fit one that trains it: expected "
                "Network(make, fit) with fit(module, x, y)"
            )

    def __call__(self, x: Tensor, y: Tensor) -> Predictor:
        """Train one."""
        module = self.make()
        module.train()
        self.fit(module, x, y)
        module.eval()

        def predict(inputs: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.cat([module(part) for part in inputs.split(_ROWS_AT_ONCE)])  # type: ignore[no-untyped-call]

        return predict

    def require_apart(self) -> None:
        """Raise `BadInput` if two teachers would share parameters, or if `make` makes no module."""
        one, two = self.make(), self.make()
        if not isinstance(one, nn.Module):
            raise BadInput(f"make gives a {type(one).__name__}: expected a torch.nn.Module")
        places = [
            {tensor.data_ptr() for tensor in module.state_dict().values() if tensor.numel()} for module in (one, two)
        ]
        if one is two or places[0] & places[1]:
            raise BadInput(
                "make gives modules that share parameters: teachers would go on where others ended. Make new ones at each call"
            )


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """For the block: the global random generators at `seed`, and no warnings shown. All are then what they were."""
    with generators_at(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def taught(recipe: Recipe, x: Tensor, y: Tensor, inputs: Tensor, seed: int) -> Tensor | None:
    """What a teacher that learns from `x` and `y` says to `inputs`; None if it fails, which its records may make it do.

    Or if what it says is no array of real numbers; which they may make it, too.
    """
    with isolated(seed):
        try:
            return plain(recipe(x, y)(inputs.clone()))
        except (Exception, SystemExit):
            return None


def rehearse(recipe: Recipe, x: Tensor, y: Tensor, inputs: Tensor, shapes: Shapes | None = None) -> None:
    """Train a teacher on made-up rows: mistakes in a recipe show here, where no record is met, and nowhere else.

    Made-up labels are of two classes only, as those of a shard may be.

    Args:
        recipe: how one teacher is trained.
        x: inputs, looked at for their shape and type only.
        y: targets, likewise.
        inputs: what is asked about, likewise.
        shapes: what the shape of one answer must be among; None: any.

    Raises:
        BadInput: it fails, has no row for each input or rows of another shape, or makes teachers that are one object.
    """
    with isolated(0):
        if isinstance(recipe, Estimator | Network):
            recipe.require_apart()
        made_up, targets = made_up_batch(x, y, _REHEARSED)
        asked, _ = made_up_batch(inputs, y, 6)
        try:
            found = as_tensor(recipe(made_up, targets)(asked))
        except Exception as error:
            raise BadInput(
                f"the teachers' recipe fails on {_REHEARSED} made-up rows of the data's shape and type: {type(error).__name__}"
                f": {first_line(error)}. Expected a function recipe(x, y) that gives a function predict(inputs)"
            ) from error
    if len(found.shape) < 1 or len(found) != 6:
        raise BadInput(f"a teacher turns 6 inputs into shape {tuple(found.shape)}: expected a row for each input")
    if shapes is not None and tuple(found.shape[1:]) not in [tuple(shape) for shape in shapes]:
        raise BadInput(
            f"a teacher that learned from made-up rows of two classes turns 6 inputs into shape {tuple(found.shape)}: "
            f"expected {' or '.join(str((6, *shape)) for shape in shapes)}, whatever the records hold. (predict_proba has a "
            "column for each class that a teacher met: pv.teachers.Estimator(make, classes=K) puts them in their places.)"
        )
