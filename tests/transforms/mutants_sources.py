"""Planted bugs in where features come from and in heads from noisy sums, each of which a named
check must catch.
"""

from __future__ import annotations

from privlearn.core.clipping import row_sums
from privlearn.methods.statistics import classifiers, opening, plan
from privlearn.publishing import verify
from privlearn.training import rules
from privlearn.transforms import modules, moments, precomputed
from tests.support.mutant import Mutant, suite_of

MOVES = "check_one_row_moves_least_squares_by_at_most_the_sensitivity"
NOISE = "check_noise_of_least_squares_has_the_stated_scale"
SOLVED = "check_least_squares_is_what_it_says"
PRICE = "check_moments_are_in_the_price"
ROWS = "check_features_of_other_rows_are_refused"
TRAINS = "check_a_folder_trains_what_its_encoder_trains"

MUTANTS = [
    # Least squares
    Mutant(
        "the constant is not in the bound",
        row_sums.least_squares_sums,
        'math.hypot(positive("norm", norm), positive("constant", constant))',
        "norm",
        MOVES,
    ),
    Mutant("rows are not clipped", row_sums.least_squares_sums, ".clamp_(min=limit)", "", MOVES),
    Mutant(
        "an exchanged row moves X'X by one square",
        row_sums.least_squares_sums,
        "length**2 * (math.sqrt(2) if replaced else 1.0)",
        "length**2",
        MOVES,
    ),
    Mutant(
        "an exchanged row moves X'Y by one row",
        row_sums.least_squares_sums,
        "adjacency.sum_sensitivity(norm), ",
        "",
        MOVES,
    ),
    Mutant(
        "rows that are none have a constant",
        row_sums.least_squares_sums,
        "follows * member.sum(1, keepdim=True)",
        "torch.full((len(rows), 1), follows, dtype=rows.dtype)",
        MOVES,
    ),
    Mutant(
        "X'X is given without the root of two", row_sums.isometric, "* math.sqrt(2)", "* 1.0", MOVES
    ),
    Mutant(
        "blocks but the last are lost",
        row_sums.least_squares_sums,
        "products + longer.T @ member",
        "longer.T @ member",
        "check_blocks_make_no_difference_to_least_squares",
    ),
    Mutant(
        "X'X has the noise of the whole",
        classifiers.release_squares,
        "math.sqrt(part / whole) for part in plan.split",
        "1.0 / math.sqrt(2) for part in plan.split",
        NOISE,
    ),
    Mutant(
        "noise in X'X is not symmetric",
        classifiers.release_squares,
        "symmetric(gram, len(products))",
        "symmetric(gram, len(products)).triu()",
        NOISE,
    ),
    Mutant(
        "the ridge is made of one number's noise",
        classifiers.Squares.loudest,
        "math.sqrt(2 * len(self.gram)) * ",
        "",
        NOISE,
    ),
    Mutant(
        "eigenvalues below 0 are divided by",
        classifiers.solved,
        "values.clamp(min=0)",
        "values",
        SOLVED,
    ),
    Mutant(
        "the bias is left as it is scaled",
        classifiers.least_squares,
        "plan.constant * weights[-1]",
        "weights[-1]",
        SOLVED,
    ),
    Mutant(
        "least squares are for free",
        plan.LeastSquaresPlan.event,
        "compose([Gaussian(self.noise)])",
        "compose([])",
        "check_heads_from_statistics_stand_behind_public_features",
    ),
    Mutant(
        "statistics are of rows, not of features",
        opening._in_front,
        "if plan.front:",
        "if False:",
        "check_heads_from_statistics_stand_behind_public_features",
    ),
    Mutant(
        "features of statistics are not named",
        opening.linear_result,
        "public_facts(origin.public)",
        "{}",
        "check_heads_from_statistics_stand_behind_public_features",
    ),
    # Moments
    Mutant(
        "moments are for free",
        moments.Moments.fit,
        "ledger=ledger",
        "ledger=type('', (), {'charge': lambda *_: None})()",
        PRICE,
    ),
    Mutant(
        "moments have less noise than is charged",
        moments.Moments.fit,
        "noise_multiplier=self.noise_multiplier",
        "noise_multiplier=self.noise_multiplier / 2",
        "check_moments_have_the_stated_noise",
    ),
    Mutant(
        "moments are certified as cheaper",
        verify._of_the_plan,
        "planned = plan.event()",
        "planned = event",
        PRICE,
    ),
    Mutant(
        "rows are standardised unclipped",
        modules.Standardise.forward,
        ".clamp(min=norm)",
        "* 0 + norm",
        "check_moments_are_those_of_clipped_rows",
    ),
    Mutant(
        "deviations are variances",
        moments.Moments.fit,
        "floor).sqrt()",
        "floor)",
        "check_moments_are_those_of_clipped_rows",
    ),
    Mutant(
        "a feature that is constant is blown up",
        moments.Moments.fit,
        "statistics.variances(LEAST_COUNT, floor).sqrt()",
        "statistics.variances(LEAST_COUNT, floor).sqrt() * 1e-3",
        PRICE,
    ),
    Mutant(
        "the number of rows is printed",
        moments.Moments.fit,
        "floor = ",
        "print(len(rows)); floor = ",
        "check_neighbouring_runs_with_moments_look_the_same",
    ),
    Mutant(
        "rates forget the norm after moments",
        rules.public_norm,
        "plan.releases[-1].normalises",
        "False",
        "check_rates_know_rows_of_public_norm",
    ),
    # Folders
    Mutant(
        "features may be of other rows",
        precomputed.FeatureFolder._require_rows,
        "self.rows[part].lower() != rows_digest(x)",
        "False",
        ROWS,
    ),
    Mutant(
        "features may be of fewer rows",
        precomputed.FeatureFolder._require_rows,
        "len(features) != len(x)",
        "False",
        ROWS,
    ),
    Mutant(
        "test rows are not compared",
        precomputed.FeatureFolder.of,
        'self._require_rows("test", test, data.x_test)',
        "pass",
        ROWS,
    ),
    Mutant("a digest of shapes alone", precomputed.rows_digest, "digest.update(", "(", ROWS),
    Mutant(
        "digests of rows are published",
        precomputed.PrecomputedRows.describe,
        '"digest": encoder.digest',
        '"digest": encoder.digest, "rows": "0"',
        TRAINS,
    ),
    Mutant(
        "everybody may read a folder of features",
        precomputed.save_features,
        "mode=0o700",
        "mode=0o755",
        TRAINS,
    ),
    Mutant(
        "features are scaled as rows were",
        precomputed.FeatureFolder.of,
        "low=None, high=None",
        "low=0.0, high=255.0",
        TRAINS,
    ),
    Mutant(
        "features are normalised over the batch",
        precomputed.PrecomputedRows.forward,
        "x.float(), x.shape[1:]",
        "x.float(), x.shape",
        "check_rows_of_features_are_normalised_one_by_one",
    ),
    Mutant(
        "a certificate may name another encoder's weights",
        verify._identity,
        'features.get("digest", "")',
        '""',
        "check_a_certificate_of_a_folder_names_its_encoder",
    ),
    Mutant(
        "values that are no numbers are taken",
        precomputed.FeatureFolder.part,
        "range(0, len(values), _ROWS_AT_ONCE)",
        "range(0)",
        "check_bad_folders_are_refused_in_one_message",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, RuntimeError, TypeError, AttributeError, KeyError]
)
