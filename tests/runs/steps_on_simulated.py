"""What a step asks of a device: launches, waits of the host, and bytes that are copied.

Run by test_devices.py in a process that has the simulated device; `python -m
tests.runs.steps_on_simulated [NAME]` prints the counts by line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

if __name__ == "__main__":
    import tests.support.simulated.plugin  # noqa: F401 - before privlearn

import privlearn as pv
from privlearn.core.clipping.clips import Flat
from tests.support.simulated.counts import Counts, begin, end
from tests.support.simulated.memory import NAME

#: Who draws noise, and dropout's masks: they are counted apart.
NOISE = ("core/mechanisms/", "core/streams.py")
MASKS = ("core/clipping/randomness.py",)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1).long().clamp(0, 16)
        return self.out(self.layer(self.embed(tokens)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 12, batch_first=True)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x.reshape(len(x), 8, 8))[0][:, -1])


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 16)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x.flatten(1).long().clamp(0, 16)).mean(1))


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def mlp() -> nn.Module:
    layers = [nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)]
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 8, 8)), *layers)


def big_mlp() -> nn.Module:
    layers = [nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(1000, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "mlp with dropout": mlp,
    "cnn": cnn,
    "transformer": Transformer,
    "lstm": Recurrent,
    "embedding": Embedded,
    "big mlp": big_mlp,
}


@final
class CountedSteps(pv.runs.Callback):
    """Counts what each step after the first asks of the device."""

    def __init__(self) -> None:
        self.steps: list[Counts] = []
        self._counts: Counts | None = None

    def on_step(self, progress: Any) -> None:
        self.stop()
        self._counts = Counts()
        begin(self._counts)

    def stop(self) -> None:
        """Keep the step that ends."""
        if self._counts is not None:
            end(self._counts)
            self.steps.append(self._counts)
        self._counts = None

    def on_end(self, progress: Any) -> None:
        """What follows the last step is none."""
        if self._counts is not None:
            end(self._counts)
        self._counts = None


def run(name: str, device: str, callbacks: list[Any]) -> Tensor:
    """Train for five steps of some 130 examples each; the weights."""
    torch.manual_seed(0)
    x = 16 * torch.rand(650, 64)
    y = torch.randint(10, (650,))
    plan = pv.Plan(pv.Poisson(0.2), 1, pv.schedules.Constant(1.0), Flat(0.1), examples=650)
    loss = nn.CrossEntropyLoss(reduction="none")
    result = pv.dpsgd(
        plan,
        NETWORKS[name](),
        loss,
        (x, y),
        device=device,
        streams=pv.Streams.new(3, cipher="chacha20"),
        callbacks=callbacks,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    )
    parameters = result.model.parameters()
    return torch.cat([parameter.detach().cpu().flatten() for parameter in parameters])


def counted(name: str) -> list[Counts]:
    """What the steps of a network ask of the device."""
    steps = CountedSteps()
    run(name, NAME, [steps])
    return steps.steps


@final
class Parts:
    """Waits and bytes of a step, and how many of them noise and masks cause."""

    def __init__(self, counts: Counts) -> None:
        self.launches = counts.launches
        self.waits_for_noise = counts.waits_at(*NOISE)
        self.waits_for_masks = counts.waits_at(*MASKS)
        self.waits = counts.waits - self.waits_for_noise - self.waits_for_masks
        self.bytes_of_noise = counts.bytes_at(*NOISE)
        self.bytes_of_masks = counts.bytes_at(*MASKS)
        self.bytes = counts.copied - self.bytes_of_noise - self.bytes_of_masks

    def __str__(self) -> str:
        return ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in vars(self).items())


#: Of the digests of examples, which masks follow from: bytes of a step for each example, and what a
#: part of a batch waits for.
MOST_EXAMPLES = 200
#: By network: the most that a step waits, that a step waits in which an example's gradient is
#: compared with autograd's, and that a step copies, all without noise and masks. Only to fall.
CEILINGS = {
    "linear": (2, 2, 36_173),
    "mlp with dropout": (2, 2, 36_173),
    "cnn": (2, 2, 36_173),
    "transformer": (3, 3, 36_174),
    "lstm": (3, 3, 36_184),
    "embedding": (3, 3, 36_174),
    "big mlp": (2, 2, 36_173),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_on_the_simulated_device_cost_no_more(name: str) -> None:
    """Steps after the first: in the first of them an example is compared, in the others not."""
    compared, *usual = map(Parts, counted(name))
    waits, waits_compared, copied = CEILINGS[name]
    assert max(step.waits for step in usual) <= waits
    assert compared.waits <= waits_compared
    assert max(step.bytes for step in usual) <= copied
    # Noise is made where the weights are; masks too, of which digests of examples are copied.
    draws = name in ("mlp with dropout", "transformer")
    for step in (compared, *usual):
        assert step.bytes_of_noise == step.waits_for_noise == 0
        assert step.bytes_of_masks <= 4 * 8 * MOST_EXAMPLES * draws
        assert step.waits_for_masks <= 12 * draws


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_on_the_simulated_device_are_the_processors(name: str) -> None:
    here, there = run(name, "cpu", []), run(name, NAME, [])
    assert (here - there).norm() <= 1e-6 * here.norm()


def main(names: list[str]) -> None:
    """Print the counts of these networks, or of all."""
    for name in names or NETWORKS:
        for number, counts in enumerate(counted(name)):
            print(f"{name}, step {number + 2}: {Parts(counts)}\n{counts}")


if __name__ == "__main__":
    main(sys.argv[1:])
