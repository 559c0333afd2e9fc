"""Planted bugs in what plans, results and guarantees look like: each must make a named check
fail.
"""

from __future__ import annotations

from privlearn import _display
from privlearn.core.accounting import ledger
from privlearn.publishing import verify
from privlearn.runs import checkpoint, result
from privlearn.training import base_run, task
from tests.support.mutant import Mutant, suite_of

PRIVATE = "check_a_repr_of_a_result_keeps_private_figures_to_itself"
SHORT = "check_reprs_are_short_and_price_nothing"
ESCAPED = "check_texts_of_strangers_are_escaped"
SAYS = "check_reprs_say_what_a_thing_is_and_costs"

MUTANTS = [
    Mutant(
        "a result prints its private figures",
        result.Result._summary,
        '("next", ',
        '("loss", str(self.private_diagnostics["loss"])), ("next", ',
        PRIVATE,
    ),
    Mutant(
        "private figures are printed",
        result.PrivateDiagnostics._summary,
        "map(repr, self._figures)",
        "map(repr, self._figures.items())",
        PRIVATE,
    ),
    Mutant(
        "a table holds what strangers wrote",
        _display.Described._repr_html_,
        "{for_html(text)}",
        "{text}",
        ESCAPED,
    ),
    Mutant(
        "strangers write lines of their own",
        _display.shortened,
        'for_terminal(" ".join(str(text).split()))',
        "str(text)",
        ESCAPED,
    ),
    Mutant(
        "a repr computes epsilon",
        ledger.Ledger._summary,
        '("guarantee",',
        '("guarantee", str(self.guarantee(1e-5)) +',
        SHORT,
    ),
    Mutant(
        "a repr is as long as what it holds",
        _display.Described._fit_to_screen,
        "min(room, _LONGEST_TEXT)",
        "10_000",
        SHORT,
    ),
    Mutant(
        "a folder with problems states a guarantee",
        verify.Verification._summary,
        '"guarantee" if self.ok else "its events give"',
        '"guarantee"',
        "check_reprs_of_published_models_say_what_is_certified",
    ),
    Mutant(
        "a run says that it is over",
        base_run.BaseRun._summary,
        "{self.steps_done}",
        "{self.steps_done + 1}",
        SAYS,
    ),
    Mutant(
        "a batch prints its rows",
        task.Batch.__repr__,
        "Batch(epoch",
        "Batch({self.rows.fetch(__import__('torch').arange(12))[0].sum()}, epoch",
        "check_reprs_are_the_same_on_neighbouring_data",
    ),
    Mutant(
        "plans are compared by what their repr says",
        checkpoint.whole_text,
        "if not is_dataclass(value) or isinstance(value, type):",
        "if True:",
        "check_a_checkpoint_of_another_run_is_refused",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
