"""What a device answers otherwise than the processor, and a run must not: labels and tokens out of
range, too little memory, rows that are elsewhere, other default devices.

Run by test_device_faults.py in a process that has the simulated device, and by `pytest
tests/runs/faults_on_simulated.py` on CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import privlearn as pv
from privlearn.core import devices
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.backends import Backend, Loop, PerOperation, Problem, Vmap, layouts
from privlearn.core.clipping.clips import Flat, PerLayer
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.randomness import RowRandom
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput, OutOfMemory
from tests.support.devices import ACCELERATOR, COUNTED
from tests.support.simulated.counts import counting

LOSS = nn.CrossEntropyLoss(reduction="none")
TOKENS, CLASSES = 12, 5


class Embedded(nn.Module):
    """Tokens through an embedding, and a class's score through a gather."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 6)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x).mean(1))


def gathered(out: Tensor, y: Tensor) -> Tensor:
    return -out.log_softmax(1).gather(1, y[:, None]).squeeze(1)


def chosen(out: Tensor, y: Tensor) -> Tensor:
    return -(out.log_softmax(1) * F.one_hot(y, CLASSES)).sum(1)


def model() -> Embedded:
    with torch.device("cpu"):  # each kind of device draws other weights
        torch.manual_seed(1)
        return Embedded()


def rows(count: int = 40) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randint(TOKENS, (count, 4), generator=random)
    return x, torch.randint(CLASSES, (count,), generator=random)


def plan(clip: Any = None) -> pv.Plan:
    batches = pv.Partition(4)
    return pv.Plan(batches, 1, pv.schedules.Constant(1.0), clip or Flat(0.5), examples=40)


