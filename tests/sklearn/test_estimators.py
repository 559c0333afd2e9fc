"""Estimators with the rest of scikit-learn: its own checks of estimators, tables, pipelines and
searches.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas
import pytest
from joblib import parallel_backend
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import privlearn as pv
from privlearn.core.accounting.events import tally
from privlearn.errors import BadInput, PrivacyWarning
from tests.sklearn.checks_fits import DECLARED, X, Y, fitted, outcome, targets

#: The others take the same way, or seconds.
QUICK = {
    "DPClassifier",
    "DPBoostingRegressor",
    "DPFisherClassifier",
    "DPFeatureSelector",
    "DPStandardScaler",
    "DPPCA",
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly)
        for name in pv.sklearn.__all__
        if name.startswith(("DP", "PATE"))
    ],
)
def test_checks_of_scikit_learn_pass(name: str) -> None:
    estimator = getattr(pv.sklearn, name)()
    expected = pv.sklearn.expected_failed_checks(estimator)
    assert len(expected) <= 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = check_estimator(estimator, expected_failed_checks=expected, on_skip=None)
    assert {each["check_name"] for each in done if each["status"] == "xfail"} == set(expected)


def test_classifiers_learn() -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (600, 3))
    y = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    for kind in (
        pv.sklearn.DPClassifier,
        pv.sklearn.DPBoostingClassifier,
        pv.sklearn.DPFisherClassifier,
    ):
        made = kind(epsilon=4.0, classes=["yes", "no"], bounds=(-1, 1)).fit(x, y)
        assert made.score(x, y) > 0.85
        assert made.classes_.tolist() == ["no", "yes"]


def test_a_student_of_votes_learns() -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (600, 3))
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    fitted_before = [LogisticRegression().fit(x[start::20], y[start::20]) for start in range(20)]
    for estimator in (None, LogisticRegression(), fitted_before):
        made = pv.sklearn.PATEClassifier(
            estimator, epsilon=8.0, classes=[0, 1], bounds=(-1, 1)
        ).fit(x, y)
        assert made.score(x, y) > 0.8
    with pytest.raises(BadInput, match="given twice"):
        made.set_params(estimator=[fitted_before[0]] * 2).fit(x, y)


def test_transformers_come_near_those_without_noise() -> None:
    x = np.random.default_rng(1).normal([3, 5, 7], [1, 0.5, 0.1], (2000, 3))
    x[:, 0] += x[:, 1]
    made = pv.sklearn.DPStandardScaler(epsilon=20.0, bounds=(0, 15)).fit(x)
    assert np.allclose(made.mean_, x.mean(0), rtol=0.05)
    assert np.allclose(made.scale_[:2], x.std(0)[:2], rtol=0.5)
    turned = pv.sklearn.DPPCA(2, epsilon=20.0, bounds=(-15, 15)).fit(x - x.mean(0))
    assert np.allclose(turned.components_ @ turned.components_.T, np.eye(2), atol=1e-9)
    assert abs(turned.components_[0] @ PCA(1).fit(x).components_[0]) > 0.95
    back = turned.inverse_transform(turned.transform(x - x.mean(0)))
    assert np.abs(back - (x - x.mean(0))).mean() < 0.2
    coder = pv.sklearn.DPAutoencoder(2, epsilon=100.0, bounds=(0, 15)).fit(x)
    assert coder.get_feature_names_out().tolist() == ["dpautoencoder0", "dpautoencoder1"]
    assert coder.inverse_transform(coder.transform(x)).shape == x.shape


def test_a_pipeline_of_transform_and_classifier_shares_a_ledger() -> None:
    ledger = pv.Ledger(pv.Budget(6.0, 1e-5), measure="renyi")
    line = make_pipeline(
        DECLARED["DPStandardScaler"](ledger=ledger),
        pv.sklearn.DPClassifier(classes=[0, 1], ledger=ledger),
    )
    assert line.fit(X, Y)[-1].privacy_.total == ledger.guarantee(1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"estimator": DECLARED["PATEClassifier"]()}, "budget_for"),
        ({"estimator": make_pipeline(DECLARED["DPStandardScaler"]())}, "budget_for"),
        ({"metric": "auc"}, "not a sum over examples"),
        ({"metric": "rmse"}, "the targets are classes"),
        ({"param_grid": {"bounds": [(-1, 1), (-2, 2)]}}, "the same for all"),
        ({"param_grid": {"epsilon": [1, 2]}}, "the same for all"),
        ({"param_grid": {"model": ["linear"]}}, "from 2 to"),
        ({"way": "grid"}, "random-stopping"),
    ],
)
def test_what_can_not_be_searched_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        pv.sklearn.DPSearchCV(DECLARED["DPClassifier"]()).set_params(**given).fit(X, Y)


def test_regressors_learn() -> None:
    x = np.random.default_rng(1).uniform(0, 4, (600, 3))
    y = 100 + 10 * (x[:, 0] - x[:, 1])
    for kind in (pv.sklearn.DPRegressor, pv.sklearn.DPRidge, pv.sklearn.DPBoostingRegressor):
        made = kind(epsilon=8.0, target_bounds=(50, 150), bounds=(0, 4)).fit(x, y)
        assert made.score(x, y) > 0.5


def test_coefficients_are_those_of_the_scores() -> None:
    made = fitted("DPLogisticRegression")
    assert np.allclose(X @ made.coef_[0] + made.intercept_[0], made.decision_function(X), atol=1e-6)
    ridge = fitted("DPRidge", X / 2)
    assert np.allclose(
        (X / 2) @ ridge.coef_ + ridge.intercept_, ridge._outputs(X / 2)[:, 0].numpy(), atol=1e-6
    )


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
        GridSearchCV(made, grid, cv=3, n_jobs=2, error_score="raise").fit(X, Y)
    ledger = pv.Ledger.open(tmp_path / "ledger.json", pv.Budget(30.0, 1e-5))
    search = GridSearchCV(
        made.set_params(ledger=ledger), grid, cv=3, n_jobs=2, error_score="raise"
    ).fit(X, Y)
    assert len(list(pv.accounting.events.walk(ledger.event))) >= 2
    assert search.best_estimator_.predict(X).shape == (60,)


def test_a_search_in_threads_is_charged_fit_by_fit() -> None:
    made = DECLARED["DPFisherClassifier"]()
    with parallel_backend("threading", n_jobs=4):
        search = GridSearchCV(made, {"epsilon": [0.5, 1.0]}, cv=3, error_score="raise").fit(X, Y)
    best = search.best_estimator_
    assert best.privacy_.fits == 7
    assert sum(tally(best.result_.ledger.event).values()) == 7


def test_weights_are_bounded() -> None:
    half = np.where(np.arange(60) % 2, 1.0, 0.5)
    for name in ("DPBoostingClassifier", "DPBoostingRegressor"):
        usual = DECLARED[name](random_state=0)
        ones, loud, less = (
            outcome(usual.fit(X, targets(usual), sample_weight=weight))
            for weight in (None, np.full(60, 1e6), half)
        )
        assert np.array_equal(ones, loud)
        assert not np.array_equal(ones, less)
        for bad in (np.zeros(60), -half, half[:9], np.full(60, np.nan)):
            with pytest.raises(BadInput, match="weight"):
                usual.fit(X, targets(usual), sample_weight=bad)


def test_what_is_no_model_is_not_published(tmp_path: Any) -> None:
    for name in ("DPFeatureSelector", "DPStandardScaler", "DPPCA"):
        with pytest.raises(BadInput, match="comes after it"):
            fitted(name).publish(tmp_path / "model")
    folder = fitted("DPAutoencoder").publish(tmp_path / "coder")
    assert "their bounds are -1 and 1" in (folder / "README.md").read_text("utf-8")


def test_metadata_routing_reaches_a_selector() -> None:
    with config_context(enable_metadata_routing=True):
        first, second = (
            fitted("DPFeatureSelector").result_.plan,
            fitted("DPFisherClassifier").result_.plan,
        )
        ledger = pv.Ledger(first.budget)
        line = make_pipeline(
            pv.sklearn.DPFeatureSelector(plan=first, ledger=ledger).set_fit_request(then=True)
        )
        with pytest.raises(pv.errors.BudgetExceeded):
            line.fit(X, Y, then=second)
        assert ledger.adjacency is None  # nothing was charged


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bounds": (1, 0)}, "lower one first"),
        ({"bounds": ([0, 0], [1, 1])}, "3 features"),
        ({"classes": [0, 1, 2, 3], "epsilon": -1}, "epsilon"),
        (
            {"classes": [0, 2]},
            r"row [0-9]+, hold 1, outside the declared classes: expected one of them, 0, 2",
        ),
        ({"classes": ["a", "b"]}, r"outside the declared classes.*give both as one kind"),
        ({"ledger": "mine"}, "Ledger"),
        ({"options": {"epoch": 3}}, "no argument 'epoch'"),
        ({"options": 5}, "a dictionary"),
        ({"epsilon": "1"}, "epsilon is '1'"),
        ({"random_state": "seed"}, "random_state"),
        ({"random_state": True}, "random_state"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    made = pv.sklearn.DPClassifier(classes=[0, 1], bounds=(-1, 1)).set_params(**given)
    with pytest.raises(BadInput, match=said):
        made.fit(X, Y)


@pytest.mark.parametrize("name", DECLARED)
def test_missing_values_are_refused_with_what_helps(name: str) -> None:
    """In words of our own: scikit-learn's name an estimator that is not private, and an imputer."""
    made = DECLARED[name]()
    frame = pandas.DataFrame(X, columns=["age", "crp", "hb"])
    frame.loc[3, "crp"] = np.nan
    for rows, column in ((frame, "column 'crp'"), (frame.to_numpy(), "column 1")):
        with pytest.raises(BadInput, match="NaN") as error:
            made.fit(rows, Y)
        said = str(error.value)
        assert column in said
        assert "constant that you declare" in said
        assert "DPTableEncoder" in said
        assert "HistGradient" not in said
        assert len(said) <= 300
    filled = frame.fillna(0).to_numpy()
    targets = np.where(np.arange(len(Y)) == 3, np.nan, np.asarray(Y, dtype=float))
    assert np.isfinite(filled).all()
    if "target_bounds" in made.get_params():
        with pytest.raises(BadInput, match=r"y has missing.* expected a finite target"):
            made.fit(filled, targets)


