"""Planted bugs in the warnings of targets that promise next to nothing: each caught by a named
check.
"""

from __future__ import annotations

from privlearn import loop
from privlearn.methods.statistics import draft
from privlearn.runs import session
from privlearn.sklearn import transformers
from privlearn.training import train
from tests.support.mutant import Mutant, suite_of

DOORS = "check_every_way_to_spend_warns_of_a_hollow_target_once"
ESTIMATORS = "check_every_estimator_warns_of_a_hollow_target_once"

MUTANTS = [
    Mutant(
        "a hollow target passes in silence",
        session.warn_of_target,
        "warn_caller(warning)",
        "pass",
        ESTIMATORS,
    ),
    Mutant(
        "a ledger's hollow budget passes in silence",
        session.warn_of_target,
        "plan.budget or ledger.budget",
        "plan.budget",
        "check_a_plan_without_a_target_is_measured_by_its_ledger",
    ),
    Mutant(
        "train warns of its target beside the session",
        train.train,
        "settled.plan.budget is None and (ledger is None or ledger.budget is None)",
        "True",
        DOORS,
    ),
    Mutant(
        "a custom loop warns of its target beside the session",
        loop.make_private,
        "(plan.budget or run.ledger.budget) is None",
        "True",
        DOORS,
    ),
    Mutant(
        "a method that counts no examples charges",
        session.Session._require_counted,
        "assert self._counted",
        "assert True",
        "check_nothing_is_charged_before_the_examples_are_counted",
    ),
    Mutant(
        "a warning tells of a private number of rows",
        session.warn_of_target,
        "None if plan.neighbours is Adjacency.ADD_REMOVE else present",
        "present",
        "check_warnings_follow_from_no_private_number_of_rows",
    ),
    Mutant(
        "a scaler's release has no target",
        transformers.PrivateScaledTransformer._release_module,
        "budget=Budget(self.epsilon, self.delta)",
        "budget=None",
        ESTIMATORS,
    ),
    Mutant(
        "a drafted schema counts no rows",
        draft.draft_schema,
        "session.count_examples(",
        "(lambda number, rows: session._counted)(",
        DOORS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
