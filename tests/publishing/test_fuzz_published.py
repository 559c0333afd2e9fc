"""Damaged certificates, folders and configurations: refused or read as what they were, and never
anything else.

The guarantee of `verify`: if it says ok for a damaged folder, then epsilon, delta, neighbours and
files are the original's. Of a forgery (damaged, and every digest mended) it says ok only if the
events do give the epsilon that is claimed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from privlearn._shapes import fields_of
from privlearn._storage import loads
from privlearn.cli import main
from privlearn.core import schedules
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event, Repeated, compose, from_json, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import (
    ZCDP,
    FixedBatches,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    Selection,
)
from privlearn.core.accounting.trees import Filter, Parallel, RepeatAndSelect
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.sampling import FullBatch, Partition, Poisson, Shuffle
from privlearn.errors import PrivlearnError
from privlearn.methods.pate.plan import PatePlan, Votes
from privlearn.methods.statistics.plan import FisherPlan
from privlearn.methods.tuning.blocks import Blocks
from privlearn.methods.tuning.stopping import Candidate, RandomStopping
from privlearn.publishing import certificate, signing
from privlearn.publishing.folder import Contents
from privlearn.publishing.verify import Verification, verify_contents
from tests.publishing.checks import body_of, published
from tests.support import fuzz_json
from tests.support.fuzz import mutations

NIGHTLY = pytest.mark.nightly
SHARES = (6, 3, 6, 6, 6, 6, 6, 3, 2)  # fewer inputs where each takes long
TRAINED = Plan(
    Poisson(0.25), epochs=4, schedule=schedules.Step(k=0.85, period=2.0, start=1.3), examples=100
)
WHICH = tuple(Candidate(name, TRAINED, settings={"epochs": 4}) for name in "ab")
RUN = compose(
    [
        Repeated(PoissonSampled(0.25, Gaussian(1.3)), 8),
        Repeated(PoissonSampled(0.25, Gaussian(1.105)), 8),
    ]
)


def one(adjacency: str, noise: float = 9.0) -> Plan:
    """A plan of one release."""
    examples = 100 if adjacency == "add_remove" else None
    return Plan(
        FullBatch(), 1, schedules.Constant(noise), adjacency=Adjacency(adjacency), examples=examples
    )


#: A run among whatever else there may be, the certificate's events, and the kind of neighbour.
BASES: dict[str, tuple[Event, str, AbstractPlan]] = {
    "poisson": (compose([Gaussian(16.0), RUN]), "add_remove", TRAINED),
    "partition": (
        Repeated(Partitioned(16, Gaussian(1.5)), 3),
        "zero_out",
        Plan(Partition(16), 3, schedules.Constant(1.5), adjacency=Adjacency.ZERO_OUT),
    ),
    "fixed": (
        compose([Repeated(FixedBatches(Gaussian(4.0)), 3)]),
        "replace_one",
        Plan(Shuffle(10), 3, schedules.PerEpoch((4.0,)), adjacency=Adjacency.REPLACE_ONE),
    ),
    "kinds": (
        compose(
            [
                Laplace(3.0),
                RandomisedResponse(0.5, 4),
                Selection(0.1),
                PureDP(0.2),
                ZCDP(0.01),
                Repeated(Gaussian(9.0), 3),
            ]
        ),
        "zero_out",
        one("zero_out"),
    ),
    "filters": (
        compose(
            [
                Parallel((Gaussian(3.0), Gaussian(4.0))),
                Filter(0.1),
                Filter(None, (2.0, 8.0), (0.1, 0.5)),
                Gaussian(9.0),
            ]
        ),
        "add_remove",
        one("add_remove"),
    ),
    "pate": (compose([Repeated(Gaussian(10.0), 3)]), "add_remove", PatePlan(3, 9, Votes(4), 10.0)),
    "features": (
        compose([Gaussian(9.0)]),
        "add_remove",
        FisherPlan(3, 8, 8, 1.0, noise_multiplier=9.0),
    ),
    "blocks": (
        compose([Parallel((RUN, RUN, Selection(0.5))), RUN]),
        "add_remove",
        Blocks(WHICH, selection_epsilon=0.5, retrain=True),
    ),
    "stopping": (
        compose([RepeatAndSelect(compose([RUN, Gaussian(9.0)]), 3.0, 1.0)]),
        "add_remove",
        RandomStopping(WHICH, 3.0, score_noise=9.0),
    ),
}
FACTS = {
    "examples": 100,
    "noise_std": 10.0 * 2**0.5,
    "answered": 2,
    "teacher": {},
    "tuning": {"chosen": 1, "examples": 100},
}


class Watch:
    """Notes every attempt to run a program or to load code by name while open. Audit hooks cannot
    be taken off.
    """

    EVENTS = (
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "subprocess.Popen",
        "pickle.find_class",
        "socket.connect",
    )

    def __init__(self) -> None:
        self.found: list[str] | None = None
        sys.addaudithook(self._see)

    def _see(self, event: str, _: object) -> None:
        if self.found is not None and event in self.EVENTS:
            self.found.append(event)

    @contextlib.contextmanager
    def nothing_runs(self) -> Iterator[None]:
        self.found = []
        try:
            yield
            assert self.found == []
        finally:
            self.found = None


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def test_the_watch_sees_what_runs(watch: Watch) -> None:
    import os

    with pytest.raises(AssertionError), watch.nothing_runs():
        os.system("true")


# Certificates


def certified(
    name: str, key: signing.SigningKey | None = None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A certificate that verifies, and the files that it speaks of."""
    event, adjacency, plan = BASES[name]
    found = accountant.guarantee(event, Adjacency(adjacency), 1e-5)
    who = key.public.fingerprint if key else None
    card = certificate.header(found.epsilon, found.delta, adjacency, found.unit, who).encode()
    files = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": card}
    planned = plan.event()
    own = accountant.guarantee(planned, Adjacency(adjacency), 1e-5)
    others = None if tally(planned) == tally(event) else certificate.figures(certificate.FIXED, own)
    trained = plan.trained(FACTS)
    steps = (
        {"steps": trained.epochs * trained.sampling.steps(100)} if isinstance(trained, Plan) else {}
    )
    known = {*fields_of(plan.facts_shape), *fields_of(trained.facts_shape)}
    facts = {name: value for name, value in FACTS.items() if name in known} | steps
    body = certificate.make(event, found, plan, facts, False, files, others)
    return signing.sign(body, key) if key else body, files


