"""PATE on the command line: what a run says and keeps, what votes cost, persons, and what is
refused.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn import cli
from privlearn.errors import BadInput
from privlearn.methods.pate import chances, voting
from privlearn.publishing import certificate

PATE = ["train", "--method", "pate", "--data", "digits", "--epsilon", "8"]


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(list(words))
    return code, "".join(capsys.readouterr())


def test_train_by_pate_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_jobs_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, given = (
        [*PATE, "--teachers", "4", "--queries", "40", "--teacher", "logistic", "--epochs", "2"],
        [],
    )
    made = pv.teachers.Trained

    def trained(*rest: Any, jobs: int, **more: Any) -> Any:
        given.append(jobs)
        return made(*rest, jobs=min(jobs, 1), **more)

    monkeypatch.setattr(voting, "Trained", trained)
    for jobs in ((), ("--jobs", "3")):
        assert cli.main([*words, *jobs, "--out", str(tmp_path / f"m{len(jobs)}")]) == 0
    assert given == [1, 3]
    assert cli.main([*words, "--jobs", "0", "--out", str(tmp_path / "none")]) == 2
    assert "jobs is 0" in capsys.readouterr().err


def test_networks_are_taught_by_several_jobs_as_by_one(tmp_path: Path) -> None:
    words = [*PATE, "--seed", "1", "--teacher", "mlp:5", "--teachers", "4", "--queries", "30"]
    for jobs in ("1", "2"):
        out = str(tmp_path / jobs)
        assert cli.main([*words, "--epochs", "2", "--jobs", jobs, "--out", out]) == 0
    one, two = (list(pv.load_model(tmp_path / jobs).parameters()) for jobs in ("1", "2"))
    assert all(torch.allclose(*pair) for pair in zip(one, two, strict=True))
    assert not list(tmp_path.glob("*.teachers"))


@pytest.mark.parametrize(
    ("teachers", "more", "expected"),
    [
        ("800", ("--adjacency", "zero_out"), "800 teachers share 1437 examples: most of them"),
        ("144", ("--examples", "1437"), "144 teachers share 1437 examples, 9.98 for each, which"),
        ("143", ("--examples", "1437"), None),
        ("800", (), None),
    ],
)
def test_few_rows_for_a_teacher_are_warned_of_where_their_number_is_public(
    teachers: str, more: tuple[str, ...], expected: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Add/remove neighbours differ in it: nothing follows from it unless it is declared."""
    words = [*PATE, "--teachers", teachers, "--delta", "1e-3", "--dry-run"]
    code, said = command(capsys, *words, *more)
    assert code == 0
    assert ("teachers share" in said) is (expected is not None)
    assert expected is None or expected in said
    assert ("one over the 1437 examples" in said) is bool(more)


