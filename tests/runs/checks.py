"""Named checks of runs driven by hand, of nested batches, of rows fetched by index and of worlds of
processes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core import sampling
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.bounded import kept
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.processes import World
from privlearn.core.rows import TensorRows, ahead
from privlearn.core.streams import NoiseStream, Streams
from privlearn.data.dataset_rows import DatasetRows
from privlearn.errors import BadInput, NotPerExample, SampleReused
from privlearn.runs.checkpoint import Checkpoint
from privlearn.training.run import Run
from tests.descent.checks_leaks import network, settled, training
from tests.runs.checks_resuming import RUNS, Stopped, folder, number, weights
from tests.runs.checks_resuming import Run as Small
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, flat_norm, one_sample, small_data
from tests.support.registries import completed
from tests.support.transcripts import require_alike, transcript


def driven(run: Run, stop: int | None = None) -> pv.Result:
    """A run from beginning to end; with `stop`, until so many steps are done."""
    done = 0
    with run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                done += 1
                if done == stop:
                    raise Stopped
        return run.result()


def by_hand(
    small: Small, path: Path | None = None, stop: int | None = None, **options: Any
) -> pv.Result:
    """`Small.go`, by hand."""

    def run(*given: Any, callbacks: Any, **named: Any) -> pv.Result:
        return driven(Run(*given, **named), stop)

    with mock.patch.object(pv, "dpsgd", run):
        return small.go(path, **options)


def made(plan: pv.Plan | None = None, data: Any = None, **options: Any) -> Run:
    plan = plan or settled(sampling.Poisson(0.3), Adjacency.ADD_REMOVE, pv.Flat(0.5))
    given = {
        "streams": Streams.new(3),
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.3),
        **options,
    }
    net = given.pop("model", None) or network(dropout=0.3)
    return Run(
        plan, net, given.pop("loss", cross_entropy), small_data() if data is None else data, **given
    )


# Runs that are driven by hand


@check
def check_a_run_by_hand_is_dpsgd() -> None:
    """The same weights to the bit, the same charges, the same facts."""
    for small, options in [*((small, {}) for small in RUNS), (RUNS[0], {"average": 0.5})]:
        whole, own = small.go(**options), by_hand(small, **options)
        assert torch.equal(weights(own), weights(whole)), small
        assert own.ledger.event == whole.ledger.event == small.plan().event()
        assert (own.facts, own.architecture) == (whole.facts, whole.architecture)
        assert dict(own.private_diagnostics) == dict(whole.private_diagnostics)


@check
def check_runs_by_hand_go_on_after_interruptions() -> None:
    """An exception in the loop keeps the checkpoint; the pieces end where the whole run does, for
    the price of one.
    """
    for small in RUNS[:4]:
        whole = small.go()
        with folder() as here:
            Ledger.open(here / "ledger", create=True)
            for _ in range(100):
                with suppress(Stopped):
                    own = by_hand(small, here / "run", stop=2, ledger=Ledger.open(here / "ledger"))
                    break
                assert (here / "run").exists()
                assert Ledger.open(here / "ledger").event == small.plan().event(), (
                    "what is still to come is set aside"
                )
            assert torch.equal(weights(own), weights(whole)), small
            assert Ledger.open(here / "ledger").event == small.plan().event()


@check
def check_a_batch_is_good_for_one_step() -> None:
    run = made()
    with run:
        epoch = next(iter(run))
        batch = next(iter(epoch))
        run.step(batch)
        before = weights_of(run)
        must_raise(SampleReused, lambda: run.step(batch))
        assert torch.equal(before, weights_of(run))
        next(iter(epoch))
        must_raise(SampleReused, lambda: run.step(batch))


def weights_of(run: Run) -> Tensor:
    return torch.cat(
        [
            p.detach().flatten().clone()
            for group in run.optimizer.param_groups
            for p in group["params"]
        ]
    )


@check
def check_batches_are_stepped_on_one_after_the_other() -> None:
    """Else a checkpoint could stand between them, and what is drawn again would go to another
    sum.
    """
    run = made()
    with run:
        epoch = next(iter(run))
        next(iter(epoch))
        assert "run.step" in str(must_raise(BadInput, lambda: next(iter(epoch))))


@check
def check_an_epoch_left_in_the_middle_is_refused() -> None:
    run = made()
    epochs = iter(run)
    batches = iter(next(epochs))
    batch = next(batches)
    run.step(batch)
    assert "result()" in str(must_raise(BadInput, lambda: next(epochs)))
    later = next(batches)
    assert "over" in str(must_raise(BadInput, lambda: run.step(later)))
    result = run.result()
    assert number(result.ledger.event) == result.facts["steps"] == 1


@check
def check_a_run_left_early_gives_back_what_it_did_not_spend() -> None:
    """In memory and in a file, with a checkpoint or without: it says its steps, and nothing
    follows.
    """
    plan = settled(sampling.Poisson(0.3), Adjacency.ADD_REMOVE, pv.Flat(0.5))
    for kept_in in (None, "run"):
        with folder() as here:
            ledger = Ledger.open(here / "ledger", create=True)
            run = made(plan, ledger=ledger, checkpoint=None if kept_in is None else here / kept_in)
            for epoch in run:
                for batch in epoch:
                    run.step(batch)
                    if batch.number == 1:
                        break
                break
            held = next(iter(epoch))
            assert number(Ledger.open(here / "ledger").event) == number(plan.event())
            result = run.result()
            assert number(Ledger.open(here / "ledger").event) == 2
            assert result.facts["steps"] == 2
            after = weights_of(run)
            must_raise(BadInput, lambda run=run, held=held: run.step(held))
            assert "ended" in str(must_raise(BadInput, lambda run=run: list(run)))
            assert torch.equal(after, weights_of(run))
            assert number(Ledger.open(here / "ledger").event) == 2


@check
def check_an_exception_in_the_callers_loop_settles_the_ledger() -> None:
    with folder() as here:
        ledger = Ledger.open(here / "ledger", create=True)
        run = made(ledger=ledger)
        must_raise(Stopped, lambda: driven(run, stop=3))
        assert number(Ledger.open(here / "ledger").event) == 3
        assert all(p.grad is None for group in run.optimizer.param_groups for p in group["params"])


class Drawing(torch.optim.SGD):
    """Draws random numbers, and writes them down."""

    drawn: list[float]

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.drawn = []

    def step(self, closure: Any = None) -> Any:
        self.drawn.append(float(torch.rand(())))
        assert all(p.grad is not None for group in self.param_groups for p in group["params"])
        return super().step(closure)


@check
def check_steps_leave_the_callers_generators_alone() -> None:
    """Whatever is drawn in a step comes from the run; and no sum without noise stays in the
    gradients.
    """
    run = made(optimizer=Drawing, model=network(dropout=0.5))
    states = []
    with run:
        torch.manual_seed(7)
        states.append(torch.get_rng_state())
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                states.append(torch.get_rng_state())
                assert all(
                    p.grad is None for group in run.optimizer.param_groups for p in group["params"]
                )
        run.result()
    assert all(torch.equal(states[0], state) for state in states)
    assert isinstance(run.optimizer, Drawing)
    assert len(set(run.optimizer.drawn)) == len(run.optimizer.drawn) > 2


# Batches that are nests of tensors


class Two(nn.Module):
    """Two inputs, side by side."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = network(dropout=dropout)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        out: Tensor = self.inner(torch.cat([left, right], 1))
        return out


