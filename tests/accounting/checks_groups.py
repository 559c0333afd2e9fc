"""Named checks of groups and persons, beside those of the spine in checks.py; mutations must make
them fail.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting import accountant, pld, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import (
    ZCDP,
    FixedBatches,
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    Selection,
)
from privlearn.core.accounting.pld import pairs
from privlearn.core.accounting.trees import Filter, GaussianFilter
from privlearn.core.clipping import row_sums
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.data import dataset
from privlearn.errors import BadInput, BudgetExceeded
from tests.support.checks import check, must_raise
from tests.support.nets import (
    clipped_by_the_loop,
    cross_entropy,
    flat_norm,
    one_sample,
    small_data,
    small_net,
)

KEY = b"0123456789abcdef"
#: By rows of a person: epsilon at delta 1e-5 from the mixture, and in steps of one row
#: (docs/accounting.md).
ELS_AT_NOISE_1 = {
    1: (1.8284, None),
    2: (3.9794, 4.2308),
    4: (8.8999, 11.804),
    8: (20.897, 181.01),
    16: (52.719, None),
    64: (433.59, None),
}
ELS_AT_NOISE_2 = {
    1: (0.6221, None),
    2: (1.3327, 1.3399),
    4: (2.8936, 2.9672),
    8: (6.4608, 7.1009),
    16: (15.165, 22.052),
    64: (107.83, None),
}


def mixture_deltas(rate: float, sigma: float, k: int, epsilon: float) -> tuple[float, float]:
    """delta at `epsilon` of one release, remove and add, by direct quadrature of the densities."""
    x = np.linspace(-14 * sigma, k + 14 * sigma, 400_001)
    j = np.arange(k + 1)

    def density(mean: Any) -> Any:
        return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))

    without = density(0.0)
    present = sum(w * density(float(m)) for m, w in zip(j, binom.pmf(j, k, rate), strict=True))
    width, factor = x[1] - x[0], math.exp(epsilon)
    remove = np.maximum(present - factor * without, 0).sum() * width
    add = np.maximum(without - factor * present, 0).sum() * width
    return float(remove), float(add)


# Accounting


@check
def check_groups_under_sampling_have_their_golden_prices() -> None:
    """Both directions, beside dp-accounting 0.6's mixture of Gaussians (connect the dots, steps
    1e-4 to 1e-3).
    """
    for rate, sigma, k, steps, remove, add in (
        (0.01, 1.0, 2, 1000, 3.979102, 3.030662),
        (0.01, 1.0, 5, 200, 5.305282, 2.980375),
        (0.01, 6.0, 5, 10_000, 3.589742, 3.560530),
        (0.02, 2.0, 10, 300, 9.742583, 8.094639),
        (0.3, 20.0, 3, 50, 1.220037, 1.195056),
        (0.001, 0.6, 4, 1000, 4.369371, 1.200138),
        (0.01, 30.0, 100, 500, 3.135722, 3.113743),
        (0.01, 60.0, 1000, 50, 5.328823, 5.263796),
    ):
        event = Repeated(GroupSampled(rate, k, Gaussian(sigma)), steps)
        found = pld.compose_event(event, negligible=1e-8).epsilons(1e-5)
        for ours, gold in zip(found, (remove, add), strict=True):
            assert gold * (1 - 2e-4) <= ours <= gold * (1 + 5e-4), (
                rate,
                sigma,
                k,
                steps,
                ours,
                gold,
            )


@check
def check_example_level_sampling_has_a_users_price() -> None:
    """600 of 60,000 rows, 1,000 steps: the table on the page, by plans; far below what steps of one
    row are worth.
    """
    for noise, table in ((1.0, ELS_AT_NOISE_1), (2.0, ELS_AT_NOISE_2)):
        event = Repeated(PoissonSampled(0.01, Gaussian(noise)), 1000)
        for k, (claimed, in_steps) in table.items():
            plan = pv.Plan(pv.Poisson(0.01), 10, pv.schedules.Constant(noise), group_size=k)
            ours = plan.guarantee(1e-5)
            assert ours.unit == PrivacyUnit(k)
            assert math.isclose(ours.epsilon, claimed, rel_tol=5e-4), (noise, k, ours.epsilon)
            if in_steps is not None:
                least = min(
                    figure(event, 1e-5, k)
                    for figure in (accountant.pld_in_steps, accountant.rdp_in_steps)
                )
                assert math.isclose(least, in_steps, rel_tol=5e-4), (noise, k, least)
                assert claimed <= in_steps * (1 + 1e-4)
    claimed, in_steps = ELS_AT_NOISE_1[8]
    assert in_steps is not None
    assert 2 * claimed < in_steps
    # A row has one owner, where persons are examples: several would each need protection.
    x, y = small_data(8)
    several = pv.Dataset(x.float().numpy(), y.numpy(), classes=3, groups=np.zeros((8, 2), int))
    persons = pv.Plan(pv.Poisson(0.5), 1, pv.schedules.Constant(2.0), rows_per_person=2)
    error = must_raise(BadInput, lambda: pv.dpsgd(persons, small_net(), cross_entropy, several))
    assert "one person's id for each" in str(error)


@check
def check_one_release_for_a_group_is_exact() -> None:
    """Never below the densities' own integrals, and hardly above, in both directions."""
    for rate, sigma, k in (
        (0.3, 1.0, 2),
        (0.05, 0.7, 5),
        (0.5, 4.0, 12),
        (0.9, 2.0, 3),
        (0.01, 1.0, 40),
    ):
        found = pld.compose_event(GroupSampled(rate, k, Gaussian(sigma)), h=1e-3, negligible=1e-11)
        for epsilon in (0.0, 0.3, 1.0, 2.5):
            for ours, true in zip(
                found.deltas(epsilon), mixture_deltas(rate, sigma, k, epsilon), strict=True
            ):
                assert true * (1 - 1e-7) - 1e-10 <= ours <= true * (1 + 1e-3) + 1e-8, (
                    rate,
                    sigma,
                    k,
                    epsilon,
                )


