"""Planted bugs of sparse rows, each of which a named check must catch."""

from __future__ import annotations

from privlearn.data.sparse_matrix import SparseMatrix
from privlearn.methods.boosting import rounds
from tests.support.mutant import Mutant, suite_of

FETCHED = "check_a_sparse_row_is_fetched_by_itself"
SUMS = "check_a_sparse_row_moves_bins_and_sums_by_itself"

MUTANTS = [
    Mutant(
        "a sparse row is fetched less the mean of all",
        SparseMatrix.__getitem__,
        "self._rows[rows].toarray()",
        "np.asarray(self._rows[rows].toarray() - self._rows.mean(0), np.float32)",
        FETCHED,
    ),
    Mutant(
        "a sparse row is divided by the sum of its batch",
        SparseMatrix.__getitem__,
        "self._rows[rows].toarray()",
        "self._rows[rows].toarray() / np.float32(1 + abs(self._rows[rows]).sum())",
        FETCHED,
    ),
    Mutant(
        "bins of sparse rows follow from the rows beside them",
        rounds._binned,
        "(network.bins(rows), rows.isfinite().any(1))",
        "(network.bins(rows - rows.mean(0)), rows.isfinite().any(1))",
        SUMS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
