"""Named checks that nothing leaves a run but its releases (by record and replay); mutations must
make them fail.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn import cli
from privlearn.cli import checkpoints, jobs
from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping import clips
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.mechanisms import release as release_module
from privlearn.core.plan import Plan
from privlearn.errors import BadInput
from privlearn.publishing import publish
from privlearn.runs.given import ABSENT
from privlearn.training import run as dpsgd_module
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws, bounded, cross_entropy, small_data
from tests.support.registries import completed
from tests.support.steps import Noted
from tests.support.transcripts import require_alike, transcript

# Data and their neighbours

#: A row and its target, beside rows of classes 0 and 1.
ROWS: dict[str, tuple[list[float], int]] = {
    "ordinary": ([0.3, -1.0, 0.5, 2.0, 0.1], 0),
    "NaN": ([math.nan] * 5, 1),
    "one NaN": ([0.1, math.nan, 0.3, 0.2, 0.1], 1),
    "infinite": ([math.inf, 0.0, -math.inf, 1.0, 1.0], 0),
    "huge": ([1e30, -1e30, 1e30, 1e30, 1e30], 1),
    "far": ([1e4, -1e4, 1e4, 1e4, 1e4], 1),
    "the only one of its class": ([0.3, 0.2, 0.5, 0.2, 0.1], 2),
}
PRICED = completed(
    "samplers",
    [
        (sampling.Poisson(0.3), Adjacency.ADD_REMOVE),
        (sampling.Poisson(0.06), Adjacency.ADD_REMOVE),  # most batches are empty
        (sampling.Poisson(0.3), Adjacency.ZERO_OUT),
        (sampling.Partition(4), Adjacency.ADD_REMOVE),
        (sampling.Partition(30), Adjacency.ZERO_OUT),
        (sampling.Shuffle(5), Adjacency.ZERO_OUT),
        (sampling.Shuffle(5), Adjacency.REPLACE_ONE),
        (sampling.FullBatch(), Adjacency.ADD_REMOVE),
        (sampling.FullBatch(), Adjacency.ZERO_OUT),
        (sampling.FullBatch(), Adjacency.REPLACE_ONE),
        (sampling.CyclicPoisson(0.4, 3), Adjacency.ZERO_OUT),
        (sampling.CyclicPartition(4, 3), Adjacency.ZERO_OUT),
        (sampling.TruncatedPoisson(0.3, 12, 5), Adjacency.ZERO_OUT),  # every fifth batch is cut
    ],
    like=lambda sampler: (sampler, sampler.default_adjacency),
)
CLIPS = completed(
    "clips",
    [clips.Flat(0.5), clips.PerLayer(0.5), clips.Automatic(0.5), clips.Quantile(0.5, rate=1.0)],
)


def data_with(
    row: str | None, adjacency: Adjacency, rows: int = 11, kind: torch.dtype = torch.float64
) -> Any:
    """`rows` rows and one more; None for the neighbour without it: a row less, an empty one, or
    another.
    """
    x, y = small_data(rows)
    y = y % 2
    if row is None and adjacency is Adjacency.ADD_REMOVE:
        return x.to(kind), y
    last, target = ROWS[row or ("ordinary" if adjacency is Adjacency.REPLACE_ONE else "NaN")]
    return torch.cat([x, torch.tensor([last], dtype=torch.float64)]).to(kind), torch.cat(
        [y, torch.tensor([target])]
    )


def network(inputs: int = 5, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 3)
    ).double()


def training(plan: Plan, data: Any, make: Callable[[], nn.Module] = network, **options: Any) -> Any:
    """A run of `dpsgd` for `transcript`, published into its folder."""

    def run(streams: streams_module.Streams, folder: Path) -> None:
        steps: list[Any] = streams.noise._seen  # type: ignore[attr-defined]
        arguments = {
            "loss": cross_entropy,
            "optimizer": lambda p: torch.optim.SGD(p, lr=0.3),
            **options,
        }
        result = pv.dpsgd(
            plan,
            make(),
            arguments.pop("loss"),
            data,
            streams=streams,
            callbacks=Noted(steps),
            **arguments,
        )
        steps.append(
            ("ledger", result.ledger.event, repr(result.ledger), sorted(result.private_diagnostics))
        )
        steps.append(("result", repr(result), result.facts, result.architecture))
        publish.publish(result, folder / "model", delta=1e-5)

    return run


def settled(sampler: sampling.Sampler, adjacency: Adjacency, clip: Any, **more: Any) -> Plan:
    schedule = pv.schedules.Exponential(k=0.3, start=1.5)
    return Plan(
        sampler, epochs=2, schedule=schedule, clip=clip, adjacency=adjacency, examples=12, **more
    )


def require_neighbours_alike(
    plan: Plan, rows: Any = tuple(ROWS), count: int = 11, **options: Any
) -> None:
    kind = options.pop("kind", torch.float64)
    rounding = options.pop("rounding", 1e-9)
    base = transcript(training(plan, data_with(None, plan.neighbours, count, kind), **options))
    assert base.released, base.seen
    for row in rows:
        data = data_with(row, plan.neighbours, count, kind)
        found = transcript(training(plan, data, **options), replay=base)
        require_alike(
            base, found, (plan.sampling, plan.neighbours, plan.clip, row, options), rounding
        )


# Training in Python


@check
def check_neighbouring_runs_look_the_same() -> None:
    """Every sampler with every kind of neighbour, clipping and row; with all combinations in the
    nightly tests.
    """
    for number, (sampler, adjacency) in enumerate(PRICED):
        rows = list(ROWS)
        for other, clip in enumerate(CLIPS):
            few = rows if clip is CLIPS[number % 4] else [rows[(number + other) % len(rows)]]
            require_neighbours_alike(settled(sampler, adjacency, clip), few)


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


#: Options of runs that draw random numbers for each example.
DRAWING = ("augmentation", "dropout", "dropout and copies")
OPTIONS: dict[str, dict[str, Any]] = {
    "micro-batches": {"microbatch": 2},
    "augmentation": {"augmentation": Augmentation(3, noisy)},
    "dropout": {"make": lambda: network(dropout=0.5)},
    "dropout and copies": {
        "make": lambda: network(dropout=0.5),
        "augmentation": Augmentation(2, noisy),
        "microbatch": 3,
    },
    "mean weights": {"average": 0.5},
    "bf16": {
        "precision": "bf16",
        "make": lambda: network().float(),
        "kind": torch.float32,
        "rounding": 1e-6,
    },
    "single precision": {
        "make": lambda: network().float(),
        "kind": torch.float32,
        "rounding": 1e-6,
    },
    "adam": {"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)},
    "momentum": {
        "optimizer": lambda p: torch.optim.SGD(
            p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
        )
    },
    "adagrad": {"optimizer": lambda p: torch.optim.Adagrad(p, lr=0.1)},
    "rates that fall": {"learning_rate_schedule": pv.schedules.Polynomial(k=1, end=0, period=2)},
    "by vmap": {"make": lambda: Unruled().double()},
}


class Unruled(nn.Module):
    """Computed by vmap."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.atan2(self.layer(x), self.scale)