@final
class Listed(TorchDataset[Any]):
    """A map-style data set, which is not looked at beforehand."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        return self.x[place], self.y[place]


def trained(device: str, data: Any, loss: Any = LOSS, clip: Any = None) -> Tensor:
    result = pv.dpsgd(
        plan(clip), model(), loss, data, device=device, streams=pv.Streams.new(3, cipher="chacha20")
    )
    return torch.cat([weights.detach().cpu().flatten() for weights in result.model.parameters()])


def with_fault(kind: str) -> tuple[Tensor, Tensor]:
    x, y = rows()
    if kind == "a label too large":
        y[7] = 99
    if kind == "a negative label":
        y[7] = -1
    if kind == "a token too large":
        x[7, 2] = TOKENS
    if kind == "a negative token":
        x[7, 2] = -1
    return x, y


FAULTS = ["a label too large", "a negative label", "a token too large", "a negative token"]
LOSSES = {"cross entropy": LOSS, "gather": gathered, "one hot": chosen}


@pytest.mark.parametrize(
    ("fault", "loss"),
    [(fault, "cross entropy") for fault in FAULTS]
    + [(fault, loss) for fault in FAULTS[:2] for loss in ("gather", "one hot")],
)
def test_a_row_with_an_index_out_of_range_is_absent(fault: str, loss: str) -> None:
    """As on the processor, bit for bit but for rounding, and the device goes on."""
    data = Listed(*with_fault(fault))
    here, there = (trained(device, data, LOSSES[loss]) for device in ("cpu", ACCELERATOR))
    assert (here - there).abs().max() <= 1e-6
    assert float(torch.ones(2, device=ACCELERATOR).sum()) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_look_beforehand_finds_it_and_the_device_goes_on(fault: str) -> None:
    refusals = []
    for device in ("cpu", ACCELERATOR):
        ledger = pv.Ledger()
        with pytest.raises(BadInput) as refused:
            pv.dpsgd(plan(), model(), LOSS, with_fault(fault), device=device, ledger=ledger)
        refusals.append(str(refused.value).partition(": ")[0])
        assert ledger.event == pv.Ledger().event
    assert refusals[0] == refusals[1]
    assert float(torch.ones(2, device=ACCELERATOR).sum()) == 2


def ways(problem: Problem, like: list[Tensor]) -> dict[str, Backend]:
    def batch(size: int) -> list[Tensor]:
        x, y = rows(size)
        return [x.to(like[0].device), y.to(like[0].device)]

    kernels = ClippedGradients(problem.model, problem.loss, Flat(1.0), Adjacency.ZERO_OUT)._kernels
    seen = layouts(problem, kernels, [batch(3), batch(5)])
    return {
        "layers": PerOperation(problem, kernels, seen),
        "vmap": Vmap(problem),
        "loop": Loop(problem),
    }


@pytest.mark.parametrize("way", ["layers", "vmap", "loop"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_way_to_gradients_leaves_the_row_out(way: str, fault: str) -> None:
    """The sum is that of all other rows."""
    sums = []
    x, y = with_fault(fault)
    whole = torch.arange(len(x)) != 7
    for here_x, here_y in ((x, y), (x[whole], y[whole])):
        network = model().to(ACCELERATOR)
        gradients = ClippedGradients(network, gathered, Flat(0.5), Adjacency.ZERO_OUT)
        gradients.prepare(*rows())
        gradients._way = ways(gradients._problem(None), [network.embed.weight])[way]
        (sample,) = FullBatch().draw(len(here_x), np.random.default_rng(0))
        values = gradients(sample, here_x, here_y).values
        sums.append(torch.cat([value.cpu().flatten() for value in values]))
        assert gradients.way == way
    assert (sums[0] - sums[1]).abs().max() <= 1e-6


@COUNTED
def test_looking_at_indices_waits_for_nothing() -> None:
    """The flag is read where losses and norms are looked at anyway."""
    waits = []
    for looks in (True, False):
        network = model().to(ACCELERATOR)
        gradients = ClippedGradients(network, LOSS, Flat(0.5), Adjacency.ZERO_OUT)
        gradients.prepare(*rows())
        gradients._indices.looks = looks
        (sample,) = FullBatch().draw(40, np.random.default_rng(0))
        gradients(sample, *rows())
        with counting() as seen:
            gradients(sample, *rows())
        waits.append(seen.waits)
    assert waits[0] == waits[1]


class Indexed(Embedded):
    """Takes scores by an index that is no tensor of the batch, out of range once it is `odd`."""

    def __init__(self, form: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.form, self.odd = form, False

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores + self.form(scores, CLASSES if self.odd else 2).sum(1, keepdim=True)


@torch.jit.script
def pick_by_script(scores: Tensor, last: int) -> Tensor:
    return scores[:, [0, last]]


FORMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "a list": lambda scores, last: scores[:, [0, last]],
    "a tuple": lambda scores, last: scores[:, (0, last)],
    "an array": lambda scores, last: scores[:, np.array([0, last])],
    "a range": lambda scores, last: scores[:, range(last - 1, last + 1)],
    "a tensor of the processor": lambda scores, last: scores[:, torch.tensor([0, last])],
    "TorchScript": pick_by_script,
}


@pytest.mark.filterwarnings("ignore:training will be slow")
@pytest.mark.parametrize("form", FORMS)
def test_an_index_that_is_no_tensor_of_the_device_is_looked_at(form: str) -> None:
    """All rows are absent then, and the device goes on."""
    network = Indexed(FORMS[form]).to(ACCELERATOR)
    gradients = ClippedGradients(network, LOSS, Flat(0.5), Adjacency.ZERO_OUT)
    gradients.prepare(*rows())
    (sample,) = FullBatch().draw(40, np.random.default_rng(0))
    assert sum(value.abs().sum().item() for value in gradients(sample, *rows()).values) > 0
    network.odd = True
    assert sum(value.abs().sum().item() for value in gradients(sample, *rows()).values) == 0
    assert float(torch.ones(2, device=ACCELERATOR).sum()) == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:training will be slow")
@pytest.mark.parametrize("lengths", ["numbers", "tensors"])
@pytest.mark.parametrize("alone", [False, True])
def test_targets_of_ctc_loss_are_looked_at(lengths: str, alone: bool) -> None:
    """A row with one out of range is absent, on both; what pads a shorter sequence is none."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        assert not alone or out.isfinite().all().item()  # reads a batch
        sizes: list[Any] = [(6,) * len(out), (2,) * len(out)]
        if lengths == "tensors":
            sizes = [torch.tensor(size) for size in sizes]
        return F.ctc_loss(out.log_softmax(2).transpose(0, 1), y, *sizes, reduction="none")

    random = torch.Generator().manual_seed(1)
    x = torch.rand(20, 6, 4, generator=random)
    y = torch.randint(1, CLASSES, (20, 3), generator=random)
    y[:, 2] = -1
    faulty = y.clone()
    faulty[7, 1] = CLASSES
    others = torch.arange(20) != 7
    sums = []
    for device, inputs, targets in (
        ("cpu", x, faulty),
        (ACCELERATOR, x, faulty),
        (ACCELERATOR, x[others], y[others]),
    ):
        torch.manual_seed(1)
        network = nn.Linear(4, CLASSES, device="cpu").to(device)
        gradients = ClippedGradients(network, loss, Flat(0.5), Adjacency.ZERO_OUT)
        gradients.prepare(x, y)
        (sample,) = FullBatch().draw(len(inputs), np.random.default_rng(0))
        values = gradients(sample, inputs, targets).values
        sums.append(torch.cat([value.cpu().flatten() for value in values]))
    assert (sums[0] - sums[1]).abs().max() <= 1e-5
    assert (sums[1] - sums[2]).abs().max() <= 1e-5
    assert float(torch.ones(2, device=ACCELERATOR).sum()) == 2


