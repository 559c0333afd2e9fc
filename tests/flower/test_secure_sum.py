"""Secure sums: exact whoever drops out, and masked whatever the server asks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography.exceptions import InvalidTag
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from privlearn.errors import BadInput, ProcessLost
from privlearn.flower import InTheClear, SecureSum, secure_keys, secure_stages
from privlearn.flower.secure_stages import KEYS, MASKED, RECORD, SHARES, STAGES, UNMASK
from privlearn.flower.secure_terms import Terms, are_connected, leave_out_lonely
from tests.flower.secure_rounds import (
    BOUND,
    NODES,
    QUESTION,
    SIZE,
    THRESHOLD,
    CuriousServer,
    arrays_of,
    as_nodes,
    integers_of,
)
from tests.support.checks import must_raise
from tests.support.local_grid import LocalGrid


def _integers(content, context, circle):
    return integers_of(context.node_id)


def _grid(summation, compute=_integers, nodes=5, **faults):
    app = ClientApp()
    summation.serve(app, QUESTION, compute)
    return LocalGrid(app, [{}] * nodes, **faults)


def _add_up(summation, grid, content=None, **options):
    options = {"size": SIZE, "bound": BOUND, "timeout": 0.01, **options}
    return summation.add_up(
        grid, list(grid.get_node_ids()), QUESTION, content or RecordDict(), **options
    )


def _sum_of(nodes, size=SIZE):
    return sum(integers_of(node, size) for node in nodes)


def _stage_of(message):
    return message.metadata.message_type.rpartition("_")[2]


def _lose(*lost):
    """Faults that lose the requests of stages at nodes: (stage, node)."""
    return {
        "before": lambda request: (_stage_of(request), request.metadata.dst_node_id) not in lost
    }


def _lose_replies(*lost):
    return {
        "after": lambda request, reply: (
            [] if (_stage_of(request), request.metadata.dst_node_id) in lost else [reply]
        )
    }


# -- sums


@pytest.mark.parametrize(
    ("nodes", "neighbours"), [(2, None), (3, None), (7, None), (12, 4), (5, 8)]
)
def test_sums_are_those_in_the_clear(nodes, neighbours):
    totals = []
    for summation in (InTheClear(), SecureSum(neighbours=neighbours)):
        grid = _grid(summation, nodes=nodes)
        totals.append(_add_up(summation, grid))
    assert np.array_equal(totals[0].values, totals[1].values)
    assert totals[1].values.dtype == np.int64
    assert totals[0].nodes == totals[1].nodes == tuple(range(1, nodes + 1))


@pytest.mark.parametrize("lose", [_lose, _lose_replies])
@pytest.mark.parametrize("stage", STAGES)
def test_a_node_that_drops_out_leaves_the_sum_of_the_others(stage, lose):
    summation = SecureSum(threshold=THRESHOLD)
    for node in NODES:
        total = _add_up(summation, _grid(summation, **lose((stage, node))))
        added = NODES if stage == UNMASK else tuple(each for each in NODES if each != node)
        assert total.nodes == added
        assert np.array_equal(total.values, _sum_of(added))


def test_as_many_may_drop_out_as_the_threshold_says_and_no_more():
    summation = SecureSum(threshold=THRESHOLD)
    for first, second in itertools.product(STAGES, STAGES):
        total = _add_up(summation, _grid(summation, **_lose_replies((first, 2), (second, 5))))
        left = {node for stage, node in ((first, 2), (second, 5)) if stage != UNMASK}
        assert set(total.nodes) == set(NODES) - left
        assert np.array_equal(total.values, _sum_of(total.nodes))
    for stage in STAGES:
        grid = _grid(summation, **_lose_replies((KEYS, 1), (SHARES, 4), (stage, 5)))
        error = must_raise(ProcessLost, lambda grid=grid: _add_up(summation, grid))
        assert "no answers were seen" in str(error)


def test_a_sum_that_failed_may_be_asked_for_again():
    summation, fails = SecureSum(threshold=THRESHOLD), [True]
    grid = _grid(
        summation,
        after=lambda request, reply: (
            []
            if fails[0] and _stage_of(request) == UNMASK and reply.metadata.src_node_id < 4
            else [reply]
        ),
    )
    must_raise(ProcessLost, lambda: _add_up(summation, grid))
    fails[0] = False
    assert np.array_equal(_add_up(summation, grid).values, _sum_of(NODES))


def test_nodes_drop_out_of_a_sparse_graph():
    summation = SecureSum(threshold=0.6, neighbours=10)
    lost = [(KEYS, 3), (SHARES, 8), (MASKED, 13), (UNMASK, 18)]
    for _ in range(5):
        grid = _grid(summation, nodes=20, **_lose_replies(*lost))
        total = _add_up(summation, grid)
        assert set(total.nodes) == set(range(1, 21)) - {3, 8, 13}
        assert np.array_equal(total.values, _sum_of(total.nodes))


def test_a_site_without_integers_is_not_in_the_sum():
    def compute(content, context, circle):
        if context.node_id == 1:
            raise ValueError("row 17: diagnosis E11")
        wrong = {
            2: None,
            3: np.zeros(SIZE - 1, np.int64),
            4: np.full(SIZE, BOUND + 1),
            5: np.zeros(SIZE),
        }
        return wrong.get(context.node_id, integers_of(context.node_id))

    summation = SecureSum(threshold=8)
    grid = _grid(summation, compute, nodes=13)
    total = _add_up(summation, grid)
    assert total.nodes == tuple(range(6, 14))
    assert np.array_equal(total.values, _sum_of(total.nodes))
    assert not any(reply.has_error() for reply in grid.received)
    silent = [reply for reply in grid.received if not len(reply.content)]
    assert [reply.metadata.src_node_id for reply in silent] == [1, 2, 3, 4, 5]


def test_the_request_reaches_the_sites_as_it_was_sent():
    seen = []

    def compute(content, context, circle):
        seen.append(content)
        return content["inputs"].to_numpy_ndarrays()[0]

    content = RecordDict({"inputs": ArrayRecord([np.arange(SIZE)])})
    summation = SecureSum()
    total = _add_up(summation, _grid(summation, compute), content)
    assert np.array_equal(total.values, np.arange(SIZE) * len(NODES))
    assert [list(each) for each in seen] == [["inputs"]] * len(NODES)
    taken = RecordDict({RECORD: ArrayRecord([np.zeros(1)])})
    grid = _grid(summation)
    must_raise(BadInput, lambda: _add_up(summation, grid, taken))
    assert not grid.requests


def _other(request, content):
    return Message(content, reply_to=request)


def _with_arrays(request, change):
    def fault(reply):
        arrays = [change(array) for array in arrays_of(reply.content)]
        return _other(request, RecordDict({RECORD: ArrayRecord(arrays)}))

    return fault


GARBAGE = {
    "empty": lambda request, reply: _other(request, RecordDict()),
    "error": lambda request, reply: Message(Error(0, "no"), reply_to=request),
    "no arrays": lambda request, reply: _other(request, RecordDict({RECORD: ArrayRecord()})),
    "shorter": lambda request, reply: _with_arrays(request, lambda a: a[:-1])(reply),
    "another type": lambda request, reply: _with_arrays(request, lambda a: a.astype(float))(reply),
    "longer": lambda request, reply: _with_arrays(request, lambda a: np.concatenate([a, a]))(reply),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", GARBAGE)
def test_a_node_that_sends_garbage_counts_as_dropped_out(stage, name):
    def after(request, reply):
        at = (_stage_of(request), request.metadata.dst_node_id)
        return [GARBAGE[name](request, reply)] if at == (stage, 2) else [reply]

    summation = SecureSum(threshold=THRESHOLD)
    total = _add_up(summation, _grid(summation, after=after))
    added = NODES if stage == UNMASK else (1, 3, 4, 5)
    assert total.nodes == added
    assert np.array_equal(total.values, _sum_of(added))


@pytest.mark.parametrize("stage", STAGES)
def test_of_two_replies_the_first_counts(stage):
    def after(request, reply):
        twice = _stage_of(request) == stage
        return [reply, GARBAGE["shorter"](request, reply)] if twice else [reply]

    summation = SecureSum()
    assert np.array_equal(_add_up(summation, _grid(summation, after=after)).values, _sum_of(NODES))


def test_one_site_that_reveals_wrong_shares_is_left_out_of_the_unmasking():
    def after(request, reply):
        if (_stage_of(request), request.metadata.dst_node_id) != (UNMASK, 1):
            return [reply]
        return [_with_arrays(request, lambda rows: np.ones_like(rows))(reply)]

    summation = SecureSum(threshold=THRESHOLD)
    grid = _grid(summation, after=after, **_lose((MASKED, 4)))
    total = _add_up(summation, grid)
    assert total.nodes == (1, 2, 3, 5)
    assert np.array_equal(total.values, _sum_of(total.nodes))
    strict = SecureSum(threshold=5)
    must_raise(ProcessLost, lambda: _add_up(strict, _grid(strict, after=after)))


def test_messages_between_nodes_that_were_changed_cost_no_more_than_their_shares():
    def after(request, reply):
        if (_stage_of(request), request.metadata.dst_node_id) != (SHARES, 2):
            return [reply]
        sealed, digest = arrays_of(reply.content)
        sealed = sealed ^ np.uint8(1)
        return [_other(request, RecordDict({RECORD: ArrayRecord([sealed, digest])}))]

    summation = SecureSum(threshold=THRESHOLD)
    # nobody but node 2 can give a share of node 2
    must_raise(ProcessLost, lambda: _add_up(summation, _grid(summation, after=after)))


def test_a_sum_that_no_integers_can_have_is_refused():
    def after(request, reply):
        if (_stage_of(request), request.metadata.dst_node_id) != (MASKED, 2):
            return [reply]
        return [_with_arrays(request, lambda values: values + np.uint64(10**6))(reply)]

    summation = SecureSum()
    error = must_raise(ProcessLost, lambda: _add_up(summation, _grid(summation, after=after)))
    assert "bound" in str(error)


def test_sums_that_may_not_fit_and_too_few_nodes_are_refused_before_anything_is_asked():
    summation = SecureSum()
    grid = _grid(summation)
    most = (2**63 - 1) // len(NODES)
    error = must_raise(BadInput, lambda: _add_up(summation, grid, bound=most + 1))
    assert "below 2^63" in str(error)
    plain = _grid(InTheClear())
    must_raise(BadInput, lambda: _add_up(InTheClear(), plain, bound=most + 1))
    assert not plain.requests
    must_raise(BadInput, lambda: _add_up(summation, _grid(summation, nodes=1)))
    must_raise(BadInput, lambda: _add_up(SecureSum(threshold=6), grid))
    must_raise(BadInput, lambda: _add_up(SecureSum(threshold=2), grid))
    assert not grid.requests
    extremes = _grid(summation, lambda content, context, circle: np.array([most, -most]))
    total = _add_up(summation, extremes, size=2, bound=most)
    assert total.values.tolist() == [5 * most, -5 * most]


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.5},
        {"threshold": 1.01},
        {"threshold": float("nan")},
        {"threshold": 1},
        {"threshold": True},
        {"neighbours": 3},
        {"neighbours": 0},
    ],
)
def test_numbers_out_of_range_are_refused(options):
    error = must_raise(BadInput, lambda: SecureSum(**options))
    assert "expected" in str(error)


# -- what the server receives


def _uniform(values, what):
    """Chi-square of the bytes of uniform words, far beyond any quantile that chance reaches."""
    counts = np.bincount(values.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # of 255 degrees of freedom: above with probability 1e-8
    assert chi_square < 400, f"{what}: {chi_square}"


def _received(grid, stage):
    return {
        reply.metadata.src_node_id: arrays_of(reply.content)
        for request, reply in zip(grid.requests, grid.received, strict=True)
        if _stage_of(request) == stage
    }


def _masked_of(integers):
    summation, size = SecureSum(), len(integers[1])
    grid = _grid(
        summation, lambda content, context, circle: integers[context.node_id], nodes=len(integers)
    )
    total = _add_up(summation, grid, size=size)
    assert np.array_equal(total.values, sum(integers.values()))
    return {node: arrays[0] for node, arrays in _received(grid, MASKED).items()}


def test_masked_integers_are_uniform_and_other_ones_in_each_round():
    size = 5000
    plain = {node: np.zeros(size, np.int64) for node in (1, 2, 3)}
    step = np.arange(size) % 7
    moved = {1: plain[1] + step, 2: plain[2] - step, 3: plain[3]}
    first, again, other = _masked_of(plain), _masked_of(plain), _masked_of(moved)
    for node in plain:
        for values, what in ((first, "first"), (again, "again"), (other, "other")):
            _uniform(values[node], what)
        assert not (first[node] == again[node]).any()
        _uniform(first[node] - again[node], "one input in two rounds")
        _uniform(first[node] - other[node], "two inputs with one sum")
    for one, two in itertools.combinations(plain, 2):
        _uniform(first[one] - first[two], "two nodes")
        _uniform(first[one] + first[two], "two nodes")


def test_the_server_receives_neither_integers_nor_secrets(monkeypatch):
    drawn = []

    def draw():
        drawn.append(secure_keys.draw_secret())
        return drawn[-1]

    monkeypatch.setattr(secure_stages, "draw_secret", draw)
    summation = SecureSum()
    grid = _grid(summation)
    _add_up(summation, grid)
    assert len(drawn) == 3 * len(NODES)
    assert len(grid.received) == len(STAGES) * len(NODES)
    for reply in grid.received:
        assert list(reply.content) == [RECORD]
        raw = b"".join(array.tobytes() for array in arrays_of(reply.content))
        assert not any(secret in raw for secret in drawn)
        assert integers_of(reply.metadata.src_node_id).tobytes() not in raw


def _size_of(reply):
    return sum(record.count_bytes() for record in reply.content.values())


def test_messages_have_the_same_size_whatever_the_integers_are():
    sizes = []
    for factor in (0, 1, BOUND):
        summation = SecureSum()
        say = lambda content, context, circle, factor=factor: np.full(SIZE, factor)  # noqa: E731
        grid = _grid(summation, say)
        _add_up(summation, grid)
        sizes.append([_size_of(reply) for reply in grid.received])
    assert sizes[0] == sizes[1] == sizes[2]


def test_no_text_of_an_error_leaves_a_site():
    def fail(content, context):
        raise ValueError("row 17: diagnosis E11")

    summation = SecureSum()
    grid = _grid(summation, fail)
    must_raise(ProcessLost, lambda: _add_up(summation, grid))
    for stage in STAGES:
        request = Message(RecordDict(), dst_node_id=1, message_type=f"query.{QUESTION}_{stage}")
        grid.push_messages([request])
        grid.pull_messages([request.metadata.message_id])
    assert not any(reply.has_error() for reply in grid.received)
    assert not len(grid.received[-1].content)


def test_secrets_of_a_round_are_forgotten_when_it_ends(monkeypatch):
    drawn = []

    def draw():
        drawn.append(secure_keys.draw_secret())
        return drawn[-1]

    monkeypatch.setattr(secure_stages, "draw_secret", draw)
    server = CuriousServer().go_to(UNMASK)

    def remembered(node):
        [record] = server.contexts[node].state.values()
        return b"".join(value for value in record.values() if isinstance(value, bytes))

    for node in NODES:
        assert not any(secret in remembered(node) for secret in drawn)
        server.ask(UNMASK, node, *server.request(UNMASK, node))
        assert remembered(node) == server.name


def _take_off_pair_masks(server, node, secret):
    """What is left of a node's masked integers without the masks that it shares with others."""
    values = arrays_of(server.replies[MASKED][node])[0].copy()
    for other in NODES:
        if other != node:
            public = arrays_of(server.replies[KEYS][other])[0][:32].tobytes()
            key = secure_stages.pair_mask_key(secret, node, other, public, server.name)
            secure_stages.add_pair_mask(values, key, node, other, sign=-1)
    return values


