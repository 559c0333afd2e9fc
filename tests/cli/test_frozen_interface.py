"""The command line is as it was frozen: its options, what its commands print as JSON, and their
exit codes.

Where a change of these is meant, `python -m tests.cli.frozen_interface` writes
`frozen_interface.json` anew.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.frozen_interface import CASES, GOLDEN, differences, golden, options, outputs

#: Keys that scripts rely on, and the cases in which they stand.
PROMISED = {
    "budget": (
        "adjacency",
        "delta",
        "epsilon",
        "method",
        "rho",
        "epochs",
        "steps",
        "noise_multipliers",
        "guarantees",
        "guarantees[].method",
        "guarantees[].epsilon",
        "guarantees[].kind",
    ),
    "budget, pate": ("epochs", "steps", "noise_multipliers"),
    "train": ("test_metrics", "test_accuracy", "out", "seconds"),
    "verify": ("ok", "epsilon", "delta", "adjacency", "method", "problems", "warnings"),
    "reproduce": (
        "name",
        "source",
        "rows[].label",
        "rows[].metric",
        "rows[].paper",
        "rows[].ours",
        "rows[].ours_std",
        "rows[].seeds",
    ),
    "audit": ("epsilon_lower", "epsilon_claimed", "confidence", "ok"),
}


@pytest.fixture(scope="module")
def computed() -> dict[str, dict[str, Any]]:
    """What all cases do now."""
    return outputs()


def test_options_are_as_frozen() -> None:
    """Nothing is new, gone or changed, of any command."""
    assert not differences(options(), golden()["options"])


@pytest.mark.parametrize("name", CASES)
def test_a_command_answers_as_frozen(name: str, computed: dict[str, dict[str, Any]]) -> None:
    """Its exit code, the keys of its JSON with their types, and whether it says what is wrong."""
    assert not differences(computed[name], golden()["outputs"][name])


def test_every_frozen_case_is_run() -> None:
    assert set(golden()["outputs"]) == set(CASES)


@pytest.mark.parametrize("name", PROMISED)
def test_keys_that_scripts_rely_on_are_among_the_frozen(name: str) -> None:
    """A file that is written anew can't drop them."""
    assert set(PROMISED[name]) <= set(golden()["outputs"][name]["output"])


def test_every_command_with_json_has_a_case_that_prints_it() -> None:
    """So do all exit codes there are."""
    frozen = golden()
    printing = {
        case["command"].split()[0]
        for case in frozen["outputs"].values()
        if isinstance(case["output"], dict)
    }
    assert printing == {
        command for command, known in frozen["options"].items() if "--json" in known
    }
    assert {case["exit code"] for case in frozen["outputs"].values()} == {0, 1, 2, 130}


def test_what_is_refused_prints_no_answer() -> None:
    """Exit code 2 comes with a message on standard error and an empty standard output; no other
    code does.
    """
    for name, case in golden()["outputs"].items():
        assert (case["exit code"] in (2, 130)) == case["refused"], name
        assert not case["refused"] or case["output"] == "nothing", name


def test_the_file_is_as_it_would_be_written() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1) + "\n"
