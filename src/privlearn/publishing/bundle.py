"""A published model: one folder with weights, certificate, configuration and card, written all or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privlearn import models
from privlearn.accounting.events import tally
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.methods.result import PrivateDiagnostics, Result
from privlearn.publishing import card, certificate
from privlearn.publishing.certificate import CARD, CERTIFICATE, CONFIG, WEIGHTS
from privlearn.publishing.verification import described_run, verify

if TYPE_CHECKING:
    from torch import nn


def require_free(out: str | Path) -> Path:
    """Return `out` as a path that a model can be published at.

    Raises:
        BadInput: something is there already, or the folder above cannot be written to.
    """
    if not str(out):
        raise BadInput("the folder to publish into has no name: give one, for example --out runs/model")
    path = Path(out)
    if path.exists() or path.is_symlink():
        raise BadInput(f"{path} exists already: choose another --out, or move it away; nothing is overwritten")
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise BadInput(f"{path} cannot be written: {above} is not a folder that you may write to. Choose another --out")
    return path


def publish(
    result: Result,
    out: str | Path,
    *,
    delta: float | None = None,
    test_metrics: dict[str, float] | None = None,
    data: dict[str, str] | None = None,
    model_spec: str | None = None,
    classes: int | None = None,
) -> Path:
    """Write `result` as a folder of `model.safetensors`, `privacy.json`, `config.json` and a model card.

    The folder appears under its final name only when it is complete.

    Args:
        result: what a method returned.
        out: the folder to make.
        delta: where epsilon is stated; by default the plan's.
        test_metrics: figures from test data, for the card; never private diagnostics.
        data: what to say of the data in the card.
        model_spec: how `models.build` can rebuild the network, if it can: needed for `privlearn predict`.
        classes: the number of classes, with `model_spec`.

    Raises:
        BadInput: `out` is taken, private diagnostics were passed, or no delta is known.
        UnsupportedEvent: the ledger holds something without a guarantee.
    """
    path = require_free(out)
    if not isinstance(result, Result):
        raise BadInput(f"result is a {type(result).__name__}: expected what a method such as dpsgd returned")
    for given in (test_metrics, data):
        if isinstance(given, PrivateDiagnostics):
            raise BadInput(
                "private diagnostics were passed to publish: they are not covered by the guarantee; leave them out"
            )
    if model_spec is not None:
        _require_rebuilt(result, model_spec, classes)
    guarantee = result.ledger.guarantee(result.stated_delta(delta))
    metrics = {name: _figure(name, value) for name, value in (test_metrics or {}).items()}
    settings = {"method": result.method, **result.settings}
    config = {
        "library": "privlearn",
        **result.architecture,
        "model": model_spec,
        "classes": classes,
        "transforms": [_transform_config(module) for module in list(result.model)[:-1]],  # type: ignore[call-overload]
    }
    files = {WEIGHTS: _weights(result.model), CONFIG: _json(config)}
    shared = tally(result.ledger.event) != tally(described_run(settings))
    files[CARD] = card.write(
        guarantee,
        settings,
        seeded=result.seeded,
        shared=shared,
        test_metrics=metrics,
        data=data or {},
        model=model_spec,
    ).encode()
    files[CERTIFICATE] = _json(certificate.make(result.ledger.event, guarantee, settings, result.seeded, files))
    _write(path, files)
    if result.checkpoint:
        result.checkpoint.delete()
    return path


def load(folder: str | Path, model_spec: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """Load a published model, after checking that its files are the certified ones.

    Args:
        folder: what `publish` wrote.
        model_spec: a factory `package.module:function` for models that were not built by name.

    Raises:
        CertificateMismatch: the folder does not verify.
        BadInput: it cannot be read, or how to rebuild the network is not known.
    """
    import torch
    from safetensors.torch import load as load_tensors

    folder = Path(folder)
    verification = verify(folder)
    if not verification.ok:
        raise CertificateMismatch(
            f"{folder} does not verify: {'; '.join(verification.problems)}. Get an unchanged copy",
            problems=verification.problems,
        )
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    spec = model_spec or config["model"]
    if model_spec is None and not models.is_built_in(spec):
        # A folder must not choose the code that runs here.
        raise BadInput(
            f"the network in {folder} was built by {spec or 'code that it does not name'}: if you trust that code and have "
            "it, give it yourself with --model package.module:function"
        )
    network = models.build(spec, config["network_input_shape"], config["classes"], np.random.default_rng(0))
    transforms = [_transform(part) for part in config["transforms"]]
    model = torch.nn.Sequential(*transforms, network)
    try:
        model.load_state_dict(load_tensors((folder / WEIGHTS).read_bytes()))
    except RuntimeError as error:
        raise BadInput(f"the weights in {folder} do not fit model {spec!r}: {error}") from error
    return model.eval(), config


def _figure(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"test_metrics has {name!r}: {value!r}; expected a number") from error


def _require_rebuilt(result: Result, spec: str, classes: int | None) -> None:
    """Refuse a spec that builds another network than the one that was trained."""
    if classes is None:
        raise BadInput("model_spec was given without classes: give both, or neither")
    twin = models.build(spec, result.architecture["network_input_shape"], classes, np.random.default_rng(0))
    *_, network = result.model.children()
    shapes = [{name: tuple(value.shape) for name, value in net.state_dict().items()} for net in (twin, network)]
    if shapes[0] != shapes[1]:
        raise BadInput(
            f"model_spec {spec!r} builds another network than the one that was trained: correct it, or leave it out"
        )


def _weights(model: nn.Module) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()})


def _transform_config(module: nn.Module) -> dict[str, Any]:
    kinds = {models.Scale: ("scale", "low"), models.Project: ("project", "components")}
    if type(module) in kinds:
        kind, buffer = kinds[type(module)]
        return {"kind": kind, "shape": list(module.get_buffer(buffer).shape)}
    raise BadInput(f"{type(module).__name__} cannot be published as a transform")


def _transform(config: dict[str, Any]) -> nn.Module:
    import torch

    empty = torch.zeros(config["shape"])
    return models.Scale(empty, empty.clone()) if config["kind"] == "scale" else models.Project(empty)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _write(path: Path, files: dict[str, bytes]) -> None:
    """Write into a folder beside `path` and rename it: `path` is complete or absent."""
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.absolute().parent))
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}. Choose another --out") from error
    try:
        for name, content in files.items():
            with (draft / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        draft.chmod(0o755)
        draft.rename(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}. Nothing was left under that name") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
