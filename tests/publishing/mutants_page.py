"""Planted bugs in `card.html`, each of which a named check must catch."""

from __future__ import annotations

from privlearn import _texts, metrics
from privlearn.core.accounting import guarantee
from privlearn.publishing import (
    accuracy,
    card,
    charts,
    columns,
    costs,
    folder,
    page,
    publish,
    questions,
    verify,
)
from tests.publishing.checks_page import pages
from tests.support.mutant import Mutant, suite_of

STRANGERS = "check_names_of_strangers_are_only_text"
BEFORE = "check_folders_from_before_the_page_verify"
TEST_ROWS = "check_a_page_tells_what_protects_the_test_rows"
INTERVALS = "check_intervals_of_accuracies"
SHARES = "check_shares_of_costs"
COLUMNS = "check_a_card_lists_the_columns_of_its_table"
ODDS = "check_cards_say_what_epsilon_comes_to"
ONE_ANSWER = "check_models_are_compared_with_one_answer_for_all"

MUTANTS = [
    Mutant("names are not escaped", page.text, "for_html(content)", "str(content)", STRANGERS),
    Mutant("control characters stay", _texts.for_html, "printable(text)", "str(text)", STRANGERS),
    Mutant(
        "a page that nothing certifies",
        publish._complete,
        "certify(files | {PAGE: page.write(said, checked).encode()})",
        "certify(files) | {PAGE: page.write(said, checked).encode()}",
        "check_the_page_says_what_is_certified",
    ),
    Mutant(
        "a page that was taken away",
        verify._find_changed_files,
        "{*expected, *gone}:",
        "{*expected, *gone}:\n            return []\n        if gone:",
        BEFORE,
    ),
    Mutant(
        "a page that was put in passes",
        folder.read,
        "for name in OPTIONAL if",
        "for name in OPTIONAL - {PAGE} if",
        BEFORE,
    ),
    Mutant(
        "pages load what they like",
        page.write,
        "{text(POLICY)}",
        "default-src *",
        "check_pages_are_whole_and_load_nothing",
    ),
    Mutant(
        "pictures without words",
        charts._picture,
        '<desc id="{name}-text">{for_html(description)}</desc>',
        "",
        "check_pages_can_be_read_without_seeing_them",
    ),
    Mutant(
        "seeds are kept quiet",
        page._describe_seed,
        "if not said.seeded:",
        "if True:",
        "check_pages_are_made_of_what_is_published",
    ),
    Mutant(
        "a page passes unchecked",
        page._check,
        "if checked.ok else",
        "if True else",
        "check_a_failed_check_is_said",
    ),
    Mutant(
        "exact figures count as protected",
        questions.is_open,
        "said.paid is None:",
        "False:",
        TEST_ROWS,
    ),
    Mutant(
        "paid figures cost nothing",
        page._of_run,
        "[] if said.paid is None else [Gaussian(said.paid)]",
        "()",
        TEST_ROWS,
    ),
    Mutant(
        "the noise in figures is forgotten",
        accuracy.interval,
        ' + metrics.errors.get("accuracy", 0.0) ** 2',
        "",
        INTERVALS,
    ),
    Mutant(
        "a model of the mean has the model's own error",
        accuracy.compute_error_of_mean,
        "rmse / math.sqrt(1 - r2)",
        "rmse",
        ONE_ANSWER,
    ),
    Mutant(
        "a model that is no better is not warned of",
        accuracy.compare_with_one_answer,
        "accuracy <= constant",
        "accuracy < constant",
        ONE_ANSWER,
    ),
    Mutant(
        "figures of one target are those of another",
        metrics.of_numbers,
        'f"{name}_{target}": value',
        'f"{name}_{target}": each[0][name]',
        ONE_ANSWER,
    ),
    Mutant(
        "intervals too narrow",
        accuracy.interval,
        "tail = (1 - _CONFIDENCE) / 2",
        "tail = 1 - _CONFIDENCE",
        INTERVALS,
    ),
    Mutant(
        "a release is left out",
        costs._group,
        "range(0, len(same), size)",
        "range(0, len(same) - size, size)",
        SHARES,
    ),
    Mutant(
        "costs by their number",
        costs.costs,
        "float(curve[best] / total[best])",
        "1 / len(curves)",
        SHARES,
    ),
    Mutant(
        "cards know nothing of the table", publish.publish, 'config.get("table")', "None", COLUMNS
    ),
    Mutant(
        "bounds the wrong way round",
        columns._describe,
        'in ("low", "high")',
        'in ("high", "low")',
        COLUMNS,
    ),
    Mutant(
        "what stands for a missing value is left out",
        columns._describe,
        'if "missing" in column:',
        "if False:",
        COLUMNS,
    ),
    Mutant(
        "names of columns are markup on the card",
        card._describe_columns,
        "_row(name, text)",
        'f"| {name} | {text} |"',
        COLUMNS,
    ),
    Mutant("a power of two", guarantee.times, "math.expm1(epsilon)", "2**epsilon - 1", ODDS),
    Mutant(
        "values of a row as odds where rows come and go",
        card.odds,
        "guarantee.adjacency is Adjacency.REPLACE_ONE",
        "guarantee.adjacency is not Adjacency.ADD_REMOVE",
        ODDS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, caches=[pages], errors=[UnicodeEncodeError]
)
