"""Planted bugs in how rows of different lengths are computed: a named check must catch each."""

from __future__ import annotations

from privlearn.core.clipping import gradients
from privlearn.data import dataset_rows, padding
from privlearn.training import task
from tests.support.mutant import Mutant, suite_of

LOOP, OWN = (
    "check_rows_of_different_lengths_are_the_loops",
    "check_what_a_row_is_padded_to_follows_from_itself",
)
LEARNED, MORE = (
    "check_padding_is_learned_from_the_collate_function",
    "check_collate_functions_that_do_more_than_pad_are_refused",
)
CANNOT, NEST = (
    "check_lengths_that_the_model_cannot_have_are_not_padded_to",
    "check_the_loss_gets_what_the_collate_function_makes",
)

MUTANTS = [
    Mutant(
        "rows are padded to the longest of the batch",
        dataset_rows._Batch.by_shape,
        "longer = padding.rounded_up(row_shapes)",
        "longer = max(map(shapes_of, self._leaves.values()))",
        OWN,
    ),
    Mutant(
        "rows of the longest group alone are computed",
        dataset_rows._Batch.by_shape,
        "sorted(groups.items())",
        "sorted(groups.items())[-1:]",
        LOOP,
    ),
    Mutant(
        "a length that can't be computed takes its rows along",
        dataset_rows._Batch.by_shape,
        "longer if suits(_Batch(self._rows, {}, longer)) else row_shapes",
        "longer",
        CANNOT,
    ),
    Mutant(
        "padded on the other side",
        padding._place,
        "if before.get(axis)",
        "if not before.get(axis)",
        LEARNED,
    ),
    Mutant("padded with ones", padding.Padding.padded, "axes, fill)\n", "axes, 1)\n", LEARNED),
    Mutant(
        "what stands in place of rows is not compared",
        padding._learn,
        "(drawn or _same(batch, expected))",
        "True",
        MORE,
    ),
    Mutant(
        "what rows are padded with is not compared",
        padding._learn,
        "torch.equal(beside, torch.full_like(beside, fill)) and (drawn or _same(batch, expected))",
        "_same(batch[covered], expected[covered])",
        MORE,
    ),
    Mutant(
        "the length of a row is published",
        task.Task.architecture,
        "self.indexed.padded:",
        "False:",
        NEST,
    ),
    Mutant(
        "dictionaries of other classes are one tensor",
        dataset_rows._as_nest,
        "isinstance(batch, UserDict)",
        "False",
        NEST,
    ),
    Mutant(
        "rows from workers lose their shapes",
        dataset_rows._unpack,
        "pieces[place][row]",
        "pieces[place][0]",
        LOOP,
    ),
    Mutant(
        "a length that draws nothing decides for all",
        gradients.ClippedGradients._suits,
        "before or self._random.active",
        "before and self._random.active",
        "check_random_numbers_for_some_lengths_alone_stay_fast",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError, AttributeError, IndexError]
)
