"""DP-FedAvg over Flower: what a client can move, what is charged, and what a killed server does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

import privlearn as pv
from privlearn import flower
from privlearn.core.accounting import zcdp
from privlearn.core.mechanisms import noise
from privlearn.errors import BadInput, BudgetExceeded, ProcessLost, TrainingWarning
from privlearn.flower import federated, updates
from privlearn.runs.checkpoint import Checkpoint
from tests.support.checks import must_raise
from tests.support.local_grid import LocalGrid

CLIENTS, FEATURES, CLASSES = 6, 4, 3
SIZE = FEATURES * CLASSES + CLASSES
NORM = 0.25
NODES = [{"client": client} for client in range(CLIENTS)]
EVERYONE = pv.Plan(
    pv.sampling.FullBatch(),
    epochs=1,
    schedule=pv.schedules.Constant(0.7),
    clip=pv.Flat(NORM),
    adjacency="add_remove",
    examples=CLIENTS,
    persons=True,
)
DRAWN = replace(EVERYONE, sampling=pv.Poisson(0.5))


def build_model():
    torch.manual_seed(0)
    return torch.nn.Linear(FEATURES, CLASSES)


def train(model, context):
    """Some steps on rows of the client's own."""
    torch.manual_seed(context.node_config["client"])
    x, y = torch.randn(5, FEATURES), torch.randint(CLASSES, (5,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def grid_of(train=train, **faults):
    return LocalGrid(flower.training_app(build_model, train), NODES, **faults)


def run(grid, plan=EVERYONE, **options):
    options = {"streams": pv.Streams.new(seed=3), "timeout": 0.2, **options}
    return flower.train_federated(grid, build_model(), plan, input_shape=(FEATURES,), **options)


@contextmanager
def watched() -> Iterator[list[torch.Tensor]]:
    """The sums before noise comes, one for each round."""
    sums: list[torch.Tensor] = []

    def release(*parts, **arguments):
        sums.append(parts[0].values[0].clone())
        return real(*parts, **arguments)

    real = federated.release
    with mock.patch.object(federated, "release", release):
        yield sums


def sum_of(grid, plan=EVERYONE):
    """The sum of the first round."""
    with watched() as sums:
        run(grid, plan)
    return sums[0]


def update_of(client):
    """The clipped update of a client in the first round, computed here."""
    model, before = build_model(), build_model()
    train(model, mock.Mock(node_config={"client": client}))
    parts = [
        (now - then).detach().double().reshape(-1)
        for now, then in zip(model.parameters(), before.parameters(), strict=True)
    ]
    whole = torch.cat(parts)
    return whole * min(1.0, NORM / float(whole.norm()))


def weights(model):
    return torch.cat([each.detach().double().reshape(-1) for each in model.parameters()])


# -- what is computed


def test_a_round_adds_the_mean_of_clipped_updates_and_the_noise_once():
    total = sum(update_of(client) for client in range(CLIENTS))
    with watched() as sums:
        result = run(grid_of())
    assert torch.allclose(sums[0], total, atol=CLIENTS * NORM / 64)
    expected = sums[0].clone()
    noise.add_gaussian([expected], 0.7 * NORM, pv.Streams.new(seed=3).noise)
    moved = weights(result.model) - weights(build_model())
    assert torch.allclose(moved, expected / CLIENTS, atol=1e-6)


def test_a_client_that_does_not_answer_counts_as_an_update_of_zero():
    with watched() as sums:
        result = run(grid_of(before=lambda request: request.metadata.dst_node_id > 4))
    expected = sums[0].clone()
    noise.add_gaussian([expected], 0.7 * NORM, pv.Streams.new(seed=3).noise)
    moved = weights(result.model) - weights(build_model())
    assert torch.allclose(moved, expected / CLIENTS, atol=1e-6)
    assert dict(result.private_diagnostics) == {"asked": [6], "answered": [2]}


def test_a_model_of_noise_alone_is_warned_of_and_no_other(recwarn):
    with pytest.warns(TrainingWarning, match="noise alone"):
        run(grid_of(before=lambda request: False))
    recwarn.clear()
    run(grid_of(before=lambda request: request.metadata.dst_node_id > 5))
    assert not [each for each in recwarn if each.category is TrainingWarning]


def drawn_nodes(epochs=1):
    """Who is drawn in these epochs of half of the clients each round, with seed 3."""
    stream = pv.Streams.new(seed=3).sampling
    places = stream.choice(CLIENTS, CLIENTS, replace=False).tolist()
    epochs = [pv.Poisson(0.5).draw(CLIENTS, stream) for _ in range(epochs)]
    return [
        places.index(place) + 1 for epoch in epochs for sample in epoch for place in sample.indices
    ]


def test_those_who_are_asked_are_those_that_the_server_drew():
    grid = grid_of()
    run(grid, replace(DRAWN, epochs=3))
    expected = drawn_nodes(epochs=3)
    assert [request.metadata.dst_node_id for request in grid.requests] == expected
    assert len(expected) < 6 * CLIENTS


def test_a_client_sends_integers_of_its_update_and_nothing_else():
    grid = grid_of()
    run(grid)
    assert len(grid.received) == CLIENTS
    for reply in grid.received:
        assert list(reply.content) == ["answers"]
        [integers] = reply.content["answers"].to_numpy_ndarrays()
        assert integers.dtype == np.int64
        assert integers.shape == (SIZE,)


def test_no_text_of_an_error_leaves_a_client():
    def fail(model, context):
        raise ValueError("row 17: diagnosis E11")

    grid = grid_of(fail)
    assert not sum_of(grid).any()
    assert not any(reply.has_error() or len(reply.content) for reply in grid.received)


def test_secure_sums_of_all_clients_train_the_same_model():
    app = flower.training_app(build_model, train, summation=flower.SecureSum())
    result = run(LocalGrid(app, NODES), summation=flower.SecureSum())
    assert torch.equal(weights(result.model), weights(run(grid_of()).model))
    read = flower.SecureSum.server_sees
    assert result.facts["federation"] == {"server_read": read}


@pytest.mark.parametrize(
    "sampling", [pv.Poisson(0.5), pv.sampling.FixedOrder(4), pv.Shuffle(4)], ids=str
)
def test_secure_sums_of_clients_that_are_drawn_are_refused_before_the_charge(sampling):
    """A round for which too few are drawn could never be added up."""
    grid, ledger, plan = (
        grid_of(),
        pv.Ledger(),
        replace(EVERYONE, sampling=sampling, adjacency="zero_out"),
    )
    refused = lambda: run(grid, plan, summation=flower.SecureSum(), ledger=ledger)  # noqa: E731
    assert "FullBatch()" in str(must_raise(BadInput, refused))
    assert not grid.requests
    assert zcdp.rho(ledger.event) == 0


def test_a_run_without_clients_is_refused_and_one_whose_clients_have_gone_stops(tmp_path):
    app, ledger = flower.training_app(build_model, train), pv.Ledger()
    none = must_raise(BadInput, lambda: run(LocalGrid(app, []), ledger=ledger))
    assert "no client was connected" in str(none)
    assert zcdp.rho(ledger.event) == 0
    grid = grid_of()
    file = {"checkpoint": tmp_path / "run", "streams": None}

    def leave(request):
        if len(grid.requests) > CLIENTS:
            raise KeyboardInterrupt
        return True

    grid._before = leave
    with pytest.raises(KeyboardInterrupt):
        run(grid, replace(EVERYONE, epochs=2), **file)
    others = grid_of()
    others._apps = {node + 100: app for node, app in others._apps.items()}
    others.contexts = {node + 100: context for node, context in others.contexts.items()}
    gone = must_raise(ProcessLost, lambda: run(others, replace(EVERYONE, epochs=2), **file))
    assert "the same numbers" in str(gone)
    assert not others.requests


def test_the_optimizer_of_the_server_may_be_adam():
    adam = lambda parameters: torch.optim.Adam(parameters, lr=0.01)  # noqa: E731
    result = run(grid_of(), server_optimizer=adam)
    moved = (weights(result.model) - weights(build_model())).abs()
    assert torch.allclose(moved, torch.full_like(moved, 0.01), atol=1e-4)
    assert result.facts["optimizer"]["name"] == "Adam"


# -- integers


@pytest.mark.parametrize("size", [1, 15, 5000])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_integers_are_within_the_norm_and_near_the_clipped_update(size, share):
    grid = updates.UpdateGrid(NORM, size, share)
    for length in (0.0, 0.01, NORM, 3.0, 1e150):
        update = np.random.default_rng(size).normal(size=size)
        update *= length / np.linalg.norm(update)
        values = grid.encode(update)[:size] * grid.step
        clipped = update * min(1.0, NORM / length) if length else update
        assert np.linalg.norm(values) <= NORM
        assert np.linalg.norm(values - clipped) <= NORM / 32
        assert np.abs(values).max() <= grid.most * grid.step


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
def test_an_update_that_is_not_finite_is_none(value):
    update = np.full(SIZE, value)
    assert updates.UpdateGrid(NORM, SIZE).encode(update) is None


# -- what one client can move


def _with(request, integers):
    return [Message(RecordDict({"answers": ArrayRecord([integers])}), reply_to=request)]


def _changed(request, reply, change):
    [integers] = reply.content["answers"].to_numpy_ndarrays()
    return _with(request, change(np.array(integers)))


MOST = updates.UpdateGrid(NORM, SIZE).most
FAULTS = {
    "lost": lambda request, reply: [],
    "twice": lambda request, reply: [reply, *_changed(request, reply, lambda said: -said)],
    "empty": lambda request, reply: [Message(RecordDict(), reply_to=request)],
    "not finite": lambda request, reply: _with(request, np.full(SIZE, np.nan)),
    "huge": lambda request, reply: _with(request, np.full(SIZE, 1e308)),
    "the smallest integer": lambda request, reply: _with(
        request, np.full(SIZE, np.iinfo(np.int64).min)
    ),
    "out of range": lambda request, reply: _with(request, np.full(SIZE, MOST + 1)),
    "too long": lambda request, reply: _with(request, np.full(SIZE, MOST)),
    "another model's shape": lambda request, reply: _with(request, np.ones(SIZE + 1, np.int64)),
    "lies about its rows": lambda request, reply: [
        Message(
            RecordDict({**reply.content, "metrics": MetricRecord({"num-examples": 10**9})}),
            reply_to=request,
        )
    ],
}


def at_client_3(fault):
    def after(request, reply):
        return fault(request, reply) if request.metadata.dst_node_id == 3 else [reply]

    return after


@pytest.mark.parametrize("name", FAULTS)
def test_a_client_moves_the_sum_by_the_clip_at_most_whatever_it_sends(name):
    everyone, without = sum_of(grid_of()), sum_of(grid_of(after=at_client_3(FAULTS["lost"])))
    with_fault = sum_of(grid_of(after=at_client_3(FAULTS[name])))
    for other in (everyone, without):
        assert float((with_fault - other).norm()) <= NORM
    if name in ("twice", "lies about its rows"):
        assert torch.equal(with_fault, everyone)


@pytest.mark.parametrize(
    ("length", "adjacency"), [(1e-3, "replace_one"), (50.0, "replace_one"), (50.0, "add_remove")]
)
def test_a_client_with_other_rows_moves_the_sum_by_the_sensitivity_at_most(length, adjacency):
    def train_otherwise(model, context):
        train(model, context)
        if context.node_config["client"] == 2:
            with torch.no_grad():
                for each in model.parameters():
                    each.sub_(length)

    plan = replace(EVERYONE, adjacency=adjacency)
    moved = float((sum_of(grid_of(train_otherwise), plan) - sum_of(grid_of(), plan)).norm())
    assert 0 < moved <= 2 * NORM
    with watched():
        result = run(grid_of(), plan)
    noise_of = {"replace_one": 2 * NORM, "add_remove": NORM}[adjacency]
    expected = sum_of(grid_of(), plan)
    noise.add_gaussian([expected], 0.7 * noise_of, pv.Streams.new(seed=3).noise)
    moved = weights(result.model) - weights(build_model())
    assert torch.allclose(moved, expected / CLIENTS, atol=1e-6)


def test_a_client_cannot_answer_in_the_name_of_another():
    def after(request, reply):
        if request.metadata.dst_node_id == 1:
            return []
        if request.metadata.dst_node_id == 2:
            other = Message(reply.content, reply_to=grid.requests[0])
            other.metadata.__dict__["_src_node_id"] = 2
            return [other]
        return [reply]

    grid = grid_of(after=after)
    only = grid_of(before=lambda request: request.metadata.dst_node_id > 2)
    assert torch.equal(sum_of(grid), sum_of(only))


# -- clips that follow the updates, and noise that is correlated


def test_a_clip_follows_the_updates_by_a_bit_of_each_client():
    plan = replace(EVERYONE, clip=pv.clipping.Quantile(NORM), epochs=2)
    grid = grid_of()
    with watched() as sums:
        run(grid, plan)
    first = updates.UpdateGrid(NORM, SIZE, 0.1)
    lengths = [float(update_of(client).norm()) for client in range(CLIENTS)]
    clipped = sum(length >= NORM * (1 - 1e-9) for length in lengths)
    assert float(sums[0][-1]) == (CLIENTS - 2 * clipped) * first.flag * first.step
    norms = [request.content["terms"]["clip_norm"] for request in grid.requests]
    assert norms[:CLIENTS] == [NORM] * CLIENTS
    assert norms[CLIENTS] != NORM


def test_a_clip_may_follow_a_public_schedule():
    clip = pv.Flat(NORM, schedule=pv.schedules.PerEpoch((1.0, 0.5)))
    grid = grid_of()
    run(grid, replace(EVERYONE, clip=clip, epochs=2))
    norms = [request.content["terms"]["clip_norm"] for request in grid.requests]
    assert norms == [NORM] * CLIENTS + [NORM / 2] * CLIENTS


def test_noise_may_be_correlated_over_rounds(tmp_path):
    plan = replace(
        EVERYONE,
        sampling=pv.sampling.FixedOrder(2),
        epochs=4,
        adjacency="zero_out",
        correlation=pv.mechanisms.Banded(bands=3),
    )
    result = run(grid_of(), plan)
    assert result.ledger.event == plan.event()
    pv.publish(result, tmp_path / "model", delta=1e-2)
    assert pv.verify(tmp_path / "model").ok


# -- what is charged and published


def test_the_ledger_is_charged_what_the_plan_says():
    plan = replace(DRAWN, epochs=3)
    for sampling in (pv.Poisson(0.5), pv.sampling.FullBatch()):
        plan = replace(DRAWN, sampling=sampling, epochs=3)
        assert run(grid_of(), plan).ledger.event == plan.event()


def test_no_client_is_asked_and_no_noise_is_drawn_beyond_the_budget():
    grid, streams = grid_of(), pv.Streams.new(seed=3)
    ledger = pv.Ledger(pv.Budget(0.01, 1e-3))
    must_raise(BudgetExceeded, lambda: run(grid, ledger=ledger, streams=streams))
    assert not grid.requests
    assert streams.noise.position == 0
    assert ledger.event == pv.Ledger().event


def test_no_noise_is_drawn_before_the_charge():
    """A ledger that refuses at the charge itself."""
    streams, model = pv.Streams.new(seed=3), build_model()
    ledger = pv.Ledger()
    with (
        mock.patch.object(pv.Ledger, "charge", side_effect=BudgetExceeded("no")),
        pytest.raises(BudgetExceeded),
    ):
        flower.train_federated(
            grid_of(), model, EVERYONE, input_shape=(4,), ledger=ledger, streams=streams
        )
    assert streams.noise.position == 0
    assert torch.equal(weights(model), weights(build_model()))


def test_a_folder_is_published_that_both_verifiers_agree_on(tmp_path):
    plan = replace(DRAWN, epochs=2).calibrate(epsilon=4.0, delta=1e-2)
    folder = pv.publish(run(grid_of(), plan), tmp_path / "model")
    verification = pv.verify(folder)
    assert verification.ok
    assert verification.unit == "one person (any number of rows, all of which may be used)"
    assert verification.epsilon <= 4.0
    second = [sys.executable, "-m", "privlearn_verify", str(folder)]
    assert subprocess.run(second, capture_output=True, check=False).returncode == 0
    card = (folder / "README.md").read_text("utf-8")
    assert "the update of each client" in card
    assert "one person, with all their rows" in card
    loaded = pv.load_model(folder, build_model())
    assert loaded.predict(np.zeros((2, FEATURES), np.float32)).shape == (2,)


# -- a server that is killed


class Killed(BaseException):
    """The process is gone."""


class _Points:
    """Counts points of a run, and kills it at one of them."""

    def __init__(self, kill_at=None):
        self.number, self._kill_at = 0, kill_at

    def __call__(self, *_):
        self.number += 1
        if self.number - 1 == self._kill_at:
            raise Killed
        return True

    def around(self, function):
        def both(*args, **kwargs):
            self()
            returned = function(*args, **kwargs)
            self()
            return returned

        return both


TWO_ROUNDS = replace(DRAWN, epochs=1)


def _train_otherwise_each_time():
    """Clients that would give another update each time they are asked."""
    asked = iter(range(1000))

    def train_again(model, context):
        with torch.no_grad():
            model.weight.add_(0.001 * (1 + next(asked)))

    return train_again


def _run_in_file(path, points, train=train, **options):
    """A run whose points are counted, with what noise was drawn for: a place, and a sum."""
    drawn = []

    def release(*parts, **arguments):
        stream = arguments["stream"]
        place = stream.key, stream.position
        points()
        drawn.append((place, parts[0].values[0].numpy().tobytes()))
        returned = real(*parts, **arguments)
        points()
        return returned

    real = federated.release
    with (
        mock.patch.object(federated, "release", release),
        mock.patch.object(Checkpoint, "write", lambda *args: points.around(write)(*args)),
    ):
        try:
            result = run(
                grid_of(train, before=points),
                TWO_ROUNDS,
                checkpoint=path,
                server_optimizer=lambda parameters: _Counted(parameters, points),
                **options,
            )
        except Killed:
            result = None
    return result, drawn


write = Checkpoint.write


class _Counted(torch.optim.SGD):
    """An optimizer before and after whose steps are points."""

    def __init__(self, parameters, points):
        super().__init__(parameters, lr=1.0)
        self._points = points

    def step(self, closure=None):
        self._points()
        super().step(closure)
        self._points()


def kill_everywhere(folder, points_of=range, train_of=lambda: train, in_file=True):
    """Kill a run at each point, resume it, and compare what was charged and drawn."""
    counted = _Points()
    whole, _ = _run_in_file(folder / "whole", counted)
    assert counted.number > 12
    for point in points_of(counted.number):
        path, ledgers = folder / f"run-{point}", folder / f"ledger-{point}"
        clients = train_of()
        first = pv.Ledger.open(ledgers, create=True) if in_file else pv.Ledger()
        killed, drawn = _run_in_file(path, _Points(point), clients, ledger=first)
        assert killed is None
        again = pv.Ledger.open(ledgers) if in_file else pv.Ledger()
        result, drawn_again = _run_in_file(path, _Points(), clients, ledger=again)
        assert result.ledger.event == TWO_ROUNDS.event(), point
        sums = {}
        for place, values in drawn + drawn_again:
            assert sums.setdefault(place, values) == values, point
        assert len(sums) == 2
        if clients is train:
            assert torch.equal(weights(result.model), weights(whole.model)), point


@pytest.mark.parametrize("in_file", [True, False])
def test_a_killed_run_is_resumed_to_the_same_bits_and_the_same_charge(tmp_path, in_file):
    kill_everywhere(tmp_path, in_file=in_file)


def test_no_noise_is_drawn_for_two_sums_where_clients_answer_otherwise(tmp_path):
    kill_everywhere(tmp_path, train_of=_train_otherwise_each_time)


def test_a_resumed_run_has_the_clients_places_that_it_began_with(tmp_path):
    path, points = tmp_path / "run", _Points()
    killed, _ = _run_in_file(path, _Points(3))  # before the first sum
    assert killed is None
    grid = grid_of(before=points)
    grid.get_node_ids = lambda: [2, 3, 4, 5, 6]
    run(
        grid,
        TWO_ROUNDS,
        checkpoint=path,
        server_optimizer=lambda parameters: _Counted(parameters, points),
    )
    expected = [node for node in drawn_nodes() if node > 1]
    assert [request.metadata.dst_node_id for request in grid.requests] == expected


def test_a_copy_of_a_checkpoint_has_no_noise_of_the_original_for_another_sum(tmp_path):
    """Clients answer otherwise when they are asked again: the same noise on both would tell the
    difference of the sums exactly.
    """
    clients = _train_otherwise_each_time()
    killed, _ = _run_in_file(tmp_path / "run" / "file", _Points(2), clients, streams=None)
    assert killed is None
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    sums = {}
    for folder in ("run", "copy"):
        options = {"streams": None, "ledger": pv.Ledger()}
        result, drawn = _run_in_file(tmp_path / folder / "file", _Points(), clients, **options)
        assert result is not None
        for place, values in drawn:
            assert sums.setdefault(place, values) == values
    assert len(sums) == 4


def test_an_older_copy_of_a_checkpoint_is_refused_once_the_run_has_ended(tmp_path):
    """Its rounds are paid for, and clients would give other sums for them."""
    clients = _train_otherwise_each_time()
    pv.Ledger.open(tmp_path / "ledger", create=True)
    go_on = lambda folder, points: _run_in_file(  # noqa: E731
        tmp_path / folder / "file",
        points,
        clients,
        streams=None,
        ledger=pv.Ledger.open(tmp_path / "ledger"),
    )
    assert go_on("run", _Points(2))[0] is None  # before the first sum, whoever was drawn
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    result, drawn = go_on("run", _Points())
    assert result.ledger.event == TWO_ROUNDS.event()
    assert len(drawn) == 2
    refused = must_raise(BadInput, lambda: go_on("copy", _Points()))
    assert "clients would give another sum" in str(refused)  # and none is asked
    again, drawn = go_on("run", _Points())  # the checkpoint with which it ended
    assert torch.equal(weights(again.model), weights(result.model))
    assert not drawn


def test_a_sum_that_clipped_updates_cannot_have_is_not_kept(tmp_path):
    """Under masks the server can't see who lies; the run goes on when nobody does."""

    def after(request, reply):
        if lies and request.metadata.message_type.endswith("masked"):
            [masked] = reply.content["secure_sum"].to_numpy_ndarrays()
            longer = masked + np.uint64(MOST // 2)
            return [Message(RecordDict({"secure_sum": ArrayRecord([longer])}), reply_to=request)]
        return [reply]

    lies, ledger = True, pv.Ledger()
    options = {
        "summation": flower.SecureSum(),
        "checkpoint": tmp_path / "run",
        "streams": None,
    }
    app = flower.training_app(build_model, train, summation=flower.SecureSum())
    grid = LocalGrid(app, NODES, after=after)
    lost = must_raise(ProcessLost, lambda: run(grid, ledger=ledger, **options))
    assert "longer than clipped updates" in str(lost)
    assert zcdp.rho(ledger.event) == 0
    lies = False
    assert run(grid, ledger=pv.Ledger(), **options).ledger.event == EVERYONE.event()


# -- who is where


def test_a_client_that_is_not_there_moves_no_other_to_another_batch():
    """The places of the others are as likely as if it were there: any, for each of them. Were they
    filled up, the last batches would be empty, and each batch would have other clients.
    """
    rounds = {node: set() for node in (1, 2, 3)}
    plan = replace(EVERYONE, sampling=pv.sampling.FixedOrder(1), adjacency="zero_out")
    for seed in range(30):
        grid = grid_of()
        grid.get_node_ids = lambda: [1, 2, 3]
        sizes = []
        with watched() as sums:
            result = run(grid, plan, streams=pv.Streams.new(seed=seed), timeout=1e-3)
        sizes = result.private_diagnostics["answered"]
        assert len(sizes) == len(sums) == CLIENTS
        taken = [number for number, size in enumerate(sizes) if size]
        for request, number in zip(grid.requests, taken, strict=True):
            rounds[request.metadata.dst_node_id].add(number)
    assert all(seen == set(range(CLIENTS)) for seen in rounds.values())


# -- what is refused


def test_what_does_not_fit_is_refused_before_any_client_is_asked(tmp_path):
    grid = grid_of()
    rows = replace(EVERYONE, persons=False)
    assert "persons=True" in str(must_raise(BadInput, lambda: run(grid, rows)))
    fewer = replace(EVERYONE, examples=CLIENTS - 1)
    assert "6 nodes are connected" in str(must_raise(BadInput, lambda: run(grid, fewer)))
    secret = pv.Streams.of_secret(b"x" * 32, b"y" * 64)
    assert "new keys" in str(must_raise(BadInput, lambda: run(grid, streams=secret)))
    transcript = Checkpoint(tmp_path / "transcript")
    transcript.replayable = True
    assert "replayed" in str(must_raise(BadInput, lambda: run(grid, checkpoint=transcript)))
    normed = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    refused = must_raise(
        BadInput, lambda: flower.train_federated(grid, normed, EVERYONE, input_shape=(4,))
    )
    assert "running statistics" in str(refused)
    frozen = build_model().requires_grad_(False)
    refused = must_raise(
        BadInput, lambda: flower.train_federated(grid, frozen, EVERYONE, input_shape=(4,))
    )
    assert "no parameter" in str(refused)
    must_raise(TypeError, lambda: run(grid, device="cuda"))
    assert not grid.requests


@pytest.mark.parametrize("name", ["build_model", "train"])
def test_an_app_is_made_of_functions(name):
    arguments = {"build_model": build_model, "train": train, name: build_model()}
    with pytest.raises(BadInput, match=f"{name} is a Linear: expected a function"):
        flower.training_app(**arguments)


@pytest.mark.parametrize(
    "other",
    [
        {"group_size": 2},
        {"rows_per_person": 2},
        {"clip": pv.clipping.PerLayer(1.0)},
        {"persons": 1},
        {"schedule": pv.schedules.Validation(k=0.7)},
    ],
)
def test_a_plan_for_clients_refuses_what_only_rows_have(other):
    must_raise(BadInput, lambda: replace(EVERYONE, **other))


def test_a_plan_for_clients_is_refused_for_rows_in_one_place():
    x, y = np.zeros((6, FEATURES), np.float32), np.zeros(6, np.int64)
    data = pv.Dataset(x, y, groups=np.arange(6))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    refused = must_raise(BadInput, lambda: pv.dpsgd(EVERYONE, build_model(), loss, data))
    assert "train_federated" in str(refused)


def test_facts_of_rows_do_not_follow_a_plan_for_clients():
    result = run(grid_of())
    facts = {name: value for name, value in result.facts.items() if name != "federation"}
    assert EVERYONE.follows(facts)
    assert replace(EVERYONE, persons=False).follows(result.facts)
    assert not EVERYONE.follows(result.facts)


def test_the_pages_figures_are_those_that_were_measured():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "federated-training.md").read_text("utf-8")
    rows = json.loads((root / "docs" / "measured" / "federated.json").read_text("utf-8"))["rows"]
    for row in rows:
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:g}"
        best = max(figure for name, figure in row["tries"].items() if name.startswith("0.2"))
        cells = f"| {epsilon} | {row['mean']:.3f} ± {row['deviation']:.3f} | {best:.3f} |"
        assert cells in page
    assert len(rows) == 5
