"""Named checks of layers in `nn.Sequential` that are computed as one operation: each as it is by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import kernels
from privlearn.core.clipping.agreement import held_by
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.operations import sequential
from privlearn.core.clipping.operations.sequential import WITH_PARAMETERS, WITHOUT_PARAMETERS
from tests.support.checks import check
from tests.support.nets import cross_entropy, one_sample, require_the_loops_sum

EXAMPLES = 5


def image(channels: int = 2, side: int = 8) -> tuple[int, ...]:
    return channels, side, side


#: For each kind of layer that a run may hold: networks in which it comes first, in the middle and
#: last.
NETWORKS: dict[type[nn.Module], list[tuple[Callable[[], nn.Module], tuple[int, ...]]]] = {
    nn.Linear: [
        (
            lambda: nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 6, bias=False), nn.Linear(6, 3)),
            (5,),
        ),
        (
            lambda: nn.Sequential(
                nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Flatten(), nn.Linear(12, 3)
            ),
            (4, 5),
        ),
        (lambda: shared(), (5,)),
    ],
    nn.Conv1d: [
        (
            lambda: nn.Sequential(
                nn.Conv1d(2, 3, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
            ),
            (2, 8),
        )
    ],
    nn.Conv2d: [
        (
            lambda: nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1),
                nn.Conv2d(4, 4, 3, groups=2),
                nn.Flatten(),
                nn.Linear(144, 3),
            ),
            image(),
        )
    ],
    nn.Conv3d: [
        (
            lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(54, 3)),
            (1, 4, 4, 4),
        )
    ],
    nn.GroupNorm: [
        (
            lambda: nn.Sequential(
                nn.GroupNorm(1, 2),
                nn.Conv2d(2, 4, 3),
                nn.GroupNorm(2, 4),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(144, 3),
                nn.GroupNorm(1, 3),
            ),
            image(),
        )
    ],
    nn.LayerNorm: [
        (
            lambda: nn.Sequential(
                nn.LayerNorm(5), nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)
            ),
            (5,),
        )
    ],
    nn.ReLU: [
        (
            lambda: nn.Sequential(
                nn.ReLU(), nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3), nn.ReLU()
            ),
            (5,),
        ),
        (
            lambda: nn.Sequential(
                nn.ReLU(inplace=True), nn.Linear(5, 7), nn.ReLU(), nn.ReLU(), nn.Linear(7, 3)
            ),
            (5,),
        ),
    ],
    nn.Tanh: [
        (
            lambda: nn.Sequential(
                nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Tanh(), nn.Linear(7, 3), nn.Tanh()
            ),
            (5,),
        )
    ],
    nn.Sigmoid: [
        (
            lambda: nn.Sequential(
                nn.Sigmoid(), nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, 3), nn.Sigmoid()
            ),
            (5,),
        )
    ],
    nn.GELU: [
        (
            lambda: nn.Sequential(
                nn.GELU(), nn.Linear(5, 7), nn.GELU("tanh"), nn.ReLU(), nn.Linear(7, 3)
            ),
            (5,),
        ),
        (lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3), nn.GELU()), (5,)),
    ],
    nn.SiLU: [
        (
            lambda: nn.Sequential(
                nn.SiLU(), nn.Linear(5, 7), nn.SiLU(inplace=True), nn.Linear(7, 3), nn.SiLU()
            ),
            (5,),
        )
    ],
    nn.AvgPool2d: [
        (
            lambda: nn.Sequential(
                nn.AvgPool2d(2),
                nn.Conv2d(2, 4, 2),
                nn.AvgPool2d(2, 1, 1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(64, 3),
            ),
            image(),
        )
    ],
    nn.MaxPool2d: [
        (
            lambda: nn.Sequential(
                nn.MaxPool2d(2),
                nn.Conv2d(2, 4, 2),
                nn.MaxPool2d((2, 1), 1),
                nn.Tanh(),
                nn.Flatten(),
                nn.Linear(24, 3),
            ),
            image(),
        ),
        # enough channels to be computed with channels last, where zeros are maxima that are equal
        (
            lambda: nn.Sequential(
                nn.Conv2d(2, 9, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(324, 3)
            ),
            image(),
        ),
    ],
    nn.Flatten: [
        (
            lambda: nn.Sequential(
                nn.Flatten(),
                nn.Linear(8, 6),
                nn.Tanh(),
                nn.Flatten(),
                nn.ReLU(),
                nn.Linear(6, 3),
                nn.Flatten(),
            ),
            (2, 4),
        )
    ],
}


def shared() -> nn.Module:
    """An activation that stands in several places, and a layer that stands in two."""
    activation, layer = nn.Tanh(), nn.Linear(5, 5)
    return nn.Sequential(layer, activation, nn.Sequential(layer, activation), nn.Linear(5, 3))


def rows_of(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    made_up = torch.Generator().manual_seed(seed)
    x = torch.randn(EXAMPLES, *shape, generator=made_up, dtype=torch.float64)
    return x, torch.arange(EXAMPLES) % 3


def spoilt(self: kernels.Scratch, shape: Any, like: Tensor) -> Tensor:
    """Memory that holds no numbers: what is read before it is written is seen."""
    return like.new_full(tuple(shape), float("nan"))


class Counted:
    """For the block, counts the runs that are computed, and their layers."""

    def __enter__(self) -> Counted:
        self.runs: list[int] = []
        forward = sequential.Tape.forward

        def counted(tape: Any, layers: Any, x: Tensor) -> Tensor:
            self.runs.append(len(layers))
            return forward(tape, layers, x)

        self._patch = mock.patch.object(sequential.Tape, "forward", counted)
        self._patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._patch.stop()


@check
def check_runs_of_layers_are_what_each_layer_is() -> None:
    """Every kind that a run may hold, first, in the middle and last: the loop's sum, by runs,
    inputs as they were.
    """
    assert NETWORKS.keys() == {*WITH_PARAMETERS, *WITHOUT_PARAMETERS}
    with mock.patch.object(kernels.Scratch, "empty", spoilt):
        for kind, networks in NETWORKS.items():
            for make, shape in networks:
                torch.manual_seed(0)
                net, (x, y) = make().double(), rows_of(shape)
                before = x.clone()
                with Counted() as counted:
                    require_the_loops_sum(net, 0.1, x, y, way="layers")
                    assert max(counted.runs, default=0) > 1, f"{kind.__name__}: no run"
                in_place = isinstance(net, nn.Sequential) and getattr(net[0], "inplace", False)
                assert in_place or torch.equal(x, before)


class Block(nn.Module):
    """A run whose input is used once more behind it, and whose output is changed in place."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.body, self.last = nn.Linear(5, 6), nn.Sequential(*layers), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out = self.body(x)
        out += 1.5
        return self.last((out * x).tanh())  # type: ignore[no-any-return]


