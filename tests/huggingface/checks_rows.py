"""Named checks of what a trainer looks at before it trains, rows and settings, and refuses."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
import torch

import privlearn as pv
from privlearn.errors import BadInput
from tests.support import texts as made
from tests.support.checks import check, must_raise


def trainer_for(model: Any, rows: Any, folder: str, **privacy: Any) -> Any:
    given = {"epsilon": 8.0, "delta": 1e-3, "max_length": made.LENGTH, **privacy}
    return pv.huggingface.PrivateTrainer(
        model, made.arguments(folder), train_dataset=rows, data_collator=made.padded, **given
    )


def changed(rows: list[dict[str, Any]], name: str, value: Any) -> list[dict[str, Any]]:
    """The rows, with another number in the fourth."""
    row = {**rows[3]}
    row[name] = [*row[name][:-1], value] if isinstance(row[name], list) else value
    return [*rows[:3], row, *rows[4:]]


@check
def check_rows_beyond_a_models_sizes_are_refused_before_anything_is_spent() -> None:
    """They would be left out, and nobody be told. The last token and class, and -100, pass."""
    made.require_transformers()
    classifier = made.bert("ForSequenceClassification")
    tagger = made.bert("ForTokenClassification", num_labels=3)
    with tempfile.TemporaryDirectory() as folder:
        for model, rows, name, last in (
            (classifier, made.labelled(), "labels", 1),
            (classifier, made.labelled(), "input_ids", made.WORDS - 1),
            (made.lora(made.gpt2()), made.texts(), "input_ids", made.WORDS - 1),
            (tagger, made.tagged(), "labels", 2),
            (made.t5(), made.translated(), "labels", made.WORDS - 1),
        ):
            ledger = pv.Ledger(pv.Budget(epsilon=8.0, delta=1e-3))
            for value in (last + 1, -3):
                bad = changed(rows, name, value)
                error = must_raise(
                    BadInput,
                    lambda model=model, bad=bad, ledger=ledger: trainer_for(
                        model, bad, folder, ledger=ledger
                    ),
                )
                assert f"outside 0 to {last}" in str(error), error
                assert str(value) not in str(error).replace(f"0 to {last}", ""), error
            assert ledger.event == pv.Ledger().event
            trainer_for(model, changed(rows, name, last), folder)
            if name == "labels":
                trainer_for(model, changed(rows, name, -100), folder)


@check
def check_no_figure_of_training_rows_comes_out_of_a_trainer() -> None:
    """Neither `evaluate` nor `predict` takes them, nor what Hugging Face's datasets selects of
    them.
    """
    made.require_transformers()
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    rows, table = made.labelled(), datasets.Dataset.from_list(made.labelled())
    parts = table.train_test_split(0.2, seed=0)
    private: list[tuple[Any, list[Any]]] = [
        (rows, [rows, rows[:4], torch.utils.data.Subset(rows, [3])]),
        (
            table,
            [
                table,
                table.select([3, 9]),
                table.select(range(3)),
                table.shuffle(seed=0),
                table.filter(lambda row: row["labels"] == 1),
                table.sort("labels").remove_columns("labels"),
                datasets.concatenate_datasets([table.select([1]), table.select([2])]),
            ],
        ),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for trained, several in private:
            trainer = trainer_for(made.bert("ForSequenceClassification"), trained, folder)
            for evaluated in several:
                for figures in (trainer.evaluate, trainer.predict):
                    error = must_raise(
                        BadInput, lambda figures=figures, evaluated=evaluated: figures(evaluated)
                    )
                    assert "has rows of it" in str(error), error
            public = trainer.predict(made.labelled(4, 1))
            assert public.predictions.shape == (4, 2)
            assert public.metrics["test_loss"] > 0
        halves = table.select(range(20)), table.select(range(20, 24))
        for trained, public in ((parts["train"], parts["test"]), halves):
            trainer = trainer_for(made.bert("ForSequenceClassification"), trained, folder)
            assert trainer.evaluate(public)["eval_loss"] > 0


@check
def check_a_setting_that_was_never_looked_at_keeps_its_default() -> None:
    """One that another version of transformers has is refused where it is changed."""
    made.require_transformers()
    from privlearn.huggingface import unsupported

    known = unsupported.RUNS
    with tempfile.TemporaryDirectory() as folder:
        try:
            unsupported.RUNS = known - {"weight_decay", "lr_scheduler_type"}
            unsupported.require_arguments(
                made.arguments(folder, lr_scheduler_type="linear"), generates=False
            )
            changed_args = made.arguments(folder, weight_decay=0.1)
            error = must_raise(
                BadInput, lambda: unsupported.require_arguments(changed_args, generates=False)
            )
        finally:
            unsupported.RUNS = known
    assert "TrainingArguments(weight_decay=0.1) can't be used: it is not known" in str(error)
