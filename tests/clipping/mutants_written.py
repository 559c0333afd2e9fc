"""Planted bugs of what keeps trained parameters from being written into, each of which a named
check must catch.
"""

from __future__ import annotations

from privlearn.core.clipping import model_check as check
from privlearn.core.clipping import trained_state
from privlearn.core.clipping.evaluation import RightAnswers
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.parameters.attributes import PlainAttributes, _Module
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.clipping.trained_state import TrainedState
from privlearn.opacus.script_run import ScriptRun
from privlearn.training.task import Task
from tests.support.mutant import Mutant, suite_of

UNDONE = "check_what_a_pass_writes_into_trained_parameters_is_undone"
REFUSED = "check_models_that_write_into_trained_parameters_are_refused_beforehand"
NAMED = "check_tables_that_rescale_what_is_looked_up_are_refused"
KEPT = "check_what_a_pass_leaves_in_plain_attributes_reaches_no_later_one"
LASTS = "check_what_is_no_number_of_rows_lasts_in_attributes"

MUTANTS = [
    Mutant(
        "plain attributes are not restored",
        FrozenState.restore,
        "self.attributes.restore()",
        "pass",
        KEPT,
    ),
    Mutant(
        "plain attributes that are replaced stay",
        _Module.restore,
        "self.attributes.update(self.before)",
        "pass",
        KEPT,
    ),
    Mutant(
        "lists keep what a pass put in", PlainAttributes.restore, "container.clear()", "pass", KEPT
    ),
    Mutant(
        "tensors in plain attributes keep what was written",
        PlainAttributes.restore,
        "tensor.copy_(copy)",
        "pass",
        KEPT,
    ),
    Mutant(
        "what the caller sets between sums is lost",
        ClippedGradients.__call__,
        "self.fixed.attributes.take()",
        "pass",
        LASTS,
    ),
    Mutant(
        "trained parameters are not restored",
        FrozenState.restore,
        "self.trained.restore()",
        "pass",
        UNDONE,
    ),
    Mutant(
        "trained parameters are not held in a step",
        ClippedGradients.__call__,
        ", self.fixed.trained.holding():",
        ":",
        UNDONE,
    ),
    Mutant(
        "a write through .data is missed",
        TrainedState.restore,
        "not entry.is_same()",
        "False",
        UNDONE,
    ),
    Mutant(
        "a changed sign of zero is missed",
        trained_state._Entry.is_same,
        "torch.equal(self.bits, self._bits_before)",
        "torch.equal(self.memory, self.copy)",
        "check_parameters_of_any_layout_are_restored",
    ),
    Mutant(
        "other memory is missed",
        trained_state._Entry.is_moved,
        "or self._layout != self._layout_now()",
        "",
        UNDONE,
    ),
    Mutant(
        "other memory stays",
        trained_state._Entry.put_back,
        "parameter.data = self.memory",
        "pass",
        UNDONE,
    ),
    Mutant(
        "a parameter that was replaced stays",
        TrainedState.restore,
        "!= identities",
        "is None",
        UNDONE,
    ),
    Mutant(
        "a parameter that was frozen stays so",
        trained_state._Entry.put_back,
        "parameter.requires_grad_()",
        "pass",
        UNDONE,
    ),
    Mutant(
        "undone writes are counted",
        trained_state._Entry.put_back,
        "writes := parameter._version - self._version",
        "writes := 0",
        UNDONE,
    ),
    Mutant(
        "what one example writes reaches the others",
        ClippedGradients._require_untouched,
        "if self.fixed.trained.written and",
        "if False and",
        "check_what_one_example_writes_reaches_no_other",
    ),
    Mutant(
        "models are tried at their first weights alone",
        check._require_unwritten,
        "(1.0, 100.0)",
        "(1.0,)",
        REFUSED,
    ),
    Mutant(
        "models that write are not refused",
        check.require_per_example,
        "if not fixed:\n        batch",
        "if False:\n        batch",
        REFUSED,
    ),
    Mutant(
        "max_norm is not refused by name",
        check.require_separate,
        "and module.max_norm is not None",
        "and False",
        NAMED,
    ),
    Mutant(
        "what a model writes in evaluation stays",
        RightAnswers._score,
        "self._trained.restore()",
        "pass",
        "check_evaluations_write_nothing_into_trained_parameters",
    ),
    Mutant(
        "a model that writes in evaluation has answers",
        RightAnswers._score,
        "if self._trained.written:",
        "if False:",
        "check_evaluations_write_nothing_into_trained_parameters",
    ),
    Mutant(
        "what the look at the data writes stays",
        Task._refuse,
        "with self.gradients.fixed.holding():",
        "if True:",
        "check_the_look_at_the_data_writes_nothing",
    ),
    Mutant(
        "what a script's forward writes stays",
        ScriptRun.forward,
        "self._fixed.holding()",
        "nullcontext()",
        "check_what_a_scripts_forward_writes_is_undone",
    ),
    Mutant(
        "undone writes are taken for the caller's",
        trained_state.versions,
        "parameter._version - _UNDONE.get(parameter, 0)",
        "parameter._version",
        "check_what_a_scripts_forward_writes_is_undone",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
