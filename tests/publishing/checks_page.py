"""Named checks of `card.html`: a page that is whole, loads nothing, runs nothing, and says what is
published.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from html import escape
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.stats import binomtest
from torch import nn

import privlearn as pv
from privlearn import metrics
from privlearn._checks import printable
from privlearn._texts import for_markdown
from privlearn.core.accounting import rdp
from privlearn.core.accounting.events import compose, walk
from privlearn.core.accounting.guarantee import Adjacency, Guarantee, PrivacyUnit, times
from privlearn.core.accounting.mechanisms import ZCDP, Gaussian, Laplace, PoissonSampled
from privlearn.methods.statistics.metric_figures import Metrics, MetricsPlan
from privlearn.models import networks
from privlearn.publishing import card, folder, page, publish
from privlearn.publishing.accuracy import (
    compare_with_one_answer,
    compute_error_of_mean,
    interval,
    of_one_answer,
)
from privlearn.publishing.costs import costs
from privlearn.publishing.verify import Verification, verify_contents
from privlearn.runs.result import PrivateDiagnostics
from tests.publishing.checks import key_in, published, result, workplace
from tests.support.checks import check
from tests.support.nets import cross_entropy, small_data

#: Elements that have no end.
VOID = {"meta", "br"}
#: Everything that a page has. What loads, runs, embeds or sends anything is not among it.
ELEMENTS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "nav",
    "main",
    "section",
    "div",
    "h1",
    "h2",
    "h3",
    "p",
    "ul",
    "li",
    "dl",
    "dt",
    "dd",
    "br",
    "a",
    "strong",
    "span",
    "pre",
    "code",
    "figure",
    "figcaption",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "svg",
    "desc",
    "line",
    "text",
    "polyline",
    "circle",
}
#: What strangers may have called something, with what is to come of it.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></svg>",
    "&lt;b&gt; &amp; <!--",
    "]]><![CDATA[",
    "a\u202eb\u2028c\x00d\ud800",
    "{text(value)} %s",
    "javascript:alert(1)",
)


class Reader(HTMLParser):
    """Reads a page strictly: every element is ended where it has to be, and known."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        named = dict(attributes)
        assert len(named) == len(attributes), tag
        assert not any(
            name.startswith("on") or name in ("src", "action", "srcdoc") for name in named
        ), named
        self.elements.append((tag, named))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)

    def all(self, *tags: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(tag, named) for tag, named in self.elements if tag in tags]

    def said(self, tag: str) -> list[str]:
        return [text for own, text in self.texts if own == tag]


def page_of(folder: Path) -> str:
    return (folder / "card.html").read_text("utf-8")


