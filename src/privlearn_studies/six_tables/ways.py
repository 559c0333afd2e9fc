"""What each way makes of a table: our defaults, Opacus, packages in other environments, and
scikit-learn without noise.

DP-EBM and diffprivlib run by `elsewhere.py` in an environment that has them: name its interpreter
in `PRIVLEARN_INTERPRET` and `PRIVLEARN_DIFFPRIVLIB`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from privlearn import sklearn as ours
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput, PrivacyWarning
from privlearn.methods import boosting
from privlearn.methods.boosting.plan import Interval
from privlearn.metrics import of_classes, of_values
from privlearn.training.train import train as train_by_default
from privlearn_studies.six_tables import elsewhere
from privlearn_studies.six_tables.rows import Floats, Split

DELTA = 1e-5
#: Of the MNIST example of Opacus (examples/mnist.py), around one linear layer.
_BATCH, _EPOCHS, _RATE, _NORM = 64, 10, 0.1, 1.0
#: Environments by the variable that names their interpreter.
_VARIABLES = {"interpret": "PRIVLEARN_INTERPRET", "diffprivlib": "PRIVLEARN_DIFFPRIVLIB"}
#: Probabilities are taken to be this far from 0 and 1.
_LEAST = 1e-6

DEFAULT, LINEAR, BOOSTING, TREES = "default", "logistic or ridge", "boosting", "boosting, 30 trees"
OPACUS, PLAIN, BASE = "Opacus", "scikit-learn, not private", "base rate, not private"


def measured(split: Split, predicted: Floats) -> dict[str, float]:
    """Test figures of probabilities of the second class, or of values."""
    y = np.asarray(split.data.y_test)
    if split.target:
        return dict(of_values(np.asarray(predicted, np.float64), y.astype(np.float64)).figures)
    second = np.nan_to_num(predicted, nan=0.5).clip(_LEAST, 1 - _LEAST).astype(np.float64)
    return dict(of_classes(np.stack([1 - second, second], 1), y.astype(np.int64)).figures)


def _scores(model: nn.Module, split: Split) -> Floats:
    with torch.no_grad():
        return np.asarray(model(split.data.test_tensors()[0]).double().softmax(1)[:, 1])


def _default(split: Split, epsilon: float, seed: int) -> Floats:
    """`privlearn.train`, or `DPRegressor`."""
    if split.target:
        return _estimated(ours.DPRegressor, split, epsilon, seed)
    examples = split.data.examples
    trained = train_by_default(
        split.data, epsilon=epsilon, delta=DELTA, examples=examples, streams=Streams.new(seed)
    )
    return _scores(trained.model, split)


def _linear(split: Split, epsilon: float, seed: int) -> Floats:
    return _estimated(
        ours.DPRidge if split.target else ours.DPLogisticRegression, split, epsilon, seed
    )


def _estimated(kind: Any, split: Split, epsilon: float, seed: int) -> Floats:
    """What an estimator of ours predicts, with the declared bounds."""
    data = split.data
    declared = {"target_bounds": split.target} if split.target else {"classes": [0, 1]}
    estimator = kind(epsilon, DELTA, bounds=(data.low, data.high), random_state=seed, **declared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # that the noise follows from a seed
        estimator.fit(data.x, data.y)
    x = data.x_test
    return np.asarray(estimator.predict(x) if split.target else estimator.predict_proba(x)[:, 1])


def _boosted(split: Split, epsilon: float, seed: int, **choices: Any) -> Floats:
    what = boosting.Values(*split.target) if split.target else boosting.Labels(2)
    plan = boosting.plan_for(split.data, what, **choices).calibrate(epsilon=epsilon, delta=DELTA)
    result = boosting.boost(plan, split.data, streams=Streams.new(seed))
    if not split.target:
        return _scores(result.model, split)
    with torch.no_grad():
        return np.asarray(result.model(split.data.test_tensors()[0])[:, 0])


def _with_trees(split: Split, epsilon: float, seed: int) -> Floats:
    return _boosted(split, epsilon, seed, trees=30, passes=2)


def _by_opacus(split: Split, epsilon: float, seed: int) -> Floats:
    """Opacus with the settings of its example and the noise that it finds for the target."""
    from opacus import PrivacyEngine

    low, high = split.target or (0.0, 1.0)
    y = torch.from_numpy(np.asarray(split.data.y))
    y = (2 * (y - low) / (high - low) - 1).float()[:, None] if split.target else y.long()
    loss: Callable[..., torch.Tensor] = (
        nn.functional.mse_loss if split.target else nn.functional.cross_entropy
    )
    torch.manual_seed(seed)
    rows = torch.from_numpy(_unit(split.data, split.data.x))
    network: nn.Module = nn.Linear(rows.shape[1], 1 if split.target else 2)
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=_RATE)
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(rows, y), batch_size=_BATCH
    )
    network, optimizer, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=_noise(epsilon, len(loader)),
        max_grad_norm=_NORM,
    )
    for _ in range(_EPOCHS):
        for x, targets in loader:
            optimizer.zero_grad()
            loss(network(x), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        outputs = network(torch.from_numpy(_unit(split.data, split.data.x_test))).double()
    if split.target:
        return np.asarray(low + (high - low) * (outputs[:, 0] + 1) / 2).clip(low, high)
    return np.asarray(outputs.softmax(1)[:, 1])


@cache
def _noise(epsilon: float, batches: int) -> float:
    """What Opacus finds for the target, as `make_private_with_epsilon` does."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=1 / batches,
            epochs=_EPOCHS,
            accountant="prv",
        )
    )


