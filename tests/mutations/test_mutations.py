"""The script that mutates: its mutations are made, in memory, and what is explained is still
there.
"""

from __future__ import annotations

import ast

import pytest

from privlearn.core import sampling
from tests.mutations.draw import PACKAGE, ROOMS, Mutation, drawn, functions_of, mutations, of_file
from tests.mutations.explained import EXPLAINED
from tests.mutations.killing import patch


@pytest.mark.parametrize("room", ["mechanisms", "sampling"])
def test_each_changes_one_function(room: str) -> None:
    every = mutations(room)
    assert len({mutation.name for mutation in every}) == len(every)
    for mutation in drawn(room, seed=1, number=20):
        before = ast.parse((PACKAGE / mutation.file).read_text("utf-8"))
        pairs = zip(functions_of(before), functions_of(mutation.tree()), strict=True)
        changed = [name for (name, old), (_, new) in pairs if ast.unparse(old) != ast.unparse(new)]
        assert changed == [mutation.function], mutation.name


def test_the_draw_is_of_many_operators_and_without_what_is_planted() -> None:
    first = drawn("sampling", seed=1, number=16)
    assert len({mutation.operator for mutation in first}) >= 8
    name, tree = first[0].function, first[0].tree()
    own = {ast.unparse(function) for qualified, function in functions_of(tree) if qualified == name}
    assert first[0] not in drawn("sampling", seed=1, number=16, apart=own)


def test_a_mutation_is_made_in_memory() -> None:
    mutation = _named(
        "sampling",
        "core/sampling/partitions.py: Partition.steps: return self.batches -> "
        "return self.batches + 1",
    )
    code = sampling.Partition.steps.__code__
    try:
        patch(mutation)
        assert sampling.Partition(4).steps() == 5
    finally:
        sampling.Partition.steps.__code__ = code
    assert sampling.Partition(4).steps() == 4


def test_explained_mutations_are_still_there() -> None:
    files = {name.split(": ")[0] for name in EXPLAINED}
    known = {mutation.name for room in ROOMS for file in files for mutation in of_file(room, file)}
    assert set(EXPLAINED) <= known, f"take out what is gone: {sorted(set(EXPLAINED) - known)}"


def _named(room: str, name: str) -> Mutation:
    return next(mutation for mutation in mutations(room) if mutation.name == name)
