"""What the default features of CIFAR-10 could reach without privacy, beside what DP-SGD reaches on
the same rows.

`python bench/ceiling.py [--rows 50000] [--directions 2000,all] [--folder DIR] [--data-dir DIR]
[--json] [--quick]`.

All rows are training rows: the first four fifths are learned from, the last fifth is judged by, and
test rows are not looked at. `all` is a linear head on all 6,400 answers of the random units,
standardised, in place of directions. Features take half an hour of one core for all rows, and are
kept in the folder, as secret as the rows; what an interrupted run made is used again. Each figure
of a head without privacy is the best of its few strengths on the rows it is judged by: an upper
end, as a ceiling should be.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.core.schedules import Constant, Polynomial
from privlearn.training import planning, rules
from privlearn.transforms import ScatterRandom
from privlearn.transforms.made_up_images import projected

CLASSES, SHAPE, AT_ONCE = 10, (3, 32, 32), 250
EPSILONS, DELTA = (1.0, 3.0, 8.0), 1e-5
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Part = tuple[Tensor, Tensor]


def answers(images: np.ndarray, folder: Path, directions: int) -> np.ndarray:
    """What the 400 random units answer at 4 x 4 places, (rows, 6,400), in half precision; kept as
    they are made.
    """
    # how many does not matter to the answers
    module = ScatterRandom(kept=directions).module(SHAPE, folder)
    path, done = folder / f"answers-{len(images)}.npy", folder / f"answers-{len(images)}.done"
    width = module.shape[0]
    begin = int(done.read_text()) if done.exists() else 0
    stored = np.lib.format.open_memmap(
        path, "r+" if begin else "w+", np.float16, (len(images), width)
    )
    with torch.no_grad():
        for start in range(begin, len(images), AT_ONCE):
            part = torch.from_numpy(np.asarray(images[start : start + AT_ONCE])).float() / 255
            stored[start : start + AT_ONCE] = module.answers(part).flatten(1).numpy()
            done.write_text(str(start + len(part)))
    return stored


def features(stored: np.ndarray, directions: str, folder: Path, fitted: int) -> Tensor:
    """The library's features with so many directions; or all answers, standardised by the first
    `fitted` rows.
    """
    if directions != "all":
        module = ScatterRandom(kept=int(directions)).module(SHAPE, folder)
        mean, components = module.get_buffer("mean"), module.get_buffer("components")
        blocks = (
            torch.from_numpy(stored[at : at + 2000].astype(np.float32))
            for at in range(0, len(stored), 2000)
        )
        return torch.cat([projected(block, mean, components) for block in blocks])
    x = torch.from_numpy(stored.astype(np.float32))
    return (x - x[:fitted].mean(0)) / (x[:fitted].std(0) + 1e-3)


def right(scores: Tensor, y: Tensor) -> float:
    """The share of rows whose largest score is their class's."""
    return float((scores.argmax(1) == y).double().mean())


def linear(train: Part, held: Part) -> tuple[float, Tensor]:
    """Logistic regression by L-BFGS at a few weight decays, each beginning where the stronger one
    ended.
    """
    (x, y), best = train, (0.0, torch.zeros(0))
    head = nn.Linear(x.shape[1], CLASSES)
    nn.init.zeros_(head.weight)
    for decay in (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4):
        descent = torch.optim.LBFGS(head.parameters(), max_iter=60, line_search_fn="strong_wolfe")

        def loss(decay: float = decay, descent: torch.optim.LBFGS = descent) -> Tensor:
            descent.zero_grad()
            value = F.cross_entropy(head(x), y) + decay / 2 * head.weight.square().sum()
            value.backward()
            return value

        descent.step(loss)
        with torch.no_grad():
            scores = head(held[0])
        best = max(best, (right(scores, held[1]), scores), key=lambda each: each[0])
    return best