def of_model(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(model(batch["left"], batch["right"]), batch["y"])


def nests(x: Tensor, y: Tensor) -> list[tuple[Any, Any]]:
    """The same rows as nests, each with its loss."""
    left, right = x[:, :2].contiguous(), x[:, 2:].contiguous()
    return [
        ({"left": left, "right": right, "y": y}, of_model),
        (((left, right), y), cross_entropy),
        (({"left": left, "right": right}, y), cross_entropy),
    ]


@check
def check_nested_batches_are_the_plain_ones() -> None:
    """With dropout, too: the masks follow from what a row holds."""
    x, y = small_data()
    for dropout in (0.0, 0.4):
        plain = driven(made(data=(x, y), model=network(dropout=dropout)))
        for data, loss in nests(x, y):
            own = driven(made(data=data, model=Two(dropout), loss=loss))
            torch.testing.assert_close(weights(own), weights(plain), rtol=1e-12, atol=1e-12)
            assert own.ledger.event == plain.ledger.event


@check
def check_clipped_sums_of_nested_batches_are_the_loops() -> None:
    x, y = small_data()
    for data, loss in nests(x, y):
        net = Two()
        rows = TensorRows(data)
        found = ClippedGradients(net, loss, pv.Flat(0.3), Adjacency.ADD_REMOVE)(
            one_sample(examples=12), rows
        ).values
        total = [torch.zeros_like(p) for p in net.parameters()]
        for row in range(12):
            value = cross_entropy(
                net(x[row : row + 1, :2], x[row : row + 1, 2:]), y[row : row + 1]
            ).sum()
            own = torch.autograd.grad(value, list(net.parameters()))
            weight = min(1.0, kept(0.3, [torch.float64]) / flat_norm(own))
            total = [one + weight * other for one, other in zip(total, own, strict=True)]
        for one, other in zip(found, total, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@check
def check_losses_that_couple_a_nested_batch_are_refused() -> None:
    data, _ = nests(*small_data())[0]

    def centred(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return cross_entropy(
            model(batch["left"] - batch["left"].mean(0), batch["right"]), batch["y"]
        )

    def mean(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return of_model(model, batch).mean()

    for loss in (centred, mean):
        ledger = Ledger()
        must_raise(
            NotPerExample,
            lambda loss=loss, ledger=ledger: made(data=data, model=Two(), loss=loss, ledger=ledger),
        )
        assert ledger.adjacency is None


@check
def check_rows_that_do_not_belong_together_are_refused() -> None:
    x, y = small_data()
    for wrong in ({"left": x, "y": y[:-1]}, {"left": x, "y": 3.0}, {}, ((x, x[:5]), y)):
        must_raise(BadInput, lambda wrong=wrong: TensorRows(wrong))


# Rows that are fetched by index


class Given(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows of tensors, one of which may be `odd`: what is called in its place."""

    def __init__(
        self, x: Tensor, y: Tensor, odd: int | None = None, instead: Callable[[], Any] | None = None
    ) -> None:
        self.x, self.y, self.odd, self.instead = x, y, odd, instead

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        if row == self.odd and self.instead:
            return self.instead()
        return self.x[row], self.y[row]


def fails() -> Any:
    raise OSError("the row can't be read")


def pairs(rows: list[Any]) -> Any:
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


ODD: list[Callable[[], Any]] = [
    fails,
    lambda: (torch.zeros(3, dtype=torch.float64), torch.tensor(0)),
    lambda: (torch.zeros(5, dtype=torch.float32), torch.tensor(0)),
    lambda: (torch.full((5,), math.nan, dtype=torch.float64), torch.tensor(0)),
    lambda: (torch.zeros(5, dtype=torch.float64), torch.tensor(9)),
    lambda: "no row",
]


@check
def check_rows_by_index_are_rows_in_memory() -> None:
    """Memory-mapped arrays, and data sets with workers or none and a way to make batches: bit for
    bit.
    """
    x, y = small_data()
    plain = weights(driven(made(data=(x, y))))
    for rows in (Given(x, y), DatasetRows(Given(x, y)), DatasetRows(Given(x, y), pairs, workers=2)):
        assert torch.equal(weights(driven(made(data=rows))), plain)
    with folder() as here:
        np.save(here / "x.npy", (x * 50).to(torch.int16).numpy())
        np.save(here / "y.npy", y.numpy())
        on_disk = [np.load(here / name, mmap_mode="r") for name in ("x.npy", "y.npy")]
        bounds = {"low": np.full(5, -100.0), "high": np.full(5, 100.0)}
        both = [
            pv.Dataset(*arrays, **bounds)
            for arrays in (on_disk, [np.array(part) for part in on_disk])
        ]
        first, second = (weights(driven(made(data=data, model=network().float()))) for data in both)
        assert torch.equal(first, second)
        np.save(here / "z.npy", x.numpy())
        bare = [np.load(here / name, mmap_mode="r") for name in ("z.npy", "y.npy")]
        by_index, in_memory = (
            weights(driven(made(data=data, model=network().float())))
            for data in (TensorRows(tuple(bare)), tuple(map(np.array, bare)))
        )
        assert torch.equal(by_index, in_memory)


@check
def check_rows_that_fail_count_as_absent() -> None:
    """And move nothing else: the sums are those of the rows without them, with workers and
    without.
    """
    x, y = small_data()
    others = [row for row in range(12) if row != 5]
    for instead in ODD:
        for workers in (0, 2) if instead is fails else (0,):
            rows: Any = DatasetRows(Given(x, y, 5, instead), workers=workers)
            (rows,) = ahead(rows, [np.arange(12)])
            found = engine()(one_sample(examples=12), rows).values
            expected = engine()(one_sample(examples=11), x[others], y[others]).values
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    run = made(
        data=Given(x, y, 5, fails),
        plan=settled(sampling.FullBatch(), Adjacency.ADD_REMOVE, pv.Flat(0.5)),
    )
    assert driven(run).private_diagnostics["left_out"] == [1, 1]
    with folder() as here:
        driven(made(data=Given(x, y, 5, fails), checkpoint=here / "run"))


def engine() -> ClippedGradients:
    return ClippedGradients(network(), cross_entropy, pv.Flat(0.3), Adjacency.ADD_REMOVE)


def padded(rows: list[Any]) -> Any:
    """Brings rows to the length of the longest, as batches of texts are."""
    longest = max(len(row[0]) for row in rows)
    x = torch.stack(
        [nn.functional.pad(row[0], (0, longest - len(row[0])), value=1.0) for row in rows]
    )
    return x, torch.stack([row[1] for row in rows])


class Averaging(nn.Module):
    """Takes rows of any length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(1, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.mean(1, keepdim=True))
        return out


@check
def check_a_row_does_not_change_how_others_are_collated() -> None:
    x, y = small_data(6)
    long = lambda: (torch.ones(9, dtype=torch.float64), torch.tensor(1))  # noqa: E731
    sums = []
    for instead in (None, long):
        rows = DatasetRows(Given(x, y, 3, instead), padded)
        clipper = ClippedGradients(Averaging(), cross_entropy, pv.Flat(0.3), Adjacency.REPLACE_ONE)
        sums.append(clipper(one_sample(examples=6), rows).values)
    assert flat_norm(tuple(one - other for one, other in zip(*sums, strict=True))) <= 0.3


class Random(Given):
    """Rows with random changes, by every generator there is."""

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + torch.rand(5) + float(np.random.rand()) + random.random(), y  # noqa: NPY002


@check
def check_random_transforms_of_a_row_do_not_depend_on_others() -> None:
    x, y = small_data()
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    held = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    rows = DatasetRows(Random(x, y))
    together = rows.fetch(torch.arange(12))[0]
    alone = torch.cat([rows.fetch(torch.tensor([row]))[0] for row in (11, 3, 0)])
    (far,) = ahead(DatasetRows(Random(x, y), workers=1), [np.array([7, 3, 0, 11])])
    assert torch.equal(together[[11, 3, 0]], alone)
    assert torch.equal(far.fetch(torch.tensor([11, 3, 0]))[0], alone)
    assert torch.equal(held[0], torch.get_rng_state())
    assert held[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002


@check
def check_neighbouring_rows_by_index_look_the_same() -> None:
    """By record and replay: a row more, which may fail, be of another shape, or not be a number."""
    x, y = small_data(12)
    y = y % 2
    for sampler in (sampling.Poisson(0.3), sampling.Partition(4), sampling.FullBatch()):
        plan = settled(sampler, Adjacency.ADD_REMOVE, pv.Flat(0.5))
        base = transcript(training(plan, DatasetRows(Given(x[:11], y[:11]))))
        assert base.released, base.seen
        for instead in (None, *ODD):
            own = transcript(training(plan, DatasetRows(Given(x, y, 11, instead))), replay=base)
            require_alike(base, own, (sampler, instead))
    plan = settled(sampling.Poisson(0.3), Adjacency.ADD_REMOVE, pv.Flat(0.5))
    for (more, loss), (less, _) in zip(nests(x, y), nests(x[:11], y[:11]), strict=True):
        options: dict[str, Any] = {"make": lambda: Two(0.3), "loss": loss}
        base = transcript(training(plan, less, **options))
        assert base.released, base.seen
        require_alike(base, transcript(training(plan, more, **options), replay=base), type(more))


@check
def check_workers_make_no_difference_after_interruptions() -> None:
    """Batches are fetched ahead, checkpoints are not: in pieces, bit for bit, and no noise goes to
    two sums.
    """
    x, y = small_data()
    plan = pv.Plan(
        sampling.Poisson(0.3), epochs=2, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(0.1)
    )

    def go(workers: int, path: Path | None = None, stop: int | None = None) -> pv.Result:
        kept_in = None if path is None else Checkpoint(path, every=1e-9)
        rows = DatasetRows(Given(x, y), workers=workers)
        return driven(made(plan, rows, checkpoint=kept_in, model=network(dropout=0.3)), stop)

    whole, uses, sums = go(0), dict[Any, set[Any]](), list[Any]()
    draw, clipped = NoiseStream.words, ClippedGradients.__call__

    def summed(self: Any, *args: Any, **options: Any) -> Any:
        bounded = clipped(self, *args, **options)
        sums.append(tuple(float(value.sum()) for value in bounded.values))
        return bounded

    def drawn(self: NoiseStream, size: int) -> Any:
        uses.setdefault((self.key, self.position), set()).add(sums[-1])
        return draw(self, size)

    state = torch.get_rng_state()
    with (
        folder() as here,
        mock.patch.object(NoiseStream, "words", drawn),
        mock.patch.object(ClippedGradients, "__call__", summed),
    ):
        for _ in range(50):
            with suppress(Stopped):
                pieces = go(1, here / "run", stop=3)
                break
    assert torch.equal(weights(pieces), weights(whole))
    assert all(len(own) == 1 for own in uses.values()), "the same noise on another sum"
    torch.set_rng_state(state)


@check
def check_workers_draw_nothing_from_the_caller() -> None:
    state = torch.get_rng_state()
    assert (
        len(list(ahead(DatasetRows(Given(*small_data()), workers=1), [np.arange(3), np.arange(0)])))
        == 2
    )
    assert torch.equal(state, torch.get_rng_state())


# Worlds of several processes


@dataclass(frozen=True)
class Pair(World):
    """Two processes, of which the other one is played by a second clipper of the same network."""

    size: int = 2
    other: list[Any] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def parts(self, examples: Any, totals: Sequence[Tensor]) -> Iterator[Any]:
        yield examples[::2], totals
        self.calls.append("sum")
        clipper, rows = self.other
        theirs = clipper(sampling.Sample(examples[1::2], None), rows).values  # type: ignore[arg-type]
        for total, other in zip(totals, theirs, strict=False):  # which may have no count
            total.add_(other)

    def noise(self, stream: NoiseStream) -> NoiseStream:
        self.calls.append("noise")
        return Streams.new(9).noise


def both(clip: Any) -> Iterator[World]:
    x, y = small_data()
    net = network()
    yield Pair(
        other=[ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE), TensorRows((x, y))]
    )
    yield World()


@check
def check_parts_of_a_world_add_up() -> None:
    """The sum, its sensitivity and its count are those of one process; noise is drawn from what the
    world says.
    """
    x, y = small_data()
    for clip in completed(
        "clips", [pv.Flat(0.3), pv.clipping.PerLayer(0.3), pv.clipping.Quantile(0.3)]
    ):
        pair, one = (
            ClippedGradients(network(), cross_entropy, clip, Adjacency.ADD_REMOVE, world=world)(
                one_sample(examples=12), TensorRows((x, y))
            )
            for world in both(clip)
        )
        assert pair.sensitivity == one.sensitivity
        for a, b in zip(pair.values, one.values, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    net = network()
    world = Pair(
        other=[
            ClippedGradients(net, cross_entropy, pv.Flat(0.5), Adjacency.ADD_REMOVE),
            TensorRows((x, y)),
        ]
    )
    with mock.patch.object(NoiseStream, "words", lambda self, size: np.full(size, 2**62, np.int64)):
        result = driven(made(model=net, world=world))
        alone = driven(made(model=network()))
    torch.testing.assert_close(weights(result), weights(alone), rtol=1e-9, atol=1e-9)
    assert world.calls.count("noise") == world.calls.count("sum") == number(result.ledger.event)
