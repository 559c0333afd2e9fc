"""Named checks of PATE; mutations must make them fail."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import NoDraws, check, must_raise, one_sample
from scipy import stats
from torch import Tensor, nn

import privlearn as pv
from privlearn import reducers, teachers
from privlearn.accounting import zcdp
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import Event, Gaussian, Repeated, compose, walk
from privlearn.accounting.ledger import Ledger
from privlearn.clipping import codes as codes_module
from privlearn.errors import BadInput, BudgetExceeded
from privlearn.methods.ensemble import aggregator
from privlearn.methods.ensemble import plan as plan_module
from privlearn.reducers import activation
from privlearn.rng import Streams
from privlearn.teachers import shards as shards_module

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
SIZE = (2, 3)  # of a small target


def public(rows: int = 30, shape: tuple[int, ...] = SIZE, seed: int = 0, **more: Any) -> pv.Dataset:
    made_up = torch.Generator().manual_seed(seed)
    targets = (
        torch.randn(rows, *shape, generator=made_up) * torch.linspace(0.2, 2.0, math.prod(shape)).view(shape) + 0.4
    )
    return pv.Dataset(torch.randn(rows, 4, generator=made_up), targets, **{"public": True, **more})


def all_reducers() -> dict[str, Any]:
    data = public()
    return {
        "pca": reducers.PCA.fit(data, 3),
        "projection": reducers.RandomProjection(SIZE, 4),
        "identity": reducers.Identity(SIZE, 0.5),
        "autoencoder": reducers.Autoencoder.fit(data, 3, 0.1, epochs=2),
    }


class Said(teachers.Teachers):
    """Teachers that say what the test says."""

    def __init__(self, *answers: Any) -> None:
        self.said = answers

    @property
    def count(self) -> int:
        return len(self.said)

    def require_covered(self, adjacency: Adjacency) -> None:
        pass

    def answers(self, inputs: Tensor, streams: Streams, progress: Any = None) -> Iterator[Tensor | None]:
        yield from self.said


class Recorder:
    """An account that takes everything, and remembers when: how many noise bits were drawn before each charge."""

    def __init__(self, stream: Any = None) -> None:
        self.charged: list[Event] = []
        self.positions: list[int] = []
        self._stream = stream

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        self.charged.append(event)
        self.positions.append(self._stream.position if self._stream else 0)


def released(plan: pv.PatePlan, said: Any, reducer: Any = None, seed: int = 0, ledger: Any = None) -> Any:
    streams = Streams.new(seed)
    inputs = torch.zeros(plan.queries, 4)
    sums, _ = aggregator.collect(plan, Said(*said), reducer, inputs, streams)
    return aggregator.ask(plan, sums, reducer, ledger or Ledger(), streams)


# Prices


@check
def check_noise_is_that_of_the_paper_and_of_exact_composition() -> None:
    """Golden figures 29 to 31 of Fay et al.'s formula, and of the Gaussian curve."""
    cases = [
        (80, 8, pv.Ball(1.0), 8.0, 1e-3, 1.282564, 1.073343),
        (80, 8, pv.Box(64**3 * 4), 8.0, 1e-3, 656.672722, 549.551811),
        (80, 8, pv.Box(64**3 * 3), 8.0, 1e-3, 568.695259, None),
        (1000, 250, pv.Box(1000), 1.0, 1e-5, 19.602221, 14.922527),
    ]
    for queries, number, aggregate, epsilon, delta, by_paper, exact in cases:
        shape = pv.PatePlan(queries, number, aggregate)
        paper = shape.calibrate(epsilon=epsilon, delta=delta, formula="paper")
        ours = shape.calibrate(epsilon=epsilon, delta=delta)
        assert math.isclose(paper.noise_std, by_paper, rel_tol=1e-6), paper.noise_std
        assert exact is None or math.isclose(ours.noise_std, exact, rel_tol=1e-6), ours.noise_std
        assert epsilon * (1 - 1e-9) <= ours.guarantee(delta).epsilon <= epsilon
        if delta == 1e-3:
            assert math.isclose(paper.guarantee(delta).epsilon, 6.337492, rel_tol=1e-6)
            assert math.isclose(paper.noise_std / ours.noise_std, 1.194924, rel_tol=1e-6)


