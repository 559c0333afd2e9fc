"""The help in 80 columns, names that were mistyped, completion, colours, interruptions, and the dry
run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from privlearn.cli import main
from privlearn.cli.options import COMMANDS, USUAL, options_of


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(list(arguments))
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_into_80_columns(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "--help-all") if command else ("--help",):
        lines = said(capsys, *command.split(), flag).splitlines()
        assert max(map(len, lines)) <= 80
        assert flag == "--help-all" or len(lines) <= 60


@pytest.mark.parametrize("command", COMMANDS)
def test_the_usual_options_come_first_and_all_of_them_are_there(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = re.compile(r"^  --([a-z-]+)", re.MULTILINE)
    short, long = (
        set(named.findall(said(capsys, command, flag))) for flag in ("--help", "--help-all")
    )
    every = {option.name for option in options_of(command).values() if option.flag}
    assert long - {"help-all"} == every
    assert short - {"help-all"} == set(USUAL.get(command, every))
    assert set(USUAL.get(command, ())) <= every
    assert len(USUAL.get(command, ())) <= 14
    assert command in USUAL or len(every) <= 12


def test_all_options_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    for heading in (
        "data:",
        "what may be spent:",
        "how it descends:",
        "the run:",
        "what is published:",
    ):
        assert f"\n{heading}\n" in said(capsys, "train", "--help-all")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("trian --data digits", "Did you mean train?"),
        ("train --data digits --epsilom 3 --out x", "Did you mean --epsilon?"),
        ("train --data digits --epsilon 3 --batchsize=9 --out x", "Did you mean --batch-size?"),
        ("budget --example 3", "Did you mean --examples?"),
        ("train --data digts --epsilon 3 --out x", "privlearn: --data 'digts' is unknown"),
        ("verify x --kye k", "Did you mean --key?"),
        ("train --data digits --lr 0.1 --out x", "Did you mean --learning-rate?"),
        ("train --data digits --microbatch none --out x", "--help-all"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_one(
    line: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert meant in capsys.readouterr().err


def test_a_name_like_none_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--qqqq", "1"]) == 2
    assert "mean" not in capsys.readouterr().err


def test_the_usual_examples_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index("  examples:")
    examples = [line.split()[1:] for line in lines[at + 1 : at + 4]]
    assert [example[0] for example in examples] == ["budget", "train", "verify"]
    for command, *arguments in examples:
        known = {f"--{option.name}" for option in options_of(command).values()}
        assert {part for part in arguments if part.startswith("--")} <= known


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tr", ["train"]),
        ("train --eps", ["--epsilon"]),
        ("train --method dp", ["dpsgd", "dpmac"]),
        ("train --data ", []),
        ("train --dry-run --ou", ["--out"]),
        ("data f", ["fetch"]),
        ("completion z", ["zsh"]),
    ],
)
def test_bash_completes(
    typed: str, completed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    words = ["privlearn", *typed.split(" ")]
    asked = (
        f"\nCOMP_WORDS=({' '.join(repr(word) for word in words)}); "
        f"COMP_CWORD={len(words) - 1}\n_privlearn\n"
    )
    script = capsys.readouterr().out + asked + 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    answered = subprocess.run(
        ["bash", "--norc"], input=script, capture_output=True, text=True, check=True
    )
    assert answered.stderr == ""
    assert answered.stdout.split() == completed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_know_every_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        for option in options_of(command).values():
            if option.flag:
                assert (f"-l {option.name} " if shell == "fish" else f"--{option.name}") in script


def test_no_colours_where_none_are_wanted() -> None:
    """Also on a terminal: rich takes FORCE_COLOR for one."""
    options = "budget --examples 100 --noise-multiplier 1 --epochs 1 --delta 0.1"
    line = [sys.executable, "-m", "privlearn", *options.split()]
    environment = {
        "PATH": "/usr/bin:/bin",
        "FORCE_COLOR": "1",
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    }
    coloured = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    plain = subprocess.run(
        line, env=environment | {"NO_COLOR": "1"}, capture_output=True, text=True, check=True
    )
    colour = re.compile(r"\x1b\[[\d;]*3\dm")
    assert colour.search(coloured.stderr)  # the warning about delta
    assert not colour.search(plain.stderr + plain.stdout)
    assert "warning" in plain.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("verify x", "interrupted; nothing was changed"),
        ("predict x --data y", "interrupted; nothing was written"),
        ("audit", "interrupted; the attack proves nothing before its end"),
        ("reproduce x", "interrupted; runs that are finished are kept"),
        (
            "train --data digits --epsilon 1 --out x",
            "interrupted; what a ledger was charged stays charged",
        ),
    ],
)
def test_an_interruption_ends_with_a_sentence(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch("privlearn.cli.import_module", side_effect=KeyboardInterrupt):
        assert main(command.split()) == 130
    assert sentence in capsys.readouterr().err


# -- the dry run


def _untouched(place: Path, run: list[str]) -> bool:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert main(run) == 0
    return before == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_dry_run_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _untouched(
        tmp_path,
        ["train", "--data", "breast-cancer", "--epsilon", "1", "--epochs", "1", "--dry-run"],
    )


@pytest.mark.parametrize(
    "method",
    ["dpsgd", "dpsgd --model mlp:8 --rows", "features", "boosting", "dpmac"],
    ids=lambda own: own.split()[-1],
)
def test_a_dry_run_writes_and_charges_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ledger", "study.json", "--epsilon", "6", "--measure", "renyi"]) == 0
    options = method.replace("--rows", "--noise-multiplier 2 --epochs 2").split()
    spent = [] if "--noise-multiplier" in options else ["--epsilon", "1"]
    line = [
        "train",
        "--data",
        "breast-cancer",
        "--method",
        *options,
        *spent,
        "--ledger",
        "study.json",
        "--out",
        "out",
    ]
    capsys.readouterr()
    assert _untouched(tmp_path, [*line, "--dry-run"])
    heard = capsys.readouterr()
    assert "nothing was trained, charged, written or published" in heard.out
    assert "the guarantee" in heard.out
    assert ("examples each" in heard.out) is (options[0] == "dpsgd")
    assert "plan:" in heard.err
    assert _untouched(tmp_path, [*line, "--dry-run", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["dry_run"] is None or figures["dry_run"]["steps"] > 0
    assert not (tmp_path / "out").exists()


def test_a_dry_run_begins_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [
                "train",
                "--data",
                "digits",
                "--epsilon",
                "1",
                "--epochs",
                "1",
                "--ledger",
                "new.json",
                "--out",
                "x",
                "--dry-run",
            ]
        )
        == 0
    )
    assert not list(tmp_path.iterdir())


def test_a_dry_run_draws_no_noise_for_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are on made-up rows: none of the data's are among what is computed with."""
    import torch

    from privlearn.core.clipping.gradients import ClippedGradients

    seen: list[torch.Tensor] = []
    real = ClippedGradients.__call__

    def noted(
        self: ClippedGradients, sample: object, rows: object, *more: object, **kwargs: object
    ) -> object:
        seen.append(rows.fetch(torch.arange(len(rows)))[0])  # type: ignore[attr-defined,arg-type]
        return real(self, sample, rows, *more, **kwargs)  # type: ignore[arg-type]

    import privlearn as pv

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ClippedGradients, "__call__", noted)
    assert (
        main(
            [
                "train",
                "--data",
                "digits",
                "--epsilon",
                "1",
                "--epochs",
                "1",
                "--out",
                "x",
                "--dry-run",
            ]
        )
        == 0
    )
    own = torch.as_tensor(pv.load("digits").x).flatten(1)
    assert seen
    for rows in seen:
        assert not (torch.cdist(rows.flatten(1).double(), own.double()) < 1e-6).any()


def test_a_dry_run_refuses_a_folder_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["train", "--data", "digits", "--epsilon", "1", "--out", str(tmp_path), "--dry-run"])
        == 2
    )
    assert "exists already" in capsys.readouterr().err


def test_the_time_of_a_long_run_is_said_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is measured on made-up rows, and the run draws what it would draw without."""
    from privlearn.cli import dry_run

    monkeypatch.chdir(tmp_path)
    line = ["train", "--data", "digits", "--epsilon", "1", "--epochs", "1", "--seed", "3", "--out"]
    assert main([*line, "short"]) == 0
    assert "of training on this machine" not in capsys.readouterr().err
    monkeypatch.setattr(dry_run, "_MANY_STEPS", 1)
    monkeypatch.setattr(dry_run, "_LONG", 0.0)
    assert main([*line, "long"]) == 0
    assert re.search(r"about \S+ seconds of training on this machine", capsys.readouterr().err)
    short, long = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("short", "long")
    )
    assert short == long
