"""PATE: what it refuses, its students, its teachers of every kind, and the command line."""

from __future__ import annotations

import importlib
import json
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting.events import walk
from privlearn.core.clipping.randomness import generators_at
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, BudgetExceeded
from privlearn.methods import pate as teachers
from privlearn.methods import pate as teachers_module
from privlearn.methods.pate import answering, voting
from privlearn.methods.pate.answers import Answers, sum_answers
from tests.conftest import ROOT
from tests.teachers.checks import ADD, SIZE, Said, all_reducers, public, released
from tests.teachers.checks_teachers import private, run

VOTES = pv.teachers.Votes(3)
PLAN = pv.teachers.PatePlan(30, 6, VOTES, noise_multiplier=5.0)
INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
LABELS = [torch.arange(30) % 3] * 6


def linear(shape: tuple[int, ...]) -> nn.Module:
    return pv.models.build("linear", shape, 3, np.random.default_rng(0))


def ask(
    plan: Any = PLAN,
    said: Any = None,
    reducer: Any = None,
    inputs: Any = INPUTS,
    student: Any = None,
    **more: Any,
) -> pv.Result:
    said = Said(*LABELS) if said is None else said
    return pv.pate(
        plan,
        said,
        reducer,
        inputs,
        student or pv.teachers.Student(linear, epochs=1),
        **{"streams": Streams.new(0), **more},
    )


# Refusals: each names what was given, before anything is charged


def coded(queries: int = 30) -> pv.PatePlan:
    return pv.teachers.PatePlan(queries, 6, pv.teachers.Ball(1.0), noise_multiplier=5.0)