def checked(content: bytes, files: dict[str, bytes]) -> Verification | None:
    """What `verify` says, or None if it refuses to read the certificate."""
    small = {name: files[name] for name in ("config.json", "README.md")}
    digests = {name: hashlib.sha256(value).hexdigest() for name, value in files.items()}
    try:
        found = verify_contents(
            Contents(Path("model"), {**small, "privacy.json": content}, digests, (), ())
        )
    except PrivlearnError:
        return None
    json.dumps(found.problems).encode()
    return found


def statement(found: Verification) -> tuple[object, ...]:
    return found.epsilon, found.delta, found.adjacency, found.method, found.signed_by


def damaged(content: bytes, seed: int, count: int) -> Iterator[bytes]:
    """By bytes and by structure, in turns."""
    yield from mutations(content, seed, count // 2)
    yield from fuzz_json.structures(json.loads(content), seed, count - count // 2)


@pytest.mark.parametrize("total", [600, pytest.param(10_000, marks=NIGHTLY)])
@pytest.mark.parametrize("name", BASES)
def test_damaged_certificates(name: str, total: int, watch: Watch, tmp_path: Path) -> None:
    share = SHARES[list(BASES).index(name)] * total // sum(SHARES)
    signing.make(tmp_path / "key")
    for key in (None, signing.read_private(tmp_path / "key")):
        body, files = certified(name, key)
        content = json.dumps(body, indent=1).encode()
        truth = checked(content, files)
        assert truth is not None
        assert truth.ok, truth
        with watch.nothing_runs():
            for text in damaged(content, total, share):
                found = checked(text, files)
                assert found is None or not found.ok or statement(found) == statement(truth), text


@pytest.mark.parametrize("total", [600, pytest.param(10_000, marks=NIGHTLY)])
@pytest.mark.parametrize("name", BASES)
def test_forged_certificates(name: str, total: int, watch: Watch) -> None:
    share = SHARES[list(BASES).index(name)] * total // sum(SHARES)
    body, files = certified(name)
    read = 0
    with watch.nothing_runs():
        for text in fuzz_json.structures(body, total + 1, share):
            try:
                forged = certificate.parse(text)
            except PrivlearnError:
                continue
            forged["digests"] = {
                part: certificate.digest(forged[part]) for part in certificate.PARTS
            }
            found = checked(json.dumps(forged).encode(), files)
            assert found is not None
            read += 1
            if found.ok:
                claim = forged["claim"]
                true = accountant.guarantee(
                    from_json(forged["events"]), Adjacency(claim["adjacency"]), claim["delta"]
                )
                assert claim["epsilon"] == pytest.approx(true.epsilon, rel=1e-6)
                assert claim["method"] == true.method
    assert read > share // 4


#: The least and the greatest numbers that there are.
ENDS = (5e-324, sys.float_info.max, -sys.float_info.max)


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where each number is: in what, and under which key."""
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                yield value, key
            yield from leaves(inner)


@pytest.mark.parametrize("name", BASES)
def test_no_number_makes_verify_fail(name: str) -> None:
    """Whatever cannot be computed with is a problem that is reported."""
    body, files = certified(name)
    truth = checked(json.dumps(body).encode(), files)
    assert truth is not None
    for part in ("plan", "events", "facts", "claim"):
        for place, key in leaves(body[part]):
            true = place[key]
            for end in ENDS:
                place[key] = end
                forged = body | {
                    "digests": {part: certificate.digest(body[part]) for part in certificate.PARTS}
                }
                found = checked(json.dumps(forged).encode(), files)
                assert found is not None, (part, key, end)
                assert not found.ok or statement(found) == statement(truth), (part, key, end)
            place[key] = true


def test_an_arithmetic_error_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    body, files = certified("poisson")
    for error in (OverflowError, ZeroDivisionError, FloatingPointError, ValueError):
        monkeypatch.setattr(Plan, "event", Mock(side_effect=error("too large")))
        found = checked(json.dumps(body).encode(), files)
        assert found is not None
        assert found.problems == [
            "the guarantee cannot be recomputed: a number is too small or too large to compute with"
        ]


@pytest.mark.parametrize("total", [900, pytest.param(20_000, marks=NIGHTLY)])
def test_damaged_plans(total: int, watch: Watch) -> None:
    """Whoever verifies reads what strangers wrote: it is refused as bad input, or is a plan that
    reads itself back.
    """
    texts = [plan.to_json() for _, _, plan in BASES.values()]
    refused = 0
    with watch.nothing_runs():
        for number, text in enumerate(texts):
            for content in fuzz_json.structures(text, number, total // len(texts)):
                try:
                    value = loads(content)
                except ValueError:
                    continue  # no JSON
                try:
                    plan = certificate.read_plan(value)
                    assert certificate.read_plan(json.loads(json.dumps(plan.to_json()))) == plan
                    assert plan.event() is not None
                except PrivlearnError:
                    refused += 1
    assert refused > total // 2


# Folders, and what is loaded from them


def answered(*options: str) -> tuple[int, str]:
    """Exit code and answer of a command; whatever it complains of is one message."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(options))
    said = err.getvalue()
    assert code in (0, 1, 2)
    if code == 2:
        assert out.getvalue() == ""
        assert sum(line.startswith("privlearn: ") for line in said.splitlines()) == 1
        assert "Traceback" not in said
    return code, out.getvalue()


@pytest.mark.parametrize("total", [160, pytest.param(10_000, marks=NIGHTLY)])
@pytest.mark.parametrize("forge", [False, True], ids=["damaged", "forged"])
def test_damaged_folders(forge: bool, total: int, watch: Watch, tmp_path: Path) -> None:
    import numpy as np

    out = published(tmp_path)
    np.savez(tmp_path / "rows.npz", x=np.linspace(-1, 1, 20).reshape(4, 5))
    options = (str(out), "--data", str(tmp_path / "rows.npz"))
    original = {path.name: path.read_bytes() for path in out.iterdir()}
    truth, predictions = (
        json.loads(answered("verify", str(out), "--json")[1]),
        answered("predict", *options),
    )
    assert predictions[0] == 0
    inputs = {name: damaged if name == "config.json" else mutations for name in original}
    with watch.nothing_runs():
        for name, way in inputs.items():
            for text in way(original[name], total, total // 4):
                (out / name).write_bytes(text)
                if forge and name != "privacy.json":
                    _mend(out, json.loads(original["privacy.json"]))
                code, shown = answered("verify", str(out), "--json")
                same = code == 0 and all(
                    json.loads(shown)[key] == truth[key]
                    for key in ("epsilon", "delta", "adjacency", "signed_by")
                )
                assert code != 0 or same
                assert forge or code != 0 or name == "privacy.json"
                used = answered("predict", *options)
                assert used[0] in (0, 2)
                assert forge or used[0] != 0 or used == predictions
                for file, content in original.items():
                    (out / file).write_bytes(content)


def _mend(out: Path, body: dict[str, Any]) -> None:
    from tests.publishing.checks import forge

    forge(out, body)
    assert body_of(out)["files"] == body["files"]


# Configurations

PLANS = (
    b"examples = 6000\nbatch_size = 600\nnoise_multiplier = 6.0\nepochs = 4\nsampling = "
    b'"shuffle"\ndelta = 1e-5\n'
    b'schedule = "exp:k=0.01"\nclip-norm = 0.1\npca = 60\nmodel = "mlp:100"\njson = true\n',
    (
        b"examples = 1000\nepsilon = 2.0\nepochs = 3\nrange = [0, 1]\nseed = 3\nadjacency = "
        b'"add_remove"\n# a comment\n'
    ),
    b'examples = 1000\nrho = 0.5\nsampling = "full"\nsolve = "epochs"\nnoise_multiplier = 8\n'
    b'clip = "layer"\ngroup_size = 2\n',
)


@pytest.mark.parametrize("total", [240, pytest.param(10_000, marks=NIGHTLY)])
@pytest.mark.parametrize("at", range(len(PLANS)))
def test_damaged_configurations(at: int, total: int, watch: Watch, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(PLANS[at])
    answers = {answered("budget", "--config", str(path))[0]}
    assert answers == {0}
    with watch.nothing_runs():
        for text in mutations(PLANS[at], total + at, total // len(PLANS)):
            path.write_bytes(text)
            answers.add(answered("budget", "--config", str(path))[0])
    assert answers == {0, 2}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]