def test_integers_that_arrive_after_the_node_was_said_to_have_dropped_out_stay_masked(monkeypatch):
    drawn = []

    def draw():
        drawn.append(secure_keys.draw_secret())
        return drawn[-1]

    monkeypatch.setattr(secure_stages, "draw_secret", draw)
    server = CuriousServer().go_to(UNMASK)
    shares = server.revealed(3, staying=(1, 2, 4, 5), by=(1, 2, 4))
    secret = secure_keys.join_shares(shares)
    assert secure_keys.public_key(secret) == arrays_of(server.replies[KEYS][3])[0][:32].tobytes()
    values = _take_off_pair_masks(server, 3, secret)
    assert not (values.view(np.int64) == integers_of(3)).any()
    # with the seed the attack would work, so it is the seed's mask that prevents it
    seed = drawn[2 * len(NODES) + NODES.index(3)]
    key = secure_stages.seed_mask_key(seed, server.name, 3)
    without = values - secure_keys.expand_mask(key, SIZE)
    assert np.array_equal(without.view(np.int64), integers_of(3))


def test_integers_whose_seed_is_known_stay_under_the_masks_of_pairs():
    server = CuriousServer().go_to(UNMASK)
    seed = secure_keys.join_shares(server.revealed(3, staying=NODES, by=(1, 2, 4)))
    digest = secure_stages.digest_seed(seed, server.name, 3)
    assert digest == arrays_of(server.replies[SHARES][3])[1].tobytes()
    key = secure_stages.seed_mask_key(seed, server.name, 3)
    values = arrays_of(server.replies[MASKED][3])[0] - secure_keys.expand_mask(key, SIZE)
    assert not (values.view(np.int64) == integers_of(3)).any()


