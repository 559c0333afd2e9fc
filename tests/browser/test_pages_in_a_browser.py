"""The planner, the model card and the page of a ledger in headless Chromium: widths, dark, print,
keyboard, and axe-core's findings.

Needs `pip install "privlearn[browser]"` and a Chromium at PRIVLEARN_CHROMIUM, or on the path.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from privlearn.cli import main, planner
from privlearn.cli.planner import Planner
from privlearn.core.accounting.budget import Budget
from tests.cli.checks_ledger_view import fill

playwright = pytest.importorskip(
    "playwright.sync_api", reason='Playwright is not here: pip install "privlearn[browser]"'
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason='axe-core is not here: "privlearn[browser]"'
)
CHROMIUM = (
    os.environ.get("PRIVLEARN_CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium: set PRIVLEARN_CHROMIUM to where it is"
    ),
]
WIDTHS = (360, 768, 1280)
#: Findings that count.
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        own = started.chromium.launch(executable_path=CHROMIUM)
        yield own
        own.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Planner() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("published") / "model"
    words = (
        "--data",
        "digits",
        "--examples",
        "1437",
        "--epsilon",
        "4",
        "--epochs",
        "2",
        "--seed",
        "0",
    )
    assert main(["train", *words, "--out", str(folder)]) == 0
    return (folder / "card.html").as_uri()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("ledger")
    fill(folder / "study.db", Budget(6.0, 1e-5))
    page = folder / "page.html"
    assert main(["ledger", str(folder / "study.db"), "--html", str(page)]) == 0
    return page.as_uri()


def test_no_label_of_a_chart_is_cut_off(browser: Any, card: str, ledger: str) -> None:
    out = (
        "() => [...document.querySelectorAll('svg')].flatMap(svg => { const own = "
        "svg.getBoundingClientRect();return [...svg.querySelectorAll('text')].map(text => "
        "[text.textContent, text.getBoundingClientRect()]).filter(([_, at]) => at.right > "
        "own.right || at.left < own.left || at.bottom > own.bottom).map(([text, _]) => text) })"
    )
    for width, page in itertools.product(WIDTHS, (card, ledger)):
        assert opened(browser, page, width).evaluate(out) == []


def opened(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> Any:
    """A page that is ready; what it says on its console, asks for elsewhere or fails in ends the
    test.
    """
    page = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    ).new_page()
    page.troubles = []
    page.on("console", lambda said: page.troubles.append(said.text))
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            asked.url.startswith((address[:20], "data:")) or page.troubles.append(asked.url)
        ),
    )
    page.goto(address)
    if address.startswith("http"):
        page.wait_for_selector("#answer:not([hidden])", timeout=60_000)
        page.wait_for_selector("#samplings tr:nth-child(5)", timeout=60_000)
    return page


def ready(page: Any) -> None:
    """Wait until the last change was answered."""
    page.wait_for_timeout(150)
    page.wait_for_function(
        "document.getElementById('state').textContent != '' && !document.querySelector('.busy')"
    )
    page.wait_for_timeout(400)
    page.wait_for_function("!document.querySelector('.busy')")


@pytest.fixture(scope="module")
def pages(address: str, card: str, ledger: str) -> tuple[str, str, str]:
    return address + "/", card, ledger


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_and_have_no_serious_finding(
    browser: Any, pages: tuple[str, ...], width: int, scheme: str
) -> None:
    for place in pages:
        page = opened(browser, place, width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        findings = axe.Axe().run(page).response["violations"]
        bad = [
            (each["id"], each["nodes"][0]["html"]) for each in findings if each["impact"] in SERIOUS
        ]
        assert not bad, (place, bad)
        assert page.troubles == []
        page.context.close()


def test_pages_are_printed_dark_on_white(browser: Any, pages: tuple[str, ...]) -> None:
    for place in pages:
        page = opened(browser, place, scheme="dark")
        page.emulate_media(media="print", color_scheme="dark")
        colours = page.evaluate(
            "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
        )
        assert colours == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
        assert len(page.pdf()) > 10_000
        page.context.close()


def test_everything_is_reached_by_the_keyboard_and_seen_where_it_is(
    browser: Any, pages: tuple[str, ...]
) -> None:
    for place in pages:
        page = opened(browser, place)
        wanted = page.evaluate(
            "[...document.querySelectorAll('a[href], input, select, button, [tabindex]')].filter(e "
            "=> e.offsetParent && !e.disabled && !(e.type == 'radio' && !e.checked)).length"
        )
        reached: set[str] = set()
        for _ in range(wanted):
            page.keyboard.press("Tab")
            here, outline = page.evaluate(
                "(e => [[...document.querySelectorAll('*')].indexOf(e) + '', "
                "getComputedStyle(e).outlineStyle])(document.activeElement)"
            )
            reached.add(here)
            assert outline != "none", here
        assert len(reached) == wanted > 4
        page.context.close()


def test_a_slider_moves_the_figures(browser: Any, address: str) -> None:
    """What stands on the page after a slider was moved by hand is what the accountant says of these
    options.
    """
    page = opened(browser, address + "/")
    before = page.inner_text("#say-epsilon"), page.inner_html("#tradeoff")
    for name, keys in (("examples", 4), ("epochs", 3), ("epsilon", 5)):
        page.focus(f"#{name} + input")
        for _ in range(keys):
            page.keyboard.press("ArrowLeft")
    ready(page)
    plan = {
        name: page.input_value(f"#{name}")
        for name in ("examples", "batch-size", "epochs", "delta", "epsilon")
    }
    assert (plan["examples"], plan["epochs"], plan["epsilon"]) == ("20000", "15", "1")
    said = planner.figures(plan | {"sampling": "poisson"})
    assert page.inner_text("#say-epsilon") == said["said"]["epsilon"] != before[0]
    assert page.inner_html("#tradeoff") != before[1]
    assert page.inner_text("#python").strip() == said["python"].strip()
    assert page.inner_text("#command") == said["command"]
    page.check('[value="noise-multiplier"]')
    page.fill("#noise-multiplier", "2.5")
    page.select_option("#sampling", "full")
    page.fill("#runs", "4")
    ready(page)
    plan = {
        "examples": "20000",
        "epochs": "15",
        "noise-multiplier": "2.5",
        "delta": plan["delta"],
        "sampling": "full",
    }
    assert page.inner_text("#say-epsilon") == planner.figures(plan)["said"]["epsilon"]
    assert (
        page.inner_text("#say-adaptive")
        == planner.several(plan | {"runs": "4"})["said"]["adaptive"]
    )
    assert page.inner_text("#say-runs") == "4"
    again = opened(browser, page.url)
    assert again.inner_text("#say-epsilon") == page.inner_text("#say-epsilon")


def test_what_is_refused_is_said_and_no_older_figure_stays(browser: Any, address: str) -> None:
    page = opened(browser, address + "/")
    page.fill("#epochs", "0")
    page.wait_for_selector("#error:not([hidden])")
    assert "--epochs is 0" in page.inner_text("#error")
    assert page.is_hidden("#answer")
    page.fill("#epochs", "3")
    page.wait_for_selector("#answer:not([hidden])")
    assert page.is_hidden("#error")


def test_a_slow_answer_is_announced(browser: Any, address: str) -> None:
    page = opened(browser, address + "/")
    go_on, figures = threading.Event(), planner.figures

    def slow(options: Any) -> Any:
        go_on.wait(30)
        return figures(options)

    with mock.patch.object(planner, "figures", slow):
        page.fill("#epochs", "12")
        page.wait_for_selector("#state.busy")
        assert page.inner_text("#state").startswith("Computing")
        assert page.get_attribute("#answer", "aria-busy") == "true"
        go_on.set()
        ready(page)
    assert page.inner_text("#say-steps") == "1200"
