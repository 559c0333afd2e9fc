"""Named checks of what people and scripts call on the command line: it is as it was frozen."""

from __future__ import annotations

from tests.cli.frozen_interface import QUICK, differences, golden, options, outputs
from tests.support.checks import check


@check
def check_options_of_the_command_line_are_as_frozen() -> None:
    """Flags, readers, defaults, choices, groups, and what has to be given, of every command."""
    differing = differences(options(), golden()["options"])
    assert not differing, "\n".join(differing)


@check
def check_keys_and_exit_codes_of_quick_commands_are_as_frozen() -> None:
    """What is printed as JSON has the frozen keys, and what is refused or fails ends with the
    frozen code.
    """
    frozen = {name: case for name, case in golden()["outputs"].items() if name in QUICK}
    differing = differences(outputs(*QUICK), frozen)
    assert not differing, "\n".join(differing)
