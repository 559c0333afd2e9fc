"""Named checks of the private trainers of TRL; planted bugs must make them fail."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput
from tests.support import chats as made
from tests.support import texts as made_texts
from tests.support.checks import check, must_raise


def pair_batch(trainer: Any) -> dict[str, Tensor]:
    """The pairs of a trainer, as it computes with them."""
    from transformers import Trainer

    loader = Trainer.get_train_dataloader(trainer)
    collate = trainer._make_padded(loader.collate_fn)
    rows = [collate([loader.dataset[number]]) for number in range(len(loader.dataset))]
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


@check
def check_a_pair_is_one_example() -> None:
    """Its loss is TRL's of this pair alone, whatever stands beside it, and the gradient of both
    answers together is clipped to the norm.
    """
    with tempfile.TemporaryDirectory() as folder:
        private = made.trainer("PrivateDPOTrainer", folder, ref_model=made.llama(5))
        plain = made.trainer(
            "DPOTrainer", folder, {"precompute_ref_log_probs": True}, ref_model=made.llama(5)
        )
    batch, model = pair_batch(private), private.model.eval()
    assert batch["input_ids"].shape == (12, 2, made.LENGTH)
    loss = private._make_loss(1.0)
    losses = loss(model, batch)
    assert losses.shape == (12,)
    rows = plain.train_dataset
    for number in range(4):
        one = plain.data_collator([rows[number]])
        expected = plain.compute_loss(plain.model.eval(), one)
        assert torch.allclose(losses[number], expected, rtol=1e-5), number
        alone = loss(model, {name: leaf[number : number + 1] for name, leaf in batch.items()})
        assert torch.allclose(alone[0], losses[number], rtol=1e-5), number
    gradients = ClippedGradients(model, loss, pv.Flat(0.1), Adjacency.ZERO_OUT)
    for number in range(3):
        (sample,) = FullBatch().draw(1, np.random.default_rng(0))
        single = {name: leaf[number : number + 1] for name, leaf in batch.items()}
        values = gradients(sample, TensorRows(single)).values
        norm = torch.stack([value.norm() for value in values]).norm()
        assert 0.09 < norm <= 0.1


@check
def check_the_reference_model_is_frozen() -> None:
    """It sees one pair at a time, is the model before training, and is not trained."""
    made.require_trl()
    sizes: list[int] = []

    class Watched(pv.huggingface.PrivateDPOTrainer):  # type: ignore[misc]
        def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
            sizes.append(len(inputs["input_ids"]))
            assert not model.training
            return super().compute_ref_log_probs(model, inputs)

    from peft import get_peft_model

    trl = made.require_trl()
    with tempfile.TemporaryDirectory() as folder:
        for model in (made.llama(), get_peft_model(made.llama(), made.lora())):
            before = copy.deepcopy(model).eval()
            trainer = Watched(
                model,
                args=made.settings(trl.DPOConfig, folder, precompute_ref_batch_size=4),
                train_dataset=made.pairs(),
                processing_class=made.tokenizer(),
                epsilon=8.0,
                delta=1e-3,
            )
            trainer.train()
            batch = pair_batch(trainer)
            with torch.no_grad():
                zeros = dict.fromkeys(("ref_chosen_logps", "ref_rejected_logps"), torch.zeros(12))
                sums = _answers(before, {**batch, **zeros})
            for name, expected in zip(
                ("ref_chosen_logps", "ref_rejected_logps"), sums, strict=True
            ):
                assert torch.allclose(batch[name], expected, rtol=1e-4), name
            named = dict(trainer.model.named_parameters())
            assert not any(".ref." in name for name, own in named.items() if own.requires_grad)
            moved = [
                not torch.equal(own, named[name])
                for name, own in before.named_parameters()
                if own.requires_grad
            ]
            assert any(moved)
    assert set(sizes) == {2}


def _answers(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The log-probabilities of both answers of each pair, written down."""
    ids, mask = batch["input_ids"], batch["completion_mask"][..., 1:]
    sums = []
    for answer in (0, 1):
        scores = model(
            input_ids=ids[:, answer], attention_mask=batch["attention_mask"][:, answer]
        ).logits.log_softmax(-1)
        taken = scores[:, :-1].gather(2, ids[:, answer, 1:, None])[..., 0]
        sums.append((taken * mask[:, answer]).sum(1))
    return sums[0], sums[1]


@check
def check_settings_that_join_rows_are_refused_by_name() -> None:
    """Packing among them; so is every setting of TRL that no private run is known to follow."""
    trl, transformers = made.require_trl(), made_texts.require_transformers()
    general = {field.name for field in fields(transformers.TrainingArguments)}
    with tempfile.TemporaryDirectory() as folder:
        for kind, config in (("SFT", trl.SFTConfig), ("DPO", trl.DPOConfig)):
            followed = getattr(pv.huggingface, f"Private{kind}Trainer")._settings
            usual = made.settings(config, folder)
            others = {field.name for field in fields(config)} - general - set(followed)
            assert "padding_free" in others
            assert kind == "DPO" or "packing" in others
            for name in sorted(others):
                value = getattr(usual, name)
                changed = not value if isinstance(value, bool) else "wrapped"
                error = must_raise(
                    BadInput,
                    lambda kind=kind, name=name, changed=changed: made.trainer(
                        f"Private{kind}Trainer", folder, {name: changed}
                    ),
                )
                assert f"({name}=" in str(error), error
        for name in ("aot", "aot_unpaired"):
            error = must_raise(
                BadInput,
                lambda name=name: made.trainer("PrivateDPOTrainer", folder, {"loss_type": [name]}),
            )
            assert f"loss_type='{name}'" in str(error), error


