"""The list of long tests (tests/nightly.txt) names tests that there are."""

from __future__ import annotations

from tests.conftest import LONG, ROOT


def test_long_tests_exist_and_named_checks_are_not_among_them() -> None:
    for line in sorted(LONG):
        file, _, name = line.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert name.partition("[")[0] in text, (
            f"{line}: there is no such test: take it off the list"
        )
        assert not file.endswith("test_checks.py"), f"{line}: named checks run each time"
