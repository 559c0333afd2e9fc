"""This file decides whether a change of an optimizer's settings can follow from a number that a
script computed.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from privlearn._figures import first_argument


@final
class TracedSettings(dict[str, Any]):
    """One of an optimizer's groups, which remembers what schedulers set that were given nothing.

    Such a scheduler, `scheduler.step()`, counts its own calls: what it sets follows from how many
    there were. One that is given a metric, `ReduceLROnPlateau`, may follow anything, also where it
    decides to leave a setting as it is.

    Attributes:
        may_follow: whether a setting was changed in another way, or read by a scheduler that was
            given something.
    """

    may_follow = False

    def __getitem__(self, name: str) -> Any:
        call = _call_of_a_scheduler(sys._getframe(1))
        if call is not None and call.f_code.co_name != "__init__" and not _is_given_nothing(call):
            self.may_follow = True
        return dict.__getitem__(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        scheduled = vars(self).setdefault("scheduled", {})
        call = _call_of_a_scheduler(sys._getframe(1))
        if call is not None and _is_given_nothing(call):
            scheduled[name] = value
        elif name not in self or not _same(value, self.get(name)):
            self.may_follow = True
        dict.__setitem__(self, name, value)


def follows_a_number(settings: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether settings may follow from a number: they are others than before, and no scheduler set
    them unasked.
    """
    if getattr(settings, "may_follow", False) or settings.keys() != before.keys():
        return True
    scheduled = getattr(settings, "scheduled", {})
    return not all(
        name == "params" or value is scheduled.get(name, settings) or _same(value, before[name])
        for name, value in settings.items()
    )


def copied(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they are now, to be compared with later ones."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in settings.items()
    }


def _same(value: Any, before: Any) -> bool:
    if isinstance(value, Tensor) or isinstance(before, Tensor):
        return (
            isinstance(value, Tensor) and isinstance(before, Tensor) and torch.equal(value, before)
        )
    return bool(value == before)


def _call_of_a_scheduler(frame: types.FrameType | None) -> types.FrameType | None:
    """The outermost method of a scheduler that is running."""
    call = None
    while frame is not None:
        if isinstance(first_argument(frame), LRScheduler):
            call = frame
        frame = frame.f_back
    return call


def _is_given_nothing(call: types.FrameType) -> bool:
    names, more, named, values = inspect.getargvalues(call)
    given = [values[name] for name in names[1:]]
    given += [*(values[more] if more else ()), *(values[named].values() if named else ())]
    return all(value is None for value in given)
