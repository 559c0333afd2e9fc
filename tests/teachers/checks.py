"""Named checks of PATE's prices, sensitivities and releases; mutations must make them fail."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, BudgetExceeded
from privlearn.methods import pate as teachers
from privlearn.methods.pate import answers
from privlearn.methods.pate import sums as codes_module
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws, one_sample

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
SIZE = (2, 3)  # of a small target


def public(rows: int = 30, shape: tuple[int, ...] = SIZE, seed: int = 0, **more: Any) -> pv.Dataset:
    made_up = torch.Generator().manual_seed(seed)
    targets = (
        torch.randn(rows, *shape, generator=made_up)
        * torch.linspace(0.2, 2.0, math.prod(shape)).view(shape)
        + 0.4
    )
    return pv.Dataset(torch.randn(rows, 4, generator=made_up), targets, **{"public": True, **more})


def all_reducers() -> dict[str, Any]:
    data = public()
    return {
        "pca": teachers.PublicPCA.fit(data, 3),
        "projection": teachers.RandomProjection(SIZE, 4),
        "identity": teachers.Identity(SIZE, 0.5),
        "autoencoder": teachers.Autoencoder.fit(data, 3, 0.1, epochs=2),
    }


class Said(teachers.Teachers):
    """Teachers that say what the test says."""

    def __init__(self, *answers: Any) -> None:
        self.said = answers

    @property
    def count(self) -> int:
        return len(self.said)

    def require_covered(self, adjacency: Adjacency, unit: Any) -> None:
        pass

    def answers(
        self, inputs: Tensor, streams: Streams, progress: Any = None, shapes: Any = None
    ) -> Iterator[Tensor | None]:
        yield from self.said


class Recorder:
    """An account that takes everything, and remembers when: how many noise bits were drawn before
    each charge.
    """

    def __init__(self, stream: Any = None) -> None:
        self.charged: list[Event] = []
        self.positions: list[int] = []
        self._stream = stream

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        self.charged.append(event)
        self.positions.append(self._stream.position if self._stream else 0)


def released(
    plan: pv.teachers.PatePlan, said: Any, reducer: Any = None, seed: int = 0, ledger: Any = None
) -> Any:
    streams = Streams.new(seed)
    inputs = torch.zeros(plan.queries, 4)
    sums, _ = answers.sum_answers(plan, Said(*said), reducer, inputs, streams)
    return answers.release_answers(plan, sums, reducer, ledger or Ledger(), streams)


# Prices


@check
def check_noise_is_that_of_the_paper_and_of_exact_composition() -> None:
    """Golden figures 29 to 31 of Fay et al.'s formula, and of the Gaussian curve."""
    cases = [
        (80, 8, pv.teachers.Ball(1.0), 8.0, 1e-3, 1.282564, 1.073343),
        (80, 8, pv.teachers.Box(64**3 * 4), 8.0, 1e-3, 656.672722, 549.551811),
        (80, 8, pv.teachers.Box(64**3 * 3), 8.0, 1e-3, 568.695259, None),
        (1000, 250, pv.teachers.Box(1000), 1.0, 1e-5, 19.602221, 14.922527),
    ]
    for queries, number, aggregate, epsilon, delta, by_paper, exact in cases:
        shape = pv.teachers.PatePlan(queries, number, aggregate)
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
    """One Gaussian release for each query; its rho and its groups as they should be; tests and
    answers in one limit.
    """
    plan = pv.teachers.PatePlan(100, 10, pv.teachers.Votes(3), noise_multiplier=20.0)
    assert plan.event() == compose([Repeated(Gaussian(20.0), 100)])
    assert math.isclose(zcdp.rho(plan.event()), 100 / 800)
    together = pv.teachers.PatePlan(100, 10, pv.teachers.Votes(3), group_size=3).calibrate(rho=0.2)
    assert math.isclose(9 * zcdp.rho(together.event()), 0.2)
    for share in (0.1, 0.5):
        confident = pv.teachers.PatePlan(
            100, 10, pv.teachers.ConfidentVotes(3, 8.0, 25, share)
        ).calibrate(epsilon=2.0, delta=1e-5)
        tests, answers = 100 / (2 * confident.test_noise**2), 25 / (2 * confident.noise**2)
        assert math.isclose(zcdp.rho(confident.event()), tests + answers)
        assert math.isclose(tests, share * (tests + answers))
        assert 2 * (1 - 1e-9) <= confident.guarantee(1e-5).epsilon <= 2


