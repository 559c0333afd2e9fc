"""Named checks of runs in several processes; planted bugs must make them fail."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.distributed.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import privlearn as pv
from privlearn.core import sampling
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.mechanisms import noise, release
from privlearn.core.processes import World
from privlearn.core.streams import Streams
from privlearn.core.temperature import Temperature
from privlearn.errors import BadInput, BudgetExceeded, ProcessLost
from privlearn.runs import process_group, ranks
from privlearn.runs.ranks import Ranks, Slice
from privlearn.training.epoch_loader import EpochLoader, drawn_batch
from tests.ranks.forks import sharing
from tests.ranks.threads import Threads, outcomes, together
from tests.runs.checks_resuming import Stopped, number
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy
from tests.support.steps import EachStep

ADD_REMOVE, ROWS = Adjacency.ADD_REMOVE, 40


def rows(count: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    made_up = torch.Generator().manual_seed(1)
    return torch.randn(count, 5, generator=made_up), torch.randint(3, (count,), generator=made_up)


def network(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 3))


def blurred(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + torch.randn(x.shape, generator=generator)


def plan(sampler: Any = None, clip: Any = None, **more: Any) -> pv.Plan:
    schedule = pv.schedules.Exponential(k=0.3, start=1.5)
    return pv.Plan(
        sampler or sampling.Poisson(0.3),
        clip=clip or pv.Flat(0.5),
        **{"epochs": 2, "schedule": schedule, **more},
    )


def trained(
    own: pv.Plan | None = None,
    data: Any = None,
    *,
    discrete: bool = False,
    dropout: float = 0.0,
    stop: int | None = None,
    **options: Any,
) -> pv.Result:
    """A run; every process gets initial weights and streams of its own, of which the first one's
    are used.
    """

    def progress(steps: int, of: int) -> None:
        if steps == stop:
            raise Stopped

    rank = options["world"].rank if "world" in options else 0
    torch.manual_seed(rank)
    arguments = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.5), **options}
    return pv.dpsgd(
        own or plan(),
        network(dropout),
        cross_entropy,
        data or rows(),
        streams=Streams.new(rank, discrete=discrete),
        callbacks=EachStep(progress),
        **arguments,
    )


def bits(result: pv.Result) -> bytes:
    return b"".join(own.detach().numpy().tobytes() for own in result.model.state_dict().values())


def require_close(one: pv.Result, other: pv.Result) -> None:
    for own, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)


def on(size: int, *given: Any, **options: Any) -> list[pv.Result]:
    return together(size, lambda world: trained(*given, world=world, **options))


GRID: tuple[Any, Any] = ((), {"discrete": True})
#: Runs that differ in what the processes have to share.
RUNS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "poisson": ((), {"microbatch": 2}),
    "partition and quantile": ((plan(sampling.Partition(3), pv.clipping.Quantile(0.5)),), {}),
    "dropout, copies and an average": (
        (),
        {"dropout": 0.4, "average": 0.5, "augmentation": Augmentation(2, blurred), "microbatch": 3},
    ),
    "releases before and after": (
        (
            plan(
                front=(pv.transforms.PrivatePCA(components=3, noise_multiplier=2.0),),
                temperature=Temperature(noise_multiplier=2.0),
            ),
        ),
        {},
    ),
    "validated on the rows": (
        (
            plan(
                sampling.Partition(3), schedule=pv.schedules.Validation(0.7, noise=20.0), epochs=4
            ).calibrate(rho=3.0),
        ),
        {},
    ),
    "in double precision": ((plan(sampling.Poisson(0.6), epochs=1), rows(1200)), {}),
    "shuffled, in small pieces": ((plan(sampling.Shuffle(7)),), {"microbatch": 2}),
}


@check
def check_the_number_of_processes_changes_no_bit() -> None:
    """On a grid: the same events and weights in a plain process and on 1, 2 and 4 that torchrun
    started, whatever streams, seeds and weights the others bring.

    In floating point the same bits in all processes, and those of another number up to the rounding
    of sums.
    """
    for (name, (given, options)), discrete in itertools.product(RUNS.items(), (True, False)):
        net = (
            network if "releases" not in name else (lambda dropout: nn.Sequential(nn.Linear(3, 3)))
        )
        with mock.patch(f"{__name__}.network", net):
            sizes = (1, 2, 4) if name == "poisson" else (1, 2)
            one, *others = (on(size, *given, **options, discrete=discrete) for size in sizes)
            plain = trained(*given, **options, discrete=discrete)
        assert not discrete or bits(plain) == bits(one[0]), name
        for results in others:
            assert len({bits(result) for result in results}) == 1, name
            assert not discrete or bits(results[0]) == bits(one[0]), name
            require_close(results[0], one[0])
            for result in results:
                assert result.ledger.event == one[0].ledger.event, name
                assert result.facts | {"processes": 1} == one[0].facts, name


@check
def check_several_processes_train_what_one_does() -> None:
    """Up to the rounding of sums the result is that of one process by itself: the noise is added
    once, and whole.
    """
    for given, options in (
        RUNS["poisson"],
        RUNS["partition and quantile"],
        RUNS["in double precision"],
        GRID,
    ):
        alone, (result, _) = trained(*given, **options), on(2, *given, **options)
        require_close(alone, result)
        assert alone.ledger.event == result.ledger.event
        assert {**alone.facts, "processes": 2} == result.facts


@check
def check_processes_without_examples_take_every_step() -> None:
    """With 1 to 4 examples expected in a batch most processes have none: all take and charge all
    steps.
    """
    for expected in (1, 2, 4):
        own = plan(sampling.Poisson(expected / ROWS), epochs=1)
        results = on(4, own, discrete=True)
        steps = own.sampling.steps(ROWS)
        assert [number(result.ledger.event) for result in results] == [steps] * 4
        assert len({bits(result) for result in [*results, *on(1, own, discrete=True)]}) == 1


@check
def check_the_first_ledger_is_charged_before_noise_is_drawn() -> None:
    """In no process noise is drawn that the ledger was not charged for; one that all open is
    charged once.
    """
    with tempfile.TemporaryDirectory() as there:
        path = Path(there) / "book.json"
        Ledger.open(path, Budget(epsilon=100.0, delta=1e-5))
        charged, drawn = [0], [0] * 2
        noised, charge = release._add_noise, Ledger.charge
        place: dict[int, int] = {}

        def counted_charge(self: Ledger, event: Event, adjacency: Adjacency) -> None:
            charge(self, event, adjacency)
            if self.path:
                charged[0] += number(event)

        def work(world: Ranks) -> pv.Result:
            result = trained(world=world, ledger=Ledger.open(path))
            place[world.rank] = number(result.ledger.event)
            return result

        def counted(part: Any, multiplier: float, stream: Any) -> Any:
            rank = ranks.dist.rank()  # type: ignore[attr-defined]
            drawn[rank] += 1
            assert charged[0] >= drawn[rank], "noise was drawn before the first ledger was charged"
            return noised(part, multiplier, stream)

        with (
            mock.patch.object(release, "_add_noise", counted),
            mock.patch.object(Ledger, "charge", counted_charge),
        ):
            together(2, work)
        steps = number(plan().event())
        assert drawn == [steps, steps]
        assert charged == [steps]
        assert number(Ledger.open(path).event) == steps


@check
def check_sums_are_handed_out_with_their_noise() -> None:
    """What a process hands out of a sum is its slice with noise: in every step the noise comes
    first.
    """
    done: list[list[str]] = [[], []]
    add, complete = noise.add_gaussian, Slice.complete

    def adding(*given: Any) -> None:
        done[ranks.dist.rank()].append("noise")  # type: ignore[attr-defined]
        add(*given)

    def completing(self: Slice, values: Sequence[torch.Tensor]) -> None:
        done[ranks.dist.rank()].append("out")  # type: ignore[attr-defined]
        complete(self, values)

    with (
        mock.patch.object(noise, "add_gaussian", adding),
        mock.patch.object(Slice, "complete", completing),
    ):
        on(2)
    assert done == [["noise", "out"] * number(plan().event())] * 2, done


@check
def check_a_refusal_is_one_for_all() -> None:
    """A ledger without room, or that refuses a charge on the way, ends all processes with its
    error; no noise after.
    """
    for result in outcomes(
        2, lambda world: trained(world=world, ledger=Ledger(Budget(epsilon=0.1, delta=1e-5)))
    ):
        assert isinstance(result, BudgetExceeded), result
    drawn: list[int] = []
    noised, charge, paid = release._add_noise, Ledger.charge, [0]

    def refusing(self: Ledger, event: Event, adjacency: Adjacency) -> None:
        if self.budget is not None:
            paid[0] += 1
            if paid[0] == 3:
                raise BudgetExceeded("no more")
        charge(self, event, adjacency)

    def counted(*given: Any) -> Any:
        drawn.append(1)
        return noised(*given)

    with (
        mock.patch.object(release, "_add_noise", counted),
        mock.patch.object(Ledger, "charge", refusing),
    ):
        budget = Budget(epsilon=100.0, delta=1e-5)
        results = outcomes(2, lambda world: trained(world=world, ledger=Ledger(budget)))
    assert [str(result) for result in results] == ["no more"] * 2, results
    assert len(drawn) == 4


@check
def check_processes_that_differ_are_named_and_refused() -> None:
    """Other rows, plans, losses or code: refused in all, with the number of the process; nothing is
    charged.
    """

    books: list[Ledger] = []

    def differing(**changed: Any) -> Callable[[Ranks], Any]:
        def work(world: Ranks) -> Any:
            books.append(Ledger())
            own = {name: value for name, value in changed.items() if world.rank == 1}
            return trained(
                own.pop("plan", None), own.pop("data", None), world=world, ledger=books[-1], **own
            )

        return work

    x, y = rows()
    clips = "plan (clip_norm=0.6, and clip_norm=0.5 in process 0)"
    for what, changed in (
        ("examples (39, and 40 in process 0) and data:", {"data": rows(ROWS - 1)}),
        ("in data:", {"data": (x, y.flip(0))}),
        (clips, {"plan": plan(clip=pv.Flat(0.6))}),
        ("precision (bf16, and float32 in process 0)", {"precision": "bf16"}),
    ):
        books.clear()
        for result in outcomes(2, differing(**changed)):
            assert isinstance(result, BadInput), (what, result)
            assert "process 1" in str(result), result
            assert what in str(result), result
            assert not re.search("[0-9a-f]{16}", str(result)), "a digest is as secret as the rows"
        assert all(book.event.events == () for book in books)
    with mock.patch.object(ranks, "_code", side_effect=["one version", "another"]):
        for result in outcomes(2, differing()):
            assert "code of privlearn" in str(result), result
    wide = nn.Linear(5, 3)
    shapes = outcomes(
        2,
        lambda world: pv.dpsgd(
            plan(), wide if world.rank else network(), cross_entropy, rows(), world=world
        ),
    )
    assert all(isinstance(result, ProcessLost) and "shapes" in str(result) for result in shapes), (
        shapes
    )


def scaled(factor: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda out, y: factor * cross_entropy(out, y)


@check
def check_losses_that_differ_are_refused() -> None:
    """By their code and by the numbers that they captured, however they are called; in a loop, that
    of a later step, too. What is a process's own makes no loss another.
    """

    class Objective:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return cross_entropy(out, y)

    smooth = [nn.CrossEntropyLoss(reduction="none", label_smoothing=s) for s in (0.0, 0.1)]
    others: list[Sequence[Any]] = [
        (scaled(1.0), scaled(2.0)),
        (lambda out, y: cross_entropy(out, y), lambda out, y: -cross_entropy(out, y)),
        (cross_entropy, scaled(1.0)),
        (functools.partial(cross_entropy), functools.partial(scaled(1.0))),
        smooth,
    ]
    for losses in others:
        ledgers = [Ledger(), Ledger()]
        for result in outcomes(2, lambda world: run_of(losses[world.rank], world, ledgers)):  # noqa: B023
            assert isinstance(result, ProcessLost), result
            assert "the loss function" in str(result), result
        assert all(ledger.event.events == () for ledger in ledgers)
    alike: list[Callable[[int], Any]] = [
        lambda rank: scaled(2.0),
        lambda rank: Objective(rank).loss,
        lambda rank: smooth[0],
    ]
    for loss in alike:
        ledgers = [Ledger(), Ledger()]
        for result in outcomes(2, lambda world: run_of(loss(world.rank), world, ledgers)):  # noqa: B023
            assert isinstance(result, pv.Result), result


def run_of(loss: Any, world: Ranks, ledgers: list[Ledger]) -> pv.Result:
    return pv.dpsgd(
        plan(epochs=1), network(), loss, rows(), world=world, ledger=ledgers[world.rank]
    )


@check
def check_processes_that_fall_apart_end() -> None:
    """One that draws another sample, has other weights, leaves early or fails by itself: all end,
    none trains on.
    """

    def work(spoil: Callable[[pv.Run, int], Any]) -> Callable[[Ranks], Any]:
        def train(world: Ranks) -> Any:
            run = pv.Run(
                plan(epochs=8),
                network(),
                cross_entropy,
                rows(),
                streams=Streams.new(0),
                world=world,
            )
            with run:
                for epoch in run:
                    for batch in epoch:
                        run.step(batch)
                        if world.rank == 1 and batch.number in at and spoil(run, batch.number):
                            return run.result()
                return run.result()

        return train

    at = (4, 19)

    def resample(run: pv.Run, number: int) -> None:
        run.session.streams.sampling.random(1)

    def move(run: pv.Run, number: int) -> None:
        next(run.task.network.parameters()).data += 1e-6

    def fail(run: pv.Run, number: int) -> None:
        raise Stopped

    for spoil, said in (
        (resample, "batch"),
        (move, "parameters"),
        (lambda *_: True, "steps"),
        (lambda run, number: number == 19, "steps"),  # weights are compared before the next one
        (fail, "ended"),
    ):
        threads = Threads(2)
        first, second = threads.run(work(spoil))
        assert 1 in threads.left or spoil is not fail, threads.left
        assert isinstance(first, ProcessLost), (said, first)
        assert isinstance(second, Stopped if spoil is fail else ProcessLost), (said, second)
        assert said in str(first) or said in str(second), (said, first, second)


@check
def check_hooks_that_are_put_in_on_the_way_are_refused() -> None:
    """With several processes the operations are not looked at again, so that such a hook would be
    in no check.
    """

    def train(world: Ranks) -> Any:
        run = pv.Run(
            plan(epochs=3), network(), cross_entropy, rows(), streams=Streams.new(0), world=world
        )
        with run:
            for epoch in run:
                for batch in epoch:
                    run.step(batch)
                    if run.session.steps_done == 3:
                        next(run.task.network.children()).register_forward_hook(
                            lambda module, given, out: 2 * out
                        )
            return run.result()

    for result in outcomes(2, train):
        assert isinstance(result, BadInput), result
        assert "after the run began: with several processes" in str(result), result


@check
def check_what_the_first_process_did_is_known_in_all() -> None:
    """Nothing, a value or an error, with and without others; a process that is elsewhere takes no
    part in it.
    """

    def failing() -> None:
        raise BadInput("no")

    for action, expected in ((lambda: None, None), (lambda: 0, 0), (lambda: {"a": 1}, {"a": 1})):
        assert outcomes(2, lambda world: world.once(action, "here")) == [expected] * 2  # noqa: B023
        first, second = outcomes(2, lambda world: world.once(action, f"place {world.rank}"))  # noqa: B023
        assert first == expected
        assert isinstance(second, ProcessLost), second
        assert "place 1" in str(second), second
    for result in outcomes(2, lambda world: world.once(failing, "here")):
        assert isinstance(result, BadInput), result
        assert "no" in str(result), result


@check
def check_processes_end_with_the_same_weights() -> None:
    """Weights that something else changed in one process end all of them, at the latest when the
    run ends.
    """

    def work(world: Ranks) -> pv.Result:
        with pv.Run(
            plan(), network(), cross_entropy, rows(), streams=Streams.new(0), world=world
        ) as run:
            for epoch in run:
                for batch in epoch:
                    run.step(batch)
            if world.rank == 1:
                next(run.task.network.parameters()).data += 1e-6
            return run.result()

    for result in outcomes(2, work):
        assert isinstance(result, ProcessLost), result
        assert "parameters" in str(result), result


@check
def check_a_run_goes_on_with_any_number_of_processes() -> None:
    """Interrupted on 2 processes, continued on 1, 2 or 4: the same bits, and every release charged
    once.

    In floating point the same bits on 2 processes.
    """
    own = plan(front=(pv.transforms.PrivatePCA(components=5, noise_multiplier=2.0),))
    write = pv.runs.Checkpoint.write

    def by_the_first(self: pv.runs.Checkpoint, saved: Any) -> None:
        assert ranks.dist.rank() == 0  # type: ignore[attr-defined]
        write(self, saved)

    for size, discrete in ((1, True), (2, True), (4, True), (2, False)):
        whole, *_ = on(2, own, discrete=discrete)
        with (
            tempfile.TemporaryDirectory() as there,
            mock.patch.object(pv.runs.Checkpoint, "write", by_the_first),
        ):
            file = pv.runs.Checkpoint(Path(there) / "run", every=1e-9)
            given: Any = {"checkpoint": file, "discrete": discrete}
            stopped = outcomes(
                2, lambda world, given=given: trained(own, world=world, stop=5, **given)
            )
            # the first process's callbacks are called: all end
            assert isinstance(stopped[0], Stopped), stopped
            assert "process 0 failed: Stopped" in str(stopped[1]), stopped
            results = on(size, own, **given)
        assert {bits(result) for result in results} == {bits(whole)}, size
        assert results[0].ledger.event == whole.ledger.event


@check
def check_one_process_publishes() -> None:
    """One folder, by the first process, which the others wait for; its errors are all
    processes'.
    """
    with tempfile.TemporaryDirectory() as there:
        out = Path(there) / "model"

        def work(world: Ranks) -> Any:
            return pv.publish(trained(world=world), out, delta=1e-5)

        assert together(2, work) == [out, out]
        assert pv.verify(out).ok
        assert all(isinstance(result, BadInput) for result in outcomes(2, work))


@check
def check_noise_does_not_hide_behind_the_number_of_processes() -> None:
    """Without gradients a step is noise alone: of the plan's standard deviation, the same on 1 and
    on 4 processes.
    """
    still = plan(
        sampling.Poisson(0.3), epochs=12, schedule=pv.schedules.Constant(2.0), examples=ROWS
    )
    moved = []
    for size in (1, 4):

        def work(world: Ranks) -> torch.Tensor:
            net = nn.Linear(5, 3)
            nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
            result = pv.dpsgd(
                still,
                net,
                lambda out, y: 0.0 * out.sum(1),
                rows(),
                streams=Streams.new(4),
                world=world,
                optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
            )
            return torch.cat([own.detach().flatten() for own in result.model.parameters()])

        moved.append(together(size, work)[-1])
    assert torch.equal(*moved)
    steps, std = 12 * still.sampling.steps(ROWS), 2.0 * 0.5 / (0.3 * ROWS)
    deviation = float(moved[0].square().mean().sqrt()) / (std * np.sqrt(steps))
    assert 0.5 < deviation < 1.6, deviation


@check
def check_sums_have_the_same_bits() -> None:
    """Sums over shards do not depend on how many processes share them, to the last bit; no product
    depends on it.
    """
    made_up = np.random.default_rng(0).standard_normal((100, 50)) * np.logspace(-6, 6, 100)[:, None]

    def work(world: World, alone: bool) -> bytes:
        totals = [torch.zeros(30, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)]
        chunks = np.array_split(np.arange(100), 15)
        for chunk, into in world.exact().deal(chunks, totals, b"", alone=alone):
            for values in made_up[chunk].sum(0, keepdims=True) if alone else made_up[chunk]:
                for total, own in zip(into, torch.from_numpy(values).split([30, 20]), strict=True):
                    total += own
        if share := world.share(totals, [torch.float64] * 2):
            share.complete(totals)
        return b"".join(total.numpy().tobytes() for total in totals)

    for alone in (True, False):
        sums = [together(size, partial(work, alone=alone)) for size in (1, 2, 4, 8)]
        assert {own for every in sums for own in every} == {work(World(), alone)}
        np.testing.assert_allclose(np.frombuffer(sums[0][0]), made_up.sum(0), rtol=0, atol=1e-7)
    for world in (World().exact(), Ranks(0, 1).exact(), Ranks(0, 2)):
        clipper = ClippedGradients(
            network(), cross_entropy, pv.Flat(1.0), ADD_REMOVE, fast_kernels=True, world=world
        )
        products: Any = clipper._kernels
        assert [products._count_rows(size) for size in (100, 101, 100)] == [96, 96, 96]


@check
def check_chunks_that_differ_end_all() -> None:
    """On a grid, processes that would compute other numbers of examples at once: an example might
    be added twice. All end, and no noise is drawn.
    """

    def work(world: Ranks) -> None:
        run = pv.Run(
            plan(),
            network(),
            cross_entropy,
            rows(),
            streams=Streams.new(0, discrete=True),
            world=world,
            microbatch=2,
        )
        with run:
            for epoch in run:
                for batch in epoch:
                    run.task.gradients._chunk = 2 + world.rank
                    run.step(batch)

    with mock.patch.object(release, "_add_noise") as noised:
        for result in outcomes(2, work):
            assert isinstance(result, ProcessLost), result
            assert "the batch" in str(result), result
    assert not noised.called


#: What processes tell each other in a step: these ceilings may only fall.
CALLS, BYTES_A_NUMBER, BYTES_BESIDE = 3, {False: 6, True: 10}, 80


@check
def check_a_step_has_few_collectives() -> None:
    """Two processes hand each other the sums with a digest of the batch, the charge, and the noisy
    slices: each number once, and half of the numbers again.
    """
    heard: list[tuple[str, int]] = []
    exchange = Threads._exchange

    def listened(self: Threads, name: str, value: Any) -> list[Any]:
        if self._own.rank == 0 and during[0]:
            heard.append((name, value.nbytes if isinstance(value, torch.Tensor) else 0))
        return exchange(self, name, value)

    def work(world: Ranks, *, discrete: bool) -> int:
        run = pv.Run(
            plan(epochs=1),
            network(),
            cross_entropy,
            rows(),
            streams=Streams.new(0, discrete=discrete),
            world=world,
            microbatch=6,
        )
        with run:
            for epoch in run:
                for batch in epoch:
                    during[0] = run.steps_done > 0  # in the first one weights are compared
                    run.step(batch)
                    during[0] = False
        return run.steps_done - 1

    for discrete in (False, True):
        heard.clear()
        during = [False]
        with mock.patch.object(Threads, "_exchange", listened):
            steps, _ = together(2, partial(work, discrete=discrete))
        assert len(heard) <= CALLS * steps, heard
        numbers = sum(weight.numel() for weight in network().parameters())
        most = BYTES_A_NUMBER[discrete] * numbers + BYTES_BESIDE
        assert sum(nbytes for _, nbytes in heard) <= most * steps, (heard, numbers)


@check
def check_parts_of_sums_get_the_noise_of_the_whole() -> None:
    """Each process makes the noise of its slice: put together it is the whole's, and all streams go
    on in one place.
    """
    shapes = [(300, 700), (5,), (0, 3), (131073,), (40, 2), (1,)]

    def add(
        slices: Sequence[Slice | None], discrete: bool, dtype: torch.dtype
    ) -> tuple[list[torch.Tensor], set[int]]:
        sums, ends = [torch.zeros(shape, dtype=dtype) for shape in shapes], set()
        for own in slices:
            stream, parts, places = (
                Streams.new(2, discrete=discrete).noise,
                [*map(torch.zeros_like, sums)],
                None,
            )
            if own:
                widths = own.widths([total.numel() for total in sums])
                parts, places = replace(
                    own, sums=tuple(torch.zeros(n, dtype=dtype) for n in widths)
                ).own(sums)
            if discrete:
                noise.add_on_grid(parts, 1.5, 0.1, stream, places)
            else:
                noise.add_gaussian(parts, 1.5, stream, places)
            for total, part, (begin, _) in zip(
                sums, parts, places or [(0, 0)] * len(sums), strict=True
            ):
                total.view(-1)[begin : begin + part.numel()] += part.view(-1)
            ends.add(stream.position)
        return sums, ends

    for discrete, dtype in ((False, torch.float32), (False, torch.float64), (True, torch.float32)):
        whole, (end,) = add([None], discrete, dtype)
        for size in (2, 4):
            width = -(-sum(value.numel() for value in whole) // size)
            sums, ends = add(
                [Slice(rank * width, width, size) for rank in range(size)], discrete, dtype
            )
            assert all(map(torch.equal, sums, whole)), (discrete, dtype, size)
            assert ends == {end}, (discrete, dtype, size)


@check
def check_other_trainers_take_one_process() -> None:
    """Estimators are refused by name, before anything is spent; and scripts for other engines,
    unless a launcher says who the processes are.
    """
    x, y = (own.numpy() for own in rows())
    book, net = Ledger(), network()
    loader = DataLoader(TensorDataset(*rows()), batch_size=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with mock.patch.dict("os.environ", {"WORLD_SIZE": "2"}):
        estimator = pv.sklearn.DPRidge(
            epsilon=1.0, bounds=(-9.0, 9.0), target_bounds=(0.0, 2.0), ledger=book
        )
        assert "a fit of an estimator" in str(must_raise(BadInput, lambda: estimator.fit(x, y)))
        engine = pv.opacus.PrivacyEngine()
        made = {
            "module": net,
            "optimizer": optimizer,
            "data_loader": loader,
            "noise_multiplier": 1.0,
        }
        error = must_raise(BadInput, lambda: engine.make_private(**made, max_grad_norm=1.0))
        assert "training takes one process" in str(error)
        boosting = pv.boosting.BoostingPlan(
            (pv.boosting.Interval(0.0, 1.0),), pv.boosting.Labels(2)
        )
        error = must_raise(BadInput, lambda: pv.boosting.boost(boosting, (x, y), ledger=book))
        assert "boosting takes one process" in str(error)
    assert book.event.events == ()


@check
def check_processes_of_another_loop_are_not_waited_for() -> None:
    """A trainer's loop that fails in one process ends the others."""

    def work(world: Ranks) -> None:
        private = pv.Run(
            plan(), network(), cross_entropy, rows(), streams=Streams.new(0), world=world
        )
        private.begin()
        try:
            for drawn in EpochLoader(private):
                private.step(drawn_batch(drawn))
                if world.rank == 1:
                    raise Stopped
        except Stopped as error:
            private.close(error)
            raise

    threads = Threads(2)
    first, second = threads.run(work)
    assert threads.left == {1}
    assert isinstance(first, ProcessLost), first
    assert isinstance(second, Stopped), second


