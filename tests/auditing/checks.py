"""Named checks of attacks: they find what is broken, and nothing in what is sound, as often as they
say.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.auditing import Audit, audit_training, distinguish, steps
from privlearn.auditing.bounds import Rates, epsilon_of_form, measured
from privlearn.auditing.one_run import one_run_epsilon, one_run_p_value
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.accounting.tradeoff import tradeoff
from privlearn.core.sampling import FullBatch, Sampler
from privlearn.errors import BadInput
from tests.support.checks import check, must_raise

NOISE, TRIALS, DELTA = 0.5, 400, 1e-5


def attack(
    sampler: Sampler,
    *own: Any,
    discrete: bool = False,
    trials: int = TRIALS,
    rows_per_person: int | None = None,
    **options: Any,
) -> Audit:
    """An audit of a step, seeded."""
    schedule = pv.schedules.Constant(NOISE)
    plan = pv.Plan(sampler, schedule=schedule, examples=100, rows_per_person=rows_per_person)
    streams = pv.Streams.new(7, discrete=discrete)
    return pv.audit(
        plan, *own, delta=DELTA, trials=trials, confidence=0.95, streams=streams, **options
    )


def require_kept(found: Audit, least: float) -> None:
    """The claim stands, and the attack is no weak one."""
    assert found.ok, found
    assert least * found.epsilon_claimed <= found.epsilon_lower <= found.epsilon_claimed, found
    assert found.epsilon_any <= found.epsilon_lower


@check
def check_a_step_on_all_examples_keeps_its_claim() -> None:
    require_kept(attack(FullBatch()), 0.6)


@check
def check_a_step_on_a_grid_keeps_its_claim() -> None:
    require_kept(attack(FullBatch(), discrete=True), 0.6)


@check
def check_a_poisson_step_keeps_its_claim() -> None:
    require_kept(attack(pv.Poisson(0.5)), 0.4)


@check
def check_a_partitioned_epoch_keeps_its_claim() -> None:
    require_kept(attack(pv.Partition(3)), 0.4)


@check
def check_a_step_of_fixed_batches_keeps_its_claim() -> None:
    require_kept(attack(pv.Shuffle(4)), 0.6)


@check
def check_a_step_on_persons_keeps_its_claim() -> None:
    """Made-up persons have as many rows as the plan uses of one; rows are clipped together."""
    for sampler, least in ((FullBatch(), 0.6), (pv.Poisson(0.5), 0.4), (pv.Shuffle(4), 0.6)):
        found = attack(sampler, rows_per_person=3)
        require_kept(found, least)
        assert "persons of up to 3 rows" in found.attack


@check
def check_persons_of_ones_own_are_attacked_as_a_whole() -> None:
    """The canary is a person with all their rows: by default that of the first row."""
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    x, y = rng.random((9, 4), np.float32), rng.integers(3, size=9)
    ids = np.array(["b", "a", "b", "c", "c", "c", "d", "e", "e"])
    data = pv.Dataset(x, y, classes=3, groups=ids, public=True)
    own = nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none"), data
    for options in ({}, {"canary": (x[0], y[0])}):
        require_kept(attack(FullBatch(), *own, rows_per_person=2, **options), 0.3)
    plan = pv.Plan(FullBatch(), examples=100, rows_per_person=2)
    _, among, of_canary = steps._neighbours(plan, data, None)
    assert (of_canary, among.examples, len(among.x)) == (2, 5, 8)
    assert len(set(among.groups[-2:])) == 1
    assert among.groups[-1] not in among.groups[:-2]
    without_ids = pv.Dataset(x, y, classes=3, public=True)
    must_raise(BadInput, lambda: attack(FullBatch(), *own[:2], without_ids, rows_per_person=2))


@check
def check_a_network_of_ones_own_keeps_its_claim() -> None:
    """With other examples, whose gradients the attacker has to see past, two layers, and
    dropout.
    """
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    data = pv.Dataset(
        rng.random((6, 4), np.float32), rng.integers(3, size=6), classes=3, public=True
    )
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3))
    found = attack(FullBatch(), network, nn.CrossEntropyLoss(reduction="none"), data, microbatch=2)
    require_kept(found, 0.3)


@check
def check_a_training_keeps_its_claim_from_end_to_end() -> None:
    """The weights that are released by three steps, of whole runs on neighbouring data."""
    rng = np.random.default_rng(2)
    x, y = rng.random((5, 2), np.float32), np.array([0, 1, 0, 1, 1])
    plan = pv.Plan(
        FullBatch(), 3, pv.schedules.Constant(1.0), examples=5, adjacency=Adjacency.ADD_REMOVE
    )
    streams = pv.Streams.new(3)

    def train(took_part: bool) -> Tensor:
        torch.manual_seed(0)
        own = slice(None) if took_part else slice(1, None)
        run = pv.dpsgd(
            plan,
            nn.Linear(2, 2),
            nn.CrossEntropyLoss(reduction="none"),
            pv.Dataset(x[own], y[own], classes=2),
            streams=streams,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        )
        return torch.cat([parameter.flatten() for parameter in run.model.parameters()])

    found = distinguish(train, plan.event(), plan.neighbours, trials=60)
    assert found.ok, found
    assert found.epsilon_lower == found.epsilon_any


def simulated(
    noise: float, trials: int, rng: np.random.Generator, rate: float = 1.0
) -> tuple[Any, Any]:
    """Scores of a Gaussian release of a sampled example."""
    return rng.normal(0, noise, trials), rng.normal(rng.random(trials) < rate, noise)


@check
def check_bounds_are_wrong_as_seldom_as_they_say() -> None:
    """Of 200 audits of sound claims at confidence .95, at most 18 refute: 10 are expected at
    most.
    """
    rng = np.random.default_rng(4)
    for rate, event in ((1.0, Gaussian), (0.3, lambda noise: PoissonSampled(0.3, Gaussian(noise)))):
        curve = tradeoff(event(1.0), Adjacency.ADD_REMOVE)
        refuted = sum(
            measured(*simulated(1.0, 1000, rng, rate), curve, 0.95).refute(curve)
            for _ in range(200)
        )
        assert refuted <= 18, (rate, refuted)


@check
def check_bounds_come_near_the_truth() -> None:
    """Three quarters of epsilon, from 20,000 trials at noise 1, and 40,000 at 4."""
    rng = np.random.default_rng(5)
    for noise, trials in ((0.5, 20_000), (1.0, 20_000), (4.0, 40_000)):
        curve = tradeoff(Gaussian(noise), Adjacency.ADD_REMOVE)
        rates = measured(*simulated(noise, trials, rng), curve, 0.95)
        lower = epsilon_of_form(rates.refute, Gaussian, Adjacency.ADD_REMOVE, noise, DELTA)
        claimed = (
            pv.Plan(FullBatch(), 1, pv.schedules.Constant(noise), examples=9)
            .guarantee(DELTA)
            .epsilon
        )
        assert 0.75 * claimed <= lower <= claimed, (noise, lower, claimed)


@check
def check_rates_are_clopper_and_pearsons() -> None:
    """0 of n at error e is at most 1 - e^(1/n), and n of n at least e^(1/n): closed forms."""
    rates = Rates.of(0, 100, 100, 100, 0.95)
    assert math.isclose(rates.false_positive, 1 - 0.025 ** (1 / 100), rel_tol=1e-9)
    assert math.isclose(rates.true_positive, 0.025 ** (1 / 100), rel_tol=1e-9)
    assert math.isclose(
        rates.epsilon(0.0), math.log(rates.true_positive / rates.false_positive), rel_tol=1e-9
    )
    assert Rates.of(100, 100, 0, 100, 0.95).epsilon(0.0) == 0.0


@check
def check_one_run_bounds_have_their_closed_forms() -> None:
    """Without delta, r of r right guesses have p-value (e^eps / (1 + e^eps))^r; delta raises it."""
    for guesses in (10, 100):
        share = 1 / (1 + math.exp(-2.0))
        assert math.isclose(
            one_run_p_value(500, guesses, guesses, 2.0, 0.0), share**guesses, rel_tol=1e-9
        )
        found = one_run_epsilon(500, guesses, guesses, 0.0, 0.95)
        root = 0.05 ** (1 / guesses)
        assert abs(found - math.log(root / (1 - root))) < 2e-4
        assert one_run_epsilon(500, guesses, guesses, 1e-3, 0.95) < found
    assert one_run_epsilon(100, 100, 50, 1e-5, 0.95) == 0.0


@check
def check_one_run_bounds_hold_for_randomised_response() -> None:
    """Whose right guesses are binomial with the bound's own share: of 300, at most 5 % and some
    more are refuted.
    """
    rng = np.random.default_rng(6)
    epsilon, canaries = 1.0, 200
    right = rng.binomial(canaries, 1 / (1 + math.exp(-epsilon)), 300)
    wrong = sum(
        one_run_epsilon(canaries, canaries, int(count), 0.0, 0.95) > epsilon for count in right
    )
    assert wrong <= 26, wrong


def broken(change: Callable[[Tensor], Tensor]) -> Audit:
    """An audit of a function whose noise is what it should not be."""
    generator = torch.Generator().manual_seed(8)

    def run(took_part: bool) -> Tensor:
        return float(took_part) * torch.ones(1) + change(torch.randn(1, generator=generator))

    return distinguish(run, Gaussian(1.0), Adjacency.ADD_REMOVE, trials=1000)


@check
def check_functions_of_ones_own_are_judged() -> None:
    assert broken(lambda noise: noise).ok
    for change in (
        lambda noise: noise / 2,
        lambda noise: 0 * noise,
        lambda noise: noise.round() * 0.5,
    ):
        assert not broken(change).ok


def trained(plan: pv.Plan, canaries: int = 400) -> Audit:
    """An audit of a training, seeded."""
    rng = np.random.default_rng(9)
    data = pv.Dataset(
        rng.random((30, 3), np.float32), rng.integers(2, size=30), classes=2, public=True
    )
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(reduction="none")
    return audit_training(
        plan,
        nn.Linear(3, 2),
        loss,
        data,
        canaries=canaries,
        confidence=0.95,
        streams=pv.Streams.new(5),
    )


@check
def check_a_training_with_canaries_keeps_its_claim() -> None:
    """Its noise falls from epoch to epoch: the claim is that of all of them together."""
    noise = pv.schedules.Exponential(k=0.3, start=1.5)
    report = trained(pv.Plan(pv.Partition(3), 3, noise, examples=430))
    assert report.ok, report
    assert 0.2 * report.epsilon_claimed < report.epsilon_lower < report.epsilon_claimed, report
    assert 0 < report.epsilon_any <= report.epsilon_lower


@check
def check_rows_that_an_audit_runs_on_are_not_taken_for_released() -> None:
    """Of private rows it warns, whichever audit it is; of public and made-up ones it does not."""
    plan = pv.Plan(FullBatch(), 1, pv.schedules.Constant(1.0), examples=40)
    x, y, loss = (
        np.eye(4, 2, dtype=np.float32),
        np.array([0, 1, 0, 1]),
        nn.CrossEntropyLoss(reduction="none"),
    )
    for public in (False, True):
        data = pv.Dataset(x, y, classes=2, public=public)
        for action in (
            lambda data=data: pv.audit(
                plan, nn.Linear(2, 2), loss, data, trials=20, streams=pv.Streams.new(1)
            ),
            lambda data=data: audit_training(
                plan, nn.Linear(2, 2), loss, data, canaries=20, streams=pv.Streams.new(1)
            ),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                action()
            said = any("no ledger is charged" in str(each.message) for each in caught)
            assert said is not public


@check
def check_a_report_is_published_and_signed_with_the_model() -> None:
    """One on public or made-up rows: a file that the certificate speaks of, and a section of the
    card.
    """
    plan = pv.Plan(FullBatch(), 1, pv.schedules.Constant(1.0), examples=40)
    rng = np.random.default_rng(3)
    data = pv.Dataset(rng.random((40, 3), np.float32), rng.integers(2, size=40), classes=2)
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(reduction="none")
    result = pv.dpsgd(plan, nn.Linear(3, 2), loss, data, streams=pv.Streams.new(2))
    report = pv.audit(plan, trials=200, confidence=0.9999, streams=pv.Streams.new(1))
    with TemporaryDirectory() as name:
        place = Path(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private = pv.audit(
                plan, nn.Linear(3, 2), loss, data, trials=20, streams=pv.Streams.new(1)
            )
        must_raise(BadInput, lambda: pv.publish(result, place / "model", delta=1e-5, audit=private))
        must_raise(BadInput, lambda: pv.publish(result, place / "model", delta=1e-5, audit={}))  # type: ignore[arg-type]
        pv.publish(result, place / "model", delta=1e-5, audit=report)
        assert pv.verify(place / "model").ok
        assert report.verdict in (place / "model" / "README.md").read_text()
        assert escape(report.verdict) in (place / "model" / "card.html").read_text()
        assert (place / "model" / "audit.json").exists()
        stated = (place / "model" / "audit.json").read_text()
        assert json.loads(stated) == report.to_json()
        (place / "model" / "audit.json").write_text(stated.replace("true", "false"))
        assert not pv.verify(place / "model").ok
        (place / "model" / "audit.json").unlink()
        assert not pv.verify(place / "model").ok
        assert not distinguish(
            lambda took: rng.normal(float(took)), plan.event(), plan.neighbours, trials=20
        ).public