def test_fewer_shares_than_the_threshold_give_nothing():
    server = CuriousServer().go_to(UNMASK)
    shares = server.revealed(3, staying=NODES, by=(1, 2))
    digest = arrays_of(server.replies[SHARES][3])[1].tobytes()
    for added in ({}, {4: bytes(33)}, {4: shares[1]}):
        try:
            seed = secure_keys.join_shares({**shares, **added})
        except OverflowError:
            continue
        assert secure_stages.digest_seed(seed, server.name, 3) != digest


# -- what nodes refuse


def test_a_node_reveals_one_share_of_each_node_and_never_both():
    for staying, dropped in (
        (NODES, (3,)),
        ((1, 2, 4, 5), (3, 4)),
        (NODES, NODES),
        ((1, 2, 4, 5), ()),
        ((1, 2, 4, 5), (3, 3)),
        ((2, 3, 4, 5), (1,)),
    ):
        server = CuriousServer().go_to(UNMASK)
        assert server.refuses(UNMASK, 1, as_nodes(*staying), as_nodes(*dropped))
        # and the round is over there
        assert server.refuses(UNMASK, 1, *server.request(UNMASK, 1))


def test_a_node_unmasks_once():
    server = CuriousServer().go_to(UNMASK)
    first = server.request(UNMASK, 1)
    assert not server.refuses(UNMASK, 1, *first)
    assert server.refuses(UNMASK, 1, *server.request(UNMASK, 1, staying=(1, 2, 4, 5)))
    assert server.refuses(UNMASK, 1, *first)


