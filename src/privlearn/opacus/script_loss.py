"""The loss of a script, taken apart: from one number for a batch to one value for each example.

A mean hides what couples rows: one with class weights, or over tokens, divides by a number that
other rows decide. So means are recognised by name, and what they are means of is computed for each
example, and averaged over its own values alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from privlearn.errors import NotPerExample
from privlearn.opacus.recorded import Entry, Mark, Recorded, Ref, Turn
from privlearn.opacus.strange_attributes import RETURNED

#: What may be done with a mean over the batch, by name: the signs of both sides of a sum.
_SIGNS = {"add": (1, 1), "sub": (1, -1), "subtract": (1, -1), "rsub": (-1, 1), "__rsub__": (-1, 1)}
_MULTIPLY, _DIVIDE = {"mul", "multiply"}, {"div", "true_divide", "divide"}
_SAME = {"clone", "contiguous", "squeeze", "float", "double"}
_FIX = (
    "Write loss = criterion(output, target) with one of PyTorch's, such as nn.CrossEntropyLoss(), "
    "or one value for each example and .mean()"
)


@final
@dataclass(frozen=True)
class Term:
    """A part of a loss: a factor, times the mean over the batch of an output of an entry.

    Attributes:
        factor: a number.
        ref: the output; of a loss of torch.nn.functional what it is with reduction="none".
        summed: whether an example's own values are added up, not averaged.
        of_model: whether it is a loss that the model computes itself: one number for a batch, which
            is asked for one row at a time.
    """

    factor: float
    ref: Ref
    summed: bool = False
    of_model: bool = False


@final
class ScriptLoss:
    """A function of (model, batch) to one value for each example: what a script computed for a
    whole batch.

    Attributes:
        tape: what it computes from the batch.
        terms: what it adds up of this.
        late: whether a number was read out of a batch before all of it was computed.
        is_of_model: whether a part of it is a number that the model computes itself.
    """

    def __init__(self, tape: list[Entry], terms: list[Term], *, late: bool) -> None:
        self.tape, self.terms, self.late = tape, terms, late
        self.is_of_model = any(term.of_model for term in terms)
        self.__qualname__ = "loss of a script"

    def same_as(self, other: ScriptLoss, *, numbers: bool = True) -> bool:
        """Whether both compute the same; without `numbers`, up to numbers and tensors that are no
        rows'.
        """
        if len(self.tape) != len(other.tape) or len(self.terms) != len(other.terms):
            return False
        entries = zip(self.tape, other.tape, strict=True)
        terms = zip(self.terms, other.terms, strict=True)
        return all(
            one.function == two.function
            and one.structure == two.structure
            and all(
                _equal(*pair, numbers=numbers) for pair in zip(one.values, two.values, strict=True)
            )
            for one, two in entries
        ) and all(
            one == (two if numbers else replace(two, factor=one.factor)) for one, two in terms
        )

    def mixes_rows(self) -> bool:
        """Whether rows are picked by constant numbers, as mixup picks them."""
        return any(map(_picks_rows, self.tape))

    def __deepcopy__(self, memo: object) -> ScriptLoss:
        return self

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """Shape (batch,)."""
        leaves = tree_leaves(batch)
        rows = len(leaves[0])
        if self.is_of_model and rows > 1:
            single = [[leaf[row : row + 1] for leaf in leaves] for row in range(rows)]
            return torch.cat([self._parts(model, row).sum(0) for row in single])
        return self._parts(model, leaves).sum(0)

    def require_mean(self, model: nn.Module, like: Sequence[Tensor]) -> None:
        """Compare a loss that the model computes itself, of a made-up batch, with the mean of its
        rows' losses.

        Args:
            model: is not changed.
            like: the tensors of rows, of which shapes and types are looked at.

        Raises:
            NotPerExample: they differ: a row's loss then depends on the rows beside it.
        """
        generator = torch.Generator().manual_seed(0)
        batch = [_make_up_rows(leaf, generator) for leaf in like]
        was_training = model.training
        model.eval()  # or dropout would make a difference
        try:
            with torch.no_grad():
                mean, of_batch = self(model, batch).mean(), self._parts(model, batch).mean(1).sum()
        except Exception:
            return  # the run tries made-up rows of its own, and says what is wrong
        finally:
            model.train(was_training)
        if not torch.allclose(mean, of_batch, rtol=1e-3, atol=1e-6):
            raise NotPerExample(
                "the loss that the model computes for several rows is not the mean of what it "
                f"computes for each alone: rows depend on each other in it. {_FIX}"
            )

    def _parts(self, model: Any, leaves: list[Tensor]) -> Tensor:
        """The value of each term for each example, shape (terms, batch); of a loss of the model, of
        all rows as one.
        """
        rows = len(leaves[0])
        dtype = next(
            (weight.dtype for weight in model.parameters() if weight.is_floating_point()),
            torch.float32,
        )
        values: list[list[Any]] = []
        for entry in self.tape:
            values.append(_compute(entry, model, leaves, values, dtype))
        each = []
        for term in self.terms:
            output = values[term.ref.entry][term.ref.output]
            output = output.expand(rows, 1) if term.of_model else output.reshape(rows, -1)
            output = output if output.is_floating_point() else output.to(dtype)
            each.append(term.factor * (output.sum(1) if term.summed else output.mean(1)))
        return torch.stack(each)


def taken_apart(turn: Turn, loss: Recorded, gradient: Any) -> ScriptLoss:
    """The loss of each example, of what `backward` is called of.

    Args:
        turn: with its tape.
        loss: one number for the batch.
        gradient: of `backward`: none, or zeros.

    Raises:
        NotPerExample: nothing says how it is made of examples, or it is a sum over the batch.
    """
    if gradient is not None and (isinstance(gradient, Recorded) or bool(gradient.any())):
        raise NotPerExample(
            "backward was given a gradient, a weight for each value: what weighs examples has to "
            "be part of the loss. Multiply the loss by the weights, and call .mean().backward()"
        )
    if loss.numel() != 1 and gradient is None:
        raise NotPerExample(
            f"backward was called of {loss.numel()} values: expected one number, the mean over the "
            f"batch. {_FIX}"
        )
    terms = list(_terms(turn.tape, loss.ref, 1.0)) if gradient is None else [Term(0.0, loss.ref)]
    needed = sorted(_ancestors(turn.tape, [term.ref.entry for term in terms]))
    places = {old: new for new, old in enumerate(needed)}

    def move(value: Any) -> Any:
        return Ref(places[value.entry], value.output) if isinstance(value, Ref) else value

    reduced = {term.ref.entry for term in terms}
    tape = [_drop_reduction(turn.tape[old]) if old in reduced else turn.tape[old] for old in needed]
    tape = [replace(entry, values=[move(value) for value in entry.values]) for entry in tape]
    _require_of_rows(tape)
    late = any(turn.tape[number].late for number in _ancestors(turn.tape, [loss.ref.entry]))
    return ScriptLoss(tape, [replace(term, ref=move(term.ref)) for term in terms], late=late)


def _require_of_rows(tape: list[Entry]) -> None:
    """Refuse what is computed from anything but the batch, the model's output and constants."""
    if not any(entry.function is None for entry in tape):
        values = [value for entry in tape for value in entry.values]
        if any(isinstance(value, nn.Parameter) for value in values):
            raise NotPerExample(
                "the loss was computed by parameters, and not by the model that make_private "
                "returned: another name of the model, or a part of it, was called. Call the "
                f"returned one: {RETURNED}"
            )
        raise NotPerExample(
            "the loss does not depend on what the model that make_private returned gives for a "
            "batch of its loader: copies in numpy and outputs made under no_grad are cut off. "
            f"{_FIX}"
        )
    for entry in tape:
        for value in entry.values:
            if isinstance(value, Mark) and value is not Mark.ROWS:
                raise NotPerExample(
                    f"the loss holds {value.value} ({entry.name}): its values can't be computed "
                    "again for each example. Compute all of the loss anew from the batch, without "
                    "writing into tensors"
                )
            if _is_parameter(value):
                raise _of_parameters(entry.name)


