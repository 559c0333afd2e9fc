"""Where answers come from: teachers that are asked one after another, and files with what teachers said elsewhere."""

from __future__ import annotations

import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor

from privlearn.accounting.adjacency import Adjacency
from privlearn.data.dataset import as_tensor
from privlearn.errors import BadInput
from privlearn.rng import Streams

#: Called with (teachers done, teachers in all).
Progress = Callable[[int, int], None]


class Teachers:
    """An ensemble: gives each teacher's answers, one teacher at a time."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are; public."""

    @abstractmethod
    def require_covered(self, adjacency: Adjacency) -> None:
        """Raise `BadInput` where one record can change two teachers under `adjacency`."""

    @abstractmethod
    def answers(self, inputs: Tensor, streams: Streams, progress: Progress | None = None) -> Iterator[Tensor | None]:
        """Each teacher's answers to `inputs`, a row for each; None for one that has none.

        Args:
            inputs: public inputs, shape (queries, ...).
            streams: assign records to teachers and seed what those draw.
            progress: called with (teachers done, teachers in all).
        """


@final
class Given(Teachers):
    """Predictions that were made elsewhere: hospitals, say, which need not share anything else.

    That each record was with one teacher, and stays with it where a record is replaced, is the word of whoever made them.

    Args:
        files: an .npz for each teacher, or the folder in which they are: `predictions` has a row for each query.

    Raises:
        BadInput: no files, or one that is given twice.
    """

    def __init__(self, files: str | Path | Sequence[str | Path]) -> None:
        if isinstance(files, str | Path):
            paths = sorted(Path(files).glob("*.npz")) if Path(files).is_dir() else [Path(files)]
        else:
            paths = [Path(file) for file in files]
        missing = next((path for path in paths if not path.is_file()), None)
        if not paths or missing is not None:
            raise BadInput(f"there is no file {missing or files}: expected an .npz with predictions for each teacher")
        same = [(path.stat().st_dev, path.stat().st_ino) for path in paths]
        if len(set(same)) < len(same):
            twice = next(str(path) for path, node in zip(paths, same, strict=True) if same.count(node) > 1)
            raise BadInput(f"{twice} is given twice: one record would move two teachers. Give each teacher's file once")
        self._paths = paths

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._paths)

    def require_covered(self, adjacency: Adjacency) -> None:
        """Nothing is known here of who learned from what."""

    def answers(self, inputs: Tensor, streams: Streams, progress: Progress | None = None) -> Iterator[Tensor | None]:
        """What the files hold, one file at a time.

        Raises:
            BadInput: a file that can't be read, or answers to more or fewer queries than are asked.
        """
        for number, path in enumerate(self._paths):
            found = as_tensor(_read(path))
            if found.dim() < 1 or len(found) != len(inputs):
                raise BadInput(
                    f"{path} answers {len(found) if found.dim() else 'no'} queries, and the plan asks {len(inputs)}: expected "
                    "a row for each query of the plan, in their order. Nothing was charged"
                )
            yield found
            if progress:
                progress(number + 1, len(self._paths))


def _read(path: Path) -> Any:
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["predictions"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} can't be read: {error}. Expected an .npz with an array `predictions`") from error
