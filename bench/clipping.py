"""Private training steps beside plain ones, networks by network, and beside those of Opacus and
torch.func.

`python bench/clipping.py [--quick] [--json] [--only NAME ...] [--no-peers] [--rounds N] [--threads
N] [--device cpu|cuda]`;
Opacus is in the optional group `test`. A ratio is the time of a step over the plain step on the
same batch. Every clipped sum is held against the one that a loop over single examples finds in
double precision, and that distance is shown.

`--sweep FILE.json` measures an MLP over batch sizes and widths in place of all that; `plots.py`
draws the file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import common
import networks
import steps
import torch
from common import Case, Variant
from networks import Network
from torch import Tensor

import privlearn as pv

PLAIN = "plain PyTorch"
#: The cases that are not networks.
OTHERS = ("epoch",)


@dataclass(frozen=True)
class Size:
    """How large the cases are.

    Attributes:
        networks: whose steps are timed; the first one's epochs, too.
        rounds: how often everything is timed.
        epochs: how long the training loop runs, and over how many batches each.
        batches: the batch sizes of the sweep, at `width`.
        widths: the widths of the sweep, at `batch`.
        width: of the MLP while the batch grows.
        batch: while the width grows.
        sweep_rounds: how often everything in the sweep is timed.
    """

    networks: tuple[Network, ...]
    rounds: int
    epochs: tuple[int, int]
    batches: tuple[int, ...]
    widths: tuple[int, ...]
    width: int
    batch: int
    sweep_rounds: int


FULL = Size(
    networks.FULL,
    31,
    (3, 100),
    (64, 256, 1024, 4096, 16_384),
    (680, 1640, 3620, 7610),
    1000,
    256,
    11,
)
QUICK = Size(networks.QUICK, 9, (1, 20), (64, 256, 1024), (170, 1640), 300, 64, 5)
SMOKE = Size(networks.SMOKE, 2, (1, 3), (4, 8), (5, 8), 4, 4, 2)


# A step


def of_steps(
    network: Network, name: str, make: steps.Maker, device: str, **options: Any
) -> Variant:
    """`make`'s step on the network's batch, as a variant: the answer is how far its clipped sum is
    from the truth.
    """

    def prepared() -> common.Run:
        step = make(network, device)
        x, y = network.rows(device)
        step.take(x[:2], y[:2])  # loads what is loaded once, and allocates gradients
        clipped_sum = step.clipped_sum

        def run() -> float | Callable[[], float]:
            step.take(x, y)
            if clipped_sum is None:
                return math.nan
            return lambda: steps.distance(
                network, clipped_sum(x[: network.checked], y[: network.checked])
            )

        return run

    return Variant(name, prepared, prepared=True, device=device, **options)


def step_variants(
    network: Network, device: str, heavy: Callable[[steps.Maker], steps.Maker]
) -> list[Variant]:
    """The plain step, privlearn's and the peers'; `heavy` is put around those that hold every
    example's gradient.
    """

    def private(name: str, make: steps.Maker, **options: Any) -> Variant:
        return of_steps(network, name, make, device, limit=network.within, **options)

    opacus = {"needs": ("opacus",), "peer": True}
    return [
        of_steps(network, PLAIN, steps.plain, device),
        private("privlearn, secure noise", steps.by_privlearn("secure")),
        private("privlearn, clip and update", steps.by_privlearn()),
        private("privlearn, fast noise", steps.by_privlearn("fast")),
        private("privlearn, stock products", steps.by_privlearn("secure", False)),
        private("Opacus, hooks", heavy(steps.by_opacus_hooks), **opacus),
        private("Opacus, ghost clipping", steps.by_opacus_ghost, **opacus),
        private("torch.func, vmap of grad", heavy(steps.by_vmap), peer=True),
    ]


def one_step(network: Network, device: str, rounds: int) -> Case:
    """A step on the network, and the noise that it needs by itself."""
    alone = {
        "noise alone, torch": steps.noise_alone(steps.by_torch),
        "noise alone, privlearn": steps.noise_alone(steps.by_the_library()),
    }
    variants = [
        *step_variants(network, device, lambda make: make),
        *(of_steps(network, name, make, device) for name, make in alone.items()),
    ]
    return Case(network.title, "distance", tuple(variants), rounds)


# Epochs


class _FirstStepDone(Exception):
    """Ends training."""


def epochs(network: Network, device: str, count: int, batches: int, rounds: int) -> list[Case]:
    """`pv.dpsgd` over a plain training loop, and over its own steps by themselves."""
    examples = batches * network.batch

    def data() -> tuple[Tensor, Tensor]:
        made_up = torch.Generator().manual_seed(0)
        x = torch.randn(examples, *network.inputs(1).shape[1:], generator=made_up)
        return x.to(device), torch.randint(networks.CLASSES, (examples,), generator=made_up).to(
            device
        )

    def plain() -> common.Run:
        step, (x, y) = steps.plain(network, device), data()

        def run() -> float:
            taken = 0
            for _ in range(count):
                for rows in torch.randperm(examples, device=device).split(network.batch):
                    step.take(x[rows], y[rows])
                    taken += 1
            return taken

        return run

    def bare() -> common.Run:
        step, (x, y) = steps.by_privlearn("secure", fast_kernels=None)(network, device), data()
        sliced = list(zip(x.split(network.batch), y.split(network.batch), strict=True))

        def run() -> float:
            for _ in range(count):
                for rows, targets in sliced:
                    step.take(rows, targets)
            return count * batches

        return run

    def whole(until: int | None = None) -> common.Run:
        model, (x, y) = network.built(device), data()
        schedule = pv.schedules.Constant(steps.NOISE_MULTIPLIER)
        plan = pv.Plan(
            pv.Partition(batches), epochs=count, schedule=schedule, clip=pv.Flat(network.clip)
        )

        class OnStep:
            def on_step(self, progress: Any) -> None:
                if progress.step == until:
                    raise _FirstStepDone

        def run() -> float:
            try:
                pv.dpsgd(
                    plan,
                    model,
                    networks.losses,
                    (x, y),
                    optimizer=lambda p: torch.optim.SGD(p, lr=0.0),
                    callbacks=OnStep(),
                )
            except _FirstStepDone:
                return 1
            return count * batches

        return run

    def variant(name: str, run: Callable[[], common.Run], **options: Any) -> Variant:
        return Variant(name, run, prepared=True, device=device, **options)

    dpsgd = variant("pv.dpsgd", whole, within=0.0)
    steps_alone = variant("its steps, on batches that are ready", bare, within=0.0)
    over_plain = (
        variant("plain PyTorch loop", plain),
        steps_alone,
        dpsgd,
        variant("pv.dpsgd, until its first step", lambda: whole(1)),
    )
    name = f"{count} x {batches} steps of {network.title}"
    return [
        Case(name, "steps", over_plain, rounds),
        Case(f"{name}, over its own steps", "steps", (steps_alone, dpsgd), rounds),
    ]


def cases(
    size: Size, device: str = "cpu", rounds: int | None = None, only: Sequence[str] = ()
) -> list[Case]:
    """All cases at `size`, or those in `only`."""
    rounds = rounds or size.rounds
    every = [
        one_step(network, device, rounds)
        for network in size.networks
        if not only or network.name in only
    ]
    if not only or "epoch" in only:
        every += epochs(size.networks[0], device, *size.epochs, rounds)
    return every


# The sweep


def sweep(
    size: Size, device: str = "cpu", rounds: int | None = None, memory: float = 8.0
) -> dict[str, dict[int, Case]]:
    """An MLP over batch sizes and over parameters: cases by axis and by size.

    Variants that would hold more than `memory` GiB of gradients are left out; Opacus takes up to
    twice as much on the way.
    """

    def heavy(make: steps.Maker) -> steps.Maker:
        def within_memory(network: Network, device: str) -> steps.Step:
            needed = network.batch * network.parameters * 4 / (1 << 30)
            if needed > memory:
                raise MemoryError(f"the gradients of all examples take {needed:.0f} GiB")
            return make(network, device)

        return within_memory

    def case(network: Network) -> Case:
        return Case(
            network.title,
            "distance",
            tuple(step_variants(network, device, heavy)),
            rounds or size.sweep_rounds,
        )

    grown = [networks.wide(width, size.batch) for width in size.widths]
    return {
        "batch": {batch: case(networks.wide(size.width, batch)) for batch in size.batches},
        "parameters": {network.parameters: case(network) for network in grown},
    }


def of_sweep(
    swept: dict[str, dict[int, Case]], rows: Sequence[common.Row]
) -> dict[str, list[dict[str, Any]]]:
    """The rows of a sweep by axis, each with the size that it is at."""
    return {
        axis: [
            {"size": at, **row.plain()}
            for at, case in by_size.items()
            for row in rows
            if row.case == case.name
        ]
        for axis, by_size in swept.items()
    }


def without_peers(case: Case) -> Case:
    """The same without other libraries, some of which take minutes for a step."""
    return replace(case, variants=tuple(variant for variant in case.variants if not variant.peer))


def main() -> None:
    """The command line."""
    parser = common.parser(
        __file__, "Private training steps side by side: time, memory, distance from the truth."
    )
    names = [*(network.name for network in networks.FULL), *OTHERS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=[], metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    parser.add_argument("--rounds", type=_positive, help="how often everything is timed")
    parser.add_argument(
        "--threads", type=_positive, help="threads of torch; by default its own choice"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--sweep", type=Path, metavar="FILE", help="sweep over batch sizes and widths into FILE"
    )
    parser.add_argument(
        "--memory", type=float, default=8.0, help="GiB of gradients that the sweep may hold"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = False  # convolutions in float32, like all else
    size = QUICK if options.quick else FULL
    if absent := set(options.only) - {network.name for network in size.networks} - set(OTHERS):
        parser.error(f"{', '.join(sorted(absent))}: not among the quick cases")
    # One process at a time: the gradients of all examples can take half of the memory.
    at_once = None if options.quick else 1
    if not options.sweep:
        chosen = cases(size, options.device, options.rounds, options.only)
        common.main(
            __file__,
            options,
            [*map(without_peers, chosen)] if options.no_peers else chosen,
            at_once,
        )
        return
    swept = sweep(size, options.device, options.rounds, options.memory)
    if options.no_peers:
        swept = {
            axis: {at: without_peers(case) for at, case in by_size.items()}
            for axis, by_size in swept.items()
        }
    every = [case for by_size in swept.values() for case in by_size.values()]
    if rows := common.main(__file__, options, every, at_once):
        options.sweep.write_text(json.dumps(of_sweep(swept, rows), indent=2) + "\n")


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return int(text)


if __name__ == "__main__":
    main()
