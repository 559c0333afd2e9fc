"""Named checks of how the papers' training runs are made: what they are charged, and that pairs are
pairs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import Plan
from privlearn_studies import data
from privlearn_studies.harder2020 import mnist as dpmac_mnist
from privlearn_studies.harder2020 import training as dpmac
from privlearn_studies.harder2020 import usps
from privlearn_studies.runs import Call, Outcome, Runs
from privlearn_studies.yu2019 import training as yu
from privlearn_studies.yu2019.schedules import TABLE_2
from privlearn_studies.yu2019.training import Setting, mnist, uniform
from tests.support.checks import CHECKS

DATA = Path(os.environ.get("PRIVLEARN_DATA") or Path(__file__).parents[3] / "shared" / "data")


def reproduces(check):  # type: ignore[no-untyped-def]
    """Register a check that needs the real data sets."""

    def with_data() -> None:
        if not DATA.is_dir():
            pytest.skip(f"real data sets are not here: {DATA}")
        before = os.environ.get("PRIVLEARN_DATA")
        os.environ["PRIVLEARN_DATA"] = str(DATA)
        data._projected.cache_clear()
        try:
            check()
        finally:
            data._projected.cache_clear()
            if before is None:
                del os.environ["PRIVLEARN_DATA"]

    CHECKS[check.__name__] = with_data
    return check


@reproduces
def check_every_run_pays_for_its_projection() -> None:
    """The ledger of a run on projected rows holds the projection, also where an earlier run drew
    it.
    """
    for _ in range(2):
        found = mnist("constant:start=20", epochs=1, first=600)(0)
        assert found.rho == pytest.approx(2 * 0.5 / 20**2 + 0.5 / 16**2, rel=1e-9)


@reproduces
def check_the_reading_as_written_states_what_it_costs() -> None:
    """Noise of the scale times the norm of one layer is worth rho times the number of layers."""
    for hidden in ((10,), (10, 20, 10)):
        written = yu.train(0, Setting("cancer", "constant:start=25", epochs=2, hidden=hidden))
        sound = yu.train(
            0, Setting("cancer", "constant:start=25", epochs=2, hidden=hidden, clip="layer")
        )
        assert sound.rho == pytest.approx(2 * 0.5 / 25**2)
        assert written.rho == pytest.approx((len(hidden) + 1) * 2 * 0.5 / 25**2)
        assert written.noise == pytest.approx((25.0, 25.0))
        assert sound.noise == pytest.approx((25.0, 25.0))


@reproduces
def check_the_epochs_of_table_two() -> None:
    """The fixed schedules end exactly where the paper's do, and uniform noise lasts as long as it
    is solved for.
    """
    for name, (schedule, epochs, *_) in TABLE_2.items():
        if name != "validation":
            assert yu.plan_of(mnist(schedule).setting, 2).epochs == epochs
            assert yu.plan_of(mnist(schedule, clip="layer").setting, 2).epochs == epochs
        assert yu.plan_of(mnist(uniform(epochs)).setting, 2).epochs == epochs


@reproduces
def check_equal_seeds_make_pairs() -> None:
    """Equal seeds share rows, projection and initial weights; unequal ones share none of them."""
    one, same, other = (data._cancer(seed, False) for seed in (0, 0, 1))
    assert torch.equal(one.x, same.x)
    assert not torch.equal(one.x, other.x)
    # in few epochs runs may agree by chance
    falling = Setting("cancer", "exp:k=0.001,start=30", epochs=40)
    for seed in range(3):
        assert yu.train(seed, falling) == yu.train(seed, falling)
    louder = [
        yu.train(0, Setting("cancer", f"constant:start={s}", epochs=1, learning_rate=1e-9)).test
        for s in (10, 90)
    ]
    assert louder[0] == louder[1]  # the same initial weights
    with pytest.MonkeyPatch.context() as patch:
        one_split = replace(
            data.TASKS["cancer"], rows=lambda seed, validate: data._cancer(0, validate)
        )
        patch.setitem(data.TASKS, "cancer", one_split)
        still = Setting("cancer", "constant", epochs=1, learning_rate=1e-9)
        starts = {yu.train(seed, still).test for seed in range(6)}
    assert len(starts) > 1


@reproduces
def check_parts_are_disjoint() -> None:
    """No row is in two of training, validation and test, and none is lost."""
    for validate in (False, True):
        for seed in (0, 7):
            parts = data._cancer(seed, validate)
            sizes = (len(parts.y), len(parts.y_valid), len(parts.y_test))
            assert sizes == ((500, 60, 123) if validate else (560, 0, 123))
            everything = torch.cat([parts.x, parts.x_valid, parts.x_test])
            whole = data._cancer(3, False)
            ordered = [
                sorted(map(tuple, rows.tolist()))
                for rows in (everything, torch.cat([whole.x, whole.x_test]))
            ]
            assert ordered[0] == ordered[1]
    parts = data._mnist(0, True)
    assert (len(parts.x), len(parts.x_valid), len(parts.x_test)) == (55_000, 5_000, 10_000)
    assert parts.x_valid.data_ptr() == parts.x.data_ptr() + parts.x.numel() * parts.x.element_size()


@reproduces
def check_plain_training_reaches_what_is_known() -> None:
    """Without privacy Cancer is learnt to the paper's 0.96, and clipping and noise are off."""
    found = [yu.train(seed, Setting("cancer", None, epochs=400)).test[-1] for seed in range(3)]
    assert sum(found) / 3 > 0.94
    assert all(math.isfinite(value) for value in found)


