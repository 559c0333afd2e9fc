"""Planted bugs in noise on a grid and in random streams: each must make a named check fail."""

from __future__ import annotations

from privlearn.core import streams
from privlearn.core.mechanisms import noise, release, selection
from tests.support.mutant import Mutant, suite_of

DRAWS = "check_draws_are_those_that_the_words_make"

MUTANTS = [
    Mutant(
        "grid noise 3% too small",
        noise.add_on_grid,
        "scale = noise_multiplier",
        "scale = 0.97 * noise_multiplier",
        "check_noise_on_a_grid_has_the_stated_scale",
    ),
    Mutant(
        "grid noise ignores the sensitivity",
        noise.add_on_grid,
        "noise_multiplier * bound",
        "noise_multiplier * 1.0",
        "check_noise_on_a_grid_has_the_stated_scale",
    ),
    Mutant(
        "rounding costs nothing",
        noise.add_on_grid,
        "sensitivity + step * math.sqrt(numbers)",
        "sensitivity",
        "check_noise_pays_for_the_rounding_to_the_grid",
    ),
    Mutant(
        "rounding costs one step whatever the size",
        noise.add_on_grid,
        "step * math.sqrt(numbers)",
        "step",
        "check_noise_pays_for_the_rounding_to_the_grid",
    ),
    Mutant(
        "the grid's step from the first tensor only",
        noise.add_on_grid,
        "sum(whole for _, whole in places)",
        "places[0][1]",
        "check_all_numbers_of_a_release_share_one_grid",
    ),
    Mutant(
        "noise on a grid is drawn in floating point",
        release._add_noise,
        "stream.discrete:",
        "False:",
        "check_low_bits_tell_nothing_on_a_grid",
    ),
    Mutant(
        "the last seven numbers after a block without noise",
        noise.add_gaussian,
        "min(at + flat.numel(), last)",
        "min(at + flat.numel() - 7 * (first > at), last)",
        "check_every_number_gets_noise_at_the_ends_of_blocks",
    ),
    Mutant(
        "the last seven numbers after a block of the grid without noise",
        noise.add_on_grid,
        "range(0, whole, _BLOCK_ON_GRID)",
        "range(0, max(whole - 7, 1), _BLOCK_ON_GRID)",
        "check_every_number_gets_noise_at_the_ends_of_blocks",
    ),
    Mutant("pi to six digits in double precision", noise._on_circles, "math.pi", "3.14159", DRAWS),
    Mutant("radii 0.05% too small", noise.by_operations, "mul_(-2.0)", "mul_(-1.998)", DRAWS),
    Mutant(
        "pairs are not split at a uniform point",
        noise.by_operations,
        ".mul_(0.5).add_(0.5)",
        ".mul_(0.499).add_(0.5)",
        DRAWS,
    ),
    *(
        Mutant(
            f"coefficient {place} of sine and cosine 0.1% off",
            noise._polynomial,
            "first, *middle, last = coefficients",
            (
                f"first, *middle, last = [c * (1.001 if i == {place} else 1) for i, c in "
                "enumerate(coefficients)]"
            ),
            "check_polynomials_are_the_functions_that_they_stand_for",
        )
        for place in range(5)
    ),
    Mutant(
        "Gumbel noise has no far tail",
        selection.gumbel,
        "2.0**-65",
        "2.0**-16",
        "check_gumbel_draws_reach_the_far_tail",
    ),
    Mutant(
        "values are not rounded",
        noise.add_on_grid,
        ".div_(step).round_()",
        ".div_(step)",
        "check_everything_lies_on_the_grid",
    ),
    Mutant(
        "noise is not rounded",
        noise._rounded,
        "whole = exact.round()",
        "whole = exact.clone()",
        "check_everything_lies_on_the_grid",
    ),
    Mutant(
        "double precision is trusted",
        noise._rounded,
        "+ error < 0.5",
        "< 0.51",
        "check_rounded_draws_are_exact",
    ),
    Mutant(
        "refined draws start anew",
        noise._refine,
        "radius << 64",
        "0 << 64",
        "check_rounded_draws_are_exact",
    ),
    Mutant(
        "refined angles make two turns",
        noise._refine,
        "mpmath.ldexp(angle, 1 - bits)",
        "mpmath.ldexp(angle, 2 - bits)",
        "check_rounded_draws_are_exact",
    ),
    Mutant(
        "the noise stream starts over",
        streams.Streams.at,
        "position, discrete",
        "0, discrete",
        "check_streams_go_on_where_they_were",
    ),
    Mutant(
        "blocks handed out are not counted",
        streams.NoiseStream._bits,
        "self.position += size // _BLOCK",
        "pass",
        "check_streams_go_on_where_they_were",
    ),
    Mutant(
        "half a word is lost",
        streams._restore,
        "{**state,",
        '{**state, "has_uint32": 0,',
        "check_streams_go_on_where_they_were",
    ),
    Mutant(
        "forks keep the noise key",
        streams._fresh_keys,
        "stream._start(secrets.token_bytes(16))",
        "pass",
        "check_forked_processes_draw_other_numbers",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
