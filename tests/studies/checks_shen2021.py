"""Named checks of how the studies of feature selection are made: costs, who is private, and what
choices look at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from privlearn.core.streams import Streams
from privlearn.data.named import load
from privlearn.methods.statistics.advice import advised
from privlearn.methods.statistics.plan import FisherPlan
from privlearn.models.networks import build
from privlearn_studies.data import TASKS
from privlearn_studies.runs import Outcome
from privlearn_studies.shen2021 import grids, published, recovery, releases, sizes, toy
from privlearn_studies.shen2021.grids import Grid, Tried
from privlearn_studies.shen2021.releases import ReleaseSetting
from privlearn_studies.shen2021.toy import Sparse
from tests.studies.checks import reproduces
from tests.support.checks import check

CACHED = (releases.parts, releases._whole, releases.plan_of, releases._order, recovery.plan_of)


@contextmanager
def with_digits() -> Iterator[None]:
    """The embedded digits as the data of a study: 1,437 rows of 64 numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(releases.BOUNDS, "digits", (4.0, 1.0))
        yield


def on_digits(release: str = "rows", **others: object) -> ReleaseSetting:
    return replace(ReleaseSetting("digits", release, 3.0, (10, 64)), **others)  # type: ignore[arg-type]


GRID = Grid("digits", 64, 10, 1437, (1.0, 3.0), (10, 20, 64), (50, None), 2, (None,), (10,))


# The toy model


@check
def check_errors_of_the_toy_are_shares_of_rows() -> None:
    """The exact error is what is counted on many fresh rows, noise included; the closed forms are
    maths by hand.
    """
    model = Sparse(30, 40)
    x, y = model.draw(np.random.default_rng(1))
    indices = np.arange(5, 25)
    weight, bias = toy.fisher_of(x[:, indices], y)
    told = model.error(weight, bias, indices, 4.0)
    many, truth = replace(model, rows=40_000).draw(np.random.default_rng(2))
    many = many + 2 * torch.from_numpy(np.random.default_rng(3).standard_normal(many.shape))
    said = (many[:, indices] @ weight.double().T + bias).argmax(1)
    assert told == pytest.approx(float((said != truth).double().mean()), abs=0.006)
    whole = Sparse()
    assert [whole.bayes(10, noise**2) for noise in (0.0, 2.0)] == pytest.approx(
        [0.056923, 0.239750], abs=1e-6
    )
    assert [whole.bayes(kept, 0.0) for kept in (10, 1000)] == [whole.bayes(10, 0.0)] * 2
    # sqrt(2) / 2 = sqrt(10 / 5) / 2
    assert whole.bayes(2, 0.0) == pytest.approx(0.239750, abs=1e-6)


@check
def check_learned_means_cost_what_the_closed_form_says() -> None:
    """Measured errors are within a hundredth of the closed form, from few features to all, with and
    without noise.
    """
    model = Sparse(400, 200)
    for kept, noise in ((10, 0.0), (100, 0.0), (400, 0.0), (400, 2.0)):
        errors = []
        for seed in range(6):
            rng = np.random.default_rng(seed)
            x, y = model.draw(rng)
            x = x + noise * torch.from_numpy(rng.standard_normal(x.shape))
            at = np.arange(kept)
            errors.append(model.error(*toy.fisher_of(x[:, at], y), at, noise**2))
        assert float(np.mean(errors)) == pytest.approx(model.learned(kept, noise**2), abs=0.01), (
            kept,
            noise,
        )
    assert model.learned(400, 0.0) > model.bayes(400, 0.0) + 0.02


@check
def check_rows_of_the_toy_are_released_at_the_epsilon() -> None:
    """Epsilon 10 together with the selection; noise in proportion to the root of the number of
    features.
    """
    for kept in (1, 50, 1000):
        for plan in (toy.plan_of(kept, 1000), toy.plan_of(kept, kept, selects=False)):
            assert plan.guarantee(1e-5).epsilon == pytest.approx(10.0, rel=3e-3)
            assert plan.guarantee(1e-5).epsilon <= 10.0
            assert plan.rest_norm == pytest.approx(1.5 * math.sqrt(kept))
    assert toy.noise_std(100) == pytest.approx(10 * toy.noise_std(1), rel=1e-3)


