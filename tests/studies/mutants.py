"""Planted bugs in the papers' training runs, each of which a named check must catch."""

from __future__ import annotations

from privlearn_studies import data
from privlearn_studies.harder2020 import mnist
from privlearn_studies.harder2020 import training as dpmac
from privlearn_studies.yu2019 import training as yu
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "clipping as written passes for sound",
        yu._written,
        "math.sqrt(layers)",
        "1.0",
        "check_the_reading_as_written_states_what_it_costs",
    ),
    Mutant(
        "the output layer is not counted",
        yu.train,
        "setting.hidden) + 1",
        "setting.hidden)",
        "check_the_reading_as_written_states_what_it_costs",
    ),
    Mutant(
        "sound noise is as small as that as written",
        yu._written,
        'setting.clip == "as written"',
        "True",
        "check_the_reading_as_written_states_what_it_costs",
    ),
    Mutant(
        "the projection comes out of the budget",
        yu.plan_of,
        "rho += sum(0.5 / release.noise_multiplier**2 for release in before)",
        "pass",
        "check_the_epochs_of_table_two",
    ),
    Mutant(
        "the target is for training alone",
        yu.plan_of,
        "front=before, epochs=setting.epochs",
        "epochs=setting.epochs",
        "check_the_target_includes_the_projection",
    ),
    Mutant(
        "seeds change nothing",
        yu.train,
        "Streams.new(seed)",
        "Streams.new(0)",
        "check_equal_seeds_make_pairs",
    ),
    Mutant(
        "seeds are not used",
        yu.train,
        "Streams.new(seed)",
        "Streams.new()",
        "check_equal_seeds_make_pairs",
    ),
    Mutant(
        "validation rows are trained on, too",
        data._cancer,
        "500 if validate else 560",
        "560",
        "check_parts_are_disjoint",
    ),
    Mutant(
        "the last images are trained on, too",
        data._mnist,
        "len(x) - 5000 if validate else len(x)",
        "len(x)",
        "check_parts_are_disjoint",
    ),
    Mutant(
        "one split for every seed",
        data._cancer,
        "[seed, 560]",
        "[560]",
        "check_equal_seeds_make_pairs",
    ),
    Mutant(
        "plain training goes uphill",
        yu._plainly,
        "rate * schedule",
        "-rate * schedule",
        "check_plain_training_reaches_what_is_known",
    ),
    Mutant(
        "targets of DP-MAC are for training alone",
        dpmac.plan_of,
        "clip=clip, front=before",
        "clip=clip",
        "check_targets_of_dpmac_include_the_projection",
    ),
    Mutant(
        "half the noise, as in the released code",
        dpmac.plan_of,
        "Constant(start=setting.noise)",
        "Constant(start=setting.noise / 2)",
        "check_the_papers_settings_cost_what_is_known",
    ),
    Mutant(
        "batches of twice the size",
        dpmac._sampler,
        "Poisson(setting.batch_size / examples)",
        "Poisson(2 * setting.batch_size / examples)",
        "check_the_papers_settings_cost_what_is_known",
    ),
    Mutant(
        "images to test on are trained on",
        dpmac._images,
        "slice(_EACH_DIGIT, 2 * _EACH_DIGIT)",
        "slice(_EACH_DIGIT - 100, 2 * _EACH_DIGIT - 100)",
        "check_images_are_split_afresh_and_disjoint",
    ),
    Mutant(
        "settings are tried on test images",
        mnist.held_back,
        "held=True",
        "held=False",
        "check_settings_are_tried_on_images_held_back",
    ),
    Mutant(
        "images held back are trained on",
        dpmac.examples_of,
        "_HELD if setting.held else 0",
        "0",
        "check_settings_are_tried_on_images_held_back",
    ),
    Mutant(
        "DP-MAC's setting is chosen for DP-SGD",
        mnist._best,
        "if what not in macs",
        "",
        "check_settings_are_tried_on_images_held_back",
    ),
    Mutant(
        "images left over are tested on",
        dpmac._images,
        "if held else",
        "if not held else",
        "check_images_are_split_afresh_and_disjoint",
    ),
    Mutant(
        "one split of images for every seed",
        dpmac._images,
        "[seed, _EACH_DIGIT]",
        "[_EACH_DIGIT]",
        "check_images_are_split_afresh_and_disjoint",
    ),
    Mutant(
        "errors are not halved",
        dpmac.half_squares,
        ".sum(1) / 2",
        ".sum(1)",
        "check_errors_are_half_sums_over_pixels",
    ),
    Mutant(
        "errors are means over pixels",
        dpmac.half_squares,
        ".sum(1) / 2",
        ".mean(1) / 2",
        "check_errors_are_half_sums_over_pixels",
    ),
    Mutant(
        "weights start by chance",
        dpmac._reset,
        "int(streams.initialisation.integers(2**63))",
        "__import__('secrets').randbits(40)",
        "check_seeds_of_dpmac_make_pairs",
    ),
    Mutant(
        "seeds of DP-MAC are not used",
        dpmac.trained,
        "Streams.new(seed)",
        "Streams.new()",
        "check_seeds_of_dpmac_make_pairs",
    ),
    Mutant(
        "noise where none is wanted",
        dpmac._by_layers,
        "private=setting.private",
        "private=True",
        "check_runs_without_noise_say_so",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