MAPS = [torch.zeros(30, *SIZE)] * 5
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "answers without a bound": (lambda: pv.teachers.PatePlan(30, 6, None), "aggregate is None"),  # type: ignore[arg-type]
    "no noise": (lambda: pv.teachers.PatePlan(30, 6, VOTES).event(), "no noise yet"),
    "no queries": (lambda: pv.teachers.PatePlan(0, 6, VOTES), "queries is 0"),
    "more answers than queries": (
        lambda: pv.teachers.PatePlan(3, 6, pv.teachers.ConfidentVotes(3, 2.0, 4)),
        "4 answers are wanted",
    ),
    "the paper's formula for a rho": (
        lambda: pv.teachers.PatePlan(3, 6, VOTES).calibrate(rho=1.0, formula="paper"),
        "paper's formula",
    ),
    "another formula": (
        lambda: pv.teachers.PatePlan(3, 6, VOTES).calibrate(rho=1.0, formula="clt"),
        "formula is 'clt'",
    ),
    "a plan for batches": (lambda: ask(pv.Plan(pv.Poisson(0.1))), "plan is Plan"),
    "a threshold out of reach of a target's noise": (
        lambda: pv.teachers.PatePlan(30, 6, pv.teachers.ConfidentVotes(3, 90.0, 5)).calibrate(
            epsilon=8, delta=1e-5
        ),
        "threshold of 90 votes is out of reach of 6 teachers",
    ),
    "teachers that are none": (lambda: ask(said=LABELS), "teachers is"),
    "a student that is none": (lambda: ask(student=3), "student is 3"),
    "a student that makes none": (lambda: ask(student=lambda answers: 3), "the student is a int"),
    "more queries than inputs": (
        lambda: ask(inputs=INPUTS[:29]),
        "29 public inputs, and the plan asks 30",
    ),
    "inputs that are not public": (
        lambda: ask(inputs=pv.Dataset(INPUTS, INPUTS)),
        "give public ones",
    ),
    "inputs that are not finite": (lambda: ask(inputs=INPUTS / 0), "can't be asked about"),
    "other teachers than the plan's": (
        lambda: ask(said=Said(*LABELS[:5])),
        "there are 5 teachers, and the plan is for 6",
    ),
    "votes through a reducer": (
        lambda: ask(reducer=teachers_module.Identity(SIZE)),
        "leave the reducer out",
    ),
    "codes without a reducer": (lambda: ask(coded(), Said(*MAPS, MAPS[0])), "codes need one"),
    "a recipe that answers in another shape": (
        lambda: ask(said=teachers.Trained(private(), lambda x, y: lambda inputs: inputs, 6)),
        "into shape (6, 4)",  # type: ignore[return-value]
    ),
    "an autoencoder in a box": (
        lambda: ask(
            pv.teachers.PatePlan(30, 6, pv.teachers.Box(6), noise_multiplier=5.0),
            Said(*MAPS, MAPS[0]),
            teachers_module.Autoencoder.fit(public(), 2, 0.1, epochs=1),
        ),
        "use pv.teachers.Ball(radius)",
    ),
    "a box of another size": (
        lambda: ask(
            pv.teachers.PatePlan(30, 6, pv.teachers.Box(7), noise_multiplier=5.0),
            Said(*MAPS, MAPS[0]),
            teachers_module.Identity(SIZE),
        ),
        "Box(dimensions=6)",
    ),
    "labels for a reducer": (
        lambda: teachers_module.PublicPCA.fit(pv.Dataset(INPUTS, torch.arange(40), public=True)),
        "pv.teachers.Votes",
    ),
    "more components than there are": (
        lambda: teachers_module.PublicPCA.fit(public(), 7),
        "7 components",
    ),
    "an encoder of another size": (
        lambda: teachers_module.Autoencoder.fit(public(), 2, 0.1, encoder=nn.Flatten()),
        "the networks can't run",
    ),
    "a projection that is no reduction": (
        lambda: teachers_module.RandomProjection(SIZE, 7),
        "codes of 7 numbers",
    ),
    "no way to teachers": (
        lambda: teachers.Trained(private(), lambda x, y: len),
        "one way to teachers",
    ),  # type: ignore[arg-type,return-value]
    "two ways to teachers": (
        lambda: teachers.Trained(private(), lambda x, y: len, 3, sites=np.zeros(60)),
        "one way",
    ),  # type: ignore[arg-type,return-value]
    "sites for other rows": (
        lambda: teachers.Trained(private(), lambda x, y: len, sites=np.zeros(5, int)),
        "for 60 rows",
    ),  # type: ignore[arg-type,return-value]
    "rows that there are not": (
        lambda: teachers.Trained(private(), lambda x, y: len, shards=[[0], [60]]),
        "outside 0 to 59",
    ),  # type: ignore[arg-type,return-value]
    "a file that is not there": (lambda: teachers.Given("nowhere.npz"), "no file nowhere.npz"),
    "a recipe that is none": (lambda: teachers.Trained(private(), 3, 2), "recipe is 3"),  # type: ignore[arg-type]
    "spreading what is no class": (
        lambda: ask(
            coded(),
            Said(*MAPS, MAPS[0]),
            teachers_module.Identity(SIZE),
            student=pv.teachers.Student(linear, spread=pv.teachers.Spread()),
        ),
        "leave out spread=",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    action, words = REFUSED[name]
    with pytest.raises(BadInput) as error:
        action()
    assert words in str(error.value)


def test_what_is_refused_is_not_charged() -> None:
    ledger = pv.Ledger()
    for said in (
        Said(*LABELS[:5]),
        teachers.Trained(private(), lambda x, y: lambda inputs: inputs, 6),
    ):  # type: ignore[return-value]
        with pytest.raises(BadInput):
            ask(said=said, ledger=ledger)
    assert not list(walk(ledger.event))
    with pytest.raises(BudgetExceeded):
        # before any teacher is asked, or missed
        ask(said=Said(), ledger=pv.Ledger(pv.Budget(rho=0.1)))


# Runs


def test_the_ledger_equals_the_plan_for_every_kind_of_neighbour() -> None:
    for adjacency in pv.accounting.Adjacency:
        for aggregate in (VOTES, pv.teachers.ConfidentVotes(3, 3.0, 9)):
            plan = pv.teachers.PatePlan(
                30, 6, aggregate, adjacency=adjacency, group_size=2
            ).calibrate(epsilon=9.0, delta=1e-5)
            result = ask(plan)
            assert result.ledger.event == plan.event()
            assert result.ledger.adjacency is adjacency
            assert result.ledger.guarantee(1e-5) == plan.guarantee(1e-5)
            assert 9 * (1 - 1e-9) <= plan.guarantee(1e-5).epsilon <= 9


def test_students_learn_maps_and_labels() -> None:
    """Through principal components chosen by the rule; soft and hard, with and without unanswered
    inputs.
    """
    x = torch.rand(200, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    maps = (x @ weight).view(200, *SIZE)
    open_data = pv.Dataset(x, maps, public=True)
    pca = teachers_module.PublicPCA.fit(open_data)
    plan = pv.teachers.PatePlan(150, 50, pv.teachers.Ball(pca.radius(open_data))).calibrate(
        epsilon=50.0, delta=1e-5
    )
    pca = pca.for_noise(plan.noise_std)
    student = pv.teachers.Student(
        lambda shape: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, SIZE)), "mse", 60, 16, 0.02
    )
    result = ask(plan, Said(*[maps[:150]] * 50), pca, x, student)
    with torch.no_grad():
        error = float((result.model(x) - maps).square().mean())
    assert error < 0.3 * float((maps - maps.mean(0)).square().mean())
    assert result.facts["reducer"] == {"kind": "pca", "size": pca.size}

    labels = (x[:, 0] > 0.5).long()
    for spread in (None, pv.teachers.Spread(components=0, neighbours=5)):
        votes = pv.teachers.PatePlan(100, 50, pv.teachers.Votes(2)).calibrate(
            epsilon=50.0, delta=1e-5
        )
        wide = pv.teachers.Student(
            lambda shape: nn.Linear(4, 2),
            epochs=60,
            batch_size=16,
            learning_rate=0.02,
            spread=spread,
        )
        result = ask(votes, Said(*[labels[:100]] * 50), None, x, wide)
        with torch.no_grad():
            assert float((result.model(x).argmax(1) == labels).float().mean()) > 0.85


