"""An encoder at work: rows in blocks, features kept in a file where that is wanted.

Encoders by name, and those that are usual.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from privlearn._checks import one_of, parse_spec
from privlearn._storage import draft_of
from privlearn.data import catalogue
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.transforms.external import External
from privlearn.transforms.normalised import Normalised
from privlearn.transforms.precomputed import EACH_EXAMPLE, FeatureFolder, Precomputed, is_folder
from privlearn.transforms.random_units import RandomUnits
from privlearn.transforms.scattering import Scattering

_ROWS_AT_ONCE = 256


def with_features(
    dataset: Dataset,
    features: str | Encoder,
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
        found = FeatureFolder.read(features)
        return replace(found.of(dataset), features=Encoding(found.encoder))
    folder = None if cache is None else Path(cache)
    # What is learned from made-up images is nobody's secret.
    public = catalogue.cache() / "directions"
    made = encoder(features, np.shape(dataset.x)[1:], public) if isinstance(features, str) else features
    return replace(dataset, features=None if made is None else Encoding(made, folder, progress))


@final
@dataclass(frozen=True)
class Encoding:
    """An encoder, and where the features that it makes are kept.

    Attributes:
        encoder: what makes them.
        cache: a folder to keep them in, for later runs on the same rows. They are as secret as the rows. None: nowhere.
        progress: called with (rows done, rows in all) after each block.
    """

    encoder: Encoder
    cache: Path | None = None
    progress: Callable[[int, int], None] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Features of the rows `x` (rows, ...), one for each.

        Raises:
            BadInput: rows that the encoder does not take, or a folder that can't be written.
        """
        if isinstance(self.encoder, Precomputed):
            return self.encoder(x)  # type: ignore[no-any-return]  # there is nothing to wait for, or to keep
        if isinstance(self.encoder, External):
            self.encoder.require_per_example(x.new_zeros(1, *x.shape[1:]))
        if self.cache is None:
            return self._made(x)
        path = self.cache / f"{self._digest(x)}.npy"
        if path.exists():
            return torch.from_numpy(np.load(path, allow_pickle=False))
        found = self._made(x)
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            draft = draft_of(path)
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
                np.save(file, found.numpy())
            draft.replace(path)
        except OSError as error:
            raise BadInput(
                f"features can't be kept in {self.cache}: {error.strerror or error}. Give another folder, or none"
            ) from error
        return found

    def _made(self, x: Tensor) -> Tensor:
        found: Tensor | None = None
        with torch.no_grad():
            for start in range(0, len(x), _ROWS_AT_ONCE):
                part = self.encoder(x[start : start + _ROWS_AT_ONCE])
                if found is None:
                    found = part.new_empty(len(x), *part.shape[1:])
                found[start : start + len(part)] = part
                if self.progress:
                    self.progress(start + len(part), len(x))
        return self.encoder(x) if found is None else found

    def _digest(self, x: Tensor) -> str:
        """What the features follow from: the encoder, the rows and the versions that compute them."""
        versions = ", ".join(f"{name} {version(name)}" for name in ("privlearn", "torch", "kymatio"))
        found = hashlib.sha256(f"{self.encoder.describe()}; {versions}; {tuple(x.shape)} {x.dtype} ".encode())
        found.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()


Encoder = Scattering | RandomUnits | Normalised | External | Precomputed
#: Images from this size on, with at most so many channels, are scattered; rows of so many numbers are normalised.
_LEAST_IMAGE, _MOST_CHANNELS, _LEAST_NUMBERS = 16, 4, 256
#: Images of so many numbers have several thousand features, of which directions are kept.
_LARGE = 512
#: Larger images take hours and gigabytes to be scattered as often as directions need, and none were tried.
_LARGEST_IMAGE = 64
#: Images of three channels are taken for photographs in colour.
_COLOURS = 3
_RANDOM = {"J": 2, "units": 400, "mirror": 1, "kept": 2000}
#: How many directions are kept, of grey images and of those in colour, and of both where examples times epsilon are few.
_DIRECTIONS, _LEAST_DIRECTIONS, _FEW = (1000, 2000), 300, 3000