def test_a_node_refuses_fewer_nodes_than_the_threshold():
    server = CuriousServer().go_to(SHARES)
    nodes, keys = server.request(SHARES, 1)
    assert server.refuses(SHARES, 1, nodes[:2], keys[:2])
    server = CuriousServer().go_to(MASKED)
    nodes, sealed, *sizes = server.request(MASKED, 1)
    assert server.refuses(MASKED, 1, nodes[:2], sealed[:1], *sizes)
    assert not server.computed
    server = CuriousServer().go_to(UNMASK)
    assert server.refuses(UNMASK, 1, *server.request(UNMASK, 1, staying=(1, 2)))


def test_a_node_keeps_to_a_threshold_above_one_half():
    for summation in (SecureSum(threshold=2), SecureSum(threshold=7)):
        assert CuriousServer(summation).refuses(KEYS, 1, np.array(5))
    server = CuriousServer()
    server.replies[KEYS] = {
        node: server.ask(KEYS, node, np.array(1 if node == 1 else 5)) for node in NODES
    }
    assert not len(server.replies[KEYS][1])
    assert len(server.replies[KEYS][2])


def test_a_node_refuses_a_larger_group_than_its_threshold_is_for():
    server = CuriousServer()
    server.replies[KEYS] = {node: server.ask(KEYS, node, np.array(3)) for node in NODES}
    nodes, keys = server.request(SHARES, 1)
    assert server.refuses(SHARES, 1, nodes, keys)


