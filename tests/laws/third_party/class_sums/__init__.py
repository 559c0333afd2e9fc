"""A method of another package: a linear classifier of noisy sums of the rows of each class."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from privlearn.methods import Method


def settle(options: Any, facts: Any) -> Any:
    plan = import_module("class_sums.plan").ClassSums(facts.numbers, facts.classes, options.radius)
    return plan.calibrate(epsilon=options.epsilon, delta=options.delta, rho=options.rho)


def train(*arguments: Any, **named: Any) -> Any:
    return import_module("class_sums.training").train(*arguments, **named)


METHOD = Method(
    "class-sums",
    {"class-sums": "class_sums.plan"},
    unsuited="it is one release",
    fields=(("radius", "R", "for class-sums: rows are clipped to this norm", float),),
    settle=settle,
    train=train,
)
