"""Named checks of PATE's teachers, reducers and certificates; mutations must make them fail."""

from __future__ import annotations

import io
import json
import math
import random
import tempfile
import warnings
import weakref
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting.events import walk
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.methods import pate as teachers
from privlearn.methods.pate import answers, reducers
from privlearn.methods.pate import recipes as recipes_module
from privlearn.methods.pate import trained as shards_module
from privlearn.publishing import certificate, publish
from privlearn_segmentation import Seen
from tests.support.checks import check, must_raise
from tests.support.nets import one_sample
from tests.teachers.checks import ADD, REPLACE, SIZE, Said, public

# Teachers


def private(rows: int = 60, seed: int = 0, **more: Any) -> pv.Dataset:
    made_up = np.random.default_rng(seed)
    return pv.Dataset(made_up.normal(size=(rows, 4)), made_up.integers(3, size=rows), **more)


@check
def check_each_record_is_with_one_teacher() -> None:
    """Drawn by position alone, whatever a record holds; independently; persons stay together;
    overlaps are refused.
    """
    data, other = private(600), private(600, seed=1)
    place = shards_module.drawn(data, 5, Streams.new(3).sampling)
    assert np.array_equal(place, shards_module.drawn(other, 5, Streams.new(3).sampling))
    assert set(place) == set(range(5))
    counts = np.bincount(place)
    assert counts.std() > 0, "shards of one size: a record's teacher follows from the others'"
    runs = int((np.diff(place) != 0).sum())
    assert 420 < runs < 540, "records are assigned in blocks"
    persons = private(600, groups=np.arange(600) // 7)
    place = shards_module.drawn(persons, 5, Streams.new(3).sampling)
    for person in range(600 // 7):
        assert len(set(place[np.arange(600) // 7 == person])) == 1
    for overlapping in ([[0, 1], [1, 2]], [[0, 0], [1]]):
        must_raise(
            BadInput,
            lambda shards=overlapping: teachers.Trained(data, lambda x, y: None, shards=shards),
        )  # type: ignore[misc,arg-type,return-value]
    must_raise(
        BadInput,
        lambda: shards_module.by_rows(private(60, groups=np.arange(60) // 2), [[0, 2], [1, 3]]),
    )
    must_raise(
        BadInput,
        lambda: shards_module.by_site(private(60, groups=np.arange(60) // 2), np.arange(60) % 2),
    )
    place, number = shards_module.by_site(private(6), ["a", "b", "a", "c", "b", "a"])
    assert (place.tolist(), number) == ([0, 1, 0, 2, 1, 0], 3)


@check
def check_persons_are_protected_where_they_are_known() -> None:
    """At the price of a record, if the data say whose each row is; and nowhere by plans that draw
    rows.
    """
    rows = pv.teachers.PatePlan(2, 6, pv.teachers.Votes(3), noise_multiplier=5.0)
    plan = replace(rows, persons=True)
    assert plan.event() == rows.event()
    assert plan.guarantee(1e-5).epsilon == rows.guarantee(1e-5).epsilon
    assert str(plan.guarantee(1e-5).unit).startswith("one person")
    assert plan.unit != rows.unit
    said = teachers.Trained(private(), lambda x, y: lambda inputs: inputs[:, 0], 6)
    must_raise(
        BadInput, lambda: answers.sum_answers(plan, said, None, torch.zeros(2, 4), Streams.new(0))
    )
    known = teachers.Trained(
        private(groups=np.arange(60) // 4), lambda x, y: lambda inputs: inputs[:, 0], 6
    )
    answers.sum_answers(plan, known, None, torch.zeros(2, 4), Streams.new(0))
    must_raise(BadInput, lambda: replace(plan, group_size=2))
    must_raise(BadInput, lambda: pv.Plan(pv.Poisson(0.1), rows_per_person="all"))  # type: ignore[arg-type]
    must_raise(BadInput, lambda: pv.accounting.PrivacyUnit(rows_per_person="most"))


@check
def check_sites_are_not_for_replaced_records() -> None:
    """A record that is replaced by one of another site would move two teachers."""
    at_sites = teachers.Trained(private(), lambda x, y: lambda q: q[:, 0], sites=np.arange(60) % 3)  # type: ignore[arg-type,return-value]
    plan = pv.teachers.PatePlan(2, 3, pv.teachers.Votes(3), noise_multiplier=5.0, adjacency=REPLACE)
    must_raise(
        BadInput,
        lambda: answers.sum_answers(plan, at_sites, None, torch.zeros(2, 4), Streams.new(0)),
    )
    answers.sum_answers(
        replace(plan, adjacency=ADD), at_sites, None, torch.zeros(2, 4), Streams.new(0)
    )


@check
def check_records_of_persons_are_not_for_replaced_records() -> None:
    """Assigned by person, a record that becomes another person's moves two teachers: refused, for
    any group size.
    """
    ids = np.repeat(np.arange(20), 3)

    def votes(groups: Any) -> Tensor:
        def recipe(x: Tensor, y: Tensor) -> Any:
            return lambda inputs: torch.full((len(inputs),), len(x) % 2)

        counts, _ = answers.sum_answers(
            plan,
            teachers.Trained(private(groups=groups), recipe, 8),
            None,
            torch.zeros(2, 4),
            Streams.new(5),
        )
        return counts.bounded(0, one_sample(), ADD).values[0]

    plan = pv.teachers.PatePlan(2, 8, pv.teachers.Votes(3), noise_multiplier=5.0)
    moved = max(
        float((votes(ids) - votes(np.array([other, *ids[1:]]))).norm()) for other in range(20)
    )
    assert math.isclose(moved, 2 * plan.aggregate.sensitivity), (
        "so it is one teacher: why is it refused?"
    )
    known = teachers.Trained(private(groups=ids), lambda x, y: lambda q: q[:, 0], 8)  # type: ignore[arg-type,return-value]
    through = Seen(known, lambda said: said)
    inputs, student = torch.zeros(2, 4), pv.teachers.Student(lambda shape: nn.Linear(4, 3))
    for size in (1, 2):
        replaced = replace(plan, adjacency=REPLACE, group_size=size)
        for said in (known, through):
            ledger = pv.Ledger()
            must_raise(
                BadInput,
                lambda p=replaced, s=said, b=ledger: pv.pate(p, s, None, inputs, student, ledger=b),
            )  # type: ignore[misc]
            assert ledger.event.events == ()
        for adjacency in (ADD, Adjacency.ZERO_OUT):
            answers.sum_answers(
                replace(replaced, adjacency=adjacency), known, None, inputs, Streams.new(0)
            )
    answers.sum_answers(
        replace(plan, adjacency=REPLACE, persons=True), known, None, inputs, Streams.new(0)
    )
    rows = teachers.Trained(private(), lambda x, y: lambda q: q[:, 0], 8)  # type: ignore[arg-type,return-value]
    assert (rows.describe()["assigned_by"], through.describe()["assigned_by"]) == ("row", "person")
    answers.sum_answers(replace(plan, adjacency=REPLACE), rows, None, inputs, Streams.new(0))


@check
def check_certificates_say_that_a_record_changes_one_teacher() -> None:
    """Those for replaced records say that teachers were assigned row by row, or are for persons;
    others are refused.
    """

    def recipe(x: Tensor, y: Tensor) -> Any:
        return lambda inputs: torch.zeros(len(inputs), dtype=torch.int64)

    def published(groups: Any, teacher: dict[str, Any], **plan: Any) -> pv.Verification:
        own = pv.teachers.PatePlan(30, 6, pv.teachers.Votes(3), **plan).calibrate(
            epsilon=20.0, delta=1e-5
        )
        student = pv.teachers.Student(
            lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0)), epochs=1
        )
        result = pv.pate(
            own,
            teachers.Trained(private(groups=groups), recipe, 6),
            None,
            torch.zeros(30, 4),
            student,
        )
        result = replace(
            result, facts=result.facts | {"teacher": result.facts["teacher"] | teacher}
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(publish, "_require_own_facts"),
        ):
            return pv.verify(pv.publish(result, Path(folder) / "m", model_spec="linear", classes=3))

    ids = np.arange(60) // 3
    for fine in (
        published(None, {}, adjacency=REPLACE),
        published(None, {}, adjacency=REPLACE, group_size=2),
        published(ids, {}, adjacency=REPLACE, persons=True),
        published(ids, {"records": "by site"}, adjacency=ADD),
        published(ids, {}, adjacency=Adjacency.ZERO_OUT, group_size=2),
    ):
        assert fine.ok, fine.problems
    for wrong in (
        published(None, {"assigned_by": "person"}, adjacency=REPLACE),
        published(None, {"assigned_by": None}, adjacency=REPLACE),
        published(None, {"assigned_by": "person"}, adjacency=REPLACE, group_size=2),
        published(None, {"records": "by site"}, adjacency=REPLACE),
        published(ids, {"records": "by site"}, adjacency=REPLACE, persons=True),
    ):
        assert "changes two teachers" in " ".join(wrong.problems)


def _drawing(x: Tensor, y: Tensor) -> Any:
    """A teacher that draws from every global generator, more or less often as its records have
    it.
    """
    for _ in range(int(x[:, 0].abs().sum() * 10) % 17):
        np.random.random(), random.random(), torch.rand(1)  # noqa: NPY002
    drawn = [np.random.random(), random.random(), float(torch.rand(1))]  # noqa: NPY002
    return lambda inputs: torch.tensor(drawn, dtype=torch.float64).expand(len(inputs), 3)


@check
def check_a_record_reaches_no_other_teacher() -> None:
    """Also where recipes draw from global generators; and those are afterwards what they were."""
    data = private()
    changed = replace(data, x=np.where(np.arange(60)[:, None] == 7, 50.0, data.x))
    asked = torch.zeros(2, 4)

    def said(own: pv.Dataset) -> list[Any]:
        return list(teachers.Trained(own, _drawing, 6).answers(asked, Streams.new(0)))

    state = np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state()  # type: ignore[index,union-attr] # noqa: NPY002
    one, two = said(data), said(changed)
    own = shards_module.drawn(data, 6, Streams.new(0).sampling)[7]
    for number, (before, after) in enumerate(zip(one, two, strict=True)):
        assert number == own or torch.equal(before, after), (
            f"teacher {number} moved with a record of teacher {own}"
        )
    for column in range(3):
        assert len({float(each[0, column]) for each in one}) == 6, "teachers draw the same"
    assert np.array_equal(state[0], np.random.get_state()[1])  # type: ignore[index] # noqa: NPY002
    assert state[1] == random.getstate()
    assert torch.equal(state[2], torch.get_rng_state())


@check
def check_a_teacher_that_fails_says_nothing() -> None:
    """No error, no warning: a count for the curator alone. What fails on made-up rows is refused
    beforehand.
    """
    data = private()
    cursed = replace(data, x=np.where(np.arange(60)[:, None] == 7, 1e9, data.x))

    def recipe(x: Tensor, y: Tensor) -> Any:
        if float(x.abs().max()) > 1e8:
            raise RuntimeError("a secret")
        return lambda inputs: torch.zeros(len(inputs))

    plan = pv.teachers.PatePlan(2, 6, pv.teachers.Votes(3), noise_multiplier=5.0)
    counts, silent = answers.sum_answers(
        plan, teachers.Trained(cursed, recipe, 6), None, torch.zeros(2, 4), Streams.new(0)
    )
    assert silent == 1
    assert counts.counts.sum(1).tolist() == [5.0, 5.0]  # type: ignore[union-attr]

    def wrong(x: Tensor, y: Tensor) -> Any:
        raise RuntimeError("always")

    error = must_raise(
        BadInput,
        lambda: list(teachers.Trained(data, wrong, 6).answers(torch.zeros(2, 4), Streams.new(0))),
    )
    assert "always" in str(error)


@check
def check_a_teacher_of_fewer_classes_says_nothing() -> None:
    """Scores for the classes that a shard has, only: no vote, no word; and columns in their places
    with `classes`.
    """
    from sklearn.linear_model import LogisticRegression

    def knows(x: Tensor, y: Tensor) -> Any:
        return lambda inputs: torch.zeros(len(inputs), 3 if len(y) > 30 or 2 in y else 2)

    data = private()
    few = replace(
        data,
        y=np.where(shards_module.drawn(data, 6, Streams.new(0).sampling) == 2, data.y % 2, data.y),
    )
    plan = pv.teachers.PatePlan(2, 6, pv.teachers.Votes(3), noise_multiplier=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counts, silent = answers.sum_answers(
            plan, teachers.Trained(few, knows, 6), None, torch.zeros(2, 4), Streams.new(0)
        )
    assert silent == 1
    assert counts.counts.sum(1).tolist() == [5.0, 5.0]  # type: ignore[union-attr]

    def in_its_own_columns(x: Tensor, y: Tensor) -> Any:
        fitted = LogisticRegression().fit(x.numpy(), y.numpy())
        return lambda inputs: fitted.predict_proba(inputs.numpy())

    wrong = teachers.Trained(data, in_its_own_columns, 6)
    error = must_raise(
        BadInput, lambda: answers.sum_answers(plan, wrong, None, torch.zeros(2, 4), Streams.new(0))
    )
    assert "made-up rows of two classes" in str(error)
    recipe = teachers.Estimator(lambda: LogisticRegression(), classes=5)
    for labels in ([1, 3], [-1, 3], [3, 9]):
        predict = recipe(torch.tensor([[0.0], [1.0]]), torch.tensor(labels))
        scores = predict(torch.tensor([[0.0], [1.0]]))
        there = [label for label in labels if 0 <= label < 5]
        assert scores.shape == (2, 5)
        assert set(np.flatnonzero(scores.sum(0)).tolist()) == set(there), scores


@check
def check_a_teacher_that_leaves_says_nothing() -> None:
    """`sys.exit` in a recipe does not end the run; what its owner interrupts does."""

    def leaves(x: Tensor, y: Tensor) -> Any:
        raise SystemExit(f"{len(x)} records are a secret")

    try:
        assert (
            recipes_module.taught(leaves, torch.zeros(3, 4), torch.zeros(3), torch.zeros(2, 4), 0)
            is None
        )
    except SystemExit as error:
        raise AssertionError("a recipe ended the run") from error

    def interrupted(x: Tensor, y: Tensor) -> Any:
        raise KeyboardInterrupt

    must_raise(
        KeyboardInterrupt, lambda: recipes_module.taught(interrupted, *[torch.zeros(3, 4)] * 3, 0)
    )  # type: ignore[arg-type]


@check
def check_teachers_are_no_one_object() -> None:
    """A factory that gives the same model, or the same parameters, again is refused."""
    from sklearn.linear_model import LogisticRegression

    one, net, layer = LogisticRegression(), nn.Linear(4, 3), nn.Linear(4, 3)
    for recipe in (
        teachers.Estimator(lambda: one),
        teachers.Network(lambda: net, lambda *_: None),
        teachers.Network(lambda: nn.Sequential(nn.Identity(), layer), lambda *_: None),
    ):
        must_raise(
            BadInput,
            lambda r=recipe: list(
                teachers.Trained(private(), r, 3).answers(torch.zeros(2, 4), Streams.new(0))
            ),
        )  # type: ignore[misc]


@check
def check_interrupted_teachers_go_on() -> None:
    """From the folder: the same assignment, seeds and answers, none trained twice; another data set
    is refused.
    """
    data, asked = private(), torch.zeros(2, 4)
    trained: list[int] = []

    def recipe(x: Tensor, y: Tensor) -> Any:
        trained.append(len(x))
        if len(trained) == 4:  # the rehearsal is one
            raise KeyboardInterrupt
        return _drawing(x, y)

    with tempfile.TemporaryDirectory() as folder:
        once = list(teachers.Trained(data, _drawing, 5).answers(asked, Streams.new(2)))
        kept = teachers.Trained(data, recipe, 5, folder=Path(folder) / "own")
        must_raise(KeyboardInterrupt, lambda: list(kept.answers(asked, Streams.new(2))))  # type: ignore[arg-type]
        again = list(kept.answers(asked, Streams.new(99)))
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))  # type: ignore[arg-type]
        assert len(trained) == 4 + 1 + 3, trained
        other = teachers.Trained(private(seed=1), recipe, 5, folder=Path(folder) / "own")
        must_raise(BadInput, lambda: list(other.answers(asked, Streams.new(2))))
        assert (Path(folder) / "own").stat().st_mode & 0o077 == 0


@check
def check_one_teacher_is_held_at_a_time() -> None:
    """Each teacher's answers are gone when the next teacher answers: memory does not grow with
    their number.
    """
    alive: list[weakref.ref[Any]] = []
    held: list[int] = []

    def recipe(x: Tensor, y: Tensor) -> Any:
        def predict(inputs: Tensor) -> Any:
            held.append(sum(each() is not None for each in alive))
            # becomes a tensor without a copy
            found = np.zeros((len(inputs), *SIZE), dtype=np.float32)
            alive.append(weakref.ref(found))
            return found

        return predict

    plan = pv.teachers.PatePlan(5, 12, pv.teachers.Ball(1.0), noise_multiplier=5.0)
    trained = teachers.Trained(private(), recipe, 12)
    answers.sum_answers(plan, trained, teachers.Identity(SIZE), torch.zeros(5, 4), Streams.new(0))
    assert len(held) == 13
    assert max(held) <= 1, held


@check
def check_given_predictions_are_read_one_by_one() -> None:
    """A file for each teacher; one that is given twice, answers to other queries or with no class,
    is refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            np.savez(Path(folder) / f"hospital-{number}.npz", predictions=np.full(4, number))
        found = teachers.Given(folder)
        assert found.count == 3
        assert [int(each[0]) for each in found.answers(torch.zeros(4, 2), Streams.new(0))] == [
            0,
            1,
            2,
        ]  # type: ignore[index]
        files = sorted(Path(folder).glob("*.npz"))
        must_raise(BadInput, lambda: teachers.Given([files[0], files[1], files[0]]))
        must_raise(BadInput, lambda: list(found.answers(torch.zeros(3, 2), Streams.new(0))))
        must_raise(
            BadInput, lambda: list(found.answers(torch.zeros(4, 2), Streams.new(0), None, [(2,)]))
        )
        assert len(list(found.answers(torch.zeros(4, 2), Streams.new(0), None, [(), (3,)]))) == 3
        must_raise(
            BadInput,
            lambda: list(found.answers(torch.zeros(4, 2), Streams.new(0), None, [(), (2,)])),
        )
        for wrong in (
            np.full(4, 0.5),
            np.full(4, -1),
            np.array([0, 1, np.nan, 1]),
            np.full((4, 3), np.inf),
        ):
            np.savez(files[1], predictions=wrong)
            must_raise(
                BadInput,
                lambda: list(found.answers(torch.zeros(4, 2), Streams.new(0), None, [(), (3,)])),
            )
        must_raise(BadInput, lambda: found.require_covered(Adjacency.REPLACE_ONE, PrivacyUnit()))


@check
def check_copies_of_predictions_are_noticed() -> None:
    """Under another name: refused where they are fractions, warned of where teachers may agree;
    other files pass.
    """
    made_up = np.random.default_rng(0)
    scores, labels = made_up.random((8, 3)), made_up.integers(3, size=8)
    near = scores.copy()
    near[0, 0] += 1e-3
    moved = (labels + (np.arange(8) == 0)) % 3
    votes = pv.teachers.PatePlan(8, 2, pv.teachers.Votes(3), noise_multiplier=0.1)
    for one, other, outcome in (
        (scores, scores, "refused"),
        (scores, near, "passes"),
        (scores.astype(np.float32), scores, "refused"),
        (labels, labels, "warned"),
        (labels, moved, "passes"),
        (np.eye(3)[labels], np.eye(3)[labels], "warned"),
        # few fractions, as of small forests
        (np.eye(3)[labels] / 2, np.eye(3)[labels] / 2, "warned"),
    ):
        with (
            tempfile.TemporaryDirectory() as folder,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            for name, said in (("a", one), ("b", other)):
                np.savez(Path(folder) / f"{name}.npz", predictions=said)
            ledger = pv.Ledger()

            def ask(given: Any = folder, book: Any = ledger) -> Any:
                return teachers.ask_teachers(
                    votes, teachers.Given(given), None, torch.zeros(8, 2), ledger=book
                )

            if outcome == "refused":
                assert "b.npz holds the same numbers as" in str(must_raise(BadInput, ask))
                assert not list(walk(ledger.event))
            else:
                ask()
        heard = [
            str(each.message)
            for each in caught
            if "holds the same predictions as" in str(each.message)
        ]
        assert len(heard) == (outcome == "warned"), (one, other, heard)


# Reducers


@check
def check_reducers_are_fitted_on_public_data() -> None:
    for data in (replace(public(), public=False), (torch.zeros(4, 2), torch.zeros(4, 3))):
        must_raise(BadInput, lambda d=data: teachers.PublicPCA.fit(d))  # type: ignore[misc,arg-type]
        must_raise(BadInput, lambda d=data: teachers.Autoencoder.fit(d, 2, 0.1, epochs=1))  # type: ignore[misc,arg-type]
        must_raise(BadInput, lambda d=data: teachers.Identity(SIZE).radius(d))  # type: ignore[misc,arg-type]
    must_raise(BadInput, lambda: teachers.Spreading(private(), 3))


@check
def check_components_are_chosen_by_the_noise() -> None:
    """Golden 32: losses 9.6, 5.2, 2.8, 2.4, 2.5, 3.0 for eigenvalues 5, 3, 1, .5, .1 and noise
    variance .6: three.
    """
    data = public(200, (5,))
    found = replace(
        teachers.PublicPCA.fit(data),
        eigenvalues=torch.tensor([5, 3, 1, 0.5, 0.1], dtype=torch.float64),
    )
    std = math.sqrt(0.6)
    losses = [found.loss(std, kept) for kept in range(6)]
    assert np.allclose(losses, [9.6, 5.2, 2.8, 2.4, 2.5, 3.0]), losses
    assert found.best(std) == 3 == int(np.argmin(losses))
    assert (found.best(0.2), found.best(3.0)) == (5, 0)
    assert "the public mean alone" in str(must_raise(BadInput, lambda: found.for_noise(3.0)))
    assert found.for_noise(std).size == 3
    assert math.isclose(found.for_noise(std).loss(std), 2.4)


@check
def check_the_closed_form_loss_is_what_is_measured() -> None:
    """Targets of the fitted distribution, encoded, with noise, decoded: to a twentieth."""
    data = public(4000, (8,))
    pca, made_up = teachers.PublicPCA.fit(data), torch.Generator().manual_seed(1)
    fresh = public(4000, (8,), seed=5).y
    for kept in (1, 4, 8):
        for std in (0.2, 1.0):
            codes = pca.kept(kept).encode(fresh)
            back = pca.kept(kept).decode(codes + std * torch.randn(codes.shape, generator=made_up))
            measured = float((back - fresh).square().sum(1).mean())
            assert math.isclose(measured, pca.loss(std, kept), rel_tol=0.05), (kept, std, measured)


@check
def check_the_activation_fills_the_unit_ball() -> None:
    """Golden 33 and 34; no input leaves the ball or overflows; directions in both signs, radii as
    uniform as stated.
    """
    grid = np.linspace(-8, 8, 200_001)
    logistic = 1 / (1 + np.exp(-math.sqrt(8 / math.pi) * grid))
    assert math.isclose(
        float(np.abs(logistic - stats.norm.cdf(grid)).max()), 0.0176712, abs_tol=1e-6
    )
    far = torch.zeros(1, 65)
    far[0, 0], far[0, 1] = -60.0, 3.0
    assert math.isclose(float(reducers.unit_ball(far).norm()), 0.224017, rel_tol=1e-5)
    for size in (1, 2, 8, 64):
        drawn = torch.randn(20_000, size + 1, generator=torch.Generator().manual_seed(size))
        z = reducers.unit_ball(drawn)
        radii = z.double().norm(dim=1).numpy()
        assert radii.max() <= 1 + 1e-6
        assert stats.kstest(radii**size, "uniform").statistic < 0.03
        assert float(z.mean(0).abs().max()) < 0.03
    for value in (0.0, 1e-38, 1e-20, 1e18, 1e30, 3e38, -1e30):
        for first in (-1e30, -60.0, 0.0, 1e30):
            wild = torch.full((1, 5), value)
            wild[0, 0] = first
            z = reducers.unit_ball(wild)
            assert bool(z.isfinite().all()), (value, first)
            assert float(z.norm()) <= 1 + 1e-6, (value, first)


@check
def check_autoencoders_code_into_the_ball() -> None:
    """Codes within norm 1 for any targets, so a ball of radius 1 clips nothing; they are trained
    with noise.
    """
    data = public(200)
    learned = {
        noise: teachers.Autoencoder.fit(data, 3, noise, epochs=15, learning_rate=3e-3)
        for noise in (0.0, 0.6)
    }
    targets = torch.cat([data.y, 1e6 * data.y])
    for each in learned.values():
        assert float(each.encode(targets).norm(dim=1).max()) <= 1 + 1e-6
        assert each.decode(each.encode(data.y)).shape == data.y.shape

    def error(each: Any, noise: float) -> float:
        codes = each.encode(data.y)
        codes = codes + noise * torch.randn(codes.shape, generator=torch.Generator().manual_seed(0))
        return float((each.decode(codes) - data.y).square().sum((1, 2)).mean())

    assert (
        error(learned[0.0], 0.0)
        < float((data.y - data.y.mean(0)).square().sum((1, 2)).mean()) * 0.8
    ), "nothing was learned"
    assert error(learned[0.6], 0.6) < error(learned[0.0], 0.6), "it was trained without the noise"


@check
def check_neighbours_leave_the_same_traces() -> None:
    """A record more or less, broken or fatal to its teacher: what is said, charged, drawn and
    stated is the same.
    """
    data = private()
    others = [
        replace(data, x=data.x[1:], y=data.y[1:]),
        replace(data, x=np.where(np.arange(60)[:, None] == 7, np.nan, data.x)),
        replace(data, y=np.where(np.arange(60) == 7, 2**40, data.y)),
    ]
    made_up = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    plan = pv.teachers.PatePlan(10, 6, pv.teachers.Votes(3)).calibrate(epsilon=30.0, delta=1e-5)
    student = pv.teachers.Student(
        lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0)), epochs=1
    )

    def recipe(x: Tensor, y: Tensor) -> Any:
        if not bool(x.isfinite().all()):
            warnings.warn("a secret", stacklevel=1)
            raise ValueError("a secret")
        return lambda inputs: torch.full((len(inputs),), int(y.max()))

    def traces(own: pv.Dataset) -> Any:
        streams, out, done = Streams.new(0), io.StringIO(), []
        with (
            redirect_stdout(out),
            redirect_stderr(out),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            result = pv.pate(
                plan,
                teachers.Trained(own, recipe, 6),
                None,
                made_up,
                student,
                streams=streams,
                progress=lambda *own: done.append(own),
            )
        shapes = {name: value.shape for name, value in result.model.state_dict().items()}
        return (
            result.facts,
            result.ledger.event,
            streams.noise.position,
            out.getvalue(),
            len(said),
            done,
            shapes,
        )

    expected = traces(data)
    assert expected[3:5] == ("", 1)  # of the target, which is public
    for other in others:
        assert traces(other) == expected


# Certificates


def run(aggregate: Any = None, *, persons: bool = False, **more: Any) -> pv.Result:
    plan = pv.teachers.PatePlan(30, 6, aggregate or pv.teachers.Votes(3), persons=persons)
    plan = plan.calibrate(epsilon=20.0, delta=1e-5)
    votes = [torch.arange(30) % 3] * 6
    made_up = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    student = pv.teachers.Student(
        lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0)), epochs=2
    )
    return pv.pate(
        plan, Said(*votes), None, made_up, student, **{"streams": Streams.new(0), **more}
    )


@check
def check_what_is_published_is_what_was_asked() -> None:
    """Certificates verify; plans with more queries, or of less noise, than the events do not."""
    for aggregate in (pv.teachers.Votes(3), pv.teachers.ConfidentVotes(3, 4.0, 10)):
        result = run(aggregate)
        assert list(walk(result.ledger.event)) == list(walk(result.plan.event()))
        with tempfile.TemporaryDirectory() as folder:
            out = pv.publish(result, Path(folder) / "m", model_spec="linear", classes=3)
            found = pv.verify(out)
            assert found.ok, found.problems
            assert not any("number of examples" in warning for warning in found.warnings)
            assert (
                "teachers_without_answers"
                not in (out / "README.md").read_text() + (out / "privacy.json").read_text()
            )
            body = json.loads((out / "privacy.json").read_text())
            assert certificate.read_plan(body["plan"]) == result.plan
            more = (
                pv.teachers.Votes(3)
                if isinstance(aggregate, pv.teachers.Votes)
                else replace(aggregate, answers=20)
            )
            lies: dict[str, Any] = {"noise_multiplier": 0.1, "aggregate": more}
            if isinstance(aggregate, pv.teachers.Votes):
                lies = {"noise_multiplier": 0.1, "queries": 60}
            for name, value in lies.items():
                lied = replace(result.plan, budget=None, **{name: value})
                lie = replace(result, plan=lied, facts=result.facts | lied.noise_figures())
                to = Path(folder) / f"lie-{name}"
                must_raise(
                    BadInput,
                    lambda: pv.publish(lie, to, delta=1e-5, model_spec="linear", classes=3),  # noqa: B023
                )
                with (
                    mock.patch.object(certificate, "_among", return_value=True),
                    mock.patch.object(publish, "_require_own_facts"),
                ):
                    pv.publish(lie, to, delta=1e-5, model_spec="linear", classes=3)
                assert not pv.verify(to).ok, name
            assert body["facts"]["method"] == "pate"


@check
def check_cards_of_pate_speak_of_teachers() -> None:
    """Both cards: who saw exact votes, what a record moves, what neighbours differ in; nothing of
    sums or clipping.
    """
    files, own = (
        {"source": "given"},
        {"source": "trained", "records": "by chance", "assigned_by": "row"},
    )
    own["recipe"] = {"kind": "spreading"}  # type: ignore[assignment]
    for aggregate, persons, released in (
        (pv.teachers.Votes(3), False, "Noisy counts of the teachers' votes"),
        (
            pv.teachers.ConfidentVotes(3, 4.0, 10),
            True,
            "Noisy tests and counts of the teachers' votes",
        ),
    ):
        made = run(aggregate, persons=persons)
        for teacher, trusted in (
            (files, "A trusted aggregator: the publisher saw each teacher's exact votes"),
            (own, "Central: the publisher held all private records, trained the"),
        ):
            result = replace(made, facts=made.facts | {"teacher": teacher})
            with (
                tempfile.TemporaryDirectory() as folder,
                mock.patch.object(publish, "_require_own_facts"),
            ):
                out = pv.publish(
                    result, Path(folder) / "m", delta=1e-5, model_spec="linear", classes=3
                )
                texts = {
                    name: unescape((out / name).read_text()) for name in ("README.md", "card.html")
                }
            for text in texts.values():
                assert trusted in text
                assert "The number of teachers and the public inputs are the same in both" in text
                assert (
                    "all private records of one person, which"
                    if persons
                    else "one private record, which"
                ) in text
                for wrong in (
                    "over all examples",
                    "lipping",
                    "training data in the clear",
                    "adds to a sum",
                ):
                    assert wrong not in text, wrong
            assert released in texts["card.html"]
            assert (
                texts["card.html"].count(
                    "The public inputs that the teachers were asked about, and"
                )
                == 1
            )
            assert all(
                words in texts["card.html"] for words in made.plan.card_words(result.facts).values()
            )


@check
def check_teachers_do_not_share_random_generators() -> None:
    """Joblib's threads are one process: what one teacher draws there would depend on the others."""
    import joblib

    def recipe(x: torch.Tensor, y: torch.Tensor) -> Any:
        drawn = torch.randn(1)
        return lambda asked: drawn.expand(len(asked), 1)

    data = (torch.randn(12, 2), torch.zeros(12))
    with joblib.parallel_config("threading", n_jobs=2):
        for jobs in (2, -1, None):
            ensemble = teachers.Trained(data, recipe, 3, jobs=jobs)
            must_raise(
                BadInput, lambda own=ensemble: list(own.answers(torch.randn(5, 2), Streams.new(0)))
            )
        assert (
            len(list(teachers.Trained(data, recipe, 3).answers(torch.randn(5, 2), Streams.new(0))))
            == 3
        )
