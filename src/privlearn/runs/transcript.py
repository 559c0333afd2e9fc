"""A transcript: what a run was bound to before it began, and what it was every few steps, for an
auditor to check.

All that it states are keyed digests: without the secret they tell nothing of rows, batches or keys.
With the secret and the data any part of the run can be computed again (`auditing.replay`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from privlearn._checks import count
from privlearn._storage import canonical, loads, write_durably
from privlearn.core.sampling import Indices
from privlearn.core.streams import CIPHER, Streams
from privlearn.errors import BadInput, first_line
from privlearn.runs.checkpoint import Checkpoint, Saved, head_of, packed, unpacked
from privlearn.runs.fact_texts import differences

COMMITMENT, SECRET, LINES, STATES = "commitment.json", "secret.json", "transcript.jsonl", "states"
_FORMAT = "privlearn-commitment"
_LEAST = 16  # bytes of a secret
#: The fields of the first line, of a step's and of a state's.
_HEAD = {"commitment", "challenge", "steps", "discrete"}
_STEP, _STATE = {"step", "sample", "released"}, {"state", "steps", "digest"}
# made once: `json.dumps` would make one for each step
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@final
class CommittedSecret:
    """The secret that a commitment is bound to: keys of a run's streams, and of all digests, follow
    from it.

    Args:
        folder: where `auditing.commit` wrote it.

    Attributes:
        rows: the commitment to the rows: the root of a tree of their salted digests.
        run: all that the sums of the run follow from, by name: its plan, options, data, code and
            first state.
        commitment: the digest of all that was committed to.

    Raises:
        BadInput: nothing was committed to there, or the secret or the run is another one.
    """

    def __init__(self, folder: Path) -> None:
        try:
            commitment, opening = (
                loads((folder / name).read_bytes()) for name in (COMMITMENT, SECRET)
            )
            self.secret = secret = bytes.fromhex(opening["secret"])
            _require(_LEAST <= len(secret) <= 64, f"the secret has {len(secret)} bytes")
            self.rows, committed = str(commitment["rows"]), str(commitment["secret"])
            _require(
                "run" in commitment, "an earlier version made it, for the rows alone. Commit anew"
            )
            self.run, run = (
                {str(name): str(text) for name, text in opening["run"].items()},
                str(commitment["run"]),
            )
        except FileNotFoundError as error:
            raise BadInput(
                f"{folder} holds no commitment: commit to the rows first, "
                "privlearn.auditing.commit(data, folder) or `privlearn commit`"
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"the commitment in {folder} cannot be read: {error}") from error
        if (
            hashlib.sha256(secret).hexdigest() != committed
            or _digest_of_run(secret, self.run) != run
        ):
            raise BadInput(
                f"the secret in {folder} is not the one that was committed to: get the unchanged "
                "folder"
            )
        self.commitment = hashlib.sha256(canonical(commitment)).hexdigest()

    @staticmethod
    def write(folder: Path, rows: str, secret: bytes, run: Mapping[str, str]) -> None:
        """Bind a run to rows, a secret, and all that its sums follow from: a file for the auditor,
        one to be kept.
        """
        of_run = _digest_of_run(secret, run)
        commitment = {
            "format": _FORMAT,
            "rows": rows,
            "run": of_run,
            "secret": hashlib.sha256(secret).hexdigest(),
        }
        opening = {"secret": secret.hex(), "run": dict(run)}
        write_durably(folder / SECRET, json.dumps(opening).encode() + b"\n", mode=0o600)
        write_durably(folder / COMMITMENT, json.dumps(commitment, indent=1).encode() + b"\n")

    def streams(self, challenge: bytes, discrete: bool) -> Streams:
        """The random streams of the run, from their beginning: no noise is drawn before they are
        bound to the run.

        The keys that they will have follow from the secret, from the commitment to rows and run,
        and from a value that was not known when these were fixed: none can be chosen for the noise
        that it makes. What is drawn before, such as initial weights, follows from the secret alone,
        and is a part of what was committed to.
        """
        key = hashlib.blake2b(
            bytes.fromhex(self.commitment) + challenge, key=self.secret, person=b"streams"
        ).digest()
        cipher = self.run.get(CIPHER, "aes")
        return first_streams(self.secret, key, discrete=discrete, cipher=cipher)

    def bound(self, challenge: bytes, discrete: bool) -> Streams:
        """The random streams with the keys that the run draws its noise by."""
        streams = self.streams(challenge, discrete)
        streams.bind(self.run)
        return streams

    def digest(self, what: bytes, *parts: bytes | memoryview) -> str:
        """A digest that tells nothing without the secret."""
        digest = hmac.new(self.secret, what, hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.hexdigest()

    def step(self, number: int, examples: Indices, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """What the transcript says of a step: the batch, and what was released."""
        rows = np.ascontiguousarray(examples, dtype=np.int64).data
        sample = self.digest(b"sample ", number.to_bytes(8, "big"), rows)
        return {
            "step": number,
            "sample": sample,
            "released": self.digest(b"released ", *map(_bits, tensors)),
        }


@final
class Transcript(Checkpoint):
    """A checkpoint that keeps all states of a run, not only the last, with a digest of each: to be
    given as one.

    An interrupted run goes on from its last state. Publishing deletes nothing: the folder holds the
    keys of the noise and is as secret as the data. It is for the auditor, who checks it by
    `auditing.replay`.

    Args:
        folder: where `auditing.commit` was called, and no run was recorded yet.
        challenge: a public value in hexadecimal digits, fixed after the auditor had the commitment:
            by the auditor, or by a public source of randomness. Empty: nothing keeps the publisher
            from trying secrets until the noise suits.
        steps: how many steps lie between two states. An auditor takes all of them again, or none.
        discrete: whether releases make their noise on a grid (`Streams.new`).

    Raises:
        BadInput: nothing was committed to.
    """

    replayable = True

    def __init__(
        self, folder: str | Path, *, challenge: str = "", steps: int = 50, discrete: bool = False
    ) -> None:
        self.folder = Path(folder)
        super().__init__(self.folder / LINES)
        self._between = count("steps", steps)
        self._challenge, self._discrete = _read_challenge(challenge), discrete
        self._secret = CommittedSecret(self.folder)
        self._key = self._secret.bound(self._challenge, discrete).noise.key.hex()
        self._lines: list[str] = []  # of steps since the last state
        self._states, self._taken, self._since = 0, 0, 0
        self._writing: Thread | None = None  # puts a state on disk
        self._failed: Exception | None = None

    #: What is published of a run that was left early is compared with the state that it was left
    #: in.
    keeps_ends = True

    @property
    def due(self) -> bool:
        """Whether it is time for the next state."""
        return self._since >= self._between

    def streams(self) -> Streams:
        """The random streams of the run, from their beginning; they are bound when it begins."""
        return self._secret.streams(self._challenge, self._discrete)

    def bind(self, streams: Streams, determined: Mapping[str, str]) -> None:
        """Let the keys follow from the run that was committed to.

        Raises:
            BadInput: the run is another one: the challenge was given for one run.
        """
        require_committed(self._secret.run, determined)
        streams.bind(determined)

    def facts(self) -> dict[str, Any]:
        """For the certificate: what the run was bound to, and the digest of the transcript."""
        self._finish()
        header = {"commitment": self._secret.commitment, "challenge": self._challenge.hex()}
        return {
            "transcript": header | {"digest": hashlib.sha256(self.path.read_bytes()).hexdigest()}
        }

    def read(self) -> Saved | None:
        """The last state of an interrupted run; None if none was begun.

        Raises:
            BadInput: a run ended here; or the transcript is damaged.
        """
        if not self.path.exists():
            return None
        if self._end_marker.exists():
            raise BadInput(
                f"{self.folder} holds the transcript of a run that is over, whose keys are used "
                "up: commit anew, in another folder"
            )
        recording = Recording(self.folder)
        if recording.challenge != self._challenge.hex() or recording.between != self._between:
            raise BadInput(
                "the interrupted run was recorded with another challenge, or other steps between "
                "states"
            )
        self._states, self._taken = len(recording.states), recording.taken[-1]
        self._lines, self._since = [], 0
        write_durably(self.path, b"".join(recording.complete))
        return recording.state(len(recording.states) - 1)

    def write(self, saved: Saved) -> None:
        """Add a state.

        Raises:
            BadInput: the run draws from other streams, or its model is sharded; or it can't be
                written.
        """
        if saved.plain["streams"]["noise"]["key"] != self._key:
            raise BadInput(
                "a run with a transcript draws from the streams that follow from its commitment: "
                "leave out streams and seed"
            )
        if "shards" in saved.plain:
            raise BadInput(
                "a run of a model under FSDP2 cannot be recorded: its states lie in the shards of "
                "all processes. Train the whole model in each process, or without a transcript"
            )
        content = packed(saved)
        # of all tensors in it, weights among them
        digest = self._secret.digest(b"state ", head_of(content))
        line = {"state": self._states, "steps": self._taken, "digest": digest}
        if not self._states:
            header = {"commitment": self._secret.commitment, "challenge": self._challenge.hex()}
            self._lines.insert(
                0, _line(header | {"steps": self._between, "discrete": self._discrete})
            )
        self._finish()
        self._writing = Thread(
            target=self._put, args=(self._states, content, "".join([*self._lines, _line(line)]))
        )
        self._writing.start()
        if not self._states:
            self._finish()  # before anything is drawn
        self._lines, self._since, self._states = [], 0, self._states + 1

    def _put(self, number: int, content: bytes, lines: str) -> None:
        """Put a state on disk, and then its line and those of the steps before it: training goes on
        meanwhile.
        """
        try:
            write_durably(state_path(self.folder, number), content, mode=0o600)
            with self.path.open("a", encoding="ascii") as file:
                file.write(lines)
        except (BadInput, OSError) as error:
            self._failed = error

    def _finish(self) -> None:
        """Wait for what is being written, and raise what came of it."""
        if self._writing:
            self._writing.join()
        if self._failed:
            raise self._failed

    def record(self, examples: Indices, released: Sequence[Tensor]) -> None:
        """Note a step: its batch, and what was released."""
        self._lines.append(_line(self._secret.step(self._taken, examples, released)))
        self._taken, self._since = self._taken + 1, self._since + 1

    def delete(self) -> None:
        """The run is over: nothing can be added, and its keys are not used again."""
        self._close()
        if self.path.exists():
            self._end_marker.touch()

    def _close(self) -> None:
        super()._close()
        if self._writing:
            self._writing.join()  # an interruption loses no state that was begun

    @property
    def _end_marker(self) -> Path:
        return self.folder / "closed"


@final
class Recording:
    """A transcript as it is read back.

    Args:
        folder: of the run.

    Attributes:
        secret: what it was bound to.
        challenge, between, discrete: as of `Transcript`.
        states: the digest of each state.
        taken: how many steps were taken before each.
        steps: what is said of each step.
        complete: the lines up to the last state.

    Raises:
        BadInput: no transcript, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.secret = folder, CommittedSecret(folder)
        try:
            content = (folder / LINES).read_bytes()
            *lines, _ = content.split(b"\n")
            head, *rest = [loads(line) for line in lines]
            _require(all(isinstance(line, dict) for line in rest), "a line is not a table")
            self.challenge, self.discrete = (
                bytes.fromhex(head["challenge"]).hex(),
                bool(head["discrete"]),
            )
            commitment, at = (
                head["commitment"],
                [n for n, line in enumerate(rest) if "state" in line],
            )
            self.states = [str(rest[n]["digest"]) for n in at]
            self.between, *self.taken = [
                _whole(line["steps"]) for line in (head, *(rest[n] for n in at))
            ]
            self.steps = [line for line in rest[: at[-1]] if "step" in line]
            _require(head.keys() == _HEAD, "its first line has other fields")
            _require(
                all(line.keys() in (_STEP, _STATE) for line in rest), "a line has other fields"
            )
            self.complete = [line + b"\n" for line in lines[: at[-1] + 2]]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            raise BadInput(f"{folder / LINES} is not a transcript of a run: {why}") from error
        if commitment != self.secret.commitment:
            raise BadInput(
                f"the transcript in {folder} is of another commitment: get the unchanged folder"
            )
        step_numbers = [line["step"] for line in self.steps]
        numbered = len(step_numbers) == self.taken[-1] and all(
            n == step for n, step in enumerate(step_numbers)
        )
        if self.taken[0] or not numbered:
            raise BadInput(
                f"{folder / LINES} leaves out steps, or states one twice: get the unchanged folder"
            )
        self.digest = hashlib.sha256(content).hexdigest()

    def streams(self) -> Streams:
        """The random streams that the run was bound to, from their beginning; they are bound when
        it begins.
        """
        return self.secret.streams(bytes.fromhex(self.challenge), self.discrete)

    def bound(self) -> Streams:
        """These, with the keys that the run drew its noise by."""
        return self.secret.bound(bytes.fromhex(self.challenge), self.discrete)

    def state(self, number: int) -> Saved:
        """A state of the run.

        Raises:
            BadInput: it is not the one that the transcript states.
        """
        path = state_path(self.folder, number)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from error
        if self.secret.digest(b"state ", head_of(content)) != self.states[number]:
            raise BadInput(
                f"{path} is not the state whose digest the transcript has: it was changed, or is "
                "damaged"
            )
        return unpacked(content, path)


