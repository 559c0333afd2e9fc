"""One release of DP-SGD, many times, with the worst neighbours that there are (Nasr et al. 2021,
2023).

The run is an ordinary one, with a learning rate of zero, so that each release is a trial of its
own. The attacker knows the weights, all other examples and whatever is released, and looks along
the example's gradient.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast, final

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor, nn

from privlearn._checks import between, checked, count
from privlearn._checks import delta as valid_delta
from privlearn.auditing.bounds import Floats
from privlearn.auditing.distinguishing import Claim
from privlearn.auditing.report import Audit
from privlearn.auditing.whole_runs import audit_run
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.losses import Loss
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.sampling import FullBatch, Partition, Poisson
from privlearn.core.schedules import Constant
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset, require_groups
from privlearn.errors import BadInput, PrivacyWarning
from privlearn.methods.neighbouring_runs import require_run_here
from privlearn.runs.callbacks import Callback, TrainingProgress
from privlearn.runs.given import gradient_clip, require_same_examples
from privlearn.training.dpsgd import dpsgd

#: Trials by default: more where the noise hides more, within bounds of time.
_FEWEST, _MOST, _BY_NOISE = 5_000, 40_000, 2_500.0
#: What is drawn to find the direction of a gradient that depends on random numbers.
_DRAWS = 8
#: How much longer than 1 the default canary's gradient is: it is clipped at any usual norm.
_LONG = 1e4
#: Steps of an epoch that are looked at by themselves.
_STEPS = 8
#: Other examples, which pull against the canary: where what divides a sum depends on the rows, that
#: shows.
_OTHERS = 9


@checked
def audit(
    plan: AbstractPlan,
    model: nn.Module | Callable[[tuple[int, ...]], nn.Module] | None = None,
    loss: Loss | None = None,
    data: Dataset | None = None,
    *,
    canary: tuple[Any, Any] | None = None,
    delta: float = 1e-5,
    trials: int | None = None,
    confidence: float = 0.99,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
    **arguments: Any,
) -> Audit:
    """Attack one release of a plan, many times: is the noise what the accountant says?

    Each trial is one step of `dpsgd` with the plan's sampler, clip and first noise multiplier (a
    whole epoch where that is what is charged at once), on `data` with the canary in one half of the
    trials and without it in the other. By default the model is linear, with two weights, and the
    canary's is far longer than the clipping norm: the worst case. Give a model, a loss and data to
    attack your own code. Where the plan's examples are persons, the canary is a person, with as
    many rows as the plan uses at most.

    Plans of other methods (class statistics, PATE, boosting) say how they are run on made-up rows
    (`methods.neighbouring_runs.Attackable`). Then each trial is a whole run, and all that it
    releases is looked at.

    Guarantee of what is said: `ok` is False by chance in at most 1 - `confidence` of all audits of
    a sound claim.

    Args:
        plan: what is claimed; of its schedule the noise of epoch 0. Transforms in front are left
            out.
        model: as for `dpsgd`; its weights stay as they are.
        loss: as for `dpsgd`.
        data: the other examples, made up or public: no ledger is charged for them. Where examples
            are persons, with `groups`; of persons with more rows than the plan uses the first ones.
        canary: the inputs and the target of the example that takes part or not; by default `data`'s
            first example. Where examples are persons: of each of the person's rows, and by default
            the person of `data`'s first row.
        delta: where epsilon is stated.
        trials: of each kind; by default 5,000 to 40,000, the more the more noise there is. Of whole
            runs 500.
        confidence: of all that is said.
        streams: the random streams; by default fresh and secret ones.
        progress: called with (steps done, steps in all).
        arguments: further ones of `dpsgd`.

    Raises:
        BadInput: the plan's neighbours differ in what one example holds, its examples are clients
            of a federation, or a model was given without a loss or data. Or a plan of another
            method that does not say how it is run, or a model for it.
    """
    if not isinstance(plan, Plan):
        _require_no_model(plan, model, loss, data, canary, *arguments)
        return audit_run(plan, delta, trials, confidence, streams, progress)
    valid_delta(delta)
    between("confidence", confidence, 0.5, 1 - 1e-9)
    if taken := {"optimizer", "callbacks"} & set(arguments):
        raise BadInput(f"an audit has {' and '.join(sorted(taken))} of its own: leave them out")
    sampler, noise_multiplier = plan.sampling, plan.noise_multipliers()[0]
    if plan.neighbours is Adjacency.REPLACE_ONE:
        raise BadInput(
            "the plan is for replace_one neighbours: expected add_remove or zero_out, of which one "
            "is empty"
        )
    require_run_here(plan)
    if (model is None) != (loss is None) or (model is not None and data is None):
        raise BadInput(
            "to attack your own model give model, loss and data: expected all three, or none"
        )
    if model is None:
        model, loss = nn.Linear(1, 1, device="cpu"), _product
        data, canary = _others(plan), ([1.0], 1.0)
    assert loss is not None
    assert data is not None
    warn_of_rows(data)
    without, among, of_canary = _neighbours(plan, data, canary)
    network = model if isinstance(model, nn.Module) else model(tuple(data.x.shape[1:]))
    direction = _direction(network, loss, *(part[-of_canary:] for part in among.tensors()))
    examples, clip = plan.examples or among.examples, gradient_clip(plan)
    each = _steps_of_a_charge(plan, among.examples)
    wanted = _usual(noise_multiplier) if trials is None else count("trials", trials)
    epochs = -(-wanted * each // sampler.steps(among.examples))
    attacked = replace(
        plan,
        schedule=Constant(noise_multiplier),
        epochs=epochs,
        front=(),
        budget=None,
        examples=examples,
        temperature=None,
    )
    scale = sampler.expected_batch_size(examples) / clip.norm(clip.clip_norm, len(direction))
    watches = _Watch(direction), _Watch(direction)
    for place, (watch, rows) in enumerate(zip(watches, (without, among), strict=True)):
        advance = [] if progress is None else [_Advance(progress, place)]
        with warnings.catch_warnings():
            # the one that stands in for the canary
            warnings.filterwarnings("ignore", "there are rows with NaN")
            attacked_network = copy.deepcopy(network)
            dpsgd(
                attacked,
                attacked_network,
                loss,
                rows,
                optimizer=watch,
                streams=streams,
                callbacks=advance,
                **arguments,
            )
    absent, present = (
        _scores(np.array(watch.seen) * scale, each, noise_multiplier)[:wanted] for watch in watches
    )
    claim = Claim(
        lambda noise: sampler.event(Gaussian(noise)), plan.neighbours, noise_multiplier, delta
    )
    attack = _describe_attack(plan, noise_multiplier, "a step" if each == 1 else "an epoch")
    return replace(claim.judged(absent, present, confidence, attack), public=data.public)


def _describe_attack(plan: Plan, noise_multiplier: float, part: str) -> str:
    """What was attacked: a part of a run by the plan."""
    rows = plan.rows_per_person
    of_whom = "" if rows is None else f", persons of up to {rows} {'row' if rows == 1 else 'rows'}"
    return (
        f"{part} of DP-SGD, {plan.sampling.kind} sampling, noise multiplier "
        f"{noise_multiplier:.4g}{of_whom}, white box"
    )


def _require_no_model(plan: AbstractPlan, *model_arguments: Any) -> None:
    if any(value is not None for value in model_arguments):
        raise BadInput(
            f"a {plan.kind} plan is attacked on rows that are made up for it: leave out model, "
            "loss, data, canary and arguments of dpsgd, which are expected with a pv.Plan alone"
        )


@final
class _Advance(Callback):
    """Calls a function with (steps done, steps in all) of two runs, of which this is the first or
    the second.
    """

    def __init__(self, function: Callable[[int, int], None], place: int) -> None:
        self._function, self._place = function, place

    def on_step(self, progress: TrainingProgress) -> None:
        self._function(self._place * progress.steps + progress.step, 2 * progress.steps)


def warn_of_rows(data: Dataset) -> None:
    """Warn that a report follows from the rows that an audit ran on, which no ledger was charged
    for.
    """
    if not data.public:
        warnings.warn(
            "an audit is not a release: no ledger is charged for the rows that it runs on, and its "
            "report follows from them. Audit with made-up rows, or public ones, Dataset(..., "
            "public=True)",
            PrivacyWarning,
            stacklevel=3,
        )


def _product(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is as long as the example makes it, wherever the weights are."""
    return _LONG * outputs[:, 0] * targets


