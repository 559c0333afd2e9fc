"""Where the files of named data sets lie, and whether they are the published ones.

What privlearn knows of a named data set (bounds, classes, splits) holds for those bytes and no others, so others are refused.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

from privlearn.errors import BadInput

#: Where to look for data directories besides the one given.
DATA_VARIABLE = "PRIVLEARN_DATA"


@final
@dataclass(frozen=True)
class Source:
    """Where a file can be had.

    Attributes:
        url: its address.
        sha256: of what is found there, which may be packed.
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
        found = (path for path in (folder / self.name, folder / f"{self.name}.gz") if path.is_file())
        return next(found, None)

    def read(self, path: Path, dataset: str) -> bytes:
        """The unpacked content of the file at `path`.

        Raises:
            BadInput: it is not the published content.
        """
        try:
            packed = path.name != self.name
            with gzip.open(path) if packed else path.open("rb") as file:
                content = file.read(self.size + 1)  # a file that unpacks to more is not unpacked further
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"{path} cannot be read: {error}. {_mend(dataset, self.source)}", path=str(path)) from error
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            length = f"{len(content)} bytes" if len(content) <= self.size else "more bytes"
            raise BadInput(
                f"{path} is not the published file of {dataset}: it holds {length} with SHA-256 {found[:16]}..., expected "
                f"{self.size} bytes with {self.sha256[:16]}... {_mend(dataset, self.source)}. For data of your own use "
                "an .npz, .csv or .parquet file, and declare what is publicly known of them",
                path=str(path),
            )
        return content


def directories(data_dir: str | Path | None) -> list[Path]:
    """Where to look: the directory given, the one that PRIVLEARN_DATA names, the user's cache."""
    given = [data_dir, os.environ.get(DATA_VARIABLE), cache()]
    return [Path(place) for place in given if place]


def cache() -> Path:
    """Where `privlearn data fetch` puts files unless told otherwise."""
    import pooch  # takes a moment, and most commands do without

    return Path(pooch.os_cache("privlearn"))


def _mend(dataset: str, source: Source | None) -> str:
    if source is None:
        return "Get an unchanged copy"
    return f"Move it away and get it again with `privlearn data fetch {dataset}`"
