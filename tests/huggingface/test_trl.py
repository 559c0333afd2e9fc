"""`PrivateSFTTrainer` and `PrivateDPOTrainer`: weights are those of TRL's own losses, an example at
a time.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core.sampling import FullBatch
from privlearn.core.schedules import Constant
from tests.support import chats as made

made.require_trl()

from tests.huggingface.checks_trl import pair_batch  # noqa: E402


def still(norm: float) -> pv.Plan:
    """Two steps on all rows at hardly any noise."""
    return pv.Plan(FullBatch(), epochs=2, clip=pv.Flat(norm), schedule=Constant(1e-6))


def weights(model: Any) -> Tensor:
    return torch.cat([own.detach().flatten() for own in model.parameters() if own.requires_grad])


def clipped_one_by_one(trainer: Any, norm: float, tokens: float | None) -> Tensor:
    """Two steps on TRL's own loss of each example, whose gradient is clipped."""
    from transformers import Trainer

    loader = Trainer.get_train_dataloader(trainer)
    rows, model = loader.dataset, trainer.model.train()
    parameters = [own for own in model.parameters() if own.requires_grad]
    for _ in range(2):
        total = [torch.zeros_like(own) for own in parameters]
        for number in range(len(rows)):
            batch = loader.collate_fn([rows[number]])
            loss = trainer.compute_loss(model, batch, num_items_in_batch=tokens)
            gradients = torch.autograd.grad(loss, parameters)
            whole = torch.stack([gradient.norm() for gradient in gradients]).norm()
            for own, gradient in zip(total, gradients, strict=True):
                own += gradient * (norm / whole).clamp(max=1.0)
        with torch.no_grad():
            for own, gradient in zip(parameters, total, strict=True):
                own -= 0.5 * gradient / len(rows)
    return weights(model)


@pytest.mark.parametrize(
    ("kind", "changes", "norm"),
    [
        ("SFT", {}, 0.05),
        ("SFT", {}, 1.5),
        ("SFT", {"loss_type": "dft"}, 0.05),
        ("SFT LoRA", {}, 0.05),
        ("DPO", {}, 1.5),
        ("DPO LoRA", {"loss_type": ["sigmoid", "ipo"], "loss_weights": [0.8, 0.2]}, 0.05),
    ],
    ids=str,
)
def test_weights_are_those_of_trls_loss_of_single_examples(
    kind: str, changes: dict[str, Any], norm: float, tmp_path: Path
) -> None:
    name, _, adapter = kind.partition(" ")
    given = {"peft_config": made.lora()} if adapter else {}
    private = made.trainer(f"Private{name}Trainer", tmp_path, changes, plan=still(norm), **given)
    before = weights(private.model)
    private.train()
    assert private.private.task.gradients.way == "layers"
    frozen = {"precompute_ref_log_probs": True} if name == "DPO" else {}
    given = {"peft_config": made.lora()} if adapter else {}
    plain = made.trainer(f"{name}Trainer", tmp_path, {**changes, **frozen}, **given)
    after = clipped_one_by_one(plain, norm, made.LENGTH if name == "SFT" else None)
    moved = (after - before).norm()
    assert moved > 1e-3
    # clips leave 1/1024 of the norm for rounding
    assert (weights(private.model) - after).norm() < 1e-3 * moved


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_weights_move_because_of_the_labels(kind: str, tmp_path: Path) -> None:
    """Runs of the same batches and noise: of the same rows to the same weights, bit for bit; of
    rows with other answers alone to other weights.
    """
    rows = made.chats() if kind == "SFT" else made.pairs()

    def change(row: dict[str, Any]) -> dict[str, Any]:
        if kind == "DPO":
            return {"chosen": row["rejected"], "rejected": row["chosen"]}
        (turn,) = row["completion"]
        return {
            "completion": [{**turn, "content": " ".join(["w7"] * len(turn["content"].split()))}]
        }

    ends = []
    for data in (rows, rows, rows.map(change)):
        trainer = made.trainer(
            f"Private{kind}Trainer", tmp_path, train_dataset=data, streams=pv.Streams.new(3)
        )
        trainer.train()
        ends.append(weights(trainer.model))
    assert torch.equal(ends[0], ends[1])
    assert (ends[0] - ends[2]).norm() > 0.01


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_an_adapter_is_published(kind: str, tmp_path: Path) -> None:
    changes = {"save_strategy": "epoch"}
    trainer = made.trainer(
        f"Private{kind}Trainer", tmp_path / "runs", changes, peft_config=made.lora()
    )
    trainer.train()
    trainer.publish(tmp_path / "model")
    assert pv.verify(tmp_path / "model").ok
    pv.huggingface.load_pretrained(tmp_path / "model", made.llama())


