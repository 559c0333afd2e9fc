"""PATE: teachers on disjoint records answer public queries, noisily; a student learns from the answers.

For targets of many numbers as Fay et al. (2020) do it, with codes that are clipped; for labels by the Gaussian noisy max
(Papernot et al. 2018), accounted for without a look at the votes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privlearn.accounting.ledger import Ledger
from privlearn.data.dataset import Dataset, as_tensor
from privlearn.errors import BadInput
from privlearn.methods.ensemble.aggregator import Answers, ask, collect
from privlearn.methods.ensemble.plan import PatePlan
from privlearn.methods.ensemble.student import Student, StudentRecipe
from privlearn.methods.result import PrivateDiagnostics, Result
from privlearn.models import Scale
from privlearn.reducers.reducer import Reducer
from privlearn.rng import Streams
from privlearn.teachers.source import Teachers


def pate(
    plan: PatePlan,
    teachers: Teachers,
    reducer: Reducer | None,
    public_inputs: Dataset | Any,
    student: StudentRecipe,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Ask the teachers about public inputs, release their answers with noise, and train a student on them.

    Guarantee: the answers, and so the student, are `plan.guarantee(delta)`-DP for the plan's adjacency and `plan.unit`, if
    each record is with one teacher. The ledger is charged exactly `plan.event()`: one Gaussian release for each query, before
    its noise is drawn (for `pv.ConfidentVotes` the limit that was fixed beforehand). Public inputs, and whatever reducer and
    student learn from them, are not protected. Teachers are trained, and their answers added up, before anything is charged;
    a teacher without a usable answer counts as one that gave the centre (for votes: nothing).

    Args:
        plan: how many queries, of how many teachers, and what noise.
        teachers: `pv.teachers.Trained(...)` or `pv.teachers.Given(...)`.
        reducer: from `pv.reducers`, fitted on public data; None for votes.
        public_inputs: inputs that are public, a row for each, or a `Dataset(..., public=True)`, of which the targets are not
            looked at. The first `plan.queries` are asked about; a student may learn from all.
        student: `pv.Student(...)`, or any function from `Answers` to a trained module.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        progress: called with (teachers done, teachers in all).

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any teacher is asked.
        BadInput: data that are not declared public, fewer inputs than queries, teachers that are not the plan's or that answer
            in other shapes; before anything is charged. Or a student that is none.
    """
    _require_kinds(plan, teachers, student, ledger, streams, progress)
    ledger = Ledger(plan.budget) if ledger is None else ledger
    ledger.require_room(plan.event(), plan.adjacency, plan.unit)
    streams = streams or Streams.new()
    raw, transforms = _public(public_inputs)
    if len(raw) < plan.queries:
        raise BadInput(
            f"there are {len(raw)} public inputs, and the plan asks {plan.queries} queries: expected an input for each. "
            "Nothing was charged; use a plan of fewer queries"
        )
    sums, silent = collect(plan, teachers, reducer, raw[: plan.queries], streams, progress)
    ledger.approve(plan.event(), plan.adjacency, plan.unit)
    try:
        targets, answered, scores = ask(plan, sums, reducer, ledger, streams)
    finally:
        ledger.settle()

    inputs = raw
    with torch.no_grad():
        for transform in transforms:
            inputs = transform(inputs)
    network = student(Answers(inputs, targets, answered, scores, plan.teachers / plan.noise_std**2))
    if not isinstance(network, nn.Module):
        raise BadInput(f"the student is a {type(network).__name__}: expected a trained torch.nn.Module")
    return Result(
        model=nn.Sequential(*transforms, network).eval(),
        ledger=ledger,
        adjacency=plan.adjacency,
        delta=plan.budget.delta if plan.budget else None,
        budget=plan.budget,
        method="pate",
        settings=_settings(plan, reducer, student, answered, len(raw), streams),
        architecture={"input_shape": list(raw.shape[1:]), "network_input_shape": list(inputs.shape[1:])},
        seeded=streams.seeded,
        private_diagnostics=PrivateDiagnostics({"teachers_without_answers": silent}),
    )


def _settings(
    plan: PatePlan, reducer: Reducer | None, student: StudentRecipe, answered: Tensor, pool: int, streams: Streams
) -> dict[str, Any]:
    """What the certificate states. There are no epochs, and the number of records is nowhere used."""
    return {
        **plan.describe(),
        "epochs": None,
        "steps": None,
        "noise_multipliers": None,
        "noise_std": plan.noise_std,
        "answered": int(answered.sum()),
        "public_inputs": pool,
        "reducer": None if reducer is None else reducer.describe(),
        "student": student.describe() if isinstance(student, Student) else None,
        "noise": "on a grid" if streams.noise.discrete else "floating point",
    }


def _public(given: Dataset | Any) -> tuple[Tensor, list[nn.Module]]:
    """Public inputs as they are, and the transforms in front of the student.

    Raises:
        BadInput: a data set that is not declared public, or inputs that are not finite.
    """
    if isinstance(given, Dataset) and not given.public:
        raise BadInput(
            "the inputs that teachers are asked about are not protected: give public ones, pv.Dataset(x, y, public=True)"
        )
    inputs = (
        as_tensor(given.x, whole_is_float=given.low is not None) if isinstance(given, Dataset) else as_tensor(given)
    )
    if inputs.dim() < 2 or (inputs.is_floating_point() and not bool(inputs.isfinite().all())):
        raise BadInput(
            f"public inputs of shape {tuple(inputs.shape)} can't be asked about: expected finite rows of numbers"
        )
    bounded = isinstance(given, Dataset) and given.low is not None
    return inputs, [Scale(*given.bounds())] if bounded else []


def _require_kinds(plan: Any, teachers: Any, student: Any, ledger: Any, streams: Any, progress: Any) -> None:
    """Refuse, before anything is done, arguments that are something else altogether."""
    account = all(callable(getattr(ledger, name, None)) for name in ("require_room", "approve", "charge", "settle"))
    for name, value, fits, expected in (
        ("plan", plan, isinstance(plan, PatePlan), "a pv.PatePlan(queries, teachers, aggregate)"),
        ("teachers", teachers, isinstance(teachers, Teachers), "pv.teachers.Trained(...) or pv.teachers.Given(...)"),
        ("student", student, callable(student), "pv.Student(...), or a function from Answers to a trained module"),
        ("ledger", ledger, ledger is None or account, "a privlearn Ledger, or None for a new one"),
        ("streams", streams, streams is None or isinstance(streams, Streams), "Streams.new(), or None for new ones"),
        ("progress", progress, progress is None or callable(progress), "a function of (done, all), or None"),
    ):
        if not fits:
            raise BadInput(f"{name} is {repr(value)[:60]}: expected {expected}", name=name)
