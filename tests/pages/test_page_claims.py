"""What the pages state in words and numbers: names, options and links exist, and computable figures
are recomputed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting import events, mechanisms, pld, rdp, trees
from privlearn.core.accounting.accountant import guarantees
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency, times
from privlearn.core.accounting.mechanisms import Gaussian, Partitioned, PoissonSampled
from privlearn.core.sampling import TruncatedPoisson
from privlearn.errors import UnsupportedEvent
from privlearn.neighbours import plugin as neighbours_plugin
from privlearn_studies.registry import STUDIES
from privlearn_studies.report import read_rows
from tests.clipping.architectures import ARCHITECTURES
from tests.laws import doors
from tests.pages.page_blocks import PAGES, ROOT

_COMMANDS = (
    "train",
    "audit",
    "commit",
    "replay",
    "budget",
    "verify",
    "export",
    "certify",
    "key",
    "predict",
    "reproduce",
    "demo",
    "ledger",
    "data list",
    "data fetch",
    "data schema",
)
#: Options of the programs in bench/, and arrows of a drawing.
_OTHERS = {
    "--nproc-per-node",
    "--quick",
    "--only",
    "--threads",
    "--device",
    "--sweep",
    "--no-peers",
    "--json",
    "--sampling--",
    "--clipping--",
    "--release---",
}
_OTHERS |= {"--publish--", "--steps", "--rounds", "--write"}
_OTHERS |= {neighbours_plugin.OPTION}  # of pytest
_OTHERS |= {"--index-url", "--no-deps", "--recipe", "--rm"}  # of pip, rattler-build and docker
_OTHERS |= {
    "--enable-supernode-auth",
    "--ssl-ca-certfile",
    "--ssl-certfile",
    "--ssl-keyfile",
}  # Flower
_OTHERS |= {"--disable-runtime-dependency-installation", "--superlink", "--root-certificates"}
_OTHERS |= {"--auth-supernode-private-key", "--node-config", "--stream", "--run-config"}
_OTHERS |= {"--trusted-entities", "--summation", "--groups"}
_TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}


def page(name: str) -> str:
    """A page as one line."""
    return " ".join(_TEXTS[name].split())


def table(name: str, head: str) -> list[list[str]]:
    """The cells of the table whose head begins with `head`, without the head."""
    lines = iter(_TEXTS[name].split(head, 1)[1].splitlines()[2:])
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


@pytest.mark.parametrize("name", PAGES)
def test_names_of_the_library_exist(name: str) -> None:
    for path in sorted(set(re.findall(r"\bpv((?:\.[A-Za-z_]\w*)+)", _TEXTS[name]))):
        here: object = pv
        for part in path[1:].split("."):
            assert hasattr(here, part), f"{name}: pv{path}"
            here = getattr(here, part)


def test_options_exist() -> None:
    known = set(_OTHERS)
    for command in _COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit):
            main([*command.split(), "--help-all"])
        known |= set(re.findall(r"--[a-z][a-z-]+", said.getvalue()))
    for name, text in _TEXTS.items():
        if "results/yu" in name or "results/dpmac" in name:
            continue  # written by programs
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            assert option in known, f"{name}: {option}"


def test_studies_exist() -> None:
    names = {study.name for study in STUDIES}
    for name, text in _TEXTS.items():
        for study in re.findall(r"privlearn reproduce ([a-z][\w-]+)", text):
            assert study in names, f"{name}: {study}"


def anchors(text: str) -> Iterator[str]:
    for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", _TEXTS[name]):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), f"{name}: {target}"
        assert not anchor or anchor in anchors(Path(file).read_text(encoding="utf-8")), (
            f"{name}: {target}"
        )


def test_the_number_of_orders() -> None:
    assert f"Renyi divergences at {len(rdp.ORDERS)} orders" in page("docs/accounting.md")


def test_the_price_of_a_step_is_that_of_the_table() -> None:
    """The page's first lines say of each network what was measured."""
    text = page("docs/performance.md")
    rows = json.loads((ROOT / "docs" / "forty-networks.json").read_text(encoding="utf-8"))
    forty = [row["private_over_plain"] for row in rows]
    assert len(forty) == 40
    cheap = sum(ratio <= 1.5 for ratio in forty)
    assert f"{min(forty):.1f} to 1.5 times on {cheap} of [forty" in text
    assert f"at most {max(forty):.2f}." in text
    assert f"{cheap} of the 40 take at most 1.5" in text
    assert f"{sum(ratio <= 1.3 for ratio in forty)} of them at most 1.3" in text
    assert f"median is {median(forty):.2f}" in text
    assert all(row["computed"] == "layers" for row in rows)
    noisy = [
        float(row[3].split()[0])
        for row in table("docs/performance.md", "| network | plain step, ms |")
    ]
    assert f"takes {min(noisy):.1f} to {max(noisy):.1f} times as long as a plain one" in page(
        "docs/performance.md"
    )
    assert not any("costs little more" in page(name) for name in PAGES)


