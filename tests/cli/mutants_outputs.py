"""Planted bugs in outputs: an escape is left off, on one of them."""

from __future__ import annotations

from privlearn import _texts
from privlearn.cli import screen
from privlearn.publishing import card, page
from tests.support.mutant import Mutant, suite_of

LEDGER, LINES = (
    "check_names_in_a_ledger_stay_in_their_cells",
    "check_whatever_is_printed_is_one_line",
)
CARDS, ESCAPED = (
    "check_names_on_cards_are_only_text",
    "check_texts_are_escaped_for_markdown_code_and_yaml",
)

MUTANTS = [
    Mutant(
        "cells of tables are not escaped", screen.Table.add_row, "map(line, cells)", "cells", LEDGER
    ),
    Mutant(
        "titles of columns are not escaped",
        screen.Table.add_column,
        "line(header)",
        "header",
        LINES,
    ),
    Mutant(
        "printed lines are not escaped", screen.Screen.print, "map(_as_line, parts)", "parts", LINES
    ),
    Mutant("a terminal is not spared", screen.line, "for_terminal(part)", "part", LINES),
    Mutant("cards hold cells of strangers", card._row, "for_markdown(text)", "text", CARDS),
    Mutant("cards hold labels of strangers", card._row, "for_markdown(label)", "label", CARDS),
    Mutant(
        "pages hold elements of strangers", page.text, "for_html(content)", "str(content)", CARDS
    ),
    Mutant(
        "Markdown keeps control characters",
        _texts.for_markdown,
        "printable(text)",
        "str(text)",
        ESCAPED,
    ),
    Mutant("code ends at backticks", _texts.for_code, '.replace("`", "\\\\x60")', "", ESCAPED),
    Mutant(
        "code keeps control characters", _texts.for_code, "printable(text)", "str(text)", ESCAPED
    ),
    Mutant("YAML is not quoted", _texts.for_yaml, "if plain else", "if True else", ESCAPED),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[UnicodeError, ValueError]
)
