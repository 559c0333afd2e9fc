"""The benchmark of accountants runs, its answers agree, and its rows are as promised."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
from conftest import ROOT

COLUMNS = {"case", "variant", "ratio", "low", "high", "seconds", "peak_mib"}


@pytest.fixture
def accounting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("accounting")


@pytest.mark.filterwarnings("ignore")
def test_every_case_beside_the_peers(accounting: ModuleType) -> None:
    for peer in ("opacus", "prv_accountant"):
        pytest.importorskip(peer, reason=f"the peer {peer} is not installed: pip install 'privlearn[test]'")
    cases = accounting.cases(accounting.SMOKE)
    rows = [row for case in cases for row in accounting.common.measure(case)]
    assert len(rows) == sum(len(case.variants) for case in cases)
    for row in rows:
        assert set(row.plain()) == COLUMNS
        assert row.seconds > 0
        assert 0 < row.low <= row.ratio <= row.high


def test_an_answer_apart_from_the_baselines_fails(accounting: ModuleType) -> None:
    common = accounting.common
    baseline, error = common.Variant("a", lambda: 1.0), common.Variant("b", lambda: 1.1, within=0.02, slack=0.1)
    apart, absent = (
        common.Variant("c", lambda: 1.1, within=0.02),
        common.Variant("d", lambda: 1.0, ("no_such_peer.part",)),
    )
    rows = common.measure(common.Case("case", "answer", (baseline, error, absent), 2))
    assert [row.variant for row in rows] == ["a", "b"]
    with pytest.raises(RuntimeError, match="apart"):
        common.measure(common.Case("case", "answer", (baseline, apart), 1))
