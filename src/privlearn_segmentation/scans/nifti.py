"""NIfTI files: scans and masks read with everything in them looked at first, and masks written
beside their scan.

Files come from strangers. A header is read before anything that it declares is believed: no more is
unpacked than a scan of that declared size takes, and none larger than 512 x 512 x 512 voxels.
nibabel reads, and runs nothing.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import checked, count
from privlearn.errors import BadInput, first_line
from privlearn_segmentation.scans.grid import MOST_VOXELS, Grid

SUFFIXES = (".nii", ".nii.gz")
#: Most classes of a mask, the background included.
MOST_CLASSES = 256
#: Bytes of a header of each version; and before a file's voxels, extensions included.
_HEADERS, _MOST_BEFORE = {348: "Nifti1Image", 540: "Nifti2Image"}, 1 << 20
#: How far affines of a scan and its mask may differ, in mm.
_SAME_PLACE = 1e-2
#: Folders of scans and of their masks: to train on, and to test on; a row for each custom.
_FOLDERS = {
    "": (("images", "labels"), ("imagesTr", "labelsTr")),
    "_test": (("images_test", "labels_test"), ("imagesTs", "labelsTs")),
}
_PATIENTS = "patients.csv"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Scan:
    """A volume of a file, its axes turned to go to the right, to the front and upwards (RAS+), as
    near as they are.

    Attributes:
        values: shape (x, y, z), float32.
        image: what nibabel read, with the file's own axes, affine and header.
    """

    values: NDArray[np.float32]
    image: Any

    @property
    def affine(self) -> NDArray[np.float64]:
        """From voxels of the file to millimetres, (4, 4)."""
        return np.asarray(self.image.affine)

    def as_in_file(self, volume: NDArray[Any]) -> NDArray[Any]:
        """A volume with axes as `values` has them, with those of the file."""
        nib = _nibabel()
        back = nib.orientations.ornt_transform(
            [[0, 1], [1, 1], [2, 1]], nib.io_orientation(self.affine)
        )
        return np.ascontiguousarray(nib.apply_orientation(volume, back))


def is_scan(path: str | Path) -> bool:
    """Whether a path is called like a NIfTI file."""
    return str(path).lower().endswith(SUFFIXES)


def is_folder_of_scans(path: str | Path) -> bool:
    """Whether a folder has folders of scans to train on."""
    return any((Path(path) / images).is_dir() for images, _ in _FOLDERS[""])


@checked
def read_scan(path: str | Path) -> Scan:
    """The scan in a file, .nii or .nii.gz.

    Raises:
        BadInput: it is missing, damaged, too large or no scan of three dimensions; it holds values
            that are no finite numbers, or says not where its voxels lie; or nibabel is not
            installed.
    """
    path, nib = Path(path), _nibabel()
    with _refuse_damaged(path):
        image = _image(path)
        turned = nib.io_orientation(image.affine)
        with np.errstate(all="ignore"):
            values = np.asarray(image.dataobj, dtype=np.float32)
    if np.isnan(turned).any():
        raise BadInput(
            f"{path} has an affine that does not tell its axes apart: correct its header"
        )
    if not np.isfinite(values).all():
        raise BadInput(
            f"{path} has voxels that are not finite (NaN or infinity): fill them, and give the "
            "file again"
        )
    return Scan(np.ascontiguousarray(nib.apply_orientation(values, turned)), image)


@checked
def read_mask(path: str | Path, scan: Scan, classes: int) -> NDArray[np.uint16]:
    """The mask of a scan, with axes as its `values` have them: a class for each voxel, (x, y, z).

    Raises:
        BadInput: as `read_scan`; or it has another shape or lies elsewhere than the scan, or has
            other values than whole numbers from 0 to classes - 1.
    """
    path, classes = Path(path), count("classes", classes, least=2, most=MOST_CLASSES)
    mask = read_scan(path)
    if mask.image.shape != scan.image.shape:
        raise BadInput(
            f"{path} has shape {mask.image.shape}, and its scan {scan.image.shape}: expected a "
            "class for each voxel"
        )
    if not np.allclose(mask.affine, scan.affine, rtol=1e-4, atol=_SAME_PLACE):
        raise BadInput(
            f"{path} lies elsewhere than its scan: their affines differ. Bring both to one space"
        )
    values = mask.values
    if (values != np.rint(values)).any() or values.min() < 0 or values.max() >= classes:
        raise BadInput(
            f"{path} has values other than the {classes} declared classes: expected whole numbers "
            f"from 0 to {classes - 1}"
        )
    return values.astype(np.uint16)


@checked
def write_mask(path: str | Path, mask: Any, scan: Scan) -> Path:
    """Write a mask as a new NIfTI file, with the affine, the spacing and the units of its scan.

    The header is the scan's, but for what describes its intensities and its extensions, which may
    name a patient.

    Args:
        path: a new file, .nii or .nii.gz.
        mask: classes, whole numbers from 0 to 65,535, with axes as `scan.values` has them.
        scan: what `read_scan` gave.

    Raises:
        BadInput: a mask of another shape, or a file that is there already or can't be written.
    """
    path, array = Path(path), np.asarray(mask)
    whole = (
        array.dtype.kind in "iub" and array.size > 0 and 0 <= array.min() <= array.max() < 1 << 16
    )
    if array.shape != scan.values.shape or not whole:
        raise BadInput(
            f"the mask has shape {array.shape} and {array.dtype} values: expected whole numbers "
            f"from 0 to 65,535, shape {scan.values.shape}, as the scan"
        )
    if not is_scan(path):
        raise BadInput(
            f"{path} is not the name of a NIfTI file: expected one that ends in .nii or .nii.gz"
        )
    content = _bytes(
        scan.as_in_file(array.astype(np.uint8 if array.max() < 1 << 8 else np.uint16)), scan.image
    )
    # Without a time or a name in it: the same mask makes the same bytes.
    content = gzip.compress(content, mtime=0) if path.suffix.lower() == ".gz" else content
    created = False
    try:
        with path.open("xb") as file:
            created = True
            file.write(content)
    except OSError as error:
        if created:
            path.unlink(missing_ok=True)
        raise BadInput(
            f"{path} cannot be written: {error.strerror}. Give another; nothing is overwritten"
        ) from error
    return path


def read_folder(
    folder: str | Path, classes: int, grid: Grid, *, public: bool = False
) -> dict[str, Any]:
    """`x`, `y` and, where there, `x_test`, `y_test` and `groups` of a folder of scans and masks;
    and `remarks`.

    Scans lie in `images` and masks of the same names in `labels`, those to test on in `images_test`
    and `labels_test` (or imagesTr, labelsTr, imagesTs and labelsTs, as the Medical Segmentation
    Decathlon has them). `patients.csv`, with the columns file and patient, says whose each scan is.

    Args:
        folder: that folder.
        classes: how many there are, the background included.
        grid: what each volume is brought to.
        public: whether they are public: those in `images_test` may then have no masks.

    Raises:
        BadInput: as `read_scan` and `read_mask`, or scans without masks, or the other way round.
    """
    folder, classes = Path(folder), count("classes", classes, least=2, most=MOST_CLASSES)
    rows: dict[str, Any] = {}
    remarks, spacings, names = [], set(), {}
    for part, customs in _FOLDERS.items():
        images, labels = next(
            ((folder / i, folder / m) for i, m in customs if (folder / i).is_dir()), (None, None)
        )
        if images is None or labels is None:
            continue
        masked = labels.is_dir()
        if not masked and part and not public:
            remarks.append(f"{images} is not read: there are no masks in {labels}")
            continue
        names[part] = _names(images, labels, masked=masked or not part)
        scans, masks = [], []
        for name in names[part]:
            scan = read_scan(images / name)
            scans.append(grid.row(scan.values))
            spacings.add(
                tuple(round(float(size), 2) for size in np.linalg.norm(scan.affine[:3, :3], axis=0))
            )
            if masked:
                masks.append(grid.mask(read_mask(labels / name, scan, classes), classes))
        rows["x" + part] = np.stack(scans)
        if masked:
            rows["y" + part] = np.stack(masks).astype(np.uint8)
    if len(spacings) > 1:
        remarks.append(
            f"voxels are taken as they are, and {len(spacings)} spacings were met: resample to one "
            "before"
        )
    return rows | _groups(folder, names) | {"remarks": tuple(remarks)}


def _names(images: Path, labels: Path, *, masked: bool) -> list[str]:
    """The scans' names, in their order; each with a mask of that name, if they are to have some."""
    scans, masks = (
        [path.name for path in _scans_in(folder)] if folder.is_dir() else []
        for folder in (images, labels)
    )
    if not scans:
        raise BadInput(f"there is no scan in {images}: expected files that end in .nii or .nii.gz")
    if masked and not masks:
        raise BadInput(
            f"there is no mask in {labels}: expected one for each scan in {images}, of the same "
            "name"
        )
    odd = sorted({*scans} ^ {*masks}) if masked else []
    if odd:
        where, lacks = (images, labels) if odd[0] in scans else (labels, images)
        raise BadInput(
            f"{where / odd[0]} has no counterpart in {lacks}: expected scans and masks of the same "
            "names"
        )
    return scans


