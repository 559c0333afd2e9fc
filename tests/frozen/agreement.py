"""Whether figures of another machine are the frozen ones: what may differ by rounding, and by how
much.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

#: Prices of events, computed by other kernels.
PRICES = 1e-9
#: Noise, rates and batch sizes that were searched for, and what they cost. A search draws a line
#: through two prices that hardly differ, so their last digits are enlarged in where it ends, and
#: any end within .1 % of the target is taken: 2.4e-9 was seen between kernels for SSE4 and AVX-512.
#: Prices of noise that is given are compared to `PRICES`.
SEARCHED = 1e-8
#: Numbers that training computes, in single precision mostly: of the largest of an array, or of its
#: norm.
WEIGHTS = 1e-6
#: The same after commands, whose runs are longer: the weights went up to 7 times as far as they
#: came, and each step rounds what it moves. 2.4e-6 was seen between kernels for SSE4 and AVX-512.
LONG = 1e-5
#: After commands whose noise is on a grid. A sum between two points of the grid goes to the one or
#: the other, as it is rounded: a step of the grid is 2^-10 of the clipping norm over the root of
#: the number of weights, and moved a weight by 9e-6 of the largest. In double precision, as in
#: `dpsgd: noise on a grid`, no sum is that close to the middle.
GRID = 1e-4
#: Significant digits up to which a number was written by somebody, and not computed: it is compared
#: exactly.
WRITTEN = 6
#: In a text, a number that is printed in full. Others were rounded to be read, and are words.
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{10,}(?:e[+-]?\d+)?")
#: Where figures follow from weights, not from prices.
_TRAINED = re.compile(r"/test_metrics/|^(others: )?maps.*/(noise_std|radius)$")


def differences(old: Any, new: Any, weights: float = WEIGHTS, path: str = "") -> Iterator[str]:
    """Each difference as lines of text: where it is, what it was, what it is.

    Args:
        old: figures that were frozen.
        new: the same figures as they are now.
        weights: how far the numbers of arrays may be apart.
        path: where in all figures these are.
    """
    if isinstance(old, dict) and isinstance(new, dict) and "array" not in old:
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}/{key}" if path else key
            yield from differences(old.get(key, _Missing), new.get(key, _Missing), weights, inner)
    elif not agree(old, new, SEARCHED if not _TRAINED.search(path) else weights, weights):
        yield f"{path}\n" + "\n".join(_changed(old, new))


class _Missing:
    """Stands for a value that is not there."""


def agree(old: Any, new: Any, numbers: float = SEARCHED, weights: float = WEIGHTS) -> bool:
    """Whether two values are one figure, computed twice.

    Args:
        old: what was frozen.
        new: what it is now.
        numbers: how far a number may be off, relative to it.
        weights: how far the numbers of arrays may be off, relative to the largest of few, or the
            norm of many.
    """
    if type(old) is not type(new):
        return False
    if isinstance(old, dict):
        if old.keys() != new.keys():
            return False
        if "array" in old:
            return _arrays_agree(old, new, weights)
        return all(agree(old[key], new[key], numbers, weights) for key in old)
    if isinstance(old, list):
        return len(old) == len(new) and all(
            agree(*pair, numbers, weights) for pair in zip(old, new, strict=True)
        )
    if isinstance(old, float):
        return _numbers_agree(old, new, numbers)
    if isinstance(old, str):
        if NUMBER.split(old) != NUMBER.split(new):
            return False
        pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
        return all(_numbers_agree(float(before), float(after), numbers) for before, after in pairs)
    return bool(old == new)


def _numbers_agree(old: float, new: float, tolerance: float) -> bool:
    if math.isnan(old) or _is_written(old):
        return old == new or (math.isnan(old) and math.isnan(new))
    return math.isclose(old, new, rel_tol=tolerance)


def _is_written(number: float) -> bool:
    return float(f"{number:.{WRITTEN}g}") == number


def _arrays_agree(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> bool:
    if old["array"] != new["array"]:
        return False
    before, after = (
        [*of.get("numbers", ()), *of.get("sums", ()), of.get("norm", 0.0)] for of in (old, new)
    )
    sizes = [
        abs(number)
        for number in [*old.get("numbers", ()), old.get("norm", 0.0)]
        if math.isfinite(number)
    ]
    return all(
        abs(a - b) <= tolerance * max(sizes)
        if math.isfinite(a)
        else _numbers_agree(a, b, tolerance)
        for a, b in zip(before, after, strict=True)
    )


def _changed(old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, list) and isinstance(new, list):
        before, after = (
            [line if isinstance(line, str) else json.dumps(line) for line in part]
            for part in (old, new)
        )
        for line in difflib.unified_diff(before, after, lineterm="", n=0):
            if not line.startswith(("---", "+++")):
                yield f"    {line}"
    else:
        yield f"    old: {_text(old)}"
        yield f"    new: {_text(new)}"


def _text(value: Any) -> str:
    return "(nothing)" if value is _Missing else json.dumps(value, sort_keys=True)
