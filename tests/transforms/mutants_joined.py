"""Planted bugs in the encoder beside random units, each of which a named check must catch."""

from __future__ import annotations

from privlearn.transforms import drawn_encoder, specs
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "maps are brought to mean 0 over the batch",
        drawn_encoder.DrawnEncoder._encode,
        "2 * x.float() - 1",
        "2 * (x - x.mean()).float()",
        "check_joined_features_of_an_example_are_its_own",
    ),
    Mutant(
        "nothing is added to what a convolution was given",
        drawn_encoder.DrawnEncoder._encode,
        "if inputs == outputs",
        "if False",
        "check_the_encoder_by_hand",
    ),
    Mutant(
        "the encoder forgets that it mirrors",
        drawn_encoder.DrawnEncoder.answers,
        "if self.mirrored",
        "if False",
        "check_the_encoder_sees_mirror_images_alike_where_wanted",
    ),
    Mutant(
        "the encoder always mirrors",
        drawn_encoder.DrawnEncoder.answers,
        "if self.mirrored",
        "if True",
        "check_the_encoder_sees_mirror_images_alike_where_wanted",
    ),
    Mutant(
        "any weights will do",
        drawn_encoder._weights,
        "!= DIGEST",
        "== b''",
        "check_shipped_weights_are_those_of_the_recipe",
    ),
    Mutant(
        "rows are longer than is said of them",
        drawn_encoder.DrawnEncoder.forward,
        "projected(",
        "2 * projected(",
        "check_joined_features_of_an_example_are_its_own",
    ),
    Mutant(
        "grey images go to the encoder",
        specs.ScatterRandom.output_shape,
        "if self.encoded and",
        "if False and",
        "check_the_encoder_is_for_images_in_colour_and_written_where_it_is",
    ),
    Mutant(
        "a plan forgets the encoder",
        specs.ScatterRandom.module,
        "if self.encoded",
        "if False",
        "check_joined_features_of_an_example_are_its_own",
    ),
    Mutant(
        "a published model forgets that its encoder mirrors",
        drawn_encoder.WithEncoder.empty,
        "units.mirrored",
        "False",
        "check_shipped_weights_are_those_of_the_recipe",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, RuntimeError, TypeError]
)
