"""Planted bugs in `privlearn certify`, each of which a named check must catch."""

from __future__ import annotations

from privlearn.declared import declared_document, examination, refusals, subset_sampled
from privlearn.declared.readers import dp_accounting, opacus
from privlearn.publishing import folder
from tests.support.mutant import Mutant, suite_of

SHUFFLED = "check_shuffled_batches_are_not_poisson_samples"
LAST = "check_the_rate_of_the_last_batch_is_refused"
RATE = "check_a_rate_that_is_not_batch_over_examples_is_refused"
MISSING = "check_missing_steps_are_refused"
CHANGED = "check_a_changed_document_does_not_hold"
DOUBLED = "check_replaced_examples_move_a_sum_by_two_norms"
OTHER = "check_other_batches_are_not_poisson_samples"

MUTANTS = [
    Mutant(
        "shuffled batches pass as Poisson samples",
        refusals._is_shuffled,
        "if case.declaration.sampling not in ONCE_AN_EPOCH",
        "if True",
        SHUFFLED,
    ),
    Mutant(
        "shuffled batches are priced as they were recorded",
        examination.compute_figures,
        "if declaration.sampling in ONCE_AN_EPOCH:",
        "if False:",
        SHUFFLED,
    ),
    Mutant(
        "an epoch more or less",
        examination.count_epochs,
        "max(declaration.epochs, math.ceil(steps / batches))",
        "declaration.epochs - 1",
        SHUFFLED,
    ),
    Mutant(
        "epochs have the last batch in any case",
        examination.count_epochs,
        "math.ceil(steps / fewest)",
        "steps // (batches + 1)",
        SHUFFLED,
    ),
    Mutant(
        "epochs beyond the steps are free",
        examination._price_epochs,
        "count=by_noise[0].count + more",
        "count=by_noise[0].count",
        SHUFFLED,
    ),
    Mutant(
        "replaced examples move an epoch by one norm",
        examination._price_epochs,
        "2.0 if",
        "1.0 if",
        SHUFFLED,
    ),
    Mutant(
        "subsets of a fixed size are Poisson samples",
        examination._compose,
        "part.noise_multiplier / moved_in_subsets",
        "part.noise_multiplier / moved",
        OTHER,
    ),
    Mutant(
        "fewer steps are declared than were counted",
        refusals._differs,
        "case.run.rounds > number",
        "False",
        "check_fewer_steps_than_were_counted_are_not_declared",
    ),
    Mutant(
        "subsets are priced in one direction",
        subset_sampled.make_symmetric,
        "losses = pair.losses",
        "return pair\n    losses = pair.losses",
        "check_subsets_are_priced_in_both_directions_at_once",
    ),
    Mutant(
        "the inverse of a ratio has its own mass",
        subset_sampled.make_symmetric,
        "pair.q[above] * np.exp(losses[above]) * share",
        "pair.q[above] * share",
        "check_subsets_are_priced_in_both_directions_at_once",
    ),
    Mutant(
        "subsets of replaced examples are priced as Poisson samples",
        examination._price,
        "subset=SubsetSampled",
        "subset=PoissonSampled",
        "check_replaced_examples_move_a_sum_by_two_norms",
    ),
    Mutant("all examples are a sample", refusals._is_no_sample, '"full"', '"whole"', OTHER),
    Mutant(
        "a rate from the last batch passes",
        refusals._is_last,
        "return same and",
        "return not same and",
        LAST,
    ),
    Mutant(
        "the last batch's rate is priced as it is",
        examination.declared_steps,
        "rate = max(rate, batch_rate(run, declaration) or rate)",
        "pass",
        LAST,
    ),
    Mutant(
        "any rate is a rate of the sampler",
        examination.is_drawn_rate,
        "return any(",
        "return True or any(",
        RATE,
    ),
    Mutant(
        "Opacus' own rates are refused",
        examination.is_drawn_rate,
        "(expected, *others)",
        "(expected,)",
        RATE,
    ),
    Mutant(
        "a missing step passes",
        refusals._has_missing_steps,
        ">= number",
        ">= number - 1",
        MISSING,
    ),
    Mutant(
        "missing steps are not priced",
        examination.declared_steps,
        "if missing > 0:",
        "if False:",
        MISSING,
    ),
    Mutant(
        "missing steps have the last noise",
        examination.declared_steps,
        "min(part.noise_multiplier for part in steps)",
        "steps[-1].noise_multiplier",
        MISSING,
    ),
    Mutant(
        "the optimizer's count is not read",
        opacus._count_steps,
        "return max(counted, default=0) or None",
        "return None",
        MISSING,
    ),
    Mutant(
        "a delta of one over the examples passes",
        refusals._has_large_delta,
        "delta * examples < 1",
        "delta * examples <= 1",
        "check_a_large_delta_is_refused",
    ),
    Mutant(
        "neighbours of another kind pass",
        refusals._has_other_neighbours,
        "(declared is replaced) == (taken is replaced)",
        "True",
        "check_neighbours_of_another_kind_are_refused",
    ),
    Mutant(
        "a replaced example is one that is removed",
        examination._price,
        "accountant.pld_in_steps(sampled, delta, 2)",
        "accountant.pld_in_steps(sampled, delta, 1)",
        "check_neighbours_of_another_kind_are_refused",
    ),
    Mutant(
        "a sum that moves by one norm passes",
        refusals._is_not_doubled,
        "if least is None or single is None:",
        "if True:",
        DOUBLED,
    ),
    Mutant(
        "replaced examples move a sum by one norm",
        examination._price,
        "2.0 if doubled",
        "1.0 if doubled",
        DOUBLED,
    ),
    Mutant(
        "neighbours are read as add or remove one",
        dp_accounting._read_neighbours,
        "return NEIGHBOURS[relation]",
        "return Adjacency.ADD_REMOVE",
        DOUBLED,
    ),
    Mutant(
        "a claim may be rounded down",
        refusals._claims_less,
        "(1 - ROOM)",
        "0.9",
        "check_a_claim_below_its_events_is_refused",
    ),
    Mutant(
        "a claim counts as little as what is computed",
        refusals.Case.least,
        "if figure.claimed",
        "if True",
        "check_a_claim_below_its_events_is_refused",
    ),
    Mutant(
        "what was not looked at is passed over",
        refusals.find_refusals,
        "unchecked[name] = lacking",
        "pass",
        "check_what_was_not_declared_is_listed_as_unchecked",
    ),
    Mutant(
        "the figures of a document are believed",
        declared_document._contradictions,
        "if not math.isclose(written",
        "if False and not math.isclose(written",
        CHANGED,
    ),
    Mutant(
        "the refusals of a document are believed",
        declared_document._contradictions,
        "if expected_document[name] != document[name]",
        'if expected_document[name] != document[name] and name != "refused"',
        CHANGED,
    ),
    Mutant(
        "any card will do",
        declared_document.check_declared_run,
        "if not problems and",
        "if False and",
        CHANGED,
    ),
    Mutant(
        "a declared run is verified like a model",
        folder.read,
        "is a declared run of another library, and",
        "is",
        "check_a_declared_run_is_not_a_certificate",
    ),
    Mutant(
        "a document that calls itself a certificate",
        declared_document._write,
        '"level": LEVEL,',
        '"level": LEVEL, "claim": {},',
        "check_a_declared_run_is_not_a_certificate",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
