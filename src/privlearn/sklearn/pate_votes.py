"""PATE over estimators of scikit-learn: each learns from a part of its own of the rows, and they
vote with noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB
from torch import Tensor

from privlearn._checks import count, quoted
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate.ensemble import Progress, Teachers
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import PatePlan, Votes
from privlearn.methods.pate.recipes import Estimator
from privlearn.methods.pate.student import Student
from privlearn.methods.pate.sums import Shapes
from privlearn.methods.pate.trained import Trained
from privlearn.models import networks
from privlearn.sklearn.estimator import ADJACENCY, Array, PrivateClassifier

#: Teachers, and public rows that they are asked about.
_TEACHERS, _QUERIES = 20, 200
#: The student, which few rows have to be enough for.
_STUDENT = {"epochs": 100, "batch_size": 64, "learning_rate": 0.05}
#: Of rows that are made up within the bounds; public.
_SEED = 0


@final
class PATEClassifier(PrivateClassifier):
    """A student of estimators that voted, with noise, on public rows.

    Guarantee: of each fit as that of `privlearn.pate`, if each row is with one teacher; of several,
    see `privacy_`. Public rows are not protected.

    Args:
        estimator: what each teacher is: an estimator that is cloned and fitted to the teacher's own
            rows (None: `GaussianNB`), or a list of fitted ones, of which no row taught two. Those
            are asked about rows as they are, and give the declared classes.
        epsilon, delta, classes, bounds, ledger, random_state, preprocessing: as of `DPClassifier`.
        options: `teachers` (20; not with a list), `queries` (200 at most, or all public rows),
            `student` (`linear`, or `mlp:100`), and other fields of `pv.teachers.Student`
            (`epochs`, `learning_rate`).

    Attributes:
        classes_: the classes, sorted.
        module_: the student.
        result_: what `privlearn.publish` takes.
        privacy_, n_features_in_, feature_names_in_: as of every estimator here.
    """

    def __init__(
        self,
        estimator: Any = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Any = None,
        bounds: Any = None,
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.estimator, self.epsilon, self.delta, self.classes, self.bounds = (
            estimator,
            epsilon,
            delta,
            classes,
            bounds,
        )
        self.options, self.ledger, self.random_state = options, ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any, X_public: Any = None) -> PATEClassifier:
        """Train teachers on rows, shape (rows, features), and their labels, (rows,); ask them; and
        teach the student.

        Args:
            X_public: public rows to ask about; None: random ones within the bounds, enough for few
                features.

        Raises:
            BudgetExceeded: the ledger has no room; before any teacher is asked.
            BadInput: as `privlearn.pate`; before anything is spent.
        """
        X, labels, reasons = self._labelled(X, y)
        options = self._options(
            Student, teachers=_TEACHERS, queries=None, student="linear", **_STUDENT
        )
        public = self._public(X_public, options.pop("queries"))
        fitted = isinstance(self.estimator, Sequence)
        teachers = count("teachers", options.pop("teachers"))
        number = len(self.estimator) if fitted else teachers
        plan = PatePlan(len(public.x), number, Votes(len(self.classes_)), adjacency=ADJACENCY)
        plan = plan.calibrate(epsilon=self.epsilon, delta=self.delta)
        model = options.pop("student")

        def release(ledger: Ledger, streams: Streams) -> Any:
            ensemble: Teachers
            if fitted:
                ensemble = FittedTeachers(
                    self.estimator, self.classes_, len(X), squashed=self._squashed
                )
            else:
                seed = int(streams.initialisation.integers(2**31))
                recipe = Estimator(lambda: _fresh(self.estimator, seed))
                ensemble = Trained(self._dataset(X, labels), recipe, number)
            student = Student(
                lambda shape: networks.build(
                    model, shape, len(self.classes_), np.random.default_rng(_SEED)
                ),
                **options,
            )
            released = pate(plan, ensemble, None, public, student, ledger=ledger, streams=streams)
            return replace(released, model_spec=model, classes=len(self.classes_))

        result = self._release(plan, reasons, release)
        self._keep(result.model)
        return self

    def _public(self, rows: Any, queries: int | None) -> Dataset:
        """Public rows, with their bounds."""
        low, high = self._bounds()
        if rows is not None:
            inputs = self._scaled_rows(self._validated(rows, reset=False))
        else:
            # A stream of its own: rows that a user made up by the same seed are not these.
            inputs = np.random.default_rng([_SEED, 1]).uniform(
                low, high, (queries or _QUERIES, self.n_features_in_)
            )
        return Dataset(
            inputs[: queries or len(inputs)].astype(np.float32), low=low, high=high, public=True
        )


def _fresh(estimator: Any, seed: int) -> Any:
    """An unfitted estimator; what it draws follows from the seed."""
    if estimator is not None and not (
        hasattr(estimator, "get_params") and hasattr(estimator, "fit")
    ):
        raise BadInput(
            f"estimator is {quoted(estimator)}: expected one of scikit-learn's form, or None"
        )
    unfitted = GaussianNB() if estimator is None else clone(estimator)
    drawn = {name: seed for name in unfitted.get_params() if name.split("__")[-1] == "random_state"}
    return unfitted.set_params(**drawn)


@final
class FittedTeachers(Teachers):
    """Estimators that were fitted before, each to rows of its own: that no row taught two is their
    maker's word.

    Args:
        estimators: with `predict`.
        classes: the labels in the order of the votes.
        examples: how many rows they learned from.
        squashed: whether public rows are x / (1 + |x|) of those that the estimators take.
    """

    def __init__(
        self, estimators: Sequence[Any], classes: Array, examples: int, *, squashed: bool = False
    ) -> None:
        if len({id(estimator) for estimator in estimators}) < len(estimators):
            raise BadInput(
                "an estimator is given twice: one row would move two teachers. Give each once"
            )
        self._estimators, self._classes, self._squashed = estimators, classes, squashed
        self._examples = examples

    @property
    def examples(self) -> int:
        """How many rows they learned from."""
        return self._examples

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._estimators)

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """Nothing is known here of who learned from what."""

    def describe(self) -> dict[str, Any]:
        """That they were given."""
        return {"source": "given"}

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """What each predicts, as the classes' numbers; one that fails has no answers."""
        numbers = {label: number for number, label in enumerate(self._classes.tolist())}
        rows = inputs.double().numpy()
        if self._squashed:
            rows = rows / (1 - np.abs(rows)).clip(1e-9)
        for estimator in self._estimators:
            try:
                said = np.asarray(estimator.predict(rows)).tolist()
                yield torch.tensor([numbers.get(label, -1) for label in said], device="cpu")
            except Exception:  # of which nothing may be seen: it may follow from a private row
                yield None
