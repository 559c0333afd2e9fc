"""A model under FSDP2: its parameters, whole and in shards, and passes that all processes make in
step.

FSDP2 keeps a part of each parameter in each process. Before a module runs, forward or backward, its
processes gather its parameters, and afterwards they free them: the engine that computes examples'
gradients sees whole parameters, for a module at a time, and need not know of shards.

Gathering takes all processes, and a row on which a model fails, or takes another path, exists in
one of them. So the order of the modules is written down on made-up rows. A process whose pass fails
gathers for the others what is left of it, and all of them give the pass up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.separation.program import renamed
from privlearn.core.clipping.separation.tracker import unfollowed
from privlearn.core.processes import World
from privlearn.errors import BadInput, PrivlearnError, first_line

#: The step of the grid that sums are added up on, over a clipping norm, as a power of two: the sums
#: of 2^16 examples are exact in double precision.
_STEP = -36


class OtherFailed(PrivlearnError):
    """Another process could not make this pass."""


@final
@dataclass(frozen=True, repr=False)
class Piece:
    """One trained parameter, and the part of it that this process keeps: whole rows, one after the
    other.

    Attributes:
        name: of the parameter.
        whole: the parameter as modules have it while they run; without memory otherwise.
        kept: the part here.
        height: rows that each process keeps; the last ones may have fewer, or none.
        rank: which of the processes this is.
    """

    name: str
    whole: nn.Parameter
    kept: Tensor
    height: int
    rank: int

    @property
    def width(self) -> int:
        """Numbers that each process keeps, at most."""
        return self.height * (self.whole.numel() // self.whole.shape[0])

    @property
    def place(self) -> tuple[int, int]:
        """Where the part begins in the whole, in numbers, and how many the whole has."""
        return min(self.rank * self.width, self.whole.numel()), self.whole.numel()


@final
@dataclass(frozen=True)
class Shards:
    """Sums of shards: every number of a parameter has its place in the noise, in whichever process
    it is.

    Attributes:
        places: of each value, where it begins in its whole, and the whole's size.
    """

    places: tuple[tuple[int, int], ...]

    def own(self, values: Any) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """All of them: what this process has it has the sum of."""
        return list(values), list(self.places[: len(values)])

    def complete(self, values: Any) -> None:
        """Nothing is handed out: each process steps on what it keeps."""


@final
class Groups:
    """The modules of a model that gather their parameters together, and these parameters.

    Args:
        model: `fully_shard` was applied to it, after its parts.
        world: all processes, in the order of the model's mesh.

    Attributes:
        pieces: the trained parameters by group, in the order of the model's.
        passed: whether all processes made the last forward pass to its end.

    Raises:
        BadInput: the model is sharded in a way that sums and noise are not made for.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._model, self._world = cast(Any, model), world
        require_usable(model, world)
        self._modules: list[Any] = [
            module for module in model.modules() if isinstance(module, FSDPModule)
        ]
        self._order: list[nn.Module] = []  # in which modules gather, in one pass
        self._passed: int | None = None  # of them, in the pass that is made
        self._recording = False
        self.passed = False
        shards = dict(model.named_parameters())
        self.pieces: list[list[Piece]] = []
        try:
            self._model.unshard()
        except ValueError as error:  # PyTorch's own, of weights that several groups share
            raise BadInput(
                f"the model can't be trained under fully_shard: {first_line(error)}"
            ) from error
        self._model.reshard()
        for module in self._modules:
            module.unshard()
            whole = {
                name: parameter
                for name, parameter in model.named_parameters()
                if parameter is not shards.get(name)
            }
            module.reshard()
            trained = [
                (name, parameter) for name, parameter in whole.items() if parameter.requires_grad
            ]
            self.pieces.append(
                [_piece(name, parameter, shards[name], world) for name, parameter in trained]
            )

    @property
    def whole(self) -> dict[str, nn.Parameter]:
        """The trained parameters, as modules have them while they run, in the order of the
        model's.
        """
        by_name = {piece.name: piece.whole for group in self.pieces for piece in group}
        return {
            name: by_name[name]
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }

    @property
    def places(self) -> list[tuple[int, int]]:
        """Where the part of each that is here begins in the whole, and the whole's size."""
        by_name = {piece.name: piece.place for group in self.pieces for piece in group}
        return [by_name[name] for name in self.whole]

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A block in which FSDP2's hooks are none of the model's operations, and gather in the
        order that is known.
        """
        held = []
        for module in self._modules:
            for hooks, before in (
                (module._forward_pre_hooks, True),
                (module._forward_hooks, False),
            ):
                for key, hook in hooks.items():
                    if type(getattr(hook, "__self__", None)).__module__.startswith(
                        "torch.distributed.fsdp"
                    ):
                        held.append((hooks, key, hook))
                        hooks[key] = self._guard(hook, module if before else None)
        try:
            yield
        finally:
            for hooks, key, hook in held:
                hooks[key] = hook

    def _guard(self, hook: Callable[..., Any], module: nn.Module | None) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with torch._C.DisableTorchFunction(), unfollowed():
                if module is not None:
                    self._require_begun(module)
                    self._pass(module)
                result = hook(*args)
            # What FSDP2 hands on is what it was given, wrapped for its own backward pass.
            renamed(tree_leaves(args[1:] if module is not None else args[2:]), tree_leaves(result))
            return result

        return run

    def _require_begun(self, module: nn.Module) -> None:
        """Raise `BadInput` where a part runs before the model itself was called, with which FSDP2
        begins.
        """
        if module is not self._model and self._model._get_fsdp_state()._is_root is None:
            raise BadInput(
                "the loss or training_step calls a part of the model, and under fully_shard a pass "
                "begins with the model itself: call model(...), or self(...) in training_step"
            )

    def _pass(self, module: nn.Module) -> None:
        """`module` is about to gather its parameters."""
        if self._recording:
            self._order.append(module)
        elif self._passed is not None:
            if self._order[self._passed : self._passed + 1] != [module]:
                raise NotLayerwise("the model calls other modules than it did on made-up rows")
            self._passed += 1

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A block with one pass, whose order is that of all passes from here on."""
        self._model.reset_iter_state()
        self._order, self._recording = [], True
        try:
            yield
        finally:
            self._recording = False

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """A block with one forward pass, which all processes make; it comes to its end in all, or
        in none.

        Raises:
            OtherFailed: this process made it, and another did not.
            Exception: what was raised in the block, after all processes gave the pass up.
        """
        self._model.reset_iter_state()
        self._passed, failed, self.passed = 0, None, False
        try:
            yield
            if self._passed < len(self._order):
                raise NotLayerwise("the model calls other modules than it did on made-up rows")
        except Exception as error:
            failed = error
            for module in cast(Any, self._order[self._passed :]):
                module.unshard()
                module.reshard()
        finally:
            self._passed = None
        self.passed = not self._world.any(failed is not None)
        if not self.passed:
            self._model.reset_iter_state()
            raise failed or OtherFailed("another process could not make this pass")

    def scattered(self, group: list[Piece], sums: list[Tensor], clip_norm: float) -> list[Tensor]:
        """Of sums of whole parameters, the sum over all processes of what this one keeps of them,
        in double precision.

        They are added up on a grid of 2^-36 of the clipping norm, exactly, so that the order does
        not matter. Rounding to it moves a sum of d numbers by at most 2^-37 sqrt(d) of the norm,
        far below the rounding of the sum itself.

        Args:
            group: the parameters.
            sums: of each, in the parameter's shape.
            clip_norm: what one example adds at most, in any number.
        """
        widths = [piece.width for piece in group]
        sent = sums[0].new_zeros(self._world.size, sum(widths), dtype=torch.float64)
        step = 2.0 ** (math.floor(math.log2(clip_norm)) + _STEP)
        for columns, total in zip(torch.split(sent, widths, 1), sums, strict=True):
            flat = total.flatten().double().div_(step).round_().mul_(step)
            for row, part in zip(columns, torch.split(flat, columns.shape[1]), strict=False):
                row[: len(part)] = part
        received = self._world.scattered(sent)
        return [
            numbers[: piece.kept.numel()].view(piece.kept.shape)
            for numbers, piece in zip(torch.split(received, widths), group, strict=True)
        ]


