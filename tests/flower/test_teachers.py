"""PATE over Flower: the same answers as without it, whatever the sites send, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, RecordDict

import privlearn as pv
from privlearn import flower
from privlearn.errors import BadInput
from tests.support.checks import must_raise
from tests.support.local_grid import LocalGrid

SITES, QUERIES, CLASSES = 7, 30, 3
INPUTS = np.random.default_rng(1).normal(size=(QUERIES, 4)).astype(np.float32)
PLAN = pv.teachers.PatePlan(
    QUERIES, SITES, pv.teachers.Votes(CLASSES), noise_multiplier=0.5, adjacency="add_remove"
)
NODES = [{"site": site} for site in range(SITES)]


def _votes(site):
    """What a site's teacher says to all queries."""
    weights = np.random.default_rng(site).normal(size=(4, CLASSES))
    return (INPUTS @ weights).argmax(1)


def _load(context):
    return lambda inputs: _votes(context.node_config["site"])


def _grid(**faults):
    return LocalGrid(flower.teacher_app(_load), NODES, **faults)


def _ask(teachers, plan=PLAN, reducer=None, **options):
    streams = pv.Streams.new(seed=3)
    return pv.teachers.ask_teachers(plan, teachers, reducer, INPUTS, streams=streams, **options)


def _given(tmp_path, said):
    for site, predictions in enumerate(said):
        np.savez(tmp_path / f"{site}.npz", predictions=predictions)
    return pv.teachers.Given(tmp_path)


def test_votes_are_those_of_teachers_that_are_asked_without_flower(tmp_path):
    over_flower = _ask(flower.FlowerTeachers(_grid(), SITES))
    without = _ask(_given(tmp_path, [_votes(site) for site in range(SITES)]))
    assert torch.equal(over_flower.scores, without.scores)
    assert torch.equal(over_flower.targets, without.targets)
    assert over_flower.ledger.event == without.ledger.event == PLAN.event()


def test_codes_are_those_of_teachers_that_are_asked_without_flower(tmp_path):
    plan = replace(PLAN, aggregate=pv.teachers.Ball(1.0))
    said = [np.random.default_rng(site).normal(size=(QUERIES, 2)) for site in range(SITES)]
    app = flower.teacher_app(lambda context: lambda inputs: said[context.node_config["site"]])
    reducer = pv.teachers.Identity((2,))
    teachers = flower.FlowerTeachers(LocalGrid(app, NODES), SITES)
    over_flower = _ask(teachers, plan, reducer).targets
    without = _ask(_given(tmp_path, said), plan, reducer).targets
    assert torch.allclose(over_flower, without, atol=1e-6)  # files are read in single precision


@pytest.mark.parametrize("form", ["module", "estimator", "function"])
def test_a_teacher_is_a_module_an_estimator_or_a_function(form):
    from sklearn.linear_model import LogisticRegression

    torch.manual_seed(0)
    module = torch.nn.Linear(4, CLASSES)
    estimator = LogisticRegression().fit(INPUTS, _votes(0))
    teacher = {"module": module, "estimator": estimator, "function": estimator.predict}[form]
    grid = LocalGrid(flower.teacher_app(lambda context: teacher), NODES[:1])
    [said] = flower.FlowerTeachers(grid, 1).answers(torch.from_numpy(INPUTS), None)
    with torch.no_grad():
        scores = module(torch.from_numpy(INPUTS))
    expected = scores if form == "module" else torch.from_numpy(estimator.predict(INPUTS))
    assert torch.equal(said, expected)


def _reply(request, content):
    return Message(content, reply_to=request)


