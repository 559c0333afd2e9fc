"""Planted bugs in the papers' training runs, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import reproduce_checks  # noqa: F401 - registers its checks

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

R = "privlearn.reproduce."
MUTANTS = [
    Mutant("the projection is free", R + "tasks:features", "ledger.charge(task.pca.event(), adjacency)", "pass",
           "check_every_run_pays_for_its_projection"),
    Mutant("the projection is paid by the first run alone", R + "tasks:features",
           "ledger.charge(task.pca.event(), adjacency)",
           "_projected.cache_info().currsize or ledger.charge(task.pca.event(), adjacency)",
           "check_every_run_pays_for_its_projection"),
    Mutant("clipping as written passes for sound", R + "yu_runs:_written", "math.sqrt(layers)", "1.0",
           "check_the_reading_as_written_states_what_it_costs"),
    Mutant("the output layer is not counted", R + "yu_runs:train", "setting.hidden) + 1", "setting.hidden)",
           "check_the_reading_as_written_states_what_it_costs"),
    Mutant("sound noise is as small as that as written", R + "yu_runs:_written", 'setting.clip == "as written"', "True",
           "check_the_reading_as_written_states_what_it_costs"),
    Mutant("the projection comes out of the budget", R + "yu_runs:_plan",
           "rho += sum(0.5 / release.noise_multiplier**2 for release in before)", "pass",
           "check_the_epochs_of_table_two"),
    Mutant("the target is for training alone", R + "yu_runs:_plan",
           "before=before, epochs=setting.epochs", "epochs=setting.epochs",
           "check_the_target_includes_the_projection"),
    Mutant("seeds change nothing", R + "yu_runs:train", "Streams.new(seed)", "Streams.new(0)",
           "check_equal_seeds_make_pairs"),
    Mutant("seeds are not used", R + "yu_runs:train", "Streams.new(seed)", "Streams.new()",
           "check_equal_seeds_make_pairs"),
    Mutant("validation rows are trained on, too", R + "tasks:_cancer", "500 if validate else 560", "560",
           "check_parts_are_disjoint"),
    Mutant("the last images are trained on, too", R + "tasks:_mnist", "len(x) - 5000 if validate else len(x)", "len(x)",
           "check_parts_are_disjoint"),
    Mutant("one split for every seed", R + "tasks:_cancer", "[seed, 560]", "[560]", "check_equal_seeds_make_pairs"),
    Mutant("plain training goes uphill", R + "yu_runs:_descend", "rate * schedule", "-rate * schedule",
           "check_plain_training_reaches_what_is_known"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
