"""Validation schedules: what is refused, what plans and screens say, and the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn import cli
from privlearn.core import schedules
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.filters import largest_filter, share
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.trees import Filter
from privlearn.core.schedules import Constant, Exponential, Validation
from privlearn.errors import BadInput, UnsupportedEvent
from privlearn.training import rules
from tests.support.nets import cross_entropy, small_data, small_net

SPEC = "validation:k=0.7,m=2,threshold=0.02,period=2"
RHO = Budget(rho=0.5)


REACTS, SHUFFLED = Validation(0.7), pv.Shuffle(5)


def plan(schedule: Any = REACTS, sampler: Any = SHUFFLED, **more: Any) -> pv.Plan:
    return pv.Plan(sampler, schedule=schedule, **more)


def test_specs_are_read_back() -> None:
    for schedule in (
        Validation(0.7),
        Validation(0.5, 5, 0.01, 10, 8.0),
        Validation(0.9, start=3.5, noise=200.0),
    ):
        assert schedules.parse(schedules.spec(schedule)) == schedule
    assert (
        schedules.spec(Validation(0.7, 5, 0.01, 10))
        == "validation:k=0.7,m=5,threshold=0.01,period=10,start=10.0"
    )
    assert schedules.parse("validation:k=0.7,m=5,threshold=0.01,period=10,noise=200") == Validation(
        0.7, 5, 0.01, 10, noise=200.0
    )


BAD: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "k above 1": (lambda: Validation(1.0), ("k is 1", "below 1")),
    "k of 0": (lambda: Validation(0.0), ("k is 0.0", "above 0")),
    "more averaged than a period has": (
        lambda: Validation(0.5, m=5, period=4),
        ("m=5", "period=4", "at least m"),
    ),
    "half an accuracy": (
        lambda: schedules.parse("validation:k=0.5,m=2.5"),
        ("m is 2.5", "whole number"),
    ),
    "a whole number as a float": (lambda: Validation(0.5, m=1.0), ("m is 1.0", "whole number")),  # type: ignore[arg-type]
    "no period": (lambda: Validation(0.5, period=0), ("period is 0",)),
    "a threshold that no accuracy passes": (
        lambda: Validation(0.5, threshold=1.5),
        ("threshold is 1.5", "-1 to 1"),
    ),
    "no number": (lambda: Validation(0.5, threshold=math.nan), ("threshold is nan",)),
    "no noise": (lambda: Validation(0.5, noise=0.0), ("(noise) is 0.0",)),
    "a spec without k": (
        lambda: schedules.parse("validation:m=2"),
        ("needs k", "k, m, threshold, period, start, noise"),
    ),
    "an unknown schedule": (
        lambda: schedules.parse("cosine"),
        ("expected one of", "validation:k=0.7,m=5"),
    ),
    "a learning rate": (
        lambda: schedules.parse_rates("validation:k=0.7"),
        ("the learning rate can't follow",),
    ),
    "no limit": (
        lambda: plan().event(),
        ("no price before it has a limit", "plan.within(budget)", "epsilon="),
    ),
    "noise that nobody knows": (
        lambda: plan().within(RHO).noise_multipliers(),
        ("not known before the run",),
    ),
    "a rate": (lambda: plan().with_rate(RHO), ("k can't be solved for", "schedule=: time, exp")),
    "a batch size": (
        lambda: plan(sampler=pv.Partition(5)).with_batch_size(RHO, 50),
        ("the batch size can't be solved",),
    ),
    "not one epoch": (
        lambda: plan(Validation(0.5, start=0.9)).within(RHO),
        ("not one epoch at noise multiplier 0.9",),
    ),
    "too many epochs": (
        lambda: plan(Validation(0.5, start=1e5)).within(RHO),
        ("more than 100,000 epochs",),
    ),
    "validations that take it all": (
        lambda: plan(Validation(0.5, noise=1.0)).calibrate(rho=0.5),
        ("30 validations at noise multiplier 1 alone take more than rho 0.5", "noise="),
    ),
    "a filter without reacting": (
        lambda: plan(Constant(), filter=Filter(rho=1.0)),
        ("for a schedule that reacts alone",),
    ),
    "something else as filter": (lambda: plan(filter=1.0), ("filter is 1.0",)),
    "a filter too narrow": (
        lambda: plan(filter=Filter(rho=1e-3)),
        ("not one epoch at noise multiplier 10 fits into",),
    ),
    "an order that is not tabulated": (
        lambda: plan(filter=Filter(None, (3.14159,), (9.0,))),
        ("order 3.14159",),
    ),
    "no room at any order": (
        lambda: plan(sampler=pv.Poisson(0.1)).calibrate(epsilon=0.002, delta=1e-5),
        ("leaves no room at any Renyi order", "shuffle, partition or full"),
    ),
    "a PCA that takes it all": (
        lambda: plan(front=(pv.transforms.PrivatePCA(2, 1.0),)).within(RHO),
        ("releases before and after training alone",),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_makes_no_sense_is_refused(what: str) -> None:
    action, said = BAD[what]
    with pytest.raises(BadInput) as caught:
        action()
    for part in said:
        assert part in str(caught.value), str(caught.value)


def test_sampling_has_no_rho() -> None:
    for settle in (
        lambda p: p.within(RHO),
        lambda p: p.calibrate(rho=0.5),
        lambda p: replace(p, filter=Filter(1.0)),
    ):
        with pytest.raises(UnsupportedEvent, match="no amplified zCDP"):
            settle(plan(sampler=pv.Poisson(0.1)))


def go(
    schedule: Any,
    validation: Any = None,
    *,
    data: Any = None,
    net: nn.Module | None = None,
    **options: Any,
) -> Any:
    settled = plan(schedule)
    if isinstance(schedule, Validation):
        settled = settled.within(RHO, most=2)
    return pv.dpsgd(
        settled,
        net or small_net(),
        cross_entropy,
        data or small_data(),
        validation=validation,
        **options,
    )


def shown(**change: Any) -> pv.Dataset:
    x, y = small_data(9, 7)
    return pv.Dataset(**{"x": x, "y": y, "public": True, **change})


class Wide(nn.Module):
    """One score for both classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Tired(nn.Module):
    """Fails in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            raise RuntimeError("not now")
        return self.layer(x)


def one(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (output[:, 0] - y).square()


RUNS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "rows that nothing looks at": (
        lambda: go(Constant(), shown()),
        ("validation= is for", "the schedule is constant:"),
    ),
    "both ways at once": (
        lambda: go(Validation(0.5, noise=9.0), shown()),
        ("has noise=", "give one of the two"),
    ),
    "another shape": (
        lambda: go(Validation(0.5), shown(x=torch.zeros(9, 4).double())),
        ("shape (4,)", "(5,)"),
    ),
    "whole numbers": (
        lambda: go(Validation(0.5), shown(x=torch.zeros(9, 5).long())),
        ("int64", "same form"),
    ),
    "no rows": (
        lambda: go(Validation(0.5), shown(x=torch.zeros(0, 5), y=torch.zeros(0).long())),
        ("0 validation rows",),
    ),
    "a label too few": (
        lambda: go(Validation(0.5), shown(y=torch.zeros(8).long())),
        ("targets of shape (8,)",),
    ),
    "labels that are none": (
        lambda: go(Validation(0.5), shown(y=torch.zeros(9))),
        ("type torch.float32",),
    ),
    "training targets that are none": (
        lambda: go(Validation(0.5), shown(), data=(small_data()[0], torch.rand(12).double())),
        ("accuracy of a classifier", "torch.float64"),
    ),
    "paid for targets that are none": (
        lambda: go(Validation(0.5, noise=9.0), data=(small_data()[0], torch.rand(12).double())),
        ("accuracy of a classifier",),
    ),
    "a model with a single score": (
        lambda: pv.dpsgd(plan().within(RHO), Wide(), one, small_data(), validation=shown()),
        ("shape (1, 1)", "at least two classes"),
    ),
    "a model that can't be evaluated": (
        lambda: go(Validation(0.5, noise=9.0), net=Tired()),
        ("evaluation mode", "not now"),
    ),
    "a learning rate that follows": (
        lambda: go(Constant(), learning_rate_schedule=Validation(0.5)),
        ("learning_rate_schedule is Validation",),
    ),
}


@pytest.mark.parametrize("what", RUNS)
def test_runs_are_refused_before_anything_is_spent(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pv.Ledger, "charge", lambda *_: pytest.fail("something was spent"))
    action, said = RUNS[what]
    with pytest.raises(BadInput) as caught:
        action()
    for part in said:
        assert part in str(caught.value), str(caught.value)


def test_a_limit_that_was_not_settled_is_refused_before_data_are_touched() -> None:
    with pytest.raises(BadInput, match="no price before it has a limit"):
        pv.dpsgd(plan(), small_net(), cross_entropy, None, validation=shown())  # type: ignore[arg-type]


def test_data_of_both_precisions_and_kinds_are_validated_on() -> None:
    """Rows in single precision for a model in double precision, arrays, whole numbers with declared
    bounds.
    """
    rng = np.random.default_rng(0)
    pixels = pv.Dataset(rng.integers(0, 9, (12, 5)), rng.integers(0, 3, 12), low=0, high=8)
    others = pv.Dataset(rng.integers(0, 9, (7, 5)), rng.integers(0, 3, 7), public=True)
    for data, given, net in (
        (small_data(), shown(x=shown().x.float()), small_net()),
        (small_data(), shown(x=shown().x.numpy(), y=shown().y.tolist()), small_net()),
        (pixels, others, small_net().float()),
    ):
        found = go(Validation(0.5), given, data=data, net=net).facts["validation"]
        assert len(found["accuracies"]) == 2
        right = [accuracy * found["rows"] for accuracy in found["accuracies"]]
        assert right == pytest.approx([round(count) for count in right])


def test_public_rows_go_through_what_stands_in_front_of_the_model() -> None:
    """Bounds and a PCA: the accuracy is the published model's."""
    x, y = small_data(40)
    data = pv.Dataset(x, y, low=-3.0, high=3.0)
    settled = plan(front=(pv.transforms.PrivatePCA(2, 9.0),)).within(RHO, most=3)
    net = nn.Linear(2, 3)
    result = pv.dpsgd(settled, net, cross_entropy, data, validation=shown())
    right = result.model(shown().x).argmax(1) == shown().y
    assert result.facts["validation"]["accuracies"][-1] == float(right.double().mean())