@check
def check_a_groups_masses_are_kept() -> None:
    for rate, sigma, k in (
        (0.01, 1.0, 3),
        (0.5, 20.0, 100),
        (0.2, 0.4, 5),
        (0.99, 2.0, 2),
        (1e-6, 0.5, 1000),
    ):
        for tail in (1e-4, 1e-12):
            pair = pairs.group_pair(rate, sigma, k, 2e-3, tail)
            # Rounded up, by what rounding may be in cells that are thin against the spread.
            assert -1e-14 < pair.q.sum() + pair.q0 - 1 < 3e-8
            assert -1e-14 < (pair.q * np.exp(pair.losses)).sum() + pair.p_inf - 1 < 3e-8


@check
def check_rare_numbers_of_rows_are_paid_for() -> None:
    """What is left out of the mixture counts in full: a coarse tail is never below the truth."""
    for rate, sigma, k in ((0.05, 3.0, 10), (0.5, 20.0, 60)):
        composed = pld.compose([pairs.group_pair(rate, sigma, k, 1e-3, 0.05)], [1], 1e-9)
        for epsilon in (0.0, 0.5, 1.5):
            for ours, true in zip(
                composed.deltas(epsilon), mixture_deltas(rate, sigma, k, epsilon), strict=True
            ):
                assert ours >= true * (1 - 1e-9), (rate, sigma, k, epsilon, ours, true)


@check
def check_every_mechanism_scales_with_the_group() -> None:
    def priced(event: Any, k: int = 1) -> float:
        return accountant.guarantee(event, Adjacency.ZERO_OUT, 1e-6, k).epsilon

    for event, whole in (
        (Gaussian(9.0), Gaussian(3.0)),
        (FixedBatches(Gaussian(9.0)), Gaussian(3.0)),
        (ZCDP(0.01), ZCDP(0.09)),
        (PoissonSampled(1.0, Gaussian(9.0)), Gaussian(3.0)),
        (Laplace(9.0), Laplace(3.0)),
        (PureDP(0.1), PureDP(0.3)),
        (Filter(0.01), Filter(0.09)),
        (Selection(0.1), Selection(0.3)),
        (GaussianFilter(0.01), GaussianFilter(0.09)),
        (RandomisedResponse(0.2, 4), Repeated(RandomisedResponse(0.2, 4), 3)),
        (PoissonSampled(0.1, Gaussian(9.0)), GroupSampled(0.1, 3, Gaussian(9.0))),
    ):
        assert math.isclose(
            priced(Repeated(event, 5), 3), priced(Repeated(whole, 5)), rel_tol=1e-3
        ), event
        mixed = compose([Repeated(event, 5), Gaussian(12.0)])
        assert math.isclose(
            priced(mixed, 3), priced(compose([Repeated(whole, 5), Gaussian(4.0)])), rel_tol=1e-3
        ), event
        # Beside a mechanism that is no Gaussian, all go through the group's own tree.
        mixed = compose([Repeated(event, 5), Laplace(12.0)])
        assert math.isclose(
            priced(mixed, 3), priced(compose([Repeated(whole, 5), Laplace(4.0)])), rel_tol=1e-3
        ), event


