"""Planted bugs in what `verify` compares and what is signed, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import certificate_checks
import pytest

from privlearn.publishing import keys, verify

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

DIGESTED, COMPARED = (
    "check_every_value_of_a_certificate_is_digested",
    "check_every_value_that_a_guarantee_follows_from_is_compared",
)
FOLLOWS = "check_figures_that_follow_from_others_are_compared"
SIGNED, MESSAGE = (
    "check_every_value_of_every_methods_certificate_is_signed",
    "check_what_is_signed_is_what_the_documentation_says",
)
MUTANTS = [
    Mutant("the last part's digest is passed over", verify._changed_parts, "for part in PARTS\n", "for part in PARTS[:-1]\n",
           DIGESTED),
    Mutant("the first part's digest is passed over", verify._changed_parts, "for part in PARTS\n", "for part in PARTS[1:]\n",
           DIGESTED),
    Mutant("rho is not compared", verify._contradictions, 'if claim["rho"] != found.rho and not (', "if False and not (",
           COMPARED),
    Mutant("a rho where there is none passes", verify._contradictions, "found.rho is not None and _agrees",
           "found.rho is None or _agrees", COMPARED),
    Mutant("the method is not compared", verify._contradictions, '"method": found.method', '"method": claim["method"]',
           COMPARED),
    Mutant("the unit is not compared", verify._contradictions, '{"unit": str(found.unit), ', "{", COMPARED),
    Mutant("a percent of epsilon passes", verify._agrees, "rel_tol=_AGREE", "rel_tol=1e-2", COMPARED),
    Mutant("the configuration is not hashed", verify._changed_files, "for name in (WEIGHTS, CONFIG, CARD)\n",
           "for name in (WEIGHTS, CARD)\n", COMPARED),
    Mutant("events may lack what the settings describe", verify._other_releases, "others + unfollowed", "unfollowed",
           COMPARED),
    Mutant("reacting runs are not followed", verify._other_releases, "*_unfollowed(settings, found.adjacency)", "", COMPARED),
    Mutant("a schedule need not be what ran", verify._inconsistent, "if schedule is not None and", "if False and", FOLLOWS),
    Mutant("any number of epochs", verify._inconsistent, 'follows["epochs"] = len(sigmas)', "pass", FOLLOWS),
    Mutant("any noise of votes", verify._inconsistent, "follows = ensemble.derived(settings)", "pass", FOLLOWS),
    Mutant("the public key is not in the message", keys._message, "canonical({**certificate, \"signature\": who})",
           "canonical({**certificate, \"signature\": {**who, \"public_key\": \"\"}})", MESSAGE),
    Mutant("the algorithm is not in the message", keys._message, "canonical({**certificate, \"signature\": who})",
           "canonical({**certificate, \"signature\": {**who, \"algorithm\": \"\"}})", MESSAGE),
    Mutant("randomness is not signed", keys._message, "{**certificate, ",
           '{**certificate, "randomness": "", "digests": "", ', SIGNED),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)


@pytest.fixture(scope="module", autouse=True)
def _published() -> None:
    """Certificates are made by the code as it is, before anything is planted."""
    certificate_checks.published()
