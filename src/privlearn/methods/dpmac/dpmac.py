"""DP-MAC: each layer's own objective, expanded, clipped and released (Harder et al. 2019).

`MacTask` is rows, layers and plan that fit each other; `MacSteps` what is done with each batch:
from its examples to steps of the weights, with the release in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack, final

import torch
from torch import Tensor, nn

from privlearn._checks import checked, count, positive, with_plain_numbers
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.clipping.derivative_bounds import (
    Analytic,
    Derivatives,
    Histogram,
    Layerwise,
    shares_of_parts,
)
from privlearn.core.mechanisms.release import release
from privlearn.core.plan import Plan
from privlearn.core.processes import require_one_process
from privlearn.core.sampling import FullBatch, Sample
from privlearn.core.schedules import Constant, Schedule, spec
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.expansion import SQUARED, Output, WeightSteps, output_named, targets
from privlearn.methods.dpmac.network import Activations, Layer, LayerDiagnostics, layers_of
from privlearn.methods.dpmac.sums import BatchDerivatives
from privlearn.models.networks import layers_text
from privlearn.optim.noise_aware import require_plain_optimizer
from privlearn.runs import compute
from privlearn.runs.callbacks import Callback, Callbacks
from privlearn.runs.checkpoint import Checkpoint, facts
from privlearn.runs.code_digest import code_digest
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.front import Front
from privlearn.runs.given import (
    Given,
    OptimizerFactory,
    device_of,
    network_from,
    optimizer_from,
    require_finite,
    require_kinds,
    require_public_numbers,
    require_rows_once,
    require_same_examples,
    rows,
    warn_of_absent,
)
from privlearn.runs.optimizers import RateSchedule
from privlearn.runs.result import PrivateDiagnostics, Result, training_facts
from privlearn.runs.session import TrainingSession
from privlearn.transforms.select import SelectFeatures


class MacOptions(TypedDict, total=False):
    """What else `dpmac` takes, by name.

    Keys:
        weight_steps: optimizer steps on each released objective.
        newton: for the expansion of second order: what the optimizer is given is the step to the
            objective's minimum, with curvature per example below this damping counted as that, in
            place of the gradient. None: the gradient.
        activations: activation functions by their modules' classes, beside ReLU and softplus.
        private: False to train without noise, for comparison: the result can't be published.
        config: how to compute: its `microbatch` and `device`, which are also taken by their names.
    """

    weight_steps: int
    newton: float | None
    activations: Activations | None
    private: bool
    config: ComputeConfig | None
    microbatch: int | None
    device: str | int | torch.device | None


@with_plain_numbers
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
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    checkpoint: Checkpoint | str | Path | None = None,
    **options: Unpack[MacOptions],
) -> Result:
    """Train a fully connected network by the method of auxiliary coordinates, with differential
    privacy.

    For each batch every example's auxiliary coordinates are fitted to it alone; then the
    derivatives of all layers' objectives at the weights as they are, bounded by `plan.clip`, are
    released jointly: one event for a batch. Steps on the objective that was released follow, at no
    further cost.

    Guarantee: as for `dpsgd`, the returned model is `plan.guarantee(delta)`-DP for the plan's
    adjacency and `plan.unit`, and the ledger is charged exactly `plan.event()`. Coordinates and
    whatever is computed from them without noise are never returned but as `private_diagnostics`.
    Targets are looked at once, for the data's curator, before anything is spent.

    Args:
        plan: what will be spent; its `clip` is `pv.mac.Derivatives` (also says the order of the
            expansion) or `pv.mac.Analytic`.
        model: an `nn.Sequential` of Linear layers with activations between them, or a function from
            the shape of one (transformed) example to one. Trained in place.
        loss: "binary_cross_entropy" (of each class by itself, as in the paper), "cross_entropy"
            (softmax, first order), "mse".
        dataset: as for `dpsgd`; targets are labels, or numbers of shape (rows, outputs).
        optimizer: makes the optimizer from the parameters; any of torch.optim.
        learning_rate_schedule: learning rates are multiplied by its value over its value at epoch
            0.
        coordinates: how auxiliary coordinates are fitted.
        mu: the weight of the hidden layers' objectives (eq. 2), a number or a schedule; 1 in the
            paper. Sweeps need a large one.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        callbacks: as for `dpsgd`.
        checkpoint: as for `dpsgd`; not with stored coordinates.
        options: `weight_steps`, `newton`, `activations`, `private`, `config`, `microbatch`,
            `device`: see `MacOptions`.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: a model that is not fully connected, targets that the loss does not take, or
            numbers that do not fit each other; before anything is spent. Or weights that are no
            longer finite, because steps were too long.
    """
    require_one_process("DP-MAC")
    require_kinds(plan, model, output_named, learning_rate_schedule, ledger, streams, {})
    calls = Callbacks(callbacks)
    computed = {
        name: value for name, value in options.items() if name in ("config", *compute.names())
    }
    config = ComputeConfig.of(computed).of_method("dpmac")
    others: dict[str, Any] = {
        name: value for name, value in options.items() if name not in computed
    }
    settings, output = (
        MacSettings(coordinates, mu, config, **others),
        output_named(loss, _bound(plan).order),
    )
    settings.require_fit(plan, checkpoint)
    session = TrainingSession(plan, ledger, streams, checkpoint, charged=settings.private)
    task = MacTask(session, model, output, dataset, learning_rate_schedule, settings)
    descent = optimizer_from(optimizer, task.parameters)
    require_plain_optimizer(descent, "dpmac")
    run_facts = task.facts(session, descent, learning_rate_schedule)
    calls.begin(session, task.steps, descent)
    task.train(
        session,
        task.batches(session, descent),
        RateSchedule(descent, learning_rate_schedule),
        calls,
    )
    return calls.ended(task.result(session, run_facts))


@checked
@final
@dataclass(frozen=True)
class MacSettings:
    """How a run of DP-MAC computes: arguments of `dpmac` and `MacOptions`."""

    coordinates: Coordinates
    mu: float | Schedule
    config: ComputeConfig = ComputeConfig()  # noqa: RUF009 - a frozen value
    weight_steps: int = 1
    newton: float | None = None
    activations: Activations | None = None
    private: bool = True

    def require_fit(self, plan: Plan, checkpoint: object) -> None:
        """Refuse settings that do not fit each other."""
        bound = _bound(plan)
        count("weight_steps", self.weight_steps, most=10_000)
        if self.newton is not None and positive("newton", self.newton) and bound.order == 1:
            raise BadInput(
                f"newton is {self.newton:g}, and the expansion is of first order: Newton steps "
                "need second derivatives, pv.mac.Derivatives(first, second=...)"
            )
        if plan.reacts:
            raise BadInput(
                "dpmac has no validation schedule: use constant, time, exp, step or poly"
            )
        if plan.rows_per_person is not None:
            raise BadInput(
                "dpmac protects rows, and the plan's examples are persons: use dpsgd, or "
                "group_size for a declared number of rows"
            )
        if plan.temperature is not None:
            raise BadInput(
                "dpmac has no temperature after it: use dpsgd, or leave it out of the plan "
                "(temperature=None)"
            )
        if any(isinstance(transform, SelectFeatures) for transform in plan.front):
            raise BadInput(
                "dpmac has no selection of features before it: use dpsgd, or "
                "pv.transforms.PrivatePCA"
            )
        learned = bound.learned if isinstance(bound, Derivatives) else None
        if learned and learned.after >= plan.epochs:
            raise BadInput(
                f"thresholds are learned after {learned.after} epochs, and the run has "
                f"{plan.epochs}: nothing would come after it"
            )
        if checkpoint is not None and (self.coordinates.stored or not self.private):
            raise BadInput(
                "a run with stored coordinates, or without noise, can't be continued: leave out "
                "the checkpoint, or Coordinates(stored=False)"
            )

    def mu_at(self, epoch: float) -> float:
        """The weight of the hidden layers' objectives."""
        return self.mu(epoch) if isinstance(self.mu, Schedule) else float(self.mu)


