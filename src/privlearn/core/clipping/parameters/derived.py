"""Some tensors are computed from trained parameters alone: normalised weights, looked-up positions,
1 + a scale.

They are the same for all examples, and to the rules of operations they are parameters. Each
example's gradient of one of them is handed on to the parameters that it was computed from: by
PyTorch's own backward pass under `vmap`, or by a rule of ours where there is one
(`standardisation`, and what only changes shapes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from privlearn.core.clipping.per_example import Dense, ExampleGradients, SparseRows
from privlearn.core.clipping.separation.program import asks_for_all, asks_for_any, note_question

if TYPE_CHECKING:
    from privlearn.core.clipping.parameters.standardisation import Standardisation

#: What tensors are looked for in.
_NESTS = (list, tuple)
#: The shapes of the tensors that a call was given, and of those that it gave.
Shapes = tuple[list[tuple[int, ...]], list[tuple[int, ...]]]


def tensors_in(*values: Any) -> list[Tensor]:
    """The tensors among some arguments or results, and in lists, tuples and dictionaries of
    them.
    """
    tensors: list[Tensor] = []
    _gather(values, tensors)
    return tensors


def _gather(values: Iterable[Any], tensors: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, _NESTS):
            _gather(value, tensors)
        elif isinstance(value, dict):
            _gather(value.values(), tensors)


@final
class CallShapes(TorchFunctionMode):
    """Writes down the shapes of every call; `trace` tells sequences of calls apart.

    Args:
        all_hold: the answer to questions whether something holds for all of the batch.
    """

    def __init__(self, *, all_hold: bool = False) -> None:
        super().__init__()
        self._all_hold = all_hold
        self.calls: list[Shapes] = []
        self.trace = 0

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func` as it is."""
        name = getattr(func, "__name__", "")
        self.trace = hash((self.trace, name))
        if asks_for_all(name, args):
            return self._all_hold
        if asks_for_any(name, args):
            return False
        before = [tuple(t.shape) for t in tensors_in(args, kwargs)]
        out = func(*args, **(kwargs or {}))
        note_question(name, args, out)
        self.calls.append((before, [tuple(t.shape) for t in tensors_in(out)]))
        return out


def shared_calls(one: CallShapes, other: CallShapes) -> list[bool]:
    """Which calls have nothing to do with the batch: those whose tensors have the same shapes at
    two batch sizes.
    """
    return [a == b and bool(a[0]) for a, b in zip(one.calls, other.calls, strict=False)]


#: The arguments of `torch.nn.functional.embedding`.
_EMBEDDING = (
    "input",
    "weight",
    "padding_idx",
    "max_norm",
    "norm_type",
    "scale_grad_by_freq",
    "sparse",
)
#: Calls that give the same numbers in the same order.
_RESHAPES = (
    torch.reshape,
    torch.flatten,
    torch.Tensor.reshape,
    torch.Tensor.reshape_as,
    torch.Tensor.view,
    torch.Tensor.view_as,
    torch.Tensor.flatten,
)
_TRANSPOSES = (torch.t, torch.Tensor.t, torch.Tensor.T.__get__, torch.Tensor.mT.__get__)  # type: ignore[attr-defined]


