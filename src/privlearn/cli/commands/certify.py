"""`privlearn certify`: what a run that was made with another library costs, if it was as declared;
and `privlearn verify` of such a declared run.
"""

from __future__ import annotations

from pathlib import Path

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import Adjacency, rounded_up
from privlearn.declared.declared_document import (
    DeclaredRun,
    certify,
    check_declared_run,
    delta_of,
    figure_rows,
)
from privlearn.declared.recorded_run import RunDeclaration
from privlearn.errors import BadInput
from privlearn.publishing import new_folder

#: The largest file that is read: a checkpoint of a large model.
_LARGEST = 1 << 33


def run(request: Request) -> int:
    """Price the run, write it if asked to, and print it; 1 if a mistake was seen."""
    out = None if request.out is None else new_folder.require_free(request.out)
    declared = certify(_read(Path(request.file)), request.values["from"], _declaration(request))
    if out is not None:
        new_folder.write(out, declared.files())
    if request.json:
        screen.print_json(dict(declared.document))
        return 1 if declared.refusals else 0
    _print_figures(declared)
    if out is not None:
        screen.notes.print(
            f"written to {screen.plain(out)}: README.md is the card, and `privlearn verify` "
            "computes it again"
        )
    return 1 if declared.refusals else 0


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(
                f"file {path} is larger than {_LARGEST} bytes: save the accountant's state_dict "
                "alone, and give that"
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"file {str(path)[:200]!r} cannot be read: {error}. Give the file that the library "
            "wrote"
        ) from error


def _declaration(request: Request) -> RunDeclaration:
    adjacency = None if request.adjacency is None else Adjacency.parse(request.adjacency)
    return RunDeclaration(
        sampling=request.sampling,
        examples=request.examples,
        batch_size=request.batch_size,
        epochs=request.epochs,
        steps=request.steps,
        adjacency=adjacency,
        delta=request.delta,
        epsilon=request.claimed_epsilon,
    )


def _print_figures(declared: DeclaredRun) -> None:
    """Both figures beside theirs, what is refused, and what was not looked at."""
    document = declared.document
    out = screen.answers
    out.print(
        f"{screen.style('yellow bold')}declared run{screen.END} of "
        f"{screen.plain(document['recorded_by_others']['library'])}, which is not a certificate; "
        f"figures at delta {delta_of(document):g}"
    )
    table = screen.Table(show_header=False)
    table.add_column()
    table.add_column()
    for label, text in figure_rows(document):
        table.add_row(screen.plain(label), screen.plain(text))
    out.print(table)
    for name, text in declared.refusals.items():
        out.print(f"{screen.style('red bold')}refused{screen.END} {name}: {screen.plain(text)}.")
    for name, text in document["unchecked"].items():
        out.print(f"not looked at: {name}, since {screen.plain(text)}.")
    if not declared.refusals:
        out.print(
            "No mistake was seen. Taken on trust, and shown by nothing: how batches were drawn, "
            "that gradients were clipped, and that noise was added."
        )


def verify_declared_run(request: Request) -> int:
    """Compute a declared run again; 1 if something does not agree, or a mistake was seen."""
    if request.key is not None or request.ledger is not None:
        raise BadInput(
            f"{request.folder} is a declared run of another library: it has no signature and no "
            "ledger. Leave out key= and ledger="
        )
    declared = check_declared_run(request.folder)
    failed = bool(declared.problems or declared.refusals)
    if request.json:
        screen.print_json(
            {
                "format": declared.document["format"],
                "level": declared.document["level"],
                "arithmetic_holds": not declared.problems,
                "problems": list(declared.problems),
                "refused": declared.refusals,
                "epsilon_if_declared_truly": declared.epsilon_if_declared_truly,
                "taken_on_trust": list(declared.taken_on_trust),
            }
        )
        return 1 if failed else 0
    out, name = screen.answers, screen.plain(request.folder)
    if declared.problems:
        out.print(
            f"{screen.style('red bold')}{name}{screen.END} is a declared run, and its arithmetic "
            "does not hold:"
        )
        for problem in declared.problems:
            out.print(f"  - {screen.plain(problem)}")
        return 1
    epsilon = rounded_up(declared.epsilon_if_declared_truly)
    out.print(
        f"{screen.style('yellow bold')}{name} is a declared run{screen.END} of another library, "
        "and not a certificate: the arithmetic holds. If all was as declared, its events give "
        f"epsilon {epsilon} at delta {delta_of(declared.document):g}. Nothing here shows that the "
        "run followed them."
    )
    for rule, text in declared.refusals.items():
        out.print(f"{screen.style('red bold')}refused{screen.END} {rule}: {screen.plain(text)}.")
    for text in declared.taken_on_trust:
        out.print(f"  on trust: {screen.plain(text)}")
    return 1 if failed else 0
