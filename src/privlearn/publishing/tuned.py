"""What the settings of a tuned run say: which events choosing among the candidates amounts to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from privlearn._checks import count, one_of
from privlearn.accounting import trees
from privlearn.accounting.events import Event, compose, tally
from privlearn.accounting.mechanisms import Selection
from privlearn.errors import BadInput
from privlearn.tuning.blocks import choosing
from privlearn.tuning.stopping import stopping


def described(settings: dict[str, Any], run: Callable[[dict[str, Any]], Event]) -> Event:
    """The events that `settings` amount to: those of the run itself, or of all that it was chosen among.

    Args:
        settings: of a published run.
        run: the events that one training's settings amount to.

    Raises:
        BadInput: the published run is not the candidate that is said to have been chosen, or no way of choosing is named.
        KeyError, TypeError, ValueError, AttributeError: fields are missing or of other types.
    """
    if "tuning" not in settings:
        return run(settings)
    tuning = settings["tuning"]
    candidates = tuning["candidates"]
    count("chosen", tuning["chosen"], least=0, most=len(candidates) - 1)
    trainings = [run(candidate["plan"]) for candidate in candidates]
    if one_of("way", str(tuning["way"])[:40], ["blocks", "random-stopping"]) == "blocks":
        parts = [choosing(trainings, Selection(tuning["selection_epsilon"]))]
        if tuning["retrain"]:
            trainings = [run(candidate.get("again", candidate["plan"])) for candidate in candidates]
            parts.append(trees.one_of(trainings))
    else:
        parts = [stopping(trainings, tuning["score_noise"], tuning["mean"], tuning["shape"])]
    if tally(run(settings)) != tally(trainings[tuning["chosen"]]):
        raise BadInput("the run that is published is not the one of the candidate that is said to have been chosen")
    return compose(parts)


def card_lines(settings: dict[str, Any]) -> list[str]:
    """The section of the card on how the parameters were chosen; empty if nothing says that they were."""
    if "tuning" not in settings:
        return []
    tuning = settings["tuning"]
    chosen = tuning["candidates"][tuning["chosen"]]["name"]
    if tuning["way"] == "blocks":
        how = (
            f"Each of {len(tuning['candidates'])} candidates was trained on a random block of the data of its own, and one "
            "was drawn by the exponential mechanism on their errors on a further block (privacy loss of range "
            f"{tuning['selection_epsilon']:.4g}). "
            + ("It was then trained again on all the data." if tuning["retrain"] else "It is published as it is.")
        )
    else:
        how = (
            f"A random number of runs ({tuning['mean']:g} expected, shape {tuning['shape']:g}) each trained a candidate drawn "
            f"from {len(tuning['candidates'])} and released a noisy count of its right predictions (noise multiplier "
            f"{tuning['score_noise']:.4g}). The best run is published; how many there were is nowhere recorded."
        )
    lines = [
        "## How the parameters were chosen",
        "",
        f"{how} All of that is in the guarantee. Chosen: **{chosen}**.",
        "",
    ]
    lines += ["| candidate | settings |", "| --- | --- |"]
    for candidate in tuning["candidates"]:
        values = ", ".join(f"{name} {value}" for name, value in candidate["settings"].items())
        lines.append(f"| {candidate['name']} | {values or 'as on the command line'} |")
    return [*lines, ""]