@check
def check_neighbouring_runs_look_the_same_with_options() -> None:
    for number, (name, options) in enumerate(OPTIONS.items()):
        pairs = ((PRICED[0], CLIPS[3]), (PRICED[number % len(PRICED)], CLIPS[number % 4]))
        draws = name in DRAWING
        for (sampler, adjacency), clip in (*pairs, *[(PRICED[3], CLIPS[0])] * draws):
            rows = ("one NaN", "far")
            require_neighbours_alike(settled(sampler, adjacency, clip), rows, **options)
    for number, (sampler, adjacency) in enumerate(PRICED):
        plan = settled(
            sampler, adjacency, clips.Flat(0.5), front=(pv.transforms.PrivatePCA(3, 2.0),)
        )
        require_neighbours_alike(plan, list(ROWS)[number % 3 :: 3], make=lambda: network(3))


@check
def check_one_row_looks_like_none() -> None:
    """Data of a single row, and of none at all, where the number of rows is not public."""
    for sampler, adjacency in (PRICED[0], PRICED[3], PRICED[7]):
        for clip in (clips.PerLayer(0.5), clips.Quantile(0.5)):
            require_neighbours_alike(
                settled(sampler, adjacency, clip), ("ordinary", "one NaN", "far"), count=0
            )


class Picky(nn.Module):
    """Does on some rows only what no model should."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.how = nn.Linear(5, 3).double(), how
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("passing", torch.zeros(1, dtype=torch.float64), persistent=False)
        self.kept = nn.Parameter(torch.zeros(1, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        before = self.seen + self.passing + self.kept
        if bool((x == 0.2).any()):  # in no made-up row
            if self.how == "raises":
                raise ValueError(f"what is {x.sum()}?")
            if self.how == "writes":
                x = x.mul_(2.0)
            if self.how == "buffer":
                self.seen += x.detach().sum()
            if self.how == "other buffer":
                self.passing = self.passing + 1.0
            if self.how == "frozen":
                self.kept.data.add_(1.0)
            if self.how == "trained":
                self.layer.weight.data.mul_(2.0)
            if self.how == "trained in place":
                with torch.no_grad():
                    self.layer.weight.mul_(2.0)
            if self.how == "another parameter":
                self.layer.weight = nn.Parameter(self.layer.weight.detach() * 2.0)
            if self.how == "new buffer":
                self.register_buffer("mean", x.detach().mean(0))
            if self.how == "another way":
                x = x.flip(1).flip(1)
        return self.layer(x) + before.detach()


PICKY = ("raises", "writes", "buffer", "other buffer", "frozen", "new buffer", "another way")
WRITES = ("trained", "trained in place", "another parameter")


@check
def check_what_a_model_does_on_some_rows_only_is_not_seen() -> None:
    """It raises, writes into its rows, its buffers or frozen parameters, or goes another way."""
    rows = ("the only one of its class", "one NaN")  # both hold the 0.2
    for how in PICKY:
        for (sampler, adjacency), microbatch in ((PRICED[0], None), (PRICED[3], 2)):
            plan = settled(sampler, adjacency, clips.Flat(0.5))
            require_neighbours_alike(
                plan, rows, make=lambda how=how: Picky(how), microbatch=microbatch
            )


@check
def check_what_a_model_writes_into_its_weights_on_some_rows_only_is_not_seen() -> None:
    """Neither in the weights, nor in what the run claims, warns of or refuses."""
    sampler, adjacency = PRICED[3]
    for how in WRITES:
        plan = settled(sampler, adjacency, clips.Flat(0.5))
        require_neighbours_alike(plan, ("one NaN",), make=lambda how=how: Picky(how), microbatch=2)


@check
def check_what_a_loss_does_on_some_targets_only_is_not_seen() -> None:
    """It raises, or has no value for some rows."""

    def raises(output: Tensor, y: Tensor) -> Tensor:
        if bool((y == 2).any()) and len(y) != 2:  # two made-up rows are tried beforehand
            raise KeyError("class 2")
        return cross_entropy(output, y)

    def drops(output: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(output, y)[y != 2] if len(y) != 2 else cross_entropy(output, y)

    for loss in (raises, drops):
        for sampler, adjacency in (PRICED[3], PRICED[8]):
            plan = settled(sampler, adjacency, clips.Quantile(0.5))
            require_neighbours_alike(plan, ("the only one of its class",), loss=loss)


@check
def check_charges_come_first_and_every_release_draws() -> None:
    """Within each release: its charge (or, later in an epoch, none), then noise for every number,
    then nothing.
    """
    for sampler, adjacency in PRICED:
        plan = settled(
            sampler, adjacency, clips.Flat(0.5), front=(pv.transforms.PrivatePCA(3, 2.0),)
        )
        found = transcript(
            training(plan, data_with("ordinary", adjacency), make=lambda: network(3))
        )
        charged, inside, drawn = 0, False, False
        for item in found.seen:
            kind = item if isinstance(item, str) else item[0]
            if kind == "release":
                inside, drawn = True, False
            elif kind == "released":
                assert drawn, f"a release of {sampler} drew no noise"
                inside = False
            elif kind == "charge":
                assert not drawn or not inside, f"{sampler}: the charge came after the noise"
                charged += 1
            elif kind == "noise" and item[1] == "words":
                assert inside, f"{sampler}: noise was drawn outside of any release"
                drawn = True
        whole = isinstance(
            sampler, sampling.Partition | sampling.CyclicPartition | sampling.Shuffle
        )
        cycle = getattr(sampler, "cycle", 1)  # which is charged at its first batch
        charges = 2 if whole else 2 * sampler.steps(12) // cycle
        assert charged == 1 + charges, (sampler, charged)
        for sums, released in zip(found.sums, found.released, strict=True):
            assert all(bool((a != b).all()) for a, b in zip(sums, released, strict=True))


# What a run leaves behind


@check
def check_no_sum_without_noise_is_left_behind() -> None:
    """However a run ends: in the middle of a batch, at a refusing ledger, or well."""

    charge = Ledger.charge

    def refuses(ledger: Ledger, event: Any, adjacency: Adjacency) -> None:
        if ledger.event.events:
            raise pv.errors.BudgetExceeded("spent")
        charge(ledger, event, adjacency)

    plan = Plan(sampling.FullBatch(), epochs=5, schedule=pv.schedules.Constant(1.0), examples=12)
    for ends in ("interrupted", "refused", "well"):
        net, calls = network(), [0]

        def loss(output: Tensor, y: Tensor, ends: str = ends, calls: list[int] = calls) -> Tensor:
            if len(y) > 10:  # no made-up batch
                calls[0] += 1
                if ends == "interrupted" and calls[0] == 6:
                    raise KeyboardInterrupt
            return cross_entropy(output, y)

        kinds = (KeyboardInterrupt, pv.errors.BudgetExceeded)
        patched = mock.patch.object(Ledger, "charge", refuses if ends == "refused" else charge)
        with patched, contextlib.suppress(*kinds):
            pv.dpsgd(plan, net, loss, data_with("ordinary", Adjacency.ADD_REMOVE), microbatch=6)
        assert all(p.grad is None for p in net.parameters()), (
            f"gradients were left behind by a run that was {ends}"
        )


@check
def check_generators_do_not_tell_batch_sizes() -> None:
    """PyTorch's own generator is where it was; and its numbers in a run follow from the run's
    seed.
    """
    plan = settled(sampling.Poisson(0.3), Adjacency.ADD_REMOVE, clips.Flat(0.5))
    weights = []
    for before in (1, 2):
        torch.manual_seed(before)
        at = torch.get_rng_state()
        net = network(dropout=0.5)
        torch.manual_seed(before)
        pv.dpsgd(
            plan,
            net,
            cross_entropy,
            data_with("ordinary", Adjacency.ADD_REMOVE),
            streams=streams_module.Streams.new(1),
        )
        assert torch.equal(torch.get_rng_state(), at), (
            "the generator of PyTorch moved as far as the batches were large"
        )
        weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*weights)


@check
def check_what_noise_cannot_be_added_to_is_not_charged() -> None:
    for value in (
        torch.zeros(3, dtype=torch.float16),
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(4, 3).T,
    ):
        ledger = Ledger()
        part = bounded(value)
        error = must_raise(
            BadInput,
            lambda part=part, ledger=ledger: release_module.release(
                part, noise_multiplier=1.0, ledger=ledger, stream=NoDraws()
            ),
        )
        assert "expected" in str(error)
        assert ledger.event.events == ()
        release_module.release(  # the sample was not used up
            bounded(torch.zeros(3), 1.0, part.sample),
            noise_multiplier=1.0,
            ledger=ledger,
            stream=streams_module.Streams.new(0).noise,
        )


@check
def check_steps_that_are_too_long_end_with_a_message() -> None:
    """On neighbouring data with the same one: that the weights are not finite follows from what was
    released.
    """
    plan = Plan(
        sampling.Poisson(0.3), 4, pv.schedules.Constant(1.0), clips.Flat(100.0), examples=12
    )
    long: Any = {"optimizer": lambda p: torch.optim.SGD(p, lr=1e308)}
    base = transcript(training(plan, data_with(None, plan.neighbours), **long))
    said = next(
        (item for item in base.seen if item[0] == "error"), ("error", "", "nothing was said")
    )
    for part in (
        "no longer finite",
        "after epoch",
        "of 4",
        "smaller learning rate than 1e+308",
        "is spent",
    ):
        assert part in said[2], said
    assert not any(item[0] == "file" for item in base.seen)
    for row in ROWS:
        found = transcript(training(plan, data_with(row, plan.neighbours), **long), replay=base)
        require_alike(base, found, row)


# The command line


def write_rows(path: Path, rows: int, last: tuple[list[float], int] | None = None) -> None:
    """An .npz of `rows` rows, and one more if it is given, with test rows that are the same for
    all.
    """
    made_up = np.random.default_rng(5)
    y, tests = np.arange(rows) % 2, np.arange(9) % 3
    x, x_test = made_up.normal(size=(rows, 5)), made_up.normal(size=(9, 5))
    if last is not None:
        x, y = np.concatenate([x, [last[0]]]), np.concatenate([y, [last[1]]])
    np.savez(path, x=x, y=y, x_test=x_test, y_test=tests)


COMMANDS = [
    ("--sampling", "poisson", "--clip", "flat", "--json"),
    ("--sampling", "poisson", "--clip", "quantile", "--microbatch", "3"),
    (
        "--sampling",
        "partition",
        "--clip",
        "layer",
        "--pca",
        "3",
        "--pca-noise",
        "4",
        "--model",
        "linear",
    ),
    ("--sampling", "partition", "--clip", "automatic", "--precision", "bf16", "--json"),
    (
        "--sampling",
        "full",
        "--clip",
        "flat",
        "--adjacency",
        "add_remove",
        "--optimizer",
        "Adam",
        "--json",
    ),
    ("--sampling", "shuffle", "--clip", "flat", "--adjacency", "replace_one", "--json"),
    (
        "--sampling",
        "poisson",
        "--schedule",
        "validation:k=0.5,noise=6",
        "--epsilon",
        "30",
        "--json",
    ),
]


#: The other methods, and what is released beside the model.
METHODS = [
    (
        "--method",
        "dpmac",
        "--epsilon",
        "20",
        "--delta",
        "1e-3",
        "--model",
        "mlp:4",
        "--batch-size",
        "6",
        "--epochs",
        "2",
        "--json",
    ),
    (
        "--method",
        "dpmac",
        "--target-bounds",
        "-1,1",
        "--epsilon",
        "20",
        "--delta",
        "1e-3",
        "--model",
        "mlp:4",
        "--batch-size",
        "6",
        "--epochs",
        "2",
        "--json",
    ),
    ("--method", "boosting", "--epsilon", "20", "--delta", "1e-3", "--json"),
    ("--method", "features", "--epsilon", "20", "--delta", "1e-3", "--json"),
    ("--sampling", "poisson", "--paid-metrics", "20", "--json"),
    ("--sampling", "poisson", "--class-weights", "0=1,1=3,2=1", "--json"),
    ("--sampling", "poisson", "--task", "ordinal", "--json"),
    (
        "--method",
        "dpsgd",
        "--epsilon",
        "20",
        "--delta",
        "1e-3",
        "--epochs",
        "2",
        "--normalise",
        "moments",
        "--temperature",
        "0.1",
        "--json",
    ),
]


def command(options: tuple[str, ...], last: tuple[list[float], int] | None, rows: int = 23) -> Any:
    def run(streams: streams_module.Streams, folder: Path) -> None:
        class New:
            new = staticmethod(lambda *args, **kwargs: streams)

        with tempfile.TemporaryDirectory() as apart:
            path = Path(apart) / "rows.npz"
            write_rows(path, rows, last)
            given = ("--data", str(path), "--range", "-5,5", "--examples", "24")
            given += () if "--target-bounds" in options else ("--classes", "3")
            sizes = () if "full" in options else ("--batch-size", "6")
            spent = (
                "--epochs",
                "2",
                "--noise-multiplier",
                "1.5",
                "--model",
                "mlp:4",
                "--delta",
                "1e-3",
                *sizes,
            )
            own = (
                options if "--epsilon" in options and "--method" in options else (*spent, *options)
            )
            with (
                mock.patch.object(checkpoints, "Streams", New),
                mock.patch.object(jobs, "Streams", New),
            ):
                code = cli.main(["train", *given, *own, "--out", "model"])
            streams.noise._seen.append(("code", code))  # type: ignore[attr-defined]

    return run


def require_commands_alike(options: tuple[str, ...], lasts: Any) -> None:
    base = transcript(command(options, ROWS["ordinary"] if "replace_one" in options else None))
    assert ("code", 0) in base.seen, base.seen[-6:]
    for last in lasts:
        found = transcript(command(options, ROWS[last]), replay=base)
        require_alike(base, found, (options, last), rounding=1e-6)


@check
def check_neighbouring_commands_look_the_same() -> None:
    """`privlearn train` with a declared number of examples: all that is printed and published, byte
    by byte.
    """
    for number, options in enumerate(COMMANDS):
        require_commands_alike(
            options, ("the only one of its class", ("huge", "far", "ordinary")[number % 3])
        )


@check
def check_neighbouring_commands_of_other_methods_look_the_same() -> None:
    """DP-MAC, boosting, class statistics; with metrics that are released, weights, ordered classes,
    moments.
    """
    for number, options in enumerate(METHODS):
        require_commands_alike(options, (("huge", "far", "the only one of its class")[number % 3],))


@check
def check_released_values_only_change_values() -> None:
    """With other releases: files of the same names and sizes, and a certificate that differs by its
    digests alone.
    """
    one, other = (
        transcript(command(COMMANDS[0], last)) for last in (None, ROWS["the only one of its class"])
    )
    files = [
        {item[1]: item[2] for item in found.seen if item[0] == "file"} for found in (one, other)
    ]
    assert files[0]["model/model.safetensors"] != files[1]["model/model.safetensors"]
    pages = [_without_figures(found.pop("model/card.html")) for found in files]
    assert pages[0] == pages[1]
    assert {name: len(content) for name, content in files[0].items()} == {
        n: len(c) for n, c in files[1].items()
    }
    assert files[0]["model/config.json"] == files[1]["model/config.json"]
    digest = re.compile(rb"[0-9a-f]{64}")
    assert digest.sub(b"", files[0]["model/privacy.json"]) == digest.sub(
        b"", files[1]["model/privacy.json"]
    )
    cards = [re.sub(rb"\| [\d.]+ on \d+ rows", b"", found["model/README.md"]) for found in files]
    assert cards[0] == cards[1]
    kinds = [
        [item if isinstance(item, str) else item[:1] for item in found.seen]
        for found in (one, other)
    ]
    assert kinds[0] == kinds[1]


def _without_figures(page: bytes) -> bytes:
    """A page without what it says of the test rows."""
    text, sections = re.subn(
        rb'<section aria-labelledby="quality">.*?</section>', b"", page, flags=re.DOTALL
    )
    assert sections == 1
    return re.sub(rb"<dt>Test accuracy</dt>.*?</div>", b"", text)


@check
def check_rows_that_are_not_finite_are_warned_of_before_anything_is_spent() -> None:
    """One sentence, the same wherever and however many they are; no warning where there are none,
    or for integers.
    """
    plan = settled(sampling.Poisson(0.3), Adjacency.ADD_REMOVE, clips.Flat(0.5))
    x, y = data_with("ordinary", Adjacency.ADD_REMOVE)
    said = {row: warned(plan, data_with(row, Adjacency.ADD_REMOVE)) for row in ROWS}
    assert said["NaN"] == said["one NaN"] == said["infinite"] == [ABSENT]
    assert warned(plan, (torch.cat([x, x * math.nan]), torch.cat([y, y]))) == [ABSENT]
    assert not any(said[row] for row in ROWS if row not in ("NaN", "one NaN", "infinite"))
    assert not any(character.isdigit() for character in ABSENT)
    ledger = pv.Ledger()
    for data in ((x * math.inf, y), (x, y.double() * math.nan)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            must_raise(
                UserWarning,
                lambda data=data: dpsgd_module.Run(plan, network(), absolute, data, ledger=ledger),
            )  # type: ignore[misc]
    assert not ledger.event.events


def warned(plan: Plan, data: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pv.dpsgd(plan, network(), cross_entropy, data)
    return [str(warning.message) for warning in said]


def absolute(output: Tensor, y: Tensor) -> Tensor:
    return (output[:, 0] - y).abs()
