"""Runs on a device give what they give on the processor: samples, events and noise exactly, weights
but for rounding.

Each test runs on the processor, too, where it is trivial: so what it calls is known to work. On the
simulated device they run in a process of their own, together with the tests that are for it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.auditing import Transcript, commit, replay
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.clipping.clips import Flat, PerLayer, Quantile
from privlearn.core.clipping.randomness import RowRandom
from privlearn.core.mechanisms.noise import add_gaussian, add_on_grid
from privlearn.core.precision import single_precision
from privlearn.core.rows import TensorRows
from privlearn.core.streams import CIPHER
from privlearn.errors import BadInput
from privlearn.runs.transcript import CommittedSecret
from privlearn.training import pinned_rows
from tests.support.devices import DEVICES, run_on_the_simulated_device
from tests.support.registries import completed
from tests.support.simulated.device import is_installed
from tests.support.steps import EachStep

LOSS = nn.CrossEntropyLoss(reduction="none")


@pytest.fixture(autouse=True)
def models_in_full_precision() -> Iterator[None]:
    """CUDA's convolutions keep ten bits of their factors unless it is set."""
    with single_precision(torch.device("cuda")):
        yield


def data(examples: int = 60) -> pv.Dataset:
    rng = np.random.default_rng(1)
    return pv.Dataset(
        rng.random((examples, 1, 8, 8), np.float32), rng.integers(3, size=examples), classes=3
    )


def network(kind: str = "cnn") -> nn.Module:
    torch.manual_seed(2)
    if kind == "cnn":
        body = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
        return nn.Sequential(*body)
    if kind == "mlp with dropout":
        body = [nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)]
        return nn.Sequential(nn.Flatten(), *body)
    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        return nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(64, 3))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def trained(device: str, kind: str = "cnn", **own: object) -> pv.Result:
    clip = own.pop("clip", Flat(0.5))
    sampling = own.pop("sampling", pv.Partition(4))
    plan = pv.Plan(sampling, 2, pv.schedules.Constant(1.0), clip, examples=60)
    streams = pv.Streams.new(3, discrete=bool(own.pop("discrete", False)), cipher="chacha20")
    return pv.dpsgd(plan, network(kind), LOSS, data(), device=device, streams=streams, **own)


def weights(result: pv.Result) -> Tensor:
    return torch.cat(
        [parameter.detach().cpu().flatten() for parameter in result.model.parameters()]
    )


@DEVICES
@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_the_processors(device: str, dtype: torch.dtype, cipher: str) -> None:
    """AES draws it on the processor; ChaCha20 on the device, on a grid with the same bits, and else
    but for rounding.
    """
    for discrete in (False, True):
        sums = []
        for place in ("cpu", device):
            values = [
                torch.zeros(300, dtype=dtype, device=place),
                torch.zeros(7, 11, dtype=dtype, device=place),
            ]
            stream = pv.Streams.new(4, discrete=discrete, cipher=cipher).noise
            if discrete:
                add_on_grid(values, 1.5, 0.1, stream)
            else:
                add_gaussian(values, 0.3, stream)
            assert all(value.device.type == place for value in values)
            sums.append(torch.cat([value.cpu().flatten() for value in values]))
        exact = discrete or cipher == "aes" or device == "cpu"
        room = 0.0 if exact else 0.3 * (2.0**-46 if dtype == torch.float64 else 2.0**-18)
        assert bool(((sums[0] - sums[1]).abs() <= room * (1 + sums[0].abs())).all())
        assert sums[0].unique().numel() > 300


@DEVICES
def test_much_noise_is_the_processors(device: str) -> None:
    """So much that a kernel is compiled for it, where there is one that does the same."""
    for discrete in (False, True):
        sums = []
        for place in ("cpu", device):
            value = torch.zeros(1 << 21, device=place)
            stream = pv.Streams.new(4, discrete=discrete, cipher="chacha20").noise
            if discrete:
                add_on_grid([value], 1.5, 0.1, stream)
            else:
                add_gaussian([value], 0.3, stream)
            sums.append(value.cpu())
        room = 0.0 if discrete else 0.3 * 2.0**-18
        assert bool(((sums[0] - sums[1]).abs() <= room * (1 + sums[0].abs())).all())


