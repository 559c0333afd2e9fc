"""Named checks of `PrivateTrainer` and of the losses that it computes; planted bugs must make them
fail.
"""

from __future__ import annotations

import tempfile
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

import privlearn as pv
from privlearn._figures import PrivateFigure
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput, NotPerExample
from privlearn.training.gradient_check import require_gradients
from tests.support import texts as made
from tests.support.checks import check, must_raise


def trained(model: Any, changes: dict[str, Any] | None = None, **privacy: Any) -> Any:
    """A trainer that has trained, and what it saw after each step."""
    made.require_transformers()
    from transformers import TrainerCallback

    steps: list[tuple[int, torch.Tensor]] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            weights = torch.cat(
                [own.detach().flatten() for own in model.parameters() if own.requires_grad]
            )
            steps.append((state.global_step, weights))

    given = {"epsilon": 8.0, "delta": 1e-3, "max_length": made.LENGTH, **privacy}
    with tempfile.TemporaryDirectory() as folder:
        args = made.arguments(Path(folder), **{"logging_steps": 1000, **(changes or {})})
        trainer = pv.huggingface.PrivateTrainer(
            model,
            args,
            train_dataset=made.texts(),
            data_collator=made.padded,
            callbacks=[Watch()],
            **given,
        )
        trainer.train()
    return trainer, steps


def adapted() -> Any:
    """A model with adapters, both halves of which are away from zero, so that gradients reach
    both.
    """
    model = made.lora(made.still_gpt2())
    torch.manual_seed(4)
    for own in model.parameters():
        if own.requires_grad:
            own.data.normal_()
    return model


def rows() -> dict[str, torch.Tensor]:
    batch = made.padded([*made.texts(6, shortest=made.LENGTH)])
    return {name: batch[name] for name in sorted(batch)}


@check
def check_an_empty_batch_is_a_step_of_the_trainer() -> None:
    """Of about one example a batch, every third is empty: each is charged, noised and stepped like
    any other.
    """
    trainer, steps = trained(
        made.still_gpt2(),
        {"per_device_train_batch_size": 1, "num_train_epochs": 1, "optim": "sgd"},
        streams=pv.Streams.new(1),
    )
    assert trainer.result.ledger.event == trainer.plan.event()
    assert [number for number, _ in steps] == list(range(1, 41))
    moved = [float((after - before).norm()) for (_, before), (_, after) in pairwise(steps)]
    assert min(moved[:-1]) > 0
    assert trainer.result.facts.get("left_early") is None


@check
def check_two_trainers_of_one_seed_draw_apart() -> None:
    """The trainer seeds PyTorch's generators: neither batches nor noise may follow from them."""
    changes = {"max_steps": 1, "seed": 3}
    one, other = (trained(made.still_gpt2(), changes)[0] for _ in range(2))
    weights = [
        torch.cat([own.detach().flatten() for own in each.model.parameters()])
        for each in (one, other)
    ]
    assert not torch.equal(*weights)
    assert not one.result.seeded


@check
def check_nothing_private_is_logged_by_the_trainer() -> None:
    trainer, _ = trained(made.gpt2(), {"max_steps": 2, "logging_steps": 1})
    names = set().union(*trainer.state.log_history)
    assert not names & {"loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen"}, (
        names
    )
    assert "epsilon_spent" in names


