"""`--features`: public features in front of the network, and where they are kept."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from privlearn.cli import screen, training
from privlearn.data import NAMES, Dataset
from privlearn.data.files import cache
from privlearn.encoders import Encoder, Encoding, encoder, usual
from privlearn.errors import BadInput
from privlearn.methods.refusals import require_no_features


@contextmanager
def encoded(options: argparse.Namespace, data: Dataset) -> Iterator[Dataset]:
    """The data with the public features that the options ask for, or that are usual for them; shows progress while it lasts.

    Raises:
        BadInput: features that are unknown, or that these rows don't have.
    """
    asked = options.features
    spec = _usual(options, data) if asked is None else asked
    if spec is None or spec == "raw":
        yield data
        return
    require_no_features(training.copies_of(options), spec)
    if "kept=" in spec:
        screen.asides.print("learning directions from made-up images (once, about a minute, if they are not kept yet)")
    made = encoder(spec, data.x.shape[1:], cache() / "directions")
    assert made is not None
    _require_rows(made, data)
    screen.asides.print(
        f"public features: {made.spec}{'' if asked else ' (usual for such rows; --features raw for none)'}"
    )
    # The bar must be gone before that of training comes.
    with ExitStack() as shown:
        progress = shown.enter_context(screen.progress_bar("features", "rows"))

        def told(done: int, rows: int) -> None:
            progress(done, rows)
            if done == rows:
                shown.close()

        yield replace(data, features=Encoding(made, _folder(options), told))


def _usual(options: argparse.Namespace, data: Dataset) -> str | None:
    """The spec of what is usual in front of a linear model, where nothing else comes first."""
    plain = options.method == "dpsgd" and options.model == "linear" and options.tune is None
    return usual(data.x.shape[1:], data.low) if plain and options.pca is None and options.select is None else None


def _require_rows(made: Encoder, data: Dataset) -> None:
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
