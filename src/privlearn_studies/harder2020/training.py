"""One training run of the studies of Harder et al. 2019."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import one_of
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.derivative_bounds import Derivatives, Histogram
from privlearn.core.plan import Plan
from privlearn.core.sampling import FixedOrder, Partition, Poisson, Sampler
from privlearn.core.schedules import Constant, parse_rates
from privlearn.core.streams import Streams
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.dpmac import dpmac
from privlearn.models.networks import build
from privlearn.training.dpsgd import dpsgd
from privlearn.transforms.pca import PrivatePCA
from privlearn_studies.data import TASKS, Rows, Task, Watch, accuracy, descend, features, usps
from privlearn_studies.runs import cached

DELTA = 1e-5
_HIDDEN = {"mnist": (300,), "usps": (300, 100, 20, 100, 300)}
_EACH_DIGIT = 500
#: The mean pixel of MNIST's training images, from 0 to 1, as torchvision's examples print it.
_MEAN_PIXEL = 0.1307
_HELD = 5000


@final
@dataclass(frozen=True)
class Setting:
    """What distinguishes one line of a study from another.

    Attributes:
        task: "mnist", a classifier behind a private projection, or "usps", an autoencoder.
        epochs: passes over the data.
        batch_size: expected examples in a batch.
        rate: the learning rate at the start.
        learning_rates: its schedule, as a spec that starts at 1.
        threshold: of derivatives, one or one for each layer; of the whole gradient for DP-SGD.
        method: "dpmac" or "dpsgd".
        noise: the noise multiplier as the paper states it; None: solved for, or no noise.
        epsilon: what everything together may cost at delta 1e-5, projection included; None:
            whatever `noise` costs.
        pca_noise: the noise multiplier of the private projection.
        sampling: "poisson", "partition", or "fixed" for the batches of the released code.
        optimizer: "adam" or "sgd".
        momentum: of SGD.
        weight_decay: of either.
        gain: initial weights as Glorot's normal ones times this, and biases of 0; None: PyTorch's
            own.
        middle: biases of the narrowest hidden layer at the start, where `gain` is given.
        mu: the weight of hidden layers' objectives in the fit of coordinates.
        z_steps: steps of that fit.
        z_rate: their learning rate.
        z_optimizer: "adam" or "sgd".
        shares: of the unit of sensitivity, layer by layer; empty: evenly.
        learned: what replaces DP-MAC's thresholds in the course of the run, which `epsilon` counts.
        first: how many training rows are used; None: all.
        features: of MNIST behind the projection: "whitened" divides each by its spread and brings
            rows to one length; "released" centres and scales pixels before the projection, as the
            paper's released code does, and does nothing after it.
        held: whether the last 5,000 training images of MNIST are held back, and stand in for the
            test images; of USPS the 1,000 images do that are in neither set.
    """

    task: str
    epochs: int
    batch_size: int
    rate: float
    learning_rates: str
    threshold: float | tuple[float, ...]
    method: str = "dpmac"
    noise: float | None = None
    epsilon: float | None = None
    pca_noise: float | None = None
    sampling: str = "poisson"
    optimizer: str = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    gain: float | None = None
    middle: float = 0.0
    mu: float = 1.0
    z_steps: int = 30
    z_rate: float = 0.003
    z_optimizer: str = "adam"
    shares: tuple[float, ...] = ()
    learned: Histogram | None = None
    first: int | None = None
    features: str = "whitened"
    held: bool = False

    @property
    def private(self) -> bool:
        """Whether there is noise in training."""
        return self.noise is not None or self.epsilon is not None


@cached("dpmac")
def train(seed: int, setting: Setting) -> dict[str, Any]:
    """Train with `seed`, which fixes weights, batches and noise.

    Figures on training rows are private: printed in a study of public data, never published.

    Returns:
        test: after each epoch, test accuracy (on the images held back, where there are some); of
        autoencoders half the
            squared error of an image, summed over pixels in [0, 1].
        train: the same on the training rows.
        noise: the noise multiplier of training; None without noise.
        epsilon: what was spent in truth at delta 1e-5, projection included; None without noise.
        norms: of DP-MAC, for each epoch the mean norm of each layer's first derivatives.
        thresholds: of each layer's first derivatives, where they were learned.
    """
    return trained(setting, seed)[0]


def trained(setting: Setting, seed: int) -> tuple[dict[str, Any], nn.Module]:
    """What `train` returns, and the network behind the projection."""
    one_of("the method", setting.method, ["dpmac", "dpsgd"])
    one_of("the task", setting.task, list(_HIDDEN))
    streams = Streams.new(seed)
    plan = plan_of(setting)
    ledger = Ledger(plan.budget)
    if setting.private and plan.releases:
        ahead = [Releases(release.event(), plan.neighbours) for release in plan.releases]
        ledger.approve(*ahead, replace(plan, front=()))
    rows = _rows(setting, seed, ledger, plan)
    network = _network(setting, rows, streams)
    measure = accuracy if setting.task == "mnist" else _error
    test: list[float] = []
    seen: list[float] = []

    def watch(done: int, total: int) -> None:
        if done % plan.sampling.steps(len(rows.x)) == 0:
            test.append(measure(network, rows.x_test, rows.y_test))
            seen.append(measure(network, rows.x, rows.y))

    seen_of_layers: dict[str, Any] = {"norms": []}
    if setting.method == "dpsgd" and not setting.private:
        _plainly(setting, plan, network, rows, streams, watch)
    else:
        alike: dict[str, Any] = {
            "optimizer": lambda parameters: _optimizer(setting, parameters),
            "learning_rate_schedule": parse_rates(setting.learning_rates),
            "ledger": ledger,
            "streams": streams,
            "callbacks": Watch(watch),
        }
        method = _by_layers if setting.method == "dpmac" else _by_gradients
        seen_of_layers = method(setting, replace(plan, front=()), network, rows, alike)
    reached = {
        "test": test,
        "train": seen,
        **seen_of_layers,
        "noise": plan.noise_multipliers()[0] if setting.private else None,
        "epsilon": ledger.guarantee(DELTA).epsilon if setting.private else None,
    }
    return reached, network


def falling(decay: float) -> str:
    """The spec of learning rates that are multiplied by `decay` in each epoch."""
    return f"exp:k={-math.log(decay)!r},start=1"


def linearly(epochs: int) -> str:
    """The spec of learning rates that fall to 0 over `epochs`."""
    return f"poly:k=1,end=0,period={epochs},start=1"


def plan_of(setting: Setting) -> Plan:
    """The run's plan, projection included."""
    clip = _clip(setting)
    before = () if setting.pca_noise is None else (PrivatePCA(60, setting.pca_noise),)
    plan = Plan(
        _sampler(setting),
        epochs=setting.epochs,
        clip=clip,
        front=before,
        examples=examples_of(setting),
    )
    if setting.noise is not None:
        return replace(plan, schedule=Constant(start=setting.noise))
    return plan if setting.epsilon is None else plan.calibrate(epsilon=setting.epsilon, delta=DELTA)


