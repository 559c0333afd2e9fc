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
from conftest import ROOT
from pate_checks import ADD, SIZE, Said, public, released
from teachers_checks import private, run
from torch import Tensor, nn

import privlearn as pv
from privlearn import cli, reducers, teachers
from privlearn.accounting.events import walk
from privlearn.cli import voting
from privlearn.errors import BadInput, BudgetExceeded
from privlearn.methods.ensemble.aggregator import collect
from privlearn.methods.ensemble.answers import Answers
from privlearn.rng import Streams

VOTES = pv.Votes(3)
PLAN = pv.PatePlan(30, 6, VOTES, noise_multiplier=5.0)
INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
LABELS = [torch.arange(30) % 3] * 6


def linear(shape: tuple[int, ...]) -> nn.Module:
    return pv.models.build("linear", shape, 3, np.random.default_rng(0))


def ask(
    plan: Any = PLAN, said: Any = None, reducer: Any = None, inputs: Any = INPUTS, student: Any = None, **more: Any
) -> pv.Result:
    said = Said(*LABELS) if said is None else said
    return pv.pate(
        plan, said, reducer, inputs, student or pv.Student(linear, epochs=1), **{"streams": Streams.new(0), **more}
    )


# Refusals: each names what was given, before anything is charged


def coded(queries: int = 30) -> pv.PatePlan:
    return pv.PatePlan(queries, 6, pv.Ball(1.0), noise_multiplier=5.0)


