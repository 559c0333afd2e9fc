"""Published rows: every named check; and files of rows that are none."""

from __future__ import annotations

from io import BytesIO

import pytest

from privlearn.cli import main
from privlearn.publishing import rows_file
from tests.statistics import checks_released
from tests.support.checks import CHECKS


@pytest.mark.parametrize("name", [name for name in vars(checks_released) if name[:6] == "check_"])
def test_rows_are_published_with_a_certificate(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "first line"),
        (b"label\n1\n", "first line"),
        (b"a,label\n1,0\n\n", "row 2 has 0 numbers and not 1"),
        (b"a,label\n1,2,0\n", "row 1 has 2 numbers"),
        (b"a,label\nnan,0\n", "finite"),
        (b"a,label\ninf,0\n", "finite"),
        (b"a,label\n=cmd(),0\n", "finite"),
        (b'a,label\n"1,0\n', "CSV"),
        (b"a,label\n\xff,0\n", "UTF-8"),
        (b"a,label\n" + b"1" * 200_000 + b",0\n", "CSV"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_in_words(content: bytes, words: str) -> None:
    looks, wrong = rows_file.look_at(BytesIO(content))
    assert looks is None
    assert words in wrong


def test_verify_says_that_rows_are_certified_too(capsys: pytest.CaptureFixture[str]) -> None:
    with checks_released.published(checks_released.some_rows()) as folder:
        assert main(["verify", str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the weights and the released rows are the certified ones" in said


def test_a_file_stays_open() -> None:
    file = BytesIO(b"a,b,label\n1,2e-3,yes\n-3,4,no\n")
    table, _ = rows_file.look_at(file)
    assert table is not None
    assert (table.columns, table.label, table.rows) == (("a", "b"), "label", 2)
    assert table.labels == {"yes", "no"}
    assert file.seek(0) == 0
