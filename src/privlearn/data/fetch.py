"""Fetching named data sets. What does not have the SHA-256 in the catalogue is not kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privlearn.data import files
from privlearn.data.catalogue import CATALOGUE, Named
from privlearn.data.files import File, Source
from privlearn.data.named import require_known
from privlearn.errors import BadInput

_SECONDS = 30


def fetch(name: str, data_dir: str | Path | None = None, say: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Fetch the files of the data set called `name`; return where they are.

    Files that are there already, with the right content, are left alone. A file appears under its name only when it is
    complete and has the right digest.

    Args:
        name: a data set of the catalogue.
        data_dir: the data directory to put it into; by default the user's cache, where `load` looks too.
        say: called with a line about each file.

    Raises:
        BadInput: an unknown name, a data set without a source, a file that is another one, or a source that fails.
    """
    require_known(name)
    named = CATALOGUE[name]
    if named.embedded:
        say(f"{name} comes with scikit-learn: nothing to fetch")
        return []
    folder = (files.cache() if data_dir is None else Path(data_dir)) / named.folder
    if named.fetched is None:
        raise BadInput(_no_source(name, named, folder), name=name)
    paths = []
    for file in named.fetched.files:
        assert file.source is not None
        found = file.find(folder)
        if found is not None:
            file.read(found, name)
            say(f"{found} is there")
        paths.append(found or _retrieve(name, file, file.source, folder, say))
    return paths


def _retrieve(name: str, file: File, source: Source, folder: Path, say: Callable[[str], None]) -> Path:
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    say(f"fetching {source.url}")
    try:
        path = Path(
            pooch.retrieve(
                source.url,
                known_hash=f"sha256:{source.sha256}",
                fname=source.file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=_SECONDS),
            )
        )
    except requests.RequestException as error:
        raise BadInput(
            f"{source.url} cannot be fetched: {_reason(error)}. Check the connection and try again, or get the file elsewhere "
            f"and put it into {folder} as {source.file}; its SHA-256 is {source.sha256}",
            url=source.url,
        ) from error
    except ValueError as error:  # what pooch raises for another digest; it has removed the file
        raise BadInput(
            f"what {source.url} gives now is not the published file of {name} (its SHA-256 is not {source.sha256}): nothing "
            f"was kept. Try again; if it stays so, get that file elsewhere and put it into {folder} as {source.file}",
            url=source.url,
        ) from error
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written to: {error.strerror or error}. Choose another --data-dir", path=str(folder)
        ) from error
    file.read(path, name)
    return path


def _no_source(name: str, named: Named, folder: Path) -> str:
    *_, form = named.forms
    files = ", ".join(f"{file.name} (SHA-256 {file.sha256})" for file in form.files)
    return (
        f"{name} has no public source whose content is known: nothing can be fetched. If you have it, put it into {folder}: "
        f"{files}"
    )


def _reason(error: Exception) -> str:
    """The innermost reason: requests wraps urllib3's errors, which wrap the system's."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return f"{type(error).__name__}: {str(error)[:200]}"
