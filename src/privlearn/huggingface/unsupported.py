"""Settings of a trainer of transformers that can't be private, or would be without effect: refused
by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from torch.utils.data import IterableDataset
from transformers import TrainingArguments

from privlearn._checks import quoted
from privlearn.data.torch_rows import share_rows
from privlearn.errors import BadInput
from privlearn.runs import compute

#: Arguments of `TrainingArguments`: when one is refused, and why, with what to do.
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "train_sampling_strategy": (
        lambda value: value not in (None, "random"),
        (
            "batches in another order than by chance have no price: leave it out, privlearn "
            "samples. evaluate_by_length=True of the trainer puts evaluation rows of similar "
            "lengths together"
        ),
    ),
    "dataloader_drop_last": (
        bool,
        "a Poisson batch has no fixed size, and none is the last: leave it out",
    ),
    "torch_compile_backend": (bool, "compiled models hide gradients of examples: leave it out"),
    "torch_compile_mode": (bool, "compiled models hide gradients of examples: leave it out"),
    "neftune_noise_alpha": (
        lambda value: value is not None,
        "it changes the model after it was checked: leave it out",
    ),
    "use_liger_kernel": (bool, "its kernels hide the gradients of single examples: leave it out"),
    "torch_compile": (bool, "compiled models hide the gradients of single examples: leave it out"),
    "auto_find_batch_size": (
        bool,
        (
            "the batch size is part of the plan: leave it out, set per_device_train_batch_size to "
            "what fits into memory, and gradient_accumulation_steps to how many of these a batch "
            "has"
        ),
    ),
    "fp16": (
        bool,
        "its loss scaling skips steps by what gradients hold: use bf16=True, or neither",
    ),
    "deepspeed": (
        bool,
        "each process holds the whole model, and takes a part of each batch: leave it out",
    ),
    "parallelism_config": (
        bool,
        "each process holds the whole model, and takes a part of each batch: leave it out",
    ),
    "push_to_hub": (
        bool,
        "publish(folder) writes the certified model: upload that folder, and leave it out",
    ),
    "include_num_input_tokens_seen": (
        lambda value: value == "non_padding",
        "how many tokens were drawn is private: use 'all', which counts the expected padded ones",
    ),
    "load_best_model_at_end": (
        bool,
        (
            "it puts other weights in the place of the last ones, for which nothing could be "
            "claimed: leave it out"
        ),
    ),
    "debug": (
        lambda value: "underflow_overflow" in str(value).lower(),
        "it prints what layers compute of private rows: leave it out",
    ),
    "full_determinism": (
        bool,
        "privlearn's runs are repeated with streams=pv.Streams.new(seed): leave it out",
    ),
}
#: Settings that work as in Trainer: `tests/huggingface/test_settings.py` runs with each of them.
#: One that is in none of these tables was never looked at, and has to keep its default.
RUNS = frozenset(
    [
        "output_dir",
        "per_device_train_batch_size",
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "lr_scheduler_type",
        "lr_scheduler_kwargs",
        "warmup_steps",
        "optim",
        "optim_args",
        "weight_decay",
        "adam_beta1",
        "fp16_full_eval",
        "adam_beta2",
        "adam_epsilon",
        "gradient_accumulation_steps",
        "max_grad_norm",
        "label_smoothing_factor",
        "bf16",
        "bf16_full_eval",
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "use_cache",
        "torch_empty_cache_steps",
        "logging_strategy",
        "logging_steps",
        "logging_first_step",
        "logging_nan_inf_filter",
        "log_level",
        "disable_tqdm",
        "report_to",
        "run_name",
        "eval_strategy",
        "eval_steps",
        "eval_delay",
        "per_device_eval_batch_size",
        "prediction_loss_only",
        "eval_on_start",
        "eval_do_concat_batches",
        "eval_accumulation_steps",
        "include_for_metrics",
        "batch_eval_metrics",
        "save_only_model",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "enable_jit_checkpoint",
        "metric_for_best_model",
        "greater_is_better",
        "seed",
        "data_seed",
        "use_cpu",
        "fsdp",
        "fsdp_config",
        "dataloader_num_workers",
        "remove_unused_columns",
        "label_names",
        "skip_memory_metrics",
    ]
)
#: Settings of scripts, loggers, hubs, devices and loaders that private training does not follow,
#: and those that say what it does anyway.
NOT_FOLLOWED = frozenset(
    [
        "average_tokens_across_devices",
        "optim_target_modules",
        "tf32",
        "liger_kernel_config",
        "log_on_each_node",
        "log_level_replica",
        "project",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
        "eval_use_gather_object",
        "save_on_each_node",
        "hub_token",
        "hub_private_repo",
        "hub_model_id",
        "hub_strategy",
        "hub_always_push",
        "hub_revision",
        "ignore_data_skip",
        "restore_callback_states_from_checkpoint",
        "accelerator_config",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context",
        "dataloader_in_order",
        "length_column_name",
        "ddp_find_unused_parameters",
        "ddp_bucket_cap_mb",
        "ddp_broadcast_buffers",
        "ddp_static_graph",
        "ddp_backend",
        "ddp_timeout",
        "do_train",
        "do_eval",
        "do_predict",
        "resume_from_checkpoint",
        "local_rank",
    ]
)
#: Those that only earlier versions of transformers have.
_EARLIER = frozenset(
    [
        "overwrite_output_dir",
        "warmup_ratio",
        "logging_dir",
        "save_safetensors",
        "no_cuda",
        "use_mps_device",
        "fp16_backend",
        "fp16_opt_level",
        "half_precision_backend",
        "include_inputs_for_metrics",
        "include_tokens_per_second",
        "use_legacy_prediction_loop",
        "tpu_metrics_debug",
        "evaluation_strategy",
    ]
)
#: Optimizers that step within the backward pass, or on gradients that never exist as a whole.
_OPTIMIZERS = ("lomo", "adalomo", "layerwise")
#: Collate functions that join rows.
_PACKING = ("DataCollatorWithFlattening", "ConstantLengthDataset")


def require_arguments(args: Any, *, generates: bool) -> None:
    """Refuse what `TrainingArguments` can't ask of a private trainer.

    Args:
        args: the arguments.
        generates: whether the trainer generates texts.

    Raises:
        BadInput: naming the argument.
    """
    if not hasattr(args, "optim"):
        raise BadInput(f"args is {quoted(args)}: expected transformers.TrainingArguments, or None")
    for name, (unfit, why) in _ARGUMENTS.items():
        value = getattr(args, name, None)
        if unfit(value):
            raise BadInput(f"TrainingArguments({name}={value!r}) can't be used: {why}", name=name)
    _require_known_settings(args)
    if getattr(args, "predict_with_generate", False) and not generates:
        raise BadInput(
            "predict_with_generate=True is without effect in PrivateTrainer, which generates no "
            "texts: use pv.huggingface.PrivateSeq2SeqTrainer in its place",
            name="predict_with_generate",
        )
    optimizer = str(getattr(args.optim, "value", args.optim))
    if any(name in optimizer for name in _OPTIMIZERS):
        raise BadInput(
            f"TrainingArguments(optim={optimizer!r}) can't be used: it steps within the backward "
            "pass, before gradients are clipped and noised. Use another, such as adamw_torch"
        )


def _require_known_settings(args: Any) -> None:
    """Refuse settings of other versions of transformers that were never looked at, unless they have
    their default.

    Raises:
        BadInput: naming the setting.
    """
    usual = None
    for field in fields(TrainingArguments):
        name, value = field.name, getattr(args, field.name, None)
        if name in RUNS | NOT_FOLLOWED | _EARLIER | _ARGUMENTS.keys() or value == field.default:
            continue
        usual = usual or TrainingArguments(output_dir=args.output_dir)
        if value != getattr(usual, name):
            raise BadInput(
                f"TrainingArguments({name}={quoted(value)}) can't be used: it is not known whether "
                "training stays private with it. Leave it out, as all settings that "
                "docs/trainers.md does not name",
                name=name,
            )


#: What takes the place of fields of `ComputeConfig`.
_COMPUTED = {
    "microbatch": (
        "set TrainingArguments(per_device_train_batch_size=...), which is computed at once"
    ),
    "precision": "set TrainingArguments(bf16=True)",
    "device": (
        "the trainer computes where transformers does: set TrainingArguments(use_cpu=True) for "
        "the processor"
    ),
    "augmentation": "let train_dataset change its rows, which are fetched anew in each step",
}


def require_no_compute(arguments: Iterable[str]) -> None:
    """Refuse what says how a run computes, which `TrainingArguments` say here.

    Raises:
        BadInput: naming the argument, with what takes its place.
    """
    for name in arguments:
        if name in ("config", *compute.names()):
            instead = _COMPUTED.get(name, "leave it out")
            raise BadInput(f"{name} is not an argument of PrivateTrainer: {instead}", name=name)


#: What other arguments are called here, that people try.
_INSTEAD = {
    "tokenizer": "processing_class",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "l2_norm_clip": "max_grad_norm",
    "epochs": "TrainingArguments(num_train_epochs=...)",
}


def require_known(
    arguments: Iterable[str], privacy: Iterable[str], kind: type, private: type
) -> None:
    """Refuse arguments that neither privlearn nor the trainer of the library takes.

    Args:
        arguments: those that are left for the trainer.
        privacy: the names that privlearn takes.
        kind: the trainer's class.
        private: the class that hands the arguments on to those behind it.

    Raises:
        BadInput: naming the first, with what is like it.
    """
    behind = kind.__mro__[kind.__mro__.index(private) + 1 : -1]
    parameters = [inspect.signature(each.__init__).parameters for each in behind]  # type: ignore[misc]
    takes_any = any(
        part.kind is part.VAR_KEYWORD and not each.__module__.startswith(("transformers", "trl"))
        for each, parts in zip(behind, parameters, strict=True)
        for part in parts.values()
    )
    known = {*privacy, *(name for parts in parameters for name in parts)}
    unknown = next((name for name in arguments if name not in known), None)
    if unknown is None or takes_any:
        return
    settings = [field.name for field in fields(TrainingArguments)]
    if unknown in settings:
        near = f"Set it in the arguments: TrainingArguments({unknown}=...)"
    else:
        like = get_close_matches(unknown, [*known, *settings], 1, 0.75)
        meant = _INSTEAD.get(unknown) or next(iter(like), None)
        near = (
            f"Did you mean {meant}?"
            if meant
            else "Expected those of transformers' Trainer, and those that "
            "help(pv.huggingface.PrivateTrainer) names"
        )
    raise BadInput(f"there is no argument {unknown!r} of {kind.__name__}. {near}", name=unknown)


def require_no_balancing(model: Any) -> None:
    """Refuse a model that adds a loss over the experts of all tokens in a batch.

    Raises:
        BadInput: saying what to set.
    """
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(config, "output_router_logits", False) and getattr(
        config, "router_aux_loss_coef", 0.0
    ):
        raise BadInput(
            "model.config.output_router_logits=True adds the loss that balances experts, which "
            "mixes the examples of a batch: set model.config.output_router_logits=False"
        )


def require_rows(dataset: Any, evaluated: Any, collator: Any) -> None:
    """Refuse rows that can't be sampled, and collate functions that join them.

    Raises:
        BadInput: saying what to give.
    """
    if dataset is None:
        raise BadInput("train_dataset is None: give the rows to train on, a map-style data set")
    if isinstance(dataset, Mapping) and 0 not in dataset:
        parts = ", ".join(repr(name) for name in dataset)
        raise BadInput(
            f"train_dataset is a {type(dataset).__name__} of the parts {parts[:80]}: expected the "
            "rows of one part, as train_dataset=parts['train']"
        )
    iterable = isinstance(dataset, IterableDataset) or type(dataset).__name__ == "IterableDataset"
    if iterable or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(
            f"train_dataset has type {type(dataset).__name__}: its rows have no numbers, so it is "
            "not known how likely one of them is to be drawn. Give a map-style data set, for "
            "example datasets.Dataset.from_list(list(dataset))"
        )
    require_public(dataset, evaluated)
    if type(collator).__name__ in _PACKING or getattr(collator, "return_flash_attn_kwargs", False):
        raise BadInput(
            f"data_collator is a {type(collator).__name__}, which packs several rows into one: a "
            "row's gradient would depend on the others. Use one that pads, such as "
            "DataCollatorForLanguageModeling"
        )


def no_columns(dataset: Any, model: Any) -> BadInput:
    """What is said of rows without anything that the model takes."""
    names = ", ".join(map(str, getattr(dataset, "column_names", None) or ()))
    return BadInput(
        f"train_dataset has the columns {names[:80]}, and {type(model).__name__} takes none of "
        "them: tokenize it first, for example train_dataset.map(lambda row: "
        "tokenizer(row['text'], truncation=True))"
    )


def require_texts(batch: Mapping[str, Any], model: Any) -> None:
    """Refuse rows of a model of texts that have no tokens.

    Raises:
        BadInput: saying what makes them.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    named = "input_ids" in inspect.signature(base.forward).parameters
    if batch and named and not batch.keys() & {"input_ids", "inputs_embeds"}:
        raise BadInput(
            f"the rows have no 'input_ids', only {', '.join(batch)}: tokenize them first, for "
            "example train_dataset.map(lambda row: tokenizer(row['text'], truncation=True))"
        )


def require_public(dataset: Any, evaluated: Any, name: str = "eval_dataset") -> None:
    """Refuse evaluation and prediction on training rows: callbacks and schedulers would follow the
    metrics, and predictions are of private rows without noise.

    Raises:
        BadInput: saying what to give.
    """
    several = evaluated.values() if isinstance(evaluated, Mapping) else (evaluated,)
    if any(share_rows(dataset, each) for each in several):
        raise BadInput(
            f"{name} is train_dataset, or has rows of it: its metrics would be of the private "
            "rows, without noise. Give public rows, or none"
        )


def require_own_loss(trainer: Any, base: type) -> None:
    """Refuse a subclass that takes steps of its own.

    Raises:
        BadInput: saying what to give in its place.
    """
    for name in ("training_step", "get_train_dataloader", "optimizer_step"):
        method, inherited = getattr(type(trainer), name, None), getattr(base, name, None)
        if method is not inherited:
            raise BadInput(
                f"{type(trainer).__name__} has a {name} of its own, which would compute with a "
                "batch as a whole: override compute_loss in its place, which gets one example at a "
                "time"
            )
