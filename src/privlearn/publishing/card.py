"""The model card: what a reader of a published model needs to know, with the usual YAML header."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from privlearn._target_ranges import bounds_text
from privlearn._texts import for_code, for_markdown
from privlearn.core.accounting.guarantee import (
    ALL,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    rounded_up,
    times,
)
from privlearn.core.plan import AbstractPlan
from privlearn.core.transform import public_features
from privlearn.methods.neighbouring_runs import is_attackable
from privlearn.models.heads import HEADS
from privlearn.models.networks import is_built_in, makes_maps
from privlearn.publishing import certificate
from privlearn.publishing.certificate import header
from privlearn.publishing.columns import describe_columns, describe_draft, describe_missing
from privlearn.publishing.folder import RELEASED
from privlearn.publishing.statement import Statement
from privlearn.runs.post_processing import ROWS
from privlearn.runs.result import SCRIPTS_RATES
from privlearn.transforms.select import choice_lines

_VERBS = {
    "add_remove": "added to or removed from the training data",
    "zero_out": "replaced by an empty one (the number of examples is public)",
    "replace_one": "replaced by any other (the number of examples is public)",
}


#: Whose choice a kind of neighbour is, and what it leaves open, by what one of the protected is.
_WHY = {
    "add_remove": (
        "The number of {one}s is protected, too: where a run needs one, the publisher declares it "
        "(examples=N), and none is read off the rows."
    ),
    "zero_out": (
        "The number of {one}s is public here: none was declared (examples=N), or this kind of "
        "neighbour was chosen."
    ),
    "replace_one": (
        "The number of {one}s is public here. This kind of neighbour was chosen, or the batches "
        "ask for it: it bounds directly how well two values of one {one}'s data can be told apart."
    ),
}


def noun(unit: PrivacyUnit) -> str:
    """What one of the protected is called."""
    return "example" if unit == PrivacyUnit() else "person"


def why_neighbours(guarantee: Guarantee) -> str:
    """Why neighbours are of this kind, and that others make another promise."""
    one = "example" if guarantee.rows_per_person is None else "person"
    return (
        f"{_WHY[guarantee.adjacency.value].format(one=one)} Epsilons of other kinds of neighbour "
        "are other promises: do not compare them or add them up."
    )


def odds(guarantee: Guarantee) -> str:
    """What epsilon and delta say of the odds of a conclusion."""
    one, most = noun(guarantee.unit), times(guarantee.epsilon)
    what = (
        f"between any two values of one {one}'s data"
        if guarantee.adjacency is Adjacency.REPLACE_ONE
        else f"that one {one} took part"
    )
    return (
        f"In odds: for someone who knows all other training data, what is published changes the "
        f"odds {what} by at most a factor e^{rounded_up(guarantee.epsilon)}, {most}: odds of 1 to "
        f"1 become at most {most.removesuffix(' times')} to 1. There may be exceptions, with a "
        f"probability of at most {guarantee.delta:g}."
    )


def neighbours(guarantee: Guarantee) -> str:
    """What two neighbouring training sets differ in."""
    verb = _VERBS[guarantee.adjacency.value]
    if guarantee.rows_per_person is not None:
        verb = verb.replace("examples", "persons")
    if guarantee.group_size > 1:
        verb = verb.replace("an empty one", "empty ones").replace("any other", "any others")
    return guarantee.unit.change(verb)


def protected(unit: PrivacyUnit) -> str:
    """What is protected, and what is protected less."""
    if unit.rows_per_person is not None:
        used = (
            "all their rows"
            if unit.rows_per_person == ALL
            else f"any number of rows, of which at most {unit.rows_per_person} were used"
        )
        return (
            f"one person, with {used}. That the rows were rightly assigned to persons is the "
            "publisher's word, as is the rest of the run."
        )
    if unit.group_size > 1:
        return (
            f"one person with at most {unit.group_size} rows of the training data: a person with "
            "more is protected less."
        )
    return (
        "one row of the training data (one example): a person with several rows is protected less."
    )


#: Where bounds of columns come from, and what a column of persons is for.
_COLUMNS = (
    "The model was made from these columns of the table, and from no others. The publisher "
    "declared their kinds, bounds and categories; values beyond the bounds counted as the bounds."
)
_PERSON = "One more column says whose row it is, and only sorts the rows."
_SCALED = (
    "Scores add up to 1. They were divided by a temperature that was fitted to the training data, "
    "as a release of its own, so that they are estimates of probabilities."
)
_VALUES = "Predictions are numbers in the units of the target, within its declared bounds."
_WEIGHTED = (
    "Scores add up to 1: probabilities of a population in which classes come as often as they "
    "weigh. Those of the population as it is: each score over its class's weight, all divided by "
    "their sum."
)
_NOT_SCALED = "Scores add up to 1 and rank the classes; they are not calibrated probabilities."


def reading(facts: dict[str, Any]) -> str:
    """How predictions are read."""
    if "task" in facts:
        return HEADS[facts["task"]].reading
    texts = {"target_bounds": _VALUES, "class_weights": _WEIGHTED, "fitted_temperature": _SCALED}
    return next((text for name, text in texts.items() if name in facts), _NOT_SCALED)


def write(said: Statement) -> str:
    """Return the card's text, Markdown with a YAML header."""
    guarantee, facts, metrics = said.guarantee, said.facts, said.test_metrics
    lines = _guarantee(said) + _signature(said.signed_by)
    if metrics.figures:
        lines += ["## Test figures", "", "| figure | value |", "| --- | --- |"]
        rows = f" on {metrics.rows} rows" if metrics.rows else ""
        named = {name.replace("_", " "): metrics.text(name) for name in metrics.figures}
        lines += [_row(name, f"{text}{rows}") for name, text in named.items()]
        lines += ["", figures_from(said.paid), ""]
    lines += _describe_released(said) + _describe_columns(said)
    lines += _describe_choice(said.plan, facts) + _describe_training(said, said.trained)
    lines += _describe_use(said)
    if said.audit is not None:
        lines += [said.audit.to_markdown()]
    head = header(
        guarantee.epsilon,
        guarantee.delta,
        guarantee.adjacency.value,
        guarantee.unit,
        said.signed_by,
    )
    return head + "\n".join(lines)