def test_components_below_the_noise_are_told() -> None:
    data = public()
    pca = teachers_module.PublicPCA.fit(data)
    assert repr(pca) == "PCA(6 of 6 components of targets of shape (2, 3))"
    plan = coded()
    kept = pca.best(plan.noise_std)
    assert 0 < kept < 6
    student = pv.teachers.Student(
        lambda shape: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, SIZE)), epochs=1
    )
    with pytest.warns(UserWarning, match=f"{6 - kept} of the 6 components"):
        ask(plan, Said(*MAPS, MAPS[0]), pca, student=student)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* components")
        ask(plan, Said(*MAPS, MAPS[0]), pca.for_noise(plan.noise_std), student=student)


OUT_OF_RANGE: list[Callable[[], Any]] = [
    *(
        lambda radius=radius: pv.teachers.Ball(radius)
        for radius in (0.0, -1.0, math.nan, math.inf, 1e13, "1")
    ),
    *(lambda size=size: pv.teachers.Box(size) for size in (0, -4, 2.5, 10**10)),
    *(lambda classes=classes: pv.teachers.Votes(classes) for classes in (1, 0, -3, 2.5)),
    *(lambda classes=classes: pv.teachers.ConfidentVotes(classes, 2.0, 3) for classes in (1, -3)),
    *(
        lambda least=least: pv.teachers.ConfidentVotes(3, least, 3)
        for least in (-1.0, math.nan, math.inf)
    ),
    *(
        lambda answers=answers: pv.teachers.ConfidentVotes(3, 2.0, answers)
        for answers in (0, -1, 1.5)
    ),
    *(
        lambda share=share: pv.teachers.ConfidentVotes(3, 2.0, 3, share)
        for share in (-0.1, 0.0, 1.0, 2.0, math.nan)
    ),
    *(
        lambda noise=noise: pv.teachers.PatePlan(3, 6, VOTES, noise)
        for noise in (0.0, -1.0, math.nan, math.inf, 1e13)
    ),
    *(
        lambda teachers=teachers: pv.teachers.PatePlan(3, teachers, VOTES, 1.0)
        for teachers in (0, -1, 2.5, 10**8)
    ),
    *(
        lambda queries=queries: pv.teachers.PatePlan(queries, 6, VOTES, 1.0)
        for queries in (-1, 2.5, 10**8)
    ),
    *(
        lambda size=size: pv.teachers.PatePlan(3, 6, VOTES, 1.0, group_size=size)
        for size in (0, -1, 1.5)
    ),
    lambda: pv.teachers.PatePlan(3, 6, VOTES, 1.0, budget=1.0),  # type: ignore[arg-type]
    lambda: pv.teachers.PatePlan(3, 6, VOTES, 1.0, adjacency="some"),  # type: ignore[arg-type]
]


def test_numbers_out_of_range_are_refused() -> None:
    """A negative radius or too little noise would be a sensitivity below the truth."""
    for number, made in enumerate(OUT_OF_RANGE):
        with pytest.raises(BadInput):
            pytest.fail(f"number {number} is accepted: {made()}")


def test_the_papers_noise_is_enough_for_groups() -> None:
    for size in (1, 3):
        plan = pv.teachers.PatePlan(50, 6, VOTES, group_size=size).calibrate(
            epsilon=3.0, delta=1e-5, formula="paper"
        )
        single = pv.teachers.PatePlan(50, 6, VOTES).calibrate(
            epsilon=3.0, delta=1e-5, formula="paper"
        )
        assert plan.guarantee(1e-5).epsilon <= 3.0
        assert plan.noise == pytest.approx(size * single.noise)


