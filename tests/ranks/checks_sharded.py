"""Named checks of models under FSDP2, on processes that are forked; planted bugs must make them
fail.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import privlearn as pv
from privlearn.core.clipping.gradients import clipped_gradients
from privlearn.core.clipping.sharded.gradients_in_rounds import ShardedGradients
from privlearn.core.mechanisms.release import release
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import Streams
from privlearn.core.temperature import Temperature
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing.verify import verify
from privlearn.runs.ranks import Ranks
from tests.ranks.checks import ADD_REMOVE, blurred, plan, rows
from tests.ranks.forks import sharing
from tests.runs.checks_resuming import Stopped
from tests.support.checks import check
from tests.support.nets import cross_entropy
from tests.support.steps import EachStep


class Adapted(nn.Module):
    """A frozen layer with a trained addition of low rank, a layer whose weight is used twice, and
    dropout.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.base = nn.Linear(5, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight = self.one.weight
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (self.base(x) + self.up(self.down(x))).tanh()
        return self.head(self.drop(self.other(self.one(hidden).tanh())))  # type: ignore[no-any-return]


class Failing(nn.Module):
    """Fails between two layers on some rows, and leaves a layer out on others."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.base(x).tanh()
        if (x[:, 0] == FAILS).any():
            raise ValueError("no such row")
        return self.head(hidden if (x[:, 0] == SKIPS).any() else self.down(hidden).tanh())  # type: ignore[no-any-return]


FAILS, SKIPS = 5.0, 6.0


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def made(make: Callable[[], nn.Module], shard: bool) -> nn.Module:
    torch.manual_seed(7)
    net = make()
    if shard:
        for own in (net[0], net[2]) if isinstance(net, nn.Sequential) else (net.base, net.down):
            fully_shard(own)
        fully_shard(net)
    return net


def one_epoch(sampler: Any = None, clip: Any = None, **more: Any) -> pv.Plan:
    return plan(sampler, clip, epochs=1, **more)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def weights(result: pv.Result) -> bytes:
    """Of all parameters, whole."""
    whole: list[Any] = [
        getattr(own, "full_tensor", lambda own=own: own)() for own in result.model.parameters()
    ]
    return b"".join(own.detach().numpy().tobytes() for own in whole)


def trained(
    make: Callable[[], nn.Module] = plain,
    own: pv.Plan | None = None,
    *,
    discrete: bool = False,
    stop: int = 0,
    shard: bool = True,
    data: Any = None,
    **options: Any,
) -> pv.Result:
    def progress(steps: int, of: int) -> None:
        if steps == stop:
            raise Stopped

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that are not finite
        return pv.dpsgd(
            own or one_epoch(),
            made(make, shard),
            cross_entropy,
            data or rows(),
            optimizer=adam,
            callbacks=EachStep(progress),
            streams=Streams.new(3, discrete=discrete),
            **options,
        )


def odd_rows(other: float = SKIPS) -> tuple[torch.Tensor, torch.Tensor]:
    """Some can't be computed, some are not finite, and one has another path through the model."""
    x, y = rows()
    x[4], x[9], x[13], x[30], x[31] = float("nan"), 1e30, FAILS, FAILS, other
    return x, y


#: Runs that differ in what shards have to be right for.
RUNS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "adapters, tied weights, dropout and copies": (
        (lambda: Adapted(0.3),),
        {"augmentation": pv.clipping.Augmentation(2, blurred)},
    ),
    "a quantile, on a grid": (
        (
            plain,
            one_epoch(clip=pv.clipping.Quantile(0.5)),
        ),
        {"discrete": True},
    ),
    "noise that is drawn again": (
        (
            plain,
            one_epoch(
                pv.sampling.FixedOrder(8),
                schedule=pv.schedules.Constant(1.5),
                correlation=pv.mechanisms.BISR(4),
            ),
        ),
        {},
    ),
    "in small pieces, with rows that fail": (
        (Failing, one_epoch(pv.Partition(3))),
        {"microbatch": 2, "data": odd_rows()},
    ),
}


def one_step(shard: bool, clip: Any = None) -> list[torch.Tensor]:
    """The noisy sums of one batch, of which each process has what it keeps, or all; and for each
    where that begins.
    """
    world = Ranks(dist.get_rank(), dist.get_world_size())
    net, (x, y) = made(Failing, shard), odd_rows(FAILS)
    (sample,) = FullBatch().draw(len(x))
    clipped = clipped_gradients(
        net, cross_entropy, clip or pv.Flat(0.5), ADD_REMOVE, microbatch=4, world=world
    )
    bounded = clipped(sample, x, y)
    assert bounded.sensitivity == 0.5
    (noisy,) = release(
        bounded, noise_multiplier=1.0, ledger=pv.Ledger(), stream=Streams.new(5).noise
    )
    return [own.double().clone() for own in noisy]


