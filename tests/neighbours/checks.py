"""Named checks of runs on neighbouring data; mutations must make them fail."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privlearn.neighbours import ReleaseRecorder, compare_runs
from tests.neighbours.loops import (
    CLIP,
    compare_loop,
    data,
    opacus_loop,
    plain_loop,
    private_run,
    require_problem,
)
from tests.support.checks import check


def require_sound(loop: Any, **options: Any) -> None:
    comparison = compare_loop(loop, **options)
    assert comparison.ok, comparison.report()
    assert 0.9 < comparison.largest_ratio < 1.001, comparison.report()


@check
def check_sound_loops_are_passed() -> None:
    require_sound(plain_loop)
    require_sound(opacus_loop)
    require_sound(private_run, runs=1)


@check
def check_draws_of_a_row_do_not_depend_on_others() -> None:
    """Neither normal numbers of augmentation, nor batches after the first."""
    comparison = compare_loop(plain_loop, "augmentation")
    assert comparison.ok, comparison.report()
    private = compare_loop(private_run, runs=1)
    assert private.ok, private.report()


@check
def check_rows_of_each_kind_are_tried() -> None:
    require_sound(
        lambda rows, recorder: private_run(rows, recorder, "zero_out"),
        adjacency="zero_out",
        runs=1,
    )
    comparison = compare_loop(opacus_loop, adjacency="replace_one")
    assert 1.5 < comparison.largest_ratio < 2.001, comparison.report()
    require_problem(comparison, "half of that for replaced ones")


@check
def check_clipped_means_and_batch_statistics_are_caught() -> None:
    for loop, bug in (
        (plain_loop, "clipped mean"),
        (plain_loop, "batch statistics"),
        (opacus_loop, "batch statistics"),
        (opacus_loop, "coupled loss"),
    ):
        comparison = compare_loop(loop, bug)
        assert comparison.largest_ratio > 1.05, (bug, comparison.report())
        require_problem(comparison, "times as much")


@check
def check_parts_of_a_release_share_one_sensitivity() -> None:
    """Four parameters, each clipped at the norm that noise is scaled to."""
    comparison = compare_loop(plain_loop, "by layers")
    assert comparison.largest_ratio == pytest.approx(2.0, rel=1e-3), comparison.report()
    require_problem(comparison, "times as much")


@check
def check_values_without_noise_are_caught() -> None:
    for loop, bug, what in (
        (plain_loop, "no noise on biases", "gradient of parameter 1"),
        (plain_loop, "batch size", "gradient of parameter 0"),
        (plain_loop, "batch size in the rate", "learning rate"),
        (opacus_loop, "number of rows", "gradient of parameter 0"),
    ):
        require_problem(compare_loop(loop, bug), f"something else changed: the {what}")


@check
def check_a_difference_is_reported_where_it_comes_in() -> None:
    """The divisor alone differs: releases before and behind it keep their claim."""
    comparison = compare_loop(plain_loop, "batch size")
    assert comparison.largest_ratio < 1.001, comparison.report()


@check
def check_outputs_are_compared() -> None:
    require_problem(compare_loop(plain_loop, "private output"), "what the function returns[1]")
    require_problem(
        compare_runs(lambda rows, recorder: _declares(rows, recorder), data()), "the mean"
    )


def _declares(rows: Any, recorder: ReleaseRecorder) -> None:
    recorder.output("the mean", rows[0].mean())


@check
def check_noise_is_measured() -> None:
    def loop(rows: Any, recorder: ReleaseRecorder, scale: float) -> list[Tensor]:
        def add_noise(values: Any) -> list[Tensor]:
            return [value + scale * torch.randn_like(value) for value in values]

        x = rows[0] / rows[0].norm(dim=1, keepdim=True).clamp(min=1.0)
        return [
            recorder.release(
                x.sum(0).repeat(20), sensitivity=20**0.5, noise_multiplier=1.0, add_noise=add_noise
            )
            for _ in range(3)
        ]

    for scale, is_sound in ((20**0.5, True), (20**0.5 / 2, False), (0.0, False)):
        comparison = compare_runs(
            lambda rows, recorder, scale=scale: loop(rows, recorder, scale), data()
        )
        assert comparison.ok is is_sound, comparison.report()
        assert comparison.noise_multiplier == pytest.approx(scale / 20**0.5, rel=0.2, abs=0.01)
    silent = compare_loop(lambda rows, recorder: opacus_loop(rows, recorder, noise=0.0), runs=1)
    require_problem(silent, "standard deviation 0")
    require_problem(compare_loop(plain_loop, noise_multiplier=2.0), "times as much")
    require_problem(compare_loop(opacus_loop, noise_multiplier=2.0), "noise multiplier 1, and 2")
    require_problem(compare_loop(plain_loop, "half of the noise", sensitivity=CLIP), "noise of 0.")


@check
def check_noise_that_is_drawn_twice_is_caught() -> None:
    require_problem(compare_loop(plain_loop, "same noise"), "the same noise")


@check
def check_noise_without_a_claim_is_reported() -> None:
    require_problem(
        compare_loop(plain_loop, noise_multiplier=None), "without a claimed sensitivity"
    )
    require_problem(compare_runs(lambda rows, recorder: None, data()), "no release was recorded")


@check
def check_runs_that_show_nothing_fail() -> None:
    def blind(rows: Any, recorder: ReleaseRecorder) -> Any:
        return plain_loop(tuple(part[:20] for part in rows), recorder)

    require_problem(compare_loop(blind), "took part in no batch")


def without_large_rows(rows: Any) -> Any:
    x, y = rows
    usual = x.abs().amax(1) < 100
    return x[usual], y[usual]


@check
def check_large_rows_have_to_move_a_release() -> None:
    """Or clipping is not tested: there are more runs, and the test fails if that does not help."""
    calls: list[None] = []

    def ignores(rows: Any, recorder: ReleaseRecorder, runs: int = 99) -> Any:
        calls.append(None)
        early = len(calls) <= 6 * runs  # of each run, one on the data and five on neighbours
        return plain_loop(without_large_rows(rows) if early else rows, recorder, steps=12)

    require_problem(compare_loop(ignores, runs=1), "clipping was not tested")
    calls.clear()
    later = compare_loop(lambda rows, recorder: ignores(rows, recorder, 1), runs=1)
    assert later.ok, later.report()
    assert {change.run for change in later.changes if change.moved} == {0, 1}


@check
def check_noise_of_a_constant_seed_is_noticed() -> None:
    def seeded(rows: Any, recorder: ReleaseRecorder) -> Any:
        torch.manual_seed(0)
        return plain_loop(rows, recorder)

    require_problem(compare_loop(seeded), "the function sets a seed")


@check
def check_releases_that_depend_on_rows_are_caught() -> None:
    comparison = compare_loop(plain_loop, "skipped batches", rows=data(3), runs=4)
    assert not comparison.ok, comparison.report()
    require_problem(comparison, "departs")


NAN = {"a row of NaN": math.nan, "a row of infinity": math.inf}


@check
def check_rows_of_nan_are_infinite_changes() -> None:
    comparison = compare_loop(opacus_loop, neighbours=NAN)
    assert comparison.largest_ratio == math.inf
    require_problem(comparison, "a row of NaN")
    assert compare_loop(private_run, neighbours=NAN, runs=1).ok


@check
def check_neighbours_of_the_claim_are_those_of_the_data() -> None:
    comparison = compare_loop(
        lambda rows, recorder: private_run(rows, recorder, "zero_out"), runs=1
    )
    require_problem(comparison, "claimed for zero_out neighbours")


#: A file of tests, of which one has a bug.
MARKED = """
import pytest
from tests.neighbours.loops import data, plain_loop

