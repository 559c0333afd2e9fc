"""Planted bugs of the comparison itself, each of which a named check must catch."""

from __future__ import annotations

from privlearn.neighbours import (
    comparison,
    coupled_draws,
    library_releases,
    neighbouring_rows,
    plugin,
    recording,
)
from tests.support.mutant import Mutant, suite_of

SOUND = "check_sound_loops_are_passed"
DRAWS = "check_draws_of_a_row_do_not_depend_on_others"
ROWS = "check_rows_of_each_kind_are_tried"
CAUGHT = "check_clipped_means_and_batch_statistics_are_caught"
PARTS = "check_parts_of_a_release_share_one_sensitivity"
WITHOUT = "check_values_without_noise_are_caught"
STATE = "check_a_difference_is_reported_where_it_comes_in"
OUTPUTS = "check_outputs_are_compared"
NOISE = "check_noise_is_measured"
TWICE = "check_noise_that_is_drawn_twice_is_caught"
UNCLAIMED = "check_noise_without_a_claim_is_reported"
NOTHING = "check_runs_that_show_nothing_fail"
RELEASES = "check_releases_that_depend_on_rows_are_caught"
NAN = "check_rows_of_nan_are_infinite_changes"
CLAIM = "check_neighbours_of_the_claim_are_those_of_the_data"
OPTION = "check_the_option_compares_marked_tests"
WITHOUT_OPTION = "check_without_the_option_marked_tests_run_once"

LARGE = "check_large_rows_have_to_move_a_release"

MUTANTS = [
    Mutant(
        "releases are not replayed",
        recording.RunRecording.add,
        "after.copy_(pieces[0].after)",
        "pass",
        SOUND,
    ),
    Mutant(
        "later draws depend on how many came before",
        coupled_draws.CoupledDraws._draw,
        'generator.manual_seed(_digest(f"behind {seed}".encode()))',
        "pass",
        SOUND,
    ),
    Mutant(
        "normal numbers depend on how many are drawn",
        coupled_draws._normal_numbers,
        "np.random.default_rng(seed)",
        "np.random.default_rng(seed + like.numel())",
        DRAWS,
    ),
    Mutant(
        "privlearn draws as many numbers as there are rows",
        library_releases._row_numbers,
        "0 < size < rows",
        "False",
        DRAWS,
    ),
    Mutant(
        "keys stay the operating system's",
        library_releases._known_bytes,
        "hashlib.shake_256(key)",
        "hashlib.shake_256(key + str(id(key)).encode() + __import__('os').urandom(8))",
        DRAWS,
    ),
    Mutant(
        "a replaced row is added",
        neighbouring_rows.make_neighbours,
        "first = _join(base, ordinary)",
        "first = base",
        ROWS,
    ),
    Mutant(
        "twice the sensitivity is let through",
        comparison.Change.is_too_large,
        "self.ratio <= 1 + self.rounding",
        "self.ratio <= 2 + self.rounding",
        PARTS,
    ),
    Mutant(
        "no row is larger than others",
        neighbouring_rows.make_neighbours,
        "_LARGE * x",
        "x",
        CAUGHT,
    ),
    Mutant(
        "of Opacus no release is recorded",
        library_releases._opacus_noise,
        'recording.begin("Opacus")',
        "return",
        CAUGHT,
    ),
    Mutant(
        "each tensor has the whole sensitivity",
        recording.Release.compare,
        "ratios[one.part] = math.hypot(ratios.get(one.part, 0.0), ratio)",
        "ratios[one.part] = max(ratios.get(one.part, 0.0), ratio)",
        PARTS,
    ),
    Mutant(
        "gradients of optimizers are not compared",
        library_releases._optimizer_hook,
        "recording.note_state(name, parameter.grad)",
        "pass",
        WITHOUT,
    ),
    Mutant(
        "learning rates are not compared",
        library_releases._optimizer_hook,
        'recording.note(name, group.get("lr"))',
        "pass",
        WITHOUT,
    ),
    Mutant(
        "a difference is carried on",
        recording.RunRecording.note_state,
        "state.copy_(recorded)",
        "pass",
        STATE,
    ),
    Mutant(
        "numbers that are returned are not compared",
        recording.plain_values,
        "value is None or isinstance(value, bool | int | float | str | bytes)",
        "value is None",
        OUTPUTS,
    ),
    Mutant(
        "half of the noise is let through",
        comparison._false_noise,
        "abs(measured - 1) > room",
        "abs(measured - 1) > room + 1",
        NOISE,
    ),
    Mutant(
        "the multiplier is not compared",
        comparison._false_multiplier,
        "claimed is not None and not",
        "claimed == 0 and not",
        NOISE,
    ),
    Mutant("no two noises are the same", comparison._is_same, "< 1e-3", "< 0", TWICE),
    Mutant(
        "noise without a claim is passed over",
        comparison._vacuous,
        "if not release.is_claimed",
        "if False",
        UNCLAIMED,
    ),
    Mutant(
        "what did not move is passed",
        comparison._vacuous,
        "if changes and not moved:",
        "if not changes and not moved:",
        NOTHING,
    ),
    Mutant(
        "large rows need not move anything",
        comparison._vacuous,
        "elif changes and not moved & set(LARGE_ROWS)",
        "elif False",
        LARGE,
    ),
    Mutant(
        "runs end before a large row took part",
        comparison.compare_runs,
        "if change.neighbour in LARGE_ROWS",
        "",
        LARGE,
    ),
    Mutant(
        "noise of a constant seed is passed",
        comparison._find_constant_noise,
        "if _is_same(*noise)",
        "if False",
        "check_noise_of_a_constant_seed_is_noticed",
    ),
    Mutant(
        "a run that departs is passed",
        comparison._other_differences,
        "second.diverged is not None",
        "False",
        RELEASES,
    ),
    Mutant(
        "NaN moves nothing",
        recording.Release.compare,
        "change = math.inf if math.isnan(change) else change",
        "change = 0.0 if math.isnan(change) else change",
        NAN,
    ),
    Mutant(
        "neighbours of the claim are not compared",
        comparison._vacuous,
        "- {adjacency}",
        "- {adjacency, *firsts[0].adjacencies}",
        CLAIM,
    ),
    Mutant(
        "a false claim passes the test",
        plugin.pytest_pyfunc_call,
        "if not comparison.ok:",
        "if not comparison.releases:",
        OPTION,
    ),
    Mutant(
        "rows stay those of the mark",
        plugin.pytest_pyfunc_call,
        '{"dp_rows": rows, "dp_recorder": recorder}',
        '{"dp_recorder": recorder}',
        OPTION,
    ),
    Mutant(
        "the option is always on",
        plugin.pytest_pyfunc_call,
        "if not pyfuncitem.config.getoption(OPTION):",
        "if False:",
        WITHOUT_OPTION,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError, ValueError]
)
