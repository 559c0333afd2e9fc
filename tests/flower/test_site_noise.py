"""Noise by the sites: what it costs, how it is drawn, who is charged, and what is asked again."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import RecordDict

import privlearn as pv
import privlearn_verify
from privlearn import flower
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.mechanisms import discrete_gaussian
from privlearn.core.mechanisms.noise_shares import NoisySum, release_share
from privlearn.errors import BadInput, BudgetExceeded, UnsoundExtension
from privlearn.flower import SiteShares, secure_sum
from privlearn.flower.secure_sum import SecureSum
from privlearn.flower.share_questions import pack_share_question, unpack_share_question
from privlearn.flower.summation import Circle
from privlearn.methods.pate.answers import empty, release_answers
from tests.support.checks import must_raise
from tests.support.local_grid import LocalGrid

SITES, QUERIES, CLASSES, ABSENT = 6, 20, 3, 2
INPUTS = np.random.default_rng(1).normal(size=(QUERIES, 4)).astype(np.float32)
PLAN = pv.teachers.PatePlan(
    QUERIES,
    SITES,
    pv.teachers.Votes(CLASSES),
    noise_multiplier=3.0,
    site_noise=pv.teachers.SiteNoise(ABSENT),
)
RHO = QUERIES * 0.5 / 3.0**2
BALL = replace(PLAN, aggregate=pv.teachers.Ball(1.0))
BOX = replace(PLAN, aggregate=pv.teachers.Box(6))
SIZE = (2, 3)
IDENTITY = pv.teachers.Identity(SIZE, 0.3)
GRID = PLAN.grid()
VOTE = round(1 / GRID.step)
NODES = [{"site": site} for site in range(SITES)]


def _say(site, plan=PLAN):
    """What a site's teacher says to all queries."""
    drawn = np.random.default_rng(site)
    if plan in (BALL, BOX):
        return drawn.normal(0.5, 0.3, size=(QUERIES, *SIZE)).astype(np.float32)
    return (INPUTS @ drawn.normal(size=(4, CLASSES))).argmax(1)


def _one_hot(votes):
    return torch.nn.functional.one_hot(torch.as_tensor(votes), CLASSES)


class Federation:
    """Sites with ledgers of their own, through the real apps, and the teachers that a server
    sees.
    """

    def __init__(self, folder, *, runs=10.0, plan=PLAN, say=_say, summation=None, **faults):
        self.ledgers = [folder / f"site{site}.ledger" for site in range(SITES)]
        for path in self.ledgers:
            if not path.exists():
                pv.Ledger.open(path, Budget(rho=RHO * runs))
        app = flower.teacher_app(
            lambda context: lambda inputs: say(context.node_config["site"], plan),
            shares=lambda context: SiteShares(
                self.ledgers[context.node_config["site"]],
                teachers=SITES,
                absent=plan.site_noise.absent,
            ),
            summation=summation,
        )
        self.grid = LocalGrid(app, NODES, **faults)
        self.teachers = flower.FlowerTeachers(self.grid, SITES, summation=summation, timeout=0.05)

    def sent(self):
        """The sum of what the sites sent last, in votes."""
        replies = [reply for reply in self.grid.received if len(reply.content)][-SITES:]
        return sum(reply.content["answers"].to_numpy_ndarrays()[0] for reply in replies)

    def spent(self, site):
        """rho that a site's ledger was charged, in runs."""
        return zcdp.rho(pv.Ledger.open(self.ledgers[site]).event) / RHO


def _ask(teachers, plan=PLAN, reducer=None, **options):
    return pv.teachers.ask_teachers(plan, teachers, reducer, INPUTS, **options)


def _question(name="first", plan=PLAN, inputs=INPUTS, reducer=None):
    totals = empty(plan, reducer)
    content = pack_share_question(torch.from_numpy(inputs), totals, plan, name)
    return unpack_share_question(content, None)


def _site(tmp_path, runs=10.0):
    path = tmp_path / "site.ledger"
    if not path.exists():
        pv.Ledger.open(path, Budget(rho=RHO * runs))
    return SiteShares(path, teachers=SITES, absent=ABSENT)


