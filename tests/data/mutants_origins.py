"""Planted bugs of how repeated rows are seen, each of which a named check must catch."""

from __future__ import annotations

from privlearn.data import origins, torch_rows
from privlearn.data.origins import Origins
from privlearn.methods.boosting import rounds
from privlearn.methods.dpmac.dpmac import MacTask
from privlearn.methods.statistics import opening
from privlearn.methods.tuning.tune import tune
from privlearn.training.task import Task
from tests.support.mutant import Mutant, suite_of

COUNTED, DOORS = (
    "check_rows_that_come_again_are_counted_as_often",
    "check_repeated_rows_are_refused_at_every_door",
)
MEMORY, ARROW = (
    "check_rows_in_shared_memory_are_one_row",
    "check_rows_of_arrow_tables_are_their_places",
)
LISTS = "check_rows_of_lists_are_their_objects"
PERSONS = "check_copies_of_a_row_are_one_persons"

MUTANTS = [
    Mutant(
        "repeats are not looked at",
        origins.require_once,
        "if most <= unit.group_size:",
        "if True:",
        DOORS,
    ),
    Mutant(
        "repeats are not looked at in a run",
        Task.__init__,
        "require_rows_once(plan, source, self.data, indexed)",
        "pass",
        DOORS,
    ),
    Mutant(
        "repeats are not looked at in a choice among candidates",
        tune,
        "require_rows_once(plan, dataset, data)",
        "pass",
        DOORS,
    ),
    Mutant(
        "repeats are not looked at in statistics",
        opening.opened,
        "require_rows_once(plan, dataset, data)",
        "pass",
        DOORS,
    ),
    Mutant(
        "repeats are not looked at in boosting",
        rounds.boost,
        "require_rows_once(plan, dataset, data)",
        "pass",
        DOORS,
    ),
    Mutant(
        "repeats are not looked at in DP-MAC",
        MacTask.__init__,
        "require_rows_once(plan, source, data)",
        "pass",
        DOORS,
    ),
    Mutant(
        "a group covers one copy more",
        origins.require_once,
        "most <= unit.group_size",
        "most <= unit.group_size + 1",
        DOORS,
    ),
    Mutant(
        "where a loader's tensors come from is lost",
        torch_rows.resampled,
        "held.source = dataset",
        "pass",
        DOORS,
    ),
    Mutant(
        "indices from the end are others",
        origins._places,
        "np.where(places < 0, places + length, places)",
        "places",
        COUNTED,
    ),
    Mutant(
        "joined data sets are apart",
        Origins._of_structure,
        "isinstance(data, ConcatDataset)",
        "False",
        COUNTED,
    ),
    Mutant(
        "data sets around others are apart",
        Origins._search,
        "columns += self._of(value)",
        "columns += []",
        COUNTED,
    ),
    Mutant(
        "a custom data set has no rows",
        Origins._of_structure,
        "range(first := self._first(id(data)), first + length)",
        "range(0)",
        COUNTED,
    ),
    Mutant(
        "columns that share rows are counted apart",
        Origins._are_apart,
        "one[1] < other[0]",
        "True",
        MEMORY,
    ),
    Mutant(
        "rows of lists are missed",
        Origins._search,
        "columns += [objects] if",
        "columns += [] if",
        LISTS,
    ),
    Mutant(
        "shared memory is missed",
        Origins._in_memory,
        "range(address, address + rows * stride, stride)",
        "range(id(moving), id(moving) + rows)",
        MEMORY,
    ),
    Mutant(
        "shared labels are shared rows",
        Origins._in_memory,
        "max(moving, key=lambda array: array[1])",
        "moving[-1]",
        MEMORY,
    ),
    Mutant(
        "memory that all rows share is missed",
        Origins._in_memory,
        "np.full(rows, address, np.int64)",
        "range(rows)",
        MEMORY,
    ),
    Mutant(
        "Arrow's indices are missed",
        Origins._in_arrow,
        "if data._indices is None:",
        "if True:",
        ARROW,
    ),
    Mutant("parts of Arrow tables are apart", Origins._in_arrow, "+ chunk.offset", "", ARROW),
    Mutant(
        "copies may be of several persons",
        origins.require_once,
        "origins.are_split(groups)",
        "False",
        PERSONS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
