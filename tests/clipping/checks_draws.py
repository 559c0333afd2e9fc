"""Named checks of random numbers that are each example's own, and of state; mutations must make
them fail.
"""

from __future__ import annotations

import copy
import math
import os
import random as python_random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat, PerLayer
from privlearn.core.clipping.evaluation import RightAnswers
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.randomness import RowRandom
from privlearn.core.rows import digests
from privlearn.errors import NotPerExample
from privlearn.publishing import publish, verify
from tests.clipping.checks import Net, unruled
from tests.runs.checks_resuming import folder
from tests.support.checks import check, compared_or_not, must_raise
from tests.support.nets import cross_entropy, flat_norm, one_sample, small_data

C, MARKED = 0.05, 0.2  # no made-up row holds the second
ROWS = 9


def rows_of(shape: tuple[int, ...] = (5,), rows: int = ROWS) -> tuple[Tensor, Tensor]:
    made_up = torch.Generator().manual_seed(0)
    return torch.randn(rows, *shape, generator=made_up, dtype=torch.float64), torch.arange(rows) % 3


def dropping(*more: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Dropout(0.5), *more, nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


def permuting(n: Any, x: Tensor) -> Tensor:
    """Drops the features that come first in a random order: PyTorch draws that for the whole
    batch.
    """
    return n.a(x * (torch.randperm(x.shape[1]) > 1))


NETS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "layers": ("layers", dropping),
    "vmap": (
        "vmap",
        lambda: Net(
            lambda n, x: unruled(n, F.dropout(x, 0.5)),
            a=nn.Linear(5, 3),
            scale=nn.Parameter(torch.ones(3)),
        ),
    ),
    "the loop": ("loop", lambda: Net(permuting, a=nn.Linear(5, 3))),
    "noise": ("layers", lambda: Net(lambda n, x: n.a(x + torch.randn_like(x)), a=nn.Linear(5, 3))),
    "random leaks": ("layers", lambda: nn.Sequential(nn.Linear(5, 8), nn.RReLU(), nn.Linear(8, 3))),
}


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


class Known:
    """A stream whose every key is known: two batches get the same."""

    def bytes(self, size: int) -> bytes:
        return bytes(range(size))


def engine(net: nn.Module, loss: Any = cross_entropy, **options: Any) -> ClippedGradients:
    options = {"view_seeds": Known(), **options}
    return ClippedGradients(
        net, loss, options.pop("clip", Flat(C)), Adjacency.ADD_REMOVE, **options
    )


def summed(clipper: ClippedGradients, x: Tensor, y: Tensor) -> Any:
    """The sum of a full batch."""
    return clipper(one_sample(examples=len(x)), x, y)


def distance(one: Any, other: Any) -> float:
    return flat_norm([a - b for a, b in zip(one.values, other.values, strict=True)])


def require_neighbours_close(clipper: ClippedGradients, x: Tensor, y: Tensor) -> None:
    """Without a row, or with it emptied, the sum moves by at most the sensitivity: no other row's
    masks change.
    """
    whole = summed(clipper, x, y)
    for row, emptied in ((0, False), (len(x) // 2, False), (1, True)):
        rest = [place for place in range(len(x)) if place != row]
        empty = x.clone()
        empty[row] = math.nan
        moved = distance(
            whole, summed(clipper, empty, y) if emptied else summed(clipper, x[rest], y[rest])
        )
        assert 0.2 * C < moved <= whole.sensitivity * (1 + 1e-9), (row, moved / whole.sensitivity)


VIEWS = {
    "moves": pv.clipping.Augmentation(2, "flip,shift:1"),
    "a function": pv.clipping.Augmentation(2, lambda x, g: x + torch.rand(x.shape, generator=g)),
    "one by one": pv.clipping.Augmentation(2, lambda x, g: x * torch.rand((), generator=g)),
}


@check
def check_masks_of_other_rows_do_not_move() -> None:
    """Dropout and copies, in every way to compute and to clip, with every seed known."""
    x, y = rows_of()
    for name, (way, make) in NETS.items():
        clipper = engine(made(make), microbatch=4)
        require_neighbours_close(clipper, x, y)
        assert clipper.way == way, name
    require_neighbours_close(engine(made(dropping), clip=PerLayer(C)), x, y)
    images, _ = rows_of((3, 3, 5))
    for augmentation in VIEWS.values():
        net = made(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(45, 3)))
        require_neighbours_close(engine(net, augmentation=augmentation), images, y)


@check
def check_masks_of_other_persons_do_not_move() -> None:
    """Where each example is several rows, in copies."""
    images, y = rows_of((3, 3, 5))
    net = made(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(45, 3)))
    table = torch.tensor([[0, 1], [2, 2], [3, 4], [5, 6], [8, 7]])
    for augmentation in (None, *VIEWS.values()):
        sums = []
        for persons in (table, table[[0, 1, 3, 4]]):
            clipper = engine(net, rows=persons, augmentation=augmentation)
            sums.append(clipper(one_sample(examples=len(persons)), images, y))
        assert 0.2 * C < distance(*sums) <= sums[0].sensitivity * (1 + 1e-9)


