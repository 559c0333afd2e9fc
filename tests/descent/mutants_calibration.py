"""Planted bugs of how the temperature is chosen, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core import temperature
from privlearn.core.clipping import evaluation, own_steps
from privlearn.training import fitted_temperature
from tests.support.mutant import Mutant, suite_of

NEAR = "check_log_loss_is_near_that_of_the_best_temperature"
OWN = "check_own_steps_are_what_leaving_an_example_out_undoes"
ONE = "check_only_one_linear_layer_has_steps_of_its_own"
BEST = "check_without_noise_the_temperature_is_the_best"
MUTANTS = [
    Mutant(
        "own steps are not taken back",
        evaluation.Gains._answered,
        "at if moved is None else at + moved",
        "at",
        NEAR,
    ),
    Mutant(
        "a few rows decide",
        evaluation.Gains._answered,
        "gains.clamp(min=LEAST_GAIN)",
        "gains",
        BEST,
    ),
    Mutant(
        "own steps are taken the wrong way",
        own_steps.OwnSteps.movement,
        "* errors /",
        "* -errors /",
        OWN,
    ),
    Mutant(
        "the bias does not count",
        own_steps.OwnSteps.movement,
        " + self.bias)",
        ")",
        OWN,
    ),
    Mutant(
        "own gradients are not clipped",
        own_steps.OwnSteps.movement,
        ".clamp(max=self.clip_norm)",
        "",
        OWN,
    ),
    Mutant(
        "own steps have no limit",
        own_steps.OwnSteps.movement,
        "moved / (1 + moved / most)",
        "(moved + 0 * most)",
        OWN,
    ),
    Mutant(
        "any optimizer is plain",
        fitted_temperature.sum_rates,
        "type(optimizer) is not torch.optim.SGD or",
        "",
        ONE,
    ),
    Mutant(
        "any network is one layer",
        fitted_temperature.FittedTemperature._find_own_steps,
        "known &= all(type(module) in plain for module in task.network.modules())",
        "known = layer is not None",
        ONE,
    ),
    Mutant(
        "one cubic is enough",
        temperature.Temperature.best,
        "range(_TIMES)",
        "range(0)",
        BEST,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
