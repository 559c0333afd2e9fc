"""Planted bugs in layers in other coordinates, each of which a named check must catch."""

from __future__ import annotations

from privlearn.publishing import publish
from privlearn.training import preconditioning
from tests.support.mutant import Mutant, suite_of

DECLARED = "check_curvature_is_of_rows_that_are_declared_public"
SAME = "check_preconditioned_and_folded_networks_compute_the_same"
WHITE = "check_inputs_are_white_behind_the_root_of_their_covariance"
STATED = "check_certificates_say_what_curvature_is_of"

MUTANTS = [
    Mutant(
        "curvature is that of the private rows",
        preconditioning.precondition,
        "inputs.draw(tuple(shape))",
        "as_tensor(private.x)",
        "check_a_row_moves_preconditioned_releases_by_at_most_the_sensitivity",
    ),
    Mutant(
        "rows need no declaration",
        preconditioning._declared_rows,
        "if not inputs.public:",
        "if False:",
        DECLARED,
    ),
    Mutant(
        "nothing is compared with private rows",
        preconditioning._declared_rows,
        "if private is None:",
        "if private is None:\n        return as_tensor(inputs.x)\n    if False:",
        DECLARED,
    ),
    Mutant(
        "the private rows are taken for public ones",
        preconditioning._declared_rows,
        'require_others(inputs.x, private.x, "the inputs that curvature is estimated on")',
        "pass",
        DECLARED,
    ),
    Mutant(
        "the mean is left out in folding",
        preconditioning.Preconditioned.folded,
        " - rows @ self.mean.double()",
        "",
        SAME,
    ),
    Mutant(
        "weights start as those of the layer",
        preconditioning.Preconditioned.__init__,
        "outward[1] @ rows @ inward[1]",
        "rows",
        SAME,
    ),
    Mutant(
        "the mean is not moved into the bias",
        preconditioning.Preconditioned.__init__,
        " + rows @ mean.double()",
        "",
        SAME,
    ),
    Mutant(
        "padding by name is left out",
        preconditioning._padding,
        'if layer.padding == "valid":',
        "if True:",
        "check_patches_are_those_that_the_convolution_sees",
    ),
    Mutant(
        "the network itself is written anew",
        preconditioning.precondition,
        "copy.deepcopy(model)",
        "model",
        SAME,
    ),
    Mutant(
        "powers the wrong way round",
        preconditioning._roots,
        "damped**-power",
        "damped**power",
        WHITE,
    ),
    Mutant(
        "the scale is left out",
        preconditioning._Moments.layer_of,
        "(before * behind) ** -0.5",
        "1.0",
        WHITE,
    ),
    Mutant(
        "inputs keep their mean",
        preconditioning._Moments.layer_of,
        " - mean.outer(mean)",
        "",
        WHITE,
    ),
    Mutant(
        "a folded result says nothing",
        preconditioning.fold,
        "trained.facts | {FACT: words}",
        "trained.facts",
        STATED,
    ),
    Mutant(
        "only the first layer's inputs are stated",
        preconditioning.describe_inputs,
        "dict.fromkeys(words)",
        "words[:1]",
        "check_certificates_say_all_that_curvature_is_of",
    ),
    Mutant(
        "what is not folded is published",
        publish._require_claimable,
        'hasattr(part, "preconditioned_by")',
        "False",
        STATED,
    ),
    Mutant(
        "changed weights are folded",
        preconditioning.fold,
        "trained.require_unchanged()",
        "pass",
        "check_a_result_that_was_changed_is_not_folded",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError, ValueError, AttributeError, KeyError]
)