@check
def check_a_step_on_shards_is_that_of_the_whole_model() -> None:
    """Noisy sums of 2 processes, one parameter after the other: those of the whole model, once
    each, to rounding.

    Of rows some are not finite, and on some the model fails between two layers.
    """

    def both() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return one_step(True), one_step(False)

    (first, whole), (second, _) = sharing(2, both)
    for one, other, expected in zip(first, second, whole, strict=True):
        together = torch.cat(
            [one.view(-1, *expected.shape[1:]), other.view(-1, *expected.shape[1:])]
        )
        torch.testing.assert_close(together, expected, rtol=0, atol=1e-5)


@check
def check_a_sharded_model_trains_what_a_whole_one_does() -> None:
    """On 2 processes: the weights and events of the whole model's run, to rounding.

    Tied weights, adapters beside frozen weights, dropout, a released count, noise on a grid; rows
    that are not finite, on which the model fails, or takes another path, count as absent (the whole
    model's run can take that path).
    """
    for name, (given, options) in RUNS.items():
        whole = {**options, "shard": False} | (
            {"data": odd_rows(FAILS)} if "data" in options else {}
        )
        ((expected, event),) = sharing(
            1, lambda given=given, whole=whole: _outcome(*given, **whole)
        )  # type: ignore[misc]
        for own, spent in sharing(
            2, lambda given=given, options=options: _outcome(*given, **options)
        ):  # type: ignore[misc]
            one, other = (
                torch.frombuffer(bytearray(bits), dtype=torch.float32) for bits in (own, expected)
            )
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)
            assert spent == event, name


@check
def check_the_number_of_processes_changes_no_bit_of_a_sharded_model() -> None:
    """On 1, 2 and 4 processes the same bits, also where the last processes keep no row of a
    parameter.
    """
    given, options = RUNS["in small pieces, with rows that fail"]
    results = [sharing(size, lambda: _outcome(*given, **options)) for size in (1, 2, 4)]
    assert len({own for each in results for own, _ in each}) == 1


@check
def check_a_sharded_run_goes_on_with_more_processes() -> None:
    """Interrupted on 2, continued on 4: the bits of a run on 1. Each process writes what it keeps,
    for its owner.
    """
    ((expected, event),) = sharing(1, _outcome)

    def interrupted(path: Path) -> list[str]:
        try:
            trained(stop=3, checkpoint=pv.runs.Checkpoint(path, every=1e-9))
        # in the first process, and in the others, which hear of it
        except (Stopped, PrivlearnError):
            return sorted(
                f"{own.name} {own.stat().st_mode & 0o777:o}" for own in path.parent.rglob("*")
            )
        raise AssertionError("it was not stopped")

    with tempfile.TemporaryDirectory() as there:
        path = Path(there) / "run"
        listed, _ = sharing(2, lambda: interrupted(path))
        assert sum(line.endswith(".distcp 600") for line in listed) == 2, listed
        assert sum("shards" in line for line in listed) == 1, listed
        assert all(
            line.endswith(("600", "700"))
            for line in listed
            if "lock" not in line and "steps" not in line
        )
        for own, spent in sharing(4, lambda: _outcome(checkpoint=pv.runs.Checkpoint(path))):
            assert own == expected
            assert spent == event
        pv.runs.Checkpoint(path).delete()
        assert list(Path(there).iterdir()) == []


@check
def check_each_process_keeps_its_share_alone() -> None:
    """Parameters, sums and Adam's moments of 2 processes are half of them each; noise is drawn for
    those alone.
    """

    def sizes() -> tuple[int, int]:
        with pv.Run(plan(), made(plain, shard=True), cross_entropy, rows(), optimizer=adam) as run:
            batch = next(iter(next(iter(run))))
            run.step(batch)
            moments = [own["exp_avg"].to_local().numel() for own in run.optimizer.state.values()]
            sums = [own.to_local().numel() for own in run.task.sums]  # type: ignore[attr-defined]
            held = [own.to_local().numel() for own in run.task.network.parameters()]  # type: ignore[attr-defined]
            free = [
                own.untyped_storage().nbytes() for own in run.task.gradients.parameters.values()
            ]
            assert not any(free), free
            assert sum(moments) == sum(sums) == sum(held)
            return sum(held), sum(own.numel() for own in run.task.network.parameters())

    for size in (2, 4):
        kept = sharing(size, sizes)
        assert sum(own for own, _ in kept) == kept[0][1]
        assert max(own for own, _ in kept) <= 2 * kept[0][1] / size, kept