def _piece(name: str, whole: nn.Parameter, shard: Any, world: World) -> Piece:
    return Piece(
        name, whole, shard.to_local().detach(), -(-whole.shape[0] // world.size), world.rank
    )


def require_usable(model: nn.Module, world: World) -> None:
    """Raise `BadInput` unless every parameter is in float32 and sharded by rows over all processes
    of `world`.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
    from torch.distributed.tensor import DTensor, Shard

    problem, instead = "", ""
    if not isinstance(model, FSDPModule) or not all(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    ):
        problem, instead = (
            "parameters that are not sharded",
            "apply fully_shard(model) after its parts",
        )
    elif not hasattr(model, "reset_iter_state"):
        problem, instead = (
            "an FSDP2 that passes can't be given up in",
            "use a PyTorch with FSDPModule.reset_iter_state",
        )
    elif any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        problem, instead = (
            "parameters of another type than float32",
            "use model.float() before fully_shard",
        )
    elif any(
        tuple(parameter.placements) != (Shard(0),) for parameter in cast(Any, model.parameters())
    ):
        problem, instead = (
            "parameters that are replicated, or sharded otherwise than by rows",
            "use one flat mesh",
        )
    elif any(
        parameter.device_mesh.size() != world.size for parameter in cast(Any, model.parameters())
    ):
        problem, instead = (
            "a mesh of other processes than those that train",
            "use a mesh of all processes",
        )
    states = [
        module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)
    ]
    for state in [] if problem else cast(Any, states):
        policies = state._mp_policy
        if len(state._modules) > 1:
            problem, instead = (
                "modules that are one group",
                "apply fully_shard to one module at a time",
            )
        elif any(
            dtype is not None
            for dtype in (policies.param_dtype, policies.reduce_dtype, policies.output_dtype)
        ):
            problem, instead = (
                "a MixedPrecisionPolicy",
                "leave it out, and use precision='bf16' to compute in bfloat16",
            )
        elif any(
            isinstance(group.offload_policy, CPUOffloadPolicy) for group in state._fsdp_param_groups
        ):
            problem, instead = "a CPUOffloadPolicy", "leave it out"
    if problem:
        raise BadInput(
            f"the model has {problem} under fully_shard: sums and noise are not made for that. To "
            f"go on, {instead}"
        )
