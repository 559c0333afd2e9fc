"""Planted bugs that whoever runs `privlearn selfcheck` must be told of."""

from __future__ import annotations

from privlearn.core import chacha_blocks, sampling, streams
from privlearn.core.accounting import mechanisms, zcdp
from privlearn.core.clipping import clips
from privlearn.core.mechanisms import noise
from privlearn.core.sampling import Sample
from privlearn.publishing import verify
from tests.support.mutant import Mutant, suite_of


def of(name: str) -> str:
    return f"check_of_an_installation_that_{name}"


MUTANTS = [
    Mutant(
        "more noise is priced",
        zcdp.gaussian_mu,
        "return ",
        "return 0.9 *",
        of("epsilons_are_the_known_ones"),
    ),
    Mutant(
        "the price of more batches",
        mechanisms.Partitioned.__post_init__,
        'count("batches", self.batches)',
        "object.__setattr__(self, 'batches', 2 * self.batches)",
        of("epsilons_are_the_known_ones"),
    ),
    Mutant(
        "the counter starts anew",
        streams.NoiseStream._start,
        "position.to_bytes",
        "(0).to_bytes",
        of("random_bits_are_those_of_aes"),
    ),
    Mutant(
        "a round of ChaCha20 is left out",
        chacha_blocks.by_operations,
        "range(10)",
        "range(9)",
        of("random_bits_are_those_of_chacha20"),
    ),
    Mutant(
        "ChaCha20's noise is 5% too small",
        noise.normals_of,
        "uniform.log() * -2.0",
        "uniform.log() * -1.8",
        of("random_bits_are_those_of_chacha20"),
    ),
    Mutant(
        "all keys are one",
        streams._key,
        "return ",
        "return bytes(16)\n    return ",
        of("keys_are_fresh"),
    ),
    Mutant(
        "radii are too short",
        noise.by_operations,
        ".mul_(-2.0)",
        ".mul_(-1.9)",
        of("noise_is_gaussian"),
    ),
    Mutant(
        "angles of half a circle",
        noise.by_operations,
        "2.0**-63 if wide else 2.0**-31",
        "2.0**-64 if wide else 2.0**-32",
        of("noise_is_gaussian"),
    ),
    Mutant(
        "the grid's noise is truncated",
        noise.rounded_gaussian,
        "whole.view(-1)[:count]",
        "whole.view(-1)[:count].clamp(-3 * scale, 3 * scale)",
        of("noise_on_a_grid_is_gaussian"),
    ),
    Mutant(
        "a tenth more is sampled",
        sampling.Poisson.draw,
        "self.sampling_rate, rng",
        "1.1 * self.sampling_rate, rng",
        of("samples_are_as_often_as_priced"),
    ),
    Mutant(
        "the first bin is favoured",
        sampling.Partition.draw,
        "rng.integers(self.batches, size=examples)",
        "rng.integers(self.batches + 1, size=examples) % self.batches",
        of("samples_are_as_often_as_priced"),
    ),
    Mutant(
        "nothing is clipped",
        clips.Flat.weights,
        "return ",
        "return 0 * norms + 1.0\n    return ",
        of("clipped_sums_are_those_of_single_examples"),
    ),
    Mutant(
        "the charge is forgotten",
        Sample.spend,
        "self.unit.charge(",
        "print(",
        of("a_refusal_comes_before_noise"),
    ),
    Mutant(
        "weights are not compared",
        verify._find_changed_files,
        "return ",
        "return [] and ",
        of("what_is_published_verifies"),
    ),
    Mutant(
        "noise is halved",
        noise.add_gaussian,
        "alpha=std",
        "alpha=std / 2",
        of("a_step_keeps_its_claim"),
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError]
)
