"""Named checks of schedules that react to validations, and of what they may look at; mutations must
make them fail.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn._storage import digest
from privlearn.core import sampling, streams
from privlearn.core.accounting import accountant, filters, rdp, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, compose, walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
)
from privlearn.core.accounting.trees import Filter, GaussianFilter
from privlearn.core.clipping.evaluation import RightAnswers
from privlearn.core.plan import Plan
from privlearn.core.schedules import Schedule, Validation
from privlearn.errors import BadInput, BudgetExceeded
from privlearn.publishing import card, certificate, page, publish
from privlearn.training.validation import ReactingNoise
from tests.descent.checks_leaks import PICKY, PRICED, ROWS, Picky, require_neighbours_alike
from tests.runs.checks_resuming import Run, folder, in_a_child, weights
from tests.support.checks import check, must_raise
from tests.support.gaussian import gaussian_delta
from tests.support.nets import cross_entropy, one_sample, require_standard_deviation, small_data

SAMPLERS = [sampling.Poisson(0.3), sampling.Partition(4), sampling.Shuffle(5), sampling.FullBatch()]
BUDGET = Budget(3.0, 1e-5)


def settled(sampler: sampling.Sampler, schedule: Validation, **more: Any) -> Plan:
    return Plan(sampler, schedule=schedule, examples=12, **more).within(BUDGET, most=8)


def public(rows: int = 40, seed: int = 9) -> pv.Dataset:
    return pv.Dataset(*small_data(rows, seed), public=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3)).double()


def train(plan: Plan, validation: pv.Dataset | None = None, **options: Any) -> pv.Result:
    arguments = {
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.5),
        "streams": streams.Streams.new(4),
        **options,
    }
    data = arguments.pop("data", None) or small_data()
    model = arguments.pop("model", None) or network()
    return pv.dpsgd(plan, model, cross_entropy, data, validation=validation, **arguments)


def plain_price(limit: Filter, event: Event) -> float:
    """The share of a limit that plain additions of textbook prices come to."""
    total = 0.0
    for leaf, times in walk(event):
        step = leaf if isinstance(leaf, Gaussian) else leaf.event  # type: ignore[attr-defined]
        if limit.rho is not None:
            total += times * 0.5 / step.noise_multiplier**2 / limit.rho
        else:
            ((order, bound),) = zip(limit.orders, limit.bounds, strict=True)
            whole = order / (2 * step.noise_multiplier**2)
            sampled = (
                rdp.divergence(leaf.sampling_rate, step.noise_multiplier, order)
                if isinstance(leaf, PoissonSampled)
                else whole
            )
            total += times * float(sampled) / bound
    return total


@contextmanager
def charges() -> Iterator[list[tuple[Any, Event]]]:
    """What ledgers and filters are charged in the block, each with who was."""
    seen: list[tuple[Any, Event]] = []

    def watched(real: Callable[..., None]) -> Callable[..., None]:
        def charge(self: Any, event: Event, adjacency: Adjacency) -> None:
            real(self, event, adjacency)
            seen.append((self, event))

        return charge

    patches = [
        mock.patch.object(kind, "charge", watched(kind.charge))
        for kind in (Ledger, filters.PrivacyFilter)
    ]
    with patches[0], patches[1]:
        yield seen


# The rule


def by_the_paper(schedule: Validation, accuracies: list[float]) -> list[float]:
    """Equations 8 to 10 and the sentence below them, word by word: the noise of each epoch up to
    the next one.
    """
    noise, used = schedule.start, [schedule.start]
    averages = {0: 0.0}  # S_0 = 0; then by the number of the check
    epoch = 0
    for number in range(1, len(accuracies) + 1):
        epoch += 1
        if epoch == schedule.period:
            epoch = 0
            last = [accuracies[i] for i in range(number - schedule.m, number)]
            averages[len(averages)] = sum(last) / schedule.m
            if averages[len(averages) - 1] - averages[len(averages) - 2] <= schedule.threshold:
                noise = schedule.k * noise
        used.append(noise)
    return used


def no_stream() -> Any:
    raise AssertionError("nothing is drawn here")


@check
def check_the_validation_rule_is_the_papers() -> None:
    made_up = random.Random(1)
    for _ in range(300):
        period = made_up.randint(1, 6)
        schedule = Validation(
            made_up.uniform(0.1, 0.95),
            made_up.randint(1, period),
            made_up.choice([0.0, 0.0123, 0.05, -0.02]),
            period,
            made_up.uniform(1, 20),
        )
        level, curve = made_up.choice([0.0, 0.1]), []
        for _ in range(made_up.randint(0, 40)):
            level = min(1.0, max(0.0, level + made_up.uniform(-0.03, 0.07)))
            curve.append(level)
        expected = by_the_paper(schedule, curve)
        found = [schedule.after(curve[:epoch]) for epoch in range(len(curve) + 1)]
        assert all(
            math.isclose(a, b, rel_tol=1e-12) for a, b in zip(found, expected, strict=True)
        ), (schedule, curve)
        assert found == list(schedule.noise_multipliers(curve))


@check
def check_the_validation_rule_on_curves_by_hand() -> None:
    # Checks after epochs 2 and 4, of means of two: 0.3 (from 0: more than 0.1, stays), 0.375
    # (falls).
    schedule = Validation(0.5, m=2, threshold=0.1, period=2, start=8.0)
    assert list(schedule.noise_multipliers([0.2, 0.4, 0.35, 0.4])) == [8, 8, 8, 8, 4]
    # Three epochs a check, of which the last counts: 0.05 (not more than 0.06 from 0: falls), 0.5
    # (stays), 0.5 (falls).
    schedule = Validation(0.5, threshold=0.06, period=3, start=8.0)
    assert list(schedule.noise_multipliers([0.9, 0.9, 0.05, 0, 0, 0.5, 1, 1, 0.5])) == [
        8,
        8,
        8,
        4,
        4,
        4,
        4,
        4,
        4,
        2,
    ]
    # An improvement that is the threshold exactly is not more than it; a loss never is.
    schedule = Validation(0.5, threshold=0.25, start=8.0)
    assert list(schedule.noise_multipliers([0.5, 0.75, 0.25])) == [8, 8, 4, 2]
    assert list(Validation(0.5, start=8.0).noise_multipliers([0.0, 0.1, 0.1])) == [8, 4, 4, 2]


@check
def check_table_two_of_yu_by_validation() -> None:
    """Yu et al. 2019, Table II and figure 4: 29 epochs at 10, 20 at 7, 10 at 4.9 and 5 at 3.43; a
    65th does not fit.
    """
    plan = Plan(sampling.Shuffle(600), schedule=Validation(0.7)).within(Budget(rho=0.78125))
    # 156 epochs at 10 would take 0.78
    assert (plan.epochs, plan.filter) == (156, GaussianFilter(rho=0.78125))
    ledger, noise = Ledger(plan.budget), [10.0] * 29 + [7.0] * 20 + [4.9] * 10 + [3.43] * 9
    with mock.patch.object(Validation, "after", lambda self, accuracies: noise[len(accuracies)]):
        pace = ReactingNoise(plan, plan.schedule, lambda *_: 0.0, [], {}, no_stream)  # type: ignore[arg-type]
        account = pace.begin(ledger)
        for _, sigma in pace:
            account.charge(plan.epoch_event(sigma), plan.neighbours)
            pace.end_epoch(torch.empty(0), torch.empty(0))
    assert pace.epochs == 64
    assert math.isclose(zcdp.rho(account.spent()), 0.769825, abs_tol=1e-6)  # type: ignore[attr-defined]
    assert math.isclose(0.769825 + 0.5 / 3.43**2, 0.812324, abs_tol=1e-6)
    assert ledger.event == compose([GaussianFilter(rho=0.78125)])


# What is spent, and what is claimed


@check
def check_filters_hold_whatever_the_accuracies_are() -> None:
    """Random, hostile curves: no epoch is broken off, the limit is never passed, and the next epoch
    would not fit.
    """
    made_up = random.Random(2)
    for sampler in SAMPLERS:
        for noise in (None, 6.0):
            for before in ((), (pv.transforms.PrivatePCA(2, 9.0),)):
                for _ in range(6):
                    schedule = Validation(
                        made_up.choice([0.3, 0.7, 0.98]),
                        threshold=0.02,
                        start=made_up.uniform(6, 12),
                        noise=noise,
                    )
                    plan = Plan(sampler, schedule=schedule, front=before).within(BUDGET, most=400)
                    assert BUDGET.spent(plan.event(), plan.neighbours) <= BUDGET.limit
                    curve = iter(lambda: made_up.choice([0.0, 0.5, 1.0, made_up.random()]), None)
                    spent: list[Event] = []
                    pace = ReactingNoise(
                        plan, schedule, lambda *_, curve=curve: next(curve), [], {}, no_stream
                    )
                    account = pace.begin(Ledger(BUDGET))
                    for _, sigma in pace:
                        step, times = next(walk(sampler.epoch_event(Gaussian(sigma))))
                        for _ in range(times):
                            account.charge(step, plan.neighbours)  # raises if it does not fit
                            spent.append(step)
                        if noise is not None:
                            account.charge(Gaussian(noise), plan.neighbours)
                            spent.append(Gaussian(noise))
                        pace.end_epoch(torch.empty(0), torch.empty(0))
                    assert plan.filter is not None
                    assert 0 < plain_price(plan.filter, compose(spent)) <= 1 + 1e-9
                    if pace.epochs < plan.epochs:
                        sigma = schedule.after(pace.facts(1)["validation"]["accuracies"])
                        more = compose([*spent, plan.epoch_event(sigma)])
                        assert plain_price(plan.filter, more) > 1 - 1e-9


@check
def check_gaussian_filters_are_exact() -> None:
    """A filter of Gaussians costs what one Gaussian does, and an analyst who adapts to every answer
    gains nothing.
    """
    rho = 0.78125
    for before in ([], [Gaussian(16.0)], [Laplace(30.0)]):
        one = accountant.guarantee(
            compose([*before, Gaussian(math.sqrt(0.5 / rho))]), Adjacency.ZERO_OUT, 1e-5
        )
        filtered = accountant.guarantee(
            compose([*before, GaussianFilter(rho)]), Adjacency.ZERO_OUT, 1e-5
        )
        assert math.isclose(one.epsilon, filtered.epsilon, rel_tol=1e-9)
    assert not filters.is_gaussian(compose([Gaussian(1.0), Laplace(1.0)]))
    assert not filters.is_gaussian(PoissonSampled(0.01, Gaussian(1.0)))
    draw = np.random.default_rng(0)
    mu = math.sqrt(2 * rho)
    for bold in (0.02, 0.3, 0.9):
        loss = _loss_of_an_analyst(mu, bold, draw)
        for epsilon in (0.5, 2.0, 4.0):
            excess = np.maximum(0.0, -np.expm1(epsilon - loss))
            error = float(excess.std()) / math.sqrt(len(excess))
            assert excess.mean() < gaussian_delta(mu, epsilon) + 5 * error


def _loss_of_an_analyst(
    mu: float, bold: float, draw: np.random.Generator, runs: int = 200_000
) -> Any:
    """Privacy losses of an analyst who spends `bold` of the mu^2 left while ahead, a tenth of that
    while behind.
    """
    loss, left = np.zeros(runs), np.full(runs, mu**2)
    for _ in range(20):
        spend = left * np.where(loss > 0, bold, bold / 10)
        loss += spend / 2 + np.sqrt(spend) * draw.standard_normal(runs)
        left -= spend
    return loss


@check
def check_a_filters_limit_is_spent_once() -> None:
    """By copies, in containers too, together; by pickles and in forked processes not at all."""
    step = Gaussian(1.0)  # a rho of 1/2, and a Renyi divergence of 1 at order 2: nine steps fit
    for limited in (
        filters.PrivacyFilter(Ledger(), limit, Adjacency.ZERO_OUT)
        for limit in (Filter(4.5), GaussianFilter(4.5), Filter(None, (2.0,), (9.0,)))
    ):
        before = [
            limited,
            copy.copy(limited),
            copy.deepcopy(limited),
            copy.deepcopy({"in": [limited]})["in"][0],
        ]
        for each in before:
            each.charge(step, Adjacency.ZERO_OUT)
        for each in [*before, copy.copy(limited), copy.deepcopy(limited)]:
            assert each.has_room(compose([step] * 5))
            assert not each.has_room(compose([step] * 6))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            error = must_raise(TypeError, lambda: pickle.dumps(limited, protocol))  # noqa: B023
            assert "would spend the same limit again" in str(error)
        for work in (
            lambda: limited.charge(step, Adjacency.ZERO_OUT),  # noqa: B023
            lambda: limited.has_room(step),  # noqa: B023
        ):
            assert in_a_child(work) == 1, "a filter was used in a forked process"
        for each in [*before, limited]:
            each.charge(step, Adjacency.ZERO_OUT)
        for each in [*before, copy.deepcopy(limited)]:
            must_raise(BudgetExceeded, lambda each=each: each.charge(step, Adjacency.ZERO_OUT))


@check
def check_a_run_that_reacts_is_charged_its_limit() -> None:
    """All of it, once, before the first release; every release is charged to the filter, and
    nothing else is.
    """
    for sampler in SAMPLERS:
        for noise in (None, 8.0):
            for before in ((), (pv.transforms.PrivatePCA(3, 9.0),)):
                plan = settled(sampler, Validation(0.6, start=7.0, noise=noise), front=before)
                make = nn.Sequential(nn.Linear(3 if before else 5, 3)).double()
                with charges() as seen:
                    result = train(plan, None if noise else public(), model=make)
                assert (
                    result.ledger.event
                    == plan.event()
                    == compose([*(b.event() for b in before), plan.filter])
                )
                kinds = [isinstance(account, Ledger) for account, _ in seen]
                assert kinds == [True] * (len(before) + 1) + [False] * (
                    len(kinds) - len(before) - 1
                )
                sigmas = result.facts["noise_multipliers"]
                assert 1 < len(sigmas) < 9, sigmas
                assert [event for _, event in seen[len(before) + 1 :]] == [
                    part
                    for sigma in sigmas
                    for part in (
                        *charged_in(sampler, sigma),
                        *([] if noise is None else [Gaussian(noise)]),
                    )
                ]
                assert len(set(sigmas)) > 1
                stated = plan.guarantee(1e-5).epsilon
                assert result.ledger.guarantee(1e-5).epsilon == stated
                assert 0.99 * BUDGET.limit < stated <= BUDGET.limit


def charged_in(sampler: sampling.Sampler, sigma: float) -> list[Event]:
    """The charges of an epoch."""
    step: dict[type, Event] = {
        sampling.Poisson: PoissonSampled(0.3, Gaussian(sigma)),
        sampling.Partition: Partitioned(4, Gaussian(sigma)),
        sampling.Shuffle: FixedBatches(Gaussian(sigma)),
        sampling.FullBatch: Gaussian(sigma),
    }
    return [step[type(sampler)]] * (4 if isinstance(sampler, sampling.Poisson) else 1)


@check
def check_limits_meet_their_budget() -> None:
    """Earlier releases, validations and group sizes included; never above it, and hardly below."""
    for sampler in SAMPLERS:
        for k in (1, 3):
            for budget in (
                Budget(2.0, 1e-5, group_size=k),
                Budget(0.3, 1e-7, group_size=k),
                Budget(rho=0.5, group_size=k),
            ):
                if budget.rho is not None and isinstance(sampler, sampling.Poisson):
                    continue
                for before in ((), (pv.transforms.PrivatePCA(4, 300.0),)):
                    plan = Plan(
                        sampler, 20, Validation(0.7, noise=900.0), front=before, group_size=k
                    )
                    plan = plan.calibrate(
                        epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho
                    )
                    assert plan.filter is not None
                    assert plan.budget == budget
                    spent = budget.spent(plan.event(), plan.neighbours)
                    assert 0.997 * budget.limit <= spent <= budget.limit, (sampler, budget, spent)
                    # The start is the one at which all epochs fit if noise never falls.
                    epochs = compose([plan.epoch_event(plan.schedule.start)] * 20)
                    assert 0.996 <= plain_price(plan.filter, epochs) <= 1
                    assert plan.within(budget).epochs == 20


# What is looked at


@check
def check_private_rows_are_not_validated_on_for_free() -> None:
    """Rows that are not declared public, and public rows that are the training rows: refused before
    any spending.
    """
    x, y = small_data()
    plan = settled(SAMPLERS[2], Validation(0.7))
    given: dict[str, tuple[Any, Any, str]] = {
        "none": ((x, y), None, "none are given"),
        "not declared": ((x, y), pv.Dataset(*small_data(9, 3)), "not declared public"),
        "a pair": ((x, y), small_data(9, 3), "not declared public"),
        "the training rows": ((x, y), pv.Dataset(x, y, public=True), "among the training rows"),
        "a part of them": (
            (x[:9], y[:9]),
            pv.Dataset(x[8:], y[8:], public=True),
            "among the training rows",
        ),
        "a copy": (
            (x, y),
            pv.Dataset(x[3:7].clone(), y[3:7], public=True),
            "among the training rows",
        ),
        "as an array": (
            (x, y),
            pv.Dataset(x[3:7].numpy().copy().tolist(), y[3:7].tolist(), public=True),
            "among the",
        ),
        "turned round": (
            (x, y),
            pv.Dataset(x.flip(0).clone(), y.flip(0), public=True),
            "among the training rows",
        ),
        "with other labels": (
            (x, y),
            pv.Dataset(x.clone(), 1 - y.clamp(max=1), public=True),
            "among the training rows",
        ),
    }
    for what, (data, validation, said) in given.items():
        if what == "as an array":  # read in single precision: given so on both sides
            data = (x.numpy().copy().tolist(), y.tolist())
        ledger = Ledger()
        model = network().float() if what == "as an array" else network()
        error = must_raise(
            BadInput,
            lambda data=data, v=validation, ledger=ledger, model=model: train(
                plan, v, data=data, ledger=ledger, model=model
            ),
        )
        assert said in str(error), (what, error)
        assert "is a release" in str(error), what
        assert "noise=" in str(error), what
        assert "validation=" in str(error), what
        assert ledger.event.events == (), what
    most = pv.Dataset(torch.cat([x, x[:1] + 1]), torch.cat([y, y[:1]]), public=True)
    assert "among the training rows" in str(must_raise(BadInput, lambda: train(plan, most)))
    few = pv.Dataset(torch.cat([x[:2], x[:3] + 1]), y[:5], public=True)
    assert train(plan, few).facts["validation"]["rows"] == 5


@check
def check_public_validations_are_plain_accuracies() -> None:
    """In evaluation mode, nothing else touched: with its noise known beforehand the run is bit for
    bit the same.
    """

    class Known(Schedule):
        start = 7.0

        def __call__(self, epoch: float) -> float:
            return float(sigmas[int(epoch)])

    shown = public()
    for number, sampler in enumerate(SAMPLERS):
        states: list[dict[str, Tensor]] = []

        class Kept(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                super().step(closure)
                states.append({name: value.clone() for name, value in model.state_dict().items()})  # noqa: B023

        model = network()
        plan = settled(sampler, Validation(0.6, start=7.0))
        result = train(plan, shown, model=model, optimizer=lambda p: Kept(p, lr=0.5))
        sigmas, seen = result.facts["noise_multipliers"], result.facts["validation"]["accuracies"]
        assert result.facts["validation"] == {
            "rows": 40,
            "public": True,
            "noise": None,
            "accuracies": seen,
        }
        steps = sampler.steps(12)
        assert len(states) == steps * len(sigmas) == result.facts["steps"]
        for epoch, accuracy in enumerate(seen):
            model.load_state_dict(states[steps * (epoch + 1) - 1])
            with torch.no_grad():
                right = (model.eval()(shown.x).argmax(1) == shown.y).double().mean()
            assert accuracy == float(right), (number, epoch)
        known = train(Plan(sampler, len(sigmas), Known(), examples=12))
        assert torch.equal(weights(known), weights(result))


@check
def check_one_example_moves_a_count_by_at_most_its_sensitivity() -> None:
    """And a wrong row that becomes a right one by exactly that; whatever else it holds."""
    x, y = small_data(20)
    net = network()
    right = RightAnswers(net)
    answers = right(x, y) == 1
    with torch.no_grad():
        assert torch.equal(answers, net.eval()(x).argmax(1) == y)
    net.train()
    assert 0 < int(answers.sum()) < 20
    place, other = int(answers.nonzero()[0]), (y + 1) % 3

    def count(x: Tensor, y: Tensor, adjacency: Adjacency) -> Any:
        found = right.count(one_sample(examples=len(x)), x, y, adjacency)
        return float(found.values[0]), found.sensitivity

    value, sensitivity = count(x, y, Adjacency.REPLACE_ONE)
    assert value == int(answers.sum()) - 10
    labels = torch.cat([y[:place], other[place : place + 1], y[place + 1 :]])
    assert value - count(x, labels, Adjacency.REPLACE_ONE)[0] == sensitivity == 1.0
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT):
        for row in range(20):
            rest = torch.arange(20) != row
            less, sensitivity = count(x[rest], y[rest], adjacency)
            assert abs(value - less) == sensitivity == 0.5
    for row in ROWS.values():
        strange = torch.cat([x, torch.tensor([row[0]], dtype=torch.float64)])
        more, _ = count(strange, torch.cat([y, torch.tensor([row[1]])]), Adjacency.ADD_REMOVE)
        assert abs(more - value) == (0.5 if all(map(math.isfinite, row[0])) else 0.0)
    assert net.training
    assert all(module.training for module in net.modules())


@check
def check_private_rows_do_not_meet_in_a_validation() -> None:
    """A model that couples rows, fails on some or writes into itself: each row is answered as if it
    were alone.
    """

    class Coupled(nn.Module):
        def __init__(self, how: str) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer, self.how = nn.Linear(5, 3).double(), how

        def forward(self, x: Tensor) -> Tensor:
            if self.how == "mean":
                return self.layer(x - 3 * x.mean(0))
            if self.how == "sort":
                return self.layer(x).sort(0).values
            if self.how == "first":
                return self.layer(x[:1]).expand(len(x), -1)
            if self.how == "fails" and bool((x > 1.5).any()):
                raise ValueError("no")
            return self.layer(x)

    x, y = small_data(30)
    for how in ("mean", "sort", "first", "fails", "fine"):
        net = Coupled(how).eval()
        alone = []
        for row in range(30):
            try:
                alone.append(1 if net(x[row : row + 1]).argmax(1) == y[row] else -1)
            except ValueError:
                alone.append(0)
        assert RightAnswers(net)(x, y).tolist() == alone, how
        assert RightAnswers(net, at_once=7)(x, y).tolist() == alone, how
    assert (
        RightAnswers(Coupled("mean"), apart=False)(x, y).tolist()
        != RightAnswers(Coupled("mean"))(x, y).tolist()
    )


class Splitting(nn.Module):
    """Looks rows up and fails on missing ones; answers differently alone than in a batch, or at
    random, if told to.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table, self.how = nn.Embedding(32, 6), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "by itself only" and bool((x < 0).all()):
            raise ValueError("no")
        found: Tensor = self.table(x[:, 0])
        if self.how == "at random":
            return found + 3 * torch.randn_like(found)
        return found if torch._C._functorch.peek_interpreter_stack() is None else -found


