"""Planted bugs in private parameter selection, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import tune_checks  # noqa: F401 - registers its checks

from privlearn import plan, sampling
from privlearn.accounting import accountant, ledger, mechanisms, trees
from privlearn.cli import train as command
from privlearn.clipping import evaluation
from privlearn.data import dataset
from privlearn.mechanisms import selection
from privlearn.runs import session
from privlearn.tuning import blocks, stopping, tune

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

HELD = "check_candidates_are_held_to_their_plan"
MUTANTS = [
    Mutant("two-sided scores drawn as if they moved one way", selection.select,
           "(2 if scores.one_way else 1)", "2", "check_selection_draws_by_its_probabilities"),
    Mutant("selection an eighth too exact", selection.select, "scale * gumbel", "0.875 * scale * gumbel",
           "check_selection_draws_by_its_probabilities"),
    Mutant("Gumbel noise the wrong way up", selection.gumbel, "return -(", "return (",
           "check_selection_draws_by_its_probabilities"),
    Mutant("half of the scale for any scores", mechanisms.gumbel_scale, "return 2 * ", "return ",
           "check_selection_is_within_its_range"),
    Mutant("a selection that is free", selection.select,
           "ledger.charge(Selection(epsilon), scores.adjacency)", "pass", "check_selection_is_charged_before_it_is_drawn"),
    Mutant("counts of a batch that sees itself", evaluation._right, "at_once=1", "apart=False",
           "check_one_example_moves_each_count_by_at_most_one"),
    Mutant("the model remembers earlier rows", evaluation._right, ", computed=FrozenState(twin).restore", "",
           "check_one_example_moves_each_count_by_at_most_one"),
    Mutant("empty rows count", evaluation._weights, "x.isfinite()", "(x == x).logical_or(x != x)",
           "check_one_example_moves_each_count_by_at_most_one"),
    Mutant("a person counts once for each row", evaluation._weights, "full / torch", "full + 0 * torch",
           "check_a_person_counts_for_one"),
    Mutant("the judged model is the published one", evaluation._right, "copy.deepcopy(model)", "model",
           "check_counts_leave_the_model_as_it_is"),
    Mutant("at most three runs", selection.draw_repetitions, "return k", "return min(k, 3)",
           "check_the_number_of_runs_follows_its_law"),
    Mutant("uniform numbers of 64 bits", selection.draw_repetitions, "words(_WORDS)", "words(1)",
           "check_the_number_of_runs_has_no_cap"),
    Mutant("the law of another mean", trees.gamma, "return least", "return 0.8 * least",
           "check_the_number_of_runs_follows_its_law"),
    Mutant("repetitions priced as one run", trees.best_of_runs, "one + extra +", "one +",
           "check_repeat_and_select_is_priced_as_published"),
    Mutant("only the first block is priced", accountant.by_pld, "in per_block(group))",
           "in per_block(group)[:1])", "check_disjoint_blocks_cost_their_dearest"),
    Mutant("what is outside of the blocks is forgotten", trees.per_block,
           "Composed((_tree(left), Repeated(block, times)))",
           "Composed((Repeated(split, left[split]), Repeated(block, times)))",
           "check_disjoint_blocks_cost_their_dearest"),
    Mutant("any of several events at the price of the first", trees.OneOf.renyi,
           "in self.events]", "in self.events[:1]]",
           "check_one_of_several_costs_the_dearest"),
    Mutant("blocks overlap", dataset.Dataset.blocks, "block_of == block", "block_of >= block",
           "check_blocks_are_disjoint_and_independent"),
    Mutant("blocks of equal sizes", sampling.assign, 'rng.integers(count("blocks", blocks), size=examples)',
           "rng.permutation(np.arange(examples) % blocks)", "check_blocks_are_disjoint_and_independent"),
    Mutant("a person's rows in several blocks", dataset.Dataset.blocks, "if self.groups is not None:",
           "if self.groups is not None and (block_of := np.arange(len(self.x)) % blocks) is None:",
           "check_a_persons_rows_stay_together"),
    Mutant("choosing is free", tune._on_blocks, "ledger.charge(plan.choosing(), plan.neighbours)", "pass",
           "check_everything_is_charged_before_the_first_candidate"),
    Mutant("random stopping is charged afterwards", tune.tune,
           "result, chosen = _by_random_stopping(plan, trainer, data, session)",
           "result, chosen = _by_random_stopping(plan, trainer, data, "
           "__import__('types').SimpleNamespace(ledger=Ledger(), streams=session.streams))\n"
           "            session.ledger.charge(plan.repeated(), plan.neighbours)",
           "check_everything_is_charged_before_the_first_candidate"),
    Mutant("retraining is not charged", tune._on_blocks, "ledger.charge(plan.again(), plan.neighbours)", "pass",
           "check_everything_is_charged_before_the_first_candidate"),
    Mutant("retraining is not planned", blocks.Blocks.event, "[self.choosing(), self.again()]", "[self.choosing()]",
           "check_scores_and_retraining_are_paid_for"),
    Mutant("scores are free", stopping.stopping, "compose([one_of(trainings), Gaussian(score_noise)])",
           "compose([one_of(trainings)])", "check_scores_and_retraining_are_paid_for"),
    Mutant("data before the budget", session.Session.__init__,
           "self.ledger.require_room(plan.event(), plan.neighbours, plan.unit)", "pass",
           "check_over_budget_nothing_is_touched"),
    Mutant("candidates may spend what they like", ledger.Ledger._require_allowed, "if self._allowed is None:",
           "if True:", "check_a_ledger_for_one_event_takes_that_event"),
    Mutant("a ledger for one event is never used up", ledger.Ledger._require_allowed,
           "compose([self.event, event])", "compose([event])", "check_a_ledger_for_one_event_takes_that_event"),
    Mutant("no ledger holds a candidate", tune._Trainer.attempt,
           "Ledger.allowing(candidate.plan.event(), candidate.plan.neighbours, candidate.plan.unit)",
           "Ledger(unit=candidate.plan.unit)", "check_what_a_candidate_may_spend_is_held_before_it_is_drawn"),
    Mutant("no ledger holds the retraining", tune._Trainer.run,
           "Ledger.allowing(candidate.plan.event(), candidate.plan.neighbours, candidate.plan.unit)",
           "Ledger(unit=candidate.plan.unit)", "check_what_a_candidate_may_spend_is_held_before_it_is_drawn"),
    Mutant("a refused charge counts as a failure", tune._Trainer.attempt, "except _DEPARTURES:",
           "except ZeroDivisionError:", "check_what_a_candidate_may_spend_is_held_before_it_is_drawn"),
    Mutant("no ledger holds the selection", tune._on_blocks,
           "Ledger.allowing(selection, plan.neighbours, plan.unit)", "Ledger(unit=plan.unit)",
           "check_choosing_is_held_to_what_was_paid"),
    Mutant("no ledger holds a score", tune._score,
           "Ledger.allowing(Gaussian(plan.score_noise), plan.neighbours, plan.unit)", "Ledger(unit=plan.unit)",
           "check_choosing_is_held_to_what_was_paid"),
    Mutant("another ledger's result is taken", tune._Trainer._held_to_its_plan,
           "result.ledger is not own or own.event != candidate.plan.event()", "False",
           "check_candidates_are_held_to_their_plan"),
    Mutant("a run goes on where the last one ended", tune._Trainer._held_to_its_plan,
           "any(part in self._seen for part in parts)", "False", HELD),
    Mutant("a new module may go on with old parameters", tune._Trainer._held_to_its_plan,
           "self._seen.update(parameter.untyped_storage()", "list(parameter.untyped_storage()", HELD),
    Mutant("old parameters may be frozen in a new model", tune._Trainer._held_to_its_plan,
           "if parameter.layout is torch.strided", "if parameter.requires_grad", HELD),
    Mutant("a public base is taken for an earlier model", tune._Trainer._held_to_its_plan,
           "for parameter in parameters if parameter.requires_grad", "for parameter in parameters", HELD),
    Mutant("losing models stay in memory", tune._Trainer.__init__, "weakref.WeakSet()", "set()",
           "check_losing_models_are_not_kept"),
    Mutant("calibrated one by one", plan.AbstractPlan.calibrate, "replace(at(factor), budget=budget)",
           "replace(at(1.0 if getattr(self, 'retrain', False) else factor * 0.98), budget=budget)",
           "check_tuning_meets_its_target"),
    Mutant("the rows of the block as divisor", blocks.Blocks.for_block, "(self.examples or present)", "present",
           "check_the_divisor_on_blocks_is_public"),
    Mutant("a failure is heard", tune._Trainer.attempt, "return None", "raise",
           "check_a_failed_candidate_is_the_worst_and_says_nothing"),
    Mutant("a failure counts for nothing", evaluation.wrong_predictions, "float(_weights(data).sum()) if model is None",
           "0.0 if model is None",
           "check_a_failed_candidate_is_the_worst_and_says_nothing"),
    Mutant("error counts are printed", tune._on_blocks, "selection = plan.selection()",
           "selection = plan.selection(); print(scores.values.tolist())", "check_losers_leave_no_trace"),
    Mutant("scores stand among the facts", tune._by_random_stopping, "return _finished(best[1]), best[2]",
           'best[1].facts["score"] = best[0]; return best[1], best[2]', "check_losers_leave_no_trace"),
    Mutant("the time of a random number of runs is told", command.tuned_job, "timed=isinstance(plan, Blocks)",
           "timed=True", "check_losers_leave_no_trace"),
    Mutant("progress tells how many runs there were", tune._by_random_stopping,
           "result = trainer", 'print("run 1/2"); result = trainer', "check_losers_leave_no_trace"),
    Mutant("the sizes of blocks are seen", tune._on_blocks, "progress(len(results), len(own))",
           "progress(len(results), len(rows.x))", "check_neighbouring_tuned_runs_look_the_same"),
    Mutant("any candidate may be said to have been chosen", plan.Plan.follows,
           'facts["steps"] != steps * epochs', "False", "check_tuned_certificates_are_recomputed"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