@DEVICES
def test_masks_are_the_processors(device: str) -> None:
    """Of dropout and of what else draws, by both ciphers."""
    for cipher in ("aes", "chacha20"):
        drawn = []
        for place in ("cpu", device):
            random = RowRandom()
            random.active, random.cipher = True, cipher
            random.begin(bytes(range(16)))
            random.take(np.array([5, 2**63 + 7, 9], np.uint64))
            x = torch.ones(3, 50, device=place)
            with random.together():
                kept = [nn.functional.dropout(x, share) for share in (0.3, 1.0)]
                kept += [torch.bernoulli(0.4 * x), torch.empty_like(x).bernoulli_(0.6)]
                kept += [torch.rand_like(x)]
            with random.alone(1):
                alone = nn.functional.dropout(x[:1], 0.3)
            assert torch.equal(alone, kept[0][1:2])
            drawn.append(torch.stack(kept).cpu())
        assert torch.equal(*drawn)


@DEVICES
def test_a_run_draws_by_the_cipher_of_its_device(device: str, tmp_path: Path) -> None:
    """It says so in its checkpoint; what was chosen before, or drawn from, stays."""

    def stop(done: int, steps: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    usual = "aes" if device == "cpu" else "chacha20"
    plan = pv.Plan(pv.Partition(4), 2, pv.schedules.Constant(1.0), Flat(0.5), examples=60)
    used = pv.Streams.new(3)
    used.noise.words(1)
    for number, (streams, cipher) in enumerate(
        [
            (pv.Streams.new(3), usual),
            (pv.Streams.new(3, cipher="aes"), "aes"),
            (pv.Streams.new(3, cipher="chacha20"), "chacha20"),
            (used, "aes"),
        ]
    ):
        options = {"device": device, "checkpoint": tmp_path / str(number)}
        with pytest.raises(KeyboardInterrupt):
            pv.dpsgd(
                plan,
                network("linear"),
                LOSS,
                data(),
                streams=streams,
                callbacks=EachStep(stop),
                **options,
            )
        assert streams.noise.cipher == cipher
        saved = pv.runs.Checkpoint(tmp_path / str(number)).read()
        assert saved is not None
        assert saved.plain["streams"]["noise"]["cipher"] == cipher
        pv.dpsgd(plan, network("linear"), LOSS, data(), **options)


@DEVICES
def test_a_state_that_names_no_cipher_draws_what_the_run_drew(device: str) -> None:
    """It was taken before the run chose one, and leaves the choice to the run that it is for."""
    streams = pv.Streams.new(3)
    state = streams.state()
    assert state["noise"]["cipher"] is None
    plan = pv.Plan(pv.Partition(4), 1, pv.schedules.Constant(1.0), Flat(0.5), examples=60)
    runs = [
        pv.dpsgd(plan, network("linear"), LOSS, data(), device=device, streams=each)
        for each in (streams, pv.Streams.at(state))
    ]
    assert torch.equal(*map(weights, runs))
    chosen = pv.Streams.at(streams.state()).noise.cipher
    assert chosen == ("aes" if device == "cpu" else "chacha20")


@DEVICES
def test_dpmac_draws_by_the_cipher_of_its_device(device: str) -> None:
    """The same noise comes on the processor, if it is asked for."""
    plan = pv.Plan(pv.Partition(4), 2, pv.schedules.Constant(1.0), pv.mac.Derivatives(0.3, 0.3))

    def mac_on(place: str, streams: pv.Streams) -> pv.Result:
        torch.manual_seed(2)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3))
        return pv.dpmac(plan, net, "binary_cross_entropy", data(), device=place, streams=streams)

    streams = pv.Streams.new(3)
    there = weights(mac_on(device, streams))
    assert streams.noise.cipher == ("aes" if device == "cpu" else "chacha20")
    here = weights(mac_on("cpu", pv.Streams.new(3, cipher=streams.noise.cipher)))
    assert (here - there).norm() < 1e-4 * here.norm()
    assert there.unique().numel() > 300


