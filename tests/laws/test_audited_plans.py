"""The law of audits: which kinds of plan can be audited follows from the registry of plans.

A plan says by itself how it is run on neighbouring rows (`methods.neighbouring_runs.Attackable`),
and one that does not is refused. What it runs is charged exactly as the plan says.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import pytest

import privlearn as pv
from privlearn.auditing.whole_runs import runs_of
from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.errors import BadInput
from privlearn.methods.neighbouring_runs import Attackable, NeighbouringRuns
from privlearn.methods.statistics.metric_figures import NoisyMetrics
from tests.conftest import ROOT
from tests.laws.test_reprs import MADE
from tests.support.registries import REGISTRIES

KINDS = REGISTRIES["plans"]()


def plans() -> Iterator[AbstractPlan]:
    """One of each kind, with its noise."""
    for kind, cls in KINDS.items():
        assert cls.__name__ in MADE, f"{kind}: tests.laws.test_reprs needs an example"
        yield MADE[cls.__name__]()


PLANS = {plan.kind: plan for plan in plans()}


def rows_of_page() -> dict[str, str]:
    """What the page says of each kind of plan: its table of kinds."""
    text = (ROOT / "docs" / "auditing.md").read_text("utf-8")
    table = text.partition("| kind of plan | what is attacked |")[2].partition("\n\n")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return {
        kind.strip(" `"): attacked.strip() for kinds, attacked in cells for kind in kinds.split(",")
    }


def test_the_page_says_of_every_kind_what_is_attacked() -> None:
    said = rows_of_page()
    assert set(said) == set(KINDS)
    for kind, cls in KINDS.items():
        whole, step = issubclass(cls, Attackable), issubclass(cls, Plan)
        expected = "whole run" if whole else "one release" if step else "refused"
        assert expected in said[kind], kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_says_how_it_is_run_or_is_refused(kind: str) -> None:
    plan = PLANS[kind]
    if isinstance(plan, Attackable):
        assert "whole run" in runs_of(plan).text
    elif not isinstance(plan, Plan):
        with pytest.raises(BadInput, match="expected a plan with neighbouring_runs") as error:
            pv.audit(plan, trials=10)
        assert "candidates" in str(error.value) or not plan.trainings
        assert len(str(error.value)) <= 300


def test_a_new_kind_is_refused_until_it_says() -> None:
    @final
    @dataclass(frozen=True)
    class Silent(NoisyMetrics):
        adjacency: Adjacency | None = Adjacency.ZERO_OUT
        noise_multiplier: float | None = 1.0
        group_size: int = 1
        kind: ClassVar[str] = "silent"
        outputs: ClassVar[int] = 1  # type: ignore[misc]

        def require_targets(self, *shape: Any, **bounds: Any) -> None: ...
        def rows(self) -> list[tuple[str, str]]:
            return []

    @final
    class Saying(Silent):  # type: ignore[misc]
        def neighbouring_runs(self) -> NeighbouringRuns:
            return NeighbouringRuns(lambda *values: None, "nothing, whole run", is_adaptive=False)

    with pytest.raises(BadInput, match="a silent plan does not say"):
        pv.audit(Silent(), trials=10)
    assert pv.audit(Saying(), trials=10).ok


@pytest.mark.parametrize(
    "kind", [kind for kind, cls in KINDS.items() if issubclass(cls, Attackable)]
)
def test_what_is_attacked_is_charged_as_the_plan_says(kind: str) -> None:
    """With the example and without it, on the plan's kind of neighbour."""
    plan: Any = PLANS[kind]
    for took_part in (False, True):
        ledger = pv.Ledger()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs_of(plan).run(took_part, ledger, pv.Streams.new(1))
        assert tally(ledger.event) == tally(compose([plan.event()]))
        assert ledger.adjacency is plan.neighbours
