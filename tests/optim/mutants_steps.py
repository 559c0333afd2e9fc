"""Planted bugs in optimizers that a run tells its noise: each must make a named check fail."""

from __future__ import annotations

from privlearn.optim import adam_bc, disk
from privlearn.runs import optimizers
from privlearn.training import run as dpsgd
from tests.support.mutant import Mutant, suite_of

MEAN = "check_disk_is_the_exponential_mean_of_sgd"
FILTER = "check_disk_with_falling_rates_is_its_filter"
TOLD = "check_the_noise_that_is_told_is_that_of_the_gradients"
FORMULA = "check_adam_bc_is_its_formula"
BEFORE = "check_an_optimizer_sees_no_sum_before_its_noise"
ALIKE = "check_neighbouring_runs_look_the_same_to_every_optimizer"
DRAWN = "task.watch.add_drawn(task.gradients.taken)"

MUTANTS = [
    Mutant(
        "the second moment is corrected by the true variance of the batch's gradients",
        dpsgd.Run.step,
        DRAWN,
        DRAWN
        + (
            "; spread = float(torch.cat([part.flatten() for part in clipped.values]).std()); "
            "hand_over = self._descent.hand_over; self._descent.hand_over = lambda _: "
            '(vars(self._descent).pop("hand_over"), hand_over(spread))'
        ),
        ALIKE,
    ),
    Mutant(
        "the noise is told for the batch that was drawn",
        dpsgd.Run.step,
        "task.gradients.scale / task.divisor",
        "task.gradients.scale / max(1, len(batch.sample))",
        ALIKE,
    ),
    Mutant(
        "the filter reads gradients before their noise",
        dpsgd.Run.step,
        DRAWN,
        DRAWN
        + (
            '; [self.optimizer.state[each]["filtered"].lerp_(part, 0.1) for each, part in '
            'zip(task.parameters, clipped.values) if "filtered" in self.optimizer.state[each]]'
        ),
        ALIKE,
    ),
    Mutant(
        "the noise is told without the sensitivity of its neighbours",
        dpsgd.Run.step,
        "batch.noise_multiplier * clipped.sensitivity * scale",
        "batch.noise_multiplier * self.plan.clip.clip_norm * scale",
        TOLD,
    ),
    Mutant(
        "gradients that are scaled back are told with the noise of before",
        dpsgd.Run.step,
        "task.gradients.scale / task.divisor",
        "1.0 / task.divisor",
        TOLD,
    ),
    Mutant(
        "the noise of the first epoch is subtracted throughout",
        dpsgd.Run.step,
        "hand_over(batch.noise_multiplier",
        "hand_over(self.plan.noise_multipliers()[0]",
        FORMULA,
    ),
    Mutant(
        "the noise that is subtracted is the last step's",
        adam_bc.AdamBC.step,
        '(1 - second) * (variance - state["noise"])',
        'variance - state["noise"]',
        FORMULA,
    ),
    Mutant(
        "there is no floor",
        adam_bc.AdamBC.step,
        'min=group["floor"] * noise',
        "min=0.0",
        FORMULA,
    ),
    Mutant(
        "gradients are computed at the weights to publish",
        optimizers.Descent.step,
        'self._tell("before_gradients")',
        'self._aware and setattr(self._aware, "_weights", [p.clone() for p in self._parameters])',
        MEAN,
    ),
    Mutant(
        "the weights to publish are those at which gradients are computed",
        disk.DiSK.step,
        "weights.copy_(next(before))",
        "next(before)",
        FILTER,
    ),
    Mutant(
        "weights drift by the rate of the next step",
        disk.DiSK.step,
        'state["rate"] = float(group["lr"])',
        'state["rate"] = 2 * float(group["lr"])',
        FILTER,
    ),
    Mutant(
        "a step that fails leaves the weights where gradients were to be computed",
        optimizers.Descent.step,
        'self._tell("after_gradients")',
        "pass",
        "check_a_step_that_fails_leaves_the_weights_to_publish",
    ),
    Mutant(
        "sums without noise are the gradients while they are computed",
        optimizers.Descent.step,
        "self._sums, self._stepping = sums, True",
        "self._sums, self._stepping = sums, True; self.hand_over(0.0)",
        BEFORE,
    ),
    Mutant(
        "an optimizer is told of the end while the gradients are there",
        optimizers.Descent.step,
        "self._sums, self._stepping = (), False",
        'self._sums, self._stepping = (), False; self._tell("after_gradients")',
        BEFORE,
    ),
    Mutant(
        "the filter forgets",
        disk.DiSK.step,
        "if not state:",
        'if "filtered" not in state or self.state_dict()["state"]:',
        FILTER,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
