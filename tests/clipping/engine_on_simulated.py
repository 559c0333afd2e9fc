"""On a device the engine asks all that it has to know at once, and gives the processor's sums: also
where an answer is no, and it has to look at one thing after the other.

Run by tests/runs/test_devices.py in a process that has the simulated device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import backends, gradients, per_example, row_norms, trained_state
from privlearn.core.clipping.bounded import Contributions
from privlearn.core.clipping.clips import Clip, Flat, PerLayer
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.per_example import GramNorms, settle_all
from privlearn.core.clipping.row_norms import Assumed, RowNorms, settle
from privlearn.core.clipping.separation import tracker
from privlearn.core.rows import TensorRows
from privlearn.errors import UnsoundExtension
from tests.clipping.checks_written import FlaggedRows
from tests.support.mutant import Mutant
from tests.support.nets import cross_entropy, one_sample
from tests.support.simulated.counts import counting
from tests.support.simulated.memory import NAME, mirror

ROWS = 9


class Net(nn.Module):
    """On rows of the data it does something else than on made-up ones, by the same operations:
    `act` gets 100 then in place of 0.
    """

    def __init__(self, act: Callable[[Net, Tensor, int], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)
        self.register_buffer("table", torch.cat([torch.ones(100), torch.arange(100.0)]))
        self.flag, self.act = False, act
        self.wrote = False
        self.memory: Any = None

    def move(self, device: str) -> Net:
        """To the device; writes into its `memory` are writes into a weight, of which PyTorch sees
        nothing.
        """
        self.to(device)
        weight = self.b.weight.detach()
        self.memory = (weight if device == "cpu" else mirror(weight)).numpy()
        return self

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.a(x))
        if self.act is not None:
            hidden = self.act(self, hidden, 100 if self.flag else 0)
        return self.b(hidden)


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(ROWS, 5), torch.arange(ROWS) % 3


def summed(
    device: str,
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    clip: Clip = Flat(0.3),  # noqa: B008 - a frozen value
    prepared: Callable[[], object] = lambda: None,
    loss: Any = cross_entropy,
) -> tuple[Tensor, ClippedGradients]:
    """The sum over all rows, as one vector of the processor, and the engine."""
    net = net.move(device) if isinstance(net, Net) else net.to(device)
    clipper = ClippedGradients(net, loss, clip, Adjacency.ADD_REMOVE)
    clipper.prepare(TensorRows((x, y)))
    assert clipper.way == "layers", clipper.reason
    prepared()
    rows: Any = FlaggedRows(net, x, y) if isinstance(net, Net) else TensorRows((x, y))
    values = clipper(one_sample(examples=len(x)), rows).values
    return torch.cat([value.cpu().flatten() for value in values]), clipper


def require_the_processors(
    make: Callable[[], nn.Module], x: Tensor, y: Tensor, way: str, clip: Clip | None = None
) -> None:
    """Both give the same sum, by the same way."""
    (here, one), (there, other) = (
        summed(device, make(), x, y, clip or Flat(0.3)) for device in ("cpu", NAME)
    )
    assert (one.way, other.way) == (way, way), (one.reason, other.reason)
    assert here.isfinite().all()
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-7)


def test_usual_batches_on_the_simulated_device() -> None:
    x, y = data()
    require_the_processors(Net, x, y, "layers")
    require_the_processors(Net, x, y, "layers", PerLayer(0.3))


def test_rows_that_are_not_finite_on_the_simulated_device() -> None:
    x, y = data()
    x[2, 1], x[5, 0] = float("nan"), float("inf")
    require_the_processors(Net, x, y, "layers")
    without, _ = summed(NAME, Net(), x[[0, 1, 3, 4, 6, 7, 8]], y[[0, 1, 3, 4, 6, 7, 8]])
    torch.testing.assert_close(summed(NAME, Net(), x, y)[0], without, rtol=1e-5, atol=1e-7)


def _write_at_first(net: Net, hidden: Tensor, start: int) -> Tensor:
    """Writes in the first pass over rows of the data."""
    if start and not net.wrote:
        net.memory *= 10.0
        net.wrote = True
    return hidden


def _write_at_first_in_a_new_program(net: Net, hidden: Tensor, start: int) -> Tensor:
    """The same, in a program that is checked by further passes."""
    return _write_at_first(net, hidden, start) * net.table[start + 1]


@pytest.mark.parametrize("act", [_write_at_first, _write_at_first_in_a_new_program])
def test_writes_into_weights_on_the_simulated_device(act: Any) -> None:
    """What a pass wrote is undone, and examples are computed one by one from then on."""
    x, y = data()
    nets: list[Net] = []

    def make() -> Net:
        nets.append(Net(act))
        return nets[-1]

    require_the_processors(make, x, y, "loop")
    for net in nets:
        assert torch.equal(net.b.weight.detach().cpu(), Net().b.weight.detach())


def _differ_along_the_batch(net: Net, hidden: Tensor, start: int) -> Tensor:
    return hidden * net.table[start : start + len(hidden), None]


def _count_the_batch(net: Net, hidden: Tensor, start: int) -> Tensor:
    number = (1, len(hidden))[start > 0]
    return hidden * torch.ones(number, device=hidden.device).sum()


@pytest.mark.parametrize("act", [_differ_along_the_batch, _count_the_batch])
def test_examples_that_meet_on_the_simulated_device(act: Any) -> None:
    x, y = data()
    (_, one), (_, other) = (summed(device, Net(act), x, y) for device in ("cpu", NAME))
    assert (one.way, other.way) == ("loop", "loop")
    assert one.reason == other.reason


def _lose_the_third(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(outputs, targets)
    return losses + torch.where(targets == 2, float("inf"), 0.0)


def test_losses_that_are_not_finite_on_the_simulated_device() -> None:
    """Gradients are: the examples count as absent all the same."""
    x, y = data()
    others = y != 2
    all_rows, few = (
        summed(NAME, Net(), *rows, loss=loss)[0]
        for rows, loss in (((x, y), _lose_the_third), ((x[others], y[others]), cross_entropy))
    )
    torch.testing.assert_close(all_rows, few, rtol=1e-5, atol=1e-7)


@dataclass(frozen=True)
class Rare(Clip):
    """Triples gradients whose norms are in a narrow band, which no made-up norm is in."""

    clip_norm: float = 0.25
    band: tuple[float, float] = (0.0, 0.0)
    kind: ClassVar[str] = "rare"

    def norm(self, clip_norm: float, layers: int) -> float:
        return clip_norm

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        usual = (clip_norm / norms).clamp(max=1.0)
        least, most = self.band
        return torch.where((norms > least) & (norms < most), 3 * usual, usual)


def test_clips_that_break_their_word_on_the_simulated_device() -> None:
    """The example adds nothing."""
    x, y = data()
    lengths: list[Tensor] = []
    net = Net()
    for row, label in zip(x, y, strict=True):
        loss = cross_entropy(net(row[None]), label[None]).sum()
        parts = torch.autograd.grad(loss, list(net.parameters()))
        lengths.append(torch.cat([part.flatten() for part in parts]).norm())
    length = float(max(lengths))
    clip = Rare(band=(0.999 * length, 1.001 * length))
    require_the_processors(Net, x, y, "layers", clip)
    usual, _ = summed(NAME, Net(), x, y, Rare())
    assert (summed(NAME, Net(), x, y, clip)[0] - usual).norm() > 0.2


def test_rules_are_compared_on_the_simulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose gradients are not autograd's goes on one by one."""
    x, y = data()
    usual = backends.Loop.each

    def doubled(self: Any, *leaves: Tensor) -> Iterator[Any]:
        for parts, loss in usual(self, *leaves):
            yield [2 * part for part in parts], loss

    _, clipper = summed(
        NAME, Net(), x, y, prepared=lambda: monkeypatch.setattr(backends.Loop, "each", doubled)
    )
    assert clipper.way == "loop"
    assert "rule" in str(clipper.reason)


