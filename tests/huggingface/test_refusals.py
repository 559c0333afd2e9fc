"""What a trainer of transformers can be told that can't be private is refused by name, before
anything is spent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import privlearn as pv
from tests.support import texts as made

transformers = made.require_transformers()

from privlearn.huggingface import unsupported  # noqa: E402
from tests.huggingface.test_trainer import trainer_of  # noqa: E402


def refused(
    folder: Path,
    said: str,
    model: Any = None,
    changes: Any = None,
    kind: Any = None,
    **privacy: Any,
) -> None:
    ledger = pv.Ledger(pv.Budget(epsilon=8.0, delta=1e-3))

    def attempt() -> None:
        if kind is None:
            trainer_of(
                model or made.gpt2(), folder, changes=changes, ledger=ledger, **privacy
            ).train()
        else:
            kind(
                model or made.gpt2(),
                made.arguments(folder),
                train_dataset=made.texts(),
                epsilon=8.0,
                delta=1e-3,
            )

    with pytest.raises(pv.errors.PrivlearnError, match=said):
        attempt()
    assert ledger.event == pv.Ledger().event


REFUSED: list[dict[str, Any]] = [
    {"train_sampling_strategy": "group_by_length"},
    {"dataloader_drop_last": True},
    {"neftune_noise_alpha": 5.0},
    {"use_liger_kernel": True},
    {"torch_compile": True},
    {"torch_compile_backend": "inductor"},
    {"torch_compile_mode": "default"},
    {"auto_find_batch_size": True},
    {"fp16": True},
    {"deepspeed": "settings.json"},
    {"parallelism_config": {"tp_size": 2}},
    {"push_to_hub": True},
    {"include_num_input_tokens_seen": "non_padding"},
    {"load_best_model_at_end": True},
    {"full_determinism": True},
    {"predict_with_generate": True},
    {"debug": ["underflow_overflow"]},
]


@pytest.mark.parametrize("changes", REFUSED)
def test_arguments_that_cannot_be_private(changes: dict[str, Any], tmp_path: Path) -> None:
    args = made.arguments(tmp_path)
    # some are refused by transformers itself where a library is missing
    for name, value in changes.items():
        setattr(args, name, value)
    with pytest.raises(pv.errors.BadInput, match=next(iter(changes))):
        pv.huggingface.PrivateTrainer(
            made.gpt2(), args, train_dataset=made.texts(), epsilon=8.0, delta=1e-3
        )


@pytest.mark.parametrize(
    "config",
    [
        {"version": 1},
        {"cpu_offload": True},
        {"cpu_ram_efficient_loading": True},
        {"activation_checkpointing": True},
        {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 5},
        {"reshard_after_forward": "hybrid_shard"},
        {"a setting of later versions": 1},
    ],
    ids=lambda config: next(iter(config)),
)
def test_settings_of_fsdp_that_are_not_followed(config: dict[str, Any], tmp_path: Path) -> None:
    args = made.arguments(tmp_path)
    args.fsdp, args.fsdp_config = True, config
    with pytest.raises(pv.errors.BadInput, match=next(iter(config))):
        pv.huggingface.PrivateTrainer(
            made.gpt2(), args, train_dataset=made.texts(), epsilon=8.0, delta=1e-3
        )


def test_fsdp_in_the_form_of_before_is_refused(tmp_path: Path) -> None:
    """As transformers 4 has it; and an optimizer that has the whole model's parameters."""
    args, model = made.arguments(tmp_path), made.gpt2()
    rows = {"train_dataset": made.texts(), "epsilon": 8.0, "delta": 1e-3}
    args.fsdp = ["full_shard"]
    with pytest.raises(pv.errors.BadInput, match="call fully_shard"):
        pv.huggingface.PrivateTrainer(model, args, **rows)
    args.fsdp = True
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(pv.errors.BadInput, match="leave optimizers out"):
        pv.huggingface.PrivateTrainer(model, args, optimizers=(optimizer, None), **rows)


def test_each_refused_setting_is_tried() -> None:
    tried = {name for changes in REFUSED for name in changes}
    assert unsupported._ARGUMENTS.keys() <= tried


def test_unknown_arguments_are_refused_with_what_is_like_them(tmp_path: Path) -> None:
    for name, said in (
        ("epsilonn", "Did you mean epsilon"),
        ("tokenizer", "Did you mean processing_class"),
        ("target_epsilon", r"Did you mean epsilon\?"),
        ("target_delta", r"Did you mean delta\?"),
        ("epochs", "num_train_epochs"),
        ("learning_rate", r"TrainingArguments\(learning_rate"),
        ("xyz", "transformers' Trainer"),
    ):
        refused(tmp_path, f"'{name}' of PrivateTrainer.*{said}", **{name: 3})


