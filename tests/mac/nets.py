"""Networks and examples that the checks of DP-MAC share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core import sampling
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.derivative_bounds import Layerwise
from privlearn.methods.dpmac import sums as batch_module
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.expansion import BINARY, Output
from privlearn.methods.dpmac.network import RELU, SOFTPLUS, TANH, Activation, layers_of
from tests.support.nets import one_sample

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


ACTIVATIONS: dict[str, tuple[Activation, type[nn.Module]]] = {
    "relu": (RELU, nn.ReLU),
    "softplus": (SOFTPLUS, nn.Softplus),
    "tanh": (TANH, nn.Tanh),
}


def net(
    *widths: int,
    kind: type[nn.Module] = nn.Softplus,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), kind()]
    return nn.Sequential(*parts[:-1]).to(dtype)


def made_up(
    rows: int, inputs: int, outputs: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.rand(rows, outputs, generator=generator, dtype=torch.float64).to(
        dtype
    )


def derivatives(
    model: nn.Module, bound: Layerwise, output: Output = BINARY, **more: Any
) -> batch_module.BatchDerivatives:
    settings: dict[str, Any] = {
        "adjacency": ADD,
        "coordinates": Coordinates(5, 0.05, "adam"),
        "examples": 64,
    } | more
    return batch_module.BatchDerivatives(
        layers_of(model, {nn.Tanh: TANH}),
        output,
        bound,
        settings.pop("adjacency"),
        settings.pop("coordinates"),
        **settings,
    )


def sample_of(rows: Any) -> sampling.Sample:
    return sampling.Sample(np.asarray(rows), one_sample().unit)


def values(parts: Any) -> list[Tensor]:
    return [part.values[0] for part in parts]
