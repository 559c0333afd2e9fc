"""Rows of texts, each collated by itself and padded to one public length."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.errors import BadInput, first_line
from privlearn.huggingface.example_losses import IGNORED, base_of, has_token_labels
from privlearn.huggingface.number_ranges import NumberRange
from privlearn.runs.given import ABSENT

#: So many rows are looked at for what is as long as their texts.
_LOOKED_AT = 32
#: A text that the model is given, and one that it is to give.
_TEXT, _TARGET = "text", "target"


@final
class Padded:
    """A collate function for one row, padded (or cut) to a public length on the right, with a mask
    over what is text.

    What is as long as a row's text is padded to `length`, and what a decoder gives, or what has a
    length of its own in each row, to `target_length`. All else stays as it is. Where the model has
    a function that makes a decoder's inputs of labels, they are made here.

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
        config = getattr(base, "config", None)
        self._collate, self._pad, self._base = collate, pad, base
        self.length, self.target_length = length, target_length or length
        self._decodes = bool(getattr(config, "is_encoder_decoder", False))
        self._masks = "attention_mask" in inspect.signature(base.forward).parameters
        self._main = getattr(base, "main_input_name", "input_ids")
        self._labels_are_tokens = has_token_labels(base)
        self._kinds: dict[str, str] = {}

    def __call__(self, rows: list[Any]) -> dict[str, Tensor]:
        """The batch of one row.

        Raises:
            BadInput: the collate function makes no dictionary.
        """
        tensors = self._tensors(rows)
        return {name: self._pad_or_cut(name, value) for name, value in sorted(tensors.items())}

    def learn(self, dataset: Sized) -> None:
        """Look at some rows for what is as long as their texts. Most of them decide, so that no
        single one does.
        """
        rows = len(dataset)
        few = sorted({place * rows // _LOOKED_AT for place in range(_LOOKED_AT)})
        self._kinds = self._learn_kinds(
            [tensors for number in few if (tensors := _quietly(self._tensors, dataset, number))]
        )

    def lengths(self, batch: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The lengths of what would be padded, had it a public length."""
        return tuple(
            batch[name].shape[1]
            for name in self._kinds
            if name in batch and batch[name].dim() > 1 and self._length(name) is None
        )

    def _tensors(self, rows: list[Any]) -> dict[str, Tensor]:
        """The batch of one row as it is."""
        batch = self._collate(rows)
        if not isinstance(batch, Mapping):
            raise BadInput(
                f"the data_collator made a {type(batch).__name__}: expected a dictionary of "
                "tensors, the names of which the model's forward takes"
            )
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        if self._masks and "input_ids" in tensors and "attention_mask" not in tensors:
            tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
        shift = getattr(self._base, "prepare_decoder_input_ids_from_labels", None)
        if shift and self._decodes and "labels" in tensors and "decoder_input_ids" not in tensors:
            tensors["decoder_input_ids"] = shift(tensors["labels"])
        return tensors

    def _learn_kinds(self, seen: Sequence[Mapping[str, Tensor]]) -> dict[str, str]:
        """For each name of what is padded whether it is a text or a target."""
        lengths: dict[str, list[int | None]] = {}
        for name in dict.fromkeys(name for tensors in seen for name in tensors):
            values = [tensors.get(name) for tensors in seen]
            lengths[name] = [
                None if value is None or value.dim() < 2 else value.shape[1] for value in values
            ]
        texts = self._text_lengths(lengths)
        kinds: dict[str, str] = {}
        for name, each in lengths.items():
            tokens = name != "labels" or self._labels_are_tokens is not False
            if not tokens or each.count(None) > len(each) // 2:
                continue
            as_long = sum(
                other is not None and one == other for one, other in zip(each, texts, strict=True)
            )
            decoders = self._decodes and name.startswith(("labels", "decoder_"))
            if decoders and (name != "labels" or self._labels_are_tokens or _varies(each)):
                kinds[name] = _TARGET
            elif as_long > len(each) // 2:
                kinds[name] = _TEXT
            elif _varies(each):
                kinds[name] = _TARGET
        return kinds

    def _text_lengths(self, lengths: Mapping[str, list[int | None]]) -> list[int | None]:
        """How long the text of each row is, or the sound."""
        main = lengths.get(self._main)
        if "input_ids" in lengths:
            return lengths["input_ids"]
        if main is None and "attention_mask" in lengths:
            return lengths["attention_mask"]
        # pictures and sounds of one shape have other axes there
        rows = max(map(len, lengths.values()), default=0)
        return main if main is not None and _varies(main) else [None] * rows

    def _pad_or_cut(self, name: str, value: Tensor) -> Tensor:
        length = self._length(name) if name in self._kinds else None
        if value.dim() < 2 or length is None:
            return value
        short = length - value.shape[1]
        if short <= 0:
            return value[:, :length]
        beside = (0, 0) * (value.dim() - 2)
        return F.pad(value, (*beside, 0, short), value=self._fill(name, value))

    def _length(self, name: str) -> int | None:
        return self.length if self._kinds[name] == _TEXT else self.target_length

    def _fill(self, name: str, value: Tensor) -> int:
        """What counts for nothing: the padding token, a target that is ignored, or 0."""
        if name.endswith("input_ids"):
            return self._pad
        return IGNORED if name == "labels" and not value.is_floating_point() else 0


def _varies(lengths: Sequence[int | None]) -> bool:
    """Whether most rows have another length than the most usual one."""
    known = [length for length in lengths if length is not None]
    return bool(known) and 2 * Counter(known).most_common(1)[0][1] <= len(known)


def _quietly(make: Callable[[list[Any]], Any], dataset: Any, number: int) -> dict[str, Tensor]:
    """The batch of a row; nothing, if it can't be made: then it counts as absent."""
    try:
        return dict(make([dataset[number]]))
    except BadInput:
        raise
    except Exception:
        return {}


def learn_padding(dataset: Sized, padded: Any) -> None:
    """Let a collate function learn from some rows what is as long as their texts."""
    if isinstance(padded, Padded):
        padded.learn(dataset)


def require_fit_rows(
    dataset: Sized,
    padded: Any,
    ranges: Mapping[str, NumberRange] | None = None,
    *,
    all_columns: bool = False,
) -> dict[str, Tensor]:
    """Refuse rows that would be left out for what the model's public sizes say: texts of several
    lengths without a public one, and numbers beyond what it has tokens or classes for.

    Each row is made once. This looks at the data: it is for the data's curator, before anything is
    spent, and outside the guarantee. Rows that can't be made, or that are not finite, are warned
    of.

    Args:
        dataset: the rows.
        padded: what collates them, as `Padded` does.
        ranges: for each name of whole numbers what they have to be below.
        all_columns: whether rows have columns that the model does not take.

    Returns:
        The batch of the first row that can be made.

    Raises:
        BadInput: naming the argument, or what is out of range; or no row can be made.
    """
    learn_padding(dataset, padded)
    rows, unmade, infinite = len(dataset), 0, False
    lengths: set[tuple[int, ...]] = set()
    first: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):  # a collate function that masks tokens draws some
        for number in range(rows):
            batch = _quietly(padded, dataset, number)
            first, unmade = first or batch, unmade + (not batch)
            for name, outside in (ranges or {}).items():
                if name in batch:
                    outside.require(name, batch[name])
            infinite = infinite or not all(
                bool(value.isfinite().all())
                for value in batch.values()
                if value.is_floating_point()
            )
            if padded.length is None:
                lengths.add(padded.lengths(batch) if batch else ())
                _require_one(lengths - {()})
    if unmade == rows > 0:
        _raise_why(dataset, padded, all_columns=all_columns)
    if unmade:
        warnings.warn(UNMADE, stacklevel=3)
    if infinite:
        warnings.warn(ABSENT, stacklevel=3)
    return first


#: What is said of rows that fail: nothing of how many there are, or which.
UNMADE = (
    "there are rows that the data set or the data_collator can't make by themselves: each counts "
    "as absent, and from here on nothing is said about it. Mend or drop them by a rule that looks "
    "at no other row. This warning follows from private rows, and is for their curator"
)


def _raise_why(dataset: Any, padded: Any, *, all_columns: bool) -> None:
    """Raise `BadInput` where not one row can be made."""
    try:
        padded([dataset[0]])
    except Exception as error:
        expected = (
            "With remove_unused_columns=False it gets all columns: drop those that are no numbers "
            "(dataset.remove_columns), or leave the setting out"
            if all_columns
            else "Expected one that makes tensors of a list of one row, with the columns that the "
            "model takes"
        )
        raise BadInput(
            f"data_collator can't make any row: {type(error).__name__}: {first_line(error)[:80]}. "
            f"{expected}{_words_on_columns(dataset[0])}"
        ) from error


def _words_on_columns(row: Any) -> str:
    """Which columns hold texts, of which no tensor is made: names alone, no value."""
    if not isinstance(row, Mapping):
        return ""
    texts = [str(name) for name, value in row.items() if isinstance(value, str)]
    labels = [name for name in texts if name in ("label", "labels", "label_ids")]
    if labels:
        return f". {labels[0]!r} holds texts: give each class a whole number from 0"
    if texts and "input_ids" not in row:
        return (
            f". {texts[0]!r} holds texts: tokenize them first, "
            f"dataset.map(lambda row: tokenizer(row[{texts[0]!r}], truncation=True))"
        )
    return ""


def _require_one(lengths: set[tuple[int, ...]]) -> None:
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
