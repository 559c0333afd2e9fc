"""These rules settle what a run of DP-SGD was not given, from public numbers alone, each with its
reason.

docs/settings.md has the study behind the rule for linear models, docs/decisions that for networks,
and both say which choices saw test accuracies. Looking at results on private data to choose better
ones would cost privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from privlearn._checks import positive, probability
from privlearn.core import schedules
from privlearn.core.accounting import zcdp
from privlearn.core.mechanisms import matrices
from privlearn.core.plan import Plan
from privlearn.core.temperature import SHARE, Temperature
from privlearn.core.transform import shape_after
from privlearn.errors import BadInput
from privlearn.models.heads import CLASSIFICATION, HEADS, Head, head_of
from privlearn.models.network_spec import kind_of, name_of, text_of
from privlearn.runs import post_processing
from privlearn.training import best_sampling, centring, planning
from privlearn.training.choices import Facts, TrainRequest, weights_of
from privlearn.training.planning import CLIP_NORM, settle_best, solve
from privlearn.transforms.moments import Moments, share_of
from privlearn.transforms.pca import PrivatePCA
from privlearn.transforms.select import SelectFeatures
from privlearn.transforms.specs import Centre, RowNorm, usual

if TYPE_CHECKING:
    from privlearn.models.networks import NetworkSpec

#: Built-in networks whose scores come from a last linear layer.
_CLASSIFIERS = ("linear", "mlp", "cnn")
#: The noise multiplier of private principal directions.
PCA_NOISE = 16.0
#: The part of rho that choosing features takes in front of training.
SELECT_SHARE = 0.2

_ADAPTIVE_RATE = 0.015
#: Asked for most often, and none of `privlearn.optim`.
_OF_TORCH = ("SGD", "Adam", "AdamW")
#: The noise that may gather in a weight over a run, before the learning rate decays.
_GATHERED, _GATHERED_LINEAR = 0.3, 0.6
#: For a linear model on features of mean 0 and variance 1: the noise that may gather in a score of
#: an example.
GATHERED_IN_SCORES = 5.0
#: Below this noise multiplier the noise no longer limits the learning rate.
_LEAST_NOISE = 1.0

#: Rows of numbers scaled to [0, 1] are clipped to this times the root of their length, unless
#: another norm is declared.
SCALED_NORM = 0.5
#: Examples times epsilon from which noisy moments are worth it in front of a linear model on rows
#: of many numbers.
WORTH_MOMENTS = 10_000


@final
@dataclass(frozen=True)
class Setting:
    """One setting of a run: its value, and why it is what it is; None where it was given."""

    name: str
    value: str
    why: str | None


@final
@dataclass(frozen=True)
class Settled:
    """A request with everything decided.

    Attributes:
        request: what was chosen; weights of classes are numbers in the classes' order.
        facts: what it was settled by.
        plan: all that touches privacy.
        initial: public weights to begin with, by name (`state_dict`); None: random ones.
    """

    request: TrainRequest
    facts: Facts
    plan: Plan
    initial: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        weights = weights_of(self.request, self.facts.classes, self.facts.class_names)
        if weights is not None:
            chosen = replace(self.request, class_weights=weights, class_frequencies=None)
            object.__setattr__(self, "request", chosen)

    @property
    def head(self) -> type[Head]:
        """What is learned."""
        return head_of(self.request.task, self.facts)

    @property
    def optimizer(self) -> str:
        """The name of a class of torch.optim or `privlearn.optim`, with its numbers."""
        return self.request.optimizer or "SGD"

    @property
    def learning_rate_schedule(self) -> schedules.Schedule:
        """The learning rate over the run: falling linearly to 0; constant where the end of the run
        is not known.
        """
        if self.request.learning_rate_schedule is not None:
            return schedules.parse_rates(self.request.learning_rate_schedule)
        return (
            schedules.Constant()
            if self.plan.reacts
            else schedules.Polynomial(k=1, end=0, period=self.plan.epochs)
        )

    def learning_rate(self, optimizer: str, initial_norm: float) -> float:
        """The learning rate of an optimizer of that class, for initial weights of that L2 norm."""
        if self.request.learning_rate is not None:
            return positive("the learning rate", self.request.learning_rate)
        norm = public_norm(self.plan, self.facts)
        rate = learning_rate(
            optimizer, self.plan, self.facts.examples, self.request.model, initial_norm, norm
        )
        by_rule = optimizer == "SGD" or _find_kind(optimizer) is not None
        return self.head.usual_rate(rate, self.plan.clip.clip_norm) if by_rule else rate

    def settings(self, optimizer: str, initial_norm: float) -> Iterator[Setting]:
        """Every setting, the learning rate being for initial weights of that norm."""
        for name, value, is_explicit, why in (
            *self._of_rows(),
            *self._of_the_plan(),
            *self._of_the_descent(optimizer, initial_norm),
        ):
            yield Setting(name, value, None if is_explicit else why)

    def _of_rows(self) -> Iterator[tuple[str, str, bool, str]]:
        """The transforms in front of the network, and the network: name, value, whether it was
        chosen, and why.
        """
        chosen, spec = self.request, self.facts.features or "raw"
        yield "features", spec, chosen.features is not None, _why_features(spec)
        why = "noise grows with the number of weights: begin with the least"
        name = text_of(chosen.model) or name_of(chosen.model)
        yield "model", name, name != "linear", why
        moments = any(isinstance(release, Moments) for release in self.plan.releases)
        if any(isinstance(transform, Centre) for transform in self.plan.front):
            yield (
                "normalisation",
                "centred by declared bounds",
                False,
                "costs nothing: numbers on both sides of 0",
            )
        elif moments or chosen.normalise is not None:
            why = (
                f"examples x epsilon is at least {WORTH_MOMENTS:,}: they cost less than they bring"
            )
            yield (
                "normalisation",
                "noisy moments" if moments else "none",
                chosen.normalise is not None,
                why,
            )

    def _of_the_plan(self) -> Iterator[tuple[str, str, bool, str]]:
        """How much is spent on what: name, value, whether it was chosen, and why."""
        plan, chosen, examples = self.plan, self.request, self.facts.examples
        why = best_sampling.WHY if chosen.sampling == best_sampling.BEST else best_sampling.USUAL
        yield (
            "batches",
            plan.sampling.kind,
            chosen.sampling not in ("poisson", best_sampling.BEST),
            why,
        )
        why = (
            f"a fifteenth of {examples} examples, and at least 256, to whole batches; accuracy "
            "is flat around it"
        )
        sized = chosen.batch_size is not None or not isinstance(chosen.sampling, str)
        yield "batch size", f"{plan.sampling.expected_batch_size(examples):.0f}", sized, why
        yield (
            "epochs",
            str(plan.epochs),
            chosen.epochs is not None,
            "60 above epsilon 4, with little noise",
        )
        why = (
            centring.WHY
            if centring.is_table(chosen, self.facts)
            else "so small that nearly all gradients are clipped"
        )
        yield (
            "clipping",
            f"{plan.clip.kind}, norm {plan.clip.clip_norm:g}",
            chosen.clip_norm is not None or not isinstance(chosen.clip, str),
            why,
        )
        noise = noise_text(plan)
        yield (
            "noise multiplier",
            noise,
            chosen.noise_multiplier is not None,
            "what meets the target",
        )
        if plan.correlation is not None:
            is_explicit = (
                chosen.mechanism is not None and len(matrices.choices(chosen.mechanism)) == 1
            )
            yield "mechanism", plan.correlation.text(), is_explicit, best_sampling.WHY
        schedule = schedules.spec(plan.schedule).partition(":")[0]
        yield "noise schedule", schedule, chosen.schedule != "constant", "no decay is needed"

    def _of_the_descent(
        self, optimizer: str, initial_norm: float
    ) -> Iterator[tuple[str, str, bool, str]]:
        """What is done with noisy gradients, and before: name, value, whether it was chosen, and
        why.
        """
        chosen = self.request
        why = "its noise is that of its steps, and is known beforehand"
        yield "optimizer", optimizer, chosen.optimizer is not None, why
        why = (
            f"noise then gathers to {GATHERED_IN_SCORES:g} in a score over the run"
            if self.facts.features
            else "by the noise"
        )
        rate = f"{self.learning_rate(optimizer, initial_norm):.4g}"
        yield "learning rate", rate, chosen.learning_rate is not None, why
        kind, is_explicit = (
            schedules.spec(self.learning_rate_schedule),
            chosen.learning_rate_schedule is not None,
        )
        yield (
            "its schedule",
            kind.partition(":")[0],
            is_explicit,
            "falls to 0, so that the last steps' noise hardly counts",
        )
        for name, row in post_processing.ROWS.items():
            is_explicit = name in chosen.config.post_processing
            yield (
                row.setting,
                row.text(chosen.config.post_processing[name]) if is_explicit else row.usual,
                is_explicit,
                row.why,
            )
        scaled = self.plan.temperature is not None
        why = (
            "scores become probabilities, for 3 % of rho"
            if scaled
            else "for built-in classifiers that meet a target"
        )
        yield (
            "temperature",
            "fitted after training" if scaled else "none",
            chosen.temperature is not None,
            why,
        )
        smoothing, is_explicit = (
            f"{chosen.label_smoothing or 0:g}",
            chosen.label_smoothing is not None,
        )
        yield "label smoothing", smoothing, is_explicit, "loses, where gradients are clipped short"
        if chosen.class_weights is not None:
            yield (
                "weights of the classes",
                ", ".join(f"{weight:.4g}" for weight in chosen.class_weights),
                True,
                "",
            )
        augmentation = chosen.config.augmentation
        why = "whether rows may be moved is for you to say; they take a multiple of the time"
        yield (
            "copies of examples",
            f"{augmentation.copies}, by {augmentation.summary}" if augmentation else "none",
            augmentation is not None,
            why,
        )


def settle(request: TrainRequest, facts: Facts) -> Settled:
    """Decide everything that was not given, from public numbers alone.

    Noise is compared as the weights of SGD hold it, where sampling is `best`; with another
    optimizer, and on a grid, it stays independent.

    Raises:
        BadInput: numbers out of range, no target and no noise, or a target that can't be met.
    """
    if request.sampling == best_sampling.BEST:
        best = settle_best(
            request,
            lambda chosen: settle(chosen, facts),
            lambda settled: settled.plan,
            facts.examples,
            correlated=request.optimizer in (None, "SGD") and not request.discrete,
        )
        chosen = replace(best.request, sampling=best_sampling.BEST, mechanism=request.mechanism)
        return replace(best, request=chosen)
    request = replace(request, task=head_of(request.task, facts).task)  # or refused
    plan = draft(request, facts.examples, centring.clip_norm(request, facts, CLIP_NORM))
    releases = (
        *centring.centred(request, facts),
        *_moments(request, facts),
        *_selection(request, facts),
    )
    plan = replace(
        plan, front=(*facts.front, *releases, *plan.front), temperature=_temperature(request)
    )
    plan = solve(request, plan, facts.examples, discrete=request.discrete)
    return Settled(request, facts, plan)


def draft(request: TrainRequest, examples: int, clip_norm: float = CLIP_NORM) -> Plan:
    """The plan of a request before anything is solved for, with its PCA in front.

    Args:
        request: what was chosen.
        examples: the public number of examples that rates are relative to.
        clip_norm: the usual one.

    Raises:
        BadInput: numbers out of range.
    """
    if request.pca is None and request.pca_noise is not None:
        raise BadInput(
            "pca_noise= is given without pca=: say how many components, for example pca=60"
        )
    plan = planning.draft(request, examples, clip_norm=clip_norm)
    if request.pca is None:
        return plan
    noise = PCA_NOISE if request.pca_noise is None else request.pca_noise
    return replace(plan, front=(PrivatePCA(request.pca, noise),))


def usual_features(request: TrainRequest, facts: Facts) -> str | None:
    """The spec of the public features that are usual in front of a linear model that nothing else
    precedes.
    """
    plain = kind_of(request.model) == "linear" and request.normalise in (None, "none")
    plain &= request.pca is None and request.select is None
    plain &= facts.target_bounds is None and not facts.target_ranges
    signal = facts.examples * (request.epsilon or math.inf)
    return usual(facts.shape, facts.low, signal) if plain else None


def _moments(request: TrainRequest, facts: Facts) -> tuple[Moments, ...]:
    """The release of moments that is asked for, or that is usual, with its share of the target."""
    share = share_of(
        _usual_normalisation(request, facts) if request.normalise is None else request.normalise
    )
    if share is None:
        return ()
    norm, _ = bounds(request, facts)
    return (Moments(facts.numbers, _noise_for(request, share, "normalise"), norm),)


def _usual_normalisation(request: TrainRequest, facts: Facts) -> str:
    """What is usual between rows that are normalised one by one and a linear model: moments, where
    these pay. They are computed on all rows at once, which sparse rows are not.
    """
    plain = not facts.sparse and any(isinstance(transform, RowNorm) for transform in facts.front)
    plain &= request.model == "linear" and request.select is None and request.pca is None
    plain &= request.rows_per_person is None and request.noise_multiplier is None
    return (
        "moments" if plain and facts.examples * (request.epsilon or 0) >= WORTH_MOMENTS else "none"
    )


def _selection(request: TrainRequest, facts: Facts) -> tuple[SelectFeatures, ...]:
    """The selection of features that is asked for, with its share of the target."""
    if request.select is None:
        return ()
    share = SELECT_SHARE if request.select_share is None else request.select_share
    noise = _noise_for(request, probability("select_share", share, open_top=True), "select")
    if facts.classes is None:
        raise BadInput(
            "features are selected by classes, and these data have other targets: declare them "
            "with classes=K"
        )
    norm, bound = bounds(request, facts)
    selection = SelectFeatures(
        request.select, noise, facts.classes, norm, bound, request.criterion or "distance"
    )
    selection.output_shape((facts.numbers,))
    return (selection,)


def _temperature(request: TrainRequest) -> Temperature | None:
    """The release that makes probabilities of scores, with its share of the target; usual for
    built-in classifiers.
    """
    if request.temperature is not None and request.temperature != 0:
        share = probability("temperature", request.temperature, open_top=True)
        return Temperature(_noise_for(request, share, "temperature"))
    usual = (
        kind_of(request.model) in _CLASSIFIERS and request.target and request.class_weights is None
    )
    usual = usual and HEADS[request.task or CLASSIFICATION].tempered
    # a noise that is given stays
    if request.temperature == 0 or not usual or request.noise_multiplier is not None:
        return None
    return Temperature(_noise_for(request, SHARE, "temperature"))


def _noise_for(request: TrainRequest, share: float, what: str) -> float:
    """The noise multiplier of one Gaussian release that takes a share of the target's rho."""
    if request.epsilon is None and request.rho is None:
        # Poisson batches: no amplification in rho
        kind = str(getattr(request.sampling, "kind", request.sampling))
        targets = "epsilon=E" if "poisson" in kind else "epsilon=E or rho=R"
        raise BadInput(f"{what} takes a share of a target: give {targets}")
    target = request.target
    assert target is not None
    rho = target.limit if target.epsilon is None else zcdp.rho_for(target.epsilon, request.delta)
    return float(request.group_size / math.sqrt(2 * share * rho))