def test_norms_are_assumed_on_the_simulated_device() -> None:
    """Tiny and huge rows are looked at again, rows of zeros are not; nothing is waited for."""
    for row, safe in ((0.0, True), (1.0, True), (1e-20, False), (1e19, False)):
        rows = torch.ones(4, 3, device=NAME)
        rows[2] = row
        norms, assumed = RowNorms(rows), Assumed()
        with counting() as counts:
            settle([norms], assumed)
        assert counts.waits == 0
        assert [bool(answer) for answer in assumed.answers] == [safe]
        assumed.withdraw()
        expected = torch.linalg.vector_norm(rows.cpu().double(), dim=1)
        torch.testing.assert_close(norms.values.cpu(), expected, rtol=1e-6, atol=0.0)


def test_terms_that_cancel_on_the_simulated_device() -> None:
    """Their gradient is formed, if they are not zero; the norm is that of the sum."""
    torch.manual_seed(0)
    a = torch.randn(4, 2, 6)
    g = torch.randn(4, 2, 5)
    a[1, 1], g[1, 1] = a[1, 0] + 1e-4, -g[1, 0]
    g[2] = 0.0
    expected = torch.linalg.vector_norm((g.double().mT @ a.double()).flatten(1), dim=1)
    for rows, safe in ((slice(2, 4), True), (slice(0, 4), False)):
        gram = GramNorms(g[rows].to(NAME), a[rows].to(NAME), (5, 6), lambda *_: None)
        assumed = Assumed()
        with counting() as counts:
            settle_all([gram], assumed)
        assert counts.waits == 0
        assert all(map(bool, assumed.answers)) == safe
        if not safe:
            assumed.withdraw()
        torch.testing.assert_close(gram.squares.cpu().sqrt(), expected[rows], rtol=1e-3, atol=1e-12)


