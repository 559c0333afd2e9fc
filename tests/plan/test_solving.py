"""Any one public number is solved for, on the safe side."""

from __future__ import annotations

import json
from typing import Any

import pytest

from privlearn.cli import main
from privlearn.core import schedules
from privlearn.core.accounting.budget import Budget
from privlearn.core.plan import Plan
from privlearn.core.sampling import FullBatch, Partition, Poisson, Sampler, Shuffle
from privlearn.core.schedules import Decay, Schedule
from privlearn.errors import BadInput
from tests.support.registries import completed

SCHEDULES = completed(
    "schedules",
    ["constant", "time:k=0.05", "exp:k=0.02", "step:k=0.7,period=5", "poly:k=2,end=2,period=20"],
    Schedule,
)

SAMPLERS: list[Sampler] = [Poisson(0.02), Partition(50), Shuffle(20), FullBatch()]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize("spec", SCHEDULES)
@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_noise_meets_epsilon(sampler: Sampler, spec: str, epsilon: float) -> None:
    plan = Plan(sampler, epochs=20, schedule=schedules.parse(spec)).calibrate(
        epsilon=epsilon, delta=1e-6
    )
    assert epsilon * (1 - 0.003) <= plan.guarantee(1e-6).epsilon <= epsilon


@pytest.mark.parametrize("spec", SCHEDULES)
def test_noise_meets_rho(spec: str) -> None:
    plan = Plan(Shuffle(20), epochs=20, schedule=schedules.parse(spec)).calibrate(rho=0.4)
    assert 0.4 * (1 - 0.003) <= (plan.guarantee(1e-5).rho or 0) <= 0.4


@pytest.mark.parametrize(
    "sampler",
    [Poisson(0.02), Partition(50), Shuffle(20)],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize(
    "spec", completed("schedules", ["time", "exp", "step:period=5", "poly:end=2,period=30"], Decay)
)
def test_the_rate_meets_epsilon(sampler: Sampler, spec: str) -> None:
    shape = schedules.parse(spec, free_rate=True)
    start = Plan(sampler, epochs=25, schedule=schedules.Constant(6.0)).guarantee(1e-5).epsilon
    plan = Plan(sampler, epochs=25, schedule=shape.scaled(0.6)).with_rate(
        Budget(epsilon=2 * start, delta=1e-5)
    )
    assert 2 * start * (1 - 0.003) <= plan.guarantee(1e-5).epsilon <= 2 * start


@pytest.mark.parametrize(
    ("spec", "epochs", "low", "high"),
    [
        ("time", 60, 0.0189, 0.0195),
        ("step:period=10", 60, 0.8507, 0.8559),
        ("exp", 60, 0.0138, 0.0142),
        ("poly:end=2,period=100", 60, 1.4317, 1.4921),
    ],
)
def test_the_rate_of_table_three(spec: str, epochs: int, low: float, high: float) -> None:
    """Yu et al. 2019, Table III: the rate for a number of epochs; any in the interval gives exactly
    it.
    """
    budget = Budget(rho=0.78125)
    shape = schedules.parse(spec, free_rate=True)
    plan = Plan(Shuffle(600), epochs=epochs, schedule=shape).with_rate(budget)
    assert low - 1e-4 <= plan.schedule.k <= high + 1e-4  # type: ignore[attr-defined]
    assert Plan(Shuffle(600), schedule=plan.schedule).within(budget).epochs == epochs


@pytest.mark.parametrize("kind", ["poisson", "partition"])
def test_the_batch_size_is_the_largest_that_fits(kind: str) -> None:
    from privlearn.core.sampling import named

    budget = Budget(epsilon=1.5, delta=1e-5)
    plan = Plan(named(kind, 10, 5000), epochs=10, schedule=schedules.Constant(1.2)).with_batch_size(
        budget, 5000
    )
    assert plan.guarantee(1e-5).epsilon <= 1.5
    size = round(plan.sampling.expected_batch_size(5000))
    larger = named(kind, size + 1 if kind == "poisson" else 2 * size, 5000)
    assert Plan(larger, epochs=10, schedule=schedules.Constant(1.2)).guarantee(1e-5).epsilon > 1.5


def test_epochs_are_the_most_that_fit() -> None:
    budget = Budget(epsilon=2.0, delta=1e-5)
    for sampler in SAMPLERS:
        plan = Plan(sampler, schedule=schedules.Constant(8.0)).within(budget)
        more = Plan(sampler, epochs=plan.epochs + 1, schedule=schedules.Constant(8.0))
        assert plan.guarantee(1e-5).epsilon <= 2.0 < more.guarantee(1e-5).epsilon


def test_what_cannot_be_solved_says_why() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    with pytest.raises(BadInput, match="no rate to solve for"):
        Plan(Poisson(0.1), schedule=schedules.Constant(2.0)).with_rate(budget)
    with pytest.raises(BadInput, match="does not depend on their size"):
        Plan(Shuffle(10), schedule=schedules.Constant(20.0)).with_batch_size(budget, 100)
    with pytest.raises(BadInput, match="meets the target"):
        Plan(Poisson(0.1), schedule=schedules.Time(k=1.0, start=0.5)).with_rate(budget)
    with pytest.raises(BadInput, match="not even one example"):
        Plan(Poisson(0.5), schedule=schedules.Constant(0.3)).with_batch_size(
            Budget(epsilon=0.01, delta=1e-9), 100
        )


def budget(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["budget", "--examples", "5000", *options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--noise-multiplier", "3", "--epochs", "20", "--epsilon", "2")
    for options in (
        ("--solve", "rate", "--schedule", "exp", "--batch-size", "100"),
        ("--solve", "batch-size"),
        ("--solve", "epochs", "--batch-size", "100"),
    ):
        found = budget(capsys, *given, *options)
        assert found["epsilon"] <= 2
        assert found["unspent"] >= 0
    assert main(["budget", "--examples", "5000", "--epsilon", "1", "--solve", "rate"]) == 2
    assert "--noise-multiplier S" in capsys.readouterr().err


def test_groups_and_lower_bounds_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    plain = ("--noise-multiplier", "6", "--epochs", "40", "--batch-size", "50")
    one, three = budget(capsys, *plain), budget(capsys, *plain, "--group-size", "3")
    assert three["epsilon"] > one["epsilon"]
    shuffled = budget(capsys, *plain, "--sampling", "shuffle", "--group-size", "3")
    assert shuffled["rho"] == pytest.approx(9 * 40 / 72)
    found = budget(capsys, *plain, "--sampling", "shuffle", "--plot", str(tmp_path / "plan.png"))
    kinds = {row["method"]: row["kind"] for row in found["guarantees"]}
    assert kinds == {
        "gaussian": "bound",
        "zcdp": "bound",
        "zcdp-2016": "bound",
        "shuffle-2024": "lower_bound",
    }
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"
    assert (
        main(
            ["budget", "--examples", "5000", *plain, "--plot", str(tmp_path / "gone" / "plan.png")]
        )
        == 2
    )
    assert "cannot be written" in capsys.readouterr().err
