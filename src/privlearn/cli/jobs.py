"""What a run of each method is on the command line: settled by options and data, ready to be said
and to be run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import count
from privlearn._storage import cache
from privlearn.cli import methods, screen
from privlearn.cli.checkpoints import Kept
from privlearn.cli.ledger_room import say_other_delta
from privlearn.cli.options import DPSGD, PATE
from privlearn.cli.request import Request
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.addresses import database_at
from privlearn.core.accounting.ledgers.similar_names import similar_ledger
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.plan import AbstractPlan
from privlearn.core.processes import World
from privlearn.core.streams import Streams
from privlearn.core.transform import PublicTransform
from privlearn.data import NAMES, Dataset, load
from privlearn.data.dataset import overlap, require_others
from privlearn.data.named import load_features
from privlearn.data.schema import read_schema
from privlearn.data.tables import read_table
from privlearn.errors import BadInput, DataWarning, warn
from privlearn.methods import METHODS
from privlearn.methods.statistics.metric_figures import Metrics, NoisyMetrics
from privlearn.metrics import evaluate
from privlearn.models.heads import head_of
from privlearn.publishing.new_folder import require_free
from privlearn.publishing.signing import SigningKey, read_private
from privlearn.runs.given import require_neighbours, require_no_features
from privlearn.runs.result import Result
from privlearn.training import rules
from privlearn.training.choices import TrainRequest
from privlearn.training.rules import Settled
from privlearn.training.train import facts_of, require_task
from privlearn.transforms.chain import feature_cache, read_features
from privlearn.transforms.precomputed import is_folder


@final
@dataclass
class Job:
    """What a method is going to do: what is said of it beforehand, and how it is done.

    Attributes:
        data: with the rows to test on.
        answer: the figures of the plan, as scripts rely on; completed by the run.
        headline: the plan in a line; None: it is not known before the run.
        warnings: what is allowed, and hardly ever meant.
        model: what the network can be built from; None: the result says.
        run: trains, with what was opened.
        rows: what there is to say of the result, by name; may add to the answer.
        notes: said below the headline.
        timed: False where the time would tell something.
        plan: all that it is going to be charged; None: it is not known before the run, or not here.
        settled: a run of DP-SGD, whose steps can be tried on made-up rows; None: it is of another
            method.
        loss: its loss, if not the task's.
    """

    data: Dataset
    answer: dict[str, Any]
    headline: str | None
    warnings: tuple[str, ...]
    model: str | None
    run: Callable[[Opened], Result]
    rows: Callable[[Result], Mapping[str, str]]
    notes: tuple[Callable[[], None], ...] = ()
    timed: bool = True
    plan: AbstractPlan | None = None
    settled: Settled | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None


@final
@dataclass(frozen=True)
class Opened:
    """Where a model is going to be published, by whom, and on whose ledger; opened before anything
    is read or spent.

    Attributes:
        request: the options.
        out: the folder to publish into.
        key: what signs.
        ledger: what is charged; None: the run's own.
        kept: what an interrupted run goes on from.
        started: when.
        paid: the release of the test metrics, which the ledger approved with the run; None: they
            are exact.
    """

    request: Request
    out: Path
    key: SigningKey | None
    ledger: Ledger | None
    kept: Kept
    started: float = field(default_factory=time.perf_counter)
    paid: NoisyMetrics | None = None

    @classmethod
    def of(cls, request: Request, kept_state: Kept) -> Opened:
        """Open what the options name.

        Raises:
            BadInput: a folder that is not free, an interrupted run, a key or a ledger that can't be
                read.
        """
        started = time.perf_counter()
        # before what an interrupted run left beside it is looked for
        out = require_free(request.out)
        kept_state.require_state(request.resume)
        key = None if request.sign is None else read_private(request.sign)
        what = f"{request.data} to {out}{'' if request.tune is None else ', tuned'}"
        ledger = None if request.ledger is None else _open_ledger(request, what)
        return cls(request, out, key, ledger, kept_state, started)

    @classmethod
    def by_the_first(cls, request: Request, kept_state: Kept, world: World) -> Opened:
        """What the first of several processes opens; the others publish nothing and charge no
        file.
        """
        opened: list[Opened] = []
        world.once(lambda: opened.append(cls.of(request, kept_state)), "what is opened")
        return opened[0] if opened else cls(request, Path(request.out), None, None, kept_state)

    def approved(self, job: Job) -> Opened:
        """With the release of the test metrics, if one is asked for, approved together with the
        run.

        Raises:
            BadInput: metrics of this run are not released; before anything is spent.
            BudgetExceeded: the ledger has no room for both.
        """
        paid = methods.metrics_plan(self.request, job.plan, job.data)
        if paid is None:
            return self
        ledger = Ledger() if self.ledger is None else self.ledger
        # there both were approved before
        if job.plan is not None and not (self.request.resume and ledger.path):
            require_neighbours(job.plan, ledger)
            ledger.approve(job.plan, paid)
        return replace(self, ledger=ledger, paid=paid)

    def streams(self) -> Streams:
        """The random streams from their beginning."""
        return self.kept.streams(self.request)


def _open_ledger(request: Request, what: str) -> Ledger:
    """The ledger that a run names, begun if it isn't there.

    Raises:
        BadInput: it isn't there, and a ledger beside it has nearly that name: a misspelt one would
            refuse nothing.
    """
    path, data_set, delta = request.ledger, request.ledger_data, request.delta
    there = database_at(path).exists()
    if not there and (near := similar_ledger(database_at(path).path)):
        raise BadInput(
            f"there is no ledger {path}, and there is {near}: check the name. A ledger for other "
            f"data is begun by `privlearn ledger {path} --epsilon E`"
        )
    if there and data_set is not None and data_set not in (names := database_at(path).names()):
        raise BadInput(
            f"the ledger {path} has no data set {data_set[:60]!r}: it holds "
            f"{', '.join(names)[:100]}. Check the name, or begin one with `privlearn ledger {path} "
            "--ledger-data NAME --epsilon E`"
        )
    ledger = Ledger.open(
        path,
        what=what,
        create=True,
        data_set=data_set,
        anchor=request.anchor,
        new_rows=request.new_rows,
    )
    if not there:
        screen.notes.print(
            f"began the ledger {path}, which only records: there is no guarantee for several runs "
            "together. For such a guarantee begin a ledger with a budget in another file, by "
            "`privlearn ledger FILE --epsilon E`"
        )
    say_other_delta(ledger, delta)
    return ledger


def seed_warning(request: Request) -> Iterator[str]:
    """What a fixed seed means."""
    if request.seed is not None:
        yield (
            "with --seed the noise can be taken off by anyone who knows the seed: for trying out, "
            "not for data that matter"
        )


# Data


def warn_of_number(declared: int | None, present: int | None) -> None:
    """Warn the data's curator of a declared number of examples that is more than twice, or less
    than half, of how many there are, if both are known. Nothing else follows from it. The library
    says nothing: what its caller hears may be part of a release.
    """
    if declared and present and not declared / 2 <= present <= 2 * declared:
        warn(
            f"the data have {present:,} examples, and examples={declared} is declared, by which "
            "sums are divided and examples are drawn: check the number. How many there are is for "
            "the data's curator, and is not published",
            DataWarning,
        )


def data_of(request: Request) -> Dataset:
    """The data that the options name, after printing what there is to say of them."""
    data = load(
        request.data,
        request.data_dir,
        classes=request.classes,
        value_range=request.range,
        schema=request.schema,
        test=request.test_data,
        target_bounds=request.target_bounds,
        targets=request.target,
        grid=request.grid,
    )
    warn_of_number(request.examples, data.examples)
    for note in data.remarks:
        screen.notes.print(note)
    require_task(request.task, data)
    head = head_of(request.task, data)
    learned = METHODS[request.method].targets
    several = data.labels or data.target_ranges
    if head.named and request.method != DPSGD and head.task not in learned:
        learners = [
            row.name for row in METHODS.values() if row.name == DPSGD or head.task in row.targets
        ]
        raise BadInput(
            f"the task {head.task} is for --method {' or '.join(learners)}: leave the other out"
        )
    if several and request.tune:
        raise BadInput(f"the task {head.task} is learned without --tune: leave --tune out")
    if data.target_bounds is not None and "values" not in learned:
        raise BadInput(
            f"--method {request.method} is for classes, and the targets are numbers: leave it out"
        )
    if has_maps(data) and (request.method not in (PATE, DPSGD) or request.tune or request.pca):
        raise BadInput(
            "the targets are maps of classes: train by --method pate or dpsgd, without --tune and "
            "--pca"
        )
    # pate has use for the public volumes, too
    if has_maps(data) and request.method == DPSGD:
        data = methods.map_pages().tested(data)
    return data


def has_maps(data: Dataset) -> bool:
    """Whether targets are maps of classes, not classes."""
    several = data.labels or data.target_ranges
    return data.y is not None and len(np.shape(data.y)) > 1 and not several


def public_rows(request: Request, data: Dataset) -> Dataset:
    """The rows of `--public`, declared so, read as the training rows are, whose bounds and classes
    they get.

    Raises:
        BadInput: they can't be read, or are the training rows.
    """
    public = _read_public(request, data)
    asked = (public.x, public.x_test) if request.method == PATE else ()  # dpsgd looks itself
    for part in asked:
        if part is not None:
            require_others(part, data.x, f"the rows of --public {request.public}")
    if has_maps(data):
        _require_no_private_scan(request, public, data)
    return public


def _require_no_private_scan(request: Request, public: Dataset, data: Dataset) -> None:
    """Raise `BadInput` if a public scan is a private one, or of a patient who has private ones."""
    for part in (public.x, public.x_test):
        copies, twins = (0.0, 0.0) if part is None else overlap(part, data.x)
        if copies > 0 and not twins:  # fresh scans are never alike
            raise BadInput(
                f"some volumes of --public {request.public} are private ones, to the last voxel: "
                "public volumes get no protection. Leave them out"
            )
    if (
        public.groups is not None
        and data.groups is not None
        and np.isin(public.groups, data.groups).any()
    ):
        raise BadInput(
            f"some volumes of --public {request.public} are of patients who have private ones: "
            "public volumes get no protection. Leave these patients out of one of them"
        )


def _read_public(request: Request, data: Dataset) -> Dataset:
    if request.public in NAMES:
        return load(request.public, request.data_dir, public=True)
    if request.schema is not None and Path(request.public).suffix != ".npz":
        # whose rows they are does not matter
        schema = replace(data.schema or read_schema(request.schema), person=None)
        table = read_table(request.public, schema.columns, schema.dialect)
        lacking = [name for name in schema.targets if name not in table.columns]
        if request.method == PATE and lacking == [*schema.targets]:
            return replace(load_features(table, schema), public=True)  # asked about alone
        if lacking and request.method == PATE:
            raise BadInput(
                f"--public {request.public} has some of the targets, and not "
                f"{', '.join(map(repr, lacking))[:120]}: add them, or leave out all targets (the "
                "public rows are then asked about alone)"
            )
        return load(request.public, schema=schema, public=True)
    if data.grid is not None:
        return load(request.public, classes=data.classes, grid=data.grid, public=True)
    low, high = data.bounds()
    public = load(
        request.public,
        classes=data.classes,
        target_bounds=request.target_bounds,
        targets=request.target,
        value_range=(float(low.min()), float(high.max())),
        public=True,
    )
    return replace(public, low=data.low, high=data.high)


def test_metrics(
    model: Result | nn.Module,
    data: Dataset,
    opened: Opened | None = None,  # noqa: PT028
) -> Metrics | None:
    """Metrics of the test rows, if there are any: exact, so that these are not protected, or
    released with noise.

    They are released by `opened.paid`, on `opened.ledger`. Exact ones are left out where they would
    not be of all rows: the model is trained by then, and is published without them.
    """
    if data.x_test is None:
        return None
    if opened is None or opened.paid is None:
        try:
            return evaluate(model, *data.test_tensors())
        except BadInput as error:
            screen.warn(f"the model is published without test figures: {error}")
            return None
    # Never the run's own noise again: with a seed other streams of it, else new ones.
    streams = Streams.new(opened.request.seed, rank=1, discrete=opened.request.discrete)
    return evaluate(
        model, *data.test_tensors(), paid=opened.paid, ledger=opened.ledger, streams=streams
    )


# What DP-SGD is asked for


def descent_request(request: Request) -> TrainRequest:
    """What the options say of a run of DP-SGD, with the copies of examples that are asked for."""
    return methods.training_request(request, augmentation=_copies_of(request))


def _copies_of(request: Request) -> Augmentation | None:
    if request.views is None and request.augment is None:
        return None
    if request.augment is None:
        raise BadInput(
            f"--views {request.views} asks for copies of each example that are changed: say how, "
            "--augment shift:2"
        )
    if request.views is None:
        raise BadInput(
            f"--augment {request.augment} changes copies of each example: say how many there are, "
            "--views 4"
        )
    return Augmentation(count("--views", request.views), request.augment)


def loss_of(data: Dataset, chosen: TrainRequest) -> Callable[[Tensor, Tensor], Tensor] | None:
    """One value for each example, for maps of classes: soft Dice with cross-entropy; None: the
    task's own.
    """
    if not has_maps(data):
        return None
    for name in ("label_smoothing", "class_weights"):
        if getattr(chosen, name) is not None:
            option = name.replace("_", "-")
            raise BadInput(
                f"--{option} is for classes, and the targets are maps of them: leave it out"
            )
    losses: Callable[[Tensor, Tensor], Tensor] = methods.map_pages().map_losses
    return losses


# Features


@contextmanager
def featured(
    request: Request, data: Dataset, chosen: TrainRequest | None = None
) -> Iterator[tuple[Dataset, tuple[PublicTransform, ...]]]:
    """The data, and the public features that are asked for, or usual for them; shows progress while
    it lasts.

    Args:
        request: the options.
        data: the rows.
        chosen: what is chosen of a run of DP-SGD or DP-MAC.

    Raises:
        BadInput: features that are unknown, or that these rows don't have.
    """
    spec = asked = request.features if chosen is None else chosen.features
    if chosen is not None and request.method == DPSGD:
        _require_movable(chosen, data.x.shape[1:])
        spec = (
            rules.usual_features(chosen, facts_of(data, request.examples)) if spec is None else spec
        )
    if spec is None or spec == "raw":
        yield data, ()
        return
    require_no_features(chosen.config.augmentation if chosen else None, spec)
    if is_folder(spec):
        yield _from_folder(request, data, spec)
        return
    front, data = read_features(spec, data)
    _require_rows(front[0], data)
    screen.notes.print(
        "public features: "
        f"{front[0].spec}{'' if asked else ' (usual for such rows; --features raw for none)'}"
    )
    # The bar must be gone before that of training comes.
    with ExitStack() as bar:
        progress = bar.enter_context(screen.progress_bar("features", "%"))

        def advance(done: int, rows: int) -> None:
            progress(100 * done // rows, 100)  # how many rows there are is private
            if done == rows:
                bar.close()

        with feature_cache(_feature_folder(request), advance):
            yield data, front


def _require_movable(chosen: TrainRequest, shape: tuple[int, ...]) -> None:
    """Refuse moves that rows of this shape can't make, where these are what the network is
    given.
    """
    if chosen.config.augmentation is None or chosen.pca is not None or chosen.select is not None:
        return
    augment = str(chosen.config.augmentation.transform)
    try:
        chosen.config.augmentation.require_images(shape)
    except BadInput as error:
        raise BadInput(f"--augment {augment}: {error}") from error


def _say_that_it_learns() -> None:
    screen.notes.print(
        "learning directions from made-up images (once: a minute or more; then they are kept)"
    )


def _from_folder(
    request: Request, data: Dataset, folder: str
) -> tuple[Dataset, tuple[PublicTransform, ...]]:
    """The features in a folder, which take the place of the rows."""
    if request.public is not None:
        raise BadInput(
            "--public has no features in a folder: leave out --public, or --features FOLDER"
        )
    if request.features_cache is not None:
        raise BadInput("--features-cache is for features that are made here: leave it out")
    front, features = read_features(folder, data)
    for note in features.remarks[len(data.remarks) :]:
        screen.notes.print(note)
    screen.notes.print(f"public features: {front[0].spec}, which you declare public")
    return features, front


def _require_rows(features: PublicTransform, data: Dataset) -> None:
    """Refuse rows that the features can't be made of, by a made-up one."""
    shape = tuple(data.x.shape[1:])
    module = features.module(shape, cache() / "directions", _say_that_it_learns)
    try:
        module(torch.zeros(1, *shape, device="cpu"))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"features {features.spec} can't be made of rows of shape {shape}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _feature_folder(request: Request) -> Path | None:
    """Where features are kept: those of named data sets in the user's cache, of other rows nowhere
    unless asked for.
    """
    if request.features_cache is not None:
        return Path(request.features_cache)
    return cache() / "features" if request.data in NAMES else None