@final
class Derived:
    """What the calls of one batch made of trained parameters alone.

    Args:
        trained: the trained parameters.
    """

    def __init__(self, trained: Sequence[Tensor]) -> None:
        self._trained = {id(p): p for p in trained}
        #: Each with the parameters it came from: holding it keeps its identity its own.
        self._tensors: dict[int, tuple[Tensor, set[int]]] = {}
        self._looked_up: dict[int, tuple[Tensor, Tensor, int | None]] = {}
        self._transposed: dict[int, Tensor] = {}
        self._reshaped: dict[int, Tensor] = {}
        self._standardised: dict[int, Standardisation] = {}
        self._leaves: dict[int, Tensor] = {}

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._tensors

    def roots(self, tensor: object) -> set[int]:
        """The identities of the trained parameters that a tensor is or was computed from."""
        if id(tensor) in self._trained:
            return {id(tensor)}
        return self._tensors[id(tensor)][1] if id(tensor) in self._tensors else set()

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Take note of a call that has nothing to do with the batch, and of what it gave."""
        roots = set[int]().union(*(self.roots(t) for t in tensors_in(args, kwargs)))
        if not roots:
            return
        # written into, if nothing is given
        for tensor in tensors_in(args[:1] if out is None else out):
            self._reshaped.pop(id(tensor), None)  # it may have been written into
            self._standardised.pop(id(tensor), None)
            if tensor.requires_grad and id(tensor) not in self._trained:
                self._tensors[id(tensor)] = tensor, roots
        if id(out) not in self._tensors:
            return
        if func is F.embedding:
            named = dict(zip(_EMBEDDING, args, strict=False)) | kwargs
            odd = (
                any(named.get(name) for name in _EMBEDDING[-2:])
                or named.get("max_norm") is not None
            )
            if id(named["weight"]) in self._trained and not odd:
                self._looked_up[id(out)] = named["input"], named["weight"], named.get("padding_idx")
        if (
            func in _RESHAPES
            and out is not args[0]
            and (args[0].numel(), args[0].dtype) == (out.numel(), out.dtype)
        ):
            self._reshaped[id(out)] = args[0]
        if func is F.batch_norm:
            # for standardised weights alone
            from privlearn.core.clipping.parameters.standardisation import Standardisation

            if (known := Standardisation.of(*args, **kwargs)) is not None:
                self._standardised[id(out)] = known
        if func in _TRANSPOSES and args[0].dim() == 2 and id(args[0]) in self._trained:
            self._transposed[id(out)] = args[0]

    def leaf(self, tensor: Tensor) -> Tensor:
        """What autograd is given in place of a derived tensor, so that no gradient flows on from it
        by itself.
        """
        return (
            self._leaves.setdefault(id(tensor), tensor.detach().requires_grad_())
            if tensor in self
            else tensor
        )

    @property
    def leaves(self) -> list[Tensor]:
        """All of these, which backward passes have to reach."""
        return list(self._leaves.values())

    def transposed(self, tensor: object) -> Tensor | None:
        """The parameter that a tensor is the transpose of."""
        return self._transposed.get(id(tensor))

    def hand_on(
        self,
        uses: Callable[[Tensor], ExampleGradients | None],
        keep: Callable[[Tensor, slice | None, ExampleGradients], None],
    ) -> None:
        """Give `keep` each example's gradients of parameters, for those of derived tensors that
        `uses` brought.
        """
        ends, flows = [], []
        for tensor, _ in list(self._tensors.values()):
            if (gradients := uses(tensor)) is None:
                continue
            if id(tensor) in self._looked_up:
                keep(
                    self._looked_up[id(tensor)][1],
                    None,
                    self._rows(tensor, self._form(tensor, gradients)),
                )
                continue
            for end, reached in self._back(tensor, gradients):
                if id(end) in self._trained:
                    # Other kinds add up in the shape that the operation had, which may not be the
                    # parameter's.
                    any_shape = getattr(reached, "any_shape", False)
                    keep(end, None, reached if any_shape else Dense(self._form(end, reached)))
                elif end.requires_grad:
                    ends.append(end)
                    flows.append(self._form(end, reached))
        if ends:
            gradients_of = backward_by_example(ends, list(self._trained.values()), flows)
            for parameter, gradient in zip(self._trained.values(), gradients_of, strict=True):
                if gradient is not None:
                    keep(parameter, None, Dense(gradient))

    @staticmethod
    def _form(tensor: Tensor, gradients: ExampleGradients) -> Tensor:
        return gradients.form().to(tensor.dtype).reshape(-1, *tensor.shape)

    def _back(
        self, tensor: Tensor, gradients: ExampleGradients
    ) -> Iterator[tuple[Tensor, ExampleGradients]]:
        """Gradients as far back as there are rules for. Where shapes alone change, numbers keep
        their order.
        """
        if (before := self._reshaped.get(id(tensor))) is not None:
            yield from self._back(before, gradients)
        elif (through := self._standardised.get(id(tensor))) is not None:
            for source, flow in through.taken_back_by_example(gradients):
                yield from self._back(source, flow)
        else:
            yield tensor, gradients

    def _rows(self, tensor: Tensor, formed: Tensor) -> SparseRows:
        """The gradients of an embedding that every example looks the same rows up in."""
        rows, weight, padding = self._looked_up[id(tensor)]
        tokens = rows.flatten().expand(len(formed), -1)
        g = formed.reshape(len(formed), -1, weight.shape[1])
        if padding is not None:
            g = g * (tokens != padding % len(weight))[..., None]
        return SparseRows(tokens, g, weight.shape)


def backward_by_example(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], flows: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Each example's gradients of `inputs`, shape (batch, *input), for its gradients of `outputs`,
    (batch, *output).
    """
    try:
        return torch.autograd.grad(
            outputs, inputs, flows, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
    except RuntimeError:  # an operation that vmap knows no backward pass of
        rows = [
            torch.autograd.grad(outputs, inputs, flow, retain_graph=True, allow_unused=True)
            for flow in zip(*flows, strict=True)
        ]
        return [
            None if parts[0] is None else torch.stack([part for part in parts if part is not None])
            for parts in zip(*rows, strict=True)
        ]
