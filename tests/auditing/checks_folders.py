"""Named checks of `privlearn audit FOLDER`, and of what `verify` reads out of a folder for it."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.mechanisms import PoissonSampled
from privlearn.errors import BadInput
from privlearn.methods.neighbouring_runs import is_attackable
from privlearn.publishing import publish
from tests.descent import checks_validation as validation_checks
from tests.publishing.checks import key_in, published, result, workplace
from tests.support.checks import check, must_raise


def audit_folder(folder: Path, *options: str) -> tuple[int, str]:
    """The exit status of `privlearn audit FOLDER`, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = main(["audit", str(folder), "--trials", "60", *options])
    return status, printed.getvalue()


def report_of(folder: Path, *options: str) -> dict[str, Any]:
    status, printed = audit_folder(folder, "--json", *options)
    assert status == 0, printed
    report: dict[str, Any] = json.loads(printed[printed.index("{") :])
    return report


@check
def check_verification_holds_plan_events_and_claims() -> None:
    with workplace() as place:
        checked = pv.verify(published(place))
    run = result()
    assert checked.ok
    assert checked.plan == run.plan
    assert checked.events is not None
    assert tally(checked.events) == tally(run.plan.event())
    claims = accountant.guarantees(run.plan.event(), run.plan.neighbours, 1e-5)
    assert checked.claims == claims
    assert checked.claims[0].epsilon == checked.epsilon
    assert not {"plan", "events", "claims"} & set(checked.to_json())
    json.dumps(checked.to_json())


@check
def check_a_published_folder_is_attacked_with_the_numbers_of_its_plan() -> None:
    with workplace() as place:
        key = key_in(place)
        folder = published(place, delta=1e-6, sign=key)
        report = report_of(folder, "--key", f"{key}.pub")
    plan = result().plan
    (step,) = {leaf for leaf in tally(plan.event()) if isinstance(leaf, PoissonSampled)}
    assert f"noise multiplier {step.event.noise_multiplier:.4g}" in report["attack"]
    assert report["delta"] == 1e-6
    one = accountant.guarantee(step, plan.neighbours, 1e-6)
    assert abs(report["epsilon_claimed"] - one.epsilon) < 1e-3 * one.epsilon


@check
def check_noise_that_reacts_is_attacked_where_it_starts() -> None:
    plan = validation_checks.settled(
        pv.Shuffle(5), pv.schedules.Validation(0.6, start=7.0, noise=9.0)
    )
    with tempfile.TemporaryDirectory() as place:
        folder = publish.publish(validation_checks.train(plan), Path(place) / "model")
        assert "noise multiplier 7" in report_of(folder)["attack"]


@check
def check_a_published_run_of_persons_is_attacked_as_its_card_says() -> None:
    """By made-up persons; the card of a federated run does not advise what can't be run."""
    rng = np.random.default_rng(0)
    x, ids = rng.random((60, 2), np.float32), np.arange(60) // 3
    rows = pv.Dataset(x, rng.integers(2, size=60), classes=2, low=0.0, high=1.0, groups=ids)
    run = pv.train(rows, epsilon=8, delta=1e-3, epochs=2, examples=20, rows_per_person=2)
    with workplace() as place:
        folder = publish.publish(run, place / "model", delta=1e-3)
        card = (folder / "README.md").read_text()
        assert "privlearn audit ." in card
        assert "on 20 persons |" in card
        assert "on 20 examples" not in card
        assert "persons of up to 2 rows" in report_of(folder)["attack"]
    clients = replace(run.plan, sampling=pv.Poisson(0.5), budget=None, front=(), temperature=None)
    clients = replace(clients, rows_per_person=None, persons=True)
    assert is_attackable(run.plan)
    assert not is_attackable(clients)
    error = must_raise(BadInput, lambda: pv.audit(clients))
    assert "clients of a federation" in str(error)


@check
def check_a_folder_that_does_not_verify_is_not_attacked() -> None:
    with workplace() as place:
        folder = published(place)
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        status, printed = audit_folder(folder)
    assert status == 2, printed
    assert "does not verify" in printed
    assert "certified" in printed


@check
def check_what_a_certificate_says_is_not_said_again() -> None:
    with workplace() as place:
        folder = published(place)
        for option in ("--noise-multiplier", "--batch-size"):
            status, printed = audit_folder(folder, option, "2")
            assert (status, "without FOLDER" in printed) == (2, True), printed
