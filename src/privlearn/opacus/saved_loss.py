"""The loss of a script as plain values, so that a checkpoint can hold it: what was computed from a
batch, by the names of PyTorch's functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name
from torch.utils._pytree import treespec_dumps, treespec_loads

from privlearn.errors import BadInput
from privlearn.opacus.recorded import Entry, Mark, Ref
from privlearn.opacus.script_loss import ScriptLoss, Term

_FAMILY = "torch"
_KINDS = (torch.dtype, torch.device, torch.memory_format, torch.layout)


def flattened_loss(loss: ScriptLoss, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A loss as plain JSON values, with tensors put aside under names.

    Raises:
        BadInput: it has a function or a value that a name doesn't say.
    """
    return {
        "tape": [
            {
                "function": _function_name(entry.function),
                "values": [_plain(value, tensors) for value in entry.values],
                "structure": treespec_dumps(entry.structure),
            }
            for entry in loss.tape
        ],
        "terms": [
            [term.factor, term.ref.entry, term.ref.output, term.summed, term.of_model]
            for term in loss.terms
        ],
    }


def whole_loss(saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ScriptLoss:
    """Undo `flattened_loss`."""
    tape = [
        Entry(
            _function(entry["function"]),
            [_value(value, tensors) for value in entry["values"]],
            treespec_loads(entry["structure"]),
            late=False,
        )
        for entry in saved["tape"]
    ]
    terms = [
        Term(float(factor), Ref(entry, output), *kind)
        for factor, entry, output, *kind in saved["terms"]
    ]
    return ScriptLoss(tape, terms, late=False)


def _function_name(function: Any) -> int | str | None:
    """A tensor of the batch by its number, the model as None, a function of torch by its name."""
    if function is None or isinstance(function, int):
        return function
    name = resolve_name(function)
    if name is None or _function(name) != function:
        raise _unnamed(name or str(function))
    return str(name)


def _function(name: int | str | None) -> Any:
    if not isinstance(name, str):
        return name
    family, *path = name.split(".")
    if family != _FAMILY:
        raise _unnamed(name)
    try:
        return reduce(getattr, path, torch)
    except AttributeError as error:
        raise _unnamed(name) from error


def _unnamed(what: str) -> BadInput:
    return BadInput(
        f"the loss can't be saved: {what[:60]!r} is not known by a name of torch. Use PyTorch's "
        "losses and functions, or keep the model alone by torch.save(module.state_dict(), FILE)"
    )


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": value.hex()}
        case Ref():
            return {"ref": [value.entry, value.output]}
        case Mark():
            return {"mark": value.name}
        case Tensor():
            name = f"loss.{len(tensors)}"
            tensors[name] = value
            return {"tensor": name}
        case slice():
            parts = (value.start, value.stop, value.step)
            return {"slice": [_plain(part, tensors) for part in parts]}
        case torch.device():
            return {"device": str(value)}
    if value is Ellipsis:
        return {"ellipsis": ""}
    if isinstance(value, _KINDS):
        return {"torch": str(value).removeprefix(f"{_FAMILY}.")}
    raise _unnamed(type(value).__name__)


def _value(saved: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(saved, dict):
        return saved
    ((kind, value),) = saved.items()
    match kind:
        case "float":
            return float.fromhex(value)
        case "ref":
            return Ref(*value)
        case "mark":
            return Mark[value]
        case "tensor":
            return tensors[value]
        case "slice":
            return slice(*(_value(part, tensors) for part in value))
        case "device":
            return torch.device(value)
        case "ellipsis":
            return Ellipsis
    return getattr(torch, value)
