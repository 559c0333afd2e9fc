"""Planted bugs in scans and in the public start of DP-SGD, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn.training import train
from privlearn_segmentation import start
from privlearn_segmentation.pages import starting
from privlearn_segmentation.scans import grid, nifti
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "scans are compared with the first one",
        nifti.read_folder,
        "grid.row(scan.values)",
        "grid.row(scan.values) - (scans[1].mean() if len(scans) > 1 else 0)",
        "check_one_scan_changes_one_row",
    ),
    Mutant(
        "masks keep the network's axes",
        nifti.write_mask,
        "scan.as_in_file(",
        "(lambda mask: mask)(",
        "check_masks_lie_where_their_scans_do",
    ),
    Mutant(
        "axes are turned twice",
        nifti.Scan.as_in_file,
        "[[0, 1], [1, 1], [2, 1]], nib.io_orientation(self.affine)",
        "nib.io_orientation(self.affine), [[0, 1], [1, 1], [2, 1]]",
        "check_masks_lie_where_their_scans_do",
    ),
    Mutant(
        "masks lie at the origin",
        nifti._bytes,
        "image.affine, header",
        "np.eye(4), header",
        "check_masks_lie_where_their_scans_do",
    ),
    Mutant(
        "halved masks stay small",
        grid.Grid.restored,
        "mask.repeat(2, axis)",
        "mask",
        "check_grids_can_be_undone",
    ),
    Mutant(
        "patients who are trained on are tested on",
        nifti._groups,
        "if both:",
        "if False:",
        "check_patients_who_are_trained_on_are_not_tested_on",
    ),
    Mutant(
        "scans of nobody are read",
        nifti._groups,
        "if absent is not None:",
        "if False:",
        "check_patients_who_are_trained_on_are_not_tested_on",
    ),
    Mutant(
        "a scan's last line decides whose it is",
        nifti._patients,
        "whose.setdefault(name, patient) != patient",
        "whose.update({name: patient})",
        "check_a_scan_is_of_one_patient",
    ),
    Mutant(
        "white space makes another patient",
        nifti._patients,
        '(row["patient"] or "").strip()',
        'row["patient"]',
        "check_a_scan_is_of_one_patient",
    ),
    Mutant(
        "ids of another case are other patients",
        nifti._patients,
        "one.casefold() for one",
        "one for one",
        "check_a_scan_is_of_one_patient",
    ),
    Mutant(
        "DP-SGD's start learns from private volumes",
        starting.initial_weights,
        "public_network(labelled, built)",
        "public_network(replace(data, public=True), built)",
        "check_a_start_of_dpsgd_is_public",
    ),
    Mutant(
        "private volumes pass for a start's public ones",
        starting.labelled_volumes,
        "require_others(",
        "(lambda *_: None)(",
        "check_a_start_of_dpsgd_is_public",
    ),
    Mutant(
        "any volumes pass for public ones",
        start.public_maps,
        "if not labelled.public",
        "if False",
        "check_a_start_of_dpsgd_is_public",
    ),
    Mutant(
        "DP-SGD forgets its start",
        train.network_for,
        "built.load_state_dict(settled.initial)",
        "pass",
        "check_dpsgd_begins_with_its_start_at_the_same_price",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