# Sensitivities


def _attacks(seed: int = 0) -> list[Any]:
    """What one teacher might say to two queries: ordinary, huge, tiny, extreme, broken, or
    nothing.
    """
    made_up = torch.Generator().manual_seed(seed)
    ordinary = torch.randn(2, *SIZE, generator=made_up)
    broken = ordinary.clone()
    broken[0, 0, 0] = math.nan
    infinite = ordinary.clone()
    infinite[1, 1, 2] = -math.inf
    corners = [
        torch.tensor(signs).float().view(1, *SIZE).expand(2, *SIZE)
        for signs in itertools.product((0, 1), repeat=6)
    ]
    far = [
        scale * torch.randn(2, *SIZE, generator=made_up)
        for scale in (1e-3, 1.0, 1e3, 1e30, 3e38)
        for _ in range(4)
    ]
    longest = torch.full((2, *SIZE), 3.4e38)  # in single precision, sums of these are infinite
    return [
        ordinary,
        -ordinary,
        broken,
        infinite,
        None,
        longest,
        -longest,
        *far,
        *(-each for each in far),
        *corners,
    ]


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
    others = [
        torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(seed)) for seed in (5, 6)
    ]
    for name, reducer in all_reducers().items():
        for aggregate in (pv.teachers.Ball(0.7), pv.teachers.Ball(1.0), pv.teachers.Box(6)):
            if isinstance(aggregate, pv.teachers.Box) and name == "autoencoder":
                continue
            found = [_sums(aggregate, reducer, [*others, attack]) for attack in _attacks()]
            worst = max(
                float((one - two).norm(dim=1).max()) / bound
                for (one, bound), (two, _) in itertools.combinations(found, 2)
            )
            assert all(bool(one.isfinite().all()) for one, _ in found), name
            assert worst <= 1 + 1e-9, (name, aggregate, worst)
            if isinstance(aggregate, pv.teachers.Ball) and name != "autoencoder":
                assert worst > 0.99, (name, aggregate, worst)
                assert found[0][1] == 2 * aggregate.radius
            if isinstance(aggregate, pv.teachers.Box) and name == "identity":
                assert worst > 1 - 1e-9
                assert math.isclose(found[0][1], math.sqrt(6))


@check
def check_box_bounds_hold_for_every_corner() -> None:
    """Against the maximum over all corners; never above sqrt(d) for orthonormal rows; tight for a
    single coordinate.
    """
    made_up = torch.Generator().manual_seed(3)
    for size, kept in ((8, 1), (8, 3), (10, 10)):
        rows = torch.linalg.qr(torch.randn(size, size, generator=made_up, dtype=torch.float64))[0][
            :kept
        ]
        signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=size)), dtype=torch.float64)
        for scale in (1.0, 3.0):
            exact = float((signs @ (scale * rows).T).norm(dim=1).max())
            found = codes_module.box_sensitivity(scale * rows, size)
            assert exact <= found <= scale * math.sqrt(size) * (1 + 1e-8), (
                size,
                kept,
                exact,
                found,
            )
    assert math.isclose(codes_module.box_sensitivity(torch.eye(6)[:1], 6), 1.0, rel_tol=1e-6)
    must_raise(
        BadInput,
        lambda: codes_module.CodeSums(pv.teachers.Box(6), all_reducers()["autoencoder"], 2),
    )
    must_raise(
        BadInput, lambda: codes_module.CodeSums(pv.teachers.Box(5), teachers.Identity(SIZE), 2)
    )


@check
def check_centres_lie_in_the_box() -> None:
    """A teacher that can't be used takes the place of a target in the box, also if the reducer's
    centre is outside.
    """
    far = teachers.Identity(SIZE, 5.0)
    for corner in (torch.zeros(2, *SIZE), torch.ones(2, *SIZE)):
        one, bound = _sums(pv.teachers.Box(6), far, [corner])
        two, _ = _sums(pv.teachers.Box(6), far, [torch.full((2, *SIZE), math.nan)])
        assert float((one - two).norm(dim=1).max()) <= bound * (1 + 1e-9)


