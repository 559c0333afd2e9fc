"""One place each: what can be added is one class or function and one line that registers it.

Made up here: a sampler, a mechanism, a clip, a schedule and one that reacts, the rule of an
operation, a transform, a recipe for teachers, a study, an option of DP-SGD and a method; another
method comes from another package, by its entry point. All are trained with, priced, published,
verified and predicted with. If one of them ever needs a second place, this cannot be written.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, final
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn import _public
from privlearn._checks import positive
from privlearn.cli import main
from privlearn.core import plan
from privlearn.core import transform as base
from privlearn.core.accounting import events, rdp
from privlearn.core.accounting.events import Event, Mechanism
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian
from privlearn.core.accounting.pld.pairs import ATOMS, PairBuilder, pure_pair
from privlearn.core.clipping import clips
from privlearn.core.clipping.bounded import Bounded, Contributions
from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.clips import Clip
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.operations import RULES
from privlearn.core.clipping.per_example import Dense
from privlearn.core.run_facts import RunFacts
from privlearn.core.sampling import Sample, Sampler
from privlearn.core.schedules import ReactingSchedule, Schedule
from privlearn.core.transform import PrivateTransform
from privlearn.errors import BadInput, PrivacyWarning
from privlearn.methods import BUILT_IN, METHODS, Method
from privlearn.methods.installed import find_method, installed_methods, method_names
from privlearn.methods.pate import recipes
from privlearn.publishing import certificate
from privlearn.runs import post_processing
from privlearn.runs.front import scaled
from privlearn.runs.post_processing import PostProcessing
from privlearn.runs.result import PrivateDiagnostics
from privlearn.transforms.modules import RowTransform
from privlearn_studies import registry
from privlearn_studies.charts import Curve, Figure, Panel
from privlearn_studies.report import Findings, Row
from tests.support.installed import write_distribution

ROWS, FEATURES, CLASSES = 60, 5, 3


@pytest.fixture
def made_up() -> Iterator[SimpleNamespace]:
    """One new kind of each, known only as long as the test runs."""
    base.kinds()  # those that are there are entered when they are first asked for
    _public.enter_expected()
    tables = (_public._KINDS, events._KINDS, events._NAMES, events._FIELDS, RULES)
    patches = [mock.patch.dict(table) for table in tables]
    for patch in patches:
        patch.start()
    try:
        yield SimpleNamespace(**extensions())
    finally:
        for patch in patches:
            patch.stop()


def extensions() -> dict[str, Any]:
    @final
    @plan.registered
    @dataclass(frozen=True)
    class Backwards(Sampler):
        """Batches in the order of the data, from its end: an epoch is the unit, and nothing is
        amplified.
        """

        batch_size: int
        adjacencies = (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
        kind: ClassVar[str] = "backwards"

        @classmethod
        def of_size(cls, batch_size: int, examples: int) -> Backwards:
            return cls(batch_size)

        def steps(self, examples: int) -> int:
            return -(-examples // self.batch_size)

        def expected_batch_size(self, examples: int) -> float:
            return float(min(self.batch_size, examples))

        def event(self, mechanism: Gaussian) -> Event:
            return FixedBatches(mechanism)

        def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
            unit = self.epoch_charge()
            for end in range(examples, 0, -self.batch_size):
                yield Sample(np.arange(max(end - self.batch_size, 0), end), unit)

    @events.kind("coin")
    @final
    @dataclass(frozen=True, slots=True)
    class Coin(Mechanism):
        """A yes or no that is told the other way round now and then: epsilon-DP."""

        epsilon: float

        def zcdp(self) -> float:
            return self.epsilon**2 / 2

        def renyi(self, orders: Any) -> Any:
            return rdp.randomised_response(self.epsilon, 2, orders)

        def pure(self, times: int = 1) -> Fraction:
            return times * Fraction(self.epsilon)

        def pair(self) -> PairBuilder:
            return PairBuilder(
                lambda h, tail: pure_pair(self.epsilon, h), ATOMS * self.epsilon, 2 * self.epsilon
            )

        def grouped(self, k: int) -> Coin:
            return Coin(k * self.epsilon)

    @final
    @plan.registered
    @dataclass(frozen=True)
    class Sign(Clip):
        """Each gradient is brought to the same length."""

        clip_norm: float
        kind: ClassVar[str] = "same-length"

        def norm(self, clip_norm: float, layers: int) -> float:
            return clip_norm

        def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
            return clip_norm / norms.clamp(min=1e-12)

    @final
    @plan.registered
    @dataclass(frozen=True)
    class Halving(Schedule):
        """Half of the noise from an epoch on."""

        epoch: int
        start: float = 10.0
        kind: ClassVar[str] = "halving"

        def __call__(self, epoch: float) -> float:
            return self.start / (1 if epoch < self.epoch else 2)

    @final
    @plan.registered
    @dataclass(frozen=True)
    class Goal(ReactingSchedule):
        """Less noise after each epoch whose accuracy is below a goal."""

        k: float
        goal: float
        start: float = 10.0
        noise: float | None = field(default=None, kw_only=True)
        kind: ClassVar[str] = "goal"

        def noise_multipliers(self, accuracies: Sequence[float]) -> Iterator[float]:
            below = accumulate((accuracy < self.goal for accuracy in accuracies), initial=0)
            return (self.start * self.k**times for times in below)

    class Offset:
        """x - p, where p has no dimension for the batch."""

        def __init__(self, parameter: Tensor) -> None:
            self.parameters = (parameter,)

        def forward(self, x: Tensor) -> Tensor:
            return x - self.parameters[0]

        def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
            call.keep(self.parameters[0], None, Dense(-call.grouped(g).sum(1)))
            return g if wanted else None

    def subtract(capture: Capture, x: Any, parameter: Any) -> Any:
        return capture.run(Offset(parameter), x, low=False)

    RULES[torch.sub] = subtract

    class Flipped(RowTransform):
        """Rows as they are, or with the other sign."""

        kind = "flip"

        def __init__(self, sign: Tensor) -> None:
            super().__init__()
            self.register_buffer("sign", sign)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.get_buffer("sign")

    @final
    @dataclass(frozen=True)
    class Flip(PrivateTransform):
        """Rows by the sign that a coin says most of them have."""

        epsilon: float
        kind: ClassVar[str] = "flip"

        def event(self) -> Event:
            return Coin(self.epsilon)

        @property
        def noise_multiplier(self) -> float:
            return 1 / self.epsilon

        def text(self) -> str:
            return f"a coin of epsilon {self.epsilon:g}"

        def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
            return shape

        def fit(
            self,
            x: Tensor,
            adjacency: Any,
            ledger: Any,
            stream: Any,
            examples: Any = None,
            labels: Any = None,
        ) -> Any:
            ledger.charge(self.event(), adjacency)
            told = stream.words(1)[0] / 2.0**64 + 0.5 < math.exp(self.epsilon) / (
                1 + math.exp(self.epsilon)
            )
            return Flipped(torch.tensor(-1.0 if told == (x.sum() > 0) else 1.0))

        @classmethod
        def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
            return Flipped(torch.empty(stated["shape"]))

    def nearest_mean(x: Tensor, y: Tensor) -> recipes.Predictor:
        means = torch.stack(
            [x[y == label].mean(0) if (y == label).any() else x.mean(0) for label in range(CLASSES)]
        )
        return lambda inputs: torch.cdist(inputs.flatten(1), means.flatten(1)).argmin(1)

    def study(quick: bool, seeds: int | None, runs: Any) -> Findings:
        spent = float(Flip(2.0).event().pure())  # type: ignore[attr-defined]
        figure = Figure("A coin", (Panel((Curve([0.0, 1.0], [0.0, spent]),)),), 4.0, 3.0)
        return Findings(
            (Row("a coin", "epsilon", spent, 2.0),), figure, "A coin costs what it says."
        )

    return {
        "sampler": Backwards(20),
        "mechanism": Coin(0.5),
        "clip": Sign(0.2),
        "schedule": Halving(1),
        "reacting": Goal(0.8, 0.9),
        "transform": Flip(0.5),
        "recipe": nearest_mean,
        "study": study,
    }


class Net(nn.Module):
    """A linear layer on rows less an offset, which is trained, too."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.linear = nn.Parameter(torch.zeros(FEATURES)), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.sub(x.flatten(1), self.offset))


