"""Named checks of what a fit of an estimator costs, and what is said of it; mutations must make
them fail.
"""

from __future__ import annotations

import copy
import math
import pickle
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV

import privlearn as pv
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import tally, walk
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.tradeoff import tradeoff
from privlearn.core.accounting.zcdp import gaussian_mu
from privlearn.errors import BadInput, BudgetExceeded, PrivacyWarning
from privlearn.publishing import certificate
from privlearn.sklearn.estimator import ADJACENCY, PrivateClassifier
from tests.support.checks import check, must_raise

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-1, 1, (60, 3))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
Z = X[:, 0] - X[:, 2]

#: Every estimator, with everything declared, by its name; made with further arguments.
DECLARED: dict[str, Callable[..., Any]] = {
    "DPClassifier": lambda **more: pv.sklearn.DPClassifier(classes=[0, 1], bounds=(-1, 1), **more),
    "DPLogisticRegression": lambda **more: pv.sklearn.DPLogisticRegression(
        classes=[0, 1], bounds=(-1, 1), **more
    ),
    "DPRegressor": lambda **more: pv.sklearn.DPRegressor(
        target_bounds=(-2, 3), bounds=(-1, 1), **more
    ),
    "DPRidge": lambda **more: pv.sklearn.DPRidge(target_bounds=(-2, 3), bounds=(-1, 1), **more),
    "DPBoostingClassifier": lambda **more: pv.sklearn.DPBoostingClassifier(
        classes=[0, 1], bounds=(-1, 1), **more
    ),
    "DPBoostingRegressor": lambda **more: pv.sklearn.DPBoostingRegressor(
        target_bounds=(-2, 3), bounds=(-1, 1), **more
    ),
    "DPFisherClassifier": lambda **more: pv.sklearn.DPFisherClassifier(
        classes=[0, 1], bounds=(-1, 1), **more
    ),
    "PATEClassifier": lambda **more: pv.sklearn.PATEClassifier(
        classes=[0, 1], bounds=(-1, 1), **more
    ),
    "DPStandardScaler": lambda **more: pv.sklearn.DPStandardScaler(bounds=(-1, 1), **more),
    "DPPCA": lambda **more: pv.sklearn.DPPCA(bounds=(-1, 1), **more),
    "DPAutoencoder": lambda **more: pv.sklearn.DPAutoencoder(bounds=(-1, 1), **more),
    "DPFeatureSelector": lambda **more: pv.sklearn.DPFeatureSelector(
        classes=[0, 1], bounds=(-1, 1), **more
    ),
}


def targets(estimator: Any) -> Any:
    return Z if is_regressor(estimator) else Y


def fitted(name: str, x: Any = X, **more: Any) -> Any:
    made = DECLARED[name](**more)
    return made.fit(x, targets(made))


def outcome(estimator: Any, x: Any = X) -> Any:
    """What can be seen of a fitted estimator."""
    if isinstance(estimator, PrivateClassifier):
        return estimator.predict_proba(x)
    return estimator.predict(x) if hasattr(estimator, "predict") else estimator.transform(x)


