"""The model card: what a reader of a published model needs to know, with the usual YAML header."""

from __future__ import annotations

import re
from typing import Any

from privlearn.accounting.guarantee import Guarantee, PrivacyUnit, rounded_up
from privlearn.models.networks import is_built_in, makes_maps
from privlearn.publishing import claim, ensemble, features, tuned
from privlearn.publishing.certificate import header

_VERBS = {
    "add_remove": "added to or removed from the training data",
    "zero_out": "replaced by an empty one (the number of examples is public)",
    "replace_one": "replaced by any other (the number of examples is public)",
}


def _neighbours(guarantee: Guarantee) -> str:
    """What two neighbouring training sets differ in."""
    verb = _VERBS[guarantee.adjacency.value]
    if guarantee.rows_per_person is not None:
        verb = verb.replace("examples", "persons")
    if guarantee.group_size > 1:
        verb = verb.replace("an empty one", "empty ones").replace("any other", "any others")
    return guarantee.unit.change(verb)


def _protected(unit: PrivacyUnit) -> str:
    """What is protected, and what is protected less."""
    if unit.rows_per_person is not None:
        return f"{unit}. That the rows were rightly assigned to persons is the publisher's word, as is the rest of the run."
    if unit.group_size > 1:
        return f"{unit}: somebody with more is protected less."
    return f"{unit}: a person with several rows is protected less."


def write(
    guarantee: Guarantee,
    settings: dict[str, Any],
    *,
    seeded: bool,
    others: dict[str, Any] | None,
    test_metrics: dict[str, float],
    test_rows: int | None,
    data: dict[str, str],
    model: str | None,
    signed_by: str | None = None,
) -> str:
    """Return the card's text, Markdown with a YAML header.

    Args:
        guarantee: the claim.
        settings: the public numbers of the run.
        seeded: whether somebody may know the seed.
        others: what the certificate says of other runs on the ledger, if there are any.
        test_metrics: figures from test data.
        test_rows: how many rows they are from, if that is known.
        data: what to say of the data.
        model: the network's spec, if it has one.
        signed_by: fingerprint of the key that signs the certificate, if one does.
    """
    lines = _guarantee(guarantee, seeded, others) + _signature(signed_by)
    if test_metrics:
        lines += ["## Test figures", "", "| figure | value |", "| --- | --- |"]
        rows = "" if test_rows is None else f" on {test_rows} rows"
        lines += [f"| {name.replace('_', ' ')} | {value:.4f}{rows} |" for name, value in test_metrics.items()]
        lines += ["", "Computed on separate test data, exactly: the test data are not protected by the guarantee.", ""]
    training = _training
    for method, own in ((ensemble.is_ensemble, ensemble.card_lines), (features.is_features, features.card_lines)):
        training = own if method(settings) else training
    lines += tuned.card_lines(settings) + training(guarantee, settings, data, model)
    lines += [
        "## Use",
        "",
        "```",
        f"privlearn verify .{' --key PUBLISHERS_KEY.pub' if signed_by else ''}",
        f"privlearn predict . --data {features.data_to_predict(settings)}"
        f"{'' if is_built_in(model) else ' --model PACKAGE.MODULE:FUNCTION'}"
        f"{' --out maps.npz' if makes_maps(model) else ''}",
        "```",
        "",
        "Scores add up to 1 and rank the classes; they are not calibrated probabilities.",
        "",
    ]
    return header(guarantee.epsilon, guarantee.delta, guarantee.adjacency.value, guarantee.unit, signed_by) + "\n".join(
        lines
    )


def _guarantee(guarantee: Guarantee, seeded: bool, others: dict[str, Any] | None) -> list[str]:
    """What is guaranteed to whom."""
    lines = [
        f"# A model trained with ({rounded_up(guarantee.epsilon)}, {guarantee.delta:g}) differential privacy",
        "",
        "## What is guaranteed",
        "",
        f"Two training sets are neighbours if {_neighbours(guarantee)}. For any such pair, the "
        f"probability of any outcome of the training differs by at most a factor e^{rounded_up(guarantee.epsilon)}, plus "
        f"{guarantee.delta:g}. What is protected is {_protected(guarantee.unit)}",
        "",
        "`privacy.json` lists every event in which the data took part, and `privlearn verify` recomputes epsilon from "
        "it, without the data. That proves the arithmetic, and that these are the certified weights. It cannot prove "
        "that the run described is the run that was made: that is the publisher's word.",
        "",
        "The guarantee covers the weights and the transforms stored with them. It does not cover choices made by looking "
        "at the data or at earlier private results, nor figures from test data.",
        "",
    ]
    lines += claim.card_lines(others) if others else []
    if seeded:
        lines += [
            "> **This run used a fixed seed.** Whoever knows the seed can take the noise off the weights. Do not rely on "
            "the guarantee for data that matter.",
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
        f"The certificate is signed with the Ed25519 key `{signed_by}`. Whoever holds that key says that this was the run, "
        "and nobody else has edited the certificate, the weights, the configuration or this card since. That it is the "
        "publisher's key can only be learnt from the publisher, not from this folder: get it from them, and give it to "
        "`privlearn verify --key`. A signature does not prove that the statement is true.",
        "",
    ]


