"""What a model card says of PATE beyond its plan: from the public facts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def teacher_rows(stated: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who the teachers were."""
    if stated.get("source") != "trained":
        given = stated == {"source": "given"}
        return [("each teacher", "was trained elsewhere: their predictions were given")] if given else []
    recipe = stated["recipe"]
    match recipe["kind"]:
        case "estimator":
            what = recipe["parameters"] if recipe["parameters"].isascii() else recipe["class"]
        case "network":
            what = f"{recipe['class'].partition(':')[2]} of {recipe['parameters']} parameters"
        case "spreading":
            what = "spreading of labels over the public inputs"
        case _:
            what = recipe["name"]
    together = ", each person's to one teacher" if stated.get("assigned_by") == "person" else ""
    rows = [("each teacher", f"{what}, records assigned {stated['records']}{together}")]
    if any("corrections of a public reference" in each for each in stated.get("seen_through", [])):
        rows.append(("teachers answer with", "corrections of a public network's predictions"))
    return rows


def start_rows(stated: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the student began as."""
    if stated is None:
        return []
    learned = f"a public network, trained on {stated['volumes_with_masks']} public volumes with masks, as teachers did"
    figures = [f"{name.replace('_', ' ')} {value:.4f}" for name, value in stated.get("test_metrics", {}).items()]
    alone = [(f"that network alone, on the {stated['test_rows']} test rows", ", ".join(figures))] if figures else []
    return [("the student began as", learned), *alone]


def reducer_rows(stated: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What turned targets into codes."""
    if stated is None:
        return []
    codes = f", {stated['codes']}" if "codes" in stated else ""
    return [("reducer", f"{stated['kind']}, codes of {stated['size']} numbers{codes}")]
