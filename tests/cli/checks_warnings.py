"""Named checks of warnings: each that the source can give is given somewhere here; mutations must
make them fail.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn, zeros
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn import cli
from privlearn.cli import jobs, methods
from privlearn.methods import pate as teachers
from privlearn.methods.statistics.plan import RowsPlan
from privlearn.metrics import Metrics
from privlearn.opacus import PrivacyEngine
from privlearn.publishing import signing
from privlearn.publishing import verify as verify_module
from privlearn.publishing.verify import verify
from privlearn.sklearn import DPFisherClassifier
from privlearn_segmentation.pages import corrections, starting
from tests.publishing import checks_shared_ledgers as shared_ledger_checks
from tests.publishing.checks import published
from tests.ranks.threads import together
from tests.support.checks import check
from tests.teachers.checks import Said, public

SOURCE = Path(pv.__file__).parent
#: Functions that return warnings, where others yield them, append them to `warnings`, or call
#: `warn`.
RETURNING = [
    f"{f.__module__}:{f.__name__}" for f in (signing._warn_of_readers, verify_module._also_holds)
]
#: Files whose generators of texts give warnings.
YIELDING = (
    "cli/",
    "core/accounting/guarantee.py",
    "methods/pate/chances.py",
    "methods/statistics/plan.py",
)
NOISE = ("--noise-multiplier", "4", "--delta", "1e-6", "--examples", "1000")


def told(*arguments: str) -> str:
    """What a command prints on standard error; it must succeed."""
    out, asides = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(asides):
        code = cli.main(list(arguments))
    assert code == 0, asides.getvalue()
    return asides.getvalue()


def budget(*more: str) -> Callable[[Path], str]:
    return lambda place: told("budget", *more)


def trained(place: Path) -> str:
    """A seeded run."""
    options = ("--data", "digits", "--model", "linear", "--epochs", "1", "--epsilon", "8")
    heard = told("train", *options, "--seed", "1", "--out", str(place / "trained"))
    return " ".join([heard, *verify(place / "trained").warnings])


def verified(place: Path) -> str:
    """A seeded run at a delta of a tenth of an example, with a hidden file beside it."""
    out = published(place, "verified", delta=1e-2)
    (out / ".DS_Store").write_text("")
    return " ".join(verify(out).warnings)


def key_of_others(place: Path) -> str:
    signing.make(place / "key")
    (place / "key").chmod(0o644)
    key = signing.read_private(place / "key")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        published(place, "signed", sign=place / "key")
    assert [str(each.message) for each in caught] == list(key.warnings)
    return " ".join(key.warnings)


def components_below_the_noise(place: Path) -> str:
    plan = pv.teachers.PatePlan(30, 4, pv.teachers.Ball(1.0)).calibrate(epsilon=8.0, delta=1e-5)
    student = pv.teachers.Student(
        lambda shape: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))), epochs=1
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pv.pate(
            plan,
            Said(*[zeros(30, 2, 3)] * 4),
            teachers.PublicPCA.fit(public()),
            public().x,
            student,
            streams=pv.Streams.new(0),
        )
    return " ".join(str(each.message) for each in caught)


def a_student_that_learned_little(place: Path) -> str:
    plan = pv.teachers.PatePlan(30, 4, pv.teachers.Ball(1.0)).calibrate(epsilon=8.0, delta=1e-5)
    student = pv.teachers.Student(lambda shape: nn.Linear(4, 3), epochs=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = pv.teachers.Identity((3,))
        said = Said(*[torch.arange(90.0).view(30, 3) / 100] * 4)
        pv.pate(plan, said, values, public().x, student, streams=pv.Streams.new(0))
    return " ".join(str(each.message) for each in caught)


def clients_that_never_answer(place: Path) -> str:
    """A federation whose requests are all lost."""
    from privlearn import flower
    from tests.support.local_grid import LocalGrid

    everyone = pv.Plan(
        pv.sampling.FullBatch(), schedule=pv.schedules.Constant(1.0), examples=1, persons=True
    )
    app = flower.training_app(lambda: nn.Linear(2, 2), lambda network, context: None)
    grid = LocalGrid(app, [{}], before=lambda request: False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        flower.train_federated(grid, nn.Linear(2, 2), everyone, input_shape=(2,), timeout=0.1)
    return " ".join(str(each.message) for each in caught)


def few_noisy_rows(place: Path) -> str:
    """As Python says it; the command line names an option for the mode."""
    plan = RowsPlan(3, 20, 20, 1.2, labels="randomised", noise_multiplier=9.0, label_share=0.9)
    return " ".join(plan.noise_warnings(30))


def predictions_given_twice(place: Path) -> str:
    for name in "ab":
        np.savez(place / f"twin-{name}.npz", predictions=np.arange(4) % 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = teachers.Given([place / "twin-a.npz", place / "twin-b.npz"])
        list(given.answers(zeros(4, 2), pv.Streams.new(0)))
    return " ".join(str(each.message) for each in caught)


def maps_that_bring_nothing(place: Path) -> str:
    """A student no better than the public network that it began as."""
    start = SimpleNamespace(labelled=SimpleNamespace(x=[0]), network=nn.Identity())
    data = SimpleNamespace(x_test=[0], bounds=lambda: (zeros(1), zeros(1) + 1), origin=dict)
    result = pv.Result(
        nn.Identity(),
        pv.Ledger(),
        pv.teachers.PatePlan(3, 2, pv.teachers.Votes(3)),
        "pate",
        {},
        {},
        False,
        None,
    )  # type: ignore[arg-type]
    asides = io.StringIO()
    answer = {"plan": {"teachers": 2, "queries": 3}}
    with (
        contextlib.redirect_stderr(asides),
        mock.patch.object(starting, "evaluate", return_value=Metrics({"dice": 0.5}, 1)),
    ):
        result = corrections._with_start(result, data, start, answer)  # type: ignore[arg-type]
        corrections._maps_rows(result, data, answer)  # type: ignore[arg-type]
    return asides.getvalue()


def trained_beside(place: Path) -> str:
    """A second run on the same weights, which are changed between its steps; at a delta that gives
    rows away.
    """
    model, rows = (
        nn.Linear(3, 2),
        TensorDataset(torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for delta in (1e-3, 0.5):
            loop = pv.make_private(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                DataLoader(rows, batch_size=4),
                epsilon=5.0,
                delta=delta,
                epochs=2,
                max_grad_norm=1.0,
            )
            for batch in loop.batches():
                loop.step(batch, nn.CrossEntropyLoss(reduction="none"))
                torch.nn.init.zeros_(model.weight)
        data = pv.Dataset(
            np.arange(60.0).reshape(20, 3) / 60, np.arange(20) % 2, classes=2, low=0.0, high=1.0
        )
        pv.publish(pv.train(data, epsilon=9.0, delta=1e-3, epochs=1), place / "earlier")
        other = pv.load_model(place / "earlier")
        PrivacyEngine().make_private(
            module=other,
            optimizer=torch.optim.SGD(other.parameters()),
            data_loader=DataLoader(rows, batch_size=4),
            noise_multiplier=9.0,
            max_grad_norm=1.0,
        )
    return " ".join(str(each.message) for each in caught)


def fitted_twice(place: Path) -> str:
    """Two fits of an estimator without a ledger, of classes that were not declared."""
    x, y = np.random.default_rng(0).random((40, 3)), np.arange(40) % 2
    estimator = DPFisherClassifier(epsilon=5.0, bounds=(0, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(x, y)
        DPFisherClassifier(epsilon=5.0, bounds=(0, 1), classes=[0, 1]).fit(x, y).fit(x, y)
    return " ".join(str(each.message) for each in caught)


def noisy_maps(place: Path) -> str:
    plan = pv.teachers.PatePlan(1000, 2, pv.teachers.Ball(1.0)).calibrate(epsilon=0.5, delta=1e-5)
    return " ".join(methods.votes_warnings(plan, 1000))


#: What gives warnings, each in a moment.
def audited(place: Path) -> str:
    """An attack that runs on private rows."""
    plan = pv.Plan(pv.sampling.FullBatch(), schedule=pv.schedules.Constant(1.0), examples=9)
    data = pv.Dataset(np.eye(4, 2, dtype=np.float32), np.array([0, 1, 0, 1]), classes=2)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pv.audit(plan, torch.nn.Linear(2, 2), loss, data, trials=10)
    return " ".join(str(each.message) for each in heard)


def logged_to_nobody(place: Path) -> str:
    """A callback that fails when the run is over."""
    plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1.0))
    rows = (zeros(4, 2), zeros(4, dtype=torch.long))
    callback = SimpleNamespace(on_end=lambda progress: progress.nothing)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pv.dpsgd(
            plan, nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), rows, callbacks=callback
        )
    return " ".join(str(each.message) for each in heard)


def slow(place: Path) -> str:
    """A layer without a rule."""
    plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1.0))
    net = nn.Sequential(nn.Linear(2, 2), nn.PReLU(2))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pv.Run(
            plan,
            net,
            nn.CrossEntropyLoss(reduction="none"),
            (zeros(4, 2), zeros(4, dtype=torch.long)),
        )
    return " ".join(str(each.message) for each in heard)


def idle_processes(place: Path) -> str:
    """Noise on a grid in two processes, and a batch that one computes at once."""
    plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1.0))
    loss = nn.CrossEntropyLoss(reduction="none")
    rows = (zeros(4, 2), zeros(4, dtype=torch.long))

    def begin(world: Any) -> None:
        streams = pv.Streams.new(0, discrete=True)
        pv.Run(plan, nn.Linear(2, 2), loss, rows, streams=streams, world=world)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        together(2, begin)
    return " ".join(str(each.message) for each in heard)


def compared(place: Path) -> str:
    """A private figure that a script compares."""
    plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1.0))
    loss = nn.CrossEntropyLoss(reduction="none")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pv.Run(plan, nn.Linear(2, 2), loss, (zeros(4, 2), zeros(4, dtype=torch.long))) as run:
            for epoch in run:
                for batch in epoch:
                    assert run.step(batch)["loss"] < 1e9
    return " ".join(str(each.message) for each in heard)


def without_figures(place: Path) -> str:
    """Test rows that a trained network has no finite prediction for."""
    x, y = np.ones((4, 2), np.float32), np.array([0, 1, 0, 1])
    data = pv.Dataset(x, y, classes=2, low=0, high=1, x_test=np.full_like(x, 0.5), y_test=y)
    network = nn.Linear(2, 2)
    nn.init.constant_(network.weight, float("nan"))
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard):
        assert jobs.test_metrics(network, data) is None
    return heard.getvalue()


def declared_by_a_slip(place: Path) -> str:
    """Ten times as many examples as there are."""
    plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1.0), examples=40)
    rows = (zeros(4, 2), zeros(4, dtype=torch.long))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pv.Run(plan, nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), rows)
    return " ".join(str(each.message) for each in heard)


def without_its_checkpoint(place: Path) -> str:
    """A run that was interrupted, whose checkpoint is deleted to begin anew."""
    plan = pv.Plan(pv.sampling.FullBatch(), 2, pv.schedules.Constant(1.0))
    rows = (zeros(4, 2), zeros(4, dtype=torch.long))
    loss = nn.CrossEntropyLoss(reduction="none")
    path = place / "interrupted.pt"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            with pv.Run(plan, nn.Linear(2, 2), loss, rows, checkpoint=path) as run:
                run.step(next(run.batches()))
            path.unlink()
    return " ".join(str(each.message) for each in heard)


TRIGGERS: dict[str, Callable[[Path], str]] = {
    "a checkpoint that was deleted": without_its_checkpoint,
    "a private figure that is compared": compared,
    "test rows without figures": without_figures,
    "an audit of private rows": audited,
    "a declared number that is a slip": declared_by_a_slip,
    "an epsilon of nothing": budget(
        "--epsilon", "30", "--delta", "1e-6", "--examples", "1000", "--epochs", "5"
    ),
    "few examples for their epsilon": budget(
        "--epsilon", "1", "--delta", "1e-6", "--examples", "300", "--epochs", "2"
    ),
    "rows that noise drowns": budget(
        *("--method", "features", "--mode", "rows", "--classes", "3", "--numbers", "20"),
        *("--epsilon", "2", "--delta", "1e-6", "--examples", "1000"),
    ),
    "a callback that fails at the end": logged_to_nobody,
    "a layer without a rule": slow,
    "processes without examples": idle_processes,
    "a delta of an example": budget(
        "--noise-multiplier", "4", "--delta", "0.01", "--examples", "1000"
    ),
    "a schedule that begins to fall after the end": budget(
        *NOISE, "--epochs", "5", "--schedule", "exp:k=0.1,from=9"
    ),
    "a schedule that never reacts": budget(
        "--epsilon",
        "8",
        "--delta",
        "1e-6",
        "--examples",
        "1000",
        "--epochs",
        "5",
        "--schedule",
        "validation:k=0.7,m=1,threshold=0.01,period=100,start=20,noise=50",
        "--sampling",
        "partition",
    ),
    "few teachers": budget(
        "--method",
        "pate",
        "--teachers",
        "5",
        "--queries",
        "1000",
        "--epsilon",
        "0.5",
        "--delta",
        "1e-6",
        "--examples",
        "8",
        "--classes",
        "3",
    ),
    "few rows for each teacher": budget(
        "--method", "pate", "--queries", "100", "--epsilon", "8", "--examples", "2499"
    ),
    "a threshold that nobody reaches": budget(
        "--method",
        "pate",
        "--teachers",
        "50",
        "--queries",
        "100",
        "--epsilon",
        "8",
        "--delta",
        "1e-6",
        "--threshold",
        "80",
        "--answers",
        "10",
        "--classes",
        "3",
    ),
    "a seed": trained,
    "what verify says": verified,
    "a ledger without a limit": lambda place: " ".join(
        shared_ledger_checks.published("on a record")[1].warnings
    ),
    "a key that others can read": key_of_others,
    "components below the noise": components_below_the_noise,
    "a student that learned little": a_student_that_learned_little,
    "clients that never answer": clients_that_never_answer,
    "few noisy rows": few_noisy_rows,
    "predictions given twice": predictions_given_twice,
    "training beside a private run": trained_beside,
    "fits of estimators": fitted_twice,
    "maps that bring nothing": maps_that_bring_nothing,
    "maps drowned in noise": noisy_maps,
}


def patterns() -> Iterator[tuple[str, str]]:
    """Each warning in the source, as a pattern without white space; where it stands comes first."""
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE)
        for node in ast.walk(ast.parse(path.read_text())):
            for text in _texts(node, str(where)):
                yield f"{where}:{text.lineno}", _pattern(text)


def _texts(node: ast.AST, where: str) -> list[ast.expr]:
    match node:
        case ast.Yield(value=ast.JoinedStr() | ast.Constant() as text) if where.startswith(
            YIELDING
        ):
            return [text]
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="warnings"), attr="append"), args=[text]
        ):
            return [text]
        case ast.Call(
            func=ast.Attribute(attr="warn"), args=[ast.JoinedStr() | ast.Constant() as text, *_]
        ):
            return [text]
        case ast.FunctionDef(name=name) if (
            f"privlearn.{where[:-3].replace('/', '.')}:{name}" in RETURNING
        ):
            returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            return [
                part
                for value in returned
                if isinstance(value, ast.List | ast.Tuple)
                for part in value.elts
            ]
        case ast.FunctionDef(name="idle" | "large_delta"):  # a warning, or nothing
            returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            return [value for value in returned if isinstance(value, ast.JoinedStr)]
    return []


def _pattern(text: ast.expr) -> str:
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(
        re.escape(_squeezed(part.value)) if isinstance(part, ast.Constant) else ".*"
        for part in parts
    )


def _squeezed(text: Any) -> str:
    """Without white space: terminals break lines where they like."""
    return "".join(str(text).split())


@check
def check_every_warning_is_given() -> None:
    """Warnings are found by reading the source; one without a trigger here fails, and so does one
    never given.
    """
    with tempfile.TemporaryDirectory() as place:
        heard = "\n".join(_squeezed(trigger(Path(place))) for trigger in TRIGGERS.values())
    every = dict(patterns())
    assert all(any(where.startswith(file) for where in every) for file in YIELDING)
    for where, pattern in every.items():
        assert re.search(pattern, heard), f"the warning at {where} was not given"


@check
def check_python_warns_of_noise_as_the_command_line_does() -> None:
    """Of votes, thresholds and codes: the same texts, once; none of quiet noise, and a command
    repeats none.
    """
    student = pv.teachers.Student(lambda shape: nn.Linear(4, 3), epochs=1)
    labels, maps = [torch.arange(30) % 3] * 6, [zeros(30, 2, 3)] * 6
    cases = [
        (pv.teachers.Votes(3), labels),
        (pv.teachers.ConfidentVotes(3, 7.0, 9), labels),
        (pv.teachers.Ball(1.0), maps),
    ]
    for aggregate, said in cases:
        for noise in (40.0, 1e-3):
            threshold = isinstance(aggregate, pv.teachers.ConfidentVotes) and noise < 1
            asked = pv.teachers.ConfidentVotes(3, 5.0, 9) if threshold else aggregate
            plan = pv.teachers.PatePlan(30, 6, asked, noise_multiplier=noise)
            votes = said is labels
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                answers = pv.teachers.ask_teachers(
                    plan, Said(*said), None if votes else teachers.Identity((2, 3)), zeros(30, 4)
                )
            given = [str(each.message) for each in caught]
            assert given == list(methods.votes_warnings(plan, None)), (plan, given)
            assert len(given) == (noise > 1) * (
                1 + isinstance(asked, pv.teachers.ConfidentVotes)
            ), (plan, given)
            if votes and noise < 1:
                pv.teachers.teach_student(answers, student)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words = (
            "--method",
            "pate",
            "--data",
            "digits",
            "--epsilon",
            "1",
            "--teachers",
            "5",
            "--queries",
            "40",
        )
        heard = told(
            "train", *words, "--teacher", "logistic", "--epochs", "1", "--out", f"{place}/model"
        )
    assert "on each count" in " ".join(heard.split())
    assert not [each for each in caught if "the noise of" in str(each.message)]


@check
def check_warnings_need_a_cause() -> None:
    """Ordinary plans and certificates: none, at the very edges of what is warned of."""
    for more in (
        NOISE,
        ("--epsilon", "1", "--delta", "1e-6", "--examples", "500", "--epochs", "2"),
        ("--noise-multiplier", "4", "--delta", "0.000999", "--examples", "1000"),
        (*NOISE, "--epochs", "5", "--schedule", "exp:k=0.1,from=4"),
        (
            "--method",
            "pate",
            "--teachers",
            "250",
            "--queries",
            "100",
            "--epsilon",
            "8",
            "--delta",
            "1e-6",
            "--classes",
            "3",
            "--examples",
            "2500",
        ),
        (
            "--method",
            "pate",
            "--teachers",
            "250",
            "--queries",
            "100",
            "--epsilon",
            "8",
            "--delta",
            "1e-6",
            "--classes",
            "3",
            "--threshold",
            "250",
            "--answers",
            "10",
        ),
    ):
        assert "warning" not in told("budget", *more), more
    half = told("budget", "--method", "pate", "--epsilon", "8", "--examples", "500")
    assert "most of them have one or none" not in half
    with tempfile.TemporaryDirectory() as place:
        out = published(Path(place), "declared", delta=9e-4)
        assert not [each for each in verify(out).warnings if "delta" in each]
