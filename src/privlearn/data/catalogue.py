"""Where the files of named data sets lie, and whether they are the published ones.

What privlearn knows of a named data set (bounds, classes, splits) holds for those bytes and no
others, so others are refused.

The named data sets: what they are, of which files they consist, and where these can be had.

Addresses are fetched from with `privlearn data fetch`, and only what has the SHA-256 given here is
kept. It was compared with the digests that others have published of the same files.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import final

from privlearn import _storage
from privlearn.data import formats
from privlearn.data.dataset import Dataset
from privlearn.data.formats import Reader
from privlearn.errors import BadInput

#: Where to look for data directories besides the one given.
DATA_VARIABLE = "PRIVLEARN_DATA"


@final
@dataclass(frozen=True)
class Source:
    """Where a file can be had.

    Attributes:
        url: its address.
        sha256: of the file there, which may be packed.
    """

    url: str
    sha256: str

    @property
    def file(self) -> str:
        """The name under which it is kept."""
        return self.url.rpartition("/")[2]


@final
@dataclass(frozen=True)
class File:
    """A published file; on disk it may also lie gzipped, with .gz added to its name.

    Attributes:
        name: its name, unpacked.
        size: bytes, unpacked.
        sha256: of the unpacked content.
        source: where it can be had, if anywhere.
    """

    name: str
    size: int
    sha256: str
    source: Source | None = None

    def find(self, folder: Path) -> Path | None:
        """The file in `folder`, packed or not, if it is there."""
        paths = (
            path for path in (folder / self.name, folder / f"{self.name}.gz") if path.is_file()
        )
        return next(paths, None)

    def read(self, path: Path, dataset: str) -> bytes:
        """The unpacked content of the file at `path`.

        Raises:
            BadInput: it is not the published content.
        """
        try:
            packed = path.name != self.name
            with gzip.open(path) if packed else path.open("rb") as file:
                # a file that unpacks to more is not unpacked further
                content = file.read(self.size + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(
                f"{path} cannot be read: {error}. {_mend(dataset, self.source)}", path=str(path)
            ) from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            length = f"{len(content)} bytes" if len(content) <= self.size else "more bytes"
            raise BadInput(
                f"{path} is not the published file of {dataset}: it holds {length} with SHA-256 "
                f"{digest[:16]}..., expected {self.size} bytes with {self.sha256[:16]}... "
                f"{_mend(dataset, self.source)}. For data of your own use an .npz, .csv or "
                ".parquet file, and declare what is publicly known of them",
                path=str(path),
            )
        return content


def directories(data_dir: str | Path | None) -> list[Path]:
    """Where to look: the directory given, the one that PRIVLEARN_DATA names, the user's cache."""
    places = [data_dir, os.environ.get(DATA_VARIABLE), _storage.cache()]
    return [Path(place) for place in places if place]


def _reader(place: str) -> Reader:
    """A reader that is imported when it is called, of a place `package.module:function`."""
    module, _, name = place.partition(":")

    def read(files: Mapping[str, bytes]) -> Dataset:
        dataset: Dataset = getattr(import_module(module), name)(files)
        return dataset

    return read


def _mend(dataset: str, source: Source | None) -> str:
    if source is None:
        return "Get an unchanged copy"
    return f"Move it away and get it again with `privlearn data fetch {dataset}`"


@final
@dataclass(frozen=True)
class Form:
    """One way in which a data set may lie on disk: its files, and how rows are made of them."""

    read: Reader
    files: tuple[File, ...] = ()


@final
@dataclass(frozen=True)
class Named:
    """A data set that has a name.

    Attributes:
        what: what it holds, in a line.
        folder: where its files lie under a data directory.
        forms: the ways in which it may lie there; the first that is complete is read.
        licence: what is known of its licence.
    """

    what: str
    folder: str
    forms: tuple[Form, ...]
    licence: str

    @property
    def embedded(self) -> bool:
        """Whether it comes with scikit-learn."""
        return not self.forms[0].files

    @property
    def fetched(self) -> Form | None:
        """The form that can be fetched, if there is one."""
        return next(
            (form for form in self.forms if form.files and all(file.source for file in form.files)),
            None,
        )

    def find(self, directories: list[Path]) -> tuple[Form, dict[File, Path]] | None:
        """The first complete form in the first directory that has one, with the path of each
        file.
        """
        for directory in directories:
            for form in self.forms:
                paths = {file: file.find(directory / self.folder) for file in form.files}
                there = {file: path for file, path in paths.items() if path is not None}
                if len(there) == len(form.files):
                    return form, there
        return None


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_CC_BY = "CC BY 4.0 (UCI archive)"


def _idx(base: str, sha256: dict[str, tuple[str, str]]) -> tuple[File, ...]:
    """Four files of one format; the two digests are of the unpacked and of the gzipped file."""
    sizes = {
        "train-images-idx3-ubyte": 47040016,
        "train-labels-idx1-ubyte": 60008,
        "t10k-images-idx3-ubyte": 7840016,
        "t10k-labels-idx1-ubyte": 10008,
    }
    return tuple(
        File(name, size, sha256[name][0], Source(f"{base}{name}.gz", sha256[name][1]))
        for name, size in sizes.items()
    )


def _plain(base: str, name: str, size: int, sha256: str) -> File:
    """A file that is published as it is read."""
    return File(name, size, sha256, Source(base + name, sha256))


