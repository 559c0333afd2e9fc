"""What a folder states is what was given and computed, and a value of another kind is a named
problem.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import privlearn as pv
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput
from privlearn.publishing import certificate, model, new_folder, publish, signing
from tests.publishing.checks import body_of, forge, key_in, published


def test_metrics_are_stated_as_they_were_given(tmp_path: Path) -> None:
    out = published(tmp_path, test_metrics={"accuracy": 0.8125})
    card = (out / "README.md").read_text()
    assert "| accuracy | 0.8125 |" in card
    more = published(tmp_path, "more", test_metrics={"accuracy": 0.8125}, test_rows=1)
    assert "| accuracy | 0.8125 on 1 rows |" in (more / "README.md").read_text()
    with pytest.raises(BadInput, match="expected a number"):
        published(tmp_path, "none", test_metrics={"accuracy": "high"})


def test_a_verification_states_what_was_recomputed(tmp_path: Path) -> None:
    key = key_in(tmp_path)
    out = published(tmp_path, sign=key)
    verification = pv.verify(out)
    assert verification.ok
    assert verification.epsilon == pytest.approx(body_of(out)["claim"]["epsilon"], rel=1e-6)
    assert signing.read_private(key).public.fingerprint in repr(verification)
    assert "no one: nothing says who the publisher is" in repr(
        pv.verify(published(tmp_path, "unsigned"))
    )
    assert "3 classes" in repr(pv.load_model(out))


@pytest.mark.parametrize("name", ["epsilon", "rho", "delta"])
@pytest.mark.parametrize("value", [True, "1", None, 1e301, -1.0, [1.0]])
def test_a_figure_of_another_kind_is_a_problem(tmp_path: Path, name: str, value: Any) -> None:
    out = published(tmp_path)
    body = body_of(out)
    if body["claim"][name] is value:
        return  # the run has no rho
    body["claim"][name] = value
    forge(out, body)
    verification = pv.verify(out)
    assert not verification.ok
    assert any(name in problem or "recomputed" in problem for problem in verification.problems)


@pytest.mark.parametrize(
    "version", [certificate.VERSION + 1, float(certificate.VERSION), True, None]
)
def test_other_versions_of_certificates_are_refused(tmp_path: Path, version: Any) -> None:
    body = {**body_of(published(tmp_path)), "version": version}
    with pytest.raises(BadInput, match="version"):
        certificate.parse(json.dumps(body).encode())


def test_names_of_classes_are_texts(tmp_path: Path) -> None:
    config = json.loads((published(tmp_path) / "config.json").read_text())
    assert model.parse(json.dumps({**config, "class_names": ["a", "b", "c"]}).encode())
    for names in (["a", 3, "c"], ["a", "b"], "abc"):
        with pytest.raises(BadInput, match="class_names"):
            model.parse(json.dumps({**config, "class_names": names}).encode())


def test_paid_metrics_need_a_release_of_their_own() -> None:
    run, paid = compose([Gaussian(2.0)]), {certificate.PAID: 5.0}
    assert certificate.unpaid(paid, run, run)
    assert certificate.unpaid(paid, compose([Gaussian(5.0)]), run)
    assert not certificate.unpaid(paid, compose([Gaussian(2.0), Gaussian(5.0)]), run)
    assert not certificate.unpaid({}, run, run)


def test_nothing_is_written_below_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("")
    program.chmod(0o777)
    with pytest.raises(BadInput, match="not a folder"):
        new_folder.require_free(program / "model")


def test_what_is_not_to_be_published_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    report = SimpleNamespace(public=False, verdict="", rows=list, to_json=dict, to_markdown=str)
    refused: dict[str, dict[str, Any]] = {
        "expected what pv.audit": {"audit": 3},
        "not declared public": {"audit": report},
        "another network": {"model_spec": "mlp:8"},
        "without classes": {"classes": None},
        "could not be read": {"data": {"name": "x" * (1 << 26)}},
        "expected those of a model": {"weights": {"other": b""}},
        "privlearn's own would overwrite": {
            "weights": {"model.safetensors": b"", "config.json": b'{"classes": 3}'}
        },
    }
    for message, options in refused.items():
        with pytest.raises(BadInput, match=message):
            published(tmp_path, **options)
    with pytest.raises(BadInput, match="expected what a method"):
        publish.publish("a model", tmp_path / "model")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_configurations_of_another_kind_are_refused(tmp_path: Path) -> None:
    config = json.loads((published(tmp_path) / "config.json").read_text())
    wrong: list[dict[str, Any]] = [
        {"target_bounds": [1.0, 0.0], "classes": 1},
        {"target_bounds": [0.0, 1.0]},
        {"target_bounds": "01", "classes": 1},
        {"transforms": "none"},
        {"transforms": [{"kind": "unheard of"}]},
        {"transforms": [3]},
        {"input_shape": [1 << 20, 1 << 20]},
        {"input_shape": "8"},
        {"input_shape": [1] * 100},
    ]
    for change in wrong:
        with pytest.raises(BadInput):
            model.parse(json.dumps({**config, **change}).encode())
    assert model.parse(json.dumps({**config, "target_bounds": [0.0, 1.0], "classes": 1}).encode())
