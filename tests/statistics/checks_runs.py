"""Named checks of what is chosen, made of it and published of features; mutations must make them
fail.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.events import walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.mechanisms import selection as randomised_module
from privlearn.errors import UnsupportedEvent
from privlearn.methods.statistics import features as rows_module
from privlearn.methods.statistics.classifiers import fisher_weights
from privlearn.methods.statistics.plan import (
    LeastSquaresPlan,
    RowsPlan,
    SelectionPlan,
    StatisticsPlan,
)
from privlearn.publishing import publish, verify
from privlearn.transforms import select as mechanism
from privlearn.transforms.select import SelectFeatures, Statistics
from privlearn_studies.shen2021.published import literal_release
from tests.statistics.checks import (
    ADD,
    EVERY_PLAN,
    STRANGE,
    ZERO,
    B,
    K,
    R,
    carried_out,
    settled,
    some_rows,
    with_last,
)
from tests.support.checks import check, must_raise
from tests.support.transcripts import require_alike, transcript

# What is chosen, and what is made of it


@check
def check_distances_and_t_statistics_choose_what_they_say() -> None:
    """Against class means and variances computed one by one, for three classes of different
    sizes.
    """
    generator = torch.Generator().manual_seed(1)
    y = torch.tensor([0] * 30 + [1] * 50 + [2] * 90)
    x = torch.randn(170, 6, generator=generator, dtype=torch.float64) * torch.tensor(
        [1, 5, 1, 0.1, 2, 1.0]
    )
    x += y[:, None] * torch.tensor([0.0, 1.5, 0.3, 0.1, 0.9, 0.0])
    groups = [x[y == one] for one in range(3)]
    means = [group.mean(0) for group in groups]
    within = sum(len(group) * group.var(0, unbiased=False) for group in groups) / 170
    sums = torch.stack([group.sum(0) for group in groups])
    counts = torch.tensor([len(group) for group in groups]).double()
    found = Statistics(counts, sums, x.square().sum(0), 0.0, 0.0)
    pairs = [(0, 1), (0, 2), (1, 2)]
    distance = torch.stack([(means[a] - means[b]).abs() for a, b in pairs]).amax(0)
    t = torch.stack(
        [
            (means[a] - means[b]).abs() / (within * (1 / counts[a] + 1 / counts[b])).sqrt()
            for a, b in pairs
        ]
    ).amax(0)
    assert (
        mechanism.ranked(found, 6, "distance").tolist()
        == distance.argsort(descending=True).tolist()
    )
    assert mechanism.ranked(found, 6, "t").tolist() == t.argsort(descending=True).tolist()
    assert (
        mechanism.ranked(found, 2, "t").tolist() != mechanism.ranked(found, 2, "distance").tolist()
    )


@check
def check_welch_statistics_have_the_variance_of_each_class() -> None:
    """Against scipy's, for classes of different sizes and spreads; pooled variances of the same
    moments stay.
    """
    generator = torch.Generator().manual_seed(2)
    y = torch.tensor([0] * 40 + [1] * 60 + [2] * 90)
    x = torch.randn(190, 6, generator=generator, dtype=torch.float64) + y[:, None] * torch.linspace(
        0, 1, 6
    )
    x *= torch.tensor([[1, 1, 2, 9, 1, 3], [1, 9, 2, 1, 1, 1], [1, 1, 1, 1, 5, 1.0]])[y]
    counts = torch.tensor([40.0, 60.0, 90.0], dtype=torch.float64)
    member = (y[:, None] == torch.arange(3)).double()
    found = Statistics(counts, member.T @ x, member.T @ x.square(), 0.0, 0.0)
    # scipy's variances are unbiased
    groups = [x[y == one] * math.sqrt((c - 1) / c) for one, c in enumerate(counts)]
    shifts = [x[y == one].mean(0) - group.mean(0) for one, group in enumerate(groups)]
    groups = [group + shift for group, shift in zip(groups, shifts, strict=True)]
    welch = np.abs(
        [
            stats.ttest_ind(groups[a], groups[b], equal_var=False).statistic
            for a, b in ((0, 1), (0, 2), (1, 2))
        ]
    )
    score, _ = mechanism.scored(found, "welch", 1.0)
    np.testing.assert_allclose(score, welch.max(0), rtol=1e-9)
    assert mechanism.ranked(found, 6, "welch").tolist() != mechanism.ranked(found, 6, "t").tolist()
    pooled = Statistics(counts, found.sums, x.square().sum(0), 0.0, 0.0)
    torch.testing.assert_close(found.variances(1.0), pooled.variances(1.0))
    noisy = [
        Statistics(counts, found.sums, found.moments, 0.0, 1e9),
        Statistics(counts, found.sums, pooled.moments, 0.0, 1e9),
    ]
    torch.testing.assert_close(noisy[0].variances(1.0), math.sqrt(3) * noisy[1].variances(1.0))
    torch.testing.assert_close(noisy[0].class_variances(1.0), (1e9 / counts)[:, None].expand(3, 6))
    torch.testing.assert_close(noisy[0].of(torch.tensor([4, 1])).moments, found.moments[:, [4, 1]])


def toy(seed: int, n: int = 400, p: int = 2000, m: int = 20) -> tuple[Tensor, Tensor]:
    """Two classes of n rows; the first m features have means 1/2 and -1/2, all deviate by 1/2;
    values in [-1, 1].
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * n, p, generator=generator) / 2
    y = torch.arange(2 * n) % 2
    x[:, :m] += 0.5 - y[:, None].float()
    return x.clamp(-1, 1), y