def test_a_delta_is_not_compared_with_a_number_of_rows_that_is_private(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["train", "--method", "features", "--data", "digits", "--epsilon", "2"]
    data = pv.load("digits")
    for more, declared in (((), None), (("--examples", "1437"), 1437)):
        code, said = command(capsys, *words, "--delta", "1e-3", "--dry-run", *more)
        assert code == 0, said
        assert ("one over the 1437 examples" in said) is (declared is not None)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            pv.train(data, method="features", noise_multiplier=5, delta=1e-3, examples=declared)
        warned = any("one over the 1437 examples" in str(each.message) for each in heard)
        assert warned is (declared is not None)


def test_confident_votes_and_interrupted_runs_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from privlearn.cli.commands import train as train_command

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
        patch.setattr(
            train_command,
            "publish",
            lambda *_, **__: (_ for _ in ()).throw(BadInput("no space is left")),
        )
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
    """Interrupted in the student, or while answers are released: the same model as in one go, for
    one charge.
    """
    from privlearn.methods.pate import answers

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    base = [
        *PATE,
        "--teachers",
        "5",
        "--queries",
        "40",
        "--model",
        "mlp:8",
        "--epochs",
        "3",
        "--seed",
        "2",
    ]

    def words(name: str) -> list[str]:
        out, ledger = str(tmp_path / name), str(tmp_path / f"{name}.json")
        return [*base, "--ledger", ledger, "--out", out]

    def files(name: str) -> list[Any]:
        """What was published, but for the head of the ledger, of which each has its own."""
        folder = tmp_path / name
        certificate = json.loads((folder / "privacy.json").read_text())
        del certificate["facts"]["ledger_head"], certificate["digests"], certificate["files"]
        return [
            certificate,
            *map(Path.read_bytes, (folder / "model.safetensors", folder / "README.md")),
        ]

    for name in ("whole", "student", "answers", "teachers"):
        assert (
            cli.main(
                ["ledger", str(tmp_path / f"{name}.json"), "--epsilon", "8.5", "--delta", "1e-5"]
            )
            == 0
        )
    assert command(capsys, *words("whole"))[0] == 0
    for name, place, told in (
        ("student", (pv.teachers.Student, "_lesson"), "epsilon 8.0000 is spent"),
        ("answers", (answers, "_release"), "epsilon 8.0000 is spent"),
        ("teachers", (answers, "empty"), ""),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*place, stop)
            patch.setattr(pv.teachers.Student, "rehearsed", lambda self, answers: self)
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
    assert command(capsys, *words("teachers"), "--resume")[0] == 0, (
        "it was published, and only the folder was left"
    )
    assert not left.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--method", "pate", "--epsilon", "1", "--optimizer", "SGD"],
            "--method pate does not go with --optimizer",
        ),
        (["--method", "pate", "--epsilon", "1", "--tune", "x.toml"], "does not go with --tune"),
        (["--method", "pate", "--epsilon", "1", "--clip", "layer"], "does not go with --clip"),
        (["--method", "pate"], "give what may be spent"),
        (["--method", "pate", "--epsilon", "1", "--noise-multiplier", "3"], "one of them"),
        (
            ["--method", "pate", "--epsilon", "1", "--threshold", "3"],
            "--threshold and --answers go together",
        ),
        (["--method", "pate", "--epsilon", "1", "--teacher", "oracle"], "--teacher is 'oracle'"),
        (
            ["--method", "pate", "--epsilon", "1", "--queries", "1000"],
            "--queries is 1000, and there are 324 public inputs",
        ),
        (
            ["--method", "pate", "--epsilon", "1", "--rows-per-person", "1"],
            "protected at the same price",
        ),
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
    code, said = command(
        capsys,
        *words,
        "--teachers",
        "20",
        "--threshold",
        "40",
        "--answers",
        "30",
        "--examples",
        "30",
    )
    assert "more than the 20 teachers have" in said
    assert "20 teachers share 30 examples" in said
    assert "answered" in said
    for refused, reason in (
        (["--pca", "3"], "does not go with --pca"),
        (["--batch-size", "9"], "does not go with --batch-size"),
    ):
        code, said = command(capsys, *words, *refused)
        assert code == 2
        assert reason in said
    assert (
        command(capsys, "budget", "--examples", "100", "--epsilon", "1", "--teachers", "3")[0] == 2
    )
    config = tmp_path / "run.toml"
    config.write_text(
        'method = "pate"\nteachers = 20\nqueries = 100\nepsilon = 8\nteacher = "forest"\nmodel = '
        '"cnn"\n'
    )
    code, said = command(capsys, "budget", "--config", str(config), "--json")
    assert code == 0, said
    assert json.JSONDecoder().raw_decode(said)[0]["plan"]["noise_std"] == few["plan"]["noise_std"]


def test_chances_to_win_are_those_of_a_simulation() -> None:
    made_up = np.random.default_rng(0)
    for classes, share, noise in ((3, 0.6, 4.0), (10, 0.75, 6.0), (2, 0.6, 9.0)):
        plan = pv.teachers.PatePlan(
            9, 20, pv.teachers.Votes(classes), noise_multiplier=noise / math.sqrt(2)
        )
        for together in (True, False):
            counts = np.full(classes, (1 - share) * 20 / (classes - 1))
            if together:
                counts = np.array([0.0, (1 - share) * 20] + [0.0] * (classes - 2))
            counts[0] = share * 20
            noisy = counts + noise * made_up.standard_normal((40_000, classes))
            expected = float((noisy.argmax(1) == 0).mean())
            assert abs(chances.chance_to_win(plan, share, together=together) - expected) < 0.012, (
                classes,
                together,
            )
    confident = pv.teachers.PatePlan(
        50, 20, pv.teachers.ConfidentVotes(3, 14.0, 10), noise_multiplier=2.0
    )
    passed = (0.9 * 20 + confident.test_noise * made_up.standard_normal(40_000) >= 14.0).mean()
    assert abs(chances.chance_to_be_answered(confident, 0.9) - passed) < 0.012