@final
class MacTask:
    """Rows, layers, output and plan that fit each other; whatever can be refused is refused here.

    Args:
        session: of the run.
        model: as of `dpmac`.
        output: what its last layer is compared by.
        given: the rows.
        rates: the schedule of the learning rates.
        settings: how it computes.

    Attributes:
        parameters: what is trained.
        steps: in an epoch.
    """

    def __init__(
        self,
        session: TrainingSession,
        model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
        output: Output,
        source: Given,
        rates: Schedule,
        settings: MacSettings,
    ) -> None:
        self.plan = plan = session.plan
        self.settings, self._output, self._bound = settings, output, _bound(plan)
        self._data = data = rows(source, plan.sampling)
        x, y = data.tensors()
        require_same_examples(plan, data)
        require_rows_once(plan, source, data)
        plan.sampling.require_rows(len(x))
        self._examples = plan.examples or len(x)
        session.count_examples(len(x), (x, y))
        self._front = Front(plan.front, data, x)
        self._x, shape = self._front.rows, self._front.shape
        warn_of_absent(self._x)
        require_public_numbers(self._examples, rates)
        self._network = model if isinstance(model, nn.Module) else network_from(model, shape)
        self._network.to(device_of(settings.config.device, self._network)).train()
        self._layers = layers = layers_of(self._network, settings.activations)
        _require_inputs(layers, shape)
        self._y = targets(output, y, layers[-1].linear.out_features, layers[0].weight().cpu())
        self._watch = LayerDiagnostics(len(layers))
        self._derivatives = BatchDerivatives(
            layers,
            output,
            self._bound,
            plan.neighbours,
            settings.coordinates,
            examples=len(x),
            at_once=settings.config.microbatch,
            observe=self._watch.see,
        )
        self.parameters = [parameter for layer in layers for parameter in layer.parameters]
        self.steps = plan.sampling.steps(len(x))
        session.draws(len(x))
        if isinstance(settings.mu, int | float):
            positive("mu", settings.mu)

    def batches(self, session: TrainingSession, descent: torch.optim.Optimizer) -> MacSteps:
        """What is done with each batch."""
        divisor = self.plan.sampling.expected_batch_size(self._examples)
        weights = WeightSteps(
            self._layers,
            self._bound,
            descent,
            divisor,
            self.settings.weight_steps,
            self.settings.newton,
        )
        shares = shares_of_parts(self._bound, len(self._layers))
        return MacSteps(
            self._derivatives,
            weights,
            shares,
            session.ledger,
            session.streams,
            self.settings.private,
        )

    def facts(
        self, session: TrainingSession, descent: torch.optim.Optimizer, rates: Schedule
    ) -> dict[str, Any]:
        """Public values of the run; they are also what a resumed run must have in common with its
        checkpoint.
        """
        settings, described = self.settings, self._front.described()
        run_facts = {
            **training_facts(
                self._examples, self.plan.epochs * self.steps, descent, rates, described
            ),
            "objective": self._output.name,
            "coordinates": settings.coordinates.describe(),
            "mu": settings.mu if isinstance(settings.mu, int | float) else spec(settings.mu),
            "weight_steps": settings.weight_steps,
            "newton": settings.newton,
            "noise": "on a grid" if session.streams.noise.discrete else "floating point",
        }
        session.device = device_of(None, self._network)
        session.parts = {
            "network": self._network,
            "optimizer": descent,
            "gradients": self._derivatives,
            "diagnostics": self._watch,
        }
        if session.file:
            session.facts = facts(
                self._network,
                self._output.losses,
                (self._x, self._y),
                None,
                None,
                plan=self.plan,
                microbatch=settings.config.microbatch,
                **run_facts,
            )
            session.code = {"code": code_digest(settings.mu, settings.activations, self._network)}
        return run_facts

    def train(
        self,
        session: TrainingSession,
        batches: MacSteps,
        rates: RateSchedule,
        calls: Callbacks,
    ) -> None:
        """Take all batches of the plan, each charged before its noise is drawn, unless a callback
        stops it.
        """
        plan, mu = self.plan, self.settings.mu_at
        learned = self._bound.learned if isinstance(self._bound, Derivatives) else None
        with _clear_gradients(self.parameters), session.charging():
            x, y = self._front.fit(session, self._x, None, None).flatten(1), self._y
            if session.left:
                return
            for epoch, sigma in enumerate(plan.noise_multipliers()):
                if learned and epoch == learned.after:
                    batches.learn(learned, plan.neighbours, x, y, mu(epoch))
                if session.released(epoch, sigma):
                    continue
                for step, sample in session.batches(epoch, sigma, len(x)):
                    rates.at(epoch + step / self.steps)
                    batches.take(sample, x, y, sigma, mu(epoch + step / self.steps))
                    session.record(sample, list(self.parameters))
                    with session.or_abandon():
                        require_finite(
                            self.parameters, rates.first, f"epoch {epoch + 1}, step {step + 1}"
                        )
                    if calls.stepped(epoch, step, sigma):
                        session.keep_end()
                        return
                self._watch.end_epoch()
            session.end(plan.epochs)

    def result(self, session: TrainingSession, run_facts: dict[str, Any]) -> Result:
        """The trained model, and what can be published of it."""
        network = self._network
        network.to(
            "cpu" if self.settings.config.device is not None else device_of(None, network)
        ).eval()
        shapes = {
            "input_shape": list(self._data.x.shape[1:]),
            "network_input_shape": list(self._front.shape),
        }
        return Result(
            model=nn.Sequential(*self._front.modules, network).eval(),
            ledger=session.ledger,
            plan=self.plan,
            method="dpmac",
            facts=run_facts
            | ({"thresholds": self._derivatives.thresholds} if self._derivatives.learned else {})
            | session.facts_of_leaving(),
            architecture=shapes | self._data.origin(),
            seeded=session.streams.seeded,
            private_diagnostics=PrivateDiagnostics(self._watch.figures),
            checkpoint=session.file,
            **self._describe_network(),
        )

    def _describe_network(self) -> dict[str, Any]:
        """What a folder builds the network again from, where one output is a value, or several are
        scores of classes: only these are what `predict` reads.
        """
        network, outputs = self._network, self._layers[-1].linear.out_features
        flat = len(self._front.shape) == 1 or isinstance(next(network.children()), nn.Flatten)
        if not flat or (self._output is SQUARED) is not (outputs == 1):
            return {}
        text = layers_text(network)
        return {} if text is None else {"model_spec": text, "classes": outputs}