@DEVICES
@pytest.mark.parametrize("loss_later", [False, True])
def test_own_loops_draw_where_the_weights_are(device: str, loss_later: bool) -> None:
    """Whenever the loop says its loss."""
    model = network("linear").to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows = data()
    loader = DataLoader(TensorDataset(torch.from_numpy(rows.x), torch.from_numpy(rows.y)), 15)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return LOSS(model(batch[0]), batch[1])

    options = {} if loss_later else {"loss": loss}
    run = pv.make_private(
        model,
        optimizer,
        loader,
        noise_multiplier=1.0,
        epochs=1,
        max_grad_norm=0.5,
        delta=1e-5,
        **options,
    )
    for batch in run.batches():
        run.step(batch, loss) if loss_later else run.step(batch)
    assert run.session.streams.noise.cipher == ("aes" if device == "cpu" else "chacha20")


@DEVICES
@pytest.mark.parametrize("kind", ["cnn", "transformer", "linear", "mlp with dropout"])
def test_runs_differ_by_rounding_alone(device: str, kind: str) -> None:
    here, there = trained("cpu", kind), trained(device, kind)
    assert here.ledger.event == there.ledger.event
    assert (weights(here) - weights(there)).norm() < 1e-4 * weights(here).norm()
    assert all(parameter.device.type == "cpu" for parameter in there.model.parameters())


@DEVICES
@pytest.mark.parametrize(
    "clip",
    completed("clips", [Flat(0.2), PerLayer(0.2), Quantile(0.2)]),
    ids=lambda clip: clip.kind,
)
def test_every_clip_and_sampler_runs(device: str, clip: object) -> None:
    for sampling in (pv.Poisson(0.2), pv.Shuffle(16)):
        here, there = (
            trained(place, "linear", clip=clip, sampling=sampling) for place in ("cpu", device)
        )
        assert (weights(here) - weights(there)).norm() < 1e-4 * weights(here).norm()


@DEVICES
def test_models_run_in_low_precision(device: str) -> None:
    assert weights(trained(device, "transformer", precision="bf16")).isfinite().all()


