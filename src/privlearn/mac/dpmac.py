"""DP-MAC: each layer's own objective, expanded, clipped and released (Harder et al. 2019), with sensitivities that hold.

`MacSteps`: one batch after another, from its examples to steps of the weights, with the release in between.

`LayerWatch`: what the curator may look at of a DP-MAC run, layer by layer. Private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn._checks import count, positive
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.accounting.mechanisms import NonPrivate
from privlearn.clipping.bounded import Bounded
from privlearn.clipping.derivative_bounds import Analytic, Derivatives, Histogram, Layerwise, shares_of_parts
from privlearn.errors import BadInput
from privlearn.mac.coordinates import Coordinates
from privlearn.mac.expansion import output_named, targets
from privlearn.mac.network import Activations, Layer, layers_of
from privlearn.mac.sums import BatchDerivatives
from privlearn.mac.weights import WeightSteps
from privlearn.mechanisms.release import release
from privlearn.plan import Plan
from privlearn.runs.checkpoint import Checkpoint, facts
from privlearn.runs.front import Front
from privlearn.runs.given import Given, rows
from privlearn.runs.optimizers import RateSchedule
from privlearn.runs.refusals import (
    OptimizerFactory,
    device_of,
    network_from,
    optimizer_from,
    require_callable,
    require_finite,
    require_kinds,
    require_public_numbers,
    require_same_examples,
)
from privlearn.runs.result import PrivateDiagnostics, Result, training_facts
from privlearn.runs.session import TrainingSession
from privlearn.sampling import FullBatch, Sample
from privlearn.schedules import Constant, Schedule, Validation, spec
from privlearn.streams import Streams
from privlearn.transforms.select import SelectFeatures
from privlearn.world import require_one_process


def dpmac(
    plan: Plan,
    model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
    loss: str,
    dataset: Given,
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
        plan: what will be spent; its `clip` is `pv.mac.Derivatives` (also says the order of the expansion) or
            `pv.mac.Analytic`.
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
    require_kinds(plan, model, output_named, learning_rate_schedule, ledger, streams, {})
    require_callable("progress", progress)
    bound = _bound(plan)
    output = output_named(loss, bound.order)
    _require_fit(plan, coordinates, weight_steps, newton, private, checkpoint)
    session = TrainingSession(plan, ledger, streams, checkpoint, charged=private)
    ledger, streams = session.ledger, session.streams
    data = rows(dataset, plan.sampling)
    x, y = data.tensors()
    require_same_examples(plan, data)
    examples = plan.examples or len(x)
    ahead = Front(plan, data, x)
    x, shape = ahead.rows, ahead.shape

    # Whatever can be refused is refused here, before anything is spent.
    require_public_numbers(examples, learning_rate_schedule)
    network = model if isinstance(model, nn.Module) else network_from(model, shape)
    network.to(device_of(device, network)).train()
    layers = layers_of(network, activations)
    _require_inputs(layers, shape)
    y = targets(output, y, layers[-1].linear.out_features, layers[0].weight().cpu())
    watched = LayerDiagnostics(len(layers))
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
    rates = RateSchedule(descent, learning_rate_schedule)
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
    run_facts = {
        **training_facts(examples, plan.epochs * steps, descent, learning_rate_schedule, ahead.described()),
        "objective": output.name,
        "coordinates": coordinates.describe(),
        "mu": mu if isinstance(mu, int | float) else spec(mu),
        "weight_steps": weight_steps,
        "newton": newton,
        "noise": "on a grid" if streams.noise.discrete else "floating point",
    }

    session.parts = {"network": network, "optimizer": descent, "gradients": derivatives, "diagnostics": watched}
    if session.file:
        session.facts = facts(network, output.losses, (x, y), None, None, plan=plan, microbatch=microbatch, **run_facts)
    with _leaving_nothing_behind(parameters), session.charging():
        if not private:
            ledger.charge(NonPrivate("the model was trained without noise"), plan.neighbours)
        x = ahead.fit(session, x, None, None).flatten(1)
        for epoch, sigma in enumerate(plan.noise_multipliers()):
            if learned and epoch == learned.after:
                batches.learn(learned, plan.neighbours, x, y, weighted(epoch))
            if session.released(epoch, sigma):
                continue
            for step, sample in session.batches(epoch, sigma, len(x)):
                rates.at(epoch + step / steps)
                batches.take(sample, x, y, sigma, weighted(epoch + step / steps))
                with session.or_abandon():
                    require_finite(parameters, rates.first, f"epoch {epoch + 1}, step {step + 1}")
                if progress:
                    progress(epoch * steps + step + 1, plan.epochs * steps)
            watched.end_epoch()
        session.end(plan.epochs)
    network.to("cpu" if device is not None else device_of(None, network)).eval()

    return Result(
        model=nn.Sequential(*ahead.modules, network).eval(),
        ledger=ledger,
        plan=plan,
        method="dpmac",
        facts=run_facts | ({"thresholds": derivatives.thresholds} if derivatives.learned else {}),
        architecture={"input_shape": list(data.x.shape[1:]), "network_input_shape": list(shape)}
        | ({"schema": data.schema} if data.schema else {}),
        seeded=streams.seeded,
        private_diagnostics=PrivateDiagnostics(watched.figures),
        checkpoint=session.file,
    )


def _bound(plan: Plan) -> Layerwise:
    """How the plan bounds derivatives.

    Raises:
        BadInput: it is a plan for DP-SGD.
    """
    if isinstance(plan.clip, Derivatives | Analytic):
        return plan.clip
    raise BadInput(
        f"the plan's clip is {plan.clip!r}, for gradients: dpmac needs pv.mac.Derivatives(0.3), or pv.mac.Analytic(z_norm=...)"
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
            f"coordinates is {coordinates!r}: expected pv.mac.Coordinates(), or pv.mac.Coordinates(30, 0.003, 'adam')"
        )
    count("weight_steps", weight_steps, most=10_000)
    if newton is not None and bound.order == 1:
        raise BadInput(
            f"newton is {newton:g}, and the expansion is of first order: Newton steps need second derivatives, "
            "pv.mac.Derivatives(first, second=...)"
        )
    if newton is not None:
        positive("newton", newton)
    if isinstance(plan.schedule, Validation):
        raise BadInput("dpmac has no validation schedule: use constant, time, exp, step or poly")
    if plan.rows_per_person is not None:
        raise BadInput(
            "dpmac protects rows, and the plan's examples are persons: use dpsgd, or group_size for a declared number of rows"
        )
    if any(isinstance(earlier, SelectFeatures) for earlier in plan.front):
        raise BadInput("dpmac has no selection of features before it: use dpsgd, or pv.transforms.PrivatePCA")
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


@final
@dataclass(frozen=True)
class MacSteps:
    """What is done with each batch of a run.

    Attributes:
        derivatives: computes the bounded sums.
        weights: takes the steps.
        shares: of the unit of sensitivity, for each released part.
        ledger: what is charged.
        streams: the random streams.
        private: whether there is noise; without it nothing is charged here, and the run must have been marked as such.
    """

    derivatives: BatchDerivatives
    weights: WeightSteps
    shares: Sequence[float]
    ledger: Ledger
    streams: Streams
    private: bool = True

    def take(self, sample: Sample, x: Tensor, y: Tensor, noise_multiplier: float, mu: float) -> None:
        """Release the derivatives of one batch, jointly, and step on the objectives that they make."""
        parts = self.derivatives(sample, x, y, mu)
        released = self._released(parts, noise_multiplier, self.shares)
        scale = noise_multiplier if self.private else 0.0
        noise = [scale * part.sensitivity / share for part, share in zip(parts, self.shares, strict=True)]
        self.weights.take(self.derivatives.released(released), noise)

    def learn(self, learned: Histogram, adjacency: Adjacency, x: Tensor, y: Tensor, mu: float) -> None:
        """Release the histograms of derivative norms on all the data, and take the thresholds from them (Algorithm 2)."""
        if self.derivatives.learned:  # before an interruption
            self.ledger.charge(learned.event(), adjacency)
            return
        (everybody,) = FullBatch().draw(len(x))
        parts = self.derivatives.histograms(everybody, x, y, mu)
        self.derivatives.learn(self._released(parts, learned.noise_multiplier))

    def _released(
        self, parts: Sequence[Bounded], noise_multiplier: float, shares: Sequence[float] | None = None
    ) -> list[Tensor]:
        """The parts' values with noise; as they are in a run that is not private."""
        if not self.private:
            return [value for part in parts for value in part.values]
        noisy = release(
            *parts, noise_multiplier=noise_multiplier, ledger=self.ledger, stream=self.streams.noise, shares=shares
        )
        return [value for values in noisy for value in values]


