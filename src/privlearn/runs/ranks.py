"""Data parallel training on torch.distributed: all processes draw the same batch, and each computes its shards of it.

Rows belong to a fixed number of logical shards, row i to shard i % 8. With noise on a grid each shard's clipped sum is
computed by itself, and these sums are added up as a balanced tree, in double precision: a sum has the same bits whether
its shards lie on 1, 2, 4 or 8 processes. In floating point a process computes its shards at once, which is faster, and
sums differ by rounding. Each process has a slice of the sum, and adds noise to it: every number has its place in one
keyed stream. Then all processes are handed all slices.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from itertools import filterfalse
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import privlearn
from privlearn.accounting.events import Event
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Account
from privlearn.clipping.sharded.groups import is_shard
from privlearn.errors import BadInput, PrivlearnError, ProcessLost, first_line
from privlearn.streams import Streams
from privlearn.world import Part, Share, World, require_one_process

#: Logical shards of the rows; where there are more processes, as many as these.
SHARDS = 8
#: What torchrun tells each process.
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_Value = TypeVar("_Value")


def launched() -> World:
    """The processes that torchrun started, or that the caller joined by `init_process_group`; or this one alone.

    A process group is begun where there is none: gloo, and NCCL for tensors on GPUs.

    Raises:
        BadInput: a launcher started several processes, and not by what torch.distributed needs; or not 1, 2, 4, 8, ...
    """
    if not dist.is_available():
        require_one_process()
        return World()
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if not dist.is_initialized():
        several = os.environ.get("WORLD_SIZE", "1").strip() not in ("", "1")
        if not (torchrun or several) or not all(os.environ.get(name) for name in _LAUNCHED):
            require_one_process()
            return World()
        _require_size(int(os.environ["WORLD_SIZE"]))
        _join()
    size = dist.get_world_size()
    if size == 1 and not torchrun:
        return World()
    _require_size(size)
    _leave_at_exit()
    return Ranks(dist.get_rank(), size)


def _join() -> None:
    if _LEFT:
        raise ProcessLost("this process left the others after an error: start all of them again")
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    if gpus and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    with _answered():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    _leave_on_errors()
    _JOINED.append(True)


def _leave_at_exit() -> None:
    """Also a group that the caller, or another library, began and did not leave."""
    atexit.unregister(_end)
    atexit.register(_end)


def _leave_on_errors() -> None:
    """Let the others hear of an error that ends the script before anything else is done with it, by a debugger say."""
    handler = sys.excepthook

    def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if dist.is_initialized():
            _LEFT.append(True)
            dist.destroy_process_group()
        handler(kind, error, trace)

    if dist.get_world_size() > 1:
        sys.excepthook = leave


def first_to_fail() -> bool:
    """Whether this process is the first of those that torchrun started to ask: the one that says why they end."""
    names = [os.environ.get(name, "") for name in _LAUNCHED]
    if not all(names) or not names[1].isdecimal() or int(names[1]) < 2:
        return True
    if not _JOINED:
        return names[0] == "0"  # it is the same in all of them
    run = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    try:
        store = TCPStore(names[2], int(names[3]), is_master=False, timeout=timedelta(seconds=10))
        return store.add("/".join(["privlearn", "failed", *run]), 1) == 1
    except RuntimeError:  # the store is gone, with the process that had it
        return True


def _end() -> None:
    """Threads of a group that is still there abort the interpreter's end, also if another process has left before."""
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.barrier(async_op=True).wait(timeout=timedelta(seconds=30))
        dist.destroy_process_group()
        time.sleep(0.2)  # gloo's threads let go of their last tensors, for which they need the interpreter's lock


def _require_size(size: int) -> None:
    if size < 1 or size & (size - 1):
        raise BadInput(
            f"there are {size} processes: expected 1, 2, 4, 8 or a higher power of two, so that each gets as many of "
            f"the {SHARDS} shards of the rows. Start as many: torchrun --nproc-per-node 2"
        )


@contextmanager
def _answered() -> Iterator[None]:
    """A block in which others have to answer."""
    try:
        yield
    except RuntimeError as error:  # of all kinds of torch.distributed
        raise ProcessLost(
            "another process of this run ended, or did not answer in time: all end here. Start all of them again; a "
            "run with a checkpoint goes on from it, on as many processes or others"
        ) from error


#: Whether this process joined a group here.
_JOINED: list[bool] = []
#: Whether this process left the group after an error of its own.
_LEFT: list[bool] = []