@DEVICES
def test_a_run_is_resumed_where_it_was(device: str, tmp_path: Path) -> None:
    """Bit for bit on the processor; what is published verifies."""
    whole = trained(device, discrete=True)

    def stop(done: int, steps: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(device, discrete=True, checkpoint=tmp_path / "run", callbacks=EachStep(stop))
    resumed = trained(device, discrete=True, checkpoint=tmp_path / "run")
    assert (weights(resumed) - weights(whole)).norm() <= (0 if device == "cpu" else 1e-4) * weights(
        whole
    ).norm()
    assert pv.verify(pv.publish(resumed, tmp_path / "model", delta=1e-5)).ok


@DEVICES
def test_a_recorded_run_is_replayed_on_the_processor(device: str, tmp_path: Path) -> None:
    """Its noise and its masks follow from what was committed to, the cipher too, wherever it is
    taken again.
    """
    rows = data(24)

    def train_on(where: str) -> Callable[[Any], pv.Result]:
        def train(checkpoint: Any) -> pv.Result:
            plan = pv.Plan(pv.Partition(3), 2, pv.schedules.Constant(1.0), Flat(0.5), examples=24)
            net = network("mlp with dropout")
            return pv.dpsgd(plan, net, LOSS, rows, device=where, checkpoint=checkpoint)

        return train

    folder = tmp_path / "transcript"
    commit(rows, folder, train_on(device))
    recorded = train_on(device)(Transcript(folder, challenge="07", steps=2))
    pv.publish(recorded, tmp_path / "model", delta=1e-5)
    options = {"steps": 6, "published": tmp_path / "model", "tolerance": 1e-4}
    found = replay(folder, train_on("cpu"), rows, **options)
    assert found.ok, found.verdict
    assert found.replayed == 6
    secret = CommittedSecret(folder)
    assert secret.run.get(CIPHER, "aes") == ("aes" if device == "cpu" else "chacha20")
    if device != "cpu":  # to the bit another device may compute otherwise
        with pytest.raises(BadInput, match="device"):
            replay(folder, train_on("cpu"), rows, steps=6)


class Prefetched:
    """Runs with rows that are fetched ahead, or not; which rows fail, and how many parts of batches
    were there when they were asked for.
    """

    def __init__(self, patch: pytest.MonkeyPatch, failing: int | None = None) -> None:
        fetch, ahead = TensorRows.fetch, pinned_rows.PinnedRows.fetch
        self.asked, self.fetched_late = 0, 0
        within: list[bool] = []

        def fetch_or_fail(rows: TensorRows, places: Tensor) -> Any:
            if failing is not None and failing in places.tolist():
                raise OSError("a row that can't be read")
            self.fetched_late += bool(within) and current_thread() is main_thread()
            return fetch(rows, places)

        def count(rows: Any, places: Tensor) -> Any:
            self.asked += 1
            within.append(True)
            try:
                return ahead(rows, places)
            finally:
                within.pop()

        patch.setattr(TensorRows, "fetch", fetch_or_fail)
        patch.setattr(pinned_rows.PinnedRows, "fetch", count)


@DEVICES
@pytest.mark.parametrize("sampling", [pv.Poisson(0.2), pv.Shuffle(16)], ids=["poisson", "shuffle"])
def test_rows_that_are_fetched_ahead_change_nothing(
    device: str, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in one physical batch, nor in several; they are fetched once."""
    for microbatch in (None, 5):
        ends = []
        for largest in (0, pinned_rows.LARGEST):
            monkeypatch.setattr(pinned_rows, "LARGEST", largest)
            with monkeypatch.context() as patch:
                counts = Prefetched(patch)
                options = {"sampling": sampling, "microbatch": microbatch}
                result = trained(device, "mlp with dropout", **options)
            ends.append((weights(result), result.ledger.event))
            assert (counts.asked > 0) == (largest > 0 and device != "cpu")
            # but for the examples that are compared with autograd's
            assert counts.fetched_late <= counts.asked / 2
        assert torch.equal(ends[0][0], ends[1][0])
        assert ends[0][1] == ends[1][1]


@DEVICES
def test_a_row_that_fails_ahead_is_absent_in_its_own_batch(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches before it are what they are without; the others of its batch count."""
    figures = []
    for largest in (0, pinned_rows.LARGEST):
        monkeypatch.setattr(pinned_rows, "LARGEST", largest)
        with monkeypatch.context() as patch:
            Prefetched(patch, failing=7)
            result = trained(device, "linear", sampling=pv.Shuffle(16))
        figures.append((weights(result), result.private_diagnostics))
    assert torch.equal(figures[0][0], figures[1][0])
    assert str(figures[0][1]) == str(figures[1][1])
    monkeypatch.undo()
    assert not torch.equal(
        figures[0][0], weights(trained(device, "linear", sampling=pv.Shuffle(16)))
    )


@DEVICES
def test_what_was_fetched_for_a_batch_that_never_ran_costs_nothing(device: str) -> None:
    """It was drawn, too, and its rows are private: the ledger has the steps that were taken."""
    plan = pv.Plan(pv.Poisson(0.2), 2, pv.schedules.Constant(1.0), Flat(0.5), examples=60)
    ledger = pv.Ledger()
    options = {"ledger": ledger, "streams": pv.Streams.new(3), "device": device}
    with pv.Run(plan, network("linear"), LOSS, data(), **options) as run:
        for number, batch in enumerate(run.batches()):
            if number == 3:
                break
            run.step(batch)
    assert ledger.event == compose([Repeated(PoissonSampled(0.2, Gaussian(1.0)), 3)])


#: Files with tests of the simulated device.
SIMULATED = (
    "tests/support/rules_of_simulated.py",
    "tests/runs/test_devices.py",
    "tests/clipping/engine_on_simulated.py",
    "tests/runs/steps_on_simulated.py",
)


@pytest.mark.skipif(is_installed(), reason="this is the process that has the device")
def test_on_the_simulated_device() -> None:
    """The device's own rules, the tests above, and what a step costs."""
    run_on_the_simulated_device(*SIMULATED)
