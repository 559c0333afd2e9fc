"""`privlearn train --method dpmac`: what differs from DP-SGD."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import torch

from privlearn import schedules
from privlearn.accounting.ledger import Ledger
from privlearn.cli import screen, training
from privlearn.cli.planning import make_plan
from privlearn.clipping.derivative_bounds import Derivatives
from privlearn.data import Dataset
from privlearn.errors import BadInput
from privlearn.mac.coordinates import Coordinates
from privlearn.mac.dpmac import dpmac
from privlearn.plan import Plan
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.result import Result
from privlearn.streams import Streams

#: The paper's settings for its classifier (Harder et al. 2019, Table 2): threshold, learning rate of its 1,800 steps, batches.
_THRESHOLD, _RATE, _BATCHES, _LEAST_BATCH = 0.3, 0.01, 60, 256
_Z_RATE = 0.003
#: With sweeps, which need a large one.
_MU = 100.0
_STEPS, _LARGEST_RATE = 1800, 0.05


def require_combinable(options: argparse.Namespace) -> None:
    """Refuse options that only DP-SGD has, and the other way round.

    Raises:
        BadInput: naming the first of them.
    """
    if options.method != "dpmac":
        alien = next(
            (f"--{name.replace('_', '-')}" for name in ("z_steps", "z_rate") if vars(options)[name] is not None), None
        )
        if alien:
            raise BadInput(f"{alien} is for --method dpmac: leave it out, or add --method dpmac")
        return
    if options.z_rate is not None and options.z_steps is None:
        raise BadInput("--z-rate is that of Adam's steps on the coordinates: add --z-steps 30, or leave it out")
    for given, option in (
        (options.tune is not None, "--tune, which trains by dpsgd"),
        (options.public is not None, "--public, which is for validation schedules"),
        (options.clip != "flat", f"--clip {options.clip}: derivatives are clipped layer by layer, at --clip-norm"),
        (options.precision != "float32", f"--precision {options.precision}"),
        (options.explain, "--explain, which is of DP-SGD's rules"),
        (options.average is not None, "--average"),
        (options.views is not None or options.augment is not None, "--views and --augment"),
        (options.label_smoothing is not None, "--label-smoothing"),
    ):
        if given:
            raise BadInput(f"--method dpmac does not go with {option}. Leave it out, or train by dpsgd")


def mac_plan(options: argparse.Namespace, examples: int) -> Plan:
    """The plan that the options describe, settled: smaller batches than for DP-SGD unless their size is given.

    Args:
        options: what was given.
        examples: the public number of examples that rates are relative to.
    """
    size = options.batch_size
    if size is None and options.sampling != "full":
        size = min(examples, max(_LEAST_BATCH, round(examples / _BATCHES)))
    plan = make_plan(argparse.Namespace(**vars(options) | {"batch_size": size}), examples)
    return replace(plan, clip=Derivatives(_THRESHOLD if options.clip_norm is None else options.clip_norm))


def _rate(plan: Plan, examples: int) -> float:
    """Adam's learning rate: the paper's for as many steps as it takes, and more for fewer; of public numbers alone."""
    steps = plan.epochs * plan.sampling.steps(examples)
    return min(_LARGEST_RATE, _RATE * max(1.0, math.sqrt(_STEPS / steps)))


def _coordinates(options: argparse.Namespace) -> tuple[Coordinates, float]:
    """How coordinates are fitted, and the mu that goes with it: one sweep, or the paper's way where steps are given."""
    if options.z_steps is None:
        return Coordinates(), _MU
    return Coordinates(options.z_steps, _Z_RATE if options.z_rate is None else options.z_rate, "adam"), 1.0


def _rates(options: argparse.Namespace, plan: Plan) -> schedules.Schedule:
    """The learning rate over the run: as given, or falling to a fifth (the paper's 0.95 an epoch, over 30)."""
    falling = schedules.Exponential(k=math.log(5) / plan.epochs)
    return falling if options.lr_schedule is None else schedules.parse_rates(options.lr_schedule)


def train(
    options: argparse.Namespace,
    plan: Plan,
    data: Dataset,
    kind: type[torch.optim.Optimizer],
    streams: Streams,
    ledger: Ledger | None,
    checkpoint: Checkpoint,
) -> Result:
    """Train, with a progress bar."""
    if kind is torch.optim.SGD and options.learning_rate is None:
        raise BadInput(
            "--method dpmac has no rule for SGD's learning rate: give --learning-rate, or leave out --optimizer"
        )
    rate = _rate(plan, options.examples or data.examples)
    own = argparse.Namespace(**vars(options) | {"learning_rate": options.learning_rate or rate})
    coordinates, mu = _coordinates(options)
    classes = data.classes
    assert classes is not None
    with screen.progress_bar("training") as progress:
        return dpmac(
            plan,
            lambda shape: training.network(options.model, shape, classes, streams),
            "binary_cross_entropy",
            data,
            optimizer=training.optimizer(own, kind, plan, options.examples or data.examples, data),
            learning_rate_schedule=_rates(options, plan),
            coordinates=coordinates,
            mu=mu,
            streams=streams,
            microbatch=options.microbatch,
            device=options.device,
            progress=progress,
            ledger=ledger,
            checkpoint=checkpoint,
        )