@contextmanager
def warned(kind: type[Warning] = PrivacyWarning) -> Iterator[list[str]]:
    """The texts of the warnings of this kind within the block."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(each.message) for each in caught if issubclass(each.category, kind)]


@check
def check_a_fit_costs_what_was_asked_for() -> None:
    """The first fit is charged its plan, once, and `privacy_` is its guarantee; nothing is warned
    of.
    """
    for name in DECLARED:
        with warned() as texts:
            made = fitted(name, epsilon=2.0, delta=1e-4)
        assert not texts, (name, texts)
        said = made.privacy_
        assert said.fits == 1, name
        assert said.total.kind == "bound", name
        assert said.delta == 1e-4, name
        assert 1.99 <= said.epsilon <= 2.0, (name, said)
        assert said.epsilon == said.fit.epsilon, (name, said)
        assert tally(made.result_.ledger.event) == tally(made.result_.plan.event()), name


@check
def check_estimators_and_their_clones_have_one_ledger() -> None:
    """A second fit, clones (also of an unfitted one), copies and searches: all is on one ledger,
    and warned of.
    """
    for name in DECLARED:
        first = DECLARED[name]()
        twins = [copy.copy(first), copy.deepcopy(first), clone(first)]
        first.fit(X, targets(first))
        once = tally(first.result_.ledger.event)
        for number, twin in enumerate([*twins, clone(twins[0]), first], 2):
            with warned() as texts:
                twin.fit(X, targets(twin))
            assert twin.result_.ledger is first.result_.ledger, name
            assert tally(first.result_.ledger.event) == {
                event: number * times for event, times in once.items()
            }, name
            said = twin.privacy_
            assert said.fits == number, name
            assert said.total.kind == "estimate", name
            assert said.fit.kind == "bound", name
            assert said.epsilon > 1.2 * said.fit.epsilon, (name, said)
            assert len(texts) == 1, texts
            assert f"fit {number} " in texts[0], texts
            assert "nothing limits it" in texts[0], texts
    search = GridSearchCV(
        DECLARED["DPBoostingClassifier"](), {"options": [{"passes": 1}, {"passes": 2}]}, cv=2
    )
    with warned() as texts:
        search.fit(X, Y)
    assert search.best_estimator_.privacy_.fits == 5
    assert len(texts) == 4


@check
def check_attacks_are_bounded_for_all_that_is_claimed() -> None:
    """`privacy_` bounds attacks as the card does, for all fits on a ledger; not where there is no
    guarantee.
    """
    made = fitted("DPFisherClassifier", epsilon=2.0)
    alone = made.privacy_.attacks
    mu = gaussian_mu(made.result_.plan.event())
    assert alone.true_positive_rate(0.01) == pytest.approx(norm.cdf(norm.ppf(0.01) + mu), rel=1e-9)
    with tempfile.TemporaryDirectory() as folder:
        card = (made.publish(Path(folder) / "model") / "README.md").read_text("utf-8")
    assert str(alone) in card
    for sentence in str(alone).split("\n"):
        assert sentence in repr(made.privacy_)
    with warned():
        assert made.fit(X, Y).privacy_.attacks is None
        assert fitted("DPFisherClassifier", random_state=0).privacy_.attacks is None

    ledger = pv.Ledger(pv.sklearn.budget_for(made.result_.plan, fits=3, delta=1e-5))
    made = fitted("DPFisherClassifier", epsilon=2.0, ledger=ledger)
    assert made.privacy_.attacks == alone
    again = clone(made).fit(X, Y).privacy_
    assert again.attacks.success > made.privacy_.attacks.success + 0.05
    assert again.attacks == tradeoff(ledger.claim, ledger.adjacency)


@check
def check_a_ledger_is_a_limit_for_all_clones() -> None:
    """With `ledger=`, what exceeds its budget is refused in clones, too; and `privacy_` is the
    ledger's guarantee.
    """
    for name in DECLARED:
        plan = fitted(name).result_.plan
        ledger = pv.Ledger(pv.sklearn.budget_for(plan, fits=2, delta=1e-5))
        made = fitted(name, ledger=ledger)
        with warned() as texts:
            twin = clone(made).fit(X, targets(made))
        assert not texts, name
        assert twin.result_.ledger is ledger, name
        assert twin.privacy_.fits == 2, name
        assert twin.privacy_.total == ledger.guarantee(1e-5), name
        must_raise(BudgetExceeded, lambda made=made: clone(made).fit(X, targets(made)))  # type: ignore[misc]


@contextmanager
def at_the_first_price(between: Callable[[], object]) -> Iterator[None]:
    """A block in which something else happens between a fit's release and what is said of it."""
    priced, begun = accountant.guarantee, threading.Event()

    def guarantee(*arguments: Any, **more: Any) -> Any:
        if not begun.is_set():
            begun.set()
            other = threading.Thread(target=between)
            other.start()
            other.join(timeout=20)  # where a lock is held it goes on when the fit has ended
        return priced(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountant, "guarantee", guarantee)
        yield


