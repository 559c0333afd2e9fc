"""Laws of devices: one file knows their kinds, all tensors of the library say where they lie, and
every operation that takes an index is known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._device import _device_constructors

from privlearn.core.clipping.index_ranges import RANGES
from tests.support.devices import run_on_the_simulated_device
from tests.support.simulated.device import is_installed

SOURCE = Path(__file__).parents[2] / "src"
FILES = [*SOURCE.glob("privlearn/**/*.py"), *SOURCE.glob("privlearn_segmentation/**/*.py")]
#: The file that knows kinds of devices.
DEVICES = SOURCE / "privlearn" / "core" / "devices.py"
KINDS = {"cuda", "mps", "xpu", "hpu", "xla", "mtia", "cpu"}
MADE = {function.__name__ for function in _device_constructors()}
LAYERS = {name for name, kind in vars(nn).items() if isinstance(kind, type)}
#: Layers without tensors, and those that hold the layers of others.
BARE = {
    "Module",
    "ModuleList",
    "Sequential",
    "Parameter",
    "Flatten",
    "Unflatten",
    "Identity",
    "ReLU",
    "ReLU6",
    "Tanh",
    "Dropout",
    "MaxPool2d",
    "MaxPool3d",
    "CrossEntropyLoss",
    "BCEWithLogitsLoss",
}
#: Files whose layers are built in a block of `devices.building`.
BUILT = {"models/networks.py", "models/residual.py"}

#: Operations with an argument that is called as an index and is none that a row chooses, and why.
SAFE = {
    "results": "cummax cummin kthvalue median mode nanmedian sort topk adaptive_max_pool2d "
    "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d max_pool2d_with_indices "
    "max_pool3d_with_indices _cummax_helper _cummin_helper",
    "of the forward pass, which looked": "adaptive_max_pool2d_backward "
    "adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward "
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward _embedding_bag_backward "
    "_embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward "
    "multilabel_margin_loss_backward binary_cross_entropy_backward",
    "targets of any value": "binary_cross_entropy_with_logits huber_loss huber_loss_backward "
    "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss "
    "soft_margin_loss_backward",
    "masked where they are out of range": "_unsafe_masked_index "
    "_unsafe_masked_index_put_accumulate",
    "shapes alone": "_use_cudnn_ctc_loss _use_miopen_ctc_loss",
    "no processor looks": "segment_reduce _sparse_coo_tensor_with_dims_and_tensors",
}


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls of attributes of `torch` and `nn` in a file, by name."""
    for node in _nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in ("torch", "nn"):
                yield f"{owner.id}.{node.func.attr}", node


def test_one_file_knows_kinds_of_devices() -> None:
    """No other asks PyTorch's modules of a kind, or compares with the name of one."""
    offenders = []
    for path in FILES:
        for node in _nodes(path):
            asked = isinstance(node, ast.Attribute) and node.attr.removeprefix("is_") in KINDS
            moved = isinstance(node, ast.Attribute) and node.attr == "cpu"  # tensor.cpu()
            compared = isinstance(node, ast.Compare) and any(
                isinstance(side, ast.Constant) and side.value in KINDS
                for side in (node.left, *node.comparators)
            )
            if path != DEVICES and ((asked and not moved) or compared):
                offenders.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not offenders


def test_tensors_of_the_library_say_where_they_lie() -> None:
    """Or `torch.set_default_device` would put them elsewhere than those that they meet."""
    offenders = []
    for path in FILES:
        built = str(path.relative_to(SOURCE / path.relative_to(SOURCE).parts[0])) in BUILT
        for name, call in _calls(path):
            place = any(keyword.arg in ("device", None) for keyword in call.keywords)
            owner, _, attribute = name.partition(".")
            made = owner == "torch" and attribute in MADE
            layer = owner == "nn" and attribute in LAYERS - BARE and not built
            if path != DEVICES and (made or layer) and not place:
                offenders.append(f"{path.relative_to(SOURCE)}:{call.lineno}: {name}")
    assert not offenders


def test_every_operation_that_takes_an_index_is_known() -> None:
    """Of all of PyTorch's operations on tensors: looked at on an accelerator, or said why not."""
    safe = {name for names in SAFE.values() for name in names.split()}
    assert not safe & set(RANGES)
    found = set()
    for full in torch._C._dispatch_get_all_op_names():
        space, _, short = full.partition("::")
        name, _, overload = short.partition(".")
        packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
        operation = getattr(packet, overload or "default", None)
        if operation is None or torch._C._dispatch_has_kernel_for_dispatch_key(
            full, "CompositeImplicitAutograd"
        ):
            continue
        named = {
            argument.name
            for argument in operation._schema.arguments
            if "Tensor" in str(argument.type)
        }
        if named & {"index", "indices", "target", "targets"}:
            found.add(name.removesuffix("_"))
    assert not found - set(RANGES) - safe
    assert set(RANGES) - found == {"bernoulli", "multinomial"}


@pytest.mark.skipif(is_installed(), reason="this is the process that has the device")
def test_faults_on_the_simulated_device() -> None:
    run_on_the_simulated_device("tests/runs/faults_on_simulated.py")


@pytest.mark.skipif(is_installed(), reason="this is the process that has the device")
def test_loops_of_other_libraries_on_the_simulated_device() -> None:
    run_on_the_simulated_device("tests/runs/doors_on_simulated.py")