def test_a_node_refuses_nodes_that_were_not_there_before():
    server = CuriousServer().go_to(MASKED)
    nodes, sealed, *sizes = server.request(MASKED, 1)
    assert server.refuses(MASKED, 1, as_nodes(*NODES, 6), np.vstack([sealed, sealed[:1]]), *sizes)
    assert not server.computed
    server = CuriousServer().go_to(UNMASK)
    staying, none = server.request(UNMASK, 1)
    assert server.refuses(UNMASK, 1, as_nodes(*NODES, 6), none)
    server = CuriousServer().go_to(UNMASK)
    assert server.refuses(UNMASK, 1, staying, as_nodes(6))
    server = CuriousServer().go_to(SHARES)
    nodes, keys = server.request(SHARES, 6)
    server.ask(KEYS, 6, np.array(5))
    assert server.refuses(SHARES, 6, nodes, keys)


def test_a_node_refuses_nodes_and_keys_that_are_there_twice():
    server = CuriousServer().go_to(SHARES)
    _, keys = server.request(SHARES, 1)
    assert server.refuses(SHARES, 1, as_nodes(1, 2, 2, 4, 5), keys)
    server = CuriousServer().go_to(SHARES)
    nodes, keys = server.request(SHARES, 1)
    keys[1] = keys[2]
    assert server.refuses(SHARES, 1, nodes, keys)
    server = CuriousServer().go_to(SHARES)
    nodes, keys = server.request(SHARES, 1)
    keys[1, 32:] = keys[1, :32]
    assert server.refuses(SHARES, 1, nodes, keys)
    server = CuriousServer().go_to(MASKED)
    nodes, sealed, *sizes = server.request(MASKED, 1)
    assert server.refuses(MASKED, 1, as_nodes(1, 2, 2, 4, 5), sealed, *sizes)


