"""What other packages make of a table, each in an environment of its own.

`PYTHON elsewhere.py PACKAGE FOLDER`, PACKAGE being interpret or diffprivlib: reads FOLDER/job.json
and FOLDER/rows.npz, and writes FOLDER/out.npz. Needs numpy and that package only, not privlearn.
diffprivlib 0.6.5 needs scikit-learn 1.3: with 1.4 it adds its noise to an averaged loss.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Predict = Callable[[dict[str, Any], Array, Array, Array], Array]


def columns(
    job: dict[str, Any], x: Array
) -> tuple[Array, list[str], dict[int, tuple[float, float]]]:
    """Rows with one entry for each column: categories by their number; their types; the bounds of
    numbers.
    """
    parts, types, bounds = [], [], {}
    for place, (first, width, low, high) in enumerate(job["columns"]):
        part = x[:, first : first + width]
        if low is None:
            parts.append(np.where(part.max(1) > 0.5, part.argmax(1) + 1, 0).astype(float))
            types.append("nominal")
        else:
            parts.append(part[:, 0].clip(low, high).astype(float))
            types.append("continuous")
            bounds[place] = (low, high)
    return np.stack(parts, 1), types, bounds


def ebm(job: dict[str, Any], x: Array, y: Array, new: Array) -> Array:
    """DP-EBM of interpret, by its defaults."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    rows, types, bounds = columns(job, x)
    common = {
        "feature_types": types,
        "epsilon": job["epsilon"],
        "delta": job["delta"],
        "privacy_bounds": bounds,
        "random_state": job["seed"],
        "n_jobs": 1,
    }
    tests = columns(job, new)[0]
    if job["target"]:
        low, high = job["target"]
        model = DPExplainableBoostingRegressor(
            **common, privacy_target_min=low, privacy_target_max=high
        )
        return np.asarray(model.fit(rows, y.clip(low, high)).predict(tests))
    return np.asarray(
        DPExplainableBoostingClassifier(**common).fit(rows, y).predict_proba(tests)[:, 1]
    )


def scaled(job: dict[str, Any], x: Array) -> Array:
    """Rows with all numbers in [0, 1] by their declared bounds."""
    low, high = np.array(job["low"]), np.array(job["high"])
    return np.asarray(((x - low) / (high - low)).clip(0, 1))


def logistic(job: dict[str, Any], x: Array, y: Array, new: Array) -> Array:
    """diffprivlib's logistic or linear regression."""
    from diffprivlib.models import LinearRegression, LogisticRegression

    if job["target"]:
        model = LinearRegression(
            epsilon=job["epsilon"],
            bounds_X=(0, 1),
            bounds_y=tuple(job["target"]),
            random_state=job["seed"],
        )
        return np.asarray(model.fit(scaled(job, x), y).predict(scaled(job, new)))
    norm = float(np.sqrt(len(job["columns"])))  # a category is one number of norm 1
    model = LogisticRegression(
        epsilon=job["epsilon"], data_norm=norm, max_iter=1000, random_state=job["seed"]
    )
    return np.asarray(model.fit(scaled(job, x), y).predict_proba(scaled(job, new))[:, 1])


def forest(job: dict[str, Any], x: Array, y: Array, new: Array) -> Array:
    """diffprivlib's random forest."""
    from diffprivlib.models import RandomForestClassifier

    model = RandomForestClassifier(
        epsilon=job["epsilon"], bounds=(0, 1), classes=[0, 1], random_state=job["seed"], n_jobs=1
    )
    return np.asarray(model.fit(scaled(job, x), y).predict_proba(scaled(job, new))[:, 1])


PEERS: dict[str, dict[str, Predict]] = {
    "interpret": {"DP-EBM": ebm},
    "diffprivlib": {"diffprivlib, linear": logistic, "diffprivlib, forest": forest},
}


def main() -> None:
    """Predict for each epsilon of the job, by each model of the package."""
    package, folder = sys.argv[1], Path(sys.argv[2])
    job, rows = json.loads((folder / "job.json").read_text()), np.load(folder / "rows.npz")
    warnings.simplefilter("ignore")
    asked = [{**job, "epsilon": epsilon} for epsilon in job["epsilons"]]
    out = {
        name: np.stack(
            [predict(epsilon_job, rows["x"], rows["y"], rows["x_test"]) for epsilon_job in asked]
        )
        for name, predict in PEERS[package].items()
        if not (job["target"] and predict is forest)
    }
    np.savez(folder / "out.npz", **out)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
