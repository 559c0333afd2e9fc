"""A world is the processes that train together: it says which of them this is, and what they do as
one. By default there is one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from privlearn.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from privlearn.core.accounting.account import Account
    from privlearn.core.streams import NoiseStream, Streams

#: What launchers tell each of their processes: torchrun and accelerate, Open MPI, MPICH and Intel
#: MPI, srun.
#: (SLURM_NTASKS is set in a batch script, too, which is one process.)
_COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
#: What torchrun tells each of its processes.
_TORCHRUN = "TORCHELASTIC_RUN_ID"

_Value = TypeVar("_Value")
#: Examples, and the tensors to which what they add up to is to be added.
Part: TypeAlias = "tuple[NDArray[np.int64], Sequence[Tensor]]"


class Share(Protocol):
    """Of values that several processes add up, the numbers whose sum this process has: it adds
    noise to these alone.
    """

    def own(self, values: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """The sums that are here of parts of `values`, and for each where it begins in its whole,
        and the whole's size.

        What is added to a sum is added to `values`, once they are complete.
        """
        ...

    def complete(self, values: Sequence[Tensor]) -> None:
        """Noise was added to the sums here: now `values` get what this process needs of its own and
        of the others'.
        """
        ...


@dataclass(frozen=True)
class World:
    """One process by itself. Training in several fills in these methods, and nothing else
    (`runs.ranks.Ranks`).

    Attributes:
        rank: the number of this process.
        size: how many processes there are.
        sharded: whether no bit of a sum depends on the number of processes: all share out what
            one process would compute at once (`deal`).
    """

    rank: int = 0
    size: int = 1
    sharded: bool = False

    def exact(self) -> World:
        """The same processes, with sums that do not depend on how many there are, to the last
        bit.
        """
        return replace(self, sharded=True)

    def own(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the examples that all processes drew alike, those that this one computes."""
        return examples

    def parts(self, examples: NDArray[np.int64], totals: Sequence[Tensor]) -> Iterator[Part]:
        """This process's examples, part by part, and the tensors to which each part is to be added,
        which are zero.

        After the last part `totals` hold the sums over this process's examples. The last of them is
        a count.
        """
        yield examples, totals

    def read(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the examples that all processes drew alike, those whose rows this one may need."""
        return examples if self.sharded else self.own(examples)

    def deal(
        self, chunks: Sequence[_Value], totals: Sequence[Tensor], said: bytes, *, alone: bool
    ) -> Iterator[tuple[_Value, Sequence[Tensor]]]:
        """This process's share of `chunks`, what is computed at once, and for each the tensors to
        which it is to be added.

        After the last one `totals` hold the sums over this process's chunks: halves are added up
        first, as `share` adds up the sums of neighbouring processes. So the sum over all chunks has
        the same bits whether one process has them all, or 2, 4 or 8 share them.

        Args:
            chunks: all of them, the same in all processes.
            totals: zeros; the last of them is a count.
            said: what the chunks are, for the processes to compare.
            alone: whether each chunk is summed up elsewhere before it is added.
        """
        yield from in_tree(chunks, totals, [], alone=alone)

    def part(self, expected: float) -> float:
        """Of so many expected examples, those whose sum may be in single precision alone: this
        process's.
        """
        return expected

    def share(self, totals: Sequence[Tensor], kinds: Sequence[torch.dtype]) -> Share | None:
        """Add up `totals` over all processes: the numbers that this process then has the sums of,
        in types `kinds`.

        None if `totals` hold them, all.
        """
        return None

    def any(self, here: bool) -> bool:
        """Whether it is so in one of the processes."""
        return here

    def total(self, numbers: Tensor) -> Tensor:
        """The sum of a few numbers over all processes, in all of them; double precision."""
        return numbers

    def scattered(self, rows: Tensor, kind: torch.dtype | None = None) -> Tensor:
        """Of `rows`, one for each process, the sum over all processes of this one's, in a type;
        shape (numbers,).
        """
        return rows[0]

    def noise(self, stream: NoiseStream) -> NoiseStream:
        """What this process draws noise from: every number of a sum has its place in it, the same
        for all processes.
        """
        return stream

    def once(self, action: Callable[[], _Value], what: str = "") -> _Value:
        """What `action` returns or raises in the first process, where alone it runs; in all of
        them.
        """
        return action()

    def in_turn(self, action: Callable[[], _Value], what: str = "") -> _Value:
        """Run `action` in the first process, and then, unless it raises there, in the others."""
        return action()

    def agreed(self, account: Account) -> Account:
        """`account`, charged in the first process before any other goes on; a refusal there is one
        in all.
        """
        return account

    def require_alike(self, what: str, value: bytes) -> None:
        """Raise in all processes unless they have the same `value`."""

    def require_same_steps(self, steps: int, *, compared: bool) -> None:
        """Raise in all processes unless they took as many steps.

        Args:
            steps: that this one took.
            compared: whether parameters are compared before the next one.
        """

    def require_same(self, facts: Mapping[str, str]) -> None:
        """Raise in all processes, naming what differs, unless they run the same code and have the
        same facts.
        """

    def align(self, streams: Streams) -> None:
        """Let `streams` be those of the first process, in place."""

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Let `tensors` be those of the first process, in place."""

    def leave(self, error: BaseException) -> None:
        """This process fails by itself: the others are not to wait for it."""

    def facts(self) -> dict[str, Any]:
        """For the certificate."""
        return {}


def halves(items: Sequence[_Value]) -> tuple[Sequence[_Value], Sequence[_Value]]:
    """The first half of `items`, which has one more where their number is odd, and the second."""
    middle = -(-len(items) // 2)
    return items[:middle], items[middle:]


def in_tree(
    items: Sequence[_Value], totals: Sequence[Tensor], spare: list[Any], *, alone: bool
) -> Iterator[tuple[_Value, Sequence[Tensor]]]:
    """Each item with the tensors to which it is to be added; `totals` then hold the sum of the
    sums of both halves.

    Args:
        items: what is added up.
        totals: zeros.
        spare: further such zeros, which are used again.
        alone: whether each item is summed up elsewhere before it is added.
    """
    if len(items) < 2:
        yield from ((item, totals) for item in items)
        return
    first, second = halves(items)
    yield from in_tree(first, totals, spare, alone=alone)
    if alone and len(second) == 1:  # the same addition, without a second place for sums
        yield second[0], totals
        return
    others = spare.pop() if spare else [total.new_zeros(total.shape) for total in totals]
    yield from in_tree(second, others, spare, alone=alone)
    for total, other in zip(totals, others, strict=True):
        total.add_(other)
        other.zero_()
    spare.append(others)


def may_be_several() -> bool:
    """Whether a launcher says that it started this process, by itself or among others."""
    return any(os.environ.get(name, "").strip() for name in (*_COUNTS, _TORCHRUN))


def require_one_process(
    what: str = "training",
    instead: str = (
        "train by DP-SGD under torchrun, in 1, 2, 4 or 8 processes (docs/distributed.md)"
    ),
) -> None:
    """Refuse `what` in one of several processes that a launcher started: before anything is spent.

    Raises:
        BadInput: the environment says that there are several.
    """
    for name in _COUNTS:
        processes = os.environ.get(name, "").strip()
        if processes.isdecimal() and int(processes) > 1:
            raise BadInput(
                f"{name} is {processes}: each of {processes} processes would train on the same "
                f"private rows and spend what one run is booked for. Here {what} takes one "
                f"process: start one, or {instead}",
                name=name,
            )
