"""Every section of frozen figures by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import agreement
import frozen_commands
import frozen_folders
import frozen_plans
import frozen_runs

#: From a section's name to its figures; of those cases alone, if a text is given, whose names
#: contain it.
SECTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "plans": frozen_plans.figures,
    "runs": frozen_runs.figures,
    "commands": frozen_commands.figures,
    "folders": frozen_folders.figures,
}


def differences(section: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Each difference between frozen figures of a section and those of now."""
    for case in sorted(old.keys() | new.keys()):
        tolerance = agreement.WEIGHTS
        if section == "commands":
            on_a_grid = "--discrete" in frozen_commands.CASES.get(case, "")
            tolerance = agreement.GRID if on_a_grid else agreement.LONG
        yield from agreement.differences(old.get(case, {}), new.get(case, {}), tolerance, case)
