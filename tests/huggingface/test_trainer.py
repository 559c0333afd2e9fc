"""`PrivateTrainer`: the run that it makes is the one that `pv.dpsgd` makes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import privlearn as pv
from privlearn.core.rows import TensorRows
from tests.support import texts as made

made.require_transformers()

from privlearn.huggingface import PrivateTrainer, load_pretrained  # noqa: E402


def trainer_of(
    model: Any, folder: Path, rows: Any = None, changes: Any = None, **privacy: Any
) -> PrivateTrainer:
    given = {
        "epsilon": 8.0,
        "delta": 1e-3,
        "max_length": made.LENGTH,
        "streams": pv.Streams.new(5),
        **privacy,
    }
    args = made.arguments(folder, **(changes or {}))
    given = {
        "train_dataset": made.texts() if rows is None else rows,
        "data_collator": made.padded,
        **given,
    }
    return PrivateTrainer(model, args, **given)


def same(one: Any, other: Any) -> bool:
    theirs = dict(other.named_parameters())
    return all(torch.equal(own, theirs[name]) for name, own in one.named_parameters())


def whole() -> dict[str, torch.Tensor]:
    """The rows as tensors."""
    rows = [made.padded([row]) for row in made.texts()]
    return {
        name: torch.cat(
            [F.pad(row[name], (0, made.LENGTH - row[name].shape[1]), value=fill) for row in rows]
        )
        for name, fill in (("attention_mask", 0), ("input_ids", 0), ("labels", -100))
    }


def by_hand(model: Any, batch: Any) -> torch.Tensor:
    """The loss of single examples, written down."""
    scores = (
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        .logits[:, :-1]
        .transpose(1, 2)
    )
    return F.cross_entropy(scores, batch["labels"][:, 1:], reduction="none").sum(1) / made.LENGTH


@pytest.mark.parametrize("way", ["name", "object", "plan"])
def test_batches_may_have_a_maximum(way: str, tmp_path: Path) -> None:
    sampler = pv.sampling.TruncatedPoisson(0.2, 40, 10)
    plan = pv.Plan(sampler, epochs=2, clip=pv.Flat(0.5)).calibrate(epsilon=8.0, delta=1e-3)
    given: dict[str, Any] = {
        "name": {"sampling": "truncated-poisson:maximum=10", "max_grad_norm": 0.5},
        "object": {"sampling": sampler, "max_grad_norm": 0.5},
        "plan": {"plan": plan, "epsilon": None, "delta": None},
    }
    trainer = trainer_of(made.still_gpt2(), tmp_path, **given[way])
    trainer.train()
    assert trainer.plan == plan
    assert trainer.result.ledger.event == plan.event()
    assert trainer.state.global_step == 10


def test_the_weights_and_events_are_those_of_dpsgd(tmp_path: Path) -> None:
    changes = {"optim": "sgd", "lr_scheduler_type": "constant"}
    trainer = trainer_of(made.still_gpt2(), tmp_path, changes=changes, max_grad_norm=0.5)
    trainer.train()
    model = made.still_gpt2()
    model.config.use_cache = False

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01)

    plan = pv.Plan(pv.Poisson(8 / 40), epochs=2, clip=pv.Flat(0.5)).calibrate(
        epsilon=8.0, delta=1e-3
    )
    rows = TensorRows(whole())
    result = pv.dpsgd(
        plan, model, by_hand, rows, optimizer=optimizer, streams=pv.Streams.new(5), microbatch=8
    )
    assert trainer.plan == plan
    assert trainer.result.ledger.event == result.ledger.event == plan.event()
    assert same(trainer.model, model)
    assert not same(trainer.model, made.still_gpt2())


def test_the_trainers_optimizer_and_scheduler_step_once_each(tmp_path: Path) -> None:
    """AdamW with momentum, decay and a falling rate: a second step of the trainer's own would
    show.
    """
    from transformers import get_scheduler

    changes = {"weight_decay": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 2}
    trainer = trainer_of(made.still_gpt2(), tmp_path, changes=changes)
    trainer.train()
    model = made.still_gpt2()
    model.config.use_cache = False
    twin = trainer_of(model, tmp_path / "twin", changes=changes)
    optimizer = twin.create_optimizer()
    scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=10)
    rows, streams = TensorRows(whole()), pv.Streams.new(5)
    with pv.Run(
        twin.plan,
        model,
        by_hand,
        rows,
        optimizer=lambda _: optimizer,
        streams=streams,
        microbatch=8,
    ) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                scheduler.step()
    assert same(trainer.model, model)
    assert trainer.state.log_history[-2]["learning_rate"] < 0.001


@pytest.mark.parametrize(
    ("kind", "rows", "changes"),
    [
        ("ForSequenceClassification", made.labelled, {}),
        ("ForTokenClassification", made.tagged, {"num_labels": 3}),
        ("t5", made.translated, {}),
    ],
)
def test_models_of_other_tasks_are_trained(
    kind: str, rows: Any, changes: Any, tmp_path: Path
) -> None:
    model = made.t5() if kind == "t5" else made.bert(kind, **changes)
    args = {"num_train_epochs": 1, "activation_checkpointing": kind == "ForTokenClassification"}
    trainer = trainer_of(model, tmp_path, rows(), args, eval_dataset=rows(6, 1))
    metrics = trainer.train().metrics
    assert "train_loss" not in metrics
    assert trainer.result.private_diagnostics["left_out"][0] == 0
    assert trainer.evaluate()["eval_loss"] > 0


def test_losses_of_examples_are_those_of_transformers_over_the_public_divisor(
    tmp_path: Path,
) -> None:
    from privlearn.huggingface import ExampleLoss

    for model, rows in (
        (made.gpt2(), made.texts(6)),
        (made.bert("ForSequenceClassification"), made.labelled(6)),
        (made.bert("ForTokenClassification", num_labels=3), made.tagged(6)),
        (made.t5(), made.translated(6)),
    ):
        model.eval()
        batch = made.padded(rows)
        if "decoder" in str(type(model).forward.__doc__) and hasattr(
            model, "prepare_decoder_input_ids_from_labels"
        ):
            batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(
                batch["labels"]
            )
        own = ExampleLoss(model, 7.0)(model, batch)
        for number in range(len(rows)):
            row = {name: leaf[number : number + 1] for name, leaf in batch.items()}
            counted = (
                row["labels"][:, 1:] if isinstance(model, type(made.gpt2())) else row["labels"]
            )
            tokens = 1 if counted.dim() == 1 else int((counted != -100).sum()) / 7.0
            assert torch.allclose(own[number], model(**row).loss * tokens, rtol=1e-4)


def test_gradient_accumulation_is_microbatches_and_changes_nothing(tmp_path: Path) -> None:
    whole = trainer_of(made.still_gpt2(), tmp_path / "a")
    parts = trainer_of(
        made.still_gpt2(),
        tmp_path / "b",
        changes={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    )
    assert whole.plan == parts.plan
    whole.train()
    parts.train()
    theirs = dict(parts.model.named_parameters())
    for name, own in whole.model.named_parameters():
        assert torch.allclose(own, theirs[name], atol=1e-5), name
    assert whole.state.global_step == parts.state.global_step == 10


def test_logs_have_epsilon_and_nothing_private(tmp_path: Path) -> None:
    trainer = trainer_of(made.gpt2(), tmp_path)
    output = trainer.train()
    logs = trainer.state.log_history
    spent = [log["epsilon_spent"] for log in logs if "learning_rate" in log]
    assert spent == sorted(spent)
    assert abs(spent[-1] - trainer.plan.guarantee(1e-3).epsilon) < 1e-9
    assert not {"loss", "train_loss", "grad_norm", "total_flos"} & set().union(*logs)
    assert output.training_loss is None
    asked = trainer_of(made.gpt2(), tmp_path / "b", log_private_loss=True)
    assert asked.train().training_loss > 0
    assert any("loss" in log for log in asked.state.log_history)


def test_authors_are_examples(tmp_path: Path) -> None:
    rows, groups = made.texts(), np.arange(40) // 4
    trainer = trainer_of(
        made.gpt2(),
        tmp_path,
        rows,
        {"per_device_train_batch_size": 2, "max_steps": 2},
        groups=groups,
        rows_per_person=2,
    )
    assert trainer.plan.sampling == pv.Poisson(0.2)
    trainer.train()
    assert "person" in str(trainer.plan.unit)
    folder = trainer.publish(tmp_path / "model")
    assert pv.verify(folder).ok
    with pytest.raises(pv.errors.BadInput, match="groups"):
        trainer_of(made.gpt2(), tmp_path, rows, groups=groups[:5], rows_per_person=2).train()


def test_a_model_is_published_and_loaded_again(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    trainer = trainer_of(made.gpt2(), tmp_path, changes={"max_steps": 2})
    with pytest.raises(pv.errors.BadInput, match="nothing was trained"):
        trainer.publish(tmp_path / "model")
    trainer.train()
    folder = trainer.publish(tmp_path / "model")
    assert pv.verify(folder).ok
    assert "schedule linear" in (folder / "README.md").read_text()
    x = torch.arange(3, 11)[None]
    wanted = trainer.model.eval()(x).logits
    assert torch.equal(AutoModelForCausalLM.from_pretrained(folder).eval()(x).logits, wanted)
    assert torch.equal(load_pretrained(folder, AutoModelForCausalLM).eval()(x).logits, wanted)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\1")
    assert not pv.verify(folder).ok
    with pytest.raises(pv.errors.CertificateMismatch):
        load_pretrained(folder, AutoModelForCausalLM)


def test_adapters_are_published_alone(tmp_path: Path) -> None:
    model = made.lora(made.gpt2())
    frozen = {name: own.clone() for name, own in model.named_parameters() if not own.requires_grad}
    trainer = trainer_of(model, tmp_path, changes={"max_steps": 2})
    trainer.train()
    for name, own in model.named_parameters():
        assert name not in frozen or torch.equal(own, frozen[name])
    folder = trainer.publish(tmp_path / "model")
    assert {path.name for path in folder.iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "config.json",
        "README.md",
        "card.html",
        "privacy.json",
    }
    assert pv.verify(folder).ok
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: peft\ntags:")
    assert 'PeftModel.from_pretrained(base_model, ".")' in card
    assert "privlearn predict" not in card + (folder / "card.html").read_text()
    x = torch.arange(3, 11)[None]
    again = load_pretrained(folder, made.gpt2())
    assert torch.equal(again.eval()(x).logits, model.eval()(x).logits)
    with pytest.raises(pv.errors.BadInput, match="adapter"):
        load_pretrained(folder, type(made.gpt2()))
    with pytest.raises(pv.errors.BadInput, match="adapter"):
        pv.load_model(folder)
    config = (folder / "adapter_config.json").read_text()
    (folder / "adapter_config.json").write_text(
        config.replace('"lora_alpha": 8', '"lora_alpha": 9')
    )
    assert not pv.verify(folder).ok


def _follow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model that the Python of a folder's card loads, from within the folder."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["model"].eval()


@pytest.mark.parametrize(
    ("rows", "labels", "adapter"),
    [
        (made.texts, None, {"task_type": "CAUSAL_LM"}),
        (made.texts, None, {"task_type": None}),
        (
            made.labelled,
            3,
            {"task_type": "SEQ_CLS", "target_modules": ["query"], "fan_in_fan_out": False},
        ),
    ],
)
def test_a_card_says_how_peft_loads_an_adapter(
    rows: Any, labels: int | None, adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = made.bert("ForSequenceClassification", num_labels=labels) if labels else made.gpt2()
    # a name on a hub is looked for in the folder that Python runs in, first
    (tmp_path / "hub").mkdir()
    monkeypatch.chdir(tmp_path / "hub")
    base.save_pretrained("owner/base")
    model = made.lora(type(base).from_pretrained("owner/base"), **adapter)
    trainer = trainer_of(model, tmp_path / "runs", rows(), {"max_steps": 1})
    trainer.train()
    folder = trainer.publish(tmp_path / "model")
    assert pv.verify(folder).ok
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: peft\nbase_model: owner/base\ntags:")
    base.save_pretrained(folder / "owner/base")
    batch = made.padded(made.texts(2))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model.eval()(**inputs).logits
    assert torch.equal(_follow(folder, monkeypatch)(**inputs).logits, expected)


@pytest.mark.parametrize("labels", [None, 3])
def test_a_card_of_an_adapter_loads_a_base_that_has_no_name(
    labels: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was made from a configuration: it is loaded from a folder, with as many labels."""
    adapter = {"task_type": "SEQ_CLS", "target_modules": ["query"], "fan_in_fan_out": False}
    base = made.bert("ForSequenceClassification", num_labels=3) if labels else made.gpt2()
    base.save_pretrained(tmp_path / "base")
    model = made.lora(base, **(adapter if labels else {}))
    trainer = trainer_of(
        model, tmp_path / "runs", (made.labelled if labels else made.texts)(), {"max_steps": 1}
    )
    trainer.train()
    folder = trainer.publish(tmp_path / "model")
    (tmp_path / "base").rename(folder / "base_model")
    batch = made.padded(made.texts(2))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model.eval()(**inputs).logits
    assert torch.equal(_follow(folder, monkeypatch)(**inputs).logits, expected)


