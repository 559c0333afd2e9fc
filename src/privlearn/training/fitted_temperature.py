"""After the last step, one more release chooses the temperature: what the scores are divided by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.evaluation import Gains, evaluating
from privlearn.core.mechanisms.release import release
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from privlearn.core.temperature import OWN_MOST, Temperature
from privlearn.errors import BadInput
from privlearn.training.centring import CLIP_NORM

if TYPE_CHECKING:
    from privlearn.core.clipping.own_steps import OwnSteps
    from privlearn.runs.optimizers import Descent
    from privlearn.runs.session import TrainingSession
    from privlearn.training.task import Task


@final
class FittedTemperature:
    """The temperature of a run's scores, a part of its checkpoint.

    Guarantee: it follows from one Gaussian release, which the plan holds (`Plan.temperature`), and
    from public numbers.

    Args:
        task: what is trained.
        plan: how the temperature is chosen.
        descent: the optimizer.

    Attributes:
        value: the temperature, once it was released.
        divided: whether the last layer was divided by it.

    Raises:
        BadInput: the task is no classification of rows in memory by a network whose scores come
            from a last linear layer.
    """

    def __init__(self, task: Task, plan: Temperature, descent: Descent) -> None:
        self._task, self._plan, self._descent = task, plan, descent
        self.value: float | None = None
        self.divided = False
        self._refuse()

    def _refuse(self) -> None:
        task = self._task
        if (
            not isinstance(task.indexed, TensorRows | None)
            or task.y.dim() != 1
            or task.y.is_floating_point()
        ):
            raise BadInput(
                "the plan has a temperature, for classifiers of arrays or tensors, one whole "
                "number the target of each row: leave it out of the plan (temperature=None), or "
                "give such rows"
            )
        if scored_by(task.network, self._make_row()) is None:
            raise BadInput(
                "the plan has a temperature, and the model's scores are not those of a last "
                "torch.nn.Linear: end the model with one, or leave the temperature out of the plan "
                "(temperature=None)"
            )

    def _make_row(self) -> Tensor:
        """A row of zeros, as the network gets it, where the network is."""
        like = self._task.rows.like[0]
        return like.new_zeros(1, *like.shape[1:], device=self._task.parameters[0].device)

    def fit(self, session: TrainingSession) -> None:
        """Release the losses of all examples, and choose the temperature.

        In a run that goes on from a checkpoint that has it, it is charged again.
        """
        plan, task = self._plan, self._task
        if self.value is not None:
            session.charge_again(plan.event())
            return
        (sample,) = FullBatch().draw(task.present)
        gains = Gains(
            task.network,
            own_steps=self._find_own_steps(),
            at_once=task.compute.microbatch,
            computed=task.gradients.fixed.restore,
        ).sum(sample, task.rows, task.plan.neighbours, task.persons)
        sensitivity = gains.sensitivity
        ((noisy,),) = release(
            gains,
            noise_multiplier=plan.noise_multiplier,
            ledger=session.agreed,
            stream=session.noise,
        )
        layer = scored_by(task.network, self._make_row())
        assert layer is not None
        classes, released, front = layer.out_features, noisy.cpu().numpy(), task.plan.front
        sure = task.plan.clip.clip_norm < CLIP_NORM or len(task.parameters) > len(
            [*layer.parameters()]
        )
        known = {"sure": sure, "normalised": bool(front) and front[-1].normalises}
        self.value = session.world.once(
            lambda: plan.best(released, classes, task.examples, sensitivity, **known),
            "the temperature",
        )

    def _find_own_steps(self) -> OwnSteps | None:
        """What plain SGD of one linear layer did to an example's own scores, from public numbers;
        None of other networks, clips and optimizers, and of examples of several rows.
        """
        task, plan = self._task, self._task.plan
        row = self._make_row()
        layer, plain = scored_by(task.network, row), (nn.Sequential, nn.Flatten, nn.Linear)
        known = layer is not None and layer.in_features == row.numel() and task.persons is None
        known &= all(type(module) in plain for module in task.network.modules())
        known &= len(task.parameters) == len([*task.network.parameters()])
        if layer is None or not known or plan.reacts or not isinstance(plan.clip, Flat):
            return None
        rates = sum_rates(self._descent, plan.epochs, task.steps)
        if not math.isfinite(rates):
            return None
        from privlearn.core.clipping.own_steps import OwnSteps  # for a temperature alone

        bias, examples = layer.bias is not None, task.examples
        most = OWN_MOST * (layer.in_features + bias) / examples
        return OwnSteps(rates / examples, plan.clip.clip_norm, bias, most)

    @torch.no_grad()
    def divide(self) -> None:
        """Divide the last layer by the temperature."""
        assert self.value is not None
        layer = scored_by(self._task.network, self._make_row())
        assert layer is not None
        layer.weight.div_(self.value)
        if layer.bias is not None:
            layer.bias.div_(self.value)
        self.divided = True

    def facts(self) -> dict[str, Any]:
        """For the certificate."""
        return {} if self.value is None else {"fitted_temperature": self.value}

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: before the weights are divided."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from a state."""
        self.value = state["value"]


def scored_by(network: nn.Module, row: Tensor) -> nn.Linear | None:
    """The linear layer, with weights of its own, whose outputs are the network's scores of a
    made-up `row`; or None.
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        return None
    last, outputs = layers[-1], []
    handle = last.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        with torch.no_grad(), evaluating(network):
            out = network(row)
    finally:
        handle.remove()
    uses = sum(
        parameter is last.weight
        for module in network.modules()
        for parameter in module._parameters.values()
    )
    return (
        last if uses == 1 and len(outputs) == 1 and outputs[0] is out and out.dim() == 2 else None
    )


def sum_rates(descent: Descent, epochs: int, steps: int) -> float:
    """The sum of the learning rates of all steps, so many in each epoch, of plain SGD; NaN of other
    optimizers.
    """
    optimizer, schedule = descent.optimizer, descent.schedule
    (group, *others) = optimizer.param_groups
    settings = (group.get("momentum"), group.get("weight_decay"), group.get("maximize"))
    if type(optimizer) is not torch.optim.SGD or others or any(settings):
        return math.nan
    factors = [schedule(at / steps) for at in range(epochs * steps)]
    return float(descent.first * math.fsum(factors) / schedule(0))
