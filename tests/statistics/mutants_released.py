"""Planted bugs in published rows, each of which a named check must catch."""

from __future__ import annotations

import pytest

from privlearn.methods.statistics import features
from privlearn.methods.statistics import plan as statistics_plan
from privlearn.publishing import folder, publish, rows_file, verify
from tests.support.mutant import Mutant, suite_of

SAME = "check_published_rows_are_the_released_ones"
CHANGED = "check_changed_rows_are_noticed"
FACTS = "check_facts_of_rows_are_those_of_the_file"
PRICES = "check_every_price_of_rows_is_recomputed"
AS_RELEASED = "check_only_rows_as_released_are_published"
NOISE = "check_the_noise_in_means_is_that_of_the_release"
WARNED = "check_warned_rows_teach_nothing_and_others_do"

MUTANTS = [
    Mutant(
        "rows are written with few digits",
        features.ReleasedRows.to_csv,
        "self.x[part].float().numpy().astype(str)",
        "self.x[part].float().numpy().round(4).astype(str)",
        SAME,
    ),
    Mutant(
        "columns are named by their order",
        features.ReleasedRows._facts,
        "origin.names[place] if",
        "origin.names[places.index(place)] if",
        SAME,
    ),
    Mutant(
        "bounds of the first columns",
        features.ReleasedRows._bounds,
        "[self.indices]",
        "[: len(self.indices)]",
        SAME,
    ),
    Mutant(
        "the noise of a replaced row is that of an empty one",
        statistics_plan.RowsPlan.noise_of_rows,
        "self.neighbours.sum_sensitivity(self.rest_norm)",
        "self.rest_norm",
        SAME,
    ),
    Mutant(
        "labels are said to be true more often",
        statistics_plan.RowsPlan.label_truth,
        "(self.classes - 1) *",
        "",
        SAME,
    ),
    Mutant(
        "public labels are not spoken of",
        statistics_plan.RowsPlan._noise_text,
        "if self.label_epsilon is None",
        "if False",
        SAME,
    ),
    Mutant(
        "rows are read that were changed since they were checked",
        folder.content,
        "!= contents.digests.get(name)",
        "is None",
        CHANGED,
    ),
    Mutant(
        "rows are not compared with what is stated",
        verify.verify_contents,
        'problems += _other_rows(contents, certificate["facts"])',
        "pass",
        FACTS,
    ),
    Mutant(
        "columns are not compared",
        rows_file.contradictions,
        "if [*file.columns, file.label] !=",
        "if False and [] !=",
        FACTS,
    ),
    Mutant(
        "the number of rows is not compared",
        rows_file.contradictions,
        "if file.rows !=",
        "if False and None !=",
        FACTS,
    ),
    Mutant(
        "labels are not compared",
        rows_file.contradictions,
        "if not file.labels <=",
        "if False and not file.labels <=",
        FACTS,
    ),
    Mutant(
        "features of the plan are not counted",
        statistics_plan.RowsPlan.follows,
        'len(released["columns"]) != self.keep or',
        "",
        FACTS,
    ),
    Mutant(
        "stated rows may be missing",
        verify._other_rows,
        'and "released_rows" not in claims',
        "",
        FACTS,
    ),
    Mutant(
        "labels are free",
        statistics_plan.RowsPlan.event,
        "self.label_epsilon is not None",
        "False",
        PRICES,
    ),
    Mutant(
        "rows are free",
        statistics_plan.RowsPlan.event,
        "parts.append(Gaussian(self.rest_noise))",
        "pass",
        PRICES,
    ),
    Mutant(
        "the selection is free",
        statistics_plan.RowsPlan.event,
        "[self.selection.event()] if self.selects else []",
        "[]",
        PRICES,
    ),
    Mutant(
        "rows may be released where their number is secret",
        statistics_plan.RowsPlan.__post_init__,
        "self.neighbours is Adjacency.ADD_REMOVE",
        "False",
        "check_rows_of_a_secret_number_are_refused",
    ),
    Mutant(
        "changed rows are published",
        features.ReleasedRows.require_unchanged,
        "self._versions != self._versions_now()",
        "False",
        AS_RELEASED,
    ),
    Mutant(
        "rows are not written",
        publish.publish,
        "{RELEASED: result.released()}",
        "{}",
        SAME,
    ),
    Mutant(
        "labels that mix do not count",
        statistics_plan.RowsPlan.noise_of_means,
        "/ max(shrunk, 1e-12)",
        "",
        NOISE,
    ),
    Mutant(
        "noise in means falls with the number of classes",
        statistics_plan.RowsPlan.noise_of_means,
        "self.classes * self.keep / rows",
        "self.keep / self.classes / rows",
        NOISE,
    ),
    Mutant(
        "no warning of drowned rows",
        features.release_features,
        "plan.noise_warnings(len(rows.x))",
        "()",
        WARNED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, KeyError, RuntimeError, TypeError, pytest.fail.Exception]
)
