"""`PrivateSFTTrainer` and `PrivateDPOTrainer`: the trainers of TRL, whose steps are those of a
private run.

TRL prepares the rows (chat templates, masks of prompts), makes adapters and evaluates on public
rows. Its losses are of whole batches, and its metrics are of private rows: neither is used in
training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import TrainingArguments

from privlearn._checks import quoted
from privlearn.errors import BadInput
from privlearn.huggingface.example_losses import IGNORED, ExampleLoss, base_of
from privlearn.huggingface.fixed_length import padding_token
from privlearn.huggingface.preference_pairs import PaddedPairs, PairLoss, PairSettings
from privlearn.huggingface.trainer import PrivateTrainer
from privlearn.huggingface.unsupported import require_public, require_rows


class _NoTRL:
    """In place of TRL's classes where it is not installed."""


try:
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
except ImportError:
    DPOConfig = DPOTrainer = SFTConfig = SFTTrainer = _NoTRL

#: The person of each row, as a column: TRL may leave rows out, or shuffle them.
_PERSON = "_person"

#: Settings of TRL that a private run follows. Another must have its default value.
_COMMON = (
    "model_init_kwargs",
    "trust_remote_code",
    "router_aux_loss_coef",  # `_require_no_balancing`
    "dataset_num_proc",
    "max_length",
    "truncation_mode",
    "pad_to_multiple_of",
    "pad_token",
)
_OF_TEXTS = (
    "chat_template_path",
    "dataset_text_field",
    "dataset_kwargs",
    "eos_token",
    "shuffle_dataset",
    "eval_packing",
    "completion_only_loss",
    "assistant_only_loss",
    "loss_type",
)
_OF_PAIRS = (
    "disable_dropout",
    "precompute_ref_log_probs",
    "precompute_ref_batch_size",
    "loss_type",
    "loss_weights",
    "ld_alpha",
    "f_divergence_type",
    "f_alpha_divergence_coef",
    "label_smoothing",
    "beta",
    "discopop_tau",
)
#: Why some others can't be used, and what to do.
_REASONS = {
    "packing": (
        "it joins several rows into one, which would no longer be one person's: set packing=False"
    ),
    "padding_free": (
        "it joins the rows of a batch into one sequence: set padding_free=False, rows are padded "
        "to max_length"
    ),
    "activation_offloading": (
        "memory is bounded by per_device_train_batch_size, how many examples are computed at once: "
        "leave it out"
    ),
    "sync_ref_model": (
        "the reference model is frozen, and its log-probabilities are computed once: leave it out"
    ),
    "use_weighting": "its weights are not computed for single pairs here: leave it out",
}


