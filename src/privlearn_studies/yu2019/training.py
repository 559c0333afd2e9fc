"""One training run of the studies of Yu et al. 2019, section V-B."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn

from privlearn._checks import one_of
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.clipping.clips import Clip, Flat, PerLayer
from privlearn.core.plan import Plan
from privlearn.core.sampling import FullBatch, Partition, Sampler, Shuffle
from privlearn.core.schedules import parse, parse_rates, spec
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.models.networks import build
from privlearn.training.dpsgd import dpsgd
from privlearn_studies.data import TASKS, Rows, Watch, accuracy, descend, features
from privlearn_studies.runs import Call, cached

#: How a setting's noise scale and clip are read: see `Setting.clip`.
CLIPS = ("as written", "layer", "flat")
RHO = TASKS["mnist"].rho
_DELTA = 1e-5
_WATCHED = 10_000
_QUICK = 6_000


@final
@dataclass(frozen=True)
class Setting:
    """What distinguishes one line of a study from another; a task's own settings fill in what is
    left at None.

    Attributes:
        task: the name of the task.
        schedule: the noise over epochs as a spec; None: plain training, without clipping and noise.
        epochs: how many epochs at most; None: until the budget ends.
        clip: "as written": every layer to the clip norm, and noise of the scale times that norm,
            which is 1 / sqrt(layers) of the noise that the scale promises, so that the true cost is
            `layers` times the paper's; "layer": every layer, with the noise that it takes; "flat":
            the whole gradient.
        clip_norm: where to clip.
        hidden: widths of the hidden layers.
        learning_rate: at the start.
        learning_rates: its schedule, as a spec.
        rho: the budget of training in the paper's own reckoning; the projection comes on top.
        epsilon: a target at delta 1e-5 for everything together, projection included, which the
            noise is solved for; in place of `rho`.
        sampling: "shuffle" or "partition".
        batch_size: examples in a batch.
        scale: of the features; see `data.features`.
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
    rho: float | None = None
    epsilon: float | None = None
    sampling: str = "shuffle"
    batch_size: int | None = None
    scale: str = "raw"
    first: int | None = None


def _same(setting: Setting) -> Setting:
    """The same run in one form: what is the task's own is left out, and schedules are written in
    one way.
    """
    task = TASKS[one_of("the task", setting.task, list(TASKS))]
    names = ("clip_norm", "hidden", "learning_rate", "rho", "batch_size")
    usual: dict[str, Any] = {
        name: None for name in names if getattr(setting, name) == getattr(task, name)
    }
    schedule = setting.schedule and spec(parse(setting.schedule))
    return replace(
        setting, schedule=schedule, learning_rates=spec(parse(setting.learning_rates)), **usual
    )


@cached("yu", _same)
def train(seed: int, setting: Setting) -> dict[str, Any]:
    """Train with `seed`, which fixes weights, batches and noise: equal seeds make pairs.

    Training accuracies are private figures: printed in a study of public data, never published.

    Returns:
        test: test accuracy after each epoch.
        train: of plain training, accuracy on the first 10,000 training rows after each epoch.
        train_end: accuracy on all training rows at the end.
        noise: the noise scale of each epoch as the paper states it; empty without privacy.
        rho: what the run's releases are worth in truth, the projection included; None where there
        is no such figure.
        epsilon: the same at delta 1e-5; None without privacy.
    """
    task = TASKS[one_of("the task", setting.task, list(TASKS))]
    streams = Streams.new(seed)
    validate = setting.schedule is not None and setting.schedule.startswith("validation")
    layers = len(task.hidden if setting.hidden is None else setting.hidden) + 1
    plan = plan_of(setting, layers) if setting.schedule else None
    ledger = Ledger(plan.budget if plan else None)
    neighbours = plan.neighbours if plan else Adjacency.ZERO_OUT
    if plan is not None and task.pca is not None:
        ledger.approve(Releases(task.pca.event(), neighbours), replace(plan, front=()))
    rows = features(task, seed, validate, setting.first, setting.scale, ledger, neighbours)
    network = _network(setting, rows, streams)
    steps = _sampler(setting).steps(len(rows.x))
    test: list[float] = []
    seen: list[float] = []

    def watch(done: int, total: int) -> None:
        if done % steps == 0:
            test.append(accuracy(network, rows.x_test, rows.y_test))
            if plan is None:
                seen.append(accuracy(network, rows.x[:_WATCHED], rows.y[:_WATCHED]))

    rate = task.learning_rate if setting.learning_rate is None else setting.learning_rate
    noise: list[float] = []
    if plan is None:
        _plainly(setting, network, rows, rate, streams, watch)
    else:
        result = dpsgd(
            replace(plan, front=()),
            network,
            nn.CrossEntropyLoss(reduction="none"),
            (rows.x, rows.y),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
            learning_rate_schedule=parse_rates(setting.learning_rates),
            ledger=ledger,
            streams=streams,
            callbacks=Watch(watch),
            validation=Dataset(rows.x_valid, rows.y_valid, public=True) if validate else None,
        )
        sigmas = result.facts["noise_multipliers"] if plan.filter else plan.noise_multipliers()
        noise = [sigma * _written(setting, layers) for sigma in sigmas]
    spent = None if plan is None else ledger.guarantee(_DELTA)
    return {
        "test": test,
        "train": seen,
        "train_end": accuracy(network, rows.x, rows.y),
        "noise": noise,
        "rho": spent and spent.rho,
        "epsilon": spent and spent.epsilon,
    }


