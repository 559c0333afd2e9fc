"""Named checks of `privlearn budget --serve`: its figures are the command line's, and nobody else's
page gets any.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import privlearn as pv
from privlearn.cli import main, planner
from privlearn.cli.options import options_of
from privlearn.cli.planner import HOST, SAMPLINGS, Planner
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import rounded_up
from privlearn.core.accounting.tradeoff import percent_up, tradeoff
from tests.support.checks import check

PLAN = {"examples": "6000", "batch-size": "200", "epochs": "5", "delta": "1e-5"}
#: Each way to draw batches, by noise and by target.
PLANS = [
    {
        key: text
        for key, text in (PLAN | target | {"sampling": kind}).items()
        if (key, kind) != ("batch-size", "full")
    }
    for kind in SAMPLINGS
    for target in ({"noise-multiplier": "1.3"}, {"epsilon": "2.5"})
]
#: Numbers that are none, that mean nothing, and that are too much.
REFUSED = (
    {"epochs": "0"},
    {"epochs": "2.5"},
    {"epochs": ""},
    {"examples": "-3"},
    {"batch-size": "7000"},
    {"delta": "0"},
    {"delta": "2"},
    {"delta": "nan"},
    {"noise-multiplier": "0"},
    {"noise-multiplier": "inf"},
    {"epsilon": "-1"},
    {"epsilon": "x"},
    {"examples": "9" * 300},
    {"epochs": "1" * 40},
    {"sampling": "coin"},
    {"sampling": "--serve"},
    {"noise-multiplier": "1e-300"},
    {"batch-size": "0x10"},
    {"examples": "\u0663\u0000"},
)


@contextmanager
def serving() -> Iterator[Planner]:
    """A planner that answers."""
    with Planner() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(
    server: Planner, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    """The answer to one request, with headers in place of usual ones; an empty one is left out."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=300)
    own = {"Host": f"{HOST}:{server.server_port}"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    connection.putrequest(method, path, skip_host=True)
    for name, text in own.items():
        if text:
            connection.putheader(name, text)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def typed(*words: str) -> tuple[int, str, str]:
    """Code, output and errors of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def priced(plan: dict[str, str]) -> dict[str, Any]:
    """What `privlearn budget --json` prints."""
    code, out, err = typed(
        "budget", *(part for name, text in plan.items() for part in (f"--{name}", text)), "--json"
    )
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


@check
def check_the_planner_answers_as_the_command_line() -> None:
    """Over the network, for each way to draw batches: every figure, to the last bit, and what is
    said of it.
    """
    with serving() as server:
        for plan in PLANS:
            answer, text = asked(server, f"/figures?{urlencode(plan)}")
            said, figures = json.loads(text), priced(plan)
            assert answer.status == 200, text
            assert said["figures"] == figures, plan
            assert said["said"]["epsilon"] == rounded_up(figures["epsilon"])
            assert said["said"]["success"] == percent_up(figures["attack"]["success"])
            assert float(said["said"]["epsilon"]) >= figures["epsilon"]


@check
def check_what_the_planner_gives_away_runs() -> None:
    """The command and the Python that it exports give the figure that stands above them."""
    for plan in PLANS:
        said = planner.figures(plan)
        program, *words = shlex.split(said["command"])
        code, out, err = typed(*words, "--json")
        assert (program, code) == ("privlearn", 0), err
        assert json.loads(out) == said["figures"], plan
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(said["python"], names)
        guarantee = names["plan"].guarantee(float(plan["delta"]))
        assert (guarantee.epsilon, guarantee.adjacency) == (
            said["figures"]["epsilon"],
            said["figures"]["adjacency"],
        )
        assert list(names["plan"].noise_multipliers()) == said["figures"]["noise_multipliers"]
        assert printed.getvalue().strip() == str(guarantee)


@check
def check_the_planners_curves_end_at_its_figures() -> None:
    """Epsilon by epoch ends at the plan's; each row of the table is what that plan costs by
    itself.
    """
    for plan in PLANS:
        points = planner.spent(plan)["points"]
        figures = priced(plan)
        assert points[-1] == (figures["epochs"], figures["epsilon"])
        assert [epoch for epoch, _ in points] == sorted({epoch for epoch, _ in points})
        assert all(one[1] <= other[1] for one, other in pairwise(points))
    for target in ({"noise-multiplier": "1.3"}, {"epsilon": "2.5"}):
        table = planner.samplings(PLAN | target | {"sampling": "poisson"})
        rows = {row["sampling"]: row for row in table["rows"]}
        assert set(rows) == set(SAMPLINGS)
        for plan in PLANS:
            if set(target) <= set(plan):
                figures, row = priced(plan), rows[plan["sampling"]]
                assert row["epsilon"] == rounded_up(figures["epsilon"])
                assert (row["neighbours"], row["steps"]) == (figures["adjacency"], figures["steps"])
                assert row["noise"] == f"{figures['noise_multipliers'][0]:.4g}"
        shares = {kind: row["share"] for kind, row in rows.items()}
        assert max(shares.values()) == shares["shuffle"] == 1
        assert shares["poisson"] < 0.5


@check
def check_several_runs_are_priced_as_several() -> None:
    """Fixed beforehand: as the composed events. Chosen after results: as a ledger that lets them
    all through.
    """
    for plan in PLANS:
        own = _plan_of(plan)
        for runs in (1, 3):
            answer = planner.several(plan | {"runs": str(runs)})
            total = compose([own.event()] * runs)
            assert answer["fixed"] == accountant.guarantees(total, own.neighbours, 1e-5)[0].epsilon
            assert answer["said"]["together"] == percent_up(tradeoff(total, own.neighbours).success)
            if runs == 1:
                assert answer["adaptive"] == answer["fixed"] == priced(plan)["epsilon"]
            else:
                assert answer["adaptive"] >= answer["fixed"] > priced(plan)["epsilon"]
    own = _plan_of(PLANS[0])
    ledger = pv.Ledger(pv.Budget(planner.several(PLANS[0] | {"runs": "3"})["adaptive"], 1e-5))
    for _ in range(3):
        ledger.approve(own)
        ledger.charge(own.event(), own.neighbours)
        ledger.settle()


def _plan_of(plan: dict[str, str]) -> pv.Plan:
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(planner.figures(plan)["python"], names)
    made = names["plan"]
    assert isinstance(made, pv.Plan)
    return made


@check
def check_the_planner_refuses_in_the_command_lines_words() -> None:
    with serving() as server:
        for bad in REFUSED:
            plan = PLAN | ({} if "noise-multiplier" in bad else {"epsilon": "2.5"}) | bad
            code, _, err = typed(
                "budget", *(f"--{name}={text}" for name, text in plan.items()), "--json"
            )
            for path in ("figures", "spending", "several"):
                answer, text = asked(server, f"/{path}?{urlencode(plan)}")
                said = json.loads(text)["error"]
                assert (code, answer.status) == (2, 400), (bad, err)
                assert err == f"privlearn: {said}\n" or not said.isprintable(), (bad, err, said)
        for query in (
            "seed=1",
            "out=x",
            "config=F.toml",
            "plot=p.png",
            "epochs=5",
            "group-size=3",
            "task=",
        ):
            answer, text = asked(server, f"/figures?{urlencode(PLAN)}&epsilon=2&{query}")
            assert (answer.status, list(json.loads(text))) == (400, ["error"]), query
        for far in ("1e-300", "1e300"):
            answer, text = asked(server, f"/figures?{urlencode(PLAN | {'epsilon': far})}")
            assert list(json.loads(text)) == ["error"] or far == "1e300", text
        for runs in ("0", "-1", "101", "x", "1.5", "", "9" * 200):
            answer, _ = asked(
                server, f"/several?{urlencode(PLAN | {'epsilon': '2', 'runs': runs})}"
            )
            assert answer.status == 400, runs


@check
def check_only_the_planners_own_page_is_answered() -> None:
    """Not a name that leads here from elsewhere (DNS rebinding), not another page, and nothing but
    questions.
    """
    query = f"/figures?{urlencode(PLANS[0])}"
    with serving() as server:
        port = server.server_port
        assert server.server_address[0] == HOST == "127.0.0.1"
        for path in ("/", query):
            for host in (
                "",
                "evil.example",
                f"evil.example:{port}",
                f"{HOST}.evil.example:{port}",
                HOST,
                f"{HOST}:{port + 1}",
                f"evil.example@{HOST}:{port}",
                "[::1]",
            ):
                assert asked(server, path, Host=host)[0].status == 403, host
            for origin in (
                "http://evil.example",
                "null",
                f"https://{HOST}:{port}",
                f"http://{HOST}:{port + 1}",
                f"http://{HOST}:{port}.evil.example",
                "file://",
            ):
                assert asked(server, path, Origin=origin)[0].status == 403, origin
            for site in ("cross-site", "same-site", "anything"):
                assert asked(server, path, Sec_Fetch_Site=site)[0].status == 403, site
            for origin in (f"http://{HOST}:{port}", f"http://localhost:{port}"):
                assert (
                    asked(server, path, Origin=origin, Sec_Fetch_Site="same-origin")[0].status
                    == 200
                )
            assert asked(server, path, Host=f"localhost:{port}")[0].status == 200
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
                assert asked(server, path, method)[0].status == 501, method
        for path in (
            "/etc/passwd",
            "/../planner.py",
            "/figures/",
            "/planner.js",
            f"{query}&runs={'1' * 1000}",
        ):
            assert asked(server, path)[0].status == 404, path
        answer, _ = asked(server, query)
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@check
def check_the_planners_page_loads_nothing_and_computes_nothing() -> None:
    """Its style and script are the page's own, by digest; each number that it asks for is an
    option's.
    """
    with serving() as server:
        answer, text = asked(server, "/")
    policy = answer.headers["Content-Security-Policy"]
    for kind, rule in (("style", "style-src"), ("script", "script-src")):
        inside = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        assert len(inside) == len(re.findall(rf"<{kind}\b", text)) == 1
        assert f"{rule} '{planner._digest(inside[0])}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert not re.findall(r"https?:|\bsrc=|\bhref=|@import|url\(|\bon\w+=\"", text)
    assert "{{" not in text
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[0]
    assert not re.findall(r"Math\.|\beval\b|Function\(|parseFloat|toFixed", script)
    assert set(re.findall(r'data-name="([\w-]+)"', text)) == {*planner.OPTIONS, "runs"} - {
        "sampling"
    }
    assert {name.replace("-", "_") for name in planner.OPTIONS} <= set(options_of("budget"))
    assert re.findall(r'<option value="(\w+)"', text) == list(SAMPLINGS)


@check
def check_serving_says_where_and_ends_by_hand() -> None:
    """What is given becomes the page's start; what the page has no place for is refused; so is a
    port in use.
    """
    with mock.patch.object(Planner, "serve_forever", side_effect=KeyboardInterrupt):
        code, out, err = typed("budget", "--serve", "--examples", "5000", "--epsilon", "2")
        assert (code, err) == (0, "")
        assert re.search(r"http://127\.0\.0\.1:\d+/\?examples=5000&epsilon=2\.0\n", out)
        for words in (
            ("--method", "pate"),
            ("--json",),
            ("--schedule", "exp:k=0.01"),
            ("--port", "70000"),
            ("--port", "-1"),
            ("--tune", "F.toml"),
            ("--seed", "1"),
        ):
            code, out, err = typed("budget", "--serve", *words)
            assert (code, out) == (2, ""), words
        with Planner() as server:
            code, out, err = typed("budget", "--serve", "--port", str(server.server_port))
            assert (code, out) == (2, "")
            assert "--port" in err