@check
def check_the_plan_is_every_query() -> None:
    """One Gaussian release for each query; its rho and its groups as they should be; tests and answers in one limit."""
    plan = pv.PatePlan(100, 10, pv.Votes(3), noise_multiplier=20.0)
    assert plan.event() == compose([Repeated(Gaussian(20.0), 100)])
    assert math.isclose(zcdp.rho(plan.event()), 100 / 800)
    together = pv.PatePlan(100, 10, pv.Votes(3), group_size=3).calibrate(rho=0.2)
    assert math.isclose(9 * zcdp.rho(together.event()), 0.2)
    for share in (0.1, 0.5):
        confident = pv.PatePlan(100, 10, pv.ConfidentVotes(3, 8.0, 25, share)).calibrate(epsilon=2.0, delta=1e-5)
        tests, answers = 100 / (2 * confident.test_noise**2), 25 / (2 * confident.noise**2)
        assert math.isclose(zcdp.rho(confident.event()), tests + answers)
        assert math.isclose(tests, share * (tests + answers))
        assert 2 * (1 - 1e-9) <= confident.guarantee(1e-5).epsilon <= 2


# Sensitivities


def _attacks(seed: int = 0) -> list[Any]:
    """What one teacher might say to two queries: ordinary, huge, tiny, extreme, broken, or nothing."""
    made_up = torch.Generator().manual_seed(seed)
    ordinary = torch.randn(2, *SIZE, generator=made_up)
    broken = ordinary.clone()
    broken[0, 0, 0] = math.nan
    infinite = ordinary.clone()
    infinite[1, 1, 2] = -math.inf
    corners = [
        torch.tensor(signs).float().view(1, *SIZE).expand(2, *SIZE) for signs in itertools.product((0, 1), repeat=6)
    ]
    far = [scale * torch.randn(2, *SIZE, generator=made_up) for scale in (1e-3, 1.0, 1e3, 1e30, 3e38) for _ in range(4)]
    longest = torch.full((2, *SIZE), 3.4e38)  # in single precision, sums of these are infinite
    return [ordinary, -ordinary, broken, infinite, None, longest, -longest, *far, *(-each for each in far), *corners]


def _sums(aggregate: Any, reducer: Any, said: Any) -> tuple[Tensor, float]:
    sums = codes_module.CodeSums(aggregate, reducer, 2)
    for each in said:
        sums.add(each)
    parts = [sums.bounded(query, one_sample(), ADD) for query in range(2)]
    assert parts[0].adjacency is ADD
    return torch.stack([part.values[0] for part in parts]), parts[0].sensitivity


@check
def check_one_teacher_moves_codes_by_at_most_the_sensitivity() -> None:
    """Whatever it says, for every reducer, ball and box; the ball's bound is reached."""
    others = [torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(seed)) for seed in (5, 6)]
    for name, reducer in all_reducers().items():
        for aggregate in (pv.Ball(0.7), pv.Ball(1.0), pv.Box(6)):
            if isinstance(aggregate, pv.Box) and name == "autoencoder":
                continue
            found = [_sums(aggregate, reducer, [*others, attack]) for attack in _attacks()]
            worst = max(
                float((one - two).norm(dim=1).max()) / bound
                for (one, bound), (two, _) in itertools.combinations(found, 2)
            )
            assert all(bool(one.isfinite().all()) for one, _ in found), name
            assert worst <= 1 + 1e-9, (name, aggregate, worst)
            if isinstance(aggregate, pv.Ball) and name != "autoencoder":
                assert worst > 0.99, (name, aggregate, worst)
                assert found[0][1] == 2 * aggregate.radius
            if isinstance(aggregate, pv.Box) and name == "identity":
                assert worst > 1 - 1e-9
                assert math.isclose(found[0][1], math.sqrt(6))


@check
def check_box_bounds_hold_for_every_corner() -> None:
    """Against the exact maximum over all corners; never above sqrt(d) for orthonormal rows; tight for a single coordinate."""
    made_up = torch.Generator().manual_seed(3)
    for size, kept in ((8, 1), (8, 3), (10, 10)):
        rows = torch.linalg.qr(torch.randn(size, size, generator=made_up, dtype=torch.float64))[0][:kept]
        signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=size)), dtype=torch.float64)
        for scale in (1.0, 3.0):
            exact = float((signs @ (scale * rows).T).norm(dim=1).max())
            found = codes_module.box_sensitivity(scale * rows, size)
            assert exact <= found <= scale * math.sqrt(size) * (1 + 1e-8), (size, kept, exact, found)
    assert math.isclose(codes_module.box_sensitivity(torch.eye(6)[:1], 6), 1.0, rel_tol=1e-6)
    must_raise(BadInput, lambda: codes_module.CodeSums(pv.Box(6), all_reducers()["autoencoder"], 2))
    must_raise(BadInput, lambda: codes_module.CodeSums(pv.Box(5), reducers.Identity(SIZE), 2))


