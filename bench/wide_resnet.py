"""CIFAR-10 from nothing by a WRN-16-4 at epsilon 8, for as many seconds as there are.

`python bench/wide_resnet.py [--device cuda] [--seconds 80] [--batch 4096] [--copies 4]
[--epsilon 8] [--width 4] [--scale-norm] [--examples N]`. The network of De et al. 2022
(arXiv:2204.13650), with group norm and weight standardisation (`pv.models.wide_resnet`). Steps are
timed on drawn images first. Their number is what fits into the time, and the noise is calibrated to
that number: nothing private decides it.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch
from torch import nn

import privlearn as pv
from privlearn.core.clipping.augmentation import Augmentation

CLIP_NORM, DELTA, LEARNING_RATE = 1.0, 1e-5, 2.0


def make_network(width: int, scale_norm: bool) -> nn.Module:
    """A WRN-16 of that width."""
    torch.manual_seed(0)
    return pv.models.wide_resnet((3, 32, 32), 10, width=width, scale_norm=scale_norm)


def scale(x: np.ndarray) -> np.ndarray:
    """Pixels between -1 and 1."""
    return (x.astype(np.float32) / 127.5) - 1


def train(
    data: pv.Dataset, steps: int, options: argparse.Namespace, epsilon: float
) -> tuple[pv.Result, int, float]:
    """A run of whole epochs and about that many steps, the steps that it took, and its seconds."""
    rate = min(options.batch / len(data.x), 1.0)
    epochs = max(round(steps * rate), 1)
    plan = pv.Plan(
        pv.Poisson(rate), epochs=epochs, clip=pv.Flat(CLIP_NORM), examples=len(data.x)
    ).calibrate(epsilon=epsilon, delta=DELTA)
    start = time.perf_counter()
    result = pv.dpsgd(
        plan,
        make_network(options.width, options.scale_norm),
        nn.CrossEntropyLoss(reduction="none"),
        data,
        device=options.device,
        augmentation=Augmentation(options.copies, "flip,shift:4"),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=LEARNING_RATE),
        average=0.999,
        streams=pv.Streams.new(0),
    )
    return result, round(epochs / rate), time.perf_counter() - start


def main() -> None:
    """Time steps, train, and print the accuracy on the test images."""
    parser = argparse.ArgumentParser(description="CIFAR-10 by a WRN-16-4.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--scale-norm", action="store_true", help="as Klause et al. 2022")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--examples", type=int, help="train on the first N images alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    whole = pv.load("cifar10")
    number = options.examples or len(whole.x)
    drawn = np.random.default_rng(0)
    noise_images = pv.Dataset(
        drawn.normal(size=(number, 3, 32, 32)).astype(np.float32),
        drawn.integers(10, size=number),
        classes=10,
    )
    _, steps, seconds = train(noise_images, 1, options, options.epsilon)
    each = seconds / steps
    steps = max(int(options.seconds / each), 1)
    print(f"{each:.2f} s a step with what comes before it: about {steps} steps", flush=True)
    data = pv.Dataset(scale(whole.x[:number]), whole.y[:number], classes=10)
    result, steps, seconds = train(data, steps, options, options.epsilon)
    model = result.model.to(options.device).eval()
    right = 0
    for start in range(0, len(whole.x_test), 1000):
        x = torch.from_numpy(scale(whole.x_test[start : start + 1000])).to(options.device)
        with torch.no_grad():
            answers = model(x).argmax(1).cpu().numpy()
        right += int((answers == whole.y_test[start : start + 1000]).sum())
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"WRN-16-{options.width}, {weights / 1e6:.2f} M weights, epsilon {options.epsilon:g}, "
        f"delta {DELTA:g}, {steps} steps of {options.batch} examples, {options.copies} copies: "
        f"accuracy {right / len(whole.x_test):.4f} in {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
