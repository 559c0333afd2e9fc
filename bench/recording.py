"""Training that records a transcript for an auditor, beside the same training that records nothing.

`python bench/recording.py [--quick] [--json]`. Whole runs of `pv.dpsgd`, in one thread; the
commitment to the rows is made before. Both ways must take the same steps.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch
from common import Case, Variant
from torch import nn

import privlearn as pv
from privlearn.auditing import Transcript, commit

#: Steps between two states of the run, of which a transcript is made.
STATES = (50, 20)


@dataclass(frozen=True)
class Size:
    """How large the cases are: examples, batches an epoch, steps, rounds."""

    rows: int
    batches: int
    epochs: int
    rounds: int


FULL = Size(6_000, 10, 40, 9)
QUICK = Size(6_000, 10, 20, 3)
SMOKE = Size(200, 4, 2, 1)

MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear, 60-10": lambda: nn.Linear(60, 10),
    "network, 60-1000-10": lambda: nn.Sequential(
        nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 10)
    ),
}


def made_up(rows: int) -> pv.Dataset:
    """Numbers between 0 and 1, and a class that the first of them tell."""
    x = torch.rand(rows, 60, generator=torch.Generator().manual_seed(1))
    return pv.Dataset(x.numpy(), x[:, :10].argmax(1).numpy(), classes=10, low=0, high=1)


def case(name: str, size: Size) -> Case:
    """One model: without a checkpoint, and with transcripts."""

    def of(title: str, between: int | None) -> Variant:
        def prepared() -> common.Run:
            data = made_up(size.rows)
            plan = pv.Plan(
                pv.Poisson(1 / size.batches),
                epochs=size.epochs,
                schedule=pv.schedules.Constant(start=2.0),
            )
            folder_of_commitment = tempfile.TemporaryDirectory(prefix="recording-")
            committed = Path(folder_of_commitment.name) / "committed"
            loss = nn.CrossEntropyLoss(reduction="none")

            def train(checkpoint: Any, streams: pv.Streams | None = None) -> Any:
                torch.manual_seed(0)  # the first weights are a part of what is committed to
                return pv.dpsgd(
                    plan, MODELS[name](), loss, data, streams=streams, checkpoint=checkpoint
                )

            commit(data, committed, train)

            def run(_folder: object = folder_of_commitment) -> float:
                with tempfile.TemporaryDirectory(prefix="recording-") as place:
                    checkpoint = None
                    if between:
                        folder = Path(place) / "transcript"
                        shutil.copytree(committed, folder)
                        checkpoint = Transcript(folder, challenge="5f3a9c", steps=between)
                    streams = None if between else pv.Streams.new(0)
                    train(checkpoint, streams)
                return float(size.epochs * size.batches)

            return run

        return Variant(title, prepared, within=0.0, slow=True, prepared=True)

    ways = (
        of("no transcript", None),
        *(of(f"a state every {steps} steps", steps) for steps in STATES),
    )
    return Case(
        f"{name}, {size.epochs * size.batches} steps of {size.rows // size.batches}",
        "steps",
        ways,
        size.rounds,
    )


def cases(size: Size) -> list[Case]:
    """All cases at `size`."""
    return [case(name, size) for name in MODELS]


def main() -> None:
    """The command line."""
    options = common.parser(
        __file__, "Training that records a transcript, beside training that does not."
    ).parse_args()
    torch.set_num_threads(1)
    common.main(__file__, options, cases(QUICK if options.quick else FULL), 1)


if __name__ == "__main__":
    main()