def _others(plan: Plan) -> Dataset:
    """Other examples: under sampling, where they would hide the canary, one whose gradient is
    zero. Where examples are persons, each has as many rows as the plan uses at most.
    """
    full = isinstance(plan.sampling, FullBatch)
    people, rows = _OTHERS if full else 1, plan.rows_per_person or 1
    x = np.ones((people * rows, 1), np.float32)
    y = np.full(people * rows, -1.0, np.float32)
    groups = None if plan.rows_per_person is None else np.repeat(np.arange(people), rows)
    return Dataset(x, y if full else 0 * y, groups=groups, public=True)


def _neighbours(
    plan: Plan, data: Dataset, canary: tuple[Any, Any] | None
) -> tuple[Dataset, Dataset, int]:
    """The data without the canary and with it, as the last example; and how many rows it has.

    Where batches have a fixed size, an example that can't be computed stands in for it, which adds
    nothing.
    """
    x, y = data.tensors()
    used, numbers = _examples_of(plan, data)
    x, y = x[used], y[used]
    if canary is None:
        of_canary = numbers == numbers[0]
        canary_rows = x[of_canary], y[of_canary]
        x, y, numbers = x[~of_canary], y[~of_canary], numbers[~of_canary]
    else:
        rows = plan.rows_per_person or 1
        canary_rows = (
            torch.as_tensor(canary[0], device="cpu").to(x.dtype).expand(rows, *x.shape[1:]),
            torch.as_tensor(canary[1], device="cpu").to(y.dtype).expand(rows, *y.shape[1:]),
        )
    if not len(x):
        raise BadInput("data have one example, which is the canary: give at least one other")
    of_canary = torch.full((len(canary_rows[0]),), int(numbers.max()) + 1, device="cpu")
    every = torch.cat([numbers, of_canary])
    among = torch.cat([x, canary_rows[0]]), torch.cat([y, canary_rows[1]]), every
    without = (x, y, numbers)
    if not isinstance(plan.sampling, Poisson | Partition | FullBatch):
        if not x.is_floating_point():
            raise BadInput(
                f"batches of {plan.sampling.kind} have a fixed size, and an example of whole "
                "numbers can't be left empty: give inputs of floating point, or attack another "
                "sampler"
            )
        empty = torch.full_like(canary_rows[0], torch.nan)
        without = (torch.cat([x, empty]), *among[1:])
    data_sets = (
        replace(
            data,
            x=rows[0],
            y=rows[1],
            x_test=None,
            y_test=None,
            groups=None if plan.rows_per_person is None else rows[2].numpy(),
        )
        for rows in (without, among)
    )
    return next(data_sets), next(data_sets), len(of_canary)


