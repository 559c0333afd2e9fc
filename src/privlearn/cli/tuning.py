"""`--tune F.toml`: candidates in a file, and the plan to choose among them, without data and without torch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from privlearn._checks import one_of
from privlearn.cli import screen
from privlearn.cli.options import as_options, overridden, read_toml
from privlearn.cli.planning import draft, guaranteed, warnings
from privlearn.errors import BadInput
from privlearn.sampling import Shuffle
from privlearn.tuning.blocks import Blocks
from privlearn.tuning.stopping import Candidate, RandomStopping

#: What a candidate may set for itself. The rest (data, target, adjacency, ...) is one for all.
_OWN = (
    "--model", "--optimizer", "--learning-rate", "--momentum", "--lr-schedule", "--sampling", "--batch-size", "--epochs",
    "--schedule", "--clip", "--clip-norm", "--pca", "--pca-noise", "--average", "--views", "--augment", "--label-smoothing",
)  # fmt: skip
_NUMBERS = {"blocks": ("share", "selection-epsilon"), "random-stopping": ("mean", "shape", "score-noise")}
_LONGEST_NAME = 60

Tuning = Blocks | RandomStopping


@final
@dataclass(frozen=True)
class Choice:
    """The plan to choose by, and the options of each candidate."""

    plan: Tuning
    options: tuple[argparse.Namespace, ...]


def make_choice(options: argparse.Namespace, examples: int) -> Choice:
    """The candidates of the file `options.tune`, calibrated together to the target.

    On blocks, batches keep their share of the data: B out of N examples are B / (k + 1) out of a block.

    Args:
        options: what was given; what a candidate does not set for itself is taken from here.
        examples: the public number of all examples.

    Raises:
        BadInput: no readable file, something in it that does not belong there, or a target that can't be met.
    """
    _require_combinable(options)
    path = Path(options.tune)
    content = read_toml(path)
    tables = content.pop("candidate", None)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadInput(
            f"{path} has no candidates: expected tables [[candidate]], each with options such as learning-rate = 5"
        )
    settings = {key.replace("_", "-"): value for key, value in content.items()}
    way = one_of(f"way in {path}", str(settings.pop("way", "blocks")), _NUMBERS)
    retrain = settings.pop("retrain", False) if way == "blocks" else False
    unknown = [key for key in settings if key not in _NUMBERS[way]]
    if unknown:
        known = ["way", *(["retrain"] if way == "blocks" else []), *_NUMBERS[way]]
        raise BadInput(f"{path} sets {unknown[0][:40]!r}, which {way} does not have: expected {', '.join(known)}")
    numbers = {key.replace("-", "_"): value for key, value in settings.items()}
    named = [_own_options(table, path) for table in tables]
    each = tuple(overridden(options, given) for _, given in named)
    if way == "blocks":
        parts = len(each) + 1
        candidates = tuple(
            _on_a_block(name, given, own, examples, parts, retrain)
            for (name, given), own in zip(named, each, strict=True)
        )
        plan: Tuning = Blocks(candidates, retrain=retrain, **numbers)
    else:
        candidates = tuple(
            Candidate(name, draft(own, examples), settings=_plain(given))
            for (name, given), own in zip(named, each, strict=True)
        )
        plan = RandomStopping(candidates, **{"mean": float(max(1, len(candidates))), **numbers})
    delta = options.delta
    return Choice(plan.calibrate(epsilon=options.epsilon, delta=delta, rho=options.rho), each)


def _require_combinable(options: argparse.Namespace) -> None:
    for option, given, why in (
        (
            "--resume",
            getattr(options, "resume", False),
            "a tuned run keeps no checkpoint; what it was charged stays charged",
        ),
        ("--noise-multiplier", options.noise_multiplier is not None, "the noise is what meets the target"),
        ("--solve", options.solve not in (None, "noise"), "the noise is what meets the target"),
        (
            "--public",
            getattr(options, "public", None) is not None,
            "candidates have no schedule that looks at public rows",
        ),
        ("--plot", getattr(options, "plot", None) is not None, "there is no one schedule to draw"),
    ):
        if given:
            raise BadInput(f"{option} does not go with --tune: {why}. Leave it out")
    if options.epsilon is None and options.rho is None:
        raise BadInput("--tune needs a target for everything together: give --epsilon E (with --delta D) or --rho R")


def _own_options(table: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """A candidate's name, and its options."""
    rest = dict(table)
    name = rest.pop("name", None)
    given = as_options(rest, path)
    for option, value in given.items():
        if option not in _OWN:
            known = ", ".join(own[2:] for own in _OWN)
            raise BadInput(f"a candidate in {path} sets {option[2:]!r}, which it can't: it may set {known}")
        if isinstance(value, bool):
            raise BadInput(
                f"a candidate in {path} sets {option[2:]} to {value}: expected its value, as on the command line"
            )
    shown = ", ".join(f"{option[2:]} {value}" for option, value in given.items()) or "as given"
    return (shown[:_LONGEST_NAME] if name is None else name), given