def _training(guarantee: Guarantee, settings: dict[str, Any], data: dict[str, str], model: str | None) -> list[str]:
    """The table of how it was trained."""
    counted = "examples" if guarantee.rows_per_person is None else "persons"
    declared = "declared by the publisher" if settings["examples_declared"] else "the length of the data, not protected"
    sigmas = settings["noise_multipliers"]
    noise = f"{sigmas[0]:.4g}" if len(set(sigmas)) == 1 else f"{sigmas[0]:.4g} falling to {sigmas[-1]:.4g}"
    sampling = ", ".join(f"{key} {value}" for key, value in settings["sampling"].items() if key != "kind")
    return [
        "## How it was trained",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in data.items()),
        f"| method | {settings['method']} |",
        f"| network | {model or 'given in Python'} |",
        *features.public_lines(settings),
        f"| optimizer | {settings['optimizer']['name']}, learning rate {settings['optimizer'].get('lr', 0):.4g}, "
        f"schedule {_shape(settings['learning_rate_schedule'])} |",
        f"| batches | {settings['sampling']['kind']}{': ' + sampling if sampling else ''} |",
        f"| epochs, steps | {settings['epochs']}, {settings['steps']} |",
        f"| noise multiplier | {noise} |",
        *_validation(settings),
        f"| clipping | {settings['clip']['kind']}, norm {settings['clip']['clip_norm']:g} |",
        *_for_accuracy(settings),
        *_mac(settings),
        f"| {counted} (divisor of sums) | {settings['examples']}, {declared} |",
        f"| earlier releases | {', '.join(_before(part) for part in settings['before']) or 'none'} |",
        *features.chosen_lines(settings),
        f"| epsilon computed by | {guarantee.method} |",
        "",
    ]


def _for_accuracy(settings: dict[str, Any]) -> list[str]:
    """What was done beside plain steps; none of it changes what is guaranteed."""
    lines = []
    if "augmentation" in settings:
        lines.append(
            f"| copies of each example | {settings['augmentation_copies']} ({settings['augmentation']}), whose gradients are "
            "averaged before clipping |"
        )
    if "label_smoothing" in settings:
        lines.append(f"| label smoothing | {settings['label_smoothing']:g} |")
    if "average" in settings:
        lines.append(f"| published weights | a mean over about the last {settings['average']:g} of the steps |")
    return lines


def _mac(settings: dict[str, Any]) -> list[str]:
    """What is particular to DP-MAC."""
    if settings["method"] != "dpmac":
        return []
    z = settings["coordinates"]
    return [
        f"| objective | {settings['objective']}, expansion of order {settings['clip']['order']}, mu {settings['mu']}, "
        f"{z['steps']} steps on the coordinates at rate {z['rate']:g} ({z['optimizer']}) |"
    ]


def _validation(settings: dict[str, Any]) -> list[str]:
    """What the noise followed, if it followed something."""
    if "validation" not in settings:
        return []
    found = settings["validation"]
    rows = (
        f"{found['rows']} rows that the publisher declares public, not protected"
        if found["public"]
        else f"the training examples, counted with noise multiplier {found['noise']:g}"
    )
    return [f"| noise follows accuracy on | {rows}; epsilon is for the limit that was set beforehand |"]


def _before(part: dict[str, Any]) -> str:
    if part["kind"] == "histogram":
        return f"histogram of derivatives after {part['after']} epochs (noise multiplier {part['noise_multiplier']:g})"
    if part["kind"] == "select":
        return f"selection of {part['keep']} features (noise multiplier {part['noise_multiplier']:.4g})"
    if part["kind"] == "moments":
        return (
            f"means and variances of {part['features']} features of rows clipped to norm {part['row_norm']:.4g} (noise "
            f"multiplier {part['noise_multiplier']:.4g})"
        )
    return f"{part['kind']} ({part['components']} components, noise multiplier {part['noise_multiplier']:g})"


def _shape(rates: str) -> str:
    """A learning rate's schedule without its own start: it counts relative to that."""
    return re.sub("[:,]start=[^,]*", "", rates)
