"""Named checks of certificates: every value in one of each method's is edited; mutations must make
them fail.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import privlearn as pv
from privlearn import _public
from privlearn.core import sampling, streams
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, Partitioned
from privlearn.core.plan import AbstractPlan
from privlearn.core.temperature import Temperature
from privlearn.errors import BadInput
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.expansion import BINARY
from privlearn.publishing import certificate, folder, keys, publish, signing, verify
from privlearn.publishing.folder import CERTIFICATE, Contents
from privlearn.publishing.verify import Verification
from tests.descent import checks_validation as validation_checks
from tests.mac import checks_runs as mac_run_checks
from tests.mac.nets import made_up, net
from tests.publishing import checks as publishing_checks
from tests.publishing import checks_shared_ledgers as shared_ledger_checks
from tests.statistics import checks as feature_checks
from tests.support.checks import check, must_raise
from tests.support.fuzz_json import places
from tests.teachers import checks_teachers as teachers_checks
from tests.tuning import checks as tune_checks


def results() -> dict[str, Any]:
    """A run by each method, small and cheap to price."""
    rates = tune_checks.candidates((0.1, 0.3), sampling=pv.Shuffle(20), examples=60)
    tuned = {
        "tuned on blocks": pv.tuning.Blocks(rates, retrain=True),
        "tuned by stopping": pv.tuning.RandomStopping(rates, mean=2.0),
    }
    reacting = validation_checks.settled(
        sampling.Shuffle(5), pv.schedules.Validation(0.6, start=7.0, noise=9.0)
    )
    return {
        "dpsgd": publishing_checks.result(),
        "dpmac": pv.dpmac(
            mac_run_checks.settled(pv.Shuffle(5)),
            net(5, 4, 3),
            BINARY.name,
            made_up(12, 5, 3),
            streams=pv.Streams.new(0),
            coordinates=Coordinates(2),
        ),
        "pate": teachers_checks.run(pv.teachers.ConfidentVotes(3, 4.0, 10)),
        "features": feature_checks.carried_out(
            feature_checks.settled(), feature_checks.some_rows(60)
        ),
        "validation": validation_checks.train(reacting),
        **shared_ledger_checks.results(),
        **{
            name: pv.tune(
                plan.calibrate(epsilon=3.0, delta=1e-5),
                tune_checks.train,
                tune_checks.data(),
                streams=streams.Streams.new(1),
            )
            for name, plan in tuned.items()
        },
    }


@lru_cache(maxsize=1)
def published() -> dict[str, Contents]:
    """What each of `results` is published as, without a signature."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, result in results().items():
            out = publish.publish(result, Path(place) / name.replace(" ", "-"), delta=1e-5)
            found[name] = folder.read(out)
    return found


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value that holds no others, with the way to it."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def others(value: Any) -> list[Any]:
    """Other values of the same type, a little off and far off, and one of another type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 1.001 if isinstance(value, float) and value else value + 1, -value or 7]
    return [f"{value}x", 1] if isinstance(value, str) else ["something"]


def edited(body: dict[str, Any], path: tuple[Any, ...], value: Any, mended: bool) -> dict[str, Any]:
    """`body` with one other value, and with the digests that belong to it if they are to be
    mended.
    """
    changed = copy.deepcopy(body)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    if mended:
        changed["digests"] = {part: certificate.digest(changed[part]) for part in certificate.PARTS}
    return changed


def checked(contents: Contents, body: dict[str, Any]) -> Verification:
    return verify.verify_contents(
        replace(contents, files=contents.files | {CERTIFICATE: json.dumps(body).encode()})
    )


#: Facts, and numbers of plans, that no event and no claim follows from: the publisher's word, which
#: only a signature holds them to. Whoever adds one decides whether it belongs here.
WORD = {
    "facts": {
        "method",
        "steps",
        "examples",
        "optimizer",
        "learning_rate_schedule",
        "precision",
        "augmentation_copies",
        "noise",
        "objective",
        "coordinates",
        "mu",
        "weight_steps",
        "newton",
        "validation.rows",
        "validation.accuracies.2",  # the last accuracy: no noise follows it
        "answered",
        "public_inputs",
        "teacher",
        "reducer",
        "student",
        "chosen",
        "tuning.chosen",
        "tuning.examples",
    },
    "plan": {
        "budget",
        "clip",
        "examples",
        "share",
        "sampling.batch_size",
        "teachers",
        "aggregate.classes",
        "aggregate.threshold",
        "classes",
        "features",
        "row_norm",
        "coordinate_bound",
        "kept_norm",
        "least_count",
        "least_variance",
        "label_share",
        "selection_share",
    },
}
#: The same of a plan that reacts, whose price is its limit.
REACTING_WORD = {"epochs", "schedule.threshold"}


def is_word(name: str, path: tuple[Any, ...]) -> bool:
    """Whether a place in the certificate of run `name` is the publisher's word."""
    if path[0] == "randomness":
        return True
    inner = path[1:]
    if path[:2] == ("plan", "candidates"):
        if path[3] in ("name", "settings"):
            return True
        inner = path[4:]  # of the candidate's own plan
    names = ".".join(map(str, inner))
    words = WORD.get(str(path[0]), set()) | (
        REACTING_WORD if (path[0], name) == ("plan", "validation") else set()
    )
    return any(names == word or names.startswith(f"{word}.") for word in words)