def encoder(
    spec: str, shape: Sequence[int] = (), cache: Path | None = None, begin: Callable[[], None] | None = None
) -> Encoder | None:
    """The encoder that `spec` names, or None for "raw".

    Args:
        spec: `raw`, `scatter:J=2`, `scatter:J=2,kept=1000`, `scatter-random:J=2,units=400,mirror=1,kept=2000`,
            `norm:power=0.5`, or `package.module:function`.
        shape: of one example; what is learned from made-up images is learned from such.
        cache: a folder to keep that in.
        begin: called before something is learned, which takes a minute or more; not where it is kept already.

    Raises:
        BadInput: an unknown name or number, or code that can't be used.
    """
    name, _, rest = spec.partition(":")
    if spec == "raw":
        return None
    if name == "pca":
        raise BadInput(
            f"features {spec[:60]!r} are learned from the private rows, and paid for: they are a release, not an encoder. "
            "Give pv.Plan(before=(pv.transforms.PrivatePCA(L, 16.0),)), or features='pca:L' to pv.train (--features "
            "pca:L or --pca L)"
        )
    if name in ("scatter", "scatter-random", "norm"):
        _, numbers = parse_spec("features", spec)
        if name == "norm" and set(numbers) <= {"power"}:
            return Normalised(**numbers)
        whole = {each: int(number) for each, number in numbers.items() if number == int(number)}
        if name == "scatter" and set(numbers) <= {"J", "kept"} and len(whole) == len(numbers):
            scale, kept = whole.get("J", 2), whole.get("kept", 0)
            return Scattering.learned(scale, kept, shape, cache, begin) if kept else Scattering(scale)
        if name == "scatter-random" and set(numbers) <= set(_RANDOM) and len(whole) == len(numbers):
            scale, units, mirror, kept = (_RANDOM | whole).values()
            mirrored = one_of("mirror of scatter-random", str(mirror), ("0", "1")) == "1"
            return RandomUnits.learned(scale, units, mirrored, kept, shape, cache, begin)
        raise BadInput(
            f"features {spec[:60]!r} cannot be read: expected scatter:J=2, scatter:J=2,kept=1000 or "
            f"{_random(2000)}, with whole numbers, or norm:power=0.5"
        )
    if name and rest.isidentifier():
        return External(spec)
    raise BadInput(
        f"features {spec[:60]!r} are unknown: expected raw, scatter:J=2, scatter:J=2,kept=1000, {_random(2000)}, "
        "norm:power=0.5, pca:L (paid for), package.module:function, or a folder",
        spec=spec,
    )


def row_norm(made: Encoder, numbers: int) -> float | None:
    """The norm of all rows of so many features, where each is normalised by itself: public. None: nothing is known of it."""
    by_itself = isinstance(made, Scattering | RandomUnits | Normalised)
    by_itself |= isinstance(made, Precomputed) and made.normalisation == EACH_EXAMPLE
    return math.sqrt(numbers) if by_itself else None


def usual(shape: Sequence[int], low: object, signal: float = math.inf) -> str | None:
    """The spec of what stands in front of a linear model where nobody says otherwise, by public facts.

    Args:
        shape: of one example.
        low: the declared lower bound of its numbers, or None.
        signal: examples times epsilon. The less there is, the fewer directions a model can learn of.
    """
    sized = len(shape) in (2, 3) and all(_LEAST_IMAGE <= size <= _LARGEST_IMAGE for size in shape[-2:])
    if sized and (len(shape) == 2 or shape[0] <= _MOST_CHANNELS):
        if len(shape) == 3 and shape[0] == _COLOURS:
            return _random(_DIRECTIONS[1] if signal >= _FEW else _LEAST_DIRECTIONS)
        kept = _DIRECTIONS[0] if signal >= _FEW else _LEAST_DIRECTIONS
        return f"scatter:J=2,kept={kept}" if math.prod(shape) >= _LARGE else "scatter:J=2"
    positive = isinstance(low, int | float) and low >= 0
    return "norm:power=0.5" if len(shape) == 1 and shape[0] >= _LEAST_NUMBERS and positive else None


def _random(kept: int) -> str:
    return "scatter-random:" + ",".join(f"{name}={number}" for name, number in (_RANDOM | {"kept": kept}).items())
