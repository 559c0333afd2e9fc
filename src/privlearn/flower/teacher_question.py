"""What the server asks the teachers at the sites: public inputs, and the public bounds within which
a site answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from privlearn.errors import BadInput
from privlearn.methods.pate.integers import (
    IntegerAnswers,
    LinearEncoder,
    integers_for,
    reducer_fingerprint,
)
from privlearn.methods.pate.plan import Aggregate, Ball, Box, Votes
from privlearn.methods.pate.reducers import Reducer
from privlearn.methods.pate.sums import CodeSums, VoteCounts

#: What a teacher is asked.
QUESTION = "teacher"
_INPUTS, _BOUNDS, _ENCODER = "inputs", "bounds", "encoder"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Question:
    """Public inputs, and the integers in which a site answers them.

    Attributes:
        inputs: a row for each query.
        integers: the form of answers, with their bound.
        aggregate: what is asked for.
    """

    inputs: NDArray[Any]
    integers: IntegerAnswers
    aggregate: Aggregate


def pack_question(inputs: Tensor, totals: CodeSums | VoteCounts) -> RecordDict:
    """A request for answers that can be added to `totals`. All of it is public.

    Args:
        inputs: a row for each query.
        totals: where answers will be added up: they say what is asked for.
    """
    content = {_INPUTS: ArrayRecord([np.ascontiguousarray(inputs.numpy())])}
    if isinstance(totals, VoteCounts):
        bounds: dict[str, Any] = {"kind": Votes.kind, "classes": totals.aggregate.classes}
        return RecordDict({**content, _BOUNDS: ConfigRecord(bounds)})
    aggregate, encoder = totals.aggregate, totals.encoder
    bounds = {"kind": aggregate.kind, "step": integers_for(aggregate, encoder).step}
    if isinstance(aggregate, Box):
        arrays = [encoder.centre]
        bounds["dimensions"] = aggregate.dimensions
    else:
        bounds["radius"] = aggregate.radius
        arrays = [encoder.centre] if _is_linear(encoder) else []
        arrays += [] if encoder.matrix is None else [encoder.matrix]
        if isinstance(encoder, Reducer):
            bounds["reducer"] = reducer_fingerprint(encoder)
    content[_ENCODER] = ArrayRecord([np.ascontiguousarray(array.numpy()) for array in arrays])
    return RecordDict({**content, _BOUNDS: ConfigRecord(bounds)})


def unpack_question(content: RecordDict, reducer: Reducer | None) -> Question:
    """The question of a request, at a site.

    Args:
        content: the request.
        reducer: the site's own, by which it answers; None: the arrays of the request.

    Raises:
        BadInput: the request's reducer is another one, or can't be sent and the site has none.
        Exception: it is not a question.
    """
    [inputs] = content.array_records[_INPUTS].to_numpy_ndarrays()
    bounds = content.config_records[_BOUNDS]
    aggregate = _unpack_aggregate(bounds)
    if isinstance(aggregate, Votes):
        return Question(inputs, integers_for(aggregate, None), aggregate)
    arrays = [
        torch.from_numpy(np.array(array))
        for array in content.array_records[_ENCODER].to_numpy_ndarrays()
    ]
    if isinstance(aggregate, Ball) and reducer is not None:
        if reducer_fingerprint(reducer) != bounds["reducer"]:
            raise BadInput(
                "the server's reducer is not this site's: expected the same public reducer at all. "
                "Give teacher_app(reducer=...) the one that the server uses"
            )
        return Question(inputs, integers_for(aggregate, reducer, _step(bounds)), aggregate)
    if not arrays:
        raise BadInput(
            "the server's reducer is not linear, and is not sent: expected it at the site, as "
            "teacher_app(load, reducer=...)"
        )
    integers = integers_for(aggregate, LinearEncoder(*arrays), _step(bounds))
    return Question(inputs, integers, aggregate)


def _unpack_aggregate(bounds: ConfigRecord) -> Aggregate:
    match bounds["kind"]:
        case Votes.kind:
            return Votes(bounds["classes"])  # type: ignore[arg-type]
        case Ball.kind:
            return Ball(bounds["radius"])  # type: ignore[arg-type]
        case Box.kind:
            return Box(bounds["dimensions"])  # type: ignore[arg-type]
        case other:
            raise BadInput(f"the server asks for {str(other)[:60]!r}: expected votes, ball or box")


def _step(bounds: ConfigRecord) -> float:
    return bounds["step"]  # type: ignore[return-value]


def _is_linear(encoder: Any) -> bool:
    return encoder.is_identity or encoder.matrix is not None
