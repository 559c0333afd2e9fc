"""What is said of a number that is written as in other countries, for every option that takes
one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from privlearn.cli import main
from privlearn.cli.options import COMMANDS, options_of

#: Of each kind what was written, and what is said.
WRITTEN = {
    float: {
        "3,0": "write 3.0",
        "-2,5e3": "write -2.5e3",
        " 1,5": "write 1.5",
        "1.000,5": "expected one such as 0.5",
        "1,000,000": "expected one such as 0.5",
        "small": "expected one such as 0.5",
        "": "expected one such as 0.5",
    },
    int: {
        "40,000": "write 40000",
        "40.000": "write 40000",
        "1 000 000": "write 1000000",
        "1'000": "write 1000",
        "4e4": "write 40000",
        "400.0": "write 400",
        "3,5": "expected one such as 1000",
        "1.5": "expected one such as 1000",
        "many": "expected one such as 1000",
        "1e999": "expected one such as 1000",
    },
}
OPTIONS = [
    (command, option)
    for command in COMMANDS
    for option in options_of(command).values()
    if option.kind in WRITTEN and option.flag
]


def require_said(
    command: str, name: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, f"--{name}={text}"]) == 2
    shown = capsys.readouterr().err
    assert re.search(
        f"--{name}: (['\"]).*\\1 cannot be read as a (whole )?number: {re.escape(said)}", shown
    ), shown
    assert len(shown) < 300


def test_every_option_says_how_a_number_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(OPTIONS) > 50
    for command, option in OPTIONS:
        text, said = next(iter(WRITTEN[option.kind].items()))  # type: ignore[index]
        require_said(command, option.name, text, said, capsys)


@pytest.mark.parametrize(("name", "kind"), [("epsilon", float), ("examples", int)])
def test_ways_to_write_numbers(name: str, kind: type, capsys: pytest.CaptureFixture[str]) -> None:
    for text, said in WRITTEN[kind].items():
        require_said("budget", name, text, said, capsys)


def test_numbers_of_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('epsilon = "3,0"\nexamples = 4e4\n')
    assert main(["budget", "--config", "run.toml"]) == 2
    assert "write 3.0, with a point before decimals" in capsys.readouterr().err
    assert main(["budget", "--config", "run.toml", "--epsilon", "3"]) == 2
    assert "write 40000, digits alone" in capsys.readouterr().err
