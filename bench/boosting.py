"""Boosting beside other packages on six tables: error, area under the ROC curve, log loss; or R2 and RMSE of values.

`python bench/boosting.py [--sets adult,wisconsin] [--epsilons 0.1,1] [--seeds 10] [--interpret PYTHON] [--diffprivlib
PYTHON] [--out FILE.json]`. PYTHON is the interpreter of an environment with that package (`boosting_peers.py`); without
it the package is left out. Figures are of test rows, means over seeds with the standard deviation; delta is 1e-5.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss, roc_auc_score

import privlearn as pv
from privlearn.boosting.plan import Interval

Array = np.ndarray[Any, Any]
DELTA = 1e-5
#: What differs between our own rows of the table.
OURS: dict[str, dict[str, Any]] = {"boosting": {}, "boosting, 30 trees": {"trees": 30, "passes": 2}}


def imbalanced() -> tuple[pv.Dataset, None]:
    """20,000 rows of 12 numbers, 5 % of them positive, half of them to test on."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(20_000, 12))
    score = 1.3 * x[:, :5] @ [1, 0.8, 0.6, 0.4, 0.2] + 0.8 * np.abs(x[:, 5]) - 5.1
    return _halves(x, draw.random(len(x)) < 1 / (1 + np.exp(-score)), -3.0, 3.0), None


def categories() -> tuple[pv.Dataset, None]:
    """20,000 rows of 6 columns with 60 categories each, half of them to test on."""
    draw, parts, score = np.random.default_rng(2), [], np.full(20_000, -0.8)
    for _ in range(6):
        own = draw.choice(60, len(score), p=draw.dirichlet(np.full(60, 0.5)))
        score += 0.7 * draw.normal(size=60)[own]
        parts.append(np.eye(60)[own])
    names = tuple(f"column{at}={level}" for at in range(6) for level in range(60))
    return _halves(np.concatenate(parts, 1), draw.random(len(score)) < 1 / (1 + np.exp(-score)), 0.0, 1.0, names), None