@check
def check_a_fit_holds_what_it_read_when_another_begins() -> None:
    """A clone is fitted in another thread, or another process charges the file, before the fit has
    said what it cost.

    The fit is then still the first, and its guarantee the one that was asked for.
    """
    made = DECLARED["DPFisherClassifier"](epsilon=2.0)
    twin = clone(made)
    with at_the_first_price(lambda: twin.fit(X, Y)):
        made.fit(X, Y)
    assert (made.privacy_.fits, twin.privacy_.fits) == (1, 2)
    assert made.privacy_.total.kind == "bound"
    assert made.privacy_.attacks is not None
    assert 1.99 < made.privacy_.epsilon <= 2.0
    assert twin.privacy_.total.kind == "estimate"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.json"
        ledger = pv.Ledger.open(path, create=True)
        made = DECLARED["DPFisherClassifier"](epsilon=2.0, ledger=ledger)
        other = lambda: pv.Ledger.open(path).charge(Gaussian(9.0), ADJACENCY)  # noqa: E731
        with at_the_first_price(other):
            made.fit(X, Y)
        assert made.privacy_.total.kind == "bound"
        assert 1.99 < made.privacy_.epsilon <= 2.0
        assert ledger.adaptive


@check
def check_a_pickled_estimator_predicts_and_fits_no_more() -> None:
    """Behind a pickle the shared ledger is gone: a fit would be recorded nowhere, and is refused;
    also of a clone.
    """
    for name in DECLARED:
        made = fitted(name)
        other = pickle.loads(pickle.dumps(made))
        assert np.array_equal(outcome(other), outcome(made)), name
        assert other.privacy_.epsilon == made.privacy_.epsilon, name
        for twin in (other, clone(other), pickle.loads(pickle.dumps(DECLARED[name]()))):
            error = must_raise(BadInput, lambda twin=twin: twin.fit(X, targets(twin)))  # type: ignore[misc]
            assert "Ledger.open" in str(error), error
        must_raise(BadInput, lambda other=other: other.result_)  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        ledger = pv.Ledger.open(Path(folder) / "ledger.json", pv.Budget(4.0, 1e-5))
        made = fitted("DPFisherClassifier", ledger=ledger)
        other = pickle.loads(pickle.dumps(made)).fit(X, Y)
        assert len(tally(ledger.event)) == 1
        assert sum(tally(ledger.event).values()) == 2
        assert other.result_


@check
def check_nothing_is_claimed_of_what_was_not_declared() -> None:
    """Classes and target bounds that were read off the rows: a warning, no claim, no folder; never
    on a ledger.
    """
    for name in DECLARED:
        left_out = (
            "target_bounds" if "target_bounds" in DECLARED[name]().get_params() else "classes"
        )
        if left_out not in DECLARED[name]().get_params():
            continue
        with warned() as texts:
            made = fitted(name).set_params(**{left_out: None})
            made.fit(X, targets(made))
        assert any(left_out in text for text in texts), (name, texts)
        assert made.privacy_.epsilon == math.inf, name
        assert made.privacy_.fit is None, name
        if hasattr(made, "predict"):
            error = must_raise(BadInput, lambda made=made: made.publish("never"))  # type: ignore[misc]
            assert left_out in str(error), error
        again = made.set_params(**{left_out: getattr(DECLARED[name](), left_out)}).fit(
            X, targets(made)
        )
        assert again.privacy_.fit is not None, name  # what was released stays released
        assert again.privacy_.total is None, name  # what was released stays released
        ledger = pv.Ledger(pv.Budget(10.0, 1e-5))
        bare = DECLARED[name](ledger=ledger).set_params(**{left_out: None})
        error = must_raise(BadInput, lambda bare=bare: bare.fit(X, targets(bare)))  # type: ignore[misc]
        assert left_out in str(error), name
        assert not tally(ledger.event), name
    with warned() as texts:
        assert fitted("DPFisherClassifier", random_state=0).privacy_.epsilon == math.inf
    assert "seed" in texts[0]


