"""Estimators with the rest of scikit-learn: its own checks of estimators, tables, pipelines and searches."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import privlearn as pv
from privlearn.errors import BadInput, PrivacyWarning
from tests.sklearn.checks_fits import DECLARED, X, Y, fitted


@pytest.mark.parametrize("name", DECLARED)
def test_checks_of_scikit_learn_pass(name: str) -> None:
    estimator = getattr(pv.sklearn, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator, on_skip=None)


def test_classifiers_learn() -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (600, 3))
    y = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    for kind in (pv.sklearn.DPClassifier, pv.sklearn.DPBoostingClassifier, pv.sklearn.DPFisherClassifier):
        made = kind(epsilon=4.0, classes=["yes", "no"], bounds=(-1, 1)).fit(x, y)
        assert made.score(x, y) > 0.85
        assert made.classes_.tolist() == ["no", "yes"]


def test_regressors_learn() -> None:
    x = np.random.default_rng(1).uniform(0, 4, (600, 3))
    y = 100 + 10 * (x[:, 0] - x[:, 1])
    for kind in (pv.sklearn.DPRegressor, pv.sklearn.DPBoostingRegressor):
        made = kind(epsilon=8.0, target_bounds=(50, 150), bounds=(0, 4)).fit(x, y)
        assert made.score(x, y) > 0.5


def test_coefficients_are_those_of_the_scores() -> None:
    made = fitted("DPLogisticRegression")
    assert np.allclose(X @ made.coef_[0] + made.intercept_[0], made.decision_function(X), atol=1e-6)


def test_names_of_a_table_stay_and_outputs_are_tables() -> None:
    table = pandas.DataFrame(X, columns=["age", "height", "weight"])
    line = make_pipeline(
        DECLARED["DPFeatureSelector"](keep=2).set_output(transform="pandas"),
        DECLARED["DPFisherClassifier"](),
    ).fit(table, Y)
    assert line[0].feature_names_in_.tolist() == list(table.columns)
    kept = line[0].transform(table)
    assert list(kept.columns) == [list(table.columns)[place] for place in sorted(line[0].indices_)]
    assert line.predict(table).shape == (60,)


def test_cross_validation_is_charged_fit_by_fit() -> None:
    made = DECLARED["DPBoostingClassifier"](options={"passes": 1})
    plan = made.fit(X, Y).result_.plan
    ledger = pv.Ledger(pv.sklearn.budget_for(plan, fits=3, delta=1e-5))
    scores = cross_val_score(made.set_params(ledger=ledger), X, Y, cv=3, error_score="raise")
    assert len(scores) == 3
    with pytest.raises(pv.errors.BudgetExceeded):
        cross_val_score(made, X, Y, cv=3, error_score="raise")


@pytest.mark.nightly
def test_a_search_in_other_processes_is_refused_or_charged_to_a_file(tmp_path: Any) -> None:
    made = DECLARED["DPFisherClassifier"]()
    grid = {"epsilon": [0.5, 1.0]}
    with pytest.raises(BadInput, match="n_jobs=None"):
        GridSearchCV(made, grid, cv=2, n_jobs=2, error_score="raise").fit(X, Y)
    ledger = pv.Ledger.open(tmp_path / "ledger.json", pv.Budget(20.0, 1e-5))
    search = GridSearchCV(made.set_params(ledger=ledger), grid, cv=2, n_jobs=2, error_score="raise").fit(X, Y)
    assert len(list(pv.accounting.events.walk(ledger.event))) >= 2
    assert search.best_estimator_.predict(X).shape == (60,)


def test_metadata_routing_reaches_a_selector() -> None:
    with config_context(enable_metadata_routing=True):
        first, second = fitted("DPFeatureSelector").result_.plan, fitted("DPFisherClassifier").result_.plan
        ledger = pv.Ledger(first.budget)
        line = make_pipeline(pv.sklearn.DPFeatureSelector(plan=first, ledger=ledger).set_fit_request(then=True))
        with pytest.raises(pv.errors.BudgetExceeded):
            line.fit(X, Y, then=second)
        assert ledger.adjacency is None  # nothing was charged


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bounds": (1, 0)}, "lower one first"),
        ({"bounds": ([0, 0], [1, 1])}, "3 features"),
        ({"classes": [0, 1, 2, 3], "epsilon": -1}, "epsilon"),
        ({"classes": ["a", "b"]}, "outside the declared classes"),
        ({"ledger": "mine"}, "Ledger"),
        ({"options": {"epoch": 3}}, "no argument 'epoch'"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    made = pv.sklearn.DPClassifier(classes=[0, 1], bounds=(-1, 1)).set_params(**given)
    with pytest.raises(BadInput, match=said):
        made.fit(X, Y)


def test_a_second_fit_warns() -> None:
    made = fitted("DPFisherClassifier")
    with pytest.warns(PrivacyWarning, match=r"fit 2 .*about 1\.\d+"):
        made.fit(X, Y)
