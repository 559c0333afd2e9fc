"""DP-MAC: each layer's own objective, expanded, clipped and released (Harder et al. 2019), with sensitivities that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privlearn._validate import count, positive
from privlearn.accounting.events import NonPrivate
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.layerwise import Analytic, Derivatives, Layerwise, shares_of_parts
from privlearn.errors import BadInput
from privlearn.mechanisms.features import Select
from privlearn.methods.checkpoint import Checkpoint
from privlearn.methods.mac.batch import BatchDerivatives
from privlearn.methods.mac.coordinates import Coordinates
from privlearn.methods.mac.expansion import output_named, targets
from privlearn.methods.mac.network import Activations, Layer, layers_of
from privlearn.methods.mac.steps import MacSteps
from privlearn.methods.mac.watch import LayerWatch
from privlearn.methods.mac.weights import WeightSteps
from privlearn.methods.processes import require_one_process
from privlearn.methods.progress import Progress, facts
from privlearn.methods.rates import LearningRates
from privlearn.methods.refusals import (
    OptimizerFactory,
    device_of,
    network_from,
    optimizer_from,
    require_finite,
    require_kinds,
    require_public_numbers,
    require_same_examples,
)
from privlearn.methods.result import PrivateDiagnostics, Result
from privlearn.methods.rows import Rows, front, rows, through
from privlearn.methods.settings import public_settings
from privlearn.plan import Plan
from privlearn.rng import Streams
from privlearn.schedules import Constant, Schedule, Validation, spec


def dpmac(
    plan: Plan,
    model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
    loss: str,
    dataset: Rows,
    *,
    optimizer: OptimizerFactory = torch.optim.Adam,
    learning_rate_schedule: Schedule = Constant(),  # noqa: B008 - a frozen value
    coordinates: Coordinates = Coordinates(),  # noqa: B008 - a frozen value
    mu: float | Schedule = 100.0,
    weight_steps: int = 1,
    newton: float | None = None,
    activations: Activations | None = None,
    private: bool = True,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    microbatch: int | None = None,
    device: str | torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
) -> Result:
    """Train a fully connected network by the method of auxiliary coordinates, with differential privacy.

    For each batch every example's auxiliary coordinates are fitted to it alone; then the derivatives of all layers'
    objectives at the weights as they are, bounded by `plan.clip`, are released jointly: one event for a batch. Steps on the
    objective that was released follow, at no further cost.

    Guarantee: as for `dpsgd`, the returned model is `plan.guarantee(delta)`-DP for the plan's adjacency and `plan.unit`, and
    the ledger is charged exactly `plan.event()`. Coordinates and whatever is computed from them without noise are never
    returned but as `private_diagnostics`. Targets are looked at once, for whoever holds the data, before anything is spent.

    Args:
        plan: what will be spent; its `clip` is `pv.Derivatives` (also says the order of the expansion) or `pv.Analytic`.
        model: an `nn.Sequential` of Linear layers with activations between them, or a function from the shape of one
            (transformed) example to one. Trained in place.
        loss: "binary_cross_entropy" (of each class by itself, as in the paper), "cross_entropy" (softmax, first order), "mse".
        dataset: as for `dpsgd`; targets are labels, or numbers of shape (rows, outputs).
        optimizer: makes the optimizer from the parameters; any of torch.optim that steps on gradients.
        learning_rate_schedule: the optimizer's learning rates are multiplied by its value over its value at epoch 0.
        coordinates: how auxiliary coordinates are fitted.
        mu: the weight of the hidden layers' objectives (eq. 2), a number or a schedule over epochs; 1 in the paper. Sweeps
            need a large one.
        weight_steps: optimizer steps on each released objective.
        newton: for the expansion of second order: what the optimizer is given is the step to the objective's minimum, with
            curvature per example below this damping counted as that, in place of the gradient. None: the gradient.
        activations: activation functions by their modules' classes, beside ReLU and softplus.
        private: False to train without noise, for comparison: the result can't be published.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        microbatch: examples computed at once.
        device: where to compute; by default where the model is. The result is on the CPU.
        progress: called with (steps done, steps in all) after each step.
        checkpoint: as for `dpsgd`; not with stored coordinates.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: a model that is not fully connected, targets that the loss does not take, or numbers that do not fit each
            other; before anything is spent. Or weights that are no longer finite, because steps were too long.
    """
    require_one_process()
    # In the place of the loss, which is a name here, stands any function.
    require_kinds(plan, model, output_named, learning_rate_schedule, ledger, streams, None, progress)
    bound = _bound(plan)
    output = output_named(loss, bound.order)
    _require_fit(plan, coordinates, weight_steps, newton, private, checkpoint)
    ledger = Ledger(plan.budget if private else None) if ledger is None else ledger
    if private:
        ledger.require_room(plan.event(), plan.neighbours, plan.unit)
    file = Checkpoint(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    saved = file.read() if file else None
    streams = Streams.at(saved.plain["streams"]) if saved else streams or Streams.new()

    data = rows(dataset, plan.sampling)
    x, y = data.tensors()
    require_same_examples(plan, data)
    born = saved.plain["born"] if saved else {"initialisation": streams.state()["initialisation"], "persons": ""}
    examples = plan.examples or len(x)
    transforms, x = front(data, x)

    # Whatever can be refused is refused here, before anything is spent.
    require_public_numbers(plan, examples, x, learning_rate_schedule)
    shape = plan.before[-1].output_shape if plan.before else tuple(x.shape[1:])
    network = model if isinstance(model, nn.Module) else network_from(model, shape)
    network.to(device_of(device, network)).train()
    layers = layers_of(network, activations)
    _require_inputs(layers, shape)
    y = targets(output, y, layers[-1].linear.out_features, layers[0].weight().cpu())
    watched = LayerWatch(len(layers))
    derivatives = BatchDerivatives(
        layers,
        output,
        bound,
        plan.neighbours,
        coordinates,
        examples=len(x),
        at_once=microbatch,
        observe=watched.see,
    )
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    descent = optimizer_from(optimizer, parameters)
    rates = LearningRates(descent, learning_rate_schedule)
    divisor = plan.sampling.expected_batch_size(examples)
    batches = MacSteps(
        derivatives,
        WeightSteps(layers, bound, descent, divisor, weight_steps, newton),
        shares_of_parts(bound, len(layers)),
        ledger,
        streams,
        private,
    )
    steps = plan.sampling.steps(len(x))
    learned = bound.learned if isinstance(bound, Derivatives) else None
    weighted = Constant(positive("mu", mu)) if isinstance(mu, int | float) else mu
    settings = {
        **public_settings(plan, _numbers(bound), examples, steps, descent, learning_rate_schedule, data.features),
        "objective": output.name,
        "coordinates": coordinates.describe(),
        "mu": mu if isinstance(mu, int | float) else spec(mu),
        "weight_steps": weight_steps,
        "newton": newton,
        "noise": "on a grid" if streams.noise.discrete else "floating point",
    }

    run = Progress(file, ledger, network, transforms, derivatives, descent, streams, watched, born)
    if file:
        run.facts = facts(network, output.losses, x, y, None, None, plan=plan, microbatch=microbatch, **settings)
    with _leaving_nothing_behind(parameters), _charged(run, plan, saved, ledger, private):
        for earlier in plan.before:
            x = through([run.earlier(earlier, x, None, plan.neighbours)], x)
        x = x.flatten(1)
        for epoch, sigma in enumerate(plan.noise_multipliers()):
            if learned and epoch == learned.after:
                batches.learn(learned, plan.neighbours, x, y, weighted(epoch))
            if run.released(epoch):
                ledger.charge(plan.epoch_event(sigma), plan.neighbours)
                continue
            for step, sample in run.batches(plan, epoch, sigma, len(x), ledger):
                rates.at(epoch + step / steps)
                batches.take(sample, x, y, sigma, weighted(epoch + step / steps))
                with run.ending_if_it_fails():
                    require_finite(parameters, rates.first, f"epoch {epoch + 1}, step {step + 1}")
                if progress:
                    progress(epoch * steps + step + 1, plan.epochs * steps)
            watched.end_epoch()
        run.end(plan.epochs)
    network.to("cpu" if device is not None else device_of(None, network)).eval()

    return Result(
        model=nn.Sequential(*transforms, network).eval(),
        ledger=ledger,
        adjacency=plan.neighbours,
        delta=plan.budget.delta if plan.budget else None,
        budget=plan.budget,
        method="dpmac",
        settings=settings | ({"thresholds": derivatives.thresholds} if derivatives.learned else {}),
        architecture={"input_shape": list(data.x.shape[1:]), "network_input_shape": list(shape)}
        | ({"schema": data.schema} if data.schema else {}),
        seeded=streams.seeded,
        private_diagnostics=PrivateDiagnostics(watched.figures),
        checkpoint=file,
    )


def _bound(plan: Plan) -> Layerwise:
    """How the plan bounds derivatives.

    Raises:
        BadInput: it is a plan for DP-SGD.
    """
    if isinstance(plan.clip, Derivatives | Analytic):
        return plan.clip
    raise BadInput(
        f"the plan's clip is {plan.clip!r}, for gradients: dpmac needs pv.Derivatives(0.3), or pv.Analytic(z_norm=...)"
    )


def _require_fit(
    plan: Plan,
    coordinates: Coordinates,
    weight_steps: int,
    newton: float | None,
    private: bool,
    checkpoint: object,
) -> None:
    """Refuse settings that do not fit each other."""
    bound = _bound(plan)
    if not isinstance(coordinates, Coordinates):
        raise BadInput(
            f"coordinates is {coordinates!r}: expected pv.Coordinates(), or pv.Coordinates(30, 0.003, 'adam')"
        )
    count("weight_steps", weight_steps, most=10_000)
    if newton is not None and bound.order == 1:
        raise BadInput(
            f"newton is {newton:g}, and the expansion is of first order: Newton steps need second derivatives, "
            "pv.Derivatives(first, second=...)"
        )
    if newton is not None:
        positive("newton", newton)
    if isinstance(plan.schedule, Validation):
        raise BadInput("dpmac has no validation schedule: use constant, time, exp, step or poly")
    if plan.rows_per_person is not None:
        raise BadInput(
            "dpmac protects rows, and the plan's examples are persons: use dpsgd, or group_size for a declared number of rows"
        )
    if any(isinstance(earlier, Select) for earlier in plan.before):
        raise BadInput("dpmac has no selection of features before it: use dpsgd, or pv.PCA")
    learned = bound.learned if isinstance(bound, Derivatives) else None
    if learned and learned.after >= plan.epochs:
        raise BadInput(
            f"thresholds are learned after {learned.after} epochs, and the run has {plan.epochs}: nothing would come after it"
        )
    if checkpoint is not None and (coordinates.stored or not private):
        raise BadInput(
            "a run with stored coordinates, or without noise, can't be continued: leave out the checkpoint, or "
            "Coordinates(stored=False)"
        )


def _require_inputs(layers: Sequence[Layer], shape: tuple[int, ...]) -> None:
    given = torch.Size(shape).numel()
    if given != layers[0].linear.in_features:
        raise BadInput(
            f"examples have {given} features (shape {shape}), and the first layer takes {layers[0].linear.in_features}: "
            "expected a network for rows of that shape"
        )


@contextmanager
def _leaving_nothing_behind(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """However the block ends, nothing stays in the parameters' gradients."""
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.grad = None


def _charged(run: Progress, plan: Plan, saved: Any, ledger: Ledger, private: bool) -> AbstractContextManager[None]:
    """A block in which the plan's event may be charged; without noise, one that marks the ledger as that of no guarantee."""
    return run.charged(plan, saved) if private else _unprotected(ledger, plan)


@contextmanager
def _unprotected(ledger: Ledger, plan: Plan) -> Iterator[None]:
    ledger.charge(NonPrivate("the model was trained without noise"), plan.neighbours)
    yield


def _numbers(bound: Layerwise) -> dict[str, Any]:
    """The numbers of a bound; how thresholds are learned stands among the releases."""
    own = {name: value for name, value in vars(bound).items() if name != "learned"}
    return {"clip_norm": bound.clip_norm, "order": bound.order, **own}