@final
@dataclass(frozen=True)
class Ranks(World):
    """The processes of torch.distributed's default group.

    Guarantee: that of one process. The sample is drawn by all alike, and compared; each example is clipped in one
    process; the first process's ledger is charged before any process draws noise, and a refusal is one for all.
    Sums without noise, and the keys of random streams, go over the network: its links have to be trusted or encrypted.
    """

    @property
    def shards(self) -> int:
        """How many there are."""
        return max(SHARDS, self.size)

    @property
    def _own_shards(self) -> range:
        each = self.shards // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def own(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the examples that all processes drew alike, those that this one computes."""
        shard = examples % self.shards
        own: NDArray[np.int64] = examples[(shard >= self._own_shards.start) & (shard < self._own_shards.stop)]
        return own

    def exact(self) -> Ranks:
        """These processes, and sums shard by shard."""
        return replace(self, sharded=True)

    def parts(self, examples: NDArray[np.int64], totals: Sequence[Tensor]) -> Iterator[Part]:
        """This process's examples at once; or shard by shard: an empty shard, too, is a part of the sum."""
        self.require_alike("the batch that was drawn", examples.tobytes())
        if self.sharded:
            sums: list[Sequence[Tensor]] = []  # of neighbouring shards: 1, 2, 4, ... of them
            spare = [totals]
            for place, shard in enumerate(self._own_shards, start=1):
                sums.append(spare.pop() if spare else [torch.zeros_like(total) for total in totals])
                yield examples[examples % self.shards == shard], sums[-1]
                for _ in range((place & -place).bit_length() - 1):
                    spare.append(sums.pop())
                    torch._foreach_add_(list(sums[-1]), list(spare[-1]))
                    torch._foreach_zero_(list(spare[-1]))
        else:
            yield self.own(examples), totals
        self._over_processes(totals)

    def _over_processes(self, totals: Sequence[Tensor]) -> None:
        """Add up `totals` over all processes, as a balanced tree, in this process's slice; zeros elsewhere."""
        if self.size == 1:
            return
        double = any(total.dtype == torch.float64 for total in totals[:-1])
        kind, size = torch.float64 if double else torch.float32, sum(total.numel() for total in totals)
        width = -(-size // self.size)
        rest = totals[0].new_zeros(width * self.size - size, dtype=kind)
        whole = torch.cat([*(total.view(-1).to(kind) for total in totals), rest])
        mine = self.scattered(whole.view(self.size, width))
        torch._foreach_zero_(list(totals))
        parts, _ = Slice(self.rank * width, width, self.size).own(totals)
        for part, piece in zip(parts, torch.split(mine[: sum(map(len, parts))], list(map(len, parts))), strict=True):
            part.copy_(piece)

    def scattered(self, rows: Tensor) -> Tensor:
        """Of `rows`, one for each process, the sum over all processes of this one's: a balanced tree."""
        if self.size == 1:
            return rows[0]
        sent = rows.reshape(-1) if rows.is_cuda else rows.reshape(-1).to(_control())
        received = torch.empty_like(sent)
        with _answered():
            dist.all_to_all_single(received, sent)
        return _tree(list(received.view(rows.shape))).to(rows.device)

    def total(self, own: Tensor) -> Tensor:
        """The sum of a few numbers over all processes, in all of them: a balanced tree in double precision."""
        if self.size == 1:
            return own
        sent = own.to(_control(), torch.float64)
        every = [torch.empty_like(sent) for _ in range(self.size)]
        with _answered():
            dist.all_gather(every, sent)
        return _tree(every).to(own.device)

    def any(self, here: bool) -> bool:
        """Whether it is so in one of the processes."""
        return bool(self.total(torch.tensor(float(here), dtype=torch.float64)))

    def share(self, totals: Sequence[Tensor]) -> Share | None:
        """The slice of `totals`, laid end to end, that this process adds up."""
        width = -(-sum(total.numel() for total in totals) // self.size)
        plain = not self.sharded and all(total.dtype == torch.float32 for total in totals[:-1])
        return Slice(self.rank * width, width, self.size, plain) if self.size > 1 else None

    def once(self, action: Callable[[], _Value], what: str = "") -> _Value:
        """What `action` returns or raises in the first process, where alone it runs; in all of them."""
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

    def _from_first(self, what: str, outcome: tuple[Any, Exception | None]) -> tuple[Any, Exception | None]:
        """The outcome in the first process: one message of a fixed length where it returned None, as charges do."""
        own = np.frombuffer(_digest(what.encode()) + bytes([outcome != (None, None)] * 8), np.int64)
        first, box = torch.tensor(own, device=_control()), [(outcome[0], outcome[1] and _plain(outcome[1]))]
        with _answered():
            dist.broadcast(first, 0)
            if first[-1]:
                dist.broadcast_object_list(box, 0, device=_control())
        if first[:-1].tolist() != own[:-1].tolist():
            raise ProcessLost(f"process 0 is elsewhere than process {self.rank}, which is at {what!r}: {_ALIKE}")
        return box[0] if self.rank else outcome

    def in_turn(self, action: Callable[[], _Value], what: str = "") -> _Value:
        """Run `action` in the first process, and then, unless it raises there, in the others."""
        own: list[_Value] = []
        self.once(lambda: own.append(action()), what)
        return own[0] if own else action()

    def agreed(self, account: Account) -> Account:
        """`account`, charged in the first process before any other goes on; a refusal there is one in all."""
        return account if isinstance(account, AgreedAccount) else AgreedAccount(account, self)

    def require_alike(self, what: str, value: bytes) -> None:
        """Raise in all processes unless they have the same `value`."""
        if self.size == 1:
            return
        own = torch.tensor(np.frombuffer(_digest(what.encode() + b"\0" + value), np.int64).copy(), device=_control())
        every = [torch.empty_like(own) for _ in range(self.size)]
        with _answered():
            dist.all_gather(every, own)
        other = next((rank for rank, theirs in enumerate(every) if not torch.equal(theirs, every[0])), None)
        if other is not None:
            raise ProcessLost(f"process {other} does not agree with process 0 on {what}: {_ALIKE}")

    def require_same(self, facts: Mapping[str, str]) -> None:
        """Raise in all processes, naming what differs, unless they run the same code and have the same facts."""
        own = {**facts, "code of privlearn": _code(), "number of processes": str(self.size)}
        every: list[Any] = [None] * self.size
        with _answered():
            dist.all_gather_object(every, own)
        for rank, theirs in enumerate(every):
            differ = [name for name in own if theirs.get(name) != every[0].get(name)]
            if differ:
                raise BadInput(
                    f"process {rank} has another {' and another '.join(differ[:3])} than process 0: nothing was "
                    "charged. Start all with the same script, arguments, data and versions"
                )

    def align(self, streams: Streams) -> None:
        """Let `streams` be those of the first process, in place."""
        positions = self.once(streams.positions, "random streams")
        if self.rank:
            streams.move_to(positions)

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Let `tensors` be those of the first process, in place; of those that are sharded each keeps its shard."""
        self.require_alike("shapes of tensors", str([(n, t.shape, t.dtype) for n, t in tensors.items()]).encode())
        if self.size == 1:
            return
        for tensor in filterfalse(is_shard, tensors.values()):
            own = tensor.detach()
            sent = own.to(_control()).contiguous() if own.device.type == "cpu" else own.contiguous()
            with _answered():
                dist.broadcast(sent, 0)
            if self.rank:
                own.copy_(sent)

    def leave(self, error: BaseException) -> None:
        """This process fails by itself: the others are not to wait for it."""
        if self.size > 1 and dist.is_initialized() and not hasattr(error, "shared"):
            _LEFT.extend(_JOINED)
            dist.destroy_process_group()

    def facts(self) -> dict[str, Any]:
        """For the certificate."""
        return {"processes": self.size}


@final
@dataclass(frozen=True)
class Slice:
    """Of values that are laid end to end, the numbers that one process adds up, and adds noise to, for all.

    Attributes:
        start: the first of them.
        width: how many each process has; the last ones may reach beyond the end.
        processes: how many there are.
        plain: whether they are handed out in single precision, which is that of the parameters.
    """

    start: int
    width: int
    processes: int
    plain: bool = False

    def own(self, values: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """The parts of `values` in the slice, as views, with their places; a value that lies outside has an empty one.

        Shapes: of each part (numbers,).
        """
        parts, places, before = [], [], 0
        for value in values:
            size = value.numel()
            begin, end = (min(max(at - before, 0), size) for at in (self.start, self.start + self.width))
            parts.append(value.view(-1)[begin:end])
            places.append((begin, size))
            before += size
        return parts, places

    def complete(self, values: Sequence[Tensor]) -> None:
        """Hand out this slice, which has its noise, and take the others'."""
        (dtype, *more) = {torch.float32} if self.plain else {value.dtype for value in values}
        own = torch.cat([part.to(torch.float64 if more else dtype) for part in self.own(values)[0]])
        sent = torch.cat([own, own.new_zeros(self.width - len(own))]).to(own.device if own.is_cuda else _control())
        every = sent.new_empty(self.processes, self.width)
        with _answered():
            dist.all_gather(list(every), sent)
        whole, sizes = every.view(-1).to(own.device), [value.numel() for value in values]
        for value, piece in zip(values, torch.split(whole[: sum(sizes)], sizes), strict=True):
            value.copy_(piece.view(value.shape))


def _tree(rows: list[Tensor]) -> Tensor:
    """The sum of a power of two of rows, neighbours first."""
    while len(rows) > 1:
        rows = [one + other for one, other in zip(rows[::2], rows[1::2], strict=True)]
    return rows[0]


_ALIKE = "all have to run the same script with the same arguments. This run ends here"


def _control() -> torch.device:
    """Where small tensors are compared: the processor, unless the group knows GPUs only."""
    return torch.device("cpu" if "cpu" in str(dist.get_backend_config()) else "cuda")


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
        digest.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    return f"{digest.hexdigest()}, torch {torch.__version__}, numpy {version('numpy')}"


@final
@dataclass(frozen=True, eq=False)
class AgreedAccount:
    """An account that is charged in the first process, before the others go on; they charge theirs the same event.

    Attributes:
        account: this process's own.
        world: the processes.
    """

    account: Account
    world: World

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Add `event` in all processes, or refuse it in all of them."""
        self.world.in_turn(lambda: self.account.charge(event, adjacency), f"the charge of {event}")
