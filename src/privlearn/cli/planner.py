"""`privlearn budget --serve`: plans in the browser, on this machine alone; every figure is the
accountant's.

The page asks for figures by the options of `privlearn budget`, and draws what it is given: it
computes none itself.
"""

from __future__ import annotations

import json
import math
import shlex
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from itertools import chain
from typing import Any, final
from urllib.parse import parse_qsl, urlencode, urlsplit

from privlearn._checks import count
from privlearn.cli import in_options, screen
from privlearn.cli.commands.budget import descent_plan, spending
from privlearn.cli.request import Request, parse
from privlearn.core.accounting import accountant
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import rounded_up
from privlearn.core.accounting.ledgers.fit import least_budget
from privlearn.core.accounting.tradeoff import RATES, percent_up, tradeoff
from privlearn.core.plan import Plan
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing.charts import line_chart, number_axis, percent_axis

HOST = "127.0.0.1"
#: What the page may ask for, each an option of `privlearn budget`; in the order of its commands.
OPTIONS = ("examples", "batch-size", "epochs", "noise-multiplier", "epsilon", "delta", "sampling")
#: How batches are drawn, for people.
SAMPLINGS = {
    "poisson": "each example by a coin of its own",
    "partition": "each example into one of the epoch's batches at random",
    "shuffle": "a random order, cut into batches",
    "fixed": "the same order in each epoch",
    "full": "all examples in each step",
}
_MOST_RUNS, _LONGEST = 100, 1000
_POINTS = 12
#: Threads take turns: a second answer at the same time would make both late.
_ONE_AT_A_TIME = threading.Lock()


