"""What a model card says of PATE beyond its plan: from the public facts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By what is asked for: what one teacher gives, what is released of it, and how far a record moves
#: that.
_GIVEN = {"votes": "votes", "confident-votes": "votes", "ball": "answers", "box": "answers"}
_RELEASED = {
    "votes": (
        "Noisy counts of the teachers' votes, one release for each public input that was asked "
        "about"
    ),
    "confident-votes": (
        "Noisy tests and counts of the teachers' votes, up to a limit that was set beforehand"
    ),
    "ball": (
        "Noisy means of the teachers' answers, one release for each public input that was "
        "asked about"
    ),
    "box": (
        "Noisy means of the teachers' answers, one release for each public input that was "
        "asked about"
    ),
}
_MOVED = {
    "votes": "moves its vote, so two counts by 1 each, sqrt(2) together",
    "confident-votes": (
        "moves its vote: the largest count, which is tested, by 1, and the counts by sqrt(2) "
        "together"
    ),
    "ball": (
        "moves its answer's code, which is clipped to a ball, so the sum of codes by the "
        "ball's diameter"
    ),
    "box": (
        "moves its answer, which is clipped to [0, 1], so the sum of the answers' codes by "
        "what that allows"
    ),
}


def neighbours(group_size: int, *, persons: bool) -> str:
    """What two neighbouring collections of private records differ in."""
    changed = "one private record, which is with one teacher"
    if group_size > 1:
        changed = (
            f"up to {group_size} private records of one person, each of which is with one teacher"
        )
    if persons:
        changed = "all private records of one person, which are with one teacher"
    return f"{changed}. The number of teachers and the public inputs are the same in both"


def trust(kind: str, teacher: Mapping[str, Any], *, by_sites: bool = False) -> str:
    """Who saw what, and has to be trusted with it.

    Args:
        kind: of what is asked for.
        teacher: what is stated of the teachers.
        by_sites: whether each site adds a share of the noise.
    """
    if by_sites:
        return (
            f"The sites: each added a share of the noise to its own {_GIVEN[kind]} before they "
            "left it, and as many of them as the plan counts have to be trusted to do so and to "
            "keep their shares. Those who get the model need trust no one else. The publisher's "
            f"server saw {teacher.get('server_saw', 'what the sites sent')}, with the shares of "
            "the noise that are in it: one site's share alone hides less than is stated here."
        )
    exact = f"each teacher's exact {_GIVEN[kind]}, which are not private, and added the noise"
    if teacher.get("source") == "trained":
        return (
            "Central: the publisher held all private records, trained the teachers on them, saw "
            f"{exact}. The publisher has to be trusted, and everyone who could reach the records; "
            "those who get the model need not be."
        )
    elsewhere = (
        " The teachers were trained elsewhere, by parties who need not show their records to the "
        "publisher. That each record was with one teacher, which was chosen without a look at "
        "other records, is their word."
    )
    if "server_saw" in teacher:
        return (
            "A trusted aggregator: before noise was added, the publisher's server saw "
            f"{teacher['server_saw']}. The publisher has to be trusted with that, and to add the "
            f"noise; those who get the model need not be.{elsewhere}"
        )
    return (
        f"A trusted aggregator: the publisher saw {exact}. The publisher has to be trusted with "
        "them, and to add the noise; those who get the model need not "
        f"be.{elsewhere if teacher.get('source') == 'given' else ''}"
    )


def words(kind: str, changed: str, *, by_sites: bool = False) -> dict[str, str]:
    """The method's own answers to a card's questions.

    Args:
        kind: of what is asked for.
        changed: what neighbours differ in.
        by_sites: whether each site adds a share of the noise.
    """
    noise = "a sum of discrete Gaussians, one of each site" if by_sites else "Gaussian"
    return {
        "Releases": _RELEASED[kind],
        "Not protected": (
            "The public inputs that the teachers were asked about, and what was learned from "
            "them alone."
        ),
        "Mechanisms": (
            f"{_RELEASED[kind]}; the noise is {noise}. Neighbours differ in {changed}. A "
            f"teacher that changes {_MOVED[kind]}. The releases are listed under “Where the "
            "privacy was spent”, and in privacy.json, from which the figures can be computed again."
        ),
        "Utility": (
            "Test figures, where there are any, are under “How good the model is”. Noise costs "
            "more accuracy with few teachers, many queries and a small epsilon. With many "
            "teachers, each learns from fewer records."
        ),
        "Bias": (
            "Differential privacy does not remove bias that is in the data. What few teachers say "
            "is outvoted or lost in the noise, which can cost small groups more accuracy than "
            "large ones. This page holds no figures by group: ask the publisher, before people are "
            "treated by the model's answers."
        ),
    }


def teacher_rows(teachers: Mapping[str, Any], *, by_sites: bool = False) -> list[tuple[str, str]]:
    """Who the teachers were, and whether each site added a share of the noise."""
    if "server_saw" in teachers:
        saw = "with the sites' shares of the noise" if by_sites else "before noise was added"
        return [
            ("each teacher", "was trained at its site, which bounded and sent its answers"),
            (f"{saw}, the server saw", teachers["server_saw"]),
        ]
    if teachers.get("source") != "trained":
        predicted_elsewhere = teachers == {"source": "given"}
        return (
            [("each teacher", "was trained elsewhere: their predictions were given")]
            if predicted_elsewhere
            else []
        )
    recipe = teachers["recipe"]
    match recipe["kind"]:
        case "estimator":
            what = recipe["parameters"] if recipe["parameters"].isascii() else recipe["class"]
        case "network":
            what = f"{recipe['class'].partition(':')[2]} of {recipe['parameters']} parameters"
        case "spreading":
            what = "spreading of labels over the public inputs"
        case _:
            what = recipe["name"]
    together = ", each person's to one teacher" if teachers.get("assigned_by") == "person" else ""
    rows = [("each teacher", f"{what}, records assigned {teachers['records']}{together}")]
    if any(
        "corrections of a public reference" in each for each in teachers.get("seen_through", [])
    ):
        rows.append(("teachers answer with", "corrections of a public network's predictions"))
    return rows


def start_rows(start: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the student began as."""
    if start is None:
        return []
    learned = (
        f"a public network, trained on {start['volumes_with_masks']} public volumes with "
        "masks, as teachers did"
    )
    figures = [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in start.get("test_metrics", {}).items()
    ]
    alone = (
        [(f"that network alone, on the {start['test_rows']} test rows", ", ".join(figures))]
        if figures
        else []
    )
    return [("the student began as", learned), *alone]


def reducer_rows(reducer: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What turned targets into codes."""
    if reducer is None:
        return []
    codes = f", {reducer['codes']}" if "codes" in reducer else ""
    return [("reducer", f"{reducer['kind']}, codes of {reducer['size']} numbers{codes}")]
