"""Published folders: files, certificate, card, configuration, weights, and what `verify` says."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frozen_runs as runs
import plain
from names import Result, publish, verify
from safetensors.numpy import load_file

#: By the name of the folder, the run that it is made of and what else `publish` is given.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dpsgd": ("dpsgd: flat, poisson", {"test_metrics": {"accuracy": 0.75}, "test_rows": 40}),
    "dpsgd, no target": ("dpsgd: per layer, partition", {"model_spec": "mlp:7", "classes": 3}),
    "dpsgd, shuffled": (
        "dpsgd: automatic, shuffle, polynomial rate",
        {"data": {"data": "made up", "rows": "a few"}},
    ),
    "dpsgd, pca": ("dpsgd: quantile and pca, in pieces", {}),
    "dpsgd, moments": ("dpsgd: moments", {"model_spec": "linear", "classes": 3}),
    "dpsgd, select": ("dpsgd: select", {"model_spec": "linear", "classes": 3}),
    "dpsgd, persons": ("dpsgd: persons", {}),
    "dpsgd, groups": ("dpsgd: groups", {"delta": 1e-6}),
    "dpsgd, copies": ("dpsgd: copies of images", {}),
    "dpsgd, public features": ("dpsgd: public features", {"model_spec": "linear", "classes": 3}),
    "dpsgd, public validations": ("dpsgd: public validations", {}),
    "dpsgd, paid validations": ("dpsgd: paid validations", {}),
    "dpsgd, a ledger of two runs": ("dpsgd: a ledger of two runs", {}),
    "by rule": ("dpsgd: by rule, network", {}),
    "dpmac": ("dpmac: first order", {}),
    "dpmac, learned thresholds": ("dpmac: learned thresholds", {}),
    "dpmac, analytic": ("dpmac: analytic", {}),
    "pate, votes": ("pate: votes, calibrated", {"model_spec": "linear", "classes": 3}),
    "pate, confident votes": ("pate: confident votes", {}),
    "pate, persons": ("pate: persons", {}),
    "pate, codes": ("pate: ball, pca", {}),
    "features, fisher": ("features: fisher of few", {}),
    "features, least squares": ("features: least squares", {}),
    "features, rows": ("features: rows, a classifier", {}),
    "features, in a pipeline": ("others: scikit-learn, a pipeline", {}),
    "features, in a folder": ("others: features in a folder", {}),
    "maps": ("others: maps, pate", {"delta": 1e-3}),
    "tune, blocks": ("tune: blocks, again", {}),
    "tune, random stopping": ("tune: random stopping", {}),
}

#: What a verification holds besides figures and sentences.
_VALUES = ("plan", "events", "claims")


def figures(only: str = "") -> dict[str, Any]:
    cases: dict[str, Callable[[], Any]] = {
        name: lambda run=run, more=more: _figures(runs.CASES[run](), more)  # type: ignore[misc]
        for name, (run, more) in CASES.items()
    }
    return plain.each(cases, only)


def _figures(result: Result, more: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = publish(result, Path(name) / "model", **({"delta": 1e-5} | more))
        figures = {k: value for k, value in vars(verify(folder)).items() if k not in _VALUES}
        return described(folder) | {"verify": plain.short(figures)}


def described(folder: Path) -> dict[str, Any]:
    """What is in a published folder. Digests of its files are left out: they follow from the
    rest.
    """
    certificate = json.loads((folder / "privacy.json").read_text())
    parts = {
        key: value
        for key, value in certificate.items()
        if key not in ("digests", "files", "signature")
    }
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "signed": "signature" in certificate,
        "parts": sorted(certificate["digests"]),
        "certificate": plain.short(parts),
        "config": plain.short(json.loads((folder / "config.json").read_text())),
        "card": (folder / "README.md").read_text().splitlines(),
        "weights": {
            name: plain.array(value)
            for name, value in load_file(folder / "model.safetensors").items()
        },
    }
