"""`make_private` makes a private run of a model, an optimizer and a loader, as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor, nn, optim

from privlearn._checks import checked
from privlearn.core.accounting.guarantee import Adjacency, hollow
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.clips import Clip, Flat
from privlearn.core.mechanisms import matrices
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.plan import Plan
from privlearn.core.sampling import Sampler, named
from privlearn.core.schedules import Constant, NoiseSchedule, Schedule
from privlearn.core.solving import with_least_noise
from privlearn.core.streams import Streams
from privlearn.data.torch_rows import resampled
from privlearn.errors import BadInput, warn
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import ComputeArguments, require_optimizer_of, world_of
from privlearn.training import best_sampling
from privlearn.training.loop_losses import of_model
from privlearn.training.run import Run


class LoopSettings(ComputeArguments, total=False):
    """What `make_private` may be given beside a target, beyond `runs.compute.ComputeConfig`.

    Keys:
        plan: a `pv.Plan`, in place of all that it says: `epochs`, the target or the noise, clip,
            sampling, neighbours. `delta` then says where `spent` and `publish` state epsilon.
        rho: a target in zero-concentrated DP, in place of epsilon and delta.
        noise_multiplier: the noise itself, in place of a target.
        examples: the declared public number of examples; by default that of the data, which is then
            published.
        adjacency: `add_remove` (which needs `examples`), `zero_out` or `replace_one`.
        group_size: the declared most examples of one person, protected together.
        sampling: a sampler of `pv.sampling`, or its name; by default Poisson, with the loader's
            batch size expected. `best`: of those priced for the same neighbours, with any mechanism
            where none is given, what leaves the least noise in the weights. Noise that is
            correlated is tried for torch's SGD, in one process.
        schedule: of the noise over the epochs; with a target its shape.
        mechanism: `independent` noise, or noise that is correlated over steps:
            `banded:bands=8,momentum=0.9` or `mechanisms.Banded(8)`, with `cyclic-partition`,
            `cyclic-poisson` or `fixed` sampling; `bisr:bands=8` or `blt:buffers=2`, with `fixed`
            sampling.
        clip: in place of `max_grad_norm`, a clip such as `pv.clipping.PerLayer(1.0)`.
        loss: for every step; else each step is given it.
        made_up: for models and losses that refuse rows of random numbers: changes such a batch into
            one as the data are, in place of the attribute `made_up` of a loss. It never sees the
            data.
        ledger: what to charge; by default a new one with the target as its limit.
        streams: the random streams; by default seeded by the operating system.
        checkpoint: a file to keep progress in; it needs `loss`. If it is there, the run in it is
            continued.
        learning_rate_schedule: the optimizer's learning rates are multiplied by its value over its
            value at epoch 0; by default they are the script's own, which a scheduler of torch may
            change.
    """

    plan: Plan | None
    rho: float | None
    noise_multiplier: float | None
    examples: int | None
    adjacency: Adjacency | str | None
    group_size: int
    sampling: Sampler | str | None
    schedule: NoiseSchedule | None
    mechanism: Correlation | str | None
    clip: Clip | None
    loss: Callable[..., Tensor] | None
    made_up: Callable[[Any], Any] | None
    ledger: Ledger | None
    streams: Streams | None
    checkpoint: Checkpoint | str | Path | None
    learning_rate_schedule: Schedule | None


_TARGET = ("epochs", "epsilon", "delta", "max_grad_norm")
_OWN = set(LoopSettings.__annotations__) - set(ComputeArguments.__annotations__)
#: What a plan says.
_PLANNED = (
    "epsilon",
    "max_grad_norm",
    "rho",
    "noise_multiplier",
    "examples",
    "adjacency",
    "group_size",
    "sampling",
    "schedule",
    "mechanism",
    "clip",
)


@checked
def make_private(
    model: nn.Module,
    optimizer: Any,
    loader: Any,
    *,
    epochs: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    max_grad_norm: float | None = None,
    **settings: Unpack[LoopSettings],
) -> Run:
    """Make a run for your own loop: batches are drawn from the loader's rows, each step is clipped,
    charged and noised.

    `for batch in private.batches(): private.step(batch, loss)`, then `private.publish(folder)`. A
    function as a loss is one of (model, batch), where `batch` is what the loader's collate function
    makes; losses of torch.nn are of (outputs, targets).

    Guarantee: that of `pv.Run`, for the model after the last step (and after each):
    `plan.guarantee(delta)`. What `step` returns, the batches and the rows are private.

    Args:
        model: trained in place. Frozen parameters stay as they are. One made by torch.compile, or
            in DistributedDataParallel, is taken for what it was made of: gradients of single
            examples are read off its operations.
        optimizer: used as it is, with its parameter groups, its state and the schedulers that hold
            it. Each parameter that is trained has to be in it.
        loader: a DataLoader over a map-style data set. Its data set, collate_fn, workers and batch
            size are used, and batches are drawn by `sampling`. Each row is made and collated by
            itself, with torch's, numpy's and Python's generators at a seed of its own in each step.
        epochs: how many; leaving the loop earlier claims as much. A `plan` says it, too.
        epsilon: the target, with delta.
        delta: below one over the number of examples.
        max_grad_norm: the clipping norm of each example's gradient.
        settings: see `LoopSettings`. How to compute: `config=pv.ComputeConfig(...)`, or its fields
            by their names (`microbatch`, `precision`, `device`, ...).

    Raises:
        BadInput, NotPerExample, UnsupportedEvent, BudgetExceeded: the model, the optimizer, the
            loader or the plan can't be private, or the ledger has no room. Nothing was spent. The
            first step raises the same for the loss.

    Warns:
        PrivacyWarning: delta is one over the number of examples or more, or epsilon promises next
            to nothing.
    """
    model = _unwrap(model)
    require_optimizer_of(optimizer, model)
    rows, batch_size = resampled(loader)
    options: dict[str, Any] = {name: settings.get(name) for name in _OWN}
    computed = {name: value for name, value in settings.items() if name not in _OWN}
    config = ComputeConfig.of(computed, (*_TARGET, *sorted(_OWN)))
    plan = options["plan"]
    if plan is not None:
        _require_planned(
            plan, epochs, {**options, "epsilon": epsilon, "max_grad_norm": max_grad_norm}
        )
    elif epochs is None:
        raise BadInput("epochs is missing: give the number of passes over the loader, or a plan=")
    else:
        correlated = _tries_correlated(optimizer, options["streams"], config)
        target = epsilon, delta, max_grad_norm
        plan = _plan(options, epochs, *target, batch_size, len(rows), correlated=correlated)
    loss, made_up = options["loss"], options["made_up"]
    run = Run(
        plan,
        model,
        None if loss is None else of_model(loss, made_up),
        rows,
        optimizer=optimizer,
        learning_rate_schedule=options["learning_rate_schedule"] or Constant(),
        ledger=options["ledger"],
        streams=options["streams"],
        checkpoint=options["checkpoint"],
        delta=delta,
        config=config,
    )
    run.task.losses_take_model = True
    run.task.made_up = made_up
    if run.steps_done:
        print(f"resuming at step {run.steps_done} of {run.steps}", file=sys.stderr)
    if (plan.budget or run.ledger.budget) is None:
        # of a target the session warns
        for warning in hollow(None, delta, plan.examples or len(rows)):
            warn(warning)
    return run


def _unwrap(model: Any) -> nn.Module:
    """What torch.compile compiled or DistributedDataParallel holds; other wrappers are refused."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        # what is called: the wrapper averages nothing
        model = getattr(model.module, "_orig_mod", model.module)
    if not isinstance(model, nn.Module):
        raise BadInput(f"model is {repr(model)[:60]}: expected a torch.nn.Module")
    if isinstance(model, nn.DataParallel):
        raise BadInput(
            "model is wrapped in DataParallel, which averages gradients before they could be "
            "clipped: give the module in it, model.module"
        )
    return model