def test_the_table_of_architectures_is_that_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """privlearn's outcomes are what `tests/clipping/test_architectures.py` holds; the page is up to
    date.
    """
    page_of_all = "docs/measured/architectures.md"
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    results = json.loads((ROOT / "docs" / "measured" / "architectures.json").read_text("utf-8"))
    assert importlib.import_module("architecture_tables").table(results) in _TEXTS[page_of_all]
    outcomes = {"layers": "right", "vmap": "right", "loop": "right, loop"}
    held = {
        row.name: "right, changed"
        if "BatchNorm" in row.reason
        else outcomes.get(row.outcome, row.outcome)
        for row in ARCHITECTURES
    }
    stated = results["architectures"]
    assert {row[0]: row[2] for row in stated} == held
    counts = {row[0]: row[1:] for row in table(page_of_all, "| | privlearn | Opacus, hooks |")}
    listed = table(page_of_all, "| privlearn | package | architectures |")
    by_outcome = [(row[0], row[1], name) for row in listed for name in row[2].split("; ")]
    assert sorted(by_outcome) == sorted(
        (row[2], row[1], row[0].removesuffix(f" ({row[1]})")) for row in stated
    )
    assert sum("wrong" in row[3:] for row in stated) == len(
        {name for name, _, _ in results["wrong"]}
    )
    assert counts["wrong, without an error"][0] == "0"
    for number in range(3):
        assert sum(int(row[number]) for row in counts.values()) == len(ARCHITECTURES)
    for _, _, ours, *others in stated:
        assert ours != "refused" or not any(other.startswith("right") for other in others)


def test_what_the_three_ways_to_draw_batches_cost() -> None:
    for sampler, figure in (
        (pv.Poisson(0.01), 1.283),
        (pv.Partition(100), 1.281),
        (pv.Shuffle(600), 19.13),
    ):
        plan = pv.Plan(sampler, epochs=400, schedule=pv.schedules.Constant(6.0), examples=60_000)
        assert plan.guarantee(1e-5).epsilon == pytest.approx(
            figure, abs=6e-4 if figure < 2 else 6e-3
        )
        assert f"{figure}" in page("docs/accounting.md")
        assert f"{figure}" in page("docs/command-line.md")


def test_what_an_epsilon_means_for_attackers() -> None:
    """The table by which readers choose an epsilon is that of the default plan."""
    factors, success, detected = table("docs/concepts.md", "| epsilon | 0.5 | 1 |")
    for epsilon, factor, right, found in zip(
        ("0.5", "1", "3", "8"), factors[1:], success[1:], detected[1:], strict=True
    ):
        assert times(float(epsilon)) == f"about {factor} times"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["budget", "--examples", "60000", "--epsilon", epsilon, "--json"]) == 0
        attack = json.loads(printed.getvalue())["attack"]
        for cell, figure in ((right, "success"), (found, "true_positive_rate_at_0.01")):
            assert 0 <= float(cell.split()[0]) - 100 * attack[figure] < 0.1  # rounded up


def test_epsilon_beside_that_of_opacus() -> None:
    """privlearn's figures, and those of Opacus where it is installed."""
    costs, noises = table("docs/coming-from-opacus.md", "| | privlearn | Opacus 1.6, `prv`")
    priced = pv.Plan(pv.Poisson(0.01), 10, pv.schedules.Constant(1.0), examples=60_000)
    assert f"{priced.guarantee(1e-5).epsilon:.3f}" == costs[1]
    solved = pv.Plan(pv.Poisson(0.01), 30, examples=60_000).calibrate(epsilon=3, delta=1e-5)
    assert f"{solved.schedule.start:.3f}" == noises[1]
    accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed")
    utils = importlib.import_module("opacus.accountants.utils")
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.01, "steps": 3000}
    for column, name in ((2, "prv"), (3, "rdp")):
        accountant = accountants.create_accountant(name)
        accountant.history = [(1.0, 0.01, 1000)]
        assert accountant.get_epsilon(1e-5) == pytest.approx(float(costs[column]), abs=1e-3)
        noise = utils.get_noise_multiplier(**target, accountant=name, epsilon_tolerance=1e-3)
        assert noise == pytest.approx(float(noises[column]), abs=1e-3)


def test_poisson_sampling_is_no_bound_for_partitions() -> None:
    at = 0.07
    partition = pld.compose_event(Partitioned(100, Gaussian(0.6)), h=1e-4).deltas(at)
    poisson = pld.compose_event(Repeated(PoissonSampled(0.01, Gaussian(0.6)), 100), h=1e-4).deltas(
        at
    )
    larger, smaller = max(partition), max(poisson)
    assert f"delta(0.07) is {larger:.3f} against {smaller:.3f}" in page("docs/accounting.md")


