"""Named checks of test metrics that are released with noise; planted bugs must make them fail."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
import privlearn_verify
from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput, BudgetExceeded
from privlearn.methods.statistics import FisherPlan, MetricsPlan
from privlearn.methods.statistics.sums import Probabilities, metric_sums
from tests.support.checks import check, must_raise

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(40, 2))).float()
Y = torch.from_numpy(RNG.integers(2, size=40))


def network(classes: int = 2) -> nn.Linear:
    made = nn.Linear(2, classes, bias=False).eval()
    with torch.no_grad():
        made.weight.copy_(torch.arange(2 * classes).view(classes, 2) * 3.0)
    return made


def sums(probabilities: Tensor, y: Tensor, adjacency: Adjacency) -> tuple[Tensor, float]:
    """What is added up over the rows, as one vector, and its sensitivity."""
    (sample,) = FullBatch().draw(len(y))
    made = metric_sums(probabilities, y, sample, adjacency, bins=5, most_loss=2.0)
    return torch.cat([part.flatten() for part in made.values]), made.sensitivity


@check
def check_a_test_row_moves_paid_metrics_by_the_sensitivity_at_most() -> None:
    """Rows of huge and of no finite numbers, too; the worst pair comes close to the bound."""
    rows = torch.cat(
        [X[:4], torch.tensor([[1e30, -1e30], [-300.0, 300.0], [math.nan, 0.0], [math.inf, 1.0]])]
    )
    for classes in (2, 3):
        answers = Probabilities(network(classes), classes)
        base, every = answers(X[:8], Y[:8]), answers(rows, torch.zeros(len(rows)))
        pairs = [(row[None], torch.tensor([label])) for row in every for label in range(classes)]
        added = [
            {
                own: sums(torch.cat([base, row]), torch.cat([Y[:8], label]), own)[0]
                for own in Adjacency
            }
            for row, label in pairs
        ]
        without = {
            Adjacency.ADD_REMOVE: [sums(base, Y[:8], Adjacency.ADD_REMOVE)[0]],
            Adjacency.ZERO_OUT: [
                added[at][Adjacency.ZERO_OUT] for at, (row, _) in enumerate(pairs) if not row.any()
            ],
            Adjacency.REPLACE_ONE: [one[Adjacency.REPLACE_ONE] for one in added],
        }
        for own, others in without.items():
            worst = max(float((one[own] - other).norm()) for one in added for other in others)
            bound = sums(base, Y[:8], own)[1]
            assert 0.95 * bound <= worst <= bound * (1 + 1e-12), (classes, own, worst, bound)


@check
def check_test_rows_do_not_meet() -> None:
    """A model that couples the rows of a batch does not: each goes through it by itself."""

    class Coupled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    nearly_exact = MetricsPlan(2, noise_multiplier=1e-3)
    counts = pv.evaluate(
        Coupled(), X, Y, paid=nearly_exact, streams=pv.Streams.new(0)
    ).confusion_matrix
    # less itself, a row has even scores
    assert counts == ((int((Y == 0).sum()), 0), (int(Y.sum()), 0)), counts


@check
def check_paid_metrics_are_charged_and_refused_without_room() -> None:
    """The ledger is charged the plan, before noise is drawn; without room nothing is drawn."""
    plan = MetricsPlan(2).calibrate(epsilon=1.0, delta=1e-5)
    assert 0.99 < plan.guarantee(1e-5).epsilon <= 1.0
    ledger = pv.Ledger(pv.Budget(1.2, 1e-5))
    metrics = pv.evaluate(network(), X, Y, paid=plan, ledger=ledger)
    assert tally(ledger.event) == {Gaussian(plan.noise): 1}
    assert metrics.plan == plan
    streams = pv.Streams.new(0)
    again = lambda: pv.evaluate(network(), X, Y, paid=plan, ledger=ledger, streams=streams)  # noqa: E731
    must_raise(BudgetExceeded, again)
    assert streams.noise.position == 0


@check
def check_paid_metrics_have_the_noise_of_their_plan() -> None:
    """On rows without an answer, of 40 classes, all counts are noise: sigma sqrt(3), or sqrt(5) for
    replaced rows.
    """
    x, y = torch.full((3, 2), math.nan), torch.tensor([0, 1, 2])
    for adjacency, factor in (("zero_out", 3), ("replace_one", 5)):
        plan = MetricsPlan(40, Adjacency.parse(adjacency), noise_multiplier=500.0)
        counts = pv.evaluate(
            network(40), x, y, paid=plan, streams=pv.Streams.new(1)
        ).confusion_matrix
        deviation = float(np.std(counts)) / (500.0 * math.sqrt(factor))
        assert 0.95 < deviation < 1.05, (adjacency, deviation)


@check
def check_nothing_exact_is_said_beside_paid_metrics() -> None:
    """Everything that is returned follows from the noise; for add/remove neighbours the number of
    rows, too.
    """

    def said(rows: int, seed: int, adjacency: str) -> Any:
        plan = MetricsPlan(2, Adjacency.parse(adjacency), noise_multiplier=20.0)
        return pv.evaluate(network(), X[:rows], Y[:rows], paid=plan, streams=pv.Streams.new(seed))

    exact = pv.evaluate(network(), X, Y)
    first, second = said(40, 0, "zero_out"), said(40, 1, "zero_out")
    assert first.rows == second.rows == 40  # public
    assert first.confusion_matrix != second.confusion_matrix
    assert exact.confusion_matrix not in (first.confusion_matrix, second.confusion_matrix)
    figures: Sequence[Any] = [
        set(own.figures.values()) - {0.0, 1.0, 4.0} for own in (exact, first, second)
    ]
    assert not figures[0] & figures[1]
    assert not figures[0] & figures[2]
    assert not figures[1] & figures[2]
    numbers = {said(rows, seed, "add_remove").rows for rows in (39, 40) for seed in (0, 1, 2)}
    assert len(numbers) > 2


@check
def check_a_certificate_covers_the_metrics_that_are_said_to_be_paid() -> None:
    """Metrics released on another ledger, or after a run without a limit, are not published as
    protected.
    """
    data = pv.Dataset(X.numpy(), Y.numpy(), classes=2, low=-4.0, high=4.0)
    plan = FisherPlan(2, 2, 2, row_norm=2.0, coordinate_bound=1.0, adjacency=Adjacency.ZERO_OUT)
    plan, paid = (
        plan.calibrate(epsilon=1.0, delta=1e-5),
        MetricsPlan(2).calibrate(epsilon=0.5, delta=1e-5),
    )
    ledger = pv.Ledger()
    ledger.approve(plan, paid)
    result = pv.statistics.fisher(plan, data, ledger=ledger)
    with tempfile.TemporaryDirectory() as folder:
        early = pv.evaluate(result, X, Y, paid=paid)  # charged elsewhere
        must_raise(BadInput, lambda: pv.publish(result, Path(folder) / "a", test_metrics=early))
        metrics = pv.evaluate(result, X, Y, paid=paid, ledger=ledger)
        out = pv.publish(result, Path(folder) / "b", test_metrics=metrics)
        found, card = pv.verify(out), (out / "README.md").read_text("utf-8")
        both = pv.Ledger.allowing(compose([plan.event(), paid.event()]), Adjacency.ZERO_OUT)
        both.charge(plan.event(), Adjacency.ZERO_OUT)
        both.charge(paid.event(), Adjacency.ZERO_OUT)
        assert found.ok, found.problems
        assert found.epsilon == both.spent(1e-5).epsilon > 1.01 * plan.guarantee(1e-5).epsilon
        assert "Released with noise" in card
        assert f'{{"type": "accuracy", "value": {metrics.figures["accuracy"]:.6f}}}' in card
        assert privlearn_verify.check_folder(out).verdict == "ok"
        assert "not protected by the guarantee" not in card
        assert f"| accuracy | {metrics.text('accuracy')} on 40 rows |" in card

        alone = pv.statistics.fisher(plan, data)  # its ledger has no room for more
        must_raise(BudgetExceeded, lambda: pv.evaluate(alone, X, Y, paid=paid, ledger=alone.ledger))
        unlimited = pv.Ledger()
        result = pv.statistics.fisher(plan, data, ledger=unlimited)
        late = pv.evaluate(result, X, Y, paid=paid, ledger=unlimited)
        must_raise(BadInput, lambda: pv.publish(result, Path(folder) / "c", test_metrics=late))

        limited = pv.Ledger(pv.Budget(2.0, 1e-5))
        result = pv.statistics.fisher(plan, data, ledger=limited)
        late = pv.evaluate(result, X, Y, paid=paid, ledger=limited)
        out = pv.publish(result, Path(folder) / "d", test_metrics=late)
        assert pv.verify(out).ok


@check
def check_verify_asks_for_the_release_of_paid_metrics() -> None:
    """A certificate that says that metrics were paid, without their event, does not verify."""
    from privlearn._storage import digest

    data = pv.Dataset(X.numpy(), Y.numpy(), classes=2, low=-4.0, high=4.0)
    plan = FisherPlan(2, 2, 2, row_norm=2.0, coordinate_bound=1.0, adjacency=Adjacency.ZERO_OUT)
    result = pv.statistics.fisher(plan.calibrate(epsilon=1.0, delta=1e-5), data)
    with tempfile.TemporaryDirectory() as folder:
        out = pv.publish(result, Path(folder) / "a")
        for claimed in (2.0, "2", None, -1):
            certificate = json.loads((out / "privacy.json").read_text())
            certificate["facts"]["paid_metrics"] = claimed
            certificate["digests"]["facts"] = digest(certificate["facts"])
            (out / "privacy.json").write_text(json.dumps(certificate))
            assert any("test metrics" in problem for problem in pv.verify(out).problems), claimed
