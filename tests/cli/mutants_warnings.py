"""Warnings that are never given, or always, each of which a named check must catch."""

from __future__ import annotations

from privlearn.cli import methods, screen
from privlearn.cli import pate as pate_command
from privlearn.core import schedules
from privlearn.core.accounting import guarantee
from privlearn.methods.pate import chances, pate
from privlearn.publishing import signing, verify
from tests.support.mutant import Mutant, suite_of

GIVEN, CAUSE = "check_every_warning_is_given", "check_warnings_need_a_cause"
MUTANTS = [
    Mutant(
        "verify never warns of delta",
        verify._warnings,
        "large_delta(facts, guarantee.delta)",
        '""',
        GIVEN,
    ),
    Mutant(
        "verify always warns of delta",
        verify._warnings,
        "large_delta(facts, guarantee.delta)",
        "large_delta({'examples': 10**9}, 0.5)",
        CAUSE,
    ),
    Mutant("verify never warns of seeds", verify._warnings, '== "seeded"', '== "sown"', GIVEN),
    Mutant("verify passes over other files", verify.verify_contents, " + hidden", "", GIVEN),
    Mutant(
        "commands never warn of delta", guarantee.hollow, "delta * examples >= 1", "False", GIVEN
    ),
    Mutant("commands warn of any delta", guarantee.hollow, "delta * examples >= 1", "True", CAUSE),
    Mutant(
        "an epsilon of nothing passes in silence",
        guarantee.hollow,
        "epsilon > _HOLLOW",
        "False",
        GIVEN,
    ),
    Mutant(
        "few examples pass in silence", screen.warnings, "epsilon * examples < HALF", "False", GIVEN
    ),
    Mutant(
        "enough examples are few",
        screen.warnings,
        "epsilon * examples < HALF",
        "epsilon * examples <= HALF",
        CAUSE,
    ),
    Mutant(
        "plans are not looked at",
        screen.warnings,
        "idle := plan.schedule.idle(plan.epochs)",
        "idle := None",
        GIVEN,
    ),
    Mutant(
        "a last epoch that falls is warned of",
        schedules.Decay.idle,
        "self.from_epoch < epochs",
        "self.from_epoch < epochs - 1",
        CAUSE,
    ),
    Mutant(
        "any threshold is too high",
        chances.drowned,
        "asked.threshold > plan.teachers",
        "asked.threshold >= plan.teachers",
        CAUSE,
    ),
    Mutant(
        "half of the examples are a crowd of teachers",
        methods.few_rows_warnings,
        "teachers * 2 > examples",
        "teachers * 2 >= examples",
        CAUSE,
    ),
    Mutant(
        "ten rows are few for a teacher",
        methods.few_rows_warnings,
        "teachers * least > examples",
        "teachers * least >= examples",
        CAUSE,
    ),
    Mutant(
        "keys that others can read pass in silence",
        signing._warn_of_readers,
        "& 0o077",
        "& 0o000",
        GIVEN,
    ),
    Mutant(
        "noise that drowns votes passes in silence in Python",
        pate._warn_of_noise,
        "drowned(plan)",
        "()",
        "check_python_warns_of_noise_as_the_command_line_does",
    ),
    Mutant(
        "commands warn of noise twice",
        pate_command.warned_before,
        "the (noise|threshold) o",
        "the noises",
        "check_python_warns_of_noise_as_the_command_line_does",
    ),
    Mutant(
        "components below the noise pass in silence",
        pate._warn_of_noise,
        "isinstance(reducer, PublicPCA)",
        "False",
        GIVEN,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
