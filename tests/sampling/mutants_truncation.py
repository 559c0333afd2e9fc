"""Planted bugs in truncated Poisson batches and their price, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn.core import sampling
from privlearn.core.accounting.pld import truncation
from privlearn.core.sampling import TruncatedPoisson
from tests.support.mutant import Mutant, suite_of

LAW, PAID = "check_truncated_batches_have_the_stated_law", "check_what_is_cut_is_paid_for"
GROUPS, CUT = "check_groups_of_truncated_batches_are_paid_for", "check_the_law_of_what_is_cut"
PUBLIC, USUAL = (
    "check_truncated_batches_are_for_a_public_number_of_rows",
    "check_the_usual_maximum_is_public_and_costs_nothing",
)

MUTANTS = [
    Mutant(
        "the cut keeps the first rows",
        TruncatedPoisson.draw,
        "rng.permutation(len(chosen))",
        "np.arange(len(chosen))",
        LAW,
    ),
    Mutant(
        "twice the maximum", TruncatedPoisson.draw, "[: self.maximum]", "[: 2 * self.maximum]", LAW
    ),
    Mutant(
        "the maximum is that of the batch",
        TruncatedPoisson.draw,
        "[: self.maximum]",
        "[: len(chosen)]",
        LAW,
    ),
    Mutant(
        "batches that are cut lose a row more",
        TruncatedPoisson.draw,
        "[: self.maximum]",
        "[: self.maximum - 1]",
        LAW,
    ),
    Mutant(
        "too large batches are left out", TruncatedPoisson.draw, "[: self.maximum]", "[:0]", LAW
    ),
    Mutant(
        "rows are drawn twice as often",
        TruncatedPoisson.draw,
        "self.sampling_rate, rng",
        "min(1.0, 2 * self.sampling_rate), rng",
        LAW,
    ),
    Mutant(
        "what is cut is free",
        TruncatedPoisson.event,
        "TruncatedPoissonSampled(self.sampling_rate, self.examples, self.maximum, mechanism)",
        "PoissonSampled(self.sampling_rate, mechanism)",
        "check_no_attack_on_truncated_batches_beats_their_price",
    ),
    Mutant(
        "what is cut has the price of Poisson",
        truncation.TruncatedPoissonSampled.worth,
        "if self.maximum >= self.examples:",
        "if self.maximum:",
        PAID,
    ),
    Mutant(
        "the larger rate is the usual one",
        truncation.TruncatedPoissonSampled.worth,
        "PoissonSampled(rate, ",
        "PoissonSampled(self.sampling_rate, ",
        PAID,
    ),
    Mutant(
        "the price is for twice the maximum",
        TruncatedPoisson.event,
        "self.maximum, ",
        "min(self.examples, 2 * self.maximum), ",
        "check_no_attack_on_truncated_batches_beats_their_price",
    ),
    Mutant(
        "only batches that are cut count",
        truncation.more_often,
        "(ratio + (1 - rate) / rate)",
        "ratio",
        CUT,
    ),
    Mutant(
        "batches that are cut do not count",
        truncation.more_often,
        "(ratio + (1 - rate) / rate)",
        "((1 - rate) / rate)",
        CUT,
    ),
    Mutant(
        "odds of the plain rate",
        truncation.more_often,
        "ratio * rate / (1 - rate)",
        "rate / (1 - rate)",
        CUT,
    ),
    Mutant(
        "the tail is its first term", truncation._tail, "1.0 + float(products.sum())", "1.0", CUT
    ),
    Mutant(
        "a tail a row too far",
        truncation._tail,
        "np.arange(size, size + terms)",
        "np.arange(size + 1, size + 1 + terms)",
        CUT,
    ),
    Mutant(
        "a point mass without its root",
        truncation._tail,
        "math.sqrt(n / (2 * math.pi * size * left))",
        "(1 / math.sqrt(2 * math.pi * size * left))",
        CUT,
    ),
    Mutant(
        "the mass of rare draws is left out",
        truncation._mix,
        "+= chance * rare.q",
        "+= 0 * rare.q",
        PAID,
    ),
    Mutant(
        "moments of rare draws are left out",
        truncation.Mixture.renyi,
        "self.chance * np.expm1(np.where(small, rare, 0.0))",
        "0 * np.expm1(np.where(small, rare, 0.0))",
        PAID,
    ),
    Mutant(
        "large moments of rare draws are left out",
        truncation.Mixture.renyi,
        "np.logaddexp(math.log1p(-min(",
        "np.minimum(math.log1p(-min(",
        PAID,
    ),
    Mutant(
        "groups are cut at the whole maximum",
        truncation.TruncatedPoissonSampled.grouped,
        "cut_chance(self.sampling_rate, self.examples, self.maximum - k)",
        "cut_chance(self.sampling_rate, self.examples, self.maximum)",
        GROUPS,
    ),
    Mutant(
        "groups among few places are priced",
        truncation._mix,
        "share * mass + chance",
        "share * mass",
        GROUPS,
    ),
    Mutant(
        "the usual maximum is the expected size",
        truncation.usual_maximum,
        "size < least or cut_chance(rate, examples, size + 1) > RARE",
        "size < least",
        USUAL,
    ),
    Mutant(
        "any number of rows",
        TruncatedPoisson.require_rows,
        "examples > self.examples",
        "False",
        PUBLIC,
    ),
    Mutant(
        "facts of other data",
        sampling.Sampler.contradictions,
        "return [str(error)]",
        "return []",
        PUBLIC,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[IndexError]
)