def test_messages_name_the_objects_that_are_expected(tmp_path: Path) -> None:
    refused(tmp_path, r"clip is 0.5: expected a clip \(pv.Flat\(0.5\)", clip=0.5)
    assert trainer_of(made.gpt2(), tmp_path, clip=pv.Flat(0.5)).plan.clip == pv.Flat(0.5)
    refused(tmp_path, "choose sampling .*fixed", adjacency="replace_one")
    plan = trainer_of(made.gpt2(), tmp_path, adjacency="replace_one", sampling="fixed").plan
    assert plan.neighbours.value == "replace_one"


def test_columns_that_are_no_numbers(tmp_path: Path) -> None:
    """What transformers advises, `remove_unused_columns=False`, is said to be the reason."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")

    def collate(rows: Any) -> Any:
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

    written = datasets.Dataset.from_list([{"text": "a"}] * 40)
    refused(tmp_path, "tokenize it first", train_dataset=written)
    kept = {"remove_unused_columns": False}
    refused(tmp_path, "drop those", changes=kept, train_dataset=written, data_collator=collate)
    labels = datasets.Dataset.from_list([{"label": 1}] * 40)
    model = made.bert("ForSequenceClassification")
    collator = transformers.default_data_collator
    refused(tmp_path, "no 'input_ids'", model, train_dataset=labels, data_collator=collator)


def labelled(*labels: Any) -> list[dict[str, Any]]:
    return [{"input_ids": [3, 4, 5], "labels": label} for label in labels]


def collate_labels(rows: Any) -> Any:
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def test_labels_of_another_type_than_classes(tmp_path: Path) -> None:
    """Each is refused by the constructor, and with the advice followed the trainer is made."""
    model, collator = made.bert("ForSequenceClassification"), {"data_collator": collate_labels}
    for labels, said in (
        ((1.0, 0.0), r"'labels' has type float32, .*from 0 to 1, int\(label\)"),
        ((True, False), "'labels' has type bool, .*from 0 to 1"),
        (("yes", "no"), "'labels' holds texts: give each class a whole number from 0"),
    ):
        with pytest.raises(pv.errors.BadInput, match=said):
            trainer_of(model, tmp_path, labelled(*labels), **collator)
    trainer_of(model, tmp_path, labelled(1, 0), **collator)
    trainer_of(model, tmp_path, labelled([1.0, 0.0], [1.0, 1.0]), **collator)  # two labels a row
    texts = [{"text": "a", "labels": 1}] * 2
    with pytest.raises(pv.errors.BadInput, match=r"'text' holds texts: .*tokenizer\(row\['text'\]"):
        trainer_of(model, tmp_path, texts, data_collator=made.padded)


def test_parts_of_a_data_set_are_no_rows(tmp_path: Path) -> None:
    refused(
        tmp_path, "of the parts 'train', 'test': .*parts", train_dataset={"train": 1, "test": 2}
    )
    trainer_of(made.gpt2(), tmp_path, dict(enumerate(made.texts())))  # rows by their numbers


def test_texts_longer_than_the_places_of_a_model(tmp_path: Path) -> None:
    model, rows = made.bert("ForSequenceClassification"), labelled(1, 0)
    options = {"rows": rows, "data_collator": collate_labels}
    with pytest.raises(pv.errors.BadInput, match=f"expected at most {made.LENGTH}"):
        trainer_of(model, tmp_path, max_length=made.LENGTH + 1, **options)
    trainer_of(model, tmp_path, max_length=made.LENGTH, **options)


def test_streams_that_are_a_seed(tmp_path: Path) -> None:
    refused(tmp_path, r"streams is 3: expected .*pv.Streams.new\(seed\)", streams=3)


def test_what_loads_and_publishes_a_trained_model_is_said(tmp_path: Path) -> None:
    model = made.bert("ForSequenceClassification")
    trainer = trainer_of(model, tmp_path, labelled(*[0, 1] * 20), data_collator=collate_labels)
    trainer.train()
    folder = trainer.publish(tmp_path / "model")
    with pytest.raises(pv.errors.BadInput, match=r"load_pretrained.*BertForSequenceClass"):
        pv.load_model(folder, model)
    pv.huggingface.load_pretrained(folder, transformers.BertForSequenceClassification)
    with pytest.raises(pv.errors.BadInput, match=r"model is BertForSequenceClassification$"):
        pv.huggingface.load_pretrained(folder, model)
    with pytest.raises(pv.errors.BadInput, match=r"unharmed: trainer.publish\('.*model-2'\)"):
        trainer.publish(folder)
    assert pv.verify(trainer.publish(tmp_path / "model-2")).ok


def test_rows_that_cannot_be_sampled(tmp_path: Path) -> None:
    class Many(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(made.texts())

    refused(tmp_path, "IterableDataset|Many", train_dataset=Many())
    refused(tmp_path, "train_dataset is None", train_dataset=None)
    rows = made.texts()
    for evaluated in (rows, rows[-1:], {"public": made.texts(2, 1), "train": rows[:3]}):
        refused(
            tmp_path, "eval_dataset is train_dataset", train_dataset=rows, eval_dataset=evaluated
        )
    refused(tmp_path, "packs", data_collator=transformers.DataCollatorWithFlattening())
    refused(tmp_path, "max_length", max_length=None)
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    refused(
        tmp_path,
        "IterableDataset",
        train_dataset=datasets.Dataset.from_list(rows).to_iterable_dataset(),
    )


@pytest.mark.parametrize(
    "changes", [{"optim": "galore_adamw"}, {"lr_scheduler_kwargs": {"rate": 1}}]
)
def test_settings_that_lack_something_are_refused_at_once(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises((ImportError, TypeError, ValueError)):
        trainer_of(made.gpt2(), tmp_path, changes=changes)


def test_losses_of_a_batch(tmp_path: Path) -> None:
    def each_token(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return torch.nn.functional.cross_entropy(
            outputs.logits.transpose(1, 2), labels, reduction="none"
        )

    def coupled(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        each = each_token(outputs, labels).mean(1)
        return each - each.mean()

    refused(tmp_path, "expected one number", compute_loss_func=each_token)
    refused(tmp_path, "examples", compute_loss_func=coupled)

    class Own(pv.huggingface.PrivateTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            return super().training_step(*args, **kwargs)

    refused(tmp_path, "override compute_loss in its place", kind=Own)


def test_a_loss_that_is_not_known_may_be_computed_by_a_subclass(tmp_path: Path) -> None:
    """The message's advice, followed."""

    class Unknown(type(made.gpt2())):  # type: ignore[misc]
        loss_type = None

    Unknown.__name__ = "GPT2ForSomething"
    model = Unknown(made.gpt2().config)
    refused(tmp_path, "override compute_loss", model)

    class Own(pv.huggingface.PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            labels = inputs.pop("labels")[:, 1:]
            scores = model(**inputs).logits[:, :-1].transpose(1, 2)
            return torch.nn.functional.cross_entropy(scores, labels)

    trainer = Own(
        model,
        made.arguments(tmp_path, max_steps=1),
        train_dataset=made.texts(),
        data_collator=made.padded,
        max_length=made.LENGTH,
        epsilon=8.0,
        delta=1e-3,
    )
    trainer.train()
    assert not any(trainer.result.private_diagnostics["left_out"])


def test_weights_without_a_gradient_are_named(tmp_path: Path) -> None:
    model = made.gpt2()
    model.unused = torch.nn.Linear(2, 2)
    refused(tmp_path, "'unused.weight' and 1 more", model)


def test_targets_and_runs_that_are_not_clear(tmp_path: Path) -> None:
    refused(tmp_path, "how much privacy", epsilon=None)
    refused(tmp_path, "model_init", model_init=made.gpt2)
    optimizer = torch.optim.SGD([made.gpt2().transformer.wte.weight], lr=0.1)
    refused(tmp_path, "does not have the trainable parameter", optimizers=(optimizer, None))
    trainer = trainer_of(made.gpt2(), tmp_path, changes={"max_steps": 1})
    trainer.train()
    with pytest.raises(pv.errors.BadInput, match="has trained"):
        trainer.train()
    with pytest.raises(pv.errors.BadInput, match="no interrupted run"):
        trainer_of(made.gpt2(), tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(pv.errors.BadInput, match="goes on from its own"):
        trainer_of(made.gpt2(), tmp_path).train(resume_from_checkpoint=str(tmp_path))
    with pytest.raises(pv.errors.BadInput, match="tune"):
        trainer_of(made.gpt2(), tmp_path).hyperparameter_search()
    with pytest.raises(pv.errors.BadInput, match="expected a batch that the run drew"):
        trainer.training_step(trainer.model, made.padded(made.texts(2)))