@check
def check_a_sharded_model_is_published_whole() -> None:
    """By the first process, of all processes' shards; the folder verifies, and has the weights of
    the whole model.
    """
    with tempfile.TemporaryDirectory() as there:

        def published() -> bytes:
            result = trained(
                own=one_epoch(sampler=pv.Poisson(0.3)).calibrate(epsilon=8.0, delta=1e-3)
            )
            pv.publish(result, Path(there) / "model")
            return weights(result)

        (expected, _) = sharing(2, published)
        assert verify(Path(there) / "model").ok
        kept = load_file(Path(there) / "model" / "model.safetensors")
        own = plain().state_dict()
        assert b"".join(kept[f"0.{name}"].numpy().tobytes() for name in own) == expected


@check
def check_what_can_not_be_sharded_is_refused() -> None:
    """By name, before anything is charged."""

    def untied(net: nn.Module) -> None:
        net.one = fully_shard(net.one)  # type: ignore[arg-type]
        fully_shard(net)

    def outer_alone(net: nn.Module) -> None:
        fully_shard(net[0])  # type: ignore[index]

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    cases: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any], dict[str, Any]]] = {
        "shared": (Adapted, untied, {}),
        "not sharded": (plain, outer_alone, {}),
        "MixedPrecisionPolicy": (plain, lambda net: fully_shard(net, mp_policy=half), {}),
        "CPUOffloadPolicy": (
            plain,
            lambda net: fully_shard(net, offload_policy=CPUOffloadPolicy(False)),
            {},
        ),
        "one group": (plain, lambda net: (fully_shard([net[0], net[2]]), fully_shard(net)), {}),
        "float32": (
            lambda: plain().double(),
            fully_shard,
            {"data": (rows()[0].double(), rows()[1])},
        ),
        "temperature": (
            plain,
            fully_shard,
            {"own": plan(temperature=Temperature(noise_multiplier=2.0))},
        ),
        "average": (plain, fully_shard, {"average": 0.5}),
        "FullyShardedDataParallel": (
            lambda: nn.Sequential(nn.Linear(5, 3), Earlier()),
            lambda net: net,
            {},
        ),
        "operation by operation": (
            lambda: nn.Sequential(nn.Linear(5, 3), Powers()),
            fully_shard,
            {},
        ),
    }

    def refused() -> dict[str, str]:
        said = {}
        for name, (make, shard, options) in cases.items():
            torch.manual_seed(0)
            net, book = make(), pv.Ledger()
            shard(net)
            given = {name: value for name, value in options.items() if name not in ("own", "data")}
            try:
                pv.dpsgd(
                    options.get("own", plan()),
                    net,
                    cross_entropy,
                    options.get("data", rows()),
                    ledger=book,
                    optimizer=adam,
                    **given,
                )
                said[name] = "trained"
            except BadInput as error:
                said[name] = str(error)
            assert book.event.events == (), name
        return said

    for said in sharing(2, refused):
        for name, message in said.items():
            assert name in message, (name, message)
            assert "fully_shard" in message, (name, message)


class Earlier(nn.Identity):
    """What the FSDP of before looks like; itself it needs a GPU."""


Earlier.__name__ = "FullyShardedDataParallel"


class Powers(nn.Module):
    """An operation without a rule on a trained parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.powers = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.abs() + 1) ** self.powers


def _outcome(*given: Any, **options: Any) -> tuple[bytes, Any]:
    result = trained(*given, **options)
    return weights(result), result.ledger.event


@check
def check_wrong_sums_of_shards_are_refused() -> None:
    """What processes hand out is compared with autograd's before anything is charged, not only
    losses and norms.
    """
    honest = ShardedGradients._reduce

    def twice(self: ShardedGradients, gradients: Any, weights: Any, sums: Any) -> None:
        honest(self, gradients, weights, sums)
        for total in sums:
            total.mul_(2)

    def refused() -> str:
        book = pv.Ledger()
        with mock.patch.object(ShardedGradients, "_reduce", twice):
            try:
                trained(ledger=book)
            except BadInput as error:
                assert book.event.events == ()
                return str(error)
        return "trained"

    for said in sharing(2, refused):
        assert "its gradients differ from those of single examples" in said
