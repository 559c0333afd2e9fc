"""What a verification reports, and the two reasons that stop a check."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Refusal(Exception):
    """Something is missing, out of range, or contradicted."""


class Unknown(Exception):
    """Something that cannot be checked here."""


@dataclass(frozen=True)
class Report:
    """What a verification says: the verdict, the claim, the signer, and why."""

    verdict: str
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str | None = None
    method: str | None = None
    signed_by: str | None = None
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def demand(condition: bool, reason: str, error: type[Exception] = Refusal) -> None:
    """Raise the error with the reason unless the condition holds."""
    if not condition:
        raise error(reason)


class Clock:
    """Stops a verification of hostile values that takes too long."""

    end = math.inf

    def start(self, seconds: float) -> None:
        """Allow so many seconds from now on."""
        self.end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise if the time is up."""
        demand(time.monotonic() < self.end, "it takes too long", Unknown)


CLOCK = Clock()


@dataclass
class Findings:
    """Problems, unchecked values and warnings so far."""

    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    signed_by: str | None = None

    def attempt(self, check: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a check returns, and note what it raises."""
        try:
            return check(*arguments)
        except Refusal as error:
            self.problems.append(str(error))
        except Unknown as error:
            self.unchecked.append(str(error))
        except Exception as error:  # hostile values must not stop a verification
            self.unchecked.append(f"{check.__name__}: {error!r}"[:500])
        return None