def data() -> tuple[Tensor, Tensor]:
    y = torch.arange(ROWS) % CLASSES
    x = nn.functional.one_hot(y, FEATURES).float() + 0.1 * torch.randn(
        ROWS, FEATURES, generator=torch.manual_seed(0)
    )
    return x, y


LOSS = nn.CrossEntropyLoss(reduction="none")


def test_a_run_of_nothing_but_made_up_kinds(made_up: SimpleNamespace, tmp_path: Path) -> None:
    wanted = pv.Plan(
        made_up.sampler,
        epochs=2,
        schedule=made_up.schedule,
        clip=made_up.clip,
        front=(made_up.transform,),
    ).calibrate(epsilon=4.0, delta=1e-5)
    assert 3.9 < wanted.guarantee(1e-5).epsilon <= 4.0
    assert certificate.read_plan(wanted.to_json()) == wanted
    assert pv.sampling.named("backwards", 20, ROWS) == made_up.sampler
    assert clips.named("same-length", 0.2) == made_up.clip
    x, y = data()
    make = lambda shape: pv.models.build("linear", shape, CLASSES, np.random.default_rng(0))  # noqa: E731
    result = pv.dpsgd(
        wanted,
        make,
        LOSS,
        pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES),
        streams=pv.Streams.new(0),
    )
    assert result.ledger.event == wanted.event()
    assert made_up.mechanism in events.tally(result.ledger.event)
    out = pv.publish(result, tmp_path / "model", model_spec="linear", classes=CLASSES)
    assert pv.verify(out).ok
    model = pv.load_model(out)
    torch.testing.assert_close(model(x), result.model(x))
    assert model.predict(x).shape == (ROWS,)