def _scans_in(folder: Path) -> list[Path]:
    """The NIfTI files in a folder, by name; hidden ones, which some systems pack beside the files,
    are none.
    """
    return sorted(
        path for path in folder.iterdir() if is_scan(path) and not path.name.startswith(".")
    )


def scans_at(path: str | Path) -> list[Path]:
    """The scan at a path, or all in a folder (or in its `images`, of a folder to train on)."""
    place = Path(path)
    if not place.is_dir():
        return [place]
    inner = next((place / images for images, _ in _FOLDERS[""] if (place / images).is_dir()), place)
    scans = _scans_in(inner)
    if not scans:
        raise BadInput(f"there is no scan in {inner}: expected files that end in .nii or .nii.gz")
    return scans


def _patients(path: Path) -> dict[str, str]:
    """The patient of each file that is listed, without white space around it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file)
            columns = [name.strip() for name in lines.fieldnames or []]
            if not {"file", "patient"} <= {*columns}:
                raise ValueError(f"its columns are {', '.join(columns)[:200] or 'none'}")
            lines.fieldnames = columns
            listed = [
                ((row["file"] or "").strip(), (row["patient"] or "").strip()) for row in lines
            ]
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(
            f"{path} cannot be read: {first_line(error)}. Expected columns file and patient, with "
            "a comma between them"
        ) from error
    whose: dict[str, str] = {}
    for name, patient in listed:
        if whose.setdefault(name, patient) != patient:
            raise BadInput(f"{path} gives {name} to two patients: expected one line for each scan")
    ids = {*whose.values()}
    if len({one.casefold() for one in ids}) < len(ids):
        raise BadInput(
            f"{path} has ids that differ by letter case alone: write each patient's in one way"
        )
    return whose


def _groups(folder: Path, names: dict[str, list[str]]) -> dict[str, Any]:
    """Whose the scans to train on are, where the folder says so.

    Raises:
        BadInput: a scan belongs to no patient or to two, ids differ by letter case alone, or a scan
            to test on is of a patient who is trained on.
    """
    path = folder / _PATIENTS
    if not path.exists():
        return {}
    whose = _patients(path)
    absent = next((name for files in names.values() for name in files if not whose.get(name)), None)
    if absent is not None:
        raise BadInput(
            f"{path} does not say whose {absent} is: expected a line for each scan, file and "
            "patient"
        )
    trained = [whose[name] for name in names[""]]
    both = {*trained} & {whose[name] for name in names.get("_test", [])}
    if both:
        raise BadInput(
            f"scans to test on are of patients who are trained on, by {path}: figures from them "
            "would be exact figures of these patients. Give scans of others"
        )
    return {"groups": np.array(trained)}


# What is in a file


def _nibabel() -> Any:
    """nibabel, silent about headers that it mends.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import nibabel
    except ImportError as error:
        raise BadInput(
            "NIfTI files are read by nibabel, which is not installed: pip install "
            "'privlearn[medical]', or give an .npz"
        ) from error
    return nibabel


