"""The study of steps at equal epsilon, in small and with made-up runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from privlearn_studies import better_steps
from privlearn_studies.better_steps import DEFAULT, SEQUENCES, WAYS, train
from privlearn_studies.runs import Call, Outcome, Runs


class MadeUp(Runs):
    """Figures that follow from the way: momentum gains, DiSK changes nothing, Adam loses."""

    def __call__(self, calls: Iterable[Call], seeds: Sequence[int]) -> dict[Call, list[Outcome]]:
        gains = {"bands, momentum": 0.02, "Adam": -0.03}
        found = {}
        for call in calls:
            rest = gains.get(call.way, 0.0) - (0.01 if call.rate == 4.0 else 0.0)
            found[call] = [
                Outcome(
                    figure=0.9 + rest + np.random.default_rng(seed).normal(0, 0.001),
                    epsilon=call.epsilon,
                    noise=1.0,
                )
                for seed in seeds
            ]
        return found


def test_cells_are_counted_against_the_default() -> None:
    findings = better_steps.run(False, None, MadeUp())
    cells = 5 * (len(better_steps.DATA) - 1) + 2
    assert f"bands, momentum is better in {cells} of {cells}, at least two thirds" in findings.notes
    assert f"| Adam | 0 | {cells} | 0 | {cells} | -3.00 |" in findings.notes
    assert f"| DiSK | 0 | 0 | {cells} | {cells} | +0.00 |" in findings.notes
    assert len(findings.rows) == 3 * cells * len(WAYS)
    assert findings.figure.panels


def test_every_way_has_as_many_tries() -> None:
    assert {len(way.tries) for way in WAYS.values()} == {6}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_in_small(way: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    optimizer, rate = WAYS[way].tries[0]
    for data in ("breast-cancer", SEQUENCES) if way == DEFAULT else ("breast-cancer",):
        outcome = train(
            0, data=data, epsilon=4.0, way=way, optimizer=optimizer, rate=rate, first=120, epochs=2
        )
        assert 0 <= outcome.figure <= 1
        assert 0 < outcome.epsilon <= 4.0
