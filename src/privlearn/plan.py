"""The plan: public numbers that fix, before any data is touched, every event of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final, get_args

from privlearn._checks import count
from privlearn.accounting import accountant
from privlearn.accounting.budget import Budget, largest, solve_noise, solve_rate
from privlearn.accounting.events import Composed, Event, Repeated, compose, require_adjacency
from privlearn.accounting.filters import Limit, fits, largest_filter, share
from privlearn.accounting.guarantee import Adjacency, Guarantee, PrivacyUnit
from privlearn.accounting.mechanisms import Gaussian
from privlearn.clipping.clips import Clip, Flat
from privlearn.clipping.derivative_bounds import Derivatives, Layerwise
from privlearn.errors import BadInput
from privlearn.sampling import Partition, Poisson, Sampler, named
from privlearn.schedules import Constant, NoiseSchedule, Polynomial, Schedule, Step, Validation
from privlearn.transforms.base import PrivateTransform, Transform, priced
from privlearn.transforms.pca import PrivatePCA

#: Epochs that a plan has at most.
MOST_EPOCHS = 100_000
#: Below this noise multiplier there is no privacy.
LEAST_NOISE = 1e-6
_STEEPEST = 1e6
#: With what scales rows and makes features of them, as many as a published model may have.
_MOST_IN_FRONT = 6
_NOT_KNOWN = (
    "the {} can't be solved for under a validation schedule, whose costs are not known beforehand: solve for the noise or the "
    "epochs, or give --schedule {}"
)
#: Why add/remove neighbours need a declared number of examples, and what to do.
UNDECLARED = (
    "add_remove neighbours differ in the number of examples, and none is declared: the length of the data would then stand in "
    "the certificate. Declare a public number with examples=N (--examples N), or use zero_out, which costs the same and says "
    "that the number is public"
)
_EXAMPLES = {
    "sampling": "pv.Poisson(sampling_rate=0.01)",
    "schedule": "pv.schedules.Exponential(k=0.01)",
    "clip": "pv.Flat(0.1)",
}


@final
@dataclass(frozen=True)
class Plan:
    """A run of DP-SGD or DP-MAC as public numbers; its event tree is known before training and equals the ledger's afterwards.

    Attributes:
        sampling: how batches are drawn, which also says what a release on them costs.
        epochs: how many epochs run; with a validation schedule, at most.
        schedule: the noise multiplier of each epoch; a shape until `calibrate` or `within` settles it.
        clip: how gradients are clipped; for DP-MAC `Derivatives` or `Analytic`.
        adjacency: the kind of neighbour; by default the sampler's, and zero-out where that is add/remove and `examples` is
            None.
        examples: the declared, public number of examples that sums are divided by; None: the data's length, which the
            certificate states: so it is public, and nothing holds for add/remove neighbours, which differ in it.
        front: what stands in front of the network, in this order: public transforms, and transforms that are made by a
            release before training, on the same ledger.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most: every target and every guarantee
            is then for all of them together.
        rows_per_person: where the data carry person ids: how many rows of each person take part at most (public). An
            example is then a person: rates, batches and `examples` count persons, and the guarantee protects one.
        filter: for a validation schedule, the limit of its training, which `calibrate` or `within` sets: it is charged and
            claimed as a whole, however much of it the run comes to spend.

    Raises:
        UnsupportedEvent: the sampler is not priced for the adjacency.
        BadInput: a number out of range, or add/remove neighbours without a declared number of examples.
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

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "sampling": (Sampler,),
            "schedule": (Schedule, Validation),
            "clip": get_args(Clip | Layerwise),
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise BadInput(f"{name} is {getattr(self, name)!r}: expected a {name} such as {_EXAMPLES[name]}")
        if not isinstance(self.front, tuple) or not all(isinstance(transform, Transform) for transform in self.front):
            raise BadInput(
                f"front is {str(self.front)[:60]}: expected a tuple of transforms, such as "
                "(pv.transforms.Scatter(kept=1000), pv.transforms.PrivatePCA(60, 16.0))"
            )
        if len(self.front) > _MOST_IN_FRONT:
            raise BadInput(f"front has {len(self.front)} transforms: expected at most {_MOST_IN_FRONT}")
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise BadInput(
                f"budget is {self.budget!r}: expected a Budget, as calibrate(epsilon=, delta=) sets it, or None"
            )
        count("epochs", self.epochs, most=MOST_EPOCHS)
        if self.examples is not None:
            count("examples", self.examples)
        self._settle_adjacency()
        PrivacyUnit(self.group_size, self.rows_per_person)
        if self.rows_per_person is not None:
            count("rows_per_person", self.rows_per_person)  # "all" would have no limit to what a person adds
        if self.rows_per_person is not None and not all(isinstance(release, PrivatePCA) for release in self.releases):
            raise BadInput(
                "features are selected and standardised by rows, and the plan's examples are persons: leave out "
                "pv.transforms.SelectFeatures "
                "(--select) and pv.transforms.Moments (--normalise), or protect up to K rows of one person "
                "together, with group_size=K "
                "(--group-size K) and data without person ids"
            )
        if self.budget is not None:
            object.__setattr__(self, "budget", self._for_the_unit(self.budget))
        if self.filter is not None:
            self._require_own_filter(self.filter)

    @property
    def releases(self) -> tuple[PrivateTransform, ...]:
        """The transforms in front that are made by a release, in their order."""
        return tuple(transform for transform in self.front if isinstance(transform, PrivateTransform))

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        return PrivacyUnit(self.group_size, self.rows_per_person)

    @property
    def neighbours(self) -> Adjacency:
        """The plan's adjacency, settled."""
        assert self.adjacency is not None
        return self.adjacency

    def noise_multipliers(self) -> tuple[float, ...]:
        """The noise multiplier of each epoch.

        Raises:
            BadInput: the schedule reaches 0 within the epochs, or follows validations, so that nobody knows yet.
        """
        if isinstance(self.schedule, Validation):
            raise BadInput(
                "the noise of a validation schedule follows from accuracies that are not known before the run: what is known "
                "are its start, schedule.start, and its limit, filter"
            )
        values = tuple(self.schedule(epoch) for epoch in range(self.epochs))
        if min(values) < LEAST_NOISE:
            first = next(epoch for epoch, value in enumerate(values) if value < LEAST_NOISE)
            fall = "0" if values[first] == 0 else f"{values[first]:.3g}"
            raise BadInput(
                f"the noise schedule falls to {fall} at epoch {first}, which gives no privacy: use end= above 0, a slower "
                "decay or fewer epochs"
            )
        return values

    def epoch_event(self, noise_multiplier: float) -> Event:
        """What an epoch at this noise costs, with its validation if that is paid for."""
        batches = self.sampling.epoch_event(Gaussian(noise_multiplier))
        paid = self.schedule.noise if isinstance(self.schedule, Validation) else None
        return batches if paid is None else compose([batches, Gaussian(paid)])

    def event(self) -> Composed:
        """Everything that the run will be charged, in order.

        Raises:
            BadInput: the noise falls to 0, or follows validations and no limit was settled.
        """
        if isinstance(self.schedule, Validation):
            if self.filter is None:
                raise BadInput(
                    "a plan with a validation schedule has no price before it has a limit: settle it with "
                    "plan.within(budget), or plan.calibrate(epsilon=, delta=) (on the command line, --epsilon or --rho)"
                )
            during: list[Event] = [self.filter]
        else:
            during = [self.epoch_event(sigma) for sigma in self.noise_multipliers()]
        if isinstance(self.clip, Derivatives) and self.clip.learned:
            during.insert(self.clip.learned.after, self.clip.learned.event())
        return compose([*priced(self.front), *during])

    def other_releases(self) -> list[dict[str, Any]]:
        """Every release that is no epoch's, as plain values, for certificates."""
        learned = self.clip.learned if isinstance(self.clip, Derivatives) else None
        return [
            *({"kind": release.kind, **vars(release)} for release in self.releases),
            *([{"kind": "histogram", **vars(learned)}] if learned else []),
        ]

    def guarantee(self, delta: float) -> Guarantee:
        """The tightest sound guarantee of the whole run at `delta`."""
        return self.guarantees(delta)[0]

    def guarantees(self, delta: float) -> tuple[Guarantee, ...]:
        """Every sound guarantee of the whole run at `delta`, the tightest first."""
        found = accountant.guarantees(self.event(), self.neighbours, delta, self.group_size)
        return tuple(replace(each, rows_per_person=self.rows_per_person) for each in found)

    def calibrate(self, *, epsilon: float | None = None, delta: float | None = None, rho: float | None = None) -> Plan:
        """Scale the schedule so that the whole run, earlier releases included, meets a target for its epochs.

        What is spent ends at most at the target, and within 0.3% of it. A validation schedule starts at the noise that
        would last for its epochs if it never fell; its filter is as wide as the target allows.

        Raises:
            BadInput: a target out of range, or one that the earlier releases alone exceed.
            UnsupportedEvent: a target rho under Poisson sampling.
        """
        budget = Budget(epsilon, delta, rho, self.group_size)
        self._require_room(budget)
        if isinstance(self.schedule, Validation):
            return self._started(self.schedule, budget)

        def spent(factor: float) -> float:
            return budget.spent(replace(self, schedule=self.schedule.scaled(factor)).event(), self.neighbours)

        shape = self.noise_multipliers()
        if max(shape) > _STEEPEST * min(shape):
            raise BadInput(
                f"the noise schedule falls by a factor of {max(shape) / min(shape):.3g}: no noise suits both its ends. Use a "
                "slower decay or fewer epochs"
            )
        factor = solve_noise(spent, budget.limit, start=1.0 / min(shape))
        return replace(self, schedule=self.schedule.scaled(factor), budget=budget)

    def within(self, budget: Budget, most: int | None = None) -> Plan:
        """Keep the schedule as it is and run until the budget ends, or for `most` epochs.

        The last epoch that is run still fits as a whole (Yu et al. 2019, Algorithm 1, line 7). Under a validation
        schedule this is for the run itself to see; its epochs are then those that fit if the noise never fell.

        Raises:
            BadInput: not even one epoch fits.
            UnsupportedEvent: a budget of rho under Poisson sampling.
        """
        budget = self._for_the_unit(budget)
        self._require_room(budget)

        schedule, limit = self.schedule, None
        if isinstance(schedule, Validation):
            epoch = self.epoch_event(schedule.start)
            limit = largest_filter(budget, self._earlier(), epoch, self.neighbours)

        def last(epochs: int) -> bool:
            if limit is not None:
                return fits(limit, Repeated(epoch, epochs))
            if not isinstance(schedule, Validation) and schedule(epochs - 1) < LEAST_NOISE:
                return False
            return budget.covers(budget.spent(replace(self, epochs=epochs).event(), self.neighbours))

        epochs = largest(last, count("epochs", most) if most is not None else MOST_EPOCHS)
        if epochs == 0:
            first = schedule.start if isinstance(schedule, Validation) else schedule(0)
            raise BadInput(
                f"not one epoch at noise multiplier {first:g} fits into {budget}: use more noise or a larger budget",
                budget=budget,
            )
        if epochs == MOST_EPOCHS and most is None:
            raise BadInput(f"{budget} lasts more than {MOST_EPOCHS:,} epochs at this noise: say how many with epochs")
        return replace(self, epochs=epochs, budget=budget, filter=limit)

    def _started(self, shape: Validation, budget: Budget) -> Plan:
        """Itself with the widest filter in `budget`, and the start at which all epochs would fit if noise never fell."""
        if shape.noise is not None:
            paid = Gaussian(shape.noise)
            if share(largest_filter(budget, self._earlier(), paid, self.neighbours), Repeated(paid, self.epochs)) >= 1:
                raise BadInput(
                    f"{self.epochs} validations at noise multiplier {shape.noise:g} alone take more than {budget}: give them "
                    "more noise (noise= of the schedule), or use fewer epochs"
                )

        def at(factor: float) -> tuple[Validation, Limit, Event]:
            schedule = shape.scaled(factor)
            epoch = replace(self, schedule=schedule, filter=None).epoch_event(schedule.start)
            return (
                schedule,
                largest_filter(budget, self._earlier(), epoch, self.neighbours),
                Repeated(epoch, self.epochs),
            )

        def taken(factor: float) -> float:
            _, limit, all_epochs = at(factor)
            return share(limit, all_epochs)

        schedule, limit, _ = at(solve_noise(taken, 1.0, start=1.0 / shape.start))
        return replace(self, schedule=schedule, budget=budget, filter=limit)

    def with_rate(self, budget: Budget) -> Plan:
        """Keep start, epochs and batches, and solve for the schedule's rate k.

        Raises:
            BadInput: a constant schedule, or no k meets the budget.
        """
        budget = self._for_the_unit(budget)
        self._require_room(budget)
        schedule = self.schedule
        if isinstance(schedule, Constant):
            raise BadInput("a constant schedule has no rate to solve for: give --schedule time, exp, step or poly")
        if isinstance(schedule, Validation):
            raise BadInput(_NOT_KNOWN.format("k", "time, exp, step or poly"))

        def at(k: float) -> Plan:
            return replace(self, schedule=replace(schedule, k=k))  # type: ignore[type-var]

        step = isinstance(schedule, Step)
        k = solve_rate(
            lambda k: budget.spent(at(k).event(), self.neighbours),
            budget.limit,
            more_is_louder=not step,
            below_one=step,
            start=0.9 if step else 1.0 if isinstance(schedule, Polynomial) else 0.05,
        )
        return replace(at(k), budget=budget)

    def with_batch_size(self, budget: Budget, examples: int) -> Plan:
        """Keep noise and epochs, and solve for the largest batch size that the budget allows.

        One example a batch more would overshoot.

        Raises:
            BadInput: batches are not sampled, so that their size costs nothing; or not even one example a batch fits.
        """
        if not isinstance(self.sampling, Poisson | Partition):
            raise BadInput(
                f"with {type(self.sampling).__name__.lower()} batches the guarantee does not depend on their size: solve for "
                "the noise or the epochs, or use poisson or partition sampling"
            )
        if isinstance(self.schedule, Validation):
            raise BadInput(_NOT_KNOWN.format("batch size", "constant, time, exp, step or poly"))
        kind = type(self.sampling).__name__.lower()
        budget = self._for_the_unit(budget)
        self._require_room(budget)

        def at(size: int) -> Plan:
            return replace(self, sampling=named(kind, size, examples))

        size = largest(lambda size: budget.covers(budget.spent(at(size).event(), self.neighbours)), examples)
        if size == 0:
            raise BadInput(
                f"not even one example a batch fits into {budget} at this noise: use more noise or fewer epochs"
            )
        return replace(at(size), budget=budget)

    def _settle_adjacency(self) -> None:
        """Set the kind of neighbour where none is given; raises `UnsupportedEvent`, `BadInput` as the class says."""
        undeclared = self.examples is None
        if self.adjacency is None:
            usual = self.sampling.default_adjacency
            usual = Adjacency.ZERO_OUT if undeclared and usual is Adjacency.ADD_REMOVE else usual
            object.__setattr__(self, "adjacency", usual)
        object.__setattr__(self, "adjacency", Adjacency.parse(str(self.adjacency)))
        require_adjacency(self.sampling.event(Gaussian(1.0)), self.neighbours)
        if undeclared and self.neighbours is Adjacency.ADD_REMOVE:
            raise BadInput(UNDECLARED)

    def _earlier(self) -> Composed:
        """What comes before training."""
        return compose(priced(self.front))

    def _require_own_filter(self, limit: Limit) -> None:
        """Refuse a filter where noise does not react, and one in which not even the first epoch fits."""
        if not isinstance(limit, Limit) or not isinstance(self.schedule, Validation):
            raise BadInput(
                f"filter is {limit!r}, and the schedule {self.schedule!r}: a filter is for schedules.Validation alone, and "
                "within and calibrate set it. Leave it out"
            )
        if not fits(limit, self.epoch_event(self.schedule.start)):
            raise BadInput(
                f"not one epoch at noise multiplier {self.schedule.start:g} fits into {limit}: use more noise, or settle the "
                "limit with within or calibrate"
            )

    def _for_the_unit(self, budget: Budget) -> Budget:
        """`budget` as a limit for the plan's own group size.

        Raises:
            BadInput: it is one for groups of another size.
        """
        if budget.group_size not in (1, self.group_size):
            raise BadInput(
                f"the budget is {budget}, and the plan's group_size is {self.group_size}: give both the same",
                budget=budget,
            )
        return replace(budget, group_size=self.group_size)

    def _require_room(self, budget: Budget) -> None:
        """Refuse a budget in a measure that the sampler lacks, or that the earlier releases use up."""
        budget.spent(self.sampling.event(Gaussian(1.0)), self.neighbours)
        spent = budget.spent(self._earlier(), self.neighbours)
        if spent >= budget.limit:
            raise BadInput(
                f"the releases before training alone cost {budget.figure(spent)}, and the budget is {budget}: give them "
                "more noise (--pca-noise), leave them out, or raise the budget",
                budget=budget,
            )
