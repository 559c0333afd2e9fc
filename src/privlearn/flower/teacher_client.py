"""A site's app: its teacher answers the server's questions, and its records stay where they are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn.core.devices import PROCESSOR
from privlearn.errors import BadInput
from privlearn.flower.messages import QUESTION, pack_answers, unpack_inputs

#: Loads or trains a site's teacher.
LoadTeacher = Callable[[Context], Any]

#: Rows that a network sees at once.
_ROWS_AT_ONCE = 1000

_log = logging.getLogger(__name__)


def teacher_app(load: LoadTeacher) -> ClientApp:
    """A Flower client app by which a site's teacher answers queries about public inputs.

    Guarantee: none by itself. What it sends is one teacher's answers without noise, which the
    server reads; noise is added there, by `pv.pate`. The app sends these answers or an empty reply:
    whatever fails at the site is logged there, and no message of an error leaves it.

    Args:
        load: called with Flower's `context` at each request, which names the site's files in
            `context.node_config`. It returns the teacher: a `torch.nn.Module`, an object with
            `predict` such as a fitted scikit-learn model, or a function from inputs to answers.
            Inputs are a float array, a row for each query. Answers are a row for each query:
            classes, or scores for each class, or numbers of the targets' shape.

    Raises:
        BadInput: `load` is not a function.
    """
    if not callable(load):
        raise BadInput(
            f"load is a {type(load).__name__}: expected a function from Flower's context to a "
            "teacher, such as lambda context: joblib.load(context.node_config['teacher'])"
        )
    app = ClientApp()

    @app.query(QUESTION)
    def answer(message: Message, context: Context) -> Message:
        try:
            answers = _ask(load(context), unpack_inputs(message.content))
        except Exception:
            _log.exception("the teacher did not answer, and the server gets an empty reply")
            answers = None
        return Message(pack_answers(answers), reply_to=message)

    return app


def _ask(teacher: Any, inputs: NDArray[Any]) -> NDArray[Any]:
    if isinstance(teacher, nn.Module):
        return _predict(teacher.eval(), torch.from_numpy(inputs)).numpy()
    predict = getattr(teacher, "predict", teacher)
    return np.asarray(predict(inputs))


def _predict(network: nn.Module, inputs: Tensor) -> Tensor:
    """What a network says, on the device where its parameters are."""
    device = next((parameter.device for parameter in network.parameters()), PROCESSOR)
    with torch.no_grad():
        batches = [network(rows.to(device)) for rows in inputs.split(_ROWS_AT_ONCE)]  # type: ignore[no-untyped-call]
        return torch.cat(batches).to(PROCESSOR)