@check
def check_one_teacher_moves_votes_by_at_most_the_sensitivity() -> None:
    """Labels, scores, classes that there aren't, fractions and NaN; and both bounds are reached."""
    scores = torch.tensor([[9.0, 1, 2], [1, math.nan, 3], [0, 0, math.inf], [0.0, 0, 1]])
    votes = [
        torch.tensor([0, 1, 2, 0]),
        torch.tensor([1, 2, 0, 0]),
        torch.tensor([7, -1, 3, 0]),
        torch.tensor([0.5, math.nan, 2.0, 1e30]),
        torch.tensor([math.inf, -math.inf, 1.0, -0.5]),
        scores,
        None,
    ]
    base = [torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 2, 1])]
    found = []
    for vote in votes:
        counts = codes_module.VoteCounts(pv.teachers.Votes(3), 4)
        for each in (*base, vote):
            counts.add(each)
        parts = [counts.bounded(query, one_sample(), ADD) for query in range(4)]
        tops = [counts.largest(query, one_sample(), ADD) for query in range(4)]
        assert parts[0].sensitivity == math.sqrt(2)
        assert tops[0].sensitivity == 1.0
        tested = codes_module.VoteCounts(pv.teachers.ConfidentVotes(3, 2.0, 1), 4)
        assert tested.bounded(0, one_sample(), ADD).sensitivity == math.sqrt(2)
        found.append(
            (torch.stack([p.values[0] for p in parts]), torch.stack([t.values[0] for t in tops]))
        )
    moved = [
        (float((a - b).norm(dim=1).max()), float((c - d).abs().max()))
        for (a, c), (b, d) in itertools.combinations(found, 2)
    ]
    assert math.isclose(max(m for m, _ in moved), math.sqrt(2)), moved
    assert max(m for _, m in moved) == 1.0
    assert found[5][0].sum(1).tolist() == [3.0, 2.0, 2.0, 3.0], (
        "scores that are not finite are no vote"
    )
    assert found[3][0].sum(1).tolist() == [2.0, 2.0, 3.0, 2.0], (
        "numbers that are no classes are no vote"
    )


@check
def check_a_teacher_that_cannot_be_used_gives_the_centre() -> None:
    """Only for the query it can't answer: as a teacher that says the centre, or code 0 where codes
    are bounded.
    """
    for name, reducer in all_reducers().items():
        said = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(1))
        broken, central = said.clone(), said.clone()
        broken[0, 1, 1] = math.nan
        central[0] = reducer.centre
        one, _ = _sums(pv.teachers.Ball(0.5), reducer, [broken])
        two, _ = _sums(pv.teachers.Ball(0.5), reducer, [central])
        assert torch.allclose(one, two, atol=1e-6) is (name != "autoencoder"), name
        assert torch.equal(one[1], two[1])
        assert float(one[0].norm()) < 1e-6
        assert float(one[1].norm()) > 0.1
        three, _ = _sums(pv.teachers.Ball(0.5), reducer, [None])
        assert float(three.norm()) == 0.0
    # In a box, too: the centre, moved into it.
    for centre, inside in ((0.4, 0.4), (5.0, 1.0), (-5.0, 0.0)):
        reducer, said = (
            teachers.Identity(SIZE, centre),
            torch.rand(2, *SIZE, generator=torch.Generator().manual_seed(1)),
        )
        broken, central = said.clone(), said.clone()
        broken[0, 1, 1], central[0] = math.nan, inside
        one, two = (_sums(pv.teachers.Box(6), reducer, [each])[0] for each in (broken, central))
        assert torch.allclose(one, two, atol=1e-6), centre
        assert float(one[0].norm()) < 1e-6
        assert torch.allclose(one[1].view(SIZE).float(), said[1] - inside, atol=1e-6)


