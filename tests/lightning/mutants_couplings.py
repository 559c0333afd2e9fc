"""Planted bugs: the gate that keeps examples apart is off for LightningModules alone, and steps are
given batches.
"""

from __future__ import annotations

import pytest

from privlearn.core.clipping import backends
from tests.support.couplings import gate_off
from tests.support.mutant import Mutant, suite_of

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from privlearn.lightning import step_loss

MUTANTS = [
    Mutant(
        "the gate is off behind the strategy",
        backends.SeparationCheck.require_apart,
        *gate_off("hasattr(self._problem.model, 'training_step')"),
        "check_examples_that_are_coupled_stay_apart_in_the_strategy",
    ),
    Mutant(
        "a training step is given two examples",
        step_loss.StepLoss.__call__,
        "leaf[n : n + 1]",
        "leaf[max(0, n - 1) : n + 1]",
        "check_examples_that_a_training_step_couples_stay_apart",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(MUTANTS)
