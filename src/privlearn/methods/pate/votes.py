"""PATE by options: the plan of teachers who vote on classes, from public numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput
from privlearn.methods.pate.plan import ConfidentVotes, PatePlan, Votes
from privlearn.training.choices import Facts

#: How many teachers there are, and what they are asked about.
TEACHERS, QUERIES = 250, 1000


def require_combinable(options: Any) -> None:
    """Refuse options that do not go together.

    Raises:
        BadInput: naming them.
    """
    if (options.threshold is None) != (options.answers is None):
        raise BadInput("threshold= and answers= go together: give both, or neither")


def settle_votes(options: Any, facts: Facts) -> PatePlan:
    """The plan of votes on classes, with its noise.

    Args:
        options: by name; `public` are the public inputs to ask about, None where they are not known
            yet.
        facts: what is public of the rows.

    Raises:
        BadInput: no classes, numbers out of range or beyond the public inputs, or not exactly one
            of a target and a noise multiplier.
    """
    if facts.classes is None:
        raise BadInput(
            "teachers vote for classes, and these data have other targets: declare them with "
            "classes="
        )
    queries = count_queries(options, QUERIES)
    votes: Votes | ConfidentVotes = Votes(facts.classes)
    if options.threshold is not None:
        votes = ConfidentVotes(facts.classes, options.threshold, options.answers)
    teachers = TEACHERS if options.teachers is None else options.teachers
    return with_noise(PatePlan(queries, teachers, votes), options, persons=facts.persons)


def count_queries(options: Any, usual: int) -> int:
    """How many public inputs are asked about: as many as are given, else as usual or all.

    Args:
        options: by name.
        usual: where there are as many public inputs.

    Raises:
        BadInput: more than there are.
    """
    pool = None if options.public is None else len(options.public.x)
    queries: int = min(usual, pool or usual) if options.queries is None else options.queries
    if pool is not None and isinstance(queries, int) and queries > pool:
        raise BadInput(
            f"queries is {queries}, and there are {pool} public inputs to ask about: ask at most "
            f"{pool}"
        )
    return queries


def with_noise(plan: PatePlan, options: Any, *, persons: bool) -> PatePlan:
    """The plan with the neighbours and the unit that the options name, and with noise, given or
    solved for.

    Args:
        plan: without noise.
        options: by name.
        persons: whether the data have person ids.

    Raises:
        BadInput: numbers out of range, or not exactly one of a target and a noise multiplier.
    """
    adjacency = (
        Adjacency.ADD_REMOVE if options.adjacency is None else Adjacency.parse(options.adjacency)
    )
    plan = replace(
        plan,
        noise_multiplier=options.noise_multiplier,
        adjacency=adjacency,
        group_size=options.group_size,
        persons=persons and options.group_size == 1,
    )
    if (options.epsilon is None and options.rho is None) is (options.noise_multiplier is None):
        raise BadInput(
            "give what may be spent, epsilon=E or rho=R, or the noise, noise_multiplier=S: one of "
            "them"
        )
    if options.noise_multiplier is not None:
        return plan.reachable()
    budget = Budget(options.epsilon, options.delta, options.rho, options.group_size)
    return plan.calibrate(epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho)
