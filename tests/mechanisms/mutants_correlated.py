"""Planted bugs in noise that is correlated over steps: each must make a named check fail."""

from __future__ import annotations

from privlearn.core import plan, sampling
from privlearn.core.mechanisms import banded, release
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.core.sampling.sampler import CyclicSampler
from privlearn.training import epoch_noise
from tests.support.mutant import Mutant, suite_of

COVARIANCE = "check_correlated_noise_has_its_covariance"
RESUMED = "check_correlated_noise_goes_on_after_an_interruption"
REFUSED = "check_correlated_noise_is_refused_where_it_has_no_price"
STREAM = banded.BandedStream

MUTANTS = [
    Mutant(
        "earlier noise is added once more",
        STREAM._fill,
        "alpha=-coefficient",
        "alpha=coefficient",
        COVARIANCE,
    ),
    Mutant(
        "noise is not divided by the first coefficient",
        STREAM._fill,
        "torch._foreach_div_(fresh, self._coefficients[0])",
        "pass",
        COVARIANCE,
    ),
    Mutant(
        "one step too few is remembered",
        STREAM._fill,
        "len(self._coefficients) - 1]",
        "len(self._coefficients) - 2]",
        COVARIANCE,
    ),
    Mutant(
        "less noise than is claimed",
        STREAM._fill,
        "noise.add_gaussian(fresh, std,",
        "noise.add_gaussian(fresh, 0.85 * std,",
        "check_the_best_attack_on_correlated_noise_finds_what_is_claimed",
    ),
    Mutant(
        "rows are drawn oftener than is claimed",
        sampling.CyclicPoisson.draw,
        "taken(members, self.sampling_rate, rng)",
        "taken(members, min(1.0, 1.5 * self.sampling_rate), rng)",
        "check_the_best_attack_on_correlated_noise_finds_what_is_claimed",
    ),
    Mutant(
        "earlier noise in the wrong order",
        STREAM._fill,
        "[fresh, *self._past]",
        "[*self._past, fresh]",
        COVARIANCE,
    ),
    Mutant(
        "the same noise in every step",
        STREAM._fill,
        "noise.add_gaussian(fresh, std, self._stream, places)",
        (
            "self._stream._start(self._stream.key); noise.add_gaussian(fresh, std, self._stream, "
            "places)"
        ),
        COVARIANCE,
    ),
    Mutant(
        "the last tensor gets no fresh noise",
        STREAM._fill,
        "noise.add_gaussian(fresh, std",
        "noise.add_gaussian(fresh[:-1], std",
        COVARIANCE,
    ),
    Mutant(
        "a step's noise is scaled before it is correlated",
        CorrelatedStream.add,
        "1.0 if self.changes else std\n",
        "std; std = 1.0\n",
        COVARIANCE,
    ),
    Mutant(
        "all steps have the first one's noise",
        CorrelatedStream.add,
        "self._std, self._sizes = std,",
        "std = self._std or std; self._std, self._sizes = std,",
        COVARIANCE,
    ),
    Mutant(
        "noise that an earlier version kept is taken as it is",
        CorrelatedStream.load_state_dict,
        'state.get("changes", False) != self.changes',
        "False",
        REFUSED,
    ),
    Mutant(
        "fresh noise after an interruption",
        STREAM._go_on,
        'list(one) for one in state["past"]',
        "list(one) for one in ()",
        RESUMED,
    ),
    Mutant(
        "earlier noise is not kept",
        epoch_noise._steps_stream,
        'session.parts["correlated noise"] = stream',
        "pass",
        RESUMED,
    ),
    Mutant(
        "training draws independent noise",
        epoch_noise._steps_stream,
        "plan.correlation is None",
        "True",
        "check_correlated_noise_is_what_training_adds",
    ),
    Mutant(
        "correlated noise on a grid",
        CorrelatedStream.__init__,
        "if stream.discrete:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "columns longer than one",
        banded._optimise,
        "math.sqrt(float(c @ c)) * (1 + _ROOM)",
        "c[0]",
        "check_no_column_is_longer_than_one",
    ),
    Mutant(
        "columns of norm one in L1",
        banded._optimise,
        "math.sqrt(float(c @ c))",
        "np.abs(c).sum()",
        "check_no_column_is_longer_than_one",
    ),
    Mutant(
        "rests are not looked at",
        banded.Banded.require_suited,
        "if rest < self.bands:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "a rest one step too short",
        banded.Banded.require_suited,
        "rest < self.bands",
        "rest + 1 < self.bands",
        REFUSED,
    ),
    Mutant(
        "the rows that are there are not counted",
        epoch_noise._steps_stream,
        "plan.correlation.require_suited(plan.sampling, examples)",
        "pass",
        REFUSED,
    ),
    Mutant(
        "a schedule that follows accuracies",
        plan.require_correlated,
        "isinstance(plan.schedule, ReactingSchedule)",
        "False",
        REFUSED,
    ),
    Mutant(
        "facts may state too few rows",
        plan.compare_rows,
        "plan.correlation.require_suited(plan.sampling, examples)",
        "pass",
        REFUSED,
    ),
    Mutant("groups of rows", plan.require_correlated, "plan.group_size > 1", "False", REFUSED),
    Mutant(
        "groups of rows in different steps of a cycle",
        CyclicSampler.prices_groups,
        "self.cycle == 1",
        "True",
        REFUSED,
    ),
    Mutant(
        "a clipping norm that moves",
        plan.require_correlated,
        "plan.clip.moves",
        "False",
        REFUSED,
    ),
    Mutant("several parts of a release", release.release, "len(parts) > 1", "False", REFUSED),
    Mutant(
        "groups are drawn anew in each cycle",
        sampling.CyclicPoisson.draw,
        "for group in range(self.cycle):",
        "for group in rng.permutation(self.cycle):",
        "check_times_that_are_far_enough_apart_change_other_rows",
    ),
    Mutant(
        "all rows in every step",
        sampling.CyclicPoisson.draw,
        "group + self.cycle * taken",
        "taken",
        "check_a_cycle_takes_every_example_at_its_rate",
    ),
    Mutant(
        "the last row is in no group",
        sampling.CyclicPoisson.draw,
        "range(group, examples, self.cycle)",
        "range(group, examples - self.cycle + 1, self.cycle)",
        "check_times_that_are_far_enough_apart_change_other_rows",
    ),
    Mutant(
        "a cycle at the rate of all rows",
        sampling.CyclicPoisson.event,
        "self.sampling_rate,",
        "self.sampling_rate / self.cycle,",
        "check_a_cycle_is_charged_at_its_first_batch",
    ),
    Mutant(
        "an epoch is charged once",
        sampling.CyclicPoisson.draw,
        "unit = self.epoch_charge()",
        "unit = self.__dict__.setdefault('unit', self.epoch_charge())",
        "check_a_cycle_is_charged_at_its_first_batch",
    ),
    Mutant(
        "rows of a partition are in no group",
        sampling.CyclicPartition.draw,
        "groups + self.cycle * rng",
        "rng.permutation(groups) + self.cycle * rng",
        "check_a_cyclic_partition_takes_every_example_once_an_epoch",
    ),
    Mutant(
        "one batch of a partition is never drawn",
        sampling.CyclicPartition.draw,
        "rng.integers(self.batches, size",
        "rng.integers(max(1, self.batches - 1), size",
        "check_a_cyclic_partition_takes_every_example_once_an_epoch",
    ),
    Mutant(
        "one draw for all rows of a partition",
        sampling.CyclicPartition.draw,
        "size=examples)",
        "size=1)",
        "check_a_cyclic_partition_takes_every_example_once_an_epoch",
    ),
    Mutant(
        "a partition priced for all batches of an epoch",
        sampling.CyclicPartition.event,
        "self.batches,",
        "self.steps(),",
        "check_the_best_attack_on_correlated_noise_finds_what_is_claimed",
    ),
    Mutant(
        "each batch of a partition is charged",
        sampling.CyclicPartition.draw,
        "yield Sample(rows, unit)",
        "yield Sample(rows, self.epoch_charge())",
        "check_a_cyclic_partition_is_charged_at_its_first_batch",
    ),
    Mutant(
        "a partition's rest is claimed longer than it is",
        CyclicSampler.separation,
        "self.cycle",
        "self.cycle + 1",
        REFUSED,
    ),
    Mutant(
        "fixed batches rest for longer than they do",
        sampling.FixedOrder.separation,
        "self.steps(examples)",
        "self.steps(examples) + 1",
        "check_times_that_are_far_enough_apart_change_other_rows",
    ),
    Mutant(
        "a wrong derivative",
        banded._squares,
        "-2 * float(",
        "-1 * float(",
        "check_bands_are_the_best_found",
    ),
    Mutant(
        "momentum is forgotten",
        banded._squares,
        "[1.0, -momentum]",
        "[1.0]",
        "check_bands_are_the_best_found",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
