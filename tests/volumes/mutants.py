"""Planted bugs in private segmentation, each of which a named check must catch."""

from __future__ import annotations

from privlearn import metrics
from privlearn.methods.pate import sums
from privlearn_segmentation import codes, hippocampus, start, training
from privlearn_segmentation.scans import grid
from privlearn_studies.fay2020 import scans, segmenting
from privlearn_studies.fay2020 import scans as pate_scans
from tests.support.mutant import Mutant, suite_of

CODES = "check_codes_of_maps_cost_what_is_stated"

MUTANTS = [
    Mutant(
        "codes by principal components are in the unit ball by word alone",
        codes.MapCodes._by_components,
        "return cls(settled, reducer",
        "return cls(plan, reducer",
        CODES,
    ),
    Mutant(
        "components below the noise are released, too",
        codes.MapCodes._by_components,
        "components.for_noise(settled.noise_std)",
        "components",
        CODES,
    ),
    Mutant(
        "the autoencoder is fitted without the noise",
        codes.MapCodes._by_autoencoder,
        "settled.noise_std",
        "0.0",
        CODES,
    ),
    Mutant(
        "what is corrections is read as maps",
        codes.MapCodes.answering,
        "if self._corrections:",
        "if not self._corrections:",
        CODES,
    ),
    Mutant(
        "reducers see masks that stand still",
        codes.draw_moved_maps,
        "warp(x, maps)[1]",
        "maps",
        "check_reducers_of_maps_see_masks_and_the_public_network",
    ),
    Mutant(
        "masks of the pool are handed out",
        hippocampus.split,
        "masks=False",
        "masks=True",
        "check_volumes_are_in_one_part",
    ),
    Mutant(
        "volumes with masks are asked about, too",
        hippocampus.split,
        "part(LABELLED, LABELLED + POOL",
        "part(0, LABELLED + POOL",
        "check_volumes_are_in_one_part",
    ),
    Mutant(
        "scans keep their own scale",
        grid.normalised,
        "(values - dark) / (bright - dark)",
        "values / 100",
        "check_a_volume_is_prepared_by_itself",
    ),
    Mutant(
        "volumes are cropped at one end",
        grid._centre,
        "slice(spare, spare + size)",
        "slice(0, size)",
        "check_grids_keep_the_middle",
    ),
    Mutant("half of a Dice", metrics.dice, "2 * both", "both", "check_dice_by_hand"),
    Mutant(
        "maps stay where they are",
        training.Warp.__call__,
        "self._cut(moved, turned)",
        "self._cut(moved, maps)",
        "check_volumes_and_maps_move_alike",
    ),
    Mutant(
        "maps stay where they are under DP-SGD",
        training._Moved.__call__,
        "return torch.cat(self.warp(",
        "return torch.cat((lambda x, y: (self.warp(x, y)[0], y))(",
        "check_dpsgd_moves_volumes_and_maps_alike",
    ),
    Mutant(
        "every step moves alike",
        training._Moved.__call__,
        "torch.manual_seed(seed)",
        "torch.manual_seed(0)",
        "check_dpsgd_moves_volumes_and_maps_alike",
    ),
    Mutant(
        "moves draw from a generator of others",
        training._Moved.__call__,
        "with torch.random.fork_rng():",
        "if True:",
        "check_dpsgd_moves_volumes_and_maps_alike",
    ),
    Mutant(
        "DP-SGD gets copies that nothing moves",
        segmenting.train_by_gradients,
        "augmentation=pairs.moved(",
        "augmentation=None and pairs.moved(",
        "check_copies_of_a_volume_are_one_example",
    ),
    Mutant(
        "the paper's noise is on all layers together",
        segmenting.plan_of,
        "_PAPERS_NOISE / math.sqrt(layers)",
        "_PAPERS_NOISE",
        "check_the_papers_noise_is_on_each_layer",
    ),
    Mutant(
        "nothing is mirrored",
        training.Warp._matrices,
        "-1.0, 1.0",
        "1.0, 1.0",
        "check_volumes_and_maps_move_alike",
    ),
    Mutant(
        "the reference is not taken off",
        start.Corrections.encode,
        ".flatten(2) - reference",
        ".flatten(2)",
        "check_codes_are_distances_of_maps",
    ),
    Mutant(
        "directions are not orthonormal",
        start.Corrections._root,
        ".rsqrt()",
        ".sqrt()",
        "check_codes_are_distances_of_maps",
    ),
    Mutant(
        "noise is taken for signal",
        start.Corrections.recovered,
        "codes.var(0) - noise",
        "codes.var(0)",
        "check_noise_is_held_back",
    ),
    Mutant(
        "a failing view is told",
        start.Seen._see,
        "return None",
        "raise",
        "check_a_view_that_fails_says_nothing",
    ),
    Mutant(
        "a failing view stops the ensemble",
        start.Seen.answers,
        "yield None if said is None else self._see(said)",
        "yield from [] if said is None else [self._see(said)]",
        "check_a_view_that_fails_says_nothing",
    ),
    Mutant(
        "codes are clipped to twice the radius",
        sums.CodeSums._clip_codes,
        "clip_to_ball(codes, self._radius)",
        "clip_to_ball(codes, 2 * self._radius)",
        "check_one_teacher_moves_codes_by_the_diameter",
    ),
    Mutant(
        "any pool passes for public",
        start.Start.learn,
        "if not pool.public",
        "if False",
        "check_a_start_is_public",
    ),
    Mutant(
        "any masks pass for public",
        start.public_maps,
        "if not labelled.public",
        "if False",
        "check_a_start_is_public",
    ),
    Mutant(
        "a start that learned from the records",
        start.Start.teachers,
        "require_others(",
        "(lambda *_: None)(",
        "check_a_start_is_public",
    ),
    Mutant(
        "teachers go on where others ended",
        start.Start.teachers,
        "lambda: self.network",
        "lambda: self._trained",
        "check_a_start_is_public",
    ),
    Mutant(
        "students change the start",
        start.MapStudent.__call__,
        "copy.deepcopy(self.start)",
        "self.start",
        "check_a_start_is_public",
    ),
    Mutant(
        "a start hands out its own network",
        start.Start.network,
        "copy.deepcopy(self._trained)",
        "self._trained",
        "check_training_what_a_start_gives_leaves_it_public",
    ),
    Mutant(
        "a start keeps the network it was given",
        start.Start.learn,
        "cls(copy.deepcopy(network)",
        "cls(network",
        "check_training_what_a_start_gives_leaves_it_public",
    ),
    Mutant(
        "students think there is no noise",
        start.Start.student,
        "noise = plan.noise_std",
        "noise = 1e-9",
        "check_students_know_the_noise",
    ),
    Mutant(
        "answers of the study at twice the epsilon",
        segmenting._released,
        "calibrate(epsilon=epsilon",
        "calibrate(epsilon=2 * epsilon",
        "check_releases_of_the_study_cost_what_is_stated",
    ),
    Mutant(
        "DP-SGD at twice the epsilon",
        segmenting.plan_of,
        "calibrate(epsilon=epsilon",
        "calibrate(epsilon=2 * epsilon",
        "check_releases_of_the_study_cost_what_is_stated",
    ),
    Mutant(
        "the autoencoder begins anyhow",
        codes.fit_autoencoder,
        "torch.manual_seed(seed)",
        "pass",
        "check_a_run_of_the_study_is_its_seeds",
    ),
    Mutant(
        "private volumes pass for public ones",
        pate_scans.chosen,
        "parts(data).labelled",
        "parts(data).private",
        "check_seeds_have_public_volumes_of_their_own",
    ),
    Mutant(
        "one choice of public volumes for every seed",
        pate_scans.chosen,
        "seed * labelled +",
        "",
        "check_seeds_have_public_volumes_of_their_own",
    ),
    Mutant(
        "the public U-Net goes on with private volumes",
        segmenting.train,
        "start, truth = public.start, pool_truth(data)",
        "start, truth = public.start, pool_truth(data); start.tuning(start._trained, "
        "parts().private.tensors()[0], public_maps(replace(parts().private, public=True), 3)[1])",
        "check_public_figures_of_the_study_are_public",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, caches=[scans.public_side], errors=[ValueError]
)
