"""Mixtures of experts take one pass for a batch, and the sums of single examples come out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import privlearn as pv
from tests.support import texts as made

made.require_transformers()

from tests.huggingface.checks_experts import (  # noqa: E402
    ARCHITECTURES,
    clipped,
    model_of,
    require_equal,
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_sums_of_single_examples_come_out(name: str) -> None:
    require_equal(name)


def test_frozen_experts_take_one_pass_too() -> None:
    """As those of a model whose adapters alone are trained."""
    models = [model_of("Olmoe"), pv.huggingface.group_experts(model_of("Olmoe"))]
    for model in models:
        for name, own in model.named_parameters():
            own.requires_grad_("self_attn" in name)
    (_, expected), (at_once, found) = map(clipped, models)
    assert at_once.way == "layers"
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_the_trainer_groups_experts(tmp_path: Path) -> None:
    model = model_of("Mixtral").float()
    trainer = pv.huggingface.PrivateTrainer(
        model,
        made.arguments(tmp_path / "runs", max_steps=2),
        train_dataset=made.texts(),
        data_collator=made.padded,
        epsilon=8.0,
        delta=1e-3,
        max_length=made.LENGTH,
    )
    trainer.train()
    assert trainer.private.task.gradients.way == "layers"
    trainer.publish(tmp_path / "model")
    assert "experts_implementation" not in (tmp_path / "model" / "config.json").read_text()
    loaded = type(model).from_pretrained(tmp_path / "model")
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        scores = [each.eval()(input_ids=ids).logits for each in (model, loaded)]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-5)


def test_models_without_experts_stay_as_they_are() -> None:
    model = made.still_gpt2()
    assert pv.huggingface.group_experts(model) is model


def test_a_loss_that_balances_experts_is_refused(tmp_path: Path) -> None:
    model = model_of("Mixtral").float()
    model.config.output_router_logits = True
    given = {
        "train_dataset": made.texts(),
        "epsilon": 8.0,
        "delta": 1e-3,
        "data_collator": made.padded,
        "max_length": made.LENGTH,
    }
    for use in (model, made.lora(model, target_modules=["q_proj"], fan_in_fan_out=False)):
        with pytest.raises(pv.errors.BadInput, match="balances experts"):
            pv.huggingface.PrivateTrainer(use, made.arguments(tmp_path), **given)
    model.config.output_router_logits = False
    pv.huggingface.PrivateTrainer(model, made.arguments(tmp_path), **given)