def test_a_refusal_of_missing_values_is_short_whatever_columns_are_called() -> None:
    names = [str(number) * 90 for number in range(3)]
    frame = pandas.DataFrame(np.full((4, 3), np.nan), columns=names)
    with pytest.raises(BadInput, match="missing or infinite values") as error:
        pv.sklearn.DPClassifier(classes=[0, 1]).fit(frame, [0, 1, 0, 1])
    assert len(str(error.value)) <= 300


def test_what_is_advised_for_missing_values_learns_nothing() -> None:
    frame = pandas.DataFrame(X, columns=["age", "crp", "hb"])
    frame.loc[3, "crp"] = np.nan
    made = pv.sklearn.DPClassifier(classes=[0, 1], bounds=(-1, 1)).fit(frame.fillna(0), Y)
    assert made.privacy_.total is not None


@pytest.mark.parametrize(
    "name", [name for name in DECLARED if "options" in DECLARED[name]().get_params()]
)
def test_options_that_are_none_are_refused(name: str) -> None:
    made = DECLARED[name](options={"foo": 1})
    with pytest.raises(BadInput, match="'foo'"):
        made.fit(X, targets(made))


def test_a_second_fit_warns() -> None:
    made = fitted("DPFisherClassifier")
    with pytest.warns(PrivacyWarning, match=r"fit 2 .*about 1\.\d+"):
        made.fit(X, Y)


def test_weights_are_routed() -> None:
    """Through a pipeline and cross-validation, each fold with its own rows' weights."""
    weights = np.linspace(0, 1, len(X))
    with config_context(enable_metadata_routing=True):
        for name in ("DPLogisticRegression", "DPRidge"):
            made = DECLARED[name](ledger=pv.Ledger(pv.Budget(30.0, 1e-5))).set_fit_request(
                sample_weight=True
            )
            made.set_score_request(sample_weight=True)
            line = make_pipeline(FunctionTransformer(), made)
            scores = cross_validate(
                line, X, targets(made), cv=2, params={"sample_weight": weights}, error_score="raise"
            )
            assert len(scores["test_score"]) == 2
        with pytest.raises(BadInput, match="at least 0"):
            made.fit(X, targets(made), sample_weight=-weights)
