"""PATE over Flower: the same answers as without it, whatever the sites send, and nothing else."""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from html import unescape
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, RecordDict

import privlearn as pv
from privlearn import flower
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.errors import BadInput
from privlearn.flower import summation as summations
from privlearn.flower.requests import collect_replies
from privlearn.methods.pate import answers as asking
from privlearn.methods.pate.integers import integers_for
from privlearn.runs.checkpoint import Checkpoint
from tests.support.checks import must_raise
from tests.support.local_grid import LocalGrid

SITES, QUERIES, CLASSES = 7, 30, 3
SIZE = (2, 3)
INPUTS = np.random.default_rng(1).normal(size=(QUERIES, 4)).astype(np.float32)
VOTES = pv.teachers.PatePlan(
    QUERIES, SITES, pv.teachers.Votes(CLASSES), noise_multiplier=0.5, adjacency="add_remove"
)
CONFIDENT = replace(VOTES, aggregate=pv.teachers.ConfidentVotes(CLASSES, 4.0, 9))
BALL = replace(VOTES, aggregate=pv.teachers.Ball(1.0))
BOX = replace(VOTES, aggregate=pv.teachers.Box(6))
NODES = [{"site": site} for site in range(SITES)]


def _public_targets():
    targets = torch.rand(40, *SIZE, generator=torch.Generator().manual_seed(2))
    return pv.Dataset(torch.zeros(40, 4), targets, public=True)


PCA = pv.teachers.PublicPCA.fit(_public_targets(), 3)
#: Plans with a reducer, for each form of answers.
CASES = {
    "votes": (VOTES, None),
    "confident votes": (CONFIDENT, None),
    "targets in a ball": (BALL, pv.teachers.Identity(SIZE, 0.1)),
    "projections in a ball": (BALL, pv.teachers.RandomProjection(SIZE, 4)),
    "components in a ball": (BALL, PCA),
    "targets in a box": (BOX, pv.teachers.Identity(SIZE, 0.3)),
    "components in a box": (BOX, PCA),
}


def _say(site, plan=VOTES):
    """What a site's teacher says to all queries."""
    drawn = np.random.default_rng(site)
    if plan in (BALL, BOX):
        return drawn.normal(0.5, 0.6, size=(QUERIES, *SIZE)).astype(np.float32)
    return (INPUTS @ drawn.normal(size=(4, CLASSES))).argmax(1)


class Unread(flower.Summation):
    """A sum whose parts the server can't read, and so can't bound: as if they were masked."""

    server_sees = "the sum of the sites' answers alone"

    def serve(self, app, question, compute):
        summations.InTheClear().serve(app, question, compute)

    def add_up(self, grid, nodes, question, content, *, size, bound, timeout, progress=None):
        kind = f"query.{question}"
        requests = [Message(content, dst_node_id=node, message_type=kind) for node in nodes]
        values, added = np.zeros(size, np.int64), []
        for node, reply in zip(nodes, collect_replies(grid, requests, timeout), strict=True):
            if reply is not None and not reply.has_error() and len(reply.content):
                values += summations.unpack_answers(reply.content)
                added.append(node)
        return flower.Total(values, tuple(added))


def _app(say, **options):
    """An app whose teacher says `say(site)`."""
    return flower.teacher_app(
        lambda context: lambda inputs: say(context.node_config["site"]), **options
    )


def _grid(plan=VOTES, **faults):
    return LocalGrid(_app(lambda site: _say(site, plan)), NODES, **faults)


def _ask(teachers, plan=VOTES, reducer=None, seed=3, **options):
    streams = pv.Streams.new(seed=seed)
    return pv.teachers.ask_teachers(plan, teachers, reducer, INPUTS, streams=streams, **options)


def _add_up(grid, plan=VOTES, reducer=None, summation=None):
    """The sums that the server gets, and how many sites are not in them."""
    teachers = flower.FlowerTeachers(grid, SITES, summation=summation, timeout=0.05)
    queries = torch.from_numpy(INPUTS)
    totals, silent = asking.sum_answers(plan, teachers, reducer, queries, pv.Streams.new(seed=1))
    return asking._total(totals), silent


def _add_without_flower(said, plan, reducer):
    totals = asking.empty(plan, reducer)
    for each in said:
        totals.add(each)
    return asking._total(totals)