@check
def check_every_value_of_a_certificate_is_digested() -> None:
    """One value is edited, no digest mended: the part that it stands in is named, and so is a
    digest itself.
    """
    for name, contents in published().items():
        body = json.loads(contents.files[CERTIFICATE])
        assert checked(contents, body).ok, name
        for path, value in leaves(body):
            changed = edited(body, path, others(value)[0], mended=False)
            if path[0] in ("format", "version"):
                must_raise(BadInput, lambda: checked(contents, changed))  # noqa: B023
                continue
            part = path[1] if path[0] == "digests" else path[0]
            problems = checked(contents, changed).problems
            assert any(
                f"part {part!r} of {CERTIFICATE} was changed" in problem for problem in problems
            ), (name, path)


@check
def check_every_value_that_a_guarantee_follows_from_is_compared() -> None:
    """One value is edited, all digests mended: a problem is named. Except the publisher's word: the
    guarantee stays.
    """
    for name, contents in published().items():
        body = json.loads(contents.files[CERTIFICATE])
        true = checked(contents, body)
        for path, value in leaves(body):
            if path[0] in ("format", "version", "digests"):
                continue
            for other in others(value):
                found = checked(contents, edited(body, path, other, mended=True))
                assert all(len(problem) > 20 for problem in found.problems)
                if is_word(name, path):
                    said = {"ok": True, "problems": [], "warnings": [], "plan": None}
                    same = replace(found, **said) == replace(true, **said)  # type: ignore[arg-type]
                    assert same or not found.ok, (name, path, other)
                    continue
                assert not found.ok, (name, path, other)
                if path[0] == "claim" and path[1] in ("epsilon", "rho", "method", "unit"):
                    said = " ".join(
                        problem for problem in found.problems if "certificate states" in problem
                    )
                    assert path[1] in said, (name, path, found.problems)


@check
def check_an_epsilon_that_is_a_little_larger_is_true() -> None:
    """Figures that were stated before a grid became finer stay true; a smaller one never is."""
    guarantee = accountant.guarantee(Gaussian(2.0), Adjacency.ADD_REMOVE, 1e-5)
    claim = {
        "delta": 1e-5,
        "adjacency": "add_remove",
        "method": guarantee.method,
        "rho": guarantee.rho,
        "unit": str(guarantee.unit),
    }

    epochs = [Partitioned(4, Gaussian(noise)) for noise in (2.0, 1.9)]
    more = certificate.margin_of_older_prices(compose(epochs))
    alone = [epochs[0], Repeated(epochs[0], 9), compose([Gaussian(2.0), Gaussian(1.9), epochs[0]])]
    assert not any(map(certificate.margin_of_older_prices, alone)), (
        "only several partitions were priced otherwise"
    )

    def problems(factor: float, more: float = more) -> list[str]:
        return verify._contradictions(
            guarantee, claim | {"epsilon": guarantee.epsilon * factor}, more
        )

    assert not any(map(problems, (1.0, 1 + 1e-7, 1 - 1e-7, 1 + 2e-6, 1 + 8e-4)))
    assert all(map(problems, (1 - 2e-6, 1 - 5e-5, 1 + 1e-3, 2.0)))
    assert all(problems(factor, 0.0) for factor in (1 - 2e-6, 1 + 2e-6, 1 + 8e-4))
    run = certificate.figures("one", guarantee)
    assert certificate._matches(run, guarantee, 0.0)
    assert certificate._matches(
        run | {"run_epsilon": guarantee.epsilon * (1 + 8e-4)}, guarantee, more
    )
    assert not certificate._matches(
        run | {"run_epsilon": guarantee.epsilon * (1 + 8e-4)}, guarantee, 0.0
    )
    assert not certificate._matches(
        run | {"run_epsilon": guarantee.epsilon * (1 - 5e-5)}, guarantee, more
    )
    assert not certificate._matches(
        run | {"run_epsilon": guarantee.epsilon * (1 + 1e-3)}, guarantee, more
    )


