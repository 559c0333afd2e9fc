"""A plan is public numbers that fix every event of a run before any data is touched, and that a
certificate carries.

`AbstractPlan` is what all of them are: events, price, calibration, JSON. `Plan` is that of DP-SGD
and DP-MAC.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from privlearn import _public
from privlearn._checks import count, with_plain_numbers
from privlearn._display import Described, plan_summary
from privlearn._public import OMITTED, expect, is_registered, registered
from privlearn.core.accounting import accountant
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.budget import Budget, require_budget
from privlearn.core.accounting.events import Composed, Event, compose
from privlearn.core.accounting.filters import Limit, fits
from privlearn.core.accounting.guarantee import ALL, Adjacency, Guarantee, PrivacyUnit
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.clips import Clip, Flat
from privlearn.core.clipping.derivative_bounds import Derivatives, Layerwise
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.run_facts import GradientFacts, RunFacts
from privlearn.core.sampling import Sampler
from privlearn.core.schedules import (
    LEAST_NOISE,
    MOST_EPOCHS,
    Constant,
    NoiseSchedule,
    PerEpoch,
    ReactingSchedule,
)
from privlearn.core.transform import (
    PrivateTransform,
    Transform,
    check_choices,
    other_features,
    priced,
    require_chain,
)
from privlearn.errors import BadInput, UnsoundExtension

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from privlearn.core.temperature import Temperature

expect("temperature", "privlearn.core.temperature")

#: In place of a number of examples that is not known: more than there are.
_MANY = 10**15
_STEEPEST = 1e6
#: Why add/remove neighbours need a declared number of examples, and what to do.
UNDECLARED = (
    "add_remove neighbours differ in the number of examples, and none is declared: the length of "
    "the data would then stand in the certificate. Declare a public number with examples=N, or use "
    "zero_out, which costs the same and says that the number is public"
)
_EXAMPLES = {
    "sampling": "pv.Poisson(sampling_rate=0.01)",
    "schedule": "pv.schedules.Exponential(k=0.01)",
    "clip": "pv.Flat(0.1)",
}


class AbstractPlan(Described, ABC):
    """Public numbers that fix what a run is charged. Concrete plans are final, frozen and
    registered dataclasses.

    Attributes:
        adjacency: the kind of neighbour.
        group_size: examples of one person that are protected together.
        budget: what the plan was calibrated to; the limit of the ledger.
    """

    kind: ClassVar[str]
    #: The shape of the facts that its runs state, a `TypedDict`: others are neither published nor
    #: verified.
    facts_shape: ClassVar[Any] = RunFacts
    budget: Budget | None
    _summary = plan_summary
    _parsed: ClassVar[tuple[str, ...]] = ("adjacency",)  # texts, too

    @abstractmethod
    def event(self) -> Composed:
        """Everything that the run will be charged, in order.

        Raises:
            BadInput: the noise was not settled yet.
        """

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The plan with `factor` times the noise, as far as a target is met by it."""

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """What a model card says of the plan: a label and a text each."""

    @abstractmethod
    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """What contradicts the plan in `facts`, which the run stated: each a sentence.

        Raises:
            BadInput, KeyError, TypeError, ValueError, AttributeError: facts are missing or of other
                types.
        """

    def fact_rows(self, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What a card says of the facts that this plan's method alone states, with checks as of
        `follows`.
        """
        return []

    @property
    def summary(self) -> str:
        """What a model card says before `rows`."""
        return ""

    def card_words(self, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """The method's own answers, by `publishing.questions`; and what is "Not protected", and
        "Releases" are.
        """
        return {}

    def trained(self, facts: Mapping[str, Any]) -> AbstractPlan:
        """The plan that trained the published model: itself, or that of the candidate which `facts`
        say was chosen.
        """
        return self

    @property
    def trainings(self) -> tuple[AbstractPlan, ...]:
        """The plans of the runs that it chooses among; none of a plan of one run."""
        return ()

    @property
    def neighbours(self) -> Adjacency:
        """The plan's adjacency, settled."""
        return self.adjacency  # type: ignore[attr-defined,no-any-return]

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        return PrivacyUnit(self.group_size)  # type: ignore[attr-defined]

    def guarantee(self, delta: float) -> Guarantee:
        """The tightest sound guarantee of the whole run at `delta`."""
        return self.guarantees(delta)[0]

    @with_plain_numbers
    def guarantees(self, delta: float) -> tuple[Guarantee, ...]:
        """Every sound guarantee of the whole run at `delta`, the tightest first."""
        unit = self.unit
        priced = accountant.guarantees(self.event(), self.neighbours, delta, unit.group_size)
        return tuple(replace(each, rows_per_person=unit.rows_per_person) for each in priced)

    def calibrate(
        self, *, epsilon: float | None = None, delta: float | None = None, rho: float | None = None
    ) -> Self:
        """Scale the noise so that the whole run, earlier releases included, meets a target.

        What is spent ends at most at the target, and within 0.3% of it.

        Raises:
            BadInput: a target out of range, or one that what is not scaled exceeds by itself.
            UnsupportedEvent: a target rho under Poisson sampling, or by random stopping.
        """
        from privlearn.core.accounting.calibration import Spending  # for those who calibrate

        budget = Budget(epsilon, delta, rho, self.unit.group_size)
        at, start = self._by_factor(budget)
        factor = self._solved(
            budget, Spending(budget, lambda factor: at(factor).event(), self.neighbours), start
        )
        return replace(at(factor), budget=budget)  # type: ignore[type-var]

    def with_room_for(self, *others: Planned) -> Self:
        """Raise the noise, so that this plan and the others together meet the target that it was
        calibrated to.

        What they cost together ends at most at the target, and within 0.3% of it. All are fixed
        beforehand, so approve them together, before the first release:
        `ledger.approve(plan, *others)`. Their costs are added up: that they are about other people
        is not checked.

        Raises:
            BadInput: no target, noise that follows validations, another unit of protection, or
                others that alone take up the target.
            AdjacencyMismatch: another kind of neighbour.
        """
        from privlearn.core import solving  # for those who solve for a number of a plan

        return self.scaled(solving.factor_beside(self, others))

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], Self], float]:
        """The plan by the factor on its noise, and a first guess of that. Refuses what no factor
        can meet.
        """
        return self.scaled, 1.0

    def _solved(self, budget: Budget, spent: Callable[[float], float], start: float) -> float:
        """The factor at which what is spent meets `budget`."""
        from privlearn.core.accounting.calibration import solve_noise  # for those who calibrate

        return solve_noise(spent, budget.limit, start)

    def stated(self) -> AbstractPlan:
        """The plan as it is published: with values in place of functions that are the user's
        own.
        """
        return self

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values, which `privlearn.publishing.certificate.read` reads back
        as an equal plan.

        Raises:
            BadInput: it holds an object of a class that was not registered.
        """
        written: dict[str, Any] = _public.to_json(self.stated())
        return written


@final
@registered
@dataclass(frozen=True, repr=False)
class Plan(AbstractPlan):
    """A run of DP-SGD or DP-MAC as public numbers; its event tree is known before training and is
    then the ledger's.

    Attributes:
        sampling: how batches are drawn, which also says what a release on them costs.
        epochs: how many epochs run; with a validation schedule, at most.
        schedule: the noise multiplier of each epoch; a shape until `calibrate` or `within` settles
            it.
        clip: how gradients are clipped; for DP-MAC `Derivatives` or `Analytic`.
        adjacency: the kind of neighbour; by default the sampler's, and zero-out where that is
            add/remove and `examples` is None.
        examples: the declared, public number of examples that sums are divided by; None: the data's
            length, which the certificate states: so it is public, and nothing holds for add/remove
            neighbours, which differ in it.
        front: the transforms in front of the network, in this order: public transforms, and
            transforms that are made by a release before training, on the same ledger.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most: every
            target and every guarantee is then for all of them together.
        rows_per_person: where the data carry person ids: how many rows of each person take part at
            most (public). An example is then a person: rates, batches and `examples` count persons,
            and the guarantee protects one.
        filter: for a validation schedule, the limit of its training, which `calibrate` or `within`
            sets: it is charged and claimed as a whole, however much of it the run comes to spend.
        temperature: a release after training by which scores are made probabilities; None: there is
            none.
        correlation: how the noise of a step depends on that of earlier ones, as
            `pv.mechanisms.Banded`; None: it is independent.
        persons: whether an example is a person with all their rows, however many: a client of a
            federation, whose update is clipped as a whole (`privlearn.flower.train_federated`).

    Raises:
        UnsupportedEvent: the sampler is not priced for the adjacency.
        BadInput: a number out of range, or add/remove neighbours without a declared number of
            examples.
    """

    sampling: Sampler
    epochs: int = 30
    schedule: NoiseSchedule = Constant()  # noqa: RUF009 - a frozen value
    clip: Clip | Layerwise = Flat(0.1)  # noqa: RUF009 - a frozen value
    adjacency: Adjacency | None = None
    examples: int | None = None
    front: tuple[Transform, ...] = ()
    budget: Budget | None = None
    group_size: int = 1
    rows_per_person: int | None = None
    filter: Limit | None = None
    temperature: Temperature | None = None
    correlation: Correlation | None = field(default=None, metadata=OMITTED)
    persons: bool = field(default=False, metadata=OMITTED)
    kind: ClassVar[str] = "gradients"
    facts_shape: ClassVar[Any] = GradientFacts

    def __post_init__(self) -> None:
        for name, kind in (
            ("sampling", Sampler),
            ("schedule", NoiseSchedule),
            ("clip", Clip | Layerwise),
        ):
            if not isinstance(getattr(self, name), kind):
                raise BadInput(
                    f"{name} is {getattr(self, name)!r}: expected a {name} such as "
                    f"{_EXAMPLES[name]}"
                )
        require_chain(self.front, Transform)
        if self.temperature is not None:
            # a release of its own, which few plans have
            from privlearn.core.temperature import Temperature

            if not isinstance(self.temperature, Temperature):
                raise BadInput(
                    f"temperature is {str(self.temperature)[:60]}: expected a privlearn "
                    "Temperature, or None"
                )
        require_budget(self.budget)
        count("epochs", self.epochs, most=MOST_EPOCHS)
        if isinstance(self.clip, Clip) and self.clip.moves:
            for epoch in range(self.epochs):
                self.clip.at(epoch)
        if self.examples is not None:
            self.sampling.require_rows(count("examples", self.examples))
        self._settle_adjacency()
        PrivacyUnit(self.group_size, self.rows_per_person)
        if self.persons is not False:
            _client_plans().require_federated(self)
        if self.rows_per_person is not None:
            # "all" would have no limit to what a person adds
            count("rows_per_person", self.rows_per_person)
        if self.rows_per_person is not None and not all(
            release.prices_persons for release in self.releases
        ):
            raise BadInput(
                "features are selected and standardised by rows, and the plan's examples are "
                "persons: leave out pv.transforms.SelectFeatures (select=) and "
                "pv.transforms.Moments (normalise=), or protect up to K rows of one person "
                "together, with group_size=K and data without person ids"
            )
        if self.group_size > 1 and not self.sampling.prices_groups:
            raise BadInput(
                f"{self.sampling.kind} batches are priced for one example, and group_size is "
                f"{self.group_size}: use poisson batches, or persons as examples, by "
                "rows_per_person="
            )
        if self.budget is not None:
            object.__setattr__(self, "budget", self.budget.for_group(self.group_size))
        require_filter(self)
        if self.correlation is not None:
            require_correlated(self, self.correlation)

    @property
    def releases(self) -> tuple[PrivateTransform, ...]:
        """The transforms in front that are made by a release, in their order."""
        return tuple(
            transform for transform in self.front if isinstance(transform, PrivateTransform)
        )

    @property
    def reacts(self) -> bool:
        """Whether the noise follows accuracies, so that only its limit is known beforehand."""
        return isinstance(self.schedule, ReactingSchedule)

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        return PrivacyUnit(self.group_size, ALL if self.persons else self.rows_per_person)

    def noise_multipliers(self) -> tuple[float, ...]:
        """The noise multiplier of each epoch, the same whenever it is asked.

        Raises:
            UnsoundExtension: the schedule gives no finite numbers, or others than before.
            BadInput: the schedule reaches 0 within the epochs, or follows validations, so that it
                is not known yet.
        """
        if isinstance(self.schedule, ReactingSchedule):
            raise BadInput(
                "the noise of a validation schedule follows from accuracies that are not known "
                "before the run: what is known are its start, schedule.start, and its limit, "
                "filter"
            )
        values = tuple(self.schedule(epoch) for epoch in range(self.epochs))
        name = type(self.schedule).__name__
        if odd := [
            value
            for value in values
            if not (isinstance(value, float | int) and math.isfinite(value))
        ]:
            raise UnsoundExtension(
                f"the schedule {name} gives {str(odd[0])[:40]} as the noise multiplier of an "
                "epoch: expected a finite number"
            )
        self._require_settled(
            "noise", values, f"the schedule {name} gives other noise multipliers than before"
        )
        if min(values) < LEAST_NOISE:
            first = next(epoch for epoch, value in enumerate(values) if value < LEAST_NOISE)
            fall = "0" if values[first] == 0 else f"{values[first]:.3g}"
            raise BadInput(
                f"the noise schedule falls to {fall} at epoch {first}, which gives no privacy: use "
                "end= above 0, a slower decay or fewer epochs"
            )
        return values

    def batches_event(self, noise_multiplier: float) -> Event:
        """What the batches of an epoch at this noise cost, the same whenever it is asked.

        Raises:
            UnsoundExtension: the sampler says something else than before.
        """
        event = self.sampling.epoch_event(Gaussian(noise_multiplier))
        name = type(self.sampling).__name__
        self._require_settled(
            noise_multiplier, event, f"the sampler {name} prices an epoch otherwise than before"
        )
        return event

    def _require_settled(self, what: object, value: object, otherwise: str) -> None:
        """What was priced is what is run: the first value is remembered, and any other one
        refused.
        """
        if vars(self).setdefault("_priced", {}).setdefault(what, value) != value:
            raise UnsoundExtension(
                f"{otherwise}: what a run costs has to be fixed before it. Have the class compute "
                "it from its fields alone"
            )

    @with_plain_numbers
    def epoch_event(self, noise_multiplier: float) -> Event:
        """What an epoch at this noise costs, with its validation if that is charged."""
        batches = self.batches_event(noise_multiplier)
        paid = self.schedule.noise if isinstance(self.schedule, ReactingSchedule) else None
        return batches if paid is None else compose([batches, Gaussian(paid)])

    def event(self) -> Composed:
        """Everything that the run will be charged, in order.

        Raises:
            BadInput: the noise falls to 0, or follows validations and no limit was settled.
        """
        if isinstance(self.schedule, ReactingSchedule):
            if self.filter is None:
                raise BadInput(
                    "a plan with a validation schedule has no price before it has a limit: settle "
                    "it with plan.within(budget), or plan.calibrate(epsilon=, delta=) or (rho=)"
                )
            during: list[Event] = [self.filter]
        else:
            during = [self.epoch_event(sigma) for sigma in self.noise_multipliers()]
        if isinstance(self.clip, Derivatives) and self.clip.learned:
            during.insert(self.clip.learned.after, self.clip.learned.event())
        return compose([*priced(self.front), *during, *self._after()])

    @with_plain_numbers
    def scaled(self, factor: float) -> Plan:
        """The plan with a schedule `factor` times as high; a filter is settled anew by what scaled
        it.
        """
        return replace(self, schedule=self.schedule.scaled(factor))

    def calibrate(
        self, *, epsilon: float | None = None, delta: float | None = None, rho: float | None = None
    ) -> Plan:
        """As of every plan: the schedule is scaled so that the whole run meets a target for its
        epochs.

        A validation schedule starts at the noise that would last for its epochs if it never fell;
        its filter is as wide as the target allows.

        Raises:
            BadInput: a target out of range, or one that the earlier releases alone exceed.
            UnsupportedEvent: a target rho under Poisson sampling.
        """
        if not isinstance(self.schedule, ReactingSchedule):
            return super().calibrate(epsilon=epsilon, delta=delta, rho=rho)
        from privlearn.core import solving  # for those who solve for a number of a plan

        budget = Budget(epsilon, delta, rho, self.group_size)
        solving.require_room(self, budget)
        return solving.start_reacting(self, self.schedule, budget)

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], Plan], float]:
        from privlearn.core import solving  # for those who solve for a number of a plan

        solving.require_room(self, budget)
        shape = self.noise_multipliers()
        if max(shape) > _STEEPEST * min(shape):
            raise BadInput(
                f"the noise schedule falls by a factor of {max(shape) / min(shape):.3g}: no noise "
                "suits both its ends. Use a slower decay or fewer epochs"
            )
        return self.scaled, 1.0 / min(shape)

    def stated(self) -> Plan:
        """Itself, with the values that a schedule of the user's own gave."""
        if is_registered(self.schedule):
            return self
        return replace(self, schedule=PerEpoch(self.noise_multipliers()))

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of how it was trained."""
        sampling = ", ".join(f"{name} {value}" for name, value in vars(self.sampling).items())
        earlier = [release.text() for release in self.releases]
        earlier += (
            [self.clip.learned.text()]
            if isinstance(self.clip, Derivatives) and self.clip.learned
            else []
        )
        clip = (
            self.clip.text()
            if isinstance(self.clip, Clip)
            else f"{self.clip.kind}, norm {self.clip.clip_norm:g}, expansion of order "
            f"{self.clip.order}"
        )
        counted = "examples" if self.unit.rows_per_person is None else "persons"
        number = "the length of the data, not protected"
        return [
            ("batches", f"{self.sampling.kind}{': ' + sampling if sampling else ''}"),
            *(_reacting_plans().describe(self) if self.reacts else self._noise_rows()),
            ("clipping", clip),
            (
                f"{counted} (divisor of sums)",
                number if self.examples is None else f"{self.examples}, declared by the publisher",
            ),
            ("releases before training", ", ".join(earlier) or "none"),
            *(
                []
                if self.temperature is None
                else [("release after training", self.temperature.text())]
            ),
        ]

    def plot(
        self, axes: Axes | None = None, *, of: str = "noise", delta: float | None = None
    ) -> Axes:
        """The noise by epoch, or `of="epsilon"` what is spent by step; on new axes by default
        (`pictures.draw`).
        """
        from privlearn.core import pictures  # for those who have matplotlib and draw

        return pictures.draw(self, axes, of, delta)

    def _noise_rows(self) -> list[tuple[str, str]]:
        sigmas = self.noise_multipliers()
        noise = (
            f"{sigmas[0]:.4g}"
            if len(set(sigmas)) == 1
            else f"{sigmas[0]:.4g} falling to {sigmas[-1]:.4g}"
        )
        correlated = (
            [] if self.correlation is None else [("noise of steps", self.correlation.text())]
        )
        return [("epochs", str(self.epochs)), ("noise multiplier", noise), *correlated]

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """What contradicts the plan: another divisor than declared, other choices, noise that
        follows anything else.
        """
        problems = compare_rows(self, facts["examples"])
        if self.examples is not None and facts["examples"] != self.examples:
            problems.append(
                f"sums were divided by {str(facts['examples'])[:40]} examples, and the plan "
                f"declares {self.examples}"
            )
        steps = self.sampling.steps(1)
        epochs = facts["epochs"] if self.filter else self.epochs
        most, taken = steps * epochs, facts["steps"]
        fits = 0 <= taken <= most if facts.get("left_early") is True else taken == most
        if steps == self.sampling.steps(10**9) and not fits:  # it does not depend on the rows
            problems.append(f"{str(taken)[:40]} steps are stated, and {epochs} epochs have {most}")
        if not 0 <= facts.get("weights_of_step", 0) <= taken or {"average", "weights_of_step"} <= (
            facts.keys()
        ):
            problems.append("weights_of_step is no step that was taken, or the weights are a mean")
        if (self.temperature is not None and facts.get("left_early") is not True) != (
            "fitted_temperature" in facts
        ):
            problems.append(
                "a temperature is stated that the plan does not release, or none that it does"
            )
        if self.persons != ("federation" in facts):
            problems.append(
                "the plan is for clients of a federation and the run was none, or the other way "
                "round"
            )
        chosen = (release.features_chosen for release in self.releases)
        check_choices(facts, [number for number in chosen if number is not None])
        return problems + other_features(self.front, facts) + contradictions(self, facts)

    def fact_rows(self, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What a card says of a federation."""
        return _client_plans().fact_rows(facts) if self.persons else []

    def card_words(self, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Who has to be trusted in a federation, and what is released of it."""
        return _client_plans().card_words(facts) if self.persons else {}

    def within(self, budget: Budget, most: int | None = None) -> Plan:
        """Keep the schedule as it is and run until the budget ends, or for `most` epochs.

        The last epoch that is run still fits as a whole (Yu et al. 2019, Algorithm 1, line 7).
        Under a validation schedule this is for the run itself to see; its epochs are then those
        that fit if the noise never fell.

        Raises:
            BadInput: not even one epoch fits.
            UnsupportedEvent: a budget of rho under Poisson sampling.
        """
        from privlearn.core import solving  # for those who solve for a number of a plan

        return solving.within(self, budget, most)

    def with_rate(self, budget: Budget) -> Plan:
        """Keep start, epochs and batches, and solve for the schedule's rate k.

        Raises:
            BadInput: a constant schedule, or no k meets the budget.
        """
        from privlearn.core import solving  # for those who solve for a number of a plan

        return solving.with_rate(self, budget)

    def with_batch_size(self, budget: Budget, examples: int) -> Plan:
        """Keep noise and epochs, and solve for the largest batch size that the budget allows.

        One example a batch more would overshoot.

        Raises:
            BadInput: batches are not sampled, so that their size costs nothing; or not even one
                example a batch fits.
        """
        from privlearn.core import solving  # for those who solve for a number of a plan

        return solving.with_batch_size(self, budget, examples)

    def _settle_adjacency(self) -> None:
        """Set the kind of neighbour where none is given; raises `UnsupportedEvent`, `BadInput` as
        the class says.
        """
        undeclared = self.examples is None
        if self.adjacency is None:
            usual = self.sampling.default_adjacency
            usual = Adjacency.ZERO_OUT if undeclared and usual is Adjacency.ADD_REMOVE else usual
            object.__setattr__(self, "adjacency", usual)
        object.__setattr__(self, "adjacency", Adjacency.parse(str(self.adjacency)))
        self.sampling.require_neighbours(self.neighbours)
        if undeclared and self.neighbours is Adjacency.ADD_REMOVE:
            raise BadInput(UNDECLARED)

    def _after(self) -> list[Event]:
        return [] if self.temperature is None else [self.temperature.event()]

    def beside(self) -> Composed:
        """What is released before and after training."""
        return compose([*priced(self.front), *self._after()])


def require_filter(plan: Plan) -> None:
    """Refuse a filter where noise does not react, one that not even an epoch fits in, and what
    can't be published.
    """
    limit = plan.filter
    if plan.reacts and not is_registered(plan.schedule):
        raise BadInput(
            f"the schedule {repr(plan.schedule)[:80]} follows accuracies, which could not be "
            "checked: give its class a kind, and @privlearn.core.plan.registered"
        )
    if limit is None:
        return
    if not isinstance(limit, Limit) or not isinstance(plan.schedule, ReactingSchedule):
        raise BadInput(
            f"filter is {repr(limit)[:80]}, and the schedule {repr(plan.schedule)[:80]}: a filter "
            "is for a schedule that reacts alone, such as schedules.Validation, and within and "
            "calibrate set it. Leave it out"
        )
    if not fits(limit, plan.epoch_event(plan.schedule.start)):
        raise BadInput(
            f"not one epoch at noise multiplier {plan.schedule.start:g} fits into {limit}: use "
            "more noise, or settle the limit with within or calibrate"
        )


def _reacting_plans() -> Any:
    from privlearn.core import reacting_plans  # for noise that follows accuracies alone

    return reacting_plans


def _client_plans() -> Any:
    from privlearn.core import client_plans  # for clients of a federation alone

    return client_plans


def contradictions(plan: Plan, facts: Mapping[str, Any]) -> list[str]:
    """What contradicts the plan in what a run tells of its validations: where noise did not react
    there were none.
    """
    if plan.reacts:
        problems: list[str] = _reacting_plans().contradictions(plan, facts)
        return problems
    if {"validation", "noise_multipliers"} & set(facts):
        return ["validations are stated, and noise followed none: it is known beforehand"]
    return []


def require_correlated(plan: Plan, correlation: Correlation) -> None:
    """Refuse what noise that is correlated over steps is not priced for: a norm or a noise that
    changes, few rests.
    """
    if not isinstance(correlation, Correlation):
        raise BadInput(
            f"correlation is {correlation!r}: expected one such as pv.mechanisms.Banded(bands=8), "
            "or None"
        )
    if isinstance(plan.schedule, ReactingSchedule):
        raise BadInput(
            "correlated noise is for a schedule that is known beforehand, and a validation "
            "schedule follows accuracies: use another schedule, or independent noise"
        )
    if not isinstance(plan.schedule, Constant) and not correlation.disjoint:
        raise BadInput(
            f"{correlation.kind} noise is for a constant schedule, and this one is "
            f"{plan.schedule.kind}: its matrix is scaled for times of an example that cost alike. "
            "Use banded noise, or a constant schedule"
        )
    if not isinstance(plan.clip, Clip) or plan.clip.moves:
        raise BadInput(
            "correlated noise is for DP-SGD with a clipping norm that stays, and the clip is "
            f"{plan.clip.kind}: use flat clipping"
        )
    if plan.group_size > 1:
        raise BadInput(
            "correlated noise protects one example, or one person by rows_per_person=: the rows of "
            "a group may be in neighbouring steps, whose noise is not independent. Leave out "
            "group_size, or the mechanism"
        )
    # a run asks again, for the rows that are there
    correlation.require_suited(plan.sampling, plan.examples or _MANY)


def compare_rows(plan: Plan, examples: int) -> list[str]:
    """What contradicts that a run by `plan` had so many rows, which its facts state: each a
    sentence.

    A plan that declares no number of rows is priced for those with which its batches and its noise
    go together. With others a run is refused before it releases anything, so that its price holds
    for every data set; and facts that state them are of no run.
    """
    problems = plan.sampling.contradictions(examples)
    if plan.correlation is not None and not problems:
        try:
            plan.correlation.require_suited(plan.sampling, examples)
        except BadInput as error:
            problems.append(str(error))
    return problems
