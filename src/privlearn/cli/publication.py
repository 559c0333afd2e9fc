"""What every way to train from the command line begins and ends with: folder, key and ledger; publishing, and saying so."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rich.table import Table

from privlearn.accounting.ledger import Ledger
from privlearn.cli import screen, training
from privlearn.data import Dataset
from privlearn.publishing import certificate
from privlearn.publishing.folder import CERTIFICATE, require_free
from privlearn.publishing.keys import SigningKey, read_private
from privlearn.publishing.publish import publish
from privlearn.runs.result import Result


@final
@dataclass(frozen=True)
class Publication:
    """Where a model is going to be published, by whom, and on whose ledger; opened before anything is read or spent."""

    options: argparse.Namespace
    out: Path
    key: SigningKey | None
    ledger: Ledger | None
    started: float

    @classmethod
    def begin(cls, options: argparse.Namespace, what: str = "") -> Publication:
        """Open what the options name.

        Args:
            options: what was given.
            what: what the run is called in a new ledger, after the data and the folder.

        Raises:
            BadInput: a folder that is not free, a key or a ledger that can't be read.
        """
        started = time.perf_counter()
        out = require_free(options.out)
        key = None if options.sign is None else read_private(options.sign)
        ledger = (
            None
            if options.ledger is None
            else training.open_ledger(options.ledger, f"{options.data} to {options.out}{what}")
        )
        return cls(options, out, key, ledger, started)

    def warn(self, *warnings: str) -> None:
        """Print the warnings, and the key's own."""
        for warning in (*warnings, *(self.key.warnings if self.key else ())):
            screen.warn(warning)

    def end(
        self,
        result: Result,
        data: Dataset,
        answer: dict[str, Any],
        rows: Mapping[str, str],
        model_spec: str,
        *,
        timed: bool = True,
    ) -> None:
        """Publish, and print the answer: one JSON object, or a table.

        Args:
            result: what was trained.
            data: with the rows to test on.
            answer: the guarantee and what belongs to it; completed here.
            rows: what the method has to say, by name.
            model_spec: what the model can be built from.
            timed: False where the time would tell something.
        """
        options = self.options
        metrics = training.test_metrics(result.model, data)
        tested = None if data.x_test is None else len(data.x_test)
        facts = {"data": data.name, **({"what is known of it": data.note} if data.note else {})}
        publish(
            result,
            self.out,
            delta=options.delta,
            test_metrics=metrics,
            test_rows=tested,
            data=facts,
            model_spec=model_spec,
            classes=data.classes,
            sign=self.key,
        )
        if self.ledger is not None:
            answer["ledger"] = {"file": options.ledger, **_certified(self.out)}
        answer |= {"test_metrics": metrics, "test_accuracy": metrics.get("accuracy"), "test_rows": tested,
                   "out": str(self.out), "seconds": time.perf_counter() - self.started if timed else None}  # fmt: skip
        if options.json:
            screen.print_json(answer)
        else:
            _show(answer, rows)


def _certified(folder: Path) -> dict[str, Any]:
    """What the certificate of a run on a shared ledger claims."""
    claim = certificate.parse((folder / CERTIFICATE).read_bytes())["claim"]
    runs = claim["ledger"]["runs"] if "ledger" in claim else "for this run, the only one so far"
    return {"epsilon": claim["epsilon"], "method": claim["method"], "runs": runs}


def _show(answer: dict[str, Any], more: Mapping[str, str]) -> None:
    accuracy, seconds, ledger = answer["test_accuracy"], answer["seconds"], answer.get("ledger")
    rows = {
        "guarantee": f"[bold]epsilon {answer['epsilon']:.4f}[/] at delta {answer['delta']:g} ({answer['adjacency']}, by "
        f"{answer['method']})"
    }
    if ledger:
        rows["on the ledger"] = (
            f"epsilon {ledger['epsilon']:.4f} at delta {answer['delta']:g} is certified, {ledger['runs']}"
        )
    if "dice" in answer["test_metrics"]:
        rows["test Dice"] = f"[bold]{answer['test_metrics']['dice']:.4f}[/] on {answer['test_rows']} volumes"
    else:
        rows["test accuracy"] = (
            "no test data" if accuracy is None else f"[bold]{accuracy:.4f}[/] on {answer['test_rows']} rows"
        )
    rows |= more
    rows["seconds"] = "not shown: they would tell how many runs there were" if seconds is None else f"{seconds:.1f}"
    rows["published in"] = f"[bold]{screen.plain(answer['out'])}[/]"
    table = Table(box=None, padding=(0, 2), show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    screen.answers.print(table)
    stated = ledger["epsilon"] if ledger else answer["epsilon"]
    screen.answers.print(f"\n{screen.meaning({**answer, 'epsilon': stated})}")
    screen.answers.print(f"Anyone can check it, without the data:  privlearn verify {screen.plain(answer['out'])}")
