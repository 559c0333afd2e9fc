"""What a spec of correlated noise reads as, and what its coefficients are worth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from privlearn.core.mechanisms.banded import Banded, deviation
from privlearn.core.mechanisms.bisr import BISR
from privlearn.core.mechanisms.blt import BLT
from privlearn.core.mechanisms.matrices import choices, spec
from privlearn.errors import BadInput
from tests.support.registries import completed


def test_a_spec_reads_as_its_correlations() -> None:
    assert choices("independent") == [None]
    assert choices("banded:bands=8,momentum=0.9") == [Banded(8, momentum=0.9)]
    left_open = choices("banded:momentum=0.9")
    assert [each.bands for each in left_open if each] == sorted(
        {each.bands for each in left_open if each}
    )
    assert len(left_open) > 1
    assert choices("bisr:bands=8") == [BISR(8)]
    assert choices("blt:buffers=2,momentum=0.9") == [BLT(2, momentum=0.9)]
    assert [spec(each) for each in choices("blt")] == [
        f"blt:buffers={number}" for number in BLT.tried
    ]
    for each in completed("correlations", (None, Banded(8, 0.25), BISR(16), BLT(1, 0.5))):
        assert choices(spec(each)) == [each]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("independent:bands=2", "independent noise has no parameters"),
        ("banded:width=2", "no parameter 'width': expected bands, momentum"),
        ("banded:bands=1.5", "bands"),
        (
            "blt:bands=2",
            "no parameter 'bands': expected buffers, momentum, for example blt:buffers=",
        ),
        ("bisr:bands=0", "bands"),
        ("blurred:bands=2", "independent"),
    ],
)
def test_a_wrong_spec_is_refused(given: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        choices(given)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_error_is_that_of_weights(momentum: float) -> None:
    """Against a dense matrix: the weights that SGD makes of y, where C y = z."""
    steps = 12
    c = Banded(4, momentum=momentum).coefficients(steps)
    assert float(c @ c) <= 1
    matrix = sum(value * np.eye(steps, k=-j) for j, value in enumerate(c))
    velocity = np.array(
        [[momentum ** (t - s) if s <= t else 0.0 for s in range(steps)] for t in range(steps)]
    )
    weights = np.tril(np.ones((steps, steps))) @ velocity @ np.linalg.inv(matrix)
    expected = np.sqrt(np.square(weights).sum() / steps)
    assert Banded(4, momentum=momentum).deviation(steps) == pytest.approx(expected, rel=1e-9)
    assert deviation([1.0], momentum, steps) > expected, "independent noise has the larger error"


@pytest.mark.parametrize(
    ("steps", "separation", "buffers", "share"),
    [
        (300, 60, 1, 0.25088),
        (300, 60, 2, 0.24788),
        (1000, 100, 1, 0.17597),
        (1000, 100, 2, 0.17236),
    ],
)
def test_buffered_noise_is_as_little_as_that_of_jax_privacy(
    steps: int, separation: int, buffers: int, share: float
) -> None:
    """Of the matrices that its version 2.0 optimises, for the mean squared error, with its
    sensitivity.
    """
    assert BLT(buffers).relative_deviation(steps, separation) == pytest.approx(share, rel=1e-4)


@pytest.mark.parametrize("noise", [0.8, 1.0, 4.0])
def test_a_step_of_a_sampler_with_rests_costs_more_than_its_rate(noise: float) -> None:
    """Why there is none (docs/decisions): by all ways to take part, at order 2, beside one sampled
    release a step.
    """
    bands, steps, rate = 3, 9, 0.1
    c = np.asarray(Banded(bands).coefficients(steps))
    columns = sum(value * np.eye(steps + bands - 1, steps, k=-j) for j, value in enumerate(c))
    sums, chances = [], []
    for took in itertools.product((0.0, 1.0), repeat=steps):
        chance, rest = 1.0, 0
        for one in took:
            chance *= 1 - one if rest else rate if one else 1 - rate
            rest = bands - 1 if one else max(rest - 1, 0)
        if chance:
            sums.append(columns @ took)
            chances.append(chance)
    assert sum(chances) == pytest.approx(1)
    moved = np.array(sums)
    true = math.log(np.array(chances) @ np.exp(moved @ moved.T / noise**2) @ np.array(chances))
    easy = steps * math.log1p(rate**2 * math.expm1(1 / noise**2))
    cycles = steps // bands * math.log1p((bands * rate) ** 2 * math.expm1(1 / noise**2))
    assert 1.1 * easy < true < cycles
