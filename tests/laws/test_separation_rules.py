"""Each rule on the axis of the examples, on PyTorch's own samples of each operation: no entry that
is marked as another example's moves when one example changes.

The samples are those that PyTorch tests its operations with. The examples are put along each
dimension in turn, also of a copy that lies in memory in another order, and in all arguments of one
shape at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.separation import tracker as tracking
from privlearn.core.clipping.separation.axis_rules import RULES, Denied, ExampleAxis
from privlearn.core.clipping.separation.program import Constants
from privlearn.core.clipping.separation.tracker import AxisTracker, axis_of

opinfo = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations", reason="PyTorch's samples"
)

SAMPLES = 6  # of each operation


@cache
def operations() -> dict[str, Any]:
    torch.manual_seed(0)
    return {f"{own.name}.{own.variant_test_name}".rstrip("."): own for own in opinfo.op_db}


class Watched(AxisTracker):
    """Keeps the operations whose rules answered, and all results that hold examples."""

    def __init__(self, leaves: list[Tensor], periods: list[int], examples: int) -> None:
        super().__init__(Constants(), [], examples)
        self.ruled: set[str] = set()
        for leaf, period in zip(leaves, periods, strict=True):
            tracking._storage(leaf).mark = tracking.MemoryMark(self._number, period)

    def _settle(self, call: Any, found: Any) -> Any:
        answer = super()._settle(call, found)
        if any(isinstance(own, tuple) for own in answer):
            self.ruled.add(call.plain)
        return answer


def copied(tensor: Tensor, order: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy in memory of its own; `order` says which dimensions lie outside."""
    return order(order(tensor).contiguous())


def plain(tensor: Tensor) -> Tensor:
    return tensor


def turned(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1)


def placed(sample: Any) -> Iterator[tuple[list[Tensor], Any, set[int], int, Any]]:
    """The tensors of a sample, the tree that they are in, and each choice of those that hold
    examples, and where.
    """
    flat, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [at for at, value in enumerate(flat) if isinstance(value, Tensor)]
    for first in tensors[:2]:
        like = flat[first]
        same = [at for at in tensors if flat[at].shape == like.shape]
        for dim in range(like.dim()):
            if like.shape[dim] >= 2:
                for order in (plain, turned) if like.dim() > 1 else (plain,):
                    yield flat, tree, {first}, dim, order
                    if len(same) > 1:
                        yield flat, tree, set(same), dim, order


