"""An optimizer that a script made steps on just the parameters that its model trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from privlearn.errors import BadInput


def require_optimizer_of(optimizer: Any, model: nn.Module) -> None:
    """Refuse an optimizer that was made from other parameters than those that the model trains.

    A parameter that it lacks would get noise and never move, and one that is not the model's would
    never get a gradient.

    Raises:
        BadInput: naming one.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(
            f"optimizer is {repr(optimizer)[:60]}: expected one that was made from the model's "
            "parameters, such as torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    by_id = {id(parameter): (name, parameter) for name, parameter in model.named_parameters()}
    lacking = [
        name
        for key, (name, parameter) in by_id.items()
        if parameter.requires_grad and key not in held
    ]
    if not held & by_id.keys():
        raise BadInput(
            f"the optimizer holds {len(held)} parameters that are not the model's, and none that "
            "is: it was made before the model was copied or replaced, as ModuleValidator.fix does. "
            "Make it from model.parameters(), after that"
        )
    if held - by_id.keys():
        raise BadInput(
            f"the optimizer holds {len(held - by_id.keys())} parameters that are not the model's: "
            "they would get no gradient. Make it from model.parameters(), and put whatever else "
            "is trained (in a loss, say) into the model"
        )
    if lacking:
        raise BadInput(
            f"{lacking[0]!r} and {len(lacking) - 1} more parameters are trained (requires_grad) "
            "and not in the optimizer: they would never move. Freeze them with "
            "requires_grad_(False), or make the optimizer from them, too"
        )
