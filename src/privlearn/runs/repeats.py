"""A run notes what its noise is drawn for before it is drawn, so that the same noise goes to no
other sum.

The noise of a step that is repeated after an interruption is the same. On the same sum that is the
same release, which gives nothing away. On another sum the difference of the two releases has no
noise at all. It is the difference of the two sums, to the last bit. So any difference that passes
is told exactly: a loss that is scaled by 1 + h moves the sum by h times itself, and the whole sum
follows from that for any h above the rounding. That does not depend on the noise multiplier, and a
tolerance that lets rounding pass, for n examples of norm C about n C times the unit of rounding,
lets such an h pass, too. There is no tolerance: sums are compared to the bit. The number of threads
and the versions, which the bits depend on, are compared when a run is resumed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from privlearn.core.devices import on_processor
from privlearn.core.processes import World
from privlearn.errors import BadInput
from privlearn.runs.checkpoint import BEGIN_ANEW

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.streams import NoiseStream, Places
    from privlearn.runs.checkpoint import Checkpoint

_WIDTH = 1 << 14
_ROWS = 8, 1024  # that are multiplied at once: on a processor what stays in its cache


@final
class Repeats:
    """What noise was drawn for, by key and place of the stream, noted in a file before it is drawn.

    Guarantee: no part of a noise stream is drawn for two values that differ in any bit, in this
    process and in all that read the file, but for a chance of about 2^-32 each time.

    Args:
        file: keeps the notes; None: this process keeps none, and nothing is noted.
        world: the processes that have parts of the values.
    """

    def __init__(self, file: Checkpoint | None, world: World = World()) -> None:  # noqa: B008 - a frozen value
        self._file, self._world = file, world
        # before: by place the settings, and what was drawn for
        self._noted: dict[str, tuple[str, str]] = {}
        self._settings, self._ended = _digest(""), False

    def forget(self) -> None:
        """A run begins, with keys that no other has."""
        if self._file:
            self._file.forget_notes()

    def recall(self, *, ended: bool = False) -> None:
        """A run goes on, or one that the same keys may have been used for: what was noted counts.

        Args:
            ended: whether the run has ended on its ledger, so that all its noise was noted. An
                older copy of checkpoint and notes is not gone on from then: its steps would be
                released again, for other sums perhaps, and nothing would be charged for them.

        Raises:
            BadInput: the notes are damaged.
        """
        self._ended = ended
        lines = [line.split() for line in self._file.notes()] if self._file else []
        try:
            self._noted = {place: (settings, drawn) for place, settings, drawn in lines}
        except ValueError as error:
            assert self._file is not None
            raise BadInput(
                f"the notes of steps beside {self._file.path} are damaged, or an earlier "
                f"version's: repeated steps can't be compared. {BEGIN_ANEW}"
            ) from error

    def take(self, settings: str) -> None:
        """What follows is a step with these settings of the optimizer; "": no step."""
        self._settings = _digest(settings)

    def see(self, stream: NoiseStream, values: Sequence[Tensor], places: Places | None) -> None:
        """Note what noise is about to be drawn for: the watch of a stream.

        Args:
            stream: where it is drawn from.
            values: what it is for; the parts of this process.
            places: where these are parts of larger wholes.

        Raises:
            BadInput: the same noise was drawn before, for something else, or with other settings of
                the optimizer; or the run has ended, and this noise is not among its notes.
        """
        words = fingerprint(values, places)
        low, high = (words if places is None else self._world.total(words)).tolist()
        if self._file is None:
            return
        key = hashlib.blake2b(stream.key, digest_size=8, person=b"place").hexdigest()
        place = f"{key}:{stream.position:x}"
        drawn = (int(low) + (int(high) << 32)) % 2**64
        # Another cipher makes other noise of one key and place.
        cipher = b"" if stream.cipher in (None, "aes") else str(stream.cipher).encode()
        digest = hashlib.blake2b(
            drawn.to_bytes(8, "big") + cipher, key=stream.key, digest_size=16, person=b"drawn"
        )
        now = self._settings, digest.hexdigest()
        then = self._noted.get(place)
        if then is None:  # not kept here: a stream hands out no place twice
            if self._ended:
                raise BadInput(
                    f"the run in {self._file.path} has ended on its ledger, and what its noise was "
                    "drawn for is not noted beside it: an older copy, of whose steps nothing would "
                    "be charged. Expected the files with which it ended; or begin anew"
                )
            self._file.note(" ".join((place, *now)))
        elif then[0] != now[0]:
            raise BadInput(
                "a step was taken before the interruption, with other settings of the optimizer "
                "(its learning rate, say), and would be repeated with the same noise. Give those "
                "it began with (in a loop: private.keep(scheduler); in a trainer: the same "
                f"arguments). {BEGIN_ANEW}"
            )
        elif then != now:
            raise BadInput(
                "a step was taken before the interruption, with the same noise on other sums: a "
                "row, the loss, the model or the rounding changed. Go on with what the run began "
                f"with, on the same machine and as many processes. {BEGIN_ANEW}"
            )


def fingerprint(values: Sequence[Any], places: Places | None) -> Tensor:
    """Two numbers that follow from all bits of `values`; of parts of wholes they add up to those of
    the wholes.

    Each word of 32 bits is mixed and multiplied by a fixed random odd number of its place, in whole
    numbers: neither the order nor the number of processes changes a bit of the result,
    `Repeats.see` adds them up. Values that differ have other numbers with a probability of all but
    2^-32 or so.

    Returns:
        Whole numbers below 2^32, the low and the high half, shape (2,), float64.
    """
    totals, before = [], 0
    for number, value in enumerate(values):
        flat = value.detach().reshape(-1)
        flat = flat.contiguous() if flat.dtype in (torch.float32, torch.float64) else flat.double()
        words, each = flat.view(torch.int32), flat.element_size() // 4
        start, whole = (0, flat.numel()) if places is None else places[number]
        totals += _add_up(words, before + start * each)
        before += whole * each
    added = int(torch.stack(totals).sum()) if totals else 0  # waited for once
    return torch.tensor(
        [added & 0xFFFFFFFF, added >> 32 & 0xFFFFFFFF], dtype=torch.float64, device="cpu"
    )


def _add_up(words: Tensor, start: int) -> list[Tensor]:
    """Sums of words that begin at place `start`, each mixed and times the number of its place;
    modulo 2^64.
    """
    columns, many = _odd(0, _WIDTH, torch.int32, words.device), _ROWS[not on_processor(words)]
    rows = _odd(1, 1 << ((start + len(words)) // _WIDTH).bit_length(), torch.int64, words.device)
    totals, at = [], 0
    while at < len(words):
        row, column = divmod(start + at, _WIDTH)
        height = min((len(words) - at) // _WIDTH, many) if column == 0 else 0
        size = height * _WIDTH or min(_WIDTH - column, len(words) - at)
        mixed = words[at : at + size].bitwise_xor(words[at : at + size] >> 16)
        if height:
            totals.append(
                ((mixed.view(height, _WIDTH) * columns).sum(1) * rows[row : row + height]).sum()
            )
        else:
            totals.append((mixed * columns[column : column + size]).sum() * rows[row])
        at += size
    return totals


@functools.lru_cache(maxsize=256)
def _odd(seed: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """So many fixed random odd numbers, of which the first are the same for any size."""
    made_up = torch.Generator().manual_seed(seed)
    bits = torch.iinfo(dtype).bits - 1
    drawn = torch.randint(
        -(2**bits), 2**bits - 1, (size,), generator=made_up, dtype=dtype, device="cpu"
    )
    return (drawn | 1).to(device)


def _digest(settings: str) -> str:
    return hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()
