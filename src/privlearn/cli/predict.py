"""`privlearn predict`: use a published model."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privlearn.cli import screen
from privlearn.data.dataset import as_tensor, require_finite
from privlearn.data.named import NAMES, load
from privlearn.data.readers import read_inputs
from privlearn.errors import BadInput
from privlearn.publishing import bundle

_ROWS_AT_ONCE = 4096


def run(options: argparse.Namespace) -> int:
    """Write index, prediction and scores of every row."""
    out = None if options.out is None else Path(options.out)
    if out is not None and out.suffix not in (".csv", ".npz"):
        raise BadInput(f"--out is {options.out}: expected a file that ends in .csv or .npz")
    if out is not None and (out.exists() or out.is_symlink()):
        raise BadInput(f"{out} exists already: choose another --out; nothing is overwritten")
    model, config = bundle.load(options.folder, options.model, key=options.key)
    x = _inputs(options)
    if list(x.shape[1:]) != config["input_shape"]:
        raise BadInput(
            f"the rows of {options.data} have shape {list(x.shape[1:])}: this model takes {config['input_shape']}"
        )
    require_finite(options.data, "the inputs", x)
    scores = _scores(model, as_tensor(x, whole_is_float=bool(config["transforms"])))
    chosen = scores.argmax(1)
    if out is None:
        sys.stdout.write(_csv(chosen, scores))
    else:
        _write_new(out, chosen, scores)
        screen.asides.print(f"{len(x)} predictions are in {screen.plain(out)}")
    return 0


def _scores(model: torch.nn.Module, x: torch.Tensor) -> NDArray[Any]:
    """The probability of each class, a row for each row of `x`."""
    try:
        with torch.no_grad():
            parts = x.split(_ROWS_AT_ONCE)  # type: ignore[no-untyped-call]
            scores = torch.cat([model(part) for part in parts]).softmax(1)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"the model cannot run on these rows: {str(error)[:200]}. Is it the one that was trained?"
        ) from error
    return np.asarray(scores.numpy())


def _inputs(options: argparse.Namespace) -> NDArray[Any]:
    if options.data in NAMES:
        data = load(options.data, options.data_dir)
        return np.asarray(data.x if options.part == "train" else data.x_test)
    return read_inputs(Path(options.data), "x_test" if options.part == "test" else "x")


def _csv(chosen: NDArray[Any], scores: NDArray[Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "prediction", *(f"score_{c}" for c in range(scores.shape[1]))])
    for index, row in enumerate(scores):
        writer.writerow([index, int(chosen[index]), *(f"{score:.6g}" for score in row)])
    return text.getvalue()


def _write_new(out: Path, chosen: NDArray[Any], scores: NDArray[Any]) -> None:
    """Write a file that was not there, and take it away again if it cannot be completed."""
    made = False
    try:
        with out.open("xb") as file:
            made = True
            if out.suffix == ".npz":
                np.savez(file, index=np.arange(len(scores)), prediction=chosen, scores=scores)
            else:
                file.write(_csv(chosen, scores).encode())
    except OSError as error:
        if made:
            out.unlink(missing_ok=True)
        raise BadInput(f"{out} cannot be written: {error.strerror}. Choose another --out") from error