FAULTS = {
    "lost": lambda request, reply: [],
    "twice": lambda request, reply: [reply, _reply(request, RecordDict())],
    "empty": lambda request, reply: [_reply(request, RecordDict())],
    "another record": lambda request, reply: [
        _reply(request, RecordDict({"answers": ArrayRecord()}))
    ],
    "another shape": lambda request, reply: [
        _reply(request, RecordDict({"answers": ArrayRecord([np.zeros((QUERIES, 9))])}))
    ],
    "fewer rows": lambda request, reply: [
        _reply(request, RecordDict({"answers": ArrayRecord([np.zeros(QUERIES - 1)])}))
    ],
    "not finite": lambda request, reply: [
        _reply(request, RecordDict({"answers": ArrayRecord([np.full(QUERIES, np.nan)])}))
    ],
    "out of range": lambda request, reply: [
        _reply(request, RecordDict({"answers": ArrayRecord([np.full(QUERIES, 10**6)])}))
    ],
    "huge": lambda request, reply: [
        _reply(request, RecordDict({"answers": ArrayRecord([np.full((QUERIES, 3), 1e308)])}))
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_site_never_moves_counts_by_more_than_the_claim_whatever_it_sends(name):
    """The sums with a site that misbehaves, and with one that is absent, through the real apps."""
    from privlearn.methods.pate.answers import sum_answers

    def total(after):
        teachers = flower.FlowerTeachers(_grid(after=after), SITES, timeout=0.2)
        queries = torch.from_numpy(INPUTS)
        sums, silent = sum_answers(PLAN, teachers, None, queries, pv.Streams.new(seed=1))
        return sums.counts, silent

    def at_site_3(fault):
        def after(request, reply):
            return fault(request, reply) if request.metadata.dst_node_id == 3 else [reply]

        return after

    all_answer, _ = total(None)
    one_absent, silent = total(at_site_3(FAULTS["lost"]))
    assert silent == 1
    with_fault, _ = total(at_site_3(FAULTS[name]))
    for other in (all_answer, one_absent):
        moved = torch.linalg.vector_norm(with_fault - other, dim=1)
        assert float(moved.max()) <= PLAN.aggregate.sensitivity + 1e-12
    if name == "twice":
        assert torch.equal(with_fault, all_answer)


def test_a_site_that_never_answers_counts_as_a_teacher_without_an_answer():
    teachers = flower.FlowerTeachers(
        _grid(before=lambda request: request.metadata.dst_node_id != 2), SITES, timeout=0.2
    )
    answers = _ask(teachers)
    assert answers.private_diagnostics["teachers_without_answers"] == 1
    assert answers.facts["teacher"] == {"source": "given"}


def test_a_site_that_is_not_connected_counts_as_a_teacher_without_an_answer():
    grid = LocalGrid(flower.teacher_app(_load), NODES[:-2])
    said = list(
        flower.FlowerTeachers(grid, SITES, timeout=0.2).answers(torch.from_numpy(INPUTS), None)
    )
    assert [each is None for each in said] == [False] * (SITES - 2) + [True] * 2


def test_more_sites_than_the_plan_has_teachers_are_refused_before_anything_is_asked():
    grid, ledger = _grid(), pv.Ledger()
    plan = replace(PLAN, teachers=SITES - 1)
    teachers = flower.FlowerTeachers(grid, SITES - 1, timeout=0.2)
    error = must_raise(BadInput, lambda: _ask(teachers, plan, ledger=ledger))
    assert "7 nodes are connected" in str(error)
    assert not grid.requests
    assert ledger.event == pv.Ledger().event


def test_no_text_of_an_error_leaves_a_site():
    def fail(context):
        raise ValueError("row 17: diagnosis E11")

    grid = LocalGrid(flower.teacher_app(fail), NODES)
    assert (
        list(flower.FlowerTeachers(grid, SITES).answers(torch.from_numpy(INPUTS), None))
        == [None] * SITES
    )
    assert not any(reply.has_error() or len(reply.content) for reply in grid.received)


def test_what_a_site_sends_is_its_answers_and_nothing_else():
    grid = _grid()
    _ask(flower.FlowerTeachers(grid, SITES))
    for site, reply in enumerate(grid.received):
        assert list(reply.content) == ["answers"]
        [answers] = reply.content["answers"].to_numpy_ndarrays()
        assert np.array_equal(answers, _votes(site))


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


def test_replaced_records_and_kept_keys_are_refused():
    teachers = flower.FlowerTeachers(_grid(), SITES)
    replaced = replace(PLAN, adjacency="replace_one")
    assert "two answers change" in str(must_raise(BadInput, lambda: _ask(teachers, replaced)))
    inputs = torch.from_numpy(INPUTS)
    assert "asked again" in str(must_raise(BadInput, lambda: teachers.determined(inputs)))


def test_a_teacher_that_cannot_be_loaded_by_a_function_is_refused():
    with pytest.raises(BadInput, match="expected a function"):
        flower.teacher_app("teacher.joblib")


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
    teachers = flower.FlowerTeachers(grid, SITES, timeout=0.2)
    said = list(teachers.answers(torch.from_numpy(INPUTS), None))
    assert [each is None for each in said] == [True] * 2 + [False] * (SITES - 2)