@check
def check_centres_lie_in_the_box() -> None:
    """A teacher that can't be used takes the place of a target in the box, also where the reducer's centre is outside."""
    far = reducers.Identity(SIZE, 5.0)
    for corner in (torch.zeros(2, *SIZE), torch.ones(2, *SIZE)):
        one, bound = _sums(pv.Box(6), far, [corner])
        two, _ = _sums(pv.Box(6), far, [torch.full((2, *SIZE), math.nan)])
        assert float((one - two).norm(dim=1).max()) <= bound * (1 + 1e-9)


@check
def check_one_teacher_moves_votes_by_at_most_the_sensitivity() -> None:
    """Labels, scores, classes that there aren't, fractions and NaN; and both bounds are reached."""
    scores = torch.tensor([[9.0, 1, 2], [1, math.nan, 3], [0, 0, math.inf], [0.0, 0, 1]])
    votes = [
        torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 0]), torch.tensor([7, -1, 3, 0]),
        torch.tensor([0.5, math.nan, 2.0, 1e30]),
        torch.tensor([math.inf, -math.inf, 1.0, -0.5]), scores, None,
    ]  # fmt: skip
    base = [torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 2, 1])]
    found = []
    for vote in votes:
        counts = codes_module.VoteCounts(pv.Votes(3), 4)
        for each in (*base, vote):
            counts.add(each)
        parts = [counts.bounded(query, one_sample(), ADD) for query in range(4)]
        tops = [counts.largest(query, one_sample(), ADD) for query in range(4)]
        assert parts[0].sensitivity == math.sqrt(2)
        assert tops[0].sensitivity == 1.0
        found.append((torch.stack([p.values[0] for p in parts]), torch.stack([t.values[0] for t in tops])))
    moved = [
        (float((a - b).norm(dim=1).max()), float((c - d).abs().max()))
        for (a, c), (b, d) in itertools.combinations(found, 2)
    ]
    assert math.isclose(max(m for m, _ in moved), math.sqrt(2)), moved
    assert max(m for _, m in moved) == 1.0
    assert found[5][0].sum(1).tolist() == [3.0, 2.0, 2.0, 3.0], "scores that are not finite are no vote"
    assert found[3][0].sum(1).tolist() == [2.0, 2.0, 3.0, 2.0], "numbers that are no classes are no vote"


@check
def check_a_teacher_that_cannot_be_used_gives_the_centre() -> None:
    """Only for the query on which it can't, and exactly what a teacher that says the centre gives."""
    for name, reducer in all_reducers().items():
        said = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(1))
        broken, central = said.clone(), said.clone()
        broken[0, 1, 1] = math.nan
        central[0] = reducer.centre
        one, _ = _sums(pv.Ball(0.5), reducer, [broken])
        two, _ = _sums(pv.Ball(0.5), reducer, [central])
        assert torch.allclose(one, two, atol=1e-6), name
        assert float(one[0].norm()) < 1e-6
        assert float(one[1].norm()) > 0.1
        three, _ = _sums(pv.Ball(0.5), reducer, [None])
        assert float(three.norm()) == 0.0


# Releases


@check
def check_every_query_is_charged_before_its_noise() -> None:
    """As many events as queries, each before a bit of its noise; nothing is drawn where the ledger refuses."""
    said = [torch.zeros(5, *SIZE)] * 4
    for aggregate, reducer in ((pv.Ball(1.0), reducers.Identity(SIZE)), (pv.Votes(3), None)):
        plan = pv.PatePlan(5, 4, aggregate, noise_multiplier=3.0)
        votes = said if reducer else [torch.zeros(5)] * 4
        streams = Streams.new(0)
        account = Recorder(streams.noise)
        sums, _ = aggregator.collect(plan, Said(*votes), reducer, torch.zeros(5, 4), streams)
        aggregator.ask(plan, sums, reducer, account, streams)
        assert compose(account.charged) == plan.event()
        assert account.positions[0] == 0
        assert all(a < b for a, b in itertools.pairwise([*account.positions, streams.noise.position]))
        ledger = Ledger(pv.Budget(rho=2.5 / 18))
        silent = replace(streams, noise=NoDraws())  # type: ignore[arg-type]
        full = Ledger(pv.Budget(rho=1e-9))
        must_raise(BudgetExceeded, lambda s=sums, r=reducer, f=full, p=plan, q=silent: aggregator.ask(p, s, r, f, q))  # type: ignore[misc]
        must_raise(BudgetExceeded, lambda s=sums, r=reducer, f=ledger, p=plan, q=streams: aggregator.ask(p, s, r, f, q))  # type: ignore[misc]
        assert ledger.event == compose([Repeated(Gaussian(3.0), 2)])


