"""Named checks of PATE for numbers by options; planted bugs must make them fail."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import privlearn as pv
from privlearn.core.accounting.events import tally
from privlearn.errors import BadInput
from privlearn.methods.pate import answering
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.reducers import Identity, PublicPCA
from tests.support.checks import check, must_raise

RNG = np.random.default_rng(3)
SLOPES = RNG.normal(size=(4, 2)) @ RNG.normal(size=(2, 6))
SLOPES *= 3 / np.abs(SLOPES).sum(0)
#: Of units that differ a thousandfold.
UNITS = np.array([1.0, 1.0, 10.0, 1000.0, 1.0, 1.0])
RANGES = {f"y{column}": (-4 * unit, 4 * unit) for column, unit in enumerate(UNITS)}


def rows(number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = RNG.uniform(-1, 1, (number, 4))
    return x.astype(np.float32), (x @ SLOPES + 0.1 * RNG.normal(size=(number, 6))) * UNITS


X, Y = rows(6000)
X_PUBLIC, Y_PUBLIC = rows(150)
X_TEST, Y_TEST = rows(200)
DATA = pv.Dataset(X, Y, X_TEST, Y_TEST, low=-1.0, high=1.0, target_ranges=RANGES)
PUBLIC = pv.Dataset(X_PUBLIC, Y_PUBLIC, low=-1.0, high=1.0, public=True, target_ranges=RANGES)
ASKED = replace(PUBLIC, y=None)
CHOICES: dict[str, Any] = {"epsilon": 8.0, "teachers": 200, "queries": 100}


def trained(data: pv.Dataset = DATA, public: pv.Dataset = PUBLIC, **more: Any) -> pv.Result:
    """A student of numbers."""
    choices = {**CHOICES, "streams": pv.Streams.new(0), **more}
    return pv.train(data, method="pate", public=public, **choices)


def asked_by(data: pv.Dataset, public: pv.Dataset) -> tuple[Any, Any, Any]:
    """The plan, the reducer and the teachers' rows that teachers are asked with."""
    seen: list[Any] = []

    def stop(plan: Any, teachers: Any, reducer: Any, *_: Any, **__: Any) -> Any:
        seen.extend((plan, reducer, teachers._data))
        raise InterruptedError

    with mock.patch.object(answering, "pate", stop):
        must_raise(InterruptedError, lambda: trained(data, public))
    return seen[0], seen[1], seen[2]


@check
def check_students_of_numbers_predict_in_the_units_of_the_targets() -> None:
    """With public targets for principal components, and without; the published folder, too."""
    for public, least in ((PUBLIC, 0.7), (ASKED, 0.3)):
        result = trained(public=public)
        metrics = pv.evaluate(result, DATA)
        assert metrics["r2"] > least, metrics
        with tempfile.TemporaryDirectory() as folder:
            out = pv.publish(result, Path(folder) / "model", test_metrics=metrics)
            assert pv.verify(out).ok
            model = pv.load_model(out)
        predicted = model.predict(X_TEST)
        low, high = (torch.tensor([pair[end] for pair in RANGES.values()]) for end in (0, 1))
        outputs = result.model(torch.from_numpy(X_TEST))
        assert torch.allclose(predicted, outputs.clamp(low, high).float())
        assert model.targets == tuple(RANGES)
        must_raise(BadInput, lambda model=model: model.predict_proba(X_TEST))


@check
def check_codes_of_numbers_follow_from_public_rows_alone() -> None:
    """The plan, the components and the radius are the same whatever the private rows hold, and
    those of the public rows; the plan is all that is charged.
    """
    other = replace(DATA, y=np.flip(DATA.y, 1) * 0.1 + 5)
    for public, kind in ((PUBLIC, PublicPCA), (ASKED, Identity)):
        (plan, reducer, _), (again, same, _) = asked_by(DATA, public), asked_by(other, public)
        assert isinstance(reducer, kind)
        assert plan == again
        assert torch.equal(reducer.centre, same.centre)
        code = torch.ones(1, reducer.size)
        assert torch.equal(reducer.decode(code), same.decode(code))
        result = trained(public=public)
        assert tally(result.ledger.event) == tally(plan.event())
        assert result.ledger.guarantee(1e-5).epsilon <= 8.0


@check
def check_numbers_of_teachers_are_within_their_bounds() -> None:
    """A target beyond its bounds counts as these, each by itself, and all are scaled alike."""
    spoilt = DATA.y.copy()
    spoilt[:5], spoilt[5:10] = -1e9, 1e9
    *_, seen = asked_by(replace(DATA, y=spoilt), PUBLIC)
    assert np.abs(seen.y).max() <= 1.0
    assert (seen.y[:5] == -1).all()
    assert (seen.y[5:10] == 1).all()
    np.testing.assert_allclose(seen.y[10:], (DATA.y / (4 * UNITS))[10:], atol=1e-6)


@check
def check_public_targets_reach_no_student() -> None:
    """Students learn from released answers; public targets make the codes alone."""
    learned: list[Answers] = []
    learnable = Answers.learnable

    def note(answers: Answers) -> Any:
        learned.append(answers)
        return learnable(answers)

    with mock.patch.object(Answers, "learnable", note):
        trained()
    released = learned[-1].targets
    public = torch.from_numpy(Y_PUBLIC[:100] / (4 * UNITS)).float()
    assert released.shape == public.shape
    assert float((released - public).norm(dim=1).min()) > 1e-3


@check
def check_numbers_refuse_what_votes_alone_have() -> None:
    """Thresholds, teachers of classes, more questions than public rows; before any is trained."""
    for more, said in (
        ({"threshold": 5.0, "answers": 3}, "are for votes"),
        ({"teacher": "spreading"}, "expected for numbers ridge"),
        ({"queries": 151}, "150 public inputs"),
    ):
        error = must_raise(BadInput, lambda more=more: trained(**more))
        assert said in str(error), error
    other = pv.Dataset(X_PUBLIC, Y_PUBLIC[:, :4], low=-1.0, high=1.0, public=True)
    error = must_raise(BadInput, lambda: trained(public=other))
    assert "the targets of the public rows" in str(error)
