"""`--tune F.toml`: candidates in a file, and the plan to choose among them; without data and
without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from privlearn._checks import one_of
from privlearn.cli import methods, screen
from privlearn.cli.options import options_of
from privlearn.cli.request import Request, plain_options, read_toml
from privlearn.core.plan import Plan
from privlearn.core.sampling import Shuffle
from privlearn.errors import BadInput
from privlearn.methods.tuning.blocks import Blocks
from privlearn.methods.tuning.stopping import (
    OF_CLASSES,
    OF_VALUES,
    Candidate,
    RandomStopping,
    scored_by,
)
from privlearn.models.heads import BOUNDS, head_of
from privlearn.training import rules
from privlearn.training.choices import Facts

_NUMBERS = {
    "blocks": ("share", "selection-epsilon"),
    "random-stopping": ("mean", "shape", "score-noise"),
}
_LONGEST_NAME = 60
#: What does not go with choosing among candidates, and why.
_REFUSED = {
    "resume": "a tuned run keeps no checkpoint; what it was charged stays charged",
    "noise_multiplier": "the noise is what meets the target",
    "solve": "the noise is what meets the target",
    "public": "candidates have no schedule that looks at public rows",
    "plot": "there is no one schedule to draw",
    "features": "candidates learn from the rows as they are",
    "explain": "candidates are chosen, not explained",
    "normalise": "candidates learn from the rows as they are",
    "select": "candidates learn from the rows as they are",
    "class_weights": (
        "candidates are chosen by how many rows they get right, which weighs all rows alike"
    ),
}

Tuning = Blocks | RandomStopping


@final
@dataclass(frozen=True)
class Choice:
    """The plan to choose by, and the options of each candidate."""

    plan: Tuning
    requests: tuple[Request, ...]


def require_combinable(request: Request) -> None:
    """Refuse what does not go with `--tune`, before anything is read or begun.

    Raises:
        BadInput: naming the first of it.
    """
    for name, why in _REFUSED.items():
        if request.given(name) and not (name == "solve" and request.solve == "noise"):
            raise BadInput(
                f"--{name.replace('_', '-')} does not go with --tune: {why}. Leave it out"
            )
    if request.epsilon is None and request.rho is None:
        raise BadInput(
            "--tune needs a target for everything together: give --epsilon E (with --delta D) or "
            "--rho R"
        )


def make_choice(request: Request, facts: Facts) -> Choice:
    """The candidates of the file `request.tune`, calibrated together to the target.

    On blocks, batches keep their share of the data: B out of N examples are B / (k + 1) out of a
    block.

    Args:
        request: the options; what a candidate does not set for itself is taken from here.
        facts: what is public of the data, by which candidates are settled as a run by itself is.

    Raises:
        BadInput: no readable file, something in it that does not belong there, or a target that
            can't be met.
    """
    path = Path(request.tune)
    content = read_toml(path)
    tables = content.pop("candidate", None)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadInput(
            f"{path} has no candidates: expected tables [[candidate]], each with options such as "
            "learning-rate = 5"
        )
    settings = {key.replace("_", "-"): value for key, value in content.items()}
    way = one_of(f"way in {path}", str(settings.pop("way", "blocks")), _NUMBERS)
    retrain = settings.pop("retrain", False) if way == "blocks" else False
    unknown = [key for key in settings if key not in _NUMBERS[way]]
    if unknown:
        known = ["way", *(["retrain"] if way == "blocks" else []), *_NUMBERS[way]]
        raise BadInput(
            f"{path} sets {unknown[0][:40]!r}, which {way} does not have: expected "
            f"{', '.join(known)}"
        )
    numbers = {key.replace("-", "_"): value for key, value in settings.items()}
    named = [_read_candidate(table, path) for table in tables]
    each = tuple(request.with_options(options) for _, options in named)
    metric = _metric(request, facts)
    if way == "blocks":
        parts = len(each) + 1
        candidates = tuple(
            _on_a_block(name, options, candidate_request, facts, parts, retrain)
            for (name, options), candidate_request in zip(named, each, strict=True)
        )
        plan: Tuning = Blocks(candidates, retrain=retrain, metric=metric, **numbers)
    else:
        candidates = tuple(
            Candidate(name, _settle(candidate_request, facts), settings=options)
            for (name, options), candidate_request in zip(named, each, strict=True)
        )
        plan = RandomStopping(
            candidates, metric=metric, **{"mean": float(max(1, len(candidates))), **numbers}
        )
    return Choice(
        plan.calibrate(epsilon=request.epsilon, delta=request.delta, rho=request.rho), each
    )


def _read_candidate(table: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """A candidate's name, and its options."""
    rest = dict(table)
    name = rest.pop("name", None)
    options = plain_options(rest, path)
    allowed = [option.name for option in options_of("train").values() if option.candidate]
    for option, value in options.items():
        if option not in allowed:
            raise BadInput(
                f"a candidate in {path} sets {option!r}, which it can't: it may set "
                f"{', '.join(allowed)}"
            )
        if isinstance(value, bool):
            raise BadInput(
                f"a candidate in {path} sets {option} to {value}: expected its value, as on the "
                "command line"
            )
    by_options = ", ".join(f"{option} {value}" for option, value in options.items()) or "as given"
    return (by_options[:_LONGEST_NAME] if name is None else name), options


