"""`privlearn demo hospitals`: teachers in Flower's simulation engine, and a student."""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.errors import BadInput
from privlearn.publishing.new_folder import require_free
from privlearn.publishing.verify import verify

#: What the engine is made of.
_NEEDED = ("flwr", "ray")


def run(request: Request) -> int:
    """Run the hospitals and the server here, publish the student, and verify it; 1 if it does not
    verify.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise BadInput(
            f"{' and '.join(missing)} cannot be imported: expected Flower and its simulation "
            "engine. Run pip install 'privlearn[flower]'"
        )
    require_free(request.out)
    # before Flower is imported: a demonstration reports nothing to anybody
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    hospitals = import_module("privlearn.flower.hospitals")
    with screen.notes.status("hospitals answer, and a student learns"):
        shown = hospitals.run_hospitals(request.sites, request.epsilon, request.delta, request.out)
    report = verify(shown.out)
    if request.json:
        screen.print_json(
            asdict(shown) | {"out": str(shown.out), "queries": hospitals.QUERIES, "ok": report.ok}
        )
        return 0 if report.ok else 1
    _print(shown, hospitals.QUERIES)
    folder = screen.plain(shown.out)
    verdict = "verifies" if report.ok else "does not verify"
    screen.answers.print(
        f"{screen.BOLD}{folder} {verdict}{screen.END}: `privlearn verify {folder}`"
    )
    return 0 if report.ok else 1


def _print(shown: Any, queries: int) -> None:
    say = screen.answers.print
    say(
        f"{shown.sites} hospitals, {shown.patients // shown.sites} patients each, {queries} "
        "questions about public inputs"
    )
    say("")
    table = screen.Table()
    for head in ("party", "sent", "saw"):
        table.add_column(head)
    for kind, passed in shown.traffic.items():
        count, each = shown.sites, passed.reply_bytes // max(passed.replies, 1)
        table.add_row(
            "each hospital",
            f"{passed.reply_form}, {each} bytes: its answers",
            f"{passed.request_form}, {passed.request_bytes // count} bytes: public inputs ({kind})",
        )
        table.add_row(
            "the server",
            f"{passed.requests} requests, {passed.request_bytes} bytes; the student",
            f"{passed.replies} replies, {passed.reply_bytes} bytes; no record",
        )
    table.add_row("a reader", "nothing", "the student and its certificate")
    screen.print_table(table)
    say("")
    say(
        f"epsilon {shown.epsilon:.2f} at delta {shown.delta:g}: noise of {shown.noise:.1f} votes "
        f"on each count of {shown.sites}"
    )
    say(
        f"accuracy of the student {shown.accuracy:.3f}, of a hospital's own model "
        f"{shown.accuracy_alone:.3f}, of the more frequent class {shown.accuracy_of_one_answer:.3f}"
    )
