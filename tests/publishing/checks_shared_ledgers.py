"""Named checks of what is published of a run whose ledger holds other runs; mutations must make
them fail.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import privlearn as pv
from privlearn.core import streams
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput
from privlearn.models import networks
from privlearn.publishing import certificate, folder, publish, verify
from privlearn.publishing.folder import CARD, CERTIFICATE
from privlearn.publishing.verify import Verification
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, small_data

BUDGET = pv.Budget(5.0, 1e-5)


def plan(noise: float) -> pv.Plan:
    return pv.Plan(pv.Poisson(0.25), epochs=2, schedule=pv.schedules.Constant(noise), examples=1000)


FIRST, SECOND = plan(4.0), plan(3.0)


def train(which: pv.Plan, ledger: pv.Ledger) -> Any:
    build = lambda shape: networks.build(  # noqa: E731
        "linear", shape, 3, streams.Streams.new(0).initialisation
    ).double()
    return pv.dpsgd(
        which, build, cross_entropy, small_data(), ledger=ledger, streams=streams.Streams.new(0)
    )


@lru_cache(maxsize=1)
def results() -> dict[str, Any]:
    """The second of two runs on a ledger: chosen later, approved beforehand, and without a
    limit.
    """
    chosen, fixed, recording = pv.Ledger(BUDGET), pv.Ledger(BUDGET), pv.Ledger()
    fixed.approve(FIRST, SECOND)
    for ledger in (chosen, fixed, recording):
        train(FIRST, ledger)
    return {
        "chosen later": train(SECOND, chosen),
        "approved beforehand": train(SECOND, fixed),
        "on a record": train(SECOND, recording),
    }


def published(name: str) -> tuple[dict[str, Any], Verification, str]:
    """The claim, what verifying says, and the card."""
    with tempfile.TemporaryDirectory() as place:
        out = publish.publish(results()[name], Path(place) / "model", delta=1e-5)
        claim = certificate.parse((out / CERTIFICATE).read_bytes())["claim"]
        return claim, verify.verify(out), (out / CARD).read_text()


@check
def check_a_run_that_was_chosen_later_claims_the_limit() -> None:
    claim, found, card = published("chosen later")
    own = SECOND.guarantee(1e-5)
    assert found.ok, found.problems
    assert math.isclose(claim["epsilon"], 5.0, rel_tol=1e-9)
    assert found.runs == certificate.ADAPTIVE
    assert "may have been chosen after earlier results" in certificate.ADAPTIVE
    assert found.run_epsilon == claim["ledger"]["run_epsilon"] == own.epsilon < 5.0
    assert "may have been chosen after earlier results" in card and "by itself costs" in card  # noqa: PT018
    assert found.warnings == [
        "the run used a fixed seed: anyone who knows the seed can take the noise off the "
        "weights, and then nothing is protected"
    ]


@check
def check_runs_that_were_approved_beforehand_are_claimed_as_fixed() -> None:
    claim, found, card = published("approved beforehand")
    both = accountant.guarantee(compose([FIRST.event(), SECOND.event()]), FIRST.neighbours, 1e-5)
    assert found.ok, found.problems
    assert claim["epsilon"] == both.epsilon < 5.0
    assert found.runs == certificate.FIXED
    assert found.run_epsilon == SECOND.guarantee(1e-5).epsilon
    assert "all fixed before the first release" in card


@check
def check_a_run_on_a_record_claims_itself_alone() -> None:
    claim, found, card = published("on a record")
    assert found.ok, found.problems
    assert claim["epsilon"] == SECOND.guarantee(1e-5).epsilon
    assert found.runs == certificate.ALONE
    assert any("for this run alone" in warning for warning in found.warnings)
    assert "there is none for all of them together" in card


@check
def check_a_first_run_says_nothing_of_others() -> None:
    ledger = pv.Ledger(BUDGET)
    with tempfile.TemporaryDirectory() as place:
        out = publish.publish(train(FIRST, ledger), Path(place) / "model", delta=1e-5)
        claim = certificate.parse((out / CERTIFICATE).read_bytes())["claim"]
        found = verify.verify(out)
        assert found.ok and found.runs is None and "ledger" not in claim  # noqa: PT018
        assert claim["epsilon"] == FIRST.guarantee(1e-5).epsilon
        # Published after another run was made, it claims the limit, too.
        first = train(FIRST, second := pv.Ledger(BUDGET))
        train(SECOND, second)
        later = publish.publish(first, Path(place) / "later", delta=1e-5)
        assert math.isclose(verify.verify(later).epsilon or 0.0, 5.0, rel_tol=1e-9)


@check
def check_what_is_said_of_other_runs_is_compared() -> None:
    """A careful forger, who mends all digests."""
    edits: dict[str, list[Any]] = {
        "chosen later": [
            ("runs", certificate.FIXED),
            ("runs", certificate.ALONE),
            ("runs", "none"),
            ("run_epsilon", 0.1),
            None,
        ],
        "approved beforehand": [
            ("runs", certificate.ADAPTIVE),
            ("runs", certificate.ALONE),
            ("run_epsilon", 0.1),
            None,
        ],
        "on a record": [("runs", certificate.ADAPTIVE), ("run_method", "rdp")],
    }
    for name, changes in edits.items():
        with tempfile.TemporaryDirectory() as place:
            out = publish.publish(results()[name], Path(place) / "model", delta=1e-5)
            text = (out / CERTIFICATE).read_text()
            for change in changes:
                body = json.loads(text)
                if change is None:
                    del body["claim"]["ledger"]
                else:
                    body["claim"]["ledger"][change[0]] = change[1]
                assert not checked(out, body).ok, (name, change)
            if name == "chosen later":  # a run that the limit would not have let through
                body = json.loads(text)
                loud = plan(1.0)
                body["plan"] = loud.to_json()
                own = loud.guarantee(1e-5)
                body["claim"]["ledger"] |= {
                    "run_epsilon": own.epsilon,
                    "run_method": own.method,
                    "run_rho": own.rho,
                }
                found = checked(out, body)
                assert any("not within its limit" in problem for problem in found.problems), (
                    found.problems
                )


def checked(out: Path, body: dict[str, Any]) -> Verification:
    body["digests"] = {part: certificate.digest(body[part]) for part in certificate.PARTS}
    (out / CERTIFICATE).write_text(json.dumps(body))
    return verify.verify_contents(folder.read(out))


@check
def check_only_what_was_charged_is_published() -> None:
    """The plan of a result must have releases that its ledger holds, and its facts must follow from
    it.
    """
    result = replace(results()["chosen later"], ledger=pv.Ledger(BUDGET))
    result.ledger.charge(Gaussian(40.0), FIRST.neighbours)
    assert tally(result.ledger.event) == {Gaussian(40.0): 1}
    with tempfile.TemporaryDirectory() as place:
        must_raise(BadInput, lambda: publish.publish(result, Path(place) / "model", delta=1e-5))