@final
class Determined(Exception):
    """What was to be found out: all that the sums of a run follow from, by name."""

    def __init__(self, run: Mapping[str, str]) -> None:
        super().__init__("the run is known")
        self.run = run


@final
class RunToCommit(Checkpoint):
    """A checkpoint of a run that is going to be committed to: it says what the run is, before
    anything is spent.

    Args:
        folder: where will be committed.
        secret: that of the commitment.
        discrete: whether releases will make their noise on a grid.
    """

    def __init__(self, folder: Path, secret: bytes, *, discrete: bool = False) -> None:
        super().__init__(folder / LINES)
        self._secret, self._discrete = secret, discrete

    def read(self) -> None:
        """No run was begun."""

    def streams(self) -> Streams:
        """Those that initial weights are drawn from; no noise is."""
        return first_streams(self._secret, self._secret, discrete=self._discrete)

    def bind(self, streams: Streams, determined: Mapping[str, str]) -> None:
        """Raise `Determined`: the run ends here."""
        raise Determined(determined)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing is written."""
        yield


def first_streams(
    secret: bytes, later: bytes, *, discrete: bool = False, cipher: str | None = None
) -> Streams:
    """The streams of a secret before they are bound: by `later` they will be."""
    key = hashlib.blake2b(key=secret, person=b"first").digest()
    return Streams.of_secret(later, key, discrete=discrete, cipher=cipher)


def _digest_of_run(secret: bytes, run: Mapping[str, str]) -> str:
    return hmac.new(secret, b"run " + canonical(dict(run)), hashlib.sha256).hexdigest()


def state_path(folder: Path, number: int) -> Path:
    """The file of a state."""
    (folder / STATES).mkdir(mode=0o700, exist_ok=True)
    return folder / STATES / f"{number:08}"


def require_committed(committed: Mapping[str, str], determined: Mapping[str, str]) -> None:
    """Refuse a run that is not the one that was committed to.

    Raises:
        BadInput: naming what differs.
    """
    if dict(committed) != dict(determined):
        raise BadInput(
            f"this is not the run that was committed to: {differences(committed, determined)}. "
            "Train what the commitment is for, or commit anew, in another folder: a commitment is "
            "good for one run"
        )


def new_secret() -> bytes:
    """A secret of the operating system's."""
    return secrets.token_bytes(32)


def _whole(number: Any) -> int:
    _require(type(number) is int and number >= 0, "a number of steps is not a number")
    return int(number)


def _require(holds: bool, what: str) -> None:
    """Of a file that a stranger may have written."""
    if not holds:
        raise ValueError(what)


def _read_challenge(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"challenge is {str(text)[:40]!r}: expected hexadecimal digits, two for each byte"
        ) from error


def _bits(tensor: Tensor) -> memoryview:
    """The bits of a tensor, without a copy where it is on the processor."""
    tensor = tensor.detach().cpu().contiguous()
    return (
        (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor)
        .numpy()
        .ravel()
        .data
    )


def _line(entry: dict[str, Any]) -> str:
    return _ENCODE(entry) + "\n"
