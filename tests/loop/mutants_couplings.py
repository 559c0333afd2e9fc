"""Planted bugs: the gate that keeps examples apart is off."""

from __future__ import annotations

from privlearn.core.clipping import backends
from tests.support.couplings import gate_off
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "the gate is off behind a loop",
        backends.SeparationCheck.require_apart,
        *gate_off("True"),
        "check_examples_that_are_coupled_stay_apart_in_a_loop",
    ),
    Mutant(
        "the gate is off behind one call",
        backends.SeparationCheck.require_apart,
        *gate_off("True"),
        "check_examples_that_are_coupled_stay_apart_in_one_call",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(MUTANTS)
