"""The command line, in process: exit codes, standard output and standard error of one session of
commands.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import plain
import torch
from frozen_folders import described
from names import main, screen

DIGITS = "train --data digits --examples 1437 --seed 0 --json"
SMALL = "train --data breast-cancer --seed 0 --json"
BUDGET = "budget --examples 1437 --json"
PATE = "train --method pate --data digits --seed 0 --json"
FEATURES = "train --method features --data digits --seed 0 --json"
ROWS = "train --data rows.npz --classes 3 --range=-4,4 --seed 1"

BLOCKS = """way = "blocks"
retrain = true

[[candidate]]
name = "linear"

[[candidate]]
name = "network, falling noise"
model = "mlp:12"
schedule = "exp:k=0.02"
"""
STOPPING = """way = "random-stopping"
mean = 2

[[candidate]]
name = "slow"
learning-rate = 0.1

[[candidate]]
name = "fast"
learning-rate = 1.0
clip = "layer"
"""
CONFIG = """epsilon = 2.5
epochs = 4
batch-size = 128
schedule = "exp:k=0.05"
"""
SCHEMA = """target = "grade"

[columns.age]
kind = "number"
low = 18
high = 90

[columns.colour]
kind = "category"
categories = ["red", "green"]

[columns.grade]
kind = "target"
classes = ["low", "high"]
"""

NETWORK = """from torch import nn


def make(input_shape, classes):
    return nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
                         nn.Linear(144, classes))
