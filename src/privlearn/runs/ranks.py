"""In data parallel training on torch.distributed all processes draw the same batch, and each
computes a part of it.

In floating point each process computes an equal part of the batch, and sums differ by rounding.
With noise on a grid the processes share out what one process would compute at once, chunk by chunk,
and the chunks' sums are added up as a tree of halves, in double precision: a sum has the same bits
whether its chunks lie on 1, 2, 4 or 8 processes. Of a model under FSDP2 rows belong to a fixed
number of logical shards, row i to shard i % 8: each is computed by itself, and sums are exact. Each
process has a slice of the sum, and adds noise to it: every number has its place in one keyed
stream. Then all processes are handed all slices.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from itertools import filterfalse
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

import privlearn
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.sharded.models import is_shard
from privlearn.core.devices import PROCESSOR, accelerator, on_processor
from privlearn.core.processes import (
    Part,
    Share,
    World,
    halves,
    in_tree,
    require_one_process,
)
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, PrivlearnError, ProcessLost, first_line
from privlearn.runs.process_group import (
    JOINED,
    LAUNCHED,
    LEFT,
    answered,
    join,
    leave,
    leave_at_exit,
)

#: Logical shards of the rows; where there are more processes, as many as these.
SHARDS = 8

_Value = TypeVar("_Value")


def launched() -> World:
    """The processes that torchrun started, or that the caller joined by `init_process_group`; or
    this one alone.

    A process group is begun where there is none: gloo, and NCCL for tensors on GPUs.

    Raises:
        BadInput: a launcher started several processes, and not by what torch.distributed needs; or
            not 1, 2, 4, 8, ...
    """
    if not dist.is_available():
        require_one_process()
        return World()
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if not dist.is_initialized():
        several = os.environ.get("WORLD_SIZE", "1").strip() not in ("", "1")
        if not (torchrun or several) or not all(os.environ.get(name) for name in LAUNCHED):
            require_one_process()
            return World()
        _require_size(int(os.environ["WORLD_SIZE"]))
        join()
    size = dist.get_world_size()
    if size == 1 and not torchrun:
        return World()
    _require_size(size)
    leave_at_exit()
    return Ranks(dist.get_rank(), size)


def _require_size(size: int) -> None:
    if size < 1 or size & (size - 1):
        raise BadInput(
            f"there are {size} processes: expected 1, 2, 4, 8 or a higher power of two, so that "
            f"each gets as many of the {SHARDS} shards of the rows. Start as many: torchrun "
            "--nproc-per-node 2"
        )


@final
@dataclass(frozen=True, repr=False)
class Ranks(World):
    """The processes of torch.distributed's default group.

    Guarantee: that of one process. The sample is drawn by all alike, and compared; each example is
    clipped in one process; the first process's ledger is charged before any process draws noise,
    and a refusal is one for all. Sums without noise, and the keys of random streams, go over the
    network: its links have to be trusted or encrypted.

    Attributes:
        batch: a digest of the batch that is computed, which `share` takes and compares: no sums are
            added up without it.
        sent: the shape, type and device of what `share` sent: as much is sent by a process that
            takes no further step.
    """

    batch: list[bytes] = field(default_factory=list, compare=False)
    sent: list[tuple[torch.Size, torch.dtype, torch.device]] = field(
        default_factory=list, compare=False
    )

    @property
    def shards(self) -> int:
        """How many there are."""
        return max(SHARDS, self.size)

    @property
    def _own_shards(self) -> range:
        each = self.shards // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def own(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the examples that all processes drew alike, those that this one computes: an equal
        part, or its shards.
        """
        if not self.sharded:  # or the processes would wait for the one with most examples
            part: NDArray[np.int64] = np.array_split(examples, self.size)[self.rank]
            return part
        shard = examples % self.shards
        local_examples: NDArray[np.int64] = examples[
            (shard >= self._own_shards.start) & (shard < self._own_shards.stop)
        ]
        return local_examples

    def exact(self) -> Ranks:
        """These processes, and sums that do not depend on how many there are."""
        return replace(self, sharded=True)

    def deal(
        self, chunks: Sequence[_Value], totals: Sequence[Tensor], said: bytes, *, alone: bool
    ) -> Iterator[tuple[_Value, Sequence[Tensor]]]:
        """This process's share of `chunks`: half of a half, and so on, until each process has
        one.
        """
        require_alike = self._compare_batches(said, totals)
        rank, size = self.rank, self.size
        while size > 1:
            size //= 2
            chunks = halves(chunks)[rank // size]
            rank %= size
        yield from in_tree(chunks, totals, [], alone=alone)
        require_alike()

    def parts(self, examples: NDArray[np.int64], totals: Sequence[Tensor]) -> Iterator[Part]:
        """This process's examples at once; or, of a model under FSDP2, shard by shard, of which
        sums are exact.
        """
        if self.sharded:
            require_alike = self._begin_comparing(_BATCH, examples.tobytes())
            for shard in self._own_shards:
                yield examples[examples % self.shards == shard], totals
        else:
            require_alike = self._compare_batches(examples.tobytes(), totals)
            yield self.own(examples), totals
        require_alike()

    def _compare_batches(self, said: bytes, totals: Sequence[Tensor]) -> Callable[[], None]:
        """Let the next `share` compare the batch; on a GPU, whose sums would have to be waited for,
        what is returned does.
        """
        self.batch[:] = [_digest(said)]
        if not on_processor(totals[0]):
            return self._begin_comparing(_BATCH, said)
        return lambda: None

    def part(self, expected: float) -> float:
        """Of so many expected examples, those that are added up before anything is sent."""
        return expected if self.sharded else expected / self.size

    def share(self, totals: Sequence[Tensor], kinds: Sequence[torch.dtype]) -> Share | None:
        """Add up `totals`, laid end to end, over all processes: the sums of this one's slice, as a
        balanced tree.
        """
        if self.size == 1:
            return None
        double = any(total.dtype == torch.float64 for total in totals[:-1])
        sizes, kind = (
            [total.numel() for total in totals],
            torch.float64 if double else torch.float32,
        )
        width = -(-sum(sizes) // self.size)
        rest = totals[0].new_zeros(width * self.size - sum(sizes), dtype=kind)
        said = torch.frombuffer(bytearray(self.batch.pop()), dtype=kind).to(rest.device)
        parts = [*(total.view(-1).to(kind) for total in totals), rest]
        rows = torch.cat(list(_rows_of(parts, width, said))).view(self.size, -1)
        received = self._exchanged(rows)
        if on_processor(rows):
            self.sent[:] = [(rows.shape, rows.dtype, rows.device)]
            _require_same_bits(_BATCH, list(received[:, width:].contiguous().view(torch.int64)))
        local_slice = Slice(self.rank * width, width, self.size)
        mine = _tree(list(received[:, :width]), torch.float64 if torch.float64 in kinds else kind)
        return replace(
            local_slice,
            sums=tuple(
                piece.to(kind)
                for piece, kind in zip(
                    torch.split(mine, local_slice.widths(sizes)), kinds, strict=False
                )
            ),
        )

    def scattered(self, rows: Tensor, kind: torch.dtype | None = None) -> Tensor:
        """Of `rows`, one for each process, the sum over all processes of this one's: a balanced
        tree.
        """
        return rows[0] if self.size == 1 else _tree(list(self._exchanged(rows)), kind)

    def _exchanged(self, rows: Tensor) -> Tensor:
        """What all processes have as this one's row, in their order."""
        sent = rows.reshape(-1)
        sent = sent.to(_control()) if on_processor(sent) else sent
        received = torch.empty_like(sent)
        with answered():
            dist.all_to_all_single(received, sent)
        return received.view(rows.shape).to(rows.device)

    def total(self, numbers: Tensor) -> Tensor:
        """The sum of a few numbers over all processes, in all of them: a balanced tree in double
        precision.
        """
        if self.size == 1:
            return numbers
        sent = numbers.to(_control(), torch.float64)
        every = [torch.empty_like(sent) for _ in range(self.size)]
        with answered():
            dist.all_gather(every, sent)
        return _tree(every).to(numbers.device)

    def any(self, here: bool) -> bool:
        """Whether it is so in one of the processes."""
        return bool(self.total(torch.tensor(float(here), dtype=torch.float64, device="cpu")))

    def once(self, action: Callable[[], _Value], what: str = "") -> _Value:
        """What `action` returns or raises in the first process, where alone it runs; in all of
        them.
        """
        outcome: tuple[Any, Exception | None] = None, None
        if self.rank == 0:
            try:
                outcome = action(), None
            except Exception as error:
                outcome = None, error
        value, failed = self._from_first(what, outcome) if self.size > 1 else outcome
        if failed is not None:
            failed.shared = True  # type: ignore[attr-defined]
            raise failed
        return value  # type: ignore[no-any-return]

    def _from_first(
        self, what: str, outcome: tuple[Any, Exception | None]
    ) -> tuple[Any, Exception | None]:
        """The outcome in the first process: one message of a fixed length where it returned None,
        as charges do.
        """
        message = np.frombuffer(
            _digest(what.encode()) + bytes([outcome != (None, None)] * 8), np.int64
        )
        first, box = (
            torch.tensor(message, device=_control()),
            [(outcome[0], outcome[1] and _plain(outcome[1]))],
        )
        with answered():
            dist.broadcast(first, 0)
            if first[-1]:
                dist.broadcast_object_list(box, 0, device=_control())
        if first[:-1].tolist() != message[:-1].tolist():
            raise ProcessLost(
                f"process 0 is elsewhere than process {self.rank}, which is at {what!r}: {_ALIKE}"
            )
        return box[0] if self.rank else outcome

    def in_turn(self, action: Callable[[], _Value], what: str = "") -> _Value:
        """Run `action` in the first process, and then, unless it raises there, in the others."""
        values: list[_Value] = []
        self.once(lambda: values.append(action()), what)
        return values[0] if values else action()

    def agreed(self, account: Account) -> Account:
        """`account`, charged in the first process before any other goes on; a refusal there is one
        in all.
        """
        return account if isinstance(account, AgreedAccount) else AgreedAccount(account, self)

    def require_alike(self, what: str, value: bytes) -> None:
        """Raise in all processes unless they have the same `value`."""
        self._begin_comparing(what, value)()

    def require_same_steps(self, steps: int, *, compared: bool) -> None:
        """Raise in all processes unless they took as many steps, also where another one takes the
        next: it hears so in place of a sum.
        """
        what, said = "the number of steps that were taken", _digest(f"{steps} steps".encode())
        if compared or not self.sent:
            self.require_alike(what, said)
        else:
            shape, kind, device = self.sent[0]
            rows = torch.zeros(shape, dtype=kind, device=device)
            end = torch.frombuffer(bytearray(said), dtype=rows.dtype).to(rows.device)
            rows[:, -len(end) :] = end
            ends = self._exchanged(rows)[:, -len(end) :].contiguous()
            _require_same_bits(what, list(ends.view(torch.int64)))

    def _begin_comparing(self, what: str, value: bytes) -> Callable[[], None]:
        """Begin to compare `value`; what is returned raises unless all processes have the same."""
        if self.size == 1:
            return lambda: None
        digest = torch.tensor(
            np.frombuffer(_digest(what.encode() + b"\0" + value), np.int64).copy(),
            device=_control(),
        )
        every = [torch.empty_like(digest) for _ in range(self.size)]
        with answered():
            work = dist.all_gather(every, digest, async_op=True)

        def require_alike() -> None:
            with answered():
                work.wait()
            _require_same_bits(what, every)

        return require_alike

    def require_same(self, facts: Mapping[str, str]) -> None:
        """Raise in all processes, naming what differs, unless they run the same code and have the
        same facts.
        """
        local_facts = {**facts, "code of privlearn": _code(), "number of processes": str(self.size)}
        every: list[Any] = [None] * self.size
        with answered():
            dist.all_gather_object(every, local_facts)
        for rank, theirs in enumerate(every):
            differ = [name for name in local_facts if theirs.get(name) != every[0].get(name)]
            if differ:
                from privlearn.runs.fact_texts import compare  # for a message alone

                what = compare(differ, theirs, every[0])
                raise BadInput(
                    f"process {rank} differs from process 0 in {what}: nothing was charged. Start "
                    "all with the same script, arguments, data and versions"
                )

    def align(self, streams: Streams) -> None:
        """Let `streams` be those of the first process, in place."""
        positions = self.once(streams.positions, "random streams")
        if self.rank:
            streams.move_to(positions)

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Let `tensors` be those of the first process, in place; of those that are sharded each
        keeps its shard.
        """
        self.require_alike(
            "shapes of tensors", str([(n, t.shape, t.dtype) for n, t in tensors.items()]).encode()
        )
        if self.size == 1:
            return
        for tensor in filterfalse(is_shard, tensors.values()):
            detached = tensor.detach()
            sent = (
                detached.to(_control()).contiguous()
                if on_processor(detached)
                else detached.contiguous()
            )
            with answered():
                dist.broadcast(sent, 0)
            if self.rank:
                detached.copy_(sent)

    def leave(self, error: BaseException) -> None:
        """This process fails by itself: the others are not to wait for it."""
        if self.size > 1 and dist.is_initialized() and not hasattr(error, "shared"):
            LEFT.extend(JOINED)
            leave()

    def facts(self) -> dict[str, Any]:
        """For the certificate."""
        return {"processes": self.size}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Slice:
    """Of values that are laid end to end, the numbers that one process adds up, and adds noise to,
    for all.

    Attributes:
        start: the first of them.
        width: how many each process has; the last ones may reach beyond the end.
        processes: how many there are.
        sums: of each value the sum of its numbers in the slice, shape (numbers,); it may have none.
    """

    start: int
    width: int
    processes: int
    sums: tuple[Tensor, ...] = ()

    def own(self, values: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """The sums in the slice, with their places in `values`, which may be the first of those
        that were added up.
        """
        sizes = [value.numel() for value in values]
        begins = (begin for begin, _ in self._in(sizes))
        return list(self.sums[: len(sizes)]), list(zip(begins, sizes, strict=True))

    def widths(self, sizes: Sequence[int]) -> list[int]:
        """How many numbers of values of these sizes lie in the slice; and of what is beyond
        them.
        """
        widths = [end - begin for begin, end in self._in(sizes)]
        return [*widths, self.width - sum(widths)]

    def _in(self, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        before = 0
        for size in sizes:
            begin, end = (
                min(max(at - before, 0), size) for at in (self.start, self.start + self.width)
            )
            yield begin, end
            before += size

    def complete(self, values: Sequence[Tensor]) -> None:
        """Hand out this slice, which has its noise, and take the others'; in the type of
        `values`.
        """
        sizes, kinds = [value.numel() for value in values], {value.dtype for value in values}
        kind = torch.float64 if torch.float64 in kinds else torch.float32
        parts = [part.to(kind) for part in self.sums[: len(sizes)]]
        sent = torch.cat([*parts, parts[0].new_zeros(self.widths(sizes)[-1])])
        sent = sent.to(_control()) if on_processor(sent) else sent
        every = sent.new_empty(self.processes, self.width)
        with answered():
            dist.all_gather(list(every), sent)
        whole = every.view(-1).to(values[0].device)
        for value, piece in zip(values, torch.split(whole[: sum(sizes)], sizes), strict=True):
            value.copy_(piece.view(value.shape))


def _rows_of(parts: Sequence[Tensor], width: int, end: Tensor) -> Iterator[Tensor]:
    """`parts`, laid end to end, cut into rows of this width, with `end` after each."""
    room = width
    for part in parts:
        while part.numel() >= room:
            yield from (part[:room], end)
            part, room = part[room:], width
        yield part
        room -= part.numel()


def _require_same_bits(what: str, every: Sequence[Tensor]) -> None:
    """Raise `ProcessLost` unless all processes have the same `what`, of which these are digests."""
    other = next(
        (rank for rank, theirs in enumerate(every) if not torch.equal(theirs, every[0])), None
    )
    if other is not None:
        raise ProcessLost(f"process {other} does not agree with process 0 on {what}: {_ALIKE}")


def _tree(rows: list[Tensor], kind: torch.dtype | None = None) -> Tensor:
    """The sum of a power of two of rows, neighbours first; of this type."""
    while len(rows) > 1:
        rows = [one.to(kind) + other for one, other in zip(rows[::2], rows[1::2], strict=True)]
    return rows[0]


_BATCH = "the batch that was drawn"
_ALIKE = "all have to run the same script with the same arguments. This run ends here"


def _control() -> torch.device:
    """Where small tensors are compared: the processor, unless the group knows accelerators only."""
    known = PROCESSOR.type in str(dist.get_backend_config())
    return PROCESSOR if known else accelerator() or PROCESSOR


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def _plain(error: Exception) -> PrivlearnError:
    """The error as others can be sent it."""
    if isinstance(error, PrivlearnError):
        return type(error)(str(error))
    return PrivlearnError(f"process 0 failed: {type(error).__name__}: {first_line(error)}")


@cache
def _code() -> str:
    """A digest of the package's source, and the versions of what it computes with."""
    root = Path(privlearn.__file__).parent
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()} ".encode() + path.read_bytes())
    return f"{digest.hexdigest()}, torch {torch.__version__}, numpy {version('numpy')}"


@final
@dataclass(frozen=True, eq=False)
class AgreedAccount:
    """An account that is charged in the first process, before the others go on; they charge theirs
    the same event.

    Attributes:
        account: this process's own.
        world: the processes.
    """

    account: Account
    world: World

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Add `event` in all processes, or refuse it in all of them."""
        self.world.in_turn(lambda: self.account.charge(event, adjacency), f"the charge of {event}")
