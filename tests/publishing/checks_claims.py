"""Named checks of what a certificate claims; mutations must make them fail."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.plan import Plan
from privlearn.errors import (
    PrivlearnError,
)
from privlearn.publishing import certificate, publish, verify
from privlearn.training import dpsgd as whole_run
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, small_data, small_net

# Training


def train(
    plan: Plan, rows: int = 12, streams: streams_module.Streams | None = None, **options: Any
) -> Any:
    return whole_run.dpsgd(
        plan,
        small_net(),
        cross_entropy,
        small_data(rows),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        streams=streams or streams_module.Streams.new(0),
        **options,
    )


# Publishing


@check
def check_changes_to_a_published_model_are_found() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(sampling.Poisson(0.25), epochs=2).calibrate(epsilon=3.0, delta=1e-5)
        result = train(plan)
        out = publish.publish(result, Path(folder) / "model")
        assert verify.verify(out).ok
        for change in CHANGES:
            _require_found(out, change)
        weights = (out / "model.safetensors").read_bytes()
        (out / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
        found = verify.verify(out)
        assert not found.ok
        assert "model.safetensors" in " ".join(found.problems)


def _halve_count(body: dict[str, Any]) -> None:
    body["events"]["events"][0]["count"] //= 2


def _drop_event(body: dict[str, Any]) -> None:
    body["events"]["events"] = []


def _more_noise(body: dict[str, Any]) -> None:
    body["events"]["events"][0]["event"]["event"]["noise_multiplier"] *= 1.001


def _smaller_claim(body: dict[str, Any]) -> None:
    body["claim"]["epsilon"] *= 0.999


def _larger_claim(body: dict[str, Any]) -> None:
    body["claim"]["epsilon"] *= 1.01


def _other_plan(body: dict[str, Any]) -> None:
    body["plan"]["schedule"]["start"] = 99.0


def _other_method(body: dict[str, Any]) -> None:
    body["claim"]["method"] = "magic"


def _more_claims(body: dict[str, Any]) -> None:
    body["claim"]["certified_by"] = "somebody"


def _other_neighbours(body: dict[str, Any]) -> None:
    body["claim"]["adjacency"] = "replace_one"


def _unseeded(body: dict[str, Any]) -> None:
    body["randomness"] = "operating system"


CHANGES = [
    _halve_count,
    _drop_event,
    _more_noise,
    _smaller_claim,
    _larger_claim,
    _other_neighbours,
    _unseeded,
    _other_plan,
    _other_method,
    _more_claims,
]


def _require_found(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path, heads = (
        out / "privacy.json",
        {"README.md": certificate.header, "card.html": certificate.page_head},
    )
    cards = {out / name: head for name, head in heads.items()}
    original, original_cards = path.read_text(), {card: card.read_text() for card in cards}
    for forge in (False, True):
        body = json.loads(original)
        before = _stated(body["claim"])
        change(body)
        if forge:  # a careful forger mends cards and digests too; the arithmetic remains
            for card, head in cards.items():
                mended = head(*_stated(body["claim"]), None) + original_cards[card].removeprefix(
                    head(*before, None)
                )
                card.write_text(mended)
                body["files"][card.name] = hashlib.sha256(card.read_bytes()).hexdigest()
            body["digests"] = {part: certificate.digest(body[part]) for part in body["digests"]}
        path.write_text(json.dumps(body))
        found = verify.verify(out)
        path.write_text(original)
        for card, text in original_cards.items():
            card.write_text(text)
        if not forge or change is not _unseeded:
            assert not found.ok, f"{change.__name__} went unnoticed"
            assert found.problems


def _stated(claim: dict[str, Any]) -> list[Any]:
    return [claim[name] for name in ("epsilon", "delta", "adjacency", "unit")]


@check
def check_private_figures_are_not_published() -> None:
    plan = Plan(sampling.FullBatch(), epochs=2).calibrate(epsilon=3.0, delta=1e-5)
    result = train(plan)
    assert set(result.private_diagnostics) == {"loss", "clipped_share", "left_out"}
    assert "0." not in repr(result.private_diagnostics)
    with tempfile.TemporaryDirectory() as folder:
        said = must_raise(
            PrivlearnError,
            lambda: publish.publish(result, Path(folder) / "a", data=result.private_diagnostics),  # type: ignore
        )
        assert "private diagnostics" in str(said)
        out = publish.publish(result, Path(folder) / "b")
        text = " ".join(path.read_bytes().decode("latin-1") for path in out.iterdir())
        for figure in result.private_diagnostics["loss"]:
            assert f"{figure:.6f}"[:8] not in text


@check
def check_seeded_runs_say_so() -> None:
    plan = Plan(sampling.FullBatch(), epochs=1).calibrate(epsilon=3.0, delta=1e-5)
    with tempfile.TemporaryDirectory() as folder:
        seeded = publish.publish(
            train(plan, streams=streams_module.Streams.new(0)), Path(folder) / "seeded"
        )
        fresh = publish.publish(
            train(plan, streams=streams_module.Streams.new()), Path(folder) / "fresh"
        )
        assert any("seed" in warning for warning in verify.verify(seeded).warnings)
        assert verify.verify(fresh).warnings == []