def _unit(data: Dataset, x: Any) -> NDArray[np.float32]:
    """Rows with all numbers in [0, 1] by their declared bounds."""
    low, high = np.asarray(data.low), np.asarray(data.high)
    return np.asarray(((np.asarray(x) - low) / (high - low)).clip(0, 1), np.float32)


def _plain(split: Split, epsilon: float, seed: int) -> Floats:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    data = split.data
    kind = HistGradientBoostingRegressor if split.target else HistGradientBoostingClassifier
    model = kind(random_state=seed).fit(data.x, data.y)
    return np.asarray(
        model.predict(data.x_test) if split.target else model.predict_proba(data.x_test)[:, 1]
    )


def _base(split: Split, epsilon: float, seed: int) -> Floats:
    """The share of the second class, or the mean value, among the training rows."""
    return np.full(len(split.data.y_test), float(np.mean(split.data.y)))


#: Ours, and others that run here.
OURS = {DEFAULT: _default, LINEAR: _linear, BOOSTING: _boosted, TREES: _with_trees}
HERE = {**OURS, OPACUS: _by_opacus, PLAIN: _plain, BASE: _base}


def interpreter(package: str) -> str | None:
    """That of the environment with a package; None where none is named."""
    return os.environ.get(_VARIABLES[package])


def predicted_elsewhere(
    package: str, split: Split, epsilons: tuple[float, ...], seed: int
) -> dict[str, list[Floats]]:
    """What the models of a package in another environment predict, by their names, for each
    epsilon.

    Raises:
        BadInput: no environment is named, or its run failed.
    """
    python = interpreter(package)
    if python is None:
        raise BadInput(
            f"{_VARIABLES[package]} is not set: expected the interpreter of an environment with "
            f"{package}"
        )
    data, first, columns = split.data, 0, []
    for column in boosting.columns_of(data):
        bounds = (column.low, column.high) if isinstance(column, Interval) else (None, None)
        columns.append([first, column.width, *bounds])
        first += column.width
    low, high = (
        np.broadcast_to(np.asarray(part, float), (first,)).tolist()
        for part in (data.low, data.high)
    )
    job = {
        "columns": columns,
        "low": low,
        "high": high,
        "target": split.target,
        "epsilons": epsilons,
        "delta": DELTA,
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.json").write_text(json.dumps(job), encoding="utf-8")
        np.savez(Path(folder) / "rows.npz", x=data.x, y=data.y, x_test=data.x_test)
        ran = subprocess.run(
            [python, elsewhere.__file__, package, folder], capture_output=True, text=True
        )
        if ran.returncode:
            raise BadInput(f"{package} failed in the environment of {python}: {ran.stderr[-200:]}")
        return {model: list(each) for model, each in np.load(Path(folder) / "out.npz").items()}