def examples_of(setting: Setting) -> int:
    """How many rows are trained on."""
    whole = (
        TASKS["mnist"].examples - (_HELD if setting.held else 0)
        if setting.task == "mnist"
        else 10 * _EACH_DIGIT
    )
    return setting.first or whole


def task_of(setting: Setting) -> Task:
    """The classifier's task, with the projection of the setting."""
    noise = setting.pca_noise
    one_of("the features", setting.features, ["whitened", "released"])
    rows = _centre_pixels if setting.features == "released" else TASKS["mnist"].rows
    return replace(TASKS["mnist"], pca=None if noise is None else PrivatePCA(60, noise), rows=rows)


def _centre_pixels(seed: int, validate: bool) -> Rows:
    """MNIST's rows with pixels centred and scaled so that their largest is 1.

    The released code subtracts the mean of the training pixels. MNIST's mean is a published number,
    which is subtracted here: nothing is computed from the rows.
    """
    rows = TASKS["mnist"].rows(seed, validate)
    x, x_valid, x_test = (
        (x - _MEAN_PIXEL) / (1 - _MEAN_PIXEL) for x in (rows.x, rows.x_valid, rows.x_test)
    )
    return replace(rows, x=x, x_valid=x_valid, x_test=x_test)


def _clip(setting: Setting) -> Derivatives | Flat:
    if setting.method == "dpmac":
        return Derivatives(setting.threshold, shares=setting.shares, learned=setting.learned)
    assert not isinstance(setting.threshold, tuple)
    return Flat(setting.threshold)


def _sampler(setting: Setting) -> Sampler:
    examples = examples_of(setting)
    if one_of("the sampling", setting.sampling, ["poisson", "partition", "fixed"]) == "fixed":
        return FixedOrder(setting.batch_size)
    batches = round(examples / setting.batch_size)
    return (
        Partition(batches)
        if setting.sampling == "partition"
        else Poisson(setting.batch_size / examples)
    )


def _rows(setting: Setting, seed: int, ledger: Ledger, plan: Plan) -> Rows:
    if setting.task == "mnist":
        scale = "raw" if setting.features == "released" else setting.features
        rows = features(
            task_of(setting), seed, setting.held, setting.first, scale, ledger, plan.neighbours
        )
        return replace(rows, x_test=rows.x_valid, y_test=rows.y_valid) if setting.held else rows
    return _images(seed, setting.first, setting.held)


