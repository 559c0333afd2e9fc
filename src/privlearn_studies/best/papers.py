"""What the methods of the papers reach on MNIST at a proven epsilon, in their own settings or better ones."""

from __future__ import annotations

from collections.abc import Sequence

from privlearn_studies.dpmac.settings import tuned_classifier
from privlearn_studies.pate.vote_runs import VoteSetting
from privlearn_studies.sweep import Sweep
from privlearn_studies.yu.settings import mnist

_YU, _MAC, _PATE = "Yu et al., decaying noise", "DP-MAC", "PATE, votes"
PAPERS = (_YU, _MAC, _PATE)
_EPSILONS = (0.5, 2.0, 8.0)


def reached_by_papers(sweep: Sweep, numbers: Sequence[int]) -> dict[tuple[str, float], list[float]]:
    """Test accuracies of each seed by the paper and epsilon; runs that other studies made are not made again."""
    decaying = {
        epsilon: mnist("exp:k=0.0138", epochs=60, clip="flat", epsilon=epsilon, sampling="partition")
        for epsilon in _EPSILONS
    }
    coordinates = {epsilon: tuned_classifier(epsilon) for epsilon in _EPSILONS}
    votes = VoteSetting()
    found = sweep(decaying.values(), numbers)
    reached = {(_YU, epsilon): [each.test[-1] for each in found[setting]] for epsilon, setting in decaying.items()}
    fitted = sweep(coordinates.values(), numbers)
    reached |= {
        (_MAC, epsilon): [each.test[-1] for each in fitted[setting]] for epsilon, setting in coordinates.items()
    }
    # With 1,000 queries, from labels that spread from the winners: see `pate-mnist`.
    return reached | {(_PATE, votes.epsilon): [each.test[1][1] for each in sweep([votes], numbers)[votes]]}