@check
def check_targets_that_are_encoded_in_parts_add_up_to_the_same() -> None:
    """Whatever number of them is encoded at once, to the last query."""
    said = torch.randn(7, *SIZE, generator=torch.Generator().manual_seed(4))
    whole, block = torch.zeros(7, 6, dtype=torch.float64), codes_module._BLOCK
    for numbers in (block, 6, 13, 1, 41):
        try:
            codes_module._BLOCK = numbers
            sums = codes_module.CodeSums(pv.teachers.Ball(50.0), teachers.Identity(SIZE), 7)
            assert sums.add(said)
        finally:
            codes_module._BLOCK = block
        whole = sums.sums.clone() if numbers == block else whole
        assert torch.equal(sums.sums, whole)
        assert torch.allclose(whole.float(), said.flatten(1))


def _odd(queries: int) -> list[Any]:
    """What teachers may say that is of no use: other shapes, other types, and no arrays at all."""
    shapes = [
        (queries, 2),
        (queries, 4),
        (queries + 1,),
        (queries - 1, *SIZE),
        (),
        (queries, 0),
        (queries, *SIZE, 1),
    ]
    zeros = torch.zeros(queries, 3)
    return [
        *(torch.zeros(shape) for shape in shapes),
        zeros.to(torch.complex64),
        zeros[:, 0].to(torch.complex64),
        zeros.to_sparse(),
        zeros.to("meta"),
        np.array(["a"] * queries),
        "a secret",
        3,
        [[1], [2, 3]],
        object(),
        None,
    ]


@check
def check_what_a_teacher_says_is_never_refused() -> None:
    """Whatever its shape and type: no error, no warning, nothing in its place, and the others'
    answers as they were.
    """
    votes, maps = (
        torch.tensor([0, 1, 2]),
        torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(0)),
    )
    cases: list[tuple[pv.teachers.PatePlan, Any, Tensor, list[Any]]] = [
        (pv.teachers.PatePlan(3, 3, pv.teachers.Votes(3), 5.0), None, votes, [maps]),
        (
            pv.teachers.PatePlan(3, 3, pv.teachers.Ball(1.0), 5.0),
            teachers.Identity(SIZE),
            maps,
            [votes, torch.zeros(3, 3, 2)],
        ),
        (
            pv.teachers.PatePlan(3, 3, pv.teachers.Box(6), 5.0),
            teachers.Identity(SIZE),
            maps,
            [votes],
        ),
    ]
    for plan, reducer, fine, more in cases:
        for odd in [*_odd(3), *more]:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                sums, silent = answers.sum_answers(
                    plan, Said(fine, odd, fine), reducer, torch.zeros(3, 4), Streams.new(0)
                )
                alone, _ = answers.sum_answers(
                    plan, Said(fine, None, fine), reducer, torch.zeros(3, 4), Streams.new(0)
                )
            assert silent == 1
            for query in range(3):
                one, two = (
                    each.bounded(query, one_sample(), ADD).values[0] for each in (sums, alone)
                )
                assert torch.equal(one, two), odd
    for kind in (torch.float16, torch.bfloat16, torch.bool, torch.uint8):
        counts = codes_module.VoteCounts(pv.teachers.Votes(3), 3)
        assert counts.add(torch.eye(3).to(kind))
        assert torch.equal(counts.counts, torch.eye(3, dtype=torch.float64)), kind
    for kind, kept in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.uint8, torch.int64),
        (torch.bool, torch.int64),
    ):
        found = codes_module.plain(torch.ones(2, 3, dtype=kind))
        assert found is not None
        assert found.dtype == kept, kind
    vast = np.full((3, 3), 1e300)  # more than single precision holds, and not to be written to
    vast.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert codes_module.VoteCounts(pv.teachers.Votes(3), 3).add(vast)
        assert codes_module.CodeSums(pv.teachers.Ball(1.0), teachers.Identity((3,)), 3).add(vast)


@final
class _Fails(teachers.Reducer):
    """An encoder that fails on large targets, or on all."""

    shape, size, centre, is_identity = SIZE, 6, torch.zeros(SIZE), False

    def __init__(self, always: bool = False) -> None:
        self.always = always

    def encode(self, targets: Tensor) -> Tensor:
        if float(targets.abs().max()) > 9 or (self.always and len(targets) > 1):
            raise RuntimeError(f"{targets.abs().max()} is a secret")
        return targets.flatten(1)


