"""This file checks whether a model treats examples one by one: what it makes of one may not depend
on the others in its batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from privlearn._checks import checked
from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.trained_state import TrainedState
from privlearn.core.devices import PROCESSOR
from privlearn.errors import BadInput, NotPerExample, first_line

#: Changes made-up rows into such as the data are.
Change = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
#: Says where in a model that couples examples they meet, on a made-up batch, and what to write
#: instead.
Explain = Callable[[nn.Module, Sequence[Tensor]], str]

#: Numbers in an example from which on the per-example check makes do with few of them.
_LARGE = 1 << 14

_COUPLED: dict[type[nn.Module], str] = {
    nn.modules.batchnorm._BatchNorm: (
        "normalises over the batch; use nn.GroupNorm (images) or nn.LayerNorm instead"
    ),
}


def require_shaped(model: nn.Module) -> None:
    """Raise `BadInput` if a parameter or a buffer waits for rows to take its shape from."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise BadInput(
                f"{name!r} has no shape yet: a lazy module takes it from the first rows that it "
                "sees. Run the model once on made-up rows, for example model(torch.zeros(1, "
                "*shape)), or use modules that are not lazy"
            )


def require_separate(model: nn.Module, *, fixed: bool = False) -> None:
    """Raise `NotPerExample`, naming modules known to couple examples, and `BadInput` for compiled
    ones, which nothing can look into; `fixed` as for `require_per_example`.
    """
    for name, module in model.named_modules():
        exported = isinstance(module, torch.fx.GraphModule) and "train" in vars(module)
        if exported or isinstance(module, torch.jit.ScriptModule):
            raise BadInput(
                f"{type(module).__name__} at {name or 'the top'!r} was made by torch."
                f"{'export' if exported else 'jit'}: give the module that it was made from"
            )
        for kind, reason in _COUPLED.items():
            if isinstance(module, kind) and not (fixed and module.track_running_stats):
                raise NotPerExample(
                    f"{type(module).__name__} at {name or 'the top'!r} {reason}", module=name
                )
        if (
            isinstance(module, nn.modules.instancenorm._InstanceNorm)
            and module.track_running_stats
            and not fixed
        ):
            raise NotPerExample(
                f"{type(module).__name__} at {name!r} keeps running statistics of the data: set "
                "track_running_stats=False",
                module=name,
            )
        rescales = (
            isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
        )
        if rescales and module.weight.requires_grad and not fixed:
            raise NotPerExample(
                f"{type(module).__name__} at {name or 'the top'!r} has max_norm={module.max_norm}: "
                "it rescales, in place and without noise, the rows of its table that a batch "
                "looks up. Give max_norm=None; to bound their norms, rescale what it gives, in "
                "forward",
                module=name,
            )


