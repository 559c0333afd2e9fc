"""A published folder as a model of MLflow, whose certificate is verified at each loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import privlearn
from privlearn._checks import checked
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.publishing.envelopes import require_package
from privlearn.publishing.model import PublishedModel, load_model
from privlearn.publishing.verify import Verification, verify

#: What `model_config` may say when the model is loaded.
_OPTIONS = ("model", "trusted", "features", "probabilities")


@checked
def save_mlflow_model(folder: str | Path, path: str | Path) -> None:
    """Write a published folder that verifies as a model of MLflow, into a new folder.

    `mlflow.pyfunc.load_model(path)` loads it, after verifying the copy.

    Args:
        folder: what `publish` wrote.
        path: a new folder on this machine.

    Raises:
        CertificateMismatch: the folder does not verify; nothing is written.
        BadInput: `path` exists already, or mlflow is missing.
    """
    pyfunc = _import_pyfunc()
    _require_verified(folder)
    if Path(path).exists():
        raise BadInput(f"{path} exists already: expected a new folder; nothing is overwritten")
    pyfunc.save_model(str(path), **_saved(folder))


@checked
def log_mlflow_model(
    folder: str | Path, name: str = "model", *, registered_model_name: str | None = None
) -> Any:
    """Log a published folder that verifies as a model of MLflow.

    An active run also gets what the certificate claims: the metrics `epsilon` and `delta`, and the
    tags `privlearn.adjacency` and `privlearn.unit`.

    Args:
        folder: what `publish` wrote.
        name: the model's name.
        registered_model_name: if given, the model is registered under this name, too.

    Returns:
        MLflow's `ModelInfo`; its `model_uri` is what `mlflow.pyfunc.load_model` takes.

    Raises:
        CertificateMismatch: the folder does not verify; nothing is logged.
        BadInput: mlflow is missing.
    """
    pyfunc, mlflow = _import_pyfunc(), require_package("mlflow")
    verification = _require_verified(folder)
    info = pyfunc.log_model(
        name=name, registered_model_name=registered_model_name, **_saved(folder)
    )
    if mlflow.active_run() is not None:
        mlflow.log_metrics({"epsilon": verification.epsilon, "delta": verification.delta})
        mlflow.set_tags(
            {
                "privlearn.adjacency": verification.adjacency,
                "privlearn.unit": verification.unit,
            }
        )
    return info


@final
class MlflowModel:
    """What `mlflow.pyfunc.load_model` wraps: predictions for data frames and arrays.

    Args:
        model: a published model, verified.
        probabilities: whether `predict` gives probabilities in place of classes.
    """

    def __init__(self, model: PublishedModel, probabilities: bool) -> None:
        self._model, self._probabilities = model, probabilities

    def predict(self, rows: Any) -> Any:
        """Predictions for rows: as `predict` or `predict_proba` of the published model, with arrays
        for tensors.
        """
        predict = self._model.predict_proba if self._probabilities else self._model.predict
        predicted = predict(rows)
        return predicted.cpu().numpy() if hasattr(predicted, "cpu") else predicted


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> MlflowModel:
    """Load a published folder; MLflow calls this by its name.

    Raises:
        CertificateMismatch: the folder does not verify.
        BadInput: an option that there is not.
    """
    options = dict(model_config or {})
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise BadInput(
            f"model_config says {', '.join(unknown)[:80]}: expected {', '.join(_OPTIONS)}"
        )
    probabilities = bool(options.pop("probabilities", False))
    return MlflowModel(load_model(path, **options), probabilities)


def _saved(folder: str | Path) -> dict[str, Any]:
    """What MLflow saves of a published folder."""
    return {
        "loader_module": __name__,
        "data_path": str(folder),
        "pip_requirements": [f"privlearn=={privlearn.__version__}"],
        # what loading may say has to be named when the model is saved
        "model_config": dict.fromkeys(_OPTIONS),
    }


def _import_pyfunc() -> Any:
    require_package("mlflow")
    return require_package("mlflow.pyfunc")


def _require_verified(folder: str | Path) -> Verification:
    verification = verify(folder)
    if not verification.ok:
        raise CertificateMismatch(
            f"{str(folder)[-80:]} does not verify: {verification.problems[0][:120]}. Log an "
            "unchanged copy",
            problems=verification.problems,
        )
    return verification