def _spent(tmp_path):
    return zcdp.rho(pv.Ledger.open(tmp_path / "site.ledger").event) / RHO


def _no_votes():
    return torch.zeros(QUERIES, CLASSES, dtype=torch.int64)


def _zeros():
    return np.zeros(QUERIES * CLASSES, np.int64)


# -- Prices


_FAR = 200  # so far from 0 no shift, order and parameter below puts any weight


def _log_law_of_sum(sigma, shares):
    """ln P of the sum of discrete Gaussians from -_FAR to _FAR, by convolution of logarithms."""
    x = np.arange(-_FAR, _FAR + 1)
    one = -(x.astype(np.float64) ** 2) / (2 * sigma**2)
    one -= np.log(np.exp(one).sum())
    law = one
    for _ in range(shares - 1):
        padded = np.pad(law, _FAR, constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, len(x)) + one[::-1]
        law = np.logaddexp.reduce(windows, axis=1)
    return law


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.8, 1.0, 1.7, 4.0])
@pytest.mark.parametrize("shares", [1, 2, 3, 5])
def test_no_renyi_divergence_of_shifted_sums_is_above_the_price(sigma, shares):
    law = _log_law_of_sum(sigma, shares)
    for shift in (1, 2, 3):
        moved, plain = law[:-shift], law[shift:]
        rho = discrete_gaussian.price_sum(shift, sigma, shares, 1)
        for order in (1.01, 1.5, 2.0, 4.0, 8.0, 16.0):
            exponents = order * moved + (1 - order) * plain
            divergence = np.logaddexp.reduce(exponents) / (order - 1)
            assert np.argmax(exponents) < len(exponents) - 4 * sigma * math.sqrt(shares)
            assert divergence <= order * rho * (1 + 1e-9) + 1e-12 / (order - 1)
            if sigma >= 1:  # and it is not far below
                assert divergence >= order * shift**2 / (2 * shares * sigma**2) * (1 - 1e-3)


def test_tau_is_at_least_how_far_a_sum_is_from_a_discrete_gaussian():
    for sigma in (0.5, 0.7, 1.0):
        for shares in (2, 3, 5):
            law = _log_law_of_sum(sigma, shares)
            x = np.arange(-_FAR, _FAR + 1)
            exact = -(x.astype(np.float64) ** 2) / (2 * shares * sigma**2)
            exact -= np.log(np.exp(exact).sum())
            apart = np.abs(law - exact)[np.abs(x) <= 60].max()
            assert 0 < apart <= discrete_gaussian.distance_of_sum(sigma, shares) / 2


@pytest.mark.parametrize(
    ("aggregate", "step"),
    [
        (pv.teachers.Votes(10), 1.0),
        (pv.teachers.Ball(0.3), 2.0**-14),
        (pv.teachers.Box(7), 2.0**-9),
    ],
)
@pytest.mark.parametrize(("teachers", "absent"), [(2, 0), (10, 1), (250, 25), (250, 249)])
def test_the_shares_that_have_to_be_there_pay_for_the_claim(aggregate, step, teachers, absent):
    site_noise = pv.teachers.SiteNoise(absent)
    plan = pv.teachers.PatePlan(7, teachers, aggregate, 1.3, site_noise=site_noise)
    grid = plan.grid(step)
    assert grid.needed == teachers - absent
    assert grid.sigma >= 1024
    assert (step / grid.step).is_integer()
    price = discrete_gaussian.price_sum(
        aggregate.sensitivity / grid.step, grid.sigma, teachers - absent, 10**6
    )
    claimed = zcdp.rho(plan.event()) / 7
    assert claimed * (1 - 1e-11) <= price <= claimed
    # one share fewer does not pay
    if teachers - absent > 1:
        less = discrete_gaussian.price_sum(
            aggregate.sensitivity / grid.step, grid.sigma, teachers - absent - 1, 1
        )
        assert less > claimed


@pytest.mark.parametrize("target", [{"epsilon": 8.0, "delta": 1e-3}, {"rho": 0.5}])
@pytest.mark.parametrize("group_size", [1, 3])
def test_calibration_meets_its_target_by_the_price_of_shares(target, group_size):
    plan = replace(PLAN, noise_multiplier=None, group_size=group_size).calibrate(**target)
    spent = plan.budget.spent(plan.event(), plan.adjacency)
    assert 0.997 * plan.budget.limit <= spent <= plan.budget.limit
    assert plan.site_noise == PLAN.site_noise


