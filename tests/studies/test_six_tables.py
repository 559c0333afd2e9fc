"""The study of six tables: no default is worse than the base rate, and what its page and its runs
are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from privlearn.errors import BadInput
from privlearn_studies.runs import Outcome
from privlearn_studies.six_tables import comparison, elsewhere, rows, ways
from privlearn_studies.six_tables.ways import (
    BASE,
    BOOSTING,
    DEFAULT,
    HERE,
    LINEAR,
    OPACUS,
    PLAIN,
    TREES,
)

#: Of larger tables so many training rows, to save time, by table and epsilon.
_FIRST = {
    ("adult", 0.1): 8000,
    ("adult", 1.0): 2000,
    ("imbalanced", 1.0): 2000,
    ("categories", 1.0): 2000,
}


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("name", rows.TABLES)
def test_no_default_is_worse_than_the_base_rate(
    name: str, epsilon: float, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In log loss, or in the error of values, in the mean of two seeds."""
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    split = rows.table(name, _FIRST.get((name, epsilon)))
    figure = "rmse" if split.target else "log_loss"
    base = ways.measured(split, HERE[BASE](split, 0.0, 0))[figure]
    for way in (DEFAULT, BOOSTING):
        reached = [
            ways.measured(split, HERE[way](split, epsilon, seed))[figure] for seed in range(2)
        ]
        assert np.mean(reached) < base, f"{way}: {reached}, base rate {base}"


def test_made_up_tables_are_the_same_every_time() -> None:
    for name in rows.MADE:
        one, other = rows.table.__wrapped__(name), rows.table.__wrapped__(name, 100)
        assert np.array_equal(one.data.x[:100], other.data.x)
        assert np.array_equal(one.data.y_test, other.data.y_test)
    assert 0.04 < rows.imbalanced().data.y.mean() < 0.06
    with pytest.raises(BadInput, match="table"):
        rows.table("titanic")


def _outcome(loss: float) -> Outcome:
    return Outcome(accuracy=0.8, auc=1 - loss, log_loss=loss, expected_calibration_error=0.1)


def test_the_page_says_who_is_best_and_who_is_worse_than_the_base_rate() -> None:
    values = {
        ("wisconsin", 1.0, DEFAULT): [_outcome(0.2), _outcome(0.4)],
        ("wisconsin", 1.0, BOOSTING): [_outcome(0.6), _outcome(0.6)],
        ("wisconsin", 1.0, OPACUS): [_outcome(0.25), _outcome(0.25)],
        ("wisconsin", 0.0, PLAIN): [_outcome(0.1)],
        ("wisconsin", 0.0, BASE): [_outcome(0.5)],
        ("adult", 1.0, DEFAULT): [_outcome(0.5)],
        ("adult", 1.0, BOOSTING): [_outcome(0.5)],
        ("adult", 0.0, PLAIN): [_outcome(0.1)],
        ("adult", 0.0, BASE): [_outcome(0.5)],
    }
    notes = comparison.notes_of(values)
    assert "means over 2 seeds (adult: 1)" in " ".join(notes.split())
    assert "| wisconsin | 1 | 0.700 / 0.300 | 0.400 / 0.600 | **0.750** / **0.250** |" in notes
    assert "- boosting: wisconsin at epsilon 1" in notes
    assert "- default: nowhere" in notes
    assert "names no interpreter" in notes


def test_another_environment_gets_numbers_and_categories_by_their_declared_bounds() -> None:
    job = {"columns": [[0, 1, 0.0, 5.0], [1, 3, None, None]]}
    x = np.array([[7.0, 0, 1, 0], [2.0, 0, 0, 0]])
    own, types, bounds = elsewhere.columns(job, x)
    assert own.tolist() == [[5.0, 2.0], [2.0, 0.0]]
    assert types == ["continuous", "nominal"]
    assert bounds == {0: (0.0, 5.0)}
    imports = [
        line for line in Path(elsewhere.__file__).read_text().splitlines() if "import" in line
    ]
    assert imports
    assert not any("privlearn" in line for line in imports if not line.startswith('"'))


def test_a_package_without_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVLEARN_INTERPRET", raising=False)
    with pytest.raises(BadInput, match="PRIVLEARN_INTERPRET"):
        ways.predicted_elsewhere("interpret", rows.values(), (1.0,), 0)


def test_an_environment_is_given_what_is_declared_and_its_predictions_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the package, which predicts epsilon for each row."""
    stand_in = tmp_path / "interpret" / "privacy.py"
    stand_in.parent.mkdir()
    (stand_in.parent / "__init__.py").touch()
    stand_in.write_text(
        "class DPExplainableBoostingRegressor:\n"
        "    def __init__(self, **given): self.given = given\n"
        "    def fit(self, x, y): assert y.max() <= self.given['privacy_target_max']; return self\n"
        "    def predict(self, x): return x[:, 0] * 0 + self.given['epsilon']\n"
        "DPExplainableBoostingClassifier = None\n"
    )
    monkeypatch.setenv("PRIVLEARN_INTERPRET", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    split = rows.table("values", 50)
    predicted = ways.predicted_elsewhere("interpret", split, (0.5, 2.0), 0)
    assert list(predicted) == ["DP-EBM"]
    assert [set(each.tolist()) for each in predicted["DP-EBM"]] == [{0.5}, {2.0}]
    outcome = comparison.predict_elsewhere(
        0, name="values", package="interpret", epsilons=(0.5, 2.0), first=50
    )
    assert json.dumps([vars(each) for each in getattr(outcome, "DP-EBM")])


def test_ways_of_ours_are_the_defaults() -> None:
    assert list(ways.OURS) == [DEFAULT, LINEAR, BOOSTING, TREES]
    split = rows.table("imbalanced", 300)
    one, other = (ways.HERE[way](split, 1.0, 0) for way in (BOOSTING, TREES))
    assert one.shape == other.shape == (10_000,)
    assert not np.array_equal(one, other)
