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
    # before Flower is imported: no report of its use leaves this machine
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    hospitals = import_module("privlearn.flower.hospitals")
    with screen.notes.status("hospitals answer, and a student learns"):
        demonstration = hospitals.run_hospitals(
            request.sites, request.epsilon, request.delta, request.out
        )
    report = verify(demonstration.out)
    if request.json:
        traffic = [
            {"question": question} | asdict(passed)
            for question, passed in demonstration.traffic.items()
        ]
        figures: dict[str, Any] = {"out": str(demonstration.out), "traffic": traffic}
        figures |= {"queries": hospitals.QUERIES, "ok": report.ok}
        screen.print_json(asdict(demonstration) | figures)
        return 0 if report.ok else 1
    _print(demonstration, hospitals.QUERIES)
    folder = screen.plain(demonstration.out)
    verdict = "verifies" if report.ok else "does not verify"
    screen.answers.print(
        f"{screen.BOLD}{folder} {verdict}{screen.END}: `privlearn verify {folder}`"
    )
    return 0 if report.ok else 1


def _print(demonstration: Any, queries: int) -> None:
    say, sites = screen.answers.print, demonstration.sites
    say(f"{sites} hospitals, {demonstration.patients // sites} patients each, {queries} questions")
    say("")
    table = screen.Table()
    for head in ("party", "what passed", "bytes"):
        table.add_column(head, justify="right" if head == "bytes" else "left")
    for passed in demonstration.traffic.values():
        sent = passed.reply_bytes // max(passed.replies, 1)
        table.add_row("a hospital", f"saw public inputs: {passed.request_form}", "")
        table.add_row("", f"sent its teacher's answers: {passed.reply_form}", str(sent))
        table.add_row("the server", f"saw {passed.replies} replies", str(passed.reply_bytes))
        table.add_row("", f"sent {passed.requests} requests", str(passed.request_bytes))
    table.add_row("a reader", "sees the student, its card and its certificate", "")
    screen.print_table(table)
    say("")
    say(
        f"epsilon {demonstration.epsilon:.2f} at delta {demonstration.delta:g}: noise of "
        f"{demonstration.noise:.1f} votes on each count of {sites}"
    )
    for whose, accuracy in (
        ("the student", demonstration.accuracy),
        ("a hospital's own model", demonstration.accuracy_alone),
        ("the more frequent class", demonstration.accuracy_of_one_answer),
    ):
        say(f"accuracy of {whose}: {accuracy:.3f}")