@reproduces
def check_the_target_includes_the_projection() -> None:
    """A run calibrated to an epsilon ends at it with the projection counted in."""
    found = mnist(
        "constant",
        epochs=2,
        first=2000,
        epsilon=3.0,
        sampling="partition",
        batch_size=500,
        clip="flat",
        clip_norm=0.1,
        scale="whitened",
    )(0)
    assert found.epsilon is not None
    assert 3.0 * 0.99 < found.epsilon <= 3.0


# DP-MAC


def _short(claimed: float, **others: object) -> Call:
    """The paper's classifier on few rows, for an epoch."""
    small = dpmac_mnist.classifier(claimed, quick=True).but(
        first=600, batch_size=10, epochs=1, z_steps=1
    )
    return small.but(**others)


@reproduces
def check_runs_of_dpmac_pay_for_their_projection() -> None:
    """What a run says it spent is its plan's guarantee, projection included, at exactly the noise
    asked for.
    """
    for method in ("dpmac", "dpsgd"):
        setting = _short(8.0, method=method).setting
        found = dpmac.train(0, setting)
        assert found.noise == setting.noise == 1.0
        plan = Plan(dpmac._sampler(setting), epochs=1, schedule=dpmac.plan_of(setting).schedule)
        assert found.epsilon == pytest.approx(
            dpmac.plan_of(setting).guarantee(1e-5).epsilon, rel=1e-6
        )
        assert found.epsilon > plan.guarantee(1e-5).epsilon * 1.05


@reproduces
def check_targets_of_dpmac_include_the_projection() -> None:
    """A run calibrated to an epsilon ends at it, projection included."""
    found = _short(2.0, noise=None, epsilon=2.0, pca_noise=8.0)(0)
    assert 2.0 * 0.99 < found.epsilon <= 2.0


@reproduces
def check_the_papers_settings_cost_what_is_known() -> None:
    """Epsilons of Table 2's settings by privacy loss distributions, from an independent script."""
    for epsilon, expected in ((0.5, 0.2708), (2.0, 1.1003), (8.0, 4.4654)):
        plan = dpmac.plan_of(dpmac_mnist.classifier(epsilon).setting)
        assert plan.guarantee(1e-5).epsilon == pytest.approx(expected, rel=2e-3)
    for epsilon, expected in ((1.0, 0.743), (2.0, 1.546), (4.0, 3.162), (8.0, 6.487)):
        by_dpsgd = dpmac.plan_of(usps.autoencoder_by_dpsgd(epsilon).setting)
        assert by_dpsgd.guarantee(1e-5).epsilon == pytest.approx(expected, rel=4e-3)
    for epsilon, expected in ((1.0, 0.745), (2.0, 1.539), (4.0, 3.175), (8.0, 6.422)):
        by_layers = dpmac.plan_of(usps.autoencoder(epsilon).setting)
        assert by_layers.guarantee(1e-5).epsilon == pytest.approx(expected, rel=4e-3)


