"""Planted bugs in how `pv.train` calls methods, each of which a named check must catch."""

from __future__ import annotations

from privlearn import _entry_points
from privlearn.methods import dispatch, installed
from privlearn.methods.dpmac import layer_training, layers
from privlearn.methods.pate import votes
from tests.support.mutant import Mutant, suite_of

SAME = "check_train_by_any_method_is_what_the_command_line_does"
REFUSED = "check_methods_refuse_what_they_do_not_take"
COMPUTED = "check_methods_refuse_settings_of_computing_that_they_do_not_have"
PUBLIC = "check_public_inputs_are_not_private_rows"
BESIDE = "check_what_is_released_beside_any_method_is_within_the_target"
BROKEN = "check_broken_packages_break_no_other_method"
TARGETS = "check_targets_that_a_method_does_not_learn_are_refused"

MUTANTS = [
    Mutant(
        "options that a method does not take are passed over",
        dispatch.train,
        "_require_taken(row, [*watched, *choices])",
        "None",
        REFUSED,
    ),
    Mutant(
        "a setting of computing that a method does not have is passed over",
        dispatch.options_for,
        "ComputeConfig.of(computed).of_method(row.name)",
        "ComputeConfig.of(computed)",
        COMPUTED,
    ),
    Mutant(
        "private rows are taken for public ones",
        dispatch.train,
        "_require_public(options, dataset)",
        "None",
        PUBLIC,
    ),
    Mutant(
        "inputs that were not declared public are taken",
        dispatch._require_public,
        "not isinstance(public, Dataset) or not public.public",
        "not isinstance(public, Dataset)",
        PUBLIC,
    ),
    Mutant(
        "what is released beside a method has no room",
        dispatch.train,
        "plan = plan.with_room_for(beside)",
        "None",
        BESIDE,
    ),
    Mutant(
        "numbers are taken for classes",
        dispatch.train,
        "_require_targets(row, dataset, options.task)",
        "None",
        TARGETS,
    ),
    Mutant(
        "a task that a method does not learn is passed over",
        dispatch._require_targets,
        "head.named",
        "False",
        TARGETS,
    ),
    Mutant(
        "the declared number of examples is not that of the facts",
        dispatch.train,
        "facts_of(data, options.examples, front)",
        "facts_of(data, 2 * (options.examples or 1), front)",
        SAME,
    ),
    Mutant(
        "teachers are fewer than asked for",
        votes.settle_votes,
        "TEACHERS if options.teachers is None else options.teachers",
        "2 if options.public is not None and options.teachers == 12 else TEACHERS",
        "check_votes_have_as_many_teachers_as_asked_for",
    ),
    Mutant(
        "derivatives are clipped to another threshold than the one that is given",
        layers.decide_layers,
        "_THRESHOLD if options.clip_norm is None else options.clip_norm",
        "_THRESHOLD",
        "check_options_of_layers_reach_the_plan",
    ),
    Mutant(
        "the ledger is not the one that was given",
        layer_training.train_layers,
        "ledger=ledger",
        "ledger=None",
        "check_any_method_charges_the_ledger_that_is_given",
    ),
    Mutant(
        "an installed package takes the place of a method of privlearn",
        installed.installed_methods,
        "name not in METHODS",
        "True",
        "check_methods_of_installed_packages_are_found_by_their_names",
    ),
    Mutant(
        "an entry point may have any name",
        installed._enter,
        "not isinstance(row, Method) or row.name != name",
        "not isinstance(row, Method)",
        BROKEN,
    ),
    Mutant(
        "of two packages with one name the first is taken",
        _entry_points.load,
        "len({point.value for point in points}) > 1",
        "False",
        BROKEN,
    ),
    Mutant(
        "a broken package is left out in silence",
        _entry_points.load_all,
        'warn(f"{error}. It is left out")',
        "continue",
        BROKEN,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