@checked
def require_per_example(
    model: nn.Module,
    *inputs: Tensor,
    fixed: bool = False,
    what: str = "the model",
    made_up: Change | None = None,
    explain: Explain | None = None,
) -> None:
    """Check that the output for one example depends on that example alone, and that nothing is
    remembered.

    Known offenders are refused by name. Then a copy of the model, in training mode, runs on made-up
    rows of the shape and type of `inputs`, of several scales: each row of small and larger batches
    must come out as it does by itself (for a model that draws random numbers: as it does beside
    other rows), and no buffer or parameter may change. That is looked at in double precision; in
    the model's own where it can't run in that. It is looked at again at perturbed weights, where no
    layer is zero, and on rows with large integers, missing values and sentinels where the model
    runs on such rows.

    With `fixed` the model is never trained and always in evaluation mode, and is checked in that:
    there norms with running statistics are fixed affine maps. `what` is checked, in messages: a
    model, or "the loss" that calls one. `explain` finds the operation that a message names.

    Raises:
        NotPerExample: with the module's name and what to use in its place.
        BadInput: the model cannot run on such inputs at all.
    """
    require_shaped(model)
    require_separate(model, fixed=fixed)
    refused: list[Exception] = []
    for dtype in (torch.float64, None):
        try:
            twin = copy.deepcopy(model).to(dtype).train(not fixed)
        except RuntimeError as error:
            raise NotPerExample(
                f"the model cannot be copied, so it cannot be checked: {first_line(error)}"
            ) from error
        before, trained = (
            {name: value.clone() for name, value in twin.state_dict().items()},
            TrainedState(twin),
        )
        typed = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        try:
            with torch.random.fork_rng(), torch.no_grad(), without_dropout(twin):
                sizes = (5, 40) if sum(x[:1].numel() for x in inputs) < _LARGE else (3, 5)
                coupled = any(
                    _rows_depend_on_others(twin, typed, size, what, made_up) for size in sizes
                )
                coupled = coupled or _depends_elsewhere(twin, typed, sizes[0], what, made_up)
            break
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            refused.append(error)
    else:
        description = " and ".join(f"shape {tuple(x.shape[1:])} and type {x.dtype}" for x in inputs)
        hint = _advice_for(refused[0]) if made_up else ""
        raise BadInput(
            f"{what} cannot run on inputs of {description}: {first_line(refused[0])}. It is called "
            f"with any number of examples, and must not mix them{hint}"
        ) from refused[0]
    if coupled:
        batch = made_up_rows(typed, len(typed), sizes[0])
        moves = f"{what}'s output for one example moves when other examples of the batch change"
        with without_dropout(twin):
            where = explain(twin, made_up(batch) if made_up else batch) if explain else ""
        if where:
            raise NotPerExample(f"{moves}: {where}")
        raise NotPerExample(
            f"{moves}. Look for an operation over the batch dimension (a batch norm, a mean over "
            "the batch, attention across examples, mixup) and remove it"
        )
    for name, value in twin.state_dict().items():
        if not torch.equal(value, before[name]):
            raise NotPerExample(
                f"{name!r} changes when the model runs: it would carry the data into the published "
                "model. Remove it, or keep it fixed",
                state=name,
            )
    if not fixed:
        batch = made_up_rows(typed, len(typed), sizes[0])
        _require_unwritten(twin, trained, made_up(batch) if made_up else batch)


def _advice_for(error: Exception) -> str:
    """What to write where a loss refuses made-up rows."""
    if isinstance(error, RuntimeError) and "does not require grad" in str(error):
        return (
            ". A loss that takes gradients by its inputs computes them in `with "
            "torch.enable_grad():`, of x.detach().requires_grad_()"
        )
    if "must be Tensor, not " in str(error):
        return ". A loss of a run gets the model and the rows: loss(model, batch)"
    return ". If rows must hold certain values, give made_up, as an argument or of the loss"


def _require_unwritten(model: nn.Module, trained: TrainedState, batch: Sequence[Tensor]) -> None:
    """Raise `NotPerExample` if a model, whose weights are lost, writes into trained parameters on a
    made-up batch.

    It runs at its weights, and at far larger ones: what keeps weights within bounds may have
    nothing to do at the first. What is written on other rows alone is undone during training.
    """
    numbers = torch.Generator().manual_seed(0)
    for factor in (1.0, 100.0):
        with torch.no_grad():
            for parameter in trained.parameters if factor > 1 else ():
                parameter.add_(
                    torch.randn(parameter.shape, generator=numbers, device="cpu").to(parameter)
                ).mul_(factor)
        with trained.holding(), torch.random.fork_rng(), torch.enable_grad():
            with suppress(Exception):  # it may not run at such weights
                out = _run_seeded(model, batch, 0)
                torch.autograd.grad(out.nan_to_num().sum(), trained.parameters, allow_unused=True)
            trained.restore()
        if trained.written:
            raise NotPerExample(
                f"{trained.written!r} is trained, and the model writes into it when it runs: what "
                "rows change there would be published without noise. Leave it as it is, and "
                "compute with a changed copy, such as self.weight.clamp(-1, 1), in forward",
                parameter=trained.written,
            )


def perturbed(weights: Tensor) -> Tensor:
    """`weights` with 5 % of random numbers; of .05 where all weights are zero. They are the same in
    every call.
    """
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(weights.shape, generator=random, dtype=torch.float64, device="cpu").to(
        weights
    )
    size = weights.square().mean().sqrt() if weights.numel() else weights.new_ones(())
    return weights + 0.05 * noise * size.where(size > 0, 1.0)


#: Values that rows of data hold and random numbers do not: missing, not finite, sentinels, and
#: large counts.
_ODD = (math.nan, math.inf, -math.inf, -1.0, -999.0, 65535.0)