def _given(tmp_path, said):
    for site, predictions in enumerate(said):
        np.savez(tmp_path / f"{site}.npz", predictions=predictions)
    return pv.teachers.Given(tmp_path)


def _off_at_most(plan, reducer):
    """By how much sums of codes may be off that are rounded at the sites."""
    integers = integers_for(plan.aggregate, reducer)
    # of a ball half by the smaller ball and half by rounding; the maps of a box have norm 1
    return SITES * math.sqrt(integers.size) * integers.step + 1e-6


@pytest.mark.parametrize("plan", [VOTES, CONFIDENT], ids=["all", "confident"])
def test_votes_are_those_of_teachers_that_are_asked_without_flower(tmp_path, plan):
    over_flower = _ask(flower.FlowerTeachers(_grid(), SITES), plan)
    without = _ask(_given(tmp_path, [_say(site) for site in range(SITES)]), plan)
    assert torch.equal(over_flower.scores, without.scores)
    assert torch.equal(over_flower.targets, without.targets)
    assert torch.equal(over_flower.answered, without.answered)
    assert over_flower.ledger.event == without.ledger.event == plan.event()


@pytest.mark.filterwarnings("ignore:the student learned little")
def test_a_student_of_votes_is_that_of_teachers_that_are_asked_without_flower(tmp_path):
    def weights(teachers):
        torch.manual_seed(0)
        network = torch.nn.Linear(4, CLASSES)
        student = pv.teachers.Student(lambda shape: network, epochs=2)
        streams = pv.Streams.new(seed=3)
        result = pv.pate(VOTES, teachers, None, INPUTS, student, streams=streams)
        return torch.cat([each.flatten() for each in result.model.state_dict().values()])

    given = _given(tmp_path, [_say(site) for site in range(SITES)])
    assert torch.equal(weights(flower.FlowerTeachers(_grid(), SITES)), weights(given))


@pytest.mark.parametrize("name", [name for name in CASES if "votes" not in name])
def test_codes_are_within_the_rounding_of_those_without_flower(name):
    plan, reducer = CASES[name]
    sums, silent = _add_up(_grid(plan), plan, reducer)
    exact = _add_without_flower([_say(site, plan) for site in range(SITES)], plan, reducer)
    assert silent == 0
    off = torch.linalg.vector_norm(sums - exact, dim=1)
    assert float(off.max()) <= _off_at_most(plan, reducer)
    assert float(torch.linalg.vector_norm(exact, dim=1).min()) > 10 * _off_at_most(plan, reducer)


def test_released_codes_are_within_the_rounding_of_those_without_flower(tmp_path):
    plan, reducer = CASES["targets in a ball"]
    over_flower = _ask(flower.FlowerTeachers(_grid(plan), SITES), plan, reducer)
    without = _ask(_given(tmp_path, [_say(site, plan) for site in range(SITES)]), plan, reducer)
    off = (over_flower.targets - without.targets).flatten(1).norm(dim=1)
    assert float(off.max()) <= _off_at_most(plan, reducer) / SITES
    assert over_flower.ledger.event == without.ledger.event == plan.event()


@pytest.mark.parametrize("form", ["module", "estimator", "function"])
def test_a_teacher_is_a_module_an_estimator_or_a_function(form):
    from sklearn.linear_model import LogisticRegression

    torch.manual_seed(0)
    module = torch.nn.Linear(4, CLASSES)
    estimator = LogisticRegression().fit(INPUTS, _say(0))
    teacher = {"module": module, "estimator": estimator, "function": estimator.predict}[form]
    counts, silent = _add_up(LocalGrid(flower.teacher_app(lambda context: teacher), NODES[:1]))
    assert silent == SITES - 1
    with torch.no_grad():
        scores = module(torch.from_numpy(INPUTS))
    votes = scores.argmax(1) if form == "module" else torch.from_numpy(estimator.predict(INPUTS))
    assert torch.equal(counts.argmax(1), votes)
    assert float(counts.sum()) == QUERIES


def _reply(request, *arrays):
    content = {"answers": ArrayRecord([np.asarray(array) for array in arrays])} if arrays else {}
    return Message(RecordDict(content), reply_to=request)


def _sends(change):
    """A fault by which a site's integers are others."""

    def after(request, reply):
        [integers] = reply.content["answers"].to_numpy_ndarrays()
        return [_reply(request, change(integers))]

    return after