MAPS = [torch.zeros(30, *SIZE)] * 5
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "answers without a bound": (lambda: pv.PatePlan(30, 6, None), "aggregate is None"),  # type: ignore[arg-type]
    "no noise": (lambda: pv.PatePlan(30, 6, VOTES).event(), "no noise yet"),
    "no queries": (lambda: pv.PatePlan(0, 6, VOTES), "queries is 0"),
    "more answers than queries": (lambda: pv.PatePlan(3, 6, pv.ConfidentVotes(3, 2.0, 4)), "4 answers are wanted"),
    "the paper's formula for a rho": (lambda: pv.PatePlan(3, 6, VOTES).calibrate(rho=1.0, formula="paper"), "paper's formula"),
    "another formula": (lambda: pv.PatePlan(3, 6, VOTES).calibrate(rho=1.0, formula="clt"), "formula is 'clt'"),
    "a plan for batches": (lambda: ask(pv.Plan(pv.Poisson(0.1))), "plan is Plan"),
    "teachers that are none": (lambda: ask(said=LABELS), "teachers is"),
    "a student that is none": (lambda: ask(student=3), "student is 3"),
    "a student that makes none": (lambda: ask(student=lambda answers: 3), "the student is a int"),
    "more queries than inputs": (lambda: ask(inputs=INPUTS[:29]), "29 public inputs, and the plan asks 30"),
    "inputs that are not public": (lambda: ask(inputs=pv.Dataset(INPUTS, INPUTS)), "give public ones"),
    "inputs that are not finite": (lambda: ask(inputs=INPUTS / 0), "can't be asked about"),
    "other teachers than the plan's": (lambda: ask(said=Said(*LABELS[:5])), "there are 5 teachers, and the plan is for 6"),
    "votes through a reducer": (lambda: ask(reducer=reducers.Identity(SIZE)), "leave the reducer out"),
    "codes without a reducer": (lambda: ask(coded(), Said(*MAPS, MAPS[0])), "codes need one"),
    "a recipe that answers in another shape": (
        lambda: ask(said=teachers.Trained(private(), lambda x, y: lambda inputs: inputs, 6)), "into shape (6, 4)",  # type: ignore[return-value]
    ),
    "an autoencoder in a box": (
        lambda: ask(
            pv.PatePlan(30, 6, pv.Box(6), noise_multiplier=5.0), Said(*MAPS, MAPS[0]),
            reducers.Autoencoder.fit(public(), 2, 0.1, epochs=1),
        ),
        "use pv.Ball(radius)",
    ),
    "a box of another size": (
        lambda: ask(pv.PatePlan(30, 6, pv.Box(7), noise_multiplier=5.0), Said(*MAPS, MAPS[0]), reducers.Identity(SIZE)),
        "Box(dimensions=6)",
    ),
    "labels for a reducer": (lambda: reducers.PCA.fit(pv.Dataset(INPUTS, torch.arange(40), public=True)), "pv.Votes"),
    "more components than there are": (lambda: reducers.PCA.fit(public(), 7), "7 components"),
    "an encoder of another size": (
        lambda: reducers.Autoencoder.fit(public(), 2, 0.1, encoder=nn.Flatten()), "the networks can't run",
    ),
    "a projection that is no reduction": (lambda: reducers.RandomProjection(SIZE, 7), "codes of 7 numbers"),
    "no way to teachers": (lambda: teachers.Trained(private(), lambda x, y: len), "one way to teachers"),  # type: ignore[arg-type,return-value]
    "two ways to teachers": (lambda: teachers.Trained(private(), lambda x, y: len, 3, sites=np.zeros(60)), "one way"),  # type: ignore[arg-type,return-value]
    "sites for other rows": (lambda: teachers.Trained(private(), lambda x, y: len, sites=np.zeros(5, int)), "for 60 rows"),  # type: ignore[arg-type,return-value]
    "rows that there are not": (lambda: teachers.Trained(private(), lambda x, y: len, shards=[[0], [60]]), "outside 0 to 59"),  # type: ignore[arg-type,return-value]
    "a file that is not there": (lambda: teachers.Given("nowhere.npz"), "no file nowhere.npz"),
    "a recipe that is none": (lambda: teachers.Trained(private(), 3, 2), "recipe is 3"),  # type: ignore[arg-type]
    "spreading what is no class": (
        lambda: ask(coded(), Said(*MAPS, MAPS[0]), reducers.Identity(SIZE), student=pv.Student(linear, spread=pv.Spread())),
        "leave out spread=",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    action, words = REFUSED[name]
    with pytest.raises(BadInput) as error:
        action()
    assert words in str(error.value)


def test_what_is_refused_is_not_charged() -> None:
    ledger = pv.Ledger()
    for said in (Said(*LABELS[:5]), teachers.Trained(private(), lambda x, y: lambda inputs: inputs, 6)):  # type: ignore[return-value]
        with pytest.raises(BadInput):
            ask(said=said, ledger=ledger)
    assert not list(walk(ledger.event))
    with pytest.raises(BudgetExceeded):
        ask(said=Said(), ledger=pv.Ledger(pv.Budget(rho=0.1)))  # before any teacher is asked, or missed


# Runs


def test_the_ledger_equals_the_plan_for_every_kind_of_neighbour() -> None:
    for adjacency in pv.Adjacency:
        for aggregate in (VOTES, pv.ConfidentVotes(3, 3.0, 9)):
            plan = pv.PatePlan(30, 6, aggregate, adjacency=adjacency, group_size=2).calibrate(epsilon=9.0, delta=1e-5)
            result = ask(plan)
            assert result.ledger.event == plan.event()
            assert result.ledger.adjacency is adjacency
            assert result.ledger.guarantee(1e-5) == plan.guarantee(1e-5)
            assert 9 * (1 - 1e-9) <= plan.guarantee(1e-5).epsilon <= 9


def test_students_learn_maps_and_labels() -> None:
    """Through principal components chosen by the rule; soft and hard, with and without unanswered inputs."""
    x = torch.rand(200, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    maps = (x @ weight).view(200, *SIZE)
    open_data = pv.Dataset(x, maps, public=True)
    pca = reducers.PCA.fit(open_data)
    plan = pv.PatePlan(150, 50, pv.Ball(pca.radius(open_data))).calibrate(epsilon=50.0, delta=1e-5)
    pca = pca.for_noise(plan.noise_std)
    student = pv.Student(lambda shape: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, SIZE)), "mse", 60, 16, 0.02)
    result = ask(plan, Said(*[maps[:150]] * 50), pca, x, student)
    with torch.no_grad():
        error = float((result.model(x) - maps).square().mean())
    assert error < 0.3 * float((maps - maps.mean(0)).square().mean())
    assert result.settings["reducer"] == {"kind": "pca", "size": pca.size}

    labels = (x[:, 0] > 0.5).long()
    for spread in (None, pv.Spread(components=0, neighbours=5)):
        votes = pv.PatePlan(100, 50, pv.Votes(2)).calibrate(epsilon=50.0, delta=1e-5)
        wide = pv.Student(lambda shape: nn.Linear(4, 2), epochs=60, batch_size=16, learning_rate=0.02, spread=spread)
        result = ask(votes, Said(*[labels[:100]] * 50), None, x, wide)
        with torch.no_grad():
            assert float((result.model(x).argmax(1) == labels).float().mean()) > 0.85


