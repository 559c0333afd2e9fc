"""`--start public`: a network learns from public volumes with masks before DP-SGD goes on with
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor, nn

from privlearn.cli import screen
from privlearn.cli.jobs import has_maps, public_rows
from privlearn.cli.request import Request
from privlearn.core.streams import Streams
from privlearn.data import NAMES, Dataset, load
from privlearn.data.dataset import require_others
from privlearn.errors import BadInput
from privlearn.metrics import evaluate
from privlearn.runs.result import Result
from privlearn.training.rules import Settled
from privlearn.training.train import network
from privlearn.transforms.modules import Scale
from privlearn_segmentation import hippocampus
from privlearn_segmentation.start import public_network

#: The weights of the public network, by name; it learns when they are first asked for.
Weights = Callable[[], dict[str, Tensor]]


def tested(data: Dataset) -> Dataset:
    """The data with the volumes to test on, where public volumes lie beside these."""
    if data.name != "hippocampus":
        return data
    parts = hippocampus.split(data)
    return replace(data, x_test=parts.test.x, y_test=parts.test.y)


def volumes(number: int) -> str:
    """So many public volumes, in words."""
    return "1 public volume" if number == 1 else f"{number} public volumes"


def require_startable(request: Request) -> None:
    """Refuse options that don't go with `--start`, before anything is read.

    Raises:
        BadInput: naming them.
    """
    if request.start is None:
        return
    if request.public is None and request.data not in NAMES:
        raise BadInput(
            "--start public learns from public volumes with masks first: give --public PATH, "
            "volumes of the form of --data with masks, which you declare public"
        )
    for option in ("tune", "pca", "select", "features"):
        if request.given(option):
            raise BadInput(
                f"--start is for volumes as they are, and --{option} is given: leave one of them "
                "out"
            )
    if request.schedule.startswith("validation"):
        raise BadInput(
            "--start learns from the rows of --public, so that --schedule validation would look at "
            "rows that the network knows: leave one of them out"
        )


def labelled_volumes(request: Request, data: Dataset) -> Dataset:
    """The public volumes with masks that `--start` names: of --public, or of the data set itself.

    Raises:
        BadInput: targets are no maps, or the volumes have no masks, or are private ones.
    """
    if not has_maps(data):
        raise BadInput(
            "--start is for maps of classes (segmentation), and these data have other targets: "
            "leave it out"
        )
    if request.public is None:
        if data.name != "hippocampus":
            raise BadInput("--start public needs public volumes with masks: give --public PATH")
        return hippocampus.split(load(request.data, request.data_dir)).labelled
    public = public_rows(request, data)
    if public.y is None:
        raise BadInput(
            f"{request.public} has no masks: --start learns from public volumes with theirs"
        )
    for part in (public.x, public.x_test):
        if part is not None:
            require_others(part, data.x, f"the volumes of --public {request.public}")
    return replace(public, x_test=None, y_test=None)


def initial_weights(settled: Settled, data: Dataset, labelled: Dataset) -> Weights:
    """What gives the weights that DP-SGD begins with, and trains them when they are first asked
    for.

    By one public seed: a run that is resumed or replayed begins with the same network.
    """
    size = tuple(np.shape(data.y)[1:])
    if settled.plan.front:
        raise BadInput(
            "--start is for volumes as they are: leave out what is put in front of the network"
        )
    # Built beforehand: a model that can't run on such volumes is refused before anything is
    # trained.
    built = network(
        settled.request.model, tuple(np.shape(data.x)[1:]), data.classes or 0, Streams.new(0), size
    )

    @cache
    def weights() -> dict[str, Tensor]:
        screen.notes.print(
            f"a public network is trained first, on {volumes(len(labelled.x))} with masks"
        )
        return {
            name: tensor.detach().clone()
            for name, tensor in public_network(labelled, built).state_dict().items()
        }

    return weights


def stated(
    result: Result, settled: Settled, data: Dataset, labelled: Dataset, answer: dict[str, Any]
) -> Result:
    """The result with what is public of its start, for certificate and card; its figures go into
    the answer, too.
    """
    assert settled.initial is not None
    size = tuple(np.shape(data.y)[1:])
    alone = network(
        settled.request.model, tuple(np.shape(data.x)[1:]), data.classes or 0, Streams.new(0), size
    )
    alone.load_state_dict(settled.initial)
    facts = {"volumes_with_masks": len(labelled.x), **figures_of(alone, data, answer)}
    return replace(result, facts=result.facts | {"public_start": facts})


def figures_of(alone: nn.Module, data: Dataset, answer: dict[str, Any]) -> dict[str, Any]:
    """Test figures of the public network alone, as facts, if there are test volumes; they go into
    the answer, too.
    """
    if data.x_test is None:
        return {}
    metrics = evaluate(nn.Sequential(Scale(*data.bounds()), alone.eval()), data)
    answer["public_only"] = dict(metrics.figures)
    return {"test_metrics": dict(metrics.figures), "test_rows": metrics.rows}


def beside(
    result: Result, data: Dataset, answer: dict[str, Any], whose: str, brought: str
) -> dict[str, str]:
    """The public network's Dice beside that of what went on from it, with a warning where that is
    not above.
    """
    if data.x_test is None:
        return {}
    alone, dice = answer["public_only"]["dice"], evaluate(result, data)["dice"]
    if dice <= alone:
        screen.warn(
            f"the {whose} Dice of {dice:.4f} is not above the {alone:.4f} of the public network "
            f"alone: on the test volumes the private {brought} brought nothing. The public network "
            "costs no privacy"
        )
    return {"public network alone": f"{alone:.4f}, which no private volume was needed for"}
