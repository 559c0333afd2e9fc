"""Settings that nobody has to choose, as functions of public numbers only.

docs/defaults.md has the study behind the rule for linear models, docs/decisions that for networks, and both say which choices
saw test accuracies. Looking at results on private data to choose better ones would cost privacy.
"""

from __future__ import annotations

import math

from privlearn.plan import Plan
from privlearn.schedules import Validation

#: Epochs where neither the user nor a budget says otherwise, and where the target is so large that there is little noise.
EPOCHS = 30
_EPOCHS_WITH_LITTLE_NOISE, _LITTLE_NOISE = 60, 4.0
#: Clipping norm. Small, so that nearly every gradient is clipped: the learning rate then works at any scale of the loss.
CLIP_NORM = 0.1

#: The noise multiplier of private principal directions.
PCA_NOISE = 16.0

_ADAPTIVE_RATE = 0.015
#: The noise that may gather in a weight over a run, before the learning rate decays.
_GATHERED = 0.3
_GATHERED_LINEAR = 0.6
#: For a linear model on features of mean 0 and variance 1: the noise that may gather in a score of an example.
GATHERED_IN_SCORES = 5.0
#: Below this noise multiplier the noise no longer limits the learning rate.
_LEAST_NOISE = 1.0

#: Rows of numbers scaled to [0, 1] are clipped to this times the root of their length, unless told otherwise.
SCALED_NORM = 0.5
#: Examples times epsilon from which noisy moments are worth it in front of a linear model on rows of many numbers.
WORTH_MOMENTS = 10_000


def batch_size(examples: int) -> int:
    """A fifteenth of the examples, and at least 256 where there are as many: accuracy is flat around it."""
    return min(examples, max(256, round(examples / 15)))


def epochs(epsilon: float | None) -> int:
    """30, and 60 where the target is above epsilon 4: with little noise more steps are worth theirs."""
    return EPOCHS if epsilon is None or epsilon <= _LITTLE_NOISE else _EPOCHS_WITH_LITTLE_NOISE


def moments_pay(examples: int, epsilon: float | None) -> bool:
    """Whether rows of many non-negative numbers gain by being standardised by noisy moments, with what these cost."""
    return epsilon is not None and examples * epsilon >= WORTH_MOMENTS


def learning_rate(
    optimizer: str, plan: Plan, examples: int, model: str, initial_norm: float, row_norm: float | None = None
) -> float:
    """A learning rate from public numbers.

    Plain SGD adds noise of standard deviation rate x clip_norm x noise_multiplier / batch to a weight in each step; the
    rate is set so that this gathers to 0.3 over the run (0.6 for a linear model, which is convex; where the norm of its rows
    is public, so that it gathers to 5 in the score of a row). Networks other than
    fully connected ones, whose weights are shared or normalised, never step further than their initial weights are long.
    Adaptive optimizers, whose steps do not scale with the gradient, get a constant.

    Args:
        optimizer: the name of a class of torch.optim.
        plan: the settled plan.
        examples: the declared number of examples.
        model: the model's spec.
        initial_norm: the L2 norm of the initial weights.
        row_norm: the L2 norm of all rows of features, where they are normalised one by one.
    """
    if optimizer != "SGD":
        return _ADAPTIVE_RATE
    # Noise that follows validations never exceeds its start.
    reacts = isinstance(plan.schedule, Validation)
    expected = [plan.schedule.start] * plan.epochs if reacts else plan.noise_multipliers()
    sigmas = [max(sigma, _LEAST_NOISE) for sigma in expected]
    walk = math.sqrt(plan.sampling.steps(examples) * math.fsum(sigma**2 for sigma in sigmas))
    gathered = _GATHERED_LINEAR if model == "linear" else _GATHERED
    if model == "linear" and row_norm is not None:
        gathered = GATHERED_IN_SCORES / row_norm
    step = gathered * plan.sampling.expected_batch_size(examples) / walk
    limit = math.inf if model.partition(":")[0] in ("linear", "mlp") else initial_norm
    return min(step, limit) / plan.clip.clip_norm