CATALOGUE: dict[str, Named] = {
    "digits": Named(
        "1797 images of digits, 8 x 8, 10 classes",
        "",
        (Form(formats.digits),),
        "CC BY 4.0 (UCI archive)",
    ),
    "breast-cancer": Named(
        "569 tumours, 30 measurements, 2 classes",
        "",
        (Form(formats.breast_cancer),),
        "CC BY 4.0 (UCI archive)",
    ),
    "mnist": Named(
        "70,000 images of digits, 28 x 28, 10 classes",
        "mnist",
        (
            Form(
                formats.idx("mnist"),
                _idx(
                    _MNIST,
                    {
                        "train-images-idx3-ubyte": (
                            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                        ),
                        "train-labels-idx1-ubyte": (
                            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                        ),
                        "t10k-images-idx3-ubyte": (
                            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                        ),
                        "t10k-labels-idx1-ubyte": (
                            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                        ),
                    },
                ),
            ),
        ),
        "none stated with the files (LeCun, Cortes, Burges)",
    ),
    "fashion-mnist": Named(
        "70,000 images of clothes, 28 x 28, 10 classes",
        "fashion-mnist",
        (
            Form(
                formats.idx("fashion-mnist"),
                _idx(
                    _FASHION,
                    {
                        "train-images-idx3-ubyte": (
                            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                        ),
                        "train-labels-idx1-ubyte": (
                            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                        ),
                        "t10k-images-idx3-ubyte": (
                            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                        ),
                        "t10k-labels-idx1-ubyte": (
                            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                        ),
                    },
                ),
            ),
        ),
        "MIT",
    ),
    "usps": Named(
        "9298 images of digits, 16 x 16, 10 classes, the split of 7291 and 2007",
        "usps",
        (
            Form(
                formats.usps,
                (
                    File(
                        "usps.npz",
                        1664471,
                        "8a558e74d6716dd4f3a84e66e356621ffd1f7b7b664a9816647041d5121dc197",
                    ),
                ),
            ),
        ),
        "none stated",
    ),
    "usps-all": Named(
        "11,000 images of digits, 16 x 16, 10 classes",
        "usps",
        (
            Form(
                formats.usps_all,
                (
                    _plain(
                        "https://github.com/mijungi/dp_mac/raw/2baeb81/data/usps/",
                        "usps_all.mat",
                        1484005,
                        "da2c8d6e8bd743da00c67020f444e0f28250dfbd16c55d8135c50ffa7719a5f9",
                    ),
                ),
            ),
        ),
        "none stated",
    ),
    "wisconsin": Named(
        "699 biopsies, 9 features from 1 to 10, 2 classes",
        "breast-cancer-wisconsin",
        (
            Form(
                formats.wisconsin,
                (
                    _plain(
                        _UCI + "breast-cancer-wisconsin/",
                        "breast-cancer-wisconsin.data",
                        19889,
                        "402c585309c399237740f635ef9919dc512cca12cbeb20de5e563a4593f22b64",
                    ),
                ),
            ),
        ),
        _CC_BY,
    ),
    "adult": Named(
        "48,842 census rows, 5 numbers and 8 categories, 2 classes",
        "adult",
        (
            Form(
                formats.adult,
                (
                    _plain(
                        _UCI + "adult/",
                        "adult.data",
                        3974305,
                        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                    ),
                    _plain(
                        _UCI + "adult/",
                        "adult.test",
                        2003153,
                        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                    ),
                ),
            ),
        ),
        _CC_BY,
    ),
    "cifar10": Named(
        "60,000 colour images, 3 x 32 x 32, 10 classes",
        "cifar10",
        (
            Form(
                formats.cifar10_binary,
                (
                    _plain(
                        "https://www.cs.toronto.edu/~kriz/",
                        "cifar-10-binary.tar.gz",
                        170052171,
                        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    ),
                ),
            ),
            Form(
                formats.cifar10_recoded,
                (
                    File(
                        "train_images.delta.xz",
                        84970684,
                        "58210a59157fcbf82fee925380b381090916eb9fc5a1c5c8bd7981892fa4b323",
                    ),
                    File(
                        "test_images.delta.xz",
                        16999204,
                        "c6ae340d328e1bd5f6648ff31d840d935406218427c4ed6016f782317dc1ba27",
                    ),
                    File(
                        "labels.npz",
                        62080,
                        "b96919d80964a63f14d163896784a776acd6868741e41eac6ca723cac32cd14d",
                    ),
                ),
            ),
        ),
        "none stated (Krizhevsky 2009)",
    ),
    "cifar10-features": Named(
        "the images of cifar10 as 1024 MobileNet features, 10 classes",
        "cifar10-features",
        (
            Form(
                formats.cifar10_features,
                (
                    File(
                        "features.u8.xz",
                        21081732,
                        "ecec839a79e25f80973cf3652ec4697be8f8e40809f9f1d6f1f2ef1c9b61741d",
                    ),
                    File(
                        "labels.npz",
                        60512,
                        "af3bc340dcb11d91e99a8eb292ed17af436e176149bf4d966f799e6824bff7f7",
                    ),
                ),
            ),
        ),
        "the network's weights: Apache-2.0",
    ),
    "hippocampus": Named(
        "260 MRI crops with masks, 20 x 28 x 20 voxels of 2 mm, 3 classes",
        "msd-hippocampus",
        (
            Form(
                _reader("privlearn_segmentation.hippocampus:hippocampus"),
                (
                    File(
                        "hippocampus.npz",
                        16986687,
                        "4c9efe15fd6440fe5cec2d755bf4f8833b449fd100fa1d36da0f56da29b66c69",
                    ),
                ),
            ),
        ),
        "CC BY-SA 4.0 (Medical Segmentation Decathlon)",
    ),
}
