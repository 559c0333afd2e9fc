"""Published folders as models of MLflow: loading verifies, predictions are the published model's,
and a run gets what the certificate claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privlearn as pv
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.publishing.mlflow_model import log_mlflow_model, save_mlflow_model
from tests.publishing.checks_envelopes import make_folder

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
pyfunc = pytest.importorskip("mlflow.pyfunc", reason="MLflow is not installed")


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield
    mlflow.set_tracking_uri(None)


def _rows(model: Any) -> np.ndarray:
    drawn = np.random.default_rng(0).random((5, *model.input_shape))
    return drawn.astype(np.float32)


def test_a_loaded_model_predicts_as_the_published_one(tmp_path: Path) -> None:
    folder, _, _ = make_folder()
    save_mlflow_model(folder, tmp_path / "model")
    published = pv.load_model(folder)
    rows = _rows(published)
    loaded = pyfunc.load_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(rows), published.predict(rows).numpy())
    scored = pyfunc.load_model(str(tmp_path / "model"), model_config={"probabilities": True})
    np.testing.assert_allclose(scored.predict(rows), published.predict_proba(rows).numpy())


def test_loading_verifies_the_copy(tmp_path: Path) -> None:
    folder, key, _ = make_folder()
    save_mlflow_model(folder, tmp_path / "model")
    assert pyfunc.load_model(str(tmp_path / "model"))
    trusted = {"trusted": str(key.with_name(f"{key.name}.pub"))}
    with pytest.raises(CertificateMismatch, match="not signed"):
        pyfunc.load_model(str(tmp_path / "model"), model_config=trusted)
    weights = next((tmp_path / "model").rglob("model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CertificateMismatch, match="does not verify"):
        pyfunc.load_model(str(tmp_path / "model"))


def test_what_does_not_verify_is_not_written(tmp_path: Path) -> None:
    folder, _, _ = make_folder()
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in folder.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    (changed / "config.json").write_text("{}")
    with pytest.raises(CertificateMismatch, match="unchanged copy"):
        save_mlflow_model(changed, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    with pytest.raises(BadInput, match="exists already"):
        save_mlflow_model(folder, tmp_path / "model")


@pytest.mark.usefixtures("tracking")
def test_a_run_gets_the_claim_and_the_registry_the_model() -> None:
    folder, _, _ = make_folder()
    verified = pv.verify(folder)
    with mlflow.start_run() as run:
        logged = log_mlflow_model(folder, "digits", registered_model_name="registered")
    data = mlflow.get_run(run.info.run_id).data
    assert data.metrics == {"epsilon": verified.epsilon, "delta": verified.delta}
    assert data.tags["privlearn.adjacency"] == verified.adjacency
    assert data.tags["privlearn.unit"] == verified.unit
    rows = _rows(pv.load_model(folder))
    predicted = pyfunc.load_model(logged.model_uri).predict(rows)
    registered = pyfunc.load_model("models:/registered/1").predict(rows)
    np.testing.assert_array_equal(predicted, registered)


def test_an_option_that_there_is_not_is_refused(tmp_path: Path) -> None:
    folder, _, _ = make_folder()
    save_mlflow_model(folder, tmp_path / "model")
    # MLflow itself drops options that the saved model does not name
    from privlearn.publishing.mlflow_model import _load_pyfunc

    with pytest.raises(BadInput, match="expected model, trusted, features, probabilities"):
        _load_pyfunc(str(folder), {"trust": "key.pub"})