@check
def check_recovery_is_how_often_all_signals_lead() -> None:
    """The closed form is counted on scores that are drawn, with one variance and with many; the
    proof's bound is below it, and near it where it is near 1.
    """
    rng = np.random.default_rng(0)
    for law in (
        recovery.Scores(1.0, 0.25),
        recovery.Scores(1.0, 0.15),
        recovery.Scores(1.0, 0.2, 0.6, 0.4),
    ):
        means = np.where(np.arange(60) < 4, law.gap, 0.0)
        d = rng.normal(means, law.deviation, (6000, 60))
        squares = np.maximum(1 + law.spread * rng.standard_normal(d.shape), law.floor)
        scores = np.abs(d) / np.sqrt(squares)
        counted = float((scores[:, :4].min(1) > scores[:, 4:].max(1)).mean())
        said, least = law.recovery(60, 4), law.bound(60, 4)
        assert said == pytest.approx(counted, abs=0.02), law
        assert least <= said, law
    x = np.linspace(0.0, 1.5, 3001)
    above, below = stats.norm.sf(x / 0.15), stats.norm.cdf((x - 1) / 0.15)
    wrong = 56 * 2 * above + 4 * (below - stats.norm.cdf((-x - 1) / 0.15))
    assert recovery.Scores(1.0, 0.15).bound(60, 4) == pytest.approx(1 - wrong.min(), abs=1e-4)
    assert recovery.Scores(0.0, 1.0).recovery(12, 3) == pytest.approx(1 / math.comb(12, 3), rel=0.1)


