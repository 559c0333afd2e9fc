"""PATE's options, its plan, and what noise does to votes; from public numbers, without data and without torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from rich.table import Table
from scipy.special import ndtr

from privlearn._checks import count
from privlearn.accounting.budget import Budget
from privlearn.accounting.guarantee import Adjacency
from privlearn.cli import screen
from privlearn.cli.planning import guaranteed
from privlearn.errors import BadInput
from privlearn.teachers.plan import ConfidentVotes, PatePlan, Votes

_TEACHERS, _QUERIES, _CLASSES = 250, 1000, 10
#: What only other methods take, with the value that says that it was not given.
_ALIEN: dict[str, object] = {
    "tune": None, "pca": None, "pca_noise": None, "schedule": "constant", "sampling": "poisson", "batch_size": None,
    "clip": "flat", "clip_norm": None, "solve": None, "rows_per_person": None, "plot": None,
    "optimizer": None,
    "momentum": None, "lr_schedule": None, "z_steps": None, "z_rate": None, "microbatch": None, "device": None,
    "precision": "float32", "features": None, "features_cache": None, "explain": False,
    "average": None, "views": None, "augment": None, "label_smoothing": None,
}  # fmt: skip
_OWN = ("teachers", "queries", "teacher", "threshold", "answers")
#: Shares of the teachers that agree, in tables.
_SHARES = (0.6, 0.75, 0.9)
#: A warning is due if the class of nine teachers in ten wins less often than this.
_OFTEN = 0.75


def require_combinable(options: argparse.Namespace) -> None:
    """Refuse options that only other methods have, and the other way round.

    Raises:
        BadInput: naming the first of them.
    """
    given = vars(options)
    if options.method == "pate":
        alien = next((name for name, usual in _ALIEN.items() if given.get(name, usual) != usual), None)
        if alien == "rows_per_person":
            raise BadInput(
                "--rows-per-person is for training on batches: with person ids all rows of a person are with one teacher, and "
                "the person is protected at the same price. Leave it out"
            )
        if alien:
            raise BadInput(
                f"--{alien.replace('_', '-')} does not go with --method pate: leave it out, or train by dpsgd. (--model, "
                "--epochs and --learning-rate are the student's, --teacher the teachers'.)"
            )
        return
    alien = next((name for name in _OWN if given.get(name) is not None), None)
    if alien:
        raise BadInput(f"--{alien} is for --method pate: leave it out, or add --method pate")


def make_plan(options: argparse.Namespace, classes: int, pool: int | None = None, persons: bool = False) -> PatePlan:
    """The plan that the options describe, settled.

    Args:
        options: what was given.
        classes: how many there are to vote for.
        pool: public inputs that there are; None: not known.
        persons: whether the data have person ids.

    Raises:
        BadInput: numbers out of range or beyond the pool, or not exactly one of a target and a noise multiplier.
    """
    queries = min(_QUERIES, pool or _QUERIES) if options.queries is None else options.queries
    if pool is not None and isinstance(queries, int) and queries > pool:
        raise BadInput(f"--queries is {queries}, and there are {pool} public inputs to ask about: ask at most {pool}")
    if (options.threshold is None) != (options.answers is None):
        raise BadInput("--threshold and --answers go together: give both, or neither")
    votes: Votes | ConfidentVotes = Votes(classes)
    if options.threshold is not None:
        votes = ConfidentVotes(classes, options.threshold, options.answers)
    return settled(
        options, PatePlan(queries, _TEACHERS if options.teachers is None else options.teachers, votes), persons
    )


def settled(options: argparse.Namespace, plan: PatePlan, persons: bool = False) -> PatePlan:
    """The plan with the neighbours and the unit that the options name, and with noise, given or solved for.

    Raises:
        BadInput: numbers out of range, or not exactly one of a target and a noise multiplier.
    """
    adjacency = Adjacency.ADD_REMOVE if options.adjacency is None else Adjacency.parse(options.adjacency)
    plan = replace(
        plan, noise_multiplier=options.noise_multiplier, adjacency=adjacency, group_size=options.group_size,
        persons=persons and options.group_size == 1,
    )  # fmt: skip
    target = options.epsilon is not None or options.rho is not None
    if target is (options.noise_multiplier is not None):
        raise BadInput(
            "give what may be spent, --epsilon E or --rho R, or the noise, --noise-multiplier S: one of them"
        )
    if not target:
        return plan
    budget = Budget(options.epsilon, options.delta, options.rho, options.group_size)
    return plan.calibrate(epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho)


def chance_to_win(plan: PatePlan, share: float, *, together: bool) -> float:
    """The probability that the class of that share of the teachers has the highest noisy count.

    Args:
        plan: of votes, with its noise.
        share: of the teachers that vote for that class.
        together: whether all others vote for one other class; else they spread evenly over the other classes.
    """
    assert isinstance(plan.aggregate, Votes | ConfidentVotes)
    others, rest = plan.aggregate.classes - 1, (1 - share) * plan.teachers
    votes = np.array([rest] + [0.0] * (others - 1)) if together else np.full(others, rest / others)
    levels, times = np.unique(votes, return_counts=True)
    own = np.linspace(-9, 9, 2001)  # the noise on the class's own count, in standard deviations
    ahead = ndtr(own[:, None] + (share * plan.teachers - levels) / plan.noise_std)
    density = np.exp(-(own**2) / 2)
    return float((density * (ahead**times).prod(1)).sum() / density.sum())


def chance_to_be_answered(plan: PatePlan, share: float) -> float:
    """The probability that a query is answered on which that share of the teachers agree; 1 without a threshold."""
    if not isinstance(plan.aggregate, ConfidentVotes):
        return 1.0
    noise = plan.test_noise * plan.aggregate.test_sensitivity
    return float(ndtr((share * plan.teachers - plan.aggregate.threshold) / noise))


def figures(plan: PatePlan, delta: float) -> dict[str, Any]:
    """The guarantee of a plan and what its noise does, as the JSON object that scripts rely on."""
    table = [
        {
            "agree": share,
            "answered": chance_to_be_answered(plan, share),
            "wins_against_one": chance_to_win(plan, share, together=True),
            "wins_against_all": chance_to_win(plan, share, together=False),
        }
        for share in _SHARES
    ]
    numbers = plan.to_json() | plan.noise_figures()
    return guaranteed(plan.guarantees(delta)) | {"plan": numbers, "votes": table}


def warnings(plan: PatePlan, examples: int | None) -> Iterator[str]:
    """What is allowed, and hardly ever meant; from public numbers alone.

    Args:
        plan: with its noise.
        examples: the declared number of examples, if there is one.
    """
    wins = chance_to_win(plan, 0.9, together=False)
    if wins < _OFTEN:
        yield (
            f"the noise of {plan.noise_std:.4g} on each count is {plan.noise_std / plan.teachers:.0%} of the {plan.teachers} "
            f"votes: where nine teachers in ten agree, their class wins with probability {wins:.2f} only. More teachers help "
            "(the noise stays as it is), fewer queries, or a larger epsilon; `privlearn budget --method pate` shows how much"
        )
    aggregate = plan.aggregate
    if isinstance(aggregate, ConfidentVotes) and aggregate.threshold > plan.teachers:
        yield (
            f"the threshold of {aggregate.threshold:g} votes is more than the {plan.teachers} teachers have: only noise "
            "reaches it"
        )
    yield from crowded(plan.teachers, examples)


def crowded(teachers: int, examples: int | None) -> Iterator[str]:
    """A warning of more teachers than half the declared number of examples, if there is one."""
    if examples is not None and teachers * 2 > examples:
        yield f"{teachers} teachers share {examples} examples: most of them have one or none to learn from"


def run(options: argparse.Namespace) -> int:
    """`privlearn budget --method pate`: print the guarantee of the votes by every sound accountant, and what noise does."""
    classes = _CLASSES if options.classes is None else count("--classes", options.classes, least=2)
    plan = make_plan(options, classes)
    answer = figures(plan, options.delta)
    for warning in warnings(plan, options.examples):
        screen.asides.print(f"[yellow]warning[/]: {warning}")
    if options.json:
        screen.print_json(answer)
    else:
        _show(answer, plan)
    return 0


def _show(answer: dict[str, Any], plan: PatePlan) -> None:
    out, aggregate = screen.answers, plan.aggregate
    assert isinstance(aggregate, Votes | ConfidentVotes)
    out.print(
        f"[bold]{plan.queries}[/] queries to [bold]{plan.teachers}[/] teachers, who vote for one of {aggregate.classes} "
        "classes"
    )
    if isinstance(aggregate, ConfidentVotes):
        out.print(
            f"At most {aggregate.answers} are answered, where the largest count, with noise of {plan.test_noise:.4g} votes, "
            f"reaches {aggregate.threshold:g}."
        )
    rho = "" if answer["rho"] is None else f", rho {answer['rho']:.6g}"
    out.print(f"delta {answer['delta']:g}, {answer['adjacency']} neighbours{rho}\n")
    out.print(screen.guarantee_table(answer))
    out.print(
        f"\nnoise of [bold]{plan.noise_std:.4g}[/] votes on each count, {plan.noise_std / plan.teachers:.0%} of the teachers. "
        "It follows from queries and epsilon alone: twice the teachers, half the share.\n"
    )
    table = Table(box=None, padding=(0, 2), header_style="bold")
    confident = ["answered"] if isinstance(aggregate, ConfidentVotes) else []
    for name in ("teachers that agree", *confident, "wins: others agree", "wins: others spread"):
        table.add_column(name, justify="right")
    for row in answer["votes"]:
        answered = [f"{row['answered']:.2f}"] if confident else []
        table.add_row(
            f"{row['agree']:.0%}", *answered, f"{row['wins_against_one']:.2f}", f"{row['wins_against_all']:.2f}"
        )
    out.print(table)
    out.print(f"\n{screen.meaning(answer)}")