def values() -> tuple[pv.Dataset, tuple[float, float]]:
    """Friedman's first function of 10 numbers, 20,000 rows with noise, half of them to test on; values in [0, 30]."""
    draw = np.random.default_rng(3)
    x = draw.random((20_000, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return _halves(x, y + draw.normal(size=len(y)), 0.0, 1.0), (0.0, 30.0)


def _halves(x: Array, y: Array, low: float, high: float, names: tuple[str, ...] = ()) -> pv.Dataset:
    half, classes = len(x) // 2, 2 if y.dtype == bool else None
    x, y = x.astype(np.float32), y.astype(np.int64 if classes else np.float32)
    return pv.Dataset(x[:half], y[:half], x[half:], y[half:], classes=classes, low=low, high=high, feature_names=names)


def table(name: str) -> tuple[pv.Dataset, tuple[float, float] | None]:
    """The rows, and the bounds of the values that are to be predicted, if they are no classes."""
    made = {"imbalanced": imbalanced, "categories": categories, "values": values}
    return made[name]() if name in made else (pv.load(name), None)


SETS = ("adult", "breast-cancer", "wisconsin", "imbalanced", "categories", "values")


def figures(predicted: Array, y: Array, target: tuple[float, float] | None) -> dict[str, float]:
    """Figures of probabilities of the second class, or of values."""
    if target:
        left = predicted - y
        return {"R2": float(1 - (left**2).mean() / y.var()), "RMSE": float(np.sqrt((left**2).mean()))}
    p = np.clip(np.nan_to_num(predicted, nan=0.5), 1e-6, 1 - 1e-6)
    return {
        "error": float(((p > 0.5) != y).mean()),
        "AUC": float(roc_auc_score(y, p)),
        "log loss": float(log_loss(y, p)),
    }


def ours(data: pv.Dataset, target: tuple[float, float] | None, epsilon: float, seed: int, **choices: Any) -> Array:
    """What our boosting predicts for the test rows."""
    what = pv.boosting.Values(*target) if target else pv.boosting.Labels(2)
    plan = pv.boosting.plan_for(data, what, **choices).calibrate(epsilon=epsilon, delta=DELTA)
    result = pv.boosting.boost(plan, data, streams=pv.Streams.new(seed))
    scores = result.model(torch.from_numpy(np.asarray(data.x_test, np.float32)))
    return np.asarray(scores[:, 0] if target else scores.softmax(1)[:, 1])


def without_noise(data: pv.Dataset, target: tuple[float, float] | None) -> Array:
    """What scikit-learn's boosting predicts, which protects nothing."""
    kind = HistGradientBoostingRegressor if target else HistGradientBoostingClassifier
    model = kind(random_state=0).fit(data.x, data.y)
    return np.asarray(model.predict(data.x_test) if target else model.predict_proba(data.x_test)[:, 1])


def peers(
    data: pv.Dataset, target: tuple[float, float] | None, epsilons: list[float], seeds: int, pythons: dict[str, str]
) -> Iterator[tuple[str, float, int, Array]]:
    """What other packages predict: (name, epsilon, seed, predictions)."""
    first, columns = 0, []
    for column in pv.boosting.columns_of(data):
        bounds = (column.low, column.high) if isinstance(column, Interval) else (None, None)
        columns.append([first, column.width, *bounds])
        first += column.width
    low, high = (np.broadcast_to(np.asarray(part, float), (first,)).tolist() for part in (data.low, data.high))
    job = {
        "columns": columns,
        "low": low,
        "high": high,
        "delta": DELTA,
        "target": target,
        "epsilons": epsilons,
        "seeds": seeds,
    }
    for package, python in pythons.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "job.json").write_text(json.dumps(job))
            np.savez(Path(folder) / "rows.npz", x=data.x, y=data.y, x_test=data.x_test)
            script = Path(__file__).parent / "boosting_peers.py"
            subprocess.run([python, str(script), package, folder], check=True)
            for key, predicted in np.load(Path(folder) / "out.npz").items():
                name, epsilon, seed, *more = key.split("|")
                if not more:
                    yield name, float(epsilon), int(seed), predicted


def measure(name: str, epsilons: list[float], seeds: int, pythons: dict[str, str]) -> list[dict[str, Any]]:
    """A row for each way and epsilon: means and standard deviations over seeds."""
    data, target = table(name)
    y, by_way = np.asarray(data.y_test), {}
    for epsilon in epsilons:
        for way, choices in OURS.items():
            for seed in range(seeds):
                own = figures(ours(data, target, epsilon, seed, **choices), y, target)
                by_way.setdefault((way, epsilon), []).append(own)
    for way, epsilon, _, predicted in peers(data, target, epsilons, seeds, pythons):
        by_way.setdefault((way, epsilon), []).append(figures(predicted, y, target))
    by_way[("none, not private (scikit-learn)", float("inf"))] = [figures(without_noise(data, target), y, target)]
    if not target:
        rate = np.full(len(y), float(np.mean(data.y)))
        by_way[("base rate of the training rows, not private", float("inf"))] = [figures(rate, y, target)]
    rows = []
    for (way, epsilon), each in by_way.items():
        means = {key: float(np.mean([own[key] for own in each])) for key in each[0]}
        spread = {key: float(np.std([own[key] for own in each])) for key in each[0]}
        rows.append(
            {"set": name, "way": way, "epsilon": str(epsilon), "seeds": len(each), "mean": means, "std": spread}
        )
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--epsilons", default="0.1,0.5,1,3")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--interpret", help="the interpreter of an environment with interpret-core")
    parser.add_argument("--diffprivlib", help="the interpreter of an environment with diffprivlib")
    parser.add_argument("--out", help="a JSON file for the figures")
    given = parser.parse_args()
    pythons = {name: getattr(given, name) for name in ("interpret", "diffprivlib") if getattr(given, name)}
    rows = []
    for name in given.sets.split(","):
        own = measure(name, [float(part) for part in given.epsilons.split(",")], given.seeds, pythons)
        for row in own:
            text = ", ".join(f"{key} {value:.4f} ± {row['std'][key]:.4f}" for key, value in row["mean"].items())
            print(f"{row['set']:14} {row['epsilon']:>5} {row['way']:42} {text}", flush=True)
        rows += own
    if given.out:
        Path(given.out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