def on_marked(do: Callable[[Any, Tensor, Tensor], Tensor]) -> nn.Module:
    return made(lambda: Net(lambda n, x: do(n, x, (x == MARKED).any(1)), a=nn.Linear(5, 3)))


def goes_another_way(n: Any, x: Tensor, marked: Tensor) -> Tensor:
    x = F.dropout(x, 0.5)
    return n.a(x.flip(1).flip(1) if bool(marked.any()) else x)


def draws_at_all(n: Any, x: Tensor, marked: Tensor) -> Tensor:
    return n.a(F.dropout(x, 0.5, training=bool(marked.any())))


@check
@compared_or_not
def check_rows_keep_their_masks_when_one_makes_the_model_go_another_way() -> None:
    """It calls other operations, or draws other numbers, on some data only: all is computed again,
    and masks stay.
    """
    x, y = rows_of()
    marked = x.clone()
    marked[4, 0] = MARKED
    rest = [place for place in range(ROWS) if place != 4]
    for do in (goes_another_way, draws_at_all):
        clipper, plain = engine(on_marked(do)), engine(on_marked(do))
        one_by_one = ClippedGradients._compute_one_by_one
        with mock.patch.object(
            ClippedGradients, "_compute_one_by_one", autospec=True, side_effect=one_by_one
        ) as computed:
            other = summed(plain, marked[rest], y[rest])
            assert not computed.called, do
            whole = summed(clipper, marked, y)
            assert computed.called, do
        assert 0.2 * C < distance(whole, other) <= C * (1 + 1e-9), do


