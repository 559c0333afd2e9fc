"""Certificates of random plans of every kind, and forgeries of them: what verifiers are compared
on.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import privlearn as pv
from privlearn._shapes import fields_of
from privlearn._storage import loads
from privlearn.core import schedules
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.mechanisms import Gaussian, Laplace, PoissonSampled
from privlearn.core.accounting.trees import Filter, GaussianFilter
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.temperature import Temperature
from privlearn.errors import PrivlearnError
from privlearn.methods.boosting import targets
from privlearn.methods.boosting.plan import BoostingPlan, Interval
from privlearn.methods.pate.plan import Ball, ConfidentVotes, PatePlan, Votes
from privlearn.methods.pate.site_noise import SiteNoise
from privlearn.methods.statistics.plan import (
    FisherPlan,
    LeastSquaresPlan,
    RowsPlan,
    SelectionPlan,
)
from privlearn.methods.statistics.regression import RidgePlan
from privlearn.methods.tuning.blocks import Blocks
from privlearn.methods.tuning.stopping import Candidate, RandomStopping
from privlearn.publishing import certificate
from privlearn.publishing.folder import CERTIFICATE
from tests.support import fuzz_json, registries

Files = dict[str, bytes]

#: Weights without any tensor.
_NO_WEIGHTS = (2).to_bytes(8, "little") + b"{}"
_DELTA = 1e-5


def certify(
    plan: AbstractPlan, *, event: Event | None = None, runs: str = "", seeded: bool = False
) -> Files:
    """The files of a folder that verifies.

    Args:
        plan: of the run.
        event: what the certificate is about; None: the plan's events alone.
        runs: what the claim is for, if the ledger held other runs.
        seeded: whether anyone may know the seed.
    """
    neighbours, unit = plan.neighbours, plan.unit
    planned = plan.event()
    claimed = planned if event is None else event
    guarantee = plan.guarantee(_DELTA)
    others = None
    if runs:
        price = accountant.guarantee(planned, neighbours, _DELTA, unit.group_size)
        others = certificate.figures(runs, price)
        guarantee = accountant.guarantee(claimed, neighbours, _DELTA, unit.group_size)
    figures = (guarantee.epsilon, guarantee.delta, neighbours.value, guarantee.unit, None)
    files = {
        "model.safetensors": _NO_WEIGHTS,
        "config.json": b"{}",
        "README.md": certificate.header(*figures).encode(),
        "card.html": certificate.page_head(*figures).encode(),
    }
    body = certificate.make(claimed, guarantee, plan, facts_of(plan), seeded, files, others)
    return {**files, CERTIFICATE: json.dumps(body).encode()}


def facts_of(plan: AbstractPlan) -> dict[str, Any]:
    """Facts that follow from a plan, as a run of it would state them."""
    facts: dict[str, Any] = {}
    if isinstance(plan, Blocks | RandomStopping):
        facts["tuning"] = {"chosen": 0, "examples": 1000}
    trained = plan.trained(facts)
    if isinstance(trained, Plan):
        examples = trained.examples or 1000
        facts |= {"examples": examples, "steps": trained.epochs * trained.sampling.steps(examples)}
        if trained.temperature is not None:
            facts["fitted_temperature"] = 1.5
    if isinstance(plan, PatePlan):
        facts |= {**plan.noise_figures(), "answered": 1, "teacher": {}}
    if isinstance(plan, SelectionPlan | FisherPlan | RowsPlan) and plan.keep < plan.features:
        facts["chosen"] = [{"indices": list(range(plan.keep))}]
    known = {*fields_of(plan.facts_shape), *fields_of(trained.facts_shape)}
    return {name: value for name, value in facts.items() if name in known}


def _draw_schedule(draw: random.Random, noise: float) -> Any:
    """A schedule of any kind, that begins with this noise where it has a start."""
    schedule = draw.choice(list(registries.examples("schedules")))
    begins = "start" in {field.name for field in fields(schedule) if field.init}
    return replace(schedule, start=noise) if begins else schedule


def _draw_training(draw: random.Random) -> Plan:
    noise = draw.choice([0.8, 1.3, 2.5, 6.0])
    persons = draw.choice([{}, {}, {"group_size": draw.choice([2, 3])}, {"rows_per_person": 2}])
    return Plan(
        draw.choice(list(registries.examples("samplers"))),
        draw.choice([1, 2, 5, 10]),
        _draw_schedule(draw, noise),
        examples=1000,
        temperature=draw.choice([None, None, Temperature(20.0)]),
        **persons,
    )


def _draw_pate(draw: random.Random) -> PatePlan:
    noise, queries = draw.uniform(5.0, 40.0), draw.randint(2, 40)
    aggregate = draw.choice([Votes(4), Ball(draw.uniform(0.5, 3.0)), ConfidentVotes(3, 4.0, 2)])
    tested = isinstance(aggregate, ConfidentVotes)
    shares = None if tested or draw.random() < 0.7 else SiteNoise(draw.randint(0, 4))
    return PatePlan(queries, draw.randint(5, 50), aggregate, noise, site_noise=shares)


def _draw_statistics(draw: random.Random) -> AbstractPlan:
    noise, keep = draw.uniform(1.0, 20.0), draw.choice([3, 8])
    bounded = {"noise_multiplier": noise, "coordinate_bound": 1.0}
    return draw.choice(
        [
            lambda: LeastSquaresPlan(3, 8, 1.0, noise_multiplier=noise),
            lambda: RidgePlan(8, 1.0, 0.0, 1.0, noise_multiplier=noise),
            lambda: SelectionPlan(3, 8, 3, 1.0, **bounded),
            lambda: FisherPlan(3, 8, keep, 1.0, **bounded),
            lambda: RowsPlan(3, 8, keep, 1.0, labels="randomised", **bounded),
        ]
    )()


def _draw_boosting(draw: random.Random) -> BoostingPlan:
    columns = (Interval(0.0, 1.0), Interval(-1.0, 2.0))
    return BoostingPlan(
        columns,
        targets.Labels(2),
        passes=draw.choice([1, 3]),
        trees=draw.choice([0, 2]),
        noise_multiplier=draw.uniform(1.0, 9.0),
    )


def _draw_choice(draw: random.Random) -> AbstractPlan:
    rate, epochs = draw.choice([0.05, 0.25]), draw.choice([1, 4])
    trained = Plan(pv.Poisson(rate), epochs, schedules.Constant(1.5), examples=1000)
    candidates = tuple(Candidate(name, trained, settings={"epochs": epochs}) for name in "ab")
    if draw.random() < 0.5:
        return Blocks(candidates, selection_epsilon=draw.uniform(0.1, 1.0), retrain=True)
    shape = draw.choice([0.0, 1.0, math.inf])
    return RandomStopping(candidates, draw.choice([2.0, 5.0]), shape=shape, score_noise=30.0)


def _draw_among_others(draw: random.Random) -> Files:
    """A run among others on its ledger."""
    noise = draw.uniform(1.0, 3.0)
    plan = Plan(pv.Poisson(0.05), 2, schedules.Constant(noise), examples=1000)
    if draw.random() < 0.4:
        others = [Laplace(5.0), Repeated(Gaussian(9.0), 3), PoissonSampled(0.1, Gaussian(2.0))]
        event = compose([draw.choice(others), plan.event()])
        return certify(plan, event=event, runs=certificate.FIXED)
    if draw.random() < 0.5:
        plan = Plan(pv.Shuffle(100), 3, schedules.Constant(4.0), adjacency="zero_out")
        limit = draw.choice([Filter(0.2), GaussianFilter(0.2)])
        return certify(plan, event=compose([limit]), runs=certificate.ADAPTIVE)
    return certify(plan, runs=certificate.ALONE)


_DRAWS: tuple[Callable[[random.Random], Any], ...] = (
    _draw_training,
    _draw_training,
    _draw_training,
    _draw_pate,
    _draw_statistics,
    _draw_boosting,
    _draw_choice,
    _draw_among_others,
)


def draw_certificates(count: int, seed: int) -> Iterator[Files]:
    """The files of `count` folders that verify; the same ones for the same seed."""
    draw, drawn = random.Random(seed), 0
    while drawn < count:
        try:
            value = _DRAWS[drawn % len(_DRAWS)](draw)
            files = value if isinstance(value, dict) else certify(value)
        except PrivlearnError:
            continue  # numbers that do not go together, such as a group that is not priced
        yield files
        drawn += 1


def forge(files: Files, count: int, seed: int) -> Iterator[Files]:
    """Folders whose certificate was damaged; half of them with digests that belong to it."""
    body = json.loads(files[CERTIFICATE])
    for number, text in enumerate(fuzz_json.structures(body, seed, count)):
        yield {**files, CERTIFICATE: _mend(text) if number % 2 else text}


def _mend(text: bytes) -> bytes:
    try:
        forged = loads(text)
        digests = {part: certificate.digest(forged[part]) for part in certificate.PARTS}
        return json.dumps({**forged, "digests": digests}).encode()
    except (ValueError, KeyError, TypeError):
        return text
