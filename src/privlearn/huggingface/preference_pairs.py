"""Pairs of a preferred and a rejected answer: a pair is one example, with one loss of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import checked, quoted
from privlearn.errors import BadInput
from privlearn.huggingface.example_losses import IGNORED

#: What is padded, and with what; `None` stands for the padding token.
_PADDING: dict[str, int | None] = {"input_ids": None, "attention_mask": 0, "completion_mask": 0}
#: The reference model's log-probabilities of both answers, as TRL calls them.
_REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")


@final
class PaddedPairs:
    """A collate function for one pair, both answers of which stand in one row, padded (or cut) to a
    public length.

    Args:
        collate: makes of one pair a batch of two sequences, the preferred one first.
        pad: the padding token.
        length: of both sequences, prompts included; None if all have one length.
    """

    def __init__(
        self, collate: Callable[[list[Any]], Any], pad: int, length: int | None = None
    ) -> None:
        self._collate, self._pad, self.length = collate, pad, length

    def __call__(self, rows: list[Any]) -> dict[str, Tensor]:
        """The batch of one pair: sequences of shape (1, 2, tokens), numbers of shape (1,).

        Raises:
            BadInput: the collate function makes no such pair, or no reference of it.
        """
        batch = self._collate(rows)
        missing = [name for name in (*_PADDING, *_REFERENCE) if name not in batch]
        if missing or batch["input_ids"].dim() != 2 or len(batch["input_ids"]) != 2:
            fault = f"has no {missing[0]!r}" if missing else "is no pair of sequences"
            raise BadInput(
                f"what the data_collator made of one pair {fault}: expected input_ids, "
                "attention_mask and completion_mask of two sequences, the preferred one first, and "
                f"{' and '.join(_REFERENCE)}. Leave data_collator out to use TRL's"
            )
        sequences = {
            name: self._pad_or_cut(fill, batch[name])[None] for name, fill in _PADDING.items()
        }
        numbers = {name: batch[name].reshape(1).float() for name in _REFERENCE}
        return dict(sorted((sequences | numbers).items()))

    def lengths(self, batch: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The lengths of what is padded."""
        return tuple(batch[name].shape[-1] for name in _PADDING)

    def _pad_or_cut(self, fill: int | None, value: Tensor) -> Tensor:
        short = 0 if self.length is None else self.length - value.shape[1]
        fill = self._pad if fill is None else fill
        return F.pad(value, (0, short), value=fill) if short > 0 else value[:, : self.length]


@final
@dataclass(frozen=True, repr=False)
class _Scored:
    """What the losses of pairs are made of, each of shape (pairs,).

    Attributes:
        chosen, rejected: log-ratios of the model and the reference, of whole answers.
        scores: the same behind the divergence.
        tokens: how many tokens the answers have.
        logs: the model's log-probability of the preferred answer.
        settings: of the loss.
    """

    chosen: Tensor
    rejected: Tensor
    scores: tuple[Tensor, Tensor]
    tokens: tuple[Tensor, Tensor]
    logs: Tensor
    settings: PairSettings

    @property
    def margin(self) -> Tensor:
        """By how much the preferred answer is more likely than the other, scaled."""
        return self.settings.beta * (self.scores[0] - self.scores[1])

    @property
    def mean_margin(self) -> Tensor:
        """The same of means over an answer's tokens, unscaled."""
        one, other = (
            score / tokens.clamp(min=1)
            for score, tokens in zip(self.scores, self.tokens, strict=True)
        )
        return one - other

    @property
    def rewards(self) -> tuple[Tensor, Tensor]:
        """Of both answers."""
        return self.settings.beta * self.chosen, self.settings.beta * self.rejected


def _exo(pair: _Scored) -> Tensor:
    share = pair.settings.label_smoothing
    win, lose = F.logsigmoid(pair.margin), F.logsigmoid(-pair.margin)
    return win.exp() * (win - math.log1p(-share)) + lose.exp() * (lose - math.log(share))


def _nca(pair: _Scored) -> Tensor:
    won, lost = pair.rewards
    return -F.logsigmoid(won) - 0.5 * F.logsigmoid(-won) - 0.5 * F.logsigmoid(-lost)


def _robust(pair: _Scored) -> Tensor:
    share = pair.settings.label_smoothing
    right, flipped = F.logsigmoid(pair.margin), F.logsigmoid(-pair.margin)
    return (share * flipped - (1 - share) * right) / (1 - 2 * share)


def _bco(pair: _Scored) -> Tensor:
    won, lost = pair.rewards
    return -F.logsigmoid(won) - F.logsigmoid(-lost)


def _sppo(pair: _Scored) -> Tensor:
    half = 0.5 / pair.settings.beta
    return (pair.chosen - half).square() + (pair.rejected + half).square()


def _apo_zero(pair: _Scored) -> Tensor:
    won, lost = pair.rewards
    return 1 - won.sigmoid() + lost.sigmoid()


def _apo_down(pair: _Scored) -> Tensor:
    won, lost = pair.rewards
    return won.sigmoid() + 1 - (won - lost).sigmoid()


def _discopop(pair: _Scored) -> Tensor:
    share = (pair.margin / pair.settings.discopop_tau).sigmoid()
    return -F.logsigmoid(pair.margin) * (1 - share) + (-pair.margin).exp() * share