def _odd_rows(rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Made-up rows in which a tenth of the numbers are odd ones, and integers are as large as they
    can be.
    """
    random = torch.Generator().manual_seed(1)
    changed = []
    for leaf in rows:
        where = torch.rand(leaf.shape, generator=random, device="cpu") < 0.1
        if leaf.is_floating_point():
            values = torch.tensor(_ODD, dtype=leaf.dtype, device="cpu")
            chosen = values[torch.randint(len(_ODD), leaf.shape, generator=random, device="cpu")]
            changed.append(leaf.where(~where.to(leaf.device), chosen.to(leaf.device)))
        elif leaf.dtype == torch.bool:
            changed.append(leaf)
        else:
            most = min(torch.iinfo(leaf.dtype).max, 10_000)
            wide = torch.randint(most, leaf.shape, generator=random, device="cpu")
            changed.append(wide.to(leaf.dtype).to(leaf.device))
    return tuple(changed)


def _depends_elsewhere(
    model: nn.Module, inputs: Sequence[Tensor], size: int, what: str, made_up: Change | None
) -> bool:
    """Whether a row's output changes with the batch around it at other weights, or on odd rows;
    `model` is a copy.
    """
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.copy_(perturbed(parameter))
    changes = [made_up] if made_up else [None, _odd_rows]
    depends = False
    for change in changes:
        # A model may refuse such rows, as an embedding does.
        with suppress(RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            depends = depends or _rows_depend_on_others(model, inputs, size, what, change)
    for parameter, value in zip(model.parameters(), before, strict=True):
        parameter.copy_(value)
    return depends


def _rows_depend_on_others(
    model: nn.Module, inputs: Sequence[Tensor], size: int, what: str, made_up: Change | None
) -> bool:
    """Whether a row's output changes with the batch around it."""
    batch = made_up_rows(inputs, len(inputs), size)
    batch = made_up(batch) if made_up else batch
    out = _run_seeded(model, batch, 0)
    if not isinstance(out, Tensor) or out.shape[:1] != (size,):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        value = "one value for each example, such as with reduction='none'"
        expected = "one output tensor with a row for each example" if what == "the model" else value
        raise NotPerExample(f"{what} turns a batch of {size} into {shape}: expected {expected}")
    draws = not _same(out, _run_seeded(model, batch, 1))
    for row in sorted({0, 1, 2, min(3, size - 1), size // 2, size - 1}):
        if draws:
            # Its random numbers depend on the batch's shape: keep the shape, and change all other
            # rows.
            others = [leaf.flip(0).roll(1, 0) for leaf in batch]
            for other, leaf in zip(others, batch, strict=True):
                other[row] = leaf[row]
            single = _run_seeded(model, others, 0)[row]
        else:
            single = _run_seeded(model, [leaf[row : row + 1] for leaf in batch], 0)[0]
        if not _same(out[row], single):
            return True
    return False


def _run_seeded(model: nn.Module, batch: Sequence[Tensor], seed: int) -> Any:
    torch.manual_seed(seed)
    device = next((leaf.device for leaf in batch), PROCESSOR)
    with looking_at(device):
        return model(*(leaf.clone() for leaf in batch))  # it may write into its input


def _same(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    rounding = 1e-9 if one.dtype == torch.float64 else 1e-4
    return torch.allclose(one, other, rtol=0, atol=rounding * scale + 1e-300, equal_nan=True)


def made_up_batch(x: Tensor, y: Tensor, size: int = 6) -> tuple[Tensor, Tensor]:
    """Made-up rows of the shape and type of `x` and `y`: of many scales, and with different
    targets.
    """
    rows, targets = made_up_rows((x, y), 1, size)
    return rows, targets


def made_up_rows(like: Sequence[Tensor], inputs: int, size: int = 6) -> tuple[Tensor, ...]:
    """A made-up batch of tensors of the shapes and types of `like`, of which the first `inputs` are
    inputs.
    """
    made_up = torch.Generator().manual_seed(0)
    parts = [_make_up_inputs(leaf, size, made_up) for leaf in like[:inputs]]
    parts += [_make_up_targets(leaf, size, made_up) for leaf in like[inputs:]]
    return tuple(
        part.to(leaf.dtype).to(leaf.device) for part, leaf in zip(parts, like, strict=True)
    )


def _make_up_inputs(x: Tensor, size: int, made_up: torch.Generator) -> Tensor:
    if not x.is_floating_point():
        return torch.randint(2, (size, *x.shape[1:]), generator=made_up, device="cpu")
    scales = torch.tensor([1.0, 0.0, 300.0, 0.01, 3.0, 1e-3], device="cpu").repeat(size // 6 + 1)[
        :size
    ]
    return torch.randn((size, *x.shape[1:]), generator=made_up, device="cpu") * scales.view(
        -1, *[1] * (x.dim() - 1)
    )


def _make_up_targets(y: Tensor, size: int, made_up: torch.Generator) -> Tensor:
    if y.is_floating_point():
        return torch.rand((size, *y.shape[1:]), generator=made_up, device="cpu")
    return (torch.arange(size, device="cpu").view(-1, *[1] * (y.dim() - 1)) % 2).expand(
        size, *y.shape[1:]
    )


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout off for the block: two computations would draw different masks. All other modes stay
    as they are.
    """
    kind = nn.modules.dropout._DropoutNd
    switched = [
        module for module in model.modules() if isinstance(module, kind) and module.training
    ]
    for module in switched:
        module.training = False
    try:
        yield
    finally:
        for module in switched:
            module.training = True


def layer_of(error: BaseException, model: nn.Module) -> str:
    """In which layer of the model an error was raised, in words; empty if in none, or by the model
    as a whole.
    """
    names, layer, trace = (
        {id(module): name for name, module in model.named_modules()},
        "",
        error.__traceback__,
    )
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if name := names.get(id(owner), ""):
            layer = f" (in layer {name!r}, a {type(owner).__name__})"
        trace = trace.tb_next
    return layer


class Structure:
    """What a model is made of: modules, trained parameters and names of parts and buffers, to be
    compared later.

    A module that is put in after a run began is in no check of it, and what it keeps of rows would
    be published. Hooks and forwards may change, but then its operations are others than those that
    were looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = _modules(model)
        trained = [
            parameter
            for module in modules
            for parameter in module._parameters.values()
            if parameter is not None
        ]
        self._parts = [*modules, *(parameter for parameter in trained if parameter.requires_grad)]
        # Of its parts and of its buffers, which are not None
        self._names = [
            (
                *module._modules,
                None,
                *(name for name, it in module._buffers.items() if it is not None),
            )
            for module in modules
        ]
        self._forwards = [
            vars(module).get("forward", getattr(type(module), "forward", None))
            for module in modules
        ]
        # By numbers, of which none comes twice
        self._hooks = [
            (
                *module._forward_pre_hooks,
                None,
                *module._forward_hooks,
                None,
                *module._backward_pre_hooks,
                None,
                *module._backward_hooks,
            )
            for module in modules
        ]

    def now(self, model: nn.Module, *, alone: bool = True) -> Structure:
        """What the model is made of now; the same object if nothing changed.

        Raises:
            BadInput: its modules, buffers or trained parameters are not the same, not only equal;
                or hooks or forwards changed, and this process is not `alone`, so that its
                operations can't be looked at again.
        """
        current = Structure(model)
        if current._names != self._names or not _same_objects(current._parts, self._parts):
            raise BadInput(
                "the model's modules, buffers or trainable parameters are not those that it had "
                "when the run began: begin a new run after parts were replaced, frozen or unfrozen"
            )
        if current._hooks == self._hooks and _same_objects(current._forwards, self._forwards):
            return self
        if not alone:
            raise BadInput(
                "a hook or a forward was put into the model, or taken out, after the run began: "
                "with several processes it is not looked at again. Do that before the run begins"
            )
        return current


def _modules(model: nn.Module) -> list[nn.Module]:
    """Each module once: as `modules()`, in another order, in half the time, which small models
    spend in every step.
    """
    modules, met = [model], {id(model)}
    for module in modules:  # to which those within are added
        for child in module._modules.values():
            if child is not None and id(child) not in met:
                met.add(id(child))
                modules.append(child)
    return modules


def _same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    return list(map(id, one)) == list(map(id, other))