def test_a_guarantee_by_shares_is_above_that_of_as_much_gaussian_noise():
    by_server = replace(PLAN, site_noise=None)
    shares, gaussian = PLAN.guarantee(1e-5).epsilon, by_server.guarantee(1e-5).epsilon
    assert gaussian < shares < 1.2 * gaussian


def test_plans_without_noise_by_sites_are_written_as_before_and_others_read_back():
    assert "site_noise" not in replace(PLAN, site_noise=None).to_json()
    assert pv._public.from_json(PLAN.to_json()) == PLAN


def test_what_has_no_price_by_shares_is_refused():
    confident = pv.teachers.ConfidentVotes(3, 2.0, 2)
    error = must_raise(BadInput, lambda: replace(PLAN, aggregate=confident))
    assert "leave site_noise out" in str(error)
    tiny = replace(PLAN, noise_multiplier=1e-6, teachers=10**7)
    assert "64 bits" in str(must_raise(BadInput, tiny.grid))
    must_raise(BadInput, replace(PLAN, site_noise=None).grid)
    shares = pv.teachers.SiteNoise(SITES)
    assert "absent is 6" in str(must_raise(BadInput, lambda: replace(PLAN, site_noise=shares)))
    must_raise(BadInput, lambda: replace(PLAN, site_noise=2))
    must_raise(BadInput, lambda: pv.teachers.SiteNoise(-1))


# -- Draws


def test_draws_have_the_law_of_the_discrete_gaussian():
    stream, number = pv.Streams.new(seed=5).noise, 40_000
    with stream.drawing_for([]):
        for sigma in (0.7, 2.3):
            draws = discrete_gaussian.draw_discrete_gaussian(number, sigma, stream)
            values = np.arange(-40, 41)
            law = np.exp(-(values**2) / (2 * sigma**2))
            expected = number * law / law.sum()
            counted = np.array([(draws == value).sum() for value in values])
            likely = expected > 5
            squares = ((counted - expected)[likely] ** 2 / expected[likely]).sum()
            assert squares < likely.sum() + 5 * math.sqrt(2 * likely.sum())
        draws = discrete_gaussian.draw_discrete_gaussian(number, 5000.25, stream)
    assert np.abs(draws.mean()) < 5 * 5000 / math.sqrt(number)
    assert draws.std() == pytest.approx(5000.25, rel=5 / math.sqrt(2 * number))
    assert len(np.unique(draws % 64)) == 64


def test_the_sum_of_all_shares_but_the_absent_has_the_claimed_variance():
    """So too little noise, noise of all by each, and noise that counts absent ones are seen."""
    grid, number = GRID, 60_000
    total = np.zeros(number, np.int64)
    for _ in range(grid.needed):
        total += release_share(
            np.zeros(number, np.int64),
            sigma=grid.sigma,
            reach=grid.reach,
            event=PLAN.event(),
            adjacency=PLAN.adjacency,
            ledger=pv.Ledger(),
            stream=pv.Streams.new().noise,
        )
    std = (total * grid.step).std()
    assert std == pytest.approx(PLAN.noise_std, rel=5 / math.sqrt(2 * number))


def test_a_share_is_drawn_after_the_charge_and_not_at_all_if_that_is_refused(monkeypatch):
    order = []

    class Refusing:
        def charge(self, event, adjacency):
            order.append("charge")
            raise BudgetExceeded("no room: expected some")

    drawn = discrete_gaussian.draw_discrete_gaussian
    monkeypatch.setattr(
        "privlearn.core.mechanisms.noise_shares.draw_discrete_gaussian",
        lambda *given: order.append("draw") or drawn(*given),
    )
    options = {"sigma": 9.0, "reach": 99, "event": PLAN.event(), "adjacency": PLAN.adjacency}
    stream = pv.Streams.new().noise
    must_raise(
        BudgetExceeded,
        lambda: release_share(_zeros(), ledger=Refusing(), stream=stream, **options),
    )
    assert order == ["charge"]
    release_share(_zeros(), ledger=pv.Ledger(), stream=stream, **options)
    assert order == ["charge", "draw"]


