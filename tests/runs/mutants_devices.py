"""Planted bugs in what an accelerator needs: an index out of range goes unseen, and too little
memory counts as a row that is not there.
"""

from __future__ import annotations

from privlearn.core import memory
from privlearn.core.clipping import evaluation, gradients, indices
from tests.support.mutant import Mutant, suite_of

REFUSED = "check_indices_are_refused_where_the_processor_refuses_them"
KEPT = "check_what_is_overwritten_is_what_autograd_keeps"
MEMORY = "check_too_little_memory_for_one_example_ends_the_run"
ANSWERS = "check_too_little_memory_is_no_row_without_an_answer"

MUTANTS = [
    Mutant("the last class is out of range", indices._within, "high)", "high - 1)", REFUSED),
    Mutant(
        "negative places never wrap",
        indices._along,
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
        indices._Looking.__torch_dispatch__,
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