def test_components_below_the_noise_are_told() -> None:
    data = public()
    pca = reducers.PCA.fit(data)
    assert repr(pca) == "PCA(6 of 6 components of targets of shape (2, 3))"
    plan = coded()
    kept = pca.best(plan.noise_std)
    assert 0 < kept < 6
    student = pv.Student(lambda shape: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, SIZE)), epochs=1)
    with pytest.warns(UserWarning, match=f"{6 - kept} of the 6 components"):
        ask(plan, Said(*MAPS, MAPS[0]), pca, student=student)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(plan, Said(*MAPS, MAPS[0]), pca.for_noise(plan.noise_std), student=student)


def test_nothing_answered_is_said_plainly() -> None:
    plan = pv.PatePlan(30, 6, pv.ConfidentVotes(3, 1e9, 5), noise_multiplier=5.0)
    with pytest.raises(BadInput, match="no query was answered"):
        ask(plan)


def test_beliefs_follow_bayes() -> None:
    """Against the ratio of normal densities."""
    scores, std, number = torch.tensor([[30.0, 10.0, 5.0]], dtype=torch.float64), 12.0, 40
    answers = Answers(INPUTS, torch.tensor([0]), torch.tensor([True]), scores, number / std**2)
    means = 0.8 * number * torch.eye(3) + 0.1 * number * (1 - torch.eye(3))
    likelihood = torch.exp(-((scores - means) ** 2).sum(1) / (2 * std**2))
    assert torch.allclose(answers.beliefs(0.8)[0], (likelihood / likelihood.sum()).double(), atol=1e-6)


def test_bounds_of_public_data_become_part_of_the_model(tmp_path: Path) -> None:
    pool = pv.Dataset(INPUTS * 10, torch.zeros(40), low=-40.0, high=40.0, public=True)
    result = ask(inputs=pool)
    out = pv.publish(result, tmp_path / "m", model_spec="linear", classes=3, delta=1e-5)
    assert [part["kind"] for part in json.loads((out / "config.json").read_text())["transforms"]] == ["scale"]
    assert pv.verify(out).ok
    assert "6" in (out / "README.md").read_text().partition("| teachers |")[2][:4]


def test_discrete_noise_serves_too() -> None:
    result = ask(streams=Streams.new(0, discrete=True))
    assert result.settings["noise"] == "on a grid"


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
            assert said.dim() == 1 or said.shape == (20, 3 if isinstance(recipe, teachers.Estimator) else 2)


def test_several_jobs_teach_the_same() -> None:
    from sklearn.ensemble import ExtraTreesClassifier

    recipe = teachers.Estimator(lambda: ExtraTreesClassifier(3))
    one, two = (
        list(teachers.Trained(private(), recipe, 4, jobs=jobs).answers(INPUTS, Streams.new(5))) for jobs in (1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))  # type: ignore[arg-type]


def test_teachers_warn_nobody() -> None:
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = teachers.Estimator(lambda: LogisticRegression(max_iter=1))
        assert all(each is not None for each in teachers.Trained(private(), recipe, 3).answers(INPUTS, Streams.new(0)))


def test_an_empty_shard_says_nothing_new() -> None:
    found, answered, _ = released(pv.PatePlan(2, 2, pv.Votes(3), noise_multiplier=1e-3), [torch.tensor([2, 1]), None])
    assert found.tolist() == [2, 1]
    assert bool(answered.all())
    data = private(3)
    everybody = teachers.Trained(data, lambda x, y: lambda q: q[:, 0], shards=[[0, 1, 2], []])  # type: ignore[arg-type,return-value]
    assert len(list(everybody.answers(INPUTS, Streams.new(0)))) == 2
    everybody.require_covered(ADD)


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
            list(teachers.Given([tmp_path / name]).answers(INPUTS, Streams.new(0), None, [(), (3,)]))
        assert name in str(error.value)


def test_a_box_bounds_what_a_ball_would() -> None:
    """For codes of one coordinate a box costs no more than that coordinate."""
    one = replace(reducers.PCA.fit(public()), components=torch.eye(6)[:1])
    sums, _ = collect(pv.PatePlan(2, 1, pv.Box(6), 1.0), Said(torch.ones(2, *SIZE)), one, INPUTS[:2], Streams.new(0))
    assert math.isclose(sums.sensitivity, 1.0, rel_tol=1e-6)  # type: ignore[union-attr]


