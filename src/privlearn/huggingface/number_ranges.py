"""Which whole numbers a model of transformers can compute with, by its public sizes: tokens below
the size of its embedding, labels below the number of its scores.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from privlearn.errors import BadInput
from privlearn.huggingface.example_losses import IGNORED, LabelKind, base_of, labels_of

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
