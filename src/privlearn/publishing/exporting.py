"""A published network as a program that runs without privlearn: of torch.export, or ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privlearn.errors import BadInput, first_line

#: What torch's exporter needs, and what runs its file to compare the scores.
_FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")
_CLOSE = 1e-5


def require_format(path: Path) -> None:
    """Refuse names of other formats, and ONNX where what writes and runs it is missing.

    Raises:
        BadInput: neither .pt2 nor .onnx, or packages are missing.
    """
    if path.suffix not in (".pt2", ".onnx"):
        raise BadInput(
            f"{path} ends in {path.suffix or 'nothing'}: expected .pt2 for a program of "
            "torch.export, or .onnx for ONNX"
        )
    missing = [name for name in _FOR_ONNX if find_spec(name) is None]
    if path.suffix == ".onnx" and missing:
        raise BadInput(
            f"{path} can't be written: ONNX needs {', '.join(missing)}. Install with pip "
            f"install {' '.join(missing)}, or export a program of torch.export, {path.stem}.pt2"
        )


def write_program(network: nn.Module, rows: Sequence[Tensor], path: Path) -> None:
    """Write a network as a program, if it gives the network's scores.

    Args:
        network: what is written.
        rows: made-up rows, several numbers of them.
        path: a new file, .pt2 or .onnx.

    Raises:
        BadInput: PyTorch can't export it, the program gives other scores, or the file can't be
            written.
    """
    sizes = ({0: torch.export.Dim("rows")},)
    try:
        program = torch.export.export(network, (rows[0],), dynamic_shapes=sizes)
        with torch.no_grad():
            expected = [network(part) for part in rows]
            scores = [program.module()(part) for part in rows]
        content = None
        if path.suffix == ".onnx":
            content = _in_onnx(network, rows[0], sizes)
            scores = _scores_of(content, rows)
    except Exception as error:
        raise BadInput(
            f"PyTorch can't export this model: {first_line(error)}. Load it with load_model"
        ) from error
    if not all(
        torch.allclose(score, wanted, atol=_CLOSE)
        for score, wanted in zip(scores, expected, strict=True)
    ):
        raise BadInput(
            "the exported program gives other scores than the model: load it with load_model"
        )
    try:
        if content is None:
            torch.export.save(program, path)
        else:
            path.write_bytes(content)
    except (OSError, RuntimeError) as error:
        raise BadInput(
            f"{path} cannot be written: {first_line(error)}. Give another file"
        ) from error


def _in_onnx(network: nn.Module, row: Tensor, sizes: tuple[dict[int, Any]]) -> bytes:
    """What an ONNX file of the network holds, weights included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            (row,),
            input_names=["rows"],
            output_names=["scores"],
            dynamic_shapes=sizes,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # as it is where no file is given
    return bytes(program.model_proto.SerializeToString())


def _scores_of(content: bytes, rows: Sequence[Tensor]) -> list[Tensor]:
    """What ONNX Runtime makes of rows."""
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return [
        torch.as_tensor(session.run(None, {"rows": part.numpy()})[0], device="cpu") for part in rows
    ]
