"""What a first user of the command line meets: no command at all, options by their names, figures
read correctly.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.cli import in_options, main
from privlearn.cli.options import COMMANDS, options_of
from privlearn.cli.options import options as every_option
from privlearn.core.accounting.guarantee import readable, rounded_up
from privlearn.errors import BadInput


def make_network(input_shape: tuple[int, ...], classes: int | None) -> torch.nn.Module:
    """It knows its classes itself."""
    return torch.nn.Linear(input_shape[0], 3)


def make_for(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Linear(input_shape[0], classes)


#: Advice that begins late in a long message.
REFUSED = f"the widths {'10, ' * 30}do not fit: expected fewer, give --model tiny or wide"


def make_refused(input_shape: tuple[int, ...], classes: int | None) -> torch.nn.Module:
    raise BadInput(REFUSED)


def test_a_model_without_stated_classes_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    rows = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.randint(3, (40,)))
    network = torch.nn.Linear(4, 3)
    private = pv.make_private(
        network,
        torch.optim.SGD(network.parameters(), lr=0.1),
        torch.utils.data.DataLoader(rows, batch_size=8),
        epochs=1,
        epsilon=3.0,
        delta=1e-3,
        max_grad_norm=1.0,
    )
    for batch in private.batches():
        private.step(batch, torch.nn.CrossEntropyLoss(reduction="none"))
    result = private.result()
    x = rows.tensors[0].numpy()
    np.savez(tmp_path / "rows.npz", x=x)
    expected = network(rows.tensors[0]).argmax(1).tolist()

    def predicted(folder: str, model: str) -> list[int]:
        code = main(
            [
                "predict",
                str(tmp_path / folder),
                "--data",
                str(tmp_path / "rows.npz"),
                "--model",
                f"tests.cli.test_first_commands:{model}",
            ]
        )
        assert code == 0
        return [int(line.split(",")[1]) for line in capsys.readouterr().out.splitlines()[1:]]

    pv.publish(result, tmp_path / "plain", delta=1e-3)
    pv.publish(result, tmp_path / "stated", delta=1e-3, classes=3)
    assert predicted("plain", "make_network") == expected
    assert predicted("stated", "make_for") == expected
    with pytest.raises(AssertionError):
        predicted("plain", "make_for")
    said = capsys.readouterr().err
    assert "does not say how many classes there are" in said
    assert "publish with classes=K" in said
    assert "model tests.cli.test_first_commands:make_for failed: TypeError: " in said
    with pytest.raises(AssertionError):
        predicted("plain", "no_such_factory")
    said = capsys.readouterr().err
    assert "folder/file.py:function" in said  # all of the advice, and none that is for factories
    assert "classes=K" not in said
    with pytest.raises(AssertionError):
        predicted("plain", "make_refused")
    said = capsys.readouterr().err
    assert f"{REFUSED}. The folder does not say how many classes there are" in said


def test_without_a_command_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("privlearn: expected a command\n")
    for name, summary in COMMANDS.items():
        assert any(line.split() == [name, *summary.split()] for line in said.err.splitlines()), name
    examples = [line for line in said.err.splitlines() if line.strip().startswith("privlearn ")]
    assert len(examples) >= 3
    assert {line.split()[1] for line in examples} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("noise_multiplier is -1: expected more", "--noise-multiplier is -1: expected more"),
        ("the noise multiplier is -1", "--noise-multiplier is -1"),
        ("epsilon is nan: expected more", "--epsilon is nan: expected more"),
        ("clip is 'x': expected one of flat", "--clip is 'x': expected one of flat"),
        ("model 'mlp' needs widths", "--model 'mlp' needs widths"),
        (
            "give epsilon=E (with delta=D), or learning_rate=0.1",
            "give --epsilon E (with --delta D), or --learning-rate 0.1",
        ),
        (
            "give it with model='a.b:c', out=, or test=",
            "give it with --model a.b:c, --out, or --test-data",
        ),
        ("declare value_range=(LO, HI)", "declare --range LO,HI"),
        ("leave out lr_schedule=", "leave out lr_schedule="),  # nothing is called so in Python
        ("give learning_rate_schedule=S", "give --lr-schedule S"),
        ("use Plan(examples=N)", "use Plan(examples=N). On the command line: --examples N"),
        (
            "use pv.Plan(pv.Poisson(0.1), examples=N), or out=",
            "use pv.Plan(pv.Poisson(0.1), examples=N), or --out. On the command line: --examples N",
        ),
        ("augmentation is 3", "augmentation is 3. On the command line: --views K, --augment SPEC"),
        (
            "it took noise=200 in validation:k=1,noise=200",
            "it took noise=200 in validation:k=1,noise=200",
        ),
        ("the data have 0 rows: a.out=3, is x", "the data have 0 rows: a.out=3, is x"),
        ("say so with new_rows=True", "say so with --new-rows"),
        ("give discrete=False", "give no --discrete"),
        ("--epochs is 0, and epochs=N", "--epochs is 0, and --epochs N"),
    ],
)
def test_messages_name_options(message: str, said: str) -> None:
    assert in_options(message, "train") == said


def test_advice_is_an_option_that_the_command_reads() -> None:
    """Of every option of every command: a flag takes no value, and each other option takes one."""
    for option in every_option():
        for command in option.commands:
            named = [other.in_python for other in options_of(command).values() if other.flag]
            if not option.flag or named.count(option.in_python) > 1:
                continue
            is_flag = option.kind is bool
            advice = f"say so with {option.in_python}={'True' if is_flag else 'X'}"
            said = f"say so with --{option.name}{'' if is_flag else ' X'}"
            assert in_options(advice, command) == said, (command, option.name)


def test_small_figures_keep_their_digits() -> None:
    """Rounded up, in texts that people rely on; and never 0 where something was spent."""
    assert [readable(value) for value in (0.0, 1.23456e-7, 0.0099, 0.01, 3.99881)] == [
        "0.0000",
        "1.23e-07",
        "0.0099",
        "0.0100",
        "3.9988",
    ]
    assert [
        rounded_up(value) for value in (0.0, 1.23456e-7, 0.00991, 0.0101, 3.9981, float("inf"))
    ] == [
        "0",
        "1.24e-07",
        "0.00991",
        "0.011",
        "3.999",
        "inf",
    ]
    for value in (1e-320, 1.2e-9, 0.00123, 0.00999999, 0.5, 12.3456):
        assert float(rounded_up(value)) >= value


def test_a_tiny_epsilon_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "budget",
                "--examples",
                "1000",
                "--noise-multiplier",
                "1000",
                "--epochs",
                "1",
                "--sampling",
                "full",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "0.0000" not in out
    assert "e^0 " not in out


def test_the_last_lines_say_what_is_certified(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a ledger that other runs share: the ledger's claim, and what this run would cost by
    itself.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["ledger", "study.json", "--epsilon", "6"]) == 0
    spent = "--noise-multiplier 4 --epochs 1 --ledger study.json --seed 1"
    for number in range(2):
        capsys.readouterr()
        assert main(f"train --data digits {spent} --out run{number}".split()) == 0
    lines = " ".join(capsys.readouterr().out.split())
    claim = json.loads((tmp_path / "run1" / "privacy.json").read_text())["claim"]
    assert claim["epsilon"] == pytest.approx(6.0)
    assert "certified epsilon 6.0000 at delta 1e-05, for all runs together" in lines
    assert (
        f"this run by itself epsilon {claim['ledger']['run_epsilon']:.4f} at delta 1e-05 "
        "(zero_out, by pld)"
    ) in lines
    assert "guarantee" not in lines


def test_a_check_of_a_table_says_what_training_would(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are ignored, and categories that no row has."""
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(
        "age,work,name,rich\n" + "30,privat,Ann,no\n140,privat,Bob,yes\n" * 20
    )
    Path("people.toml").write_text(
        'target = "rich"\n[columns.age]\nkind = "number"\nlow = 0\nhigh = '
        '100\n[columns.work]\nkind = "category"\ncategories = ["private", '
        '"state"]\n[columns.rich]\nkind = "target"\nclasses = ["no", "yes"]\n'
    )
    assert main(["data", "check", "people.csv", "--schema", "people.toml"]) == 0
    said = capsys.readouterr()
    assert "all of the cells of column 'work' are none of its declared categories" in said.out
    assert "'privat' (all, like 'private', which is declared)" in said.out
    assert "does not name are ignored: 'name'" in said.err
    assert "40 rows, all can be used" in said.out
    assert (
        "column 'age': 20 of 40 rows are at a bound of the schema, or beyond it and clipped to it"
        in said.out
    )
    assert (
        main(
            [
                "train",
                "--data",
                "people.csv",
                "--schema",
                "people.toml",
                "--epsilon",
                "1",
                "--epochs",
                "1",
                "--out",
                "x",
                "--seed",
                "1",
            ]
        )
        == 0
    )
    remarks = [
        line for line in said.err.splitlines() if "curator" not in line and "whoever" not in line
    ]
    assert set(remarks) <= set(capsys.readouterr().err.splitlines())