@check
def check_a_loader_shared_out_among_others_is_refused() -> None:
    """A DistributedSampler of processes that are not here: each would train on all rows by
    itself.
    """
    data, net = TensorDataset(*rows()), network()
    for processes in (2, 1):
        loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, processes, 0))

        def made(loader: Any = loader) -> Any:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            return pv.make_private(
                net, optimizer, loader, epochs=1, epsilon=1.0, delta=1e-3, max_grad_norm=1.0
            )

        if processes == 1:
            assert made().steps_per_epoch == ROWS / 8
        else:
            assert "2 processes" in str(must_raise(BadInput, made))


@check
def check_threads_end_with_the_group() -> None:
    """None is left that could ask for an interpreter that has ended, also where PyTorch's functions
    hold the group.
    """

    def work() -> list[str]:
        importlib.reload(functional)  # as if it were imported now: its defaults are the group
        ranks.launched().require_alike("something", b"")
        process_group.leave()
        names = [own.read_text().strip() for own in Path("/proc/self/task").glob("*/comm")]
        return [name for name in names if "gloo" in name]

    assert sharing(2, work) == [[], []]


@check
def check_shards_are_shared_out_equally() -> None:
    """3 processes are refused; every example lies in one process, in the same shard on any number
    of them, or in parts of one size.
    """
    for size in (0, 3, 6, 12):
        assert "processes" in str(must_raise(BadInput, lambda size=size: ranks._require_size(size)))  # type: ignore[misc]
    drawn = np.flatnonzero(np.random.default_rng(0).random(100) < 0.4)
    for size in (1, 2, 4, 8, 16):
        own = [Ranks(rank, size).exact().own(drawn) for rank in range(size)]
        assert sorted(np.concatenate(own)) == list(drawn)
        parts = [Ranks(rank, size).own(drawn) for rank in range(size)]
        assert np.array_equal(np.concatenate(parts), drawn)
        assert np.ptp([len(part) for part in parts]) <= 1