def serve(request: Request) -> int:
    """Serve the page until it is interrupted.

    Raises:
        BadInput: options that the page has no place for, or a port that is not free.
    """
    others = [
        name
        for name in request.values
        if request.given(name) and name.replace("_", "-") not in OPTIONS
    ]
    if other := next((name for name in others if name not in ("serve", "port")), None):
        known = ", ".join(f"--{name}" for name in OPTIONS)
        raise BadInput(
            f"the planner knows nothing of --{other.replace('_', '-')}: leave it out. It takes "
            f"{known}"
        )
    count("--port", request.port, least=0, most=65_535)
    start = [(name, request.values[name.replace("-", "_")]) for name in OPTIONS]
    try:
        server = Planner(request.port)
    except OSError as error:
        raise BadInput(
            f"--port {request.port} can't be used: {error.strerror}. Leave it out to get a free one"
        ) from error
    with server:
        query = urlencode(
            [(name, value) for name, value in start if value is not None and request.given(name)]
        )
        screen.answers.print(f"The planner is at {server.address}/{'?' + query if query else ''}")
        screen.answers.print("It answers this machine alone. Ctrl-C ends it.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            screen.answers.print()
    return 0


# What it answers


def figures(options: Mapping[str, str]) -> dict[str, Any]:
    """What `privlearn budget --json` prints for these options, and what the page says beside it.

    Args:
        options: the options' texts by name.

    Raises:
        BadInput, PrivlearnError: as of the command line.
    """
    request = _request(options)
    plan, delta = descent_plan(request), request.delta
    answer = screen.figures(plan, delta, request.examples)
    warnings = list(screen.warnings(plan, delta, request.examples))
    return {
        "figures": answer,
        "said": {
            "epsilon": rounded_up(answer["epsilon"]),
            "success": percent_up(answer["attack"]["success"]),
            "noise": f"{plan.noise_multipliers()[0]:.4g}",
            "batch": f"{plan.sampling.expected_batch_size(request.examples):g}",
            "meaning": screen.meaning(answer).split("\n"),
            "method": screen.METHODS_IN_WORDS[answer["method"]],
        },
        "warnings": warnings,
        "picture": _tradeoff_picture(plan),
        "command": shlex.join(["privlearn", "budget", *_words(options)]),
        "python": snippet(plan, delta),
    }


def spent(options: Mapping[str, str]) -> dict[str, Any]:
    """Epsilon by epoch, as a picture. Args and errors as of `figures`."""
    request = _request(options)
    plan = descent_plan(request)
    lines = spending(plan, request.delta, _POINTS).values()
    least: dict[float, float] = {}
    for epoch, epsilon in chain.from_iterable(lines):
        least[epoch] = min(epsilon, least.get(epoch, math.inf))
    points = sorted(least.items())
    top = points[-1][1]
    target = 0.0 if plan.budget is None or plan.budget.epsilon is None else plan.budget.epsilon
    picture = line_chart(
        "spending",
        "epsilon by epoch",
        f"After {plan.epochs} epochs epsilon is {rounded_up(top)}.",
        (
            number_axis("epoch", 0, plan.epochs, whole=True),
            number_axis("epsilon", 0, max(top, target)),
        ),
        {"curve": points},
    )
    return {"picture": picture, "points": points}


def several(options: Mapping[str, str]) -> dict[str, Any]:
    """What several such runs on the same data cost: fixed beforehand, and where results decide
    about later ones.

    Args and errors as of `figures`, and under `runs` how many there are.
    """
    plan_options = dict(options)
    runs = _runs(plan_options.pop("runs", "2"))
    request = _request(plan_options)
    plan, delta = descent_plan(request), request.delta
    total = compose([plan.event()] * runs)
    fixed = accountant.guarantees(total, plan.neighbours, delta)[0].epsilon
    least = Budget(fixed, delta)
    if runs > 1:
        least = least_budget(least, plan.event(), total, plan.neighbours)
    assert least.epsilon is not None
    success = percent_up(tradeoff(total, plan.neighbours).success)
    said = {"fixed": rounded_up(fixed), "adaptive": rounded_up(least.epsilon), "together": success}
    return {"runs": runs, "fixed": fixed, "adaptive": least.epsilon, "said": said}


def samplings(options: Mapping[str, str]) -> dict[str, Any]:
    """The same options with each way to draw batches, a row each. Args and errors as of
    `figures`.
    """
    rows: list[dict[str, Any]] = []
    for kind, about in SAMPLINGS.items():
        applicable = {
            name: text for name, text in options.items() if name != "batch-size" or kind != "full"
        }
        row: dict[str, Any] = {"sampling": kind, "about": about}
        try:
            request = _request(applicable | {"sampling": kind})
            plan = descent_plan(request)
            best = plan.guarantee(request.delta)
        except PrivlearnError as error:
            rows.append(row | {"refused": in_options(str(error), "budget")})
            continue
        rows.append(
            row
            | {
                "epsilon": rounded_up(best.epsilon),
                "noise": f"{plan.noise_multipliers()[0]:.4g}",
                "neighbours": plan.neighbours.value,
                "steps": plan.epochs * plan.sampling.steps(request.examples),
                "size": best.epsilon if "epsilon" not in options else plan.noise_multipliers()[0],
            }
        )
    largest = max((row["size"] for row in rows if "size" in row), default=1.0)
    for row in rows:
        row["share"] = row.pop("size", 0.0) / largest
    return {"rows": rows, "by": "noise" if "epsilon" in options else "epsilon"}


def snippet(plan: Plan, delta: float) -> str:
    """Python that makes the plan and prints its guarantee."""
    target, noise = plan.budget, plan.noise_multipliers()[0]
    lines = ["import privlearn as pv"]
    arguments = [
        f"sampling=pv.sampling.{plan.sampling!r}",
        f"epochs={plan.epochs}",
        f"examples={plan.examples}",
    ]
    if target is None:
        arguments.append(f"schedule=pv.schedules.Constant({noise!r})")
    if plan.temperature is not None:
        lines.append("from privlearn.core.temperature import Temperature")
        arguments.append(
            f"temperature={plan.temperature!r},  # one release after training, as of `privlearn "
            "train`"
        )
    inner = "".join(f"    {each}{'' if '  #' in each else ','}\n" for each in arguments)
    lines += ["", f"plan = pv.Plan(\n{inner})"]
    if target is not None:
        lines.append(f"plan = plan.calibrate(epsilon={target.epsilon!r}, delta={target.delta!r})")
    return "\n".join([*lines, f"print(plan.guarantee(delta={delta!r}))"]) + "\n"


def _request(options: Mapping[str, str]) -> Request:
    """The request of a command line with these options."""
    if unknown := next((name for name in options if name not in OPTIONS), None):
        raise BadInput(
            f"{unknown[:40]!r} is not a number of the planner: expected {', '.join(OPTIONS)} or "
            "runs"
        )
    return parse(["budget", *(f"--{name}={text}" for name, text in options.items())])


def _words(options: Mapping[str, str]) -> Iterator[str]:
    for name in OPTIONS:
        if name in options:
            yield from (f"--{name}", options[name])


def _runs(text: str) -> int:
    try:
        runs = int(text)
    except ValueError:
        raise BadInput(
            f"runs is {text[:40]!r}: expected a whole number from 1 to {_MOST_RUNS}"
        ) from None
    return count("runs", runs, most=_MOST_RUNS)


def _tradeoff_picture(plan: Plan) -> str:
    curve = tradeoff(plan.event(), plan.neighbours)
    points = [(rate, curve.true_positive_rate(rate)) for rate in RATES]
    return line_chart(
        "tradeoff",
        "limit of every membership attack",
        "At 1 % false positives an attack detects at most "
        f"{percent_up(curve.true_positive_rate(0.01))} of those who took part.",
        (percent_axis("false positives"), percent_axis("detected")),
        {"guess": [(0, 0), (1, 1)], "curve": points},
    )


# The server


def answers() -> dict[str, Callable[[Mapping[str, str]], dict[str, Any]]]:
    """What answers which path."""
    return {"/figures": figures, "/several": several, "/spending": spent, "/samplings": samplings}


@cache
def page() -> tuple[bytes, str]:
    """The page, and the policy that lets it run its own script, ask this server, and nothing
    else.
    """
    files = {
        name: resources.files("privlearn.cli").joinpath(f"planner.{name}").read_text("utf-8")
        for name in ("html", "css", "js")
    }
    style = (
        resources.files("privlearn.publishing").joinpath("card.css").read_text("utf-8")
        + files["css"]
    )
    options = "".join(
        f'<option value="{kind}">{kind}: {about}</option>' for kind, about in SAMPLINGS.items()
    )
    text = (
        files["html"]
        .replace("{{samplings}}", options)
        .replace("{{style}}", style)
        .replace("{{script}}", files["js"])
    )
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(files['js'])}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


