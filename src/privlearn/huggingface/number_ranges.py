"""Which whole numbers a model of transformers can compute with, by its public sizes: tokens below
the size of its embedding, labels below the number of its scores.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.errors import BadInput
from privlearn.huggingface.example_losses import IGNORED, LabelKind, base_of, labels_of

#: What transformers calls embeddings of places.
_PLACES = ("position_embeddings", "wpe")
_EMBEDDED = "resize the model (model.resize_token_embeddings(len(tokenizer)))"


@final
@dataclass(frozen=True)
class NumberRange:
    """What whole numbers of a row may be: from 0 to below `size`.

    Attributes:
        size: a public number of the model.
        advice: what makes it larger.
        ignores: whether -100 counts for nothing.
    """

    size: int
    advice: str
    ignores: bool = False

    def require(self, name: str, values: Tensor) -> None:
        """Refuse numbers that are outside.

        Raises:
            BadInput: some are; nothing is said of which.
        """
        if (
            self.ignores
            and values.dim() < 2
            and (values.is_floating_point() or values.dtype == torch.bool)
        ):
            kind = str(values.dtype).removeprefix("torch.")
            raise BadInput(
                f"{name!r} has type {kind}, with one value for each row: expected a class as a "
                f"whole number from 0 to {self.size - 1}, int(label). For several labels a row "
                f"give {self.size} numbers, and for a number to predict a model with num_labels=1",
                name=name,
            )
        if values.is_floating_point() or values.is_complex():
            return
        outside = (values < 0) | (values >= self.size)
        if self.ignores:
            outside &= values != IGNORED
        if bool(outside.any()):
            ignored = f" (or {IGNORED}, which counts for nothing)" if self.ignores else ""
            raise BadInput(
                f"there are rows with {name!r} outside 0 to {self.size - 1}: the model can't "
                f"compute them, and they would be left out. Expected numbers of that "
                f"range{ignored}: {self.advice}, or mend the rows",
                name=name,
            )


def ranges_of(model: nn.Module, *, usual_loss: bool) -> dict[str, NumberRange]:
    """The ranges that a model states, by the names of its inputs and labels; no more than it
    states.

    Args:
        model: of transformers.
        usual_loss: whether labels are for the loss that is known of its class.
    """
    base = base_of(model)
    config = getattr(base, "config", None)
    ranges: dict[str, NumberRange] = {}
    if _is_text_model(config):
        _add(ranges, "input_ids", _rows_of(base, "get_input_embeddings"), _EMBEDDED)
    if getattr(config, "is_encoder_decoder", False):
        decoder = None
        with suppress(AttributeError, NotImplementedError):
            decoder = base.get_decoder()
        _add(ranges, "decoder_input_ids", _rows_of(decoder, "get_input_embeddings"), _EMBEDDED)
    kind = labels_of(base) if usual_loss else None
    if kind is LabelKind.TOKENS:
        _add(ranges, "labels", _rows_of(base, "get_output_embeddings"), _EMBEDDED, ignores=True)
    elif kind is LabelKind.CLASSES:
        advice = "give the model num_labels=N as it is made"
        _add(ranges, "labels", getattr(config, "num_labels", None), advice, ignores=True)
    return ranges


def require_places(model: nn.Module, length: int | None) -> None:
    """Refuse texts that are longer than the places which a model has learned.

    Raises:
        BadInput: saying the most that they may have.
    """
    base = base_of(model)
    if length is None or getattr(getattr(base, "config", None), "is_encoder_decoder", False):
        return
    for name, module in base.named_modules():
        learned = name.rpartition(".")[2] in _PLACES and isinstance(module, nn.Embedding)
        if learned and length > module.num_embeddings:
            raise BadInput(
                f"max_length is {length}, and {type(base).__name__} has {module.num_embeddings} "
                f"places ({name}): expected at most {module.num_embeddings}. Texts are padded or "
                "cut to max_length",
                name="max_length",
            )


def _add(
    ranges: dict[str, NumberRange],
    name: str,
    size: int | None,
    advice: str,
    *,
    ignores: bool = False,
) -> None:
    if isinstance(size, int) and size > 0:
        ranges[name] = NumberRange(size, advice, ignores)


def _is_text_model(config: Any) -> bool:
    """Whether all tokens are looked up: models that read images within texts may replace some."""
    with suppress(ValueError, AttributeError):
        return config.get_text_config() is config
    return False


def _rows_of(module: Any, getter: str) -> int | None:
    """How many rows the weight of a module's embedding has; None if there is none."""
    with suppress(AttributeError, NotImplementedError):
        shape = getattr(module, getter)().weight.shape
        return int(shape[0]) if len(shape) == 2 else None
    return None