@check
def check_recall_is_that_of_the_design() -> None:
    """Of 20 features among 2000, 400 rows a class, rho 0.5: by means 0.95, by Gumbel noise all of
    them.
    """
    recalls = {}
    for way in ("means", "gumbel"):
        found = []
        for seed in range(3):
            plan = pv.statistics.SelectionPlan(
                2, 2000, 20, math.sqrt(2000), 1.0, way=way
            ).calibrate(rho=0.5)
            chosen = pv.statistics.select_features(
                plan, toy(seed), streams=pv.Streams.new(seed)
            ).indices
            found.append(float((chosen < 20).float().mean()))
        recalls[way] = sum(found) / len(found)
    assert recalls["gumbel"] == 1.0, recalls
    assert 0.85 <= recalls["means"] <= 1.0, recalls
    usual = pv.statistics.SelectionPlan(2, 2000, 20, math.sqrt(2000), 1.0, noise_multiplier=1.0)
    assert usual.selection.by_gumbel
    assert not replace(usual, keep=1500).selection.by_gumbel


@check
def check_the_fisher_classifier_is_the_independence_rule() -> None:
    """Without noise its scores are log-posteriors of independent normal features, up to what all
    classes share.
    """
    x, y = some_rows(300)
    x = (x / (1 + x.abs())) + y[:, None] * torch.tensor([0.5, 0.0, 0.2, 0.0])
    plan = settled(keep=4, row_norm=5.0, noise_multiplier=1e-6, coordinate_bound=None)
    model = pv.statistics.fisher(plan, (x, y), streams=pv.Streams.new(0)).model
    groups = [x[y == one] for one in range(K)]
    within = sum(len(group) * group.var(0, unbiased=False) for group in groups) / len(x)
    truth = torch.stack(
        [
            math.log(len(group) / len(x))
            + torch.distributions.Normal(group.mean(0), within.sqrt()).log_prob(x).sum(1)
            for group in groups
        ],
        dim=1,
    )
    scores = model(x).detach().double()
    apart = (scores - scores[:, :1]) - (truth - truth[:, :1])
    assert float(apart.abs().max()) < 1e-2, apart.abs().max()


@check
def check_empty_classes_and_constant_features_meet_a_floor() -> None:
    """No rows of a class, a feature that never moves, nothing finite at all: finite weights, and
    never an error.
    """
    x, y = some_rows(30)
    x[:, 1] = 0.25
    cases = [(x, torch.zeros(30, dtype=torch.int64)), (torch.full((30, 4), math.nan), y), (x, y)]
    for plan in (
        *EVERY_PLAN[::3],
        settled(noise_multiplier=1e-4, keep=4),
        settled(noise_multiplier=1e3),
    ):
        for data in cases:
            found = carried_out(plan, data)
            if not isinstance(plan, SelectionPlan):
                model = found.model if not isinstance(plan, RowsPlan) else found.classifier().model
                assert all(bool(value.isfinite().all()) for value in model.state_dict().values()), (
                    plan
                )
                assert bool(model(torch.randn(5, 4)).isfinite().all())
    nothing = Statistics(torch.zeros(2), torch.zeros(2, 4), torch.zeros(4), 0.0, 0.0)
    weight, bias = fisher_weights(nothing, settled())
    assert bool(weight.isfinite().all())
    assert bool(bias.isfinite().all())


@check
def check_randomised_labels_are_undone_in_expectation() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 6000 + [1] * 3000 + [2] * 3000)
    told = randomised_module.randomised(
        y,
        torch.ones_like(y).bool(),
        epsilon=1.0,
        categories=3,
        adjacency=ZERO,
        ledger=Ledger(),
        stream=pv.Streams.new(1).noise,
    )
    values = torch.randn(12000, generator=generator).double() + y
    found = torch.stack([values[told == one].sum() for one in range(3)])
    true = torch.stack([values[y == one].sum() for one in range(3)])
    assert float((rows_module._undone(found, 1.0) - true).abs().max()) < 600
    assert float((found - true).abs().max()) > 1500


# What leaves, and what is said of it


