"""Planted bugs in what compares batches with their price, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn.core.plan import Plan
from privlearn.core.sampling import draws
from privlearn.core.sampling.draws import Draws
from privlearn.runs.session import TrainingSession
from tests.support.mutant import Mutant, suite_of

REFUSED = "check_a_sampler_that_breaks_its_event_is_refused_by_name"
LATER = "check_a_sampler_that_changes_while_it_runs_is_refused_by_name"
CHARGED = "check_batches_are_charged_what_the_sampler_says_whoever_made_their_charges"
CHANCE = "check_chance_alone_is_never_refused"

MUTANTS = [
    Mutant(
        "batches are not compared with their price",
        TrainingSession.drawn,
        "self.draws(present).epoch(self.streams.sampling)",
        "self.plan.sampling.draw(present, self.streams.sampling)",
        LATER,
    ),
    Mutant(
        "no sampler is rehearsed",
        Draws.__init__,
        "if not is_own(type(sampler)):",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "rows may come twice in a batch",
        Draws._require_rows,
        "if (rows[1:] == rows[:-1]).any():",
        "if False:",
        LATER,
    ),
    Mutant(
        "rows may lie outside",
        Draws._require_rows,
        "if len(rows) and not",
        "if False and not",
        REFUSED,
    ),
    Mutant(
        "batches may be of any size",
        Draws._require_rows,
        "self._require_chance(len(rows)",
        "(lambda *_, **__: None)(len(rows)",
        REFUSED,
    ),
    Mutant(
        "batches may be beyond their maximum",
        Draws._require_rows,
        "if len(rows) > self._most:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "rows may be drawn too often",
        Draws._count,
        "self._require_chance(int(",
        "(lambda *_, **__: None)(int(",
        REFUSED,
    ),
    Mutant("rows may come again too soon", Draws._count, "< self._rest:", "< 0:", REFUSED),
    Mutant(
        "a charge may pay for a row twice",
        Draws._require_times,
        "> self._times:",
        "> 10**6:",
        REFUSED,
    ),
    Mutant(
        "there may be more charges than are priced",
        Draws.epoch,
        "if len(units) == self._units:",
        "if False:",
        LATER,
    ),
    Mutant(
        "there may be more batches than steps",
        Draws.epoch,
        "if self._batches - first == self._steps:",
        "if False:",
        LATER,
    ),
    Mutant("batches need no random numbers", Draws.epoch, "if secret and", "if False and", REFUSED),
    Mutant(
        "a partition may stay as it is",
        Draws.epoch,
        "if self._units == 1 and",
        "if False and",
        REFUSED,
    ),
    Mutant("an epoch may cost anything", Draws._charges, "!= epoch or", "!= epoch and", REFUSED),
    Mutant(
        "samples bring their own charges",
        Draws.epoch,
        "yield Sample(sample.indices, units[id(sample.unit)][0])",
        "yield sample",
        CHARGED,
    ),
    Mutant("a price may change", Plan._require_settled, "!= value:", "is None:", LATER),
    Mutant("chance is refused", draws.is_too_many, "_NEVER +", "0.1 +", CHANCE),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
