"""What `pate-segmentation` is compared with: DP-SGD on the same U-Net, and training without privacy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, final

import torch
from torch import nn

from privlearn._checks import one_of
from privlearn.clipping.clips import PerLayer
from privlearn.data.hippocampus import CLASSES
from privlearn.descent.dpsgd import dpsgd
from privlearn.plan import Plan
from privlearn.sampling import Poisson
from privlearn.schedules import Constant
from privlearn.streams import Streams
from privlearn.volumes import Pairs, Training, Warp, map_losses, maps_of, probabilities
from privlearn_studies.pate.scans import Settings, fresh, parts, public_side, scores
from privlearn_studies.pate.segmentation_runs import DELTA

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
        copies: of each volume in a batch, moved as teachers' volumes are, their gradients averaged before clipping; 0: the
            volumes as they are.
        clip: what each layer is clipped to.
        noise: in place of `epsilon`, the noise multiplier of each layer's clip as the paper states it: with L layers the
            noise is worth 1 / sqrt(L) of it.
        first: how many private volumes there are; None: all.
        settings: how long the public U-Net learns.
    """

    epsilon: float | None
    start: str = "nothing"
    labelled: int = 2
    epochs: int = 40
    learning_rate: float = 3e-3
    copies: int = 0
    clip: float = _CLIP
    noise: float | None = None
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
    if setting.epsilon is None and setting.noise is None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found = Training(steps=5 * setting.epochs)(begun, x, maps_of(y, CLASSES))
        return GradientOutcome(scores(probabilities(found, test.tensors()[0]), test), None)
    pairs = Pairs(CLASSES)
    result = dpsgd(
        plan_of(setting, layers_of(begun), len(x)),
        pairs.network(begun) if setting.copies else begun,
        pairs.losses if setting.copies else map_losses,
        pairs.rows(x, y) if setting.copies else private,
        augmentation=pairs.moved(Warp(), setting.copies) if setting.copies else None,
        optimizer=lambda parameters: torch.optim.Adam(parameters, setting.learning_rate),
        streams=Streams.new(seed),
    )
    spent = result.ledger.guarantee(DELTA).epsilon
    return GradientOutcome(scores(probabilities(begun, test.tensors()[0]), test), spent)


def plan_of(setting: GradientSetting, layers: int, examples: int) -> Plan:
    """What DP-SGD is to spend, on a network of so many layers and a declared number of examples."""
    plan = Plan(Poisson(_RATE), setting.epochs, clip=PerLayer(setting.clip), examples=examples)
    if setting.noise is not None:
        return replace(plan, schedule=Constant(start=setting.noise / math.sqrt(layers)))
    return plan.calibrate(epsilon=setting.epsilon, delta=DELTA)


def layers_of(network: nn.Module) -> int:
    """How many layers are clipped, each by itself."""
    return len({name.rpartition(".")[0] for name, _ in network.named_parameters()})