@check
def check_theory_has_the_noise_of_the_release() -> None:
    """The law's deviations are those of what `select_features` releases at that many rows."""
    rows = 400
    x, y = Sparse(500, rows // 2, 10).draw(np.random.default_rng(0))
    for criterion in ("distance", "t"):
        plan = recovery.plan_of(criterion)
        assert 1.99 < plan.guarantee(1e-5).epsilon <= 2.0
        out = recovery.select_features(plan, (x, y), streams=Streams.new(0)).statistics
        assert out is not None
        law = recovery.scores_of(criterion, rows)
        noise = math.sqrt(2) * out.sum_std / (rows / 2)
        assert law.deviation == pytest.approx(math.hypot(noise, math.sqrt(4 / rows)))
        assert law.floor == pytest.approx(out.moment_std / rows)
    assert recovery.scores_of(None, rows).deviation == pytest.approx(0.1)


# Released features


@check
def check_releases_cost_what_is_stated() -> None:
    """The ledger ends at the epsilon of the setting; where a part is not private no epsilon is
    told.
    """
    with with_digits():
        for release in ("rows", "statistics"):
            assert releases.release(0, on_digits(release)).epsilons == pytest.approx(
                (3.0, 3.0), rel=3e-3
            )
        assert releases.release(0, on_digits("literal", keeps=(10,))).epsilons == (0.0,)
        assert releases.release(0, on_digits(chosen="without privacy")).epsilons[0] == 0.0
        assert releases.release(0, on_digits("statistics", epsilon=None)).epsilons == (0.0, 0.0)
        found = releases.head(0, data="digits", epsilon=3.0)
    assert found.epsilon == pytest.approx(3.0, rel=3e-3)


@check
def check_private_rows_are_not_chosen_by() -> None:
    """As many rows of each class as asked for, others to choose by, the data's test rows; other
    seeds, other rows.
    """
    with with_digits():
        found, other = (releases.parts("digits", 50, seed) for seed in (0, 1))
        whole = releases.parts("digits", None, 0)
        data = load("digits")
    assert np.bincount(np.asarray(found.private.y)).tolist() == [50] * 10
    scaled = {
        row.tobytes()
        for row in (np.asarray(found.private.x).reshape(500, -1) / 16).astype(np.float32)
    }
    assert not scaled & {row.tobytes() for row in found.held.numpy()}
    assert len(found.held) == len(data.x) - 500
    assert len(whole.private.x) == len(data.x)
    assert not np.array_equal(found.private.x, other.private.x)
    assert len(found.test) == len(data.x_test)
    assert float(found.test.max()) == 1.0


@check
def check_features_without_privacy_are_those_of_the_private_rows() -> None:
    """The largest distances of class means by numpy, over the private rows alone."""
    with with_digits():
        setting = on_digits(per_class=50)
        data = releases.parts("digits", 50, 3).private
        best = releases.best_features(setting, 3, 10).tolist()
    x, y = np.asarray(data.x).reshape(500, -1) / 16, np.asarray(data.y)
    x = x * np.minimum(1, 4.0 / np.linalg.norm(x, axis=1))[:, None]
    means = np.stack([x[y == one].mean(0) for one in range(10)])
    assert best == np.argsort(means.min(0) - means.max(0))[:10].tolist()


@check
def check_a_choice_without_privacy_leaves_all_for_the_rows() -> None:
    """The same clipping, and noise as if nothing had been spent on choosing; a tenth of rho less
    otherwise.
    """
    with with_digits():
        given, chosen = (
            releases.plan_of(on_digits(chosen=how, way="means"), 10)
            for how in ("without privacy", "privately")
        )
        found = releases.release(0, on_digits(chosen="without privacy"))
        equal = releases.plan_of(on_digits(chosen="without privacy, equal noise", way="means"), 10)
    assert given.rest_norm == chosen.rest_norm == equal.rest_norm
    assert equal.rest_noise == pytest.approx(chosen.rest_noise)
    assert chosen.rest_noise / given.rest_noise == pytest.approx(math.sqrt(1 / 0.9), rel=3e-3)
    assert found.noise[0] == pytest.approx(given.rest_noise * given.rest_norm)


@check
def check_the_published_noise_is_the_published_noise() -> None:
    """The largest norm times sqrt(2 ln(1/delta)) over epsilon, of the features of each
    criterion.
    """
    with with_digits():
        x = np.asarray(load("digits").x).reshape(1437, -1) / 16
        for criterion in ("distance", "t", "welch"):
            found = releases.release(0, on_digits("literal", keeps=(10,), criterion=criterion))
            best = releases.best_features(on_digits(criterion=criterion), 0, 10)
            if criterion == "distance":
                y = np.asarray(load("digits").y)
                means = np.stack([x[y == one].mean(0) for one in range(10)])
                best = torch.from_numpy(np.argsort(means.min(0) - means.max(0))[:10].copy())
            longest = x[:, best.numpy()].sum(1).max()
            assert found.noise[0] == pytest.approx(
                longest * math.sqrt(2 * math.log(1e5)) / 3.0, rel=1e-5
            )
        # Rows to be classified are not cut short, since none that were learned from are.
        told = published.literal_release(
            releases._whole("digits"),
            classes=10,
            keep=10,
            epsilon=3.0,
            delta=1e-5,
            streams=Streams.new(0),
        )
    assert told.plan.rest_norm == pytest.approx(told.noise_std * 3.0 / math.sqrt(2 * math.log(1e5)))


def _found(seeds: int = 2) -> Tried:
    """Made-up outcomes: on test rows 20 features are best, on others 10."""
    outcome = Outcome(
        test=(0.5, 0.9, 0.6), held=(0.8, 0.3, 0.2), noise=(1.0,) * 3, epsilons=(1.0,) * 3
    )
    settings = [GRID.row(1.0), GRID.row(1.0, "t"), *GRID.statistics(1.0, None)]
    heads = {GRID.head(1.0, None): [Outcome(test=0.9, epsilon=1.0)] * seeds}
    return Tried(GRID, {one: [outcome] * seeds for one in settings}, heads, seeds)


@check
def check_what_is_best_is_so_on_rows_that_are_not_tested_on() -> None:
    found = _found()
    best = found.best([GRID.row(1.0)])
    assert (best.keep, best.mean) == (10, 0.5)
    assert found.selected(1.0, None).keep == 10
    assert found.head(1.0, None) == [0.9, 0.9]
    assert found.everything(1.0, None) == (0.6, 0.6)


@check
def check_the_noise_in_a_mean_is_a_public_number() -> None:
    """z k sqrt(p) / n, of rows of either number."""
    with with_digits():
        releases.BOUNDS["digits"] = (4.0, 1.0)
        noise = releases.plan_of(on_digits("statistics", epsilon=1.0), 64).noise
        assert GRID.loudness(1.0, None) == pytest.approx(noise * 10 * 8 / 1437)
        assert GRID.loudness(1.0, 50) == pytest.approx(noise * 10 * 8 / 500)


@check
def check_each_number_of_features_is_its_own_release() -> None:
    """Rows of more features are clipped to more, with more noise; what is kept of 64 is 64."""
    with with_digits():
        noise = releases.release(0, on_digits(keeps=(10, 40))).noise
    assert noise[1] / noise[0] == pytest.approx(2.0, rel=0.1)
    grid = grids.GRIDS["dfs-cifar10"]
    assert (grid.keeps[-1], grid.seeds, grid.epsilons) == (
        grid.features,
        10,
        (0.5, 1.0, 2.0, 5.0, 10.0),
    )


@check
def check_advice_goes_by_public_numbers_and_keeps_the_target() -> None:
    """A quarter of the features from t = z k sqrt(p) / n = 0.4 on, at the plan's epsilon; rows
    protect their labels.
    """
    plan = FisherPlan(10, 1000, 1000, 6.0, 1.0).calibrate(epsilon=1.0, delta=1e-5)
    limit = plan.noise * 10 * math.sqrt(1000) / 0.4
    few = advised(plan, math.floor(limit)).plan
    assert few.keep == 250
    assert 0.997 <= few.guarantee(1e-5).epsilon <= 1.0
    assert few.selection.by_gumbel
    assert not advised(plan, math.ceil(limit)).plan.selects
    assert not advised(plan, 50_000).plan.selects
    rows = advised(plan, 8).plan
    assert rows.guarantee(1e-5).epsilon <= 1.0
    assert rows.label_epsilon is not None
    grid = grids.GRIDS["dfs-cifar10"]
    assert grid.rule(0.5, 500).keeps == (256,)
    assert grid.rule(2.0, None) == grid.statistics(2.0, None)[0]


# Larger networks


@check
def check_networks_have_the_papers_sizes() -> None:
    """26 and 52 thousand parameters; the smaller one is the network called `cnn`."""
    counts = []
    for model in (sizes._SMALL, sizes._LARGE):
        net = sizes.network(model, np.random.default_rng(0))
        counts.append(sum(own.numel() for own in net.parameters()))
        assert net(torch.zeros(3, 784)).shape == (3, 10)
    assert counts == [26_010, 52_094]
    usual = build("cnn", (28, 28), 10, np.random.default_rng(0))
    own = sizes.network(sizes._SMALL, np.random.default_rng(0))
    x = torch.rand(2, 784, generator=torch.Generator().manual_seed(0))
    assert torch.equal(usual(x.view(2, 28, 28)), own(x))
    assert not torch.equal(own(x), sizes.network(sizes._SMALL, np.random.default_rng(1))(x))


@check
def check_rates_are_chosen_on_held_back_images() -> None:
    runs = {10.0: [Outcome(test=0.9, held=0.5)] * 2, 20.0: [Outcome(test=0.4, held=0.6)] * 2}
    size = sizes.Size("mlp:10", 10, 1.0, runs)
    assert (size.best, size.test(), size.test(10.0)) == (20.0, [0.4, 0.4], [0.9, 0.9])


@reproduces
def check_sizes_cost_what_is_stated_and_hold_images_back() -> None:
    """The ledger's epsilon; 5,000 of the training images are not trained on; equal seeds, equal
    runs.
    """
    setting = sizes.train.at(model="mlp:10", epsilon=2.0, rate=10.0, epochs=1, first=500)
    found = setting(0)
    assert found.epsilon == pytest.approx(2.0, rel=3e-3)
    assert found == setting(0)
    assert found != setting(1)
    rows = TASKS["mnist"].rows(0, True)
    assert (len(rows.x), len(rows.x_valid), len(rows.x_test)) == (55_000, 5000, 10_000)
