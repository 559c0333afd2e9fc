"""Named checks of scans in files: one scan changes one row, masks lie where their scan does, and a
start is public.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from numpy.typing import NDArray

import privlearn as pv
from privlearn.cli.request import Request
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.training.train import fit, settle_for
from privlearn_segmentation import Start, Training, map_losses, public_network
from privlearn_segmentation.pages import starting
from privlearn_segmentation.scans import Grid, read_mask, read_scan, write_mask
from tests.support.checks import check, must_raise
from tests.volumes.checks import CLASSES, scans_of, small_net

#: Left to right, and oblique with other spacings and other directions.
PLAIN = np.diag([1.0, 1, 1, 1])
OBLIQUE = np.array([[0, -2, 0, 5], [0, 0.2, 1.5, -3], [-1, 0.1, 0, 9], [0, 0, 0, 1.0]])
SPEC = "8x8x8"


def scan_file(
    path: Path, values: NDArray[Any], affine: NDArray[Any] = PLAIN, kind: Any = nib.Nifti1Image
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = kind(values, affine)
    image.header.set_xyzt_units("mm", "sec")
    image.set_sform(affine, 1)
    image.set_qform(np.diag([2.0, 2, 2, 1]), 3)
    nib.save(image, path)
    return path


def folder_of(
    folder: Path, rows: int, part: str = "", seed: int = 0, shape: tuple[int, ...] = (7, 8, 9)
) -> Path:
    """Scans and masks of odd sizes, the last one oblique."""
    rng = np.random.default_rng(seed)
    for row in range(rows):
        affine = OBLIQUE if row == rows - 1 else PLAIN
        values, mask = (
            rng.gamma(2.0, 50.0, shape).astype(np.float32),
            rng.integers(0, CLASSES, shape).astype(np.uint8),
        )
        scan_file(folder / f"images{part}" / f"s{row}.nii.gz", values, affine)
        scan_file(folder / f"labels{part}" / f"s{row}.nii.gz", mask, affine)
    return folder


@contextmanager
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@check
def check_one_scan_changes_one_row() -> None:
    """Whatever a scan or a mask holds, the rows of the others are the same to the bit."""
    with temporary() as folder:
        folder_of(folder, 4)
        before = pv.load(folder, classes=CLASSES, grid=SPEC)
        values = np.linspace(-5.0, 1e6, 9 * 4 * 5, dtype=np.float32).reshape(9, 4, 5)
        scan_file(folder / "images" / "s1.nii.gz", values, OBLIQUE)
        scan_file(folder / "labels" / "s1.nii.gz", (values > 10).astype(np.uint8), OBLIQUE)
        after = pv.load(folder, classes=CLASSES, grid=SPEC)
    for one, other in ((before.x, after.x), (before.y, after.y)):
        assert np.flatnonzero((one != other).reshape(4, -1).any(1)).tolist() == [1]
    assert before.x.min() >= 0
    assert after.x.max() <= 1


@check
def check_masks_lie_where_their_scans_do() -> None:
    """A mask comes back from its file as it was, and nibabel finds its scan's affine, spacing and
    voxels there.
    """
    with temporary() as folder:
        for number, (affine, kind) in enumerate(
            [(PLAIN, nib.Nifti1Image), (OBLIQUE, nib.Nifti1Image), (OBLIQUE, nib.Nifti2Image)]
        ):
            values = np.random.default_rng(number).normal(size=(5, 6, 9)).astype(np.float32)
            scan = read_scan(scan_file(folder / f"{number}.nii.gz", values, affine, kind))
            mask = (scan.values > 0).astype(np.int64) * 2
            out = write_mask(folder / f"mask{number}.nii.gz", mask, scan)
            written, source = nib.load(out), nib.load(folder / f"{number}.nii.gz")
            assert np.array_equal(np.asarray(written.dataobj), 2 * (np.asarray(source.dataobj) > 0))
            assert np.array_equal(written.affine, source.affine)
            assert written.header.get_zooms() == source.header.get_zooms()
            for name in ("sform_code", "qform_code", "xyzt_units"):
                assert written.header[name] == source.header[name]
            assert np.array_equal(read_mask(out, scan, CLASSES), mask)


@check
def check_grids_can_be_undone() -> None:
    """A mask on the grid goes back to where it came from, padded or cropped, along each axis, whole
    or halved.
    """
    rng = np.random.default_rng(0)
    for shape in ((6, 9, 11), (13, 8, 7)):
        mask = rng.integers(0, CLASSES, shape)
        grid = Grid((8, 8, 8))
        back = grid.restored(grid.mask(mask, CLASSES), shape)
        kept = grid.restored(np.ones(grid.shape, np.int64), shape).astype(bool)
        assert np.array_equal(back[kept], mask[kept])
        assert not back[~kept].any()
        assert kept.sum() == np.prod([min(side, 8) for side in shape])
    halved = Grid((8, 8, 8), halved=True)
    blocks = (
        np.random.default_rng(1)
        .integers(0, CLASSES, (4, 4, 4))
        .repeat(2, 0)
        .repeat(2, 1)
        .repeat(2, 2)
    )
    assert np.array_equal(halved.restored(halved.mask(blocks, CLASSES), (8, 8, 8)), blocks)


@check
def check_patients_who_are_trained_on_are_not_tested_on() -> None:
    """With patients named, several scans are one person's; none of theirs is among those to test
    on.
    """
    with temporary() as folder:
        folder_of(folder_of(folder, 3), 2, "_test", 1)
        for path in (folder / "images_test", folder / "labels_test"):
            for own in sorted(path.iterdir()):
                own.rename(path / f"t{own.name}")
        lines = [
            "file,patient",
            "s0.nii.gz,a",
            "s1.nii.gz,b",
            "s2.nii.gz,a",
            "ts0.nii.gz,c",
            "ts1.nii.gz,d",
        ]
        (folder / "patients.csv").write_text("\n".join(lines))
        data = pv.load(folder, classes=CLASSES, grid=SPEC)
        assert data.groups.tolist() == ["a", "b", "a"]
        assert data.examples == 2
        (folder / "patients.csv").write_text("\n".join([*lines[:-1], "ts1.nii.gz,b"]))
        must_raise(pv.errors.BadInput, lambda: pv.load(folder, classes=CLASSES, grid=SPEC))
        (folder / "patients.csv").write_text("\n".join(lines).replace("s1.nii.gz,b", "s1.nii.gz,"))
        must_raise(pv.errors.BadInput, lambda: pv.load(folder, classes=CLASSES, grid=SPEC))


@check
def check_a_scan_is_of_one_patient() -> None:
    """White space and byte order marks change no id; a second patient, or another case of the
    letters, is refused.
    """
    with temporary() as folder:
        folder_of(folder, 3)
        patients = folder / "patients.csv"
        patients.write_text(
            "\ufefffile, patient\ns0.nii.gz, a\ns1.nii.gz,b \ns2.nii.gz,a\n", encoding="utf-8"
        )
        assert pv.load(folder, classes=CLASSES, grid=SPEC).groups.tolist() == ["a", "b", "a"]
        whole = "file,patient\ns0.nii.gz,a\ns1.nii.gz,b\ns2.nii.gz,a\n"
        for text, said in (
            (whole + "s2.nii.gz,b\n", "to two patients"),
            (whole.replace(",b", ",A"), "letter case"),
            (whole.replace(",", ";"), "its columns are file;patient"),
        ):
            patients.write_text(text)
            assert said in str(
                must_raise(pv.errors.BadInput, lambda: pv.load(folder, classes=CLASSES, grid=SPEC))
            )


def built(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return small_net()


def begun(private: Dataset, labelled: Dataset, **more: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """A settled run of DP-SGD, and the weights that it begins with."""
    settled, _ = settle_for(
        private,
        epsilon=8.0,
        delta=1e-3,
        examples=private.examples,
        model="tests.scans.checks:built",
        clip="layer",
        epochs=1,
        **more,
    )
    return settled, starting.initial_weights(settled, private, labelled)()


@check
def check_a_start_of_dpsgd_is_public() -> None:
    """The weights that DP-SGD begins with are those of public volumes, whatever the private ones
    hold.
    """
    labelled = scans_of(3, 7, public=True)
    quick: Any = public_network.__wrapped__
    usual = quick.__kwdefaults__
    quick.__kwdefaults__ = usual | {"learning": Training(steps=5)}
    try:
        one, other = (begun(scans_of(12, seed), labelled)[1] for seed in (1, 2))
        assert {name: own.tolist() for name, own in one.items()} == {
            n: own.tolist() for n, own in other.items()
        }
        assert any(bool((one[name] != own).any()) for name, own in small_net().state_dict().items())
        request = Request.of("train", public="public.npz", data="private.npz", start="public")
        for public in (replace(scans_of(12, 1), public=True), replace(labelled, y=None)):
            with_public(
                public,
                lambda: must_raise(
                    pv.errors.BadInput, lambda: starting.labelled_volumes(request, scans_of(12, 1))
                ),
            )
        must_raise(
            pv.errors.BadInput, lambda: begun(scans_of(12, 1), replace(labelled, public=False))
        )
        start = Start.learn(
            labelled,
            scans_of(4, 8, public=True),
            small_net(),
            learning=Training(steps=5),
            tuning=Training(steps=1),
        )
        same = public_network(labelled, small_net(), learning=Training(steps=5))
        assert all(
            map(torch.equal, start.network.state_dict().values(), same.state_dict().values())
        )
    finally:
        quick.__kwdefaults__ = usual


def with_public(public: Dataset, then: Any) -> None:
    usual = starting.public_rows
    starting.public_rows = lambda *_: public
    try:
        then()
    finally:
        starting.public_rows = usual


@check
def check_dpsgd_begins_with_its_start_at_the_same_price() -> None:
    """A run that hardly moves ends where it began; what it is charged, and its noise, are those of
    a run without.
    """
    private, given = scans_of(12), small_net(5).state_dict()
    still = settle_for(
        private,
        epsilon=8.0,
        delta=1e-3,
        examples=12,
        model="tests.scans.checks:built",
        clip="layer",
        epochs=1,
        learning_rate=1e-30,
        optimizer="SGD",
    )[0]
    results = [
        fit(own, private, Streams.new(1), loss=map_losses)
        for own in (still, replace(still, initial=given))
    ]
    ended = list(results[1].model.children())[-1].state_dict()
    assert all(torch.allclose(own, ended[name], rtol=0, atol=1e-20) for name, own in given.items())
    assert results[0].ledger.event == results[1].ledger.event
    assert results[0].plan == results[1].plan
