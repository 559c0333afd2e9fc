"""What others have published on the data sets of `best`: accuracy at an epsilon, whose it is, and
where it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from privlearn_studies.report import page, table

ABSTRACT, PAPER, CODE, CITED = (
    "abstract",
    "paper",
    "authors' repository",
    "quoted, not checked in the paper",
)
#: Who quotes others' figures at epsilon 1, 2, 3 and 4; their own are disputed, and left out.
_QUOTED = "Fu et al. 2024, table 2"


@final
@dataclass(frozen=True)
class Published:
    """One published figure.

    Attributes:
        data: the data set, by the name that it has here.
        epsilon: at delta 1e-5, as far as it was read (of Adult's it was not).
        accuracy: on the test set.
        whose: author and year, and what is special.
        read_in: where the figure was read.
    """

    data: str
    epsilon: float
    accuracy: float
    whose: str
    read_in: str


_TRAMER, _TANG, _DE = "Tramèr and Boneh 2021", "Tang et al. 2023", "De et al. 2022"
_MAC, _SEARCHED, _SPARSE, _IMPORTANCE, _TREES = (
    "Harder et al. 2019 (DP-MAC)",
    "Cheng et al. 2022 (DPNAS)",
    "Zhang and Xie 2025, a preprint",
    "Wei et al. 2022, DPIS",
    "Kirschte et al. 2023, S-GBDT",
)
PUBLISHED: tuple[Published, ...] = (
    Published("mnist", 0.5, 0.90, _MAC, PAPER),
    Published("mnist", 0.5, 0.92, "Phan et al. 2017", "Harder et al. 2019"),
    Published("mnist", 1.0, 0.9779, _IMPORTANCE, _QUOTED),
    Published("mnist", 1.2, 0.981, _TRAMER, CITED),
    Published("mnist", 2.0, 0.95, _MAC, PAPER),
    Published("mnist", 2.0, 0.985, _TRAMER, CITED),
    Published("mnist", 2.0, 0.9851, _IMPORTANCE, _QUOTED),
    Published("mnist", 2.93, 0.981, "Papernot et al. 2021", CITED),
    Published("mnist", 3.0, 0.987, _TRAMER, CODE),
    Published("mnist", 3.0, 0.9857, _SEARCHED, ABSTRACT),
    Published("mnist", 4.0, 0.9878, _IMPORTANCE, _QUOTED),
    Published("mnist", 6.78, 0.932, "Yu et al. 2019", PAPER),
    Published("mnist", 8.0, 0.97, _MAC, PAPER),
    Published("mnist", 8.0, 0.9912, _SPARSE, ABSTRACT),
    Published("fashion-mnist", 1.0, 0.8625, _IMPORTANCE, _QUOTED),
    Published("fashion-mnist", 2.0, 0.8824, _IMPORTANCE, _QUOTED),
    Published("fashion-mnist", 2.7, 0.895, _TRAMER, CITED),
    Published("fashion-mnist", 3.0, 0.897, _TRAMER, CODE),
    Published("fashion-mnist", 3.0, 0.8809, _SEARCHED, ABSTRACT),
    Published("cifar10", 1.0, 0.568, _DE, CITED),
    Published("cifar10", 1.0, 0.6323, _IMPORTANCE, _QUOTED),
    Published("cifar10", 1.0, 0.723, _TANG, ABSTRACT),
    Published("cifar10", 2.0, 0.649, _DE, CITED),
    Published("cifar10", 2.0, 0.6794, _IMPORTANCE, _QUOTED),
    Published("cifar10", 3.0, 0.692, _DE, CITED),
    Published("cifar10", 3.0, 0.693, _TRAMER, CODE),
    Published("cifar10", 3.0, 0.6833, _SEARCHED, ABSTRACT),
    Published("cifar10", 3.0, 0.6963, _IMPORTANCE, _QUOTED),
    Published("cifar10", 4.0, 0.7055, _IMPORTANCE, _QUOTED),
    Published("cifar10", 4.0, 0.735, _DE, CITED),
    Published("cifar10", 4.0, 0.7321, _SPARSE, ABSTRACT),
    Published("cifar10", 7.53, 0.662, "Papernot et al. 2021", _TRAMER),
    Published("cifar10", 8.0, 0.814, _DE, ABSTRACT),
    Published("cifar10", 8.0, 0.825, "Klause et al. 2022", ABSTRACT),
    Published("cifar10-features", 1.0, 0.947, f"{_DE}, pre-trained on ImageNet", CITED),
    Published("cifar10-features", 2.0, 0.924, f"{_TRAMER}, features of SimCLR", CODE),
    Published("cifar10-features", 8.0, 0.967, f"{_DE}, pre-trained on ImageNet", CITED),
    Published("adult", 0.07, 0.813, _TREES, ABSTRACT),
    Published("adult", 0.54, 0.829, _TREES, ABSTRACT),
)
#: Where Tang et al. claim to be best with figures that are not known to us: on CIFAR-10, above
#: epsilon 1 and up to 8.
_CLAIMED, _ABOVE, _UP_TO = "cifar10", 1.0, 8.0


def best_known(data: str, epsilon: float) -> Published | None:
    """The best of the published figures on `data` at `epsilon` or less; None where none is
    known.
    """
    known = [each for each in PUBLISHED if each.data == data and each.epsilon <= epsilon]
    return max(known, key=lambda each: each.accuracy, default=None)


def more_is_claimed(data: str, epsilon: float) -> bool:
    """Whether a paper claims to be best there with a figure that is not known to us."""
    return data == _CLAIMED and _ABOVE < epsilon <= _UP_TO


def compared(ours: Mapping[tuple[str, float], float]) -> str:
    """Our accuracies by data set and epsilon beside the best published, in notes and tables."""
    epsilons = sorted({epsilon for _, epsilon in ours})
    lines, behind = [], []
    for data in dict.fromkeys(each.data for each in PUBLISHED):
        known = {epsilon: best_known(data, epsilon) for epsilon in epsilons}
        lines.append((data, "ours", *(f"{ours[data, epsilon]:.4f}" for epsilon in epsilons)))
        lines.append(
            (data, "published", *(_cell(each, data, epsilon) for epsilon, each in known.items()))
        )
        less = [
            f"{epsilon:g}"
            for epsilon, each in known.items()
            if each and ours[data, epsilon] < each.accuracy
        ]
        behind.append(f"{data} {'at epsilon ' + ', '.join(less) if less else 'nowhere'}")
    heads = ("data", "accuracy", *(f"epsilon {epsilon:g}" for epsilon in epsilons))
    every = [
        (each.data, f"{each.epsilon:g}", f"{each.accuracy:g}", each.whose, each.read_in)
        for each in PUBLISHED
    ]
    return page(
        "best-compared",
        table=table(heads, lines),
        behind="; ".join(behind),
        every=table(("data", "epsilon", "published", "whose", "read in"), every),
    )


def marks(data: str, known: Sequence[Published]) -> dict[str, list[tuple[float, float]]]:
    """Points (epsilon, accuracy) on `data`, by whose they are."""
    points: dict[str, list[tuple[float, float]]] = {}
    for each in known:
        if each.data == data:
            points.setdefault(each.whose, []).append((each.epsilon, each.accuracy))
    return points


def _cell(known: Published | None, data: str, epsilon: float) -> str:
    """A published figure with its source; the epsilon that it was reached at, where that is
    smaller.
    """
    if known is None:
        return "none known"
    at = "" if known.epsilon == epsilon else f", at {known.epsilon:g}"
    more = "at least " if more_is_claimed(data, epsilon) else ""
    return f"{more}{known.accuracy:g} ({known.whose}{at})"
