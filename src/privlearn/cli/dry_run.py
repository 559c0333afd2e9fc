"""What a run takes, before it begins: `privlearn train --dry-run`, and the time of a long run."""

from __future__ import annotations

from typing import Any

from privlearn.cli import methods, screen
from privlearn.cli.jobs import Job
from privlearn.cli.ledger_room import describe_room, open_ledger, require_ledger
from privlearn.cli.request import Request
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.ledger import Releases
from privlearn.core.accounting.ledgers.addresses import database_at
from privlearn.core.accounting.ledgers.similar_names import words_on_similar
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing.new_folder import require_free
from privlearn.training.rehearsal import Rehearsal, rehearse

#: How gradients of single examples are computed, in words.
_WAYS = {
    "layers": "layer by layer, the fast way",
    "vmap": "by torch.func.vmap, which is slow",
    "loop": "one example at a time, which is slowest",
}
#: Steps from which on a few more, on made-up rows, cost next to nothing; and seconds from which on
#: a run is long.
_MANY_STEPS, _LONG = 500, 60.0
#: Seconds of a step without privacy from which on one with it is compared with it.
_COMPARABLE = 0.005


def show(request: Request, job: Job) -> int:
    """Print the plan, its price, what a step takes on made-up rows, and whether the ledger has
    room: 1 if it has none.
    """
    if request.out is not None:
        require_free(request.out)
    if job.plan is None and job.headline is None:
        raise BadInput(
            f"--dry-run needs a plan that is known before the run: --method {request.method} has "
            "none"
        )
    room = _describe_room(request, job)
    took = None if job.settled is None else rehearse(job.settled, job.data, job.loss)
    code = 0 if room.get("room", {"fits": True})["fits"] else 1
    if request.json:
        dry = {"dry_run": None if took is None else _figures(took)}
        screen.print_json(job.answer | dry | room)
        return code
    screen.guarantee_lines(job.answer)
    screen.answers.print(f"\n{screen.meaning(job.answer)}\n")
    table = screen.Table(show_header=False)
    for label, text in (
        _rows(took) if took else {"time": f"not estimated for --method {request.method}"}
    ).items():
        table.add_row(label, text)
    screen.answers.print(table)
    if lines := screen.room_lines(room):
        screen.answers.print(f"\n{screen.BREAK.join(lines)}")
    screen.answers.print("\nA dry run: nothing was trained, charged, written or published.")
    return code


def _describe_room(request: Request, job: Job) -> dict[str, Any]:
    """Whether the ledger that is named has room for the run and what it releases of test rows; no
    ledger is begun.
    """
    if request.ledger is None or job.plan is None:
        return {}
    database = database_at(request.ledger)
    if not database.exists():
        if words_on_similar(database.path):
            require_ledger(database)  # refused, as the run would be
        screen.notes.print(
            f"there is no ledger {database.path}: the run would begin one that only records"
        )
        return {}
    plan, paid = job.plan, methods.metrics_plan(request, job.plan, job.data)
    both: Planned = plan
    if paid is not None:
        both = Releases(compose([plan.event(), paid.event()]), plan.neighbours, plan.unit)
    return describe_room(open_ledger(request), both, request.delta, request.command)


def say_time(job: Job) -> None:
    """Print about how long a long run of DP-SGD is going to take, measured on made-up rows."""
    if job.settled is None or job.plan is None or (job.answer.get("steps") or 0) < _MANY_STEPS:
        return
    try:
        took = rehearse(job.settled, job.data, job.loss)
    except PrivlearnError:
        return  # the run itself says what is wrong
    if took.seconds >= _LONG:
        screen.notes.print(f"about {screen.duration(took.seconds)} of training on this machine")


def _figures(took: Rehearsal) -> dict[str, Any]:
    return {**vars(took), "seconds": took.seconds, "factor": took.factor}


def _rows(took: Rehearsal) -> dict[str, str]:
    why = f": {screen.plain(took.reason)}" if took.reason else ""
    advice = (
        ""
        if took.way == "layers"
        else f"{screen.BREAK}docs/models.md says which models have a fast way"
    )
    memory = (
        "not estimated with --microbatch"
        if took.memory is None
        else f"about {screen.size(took.memory)}"
    )
    # In shorter steps most is a fixed cost, and the quotient is not the network's.
    factor = (
        f", {took.factor:.1f} times as long as without privacy"
        if took.plain_seconds >= _COMPARABLE
        else ""
    )
    return {
        "steps": f"{took.steps:,}, of about {took.batch:,} examples each",
        "time": (
            f"about {screen.duration(took.seconds)} on this machine, beside public features "
            "and test metrics"
        ),
        "a step": f"{took.step_seconds:.2g} s{factor}",
        "memory": f"{memory} beside the data",
        "weights": f"{took.parameters:,}",
        "gradients": f"{_WAYS[took.way]}{why}{advice}",
    }
