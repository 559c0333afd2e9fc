"""Planted bugs in public features, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import encoder_checks  # noqa: F401 - registers the checks

from privlearn import plan
from privlearn.cli import jobs
from privlearn.models import check as models_check
from privlearn.publishing import model, verify
from privlearn.runs import front
from privlearn.transforms import chain, external, made_up_images, random_units, scattering, sources, specs

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

MUTANTS = [
    Mutant("features are normalised over the batch", scattering.Scattering.forward,
           "F.group_norm(maps, groups_of(maps.shape[1]))", "(maps - maps.mean()) / maps.std()",
           "check_features_of_an_example_are_its_own"),
    Mutant("features are not normalised", scattering.Scattering.forward,
           "F.group_norm(maps, groups_of(maps.shape[1]))", "maps",
           "check_scattering_is_what_kymatio_and_a_group_norm_make"),
    Mutant("one group for all channels", scattering.groups_of, "max(", "min(",
           "check_scattering_is_what_kymatio_and_a_group_norm_make"),
    Mutant("images are not scaled before", front.front, "x = through(transforms, x)", "",
           "check_training_on_images_is_training_on_their_features"),
    Mutant("the encoder is left out of the model", front.front, "[*transforms, data.features.encoder]", "transforms",
           "check_training_on_images_is_training_on_their_features"),
    Mutant("features are kept whatever the rows", chain.Encoding._digest,
           "digest.update(x.detach()", "(x.detach()", "check_kept_features_are_those_of_these_rows"),
    Mutant("features are kept whatever the encoder", chain.Encoding._digest, "{self.encoder.describe()}", "",
           "check_kept_features_are_those_of_these_rows"),
    Mutant("everybody may read kept features", chain.Encoding.__call__, "0o600", "0o644",
           "check_kept_features_are_those_of_these_rows"),
    Mutant("blocks but the first are lost", chain.Encoding._made, "encoded[start : start + len(part)] = part",
           "encoded[: len(part)] = part", "check_long_data_are_encoded_in_blocks"),
    Mutant("an encoder may mix rows", chain.Encoding.__call__, "isinstance(self.encoder, ExternalModule)", "False",
           "check_an_encoder_that_mixes_rows_is_refused"),
    Mutant("an encoder may be another each time", external.ExternalModule.__init__,
           "_digest(_made(spec, seed=1)) != self.digest", "False", "check_an_encoder_that_is_another_each_time_is_refused"),
    Mutant("random numbers begin alike each time", external.ExternalModule.__init__, "seed=1", "seed=0",
           "check_an_encoder_that_is_another_each_time_is_refused"),
    Mutant("facts may name other features than the plan", plan.Plan.follows, "if named and", "if False and",
           "check_a_front_is_made_in_its_order_and_users_code_comes_first"),
    Mutant("users' code runs behind a release", front.public_modules, "len(leading(modules)) < len(modules)", "False",
           "check_a_front_is_made_in_its_order_and_users_code_comes_first"),
    Mutant("rows are kept whatever they were scaled by", chain.Encoding.__call__,
           ' or "spec" not in self.encoder.config()', "",
           "check_a_front_is_made_in_its_order_and_users_code_comes_first"),
    Mutant("what follows a release is left out of the model", front.Front.fit, "self.modules.append(module)", "pass",
           "check_a_front_is_made_in_its_order_and_users_code_comes_first"),
    Mutant("features that are no numbers are learned from", front.encoded, "finite and", "False and",
           "check_features_that_are_no_numbers_are_refused_before_anything_is_spent"),
    Mutant("test rows end a run that was paid for", jobs.test_metrics, "finite=False", "finite=True",
           "check_features_that_are_no_numbers_are_refused_before_anything_is_spent"),
    Mutant("batch norm of an encoder follows the batch", external.ExternalModule.forward, "self._held[0].eval()",
           "self._held[0].train()", "check_batch_norm_of_an_encoder_is_a_fixed_map"),
    Mutant("an encoder is in the mode that others leave it in", external.ExternalModule.forward, "self._held[0].eval()",
           "self._held[0]", "check_batch_norm_of_an_encoder_is_a_fixed_map"),
    Mutant("batch norm of a network is taken for a fixed map", models_check.require_per_example,
           "fixed and module.track_running_stats", "module.track_running_stats",
           "check_batch_norm_of_an_encoder_is_a_fixed_map"),
    Mutant("batch norm without running statistics may mix rows", models_check.require_per_example,
           "any(_rows_depend_on_others(twin, inputs, size) for size in sizes)", "False",
           "check_an_encoder_that_mixes_rows_is_refused"),
    Mutant("weights of one's own encoder are published", external.ExternalModule.__init__, "self._held = (made,)",
           "self._held = nn.ModuleList([made])", "check_an_encoder_of_ones_own_is_named_and_not_published"),
    Mutant("a file names the code that runs", sources.External.empty, "code != stated[\"spec\"]",
           "not (code := stated[\"spec\"])", "check_a_file_never_names_the_code_that_runs"),
    Mutant("other weights of one's own encoder will do", sources.External.empty, "module.digest != stated[\"digest\"]",
           "False", "check_another_encoder_of_that_name_is_refused"),
    Mutant("a digest of names alone", external._digest, "digest.update(value.detach()", "(value.detach()",
           "check_another_encoder_of_that_name_is_refused"),
    Mutant("made-up images are others each time", made_up_images.made_up_images, "default_rng(0)", "default_rng()",
           "check_directions_are_of_made_up_images_alone"),
    Mutant("directions about zero", made_up_images.directions, "svd_lowrank(rows - mean", "svd_lowrank(rows",
           "check_directions_are_of_made_up_images_alone"),
    Mutant("directions are not scaled", made_up_images.directions, "** (-_WHITENED / 2)", "** 0",
           "check_directions_are_of_made_up_images_alone"),
    Mutant("projected rows keep their lengths", made_up_images.projected, "rows / lengths", "rows",
           "check_directions_are_of_made_up_images_alone"),
    Mutant("directions of other images are taken", made_up_images.learned, "-{sizes}", "",
           "check_kept_directions_are_those_of_this_shape"),
    Mutant("directions are left out of the published model", scattering.Scattering.__init__,
           '"components", components)', '"components", components, persistent=False)',
           "check_published_directions_come_back"),
    Mutant("random units see coefficients that are not whitened", random_units.RandomUnits._seen,
           ' @ self.get_buffer("whitening")', "", "check_random_units_by_hand"),
    Mutant("places are not brought to one length", random_units.RandomUnits._seen, "_unit(places)", "places",
           "check_random_units_by_hand"),
    Mutant("places are centred over the batch", random_units.RandomUnits._seen, 'self.get_buffer("local_mean")',
           "_logarithms(x, self.scale).mean((0, 1, 2))", "check_features_of_an_example_are_its_own"),
    Mutant("fully whitened", random_units._local, "-_WHITENED / 2", "-1 / 2", "check_random_units_by_hand"),
    Mutant("units are longer than 1", random_units._local, "_unit((chosen - mean) @ whitening)",
           "((chosen - mean) @ whitening)", "check_random_units_by_hand"),
    Mutant("nothing is mirrored", random_units.RandomUnits.answers, "if self.mirrored", "if False",
           "check_mirror_images_have_the_same_features_where_wanted"),
    Mutant("everything is mirrored", random_units.RandomUnits.answers, "if self.mirrored", "if True",
           "check_mirror_images_have_the_same_features_where_wanted"),
    Mutant("upside down counts as mirrored", random_units.RandomUnits.answers, "x.flip(-1)", "x.flip(-2)",
           "check_mirror_images_have_the_same_features_where_wanted"),
    Mutant("a published model forgets that it mirrors", specs.ScatterRandom.empty, "own.mirror == 1", "False",
           "check_published_directions_come_back"),
    Mutant("all images are photographs", specs.usual, "shape[0] == _COLOURS", "True",
           "check_what_is_usual_follows_from_public_facts"),
    Mutant("a file's features may be code", model._transform, 'kinds()[config["kind"]]',
           'kinds()["norm" if "." not in config.get("spec", ".") else config["kind"]]',
           "check_a_file_never_names_the_code_that_runs"),
    Mutant("a certificate may name other features", verify._other_features, "configured == stated",
           "True", "check_other_features_than_the_certified_ones_do_not_verify"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, RuntimeError, TypeError, AttributeError]
)
