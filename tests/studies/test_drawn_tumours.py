"""Drawn tumours: the same in each call, four classes in four channels, one scan by itself."""

from __future__ import annotations

import numpy as np

from privlearn_studies.fay2020.tumours import CLASSES, SIZE, draw


def test_scans_follow_from_their_seed() -> None:
    one, again, other = (draw(np.random.default_rng([7, row])) for row in (0, 0, 1))
    assert np.array_equal(one[0], again[0])
    assert np.array_equal(one[1], again[1])
    assert not np.array_equal(one[1], other[1])


def test_every_class_is_drawn_and_seen() -> None:
    """In each scan; the part with contrast is bright in T1 with contrast alone, the swelling in
    FLAIR.
    """
    bright = []
    for row in range(12):
        x, y = draw(np.random.default_rng([7, row]))
        assert (x.shape, y.shape) == ((4, *SIZE), SIZE)
        assert 0 <= x.min() <= x.max() <= 1
        assert set(np.unique(y)) == set(range(CLASSES))
        bright.append(
            [[x[channel][y == number].mean() for channel in range(4)] for number in range(CLASSES)]
        )
    _, core, swelling, contrast = np.mean(bright, 0)
    assert contrast[1] > max(core[1], swelling[1]) + 0.1
    assert swelling[3] > core[3]