def bounds(declared: Any, facts: Facts) -> tuple[float, float | None]:
    """The norm that rows are clipped to, and the bound on their numbers: as declared, or by the
    declared range.

    Public features have the norm that normalising each row gave them, and no bound on single
    numbers.

    Args:
        declared: with `row_norm` and `coordinate_bound`; None where they are not declared.
        facts: of the rows.

    Raises:
        BadInput: no bound is known.
    """
    scaled = facts.low is not None and facts.features is None
    known = SCALED_NORM * math.sqrt(facts.numbers) if scaled else facts.public_norm
    norm = known if declared.row_norm is None else declared.row_norm
    if norm is None:
        raise BadInput(
            "these rows have no declared range, or features of which no norm is known: they need a "
            "public bound. Give row_norm=R"
        )
    usual = 1.0 if scaled else None
    return norm, usual if declared.coordinate_bound is None else declared.coordinate_bound


def public_norm(plan: Plan, facts: Facts) -> float | None:
    """The norm of all rows that the network is given, where it is one and public."""
    if plan.releases:
        numbers = math.prod(shape_after(plan.releases, (facts.numbers,)))
        return math.sqrt(numbers) if plan.releases[-1].normalises else None
    return facts.public_norm


def noise_text(plan: Plan, used: Sequence[float] | None = None) -> str:
    """The noise multipliers of a plan in few words; after a run that reacted, those that it
    used.
    """
    if plan.reacts and used is None:
        return f"{plan.schedule.start:.4g} at first"
    sigmas = plan.noise_multipliers() if used is None else used
    return (
        f"{sigmas[0]:.4g}"
        if len(set(sigmas)) == 1
        else f"{sigmas[0]:.4g} falling to {sigmas[-1]:.4g}"
    )


