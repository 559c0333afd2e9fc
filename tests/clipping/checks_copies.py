"""Named checks of copies of examples, mean weights and smoothed labels; mutations must make them
fail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
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
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import kept
from privlearn.core.clipping.clips import Automatic, Clip, Flat, PerLayer, Quantile
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.randomness import RowRandom
from privlearn.core.clipping.views import FlipAndShift
from privlearn.core.plan import Plan
from privlearn.core.rows import digests
from privlearn.core.schedules import Validation
from privlearn.errors import BadInput
from privlearn.models.heads import ClassHead
from privlearn.publishing import publish, verify
from privlearn.runs.mean_weights import MeanWeights
from privlearn.training.choices import TrainRequest
from tests.clipping.checks import Net, unruled
from tests.runs.checks_resuming import RUNS, Run, Stopped, folder, weights
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, flat_norm, one_sample, small_data
from tests.support.registries import completed
from tests.support.steps import EachStep

SPEC, COPIES = "flip,shift:2", 3


def images(rows: int = 11, channels: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images of 6 x 5 pixels, of many scales, and three classes."""
    made_up = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, 6, 5, generator=made_up, dtype=torch.float64)
    x *= torch.linspace(0.05, 3, rows).view(-1, 1, 1, 1)
    return x, torch.randint(3, (rows,), generator=made_up)


def networks() -> list[tuple[str, nn.Module]]:
    """One for each way to compute, and many kinds of layer: what the copies of an example meet."""
    torch.manual_seed(0)
    found = {
        "layers": [
            nn.Sequential(nn.Flatten(), nn.Linear(60, 3)),
            nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)
            ),
            Net(
                lambda n, x: n.b(n.n(n.a(x.flatten(1, 2)).tanh()).flatten(1)),
                a=nn.Linear(5, 4),
                n=nn.LayerNorm(4),
                b=nn.Linear(48, 3),
            ),
            Net(
                lambda n, x: n.b(n.a(x.flatten(1, 2))[0][:, -1]),
                a=nn.LSTM(5, 4, batch_first=True),
                b=nn.Linear(4, 3),
            ),
        ],
        "vmap": [
            Net(
                lambda n, x: unruled(n, x.flatten(1)),
                a=nn.Linear(60, 3),
                scale=nn.Parameter(torch.ones(3)),
            )
        ],
    }
    return [(way, net.double()) for way, nets in found.items() for net in nets]


CLIPS: list[Clip] = completed("clips", [Flat(0.8), PerLayer(0.5), Automatic(0.8), Quantile(0.8)])


def views_of(x: Tensor, y: Tensor, seed: int = 5) -> Tensor:
    """The copies that an engine makes of each row by itself if its seeds come from
    `default_rng(seed)`.

    Returns:
        Shape (rows, copies, ...).
    """
    random = RowRandom()
    random.begin(np.random.default_rng(seed).bytes(16))
    found = []
    for number, row in enumerate(x):
        random.take(digests(x, y))
        with random.alone(number, purpose=1):
            found.append(
                FlipAndShift(flip=True, shift=2)(row.expand(COPIES, *row.shape), torch.Generator())
            )
    return torch.stack(found)


def engine(net: nn.Module, clip: Clip, seed: int = 5, **options: Any) -> ClippedGradients:
    options = {
        "augmentation": pv.clipping.Augmentation(COPIES, SPEC),
        "view_seeds": np.random.default_rng(seed),
        **options,
    }
    return ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE, **options)


def by_the_loop(net: nn.Module, clip: Clip, views: Tensor, y: Tensor) -> list[Tensor]:
    """The truth: of each example the mean over its views of the loss, differentiated, and then
    clipped.
    """
    names = [name.rpartition(".")[0] for name, _ in net.named_parameters()]
    total = [torch.zeros_like(p) for p in net.parameters()]
    counted = 0.0
    for own, label in zip(views, y, strict=True):
        losses = torch.stack([F.cross_entropy(net(view[None]), label[None]) for view in own])
        found = torch.autograd.grad(losses.mean(), list(net.parameters()))
        for part in set(names) if isinstance(clip, PerLayer) else [None]:
            chosen = [k for k, name in enumerate(names) if part in (None, name)]
            norm = flat_norm(tuple(found[k] for k in chosen))
            bound = kept(clip.clip_norm, {found[0].dtype})  # leaves room for rounding
            factor = min(1.0, bound / norm)
            if isinstance(clip, Automatic):
                factor = bound / (norm + clip.stability)
            for k in chosen:
                total[k] += factor * found[k]
            counted += 0.1 * clip.clip_norm * (1 if norm <= clip.clip_norm else -1)
    return [
        *total,
        *([torch.tensor([counted], dtype=torch.float64)] if isinstance(clip, Quantile) else []),
    ]


