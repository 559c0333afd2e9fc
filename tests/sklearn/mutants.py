"""Planted bugs in the estimators for scikit-learn, each of which a named check must catch."""

from __future__ import annotations

from privlearn.models import heads
from privlearn.sklearn import (
    class_statistics,
    estimator,
    search,
    spending,
    supervised,
    transformers,
)
from tests.support.mutant import Mutant, suite_of

SEARCH = "check_a_budget_for_a_search_pays_for_it_and_no_more"
LABELS = "check_labels_of_any_kind_make_the_same_classifier"
ORDER = "check_kept_columns_stay_in_their_order"
COSTS = "check_a_fit_costs_what_was_asked_for"
ATTACKS = "check_attacks_are_bounded_for_all_that_is_claimed"
ONE = "check_estimators_and_their_clones_have_one_ledger"
LIMIT = "check_a_ledger_is_a_limit_for_all_clones"
PICKLED = "check_a_pickled_estimator_predicts_and_fits_no_more"
HELD = "check_a_fit_holds_what_it_read_when_another_begins"
CLAIMS = "check_nothing_is_claimed_of_what_was_not_declared"
BOUNDS = "check_bounds_are_those_that_were_declared"
DRAWN = "check_nothing_is_drawn_beside_what_is_charged"
PUBLISHED = "check_a_published_estimator_is_what_it_predicts"

