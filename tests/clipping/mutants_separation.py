"""Planted bugs of the gate that keeps examples apart, each of which a named check must catch.

Some guards stand behind others, and no check fails where one of them is off: what met in a loss
differs from one place to the next, and a tensor of an earlier batch comes from where no operation
was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from privlearn.core.clipping import backends
from privlearn.core.clipping import model_check as check
from privlearn.core.clipping.separation import axis_rules as rules
from privlearn.core.clipping.separation import meeting, program, tracker
from tests.clipping.checks_separation import check_the_gate_denies_each_mix_by_itself
from tests.support.mutant import Mutant, suite_of

GATE = "check_the_gate_denies_each_mix_by_itself"
SIZE = "check_the_gate_denies_what_follows_the_size_of_the_batch"
EACH = "check_each_kind_of_note_shows_what_it_is_for"
LATER = "check_the_gate_looks_again_where_numbers_have_changed"
SMALL = "check_small_batches_agree_with_others"
CHOSEN = "check_the_gate_denies_a_loss_that_is_chosen_by_the_size_of_the_batch"
LINE = "check_a_refusal_names_the_operation_and_its_line"

MUTANTS = [
    Mutant(
        "refusals name no operation",
        check.require_per_example,
        'if explain else ""',
        'if None else ""',
        LINE,
    ),
    Mutant(
        "refusals are as long as names are", meeting.name_meeting, "where[:_MOST]", "where", LINE
    ),
    Mutant(
        "refusals name no operation that reads",
        meeting.name_meeting,
        "where = error.where",
        'return ""',
        LINE,
    ),
    Mutant(
        "the gate is off",
        backends.SeparationCheck.require_apart,
        "examples = len(leaves[0])",
        "return\n    examples = len(leaves[0])",
        GATE,
    ),
    Mutant(
        "any part of a batch passes",
        tracker.axis_of,
        "if within > period or axis is None",
        "if axis is None: return None\n    if within > period",
        GATE,
    ),
    Mutant(
        "numbers may be read",
        tracker._tells,
        "return call.operation.tells",
        "return False",
        GATE,
    ),
    Mutant(
        "what PyTorch has no operation for passes",
        tracker.AxisTracker.function,
        "if self._calls == before and",
        "if False and",
        GATE,
    ),
    Mutant(
        "constants may differ along the batch",
        tracker.AxisTracker._are_equal,
        "return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)",
        "return True",
        GATE,
    ),
    Mutant(
        "numbers may depend on the size of the batch",
        backends._same_notes,
        "if len(one) != len(other):",
        "if True: return True\n    if False:",
        GATE,
    ),
    Mutant(
        "numbers given by keyword may depend on the size of the batch",
        tracker.AxisTracker._note,
        "for argument, value in call.passed.items()",
        "for argument, value in list(call.passed.items())[:2]",
        EACH,
    ),
    Mutant(
        "constants that a pass makes may depend on the size of the batch",
        tracker.AxisTracker._note_constant,
        "self.noted.append(ConstantValues(part.clone(), mark.of_weights))",
        "pass",
        EACH,
    ),
    Mutant(
        "constants are told by their places alone",
        tracker.AxisTracker._note_constant,
        "if mark.before:",
        "if True:",
        EACH,
    ),
    Mutant(
        "constants that are written stay as they were",
        tracker.AxisTracker._mark,
        "MemoryMark(self._number, lasts=lasts, of_weights=of_weights)",
        "MemoryMark(self._number, lasts=lasts, before=held is not None and held.before)",
        EACH,
    ),
    Mutant(
        "what is read of each example may depend on the size of the batch",
        tracker.AxisTracker._note_place,
        "self.noted.append(MemoryPlace(place))",
        "pass",
        EACH,
    ),
    Mutant(
        "what is written beside examples may depend on the size of the batch",
        tracker.AxisTracker._may_hold,
        "self.noted.append(ConstantValues(parts[:, 0].clone(), of_weights=False))",
        "pass",
        EACH,
    ),
    Mutant(
        "what is written into examples may depend on the size of the batch",
        tracker.AxisTracker._mark,
        "self._note_constant(tensor, axis)",
        "pass",
        EACH,
    ),
    Mutant(
        "where examples are written may depend on the size of the batch",
        tracker.AxisTracker._mark,
        "self._note_place(tensor, answer, period)",
        "pass",
        EACH,
    ),
    Mutant(
        "which results are read may depend on the size of the batch",
        backends.SeparationCheck._follow,
        '("flow", capture.program.flow)',
        '("flow", 0)',
        SIZE,
    ),
    Mutant(
        "what a draw is by may depend on the size of the batch",
        tracker.AxisTracker._note,
        "(of_batch or call.draws or tensor.numel() == 1)",
        "(of_batch or tensor.numel() == 1)",
        EACH,
    ),
    Mutant(
        "the largest constant says how near the others have to be",
        backends._are_close,
        "if one.of_weights and",
        "if",
        EACH,
    ),
    Mutant(
        "the losses may lie anywhere",
        backends.SeparationCheck._follow,
        "tracker.note_result(losses)",
        "pass",
        CHOSEN,
    ),
    Mutant(
        "numbers with a point have no name",
        program.Program._describe,
        "elif isinstance(value, Number):",
        "elif False:",
        LATER,
    ),
    Mutant(
        "batches are compared with themselves",
        backends.SeparationCheck._judge,
        "{1: 1, 4: 2}.get(examples, 4)",
        "examples",
        SMALL,
    ),
    Mutant(
        "backward passes of strangers pass",
        backends._require_known_gradients,
        "if (custom or compiled or ",
        "if (False and ",
        GATE,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)


def lost(call: Any) -> list[Any]:
    """What an operation gives is taken for a constant."""
    return [None]


def unmoved(call: Any) -> list[Any]:
    """The examples are taken to be where they were, whatever the operation does along them."""
    return [next(iter(call.axes.values()), None)]


@pytest.mark.parametrize(
    ("category", "bug"),
    [("reduction", lost), ("along_dimension", unmoved), ("product", unmoved), ("indexed", unmoved)],
)
def test_a_category_of_rules_that_loses_the_axis_is_caught(
    category: str, bug: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = [name for name, rule in rules.RULES.items() if rule.__name__ == category]
    assert planted
    for name in planted:
        monkeypatch.setitem(rules.RULES, name, bug)
    tracker._operation.cache_clear()
    try:
        with pytest.raises(AssertionError):
            check_the_gate_denies_each_mix_by_itself()
    finally:
        tracker._operation.cache_clear()