def test_a_made_up_schedule_is_published_by_its_values_where_it_is_not_registered(
    made_up: SimpleNamespace,
) -> None:
    made = type(made_up.schedule)
    del _public._KINDS[made.kind]
    stated = pv.Plan(made_up.sampler, epochs=2, schedule=made(1, 4.0), clip=made_up.clip).stated()
    assert stated.noise_multipliers() == (4.0, 2.0)
    assert certificate.read_plan(stated.to_json()) == stated


def test_a_made_up_schedule_that_reacts(made_up: SimpleNamespace, tmp_path: Path) -> None:
    x, y = data()
    rows, own = (
        pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES),
        replace(made_up.reacting, noise=20.0),
    )
    settled = pv.Plan(pv.Poisson(0.5), epochs=6, schedule=own).calibrate(epsilon=8.0, delta=1e-5)
    assert certificate.read_plan(settled.to_json()) == settled
    make = lambda shape: pv.models.build("linear", shape, CLASSES, np.random.default_rng(0))  # noqa: E731
    result = pv.dpsgd(settled, make, LOSS, rows, streams=pv.Streams.new(0))
    assert result.ledger.event == settled.event()
    out = pv.publish(result, tmp_path / "model", model_spec="linear", classes=CLASSES)
    assert pv.verify(out).ok
    facts = dict(result.facts)
    assert len(set(facts["noise_multipliers"])) > 1
    assert not settled.follows(facts)
    facts["noise_multipliers"] = sorted(facts["noise_multipliers"])
    assert settled.follows(facts)
    public = pv.Dataset(x.numpy()[::-1] + 5, y.numpy(), public=True)
    spec = {
        "schedule": "goal:k=0.8,goal=0.9",
        "epsilon": 8.0,
        "epochs": 3,
        "streams": pv.Streams.new(0),
    }
    assert pv.verify(pv.publish(pv.train(rows, validation=public, **spec), tmp_path / "public")).ok
    for refused in (
        lambda: pv.train(rows, **spec),
        lambda: pv.train(
            rows, **{**spec, "learning_rate_schedule": spec["schedule"]}, validation=public
        ),
        lambda: pv.train(rows, schedule=spec["schedule"], noise_multiplier=1.0),
    ):
        with pytest.raises(BadInput, match=r"validation|can.t follow"):
            refused()


def test_a_made_up_schedule_that_reacts_on_the_command_line(
    made_up: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--epsilon", "8", "--epochs", "6", "--schedule", "goal:k=0.8,goal=0.9,noise=20"]
    assert main(["budget", "--examples", "60", *common, "--plot", str(tmp_path / "plan.png")]) == 0
    assert "after 3 epochs if it falls" in " ".join(capsys.readouterr().out.split())
    file, out, (x, y) = tmp_path / "rows.npz", tmp_path / "model", data()
    np.savez(file, x=x.numpy(), y=y.numpy())
    rows = ["--data", str(file), "--classes", str(CLASSES), "--range=-1,2", "--seed", "0"]
    assert main(["train", *rows, *common, "--out", str(out)]) == 0
    assert "each accuracy is released with standard deviation" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["verify", str(out)]) == 0
    assert main(["train", *rows, *common, "--method", "dpmac", "--out", str(tmp_path / "no")]) == 2


