"""Named checks of closed shapes: what no field and no file is for has no place in a published
folder.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

import privlearn as pv
from privlearn._shapes import fields_of, unfit
from privlearn._storage import digest
from privlearn.cli import main
from privlearn.core.plan import AbstractPlan
from privlearn.core.run_facts import GradientFacts, RunFacts
from privlearn.errors import BadInput
from privlearn.publishing import publish, weights_file
from tests.publishing.checks import key_in, published, result, workplace
from tests.publishing.checks_certificates import every_plan
from tests.support.checks import check, must_raise

#: Rows that a publisher put where no one looks.
ROWS = [[0.1, 0.2, 0.3]] * 7


def mended(folder: Path, certificate: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Change a certificate, and mend the digests of its parts and of the files as they are."""
    body = json.loads((folder / "privacy.json").read_text())
    certificate(body)
    body["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in body["files"]
    }
    body["digests"] = {part: digest(body[part]) for part in body["digests"]}
    (folder / "privacy.json").write_text(json.dumps(body))


def require_refused(folder: Path, said: str, key: Path | None = None) -> None:
    """`verify` finds it, in Python and on the command line."""
    problems = pv.verify(folder, key=key).problems
    assert any(said in problem for problem in problems), (said, problems)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["verify", str(folder), *(["--key", str(key)] if key else []), "--json"]) == 1


@check
def check_files_that_nobody_certified_are_problems() -> None:
    """Also in a signed folder: an adapter, which plain loaders load. Hidden files, which none
    loads, give a warning.
    """
    with workplace() as place:
        key = key_in(place)
        out = published(place, "model", sign=key)
        public = Path(f"{key}.pub")
        assert pv.verify(out, key=public).ok
        (out / ".DS_Store").write_bytes(b"x")
        (out / ".gitattributes").write_text("*.safetensors filter=lfs")
        assert pv.verify(out, key=public).ok
        assert any(".DS_Store" in warning for warning in pv.verify(out).warnings)
        for names in (
            ("adapter_model.safetensors", "adapter_config.json"),
            ("pytorch_model.bin",),
            ("modeling.py",),
            ("tokenizer.json",),
            ("model.safetensors.index.json",),
            ("notes.txt",),
        ):
            for name in names:
                (out / name).write_bytes(b"{}")
            for given in (None, public):
                require_refused(out, names[-1], given)
            for name in names:
                (out / name).unlink()
        (out / "onnx").mkdir()
        require_refused(out, "onnx", public)


@check
def check_facts_have_a_closed_shape() -> None:
    """Unknown ones, other types, numbers out of range and long texts: problems in `verify`, and not
    published.
    """
    wrong: list[tuple[str, Any]] = [
        ("rows", ROWS),
        ("noise", ROWS),
        ("noise", "none"),
        ("precision", "float8"),
        ("examples", True),
        ("examples", 1e300),
        ("label_smoothing", 2.0),
        ("class_weights", [-1.0]),
        ("class_weights", "x"),
        ("optimizer", {"name": "SGD", "rows": ROWS * 30}),
        ("optimizer", {"x" * 200: 1}),
        ("learning_rate_schedule", "x" * 5_000),
        ("chosen", [{"indices": [0], "rows": ROWS}]),
        ("transcript", {"commitment": "x", "challenge": "", "digest": "y"}),
        ("left_early", False),
        ("weights_of_step", "x"),
        ("weights_of_step", 10**6),
        ("average", 7.0),
        ("public_start", {"rows": ROWS}),
        ("task", 3),
        ("method", None),
        ("fitted_temperature", -1.0),
        ("answered", 3),
        ("tuning", {"chosen": 0}),
        ("newton", ROWS),
        ("target_bounds", [0.0, 1.0, 2.0]),
    ]
    with workplace() as place:
        out = published(place)
        assert pv.verify(out).ok
        whole = (out / "privacy.json").read_text()
        for name, value in wrong:
            mended(out, lambda body, name=name, value=value: body["facts"].update({name: value}))  # type: ignore[misc]
            require_refused(out, name)
            (out / "privacy.json").write_text(whole)
        one = copy.copy(result())
        object.__setattr__(one, "facts", {**one.facts, "rows": ROWS})
        said = str(
            must_raise(
                BadInput,
                lambda: publish.publish(one, place / "more", model_spec="linear", classes=3),
            )
        )
        assert "'rows' is unknown" in said
        assert not (place / "more").exists()


