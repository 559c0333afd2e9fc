"""Replay: an auditor takes parts of a recorded run again, chosen after the run, and compares.

What was published is a model and the digest of a transcript (`runs.transcript.Transcript`). The
auditor is given the folder of the transcript and the data, in confidence, and trains as the
publisher did. A part lies between two states that the run kept: beginning, release in front, or so
many steps. A part that was not computed as stated ends in another state.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from privlearn._checks import between, count
from privlearn._display import Described, Summary
from privlearn.auditing.commitment import Tree
from privlearn.core.sampling import Indices
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput, CertificateMismatch, first_line
from privlearn.publishing import certificate, folder, remaking
from privlearn.publishing.folder import CERTIFICATE, CONFIG, Contents
from privlearn.publishing.remaking import alike
from privlearn.publishing.verify import verify_contents
from privlearn.runs.checkpoint import DEVICE, Checkpoint, Saved, facts_of_this_process
from privlearn.runs.result import Result
from privlearn.runs.transcript import LINES, Recording, require_committed


@final
@dataclass(frozen=True)
class Replay(Described):
    """What an auditor found.

    Attributes:
        steps: of the run, as far as states were kept.
        replayed: how many of them were taken again.
        parts: of the run that have steps.
        chosen: how many of these were taken again, all of their steps.
        problems: what does not agree, in words; empty if all that was compared does.
        bits: whether all that was computed again agrees bit for bit.
        weights: whether the published weights were compared with those that follow from the last
            state.
        compared: what was compared, in words.
        not_compared: what was not, in words: nothing is known of it.
        commitment: that the run was bound to: the one that the auditor was given before the run, or
            it proves nothing.
        challenge: that the run was bound to, in hexadecimal digits: likewise the auditor's own;
            empty without one.
    """

    steps: int
    replayed: int
    parts: int
    chosen: int
    problems: tuple[str, ...]
    bits: bool
    weights: bool
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    commitment: str = ""
    challenge: str = ""

    @property
    def agrees(self) -> bool:
        """Whether all that was compared agrees, however little that is."""
        return not self.problems

    @property
    def ok(self) -> bool:
        """Whether all that was compared agrees, and the published weights are among it."""
        return self.agrees and self.weights

    def escape(self, forged: int = 1) -> float:
        """The probability that a run with so many forged parts would have been passed, however they
        are placed.

        The parts were drawn at random, after the transcript was fixed: (S-f choose m) / (S choose
        m).
        """
        count("forged", forged, least=0, most=self.parts)
        if forged > self.parts - self.chosen:
            return 0.0
        return math.prod((self.parts - self.chosen - n) / (self.parts - n) for n in range(forged))

    def rows(self) -> list[tuple[str, str]]:
        """What a report says, by label."""
        how = (
            "bit for bit"
            if self.bits
            else "within the tolerance"
            if self.agrees
            else "not all of them"
        )
        one = self.escape(min(1, self.parts))
        return [
            (
                "taken again",
                f"{self.replayed} of {self.steps} steps, {self.chosen} of {self.parts} parts",
            ),
            ("numbers agree", how),
            ("one forged part would pass", f"with probability {one:.3g}"),
            ("commitment", f"{self.commitment}: compare it with the one that came before the run"),
            (
                "challenge",
                f"{self.challenge}: compare it with your own"
                if self.challenge
                else "none was given",
            ),
            ("compared", "; ".join(self.compared)),
            ("not compared", "; ".join(self.not_compared) or "nothing was left out"),
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "ok": self.ok,
            "agrees": self.agrees,
            "weights": self.weights,
            "steps": self.steps,
            "replayed": self.replayed,
            "parts": self.parts,
            "chosen": self.chosen,
            "bits": self.bits,
            "published": self.weights,
            "compared": list(self.compared),
            "not_compared": list(self.not_compared),
            "commitment": self.commitment,
            "challenge": self.challenge,
            "problems": list(self.problems),
            "escape": {
                str(forged): self.escape(forged) for forged in (1, 5, 10) if forged <= self.parts
            },
        }

    def _summary(self) -> Summary:
        return Summary("Replay of a run", [("verdict", self.verdict), *self.rows()])

    @property
    def verdict(self) -> str:
        """What was found, in a sentence or several."""
        if not self.agrees:
            return "; ".join(self.problems)
        return (
            "agrees"
            if self.ok
            else "what was compared agrees; the published weights were not compared"
        )


def replay(
    folder: str | Path,
    train: Callable[[Checkpoint], Result],
    data: Dataset | None = None,
    *,
    steps: int = 200,
    choice: bytes | None = None,
    tolerance: float = 0.0,
    published: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Take parts of the run in `folder` again, drawn at random, and compare their ends with the
    states that it kept.

    What this proves: that each part that was taken again is what the stated training makes of these
    data, with noise of the committed keys; and, with the probability of `Replay.escape`, that all
    parts are. Not proved: that the rows are true, that no other run was made and thrown away, and
    that privlearn itself is right.

    Args:
        folder: of the transcript, with its secret and states.
        train: trains as the publisher did, with the checkpoint that it is given and no streams;
            returns the result.
        data: the rows, to be compared with the commitment; None: only with what the run says that
            it was given.
        steps: how many steps to take again, at least; whole parts are taken.
        choice: random bytes that decide which parts, fixed after the transcript was; None: the
            operating system's.
        tolerance: 0 compares bits: the same versions, kind of processor and number of threads are
            needed. Else numbers of a tensor may differ by this share of its largest one; batches
            are compared exactly all the same.
        published: the published folder, whose certificate has to state this transcript, and whose
            weights have to be those that follow from the last state, also of a run that was left
            early. None: nothing published is compared, and the report is not `ok`.
        progress: called with (parts taken again, parts to take).

    Raises:
        BadInput: no transcript, or a damaged one; or a training that is another one at first sight.
    """
    between("tolerance", tolerance, 0.0, 1.0)
    if not callable(train):
        raise BadInput(
            f"train is a {type(train).__name__}: expected a function of a checkpoint that trains "
            "with it"
        )
    publication = None if published is None else _Published.read(Path(published))
    recording = Recording(Path(folder))
    problems = [] if data is None else list(_other_rows(Dataset.of(data), recording))
    taken, bound = recording.taken, (recording.secret.commitment, recording.challenge)
    lengths = [0, *(after - before for before, after in pairwise(taken))]  # of each part
    long = [number for number, length in enumerate(lengths) if length]
    chosen = _choose(long, lengths, count("steps", steps, least=0), _generator(choice, recording))
    parts = sorted({*chosen, *(number for number, length in enumerate(lengths) if not length)})
    compared = _Compared(["the rows, with their commitment"] if data is not None else [])
    if data is None:
        compared.left.append("the rows, with their commitment: data was not given")
    if problems:
        compared.left.append("anything else")
        return Replay(
            taken[-1], 0, len(long), 0, tuple(problems), False, False, *compared.in_words(), *bound
        )
    bits = True
    for done, number in enumerate(parts):
        part = _Part(recording, number, tolerance)
        part.run(train)
        problems += part.problems
        bits &= part.bits
        if progress:
            progress(done + 1, len(parts))
    compared.done += (
        [f"{len(chosen)} of {len(long)} parts, in batches, sums, streams and states"]
        if chosen
        else []
    )
    if publication is None:
        compared.left.append("the published folder: none was given")
    else:
        problems += publication.unlike(recording, train, tolerance, compared)
    replayed = sum(lengths[number] for number in parts)
    said = compared.in_words()
    return Replay(
        taken[-1],
        replayed,
        len(long),
        len(chosen),
        tuple(problems),
        bits,
        compared.weights,
        *said,
        *bound,
    )


