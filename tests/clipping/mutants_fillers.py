"""Planted bugs of the sizes that batches are computed in, each caught by a named check."""

from __future__ import annotations

from privlearn.core.clipping import agreement
from privlearn.core.clipping.gradients import ClippedGradients
from tests.support.mutant import Mutant, suite_of

NOTHING = "check_fillers_add_nothing"
PARTS = "check_parts_of_a_batch_hold_about_what_a_plain_step_does"
FEW = "check_random_batches_have_few_sizes"
#: Weights of the examples, and of all that was computed.
CUT = "self._weights(losses[:count], squares[:, :count], finite, clipped, weighed)"
WHOLE = "self._weights(losses, squares, finite, clipped, weighed)[:, :count]"

MUTANTS = [
    Mutant(
        "fillers are added",
        ClippedGradients._add_clipped,
        "(0, len(losses) - count))",
        "(0, len(losses) - count), value=1.0)",
        NOTHING,
    ),
    Mutant(
        "fillers are counted",
        ClippedGradients._add_clipped,
        CUT,
        WHOLE,
        NOTHING,
    ),
    Mutant(
        "fillers are observed",
        ClippedGradients._add_clipped,
        CUT,
        WHOLE,
        "check_fillers_are_not_observed",
    ),
    Mutant(
        "fillers may be infinite",
        ClippedGradients._finite,
        "if finite.all() or not counts.any()",
        "if examples.all() or not counts.any()",
        "check_a_batch_whose_filler_is_not_finite_is_computed_in_halves",
    ),
    Mutant(
        "batches are computed as they come",
        ClippedGradients._count_fillers,
        "-examples % multiple",
        "0",
        FEW,
    ),
    Mutant(
        "fillers don't fit into memory",
        ClippedGradients._count_fillers,
        "min(-examples % multiple, most - examples)",
        "-examples % multiple",
        FEW,
    ),
    Mutant(
        "a filler of a person is one row",
        ClippedGradients._take,
        "first = len(rows) // examples",
        "first = 1",
        "check_persons_are_filled_up_whole",
    ),
    Mutant(
        "a batch is computed whole, whatever it holds",
        agreement.physical_batch,
        "max(as_plain, _LEAST_EXAMPLES, _LEAST_BYTES / held.total)",
        "math.inf",
        PARTS,
    ),
    Mutant(
        "small batches are computed in parts",
        agreement.physical_batch,
        ", _LEAST_EXAMPLES, _LEAST_BYTES / held.total",
        ", 1",
        PARTS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