def test_models_are_evaluated_where_they_are() -> None:
    """Rows may be anywhere: figures and predictions are the processor's."""
    x, y = rows()
    values = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    maps = nn.Conv2d(1, 3, 1)
    images, classes = torch.rand(4, 1, 6, 6), torch.randint(3, (4, 6, 6))
    cases: list[tuple[nn.Module, Tensor, Tensor]] = [
        (model(), x, y),
        (values, x.float(), torch.rand(40)),
        (maps, images, classes),
    ]
    for network, inputs, targets in cases:
        expected = pv.evaluate(network, inputs, targets)
        for at, given in ((ACCELERATOR, "cpu"), (ACCELERATOR, ACCELERATOR), ("cpu", ACCELERATOR)):
            figures = pv.evaluate(network.to(at), inputs.to(given), targets.to(given))
            for name, value in expected.figures.items():
                assert figures[name] == pytest.approx(value, rel=1e-6, abs=1e-6)
        network.cpu()
    paid = pv.statistics.MetricsPlan(classes=CLASSES).calibrate(epsilon=1.0, delta=1e-5)
    released = [
        pv.evaluate(
            model().to(at),
            x.to(at),
            y.to(at),
            paid=paid,
            streams=pv.Streams.new(1, cipher="chacha20"),
        )
        for at in ("cpu", ACCELERATOR)
    ]
    assert released[0].figures == released[1].figures


def test_published_models_predict_where_they_are(tmp_path: Path) -> None:
    x, _ = rows()
    result = pv.dpsgd(
        plan(), model().to(ACCELERATOR), LOSS, rows(), streams=pv.Streams.new(3, cipher="chacha20")
    )
    assert pv.evaluate(result, *rows())["accuracy"] <= 1
    loaded = pv.load_model(pv.publish(result, tmp_path / "model", delta=1e-5), model())
    expected = loaded.predict(x), loaded.predict_proba(x)
    loaded.to(ACCELERATOR)
    assert torch.equal(loaded.predict(x), expected[0])
    assert torch.equal(loaded.predict(x.to(ACCELERATOR)).cpu(), expected[0])
    assert torch.allclose(loaded.predict_proba(x), expected[1])
    assert loaded.predict(x.to(ACCELERATOR)).device.type == ACCELERATOR


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def test_other_default_devices_change_nothing(tmp_path: Path) -> None:
    """Training, evaluation, publication and loading, of models that are there or on the
    processor.
    """
    x, y = rows()
    images = pv.Dataset(np.float32(x) / TOKENS, y.numpy(), classes=CLASSES, low=0, high=1)
    named = {"epsilon": 4.0, "delta": 1e-5, "epochs": 1, "batch_size": 10, "features": "raw"}

    def run(place: str) -> list[Tensor]:
        weights = [trained("cpu", (x, y)), trained(ACCELERATOR, Listed(x, y))]
        network = model().to(place)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        loader: DataLoader[Any] = DataLoader(TensorDataset(x, y), batch_size=10)
        streams = pv.Streams.new(5, cipher="chacha20")
        private = pv.make_private(
            network,
            optimizer,
            loader,
            epsilon=4.0,
            delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
            streams=streams,
        )
        for batch in private.batches():
            private.step(batch, lambda m, b: LOSS(m(b[0]), b[1]))
        weights += [weight.detach().cpu().flatten() for weight in network.parameters()]
        for spec in ("linear", "mlp:8"):
            result = pv.train(
                images, model=spec, streams=pv.Streams.new(1, cipher="chacha20"), **named
            )
            out = tmp_path / f"{place} {spec}"
            loaded = pv.load_model(pv.publish(result, out, delta=1e-5))
            pv.evaluate(result, images.x, images.y)
            weights.append(torch.as_tensor(loaded.predict(images.x)).cpu())
        return weights

    usual = run("cpu")
    with default_device(ACCELERATOR):
        there = run(ACCELERATOR)
    for one, other in zip(usual, there, strict=True):
        assert (one.double() - other.double()).abs().max() <= 1e-5


