"""These rules say where the examples are in the results of an operation, one rule for each category
of PyTorch's operations.

A rule labels the dimensions of what an operation is given and of what it gives, as `einsum` does:
two dimensions with one label are walked together. The examples may be along a label that each
result has, and that the operation does not work along (`along`). What an operation does with
entries that differ in such a label is then done entry by entry.

An operation that computes and has no rule is denied (`tracker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

#: A dimension's label: of the same dimension in another tensor it is the same.
Label = int | str
#: An argument: its name, and its place if it is one of a list.
Argument = tuple[str, int]


class ExampleAxis(NamedTuple):
    """Where the examples are in a tensor.

    Attributes:
        dim: the dimension. Its entry number (part * examples + example) * inner + rest belongs to
            that example.
        outer: how many parts there are, each with all examples in their order.
        inner: how many entries of an example come one after the other.
    """

    dim: int
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True)
class AxisLabels:
    """The labels of an operation's dimensions.

    Attributes:
        inputs: of each argument that may hold examples or must not differ between them. In others
            no examples may be.
        results: of each result; None for one that holds nothing of the examples. The last stands
            for all that follow.
        along: labels that the operation works along, where no examples may be.
        numbering: arguments that count the examples: 0, 1, 2, ...
    """

    inputs: Mapping[Argument, Sequence[Label]]
    results: Sequence[Sequence[Label] | None]
    along: frozenset[Label] = field(default_factory=frozenset)
    numbering: frozenset[Argument] = frozenset()


class Arguments(Protocol):
    """What a rule sees of a call."""

    #: The name of the operation, without the underscore of one in place.
    plain: str
    #: All tensors that are read, by argument.
    tensors: dict[Argument, Tensor]
    #: Those that hold nothing of the examples, and where they have a part for each.
    constants: dict[Argument, ExampleAxis | None]
    #: The most dimensions of a tensor that is read or written.
    dims: int

    def axis(self, name: str, at: int = 0) -> ExampleAxis | None:
        """Where the examples are in an argument; None in one that holds nothing of them."""
        ...

    def __getitem__(self, name: str) -> Any:
        """The value of an argument; None if the operation has none of that name."""
        ...


class Denied(Exception):
    """Examples meet in an operation, or it is not known whether they do. Its text says in which,
    and how.
    """


#: Answers with labels, or with where the examples are in each result.
Rule = Callable[[Any], AxisLabels | list[ExampleAxis | None]]
_R = TypeVar("_R", bound=Rule)
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[_R], _R]:
    """Enter a rule for operations of these names, without underscores at their ends."""

    def enter(function: _R) -> _R:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return enter


def _from_right(tensor: Tensor, dims: int) -> Sequence[Label]:
    """AxisLabels of a tensor that is broadcast to so many dimensions."""
    return range(dims - tensor.dim(), dims)


def _dims(call: Arguments, tensor: Tensor, name: str = "dim") -> set[int]:
    """Dimensions that an argument names; all where it names none."""
    value = call[name]
    if value is None or value == []:
        return set(range(tensor.dim()))
    chosen = value if isinstance(value, Sequence) else [value]
    return {dim % tensor.dim() for dim in chosen} if tensor.dim() else set()


def _all(numbers: Iterable[int]) -> frozenset[Label]:
    return frozenset(numbers)


# Operations that work entry by entry, beside those that PyTorch tags so.
@rule(
    "_to_copy clone copy _conj_physical polar complex log_sigmoid_forward _prelu_kernel isin "
    "floor_divide masked_fill native_dropout rrelu_with_noise _fused_dropout bernoulli where "
    "view_as_complex fill"
)
def pointwise(call: Arguments) -> AxisLabels:
    """Entry by entry, after broadcasting."""
    inputs = {name: _from_right(tensor, call.dims) for name, tensor in call.tensors.items()}
    return AxisLabels(inputs, [range(call.dims)])


@rule(
    "sum nansum mean amax amin prod all any argmax argmin max min median nanmedian mode logsumexp "
    "var std var_mean std_mean linalg_vector_norm norm count_nonzero aminmax kthvalue"
)
def reduction(call: Arguments) -> AxisLabels:
    """Entries along some dimensions become one."""
    if call["other"] is not None:  # the greater of two tensors
        return pointwise(call)
    tensor = call["self"]
    reduced = _dims(call, tensor)
    left = [f"reduced {dim}" if dim in reduced else dim for dim in range(tensor.dim())]
    if not call["keepdim"]:
        left = [label for label in left if isinstance(label, int)]
    return AxisLabels({("self", 0): range(tensor.dim())}, [left], _all(reduced))


@rule(
    "_softmax _log_softmax _safe_softmax softmax cumsum cumprod logcumsumexp cummax cummin sort "
    "topk flip roll glu _fft_r2c _fft_c2c _fft_c2r index_fill"
)
def along_dimension(call: Arguments) -> AxisLabels:
    """Entries along some dimensions meet, and stay in their dimension."""
    tensor = call["self"]
    dims = _dims(call, tensor, "dims" if call["dims"] is not None else "dim")
    return AxisLabels({("self", 0): range(tensor.dim())}, [range(tensor.dim())], _all(dims))


@rule("renorm")
def renormalised(call: Arguments) -> AxisLabels:
    """Slices along one dimension, each by its norm over all others."""
    tensor = call["self"]
    dim = call["dim"] % tensor.dim()
    return AxisLabels(
        {("self", 0): range(tensor.dim())},
        [range(tensor.dim())],
        _all(range(tensor.dim())) - {dim},
    )


@rule("bucketize")
def bucketed(call: Arguments) -> AxisLabels:
    """Entry by entry, by boundaries that hold nothing of the batch."""
    labels = range(call["self"].dim())
    return AxisLabels({("self", 0): labels}, [labels])


def _last(number: int | Callable[[Arguments], int]) -> Rule:
    """The rule of operations that work on the last so many dimensions, and leave the others as they
    are.
    """

    def last_dimensions(call: Arguments) -> AxisLabels:
        dims = next(iter(call.tensors.values())).dim()
        worked_on = number if isinstance(number, int) else number(call)
        others = range(dims - worked_on)
        inputs: dict[Argument, Sequence[Label]] = {}
        for name, tensor in call.tensors.items():
            if tensor.dim() == dims:
                inputs[name] = [*others, *(f"{name} {dim}" for dim in range(worked_on))]
        # What they give has no more dimensions than they were given; means and places may have
        # fewer.
        return AxisLabels(inputs, [others])

    return last_dimensions


for _number, _names in {
    1: (
        "avg_pool1d _adaptive_avg_pool1d upsample_nearest1d upsample_linear1d reflection_pad1d "
        "replication_pad1d"
    ),
    2: "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d "
    "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bicubic2d_aa "
    "_upsample_bilinear2d_aa _upsample_nearest_exact2d reflection_pad2d replication_pad2d "
    "tril triu _linalg_svd linalg_inv_ex _linalg_eigh linalg_qr linalg_cholesky_ex "
    "linalg_householder_product _linalg_det linalg_matrix_exp",
    3: "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d "
    "upsample_nearest3d upsample_trilinear3d reflection_pad3d replication_pad3d "
    "grid_sampler_2d im2col col2im channel_shuffle pixel_shuffle pixel_unshuffle",
    4: "grid_sampler_3d",
}.items():
    RULES.update(dict.fromkeys(_names.split(), _last(_number)))
RULES["native_layer_norm"] = RULES["_fused_rms_norm"] = _last(
    lambda call: len(call["normalized_shape"])
)
RULES["constant_pad_nd"] = _last(
    lambda call: max((n // 2 + 1 for n, by in enumerate(call["pad"]) if by), default=0)
)


@rule("convolution mkldnn_convolution native_group_norm affine_grid_generator")
def by_row(call: Arguments) -> AxisLabels:
    """Each row of the first dimension by itself."""
    name, tensor = next(iter(call.tensors.items()))
    return AxisLabels(
        {name: ["row", *range(1, tensor.dim())]}, [["row"]], _all(range(1, tensor.dim()))
    )


@rule(
    "native_batch_norm cudnn_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update"
)
def batch_norm(call: Arguments) -> AxisLabels:
    """Channel by channel: over rows and positions, or by statistics that are there."""
    tensor = call["input"]
    labels = ["row", "channel", *range(2, tensor.dim())]
    channels = {(name, 0): ["channel"] for name in ("weight", "bias") if call[name] is not None}
    # an operation without `training` says by its name whether it computes statistics
    computes = call["training"] or call.plain == "_batch_norm_with_update"
    if not computes and call["running_mean"] is not None:
        return AxisLabels(
            {("input", 0): labels}, [labels, None], _all(range(2, tensor.dim())) | {"channel"}
        )
    # With the examples as channels each has statistics of its own.
    statistics = {
        (name, 0): ["channel"] for name in ("running_mean", "running_var") if call[name] is not None
    }
    worked_on = _all(range(2, tensor.dim())) | {"row"}
    return AxisLabels(
        {("input", 0): labels, **channels, **statistics}, [labels, ["channel"]], worked_on
    )


#: By operation: the labels of its factors, then of what it gives; "." stands for all dimensions
#: before.
_PRODUCTS = {
    "mm": ("self ik", "mat2 kj", "ij"),
    "addmm": ("self ij", "mat1 ik", "mat2 kj", "ij"),
    "_addmm_activation": ("self ij", "mat1 ik", "mat2 kj", "ij"),
    "bmm": ("self bik", "mat2 bkj", "bij"),
    "baddbmm": ("self bij", "batch1 bik", "batch2 bkj", "bij"),
    "mv": ("self ik", "vec k", "i"),
    "addmv": ("self i", "mat ik", "vec k", "i"),
    "dot": ("self k", "tensor k", ""),
    "linear": ("input .k", "weight jk", "bias j", ".j"),
    "mkl_linear": ("x1 .k", "x2 jk", ".j"),
    "_linear_pointwise": ("X .k", "W jk", "B j", ".j"),
    "_cdist_forward": ("x1 .ik", "x2 .jk", ".ij"),
    "embedding": ("indices .", "weight vd", ".d"),
}


@rule(" ".join(_PRODUCTS))
def product(call: Arguments) -> AxisLabels:
    """Sums of products: examples may be along what is not summed over."""
    *factors, result = _PRODUCTS[call.plain]
    first = factors[0].partition(" ")
    before = max(call[first[0]].dim() - len(first[2].replace(".", "")), 0)

    def labels(text: str, dims: int) -> Sequence[Label]:
        spelt = [*(range(before) if text.startswith(".") else []), *text.lstrip(".")]
        return spelt[len(spelt) - dims :]  # a bias is broadcast

    inputs = {}
    for factor in factors:
        name, _, text = factor.partition(" ")
        if isinstance(call[name], Tensor):
            inputs[name, 0] = labels(text, call[name].dim())
    summed = frozenset("kv" if call.plain == "embedding" else "k")
    return AxisLabels(
        inputs, [[*(range(before) if "." in result else []), *result.lstrip(".")]], summed
    )


@rule(
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable"
)
def attention(call: Arguments) -> AxisLabels:
    """Over positions of one example and head."""
    inputs: dict[Argument, Sequence[Label]] = {
        ("query", 0): ["batch", "head", "query", "width"],
        ("key", 0): ["batch", "head", "key", "width"],
        ("value", 0): ["batch", "head", "key", "value"],
    }
    for name in ("attn_mask", "attn_bias"):
        if call[name] is not None:
            inputs[name, 0] = ["batch", "head", "query", "key"][4 - call[name].dim() :]
    return AxisLabels(inputs, [["batch", "head"], ["batch", "head"], None])


@rule("_embedding_bag")
def bags(call: Arguments) -> list[ExampleAxis | None]:
    """Bags of one length, one after the other."""
    indices, starts, axis = call["indices"], call["offsets"], call.axis("indices")
    length = indices.numel() // max(len(starts), 1)
    even = torch.arange(len(starts), device=starts.device) * length
    same = not call["include_last_offset"] and torch.equal(starts, even.to(starts.dtype))
    alone = axis is not None and axis.outer == 1 and axis.inner % length == 0
    call.constants.pop(("offsets", 0), None)  # they count the examples
    if not (same and alone) or any(
        name != "indices" and call.axis(name) for name, _ in call.tensors
    ):
        raise Denied("embedding_bag with bags of several lengths, or of several examples")
    bag = ExampleAxis(0, 1, axis.inner // length) if axis else None
    return [bag, None, bag, bag]


@rule("mkldnn_rnn_layer")
def recurrent(call: Arguments) -> AxisLabels:
    """Over positions, which are the first dimension; the batch is the second."""
    state = [*range(call["hx_"].dim() - 2), "row", "state"]
    inputs = {("input", 0): ["position", "row", "feature"], ("hx_", 0): state, ("cx_", 0): state}
    workspace = ["workspace"]
    along = frozenset({"position", "feature", "state", *range(call["hx_"].dim() - 2)})
    return AxisLabels(inputs, [["position", "row", "feature"], state, state, workspace], along)


@rule(
    "nll_loss_forward nll_loss2d_forward binary_cross_entropy binary_cross_entropy_with_logits "
    "mse_loss smooth_l1_loss huber_loss soft_margin_loss multi_margin_loss "
    "multilabel_margin_loss_forward"
)
def loss(call: Arguments) -> AxisLabels:
    """One value for each row, or for each entry."""
    if call["reduction"] != 0:
        raise Denied(f"{call.plain} over the batch (give the loss reduction='none')")
    if "nll" not in call.plain and "multi" not in call.plain:
        return pointwise(call)
    if call["self"].dim() < 2:
        raise Denied(f"{call.plain} of outputs without a dimension for the classes")
    outputs = ["row", "class", *range(2, call["self"].dim())]
    targets = [
        "row",
        *(["class"] if "multilabel" in call.plain else range(2, call["target"].dim() + 1)),
    ]
    rows = ["row", *range(2, call["self"].dim())]
    inputs = {("self", 0): outputs, ("target", 0): targets}
    return AxisLabels(inputs, [rows, None], frozenset({"class"}))


@rule("_ctc_loss")
def ctc(call: Arguments) -> AxisLabels:
    """Positions first, then the batch."""
    inputs = {("log_probs", 0): ["position", "row", "class"], ("targets", 0): ["row", "target"]}
    inputs |= {(name, 0): ["row"] for name in ("input_lengths", "target_lengths")}
    return AxisLabels(inputs, [["row"], ["row"]], frozenset({"position", "class", "target"}))


@rule("cat")
def joined(call: Arguments) -> AxisLabels | list[ExampleAxis | None]:
    """Beside each other along another dimension, or batch after batch."""
    dims = max(tensor.dim() for tensor in call.tensors.values())
    whole = {name: tensor for name, tensor in call.tensors.items() if tensor.dim() == dims}
    dim = call["dim"] % dims
    axes = [call.axis(*name) for name in whole]
    known = [axis for axis in axes if axis is not None]
    if len(known) == len(axes) and {(axis.dim, axis.inner) for axis in known} == {
        (dim, known[0].inner)
    }:
        return [known[0]._replace(outer=sum(axis.outer for axis in known))]
    return AxisLabels(dict.fromkeys(whole, range(dims)), [range(dims)], _all({dim}))


@rule("repeat")
def repeated(call: Arguments) -> list[ExampleAxis | None]:
    """The whole tensor again and again."""
    axis, times = call.axis("self"), call["repeats"]
    if axis is None:
        return [None]
    dim = axis.dim + len(times) - call["self"].dim()
    return [ExampleAxis(dim, axis.outer * times[dim], axis.inner)]


@rule("stack")
def stacked(call: Arguments) -> AxisLabels:
    """Beside each other along a new dimension."""
    labels: list[Label] = list(range(next(iter(call.tensors.values())).dim()))
    out = list(labels)
    out.insert(call["dim"] % (len(labels) + 1), "new")
    return AxisLabels(dict.fromkeys(call.tensors, labels), [out])


@rule("index_select")
def selected(call: Arguments) -> AxisLabels:
    """Slices along one dimension."""
    dims = call["self"].dim()
    dim = call["dim"] % dims
    out: list[Label] = list(range(dims))
    out[dim] = "chosen"
    return AxisLabels({("self", 0): range(dims), ("index", 0): ["chosen"]}, [out], _all({dim}))


@rule("gather scatter scatter_add scatter_reduce take_along_dim")
def gathered(call: Arguments) -> AxisLabels:
    """Along one dimension, entry by entry of the index."""
    dims = call["self"].dim()
    inputs = {name: range(dims) for name, tensor in call.tensors.items() if tensor.dim() == dims}
    return AxisLabels(inputs, [range(dims)], _all({call["dim"] % dims}))


@rule("index_add index_copy")
def added(call: Arguments) -> AxisLabels:
    """Slices into places along one dimension."""
    dims = call["self"].dim()
    inputs = {("self", 0): range(dims), ("source", 0): range(dims)}
    return AxisLabels(inputs, [range(dims)], _all({call["dim"] % dims}))


@rule("index")
def indexed(call: Arguments) -> AxisLabels:
    """Tensors as indices: the examples' dimension stays whole, or each example's index is its
    number.
    """
    labels = _index_labels(call)
    inputs: dict[Argument, Sequence[Label]] = {("self", 0): labels.before}
    inputs |= labels.indices
    return AxisLabels(inputs, [labels.after], labels.along, labels.numbering)


@rule("index_put _index_put_impl")
def put(call: Arguments) -> AxisLabels:
    """Values at indices."""
    tensor, values, indices = call["self"], call["values"], call["indices"]
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.dtype == torch.bool and values.numel() == 1:
        # One value wherever a mask is true: entry by entry.
        return AxisLabels(
            {("self", 0): range(tensor.dim()), ("indices", 0): range(mask.dim())},
            [range(tensor.dim())],
        )
    labels = _index_labels(call)
    inputs: dict[Argument, Sequence[Label]] = {
        ("self", 0): labels.before,
        ("values", 0): labels.after[len(labels.after) - values.dim() :],
    }
    inputs |= labels.indices
    return AxisLabels(inputs, [labels.before], labels.along, labels.numbering)


@dataclass
class _Indexing:
    """AxisLabels of a tensor, of its indices, and of what they pick."""

    before: list[Label]
    indices: dict[Argument, Sequence[Label]]
    after: list[Label]
    along: frozenset[Label]
    numbering: frozenset[Argument]


def _index_labels(call: Arguments) -> _Indexing:
    tensor = call["self"]
    indices = {dim: index for dim, index in enumerate(call["indices"]) if index is not None}
    for index in indices.values():
        if index.dtype in (torch.bool, torch.uint8) and index.dim() != 1:
            raise Denied("indexing by a mask, which picks as many entries as it holds")
    wide = max(
        1 if index.dtype in (torch.bool, torch.uint8) else index.dim() for index in indices.values()
    )
    picked: list[Label] = [f"picked {dim}" for dim in range(wide)]
    before: list[Label] = [f"from {dim}" if dim in indices else dim for dim in range(tensor.dim())]
    along = {f"from {dim}" for dim in indices}
    inputs: dict[Argument, Sequence[Label]] = {}
    numbering = set[Argument]()
    for dim, index in indices.items():
        labels = picked[wide - index.dim() :]
        constant = call.axis("indices", dim) is None
        number = _find_counting_dim(index, tensor.shape[dim]) if constant else None
        # 0, 1, 2, ...: entry number i of the dimension goes with entry i of the index
        if number is not None:
            before[dim] = labels[number]
            along.discard(f"from {dim}")
            numbering.add(("indices", dim))
        else:
            inputs["indices", dim] = labels
    dims = sorted(indices)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    rest: list[Label] = [dim for dim in range(tensor.dim()) if dim not in indices]
    at = dims[0] if adjacent else 0
    after = [*rest[:at], *picked, *rest[at:]]
    return _Indexing(before, inputs, after, frozenset(along), frozenset(numbering))


def _find_counting_dim(index: Tensor, size: int) -> int | None:
    """The dimension along which a constant index counts 0, 1, 2, ... up to `size`; None if it does
    not.
    """
    if index.dtype in (torch.bool, torch.uint8) or index.numel() != size:
        return None
    varying = [dim for dim, length in enumerate(index.shape) if length > 1]
    if len(varying) != 1 or not torch.equal(
        index.flatten(), torch.arange(size, device=index.device)
    ):
        return None
    return varying[0]
