"""Published models as programs of torch.export: run by PyTorch alone, with the same scores, or
refused.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.publishing import exporting

MISSING = [
    name for name in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(name)
]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    data = pv.Dataset(random.random((80, 6)), np.arange(80) % 3, classes=3, low=0, high=1)
    result = pv.train(data, epsilon=9, epochs=2, model="mlp:5", streams=pv.Streams.new(0))
    return Path(pv.publish(result, tmp_path_factory.mktemp("export") / "model", delta=1e-5))


def test_another_process_gets_the_same_scores_without_privlearn(
    published: Path, tmp_path: Path
) -> None:
    model = pv.load_model(published)
    assert model.export(tmp_path / "model.pt2") == tmp_path / "model.pt2"
    rows = torch.rand(11, 6, generator=torch.Generator().manual_seed(1))
    torch.save(rows, tmp_path / "rows.pt")
    script = (
        "import sys, torch\n"
        f"scores = torch.export.load({str(tmp_path / 'model.pt2')!r}).module()("
        f"torch.load({str(tmp_path / 'rows.pt')!r}))\n"
        f"torch.save(scores.detach(), {str(tmp_path / 'scores.pt')!r})\n"
        "assert 'privlearn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=tmp_path)
    assert torch.allclose(torch.load(tmp_path / "scores.pt"), model(rows), atol=1e-6)
    with pytest.raises(BadInput, match="nothing is overwritten"):
        model.export(tmp_path / "model.pt2")
    with pytest.raises(BadInput, match="cannot be written"):
        model.export(tmp_path / "no folder" / "model.pt2")


def test_what_cannot_be_exported_or_gives_other_scores_is_refused(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :3] if float(x.sum()) > 0 else x[:, 3:]

    model = pv.load_model(published)
    model[-1] = Branching()
    with pytest.raises(BadInput, match="can't export this model"):
        model.export(tmp_path / "model.pt2")
    model = pv.load_model(published)
    real = torch.export.export
    other = nn.Sequential(nn.Linear(6, 3))
    monkeypatch.setattr(
        torch.export, "export", lambda net, *given, **more: real(other, *given, **more)
    )
    with pytest.raises(BadInput, match="other scores than the model"):
        model.export(tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize("name", ["model.zip", "model.pt", "model", "model.safetensors"])
def test_other_endings_are_refused(published: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"expected \.pt2"):
        pv.load_model(published).export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_without_its_packages_onnx_is_refused(
    published: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install onnx onnxscript onnxruntime"):
        pv.load_model(published).export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
def test_onnx_gives_the_same_scores(published: Path, tmp_path: Path) -> None:
    import onnxruntime

    model = pv.load_model(published)
    path = model.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rows = torch.rand(11, 6, generator=torch.Generator().manual_seed(1))
    scores = torch.as_tensor(session.run(["scores"], {"rows": rows.numpy()})[0])
    assert torch.allclose(scores, model(rows), atol=1e-5)
    assert [part.name for part in tmp_path.iterdir()] == ["model.onnx"]