def persons(path: Path, seed: int = 0) -> None:
    """Three rows of each of 60 persons, and test rows; beside them public rows of others, in
    public.npz.
    """
    made_up = np.random.default_rng(seed)
    x = made_up.normal(size=(280, 4)).clip(-3, 3)
    y = (x[:, 0] > 0).astype(int)
    np.savez(path, x=x[:180], y=y[:180], x_test=x[270:], y_test=y[270:], groups=np.arange(180) // 3)
    np.savez(path.with_name("public.npz"), x=x[180:270], y=y[180:270])


def test_persons_are_protected_at_the_same_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    persons(tmp_path / "rows.npz")
    words = [
        "train",
        "--method",
        "pate",
        "--data",
        str(tmp_path / "rows.npz"),
        "--classes",
        "2",
        "--range",
        "-3,3",
    ]
    words += ["--public", str(tmp_path / "public.npz")]
    words += [
        "--teachers",
        "12",
        "--queries",
        "40",
        "--teacher",
        "logistic",
        "--epsilon",
        "20",
        "--epochs",
        "2",
    ]
    code, said = command(
        capsys, *words, "--out", str(tmp_path / "m"), "--ledger", str(tmp_path / "ledger.json")
    )
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
    assert "40 (of 90 public inputs)" in card
    assert (
        json.loads((tmp_path / "m" / "privacy.json").read_text())["facts"]["student"]["epochs"] == 2
    )
    code, said = command(capsys, "ledger", str(tmp_path / "ledger.json"))
    assert "What is protected: one person" in said
    code, said = command(capsys, *words, "--group-size", "3", "--out", str(tmp_path / "g"))
    assert pv.verify(tmp_path / "g").unit == "up to 3 examples of one person"
    card = (tmp_path / "g" / "README.md").read_text()
    assert "records assigned by chance, each person's to one teacher |" in card
    # A record that becomes another person's moves two teachers.
    words += ["--adjacency", "replace_one", "--out", str(tmp_path / "r")]
    code, said = command(capsys, *words, "--group-size", "3")
    assert code == 2
    assert "changes two teachers" in said
    assert not (tmp_path / "r").exists()
    assert command(capsys, *words)[0] == 0
    assert pv.verify(tmp_path / "r").ok


def test_cards_say_what_was_asked_and_of_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *PATE,
        "--teachers",
        "6",
        "--queries",
        "60",
        "--threshold",
        "3",
        "--answers",
        "40",
        "--teacher",
        "forest",
    ]
    code, said = command(capsys, *words, "--json", "--out", str(tmp_path / "m"))
    assert code == 0, said
    assert json.JSONDecoder().raw_decode(said)[0]["test_rows"] == 36
    card = (tmp_path / "m" / "README.md").read_text()
    body = json.loads((tmp_path / "m" / "privacy.json").read_text())
    assert "| teachers | 6 |" in card
    assert "| each teacher | ExtraTreesClassifier(), records assigned by chance |" in card
    assert body["facts"]["teacher"]["recipe"]["class"].endswith(":ExtraTreesClassifier")
    assert "reaches 3 votes; at most 40 times" in card
    assert (
        "60 tests (sensitivity 1, 0.3 of the price) and 40 answers (sensitivity sqrt 2) are "
        "together rho"
    ) in card
    plan = pv.teachers.PatePlan(60, 6, pv.teachers.ConfidentVotes(10, 3, 40)).calibrate(
        epsilon=8.0, delta=1e-5
    )
    assert certificate.read_plan(body["plan"]) == plan
    assert f"with noise of {plan.test_noise:.4g}, reaches" in card