def test_too_little_memory_on_the_device_ends_the_run() -> None:
    class Hungry(Embedded):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if x.requires_grad or self.full:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.13 GiB")
            return out

    network = Hungry()
    network.full = False
    gradients = ClippedGradients(network.to(ACCELERATOR), LOSS, Flat(0.5), Adjacency.ZERO_OUT)
    gradients.prepare(*rows())
    network.full = True
    (sample,) = FullBatch().draw(40, np.random.default_rng(0))
    with pytest.raises(OutOfMemory) as ended:
        gradients(sample, *rows())
    assert "7.13" not in str(ended.value)


@COUNTED
def test_sums_on_a_device_are_added_in_one_order() -> None:
    """`index_add_` adds in any: no step of a run launches it there."""
    for clip in (Flat(0.5), PerLayer(0.5)):
        with counting() as seen:
            trained(ACCELERATOR, rows(), clip=clip)
        assert seen.launches
        assert not [name for name in seen.operations if name.startswith(("index_add", "scatter_a"))]
    index, values = torch.tensor([2, 0, 2, 1]), torch.rand(4, 3)
    sums = [
        devices.add_rows(torch.ones(3, 3, device=at), index.to(at), values.to(at)).cpu()
        for at in ("cpu", ACCELERATOR)
    ]
    assert torch.allclose(*sums)


def test_the_mask_of_attention_is_drawn_by_key_on_a_device() -> None:
    """Twice the same, other for another batch, and the mask of the processor."""
    q = torch.ones(2, 1, 3, 4)
    seen = {}
    for at in ("cpu", ACCELERATOR):
        random = RowRandom(torch.device(at))
        random.active, random.cipher = True, "chacha20"
        random.take(np.arange(2, dtype=np.uint64))
        outputs = []
        for key in (bytes(16), bytes(16), bytes(range(16))):
            random.begin(key)
            with random.together():
                rows = q.to(at)
                outputs.append(F.scaled_dot_product_attention(rows, rows, rows, None, 0.5).cpu())
        assert torch.equal(outputs[0], outputs[1])
        assert not torch.equal(outputs[0], outputs[2])
        seen[at] = outputs[0]
    torch.testing.assert_close(seen[ACCELERATOR], seen["cpu"])


def test_the_number_of_an_accelerator_is_a_device() -> None:
    """As `torch.device(0)` is."""
    sums = [
        torch.cat([w.detach().flatten() for w in result.model.parameters()])
        for result in (
            pv.dpsgd(
                plan(),
                model(),
                LOSS,
                rows(),
                device=device,  # type: ignore[arg-type]
                streams=pv.Streams.new(3, cipher="chacha20"),
            )
            for device in (0, ACCELERATOR)
        )
    ]
    assert torch.equal(*sums)
    assert torch.device(0) == torch.device(ACCELERATOR, 0)


def test_devices_are_known_by_pytorchs_names_of_them() -> None:
    place = torch.device(ACCELERATOR, 0)
    assert devices.accelerator() == torch.accelerator.current_accelerator()
    assert devices.usual_device() == place
    assert devices.free_memory(place)
    assert devices.free_memory(devices.PROCESSOR) is None
    states = devices.generator_states(place)
    drawn = torch.rand(3, device=place)
    devices.set_generator(place, states[0])
    assert torch.equal(torch.rand(3, device=place), drawn)
    devices.seed_accelerator(4)
    again = torch.rand(3, device=place)
    devices.seed_accelerator(4)
    assert torch.equal(torch.rand(3, device=place), again)
    everything = devices.all_generator_states()
    drawn = torch.rand(3, device=place)
    devices.set_all_generators(everything)
    assert torch.equal(torch.rand(3, device=place), drawn)