@check
def check_rows_that_fail_change_no_other_answer() -> None:
    """Wherever and however many: all others are answered by the same arithmetic, and they
    themselves not at all.
    """
    x, y = torch.arange(600)[:, None] % 32, torch.arange(600) % 6
    for how in ("at once", "at random", "by itself only"):
        net = Splitting(how).eval()

        def answers(bad: slice, at_once: int, how: str = how, net: nn.Module = net) -> Tensor:
            changed = x.clone()
            changed[bad] = 77  # not in the table, and not among the made-up rows
            torch.manual_seed(1)
            return RightAnswers(net, at_once=at_once)(changed, y)

        for at_once in (256, 7, 1):
            usual = answers(slice(0), at_once)
            assert set(usual.tolist()) == {-1, 1}
            if how != "at random":
                with torch.no_grad():
                    right = (net(x) * (1 if how == "by itself only" else -1)).argmax(1) == y
                assert torch.equal(usual == 1, right), (how, at_once)
            for bad in (
                slice(0, 1),
                slice(255, 257),
                slice(599, 600),
                slice(3, 200, 9),
                slice(256, 512),
            ):
                if how == "at random" and (bad.stop - bad.start) >= at_once:
                    continue  # no row of a chunk is left to draw numbers for
                found = answers(bad, at_once)
                assert not found[bad].any(), (how, bad)
                found[bad] = usual[bad]
                assert torch.equal(found, usual), (how, at_once, bad)