def test_public_inputs_need_no_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Votes ask for none; what learns from public labels says that they are missing, and what to
    give.
    """
    x, y = pv.load("digits").x, pv.load("digits").y
    np.savez(tmp_path / "private.npz", x=x[:400], y=y[:400])
    np.savez(tmp_path / "public.npz", x=x[400:500])
    np.savez(tmp_path / "labels.npz", y=y[400:500])
    np.savez(tmp_path / "unequal.npz", x=x[400:500], y=y[400:450])
    words = [
        "train",
        "--data",
        str(tmp_path / "private.npz"),
        "--classes",
        "10",
        "--range=0,16",
        "--epsilon",
        "8",
    ]
    pate_words = [*words, "--method", "pate", "--teachers", "5", "--queries", "40", "--epochs", "2"]

    def run(words: list[str], public: str) -> tuple[int, str]:
        code, said = command(
            capsys,
            *words,
            "--public",
            str(tmp_path / public),
            "--out",
            str(tmp_path / f"to-{public}"),
        )
        return code, " ".join(said.split())

    for public, reason in (
        ("labels.npz", "expected x and y"),
        ("unequal.npz", "100 inputs and 50 targets"),
    ):
        code, said = run(pate_words, public)
        assert (code, reason in said) == (2, True), said
    validation = [
        "--epochs",
        "3",
        "--schedule",
        "validation:k=0.7,m=1,threshold=0.01,period=1,start=20",
    ]
    code, said = run([*words, *validation, "--examples", "400"], "public.npz")
    assert code == 2
    assert "the targets of the public validation rows are missing" in said
    assert "or y beside x in the file" in said
    code, said = run(pate_words, "public.npz")
    assert code == 0, said
    volumes = np.random.default_rng(0).random((6, 1, 4, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "volumes.npz", x=volumes, y=np.zeros((6, 4, 4, 4), np.int64))
    np.savez(tmp_path / "no-masks.npz", x=volumes + 0.01, x_test=volumes + 0.02)
    maps = [
        "--data",
        str(tmp_path / "volumes.npz"),
        "--classes",
        "3",
        "--range=0,2",
        "--method",
        "pate",
    ]
    code, said = run(["train", *maps, "--epsilon", "8", "--model", "unet"], "no-masks.npz")
    assert (code, "has no y: expected the masks of x" in said) == (2, True), said
    with pytest.raises(BadInput, match="expected x and y"):  # they are not declared public
        pv.load(tmp_path / "public.npz", classes=10, value_range=(0, 16))


def test_a_student_that_learned_little_names_the_options(tmp_path: Path) -> None:
    words = [*PATE, "--teachers", "5", "--queries", "40", "--epochs", "1", "--model", "linear"]
    words += ["--learning-rate", "0.00001", "--out", str(tmp_path / "m")]
    run = subprocess.run(
        [sys.executable, "-m", "privlearn", *words], capture_output=True, text=True, check=True
    )
    said = " ".join(run.stderr.split())
    assert "warning: the student learned little" in said
    assert "Train longer (--epochs) or at a higher --learning-rate;" in said
    assert "fewer --queries, or take a larger --epsilon" in said
    assert "UserWarning" not in said
    assert ".py" not in said


def test_numbers_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command each, with public targets and without; the folder predicts from a table."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2200, 3)).round(4)
    y = (x @ rng.uniform(-1, 1, (3, 4)) * [1, 1, 10, 100]).round(4)
    names = [f"x{column}" for column in range(3)], [f"y{column}" for column in range(4)]
    columns = [f'{name} = {{ kind = "number", low = -1, high = 1 }}' for name in names[0]]
    columns += [
        f'{name} = {{ kind = "target", low = {-3 * unit}, high = {3 * unit} }}'
        for name, unit in zip(names[1], (1, 1, 10, 100), strict=True)
    ]
    schema = tmp_path / "s.toml"
    schema.write_text(f"target = {names[1]}\n[columns]\n" + "\n".join(columns))
    for name, part, heads in (
        ("rows", slice(2000), [*names[0], *names[1]]),
        ("pool", slice(2000, 2150), [*names[0], *names[1]]),
        ("asked", slice(2000, 2150), names[0]),
        ("half", slice(2000, 2150), [*names[0], *names[1][:2]]),
        ("test", slice(2150, 2200), [*names[0], *names[1]]),
    ):
        lines = [",".join(map(str, row)) for row in np.hstack([x, y])[part, : len(heads)].tolist()]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(heads), *lines]))
    given = ["train", "--method", "pate", "--schema", str(schema), "--epsilon", "8"]
    given += ["--data", str(tmp_path / "rows.csv"), "--test-data", str(tmp_path / "test.csv")]
    given += ["--seed", "0"]
    for public, kind in (("pool", "pca"), ("asked", "identity")):
        out = str(tmp_path / f"of-{public}")
        words = [*given, "--public", str(tmp_path / f"{public}.csv"), "--teachers", "80"]
        assert cli.main([*words, "--json", "--out", out]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["epsilon"] <= 8
        assert answer["test_metrics"]["r2"] > 0.7, answer["test_metrics"]
        assert cli.main(["verify", out]) == 0
        facts = json.loads((tmp_path / f"of-{public}" / "privacy.json").read_text())["facts"]
        assert facts["reducer"]["kind"] == kind
        capsys.readouterr()
        assert cli.main(["predict", out, "--data", str(tmp_path / "asked.csv")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "index,y0,y1,y2,y3"
        predicted = np.array([line.split(",")[1:] for line in lines[1:]], dtype=float)
        assert np.corrcoef(predicted[:, 3], y[2000:2150, 3])[0, 1] > 0.7
    code, said = command(
        capsys, *given, "--public", str(tmp_path / "half.csv"), "--out", str(tmp_path / "no")
    )
    assert code == 2
    assert "has some of the targets, and not 'y2', 'y3': add them" in said
    words = [*given, "--public", str(tmp_path / "pool.csv")]
    code, said = command(capsys, *words, "--teachers", "2", "--out", str(tmp_path / "no"))
    assert code == 2
    assert "no component has a variance above the noise's" in said
    assert said.strip().endswith("use more --teachers, fewer --queries or a larger --epsilon")
    words += ["--threshold", "9", "--answers", "5"]
    code, said = command(capsys, *words, "--out", str(tmp_path / "no"))
    assert code == 2
    assert "are for votes on classes" in said
