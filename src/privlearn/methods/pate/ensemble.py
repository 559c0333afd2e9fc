"""Where answers come from: teachers that are asked one after another, and files with what teachers
said elsewhere.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from torch import Tensor

from privlearn._checks import checked
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.streams import Streams
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset
from privlearn.data.formats import read_inputs
from privlearn.errors import BadInput
from privlearn.methods.pate.sums import CodeSums, Shapes, VoteCounts

if TYPE_CHECKING:
    from privlearn.core.mechanisms.noise_shares import SharedSum
    from privlearn.methods.pate.plan import PatePlan

#: Called with (teachers done, teachers in all).
Progress = Callable[[int, int], None]

#: Different fractions, on so many of which two teachers of disjoint records do not agree by chance.
_FRACTIONS = 10


class Teachers:
    """An ensemble: gives each teacher's answers, one teacher at a time; or, where each is at a site
    that adds a share of the noise, their noisy sum.
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are; public."""

    @abstractmethod
    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """Raise `BadInput` where it is known that one `unit` can change two teachers under
        `adjacency`.
        """

    @property
    def examples(self) -> int | None:
        """How many records they learned from; None where that is not known."""
        return None

    @property
    def records(self) -> Dataset | None:
        """The records that they learned from; None where they are not at hand."""
        return None

    def describe(self) -> dict[str, Any]:
        """How they came about, in public words, for certificates and to tell an interrupted run
        from another.
        """
        return {"source": f"{type(self).__module__}:{type(self).__qualname__}"}

    def require_others(self, inputs: Tensor) -> None:
        """Raise `BadInput` where it is known that public inputs are the teachers' own records.

        Args:
            inputs: all public inputs, shape (pool, ...).
        """

    def require_same(self, inputs: Tensor) -> None:
        """Raise `BadInput` where it is known that an interrupted run was of other records, queries
        or teachers.

        Args:
            inputs: public inputs, as for `answers`.
        """

    def determined(self, inputs: Tensor) -> dict[str, str]:
        """What the answers follow from beyond `describe`, by name, as secret as the records: for
        keys that are kept.

        Args:
            inputs: public inputs, as for `answers`.
        """
        return {}

    def require_sites(self, needed: int) -> None:
        """Refuse teachers that are not at sites which add shares of the noise, or fewer of these
        than needed, before anything is charged.

        Args:
            needed: how many shares add up to the claimed noise.

        Raises:
            BadInput: they are refused.
        """
        raise BadInput(
            f"{type(self).__name__} add no noise, and the plan has site_noise: expected teachers "
            "at sites, such as privlearn.flower.FlowerTeachers. Nothing was charged; or leave "
            "site_noise out of the plan"
        )

    def ask_for_noisy_sum(
        self,
        plan: PatePlan,
        totals: CodeSums | VoteCounts,
        inputs: Tensor,
        question: str,
        progress: Progress | None = None,
    ) -> SharedSum:
        """Ask the sites for the sum of their answers, to which each has added its share of the
        noise. It is charged before; who is asked charges, too.

        Args:
            plan: with `site_noise`, whose grid the answers are on.
            totals: says what is asked for; nothing is added to it.
            inputs: public inputs, shape (queries, ...).
            question: names this question, so that a site gives the same answer when it is asked
                again, and draws new noise for any other.
            progress: called with (teachers done, teachers in all).

        Returns:
            The sum in steps of the grid, int64, shape (queries x numbers,), and who is in it.

        Raises:
            BadInput: these teachers are at no sites.
        """
        raise BadInput(
            f"{type(self).__name__} give no noisy sum: expected teachers at sites, such as "
            "privlearn.flower.FlowerTeachers. Leave site_noise out of the plan"
        )

    @abstractmethod
    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """Each teacher's answers to `inputs`, a row for each; None for one that has none.

        What it gives may be anything: what is of no use is passed over, silently, where answers are
        added up.

        Args:
            inputs: public inputs, shape (queries, ...).
            streams: assign records to teachers and seed what those draw.
            progress: called with (teachers done, teachers in all).
            shapes: what the shape of one answer must be among, for what is known without a look at
                records to be refused by; None: any.
        """

    def add_answers(
        self,
        totals: CodeSums | VoteCounts,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
    ) -> int:
        """Add what all teachers answer to `inputs` to `totals`, which bound it; one teacher is held
        at a time.

        Args:
            totals: where answers are added up.
            inputs, streams, progress: as for `answers`.

        Returns:
            How many had no usable answers: private.
        """
        silent = 0
        for said in self.answers(inputs, streams, progress, totals.shapes):
            silent += not totals.add(said)
        return silent


class PredictedElsewhere(Teachers):
    """An ensemble whose predictions are made elsewhere, from records that are not here."""

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """Nothing is known here of who learned from what.

        Raises:
            BadInput: replace-one neighbours: a record and its replacement may be with two teachers.
        """
        if adjacency is Adjacency.REPLACE_ONE:
            raise BadInput(
                "a record that is replaced may be with one teacher and the other record with "
                "another, so that two answers change, and the plan is for one: use add_remove or "
                "zero_out neighbours with given predictions"
            )

    def describe(self) -> dict[str, Any]:
        """That their predictions were given."""
        return {"source": "given"}


@checked
@final
class Given(PredictedElsewhere):
    """Predictions that were made elsewhere: hospitals, say, which need not share anything else.

    That each record was with one teacher, whatever other records there are, is their maker's word.

    Args:
        files: an .npz for each teacher, or the folder in which they are: `predictions` has a row
            for each query.

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
            raise BadInput(
                f"there is no file {missing or files}: expected an .npz with predictions for each "
                "teacher"
            )
        same = [(path.stat().st_dev, path.stat().st_ino) for path in paths]
        if len(set(same)) < len(same):
            twice = next(
                str(path) for path, node in zip(paths, same, strict=True) if same.count(node) > 1
            )
            raise BadInput(
                f"{twice} is given twice: one record would move two teachers. Give each teacher's "
                "file once"
            )
        self._paths = paths

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._paths)

    def determined(self, inputs: Tensor) -> dict[str, str]:
        """A digest of what the files hold."""
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self._paths]
        return {"predictions": hashlib.sha256(" ".join(digests).encode()).hexdigest()}

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """What the files hold, one file at a time.

        Unusable files are refused, for the data's curator, before anything is charged. So is a copy
        of another file, where two teachers would not agree by chance; else there is a warning.

        Raises:
            BadInput: a file that can't be read, or answers to more or fewer queries than are asked,
                of another shape, not finite, classes that are none, or a copy.
        """
        first: dict[bytes, Path] = {}
        for number, path in enumerate(self._paths):
            said = _read(path)
            if said.dim() < 1 or len(said) != len(inputs):
                raise BadInput(
                    f"{path} answers {len(said) if said.dim() else 'no'} queries, and the plan "
                    f"asks {len(inputs)}: expected a row for each query of the plan, in their "
                    "order. Nothing was charged"
                )
            if shapes is not None and tuple(said.shape[1:]) not in [
                tuple(shape) for shape in shapes
            ]:
                raise BadInput(
                    f"the predictions in {path} have shape {tuple(said.shape)}: expected "
                    f"{' or '.join(str((len(inputs), *shape)) for shape in shapes)}. Nothing was "
                    "charged"
                )
            if flaw := _flaw(said, shapes or ()):
                raise BadInput(f"the predictions in {path} are not all {flaw}. Nothing was charged")
            content = np.ascontiguousarray(said.numpy())
            key = hashlib.sha256(
                f"{content.dtype} {content.shape} ".encode() + content.tobytes()
            ).digest()
            if first.setdefault(key, path) is not path:
                _meet_copy(path, first[key], said)
            yield said
            if progress:
                progress(number + 1, len(self._paths))