def _metric(request: Request, facts: Facts) -> str:
    """What candidates are judged by: what `--metric` says, or what is usual for the targets.

    Raises:
        BadInput: it can't be judged by.
    """
    values = head_of(request.task, facts).declared == BOUNDS
    if "metric" not in request or request.metric is None:
        return "rmse" if values else "accuracy"
    name = screen.METRICS[request.metric][0]
    metrics = OF_VALUES if values else OF_CLASSES
    if name not in metrics:
        expected = " or ".join(
            option for option, (known, _) in screen.METRICS.items() if known in metrics
        )
        raise BadInput(
            f"--metric {request.metric} does not go with --tune: candidates are judged by a sum "
            f"over rows, which each row moves by a bounded amount. Give --metric {expected}"
        )
    return name


def _settle(request: Request, facts: Facts) -> Plan:
    """A candidate's plan as that of a run by itself, on rows as they are; its noise is scaled with
    the whole.
    """
    return replace(rules.settle(methods.training_request(request), facts).plan, budget=None)


def _on_a_block(
    name: str, options: dict[str, Any], request: Request, facts: Facts, parts: int, retrain: bool
) -> Candidate:
    """A candidate for one of `parts` blocks: sampled at the rate that it has on all the data, in
    batches of fixed size as much smaller as a block is.
    """
    whole = plan = _settle(request, facts)
    if isinstance(plan.sampling, Shuffle):
        plan = replace(plan, sampling=Shuffle(max(1, round(plan.sampling.batch_size / parts))))
    return Candidate(name, plan, again=whole if retrain else None, settings=options)


def figures(plan: Tuning, delta: float) -> dict[str, Any]:
    """The guarantee of the whole, and what else is known of it, as the JSON object that scripts
    rely on.
    """
    prices = screen.priced(plan, delta)
    return {
        **prices,
        "tuning": {"way": plan.kind} | plan.to_json(),
        "unspent": screen.unspent(plan, prices),
    }


def headline(plan: Tuning) -> str:
    """What is going to be done, in few words."""
    names = len(plan.candidates)
    if isinstance(plan, Blocks):
        again = ", the chosen one trained again on all the data" if plan.retrain else ""
        return f"{names} candidates on {names + 1} blocks{again}"
    return (
        f"a random number of runs over {names} candidates, {plan.mean:g} expected (shape "
        f"{plan.shape:g})"
    )


def show_cost(request: Request) -> None:
    """`privlearn budget --tune`: what choosing costs, and the noise that meets the target."""
    plan = make_choice(request, Facts(request.examples)).plan
    answer = figures(plan, request.delta)
    screen.warn(*screen.warnings(plan.candidates[0].plan, request.delta, request.examples))
    if request.json:
        screen.print_json(answer)
        return
    screen.answers.print(headline(plan))
    for candidate in plan.candidates:
        again = (
            f", trained again with {rules.noise_text(candidate.again)}"
            if candidate.again is not None
            else ""
        )
        noise = rules.noise_text(candidate.plan)
        screen.answers.print(f"  {screen.plain(candidate.name)}: noise multiplier {noise}{again}")
    if isinstance(plan, Blocks):
        rows = round(request.examples / (len(plan.candidates) + 1))
        screen.answers.print(
            f"about {rows} examples in a block; the choice itself has privacy loss of range "
            f"{plan.selection_epsilon:.4g}"
        )
    else:
        screen.answers.print(
            f"a run's score is a {scored_by(plan.metric)}, released with noise multiplier "
            f"{plan.score_noise:.4g}"
        )
    screen.guarantee_lines(answer)
    screen.answers.print(f"\n{screen.meaning(answer)}")
