"""`--features`: public features in front of the network, and where they are kept."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from privlearn.cli import screen, training
from privlearn.data import NAMES, Dataset
from privlearn.data.catalogue import cache
from privlearn.errors import BadInput
from privlearn.runs.refusals import require_no_features
from privlearn.transforms import Encoding, encoder, usual, with_features
from privlearn.transforms.modules import RowTransform
from privlearn.transforms.precomputed import is_folder


@contextmanager
def encoded(options: argparse.Namespace, data: Dataset) -> Iterator[Dataset]:
    """The data with the public features that the options ask for, or that are usual for them; shows progress while it lasts.

    Raises:
        BadInput: features that are unknown, or that these rows don't have.
    """
    training.require_movable(options, data.x.shape[1:])
    asked = options.features
    spec = _usual(options, data) if asked is None else asked
    if spec is None or spec == "raw":
        yield data
        return
    require_no_features(training.copies_of(options), spec)
    if is_folder(spec):
        yield _from_folder(options, data, spec)
        return
    made = encoder(spec, data.x.shape[1:], cache() / "directions", _say_that_it_learns)
    assert made is not None
    _require_rows(made, data)
    screen.asides.print(
        f"public features: {made.spec}{'' if asked else ' (usual for such rows; --features raw for none)'}"
    )
    # The bar must be gone before that of training comes.
    with ExitStack() as shown:
        progress = shown.enter_context(screen.progress_bar("features", "%"))

        def told(done: int, rows: int) -> None:
            progress(100 * done // rows, 100)  # how many rows there are is nobody's business
            if done == rows:
                shown.close()

        yield replace(data, features=Encoding(made, _folder(options), told))


def _say_that_it_learns() -> None:
    screen.asides.print("learning directions from made-up images (once: a minute or more; then they are kept)")


def _from_folder(options: argparse.Namespace, data: Dataset, folder: str) -> Dataset:
    """The data with the features in a folder, which takes the place of the rows."""
    if options.public is not None:
        raise BadInput("--public has no features in a folder: leave out --public, or --features FOLDER")
    if options.features_cache is not None:
        raise BadInput("--features-cache is for features that are made here: leave it out")
    found = with_features(data, folder)
    for aside in found.asides[len(data.asides) :]:
        screen.asides.print(aside, markup=False)
    made = found.features.encoder
    screen.asides.print(f"public features: {made.spec}, which you declare public", markup=False)
    return found


def _usual(options: argparse.Namespace, data: Dataset) -> str | None:
    """The spec of what is usual in front of a linear model, where nothing else comes first."""
    plain = options.method == "dpsgd" and options.model == "linear" and options.tune is None
    plain &= options.pca is None and options.select is None and options.normalise in (None, "none")
    signal = (options.examples or data.examples) * (options.epsilon or math.inf)
    return usual(data.x.shape[1:], data.low, signal) if plain else None


def _require_rows(made: RowTransform, data: Dataset) -> None:
    """Refuse rows that the encoder does not take, by a made-up one."""
    row = torch.zeros(1, *data.x.shape[1:])
    try:
        made(row)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"features {made.spec} can't be made of rows of shape {tuple(data.x.shape[1:])}: {str(error).splitlines()[0]}"
        ) from error


def _folder(options: argparse.Namespace) -> Path | None:
    """Where features are kept: those of named data sets in the user's cache, of other rows nowhere unless told to."""
    if options.features_cache is not None:
        return Path(options.features_cache)
    return cache() / "features" if options.data in NAMES else None