@check
def check_masks_are_fresh_and_fair() -> None:
    """Of each row, call and sample other numbers, and of equal rows the same; copies don't draw
    what the model does.
    """
    seen: list[Tensor] = []

    def forward(n: Any, x: Tensor) -> Tensor:
        seen.extend(F.dropout(torch.ones(len(x), 64, dtype=x.dtype), 0.3) for _ in range(2))
        return n.a(x) * 1.0

    def copies(x: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(
            1.0 * torch.empty(len(x), 64, dtype=x.dtype).bernoulli_(0.7, generator=generator)
        )
        return x * 1.0

    x, y = rows_of(rows=200)
    x[1] = x[0]
    y[1] = y[0]
    net = made(lambda: Net(forward, a=nn.Linear(5, 3)))
    seeds = np.random.default_rng(7)
    clipper = engine(
        net, augmentation=pv.clipping.Augmentation(1, copies), microbatch=200, view_seeds=seeds
    )
    summed(clipper, x, y)  # what is new is checked in passes of its own, with the same masks
    seen.clear()
    for _ in range(2):
        summed(clipper, x, y)
    masks = [mask > 0 for mask in seen if len(mask) == 200][-6:]
    assert len(masks) == 6
    patterns = [tuple(row.tolist()) for mask in masks for row in mask]
    assert len(set(patterns)) == 6 * 199, "masks were drawn twice"
    assert all(torch.equal(mask[0], mask[1]) for mask in masks)
    for mask in masks:
        kept = int(mask[1:].sum())
        assert stats.binomtest(kept, mask[1:].numel(), 0.7).pvalue > 1e-4
        assert stats.chisquare(mask[1:].sum(0).numpy()).pvalue > 1e-4


@check
def check_numbers_have_their_distributions() -> None:
    random = RowRandom()
    random.begin(np.random.default_rng(3).bytes(16))
    random.take(np.arange(2000, dtype=np.uint64))
    x = torch.ones(2000, 20, dtype=torch.float64)
    with random.together(purpose=1):
        draws = {
            "uniform": (torch.rand(2000, 20), "uniform"),
            "of a generator": (torch.rand((2000, 20), generator=torch.Generator()), "uniform"),
            "between": ((torch.empty(2000, 20).uniform_(-3, 5) + 3) / 8, "uniform"),
            "leaks": ((F.rrelu(-x, 0.2, 0.6, True) + 0.6) / 0.4, "uniform"),
            "normal": (torch.randn_like(x), "norm"),
            "moved": ((torch.empty(2000, 20).normal_(2, 3) - 2) / 3, "norm"),
            "exponential": (torch.empty(2000, 20).exponential_(2.0) * 2, "expon"),
        }
        shares = (
            torch.bernoulli(0.3 * x),
            torch.empty(2000, 20).bernoulli_(0.3),
            F.dropout(x, 0.7) * 0.3,
        )
        assert torch.equal(F.rrelu(x, 0.2, 0.6, True), x)
    for name, (values, law) in draws.items():
        assert stats.kstest(values.flatten().double().numpy(), law).pvalue > 1e-3, name
    for share in shares:
        assert stats.binomtest(int(share.sum().round()), 40_000, 0.3).pvalue > 1e-3
    with random.alone(5, purpose=1):
        assert torch.equal(torch.rand(1, 20), draws["uniform"][0][5:6])


class Again(torch.autograd.Function):
    """A body whose activations are recomputed, from the state PyTorch's generator was in, as by
    checkpointing.
    """

    @staticmethod
    def forward(
        ctx: Any, body: nn.Module, x: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.body, ctx.parameters, ctx.state = body, parameters, torch.get_rng_state()
        ctx.save_for_backward(x)
        return body(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, state = ctx.saved_tensors[0].detach().requires_grad_(), torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            out = ctx.body(x)
        torch.set_rng_state(state)
        return None, *torch.autograd.grad(out, (x, *ctx.parameters), g)


@check
def check_what_is_computed_again_in_the_backward_pass_draws_the_same() -> None:
    """Activations that are not kept but computed again."""
    x, y = rows_of()
    body = made(lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Tanh()))
    head = made(lambda: nn.Linear(8, 3))
    sums = []
    for again in (False, True):
        run = lambda n, x, again=again: n.b(  # noqa: E731
            Again.apply(n.a, x, *n.a.parameters()) if again else n.a(x)
        )
        clipper = engine(Net(run, a=body, b=head))
        sums.append(summed(clipper, x, y))
    assert clipper.way == "loop"
    assert distance(*sums) < 1e-12


@check
def check_rows_have_their_digests_as_they_were_fetched() -> None:
    """A PCA in front is a matrix product, whose last digits move with the other rows: what a row
    draws must not.
    """
    x, y = small_data(11)
    plan = pv.Plan(
        sampling.Poisson(0.5),
        epochs=2,
        schedule=pv.schedules.Constant(1.0),
        front=(pv.transforms.PrivatePCA(3, 4.0),),
        examples=11,
    )
    taken: list[int] = []

    def take(self: RowRandom, examples: Any) -> None:
        taken.extend(examples.tolist())
        original(self, examples)

    original = RowRandom.take
    with mock.patch.object(RowRandom, "take", take):
        net = made(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)))
        pv.dpsgd(plan, net, cross_entropy, (x, y), streams=streams_module.Streams.new(1))
    made_up = {*range(4)}
    assert {value for value in taken if value not in made_up} <= set(digests(x, y).tolist())
    assert len(set(taken)) > 4 + 5


@check
def check_paid_accuracies_do_not_follow_others_random_numbers() -> None:
    """Of a model that draws random numbers in evaluation mode, too."""
    net = made(lambda: Net(lambda n, x: n.a(F.dropout(x, 0.5)), a=nn.Linear(5, 3)))
    x, y = rows_of(rows=40)
    (sample,) = sampling.FullBatch().draw(40)
    (fewer,) = sampling.FullBatch().draw(39)
    answers = RightAnswers(net)
    for seed in range(3):
        torch.manual_seed(seed)
        one = answers.count(sample, x, y, Adjacency.ADD_REMOVE)
        for rest in (slice(1, None), slice(None, -1)):
            assert (
                distance(one, answers.count(fewer, x[rest], y[rest], Adjacency.ADD_REMOVE)) <= 0.5
            )


