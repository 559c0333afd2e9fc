"""Planted bugs in what an accelerator needs: an index out of range goes unseen, and too little
memory counts as a row that is not there.
"""

from __future__ import annotations

from privlearn.core import memory
from privlearn.core.clipping import evaluation, gradients, index_ranges, indices
from tests.support.mutant import Mutant, suite_of

REFUSED = "check_indices_are_refused_where_the_processor_refuses_them"
KEPT = "check_what_is_overwritten_is_what_autograd_keeps"
MEMORY = "check_too_little_memory_for_one_example_ends_the_run"
ANSWERS = "check_too_little_memory_is_no_row_without_an_answer"

ALIGNED = "check_targets_of_ctc_loss_are_looked_at_on_the_processor"
LISTS = "check_lists_between_brackets_are_looked_at"
HOST = "check_an_index_on_the_processor_raises_at_once"

MUTANTS = [
    Mutant(
        "what is beyond a target's length is out of range",
        index_ranges._are_read,
        "places <",
        "places >= 0 *",
        REFUSED,
    ),
    Mutant(
        "the class after the last is one",
        index_ranges._within,
        "high)",
        "high + 1)",
        REFUSED,
    ),
    Mutant(
        "the processor is trusted with targets of ctc_loss",
        indices.Indices.looking,
        "else _LookingAtCalls(self)",
        "else nullcontext()",
        ALIGNED,
    ),
    Mutant(
        "what made-up rows call is forgotten",
        indices.Indices.at_call,
        "self.unchecked = True",
        "pass",
        ALIGNED,
    ),
    Mutant(
        "a pass layer by layer trusts it",
        indices.Indices.at_call,
        "name == _UNCHECKED",
        "name == _UNCHECKED and self.looks",
        ALIGNED,
    ),
    Mutant(
        "numbers in lists are sizes",
        indices._may_index,
        "3 if type(value) is list else depth + 1",
        "depth + 1",
        LISTS,
    ),
    Mutant("arrays are none", indices._may_index, 'hasattr(value, "__len__")', "False", LISTS),
    Mutant(
        "indices of the processor go on to the device",
        indices._Looking._settle,
        "elif outside:",
        "elif False:",
        HOST,
    ),
    Mutant("the last class is out of range", index_ranges._within, "high)", "high - 1)", REFUSED),
    Mutant(
        "negative places never wrap",
        index_ranges._along,
        "-size if wraps else 0",
        "0",
        REFUSED,
    ),
    Mutant(
        "a later look forgets an earlier one",
        indices.Indices.see,
        "outside if self.flag is None else self.flag | outside",
        "self.flag",
        REFUSED,
    ),
    Mutant(
        "indices are seen and stay",
        indices._Looking._settle,
        "overwrite(values, within)",
        "pass",
        KEPT,
    ),
    Mutant(
        "overlapping places are written to one after the other",
        indices.overwrite,
        "values.stride(), 0)",
        "[1] * values.dim(), 0)",
        KEPT,
    ),
    Mutant(
        "an example without memory is absent",
        gradients.ClippedGradients._add_clipped,
        "require_memory(error)",
        "pass",
        MEMORY,
    ),
    Mutant(
        "one error of many rows ends the run",
        gradients.ClippedGradients._add_clipped,
        "if len(rows) == 1:",
        "if True:",
        MEMORY,
    ),
    Mutant(
        "the processor's allocator is not known",
        memory.is_of_memory,
        "any(name in str(error) for name in _ALLOCATORS)",
        "False",
        MEMORY,
    ),
    Mutant(
        "an answer without memory is none",
        evaluation.RightAnswers._alone,
        "require_memory(error)",
        "pass",
        ANSWERS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[IndexError, RuntimeError]
)
