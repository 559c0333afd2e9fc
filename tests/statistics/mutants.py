"""Planted bugs in feature selection and release, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core import plan as plan_module
from privlearn.core import row_transform, transform
from privlearn.core.accounting import calibration
from privlearn.core.clipping import row_sums
from privlearn.core.mechanisms import selection
from privlearn.data import dataset
from privlearn.methods.statistics import classifiers, features, opening
from privlearn.methods.statistics import plan as statistics_plan
from privlearn.publishing import verify
from privlearn.runs import session
from privlearn.transforms import select
from privlearn_studies.shen2021 import published
from tests.support.mutant import Mutant, suite_of

MOVES = "check_one_row_moves_class_statistics_by_at_most_the_sensitivity"
SCORES = "check_one_row_moves_distances_by_at_most_the_sensitivity"
WELCH = "check_welch_statistics_have_the_variance_of_each_class"
ROWS = "check_one_row_moves_rows_by_at_most_the_sensitivity"
PRICE = "check_every_plan_costs_what_it_says"
TOLD = "check_the_chosen_features_are_told_and_no_others"
SCORED = "check_scores_are_those_of_the_released_statistics"
SAID = "check_stated_choices_are_those_of_the_plan"
MET = "check_targets_are_met_to_the_last_digits"

MUTANTS = [
    # Sensitivities
    Mutant(
        "class sums of rows that are not clipped",
        row_sums.class_statistics,
        "lengths.clamp_(min=limit)",
        "torch.full_like(lengths, limit)",
        MOVES,
    ),
    Mutant(
        "an exchanged row moves class sums by one norm",
        row_sums.class_statistics,
        "adjacency.sum_sensitivity(norm)",
        "norm",
        MOVES,
    ),
    Mutant(
        "an exchanged row moves one count",
        row_sums.class_statistics,
        "math.sqrt(2) if replaced else 1.0,",
        "1.0,",
        MOVES,
    ),
    Mutant(
        "moments are bounded by the norm", row_sums.class_statistics, "norm**2 *", "norm *", MOVES
    ),
    Mutant(
        "an exchanged row moves moments by one square",
        row_sums.class_statistics,
        "norm**2 * (math.sqrt(2) if replaced else 1.0)",
        "norm**2",
        MOVES,
    ),
    Mutant(
        "NaN reaches the statistics",
        row_sums.labelled_blocks,
        "torch.linalg.vector_norm(rows, dim=1).isfinite() & ",
        "",
        MOVES,
    ),
    Mutant(
        "an exchanged row moves a distance by one bound",
        row_sums.BoxSums.distances,
        "self.adjacency.sum_sensitivity(self.bound)",
        "self.bound",
        SCORES,
    ),
    Mutant(
        "a mean of the largest class bounds them all",
        row_sums.BoxSums.distances,
        "counts.min()",
        "counts.max()",
        SCORES,
    ),
    Mutant(
        "numbers are not clipped for selection",
        row_sums.box_sums,
        "rows.clamp_(-limit, limit)",
        "rows",
        SCORES,
    ),
    Mutant(
        "distances are divided by private counts",
        row_sums.BoxSums.distances,
        "self.sums / counts[:, None]",
        "self.sums / self.counts.values[0].clamp(min=1)[:, None]",
        SCORES,
    ),
    Mutant(
        "rows are not clipped",
        row_sums.bounded_rows,
        "lengths.clamp_(min=norm)",
        "torch.full_like(lengths, norm)",
        ROWS,
    ),
    Mutant(
        "an exchanged row is its norm apart",
        row_sums.bounded_rows,
        "adjacency.sum_sensitivity(norm)",
        "norm",
        ROWS,
    ),
    Mutant(
        "statistics of all rows, whoever was drawn",
        row_sums.labelled_blocks,
        "indices = sample.indices[start : start + step]",
        "indices = np.arange(len(x))[start : start + step]",
        "check_blocks_make_no_difference",
    ),
    Mutant(
        "the data are clipped in place",
        row_sums.labelled_blocks,
        "copy=True",
        "copy=False",
        "check_blocks_make_no_difference",
    ),
    Mutant(
        "blocks are counted twice",
        row_sums.class_statistics,
        "totals[part].add_(part_sum)",
        "totals[part].add_(2 * part_sum)",
        "check_blocks_make_no_difference",
    ),
    # Noise and price
    Mutant(
        "every statistic gets the noise of the whole",
        select.release_statistics,
        "stream=stream, shares=shares)",
        "stream=stream, shares=[1 / len(parts) ** 0.5] * len(parts))",
        "check_noise_of_statistics_has_the_stated_scale",
    ),
    Mutant(
        "statistics are for free",
        select.release_statistics,
        "ledger=ledger, stream=stream, shares",
        'ledger=type("", (), {"charge": lambda *_: None})(), stream=stream, shares',
        PRICE,
    ),
    Mutant(
        "one selection is charged for all",
        selection.select_top,
        "Repeated(Selection(epsilon), keep)",
        "Selection(epsilon)",
        "check_one_shot_selection_has_the_stated_law",
    ),
    Mutant(
        "half of the Gumbel noise",
        selection.select_top,
        "(2 if scores.one_way else 1)",
        "2",
        "check_one_shot_selection_has_the_stated_law",
    ),
    Mutant(
        "the worst features are selected",
        selection.select_top,
        "- scores.values",
        "+ scores.values",
        "check_one_shot_selection_has_the_stated_law",
    ),
    Mutant(
        "each selection has the rho of all",
        select.SelectFeatures.draw_epsilon,
        ", self.keep)",
        ", 1)",
        PRICE,
    ),
    Mutant(
        "counts are for free in a selection",
        select.SelectFeatures.event,
        "Gaussian(self._counts_noise), ",
        "",
        PRICE,
    ),
    Mutant(
        "rows and selection have the whole rho each",
        statistics_plan.KeptFeaturesPlan._rest,
        "1.0 - self.selection_share if",
        "1.0 if",
        PRICE,
    ),
    Mutant(
        "labels are not in the price",
        statistics_plan.RowsPlan.event,
        "self.label_epsilon is not None",
        "False",
        PRICE,
    ),
    Mutant(
        "labels take half of what they cost",
        statistics_plan.RowsPlan.label_epsilon,
        "math.sqrt(self._rest * self._label_part)",
        "math.sqrt(2 * self._rest * self._label_part)",
        PRICE,
    ),
    Mutant(
        "noise of rows for one norm",
        features.release_features,
        "noise_multiplier=plan.rest_noise",
        "noise_multiplier=plan.noise",
        PRICE,
    ),
    Mutant(
        "labels are true too often",
        selection.truth,
        "-epsilon)",
        "-2 * epsilon)",
        "check_randomised_response_has_the_stated_law",
    ),
    Mutant(
        "an empty row tells a label",
        selection.randomised,
        "reported.where(present, ",
        "reported.where(present | True, ",
        "check_randomised_response_has_the_stated_law",
    ),
    Mutant(
        "the plan is not held to the ledger",
        session.Session._require_room,
        "self.ledger.require_room(",
        "(lambda *_: None)(",
        "check_what_does_not_fit_is_refused_before_noise_is_drawn",
    ),
    # What is made of it
    Mutant(
        "t statistics without variances",
        select.scored,
        "variances.clamp(min=1e-300) * inverse",
        "0 * variances + inverse",
        "check_distances_and_t_statistics_choose_what_they_say",
    ),
    Mutant(
        "Welch's statistics with pooled variances",
        select.scored,
        "statistics.class_variances(least_count)",
        "statistics.variances(least_count).expand_as(means)",
        WELCH,
    ),
    Mutant(
        "a class's noise floor is that of all classes",
        select.Statistics.class_variances,
        "maximum(self.moment_std / counts)",
        "maximum(self.moment_std / counts.sum())",
        WELCH,
    ),
    Mutant(
        "pooled variances with the noise of one class",
        select.Statistics.variances,
        "math.sqrt(len(together)) * self.moment_std",
        "self.moment_std",
        WELCH,
    ),
    Mutant(
        "a row is in every class's moments",
        row_sums.class_statistics,
        "member.T @ squares",
        "torch.ones_like(member).T @ squares",
        MOVES,
    ),
    Mutant(
        "distances of the first class alone",
        select.scored,
        "top.values - bottom.values",
        "(means[0] - means[1]).abs()",
        "check_distances_and_t_statistics_choose_what_they_say",
    ),
    Mutant(
        "scores without the priors",
        classifiers.fisher_weights,
        "(counts / counts.sum()).log()",
        "0 * counts",
        "check_the_fisher_classifier_is_the_independence_rule",
    ),
    Mutant(
        "scores with squares at full",
        classifiers.fisher_weights,
        ".sum(1) / 2",
        ".sum(1)",
        "check_the_fisher_classifier_is_the_independence_rule",
    ),
    Mutant(
        "no floor under counts",
        select.Statistics.means,
        "self.counts.clamp(min=least_count)",
        "self.counts",
        "check_empty_classes_and_constant_features_meet_a_floor",
    ),
    Mutant(
        "no floor under variances",
        select.Statistics.variances,
        "max(least_variance, math.sqrt(len(together)) * self.moment_std / everybody)",
        "0.0",
        "check_empty_classes_and_constant_features_meet_a_floor",
    ),
    # What leaves
    Mutant(
        "the number of rows is printed",
        classifiers._release,
        "stream = rows.stream",
        "print(len(rows.x)); stream = rows.stream",
        "check_neighbouring_feature_releases_look_the_same",
    ),
    Mutant(
        "exact counts stand in the certificate",
        classifiers.fisher,
        "return classifier(",
        (
            "object.__setattr__(plan, 'least_count', float((rows.y == 0).sum()) + 1); return "
            "classifier("
        ),
        "check_neighbouring_feature_releases_look_the_same",
    ),
    Mutant(
        "the literal release looks private",
        published.literal_release,
        "ledger.charge(NonPrivate(",
        "ledger.charge(__import__('privlearn').accounting.mechanisms.ZCDP(1.0) or (",
        "check_the_literal_release_is_never_published",
    ),
    Mutant(
        "certificates of features are not recomputed",
        verify._of_the_plan,
        "planned = plan.event()",
        "planned = __import__('privlearn').accounting.mechanisms.Gaussian(1.0)",
        "check_feature_certificates_are_recomputed",
    ),
    Mutant(
        "a selection before training is left out",
        plan_module.Plan.event,
        "*priced(self.front), ",
        "",
        "check_a_selection_before_training_is_in_the_price",
    ),
    Mutant(
        "a selection is certified as one Gaussian release",
        select.SelectFeatures.event,
        "if not self.by_gumbel:",
        "if True:",
        "check_a_selection_before_training_is_in_the_price",
    ),
    # What is told
    Mutant(
        "the first features are told, whichever were chosen",
        classifiers._describe_choice,
        "choice_json(selections[0], origin",
        "choice_json(sorted(selections[0]), origin",
        TOLD,
    ),
    Mutant(
        "a card calls protected labels public",
        statistics_plan.RowsPlan.summary,
        'if self.labels == "public"',
        "if self.labels",
        TOLD,
    ),
    Mutant(
        "rows are given scores",
        classifiers._describe_choice,
        "isinstance(plan, RowsPlan)",
        "False",
        TOLD,
    ),
    Mutant(
        "all features are told where none was chosen",
        classifiers._describe_choice,
        "not plan.selects or not selections",
        "not selections",
        TOLD,
    ),
    Mutant(
        "names of other features",
        select.choice_json,
        "names[index] for index in",
        "names[index - 1] for index in",
        TOLD,
    ),
    Mutant(
        "noise of one class in a distance",
        select.scored,
        " + inverse[bottom.indices] ** 2",
        "",
        SCORED,
    ),
    Mutant(
        "noise of another pair in a t statistic",
        select.scored,
        "pair.gather(0, other[None])[0].where(",
        "pair.mean().expand_as(noise).where(",
        SCORED,
    ),
    Mutant(
        "names of features stand for components",
        row_transform.RowTransform.names_after,
        "return ()",
        "return names",
        "check_a_selection_before_training_tells_what_it_chose",
    ),
    Mutant(
        "a choice of any length is certified",
        transform.check_choices,
        "len(indices) != min(keep, MOST_CHOSEN) or ",
        "",
        SAID,
    ),
    Mutant(
        "a feature is chosen twice",
        transform.check_choices,
        " or len(set(indices)) < len(indices)",
        "",
        SAID,
    ),
    Mutant(
        "choices are not counted",
        transform.check_choices,
        "if len(choices) != len(keeps):",
        "if False:",
        SAID,
    ),
    Mutant(
        "nothing may be chosen, and is",
        statistics_plan.ChoosingPlan.follows,
        "if self.selects else []",
        "",
        SAID,
    ),
    Mutant(
        "persons may have more rows than are protected",
        opening._require_rows,
        "most_rows(groups) >",
        "0 >",
        "check_nobody_has_more_rows_than_are_protected",
    ),
    Mutant(
        "persons are counted, not their rows",
        dataset.most_rows,
        "return_counts=True)[1].max(initial=0)",
        "return_counts=True)[1].min()",
        "check_nobody_has_more_rows_than_are_protected",
    ),
    Mutant(
        "noise is near enough",
        statistics_plan.StatisticsPlan._solved,
        "if budget.epsilon is not None and ",
        "if True or ",
        MET,
    ),
    Mutant(
        "a group has the noise of one",
        calibration.solve_gaussian,
        "budget.group_size * mu",
        "mu",
        MET,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError]
)
