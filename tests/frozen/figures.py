"""Every section of frozen figures by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import agreement
import frozen_commands
import frozen_folders
import frozen_plans
import frozen_runs

#: From a section's name to its figures; of those cases alone, if a text is given, whose names contain it.
SECTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "plans": frozen_plans.figures,
    "runs": frozen_runs.figures,
    "commands": frozen_commands.figures,
    "folders": frozen_folders.figures,
}

#: How far apart the numbers of a section's arrays may be.
WEIGHTS = {"commands": agreement.LONG}