def test_a_node_refuses_other_keys_in_its_name_and_keys_of_low_order():
    server = CuriousServer().go_to(SHARES)
    nodes, keys = server.request(SHARES, 1)
    other = keys.copy()
    other[0] = CuriousServer().go_to(SHARES).request(SHARES, 1)[1][0]
    assert server.refuses(SHARES, 1, nodes, other)
    server = CuriousServer().go_to(SHARES)
    nodes, keys = server.request(SHARES, 1)
    keys[1, 32:] = 0
    assert server.refuses(SHARES, 1, nodes, keys)


def test_a_node_knows_its_number_by_itself():
    """A server that calls node 1 by the number of node 2 gets what node 1 sends in its own name."""
    server = CuriousServer().go_to(SHARES)
    contexts = dict(server.contexts)
    server.contexts[2] = contexts[1]
    sealed, _ = arrays_of(server.ask(SHARES, 2, *server.request(SHARES, 1)))
    server.contexts[2], server.replies[SHARES] = contexts[2], {}
    for node in NODES[1:]:
        server.replies[SHARES][node] = server.ask(SHARES, node, *server.request(SHARES, node))
    server.replies[SHARES][1] = secure_stages.pack(sealed, np.zeros(32, np.uint8))
    for node in NODES:
        server.replies.setdefault(MASKED, {})[node] = server.ask(
            MASKED, node, *server.request(MASKED, node)
        )
    shares = server.revealed(1, staying=(2, 3, 4, 5), by=(2, 3, 4))
    public = arrays_of(server.replies[KEYS][1])[0][:32].tobytes()
    assert secure_keys.public_key(secure_keys.join_shares(shares)) == public


@pytest.mark.parametrize("stage", STAGES)
def test_a_node_answers_each_stage_of_a_round_once(stage):
    server = CuriousServer().go_to(stage)
    request = server.request(stage, 1)
    assert not server.refuses(stage, 1, *request)
    computed = server.computed
    assert server.refuses(stage, 1, *request)
    assert server.computed == computed


def test_a_node_answers_stages_in_order_and_those_of_its_round():
    for at, later in itertools.product(STAGES[:-1], STAGES[1:]):
        if STAGES.index(later) > STAGES.index(at):
            server = CuriousServer().go_to(UNMASK)
            request = server.request(later, 1)
            server.name = b"another round..."
            server.go_to(at)
            assert server.refuses(later, 1, *request)
    server = CuriousServer().go_to(UNMASK)
    request = server.request(UNMASK, 1)
    server.name = b"another round..."
    assert server.refuses(UNMASK, 1, *request)