@check
def check_facts_that_follow_from_the_plan_are_compared() -> None:
    """Facts that the plan makes other figures of, and a plan for others than the claim, all digests
    mended: named.
    """
    for name, path, other, says in (
        ("dpsgd", ("facts", "examples"), 999, "the plan declares 1000"),
        ("dpsgd", ("plan", "examples"), 999, "the plan declares 999"),
        ("dpsgd", ("plan", "group_size"), 2, "the claim is another"),
        ("dpsgd", ("plan", "adjacency"), "zero_out", "the claim is another"),
        ("dpsgd", ("plan", "budget", "epsilon"), 2.5, "cost more than"),
        ("validation", ("facts", "epochs"), 2, "do not follow"),
        ("validation", ("facts", "validation", "noise"), 3.0, "not what the schedule says"),
        ("tuned on blocks", ("facts", "tuning", "examples"), 90, "the plan declares"),
        ("tuned on blocks", ("facts", "examples"), 59, "the plan declares"),
        ("pate", ("facts", "answered"), 11, "answers at most 10"),
        ("pate", ("facts", "noise_std"), 3.0, "the plan's is"),
        ("pate", ("facts", "test_noise_multiplier"), 9.0, "the plan's is"),
        ("features", ("facts", "chosen"), [], "choices of features"),
    ):
        contents = published()[name]
        found = checked(
            contents, edited(json.loads(contents.files[CERTIFICATE]), path, other, mended=True)
        )
        assert any(says in problem for problem in found.problems), (name, path, found.problems)


class Mine(pv.schedules.Schedule):
    """A schedule of the user's own, which nobody registered."""

    def __init__(self, start: float = 1.0) -> None:
        self.start = start

    def __call__(self, epoch: float) -> float:
        return self.start * (3 - 0.1 * epoch)

    def scaled(self, factor: float) -> Mine:
        return Mine(self.start * factor)