MUTANTS = [
    Mutant(
        "a selector leaves nothing for what comes after it",
        class_statistics.DPFeatureSelector.fit,
        "then is not None",
        "False",
        "check_a_pipeline_is_paid_for_in_full_or_not_at_all",
    ),
    Mutant(
        "a search costs what one fit costs", spending.budget_for, 'count("fits", fits)', "1", SEARCH
    ),
    Mutant(
        "only the first of a pipeline costs something",
        spending.budget_for,
        "for plan in plans), count",
        "for plan in plans[:1]), count",
        SEARCH,
    ),
    Mutant(
        "groups cost what one row costs",
        spending.budget_for,
        "Budget(spent, delta, group_size=group)",
        "Budget(spent, delta)",
        SEARCH,
    ),
    Mutant(
        "labels are numbered as they are declared",
        estimator.numbered,
        "enumerate(declared.tolist())",
        "enumerate(classes)",
        LABELS,
    ),
    Mutant(
        "labels outside the declared ones are the first class",
        estimator.numbered,
        "places_of.get(label, -1)",
        "places_of.get(label, 0)",
        LABELS,
    ),
    Mutant(
        "kept columns come best first",
        class_statistics.DPFeatureSelector.transform,
        "self.get_support(indices=True)",
        "self.indices_",
        ORDER,
    ),
    Mutant(
        "the first columns are kept",
        class_statistics.DPFeatureSelector._get_support_mask,
        "self.indices_)",
        "np.arange(len(self.indices_)))",
        ORDER,
    ),
    # One ledger
    Mutant(
        "every fit has a ledger of its own",
        spending.spend,
        "shared.require_ledger() if estimator_ledger is None else estimator_ledger",
        "Ledger()",
        "check_estimators_share_their_ledger",
    ),
    Mutant(
        "a clone has a budget of its own",
        estimator.PrivateEstimator.__sklearn_clone__,
        "self._shared()",
        "SharedFits(Ledger())",
        ONE,
    ),
    Mutant(
        "a copy of what was never fitted has a budget of its own",
        estimator.PrivateEstimator.__getstate__,
        "    self._shared()\n",
        "",
        ONE,
    ),
    Mutant(
        "a deep copy has a ledger of its own",
        spending.SharedFits.__deepcopy__,
        "return self",
        "return SharedFits(Ledger())",
        ONE,
    ),
    Mutant(
        "behind a pickle a new ledger begins",
        spending.SharedFits.require_ledger,
        "if self.ledger is None:",
        "self.ledger = self.ledger or Ledger()\n    if False:",
        PICKLED,
    ),
    Mutant(
        "the ledger that was given is not charged",
        spending.spend,
        "if estimator_ledger is None else estimator_ledger\n    all_reasons",
        "\n    all_reasons",
        LIMIT,
    ),
    Mutant(
        "only the last fit is stated",
        spending.spend,
        "_price(spent, plan, stated_delta)",
        "_price(plan.event(), plan, stated_delta)",
        ONE,
    ),
    Mutant("fits add up silently", spending._warn, 'privacy.total.kind != "bound"', "False", ONE),
    Mutant(
        "attacks are bounded for one fit of several",
        spending.spend,
        "tradeoff(claim,",
        "tradeoff(plan.event(),",
        ATTACKS,
    ),
    Mutant(
        "attacks on an estimate are bounded",
        spending.spend,
        'kind="estimate"), None',
        'kind="estimate"), tradeoff(spent, plan.neighbours)',
        ATTACKS,
    ),
    Mutant(
        "a fit is priced by what the ledger holds later",
        spending.spend,
        "total = _price(claim, plan",
        "total = _price(ledger.claim, plan",
        HELD,
    ),
    Mutant(
        "later fits are counted in an earlier one's figures",
        spending.spend,
        "plan.unit.group_size)\n    privacy",
        "plan.unit.group_size)\n    fits = shared.fits\n    privacy",
        HELD,
    ),
    # What was not declared
    Mutant(
        "classes are read off the labels, and declared",
        estimator.numbered,
        "astype(np.int64), (NO_CLASSES,)",
        "astype(np.int64), ()",
        CLAIMS,
    ),
    Mutant(
        "target bounds are read off the targets, and declared",
        supervised.PrivateRegressor._targets,
        "(NO_TARGET_BOUNDS,)",
        "()",
        CLAIMS,
    ),
    Mutant(
        "a ledger takes fits of which nothing can be claimed",
        spending.spend,
        "estimator_ledger is not None and reasons",
        "False",
        CLAIMS,
    ),
    Mutant(
        "a declared fit makes up for others",
        spending.spend,
        "tuple(sorted(shared.undeclared))",
        "all_reasons",
        CLAIMS,
    ),
    Mutant(
        "a seed is as good as any noise", spending.spend, "if streams.seeded", "if False", CLAIMS
    ),
    Mutant(
        "bounds are taken from the data",
        estimator.PrivateEstimator._dataset,
        "low, high = self._bounds()",
        "low, high = X.min(0), X.max(0)",
        BOUNDS,
    ),
    Mutant(
        "rows are squashed by their own size",
        estimator.PrivateEstimator._scaled_rows,
        "(1 + np.abs(X))",
        "(1 + np.abs(X).max())",
        BOUNDS,
    ),
    # What is charged
    Mutant(
        "a histogram is released twice",
        supervised._by_boosting,
        "return boosting.boost(",
        "return boosting.boost(plan, plain, streams=streams) and boosting.boost(",
        DRAWN,
    ),
    Mutant(
        "a scaler is fitted free of charge",
        transformers.PrivateScaledTransformer._release_module,
        "plan.neighbours, ledger, streams.noise",
        "plan.neighbours, Ledger(), streams.noise",
        COSTS,
    ),
    Mutant(
        "a scaler takes off the mean of the rows",
        transformers.DPStandardScaler.fit,
        'module.get_buffer("mean").double().numpy()',
        "rows.mean(0)",
        "check_nothing_that_a_fit_keeps_is_without_noise",
    ),
    Mutant(
        "rows beyond the bounds count as they are",
        transformers.PrivateScaledTransformer._unit_rows,
        ".clip(-1, 1)",
        "",
        BOUNDS,
    ),
    Mutant(
        "components have half the noise",
        transformers.PrivateScaledTransformer._noise,
        "return solve_gaussian(",
        "return 0.5 * solve_gaussian(",
        COSTS,
    ),
    Mutant(
        "a search is charged nowhere",
        search.DPSearchCV.fit,
        "train_one, data, ledger=ledger",
        "train_one, data, ledger=Ledger()",
        "check_every_searched_estimator_is_charged_the_whole_search",
    ),
    Mutant(
        "a chosen estimator goes on with a ledger of its own",
        search.DPSearchCV.fit,
        "best._fits, best._held, best.privacy_ = self._shared(), self._held, self.privacy_",
        "best._held, best.privacy_ = self._held, self.privacy_",
        "check_every_searched_estimator_is_charged_the_whole_search",
    ),
    Mutant(
        "candidates of a search are fitted for themselves",
        search.DPSearchCV.fit,
        "rows, ledger, streams)",
        "rows, Ledger(), streams)",
        "check_a_search_costs_what_was_asked_for",
    ),
    Mutant(
        "the target is met with twice the delta",
        supervised._by_boosting,
        "delta=estimator.delta",
        "delta=2 * estimator.delta",
        COSTS,
    ),
    Mutant(
        "the published regressor has other units",
        heads.rescale,
        "last.bias.mul_(scale if isinstance(scale, float) else scale[:, 0]).add_(shift)",
        "last.bias.mul_(scale if isinstance(scale, float) else scale[:, 0])",
        PUBLISHED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError]
)