#: What becomes of a site's reply between its app and the server.
FAULTS = {
    "lost": lambda request, reply: [],
    "twice": lambda request, reply: [reply, _reply(request)],
    "empty": lambda request, reply: [_reply(request)],
    "no arrays": lambda request, reply: [
        Message(RecordDict({"answers": ArrayRecord()}), reply_to=request)
    ],
    "two arrays": lambda request, reply: [
        _reply(request, np.zeros(9, np.int64), np.zeros(9, np.int64))
    ],
    "another shape": _sends(lambda integers: np.zeros((QUERIES, 9), np.int64)),
    "rows of another model": _sends(lambda integers: np.zeros(QUERIES * 11, np.int64)),
    "fewer rows": _sends(lambda integers: integers[: len(integers) // 2]),
    "more rows": _sends(lambda integers: np.tile(integers, 2)),
    "not finite": _sends(lambda integers: np.full(len(integers), np.nan)),
    "fractions": _sends(lambda integers: integers + 0.5),
    "truth values": _sends(lambda integers: np.ones(len(integers), bool)),
    "out of range": _sends(lambda integers: np.full(len(integers), 10**12)),
    "the smallest integer": _sends(lambda integers: np.full(len(integers), -(2**63))),
    "all votes, or out of the ball": _sends(
        lambda integers: np.full(len(integers), max(1, integers.max()))
    ),
    "votes against": _sends(lambda integers: -np.abs(integers)),
    "the same answers doubled": _sends(lambda integers: 2 * integers),
}


def _require_within_claim(sums, others, plan, reducer=None):
    claim = asking.empty(plan, reducer).bounded(0, asking._sample(plan), plan.adjacency).sensitivity
    for other in others:
        moved = torch.linalg.vector_norm(sums - other, dim=1)
        assert float(moved.max()) <= claim * (1 + 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_one_site_never_moves_sums_by_more_than_the_claim_whatever_it_sends(case):
    """The sums with a site that misbehaves, and with one that is absent, through the real apps."""
    plan, reducer = CASES[case]

    def add_up(fault):
        def after(request, reply):
            return fault(request, reply) if request.metadata.dst_node_id == 3 else [reply]

        return _add_up(_grid(plan, after=fault and after), plan, reducer)

    all_answer, silent = add_up(None)
    assert silent == 0
    one_absent, silent = add_up(FAULTS["lost"])
    assert silent == 1
    for name, fault in FAULTS.items():
        with_fault, _ = add_up(fault)
        _require_within_claim(with_fault, [all_answer, one_absent], plan, reducer)
        if name == "twice":
            assert torch.equal(with_fault, all_answer)


#: What a teacher may say; its site has to bound it, for a server that can't.
SAYINGS = {
    "nothing": None,
    "other rows": np.zeros((QUERIES - 1, *SIZE)),
    "another model's shape": np.zeros((QUERIES, 11)),
    "not finite": np.full((QUERIES, *SIZE), np.nan),
    "infinite": np.full((QUERIES, *SIZE), -np.inf),
    "huge": np.full((QUERIES, *SIZE), 1e308),
    "large": np.full((QUERIES, *SIZE), 7.0),
    "large and negative": np.full((QUERIES, *SIZE), -7.0),
    "tiny": np.full((QUERIES, *SIZE), 1e-310),
    "half of it not finite": np.where(np.arange(QUERIES)[:, None, None] % 2, np.nan, np.ones(SIZE)),
    "whole numbers": np.full((QUERIES, *SIZE), 2**62),
    "classes": np.full(QUERIES, 2),
    "no classes": np.full(QUERIES, CLASSES),
    "negative classes": np.full(QUERIES, -1),
    "fractions": np.full(QUERIES, 0.5),
    "scores": np.tile([0.1, 0.2, 9.0], (QUERIES, 1)),
    "scores that are not finite": np.full((QUERIES, CLASSES), np.inf),
    "complex": np.full((QUERIES, *SIZE), 1j),
    "texts": np.full((QUERIES, *SIZE), "one"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_site_bounds_whatever_its_teacher_says_where_the_server_cannot(case):
    plan, reducer = CASES[case]

    def add_up(say_3):
        app = _app(
            lambda site: say_3() if site == 3 else _say(site, plan),
            summation=Unread(),
        )
        return _add_up(LocalGrid(app, NODES), plan, reducer, Unread())

    def fail():
        raise MemoryError("row 17")

    all_answer, silent = add_up(lambda: _say(3, plan))
    assert silent == 0
    one_absent, silent = add_up(fail)
    assert silent == 1
    seen = [all_answer, one_absent]
    for said in SAYINGS.values():
        sums, _ = add_up(lambda: said)  # noqa: B023
        _require_within_claim(sums, seen, plan, reducer)
        seen.append(sums)


@pytest.mark.parametrize("case", ["votes", "targets in a ball", "targets in a box"])
def test_one_record_of_a_site_moves_sums_by_at_most_the_claim(case):
    """Teachers are trained at the sites, on records of which one at one site is another."""
    from sklearn.linear_model import LogisticRegression, Ridge

    plan, reducer = CASES[case]

    def train(site, record):
        drawn = np.random.default_rng(site)
        x, y = drawn.normal(size=(12, 4)), np.arange(12) % CLASSES
        maps = drawn.normal(0.5, 0.3, size=(12, 6))
        if record is not None and site == 2:
            x[0], y[0], maps[0] = record, 0, 1e3 * record.sum()
        if plan is VOTES:
            return LogisticRegression().fit(x, y).predict
        model = Ridge(1e-6).fit(x, maps)
        return lambda inputs: model.predict(inputs).reshape(-1, *SIZE)

    def add_up(record):
        app = flower.teacher_app(lambda context: train(context.node_config["site"], record))
        return _add_up(LocalGrid(app, NODES), plan, reducer)[0]

    records = [None, np.zeros(4), np.full(4, 30.0), np.array([-1e6, 1e6, 0, 3])]
    sums = [add_up(record) for record in records]
    for each in sums:
        _require_within_claim(each, sums, plan, reducer)
    assert not torch.equal(sums[0], sums[2])


def test_a_site_that_never_answers_counts_as_a_teacher_without_an_answer():
    teachers = flower.FlowerTeachers(
        _grid(before=lambda request: request.metadata.dst_node_id != 2), SITES, timeout=0.2
    )
    answers = _ask(teachers)
    assert answers.private_diagnostics["teachers_without_answers"] == 1
    assert answers.facts["teacher"] == {"source": "given", "server_saw": "each site's answers"}


def test_a_site_that_is_not_connected_counts_as_a_teacher_without_an_answer():
    counts, silent = _add_up(LocalGrid(_app(_say), NODES[:-2]))
    assert silent == 2
    said = [_say(site) for site in range(SITES - 2)]
    assert torch.equal(counts, _add_without_flower(said, VOTES, None))


def test_a_node_that_is_named_twice_is_one_site():
    grid = LocalGrid(_app(_say), NODES[:-1])
    with mock.patch.object(grid, "get_node_ids", return_value=[*grid.get_node_ids(), 1]):
        counts, silent = _add_up(grid)
    assert silent == 1
    said = [_say(site) for site in range(SITES - 1)]
    assert torch.equal(counts, _add_without_flower(said, VOTES, None))


def test_more_sites_than_the_plan_has_teachers_are_refused_before_anything_is_asked():
    grid, ledger = _grid(), pv.Ledger()
    plan = replace(VOTES, teachers=SITES - 1)
    teachers = flower.FlowerTeachers(grid, SITES - 1, timeout=0.2)
    error = must_raise(BadInput, lambda: _ask(teachers, plan, ledger=ledger))
    assert "7 nodes are connected" in str(error)
    assert not grid.requests
    assert ledger.event == pv.Ledger().event


def test_no_text_of_an_error_leaves_a_site():
    def fail(context):
        raise ValueError("row 17: diagnosis E11")

    grid = LocalGrid(flower.teacher_app(fail), NODES)
    _, silent = _add_up(grid)
    assert silent == SITES
    assert len(grid.received) == SITES
    assert not any(reply.has_error() or len(reply.content) for reply in grid.received)


@pytest.mark.parametrize("case", CASES)
def test_what_a_site_sends_is_its_bounded_integers_and_nothing_else(case):
    plan, reducer = CASES[case]
    grid = _grid(plan)
    _add_up(grid, plan, reducer)
    integers = integers_for(plan.aggregate, reducer)
    for site, reply in enumerate(grid.received):
        assert list(reply.content) == ["answers"]
        [sent] = reply.content["answers"].to_numpy_ndarrays()
        assert sent.dtype == np.int64
        expected = integers.of(_say(site, plan), QUERIES)
        sent = torch.from_numpy(sent.copy()).view(QUERIES, -1)
        # with the arrays of the request in place of the reducer: up to single precision
        assert int((sent - expected).abs().max()) <= (plan in (BALL, BOX))


def test_a_reducer_that_is_not_linear_stands_at_the_sites():
    targets = _public_targets()
    autoencoder = pv.teachers.Autoencoder.fit(targets, 2, 0.1, epochs=1)
    other = pv.teachers.Autoencoder.fit(targets, 2, 0.1, epochs=1, seed=1)
    same = pv.teachers.Autoencoder.fit(targets, 2, 0.1, epochs=1)

    def say(site):
        return _say(site, BALL)

    def add_up(reducer):
        return _add_up(LocalGrid(_app(say, reducer=reducer), NODES), BALL, autoencoder)

    exact = _add_without_flower([say(site) for site in range(SITES)], BALL, autoencoder)
    sums, silent = add_up(same)
    assert silent == 0
    assert float((sums - exact).norm(dim=1).max()) <= _off_at_most(BALL, autoencoder)
    for reducer in (other, None, PCA):
        _, silent = add_up(reducer)
        assert silent == SITES
    # one that is linear is compared, too, where a site has its own
    grid = LocalGrid(_app(say, reducer=PCA), NODES)
    assert _add_up(grid, BALL, PCA)[1] == 0
    assert _add_up(grid, BALL, PCA.kept(2))[1] == SITES


def test_a_site_answers_no_other_summation():
    class Masked(Unread):
        def serve(self, app, question, compute):
            super().serve(app, f"{question}_masked", compute)

    app = _app(_say, summation=Masked())
    assert _add_up(LocalGrid(app, NODES))[1] == SITES


def test_sums_that_bounded_answers_cannot_have_are_refused_before_the_charge():
    for case in ("votes", "targets in a ball", "targets in a box"):
        plan, reducer = CASES[case]

        def double(request, reply):
            if request.metadata.dst_node_id != 3:
                return [reply]
            [integers] = reply.content["answers"].to_numpy_ndarrays()
            return [_reply(request, 10**6 * integers)]

        teachers = flower.FlowerTeachers(_grid(plan, after=double), SITES, summation=Unread())
        ledger = pv.Ledger()
        error = must_raise(BadInput, lambda: _ask(teachers, plan, reducer, ledger=ledger))  # noqa: B023
        assert "a site runs other code" in str(error)
        assert ledger.event == pv.Ledger().event


@pytest.mark.filterwarnings("ignore:the student learned little")
def test_a_certificate_and_its_card_say_what_the_server_saw(tmp_path):
    for summation, words in ((None, "each site's answers"), (Unread(), Unread.server_sees)):
        teachers = flower.FlowerTeachers(_grid(), SITES, summation=summation)
        student = pv.teachers.Student(lambda shape: torch.nn.Linear(4, CLASSES), epochs=1)
        plan = VOTES.calibrate(epsilon=8.0, delta=1e-3)
        result = pv.pate(plan, teachers, None, INPUTS, student)
        out = tmp_path / words
        pv.publish(result, out, delta=1e-3)
        for page in ("README.md", "card.html"):
            text = unescape((out / page).read_text())
            assert f"before noise was added, the publisher's server saw {words}." in text
            assert "at its site" in text
        assert pv.verify(out).ok
        second = [sys.executable, "-m", "privlearn_verify", str(out)]
        assert subprocess.run(second, check=False, capture_output=True).returncode == 0


def test_answers_that_were_released_are_not_asked_for_again(tmp_path):
    ledger, file = tmp_path / "ledger.db", tmp_path / "answers"
    first = _ask(
        flower.FlowerTeachers(_grid(), SITES),
        ledger=pv.Ledger.open(ledger, create=True),
        keep=file,
    )
    grid, again = _grid(), pv.Ledger.open(ledger)
    before = again.event
    second = _ask(flower.FlowerTeachers(grid, SITES), ledger=again, keep=file)
    assert not grid.requests
    assert torch.equal(first.scores, second.scores)
    assert again.event == before


class Killed(BaseException):
    """The server is gone."""


def _raise_at(function, last):
    """The function, which is killed when it is called the next time after `last` times."""
    calls = [0]

    def call(*arguments, **options):
        calls[0] += 1
        if calls[0] > last:
            raise Killed
        return function(*arguments, **options)

    return call


def _killed_after(function):
    """The function, after which the process is gone."""

    def call(*arguments, **options):
        function(*arguments, **options)
        raise Killed

    return call


#: Where the server is killed: what is patched, and whether the sums were in the file by then.
KILLS = {
    "before the sites are asked": ((summations.InTheClear, "add_up"), 0, False),
    "when the sums arrived": ((flower.FlowerTeachers, "add_answers"), None, False),
    "before anything is set aside": ((Ledger, "begin"), 0, False),
    "when the sums are written": ((Checkpoint, "write"), None, True),
    "before the first answer": ((asking, "_release"), 0, True),
    "in the midst of the answers": ((asking, "_release"), 4, True),
    "before the answers are written": ((Checkpoint, "write"), 1, True),
    "before the books are closed": ((Ledger, "settle"), 0, True),
}


@pytest.mark.parametrize("point", KILLS)
@pytest.mark.parametrize("case", ["votes", "targets in a box"])
def test_a_server_that_is_killed_neither_asks_nor_is_charged_twice(tmp_path, case, point):
    plan, reducer = CASES[case]
    (owner, name), last, has_sums = KILLS[point]
    path, keep = tmp_path / "ledger", tmp_path / "answers"
    whole = _ask(flower.FlowerTeachers(_grid(plan), SITES), plan, reducer, seed=3)
    function = getattr(owner, name)
    killed = _killed_after(function) if last is None else _raise_at(function, last)
    with (
        mock.patch.object(owner, name, killed),
        # a process that is gone tidies nothing up
        mock.patch.object(asking, "_end_on_failure", return_value=nullcontext()),
    ):
        ledger = pv.Ledger.open(path, create=True)
        first = flower.FlowerTeachers(_grid(plan), SITES)
        must_raise(Killed, lambda: _ask(first, plan, reducer, ledger=ledger, keep=keep))
    grid, ledger = _grid(plan), pv.Ledger.open(path)
    teachers = flower.FlowerTeachers(grid, SITES)
    # with other streams: those of the first run are in the file
    seed = 11 if has_sums else 3
    again = _ask(teachers, plan, reducer, seed=seed, ledger=ledger, keep=keep)
    assert bool(grid.requests) is not has_sums
    assert torch.equal(again.targets, whole.targets)
    spent = [(entry.open, entry.spent) for entry in LedgerFile(path).read().entries]
    assert spent == [(False, plan.event())]
    assert ledger.event == plan.event()


def test_sums_that_were_kept_are_not_for_another_summation(tmp_path):
    keep = tmp_path / "answers"
    _ask(flower.FlowerTeachers(_grid(), SITES), keep=keep)
    other = flower.FlowerTeachers(_grid(), SITES, summation=Unread())
    must_raise(BadInput, lambda: _ask(other, keep=keep))


def test_replaced_records_kept_keys_and_single_answers_are_refused():
    teachers = flower.FlowerTeachers(_grid(), SITES)
    replaced = replace(VOTES, adjacency="replace_one")
    assert "two answers change" in str(must_raise(BadInput, lambda: _ask(teachers, replaced)))
    inputs = torch.from_numpy(INPUTS)
    assert "asked again" in str(must_raise(BadInput, lambda: teachers.determined(inputs)))
    streams = pv.Streams.new(seed=1)
    assert "a sum" in str(must_raise(BadInput, lambda: teachers.answers(inputs, streams)))


def test_arguments_of_other_kinds_are_refused():
    with pytest.raises(BadInput, match="expected a function"):
        flower.teacher_app("teacher.joblib")
    for options in ({"reducer": "pca"}, {"summation": flower.InTheClear}):
        with pytest.raises(BadInput, match="expected"):
            flower.teacher_app(_say, **options)
    with pytest.raises(BadInput, match="expected"):
        flower.FlowerTeachers(_grid(), SITES, summation="masked")


def test_a_site_cannot_answer_in_the_name_of_another():
    def after(request, reply):
        if request.metadata.dst_node_id == 1:
            return []
        if request.metadata.dst_node_id == 2:
            other = Message(reply.content, reply_to=grid.requests[0])
            other.metadata.__dict__["_src_node_id"] = 2
            return [other]
        return [reply]

    grid = _grid(after=after)
    counts, silent = _add_up(grid)
    assert silent == 2
    said = [_say(site) for site in range(2, SITES)]
    assert torch.equal(counts, _add_without_flower(said, VOTES, None))