def test_what_it_costs_that_noise_may_react() -> None:
    """The rows that need no search by privacy loss distributions."""
    rows = table("docs/accounting.md", "| batches | epsilon | constant noise |")
    shuffles = [row for row in rows if "shuffle" in row[0]] + [rows[3]]
    for epsilon, row in zip((2.0, 8.0), shuffles, strict=True):
        for cell, schedule in (
            (row[2], pv.schedules.Constant()),
            (row[3], pv.schedules.Validation(k=0.5)),
            (row[4], pv.schedules.Validation(k=0.5, noise=100.0)),
        ):
            plan = pv.Plan(pv.Shuffle(600), epochs=60, schedule=schedule, examples=60_000)
            found = plan.calibrate(epsilon=epsilon, delta=1e-5).schedule.start
            assert found == pytest.approx(float(cell), abs=1.1e-3), row


def test_noise_on_votes_and_codes() -> None:
    def plan(queries: int, epsilon: float) -> pv.PatePlan:
        return pv.teachers.PatePlan(queries, 250, pv.teachers.Votes(classes=10)).calibrate(
            epsilon=epsilon, delta=1e-5
        )

    for row in table("docs/pate.md", "| queries | epsilon 1 |"):
        for epsilon, cell in zip((1.0, 2.0, 4.0, 8.0), row[1:], strict=True):
            assert f"{plan(int(row[0]), epsilon).noise_std:.1f}" == cell
    exact = pv.teachers.PatePlan(80, 8, pv.teachers.Ball(1.0)).calibrate(epsilon=8.0, delta=1e-3)
    paper = pv.teachers.PatePlan(80, 8, pv.teachers.Ball(1.0)).calibrate(
        epsilon=8.0, delta=1e-3, formula="paper"
    )
    box = pv.teachers.PatePlan(80, 8, pv.teachers.Box(64**3 * 4)).calibrate(epsilon=8.0, delta=1e-3)
    more = paper.noise_std / exact.noise_std
    assert f"adds {more:.3f} times as much at (8, 1e-3)" in page("docs/pate.md")
    said = (
        f"noise of {box.noise_std:.0f} on each number of a 64^3 x 4 map (their formula: "
        f"{box.noise_std * more:.0f})"
    )
    assert f"{said} becomes {exact.noise_std:.2f} R" in page("docs/pate.md")


def test_what_votes_on_mnist_bring() -> None:
    rows = read_rows((ROOT / "docs" / "results" / "pate-mnist.json").read_text(encoding="utf-8"))
    found = {(row.label, row.metric): row for row in rows}
    for line in table("docs/pate.md", "| queries | noise on each count | noisy winners"):
        queries = f"{line[0]} queries"
        wanted = [
            (queries, "accuracy of the noisy winners on the queries"),
            *(
                (f"{queries}, {way}", "test accuracy")
                for way in ("no spreading", "spreading from winners")
            ),
            (f"{queries}, spreading from noisy counts", "test accuracy"),
        ]
        assert [f"{found[key].ours:.3f} ± {found[key].ours_std:.3f}" for key in wanted] == line[2:]


_RELEASE = Gaussian(3.0)
EVENTS: dict[str, events.Event] = {
    "Gaussian": _RELEASE,
    "PoissonSampled": PoissonSampled(0.1, _RELEASE),
    "TruncatedPoissonSampled": TruncatedPoisson.of_size(100, 1000).event(_RELEASE),
    "Partitioned": Partitioned(20, _RELEASE),
    "FixedBatches": mechanisms.FixedBatches(_RELEASE),
    "Laplace": mechanisms.Laplace(3.0),
    "RandomisedResponse": mechanisms.RandomisedResponse(0.5, 4),
    "Selection": mechanisms.Selection(0.1),
    "RepeatAndSelect": trees.RepeatAndSelect(_RELEASE, 2.0, 1.0),
    "Parallel": trees.Parallel((_RELEASE, Gaussian(4.0))),
    "OneOf": trees.OneOf((_RELEASE, Gaussian(4.0))),
    "ZCDP": mechanisms.ZCDP(0.01),
    "Filter": trees.Filter(0.1),
    "GaussianFilter": trees.GaussianFilter(0.1),
}


def test_what_is_priced_is_what_the_table_says() -> None:
    """For which neighbours, and that every method that is printed has its line on the page."""
    text, seen, methods = page("docs/accounting.md"), set(), set()
    for row in table("docs/accounting.md", "| event | what happened | add/remove |"):
        name = row[0].split("`")[1]
        if name not in EVENTS:
            assert name == "Repeated"
            continue
        seen.add(name)
        for adjacency, cell in zip(Adjacency, row[2:5], strict=True):
            try:
                methods |= {each.method for each in guarantees(EVENTS[name], adjacency, 1e-5)}
                priced = True
            except UnsupportedEvent:
                priced = False
            if cell in ("yes", "no"):
                assert priced == (cell == "yes"), (name, adjacency)
    assert seen == set(EVENTS)
    for method in methods:
        assert f"**{method}**" in text or f"`{method}`" in text, method


def test_the_table_of_entry_points_is_that_of_their_arguments() -> None:
    """`python -m tests.laws.doors` writes it."""
    assert doors.PAGE.read_text("utf-8") == doors.page()
