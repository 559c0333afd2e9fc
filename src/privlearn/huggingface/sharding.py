"""With `TrainingArguments(fsdp=True)` a trainer's model is sharded over the processes by FSDP2,
block by block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from privlearn.errors import BadInput
from privlearn.runs.ranks import launched

_INSTEAD = (
    "leave fsdp out, and call fully_shard on the model's blocks and on the model before it is "
    "given to the trainer (docs/distributed.md)"
)
#: Keys of `fsdp_config`, and the values with which a model is sharded as it is here. A key that is
#: not here has to be empty.
_FOLLOWED: dict[str, tuple[Any, ...]] = {
    "version": (2,),
    "reshard_after_forward": (True, False),
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "NO_WRAP"),
}
#: Keys that have any value: names of classes, which are looked for; how transformers would save.
_ANY = ("transformer_layer_cls_to_wrap", "state_dict_type")


def require_sharding(args: Any) -> None:
    """Refuse settings of FSDP with which the model would be sharded otherwise.

    Raises:
        BadInput: naming the setting.
    """
    if not isinstance(args.fsdp, bool | str):  # transformers 4 has a list, of the FSDP of before
        raise BadInput(f"TrainingArguments(fsdp={args.fsdp}) can't be used: {_INSTEAD}")
    for name, value in (args.fsdp_config or {}).items():
        if name not in _ANY and value and value not in _FOLLOWED.get(name, ()):
            raise BadInput(
                f"fsdp_config={{{name!r}: {value!r}}} can't be used: leave it out. For what "
                "fully_shard can do beside, see docs/distributed.md",
                name="fsdp_config",
            )


def shard_model(model: nn.Module, args: Any) -> None:
    """Let each process keep a part of every parameter (`fully_shard`), in place.

    One process that torchrun did not start keeps the whole model.

    Args:
        model: the trainer's model, also with adapters of PEFT.
        args: the trainer's `TrainingArguments`.

    Raises:
        BadInput: the settings name a class of blocks that the model does not have.
    """
    launched()  # begins the group of processes, if torchrun started this one
    if not (dist.is_available() and dist.is_initialized()):
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    config = args.fsdp_config or {}
    mesh = init_device_mesh(args.device.type, (dist.get_world_size(),))
    for module in (*_blocks(model, config), model):
        fully_shard(
            module, mesh=mesh, reshard_after_forward=config.get("reshard_after_forward", True)
        )


def _blocks(model: nn.Module, config: dict[str, Any]) -> Iterator[nn.Module]:
    """The modules that are gathered by themselves, inner ones first: those of transformers' classes
    of blocks, but for modules with tied weights, which stay with the whole model.
    """
    if config.get("auto_wrap_policy") == "NO_WRAP":
        return
    named = config.get("transformer_layer_cls_to_wrap")
    adapted: Any = model
    base = adapted.get_base_model() if hasattr(model, "get_base_model") else adapted
    names = {named} if isinstance(named, str) else set(named or base._no_split_modules or ())
    present = {type(module).__name__ for module in model.modules()}
    if named and (missing := sorted(names - present)):
        raise BadInput(
            f"fsdp_config names the class {missing[0]}, and the model has no module of it: "
            "expected names of classes of the model's blocks. Or leave "
            "transformer_layer_cls_to_wrap out",
            name="transformer_layer_cls_to_wrap",
        )
    times = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for module in reversed([*model.modules()]):
        if type(module).__name__ in names and all(times[id(p)] == 1 for p in module.parameters()):
            yield module
