"""Planted bugs in test metrics that are released with noise, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn import metrics
from privlearn.methods.statistics import sums
from privlearn.methods.statistics.metric_figures import MetricsPlan
from privlearn.publishing import certificate, verify
from tests.support.mutant import Mutant, suite_of

MOVED = "check_a_test_row_moves_paid_metrics_by_the_sensitivity_at_most"
CHARGED = "check_paid_metrics_are_charged_and_refused_without_room"
NOISE = "check_paid_metrics_have_the_noise_of_their_plan"
EXACT = "check_nothing_exact_is_said_beside_paid_metrics"
COVERED = "check_a_certificate_covers_the_metrics_that_are_said_to_be_paid"

MUTANTS = [
    Mutant(
        "three figures of a row count as one", sums.metric_sums, "else 3.0)", "else 1.0)", MOVED
    ),
    Mutant(
        "a replaced test row counts as a removed one",
        sums.metric_sums,
        "5.0 if replaced",
        "3.0 if replaced",
        MOVED,
    ),
    Mutant("log losses have no bound", sums.metric_sums, "losses.clamp(0, 1)", "losses", MOVED),
    Mutant(
        "test rows meet",
        metrics._sums,
        "Probabilities(network, plan.classes)(x, y)",
        "outputs_of(network, x, 256).double().softmax(1)",
        "check_test_rows_do_not_meet",
    ),
    Mutant(
        "paid metrics are not paid",
        metrics._release,
        "ledger=session.ledger",
        "ledger=Ledger()",
        CHARGED,
    ),
    Mutant(
        "metrics have the noise of a sum of one part",
        metrics._release,
        "sums, noise_multiplier=plan.noise,",
        "sums, noise_multiplier=plan.noise / 3**0.5,",
        CHARGED,
    ),
    Mutant(
        "metrics have half the noise",
        MetricsPlan._solved,
        "return solve_gaussian(budget, spent)",
        "return 0.5 * solve_gaussian(budget, spent)",
        CHARGED,
    ),
    Mutant(
        "metrics of replaced rows have less noise",
        sums.metric_sums,
        "5.0 if replaced",
        "1.0 if replaced",
        NOISE,
    ),
    Mutant(
        "the number of test rows is public",
        metrics._release,
        "is not Adjacency.ADD_REMOVE",
        "is not None",
        EXACT,
    ),
    Mutant(
        "the accuracy is exact",
        metrics._release,
        "figures = figures_of(*noisy, plan, rows, deviation)",
        "figures = figures_of(*noisy, plan, rows, deviation) | "
        "{'accuracy': float((Probabilities(network, 2)(x, y).argmax(1) == y).double().mean())}",
        EXACT,
    ),
    Mutant(
        "metrics from any ledger are published as protected",
        certificate.unpaid,
        "return [] if covered else [problem]",
        "return []",
        COVERED,
    ),
    Mutant(
        "verify believes that metrics were paid",
        verify._of_the_plan,
        "unpaid(",
        "[] and unpaid(",
        "check_verify_asks_for_the_release_of_paid_metrics",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
