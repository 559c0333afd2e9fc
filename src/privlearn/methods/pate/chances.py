"""What the noise of a plan does to votes and codes: chances, and warnings; from public numbers
alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from privlearn._scipy import ndtr
from privlearn.methods.pate.plan import Ball, ConfidentVotes, PatePlan, Votes

#: A warning is due if the class of nine teachers in ten wins less often than this.
_OFTEN = 0.75


def chance_to_win(plan: PatePlan, share: float, *, together: bool) -> float:
    """The probability that the class of that share of the teachers has the highest noisy count.

    Args:
        plan: of votes, with its noise.
        share: of the teachers that vote for that class.
        together: whether all others vote for one other class; else they spread evenly over the
            other classes.
    """
    assert isinstance(plan.aggregate, Votes | ConfidentVotes)
    others, rest = plan.aggregate.classes - 1, (1 - share) * plan.teachers
    levels, times = np.array([0.0, rest]), np.array([others - 1, 1])
    if not together:
        levels, times = np.array([rest / others]), np.array([others])
    noise = np.linspace(-9, 9, 2001)  # the noise on the class's own count, in standard deviations
    ahead = ndtr(noise[:, None] + (share * plan.teachers - levels) / plan.noise_std)
    density = np.exp(-(noise**2) / 2)
    return float((density * (ahead**times).prod(1)).sum() / density.sum())


def chance_to_be_answered(plan: PatePlan, share: float) -> float:
    """The probability that a query is answered on which that share of the teachers agree; 1 without
    a threshold.
    """
    if not isinstance(plan.aggregate, ConfidentVotes):
        return 1.0
    noise = plan.test_noise * plan.aggregate.test_sensitivity
    return float(ndtr((share * plan.teachers - plan.aggregate.threshold) / noise))


def drowned(plan: PatePlan) -> Iterator[str]:
    """Warnings of noise that is louder than the teachers, and of a threshold above all their votes.

    Args:
        plan: with its noise.
    """
    asked = plan.aggregate
    if (
        isinstance(asked, Votes | ConfidentVotes)
        and (wins := chance_to_win(plan, 0.9, together=False)) < _OFTEN
    ):
        yield (
            f"the noise of {plan.noise_std:.4g} on each count is "
            f"{plan.noise_std / plan.teachers:.0%} of the {plan.teachers} votes: where nine "
            f"teachers in ten agree, their class wins with probability {wins:.2f} only. More "
            "teachers help (the noise stays as it is), fewer queries, or a larger epsilon; "
            "`privlearn budget` shows how much"
        )
    if isinstance(asked, ConfidentVotes) and asked.threshold > plan.teachers:
        yield (
            f"the threshold of {asked.threshold:g} votes is more than the {plan.teachers} teachers "
            "have: only noise reaches it"
        )
    if isinstance(asked, Ball) and (noise := plan.noise_std / asked.radius) > 1:
        yield (
            f"the noise on each number of an answer, {noise:.2f} radii, is larger than any whole "
            "answer may be, and drowns what teachers say. More teachers help (twice as many, half "
            "the noise), fewer queries, or a larger epsilon"
        )
