"""Planted bugs of servers that go on, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("flwr", reason="Flower is not installed")

from privlearn.methods.pate import answers

GOES_ON = "check_a_server_that_stops_goes_on_with_the_same_noise_and_one_charge"
MUTANTS = [
    Mutant(
        "a server that goes on draws other noise for the same sums",
        answers.keep_answers,
        'Streams.at(saved.plain["streams"])',
        "streams",
        GOES_ON,
    ),
    Mutant(
        "a server that goes on is charged again",
        answers.keep_answers,
        'ledger.resume(saved.plain["run"], plan.event(), plan.adjacency, plan.unit)',
        "ledger.begin(plan.event(), plan.adjacency, plan.unit)",
        GOES_ON,
    ),
    Mutant(
        "a server that goes on adds the same noise to other sums",
        answers.keep_answers,
        '_total(totals).copy_(saved.tensors["sums"])',
        "_total(sums())",
        GOES_ON,
    ),
    Mutant(
        "a server writes what it goes on from without the sums",
        answers.keep_answers,
        'file.write(Saved({"sums": _total(totals)}, plain))',
        'file.write(Saved({"sums": 0 * _total(totals)}, plain))',
        GOES_ON,
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(AssertionError, KeyError, TypeError, ValueError)
)