def test_results_are_published_like_any_other(tmp_path: Path) -> None:
    result = run()
    with pytest.raises(BadInput):
        pv.publish(result, tmp_path / "m", test_metrics=result.private_diagnostics)  # type: ignore[arg-type]


# The command line


PATE = ["train", "--method", "pate", "--data", "digits", "--epsilon", "8"]


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(list(words))
    return code, "".join(capsys.readouterr())


def test_train_by_pate_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "m")
    words = [
        "train",
        "--method",
        "pate",
        "--data",
        "digits",
        "--epsilon",
        "8",
        "--teachers",
        "20",
        "--queries",
        "150",
        "--out",
        out,
    ]
    assert cli.main([*words, "--json", "--teacher", "logistic"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["epochs"], answer["steps"], answer["noise_multipliers"]) == (None, None, None)
    assert 8 * (1 - 1e-9) <= answer["epsilon"] <= 8
    assert 0.55 < answer["test_accuracy"] <= 1  # 0.8 to 0.95 in eight runs
    assert not (tmp_path / "m.teachers").exists()
    assert cli.main(["verify", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["warnings"] == []
    assert cli.main(["predict", out, "--data", "digits"]) == 0
    assert capsys.readouterr().out.startswith("index,prediction,score_0")


def test_confident_votes_and_interrupted_runs_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from privlearn.cli import publication

    out = str(tmp_path / "m")
    words = [
        *PATE,
        "--teachers",
        "15",
        "--queries",
        "60",
        "--threshold",
        "5",
        "--answers",
        "40",
        "--seed",
        "1",
        "--out",
        out,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(publication, "publish", lambda *_, **__: (_ for _ in ()).throw(BadInput("no space is left")))
        assert cli.main(words) == 2
    assert (tmp_path / "m.teachers").is_dir()
    code, said = command(capsys, *words)
    assert code == 2
    assert "go on with --resume" in said
    code, said = command(capsys, *words, "--resume")
    assert code == 0, said
    assert "asked 60 queries, 40 answered" in said
    assert pv.verify(out).ok


def test_an_interrupted_student_costs_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the student, or while answers are released: the same model as in one go, for one charge."""
    from privlearn.methods.ensemble import aggregator

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    base = [*PATE, "--teachers", "15", "--queries", "60", "--teacher", "logistic", "--model", "mlp:8", "--seed", "2"]

    def words(name: str) -> list[str]:
        out, ledger = str(tmp_path / name), str(tmp_path / f"{name}.json")
        return [*base, "--ledger", ledger, "--out", out]

    def files(name: str) -> list[bytes]:
        return [(tmp_path / name / file).read_bytes() for file in ("model.safetensors", "privacy.json", "README.md")]

    for name in ("whole", "student", "answers", "teachers"):
        assert cli.main(["ledger", str(tmp_path / f"{name}.json"), "--epsilon", "8.5", "--delta", "1e-5"]) == 0
    assert command(capsys, *words("whole"))[0] == 0
    for name, place, told in (
        ("student", (pv.Student, "_lesson"), "epsilon 8.0000 is spent"),
        ("answers", (aggregator, "_released"), "epsilon 8.0000 is spent"),
        ("teachers", (aggregator, "empty"), ""),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*place, stop)
            patch.setattr(pv.Student, "rehearsed", lambda self, answers: self)
            code, said = command(capsys, *words(name))
        assert code != 0
        assert told in said
        left = tmp_path / f"{name}.teachers"
        assert left.exists() is bool(told), said
        if left.exists():
            assert left.stat().st_mode & 0o077 == 0
            assert "go on with --resume, which does not pay again" in said
            code, said = command(capsys, *words(name), "--teacher", "forest", "--resume")
            assert code == 2
            assert "another recipe" in said
        code, said = command(capsys, *words(name), *["--resume"] * left.exists())
        assert code == 0, said
        assert files(name) == files("whole")
        assert not left.exists()
        code, said = command(capsys, "ledger", str(tmp_path / f"{name}.json"), "--json")
        assert json.loads(said)["epsilon"] == pytest.approx(8.0)
    left.mkdir()
    assert command(capsys, *words("teachers"), "--resume")[0] == 0, "it was published, and only the folder was left"
    assert not left.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--method", "pate", "--epsilon", "1", "--optimizer", "SGD"], "--optimizer does not go with --method pate"),
        (["--method", "pate", "--epsilon", "1", "--tune", "x.toml"], "--tune does not go with"),
        (["--method", "pate", "--epsilon", "1", "--clip", "layer"], "--clip does not go with"),
        (["--method", "pate"], "give what may be spent"),
        (["--method", "pate", "--epsilon", "1", "--noise-multiplier", "3"], "one of them"),
        (["--method", "pate", "--epsilon", "1", "--threshold", "3"], "--threshold and --answers go together"),
        (["--method", "pate", "--epsilon", "1", "--teacher", "oracle"], "--teacher is 'oracle'"),
        (
            ["--method", "pate", "--epsilon", "1", "--queries", "1000"],
            "--queries is 1000, and there are 324 public inputs",
        ),
        (["--method", "pate", "--epsilon", "1", "--rows-per-person", "1"], "protected at the same price"),
        (["--method", "pate", "--epsilon", "1", "--epochs", "0"], "epochs is 0"),
        (["--method", "pate", "--epsilon", "1", "--resume"], "no interrupted run"),
        (["--epsilon", "1", "--teachers", "3"], "--teachers is for --method pate"),
    ],
)
def test_command_line_refusals(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = command(capsys, "train", "--data", "digits", *words, "--out", str(tmp_path / "m"))
    assert code == 2
    assert reason in said


def test_the_price_of_votes_beforehand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without data: the guarantee, the noise beside the number of teachers, and who wins."""
    words = ["budget", "--method", "pate", "--queries", "100", "--epsilon", "8"]
    answers = []
    for more in (["--teachers", "20"], ["--teachers", "200", "--classes", "2"]):
        code, said = command(capsys, *words, *more, "--json")
        assert code == 0
        answers.append(json.JSONDecoder().raw_decode(said)[0])
    few, many = answers
    assert few["epsilon"] == pytest.approx(8.0)
    assert (few["epochs"], few["steps"], few["noise_multipliers"]) == (None, None, None)
    assert few["plan"]["noise_std"] == many["plan"]["noise_std"] == pytest.approx(8.489, abs=1e-3)
    assert [row["agree"] for row in few["votes"]] == [0.6, 0.75, 0.9]
    assert all(row["answered"] == 1.0 for row in few["votes"])
    assert few["votes"][2]["wins_against_one"] < 0.75 < 0.99 < many["votes"][0]["wins_against_one"]
    code, said = command(capsys, *words, "--teachers", "20")
    assert "nine teachers in ten agree, their class wins with probability 0.70" in said
    assert "noise of 8.489 votes on each count, 42% of the teachers" in said
    code, said = command(capsys, *words, "--teachers", "20", "--threshold", "40", "--answers", "30", "--examples", "30")
    assert "more than the 20 teachers have" in said
    assert "20 teachers share 30 examples" in said
    assert "answered" in said
    for refused, reason in ((["--pca", "3"], "--pca does not go"), (["--batch-size", "9"], "--batch-size does not go")):
        code, said = command(capsys, *words, *refused)
        assert code == 2
        assert reason in said
    assert command(capsys, "budget", "--examples", "100", "--epsilon", "1", "--teachers", "3")[0] == 2
    config = tmp_path / "run.toml"
    config.write_text('method = "pate"\nteachers = 20\nqueries = 100\nepsilon = 8\nteacher = "forest"\nmodel = "cnn"\n')
    code, said = command(capsys, "budget", "--config", str(config), "--json")
    assert code == 0, said
    assert json.JSONDecoder().raw_decode(said)[0]["plan"]["noise_std"] == few["plan"]["noise_std"]


def test_chances_to_win_are_those_of_a_simulation() -> None:
    made_up = np.random.default_rng(0)
    for classes, share, noise in ((3, 0.6, 4.0), (10, 0.75, 6.0), (2, 0.6, 9.0)):
        plan = pv.PatePlan(9, 20, pv.Votes(classes), noise_multiplier=noise / math.sqrt(2))
        for together in (True, False):
            counts = np.full(classes, (1 - share) * 20 / (classes - 1))
            if together:
                counts = np.array([0.0, (1 - share) * 20] + [0.0] * (classes - 2))
            counts[0] = share * 20
            noisy = counts + noise * made_up.standard_normal((40_000, classes))
            expected = float((noisy.argmax(1) == 0).mean())
            assert abs(voting.chance_to_win(plan, share, together=together) - expected) < 0.012, (classes, together)
    confident = pv.PatePlan(50, 20, pv.ConfidentVotes(3, 14.0, 10), noise_multiplier=2.0)
    passed = (0.9 * 20 + confident.test_noise * made_up.standard_normal(40_000) >= 14.0).mean()
    assert abs(voting.chance_to_be_answered(confident, 0.9) - passed) < 0.012


def persons(path: Path, seed: int = 0) -> None:
    """Three rows of each of 60 persons, and test rows."""
    made_up = np.random.default_rng(seed)
    x = made_up.normal(size=(280, 4)).clip(-3, 3)
    y = (x[:, 0] > 0).astype(int)
    np.savez(path, x=x[:180], y=y[:180], x_test=x[180:], y_test=y[180:], groups=np.arange(180) // 3)


def test_persons_are_protected_at_the_same_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    persons(tmp_path / "rows.npz")
    words = ["train", "--method", "pate", "--data", str(tmp_path / "rows.npz"), "--classes", "2", "--range", "-3,3"]
    words += ["--teachers", "12", "--queries", "40", "--teacher", "logistic", "--epsilon", "20", "--epochs", "2"]
    code, said = command(capsys, *words, "--out", str(tmp_path / "m"), "--ledger", str(tmp_path / "ledger.json"))
    assert code == 0, said
    assert "for a person with all their rows" in said
    assert "If one person, with all their rows, is added or removed" in said
    found = pv.verify(tmp_path / "m")
    assert found.ok, found.problems
    assert found.unit == "one person (any number of rows, all of which may be used)"
    assert found.epsilon == pytest.approx(20.0)
    card = (tmp_path / "m" / "README.md").read_text()
    assert "unit: one person" in card
    assert "on 10 rows |" in card
    assert "the first 90 of 100 test rows are public inputs" in card
    assert json.loads((tmp_path / "m" / "privacy.json").read_text())["settings"]["student"]["epochs"] == 2
    code, said = command(capsys, "ledger", str(tmp_path / "ledger.json"))
    assert "What is protected: one person" in said
    code, said = command(capsys, *words, "--group-size", "3", "--out", str(tmp_path / "g"))
    assert pv.verify(tmp_path / "g").unit == "up to 3 examples of one person"
    with pytest.raises(BadInput, match="do not say whose rows"):
        collect(
            replace(PLAN, persons=True),
            teachers.Trained(private(), lambda x, y: len, 6),
            None,
            INPUTS[:30],
            Streams.new(0),
        )  # type: ignore[arg-type,return-value]
    with pytest.raises(BadInput):
        pv.Plan(pv.Poisson(0.1), rows_per_person="all")  # type: ignore[arg-type]


def test_cards_say_what_was_asked_and_of_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *PATE,
        "--teachers",
        "30",
        "--queries",
        "60",
        "--threshold",
        "10",
        "--answers",
        "40",
        "--teacher",
        "forest",
    ]
    code, said = command(capsys, *words, "--json", "--out", str(tmp_path / "m"))
    assert code == 0, said
    assert json.JSONDecoder().raw_decode(said)[0]["test_rows"] == 36
    card = (tmp_path / "m" / "README.md").read_text()
    settings = json.loads((tmp_path / "m" / "privacy.json").read_text())["settings"]
    assert "| teachers | 30 x ExtraTreesClassifier(), records assigned by chance |" in card
    assert settings["teacher"]["recipe"]["class"].endswith(":ExtraTreesClassifier")
    assert "reaches 10 votes; at most 40 times" in card
    assert "60 tests (sensitivity 1, 0.3 of the price) and 40 answers (sensitivity sqrt 2) are together rho" in card
    plan = pv.PatePlan(60, 30, pv.ConfidentVotes(10, 10, 40)).calibrate(epsilon=8.0, delta=1e-5)
    assert settings["test_noise_multiplier"] == plan.test_noise


def test_planning_needs_no_torch() -> None:
    import subprocess

    planned = "pv.PatePlan(9, 5, pv.Votes(3)).calibrate(epsilon=1, delta=1e-5)"
    code = f"import privlearn as pv, sys; {planned}; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


# The benchmark


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    bench = importlib.import_module("pate")
    for case in bench.cases(bench.SMOKE):
        rows = importlib.import_module("common").measure(case)
        assert all(row.answer > 0 for row in rows)
