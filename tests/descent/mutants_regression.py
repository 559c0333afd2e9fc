"""Planted bugs in regression, each of which a named check must catch."""

from __future__ import annotations

from privlearn.methods.dpmac import layer_training
from privlearn.models import heads
from privlearn.publishing import model
from privlearn.training import rules, train
from tests.support.mutant import Mutant, suite_of

UNITS = "check_regression_predicts_in_the_units_of_the_target"

MUTANTS = [
    Mutant(
        "targets beyond their bounds count as they are",
        heads.BoundedHead.prepared,
        ".clip(self.low, self.high)",
        "",
        "check_targets_beyond_their_bounds_count_as_these",
    ),
    Mutant(
        "targets are scaled by the rows' own range",
        heads.BoundedHead.prepared,
        "middle, half =",
        "middle, half = (np.min(y) + np.max(y)) / 2, (np.max(y) - np.min(y)) / 2\n    _, _ =",
        UNITS,
    ),
    Mutant(
        "bounds are taken from the rows",
        heads.BoundedHead.prepared,
        "middle, half =",
        "self.low, self.high = float(np.min(y)), float(np.max(y))\n    middle, half =",
        "check_targets_beyond_their_bounds_count_as_these",
    ),
    Mutant(
        "bounds that are published are the rows' own",
        train.fit,
        "state_task(result, head, bounds, ",
        "state_task(result, head, (float(data.y.min()), float(data.y.max())), ",
        "check_bounds_of_predictions_are_the_declared_ones",
    ),
    Mutant(
        "bounds that DP-MAC publishes are the rows' own",
        layer_training.train_layers,
        "state_task(result, head, data.target_bounds, ",
        "state_task(result, head, (float(data.y.min()), float(data.y.max())), ",
        "check_bounds_of_predictions_are_the_declared_ones",
    ),
    Mutant(
        "DP-MAC learns targets beyond their bounds as they are",
        layer_training.train_layers,
        "y=head.prepared(data.y)",
        "y=((data.y - 50) / 20).astype('float32')",
        "check_targets_beyond_their_bounds_count_as_these",
    ),
    Mutant(
        "DP-MAC learns targets in their own units",
        layer_training.train_layers,
        "y=head.prepared(data.y)",
        "y=data.y.clip(30, 70)",
        UNITS,
    ),
    Mutant(
        "a regressor's scores get a temperature",
        rules._temperature,
        "HEADS[request.task or CLASSIFICATION].tempered",
        "True",
        "check_regression_pays_for_its_plan_alone",
    ),
    Mutant(
        "predictions leave the declared bounds",
        model.PublishedModel.values,
        ".clamp(*self.target_bounds)",
        "",
        UNITS,
    ),
    Mutant(
        "predictions are in the units of the optimizer",
        heads.ValueHead.published,
        "rescale(network,",
        "0 and rescale(network,",
        UNITS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