def test_the_renyi_order_is_the_best_one_for_the_start() -> None:
    """No other tabulated order lets more epochs through, at the bound that the same budget leaves
    it.
    """
    from privlearn.core.accounting import rdp

    budget, sampler = Budget(2.0, 1e-5), pv.Poisson(0.02)
    settled = plan(Validation(0.7, start=1.5), sampler).within(budget)
    assert settled.filter is not None
    epoch = settled.epoch_event(1.5)
    curve = rdp.curve(epoch)
    best = 0
    for place, order in enumerate(rdp.ORDERS):
        bound = 2.0 - math.log1p(-1 / order) + (math.log(1e-5) + math.log(order)) / (order - 1)
        best = max(best, math.floor(bound / curve[place]))
    assert settled.epochs == best == math.floor(1 / share(settled.filter, epoch))
    assert largest_filter(budget, compose([]), epoch, settled.neighbours) == settled.filter


def test_default_learning_rates_expect_the_start() -> None:
    settled = plan(Validation(0.7, start=4.0), pv.Shuffle(10)).within(RHO, most=20)
    steady = plan(Constant(4.0), pv.Shuffle(10), epochs=settled.epochs)
    rates = [rules.learning_rate("SGD", p, 100, "linear", 1.0) for p in (settled, steady)]
    assert rates[0] == rates[1]