class _PrivateTRL(PrivateTrainer):
    """What both trainers do alike."""

    _config: ClassVar[Any]
    _settings: ClassVar[tuple[str, ...]]

    def __init__(self, model: Any = None, args: Any = None, **arguments: Any) -> None:
        if self._config is _NoTRL:
            raise BadInput("TRL is not installed: pip install 'privlearn[trl]'")
        if not isinstance(model, nn.Module | str):
            raise BadInput(f"model is {quoted(model)}: expected one of transformers, or its name")
        self._rows_before = dataset = arguments.get("train_dataset")
        require_rows(dataset, arguments.get("eval_dataset"), arguments.get("data_collator"))
        _require_texts(dataset)
        args = self._copy_settings(model, args)
        if arguments.get("groups") is not None:
            arguments["train_dataset"] = _with_persons(dataset, arguments["groups"])
        if arguments.get("max_length") is None:
            arguments["max_length"] = args.max_length
        _without_packing(model)
        super().__init__(model, args, **arguments)
        _without_packing(self.model)
        _require_no_balancing(self.model, args)
        self._scores = _without_scores(self.model)
        _with_digits(self.model)

    def _choose_loss(self, divisor: float) -> Any:
        usual: Any = self._private_class()
        if type(self).compute_loss is not usual.compute_loss:
            raise BadInput(
                f"{type(self).__name__} has a compute_loss of its own, and rows of TRL's trainers "
                "are laid out for theirs: leave it out, or use PrivateTrainer, which takes one"
            )
        return super()._choose_loss(divisor)

    @classmethod
    def _private_class(cls) -> type:
        return next(kind for kind in cls.__mro__ if kind.__module__ == __name__)

    def _copy_settings(self, model: Any, args: Any) -> Any:
        """A copy of the settings, all of which a private run follows.

        Raises:
            BadInput: naming the first that it can't follow.
        """
        if args is None:
            args = self._config(f"{type(model).__name__}-private")
        if not isinstance(args, self._config):
            raise BadInput(f"args is {quoted(args)}: expected trl.{self._config.__name__}")
        general = {field.name for field in fields(TrainingArguments)}
        for field in fields(args):
            value, usual = getattr(args, field.name), field.default
            if usual is MISSING:
                usual = cast(Callable[[], Any], field.default_factory)()
            if field.name not in general | set(self._settings) and value != usual:
                why = _REASONS.get(
                    field.name, "it is not known how it treats examples: leave it out"
                )
                raise BadInput(
                    f"{self._config.__name__}({field.name}={value!r}) can't be used: {why}",
                    name=field.name,
                )
        return copy.copy(args)

    def _make_plan(self, norm: float) -> Any:
        self._groups = _persons_in(self.train_dataset, self._groups)
        return super()._make_plan(norm)

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        """A block in which the model has the forward that TRL evaluates with."""
        attributes = vars(base_of(self.model))
        if self._scores is not None:
            attributes["forward"] = self._scores
        try:
            yield
        finally:
            attributes.pop("forward", None)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As TRL's trainer does, on public rows.

        Raises:
            BadInput: there are training rows among them.
        """
        with self._scoring():
            return super().evaluate(eval_dataset, *args, **kwargs)

    def _require_public(self, rows: Any, name: str = "eval_dataset") -> None:
        """Refuse the training rows, also as they were given: TRL has changed them since."""
        for dataset in (self._rows_before, self.train_dataset):
            require_public(dataset, rows, name)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """As TRL's trainer does, on public rows.

        Raises:
            BadInput: there are training rows among them.
        """
        with self._scoring():
            return super().predict(test_dataset, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As `PrivateTrainer` does, without what TRL gathers of batches of training rows, and the
        number of tokens trained on, which it counts of these.
        """
        self._drop_metrics()
        super().log(logs, start_time)

    def _drop_metrics(self) -> None:
        self._metrics["train"].clear()
        self._metrics["eval"].pop("num_tokens", None)  # of training, where none are counted


class PrivateSFTTrainer(_PrivateTRL, SFTTrainer):
    """TRL's trainer of supervised fine-tuning, with differential privacy:
    `PrivateSFTTrainer(model, SFTConfig(...), ..., epsilon=3, delta=1e-5)`.

    Guarantee: that of `PrivateTrainer`, where an example is one row of `train_dataset`. TRL
    prepares each row by itself: chat templates, completion-only and assistant-only losses. Texts
    are padded to `SFTConfig.max_length`, unless `max_length` says otherwise. An example's loss is
    the sum over its tokens divided by a public number (`tokens_per_example`), where TRL divides by
    the tokens of the batch. Nothing that TRL measures on training rows is logged.

    Args:
        model, args: as of `SFTTrainer`; all of its other arguments are taken by name, `peft_config`
            among them.
        arguments: those of `Privacy`, and of `SFTTrainer`.

    Raises:
        BadInput: TRL is missing; or what can't be private, such as packing, by name.
        NotPerExample: the model couples examples.
    """

    _config = SFTConfig
    _settings = _COMMON + _OF_TEXTS

    def _make_loss(self, divisor: float) -> Any:
        if self.args.loss_type == "dft":
            return ExampleLoss(self.model, divisor, own=_DynamicLoss(divisor))
        return super()._make_loss(divisor)


class PrivateDPOTrainer(_PrivateTRL, DPOTrainer):
    """TRL's trainer of direct preference optimisation, with differential privacy:
    `PrivateDPOTrainer(model, args=DPOConfig(...), ..., epsilon=3, delta=1e-5)`.

    Guarantee: that of `PrivateTrainer`, where an example is one pair: its prompt and both answers.
    The reference model is frozen: its log-probabilities of each pair are computed before training,
    a pair at a time, and stand in the pair's row (TRL keeps them in the cache of datasets). Without
    `ref_model` it is the model as it was given, or without its new adapter.

    Args:
        model, ref_model, args: as of `DPOTrainer`; all of its other arguments are taken by name,
            `peft_config` among them.
        arguments: those of `Privacy`, and of `DPOTrainer`.

    Raises:
        BadInput: TRL is missing; or what can't be private, such as a loss that sorts the pairs of a
            batch, by name.
        NotPerExample: the model couples examples.
    """

    _config = DPOConfig
    _settings = _COMMON + _OF_PAIRS

    def __init__(
        self, model: Any = None, ref_model: Any = None, args: Any = None, **arguments: Any
    ) -> None:
        _without_dropout(model, ref_model)
        super().__init__(model, args, ref_model=ref_model, **arguments)
        _freeze_reference(self.model)

    def _copy_settings(self, model: Any, args: Any) -> Any:
        args = super()._copy_settings(model, args)
        _pair_settings(args, 1.0)  # before the reference is computed
        return _with_reference(args)

    def _make_padded(self, collate: Callable[[list[Any]], Any]) -> Any:
        pad = padding_token(self.processing_class, self.model)
        return PaddedPairs(collate, pad, self._privacy.get("max_length"))

    def _make_loss(self, divisor: float) -> Any:
        if self._privacy.get("tokens_per_example") is None:
            divisor = float(self._privacy.get("max_length") or divisor)
        return PairLoss(_pair_settings(self.args, divisor))


