"""`privlearn audit` and `selfcheck`: attack a release, and say what that proves; check this
installation.
"""

from __future__ import annotations

import copy
import json
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from privlearn.auditing import (
    Audit,
    audit,
    audit_training,
    distinguish,
    infer_membership,
    selfcheck,
)
from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.sampling import FullBatch, named
from privlearn.core.schedules import Constant, ReactingSchedule
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.publishing import certificate
from privlearn.publishing.folder import CERTIFICATE
from privlearn.publishing.verify import verify
from privlearn.training.best_sampling import BEST
from privlearn.training.dpsgd import dpsgd

#: Trials of a custom function, by default: each may be a whole training.
_RUNS = 1_000
_FORMATS = (".md", ".json", ".png")
#: What of a published plan was attacked.
_ONE_RELEASE = (
    "One release of the plan was attacked: the epsilon claimed above is its price, and not that of "
    "the run."
)
_WHOLE_RUN = (
    "Whole runs of the plan were attacked, on made-up rows: the epsilon claimed above is the price "
    "of a run, for one example. The lower bound is no guarantee."
)


def run(request: Request) -> int:
    """Print what was found; 1 if the claim is refuted."""
    out = None if request.out is None else _free(Path(request.out))
    attacked = ""
    if request.folder is not None:
        report, attacked = _attack_published(request)
    elif request.code is not None:
        with _run_file(request.code) as definitions:
            report = _of_code(request, definitions)
    else:
        report = _attack(request, _plan(request))
    if out is not None:
        _write(report, out)
    if request.json:
        screen.print_json(report.to_json())
        return 0 if report.ok else 1
    style = "green" if report.ok else "red"
    screen.answers.print(
        f"{screen.style(f'{style} bold')}{'not refuted' if report.ok else 'refuted'}{screen.END}: "
        f"{screen.plain(report.verdict)}"
    )
    for label, text in report.rows():
        screen.answers.print(f"  {label:24} {screen.plain(text)}")
    if request.folder is not None:
        screen.answers.print(
            f"{attacked} This tests the code of this installation, with the numbers of the "
            "certificate's plan. That the run was by this code is the publisher's word."
        )
    return 0 if report.ok else 1


def _free(out: Path) -> Path:
    if out.suffix not in _FORMATS:
        raise BadInput(f"--out is {out}: expected a file that ends in {', '.join(_FORMATS)}")
    if out.exists() or out.is_symlink():
        raise BadInput(f"{out} exists already: choose another --out; nothing is overwritten")
    return out


def _plan(request: Request) -> Plan:
    """One release, as the options say.

    Raises:
        BadInput: no noise, or a sampling without a batch size.
    """
    for name, value in (("canaries", request.canaries), ("shadows", request.shadows)):
        if value is not None:
            raise BadInput(
                f"--{name} are for a training: say what is trained, --code FILE.py with plan, "
                "model, loss, data"
            )
    if request.noise_multiplier is None:
        raise BadInput(
            "nothing to attack: give --noise-multiplier S, or code of your own with --code FILE.py"
        )
    if request.sampling == BEST:
        raise BadInput(
            f"--sampling {BEST} compares samplers at a target, and an audit attacks releases with "
            "noise that is given: name the sampler, for example the one that budget --sampling "
            "best lists first"
        )
    if request.sampling != FullBatch.kind and request.batch_size is None:
        raise BadInput(
            f"--sampling {request.sampling} needs a batch size: give --examples N and --batch-size "
            "B"
        )
    sampler = named(request.sampling, request.batch_size or request.examples, request.examples)
    adjacency = None if request.adjacency is None else Adjacency.parse(request.adjacency)
    return Plan(
        sampler,
        schedule=Constant(request.noise_multiplier),
        examples=request.examples,
        adjacency=adjacency,
    )


def _delta(request: Request, usual: float = 1e-5) -> float:
    return usual if request.delta is None else float(request.delta)


def _attack(
    request: Request, plan: AbstractPlan, claimed_at: float = 1e-5, **arguments: Any
) -> Audit:
    unit = "steps" if isinstance(plan, Plan) else "runs"
    with screen.progress_bar("attacking", unit) as progress:
        return audit(
            plan,
            **arguments,
            delta=_delta(request, claimed_at),
            trials=request.trials,
            confidence=request.confidence,
            streams=_streams(request),
            progress=progress,
        )


def _attack_published(request: Request) -> tuple[Audit, str]:
    """The attack on the plan of a published folder, at the delta that it claims; and what of it was
    attacked.

    Raises:
        BadInput: the folder does not verify, its plan does not say how it is attacked, or an option
            says what the certificate says.
    """
    for name in ("noise_multiplier", "batch_size", "adjacency", "code", "canaries", "shadows"):
        if getattr(request, name) is not None:
            raise BadInput(
                f"--{name.replace('_', '-')} goes without FOLDER, whose plan says what is "
                "attacked: leave one of the two out"
            )
    checked = verify(request.folder, key=request.key)
    if not checked.ok or checked.plan is None or checked.delta is None:
        raise BadInput(
            f"{request.folder} does not verify: {checked.problems[0][:160]}. Get an unchanged "
            "copy; `privlearn verify` lists all problems"
        )
    plan = _find_training(request.folder, checked.plan)
    report = _attack(request, plan, checked.delta)
    if isinstance(plan, Plan):
        return report, _ONE_RELEASE
    return report, _WHOLE_RUN