@check
def check_an_encoder_that_fails_on_a_teacher_says_nothing() -> None:
    """What fails on a teacher's targets is the centre; failing on the centre, too, is the encoder's
    fault, and told.
    """
    large, fine = torch.full((2, *SIZE), 10.0), torch.ones(2, *SIZE)
    one, two = (
        _sums(pv.teachers.Ball(9.0), _Fails(), said)[0] for said in ([fine, large], [fine, None])
    )
    assert torch.equal(one, two)
    error = must_raise(
        RuntimeError, lambda: _sums(pv.teachers.Ball(9.0), _Fails(always=True), [fine, large])
    )
    assert str(error).startswith("0.0 is")


# Releases


@check
def check_every_query_is_charged_before_its_noise() -> None:
    """As many events as queries, each before a bit of its noise; nothing is drawn where the ledger
    refuses.
    """
    said = [torch.zeros(5, *SIZE)] * 4
    for aggregate, reducer in (
        (pv.teachers.Ball(1.0), teachers.Identity(SIZE)),
        (pv.teachers.Votes(3), None),
    ):
        plan = pv.teachers.PatePlan(5, 4, aggregate, noise_multiplier=3.0)
        votes = said if reducer else [torch.zeros(5)] * 4
        streams = Streams.new(0)
        account = Recorder(streams.noise)
        sums, _ = answers.sum_answers(plan, Said(*votes), reducer, torch.zeros(5, 4), streams)
        answers.release_answers(plan, sums, reducer, account, streams)
        assert compose(account.charged) == plan.event()
        assert account.positions[0] == 0
        assert all(
            a < b for a, b in itertools.pairwise([*account.positions, streams.noise.position])
        )
        ledger = Ledger(pv.Budget(rho=2.5 / 18))
        silent = replace(streams, noise=NoDraws())  # type: ignore[arg-type]
        full = Ledger(pv.Budget(rho=1e-9))
        must_raise(
            BudgetExceeded,
            lambda a=(plan, sums, reducer, full, silent): answers.release_answers(*a),
        )  # type: ignore[misc]
        must_raise(
            BudgetExceeded,
            lambda a=(plan, sums, reducer, ledger, streams): answers.release_answers(*a),
        )  # type: ignore[misc]
        assert ledger.event == compose([Repeated(Gaussian(3.0), 2)])


@check
def check_the_noise_is_fresh_and_of_the_size_that_was_planned() -> None:
    """On means of codes noise_std, on counts sqrt(2) times the multiplier, all independent; the
    divisor is K.
    """
    shape = (40, 50)
    plan = pv.teachers.PatePlan(6, 4, pv.teachers.Ball(0.5), noise_multiplier=8.0)
    target = 0.01 * torch.ones(6, *shape)
    said = [target, target, None, torch.full_like(target, math.nan)]
    found, answered, _ = released(plan, said, teachers.Identity(shape))
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
        assert abs(float((one * two).mean())) / plan.noise_std**2 < 0.12, (
            "two queries share their noise"
        )
    votes = pv.teachers.PatePlan(2000, 3, pv.teachers.Votes(2), noise_multiplier=9.0)
    _, _, counts = released(votes, [torch.zeros(2000)] * 3)
    assert abs(float(counts[:, 0].mean()) - 3) < 1.5
    assert abs(float(counts.std(0).mean()) / (9.0 * math.sqrt(2)) - 1) < 0.05
    assert math.isclose(votes.noise_std, 9.0 * math.sqrt(2))


@check
def check_quiet_answers_are_what_the_teachers_said() -> None:
    """With next to no noise: the mean is recovered, about any centre and through a box too; the
    plurality wins.
    """
    for origin in (0.0, 0.5):
        target = torch.rand(2, *SIZE, generator=torch.Generator().manual_seed(1))
        for aggregate in (pv.teachers.Ball(5.0), pv.teachers.Box(6)):
            plan = pv.teachers.PatePlan(2, 3, aggregate, noise_multiplier=1e-5)
            for reducer in (teachers.Identity(SIZE, origin), teachers.PublicPCA.fit(public())):
                found, _, _ = released(plan, [target] * 3, reducer)
                assert torch.allclose(found, target, atol=1e-3), (aggregate, type(reducer).__name__)
    votes = [torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2]), torch.tensor([1, 2, 2])]
    labels, _, _ = released(
        pv.teachers.PatePlan(3, 3, pv.teachers.Votes(3), noise_multiplier=1e-3), votes
    )
    assert labels.tolist() == [0, 2, 2]