class Residual(Block):
    """A run whose input is added to its output: autograd hands one gradient to both."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last((self.body(x) + x).tanh())  # type: ignore[no-any-return]


@check
def check_runs_leave_what_others_hold() -> None:
    """What comes into a run, and what it gives, may be used and changed by the model as ever."""
    for layers in (
        (nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)),
        (nn.Tanh(), nn.Linear(6, 6)),
        (nn.Linear(6, 6), nn.SiLU()),
        (nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Flatten()),
        (nn.ReLU(inplace=True), nn.Linear(6, 6), nn.GELU()),
        (nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)), nn.Linear(6, 6)),
        (nn.Linear(6, 6), nn.Dropout(0.0), nn.Tanh(), nn.Linear(6, 6)),
    ):
        torch.manual_seed(0)
        net, (x, y) = Block(*layers).double(), rows_of((5,))
        with Counted() as counted:
            require_the_loops_sum(net, 0.1, x, y, way="layers")
            assert counted.runs, layers
    for activation in (nn.ReLU(), nn.Tanh(), nn.GELU()):
        net, (x, y) = Residual(nn.Linear(6, 6), activation).double(), rows_of((5,))
        require_the_loops_sum(net, 0.1, x, y, way="layers")


class Positioned(nn.Module):
    """Rows are multiplied by what layers make of positions, which are the same for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.encoder = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        self.register_buffer("positions", torch.linspace(-1, 1, 12).view(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) * self.encoder(self.positions)[:, 0]).tanh())  # type: ignore[no-any-return]


@check
def check_layers_on_positions_are_no_run() -> None:
    """What has nothing to do with the batch is the same for all examples, and not a row for
    each.
    """
    torch.manual_seed(0)
    net, (x, y) = Positioned().double(), rows_of((5,))
    with Counted() as counted:
        require_the_loops_sum(net, 0.1, x, y, way="layers")
        assert not counted.runs


