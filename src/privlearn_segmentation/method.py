"""The row of segmentation in the table of methods, which privlearn finds by an entry point."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from privlearn.methods import Method


def _settle(options: Any, facts: Any) -> Any:
    return import_module("privlearn_segmentation.plan").settle_corrections(options, facts)


def _train(*arguments: Any, **named: Any) -> Any:
    return import_module("privlearn_segmentation.correcting").train_by_corrections(
        *arguments, **named
    )


SEGMENTATION = Method(
    "segmentation",
    {"pate": "privlearn.methods.pate.plan"},
    frozenset({"public", "model", "teachers", "queries", "codes"}),
    "teachers correct the maps of a public network, and it goes on as their student",
    settle=_settle,
    train=_train,
    targets=frozenset({"maps"}),
    pages="privlearn_segmentation.pages",
    command="pate",
)