def test_a_schedule_that_reacts_and_cannot_be_published_is_refused_at_once(
    made_up: SimpleNamespace,
) -> None:
    del _public._KINDS[made_up.reacting.kind]
    with pytest.raises(BadInput, match="registered"):
        pv.Plan(pv.Poisson(0.5), schedule=made_up.reacting)


def test_the_rule_of_an_operation_gives_the_gradients_that_torch_gives(
    made_up: SimpleNamespace,
) -> None:
    x, y = data()
    sums = []
    for known in (True, False):
        torch.manual_seed(0)
        net = Net().double()
        if not known:
            RULES.pop(torch.sub)
        clipped = ClippedGradients(net, LOSS, made_up.clip, Adjacency.ZERO_OUT)
        clipped.prepare(x.double(), y)
        assert clipped.way == ("layers" if known else "vmap")
        (sample,) = pv.sampling.FullBatch().draw(ROWS, np.random.default_rng(0))
        sums.append(clipped(sample, x.double(), y))
    assert sums[0].sensitivity == sums[1].sensitivity
    for one, other in zip(sums[0].values, sums[1].values, strict=True):
        torch.testing.assert_close(one, other)


class Rounding:
    """Weights on a grid after each step: post-processing."""

    def __init__(self, parameters: Sequence[nn.Parameter], cell: float) -> None:
        self._parameters, self._cell, self.steps = parameters, cell, 0

    @torch.no_grad()
    def after_step(self) -> None:
        self.steps += 1
        for parameter in self._parameters:
            parameter.copy_((parameter / self._cell).round() * self._cell)

    def after_run(self) -> None:
        assert self.steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


ROUNDING = PostProcessing(
    name="rounding",
    make=Rounding,
    check=lambda cell: positive("rounding", cell),
    metavar="C",
    help="weights on a grid of this cell",
    read=float,
    label="weights are rounded to",
    text=lambda cell: f"multiples of {cell:g}",
    setting="rounding",
    usual="none",
    why="it brings nothing",
)


@pytest.fixture
def rounding() -> Iterator[None]:
    with mock.patch.dict(post_processing.ROWS, rounding=ROUNDING):
        yield


def require_rounded(folder: Path) -> None:
    assert pv.verify(folder).ok
    assert json.loads((folder / "privacy.json").read_text())["facts"]["rounding"] == 0.5
    assert "| weights are rounded to | multiples of 0.5 |" in (folder / "README.md").read_text()
    for weights in pv.load_model(folder).parameters():
        assert (2 * weights == (2 * weights).round()).all()


def test_a_made_up_option_of_dpsgd_is_an_argument_a_fact_and_a_line_of_the_card(
    rounding: None, tmp_path: Path
) -> None:
    x, y = data()
    rows = pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES)
    result = pv.train(
        rows,
        epsilon=4.0,
        epochs=2,
        learning_rate=5.0,
        rounding=0.5,
        temperature=0.0,
        streams=pv.Streams.new(0),
    )
    require_rounded(pv.publish(result, tmp_path / "trained"))
    wanted = pv.Plan(pv.Poisson(0.5), epochs=2).calibrate(epsilon=4.0, delta=1e-5)
    make = lambda shape: pv.models.build("linear", shape, CLASSES, np.random.default_rng(0))  # noqa: E731
    result = pv.dpsgd(wanted, make, LOSS, rows, rounding=0.5, streams=pv.Streams.new(0))  # type: ignore[call-arg]
    require_rounded(pv.publish(result, tmp_path / "model", model_spec="linear", classes=CLASSES))
    for wrong in ({"rounding": -1.0}, {"average": 0.0}):
        with pytest.raises(BadInput, match=f"{next(iter(wrong))} is"):
            pv.train(rows, epsilon=4.0, **wrong)


