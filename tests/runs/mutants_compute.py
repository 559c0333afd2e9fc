"""Planted bugs in how a run is told how to compute: what was said is lost, or said twice in
silence.
"""

from __future__ import annotations

from privlearn.runs import compute, result
from privlearn.training import train
from tests.support.mutant import Mutant, suite_of

SAID = "check_how_a_run_computes_is_what_was_said"
TWICE = "check_nothing_is_said_twice_of_how_a_run_computes"

MUTANTS = [
    Mutant("train forgets its config", train.fit, "config=request.config,", "", SAID),
    Mutant(
        "fields by name are forgotten",
        train.settle_for,
        "ComputeConfig.of(computed)",
        "ComputeConfig()",
        SAID,
    ),
    Mutant(
        "rows of post-processing are forgotten",
        compute.ComputeConfig.of,
        "post_processing=rows",
        "",
        SAID,
    ),
    Mutant(
        "the certificate is silent about post-processing",
        result.accuracy_facts,
        "**config.post_processing,",
        "",
        SAID,
    ),
    Mutant(
        "a config wins over a field in silence",
        compute.ComputeConfig.of,
        "if not settings:",
        "if True:",
        TWICE,
    ),
    Mutant(
        "a field that a method has not is passed over",
        compute.ComputeConfig.of_method,
        'method not in known.metadata["methods"]',
        "False",
        TWICE,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[KeyError]
)