def test_too_long_contributions_on_the_simulated_device() -> None:
    """The look before a release is still there."""
    contributions = Contributions.of(torch.tensor([0.5, 1.5], device=NAME), 1.0, "a test")
    with pytest.raises(UnsoundExtension, match="adds more to a sum"):
        contributions.require_kept()


PLANTED: list[tuple[Mutant, Callable[[], object]]] = [
    (
        Mutant(
            "answers are not read",
            gradients.ClippedGradients._compute_unasked,
            "all(torch.stack",
            "True or all(torch.stack",
            "",
        ),
        test_rows_that_are_not_finite_on_the_simulated_device,
    ),
    (
        Mutant(
            "whether the clip keeps its bound is not asked",
            gradients.ClippedGradients._compute_unasked,
            "*answers, weighed.within.all()",
            "*answers",
            "",
        ),
        test_clips_that_break_their_word_on_the_simulated_device,
    ),
    (
        Mutant(
            "whether rows are finite is not asked",
            gradients.ClippedGradients._compute_unasked,
            "(squares.sum() + losses.sum()).isfinite()",
            "(squares.sum() + losses.sum()).isfinite() | True",
            "",
        ),
        test_losses_that_are_not_finite_on_the_simulated_device,
    ),
    (
        Mutant(
            "whether weights were written is not asked",
            gradients.ClippedGradients._compute,
            "assumed.note(untouched, self._require_untouched)",
            "pass",
            "",
        ),
        lambda: test_writes_into_weights_on_the_simulated_device(_write_at_first),
    ),
    (
        Mutant(
            "weights are not put back",
            trained_state.TrainedState.restore,
            "[entry.memory for entry in self._entries], [entry.copy for entry in self._entries]",
            "[entry.copy for entry in self._entries], [entry.copy for entry in self._entries]",
            "",
        ),
        lambda: test_writes_into_weights_on_the_simulated_device(_write_at_first),
    ),
    (
        Mutant(
            "a later pass forgets what an earlier one wrote",
            trained_state.TrainedState.restore,
            "place if known is None else known.where(known >= 0, place)",
            "place",
            "",
        ),
        lambda: test_writes_into_weights_on_the_simulated_device(_write_at_first_in_a_new_program),
    ),
    (
        Mutant(
            "constants are not asked about",
            tracker.AxisTracker._are_equal,
            "self._assumed.note(equal.all(), lambda: None)",
            "pass",
            "",
        ),
        lambda: test_examples_that_meet_on_the_simulated_device(_differ_along_the_batch),
    ),
    (
        Mutant(
            "numbers are not asked about",
            backends._same_notes,
            "assumed.note(torch.stack(answers).all(), lambda: None)",
            "pass",
            "",
        ),
        lambda: test_examples_that_meet_on_the_simulated_device(_count_the_batch),
    ),
    (
        Mutant(
            "small norms pass",
            row_norms._assume_safe,
            "(together > SAFE[0])",
            "(together >= 0)",
            "",
        ),
        test_norms_are_assumed_on_the_simulated_device,
    ),
    (
        Mutant(
            "terms may cancel",
            per_example._settle_grams,
            "assumed.note((safe |",
            "assumed.note((safe | True |",
            "",
        ),
        test_terms_that_cancel_on_the_simulated_device,
    ),
]


@pytest.mark.parametrize("place", range(len(PLANTED)), ids=[bug.name for bug, _ in PLANTED])
def test_planted_bugs_on_the_simulated_device(place: int) -> None:
    bug, test = PLANTED[place]
    with bug.planted(), pytest.raises((AssertionError, UnsoundExtension)):
        test()