@final
class _Compared:
    """What was compared, and what was not."""

    def __init__(self, done: list[str]) -> None:
        self.done, self.left, self.weights = done, list[str](), False

    def in_words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Both, in words."""
        return tuple(self.done), tuple(self.left)


def _generator(choice: bytes | None, recording: Recording) -> np.random.Generator:
    if choice is None:
        return np.random.default_rng()
    seed = hashlib.sha256(choice + recording.digest.encode()).digest()
    return np.random.default_rng(int.from_bytes(seed, "big"))


def _choose(
    parts: Sequence[int], lengths: Sequence[int], steps: int, rng: np.random.Generator
) -> list[int]:
    """Parts in a random order, until they have so many steps."""
    chosen: list[int] = []
    for place in rng.permutation(len(parts)):
        if sum(lengths[number] for number in chosen) >= steps:
            break
        chosen.append(parts[place])
    return chosen


def _other_rows(data: Dataset, recording: Recording) -> Iterator[str]:
    if Tree.of(data, recording.secret.secret).root != recording.secret.rows:
        yield "the rows are not those that were committed to"


class _Ended(Exception):
    """The part was taken again."""


class _Recorded(Checkpoint):
    """A checkpoint that a recorded run begins from, and that keeps nothing."""

    keeps_ends = True

    def __init__(self, recording: Recording, number: int, tolerance: float) -> None:
        super().__init__(recording.folder / LINES)
        self._recording, self._number, self._tolerance = recording, number, tolerance

    @property
    def left_at(self) -> int | None:
        """After how many steps the run was left, where it was left at the state that this ends
        at.
        """
        left = self._recording.state(self._number).plain.get("left") is True
        return self._recording.taken[self._number] if left else None

    @property
    def like(self) -> Saved | None:
        """The state that this ends at: which products are faster here would else decide on its last
        bits.
        """
        return self._recording.state(self._number)

    def _state(self, number: int) -> Saved:
        """A state without the run's place in a ledger: replays charge ledgers of their own.

        With a tolerance another installation, another number of threads, or another device may have
        computed it.
        """
        saved = self._recording.state(number)
        here = facts_of_this_process() if self._tolerance else {}
        return Saved(
            saved.tensors,
            {**saved.plain, "run": None, "facts": {**saved.plain["facts"], **here}},
            elsewhere=(DEVICE,) if self._tolerance else (),
        )

    @property
    def due(self) -> bool:
        """Never."""
        return False

    def streams(self) -> Streams:
        """As the run's."""
        return self._recording.streams()

    def bind(self, streams: Streams, determined: Mapping[str, str]) -> None:
        """As the run's: the training has to be the one that was committed to, in every bit or
        within the tolerance.
        """
        committed = self._recording.secret.run
        if self._tolerance:  # states are compared; and numbers are rounded otherwise elsewhere
            others = {
                name: committed.get(name, "")
                for name in (*facts_of_this_process(), DEVICE, "initial state")
            }
            determined = {**determined, **others}
        require_committed(committed, determined)
        streams.bind(committed)

    def write(self, saved: Saved) -> None:
        """Nothing is kept."""

    def note(self, digest: str) -> None:
        """Nothing is kept."""

    def notes(self) -> list[str]:
        """Nothing was kept."""
        return []

    def forget_notes(self) -> None:
        """Nothing was kept."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A replay does not go on with the run."""
        yield

    def delete(self) -> None:
        """What is replayed stays."""


