"""Messages between the server and the sites: public inputs go out, a teacher's answers come back.

A message holds one array and nothing else. In particular no text of an error leaves a site: it may
quote records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

#: What a teacher is asked, and the kind of message that asks it.
QUESTION = "teacher"
ASK = f"query.{QUESTION}"
_ANSWERS, _INPUTS = "answers", "inputs"


def pack_inputs(inputs: NDArray[Any]) -> RecordDict:
    """A request: public inputs, a row for each query."""
    return RecordDict({_INPUTS: ArrayRecord([inputs])})


def unpack_inputs(content: RecordDict) -> NDArray[Any]:
    """The public inputs of a request."""
    return _only_array(content, _INPUTS)


def pack_answers(answers: NDArray[Any] | None) -> RecordDict:
    """A reply: a row for each query; empty for a teacher that has no answers."""
    return RecordDict({} if answers is None else {_ANSWERS: ArrayRecord([answers])})


def unpack_answers(content: RecordDict) -> NDArray[Any]:
    """The answers of a reply.

    Raises:
        Exception: it holds none. A site may send anything.
    """
    return _only_array(content, _ANSWERS)


def _only_array(content: RecordDict, name: str) -> NDArray[Any]:
    [array] = content.array_records[name].to_numpy_ndarrays()
    return np.asarray(array)