@check
def check_the_noise_is_fresh_and_of_the_size_that_was_planned() -> None:
    """On means of codes noise_std, on counts sqrt(2) times the multiplier, independent of each other; the divisor is K."""
    shape = (40, 50)
    plan = pv.PatePlan(6, 4, pv.Ball(0.5), noise_multiplier=8.0)
    target = 0.01 * torch.ones(6, *shape)
    said = [target, target, None, torch.full_like(target, math.nan)]
    found, answered, _ = released(plan, said, reducers.Identity(shape))
    assert found.shape == (6, *shape)
    assert bool(answered.all())
    noise = found.flatten(1).double()
    # Clipped to norm 0.5, and two of four teachers say something.
    expected = 0.5 / math.sqrt(2000) * 2 / 4
    for row in noise:
        assert abs(float(row.std()) / plan.noise_std - 1) < 0.08, (float(row.std()), plan.noise_std)
        assert abs(float(row.mean()) - min(expected, 0.005)) < 4 * plan.noise_std / math.sqrt(2000)
    assert math.isclose(plan.noise_std, 8.0 * 2 * 0.5 / 4)
    for one, two in itertools.combinations(noise - noise.mean(1, keepdim=True), 2):
        assert abs(float((one * two).mean())) / plan.noise_std**2 < 0.12, "two queries share their noise"
    votes = pv.PatePlan(2000, 3, pv.Votes(2), noise_multiplier=9.0)
    _, _, counts = released(votes, [torch.zeros(2000)] * 3)
    assert abs(float(counts[:, 0].mean()) - 3) < 1.5
    assert abs(float(counts.std(0).mean()) / (9.0 * math.sqrt(2)) - 1) < 0.05
    assert math.isclose(votes.noise_std, 9.0 * math.sqrt(2))


@check
def check_quiet_answers_are_what_the_teachers_said() -> None:
    """With next to no noise: the mean is recovered, about any centre and through a box too; the plurality wins."""
    for origin in (0.0, 0.5):
        target = torch.rand(2, *SIZE, generator=torch.Generator().manual_seed(1))
        for aggregate in (pv.Ball(5.0), pv.Box(6)):
            plan = pv.PatePlan(2, 3, aggregate, noise_multiplier=1e-5)
            for reducer in (reducers.Identity(SIZE, origin), reducers.PCA.fit(public())):
                found, _, _ = released(plan, [target] * 3, reducer)
                assert torch.allclose(found, target, atol=1e-3), (aggregate, type(reducer).__name__)
    votes = [torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2]), torch.tensor([1, 2, 2])]
    labels, _, _ = released(pv.PatePlan(3, 3, pv.Votes(3), noise_multiplier=1e-3), votes)
    assert labels.tolist() == [0, 2, 2]


@check
def check_confident_votes_pay_for_every_test() -> None:
    """Each query asked pays for its test, each answer for itself, until as many were given as were paid for; no more."""
    agreed = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    votes = [agreed if k < 12 else torch.where(torch.arange(8) % 4 == 3, 0, agreed) for k in range(30)]
    plan = pv.PatePlan(8, 30, pv.ConfidentVotes(2, 25.0, 3, 0.4), noise_multiplier=0.05)
    account, opened = Recorder(), aggregator.opened
    try:
        aggregator.opened = lambda limit, ledger, adjacency: (ledger.charge(limit, adjacency), account)[1]  # type: ignore[assignment]
        ledger = Ledger()
        labels, answered, counts = released(plan, votes, ledger=ledger)
    finally:
        aggregator.opened = opened
    assert ledger.event == plan.event()
    assert answered.tolist() == [True, True, True, False, False, False, False, False]
    assert labels[:3].tolist() == [0, 1, 0]
    assert float(counts[~answered].abs().sum()) == 0.0, "counts of queries without an answer are given away"
    test, answer = Gaussian(plan.test_noise), Gaussian(plan.noise)
    assert account.charged == [test, answer] * 3
    few = pv.PatePlan(8, 30, pv.ConfidentVotes(2, 25.0, 7, 0.4), noise_multiplier=0.05)
    ledger = Ledger()
    _, answered, _ = released(few, votes, ledger=ledger)
    assert answered.tolist() == [True, True, True, False, True, True, True, False]
    assert ledger.event == few.event()


