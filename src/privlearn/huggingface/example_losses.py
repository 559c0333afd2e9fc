"""One loss for each example, where models of transformers compute a mean over the batch or over its
tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import checked, quoted
from privlearn.errors import BadInput, NotPerExample

#: Of the tokens of each example: shifted by one, or one target for each position.
_SHIFTED, _ALIGNED, _CLASSES, _SPANS = "shifted tokens", "tokens", "classes", "spans"
_KINDS = {
    "ForCausalLM": _SHIFTED,
    "ForMaskedLM": _ALIGNED,
    "ForTokenClassification": _ALIGNED,
    "ForSequenceClassification": _CLASSES,
    "ForImageClassification": _CLASSES,
    "ForAudioClassification": _CLASSES,
    "ForVideoClassification": _CLASSES,
    "ForQuestionAnswering": _SPANS,
}
_TARGETS = {_SPANS: ("start_positions", "end_positions")}
#: As in transformers: a target that counts for nothing.
IGNORED = -100


@checked
@final
class ExampleLoss:
    """The training loss of a model of transformers, for each example by itself: a loss of (model,
    batch).

    Tokens are summed over the example and divided by a public number, so that no example's loss
    depends on how many tokens another has; targets of -100 count for nothing.

    Args:
        model: a `PreTrainedModel`, or one of PEFT around it: its class says what is to be computed.
        tokens: the public number that sums over tokens are divided by.
        smoothing: the share of each target that is spread over all classes.
        own: in place of it, a function of (outputs, labels), called as `Trainer` calls its
            `compute_loss_func`, with the public number of tokens as `num_items_in_batch`. It gives
            one value for each example; one that gives a single number is called with one example
            at a time.

    Attributes:
        made_up: changes made-up rows, as for every loss (`clipping.losses`).

    Raises:
        BadInput: the model's class has another loss.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: float,
        smoothing: float = 0.0,
        own: Callable[..., Tensor] | None = None,
    ) -> None:
        base = base_of(model)
        if not hasattr(base, "config"):
            raise BadInput(f"model is {quoted(model)}: expected one of transformers")
        self.kind, self._user_loss = kind_of(base), own
        self._user_loss_of_each = _OneEach(self._compute_user_loss)
        self.made_up: Callable[[Any], Any] | None = None
        if self.kind is None and own is None:
            raise BadInput(
                f"{type(base).__name__} has no loss that is known to be one value for each "
                "example: give compute_loss_func(outputs, labels, num_items_in_batch), or override "
                "compute_loss, which then gets one example at a time"
            )
        self._targets = ("labels",) if own else _TARGETS.get(self.kind or "", ("labels",))
        self._tokens, self._smoothing = tokens, smoothing
        self._problem = getattr(base.config, "problem_type", None)
        self._shifts = self.kind == _ALIGNED and getattr(base.config, "is_encoder_decoder", False)
        self.__qualname__ = (
            f"{type(self).__qualname__} of {self.kind if own is None else own} over {tokens:g} "
            "tokens"
        )

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Shape (batch,)."""
        self.require_targets(batch)
        if self._user_loss is not None:
            return self._user_loss_of_each(model, batch)
        outputs = self._outputs(model, batch)
        targets = [batch[name] for name in self._targets]
        if self.kind == _SPANS:
            ends = zip((outputs.start_logits, outputs.end_logits), targets, strict=True)
            return sum(_spans(logits, target) for logits, target in ends) / 2  # type: ignore[return-value]
        # a model that is given labels puts its own loss first
        scores = (
            outputs["logits"]
            if isinstance(outputs, dict)
            else next(each for each in outputs if each.dim() > 1)
        )
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if self.kind == _CLASSES:
            return self._of_classes(scores, targets[0])
        if self.kind == _SHIFTED:
            scores, targets = scores[:, :-1], [targets[0][:, 1:]]
        each = F.cross_entropy(
            scores.transpose(1, 2),
            targets[0],
            reduction="none",
            ignore_index=IGNORED,
            label_smoothing=self._smoothing,
        )
        return each.sum(1) / self._tokens

    def require_targets(self, batch: Mapping[str, Tensor]) -> None:
        """Refuse rows without what the loss is of.

        Raises:
            BadInput: naming it.
        """
        missing = [name for name in self._targets if name not in batch]
        if missing:
            raise BadInput(
                f"the rows have no {missing[0]!r}, only {', '.join(batch)}: give a data_collator "
                "that makes them, or rows that have them"
            )

    def _outputs(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Any:
        """What the model gives without targets; those that a decoder's inputs are made of stay,
        where the model makes them itself.
        """
        shifts = self._shifts and "decoder_input_ids" not in batch
        withheld = () if shifts else self._targets
        return model(**{name: leaf for name, leaf in batch.items() if name not in withheld})

    def _compute_user_loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Any:
        assert self._user_loss is not None
        outputs, labels = self._outputs(model, batch), batch[self._targets[0]]
        return self._user_loss(outputs, labels, num_items_in_batch=self._tokens)

    def _of_classes(self, scores: Tensor, labels: Tensor) -> Tensor:
        """As transformers tell regression, one class and several classes apart: by configuration,
        else by labels.
        """
        problem = self._problem
        if problem is None:
            whole = not labels.is_floating_point()
            problem = (
                "regression" if scores.shape[1] == 1 else "single_label" if whole else "multi_label"
            )
        if problem.startswith("single_label"):
            return F.cross_entropy(
                scores, labels.reshape(-1), reduction="none", label_smoothing=self._smoothing
            )
        labels = labels.reshape(scores.shape).to(scores.dtype)
        if problem == "regression":
            return F.mse_loss(scores, labels, reduction="none").mean(1)
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="none").mean(1)


def base_of(model: nn.Module) -> Any:
    """The model of transformers inside an adapter of PEFT; else the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def kind_of(base: Any) -> str | None:
    """What the loss of a model is computed of; None if that is not known."""
    name = type(base).__name__
    if name.endswith(("ForConditionalGeneration", "LMHeadModel", "Seq2SeqLM")):
        return _ALIGNED if getattr(base.config, "is_encoder_decoder", False) else _SHIFTED
    return _KINDS.get(str(getattr(base, "loss_type", None)))


