"""How much of a packaged encoder should be trained privately: a head, adapters, the last block, or
all of it.

`python bench/encoder_tuning.py [--rows 5000] [--size 64] [--epochs 8] [--epsilons 1,8]
[--ways head,lora,block,whole] [--seeds 3] [--quick]`.

The encoder is `package:mobilenet-v2`. Training rows of CIFAR-10 alone: the first `--rows` are
learned from, and the 2,000 after them are judged by: the first 1,000 choose each way's learning
rate, of as many tries for each, and the second 1,000 give the figure. The clip is 1, batches are
the rule's. A line is printed for each run.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.training.planning import batch_size
from privlearn.transforms import Packaged
from privlearn.transforms.packaged_networks import PackagedModule, read_network

FEATURES = 1280
WAYS = ("head", "lora", "block", "whole")
JUDGED, CLIP, RANK, DELTA = 1000, 1.0, 4, 1e-5
#: Learning rates that each way has: of the head, and of the encoder over it.
RATES = (0.1, 0.5)
PARTS = {"head": 0.0, "lora": 0.3, "block": 0.03, "whole": 0.03}
#: The last block of layers that are trained alone: the last inverted residual and what follows.
LAST = 3


class Adapted(nn.Module):
    """A convolution of 1 x 1 with a correction of low rank, which begins at nothing."""

    def __init__(self, fixed: nn.Conv2d, rank: int):
        super().__init__()
        self.fixed = fixed.requires_grad_(False)
        self.down = nn.Conv2d(fixed.in_channels, rank, 1, bias=False)
        self.up = nn.Conv2d(rank, fixed.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, channels, height, width) into others."""
        return cast(Tensor, self.fixed(x) + self.up(self.down(x)))


class Tuned(nn.Module):
    """An encoder, roots of its features brought to one norm, and a linear head."""

    def __init__(self, encoder: nn.Module, features: int):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(features, 10)
        nn.init.zeros_(self.head.weight), nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps or images to scores."""
        features = self.encoder(x).mean((2, 3))
        roots = (features + 1e-3).sqrt()  # whose slope at 0 is bounded
        return cast(Tensor, self.head(F.layer_norm(roots, roots.shape[1:])))


def adapted(module: nn.Module, rank: int = RANK) -> nn.Module:
    """The module with a correction at each convolution of 1 x 1."""
    for name, part in list(module.named_children()):
        if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1):
            setattr(module, name, Adapted(part, rank))
        else:
            adapted(part, rank)
    return module


def network_of(way: str, size: int) -> tuple[Tuned, nn.Module]:
    """What is trained, and the fixed layers in front of it."""
    layers = cast(nn.Sequential, read_network(Packaged("mobilenet-v2", size)))
    for value in layers.requires_grad_(False).parameters():
        value.data = value.data.contiguous()
    torch.manual_seed(0)
    cut = {"head": len(layers), "block": len(layers) - LAST}.get(way, 0)
    first, rest = layers[:cut], layers[cut:]
    if way == "lora":
        adapted(rest)
    else:
        rest.requires_grad_(True)
    return Tuned(rest, FEATURES), first


def rows_of(way: str, size: int, rows: int) -> tuple[Tuned, pv.Dataset, pv.Dataset]:
    """The network; its training rows with those that choose, and with those that judge."""
    trained, first = network_of(way, size)
    images = pv.load("cifar10")
    x = torch.from_numpy(np.asarray(images.x[: rows + 2 * JUDGED])).float() / 255
    module = cast(PackagedModule, Packaged("mobilenet-v2", size).module((3, 32, 32)))
    with torch.no_grad():
        seen = [first(module.prepared(part).contiguous()) for part in torch.split(x, 100)]
    maps = torch.cat(seen).contiguous().numpy()
    y = np.asarray(images.y[: len(maps)]).astype(np.int64)
    ends = (rows, rows + JUDGED, rows + 2 * JUDGED)
    chooses, judges = (slice(ends[at], ends[at + 1]) for at in (0, 1))
    parts = maps[:rows], y[:rows]
    return (
        trained,
        pv.Dataset(*parts, maps[chooses], y[chooses], classes=10),
        pv.Dataset(*parts, maps[judges], y[judges], classes=10),
    )


def right(trained: nn.Module, data: pv.Dataset) -> float:
    """The share of the judged rows that are."""
    x, y = data.test_tensors()
    with torch.no_grad():
        said = torch.cat([trained(part).argmax(1) for part in torch.split(x, 100)])
    return float(said.eq(y).double().mean())


def descent(
    parameters: Iterable[Tensor], *, head: set[int], rate: float, part: float
) -> torch.optim.Optimizer:
    """SGD with momentum; the encoder's rate is `part` times the head's."""
    groups: list[list[Tensor]] = [[], []]
    for value in parameters:
        groups[id(value) not in head].append(value)
    rates = zip(groups, (rate, part * rate), strict=True)
    return torch.optim.SGD(
        [{"params": values, "lr": each} for values, each in rates if values], momentum=0.9
    )


def train(
    trained: Tuned, data: pv.Dataset, *, epsilon: float, epochs: int, rate: float, part: float
) -> Callable[[int], float]:
    """A run of a seed, from the public start; gives the share that is right."""
    number = data.examples
    plan = pv.Plan(
        pv.Poisson(batch_size(number) / number),
        epochs=epochs,
        clip=pv.Flat(CLIP),
        examples=number,
    ).calibrate(epsilon=epsilon, delta=DELTA)

    def run(seed: int) -> float:
        network = copy.deepcopy(trained)
        head = {id(value) for value in network.head.parameters()}
        pv.dpsgd(
            plan,
            network,
            nn.CrossEntropyLoss(reduction="none"),
            data,
            optimizer=partial(descent, head=head, rate=rate, part=part),
            streams=pv.Streams.new(seed),
        )
        return right(network, data)

    return run


def main() -> None:
    """Choose each way's rate, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--epsilons", default="1,8")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="200 rows of 32 x 32, one epoch")
    asked = parser.parse_args()
    if asked.quick:
        asked.rows, asked.size, asked.epochs, asked.seeds, asked.epsilons = 200, 32, 1, 1, "8"
    torch.set_num_threads(1)
    for way in asked.ways.split(","):
        trained, chooses, judges = rows_of(way, asked.size, asked.rows)
        weights = sum(value.numel() for value in trained.parameters() if value.requires_grad)
        for epsilon in map(float, asked.epsilons.split(",")):
            settings: dict[str, Any] = {
                "epsilon": epsilon,
                "epochs": asked.epochs,
                "part": PARTS[way],
            }
            reached = {}
            for rate in RATES[:1] if asked.quick else RATES:
                started = time.perf_counter()
                reached[rate] = train(trained, chooses, rate=rate, **settings)(1000)
                line = {"way": way, "epsilon": epsilon, "rate": rate, "held": reached[rate]}
                line |= {"weights": weights, "seconds": round(time.perf_counter() - started)}
                print(json.dumps(line), flush=True)
            best = max(reached, key=lambda rate: reached[rate])
            for seed in range(asked.seeds):
                accuracy = train(trained, judges, rate=best, **settings)(seed)
                line = {"way": way, "epsilon": epsilon, "rate": best, "seed": seed}
                print(json.dumps(line | {"accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    main()
