"""What operations take that has a range, and the same in range: indices, targets, probabilities.

`indices` looks at them where a kernel does not. An operation that is not listed takes none: a test
goes through all of PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from privlearn.core.clipping.indices import OUT_OF_RANGE
from privlearn.core.devices import PROCESSOR, move

#: A tensor, and the same with numbers in range.
Checked = tuple[Tensor, Tensor]


def _within(values: Tensor, low: float, high: float) -> Checked:
    """Numbers from `low` to `high`, inclusive.

    Raises:
        IndexError: there are none.
    """
    if high < low and values.numel():
        raise IndexError(OUT_OF_RANGE)
    return values, values.clamp(low, high)


def _along(arguments: dict[str, Any], wraps: bool = False) -> Iterator[Checked]:
    """An index along one dimension; if it `wraps`, numbers below zero count from the end."""
    source, index = arguments["self"], arguments["index"]
    size = source.shape[arguments["dim"]] if source.dim() else 1
    yield _within(index, -size if wraps else 0, size - 1)


def _along_wrapped(arguments: dict[str, Any]) -> Iterator[Checked]:
    yield from _along(arguments, wraps=True)


def _of_all(arguments: dict[str, Any]) -> Iterator[Checked]:
    size = arguments["self"].numel()
    yield _within(arguments["index"], -size, size - 1)


def _of_axes(arguments: dict[str, Any]) -> Iterator[Checked]:
    """Indices of several dimensions, in their order; a mask takes as many as it has itself."""
    source, axis = arguments["self"], 0
    for index in arguments["indices"]:
        if index is None:
            axis += 1
        elif index.dtype in (torch.bool, torch.uint8):
            axis += index.dim()
        else:
            yield _within(index, -source.shape[axis], source.shape[axis] - 1)
            axis += 1


def _of_table(arguments: dict[str, Any]) -> Iterator[Checked]:
    table = arguments["weight"] if "weight" in arguments else arguments.get("self")
    size = arguments["num_weights"] if table is None else len(table)
    yield _within(arguments["indices"], 0, size - 1)


def _of_bags(arguments: dict[str, Any]) -> Iterator[Checked]:
    yield from _of_table(arguments)
    offsets = arguments["offsets"]
    yield _within(offsets, 0, len(arguments["indices"]))


def _of_classes(arguments: dict[str, Any]) -> Iterator[Checked]:
    scores, target = arguments["self"], arguments["target"]
    _, within = _within(target, 0, scores.shape[1 if scores.dim() > 1 else 0] - 1)
    if "ignore_index" in arguments:
        within = within.where(target != arguments["ignore_index"], target)
    yield target, within


def _of_several_classes(arguments: dict[str, Any]) -> Iterator[Checked]:
    """-1 ends an example's list."""
    yield _within(arguments["target"], -1, arguments["self"].shape[-1] - 1)


def _of_sequences(arguments: dict[str, Any]) -> Iterator[Checked]:
    targets = arguments["targets"]
    _, within = _within(targets, 0, arguments["log_probs"].shape[-1] - 1)
    if targets.dim() > 1:
        within = within.where(_are_read(targets, arguments["target_lengths"]), targets)
    yield targets, within


def _are_read(targets: Tensor, lengths: Tensor | Sequence[int]) -> Tensor:
    """Of a table of targets, those up to each one's length: others may be anything."""
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths, device=PROCESSOR)
    places = torch.arange(targets.shape[-1], device=targets.device)
    return places < move(lengths, targets.device)[:, None]


def _of_chances(arguments: dict[str, Any]) -> Iterator[Checked]:
    """Probabilities; NaN is none."""
    for name in ("self", "target", "p"):
        if isinstance(values := arguments.get(name), Tensor):
            yield values, values.clamp(0, 1).nan_to_num()


def _of_weights(arguments: dict[str, Any]) -> Iterator[Checked]:
    """What is drawn from: finite, none below zero, and some above it."""
    weights = arguments["self"]
    fits = weights.isfinite() & (weights >= 0)
    fits = fits & (weights.where(fits, 1).sum(-1, keepdim=True) > 0)
    yield weights, weights.where(fits, 1)


def _of_pooled(arguments: dict[str, Any]) -> Iterator[Checked]:
    yield _within(arguments["indices"], 0, math.prod(arguments["output_size"]) - 1)


#: By the name of an operation of `torch.ops.aten`, without the underscore of those in place: what
#: it takes that has a range.
RANGES: dict[str, Callable[[dict[str, Any]], Iterator[Checked]]] = {
    name: look
    for look, names in (
        (_along, "gather scatter scatter_add scatter_reduce"),
        (_along, "index_select index_add index_copy index_reduce"),
        (_along_wrapped, "index_fill"),
        (_of_all, "take put"),
        (_of_axes, "index _unsafe_index index_put _unsafe_index_put _index_put_impl"),
        (_of_table, "embedding embedding_dense_backward embedding_renorm"),
        (_of_bags, "_embedding_bag _embedding_bag_forward_only"),
        (_of_classes, "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"),
        (_of_classes, "multi_margin_loss multi_margin_loss_backward"),
        (_of_several_classes, "multilabel_margin_loss_forward"),
        (_of_sequences, "_ctc_loss _ctc_loss_backward _cudnn_ctc_loss miopen_ctc_loss"),
        (_of_pooled, "max_unpool2d max_unpool3d"),
        (_of_chances, "binary_cross_entropy bernoulli"),
        (_of_weights, "multinomial"),
    )
    for name in names.split()
}
