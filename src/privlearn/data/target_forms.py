"""Targets in the forms that people have them in, brought to the one form of what was declared.

A look at all targets, for the data's curator, before anything is spent. No message quotes one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.data.sparse_matrix import SparseMatrix, is_sparse
from privlearn.errors import BadInput

#: Whole numbers above these are not told apart by numbers with a point.
_MOST_WHOLE = 2**53


def as_array(values: Any, what: str, *, rows: bool = False) -> Any:
    """Lists as an array; arrays and tensors as they are; a sparse matrix of `rows` as these.

    Raises:
        BadInput: lists of different lengths, or one value where there should be a row for each
            example.
    """
    if values is None:
        return None
    if is_sparse(values):
        if rows:
            return SparseMatrix(values)
        raise BadInput(
            f"{what} are a sparse matrix: expected an array, one target for each row. Give "
            "y.toarray()"
        )
    if isinstance(values, list | tuple):
        try:
            values = np.asarray(values)
        except ValueError:
            raise BadInput(
                f"{what} are lists of different lengths: expected rows of one length. Pad or cut "
                "each row by a public rule, or give arrays"
            ) from None
    if getattr(values, "shape", None) == ():
        raise BadInput(f"{what} are a single value: expected one row for each example")
    return values


def class_numbers(y: Any, what: str) -> Any:
    """Class labels as int64: shape (rows,), or maps of them as they are.

    Whole numbers of any type are labels, with a point (0.0, 1.0) or not, also in shape (rows, 1).

    Args:
        y: the targets, an array or a tensor.
        what: what they are called, for the message.

    Raises:
        BadInput: texts, other objects (None, say), or numbers that are not whole.
    """
    y = _as_column(without_objects(y, what))
    kind = _kind(y)
    if kind in "US":
        raise BadInput(
            f"{what} hold texts: expected whole numbers from 0. Number them by a public list, "
            "[names.index(label) for label in y], or give them to an estimator of pv.sklearn with "
            "classes=[...]"
        )
    if kind not in "fiub":
        return y
    if kind == "f":
        numbers = _numpy(y).astype(np.float64)
        if not (np.abs(numbers) <= _MOST_WHOLE).all() or (numbers != np.rint(numbers)).any():
            raise BadInput(
                f"{what} hold labels that are missing or not whole: expected whole numbers from "
                "0, or target_bounds=(low, high) in place of classes where they are numbers. Leave "
                "rows without a target out"
            )
        return numbers.astype(np.int64)
    if hasattr(y, "long"):
        return y.long()
    return y


def target_numbers(y: Any, what: str) -> Any:
    """Targets that are numbers, shape (rows,): those of shape (rows, 1) are squeezed.

    Raises:
        BadInput: texts, or other objects that are no numbers; None stands for a missing one.
    """
    y = _as_column(y)
    if len(shape := tuple(np.shape(y))) != 1:
        raise BadInput(
            f"{what} have shape {shape}: expected one number for each row. Train a "
            "model for each column, or give one column, y[:, 0]"
        )
    if _kind(y) not in "OUS":
        return y
    try:
        if not any(isinstance(value, str | bytes) for value in np.asarray(y).tolist()):
            return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        pass  # refused as texts are
    raise BadInput(
        f"{what} hold texts or other objects: expected one number for each row. Where they are "
        "written numbers, give y.astype(float); where they name classes, declare classes= in place "
        "of target_bounds, and number them from 0"
    )


def advice_on(y: Any) -> str:
    """What to do with targets that a loss fails on, by their shape and type alone; empty if these
    say nothing.
    """
    if len(y.shape) == 2 and y.shape[1] == 1:
        return (
            "Targets have shape (rows, 1): give y.reshape(-1) to a loss of class labels, as whole "
            "numbers from 0"
        )
    if len(y.shape) == 2 and _kind(y) in "iub":
        return (
            f"Targets have shape (rows, {y.shape[1]}): where they are one-hot, give y.argmax(1), "
            "the numbers of the classes"
        )
    name = str(y.dtype).removeprefix("torch.")
    if len(y.shape) == 1 and _kind(y) in "iub" and name != "int64":
        return f"Targets are {name}: give class labels as int64, y.long() of a tensor"
    if len(y.shape) == 1 and _kind(y) == "f":
        return (
            "Targets are floating-point numbers: where they are class labels, give y.long() of a "
            "tensor, or y.astype('int64') of an array"
        )
    return ""


def require_one_each(shape: tuple[int, ...], what: str) -> None:
    """Refuse several targets for a row, where one is learned, by their shape alone.

    Raises:
        BadInput: targets of shape (rows, K).
    """
    if len(shape) == 2:
        raise BadInput(
            f"{what} have shape (rows, {shape[1]}): expected one label for each row. Of one-hot "
            "targets give y.argmax(1); where several labels hold at once, declare labels=(name, "
            "...) in place of classes"
        )


def _as_column(y: Any) -> Any:
    shape = np.shape(y)
    return _array(y).reshape(-1) if len(shape) == 2 and shape[1] == 1 else y


def without_objects(y: Any, what: str) -> Any:
    """Of an array of objects that are numbers, or texts, all of one kind, a plain array; others as
    they are.

    Raises:
        BadInput: there are other objects, such as None.
    """
    if _kind(y) != "O":
        return y
    plain = np.asarray(_array(y).tolist() if np.size(y) else [], dtype=None)
    if plain.dtype.kind == "O" or plain.shape != np.shape(y):
        raise BadInput(
            f"{what} hold None or other objects: expected whole numbers from 0. Leave out rows "
            "without a target, each by a rule that looks at no other row"
        )
    return plain


def _array(values: Any) -> Any:
    """As an array or a tensor: a column of a table is made one."""
    return values if hasattr(values, "detach") else np.asarray(values)


def _numpy(values: Any) -> NDArray[Any]:
    """As an array, in memory."""
    if hasattr(values, "detach"):
        return np.asarray(values.detach().cpu().double().numpy())
    return np.asarray(values)


def _kind(values: Any) -> str:
    """The kind of its numbers, as numpy has letters for them; of tensors, too."""
    if hasattr(values, "detach"):
        if values.is_floating_point():
            return "f"
        return "c" if values.is_complex() else "i"
    return np.asarray(values).dtype.kind
