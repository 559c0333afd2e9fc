"""Teachers that are trained here, each on its own shard, streamed and resumable.

Which teacher learns from which records: each record with one, assigned without a look at any other
record.

`KeptFolder` is a folder of all that an interrupted run goes on from.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privlearn._checks import checked, count
from privlearn._storage import loads, write_durably
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.sampling import assign
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset, require_others
from privlearn.errors import BadInput
from privlearn.methods.pate.ensemble import Progress, Teachers
from privlearn.methods.pate.recipes import Recipe, Spreading, described, rehearse, taught
from privlearn.methods.pate.sums import Shapes
from privlearn.runs.checkpoint import Checkpoint, Saved
from privlearn.runs.code_digest import code_digest
from privlearn.runs.repeats import Repeats
from privlearn.runs.workers import at_once, processes
from privlearn.transforms.modules import Scale

#: What a folder says of its teachers; there from the moment on that records are given to them.
TEACHERS = "teachers.json"


@checked
@final
class Trained(Teachers):
    """Teachers that are trained here, one after another or several at once; each is forgotten when
    it has answered.

    Guarantee: one record is with one teacher, and reaches nothing but that teacher's answers. A
    teacher that can't be trained, or whose shard is empty, has no answers, and nothing says so.

    Args:
        data: the private records.
        recipe: how one teacher is trained: `Estimator`, `Network`, or any function recipe(x, y) ->
            predict.
        teachers: how many there are, where records are assigned by chance: each to one,
            independently and uniformly.
        sites: in its place the id of a site, which is public, for each row: one teacher for each
            site.
        shards: in its place the numbers of each teacher's rows. That a row's teacher does not
            depend on other rows is your word: under add/remove neighbours don't deal them by
            position.
        folder: where assignment and answers are kept, for an interrupted run to go on with: as
            secret as the records.
        jobs: processes that train at once; -1: as many as there are; None: as many as joblib's
            `parallel_config` says, which also chooses the backend (Dask's or Ray's, say). Answers
            are the same, whatever it is.

    Raises:
        BadInput: shards that overlap, none or several of the three ways to make them, or a number
            out of range.
    """

    def __init__(
        self,
        data: Dataset | tuple[Any, Any],
        recipe: Recipe,
        teachers: int | None = None,
        *,
        sites: Any = None,
        shards: Sequence[Any] | None = None,
        folder: str | Path | None = None,
        jobs: int | None = 1,
    ) -> None:
        self._data, self._recipe = Dataset.of(data), recipe
        if not callable(recipe):
            raise BadInput(
                f"recipe is {str(recipe)[:60]}: expected Estimator(...), Network(...) or a "
                "function of x and y"
            )
        if sum(way is not None for way in (teachers, sites, shards)) != 1:
            raise BadInput(
                "records need one way to teachers: give teachers=K, or sites= (an id for each "
                "row), or shards="
            )
        self._place: Places | None = None
        if sites is not None:
            self._place, self._count = by_site(self._data, sites)
        elif shards is not None:
            self._place, self._count = by_rows(self._data, shards)
        else:
            self._count = count("teachers", teachers)  # type: ignore[arg-type]
        self._sites = sites is not None
        self._folder, self._jobs = None if folder is None else Path(folder), jobs
        if jobs is not None and jobs != -1:
            count("jobs", jobs)

    @property
    def examples(self) -> int:
        """How many records there are."""
        return self._data.examples

    @property
    def records(self) -> Dataset:
        """The records."""
        return self._data

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """Refuse neighbours that differ in two teachers, and protecting persons where a record's
        person is unknown.

        A record can be replaced by one of another site, or of another person, which is with another
        teacher.

        Raises:
            BadInput: replace-one neighbours, and sites, or person ids where single rows are
                protected; or a plan that protects persons, and no person ids.
        """
        replaced = adjacency is Adjacency.REPLACE_ONE
        if self._sites and replaced:
            raise BadInput(
                "a record that is replaced by one of another site changes two teachers, and the "
                "plan is for one: use add_remove or zero_out neighbours with sites"
            )
        if self._data.groups is not None and unit.rows_per_person is None and replaced:
            raise BadInput(
                "records are assigned by person, so one that is replaced by a record of another "
                "person changes two teachers, and the plan is for one: use add_remove or zero_out "
                "neighbours, or protect persons (persons=True, which is the default without "
                "group_size=)"
            )
        if unit.rows_per_person is not None and self._data.groups is None:
            raise BadInput(
                "the plan protects persons, and the data do not say whose rows they are: give "
                "pv.Dataset(..., groups=ids), a person's id for each row, or a plan without "
                "persons=True"
            )

    def require_others(self, inputs: Tensor) -> None:
        """Refuse records as public inputs: to ask about, or for `Spreading` to spread over.

        Raises:
            BadInput: most of these inputs are the records.
        """
        x = self._data.tensors()[0].float()
        require_others(inputs.float(), x, "the public inputs")
        if isinstance(self._recipe, Spreading):
            require_others(self._recipe.inputs.float(), x, "the inputs that labels are spread over")

    def describe(self) -> dict[str, Any]:
        """How they are made: the recipe, and how records came to them."""
        records = "by chance" if self._place is None else "by site" if self._sites else "as listed"
        by = "row" if self._data.groups is None else "person"
        return {
            "source": "trained",
            "records": records,
            "assigned_by": by,
            "recipe": described(self._recipe),
        }

    def determined(self, inputs: Tensor) -> dict[str, str]:
        """Digests of records, persons, queries and assignment, and the recipe's code."""
        assignment = code_digest(self._place, self._count, self._data.groups)
        records = fingerprint(*self._scale(inputs))
        return {"records": records, "assignment": assignment, "recipe": code_digest(self._recipe)}

    def require_same(self, inputs: Tensor) -> None:
        """Refuse to go on with a folder of other records, queries or recipes.

        Raises:
            BadInput: it is one.
        """
        if self._folder is not None and (self._folder / TEACHERS).exists():
            x, y, asked = self._scale(inputs)
            self._resume(fingerprint(x, y, asked))

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """Train each teacher and ask it.

        Raises:
            BadInput: a recipe that fails on made-up rows or makes answers of another shape of them,
                or a folder that belongs to something else.
        """
        x, y, asked = self._scale(inputs)
        rehearse(self._recipe, x[:1], y[:1], asked[:1], shapes)
        several = processes(self._jobs, "teachers")
        place, seeds = self._assign(x, y, asked, streams)
        done = 0
        for start in range(0, self._count, several):
            for said in self._several(
                range(start, min(start + several, self._count)), x, y, asked, place, seeds
            ):
                yield said
                done += 1
                if progress:
                    progress(done, self._count)

    def _scale(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Records and queries as teachers get them."""
        x, y = self._data.tensors()
        if self._data.low is None:
            return x, y, inputs
        scale = Scale(*self._data.bounds())
        return scale(x), y, scale(inputs)

    def _assign(
        self, x: Tensor, y: Tensor, asked: Tensor, streams: Streams
    ) -> tuple[Places, list[int]]:
        """Each row's teacher and each teacher's seed: those of the folder if it was begun
        before.
        """
        if self._folder is not None and (self._folder / TEACHERS).exists():
            return self._resume(fingerprint(x, y, asked))
        place = self._place
        if place is None:
            place = drawn(self._data, self._count, streams.sampling)
        seeds = [int(seed) for seed in streams.initialisation.integers(2**63, size=self._count)]
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = {
                "recipe": described(self._recipe),
                "digest": fingerprint(x, y, asked),
                "count": self._count,
                "place": place.tolist(),
                "seeds": seeds,
            }
            write_durably(self._folder / TEACHERS, json.dumps(state).encode(), mode=0o600)
        return place, seeds

    def _resume(self, digest: str) -> tuple[Places, list[int]]:
        assert self._folder is not None
        try:
            state = loads((self._folder / TEACHERS).read_bytes())
            place, seeds = (
                np.asarray(state["place"], dtype=np.int64),
                [int(seed) for seed in state["seeds"]],
            )
            then = state["recipe"]
            same = (
                state["digest"] == digest
                and state["count"] == self._count
                and len(seeds) == self._count
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{self._folder / TEACHERS} can't be read: {error}. Give another folder"
            ) from error
        if not same or (self._place is not None and not np.array_equal(place, self._place)):
            raise BadInput(
                f"{self._folder} holds the teachers of other records, other queries or another "
                "number of teachers: give another folder, or the same data"
            )
        recipe = described(self._recipe)
        if then != recipe:
            raise BadInput(
                f"{self._folder} holds teachers of another recipe: theirs is {_in_words(then)}, "
                f"and {_in_words(recipe)} was given. Go on with theirs, or give another folder"
            )
        return place, seeds

    def _several(
        self, numbers: range, x: Tensor, y: Tensor, asked: Tensor, place: Places, seeds: list[int]
    ) -> Iterator[Tensor | None]:
        """The answers of a few teachers, trained at once; no more are held than that."""
        left = [
            number for number in numbers if not ((path := self._path(number)) and path.exists())
        ]
        tasks = [
            (self._recipe, x[rows], y[rows], asked, seeds[number])
            for number in left
            for rows in [torch.from_numpy(np.flatnonzero(place == number))]
        ]
        answers = at_once(1 if len(numbers) == 1 else self._jobs, taught, tasks)
        new = dict(zip(left, answers, strict=True))
        for number in numbers:
            if number in new:
                self._keep(number, new[number])
                yield new.pop(number)
            else:
                yield self._read_answers(number)

    def _path(self, number: int) -> Path | None:
        return None if self._folder is None else self._folder / f"teacher-{number:06d}.npy"

    def _keep(self, number: int, answers: Tensor | None) -> None:
        """Keep a teacher's answers; no numbers at all if it has none."""
        path = self._path(number)
        if path is None:
            return
        import io

        content = io.BytesIO()
        np.save(content, np.empty(0) if answers is None else answers.numpy())
        write_durably(path, content.getvalue(), mode=0o600)

    def _read_answers(self, number: int) -> Tensor | None:
        path = self._path(number)
        assert path is not None
        try:
            answers = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadInput(
                f"{path} can't be read: {error}. Delete it, and the teacher is trained again"
            ) from error
        return torch.from_numpy(answers) if answers.size else None


def _in_words(recipe: Any) -> str:
    """A recipe's description in a few words."""
    return ", ".join(f"{name} {value}" for name, value in recipe.items() if value is not None)[:300]


def fingerprint(*values: Tensor) -> str:
    """What tells records and queries from others: their SHA-256, as secret as they are."""
    total = hashlib.sha256()
    for value in values:
        total.update(f"{value.dtype} {tuple(value.shape)} ".encode())
        total.update(np.ascontiguousarray(value.cpu().numpy()).data)
    return total.hexdigest()


@checked
@final
class KeptFolder:
    """A folder that keeps a run of PATE: random streams, the teachers' predictions, and then the
    released answers.

    `Trained(..., folder=kept.folder)` and `pate(..., streams=kept.streams(), keep=kept.answers)`,
    run again after an interruption, go on where they were and end with the same answers, bit for
    bit. On a ledger in a file nothing is charged twice. The folder is as secret as the records:
    `delete` it when the student is published.

    Args:
        folder: where it is; made when the streams are.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def answers(self) -> Path:
        """The file of answers, for `keep=`; there once the teachers are asked."""
        return self.folder / "answers"

    @property
    def teachers(self) -> Path:
        """What `Trained` says of its teachers; there once records are given to them."""
        return self.folder / TEACHERS

    def streams(self, seed: int | None = None, *, discrete: bool = False) -> Streams:
        """The random streams as they were when the run first began, or new ones, which are kept.

        Without a seed they are of a secret, and have their keys when teachers are asked: these
        follow from the plan, the pool, the reducer and the teachers, too. Another question gets
        other noise, and what noise was drawn for is noted beside before: the same noise goes to no
        other sum.

        Args:
            seed, discrete: as of `Streams.new`; of a run that was begun, its own.

        Raises:
            BadInput: the folder can't be read or written, or is of an earlier version.
        """
        file = Checkpoint(self.folder / "streams")
        saved = file.read()
        if saved is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = {
                "secret": secrets.token_hex(64),
                "key": secrets.token_hex(64),
                "discrete": discrete,
            }
            seeded = (
                {} if seed is None else {"streams": Streams.new(seed, discrete=discrete).state()}
            )
            saved = Saved({}, seeded or fresh)
            file.write(saved)
        try:
            if "streams" in saved.plain:
                return _read_streams(saved.plain["streams"])
            secret, key = (bytes.fromhex(saved.plain[name]) for name in ("secret", "key"))
            streams = Streams.of_secret(secret, key, discrete=bool(saved.plain["discrete"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"{file.path} holds no random streams: {error}. Begin anew, in another folder"
            ) from error
        repeats = Repeats(file)
        repeats.recall()
        streams.noise.watch = repeats.see
        return streams

    def delete(self) -> None:
        """Nothing is left to go on from."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read_streams(state: dict[str, Any]) -> Streams:
    """Streams of a declared seed, as they were kept.

    Raises:
        BadInput: they have no seed: an earlier version kept them, whose noise would go to any
            question.
    """
    streams = Streams.at(state)
    if not streams.seeded:
        raise BadInput(
            "the folder was begun by an earlier version, whose noise does not follow from what is "
            "asked: finish the run with that version, or begin anew, in another folder"
        )
    return streams


Places = NDArray[np.int64]


def drawn(data: Dataset, teachers: int, rng: np.random.Generator) -> Places:
    """For each row its teacher, drawn independently and uniformly; a person's rows stay
    together.
    """
    block_of = assign(data.examples, count("teachers", teachers), rng)
    if data.groups is None:
        return block_of
    return block_of[np.unique(np.asarray(data.groups), return_inverse=True)[1].reshape(-1)]


def by_site(data: Dataset, sites: Any) -> tuple[Places, int]:
    """For each row its teacher where each site is one, and how many there are: the public sites, in
    their order.

    Raises:
        BadInput: not one site for each row, or a person at two sites.
    """
    ids = np.asarray(sites)
    if ids.shape != (len(data.x),) or ids.dtype.kind not in "iuUSb":
        raise BadInput(
            f"sites have the shape {ids.shape} and type {ids.dtype}, for {len(data.x)} rows: "
            "expected the id of a site, a whole number or a text, for each row"
        )
    names, place = np.unique(ids, return_inverse=True)
    shards = place.reshape(-1).astype(np.int64)
    _require_persons_apart(data, shards)
    return shards, len(names)


def by_rows(data: Dataset, shards: Sequence[Any]) -> tuple[Places, int]:
    """For each row its teacher (-1: none), where the rows of each teacher are given, and how many
    there are.

    Raises:
        BadInput: a row that there isn't, or one in two shards.
    """
    assigned = np.full(len(data.x), -1, dtype=np.int64)
    for number, shard in enumerate(shards):
        rows = np.asarray(shard)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise BadInput(
                f"shard {number} has shape {rows.shape} and type {rows.dtype}: expected numbers of "
                "rows"
            )
        rows = rows.astype(np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < len(assigned)):
            raise BadInput(
                f"shard {number} has rows outside 0 to {len(assigned) - 1}: expected numbers of "
                "rows of the data"
            )
        if len(np.unique(rows)) < len(rows) or bool((assigned[rows] >= 0).any()):
            raise BadInput(
                f"shard {number} holds a row that another one holds too, or holds one twice: "
                "shards overlap, and one record would move two teachers. Give each row to one "
                "teacher",
                shard=number,
            )
        assigned[rows] = number
    _require_persons_apart(data, assigned)
    return assigned, len(shards)


def _require_persons_apart(data: Dataset, place: Places) -> None:
    """Refuse shards in which one person is with two teachers."""
    if data.groups is None:
        return
    person = np.unique(np.asarray(data.groups), return_inverse=True)[1].reshape(-1)
    used = place >= 0
    pairs = np.unique(np.stack([person[used], place[used]]), axis=1)
    if len(np.unique(pairs[0])) < pairs.shape[1]:
        raise BadInput(
            "a person's rows are with two teachers: shards overlap, and one person would move "
            "both. Give all rows of a person to one teacher, or leave out groups to protect single "
            "rows"
        )