def test_a_network_without_widths_is_told_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["train", "--data", "digits", "--epsilon", "1", "--model", "mlp", "--out", "x"]) == 2
    )
    assert (
        "--model 'mlp' needs the width of each hidden layer: give mlp:100"
        in capsys.readouterr().err
    )


def test_another_delta_than_the_ledgers_is_remarked_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate states all runs at the run's delta, where they may come to more than the
    budget.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["ledger", "study.json", "--epsilon", "6", "--delta", "1e-3"]) == 0
    line = [
        "train",
        "--data",
        "breast-cancer",
        "--epsilon",
        "1",
        "--epochs",
        "1",
        "--ledger",
        "study.json",
        "--out",
    ]
    for options, said in (["one"], True), (["other", "--delta", "1e-3"], False):
        capsys.readouterr()
        assert main([*line, *options]) == 0
        err = " ".join(capsys.readouterr().err.split())
        assert (
            "states its guarantee at delta 1e-05, where epsilon may be larger than the budget's"
            in err
        ) is said


def test_a_misspelt_ledger_is_not_begun(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse nothing, and the right one would not know of the run."""
    monkeypatch.chdir(tmp_path)
    line = [
        "train",
        "--data",
        "breast-cancer",
        "--epsilon",
        "1",
        "--epochs",
        "1",
        "--out",
        "out",
        "--ledger",
    ]
    assert main(["ledger", "study.json", "--epsilon", "6"]) == 0
    (tmp_path / "sturdy.json").write_text("{}")  # no ledger
    before = sorted(tmp_path.iterdir())
    assert main([*line, "studdy.json"]) == 2
    assert (
        "there is no ledger studdy.json, and there is study.json: check the name"
        in capsys.readouterr().err
    )
    assert sorted(tmp_path.iterdir()) == before
    assert main([*line, "other.json"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "began the ledger other.json. It only records" in said
    assert "begin a ledger with a budget before the first run" in said
    assert main([*line[:-2], "more", "--ledger", "mistake.json", "--mechanism", "bisr"]) == 2
    assert main([*line[:-2], "more", "--ledger", "mistakes.json"]) == 0, (
        "one that holds nothing is in nobody's way"
    )


def test_a_run_that_released_nothing_leaves_all_of_the_budget(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, path = torch.nn.Linear(4, 2), tmp_path / "book.json"
    rows = torch.utils.data.TensorDataset(torch.zeros(240, 4), torch.zeros(240).long())
    private = pv.make_private(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        torch.utils.data.DataLoader(rows, batch_size=24),
        epsilon=2.0,
        delta=1e-5,
        epochs=2,
        max_grad_norm=1.0,
        ledger=pv.Ledger.open(path, pv.Budget(epsilon=4.0, delta=1e-5)),
    )
    next(iter(private.batches()))
    private.close()
    assert main(["ledger", str(path)]) == 0
    assert "100.0 % is left" in " ".join(capsys.readouterr().out.split())
