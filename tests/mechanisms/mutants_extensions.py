"""Planted bugs in what compares noise with its price, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core.mechanisms import covariance, release
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.runs.session import TrainingSession
from privlearn.training import epoch_noise
from tests.support.mutant import Mutant, suite_of

REFUSED = "check_a_correlation_that_breaks_its_matrix_is_refused_by_name"
STEP = "check_noise_is_compared_in_every_step_before_it_is_added"
STREAM = "check_noise_comes_from_a_noise_stream_alone"
FRONT = "check_a_transform_that_breaks_its_event_is_refused_by_name"

MUTANTS = [
    Mutant(
        "correlated noise is not tried",
        epoch_noise._steps_stream,
        "    require_priced(plan.correlation, plan.sampling, examples, steps)\n",
        "",
        REFUSED,
    ),
    Mutant(
        "any matrix will do",
        covariance.require_priced,
        "if sensitivity(whole, separation) >",
        "if 0 * sensitivity(whole, separation) >",
        REFUSED,
    ),
    Mutant(
        "bands may outlast rests",
        covariance.require_priced,
        "elif len(column) > separation:",
        "elif False:",
        REFUSED,
    ),
    Mutant(
        "any inverse will do",
        covariance.require_priced,
        "if np.abs(first).max() >",
        "if 0 * np.abs(first).max() >",
        REFUSED,
    ),
    Mutant(
        "less noise will do where it is tried",
        covariance._require_noise,
        "if is_too_small(float(square), _NUMBERS):",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "old noise will do where it is tried",
        covariance._require_noise,
        "if float(apart.abs().max()) >",
        "if 0 * float(apart.abs().max()) >",
        REFUSED,
    ),
    Mutant(
        "less noise will do in a step",
        CorrelatedStream._require_fresh,
        "if is_too_small(",
        "if False and (",
        STEP,
    ),
    Mutant(
        "no words will do in a step",
        CorrelatedStream._require_fresh,
        "(self._stream.key, self._stream.position) ==",
        "() ==",
        STEP,
    ),
    Mutant(
        "old noise will do in a step",
        CorrelatedStream._require_fresh,
        "digest in self._seen",
        "False",
        STEP,
    ),
    Mutant(
        "a stream's own add is called",
        release._add_noise,
        "CorrelatedStream.add(stream, values,",
        "stream.add(values,",
        "check_release_adds_noise_whatever_a_subclass_does",
    ),
    Mutant(
        "anything with words is a stream",
        release._add_noise,
        "not NoiseStream.is_one(stream)",
        "False",
        STREAM,
    ),
    Mutant(
        "a transform may be charged and draw nothing, or nothing at all",
        TrainingSession.fitted,
        "charges.require(",
        "(lambda *_, **__: None)(",
        FRONT,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