def _is_parameter(value: Any) -> bool:
    """Whether it is a parameter, or computed from parameters alone."""
    return isinstance(value, Tensor) and value.requires_grad


def _of_parameters(name: str) -> NotPerExample:
    return NotPerExample(
        f"the loss holds parameters beside the model's output ({name}), such as a norm of the "
        "weights: its gradient belongs to no example. Use the optimizer's weight_decay=, and call "
        "the model as a whole"
    )


def _picks_rows(entry: Entry) -> bool:
    """Whether an operation takes rows by numbers that are none of the batch's."""
    if entry.name not in ("__getitem__", "index_select"):
        return False
    args, kwargs = _arguments(entry)
    index = args[-1] if len(args) > 1 else kwargs.get("index")
    first = index[0] if isinstance(index, tuple) and index else index
    return isinstance(args[0], Ref) and getattr(first, "ndim", 0) == 1


def mixing() -> NotPerExample:
    """The error for a loss that mixes rows."""
    return NotPerExample(
        "the loss picks rows of the batch by numbers, such as randperm(len(x)): mixup and CutMix "
        "make one example of two rows, whose gradients can't be clipped apart. Change each row by "
        "itself, in the data set, or use label_smoothing="
    )


def _terms(tape: list[Entry], ref: Ref, factor: float) -> Iterator[Term]:
    """The parts of a number, each a mean or a sum over the batch."""
    entry = tape[ref.entry]
    name, (args, kwargs) = entry.name, _arguments(entry)
    operand = args[0] if args else kwargs.get("input")
    sides = [side for side in args[:2] if isinstance(side, Ref)]
    if _is_loss(entry):
        if _bound(entry)["reduction"] == "sum":
            raise _sum()
        yield Term(factor, ref, summed=_bound(entry)["reduction"] == "batchmean")
    elif (
        name == "mean"
        and isinstance(operand, Ref)
        and len(args) < 2
        and not {"dim", "axis"} & set(kwargs)
    ):
        yield from _of_mean(tape, operand, factor)
    elif name == "sum":
        raise _sum()
    elif (
        name in _SIGNS
        and not kwargs
        and all(isinstance(side, Ref) or _is_number(side) for side in args)
    ):
        for side, sign in zip(args, _SIGNS[name], strict=True):
            if isinstance(side, Ref):
                yield from _terms(tape, side, sign * factor)
    elif name in _SIGNS and any(map(_is_parameter, args)):
        raise _of_parameters(name)
    elif (
        name in _MULTIPLY | _DIVIDE
        and len(sides) == 1
        and not (name in _DIVIDE and operand is not sides[0])
    ):
        number = args[1] if args[0] is sides[0] else args[0]
        if not _is_number(number):
            raise _unknown(name)
        yield from _terms(
            tape, sides[0], factor / float(number) if name in _DIVIDE else factor * float(number)
        )
    elif name == "neg":
        yield from _terms(tape, operand, -factor)
    elif name in _SAME and isinstance(operand, Ref):
        yield from _terms(tape, operand, factor)
    elif entry.function is None:
        yield Term(factor, ref, of_model=True)
    else:
        raise _unknown(name)