@lru_cache(maxsize=1)
def results() -> dict[str, tuple[pv.Result, dict[str, Any]]]:
    """Runs of several kinds, and what else they are published with."""
    data = pv.Dataset(*small_data(40), classes=3, low=-5, high=5, feature_names=HOSTILE[:5])
    metrics = Metrics({"accuracy": 0.75, "log_loss": 0.5}, 40, ((10, 2, 1), (3, 12, 0), (2, 2, 8)))
    noisy = MetricsPlan(3, Adjacency.ADD_REMOVE, noise_multiplier=20.0)
    ledger = pv.Ledger()
    paid_result = _trained(
        pv.Plan(pv.Poisson(0.25), 2, pv.schedules.Exponential(0.1, start=4.0), examples=40),
        ledger=ledger,
        beside=noisy,
    )
    ledger.charge(noisy.event(), Adjacency.ADD_REMOVE)
    fisher = pv.statistics.FisherPlan(3, 5, 5, 4.0).calibrate(epsilon=4.0, delta=1e-4)
    persons = replace(data, groups=np.arange(40) // 2, feature_names=())
    selected = pv.train(
        data, epsilon=4.0, delta=1e-4, examples=40, select=3, epochs=2, streams=pv.Streams.new(1)
    )
    cases: dict[str, tuple[pv.Result, dict[str, Any]]] = {
        "signed": (result(), {"model_spec": "linear", "classes": 3, "test_metrics": metrics}),
        "a choice of features": (
            selected,
            {"test_metrics": {"rmse": 0.25}, "data": {"data": "made up"}},
        ),
        "paid metrics": (
            paid_result,
            {"test_metrics": replace(metrics, plan=noisy, errors={"accuracy": 0.05})},
        ),
        "shuffled": (_trained(pv.Plan(pv.Shuffle(10), 2, pv.schedules.Constant(3.0))), {}),
        "persons": (
            pv.train(persons, epsilon=4.0, delta=1e-4, examples=20, rows_per_person=2, epochs=2),
            {"audit": pv.audit(_plan(), trials=50, confidence=0.99, streams=pv.Streams.new(1))},
        ),
        "statistics": (pv.statistics.fisher(fisher, data, streams=pv.Streams.new(1)), {}),
    }
    return cases


@lru_cache(maxsize=1)
def pages() -> dict[str, str]:
    """What each of them is published as."""
    with workplace() as place:
        key = key_in(place)
        made = {}
        for number, (name, (one, more)) in enumerate(results().items()):
            sign = {"sign": key} if name == "signed" else {}
            made[name] = page_of(
                publish.publish(one, place / str(number), **{"delta": 1e-4, **more, **sign})
            )
        return made


def _plan() -> pv.Plan:
    return pv.Plan(pv.Poisson(0.25), 2, pv.schedules.Constant(2.0), examples=40)


def _trained(plan: pv.Plan, *, ledger: pv.Ledger | None = None, beside: Any = None) -> pv.Result:
    if beside is not None and ledger is not None:
        ledger.approve(plan, beside)
    build = lambda shape: networks.build(  # noqa: E731
        "linear", shape, 3, pv.Streams.new(1).initialisation
    ).double()
    return pv.dpsgd(
        plan, build, cross_entropy, small_data(40), ledger=ledger, streams=pv.Streams.new(1)
    )


@check
def check_pages_are_whole_and_load_nothing() -> None:
    for name, text in pages().items():
        read = Reader(text)
        assert text.startswith(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        ), name
        ids = [named["id"] for _, named in read.elements if "id" in named]
        assert len(set(ids)) == len(ids)
        links = [named["href"] for _, named in read.all("a")]
        assert links
        assert {f"#{own}" for own in ids} >= set(links)
        assert not re.search(r"//|url\(|@import|expression\(", text, re.IGNORECASE), name
        (policy,) = (own["content"] for _, own in read.all("meta") if "http-equiv" in own)
        assert policy is not None
        assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
        assert len(text) < 100_000


@check
def check_pages_can_be_read_without_seeing_them() -> None:
    """Headings in order, tables with headings, pictures with words; one main part, and a name for
    each section.
    """
    for text in pages().values():
        read = Reader(text)
        levels = [int(tag[1]) for tag, _ in read.all("h1", "h2", "h3")]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert len(read.all("main")) == len(read.all("header")) == len(read.all("nav")) == 1
        ids = {named.get("id") for _, named in read.elements}
        for tag, named in read.all("svg", "section"):
            assert set(str(named["aria-labelledby"]).split()) <= ids
            assert tag == "section" or named["role"] == "img"
        assert len(read.all("desc")) == len(read.all("svg")) == len(read.all("figure")) >= 1
        assert all(len(words) > 20 for words in read.said("desc"))
        assert len(read.all("caption")) == len(read.all("table"))
        assert all(named.get("scope") in ("row", "col", "rowgroup") for _, named in read.all("th"))
        assert all(words.strip() for words in (*read.said("h2"), *read.said("h3"), *read.said("a")))


def _contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2: from 1 to 21."""

    def brightness(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dark = sorted((brightness(one), brightness(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@check
def check_colours_can_be_told_apart() -> None:
    """Text by 4.5 to 1, lines by 3 to 1, on every ground that they are on; in light, in the dark
    and on paper.
    """
    style = resources.files("privlearn.publishing").joinpath("card.css").read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    schemes = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block)) for block in blocks]
    assert len(schemes) == 3
    for colours in schemes:
        for ground in ("paper", "panel"):
            assert all(
                _contrast(colours[ink], colours[ground]) >= 4.5 for ink in ("ink", "quiet", "mark")
            )
            assert _contrast(colours["guide"], colours[ground]) >= 3
        for kind in ("good", "warn"):
            assert all(
                _contrast(colours[ink], colours[f"{kind}-panel"]) >= 4.5 for ink in ("ink", kind)
            )


@check
def check_names_of_strangers_are_only_text() -> None:
    """What others called a column, a figure or their data adds no element to the page, and changes
    none.
    """
    with workplace() as place:
        benign = {f"name {number}": f"value {number}" for number in range(len(HOSTILE))}
        hostile = {name: name for name in HOSTILE}
        read = []
        for number, given in enumerate((benign, hostile)):
            figures = dict.fromkeys(given, 0.5)
            out = published(place, str(number), data=given, test_metrics=figures, test_rows=10)
            assert pv.verify(out).ok
            read.append(Reader(page_of(out)))
        assert read[0].elements == read[1].elements
        text = " ".join(words for _, words in read[1].texts).replace("\u00a0", " ")
        for name in HOSTILE:
            assert text.count(printable(name)) >= 2, name
        assert "\u202e" not in text
    chosen = Reader(pages()["a choice of features"])
    assert any(printable(name) in words for name in HOSTILE[:5] for words in chosen.said("td"))
    assert page.text(HOSTILE[1]) == escape(HOSTILE[1])


@check
def check_pages_are_made_of_what_is_published() -> None:
    """Other weights and other private figures, and the same page; the certificate's figures, and
    its warnings.
    """
    with workplace() as place:
        first = page_of(published(place, "first"))
        one = result()
        again = replace(one, private_diagnostics=PrivateDiagnostics({"loss": [0.123456]}))
        torch.manual_seed(0)
        with torch.no_grad():
            other = networks.build("linear", (5,), 3, pv.Streams.new(9).initialisation).double()
        again = replace(again, model=nn.Sequential(*list(one.model.children())[:-1], other))
        out = publish.publish(again, place / "again", model_spec="linear", classes=3)
        assert page_of(out) == first
        found = pv.verify(out)
        assert found.epsilon is not None
        assert f'<meta name="epsilon" content="{found.epsilon!r}">' in first
        assert f"{found.epsilon:.6g} at delta {found.delta:g}, by {found.method}" in first
        assert "It agreed with its certificate." in first
        assert "This run used a fixed seed." in first
        fresh = replace(one, seeded=False)
        assert "fixed seed" not in page_of(
            publish.publish(fresh, place / "fresh", model_spec="linear", classes=3)
        )
        curve = one.ledger.guarantee(found.delta or 0.0)
        assert escape(curve.meaning) in first


@check
def check_a_page_tells_what_protects_the_test_rows() -> None:
    exact, paid = pages()["signed"], pages()["paid metrics"]
    assert "the test data are not protected by the guarantee" in exact
    assert "The test data: their figures are exact." in exact
    assert "Clopper and Pearson" in exact
    assert "The test data: their figures are exact." not in paid
    assert "and the test figures, which were released with noise" in paid
    assert "an estimate, the noise of the figures counted in" in paid
    # the release of the figures
    assert paid.count('<th class="group"') == exact.count('<th class="group"') + 1
    for text in (exact, paid):
        assert "Always the most frequent answer: 37.5&nbsp;%" in text
    assert "Always the most frequent" not in pages()["shuffled"]


@check
def check_intervals_of_accuracies() -> None:
    """As scipy's exact binomial test has them; wider by the noise of released figures; none where
    nothing is known.
    """
    for right, rows in ((0, 10), (8, 10), (10, 10), (374, 397), (1, 3), (9_999, 10_000)):
        found = interval(Metrics({"accuracy": right / rows}, rows))
        true = binomtest(right, rows).proportion_ci(0.95, method="exact")
        assert found is not None
        np.testing.assert_allclose(found, (true.low, true.high), rtol=1e-9, atol=1e-12)
    for figures, rows in (
        ({"accuracy": 0.8}, 0),
        ({"rmse": 0.1}, 10),
        ({"accuracy": 0.123}, 10),
        ({"accuracy": 8.0}, 10),
    ):
        assert interval(Metrics(figures, rows)) is None
    noisy = Metrics(
        {"accuracy": 0.8}, 100, plan=MetricsPlan(2, noise_multiplier=5.0), errors={"accuracy": 0.03}
    )
    low, high = interval(noisy) or (0.0, 0.0)
    # 1.96 times 0.05
    np.testing.assert_allclose((low, high), (0.8 - 0.098, 0.8 + 0.098), atol=1e-4)
    assert of_one_answer(Metrics({}, 10, ((3, 1), (2, 4)))) == 0.6
    # a released matrix has negative numbers, too
    assert of_one_answer(Metrics({}, 10, ((-3, 1), (0, 4)))) == 1.0
    assert of_one_answer(Metrics({}, 10)) is None


@check
def check_models_are_compared_with_one_answer_for_all() -> None:
    """The error of the mean is that of the mean; a model that is no better is warned of."""
    y, guesses = np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 4.0])
    by_hand = math.sqrt(float(((y - y.mean()) ** 2).mean()))
    assert math.isclose(compute_error_of_mean(metrics.of_values(guesses, y)) or 0, by_hand)
    assert compare_with_one_answer(metrics.of_values(guesses, y)) is None
    assert "R2 of 0.0000" in (compare_with_one_answer(metrics.of_values(0 * y + 3.0, y)) or "")
    both = metrics.of_numbers(
        torch.tensor(np.stack([guesses, 0 * y], 1)), torch.tensor(np.stack([y, y], 1))
    )
    assert compute_error_of_mean(both) is None
    assert both["r2_1"] == metrics.of_values(guesses, y)["r2"]
    assert both["r2_2"] == metrics.of_values(0 * y, y)["r2"]
    assert both["r2"] == (both["r2_1"] + both["r2_2"]) / 2
    for counts, accuracy, warned in (
        (((3, 0), (1, 0)), 0.75, True),
        (((3, 0), (0, 1)), 1.0, False),
        (((2, 1), (0, 1)), 0.75, True),
    ):
        warning = compare_with_one_answer(Metrics({"accuracy": accuracy}, 4, counts))
        assert (warning is not None) is warned
        assert warning is None or "not above the 0.7500" in warning
    for unknown in (Metrics({"accuracy": 0.1}, 4), Metrics({}, 4), Metrics({"rmse": 1.0}, 4)):
        assert compare_with_one_answer(unknown) is None
        assert compute_error_of_mean(unknown) is None


@check
def check_shares_of_costs() -> None:
    """They add up to one, keep order and number of releases, and are those of the Renyi
    divergence.
    """
    steps = [PoissonSampled(0.01, Gaussian(1.0 + at / 50)) for at in range(50)]
    event = compose([Gaussian(8.0), *(own for own in steps for _ in range(20)), Gaussian(9.0)])
    found = costs(event, 1e-5)
    assert len(found) <= 12
    assert sum(cost.times for cost in found) == sum(times for _, times in walk(event)) == 1002
    assert [cost.noise for cost in (found[0], found[-1])] == [(8.0, 8.0), (9.0, 9.0)]
    levels = [cost.noise[0] for cost in found[1:-1] if cost.noise]
    assert levels == sorted(levels)
    np.testing.assert_allclose(sum(cost.share or 0 for cost in found), 1)
    curve = rdp.curve(event)
    best = int(np.argmin(curve - np.log(1e-5) / (rdp.ORDERS - 1)))
    np.testing.assert_allclose(found[0].share, rdp.curve(Gaussian(8.0))[best] / curve[best])
    halves = costs(compose([Laplace(1.0), Gaussian(2.0), Laplace(1.0)]), 1e-6)
    assert halves[0].what == halves[2].what != halves[1].what
    assert halves[0].share == halves[2].share
    assert [cost.share for cost in costs(ZCDP(0.5), 1e-5)] == [1.0]
    assert costs(compose([]), 1e-5) == []


@check
def check_who_is_protected_is_said() -> None:
    """By the unit: a row, several rows of a person, a person; and whether the number of them is
    public.
    """
    persons, rows = pages()["persons"], pages()["shuffled"]
    assert "One person" in persons
    assert "Whether any one person took part" in persons
    assert "A person with several rows in the training data is protected less" not in persons
    assert "A person with several rows in the training data is protected less" in rows
    assert "The number of examples in the training data: it is public." in rows
    assert "it is public." not in persons
    assert "Attack on the claim" in persons
    assert "Attack on the claim" not in rows
    assert str(PrivacyUnit()) in Reader(rows).said("td")


@check
def check_a_failed_check_is_said() -> None:
    """If the folder did not verify when it was published, the page says so, and why."""

    def failed(contents: folder.Contents) -> Verification:
        return replace(verify_contents(contents), ok=False, problems=["the events <b>changed</b>"])

    with workplace() as place, mock.patch.object(publish, "verify_contents", failed):
        text = page_of(published(place))
        assert "It did not agree." in text
        assert "It agreed with its certificate." not in text
        assert "the events &lt;b&gt;changed&lt;/b&gt;" in text


SCHEMA = """target = "ill"
missing = ["", "unknown"]
[columns.age]
kind = "number"
low = 0
high = 110.5
missing = 50
indicator = true
[columns.seen]
kind = "date"
low = 2020-01-01
high = 2020-12-31
[columns."<b>ward|"]
kind = "category"
categories = ["north", "so|uth", "<i>"]
[columns.ill]
kind = "target"
classes = ["no", "yes"]
"""


@check
def check_a_card_lists_the_columns_of_its_table() -> None:
    """Of a model that was made from a table both cards name each column, its kind and what was
    declared of it; what others wrote in a schema stays text.
    """
    with workplace() as place:
        rows = [
            f"{20 + number},2020-02-03,north,{'yes' * (number % 2) or 'no'}\n"
            for number in range(40)
        ]
        (place / "people.csv").write_text(f"age,seen,<b>ward|,ill\n{''.join(rows)}")
        (place / "people.toml").write_text(SCHEMA)
        data = pv.load(place / "people.csv", schema=place / "people.toml")
        trained = pv.train(data, epsilon=1.0, delta=1e-4, epochs=1, streams=pv.Streams.new(1))
        out = pv.publish(trained, place / "model")
        assert pv.verify(out).ok
        text, read = (out / "README.md").read_text(), Reader(page_of(out))
    number = (
        "number, from 0 to 110.5; a missing value counts as 50; that a value is missing is a "
        "feature of its own"
    )
    declared = {
        "age": number,
        "seen": "date, from 2020-01-01 to 2020-12-31",
        "<b>ward|": "category; one of north, so|uth, <i>",
        "ill": "to predict; one of no, yes",
    }
    for name, words in declared.items():
        assert name in read.said("th")
        assert words in read.said("td")
        assert f"| {for_markdown(name)} | {for_markdown(words)} |" in text
    assert "A missing value is written as an empty cell, “unknown”." in text
    assert "A missing value is written as an empty cell, “unknown”." in " ".join(read.said("p"))
    assert not any("Columns used" in other for other in pages().values())


@check
def check_cards_say_what_epsilon_comes_to() -> None:
    """Beside e^epsilon stands about what it is, within a twentieth of what it is above 1; and odds
    that follow the kind of neighbour.
    """
    for epsilon in (1e-4, 0.02, 0.099, 0.3, 1.0, 1.5, 3.0, 8.0, 20.0):
        figure = float(times(epsilon).split()[1].replace(",", ""))
        np.testing.assert_allclose(
            figure - 1, np.expm1(epsilon), rtol=0.05 if epsilon < 0.1 else 0.2
        )
        np.testing.assert_allclose(figure, np.exp(epsilon), rtol=0.05)
    assert times(1.0) == "about 2.7 times"
    assert times(50.0) == "about 10^22 times"
    words = {
        kind: card.odds(Guarantee(1.0, 1e-5, kind, "pld"))
        + card.why_neighbours(Guarantee(1.0, 1e-5, kind, "pld"))
        for kind in Adjacency
    }
    for kind, text in words.items():
        assert "a factor e^1, about 2.7 times: odds of 1 to 1 become at most about 2.7 to 1" in text
        assert "with a probability of at most 1e-05" in text
        # two values of a row differ by e^(2 epsilon) unless replacing is what was priced
        values = "between any two values of one example's data" in text
        assert values == (kind is Adjacency.REPLACE_ONE)
        assert ("is protected, too" in text) == (kind is Adjacency.ADD_REMOVE)
    assert len(set(words.values())) == 3
    with workplace() as place:
        out = published(place, "model")
        shown = [(out / name).read_text() for name in ("README.md", "card.html")]
        claim = pv.verify(out)
    for text in shown:
        assert times(claim.epsilon) in text
        assert "do not compare them or add them up" in text


@check
def check_lists_and_tables_are_printed_whole() -> None:
    """On paper no list, table or picture is split between two pages where one can hold it."""
    style = resources.files("privlearn.publishing").joinpath("card.css").read_text("utf-8")
    print_rules = style[style.index("@media print") :]
    (whole,) = re.findall(r"([^{}]*)\{ break-inside: avoid; \}", print_rules)
    kept = {name.strip() for name in whole.split(",")}
    assert {"table", "ul", "figure", "pre", ".pair", ".figures", ".questions > div"} <= kept
    assert "thead { display: table-header-group;" in print_rules