def test_nothing_answered_is_said_plainly() -> None:
    plan = pv.teachers.PatePlan(30, 6, pv.teachers.ConfidentVotes(3, 6.5, 5), noise_multiplier=0.05)
    plan = replace(plan, aggregate=replace(plan.aggregate, threshold=6 + 3 * plan.test_noise))
    with pytest.raises(BadInput, match="no query was answered"):
        ask(plan)


def test_beliefs_follow_bayes() -> None:
    """Against the ratio of normal densities."""
    scores, std, number = torch.tensor([[30.0, 10.0, 5.0]], dtype=torch.float64), 12.0, 40
    answers = Answers(INPUTS, torch.tensor([0]), torch.tensor([True]), scores, number / std**2)
    means = 0.8 * number * torch.eye(3) + 0.1 * number * (1 - torch.eye(3))
    likelihood = torch.exp(-((scores - means) ** 2).sum(1) / (2 * std**2))
    assert torch.allclose(
        answers.beliefs(0.8)[0], (likelihood / likelihood.sum()).double(), atol=1e-6
    )
    both = replace(
        answers,
        targets=torch.tensor([0, 0]),
        answered=torch.tensor([True, False]),
        scores=scores.repeat(2, 1),
    )
    assert torch.equal(both.beliefs(0.8)[0], answers.beliefs(0.8)[0])
    assert both.beliefs(0.8)[1].tolist() == [0.0, 0.0, 0.0], "nobody answered, and it is believed"
    with pytest.raises(BadInput, match="not classes"):
        replace(answers, scores=None).beliefs(0.8)
    assert "1 of 2 queries, one of 3 classes" in repr(both)
    assert "1 of 1 queries, targets" in repr(replace(answers, scores=None))


def test_made_up_answers_look_like_the_plans() -> None:
    """As many as asked for, as the plan asks, or as there are inputs; noise of the plan's size;
    every class occurs.
    """
    for queries, expected in ((None, 30), (7, 7), (100, 40)):
        made_up = Answers.made_up(PLAN, None, INPUTS, queries=queries)
        assert len(made_up.targets) == expected
        assert made_up.scores is not None
        assert made_up.scores.shape == (expected, 3)
        assert torch.equal(made_up.scores.argmax(1), made_up.targets)
        assert set(made_up.targets.tolist()) == {0, 1, 2}
        assert bool(made_up.answered.all())
        assert made_up.expected == pytest.approx(6 / PLAN.noise_std**2)
    reducer = teachers_module.Identity(SIZE, 0.5)
    targets = Answers.made_up(
        pv.teachers.PatePlan(40, 6, pv.teachers.Ball(1.0), 5.0), reducer, INPUTS
    ).targets
    assert float((targets - 0.5).std()) == pytest.approx(5.0 * 2 / 6, rel=0.2)
    assert float(targets.mean()) == pytest.approx(0.5, abs=0.5)


def test_bounds_of_public_data_become_part_of_the_model(tmp_path: Path) -> None:
    pool = pv.Dataset(INPUTS * 10, torch.zeros(40), low=-40.0, high=40.0, public=True)
    result = ask(inputs=pool)
    out = pv.publish(result, tmp_path / "m", model_spec="linear", classes=3, delta=1e-5)
    assert [
        part["kind"] for part in json.loads((out / "config.json").read_text())["transforms"]
    ] == ["scale"]
    assert pv.verify(out).ok
    assert "6" in (out / "README.md").read_text().partition("| teachers |")[2][:4]


def test_discrete_noise_serves_too() -> None:
    result = ask(streams=Streams.new(0, discrete=True))
    assert result.facts["noise"] == "on a grid"


# Teachers