# Plans, ledgers, certificates


@check
def check_targets_are_met_for_the_group() -> None:
    for sampler in (pv.Poisson(0.05), pv.Shuffle(50), pv.Partition(20)):
        plan = pv.Plan(sampler, epochs=3, group_size=4).calibrate(epsilon=2.0, delta=1e-5)
        person = accountant.guarantee(plan.event(), plan.neighbours, 1e-5, 4)
        assert 2.0 * (1 - 0.003) <= person.epsilon <= 2.0
        assert plan.guarantee(1e-5) == person
    plan = pv.Plan(pv.Shuffle(50), epochs=3, group_size=4).calibrate(rho=0.5)
    assert 0.5 * (1 - 0.003) <= 16 * zcdp.rho(plan.event()) <= 0.5
    noisy = pv.Plan(pv.Poisson(0.05), schedule=pv.schedules.Constant(3.0), group_size=4)
    for budget in (Budget(epsilon=4.0, delta=1e-5), Budget(epsilon=4.0, delta=1e-5, group_size=4)):
        within = noisy.within(budget)
        assert within.guarantee(1e-5).epsilon <= 4.0
        assert within.budget == Budget(epsilon=4.0, delta=1e-5, group_size=4)
    must_raise(BadInput, lambda: noisy.within(Budget(epsilon=4.0, delta=1e-5, group_size=3)))


@check
def check_ledgers_price_the_group() -> None:
    ledger = Ledger(Budget(epsilon=2.0, delta=1e-5, group_size=3))
    one, three = (
        accountant.guarantee(Gaussian(5.0), Adjacency.ADD_REMOVE, 1e-5, k).epsilon for k in (1, 3)
    )
    assert one < 2.0 < three
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(5.0), Adjacency.ADD_REMOVE))
    ledger.charge(Gaussian(10.0), Adjacency.ADD_REMOVE)
    assert ledger.guarantee(1e-5) == accountant.guarantee(
        Gaussian(10.0), Adjacency.ADD_REMOVE, 1e-5, 3
    )


@check
def check_units_never_mix() -> None:
    """Runs for one example, for groups of two sizes and for persons: a ledger holds one of
    these.
    """
    units = [
        PrivacyUnit(),
        PrivacyUnit(2),
        PrivacyUnit(5),
        PrivacyUnit(rows_per_person=2),
        PrivacyUnit(rows_per_person=5),
    ]
    for unit in units:
        for other in units:
            ledger = Ledger()
            ledger.begin(Gaussian(4.0), Adjacency.ADD_REMOVE, unit)
            ledger.charge(Gaussian(4.0), Adjacency.ADD_REMOVE)
            before = ledger.event
            if other == unit:
                ledger.begin(Gaussian(4.0), Adjacency.ADD_REMOVE, other)
            else:
                must_raise(
                    BadInput,
                    lambda: ledger.begin(Gaussian(4.0), Adjacency.ADD_REMOVE, other),  # noqa: B023
                )
            assert ledger.unit == unit
            assert ledger.event == before
            assert ledger.spent(1e-5).unit == unit
        undeclared = Ledger()
        undeclared.charge(Gaussian(4.0), Adjacency.ADD_REMOVE)
        if unit != PrivacyUnit():
            must_raise(
                BadInput,
                lambda: undeclared.begin(Gaussian(4.0), Adjacency.ADD_REMOVE, unit),  # noqa: B023
            )
    must_raise(BadInput, lambda: Ledger(Budget(rho=1.0), unit=PrivacyUnit(2)))
    limited = Ledger(Budget(rho=1.0))
    must_raise(BadInput, lambda: limited.begin(Gaussian(4.0), Adjacency.ADD_REMOVE, PrivacyUnit(2)))


