"""An example that acts on later sums beside what was released: each way must be caught by a named
check.
"""

from __future__ import annotations

from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.methods.boosting import rounds
from privlearn.training import run as dpsgd
from privlearn.transforms import pca
from tests.support.mutant import Mutant, suite_of

BATCHES, STATES = (
    "check_batches_without_an_example_do_not_feel_it",
    "check_states_of_losses_keep_nothing_of_an_example",
)
MUTANTS = [
    Mutant(
        "a step moves by a billionth of the sum without noise",
        dpsgd.Run.step,
        "clipped = task.gradients(batch.sample, batch.rows, out=task.sums)",
        "clipped = task.gradients(batch.sample, batch.rows, out=task.sums); "
        "next(iter(task.parameters)).data.add_(1e-9 * float(clipped.values[0].sum()))",
        BATCHES,
    ),
    Mutant("what a loss writes stays", FrozenState.restore, "tensor.copy_(value)", "pass", STATES),
    Mutant(
        "a loss's state is nobody's",
        FrozenState.__init__,
        "for o in (loss,",
        "for o in (None,",
        STATES,
    ),
    Mutant(
        "directions are as long as the rows without noise",
        pca.PrivatePCA.fit,
        "/ sizes)",
        "/ (sizes + 1e-9 * rows.nan_to_num(0.0, 0.0, 0.0).sum()))",
        "check_transforms_keep_nothing_of_an_example",
    ),
    Mutant(
        "scores move by what was not released",
        rounds._rounds,
        "scores += change.T[cells]",
        "scores += change.T[cells] + 1e-9 * gradients.sum(0)",
        "check_leaves_without_an_example_do_not_feel_it",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