def _why_features(spec: str) -> str:
    """Why these features are usual."""
    if spec == "raw":
        return "no transform in front of the network"
    if spec.startswith("norm:"):
        return "rows of many non-negative numbers: their roots, then each row by itself to one norm"
    fewer = (
        "; of fewer directions where examples x epsilon is below 3,000" if "kept=" in spec else ""
    )
    return f"images: a linear model learns best from them{fewer}"


def _find_kind(optimizer: str) -> Any:
    """The class of `privlearn.optim` of that name; None for those of torch.optim."""
    if optimizer in _OF_TORCH:
        return None
    from privlearn.optim import noise_aware  # torch, which a price does not need

    return noise_aware.kinds().get(optimizer.lower())


def learning_rate(
    optimizer: str,
    plan: Plan,
    examples: int,
    model: NetworkSpec,
    initial_norm: float,
    row_norm: float | None = None,
) -> float:
    """A learning rate from public numbers.

    Plain SGD adds noise of standard deviation rate x clip_norm x noise_multiplier / batch to a
    weight in each step; the rate is set so that this gathers to 0.3 over the run (0.6 for a linear
    model, which is convex; where the norm of its rows is public, so that it gathers to 5 in the
    score of a row). Networks other than fully connected ones never step further than their initial
    weights are long. Adaptive optimizers get a constant, and those of `privlearn.optim` what
    their classes make of the rate of SGD.

    Args:
        optimizer: the name of a class of torch.optim or `privlearn.optim`.
        plan: the settled plan.
        examples: the declared number of examples.
        model: the model's spec.
        initial_norm: the L2 norm of the initial weights.
        row_norm: the L2 norm of all rows of features, where they are normalised one by one.
    """
    kind = _find_kind(optimizer)
    if optimizer != "SGD" and kind is None:
        return _ADAPTIVE_RATE
    # Noise that reacts never exceeds its start.
    expected = [plan.schedule.start] * plan.epochs if plan.reacts else plan.noise_multipliers()
    sigmas = [max(sigma, _LEAST_NOISE) for sigma in expected]
    walk = math.sqrt(plan.sampling.steps(examples) * math.fsum(sigma**2 for sigma in sigmas))
    # between the noise of a step and that in sums: as long steps as with independent
    if plan.correlation is not None:
        rest, steps = (
            plan.sampling.separation(examples),
            plan.epochs * plan.sampling.steps(examples),
        )
        walk *= math.sqrt(plan.correlation.relative_deviation(steps, rest))
    gathered = _GATHERED_LINEAR if model == "linear" else _GATHERED
    if model == "linear" and row_norm is not None:
        gathered = GATHERED_IN_SCORES / row_norm
    batch = plan.sampling.expected_batch_size(examples)
    limit = math.inf if kind_of(model) in ("linear", "mlp") else initial_norm
    rate = min(gathered * batch / walk, limit) / plan.clip.clip_norm
    if kind is None:
        return rate
    usual: float = kind.usual_rate(rate, plan.clip.clip_norm * sigmas[0] / batch)
    return usual
