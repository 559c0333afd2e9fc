"""Planted bugs in noise that is correlated over all steps: each must make a named check fail."""

from __future__ import annotations

from privlearn.core import plan
from privlearn.core.mechanisms import bisr, blt, correlated, correlated_stream, release
from privlearn.training import epoch_noise
from tests.support.mutant import Mutant, suite_of

PRICE = "check_no_times_of_an_example_cost_more_than_is_claimed"
ANY = "check_the_bound_holds_for_any_column"
COVARIANCE = "check_noise_over_all_steps_has_its_covariance"
ADDED = "check_noise_over_all_steps_is_what_training_adds"
ATTACK = "check_the_best_attack_finds_what_all_times_together_cost"
RESUMED = "check_noise_over_all_steps_goes_on_after_an_interruption"
REFUSED = "check_noise_over_all_steps_is_refused_where_it_has_no_price"
SHARED = "check_processes_share_noise_that_is_drawn_again"
WRITTEN = "check_the_error_is_that_of_the_matrix_written_out"
REDRAWN, BUFFERED, STREAM = (
    bisr.RedrawnStream,
    blt.BufferedStream,
    correlated_stream.CorrelatedStream,
)

MUTANTS = [
    # What all times of an example cost.
    Mutant("all times cost what one does", correlated.sensitivity, ".cumsum(0)", "", PRICE),
    Mutant(
        "an example's times are further apart than they are",
        correlated.scale,
        "sensitivity(column, separation)",
        "sensitivity(column, 2 * separation)",
        PRICE,
    ),
    Mutant(
        "a time too many is paid for",
        correlated.scale,
        "times(len(column), separation)",
        "times(len(column), separation) + 1",
        PRICE,
    ),
    Mutant(
        "columns of norm one, however many times there are",
        correlated.scale,
        "sensitivity(column, separation)",
        "float(np.linalg.norm(column)) * math.sqrt(times(len(column), separation))",
        PRICE,
    ),
    Mutant(
        "columns that are not scaled",
        bisr.BISR.coefficients,
        '/ scale(column, count("separation", separation))',
        "/ 1.0",
        PRICE,
    ),
    Mutant(
        "numbers that rise are not seen",
        correlated.sensitivity,
        "np.maximum.accumulate(np.abs(column)[::-1])[::-1]",
        "np.abs(column)",
        ANY,
    ),
    Mutant(
        "negative numbers take from positive ones",
        correlated.sensitivity,
        "np.maximum.accumulate(np.abs(column)[::-1])[::-1]",
        "np.maximum.accumulate(column[::-1])[::-1]",
        ANY,
    ),
    Mutant(
        "a sensitivity in the largest row",
        correlated.sensitivity,
        "math.sqrt(float(rows @ rows))",
        "float(rows.max())",
        ANY,
    ),
    # What is drawn.
    Mutant(
        "less noise than is claimed",
        REDRAWN._fill,
        "std * self._coefficients[0]",
        "std * 0.9 * self._coefficients[0]",
        ATTACK,
    ),
    Mutant(
        "earlier noise is drawn afresh",
        REDRAWN._fill,
        "NoiseStream(key, position, cipher=self._stream.cipher)",
        "self._stream",
        COVARIANCE,
    ),
    Mutant(
        "earlier noise is added once more",
        REDRAWN._fill,
        "std * coefficient",
        "-std * coefficient",
        COVARIANCE,
    ),
    Mutant(
        "the same noise in every step",
        REDRAWN._fill,
        "here = (self._stream.key, self._stream.position)",
        "self._stream._start(self._stream.key); here = (self._stream.key, self._stream.position)",
        COVARIANCE,
    ),
    Mutant(
        "noise is used again in each epoch",
        REDRAWN._fill,
        "here = (self._stream.key, self._stream.position)",
        "self._taken % 4 or self._stream._start(self._stream.key); "
        "here = (self._stream.key, self._stream.position)",
        COVARIANCE,
    ),
    Mutant(
        "buffered noise is used again in each epoch",
        BUFFERED._fill,
        "if not self._buffers:",
        "self._taken % 6 or self._stream._start(self._stream.key)\n    if not self._buffers:",
        COVARIANCE,
    ),
    Mutant(
        "earlier noise in the wrong order",
        REDRAWN._fill,
        "[here, *self._past]",
        "[*self._past, here]",
        COVARIANCE,
    ),
    Mutant(
        "one step too few is drawn again",
        REDRAWN._fill,
        "len(self._coefficients) - 1]",
        "len(self._coefficients) - 2]",
        COVARIANCE,
    ),
    Mutant(
        "buffers begin anew in each step",
        BUFFERED._fill,
        "if not self._buffers:",
        "if True:",
        COVARIANCE,
    ),
    Mutant(
        "buffers fade at the other rate",
        BUFFERED._fill,
        "torch._foreach_mul_(buffer, pole)",
        "torch._foreach_mul_(buffer, zero)",
        COVARIANCE,
    ),
    Mutant(
        "buffers with the wrong sign",
        BUFFERED._fill,
        "alpha=zero - pole",
        "alpha=pole - zero",
        COVARIANCE,
    ),
    Mutant("buffered noise is not scaled", BUFFERED._fill, "std * self._factor", "std", COVARIANCE),
    Mutant(
        "noise that is drawn again is not scaled",
        bisr.BISR.inverse,
        'root * scale(self._raw_column(steps), count("separation", separation))',
        "root",
        COVARIANCE,
    ),
    Mutant(
        "noise is made for one epoch's times",
        epoch_noise._steps_stream,
        "plan.sampling.separation(examples)",
        "plan.epochs * steps_of_epoch",
        ADDED,
    ),
    Mutant(
        "training scales for a single epoch",
        epoch_noise._steps_stream,
        "steps, separation = plan.epochs * steps_of_epoch,",
        "steps, separation = steps_of_epoch,",
        ADDED,
    ),
    # What goes on.
    Mutant(
        "bands of fresh noise after an interruption",
        REDRAWN._go_on,
        'for key, position in state["past"]',
        "for key, position in ()",
        RESUMED,
    ),
    Mutant(
        "bands from another place after an interruption",
        REDRAWN._go_on,
        "bytes.fromhex(key), position",
        "bytes.fromhex(key), position + 1",
        RESUMED,
    ),
    Mutant(
        "fresh buffers after an interruption",
        BUFFERED._go_on,
        'for one in state["buffers"]',
        "for one in ()",
        RESUMED,
    ),
    Mutant(
        "tensors are kept of noise that is drawn again",
        REDRAWN._save,
        '"past": past',
        '"past": past, "noise": [0.0] * 1000',
        RESUMED,
    ),
    # What is refused.
    Mutant(
        "a step too many",
        STREAM.add,
        "self._taken >= self._steps",
        "self._taken > self._steps",
        REFUSED,
    ),
    Mutant("steps are not counted", STREAM.add, "self._taken += 1", "pass", REFUSED),
    Mutant(
        "noise with another variance is let through",
        STREAM.add,
        "self._std not in (None, std)",
        "False",
        REFUSED,
    ),
    Mutant(
        "values of other sizes are let through",
        STREAM.add,
        "self._sizes != sizes",
        "False",
        REFUSED,
    ),
    Mutant("on a grid", STREAM.__init__, "if stream.discrete:", "if False:", REFUSED),
    Mutant(
        "batches that are sampled",
        correlated.Correlation.require_suited,
        "not whole or ",
        "",
        REFUSED,
    ),
    Mutant(
        "batches in another order in each epoch",
        correlated.Correlation.require_suited,
        "sampling.separation(examples) != sampling.steps(examples)",
        "False",
        REFUSED,
    ),
    Mutant(
        "as if there was one example, where their number is open",
        plan.require_correlated,
        "plan.examples or _MANY",
        "plan.examples or 1",
        REFUSED,
    ),
    Mutant(
        "a schedule that falls",
        plan.require_correlated,
        "not isinstance(plan.schedule, Constant)",
        "False",
        REFUSED,
    ),
    Mutant(
        "a clipping norm that moves",
        plan.require_correlated,
        "plan.clip.moves",
        "False",
        REFUSED,
    ),
    Mutant("groups of rows", plan.require_correlated, "plan.group_size > 1", "False", REFUSED),
    # Several processes.
    Mutant(
        "every process adds the noise of the whole's beginning",
        release._add_noise,
        "add(stream, values, multiplier * part.sensitivity, places)",
        "add(stream, values, multiplier * part.sensitivity)",
        SHARED,
    ),
    Mutant(
        "earlier noise at the beginning of the whole",
        REDRAWN._fill,
        "coefficient, again, places",
        "coefficient, again",
        SHARED,
    ),
    Mutant(
        "processes that keep noise apart",
        epoch_noise._steps_stream,
        "plan.correlation.keeps_tensors",
        "False",
        SHARED,
    ),
    # The matrices.
    Mutant("the root of something else", bisr.BISR._root, "(2 * j - 3)", "(2 * j - 1)", WRITTEN),
    Mutant(
        "momentum is forgotten",
        bisr.BISR._root,
        "root * self.momentum ** np.arange(bands)",
        "root * 0.0 ** np.arange(bands)",
        WRITTEN,
    ),
    Mutant(
        "C in the place of its inverse",
        blt.BLT.inverse,
        "_product(poles, zeros, steps)",
        "_product(zeros, poles, steps)",
        WRITTEN,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