calls = []

@pytest.mark.dp_neighbours(data=data, noise_multiplier=1.0, runs=1)
def test_sound(dp_rows, dp_recorder, tmp_path):
    assert tmp_path.is_dir()
    calls.append(len(dp_rows[0]))
    return None if plain_loop(dp_rows, dp_recorder) is None else None

@pytest.mark.dp_neighbours(data=data, noise_multiplier=1.0, runs=1)
def test_false(dp_rows, dp_recorder):
    plain_loop(dp_rows, dp_recorder, "batch statistics")

def test_calls():
    print("rows:", calls)
"""


def run_pytest(source: str, *options: str) -> tuple[int, str]:
    """Run pytest on a file in this process: its exit code, and what it prints."""
    with tempfile.TemporaryDirectory() as name:
        folder, printed = Path(name), io.StringIO()
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
        (folder / "test_marked.py").write_text(source)
        arguments = ["-p", "no:privlearn", "-p", "privlearn.neighbours.plugin"]
        arguments += ["-p", "no:cacheprovider", "-p", "no:xdist", "-s", f"--rootdir={folder}"]
        with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
            code = pytest.main([*arguments, *options, str(folder / "test_marked.py")])
        sys.modules.pop("test_marked", None)
    return int(code), printed.getvalue()


@check
def check_the_option_compares_marked_tests() -> None:
    code, text = run_pytest(MARKED, "--dp-neighbours")
    assert code == 1, text
    assert "1 failed, 2 passed" in text, text
    assert "times as much" in text, text
    assert "neighbouring runs" in text, text
    assert ", 32, 32, 32, 32, 32, 31]" in text, text


@check
def check_without_the_option_marked_tests_run_once() -> None:
    code, text = run_pytest(MARKED)
    assert code == 0, text
    assert "rows: [32]" in text, text
    assert "neighbouring runs" not in text, text
