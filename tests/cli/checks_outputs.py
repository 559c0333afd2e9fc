"""Named checks of outputs: what strangers called something stays in its place, on each of them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import privlearn as pv
from privlearn._texts import for_code, for_markdown, for_yaml
from privlearn.cli import main, screen
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.ledgers.ledger_state import RunEntry
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.publishing import certificate
from tests.laws.hostile_texts import TEXTS, require_tame
from tests.publishing.checks import published, workplace
from tests.publishing.checks_page import Reader, page_of
from tests.support.checks import check


def printed(*arguments: str) -> str:
    """What a command prints, on a terminal with colours."""
    out = io.StringIO()
    console = screen.Screen(
        file=out, force_terminal=True, highlight=False, soft_wrap=True, width=20_000
    )
    before, screen.answers = screen.answers, console
    try:
        with contextlib.redirect_stdout(out):
            main(list(arguments))
    finally:
        screen.answers = before
    return out.getvalue()


def without_styles(shown: str) -> str:
    """Without the styles that the console writes itself."""
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


def ledger(path: Path, name: str) -> str:
    """The table of a ledger with an entry of that name, by someone of that name."""
    book = LedgerFile(path)
    pv.Ledger.open(path, pv.Budget(4.0, 1e-5), create=True)
    with book.editing() as pages:
        pages.adjacency = Adjacency.ADD_REMOVE
        pages.add(replace(RunEntry.new(name, approved=compose([Gaussian(9.0)])), by=name))
    return printed("ledger", str(path))


@check
def check_names_in_a_ledger_stay_in_their_cells() -> None:
    """No line of their own, no style, no sequence of a terminal: the table looks as with any other
    name.
    """
    with TemporaryDirectory() as place:
        benign = ledger(Path(place) / "benign.json", "name")
        styles = re.findall(r"\x1b\[[0-9;]*m", benign)
        for number, text in enumerate(TEXTS.values()):
            shown = ledger(
                Path(place) / f"{number}.json", text.encode(errors="replace").decode()[:900]
            )
            assert re.findall(r"\x1b\[[0-9;]*m", shown) == styles, text
            assert len(shown.splitlines()) == len(benign.splitlines()), text
            require_tame(without_styles(shown))
            if "[bold red]" in text:
                assert "[/][bold red]x[/] :smile:" in shown


@check
def check_whatever_is_printed_is_one_line() -> None:
    """Printed texts, cells, titles of columns, warnings and labels of progress."""
    out = io.StringIO()
    console = screen.Screen(
        file=out, force_terminal=True, highlight=False, soft_wrap=True, width=20_000
    )
    outputs: list[Callable[[str], None]] = [
        lambda text: console.print(f"a {screen.BOLD}{text}{screen.END} b"),
        lambda text: console.print(f"a {text} b"),
        lambda text: console.print(_table(text)),
    ]
    for write in outputs:
        out.truncate(0), out.seek(0)
        write("name")
        lines = out.getvalue().count("\n")
        for text in TEXTS.values():
            out.truncate(0), out.seek(0)
            write(text)
            assert out.getvalue().count("\n") == lines, text
            require_tame(without_styles(out.getvalue()))
    assert screen.BOLD not in out.getvalue()


def _table(text: str) -> screen.Table:
    table = screen.Table()
    table.add_column(text)
    table.add_row(text)
    return table


@check
def check_names_on_cards_are_only_text() -> None:
    """In Markdown no element, link, code or cell; in HTML no element; and the folder verifies."""
    with workplace() as place:
        tame = {f"name {number}": f"value {number}" for number in range(len(TEXTS))}
        given = (tame, {name.encode(errors="replace").decode(): name for name in TEXTS.values()})
        cards, pages = [], []
        for number, data in enumerate(given):
            out = published(
                place, str(number), data=data, test_metrics=dict.fromkeys(data, 0.5), test_rows=10
            )
            assert pv.verify(out).ok
            cards.append((out / "README.md").read_bytes().decode(errors="surrogatepass"))
            pages.append(Reader(page_of(out)).elements)
        assert pages[0] == pages[1]
        assert len(cards[0].splitlines()) == len(cards[1].splitlines())
        require_tame(cards[1])
        for row in (line for line in cards[1].splitlines() if line.startswith("| ")):
            assert not re.search(r"[<>]|\]\(|\]\[", row), row
            assert not re.search(r"(?<!\\)(\\\\)*`", row), row
            assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3, row


@check
def check_texts_are_escaped_for_markdown_code_and_yaml() -> None:
    for text in TEXTS.values():
        for escaped in (for_markdown(text), for_code(text), for_yaml(text)):
            require_tame(escaped)
            assert "\n" not in escaped
        assert "`" not in for_code(text)
        assert not re.search(r"[<>]|\]\(", for_markdown(text))
        head = certificate.header(1.0, 1e-5, text, text, text)
        assert len(head.splitlines()) == 10, head
        quoted = for_yaml(text)
        assert quoted == text or json.loads(quoted)
    assert for_yaml("SHA256:abc+/1") == "SHA256:abc+/1"
    assert for_yaml("one person (up to 3 rows)") == "one person (up to 3 rows)"
    assert for_yaml(1e-05) == "1e-05"
    assert for_yaml("a: b").startswith('"')
