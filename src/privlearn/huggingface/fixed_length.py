"""Rows of texts, each collated by itself and padded to one public length."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sized
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.errors import BadInput
from privlearn.huggingface.example_losses import IGNORED, base_of

#: What is padded, and with what; `None` stands for the padding token.
_PADDING: dict[str, int | None] = {
    "input_ids": None,
    "attention_mask": 0,
    "token_type_ids": 0,
    "position_ids": 0,
    "labels": IGNORED,
    "decoder_input_ids": None,
    "decoder_attention_mask": 0,
}
_DECODED = ("labels", "decoder_input_ids", "decoder_attention_mask")


@final
class Padded:
    """A collate function for one row, padded (or cut) to a public length on the right, with a mask
    over what is text.

    Whatever else a batch holds stays as it is. Where a decoder's inputs follow from the labels,
    they are made here.

    Args:
        collate: the collate function of a batch.
        model: whose rows they are.
        pad: the padding token.
        length: of the texts; None if all have one length.
        target_length: of a decoder's texts; None: the same.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        model: nn.Module,
        pad: int,
        length: int | None = None,
        target_length: int | None = None,
    ) -> None:
        base = base_of(model)
        self._collate, self._pad, self._base = collate, pad, base
        self.length, self.target_length = length, target_length or length
        self._decodes = bool(getattr(base.config, "is_encoder_decoder", False))
        self._masks = "attention_mask" in inspect.signature(base.forward).parameters

    def __call__(self, rows: list[Any]) -> dict[str, Tensor]:
        """The batch of one row.

        Raises:
            BadInput: the collate function makes no dictionary.
        """
        batch = self._collate(rows)
        if not isinstance(batch, Mapping):
            raise BadInput(
                f"the data_collator made a {type(batch).__name__}: expected a dictionary of "
                "tensors, the names of which the model's forward takes"
            )
        tensors = {
            name: value for name, value in sorted(batch.items()) if isinstance(value, Tensor)
        }
        if self._masks and "input_ids" in tensors and "attention_mask" not in tensors:
            tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
        if self._decodes and "labels" in tensors and "decoder_input_ids" not in tensors:
            tensors["decoder_input_ids"] = self._base.prepare_decoder_input_ids_from_labels(
                tensors["labels"]
            )
        return {name: self._pad_or_cut(name, value) for name, value in sorted(tensors.items())}

    def lengths(self, batch: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The lengths of what is padded, of a batch that was not yet."""
        return tuple(
            value.shape[1] for name, value in batch.items() if name in _PADDING and value.dim() > 1
        )

    def _pad_or_cut(self, name: str, value: Tensor) -> Tensor:
        length = self.target_length if self._decodes and name in _DECODED else self.length
        if name not in _PADDING or value.dim() < 2 or length is None:
            return value
        fill = _PADDING[name]
        short = length - value.shape[1]
        return (
            F.pad(value, (0, short), value=self._pad if fill is None else fill)
            if short > 0
            else value[:, :length]
        )


def require_one_length(dataset: Sized, padded: Padded) -> None:
    """Refuse texts of several lengths without a public one: a row of another shape than the first's
    is left out.

    Raises:
        BadInput: naming the argument.
    """
    if padded.length is not None:
        return
    lengths: set[tuple[int, ...]] = set()
    for number in range(len(dataset)):
        lengths.add(padded.lengths(padded([dataset[number]])))  # type: ignore[index]
        if len(lengths) > 1:
            raise BadInput(
                "the rows have several lengths: give max_length=N, a public number of tokens, "
                "which all are padded or cut to (for a decoder's texts max_target_length). Choose "
                "it without looking at single rows"
            )


def tokens_in(like: Mapping[str, Tensor]) -> int:
    """How many targets an example has: what sums over its tokens are divided by, unless another
    number is given.
    """
    labels = like.get("labels")
    return labels.shape[1] if labels is not None and labels.dim() > 1 else 1


def padding_token(processing_class: Any, model: nn.Module) -> int:
    """The token that texts are padded with: the tokenizer's, else the configuration's, else 0;
    masked out.
    """
    config = getattr(base_of(model), "config", None)
    for token in (
        getattr(processing_class, "pad_token_id", None),
        getattr(config, "pad_token_id", None),
    ):
        if isinstance(token, int) and token >= 0:
            return token
    return 0