def altered() -> dict[str, nn.Module]:
    """Networks in which something is done around a layer of a run: not that layer, but the others
    are a run.
    """
    torch.manual_seed(0)
    names = ("hook", "hook before", "forward", "subclass", "frozen", "parametrized", "nothing")
    plain = {
        name: nn.Sequential(
            nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)
        ).double()
        for name in names
    }
    plain["hook"][0].register_forward_hook(lambda module, given, out: 2 * out)
    plain["hook before"][0].register_forward_pre_hook(lambda module, given: (3 * given[0],))
    own = plain["forward"][0]
    own.forward = lambda x: nn.functional.linear(x, own.weight) * 0.5  # type: ignore[method-assign]
    doubled = type(
        "Doubled", (nn.Linear,), {"forward": lambda self, x: 2 * nn.Linear.forward(self, x)}
    )
    plain["subclass"][0].__class__ = doubled
    plain["frozen"][0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    parametrizations.weight_norm(plain["parametrized"][0])
    return plain


@check
def check_layers_that_were_changed_are_called() -> None:
    """With a hook, a forward of its own, another type, frozen or computed weights, a layer does
    what it is to do.
    """
    x, y = rows_of((5,))
    for name, net in altered().items():
        with Counted() as counted:
            require_the_loops_sum(net, 0.1, x, y)
            assert set(counted.runs) == ({5} if name == "nothing" else {4}), (name, counted.runs)


class Teacher(nn.Module):
    """Rows also go through the layers as they were: `functional_call` puts their first weights
    in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        self.first = {name: p.detach().double().clone() for name, p in self.body.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + functional_call(self.body, self.first, x)  # type: ignore[no-any-return]


@check
def check_other_weights_in_the_places_of_parameters_are_used() -> None:
    """Layers that are called with weights that are not trained give what these give, and no
    gradient.
    """
    torch.manual_seed(0)
    net, (x, y) = Teacher().double(), rows_of((5,))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)
    with Counted() as counted:
        require_the_loops_sum(net, 0.1, x, y, way="layers")
        assert counted.runs


@check
def check_a_hook_that_comes_later_is_called() -> None:
    """A layer that gets a hook after the first sum is called from then on, and global hooks are."""
    torch.manual_seed(0)
    net, (x, y) = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double(), rows_of((5,))
    clipper = ClippedGradients(net, cross_entropy, Flat(0.1), Adjacency.ADD_REMOVE)
    before = clipper(one_sample(examples=EXAMPLES), x, y).values
    handle = net[1].register_forward_hook(lambda module, given, out: 2 * out)
    after = clipper(one_sample(examples=EXAMPLES), x, y).values
    assert not torch.allclose(before[0], after[0])
    fresh = ClippedGradients(net, cross_entropy, Flat(0.1), Adjacency.ADD_REMOVE)
    torch.testing.assert_close(list(after), list(fresh(one_sample(examples=EXAMPLES), x, y).values))
    handle.remove()
    torch.testing.assert_close(
        list(before), list(clipper(one_sample(examples=EXAMPLES), x, y).values)
    )
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, out: 2 * out if isinstance(module, nn.Tanh) else out
    )
    try:
        require_the_loops_sum(net, 0.1, x, y, way="layers")
    finally:
        handle.remove()
    assert "forward" not in vars(net)


@check
def check_what_runs_hold_counts_as_memory() -> None:
    """What a run keeps for its backward pass is seen by those who say how many examples fit into
    memory.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 400), nn.Tanh(), nn.Linear(400, 300), nn.Tanh(), nn.Linear(300, 3)
    ).double()
    x, y = rows_of((5,))
    clipper = ClippedGradients(net, cross_entropy, Flat(0.1), Adjacency.ADD_REMOVE)
    clipper.prepare(x, y)
    assert clipper._way is not None
    assert clipper.way == "layers"
    # about: factors, for weights and biases
    gradients = 8 * EXAMPLES * 2 * (5 + 400 + 400 + 300 + 300 + 3)
    activations = 8 * EXAMPLES * (5 + 400 + 300)
    with torch.no_grad():
        held = EXAMPLES * held_by(clipper._way, x, y).total
    assert held > gradients / 2 + activations
