"""Named checks of estimators with a plan and a ledger, in pipelines and searches; mutations must
make them fail.
"""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pandas

import privlearn as pv
from privlearn.core.accounting.events import tally, walk
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BudgetExceeded
from privlearn.methods.statistics.plan import SelectionPlan
from privlearn.sklearn import DPFeatureSelector, DPFisherClassifier, budget_for
from tests.statistics.checks import settled, some_rows
from tests.support.checks import check, must_raise


@check
def check_estimators_share_their_ledger() -> None:
    """Clones, pipelines and grid searches charge the one ledger that was given; none is refused,
    pickling is.
    """
    from sklearn.base import clone
    from sklearn.pipeline import make_pipeline

    x, y = some_rows(60)
    first = settled(SelectionPlan, way="means", noise_multiplier=5.0)
    second = settled(features=2, keep=2, noise_multiplier=6.0, coordinate_bound=None)
    ledger = Ledger()
    line = make_pipeline(
        DPFeatureSelector(plan=first, ledger=ledger), DPFisherClassifier(plan=second, ledger=ledger)
    )
    for twin in (line, clone(line), copy.deepcopy(line)):
        assert all(step.ledger is ledger for _, step in twin.steps)
        twin.fit(x.numpy(), y.numpy())
        assert twin.predict(x.numpy()).shape == (60,)
    assert tally(ledger.event) == {Gaussian(5.0): 3, Gaussian(6.0): 3}
    must_raise(TypeError, lambda: pickle.dumps(line))
    tight = Ledger(pv.Budget(rho=0.5 / 25 * 1.5))
    selector = DPFeatureSelector(plan=first, ledger=tight).fit(x.numpy(), y.numpy())
    must_raise(BudgetExceeded, lambda: clone(selector).fit(x.numpy(), y.numpy()))


@check
def check_a_pipeline_is_paid_for_in_full_or_not_at_all() -> None:
    """Where a selector knows what comes after it, it leaves a ledger alone that has no room for
    both.
    """
    from sklearn.base import clone
    from sklearn.pipeline import make_pipeline

    x, y = (part.numpy() for part in some_rows(60))
    first = settled(SelectionPlan, way="means", noise_multiplier=5.0)
    second = settled(features=2, keep=2, noise_multiplier=6.0, coordinate_bound=None)
    for room, fits in ((0.99, 0), (1.0, 1), (1.99, 1), (2.0, 2)):
        ledger = Ledger(pv.Budget(rho=room * (0.5 / 25 + 0.5 / 36)))
        line = make_pipeline(
            DPFeatureSelector(plan=first, ledger=ledger),
            DPFisherClassifier(plan=second, ledger=ledger),
        )
        for _ in range(fits):
            clone(line).fit(x, y, dpfeatureselector__then=second)
        again = clone(line)
        must_raise(
            BudgetExceeded, lambda line=again: line.fit(x, y, dpfeatureselector__then=second)
        )  # type: ignore[misc]
        assert tally(ledger.event) == ({Gaussian(5.0): fits, Gaussian(6.0): fits} if fits else {})


@check
def check_a_budget_for_a_search_pays_for_it_and_no_more() -> None:
    """Every fit of a search and the last one on all rows, whatever is released; a fit more is
    refused.
    """
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    x, y = (part.numpy() for part in some_rows(60))
    for way, delta, size in (
        ("means", 1e-5, 1),
        ("gumbel", 1e-5, 1),
        ("gumbel", None, 1),
        ("means", 1e-5, 3),
    ):
        first = settled(SelectionPlan, way=way, noise_multiplier=50.0, group_size=size)
        second = settled(
            features=2, keep=2, noise_multiplier=60.0, coordinate_bound=None, group_size=size
        )
        budget = budget_for(first, second, fits=7, delta=delta)
        assert budget.group_size == size
        ledger = Ledger(budget)
        line = make_pipeline(
            DPFeatureSelector(plan=first, ledger=ledger),
            DPFisherClassifier(plan=second, ledger=ledger),
        )
        grid = {"dpfisherclassifier__plan": [second, second]}
        found = GridSearchCV(line, grid, cv=3, error_score="raise")
        found.fit(x, y, dpfeatureselector__then=second)
        assert found.best_estimator_.predict(x).shape == (60,)
        must_raise(BudgetExceeded, lambda line=line: line.fit(x, y))  # type: ignore[misc]