def test_a_made_up_option_of_dpsgd_on_the_command_line(
    rounding: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, (x, y) = tmp_path / "rows.npz", tmp_path / "model", data()
    np.savez(file, x=x.numpy(), y=y.numpy())
    common = [
        "train",
        "--data",
        str(file),
        "--classes",
        str(CLASSES),
        "--range=-1,2",
        "--epsilon",
        "4",
        "--seed",
        "0",
    ]
    assert (
        main(
            [
                *common,
                "--epochs",
                "2",
                "--temperature",
                "0",
                "--rounding",
                "0.5",
                "--explain",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    said = " ".join(capsys.readouterr().err.split())
    assert "rounding multiples of 0.5 as given" in said
    require_rounded(out)
    assert (
        main([*common, "--method", "dpmac", "--rounding", "0.5", "--out", str(tmp_path / "no")])
        == 2
    )
    assert "--method dpmac does not go with --rounding" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "tune.toml").write_text(
        '[[candidate]]\nrounding = 0.5\n[[candidate]]\nname = "b"\nrounding = 1\n'
    )
    tuned = [*common, "--batch-size", "20", "--epochs", "1", "--tune", str(tmp_path / "tune.toml")]
    assert main([*tuned, "--out", str(tmp_path / "tuned")]) == 0
    assert pv.verify(tmp_path / "tuned").ok


class SumsFacts(RunFacts, total=False):
    """What the made-up method states."""

    bound: float


def sums_of_classes() -> Method:
    """A method of one release: a linear classifier whose weights are noisy sums of clipped rows,
    one for each class.
    """

    @final
    @plan.registered
    @dataclass(frozen=True)
    class Sums(plan.AbstractPlan):
        numbers: int
        classes: int
        noise_multiplier: float = 1.0
        adjacency: Adjacency = Adjacency.ADD_REMOVE
        group_size: int = 1
        budget: pv.Budget | None = None
        kind: ClassVar[str] = "sums-of-classes"
        facts_shape: ClassVar[Any] = SumsFacts

        def event(self) -> events.Composed:
            return events.compose([Gaussian(self.noise_multiplier)])

        def scaled(self, factor: float) -> Sums:
            return replace(self, noise_multiplier=factor * self.noise_multiplier)

        def rows(self) -> list[tuple[str, str]]:
            return [("sums", f"{self.classes} of {self.numbers} numbers")]

        def follows(self, facts: Mapping[str, Any]) -> list[str]:
            return [] if facts["bound"] > 0 else ["rows were clipped to nothing"]

        def fact_rows(self, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
            return [("rows are clipped to", f"norm {facts['bound']:g}")]

    def settle(options: Any, facts: Any) -> Sums:
        return Sums(facts.numbers, facts.classes).calibrate(
            epsilon=options.epsilon, delta=options.delta, rho=options.rho
        )

    def train(
        own: Sums, rows: pv.Dataset, options: Any, *, ledger: Any, streams: pv.Streams
    ) -> pv.Result:
        x, y = rows.tensors()
        transforms, x = scaled(rows, x)
        ledger = pv.Ledger(own.budget) if ledger is None else ledger
        clipped = x * (options.radius / x.norm(dim=1, keepdim=True)).clamp(max=1.0)
        (sample,) = pv.sampling.FullBatch().draw(len(x))
        sums = nn.functional.one_hot(y, own.classes).to(x.dtype).T @ clipped
        added = Contributions.of(clipped.norm(dim=1), options.radius, "sums-of-classes")
        bounded = Bounded((sums,), options.radius, own.adjacency, sample, added)
        ledger.begin(own.event(), own.adjacency, own.unit)
        ((weights,),) = pv.release(
            bounded, noise_multiplier=own.noise_multiplier, ledger=ledger, stream=streams.noise
        )
        ledger.settle()
        linear = nn.Linear(own.numbers, own.classes)
        linear.weight.data, linear.bias.data = weights, torch.zeros(own.classes)
        return pv.Result(
            nn.Sequential(*transforms, nn.Sequential(nn.Flatten(), linear)),
            ledger,
            own,
            "sums",
            {"bound": options.radius},
            {"input_shape": [own.numbers], "network_input_shape": [own.numbers]},
            streams.seeded,
            PrivateDiagnostics({}),
            model_spec="linear",
            classes=own.classes,
        )

    return Method(
        "sums",
        {Sums.kind: Sums.__module__},
        frozenset({"numbers"}),
        "it is one release",
        fields=(("radius", "R", "for sums: rows are clipped to this norm", float),),
        settle=settle,
        train=train,
    )


def test_a_made_up_method(
    made_up: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sums_of_classes()
    with mock.patch.dict(METHODS, sums=own):
        target = ["--method", "sums", "--epsilon", "4", "--radius", "1.5", "--json"]
        assert (
            main(
                [
                    "budget",
                    *target,
                    "--examples",
                    "60",
                    "--numbers",
                    str(FEATURES),
                    "--classes",
                    str(CLASSES),
                ]
            )
            == 0
        )
        planned = json.loads(capsys.readouterr().out)
        assert 3.98 < planned["epsilon"] <= 4
        file, out, (x, y) = tmp_path / "rows.npz", tmp_path / "model", data()
        np.savez(file, x=x.numpy(), y=y.numpy(), x_test=x.numpy() + 0.1, y_test=y.numpy())
        rows = ["train", "--data", str(file), "--classes", str(CLASSES), "--range=-1,2"]
        spent = str(tmp_path / "ledger.json")
        assert main([*rows, *target, "--seed", "0", "--ledger", spent, "--out", str(out)]) == 0
        trained = json.loads(capsys.readouterr().out)
        assert trained["plan"] == planned["plan"]
        assert trained["test_accuracy"] > 0.9
        assert pv.verify(out).ok
        assert "| rows are clipped to | norm 1.5 |" in (out / "README.md").read_text()
        assert pv.load_model(out).predict(x).shape == (ROWS,)
        for options, said in (
            (
                ["--clip", "flat", "--batch-size", "3"],
                "--method sums does not go with --batch-size: it is one release.",
            ),
            (["--method", "dpsgd"], "--radius is for --method sums"),
        ):
            assert main([*rows, *target, *options, "--out", str(tmp_path / "no")]) == 2
            assert said in " ".join(capsys.readouterr().err.split())
    assert not pv.verify(out).ok  # it is unknown, once it is forgotten


THIRD_PARTY = Path(__file__).parent / "third_party"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package `class_sums`, as if it were installed: it and its metadata are on the path, also
    of processes that are started.
    """
    groups = {"privlearn.methods": {"class-sums": "class_sums:METHOD"}}
    write_distribution(tmp_path / "installed", "class_sums", groups)
    for folder in (THIRD_PARTY, tmp_path / "installed"):
        monkeypatch.syspath_prepend(str(folder))
    path = [str(THIRD_PARTY), str(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    tables: tuple[Any, ...] = (METHODS, _public._KINDS, _public._HOMES, sys.modules)
    patches = [mock.patch.dict(table) for table in tables]
    for patch in patches:
        patch.start()
    try:
        yield tmp_path
    finally:
        for patch in patches:
            patch.stop()


def test_a_method_of_another_package_by_train(installed: Path) -> None:
    x, y = data()
    rows = pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES, low=-1.0, high=2.0)
    assert "class-sums" in method_names()
    assert "class_sums" not in sys.modules  # it is imported when it is asked for
    settings = {"epsilon": 4.0, "radius": 1.5, "streams": pv.Streams.new(0)}
    result = pv.train(rows, method="class-sums", **settings)  # type: ignore[arg-type]
    assert result.ledger.event == result.plan.event()
    assert 3.9 < result.plan.guarantee(1e-5).epsilon <= 4.0
    out = pv.publish(result, installed / "model")
    assert pv.verify(out).ok
    model = pv.load_model(out)
    torch.testing.assert_close(model(x), result.model(x))
    assert (model.predict(x) == y).float().mean() > 0.9
    for wrong in ({"batch_size": 3}, {"clip": "flat"}, {"checkpoint": "kept.pt"}):
        with pytest.raises(BadInput, match=rf"{next(iter(wrong))} .*class-sums.*one release"):
            pv.train(rows, method="class-sums", **settings, **wrong)  # type: ignore[arg-type]
    # Verified by its kind alone, where nobody has asked for the method.
    verify = [sys.executable, "-m", "privlearn", "verify", str(out)]
    assert subprocess.run(verify, check=False, capture_output=True).returncode == 0
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    without["PYTHONPATH"] = str(Path(pv.__file__).parents[1])
    assert subprocess.run(verify, check=False, capture_output=True, env=without).returncode != 0


def test_a_method_of_another_package_on_the_command_line(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, (x, y) = installed / "rows.npz", installed / "model", data()
    np.savez(file, x=x.numpy(), y=y.numpy(), x_test=x.numpy() + 0.1, y_test=y.numpy())
    target = ["--method", "class-sums", "--epsilon", "4", "--radius", "1.5", "--json"]
    facts = ["--examples", "60", "--numbers", str(FEATURES), "--classes", str(CLASSES)]
    assert main(["budget", *target, *facts]) == 0
    planned = json.loads(capsys.readouterr().out)
    rows = ["train", "--data", str(file), "--classes", str(CLASSES), "--range=-1,2"]
    assert main([*rows, *target, "--seed", "0", "--out", str(out)]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["plan"] == planned["plan"]
    assert trained["test_accuracy"] > 0.9
    assert main(["verify", str(out)]) == 0
    capsys.readouterr()
    np.savez(installed / "new.npz", x=x.numpy())
    assert main(["predict", str(out), "--data", str(installed / "new.npz")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == ROWS + 1
    assert main([*rows, *target, "--batch-size", "3", "--out", str(installed / "no")]) == 2
    assert "--method class-sums does not go with --batch-size" in flat(capsys)
    assert main([*rows, "--method", "class-sum", "--epsilon", "4", "--out", "no"]) == 2
    assert "invalid choice: 'class-sum'" in flat(capsys)
    # Segmentation is what --method pate does with maps, and no --method of its own.
    assert main([*rows, "--method", "segmentation", "--epsilon", "4", "--out", "no"]) == 2
    assert "invalid choice: 'segmentation'" in flat(capsys)


def flat(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_broken_package_does_not_break_the_methods_of_others(installed: Path) -> None:
    broken = {
        "broken": "no_such_module:METHOD",
        "odd": "json:loads",
        "renamed": "class_sums:METHOD",
    }
    write_distribution(installed / "installed", "broken_package", {"privlearn.methods": broken})
    with pytest.warns(PrivacyWarning) as caught:
        assert {*BUILT_IN, "class-sums", "segmentation"} == installed_methods().keys()
    said = [str(warning.message) for warning in caught]
    assert len(said) == len(broken)
    for name in broken:
        assert any(f"entry point {name!r}" in text for text in said), said
        with pytest.raises(BadInput, match=f"entry point {name!r}"):
            find_method(name)
    assert any("no_such_module:METHOD of broken_package" in text for text in said), said
    assert find_method("class-sums").name == "class-sums"
    with pytest.raises(BadInput, match=r"expected one of dpsgd, .*class-sums, broken"):
        find_method("guessing")


def test_two_packages_with_a_method_of_one_name_are_refused(installed: Path) -> None:
    other = {"privlearn.methods": {"class-sums": "other:METHOD", "dpsgd": "other:METHOD"}}
    write_distribution(installed / "installed", "other_package", other)
    with pytest.raises(BadInput, match=r"two installed packages .* of class_sums and .*other"):
        find_method("class-sums")
    assert find_method("dpsgd") is METHODS["dpsgd"]  # those of privlearn itself come first


def test_teachers_of_a_made_up_recipe(made_up: SimpleNamespace, tmp_path: Path) -> None:
    x, y = data()
    asked = pv.teachers.PatePlan(teachers=10, queries=20, aggregate=pv.teachers.Votes(CLASSES))
    wanted = asked.calibrate(epsilon=8.0, delta=1e-5)
    student = pv.teachers.Student(
        lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES)), epochs=2
    )
    teachers = pv.teachers.Trained((x, y), made_up.recipe, 10)
    result = pv.pate(wanted, teachers, None, x[:20] + 0.01, student, streams=pv.Streams.new(0))
    assert result.ledger.event == wanted.event()
    out = pv.publish(result, tmp_path / "model")
    assert pv.verify(out).ok


def test_a_made_up_study(made_up: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    home = ModuleType("privlearn_studies.made_up")
    home.run = made_up.study  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    own = registry.Study("coin", "made up", "what a coin costs", "made_up:run", False)
    monkeypatch.setattr(registry, "STUDIES", (*registry.STUDIES, own))
    (row,) = registry.find("coin").run(quick=True).rows
    assert row.ours == row.paper


def test_what_is_made_up_is_forgotten() -> None:
    assert "backwards" not in _public.kinds(Sampler)
    assert replace(pv.Poisson(0.5)) in (pv.Poisson(0.5),)
