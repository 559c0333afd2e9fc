"""A declared run as a document: its form, its card, and how anyone computes it again.

The format is not that of certificates, and no field has the name that a certificate's has. So no
reader of certificates takes one for the other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, final

from privlearn._checks import checked
from privlearn._display import Described, Summary
from privlearn._shapes import Count, Digest, Positive, Within, unfit
from privlearn._storage import loads
from privlearn._texts import for_markdown
from privlearn.core.accounting.events import to_json
from privlearn.core.accounting.guarantee import Adjacency, rounded_up
from privlearn.declared.examination import EventPrice, Figures, compute_figures
from privlearn.declared.peer_library import find_library, library_names
from privlearn.declared.recorded_run import (
    DRAWN,
    RecordedRun,
    RecordedSteps,
    RunDeclaration,
)
from privlearn.declared.refusals import Case, PeerFigure, find_refusals
from privlearn.errors import BadInput, PrivlearnError

FORMAT = "privlearn-declared-run"
VERSION = 1
#: The files of a declared run.
DOCUMENT, CARD = "declared-run.json", "README.md"
#: What the document is worth, which stands in each.
LEVEL = (
    "declared. The arithmetic is recomputed; nothing here shows that the run followed it. "
    "This is not a certificate of privlearn."
)
#: What has to be true of a run for its epsilon to be the one of its events.
ON_TRUST = (
    "The gradient of each example was clipped to the clipping norm before it was added to others.",
    "Gaussian noise of the stated size was added in each step, and no one knows its seed.",
    "The file is of this run and counts all of its steps, and no other run used the same rows.",
    "Settings were not chosen by looking at private results, and no example is in the data twice.",
)
_LARGEST = 1 << 25
_AGREE = 1e-6

_Rate = Annotated[float, Within(1e-12, 1)]
_Delta = Annotated[float, Within(0, 1)]
_Neighbours = Literal["add_remove", "zero_out", "replace_one"]
_Text = Annotated[str, Within(0, 100)]


class StepsShape(TypedDict):
    """Equal steps in a row."""

    count: Count
    sampling: Literal["poisson", "without-replacement", "none"]
    noise_multiplier: Positive
    sampling_rate: _Rate


class RecordShape(TypedDict):
    """What the other library's accountant holds, and what the file states of the run."""

    library: _Text
    accountant: _Text
    neighbours: _Neighbours
    steps: list[StepsShape]
    cycle: Count
    iterations: Count | None
    examples: Count | None
    batch_size: Count | None
    delta: _Delta | None
    epsilon: Positive | None
    optimizer_steps: Count | None


class DeclarationShape(TypedDict):
    """What a person declares of the run."""

    sampling: Literal["poisson", "shuffle", "fixed", "without-replacement", "full"]
    examples: Count | None
    batch_size: Count | None
    epochs: Count | None
    steps: Count | None
    adjacency: _Neighbours | None
    delta: _Delta | None
    epsilon: Positive | None


class PeerFigureShape(TypedDict):
    """What others state of the run."""

    epsilon: Positive
    source: _Text
    claimed: bool


class PriceShape(TypedDict):
    """What events cost by privlearn's accountant."""

    epsilon: Positive
    adjacency: _Neighbours
    method: _Text
    tight: bool
    event: Any


class RecomputedShape(TypedDict):
    """The figures that follow from the rest of the document."""

    as_recorded: PriceShape
    as_declared: PriceShape
    undoubled: Positive | None


class DeclaredRunShape(TypedDict):
    """A run of another library: what it costs if it was as declared."""

    format: Literal["privlearn-declared-run"]
    version: Literal[1]
    level: str
    file_sha256: Digest
    recorded_by_others: RecordShape
    declared_by_others: DeclarationShape
    stated_by_others: list[PeerFigureShape]
    recomputed_here: RecomputedShape
    refused: dict[_Text, str]
    unchecked: dict[_Text, str]
    taken_on_trust: list[str]


@final
@dataclass(frozen=True, repr=False)
class DeclaredRun(Described):
    """A run of another library, priced from what is declared of it: this is no certificate.

    There is no attribute that says that all is well: `refused` says which mistakes were seen, and
    `taken_on_trust` what was not checked.

    Attributes:
        document: plain JSON values.
        problems: where it is read back, what does not follow from the rest; a sentence each.
    """

    document: Mapping[str, Any]
    problems: tuple[str, ...] = ()

    @property
    def refusals(self) -> dict[str, str]:
        """The mistakes that were seen, a sentence each, by the name of the rule."""
        return dict(self.document["refused"])

    @property
    def taken_on_trust(self) -> tuple[str, ...]:
        """What has to be true of the run, and cannot be seen in the file."""
        return tuple(self.document["taken_on_trust"])

    @property
    def epsilon_if_declared_truly(self) -> float:
        """What the run costs if all that is declared of it is true."""
        return float(self.document["recomputed_here"]["as_declared"]["epsilon"])

    def files(self) -> dict[str, bytes]:
        """The contents of the files of the folder, by name."""
        text = json.dumps(self.document, indent=1) + "\n"
        return {DOCUMENT: text.encode(), CARD: card(self.document).encode()}

    def _summary(self) -> Summary:
        document = self.document
        rows = [(label, text) for label, text in figure_rows(document)]
        rows += [("refused", f"{name}: {text}") for name, text in document["refused"].items()]
        rows += [("problem", problem) for problem in self.problems]
        return Summary("Declared run, which is no certificate", rows)