def _of_mean(tape: list[Entry], ref: Ref, factor: float) -> Iterator[Term]:
    """The mean of a sum is the sum of the means, whichever shapes were broadcast: each part is
    taken by itself, so that no example is beside another.
    """
    entry = tape[ref.entry]
    args, kwargs = _arguments(entry) if entry.name in _SIGNS else ((), {})
    sides = [side for side in args if isinstance(side, Ref)]
    if len(args) != 2 or kwargs or not all(side in sides or _is_number(side) for side in args):
        yield Term(factor, ref)
        return
    for side, sign in zip(args, _SIGNS[entry.name], strict=True):
        if isinstance(side, Ref):
            yield from _of_mean(tape, side, sign * factor)


def _sum() -> NotPerExample:
    return NotPerExample(
        "the loss is a sum over the batch: expected a mean, of which the learning rate does not "
        "depend on the batch size. Use reduction='mean', or .mean() in place of .sum() / "
        "len(batch), whose divisor depends on who was drawn"
    )


def _unknown(name: str) -> NotPerExample:
    return NotPerExample(
        f"the loss is one number, made by {name or 'an operation'}, which does not say whose part "
        f"is what: a mean may hide what couples examples. {_FIX}",
        operation=name,
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.requires_grad
    return isinstance(value, int | float)


def _arguments(entry: Entry) -> tuple[Any, Any]:
    args, kwargs = tree_unflatten(entry.values, entry.structure)
    return args, kwargs


def _bound(entry: Entry) -> dict[str, Any]:
    """The arguments of a function of torch.nn.functional, by name."""
    args, kwargs = _arguments(entry)
    bound = inspect.signature(entry.function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _is_loss(entry: Entry) -> bool:
    """Whether it is a loss of torch.nn.functional that takes a mean or a sum."""
    function: Any = entry.function
    if getattr(nn.functional, entry.name, None) is not function or not inspect.isfunction(function):
        return False
    return (
        "reduction" in inspect.signature(function).parameters
        and _bound(entry)["reduction"] != "none"
    )


def _drop_reduction(entry: Entry) -> Entry:
    """A loss of torch.nn.functional without its reduction; any other entry as it is."""
    if not _is_loss(entry):
        return entry
    named = {
        name: value
        for name, value in _bound(entry).items()
        if name not in ("size_average", "reduce")
    }
    values, structure = torch.utils._pytree.tree_flatten(((), {**named, "reduction": "none"}))
    return replace(entry, values=values, structure=structure)


def _make_up_rows(like: Tensor, generator: torch.Generator) -> Tensor:
    """Three rows of this shape and type; whole numbers are 0 and 1."""
    shape = (3, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape, generator=generator, device="cpu").to(like)
    return torch.randint(0, 2, shape, generator=generator, device="cpu").to(like)


def _ancestors(tape: list[Entry], waiting: list[int]) -> set[int]:
    needed: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += [value.entry for value in tape[number].values if isinstance(value, Ref)]
    return needed


def _equal(one: Any, two: Any, *, numbers: bool) -> bool:
    if type(one) is not type(two):
        return False
    if not numbers and isinstance(one, Tensor | int | float):
        return True
    if isinstance(one, Tensor):
        return (one.shape, one.dtype) == (two.shape, two.dtype) and torch.equal(one, two)
    return one is two or bool(one == two)


def _compute(
    entry: Entry, model: Any, leaves: list[Tensor], values: list[list[Any]], dtype: torch.dtype
) -> list[Any]:
    """The outputs of an entry for other rows; floating point values in the type of the model's
    parameters.
    """
    if isinstance(entry.function, int):
        return [leaves[entry.function]]

    def decode(value: Any) -> Any:
        match value:
            case Ref():
                return values[value.entry][value.output]
            case Mark.ROWS:
                return len(leaves[0])
            case Tensor():
                return value.to(dtype) if value.is_floating_point() else value
            case torch.float32:
                return dtype
        return value

    args, kwargs = tree_unflatten([decode(value) for value in entry.values], entry.structure)
    if entry.function is Tensor.float:
        return [args[0].to(dtype)]
    return tree_leaves((model if entry.function is None else entry.function)(*args, **kwargs))
