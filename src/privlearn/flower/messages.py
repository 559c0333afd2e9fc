"""Messages from the sites to the server: integers, or nothing.

A message holds one array and nothing else. In particular no text of an error leaves a site: it may
quote records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

_ANSWERS = "answers"


def pack_answers(answers: NDArray[Any] | None) -> RecordDict:
    """A reply; empty for a site that has no answers."""
    return RecordDict({} if answers is None else {_ANSWERS: ArrayRecord([answers])})


def unpack_answers(content: RecordDict) -> NDArray[Any]:
    """The answers of a reply.

    Raises:
        Exception: it holds none. A site may send anything.
    """
    [array] = content.array_records[_ANSWERS].to_numpy_ndarrays()
    return np.asarray(array)