def every_plan() -> list[AbstractPlan]:
    """A plan of each kind, with each sampler, clip, schedule and release before training
    somewhere.
    """
    schedules, mac, transforms = pv.schedules, pv.mac, pv.transforms
    learned = mac.Derivatives((0.3, 0.2), 0.5, (1.0, 2.0), mac.Histogram(50.0))
    two = tuple(
        pv.tuning.Candidate(
            name,
            pv.Plan(sampler, 3, schedules.Exponential(0.1), examples=60),
            settings={"rate": 0.1},
        )
        for name, sampler in (("a", pv.Poisson(0.1)), ("inf", pv.Poisson(0.2)))
    )
    return [
        pv.Plan(pv.Poisson(0.1), group_size=3, examples=1000),
        pv.Plan(pv.Poisson(0.1), rows_per_person=2),
        pv.Plan(pv.Partition(8), 4, clip=pv.clipping.Quantile(0.2)),
        pv.Plan(
            pv.Shuffle(10),
            4,
            schedules.Exponential(0.1, period=3),
            front=(transforms.PrivatePCA(10, 16.0),),
        ),
        pv.Plan(
            sampling.FixedOrder(10), 4, schedules.Time(0.1, to_epoch=3), pv.clipping.Automatic(1.0)
        ),
        pv.Plan(sampling.FullBatch(), 4, schedules.Polynomial(2, end=1), pv.clipping.PerLayer(1.0)),
        pv.Plan(
            pv.Poisson(0.1),
            4,
            schedules.Step(0.6),
            front=(transforms.SelectFeatures(10, 30.0, 10, 4.0),),
        ),
        pv.Plan(pv.Poisson(0.1), 4, Mine(), front=(transforms.Moments(64, 20.0, 4.0),)),
        pv.Plan(pv.Poisson(0.1), 4, schedules.PerEpoch((3.0, 2.0, 1.0)), mac.Analytic(1.0)),
        pv.Plan(pv.Shuffle(10), 4, clip=learned),
        pv.Plan(pv.Shuffle(10), 4, schedules.Validation(0.7, noise=50.0)),
        pv.Plan(pv.Poisson(0.1), 4, schedules.Validation(0.7, m=2, period=2)),
        pv.Plan(sampling.CyclicPartition(3, 4), 4, correlation=pv.mechanisms.Banded(4)),
        pv.Plan(
            sampling.CyclicPoisson(0.4, 4), 4, correlation=pv.mechanisms.Banded(4, momentum=0.5)
        ),
        pv.Plan(sampling.FixedOrder(10), 4, correlation=pv.mechanisms.BISR(4, momentum=0.5)),
        pv.Plan(sampling.FixedOrder(10), 4, correlation=pv.mechanisms.BLT(2)),
        pv.Plan(sampling.TruncatedPoisson(0.1, 1000, 130), 4),
        pv.teachers.PatePlan(20, 50, pv.teachers.Votes(10), persons=True),
        pv.teachers.PatePlan(20, 50, pv.teachers.ConfidentVotes(10, 5.0, 4)),
        pv.teachers.PatePlan(20, 50, pv.teachers.Ball(1.0)),
        pv.teachers.PatePlan(
            20, 50, pv.teachers.Votes(10), site_noise=pv.teachers.SiteNoise(absent=5)
        ),
        pv.Plan(pv.Poisson(0.1), 4, clip=pv.Flat(1.0), examples=60, persons=True),
        pv.teachers.PatePlan(20, 50, pv.teachers.Box(7)),
        pv.Plan(pv.Poisson(0.1), temperature=Temperature(20.0)),
        *(
            pv.boosting.BoostingPlan(
                (pv.boosting.Interval(0, 1), pv.boosting.Levels(3)), target, trees=2
            )
            for target in (pv.boosting.Labels(3), pv.boosting.Values(0, 1), pv.boosting.Counts(9))
        ),
        pv.statistics.RidgePlan(64, 4.0, 0.0, 1.0),
        *feature_checks.EVERY_PLAN,
        pv.tuning.Blocks(two, retrain=True),
        pv.tuning.RandomStopping(two, 3.0),
        pv.tuning.RandomStopping(two, 3.0, shape=math.inf),
    ]


@check
def check_every_plan_reads_itself_back() -> None:
    """One law for all plans: calibrated, within the target; written and read, an equal plan of
    equal events.
    """
    kinds = set()
    for shape in every_plan():
        plan = shape.calibrate(epsilon=4.0, delta=1e-5)
        assert plan.budget == pv.Budget(4.0, 1e-5, None, plan.unit.group_size)
        assert 4.0 * (1 - 0.003) <= plan.budget.spent(plan.event(), plan.neighbours) <= 4.0, plan
        assert plan.guarantee(1e-5).epsilon <= 4.0
        text = json.dumps(plan.to_json(), allow_nan=False)
        again = certificate.read_plan(json.loads(text))
        assert again == plan.stated(), plan
        assert again.event() == plan.event()
        assert (again.neighbours, again.unit, again.rows()) == (
            plan.neighbours,
            plan.unit,
            plan.rows(),
        )
        assert json.dumps(again.to_json()) == text
        kinds |= {value for path, value in leaves(json.loads(text)) if path[-1] == "kind"}
    known = {
        kind: cls
        for kind, cls in _public.kinds(object).items()
        if cls.__module__.startswith("privlearn.")
    }
    registered = {
        kind for kind, cls in known.items() if not issubclass(cls, pv.transforms.PublicTransform)
    }
    # of test metrics: no model's plans, and refused as such
    assert registered - kinds == {"metrics", "value-metrics"}
    for result in results().values():
        if not result.ledger.adaptive:
            assert all(
                result.ledger.event.events.count(part) for part in result.plan.event().events
            ), result.plan


def _may_be_left_out(kind: str) -> set[str]:
    """The fields that are written only where they differ from their defaults."""
    shape = _public.kinds(object).get(kind)  # numbers and tables have no class
    known = () if shape is None else dataclasses.fields(shape)
    return {each.name for each in known if each.metadata.get("omitted")}


