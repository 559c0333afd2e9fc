"""With a checkpoint a run that was interrupted goes on, and ends bit for bit where it would have
ended.

A checkpoint holds the keys and positions of the random streams. So batches and noise after it are
drawn again as they were, nothing is released twice with fresh noise, and a checkpoint is as secret
as the data: only its owner may read it, and it is deleted when the model is published.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from privlearn._checks import checked, positive, quoted, require_fit
from privlearn._storage import draft_of, loads, write_durably
from privlearn.core.clipping.losses import Loss
from privlearn.core.sampling import Indices
from privlearn.core.streams import Streams
from privlearn.errors import BadInput

#: What to do where a run can't go on.
BEGIN_ANEW = (
    "To begin anew, delete the checkpoint: only a ledger in a file still counts what it released"
)
_MAGIC = b"privlearn checkpoint 1\n"
#: Among the facts of a run: where it is computed.
DEVICE = "device"
_DIGEST = 64  # hexadecimal digits
_PLAIN = "plain"
_FIELDS = {"facts", "run", "epoch", "step", "streams", "origin", "parts", "fitted", "generators"}


@final
@dataclass(frozen=True, repr=False)
class Saved:
    """What a checkpoint holds: tensors by name, and plain values.

    Attributes:
        elsewhere: facts that a replay need not have in common with it; in no file.
    """

    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]
    elsewhere: tuple[str, ...] = ()


@checked
class Checkpoint:
    """The file in which a run keeps its progress. (`runs.transcript.Transcript` keeps all of it,
    for an auditor.)

    Args:
        path: the file. If it is there, the run in it is continued; else it is written before
            anything is drawn.
        every: seconds between one and the next; an interruption loses no more, and changes nothing.
    """

    def __init__(self, path: str | Path, *, every: float = 60.0) -> None:
        self.path, self._every = Path(path), positive("every", every)
        if not self.path.name:
            raise BadInput(
                f"the checkpoint is {quoted(str(path))}: expected the path of a file, such as "
                "runs/kept.pt"
            )
        self._last = time.monotonic()
        self._noting: int | None = None  # the file of notes, open while a run goes on

    @classmethod
    def of(cls, checkpoint: Checkpoint | str | Path | None) -> Checkpoint | None:
        """What a run was given, as a checkpoint; None: it keeps none."""
        require_fit("checkpoint", checkpoint, Checkpoint | str | Path | None)
        return cls(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint

    #: How many notes there are, once they were counted.
    _note_count: int | None = None
    #: Whether the state at which a run is left before its end is kept, too.
    keeps_ends = False
    #: Whether an auditor can take its steps again, one by one, from the states that it keeps.
    replayable = False

    @property
    def due(self) -> bool:
        """Whether it is time for the next."""
        return time.monotonic() - self._last >= self._every

    @property
    def left_at(self) -> int | None:
        """Of a recorded run that is taken again: the number of steps at which it was left; None: it
        was not.
        """
        return None

    @property
    def like(self) -> Saved | None:
        """A state of the run that a new one is to compute as; None: it may choose what is
        faster.
        """
        return None

    def read(self) -> Saved | None:
        """What was saved last; None if there is no such file.

        Raises:
            BadInput: it is damaged, or no checkpoint.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadInput(
                f"{self.path} cannot be read: {error.strerror}. A checkpoint can be read by its "
                "owner only"
            ) from error
        return unpacked(content, self.path)

    def write(self, saved: Saved) -> None:
        """Replace what was saved before; a crash leaves one of the two, whole.

        Raises:
            BadInput: it can't be written; what was saved before is still there.
        """
        write_durably(self.path, packed(saved), mode=0o600)
        self._last = time.monotonic()

    def streams(self) -> Streams | None:
        """The random streams of a new run, where the file decides."""
        return None

    def bind(self, streams: Streams, determined: Mapping[str, str]) -> None:
        """Let keys that outlive the call follow from the run, too, before anything of it is spent
        or drawn.

        Args:
            streams: of the run, from its beginning.
            determined: all that its sums follow from, by name.
        """
        streams.bind(determined)

    def record(self, examples: Indices, released: Sequence[Tensor]) -> None:
        """A step was taken on these examples, by what was released."""

    def facts(self) -> dict[str, Any]:
        """For the certificate."""
        return {}

    def note(self, digest: str) -> None:
        """Write down what the next step is taken with; it stays if the process is killed, not if
        the system crashes.
        """
        if (file := self._noting) is None:
            file = self._noting = os.open(
                self._notes, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600
            )
        os.write(file, f"{digest}\n".encode("ascii"))
        self._note_count = None if self._note_count is None else self._note_count + 1

    def notes(self) -> list[str]:
        """What was noted, a line for each step; a line that was not completed is left out."""
        if not self._notes.exists():
            return []
        *lines, _ = self._notes.read_text(encoding="ascii").split("\n")
        self._notes.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        return lines

    @property
    def steps_noted(self) -> int:
        """How many steps were noted, also after what was saved last."""
        if self._note_count is None:
            self._note_count = self._notes.read_bytes().count(b"\n") if self._notes.exists() else 0
        return self._note_count

    def forget_notes(self) -> None:
        """A run begins: what an earlier one left is deleted."""
        self._close()
        self._note_count = None
        self._notes.unlink(missing_ok=True)
        self._marks.unlink(missing_ok=True)

    def mark(self, marks: Mapping[str, str]) -> None:
        """Write down what a resumed run has to know of what happened since the last checkpoint."""
        if self.path.parent.is_dir():  # a deleted folder has no run to resume
            write_durably(self._marks, json.dumps(marks).encode(), mode=0o600)

    def marks(self) -> dict[str, str]:
        """What was written down so.

        Raises:
            BadInput: it is damaged.
        """
        try:
            return {str(name): str(text) for name, text in loads(self._marks.read_bytes()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise BadInput(
                f"{self._marks} is damaged: it says whether anything can be claimed for the run. "
                f"{BEGIN_ANEW}"
            ) from error

    def _close(self) -> None:
        """Let go of what is open while a run goes on."""
        if self._noting is not None:
            os.close(self._noting)
        self._noting = None

    @property
    def _notes(self) -> Path:
        return self.path.with_name(f"{self.path.name}.steps")

    @property
    def _marks(self) -> Path:
        return self.path.with_name(f"{self.path.name}.marks")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which no other process goes on with the run.

        Raises:
            BadInput: one does, or the folder can't be written to.
        """
        lock = FileLock(self._lock, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise BadInput(
                f"the run in {self.path} is under way, in another process or in a run of this one "
                "that was not closed: let it end, or call its close(), as `with run:` does"
            ) from error
        except OSError as error:
            raise BadInput(f"{self._lock} cannot be written: {error.strerror or error}") from error
        try:
            yield
        finally:
            self._close()
            lock.release()

    @property
    def _lock(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    def delete(self) -> None:
        """Remove the file: from then on the run's noise can't be drawn again.

        Raises:
            BadInput: it could not be removed.
        """
        self._close()
        try:
            for path in (draft_of(self.path), self.path, self._notes, self._marks, self._lock):
                path.unlink(missing_ok=True)
            delete_shards(self.path)
        except OSError as error:
            raise BadInput(
                f"{self.path} cannot be deleted: {error.strerror}. Delete it yourself: anyone who "
                "reads it can take the noise off"
            ) from error


def delete_shards(path: Path, keep: str = "") -> None:
    """Remove the folders of shards (`runs.shards`) beside `path`, but for the one that is to be
    kept.
    """
    for folder in path.parent.glob(f"{path.name}.shards.*"):
        if folder.name != keep:
            shutil.rmtree(folder, ignore_errors=True)


def streams_for(checkpoint: Checkpoint | str | Path | None) -> Streams:
    """The random streams of a new run: those that its checkpoint decides, else new ones."""
    bound = checkpoint.streams() if isinstance(checkpoint, Checkpoint) else None
    return bound or Streams.new()


def run_of(file: Checkpoint) -> Saved | None:
    """What a file holds of a run in steps; None if there is no such file.

    Raises:
        BadInput: it is damaged, or holds something else.
    """
    saved = file.read()
    if saved and not saved.plain.keys() >= _FIELDS:
        raise BadInput(
            f"{file.path} is not a checkpoint of privlearn: it does not say where the run was"
        )
    return saved


def packed(saved: Saved) -> bytes:
    """The content of a checkpoint's file."""
    plain = torch.frombuffer(bytearray(json.dumps(saved.plain).encode()), dtype=torch.uint8)
    tensors = {
        name: value.detach().cpu().contiguous().clone() for name, value in saved.tensors.items()
    }
    body = save_tensors({**tensors, _PLAIN: plain})
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def head_of(content: bytes) -> bytes:
    """What the content of a checkpoint begins with: its form, and a digest of the rest, which
    `unpacked` checks.
    """
    return content[: len(_MAGIC) + _DIGEST + 1]


def unpacked(content: bytes, path: Path) -> Saved:
    """What the file at `path` holds.

    Raises:
        BadInput: it is damaged, or no checkpoint.
    """
    head = head_of(content)
    body = content[len(head) :]
    if head != _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise BadInput(
            f"{path} is not a checkpoint of this version of privlearn, or it is damaged. "
            f"{BEGIN_ANEW}"
        )
    try:
        tensors = load_tensors(body)
        plain = loads(bytes(tensors.pop(_PLAIN).tolist()))
        if not isinstance(plain, dict):
            raise ValueError("it holds no fields by name")
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{path} is not a checkpoint of privlearn: {error}") from error
    return Saved(tensors, plain)


def flattened(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Plain JSON values, with tensors put aside under names: state dicts without pickling.

    Raises:
        BadInput: something else.
    """
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {
            "items": [
                [key, flattened(part, f"{name}.{key}", tensors)] for key, part in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        return [flattened(part, f"{name}.{n}", tensors) for n, part in enumerate(value)]
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"the {name.partition('.')[0]} keeps values that can't be saved without pickling: "
            f"{error}. Train without a checkpoint, or with another optimizer"
        ) from error
    return value


def whole(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `flattened`; tuples come back as lists."""
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: whole(part, tensors) for key, part in value["items"]}
    return [whole(part, tensors) for part in value] if isinstance(value, list) else value


def facts(
    network: nn.Module,
    loss: Loss | None,
    data: Sequence[Tensor],
    persons: Tensor | None,
    validation: tuple[Tensor, Tensor] | None,
    transform: object = None,
    **others: Any,
) -> dict[str, str]:
    """What a run must have in common with a checkpoint to go on from it, as texts to compare.

    Args:
        network: the network.
        loss: the loss.
        data: the rows.
        persons: the rows of each person, where persons are examples.
        validation: public validation rows.
        transform: how copies of examples are changed.
        others: settings, by name.
    """
    shapes = {
        name: (tuple(value.shape), str(value.dtype)) for name, value in network.state_dict().items()
    }
    return {
        **{name.replace("_", " "): whole_text(value) for name, value in others.items()},
        "network": f"{network} {shapes}",
        "loss": _name(loss),
        "copies": _name(transform),
        DEVICE: next(network.parameters()).device.type,  # processes have one each
        "data": digest_of(*data, *([] if persons is None else [persons])),
        "validation rows": digest_of(*(validation or ())),
        **facts_of_this_process(),
    }


def facts_of_this_process() -> dict[str, str]:
    """What the last bits of sums depend on, besides the processor."""
    return {
        "versions": f"privlearn {version('privlearn')}, torch {torch.__version__}",
        "number of threads": str(torch.get_num_threads()),
    }


def require_same_run(saved: Saved, now: dict[str, str]) -> None:
    """Refuse to go on with other data or settings: the same noise on other sums would give both
    away.

    Raises:
        BadInput: naming what differs.
    """
    then = {**saved.plain["facts"], **{name: now.get(name) for name in saved.elsewhere}}
    if then != now:
        from privlearn.runs.fact_texts import differences  # for the words of a refusal

        raise BadInput(
            f"the checkpoint is of another run: {differences(then, now)}. Expected what it began "
            f"with. {BEGIN_ANEW}"
        )


def whole_text(value: object) -> str:
    """All of a value as text: every field of a plan, and of what is in it, whose reprs are
    summaries.
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(whole_text, value))}]"
    if isinstance(value, Tensor | np.ndarray):  # whose reprs leave out numbers
        return f"{type(value).__name__} {digest_of(torch.as_tensor(value, device='cpu'))}"
    if not is_dataclass(value) or isinstance(value, type):
        return str(value) if isinstance(value, str) else repr(value)
    texts = (f"{field.name}={whole_text(getattr(value, field.name))}" for field in fields(value))
    return f"{type(value).__name__}({', '.join(texts)})"


def _name(value: object) -> str:
    """A module or a text as it is, a function by its name: two of one name can't be
    distinguished.
    """
    if value is None or isinstance(value, nn.Module | str):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def digest_of(*tensors: Tensor) -> str:
    """The SHA-256 of tensors with their shapes and types, as secret as they are."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
