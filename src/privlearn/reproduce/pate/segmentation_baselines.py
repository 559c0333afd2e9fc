"""What `pate-segmentation` is compared with: DP-SGD on the same U-Net, and training without privacy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, final

import torch

from privlearn._validate import one_of
from privlearn.clipping.styles import PerLayer
from privlearn.data.volumes import CLASSES
from privlearn.methods.dpsgd import dpsgd
from privlearn.plan import Plan
from privlearn.reproduce.pate.scans import Settings, fresh, parts, public_side, scores
from privlearn.reproduce.pate.segmentation_runs import DELTA
from privlearn.rng import Streams
from privlearn.sampling import Poisson
from privlearn.segmentation import Training, map_losses, maps_of, probabilities

_STARTS = ("nothing", "public")
_RATE, _CLIP = 0.2, 0.1


@final
@dataclass(frozen=True)
class GradientSetting:
    """DP-SGD on the U-Net, each layer clipped by itself and the noise for all layers together.

    Attributes:
        epsilon: what it may cost at delta 1e-3; None: no privacy, by the training that teachers and students have.
        start: "nothing", or "public" for the U-Net that learned from the public volumes.
        labelled: how many those are.
        epochs: of about five batches each; without privacy of as many steps.
        learning_rate: of Adam.
        first: how many private volumes there are; None: all.
        settings: how long the public U-Net learns.
    """

    epsilon: float | None
    start: str = "nothing"
    labelled: int = 2
    epochs: int = 40
    learning_rate: float = 3e-3
    first: int | None = None
    settings: Settings = Settings()  # noqa: RUF009 - a frozen value

    def key(self, seed: int) -> dict[str, Any]:
        """The run's settings as plain values; what is at its default is left out."""
        usual = {field.name: field.default for field in fields(self)}
        found = {n: v for n, v in vars(self).items() if v != usual[n]} | {"epsilon": self.epsilon}
        if "settings" in found:
            found["settings"] = asdict(self.settings)
        return found | {"study": "pate-segmentation, gradients", "seed": seed}

    def run(self, seed: int) -> GradientOutcome:
        """Train with `seed`; see `train`."""
        return train(self, seed)

    def outcome(self, kept: dict[str, Any]) -> GradientOutcome:
        """What a run reached, from its fields."""
        return GradientOutcome(tuple(kept["test"]), kept["spent"])


@final
@dataclass(frozen=True)
class GradientOutcome:
    """What a run reached.

    Attributes:
        test: Dice of each class on the test volumes.
        spent: epsilon by the ledger; None without privacy.
    """

    test: tuple[float, ...]
    spent: float | None


def train(setting: GradientSetting, seed: int) -> GradientOutcome:
    """Run `setting` with `seed`."""
    private, test = parts().private, parts().test
    private = replace(private, x=private.x[: setting.first], y=private.y[: setting.first])
    x, y = private.tensors()
    begun = fresh(x.shape[1:], seed)
    if one_of("start", setting.start, _STARTS) == "public":
        begun = public_side(setting.labelled, seed, setting.settings).start.network
    if setting.epsilon is None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found = Training(steps=5 * setting.epochs)(begun, x, maps_of(y, CLASSES))
        return GradientOutcome(scores(probabilities(found, test.tensors()[0]), test), None)
    plan = Plan(Poisson(_RATE), setting.epochs, clip=PerLayer(_CLIP), examples=len(x))
    plan = plan.calibrate(epsilon=setting.epsilon, delta=DELTA)
    result = dpsgd(
        plan, begun, map_losses, private, streams=Streams.new(seed),
        optimizer=lambda parameters: torch.optim.Adam(parameters, setting.learning_rate),
    )  # fmt: skip
    spent = result.ledger.guarantee(DELTA).epsilon
    return GradientOutcome(scores(probabilities(result.model, test.tensors()[0]), test), spent)