# Foreign randomness, and state


def mixed(rows: Tensor, share: float) -> Tensor:
    return share * rows + (1 - share) * rows.roll(1, 0)


class Keeps:
    """A transform that remembers the batch before."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        out, self.last = rows + self.last, float(rows.mean())
        return out


class Largest:
    """A transform, or a loss, that divides by the largest number that it has seen."""

    def __init__(self) -> None:
        self.top = 0.0

    def __call__(self, rows: Tensor, _: Any) -> Tensor:
        self.top = max(self.top, float(rows.detach().abs().max()))
        return rows / self.top


OWN = np.random.default_rng(0)
FOREIGN: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "mixup by numpy": lambda x, g: mixed(x, np.random.beta(0.5, 0.5)),  # noqa: NPY002
    "mixup by random": lambda x, g: mixed(x, python_random.random()),
    "mixup by torch": lambda x, g: mixed(x, float(torch.rand(()))),
    "mixup by the generator": lambda x, g: mixed(x, float(torch.rand((), generator=g))),
    "mixup half of the time": lambda x, g: mixed(x, 0.5) if np.random.rand() < 0.6 else x,  # noqa: NPY002
    "permuted": lambda x, g: 0.5 * x + 0.5 * x[torch.randperm(len(x))],
    "shuffled by numpy": lambda x, g: 0.5 * x + 0.5 * x[np.random.permutation(len(x))],  # noqa: NPY002
    "a generator of its own": lambda x, g: mixed(x, OWN.random()),
    "noise of its own": lambda x, g: x + OWN.random(),
    "state": Keeps(),
    "the largest number so far": Largest(),
}
ALLOWED: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "scaled by numpy": lambda x, g: x * np.random.rand(),  # noqa: NPY002
    "noise by numpy": lambda x, g: x + torch.from_numpy(np.random.randn(*x.shape)),  # noqa: NPY002
    "scaled by random": lambda x, g: x * python_random.random(),
    "seeded by the generator": lambda x, g: x + np.random.default_rng(g.initial_seed()).random(),
    "whole numbers": lambda x, g: x + torch.randint(9, (len(x), 1), generator=g),
}


@check
def check_copies_mix_no_rows_by_whatever_randomness() -> None:
    """A transform that mixes rows by numbers from anywhere is refused, and so is one that keeps
    something.
    """
    x, y = rows_of()
    net = made(lambda: nn.Linear(5, 3))
    for name, kept in FOREIGN.items():
        transform = copy.deepcopy(kept)  # what it remembers of an earlier batch is not there
        legacy, plain = np.random.get_state()[1].tolist(), python_random.getstate()  # noqa: NPY002
        must_raise(
            NotPerExample,
            lambda transform=transform: engine(
                net, augmentation=pv.clipping.Augmentation(1, transform)
            ).prepare(x, y),
        )
        assert (np.random.get_state()[1].tolist(), python_random.getstate()) == (legacy, plain), (  # noqa: NPY002
            name
        )
    for transform in ALLOWED.values():
        require_neighbours_close(
            engine(net, augmentation=pv.clipping.Augmentation(1, transform)), x, y
        )


class Moving(nn.Module):
    """A loss that is scaled by a moving average of itself, kept as `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.plain: Any = 1.0
        self.register_buffer("kept", torch.ones((), dtype=torch.float64))

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(output, y)
        out = losses * self.get_buffer("kept").clone() * self.plain
        with torch.no_grad():
            if self.how == "in place":
                self.get_buffer("kept").mul_(0.5).add_(0.5 * losses.detach().mean())
            elif self.how == "replaced":
                self.kept = 0.5 * self.get_buffer("kept") + 0.5 * losses.detach().mean()
            elif self.how == "an attribute":
                self.plain = 0.5 * self.plain + 0.5 * losses.detach().mean()
            else:
                self.plain = 0.5 * self.plain + 0.5 * float(losses.detach().mean())
        return out

    def method(self, output: Tensor, y: Tensor) -> Tensor:
        return self(output, y)  # type: ignore[no-any-return]


def in_a_closure() -> Any:
    kept = [1.0]

    def loss(output: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(output, y)
        kept.append(float(losses.detach().mean()))
        return losses * kept[-2]

    return loss


@check
def check_losses_carry_nothing_from_batch_to_batch() -> None:
    """What a loss writes into its buffers and attributes is put back after each computation;
    elsewhere it is refused.

    A loss that reads a number of its batch is computed one example after another.
    """
    x, y = rows_of()
    far = x.clone()
    far[3] = 50.0
    for how in ("in place", "replaced", "a method", "an attribute", "a number"):
        for way, net in (("layers", nn.Linear(5, 3)), ("loop", Net(permuting, a=nn.Linear(5, 3)))):
            loss: Any = Moving("in place").method if how == "a method" else Moving(how)
            clipper = engine(made(lambda net=net: net), loss, microbatch=4)
            seconds = []
            for first in (x, far):
                summed(clipper, first, y)
                seconds.append(summed(clipper, x, y))
            assert clipper.way == ("loop" if how == "a number" else way)
            assert distance(*seconds) == 0
            # One by one, a row would follow the row before it in the same batch.
            assert distance(seconds[0], summed(clipper, x[1:], y[1:])) <= C * (1 + 1e-9)
    largest = Largest()
    losses = {
        "a closure": in_a_closure(),
        "the largest number so far": lambda output, y: cross_entropy(largest(output, y), y),
        "numpy": lambda output, y: cross_entropy(output, y) * np.random.rand(),  # noqa: NPY002
        "random": lambda output, y: cross_entropy(output, y) * python_random.random(),
        "a permutation": lambda output, y: cross_entropy(output, y[torch.randperm(len(y))]),
        "its own generator": lambda output, y: cross_entropy(output, y) * OWN.random(),
    }
    for name, refused in losses.items():
        error = must_raise(
            NotPerExample,
            lambda loss=refused: engine(made(lambda: nn.Linear(5, 3)), loss).prepare(x, y),
        )
        assert name != "numpy" or "numpy" in str(error)

    def some_twice(output: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(output, y) * (1 + (torch.rand(len(y)) < 0.5))

    require_neighbours_close(engine(made(lambda: nn.Linear(5, 3)), some_twice), x, y)


# Streams that somebody knows, and streams in other processes


@check
def check_known_streams_are_told() -> None:
    """A run is seeded unless every stream of it has a key from the operating system; and `verify`
    warns.
    """
    secret, known = streams_module.Streams.new(), streams_module.Streams.new(0)
    assert not secret.seeded
    assert not replace(secret).seeded
    assert not streams_module.Streams.at(secret.state()).seeded
    assert streams_module.Streams.at(known.state()).seeded
    for name in ("sampling", "noise", "initialisation", "views"):
        assert replace(secret, **{name: getattr(known, name)}).seeded, name
    assert replace(secret, noise=streams_module.NoiseStream(bytes(16))).seeded
    x, y = small_data()
    plan = pv.Plan(
        sampling.Poisson(0.5), epochs=1, schedule=pv.schedules.Constant(3.0), examples=12
    )
    with folder() as here:
        for name, streams in (("secret", secret), ("known", replace(secret, views=known.views))):
            net = made(lambda: nn.Linear(5, 3))
            out = publish.publish(
                pv.dpsgd(plan, net, cross_entropy, (x, y), streams=streams), here / name, delta=1e-5
            )
            report = verify.verify(out)
            assert report.ok
            assert any("seed" in warning for warning in report.warnings) == (name == "known")


@check
def check_streams_that_were_taken_off_draw_other_numbers_in_a_forked_process() -> None:
    streams = streams_module.Streams.new(4)
    noise, others = streams.noise, [streams.sampling, streams.initialisation, streams.views]
    del streams

    def drawn() -> list[int]:
        return [
            *noise.words(4).tolist(),
            *[n for other in others for n in other.integers(2**62, size=4).tolist()],
        ]

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, np.array(drawn(), np.int64).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 1 << 10), np.int64).tolist()
    assert len(theirs) == 16
    assert not set(theirs) & set(drawn()), "a forked process draws the same numbers"
