"""Planted bugs in masks that ChaCha20 makes, and in those of devices; each is caught by name."""

from __future__ import annotations

from privlearn.core.clipping import gradients, randomness
from tests.support.mutant import Mutant, suite_of

SAME = "check_masks_of_one_seed_are_the_same_on_all_devices"
ALONE = "check_masks_of_chacha_follow_from_row_call_and_batch_alone"
ROWS = "check_masks_of_chacha_of_other_rows_do_not_move"
FUSED = "check_attention_with_dropout_draws_its_mask_by_key_on_an_accelerator"
LAWS = "check_numbers_of_chacha_have_their_distributions"

MUTANTS = [
    Mutant(
        "an accelerator keeps the others",
        randomness._fill,
        "mask = _below(bits, share)",
        "mask = ~_below(bits, 1 - share)",
        SAME,
    ),
    Mutant(
        "shares are compared in single precision",
        randomness._below,
        "math.ceil(share * 2.0**32)",
        "math.ceil(float(torch.tensor(share)) * 2.0**32)",
        SAME,
    ),
    Mutant(
        "kept rows are scaled otherwise",
        randomness._fill,
        "scale.div_(share)",
        "scale",
        SAME,
    ),
    Mutant(
        "rows share their masks",
        randomness._Keyed._by_chacha,
        "nonces = self._of.nonces(device)",
        "nonces = 7",
        ALONE,
    ),
    Mutant(
        "masks by the place in the batch",
        randomness._Examples.nonces,
        "torch.from_numpy(self.digests.view(np.int64))",
        "torch.arange(len(self.digests))",
        ROWS,
    ),
    Mutant(
        "calls share their masks",
        randomness._Keyed._by_chacha,
        'name.to_bytes(8, "little")',
        "bytes(8)",
        ALONE,
    ),
    Mutant(
        "the numbers of a row repeat themselves",
        randomness._Keyed._by_chacha,
        "torch.arange(blocks, device=device)",
        "torch.zeros(blocks, device=device).long()",
        ALONE,
    ),
    Mutant(
        "a row's blocks go to others",
        randomness._Keyed._by_chacha,
        ".view(chacha.WORDS, number, blocks)",
        ".view(chacha.WORDS, blocks, number).movedim(1, 2)",
        ALONE,
    ),
    Mutant(
        "what a run draws by is not heard",
        gradients.ClippedGradients.draw_by,
        "self._random.cipher = cipher",
        "pass",
        ROWS,
    ),
    Mutant(
        "a fused kernel draws the mask of attention",
        randomness._UnfusedUnderDropout.__torch_function__,
        "if dropout else",
        "if False else",
        FUSED,
    ),
    Mutant(
        "dropout given by name goes unseen",
        randomness._UnfusedUnderDropout.__torch_function__,
        'kwargs.get("dropout_p", 0.0)',
        "0.0",
        FUSED,
    ),
    Mutant(
        "attention is never fused",
        randomness._UnfusedUnderDropout.__torch_function__,
        "if dropout else",
        "if True else",
        FUSED,
    ),
    Mutant(
        "shares of tensors are turned round",
        randomness._below,
        "(share.double() * 2.0**32)",
        "((1 - share.double()) * 2.0**32)",
        LAWS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
