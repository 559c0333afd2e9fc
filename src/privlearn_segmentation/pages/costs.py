"""`privlearn budget --method pate --maps`: what corrections of maps cost; without data or torch."""

from __future__ import annotations

from typing import Any

from privlearn._checks import count
from privlearn.cli import methods, screen
from privlearn.cli.request import Request
from privlearn.errors import BadInput
from privlearn.training.choices import Facts
from privlearn_segmentation.plan import (
    AUTOENCODER_SIZE,
    CORRECTIONS,
    correction_figures,
    settle_corrections,
)

#: Volumes that a teacher can learn from: each holds many voxels.
VOLUMES = 2


def show_cost(request: Request) -> None:
    """Print what corrections of maps cost, and what their noise does to them."""
    if request.threshold is not None:
        raise BadInput(
            "--threshold is for votes on classes, and --maps for corrections of maps: leave one of "
            "them out"
        )
    if request.classes is None:
        raise BadInput(
            "--maps needs the number of classes in a mask, the background included: give --classes "
            "K"
        )
    classes = count("--classes", request.classes, least=2)
    plan = settle_corrections(methods.named_options(request), Facts(0))
    answer: dict[str, Any] = screen.priced(plan, request.delta)
    answer["plan"] = plan.to_json() | plan.noise_figures()
    corrected = request.codes in (None, CORRECTIONS)
    if corrected:
        answer["corrections"] = correction_figures(plan, classes)
    screen.warn(*methods.votes_warnings(plan, request.examples, least=VOLUMES))
    if request.json:
        screen.print_json(answer)
        return
    out = screen.answers
    task = "correct a public network's" if corrected else "give"
    out.print(
        f"{screen.BOLD}{plan.queries}{screen.END} queries, whole volumes, to "
        f"{screen.BOLD}{plan.teachers}{screen.END} teachers, who {task} maps of {classes} classes"
    )
    screen.guarantee_lines(answer)
    if corrected:
        _show_corrections(answer["corrections"])
    else:
        numbers = AUTOENCODER_SIZE if request.codes == "autoencoder" else "as many as are above it"
        out.print(
            f"\nnoise of {screen.BOLD}{plan.noise_std:.4g}{screen.END} radii on each number of a "
            f"code ({numbers}); a radius is the length of the longest code that counts. Twice the "
            "teachers, half the noise."
        )
    out.print(f"\n{screen.meaning(answer)}")


def _show_corrections(noise: dict[str, Any]) -> None:
    """What the noise does to corrections."""
    out = screen.answers
    out.print(
        f"\nnoise of {screen.BOLD}{noise['noise_in_radii']:.4g}{screen.END} radii on each of "
        f"{noise['numbers']} numbers of the mean correction; a radius is the length of the longest "
        "that counts. Twice the teachers, half the noise.\n"
    )
    table = screen.Table()
    for name in (
        "mean correction, in radii",
        "kept where all queries share it",
        "where one query has it",
    ):
        table.add_column(name, justify="right")
    for row in noise["kept"]:
        table.add_row(
            f"{row['length']:g}", f"{row['kept_of_common']:.2f}", f"{row['kept_of_own']:.2f}"
        )
    out.print(table)