def _require_planned(plan: Plan, epochs: int | None, arguments: Mapping[str, Any]) -> None:
    """Refuse what a plan says already, and transforms in front of the model.

    Raises:
        BadInput: naming the argument.
    """
    twice = next((name for name in _PLANNED if arguments[name] is not None), None)
    if twice is not None:
        raise BadInput(
            f"plan= and {twice}= are both given, and the plan says what {twice} says: leave one out"
        )
    if epochs is not None and epochs != plan.epochs:
        raise BadInput(f"epochs is {epochs}, and the plan has {plan.epochs}: leave epochs out")
    if plan.front:
        raise BadInput(
            "the plan has transforms in front of the model, and a loop's rows are the loader's: "
            "use pv.dpsgd, or change the rows in the data set"
        )


def _plan(
    options: dict[str, Any],
    epochs: int,
    epsilon: float | None,
    delta: float | None,
    norm: float | None,
    batch_size: int,
    rows: int,
    *,
    correlated: bool,
) -> Plan:
    """The plan that the arguments of `make_private` describe; `correlated` says what `best`
    tries.
    """
    clip, noise, schedule = options["clip"], options["noise_multiplier"], options["schedule"]
    if (clip is None) == (norm is None):
        raise BadInput(
            "expected one of max_grad_norm=C, the clipping norm, and clip=, such as pv.Flat(1.0): "
            "give one"
        )
    targets = [
        name
        for name, value in (
            ("epsilon", epsilon),
            ("rho", options["rho"]),
            ("noise_multiplier", noise),
        )
        if value
    ]
    if len(targets) != 1:
        raise BadInput(
            f"{' and '.join(targets) or 'nothing'} says how much may be spent: expected one of "
            "epsilon=E (with delta=D), rho=R, and the noise itself, noise_multiplier=S"
        )
    if noise is not None and schedule is not None:
        raise BadInput(
            "noise_multiplier and schedule= both say what the noise is: give one of them"
        )
    examples = options["examples"] or rows

    def solve_noise(plan: Plan) -> Plan:
        return (
            plan
            if noise is not None
            else plan.calibrate(epsilon=epsilon, delta=delta, rho=options["rho"])
        )

    def plan_with(
        sampling: Sampler | str, mechanism: Correlation | str | None, adjacency: Adjacency | None
    ) -> Plan:
        plan = Plan(
            named(sampling, min(batch_size, examples), examples),
            epochs=epochs,
            schedule=schedule or (Constant() if noise is None else Constant(noise)),
            clip=clip or Flat(norm or 0.0),
            adjacency=adjacency,
            examples=options["examples"],
            group_size=options["group_size"] or 1,
        )
        correlations = _correlations(mechanism, chosen=noise is None)
        return with_least_noise(
            plan, correlations, solve_noise, examples, adjust=isinstance(sampling, str)
        )

    sampling = options["sampling"] or "poisson"
    adjacency = None if options["adjacency"] is None else Adjacency.parse(options["adjacency"])
    if sampling != best_sampling.BEST:
        return plan_with(sampling, options["mechanism"], adjacency)
    if noise is not None:
        raise BadInput(best_sampling.NO_TARGET)
    return best_sampling.least(
        plan_with,
        lambda plan: plan,
        examples,
        options["mechanism"],
        adjacency,
        correlated=correlated,
    )


def _tries_correlated(optimizer: Any, streams: Streams | None, config: ComputeConfig) -> bool:
    """Whether `best` tries correlated noise: it is compared as SGD's weights hold it, off the grid,
    in one process.
    """
    discrete = streams is not None and streams.noise.discrete
    return type(optimizer) is optim.SGD and not discrete and world_of(config).size == 1


def _correlations(
    mechanism: Correlation | str | None, *, chosen: bool
) -> Sequence[Correlation | None]:
    """What a mechanism leaves open: several numbers of bands, say, where the noise is solved
    for.
    """
    correlations = matrices.choices(mechanism)
    if len(correlations) > 1 and not chosen:
        raise BadInput(
            f"the mechanism {mechanism!r} leaves a number open, which is chosen where the noise is "
            f"solved for: say {matrices.spec(correlations[-1])}, or give epsilon= in place of "
            "noise_multiplier="
        )
    return correlations