def _find_training(folder: str, plan: AbstractPlan) -> AbstractPlan:
    """The plan that trained the model: of a choice among candidates that of the chosen one.

    Noise that follows from accuracies is attacked where it starts, and replace-one neighbours as
    zero-out ones, with the same noise multiplier over their sensitivity.
    """
    content = (Path(folder) / CERTIFICATE).read_bytes()
    training = plan.trained(certificate.parse(content)["facts"])
    if not isinstance(training, Plan):
        return training
    if isinstance(training.schedule, ReactingSchedule):
        start = Constant(training.schedule.start)
        training = replace(training, schedule=start, filter=None, budget=None)
    if training.neighbours is not Adjacency.REPLACE_ONE:
        return training
    return replace(training, adjacency=Adjacency.ZERO_OUT, budget=None)


def _streams(request: Request) -> Streams:
    return Streams.new(discrete=request.discrete)


@contextmanager
def _run_file(path: str) -> Iterator[dict[str, Any]]:
    """What a custom file defines.

    Raises:
        BadInput: it can't be run.
    """
    try:
        definitions = runpy.run_path(path)
    except (OSError, SyntaxError, ImportError) as error:
        raise BadInput(f"--code {path} can't be run: {error}") from error
    yield definitions


def _of_code(request: Request, definitions: dict[str, Any]) -> Audit:
    """The attack on what a file defines.

    Raises:
        BadInput: it lacks a plan, or what there is to run.
    """
    plan, attacked = definitions.get("plan"), definitions.get("run")
    if not isinstance(plan, Plan):
        raise BadInput(
            f"--code {request.code} defines no plan: expected plan = pv.Plan(...), which is what "
            "is claimed"
        )
    if attacked is None:
        missing = [name for name in ("model", "loss", "data") if name not in definitions]
        if missing:
            raise BadInput(
                f"--code {request.code} defines no {' and no '.join(missing)}: expected model, "
                "loss and data, or a function run(took_part) that returns what is released"
            )
        if request.shadows is not None:
            return _of_membership(request, definitions)
        if request.canaries is not None:
            return audit_training(
                plan,
                definitions["model"],
                definitions["loss"],
                definitions["data"],
                canaries=request.canaries,
                delta=_delta(request),
                confidence=request.confidence,
                streams=_streams(request),
                **definitions.get("arguments", {}),
            )
        arguments = {
            name: definitions[name]
            for name in ("model", "loss", "data", "canary")
            if name in definitions
        }
        return _attack(request, plan, **arguments)
    if not callable(attacked):
        raise BadInput(f"run in --code {request.code} is not a function: expected run(took_part)")
    return distinguish(
        attacked,
        plan.event(),
        plan.neighbours,
        delta=_delta(request),
        trials=request.trials or _RUNS,
        confidence=request.confidence,
        attack=f"run of {Path(request.code).name}",
    )


def _of_membership(request: Request, definitions: dict[str, Any]) -> Audit:
    """Whom of a file's data a model was trained on: half of them take part.

    Raises:
        BadInput: the plan has transforms in front of the network.
    """
    plan, model, streams = definitions["plan"], definitions["model"], _streams(request)
    if plan.front:
        raise BadInput(
            f"the plan in --code {request.code} has transforms in front of the network: leave them "
            "out"
        )

    def train(rows: Dataset) -> nn.Module:
        network = copy.deepcopy(model) if isinstance(model, nn.Module) else model
        return dpsgd(
            plan, network, definitions["loss"], rows, **definitions.get("arguments", {})
        ).model

    with screen.notes.status(f"training a model, and {request.shadows} beside it"):
        return infer_membership(
            train,
            definitions["data"],
            plan,
            shadows=request.shadows,
            delta=_delta(request),
            confidence=request.confidence,
            streams=streams,
        )


def _write(report: Audit, out: Path) -> None:
    if out.suffix == ".png":
        figure = report.plot().get_figure(root=True)
        assert figure is not None
        figure.savefig(out, dpi=120)
    elif out.suffix == ".json":
        out.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    else:
        out.write_text(report.to_markdown(), encoding="utf-8")


def check_installation(request: Request) -> int:
    """Print the outcome of each check of `privlearn selfcheck` as it comes; 1 if one fails."""
    outcomes = []
    for outcome in selfcheck():
        outcomes.append(outcome)
        if not request.json:
            mark = (
                f"{screen.style('green')}ok{screen.END}    "
                if outcome.ok
                else f"{screen.style('red bold')}failed{screen.END}"
            )
            screen.answers.print(
                f"{mark} {outcome.name}: {screen.plain(outcome.detail)} ({outcome.seconds:.1f} s)"
            )
    ok = all(outcome.ok for outcome in outcomes)
    if request.json:
        screen.print_json({"ok": ok, "checks": [asdict(outcome) for outcome in outcomes]})
    elif not ok:
        screen.answers.print(
            f"{screen.style('red bold')}Do not train on private data with this "
            f"installation.{screen.END}"
        )
    return 0 if ok else 1