def describe_other_runs(said: dict[str, Any]) -> list[str]:
    """What the card says of other runs on the ledger."""
    price_text = f"This run by itself costs epsilon {rounded_up(said['run_epsilon'])}."
    other = "The ledger behind this model also holds other runs on the same data"
    fixed = (
        f"{other}, all fixed before the first release: the guarantee is for all of them "
        f"together. {price_text}"
    )
    adaptive = (
        f"{other}, and runs may have been chosen after earlier results. The guarantee is the limit "
        "that the ledger was begun with, for all of them together, whatever was spent of it. "
        f"{price_text}"
    )
    alone = (
        f"{other}, which may have been chosen after earlier results, and it has no budget. The "
        "guarantee is for this run alone; there is none for all of them together."
    )
    texts = {certificate.FIXED: fixed, certificate.ADAPTIVE: adaptive, certificate.ALONE: alone}
    return [texts[said["runs"]], ""]


def check_command(said: Statement) -> str:
    """How the folder is checked, from within the folder."""
    return f"privlearn verify .{' --key PUBLISHERS_KEY.pub' if said.signed_by else ''}"


def audit_commands(said: Statement) -> list[str]:
    """How the plan is attacked, from within the folder; none where no audit can run it."""
    return ["privlearn audit ."] if is_attackable(said.plan.trained(said.facts)) else []


def lines_of_use(said: Statement) -> list[str]:
    """How its model is used, from within the folder: a command, or Python of another library."""
    return list(said.use) or [
        f"privlearn predict . --data {_data_to_predict(said.facts)}"
        f"{'' if is_built_in(said.model) else ' --model PACKAGE.MODULE:FUNCTION'}"
        f"{' --out maps.npz' if makes_maps(said.model) else ''}",
    ]


def _describe_use(said: Statement) -> list[str]:
    checks = [for_code(line) for line in (check_command(said), *audit_commands(said))]
    use = [for_code(line) for line in lines_of_use(said)]
    if not said.use:
        return ["## Use", "", "```", *checks, *use, "```", "", reading(said.facts), ""]
    return ["## Use", "", "```", *checks, "```", "", "```python", *use, "```", ""]