def perceptron(train: Part, held: Part, epochs: int = 12) -> float:
    """One hidden layer of 512 with dropout, by AdamW, after its last epoch."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(train[0].shape[1], 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, CLASSES)
    )
    descent = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.1)
    rates = torch.optim.lr_scheduler.OneCycleLR(
        descent, 1e-3, total_steps=epochs * math.ceil(len(train[0]) / 256)
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(train[0])).split(256):
            descent.zero_grad()
            F.cross_entropy(network(train[0][rows]), train[1][rows]).backward()
            descent.step()
            rates.step()
    with torch.no_grad():
        return right(network.eval()(held[0]), held[1])


def kernel(train: Part, held: Part, units: int = 4000) -> float:
    """Ridge regression on random Fourier features of a Gaussian kernel (Rahimi and Recht 2007), a
    few widths.
    """
    best = 0.0
    length = float(train[0][:2000].norm(dim=1).median())
    for width in (0.5, 0.8):  # over the rows' length
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(train[0].shape[1], units, generator=generator) / (width * length)
        shift = 2 * math.pi * torch.rand(units, generator=generator)
        seen, judged = (torch.cos(part @ directions + shift) for part in (train[0], held[0]))
        gram, sums = seen.T @ seen, seen.T @ F.one_hot(train[1], CLASSES).float()
        for ridge in (1e-4, 1e-3, 1e-2):
            factor = torch.linalg.cholesky(gram + ridge * len(seen) * torch.eye(units))
            best = max(best, right(judged @ torch.cholesky_solve(sums, factor), held[1]))
    return best


def private(
    train: Part, held: Part, epsilon: float, numbers: int, *, noiseless: bool = False, seed: int = 0
) -> float:
    """DP-SGD with the default settings on these features (without the temperature, which changes no
    class).

    Without noise: the same clip, batches and learning rate.
    """
    size, epochs = len(train[0]), planning.epochs(epsilon)
    plan = pv.Plan(
        pv.Poisson(planning.batch_size(size) / size),
        epochs,
        clip=pv.Flat(planning.CLIP_NORM),
        examples=size,
    )
    plan = plan.calibrate(epsilon=epsilon, delta=DELTA)
    rate = rules.learning_rate("SGD", plan, size, "linear", 0.0, math.sqrt(numbers))
    if noiseless:  # as a plan of its own: the target's budget would refuse it
        plan = pv.Plan(plan.sampling, epochs, Constant(start=1e-5), plan.clip, examples=size)
    result = pv.dpsgd(
        plan,
        lambda shape: pv.models.build("linear", shape, CLASSES, np.random.default_rng(0)),
        nn.CrossEntropyLoss(reduction="none"),
        train,
        optimizer=lambda weights: torch.optim.SGD(weights, rate),
        learning_rate_schedule=Polynomial(k=1, end=0, period=epochs),
        streams=pv.Streams.new(seed),
    )
    with torch.no_grad():
        return right(result.model(held[0]), held[1])


def confusions(scores: Tensor, y: Tensor, most: int = 6) -> list[tuple[str, int]]:
    """The pairs of classes that are taken for each other most often, with how often."""
    counts = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    for truth, said in zip(y.tolist(), scores.argmax(1).tolist(), strict=True):
        counts[truth, said] += 1
    pairs = [
        (f"{NAMES[a]} and {NAMES[b]}", int(counts[a, b] + counts[b, a]))
        for a in range(CLASSES)
        for b in range(a)
    ]
    return sorted(pairs, key=lambda pair: -pair[1])[:most]


def measured(
    stored: np.ndarray, y: Tensor, directions: str, folder: Path, *, quick: bool
) -> Iterator[tuple[str, float]]:
    """Every head on one kind of features, by name."""
    cut = len(y) * 4 // 5
    x = features(stored, directions, folder, cut)
    train, held = (x[:cut], y[:cut]), (x[cut:], y[cut:])
    accuracy, scores = linear(train, held)
    yield "linear head, no privacy", accuracy
    for pair, number in confusions(scores, held[1]):
        yield f"of it, taken for each other: {pair}", number / len(held[1])
    if directions == "all":
        return
    width = x.shape[1]
    yield from (
        (f"DP-SGD, epsilon {epsilon:g}", private(train, held, epsilon, width))
        for epsilon in EPSILONS
    )
    yield (
        "DP-SGD's descent at epsilon 8, without its noise",
        private(train, held, EPSILONS[-1], width, noiseless=True),
    )
    yield "perceptron of 512 hidden units, no privacy", perceptron(train, held, 2 if quick else 12)
    yield (
        "Gaussian kernel, random features, no privacy",
        kernel(train, held, 200 if quick else 4000),
    )


def main() -> None:
    """Print every figure, or all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--directions", default="2000,all")
    parser.add_argument("--folder", type=Path, default=Path("ceiling"))
    parser.add_argument("--data-dir")
    parser.add_argument("--quick", action="store_true", help="500 rows, 300 directions")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, which = (500, "300") if options.quick else (options.rows, options.directions)
    data = pv.load("cifar10", options.data_dir)
    options.folder.mkdir(parents=True, exist_ok=True)
    some = next((int(word) for word in which.split(",") if word != "all"), 2000)
    stored = answers(data.x[:rows], options.folder, some)
    y = torch.from_numpy(np.asarray(data.y[:rows]).astype(np.int64))
    table = {}
    for directions in which.split(","):
        for name, value in measured(stored, y, directions, options.folder, quick=options.quick):
            table[f"{directions} directions, {name}"] = value
            if not options.json:
                print(f"{directions:>6} {name:60} {value:.4f}", flush=True)
    if options.json:
        print(json.dumps(table))


if __name__ == "__main__":
    main()
