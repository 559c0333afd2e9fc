"""Planted bugs in noise on a grid and in random streams: each must make a named check fail."""

from __future__ import annotations

import noise_checks  # noqa: F401 - registers its checks
from mutant import Mutant, suite_of

G, R = "privlearn.mechanisms.grid:", "privlearn.rng:"

MUTANTS = [
    Mutant("grid noise 3% too small", G + "add_on_grid", "scale = noise_multiplier", "scale = 0.97 * noise_multiplier",
           "check_noise_on_a_grid_has_the_stated_scale"),
    Mutant("grid noise ignores the sensitivity", G + "add_on_grid", "noise_multiplier * bound", "noise_multiplier * 1.0",
           "check_noise_on_a_grid_has_the_stated_scale"),
    Mutant("rounding costs nothing", G + "add_on_grid", "sensitivity + step * math.sqrt(numbers)", "sensitivity",
           "check_noise_pays_for_the_rounding_to_the_grid"),
    Mutant("rounding costs one step whatever the size", G + "add_on_grid", "step * math.sqrt(numbers)", "step",
           "check_noise_pays_for_the_rounding_to_the_grid"),
    Mutant("values are not rounded", G + "add_on_grid", ".div_(step).round_()", ".div_(step)",
           "check_everything_lies_on_the_grid"),
    Mutant("noise is not rounded", G + "rounded_gaussian", "whole = exact.round()", "whole = exact.clone()",
           "check_everything_lies_on_the_grid"),
    Mutant("double precision is trusted", G + "rounded_gaussian", "+ error < 0.5", "< 0.51",
           "check_rounded_draws_are_exact"),
    Mutant("refined draws start anew", G + "_refined", "radius << 64", "0 << 64", "check_rounded_draws_are_exact"),
    Mutant("refined angles make two turns", G + "_refined", "mpmath.ldexp(angle, 1 - bits)",
           "mpmath.ldexp(angle, 2 - bits)", "check_rounded_draws_are_exact"),
    Mutant("the noise stream starts over", R + "Streams.at", "position, discrete", "0, discrete",
           "check_streams_go_on_where_they_were"),
    Mutant("blocks handed out are not counted", R + "NoiseStream.words", "self.position += size // _BLOCK", "pass",
           "check_streams_go_on_where_they_were"),
    Mutant("half a word is lost", R + "_restored", "{**state,", '{**state, "has_uint32": 0,',
           "check_streams_go_on_where_they_were"),
    Mutant("forks keep the noise key", R + "_fresh_keys", "stream._start(secrets.token_bytes(16))", "pass",
           "check_forked_processes_draw_other_numbers"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