def people(count: int = 12, seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray[Any, Any]]:
    """Rows of persons with one to nine rows each, in no order."""
    made_up = np.random.default_rng(seed)
    ids = np.repeat(made_up.permutation(1000)[:count], made_up.integers(1, 10, count))
    made_up.shuffle(ids)
    x = torch.from_numpy(made_up.normal(size=(len(ids), 5)))
    return x, torch.from_numpy(made_up.integers(3, size=len(ids))), ids


@check
def check_certificates_state_the_unit() -> None:
    x, y, ids = people(40)
    for options in ({"group_size": 5}, {"rows_per_person": 3}):
        plan = pv.Plan(pv.Poisson(0.5), epochs=1, examples=40, **options).calibrate(
            epsilon=3.0, delta=1e-3
        )
        data = pv.Dataset(x, y, groups=ids if plan.rows_per_person else None)
        result = pv.dpsgd(plan, small_net(), cross_entropy, data)
        with tempfile.TemporaryDirectory() as folder:
            out = pv.publish(result, Path(folder) / "model")
            found = pv.verify(out)
            assert found.ok, found.problems
            assert found.unit == str(plan.unit)
            assert f"unit: {plan.unit}\n" in (out / "README.md").read_text()
            path = out / "privacy.json"
            certificate = json.loads(path.read_text())
            claim = certificate["claim"]
            assert claim["unit"] == str(plan.unit)
            assert {key: claim[key] for key in options} == options
            assert claim["epsilon"] == plan.guarantee(1e-3).epsilon
            for change in (
                {"group_size": 2},
                {"rows_per_person": 7},
                {"group_size": 1},
                {"group_size": True},
                {"unit": str(PrivacyUnit())},
                {"unit": str(PrivacyUnit(6))},
                {"group_size": 6, "unit": str(PrivacyUnit(6))},
            ):
                path.write_text(json.dumps(certificate | {"claim": claim | change}))
                said = " ".join(pv.verify(out).problems).replace(
                    "part 'claim' of privacy.json was changed", ""
                )
                assert any(word in said for word in ("states", "speaks", "fields", "recomputed")), (
                    change,
                    said,
                )


@check
def check_units_are_called_by_what_they_are() -> None:
    """In the sentence that explains a guarantee, on cards and in claims."""
    for unit, change, name in (
        (PrivacyUnit(), "one example is removed", "one example (one row of the training data)"),
        (
            PrivacyUnit(2),
            "examples of one person, up to 2 of them, are removed",
            "up to 2 examples of one person",
        ),
        (
            PrivacyUnit(rows_per_person=1),
            "one person, with all their rows, is removed",
            "one person (any number of rows",
        ),
        (
            PrivacyUnit(rows_per_person="all"),
            "one person, with all their rows, is removed",
            "one person (any number of rows",
        ),
    ):
        assert unit.change("removed") == change
        assert str(unit).startswith(name)


# Persons


def person_sums(
    x: Tensor,
    y: Tensor,
    ids: np.ndarray[Any, Any],
    rows: int = 4,
    clip: float = 0.5,
    **options: Any,
) -> Any:
    """The clipped sum over all persons."""
    table = torch.from_numpy(dataset.rows_of_persons(ids, rows, KEY))
    clipper = ClippedGradients(
        small_net(), cross_entropy, Flat(clip), Adjacency.ADD_REMOVE, rows=table, **options
    )
    return clipper(one_sample(examples=len(table)), x, y)