def has_token_labels(base: Any) -> bool | None:
    """Whether a model's labels are tokens, or a class for each token; None if that is not known."""
    kind = kind_of(base)
    return None if kind is None else kind in (_SHIFTED, _ALIGNED)


class LabelKind(Enum):
    """What whole numbers a model's `labels` are."""

    TOKENS = "tokens of its vocabulary"
    CLASSES = "classes"


def labels_of(base: Any) -> LabelKind | None:
    """What a model's whole labels are; None if they may be anything, or it is not known."""
    kind = kind_of(base)
    if kind in (_SHIFTED, _ALIGNED):
        classes = str(getattr(base, "loss_type", None)) == "ForTokenClassification"
        return LabelKind.CLASSES if classes else LabelKind.TOKENS
    problem = getattr(base.config, "problem_type", None) or "single_label_classification"
    single = problem.startswith("single_label") and getattr(base.config, "num_labels", 1) > 1
    return LabelKind.CLASSES if kind == _CLASSES and single else None


def _spans(logits: Tensor, positions: Tensor) -> Tensor:
    """Of where an answer begins or ends; a place outside the text counts for nothing."""
    length = logits.shape[1]
    return F.cross_entropy(
        logits, positions.reshape(-1).clamp(0, length), reduction="none", ignore_index=length
    )


@final
class _OneEach:
    """A function of (model, batch) as one loss for each example: what it gives, or, where that is a
    number for the whole batch, what it gives for each example by itself.

    So nothing has to be believed of how it averages: a mean over one example is its own.
    """

    def __init__(self, compute: Callable[[Any, dict[str, Tensor]], Any]) -> None:
        self._compute = compute
        self._of_one = False

    def __call__(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Shape (batch,).

        Raises:
            NotPerExample: it is neither.
        """
        rows = len(next(iter(batch.values())))
        if rows == 1 or not self._of_one:
            losses = self._compute(model, dict(batch))
            if isinstance(losses, Tensor) and (
                losses.shape == (rows,) or losses.numel() == rows == 1
            ):
                return losses.reshape(rows)
            if rows == 1:
                raise _not_one(losses)
            self._of_one = True
        each = [{name: leaf[n : n + 1] for name, leaf in batch.items()} for n in range(rows)]
        return torch.cat([self(model, row) for row in each])


def _not_one(losses: Any) -> NotPerExample:
    description = (
        f"a tensor of shape {tuple(losses.shape)}"
        if isinstance(losses, Tensor)
        else f"a {type(losses).__name__}"
    )
    return NotPerExample(
        f"the loss of one example is {description}: expected one number. Return the example's "
        "loss, or one value for each example, shape (batch,), for example "
        "cross_entropy(..., reduction='none') averaged over all but the batch"
    )


@final
class ComputedLoss:
    """`compute_loss` of a subclass of `PrivateTrainer` as a loss of (model, batch).

    It is given one example at a time, unless it gives one value for each example.

    Args:
        compute: the bound method.
        tokens: the public number that it is given as `num_items_in_batch`, if it takes that.

    Attributes:
        made_up: as of `ExampleLoss`.
    """

    def __init__(self, compute: Callable[..., Any], tokens: float) -> None:
        parameters = inspect.signature(compute).parameters
        named = "num_items_in_batch" in parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self._options = {"num_items_in_batch": tokens} if named or takes_all else {}
        self._compute = compute
        self._of_each = _OneEach(self._of_batch)
        self.made_up: Callable[[Any], Any] | None = None
        self.__qualname__ = f"{compute.__qualname__} over {tokens:g} tokens"

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Shape (batch,)."""
        return self._of_each(model, batch)

    def _of_batch(self, model: nn.Module, batch: dict[str, Tensor]) -> Any:
        return self._compute(model, batch, **self._options)
