"""Planted bugs in the precision of products: a named check must catch each."""

from __future__ import annotations

from privlearn.core import devices, precision
from tests.support.mutant import Mutant, suite_of

CHECK = "check_products_are_in_single_precision_whatever_is_set"

MUTANTS = [
    Mutant(
        "products stay as they were set",
        precision.single_precision,
        "setting.fp32_precision = _FULL",
        "pass",
        CHECK,
    ),
    Mutant(
        "settings are not put back",
        precision.single_precision,
        "setting.fp32_precision = before",
        "pass",
        CHECK,
    ),
    Mutant(
        "convolutions are forgotten",
        devices.precision_settings,
        "for setting in _SETTINGS",
        'for setting in ("matmul", "rnn")',
        CHECK,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
