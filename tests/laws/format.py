"""Writes the schemas in docs/format, which follow from the classes, and prices of some events:
`python -m tests.laws.format`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event, Repeated, compose, to_json
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import (
    ZCDP,
    FixedBatches,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    Selection,
)
from privlearn.core.accounting.pld.truncation import TruncatedPoissonSampled
from privlearn.core.accounting.trees import (
    Filter,
    GaussianFilter,
    OneOf,
    Parallel,
    RepeatAndSelect,
)
from privlearn.publishing.json_schema import make_schemas

FOLDER = Path(__file__).parents[2] / "docs" / "format"
PRICES = FOLDER / "prices.json"

_POISSON = Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1000)
_PARTITION = Repeated(Partitioned(20, Gaussian(1.5)), 10)
_ADD, _ZERO, _REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def list_cases() -> Iterator[tuple[Event, Adjacency, float, int]]:
    """An event, the neighbours, delta, and how many examples one person has."""
    yield Gaussian(2.0), _ADD, 1e-5, 1
    yield compose([Gaussian(2.0), FixedBatches(Gaussian(3.0))]), _REPLACE, 1e-6, 1
    yield Gaussian(2.0), _ADD, 1e-5, 4
    yield _POISSON, _ADD, 1e-5, 1
    yield _POISSON, _ZERO, 1e-9, 1
    yield _POISSON, _ADD, 1e-14, 1
    yield _POISSON, _ADD, 1e-5, 3
    yield PoissonSampled(0.3, Gaussian(0.6)), _ADD, 1e-5, 1
    yield Repeated(PoissonSampled(1e-3, Gaussian(0.7)), 100_000), _ADD, 1e-7, 1
    yield compose([_POISSON, Gaussian(4.0), Laplace(3.0)]), _ADD, 1e-5, 1
    yield Repeated(TruncatedPoissonSampled(0.01, 10_000, 150, Gaussian(1.0)), 500), _ZERO, 1e-5, 1
    yield Repeated(TruncatedPoissonSampled(0.01, 10_000, 150, Gaussian(1.0)), 500), _ZERO, 1e-5, 2
    yield _PARTITION, _ADD, 1e-5, 1
    yield Partitioned(7, Gaussian(1.0)), _ZERO, 1e-6, 1
    yield _PARTITION, _ZERO, 1e-5, 2
    yield compose([_PARTITION, Repeated(Partitioned(20, Gaussian(1.2)), 5)]), _ADD, 1e-5, 1
    yield Repeated(Laplace(10.0), 50), _ADD, 1e-5, 1
    yield Laplace(2.0), _ADD, 1e-5, 1
    yield Repeated(Laplace(10.0), 50), _ADD, 1e-5, 3
    yield Repeated(RandomisedResponse(0.5, 4), 20), _ZERO, 1e-5, 1
    yield RandomisedResponse(1.5, 10), _REPLACE, 1e-5, 2
    yield Repeated(Selection(0.2), 30), _ADD, 1e-5, 1
    yield compose([Repeated(Selection(0.2), 30), _POISSON]), _ADD, 1e-5, 1
    yield Repeated(PureDP(0.1), 40), _ADD, 1e-6, 1
    yield compose([PureDP(0.1), Gaussian(1.0)]), _ADD, 1e-6, 2
    yield ZCDP(0.05), _ADD, 1e-5, 1
    yield compose([ZCDP(0.05), Gaussian(3.0)]), _REPLACE, 1e-5, 2
    yield compose([Parallel((_POISSON, _PARTITION)), Selection(0.5)]), _ADD, 1e-5, 1
    yield Repeated(Parallel((Gaussian(2.0), Laplace(1.5))), 3), _ZERO, 1e-5, 1
    yield compose([OneOf((_POISSON, _PARTITION)), Gaussian(5.0)]), _ADD, 1e-5, 1
    yield RepeatAndSelect(compose([_POISSON, Gaussian(10.0)]), 5.0, 1.0), _ADD, 1e-5, 1
    yield RepeatAndSelect(Gaussian(4.0), 3.0, 0.0), _ADD, 1e-5, 1
    yield RepeatAndSelect(Gaussian(4.0), 8.0, math.inf), _REPLACE, 1e-6, 2
    yield Filter(0.1), _ADD, 1e-5, 1
    yield Filter(0.1), _ADD, 1e-5, 3
    yield Filter(None, (4.0, 8.0, 32.0), (0.1, 0.25, 1.0)), _ADD, 1e-5, 1
    yield GaussianFilter(0.1), _ADD, 1e-5, 1
    yield compose([GaussianFilter(0.1), _POISSON]), _ZERO, 1e-5, 1


def files() -> dict[Path, str]:
    """The text of each schema, by where it belongs."""
    return {
        FOLDER / f"{name}.schema.json": json.dumps(schema, indent=1) + "\n"
        for name, schema in make_schemas().items()
    }


def price(event: Event, adjacency: Adjacency, delta: float, group_size: int) -> dict[str, Any]:
    """An event with its figures, as `prices.json` has it."""
    guarantees = accountant.guarantees(event, adjacency, delta, group_size)
    return {
        "events": to_json(event),
        "adjacency": adjacency.value,
        "delta": delta,
        "group_size": group_size,
        "epsilon": guarantees[0].epsilon,
        "method": guarantees[0].method,
        "rho": guarantees[0].rho,
        "by_method": {each.method: each.epsilon for each in guarantees},
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    rows = [json.dumps(price(*case)) for case in list_cases()]
    PRICES.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