@final
class _Part(_Recorded):
    """A checkpoint that begins at a state of the recorded run, and ends the run at the next one.

    Args:
        recording: the run.
        number: of the state at which it ends; the run is begun anew where that is the first.
        tolerance: as of `replay`.
    """

    def __init__(self, recording: Recording, number: int, tolerance: float) -> None:
        super().__init__(recording, number, tolerance)
        self._taken = self._begun = recording.taken[number - 1] if number else 0
        self._elsewhere = False  # whether the run was computed on another device
        self.problems: list[str] = []
        self.bits = True

    def run(self, train: Callable[[Checkpoint], Result]) -> None:
        """Take the part again; `problems` says what differs."""
        try:
            train(self)
        except _Ended:
            return
        except BadInput as error:
            text = str(error).partition(". Go on with")[0]
            raise BadInput(
                f"this is not the training that was recorded, or it can't be run here: {text}"
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if self._taken > self._begun:
                raise
            raise BadInput(
                f"the run cannot be taken up at state {self._number}: {type(error).__name__}: "
                f"{first_line(error)}. Either the state is damaged, or train is at fault"
            ) from error
        raise BadInput(
            "train did not use the checkpoint that it was given: pass it on, checkpoint=checkpoint"
        )

    def _says(self, problem: str) -> None:
        where = f"steps {self._begun + 1} to {self._recording.taken[self._number]}"
        self.problems.append(
            f"{where if self._taken > self._begun else f'part {self._number}'}: {problem}"
        )

    def read(self) -> Saved | None:
        """The state that the part begins with."""
        if not self._number:
            return None
        saved = self._state(self._number - 1)
        derived, saved_streams = self._recording.bound().state(), saved.plain["streams"]
        for name in ("noise", "sampling", "initialisation", "views"):
            if _key(derived[name]) != _key(saved_streams[name]):
                self._says(f"the key of {name} does not follow from the commitment")
        return saved

    @property
    def due(self) -> bool:
        """Whether the part ends here: after as many steps as lie between two states, or where the
        run was left.
        """
        return self._taken - self._begun >= self._recording.between or self._taken == self._end_step

    @cached_property
    def _end_step(self) -> int | None:
        return self.left_at

    def record(self, examples: Indices, released: Sequence[Tensor]) -> None:
        """Compare a step with what the transcript says of it."""
        if self._taken < len(self._recording.steps):
            recomputed = self._recording.secret.step(self._taken, examples, released)
            recorded = self._recording.steps[self._taken]
            if recomputed["sample"] != recorded["sample"]:
                self._says(f"step {self._taken + 1} had another batch")
            if recomputed["released"] != recorded["released"]:
                self.bits = False
                if not self._tolerance:
                    self._says(f"step {self._taken + 1} released something else")
        self._taken += 1

    def write(self, saved: Saved) -> None:
        """Compare the state that the part ends with, and end the run."""
        recorded = self._recording.state(self._number)
        if self._taken != self._recording.taken[self._number]:
            self._says(f"it ends after {self._taken} steps")
        self._elsewhere = saved.plain["facts"][DEVICE] != recorded.plain["facts"].get(DEVICE)
        names = ("epoch", "step", "streams", "origin", "fitted", "generators", "parts")
        for name in names:
            if self._elsewhere and name == "generators":
                continue  # each device has one of PyTorch's; the processor's is a tensor
            here, there = (
                _public(plain.get(name), self._elsewhere) for plain in (saved.plain, recorded.plain)
            )
            if name not in recorded.plain or not alike(here, there, self._tolerance):
                self._says(f"it ends with other {_NAMES.get(name, name)}")
        self._compare_tensors(saved, recorded)
        raise _Ended

    def _compare_tensors(self, saved: Saved, recorded: Saved) -> None:
        here, there = (
            {
                name: tensor
                for name, tensor in tensors.items()
                if not self._elsewhere or not name.startswith("generators.") or name.endswith(".0")
            }
            for tensors in (saved.tensors, recorded.tensors)
        )
        if set(here) != set(there):
            self._says("it ends with other tensors")
            return
        for name, tensor in here.items():
            theirs = there[name]
            if tensor.dtype != theirs.dtype or not torch.equal(tensor.detach().cpu(), theirs):
                self.bits = False
                if not _close(tensor.detach().cpu(), theirs, self._tolerance):
                    self._says(f"it ends with another {name}")


def _public(entry: Any, elsewhere: bool = False) -> Any:
    """Without the figures for the curator's eyes, which nothing follows from: of several processes
    each has its own. On another device also without how gradients are computed there.
    """
    if isinstance(entry, dict):
        left_out = ("diagnostics", "gradients") if elsewhere else ("diagnostics",)
        return {name: value for name, value in entry.items() if name not in left_out}
    return entry


_NAMES = {"streams": "random streams", "origin": "draws before the run", "generators": "generators"}


@final
class _End(_Recorded):
    """A checkpoint with the last state of a run, from which its result is made again; nothing more
    is taken.
    """

    def __init__(self, recording: Recording, tolerance: float) -> None:
        super().__init__(recording, len(recording.states) - 1, tolerance)

    def read(self) -> Saved:
        """The last state."""
        return self._state(self._number)

    def facts(self) -> dict[str, Any]:
        """As the run's."""
        recording = self._recording
        header = {"commitment": recording.secret.commitment, "challenge": recording.challenge}
        return {"transcript": header | {"digest": recording.digest}}

    def record(self, examples: Indices, released: Sequence[Tensor]) -> None:
        """Nothing may be released after the last state."""
        raise _GoesOn


class _GoesOn(Exception):
    """The training has more steps than the recorded run."""


@final
@dataclass(frozen=True, repr=False)
class _Published:
    """A published folder, read once."""

    contents: Contents
    problems: tuple[str, ...]
    certificate: dict[str, Any]
    weights: dict[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> _Published:
        """The folder, and what `verify` finds wrong with it.

        Raises:
            BadInput: it can't be read.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        contents = folder.read(path)
        try:
            tensors = load(folder.weights(contents))
        except (CertificateMismatch, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise BadInput(
                f"{path} is not a published model: {first_line(error)}. Expected what publish wrote"
            ) from error
        problems = tuple(verify_contents(contents).problems)
        return cls(contents, problems, certificate.parse(contents.files[CERTIFICATE]), tensors)

    def unlike(
        self,
        recording: Recording,
        train: Callable[[Checkpoint], Result],
        tolerance: float,
        compared: _Compared,
    ) -> Iterator[str]:
        """What does not follow from the transcript, and from the training that was replayed;
        `compared` is filled.
        """
        yield from self.problems
        end = _End(recording, tolerance)
        if remaking.transcript_of(self.certificate) != end.facts()["transcript"]:
            yield "the certificate does not state this transcript"
        try:
            result = train(end)
        except _GoesOn:
            compared.left.append(
                "the published model: the training goes on after the last state of the transcript"
            )
            yield (
                "the training has more steps than the transcript: no state was kept of where "
                "the run was left"
            )
            return
        others, unsaid = remaking.other_certificate(
            self.certificate, result, recording.taken[-1], tolerance
        )
        yield from others
        compared.done.append("the certificate's transcript, plan, facts and number of steps")
        compared.left += unsaid
        others, unsaid = remaking.other_configuration(self.contents, result)
        yield from others
        compared.done.append(f"{CONFIG}, in what the training says of its model")
        compared.left += [f"in {CONFIG}: {', '.join(unsaid[:12])}"] if unsaid else []
        yield from self._other_weights(result, tolerance, compared)
        compared.left.append("what the cards say of data and test figures: the publisher's words")

    def _other_weights(
        self, result: Result, tolerance: float, compared: _Compared
    ) -> Iterator[str]:
        """Whether the weights are not those of the last state."""
        again = result.model.state_dict()
        if set(self.weights) != set(again) and hasattr(result.model[-1], "save_pretrained"):  # type: ignore[index]
            compared.left.append("the weights: they have the names that another library gives them")
            return
        compared.weights = True
        compared.done.append("the published weights, with those that follow from the last state")
        same = set(self.weights) == set(again)
        if not same or not all(
            _close(again[name].cpu(), weight, tolerance) for name, weight in self.weights.items()
        ):
            yield "the published weights are not those of the last state"


def _key(state: dict[str, Any]) -> Any:
    """The key in the state of a stream."""
    if "key" in state:
        return state["key"]
    return state["s"]["seed"]


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    """Whether two tensors agree: bit for bit, or within a share of the largest number of `ours`, if
    all are finite.

    Args:
        ours: what was computed again.
        theirs: what was stated.
        tolerance: the share.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if not tolerance or not ours.dtype.is_floating_point:
        return torch.equal(ours, theirs)
    if not bool(ours.isfinite().all() and theirs.isfinite().all()):
        return False
    room = tolerance * float(ours.abs().max()) if ours.numel() else 0.0
    return bool(((ours - theirs).abs() <= room).all())
