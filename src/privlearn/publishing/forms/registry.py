"""A draft entry for the Differential Privacy Deployments Registry of OpenDP and NIST, as YAML.

The fields are those of `schemas/deployments-schema.yaml` in
https://github.com/opendp/deployments-registry-data, of July 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

from privlearn._checks import one_of, printable
from privlearn.core.accounting.events import Event
from privlearn.errors import BadInput
from privlearn.publishing.card import (
    describe_other_runs,
    neighbours,
    protected,
    why_neighbours,
)
from privlearn.publishing.costs import costs
from privlearn.publishing.form import ExportForm, Published, Signature

_SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
#: Fields that no certificate holds, and what each is. A draft asks for those that are needed.
_ABOUT = {
    "name": "the name of the data product",
    "data_curators": "who publishes it, a name or a list of names",
    "description": "what it is, briefly",
    "intended_use": "what it is for",
    "data_product_region": "the region that the data describe",
    "publication_date": "year, month and day, as 2026-07-15",
    "data_product_sector": ", ".join(_SECTORS),
    "registry_authors": "who fills in the entry, a name or a list of names",
    "sources": "where more is to be read",
}
_LISTS = {"data_curators", "registry_authors"}
_OPTIONAL = {"data_product_sector", "sources"}
#: Mechanisms that are listed.
_MOST = 12


def write(published: Published, signature: Signature | None, about: Mapping[str, Any]) -> bytes:
    """The entry, with the status Draft."""
    entry = make_entry(published, about)
    slug = entry.pop("url_slug")  # without quotes, as the registry's own script writes it
    return "\n".join([f"url_slug: {slug}", *_lines(entry), ""]).encode()


def make_entry(published: Published, about: Mapping[str, Any]) -> dict[str, Any]:
    """The entry as plain values.

    Raises:
        BadInput: a date that is none.
    """
    entered = {
        name: f"To be completed: {what}" for name, what in _ABOUT.items() if name not in _OPTIONAL
    }
    entered["name"] = published.contents.path.resolve().name
    entered["publication_date"] = f"{datetime.now(UTC):%Y-%m-%d}"
    filled = {**entered, **about}
    filled |= {
        name: [str(one) for one in filled[name]]
        if isinstance(filled[name], list | tuple)
        else [str(filled[name])]
        for name in _LISTS
    }
    if "data_product_sector" in filled:
        one_of("data_product_sector", filled["data_product_sector"], _SECTORS)
    published_at = _read_date(str(filled["publication_date"]))
    basic = {
        name: filled[name] if name in _LISTS else str(filled[name])
        for name in _ABOUT
        if name in filled and name not in ("registry_authors", "sources")
    }
    basic["data_product_type"] = "Machine learning model"
    facts = published.certificate["facts"]
    if "released_rows" in facts:
        basic["data_product_type"] = "Dataset"
    sources = {"sources": str(filled["sources"])} if "sources" in filled else {}
    slug = [basic["name"], "-".join(basic["data_curators"]), f"{published_at:%Y}"]
    return {
        "url_slug": "_".join(re.sub(r"\W+", "_", part.lower()) for part in slug).replace("_", "-"),
        "status": "Draft",
        "tier": 2,
        "deployment": {
            "basic": basic,
            **_privacy(published),
            "administrative": {**sources, "registry_authors": filled["registry_authors"]},
        },
    }


def _read_date(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.min
    if day == date.min or day.isoformat() != text:
        raise BadInput(f"publication_date is {text[:40]!r}: expected one such as 2026-07-15")
    return day


def _privacy(published: Published) -> dict[str, Any]:
    """What the certificate says."""
    claim, guarantee = published.certificate["claim"], published.guarantee
    variant = "Approximate DP" if guarantee.delta > 0 else "Pure DP"
    parameters = {"epsilon": claim["epsilon"], "delta": claim["delta"], "rho": claim["rho"]}
    details = [
        f"Computed by the method {claim['method']}. `privlearn verify` recomputes epsilon from the "
        "events in privacy.json.",
        *(
            line
            for line in (describe_other_runs(claim["ledger"]) if "ledger" in claim else [])
            if line
        ),
        *published.verification.warnings,
    ]
    open_number = guarantee.adjacency.value != "add_remove"
    unprotected = "The number of examples, which is public. " if open_number else ""
    return {
        "dp_variant": {
            "variant_name": variant,
            "unprotected_quantities": (
                f"{unprotected}Figures of the test data, unless the certificate states their noise."
            ),
        },
        "privacy_loss": {
            "privacy_unit": claim["unit"],
            "privacy_unit_details": (
                f"Adjacent data sets ({claim['adjacency']}): {neighbours(guarantee)}. "
                f"{why_neighbours(guarantee)} Protected is {protected(guarantee.unit)}"
            ),
            "privacy_parameters": {
                name: value for name, value in parameters.items() if value is not None
            },
            "privacy_parameters_details": " ".join(details),
        },
        "deployment_model": {
            "model_name": "Central",
            "release_type": "One release",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "composition": f"By the accountant {claim['method']}, for all listed events together.",
            "post_processing": (
                "Everything that is made of the model later, such as its predictions."
            ),
        },
        "implementation": {
            "mechanisms": _mechanisms(published.event, guarantee.delta),
            "preprocessing_and_hyperparameter_tuning": (
                "Releases before training are among the events. Choices that were made outside of "
                "them are the publisher's to state."
            ),
        },
    }


def _mechanisms(event: Event, delta: float) -> str:
    """What each release was, with its noise, by privlearn."""
    listed = []
    for cost in costs(event, delta)[:_MOST]:
        noise = "" if cost.noise is None else f", noise multiplier {cost.noise[0]:.4g}"
        if cost.noise is not None and cost.noise[1] != cost.noise[0]:
            noise += f" to {cost.noise[1]:.4g}"
        times = "once" if cost.times == 1 else f"{cost.times} times"
        listed.append(f"{cost.what}: {times}{noise}")
    return f"{'; '.join(listed)}. Implemented by the library privlearn."


def _lines(value: Any, depth: int = 0) -> Iterator[str]:
    """YAML of tables, lists of texts, texts and numbers."""
    space = "  " * depth
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield f"{space}{name}:"
            yield from _lines(inner, depth + 1)
        elif isinstance(inner, list):
            yield f"{space}{name}:"
            yield from (f"{space}  - {_scalar(each)}" for each in inner)
        else:
            yield f"{space}{name}: {_scalar(inner)}"


def _scalar(value: str | float) -> str:
    """A text between quotes, which no reader takes for a date or a truth value, or a number as YAML
    1.1 reads it, with a point before its exponent.
    """
    if isinstance(value, str):
        return json.dumps(printable(value), ensure_ascii=False)
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


FORM = ExportForm(write, fields=_ABOUT)
