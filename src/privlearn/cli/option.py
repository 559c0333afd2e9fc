"""One option of the command line, the readers of its values, and options under one heading."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, final

from privlearn.methods import METHODS

#: The commands that most options are for.
TRAIN, BUDGET = ("train",), ("budget",)


def read_number(text: str) -> float:
    """A number with a point before its decimals."""
    try:
        return float(text)
    except ValueError:
        pass
    plain = text.strip().replace(",", ".") if text.count(",") == 1 and "." not in text else ""
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r} cannot be read as a number: {_advise(plain, float)}, with a point before "
        "decimals and no other signs between digits"
    )


def read_whole_number(text: str) -> int:
    """A whole number in digits."""
    try:
        return int(text)
    except ValueError:
        pass
    plain = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,3}(?:([., '])[0-9]{3})(?:\1[0-9]{3})*", plain):  # 40,000
        plain = re.sub("[., ']", "", plain)
    elif re.fullmatch(r"[0-9]+(?:\.0*)?|[0-9.]+e[0-9]{1,2}", plain):  # 4e4, 400.0
        plain = f"{float(plain):.0f}" if float(plain).is_integer() else ""
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r} cannot be read as a whole number: {_advise(plain, int)}, digits alone"
    )


def _advise(text: str, kind: Callable[[str], Any]) -> str:
    """What to write: the number that was probably meant, or an example."""
    try:
        kind(text)
    except ValueError:
        return f"expected one such as {'1000' if kind is int else '0.5 or 1e-5'}"
    return f"write {text}"


def value_range(text: str) -> tuple[float, float]:
    """Two numbers."""
    low, _, high = text.partition(",")
    try:
        return float(low), float(high)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be read: expected LO,HI, for example 0,255 or -1.5,2.5"
        ) from None


def paid_budget(text: str) -> dict[str, float]:
    """What a release may cost, `epsilon=1,delta=1e-5`; delta is 1e-5 where it is not given."""
    try:
        budget = {
            name.strip(): float(value)
            for name, _, value in (part.partition("=") for part in text.split(","))
        }
    except ValueError:
        budget = {}
    if not {"epsilon"} <= set(budget) <= {"epsilon", "delta"}:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be read: expected epsilon=E or epsilon=E,delta=D, as in epsilon=0.5"
        )
    return {"delta": 1e-5, **budget}


def by_class(text: str) -> dict[str, float] | str:
    """A number for each class, `yes=5,no=1`; or one word, such as `balanced`."""
    if "=" not in text:
        return text
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        numbers = {name.strip(): float(value) for name, _, value in parts}
    except ValueError:
        numbers = {}
    if len(numbers) != len(parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be read: expected CLASS=NUMBER,CLASS=NUMBER, each once"
        )
    return numbers


def column_list(text: str) -> tuple[str, ...]:
    """Names of columns, with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def expiry(text: str) -> datetime:
    """The end of a day, or a time, in UTC if it names no zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} cannot be read: expected a day such as 2027-01-31, or a day and a time "
            "such as 2027-01-31T18:00"
        ) from None
    if "T" not in text and " " not in text:
        time += timedelta(days=1)
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    if time <= datetime.now(UTC):
        raise argparse.ArgumentTypeError(f"{text[:40]} is past: expected a time to come")
    return time


@final
@dataclass(frozen=True)
class Option:
    """A row of the table.

    Attributes:
        name: on the command line, without dashes; of a value without a flag, what the request calls
            it.
        metavar: what stands for its value in the help; None: it has none, or choices.
        help: one line.
        kind: what its text is read by; bool: a flag without a value.
        default: what it is where it is not given.
        part: whether it belongs to the plan, to the data or to the training: one configuration file
            may serve `train` and `budget`, and `budget` passes over what `train` alone takes, but
            for the plan.
        candidate: whether a candidate of `--tune` may set it.
        group: the heading that it stands under.
        commands: the commands that take it.
        choices: its values, if these are few.
        argument: the name in Python, in which errors speak of it; None: as here, with underscores.
        needed: whether the command can't do without it.
        flag: False for a value without a flag.
        optional: whether a value without a flag may be left out.
    """

    name: str
    metavar: str | None
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    part: Literal["plan", "data", "training"] = "training"
    candidate: bool = False
    group: str | None = None
    commands: tuple[str, ...] = TRAIN
    choices: tuple[str, ...] | None = None
    argument: str | None = None
    needed: bool = False
    flag: bool = True
    optional: bool = False

    @property
    def key(self) -> str:
        """What the request calls it."""
        return self.name.replace("-", "_")

    @property
    def in_python(self) -> str:
        """What errors call it."""
        return self.argument or self.key

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that take it: all, where none says that it does."""
        return tuple(name for name, method in METHODS.items() if method.suits(self.key)) or tuple(
            METHODS
        )

    @property
    def in_words(self) -> str:
        """The option with what stands for its value."""
        return f"--{self.name} {self.metavar}" if self.metavar else f"--{self.name}"

    @property
    def in_usage(self) -> str:
        """What stands for it in a line of usage."""
        value = self.in_words if self.flag else self.metavar or self.name.upper()
        return f"[{value}]" if self.optional else value


def group_of(
    group: str | None, commands: tuple[str, ...], *rows: Option, part: Any = "training"
) -> tuple[Option, ...]:
    """The rows under one heading."""
    return tuple(
        Option(
            **{
                **vars(row),
                "group": group,
                "commands": commands,
                "part": row.part if part is None else part,
            }
        )
        for row in rows
    )