@check
def check_what_trl_measures_on_training_rows_is_not_logged() -> None:
    """Even where somebody computes TRL's own loss of a training batch in between."""
    made.require_trl()
    from transformers import TrainerCallback

    for kind in ("PrivateSFTTrainer", "PrivateDPOTrainer"):

        class Computes(TrainerCallback):  # type: ignore[misc]
            trainer: Any = None

            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                rows = self.trainer.train_dataset
                with torch.no_grad(), self.trainer._scoring():
                    self.trainer.compute_loss(
                        self.trainer.model.train(), self.trainer.data_collator([rows[0]])
                    )

        with tempfile.TemporaryDirectory() as folder:
            callback = Computes()
            trainer = made.trainer(
                kind,
                folder,
                {"eval_strategy": "steps"},
                callbacks=[callback],
                eval_dataset=made.chats(4, 3) if "SFT" in kind else made.pairs(4, 3),
            )
            callback.trainer = trainer
            trainer.train()
        names = set().union(*trainer.state.log_history)
        of_training = {name for name in names if not name.startswith(("eval_", "train_"))}
        assert of_training == {"epoch", "step", "learning_rate", "epsilon_spent"}, of_training
        assert "train_loss" not in names
        assert "eval_loss" in names


@check
def check_a_copy_of_a_model_of_trl_runs_its_own_weights() -> None:
    """The checks before training run copies of the model, whose weights they change."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("PrivateSFTTrainer", "PrivateDPOTrainer"):
            trainer = made.trainer(kind, folder, peft_config=made.lora())
            rows = made.chats(4, 3) if "SFT" in kind else made.pairs(4, 3)
            ids = torch.arange(6, 12)[None]
            copied = copy.deepcopy(trainer.model)
            with torch.no_grad():
                for own in copied.parameters():
                    own.zero_()
                assert not copied(input_ids=ids).logits.any()
                assert trainer.model(input_ids=ids).logits.any()
            assert trainer.evaluate(rows)["eval_loss"] > 0


@check
def check_persons_stay_with_their_rows() -> None:
    """TRL shuffles rows, and leaves out those whose prompt fills the whole length."""
    ids = [f"person {number // 3}" for number in range(12)]
    rows = made.chats().add_column("number", list(range(12)))
    with tempfile.TemporaryDirectory() as folder:
        trainer = made.trainer(
            "PrivateSFTTrainer",
            folder,
            {"shuffle_dataset": True, "max_length": 8},
            train_dataset=rows,
            groups=ids,
            rows_per_person=2,
        )
        trainer.train()
        numbers = trainer.train_dataset["number"]
        assert 4 < len(numbers) < 12
        assert list(numbers) != sorted(numbers)
        assert list(trainer._groups) == [ids[number] for number in numbers]
        assert trainer.private.task.present == len({ids[number] for number in numbers})


@check
def check_trl_evaluates_on_public_rows() -> None:
    """The rows as they were given are the training rows, too."""
    with tempfile.TemporaryDirectory() as folder:
        rows = made.chats()
        trainer = made.trainer("PrivateSFTTrainer", folder, train_dataset=rows)
        for evaluated in (rows, {"own": rows}, trainer.train_dataset):
            said = must_raise(BadInput, lambda evaluated=evaluated: trainer.evaluate(evaluated))
            assert "has rows of it" in str(said)
        assert trainer.evaluate(made.chats(4, 1))["eval_loss"] > 0


@check
def check_losses_that_balance_experts_are_refused() -> None:
    """By name, also where the configuration asks for them."""
    made.require_trl()
    from transformers import MixtralConfig, MixtralForCausalLM

    def model() -> Any:
        return MixtralForCausalLM(
            MixtralConfig(
                vocab_size=36,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                num_local_experts=3,
                num_experts_per_tok=2,
                pad_token_id=0,
            )
        )

    with tempfile.TemporaryDirectory() as folder:
        for kind in ("PrivateSFTTrainer", "PrivateDPOTrainer"):
            for changes in ({}, {"router_aux_loss_coef": 0.01}):
                error = must_raise(
                    BadInput,
                    lambda kind=kind, changes=changes: made.trainer(
                        kind, folder, changes, model=model()
                    ),
                )
                assert "router_aux_loss_coef=0.0" in str(error), error
            trainer = made.trainer(kind, folder, {"router_aux_loss_coef": 0.0}, model=model())
            assert not trainer.model.config.output_router_logits