@check
def check_an_example_of_several_rows_counts_once() -> None:
    """A person with all their rows moves the count by at most what one example does."""
    x, y = small_data(12)
    table = torch.arange(12).view(4, 3)
    right = RightAnswers(network())
    each = right(x, y).double().view(4, 3).mean(1) / 2
    found = right.count(one_sample(examples=4), x, y, Adjacency.ADD_REMOVE, table)
    assert math.isclose(float(found.values[0]), float(each.sum()), abs_tol=1e-12)
    assert found.sensitivity == 0.5
    data = pv.Dataset(x, y, groups=torch.arange(12).numpy() % 4)
    plan = Plan(
        sampling.Poisson(0.5),
        schedule=Validation(0.7, noise=1e6, start=3.0),
        rows_per_person=2,
        examples=4,
    )
    with mock.patch.object(
        RightAnswers, "count", autospec=True, side_effect=RightAnswers.count
    ) as counted:
        train(plan.within(BUDGET, most=1), data=data)
    (call,) = counted.call_args_list
    assert call.args[5].shape == (4, 2)


@check
def check_paid_validations_are_noisy() -> None:
    """200 epochs of a model that does not move: accuracies have the stated noise, of the
    neighbours' sensitivity.
    """
    x, y = small_data()
    for sampler, adjacency, sensitivity in (
        (sampling.Shuffle(12), Adjacency.ZERO_OUT, 0.5),
        (sampling.Shuffle(12), Adjacency.REPLACE_ONE, 1.0),
        (sampling.FullBatch(), Adjacency.ADD_REMOVE, 0.5),
    ):
        schedule = Validation(0.9, threshold=-1.0, start=300.0, noise=40.0)
        plan = Plan(sampler, schedule=schedule, examples=4000, adjacency=adjacency).within(
            Budget(rho=1.0), most=200
        )
        model = network()
        result = train(plan, model=model, optimizer=lambda p: torch.optim.SGD(p, lr=1e-12))
        right = int((result.model(x).argmax(1) == y).sum())
        seen = torch.tensor(result.facts["validation"]["accuracies"], dtype=torch.float64)
        assert len(seen) == 200
        assert len(set(seen.tolist())) == 200
        require_standard_deviation(((seen - 0.5) * 4000 - (right - 6)).numpy(), 40.0 * sensitivity)
        few = Plan(sampler, schedule=schedule, examples=4, adjacency=adjacency).within(
            Budget(rho=1.0), most=60
        )
        seen = torch.tensor(train(few).facts["validation"]["accuracies"])
        assert (float(seen.min()), float(seen.max())) == (0.0, 1.0)  # clipped


