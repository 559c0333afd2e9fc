"""Planted bugs in closed shapes: something that no field and no file is for would pass."""

from __future__ import annotations

from privlearn import _shapes
from privlearn.publishing import folder, publish, stated_shapes, verify, weights_file
from tests.support.mutant import Mutant, suite_of

FILES, FACTS = "check_files_that_nobody_certified_are_problems", "check_facts_have_a_closed_shape"
CONFIGURATIONS, WEIGHTS = (
    "check_configurations_have_a_closed_shape",
    "check_files_of_weights_hold_tensors_alone",
)
PLANS = "check_every_plan_declares_the_facts_of_its_runs"

MUTANTS = [
    Mutant(
        "an extra file is accepted",
        verify.verify_contents,
        "problems += strangers +",
        "problems +=",
        FILES,
    ),
    Mutant(
        "hidden files are passed over in silence", verify.verify_contents, "+ hidden", "", FILES
    ),
    Mutant(
        "an unknown fact is accepted",
        stated_shapes.unfit_facts,
        "elif name not in ROWS:",
        "elif False:",
        FACTS,
    ),
    Mutant(
        "facts are of any kind",
        stated_shapes.unfit_facts,
        "problems += unfit(value, shapes[name], name)",
        "pass",
        FACTS,
    ),
    Mutant(
        "post-processing of any value",
        stated_shapes.unfit_facts,
        "elif not _is_checked(name, value):",
        "elif False:",
        FACTS,
    ),
    Mutant(
        "facts are not looked at",
        verify._of_the_plan,
        "problems += unfit_facts(plan, facts)",
        "pass",
        FACTS,
    ),
    Mutant(
        "any facts are published",
        publish._require_own_facts,
        "unfit_facts(result.plan, json.loads(json.dumps(facts))) or",
        "",
        FACTS,
    ),
    Mutant("unknown fields pass", _shapes._unfit_fields, "set(value) - set(known)", "set()", PLANS),
    Mutant(
        "numbers are of any size",
        _shapes.unfit,
        "for limit in limits if not _keeps(value, limit)",
        "for limit in ()",
        FACTS,
    ),
    Mutant(
        "names of a writer's own are without end",
        _shapes.is_short,
        "if seen + len(inner) > most:",
        "if False:",
        FACTS,
    ),
    Mutant("texts are without end", _shapes._is_plain, "and len(value) <= LONGEST_TEXT", "", FACTS),
    Mutant("numbers need not be finite", _shapes._is_plain, "and math.isfinite(value)", "", PLANS),
    Mutant(
        "configurations are not looked at",
        verify.verify_contents,
        "unfit_files(contents)",
        "[]",
        CONFIGURATIONS,
    ),
    Mutant(
        "another library's fields are without end",
        stated_shapes.unfit_files,
        "if theirs and not is_short",
        "if False and not is_short",
        CONFIGURATIONS,
    ),
    Mutant(
        "a table may be anything",
        stated_shapes._is_schema,
        "return False",
        "return True",
        CONFIGURATIONS,
    ),
    Mutant(
        "weights are not looked at",
        folder.read,
        "] if wrong else []",
        "] if False else []",
        WEIGHTS,
    ),
    Mutant(
        "metadata may be anything", weights_file.problem_of, "not in _METADATA", "== 0", WEIGHTS
    ),
    Mutant(
        "tensors have other fields", weights_file._layout, "or set(entry) != _FIELDS", "", WEIGHTS
    ),
    Mutant("tensors leave gaps", weights_file._layout, "if begin != end:", "if False:", WEIGHTS),
    Mutant(
        "something follows the tensors",
        weights_file._layout,
        '"" if end == size else',
        '"" if True else',
        WEIGHTS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[KeyError, TypeError]
)
