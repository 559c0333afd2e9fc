"""What features of `bench/drawn_encoder.py` are worth on CIFAR-10, alone and joined with the
default ones.

`python bench/encoder_probe.py ENCODER.pt [--rows 20000] [--kept 500] [--folder DIR] [--data-dir
DIR] [--private 3]`.
Training rows alone: the first four fifths are learned from, the last fifth is judged by. Without
privacy: least squares with the best of a few ridges on the rows it is judged by, an upper end.
`--private` adds DP-SGD at epsilon 1, 3 and 8, with so many seeds. The folder is that of
`bench/ceiling.py`, where the default features are kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ceiling
import numpy as np
import torch
from drawn_encoder import Encoder
from torch import Tensor
from torch.nn import functional as F

import privlearn as pv
from privlearn.transforms.made_up_images import images as made_up
from privlearn.transforms.made_up_images import projected

ADDED, WHITENED = 0.1, 0.7  # as for the default features


def maps(encoder: Encoder, images: Tensor, layers: str) -> Tensor:
    """Answers of the layers named, of each image and its mirror image averaged, (rows, numbers)."""
    parts = []
    with torch.no_grad():
        for some in images.split(250):
            both = []
            for batch in (some, some.flip(3)):
                outputs = zip(encoder(batch), "eml", strict=True)
                both.append(
                    torch.cat([out.flatten(1) for out, name in outputs if name in layers], 1)
                )
            parts.append((both[0] + both[1]) / 2)
    return torch.cat(parts)


def public_directions(answers: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    """Mean and directions of answers to drawn images, as `made_up_images.directions` makes them."""
    mean = answers.mean(0)
    torch.manual_seed(0)
    _, spread, components = torch.svd_lowrank(answers - mean, q=dimensions + 100, niter=3)
    variances = spread[:dimensions].square() / len(answers)
    return mean, components[:, :dimensions] * (variances + ADDED * variances.mean()) ** (
        -WHITENED / 2
    )


def ridge(train: ceiling.Part, held: ceiling.Part) -> float:
    """The share of held rows that least squares gets right, with the best of a few ridges."""
    x, targets = train[0], F.one_hot(train[1], ceiling.CLASSES).float() - 1 / ceiling.CLASSES
    mean, scale = x.mean(0), x.std(0) + 1e-4
    x, judged = (x - mean) / scale, (held[0] - mean) / scale
    gram, sums, best = x.T @ x, x.T @ targets, 0.0
    for part in (1e-2, 3e-2, 1e-1, 3e-1):
        factor = torch.linalg.cholesky(gram + part * len(x) * torch.eye(len(gram)))
        best = max(best, ceiling.right(judged @ torch.cholesky_solve(sums, factor), held[1]))
    return best


def encoded(
    encoder: Encoder, images: np.ndarray, layers: str, dimensions: int
) -> tuple[Tensor, Tensor]:
    """Features of images by public directions, (rows, kept), and all answers that they come
    from.
    """
    drawn_images = torch.cat(made_up(ceiling.SHAPE, most=6000))
    mean, components = public_directions(maps(encoder, drawn_images, layers), dimensions)
    answers = maps(encoder, torch.from_numpy(images).float() / 255, layers)
    return projected(answers, mean, components), answers


def main() -> None:
    """Print every figure as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "encoder", type=Path, help="a checkpoint; `untrained` for weights as they begin"
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--kept", type=int, default=500)
    parser.add_argument("--layers", default="l", help="of early, middle and late: e, m, l")
    parser.add_argument("--folder", type=Path, default=Path("ceiling"))
    parser.add_argument("--data-dir")
    parser.add_argument(
        "--all", action="store_true", help="also the default features alone, and all answers"
    )
    parser.add_argument("--private", type=int, default=0, help="seeds of DP-SGD")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = Encoder(options.width)
    if str(options.encoder) != "untrained":
        encoder.load_state_dict(torch.load(options.encoder, weights_only=True))
    encoder.eval()
    options.folder.mkdir(parents=True, exist_ok=True)
    data = pv.load("cifar10", options.data_dir)
    images, y = (
        data.x[: options.rows],
        torch.from_numpy(np.asarray(data.y[: options.rows]).astype(np.int64)),
    )
    cut = len(y) * 4 // 5
    default = ceiling.features(
        ceiling.answers(images, options.folder, 2000), "2000", options.folder, cut
    )
    directions, answers = encoded(encoder, np.asarray(images), options.layers, options.kept)
    joined = torch.cat((default, directions), 1)  # rows of norm sqrt(numbers), as each part's are
    figures: dict[str, object] = {
        "encoder": str(options.encoder),
        "layers": options.layers,
        "kept": options.kept,
    }
    every = {"directions": directions, "joined": joined} | (
        {"answers": answers, "default": default} if options.all else {}
    )
    for name, x in every.items():
        figures[name] = round(ridge((x[:cut], y[:cut]), (x[cut:], y[cut:])), 4)
    print(json.dumps(figures), flush=True)
    train, held = (joined[:cut], y[:cut]), (joined[cut:], y[cut:])
    for epsilon in ceiling.EPSILONS if options.private else ():
        width, seeds = joined.shape[1], range(options.private)
        accuracies = [ceiling.private(train, held, epsilon, width, seed=seed) for seed in seeds]
        print(json.dumps({"epsilon": epsilon, "joined, DP-SGD": accuracies}), flush=True)


if __name__ == "__main__":
    main()