#: The losses that are one value for each pair, by TRL's names. Others are refused.
LOSSES: dict[str, Callable[[_Scored], Tensor]] = {
    "sigmoid": lambda pair: -F.logsigmoid(pair.margin),
    "hinge": lambda pair: F.relu(1 - pair.margin),
    "ipo": lambda pair: (pair.mean_margin - 0.5 / pair.settings.beta).square(),
    "exo_pair": _exo,
    "nca_pair": _nca,
    "robust": _robust,
    "bco_pair": _bco,
    "sppo_hard": _sppo,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
    "discopop": _discopop,
    "sft": lambda pair: -pair.logs / pair.settings.tokens,
    "sigmoid_norm": lambda pair: -F.logsigmoid(pair.settings.beta * pair.mean_margin),
}


def _alpha_scores(log_ratio: Tensor, settings: PairSettings) -> Tensor:
    power = settings.f_alpha_divergence_coef - 1.0
    if abs(power) < 1e-6:
        return log_ratio
    return ((power * log_ratio).clamp(max=80.0).exp() - 1.0) / power


#: What a divergence makes of a log-ratio, by TRL's names. Others are refused.
DIVERGENCES: dict[str, Callable[[Tensor, PairSettings], Tensor]] = {
    "reverse_kl": lambda log_ratio, _: log_ratio,
    "forward_kl": lambda log_ratio, _: 1 - (-log_ratio).exp(),
    "js_divergence": lambda log_ratio, _: math.log(2) + F.logsigmoid(log_ratio),
    "alpha_divergence": _alpha_scores,
}


@checked
@final
@dataclass(frozen=True)
class PairSettings:
    """The settings of a loss of pairs, as `trl.DPOConfig` calls them.

    Attributes:
        loss_type: names of losses, which are added up.
        loss_weights: the weight of each; None: 1.
        beta: the scale of rewards.
        label_smoothing: the share of pairs whose preference is taken for wrong.
        ld_alpha: the weight of tokens beyond the length of the shorter answer; None: 1.
        f_divergence_type, f_alpha_divergence_coef: between model and reference.
        discopop_tau: of that loss.
        tokens: the public number that the loss "sft" divides by.

    Raises:
        BadInput: a loss or a divergence that is none of single pairs.
    """

    loss_type: Sequence[str] = ("sigmoid",)
    loss_weights: Sequence[float] | None = None
    beta: float = 0.1
    label_smoothing: float = 0.0
    ld_alpha: float | None = None
    f_divergence_type: str = "reverse_kl"
    f_alpha_divergence_coef: float = 0.5
    discopop_tau: float = 0.05
    tokens: float = 1.0

    def __post_init__(self) -> None:
        for name in self.loss_type:
            if name not in LOSSES:
                raise BadInput(
                    f"DPOConfig(loss_type={quoted(name)}) can't be used: it is not known to be one "
                    f"value for each pair. Use one of {', '.join(sorted(LOSSES))}",
                    name="loss_type",
                )
        if self.f_divergence_type not in DIVERGENCES:
            raise BadInput(
                f"DPOConfig(f_divergence_type={quoted(self.f_divergence_type)}) can't be used: "
                f"expected one of {', '.join(sorted(DIVERGENCES))}",
                name="f_divergence_type",
            )


@final
class PairLoss:
    """The loss of a model for each pair by itself: a loss of (model, batch).

    Both answers of a pair are computed in one pass. The reference is no part of the model: its
    log-probabilities come with the pair, so it is neither trained nor clipped.

    Args:
        settings: what is computed.
    """

    def __init__(self, settings: PairSettings) -> None:
        self.settings = settings
        self.made_up: Callable[[Any], Any] | None = None
        self.__qualname__ = (
            f"{type(self).__qualname__} of {'+'.join(settings.loss_type)}, beta={settings.beta:g}"
        )

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Shape (pairs,)."""
        settings, answered = self.settings, batch["completion_mask"]
        by_token = _log_probabilities(model, batch) * _weights(answered, settings.ld_alpha)
        logs, tokens = by_token.sum(-1), answered.sum(-1)
        chosen = logs[:, 0] - batch["ref_chosen_logps"]
        rejected = logs[:, 1] - batch["ref_rejected_logps"]
        score = DIVERGENCES[settings.f_divergence_type]
        pair = _Scored(
            chosen,
            rejected,
            (score(chosen, settings), score(rejected, settings)),
            (tokens[:, 0], tokens[:, 1]),
            logs[:, 0],
            settings,
        )
        weights = settings.loss_weights or [1.0] * len(settings.loss_type)
        losses = [
            LOSSES[name](pair) * weight
            for name, weight in zip(settings.loss_type, weights, strict=True)
        ]
        return torch.stack(losses).sum(0)


def _log_probabilities(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Of each token of both answers, shape (pairs, 2, tokens - 1); 0 for those of prompts."""
    ids, answered = batch["input_ids"], batch["completion_mask"]
    outputs = model(
        input_ids=ids.flatten(0, 1), attention_mask=batch["attention_mask"].flatten(0, 1)
    )
    scores = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    scores = scores if scores.dtype == torch.float64 else scores.float()
    targets = ids.masked_fill(answered == 0, IGNORED).flatten(0, 1)[:, 1:]
    losses = F.cross_entropy(
        scores[:, :-1].transpose(1, 2), targets, reduction="none", ignore_index=IGNORED
    )
    return -losses.reshape(-1, 2, losses.shape[1])


def _weights(answered: Tensor, alpha: float | None) -> Tensor | float:
    """Of each token: `alpha` beyond the length of the pair's shorter answer."""
    if alpha is None:
        return 1.0
    places = answered[..., 1:].cumsum(-1)
    shorter = answered[..., 1:].sum(-1).amin(-1)[:, None, None]
    return torch.where(places > shorter, alpha, 1.0)