def test_every_loss_of_pairs_is_trls(tmp_path: Path) -> None:
    from privlearn.huggingface.preference_pairs import DIVERGENCES, LOSSES, PairLoss, PairSettings

    private = made.trainer("PrivateDPOTrainer", tmp_path, ref_model=made.llama(5))
    plain = made.trainer(
        "DPOTrainer", tmp_path, {"precompute_ref_log_probs": True}, ref_model=made.llama(5)
    )
    batch, one = pair_batch(private), plain.data_collator([plain.train_dataset[0]])
    answered = float(batch["completion_mask"][0, 0].sum())
    cases = [{"loss_type": [name]} for name in LOSSES]
    cases += [{"f_divergence_type": name} for name in DIVERGENCES]
    for case in cases:
        smoothing = 0.1 if case.get("loss_type", [""])[0] in ("exo_pair", "robust") else 0.0
        settings = PairSettings(**case, label_smoothing=smoothing, tokens=answered)
        plain.loss_types, plain.label_smoothing = settings.loss_type, smoothing
        plain.f_divergence_type = settings.f_divergence_type
        expected = plain.compute_loss(plain.model.eval(), one)
        found = PairLoss(settings)(private.model.eval(), batch)[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=str(case))


def test_rows_and_settings_that_cannot_be_private(tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import TrainingArguments

    with pytest.raises(pv.errors.BadInput, match="column 'images'"):
        made.trainer(
            "PrivateSFTTrainer", tmp_path, train_dataset=Dataset.from_list([{"images": [1]}])
        )
    with pytest.raises(pv.errors.BadInput, match="expected one for each row"):
        made.trainer("PrivateSFTTrainer", tmp_path, groups=[1], rows_per_person=1)
    with pytest.raises(pv.errors.BadInput, match=r"expected trl\.SFTConfig"):
        pv.huggingface.PrivateSFTTrainer(
            made.llama(), TrainingArguments(str(tmp_path)), train_dataset=made.chats()
        )
    with pytest.raises(pv.errors.BadInput, match="model is 3"):
        made.trainer("PrivateDPOTrainer", tmp_path, model=3)
    with pytest.raises(pv.errors.BadInput, match="max_length=N"):
        made.trainer("PrivateDPOTrainer", tmp_path, {"max_length": None}).train()

    class Own(pv.huggingface.PrivateSFTTrainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)

    args = made.settings(made.require_trl().SFTConfig, tmp_path)
    with pytest.raises(pv.errors.BadInput, match="compute_loss of its own"):
        Own(
            made.llama(),
            args,
            train_dataset=made.chats(),
            processing_class=made.tokenizer(),
            epsilon=8.0,
            delta=1e-3,
        )


def test_metrics_of_public_rows_have_no_count_of_training(tmp_path: Path) -> None:
    """TRL's `eval_num_tokens` is of what it trained on, which is not counted."""
    trainer = made.trainer("PrivateSFTTrainer", tmp_path, eval_dataset=made.chats(4, 1))
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] > 0
    logged = trainer.state.log_history[-1]
    assert "eval_loss" in logged
    assert not [name for name in (*metrics, *logged) if "num_tokens" in name]
    assert trainer.predict(trainer.eval_dataset).metrics["test_loss"] > 0


def test_a_missing_trl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from privlearn.huggingface import trl

    monkeypatch.setitem(sys.modules, "trl", None)
    spec = importlib.util.spec_from_file_location("without_trl", trl.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for kind in (module.PrivateSFTTrainer, module.PrivateDPOTrainer):
        with pytest.raises(pv.errors.BadInput, match=r"pip install 'privlearn\[trl\]'"):
            kind(made.llama())


class _Int8(torch.nn.Linear):
    """A frozen layer that holds whole numbers, and multiplies with what they stand for."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False)
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        whole = (layer.weight.detach() / scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(whole, requires_grad=False)
        self.register_buffer("scale", scale)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return torch.nn.functional.linear(input, self.weight.to(self.scale.dtype) * self.scale)


def quantised(bits: str, folder: Path) -> Any:
    """A model whose layers hold few bits: by bitsandbytes, or by a stand-in."""
    model = made.llama()
    if bits == "stand-in":
        for layer in model.model.layers:
            for owner, name in ((layer.self_attn, "q_proj"), (layer.mlp, "up_proj")):
                setattr(owner, name, _Int8(getattr(owner, name)))
        return model
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    model.save_pretrained(folder / "base")
    settings = BitsAndBytesConfig(
        load_in_8bit=bits == "8",
        load_in_4bit=bits == "4",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
    )
    return AutoModelForCausalLM.from_pretrained(
        folder / "base", quantization_config=settings, device_map="cpu", dtype=torch.float32
    )


@pytest.mark.parametrize("bits", ["stand-in", "8", "4"])
def test_adapters_of_a_quantised_model_are_trained(bits: str, tmp_path: Path) -> None:
    """Its own weights are frozen, and stay as they are."""
    private = made.trainer(
        "PrivateSFTTrainer",
        tmp_path,
        model=quantised(bits, tmp_path),
        plan=still(0.05),
        peft_config=made.lora(),
    )
    frozen = {
        name: own.clone() for name, own in private.model.named_parameters() if not own.requires_grad
    }
    before = weights(private.model)
    private.train()
    plain = made.trainer(
        "SFTTrainer", tmp_path, model=quantised(bits, tmp_path), peft_config=made.lora()
    )
    for own in plain.model.parameters():
        own.data = own.data.float() if own.requires_grad else own.data
    after = clipped_one_by_one(plain, 0.05, made.LENGTH)
    assert (weights(private.model) - after).norm() < 1e-3 * (after - before).norm()
    named = dict(private.model.named_parameters())
    assert all(torch.equal(named[name], own) for name, own in frozen.items())