def data_with(last: Any, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    if last is None and adjacency is not ADD:
        last = (torch.full((4,), math.nan, dtype=torch.float64), 0)
    return with_last(last)


@check
def check_neighbouring_feature_releases_look_the_same() -> None:
    """By record and replay, for every plan, kind of neighbour and row: published files too."""
    plans = [
        plan
        for plan in EVERY_PLAN
        if isinstance(plan, LeastSquaresPlan)
        or (
            plan.way == "means"
            and plan.criterion == "distance"
            and getattr(plan, "labels", "public") == "public"
        )
    ]
    for number, plan in enumerate(plans):

        def training(data: Any, plan: StatisticsPlan = plan) -> Any:
            def run(streams: Any, folder: Path) -> None:
                seen: list[Any] = streams.noise._seen
                result = carried_out(plan, data, streams=streams)
                seen.append(("ledger", result.ledger.event, repr(result.ledger)))
                if isinstance(plan, SelectionPlan):
                    seen.append(result.indices.tolist())
                    return
                model = result.classifier() if isinstance(plan, RowsPlan) else result
                publish.publish(model, folder / "model", delta=1e-5, model_spec="linear", classes=K)

            return run

        base = transcript(training(data_with(None, plan.neighbours)))
        assert base.released, base.seen[-3:]
        for place in range(len(STRANGE)):
            if number < 2 or (place + number) % 3 == 0:
                row, label = STRANGE[place]
                # Where labels are public, neighbours have the same.
                last = (
                    torch.tensor(row, dtype=torch.float64),
                    0 if isinstance(plan, RowsPlan) else label,
                )
                found = transcript(training(data_with(last, plan.neighbours)), replay=base)
                require_alike(base, found, (plan, row))


@check
def check_feature_certificates_are_recomputed() -> None:
    """A published classifier verifies and predicts the same; another keep, bound of the label or
    share is found.
    """
    x, y = some_rows(60)
    for plan in (
        settled(),
        settled(way="gumbel"),
        settled(RowsPlan, labels="randomised"),
        settled(LeastSquaresPlan),
    ):
        result = carried_out(plan, (x, y))
        result = result.classifier() if isinstance(plan, RowsPlan) else result
        with tempfile.TemporaryDirectory() as name:
            out = publish.publish(
                result, Path(name) / "model", delta=1e-5, model_spec="linear", classes=K
            )
            found = verify.verify(out)
            assert found.ok, found.problems
            assert not any("number of examples" in warning for warning in found.warnings)
            assert f"features kept | {plan.keep} of 4" in (out / "README.md").read_text()
            model = pv.load_model(out)
        assert torch.equal(model(x.float()), result.model(x.float()))
        assert result.plan.event() == result.ledger.event
        for forged in (
            {"noise_multiplier": 2.0},
            *({"selection_share": 0.4} for _ in range(not getattr(plan, "in_one_release", True))),
        ):
            assert replace(plan, **forged).event() != result.ledger.event


@check
def check_the_literal_release_is_never_published() -> None:
    x, y = some_rows(60)
    for unsquared in (False, True):
        found = literal_release(
            (x, y), classes=K, keep=2, epsilon=1.0, delta=1e-5, unsquared=unsquared
        )
        with tempfile.TemporaryDirectory() as name:
            model, out = found.classifier(), Path(name) / "model"
            must_raise(
                UnsupportedEvent,
                lambda model=model, out=out: publish.publish(model, out, delta=1e-5),
            )  # type: ignore[misc]
            assert not list(Path(name).iterdir())
    assert all(
        reason in str(literal_release.__doc__)
        for reason in ("1.", "2.", "3.", "4.", "5.", "6.", "NonPrivate")
    )


# In front of training, and in scikit-learn


@check
def check_a_selection_before_training_is_in_the_price() -> None:
    """Its event is first, its transform is published, a ledger has both; labels of other classes
    are refused first.
    """
    x, y = some_rows(30)
    x = x.float() / (1 + x.float().abs())
    for way in ("means", "gumbel"):
        select = SelectFeatures(2, 4.0, K, R, B, way=way)
        plan = pv.Plan(
            pv.Poisson(0.3),
            epochs=1,
            schedule=pv.schedules.Constant(start=2.0),
            front=(select,),
            examples=30,
        )
        assert math.isclose(zcdp.rho(select.event()), 0.5 / 16)
        assert next(walk(plan.event())) == next(walk(select.event()))
        result = pv.dpsgd(
            plan,
            torch.nn.Linear(2, K),
            torch.nn.CrossEntropyLoss(reduction="none"),
            (x, y),
            streams=pv.Streams.new(0),
        )
        assert result.ledger.event == plan.event()
        with tempfile.TemporaryDirectory() as name:
            out = publish.publish(result, Path(name) / "model", delta=1e-5)
            assert verify.verify(out).ok
            assert "selection of 2 features" in (out / "README.md").read_text()
        assert result.plan == plan
        ledger = Ledger()
        wrong = lambda plan=plan, ledger=ledger: pv.dpsgd(  # noqa: E731
            plan,
            torch.nn.Linear(2, 9),
            torch.nn.CrossEntropyLoss(reduction="none"),
            (x, y + 3),
            ledger=ledger,
        )
        must_raise(pv.errors.BadInput, wrong)
        assert not list(walk(ledger.event))
