"""Broken builds: the audit of a user's own release must refute their claims."""

from __future__ import annotations

from privlearn.auditing import bounds, canaries, distinguishing, one_run, steps
from privlearn.core import sampling
from privlearn.core.accounting import guarantee, mechanisms
from privlearn.core.clipping import clips, gradients
from privlearn.core.mechanisms import noise, release
from privlearn.publishing import publish
from privlearn.training import run as dpsgd
from privlearn.training import task
from tests.support.mutant import Mutant, suite_of

FULL, GRID = (
    "check_a_step_on_all_examples_keeps_its_claim",
    "check_a_step_on_a_grid_keeps_its_claim",
)
POISSON, PARTITION = (
    "check_a_poisson_step_keeps_its_claim",
    "check_a_partitioned_epoch_keeps_its_claim",
)
RUN = "check_a_training_with_canaries_keeps_its_claim"
REPORT = "check_a_report_is_published_and_signed_with_the_model"
OWN, BOUNDS = (
    "check_a_network_of_ones_own_keeps_its_claim",
    "check_bounds_are_wrong_as_seldom_as_they_say",
)

MUTANTS = [
    Mutant("half of the noise", noise.add_gaussian, "alpha=std", "alpha=std / 2", FULL),
    Mutant(
        "no noise",
        release._add_noise,
        "if isinstance(stream, CorrelatedStream):",
        "return part.values\n        if isinstance(stream, CorrelatedStream):",
        FULL,
    ),
    Mutant(
        "the same noise at every step",
        noise.gaussian,
        "stream.words(",
        "type(stream)(bytes(16)).words(",
        FULL,
    ),
    Mutant(
        "noise for the first parameter alone",
        noise.add_gaussian,
        "while part < len(parts) and",
        "while part < 1 and",
        FULL,
    ),
    Mutant(
        "a large gradient is not clipped",
        clips.Flat.weights,
        "return ",
        "return 0 * norms + 1.0\n    return ",
        FULL,
    ),
    Mutant(
        "half of the sensitivity",
        guarantee.Adjacency.sum_sensitivity,
        "else norm",
        "else norm / 2",
        FULL,
    ),
    Mutant(
        "sums count twice",
        gradients.ClippedGradients._add_up,
        "total.add_(block)",
        "total.add_(block, alpha=2)",
        OWN,
    ),
    Mutant(
        "the number of examples drawn divides the sum",
        dpsgd.Run.step,
        "task.divisor)), task.divisor)",
        "task.divisor)), max(len(batch.sample), 1) / 10 * task.divisor)",
        FULL,
    ),
    Mutant(
        "less noise than was charged",
        dpsgd.Run.step,
        "noise_multiplier=batch.noise_multiplier",
        "noise_multiplier=batch.noise_multiplier / 2",
        FULL,
    ),
    Mutant("a grid without its noise", noise.add_on_grid, ".add_(noise)", "", GRID),
    Mutant(
        "a grid whose noise is too narrow",
        noise.add_on_grid,
        "scale = noise_multiplier",
        "scale = 0.5 * noise_multiplier",
        GRID,
    ),
    Mutant(
        "a loader that is billed as Poisson",
        sampling.Poisson.draw,
        "taken(examples, self.sampling_rate, rng)",
        "np.arange(examples)",
        POISSON,
    ),
    Mutant(
        "twice the rate",
        sampling.Poisson.draw,
        "self.sampling_rate, rng",
        "1.9 * self.sampling_rate, rng",
        POISSON,
    ),
    Mutant(
        "the price of half the rate",
        mechanisms.PoissonSampled.pair,
        "self.sampling_rate",
        "(self.sampling_rate / 4)",
        POISSON,
    ),
    Mutant(
        "an example in every batch",
        sampling.Partition.draw,
        "yield Sample(rows, unit)",
        "yield Sample(np.arange(examples), unit)",
        PARTITION,
    ),
    Mutant(
        "the unclipped gradient is released beside the sum",
        gradients.ClippedGradients._weights,
        "return weighed.weights if finite is None",
        "return weighed.weights * 0 + 1.0 if finite is None",
        OWN,
    ),
    Mutant(
        "epochs after the first get less noise",
        dpsgd.Run.step,
        "noise_multiplier=batch.noise_multiplier",
        "noise_multiplier=batch.noise_multiplier / (3 if batch.epoch else 1)",
        RUN,
    ),
    Mutant(
        "an example in every batch of each epoch",
        sampling.Partition.draw,
        "yield Sample(rows, unit)",
        "yield Sample(np.arange(examples), unit)",
        RUN,
    ),
    Mutant(
        "an audit's rows are taken for released",
        steps.warn_of_rows,
        "if not data.public:",
        "if False:",
        "check_rows_that_an_audit_runs_on_are_not_taken_for_released",
    ),
    Mutant(
        "a report on private rows is published",
        publish._require_publishable,
        "not audit.public",
        "False",
        REPORT,
    ),
    Mutant(
        "a report that nothing certifies",
        publish._complete,
        "{AUDIT: _json(said.audit.to_json())} if said.audit else {}",
        "{}",
        REPORT,
    ),
    Mutant(
        "what a function drew counts as public",
        distinguishing.distinguish,
        "public=False",
        "public=True",
        REPORT,
    ),
    Mutant(
        "private rows of an audit count as public",
        steps.audit,
        "public=data.public",
        "public=True",
        REPORT,
    ),
    Mutant(
        "every canary takes part",
        canaries._rows,
        "np.where(coins, 1.0, 2.0)",
        "np.where(coins, 1.0, 1.0)",
        RUN,
    ),
    Mutant(
        "no canary is clipped",
        clips.Flat.weights,
        "return ",
        "return 0 * norms + 1.0\n    return ",
        RUN,
    ),
    Mutant("a point estimate", bounds.Rates.of, "(1 - between(", "0.9 + 0 * (1 - between(", BOUNDS),
    Mutant(
        "every claim stands",
        distinguishing.Claim.judged,
        "ok=not rates.refute(curve)",
        "ok=True",
        "check_functions_of_ones_own_are_judged",
    ),
    Mutant(
        "delta costs nothing",
        one_run.one_run_p_value,
        "2 * canaries * delta",
        "0 * delta",
        "check_one_run_bounds_have_their_closed_forms",
    ),
    Mutant(
        "the canary is in both data sets",
        steps._neighbours,
        "without = (x, y, numbers)",
        "without = among",
        FULL,
    ),
    Mutant(
        "the canary is one of the other persons",
        steps._neighbours,
        "int(numbers.max()) + 1",
        "int(numbers.max())",
        "check_persons_of_ones_own_are_attacked_as_a_whole",
    ),
    Mutant(
        "two runs choose other rows of a person",
        steps._examples_of,
        "order[place < plan.rows_per_person]",
        "order",
        "check_persons_of_ones_own_are_attacked_as_a_whole",
    ),
    Mutant(
        "a person's rows are clipped one by one",
        task._rows_of_examples,
        "rows_of_persons(groups, plan.rows_per_person, key)",
        "rows_of_persons(groups, plan.rows_per_person, key).reshape(-1, 1)",
        "check_a_step_on_persons_keeps_its_claim",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError]
)