# -- A site


def test_the_same_question_gets_the_same_answer_and_is_charged_once(tmp_path):
    first = _site(tmp_path).answer(_question(), _no_votes, Circle())
    again = _site(tmp_path).answer(_question(), lambda: _one_hot(_say(1)), Circle())
    assert np.array_equal(first, again)
    assert _spent(tmp_path) == pytest.approx(1)


@pytest.mark.parametrize("other", ["name", "inputs", "noise", "circle"])
def test_another_question_gets_other_noise_and_is_charged(tmp_path, other):
    site, circle = _site(tmp_path), Circle()
    first, asked = site.answer(_question(), _no_votes, Circle()), _question()
    if other == "name":
        asked = _question("second")
    elif other == "inputs":
        asked = _question(inputs=INPUTS + 1)
    elif other == "noise":
        asked = _question(plan=replace(PLAN, noise_multiplier=4.0))
    else:
        circle = Circle(b"other sites", SITES)
    second = site.answer(asked, _no_votes, circle)
    assert np.mean(first == second) < 0.1
    assert _spent(tmp_path) == pytest.approx(1 + (9 / 16 if other == "noise" else 1))


@pytest.mark.parametrize(("least", "circle"), [(SITES - ABSENT - 1, b"a"), (1, b"a")])
def test_a_site_refuses_sums_with_too_few_shares(tmp_path, least, circle):
    """A sum over fewer sites than share the noise tells more than is charged."""
    site = _site(tmp_path)
    few = Circle(circle, least)
    error = must_raise(BadInput, lambda: site.answer(_question(), _no_votes, few))
    assert f"threshold={SITES - ABSENT}" in str(error)
    assert _spent(tmp_path) == 0
    enough = Circle(circle, SITES - ABSENT)
    assert site.answer(_question(), _no_votes, enough) is not None


def test_sites_that_share_a_ledger_by_mistake_send_different_shares(tmp_path):
    """The same share from each would not add up to the claimed noise."""
    site = _site(tmp_path)
    first, second = (site.answer(_question(), _no_votes, Circle(node=node)) for node in (1, 2))
    assert np.mean(first == second) < 0.1
    assert _spent(tmp_path) == pytest.approx(2)


def test_a_threshold_below_the_shares_is_refused_before_the_charge(tmp_path):
    plan, ledger = replace(PLAN, site_noise=pv.teachers.SiteNoise(1)), pv.Ledger()
    federation = Federation(tmp_path, plan=plan, summation=SecureSum(threshold=4))
    error = must_raise(BadInput, lambda: _ask(federation.teachers, plan, ledger=ledger))
    assert "SecureSum(threshold=5)" in str(error)
    assert zcdp.rho(ledger.event) == 0
    assert not federation.grid.requests


def test_shares_are_added_up_under_masks(tmp_path):
    """The server sees the noisy sum alone, and another round has other noise and another charge."""
    federation = Federation(tmp_path, summation=SecureSum(threshold=SITES - ABSENT))
    first, second = (_ask(federation.teachers) for _ in range(2))
    votes = sum(_one_hot(_say(site)).double() for site in range(SITES))
    for answers in (first, second):
        assert (answers.scores - votes).abs().max() < 8 * 3.0 * math.sqrt(2)
    assert np.mean((first.scores == second.scores).numpy()) < 0.1
    assert [federation.spent(site) for site in range(SITES)] == pytest.approx([2] * SITES)


def test_a_name_that_a_server_gives_to_two_rounds_gets_other_noise_in_each(tmp_path):
    """With the same noise in both, two sums over different sites would tell what one of them said
    but for one share of noise.
    """
    federation = Federation(tmp_path, summation=SecureSum(threshold=SITES - ABSENT))
    names = iter([b"a" * 16, b"b" * 16, b"a" * 16])
    with mock.patch.object(secure_sum, "secrets", mock.Mock(token_bytes=lambda _: next(names))):
        first, _, again = (
            federation.teachers.ask_for_noisy_sum(
                PLAN, empty(PLAN, None), torch.from_numpy(INPUTS), "the same question"
            )
            for _ in range(3)
        )
    assert np.mean(first.values == again.values) < 0.1
    assert [federation.spent(site) for site in range(SITES)] == pytest.approx([3] * SITES)