@check
def check_configurations_have_a_closed_shape() -> None:
    """Of a model's own and of another library's: bounded where its fields are not known here."""
    with workplace() as place:
        out = published(place)
        whole = json.loads((out / "config.json").read_text())
        for more in (
            {"rows": ROWS},
            {"classes": "3"},
            {"input_shape": [5, 1e9]},
            {"class_names": ROWS},
            {"grid": "x" * 5_000},
            {"table": {"target": "y", "rows": ROWS}, "schema": "0" * 64},
            {"transforms": [{"kind": "scale", "shape": [5], "rows": ROWS * 60}]},
            {"model_type": "bert", "rows": [[0.5] * 999] * 99},
            {"model_type": "bert", "text": "x" * 5_000},
        ):
            (out / "config.json").write_text(json.dumps(whole | more))
            mended(out)
            require_refused(out, "config.json")
        (out / "config.json").write_text(
            json.dumps(whole | {"model_type": "bert", "id2label": {"0": "a", "1": "b"}})
        )
        mended(out)
        assert pv.verify(out).ok


@check
def check_files_of_weights_hold_tensors_alone() -> None:
    """No metadata, no unknown field of a tensor, no gap between tensors, nothing behind them."""
    with workplace() as place:
        out = published(place)
        file = out / "model.safetensors"
        whole = file.read_bytes()
        weights = load(whole)
        length = int.from_bytes(whole[:8], "little")
        head, body = json.loads(whole[8 : 8 + length]), whole[8 + length :]

        def written(changed: dict[str, Any], after: bytes = b"") -> bytes:
            text = json.dumps(changed).encode()
            return len(text).to_bytes(8, "little") + text + body + after

        name = min(head)
        moved = {
            own: {**part, "data_offsets": [at + 8 for at in part["data_offsets"]]}
            for own, part in head.items()
        }
        for content in (
            save(weights, {"rows": json.dumps(ROWS)}),
            save(weights, {"format": "pt", "rows": "1"}),
            written(head | {name: {**head[name], "rows": ROWS}}),
            written(head, b"\0" * 8),
            written(moved, b"\0" * 8),
            written(head | {"a\nb": head[name]}),
            whole[:8] + whole[8 : 8 + length].rstrip() + b" " * 64,
            save({**weights, "x" * 600: np.zeros(1)}),
            b"",
            whole[:-1],
        ):
            file.write_bytes(content)
            mended(out)
            require_refused(out, "model.safetensors")
        for content in (whole, save(weights, {"format": "pt"}), written(head)):
            file.write_bytes(content)
            mended(out)
            assert pv.verify(out).ok, pv.verify(out).problems
        shutil.rmtree(out)
    assert weights_file._METADATA == ({}, {"format": "pt"})


@check
def check_every_plan_declares_the_facts_of_its_runs() -> None:
    """A shape that can be read, with the facts that all runs have; a shape lets nothing pass that
    it does not name.
    """
    for plan in every_plan():
        assert isinstance(plan, AbstractPlan)
        known = fields_of(plan.facts_shape)
        assert set(fields_of(RunFacts)) <= set(known), plan
        assert list(unfit({"unknown": 1}, plan.facts_shape))
        assert not list(unfit({}, plan.facts_shape))
    assert list(unfit({"steps": float("nan")}, GradientFacts))
    assert list(unfit({"mu": float("inf")}, GradientFacts))
    assert list(unfit({"target_bounds": [0.0, float("inf")]}, GradientFacts))
    assert not list(
        unfit({"mu": 3.0, "optimizer": {"name": "Adam", "betas": [0.9, 0.999]}}, GradientFacts)
    )