@checked
def certify(content: bytes, library: str, declaration: RunDeclaration) -> DeclaredRun:
    """Price a run that was made with another library, and look for mistakes in it.

    Args:
        content: of the file that holds what the library's accountant knows.
        library: one of `library_names()`.
        declaration: what is declared of the run. Where nothing is, that is listed as unchecked.

    Raises:
        BadInput: the file holds no run of the library, or a number is missing.
        UnsupportedEvent: no accountant gives a finite epsilon.
    """
    peer = find_library(library)
    run = peer.read(content)
    completed = declaration.completed(run)
    assert completed.delta is not None
    theirs = []
    if declaration.epsilon is not None:
        theirs.append(PeerFigure(declaration.epsilon, "as claimed", claimed=True))
    if run.epsilon is not None and run.delta in (None, completed.delta):
        theirs.append(PeerFigure(run.epsilon, "as the file states", claimed=True))
    computed = peer.compute_epsilon(run, completed.delta)
    if computed is not None and math.isfinite(computed[0]):
        theirs.append(PeerFigure(*computed, claimed=False))
    figures = compute_figures(run, completed)
    case = Case(run, completed, declaration, figures, tuple(theirs))
    return DeclaredRun(_write(case, hashlib.sha256(content).hexdigest()))


def _write(case: Case, digest: str) -> dict[str, Any]:
    """The document of a run."""
    refused, unchecked = find_refusals(case)
    return {
        "format": FORMAT,
        "version": VERSION,
        "level": LEVEL,
        "file_sha256": digest,
        "recorded_by_others": _plain(case.run),
        "declared_by_others": _plain(case.first),
        "stated_by_others": [asdict(figure) for figure in case.theirs],
        "recomputed_here": {
            "as_recorded": _price_of(case.figures.recorded),
            "as_declared": _price_of(case.figures.declared),
            "undoubled": case.figures.undoubled,
        },
        "refused": refused,
        "unchecked": unchecked,
        "taken_on_trust": [
            f"Batches were drawn as declared: {DRAWN[case.declaration.sampling]}.",
            *ON_TRUST,
            *find_library(case.run.library).on_trust,
        ],
    }


