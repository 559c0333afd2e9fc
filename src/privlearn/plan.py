"""The plan: public numbers that fix, before any data is touched, every event of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final, get_args

from privlearn._validate import count
from privlearn.accounting import accountant
from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.budget import Budget
from privlearn.accounting.calibrate import largest, solve_noise, solve_rate
from privlearn.accounting.events import Composed, Gaussian, compose, require_adjacency
from privlearn.accounting.unit import Unit
from privlearn.clipping.styles import Clip, Flat
from privlearn.errors import BadInput
from privlearn.mechanisms.pca import PCA
from privlearn.sampling import Partition, Poisson, Sampler, named
from privlearn.schedules import Constant, Polynomial, Schedule, Step

#: Epochs that a plan has at most.
MOST_EPOCHS = 100_000
_LEAST_NOISE, _STEEPEST = 1e-6, 1e6
_EXAMPLES = {
    "sampling": "pv.Poisson(sampling_rate=0.01)",
    "schedule": "pv.schedules.Exponential(k=0.01)",
    "clip": "pv.Flat(0.1)",
}


@final
@dataclass(frozen=True)
class Plan:
    """A DP-SGD run as public numbers; its event tree is known before training and equals the ledger's afterwards.

    Attributes:
        sampling: how batches are drawn, which also says what a release on them costs.
        epochs: how many epochs run.
        schedule: the noise multiplier of each epoch; a shape until `calibrate` or `within` settles it.
        clip: how gradients are clipped.
        adjacency: the kind of neighbour; by default the sampler's.
        examples: the declared, public number of examples that sums are divided by; None: the data's length.
        before: releases that come before training, on the same ledger.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most: every target and every guarantee
            is then for all of them together.
        rows_per_person: where the data carry person ids: how many rows of each person take part at most (public). An
            example is then a person: rates, batches and `examples` count persons, and the guarantee protects one.

    Raises:
        UnsupportedEvent: the sampler is not priced for the adjacency.
        BadInput: a number out of range.
    """

    sampling: Sampler
    epochs: int = 30
    schedule: Schedule = Constant()  # noqa: RUF009 - a frozen value
    clip: Clip = Flat(0.1)  # noqa: RUF009 - a frozen value
    adjacency: Adjacency | None = None
    examples: int | None = None
    before: tuple[PCA, ...] = ()
    budget: Budget | None = None
    group_size: int = 1
    rows_per_person: int | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "sampling": (Sampler,),
            "schedule": (Schedule,),
            "clip": get_args(Clip),
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise BadInput(f"{name} is {getattr(self, name)!r}: expected a {name} such as {_EXAMPLES[name]}")
        if not isinstance(self.before, tuple) or not all(isinstance(release, PCA) for release in self.before):
            raise BadInput(f"before is {self.before!r}: expected a tuple of releases, such as (pv.PCA(60, 16.0),)")
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise BadInput(
                f"budget is {self.budget!r}: expected a Budget, as calibrate(epsilon=, delta=) sets it, or None"
            )
        count("epochs", self.epochs, most=MOST_EPOCHS)
        if self.examples is not None:
            count("examples", self.examples)
        if self.adjacency is None:
            object.__setattr__(self, "adjacency", self.sampling.default_adjacency)
        object.__setattr__(self, "adjacency", Adjacency.parse(str(self.adjacency)))
        require_adjacency(self.sampling.event(Gaussian(1.0)), self.neighbours)
        Unit(self.group_size, self.rows_per_person)
        if self.budget is not None:
            object.__setattr__(self, "budget", self._for_the_unit(self.budget))

    @property
    def unit(self) -> Unit:
        """Whose data are protected."""
        return Unit(self.group_size, self.rows_per_person)

    @property
    def neighbours(self) -> Adjacency:
        """The plan's adjacency, settled."""
        assert self.adjacency is not None
        return self.adjacency

    def noise_multipliers(self) -> tuple[float, ...]:
        """The noise multiplier of each epoch.

        Raises:
            BadInput: the schedule reaches 0 within the epochs.
        """
        values = tuple(self.schedule(epoch) for epoch in range(self.epochs))
        if min(values) < _LEAST_NOISE:
            first = next(epoch for epoch, value in enumerate(values) if value < _LEAST_NOISE)
            fall = "0" if values[first] == 0 else f"{values[first]:.3g}"
            raise BadInput(
                f"the noise schedule falls to {fall} at epoch {first}, which gives no privacy: use end= above 0, a slower "
                "decay or fewer epochs"
            )
        return values

    def event(self) -> Composed:
        """Everything that the run will be charged, in order."""
        epochs = [self.sampling.epoch_event(Gaussian(sigma)) for sigma in self.noise_multipliers()]
        return compose([*(release.event() for release in self.before), *epochs])

    def guarantee(self, delta: float) -> Guarantee:
        """The tightest sound guarantee of the whole run at `delta`."""
        return self.guarantees(delta)[0]

    def guarantees(self, delta: float) -> tuple[Guarantee, ...]:
        """Every sound guarantee of the whole run at `delta`, the tightest first."""
        found = accountant.guarantees(self.event(), self.neighbours, delta, self.group_size)
        return tuple(replace(each, rows_per_person=self.rows_per_person) for each in found)

    def calibrate(self, *, epsilon: float | None = None, delta: float | None = None, rho: float | None = None) -> Plan:
        """Scale the schedule so that the whole run, earlier releases included, meets a target for its epochs.

        What is spent ends at most at the target, and within 0.3% of it.

        Raises:
            BadInput: a target out of range, or one that the earlier releases alone exceed.
            UnsupportedEvent: a target rho under Poisson sampling.
        """
        budget = Budget(epsilon, delta, rho, self.group_size)
        self._require_room(budget)

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

        The last epoch that is run still fits as a whole (Yu et al. 2019, Algorithm 1, line 7).

        Raises:
            BadInput: not even one epoch fits.
            UnsupportedEvent: a budget of rho under Poisson sampling.
        """
        budget = self._for_the_unit(budget)
        self._require_room(budget)

        def fits(epochs: int) -> bool:
            if self.schedule(epochs - 1) < _LEAST_NOISE:
                return False
            return budget.covers(budget.spent(replace(self, epochs=epochs).event(), self.neighbours))

        epochs = largest(fits, count("epochs", most) if most is not None else MOST_EPOCHS)
        if epochs == 0:
            raise BadInput(
                f"not one epoch at noise multiplier {self.schedule(0):g} fits into {budget}: use more noise or a "
                "larger budget",
                budget=budget,
            )
        if epochs == MOST_EPOCHS and most is None:
            raise BadInput(f"{budget} lasts more than {MOST_EPOCHS:,} epochs at this noise: say how many with epochs")
        return replace(self, epochs=epochs, budget=budget)

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
        spent = budget.spent(compose(release.event() for release in self.before), self.neighbours)
        if spent >= budget.limit:
            raise BadInput(
                f"the releases before training alone cost {budget.figure(spent)}, and the budget is {budget}: give them "
                "more noise (--pca-noise), leave them out, or raise the budget",
                budget=budget,
            )
