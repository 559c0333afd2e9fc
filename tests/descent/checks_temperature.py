"""Named checks of temperature scaling, the release after training; planted bugs must make them
fail.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.evaluation import Gains
from privlearn.core.rows import TensorRows
from privlearn.core.temperature import GRID, NORM, Temperature
from privlearn.errors import BadInput
from privlearn.training import after_training, fitted_temperature
from tests.support.cancelling_rows import cancelling_rows
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, one_sample, require_standard_deviation, small_data

NOISE = 0.2


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3)).double()


def plan(**more: Any) -> pv.Plan:
    return pv.Plan(pv.Poisson(0.5), epochs=2, examples=12, temperature=Temperature(NOISE), **more)


def train(
    settled: pv.Plan, model: nn.Module | None = None, data: Any = None, **more: Any
) -> pv.Result:
    more.setdefault("streams", pv.Streams.new(3))
    more.setdefault("optimizer", lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    return pv.dpsgd(settled, model or network(), cross_entropy, data or small_data(12), **more)


@check
def check_one_example_moves_the_gains_by_at_most_the_sensitivity() -> None:
    """Whatever it holds: scores without end, labels of no class, several rows of one person."""
    x, y = small_data(12)
    model = nn.Sequential(nn.Identity(), nn.Linear(5, 3)).double()
    model[1].weight.data.mul_(1e3)  # far too sure: the losses of wrong rows are huge
    gains = Gains(model)
    for change in (x[3] * 1e6, -x[3] * 1e6, torch.full((5,), math.nan), x[3] * 0):
        for label in (0, 1, 2, -1, 7):
            other, labels = x.clone(), y.clone()
            other[3], labels[3] = change, label
            for adjacency, rows, targets in (
                (Adjacency.REPLACE_ONE, other, labels),
                (
                    Adjacency.ADD_REMOVE,
                    torch.cat([other[:3], other[4:]]),
                    torch.cat([labels[:3], labels[4:]]),
                ),
            ):
                base = (x, y) if adjacency is Adjacency.REPLACE_ONE else (other, labels)
                one = gains.sum(one_sample(examples=12), TensorRows(base), adjacency)
                two = gains.sum(
                    one_sample(examples=len(rows)), TensorRows((rows, targets)), adjacency
                )
                assert float((one.values[0] - two.values[0]).norm()) <= one.sensitivity * (1 + 1e-9)
    persons = torch.tensor([[row, row, (row + 1) % 12] for row in range(12)])
    all_rows = gains.sum(one_sample(examples=12), TensorRows((x, y)), Adjacency.ADD_REMOVE, persons)
    assert float(all_rows.values[0].norm()) <= 12
    sure = Gains(nn.Sequential(nn.Linear(5, 3)).double())
    with mock.patch.object(sure, "_answered", wraps=sure._answered):
        row = sure(x[:1], y[:1])[0]
    scores = sure._model(x[:1]).detach()
    at = [math.log(3) - float(nn.functional.cross_entropy(scores / t, y[:1])) for t in GRID]
    assert np.allclose(row.numpy() * NORM, at, rtol=1e-6)


@check
def check_a_row_less_leaves_the_last_digits_of_the_others() -> None:
    """Of rows whose scores cancel each other, so that last digits decide about their gains."""
    torch.manual_seed(0)
    model = nn.Linear(13, 2)
    rows, labels = cancelling_rows(model, 1e6, 1200), torch.zeros(1200, dtype=torch.long)
    whole, less = (
        Gains(model).sum(
            one_sample(examples=1200 - first),
            TensorRows((rows[first:].clone(), labels[first:])),
            Adjacency.ADD_REMOVE,
        )
        for first in (0, 1)
    )
    moved = float((whole.values[0] - less.values[0]).norm())
    assert moved <= whole.sensitivity, moved


@check
def check_rows_that_are_scored_begin_at_multiples_of_64_bytes() -> None:
    steps: set[int] = set()

    def score(gains: Gains, x: torch.Tensor) -> torch.Tensor:
        steps.add(x.stride(0) * x.itemsize % 64)
        return together(gains, x)

    together = Gains._together
    rows, labels = torch.randn(30, 13), torch.zeros(30, dtype=torch.long)
    with mock.patch.object(Gains, "_together", score):
        Gains(nn.Linear(13, 2)).sum(
            one_sample(examples=30), TensorRows((rows, labels)), Adjacency.ADD_REMOVE
        )
    assert steps == {0}, steps


@check
def check_the_release_after_training_is_charged_and_noisy() -> None:
    result = train(plan())
    assert tally(result.ledger.event).get(Gaussian(NOISE)) == 1
    assert tally(plan().event()) == tally(result.ledger.event)
    assert GRID[0] <= result.facts["fitted_temperature"] <= GRID[-1]
    released: list[Tensor] = []
    real = fitted_temperature.release

    def kept(bounded: Any, **arguments: Any) -> Any:
        before = bounded.values[0].clone()  # the noise is added in place
        made = real(bounded, **arguments)
        released.append(made[0][0] - before)
        return made

    with mock.patch.object(fitted_temperature, "release", kept):
        for seed in range(60):
            train(replace(plan(), epochs=1), streams=pv.Streams.new(seed))
    require_standard_deviation(torch.cat(released).numpy(), NOISE)


@check
def check_the_last_layer_is_divided_once_and_predictions_stay() -> None:
    whole, plain = train(plan()), train(replace(plan(), temperature=None))
    t = whole.facts["fitted_temperature"]
    x, _ = small_data(12)
    with torch.no_grad():
        assert torch.allclose(whole.model(x) * t, plain.model(x))
        assert not torch.allclose(whole.model(x), plain.model(x))
    averaged = train(plan(), average=0.5)
    without = train(replace(plan(), temperature=None), average=0.5)
    with torch.no_grad():
        assert torch.allclose(
            averaged.model(x) * averaged.facts["fitted_temperature"], without.model(x)
        )


@check
def check_an_interrupted_run_ends_with_the_same_temperature() -> None:
    """Interrupted in the last step, after the release, and after its end."""
    whole = train(plan(), average=0.5)
    for when in ("step", "release", "end"):
        with tempfile.TemporaryDirectory() as folder:
            file = pv.runs.Checkpoint(Path(folder) / "run", every=1e-6)

            patches = {
                "step": mock.patch.object(
                    after_training.AfterTraining, "fit", side_effect=KeyboardInterrupt
                ),
                "release": mock.patch.object(Temperature, "best", side_effect=KeyboardInterrupt),
                "end": mock.patch.object(
                    after_training.AfterTraining, "end", side_effect=KeyboardInterrupt
                ),
            }
            with patches[when]:
                must_raise(KeyboardInterrupt, lambda: train(plan(), average=0.5, checkpoint=file))  # noqa: B023
            again = train(
                plan(), average=0.5, checkpoint=pv.runs.Checkpoint(Path(folder) / "run", every=1e-6)
            )
        assert again.facts["fitted_temperature"] == whole.facts["fitted_temperature"], when
        assert tally(again.ledger.event) == tally(whole.ledger.event), when
        for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(one, other), when


@check
def check_a_loop_that_saves_after_its_last_step_ends_with_the_same_temperature() -> None:
    """Interrupted after the noise of the release was drawn, and continued behind the last step."""

    def go(file: Path) -> pv.Result:
        model = network()
        run = pv.Run(
            plan(),
            model,
            cross_entropy,
            small_data(12),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            streams=pv.Streams.new(3),
            checkpoint=file,
        )
        for batch in run.batches():
            run.step(batch)
            run.save_checkpoint()
        return run.result()

    with tempfile.TemporaryDirectory() as folder:
        whole = go(Path(folder, "whole"))
        with mock.patch.object(Temperature, "best", side_effect=KeyboardInterrupt):
            must_raise(KeyboardInterrupt, lambda: go(Path(folder, "run")))
        again = go(Path(folder, "run"))
    assert again.facts["fitted_temperature"] == whole.facts["fitted_temperature"]
    assert tally(again.ledger.event) == tally(whole.ledger.event)


@check
def check_certificates_say_whether_there_was_a_temperature() -> None:
    result = train(plan())
    with tempfile.TemporaryDirectory() as folder:
        pv.publish(result, Path(folder) / "model", delta=1e-3)
        assert pv.verify(Path(folder) / "model").ok
        assert "estimates of probabilities" in (Path(folder) / "model" / "README.md").read_text()
    facts = {name: value for name, value in result.facts.items() if name != "fitted_temperature"}
    for wrong in (
        replace(result, facts=facts),
        replace(train(replace(plan(), temperature=None)), facts=result.facts),
    ):
        with tempfile.TemporaryDirectory() as folder:
            must_raise(BadInput, lambda: pv.publish(wrong, Path(folder) / "model", delta=1e-3))  # noqa: B023
