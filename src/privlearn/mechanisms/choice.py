"""How a choice of features is told: as plain values for certificates, and as lines for cards and screens; never torch.

Only what was released is told: which features were chosen, in their order, and, where statistics of them were released, the
criterion by these with the standard deviation of the noise in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privlearn._validate import count
from privlearn.errors import BadInput

#: Of how many features a certificate tells, the best first; the weights hold them all.
MOST = 10_000


def told(
    indices: Sequence[int],
    names: Sequence[str] = (),
    scores: Sequence[float] | None = None,
    noise: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The chosen features as plain values, the best first.

    Args:
        indices: their places in a flattened row.
        names: of all features, where the data name them.
        scores: what each was ranked by, where that was released.
        noise: the standard deviation of the noise in each score.
    """
    found: dict[str, Any] = {"indices": [int(index) for index in indices[:MOST]]}
    if names:
        found["names"] = [names[index] for index in found["indices"]]
    if scores is not None and noise is not None:
        found["scores"] = [float(f"{value:.6g}") for value in scores[:MOST]]
        found["noise_std"] = [float(f"{value:.6g}") for value in noise[:MOST]]
    return found


def require_told(choice: dict[str, Any], keep: int) -> None:
    """Raise `BadInput` unless `choice` is one of `keep` features: what strangers wrote.

    Raises:
        KeyError, TypeError: fields are missing or of other types.
    """
    indices = choice["indices"]
    for index in indices:
        count("a chosen feature", index, least=0)
    if len(indices) != min(keep, MOST) or len(set(indices)) < len(indices):
        raise BadInput(
            f"{len(indices)} features are said to be chosen, and {keep} to be kept: expected each once, and as many"
        )


def lines(choice: dict[str, Any], most: int = 10) -> list[str]:
    """A line for each of the first `most` features: its number and name, its score and the noise in that."""
    found = []
    for place, index in enumerate(choice["indices"][:most]):
        name = f" {choice['names'][place]}" if "names" in choice else ""
        score = f": {choice['scores'][place]:.4g} ± {choice['noise_std'][place]:.2g}" if "scores" in choice else ""
        found.append(f"{index}{name}{score}")
    left = len(choice["indices"]) - most
    return [*found, f"and {left} more"] if left > 0 else found
