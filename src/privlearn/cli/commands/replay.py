"""`privlearn commit` and `replay`: bind a run to its rows, and check parts of a recorded run by
taking them again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from privlearn._display import shortened
from privlearn._storage import loads
from privlearn.auditing import commit, replay
from privlearn.cli import screen
from privlearn.cli.checkpoints import KeptCheckpoint, keep_options, options_file, require_recordable
from privlearn.cli.commands.train import settled_job
from privlearn.cli.jobs import Job, Opened, data_of
from privlearn.cli.methods import with_pca
from privlearn.cli.options import options_of
from privlearn.cli.request import Request
from privlearn.errors import BadInput
from privlearn.models.networks import is_built_in
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.result import Result


def make_commitment(request: Request) -> int:
    """Commit to the rows of a run that is going to be recorded, and to the run: it is begun, and
    nothing is spent.
    """
    training = Request.of(
        "train", **{name: value for name, value in request.values.items() if name != "json"}
    )
    training = with_pca(training).replaced(
        transcript=request.out, ledger=None, sign=None, resume=False, paid_metrics=None
    )
    require_recordable(training)
    training.require_suited()
    data = data_of(training)
    with settled_job(training, data) as job:
        discrete = training.discrete
        answer = {
            "commitment": commit(data, request.out, _trains(job, training), discrete=discrete),
            "out": request.out,
        }
    keep_options(training, request.out)
    if request.json:
        screen.print_json(answer)
        return 0
    screen.answers.print(f"committed: {answer['commitment']}")
    folder = screen.plain(request.out)
    screen.notes.print(
        f"show {folder}/commitment.json to the auditor; keep the rest of {folder}, as secret as "
        "the data"
    )
    screen.notes.print(
        f"then train with the same options, --transcript {folder} and --challenge HEX, what the "
        "auditor answers"
    )
    return 0


def _trains(job: Job, training: Request) -> Callable[[Checkpoint], Result]:
    """The training of a job, as a function of the checkpoint."""

    def train(checkpoint: Checkpoint) -> Result:
        return job.run(Opened(training, Path(training.out), None, None, KeptCheckpoint(checkpoint)))

    return train


def run(request: Request) -> int:
    """Take parts of a recorded run again; 1 if something does not agree, or no published weights
    were compared.
    """
    choice = None if request.choice is None else request.choice.encode()
    training = _training(request)
    data = data_of(training)
    with settled_job(training, data) as job, screen.progress_bar("replaying", "parts") as progress:
        report = replay(
            request.folder,
            _trains(job, training),
            data,
            steps=request.steps,
            choice=choice,
            tolerance=request.tolerance,
            published=request.published,
            progress=progress,
        )
    if request.json:
        screen.print_json(report.to_json())
        return 0 if report.ok else 1
    style = "green" if report.ok else "yellow" if report.agrees else "red"
    verdict = report.verdict if report.agrees else "does not agree"
    screen.answers.print(f"{screen.style(f'{style} bold')}{screen.plain(verdict)}{screen.END}")
    for label, text in report.rows():
        screen.answers.print(f"  {label:28} {screen.plain(text)}")
    for problem in report.problems:
        screen.answers.print(f"  - {screen.plain(problem)}")
    return 0 if report.ok else 1


def _training(request: Request) -> Request:
    """The options of the run, with the auditor's own places of data and schema.

    Raises:
        BadInput: the folder holds none.
    """
    path = options_file(request.folder)
    try:
        stored: dict[str, Any] = loads(path.read_bytes())
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in stored.items()
        }
        _require_known(options)
        training = Request.of("train", **options)
    except BadInput:
        raise
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}. A run that a script recorded is replayed by "
            "privlearn.auditing.replay(folder, train, data)"
        ) from error
    _require_own_code(request, training)
    places = {name: request.values[name] for name in ("data", "data_dir", "schema", "test_data")}
    changes = {name: value for name, value in places.items() if value is not None}
    return training.replaced(
        **changes, out=request.folder, ledger=None, sign=None, resume=False, paid_metrics=None
    )


def _require_known(options: dict[str, Any]) -> None:
    """Raise `ValueError` for what is no option of `train`, or of another type."""
    known = options_of("train")
    for name, value in options.items():
        kind: Any = known[name].kind  # a KeyError is refused, too
        if value is not None and kind in (str, int, float, bool):
            choices = known[name].choices or (value,)
            if (
                not isinstance(value, (int, float) if kind is float else kind)
                or value not in choices
            ):
                raise ValueError(f"{name} is {shortened(repr(value), 60)}")


def _require_own_code(request: Request, training: Request) -> None:
    """A folder must not choose the code that runs here.

    Raises:
        BadInput: the run names code of a model or of features that the auditor does not name.
    """
    named = {"model": not is_built_in(training.model)}
    named["features"] = str(training.features or "").partition(":")[2].isidentifier()
    for name, is_code in named.items():
        spec, value = training.values[name], request.values[name]
        if is_code and value != spec:
            raise BadInput(
                f"the run's {name} were made by {shortened(str(spec), 60)}: if you trust that code "
                f"and have it, give it yourself, --{name} package.module:function"
            )
        if value not in (None, spec):
            raise BadInput(
                f"--{name} is {value}: the run names {shortened(str(spec), 60)}. Leave the option "
                "out"
            )
