"""Planted bugs in losses as scripts write them: a named check must catch each."""

from __future__ import annotations

from privlearn import loop
from privlearn.core.clipping import agreement, gradients, losses
from privlearn.training import batch_losses, made_up_ranges, task
from tests.support.mutant import Mutant, suite_of

IN_RANGE = "check_made_up_rows_lie_in_a_range_that_a_loss_accepts"
PUBLIC = "check_a_made_up_rows_range_never_follows_from_private_rows"
GIVEN = "check_made_up_rows_are_as_the_loop_says"
MEANS = "check_means_and_sums_of_a_batch_are_of_its_examples"
LEFT = "check_a_single_example_that_is_left_over_changes_no_way"
COUPLED = "check_a_mean_that_couples_examples_is_refused"

MUTANTS = [
    Mutant(
        "a made-up row's range follows from private rows",
        made_up_ranges.in_accepted_ranges,
        "MadeUpRanges((None,) * len(rows.like))",
        "MadeUpRanges(tuple(_to_unit if float(leaf.max()) <= 1 else None "
        "for leaf in rows.fetch(torch.arange(len(rows)))))",
        PUBLIC,
    ),
    Mutant(
        "ranges are not used where a loss is tried",
        made_up_ranges._Trial.__call__,
        "leaves = tree_flatten(ranges(clones))[0]",
        "leaves = self._rows",
        IN_RANGE,
    ),
    Mutant(
        "only one tensor is brought into a range",
        made_up_ranges._tried,
        "ranges == usual or (answer is _Answer.REFUSED and refusal not in refusals)",
        "ranges == usual",
        IN_RANGE,
    ),
    Mutant(
        "a loss of zero is taken for an answer",
        made_up_ranges._Trial.__call__,
        "bool(finite.any())",
        "bool(len(finite))",
        "check_a_loss_that_is_silent_outside_its_range_is_tried_within_it",
    ),
    Mutant(
        "rows leave the range of a loss when they are enlarged",
        agreement.require_uncoupled,
        "problem.shape.made_up((*map(larger, rows[:inputs]), *rows[inputs:]))",
        "(*map(larger, rows[:inputs]), *rows[inputs:])",
        IN_RANGE,
    ),
    Mutant(
        "made-up rows of a loss of outputs are as they come",
        losses.BatchShape.of,
        'getattr(loss, "made_up", None)',
        'getattr(loss, "made_up", None) if whole else None',
        GIVEN,
    ),
    Mutant(
        "a loop's made_up is forgotten",
        loop.make_private,
        "run.task.made_up = made_up",
        "run.task.made_up = None",
        GIVEN,
    ),
    Mutant(
        "a network is tried on other rows than its loss",
        task._make_up_inputs,
        "shape.made_up(",
        "tuple(",
        GIVEN,
    ),
    Mutant(
        "a number of a batch is believed to be a mean of its examples",
        batch_losses._is_of_batch,
        "return _close(together, each.mean()) or _close(together, each.sum())",
        "return True",
        COUPLED,
    ),
    Mutant(
        "a mean by class weights is one of its examples",
        batch_losses.of_each_example,
        "if any(over.weighted for over in means):",
        "if False:",
        COUPLED,
    ),
    Mutant(
        "values that do not count are averaged over",
        batch_losses._OverEachExample._over,
        "if counted is not None and mean:",
        "if False:",
        MEANS,
    ),
    Mutant(
        "means over examples are not compared with single examples",
        batch_losses.of_each_example,
        "if all(_close(computed(at_once, size), computed(by_each, size)) for size in sizes):",
        "if True:",
        MEANS,
    ),
    Mutant(
        "a mean over a single example is computed otherwise",
        batch_losses.BatchLoss.__call__,
        "if self._of_rows is not None:",
        "if self._of_rows is not None and rows > 1:",
        LEFT,
    ),
    Mutant(
        "what a single example needs is done for all that follow",
        gradients.ClippedGradients._compute_one_by_one,
        "if len(rows) == 1:",
        "if False:",
        LEFT,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
