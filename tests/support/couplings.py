"""Models and losses that couple the examples of a batch, and how far one example moves the sum of a
door's step.

A door trains a network for one step, as its users write it. What is compared is what reaches the
noise: the `Bounded` that the step of the run hands to `release`, of data with one row and without
it.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.clipping.bounded import Bounded
from privlearn.errors import BadInput, NotPerExample
from privlearn.training import run as dpsgd
from tests.clipping.checks_separation import HARMLESS, MIXES, Gated, Marked, mixing
from tests.clipping.checks_separation import rows as marked_rows
from tests.support.nets import cross_entropy, flat_norm

ROWS, CLIP_NORM = 8, 0.1
#: A row by the names of what the network takes, and its class, `labels`.
Row = dict[str, Tensor]
#: One value for each example, of outputs and targets.
ExampleLosses = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Coupling:
    """What a user writes.

    Attributes:
        network: makes the model; it takes the columns by name.
        columns: of the data, each of shape (ROWS, ...); the last row is the one that others are not
            to notice.
        loss: one value for each example, of outputs and targets.
    """

    network: Callable[[], nn.Module]
    columns: Mapping[str, Tensor]
    loss: ExampleLosses = cross_entropy

    def made(self) -> nn.Module:
        torch.manual_seed(0)
        return self.network()

    def data(self, number: int) -> list[Row]:
        """The first rows."""
        return [
            {name: column[row] for name, column in self.columns.items()} for row in range(number)
        ]


#: Trains `network` on `data` for one step by a plan, with a loss of outputs and targets; `moved` is
#: called with the network between the checks on made-up rows and the step. Returns how gradients
#: were computed.
Door = Callable[
    [nn.Module, list[Row], pv.Plan, ExampleLosses, Callable[[nn.Module], None]], str | None
]


def plan() -> pv.Plan:
    """One step on all rows, of which the last may be missing."""
    return pv.Plan(
        pv.sampling.FullBatch(),
        1,
        schedule=pv.schedules.Constant(1.0),
        clip=pv.Flat(CLIP_NORM),
        adjacency="add_remove",
        examples=ROWS,
    )


@contextmanager
def sums_before_noise() -> Iterator[list[tuple[tuple[Tensor, ...], float]]]:
    """The sums that steps of DP-SGD hand to `release`, each with its sensitivity."""
    sums: list[tuple[tuple[Tensor, ...], float]] = []
    usual = dpsgd.release

    def release(clipped: Bounded, **given: Any) -> Any:
        sums.append((tuple(value.clone() for value in clipped.values), clipped.sensitivity))
        return usual(clipped, **given)

    with mock.patch.object(dpsgd, "release", release):
        yield sums


def move(network: nn.Module) -> None:
    """What begins at zero is where training brings it."""
    with torch.no_grad():
        for parameter in network.parameters():
            if float(parameter.abs().max()) < 1e-3:
                parameter.copy_(torch.linspace(1.0, 2.0, parameter.numel()).view(parameter.shape))


def ratio(door: Door, coupling: Coupling) -> tuple[float, str | None]:
    """How far the last row moves the sum, over the stated sensitivity; and the way of the
    gradients, or `refused`.
    """
    sums, ways = [], []
    for number in (ROWS, ROWS - 1):
        with sums_before_noise() as own, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ways.append(
                    door(coupling.made(), coupling.data(number), plan(), coupling.loss, move)
                )
            except (NotPerExample, BadInput):
                assert not own, "it was refused after a release"
                ways.append("refused")
        sums += own
    assert ways[0] == ways[1], f"the way follows from whether there is one row more: {ways}"
    if ways[0] == "refused":
        return 0.0, "refused"
    (one, sensitivity), (other, same) = sums
    assert sensitivity == same
    return flat_norm(tuple(a - b for a, b in zip(one, other, strict=True))) / sensitivity, ways[0]


class Pixels(nn.Module):
    """Images whose pixels are scaled by those of the batch."""

    def __init__(self, scale: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.net = (
            scale,
            nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.scale(x.float()))  # type: ignore[no-any-return]


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "over their maximum": lambda x: x / x.max(),
    "between minimum and maximum": lambda x: (x - x.min()) / (x.max() - x.min() + 1e-6),
    "over their maximum, or 1": lambda x: x / x.max().clamp(min=1),
    "over 255 if one is above 1": lambda x: x / 255 if x.max() > 1 else x,
    "over 255 or 1": lambda x: x / (255.0 if x.max() > 1 else 1.0),
}


def pixels(scale: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Coupling:
    """Dark images, and a bright one."""
    random = torch.Generator().manual_seed(1)
    x = torch.randint(0, 2, (ROWS, 1, 4, 4), generator=random)
    x[-1] = 255 * (torch.rand(1, 4, 4, generator=random) > 0.5)
    y = torch.zeros(ROWS, dtype=torch.long)
    y[-1] = 3
    return Coupling(lambda: Pixels(scale), {"x": x.to(dtype), "labels": y})


class Table(nn.Module):
    """Columns with missing values, which are filled from the batch, or of a scale that is read off
    it.
    """

    def __init__(self, fill: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fill, self.net = fill, nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.fill(x))  # type: ignore[no-any-return]


def with_the_mean_of_others(x: Tensor) -> Tensor:
    known = x != -1
    return torch.where(known, x, (x * known).sum(0) / known.sum(0).clamp(min=1))


def table(fill: Callable[[Tensor], Tensor], missing: float) -> Coupling:
    x = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1))
    if missing == 0:
        x = x.abs() * 1000
        x[-1] = 60000.0
    else:
        x[:-1, 2:] = missing
        x[-2], x[-1] = 0.1, 50.0
    return Coupling(lambda: Table(fill), {"x": x, "labels": torch.zeros(ROWS, dtype=torch.long)})


class Times(nn.Module):
    """Texts, and a time over the batch's last."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 6), nn.Linear(7, 4)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        shares = (lengths / lengths.max().clamp(min=1))[:, None].float()
        return self.head(torch.cat([self.table(ids).mean(1), shares], 1))  # type: ignore[no-any-return]


