"""Damaging JSON (and TOML's values) by structure: what flipped bits hardly ever reach.

    for damaged in structures(json.loads(content), seed=0, count=300):
        path.write_bytes(damaged)

Keys are deleted, doubled, moved and renamed, values swapped, retyped, blown up and buried.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

#: Stands where a key is to be written twice.
_TWICE = "\x00twice"
#: Values of the wrong type, at the edge, or meant to hurt whoever prints or adds them up.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    0.5,
    -0.0,
    1e-300,
    5e-324,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    float("-inf"),
    10**6,
    10**15,
    10**15 + 1,
    2**63,
    10**19,
    10**400,
    "",
    "0",
    "1e-5",
    "NaN",
    "linear",
    "mlp:1000000000000",
    "os:system",
    "add_remove",
    "replace_one",
    "seeded",
    "gaussian",
    "\ud800",
    "\u202e",
    "\x1b[2J",
    "[/]",
    "[bold]",
    "a\nprivlearn: fine",
    "\x00",
    "x" * 100_000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [0.0] * 1000,
    {"kind": "gaussian", "noise_multiplier": 1e-6},
    {"kind": "non_private", "reason": "[/]"},
    {"kind": "composed", "events": []},
    {"kind": "pure_dp", "epsilon": 1e-12},
    {"kind": "filter", "rho": 1e-24, "orders": [], "bounds": []},
)


def structures(value: Any, seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` damaged spellings of the JSON `value`, each of which differs; the same ones for
    the same seed.
    """
    draw = random.Random(seed)
    original, made = json.dumps(value), 0
    while made < count:
        damaged = {"": copy.deepcopy(value)}
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            draw.choice(WAYS)(damaged, draw)
        text = json.dumps(damaged[""]).replace(f'"{_TWICE}', '"')
        if text != original:
            made += 1
            yield text.encode()


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) below `value`."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        at = waiting.pop()
        items = (
            at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ()
        )
        for key, inner in list(items)[:50]:
            found.append((at, key))
            waiting.append(inner)
    return found


def _any(root: Any, draw: random.Random, kind: type = object) -> tuple[Any, Any]:
    return draw.choice([place for place in places(root) if isinstance(place[0], kind)])


def delete(root: dict[str, Any], draw: random.Random) -> None:
    """A key or an entry is gone."""
    where, key = _any(root, draw)
    if where is not root:
        del where[key]


def double(root: dict[str, Any], draw: random.Random) -> None:
    """A key stands there twice, with the same or another value; an entry is repeated."""
    where, key = _any(root, draw)
    if isinstance(where, list):
        where.insert(key, copy.deepcopy(where[key]))
    elif where is not root and not str(key).startswith(_TWICE):
        where[_TWICE + key] = copy.deepcopy(draw.choice((where[key], draw.choice(VALUES))))


def move(root: dict[str, Any], draw: random.Random) -> None:
    """A value is taken from where it is and put somewhere else."""
    where, key = _any(root, draw)
    if where is root:
        return
    value = where.pop(key)
    to, place = _any(root, draw)
    if isinstance(to, list):
        to.insert(place, value)
    else:
        to[key if to is not root and isinstance(key, str) else place] = value


def swap(root: dict[str, Any], draw: random.Random) -> None:
    """Two values change places, or one is copied over the other."""
    (one, a), (other, b) = _any(root, draw), _any(root, draw)
    if root in (one, other) or draw.random() < 0.5:
        one[a] = copy.deepcopy(other[b])
    else:
        one[a], other[b] = copy.deepcopy(other[b]), copy.deepcopy(one[a])


def rename(root: dict[str, Any], draw: random.Random) -> None:
    """A key becomes another one of the file, or one of `VALUES`."""
    where, key = _any(root, draw, dict)
    if where is root:
        return
    names = [name for _, name in places(root) if isinstance(name, str)]
    where[draw.choice([*names, *(str(value)[:1000] for value in VALUES)])] = where.pop(key)


def retype(root: dict[str, Any], draw: random.Random) -> None:
    """A value becomes one of `VALUES`, or is spelled in another type."""
    where, key = _any(root, draw)
    value = where[key]
    ways = [draw.choice(VALUES)] * 3 + [[value], {"value": value}, str(value)[:1000]]
    if isinstance(value, float) and value == value and abs(value) < 1e300:
        ways += [int(value), repr(value)]
    elif isinstance(value, int):
        ways += [float(min(value, 10**300)), bool(value)]
    where[key] = copy.deepcopy(draw.choice(ways))


def scale(root: dict[str, Any], draw: random.Random) -> None:
    """A number is moved, a little or much."""
    numbers = [(at, key) for at, key in places(root) if type(at[key]) in (int, float)]
    if numbers:
        where, key = draw.choice(numbers)
        factor = draw.choice((0, -1, 0.5, 0.999, 1.001, 1 + 1e-9, 2, 10, 1e6, 1e-6, 1e30))
        where[key] = type(where[key])(where[key] * factor) if abs(where[key]) < 1e200 else 1


def bury(root: dict[str, Any], draw: random.Random) -> None:
    """A value is nested deeply in lists, in objects or in events."""
    where, key = _any(root, draw)
    value = where[key]
    kind = draw.randrange(3)
    for _ in range(draw.choice((2, 33, 79, 300))):
        if kind == 0:
            value = [value]
        elif kind == 1:
            value = {"a": value}
        else:
            value = {"kind": "repeated", "event": value, "count": 1000}
    where[key] = value


#: The ways of damaging a structure.
WAYS: tuple[Callable[[dict[str, Any], random.Random], None], ...] = (
    delete,
    double,
    move,
    swap,
    rename,
    retype,
    retype,
    scale,
    scale,
    bury,
)