# Teachers


def private(rows: int = 60, seed: int = 0, **more: Any) -> pv.Dataset:
    made_up = np.random.default_rng(seed)
    return pv.Dataset(made_up.normal(size=(rows, 4)), made_up.integers(3, size=rows), **more)


@check
def check_each_record_is_with_one_teacher() -> None:
    """Drawn by position alone, whatever a record holds; independently; persons stay together; overlaps are refused."""
    data, other = private(600), private(600, seed=1)
    place = shards_module.drawn(data, 5, Streams.new(3).sampling)
    assert np.array_equal(place, shards_module.drawn(other, 5, Streams.new(3).sampling))
    assert set(place) == set(range(5))
    counts = np.bincount(place)
    assert counts.std() > 0, "shards of one size: a record's teacher follows from the others'"
    runs = int((np.diff(place) != 0).sum())
    assert 420 < runs < 540, "records are assigned in blocks"
    persons = private(600, groups=np.arange(600) // 7)
    place = shards_module.drawn(persons, 5, Streams.new(3).sampling)
    for person in range(600 // 7):
        assert len(set(place[np.arange(600) // 7 == person])) == 1
    for overlapping in ([[0, 1], [1, 2]], [[0, 0], [1]]):
        must_raise(BadInput, lambda shards=overlapping: teachers.Trained(data, lambda x, y: None, shards=shards))  # type: ignore[misc,arg-type,return-value]
    must_raise(BadInput, lambda: shards_module.by_rows(private(60, groups=np.arange(60) // 2), [[0, 2], [1, 3]]))
    must_raise(BadInput, lambda: shards_module.by_site(private(60, groups=np.arange(60) // 2), np.arange(60) % 2))
    place, number = shards_module.by_site(private(6), ["a", "b", "a", "c", "b", "a"])
    assert (place.tolist(), number) == ([0, 1, 0, 2, 1, 0], 3)


@check
def check_sites_are_not_for_replaced_records() -> None:
    """A record that is replaced by one of another site would move two teachers."""
    at_sites = teachers.Trained(private(), lambda x, y: lambda q: q[:, 0], sites=np.arange(60) % 3)  # type: ignore[arg-type,return-value]
    plan = pv.PatePlan(2, 3, pv.Votes(3), noise_multiplier=5.0, adjacency=REPLACE)
    must_raise(BadInput, lambda: aggregator.collect(plan, at_sites, None, torch.zeros(2, 4), Streams.new(0)))
    aggregator.collect(replace(plan, adjacency=ADD), at_sites, None, torch.zeros(2, 4), Streams.new(0))


def _drawing(x: Tensor, y: Tensor) -> Any:
    """A teacher that draws from every global generator, more or less often as its records have it."""
    for _ in range(int(x[:, 0].abs().sum() * 10) % 17):
        np.random.random(), random.random(), torch.rand(1)  # noqa: NPY002
    drawn = [np.random.random(), random.random(), float(torch.rand(1))]  # noqa: NPY002
    return lambda inputs: torch.tensor(drawn, dtype=torch.float64).expand(len(inputs), 3)


@check
def check_a_record_reaches_no_other_teacher() -> None:
    """Also where recipes draw from global generators; and those are afterwards what they were."""
    data = private()
    changed = replace(data, x=np.where(np.arange(60)[:, None] == 7, 50.0, data.x))
    asked = torch.zeros(2, 4)

    def said(own: pv.Dataset) -> list[Any]:
        return list(teachers.Trained(own, _drawing, 6).answers(asked, Streams.new(0)))

    state = np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state()  # type: ignore[index,union-attr] # noqa: NPY002
    one, two = said(data), said(changed)
    own = shards_module.drawn(data, 6, Streams.new(0).sampling)[7]
    for number, (before, after) in enumerate(zip(one, two, strict=True)):
        assert number == own or torch.equal(before, after), f"teacher {number} moved with a record of teacher {own}"
    for column in range(3):
        assert len({float(each[0, column]) for each in one}) == 6, "teachers draw the same"
    assert np.array_equal(state[0], np.random.get_state()[1])  # type: ignore[index] # noqa: NPY002
    assert state[1] == random.getstate()
    assert torch.equal(state[2], torch.get_rng_state())


@check
def check_a_teacher_that_fails_says_nothing() -> None:
    """No error, no warning: a count for the curator alone. What fails on made-up rows is refused beforehand."""
    data = private()
    cursed = replace(data, x=np.where(np.arange(60)[:, None] == 7, 1e9, data.x))

    def recipe(x: Tensor, y: Tensor) -> Any:
        if float(x.abs().max()) > 1e8:
            raise RuntimeError("a secret")
        return lambda inputs: torch.zeros(len(inputs))

    plan = pv.PatePlan(2, 6, pv.Votes(3), noise_multiplier=5.0)
    counts, silent = aggregator.collect(
        plan, teachers.Trained(cursed, recipe, 6), None, torch.zeros(2, 4), Streams.new(0)
    )
    assert silent == 1
    assert counts.counts.sum(1).tolist() == [5.0, 5.0]  # type: ignore[union-attr]

    def wrong(x: Tensor, y: Tensor) -> Any:
        raise RuntimeError("always")

    error = must_raise(
        BadInput, lambda: list(teachers.Trained(data, wrong, 6).answers(torch.zeros(2, 4), Streams.new(0)))
    )
    assert "always" in str(error)


@check
def check_teachers_are_no_one_object() -> None:
    """A factory that gives the same model, or the same parameters, again is refused."""
    from sklearn.linear_model import LogisticRegression

    one, net, layer = LogisticRegression(), nn.Linear(4, 3), nn.Linear(4, 3)
    for recipe in (
        teachers.Estimator(lambda: one),
        teachers.Network(lambda: net, lambda *_: None),
        teachers.Network(lambda: nn.Sequential(nn.Identity(), layer), lambda *_: None),
    ):
        must_raise(
            BadInput,
            lambda r=recipe: list(teachers.Trained(private(), r, 3).answers(torch.zeros(2, 4), Streams.new(0))),
        )  # type: ignore[misc]


@check
def check_interrupted_teachers_go_on() -> None:
    """From the folder: the same assignment, seeds and answers, none trained twice; another data set is refused."""
    data, asked = private(), torch.zeros(2, 4)
    trained: list[int] = []

    def recipe(x: Tensor, y: Tensor) -> Any:
        trained.append(len(x))
        if len(trained) == 4:  # the rehearsal is one
            raise KeyboardInterrupt
        return _drawing(x, y)

    with tempfile.TemporaryDirectory() as folder:
        once = list(teachers.Trained(data, _drawing, 5).answers(asked, Streams.new(2)))
        kept = teachers.Trained(data, recipe, 5, folder=Path(folder) / "own")
        must_raise(KeyboardInterrupt, lambda: list(kept.answers(asked, Streams.new(2))))  # type: ignore[arg-type]
        again = list(kept.answers(asked, Streams.new(99)))
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))  # type: ignore[arg-type]
        assert len(trained) == 4 + 1 + 3, trained
        other = teachers.Trained(private(seed=1), recipe, 5, folder=Path(folder) / "own")
        must_raise(BadInput, lambda: list(other.answers(asked, Streams.new(2))))
        assert (Path(folder) / "own").stat().st_mode & 0o077 == 0


@check
def check_one_teacher_is_held_at_a_time() -> None:
    """Each teacher's answers are gone when the next teacher answers: memory does not grow with their number."""
    alive: list[weakref.ref[Any]] = []
    held: list[int] = []

    def recipe(x: Tensor, y: Tensor) -> Any:
        def predict(inputs: Tensor) -> Any:
            held.append(sum(each() is not None for each in alive))
            found = np.zeros((len(inputs), *SIZE), dtype=np.float32)  # becomes a tensor without a copy
            alive.append(weakref.ref(found))
            return found

        return predict

    plan = pv.PatePlan(5, 12, pv.Ball(1.0), noise_multiplier=5.0)
    trained = teachers.Trained(private(), recipe, 12)
    aggregator.collect(plan, trained, reducers.Identity(SIZE), torch.zeros(5, 4), Streams.new(0))
    assert len(held) == 13
    assert max(held) <= 1, held


@check
def check_given_predictions_are_read_one_by_one() -> None:
    """A file for each teacher; one that is given twice, or answers to other queries, is refused."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            np.savez(Path(folder) / f"hospital-{number}.npz", predictions=np.full(4, number))
        found = teachers.Given(folder)
        assert found.count == 3
        assert [int(each[0]) for each in found.answers(torch.zeros(4, 2), Streams.new(0))] == [0, 1, 2]  # type: ignore[index]
        files = sorted(Path(folder).glob("*.npz"))
        must_raise(BadInput, lambda: teachers.Given([files[0], files[1], files[0]]))
        must_raise(BadInput, lambda: list(found.answers(torch.zeros(3, 2), Streams.new(0))))


# Reducers


@check
def check_reducers_are_fitted_on_public_data() -> None:
    for data in (replace(public(), public=False), (torch.zeros(4, 2), torch.zeros(4, 3))):
        must_raise(BadInput, lambda d=data: reducers.PCA.fit(d))  # type: ignore[misc,arg-type]
        must_raise(BadInput, lambda d=data: reducers.Autoencoder.fit(d, 2, 0.1, epochs=1))  # type: ignore[misc,arg-type]
        must_raise(BadInput, lambda d=data: reducers.Identity(SIZE).radius(d))  # type: ignore[misc,arg-type]
    must_raise(BadInput, lambda: teachers.Spreading(private(), 3))


@check
def check_components_are_chosen_by_the_noise() -> None:
    """Golden 32: losses 9.6, 5.2, 2.8, 2.4, 2.5, 3.0 for eigenvalues 5, 3, 1, .5, .1 and noise variance .6: three."""
    data = public(200, (5,))
    found = replace(reducers.PCA.fit(data), eigenvalues=torch.tensor([5, 3, 1, 0.5, 0.1], dtype=torch.float64))
    std = math.sqrt(0.6)
    losses = [found.loss(std, kept) for kept in range(6)]
    assert np.allclose(losses, [9.6, 5.2, 2.8, 2.4, 2.5, 3.0]), losses
    assert found.best(std) == 3 == int(np.argmin(losses))
    assert (found.best(0.2), found.best(3.0), found.for_noise(3.0).size) == (5, 0, 1)
    assert found.for_noise(std).size == 3
    assert math.isclose(found.for_noise(std).loss(std), 2.4)


@check
def check_the_closed_form_loss_is_what_is_measured() -> None:
    """Targets of the fitted distribution, encoded, with noise, decoded: to a twentieth."""
    data = public(4000, (8,))
    pca, made_up = reducers.PCA.fit(data), torch.Generator().manual_seed(1)
    fresh = public(4000, (8,), seed=5).y
    for kept in (1, 4, 8):
        for std in (0.2, 1.0):
            codes = pca.kept(kept).encode(fresh)
            back = pca.kept(kept).decode(codes + std * torch.randn(codes.shape, generator=made_up))
            measured = float((back - fresh).square().sum(1).mean())
            assert math.isclose(measured, pca.loss(std, kept), rel_tol=0.05), (kept, std, measured)


@check
def check_the_activation_fills_the_unit_ball() -> None:
    """Golden 33 and 34; no input leaves the ball or overflows; directions in both signs, radii as uniform as stated."""
    grid = np.linspace(-8, 8, 200_001)
    logistic = 1 / (1 + np.exp(-math.sqrt(8 / math.pi) * grid))
    assert math.isclose(float(np.abs(logistic - stats.norm.cdf(grid)).max()), 0.0176712, abs_tol=1e-6)
    far = torch.zeros(1, 65)
    far[0, 0], far[0, 1] = -60.0, 3.0
    assert math.isclose(float(activation.unit_ball(far).norm()), 0.224017, rel_tol=1e-5)
    for size in (1, 2, 8, 64):
        drawn = torch.randn(20_000, size + 1, generator=torch.Generator().manual_seed(size))
        z = activation.unit_ball(drawn)
        radii = z.double().norm(dim=1).numpy()
        assert radii.max() <= 1 + 1e-6
        assert stats.kstest(radii**size, "uniform").statistic < 0.03
        assert float(z.mean(0).abs().max()) < 0.03
    for value in (0.0, 1e-38, 1e-20, 1e18, 1e30, 3e38, -1e30):
        for first in (-1e30, -60.0, 0.0, 1e30):
            wild = torch.full((1, 5), value)
            wild[0, 0] = first
            z = activation.unit_ball(wild)
            assert bool(z.isfinite().all()), (value, first)
            assert float(z.norm()) <= 1 + 1e-6, (value, first)


@check
def check_autoencoders_code_into_the_ball() -> None:
    """Codes within norm 1 for any targets, so a ball of radius 1 clips nothing; they are trained with noise."""
    data = public(200)
    learned = {noise: reducers.Autoencoder.fit(data, 3, noise, epochs=15, learning_rate=3e-3) for noise in (0.0, 0.6)}
    targets = torch.cat([data.y, 1e6 * data.y])
    for each in learned.values():
        assert float(each.encode(targets).norm(dim=1).max()) <= 1 + 1e-6
        assert each.decode(each.encode(data.y)).shape == data.y.shape

    def error(each: Any, noise: float) -> float:
        codes = each.encode(data.y)
        codes = codes + noise * torch.randn(codes.shape, generator=torch.Generator().manual_seed(0))
        return float((each.decode(codes) - data.y).square().sum((1, 2)).mean())

    assert error(learned[0.0], 0.0) < float((data.y - data.y.mean(0)).square().sum((1, 2)).mean()) * 0.8, (
        "nothing was learned"
    )
    assert error(learned[0.6], 0.6) < error(learned[0.0], 0.6), "it was trained without the noise"


@check
def check_neighbours_leave_the_same_traces() -> None:
    """A record more or less, broken or fatal to its teacher: what is said, charged, drawn and stated is the same."""
    data = private()
    others = [
        replace(data, x=data.x[1:], y=data.y[1:]),
        replace(data, x=np.where(np.arange(60)[:, None] == 7, np.nan, data.x)),
        replace(data, y=np.where(np.arange(60) == 7, 2**40, data.y)),
    ]
    made_up = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    plan = pv.PatePlan(10, 6, pv.Votes(3)).calibrate(epsilon=5.0, delta=1e-5)
    student = pv.Student(lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0)), epochs=1)

    def recipe(x: Tensor, y: Tensor) -> Any:
        if not bool(x.isfinite().all()):
            warnings.warn("a secret", stacklevel=1)
            raise ValueError("a secret")
        return lambda inputs: torch.full((len(inputs),), int(y.max()))

    def traces(own: pv.Dataset) -> Any:
        streams, out, done = Streams.new(0), io.StringIO(), []
        with redirect_stdout(out), redirect_stderr(out), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = pv.pate(plan, teachers.Trained(own, recipe, 6), None, made_up, student, streams=streams,
                             progress=lambda *own: done.append(own))  # fmt: skip
        shapes = {name: value.shape for name, value in result.model.state_dict().items()}
        return result.settings, result.ledger.event, streams.noise.position, out.getvalue(), len(said), done, shapes

    expected = traces(data)
    assert expected[3:5] == ("", 0)
    for other in others:
        assert traces(other) == expected


# Certificates


def run(aggregate: Any = None, **more: Any) -> pv.Result:
    plan = pv.PatePlan(30, 6, aggregate or pv.Votes(3)).calibrate(epsilon=20.0, delta=1e-5)
    votes = [torch.arange(30) % 3] * 6
    made_up = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    student = pv.Student(lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0)), epochs=2)
    return pv.pate(plan, Said(*votes), None, made_up, student, **{"streams": Streams.new(0), **more})


@check
def check_what_is_published_is_what_was_asked() -> None:
    """Certificates verify; settings that speak of more queries, or of less noise, than the events do not."""
    for aggregate in (pv.Votes(3), pv.ConfidentVotes(3, 4.0, 10)):
        result = run(aggregate)
        assert list(walk(result.ledger.event)) == list(walk(plan_module.from_description(result.settings).event()))
        assert (result.settings["epochs"], result.settings["steps"], result.settings["noise_multipliers"]) == (
            None,
        ) * 3
        with tempfile.TemporaryDirectory() as folder:
            out = pv.publish(result, Path(folder) / "m", model_spec="linear", classes=3)
            found = pv.verify(out)
            assert found.ok, found.problems
            assert not any("number of examples" in warning for warning in found.warnings)
            assert (
                "teachers_without_answers" not in (out / "README.md").read_text() + (out / "privacy.json").read_text()
            )
            settings = json.loads((out / "privacy.json").read_text())["settings"]
            more = pv.Votes(3) if isinstance(aggregate, pv.Votes) else replace(aggregate, answers=20)
            lies: dict[str, Any] = {"noise_multiplier": 0.1, "aggregate": {"kind": more.kind, **vars(more)}}
            if isinstance(aggregate, pv.Votes):
                lies = {"noise_multiplier": 0.1, "queries": 60}
            for name, value in lies.items():
                lie = replace(result, settings={**result.settings, name: value})
                told = pv.verify(pv.publish(lie, Path(folder) / f"lie-{name}", model_spec="linear", classes=3))
                assert not told.ok, name
            assert settings["method"] == "pate"
