"""Planted bugs in what is said of the number of rows, in whose rows are tested on, and in who may
train.
"""

from __future__ import annotations

from privlearn.cli import jobs, methods, tuned
from privlearn.cli import pate as pate_command
from privlearn.cli import tune as candidates
from privlearn.cli.commands import train
from privlearn.core import plan
from privlearn.core import processes as world
from privlearn.data import dataset
from privlearn.methods.dpmac import dpmac
from privlearn.methods.pate import pate, trained
from privlearn.methods.tuning import blocks, tune
from privlearn.publishing import card
from privlearn.runs import ranks
from privlearn.training import privacy_config, task, validation
from privlearn.training import train as descent
from privlearn_segmentation import start
from tests.support.mutant import Mutant, suite_of

ALIKE = "check_neighbours_of_a_declared_number_publish_the_same_by_"
IN_PYTHON = "check_runs_in_python_divide_by_the_declared_number"
PUBLIC = "check_an_undeclared_number_of_examples_is_public"
NEEDED, USUAL = (
    "check_add_remove_needs_a_declared_number",
    "check_the_usual_kind_of_neighbour_follows_from_what_is_declared",
)
APART, ALIVE = (
    "check_training_rows_are_not_tested_on",
    "check_rows_that_are_often_alike_may_be_tested_on",
)
ASKED = "check_teachers_are_asked_about_rows_that_were_given_for_it"
SPENT, ONE = "check_nothing_is_spent_on_data_that_are_tested_on", "check_one_process_trains"
REAL = ("request.examples or data.examples", "data.examples")
DECLARED = ("facts_of(data, request.examples", "facts_of(data, None")
FACTS = (descent.facts_of, "declared or data.examples", "data.examples")
MUTANTS = [
    Mutant(
        "the card says nothing of a large delta",
        card._guarantee,
        "certificate.large_delta(said.facts, guarantee.delta)",
        '""',
        f"{ALIKE}poisson",
    ),
    # The kind of neighbour
    Mutant(
        "whoever declares nothing claims add/remove",
        plan.Plan._settle_adjacency,
        "Adjacency.ZERO_OUT if",
        "usual if",
        USUAL,
    ),
    Mutant(
        "add/remove without a declared number",
        plan.Plan._settle_adjacency,
        "if undeclared and self.neighbours",
        "if False and self.neighbours",
        NEEDED,
    ),
    Mutant(
        "add/remove by chance, without a declared number",
        plan.Plan._settle_adjacency,
        "raise BadInput(UNDECLARED)",
        "pass",
        NEEDED,
    ),
    Mutant(
        "the command line finds out when a ledger is begun",
        privacy_config.PrivacyConfig.__post_init__,
        "raise BadInput(UNDECLARED)",
        "pass",
        NEEDED,
    ),
    Mutant(
        "an undeclared number passes for a declared one",
        plan.Plan.rows,
        "number if self.examples is None else",
        "number if False else",
        PUBLIC,
    ),
    Mutant(
        "an undeclared number of all blocks passes for a declared one",
        blocks.Blocks.trained,
        "plan: AbstractPlan = (candidate.again if self.retrain else None) or candidate.plan",
        'plan = self._plan_of(candidate, facts["tuning"]["examples"])',
        PUBLIC,
    ),
    Mutant(
        "candidates declare the file's length",
        candidates._settle,
        "training_request(request)",
        "training_request(request.replaced(examples=facts.examples))",
        PUBLIC,
    ),
    Mutant(
        "old claims of undeclared numbers verify",
        plan.Plan._settle_adjacency,
        "raise BadInput(UNDECLARED)",
        "pass",
        "check_certificates_of_undeclared_numbers_claim_no_add_remove",
    ),
    # The declared number
    Mutant("train goes by the real number", *FACTS, IN_PYTHON),
    Mutant(
        "train divides by the real number",
        descent.train,
        '"examples": examples',
        '"examples": dataset.examples',
        IN_PYTHON,
    ),
    Mutant(
        "features by the real number",
        descent.settle_for,
        "facts_of(dataset, request.examples)) or",
        "facts_of(dataset, None)) or",
        "check_rules_look_at_the_declared_number",
    ),
    Mutant(
        "features by the file's length",
        jobs.featured,
        *DECLARED,
        "check_rules_look_at_the_declared_number",
    ),
    Mutant(
        "dpsgd divides by the real number",
        task.Task.__init__,
        "plan.examples or self.present",
        "self.present",
        IN_PYTHON,
    ),
    Mutant(
        "dpmac divides by the real number",
        dpmac.MacTask.__init__,
        "plan.examples or len(x)",
        "len(x)",
        IN_PYTHON,
    ),
    Mutant("plans by the file's length", train.descent_job, *DECLARED, ALIKE + "poisson"),
    Mutant("learning rates by the file's length", *FACTS, ALIKE + "poisson"),
    Mutant("moments by the file's length", *FACTS, ALIKE + "usual_moments"),
    Mutant("explained by the file's length", *FACTS, ALIKE + "explained"),
    Mutant("candidates by the file's length", tuned.tuned_job, *REAL, ALIKE + "blocks"),
    Mutant(
        "candidates' rates by the file's length",
        tuned._tune,
        "plan.examples or examples",
        "examples",
        ALIKE + "random_stopping",
    ),
    Mutant(
        "blocks by the real number",
        tune._describe_choice,
        "plan.examples or data.examples",
        "data.examples",
        ALIKE + "blocks",
    ),
    Mutant(
        "shares of the real number",
        blocks.Blocks.for_block,
        "(self.examples or present)",
        "present",
        "check_the_divisor_on_blocks_is_public",
    ),
    Mutant(
        "a warning of the file's length",
        train.features_job,
        "methods.public_examples(request, plan, data)",
        "data.examples",
        ALIKE + "statistics",
    ),
    Mutant(
        "a warning of how many rows teachers share",
        pate_command.answers_job,
        "methods.public_examples(request, plan, data)",
        "data.examples",
        ALIKE + "pate",
    ),
    Mutant(
        "the progress of features counts rows",
        jobs.featured,
        "100 * done // rows, 100",
        "done, rows",
        ALIKE + "usual_moments",
    ),
    Mutant(
        "validations are of the real number",
        validation.reacting_noise,
        "task.examples",
        "task.present",
        ALIKE + "validations",
    ),
    Mutant(
        "the exactness of validations is of the real number",
        train._say_more,
        "noisy_validations(plan, examples)",
        "noisy_validations(plan, data.examples)",
        ALIKE + "validations",
    ),
    Mutant(
        "persons are counted",
        task.Task.__init__,
        "plan.examples or self.present",
        "self.present",
        ALIKE + "persons",
    ),
    # Whose rows
    Mutant(
        "files are not compared with their test rows",
        dataset.Dataset.checked,
        "self.require_apart()",
        "pass",
        APART,
    ),
    Mutant(
        "data made by hand are not compared",
        dataset.Dataset.of,
        "data.require_apart()",
        "pass",
        SPENT,
    ),
    Mutant(
        "only a whole training set is noticed",
        dataset.are_training_rows,
        "copies - twins > 0.5",
        "False",
        APART,
    ),
    Mutant(
        "types are told apart",
        dataset.overlap,
        "_hashes(second, kind)",
        "_hashes(second, second.dtype)",
        APART,
    ),
    Mutant(
        "rows that are often alike are refused",
        dataset.are_training_rows,
        "copies - twins > 0.5",
        "copies > 0.5",
        ALIVE,
    ),
    Mutant(
        "a table may be its own test data",
        dataset.are_training_rows,
        "copies == 1 and _are_equal(_array(rows), _array(training))",
        "False",
        ALIVE,
    ),
    Mutant(
        "test rows are public where nobody says so",
        pate_command.require_public,
        "request.public is None and",
        "False and",
        ASKED,
    ),
    Mutant("training rows are asked about", jobs.public_rows, "part is not None", "False", ASKED),
    *(
        Mutant(
            f"records are public inputs: {name}",
            target,
            old,
            new,
            "check_records_are_no_public_inputs",
        )
        for name, target, old, new in (
            ("no one looks", pate.ask_teachers, "teachers.require_others(pool.raw)", "pass"),
            (
                "the pool",
                trained.Trained.require_others,
                "require_others(inputs.float(),",
                "(lambda *_: None)(inputs,",
            ),
            (
                "spreading",
                trained.Trained.require_others,
                "isinstance(self._recipe, Spreading)",
                "False",
            ),
            (
                "through a function",
                start.Seen.require_others,
                "self._teachers.require_others(inputs)",
                "pass",
            ),
        )
    ),
    # Who trains
    Mutant(
        "any number of processes",
        world.require_one_process,
        "int(processes) > 1",
        "int(processes) > 99",
        ONE,
    ),
    Mutant(
        "the world is not looked at", world.require_one_process, "in _COUNTS", "in _COUNTS[1:]", ONE
    ),
    *(
        Mutant(
            f"{name} trains in several processes",
            target,
            "require_one_process(",
            "(lambda *what: None)(",
            ONE,
        )
        for name, target in (
            ("the command line", methods.world_of),
            ("dpsgd", ranks.launched),
            ("dpmac", dpmac.dpmac),
            ("pate", pate.ask_teachers),
            ("tune", tune.tune),
        )
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
