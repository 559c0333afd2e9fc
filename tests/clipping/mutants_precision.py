"""Planted bugs in the precision of products: a named check must catch each."""

from __future__ import annotations

from privlearn.core import devices, precision
from privlearn.core.clipping import capture, kernels
from privlearn.core.clipping.operations import sequential
from tests.clipping.checks_precision import convolution
from tests.support.mutant import Mutant, suite_of

APART = "check_norms_and_sums_are_in_full_precision_on_an_accelerator"
CHECK = "check_products_are_in_single_precision_whatever_is_set"

MUTANTS = [
    Mutant(
        "rows begin anywhere in memory",
        kernels._into,
        "align_rows(x.reshape(-1, x.shape[-1]))",
        "x.reshape(-1, x.shape[-1])",
        "check_rows_of_products_begin_at_multiples_of_64_bytes",
    ),
    Mutant(
        "products stay as they were set",
        precision.single_precision,
        "level.turn(full=True)",
        "pass",
        CHECK,
    ),
    Mutant(
        "settings are not put back",
        precision.single_precision,
        "level.turn(full=False)",
        "pass",
        CHECK,
    ),
    Mutant(
        "convolutions are forgotten",
        devices.precision_settings,
        "for setting in _SETTINGS",
        'for setting in ("matmul", "rnn")',
        CHECK,
    ),
    Mutant(
        "what an operation's backward pass makes norms of is in the caller's precision",
        capture._Through.backward,
        "with full_precision():",
        "if True:",
        APART,
    ),
    Mutant(
        "what a run of layers makes norms of is in the caller's precision",
        sequential._Fused.backward,
        "with full_precision():",
        "if True:",
        APART,
    ),
    Mutant(
        "the gradient of a convolution's input is in full precision",
        convolution.Convolution.backward,
        "with callers_precision():",
        "if True:",
        APART,
    ),
    Mutant(
        "sums are in the caller's precision",
        precision._set_precision,
        "level.turn(full=not full)",
        "pass",
        APART,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