class Trimmed(nn.Module):
    """Texts that are trimmed to the batch's longest."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table, self.head, self.kind = nn.Embedding(50, 8), nn.Linear(8, 3), kind
        self.layer = nn.Linear(8, 8) if kind == "mean" else nn.LSTM(8, 8, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        h = self.table(ids[:, : max(1, int(lengths.max()))])
        if self.kind == "mean":
            return self.head(torch.tanh(self.layer(h)).mean(1))  # type: ignore[no-any-return]
        outputs, (last, _) = self.layer(h)
        return self.head(last[-1] if self.kind == "last" else outputs.mean(1))  # type: ignore[no-any-return]


def texts(network: Callable[[], nn.Module], *, times: bool = False) -> Coupling:
    """Short texts, and a long one."""
    longest, random = 20, torch.Generator().manual_seed(0)
    ids = torch.randint(1, 50, (ROWS, longest), generator=random)
    lengths = torch.randint(2, 5, (ROWS,), generator=random)
    lengths[-1] = longest
    ids[torch.arange(longest) >= lengths[:, None]] = 0
    if times:
        lengths = lengths * 100
        lengths[-1] = 300000
    return Coupling(
        network, {"ids": ids, "lengths": lengths, "labels": torch.zeros(ROWS, dtype=torch.long)}
    )


class Reordered(nn.Module):
    """Frames of all examples as one batch, in another order, behind a gain, as that of a residual
    branch.
    """

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.body, self.mean, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)
        self.gain = nn.Parameter(torch.full((16,), gain))

    def forward(self, x: Tensor) -> Tensor:
        rows, number, width = x.shape
        h = torch.relu(self.body(x.transpose(0, 1).reshape(number * rows, width))).view(
            number, rows, -1
        )
        return self.head(self.mean(x.mean(1)) + self.gain * h.mean(0))  # type: ignore[no-any-return]


class Views(nn.Module):
    """Two views of each example through one encoder at once, and a head that begins at zero or not.

    With `centred`, what is read is less the batch's mean.
    """

    def __init__(self, *, zero: bool, centred: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.centred = nn.Linear(8, 16), nn.Linear(16, 4), centred
        if zero:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(torch.cat([x[:, 0], x[:, 1]]))).view(2, len(x), -1).sum(0)
        return self.head(h - h.mean(0) if self.centred else h)  # type: ignore[no-any-return]


def frames(network: Callable[[], nn.Module]) -> Coupling:
    x = torch.randn(ROWS, 4, 8, generator=torch.Generator().manual_seed(0)) * 0.01
    x[-1] = 30.0
    return Coupling(network, {"x": x, "labels": torch.zeros(ROWS, dtype=torch.long)})


def written() -> dict[str, Coupling]:
    """What users were seen to write."""
    return {
        **{
            f"pixels of {dtype}, {name}": pixels(scale, dtype)
            for name, scale in SCALES.items()
            for dtype in (torch.uint8, torch.int64, torch.float32)
        },
        "missing values, by the mean of a column": table(
            lambda x: torch.where(x.isnan(), x.nanmean(0, keepdim=True).nan_to_num(), x), math.nan
        ),
        "missing values, by the mean of all": table(
            lambda x: torch.where(x.isnan(), x.nanmean(), x), math.nan
        ),
        "missing values, by a number": table(
            lambda x: x.nan_to_num(float(x[~x.isnan()].mean())), math.nan
        ),
        "a sentinel, by the mean of a column": table(with_the_mean_of_others, -1.0),
        "12 or 16 bits": table(lambda x: x / (65535.0 if x.max() > 4095 else 4095.0), 0.0),
        "times over the last": texts(Times, times=True),
        **{
            f"texts trimmed to the longest, {kind}": texts(lambda kind=kind: Trimmed(kind))
            for kind in ("mean", "last", "mean of states")
        },
        **{
            f"frames in another order, gain {gain:g}": frames(lambda gain=gain: Reordered(gain))
            for gain in (1e-6, 0.0)
        },
        "two views": frames(lambda: Views(zero=False)),
        "two views, head at zero": frames(lambda: Views(zero=True)),
        "centred over the batch, head at zero": frames(lambda: Views(zero=True, centred=True)),
    }


class Small(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def drawn(mixes: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, Coupling]:
    """Each mix in two models, and in a loss."""
    x, y = marked_rows()
    columns = {"x": x.float(), "labels": y}

    couplings = {}
    for name, mix in mixes.items():
        couplings[f"{name}, behind a gain"] = Coupling(lambda mix=mix: Gated(mix), columns)
        couplings[f"{name}, of marked rows"] = Coupling(lambda mix=mix: Marked(mix), columns)
        couplings[f"{name}, in the loss"] = Coupling(Small, columns, mixing(mix))
    return couplings


#: Of which some are tried in each run of the tests: every fifth, 13th and tenth, so that all three
#: places come.
DAILY = {"written": 5, "drawn": 13, "harmless": 10}


def require_apart(
    door: Door, *, whole: bool = False, at_once: bool = True, recorded: bool = False
) -> None:
    """No coupling moves the sum of a door's step by more than its sensitivity, and what keeps
    examples apart trains.

    Args:
        door: trains for one step.
        whole: whether all couplings are tried, and not some of them.
        at_once: whether the door's loss is computed for many examples at once where they stay
            apart.
        recorded: whether the door records what a loss does to outputs: it leaves out hooks on their
            gradients, and may refuse what it can't record.
    """
    kinds = {"written": written(), "drawn": drawn(MIXES), "harmless": drawn(HARMLESS)}
    with collected():
        for kind, couplings in kinds.items():
            for name, coupling in list(couplings.items())[:: 1 if whole else DAILY[kind]]:
                moved, way = ratio(door, coupling)
                assert moved <= 1 + 1e-6, (name, way, moved)
                if recorded and name.endswith(", in the loss"):
                    continue
                if kind == "harmless":
                    assert moved > 0.9, (name, way, moved)
                    assert (way == "layers") == at_once, (name, way)
                elif kind == "drawn":
                    assert way != "layers", name


@contextmanager
def collected() -> Iterator[None]:
    """A block in which collecting garbage is quick: trainers do it at their ends, over all that was
    imported.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def gate_off(where: str) -> tuple[str, str]:
    """What becomes what in `SeparationCheck.require_apart` where the verdict on each program is
    that it is apart.
    """
    passing = "type('Passing', (dict,), {'get': lambda *_: ''})()"
    old = "examples = len(leaves[0])"
    return old, f"if {where}:\n        self._seen.verdicts = {passing}\n        return\n    {old}"


def losses_of_batch(losses: ExampleLosses) -> Callable[[nn.Module, dict[str, Tensor]], Tensor]:
    """A loss of the model and a batch of named columns."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return losses(
            model(**{name: leaf for name, leaf in batch.items() if name != "labels"}),
            batch["labels"],
        )

    return loss