def test_a_site_has_no_answer_once_its_limit_is_reached(tmp_path):
    site = _site(tmp_path, runs=2.5)
    first = site.answer(_question("0"), _no_votes, Circle())
    site.answer(_question("1"), _no_votes, Circle())
    must_raise(BudgetExceeded, lambda: site.answer(_question("2"), _no_votes, Circle()))
    assert _spent(tmp_path) == pytest.approx(2)
    assert np.array_equal(site.answer(_question("0"), _no_votes, Circle()), first)


def test_what_a_site_charges_stands_when_it_is_killed_before_the_answer_is_kept(
    tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    monkeypatch.setattr("privlearn.flower.site_shares.write_durably", kill)
    with pytest.raises(Killed):
        _site(tmp_path).answer(_question(), _no_votes, Circle())
    assert _spent(tmp_path) == pytest.approx(1)
    monkeypatch.undo()
    monkeypatch.setattr("privlearn.flower.site_shares.release_share", kill)
    with pytest.raises(Killed):
        _site(tmp_path).answer(_question(), _no_votes, Circle())
    monkeypatch.undo()
    _site(tmp_path).answer(_question(), _no_votes, Circle())
    assert _spent(tmp_path) >= 2 - 1e-9


def test_a_site_takes_no_number_from_the_server(tmp_path):
    site = _site(tmp_path)
    for plan in (
        replace(PLAN, teachers=SITES + 1),
        replace(PLAN, site_noise=pv.teachers.SiteNoise(0)),
        replace(PLAN, site_noise=None),
        replace(PLAN, adjacency="replace_one"),
    ):
        error = must_raise(
            BadInput, lambda plan=plan: site.answer(_question(plan=plan), _no_votes, Circle())
        )
        assert "Nothing was" in str(error)
    assert _spent(tmp_path) == 0


def test_a_ledger_without_a_budget_is_no_sites(tmp_path):
    path = tmp_path / "ledger"
    pv.Ledger.open(path, create=True)
    assert "no budget" in str(must_raise(BadInput, lambda: SiteShares(path, teachers=3)))
    must_raise(BadInput, lambda: SiteShares(tmp_path / "none", teachers=3))


FAILURES = {
    "fails": lambda: 1 // 0,
    "says nothing": lambda: None,
    "two votes": lambda: torch.ones(QUERIES, CLASSES, dtype=torch.int64),
    "huge": lambda: torch.full((QUERIES, CLASSES), 1 << 40),
    "another shape": lambda: torch.zeros(7, dtype=torch.int64),
    "fractions": lambda: torch.zeros(QUERIES, CLASSES),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_teacher_that_fails_sends_noise_all_the_same(tmp_path, name):
    """Or the noise of the sum would follow from records."""
    noisy = _site(tmp_path).answer(_question(), FAILURES[name], Circle())
    assert np.abs(noisy).max() <= 8 * GRID.sigma
    assert noisy.std() == pytest.approx(GRID.sigma, rel=0.5)


def test_a_question_is_read_back_as_it_was_asked():
    question = _question()
    assert question.plan == PLAN
    assert question.digest == _question().digest != _question("second").digest
    totals, queries = empty(PLAN, None), torch.from_numpy(INPUTS)
    few = pack_share_question(queries[:3], totals, PLAN, "first")
    assert "3 inputs" in str(must_raise(BadInput, lambda: unpack_share_question(few, None)))
    with pytest.raises(KeyError):
        unpack_share_question(RecordDict(), None)


def test_a_site_refuses_a_question_for_more_than_its_plan_is_priced_for():
    wide = replace(BALL, aggregate=pv.teachers.Ball(10.0))
    totals, queries = empty(wide, IDENTITY), torch.from_numpy(INPUTS)
    content = pack_share_question(queries, totals, BALL, "first")
    error = must_raise(BadInput, lambda: unpack_share_question(content, None))
    assert "expected the plan's own" in str(error)


# -- The server


def test_a_server_charges_once_before_it_asks_and_adds_no_noise(tmp_path):
    ledger = pv.Ledger()

    def before(request):
        assert ledger.event == PLAN.event()
        return True

    federation = Federation(tmp_path, before=before)
    answers = _ask(federation.teachers, ledger=ledger, streams=pv.Streams.new(seed=3))
    assert ledger.event == PLAN.event()
    assert np.array_equal(answers.scores.numpy().reshape(-1), federation.sent() * GRID.step)
    counts = sum(_one_hot(_say(site)) for site in range(SITES))
    noise = (answers.scores - counts).numpy()
    assert noise.std() == pytest.approx(PLAN.noise_std * math.sqrt(SITES / 4), rel=0.5)
    assert [federation.spent(site) for site in range(SITES)] == pytest.approx([1] * SITES)
    assert answers.discrete
    assert answers.private_diagnostics["teachers_without_answers"] == 0


@pytest.mark.parametrize("plan", [BALL, BOX], ids=["ball", "box"])
def test_codes_are_the_teachers_means_and_noise(tmp_path, plan):
    plan = replace(plan, noise_multiplier=1e-3)
    shared = Federation(tmp_path, runs=1e8, say=lambda site, _: _say(site, BALL))
    noisy = _ask(shared.teachers, plan, IDENTITY).targets
    said = [torch.as_tensor(_say(site, BALL)) for site in range(SITES)]
    if plan.aggregate.kind == "box":
        mean = sum(each.clamp(0, 1) for each in said) / SITES
    else:
        apart = [(each - IDENTITY.centre).flatten(1) for each in said]
        clipped = [
            each / torch.linalg.norm(each, dim=1, keepdim=True).clamp(min=1) for each in apart
        ]
        mean = (sum(clipped) / SITES).view(-1, *SIZE) + IDENTITY.centre
    assert torch.allclose(noisy, mean.float(), atol=8 * plan.noise_std + 1e-3)


def test_too_few_sites_that_are_connected_are_refused_before_the_charge(tmp_path):
    app = flower.teacher_app(lambda context: None, shares=lambda context: None)
    teachers = flower.FlowerTeachers(LocalGrid(app, NODES[:3]), SITES, timeout=0.05)
    ledger = pv.Ledger()
    error = must_raise(BadInput, lambda: _ask(teachers, ledger=ledger))
    assert "fewer sites are connected" in str(error)
    assert ledger.event == pv.Ledger().event


def test_as_many_sites_as_declared_may_be_absent_and_no_more(tmp_path):
    gone = {1, 2}
    federation = Federation(
        tmp_path, before=lambda request: request.metadata.dst_node_id not in gone
    )
    answers = _ask(federation.teachers)
    assert answers.private_diagnostics["teachers_without_answers"] == 2
    gone.add(3)
    ledger = pv.Ledger()
    error = must_raise(BadInput, lambda: _ask(federation.teachers, ledger=ledger))
    assert "fewer shares" in str(error)
    assert ledger.event == PLAN.event()


def test_a_ledger_without_room_is_refused_before_anybody_is_asked(tmp_path):
    federation = Federation(tmp_path)
    ledger = pv.Ledger(Budget(rho=RHO / 2))
    must_raise(BudgetExceeded, lambda: _ask(federation.teachers, ledger=ledger))
    assert not federation.grid.requests


def test_a_server_that_was_killed_asks_the_same_and_nothing_is_charged_twice(tmp_path):
    path, kept = tmp_path / "server.ledger", tmp_path / "answers"
    pv.Ledger.open(path, Budget(rho=3 * RHO))

    class Killed(BaseException):
        pass

    federation, ask = Federation(tmp_path), flower.FlowerTeachers.ask_for_noisy_sum
    sums = []

    def ask_and_die(*asked, **more):
        sums.append(ask(*asked, **more).values)
        raise Killed

    with (
        mock.patch.object(flower.FlowerTeachers, "ask_for_noisy_sum", ask_and_die),
        pytest.raises(Killed),
    ):
        _ask(federation.teachers, ledger=pv.Ledger.open(path), keep=kept)
    resumed = Federation(tmp_path).teachers
    answers = _ask(resumed, ledger=pv.Ledger.open(path), keep=kept)
    again = Federation(tmp_path)
    third = _ask(again.teachers, ledger=pv.Ledger.open(path), keep=kept)
    assert not again.grid.requests
    assert torch.equal(answers.scores, third.scores)
    assert np.array_equal(answers.scores.numpy().reshape(-1), sums[0] * GRID.step)
    assert pv.Ledger.open(path).event == PLAN.event()
    assert [federation.spent(site) for site in range(SITES)] == pytest.approx([1] * SITES)


def test_an_older_copy_of_kept_answers_is_refused_once_they_are_there(tmp_path):
    """Another site may be absent then: what it said would differ from the two sums' difference by
    its own share of noise alone.
    """
    path, kept, copy = (tmp_path / name for name in ("server.ledger", "answers", "copy"))
    pv.Ledger.open(path, Budget(rho=3 * RHO))
    federation, ask = Federation(tmp_path), flower.FlowerTeachers.ask_for_noisy_sum

    def ask_and_copy(*asked, **more):
        shutil.copy(kept, copy)
        return ask(*asked, **more)

    with mock.patch.object(flower.FlowerTeachers, "ask_for_noisy_sum", ask_and_copy):
        _ask(federation.teachers, ledger=pv.Ledger.open(path), keep=kept)
    later = Federation(tmp_path, before=lambda request: request.metadata.dst_node_id > 1)
    refused = must_raise(
        BadInput, lambda: _ask(later.teachers, ledger=pv.Ledger.open(path), keep=copy)
    )
    assert "older copy" in str(refused)
    assert not later.grid.requests


def test_a_new_run_asks_another_question(tmp_path):
    federation = Federation(tmp_path)
    first, second = (_ask(federation.teachers).scores for _ in range(2))
    assert not torch.equal(first, second)
    assert federation.spent(0) == pytest.approx(2)


def test_sites_without_room_have_no_answer_and_say_why_in_their_log_alone(tmp_path, caplog):
    federation = Federation(tmp_path, runs=1.5)
    _ask(federation.teachers)
    must_raise(BadInput, lambda: _ask(federation.teachers))
    assert "BudgetExceeded" in caplog.text
    assert not any(len(reply.content) for reply in federation.grid.received[SITES:])
    assert not any(reply.has_error() for reply in federation.grid.received)


def test_teachers_at_no_sites_are_refused_before_anything_is_charged(tmp_path):
    for site in range(SITES):
        np.savez(tmp_path / f"{site}.npz", predictions=_say(site))
    ledger = pv.Ledger()
    given = pv.teachers.Given(tmp_path)
    error = must_raise(BadInput, lambda: _ask(given, ledger=ledger))
    assert "add no noise" in str(error)
    assert ledger.event == pv.Ledger().event
    must_raise(BadInput, lambda: given.ask_for_noisy_sum(PLAN, empty(PLAN, None), INPUTS, ""))


def test_sums_without_noise_are_not_released_by_a_plan_of_noise_by_sites():
    ledger = pv.Ledger()
    must_raise(
        BadInput,
        lambda: release_answers(PLAN, empty(PLAN, None), None, ledger, pv.Streams.new()),
    )
    assert ledger.event == pv.Ledger().event


def test_noisy_sums_are_received_and_not_made_by_hand():
    must_raise(UnsoundExtension, lambda: NoisySum(_zeros()))


def test_a_certificate_with_noise_by_sites_is_verified_by_both(tmp_path):
    plan = replace(PLAN, budget=None)
    result = pv.pate(
        plan,
        Federation(tmp_path).teachers,
        None,
        INPUTS,
        lambda answers: torch.nn.Linear(4, CLASSES),
    )
    pv.publish(result, tmp_path / "student", delta=1e-3)
    assert pv.verify(tmp_path / "student").ok
    assert privlearn_verify.check_folder(tmp_path / "student").verdict == "ok"
    card = (tmp_path / "student" / "README.md").read_text("utf-8")
    assert "any 4 of the 6 shares" in card
    assert "each added a share of the noise" in card
