"""Planted bugs in feature selection and release, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import feature_checks  # noqa: F401 - registers the checks
import feature_run_checks  # noqa: F401 - registers the checks
import feature_told_checks  # noqa: F401 - registers the checks

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

P = "privlearn."
CLIP, MECHANISM, METHOD = P + "clipping.statistics:", P + "mechanisms.features:", P + "methods.features."
PLAN = METHOD + "plan:FeaturesPlan."
MOVES = "check_one_row_moves_class_statistics_by_at_most_the_sensitivity"
SCORES = "check_one_row_moves_distances_by_at_most_the_sensitivity"
WELCH = "check_welch_statistics_have_the_variance_of_each_class"
ROWS = "check_one_row_moves_rows_by_at_most_the_sensitivity"
PRICE = "check_every_plan_costs_what_it_says"
SEARCH = "check_a_budget_for_a_search_pays_for_it_and_no_more"
LABELS = "check_labels_of_any_kind_make_the_same_classifier"
ORDER = "check_kept_columns_stay_in_their_order"
TOLD = "check_the_chosen_features_are_told_and_no_others"
SCORED = "check_scores_are_those_of_the_released_statistics"
SAID = "check_certificates_say_only_what_counts"
MET = "check_targets_are_met_to_the_last_digits"

MUTANTS = [
    # Sensitivities
    Mutant("class sums of rows that are not clipped", CLIP + "class_statistics", "lengths.clamp_(min=limit)",
           "torch.full_like(lengths, limit)", MOVES),
    Mutant("an exchanged row moves class sums by one norm", CLIP + "class_statistics", "adjacency.sum_sensitivity(norm)",
           "norm", MOVES),
    Mutant("an exchanged row moves one count", CLIP + "class_statistics", "math.sqrt(2) if replaced else 1.0,", "1.0,", MOVES),
    Mutant("moments are bounded by the norm", CLIP + "class_statistics", "norm**2 *", "norm *", MOVES),
    Mutant("an exchanged row moves moments by one square", CLIP + "class_statistics",
           "norm**2 * (math.sqrt(2) if replaced else 1.0)", "norm**2", MOVES),
    Mutant("NaN reaches the statistics", CLIP + "_blocks", "torch.linalg.vector_norm(rows, dim=1).isfinite() & ", "", MOVES),
    Mutant("an exchanged row moves a distance by one bound", CLIP + "BoxSums.distances",
           "self.adjacency.sum_sensitivity(self.bound)", "self.bound", SCORES),
    Mutant("a mean of the largest class bounds them all", CLIP + "BoxSums.distances", "counts.min()", "counts.max()", SCORES),
    Mutant("numbers are not clipped for selection", CLIP + "box_sums", "rows.clamp_(-limit, limit)", "rows", SCORES),
    Mutant("distances are divided by private counts", CLIP + "BoxSums.distances", "self.sums / counts[:, None]",
           "self.sums / self.counts.values[0].clamp(min=1)[:, None]", SCORES),
    Mutant("rows are not clipped", CLIP + "bounded_rows", "lengths.clamp_(min=norm)", "torch.full_like(lengths, norm)", ROWS),
    Mutant("an exchanged row is its norm apart", CLIP + "bounded_rows", "adjacency.sum_sensitivity(norm)", "norm", ROWS),
    Mutant("statistics of all rows, whoever was drawn", CLIP + "_blocks", "own = sample.indices[start : start + step]",
           "own = np.arange(len(x))[start : start + step]", "check_blocks_make_no_difference"),
    Mutant("the data are clipped in place", CLIP + "_blocks", "copy=True", "copy=False", "check_blocks_make_no_difference"),
    Mutant("blocks are counted twice", CLIP + "class_statistics", "totals[part].add_(found)", "totals[part].add_(2 * found)",
           "check_blocks_make_no_difference"),
    # Noise and price
    Mutant("every statistic gets the noise of the whole", MECHANISM + "release_statistics", "stream=stream, shares=shares)",
           "stream=stream, shares=[1 / len(parts) ** 0.5] * len(parts))", "check_noise_of_statistics_has_the_stated_scale"),
    Mutant("statistics are for free", MECHANISM + "release_statistics", "ledger=ledger, stream=stream, shares",
           'ledger=type("", (), {"charge": lambda *_: None})(), stream=stream, shares', PRICE),
    Mutant("one selection is charged for all", P + "mechanisms.selection:select_top", "Repeated(Selection(epsilon), keep)",
           "Selection(epsilon)", "check_one_shot_selection_has_the_stated_law"),
    Mutant("half of the Gumbel noise", P + "mechanisms.selection:select_top", "(2 if scores.one_way else 1)", "2",
           "check_one_shot_selection_has_the_stated_law"),
    Mutant("the worst features are selected", P + "mechanisms.selection:select_top", "- scores.values", "+ scores.values",
           "check_one_shot_selection_has_the_stated_law"),
    Mutant("each selection has the rho of all", MECHANISM + "Select.draw_epsilon", ", self.keep)", ", 1)", PRICE),
    Mutant("counts are for free in a selection", MECHANISM + "Select.event", "Gaussian(self._counts_noise), ", "", PRICE),
    Mutant("rows and selection have the whole rho each", PLAN + "rest_noise", "1.0 - self._selection_part if",
           "1.0 if", PRICE),
    Mutant("labels are not in the price", PLAN + "event", "self.label_epsilon is not None", "False", PRICE),
    Mutant("labels take half of what they cost", PLAN + "label_epsilon", "math.sqrt(rest * self._label_part)",
           "math.sqrt(2 * rest * self._label_part)", PRICE),
    Mutant("noise of rows for one norm", METHOD + "rows:release_features", "noise_multiplier=plan.rest_noise",
           "noise_multiplier=plan.noise", PRICE),
    Mutant("labels are true too often", P + "mechanisms.randomised:truth", "-epsilon)", "-2 * epsilon)",
           "check_randomised_response_has_the_stated_law"),
    Mutant("an empty row tells a label", P + "mechanisms.randomised:randomised", "reported.where(present, ",
           "reported.where(present | True, ", "check_randomised_response_has_the_stated_law"),
    Mutant("the plan is not held to the ledger", METHOD + "opening:opened", "ledger.require_room(", "(lambda *_: None)(",
           "check_what_does_not_fit_is_refused_before_noise_is_drawn"),
    # What is made of it
    Mutant("t statistics without variances", MECHANISM + "scored",
           "variances.clamp(min=1e-300) * inverse", "0 * variances + inverse",
           "check_distances_and_t_statistics_choose_what_they_say"),
    Mutant("Welch's statistics with pooled variances", MECHANISM + "scored", "statistics.class_variances(least_count)",
           "statistics.variances(least_count).expand_as(means)", WELCH),
    Mutant("a class's noise floor is that of all classes", MECHANISM + "Statistics.class_variances",
           "maximum(self.moment_std / counts)", "maximum(self.moment_std / counts.sum())", WELCH),
    Mutant("pooled variances with the noise of one class", MECHANISM + "Statistics.variances",
           "math.sqrt(len(together)) * self.moment_std", "self.moment_std", WELCH),
    Mutant("a row is in every class's moments", CLIP + "class_statistics", "member.T @ squares",
           "torch.ones_like(member).T @ squares", MOVES),
    Mutant("distances of the first class alone", MECHANISM + "scored", "top.values - bottom.values",
           "(means[0] - means[1]).abs()", "check_distances_and_t_statistics_choose_what_they_say"),
    Mutant("scores without the priors", METHOD + "fisher:fisher_weights", "(counts / counts.sum()).log()", "0 * counts",
           "check_the_fisher_classifier_is_the_independence_rule"),
    Mutant("scores with squares at full", METHOD + "fisher:fisher_weights", ".sum(1) / 2", ".sum(1)",
           "check_the_fisher_classifier_is_the_independence_rule"),
    Mutant("no floor under counts", MECHANISM + "Statistics.means", "self.counts.clamp(min=least_count)", "self.counts",
           "check_empty_classes_and_constant_features_meet_a_floor"),
    Mutant("no floor under variances", MECHANISM + "Statistics.variances",
           "max(least_variance, math.sqrt(len(together)) * self.moment_std / everybody)", "0.0",
           "check_empty_classes_and_constant_features_meet_a_floor"),
    # What leaves
    Mutant("the number of rows is printed", METHOD + "fisher:_released", "stream = rows.stream",
           "print(len(rows.x)); stream = rows.stream", "check_neighbouring_feature_releases_look_the_same"),
    Mutant("exact counts stand in the certificate", METHOD + "fisher:fisher", "return classifier(",
           "object.__setattr__(plan, 'least_count', float((rows.y == 0).sum()) + 1); return classifier(",
           "check_neighbouring_feature_releases_look_the_same"),
    Mutant("the literal release looks private", METHOD + "literal:literal_release", "ledger.charge(NonPrivate(",
           "ledger.charge(__import__('privlearn').accounting.events.ZCDP(1.0) or (",
           "check_the_literal_release_is_never_published"),
    Mutant("certificates of features are not recomputed", P + "publishing.features:described",
           "plan.event()", "Gaussian(1.0)", "check_feature_certificates_are_recomputed"),
    Mutant("a selection before training is left out", P + "plan:Plan.event", "*(release.event() for release in self.before), ",
           "", "check_a_selection_before_training_is_in_the_price"),
    Mutant("a selection is certified as one Gaussian release", P + "publishing.features:earlier",
           'part["kind"] != Select.kind', "True", "check_a_selection_before_training_is_in_the_price"),
    Mutant("a selector leaves nothing for what comes after it", P + "sklearn:DPFeatureSelector.fit",
           "self.then is not None", "False", "check_a_pipeline_is_paid_for_in_full_or_not_at_all"),
    Mutant("a search costs what one fit costs", P + "sklearn:budget_for", 'count("fits", fits)', "1", SEARCH),
    Mutant("only the first of a pipeline costs something", P + "sklearn:budget_for", "for plan in plans), count",
           "for plan in plans[:1]), count", SEARCH),
    Mutant("groups cost what one row costs", P + "sklearn:budget_for", "Budget(spent, delta, group_size=group)",
           "Budget(spent, delta)", SEARCH),
    Mutant("labels are numbered as they are declared", P + "sklearn:_numbered", "enumerate(declared.tolist())",
           "enumerate(classes)", LABELS),
    Mutant("labels outside the declared ones are the first class", P + "sklearn:_numbered", "numbers.get(label, -1)",
           "numbers.get(label, 0)", LABELS),
    Mutant("kept columns come best first", P + "sklearn:DPFeatureSelector.transform", "self.get_support(indices=True)",
           "self.indices_", ORDER),
    Mutant("the first columns are kept", P + "sklearn:DPFeatureSelector.get_support", "np.sort(self.indices_)",
           "np.arange(len(self.indices_))", ORDER),
    # What is told
    Mutant("the first features are told, whichever were chosen", METHOD + "fisher:_chosen", "told(found[0], origin",
           "told(sorted(found[0]), origin", TOLD),
    Mutant("a card calls protected labels public", "privlearn.publishing.features:card_lines",
           'plan.purpose == "rows" and plan.labels', "plan.labels", TOLD),
    Mutant("rows are given scores", METHOD + "fisher:_chosen", 'plan.purpose == "rows"', "False", TOLD),
    Mutant("all features are told where none was chosen", METHOD + "fisher:_chosen", "not plan.selects or not found",
           "not found", TOLD),
    Mutant("names of other features", P + "mechanisms.choice:told", "names[index] for index in",
           "names[index - 1] for index in", TOLD),
    Mutant("noise of one class in a distance", MECHANISM + "scored", " + inverse[bottom.indices] ** 2", "", SCORED),
    Mutant("noise of another pair in a t statistic", MECHANISM + "scored", "pair.gather(0, other[None])[0].where(",
           "pair.mean().expand_as(noise).where(", SCORED),
    Mutant("names of features stand for components", P + "methods.settings:with_choices",
           "tuple(names[index] for index in indices) if names else ()", "names",
           "check_a_selection_before_training_tells_what_it_chose"),
    Mutant("a choice of any length is certified", P + "mechanisms.choice:require_told", "len(indices) != min(keep, MOST) or ",
           "", SAID),
    Mutant("a feature is chosen twice", P + "mechanisms.choice:require_told", " or len(set(indices)) < len(indices)", "",
           SAID),
    Mutant("a share of labels is left out", PLAN + "_unused", "if not self._label_part:", "if True:", SAID),
    Mutant("bounds of no use are certified", PLAN + "_unused", "if self.in_one_release:", "if False:", SAID),
    Mutant("persons may have more rows than are protected", METHOD + "opening:_require_rows", "most_rows(groups) >", "0 >",
           "check_nobody_has_more_rows_than_are_protected"),
    Mutant("persons are counted, not their rows", P + "data.persons:most_rows", "return_counts=True)[1].max(initial=0)",
           "return_counts=True)[1].min()", "check_nobody_has_more_rows_than_are_protected"),
    Mutant("noise is near enough", PLAN + "calibrate", "budget.epsilon is not None and not gaussian", "True", MET),
    Mutant("a group has the noise of one", PLAN + "calibrate", "self.group_size / mu", "1 / mu", MET),
    Mutant("every fit has a ledger of its own", P + "sklearn:_given", "not isinstance(ledger, Ledger)", "False",
           "check_estimators_share_their_ledger"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
