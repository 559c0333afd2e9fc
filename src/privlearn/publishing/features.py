"""What the settings of a feature release say: which events they amount to, and what the card tells of them."""

from __future__ import annotations

from typing import Any

from privlearn._checks import printable
from privlearn.accounting.events import Event
from privlearn.accounting.guarantee import Guarantee
from privlearn.accounting.mechanisms import Gaussian
from privlearn.statistics.plan import FeaturesPlan, from_description
from privlearn.transforms.select import SelectFeatures, check_choice, choice_lines


def is_features(settings: object) -> bool:
    """Whether the model was made from released features or statistics of them."""
    return isinstance(settings, dict) and settings.get("method") == "features"


def described(settings: dict[str, Any]) -> Event:
    """The events that the settings amount to.

    Raises:
        BadInput, KeyError, TypeError, ValueError, AttributeError: they describe no such run.
    """
    plan = from_description(settings)
    if "chosen" in settings:
        check_choice(settings["chosen"], plan.keep)
    return plan.event()


def chosen(settings: dict[str, Any]) -> dict[str, Any] | None:
    """The features that a run chose, if it chose some: for its classifier, or before training."""
    parts = (settings, *settings.get("before", ()))
    return next((part["chosen"] for part in parts if "chosen" in part), None)


def chosen_lines(settings: dict[str, Any]) -> list[str]:
    """The card's row of the chosen features; none where nothing was chosen."""
    found = chosen(settings)
    if found is None:
        return []
    what = ": number, name, score ± the noise in it" if "scores" in found else ""
    listed = "; ".join(printable(line).replace("|", "\\|") for line in choice_lines(found))
    return [f"| chosen, the best first{what} | {listed} |"]


def public_lines(settings: dict[str, Any]) -> list[str]:
    """The card's row of the public features that rows were turned into; none where they were not."""
    return [_public_line(found) for found in public(settings)]


def public(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The public features that stand in front of the network, one after the other; their descriptions are not looked at."""
    found = settings.get("public_features", [])
    return found if isinstance(found, list) else [found]


def _public_line(found: dict[str, Any]) -> str:
    digest = f", weights with SHA-256 {found['digest']}" if found.get("digest") else ""
    word = "made without looking at the data"
    if found["kind"] == "precomputed":
        normalised = ", each row normalised" if found["normalisation"] != "none" else ""
        digest += normalised
        word = (
            "the publisher declares that each row's are made of that row alone, by an encoder that never saw these data"
        )
    named = printable(found["spec"]).replace("|", "\\|")
    return f"| public features | {named}{digest}: {word} |"


def data_to_predict(settings: dict[str, Any]) -> str:
    """What the card gives to `predict --data`, with the name of the code that makes features of it, if some does."""
    found = {part["kind"]: part for part in public(settings)}
    if "precomputed" in found:
        return "FOLDER_OF_FEATURES"
    return f"DATA --features {printable(found['external']['spec'])}" if "external" in found else "DATA"


def earlier(part: dict[str, Any]) -> Event:
    """The event of a release before training.

    Raises:
        BadInput, KeyError, TypeError, ValueError: it is none.
    """
    if part["kind"] != SelectFeatures.kind:
        return Gaussian(part["noise_multiplier"])
    numbers = {name: value for name, value in part.items() if name not in ("kind", "chosen")}
    if "chosen" in part:
        check_choice(part["chosen"], part["keep"])
    return SelectFeatures(**numbers | {"split": tuple(part["split"])}).event()


def card_lines(guarantee: Guarantee, settings: dict[str, Any], data: dict[str, str], model: str | None) -> list[str]:
    """The card's table of how the classifier was made."""
    plan = from_description(settings)
    kept = f"{plan.keep} of {plan.features}"
    if plan.selects:
        way = "Gumbel noise on distances of class means" if plan.selection.by_gumbel else "noisy class means"
        kept += f", by {way}, criterion {plan.criterion}"
    released = "counts, class sums and second moments"
    made = "A Fisher classifier (features independent within classes)"
    if plan.purpose == "least-squares":
        released = "sums of products of each row with its class and with itself"
        made = "A linear classifier by least squares, with a ridge that follows the noise"
    if plan.purpose == "rows":
        released = f"every row of the kept features, once, with noise; labels {plan.labels}"
    public = ["Labels are declared public: neighbours have the same.", ""]
    return [
        "## How it was made",
        "",
        f"{made}, computed from released numbers alone.",
        "",
        *(public if plan.purpose == "rows" and plan.labels == "public" else []),
        "| | |",
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in data.items()),
        f"| method | {settings['method']} |",
        f"| network | {model or 'given in Python'} |",
        *public_lines(settings),
        f"| released | {released} |",
        f"| features kept | {kept} |",
        *chosen_lines(settings),
        f"| bounds | {', '.join(_bounds(plan))} |",
        f"| noise multiplier | {plan.noise:.4g} for all together |",
        f"| epsilon computed by | {guarantee.method} |",
        "",
    ]


def _bounds(plan: FeaturesPlan) -> list[str]:
    """What rows and numbers were clipped to, where they were."""
    found = []
    if plan.in_one_release or (plan.selects and not plan.selection.by_gumbel):
        found.append(f"rows to norm {plan.row_norm:g}")
    if plan.selects and plan.selection.by_gumbel:
        found.append(f"single numbers to {plan.coordinate_bound:g} for choosing")
    return found if plan.in_one_release else [*found, f"kept rows to norm {plan.rest_norm:g}"]