@final
class Planner(ThreadingHTTPServer):
    """The server: bound to this machine's own address, and answering only pages that came from
    it.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        ThreadingHTTPServer.__init__(self, (HOST, port), _Handler)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}"

    def is_own(self, host: str) -> bool:
        """Whether a host is this server by its own name: another name that leads here may be a
        stranger's.
        """
        return host in (f"{HOST}:{self.server_port}", f"localhost:{self.server_port}")


class _Handler(BaseHTTPRequestHandler):
    """One request: the page, or figures for numbers that are read as options are."""

    server: Planner
    timeout = 30

    def do_GET(self) -> None:
        """Answer."""
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        same_origin = self.server.is_own(self.headers.get("Host", ""))
        same_origin = same_origin and (
            origin is None or (origin.startswith("http://") and self.server.is_own(origin[7:]))
        )
        if not same_origin or site not in ("none", "same-origin"):
            self._send(403, "text/plain", b"this planner answers its own page alone\n")
            return
        path, query = urlsplit(self.path).path, urlsplit(self.path).query
        if path == "/":
            text, policy = page()
            self._send(200, "text/html", text, policy)
        elif path == "/favicon.ico":  # which browsers ask for by themselves
            self._send(204, "text/plain", b"")
        elif path in answers() and len(query) <= _LONGEST:
            self._send(*_answer_query(answers()[path], query))
        else:
            self._send(404, "text/plain", b"there is no such page\n")

    def _send(self, code: int, kind: str, body: bytes, policy: str = "default-src 'none'") -> None:
        self.send_response(code)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: the terminal has the address, and nothing else to show."""


def _answer_query(
    answer: Callable[[Mapping[str, str]], dict[str, Any]], query: str
) -> tuple[int, str, bytes]:
    """Code, type and body of the answer to a query."""
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=20)
    try:
        if len(dict(pairs)) < len(pairs):
            raise BadInput("a number of the planner is given twice: give each once")
        with _ONE_AT_A_TIME:
            code, body = 200, answer(dict(pairs))
    except PrivlearnError as error:
        code, body = 400, {"error": in_options(str(error), "budget")}
    # numbers so far out that the search for the noise does not end
    except (ArithmeticError, RuntimeError):
        code, body = (
            400,
            {
                "error": (
                    "no figure can be computed for these numbers: give others, nearer to usual ones"
                )
            },
        )
    return code, "application/json", json.dumps(body).encode()
