"""One training run of a study of Yu et al.: from its setting to what it reached."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn._checks import one_of
from privlearn.accounting.budget import Budget
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Ledger, Releases
from privlearn.clipping.clips import Clip, Flat, PerLayer
from privlearn.data.dataset import Dataset
from privlearn.descent.dpsgd import dpsgd
from privlearn.models.networks import build
from privlearn.plan import Plan
from privlearn.sampling import FullBatch, Partition, Sampler, Shuffle
from privlearn.schedules import parse, parse_rates, spec
from privlearn.streams import Streams
from privlearn_studies.tasks import TASKS, Rows, features

#: How a setting's noise scale and clip are read: see `Setting.clip`.
CLIPS = ("as written", "layer", "flat")
_DELTA = 1e-5
_WATCHED = 10_000
_AT_ONCE = 5000


@final
@dataclass(frozen=True)
class Setting:
    """What distinguishes one line of a study from another; a task's own settings fill in what is left at None.

    Attributes:
        task: the name of the task.
        schedule: the noise over epochs as a spec; None: plain training, without clipping and noise.
        epochs: how many epochs at most; None: until the budget ends.
        clip: "as written": every layer to the clip norm, and noise of the scale times that norm, which is
            1 / sqrt(layers) of the noise that the scale promises, so that the true cost is `layers` times the paper's;
            "layer": every layer, with the noise that it takes; "flat": the whole gradient.
        clip_norm: where to clip.
        hidden: widths of the hidden layers.
        learning_rate: at the start.
        learning_rates: its schedule, as a spec.
        momentum: of SGD.
        rho: the budget of training in the paper's own reckoning; the projection comes on top.
        epsilon: a target at delta 1e-5 for everything together, projection included, which the noise is solved for; in
            place of `rho`.
        sampling: "shuffle" or "partition".
        batch_size: examples in a batch.
        scale: of the features; see `tasks.features`.
        first: how many training rows are used; None: all.
    """

    task: str
    schedule: str | None
    epochs: int | None = None
    clip: str = "as written"
    clip_norm: float | None = None
    hidden: tuple[int, ...] | None = None
    learning_rate: float | None = None
    learning_rates: str = "constant"
    momentum: float = 0.0
    rho: float | None = None
    epsilon: float | None = None
    sampling: str = "shuffle"
    batch_size: int | None = None
    scale: str = "raw"
    first: int | None = None

    def key(self, seed: int) -> dict[str, Any]:
        """The run's settings as plain values, with the task's own filled in; what nobody set is left out."""
        task = asdict(TASKS[self.task])
        found: dict[str, Any] = {n: task.get(n) if value is None else value for n, value in asdict(self).items()}
        if self.epsilon is not None or self.schedule is None:
            del found["rho"]
        for name in ("schedule", "learning_rates"):
            if (given := found[name]) is not None:
                found[name] = spec(parse(given))
        return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items() if v is not None} | {"seed": seed}

    def run(self, seed: int) -> Outcome:
        """Train with `seed`; see `train`."""
        return train(self, seed)

    def outcome(self, kept: dict[str, Any]) -> Outcome:
        """What a run reached, from its fields."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
        return Outcome(**fields)


@final
@dataclass(frozen=True)
class Outcome:
    """What a run reached. Training accuracies are private figures: shown in a study on public data, never published.

    Attributes:
        test: test accuracy after each epoch.
        train: of plain training, accuracy on the first 10,000 training rows after each epoch.
        train_end: accuracy on all training rows at the end.
        noise: the noise scale of each epoch as the paper states it; empty without privacy.
        rho: what the run's releases are worth in truth, the projection included; None where there is no such figure.
        epsilon: the same at delta 1e-5; None without privacy.
    """

    test: tuple[float, ...]
    train: tuple[float, ...]
    train_end: float
    noise: tuple[float, ...]
    rho: float | None
    epsilon: float | None

    @property
    def epochs(self) -> int:
        """How many epochs ran."""
        return len(self.test)


def train(setting: Setting, seed: int, progress: Callable[[int, int], None] | None = None) -> Outcome:
    """Run `setting` with `seed`, which fixes weights, batches and noise: equal seeds make pairs."""
    task = TASKS[one_of("the task", setting.task, list(TASKS))]
    streams = Streams.new(seed)
    validate = setting.schedule is not None and setting.schedule.startswith("validation")
    layers = len(task.hidden if setting.hidden is None else setting.hidden) + 1
    plan = _plan(setting, layers) if setting.schedule else None
    ledger = Ledger(plan.budget if plan else None)
    neighbours = plan.neighbours if plan else Adjacency.ZERO_OUT
    if plan is not None and task.pca is not None:
        ledger.approve(Releases(task.pca.event(), neighbours), replace(plan, front=()))
    rows = features(task, seed, validate, setting.first, setting.scale, ledger, neighbours)
    network = _network(setting, rows, streams)
    rate = task.learning_rate if setting.learning_rate is None else setting.learning_rate
    watch = _Watch(network, rows, plan is None)
    if plan is None:
        _descend(setting, network, rows, rate, streams, watch, progress)
        noise: list[float] = []
    else:
        steps = plan.sampling.steps(len(rows.x))
        result = dpsgd(
            replace(plan, front=()),
            network,
            nn.CrossEntropyLoss(reduction="none"),
            (rows.x, rows.y),
            optimizer=lambda found: torch.optim.SGD(found, lr=rate, momentum=setting.momentum),
            learning_rate_schedule=parse_rates(setting.learning_rates),
            ledger=ledger,
            streams=streams,
            progress=watch.every(steps, progress),
            validation=Dataset(rows.x_valid, rows.y_valid, public=True) if validate else None,
        )
        noise = [sigma * _written(setting, layers) for sigma in result.settings["noise_multipliers"]]
    found = None if plan is None else ledger.guarantee(_DELTA)
    return Outcome(
        tuple(watch.test),
        tuple(watch.train),
        accuracy(network, rows.x, rows.y),
        tuple(noise),
        found.rho if found else None,
        found.epsilon if found else None,
    )