@check
def check_plans_of_strangers_are_refused() -> None:
    """Kinds, fields, types, sizes and depths that no plan has: bad input, and nothing else."""
    for shape in every_plan():
        body = shape.calibrate(epsilon=4.0, delta=1e-5).to_json()
        for part in [body, *(inner[key] for inner, key in places(body))]:
            if isinstance(part, dict) and "kind" in part:
                whole = dict(part)
                part["more"] = 1
                must_raise(BadInput, lambda body=body: certificate.read_plan(body))  # type: ignore[misc]
                for name in set(whole) - _may_be_left_out(whole["kind"]):
                    part.clear()
                    part.update({key: value for key, value in whole.items() if key != name})
                    must_raise(BadInput, lambda body=body: certificate.read_plan(body))  # type: ignore[misc]
                part.clear()
                part.update(whole)
        assert certificate.read_plan(body)
    plan = every_plan()[0].to_json()
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    big = pv.Plan(pv.Poisson(0.1), 90_000)
    many = tuple(pv.tuning.Candidate(str(n), big) for n in range(12))
    for wrong in (
        None,
        [],
        7,
        "plan",
        [plan],
        {},
        {"kind": "os"},
        {"kind": ["gradients"]},
        plan["sampling"],
        {**plan, "sampling": deep},
        {**plan, "sampling": plan["clip"]},
        {**plan, "clip": plan["sampling"]},
        {**plan, "schedule": plan},
        {**plan, "epochs": "7"},
        {**plan, "front": {"kind": "table", "values": {}}},
        {**plan, "clip": {"kind": "infinity"}},
        {
            **plan,
            "schedule": {
                "kind": "poly",
                "from_epoch": 0,
                "to_epoch": 9,
                "k": 2,
                "end": "x",
                "period": 9,
                "start": 3,
            },
        },
        {**plan, "front": [plan["clip"]]},
        {**plan, "budget": plan["clip"]},
        {**plan, "adjacency": [[]]},
        pv.tuning.Blocks(many).to_json(),
        {
            **plan,
            "filter": {"kind": "event", "value": {"kind": "gaussian", "noise_multiplier": 1.0}},
        },
        pv.statistics.MetricsPlan(3, noise_multiplier=30.0).to_json(),
    ):
        must_raise(BadInput, lambda wrong=wrong: certificate.read_plan(wrong))  # type: ignore[misc]
    bare = {"kind": "table", "values": {}}
    must_raise(BadInput, lambda: _public.registered(type("Flat", (), {"kind": "flat"})))
    assert _public.from_json(bare) == {}
    must_raise(BadInput, lambda: _public.expect("bisr", "elsewhere"))
    for kind in ("flat", "table"):
        taken = dataclass(frozen=True)(type("Taken", (), {"kind": kind}))
        must_raise(BadInput, lambda taken=taken: _public.registered(taken))  # type: ignore[misc]


@check
def check_every_value_of_every_methods_certificate_is_signed() -> None:
    """One value is edited, all digests mended: the signature fits no longer, whichever method's
    certificate it is.
    """
    with tempfile.TemporaryDirectory() as place:
        signing.make(Path(place) / "key")
        key = signing.read_private(Path(place) / "key")
    for name, contents in published().items():
        body = signing.sign(json.loads(contents.files[CERTIFICATE]), key)
        assert keys.signer_of(body) == key.public
        for path, value in leaves(body):
            for other in others(value):
                changed = edited(body, path, other, mended=path[0] != "digests")
                must_raise(BadInput, lambda: keys.signer_of(changed))  # noqa: B023
            assert len(others(value)) > 0, (name, path)


@check
def check_what_is_signed_is_what_the_documentation_says() -> None:
    """A prefix, and the certificate with algorithm and public key in it: the message is put
    together by hand here.
    """
    contents = published()["pate"]
    with tempfile.TemporaryDirectory() as place:
        signing.make(Path(place) / "key")
        key = signing.read_private(Path(place) / "key")
    body = signing.sign(json.loads(contents.files[CERTIFICATE]), key)
    who = {"algorithm": "ed25519", "public_key": base64.b64encode(key.public.raw).decode()}
    text = json.dumps({**body, "signature": who}, sort_keys=True, separators=(",", ":"))
    value = base64.b64decode(body["signature"]["value"])
    assert key.public.fits(value, b"privlearn certificate signature, version 1\0" + text.encode())
    for left_out in who:
        less = {name: given for name, given in who.items() if name != left_out}
        text = json.dumps({**body, "signature": less}, sort_keys=True, separators=(",", ":"))
        value = key.sign(b"privlearn certificate signature, version 1\0" + text.encode())
        without = {**body, "signature": {**who, "value": base64.b64encode(value).decode()}}
        must_raise(BadInput, lambda: keys.signer_of(without))  # noqa: B023
