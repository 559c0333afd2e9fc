"""What the settings of a PATE run say: which events they amount to, and what the card tells of them."""

from __future__ import annotations

from typing import Any

from privlearn.accounting import zcdp
from privlearn.accounting.events import Event
from privlearn.accounting.guarantee import Adjacency, Guarantee
from privlearn.teachers.plan import ConfidentVotes, PatePlan, from_description

_ASKED = {
    "ball": "the mean of their codes, each clipped to a ball",
    "box": "the mean of their targets, each number clipped to [0, 1]",
    "votes": "their votes",
    "confident-votes": "their votes, where enough of them agree",
}


def is_ensemble(settings: object) -> bool:
    """Whether the run asked an ensemble of teachers."""
    return isinstance(settings, dict) and settings.get("method") == "pate"


def described(settings: dict[str, Any]) -> Event:
    """The events that the settings amount to.

    Raises:
        BadInput, KeyError, TypeError, ValueError, AttributeError: they describe no such run.
    """
    return from_description(settings).event()


def uncovered(settings: Any, claim: dict[str, Any]) -> list[str]:
    """What is wrong with how records came to teachers: for the neighbours that are claimed they must change one alone."""
    teacher = settings.get("teacher") if is_ensemble(settings) else None
    replaced = claim.get("adjacency") == Adjacency.REPLACE_ONE.value
    if not isinstance(teacher, dict) or teacher.get("source") != "trained" or not replaced:
        return []
    if teacher.get("records") == "by site":
        return ["a record that is replaced by one of another site changes two teachers, and the certificate counts one"]
    if "rows_per_person" not in claim and teacher.get("assigned_by") != "row":
        return [
            "records were assigned to teachers by person, or it is not said how: a record that is replaced by one of another "
            "person changes two teachers, and the certificate counts one"
        ]
    return []


def derived(settings: dict[str, Any]) -> dict[str, float]:
    """Figures of the noise that follow from the plan that the settings describe.

    Raises:
        BadInput, KeyError, TypeError, ValueError, AttributeError: they describe no such run.
    """
    plan = from_description(settings)
    tests = {"test_noise_multiplier": plan.test_noise} if isinstance(plan.aggregate, ConfidentVotes) else {}
    return {"noise_std": plan.noise_std, **tests}


def _made(teacher: Any) -> str:
    """How the teachers were made, after their number."""
    if not isinstance(teacher, dict) or teacher.get("source") != "trained":
        return ", whose predictions were given" if teacher == {"source": "given"} else ""
    recipe = teacher["recipe"]
    match recipe["kind"]:
        case "estimator":
            what = recipe["parameters"] if recipe["parameters"].isascii() else recipe["class"]
        case "network":
            what = f"{recipe['class'].partition(':')[2]} of {recipe['parameters']} parameters"
        case "spreading":
            what = "spreading of labels over the public inputs"
        case _:
            what = recipe["name"]
    together = ", each person's to one teacher" if teacher.get("assigned_by") == "person" else ""
    return f" x {what.replace('|', '/')}, records assigned {teacher['records']}{together}"


def _test(plan: PatePlan) -> list[str]:
    """Which queries were answered, where that follows from noisy tests."""
    asked = plan.aggregate
    if not isinstance(asked, ConfidentVotes):
        return []
    return [
        f"| answered where | the largest count, with noise of {plan.test_noise:.4g}, reaches {asked.threshold:g} votes; at "
        f"most {asked.answers} times |",
        f"| what is paid for | all of that beforehand: {plan.queries} tests (sensitivity 1, {asked.share:g} of the price) and "
        f"{asked.answers} answers (sensitivity sqrt 2) are together rho {zcdp.rho(plan.event()):.6g} |",
    ]


def _released(teacher: Any, plan: PatePlan) -> str:
    """What of the teachers' answers was released."""
    seen = teacher.get("seen_through", []) if isinstance(teacher, dict) else []
    corrects = any("corrections of a public reference" in each for each in seen)
    what = "corrections of a public network's predictions: " if corrects else ""
    return what + _ASKED[plan.aggregate.kind]


def _reduced(reducer: dict[str, Any]) -> str:
    """What codes answers were reduced to."""
    codes = f", {reducer['codes']}" if "codes" in reducer else ""
    return f"{reducer['kind']}, codes of {reducer['size']} numbers{codes}"


def _start(start: Any) -> list[str]:
    """What the student began as, and what that was worth by itself."""
    if not start:
        return []
    learned = f"a public network, trained on {start['volumes_with_masks']} public volumes with masks, as teachers did"
    figures = ", ".join(
        f"{name.replace('_', ' ')} {value:.4f}" for name, value in start.get("test_metrics", {}).items()
    )
    tested = f"| that network alone, on the {start['test_rows']} test rows | {figures} |"
    return [f"| the student began as | {learned} |", *([tested] if figures else [])]


def card_lines(guarantee: Guarantee, settings: dict[str, Any], data: dict[str, str], model: str | None) -> list[str]:
    """The card's table of how a student was taught."""
    reducer = settings["reducer"]
    plan = from_description(settings)
    asked = f"{settings['queries']} (of {settings['public_inputs']} public inputs), {settings['answered']} answered"
    return [
        "## How it was trained",
        "",
        "Teachers were trained on disjoint parts of the private records, and asked about public inputs. This model learned "
        "from their noisy answers and from what is public. That each record was with one teacher is the publisher's word. "
        "Public inputs are not protected.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in data.items()),
        f"| method | {settings['method']} |",
        f"| network | {model or 'given in Python'} |",
        f"| teachers | {settings['teachers']}{_made(settings.get('teacher'))} |",
        f"| queries | {asked} |",
        f"| released | {_released(settings.get('teacher'), plan)} |",
        *_start(settings.get("public_start")),
        f"| noise | multiplier {plan.noise:.4g}, standard deviation {plan.noise_std:.4g} on each number |",
        *_test(plan),
        *([f"| reducer | {_reduced(reducer)} |"] if reducer else []),
        f"| epsilon computed by | {guarantee.method} |",
        "",
    ]
