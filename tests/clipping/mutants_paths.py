"""Planted bugs of the paths that models take, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core.clipping import backends, capture, losses
from privlearn.core.clipping.operations import patches
from privlearn.core.clipping.operations.convolution import Convolution, _patches
from privlearn.core.clipping.sharded import models as fsdp
from tests.support.mutant import Mutant, suite_of

USED = "check_rules_that_there_are_are_used"

PATCHES = "check_patches_give_the_gradients_of_convolutions"

MUTANTS = [
    Mutant(
        "what backward passes write into .grad stays",
        backends.gradients_apart,
        "parameter.grad = None",
        "pass",
        "check_backward_passes_within_backward_passes_are_clipped",
    ),
    Mutant(
        "what backward passes write into .grad is left out",
        backends.Loop.each,
        "g if p.grad is None else g + p.grad",
        "g",
        "check_backward_passes_within_backward_passes_are_clipped",
    ),
    Mutant(
        "batches without padding are asked whether they are",
        capture.Capture._run,
        "if asks_for_all(name, args):",
        "if False:",
        "check_batches_without_padding_take_the_general_path",
    ),
    Mutant(
        "what is checkpointed is computed twice",
        capture.without_checkpoints,
        "hasattr(checkpoint, name)",
        "False",
        "check_checkpoints_change_nothing",
    ),
    Mutant(
        "rows are tried without what the loss says of them",
        losses.BatchShape.made_up,
        "if self.change is None:",
        "if True:",
        "check_losses_are_tried_on_rows_as_they_say",
    ),
    Mutant(
        "patches of two dimensions are cut wrongly",
        _patches,
        "3 + 2 * axis, (-1",
        "3 + 3 * axis, (-1",
        USED,
    ),
    Mutant(
        "transposed convolutions are taken for images of one channel",
        Convolution._form_at_once,
        "and not self._transposed",
        "or self._transposed",
        USED,
    ),
    Mutant(
        "all models are sharded in old versions",
        fsdp.is_sharded,
        "return False\n    return any",
        "return True\n    return any",
        "check_nothing_is_sharded_where_pytorch_can_not",
    ),
    Mutant(
        "patches of dilated convolutions are those of dense ones",
        patches.unfold,
        "[..., :: dilation[axis]]",
        "[..., :size]",
        PATCHES,
    ),
    Mutant(
        "patches are padded with ones",
        patches.unfold,
        "for _ in range(2)])",
        "for _ in range(2)], value=1.0)",
        PATCHES,
    ),
    Mutant(
        "examples after the first part are forgotten",
        patches.form,
        "range(0, len(x), at_once)",
        "range(0, at_once, at_once)",
        PATCHES,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
