"""After the steps of a run, its weights are post-processed, and scores are scaled by a temperature
from one more release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from privlearn.runs.optimizers import Descent
from privlearn.runs.post_processing import processors

if TYPE_CHECKING:
    from privlearn.runs.session import Part, TrainingSession
    from privlearn.training.fitted_temperature import FittedTemperature
    from privlearn.training.task import Task


@final
class AfterTraining:
    """Post-processing (`runs.post_processing`), then the temperature of the scores; both are part
    of a checkpoint.

    Guarantee: post-processing sees nothing but weights, and costs nothing. What the temperature
    costs is in the plan (`training.fitted_temperature`).

    Args:
        task: what is trained.
        descent: the optimizer, which knows whether something else changed the weights.
        arguments: the values of the rows of `runs.post_processing`, by name.

    Raises:
        BadInput: the plan has a temperature, and the task none that it is for.
    """

    def __init__(self, task: Task, descent: Descent, arguments: Mapping[str, Any]) -> None:
        self._descent = descent
        self._processors = processors(task.parameters, arguments)
        self._temperature: FittedTemperature | None = None
        if task.plan.temperature is not None:
            # for classifiers of rows in memory
            from privlearn.training.fitted_temperature import FittedTemperature

            self._temperature = FittedTemperature(task, task.plan.temperature, descent)

    @property
    def parts(self) -> dict[str, Part]:
        """What a checkpoint keeps."""
        return {
            **self._processors,
            **({"temperature": self._temperature} if self._temperature else {}),
        }

    def step(self) -> None:
        """A step was taken."""
        for processor in self._processors.values():
            processor.after_step()

    def fit(self, session: TrainingSession) -> None:
        """After the last step: post-process the weights, and choose the temperature."""
        self._process()
        if self._temperature:
            self._temperature.fit(session)

    def _process(self) -> None:
        self._descent.look()
        for processor in self._processors.values():
            processor.after_run()
        self._descent.seen()

    def end(self) -> None:
        """The parameters become what is published: post-processed, the last layer divided by the
        temperature, once.
        """
        temperature = self._temperature
        if not (temperature and temperature.divided):
            self._process()
        self._descent.look()
        if temperature and temperature.value is not None and not temperature.divided:
            temperature.divide()
            self._descent.seen()

    def facts(self) -> dict[str, Any]:
        """For the certificate."""
        return self._temperature.facts() if self._temperature else {}
