"""Planted bugs in what holds a schedule to its price, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core.plan import Plan
from privlearn.core.schedules import _require_computable
from privlearn.training.epoch_noise import PlannedNoise
from tests.support.mutant import Mutant, suite_of

REFUSED = "check_a_schedule_that_breaks_its_price_is_refused_by_name"
PRICED = "check_a_run_has_the_noise_that_it_was_priced_with"
COMPUTED = "check_a_schedule_computes_every_epoch_or_is_refused"

MUTANTS = [
    Mutant(
        "noise that is no number is priced",
        Plan.noise_multipliers,
        "and math.isfinite(value)",
        "",
        REFUSED,
    ),
    Mutant(
        "a schedule may change after it was priced",
        Plan.noise_multipliers,
        "self._require_settled(",
        "(lambda *_: None)(",
        REFUSED,
    ),
    Mutant(
        "the noise of an epoch is asked for when it begins",
        PlannedNoise.__iter__,
        "yield from enumerate(self._plan.noise_multipliers())",
        "yield from ((epoch, self._plan.schedule(epoch)) for epoch in range(self._plan.epochs))",
        PRICED,
    ),
    Mutant(
        "a period may be too short to count",
        _require_computable,
        "if not computable",
        "if None",
        COMPUTED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