@check
def check_neighbouring_runs_that_react_look_the_same() -> None:
    """Record and replay, with paid validations: every sampler and kind of neighbour, and models
    that misbehave.
    """

    def plan(sampler: sampling.Sampler, adjacency: Adjacency) -> Plan:
        schedule = Validation(0.5, start=3.0, noise=5.0)
        return settled(sampler, schedule, clip=pv.Flat(0.5), adjacency=adjacency)

    for number, (sampler, adjacency) in enumerate(PRICED):
        if sampler == sampling.Poisson(0.06):
            continue
        rows = list(ROWS)[number % 3 :: 3]
        require_neighbours_alike(plan(sampler, adjacency), rows)
    rows = ("the only one of its class", "one NaN")
    for number, how in enumerate(PICKY):
        require_neighbours_alike(
            plan(*PRICED[(0, 3, 7)[number % 3]]), rows, make=lambda how=how: Picky(how)
        )


# Interruptions and certificates


@check
def check_runs_that_react_go_on_after_interruptions() -> None:
    """Bit for bit, with the same accuracies, and the limit is charged once."""

    class Reacts:
        """A run as `resume_checks.Run` has them, with the plan of a validation schedule."""

        def __init__(self, sampler: sampling.Sampler, noise: float | None, **options: Any) -> None:
            self.run = Run(
                sampling=sampler,
                schedule=Validation(0.6, threshold=0.3, start=5.0, noise=noise),
                **options,
            )
            plan = self.run.plan().within(BUDGET, most=4)
            self.run.plan = lambda: plan  # type: ignore[method-assign]
            self.given = {} if noise else {"validation": public(20)}

    for sampler, noise, stop, options in (
        (SAMPLERS[0], None, 2, {}),
        (SAMPLERS[0], 7.0, 5, {"front": (pv.transforms.PrivatePCA(3, 9.0),)}),
        (SAMPLERS[1], 7.0, 3, {"discrete": True}),
        (SAMPLERS[2], None, 2, {"front": (pv.transforms.PrivatePCA(3, 9.0),)}),
        (SAMPLERS[3], 7.0, 2, {}),
    ):
        reacts = Reacts(sampler, noise, **options)
        whole = reacts.run.go(**reacts.given)
        assert len(set(whole.facts["noise_multipliers"])) > 1
        with folder() as here:
            book = here / "ledger"
            pieces = reacts.run.by_pieces(
                here / "run", stop=stop, ledger=Ledger.open(book, create=True), **reacts.given
            )
            assert torch.equal(weights(pieces), weights(whole)), (sampler, noise, stop)
            assert pieces.facts == whole.facts
            assert pieces.ledger.event == Ledger.open(book).event == reacts.run.plan().event()
    with folder() as here:
        reacts = Reacts(SAMPLERS[2], None)
        must_raise(Exception, lambda: reacts.run.go(here / "run", stop=2, **reacts.given))
        error = must_raise(BadInput, lambda: reacts.run.go(here / "run", validation=public(20, 8)))
        assert "its validation rows differs" in str(error)