def _bound(plan: Plan) -> Layerwise:
    """How the plan bounds derivatives.

    Raises:
        BadInput: it is a plan for DP-SGD.
    """
    if isinstance(plan.clip, Derivatives | Analytic):
        return plan.clip
    raise BadInput(
        f"the plan's clip is {plan.clip!r}, for gradients: dpmac needs pv.mac.Derivatives(0.3), or "
        "pv.mac.Analytic(z_norm=...)"
    )


def _require_inputs(layers: Sequence[Layer], shape: tuple[int, ...]) -> None:
    features = torch.Size(shape).numel()
    if features != layers[0].linear.in_features:
        raise BadInput(
            f"examples have {features} features (shape {shape}), and the first layer takes "
            f"{layers[0].linear.in_features}: "
            "expected a network for rows of that shape"
        )


@contextmanager
def _clear_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
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
        private: whether there is noise; without it nothing is charged here, and the run must have
            been marked as such.
    """

    derivatives: BatchDerivatives
    weights: WeightSteps
    shares: Sequence[float]
    ledger: Ledger
    streams: Streams
    private: bool = True

    def take(
        self, sample: Sample, x: Tensor, y: Tensor, noise_multiplier: float, mu: float
    ) -> None:
        """Release the derivatives of one batch, jointly, and step on the objectives that they
        make.
        """
        parts = self.derivatives(sample, x, y, mu)
        released = self._release(parts, noise_multiplier, self.shares)
        scale = noise_multiplier if self.private else 0.0
        noise = [
            scale * part.sensitivity / share for part, share in zip(parts, self.shares, strict=True)
        ]
        self.weights.take(self.derivatives.released(released), noise)

    def learn(
        self, learned: Histogram, adjacency: Adjacency, x: Tensor, y: Tensor, mu: float
    ) -> None:
        """Release histograms of derivative norms on all the data, and take the thresholds from them
        (Algorithm 2).
        """
        (everybody,) = FullBatch().draw(len(x))
        if self.derivatives.learned:  # released before an interruption
            everybody.spend(learned.event(), adjacency, self.ledger)
            return
        parts = self.derivatives.histograms(everybody, x, y, mu)
        self.derivatives.learn(self._release(parts, learned.noise_multiplier))

    def _release(
        self,
        parts: Sequence[Bounded],
        noise_multiplier: float,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        """The parts' values with noise; as they are in a run that is not private."""
        if not self.private:
            return [value for part in parts for value in part.values]
        noisy = release(
            *parts,
            noise_multiplier=noise_multiplier,
            ledger=self.ledger,
            stream=self.streams.noise,
            shares=shares,
        )
        return [value for values in noisy for value in values]
