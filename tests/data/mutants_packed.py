"""Planted bugs in how rows on disk are packed and fetched, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn.core import rows
from privlearn.data import dataset, packed, tables
from privlearn.training import pinned_rows, task
from tests.support.mutant import Mutant, suite_of

PACKED, REFUSED = (
    "check_packed_rows_are_the_rows_that_are_read",
    "check_what_can_not_be_packed_is_refused_with_its_row",
)
ARRAYS, AHEAD = (
    "check_chunks_of_arrays_are_packed_as_declared",
    "check_rows_fetched_ahead_are_the_rows",
)

MUTANTS = [
    Mutant(
        "persons are merged by short digests",
        packed._digests,
        "digest_size=_PERSON).hexdigest()",
        "digest_size=1).hexdigest()[:1]",
        PACKED,
    ),
    Mutant(
        "persons are told apart by chunk",
        packed._digests,
        "str(person).encode()",
        "(str(person) + str(persons[0])).encode()",
        PACKED,
    ),
    Mutant(
        "rows are counted from each chunk",
        tables._read,
        "first += batch.num_rows",
        "pass",
        REFUSED,
    ),
    Mutant(
        "drafts are left",
        packed.pack,
        "    finally:\n        shutil.rmtree(draft, ignore_errors=True)\n",
        "    finally:\n        pass\n",
        REFUSED,
    ),
    Mutant(
        "labels of chunks may be any",
        packed._pairs,
        'require_labels(f"chunk {place}", "y", y, classes)',
        "pass",
        ARRAYS,
    ),
    Mutant(
        "chunks may have infinities",
        packed._pairs,
        'require_finite(f"chunk {place}", "x", x)',
        "pass",
        ARRAYS,
    ),
    Mutant(
        "missing rows of what was fetched are others",
        rows.FetchedRows.fetch,
        ").any():",
        ").all():",
        AHEAD,
    ),
    Mutant(
        "what was fetched is in another order",
        rows.FetchedRows.fetch,
        "torch.from_numpy(places)",
        "torch.from_numpy(np.sort(places))",
        AHEAD,
    ),
    Mutant(
        "a row that fails takes its batch along",
        rows.FetchedRows.fetch,
        "failed or ",
        "",
        "check_a_row_that_can_not_be_read_changes_no_other",
    ),
    Mutant(
        "an epoch is drawn before its first step",
        rows.TensorRows.ahead,
        "for indices in batches:",
        "for indices in list(batches):",
        "check_few_batches_are_drawn_ahead",
    ),
    Mutant(
        "all rows are looked at together",
        dataset.require_finite,
        "_AT_ONCE",
        "len(values)",
        "check_rows_on_disk_are_not_read_into_memory",
    ),
    Mutant(
        "a process reads the rows of all",
        task._with_rows,
        "session.world.read(sample.indices)",
        "sample.indices",
        "check_a_process_reads_its_own_rows_ahead",
    ),
    Mutant(
        "rows that follow the first one in the batch are taken for those that are asked for",
        pinned_rows.PinnedRows.fetch,
        "np.array_equal(self._indices[part], wanted)",
        "True",
        "check_rows_fetched_ahead_are_those_that_are_asked_for",
    ),
    Mutant(
        "a row that fails ahead fails the others",
        pinned_rows.PinnedRows.fetch,
        "and not self._fetched.exception()",
        "",
        "check_rows_fetched_ahead_are_those_that_are_asked_for",
    ),
    Mutant(
        "what was written into rows that were fetched ahead is fetched again",
        pinned_rows.PinnedRows.fetch,
        "self._waiting[part] = False",
        "pass",
        "check_rows_fetched_ahead_are_those_that_are_asked_for",
    ),
    Mutant(
        "twins are counted among the rows that are asked",
        dataset.overlap,
        "for value in _hashes(second, kind) if",
        "for value in asked if",
        "check_twins_among_many_rows_are_estimated",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[OSError]
)
