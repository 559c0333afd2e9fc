"""Steps of an optimizer that are beyond single precision."""

from __future__ import annotations

from privlearn.errors import BadInput
from privlearn.runs.session import TrainingSession


def end_run(error: RuntimeError, session: TrainingSession) -> None:
    """End a run for good whose optimizer could not take a step because the rate is beyond single
    precision, where torch refuses to compute. A run with an error of another kind can go on.

    Raises:
        BadInput: it ends.
    """
    if "without overflow" in str(error):
        session.abandon()
        raise BadInput(
            "the optimizer can't compute a step: a factor of it is beyond single precision. "
            "Expected a smaller learning rate. What was released before this step stays spent"
        ) from error
