"""Planted bugs of the accounting, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import accounting_checks  # noqa: F401 - registers its checks

from privlearn.accounting import (
    accountant,
    budget,
    comparisons,
    filters,
    mechanisms,
    pairs,
    partition,
    pld,
    trees,
    zcdp,
)
from privlearn.accounting import rdp as accounting_rdp

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

from privlearn.accounting import rdp

MUTANTS = [
    Mutant("the example's own batch is not weighted", partition._by_fourier, "rfft(mass * values, size)",
           "rfft(mass, size)", "check_partitions_have_their_golden_prices"),
    Mutant("halves of a split are lost", partition._double, "+= shares[k] * mass", "+= 0 * mass",
           "check_masses_are_kept"),
    Mutant("folded tails are forgotten", partition._trim, "kept[0] += mean / x[low]", "kept[0] += 0.0",
           "check_masses_are_kept"),
    Mutant("only one direction is read", pld.Composition.epsilon, "max(self.epsilons(delta))",
           "min(self.epsilons(delta))", "check_partitions_have_their_golden_prices"),
    Mutant("a law composed once for all its steps", pld._power, "fourier_power(rfft(folded), n)", "rfft(folded)",
           "check_sampling_has_its_golden_prices"),
    Mutant("the sampling rate squared", pairs.poisson_pair, "p_below = (1 - rate) * q_below + rate * ndtr(u - sd)",
           "p_below = (1 - rate) * q_below + rate**2 * ndtr(u - sd)", "check_sampling_has_its_golden_prices"),
    Mutant("events with the same pair replace each other", pld._counts, "counts.get(stands, 0) + times", "times",
           "check_epsilon_is_never_below_the_exact_gaussian_for_mixtures"),
    Mutant("Renyi curves without their counts", accounting_rdp.curve, "times * leaf.renyi(orders)", "leaf.renyi(orders)",
           "check_renyi_prices"),
    Mutant("a tighter conversion than there is", accounting_rdp.epsilon_of_curve, "np.log1p(-1 / ORDERS)", "-1.0",
           "check_renyi_prices"),
    Mutant("the conjecture taken for the divergence", accounting_rdp._poisson,
           "return np.asarray(np.maximum(log_moments, 0.0) / (ORDERS - 1), dtype=np.float64)",
           "return ORDERS * (rate / sigma) ** 2", "check_renyi_divergences_of_sampling"),
    Mutant("a moment's excess at large ratios is left out", accounting_rdp._fractional_moments,
           "np.logaddexp(near, logsumexp(large, axis=1))", "near", "check_renyi_is_never_below_the_truth"),
    Mutant("blocks cost their minimum", trees.Parallel.zcdp, "return max(", "return min(",
           "check_disjoint_blocks_cost_their_maximum"),
    Mutant("blocks cost their minimum, in Renyi", trees.Parallel.renyi, "np.max(", "np.min(",
           "check_disjoint_blocks_cost_their_maximum"),
    Mutant("selection by the price for monotone scores", mechanisms.Selection.renyi, "self.epsilon**2 / 8",
           "self.epsilon**2 / 32", "check_selection_costs_an_eighth"),
    Mutant("pure DP at a quarter", mechanisms.PureDP.zcdp, "return self.epsilon**2 / 2",
           "return self.epsilon**2 / 8",
           "check_selection_costs_an_eighth"),
    Mutant("the Gaussian conversion for all of zCDP", zcdp.epsilon_of_rho,
           "return float(max(0.0, min(best.fun, epsilon_bun_steinke(rho, delta))))",
           "return gaussian_epsilon(math.sqrt(2 * rho), delta)", "check_conversions_of_rho"),
    Mutant("an estimate passes for a bound", accountant.estimates, '"yu-2019", "estimate"', '"yu-2019", "bound"',
           "check_estimates_are_never_claimed"),
    Mutant("the estimate where its premise is false", comparisons.epsilon, "sigma < LEAST_SIGMA or", "False or",
           "check_estimates_are_never_claimed"),
    Mutant("a filter is opened for free", filters.ZCDPFilter.__init__,
           "account.charge(self._limit, adjacency)", "pass", "check_filters_hold_their_limit"),
    Mutant("a filter forgets what it let through", filters.ZCDPFilter.charge, "self._spending.add(event)", "pass",
           "check_filters_hold_their_limit"),
    Mutant("a Renyi filter holds while any order does", filters.share, ").max()", ").min()",
           "check_filters_hold_their_limit"),
    Mutant("a filter of both kinds, or of none", trees.Filter.__post_init__,
           "if (self.rho is None) == (not self.orders) or len(self.orders) != len(self.bounds):", "if False:",
           "check_filters_are_of_one_kind"),
    Mutant("a bound at one order serves larger ones", trees.Filter.renyi, "np.where(order >= orders, bound, np.inf)",
           "np.where(order >= 0 * orders, bound, np.inf)", "check_filters_hold_their_limit"),
    Mutant("groups pay linearly in rho", accountant._methods, "zcdp.epsilon_of_rho(k**2 * total, delta)",
           "zcdp.epsilon_of_rho(k * total, delta)", "check_groups_pay_for_their_size"),
    Mutant("delta does not grow with the group", accountant.log_growth,
           "return float(steps[-1] + math.log(float(np.exp(steps - steps[-1]).sum())))", "return 0.0",
           "check_groups_pay_for_their_size"),
    Mutant("the Laplace tail on the wrong side", pairs.laplace_pair, "0.5 * np.exp((inside * b - 1) / (2 * b))",
           "0.5 * np.exp(-(inside * b + 1) / (2 * b))", "check_laplace_is_priced_exactly"),
    Mutant("shuffling's lower bound from the batch alone", comparisons._largest_of_batches,
           "high = 2.0 if adjacency is Adjacency.ZERO_OUT else 1.0", "high = 1.0", "check_shufflings_interval_is_honest"),
    Mutant("partitions get the noise of the extreme ones", partition.within_reach, "min(sigma,", "max(sigma,",
           "check_partitions_have_their_golden_prices"),
    Mutant("one more than fits", budget.largest, "return low", "return low + 1",
           "check_what_is_solved_for_never_overshoots"),
    Mutant("a rate on the wrong side", budget._acceptable, "<= 0", "<= 0.004",
           "check_what_is_solved_for_never_overshoots"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS, caches=[rdp._poisson])
