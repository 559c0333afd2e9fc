"""What follows the steps of a run: post-processing of its weights, and temperature scaling by one more release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from privlearn.clipping.evaluation import Gains, evaluating
from privlearn.data.rows import TensorRows
from privlearn.descent.centring import CLIP_NORM
from privlearn.errors import BadInput
from privlearn.mechanisms.release import release
from privlearn.runs.optimizers import Descent
from privlearn.runs.post_processing import processors
from privlearn.sampling import FullBatch

if TYPE_CHECKING:
    from privlearn.descent.task import Task
    from privlearn.runs.session import Part, TrainingSession


@final
class AfterTraining:
    """Post-processing (`runs.post_processing`), then the temperature of the scores; both are part of a checkpoint.

    Guarantee: the temperature follows from one Gaussian release, which the plan holds (`Plan.temperature`), and from
    public numbers. Post-processing sees nothing but weights, and costs nothing.

    Args:
        task: what is trained.
        descent: the optimizer, which knows whether something else changed the weights.
        arguments: the values of the rows of `runs.post_processing`, by name.

    Raises:
        BadInput: the plan has a temperature, and the task is no classification of rows in memory by a network whose
            scores come from a last linear layer.
    """

    def __init__(self, task: Task, descent: Descent, arguments: Mapping[str, Any]) -> None:
        self._task, self._descent, self._plan = task, descent, task.plan.temperature
        self._processors = processors(task.parameters, arguments)
        self.value: float | None = None
        self._divided = False
        if self._plan is not None:
            self._refuse()

    def _refuse(self) -> None:
        task = self._task
        if not isinstance(task.indexed, TensorRows | None) or task.y.dim() != 1 or task.y.is_floating_point():
            raise BadInput(
                "the plan has a temperature, for classifiers of arrays or tensors, one whole number the target of each "
                "row: leave it out of the plan (temperature=None), or give such rows"
            )
        if scored_by(task.network, self._made_up()) is None:
            raise BadInput(
                "the plan has a temperature, and the model's scores are not those of a last torch.nn.Linear: end the "
                "model with one, or leave the temperature out of the plan (temperature=None)"
            )

    def _made_up(self) -> Tensor:
        """A row of zeros, as the network gets it, where the network is."""
        like = self._task.rows.like[0]
        return like.new_zeros(1, *like.shape[1:], device=self._task.parameters[0].device)

    @property
    def parts(self) -> dict[str, Part]:
        """What a checkpoint keeps."""
        return {**self._processors, **({} if self._plan is None else {"temperature": self})}

    def step(self) -> None:
        """A step was taken."""
        for processor in self._processors.values():
            processor.after_step()

    def fit(self, session: TrainingSession) -> None:
        """After the last step: release the losses of all examples, and choose the temperature.

        In a run that goes on from a checkpoint that has it, it is charged again.
        """
        self._process()
        plan, task = self._plan, self._task
        if plan is None:
            return
        if self.value is not None:
            session.charge_again(plan.event())
            return
        (sample,) = FullBatch().draw(task.present)
        gains = Gains(task.network, at_once=task.compute.microbatch, computed=task.gradients.fixed.restore).sum(
            sample, task.rows, task.plan.neighbours, task.persons
        )
        sensitivity = gains.sensitivity
        ((noisy,),) = release(
            gains, noise_multiplier=plan.noise_multiplier, ledger=session.agreed, stream=session.noise
        )
        layer = scored_by(task.network, self._made_up())
        assert layer is not None
        classes, released, front = layer.out_features, noisy.cpu().numpy(), task.plan.front
        sure = task.plan.clip.clip_norm < CLIP_NORM or len(task.parameters) > len([*layer.parameters()])
        known = {"sure": sure, "normalised": bool(front) and front[-1].normalises}
        self.value = session.world.once(
            lambda: plan.best(released, classes, task.examples, sensitivity, **known), "the temperature"
        )

    def _process(self) -> None:
        self._descent.look()
        for processor in self._processors.values():
            processor.after_run()
        self._descent.seen()

    @torch.no_grad()
    def end(self) -> None:
        """The parameters become what is published: post-processed, the last layer divided by the temperature, once."""
        if not self._divided:
            self._process()
        self._descent.look()
        if self.value is None or self._divided:
            return
        layer = scored_by(self._task.network, self._made_up())
        assert layer is not None
        layer.weight.div_(self.value)
        if layer.bias is not None:
            layer.bias.div_(self.value)
        self._descent.seen()
        self._divided = True

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
    """The linear layer, with weights of its own, whose outputs are the network's scores of a made-up `row`; or None."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        return None
    last, made = layers[-1], []
    handle = last.register_forward_hook(lambda module, inputs, output: made.append(output))
    try:
        with torch.no_grad(), evaluating(network):
            out = network(row)
    finally:
        handle.remove()
    uses = sum(own is last.weight for module in network.modules() for own in module._parameters.values())
    return last if uses == 1 and len(made) == 1 and made[0] is out and out.dim() == 2 else None
