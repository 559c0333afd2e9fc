"""Planted bugs of schedules that react, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core import plan, reacting_plans, schedules
from privlearn.core.accounting import filters, searches, trees
from privlearn.core.clipping import evaluation
from privlearn.runs import checkpoint, result
from privlearn.training import validation
from tests.support.mutant import Mutant, suite_of

RULE, LIMIT = (
    "check_the_validation_rule_is_the_papers",
    "check_a_run_that_reacts_is_charged_its_limit",
)
HOLDS, FREE = (
    "check_filters_hold_whatever_the_accuracies_are",
    "check_private_rows_are_not_validated_on_for_free",
)
COUNT, APART = (
    "check_one_example_moves_a_count_by_at_most_its_sensitivity",
    "check_private_rows_do_not_meet_in_a_validation",
)
CERTIFIED = "check_certificates_of_runs_that_react_are_verified"
ONCE = "check_a_filters_limit_is_spent_once"
REACTED = "check_reacting_runs_are_never_certified_as_plain_ones"
FAIL = "check_rows_that_fail_change_no_other_answer"
AGAIN = "check_runs_that_react_go_on_after_interruptions"
MEET = "check_limits_meet_their_budget"
MUTANTS = [
    Mutant(
        "the noise falls where accuracy improves",
        schedules.Validation.noise_multipliers,
        "<= self.threshold",
        "> self.threshold",
        RULE,
    ),
    Mutant(
        "an improvement of just the threshold is enough",
        schedules.Validation.noise_multipliers,
        "<= self.threshold",
        "< self.threshold",
        "check_the_validation_rule_on_curves_by_hand",
    ),
    Mutant(
        "one accuracy more is averaged",
        schedules.Validation.noise_multipliers,
        "accuracies[seen - self.m : seen]",
        "accuracies[max(0, seen - self.m - 1) : seen]",
        RULE,
    ),
    Mutant(
        "the check comes an epoch early",
        schedules.Validation.noise_multipliers,
        "seen % self.period == 0",
        "(seen + 1) % self.period == 0",
        RULE,
    ),
    Mutant(
        "the first check compares with nothing",
        schedules.Validation.noise_multipliers,
        "decays, previous = 0, 0.0",
        "decays, previous = 0, -9.0",
        RULE,
    ),
    Mutant(
        "a check forgets what it saw",
        schedules.Validation.noise_multipliers,
        "previous = average",
        "pass",
        RULE,
    ),
    Mutant(
        "the filter is not charged",
        validation.ReactingNoise.begin,
        "PrivacyFilter(ledger, self._plan.filter,",
        "PrivacyFilter(__import__('privlearn').Ledger(), self._plan.filter,",
        LIMIT,
    ),
    Mutant(
        "releases are charged to the ledger, past the filter",
        validation.ReactingNoise.begin,
        "return self._filter",
        "return ledger",
        LIMIT,
    ),
    Mutant(
        "an epoch begins without room",
        validation.ReactingNoise.__iter__,
        "not self._filter.has_room(",
        "False and (",
        HOLDS,
    ),
    Mutant(
        "room for the batches alone",
        plan.Plan.epoch_event,
        "batches if paid is None",
        "batches if True",
        HOLDS,
    ),
    Mutant(
        "what was spent is claimed, not the limit",
        filters.PrivacyFilter.__init__,
        "account.charge(limit, adjacency)",
        "self.charge = lambda e, a: account.charge(e, a)",
        LIMIT,
    ),
    Mutant(
        "a copied filter has a limit of its own",
        filters.PrivacyFilter.__deepcopy__,
        "return self",
        "fresh = object.__new__(PrivacyFilter); vars(fresh).update(vars(self)); return fresh",
        ONCE,
    ),
    Mutant(
        "filters can be pickled",
        filters.PrivacyFilter.__reduce__,
        'raise TypeError("a filter cannot be pickled: a copy would spend the same limit again")',
        "return dict, (vars(self),)",
        ONCE,
    ),
    Mutant(
        "a forked filter has a limit of its own",
        filters.PrivacyFilter.spent,
        "self._process != os.getpid()",
        "False",
        ONCE,
    ),
    Mutant(
        "the start is claimed, not the limit",
        plan.Plan.event,
        "[self.filter]",
        "[self.epoch_event(self.schedule.start)]",
        LIMIT,
    ),
    Mutant("limits forget what came before", plan.Plan.beside, "*priced(self.front), ", "", MEET),
    Mutant(
        "limits are rounded up",
        searches.to_safe_side,
        "while not safe(value):",
        "while False:",
        MEET,
    ),
    Mutant(
        "the room at an order forgets what came before",
        filters._renyi_room,
        "- rdp.curve(before)",
        "",
        MEET,
    ),
    Mutant(
        "a Gaussian filter lets anything through",
        filters.is_gaussian,
        "leaf.gaussian",
        "True",
        "check_gaussian_filters_are_exact",
    ),
    Mutant(
        "a Gaussian filter is worth half its limit",
        trees.GaussianFilter.worth,
        "0.5 / self.rho",
        "1 / self.rho",
        "check_gaussian_filters_are_exact",
    ),
    Mutant(
        "a Gaussian filter's mu is its rho",
        trees.GaussianFilter.mu_squared,
        "times * 2 *",
        "times *",
        "check_gaussian_filters_are_exact",
    ),
    Mutant(
        "groups have the room of one example",
        filters._widest_in_rho,
        "/ budget.group_size**2",
        "",
        MEET,
    ),
    Mutant(
        "an accuracy is read for free",
        validation.reacting_noise,
        (
            "((noisy,),) = release(counted, noise_multiplier=schedule.noise, ledger=account, "
            "stream=session.noise)"
        ),
        "(noisy,) = counted.values",
        LIMIT,
    ),
    Mutant(
        "the paid count is charged to nobody",
        validation.reacting_noise,
        "ledger=account",
        "ledger=type('', (), {'charge': print})()",
        LIMIT,
    ),
    Mutant(
        "the count has a quarter of its sensitivity",
        evaluation.RightAnswers.count,
        "adjacency.sum_sensitivity(HALF)",
        "adjacency.sum_sensitivity(HALF / 2)",
        COUNT,
    ),
    Mutant(
        "replacing an example counts as removing it",
        evaluation.RightAnswers.count,
        "adjacency.sum_sensitivity(HALF)",
        "HALF",
        COUNT,
    ),
    Mutant(
        "examples that can't be computed are wrong ones",
        evaluation.RightAnswers._score,
        "answered.where(finite, 0)",
        "answered.where(finite, -1)",
        "check_neighbouring_runs_that_react_look_the_same",
    ),
    Mutant(
        "all rows of a person count",
        evaluation.RightAnswers.count,
        ".mean(1)",
        ".sum(1)",
        "check_an_example_of_several_rows_counts_once",
    ),
    Mutant(
        "private rows are computed together",
        evaluation.RightAnswers._together,
        "not self._apart",
        "True",
        APART,
    ),
    Mutant(
        "a failing row takes its neighbours along",
        evaluation.RightAnswers._few,
        "fine = ~self._find_failures(x, y, rows)",
        "return self._none(few)",
        FAIL,
    ),
    Mutant(
        "a failing row has its neighbours computed otherwise",
        evaluation.RightAnswers._few,
        "fine = ~self._find_failures(x, y, rows)",
        "return self._one_by_one(x, y, rows[:few])",
        FAIL,
    ),
    Mutant(
        "a failing row has the answer of the one in its place",
        evaluation.RightAnswers._few,
        "right.where(fine.view(-1, *[1] * self.answer.dim()), 0)",
        "right",
        FAIL,
    ),
    Mutant(
        "the rows decide how they are computed",
        evaluation.RightAnswers._can_be_together,
        "made_up_batch(x, y, self._at_once)",
        "(x, y)",
        FAIL,
    ),
    Mutant(
        "what can't be computed at once is not computed",
        evaluation.RightAnswers._can_be_together,
        "return False",
        "return True",
        FAIL,
    ),
    Mutant("any rows are public", validation.public_rows, "or not validation.public", "", FREE),
    Mutant(
        "the training rows are public",
        validation._are_training_rows,
        "return overlap(rows, x)[0] == 1 or are_training_rows(rows, x)",
        "return False",
        FREE,
    ),
    Mutant(
        "parts of the training rows are public",
        validation._are_training_rows,
        "np.may_share_memory(",
        "(lambda *_: False)(",
        FREE,
    ),
    Mutant(
        "accuracies with dropout",
        evaluation.evaluating,
        "model.eval()",
        "pass",
        "check_public_validations_are_plain_accuracies",
    ),
    Mutant(
        "the model stays in evaluation mode",
        evaluation.evaluating,
        "module.training = training",
        "pass",
        "check_public_validations_are_plain_accuracies",
    ),
    Mutant(
        "accuracies are forgotten in an interruption",
        result.Scalars.state_dict,
        "self.values",
        "[]",
        AGAIN,
    ),
    Mutant(
        "other validation rows are welcome",
        checkpoint.facts,
        "digest_of(*(validation or ()))",
        '""',
        AGAIN,
    ),
    Mutant(
        "the noise of a certificate is not recomputed",
        reacting_plans.contradictions,
        "sigmas == follow",
        "True",
        CERTIFIED,
    ),
    Mutant(
        "a certificate may leave its filter",
        reacting_plans.contradictions,
        "and fits(plan.filter, compose(map(plan.epoch_event, follow)))",
        "",
        CERTIFIED,
    ),
    Mutant(
        "a plain run may have had a filter",
        plan.require_filter,
        "or not isinstance(plan.schedule, ReactingSchedule)",
        "",
        REACTED,
    ),
    Mutant(
        "a plain run may have had validations",
        plan.contradictions,
        'if {"validation", "noise_multipliers"} & set(facts):',
        "if False:",
        REACTED,
    ),
    Mutant(
        "the facts tell whether a run reacted",
        plan.contradictions,
        "    if plan.reacts:",
        '    if "validation" not in facts:\n        return []\n    if plan.reacts:',
        REACTED,
    ),
    Mutant(
        "paid validations may be said to be free",
        reacting_plans.contradictions,
        'validation["noise"] != plan.schedule.noise or',
        "",
        REACTED,
    ),
    Mutant(
        "any validations may be said to be public",
        reacting_plans.contradictions,
        'or validation["public"] is not (plan.schedule.noise is None)',
        "",
        REACTED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
