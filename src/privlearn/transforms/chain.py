"""An encoder at work: rows in blocks, features kept in a file where that is wanted.

Encoders by name, and those that are usual.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from privlearn._storage import draft_of
from privlearn.data import catalogue
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.transforms.modules import ExternalModule, Normalised, RowTransform
from privlearn.transforms.precomputed import FeatureFolder, PrecomputedRows, is_folder
from privlearn.transforms.scattering import RandomUnits, Scattering
from privlearn.transforms.sources import EACH_EXAMPLE
from privlearn.transforms.specs import parse

_ROWS_AT_ONCE = 256


def with_features(
    dataset: Dataset,
    features: str | RowTransform,
    *,
    cache: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """The data, to be learned from by public features of the rows: `pv.dpsgd` and `pv.dpmac` make them, and publish how.

    Guarantee: none is needed. An encoder is chosen without the private rows, and makes an example's features of that example
    alone; gradients are clipped after it.

    Args:
        dataset: rows that the encoder takes; they are scaled to their declared range first.
        features: `scatter:J=2` for images, `package.module:function`, which returns a fixed module, or either made; or a
            folder of features that were made elsewhere (`pv.transforms.save_features`), which take the place of the rows.
        cache: a folder to keep features in for later runs, as secret as the rows.
        progress: called with (rows done, rows in all).

    Raises:
        BadInput: no data set, features that are unknown, or a folder that can't be used.
    """
    if not isinstance(dataset, Dataset):
        raise BadInput(f"dataset is a {type(dataset).__name__}: expected pv.Dataset(x, y, ...), or pv.load(name)")
    if isinstance(features, str) and is_folder(features):
        kept = FeatureFolder.read(features)
        return replace(kept.of(dataset), features=Encoding(PrecomputedRows(kept.encoder)))
    folder = None if cache is None else Path(cache)
    # What is learned from made-up images is nobody's secret.
    public = catalogue.cache() / "directions"
    made = encoder(features, np.shape(dataset.x)[1:], public) if isinstance(features, str) else features
    return replace(dataset, features=None if made is None else Encoding(made, folder, progress))


_KEPT: ContextVar[tuple[Path | None, Callable[[int, int], None] | None]] = ContextVar("kept", default=(None, None))


@contextmanager
def feature_cache(folder: str | Path | None, progress: Callable[[int, int], None] | None = None) -> Iterator[None]:
    """A block in which runs keep the public features that a plan's front makes of their rows, for later runs on the same.

    Args:
        folder: where to keep them, as secret as the rows; None: nowhere.
        progress: called with (rows done, rows in all) while they are made.
    """
    token = _KEPT.set((None if folder is None else Path(folder), progress))
    try:
        yield
    finally:
        _KEPT.reset(token)


@final
@dataclass(frozen=True)
class Encoding:
    """An encoder, and where the features that it makes are kept.

    Attributes:
        encoder: what makes them.
        cache: a folder to keep them in, for later runs on the same rows. They are as secret as the rows. None: nowhere.
        progress: called with (rows done, rows in all) after each block.
    """

    encoder: RowTransform
    cache: Path | None = None
    progress: Callable[[int, int], None] | None = None

    @classmethod
    def usual(cls, encoder: RowTransform) -> Encoding:
        """Features are kept where `feature_cache` says."""
        return cls(encoder, *_KEPT.get())

    def __call__(self, x: Tensor) -> Tensor:
        """Features of the rows `x` (rows, ...), one for each.

        Raises:
            BadInput: rows that the encoder does not take, or a folder that can't be written.
        """
        if isinstance(self.encoder, PrecomputedRows):
            return self.encoder(x)  # type: ignore[no-any-return]  # there is nothing to wait for, or to keep
        if isinstance(self.encoder, ExternalModule):
            self.encoder.require_per_example(x.new_zeros(1, *x.shape[1:]))
        if self.cache is None or "spec" not in self.encoder.config():  # what is named by no spec is quickly made
            return self._made(x)
        path = self.cache / f"{self._digest(x)}.npy"
        if path.exists():
            return torch.from_numpy(np.load(path, allow_pickle=False))
        encoded = self._made(x)
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            draft = draft_of(path)
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
                np.save(file, encoded.numpy())
            draft.replace(path)
        except OSError as error:
            raise BadInput(
                f"features can't be kept in {self.cache}: {error.strerror or error}. Give another folder, or none"
            ) from error
        return encoded

    def _made(self, x: Tensor) -> Tensor:
        encoded: Tensor | None = None
        with torch.no_grad():
            for start in range(0, len(x), _ROWS_AT_ONCE):
                part = self.encoder(x[start : start + _ROWS_AT_ONCE])
                if encoded is None:
                    encoded = part.new_empty(len(x), *part.shape[1:])
                encoded[start : start + len(part)] = part
                if self.progress:
                    self.progress(start + len(part), len(x))
        return self.encoder(x) if encoded is None else encoded

    def _digest(self, x: Tensor) -> str:
        """What the features follow from: the encoder, the rows and the versions that compute them."""
        versions = ", ".join(f"{name} {_version(name)}" for name in ("privlearn", "torch", "kymatio"))
        digest = hashlib.sha256(f"{self.encoder.describe()}; {versions}; {tuple(x.shape)} {x.dtype} ".encode())
        digest.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def encoder(
    spec: str, shape: Sequence[int] = (), cache: Path | None = None, begin: Callable[[], None] | None = None
) -> RowTransform | None:
    """The module that `spec` names, or None for "raw".

    Args:
        spec: as `parse` reads it.
        shape: of one example; what is learned from made-up images is learned from such.
        cache: a folder to keep that in.
        begin: called before something is learned, which takes a minute or more; not where it is kept already.

    Raises:
        BadInput: an unknown name or number, or code that can't be used.
    """
    own = parse(spec)
    return None if own is None else own.module(tuple(shape), cache, begin)


def row_norm(made: RowTransform, numbers: int) -> float | None:
    """The norm of all rows of so many features, where each is normalised by itself: public. None: nothing is known of it."""
    by_itself = isinstance(made, Scattering | RandomUnits | Normalised)
    by_itself |= isinstance(made, PrecomputedRows) and made.encoder.normalisation == EACH_EXAMPLE
    return math.sqrt(numbers) if by_itself else None


def _version(name: str) -> str:
    """Of an installed distribution; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
