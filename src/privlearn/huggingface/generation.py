"""`PrivateSeq2SeqTrainer`: a private trainer that generates texts where it is evaluated."""

from __future__ import annotations

from typing import Any

from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from privlearn._checks import quoted
from privlearn.errors import BadInput
from privlearn.huggingface.trainer import PrivateTrainer


class PrivateSeq2SeqTrainer(PrivateTrainer, Seq2SeqTrainer):
    """Seq2SeqTrainer of transformers, with differential privacy:
    `PrivateSeq2SeqTrainer(model, args, ..., epsilon=3, delta=1e-5)`.

    Guarantee: as of `PrivateTrainer`. With `predict_with_generate=True` metrics are of texts that
    the model generates for evaluation rows, which are to be public.

    Args:
        model, args: as of `Seq2SeqTrainer`; all of its other arguments are taken by name.
        arguments: those of `Privacy`, and of `Seq2SeqTrainer`.

    Raises:
        NotPerExample, BadInput: as of `PrivateTrainer`; or `args` are not
            `Seq2SeqTrainingArguments`.
    """

    def __init__(self, model: Any = None, args: Any = None, **arguments: Any) -> None:
        if not isinstance(args, Seq2SeqTrainingArguments):
            raise BadInput(
                f"args is {quoted(args)}: expected transformers.Seq2SeqTrainingArguments, which "
                "say how texts are generated"
            )
        super().__init__(model, args, **arguments)