def _on_a_block(
    name: str, given: dict[str, Any], own: argparse.Namespace, examples: int, parts: int, retrain: bool
) -> Candidate:
    """A candidate for one of `parts` blocks: sampled at the rate that it has on all the data, in batches of fixed size as
    much smaller as a block is.
    """
    whole = plan = draft(own, examples)
    if isinstance(plan.sampling, Shuffle):
        plan = replace(plan, sampling=Shuffle(max(1, round(plan.sampling.batch_size / parts))))
    return Candidate(name, plan, again=whole if retrain else None, settings=_plain(given))


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    return {option[2:]: value for option, value in given.items()}


def figures(plan: Tuning, delta: float) -> dict[str, Any]:
    """The guarantee of the whole, and what else is known of it, as the JSON object that scripts rely on."""
    return {
        **guaranteed(plan.guarantees(delta)),
        "tuning": {"way": plan.kind} | plan.to_json(),
        "unspent": None
        if plan.budget is None
        else 1 - plan.budget.spent(plan.event(), plan.neighbours) / plan.budget.limit,
    }


def headline(plan: Tuning) -> str:
    """What is going to be done, in few words."""
    names = len(plan.candidates)
    if isinstance(plan, Blocks):
        again = ", the chosen one trained again on all the data" if plan.retrain else ""
        return f"{names} candidates on {names + 1} blocks{again}"
    return f"a random number of runs over {names} candidates, {plan.mean:g} expected (shape {plan.shape:g})"


def show_cost(options: argparse.Namespace) -> int:
    """`privlearn budget --tune`: what choosing costs, and the noise that meets the target."""
    plan = make_choice(options, options.examples).plan
    answer = figures(plan, options.delta)
    for warning in warnings(plan.candidates[0].plan, options, options.examples):
        screen.asides.print(f"[yellow]warning[/]: {warning}")
    if options.json:
        screen.print_json(answer)
        return 0
    screen.answers.print(headline(plan))
    for candidate in plan.candidates:
        again = f", trained again with {screen.noise_text(candidate.again)}" if candidate.again is not None else ""
        noise = screen.noise_text(candidate.plan)
        screen.answers.print(f"  {screen.plain(candidate.name)}: noise multiplier {noise}{again}")
    if isinstance(plan, Blocks):
        rows = round(options.examples / (len(plan.candidates) + 1))
        screen.answers.print(
            f"about {rows} examples in a block; the choice itself has privacy loss of range {plan.selection_epsilon:.4g}"
        )
    else:
        screen.answers.print(
            f"scores are counts of right predictions, released with noise multiplier {plan.score_noise:.4g}"
        )
    screen.answers.print(f"delta {options.delta:g}, {answer['adjacency']} neighbours\n")
    screen.answers.print(screen.guarantee_table(answer))
    screen.answers.print(f"\n{screen.meaning(answer)}")
    return 0