def _plain(value: RecordedRun | RunDeclaration) -> dict[str, Any]:
    """The fields as JSON holds them."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(value)))
    return plain


def _price_of(price: EventPrice) -> dict[str, Any]:
    return {
        "epsilon": price.epsilon,
        "adjacency": price.adjacency.value,
        "method": price.method,
        "tight": price.tight,
        "event": to_json(price.event),
    }


# Read back


def is_declared_run(folder: str | Path) -> bool:
    """Whether a folder holds a declared run, and no certificate."""
    path = Path(folder)
    return os.path.lexists(path / DOCUMENT) and not os.path.lexists(path / "privacy.json")


@checked
def check_declared_run(folder: str | Path) -> DeclaredRun:
    """Compute a declared run again, from nothing but its own document.

    Returns:
        The run. `problems` has what does not follow from the rest of the document, and `refused`
        the mistakes. Without both, the arithmetic holds; nothing shows that the run followed it.

    Raises:
        BadInput: it holds no readable document.
    """
    path = Path(folder)
    document = parse(_read(path / DOCUMENT))
    problems: list[str] = []
    try:
        problems += _contradictions(document)
    except (PrivlearnError, ArithmeticError, ValueError) as error:
        problems.append(f"the figures cannot be recomputed: {str(error)[:200]}")
    if not problems and _read(path / CARD) != card(document).encode():
        problems.append(f"{CARD} is not the card of {DOCUMENT}: it was changed")
    return DeclaredRun(document, tuple(problems))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror or error}. Expected the folder that certify "
            "wrote, with all its files"
        ) from error
    if len(content) > _LARGEST:
        raise BadInput(
            f"{path} is larger than {_LARGEST} bytes: expected the file that certify wrote"
        )
    return content


def parse(content: bytes) -> dict[str, Any]:
    """The document in the content of a file; unknown fields are refused.

    Raises:
        BadInput: it is none of this version.
    """
    try:
        document = loads(content)
    except ValueError as error:
        raise BadInput(
            f"{DOCUMENT} is not readable JSON: {error}. Get an unchanged copy"
        ) from error
    problem = next(unfit(document, DeclaredRunShape), None)
    if problem is not None:
        raise BadInput(
            f"{DOCUMENT} is not a declared run of version {VERSION}: {problem[:150]}. Get an "
            "unchanged copy, or a matching privlearn"
        )
    if document["recorded_by_others"]["library"] not in library_names():
        raise BadInput(
            f"{DOCUMENT} is of a library that is not known here: expected one of "
            f"{', '.join(library_names())}"
        )
    whole: dict[str, Any] = document
    return whole


def _contradictions(document: dict[str, Any]) -> list[str]:
    """What does not follow from the record and the declaration in the document."""
    record = dict(document["recorded_by_others"])
    record["neighbours"] = Adjacency.parse(record["neighbours"])
    record["steps"] = tuple(RecordedSteps(**part) for part in record["steps"])
    run = RecordedRun(**record)
    declared = dict(document["declared_by_others"])
    if declared["adjacency"] is not None:
        declared["adjacency"] = Adjacency.parse(declared["adjacency"])
    first = RunDeclaration(**declared)
    completed = first.completed(run)
    figures = compute_figures(run, completed)
    recomputed = document["recomputed_here"]
    problems = []
    for name, price in (("as_recorded", figures.recorded), ("as_declared", figures.declared)):
        expected, written = _price_of(price), recomputed[name]
        if not math.isclose(written["epsilon"], price.epsilon, rel_tol=_AGREE):
            problems.append(
                f"{DOCUMENT} states epsilon {written['epsilon']:.6g} {name.replace('_', ' ')}: the "
                f"events give {price.epsilon:.6g}"
            )
        elif {**expected, "epsilon": written["epsilon"]} != written:
            problems.append(f"{DOCUMENT} states other events, or another price, {name}")
    if (figures.undoubled is None) != (recomputed["undoubled"] is None) or (
        figures.undoubled is not None
        and not math.isclose(recomputed["undoubled"], figures.undoubled, rel_tol=_AGREE)
    ):
        problems.append(f"{DOCUMENT} states another figure for a sensitivity of one clipping norm")
    if problems:
        return problems
    # The figures agree up to rounding. Sentences are made of those that the document holds.
    written_figures = Figures(
        _with_epsilon(figures.recorded, recomputed["as_recorded"]),
        _with_epsilon(figures.declared, recomputed["as_declared"]),
        recomputed["undoubled"],
    )
    theirs = tuple(PeerFigure(**figure) for figure in document["stated_by_others"])
    case = Case(run, completed, first, written_figures, theirs)
    expected_document = _write(case, document["file_sha256"])
    return [
        f"{DOCUMENT} has another part {name!r} than its run and its declaration give"
        for name in expected_document
        if expected_document[name] != document[name]
    ]


def _with_epsilon(price: EventPrice, written: dict[str, Any]) -> EventPrice:
    return EventPrice(written["epsilon"], price.adjacency, price.method, price.tight, price.event)


# The card


def figure_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whose figure, and what it says: theirs, and those that were computed here."""
    rows = [
        (f"{figure['source']}", f"epsilon {figure['epsilon']:.6g}")
        for figure in document["stated_by_others"]
    ]
    recomputed = document["recomputed_here"]
    for name, label in (
        ("as_recorded", "events as their accountant took them, priced here"),
        ("as_declared", "events as declared, priced here"),
    ):
        price = recomputed[name]
        bound = "" if price["tight"] else ", an upper bound that is not tight"
        text = f"epsilon {rounded_up(price['epsilon'])}, {price['adjacency']} neighbours"
        rows.append((label, f"{text}, by {price['method']}{bound}"))
    return rows


def delta_of(document: Mapping[str, Any]) -> float:
    """The delta at which the figures of a document stand."""
    declared, record = document["declared_by_others"], document["recorded_by_others"]
    return float(declared["delta"] or record["delta"])


def card(document: Mapping[str, Any]) -> str:
    """The document for people, in Markdown: it follows from the document alone."""
    record = document["recorded_by_others"]
    steps = sum(part["count"] for part in record["steps"])
    accountant = f" ({for_markdown(record['accountant'])})" if record["accountant"] else ""
    lines = [
        "# Declared run: not a certificate",
        "",
        f"**Level: {LEVEL}**",
        "",
        f"A run of {for_markdown(record['library'])}{accountant} with {steps} recorded steps. "
        f"Figures are at delta {delta_of(document):g}.",
        "",
        "| whose figure | figure |",
        "| --- | --- |",
        *(
            f"| {for_markdown(label)} | {for_markdown(text)} |"
            for label, text in figure_rows(document)
        ),
        "",
    ]
    if document["refused"]:
        lines += ["## Refused", ""]
        lines += [
            f"- **{for_markdown(name)}**: {for_markdown(text)}."
            for name, text in document["refused"].items()
        ]
    else:
        lines += ["No mistake was seen in the numbers that were declared."]
    lines += ["", "## Taken on trust", ""]
    lines += [f"- {for_markdown(text)}" for text in document["taken_on_trust"]]
    if document["unchecked"]:
        lines += ["", "## Not looked at", ""]
        lines += [
            f"- {for_markdown(name)}: {for_markdown(text)}."
            for name, text in document["unchecked"].items()
        ]
    lines += [
        "",
        "## How to compute it again",
        "",
        "`privlearn verify FOLDER` prices the events once more. SHA-256 of the file that they were "
        f"read from: `{document['file_sha256']}`.",
        "",
    ]
    return "\n".join(lines)
