"""Planted bugs in boosting, each of which a named check must catch."""

from __future__ import annotations

from privlearn.methods.boosting import plan, rounds, sums, targets
from tests.support.mutant import Mutant, suite_of

MOVES = "check_one_row_moves_a_histogram_by_at_most_the_sensitivity"
SUMS = "check_histograms_are_the_sums_of_clipped_rows"
PRICE = "check_boosting_costs_what_its_plan_says"
NOISE = "check_noise_of_histograms_has_the_stated_scale"
SPLITS = "check_bins_and_splits_follow_from_the_plan"
SEEN = "check_neighbouring_boosting_runs_look_the_same"

_RELEASE = "release(sums, noise_multiplier=plan.release_noise, ledger=ledger, stream=stream)"

MUTANTS = [
    Mutant(
        "gradients are not clipped",
        sums.gradient_histogram,
        "limit / lengths.where(usable, 1.0).clamp(min=limit)",
        "torch.ones_like(lengths)",
        MOVES,
    ),
    Mutant(
        "gradients are clipped and curvatures are not",
        sums.gradient_histogram,
        "torch.linalg.vector_norm(rows, dim=1, keepdim=True)",
        "torch.linalg.vector_norm(rows[:, : gradients.shape[1]], dim=1, keepdim=True)",
        MOVES,
    ),
    Mutant(
        "an exchanged row moves a histogram by one norm",
        sums.gradient_histogram,
        "adjacency.sum_sensitivity(1.0)",
        "1.0",
        MOVES,
    ),
    Mutant(
        "a row without a target reaches the sums",
        sums.gradient_histogram,
        "usable = lengths.isfinite()",
        "usable = torch.ones_like(lengths, dtype=torch.bool)",
        MOVES,
    ),
    Mutant(
        "an empty row counts",
        rounds._require_rows,
        "np.where(usable.numpy(), y, math.nan)",
        "y",
        MOVES,
    ),
    Mutant(
        "all rows, whoever was drawn, are in one cell",
        sums.gradient_histogram,
        "torch.from_numpy(cells[indices])",
        "torch.from_numpy(0 * cells[indices])",
        SUMS,
    ),
    Mutant(
        "curvatures without their weight",
        sums.gradient_histogram,
        "CURVATURE_WEIGHT * curvatures[indices]",
        "curvatures[indices]",
        SUMS,
    ),
    Mutant(
        "curvatures are twice what they are",
        targets.Labels.derivatives,
        "weight * p * (1 - p)",
        "2 * weight * p * (1 - p)",
        "check_derivatives_are_those_of_the_losses",
    ),
    Mutant(
        "histograms are released in every pass and charged in one",
        plan.BoostingPlan.releases,
        "self.passes * (len(self.columns) + self.trees)",
        "len(self.columns) + self.trees",
        PRICE,
    ),
    Mutant(
        "every second histogram is for free",
        rounds._rounds,
        "ledger=ledger, stream=stream",
        (
            'ledger=ledger if number % 2 else type("", (), {"charge": lambda *_: None})(), '
            "stream=stream"
        ),
        PRICE,
    ),
    Mutant(
        "every release has the noise of the whole",
        plan.BoostingPlan.release_noise,
        "self.noise * math.sqrt(self.releases)",
        "self.noise",
        PRICE,
    ),
    Mutant(
        "noise for gradients that are as short as one",
        rounds._rounds,
        _RELEASE,
        "release(__import__('dataclasses').replace(sums, sensitivity=0.5), "
        "noise_multiplier=plan.release_noise, ledger=ledger, stream=stream)",
        NOISE,
    ),
    Mutant(
        "the plan is not held to the ledger",
        rounds.boost,
        "Session(plan, ledger, streams)",
        "Session(plan, None, streams)",
        "check_boosting_is_refused_before_noise_is_drawn",
    ),
    Mutant(
        "bins are cut at the rows' quantiles",
        rounds.boost,
        "network = _empty(plan)",
        "network = _empty(plan); network.edges[0, : plan.bins - 1] = "
        "torch.as_tensor(data.x)[:, 0].float().nan_to_num().clamp(-9, 9)"
        ".quantile(torch.linspace(0.2, 0.8, plan.bins - 1))",
        SPLITS,
    ),
    Mutant(
        "bounds are those of the rows",
        plan.columns_of,
        "dataset.low, dataset.high",
        "dataset.x.min(0), dataset.x.max(0)",
        SPLITS,
    ),
    Mutant(
        "trees are split by the data's length",
        rounds.boost,
        "network = _empty(plan)",
        "plan = __import__('dataclasses').replace(plan, split_seed=len(data.x)); "
        "network = _empty(plan)",
        SPLITS,
    ),
    Mutant(
        "the base rate is taken from the targets",
        rounds.boost,
        "_fill(plan, network, scores)",
        "_fill(plan, network, [part + float(np.nanmean(y)) for part in scores])",
        SEEN,
    ),
    Mutant(
        "exact curvatures reach the scores",
        rounds._rounds,
        f"((first, second),) = {_RELEASE}",
        f"exact = sums.values[1].clone(); ((first, second),) = {_RELEASE}; second = exact",
        SEEN,
    ),
    Mutant(
        "counts of leaves stand in the certificate",
        rounds.boost,
        'facts={"noise"',
        ('facts={"labels": [str(np.bincount(network.cells(bins, 0).numpy()).tolist())], "noise"'),
        SEEN,
    ),
    Mutant(
        "a row without numbers is an error in the run",
        rounds._rounds,
        "for _ in range(plan.passes):",
        "if bool(np.isnan(y).any()): raise ValueError('row')\n    for _ in range(plan.passes):",
        SEEN,
    ),
    Mutant(
        "weights are not bounded",
        sums.gradient_histogram,
        ".clamp(0, 1)",
        "",
        "check_weights_lie_inside_the_clip",
    ),
    Mutant(
        "weights are left out",
        rounds._rounds,
        "weights=weights",
        "weights=None",
        "check_weights_lie_inside_the_clip",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError]
)