def mnist(schedule: str | None, quick: bool = False, **others: Any) -> Call:
    """A run of the MNIST task; a quick one has a tenth of the rows."""
    return train.at(Setting("mnist", schedule, **{"first": _QUICK if quick else None} | others))


def uniform(epochs: int) -> str:
    """The constant noise with which the budget lasts `epochs` epochs: sigma = sqrt(epochs / (2
    rho)).
    """
    return f"constant:start={math.sqrt(epochs / (2 * RHO))!r}"


def plan_of(setting: Setting, layers: int) -> Plan:
    """The run's plan, in true noise multipliers and true costs."""
    task = TASKS[setting.task]
    assert setting.schedule is not None
    one_of("the clip", setting.clip, list(CLIPS))
    norm = task.clip_norm if setting.clip_norm is None else setting.clip_norm
    clip: Clip = Flat(norm) if setting.clip == "flat" else PerLayer(norm)
    before = () if task.pca is None else (task.pca,)
    shape = parse(setting.schedule)
    sampling = _sampler(setting)
    # Public data, whose number of rows is none of the guarantee's secrets; none are held back from
    # a partition's runs.
    examples = setting.first or task.examples if isinstance(sampling, Partition) else None
    if setting.epsilon is not None:
        plan = Plan(
            sampling,
            schedule=shape,
            clip=clip,
            front=before,
            epochs=setting.epochs or 30,
            examples=examples,
        )
        return plan.calibrate(epsilon=setting.epsilon, delta=_DELTA)
    share = _written(setting, layers)
    rho = (task.rho if setting.rho is None else setting.rho) * share**2
    rho += sum(0.5 / release.noise_multiplier**2 for release in before)
    plan = Plan(
        sampling, schedule=shape.scaled(1 / share), clip=clip, front=before, examples=examples
    )
    return plan.within(Budget(rho=rho), setting.epochs)


def _written(setting: Setting, layers: int) -> float:
    """The paper's noise scale over the noise multiplier in truth."""
    return math.sqrt(layers) if setting.clip == "as written" else 1.0


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
    widths = "mlp:" + ",".join(str(width) for width in hidden)
    return build(widths, tuple(rows.x.shape[1:]), task.classes, streams.initialisation)


def _plainly(
    setting: Setting, network: nn.Module, rows: Rows, rate: float, streams: Streams, watch: Any
) -> None:
    """Plain SGD on the mean loss of each shuffled batch."""
    sampler, schedule = _sampler(setting), parse_rates(setting.learning_rates)
    steps = sampler.steps(len(rows.x))
    batches = (
        s for _ in range(setting.epochs or 1) for s in sampler.draw(len(rows.x), streams.sampling)
    )
    descend(
        network,
        rows,
        nn.functional.cross_entropy,
        torch.optim.SGD(network.parameters(), lr=rate),
        lambda step: rate * schedule(step / steps) / schedule(0),
        batches,
        watch,
    )