@final
class LayerDiagnostics:
    """Collects, epoch by epoch: the mean loss of the network, and of each layer's first derivatives the mean norm and the
    share that was clipped. How many examples had a layer that was not finite (such layers add nothing) is `left_out`.
    """

    def __init__(self, layers: int) -> None:
        self.figures: dict[str, list[Any]] = {"loss": [], "norms": [], "clipped_shares": [], "left_out": []}
        self._layers = layers
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._rows, self._loss, self._left_out = 0, 0.0, 0
        self._norms, self._clipped, self._counted = ([0.0] * self._layers for _ in range(3))

    def see(self, losses: Tensor, norms: list[Tensor], clipped: Tensor) -> None:
        """Some examples' losses, shape (examples,), norms for each layer, and which were clipped, shape (layers, examples)."""
        finite = losses.isfinite()
        self._rows += int(finite.sum())
        self._loss += float(losses[finite].sum(dtype=torch.float64))
        usable = torch.stack(norms).isfinite()
        self._left_out += int((~usable.all(0)).sum())
        for layer, (own, ok) in enumerate(zip(norms, usable, strict=True)):
            self._norms[layer] += float(own[ok].sum())
            self._clipped[layer] += int(clipped[layer][ok].sum())
            self._counted[layer] += int(ok.sum())

    def end_epoch(self) -> None:
        """Add the epoch to `figures`."""
        if self._rows and min(self._counted):
            self.figures["loss"].append(self._loss / self._rows)
            for name, sums in (("norms", self._norms), ("clipped_shares", self._clipped)):
                self.figures[name].append([own / number for own, number in zip(sums, self._counted, strict=True)])
        self.figures["left_out"].append(self._left_out)
        self._begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        sums = [self._rows, self._loss, self._left_out, self._norms, self._clipped, self._counted]
        return {"figures": self.figures, "epoch": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.figures = state["figures"]
        self._rows, self._loss, self._left_out, self._norms, self._clipped, self._counted = state["epoch"]
