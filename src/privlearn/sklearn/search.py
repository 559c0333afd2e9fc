"""A private grid search: one of several settings, chosen and trained within one budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid

from privlearn._checks import one_of
from privlearn._display import shortened
from privlearn.accounting.ledger import Ledger
from privlearn.data.dataset import Dataset
from privlearn.descent.rules import Settled
from privlearn.descent.train import fit as fit_by_descent
from privlearn.descent.train import settle_for
from privlearn.errors import BadInput
from privlearn.runs.result import Result
from privlearn.sklearn.estimator import PrivateClassifier
from privlearn.sklearn.supervised import DPClassifier
from privlearn.streams import Streams
from privlearn.tuning.blocks import Blocks
from privlearn.tuning.stopping import Candidate, RandomStopping, chosen_candidate
from privlearn.tuning.tune import tune

#: Candidates learn from rows as they are: public features would have to be chosen once for all of them.
_AS_THEY_ARE = {"features": "raw"}
_LONGEST = 60  # characters of a candidate's name
#: What is searched where nothing is given.
_USUAL = {"options": [{"epochs": 10}, {"epochs": 30}]}


@final
class DPSearchCV(MetaEstimatorMixin, PrivateClassifier):  # type: ignore[misc]
    """Chooses one of several settings of a `DPClassifier`, and trains it: all of it together at one target.

    Guarantee: of each fit as that of `privlearn.tune`, the choice included; of several, see `privacy_`. Nothing but the
    chosen settings and their model is kept. How long it takes is not covered.

    Args:
        estimator: a `DPClassifier` or `DPLogisticRegression`, for all that is not searched; None: the first. Its
            epsilon, delta, ledger and random_state are not looked at.
        param_grid: values to try by parameter, or a list of such (`GridSearchCV`): `{"model": ["linear", "mlp:32"]}`.
        epsilon, delta: the target of everything together.
        way: "random-stopping" trains a random number of candidates on all rows, "blocks" each on a block of its own.
        ledger: what fits are charged to; None: one that the search shares with its clones, without a limit.
        random_state: None for noise from the operating system, or `pv.Streams`. With a seed nothing is claimed.

    Attributes:
        best_params_: the chosen settings.
        best_index_: their place in the grid.
        module_: the network.
        classes_, result_, privacy_, n_features_in_, feature_names_in_: as of `DPClassifier`.
    """

    def __init__(
        self,
        estimator: Any = None,
        param_grid: Any = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        way: str = "random-stopping",
        ledger: Ledger | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator, self.param_grid, self.epsilon, self.delta = estimator, param_grid, epsilon, delta
        self.way, self.ledger, self.random_state = way, ledger, random_state

    @property
    def bounds(self) -> Any:
        """Those of the estimator."""
        return getattr(self.estimator, "bounds", None)

    @property
    def classes(self) -> Any:
        """Those of the estimator."""
        return getattr(self.estimator, "classes", None)

    def fit(self, X: Any, y: Any) -> DPSearchCV:
        """Choose and train, on rows of numbers, shape (rows, features), and their labels, (rows,).

        Raises:
            BudgetExceeded: the ledger has no room; before anything is drawn.
            BadInput: an estimator not trained by DP-SGD, fewer than two candidates, or what `privlearn.tune` refuses.
        """
        made = DPClassifier() if self.estimator is None else self.estimator
        if not isinstance(made, DPClassifier):
            raise BadInput(
                f"estimator is {shortened(repr(made), 60)}: expected a DPClassifier or a DPLogisticRegression. Search "
                "others with GridSearchCV and ledger=pv.Ledger(pv.sklearn.budget_for(plan, fits=N, delta=D))"
            )
        one_of("way", self.way, ("random-stopping", "blocks"))
        X, labels, reasons = self._labelled(X, y)
        data = self._dataset(X, labels, len(self.classes_))
        grid = list(ParameterGrid(_USUAL if self.param_grid is None else self.param_grid))
        settled = {_named(number, each): self._settled(made, each, data) for number, each in enumerate(grid)}
        candidates = tuple(Candidate(name, own.plan) for name, own in settled.items())
        if self.way == "blocks":
            plan: Blocks | RandomStopping = Blocks(candidates, retrain=True)
        else:
            plan = RandomStopping(candidates, mean=float(len(candidates)))
        plan = plan.calibrate(epsilon=self.epsilon, delta=self.delta)

        def train(candidate: Candidate, rows: Dataset, ledger: Ledger, streams: Streams) -> Result:
            return fit_by_descent(replace(settled[candidate.name], plan=candidate.plan), rows, streams, ledger=ledger)

        result = self._release(
            plan, reasons, lambda ledger, streams: tune(plan, train, data, ledger=ledger, streams=streams)
        )
        self._keep(result.model)
        chosen = chosen_candidate(candidates, result.facts).name
        self.best_index_ = list(settled).index(chosen)
        self.best_params_ = grid[self.best_index_]
        return self

    def _settled(self, made: DPClassifier, given: Mapping[str, Any], data: Dataset) -> Settled:
        """A candidate with everything decided but its noise, which the whole is calibrated for."""
        fixed = sorted({*given} & {"epsilon", "delta", "classes", "bounds", "ledger", "random_state"})
        if fixed:
            raise BadInput(f"param_grid has {fixed[0]}, which is the same for all candidates: leave it out")
        own = clone(made).set_params(**given)
        own.classes_ = self.classes_
        chosen = _AS_THEY_ARE | own._class_weights() | dict(own.options or {})
        settled, _ = settle_for(data, epsilon=self.epsilon, delta=self.delta, model=own._spec, **chosen)
        return settled


def _named(number: int, given: Mapping[str, Any]) -> str:
    """A candidate's name: its place and its settings, as far as they can be printed."""
    text = "".join(letter for letter in f"{number}: {dict(given)}" if letter.isprintable() and letter != "|")
    return text[:_LONGEST]
