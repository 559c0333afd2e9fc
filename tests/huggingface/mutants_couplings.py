"""Planted bug: the gate that keeps examples apart is off for models of transformers alone."""

from __future__ import annotations

from privlearn.core.clipping import backends
from tests.support import texts as made
from tests.support.couplings import gate_off
from tests.support.mutant import Mutant, suite_of

made.require_transformers()

MUTANTS = [
    Mutant(
        "the gate is off behind the trainer",
        backends.SeparationCheck.require_apart,
        *gate_off("hasattr(self._problem.model, 'config')"),
        "check_examples_that_are_coupled_stay_apart_in_the_trainer",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(MUTANTS)