def test_estimators_networks_and_functions_teach() -> None:
    from sklearn.linear_model import LogisticRegression

    made_up = np.random.default_rng(0)
    x = made_up.normal(size=(300, 4)).astype(np.float32)
    data = pv.Dataset(x, (x[:, 0] > 0).astype(int), classes=2)

    def fit(module: nn.Module, x: Tensor, y: Tensor) -> None:
        descent = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(30):
            descent.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            descent.step()

    pool = pv.Dataset(x[:100], data.y[:100], public=True)
    for recipe in (
        teachers.Estimator(lambda: LogisticRegression()),
        teachers.Estimator(lambda: LogisticRegression(), classes=3),
        teachers.Network(lambda: nn.Linear(4, 2), fit),
        teachers.Spreading(pool, 2),
        lambda x, y: lambda inputs: (inputs[:, 0] > 0).long(),
    ):
        asked = torch.from_numpy(x[:20])
        for said in teachers.Trained(data, recipe, 5).answers(asked, Streams.new(0)):
            assert said is not None
            own = said if said.dim() == 1 else said.argmax(1)
            assert float((own == (asked[:, 0] > 0)).float().mean()) >= 0.7, recipe
            assert said.dim() == 1 or said.shape == (
                20,
                3 if isinstance(recipe, teachers.Estimator) else 2,
            )


