"""Planted bugs in the choice of threads, each of which a named check must catch."""

from __future__ import annotations

from privlearn.cli import threads
from privlearn.training import rehearsal
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "the number of threads follows from private rows",
        rehearsal.count_operations,
        "settled.facts.examples",
        "data.examples",
        "check_threads_follow_from_public_numbers",
    ),
    Mutant(
        "threads are chosen where the user chose them",
        threads.limit_threads,
        "and not any(os.environ.get(name) for name in _CHOSEN)",
        "",
        "check_users_choose_threads_themselves",
    ),
    Mutant(
        "the process of a caller keeps the threads of a command",
        threads.limit_threads,
        "finally: torch.set_num_threads(before)",
        "finally: pass",
        "check_threads_follow_from_public_numbers",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
