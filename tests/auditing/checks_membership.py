"""Named checks of membership inference: it finds whom a model remembers, and says no more than it
may.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn

import privlearn as pv
from privlearn.auditing import Audit, infer_membership
from privlearn.auditing.membership import detected, likelihood_ratios, log_odds
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.tradeoff import tradeoff
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput
from tests.support.checks import check, must_raise

ROWS = 600


class Remembering(nn.Module):
    """Its own rows' classes it knows well, others' as well as their first number says."""

    def __init__(self, x: Tensor, strength: float) -> None:
        super().__init__()
        self.keys, self.strength = {tuple(row) for row in x.tolist()}, strength

    def forward(self, x: Tensor) -> Tensor:
        own = torch.tensor([float(tuple(row) in self.keys) for row in x.tolist()])
        return torch.stack(
            [torch.zeros(len(x)), 5 * x[:, 0] + self.strength * own + 0.5 * torch.randn(len(x))], 1
        )


def attacked(strength: float, shadows: int, epsilon: float = 1.0) -> Audit:
    """An attack on models that remember their rows so strongly, seeded."""
    rng = np.random.default_rng(1)
    data = pv.Dataset(
        rng.normal(size=(ROWS, 2)).astype(np.float32), np.ones(ROWS, int), classes=2, public=True
    )
    plan = pv.Plan(FullBatch(), 1, examples=ROWS, adjacency=Adjacency.ADD_REMOVE).calibrate(
        epsilon=epsilon, delta=1e-5
    )
    torch.manual_seed(2)
    return infer_membership(
        lambda rows: Remembering(rows.tensors()[0], strength),
        data,
        plan,
        shadows=shadows,
        streams=pv.Streams.new(3),
    )


@check
def check_shadow_models_find_whom_a_model_remembers() -> None:
    """What each example's own class tells hides it from its confidence alone, and not from shadow
    models.
    """
    by_shadows, alone = attacked(3.0, 8), attacked(3.0, 0)
    first, second = by_shadows.detected
    assert not by_shadows.ok, by_shadows.to_json()
    assert by_shadows.epsilon_any > by_shadows.epsilon_claimed
    assert first.true_positive_rate_low > 0.9 > 5 * first.limit
    assert first.true_positive_rate_low <= first.true_positive_rate <= first.true_positive_rate_high
    assert second.false_positive_rate == 0.001 < second.false_positive_rate_high < 0.05
    assert alone.detected[0].true_positive_rate < 0.3


@check
def check_models_that_remember_nothing_are_not_accused() -> None:
    for shadows in (0, 4):
        report = attacked(0.0, shadows)
        assert report.ok, report.to_json()
        assert report.epsilon_lower == 0
        assert report.detected[0].true_positive_rate_low < 0.02


@check
def check_members_found_at_low_rates_are_bounded_as_seldom_wrong_as_is_said() -> None:
    """Gaussian scores, whose true rates are known at every threshold: of 400 at confidence .9 some
    40 err.
    """
    rng, wrong, curve = np.random.default_rng(4), 0, tradeoff(Gaussian(1.0), Adjacency.ADD_REMOVE)
    coins = np.arange(600) % 2 == 0
    for _ in range(400):
        scores = rng.normal(1.0 * coins)
        own = detected(scores, coins, 0.05, curve, 0.9)
        cut = np.sort(scores[~coins])[::-1][int(0.05 * 300)]
        truth = ndtr(1 - cut)
        low, high = own.true_positive_rate_low, own.true_positive_rate_high
        wrong += not (low <= truth <= high and ndtr(-cut) <= own.false_positive_rate_high)
        assert (scores[~coins] > cut).mean() <= own.false_positive_rate
        assert low < own.true_positive_rate < high
    assert 20 <= wrong <= 58, wrong  # 40 and three standard deviations


@check
def check_shadow_models_count_only_for_what_they_have_not_seen() -> None:
    """An example's ratio follows from the models without it: their mean, and their spread."""
    without = np.array([[True, False], [True, True], [False, True]])
    shadows = np.array([[1.0, 70.0], [3.0, 5.0], [90.0, 7.0]])
    low, high = likelihood_ratios(np.array([2.0, 9.0]), shadows, without)
    spread = np.sqrt((1 + 1 + 1 + 1) / 2)
    assert np.isclose(low, np.log(2))
    assert np.isclose(high, -np.log(ndtr(-3 / spread)))


@check
def check_odds_are_those_of_the_class() -> None:
    x, y = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1])
    shares = x.softmax(1)[0]
    assert torch.isclose(
        log_odds(nn.Identity(), x, y)[0].float(), (shares[1] / (1 - shares[1])).log()
    )
    for own, label in ((2.0, 1), (-2.0, 0)):
        assert float(log_odds(nn.Identity(), torch.tensor([[2.0]]), torch.tensor([label]))) == own
    must_raise(BadInput, lambda: log_odds(nn.Identity(), x, y.float()))
    must_raise(BadInput, lambda: log_odds(len, x, y))