def test_a_new_round_takes_the_place_of_an_old_one():
    server = CuriousServer().go_to(UNMASK)
    old = server.request(UNMASK, 1)
    first_keys = arrays_of(server.replies[KEYS][1])[0]
    name, server.name = server.name, b"another round..."
    server.go_to(SHARES)
    assert not np.array_equal(arrays_of(server.replies[KEYS][1])[0], first_keys)
    server.name = name
    assert server.refuses(UNMASK, 1, *old)


def test_a_node_refuses_a_bound_whose_sum_may_not_fit():
    server = CuriousServer().go_to(MASKED)
    nodes, sealed, size, _ = server.request(MASKED, 1)
    assert server.refuses(MASKED, 1, nodes, sealed, size, np.array(2**61))
    assert not server.computed


def test_a_node_that_serves_secure_sums_never_answers_in_the_clear():
    server = CuriousServer()
    message = Message(RecordDict(), dst_node_id=1, message_type=f"query.{QUESTION}")
    with pytest.raises(ValueError, match="No query function"):
        server.app(message, server.contexts[1])


# -- keys, masks, shares and groups


def test_masks_are_the_key_stream_of_the_whole_key():
    # AES-256 of a block of zeros under a key of zeros
    block = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    assert secure_keys.expand_mask(bytes(32), 2).astype("<u8").tobytes() == block
    key = bytes(range(32))
    masks = {secure_keys.expand_mask(key, 4).tobytes()}
    for at in range(32):
        changed = bytearray(key)
        changed[at] ^= 1
        masks.add(secure_keys.expand_mask(bytes(changed), 4).tobytes())
    masks.add(secure_keys.expand_mask(key[4:8] + key[:4] + key[8:], 4).tobytes())
    assert len(masks) == 34
    _uniform(secure_keys.expand_mask(key, 20_000), "a mask")


def test_public_keys_are_those_of_rfc_7748():
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert secure_keys.public_key(bob).hex() == public


def test_keys_of_pairs_are_one_key_bound_to_round_and_nodes():
    secrets_ = [secure_keys.draw_secret() for _ in range(2)]
    publics = [secure_keys.public_key(secret) for secret in secrets_]
    name = bytes(16)
    key = secure_stages.pair_mask_key(secrets_[0], 4, 9, publics[1], name)
    assert key == secure_stages.pair_mask_key(secrets_[1], 9, 4, publics[0], name)
    others = {
        secure_stages.pair_mask_key(secrets_[0], 4, 9, publics[1], bytes(15) + b"1"),
        secure_stages.pair_mask_key(secrets_[0], 4, 8, publics[1], name),
        secure_stages.pair_mask_key(secrets_[0], 5, 9, publics[1], name),
        secure_stages.seed_mask_key(secrets_[0], name, 4),
        secure_stages.seed_mask_key(secrets_[1], name, 4),
        secure_stages.digest_seed(secrets_[0], name, 4),
    }
    assert len(others | {key}) == 7
    with pytest.raises(ValueError, match="shared key"):
        secure_stages.pair_mask_key(secrets_[0], 4, 9, bytes(32), name)


def test_messages_between_nodes_have_a_key_for_each_direction():
    """What a node sent can't be handed back to it as if the other node had sent it."""
    server = CuriousServer().go_to(MASKED)
    nodes, sealed, *sizes = server.request(MASKED, 1)
    sealed[0] = server.sealed(1, 2)
    server.ask(MASKED, 1, nodes, sealed, *sizes)
    rows = arrays_of(server.ask(UNMASK, 1, *server.request(UNMASK, 1)))[0]
    assert rows[1].tobytes() == secure_stages.NO_SHARE
    assert secure_stages.NO_SHARE not in [rows[at].tobytes() for at in (0, 2, 3, 4)]