@contextmanager
def _refuse_damaged(path: Path) -> Iterator[None]:
    """Whatever damaged files make gzip, numpy and nibabel raise, as an error of ours; nibabel's
    warnings are silent.
    """
    import warnings

    nib = _nibabel()
    try:
        with warnings.catch_warnings(), nib.imageglobals.LoggingOutputSuppressor():
            warnings.simplefilter("ignore")
            yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{path} cannot be read as NIfTI: {first_line(error)}. Get an unchanged copy"
        ) from error


def _image(path: Path) -> Any:
    """The file as nibabel reads it, of no more bytes than its header declares, with an affine that
    can be inverted.
    """
    if not path.is_file():
        raise BadInput(f"there is no file {path}: expected a scan that ends in .nii or .nii.gz")
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            content, kind, needed = _read_header(path, file)
            content = content[:needed] + file.read(max(0, needed - len(content)))
            more = bool(file.read(1))  # a packed file's sum is checked at its end
    except (EOFError, zlib.error) as error:
        raise BadInput(
            f"{path} is cut short or damaged: {first_line(error)}. Get an unchanged copy"
        ) from error
    if len(content) < needed:
        raise BadInput(
            f"{path} is cut short: its header declares {needed:,} bytes, and it holds "
            f"{len(content):,}"
        )
    if more:
        raise BadInput(
            f"{path} holds more than the {needed:,} bytes that its header declares: get an "
            "unchanged copy"
        )
    image = getattr(_nibabel(), kind).from_bytes(content)
    affine = np.asarray(image.affine, dtype=np.float64)
    volume = abs(float(np.linalg.det(affine[:3, :3]))) if np.isfinite(affine).all() else 0.0
    if not (1e-9 < volume < 1e9 and np.isfinite(image.header.get_zooms()).all()):
        raise BadInput(
            f"{path} has an affine or a spacing that does not place voxels in space: correct its "
            "header"
        )
    return image


