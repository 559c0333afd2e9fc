"""`PrivateTrainer`: Trainer of transformers, whose steps are those of a private run."""

from __future__ import annotations

import copy
import math
import operator
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Seq2SeqTrainer, Trainer, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import TrainOutput

from privlearn._checks import count, positive, quoted
from privlearn._figures import plain, private_figures
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.sharded.models import is_sharded
from privlearn.core.plan import Plan
from privlearn.core.rows import nested
from privlearn.core.sampling import named
from privlearn.core.streams import Streams
from privlearn.data.dataset_rows import DatasetRows
from privlearn.errors import BadInput, warn
from privlearn.huggingface.example_losses import ComputedLoss, ExampleLoss
from privlearn.huggingface.experts import group_experts
from privlearn.huggingface.fixed_length import (
    Padded,
    learn_padding,
    padding_token,
    require_fit_rows,
    tokens_in,
)
from privlearn.huggingface.number_ranges import ranges_of, require_places
from privlearn.huggingface.pretrained import publish_pretrained
from privlearn.huggingface.sharding import require_sharding, shard_model
from privlearn.huggingface.trainer_state import TrainerState
from privlearn.huggingface.unsupported import (
    no_columns,
    require_arguments,
    require_known,
    require_no_balancing,
    require_no_compute,
    require_own_loss,
    require_public,
    require_rows,
    require_texts,
)
from privlearn.publishing.publish import name_call
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.public_numbers import declare_metrics
from privlearn.runs.ranks import launched
from privlearn.runs.result import Result
from privlearn.runs.shards import whole_state
from privlearn.training.best_sampling import BEST
from privlearn.training.epoch_loader import EpochLoader, drawn_batch
from privlearn.training.gradient_check import require_gradients
from privlearn.training.planning import plan_of
from privlearn.training.privacy_config import (
    PrivacyArguments,
    PrivacyConfig,
    require_only_plan,
)
from privlearn.training.run import Run

#: The private run's checkpoint, in the output folder. What begins with an underscore is never
#: uploaded to a hub.
CHECKPOINT = "_private.checkpoint"
#: Seconds between checkpoints that the run writes by itself: never, the trainer says when.
_NEVER = 1e15
#: What decides the guarantee.
_DECIDING = {"epsilon", "delta", "max_grad_norm", *PrivacyArguments.__annotations__}
#: What the trainer logs of its steps that follows from public numbers alone.
_PUBLIC = {
    "epoch",
    "epsilon_spent",
    "learning_rate",
    "num_input_tokens_seen",
    "step",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_tokens_per_second",
}
#: What the trainer would compute, and does not here; and with it all private ones of its own.
_NOT_COMPUTED = {"grad_norm", "total_flos"}
_USUAL = {"loss", "train_loss", *_NOT_COMPUTED}


class Privacy(PrivacyArguments, total=False):
    """The arguments that `PrivateTrainer` has beside those of `Trainer`: the fields of
    `pv.PrivacyConfig`, but for `epochs` and `batch_size`, and these.

    Keys:
        epsilon, delta: the target of the whole run.
        max_grad_norm: each example's gradient is clipped to this L2 norm; by default
            `TrainingArguments.max_grad_norm`.
        groups: an author's id for each row: examples are then authors, and batch sizes and
            `examples` count them.
        plan: in place of all that decides the guarantee.
        max_length: to which public number of tokens texts are padded or cut; needed where rows have
            several lengths.
        max_target_length: the same for what a decoder gives; by default `max_length`.
        tokens_per_example: the public number that a sum over an example's tokens is divided by; by
            default their padded number.
        made_up: for models that refuse rows of random tokens: changes such a batch into one as the
            data are, for the checks before training. It is never called with the data.
        log_private_loss: whether to log the training loss, and what `compute_loss` logs, which no
            guarantee covers.
        evaluate_by_length: whether batches of evaluation rows are of rows of similar lengths.
        ledger, streams: as of `pv.dpsgd`.
    """

    epsilon: float | None
    delta: float | None
    max_grad_norm: float | None
    groups: Any
    plan: Plan | None
    max_length: int | None
    max_target_length: int | None
    tokens_per_example: float | None
    made_up: Callable[[Any], Any] | None
    log_private_loss: bool
    evaluate_by_length: bool
    ledger: Ledger | None
    streams: Streams | None


