"""Planted bugs in `privlearn audit FOLDER`: another plan, or a folder that nobody vouches for."""

from __future__ import annotations

from privlearn.cli.commands import audit
from privlearn.publishing import verify
from tests.support.mutant import Mutant, suite_of

PLAN = "check_a_published_folder_is_attacked_with_the_numbers_of_its_plan"

MUTANTS = [
    Mutant(
        "a folder is attacked that does not verify",
        audit._attack_published,
        "not checked.ok or",
        "",
        "check_a_folder_that_does_not_verify_is_not_attacked",
    ),
    Mutant(
        "a folder is attacked at the usual delta",
        audit._attack_published,
        "checked.delta)",
        "1e-5)",
        PLAN,
    ),
    Mutant(
        "half of the plan's noise is attacked",
        audit._find_training,
        "training = plan.trained(",
        "training = plan.scaled(0.5).trained(",
        PLAN,
    ),
    Mutant(
        "claims are in no order",
        verify._recompute,
        "for each in claims",
        "for each in claims[::-1]",
        "check_verification_holds_plan_events_and_claims",
    ),
]
test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
