"""What `release` refuses before anything is charged, and that several parts share one unit of
sensitivity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from privlearn import Ledger
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.mechanisms.noise import known_answer
from privlearn.core.mechanisms.release import release
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, PrivlearnError, SampleReused
from tests.support.nets import one_sample, seen

ADD_REMOVE = Adjacency.ADD_REMOVE


def _bounded(value: torch.Tensor, sample: Any, *, sensitivity: float = 1.0, **more: Any) -> Bounded:
    facts = {"adjacency": ADD_REMOVE, "sample": sample, "contributions": seen(sensitivity), **more}
    return Bounded((value,), sensitivity, **facts)


def _release(*parts: Bounded, ledger: Ledger, **more: Any) -> Any:
    return release(*parts, noise_multiplier=2.0, ledger=ledger, stream=Streams.new(3).noise, **more)


def test_a_refused_release_charges_nothing() -> None:
    value, sample, ledger = torch.zeros(4), one_sample(), Ledger()
    own = _bounded(value, sample)
    refused: list[tuple[type[Exception], tuple[Bounded, ...], dict[str, Any]]] = [
        (BadInput, (), {}),
        (SampleReused, (own, _bounded(value, one_sample())), {}),
        (PrivlearnError, (own, _bounded(value, sample, adjacency=Adjacency.ZERO_OUT)), {}),
        (BadInput, (_bounded(value, sample, norm="L1"),), {}),
        (BadInput, (_bounded(value.half(), sample),), {}),
        (BadInput, (_bounded(torch.zeros(3, 4).t(), sample),), {}),
        (BadInput, (own, own), {"shares": [1.0]}),
        (BadInput, (own, own), {"shares": [0.8, 0.7]}),
        (BadInput, (own, own), {"shares": [0.6, 0.4, 0.4]}),
        (BadInput, (own, own), {"shares": [1.0, 0.0]}),
    ]
    for kind, parts, more in refused:
        with pytest.raises(kind):
            _release(*parts, ledger=ledger, **more)
    assert not ledger.event.events
    assert not value.any()
    _release(own, ledger=ledger)
    assert len(ledger.event.events) == 1


@pytest.mark.parametrize(
    "shares", [None, [0.6, 0.8], [0.3, 0.3], [1e-3, math.sqrt(1 - 1e-6)], [0.6, 0.8 + 1e-10]]
)
def test_parts_share_one_unit_of_sensitivity(shares: list[float] | None) -> None:
    """Squares of sensitivity over standard deviation add up to at most that of the event; 40,000
    draws of each part.
    """
    sample = one_sample()
    parts = [
        _bounded(torch.zeros(40_000, dtype=torch.float64), sample, sensitivity=own)
        for own in (0.5, 3.0)
    ]
    noisy = _release(*parts, ledger=Ledger(), shares=shares)
    given = [1 / math.sqrt(2)] * 2 if shares is None else shares
    for (value,), part, share in zip(noisy, parts, given, strict=True):
        assert np.std(value.numpy()) == pytest.approx(2.0 * part.sensitivity / share, rel=0.02)


def test_noise_comes_from_the_published_key_stream() -> None:
    own, published = known_answer()
    assert own == published
