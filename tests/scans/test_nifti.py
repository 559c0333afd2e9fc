"""NIfTI files that strangers send, folders of scans, and the command line from files to files."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn_segmentation import Training, public_network
from privlearn_segmentation.scans import (
    Grid,
    nifti,
    prepared,
    read_mask,
    read_scan,
    segmented,
    write_mask,
)
from tests.scans.checks import CLASSES, OBLIQUE, PLAIN, SPEC, folder_of, scan_file

VALUES = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def with_header(path: Path, **fields: Any) -> Path:
    """A plain file whose header then says something else."""
    content = bytearray(scan_file(path, VALUES).read_bytes())
    header = nib.Nifti1Header(bytes(content[:348]), check=False)
    for name, value in fields.items():
        header[name] = value
    path.write_bytes(header.binaryblock + bytes(content[348:]))
    return path


def saved(path: Path, values: Any, affine: Any = PLAIN) -> Path:
    nib.save(nib.Nifti1Image(values, affine), path)
    return path


def cut(path: Path, scan: Path, keep: float) -> Path:
    content = scan.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


def bomb(path: Path) -> Path:
    """A header of a small scan, before hundreds of megabytes of zeros."""
    whole = scan_file(path.with_suffix(".tmp.nii"), VALUES).read_bytes()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(whole)
        for _ in range(300):
            file.write(bytes(1 << 20))
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda at: at / "no.nii.gz", "there is no file"),
    "empty": (lambda at: cut(at / "a.nii", scan_file(at / "b.nii", VALUES), 0), "not a NIfTI file"),
    "in the header": (
        lambda at: cut(at / "a.nii", scan_file(at / "b.nii", VALUES), 0.3),
        "cut short",
    ),
    "in the voxels": (
        lambda at: cut(at / "a.nii", scan_file(at / "b.nii", VALUES), 0.8),
        "cut short",
    ),
    "packed, cut": (
        lambda at: cut(at / "a.nii.gz", scan_file(at / "b.nii.gz", VALUES), 0.8),
        "cut short or damaged",
    ),
    "not packed": (
        lambda at: cut(at / "a.nii.gz", scan_file(at / "b.nii", VALUES), 1),
        "cannot be read as NIfTI",
    ),
    "huge": (
        lambda at: with_header(at / "a.nii", dim=[3, 32767, 32767, 32767, 1, 1, 1, 1]),
        "expected at most",
    ),
    "negative": (
        lambda at: with_header(at / "a.nii", dim=[3, -3, 4, 5, 1, 1, 1, 1]),
        "three dimensions|NIfTI",
    ),
    "a series": (
        lambda at: saved(at / "a.nii", np.zeros((3, 4, 5, 2), np.float32)),
        "three dimensions",
    ),
    "a slice": (lambda at: saved(at / "a.nii", np.zeros((3, 4), np.float32)), "three dimensions"),
    "complex": (lambda at: saved(at / "a.nii", np.zeros((3, 4, 5), np.complex64)), "plain numbers"),
    "NaN affine": (
        lambda at: with_header(at / "a.nii", srow_x=[np.nan] * 4),
        "does not place voxels in space",
    ),
    "flat affine": (
        lambda at: with_header(at / "a.nii", srow_x=[0, 1, 0, 0]),
        "does not place voxels in space",
    ),
    "NaN voxels": (
        lambda at: scan_file(at / "a.nii", np.where(VALUES == 7, np.nan, VALUES)),
        "not finite",
    ),
    "infinite scale": (
        lambda at: with_header(at / "a.nii", scl_slope=3e38),
        "not finite|cannot be read",
    ),
    "voxels far away": (lambda at: with_header(at / "a.nii", vox_offset=3e9), "behind its header"),
    "a bomb": (lambda at: bomb(at / "a.nii.gz"), "holds more than"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name: str, tmp_path: Path) -> None:
    make, said = HOSTILE[name]
    path = make(tmp_path)
    with pytest.raises(BadInput, match=said) as caught:
        read_scan(path)
    assert path.name in str(caught.value)


WRONG_MASKS: dict[str, tuple[Any, Any, str]] = {
    "another shape": (
        np.zeros((3, 4, 6), np.uint8),
        PLAIN,
        r"has shape \(3, 4, 6\), and its scan \(3, 4, 5\)",
    ),
    "another place": (np.zeros((3, 4, 5), np.uint8), OBLIQUE, "lies elsewhere"),
    "too many classes": (np.full((3, 4, 5), CLASSES, np.uint8), PLAIN, "declared classes"),
    "below 0": (np.full((3, 4, 5), -1, np.int16), PLAIN, "declared classes"),
    "shares": (np.full((3, 4, 5), 0.5, np.float32), PLAIN, "declared classes"),
    "a series": (np.zeros((3, 4, 5, 1), np.uint8), PLAIN, "three dimensions"),
}


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_masks_of_no_such_scan_are_refused(name: str, tmp_path: Path) -> None:
    mask, affine, said = WRONG_MASKS[name]
    scan = read_scan(scan_file(tmp_path / "scan.nii.gz", VALUES))
    with pytest.raises(BadInput, match=said):
        read_mask(saved(tmp_path / "mask.nii.gz", mask, affine), scan, CLASSES)


def test_written_masks_take_nothing_along(tmp_path: Path) -> None:
    """Extensions and texts of a scan may name a patient; the same mask makes the same bytes; none
    is replaced.
    """
    image = nib.Nifti1Image(VALUES, OBLIQUE)
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"Jane Doe"))
    image.header["descrip"] = b"Jane Doe"
    nib.save(image, tmp_path / "scan.nii.gz")
    scan = read_scan(tmp_path / "scan.nii.gz")
    mask = np.ones(scan.values.shape, np.int64)
    files = [write_mask(tmp_path / name, mask, scan) for name in ("a.nii.gz", "b.nii.gz", "c.nii")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"Jane" not in files[2].read_bytes()
    for wrong, said in (
        (lambda: write_mask(files[0], mask, scan), "nothing is overwritten"),
        (lambda: write_mask(tmp_path / "d.png", mask, scan), "not the name of a NIfTI file"),
        (lambda: write_mask(tmp_path / "d.nii", mask[1:], scan), "the mask has shape"),
        (lambda: write_mask(tmp_path / "d.nii", mask * 0.5, scan), "float64 values"),
        (lambda: write_mask(tmp_path / "d.nii", mask - 2, scan), "whole numbers"),
    ):
        with pytest.raises(BadInput, match=said):
            wrong()
    assert not (tmp_path / "d.nii").exists()


def test_a_grid_is_what_prepared_makes() -> None:
    rng = np.random.default_rng(0)
    image, mask = rng.gamma(2.0, size=(7, 9, 6)), rng.integers(0, CLASSES, (7, 9, 6))
    for halved in (False, True):
        x, y = prepared(image, mask, (8, 8, 8), CLASSES, halve=halved)
        grid = Grid((8, 8, 8), halved)
        assert Grid.parse(grid.spec) == grid
        assert np.array_equal(grid.row(image), x)
        assert np.array_equal(grid.mask(mask, CLASSES), y)
    for wrong in (
        "8x8",
        "8x8x8/3",
        "7x8x8",
        "0x8x8",
        "8x8x8 ",
        "999999999x8x8",
        "4096x4096x4096",
        "８x8x8",
    ):
        with pytest.raises(BadInput, match="grid"):
            Grid.parse(wrong)


def test_folders_that_are_not_whole_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load: Callable[..., Any] = lambda **more: pv.load(  # noqa: E731
        tmp_path, **{"classes": CLASSES, "grid": SPEC} | more
    )
    folder_of(folder_of(tmp_path, 2), 1, "_test", 1)
    (tmp_path / "images" / "._s0.nii.gz").write_bytes(b"of another system")
    data = load()
    assert (data.x.shape, data.y.shape, data.x_test.shape) == (
        (2, 1, 8, 8, 8),
        (2, 8, 8, 8),
        (1, 1, 8, 8, 8),
    )
    assert "2 spacings" in data.remarks[0]
    for more, said in (
        ({"classes": None}, "declare the classes"),
        ({"grid": None}, "declare the classes"),
        ({"value_range": (0, 1)}, "leave out value_range="),
        ({"grid": "8x8"}, "can't be read"),
        ({"classes": 2}, "declared classes"),
        ({"classes": 300}, "classes"),
    ):
        with pytest.raises(BadInput, match=said):
            load(**more)
    (tmp_path / "labels_test" / "s0.nii.gz").unlink()
    with pytest.raises(BadInput, match="there is no mask in"):
        load()
    (tmp_path / "labels_test").rmdir()
    assert load().x_test is None
    assert load(public=True).x_test.shape == (1, 1, 8, 8, 8)
    assert load(public=True).y_test is None
    with pytest.raises(BadInput, match="grid= goes with a folder"):
        pv.load("digits", grid=SPEC)
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    with pytest.raises(BadInput, match=r"privlearn\[medical\]"):
        load()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a run that begins as a network which learned shortly from public scans."""
    pytest.importorskip("monai", reason="MONAI is not here: pip install 'privlearn[medical]'")
    folder_of(folder_of(tmp_path / "private", 6), 3, "_test", 1)
    folder_of(tmp_path / "public", 2, seed=2)
    quick: Any = public_network.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        quick, "__kwdefaults__", quick.__kwdefaults__ | {"learning": Training(steps=5)}
    )
    return [
        "train",
        "--data",
        str(tmp_path / "private"),
        "--classes",
        "3",
        "--grid",
        SPEC,
        "--public",
        str(tmp_path / "public"),
        "--start",
        "public",
        "--model",
        "unet:8,16",
        "--clip",
        "layer",
        "--epochs",
        "1",
        "--examples",
        "6",
        "--epsilon",
        "8",
        "--delta",
        "1e-3",
        "--out",
        str(tmp_path / "model"),
    ]


