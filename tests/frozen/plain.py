"""Results as plain JSON values: exact, readable where they are short, digests where they are long."""

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
from names import errors, to_json
from threadpoolctl import threadpool_limits

#: Characters of canonical JSON, or of a text, up to which a value is kept as it is.
LONGEST = 700
#: Parts of a list, other than of numbers, up to which it is kept whatever their length.
MOST = 40
#: Which module of the library a class lives in may change.
_MODULE = re.compile(r"\bprivlearn(\.\w+)+:")


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


def event(of: Any) -> Any:
    """An event as canonical JSON, or its digest."""
    text = canonical(to_json(of))
    return text if len(text) <= LONGEST else {"sha256": digest(text), "characters": len(text), "begins": text[:120]}


def array(value: Any) -> str:
    """The type, shape and digest of an array or a tensor."""
    numbers = value.detach().cpu().contiguous().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    numbers = np.ascontiguousarray(numbers)
    return f"{numbers.dtype} {list(numbers.shape)} {digest(numbers.tobytes())[:32]}"


def weights(of: Any) -> dict[str, str]:
    """The digests of a module's parameters and buffers."""
    return {name: array(value) for name, value in of.state_dict().items()}


def short(value: Any) -> Any:
    """`value`, lists and texts that are long replaced by digests."""
    if isinstance(value, dict):
        return {str(key): short(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [short(part) for part in value]
        text = canonical(parts)
        numbers = all(isinstance(part, int | float) for part in parts)
        kept = len(text) <= LONGEST if numbers else len(parts) <= MOST
        return parts if kept else {"sha256": digest(text), "length": len(parts), "first": parts[0]}
    if isinstance(value, str):
        value = _MODULE.sub("privlearn:", value)
        return value if len(value) <= LONGEST else {"sha256": digest(value), "characters": len(value)}
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