class PrivateTrainer(Trainer):
    """Trainer of transformers, with differential privacy:
    `PrivateTrainer(model, args, ..., epsilon=3, delta=1e-5)`.

    Guarantee: that of its `plan`, for what `publish` writes and for all weights on the way. Batches
    are samples of per_device_train_batch_size x gradient_accumulation_steps examples on average, by
    Poisson sampling unless `sampling` says otherwise, computed per_device_train_batch_size at a
    time, whatever the number of processes (docs/distributed.md); an example's loss is its own
    (`ExampleLoss`; of a subclass's `compute_loss` what it gives for this example alone), its
    gradient is clipped, the ledger is charged, and noise is added before the trainer's own
    optimizer takes its step. Logs have `epsilon_spent`, the price of the steps so far. Not covered:
    metrics and predictions (whose rows are to be public), the tokenizer, and what
    `log_private_loss` logs. Each row is made once in the constructor, for the data's curator, to
    refuse rows beyond the model's sizes; in training, one that fails counts as absent.

    Args:
        model, args: as of `Trainer`; all of its other arguments are taken by name.
        arguments: those of `Privacy`, and of `Trainer`.

    Raises:
        NotPerExample: the model or the loss couples examples.
        BadInput: what can't be private, by name; before anything is spent.
    """

    def __init__(self, model: Any = None, args: Any = None, **arguments: Any) -> None:
        privacy = cast(
            Privacy,
            {name: arguments.pop(name) for name in Privacy.__annotations__ if name in arguments},
        )
        if arguments.get("model_init") is not None or model is None:
            raise BadInput(
                "model is None: give the model itself, model_init would make another one in each "
                "run"
            )
        require_own_loss(self, self._private_class())
        require_no_compute(arguments)
        require_known(arguments, Privacy.__annotations__, type(self), PrivateTrainer)
        require_no_balancing(model)
        generates = isinstance(self, Seq2SeqTrainer)
        if args is not None:
            require_arguments(args, generates=generates)
            if args.fsdp:
                require_sharding(args)
        dataset = arguments.get("train_dataset")
        require_rows(dataset, arguments.get("eval_dataset"), arguments.get("data_collator"))
        super().__init__(model=model, args=_adapt_arguments(args), **arguments)
        require_arguments(self.args, generates=generates)
        if args is not None and args.fsdp:
            self._shard(args)
        self._require_optimizer()
        for name, length in (
            ("max_length", privacy.get("max_length")),
            ("max_target_length", privacy.get("max_target_length")),
        ):
            if length is not None:
                count(name, length, least=1)
        require_places(model, privacy.get("max_length"))
        if not isinstance(streams := privacy.get("streams"), Streams | None):
            raise BadInput(
                f"streams is {streams!r}: expected pv.Streams.new(), or pv.Streams.new(seed) to "
                "repeat a run, which its certificate then says",
                name="streams",
            )
        if (tokens := privacy.get("tokens_per_example")) is not None:
            positive("tokens_per_example", tokens)
        training_args = self.args if args is None else args
        self._microbatch = training_args.per_device_train_batch_size
        self._expected = self._microbatch * training_args.gradient_accumulation_steps
        self._privacy, self._precision = privacy, "bf16" if training_args.bf16 else "float32"
        self._groups = privacy.get("groups")
        self.plan = self._make_plan(training_args.max_grad_norm)
        self.private: Run | None = None
        self._epochs: EpochLoader | None = None
        self._result: Result | None = None
        self._tokens_per_step, self._missing = 0, set[str]()
        self._evaluating = self._in_step = False
        self._state = TrainerState(self)
        self.add_callback(_TrueEpochs(self))
        self._checked: tuple[Any, Any] = None, None
        self._check_rows(self._choose_loss(1.0))  # refused here, if none is known

    def _make_plan(self, norm: float) -> Plan:
        arguments = {
            name: value
            for name, value in self._privacy.items()
            if name in _DECIDING and value is not None
        }
        plan = self._privacy.get("plan")
        if plan is not None:
            require_only_plan(name for name in arguments if name != "delta")
            self._warn_of_other_epochs(plan)
            return plan
        privacy = PrivacyConfig.of(arguments)
        privacy.require_target(arguments)
        return self._plan_of(privacy, positive("max_grad_norm", norm))

    def _warn_of_other_epochs(self, plan: Plan) -> None:
        """Warn where the settings end training before the plan does: all of it is claimed."""
        args, steps = self.args, plan.sampling.steps(plan.examples or self._count_examples())
        epochs = args.num_train_epochs if args.max_steps <= 0 else args.max_steps / steps
        if round(epochs * steps) != plan.epochs * steps:
            warn(
                f"the plan has {plan.epochs} epochs of {steps} steps, and TrainingArguments "
                f"{epochs:g}: the certificate claims the whole plan, however early training ends. "
                f"Set num_train_epochs={plan.epochs}"
            )

    def _plan_of(self, privacy: PrivacyConfig, norm: float) -> Plan:
        """The plan of these choices: `TrainingArguments` says how many epochs and how large
        batches.
        """
        for name, setting in (
            ("epochs", "num_train_epochs"),
            ("batch_size", "per_device_train_batch_size"),
        ):
            if getattr(privacy, name) is not None:
                raise BadInput(f"{name} is what TrainingArguments.{setting} says: leave {name} out")
        present, args = self._count_examples(), self.args
        declared = privacy.examples or present
        expected = min(self._expected, declared)
        kind = "poisson" if privacy.sampling == BEST else privacy.sampling
        steps = named(kind, expected, declared).steps(declared)
        epochs = args.num_train_epochs if args.max_steps <= 0 else args.max_steps / steps
        by_name = privacy.clip_norm is None and isinstance(privacy.clip, str)
        chosen = replace(
            privacy,
            epochs=max(1, math.ceil(epochs - 1e-9)),
            clip_norm=norm if by_name else privacy.clip_norm,
        )
        streams = self._privacy.get("streams")
        return plan_of(
            chosen,
            present,
            expected_batch=expected,
            correlated=False,  # `best` compares noise as the weights of SGD hold it
            discrete=streams is not None and streams.noise.discrete,
        )

    def train(self, resume_from_checkpoint: bool | None = None, **more: Any) -> TrainOutput:
        """Train, or go on with an interrupted run of the same output folder:
        `train(resume_from_checkpoint=True)`.

        A resumed run ends with the same weights, bit for bit. It can go on from where the trainer
        saved last.

        Returns:
            The steps, the training loss (None, unless `log_private_loss` asks for it), and metrics.

        Raises:
            BadInput: it was trained already, or there is an interrupted run and nothing says
                whether to go on with it.
        """
        if self._result is not None:
            raise BadInput(
                "this trainer has trained: make another one, with the same ledger if the data are "
                "the same"
            )
        if isinstance(resume_from_checkpoint, str | Path):
            raise BadInput(
                "a private run goes on from its own checkpoint alone, where the noise is drawn "
                "again as it was: give resume_from_checkpoint=True"
            )
        path = Path(self.args.output_dir) / CHECKPOINT
        going_on = bool(resume_from_checkpoint)
        launched().once(lambda: self._require_progress(path, expected=going_on), "progress")
        self.create_optimizer()
        self.private = private = self._make_run(path)
        self._epochs = EpochLoader(private)
        if is_sharded(self.model):  # or it would be wrapped in DistributedDataParallel
            self.accelerator.prepare_model = partial(
                self.accelerator.prepare_model, evaluation_mode=True
            )
        private.keep(trainer=self._state)
        if going_on:
            self._state.warn_of_unkept()
        try:
            private.begin()
            with tempfile.TemporaryDirectory() as folder:
                output = super().train(self._state.written(folder), **more)
            result = private.result()
            self._result = replace(
                result, facts=result.facts | {"learning_rate_schedule": self._rates}
            )
        except BaseException as error:
            private.close(error)
            raise
        metrics = self._filter_logs(output.metrics or {})
        loss = private_figures(output.training_loss) if self._logs_loss else None
        return TrainOutput(output.global_step, cast(float, loss), metrics)

    def _require_progress(self, path: Path, *, expected: bool) -> None:
        """Refuse to begin where a run is that was not published, and to go on where none is."""
        if expected and not path.exists():
            raise BadInput(
                f"there is no interrupted run in {path}: give resume_from_checkpoint=False to "
                "begin one"
            )
        saved = None if expected else Checkpoint(path).read()
        if saved is None:
            return
        epochs, steps = saved.plain["epoch"], self.plan.sampling.steps(self._count_examples())
        done, planned = epochs * steps + saved.plain["step"], self.plan.epochs * steps
        if (total := int(saved.plain["facts"]["steps"])) != planned:
            state, then = f"a run of another plan, of {total} steps", "goes on with its settings"
        elif epochs >= self.plan.epochs:
            state, then = "a finished run", "takes no step, and publish it"
        else:
            state, then = f"an interrupted run, {done} of {planned} steps", "goes on with it"
        raise BadInput(
            f"{path} holds {state}, which was not published: train(resume_from_checkpoint=True) "
            f"{then}. For a new run give another output_dir, or delete the file (what it was "
            "charged stays charged)"
        )

    def _make_run(self, path: Path) -> Run:
        """The run, checked on made-up rows; nothing is spent."""
        privacy, model = self._privacy, self.model
        if not all(map(operator.is_, self._checked, (self.train_dataset, self.data_collator))):
            self._check_rows(self._choose_loss(1.0))  # they were changed since
        dataset, padded = self._collated()
        learn_padding(dataset, padded)
        rows = DatasetRows(dataset, padded, self.args.dataloader_num_workers, fresh=True)
        rows.groups = self._groups
        like = nested(rows.like, rows.structure)
        divisor = privacy.get("tokens_per_example") or tokens_in(like)
        self._tokens_per_step = self._count_tokens(like)
        loss = self._choose_loss(divisor)
        loss.made_up = privacy.get("made_up") or getattr(self.compute_loss_func, "made_up", None)
        for name in (
            "activation_checkpointing",
            "gradient_checkpointing",
        ):  # as transformers calls it since 5, and before
            if getattr(self.args, name, False):
                getattr(model, f"{name}_enable")(
                    **{f"{name}_kwargs": getattr(self.args, f"{name}_kwargs")}
                )
                setattr(self.args, name, False)  # or the trainer does it again, within the run
        group_experts(model)
        self._require_all_trained()
        require_gradients(model, loss, rows)
        saved = self.args.save_strategy != "no"
        return Run(
            self.plan,
            model,
            loss,
            rows,
            optimizer=self.optimizer,
            config=ComputeConfig(microbatch=self._microbatch, precision=self._precision),
            ledger=privacy.get("ledger"),
            streams=privacy.get("streams"),
            checkpoint=Checkpoint(path, every=_NEVER) if saved else None,
        )

    def _collated(self) -> tuple[Any, Any]:
        """The rows with the columns that the model takes, and what collates one of them."""
        try:
            loader = Trainer.get_train_dataloader(self)
        except ValueError as error:
            raise no_columns(self.train_dataset, self.model) from error
        return loader.dataset, self._make_padded(loader.collate_fn)

    def _check_rows(self, loss: Any) -> None:
        """Refuse rows that don't fit the model: a look at the data for their curator."""
        if self._groups is not None and len(self._groups) != len(self.train_dataset):
            raise BadInput(
                f"groups has {len(self._groups)} ids, and train_dataset {len(self.train_dataset)} "
                "rows: expected one for each row"
            )
        usual = isinstance(loss, ExampleLoss) and self.compute_loss_func is None
        batch = require_fit_rows(
            *self._collated(),
            ranges_of(self.model, usual_loss=usual),
            all_columns=not self.args.remove_unused_columns,
        )
        if isinstance(loss, ExampleLoss):
            loss.require_targets(batch)
        require_texts(batch, self.model)
        self._checked = self.train_dataset, self.data_collator

    def _make_padded(self, collate: Callable[[list[Any]], Any]) -> Any:
        """A collate function of single rows, which have one public length then."""
        privacy, model = self._privacy, self.model
        return Padded(
            collate,
            model,
            padding_token(self.processing_class, model),
            privacy.get("max_length"),
            privacy.get("max_target_length"),
        )

    def _make_loss(self, divisor: float) -> Any:
        """The loss of each example; sums over tokens are divided by this public number."""
        smoothing = self.args.label_smoothing_factor
        return ExampleLoss(self.model, divisor, smoothing, self.compute_loss_func)

    def _choose_loss(self, divisor: float) -> Any:
        """A subclass's `compute_loss`, if it has one, else the loss that is known."""
        usual: Any = self._private_class()
        if type(self).compute_loss is not usual.compute_loss:
            return ComputedLoss(self.compute_loss, divisor)
        return self._make_loss(divisor)

    def _count_tokens(self, like: Mapping[str, Tensor]) -> int:
        """How many tokens a step's batch has on average, padding included."""
        inputs = like.get(getattr(self.model, "main_input_name", "input_ids"))
        if inputs is None:
            return 0
        batch = self.plan.sampling.expected_batch_size(self.plan.examples or self._count_examples())
        rows = self.plan.rows_per_person or 1
        return round(batch * rows * math.prod(inputs.shape[1:]))

    def _count_examples(self) -> int:
        """How many rows there are, or authors."""
        return len(self.train_dataset) if self._groups is None else len(set(map(str, self._groups)))

    @classmethod
    def _private_class(cls) -> type:
        """The class whose steps are private; a subclass of it may not change them."""
        return PrivateTrainer

    def _shard(self, args: Any) -> None:
        """Share the model's parameters out among the processes, as the settings ask."""
        if self.optimizer is not None:
            raise BadInput(
                "optimizers= has an optimizer of the whole model's parameters, and fsdp shards "
                "them: leave optimizers out and set TrainingArguments.optim, or leave fsdp out"
            )
        shard_model(self.model, args)

    def _require_optimizer(self) -> None:
        """Make the optimizer and the schedule of the settings once, on a copy: what they lack is
        said before training.
        """
        usual = type(self).create_optimizer is Trainer.create_optimizer
        if usual and type(self).create_scheduler is Trainer.create_scheduler:
            Trainer.create_optimizer_and_scheduler(copy.copy(self), num_training_steps=100)

    def _require_all_trained(self) -> None:
        """Refuse an optimizer that has other parameters than those that get gradients."""
        held = {
            id(p)
            for group in self.optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        }
        trained = {id(p): name for name, p in self.model.named_parameters() if p.requires_grad}
        missing = [name for key, name in trained.items() if key not in held]
        if missing:
            raise BadInput(
                f"the optimizer does not have the trainable parameter {missing[0]!r}: give it all "
                "of them, or freeze it with requires_grad_(False)"
            )

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """A private step, the optimizer's included: the trainer's own finds no gradients then, and
        changes nothing.
        """
        del num_items_in_batch  # of gradients that are accumulated, which a private step never does
        assert self.private is not None
        model.train()
        if callable(switch := getattr(self.optimizer, "train", None)):
            switch()
        seen = self._take_step(inputs)
        if getattr(self.args, "include_num_input_tokens_seen", "no") not in (False, None, "no"):
            self.state.num_input_tokens_seen += self._tokens_per_step
        loss = plain(seen["loss"]) if self._logs_loss else 0.0
        # of an empty batch no number, which the trainer leaves out
        return torch.tensor(loss, device=self.args.device)

    def _take_step(self, inputs: Any) -> Mapping[str, Any]:
        """The run's step; what is logged within it stays in it."""
        assert self.private is not None
        self._in_step = True
        try:
            return self.private.step(drawn_batch(inputs))
        finally:
            self._in_step = False

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Nothing: how many tokens were drawn is private, and `training_step` counts those that are
        expected.
        """

    def get_train_dataloader(self) -> Any:
        """The batches of the run while it is under way."""
        return super().get_train_dataloader() if self._epochs is None else self._epochs

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the trainer does, on public rows: callbacks and schedulers follow the metrics.

        Raises:
            BadInput: there are training rows among them.
        """
        self._require_public(self.eval_dataset if eval_dataset is None else eval_dataset)
        self._evaluating = True
        try:
            metrics: dict[str, float] = super().evaluate(eval_dataset, *args, **kwargs)
        finally:
            self._evaluating = False
        return declare_metrics(metrics, because="metrics of the evaluation rows")

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """As the trainer does, on public rows.

        Raises:
            BadInput: there are training rows among them.
        """
        self._require_public(test_dataset, "test_dataset")
        predicted = super().predict(test_dataset, *args, **kwargs)
        metrics = declare_metrics(predicted.metrics or {}, because="metrics of the evaluation rows")
        return predicted._replace(metrics=metrics)

    def _require_public(self, rows: Any, name: str = "eval_dataset") -> None:
        """Refuse training rows where metrics are computed."""
        require_public(self.train_dataset, rows, name)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """The order of evaluation rows: as they are, or rows of similar lengths together."""
        if not (self._evaluating and self._privacy.get("evaluate_by_length")):
            return super()._get_eval_sampler(eval_dataset)
        names = getattr(self.processing_class, "model_input_names", None)
        return LengthGroupedSampler(
            self.args.eval_batch_size,
            dataset=eval_dataset,
            model_input_name=names[0] if names else None,
            generator=torch.Generator().manual_seed(self.args.seed),
        )

    def num_examples(self, dataloader: Any) -> int:
        """The number of examples that is public: of the training set the declared one."""
        if dataloader is not self._epochs:
            return int(super().num_examples(dataloader))
        declared = self.plan.examples
        return len(self.train_dataset) if declared is None else declared

    def floating_point_ops(self, inputs: Any) -> int:
        """0: the true number follows from how many examples were drawn, which is private."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what is public, `epsilon_spent`, and as private figures what may be private and was
        asked for: all that is not of evaluation rows, and not known to be public.
        """
        public = self._filter_logs(logs)
        self._warn_of_missing({*logs} - {*public})
        # how often something is logged within a step follows from how many examples it has
        if not public or (self._in_step and not self._logs_loss):
            return
        if self.private is not None and self._result is None:
            public["epsilon_spent"] = self.private.spent(self._delta).epsilon
        super().log(public, start_time)

    @property
    def _rates(self) -> str:
        """What the certificate says of learning rates: the name of the trainer's schedule, or a
        scheduler's class.
        """
        named = getattr(self.args.lr_scheduler_type, "value", self.args.lr_scheduler_type)
        return str(named) if self._created_lr_scheduler else type(self.lr_scheduler).__name__

    @property
    def _delta(self) -> float:
        budget, privacy = self.plan.budget, self._privacy.get("privacy")
        if budget is not None and budget.delta is not None:
            return budget.delta
        return self._privacy.get("delta") or (1e-5 if privacy is None else privacy.delta)

    @property
    def _logs_loss(self) -> bool:
        return self._privacy.get("log_private_loss", False)

    def _filter_logs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of values with names those that are logged, private ones as private figures."""
        logged = {name: value for name, value in values.items() if self._is_logged(name)}
        return {
            name: value if self._is_public(name) else private_figures(value)
            for name, value in logged.items()
        }

    def _warn_of_missing(self, names: set[str]) -> None:
        """Say once what is not logged; of a private step nothing is said."""
        new = sorted(names - _USUAL - self._missing)
        if new and not self._in_step:
            self._missing.update(new)
            warn(
                f"{quoted(new[0])} is not logged: it may follow from private rows. Give "
                "log_private_loss=True to log it for the curator's eyes, or log it where "
                "evaluation rows are computed"
            )

    def _is_logged(self, name: str) -> bool:
        return self._is_public(name) or (self._logs_loss and name not in _NOT_COMPUTED)

    def _is_public(self, name: str) -> bool:
        return name in _PUBLIC or self._evaluating

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As the trainer does, and then the private run's own: the only one that can be resumed."""
        super()._save_checkpoint(model, trial)
        if self.private is not None:
            self.private.save_checkpoint()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As the trainer does; a model under FSDP2 is gathered by all processes, and the first one
        writes it.
        """
        if not is_sharded(self.model):
            super().save_model(output_dir, _internal_call)
            return
        state = whole_state(self.model, keep=self.args.should_save)
        if self.args.should_save:
            self._save(output_dir or self.args.output_dir, state_dict=state)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """As the trainer does; under FSDP2 the private run's own checkpoint alone has them."""
        if not is_sharded(self.model):
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Nothing: the private checkpoint has brought the weights back already."""

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: each trial would be a run of its own, and the choice among them is not free."""
        raise BadInput(
            "hyperparameter_search would spend what each trial costs, and choose for nothing: use "
            "pv.tune"
        )

    @property
    def result(self) -> Result:
        """What was trained, with its ledger, plan and private diagnostics.

        Raises:
            BadInput: nothing was trained yet.
        """
        if self._result is None:
            raise BadInput("nothing was trained yet: call train() first")
        return self._result

    def publish(self, folder: str | Path, **arguments: Any) -> Path:
        """Write the model (of PEFT: its adapters) with a certificate, to be loaded with
        `from_pretrained`.

        Takes the named arguments of `pv.publish`.
        """
        with name_call("trainer.publish("):
            return publish_pretrained(self.result, folder, **arguments)


class _TrueEpochs(TrainerCallback):
    """The epoch that is logged: of a resumed run the trainer would count from where it resumed."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, _control: Any, **more: Any) -> None:
        """After each step."""
        if self._trainer.private is not None:
            state.epoch = state.global_step / self._trainer.private.steps_per_epoch


def _adapt_arguments(args: Any) -> Any:
    """The arguments for the trainer's own loop: it must not do again what the private run does."""
    if args is None:
        return None
    copied = copy.copy(args)
    copied.gradient_accumulation_steps, copied.max_grad_norm = 1, 0.0
    copied.bf16, copied.ignore_data_skip = False, True
    copied.mixed_precision = "no"
    if copied.fsdp:  # the model is sharded here
        copied.fsdp = copied.fsdp_plugin_args = None
    copied.restore_callback_states_from_checkpoint = False  # the run's checkpoint has them
    copied._n_gpu = min(1, copied.n_gpu)
    return copied
