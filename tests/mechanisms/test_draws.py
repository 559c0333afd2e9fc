"""Noise at the ends of what a stream can hold, and noise of parts of a whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from privlearn.core.mechanisms.noise import (
    _BLOCK,
    _BLOCK_ON_GRID,
    add_gaussian,
    add_on_grid,
    gaussian,
)
from privlearn.core.mechanisms.selection import gumbel, truth
from privlearn.core.streams import Streams

ENDS = (-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1)


@pytest.mark.parametrize("word", ENDS)
def test_no_word_of_a_stream_gives_infinite_noise(word: int) -> None:
    """Where logarithms of 0 would be: a sum of NaN tells that one of 2^64 words was drawn, and
    spoils the model.
    """
    pair = np.array([word, 0], dtype=np.int64)  # beside one that is in the middle
    stream: Any = SimpleNamespace(words=lambda count: np.resize(pair, count))
    for dtype in (torch.float32, torch.float64):
        draws = gaussian(9, dtype, stream)
        assert draws.shape == (9,)
        assert draws.isfinite().all()
        assert draws.abs().max() < 13  # sqrt(-4 ln 2^-53) = 12.1
    assert gumbel(5, stream).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(7, 5), (_BLOCK, 3), (2 * _BLOCK + 5, _BLOCK - 2)])
def test_parts_get_the_noise_that_the_whole_gets(
    dtype: torch.dtype, sizes: tuple[int, int]
) -> None:
    """And the stream is at the same place afterwards: the next release has the same noise, too."""
    _require_parts_agree(dtype, sizes, lambda *given: add_gaussian(given[0], 1.5, *given[1:]))


def test_parts_get_the_noise_that_the_whole_gets_on_a_grid() -> None:
    sizes = (_BLOCK_ON_GRID + 3, 5)
    _require_parts_agree(
        torch.float64,
        sizes,
        lambda *given: add_on_grid(given[0], 1.5, 1.0, *given[1:]),
        discrete=True,
    )


def _require_parts_agree(
    dtype: torch.dtype, sizes: tuple[int, int], add: Any, *, discrete: bool = False
) -> None:
    wholes = [torch.zeros(size, dtype=dtype) for size in sizes]
    stream = Streams.new(5, discrete=discrete).noise
    add(wholes, stream)
    after = stream.words(4)
    assert all(whole.any() for whole in wholes)
    for first, last in ((0.0, 0.3), (0.3, 0.3), (0.3, 1.0), (0.0, 1.0), (0.99, 1.0)):
        begins, ends = ([round(share * size) for size in sizes] for share in (first, last))
        parts = [
            torch.zeros(end - begin, dtype=dtype) for begin, end in zip(begins, ends, strict=True)
        ]
        stream = Streams.new(5, discrete=discrete).noise
        add(parts, stream, list(zip(begins, sizes, strict=True)))
        for part, whole, begin, end in zip(parts, wholes, begins, ends, strict=True):
            assert torch.equal(part, whole[begin:end])
        assert np.array_equal(stream.words(4), after)


@pytest.mark.parametrize("categories", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_a_randomised_response_is_as_much_more_likely_as_epsilon_allows(
    epsilon: float, categories: int
) -> None:
    """Of two records with different answers, the one that has it reports it at most e^epsilon times
    as often.
    """
    own = truth(epsilon, categories)
    assert own / ((1 - own) / (categories - 1)) == pytest.approx(np.exp(epsilon), rel=1e-12)
