"""A site's app: its teacher answers the server's questions, and its records stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn._checks import require_fit
from privlearn.core.devices import PROCESSOR
from privlearn.errors import BadInput
from privlearn.flower.share_questions import SHARES, unpack_share_question
from privlearn.flower.site_shares import SiteShares
from privlearn.flower.summation import Circle, InTheClear, Summation
from privlearn.flower.teacher_question import QUESTION, Question, unpack_question
from privlearn.methods.pate.reducers import Reducer

#: Loads or trains a site's teacher.
LoadTeacher = Callable[[Context], Any]

#: Opens a site's ledger and terms.
OpenShares = Callable[[Context], SiteShares]

#: Rows that a network sees at once.
_ROWS_AT_ONCE = 1000


def teacher_app(
    load: LoadTeacher,
    *,
    reducer: Reducer | None = None,
    summation: Summation | None = None,
    shares: OpenShares | None = None,
) -> ClientApp:
    """A Flower client app by which a site's teacher answers queries about public inputs.

    Guarantee: one site, whatever its records and its teacher are, moves the sites' sum by the
    plan's sensitivity at most. Its answers are bounded and rounded to integers here: votes count 1
    each, codes are clipped to the ball, numbers of a box to [0, 1]. There is no noise in them;
    `pv.pate` adds it at the server. With `shares` the site adds its share of the noise, and
    everything that it ever answers is within its own ledger's budget (`SiteShares`). The app sends
    these integers, as the summation does, or an empty reply: whatever fails at the site is logged
    there, and no message of an error leaves it.

    Args:
        load: called with Flower's `context` at each request, which names the site's files in
            `context.node_config`. It returns the teacher: a `torch.nn.Module`, an object with
            `predict` such as a fitted scikit-learn model, or a function from inputs to answers.
            Inputs are a float array, a row for each query. Answers are a row for each query:
            classes, or scores for each class, or numbers of the targets' shape.
        reducer: the public reducer of the server, by which targets become codes. It is needed for
            one that is not linear, such as an autoencoder: others come with the question. The
            site does not answer a server that has another one.
        summation: how the answers reach the server, the same as the server's; None:
            `InTheClear()`. The site answers no other.
        shares: opens from Flower's `context` the site's ledger and terms, such as
            `lambda context: SiteShares(context.node_config["ledger"], teachers=50)`: the site then
            answers plans with `site_noise` alone. None: the server adds the noise.

    Raises:
        BadInput: `load` is not a function, or another argument is something else.
    """
    if not callable(load):
        raise BadInput(
            f"load is a {type(load).__name__}: expected a function from Flower's context to a "
            "teacher, such as lambda context: joblib.load(context.node_config['teacher'])"
        )
    require_fit("reducer", reducer, Reducer | None)
    require_fit("summation", summation, Summation | None)
    if shares is not None and not callable(shares):
        raise BadInput(
            f"shares is a {type(shares).__name__}: expected a function from Flower's context, such "
            "as lambda context: SiteShares(context.node_config['ledger'], teachers=50)"
        )
    app = ClientApp()

    def say(question: Question, context: Context) -> Tensor | None:
        answers = _ask(load(context), question.inputs)
        return question.integers.of(answers, len(question.inputs))

    def add_share(
        content: RecordDict, context: Context, circle: Circle
    ) -> NDArray[np.int64] | None:
        assert shares is not None
        question = unpack_share_question(content, reducer)
        return shares(context).answer(question, lambda: say(question.asked, context), circle)

    def compute(content: RecordDict, context: Context, circle: Circle) -> NDArray[np.int64] | None:
        integers = say(unpack_question(content, reducer), context)
        return None if integers is None else integers.flatten().numpy()

    if shares is None:
        (summation or InTheClear()).serve(app, QUESTION, compute)
    else:
        (summation or InTheClear()).serve(app, SHARES, add_share)
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
