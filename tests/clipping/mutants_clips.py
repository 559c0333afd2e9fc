"""Planted bugs in what holds clips to their bounds, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core.clipping import clips
from privlearn.core.clipping.bounded import Contributions
from privlearn.core.clipping.gradients import ClippedGradients
from tests.support.mutant import Mutant, suite_of

REFUSED = "check_a_clip_that_breaks_its_bound_is_refused_by_name"
WHATEVER = "check_an_example_adds_no_more_than_the_bound_whatever_the_clip_does"
RULE = "check_a_rule_that_is_off_for_a_rare_shape_is_not_used"
MEASURED = "check_a_sum_is_made_with_what_was_measured_of_it"

MUTANTS = [
    Mutant(
        "the clip is not tried before a run",
        clips.require_clipped,
        "if within is not None:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "a clip may go by other examples",
        clips.require_clipped,
        "if not all(",
        "if False and not all(",
        REFUSED,
    ),
    Mutant(
        "negative weights count",
        clips.weigh,
        "lengths.clamp(0.0, most)",
        "lengths.clamp(-1e30, most)",
        REFUSED,
    ),
    Mutant(
        "the check of each example's clipped norm is off",
        ClippedGradients._weights,
        "if weighed.within is not None:",
        "if False:",
        WHATEVER,
    ),
    Mutant(
        "weights are not compared with the bound",
        clips.weigh,
        "most, counts = bound",
        "most, counts = 1e6 * bound",
        WHATEVER,
    ),
    Mutant(
        "what examples add is not measured",
        Contributions.require_kept,
        "if self._largest is not None",
        "if False",
        MEASURED,
    ),
    Mutant(
        "a sum of which nothing was measured is let pass",
        Contributions.require_within,
        "if (self._largest is None",
        "if (False",
        MEASURED,
    ),
    Mutant(
        "a sensitivity below the bound is let pass",
        Contributions.require_within,
        "if not 0 < self.bound <=",
        "if not 0 <= 0 * self.bound <=",
        MEASURED,
    ),
    Mutant(
        "rules are not compared with autograd on the data",
        ClippedGradients._require_rules,
        "if not isinstance(self._way, PerOperation)",
        "if True",
        RULE,
    ),
    Mutant(
        "rules are compared in batches of one size alone",
        ClippedGradients._require_rules,
        "form in self._compared and",
        "self._compared and",
        "check_rules_are_compared_in_batches_of_each_size",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
