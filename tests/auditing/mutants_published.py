"""Planted bugs in what `replay` compares of a published folder: other weights, facts or ends would
pass.
"""

from __future__ import annotations

from privlearn.auditing import replaying
from privlearn.publishing import remaking
from privlearn.runs import session
from tests.support.mutant import Mutant, suite_of

ANY_END = "check_weights_without_noise_are_found_however_a_run_is_said_to_have_ended"
EARLY = "check_an_early_end_is_compared_at_its_own_step"
ELSEWHERE = "check_an_early_end_that_the_auditors_training_does_not_take_is_compared_too"
ON, REPORT = "check_a_run_that_was_left_can_go_on", "check_a_report_without_weights_is_not_ok"
FINITE, FACTS = (
    "check_no_tolerance_lets_pass_what_is_not_finite",
    "check_facts_and_configuration_are_those_of_the_training",
)
WEIGHTS = "yield from self._other_weights(result, tolerance, compared)"

MUTANTS = [
    Mutant(
        "replay without weights",
        replaying._Published.unlike,
        WEIGHTS,
        "compared.weights = True",
        ANY_END,
    ),
    Mutant(
        "an early end that is stated is not compared",
        replaying._Published.unlike,
        WEIGHTS,
        f"if 'left_early' not in self.certificate['facts']: {WEIGHTS}",
        EARLY,
    ),
    Mutant(
        "the state at an early end is not kept",
        session.TrainingSession.stop,
        "self.keep_end()",
        "pass",
        EARLY,
    ),
    Mutant(
        "a run that is closed keeps no end",
        session.TrainingSession.close,
        "self.keep_end()",
        "pass",
        EARLY,
    ),
    Mutant(
        "an early end at an epoch's end is passed by",
        session.TrainingSession.end_batches,
        "self.keep_end()",
        "pass",
        ELSEWHERE,
    ),
    Mutant(
        "a part goes on behind an early end",
        replaying._Part.due,
        "or self._taken == self._end_step",
        "",
        ELSEWHERE,
    ),
    Mutant(
        "a run that was left is over",
        session.TrainingSession.keep_end,
        "left=True",
        "left=False",
        EARLY,
    ),
    Mutant(
        "a run that was left goes on a step later",
        session.TrainingSession.keep_end,
        "self.steps_done - self._epoch * self._steps",
        "self.steps_done - self._epoch * self._steps + 1",
        ON,
    ),
    Mutant(
        "a report is ok without weights",
        replaying.Replay.ok,
        "self.agrees and self.weights",
        "self.agrees",
        REPORT,
    ),
    Mutant(
        "rows that were not given are not named",
        replaying.replay,
        "if data is None:",
        "if False:",
        REPORT,
    ),
    Mutant(
        "infinite weights pass a tolerance",
        replaying._close,
        "if not bool(ours.isfinite()",
        "if False and (ours",
        FINITE,
    ),
    Mutant(
        "a published number makes room for others",
        replaying._close,
        "float(ours.abs().max())",
        "float(theirs.abs().max())",
        FINITE,
    ),
    Mutant(
        "facts are not compared",
        remaking.other_certificate,
        "or not alike(",
        "or 0 and not alike(",
        FACTS,
    ),
    Mutant(
        "steps need not be the transcript's",
        remaking.other_certificate,
        "!= taken:",
        "== -1:",
        FACTS,
    ),
    Mutant(
        "the configuration is not compared",
        remaking.other_configuration,
        "or not alike(",
        "or 0 and not alike(",
        FACTS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[KeyError]
)
