"""Named checks of what PATE keeps, describes and tries beforehand; mutations must make them
fail.
"""

from __future__ import annotations

import json
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.methods import pate as teachers
from privlearn.methods.pate import answers, recipes, trained
from privlearn.methods.pate import pate as pate_module
from privlearn.runs.checkpoint import Checkpoint, Saved
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws
from tests.teachers.checks import SIZE, Said, public
from tests.teachers.checks_teachers import private

POOL = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
VOTES = [(torch.arange(30) + number // 5) % 3 for number in range(6)]
MAPS = [
    torch.randn(30, *SIZE, generator=torch.Generator().manual_seed(number)) for number in range(6)
]
VOTE_PLAN = pv.teachers.PatePlan(30, 6, pv.teachers.Votes(3)).calibrate(epsilon=20.0, delta=1e-5)


class Stopped(BaseException):
    """The process is gone."""


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@final
class Asleep(teachers.Teachers):
    """Teachers who are not to be asked."""

    def __init__(self, like: teachers.Teachers) -> None:
        self._like = like

    @property
    def count(self) -> int:
        return self._like.count

    def require_covered(self, adjacency: Any, unit: Any) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return self._like.describe()

    def answers(
        self, inputs: Tensor, streams: Streams, progress: Any = None, shapes: Any = None
    ) -> Iterator[Tensor]:
        raise AssertionError("teachers are asked again")


def linear(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Linear(5, 3))


def mapper(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, SIZE))


#: Plans with their teachers, reducers and networks.
CASES: list[tuple[pv.teachers.PatePlan, Said, Any, Callable[[tuple[int, ...]], nn.Module]]] = [
    (VOTE_PLAN, Said(*VOTES), None, linear),
    (
        pv.teachers.PatePlan(30, 6, pv.teachers.ConfidentVotes(3, 3.0, 9)).calibrate(
            epsilon=20.0, delta=1e-5
        ),
        Said(*VOTES),
        None,
        linear,
    ),
    (
        pv.teachers.PatePlan(30, 6, pv.teachers.Ball(2.0)).calibrate(epsilon=20.0, delta=1e-5),
        Said(*MAPS),
        teachers.PublicPCA.fit(public(), 2),
        mapper,
    ),
]


def go(
    case: Any, student: Any = None, said: Any = None, seed: int | None = 3, **more: Any
) -> pv.Result:
    plan, own, reducer, make = case
    streams = more.pop("streams", None) or Streams.new(seed)
    return pv.pate(
        plan,
        said or own,
        reducer,
        POOL,
        student or pv.teachers.Student(make, epochs=2),
        streams=streams,
        **more,
    )


def weights(result: pv.Result) -> Tensor:
    return torch.cat([value.flatten() for value in result.model.state_dict().values()])


def silent() -> Streams:
    """Streams from which no noise may be drawn."""
    return replace(Streams.new(9), noise=NoDraws())  # type: ignore[arg-type]


def fails(answers: pv.teachers.Answers) -> nn.Module:
    raise Stopped


def require_one_charge(path: Path, plan: pv.teachers.PatePlan) -> None:
    entries = LedgerFile(path).read().entries
    assert [(entry.open, entry.spent) for entry in entries] == [(False, plan.event())], entries


@check
def check_kept_answers_are_paid_for_once() -> None:
    """Killed in the student: taken up without teachers or noise, the same weights and settings, one
    charge in all.
    """
    for case in CASES:
        whole = go(case)
        with folder() as here:
            for ledger in (None, here / "ledger.json"):
                keep = here / ("in-memory" if ledger is None else "on-file")

                def opened(path: Path | None = ledger) -> Ledger | None:
                    return None if path is None else Ledger.open(path, case[0].budget)  # noqa: B023

                must_raise(Stopped, lambda k=keep, o=opened: go(case, fails, ledger=o(), keep=k))  # type: ignore[misc,arg-type] # noqa: B023
                if ledger is not None:
                    require_one_charge(ledger, case[0])
                for _ in range(2):
                    again = go(
                        case, said=Asleep(case[1]), streams=silent(), ledger=opened(), keep=keep
                    )
                    assert torch.equal(weights(again), weights(whole))
                    assert again.facts | {"teacher": None} == whole.facts | {"teacher": None}
                    assert again.ledger.event == case[0].event()
                    assert again.seeded is whole.seeded
                    assert not dict(again.private_diagnostics)
                if ledger is not None:
                    require_one_charge(ledger, case[0])


@check
def check_killed_while_asking_draws_the_same_noise() -> None:
    """In the midst of the releases, or just before the books are closed: the same sums, the same
    noise, one charge.
    """
    release, settle = answers._release, Ledger.settle
    for case in CASES:
        whole = go(case)
        for last in (0, 4, 10**9):
            calls = [0]

            def released(*args: Any, calls: list[int] = calls, last: int = last) -> Tensor:
                calls[0] += 1
                if calls[0] > last:
                    raise Stopped
                return release(*args)

            def settled(self: Ledger, last: int = last) -> None:
                if last == 10**9:
                    raise Stopped
                settle(self)

            with folder() as here:
                path, keep = here / "ledger.json", here / "kept"
                with (
                    mock.patch.object(answers, "_release", released),
                    mock.patch.object(Ledger, "settle", settled),
                ):
                    must_raise(
                        Stopped,
                        lambda: go(case, ledger=Ledger.open(path, case[0].budget), keep=keep),  # noqa: B023
                    )  # type: ignore[arg-type]
                assert keep.exists()
                assert keep.stat().st_mode & 0o077 == 0
                ledger = Ledger.open(path, case[0].budget)
                again = go(
                    case, said=Asleep(case[1]), streams=Streams.new(11), ledger=ledger, keep=keep
                )
                assert torch.equal(weights(again), weights(whole)), last
                assert again.facts | {"teacher": None} == whole.facts | {"teacher": None}
                require_one_charge(path, case[0])


@check
def check_kept_answers_are_what_was_released() -> None:
    """No sums, no keys, nothing of the teachers is left in the file when it has the answers."""
    for case in CASES:
        with folder() as here:
            streams = Streams.new()
            go(case, streams=streams, keep=here / "kept")
            saved = Checkpoint(here / "kept").read()
            assert saved is not None
            assert set(saved.tensors) <= {"targets", "answered", "scores"}
            assert set(saved.plain) == {"state", "facts", "run", "seeded", "discrete"}
            assert set(saved.plain["facts"]) == {"plan", "public inputs", "teachers", "reducer"}
            assert streams.noise.key.hex() not in json.dumps(dict(saved.plain))
            assert [each.name for each in here.iterdir() if "lock" not in each.name] == ["kept"]


@check
def check_kept_answers_belong_to_their_run() -> None:
    """Another plan, pool, reducer, teacher or ledger is refused, and charged nothing."""
    plan, said, _, _ = CASES[0]
    maps = CASES[2]

    def ask(
        plan: Any, said: Any, reducer: Any, pool: Tensor, keep: Path, ledger: Ledger | None = None
    ) -> Any:
        return pate_module.ask_teachers(
            plan, said, reducer, pool, streams=Streams.new(1), ledger=ledger, keep=keep
        )

    with folder() as here:
        ask(plan, said, None, POOL, here / "votes")
        ask(*maps[:3], POOL, here / "maps")
        ask(plan, said, None, POOL, here / "on-file", Ledger.open(here / "one.json", create=True))
        ledger = Ledger()
        louder = replace(plan, noise_multiplier=2 * plan.noise)
        others: list[tuple[Any, ...]] = [
            (louder, said, None, POOL, here / "votes", ledger),
            (
                replace(plan, adjacency=pv.accounting.Adjacency.REPLACE_ONE),
                said,
                None,
                POOL,
                here / "votes",
                ledger,
            ),
            (plan, said, None, POOL + 1, here / "votes", ledger),
            (plan, teachers.Trained(private(), described, 6), None, POOL, here / "votes", ledger),
            (maps[0], said, teachers.PublicPCA.fit(public(seed=1), 2), POOL, here / "maps", ledger),
            (plan, said, None, POOL, here / "on-file", ledger),
            (plan, said, None, POOL, here / "on-file", Ledger.open(here / "two.json", create=True)),
            (plan, said, None, POOL, here / "votes", Ledger.open(here / "two.json", create=True)),
        ]
        for other in others:
            must_raise(BadInput, lambda o=other: ask(*o))  # type: ignore[misc]
        assert ledger.event == Ledger().event == Ledger.open(here / "two.json").event


@check
def check_a_kept_folder_ends_as_it_would_have() -> None:
    """Killed in the student, by streams of nobody's seed: streams, teachers and answers come from
    the folder.
    """
    plan = pv.teachers.PatePlan(30, 4, pv.teachers.Votes(3)).calibrate(epsilon=20.0, delta=1e-5)
    with folder() as here:
        kept = pv.teachers.KeptFolder(str(here / "kept"))
        assert not kept.answers.exists()
        assert not kept.teachers.exists()
        case = (plan, teachers.Trained(private(), described, 4, folder=kept.folder), None, linear)
        must_raise(Stopped, lambda: go(case, fails, streams=kept.streams(), keep=kept.answers))
        assert kept.answers.exists()
        assert kept.teachers.exists()
        first = go(case, streams=kept.streams(), keep=kept.answers)
        with mock.patch.object(
            trained, "taught", side_effect=AssertionError("a teacher is trained again")
        ):
            again = go(case, streams=kept.streams(3), keep=kept.answers)
        assert torch.equal(weights(first), weights(again))
        assert not again.seeded
        kept.answers.unlink()  # as if it was killed before they were asked
        with mock.patch.object(
            trained, "taught", side_effect=AssertionError("a teacher is trained again")
        ):
            assert torch.equal(
                weights(first), weights(go(case, streams=kept.streams(), keep=kept.answers))
            )
        kept.delete()
        assert not kept.folder.exists()


@final
class Moody(teachers.Teachers):
    """Teachers of a kind of their own, of whom nothing tells that they changed their minds."""

    def __init__(self, votes: list[Tensor]) -> None:
        self._votes = votes

    @property
    def count(self) -> int:
        return len(self._votes)

    def require_covered(self, adjacency: Any, unit: Any) -> None:
        pass

    def answers(
        self, inputs: Tensor, streams: Streams, progress: Any = None, shapes: Any = None
    ) -> Iterator[Tensor]:
        yield from self._votes


@check
def check_noise_of_a_kept_folder_is_for_one_question() -> None:
    """Another plan, pool or teachers get other noise, with the answers deleted, in another file or
    in none at all.
    """
    votes = torch.stack([nn.functional.one_hot(own, 3) for own in VOTES]).sum(0).double()
    plan = replace(VOTE_PLAN, noise_multiplier=5.0)
    louder = replace(plan, noise_multiplier=10.0)

    def given(changed: int = 0) -> teachers.Given:
        place = here / f"said-{changed}"
        place.mkdir(exist_ok=True)
        for each, own in enumerate(VOTES):
            np.savez(place / f"{each}.npz", predictions=(own + (each == 0) * changed) % 3)
        return teachers.Given(place)

    def ask(plan: Any, said: Any, pool: Tensor = POOL, keep: Path | None = None) -> Tensor:
        own = pate_module.ask_teachers(plan, said, None, pool, streams=kept.streams(), keep=keep)
        assert own.scores is not None
        assert not own.seeded
        return own.scores

    with folder() as here, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = teachers.KeptFolder(here / "kept")
        first = ask(plan, given(), keep=kept.answers)
        assert "differs" in str(
            must_raise(BadInput, lambda: ask(louder, given(), keep=kept.answers))
        )
        kept.answers.unlink()
        noise = first - votes
        for scores, factor in (
            (ask(louder, given(), keep=kept.answers), 2.0),
            (ask(louder, given(), keep=here / "second"), 2.0),
            (ask(plan, given(1)), 1.0),
            (ask(plan, given(), POOL + 1), 1.0),
        ):
            assert float((scores - votes - factor * noise).abs().mean()) > 1.0
        assert torch.equal(ask(plan, given()), first)  # the same sums: the same release
        moody = ask(plan, Moody(VOTES))
        assert torch.equal(moody, ask(plan, Moody(VOTES)))
        changed = [(VOTES[0] + 1) % 3, *VOTES[1:]]
        assert "the same noise on other sums" in str(
            must_raise(BadInput, lambda: ask(plan, Moody(changed)))
        )
        seeded = teachers.KeptFolder(here / "seeded")
        assert seeded.streams(3).noise.key == seeded.streams().noise.key == Streams.new(3).noise.key
        old = teachers.KeptFolder(here / "old")
        old.streams()
        Checkpoint(old.folder / "streams").write(Saved({}, {"streams": Streams.new().state()}))
        assert "earlier version" in str(must_raise(BadInput, old.streams))


# Descriptions


def described(x: Tensor, y: Tensor) -> Any:
    return lambda inputs: inputs[:, 0]


def other(x: Tensor, y: Tensor) -> Any:
    return lambda inputs: inputs[:, 1]


@check
def check_teachers_of_another_recipe_are_not_taken() -> None:
    """From a folder: estimators by class and parameters, networks by layers, functions by name and
    code.
    """
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression

    def fit(module: nn.Module, x: Tensor, y: Tensor) -> None:
        pass

    def no_fit(module: nn.Module, x: Tensor, y: Tensor) -> None:
        module.zero_grad()

    made: list[Any] = [
        teachers.Estimator(lambda: LogisticRegression()),
        teachers.Estimator(lambda: LogisticRegression(C=0.1)),
        teachers.Estimator(lambda: LogisticRegression(), classes=3),
        teachers.Estimator(lambda: ExtraTreesClassifier(3)),
        teachers.Network(lambda: nn.Linear(4, 3), fit),
        teachers.Network(lambda: nn.Linear(4, 3, bias=False), fit),
        teachers.Network(lambda: nn.Linear(4, 3), no_fit),
        teachers.Spreading(public(rows=12), 3),
        teachers.Spreading(public(rows=12), 3, alpha=0.5),
        described,
        other,
        lambda x, y: lambda inputs: inputs[:, 2],
        lambda x, y: lambda inputs: inputs[:, 3],
        lambda x, y: lambda inputs: inputs[:, 3] + 1,
        lambda x, y: lambda inputs: inputs[:, 3] - 1,
    ]
    found = [json.dumps(recipes.described(recipe)) for recipe in made]
    assert len(set(found)) == len(found), found
    assert found == [json.dumps(recipes.described(recipe)) for recipe in made]
    assert not any(" at 0x" in text for text in found)
    data, asked = private(), torch.zeros(2, 4)
    with folder() as here:
        list(teachers.Trained(data, made[9], 4, folder=here / "own").answers(asked, Streams.new(0)))
        for recipe in (made[0], made[4], made[10], made[11]):
            mixed = teachers.Trained(data, recipe, 4, folder=here / "own")
            error = must_raise(BadInput, lambda t=mixed: list(t.answers(asked, Streams.new(0))))  # type: ignore[misc]
            assert "another recipe" in str(error)
        moved = teachers.Trained(
            replace(data, y=data.y.copy() * 0), made[9], 4, folder=here / "own"
        )
        must_raise(BadInput, lambda: moved.require_same(asked))
        teachers.Trained(data, made[9], 4, folder=here / "own").require_same(asked)
        assert moved.describe() == teachers.Trained(data, made[9], 4).describe()


# Students


class Counting(nn.Module):
    """Remembers in a buffer how often it was run."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(1))
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("runs").add_(1)
        out: Tensor = self.inner(x)
        return out


UNFIT: list[tuple[int, pv.teachers.Student]] = [
    (0, pv.teachers.Student(lambda shape: nn.Linear(5, 3))),
    (0, pv.teachers.Student(lambda shape: nn.Linear(4, 2))),
    (0, pv.teachers.Student(lambda shape: nn.Linear(4, 4))),
    (0, pv.teachers.Student(linear, "mse")),
    (0, pv.teachers.Student(linear, "binary_cross_entropy")),
    (0, pv.teachers.Student(lambda shape: nn.Linear(4, 1), nn.MSELoss(reduction="none"))),
    (0, pv.teachers.Student(lambda shape: nn.Flatten)),  # type: ignore[arg-type,return-value]
    (0, pv.teachers.Student(linear, augment=lambda inputs: inputs[:, :2])),
    (2, pv.teachers.Student(linear)),
    (2, pv.teachers.Student(lambda shape: nn.Linear(4, 6))),
    (
        2,
        pv.teachers.Student(
            lambda shape: nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (1, 3))), nn.MSELoss()
        ),
    ),
    (2, pv.teachers.Student(mapper, spread=pv.teachers.Spread())),
]


@check
def check_students_that_fail_cost_nothing() -> None:
    """What is wrong with them shows on made-up answers, before a teacher is asked or anything is
    charged.
    """
    for number, student in UNFIT:
        plan, said, reducer, _ = CASES[number]
        ledger = Ledger()
        asleep = Asleep(said)
        must_raise(
            BadInput,
            lambda p=plan, t=asleep, r=reducer, s=student, own=ledger: pv.pate(
                p, t, r, POOL, s, ledger=own
            ),  # type: ignore[misc]
        )
        assert ledger.event == Ledger().event


@check
def check_trying_a_student_changes_nothing() -> None:
    """What it learns is what it learns without, to the last bit; generators are where they were."""
    for case in CASES:
        plan, said, reducer, make = case
        asked = pv.teachers.ask_teachers(plan, said, reducer, POOL, streams=Streams.new(3))
        for student in (
            pv.teachers.Student(make, epochs=2),
            pv.teachers.Student(make, epochs=1, seed=4),
        ):
            alone = pv.teachers.teach_student(asked, student)
            assert torch.equal(weights(go(case, student)), weights(alone))
            assert torch.equal(weights(pv.teachers.teach_student(asked, student)), weights(alone))
    one = Counting()
    state = np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state()  # type: ignore[index,union-attr] # noqa: NPY002
    go(CASES[0], pv.teachers.Student(lambda shape: one, epochs=1))
    assert float(one.get_buffer("runs")) == 1.0, (
        "the network that was tried is the one that is taught"
    )
    assert np.array_equal(state[0], np.random.get_state()[1])  # type: ignore[index] # noqa: NPY002
    assert state[1] == random.getstate()
    assert torch.equal(state[2], torch.get_rng_state())


@check
def check_losses_follow_from_the_answers() -> None:
    """Cross-entropy for classes, squared errors for what is decoded; functions of their values'
    mean.
    """
    told = [
        go(case, pv.teachers.Student(case[3], epochs=1)).facts["student"]["loss"] for case in CASES
    ]
    assert told == ["cross_entropy", "cross_entropy", "mse"]
    for number, name, function in (
        (0, "cross_entropy", nn.CrossEntropyLoss),
        (2, "mse", nn.MSELoss),
    ):
        case = CASES[number]
        by_name, by_rows, whole = (
            go(case, pv.teachers.Student(case[3], loss, epochs=2))
            for loss in (name, function(reduction="none"), function())
        )
        assert torch.allclose(weights(by_name), weights(by_rows), atol=1e-5)
        assert torch.equal(weights(by_name), weights(whole))
        assert by_rows.facts["student"]["loss"] == function.__name__
    error = must_raise(BadInput, lambda: go(CASES[0], pv.teachers.Student(linear, "mse")))
    assert "the answers are classes" in str(error)