class _DynamicLoss:
    """The dynamic fine-tuning loss of each example: tokens count by their own probability, through
    which no gradient flows.
    """

    def __init__(self, tokens: float) -> None:
        self._tokens = tokens

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """Shape (batch,)."""
        scores = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        scores = scores[:, :-1].transpose(1, 2)
        each = F.cross_entropy(scores, labels[:, 1:], reduction="none", ignore_index=IGNORED)
        return (each * (-each).exp().detach()).sum(1) / self._tokens


def _pair_settings(args: Any, tokens: float) -> PairSettings:
    """Those of the loss among the settings of TRL."""
    names = {field.name for field in fields(PairSettings)} - {"tokens"}
    return PairSettings(**{name: getattr(args, name) for name in names}, tokens=tokens)


def _with_reference(args: Any) -> Any:
    """The settings, with a reference that is computed once, of each pair by itself."""
    args.precompute_ref_log_probs, args.precompute_ref_batch_size = True, 1
    return args


def _without_dropout(*models: Any) -> None:
    """The models as a reference is computed; a step turns to training again."""
    for model in models:
        if isinstance(model, nn.Module):
            model.eval()


def _freeze_reference(model: nn.Module) -> None:
    """Leave TRL's copy of an adapter, from which training began, as it is."""
    for name, parameter in model.named_parameters():
        if ".ref." in name:
            parameter.requires_grad_(False)


def _without_scores(model: nn.Module) -> Any:
    """Take away TRL's forward, and return it: it is bound to this very model, and a copy of the
    model would run this one's weights.
    """
    return vars(base_of(model)).pop("forward", None)


def _with_digits(model: nn.Module) -> None:
    """Bring adapters of a quantised model back to single precision: TRL makes them bfloat16, in
    which sums and noise have too few digits.
    """
    if getattr(base_of(model), "is_quantized", False):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()


def _without_packing(model: Any) -> None:
    """Keep layers of 4 bits from moving their frozen weights into other memory when they are
    evaluated on a processor.
    """
    modules: list[Any] = list(model.modules()) if isinstance(model, nn.Module) else []
    for module in modules:
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # bitsandbytes


def _persons_in(dataset: Any, groups: Any) -> Any:
    """Whose each row is, of rows that TRL has made ready; None if examples are rows."""
    return None if groups is None else list(dataset[_PERSON])


def _require_texts(dataset: Any) -> None:
    """Refuse rows with images, which TRL makes ready batch by batch."""
    columns = getattr(dataset, "column_names", None) or ()
    for name in ("image", "images"):
        if name in columns:
            raise BadInput(
                f"train_dataset has a column {name!r}: TRL makes images ready for a batch as a "
                "whole. Use PrivateTrainer, with a data_collator that makes one row ready"
            )


def _require_no_balancing(model: Any, args: Any) -> None:
    """Refuse a loss that balances experts over the batch, which TRL adds by the configuration."""
    config, weight = base_of(model).config.get_text_config(), args.router_aux_loss_coef
    if not hasattr(config, "output_router_logits"):
        return
    if getattr(config, "router_aux_loss_coef", 0.0) if weight is None else weight:
        raise BadInput(
            f"{type(args).__name__}(router_aux_loss_coef={weight!r}) can't be used: the loss that "
            "balances experts mixes the examples of a batch. Set router_aux_loss_coef=0.0",
            name="router_aux_loss_coef",
        )
    config.output_router_logits = False


def _with_persons(dataset: Any, groups: Any) -> Any:
    """The rows with a column that says whose each is."""
    ids = [str(person) for person in groups]
    if len(ids) != len(dataset):
        raise BadInput(
            f"groups has {len(ids)} ids, and train_dataset {len(dataset)} rows: expected one for "
            "each row"
        )
    return cast(Any, dataset).add_column(_PERSON, ids)