def _read_header(path: Path, file: Any) -> tuple[bytes, str, int]:
    """The beginning of a file, which version of NIfTI it is, and how many bytes it should have.

    Raises:
        BadInput: it is none, or declares what is no scan of three dimensions, or too large a one.
    """
    head = file.read(max(_HEADERS))
    sizes = {int.from_bytes(head[:4], order): order for order in ("little", "big")}
    version = next((size for size in _HEADERS if size in sizes and len(head) >= size), None)
    if version is None:
        raise BadInput(
            f"{path} is not a NIfTI file, or is cut short in its header: get an unchanged copy"
        )
    kind = _HEADERS[version]
    header = getattr(_nibabel(), kind).header_class(head[:version])
    shape, values, before = (
        header.get_data_shape(),
        header.get_data_dtype(),
        header.get_data_offset(),
    )
    if len(shape) != 3 or min(shape) < 1:
        raise BadInput(
            f"{path} has shape {tuple(map(int, shape))}: expected a scan of three dimensions. Give "
            "series and several channels as an .npz"
        )
    if math.prod(map(int, shape)) > MOST_VOXELS:
        raise BadInput(
            f"{path} declares {tuple(map(int, shape))} voxels: expected at most {MOST_VOXELS:,} "
            "together"
        )
    if values.kind not in "fiu" or not version <= before <= _MOST_BEFORE:
        raise BadInput(
            f"{path} holds {values} values from byte {before} on: expected plain numbers behind "
            "its header"
        )
    return head, kind, int(before) + math.prod(map(int, shape)) * values.itemsize


def _bytes(mask: NDArray[Any], image: Any) -> bytes:
    """A NIfTI file with the header of another, but for what describes its intensities, and for its
    extensions.
    """
    header = image.header.copy()
    header.extensions.clear()
    header.set_data_dtype(mask.dtype)
    for name in ("cal_min", "cal_max"):
        header[name] = 0
    for name in ("descrip", "aux_file"):
        header[name] = b""
    header.set_slope_inter(1, 0)
    content: bytes = type(image)(mask, image.affine, header).to_bytes()
    return content
