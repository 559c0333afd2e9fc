"""Planted bugs in sums over rows that come chunk by chunk: a named check must catch each."""

from __future__ import annotations

from privlearn.core.clipping import row_sums
from privlearn.methods.statistics import chunks
from tests.support.mutant import Mutant, suite_of

SAME = "check_sums_over_chunks_are_those_over_rows_in_memory"
SAID = "check_chunks_with_other_rows_than_were_said_are_refused_before_a_charge"

MUTANTS = [
    Mutant(
        "what is left of a chunk is lost",
        chunks.Chunks.__getitem__,
        "self._held = chunk[missing:]",
        "self._held = chunk[:0]",
        SAME,
    ),
    Mutant(
        "rows between two blocks are taken twice",
        chunks.Chunks.__getitem__,
        "self._held[stop - start :]",
        "self._held[max(stop - start - 1, 0) :]",
        SAME,
    ),
    Mutant(
        "rows beyond their number are left out",
        chunks.Chunks.__getitem__,
        "if stop == self._rows and",
        "if False and",
        SAID,
    ),
    Mutant(
        "rows of a chunk beyond their number are left out",
        chunks.Chunks.__getitem__,
        "(len(self._held) or any(",
        "(any(",
        SAID,
    ),
    Mutant(
        "missing rows are made up",
        chunks.Chunks.__getitem__,
        "if chunk is None:",
        "if chunk is None and (chunk := np.zeros((missing, *self.shape[1:]), self.dtype)) is None:",
        SAID,
    ),
    Mutant(
        "rows of arrays are not clipped",
        row_sums.second_moment,
        "clip_rows(rows.flatten(1).double(), limit)",
        "(clip_rows if isinstance(x, torch.Tensor) else lambda own, _: own.nan_to_num())"
        "(rows.flatten(1).double(), limit)",
        SAME,
    ),
    Mutant(
        "every chunk is kept",
        chunks.Chunks._chunks,
        "yield chunk",
        "self.__dict__.setdefault('kept', []).append(chunk); yield chunk",
        "check_few_chunks_are_in_memory_at_a_time",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