@final
class Another(teachers.Reducer):
    """Codes that are not 0 at the centre, and not bounded."""

    shape, size, centre = SIZE, 6, torch.full(SIZE, 0.4)

    def encode(self, targets: Tensor) -> Tensor:
        return 2 * targets.flatten(1) + 1

    def decode(self, codes: Tensor) -> Tensor:
        return (codes.view(-1, *SIZE) - 1) / 2

    def describe(self) -> dict[str, Any]:
        return {"kind": "another", "size": 6}


class Codes(nn.Module):
    """A decoder that gives codes as they are, in the shape of targets."""

    def forward(self, codes: Tensor) -> Tensor:
        return codes.view(-1, *SIZE)


def codes_as_released(said: Any, reducer: Any, aggregate: Any) -> Tensor:
    """What `pv.pate` releases with next to no noise, for teachers that say this."""
    plan = pv.teachers.PatePlan(said[0].shape[0], len(said), aggregate, noise_multiplier=1e-6)
    heard: list[Any] = []
    pv.pate(
        plan,
        Said(*said),
        reducer,
        torch.zeros(plan.queries, 4),
        lambda answers: heard.append(answers) or nn.ReLU(),
        streams=Streams.new(0),
    )
    found: Tensor = heard[0].targets
    return found


@check
def check_noiseless_codes_are_the_mean_of_encode() -> None:
    """Fay et al. 2020, Algorithms 1 and 2: the mean over all teachers of their encoded answers,
    decoded.

    No code of the autoencoder is clipped, wherever in the unit ball it lies, and an unusable
    teacher has code 0.
    """
    fitted = all_reducers()
    said = [
        2.0 * target
        for target in torch.randn(3, 4, *SIZE, generator=torch.Generator().manual_seed(2))
    ]
    for name, reducer in [*fitted.items(), ("another", Another())]:
        codes = torch.stack([reducer.encode(each) for each in said])
        found = codes_as_released(
            said, reducer, pv.teachers.Ball(1.0 if name == "autoencoder" else 50.0)
        )
        torch.testing.assert_close(found, reducer.decode(codes.mean(0)), rtol=1e-3, atol=1e-3)
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 7))
    # near the sphere, as by training with noise
    encoder[1].weight.data[0], encoder[1].bias.data[0] = 0.0, 3.0
    reducer = teachers.Autoencoder(encoder, Codes(), "mse", torch.full(SIZE, 0.4))
    codes = torch.stack([reducer.encode(each) for each in said])
    assert float(codes.norm(dim=2).min()) > 0.9
    for missing in ([], [None], [torch.full((4, *SIZE), math.nan), None]):
        found = codes_as_released([*said, *missing], reducer, pv.teachers.Ball(1.0))
        torch.testing.assert_close(
            found.flatten(1), codes.sum(0) / (3 + len(missing)), rtol=0, atol=2e-5
        )
    assert reducer.describe()["codes"] == "in the unit ball, clipped about 0"
    assert reducer.radius(public()) <= 1 + 1e-6


@check
def check_confident_votes_pay_for_every_test() -> None:
    """Each query asked pays for its test, each answer for itself, until as many are given as were
    paid for; no more.
    """
    agreed = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    votes = [
        agreed if k < 12 else torch.where(torch.arange(8) % 4 == 3, 0, agreed) for k in range(30)
    ]
    plan = pv.teachers.PatePlan(
        8, 30, pv.teachers.ConfidentVotes(2, 25.0, 3, 0.4), noise_multiplier=0.05
    )
    account, ledger = Recorder(), Ledger()

    def opened(ledger: Ledger, limit: Event, adjacency: Adjacency) -> Recorder:
        ledger.charge(limit, adjacency)
        return account

    with mock.patch.object(answers, "PrivacyFilter", opened):
        labels, answered, counts = released(plan, votes, ledger=ledger)
    assert ledger.event == plan.event()
    assert answered.tolist() == [True, True, True, False, False, False, False, False]
    assert labels[:3].tolist() == [0, 1, 0]
    assert float(counts[~answered].abs().sum()) == 0.0, (
        "counts of queries without an answer are given away"
    )
    test, answer = Gaussian(plan.test_noise), Gaussian(plan.noise)
    assert account.charged == [test, answer] * 3
    few = pv.teachers.PatePlan(
        8, 30, pv.teachers.ConfidentVotes(2, 25.0, 7, 0.4), noise_multiplier=0.05
    )
    ledger = Ledger()
    _, answered, _ = released(few, votes, ledger=ledger)
    assert answered.tolist() == [True, True, True, False, True, True, True, False]
    assert ledger.event == few.event()


