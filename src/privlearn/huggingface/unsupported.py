"""Settings of a trainer of transformers that can't be private, or would be without effect: refused
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import IterableDataset

from privlearn._checks import quoted
from privlearn.data.torch_rows import share_rows
from privlearn.errors import BadInput
from privlearn.runs import compute

#: Arguments of `TrainingArguments`: when one is refused, and why, with what to do.
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "train_sampling_strategy": (
        lambda value: value not in (None, "random"),
        (
            "batches would be put together by what rows hold, and would have no price: leave it "
            "out, privlearn samples"
        ),
    ),
    "dataloader_drop_last": (
        bool,
        "a Poisson batch has no fixed size, and none is the last: leave it out",
    ),
    "label_names": (
        lambda value: value not in (None, ["labels"]),
        "give compute_loss_func, or rows with labels",
    ),
    "neftune_noise_alpha": (
        lambda value: value is not None,
        "it changes the model after it was checked: leave it out",
    ),
    "use_liger_kernel": (bool, "its kernels hide the gradients of single examples: leave it out"),
    "torch_compile": (bool, "compiled models hide the gradients of single examples: leave it out"),
    "auto_find_batch_size": (
        bool,
        "the batch size is part of the plan: set it, and microbatch= for what fits into memory",
    ),
    "fp16": (
        bool,
        "its loss scaling skips steps by what gradients hold: use bf16=True, or neither",
    ),
    "deepspeed": (
        bool,
        "each process holds the whole model, and takes a part of each batch: leave it out",
    ),
    "fsdp": (
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
        lambda value: value not in (False, None, "no"),
        "how many tokens were drawn is private: leave it out",
    ),
    "load_best_model_at_end": (
        bool,
        (
            "it puts other weights in the place of the last ones, for which nothing could be "
            "claimed: leave it out"
        ),
    ),
    "full_determinism": (
        bool,
        "privlearn's runs are repeated with streams=pv.Streams.new(seed): leave it out",
    ),
}
#: Optimizers that step within the backward pass, or on gradients that never exist as a whole.
_OPTIMIZERS = ("lomo", "adalomo", "layerwise")
#: Collate functions that join rows.
_PACKING = ("DataCollatorWithFlattening", "ConstantLengthDataset")


def require_arguments(args: Any) -> None:
    """Refuse what `TrainingArguments` can't ask of a private trainer.

    Raises:
        BadInput: naming the argument.
    """
    if not hasattr(args, "optim"):
        raise BadInput(f"args is {quoted(args)}: expected transformers.TrainingArguments, or None")
    for name, (unfit, why) in _ARGUMENTS.items():
        value = getattr(args, name, None)
        if unfit(value):
            raise BadInput(f"TrainingArguments({name}={value!r}) can't be used: {why}", name=name)
    optimizer = str(getattr(args.optim, "value", args.optim))
    if any(name in optimizer for name in _OPTIMIZERS):
        raise BadInput(
            f"TrainingArguments(optim={optimizer!r}) can't be used: it steps within the backward "
            "pass, before gradients are clipped and noised. Use another, such as adamw_torch"
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
    iterable = isinstance(dataset, IterableDataset) or type(dataset).__name__ == "IterableDataset"
    if iterable or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(
            f"train_dataset is a {type(dataset).__name__}: its rows have no numbers, so it is not "
            "known how likely one of them is to be drawn. Give a map-style data set, for example "
            "datasets.Dataset.from_list(list(dataset))"
        )
    require_public(dataset, evaluated)
    if type(collator).__name__ in _PACKING or getattr(collator, "return_flash_attn_kwargs", False):
        raise BadInput(
            f"data_collator is a {type(collator).__name__}, which packs several rows into one: a "
            "row's gradient would depend on the others. Use one that pads, such as "
            "DataCollatorForLanguageModeling"
        )


def require_public(dataset: Any, evaluated: Any) -> None:
    """Refuse evaluation on training rows, whose metrics callbacks and schedulers would follow.

    Raises:
        BadInput: saying what to give.
    """
    several = evaluated.values() if isinstance(evaluated, dict) else (evaluated,)
    if any(share_rows(dataset, each) for each in several):
        raise BadInput(
            "eval_dataset is train_dataset, or has rows of it: its metrics would be of the private "
            "rows, without noise. Give public rows, or none"
        )


def require_own_loss(trainer: Any, base: type) -> None:
    """Refuse a subclass that computes the loss of a batch.

    Raises:
        BadInput: saying what to give in its place.
    """
    for name in ("compute_loss", "training_step", "get_train_dataloader", "optimizer_step"):
        method, inherited = getattr(type(trainer), name, None), getattr(base, name, None)
        if method is not inherited:
            raise BadInput(
                f"{type(trainer).__name__} has a {name} of its own, which would compute with a "
                "batch as a whole: give compute_loss_func(outputs, labels, "
                "num_items_in_batch=None), one value for each example, in its place"
            )
