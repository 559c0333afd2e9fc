"""What the registry of deployments takes, by the fields of `schemas/deployments-schema.yaml` in
opendp/deployments-registry-data, commit 3e9c812a of July 2026: names, types and choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

#: A type, the choices of a text, or the fields of a part.
_NUMBER, _TEXT, _TEXTS, _DATE = float, str, list, re.compile(r"\d{4}-\d{2}-\d{2}")
_BASIC = {
    **dict.fromkeys(("name", "description", "intended_use", "data_product_region"), _TEXT),
    "data_curators": _TEXTS,
    "publication_date": _DATE,
    "data_product_type": {"Summary statistics", "Machine learning model", "Dataset"},
    "data_product_sector": {"Technology", "Healthcare", "Education", "Government", "Energy"},
}
_LOSS = {
    **dict.fromkeys(("privacy_unit", "privacy_unit_details", "privacy_parameters_details"), _TEXT),
    "privacy_parameters": dict.fromkeys(("epsilon", "delta", "rho"), _NUMBER),
}
_MODEL = {
    "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
    "release_type": {"One release", "Many releases"},
    "data_source_type": {"Static", "Dynamic"},
    "access_type": {"Interactive", "Non-interactive"},
}
_DEPLOYMENT = {
    "basic": _BASIC,
    "dp_variant": {"variant_name": {"Pure DP", "Approximate DP"}, "unprotected_quantities": _TEXT},
    "privacy_loss": _LOSS,
    "deployment_model": _MODEL,
    "accounting": {"composition": _TEXT, "post_processing": _TEXT},
    "implementation": {"mechanisms": _TEXT, "preprocessing_and_hyperparameter_tuning": _TEXT},
    "administrative": {"sources": _TEXT, "registry_authors": _TEXTS},
}
_ENTRY = {"url_slug": _TEXT, "status": {"Draft"}, "tier": int, "deployment": _DEPLOYMENT}
_NEEDED = ("name", "data_curators", "description", "intended_use", "data_product_type")
_NEEDED += ("data_product_region", "publication_date")


def find_strange_fields(entry: dict[str, Any]) -> list[str]:
    """Fields of an entry that the registry does not take as they are, or misses."""
    basic = entry.get("deployment", {}).get("basic", {})
    return [*_compare(entry, _ENTRY, ""), *(name for name in _NEEDED if name not in basic)]


def _compare(value: Any, shape: Any, where: str) -> Iterator[str]:
    if isinstance(shape, dict):
        for name, inner in value.items():
            if name in shape:
                yield from _compare(inner, shape[name], f"{where}/{name}")
            else:
                yield f"{where}/{name}"
    elif isinstance(shape, set):
        yield from () if value in shape else (where,)
    elif isinstance(shape, re.Pattern):
        yield from () if isinstance(value, str) and shape.fullmatch(value) else (where,)
    elif shape is list:
        fits = isinstance(value, list) and value and all(isinstance(one, str) for one in value)
        yield from () if fits else (where,)
    elif shape is _NUMBER:
        yield from () if type(value) in (int, float) else (where,)
    elif type(value) is not shape:
        yield where
