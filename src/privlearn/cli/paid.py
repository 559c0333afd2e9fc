"""Features and normalisations that are learned from the private rows, and paid for out of the target."""

from __future__ import annotations

import argparse

from privlearn.cli.features import bounds_of, features_of, noise_for
from privlearn.data import Dataset
from privlearn.descent import rules
from privlearn.errors import BadInput
from privlearn.transforms.moments import Moments, share_of
from privlearn.transforms.pca import components_of


def with_pca(options: argparse.Namespace) -> argparse.Namespace:
    """The options with `--features pca:L` read as what it is, `--pca L`.

    Raises:
        BadInput: both are given.
    """
    components = None if options.features is None else components_of(options.features)
    if components is None:
        return options
    if options.pca is not None:
        same = "are the same" if components == options.pca else "both ask for principal directions"
        raise BadInput(f"--features {options.features} and --pca {options.pca} {same}: give one of them")
    return argparse.Namespace(**vars(options) | {"features": None, "pca": components})


def normalisation(options: argparse.Namespace, data: Dataset) -> tuple[Moments, ...]:
    """The release that `--normalise moments` puts in front of training, or that is usual, with its share of the target.

    Raises:
        BadInput: another spec, no target, or rows of which no bound is declared.
    """
    share = share_of(_usual(options, data) if options.normalise is None else options.normalise, "--normalise")
    if share is None:
        return ()
    norm, _ = bounds_of(options, data)
    return (Moments(features_of(data), noise_for(options, share, "--normalise"), norm),)


def _usual(options: argparse.Namespace, data: Dataset) -> str:
    """What is usual behind rows that are normalised one by one, in front of a linear model: moments, where these pay."""
    if data.features is None:
        return "none"
    from privlearn.transforms import Normalised  # `budget` plans without torch

    normalised = isinstance(data.features.encoder, Normalised)
    normalised &= options.model == "linear" and options.select is None and options.pca is None
    rows = options.rows_per_person is None and options.noise_multiplier is None
    pays = rules.moments_pay(options.examples or data.examples, options.epsilon)
    return "moments" if normalised and rows and pays else "none"
