"""A client's app for federated training: it trains the global model on its rows, and sends its
clipped update and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import nn

from privlearn._checks import require_fit
from privlearn.errors import BadInput
from privlearn.flower.summation import Circle, InTheClear, Summation
from privlearn.flower.updates import UPDATE, UpdateGrid, flatten, load_model

#: Trains a client's copy of the global model on its rows, in place.
TrainHere = Callable[[nn.Module, Context], Any]


def training_app(
    build_model: Callable[[], nn.Module],
    train: TrainHere,
    *,
    summation: Summation = InTheClear(),  # noqa: B008 - it keeps nothing
) -> ClientApp:
    """A Flower client app that trains the global model on its rows, and answers with its update.

    Guarantee: none by itself; `train_federated` adds the noise. What a client sends is its update,
    the trained parameters after `train` less those before, clipped as one vector to the L2 norm of
    the request and rounded to a public grid within that norm. It sends nothing else: no loss, no
    number of rows, no buffers, no text of an error. An update that is not finite, and whatever
    fails at the client, is an empty reply, which counts as an update of zero.

    Args:
        build_model: makes the network, as the server's is made. Its weights are replaced.
        train: called with the network, which holds the global model, and Flower's `context`, which
            names the client's files in `context.node_config`. It trains the network in place: any
            optimizer, any number of epochs. What it returns is not looked at.
        summation: how clients' updates are added up; the server's has to be the same.

    Raises:
        BadInput: `build_model` or `train` is not a function.
    """
    for name, value, such in (
        ("build_model", build_model, "that makes the network, lambda: torch.nn.Linear(64, 10)"),
        ("train", train, "of the network and Flower's context that trains the network in place"),
    ):
        if isinstance(value, nn.Module) or not callable(value):
            raise BadInput(f"{name} is a {type(value).__name__}: expected a function {such}")
    require_fit("summation", summation, Summation)
    app = ClientApp()

    def compute(content: RecordDict, context: Context, circle: Circle) -> NDArray[np.int64] | None:
        network = build_model()
        names, clip_norm, share = load_model(content, network)
        before = flatten(network, names)
        train(network, context)
        update = flatten(network, names) - before
        return UpdateGrid(clip_norm, len(before), share).encode(update)

    summation.serve(app, UPDATE, compute)
    return app