@check
def check_a_callback_that_follows_the_training_loss_claims_nothing() -> None:
    """One that stops by it; one that shows it, and one that stops by a metric of public rows,
    change nothing.
    """
    made.require_transformers()
    from transformers import EarlyStoppingCallback, TrainerCallback

    seen: list[str] = []

    class Stops(TrainerCallback):  # type: ignore[misc]
        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any
        ) -> None:
            control.should_training_stop = logs.get("loss", 0.0) > 0.1

    class Shows(TrainerCallback):  # type: ignore[misc]
        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any
        ) -> None:
            seen.extend(f"{logs[name]:.3f}" for name in ("loss", "train_loss") if name in logs)

    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}

    def published(callback: Any, **changes: Any) -> tuple[bool, dict[str, Any]]:
        """Whether the run is published, and its facts."""
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = made.arguments(Path(folder) / "runs", **changes)
            trainer = pv.huggingface.PrivateTrainer(
                made.still_gpt2(),
                args,
                train_dataset=made.texts(),
                eval_dataset=made.texts(6, 1),
                data_collator=made.padded,
                callbacks=[callback],
                epsilon=8.0,
                delta=1e-3,
                max_length=made.LENGTH,
                log_private_loss=True,
            )
            trainer.train()
            try:
                trainer.publish(Path(folder) / "model")
            except pv.errors.BadInput:
                return False, trainer.result.facts
            return True, trainer.result.facts

    certified, facts = published(Stops())
    assert not certified
    assert "left early" in facts["unclaimed"]
    assert published(Shows())[0]
    assert len(seen) == 6
    certified, facts = published(EarlyStoppingCallback(1, 100.0), **evaluated)
    assert certified
    assert facts["left_early"]
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}}
    assert published(Shows(), **evaluated, **plateau)[0]


@check
def check_a_trainer_is_evaluated_on_public_rows() -> None:
    """Not on training rows, nor some of them, whenever it is asked."""
    made.require_transformers()
    rows = made.texts()
    with tempfile.TemporaryDirectory() as folder:
        trainer = pv.huggingface.PrivateTrainer(
            made.still_gpt2(),
            made.arguments(folder),
            train_dataset=rows,
            data_collator=made.padded,
            epsilon=8.0,
            delta=1e-3,
            max_length=made.LENGTH,
        )
        for evaluated in (rows, rows[:4], torch.utils.data.Subset(rows, [3])):
            said = must_raise(
                pv.errors.BadInput, lambda evaluated=evaluated: trainer.evaluate(evaluated)
            )
            assert "has rows of it" in str(said)
        assert trainer.evaluate(made.texts(4, 1))["eval_loss"] > 0


@check
def check_an_examples_loss_is_its_own() -> None:
    """It is the same in a batch of any size, and beside any others."""
    made.require_transformers()
    for model, batch in (
        (made.still_gpt2(), rows()),
        (made.bert("ForSequenceClassification"), made.padded(made.labelled(6))),
        (made.bert("ForTokenClassification", num_labels=3), made.padded(made.tagged(6))),
        (made.translator("M2M100"), made.padded(made.translated(6))),
    ):
        model.eval()
        loss = pv.huggingface.ExampleLoss(model, 5.0)
        whole = loss(model, batch)
        for size in (1, 2, 3):
            part = loss(model, {name: leaf[:size] for name, leaf in batch.items()})
            assert torch.allclose(part, whole[:size], rtol=1e-5), (type(model), size)


