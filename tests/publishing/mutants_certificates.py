"""Planted bugs in what `verify` compares and what is signed, each of which a named check must
catch.
"""

from __future__ import annotations

import pytest

from privlearn import _public
from privlearn.core import plan, reacting_plans
from privlearn.methods.pate import plan as teachers_plan
from privlearn.methods.tuning import blocks
from privlearn.publishing import certificate, keys, verify
from tests.publishing import checks_certificates as certificate_checks
from tests.support.mutant import Mutant, suite_of

DIGESTED, COMPARED = (
    "check_every_value_of_a_certificate_is_digested",
    "check_every_value_that_a_guarantee_follows_from_is_compared",
)
FOLLOWS = "check_facts_that_follow_from_the_plan_are_compared"
MORE = "check_an_epsilon_that_is_a_little_larger_is_true"
READ, REFUSED = "check_every_plan_reads_itself_back", "check_plans_of_strangers_are_refused"
SIGNED, MESSAGE = (
    "check_every_value_of_every_methods_certificate_is_signed",
    "check_what_is_signed_is_what_the_documentation_says",
)
MUTANTS = [
    Mutant(
        "the last part's digest is passed over",
        verify._find_changed_parts,
        "for part in PARTS\n",
        "for part in PARTS[:-1]\n",
        DIGESTED,
    ),
    Mutant(
        "the first part's digest is passed over",
        verify._find_changed_parts,
        "for part in PARTS\n",
        "for part in PARTS[1:]\n",
        DIGESTED,
    ),
    Mutant(
        "rho is not compared",
        verify._contradictions,
        'if claim["rho"] != guarantee.rho and not (',
        "if False and not (",
        COMPARED,
    ),
    Mutant(
        "a rho where there is none passes",
        verify._contradictions,
        "guarantee.rho is not None and _agrees",
        "guarantee.rho is None or _agrees",
        COMPARED,
    ),
    Mutant(
        "the method is not compared",
        verify._contradictions,
        '"method": guarantee.method',
        '"method": claim["method"]',
        COMPARED,
    ),
    Mutant(
        "the unit is not compared",
        verify._contradictions,
        '{"unit": str(guarantee.unit), ',
        "{",
        COMPARED,
    ),
    Mutant(
        "a percent of epsilon passes", verify._agrees, "rel_tol=_AGREE", "rel_tol=1e-2", COMPARED
    ),
    Mutant(
        "a thousandth more than events give passes",
        certificate.margin_of_older_prices,
        "max(more) if len(more) > 1 else 0.0",
        "1.01e-3",
        COMPARED,
    ),
    Mutant(
        "a claim of a coarser grid fails",
        verify._bears_out,
        "_agrees(claimed, true) or",
        "_agrees(claimed, true) and",
        MORE,
    ),
    Mutant(
        "a little less than events give passes",
        verify._bears_out,
        "true <= claimed",
        "true * (1 - 1e-4) <= claimed",
        MORE,
    ),
    Mutant(
        "the configuration is not hashed",
        verify._find_changed_files,
        "for name in expected\n",
        "for name in (CARD,)\n",
        COMPARED,
    ),
    Mutant(
        "events may lack what the plan has",
        verify._of_the_plan,
        'contradictions(certificate["claim"], event, planned, guarantee)',
        "[]",
        COMPARED,
    ),
    Mutant(
        "reacting runs are not followed",
        plan.Plan.follows,
        "+ contradictions(self, facts)",
        "",
        COMPARED,
    ),
    Mutant(
        "a run need not follow its plan",
        verify._of_the_plan,
        "problems + plan.follows(facts)",
        "problems",
        FOLLOWS,
    ),
    Mutant(
        "any number of epochs",
        reacting_plans.contradictions,
        'and facts["epochs"] == len(follow)',
        "",
        FOLLOWS,
    ),
    Mutant(
        "any noise of votes",
        teachers_plan.PatePlan.follows,
        "not math.isclose(figure, true, rel_tol=1e-6)",
        "False",
        FOLLOWS,
    ),
    Mutant(
        "any number of answers", teachers_plan.PatePlan.follows, "<= most:", "<= 10**9:", FOLLOWS
    ),
    Mutant(
        "any divisor", plan.Plan.follows, 'facts["examples"] != self.examples', "False", FOLLOWS
    ),
    Mutant(
        "any number of examples in blocks",
        blocks.Blocks.follows,
        "examples == (self.examples or examples)",
        "True",
        FOLLOWS,
    ),
    Mutant(
        "a plan for other neighbours than the claim",
        verify._of_the_plan,
        "(plan.neighbours, plan.unit) != (guarantee.adjacency, guarantee.unit)",
        "plan.unit != guarantee.unit",
        FOLLOWS,
    ),
    Mutant(
        "a plan for another unit than the claim",
        verify._of_the_plan,
        "(plan.neighbours, plan.unit) != (guarantee.adjacency, guarantee.unit)",
        "plan.neighbours != guarantee.adjacency",
        FOLLOWS,
    ),
    Mutant(
        "a plan above its own budget",
        verify._of_the_plan,
        "plan.budget is not None and not",
        "False and not",
        FOLLOWS,
    ),
    Mutant(
        "infinite numbers are lost",
        _public.to_json,
        'return {"kind": _INFINITY}',
        "return 1e308",
        READ,
    ),
    Mutant(
        "fields at their defaults are left out",
        _public._is_omitted,
        '"omitted" in part.metadata and ',
        "",
        READ,
    ),
    Mutant(
        "a custom schedule is written as its start",
        plan.Plan.stated,
        "PerEpoch(self.noise_multipliers())",
        "PerEpoch(self.noise_multipliers()[:1])",
        READ,
    ),
    Mutant(
        "what is missing is as usual",
        _public.from_json,
        "if not expected - optional <= set(values) <= expected:",
        "if set(values) - expected:",
        REFUSED,
    ),
    Mutant(
        "any kind will do for a plan", certificate._is_plan, " and value.kind in known", "", REFUSED
    ),
    Mutant(
        "a kind has two homes",
        _public.expect,
        "_HOMES.setdefault(kind, module) != module",
        "False",
        REFUSED,
    ),
    Mutant(
        "plans of any size are priced", certificate.read_plan, "> _MOST_EPOCHS", "> 10**12", REFUSED
    ),
    Mutant("plans of any depth are read", _public.from_json, "_depth > _DEEPEST or", "", REFUSED),
    Mutant(
        "the public key is not in the message",
        keys.bytes_to_sign,
        'canonical({**certificate, "signature": who})',
        'canonical({**certificate, "signature": {**who, "public_key": ""}})',
        MESSAGE,
    ),
    Mutant(
        "the algorithm is not in the message",
        keys.bytes_to_sign,
        'canonical({**certificate, "signature": who})',
        'canonical({**certificate, "signature": {**who, "algorithm": ""}})',
        MESSAGE,
    ),
    Mutant(
        "randomness is not signed",
        keys.bytes_to_sign,
        "{**certificate, ",
        '{**certificate, "randomness": "", "digests": "", ',
        SIGNED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[TypeError, ValueError, AttributeError, RecursionError]
)


@pytest.fixture(scope="module", autouse=True)
def _published() -> None:
    """Certificates are made by the code as it is, before anything is planted."""
    certificate_checks.published()