@check
def check_labels_of_any_kind_make_the_same_classifier() -> None:
    """Declared texts or numbers in place of 0, 1, 2, in whatever order: the same features, weights
    and predictions.
    """
    x, y = (part.numpy() for part in some_rows(60))
    x = x / (1 + abs(x))
    first, second = settled(SelectionPlan, way="means"), settled()
    usual = DPFisherClassifier(plan=second, ledger=Ledger(), random_state=0).fit(x, y)
    kept = DPFeatureSelector(plan=first, ledger=Ledger(), random_state=0).fit(x, y)
    for names, given in (
        (["a", "b", "c"], ["c", "a", "b"]),
        ([-7, 1, 40], [1, 40, -7]),
        ([0.5, 1.0, 2.5], [2.5, 1.0, 0.5]),
    ):
        labels = np.array(names, dtype=object if isinstance(names[0], str) else None)[y]
        found = DPFisherClassifier(plan=second, ledger=Ledger(), random_state=0, classes=given).fit(
            x, labels
        )
        assert found.classes_.tolist() == names
        assert found.predict(x).tolist() == [names[number] for number in usual.predict(x)]
        assert (found.decision_function(x) == usual.decision_function(x)).all()
        again = DPFeatureSelector(plan=first, ledger=Ledger(), random_state=0, classes=given).fit(
            x, labels
        )
        assert again.indices_.tolist() == kept.indices_.tolist()
    ledger = Ledger()
    for bad in (
        ["a", "b", "d"],
        ["a", "b"],
        ["a", "b", "c", "d"],
        [["a", "b", "c"]],
        None,
        [None, "a", "b"],
    ):
        labels = np.array(["a", "b", "c"])[y]
        for make in (
            DPFisherClassifier(plan=second, ledger=ledger, classes=bad),
            DPFeatureSelector(plan=first, ledger=ledger, classes=bad),
        ):
            must_raise(pv.errors.BadInput, lambda make=make, labels=labels: make.fit(x, labels))  # type: ignore[misc]
    assert not list(walk(ledger.event))


@check
def check_kept_columns_stay_in_their_order() -> None:
    """`transform`, `get_support` and names agree, whichever feature was the best; names of a table
    are used.
    """
    x, y = (part.numpy() for part in some_rows(60))
    x = x / (1 + abs(x))
    x[:, 3] += 3 * y
    x[:, 1] += 2 * y
    plan = settled(
        SelectionPlan, way="means", row_norm=8.0, noise_multiplier=0.01, coordinate_bound=None
    )
    found = DPFeatureSelector(plan=plan, ledger=Ledger()).fit(x, y)
    assert found.indices_.tolist() == [3, 1]
    assert found.get_support().tolist() == [False, True, False, True]
    assert found.get_support(indices=True).tolist() == [1, 3]
    assert (found.transform(x) == x[:, [1, 3]]).all()
    assert found.get_feature_names_out().tolist() == ["x1", "x3"]
    table = pandas.DataFrame(x, columns=["age", "blood", "cells", "dose"])
    assert found.fit(table, y).get_feature_names_out().tolist() == ["blood", "dose"]
    assert found.feature_names_in_.tolist() == list(table.columns)
    assert found.fit(x, y).get_feature_names_out().tolist() == ["x1", "x3"]
    usual = settled(row_norm=8.0, noise_multiplier=0.01, way="means")
    classifier = DPFisherClassifier(plan=usual, ledger=Ledger()).fit(table, y)
    assert classifier.result_.facts["chosen"][0]["names"] == ["dose", "blood"]
    strange = x.copy()
    strange[0] = math.nan  # refused before anything is spent, and without a class
    before = classifier.ledger.event
    must_raise(pv.errors.BadInput, lambda: classifier.fit(strange, y))
    must_raise(pv.errors.BadInput, lambda: classifier.predict(x[:, :2]))
    assert classifier.ledger.event == before