@check
def check_bounds_are_those_that_were_declared() -> None:
    """A row beyond the bounds counts as one at them, to the last bit; without bounds rows go
    through a fixed map.
    """
    beyond = X.copy()
    beyond[7] = [40.0, -30.0, 20.0]
    squashed = beyond / (1 + abs(beyond))
    for name in DECLARED:
        given = [fitted(name, x, random_state=0) for x in (beyond, beyond.clip(-1, 1))]
        assert np.array_equal(outcome(given[0]), outcome(given[1])), name
        bare = DECLARED[name](random_state=0).set_params(bounds=None).fit(beyond, targets(given[0]))
        by_hand = fitted(name, squashed, random_state=0)
        if name != "DPFeatureSelector":  # which gives columns as they are
            assert np.array_equal(outcome(bare, beyond), outcome(by_hand, squashed)), name
        # bounds of rows need not be declared
        assert bare.privacy_.undeclared == by_hand.privacy_.undeclared, name


@check
def check_nothing_is_drawn_beside_what_is_charged() -> None:
    """A fit draws as much noise as the one run of its plan that was charged: nothing is released
    twice.
    """
    for name in DECLARED:
        streams = pv.Streams.new(3)
        made = fitted(name, random_state=streams)
        drawn, ledger = pv.Streams.new(3), pv.Ledger()
        plan, rows = made.result_.plan, pv.Dataset(X, targets(made), low=-1.0, high=1.0)
        if name.startswith("DPBoosting"):
            pv.boosting.boost(plan, rows, ledger=ledger, streams=drawn)
        elif name == "DPRidge":
            pv.statistics.ridge(plan, rows, ledger=ledger, streams=drawn)
        elif name == "DPFisherClassifier":
            pv.statistics.fisher(plan, rows, ledger=ledger, streams=drawn)
        elif name == "DPFeatureSelector":
            pv.statistics.select_features(plan, rows, ledger=ledger, streams=drawn)
        elif name == "DPClassifier":
            pv.train(
                pv.Dataset(X, Y, classes=2, low=-1.0, high=1.0),
                epsilon=1.0,
                ledger=ledger,
                streams=drawn,
            )
        elif name == "DPStandardScaler":
            noise = min(event.noise_multiplier for event, _ in walk(plan.event()))
            moments = pv.transforms.Moments(3, noise, 3**0.5)
            moments.fit(torch.from_numpy(X), plan.neighbours, ledger, drawn.noise)
        else:
            continue
        assert tally(ledger.event) == tally(made.result_.ledger.event), name
        assert streams.noise.position == drawn.noise.position, name


