"""Weights that a run had after a step are recognised, and may be published in place of the last."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from torch import Tensor, nn

from privlearn.core.clipping.sharded.models import local_part
from privlearn.errors import BadInput
from privlearn.runs.checkpoint import digest_of
from privlearn.runs.result import Result
from privlearn.training.run import Run

#: The fact that names the step whose weights are published.
WEIGHTS_OF_STEP = "weights_of_step"


@final
class NotedWeights:
    """Digests of the weights that a run had between its steps, and after the last one.

    Guarantee: weights are recognised only if the run itself had them after a step, and nothing else
    had changed them: the plan's guarantee covers those after every step. Which of them are
    published must not follow from private rows. So it is refused where a private figure became a
    plain number in the script; figures of public validation rows may choose.

    Args:
        run: whose weights are noted. It keeps the digests with its checkpoint, if it has one.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._trained = [
            name for name, weight in run.model.named_parameters() if weight.requires_grad
        ]
        self._steps: dict[str, int] = {}
        self._last = self._beside = ""

    @property
    def names(self) -> list[str]:
        """Those of the trained weights."""
        return list(self._trained)

    def note(self) -> None:
        """The weights are those after the last step that was taken; between two steps."""
        descent: Any = self._run.session.parts["optimizer"]
        descent.look()  # nothing is claimed where something else had changed them
        self._steps[self._digest(self._weights())] = self._run.steps_done

    def end(self) -> None:
        """The run is over, and the model has its result."""
        self._last = self._digest(self._weights())
        self._beside = self._digest_beside()

    def require_known(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse weights, by name, that the run did not have, or that may not be chosen.

        Raises:
            BadInput: saying why.
        """
        digest = self._digest(weights) if weights.keys() >= {*self._trained} else ""
        if digest not in {*self._steps, self._last}:
            raise BadInput(
                "the file does not hold weights that this run noted: expected a checkpoint that "
                "ModelCheckpoint or trainer.save_checkpoint wrote between two steps of this run. "
                "Leave ckpt_path out to publish the weights of the last step"
            )
        self._require_choice(digest)

    def recognise(self, result: Result) -> Result:
        """The result with the weights that its model has now, and the step that they are of.

        Raises:
            BadInput: the model has other weights than the run had, or they may not be chosen.
        """
        digest = self._digest(self._weights())
        known = digest in {*self._steps, self._last}
        if not known or self._beside != self._digest_beside():
            raise BadInput(
                "the module's weights were changed after the run, and it did not have them after "
                "any step: nothing can be claimed for them. For those of a checkpoint that "
                "ModelCheckpoint wrote during fit give publish(folder, ckpt_path='best'), or its "
                "path"
            )
        self._require_choice(digest)
        step = {} if digest == self._last else {WEIGHTS_OF_STEP: self._steps[digest]}
        return replace(result, facts=result.facts | step)

    def _require_choice(self, digest: str) -> None:
        """Refuse weights that are not the result's where a private figure may have chosen them, or
        where the result is a mean.
        """
        if digest == self._last:
            return
        figure_use = self._run.session.figure_use
        average = self._run.config.post_processing.get("average")
        if average is not None:
            raise BadInput(
                f"average={average} publishes the mean of the weights, and these are of one step: "
                "leave ckpt_path out, or train without average"
            )
        if figure_use:
            raise BadInput(
                f"{figure_use}, so which step's weights are published may follow from private "
                "rows. Publish those of the last step, or let a metric of public rows choose"
            )

    def state_dict(self) -> dict[str, Any]:
        """Digests of released weights, for a checkpoint."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from a state."""
        self._steps = dict(state["steps"])

    def _weights(self) -> dict[str, Tensor]:
        return dict(self._run.model.named_parameters())

    def _digest(self, weights: Mapping[str, Tensor]) -> str:
        """Of the trained ones; of those under FSDP2, of what this process keeps."""
        return digest_of(*(local_part(weights[name]) for name in self._trained))

    def _digest_beside(self) -> str:
        """Of all that is published beside trained weights, which no step changes."""
        model: nn.Module = self._run.model
        trained = {id(weight) for name, weight in model.named_parameters() if name in self._trained}
        beside = {
            name: tensor
            for name, tensor in model.state_dict(keep_vars=True).items()
            if isinstance(tensor, Tensor) and id(tensor) not in trained
        }
        digest = hashlib.sha256("\n".join(beside).encode())
        digest.update(digest_of(*map(local_part, beside.values())).encode())
        return digest.hexdigest()