def test_a_card_says_how_transformers_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(made.gpt2(), tmp_path / "runs", changes={"max_steps": 1})
    trainer.train()
    folder = trainer.publish(tmp_path / "model")
    assert (folder / "README.md").read_text().startswith("---\nlibrary_name: transformers\ntags:")
    x = torch.arange(3, 11)[None]
    expected = trainer.model.eval()(x).logits
    assert torch.equal(_follow(folder, monkeypatch)(x).logits, expected)


def test_an_adapter_that_leaves_something_out_is_not_published(tmp_path: Path) -> None:
    model = made.lora(made.gpt2())
    model.get_base_model().transformer.ln_f.weight.requires_grad_(True)
    trainer = trainer_of(model, tmp_path, changes={"max_steps": 1})
    trainer.train()
    with pytest.raises(pv.errors.BadInput, match="modules_to_save"):
        trainer.publish(tmp_path / "model")


class _Killed:
    """A callback that ends its process as `kill -9` does."""

    def __new__(cls, at: int) -> Any:
        from transformers import TrainerCallback

        class Kill(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                if state.global_step == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return Kill()


@pytest.mark.parametrize(("adapted", "at"), [(False, 4), (True, 6)])
def test_a_killed_run_goes_on_to_the_same_bits(adapted: bool, at: int, tmp_path: Path) -> None:
    changes = {"save_strategy": "steps", "save_steps": 5 if at == 6 else 3, "logging_steps": 5}

    def trainer(folder: Path, **more: Any) -> PrivateTrainer:
        model = made.lora(made.gpt2()) if adapted else made.gpt2()
        return trainer_of(model, folder, changes=changes, **more)

    child = os.fork()
    if child == 0:  # pragma: no cover
        trainer(tmp_path / "killed", callbacks=[_Killed(at)]).train()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with pytest.raises(pv.errors.BadInput, match="interrupted run"):
        trainer(tmp_path / "killed").train()
    resumed = trainer(tmp_path / "killed", streams=None)
    output = resumed.train(resume_from_checkpoint=True)
    whole = trainer(tmp_path / "whole")
    whole.train()
    assert output.global_step == whole.state.global_step == 10
    assert same(resumed.model, whole.model)
    assert resumed.result.ledger.event == whole.result.ledger.event
    logged = [
        [log["epoch"] for log in each.state.log_history if "learning_rate" in log]
        for each in (resumed, whole)
    ]
    assert logged[0] == logged[1]
    folder = resumed.publish(tmp_path / "model")
    assert pv.verify(folder).ok
    assert not (tmp_path / "killed" / "_private.checkpoint").exists()
    assert (tmp_path / "whole" / "_private.checkpoint").stat().st_mode & 0o777 == 0o600


def test_a_model_that_counts_the_tokens_of_an_image(tmp_path: Path) -> None:
    """It refuses random tokens: without `made_up`, so does the trainer, by name."""
    from tests.clipping.architectures import described, like, with_places

    def frozen_eye() -> Any:
        model: Any = like("LLaVA").make().float()
        model.model.vision_tower.requires_grad_(False)
        return model

    batch, model = described(), frozen_eye()
    rows = [
        {
            name: leaf[number].float() if leaf.is_floating_point() else leaf[number].clone()
            for name, leaf in batch.items()
        }
        for _ in range(4)
        for number in range(len(batch["labels"]))
    ]

    def collate(own: Any) -> dict[str, torch.Tensor]:
        return {name: torch.stack([row[name] for row in own]) for name in own[0]}

    given = {"rows": rows, "data_collator": collate, "max_length": None, "examples": 12}
    with pytest.raises(pv.errors.BadInput, match="tokens"):
        trainer_of(model, tmp_path, **given).train()
    trainer = trainer_of(model, tmp_path, made_up=with_places, **given)
    trainer.train()
    assert trainer.result.ledger.event == trainer.plan.event()
    assert not same(trainer.model, frozen_eye())
