"""What the settings of a feature release say: which events they amount to, and what the card tells of them."""

from __future__ import annotations

from typing import Any

from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.events import Event, Gaussian
from privlearn.mechanisms.features import Select
from privlearn.methods.features.plan import from_description


def is_features(settings: object) -> bool:
    """Whether the model was made from released features or statistics of them."""
    return isinstance(settings, dict) and settings.get("method") == "features"


def described(settings: dict[str, Any]) -> Event:
    """The events that the settings amount to.

    Raises:
        BadInput, KeyError, TypeError, ValueError, AttributeError: they describe no such run.
    """
    return from_description(settings).event()


def earlier(part: dict[str, Any]) -> Event:
    """The event of a release before training.

    Raises:
        BadInput, KeyError, TypeError, ValueError: it is none.
    """
    if part["kind"] != Select.kind:
        return Gaussian(part["noise_multiplier"])
    numbers = {name: value for name, value in part.items() if name != "kind"}
    return Select(**numbers | {"split": tuple(part["split"])}).event()


def card_lines(guarantee: Guarantee, settings: dict[str, Any], data: dict[str, str], model: str | None) -> list[str]:
    """The card's table of how the classifier was made."""
    plan = from_description(settings)
    kept = f"{plan.keep} of {plan.features}"
    if plan.selects:
        way = "Gumbel noise on distances of class means" if plan.selection.by_gumbel else "noisy class means"
        kept += f", by {way}, criterion {plan.criterion}"
    released = "counts, class sums and second moments"
    if plan.purpose == "rows":
        released = f"every row of the kept features, once, with noise; labels {plan.labels}"
    public = ["Labels are declared public: neighbours have the same.", ""]
    return [
        "## How it was made",
        "",
        "A Fisher classifier (features independent within classes), computed from released numbers alone.",
        "",
        *(public if plan.purpose == "rows" and plan.labels == "public" else []),
        "| | |",
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in data.items()),
        f"| method | {settings['method']} |",
        f"| network | {model or 'given in Python'} |",
        f"| released | {released} |",
        f"| features kept | {kept} |",
        f"| bounds | rows to norm {plan.row_norm:g}, kept rows to {plan.rest_norm:g}, single numbers "
        f"{'not' if plan.coordinate_bound is None else f'to {plan.coordinate_bound:g}'} |",
        f"| noise multiplier | {plan.noise:.4g} for all together |",
        f"| epsilon computed by | {guarantee.method} |",
        "",
    ]