@check
def check_views_of_an_example_are_averaged_and_then_clipped() -> None:
    """For every kind of layer, way to compute and way to clip, in whatever parts a batch is
    computed.
    """
    x, y = images()
    views = views_of(x, y)
    for way, net in networks():
        for clip in CLIPS:
            expected = by_the_loop(net, clip, views, y)
            for microbatch in (None, 1, 4):
                clipper = engine(net, clip, microbatch=microbatch)
                found = clipper(one_sample(examples=len(x)), x, y)
                assert clipper.way == way, clipper.reason
                for one, other in zip(found.values, expected, strict=True):
                    torch.testing.assert_close(one.double(), other.double(), rtol=1e-8, atol=1e-10)


@check
def check_one_example_with_its_views_moves_a_sum_by_the_sensitivity_at_most() -> None:
    x, y = images(3)
    for _, net in networks():
        for clip in CLIPS[:3]:
            alone = engine(net, clip)(one_sample(examples=1), 1e3 * x[2:], y[2:])
            length = flat_norm(alone.values)
            assert 0 < length <= alone.sensitivity * (1 + 1e-9)
            assert alone.sensitivity < 1.2  # that of one gradient, not of three


def moved(image: Tensor, mirrored: bool, down: int, right: int) -> Tensor:
    """An image (height, width) moved pixel by pixel."""
    height, width = image.shape
    found = torch.zeros_like(image)
    for i, j in product(range(height), range(width)):
        a, b = i - down, j - right
        if 0 <= a < height and 0 <= b < width:
            found[i, j] = image[a, width - 1 - b if mirrored else b]
    return found


@check
def check_images_are_moved_as_their_spec_says() -> None:
    """Every move occurs, each as often as any other, and no other; channels move alike."""
    image = torch.arange(1.0, 31.0).view(6, 5)
    for spec, flips, shift in (
        ("flip", (False, True), 0),
        ("shift:1", (False,), 1),
        ("shift:2,flip", (False, True), 2),
    ):
        moves = list(product(flips, *[range(-shift, shift + 1)] * 2))
        known = {moved(image, *move).numpy().tobytes(): place for place, move in enumerate(moves)}
        assert len(known) == len(moves)
        rows = image.expand(400 * len(moves), 6, 5)
        found = FlipAndShift.parse(spec)(rows, torch.Generator().manual_seed(0))
        which = [known.get(row.numpy().tobytes(), -1) for row in found]
        assert -1 not in which
        assert stats.chisquare(np.bincount(which, minlength=len(moves))).pvalue > 1e-3
        # With channels, of which each is the image times a number.
        colours = torch.tensor([1.0, -2.0, 3.0])[:, None, None]
        coloured = FlipAndShift.parse(spec)(
            (image * colours).expand(50, 3, 6, 5), torch.Generator().manual_seed(0)
        )
        assert torch.equal(coloured, found[:50, None] * colours)
        # Neighbours in a batch move each by itself.
        pairs = np.array(which[: len(which) // 2 * 2]).reshape(-1, 2)
        assert abs(float(np.mean(pairs[:, 0] == pairs[:, 1])) - 1 / len(moves)) < 0.1
        whole = torch.randint(0, 9, (4, 6, 5), dtype=torch.int64)
        assert (
            FlipAndShift.parse(spec)(whole, torch.Generator().manual_seed(1)).dtype == torch.int64
        )


# Streams


@contextmanager
def watched() -> Iterator[tuple[list[Any], list[Any]]]:
    """The batches that are drawn in the block, and the numbers that noise is made of."""
    batches: list[Any] = []
    words: list[Any] = []
    draw, clipped = streams_module.NoiseStream.words, ClippedGradients.__call__

    def drawn(self: Any, size: int) -> Any:
        found = draw(self, size)
        words.append(found.tobytes())
        return found

    def called(self: Any, sample: Any, *args: Any, **options: Any) -> Any:
        batches.append(sample.indices.tolist())
        return clipped(self, sample, *args, **options)

    with (
        mock.patch.object(streams_module.NoiseStream, "words", drawn),
        mock.patch.object(ClippedGradients, "__call__", called),
    ):
        yield batches, words


def train(
    plan: Plan | None = None, streams: streams_module.Streams | None = None, **options: Any
) -> pv.Result:
    def model(shape: tuple[int, ...]) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 4), nn.Tanh(), nn.Linear(4, 3)
        ).double()

    arguments = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.5), **options}
    data, loss = arguments.pop("data", None) or images(), arguments.pop("loss", cross_entropy)
    plan = plan or Plan(
        sampling.Poisson(0.4), epochs=2, schedule=pv.schedules.Constant(1.0), examples=11
    )
    return pv.dpsgd(
        plan, model, loss, data, streams=streams or streams_module.Streams.new(3), **arguments
    )