def _examples_of(plan: Plan, data: Dataset) -> tuple[Tensor, Tensor]:
    """The rows that are used, and for each the number of its example, a person where the plan says
    so.

    Of each person these are the first rows: runs choose some at random, and the two runs of an
    audit would differ in those of other persons, too.
    """
    if plan.rows_per_person is None:
        every = torch.arange(len(data.x), device="cpu")
        return every, every
    require_same_examples(plan, data)
    ids = np.asarray(data.groups)
    require_groups(data.name, ids, len(data.x))
    _, numbers, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    numbers = numbers.reshape(-1)
    order = np.argsort(numbers, kind="stable")
    place = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[numbers[order]]
    used = np.sort(order[place < plan.rows_per_person])
    return torch.from_numpy(used), torch.from_numpy(numbers[used])


def _steps_of_a_charge(plan: Plan, examples: int) -> int:
    """How many steps one charge of the plan's sampler is for."""
    probe = Gaussian(1.0)
    whole = plan.sampling.event(probe) == plan.sampling.epoch_event(probe)
    return plan.sampling.steps(examples) if whole else 1


def _usual(noise_multiplier: float) -> int:
    return int(min(_MOST, max(_FEWEST, _BY_NOISE * noise_multiplier**2)))


def _direction(network: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> list[Tensor]:
    """The canary's gradient, by plain autograd, of length 1; the mean of some, where it depends on
    random numbers.
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    sums = [torch.zeros_like(parameter) for parameter in trained]
    network.train()
    with torch.random.fork_rng(), torch.enable_grad():
        for _ in range(_DRAWS):
            gradients = torch.autograd.grad(
                cast(Any, loss)(network(x), y).sum(), trained, allow_unused=True
            )
            for total, gradient in zip(sums, gradients, strict=True):
                total += 0 if gradient is None else gradient
    length = torch.cat([total.flatten() for total in sums]).norm()
    if not length > 0 or not length.isfinite():
        raise BadInput(
            "the canary's gradient is zero or not finite, so there is nothing to detect: give "
            "another one"
        )
    return [total / length for total in sums]


class _Watch:
    """Makes an optimizer that moves nothing, and notes each release's product with a direction."""

    def __init__(self, direction: list[Tensor]) -> None:
        self._direction, self.seen = direction, list[float]()

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        watch = self

        class Still(torch.optim.Optimizer):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                trained = self.param_groups[0]["params"]
                products = [
                    (p.grad * d).sum() for p, d in zip(trained, watch._direction, strict=True)
                ]
                watch.seen.append(float(torch.stack(products).double().sum()))

        return Still(parameters, {"lr": 0.0})


def _scores(seen: Floats, each: int, noise_multiplier: float) -> Floats:
    """Scores of each charge, shape (charges, kinds): of an epoch the likelihood ratio, and some
    steps by themselves.

    Without a secret the example's step follows from its place: then the step by itself tells more.
    """
    steps = seen[: len(seen) // each * each].reshape(-1, each)
    if each == 1:
        return steps
    ratio = logsumexp((steps - 0.5) / noise_multiplier**2, axis=1)
    return np.column_stack([ratio, steps[:, :_STEPS]])