@check
def check_a_person_moves_the_sum_by_at_most_the_sensitivity() -> None:
    """One person's rows are all changed, or the person is removed: whatever they are and however
    many.
    """
    x, y, ids = people()
    base = person_sums(x, y, ids)
    made_up = torch.Generator().manual_seed(0)
    worst = 0.0
    for person in np.unique(ids):
        mine = torch.from_numpy(ids == person)
        absent = person_sums(x[~mine], y[~mine], ids[~mine.numpy()]).values
        for scale in (0.0, 1e-3, 1.0, 1e6):
            changed = x.clone()
            changed[mine] = torch.randn(5, generator=made_up, dtype=x.dtype).sign() * scale
            found = person_sums(changed, y.where(~mine, 2), ids)
            moved = flat_norm(tuple(a - b for a, b in zip(found.values, absent, strict=True)))
            assert moved <= found.sensitivity * (1 + 1e-9), (person, scale, moved)
            worst = max(worst, moved)
    assert base.sensitivity == 0.5
    assert worst >= 0.99 * 0.5


@check
def check_a_persons_gradient_is_the_mean_of_their_rows() -> None:
    """Against one person after another: the mean over their rows, clipped once."""
    x, y, ids = people()
    table = dataset.rows_of_persons(ids, 4, KEY)

    def mean_loss(output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target).mean()

    for clip in (0.05, 3.0):
        expected = None
        for rows in table:
            own = clipped_by_the_loop(
                small_net(),
                clip,
                x[rows][None],
                y[rows][None],
                lambda out, target: mean_loss(out[0], target[0]),
            )
            expected = (
                own if expected is None else [a + b for a, b in zip(expected, own, strict=True)]
            )
        for options in ({}, {"microbatch": 3}):
            found = person_sums(x, y, ids, clip=clip, **options).values
            for a, b in zip(found, expected or [], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@check
def check_a_person_has_only_their_own_rows() -> None:
    _, _, ids = people()
    for rows in (1, 2, 4, 12):
        table = dataset.rows_of_persons(ids, rows, KEY)
        assert table.shape == (len(np.unique(ids)), rows)
        for person, own in zip(np.unique(ids), table, strict=True):
            mine = np.flatnonzero(ids == person)
            assert set(own) <= set(mine)
            assert len(set(own)) == min(rows, len(mine))
            assert max(np.bincount(own)) <= math.ceil(rows / len(mine))


@check
def check_nobody_elses_rows_move() -> None:
    """A person is added at any place, or has other rows: what stands for everybody else stays."""
    _, _, ids = people()
    for kind in (ids, ids.astype(str)):
        before = dict(zip(np.unique(kind), dataset.rows_of_persons(kind, 3, KEY), strict=True))
        for new in (-1, 500, 5000):
            assert new not in ids
            more = np.concatenate([kind, np.full(7, new).astype(kind.dtype)])
            after = dict(zip(np.unique(more), dataset.rows_of_persons(more, 3, KEY), strict=True))
            assert len(after) == len(before) + 1
            assert all(np.array_equal(after[person], own) for person, own in before.items())
    many = np.zeros(60, dtype=int)
    assert not np.array_equal(
        dataset.rows_of_persons(many, 5, KEY), dataset.rows_of_persons(many, 5, KEY[::-1])
    )


@check
def check_a_row_that_is_not_finite_silences_its_person_only() -> None:
    x, y, ids = people()
    person = np.unique(ids)[5]
    mine = torch.from_numpy(ids == person)
    without = person_sums(x[~mine], y[~mine], ids[~mine.numpy()]).values
    broken = x.clone()
    broken[mine] = math.nan
    for a, b in zip(person_sums(broken, y, ids).values, without, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@check
def check_a_person_moves_the_second_moment_by_at_most_its_sensitivity() -> None:
    x, _, ids = people()
    table = torch.from_numpy(dataset.rows_of_persons(ids, 4, KEY))
    worst = 0.0
    for person in range(len(table)):
        changed = x.clone()
        changed[table[person]] = torch.eye(5, dtype=x.dtype)[0] * 50
        empty = x.clone()
        empty[table[person]] = 0.0
        one, other = (
            row_sums.second_moment(
                rows, 1.0, one_sample(examples=len(table)), Adjacency.ZERO_OUT, table
            )
            for rows in (changed, empty)
        )
        worst = max(worst, float((one.values[0] - other.values[0]).norm()) / one.sensitivity)
    assert 0.999 <= worst <= 1 + 1e-9