def _images(seed: int, first: int | None, held: bool) -> Rows:
    """500 images of each digit to train on and 500 to test on (or the 100 left over), drawn afresh
    for each seed.

    Targets are the images.
    """
    tested = slice(2 * _EACH_DIGIT, None) if held else slice(_EACH_DIGIT, 2 * _EACH_DIGIT)
    x, y = usps()
    rng = np.random.default_rng([seed, _EACH_DIGIT])
    by_digit = [rng.permutation(np.flatnonzero(y == digit)) for digit in range(10)]
    train, test = (
        rng.permutation(np.concatenate([each[part] for each in by_digit]))
        for part in (slice(_EACH_DIGIT), tested)
    )
    parts = [x[torch.from_numpy(at)] for at in (train[:first], test)]
    nothing = parts[0][:0]
    return Rows(parts[0], parts[0], nothing, nothing, parts[1], parts[1])


def _network(setting: Setting, rows: Rows, streams: Streams) -> nn.Module:
    spec = "mlp:" + ",".join(str(width) for width in _HIDDEN[setting.task])
    outputs = 10 if setting.task == "mnist" else rows.x.shape[1]
    network = build(spec, tuple(rows.x.shape[1:]), outputs, streams.initialisation)
    if setting.gain is not None:
        _reset(network, setting.gain, setting.middle, streams)
    return network


@torch.no_grad()
def _reset(network: nn.Module, gain: float, middle: float, streams: Streams) -> None:
    """Initial weights of the paper's kind (Glorot's, normal), times `gain`; biases as the setting
    says.
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    narrowest = min(layer.out_features for layer in layers)
    with torch.random.fork_rng():
        torch.manual_seed(int(streams.initialisation.integers(2**63)))
        for layer in layers:
            nn.init.xavier_normal_(layer.weight, gain)
            nn.init.constant_(layer.bias, middle if layer.out_features == narrowest else 0.0)


def _by_layers(
    setting: Setting, plan: Plan, network: nn.Module, rows: Rows, alike: Any
) -> dict[str, Any]:
    """Train by DP-MAC; the mean norm of each layer's derivatives, epoch by epoch, and learned
    thresholds.
    """
    result = dpmac(
        plan,
        network,
        "binary_cross_entropy" if setting.task == "mnist" else "mse",
        (rows.x, rows.y),
        coordinates=Coordinates(setting.z_steps, setting.z_rate, setting.z_optimizer),
        mu=setting.mu,
        private=setting.private,
        **alike,
    )
    norms = {"norms": result.private_diagnostics["norms"]}
    return norms | (
        {"thresholds": result.facts["thresholds"][0]} if "thresholds" in result.facts else {}
    )


def _by_gradients(
    setting: Setting, plan: Plan, network: nn.Module, rows: Rows, alike: Any
) -> dict[str, Any]:
    """Train by DP-SGD."""
    dpsgd(plan, network, _losses(setting), (rows.x, rows.y), **alike)
    return {"norms": []}


def _plainly(
    setting: Setting, plan: Plan, network: nn.Module, rows: Rows, streams: Streams, watch: Any
) -> None:
    """Plain descent on the mean loss of each batch."""
    losses, schedule, steps = (
        _losses(setting),
        parse_rates(setting.learning_rates),
        plan.sampling.steps(len(rows.x)),
    )
    batches = (
        s for _ in range(setting.epochs) for s in plan.sampling.draw(len(rows.x), streams.sampling)
    )
    descend(
        network,
        rows,
        lambda outputs, targets: losses(outputs, targets).sum() / setting.batch_size,
        _optimizer(setting, network.parameters()),
        lambda step: setting.rate * schedule(step / steps),
        batches,
        watch,
    )


def _optimizer(setting: Setting, parameters: Any) -> torch.optim.Optimizer:
    if one_of("the optimizer", setting.optimizer, ["adam", "sgd"]) == "adam":
        return torch.optim.Adam(parameters, lr=setting.rate, weight_decay=setting.weight_decay)
    return torch.optim.SGD(
        parameters, lr=setting.rate, momentum=setting.momentum, weight_decay=setting.weight_decay
    )


def _losses(setting: Setting) -> Callable[[Tensor, Tensor], Tensor]:
    """Each example's loss."""
    return nn.CrossEntropyLoss(reduction="none") if setting.task == "mnist" else half_squares


def half_squares(outputs: Tensor, wanted: Tensor) -> Tensor:
    """Half the squared error of each image, summed over its pixels: the figure in the paper's table
    (by its code).
    """
    return (outputs - wanted).square().sum(1) / 2


def _error(network: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(half_squares(network(x), y).mean())