"""  # noqa: E501

#: By name what is run, one after the other, in one folder.
CASES: dict[str, str] = {
    # What plans cost
    "budget": f"{BUDGET} --epsilon 4",
    "budget, table": "budget --examples 60000 --batch-size 600 --epsilon 2",
    "budget, by hand": (
        f"{BUDGET} --noise-multiplier 1.5 --batch-size 100 --epochs 10 --schedule exp:k=0.05"
    ),
    "budget, epochs": f"{BUDGET} --noise-multiplier 2 --batch-size 100 --epsilon 3",
    "budget, rate": (
        f"{BUDGET} --noise-multiplier 3 --batch-size 100 --epochs 30 --epsilon 6 --solve rate "
        "--schedule exp:k=0.01"
    ),
    "budget, batch size": (
        f"{BUDGET} --noise-multiplier 1.5 --epochs 10 --epsilon 3 --solve batch-size"
    ),
    "budget, shuffle rho": (
        f"{BUDGET} --rho 0.3 --sampling shuffle --batch-size 100 --adjacency replace_one"
    ),
    "budget, groups": f"{BUDGET} --epsilon 4 --group-size 2 --pca 20 --clip quantile",
    "budget, validation": (
        f"{BUDGET} --epsilon 4 --epochs 20 --schedule "
        "validation:k=0.7,m=2,threshold=0.01,period=5,noise=20"
    ),
    "budget, select": f"{BUDGET} --epsilon 4 --select 20 --classes 10 --numbers 64",
    "budget, moments": f"{BUDGET} --epsilon 4 --normalise moments --numbers 64",
    "budget, config": f"{BUDGET} --config plan.toml",
    "budget, blocks": f"{BUDGET} --epsilon 4 --tune blocks.toml",
    "budget, random stopping": f"{BUDGET} --epsilon 4 --epochs 5 --tune stopping.toml",
    "budget, dpmac": f"{BUDGET} --epsilon 4 --method dpmac",
    "budget, pate": "budget --json --method pate --epsilon 8 --teachers 50 --queries 200",
    "budget, pate, threshold": (
        "budget --method pate --rho 1 --teachers 50 --queries 200 --threshold 30 --answers 100 "
        "--json"
    ),
    "budget, features": "budget --method features --epsilon 2 --classes 10 --numbers 64 --json",
    "budget, features, few": (
        f"{BUDGET} --method features --epsilon 2 --classes 10 --numbers 64 --keep 16 --criterion "
        "welch"
    ),
    "budget, refused": "budget --examples 1000 --epsilon 1 --sampling sideways",
    # Training by each method
    "train": f"{DIGITS} --epsilon 4 --out plain",
    "train, explained": (
        "train --data digits --examples 1437 --seed 0 --epsilon 4 --epochs 5 --explain --out "
        "explained"
    ),
    "train, config": f"{DIGITS} --config plan.toml --features raw --out config",
    "train, partition, per layer": (
        f"{SMALL} --epsilon 5 --epochs 3 --sampling partition --clip layer --model mlp:12 "
        "--adjacency zero_out --out layer"
    ),
    "train, shuffle, pca, quantile": (
        f"{SMALL} --rho 0.5 --epochs 3 --sampling shuffle --clip quantile --pca 8 --pca-noise 20 "
        "--optimizer Adam --learning-rate 0.05 --out pca"
    ),
    "train, select, mean weights": (
        f"{DIGITS} --epsilon 4 --epochs 4 --select 20 --average 0.5 --lr-schedule "
        "step:k=0.5,period=2 --out select"
    ),
    "train, moments": (
        f"{DIGITS} --epsilon 4 --epochs 4 --normalise moments:share=0.1 --discrete --out moments"
    ),
    "train, scattering": f"{DIGITS} --epsilon 4 --epochs 3 --features scatter:J=1 --out scatter",
    "train, copies": (
        f"{DIGITS} --epsilon 4 --epochs 2 --features raw --views 2 --augment shift:1 "
        "--label-smoothing 0.1 --momentum 0.5 --batch-size 200 --out copies"
    ),
    "train, paid validations": (
        f"{SMALL} --epsilon 5 --epochs 6 --schedule validation:k=0.7,period=2,noise=20 --out "
        "validations"
    ),
    "train, public validations": (
        "train --data rows.npz --classes 3 --range=-4,4 --public open.npz --seed 1 --schedule "
        "validation:k=0.7,period=2 --epochs 6 --epsilon 5 --json --out public"
    ),
    "train, persons": (
        "train --data persons.npz --classes 3 --range=-4,4 --seed 1 --rows-per-person 2 --epochs 3 "
        "--epsilon 5 --json --out persons"
    ),
    "train, groups": f"{ROWS} --group-size 2 --epochs 3 --epsilon 5 --out groups",
    "train, a table": (
        "train --data table.csv --schema schema.toml --seed 1 --epochs 3 --epsilon 5 --json --out "
        "table"
    ),
    "train, tuned on blocks": f"{DIGITS} --epsilon 6 --epochs 3 --tune blocks.toml --out blocks",
    "train, tuned by stopping": (
        f"{SMALL} --epsilon 6 --epochs 3 --tune stopping.toml --out stopping"
    ),
    "train, dpmac": f"{SMALL} --method dpmac --model mlp:6 --epsilon 5 --epochs 3 --out dpmac",
    "train, dpmac, adam": (
        f"{SMALL} --method dpmac --model mlp:6 --epsilon 5 --epochs 2 --z-steps 3 --z-rate 0.01 "
        "--sampling partition --out dpmac-adam"
    ),
    "train, pate": (
        f"{PATE} --epsilon 8 --teachers 20 --queries 100 --teacher logistic --epochs 5 --out pate"
    ),
    "train, pate, threshold": (
        f"{PATE} --epsilon 8 --teachers 15 --queries 60 --threshold 5 --answers 40 --epochs 5 "
        "--out confident"
    ),
    "train, features": f"{FEATURES} --epsilon 4 --out features",
    "train, features, few": f"{FEATURES} --epsilon 4 --keep 20 --criterion t --out few",
    "train, features, squares": f"{FEATURES} --epsilon 4 --mode least-squares --out squares",
    "train, features, rows": f"{FEATURES} --epsilon 8 --mode rows --keep 10 --out rows",
    "train, own network": (
        f"{DIGITS} --epsilon 8 --epochs 2 --features raw --model frozen_nets:make --out own"
    ),
    "train, maps": (
        "train --data maps.npz --classes 3 --range 0,1 --seed 1 --epsilon 9 --epochs 2 --model "
        "unet --json --out maps"
    ),
    "train, maps by pate": (
        "train --method pate --data maps.npz --public seen.npz --classes 3 --range 0,1 --seed 1 "
        "--epsilon 9 --teachers 2 --queries 2 --model unet --json --out asked"
    ),
    # A shared ledger, keys, and what is refused
    "ledger": "ledger ledger.json --epsilon 12 --delta 1e-5 --json",
    "train, on the ledger": f"{SMALL} --epsilon 3 --epochs 2 --ledger ledger.json --out first",
    "train, on it again": (
        f"{SMALL} --epsilon 2 --epochs 2 --clip layer --ledger ledger.json --out second"
    ),
    "ledger, after": "ledger ledger.json --json",
    "ledger, table": "ledger ledger.json",
    "ledger, spent": f"{SMALL} --epsilon 30 --epochs 2 --ledger ledger.json --out third",
    "key": "key signing --json",
    "train, signed": f"{SMALL} --epsilon 5 --epochs 2 --sign signing --out signed",
    "verify, signed": "verify signed --key signing.pub --json",
    "verify, unsigned": "verify plain --key signing.pub --json",
    "train, taken": f"{DIGITS} --epsilon 4 --out plain",
    "train, alien option": f"{DIGITS} --method features --epsilon 4 --clip layer --out alien",
    "train, interrupted": (
        f"{SMALL} --epsilon 5 --epochs 3 --pca 8 --checkpoint-every 0.000001 --out pieces"
    ),
    "train, not resumed": f"{SMALL} --epsilon 5 --epochs 3 --pca 8 --out pieces",
    "train, resumed": f"{SMALL} --epsilon 5 --epochs 3 --pca 8 --resume --out pieces",
    "train, nothing to resume": f"{DIGITS} --epsilon 4 --resume --out nowhere",
    # What becomes of published models
    "verify": "verify plain --json",
    "verify, table": "verify pate",
    **{
        f"verify {name}": f"verify {name} --json"
        for name in (
            "pca",
            "select",
            "validations",
            "persons",
            "blocks",
            "dpmac",
            "confident",
            "features",
            "rows",
            "second",
        )
    },
    "verify, changed": "verify changed --json",
    "predict": "predict plain --data digits",
    "predict, part": "predict pate --data digits --part train",
    "predict, pca": "predict pca --data breast-cancer",
    "predict, features": "predict few --data digits",
    "predict, own network": "predict own --data digits --model frozen_nets:make",
    "predict, nobody's network": "predict own --data digits",
    "predict, table": "predict table --data table.csv --schema schema.toml",
    "data": "data list --json",
    "data, schema": "data schema table.csv",
    "data, built in": "data fetch digits --json",
    "reproduce": "reproduce --list",
}

#: Commands that are interrupted, and after how many steps.
INTERRUPTED = {"train, interrupted": 4}
#: What is different in each run, and what is put in its place.
PLACEHOLDERS = [
    (re.compile(r'("seconds": )[\d.]+'), r'\1"SECONDS"'),
    (re.compile(r"^( *seconds +)[\d.]+ *$", re.MULTILINE), r"\1SECONDS"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z)?"), "TIME"),
    (re.compile(r"SHA256:[\w+/=-]+"), "FINGERPRINT"),
    (re.compile(r'("head": )\{[^}]*\}'), r'\1"HEAD"'),
    (re.compile(r"^.*\u2501.*\n", re.MULTILINE), ""),  # progress, which may be drawn more than once
]
#: In what `ledger` says: the names of runs.
RUN = re.compile(r"\b[0-9a-f]{8}\b")


def figures(only: str = "") -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with _session():
        for name, command in CASES.items():
            if only in name:
                if name == "verify, changed":
                    _change_a_card()
                with plain.repeatable():
                    figures[name] = _figures(command, INTERRUPTED.get(name))
    return json.loads(json.dumps(figures))


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
        environment |= {
            "COLUMNS": "120",
            "TERM": "xterm",
            "LOGNAME": "somebody",
            "PRIVLEARN_DATA": str(here / "data"),
            "XDG_CACHE_HOME": str(here / "cache"),
        }
        consoles = [
            mock.patch.object(console, "_width", 120) for console in (screen.answers, screen.notes)
        ]
        with mock.patch.dict(os.environ, environment, clear=True), consoles[0], consoles[1]:
            os.chdir(here)
            try:
                _write_files()
                yield
            finally:
                sys.modules.pop("frozen_nets", None)
                os.chdir(before)


def _write_files() -> None:
    for name, text in (
        ("blocks", BLOCKS),
        ("stopping", STOPPING),
        ("plan", CONFIG),
        ("schema", SCHEMA),
    ):
        Path(f"{name}.toml").write_text(text)
    made_up = np.random.default_rng(0)
    for name, more in (("rows", {}), ("open", {}), ("persons", {"groups": np.arange(300) // 3})):
        y = made_up.integers(3, size=300)
        np.savez(f"{name}.npz", x=made_up.normal(size=(300, 5)) + 2 * np.eye(3, 5)[y], y=y, **more)
    for name, number in (("maps", 8), ("seen", 4)):
        y = made_up.integers(3, size=(number, 8, 8, 8)).astype(np.uint8)
        np.savez(
            f"{name}.npz",
            x=(0.4 * y + 0.1 * made_up.random(y.shape)).astype(np.float32)[:, None],
            y=y,
        )
    Path("frozen_nets.py").write_text(NETWORK)
    lines = [
        f"{18 + i % 70},{('red', 'green')[i % 2]},{('low', 'high')[i % 70 > 30]}"
        for i in range(300)
    ]
    Path("table.csv").write_text("\n".join(["age,colour,grade", *lines]) + "\n")


def _change_a_card() -> None:
    """A copy of a published model whose card claims less."""
    Path("changed").mkdir()
    for path in Path("plain").iterdir():
        (Path("changed") / path.name).write_bytes(path.read_bytes())
    card = Path("changed/README.md")
    card.write_text(card.read_text().replace("epsilon", "Epsilon", 1))


def _figures(command: str, stop: int | None = None) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _stopped_after(stop):
        try:
            code: Any = main(command.split())
        except KeyboardInterrupt:
            code = "interrupted"
    answer, notes = _settled(out.getvalue()), _settled(err.getvalue())
    if command.startswith("ledger"):
        answer = RUN.sub("RUN", answer)
    lines = [line.rstrip() for line in notes.splitlines() if line.strip()]
    figures = {"command": command, "code": code, "out": _readable(answer), "err": lines}
    if code == 0 and command.startswith("train"):
        figures["published"] = _published(Path(command.rpartition(" --out ")[2]))
    return figures


@contextlib.contextmanager
def _stopped_after(steps: int | None) -> Iterator[None]:
    """Somebody presses Control-C in the step that comes after so many steps of SGD."""
    if steps is None:
        yield
        return
    step, done = torch.optim.SGD.step, [0]

    def counted(*given: Any, **more: Any) -> Any:
        done[0] += 1
        if done[0] > steps:
            raise KeyboardInterrupt
        return step(*given, **more)

    with mock.patch.object(torch.optim.SGD, "step", counted):
        yield


def _published(folder: Path) -> dict[str, Any]:
    """What a command published, its card as a digest."""
    figures = described(folder)
    card = _settled("\n".join(figures["card"]))
    return {
        "files": figures["files"],
        "plan": figures["certificate"]["plan"],
        "facts": _without_head(figures["certificate"]["facts"]),
        "config": figures["config"],
        "card": plain.condensed(card),
        "weights": figures["weights"],
    }


def _without_head(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts without the digest of a ledger's last row, which holds a moment and a key."""
    return {**facts, "ledger_head": "HEAD"} if "ledger_head" in facts else facts


def _settled(text: str) -> str:
    text = text.replace(str(Path.cwd()), "HERE")
    for pattern, instead in PLACEHOLDERS:
        text = pattern.sub(instead, text)
    return text


def _readable(text: str) -> Any:
    """JSON as values; predictions as arrays; other tables as lines, or the first of them and a
    digest.
    """
    try:
        answer = plain.short(json.loads(text))
    except ValueError:
        lines = [line.rstrip() for line in text.splitlines()]
        if len(lines) <= 60:
            return lines
        cells = np.array([line.split(",") for line in lines[1:]]).T
        return {
            name: _column(column) for name, column in zip(lines[0].split(","), cells, strict=True)
        }
    if isinstance(answer, dict) and answer.get("unspent") is not None:
        # Little is left, so its digits are the last ones of what is spent.
        answer["spent"] = 1 - answer.pop("unspent")
    return answer


def _column(cells: Any) -> Any:
    """Probabilities as an array, rows and classes as a digest."""
    if all(cell.isdigit() for cell in cells) or not all(map(_is_number, cells)):
        return plain.condensed("\n".join(cells))
    return plain.array(cells.astype(float))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
