"""Planted bugs of the weights that a private strategy publishes, each of which a named check must
catch.
"""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from privlearn.core import plan
from privlearn.lightning import frozen_weights, strategy
from privlearn.training import noted_weights

OWN = "check_a_steps_weights_are_published_as_that_steps"
OTHERS = "check_weights_of_others_are_not_published"
WITHIN = "check_a_checkpoint_within_a_step_is_not_noted"
NOTED = noted_weights.NotedWeights
MUTANTS = [
    Mutant(
        "weights of a file are any",
        NOTED.require_known,
        "if digest not in {*self._steps, self._last}:",
        "if False:",
        OTHERS,
    ),
    Mutant(
        "frozen weights may be others",
        NOTED.recognise,
        "if not known or self._beside != self._digest_beside():",
        "if not known:",
        OTHERS,
    ),
    Mutant(
        "a private figure may choose the step",
        NOTED._require_choice,
        "if figure_use:",
        "if False:",
        OTHERS,
    ),
    Mutant(
        "a step's weights are stated as a mean",
        NOTED._require_choice,
        "if average is not None:",
        "if False:",
        OTHERS,
    ),
    Mutant(
        "the certificate does not say which step",
        NOTED.recognise,
        "{WEIGHTS_OF_STEP: self._steps[digest]}",
        "{}",
        OWN,
    ),
    Mutant(
        "weights that something else changed are noted",
        NOTED.note,
        "descent.look()",
        "descent.seen()",
        WITHIN,
    ),
    Mutant(
        "weights are noted after the run",
        strategy.PrivateStrategy.save_checkpoint,
        "self._noted is not None and self._result is None",
        "self._noted is not None",
        OTHERS,
    ),
    Mutant(
        "weights are noted within a step",
        strategy.PrivateStrategy.save_checkpoint,
        "and not in_a_step:",
        ":",
        WITHIN,
    ),
    Mutant(
        "weights may be stated of a step that was not taken",
        plan.Plan.follows,
        'not 0 <= facts.get("weights_of_step", 0) <= taken',
        "False",
        "check_a_stated_step_of_weights_was_taken",
    ),
    Mutant(
        "a mean in the module is put back silently",
        frozen_weights.FrozenWeights.require_same,
        "if before is None or torch.equal(self._first_numbers(), before):",
        "if True:",
        "check_frozen_weights_that_a_script_changes_are_named",
    ),
    Mutant(
        "what a step writes into frozen weights is told",
        strategy.PrivateStrategy.training_step,
        "self._frozen.note()",
        "self._frozen._before = self._frozen._before or torch.zeros(1)",
        "check_frozen_weights_that_a_script_changes_are_named",
    ),
    Mutant(
        "training goes on without a claim",
        strategy.PrivateStrategy._require_claimable,
        "if unclaimed and not self._unclaimed:",
        "if False:",
        "check_training_ends_once_nothing_can_be_claimed",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(TypeError, AttributeError, RuntimeError)
)