@reproduces
def check_images_are_split_afresh_and_disjoint() -> None:
    """5,000 images each, in [0, 1], none in both sets; other seeds, other images."""
    one, other, left = (
        dpmac._images(*how) for how in ((0, None, False), (1, None, False), (0, None, True))
    )
    assert len(one.x) == len(one.x_test) == 5000
    assert float(one.x.min()) == 0.0
    assert float(one.x.max()) == 1.0
    assert torch.equal(one.x, one.y)
    seen, held = ({row.tobytes() for row in rows.numpy()} for rows in (one.x, one.x_test))
    # A few images are there twice in the data themselves.
    assert len(seen & held) <= 5
    assert len(seen & {row.tobytes() for row in other.x.numpy()}) < 3500
    assert torch.equal(left.x, one.x)
    assert len(left.x_test) == 1000
    assert len((seen | held) & {row.tobytes() for row in left.x_test.numpy()}) <= 5


@reproduces
def check_settings_are_tried_on_images_held_back() -> None:
    """The last 5,000 of MNIST, none trained on; DP-SGD has as many tries as DP-MAC, and the best is
    so there.
    """
    setting = dpmac_mnist.held_back(_short(2.0, method="dpsgd", noise=None, epsilon=2.0)).setting
    plan, ledger = dpmac.plan_of(setting), Ledger()
    held, whole = (
        dpmac._rows(replace(setting, held=each), 0, ledger, plan) for each in (True, False)
    )
    parts = data.TASKS["mnist"].rows(0, True)
    assert torch.equal(held.y_test, parts.y_valid)
    assert (len(held.x_test), len(whole.x_test)) == (5_000, 10_000)
    every = replace(setting, first=None)
    assert (dpmac.examples_of(every), dpmac.examples_of(replace(every, held=False))) == (
        55_000,
        60_000,
    )
    tried, macs = (
        dpmac_mnist.tries_of_dpsgd(2.0, quick=True),
        dpmac_mnist.tries_of_dpmac(2.0, quick=True),
    )
    assert len(tried) == len(set(tried.values())) == dpmac_mnist.MAC_TRIES + len(macs) - 1
    asked: list[Call] = []

    class MadeUp(Runs):  # type: ignore[misc]
        def __call__(
            self, calls: Iterable[Call], seeds: Sequence[int]
        ) -> dict[Call, list[Outcome]]:
            asked.extend(calls)
            return {call: [Outcome(test=(0.9 + 0.001 * at,))] for at, call in enumerate(asked)}

    rows, best = dpmac_mnist._tried((2.0,), True, MadeUp())
    assert all(each.held for each in asked)
    assert len(rows) == len(tried) + len(macs)
    assert best == (list(macs)[-1], list(tried)[-1])


@reproduces
def check_errors_are_half_sums_over_pixels() -> None:
    """The figure of the paper's table: a grey image for one of noughts is 256 / 8 off."""
    assert float(
        dpmac.half_squares(torch.full((1, 256), 0.5), torch.zeros(1, 256))
    ) == pytest.approx(32.0)


@reproduces
def check_seeds_of_dpmac_make_pairs() -> None:
    """Equal seeds share images, weights and noise, whatever the method; unequal ones none of
    them.
    """
    still = dpmac.train.at(
        dpmac.Setting(
            "usps", 1, 50, 1e-12, "constant:start=1", 1.0, noise=9.0, first=100, z_steps=1, gain=1.0
        )
    )
    found = [still.but(method=method)(seed) for method in ("dpmac", "dpsgd") for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert found[0].test[0] == pytest.approx(found[3].test[0], rel=1e-6)
    assert found[0].test[0] != pytest.approx(found[2].test[0], rel=1e-3)
    louder = still.but(rate=0.01)
    assert louder(0) == louder(0)
    assert louder(0).test != still(0).test


@reproduces
def check_runs_without_noise_say_so() -> None:
    """No epsilon, no noise multiplier, and an error that falls."""
    for method in ("dpmac", "dpsgd"):
        plain = dpmac.Setting(
            "usps", 4, 20, 0.003, "constant:start=1", 1e6, method, first=300, z_steps=3, gain=1.0
        )
        found = dpmac.train(0, plain)
        assert found.epsilon is None
        assert found.noise is None
        assert found.test[-1] < found.test[0]
