"""An error says what went wrong: it carries its data, and its message says what to do about it."""

from __future__ import annotations

import sys
import warnings
from typing import Any


class PrivlearnError(Exception):
    """Base of every error that privlearn raises on purpose.

    The message says what was given, what was expected and what to do; `data` carries the values
    behind it.
    """

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = data


class BadInput(PrivlearnError, ValueError):
    """A value, a file or an option that cannot be used as given."""


class BudgetExceeded(PrivlearnError):
    """A charge would take the ledger past its budget. Nothing was drawn and nothing was charged."""


class SampleReused(PrivlearnError):
    """A second release was asked of one sample. Release several quantities of one batch jointly."""


class UnsupportedEvent(PrivlearnError):
    """No sound accountant covers this event (under this adjacency, or in this measure)."""


class AdjacencyMismatch(PrivlearnError):
    """Two kinds of neighbour met in one computation. They never compose."""


class NotPerExample(PrivlearnError):
    """A model or a loss whose value for one example depends on other examples."""


class UnsoundExtension(PrivlearnError):
    """A class that was registered or handed in departs from what is charged for it; the message
    names the class.
    """


class CertificateMismatch(PrivlearnError):
    """A published folder does not agree with its own certificate."""


class ProcessLost(PrivlearnError):
    """Another of the processes that train together ended, did not answer in time, or does something
    else.
    """


class OutOfMemory(PrivlearnError, MemoryError):
    """A device or the processor has too little memory for a single example."""


class PrivacyWarning(UserWarning):
    """No guarantee holds for what was computed, or releases add up; the message says which."""


class DataWarning(UserWarning):
    """Cells of a table that was read have no meaning by its schema: for the data's curator."""


class TrainingWarning(UserWarning):
    """A model learns less than it could, at the same guarantee; the message says what to change."""


def warn(message: str, category: type[Warning] = PrivacyWarning) -> None:
    """Warn at the line outside of this package, and of scikit-learn around it, that called into
    it.
    """
    frame, level, outside = sys._getframe(0), 1, 1
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package == __package__ or (package in ("sklearn", "joblib") and outside == level - 1):
            outside = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=outside + 1)


def first_line(error: BaseException) -> str:
    """What an error says, cut to a line; its kind if it says nothing."""
    return next(iter(str(error).strip().splitlines()), "")[:200].rstrip(".") or type(error).__name__
