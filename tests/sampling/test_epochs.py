"""What samplers say of an epoch is what they draw."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from privlearn._public import kinds
from privlearn.core import sampling
from privlearn.errors import BadInput

SIZES = [(1, 1), (10, 3), (10, 10), (100, 32), (64, 32), (97, 8)]
NAMES = list(kinds(sampling.Sampler))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("examples", "batch_size"), SIZES)
def test_an_epoch_has_the_stated_batches(name: str, examples: int, batch_size: int) -> None:
    sampler = sampling.named(name, batch_size, examples)
    drawn = [sample.indices for sample in sampler.draw(examples, np.random.default_rng(1))]
    assert len(drawn) == sampler.steps(examples)
    if "poisson" not in name:  # each row once
        assert sorted(np.concatenate(drawn).tolist()) == list(range(examples))
    expected = sampler.expected_batch_size(examples)
    assert expected <= (examples if name == "full" else batch_size)
    if name == "full":
        assert expected == examples
    elif "partition" in name:
        assert expected * sampler.steps(examples) == pytest.approx(examples, rel=1e-12)
    elif "poisson" in name:
        assert expected == pytest.approx(batch_size, rel=1e-12)
    else:
        assert expected == max(map(len, drawn))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_no_larger_than_the_data(name: str) -> None:
    assert sampling.named(name, 7, 7).steps(7) == 1
    with pytest.raises(BadInput, match="more than the 7 examples"):
        sampling.named(name, 8, 7)


def test_the_maximum_is_given_with_the_name() -> None:
    assert sampling.named(
        "truncated-poisson:maximum=700", 600, 60_000
    ) == sampling.TruncatedPoisson(0.01, 60_000, 700)
    assert sampling.named("truncated-poisson", 600, 60_000) == sampling.TruncatedPoisson(
        0.01, 60_000, 803
    )
    assert sampling.named("truncated-poisson", 20, 20) == sampling.TruncatedPoisson(1.0, 20, 20)
    for spec in (
        "poisson:maximum=700",
        "truncated-poisson:most=700",
        "truncated-poisson:maximum=700.5",
    ):
        with pytest.raises(BadInput, match="cannot be read"):
            sampling.named(spec, 600, 60_000)
    with pytest.raises(BadInput, match="at least 602"):
        sampling.named("truncated-poisson:maximum=600", 600, 60_000)


def test_poisson_epochs_are_long_enough_for_every_row() -> None:
    for rate in (1.0, 0.5, 0.3, 0.1, 1 / 3, 1 / 7, 0.999, 1e-4):
        assert sampling.Poisson(rate).steps() == math.ceil(
            Fraction(1) / Fraction(rate).limit_denominator(10**6)
        )