def figures_from(paid: float | None) -> str:
    """How test metrics were computed, and what protects the test data; `paid` is the noise, if
    there is any.
    """
    if paid is None:
        return (
            "Computed on separate test data, exactly: the test data are not protected by the "
            "guarantee."
        )
    return (
        f"Released with noise (noise multiplier {paid:.4g}), by one of the events that the "
        "guarantee is for: it protects a row of the test data as it protects one of the training "
        "data. After ± stands what the noise may have moved a figure by, one standard deviation. "
        "It makes a small calibration error larger, on average."
    )


def _guarantee(said: Statement) -> list[str]:
    """What is guaranteed to whom."""
    guarantee, paid, others = said.guarantee, said.paid is not None, said.others
    attack = said.curve.describe(guarantee.unit)
    lines = [
        (
            f"# {title_of(said)} ({rounded_up(guarantee.epsilon)}, {guarantee.delta:g}) "
            "differential privacy"
        ),
        "",
        "## What is guaranteed",
        "",
        f"Two training sets are neighbours if {neighbours(guarantee)}. For any such pair, the "
        "probability of any outcome of the training differs by at most a factor "
        f"e^{rounded_up(guarantee.epsilon)} ({times(guarantee.epsilon)}), plus "
        f"{guarantee.delta:g}. What is protected is {protected(guarantee.unit)}",
        "",
        odds(guarantee),
        "",
        why_neighbours(guarantee),
        "",
        f"{attack} This holds for attackers who know all other training data.",
        "",
        "`privacy.json` lists every event in which the data took part, and `privlearn verify` "
        "recomputes epsilon from it, without the data. That proves the arithmetic, and that these "
        "are the certified weights. It cannot prove that the run described is the run that was "
        "made: that is the publisher's word.",
        "",
        "The guarantee covers the weights and the transforms stored with "
        f"them{released_too(said)}{', and the test figures' * paid}. It does not cover choices "
        f"made by looking at the data or at earlier private "
        f"results{', nor figures from test data' * (not paid)}.",
        "",
    ]
    lines += describe_other_runs(others) if others else []
    if large := certificate.large_delta(said.facts, guarantee.delta):
        lines += [f"> **This delta is too large.** {large[0].upper()}{large[1:]}.", ""]
    if said.seeded:
        lines += [
            "> **This run used a fixed seed.** Anyone who knows the seed can take the noise off "
            "the weights. Do not rely on the guarantee for data that matter.",
            "",
        ]
    return lines


def _signature(signed_by: str | None) -> list[str]:
    """What the signature adds, and what not."""
    if signed_by is None:
        return []
    return [
        "## Who says so",
        "",
        f"The certificate is signed with the Ed25519 key `{signed_by}`. The holder of that key "
        "says that this was the run, and no one else has edited the certificate, the weights, the "
        "configuration or this card since. That it is the publisher's key can only be learnt from "
        "the publisher, not from this folder: get it from them, and give it to `privlearn verify "
        "--key`. A signature does not prove that the statement is true.",
        "",
    ]


#: Columns of released rows that a card lists.
_MOST_COLUMNS = 100


def released_too(said: Statement) -> str:
    """What of released rows is said where the weights are spoken of; empty without any."""
    return f", and the rows in {RELEASED}" if "released_rows" in said.facts else ""


def title_of(said: Statement) -> str:
    """What the folder holds, as a heading begins."""
    if "released_rows" in said.facts:
        return "Rows, and a model of them, released with"
    return "A model trained with"


def words_on_rows(said: Statement) -> str:
    """What was released row by row, and how; empty if nothing was."""
    return said.trained.card_words(said.facts).get("Released rows", "")


def released_columns(said: Statement) -> list[tuple[str, str]]:
    """A name and a text for each column of the file of rows."""
    released = said.facts["released_rows"]
    texts = ["a number with noise"] * len(released["columns"])
    for place, (low, high) in enumerate(released["bounds"]):
        texts[place] = f"a number with noise, of one declared from {low:.6g} to {high:.6g}"
    rows = list(zip(released["columns"], texts, strict=True))[:_MOST_COLUMNS]
    if (left := len(texts) - _MOST_COLUMNS) > 0:
        rows.append((f"{left} more columns", f"{RELEASED} names all of them"))
    classes = released["classes"]
    names = f"{', '.join(classes[:12])}{f' and {len(classes) - 12} more' * (len(classes) > 12)}"
    return [*rows, (released["label"], f"the class, one of {names}")]