def test_what_was_sealed_is_opened_by_its_key_alone_and_unchanged():
    key = secure_keys.draw_secret()
    sealed = secure_keys.seal(key, b"shares")
    assert len(sealed) == len(b"shares") + secure_keys.SEALING_BYTES
    assert secure_keys.unseal(key, sealed) == b"shares"
    assert secure_keys.seal(key, b"shares") != sealed
    for wrong in (sealed[:-1] + bytes([sealed[-1] ^ 1]), bytes(12) + sealed[12:]):
        with pytest.raises(InvalidTag):
            secure_keys.unseal(key, wrong)
    with pytest.raises(InvalidTag):
        secure_keys.unseal(bytes(32), sealed)


def test_any_threshold_of_shares_gives_the_secret():
    secret = bytes([255]) * 32
    holders = [1, 2, 3, 2**63, 2**64 - 1]
    shares = dict(zip(holders, secure_keys.split_secret(secret, 3, holders), strict=True))
    for chosen in itertools.permutations(holders, 3):
        assert secure_keys.join_shares({at: shares[at] for at in chosen}) == secret
    assert all(len(share) == secure_keys.SHARE_BYTES for share in shares.values())


def test_one_share_is_uniform_whatever_the_secret_is():
    for secret in (bytes(32), bytes([255]) * 32):
        shares = [secure_keys.split_secret(secret, 2, [7])[0][1:] for _ in range(500)]
        _uniform(np.frombuffer(b"".join(shares), np.uint64), "shares")


@pytest.mark.parametrize(("nodes", "neighbours"), [(5, None), (5, 4), (30, 4), (31, 10)])
def test_groups_are_mutual_and_connected(nodes, neighbours):
    terms = Terms(2 / 3, neighbours)
    groups = terms.draw_groups(range(10, 10 + nodes))
    size = terms.group_size(nodes)
    for node, group in groups.items():
        assert node in group
        assert len(group) == size
        assert all(node in groups[other] for other in group)
    assert are_connected(groups, groups)
    assert nodes == size or groups != terms.draw_groups(range(10, 10 + nodes))


def test_thresholds_are_above_one_half_of_a_group():
    for nodes in range(2, 60):
        for terms in (Terms(2 / 3, None), Terms(0.51, None), Terms(1.0, None), Terms(0.7, 6)):
            group, least = terms.group_size(nodes), terms.least(nodes)
            assert group < 2 * least <= 2 * group
    assert [Terms(2 / 3, None).least(nodes) for nodes in (2, 3, 4, 5, 6, 300)] == [
        2, 2, 3, 4, 4, 200,
    ]  # fmt: skip


def test_nodes_with_too_few_in_their_group_are_left_out_until_all_have_enough():
    groups = {1: {1, 2, 3}, 2: {1, 2, 3}, 3: {1, 2, 3, 4}, 4: {3, 4, 5}, 5: {4, 5}}
    assert leave_out_lonely(groups, [1, 2, 3, 4], 3) == {n: {1, 2, 3} for n in (1, 2, 3)}
    assert leave_out_lonely(groups, [1, 2, 4], 3) == {}
    assert not are_connected({1: {1, 2}, 2: {1, 2}, 3: {3}}, {1, 2, 3})


def test_a_sum_in_two_parts_that_no_mask_ties_together_is_not_unmasked():
    summation = SecureSum(threshold=0.6, neighbours=4)
    cut = []

    def before(request):
        if _stage_of(request) == MASKED:
            if not cut:
                circle = _circle(grid)
                cut.extend([circle[0], circle[1], circle[10], circle[11]])
            return request.metadata.dst_node_id not in cut
        return True

    grid = _grid(summation, nodes=20, before=before)
    error = must_raise(ProcessLost, lambda: _add_up(summation, grid))
    assert "tie" in str(error)
    assert not any(_stage_of(request) == UNMASK for request in grid.requests)


def _circle(grid):
    """The order of nodes on the circle, from their groups of two on each side."""
    groups = {
        request.metadata.dst_node_id: set(arrays_of(request.content)[1].tolist())
        for request in grid.requests
        if _stage_of(request) == SHARES
    }
    circle = [1]
    # the next one has three of four others in common with the last one
    while len(circle) < len(groups):
        near = [
            n for n in groups[circle[-1]] - set(circle) if len(groups[n] & groups[circle[-1]]) == 4
        ]
        circle.append(near[0])
    return circle