@check
def check_a_loss_of_a_batch_is_computed_of_one_example_at_a_time() -> None:
    """A mean over the batch, given as `compute_loss_func` or as a subclass's `compute_loss`: no
    example's loss depends on another.
    """
    made.require_transformers()

    class Own(pv.huggingface.PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            return mean(model(inputs["input_ids"], inputs["attention_mask"]), inputs["labels"])

    def mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return torch.nn.functional.cross_entropy(outputs.logits, labels)

    from privlearn.huggingface.example_losses import ComputedLoss

    model, batch = made.bert("ForSequenceClassification"), made.padded(made.labelled(6))
    model.eval()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Own(
            model,
            made.arguments(folder),
            train_dataset=made.labelled(),
            data_collator=made.padded,
            max_length=made.LENGTH,
            epsilon=8.0,
            delta=1e-3,
        )
        losses = (
            pv.huggingface.ExampleLoss(model, 5.0, own=mean),
            ComputedLoss(trainer.compute_loss, 5.0),
        )
    for loss in losses:
        whole = loss(model, batch)
        assert whole.shape == (6,)
        for row in range(6):
            part = loss(model, {name: leaf[row : row + 1] for name, leaf in batch.items()})
            assert torch.allclose(part, whole[row : row + 1], rtol=1e-5)


@check
def check_what_a_loss_logs_stays_in_the_step() -> None:
    """Neither the figures nor how often they are logged, which follows from how many were drawn;
    where that is asked for, they are private figures.
    """
    made.require_transformers()

    class Logs(pv.huggingface.PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
            loss = super().compute_loss(model, inputs, **options)
            self.log({"own": float(loss), "learning_rate": 0.5})
            return loss

    def trained_with(**privacy: Any) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = Logs(
                made.still_gpt2(),
                made.arguments(folder, max_steps=2, logging_steps=1),
                train_dataset=made.texts(),
                data_collator=made.padded,
                epsilon=8.0,
                delta=1e-3,
                max_length=made.LENGTH,
                **privacy,
            )
            trainer.train()
            trainer.log({"later": 1.0})
            history: list[dict[str, Any]] = trainer.state.log_history
            return history

    history = trained_with()
    assert not {"own", "later"} & set().union(*history)
    assert [log["step"] for log in history] == [1, 2, 2]
    logged = [log["own"] for log in trained_with(log_private_loss=True) if "own" in log]
    assert logged
    assert all(isinstance(value, PrivateFigure) for value in logged)


@check
def check_tokens_that_are_counted_are_those_expected() -> None:
    """How many tokens were drawn is private: the figure is the same in each run."""
    changes = {"max_steps": 3, "logging_steps": 1, "include_num_input_tokens_seen": "all"}
    for seed in (2, 3):
        trainer, _ = trained(made.still_gpt2(), changes, streams=pv.Streams.new(seed))
        logged = [
            log["num_input_tokens_seen"]
            for log in trainer.state.log_history
            if "learning_rate" in log
        ]
        assert logged == [step * 8 * made.LENGTH for step in (1, 2, 3)], logged


@check
def check_masks_leave_padding_out() -> None:
    """A text's gradient is the same whatever public length it is padded to, and whatever stands in
    the padding.
    """
    made.require_transformers()
    from privlearn.huggingface.fixed_length import Padded

    for model in (made.still_gpt2(), made.bert("ForMaskedLM", position_embedding_type="absolute")):
        model.eval()
        gradients = []
        for length, pad in ((8, 0), (made.LENGTH, 9)):
            text = made.texts(1, seed=2, shortest=5)
            padded = Padded(made.padded, model, pad, length)
            padded.learn(text)
            batch = padded(text)
            loss = pv.huggingface.ExampleLoss(model, 5.0)(model, batch).sum()
            gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
        for one, other in zip(*gradients, strict=True):
            assert one is None or torch.allclose(one, other, atol=1e-5), type(model)


@check
def check_an_adapters_example_moves_the_sum_by_at_most_the_norm() -> None:
    made.require_transformers()
    model = adapted()
    loss, batch = pv.huggingface.ExampleLoss(model, 1.0), rows()
    gradients = ClippedGradients(model, loss, pv.Flat(0.1), Adjacency.ZERO_OUT)
    names = {name for name, own in model.named_parameters() if own.requires_grad}
    assert set(gradients.parameters) == names
    assert any("lora_A" in name for name in names)
    for row in range(3):
        (sample,) = FullBatch().draw(1, np.random.default_rng(0))
        bounded = gradients(
            sample, TensorRows({name: leaf[row : row + 1] for name, leaf in batch.items()})
        )
        norms = {
            name: float(own.norm())
            for name, own in zip(gradients.parameters, bounded.values, strict=True)
        }
        assert sum(norm**2 for norm in norms.values()) ** 0.5 <= 0.1
        assert all(norm > 0 for norm in norms.values()), norms


@check
def check_the_clipped_sum_is_autograds_for_every_weight() -> None:
    made.require_transformers()
    for model in (adapted(), made.still_gpt2()):
        require_gradients(model, pv.huggingface.ExampleLoss(model, 1.0), TensorRows(rows()))
    model = adapted()
    model.unused = torch.nn.Linear(1, 1)
    loss = pv.huggingface.ExampleLoss(model, 1.0)
    said = must_raise(
        pv.errors.BadInput, lambda: require_gradients(model, loss, TensorRows(rows()))
    )
    assert "unused.weight" in str(said)


@check
def check_an_authors_texts_are_one_example() -> None:
    """Twenty copies of one author's text move the sum as far as one does."""
    made.require_transformers()
    rows = made.texts(10)
    groups = np.zeros(10, np.int64)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pv.huggingface.PrivateTrainer(
            made.still_gpt2(),
            made.arguments(folder, per_device_train_batch_size=1, num_train_epochs=1),
            train_dataset=rows,
            data_collator=made.padded,
            epsilon=8.0,
            delta=1e-3,
            max_length=made.LENGTH,
            groups=groups,
            rows_per_person=5,
            examples=1,
        )
        trainer.train()
        task = trainer.private.task
        assert task.present == 1
        assert task.persons.shape == (1, 5)


@check
def check_repeated_rows_and_tables_that_rescale_are_refused_by_the_trainer() -> None:
    """Of lists and of parts, before training; with a declared group there is a trainer that
    trains.
    """
    made.require_transformers()

    def train(rows: Any, model: Any = None, **privacy: Any) -> Any:
        given = {"epsilon": 8.0, "delta": 1e-3, "max_length": made.LENGTH, **privacy}
        with tempfile.TemporaryDirectory() as folder:
            trainer = pv.huggingface.PrivateTrainer(
                made.still_gpt2() if model is None else model,
                made.arguments(Path(folder), max_steps=1),
                train_dataset=rows,
                data_collator=made.padded,
                **given,
            )
            trainer.train()
        return trainer

    rows: Any = made.texts()
    for repeated in (rows * 3, ConcatDataset([rows, Subset(rows, [0, 1, 1])])):
        error = must_raise(BadInput, lambda repeated=repeated: train(repeated))
        assert "one row stands 3 times in the data" in str(error), error
        assert train(repeated, group_size=3).plan.unit.group_size == 3
    model = made.still_gpt2()
    model.transformer.wte.max_norm = 0.5
    error = must_raise(NotPerExample, lambda: train(rows, model))
    assert "Embedding at 'transformer.wte' has max_norm=0.5" in str(error), error


@check
def check_a_trainers_schedulers_follow_counts_and_public_metrics() -> None:
    """No callback hands a training loss to one, and none sets a rate by it."""
    made.require_transformers()
    from transformers import TrainerCallback

    class Sets(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **of: Any) -> None:
            if float(str(logs.get("loss", 200.0))) < 100.0:
                of["optimizer"].param_groups[0]["lr"] *= 0.5

    class Gives(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **of: Any) -> None:
            if "loss" in logs:
                of["lr_scheduler"].step(int(float(str(logs["loss"])) * 10))

    def facts(callbacks: list[Any], **changes: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = pv.huggingface.PrivateTrainer(
                made.still_gpt2(),
                made.arguments(Path(folder) / "runs", logging_steps=1, **changes),
                train_dataset=made.texts(),
                eval_dataset=made.texts(6, 1),
                data_collator=made.padded,
                callbacks=callbacks,
                epsilon=8.0,
                delta=1e-3,
                max_length=made.LENGTH,
                log_private_loss=True,
            )
            trainer.train()
            stated: dict[str, Any] = trainer.result.facts
            return stated

    assert "changed by hand" in facts([Sets()])["unclaimed"]
    assert "a scheduler was given a number" in facts([Gives()])["unclaimed"]
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}}
    evaluated = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "loss"}
    stated = facts([], **plateau, **evaluated)
    assert "unclaimed" not in stated
    assert stated.get("rates_declared_public") == ["metrics of the evaluation rows"]
    restarts = {"lr_scheduler_type": "cosine_with_restarts", "warmup_steps": 2}
    assert "unclaimed" not in facts([], **restarts)