def _describe_released(said: Statement) -> list[str]:
    """The rows that were released, where the folder holds some."""
    if not (words := words_on_rows(said)):
        return []
    rows = [_row(name, text) for name, text in released_columns(said)]
    lines = ["| column | what it holds |", "| --- | --- |", *rows]
    use = [
        "```python",
        "import privlearn as pv",
        "",
        'model = pv.load_model(".")  # checked; a classifier that was made of the rows',
        "rows = model.released_rows()  # arrays rows.x and rows.y, for any method",
        "x = model.transform(new_rows)  # other rows, as those in rows.x",
        "```",
    ]
    return ["## Released rows", "", for_markdown(words), "", *lines, "", *use, ""]


def _describe_columns(said: Statement) -> list[str]:
    """The table's columns, where the rows came from a table with a schema."""
    if said.table is None:
        return []
    rows = [_row(name, text) for name, text in describe_columns(said.table)]
    lines = ["| column | kind, and what was declared |", "| --- | --- |", *rows]
    return ["## Columns used", "", for_markdown(words_on_columns(said)), "", *lines, ""]


def words_on_columns(said: Statement) -> str:
    """Where the columns and their bounds come from."""
    person = "" if said.guarantee.rows_per_person is None else _PERSON
    table = said.table or {}
    sentences = [_COLUMNS, person, describe_draft(table), describe_missing(table)]
    return " ".join(sentence for sentence in sentences if sentence)


def _describe_choice(plan: AbstractPlan, facts: dict[str, Any]) -> list[str]:
    """How the parameters were chosen, where the plan is one of several trainings."""
    if plan.trained(facts) is plan:
        return []
    rows = plan.rows()
    chosen = rows[facts["tuning"]["chosen"]][0]
    return [
        "## How the parameters were chosen",
        "",
        (
            f"{for_markdown(plan.summary)} All of that is in the guarantee. Chosen: "
            f"**{for_markdown(chosen)}**."
        ),
        "",
        "| candidate | settings |",
        "| --- | --- |",
        *(_row(label, text) for label, text in rows),
        "",
    ]


def _describe_training(said: Statement, plan: AbstractPlan) -> list[str]:
    """How it was trained: what the plan says, and what only the run could tell."""
    return [
        "## How it was trained",
        "",
        *([for_markdown(plan.summary), ""] if plan.summary else []),
        "| | |",
        "| --- | --- |",
        *(_row(label, text) for label, text in said.data.items()),
        *(_row(label, text) for label, text in settings(said, plan)),
        "",
    ]


def settings(said: Statement, plan: AbstractPlan) -> list[tuple[str, str]]:
    """A label and a text for each thing that was settled before training, and each that the run
    tells.
    """
    return [
        ("method", said.facts["method"]),
        ("network", said.model or "given in Python"),
        *plan.rows(),
        *_list_rows(plan, said.facts),
        ("epsilon computed by", said.guarantee.method),
    ]


def _row(label: str, text: str) -> str:
    return f"| {for_markdown(label)} | {for_markdown(text)} |"