def test_several_jobs_teach_the_same() -> None:
    from sklearn.ensemble import ExtraTreesClassifier

    recipe = teachers.Estimator(lambda: ExtraTreesClassifier(3))
    one, two = (
        list(teachers.Trained(private(), recipe, 4, jobs=jobs).answers(INPUTS, Streams.new(5)))
        for jobs in (1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_networks_by_name_begin_alike_whoever_was_trained_before(kind: str, tmp_path: Path) -> None:
    """So several jobs and interrupted runs have the teachers of one run."""
    data = private()
    if kind == "classes":
        recipe = voting.recipe_of("mlp:3", data, pv.Dataset(INPUTS, public=True), 3)
    else:
        recipe = answering.number_recipe("mlp:3", (4,), 1)
        data = replace(data, y=np.asarray(data.y, np.float32)[:, None], classes=None)

    def teach() -> list[Tensor | None]:
        trained = teachers.Trained(data, recipe, 3, folder=tmp_path / "kept")
        return list(trained.answers(INPUTS, Streams.new(5)))

    first = teach()
    (tmp_path / "kept" / "teacher-000001.npy").unlink()
    again = teach()
    several = teachers.Trained(data, recipe, 3, jobs=2).answers(INPUTS, Streams.new(5))
    assert all(said is not None for said in first)
    for answers in (again, several):
        assert all(torch.equal(a, b) for a, b in zip(first, answers, strict=True))  # type: ignore[arg-type]
    with generators_at(1):
        one = recipe.make()  # type: ignore[attr-defined]
    with generators_at(2):
        two = recipe.make()  # type: ignore[attr-defined]
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


def test_a_recipe_that_other_processes_cannot_get_is_refused() -> None:
    streams = Streams.new(0)

    def recipe(x: Tensor, y: Tensor) -> Any:
        label = int(streams.initialisation.integers(3))
        return lambda inputs: torch.full((len(inputs),), label)

    with pytest.raises(BadInput, match="hold plain values, or jobs=1"):
        list(teachers.Trained(private(), recipe, 3, jobs=2).answers(INPUTS, streams))
    assert len(list(teachers.Trained(private(), recipe, 3).answers(INPUTS, streams))) == 3


def test_joblib_says_how_many_teach_and_by_what() -> None:
    """But not in threads, where teachers would share random generators."""
    import joblib
    from sklearn.linear_model import LogisticRegression

    recipe = teachers.Estimator(lambda: LogisticRegression())
    with joblib.parallel_config("loky", n_jobs=2):
        several = list(
            teachers.Trained(private(), recipe, 3, jobs=None).answers(INPUTS, Streams.new(5))
        )
    alone = list(teachers.Trained(private(), recipe, 3).answers(INPUTS, Streams.new(5)))
    assert all(torch.equal(a, b) for a, b in zip(several, alone, strict=True))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="at least 1"):
        teachers.Trained(private(), recipe, 3, jobs=0)


def test_teachers_warn_nobody() -> None:
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = teachers.Estimator(lambda: LogisticRegression(max_iter=1))
        assert all(
            each is not None
            for each in teachers.Trained(private(), recipe, 3).answers(INPUTS, Streams.new(0))
        )


def test_an_empty_shard_says_nothing_new() -> None:
    found, answered, _ = released(
        pv.teachers.PatePlan(2, 2, pv.teachers.Votes(3), noise_multiplier=1e-3),
        [torch.tensor([2, 1]), None],
    )
    assert found.tolist() == [2, 1]
    assert bool(answered.all())
    data = private(3)
    everybody = teachers.Trained(data, lambda x, y: lambda q: q[:, 0], shards=[[0, 1, 2], []])  # type: ignore[arg-type,return-value]
    assert len(list(everybody.answers(INPUTS, Streams.new(0)))) == 2
    everybody.require_covered(ADD, pv.accounting.PrivacyUnit())


def test_given_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name, content in (("a.npz", b"nothing"), ("b.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=f"{name} cannot be read") as error:
            list(teachers.Given(tmp_path / name).answers(INPUTS, Streams.new(0)))
        assert "allow_pickle" not in str(error.value)
    for name, arrays, words in (
        ("c.npz", {"other": np.zeros(3)}, "it holds other"),
        ("d.npz", {"predictions": np.array(["cat"] * 40)}, "U3 values"),
        ("e.npz", {"predictions": np.zeros((40, 2))}, r"\(40, 2\): expected \(40,\) or \(40, 3\)"),
        ("f.npz", {"predictions": np.zeros(39)}, "answers 39 queries"),
    ):
        np.savez(tmp_path / name, **arrays)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match=words) as error:
            list(
                teachers.Given([tmp_path / name]).answers(INPUTS, Streams.new(0), None, [(), (3,)])
            )
        assert name in str(error.value)


def test_a_box_bounds_what_a_ball_would() -> None:
    """For codes of one coordinate a box costs no more than that coordinate."""
    one = replace(teachers_module.PublicPCA.fit(public()), components=torch.eye(6)[:1])
    sums, _ = sum_answers(
        pv.teachers.PatePlan(2, 1, pv.teachers.Box(6), 1.0),
        Said(torch.ones(2, *SIZE)),
        one,
        INPUTS[:2],
        Streams.new(0),
    )
    assert math.isclose(sums.sensitivity, 1.0, rel_tol=1e-6)  # type: ignore[union-attr]


def test_noiseless_codes_are_the_mean_of_encode() -> None:
    """Of trained teachers, by every reducer: what a student hears is the decoded mean of what they
    say, encoded.
    """

    def recipe(x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda asked: (
            0.2 * len(x) * torch.outer(asked.sum(1), torch.arange(6.0)).view(-1, *SIZE)
            + y.double().mean()
        )

    for name, reducer in all_reducers().items():
        plan = pv.teachers.PatePlan(
            5, 4, pv.teachers.Ball(1.0 if name == "autoencoder" else 100.0), noise_multiplier=1e-6
        )
        ensemble = teachers.Trained(private(), recipe, 4)
        said = torch.stack(list(ensemble.answers(INPUTS[:5], Streams.new(0))))  # type: ignore[arg-type]
        heard: list[Answers] = []
        ask(
            plan,
            ensemble,
            reducer,
            student=lambda answers, heard=heard: heard.append(answers) or nn.Identity(),
        )
        mean = torch.stack([reducer.encode(each) for each in said]).mean(0)
        torch.testing.assert_close(heard[0].targets, reducer.decode(mean), rtol=1e-3, atol=1e-3)


def test_results_are_published_like_any_other(tmp_path: Path) -> None:
    result = run()
    with pytest.raises(BadInput):
        pv.publish(result, tmp_path / "m", test_metrics=result.private_diagnostics)  # type: ignore[arg-type]


def test_certificates_say_what_codes_are_clipped_about(tmp_path: Path) -> None:
    """Of an autoencoder 0; others are clipped about the centre's code, as they are described."""
    for name in ("autoencoder", "pca"):
        plan = pv.teachers.PatePlan(30, 6, pv.teachers.Ball(1.0)).calibrate(
            epsilon=20.0, delta=1e-5
        )
        result = ask(
            plan,
            Said(*MAPS, MAPS[0]),
            all_reducers()[name],
            student=lambda answers: nn.Linear(4, 6),
        )
        out = pv.publish(result, tmp_path / name)
        assert pv.verify(out).ok
        about = "in the unit ball, clipped about 0"
        assert (result.facts["reducer"].get("codes") == about) is (name == "autoencoder")
        assert (
            f"| reducer | {name}, codes of 3 numbers, {about} |" in (out / "README.md").read_text()
        ) is (name == "autoencoder")


def test_planning_needs_no_torch() -> None:
    import subprocess

    planned = "pv.teachers.PatePlan(9, 5, pv.teachers.Votes(3)).calibrate(epsilon=1, delta=1e-5)"
    code = f"import privlearn as pv, sys; {planned}; print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "False"


# The benchmark


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    bench = importlib.import_module("pate")
    for case in bench.cases(bench.SMOKE):
        rows = importlib.import_module("common").measure(case)
        assert all(row.answer > 0 for row in rows)
