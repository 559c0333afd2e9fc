"""What an interrupted run leaves beside its folder, or a recorded one in its transcript, and goes
on from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, ProcessLost
from privlearn.methods import METHODS
from privlearn.publishing.verify import verify
from privlearn.runs.checkpoint import Checkpoint, Saved
from privlearn.runs.transcript import Transcript


class Kept(Protocol):
    """What an interrupted run leaves beside its folder, as secret as the data, and goes on from."""

    def published(self, out: str) -> bool:
        """Whether the run ended between publishing and deleting what it kept; deletes it then."""

    def require_state(self, resume: bool) -> None:
        """Refuse to begin where there is an interrupted run, and to go on where there is none."""

    def streams(self, request: Request) -> Streams:
        """The random streams from their beginning: those of the interrupted run, or new ones."""

    def interrupted(self, error: BaseException) -> None:
        """Say what is left, and how to go on."""

    def done(self) -> None:
        """The model is published: nothing is left to go on from."""


@final
@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint beside the folder, as runs of DP-SGD and DP-MAC keep it.

    Attributes:
        checkpoint: the file.
        useless: why the run can't keep one, where it can't; another run's is refused all the same.
    """

    checkpoint: Checkpoint
    useless: bool = False

    def published(self, out: str) -> bool:
        """Whether the run ended between publishing and deleting its checkpoint; deletes it then."""
        if not self.checkpoint.path.exists() or not Path(out).is_dir() or not verify(out).ok:
            return False
        self.checkpoint.delete()
        screen.notes.print(
            f"{out} was published already; what was left of the run's checkpoint is deleted"
        )
        return True

    def require_state(self, resume: bool) -> None:
        """Refuse to begin where there is an interrupted run, and to go on where there is none."""
        path, saved = self.checkpoint.path, self.saved()
        if saved is not None and not resume:
            raise BadInput(
                f"there is an interrupted run in {path}: go on with --resume, or delete that file "
                "to give it up (what it was charged stays charged)"
            )
        if saved is None and resume:
            raise BadInput(
                f"there is no interrupted run to resume: {path} is not there. Check --out; to "
                "begin a run, leave out --resume"
            )

    def saved(self) -> Saved | None:
        """The interrupted run, if there is one."""
        return self.checkpoint.read()

    def streams(self, request: Request) -> Streams:
        """The random streams: of a saved run only for the initial weights, which tell the learning
        rate.
        """
        if bound := self.checkpoint.streams():
            return bound
        saved = self.saved()
        return (
            Streams.at(saved.plain["streams"])
            if saved
            else Streams.new(request.seed, discrete=request.discrete)
        )

    def interrupted(self, error: BaseException) -> None:
        """Say what is left: the checkpoint, which is there before anything is drawn, or nothing."""
        path = screen.plain(self.checkpoint.path)
        if self.useless or not isinstance(error, KeyboardInterrupt | ProcessLost):
            return
        if self.checkpoint.path.exists():
            screen.notes.print(
                f"progress is in {path} (as secret as the data): go on with --resume"
            )
        else:
            screen.notes.print(
                "the first step was not reached: nothing is kept, and nothing is spent. Begin "
                "again, without --resume"
            )

    def done(self) -> None:
        """`publish` deletes the checkpoint."""


def kept_of(request: Request) -> KeptCheckpoint:
    """What an interrupted run of DP-SGD or DP-MAC goes on from; the others keep nothing."""
    if request.transcript is not None:
        return KeptCheckpoint(_transcript(request))
    if request.challenge is not None:
        raise BadInput("--challenge is for a run that is recorded: give --transcript DIR, too")
    checkpoint = Checkpoint(f"{request.out}.checkpoint", every=request.checkpoint_every)
    return KeptCheckpoint(
        checkpoint, useless=not METHODS[request.method].suits("resume") or request.tune is not None
    )


def _transcript(request: Request) -> Transcript:
    """The transcript that a run is recorded in, with the run's options beside it.

    Raises:
        BadInput: nothing was committed to there, or options that leave nothing to check.
    """
    require_recordable(request)
    transcript = Transcript(
        request.transcript,
        challenge=request.challenge or "",
        steps=request.transcript_steps,
        discrete=request.discrete,
    )
    if not options_file(request.transcript).exists():  # a commitment of Python's
        keep_options(request, request.transcript)
    return transcript


def require_recordable(request: Request) -> None:
    """Refuse options that leave nothing to check.

    Raises:
        BadInput: a seed, or a private choice.
    """
    if request.seed is not None:
        raise BadInput(
            "--transcript does not go with --seed: the keys of a recorded run follow from its "
            "commitment"
        )
    if request.tune is not None:
        raise BadInput(
            "--transcript does not go with --tune: which candidates ran is private. Leave out one "
            "of them"
        )


def keep_options(request: Request, folder: str | Path) -> None:
    """Write the options of a recorded run into its folder."""
    options_file(folder).write_text(
        json.dumps(dict(request.values), indent=1) + "\n", encoding="utf-8"
    )


def options_file(folder: str | Path) -> Path:
    """Where the options of a recorded run are kept."""
    return Path(folder) / "options.json"