def _list_rows(plan: AbstractPlan, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The rows of the facts, in this order, of those that there are."""
    whom = "examples" if plan.unit.rows_per_person is None else "persons"
    for name, rows in _FACTS.items():
        if facts.get(name) is not None:
            for label, text in rows(facts[name], facts):
                yield label, text.replace("examples", whom) if name == "steps" else text
    yield from ((row.label, row.text(facts[name])) for name, row in ROWS.items() if name in facts)
    yield from plan.fact_rows(facts)
    for choice in facts.get("chosen", ()):
        what = ": number, name, score ± the noise in it" if "scores" in choice else ""
        yield f"chosen, the best first{what}", "; ".join(choice_lines(choice))


def _public_features(_: Any, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for part in public_features(facts):
        yield "public features", _public_text(part)


def _public_text(features: dict[str, Any]) -> str:
    digest = f", weights with SHA-256 {features['digest']}" if features.get("digest") else ""
    word = "made without looking at the data"
    if features["kind"] == "precomputed":
        digest += ", each row normalised" if features["normalisation"] != "none" else ""
        word = (
            "the publisher declares that each row's are made of that row alone, by an encoder "
            "that never saw these data"
        )
    return f"{features['spec']}{digest}: {word}"


def _optimizer(settings: dict[str, Any], facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    # it counts relative to its own start
    rates = re.sub("[:,]start=[^,]*", "", facts["learning_rate_schedule"])
    # a scheduler of torch may begin at another rate
    prefix = "made with " * (rates == SCRIPTS_RATES)
    yield (
        "optimizer",
        f"{settings['name']}, {prefix}learning rate {settings.get('lr', 0):.4g}, schedule {rates}",
    )


def _public_start(start: dict[str, Any], facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "teacher" in facts:  # of whose student the plan speaks
        return
    learned = f"a network that learned from {start['volumes_with_masks']} public volumes with masks"
    yield "began as", f"{learned}, before any private one was used: these volumes are not protected"
    figures = start.get("test_metrics", {})
    if figures := ", ".join(
        f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures.items()
    ):
        yield f"that network alone, on the {start['test_rows']} test rows", figures


def _noise_multipliers(
    multipliers: list[float], facts: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    yield (
        "noise multipliers of the run",
        f"{multipliers[0]:.4g} to {multipliers[-1]:.4g}, in {facts['epochs']} epochs",
    )


def _coordinates(settings: dict[str, Any], facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "objective",
        f"{facts['objective']}, mu {facts['mu']}, {settings['steps']} steps on the coordinates at "
        f"rate {settings['rate']:g} ({settings['optimizer']})",
    )


def _augmentation(summary: str, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    copies = facts["augmentation_copies"]
    yield (
        "copies of each example",
        f"{copies} ({summary}), whose gradients are averaged before clipping",
    )


#: What the card says of each fact that a run tells, in the card's order. None of it follows from
#: the plan.
_FACTS: dict[str, Callable[[Any, dict[str, Any]], Iterator[tuple[str, str]]]] = {
    "public_features": _public_features,
    "public_start": _public_start,
    "preconditioned_by": lambda value, _: iter([("preconditioned by curvature on", value)]),
    "optimizer": _optimizer,
    "steps": lambda value, facts: iter([("steps", f"{value}, on {facts['examples']} examples")]),
    "processes": lambda value, _: iter([("processes", f"{value}, which together took each step")]),
    "left_early": lambda _, __: iter(
        [("left early", "yes; the claim is for all steps of the plan")]
    ),
    "weights_of_step": lambda value, _: iter(
        [("published weights", f"those after step {value}; the claim is for all steps")]
    ),
    "noise_multipliers": _noise_multipliers,
    "validation": lambda value, _: iter([("validated on", f"{value['rows']} rows")]),
    "augmentation": _augmentation,
    "task": lambda value, _: iter([("task", value)]),
    "target_bounds": lambda value, _: iter(
        [("target", f"numbers in [{value[0]:g}, {value[1]:g}], clipped to it")]
    ),
    "target_ranges": lambda value, _: iter(
        [("targets", f"numbers, clipped to bounds: {bounds_text(value)}")]
    ),
    "class_weights": lambda value, _: iter(
        [("weights of the classes", ", ".join(f"{weight:.4g}" for weight in value))]
    ),
    "rates_declared_public": lambda value, _: iter(
        [("learning rates follow numbers that the publisher declares public", "; ".join(value))]
    ),
    "label_smoothing": lambda value, _: iter([("label smoothing", f"{value:g}")]),
    "fitted_temperature": lambda value, _: iter(
        [("scores were divided by", f"{value:.4g}, the temperature")]
    ),
    "coordinates": _coordinates,
    "transcript": lambda value, _: iter(
        [("transcript", f"kept for an auditor, digest {value['digest'][:16]}")]
    ),
}


def _data_to_predict(facts: dict[str, Any]) -> str:
    """What the card gives to `predict --data`, with the name of the code that makes features of it,
    if some does.
    """
    by_kind = {part["kind"]: part for part in public_features(facts)}
    if "precomputed" in by_kind:
        return "FOLDER_OF_FEATURES"
    return f"DATA --features {by_kind['external']['spec']}" if "external" in by_kind else "DATA"
