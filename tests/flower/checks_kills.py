"""Named checks of servers of a federation that stop and go on; planted bugs must make them fail.
They skip where Flower is not installed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.checks import check


class Stopped(BaseException):
    """The process is gone."""


def _parts() -> Any:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.flower import killed_federation

    return killed_federation


@check
def check_a_server_that_stops_goes_on_with_the_same_noise_and_one_charge() -> None:
    """It stops after the charge of a release, before its noise: sites that are asked again would
    say something else.
    """
    import privlearn as pv
    from privlearn.core.mechanisms import release

    parts = _parts()
    for draws in (0, 1, parts.QUERIES - 1):
        left, add = [draws], release._add_noise

        def stop(*parts: Any, left: list[int] = left, add: Any = add) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Stopped
            return add(*parts)

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            parts.shared[parts.ASKED] = 0
            with mock.patch.object(release, "_add_noise", stop), pytest.raises(Stopped):
                parts.serve(folder)
            before = parts.drawn(folder)
            assert len(before) == draws
            answers = parts.serve(folder)
            pairs = parts.drawn(folder)[draws:]
            assert parts.shared[parts.ASKED] == parts.SITES
            assert pairs[:draws] == before
            assert answers.scores.tolist() == [pair[1][0] for pair in pairs]
            counts = _counts(parts)
            assert [pair[0][0] for pair in pairs] == counts
            assert [each for each in parts.charged(folder) if each] == [parts.QUERIES]
            assert pv.Ledger.open(folder / "ledger").event == parts.PLAN.event()


def _counts(parts: Any) -> list[list[float]]:
    """Votes of all sites, when they are asked for the first time."""
    counts = [[0.0] * parts.CLASSES for _ in range(parts.QUERIES)]
    for site in range(parts.SITES):
        for query, vote in enumerate(parts.votes(site, 0)):
            counts[query][vote] += 1.0
    return counts