def _meet_copy(path: Path, other: Path, said: Tensor) -> None:
    """Refuse predictions of many fractions that are another file's; warn of others: two teachers
    may agree on classes.

    Raises:
        BadInput: they are refused.
    """
    if len(np.unique(said[said != said.round()].numpy())) >= _FRACTIONS:
        raise BadInput(
            f"{path} holds the same numbers as {other}: a copy, by which one record would move two "
            "teachers. Give each teacher's predictions once. Nothing was charged"
        )
    warnings.warn(
        f"{path} holds the same predictions as {other}. If it is a copy, one record moves two "
        "teachers, and the guarantee does not hold: give each teacher's predictions once. Two "
        "teachers may also agree on all queries",
        stacklevel=2,
    )


def _flaw(said: Tensor, shapes: Shapes) -> str | None:
    """What predictions should be and are not."""
    if not bool(said.isfinite().all()):
        return "finite numbers"
    scores = [shape[0] for shape in shapes if len(shape) == 1]
    if (
        said.dim() == 1
        and scores
        and not bool(((said == said.round()) & (said >= 0) & (said < scores[0])).all())
    ):
        return f"classes: expected whole numbers from 0 to {scores[0] - 1}"
    return None


def _read(path: Path) -> Tensor:
    """The predictions in one file.

    Raises:
        BadInput: there are none, or they are no numbers.
    """
    values = read_inputs(path, "predictions")
    if values.dtype.kind not in "fiub" or math.prod(values.shape) == 0:
        raise BadInput(
            f"the predictions in {path} are {values.dtype} values of shape {values.shape}: "
            "expected numbers, a row for each query"
        )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that overflow
        return as_tensor(values)
