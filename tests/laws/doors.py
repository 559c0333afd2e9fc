"""Writes the table of docs/api.md that says which entry point takes which option:
`python -m tests.laws.doors`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import privlearn as pv
from privlearn.cli.options import options_of
from privlearn.huggingface.trainer import Privacy
from privlearn.loop import LoopSettings
from privlearn.runs import compute
from privlearn.training.choices import TrainRequest
from privlearn.training.privacy_config import ALIASES
from tests.laws.measure import ROOT

PAGE = ROOT / "docs" / "api.md"
BEGIN, END = "<!-- options of entry points -->\n", "<!-- end of the options -->"


def arguments(function: Callable[..., Any]) -> set[str]:
    """What a function takes by name alone, and a plan."""
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY or name == "plan"
    }


def doors() -> dict[str, set[str]]:
    """The options of each entry point, by its name in the table."""
    computed = {"config", *compute.names()}
    request = {field.name for field in fields(TrainRequest)} | {"privacy", *ALIASES}
    return {
        # `--config` is a file of options.
        "command line": set(options_of("train")) - {"config"},
        "`pv.train`": arguments(pv.train) | request | computed,
        "`pv.Run`, `pv.dpsgd`": arguments(pv.Run) | computed,
        "`pv.make_private`": arguments(pv.make_private) | set(LoopSettings.__annotations__),
        "`PrivateTrainer`": set(Privacy.__annotations__),
    }


def rows() -> list[tuple[str, list[bool]]]:
    """Each option that two entry points have, and which of them have it."""
    taken = doors()
    names = sorted(set().union(*taken.values()))
    table = [(name, [name in options for options in taken.values()]) for name in names]
    return [row for row in table if sum(row[1]) > 1]


def table() -> str:
    """The table, as Markdown."""
    heads = list(doors())
    lines = [f"| option | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    lines += [
        f"| `{name}` | {' | '.join('x' if has else '' for has in cells)} |"
        for name, cells in rows()
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The text of the page, with the table as it is now."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
