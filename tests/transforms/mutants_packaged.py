"""Planted bugs in encoders that packages ship, each of which a named check must catch."""

from __future__ import annotations

from pickle import UnpicklingError

from privlearn.transforms import chain, packaged, packaged_networks
from tests.support.mutant import Mutant, suite_of

REFUSED = "check_other_weights_are_refused"
BROUGHT = "check_images_are_brought_to_the_encoder"
FOLDED = "check_batch_norm_is_in_the_weights"
HOSTILE = "check_hostile_onnx_files_are_refused"
READ = "check_tensors_of_onnx_files_are_read"

MUTANTS = [
    Mutant(
        "any weights will do",
        packaged.ShippedEncoder.read,
        "hashlib.sha256(content).hexdigest() != self.digest",
        "not content",
        REFUSED,
    ),
    Mutant(
        "any version will do",
        packaged.ShippedEncoder.read,
        "installed.version != self.version",
        "not installed.version",
        REFUSED,
    ),
    Mutant(
        "a model is read with other weights than it was trained with",
        packaged.Packaged.empty,
        'stated["digest"] != packaged.shipped.digest',
        'not stated["digest"]',
        "check_a_model_is_read_with_the_weights_it_was_trained_with",
    ),
    Mutant(
        "numbers beyond the range are taken as they are",
        packaged_networks.PackagedModule.prepared,
        "x.float().clamp(0, 1)",
        "x.float()",
        BROUGHT,
    ),
    Mutant(
        "the deviation is not divided by",
        packaged_networks.PackagedModule.prepared,
        "(images - mean) / deviation",
        "(images - mean)",
        BROUGHT,
    ),
    Mutant(
        "the size that is asked for is passed over",
        packaged_networks.PackagedModule.__init__,
        "packaged.size or shipped.size",
        "shipped.size",
        BROUGHT,
    ),
    Mutant(
        "a network that mixes rows is taken",
        packaged_networks.PackagedModule.require_per_example,
        "images = self.prepared(row, SMALLEST)",
        "return",
        "check_packaged_features_of_an_image_are_its_own",
    ),
    Mutant(
        "only the first images are seen",
        packaged_networks.PackagedModule.forward,
        "for part in parts]",
        "for part in parts[:1]]",
        "check_packaged_features_of_an_image_are_its_own",
    ),
    Mutant(
        "nothing is added to a variance",
        packaged_networks._folded,
        "+ _NORM_FLOOR",
        "",
        FOLDED,
    ),
    Mutant(
        "the running mean is not scaled",
        packaged_networks._folded,
        "mean * scale",
        "mean",
        FOLDED,
    ),
    Mutant(
        "blocks forget what they were given",
        packaged_networks._Block.forward,
        "x + maps if self.adds else maps",
        "maps",
        FOLDED,
    ),
    Mutant(
        "VGG16 sees red first",
        packaged_networks.vgg16,
        "kernel.flip(1) if not layers else kernel",
        "kernel",
        "check_vgg16_sees_blue_green_and_red",
    ),
    Mutant(
        "a name is as many zeros as its number says",
        packaged_networks._tensor,
        'str(value, "utf-8")',
        "bytes(value).decode()",
        HOSTILE,
    ),
    Mutant(
        "numbers are as long as the file",
        packaged_networks._varint,
        "range(0, _LONGEST, 7)",
        "range(0, 7 * len(message), 7)",
        HOSTILE,
    ),
    Mutant(
        "sizes that are not the numbers' are an error of PyTorch's",
        packaged_networks.read_onnx_tensors,
        "TypeError, RuntimeError",
        "TypeError",
        HOSTILE,
    ),
    Mutant(
        "only packed sizes are read",
        packaged_networks._tensor,
        "[value] if isinstance(value, int) else _varints(value)",
        "[] if isinstance(value, int) else _varints(value)",
        READ,
    ),
    Mutant(
        "whole numbers count as single precision",
        packaged_networks._tensor,
        "kind == _SINGLE and ",
        "",
        READ,
    ),
    Mutant(
        "packaged features stay uneven",
        chain.read_features,
        'transform.kind == "packaged"',
        "False",
        "check_packaged_features_are_evened_out",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, RuntimeError, TypeError, KeyError, UnpicklingError]
)