def run(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(command)
    out, err = capsys.readouterr()
    return code, out, " ".join(err.split())


def test_from_scans_to_masks(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(files, capsys)
    assert code == 0, err
    assert "a public network is trained first, on 2 public volumes with masks" in err
    assert "public network alone" in out
    model = tmp_path / "model"
    stated = json.loads((model / "privacy.json").read_text())["facts"]["public_start"]
    assert (stated["volumes_with_masks"], stated["test_rows"]) == (2, 3)
    card = " ".join((model / "README.md").read_text().split())
    assert (
        "| began as | a network that learned from 2 public volumes with masks, before any "
        "private one"
    ) in card
    assert (
        f"| that network alone, on the 3 test rows | dice {stated['test_metrics']['dice']:.4f}"
        in card
    )
    assert (
        "The public volumes that the network had learned from" in (model / "card.html").read_text()
    )
    assert pv.verify(model).ok
    loaded = pv.load_model(model)
    assert Grid.parse(loaded.grid) == Grid.parse(SPEC)

    source = tmp_path / "private" / "images" / "s5.nii.gz"  # the oblique one
    masks = tmp_path / "masks"
    assert (
        run(
            ["predict", str(model), "--data", str(source), "--out", str(tmp_path / "m.nii.gz")],
            capsys,
        )[0]
        == 0
    )
    code, _, err = run(
        ["predict", str(model), "--data", str(source.parent), "--out", str(masks)], capsys
    )
    assert code == 0, err
    assert "6 masks are in" in err
    written, scan = nib.load(tmp_path / "m.nii.gz"), read_scan(source)
    assert np.array_equal(written.affine, scan.affine)
    assert written.header.get_zooms() == scan.image.header.get_zooms()
    predicted = loaded.predict(Grid.parse(SPEC).row(scan.values)).numpy()
    whole = Grid.parse(SPEC).restored(predicted, scan.values.shape)
    assert np.array_equal(read_scan(tmp_path / "m.nii.gz").values, whole)
    assert (masks / source.name).read_bytes() == (tmp_path / "m.nii.gz").read_bytes()
    assert sorted(path.name for path in masks.iterdir()) == [
        f"s{number}.nii.gz" for number in range(6)
    ]

    for data, more, said in (
        (source, ["--out", str(tmp_path / "m.nii.gz")], "exists already"),
        (source, ["--out", str(tmp_path / "m.csv")], "ends in .nii or .nii.gz"),
        (source, [], "masks are files"),
        (source.parent, ["--out", str(masks)], "cannot be made"),
        (source.parent, ["--out", "x.nii.gz"], "a new folder for their masks"),
        (source, ["--out", "x.nii", "--grid", "16x8x8"], "was trained on 8x8x8"),
        (source, ["--out", "x.nii", "--part", "test"], "other files than scans"),
        (model / "privacy.json", ["--out", "x.npz", "--grid", SPEC], "--grid is for NIfTI scans"),
    ):
        code, _, err = run(["predict", str(model), "--data", str(data), *more], capsys)
        assert code == 2
        assert said in err

    wide = tmp_path / "windows.nii.gz"
    assert (
        run(
            ["predict", str(model), "--data", str(source), "--out", str(wide), "--windows"], capsys
        )[0]
        == 0
    )
    expected = segmented(loaded.predict_proba, Grid.parse(SPEC), scan.values)
    assert np.array_equal(read_scan(wide).values, expected)
    assert np.array_equal(nib.load(wide).affine, scan.affine)
    code, _, err = run(
        ["predict", str(model), "--data", str(model / "privacy.json"), "--windows"], capsys
    )
    assert (code, "--windows is for NIfTI scans" in err) == (2, True)

    damaged = source.parent / "s1.nii.gz"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    rest = tmp_path / "rest"
    code, _, err = run(
        ["predict", str(model), "--data", str(source.parent), "--out", str(rest)], capsys
    )
    assert code == 1
    assert "5 masks are in" in err
    assert "s1.nii.gz is cut short or damaged" in err
    assert "1 of 6 scans could not be read" in err
    assert sorted(path.name for path in rest.iterdir()) == [
        f"s{number}.nii.gz" for number in (0, 2, 3, 4, 5)
    ]
    code, _, err = run(
        ["predict", str(model), "--data", str(damaged), "--out", str(tmp_path / "n.nii.gz")], capsys
    )
    assert code == 2
    assert "cut short or damaged" in err


@pytest.mark.parametrize("shape", [(20, 31, 16), (5, 9, 12), (8, 8, 8), (33, 8, 7)], ids=str)
@pytest.mark.parametrize("spec", ["8x8x8", "8x12x8/2"])
def test_windows_cover_every_voxel(spec: str, shape: tuple[int, ...]) -> None:
    """A model that looks at one voxel alone says the same by windows as on the whole scan, whatever
    its size.
    """
    image, seen = np.random.default_rng(0).normal(size=shape), []

    def probabilities(rows: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(rows.shape[1:]))
        return torch.cat([1 - rows, rows], 1)

    grid = Grid.parse(spec)
    mask = segmented(probabilities, grid, image)
    even = tuple(
        side + side % 2 for side in (max(a, b) for a, b in zip(shape, grid.size, strict=True))
    )
    whole = Grid(even, grid.halved)
    assert mask.shape == shape
    assert np.array_equal(mask, whole.restored((whole.row(image)[0] > 0.5).astype(np.int64), shape))
    assert set(seen) == {(1, *grid.shape)}


def test_windows_need_a_scan_of_three_dimensions() -> None:
    with pytest.raises(BadInput, match="three dimensions"):
        segmented(lambda rows: rows, Grid.parse("8x8x8"), np.zeros((2, 8, 8, 8)))
    with pytest.raises(BadInput, match="overlap"):
        segmented(lambda rows: rows, Grid.parse("8x8x8"), np.zeros((8, 8, 8)), overlap=1.0)


REFUSED = {
    "no public volumes": (
        lambda c: [*c[: c.index("--public")], *c[c.index("--start") :]],
        "give --public PATH",
    ),
    "a validation schedule": (
        lambda c: [*c, "--schedule", "validation:k=0.7"],
        "leave one of them out",
    ),
    "features": (lambda c: [*c, "--features", "norm:power=1"], "--features is given"),
    "another method": (
        lambda c: [own for own in [*c, "--method", "pate"] if own not in ("--clip", "layer")],
        "does not go with --start",
    ),
    "no masks of classes": (
        lambda c: [
            "train",
            "--data",
            "digits",
            "--start",
            "public",
            "--epsilon",
            "1",
            "--out",
            c[-1],
        ],
        "is for maps of classes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_starts_that_do_not_go_are_refused(
    name: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    change, said = REFUSED[name]
    code, _, err = run(change(files), capsys)
    assert code == 2
    assert said in err


def test_private_scans_are_no_start(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files[files.index("--public") + 1] = str(tmp_path / "private")
    code, _, err = run(files, capsys)
    assert code == 2
    assert "volumes of --public" in err


def test_a_start_is_explained_and_replayed_by_its_weights(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run trains nothing; a recorded run is taken again from the same start."""
    code, out, err = run([*files, "--dry-run"], capsys)
    assert code == 0, err
    assert "is trained first" not in err
    record = tmp_path / "record"
    options = list(files[1:])
    at = options.index("--out")
    del options[at : at + 2]
    assert run(["commit", *options, "--out", str(record)], capsys)[0] == 0
    code, _, err = run([*files, "--transcript", str(record), "--challenge", "ab" * 16], capsys)
    assert code == 0, err
    model = files[files.index("--out") + 1]
    code, out, err = run(["replay", str(record), "--published", model], capsys)
    assert code == 0, out + err


def test_private_scans_are_not_public(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a copy of one, nor another scan of a patient who has private ones; nothing is
    trained.
    """
    private, public = tmp_path / "private", tmp_path / "public"
    for folder in ("images", "labels"):
        shutil.copy(private / folder / "s0.nii.gz", public / folder / "copy.nii.gz")
    code, _, err = run(files, capsys)
    assert (code, "are private ones" in err) == (2, True), err
    for folder in ("images", "labels"):
        (public / folder / "copy.nii.gz").unlink()
    (private / "images_test").rename(tmp_path / "unused")
    for folder, patients in ((private, "abcdef"), (public, "xfyz")):
        names = sorted(path.name for path in (folder / "images").iterdir())
        lines = [f"{name},{patient}" for name, patient in zip(names, patients, strict=False)]
        (folder / "patients.csv").write_text("\n".join(["file,patient", *lines]))
    code, _, err = run([*files, "--rows-per-person", "1"], capsys)
    assert (code, "of patients who have private ones" in err) == (2, True), err
    assert not (tmp_path / "model").exists()


def test_a_folder_that_is_not_there_is_named(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    files[files.index("--data") + 1] += "e"
    code, _, err = run(files, capsys)
    assert (code, "there is no folder" in err) == (2, True), err


def test_sizes_are_believed_up_to_a_bound() -> None:
    assert nifti.MOST_VOXELS == 512**3


def test_patients_are_the_unit(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With patients named, DP-SGD protects all scans of one, and refuses to take scans for
    patients.
    """
    whose = [f"s{scan}.nii.gz,{patient}" for scan, patient in enumerate("aabbcc")]
    (tmp_path / "private" / "images_test").rename(tmp_path / "unused")
    (tmp_path / "private" / "patients.csv").write_text("\n".join(["file,patient", *whose]))
    code, _, err = run(files, capsys)
    assert code == 2
    assert "--rows-per-person" in err
    files[files.index("--examples") + 1] = "3"
    code, out, err = run([*files, "--rows-per-person", "1"], capsys)
    assert code == 0, err
    claim = json.loads((tmp_path / "model" / "privacy.json").read_text())["claim"]
    assert claim["rows_per_person"] == 1
    assert "person" in out