def _written(setting: Setting, layers: int) -> float:
    """The paper's noise scale over the noise multiplier in truth."""
    return math.sqrt(layers) if setting.clip == "as written" else 1.0


def _plan(setting: Setting, layers: int) -> Plan:
    """The run's plan, in true noise multipliers and true costs."""
    task = TASKS[setting.task]
    assert setting.schedule is not None
    one_of("the clip", setting.clip, list(CLIPS))
    norm = task.clip_norm if setting.clip_norm is None else setting.clip_norm
    clip: Clip = Flat(norm) if setting.clip == "flat" else PerLayer(norm)
    before = () if task.pca is None else (task.pca,)
    shape = parse(setting.schedule)
    sampling = _sampler(setting)
    # Public data, whose number of rows is none of the guarantee's secrets; none are held back from a partition's runs.
    examples = setting.first or task.examples if isinstance(sampling, Partition) else None
    if setting.epsilon is not None:
        plan = Plan(sampling, schedule=shape, clip=clip, front=before, epochs=setting.epochs or 30, examples=examples)
        return plan.calibrate(epsilon=setting.epsilon, delta=_DELTA)
    share = _written(setting, layers)
    rho = (task.rho if setting.rho is None else setting.rho) * share**2
    rho += sum(0.5 / release.noise_multiplier**2 for release in before)
    plan = Plan(sampling, schedule=shape.scaled(1 / share), clip=clip, front=before, examples=examples)
    return plan.within(Budget(rho=rho), setting.epochs)


def _sampler(setting: Setting) -> Sampler:
    task = TASKS[setting.task]
    size = task.batch_size if setting.batch_size is None else setting.batch_size
    if size is None:
        return FullBatch()
    if setting.sampling == "partition":
        return Partition(round((setting.first or task.examples) / size))
    return Shuffle(size)


def _network(setting: Setting, rows: Rows, streams: Streams) -> nn.Module:
    task = TASKS[setting.task]
    hidden = task.hidden if setting.hidden is None else setting.hidden
    spec = "mlp:" + ",".join(str(width) for width in hidden)
    return build(spec, tuple(rows.x.shape[1:]), task.classes, streams.initialisation)


def _descend(
    setting: Setting,
    network: nn.Module,
    rows: Rows,
    rate: float,
    streams: Streams,
    watch: _Watch,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Plain SGD on the mean loss of each shuffled batch: no clipping, no noise, no privacy."""
    sampler = _sampler(setting)
    descent = torch.optim.SGD(network.parameters(), lr=rate, momentum=setting.momentum)
    schedule = parse_rates(setting.learning_rates)
    epochs = setting.epochs or 1
    seen = watch.every(sampler.steps(len(rows.x)), progress)
    step, steps = 0, sampler.steps(len(rows.x))
    for _ in range(epochs):
        for sample in sampler.draw(len(rows.x), streams.sampling):
            at = torch.from_numpy(sample.indices)
            loss = nn.functional.cross_entropy(network(rows.x[at]), rows.y[at])
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            descent.param_groups[0]["lr"] = rate * schedule(step / steps) / schedule(0)
            descent.step()
            step += 1
            seen(step, epochs * steps)


@final
class _Watch:
    """Takes down accuracies after each epoch."""

    def __init__(self, network: nn.Module, rows: Rows, plain: bool) -> None:
        self._network, self._rows, self._plain = network, rows, plain
        self.test: list[float] = []
        self.train: list[float] = []

    def every(self, steps: int, progress: Callable[[int, int], None] | None) -> Callable[[int, int], None]:
        """A function of (steps done, steps in all) that looks whenever `steps` more are done."""

        def see(done: int, total: int) -> None:
            if done % steps == 0:
                rows = self._rows
                self.test.append(accuracy(self._network, rows.x_test, rows.y_test))
                if self._plain:
                    self.train.append(accuracy(self._network, rows.x[:_WATCHED], rows.y[:_WATCHED]))
            if progress:
                progress(done, total)

        return see


def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of rows that `network` classifies rightly, as it is."""
    with torch.no_grad():
        parts = [slice(start, start + _AT_ONCE) for start in range(0, len(x), _AT_ONCE)]
        right = sum(int((network(x[part]).argmax(1) == y[part]).sum()) for part in parts)
    return right / len(y)
