"""The command line as people and scripts call it, in plain values: options, keys of what is
printed, and exit codes.

Options are read off the parsers that `main` makes, not off help texts. Outputs are of a session of
small commands, in one folder. `python -m tests.cli.frozen_interface` writes both into
`frozen_interface.json`, which the tests beside it compare with. Write it anew only where a change
of the interface is meant, and look at the difference: scripts call it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from privlearn.cli import main

GOLDEN = Path(__file__).with_suffix(".json")

#: Texts that show what a reader of its own makes of the value of an option.
_PROBES = (
    "3",
    "0.5",
    "auto",
    "0,1",
    "-4,4",
    "yes=5,no=1",
    "balanced",
    "a,b",
    "epsilon=1",
    "epsilon=1,delta=1e-6",
)

DIGITS = "train --data digits --examples 1437 --seed 0 --json --epsilon 4 --epochs 1"
BUDGET = "budget --examples 1437 --json"
SMALL = "train --data breast-cancer --seed 0 --json --epsilon 4"
ROWS = "--data rows.npz --classes 3 --range=-4,4"
RECORDED = f"{ROWS} --examples 300 --epsilon 4 --epochs 1"

#: By name what is called, one after the other, in one folder.
CASES: dict[str, str] = {
    # What plans cost
    "budget": f"{BUDGET} --epsilon 4",
    "budget, rho": f"{BUDGET} --rho 0.2 --sampling full",
    "budget, one noise": f"{BUDGET} --noise-multiplier 4 --sampling full --epochs 5",
    "budget, validation": (
        f"{BUDGET} --epsilon 4 --epochs 5 --schedule validation:k=0.7,m=2,period=2,noise=20"
    ),
    "budget, select": f"{BUDGET} --epsilon 4 --epochs 5 --select 20 --classes 10 --numbers 64",
    "budget, sampling best": f"{BUDGET} --epsilon 4 --epochs 4 --batch-size 360 --sampling best",
    "budget, tune": f"{BUDGET} --epsilon 4 --epochs 5 --tune stopping.toml",
    "budget, dpmac": f"{BUDGET} --epsilon 4 --epochs 5 --method dpmac",
    "budget, pate": "budget --json --method pate --epsilon 8 --teachers 50 --queries 200",
    "budget, pate, maps": (
        "budget --json --method pate --maps --classes 3 --epsilon 8 --examples 100 --teachers 4"
    ),
    "budget, features": "budget --json --method features --epsilon 2 --classes 10 --numbers 64",
    "budget, boosting": f"{BUDGET} --method boosting --epsilon 2 --numbers 30",
    "budget, table": f"{BUDGET.removesuffix(' --json')} --epsilon 4",
    # What is refused, and what helps
    "nothing": "",
    "version": "--version",
    "help": "--help",
    "help of a command": "train --help",
    "unknown command": "trian",
    "unknown option": "train --epsillon 4",
    "unreadable value": "budget --examples 1437 --epsilon small",
    "missing option": "train --data digits --epsilon 4",
    "unknown choice": "budget --examples 1437 --epsilon 4 --method guessing",
    "option of another method": (
        "train --data digits --epsilon 4 --method features --clip layer --out refused"
    ),
    "option out of range": f"{BUDGET} --epsilon -1",
    "no target": "train --data digits --out refused",
    "file that is not there": (
        "train --data nowhere.npz --classes 2 --range 0,1 --epsilon 4 --out refused"
    ),
    "folder that can't be made": "key nowhere/keys/key",
    "interrupted": f"{DIGITS} --out interrupted",
    "pipe that was closed": "data list --json",
    # Training
    "dry run": f"{DIGITS} --dry-run --out dry",
    "dry run without a folder": "train --data digits --epsilon 4 --epochs 1 --dry-run --json",
    "train": f"{DIGITS} --out plain",
    "train again": f"{DIGITS} --out plain",
    "train, table": f"{DIGITS.replace(' --json', '')} --out shown",
    "train, tuned": f"{DIGITS} --tune stopping.toml --out tuned",
    "train, validation": (
        f"{SMALL} --epochs 2 --schedule validation:k=0.7,period=2,noise=20 --out validation"
    ),
    "train, selected": f"{SMALL} --epochs 1 --select 5 --out selected",
    "train, regression": (
        "train --data values.npz --range=-4,4 --target-bounds=-4,4 --seed 0 --epsilon 4 --epochs 1 "
        "--json --out values"
    ),
    "train, metrics within the target": f"{SMALL} --epochs 1 --metrics-share 0.1 --out shared",
    "train, paid": f"{SMALL} --epochs 1 --paid-metrics 1 --out paid",
    "train, dpmac": f"{SMALL} --method dpmac --model mlp:4 --epochs 1 --out dpmac",
    "train, pate": (
        f"{SMALL} --method pate --teachers 10 --queries 20 --teacher linear --epochs 1 --out pate"
    ),
    "train, features": f"{SMALL} --method features --keep 5 --out features",
    "train, features, auto": f"{SMALL} --method features --mode auto --examples 456 --out auto",
    "train, boosting": f"{SMALL} --method boosting --passes 1 --out boosting",
    # Ledgers and keys
    "ledger, begun": "ledger ledger.json --epsilon 6 --delta 1e-5 --json",
    "train, charged": f"{SMALL} --method features --ledger ledger.json --out charged",
    "train, beyond the budget": (
        f"{SMALL} --epsilon 30 --epochs 1 --ledger ledger.json --out refused"
    ),
    "ledger": "ledger ledger.json --json",
    "ledger, adaptive": "ledger renyi.json --epsilon 6 --measure renyi --json",
    "ledger that is not there": "ledger nowhere.json --json",
    "ledger, run that is not there": "ledger ledger.json --close 0123abcd --json",
    "key": "key signing --json",
    "key that is there": "key signing --json",
    "train, signed": f"{SMALL} --epochs 1 --sign signing --out signed",
    # Published models
    "verify": "verify features --json",
    "verify, signed": "verify signed --key signing.pub --json",
    "verify, unsigned": "verify features --key signing.pub --json",
    "verify, changed weights": "verify changed --json",
    "verify, changed weights, table": "verify changed",
    "verify, nothing there": "verify nowhere --json",
    "verify, no envelope": "verify features --public-key signing.pub --json",
    "export": "export features --to in-toto --out statement.jsonl",
    "export, an unknown form": "export features --to nothing",
    "predict": "predict plain --data digits",
    "predict, file": "predict plain --data digits --out predictions.npz",
    "predict, values": "predict values --data values.npz",
    "predict, nothing there": "predict nowhere --data digits",
    # Runs of other libraries
    "certify": (
        "certify opacus.json --from opacus --sampling poisson --examples 1000 --batch-size 10 "
        "--epochs 1 --delta 1e-5 --out declared --json"
    ),
    "certify, refused": (
        "certify opacus.json --from opacus --sampling shuffle --examples 1000 --batch-size 10 "
        "--delta 1e-5 --json"
    ),
    "certify, no delta": "certify opacus.json --from opacus --sampling poisson --json",
    "verify, declared run": "verify declared --json",
    # Recorded runs
    "commit": f"commit {RECORDED} --out transcript --json",
    "train, recorded": (
        f"train {RECORDED} --transcript transcript --challenge 5f3a --out recorded --json"
    ),
    "replay": "replay transcript --published recorded --steps 2 --choice lottery --json",
    "replay without a published model": "replay transcript --steps 0 --json",
    "replay of nothing": "replay nowhere --json",
    # Attacks
    "audit": "audit --noise-multiplier 0.5 --trials 200 --json",
    "audit that refutes": "audit --code false.py --trials 200 --json",
    "audit of membership": "audit --code trained.py --shadows 2 --json",
    "audit of nothing": "audit --json",
    "selfcheck": "selfcheck --json",
    "selfcheck that fails": "selfcheck --json",
    # The rest
    "reproduce, list": "reproduce --list --json",
    "reproduce": "reproduce yu-table1 --quick --json --out studies",
    "reproduce, unknown": "reproduce nothing --json",
    "demo": "demo hospitals --json --out hospitals",
    "demo of one hospital": "demo hospitals --sites 1 --json",
    "data, list": "data list --json",
    "data, fetch": "data fetch digits --json",
    "data, unknown": "data fetch nothing --json",
    "data, schema": "data schema table.csv --json",
    "data, check": "data check table.csv --schema schema.toml --json",
    "data, check, arrays": f"data check {ROWS.removeprefix('--data ')} --json",
    "data, pack": "data pack table.csv --schema schema.toml --out packed --json",
    "completion": "completion bash",
}
#: Those that train nothing by steps: seconds together, for planted bugs.
QUICK = tuple(
    name
    for name, command in CASES.items()
    if not command.startswith(("train", "predict", "commit", "replay", "audit", "reproduce"))
    or name in ("unknown option", "missing option", "train, features", "train, charged")
    if name not in ("budget, sampling best", "budget, validation", "budget, tune", "verify, signed")
)

STOPPING = """way = "random-stopping"
mean = 2

