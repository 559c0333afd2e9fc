"""Planted bugs in noise that ChaCha20 makes: each must make a named check fail."""

from __future__ import annotations

from privlearn.core import chacha, chacha_blocks, streams
from privlearn.core.mechanisms import noise
from privlearn.core.mechanisms.bisr import RedrawnStream
from privlearn.runs.repeats import Repeats
from tests.support.mutant import Mutant, suite_of

BLOCKS = "check_blocks_are_the_published_ones_however_they_are_made"
USES = "check_no_block_is_made_for_two_uses"
GOES_ON = "check_streams_of_chacha_go_on_where_they_were"
ONE = "check_a_stream_has_one_cipher"
BOUND = "check_a_key_that_outlives_a_call_is_bound_to_its_cipher"
DRAWS = "check_draws_of_chacha_are_those_that_the_words_make"
PLACES = "check_every_number_has_its_place_whatever_is_made_of_the_others"
EXACT = "check_rounded_draws_of_chacha_are_exact"

MUTANTS = [
    Mutant(
        "the counter is not advanced",
        streams.NoiseStream.take,
        "self.position + blocks",
        "self.position",
        GOES_ON,
    ),
    Mutant(
        "the counter is advanced by one",
        streams.NoiseStream.take,
        "self.position + blocks",
        "self.position + 1",
        PLACES,
    ),
    Mutant(
        "words that are skipped are counted in blocks of AES",
        streams.NoiseStream.skip,
        "_BLOCKS[str(self.cipher)]",
        "_BLOCK",
        GOES_ON,
    ),
    Mutant(
        "the counter wraps after 2^32 blocks",
        chacha_blocks.by_operations,
        "_halve(counters, start[12:14])",
        "_halve(counters & 0xFFFFFFFF, start[12:14])",
        BLOCKS,
    ),
    Mutant(
        "any kernel will do",
        chacha_blocks._kernel,
        "if not torch.equal(blocks,",
        "if False and torch.equal(blocks,",
        "check_a_kernel_that_makes_other_blocks_is_not_used",
    ),
    Mutant(
        "a kernel of normal draws is used after some calls",
        noise._normals_at,
        "chacha_blocks.are_many(blocks)",
        "(chacha_blocks.are_many(blocks) or chacha_blocks._asked.get(device, 0) > 50)",
        "check_a_kernel_of_normal_draws_is_chosen_by_their_number",
    ),
    Mutant(
        "any kernel of normal draws will do",
        noise._kernel_on,
        "normals_kernel.works_on(device)",
        "True",
        "check_a_kernel_that_draws_otherwise_is_not_used",
    ),
    Mutant(
        "one rotation is by another number",
        chacha_blocks._quarter_round,
        "_rotate(b ^ c, 7)",
        "_rotate(b ^ c, 8)",
        BLOCKS,
    ),
    Mutant(
        "signs are rotated in",
        chacha_blocks._rotate,
        "& ((1 << by) - 1)",
        "",
        BLOCKS,
    ),
    Mutant(
        "eight rounds",
        chacha_blocks.by_operations,
        "range(10)",
        "range(4)",
        BLOCKS,
    ),
    Mutant(
        "the state is not added at the end",
        chacha_blocks.by_operations,
        ".add_(start)",
        "",
        BLOCKS,
    ),
    Mutant(
        "one nonce for noise and for refinement",
        noise._further_bits,
        "chacha.REFINEMENT | next(rounds) << 32",
        "chacha.NOISE | next(rounds) << 32",
        USES,
    ),
    Mutant(
        "rounds of refinement repeat their bits",
        noise._further_bits,
        "| next(rounds) << 32",
        "| 0 * next(rounds)",
        USES,
    ),
    Mutant(
        "one key for all streams",
        chacha.derive_key,
        "key=secret, ",
        "",
        USES,
    ),
    Mutant(
        "one key for all uses",
        chacha.derive_key,
        ", person=use",
        "",
        USES,
    ),
    Mutant(
        "the cipher is left out of the state",
        streams.Streams.state,
        '"cipher": self.noise.cipher',
        '"cipher": None',
        GOES_ON,
    ),
    Mutant(
        "a state's cipher is left out",
        streams.Streams.at,
        'noise_state.get("cipher", "aes")',
        '"aes"',
        GOES_ON,
    ),
    Mutant(
        "another process has its own cipher",
        streams.Streams.move_to,
        "self.noise.cipher, *states",
        "_, *states",
        GOES_ON,
    ),
    Mutant(
        "a key is not bound to its cipher",
        streams.Streams.bind,
        "{**determined, **self.describe_cipher()}",
        "dict(determined)",
        BOUND,
    ),
    Mutant(
        "the cipher may be chosen anew",
        streams.NoiseStream.choose,
        "if self.cipher is None:",
        "if True:",
        ONE,
    ),
    Mutant(
        "words that are skipped choose another cipher",
        streams.NoiseStream.skip,
        'self.choose("aes")',
        'self.choose("chacha20")',
        ONE,
    ),
    Mutant(
        "parts choose their cipher anew",
        streams.NoiseStream.part,
        "cipher=chosen",
        "cipher=None",
        ONE,
    ),
    Mutant(
        "any cipher will do",
        streams.NoiseStream.__init__,
        'cipher if cipher is None else one_of("cipher", cipher, _BLOCKS)',
        "cipher",
        ONE,
    ),
    Mutant(
        "the cipher of noted noise is left out",
        Repeats.see,
        'drawn.to_bytes(8, "big") + cipher',
        'drawn.to_bytes(8, "big")',
        "check_noise_of_another_cipher_on_a_noted_sum_is_refused",
    ),
    Mutant(
        "earlier noise is drawn again by AES",
        RedrawnStream._fill,
        "cipher=self._stream.cipher",
        'cipher="aes"',
        "check_earlier_noise_is_drawn_again_by_its_cipher",
    ),
    Mutant(
        "radii have 32 bits",
        noise.normals_of,
        "_wide(words[:4], words[4:8])",
        "_wide(words[:4], 0 * words[4:8])",
        DRAWS,
    ),
    Mutant(
        "radii have the bits of the angles",
        noise.normals_of,
        "_wide(words[:4], words[4:8])",
        "_wide(words[8:12], words[12:])",
        DRAWS,
    ),
    Mutant(
        "radii end at 53 bits",
        noise.normals_of,
        "torch.where(uniform < 0, uniform + 1, uniform) + 2.0**-65",
        "torch.where(uniform < 0, uniform + 1, uniform) + 2.0**-53",
        DRAWS,
    ),
    Mutant(
        "angles make half a turn",
        noise.normals_of,
        "words[8:12].float() * 2.0**-31",
        "words[8:12].float() * 2.0**-32",
        DRAWS,
    ),
    Mutant(
        "parts get the noise of the beginning",
        noise._line_up,
        "size + start",
        "size",
        PLACES,
    ),
    Mutant(
        "values share their noise",
        noise._line_up,
        "size += whole",
        "size = max(size, whole)",
        PLACES,
    ),
    Mutant(
        "double precision is trusted on a grid",
        noise.rounded_at,
        "undecided.nonzero().tolist()",
        "list[list[int]]()",
        EXACT,
    ),
    Mutant(
        "further bits at the place of another pair",
        noise.rounded_at,
        "4 * place + pair",
        "4 * block + pair",
        EXACT,
    ),
    Mutant(
        "blocks of later ranges are counted from the first",
        noise._block_number,
        "return first + at",
        "return blocks[0][0] + at",
        EXACT,
    ),
    Mutant(
        "grid noise by place 3% too small",
        noise.add_on_grid,
        "scale = noise_multiplier",
        "scale = 0.97 * noise_multiplier",
        "check_noise_of_chacha_has_the_stated_scale",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
