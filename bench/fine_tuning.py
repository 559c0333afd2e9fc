"""Whether private fine-tuning of the drawn encoder's last convolution lifts CIFAR-10 above fixed
features.

`python bench/fine_tuning.py [--rows 20000] [--epochs 10] [--epsilons 8] [--rates 0,0.01,0.1]
[--quick]`.
Training rows alone: the first four fifths are learned from, the last fifth is judged by. A row is
the 2,000 default directions of random units beside the encoder's maps before its last convolution,
both fixed; what is learned is that convolution (590 thousand weights) and a linear head behind its
500 directions and the 2,000. `--rates` are the convolution's learning rates over the head's: 0 is
the fixed encoder. The first line is without privacy, by Adam.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn._storage import cache
from privlearn.runs.front import Front
from privlearn.training.rules import learning_rate
from privlearn.transforms import drawn_encoder, feature_cache, read_features, usual

MAPS, CLIP = (256, 4, 4), 0.1


class Tuned(nn.Module):
    """The last convolution with its directions, beside fixed features of the same row, and a linear
    head.
    """

    def __init__(self, encoder: Any, fixed: int):
        super().__init__()
        self.fixed, weight = fixed, encoder.get_buffer("weight6")
        self.convolution = nn.Conv2d(MAPS[0], MAPS[0], 3, padding=1)
        self.convolution.load_state_dict({"weight": weight, "bias": encoder.get_buffer("bias6")})
        self.register_buffer("mean", encoder.get_buffer("mean"))
        self.register_buffer("components", encoder.get_buffer("components"))
        self.head = nn.Linear(fixed + encoder.kept, 10)
        nn.init.zeros_(self.head.weight), nn.init.zeros_(self.head.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (rows, fixed + 4096) to scores."""
        maps = rows[:, self.fixed :].reshape(-1, *MAPS)
        seen = F.relu(maps + self.convolution(maps)).flatten(1)
        tuned = (seen - self.get_buffer("mean")) @ self.get_buffer("components")
        tuned = tuned / tuned.norm(dim=1, keepdim=True).clamp(min=1e-6) * math.sqrt(tuned.shape[1])
        return self.head(torch.cat([rows[:, : self.fixed], tuned], 1))  # type: ignore[no-any-return]


def before(encoder: Any, images: Tensor) -> Tensor:
    """The encoder's maps before its last convolution, flattened."""
    parts = []
    for some in images.split(250):
        maps = 2 * some.float() - 1
        for index, (inputs, outputs, stride, size) in enumerate(drawn_encoder._CONVOLUTIONS[:-1]):
            convolved = F.conv2d(
                maps,
                encoder.get_buffer(f"weight{index}"),
                encoder.get_buffer(f"bias{index}"),
                stride,
                size // 2,
            )
            maps = F.relu(maps + convolved if inputs == outputs else convolved)
        parts.append(maps.flatten(1))
    return torch.cat(parts)


def right(network: nn.Module, data: pv.Dataset) -> float:
    """The share of the judged rows that are."""
    x, y = data.test_tensors()
    with torch.no_grad():
        return float(
            torch.cat([network(part).argmax(1) for part in x.split(1000)]).eq(y).double().mean()
        )


def plainly(network: Tuned, data: pv.Dataset, epochs: int, *, tuned: bool) -> float:
    """Without privacy: Adam, rates that fall to 0."""
    network.convolution.requires_grad_(tuned)
    descent = torch.optim.Adam(
        [
            {"params": network.head.parameters(), "lr": 1e-3},
            {"params": network.convolution.parameters(), "lr": 1e-4},
        ]
    )
    (x, y), steps = data.tensors(), -(-data.examples // 256)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(descent, epochs * steps)
    torch.manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(256):
            descent.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            descent.step(), falling.step()
    return right(network, data)


def privately(network: Tuned, data: pv.Dataset, epsilon: float, epochs: int, rate: float) -> float:
    """DP-SGD with default batches and clip; the convolution's rate is `rate` times the head's,
    which is the rule's.
    """
    plan = pv.Plan(pv.Poisson(1 / 15), epochs=epochs, clip=pv.Flat(CLIP), examples=data.examples)
    plan = plan.calibrate(epsilon=epsilon, delta=1e-5)
    head = learning_rate(
        "SGD", plan, data.examples, "linear", 0.0, math.sqrt(network.head.in_features)
    )
    network.convolution.requires_grad_(rate > 0)

    def descent(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        of_convolution = {id(value) for value in network.convolution.parameters()}
        groups: list[list[Tensor]] = [[], []]
        for value in parameters:
            groups[id(value) in of_convolution].append(value)
        rates = zip(groups, (head, rate * head), strict=True)
        return torch.optim.SGD([{"params": values, "lr": each} for values, each in rates if values])

    pv.dpsgd(
        plan,
        network,
        nn.CrossEntropyLoss(reduction="none"),
        data,
        optimizer=descent,
        streams=pv.Streams.new(0),
    )
    return right(network, data)


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--epsilons", default="8")
    parser.add_argument("--rates", default="0,0.01,0.1")
    parser.add_argument(
        "--quick", action="store_true", help="300 rows and one epoch, to see that it runs"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, rows, epochs = (
        pv.load("cifar10"),
        300 if options.quick else options.rows,
        1 if options.quick else options.epochs,
    )
    chain, images = read_features(usual(np.shape(images.x)[1:], images.low, 10**6) or "raw", images)
    x = torch.from_numpy(np.asarray(images.x[:rows]))
    with feature_cache(cache() / "features"):  # those of all rows are kept for other runs
        front = Front(chain, images, x if options.quick else images.tensors()[0])
    joined = next(module for module in front.modules if hasattr(module, "encoder"))
    fixed = front.rows.shape[1] - joined.encoder.kept
    x = torch.cat([front.rows[:rows, :fixed], before(joined.encoder, x)], 1)
    y, cut = np.asarray(images.y[:rows]), rows * 4 // 5
    data = pv.Dataset(x[:cut].numpy(), y[:cut], x[cut:].numpy(), y[cut:], classes=10)
    plain = {
        name: plainly(Tuned(joined.encoder, fixed), data, min(epochs, 6), tuned=tuned)
        for name, tuned in (("fixed", False), ("fine-tuned", True))
    }
    print(json.dumps({"without privacy": plain}), flush=True)
    for epsilon in map(float, options.epsilons.split(",")):
        for rate in map(float, options.rates.split(",")):
            reached = privately(Tuned(joined.encoder, fixed), data, epsilon, epochs, rate)
            print(json.dumps({"epsilon": epsilon, "rate": rate, "accuracy": reached}), flush=True)


if __name__ == "__main__":
    main()