# The command line


def run(*options: str) -> int:
    return cli.main(list(options))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for name, count in (("rows", 80), ("others", 30)):
        x = rng.normal(size=(count, 4))
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x[:, 0] > 0).astype(int))
    return tmp_path


def options(rows: Path, *more: str, schedule: str = SPEC, out: str = "out") -> list[str]:
    return [
        "train",
        "--data",
        str(rows / "rows.npz"),
        "--classes",
        "2",
        "--range",
        "-3,3",
        "--examples",
        "80",
        "--epsilon",
        "4",
        "--delta",
        "1e-3",
        "--schedule",
        schedule,
        "--out",
        str(rows / out),
        *more,
    ]


def test_training_on_public_rows(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*options(rows, "--public", str(rows / "others.npz"), "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    found = answer["validation"]
    assert (found["rows"], found["public"], found["noise"]) == (30, True, None)
    assert answer["epochs"] == len(answer["noise_multipliers"]) == len(found["accuracies"]) <= 30
    assert answer["epsilon"] <= 4.0
    assert run("verify", str(rows / "out")) == 0


def test_training_with_paid_validations(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*options(rows, schedule=SPEC + ",noise=20")) == 0
    said = capsys.readouterr()
    assert "at first" in said.err
    assert run("verify", str(rows / "out")) == 0
    assert (
        "training examples, counted with noise multiplier 20"
        in (rows / "out" / "README.md").read_text()
    )


def test_public_tables(tmp_path: Path) -> None:
    """Read by the schema of the training rows, but for the persons."""
    (tmp_path / "schema.toml").write_text(
        'target = "y"\nperson = "who"\n[columns.x]\nkind = "number"\nlow = 0\nhigh = 10\n'
        '[columns.y]\nkind = "target"\nclasses = ["a", "b"]\n'
    )
    made_up = np.random.default_rng(2)
    lines = [f"{value:.3f},{'ab'[int(value > 5)]}" for value in made_up.uniform(0, 10, 60)]
    (tmp_path / "rows.csv").write_text(
        "x,y,who\n" + "\n".join(f"{line},{n // 2}" for n, line in enumerate(lines[:40]))
    )
    (tmp_path / "others.csv").write_text("x,y\n" + "\n".join(lines[40:]))
    given = [
        "train",
        "--data",
        str(tmp_path / "rows.csv"),
        "--schema",
        str(tmp_path / "schema.toml"),
        "--examples",
        "20",
        "--rows-per-person",
        "2",
        "--epsilon",
        "4",
        "--delta",
        "1e-2",
        "--epochs",
        "4",
        "--schedule",
    ]
    assert (
        run(*given, SPEC, "--public", str(tmp_path / "others.csv"), "--out", str(tmp_path / "one"))
        == 0
    )
    assert run(*given, SPEC + ",noise=5", "--out", str(tmp_path / "two")) == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), ("--public", "noise=", "is a release")),
        (("--public", "rows.npz"), ("among the training rows", "--public", "noise=")),
        (("--public", "digits"), ("shape (8, 8)", "(4,)")),
        (("--public", "nowhere.npz"), ("nowhere.npz",)),
    ],
)
def test_what_training_refuses(
    more: tuple[str, ...],
    said: tuple[str, ...],
    rows: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(rows)
    assert run(*options(rows, *more)) == 2
    message = capsys.readouterr().err
    for part in said:
        assert part in message, message
    assert not (rows / "out").exists()


def test_public_rows_without_a_schedule_that_looks_at_them(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*options(rows, "--public", str(rows / "others.npz"), schedule="exp:k=0.1")) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--public is for validation schedules, and the schedule is exp: nothing looks" in said
    assert "Leave them out, or use a schedule that looks (validation:k=0.7)" in said


BUDGET = ("budget", "--examples", "60000", "--batch-size", "600")


def test_idle_and_noisy_schedules_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What is paid for and does nothing, and accuracies that are mostly noise."""
    given = ("budget", "--examples", "455", "--epsilon", "2", "--epochs", "30", "--schedule")
    assert run(*given, "validation:k=0.7,m=5,threshold=0.01,period=10,noise=200") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "standard deviation 0.22, and the mean of 5 with 0.098" in said  # 200 / (2 x 455)
    assert "noise will fall by chance. Give noise=20 or less" in said
    assert run(*given, "validation:k=0.7,m=5,threshold=0.01,period=10,noise=18") == 0
    assert "by chance" not in capsys.readouterr().out
    assert run(*given, "validation:k=0.7,m=5,threshold=0.01,period=40") == 0
    assert "its noise never falls" in " ".join(capsys.readouterr().err.split())
    assert run(*given, "exp:k=0.05,from=40,to=50") == 0
    assert "the run ends before" in " ".join(capsys.readouterr().err.split())
    assert run(*given, "exp:k=0.05,from=10,to=50") == 0
    assert "warning" not in capsys.readouterr().err


def test_budget_shows_the_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Yu et al.: rho 0.78125 from noise 10, whose epochs would be 156 if the noise never fell."""
    given = (
        *BUDGET,
        "--sampling",
        "shuffle",
        "--rho",
        "0.78125",
        "--noise-multiplier",
        "10",
        "--schedule",
        SPEC,
    )
    assert run(*given, "--json", "--plot", str(tmp_path / "plan.png")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["noise_multipliers"] is None
    assert (answer["epochs"], answer["rho"], answer["method"]) == (156, 0.78125, "gaussian")
    assert answer["plan"]["filter"] == {"kind": "gaussian_filter", "rho": 0.78125}
    assert (tmp_path / "plan.png").stat().st_size > 1000
    assert run(*given) == 0
    said = capsys.readouterr().out
    ends = "ends after 12 epochs if it falls at every check, and has 156"
    for part in ("at most 156 epochs", "10 at first", ends, "rho 0.78125", "--public PATH", SPEC):
        assert part in " ".join(said.split())
    assert run(*BUDGET, "--epsilon", "2", "--epochs", "20", "--schedule", SPEC + ",noise=30") == 0
    said = capsys.readouterr().out
    assert "at most 20 epochs" in said
    assert "Renyi divergence" in said


def test_partitions_have_no_amplification_in_a_filter(capsys: pytest.CaptureFixture[str]) -> None:
    given = (*BUDGET, "--epsilon", "2", "--sampling", "partition", "--schedule")
    assert run(*given, "exp:k=0.01") == 0
    assert "amplification" not in capsys.readouterr().err
    assert run(*given, SPEC) == 0
    assert "poisson sampling costs" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--noise-multiplier", "10"), "within a limit that is set beforehand"),
        (("--epsilon", "2", "--solve", "rate", "--noise-multiplier", "2"), "k can't be solved for"),
        (
            ("--epsilon", "2", "--solve", "batch-size", "--noise-multiplier", "2"),
            "batch size can't be solved for",
        ),
        (("--rho", "2"), "no amplified zCDP"),
    ],
)
def test_what_budget_refuses(
    more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*BUDGET, "--schedule", SPEC, *more) == 2
    assert said in capsys.readouterr().err


def test_one_configuration_serves_both_commands(rows: Path) -> None:
    (rows / "plan.toml").write_text(
        f'public = "{rows / "others.npz"}"\nschedule = "{SPEC}"\nepsilon = 4\ndelta = 1e-3\n'
    )
    assert run("budget", "--config", str(rows / "plan.toml"), "--examples", "80") == 0


def test_a_price_without_validations_is_as_it_was() -> None:
    steady = pv.Plan(pv.Poisson(0.1), 3, Exponential(0.1, 2.0))
    assert steady.epoch_event(2.0) == pv.Poisson(0.1).epoch_event(Gaussian(2.0))