def _edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A forger who mends all digests."""

    def edit(out: Path) -> None:
        body = json.loads((out / "privacy.json").read_text())
        change(body)
        if "noise_multipliers" in body["facts"]:
            body["facts"]["epochs"] = len(body["facts"]["noise_multipliers"])
        body["digests"] = {part: digest(body[part]) for part in body["digests"]}
        (out / "privacy.json").write_text(json.dumps(body))

    return edit


def _claim_what_was_spent(body: dict[str, Any]) -> None:
    """Realised spending in place of the limit: half of it, with figures that fit."""
    (event,) = body["events"]["events"]
    event["rho"] /= 2
    limit = accountant.guarantee(
        GaussianFilter(rho=event["rho"]), Adjacency.ZERO_OUT, body["claim"]["delta"]
    )
    body["claim"] |= {"epsilon": limit.epsilon, "rho": limit.rho, "method": limit.method}


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "the accuracies": lambda body: body["facts"]["validation"].__setitem__(
        "accuracies", [0.01 * (n + 1) for n in range(len(body["facts"]["noise_multipliers"]))]
    ),
    "less noise": lambda body: body["facts"]["noise_multipliers"].__setitem__(-1, 0.9),
    "an epoch more": lambda body: (
        body["facts"]["noise_multipliers"].append(5.0),
        body["facts"]["validation"]["accuracies"].append(0.4),
    ),
    "epochs past the filter": lambda body: (
        body["facts"]["validation"].__setitem__(
            "accuracies", [0.002 * (n + 1) for n in range(400)]
        ),
        body["facts"].__setitem__("noise_multipliers", [7.0] * 400),
        body["plan"].__setitem__("epochs", 400),
    ),
    "an epoch less": lambda body: body["facts"]["noise_multipliers"].pop(),
    "another schedule": lambda body: body["plan"]["schedule"].__setitem__("k", 0.61),
    "a schedule that is none": lambda body: body["plan"].__setitem__(
        "schedule", {"kind": "constant", "start": 7.0}
    ),
    "a wider filter": lambda body: body["plan"]["filter"]["value"].__setitem__("rho", 0.5),
    "no filter": lambda body: body["plan"].__setitem__("filter", None),
    "its spending": _claim_what_was_spent,
}


def _known(result: pv.Result, **changes: Any) -> pv.Result:
    """`result` with a plan whose noise is known beforehand: that which the run came to."""
    schedule = pv.schedules.PerEpoch(tuple(result.facts["noise_multipliers"]))
    plan = dataclasses.replace(
        result.plan, schedule=schedule, epochs=len(schedule.values), filter=None, budget=None
    )
    return dataclasses.replace(result, plan=plan, facts={**result.facts, **changes})


def _stating(result: pv.Result, **stated: Any) -> pv.Result:
    """`result` with other facts of its validation."""
    return dataclasses.replace(
        result, facts={**result.facts, "validation": {**result.facts["validation"], **stated}}
    )


def _without(result: pv.Result, *names: str) -> pv.Result:
    """`result` without some of its facts."""
    return dataclasses.replace(
        result, facts={name: value for name, value in result.facts.items() if name not in names}
    )


def _paying(result: pv.Result, noise: float | None) -> pv.Result:
    """`result` with a schedule whose validations cost something else."""
    schedule = dataclasses.replace(result.plan.schedule, noise=noise)
    return dataclasses.replace(result, plan=dataclasses.replace(result.plan, schedule=schedule))


#: Other plans and facts, certified with whatever they amount to: figures, digests and card are all
#: right.
PLAIN: dict[str, Callable[[pv.Result], pv.Result]] = {
    "plain composition": _known,
    "plain composition, its validations kept quiet": lambda result: _without(
        _known(result), "validation"
    ),
    "validations kept quiet": lambda result: _without(result, "validation"),
    "noise kept quiet": lambda result: _without(result, "noise_multipliers"),
    "paid validations that were free": lambda result: _stating(result, noise=None),
    "free validations that were paid": lambda result: _stating(result, noise=50.0),
    "validations with more noise": lambda result: _stating(result, noise=9.5),
    "public rows that were private": lambda result: _stating(result, public=True),
    "private rows that were public": lambda result: _stating(result, public=False),
    "a schedule that pays": lambda result: _paying(result, 50.0),
    "a schedule that pays nothing": lambda result: _paying(result, None),
}


def _certified(result: pv.Result, out: Path) -> pv.Verification:
    """What `verify` says if plan and facts of `result` are certified, by whoever has all of
    privlearn.
    """
    ledger = Ledger()
    ledger.charge(result.plan.event(), result.adjacency)

    def head(said: Any, *_: Any) -> list[Any]:
        claim = said.guarantee
        return [claim.epsilon, claim.delta, claim.adjacency.value, str(claim.unit), None]

    with (
        mock.patch.object(card, "write", lambda said: certificate.header(*head(said))),
        mock.patch.object(page, "write", lambda *said: certificate.page_head(*head(*said))),
        mock.patch.object(publish, "_require_own_facts"),
    ):
        return pv.verify(pv.publish(dataclasses.replace(result, ledger=ledger), out, delta=1e-5))


@check
def check_reacting_runs_are_never_certified_as_plain_ones() -> None:
    """The plan says that a run reacted: then it went by a filter, and its validations were what the
    schedule says.
    """
    for noise in (None, 9.0):
        result = train(
            settled(SAMPLERS[2], Validation(0.6, start=7.0, noise=noise)),
            None if noise else public(),
        )
        with tempfile.TemporaryDirectory() as name:
            assert _certified(result, Path(name) / "honest").ok
            for number, (what, change) in enumerate(PLAIN.items()):
                changed = change(result)
                if (changed.plan, changed.facts) != (result.plan, result.facts):
                    assert not _certified(changed, Path(name) / str(number)).ok, (what, noise)
        must_raise(
            BadInput, lambda plan=result.plan: dataclasses.replace(plan, filter=None).event()
        )  # type: ignore[misc]
        steady = pv.schedules.Constant(7.0)
        must_raise(
            BadInput, lambda plan=result.plan, s=steady: dataclasses.replace(plan, schedule=s)
        )  # type: ignore[misc]
    known = train(Plan(SAMPLERS[2], 3, pv.schedules.Exponential(0.1, start=7.0), examples=12))
    with tempfile.TemporaryDirectory() as name:
        assert _certified(known, Path(name) / "known").ok
        own = dataclasses.replace(
            known.plan, schedule=pv.schedules.PerEpoch(known.plan.noise_multipliers())
        )
        assert _certified(dataclasses.replace(known, plan=own), Path(name) / "own").ok


@check
def check_certificates_of_runs_that_react_are_verified() -> None:
    for sampler in SAMPLERS:
        for noise in (None, 9.0):
            result = train(
                settled(sampler, Validation(0.6, start=7.0, noise=noise)),
                None if noise else public(),
            )
            with tempfile.TemporaryDirectory() as name:
                out = pv.publish(result, Path(name) / "model")
                found = pv.verify(out)
                assert found.ok, found.problems
                assert found.epsilon == result.ledger.guarantee(1e-5).epsilon
                card = (out / "README.md").read_text()
                assert (
                    "declares public, not protected" if noise is None else "noise multiplier 9;"
                ) in card
                if isinstance(sampler, sampling.Shuffle):
                    kept = (out / "privacy.json").read_bytes()
                    for what, change in FORGERIES.items():
                        (out / "privacy.json").write_bytes(kept)
                        _edit(change)(out)
                        assert not pv.verify(out).ok, what
