"""Named checks of what plans, results and guarantees look like; mutations must make them fail."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import torch
from torch import nn

import privlearn as pv
from privlearn.core.accounting import accountant, pld
from privlearn.core.accounting.budget import Budget
from privlearn.publishing.verify import Verification
from privlearn.runs.result import PrivateDiagnostics
from tests.support.checks import check
from tests.support.nets import cross_entropy, small_data, small_net

MOST = 600


def settled(epochs: int = 3) -> pv.Plan:
    return pv.Plan(pv.Poisson(0.3), epochs=epochs, examples=12).calibrate(epsilon=8.0, delta=1e-5)


def trained(seed: int = 1) -> pv.Result:
    plan, streams = settled(), pv.Streams.new(seed)
    return pv.dpsgd(plan, small_net(), cross_entropy, small_data(), streams=streams)


def require_short(value: Any) -> tuple[str, list[str]]:
    """The repr of a value, and the texts of its table in a notebook: computed without pricing
    anything.
    """
    with (
        mock.patch.object(
            accountant, "guarantees", side_effect=AssertionError("a repr prices events")
        ),
        mock.patch.object(pld, "epsilon", side_effect=AssertionError("a repr prices events")),
    ):
        text = repr(value)
        html = value._repr_html_() if hasattr(value, "_repr_html_") else ""
    assert len(text) <= MOST, (len(text), text)
    assert len(text.splitlines()) <= 6, text
    assert html.isprintable(), html
    cells = ElementTree.fromstring(html).iter() if html else []
    return text, [cell.text or "" for cell in cells if cell.tag in ("td", "th")]


@check
def check_reprs_are_short_and_price_nothing() -> None:
    """Also where names and numbers are long, and of plans whose noise is not settled."""
    long = "x" * 5000
    with tempfile.TemporaryDirectory() as folder:
        ledger = pv.Ledger.open(Path(folder, long[:200]), create=True)
        ledger.charge(settled().event(), settled().neighbours)
        require_short(ledger)
    problems = [long, long, long, long, long, long]
    for value in (
        Verification(False, 1.0, 1e-5, "zero_out", "pld", long, problems, problems),
        Verification(True, 1.0, 1e-5, "zero_out", "pld", long, [], problems, long, long, 0.5),
        Verification(False, None, None, None, None, None, [long]),
        pv.Plan(pv.Poisson(1e-9), epochs=100_000, schedule=pv.schedules.Exponential(k=1.0)),
        pv.Guarantee(1e-7, 1e-5, settled().neighbours, "pld", group_size=9999),
        PrivateDiagnostics(dict.fromkeys(map(str, range(1000)), 1.0)),
    ):
        text, cells = require_short(value)
        assert max(map(len, cells)) <= 200, text


@check
def check_texts_of_strangers_are_escaped() -> None:
    """What a published folder says, and a file's name, may hold anything."""
    evil = '<script>alert("1")</script>&amp;\x1b[31m\n  guarantee: epsilon 0'
    verification = Verification(False, 1.0, 1e-5, evil, evil, evil, [evil], [evil], evil)
    assert "<script" not in verification._repr_html_()
    text, cells = require_short(verification)
    assert "\x1b" not in text + "".join(cells)
    assert not any(line.startswith("  guarantee: epsilon 0") for line in text.splitlines())
    assert any('<script>alert("1")</script>&amp;' in cell for cell in cells)


@check
def check_a_repr_of_a_result_keeps_private_figures_to_itself() -> None:
    """Neither their values nor their names stand in it; theirs alone has the names."""
    result = trained()
    figures = result.private_diagnostics
    texts = [*require_short(result)[1], require_short(result)[0], result._repr_html_()]
    assert not any(
        name in text for text in texts for name in ("loss", "left_out", "clipped", "diagnostics")
    )
    values = {
        f"{value:.{digits}f}"[:5]
        for name in figures
        for value in figures[name]
        for digits in (3, 6)
        if value % 1
    }
    assert values
    for text in (repr(figures), figures._repr_html_()):
        assert "clipped_share" in text
        assert not any(value in text for value in values), text


@check
def check_reprs_say_what_a_thing_is_and_costs() -> None:
    plan, result = settled(), trained()
    run = pv.Run(plan, small_net(), cross_entropy, small_data())
    said = [require_short(value)[0] for value in (plan, run, result)]
    for text in said:
        assert "at most epsilon 8 at delta 1e-05" in text, text
        assert "add_remove neighbours" in text, text
        assert "one example" in text, text
        assert "poisson: sampling_rate 0.3" in text, text
        assert f"noise multiplier {plan.noise_multipliers()[0]:.4g}" in text, text
    assert "not begun: 0 of 12 steps" in said[1]
    batches = iter(next(iter(run)))
    run.step(next(batches))
    assert "under way: 1 of 12 steps" in repr(run)
    run.result()
    assert "over: 1 of 12 steps" in repr(run)
    assert "run.step(batch)" in said[1]
    whole = pv.Run(plan, small_net(), cross_entropy, small_data())
    for batch in whole.batches():
        whole.step(batch)
    assert repr(whole).endswith("  use: run.publish(folder)")
    assert 'pv.publish(result, "folder")' in said[2]
    assert "66 parameters" in said[2]  # 5 x 7 + 7 + 7 x 3 + 3
    assert "plan.guarantee(" in repr(pv.Plan(pv.Poisson(0.1)))
    assert "calibrate(" in repr(pv.statistics.LeastSquaresPlan(10, 64, 4.0))
    assert "no guarantee" in repr(result.ledger.spent(1e-5))
    assert "e^8" in repr(plan.guarantee(1e-5)) or "e^7.9" in repr(plan.guarantee(1e-5))
    assert "at most rho 0.5" in repr(pv.Plan(pv.Shuffle(4)).calibrate(rho=0.5))
    assert "none: it only records" in repr(pv.Ledger())
    assert "epsilon 3 at delta 1e-06" in repr(pv.Ledger(Budget(epsilon=3.0, delta=1e-6)))


@check
def check_reprs_of_published_models_say_what_is_certified() -> None:
    plan, net = settled(), nn.Sequential(nn.Flatten(), nn.Linear(5, 3)).double()
    result = pv.dpsgd(plan, net, cross_entropy, small_data(), streams=pv.Streams.new(1))
    with tempfile.TemporaryDirectory() as folder:
        pv.publish(result, f"{folder}/model", classes=3)
        checked = pv.verify(f"{folder}/model")
        text = require_short(checked)[0]
        assert "agrees with its certificate" in text
        assert (
            f"epsilon {checked.epsilon:.6g} at delta 1e-05, add_remove neighbours, by pld" in text
        )
        assert "signed by: no one" in text
        assert "warning: the run used a fixed seed" in text
        Path(folder, "model", "README.md").write_text("better")
        text = require_short(pv.verify(f"{folder}/model"))[0]
        assert "does not agree" in text.splitlines()[0]
        assert "problem: README.md" in text
        assert "guarantee:" not in text


@check
def check_reprs_are_the_same_on_neighbouring_data() -> None:
    """Whatever the rows are: of what is in a run, only its plan and its steps are said."""
    x, y = small_data()
    other = x.clone()
    other[-1] = 1e6

    def said(rows: torch.Tensor) -> list[str]:
        run = pv.Run(settled(), small_net(), cross_entropy, (rows, y), streams=pv.Streams.new(1))
        texts = []
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                texts += [repr(batch), repr(run)]
        result = run.result()
        return [
            *texts,
            repr(result),
            repr(result.ledger),
            result._repr_html_(),
            repr(result.private_diagnostics),
        ]

    assert said(x) == said(other)
