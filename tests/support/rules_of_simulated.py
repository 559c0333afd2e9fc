"""The simulated device refuses, counts and gives what a GPU does; what it can't show, it must not
seem to show.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.simulated.counts import counting
from tests.support.simulated.device import reset
from tests.support.simulated.memory import NAME, Limits
from tests.support.simulated.operations import DeviceError


def here() -> Tensor:
    return torch.ones(3, 3)


def there() -> Tensor:
    return torch.ones(3, 3, device=NAME)


REFUSED: dict[str, Callable[[], object]] = {
    "sum": lambda: there() + here(),
    "sum the other way": lambda: here() + there(),
    "product": lambda: there() @ here(),
    "cat": lambda: torch.cat([there(), here()]),
    "stack": lambda: torch.stack([here(), there()]),
    "in place": lambda: here().add_(there()),
    "in place of a number": lambda: torch.tensor(1.0).add_(there().sum()),
    "where": lambda: torch.where(here() > 0, there(), there()),
    "numpy": lambda: there().numpy(),
    "a layer": lambda: nn.Linear(3, 2)(there()),
    "an embedding": lambda: nn.Embedding(3, 2).to(NAME)(torch.tensor([1])),
    "index_select": lambda: there().index_select(0, torch.tensor([0])),
    "gather": lambda: there().gather(0, torch.zeros(1, 3, dtype=torch.int64)),
    "an index of the device": lambda: here()[torch.tensor([0], device=NAME)],
    "a loss": lambda: F.cross_entropy(there(), torch.tensor([0, 1, 2])),
    "out": lambda: torch.add(there(), there(), out=torch.empty(3, 3)),
    "foreach": lambda: torch._foreach_add([there(), there()], [here(), here()]),
    "a generator": lambda: torch.randn(3, device=NAME, generator=torch.Generator()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_two_devices_do_not_mix(name: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED[name]()


def test_numbers_and_indices_of_the_host_are_taken() -> None:
    assert (there() * torch.tensor(2.0)).sum().item() == 18
    assert there()[torch.tensor([0, 1])].shape == (2, 3)


WAITING: dict[str, tuple[int, Callable[[Tensor], object]]] = {
    "item": (1, lambda x: x.sum().item()),
    "bool": (1, lambda x: bool((x == 1).all())),
    "nonzero": (1, lambda x: x.nonzero()),
    "mask": (1, lambda x: x[x > 0]),
    "equal": (1, lambda x: torch.equal(x, x)),
    "to the host": (1, lambda x: x.cpu()),
    "to the device": (1, lambda x: here().to(NAME)),
    "unpinned": (1, lambda x: here().to(NAME, non_blocking=True)),
    "pinned": (0, lambda x: here().pin_memory().to(NAME, non_blocking=True)),
    "an index of the host": (1, lambda x: x[torch.tensor([0])]),
    "arithmetic": (0, lambda x: (x @ x + 1).relu().sum()),
    "a range": (0, lambda x: torch.arange(5, device=NAME)),
}


@pytest.mark.parametrize("name", WAITING)
def test_waits_are_counted_by_line(name: str) -> None:
    expected, ask = WAITING[name]
    x = there()
    with counting() as counts:
        ask(x)
    assert counts.waits == expected
    assert counts.waits_at(__file__.rpartition("/tests/")[2]) == expected, str(counts)


def test_bytes_are_counted_both_ways() -> None:
    x = there()
    with counting() as counts:
        here().to(NAME)
        x[0].cpu()
    assert (counts.to_device, counts.to_host, counts.copied) == (36, 12, 48)


def test_an_index_out_of_range_kills_the_device() -> None:
    """The host hears of it when it next waits; nothing works afterwards."""
    rows = nn.Embedding(5, 3).to(NAME)(torch.tensor([7], device=NAME))
    assert rows.shape == (1, 3)
    total = rows.sum() + 1
    with pytest.raises(DeviceError, match="device-side assert"):
        total.item()
    with pytest.raises(DeviceError, match="device-side assert"):
        there()
    reset()
    assert there().sum().item() == 9


def test_empty_memory_is_full_of_anything() -> None:
    assert torch.empty(3, device=NAME).isnan().all()
    assert torch.empty(2, dtype=torch.int64, device=NAME).tolist() == [-1, -1]


def test_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "largest", 1000)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1000, device=NAME)
    assert torch.zeros(100, device=NAME).sum().item() == 0


def test_views_and_copies_are_what_they_are_elsewhere() -> None:
    x = there()
    x.t()[1:].mul_(5)
    assert x[0].tolist() == [1, 5, 5]
    layer = nn.Linear(3, 3).to(NAME)
    twin = copy.deepcopy(layer)
    twin.weight.data.zero_()
    assert twin.weight.device.type == NAME
    assert layer.weight.abs().sum().item() > 0
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["x"], x)


def test_random_numbers_are_the_device_s_own() -> None:
    before = torch.get_rng_state()
    torch.randn(5, device=NAME)
    F.dropout(there())
    assert torch.equal(before, torch.get_rng_state())
    draws = []
    for _ in range(2):
        torch.manual_seed(1)
        draws.append(torch.rand(2, device=NAME))
    assert torch.equal(*draws)
    generators = [torch.Generator(NAME).manual_seed(3) for _ in range(2)]
    draws = [torch.randn(5, device=NAME, generator=generator) for generator in generators]
    assert torch.equal(*draws)


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x.unflatten(1, (2, 4)))[0]
        return outputs[:, -1]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2, groups=1), nn.GroupNorm(1, 3), nn.Flatten()
    ),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    ),
    "lstm": lambda: _Recurrent(nn.LSTM),
    "gru": lambda: _Recurrent(nn.GRU),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_the_processors_on_the_simulated_device(name: str) -> None:
    torch.manual_seed(0)
    net = NETWORKS[name]()
    twin = copy.deepcopy(net).to(NAME)
    x = torch.randn(7, 8)
    net(x).square().sum().backward()
    twin(x.to(NAME)).square().sum().backward()
    for parameter, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), parameter.grad)


def test_autocast_and_functorch() -> None:
    with torch.autocast(NAME, dtype=torch.bfloat16):
        assert (there() @ there()).dtype == torch.bfloat16
    gradient = torch.func.grad(lambda weight, x: (weight @ x).sin().sum())
    x = torch.ones(5, 3, device=NAME)
    assert torch.func.vmap(gradient, (None, 0))(there(), x).shape == (5, 3, 3)
