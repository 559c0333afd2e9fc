"""Results as plain JSON values: numbers that `agreement.py` compares, and digests of what has no
rounding.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from agreement import NUMBER
from names import errors, to_json
from threadpoolctl import threadpool_limits

#: Characters of a text up to which it is kept as it is.
LONGEST = 700
#: Parts of a list up to which it is kept, and numbers of an array.
MOST, MOST_NUMBERS = 40, 12
#: How many sums with fixed factors stand for the numbers of a larger array.
SUMS = 6
#: Which module of the library a class lives in may change.
_MODULE = re.compile(r"\bprivlearn(_segmentation)?(\.\w+)+:")
#: A digest of weights that were trained, whose last digits are the processor's.
_OF_WEIGHTS = re.compile(r"(a public reference) \(SHA-256 [0-9a-f]{16}\)")


@contextmanager
def repeatable() -> Iterator[None]:
    """One thread, and the global generators at the same place each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - what scikit-learn draws from
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(content: bytes | str) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def condensed(text: str) -> dict[str, Any]:
    """The digest of a text without the numbers that are printed in full, and these numbers."""
    return {
        "sha256": digest(NUMBER.sub("#", text)),
        "numbers": [float(number) for number in NUMBER.findall(text)],
    }


def event(of: Any) -> Any:
    """An event as JSON values, whole: its numbers are what is claimed."""
    return json.loads(canonical(to_json(of)))


def array(value: Any) -> Any:
    """The type and shape of an array or a tensor, and its numbers.

    Numbers of floating point are kept if they are few. Of many, the norm is kept, and sums with
    fixed factors between -1 and 1: a number that changes changes each sum. What has no rounding is
    a digest.
    """
    numbers = (
        value.detach().cpu()
        if isinstance(value, torch.Tensor)
        else torch.as_tensor(np.asarray(value))
    )
    kind = f"{str(numbers.dtype).removeprefix('torch.')} {list(numbers.shape)}"
    if not numbers.is_floating_point():
        return f"{kind} {digest(np.ascontiguousarray(numbers.numpy()).tobytes())[:32]}"
    flat = numbers.double().flatten().numpy()
    if flat.size <= MOST_NUMBERS:
        return {"array": kind, "numbers": _shortened(flat)}
    places = np.arange(1, flat.size + 1)
    sums = [float(np.cos(places * np.sqrt(2 + k)) @ flat) for k in range(1, SUMS + 1)]
    return {"array": kind, "norm": _shortened([np.linalg.norm(flat)])[0], "sums": _shortened(sums)}


def _shortened(numbers: Any) -> list[float]:
    return [float(f"{number:.10g}") for number in numbers]


def weights(of: Any) -> dict[str, Any]:
    """A module's parameters and buffers."""
    return {name: array(value) for name, value in of.state_dict().items()}


def short(value: Any) -> Any:
    """`value`, with arrays as `array` gives them, and long texts and long lists of them as
    digests.
    """
    if isinstance(value, dict):
        return {str(key): short(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [short(part) for part in value]
        if len(parts) <= MOST or all(isinstance(part, int | float) for part in parts):
            return parts
        return {"sha256": digest(canonical(parts)), "length": len(parts), "first": parts[0]}
    if isinstance(value, str):
        value = _OF_WEIGHTS.sub(r"\1 (SHA-256)", _MODULE.sub("privlearn:", value))
        return value if len(value) <= LONGEST else condensed(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return array(value)
    raise TypeError(f"{type(value).__name__} is no plain value")


def each(cases: dict[str, Callable[[], Any]], only: str = "") -> dict[str, Any]:
    """What every case gives, or how it is refused."""
    figures = {}
    for name, case in cases.items():
        if only in name:
            with repeatable():
                figures[name] = attempted(case)
    return json.loads(json.dumps(figures))


def attempted(case: Callable[[], Any]) -> Any:
    """What `case` gives, or how it is refused; any other error is marked as one."""
    try:
        return case()
    except errors.PrivlearnError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"FAILED": f"{type(error).__name__}: {error}"}
