"""Planted bugs of temperature scaling, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core import plan
from privlearn.core.clipping import evaluation
from privlearn.runs import optimizers
from privlearn.training import fitted_temperature
from tests.support.mutant import Mutant, suite_of

MOVES = "check_one_example_moves_the_gains_by_at_most_the_sensitivity"
CHARGED = "check_the_release_after_training_is_charged_and_noisy"
ONCE = "check_the_last_layer_is_divided_once_and_predictions_stay"
AGAIN = "check_an_interrupted_run_ends_with_the_same_temperature"
SAID = "check_certificates_say_whether_there_was_a_temperature"
MUTANTS = [
    Mutant(
        "gains are not clipped", evaluation.Gains._answered, "norms.clamp(min=NORM)", "NORM", MOVES
    ),
    Mutant(
        "rows begin anywhere in memory",
        evaluation.RightAnswers._score,
        "align_rows(copies) if self._apart else copies",
        "copies",
        "check_rows_that_are_scored_begin_at_multiples_of_64_bytes",
    ),
    Mutant("all rows of a person count", evaluation.Gains.sum, ".mean(1)", ".sum(1)", MOVES),
    Mutant(
        "the gains have half their sensitivity",
        evaluation.Gains.sum,
        "sum_sensitivity(1.0)",
        "sum_sensitivity(0.5)",
        MOVES,
    ),
    Mutant(
        "losses at other temperatures",
        evaluation.Gains._answered,
        "at + moved) / torch",
        "at + moved) * torch",
        MOVES,
    ),
    Mutant(
        "losses are read free of charge",
        fitted_temperature.FittedTemperature.fit,
        "((noisy,),) = release(",
        "((noisy,),) = (lambda bounded, **_: (bounded.values,))(",
        CHARGED,
    ),
    Mutant(
        "half the noise",
        fitted_temperature.FittedTemperature.fit,
        "noise_multiplier=plan.noise_multiplier",
        "noise_multiplier=plan.noise_multiplier / 2",
        CHARGED,
    ),
    Mutant(
        "the plan forgets what comes after",
        plan.Plan._after,
        "[self.temperature.event()]",
        "[]",
        CHARGED,
    ),
    Mutant(
        "the layer is divided twice",
        fitted_temperature.FittedTemperature.divide,
        "layer.weight.div_(self.value)",
        "layer.weight.div_(self.value**2)",
        ONCE,
    ),
    Mutant(
        "a resumed run is not charged again",
        fitted_temperature.FittedTemperature.fit,
        "session.charge_again(plan.event())",
        "pass",
        AGAIN,
    ),
    Mutant(
        "a resumed run releases again",
        fitted_temperature.FittedTemperature.load_state_dict,
        'state["value"]',
        "None",
        AGAIN,
    ),
    Mutant(
        "the release after training is taken with the settings of the last step",
        optimizers.Descent.step,
        'self._session.repeats.take("")',
        "pass",
        "check_a_loop_that_saves_after_its_last_step_ends_with_the_same_temperature",
    ),
    Mutant(
        "a temperature may be left out",
        plan.Plan.follows,
        '!= ("fitted_temperature" in facts)',
        "and False",
        SAID,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