@check
def check_views_are_drawn_from_a_stream_of_their_own() -> None:
    """Other views leave batches and noise as they are, other batches and noise the views; and so do
    no views at all.
    """
    seen = {}
    for name, own, options in (
        ("none", streams_module.Streams.new(3), {}),
        (
            "some",
            streams_module.Streams.new(3),
            {"augmentation": pv.clipping.Augmentation(COPIES, SPEC)},
        ),
        (
            "others",
            replace(streams_module.Streams.new(3), views=streams_module.Streams.new(4).views),
            {"augmentation": pv.clipping.Augmentation(COPIES, SPEC)},
        ),
    ):
        with watched() as (batches, words):
            result = train(streams=own, **options)
        state = own.state()
        seen[name] = (
            (batches, words, state["sampling"], state["noise"], state["initialisation"]),
            weights(result),
        )
        assert words
    assert seen["none"][0] == seen["some"][0] == seen["others"][0]
    assert not torch.equal(seen["some"][1], seen["others"][1])
    assert not torch.equal(seen["none"][1], seen["some"][1])


def identity_views(seen: list[Tensor]) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Changes nothing, and keeps what it draws for each row."""

    def transform(rows: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(torch.rand(len(rows), generator=generator))
        return rows * 1.0

    return transform


@check
def check_views_do_not_depend_on_other_batches_and_are_never_repeated() -> None:
    """Each sample's numbers follow from the stream alone, however many rows the samples before it
    had.
    """
    x, y = images()
    _, net = networks()[0]
    for first in (2, 7):
        seen: list[Tensor] = []
        clipper = engine(
            net, Flat(1.0), augmentation=pv.clipping.Augmentation(COPIES, identity_views(seen))
        )
        clipper.prepare(x, y)
        seen.clear()
        for rows in (first, 5):
            clipper(one_sample(examples=rows), x, y)
        # The batch itself, and not the single example that the rules of operations are compared
        # with.
        second = [numbers for numbers in seen if len(numbers) == 5 * COPIES][-1]
        if first == 2:
            expected = second
        assert torch.equal(second, expected)
        assert not set(seen[0].tolist()) & set(second.tolist()), "two samples had the same views"
        assert len(set(second.tolist())) == len(second)


@check
def check_rows_beside_one_that_is_not_finite_keep_their_views() -> None:
    x, y = images()
    spoilt = x.clone()
    spoilt[4] = math.nan
    for _, net in networks():
        found = engine(net, Flat(0.8))(one_sample(examples=len(x)), spoilt, y).values
        others = [row for row in range(len(x)) if row != 4]
        expected = by_the_loop(net, Flat(0.8), views_of(x, y)[others], y[others])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


# Mean weights


def coefficients(share: float, steps: int) -> list[float]:
    """The weight of each step: s (s + 1) ... (s + p - 1) is s^p for whole p; here for any p, by the
    gamma function.
    """
    power = 2 / share - 2
    logs = np.array([math.lgamma(s + power) - math.lgamma(s) for s in range(1, steps + 1)])
    found = np.exp(logs - logs.max())
    return [float(value) for value in found / found.sum()]


class Recorder(torch.optim.SGD):
    """Keeps the weights after each step."""

    seen: list[Tensor]

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.seen.append(
            torch.cat([p.detach().flatten().clone() for p in self.param_groups[0]["params"]])
        )


def recorded(**options: Any) -> tuple[pv.Result, list[Tensor]]:
    seen: list[Tensor] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made = Recorder(parameters, lr=0.5)
        made.seen = seen
        return made

    return train(optimizer=optimizer, **options), seen


@check
def check_published_weights_are_the_mean_that_was_asked_for() -> None:
    """Whether the number of steps is known beforehand or follows from validations."""
    reacting = Plan(
        sampling.Poisson(0.4),
        schedule=Validation(k=0.7, m=2, threshold=0.01, period=2, start=2.0),
        examples=11,
    ).within(Budget(4.0, 1e-5), most=6)
    public = pv.Dataset(*images(20, seed=2), public=True)
    for plan, more in ((None, {}), (reacting, {"validation": public})):
        for share in (1.0, 0.5, 0.3, 0.01):
            result, seen = recorded(plan=plan, average=share, **more)
            assert len(seen) == result.facts["steps"] >= 4
            mean = sum(
                factor * part
                for factor, part in zip(coefficients(share, len(seen)), seen, strict=True)
            )
            torch.testing.assert_close(weights(result), mean, rtol=1e-9, atol=1e-12)
        last, seen = recorded(plan=plan, **more)
        assert torch.equal(weights(last), seen[-1])
        assert last.ledger.event == result.ledger.event


@check
def check_a_mean_over_a_share_is_as_old_as_the_last_steps_are() -> None:
    """As old on the average, and for a small share of as many steps, as the plain mean over the
    last ones.
    """
    steps = 20_000
    for share, many in ((1.0, 1.0), (0.5, 5 / 9), (0.2, None), (0.02, 0.02)):
        values = [nn.Parameter(torch.zeros(1, dtype=torch.float64))]
        mean = MeanWeights(values, share)
        for step in range(1, steps + 1):
            values[0].data.fill_(step / steps)
            mean.after_step()
        assert abs(float(mean.means[0]) - (1 - share / 2)) < 1e-3
        if many:
            factors = np.array(coefficients(share, steps))
            assert abs(1 / float((factors**2).sum()) / steps / many - 1) < 0.03


@check
def check_a_mean_leaves_buffers_and_frozen_weights() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
            self.b.weight = self.a.weight
            self.c = nn.Linear(5, 3)
            self.c.bias.requires_grad_(False)
            self.register_buffer("scale", torch.full((5,), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x).tanh() * self.get_buffer("scale")).tanh())

    plan = Plan(sampling.Poisson(0.4), epochs=2, schedule=pv.schedules.Constant(1.0))
    net = Shared().double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = pv.dpsgd(
        plan, net, cross_entropy, small_data(), average=0.5, streams=streams_module.Streams.new(1)
    )
    after = result.model.state_dict()
    for name, value in before.items():
        fixed = name in ("c.bias", "scale")
        assert torch.equal(after[f"0.{name}"], value) is fixed, name
    assert result.model[0].a.weight is result.model[0].b.weight


# Runs that are stopped and continued

WAYS: list[dict[str, Any]] = [
    {"average": 0.5},
    {"augmentation": pv.clipping.Augmentation(2, SPEC)},
    {"average": 0.2, "augmentation": pv.clipping.Augmentation(2, SPEC), "microbatch": 2},
]


@check
def check_runs_with_views_and_means_go_on_after_interruptions() -> None:
    """Bit for bit, after every other step or every few: means and views of what follows are those
    of the whole run.
    """
    data = images(12)
    for options, run in product(WAYS, (RUNS[0], Run(sampling=sampling.Shuffle(5)))):
        whole = run.go(data=data, **options)
        for stop in (2, 3) if run is RUNS[0] else (3,):
            with folder() as here:
                pieces = run.by_pieces(here / "run", stop=stop, data=data, **options)
                assert torch.equal(weights(pieces), weights(whole)), (options, stop)
                assert pieces.facts == whole.facts
                # Interrupted between its end and its publishing, it is the same again.
                again = run.go(here / "run", data=data, **options)
                assert torch.equal(weights(again), weights(whole))


@check
def check_a_run_goes_on_with_the_same_views_mean_and_labels_only() -> None:
    run, data = RUNS[0], images(12)

    def smooth(share: float) -> nn.Module:
        return nn.CrossEntropyLoss(reduction="none", label_smoothing=share)

    begun = {"augmentation": pv.clipping.Augmentation(2, SPEC), "average": 0.5}
    others: dict[str, dict[str, Any]] = {
        "no mean": {"average": None},
        "another mean": {"average": 0.4},
        "no views": {"augmentation": None},
        "more views": {"augmentation": pv.clipping.Augmentation(3, SPEC)},
        "other views": {"augmentation": pv.clipping.Augmentation(2, "shift:2")},
        "custom views": {"augmentation": pv.clipping.Augmentation(2, lambda rows, generator: rows)},
    }
    with folder() as here:
        path = here / "run"
        must_raise(Stopped, lambda: run.go(path, stop=2, data=data, **begun))
        for what, changed in others.items():
            options = {**begun, **changed}
            error = must_raise(BadInput, lambda options=options: run.go(path, data=data, **options))
            assert "checkpoint is of another run" in str(error), what
        ours, theirs = (
            pv.clipping.Augmentation(2, make([])) for make in (identity_views, other_views)
        )
        own = here / "own"
        must_raise(Stopped, lambda: run.go(own, stop=2, data=data, augmentation=ours))
        error = must_raise(BadInput, lambda: run.go(own, data=data, augmentation=theirs))
        assert "its setting 'copies' was" in str(error)
        smoothed = here / "smoothed"
        must_raise(
            RuntimeError,
            lambda: train(checkpoint=smoothed, loss=smooth(0.1), callbacks=EachStep(_stop)),
        )
        error = must_raise(BadInput, lambda: train(checkpoint=smoothed, loss=smooth(0.2)))
        assert "label smoothing" in str(error)


def _stop(step: int, steps: int) -> None:
    raise RuntimeError("the process is gone")


def other_views(seen: list[Tensor]) -> Callable[[Tensor, torch.Generator], Tensor]:
    def another_transform(rows: Tensor, generator: torch.Generator) -> Tensor:
        return rows * 1.0

    return another_transform


# Labels, and what is told


def smoothed(share: float | None) -> Callable[..., Tensor]:
    return ClassHead({"classes": 3}).loss(TrainRequest(label_smoothing=share))


@check
def check_smoothed_labels_are_what_is_learned_from() -> None:
    """(1 - s) of the label's loss, and s of the mean over all classes; and nothing else is
    smoothed.
    """
    made_up = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(7, 3, generator=made_up, dtype=torch.float64), torch.arange(7) % 3
    logs = scores.log_softmax(1)
    for share in (None, 0.0, 0.1, 0.6):
        own = -logs.gather(1, labels[:, None])[:, 0]
        expected = (1 - (share or 0.0)) * own - (share or 0.0) * logs.mean(1)
        torch.testing.assert_close(smoothed(share)(scores, labels), expected)
    result = train(loss=smoothed(0.3), average=0.5)
    assert result.facts["label_smoothing"] == 0.3
    assert "label_smoothing" not in train(loss=smoothed(None)).facts


@check
def check_what_was_done_for_accuracy_is_told() -> None:
    """In settings, certificate and card, and what was not done is not; the guarantee is the
    same.
    """
    loss = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    plan = Plan(sampling.Poisson(0.4), epochs=2, examples=11).calibrate(epsilon=3.0, delta=1e-3)
    with folder() as here:
        plain = publish.publish(train(plan), here / "plain")
        result = train(
            plan, loss=loss, average=0.5, augmentation=pv.clipping.Augmentation(COPIES, SPEC)
        )
        out = publish.publish(result, here / "all")
        assert verify.verify(out).ok
        settings = json.loads((out / "privacy.json").read_text())["facts"]
        told = {
            name: settings[name]
            for name in ("average", "augmentation", "augmentation_copies", "label_smoothing")
        }
        assert told == {
            "average": 0.5,
            "augmentation": SPEC,
            "augmentation_copies": COPIES,
            "label_smoothing": 0.1,
        }
        card = (out / "README.md").read_text()
        for line in (
            (
                f"| copies of each example | {COPIES} ({SPEC}), whose gradients are averaged "
                "before clipping |"
            ),
            "| label smoothing | 0.1 |",
            "| published weights | a mean over about the last 0.5 of the steps |",
        ):
            assert line in card
        other = json.loads((plain / "privacy.json").read_text())
        assert not {"average", "augmentation", "label_smoothing"} & set(other["facts"])
        assert not any(
            word in (plain / "README.md").read_text()
            for word in ("copies", "smoothing", "published weights")
        )
        assert other["claim"] == json.loads((out / "privacy.json").read_text())["claim"]
        assert other["events"] == json.loads((out / "privacy.json").read_text())["events"]


@check
def check_copies_of_what_cannot_be_moved_are_refused() -> None:
    """Public features, flat rows, and targets that would have to move along; before anything is
    charged.
    """
    x, y = images(11, 1)
    raw = pv.Dataset(x[:, 0].float().numpy(), y.numpy(), classes=3)
    flat = (x.flatten(1), y)
    maps = (x, x[:, 0])
    front = (pv.transforms.RowNorm(),)
    for data, expected in (
        (raw, "features='raw'"),
        (flat, "(height, width)"),
        (maps, "not their targets"),
        (images(6), None),
    ):
        plan = Plan(
            sampling.Poisson(0.4), epochs=2, schedule=pv.schedules.Constant(1.0), examples=11
        )
        plan = replace(plan, front=front if data is raw else ())
        ledger = pv.Ledger()
        augmentation = pv.clipping.Augmentation(2, SPEC if expected else "shift:5")
        error = must_raise(
            BadInput,
            lambda data=data, plan=plan, ledger=ledger, augmentation=augmentation: train(
                plan, data=data, augmentation=augmentation, ledger=ledger
            ),
        )
        assert (expected or "out of the picture") in str(error), error
        assert not ledger.event.events