@check
def check_a_threshold_out_of_reach_costs_nothing() -> None:
    """Refused where the probability of any answer is below 1 %, by a target or given noise; allowed
    where it is more.

    A plan that was made before is still read, priced and verified.
    """
    for noise in (0.05, 5.0):
        plan = pv.teachers.PatePlan(
            30, 6, pv.teachers.ConfidentVotes(3, 4.0, 5), noise_multiplier=noise
        )
        for deviations, refused in ((3.3, False), (3.5, True), (100.0, True)):
            # 30 queries, all agreed on: 30 x 4.8e-4 is 1.5 %, 30 x 2.3e-4 is 0.7 %
            asked = replace(
                plan, aggregate=replace(plan.aggregate, threshold=6 + deviations * plan.test_noise)
            )
            assert asked.event() == plan.event()
            ledger, said = Ledger(), Said(*[torch.zeros(30)] * 6)
            if refused:
                error = must_raise(
                    BadInput,
                    lambda: teachers.ask_teachers(
                        asked,  # noqa: B023
                        said,  # noqa: B023
                        None,
                        torch.zeros(30, 4),
                        ledger=ledger,  # noqa: B023
                    ),
                )
                assert "is out of reach of 6 teachers" in str(error)
                assert ledger.event.events == ()
            else:
                teachers.ask_teachers(asked, said, None, torch.zeros(30, 4), ledger=ledger)
    far = pv.teachers.PatePlan(30, 6, pv.teachers.ConfidentVotes(3, 500.0, 5))
    for target in ({"epsilon": 2.0, "delta": 1e-5}, {"rho": 0.1}):
        must_raise(BadInput, lambda: far.calibrate(**target))  # noqa: B023
    must_raise(BadInput, lambda: far.calibrate(epsilon=1.0, delta=1e-5).guarantee(1e-5))


@check
def check_the_noisy_count_decides_who_is_answered() -> None:
    """With noise as large as the counts, queries pass the test as often as the normal curve says,
    on either side.
    """
    queries = 400
    unanimous = [torch.zeros(queries)] * 30
    for threshold in (30.0, 40.0, 20.0):
        plan = pv.teachers.PatePlan(
            queries,
            30,
            pv.teachers.ConfidentVotes(2, threshold, queries, 0.5),
            noise_multiplier=20.0,
        )
        assert math.isclose(plan.test_noise, 20.0)
        _, answered, _ = released(plan, unanimous)
        share = 0.5 * math.erfc((threshold - 30.0) / plan.test_noise / math.sqrt(2))
        assert abs(float(answered.double().mean()) - share) < 5 * math.sqrt(
            share * (1 - share) / queries
        ), threshold


@check
def check_answers_that_were_tested_for_have_the_noise_of_their_sensitivity() -> None:
    """A vote that moves changes two counts: noise of sqrt(2) times the multiplier on each, after a
    test as well.
    """
    queries = 2000
    plan = pv.teachers.PatePlan(
        queries, 3, pv.teachers.ConfidentVotes(2, 0.0, queries, 0.5), noise_multiplier=9.0
    )
    _, answered, counts = released(plan, [torch.zeros(queries)] * 3)
    noise = counts[answered] - torch.tensor([3.0, 0.0])
    assert len(noise) > 900
    assert abs(float(noise.std()) / (9.0 * math.sqrt(2)) - 1) < 0.08
    assert math.isclose(plan.noise_std, 9.0 * math.sqrt(2))
