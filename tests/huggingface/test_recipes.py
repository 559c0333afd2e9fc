"""Recipes of transformers run as they are, and end with the weights of a plain loop that clips
single examples, up to the noise and to what clips leave for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import privlearn as pv
from tests.support import texts as made

transformers = made.require_transformers()

from privlearn.huggingface import PrivateSeq2SeqTrainer, PrivateTrainer  # noqa: E402
from privlearn.huggingface.fixed_length import Padded, require_fit_rows  # noqa: E402

ROWS, STEPS, NORM, RATE = 6, 2, 0.3, 0.5
#: What clips leave for rounding.
ROOM = 1 - 1 / 1024
WEIGHTS = torch.tensor([1.0, 3.0])


class Weighted(PrivateTrainer):
    """A loss of one's own, as transformers' documentation writes one."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels, weight=WEIGHTS, label_smoothing=0.1)
        return (loss, outputs) if return_outputs else loss


class Regularised(PrivateTrainer):
    """A loss that begins with the trainer's own."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        loss = loss + 0.1 * outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


def weighted(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, weight=WEIGHTS, label_smoothing=0.1)


def over_tokens(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    scores, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(scores, targets, ignore_index=-100, reduction="sum") / num_items_in_batch


def of_model(model: Any, row: dict[str, Tensor]) -> Tensor:
    return model(**row).loss


def of_tokens(model: Any, row: dict[str, Tensor]) -> Tensor:
    return model(**row).loss * (row["labels"] != -100).sum() / made.LENGTH


def of_shifted_tokens(model: Any, row: dict[str, Tensor]) -> Tensor:
    return model(**row).loss * (row["labels"][:, 1:] != -100).sum() / made.LENGTH


def of_weighted(model: Any, row: dict[str, Tensor]) -> Tensor:
    return weighted(model(input_ids=row["input_ids"]), row["labels"])


def of_regularised(model: Any, row: dict[str, Tensor]) -> Tensor:
    outputs = model(**row)
    return outputs.loss + 0.1 * outputs.logits.square().mean()


def still_bert(**changes: Any) -> Any:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return made.bert("ForSequenceClassification", **still, **changes)


def many_labels() -> Any:
    return still_bert(num_labels=3, problem_type="multi_label_classification")


def short_sounds(rows: int) -> list[dict[str, Any]]:
    return made.heard(rows, frames=20)


TEXT = {"max_length": made.LENGTH}
SOUND = {"max_length": 3 * made.LENGTH, "max_target_length": made.LENGTH}
RECIPES: dict[str, tuple[Any, ...]] = {
    "M2M100 and NLLB": (lambda: made.translator("M2M100"), made.translated, of_tokens, TEXT),
    "Blenderbot": (lambda: made.translator("Blenderbot"), made.translated, of_tokens, TEXT),
    "BART": (lambda: made.translator("Bart"), made.translated, of_tokens, TEXT),
    "Whisper": (made.whisper, short_sounds, of_tokens, {"max_target_length": made.LENGTH}),
    "Speech2Text": (made.speech_to_text, made.heard, of_tokens, SOUND),
    "several labels": (many_labels, made.many_labelled, of_model, TEXT),
    "compute_loss": (still_bert, made.labelled, of_weighted, {**TEXT, "trainer": Weighted}),
    "over super": (still_bert, made.labelled, of_regularised, {**TEXT, "trainer": Regularised}),
    "a mean": (still_bert, made.labelled, of_weighted, {**TEXT, "compute_loss_func": weighted}),
    "over the number of tokens": (
        made.still_gpt2,
        made.texts,
        of_shifted_tokens,
        {**TEXT, "compute_loss_func": over_tokens},
    ),
}


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    return made.padded_sounds(rows) if "input_features" in rows[0] else made.padded(rows)


def alone(row: dict[str, Any]) -> dict[str, Tensor]:
    """A row by itself. Sounds are as long as in the run: Speech2Text's convolutions reach into what
    they are padded with, in transformers, too.
    """
    batch = collate([row])
    if "attention_mask" in batch and "input_features" in batch:
        short = SOUND["max_length"] - batch["attention_mask"].shape[1]
        batch["input_features"] = F.pad(batch["input_features"], (0, 0, 0, short))
        batch["attention_mask"] = F.pad(batch["attention_mask"], (0, short))
    return batch


def by_hand(model: Any, rows: list[Any], loss: Callable[..., Tensor]) -> None:
    """Steps on the mean of clipped gradients, each of a row collated by itself."""
    model.train()
    for _ in range(STEPS):
        sums = [torch.zeros_like(weight) for weight in model.parameters()]
        for row in rows:
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            gradients = torch.autograd.grad(loss(model, alone(row)), weights)
            norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
            trained = iter(gradients)
            for total, weight in zip(sums, model.parameters(), strict=True):
                if weight.requires_grad:
                    total += next(trained) * min(1.0, NORM * ROOM / norm)
        with torch.no_grad():
            for total, weight in zip(sums, model.parameters(), strict=True):
                weight -= RATE * total / len(rows)


@pytest.mark.filterwarnings("ignore:training will be slow")
@pytest.mark.parametrize("name", RECIPES)
def test_weights_are_those_of_a_plain_loop(name: str, tmp_path: Path) -> None:
    make, make_rows, loss, options = RECIPES[name]
    model, rows, options = make(), make_rows(ROWS), dict(options)
    start, twin = copy.deepcopy(model), copy.deepcopy(model)
    plan = pv.Plan(
        pv.Poisson(1.0),
        epochs=STEPS,
        schedule=pv.schedules.Constant(1e-6),
        clip=pv.Flat(NORM),
    )
    settings = {"optim": "sgd", "learning_rate": RATE, "lr_scheduler_type": "constant"}
    size = {"per_device_train_batch_size": ROWS, "num_train_epochs": STEPS}
    trainer = options.pop("trainer", PrivateTrainer)(
        model,
        made.arguments(tmp_path, **settings, **size, remove_unused_columns=False),
        train_dataset=rows,
        data_collator=collate,
        plan=plan,
        delta=1e-5,
        streams=pv.Streams.new(3),
        **options,
    )
    assert trainer.train().training_loss is None
    assert trainer.result.private_diagnostics["left_out"] == [0] * STEPS
    by_hand(twin, rows, loss)
    moved, off = (
        sum(
            float((one - other).detach().square().sum())
            for one, other in zip(twin.parameters(), each.parameters(), strict=True)
        )
        for each in (start, model)
    )
    assert 0 < off <= 1e-8 * moved


def test_only_what_is_as_long_as_a_text_is_padded() -> None:
    """Labels of a text are not, even where one text has as many words as there are labels."""
    rows = made.many_labelled()
    rows[0] = {**rows[0], "input_ids": rows[0]["input_ids"][:3]}

    def boxes_too(rows: list[Any]) -> dict[str, Tensor]:
        batch = made.padded(rows)
        box = batch["input_ids"][..., None].expand(-1, -1, 4)
        return {**batch, "bbox": box, "age": torch.ones(len(rows), 3)}

    for model in (many_labels(), made.translator("Bart")):
        padded = Padded(boxes_too, model, 0, 20, 7)
        require_fit_rows(rows, padded)
        shapes = {name: tuple(value.shape[1:]) for name, value in padded([rows[0]]).items()}
        expected = {"input_ids": (20,), "attention_mask": (20,), "bbox": (20, 4), "age": (3,)}
        decoded = {"labels": (7,), "decoder_input_ids": (7,)}
        assert shapes == expected | (decoded if shapes["labels"] != (3,) else {"labels": (3,)})
        assert (shapes["labels"] == (3,)) == (model.config.model_type == "bert")


def test_texts_are_generated_in_evaluation(tmp_path: Path) -> None:
    given = made.arguments(tmp_path, num_train_epochs=1, eval_strategy="epoch").to_dict()
    names = ("output_dir", "per_device_train_batch_size", "num_train_epochs", "eval_strategy")
    args = transformers.Seq2SeqTrainingArguments(
        **{name: given[name] for name in (*names, "report_to", "use_cpu", "disable_tqdm")},
        dataloader_pin_memory=False,
        save_strategy="no",
        predict_with_generate=True,
        generation_max_length=6,
    )
    lengths: list[int] = []

    def compute_metrics(predicted: Any) -> dict[str, float]:
        lengths.append(predicted.predictions.shape[1])
        return {"tokens": float((predicted.predictions > 0).sum())}

    options = {
        "train_dataset": made.translated(),
        "eval_dataset": made.translated(6, 1),
        "data_collator": made.padded,
        "epsilon": 8.0,
        "delta": 1e-3,
        "max_length": made.LENGTH,
    }
    model = made.translator("Bart")
    with pytest.raises(pv.errors.BadInput, match="PrivateSeq2SeqTrainer"):
        PrivateTrainer(model, args, **options)
    with pytest.raises(pv.errors.BadInput, match="Seq2SeqTrainingArguments"):
        PrivateSeq2SeqTrainer(model, made.arguments(tmp_path), **options)
    trainer = PrivateSeq2SeqTrainer(model, args, compute_metrics=compute_metrics, **options)
    trainer.train()
    assert lengths
    assert max(lengths) <= 20
    assert any("eval_tokens" in log for log in trainer.state.log_history)
    assert trainer.predict(made.translated(3, 2), max_length=5).predictions.shape[0] == 3
    assert pv.verify(trainer.publish(tmp_path / "model")).ok


def test_evaluation_rows_of_similar_lengths_are_computed_together(tmp_path: Path) -> None:
    shapes: list[tuple[int, int]] = []

    def noted(rows: list[Any]) -> dict[str, Tensor]:
        batch = made.padded(rows)
        shapes.append(tuple(batch["input_ids"].shape))
        return batch

    padding = {}
    for together in (False, True):
        trainer = PrivateTrainer(
            made.still_gpt2(),
            made.arguments(tmp_path, per_device_eval_batch_size=4),
            train_dataset=made.texts(),
            data_collator=noted,
            epsilon=8.0,
            delta=1e-3,
            max_length=made.LENGTH,
            evaluate_by_length=together,
        )
        shapes.clear()
        loss = trainer.evaluate(made.texts(40, 1))["eval_loss"]
        padding[together] = sum(rows * length for rows, length in shapes)
        assert loss > 0
    assert padding[True] < padding[False]
