"""This file finds where examples meet in a model that was seen to couple them: on made-up rows
alone, for the words of a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from privlearn.core.clipping.capture import BatchExamples, Capture, SeenCalls
from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.kernels import UnusedKernels
from privlearn.core.clipping.operations import RULES
from privlearn.core.clipping.separation.program import Constants
from privlearn.core.clipping.separation.tracker import AxisTracker, ReadsBatch

#: Characters of an operation and its line: file names may be long.
_MOST = 130


def name_meeting(model: nn.Module, rows: Sequence[Tensor]) -> str:
    """In which operation, at which line of the caller's code, examples meet, and what to write
    instead.

    Args:
        model: gives a row for each example. It is run once; its weights stay.
        rows: the tensors of a made-up batch, of at least two examples.

    Returns:
        Words for an error; empty where it can't be told.
    """
    leaves = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in rows]
    constants = Constants(model)
    tracker = AxisTracker(constants, leaves, len(leaves[0]))
    batch = BatchExamples(leaves, len(leaves[0]))
    capture = Capture(RULES, (), UnusedKernels(), batch, SeenCalls(constants), tracker)
    try:
        with torch.no_grad(), looking_at(leaves[0].device), tracker:
            with capture:
                out = model(*leaves)
            where = tracker.mark_of(out).met
    except ReadsBatch as error:
        where = error.where
    except Exception:  # a model that can't be followed is refused all the same
        return ""
    return (
        f"{where[:_MOST]}. Compute it within each example, as over dim=1, or use a constant"
        if where
        else ""
    )
