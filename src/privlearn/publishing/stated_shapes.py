"""This file has the closed shapes of what a published folder states: facts, configuration, an
adapter's configuration, an audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, TypedDict

from privlearn._checks import printable
from privlearn._shapes import Digest, Epsilon, Open, Share, Within, fields_of, is_short, unfit
from privlearn._storage import loads
from privlearn.core.plan import AbstractPlan
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing.folder import ADAPTER_CONFIG, AUDIT, CERTIFICATE, CONFIG, Contents
from privlearn.runs.post_processing import ROWS

#: Values, and their depth, of another library's configuration: classes and their names are the
#: most.
_MOST, _DEEPEST = 50_000, 8
#: Fields by one of which a configuration says that it is another library's, too.
OTHER_LIBRARIES = frozenset({"model_type", "peft_type", "architectures"})
_Size = Annotated[int, Within(0, 1 << 31)]


class Configuration(TypedDict, total=False):
    """`config.json`: how a network is built, and what its inputs and outputs are called."""

    library: Literal["privlearn"]
    input_shape: list[_Size]
    network_input_shape: list[_Size]
    model: str | None
    classes: int | None
    transforms: list[Open]
    target_bounds: tuple[float, float]
    target_ranges: list[tuple[str, float, float]]
    task: str
    labels: list[str]
    class_names: list[str]
    columns: list[str]
    table: Any  # `data.schema.Schema` reads it
    schema: Digest
    grid: str


class DetectedFacts(TypedDict):
    """How many members an attack finds at a rate of false positives, and how many the claim
    allows.
    """

    false_positive_rate: Share
    false_positive_rate_high: Share
    true_positive_rate: Share
    true_positive_rate_low: Share
    true_positive_rate_high: Share
    limit: Share


class AuditFacts(TypedDict, total=False):
    """`audit.json`: what an attack on the claim reached."""

    attack: str
    epsilon_lower: Epsilon
    epsilon_any: Epsilon
    epsilon_claimed: Epsilon
    delta: Share
    confidence: Share
    ok: bool
    false_positive_rate: Share
    true_positive_rate: Share
    true_positive_rate_claimed: Share
    trials: int
    assumes: str
    epsilon_curve: Epsilon | None
    detected: list[DetectedFacts]
    public: bool


def unfit_facts(plan: AbstractPlan, facts: Mapping[str, Any]) -> list[str]:
    """What of the facts of a run has no place among those of its plan, or is of another kind or out
    of range.

    Args:
        plan: as it was read, of a choice among candidates that of the choice.
        facts: of a certificate, by anyone.
    """
    shapes = dict(fields_of(plan.facts_shape))
    # said where it is compared
    with suppress(KeyError, TypeError, ValueError, AttributeError, PrivlearnError):
        shapes |= fields_of(plan.trained(facts).facts_shape)
    problems: list[str] = []
    for name, value in facts.items():
        if name in shapes:
            problems += unfit(value, shapes[name], name)
        elif name not in ROWS:
            problems.append(f"{printable(name)[:60]!r} is unknown")
        elif not _is_checked(name, value):
            problems.append(f"{name} is out of range")
    return [f"the facts in {CERTIFICATE} do not suit the plan: {problem}" for problem in problems]


def _is_checked(name: str, value: Any) -> bool:
    try:
        return bool(ROWS[name].check(value) == value)
    except (BadInput, TypeError, ValueError):
        return False


def unfit_files(contents: Contents) -> list[str]:
    """What in the configurations and in the report of a folder has no place there.

    The configuration of a model of another library holds that library's fields, too: they are
    plain, and not endless.
    """
    problems: list[str] = []
    for name, shape in {CONFIG: Configuration, AUDIT: AuditFacts, ADAPTER_CONFIG: None}.items():
        if name not in contents.files:
            continue
        try:
            data = loads(contents.files[name])
        except ValueError as error:
            problems.append(f"{name} is not readable JSON: {printable(error)[:80]}")
            continue
        if not isinstance(data, dict):
            problems.append(f"{name} is not a table of fields")
            continue
        theirs = {} if name == AUDIT else _of_another_library(data, shape)
        ours = {field: value for field, value in data.items() if field not in theirs}
        problems += [
            f"{name} has something that does not belong there: {each}"
            for each in unfit(ours, shape or _None)
        ]
        if "table" in ours and not _is_schema(ours["table"], ours.get("schema")):
            problems.append(f"{name} has a table that is not the one of its digest, or none")
        if theirs and not is_short(theirs, _MOST, _DEEPEST):
            problems.append(f"{name} holds more than a configuration does")
    return problems


def _is_schema(table: Any, digest: Any) -> bool:
    from privlearn.data.schema import Schema  # for the few folders that state a table

    try:
        return bool(Schema.from_json(table, CONFIG).digest == digest)
    except (BadInput, TypeError, ValueError):
        return False


class _None(TypedDict):
    """No fields of privlearn's own."""


def _of_another_library(data: dict[str, Any], shape: Any) -> dict[str, Any]:
    """The fields of transformers or PEFT, in a configuration that says of itself that it is
    theirs.
    """
    if not OTHER_LIBRARIES & set(data):
        return {}
    known = fields_of(shape) if shape else {}
    return {name: value for name, value in data.items() if name not in known}