[[candidate]]
name = "slow"
learning-rate = 0.1

[[candidate]]
name = "fast"
learning-rate = 1.0
"""
SCHEMA = """target = "grade"

[columns.age]
kind = "number"
low = 18
high = 90

[columns.grade]
kind = "target"
classes = ["low", "high"]
"""
FALSE = """import numpy as np
import privlearn as pv

rng = np.random.default_rng(0)
plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1.0), examples=9)


def run(took_part):
    return took_part + rng.normal(0, 0.1)
"""
TRAINED = """import numpy as np
import torch
import privlearn as pv

plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(0.5), examples=4)
model, loss = torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(reduction="none")
rows = np.tile(np.eye(2, dtype=np.float32), (20, 1)), np.arange(40) % 2
data = pv.Dataset(*rows, classes=2, public=True)
"""


# Options


class _ParserWasMadeError(Exception):
    """Ends `main` where it would read the arguments."""


def _parsers(*arguments: str) -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands by name, as `main` makes them for these arguments; that of none
    is called "".
    """
    parsers: list[argparse.ArgumentParser] = []

    def parse_args(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        parsers.append(parser)
        raise _ParserWasMadeError

    read = contextlib.suppress(_ParserWasMadeError)
    with read, mock.patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        main(list(arguments))
    return _with_subcommands("", parsers[-1])


def _with_subcommands(
    name: str, parser: argparse.ArgumentParser
) -> dict[str, argparse.ArgumentParser]:
    """The parser and those of its subcommands, of these too, by name."""
    parsers = {name: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                parsers |= _with_subcommands(f"{name} {command}".strip(), below)
    return parsers


def options() -> dict[str, dict[str, Any]]:
    """Every option of every command: how it is read, what it is by default, and where the help
    shows it.

    A fact that is absent is null or false.
    """
    every, usual, dry = (
        _parsers("train", "--help-all"),
        _parsers("train"),
        _parsers("train", "--dry-run"),
    )
    described: dict[str, dict[str, Any]] = {}
    for command, parser in every.items():
        group_of = {
            id(action): group.title
            for group in parser._action_groups
            for action in group._group_actions
        }
        in_help = {
            _name(action) for action in usual[command]._actions if action.help != argparse.SUPPRESS
        }
        needed_dry = {_name(action) for action in dry[command]._actions if action.required}
        described[command] = {}
        for action in parser._actions:
            facts = _described(action) | {
                "group": group_of.get(id(action)),
                "in --help": _name(action) in in_help,
                "in --help-all": action.help != argparse.SUPPRESS,
                "required with --dry-run": _name(action) in needed_dry,
            }
            described[command][_name(action)] = {
                name: fact for name, fact in facts.items() if fact is not None and fact is not False
            }
    return described


def _name(action: argparse.Action) -> str:
    return ", ".join(action.option_strings) or action.dest


def _described(action: argparse.Action) -> dict[str, Any]:
    """An option as the parser reads it."""
    return {
        "destination": action.dest,
        "metavar": action.metavar,
        "type": _kind(action),
        "number of values": action.nargs,
        "default": _plain(action.default),
        "constant": _plain(action.const),
        "choices": None if action.choices is None else list(action.choices),
        "required": action.required,
        "repeatable": isinstance(
            action, argparse._AppendAction | argparse._ExtendAction | argparse._CountAction
        )
        or action.nargs in ("*", "+"),
    }


def _kind(action: argparse.Action) -> Any:
    """What reads a value: the name of a type, or what a reader of its own makes of some texts."""
    if action.type is None or isinstance(action.type, type):
        return None if action.type is None else action.type.__name__
    assert callable(action.type)
    return {text: _read(action.type, text) for text in _PROBES}


def _read(reader: Callable[[str], Any], text: str) -> Any:
    try:
        return _plain(reader(text))
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        return "refused"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


# Outputs and exit codes


def outputs(*names: str) -> dict[str, dict[str, Any]]:
    """The exit code of each case, what it printed in which shape, and whether it said what was
    wrong.

    Args:
        names: of the cases, in their order; by default all.
    """
    with _session():
        return {
            name: _output(name, command)
            for name, command in CASES.items()
            if name in (names or CASES)
        }


@contextlib.contextmanager
def _session() -> Iterator[None]:
    """A new folder with made-up files, and an environment without anybody's settings."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        here = Path(name).resolve()
        (here / "data").mkdir()
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PRIVLEARN", "FORCE_C"))
        }
        environment |= {"PRIVLEARN_DATA": str(here / "data"), "XDG_CACHE_HOME": str(here / "cache")}
        with mock.patch.dict(os.environ, environment, clear=True):
            os.chdir(here)
            try:
                _write_files()
                yield
            finally:
                os.chdir(before)


def _write_files() -> None:
    texts = {
        "stopping.toml": STOPPING,
        "opacus.json": '{"history": [[1.0, 0.01, 100]], "mechanism": "prv"}',
        "schema.toml": SCHEMA,
        "false.py": FALSE,
        "trained.py": TRAINED,
    }
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    x = rng.normal(size=(300, 5)) + 2 * np.eye(3, 5)[y]
    np.savez("rows.npz", x=x, y=y)
    np.savez("values.npz", x=x[:200], y=x[:200, 0], x_test=x[200:], y_test=x[200:, 0])
    lines = [f"{18 + row % 70},{('low', 'high')[row % 2]}" for row in range(60)]
    Path("table.csv").write_text("\n".join(["age,grade", *lines]) + "\n", encoding="utf-8")


def _output(name: str, command: str) -> dict[str, Any]:
    """What one case does."""
    if "changed" in name:
        _change_weights()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _mishap(name):
        try:
            code: Any = main(command.split())
        except SystemExit as end:  # of --help and --version, as argparse ends
            code = end.code
    said = "" if err.closed else err.getvalue()
    return {
        "command": command,
        "exit code": code,
        "output": _shape(out.getvalue()),
        "refused": any(line.startswith("privlearn: ") for line in said.splitlines()),
    }


def _change_weights() -> None:
    """A copy of the published model with other weights."""
    if Path("changed").exists():
        return
    Path("changed").mkdir()
    for path in Path("features").iterdir():
        (Path("changed") / path.name).write_bytes(path.read_bytes())
    weights = Path("changed/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


@contextlib.contextmanager
def _mishap(name: str) -> Iterator[None]:
    """What happens to a case from outside."""
    if name == "interrupted":
        with mock.patch.object(torch.optim.SGD, "step", mock.Mock(side_effect=KeyboardInterrupt)):
            yield
    elif name == "pipe that was closed":
        with mock.patch.object(sys.stdout, "flush", mock.Mock(side_effect=BrokenPipeError)):
            yield
    elif name.startswith("selfcheck"):
        checks = [_quick_check, *([_failing_check] if "fails" in name else [])]
        with mock.patch("privlearn.auditing.installation._CHECKS", checks):
            yield
    elif name == "demo":
        with (
            mock.patch("privlearn.cli.commands.demo._NEEDED", ()),
            mock.patch("privlearn.flower.hospitals.run_simulation", _run_here),
        ):
            yield
    else:
        yield


def _run_here(server_app: Any, client_app: Any, num_supernodes: int, **_: Any) -> None:
    """In place of Flower's engine, which takes half a minute to start."""
    from tests.support.local_grid import LocalGrid

    grid = LocalGrid(client_app, [{"partition-id": site} for site in range(num_supernodes)])
    server_app(grid, grid.contexts[1])


def _quick_check() -> str:
    return "what was seen"


def _failing_check() -> str:
    raise AssertionError


def _shape(text: str) -> Any:
    """Standard output: the key paths of JSON with their types, the first line of CSV, or what else
    it is.
    """
    if not text:
        return "nothing"
    try:
        value = json.loads(text)
    except ValueError:
        first = text.partition("\n")[0]
        return f"CSV: {first}" if first.startswith("index,") else "text"
    kinds: dict[str, set[str]] = {}
    _note_kinds(value, "", kinds)
    return {path: " or ".join(sorted(kinds[path])) for path in sorted(kinds)}


_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    list: "list",
    dict: "object",
}


def _note_kinds(value: Any, path: str, kinds: dict[str, set[str]]) -> None:
    """Add the types of a value and of all in it, by where they stand: `a.b` is in an object, `a[]`
    in a list.
    """
    kinds.setdefault(path or ".", set()).add(_KINDS[type(value)])
    if isinstance(value, dict):
        for name, part in value.items():
            _note_kinds(part, f"{path}.{name}".removeprefix("."), kinds)
    elif isinstance(value, list):
        for part in value:
            _note_kinds(part, f"{path}[]", kinds)


# Freezing


def golden() -> dict[str, Any]:
    """What was frozen."""
    frozen: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return frozen


def differences(computed: dict[str, Any], frozen: dict[str, Any], path: str = "") -> list[str]:
    """A line for each place in which two tables differ."""
    lines: list[str] = []
    for name in sorted(computed.keys() | frozen.keys()):
        place = f"{path} / {name}" if path else name
        if name not in computed or name not in frozen:
            lines.append(f"{place}: {'is new' if name in computed else 'is gone'}")
        elif isinstance(computed[name], dict) and isinstance(frozen[name], dict):
            lines += differences(computed[name], frozen[name], place)
        elif computed[name] != frozen[name]:
            lines.append(f"{place}: {computed[name]!r} was {frozen[name]!r}")
    return lines


def freeze() -> None:
    """Write both tables anew."""
    computed = {"options": options(), "outputs": outputs()}
    GOLDEN.write_text(json.dumps(computed, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    freeze()
