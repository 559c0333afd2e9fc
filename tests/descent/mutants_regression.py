"""Planted bugs in regression, each of which a named check must catch."""

from __future__ import annotations

from privlearn.descent import rules, train
from privlearn.publishing import model
from tests.support.mutant import Mutant, suite_of

UNITS = "check_regression_predicts_in_the_units_of_the_target"

MUTANTS = [
    Mutant("targets beyond their bounds count as they are", train._scaled, ".clip(low, high)", "",
           "check_targets_beyond_their_bounds_count_as_these"),
    Mutant("targets are scaled by the rows' own range", train._scaled, "low, high = bounds",
           "low, high = float(np.min(data.y)), float(np.max(data.y))", UNITS),
    Mutant("bounds that are published are the rows' own", train.fit, '{"target_bounds": [low, high]}',
           '{"target_bounds": [float(data.y.min()), float(data.y.max())]}',
           "check_bounds_of_predictions_are_the_declared_ones"),
    Mutant("a regressor's scores get a temperature", rules._temperature,
           "HEADS[request.task or CLASSIFICATION].tempered", "True", "check_regression_pays_for_its_plan_alone"),
    Mutant("predictions leave the declared bounds", model.PublishedModel.values, ".clamp(*self.target_bounds)", "",
           UNITS),
    Mutant("predictions are in the units of the optimizer", train.fit, "_rescale(result.model,",
           "0 and _rescale(result.model,", UNITS),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
