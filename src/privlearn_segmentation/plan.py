"""The plan of teachers who correct a public network's maps, from public numbers; without torch."""

from __future__ import annotations

import math
from typing import Any

from privlearn._checks import one_of
from privlearn.errors import BadInput
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn.methods.pate.votes import with_noise
from privlearn.training.choices import Facts

#: How many teachers there are, and how many volumes they are asked about.
TEACHERS, QUERIES = 32, 20
#: What teachers' maps are released as; the first is the usual one.
CORRECTIONS = "corrections"
WAYS = (CORRECTIONS, "pca", "autoencoder")
#: Numbers in a correction for each class but the background: as many products of cosines have at
#: most 3 half waves over a volume in all (`Corrections`).
WAVES = math.comb(3 + 3, 3)
#: Numbers in a code of the autoencoder.
AUTOENCODER_SIZE = 8
#: Lengths of the teachers' mean correction, in radii, in tables.
_LENGTHS = (0.25, 0.5, 1.0)


def settle_corrections(options: Any, facts: Facts) -> PatePlan:
    """The plan of codes of maps, with its noise, but for the radius, which a public network will
    tell.

    Codes are in a ball of radius 1 until then. Noise multipliers and costs don't depend on it, so
    that all that can be refused is refused before anything is trained.

    Args:
        options: by name; `public` are public volumes, those in `x_test` to ask about, None where
            they are not known yet.
        facts: what is public of the rows.

    Raises:
        BadInput: an unknown way to make codes, numbers out of range or beyond the public volumes,
            or not exactly one of a target and a noise multiplier.
    """
    one_of("codes", options.codes or CORRECTIONS, WAYS)
    pool = None if options.public is None else len(options.public.x_test)
    queries = min(QUERIES, pool or QUERIES) if options.queries is None else options.queries
    if pool is not None and queries > pool:
        raise BadInput(
            f"queries is {queries}, and there are {pool} public volumes to ask about: ask about "
            f"all of them at most, queries={pool}"
        )
    teachers = TEACHERS if options.teachers is None else options.teachers
    return with_noise(PatePlan(queries, teachers, Ball(1.0)), options, persons=facts.persons)


def correction_figures(plan: PatePlan, classes: int) -> dict[str, Any]:
    """What the noise of a plan does to corrections, as scripts rely on it.

    `kept_of_common` and `kept_of_own` are what a student keeps of a correction of that length in
    what all queries have in common, and in what one of them has alone, on average over the noise,
    if all numbers share in it alike.

    Args:
        plan: with its noise.
        classes: in a map, the background included.
    """
    numbers = (classes - 1) * WAVES
    noise = plan.noise_std**2 * numbers  # the codes are in a ball of radius 1
    table = [
        {
            "length": length,
            "kept_of_common": length**2 / (length**2 + noise / plan.queries),
            "kept_of_own": length**2 / (length**2 + noise),
        }
        for length in _LENGTHS
    ]
    return {"numbers": numbers, "noise_in_radii": plan.noise_std, "kept": table}
