"""Metrics of torchmetrics in a `training_step`: they stay as they were, because figures of private
rows would be shown without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric, MetricCollection

from privlearn._checks import quoted
from privlearn.errors import warn


class _Figures(dict[Any, Tensor]):
    """What a collection gives in a step: a figure by any name."""

    def __init__(self, names: Any, figure: Tensor) -> None:
        super().__init__(dict.fromkeys(names, figure))
        self._figure = figure

    def __missing__(self, name: Any) -> Tensor:
        return self._figure


@final
class StepMetrics:
    """The metrics of a module while a private run trains it.

    Guarantee: within a step no metric changes, and each gives a figure that follows from no row.
    Between steps a metric that steps would have updated gives no figure but of the rows that
    something else updated it with, those of validation. Then metrics work as they always do.

    Args:
        module: whose metrics, among its modules and in lists and dictionaries that these hold, are
            taken over until `close`.
        in_a_step: whether a step is computed, or tried on made-up rows.

    Attributes:
        names: those of the metrics.
        figure: what metrics give in a step.
        in_steps: the names of those that a step would have updated.
    """

    def __init__(self, module: nn.Module, in_a_step: Callable[[], bool]) -> None:
        self._in_a_step = in_a_step
        self.figure, self.in_steps = math.nan, set[str]()
        self.names: list[str] = []
        self._kinds: list[tuple[nn.Module, type]] = []
        for name, metric in list(_metrics_of(module)):
            kind = type(metric)
            make = self._kind_of_metric if isinstance(metric, Metric) else self._kind_of_collection
            object.__setattr__(metric, "__class__", make(kind, name))
            self._kinds.append((metric, kind))
            self.names.append(name)

    def _note(self, name: str) -> Tensor:
        """A step uses this metric: note it, and give the figure."""
        self.in_steps.add(name)
        return torch.tensor(self.figure, device="cpu")

    def _kind_of_metric(self, kind: Any, name: str) -> Any:
        """A class that takes the place of a metric's own. Copies of the metric have it, too.

        A metric keeps `update` and `compute` as attributes of its own, which only properties of its
        class come before.
        """

        def nothing(*args: Any, **kwargs: Any) -> Tensor:
            return self._note(name)

        def none_yet(*args: Any, **kwargs: Any) -> Tensor:
            return torch.tensor(math.nan, device="cpu")

        def get_update(metric: Any) -> Any:
            if self._in_a_step():
                return nothing
            return vars(metric).get("update", kind.update.__get__(metric))

        def get_compute(metric: Any) -> Any:
            if self._in_a_step():
                return nothing
            if name in self.in_steps and not metric._update_count:
                return none_yet
            return vars(metric).get("compute", kind.compute.__get__(metric))

        def forward(metric: Any, *args: Any, **kwargs: Any) -> Any:
            return nothing() if self._in_a_step() else kind.forward(metric, *args, **kwargs)

        def reset(metric: Any) -> None:
            if not self._in_a_step():
                kind.reset(metric)

        def setter(attribute: str) -> Callable[[Any, Any], None]:
            return lambda metric, method: vars(metric).update({attribute: method})

        members = {
            "update": property(get_update, setter("update")),
            "compute": property(get_compute, setter("compute")),
            "forward": forward,
            "reset": reset,
        }
        return type(kind)(kind.__name__, (kind,), members)

    def _kind_of_collection(self, kind: Any, name: str) -> Any:
        """The same for a collection, which compares its metrics with each other when it updates
        them.
        """

        def method(attribute: str) -> Callable[..., Any]:
            def run(collection: Any, *args: Any, **kwargs: Any) -> Any:
                if self._in_a_step():
                    return _Figures(collection.keys(), self._note(name))
                unused = not any(metric._update_count for metric in collection.children())
                if attribute == "compute" and name in self.in_steps and unused:
                    return _Figures(collection.keys(), torch.tensor(math.nan, device="cpu"))
                return getattr(kind, attribute)(collection, *args, **kwargs)

            return run

        members = {each: method(each) for each in ("update", "compute", "forward", "reset")}
        return type(kind)(kind.__name__, (kind,), members)

    def warn(self) -> None:
        """Warn if the step that was tried on made-up rows would have updated metrics."""
        if self.in_steps:
            warn(
                f"training_step updates the metric {quoted(min(self.in_steps))}: of private rows "
                "it would show figures without noise, so it stays as it is, and gives nan. Update "
                "a metric in validation_step, with public rows"
            )

    def close(self) -> None:
        """Give the metrics their classes back."""
        for metric, kind in self._kinds:
            object.__setattr__(metric, "__class__", kind)


def _metrics_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The metrics of a module by name, each once."""
    met = set[int]()
    parts = list(module.named_modules())
    for name, part in parts:  # to which those in its lists and dictionaries are added
        if id(part) in met:
            continue
        met.add(id(part))
        if isinstance(part, Metric | MetricCollection):
            yield name, part
            continue
        for attribute, value in vars(part).items():
            if not attribute.startswith("_") and isinstance(value, list | tuple | dict):
                for leaf in tree_leaves(value):
                    if isinstance(leaf, nn.Module):
                        place = ".".join(filter(None, (name, attribute)))
                        parts += [
                            (".".join(filter(None, (place, inner))), each)
                            for inner, each in leaf.named_modules()
                        ]