def run(own: Any, flat: list[Any], tree: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    given, args, kwargs = tree_unflatten(flat, tree)
    return own.op(given, *args, **kwargs)


def changed(tensor: Tensor, dim: int, other: Tensor) -> Tensor:
    """`tensor` with the first example along `dim` replaced."""
    tensor.narrow(dim, 0, 1).copy_(other)
    return tensor


def moved(one: Tensor, two: Tensor, period: int, examples: int) -> bool:
    """Whether entries of examples but the first differ."""
    axis = axis_of(one, period, examples)
    if axis is None:
        return False
    parts = [
        t.unflatten(axis.dim, (axis.outer, examples, axis.inner)).narrow(
            axis.dim + 1, 1, examples - 1
        )
        for t in (one, two)
    ]
    if not parts[0].is_floating_point() and not parts[0].is_complex():
        return not torch.equal(*parts)
    return not torch.allclose(*parts, rtol=1e-6, atol=1e-8, equal_nan=True)


def violations(name: str) -> tuple[list[str], set[str]]:
    """Where a mark is wrong, and the operations whose rules kept the examples of a sample apart."""
    own, ruled, wrong = operations()[name], set[str](), []
    dtype = torch.float64 if own.supports_dtype(torch.float64, "cpu") else torch.float32
    samples = list(own.sample_inputs("cpu", dtype, requires_grad=False))[::1][:40]
    for sample in samples[:: max(1, len(samples) // SAMPLES)]:
        if not isinstance(sample.input, Tensor | list | tuple):
            continue
        for flat, tree, held, dim, order in placed(sample):
            torch.manual_seed(1)
            source = [
                copied(v, order if at in held else plain)
                if isinstance(v, Tensor) and v.numel()
                else v
                for at, v in enumerate(flat)
            ]
            results, marks = [], []
            for again in (False, True):
                given = [v.clone() if isinstance(v, Tensor) else v for v in source]
                for at in held:
                    if again:
                        row = given[at].narrow(dim, 0, 1)
                        other = (
                            -2 * row + 1 if row.is_floating_point() else row.flip(-1 if dim else 0)
                        )
                        changed(given[at], dim, other)
                examples = given[min(held)].shape[dim]
                leaves = [given[at] for at in held]
                periods = [leaf.stride(dim) * leaf.element_size() for leaf in leaves]
                watched = Watched(leaves, periods, examples)
                for value in given:
                    if isinstance(value, Tensor):
                        watched.enter(value)
                try:
                    with watched:
                        out = run(own, given, tree)
                except Exception:
                    break
                tensors = [
                    t
                    for t in tree_flatten(out)[0]
                    if isinstance(t, Tensor) and t.layout is torch.strided
                ]
                results.append(tensors)
                marks.append([watched._known(t) for t in tensors])
                ruled |= watched.ruled
            if len(results) < 2:
                continue
            for one, two, mark in zip(*results, marks[0], strict=True):
                if mark is None or mark.met or not one.numel() or one.shape != two.shape:
                    continue
                try:
                    if not mark.period:
                        same = torch.equal(one.nan_to_num(), two.nan_to_num())
                        if not same and "rand" not in name and "empty" not in name:
                            wrong.append(
                                f"{name}: a constant moves with an example along {dim} of {held}"
                            )
                    elif moved(one, two, mark.period, examples):
                        wrong.append(f"{name}: another example moves, along {dim} of {held}")
                except Denied:
                    continue
    return wrong, ruled


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(operations()))
def test_other_examples_stay_where_a_rule_says_that_they_do(name: str) -> None:
    try:
        wrong, _ = violations(name)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"PyTorch's own samples can't be made here: {error}")
    assert not wrong, wrong[:3]


#: Operations of PyTorch's samples whose rules have to answer, one for each kind of rule.
KINDS = {
    "mul": "mul",
    "sum": "sum",
    "softmax": "_softmax",
    "renorm": "renorm",
    "nn.functional.avg_pool2d": "avg_pool2d",
    "nn.functional.layer_norm": "native_layer_norm",
    "nn.functional.conv2d": "convolution",
    "nn.functional.batch_norm": "native_batch_norm",
    "nn.functional.linear": "addmm",
    "bmm": "bmm",
    "nn.functional.embedding": "embedding",
    "cat": "cat",
    "stack": "stack",
    "index_select": "index_select",
    "topk": "topk",
    "index_add": "index_add",
    "nn.functional.nll_loss": "nll_loss_forward",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_rule_answers_on_samples(name: str) -> None:
    wrong, ruled = violations(name)
    assert not wrong, wrong[:3]
    assert KINDS[name] in ruled, sorted(ruled)


class FirstDimension:
    """The planted bug of a category: its operations lose sight of what they work along."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule

    def __call__(self, call: Any) -> Any:
        labels = self._rule(call)
        return labels if isinstance(labels, list) else replace(labels, along=frozenset())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["cumsum", "softmax", "flip", "cummax", "_batch_norm_with_update"])
def test_a_rule_that_loses_what_it_works_along_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operation, rule in list(RULES.items()):
        monkeypatch.setitem(RULES, operation, FirstDimension(rule))
    tracking._operation.cache_clear()
    try:
        assert violations(name)[0]
    finally:
        tracking._operation.cache_clear()


def test_an_operation_without_a_rule_is_denied() -> None:
    """Whatever PyTorch or an extension adds: it can't be computed with examples in it."""

    @torch.library.custom_op("privlearn_tests::shifted", mutates_args=())
    def shifted(x: Tensor) -> Tensor:
        return x - x.mean()

    leaf = torch.randn(4, 3)
    watched = AxisTracker(Constants(), [leaf], 4)
    with watched:
        out = shifted(leaf)
        with pytest.raises(NotLayerwise, match="no rule"):
            watched.require_at(out, ExampleAxis(0), "the loss")