@check
def check_a_published_estimator_is_what_it_predicts() -> None:
    """The folder verifies at the epsilon of `privacy_`, and its model predicts as the estimator
    does.
    """
    for name in DECLARED:
        made = fitted(name, epsilon=50.0)
        if not hasattr(made, "predict"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = made.publish(Path(folder) / "model")
            found = pv.verify(out)
            assert found.ok, name
            assert found.epsilon == made.privacy_.epsilon, name
            predicted = pv.load_model(out).predict(X).numpy()
        if is_regressor(made):
            predicted = predicted.clip(-2, 3)
            assert abs(predicted.mean() - Z.mean()) < 0.25, name
        assert np.allclose(predicted, made.predict(X), atol=1e-4), name


@check
def check_a_second_fit_is_published_as_one_of_several() -> None:
    """Without a limit a certificate claims its own run alone, and says that there are others."""
    made = fitted("DPFisherClassifier")
    made.fit(X, Y)
    with tempfile.TemporaryDirectory() as folder:
        found = pv.verify(made.publish(Path(folder) / "model"))
    assert found.ok
    assert found.runs == certificate.ALONE
    assert found.epsilon == made.privacy_.fit.epsilon < made.privacy_.epsilon


@check
def check_nothing_that_a_fit_keeps_is_without_noise() -> None:
    """With other noise every number that an estimator keeps of the rows is another one."""
    for name in ("DPLogisticRegression", "DPRidge", "DPStandardScaler", "DPPCA"):
        one, other = (fitted(name, random_state=pv.Streams.new()) for _ in range(2))
        kept = [
            value
            for value in ("coef_", "intercept_", "mean_", "scale_", "var_", "components_")
            if hasattr(one, value)
        ]
        assert kept, name
        for value in kept:
            assert np.all(getattr(one, value) != getattr(other, value)), (name, value)


@check
def check_a_search_costs_what_was_asked_for() -> None:
    """A private search, its choice included, is charged once; what it is given to search is not
    fitted.
    """
    base = DECLARED["DPClassifier"](options={"epochs": 3})
    for way in ("random-stopping", "blocks"):
        ledger = pv.Ledger(pv.Budget(3.0, 1e-5))
        search = pv.sklearn.DPSearchCV(
            base, {"model": ["linear", "mlp:4"]}, epsilon=3.0, way=way, ledger=ledger
        )
        search.fit(X, Y)
        assert search.best_params_ == {"model": ["linear", "mlp:4"][search.best_index_]}
        assert tally(ledger.event) == tally(search.result_.plan.event())
        assert 2.9 <= search.privacy_.epsilon <= 3.0
        assert not hasattr(base, "privacy_")
        must_raise(BudgetExceeded, lambda search=search: clone(search).fit(X, Y))  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder:
            assert pv.verify(search.publish(Path(folder) / "model")).ok


#: What is searched of each estimator beside `DPClassifier`.
GRIDS: dict[str, Any] = {
    "DPLogisticRegression": [{"epochs": 1}, {"epochs": 2}],
    "DPRegressor": [{"epochs": 1}, {"epochs": 2}],
    "DPRidge": [{"row_norm": 1.0}, {"row_norm": 2.0}],
    "DPFisherClassifier": [{"keep": 1}, {"keep": 2}],
    "DPBoostingClassifier": [{"passes": 1}, {"passes": 2}],
    "DPBoostingRegressor": [{"passes": 1}, {"passes": 2}],
}


@check
def check_every_searched_estimator_is_charged_the_whole_search() -> None:
    """Also those that descend on nothing: one run on the ledger, held to its plan, that verifies
    when published.
    """
    for name, options in GRIDS.items():
        base, ledger = DECLARED[name](epsilon=50.0), pv.Ledger(pv.Budget(3.0, 1e-5))
        way = "blocks" if name in ("DPRidge", "DPBoostingClassifier") else "random-stopping"
        search = pv.sklearn.DPSearchCV(
            base, {"options": options}, epsilon=3.0, way=way, ledger=ledger
        )
        search.fit(X, targets(base))
        assert tally(ledger.event) == tally(search.result_.plan.event()), name
        assert 2.9 <= search.privacy_.epsilon <= 3.0, name
        assert search.best_estimator_.privacy_ is search.privacy_
        assert search.best_estimator_._fits is search._fits
        assert np.array_equal(search.predict(X), search.best_estimator_.predict(X)), name
        assert hasattr(search, "predict_proba") is not is_regressor(base)
        assert is_regressor(search) is is_regressor(base)
        must_raise(
            BudgetExceeded, lambda search=search: clone(search).fit(X, targets(search.estimator))
        )  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder:
            assert pv.verify(search.publish(Path(folder) / "model")).ok, name
