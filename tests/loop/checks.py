"""Named checks of loops that somebody else writes; mutations must make them fail."""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import privlearn as pv
from privlearn.data.dataset_rows import DatasetRows
from privlearn.errors import BadInput, NotPerExample, SampleReused
from privlearn.methods.statistics.metric_figures import Metrics
from privlearn.runs.checkpoint import Checkpoint
from privlearn.training.task import Batch
from tests.support.checks import check, must_raise

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 2))


def loss(model: Any, batch: Any) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), **{"batch_size": 15, "shuffle": True, **options})


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.5, **options})


def private(model: nn.Module | None = None, given: Any = None, **options: Any) -> Any:
    model = model or network()
    optimizer = options.pop("optimizer", None) or sgd(model)
    options = {"epochs": 2, "max_grad_norm": 1.0, "streams": pv.Streams.new(0), **options}
    if not {"epsilon", "noise_multiplier", "rho"} & set(options):
        options |= {"epsilon": 3.0, "delta": 1e-5}
    return pv.make_private(model, optimizer, loader() if given is None else given, **options)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([own.detach().flatten() for own in model.parameters()])


def gone_through(loop: Any, function: Any = loss) -> Tensor:
    for batch in loop.batches():
        loop.step(batch, function)
    return weights(loop.result().model)


@check
def check_a_loop_is_dpsgd() -> None:
    """The same plan and seed give the same weights, bit for bit, and the same events, with any
    optimizer.
    """
    makers: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.9),
        lambda own: torch.optim.AdamW(own, lr=0.01, weight_decay=0.1),
    ]
    for make in makers:
        model = network(0.3)
        loop = private(model, optimizer=make(model.parameters()))
        ours = gone_through(loop)
        result = pv.dpsgd(
            loop.plan,
            network(0.3),
            nn.CrossEntropyLoss(reduction="none"),
            (X, Y),
            optimizer=make,
            streams=pv.Streams.new(0),
        )
        assert torch.equal(ours, weights(result.model))
        assert loop.ledger.event == result.ledger.event == loop.plan.event()


@check
def check_a_loop_may_correlate_its_noise() -> None:
    """As `dpsgd` by the same plan, also when it is resumed; the certificate claims the plan's
    price.
    """
    for own in (
        {"mechanism": "banded:bands=4", "sampling": "cyclic-poisson"},
        {"mechanism": pv.mechanisms.Banded(2), "sampling": "fixed", "adjacency": "replace_one"},
        {"mechanism": "banded", "sampling": "cyclic-poisson"},
        {"mechanism": "bisr:bands=4", "sampling": "fixed"},
        {"mechanism": "blt", "sampling": "fixed"},
    ):
        loop = private(loss=loss, **own)
        assert loop.plan.correlation is not None
        ours = gone_through(loop, None)
        result = pv.dpsgd(
            loop.plan,
            network(),
            nn.CrossEntropyLoss(reduction="none"),
            (X, Y),
            streams=pv.Streams.new(0),
            optimizer=lambda own: torch.optim.SGD(own, lr=0.5),
        )
        assert torch.equal(ours, weights(result.model))
        assert loop.ledger.event == result.ledger.event == loop.plan.event()
        with tempfile.TemporaryDirectory() as folder:
            first = private(loss=loss, checkpoint=Checkpoint(f"{folder}/run", every=1e-9), **own)
            batches = first.batches()
            for _ in range(5):
                first.step(next(batches))
            next(batches)
            spent = first.spent()
            first.close()
            again = private(loss=loss, checkpoint=f"{folder}/run", **own)
            assert again.spent() == spent
            assert torch.equal(gone_through(again, None), ours)
            out = again.publish(Path(folder) / "model")
            verified = pv.verify(out)
            assert verified.ok
            assert verified.epsilon == loop.plan.guarantee(1e-5).epsilon
            assert "correlated" in (out / "README.md").read_text()
    for refused in (
        {"mechanism": "banded:bands=4"},
        {"mechanism": "bisr:bands=4", "sampling": "cyclic-poisson"},
        {"mechanism": "banded", "noise_multiplier": 1.0, "sampling": "cyclic-poisson"},
        {"mechanism": "bisr", "noise_multiplier": 1.0, "sampling": "fixed"},
        {"mechanism": "banded:bands=4", "sampling": "cyclic-poisson", "group_size": 2},
        {
            "mechanism": "banded:bands=4",
            "sampling": "cyclic-poisson",
            "streams": pv.Streams.new(0, discrete=True),
        },
    ):
        must_raise(BadInput, partial(private, **refused))


@check
def check_the_ways_to_write_a_loop_are_one() -> None:
    """Epochs and batches, new lambdas, a loss given once, micro-batches, other threads' seeds: the
    same weights.
    """
    expected = gone_through(private())
    torch.manual_seed(5)
    assert torch.equal(gone_through(private()), expected)
    assert torch.equal(gone_through(private(), lambda model, batch: loss(model, batch)), expected)
    assert torch.equal(gone_through(private(), nn.CrossEntropyLoss(reduction="none")), expected)
    assert torch.equal(gone_through(private(loss=loss), None), expected)
    nested = private()
    for epoch in nested:
        for batch in epoch:
            nested.step(batch, lambda net, rows: loss(net, rows))
    assert torch.equal(weights(nested.result().model), expected)
    for microbatch in (1, 4, 64):
        torch.testing.assert_close(
            gone_through(private(microbatch=microbatch)), expected, rtol=1e-4, atol=1e-5
        )


@check
def check_micro_batches_are_clipped_and_counted_once() -> None:
    """One step's sum is at most the clipping norm for each example, and is that of the whole
    batch.
    """
    moves = []
    for microbatch in (7, 60):
        model = network()
        before = weights(model)
        loop = private(
            model,
            noise_multiplier=1e-6,
            sampling="full",
            epochs=1,
            microbatch=microbatch,
            max_grad_norm=1e-3,
        )
        moves.append(before - gone_through(loop, lambda model, batch: 1e3 * loss(model, batch)))
    each = torch.stack([weights_of_gradient(row) for row in range(60)])
    clipped = each / each.norm(dim=1, keepdim=True) * 1e-3
    for move in moves:
        torch.testing.assert_close(move, 0.5 * clipped.mean(0), rtol=5e-3, atol=1e-7)


def weights_of_gradient(row: int) -> Tensor:
    model = network()
    (1e3 * loss(model, (X[row : row + 1], Y[row : row + 1]))).sum().backward()
    return torch.cat([own.grad.flatten() for own in model.parameters() if own.grad is not None])


@check
def check_empty_batches_take_a_noisy_step() -> None:
    """Of hardly any rows a batch, each step is charged and moves the weights."""
    loop = private(
        noise_multiplier=1.0,
        sampling=pv.Poisson(0.002),
        examples=60,
        epochs=1,
        max_grad_norm=1.0,
        adjacency="zero_out",
    )
    sizes, before = [], weights(loop.model)
    for batch in loop.batches():
        sizes.append(len(batch.sample))
        loop.step(batch, loss)
        assert not torch.equal(weights(loop.model), before)
        before = weights(loop.model)
        if len(sizes) == 20:
            break
    assert sizes.count(0) > 10
    assert loop.steps_done == 20


@check
def check_no_batch_is_left_out_or_used_twice() -> None:
    loop = private()
    batches = loop.batches()
    first = next(batches)
    loop.step(first, loss)
    must_raise(SampleReused, lambda: loop.step(first, loss))
    must_raise(BadInput, lambda: [next(batches), next(batches)])


@check
def check_batches_follow_from_the_streams_alone() -> None:
    """PyTorch's own seed says nothing of who is drawn: neither at one seed of it, nor by drawing
    from it.
    """

    def drawn(streams: Any, seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        loop = private(streams=streams, epochs=1)
        seen = []
        for batch in loop.batches():
            seen.append(batch.sample.indices.tolist())
            loop.step(batch, loss)
            torch.rand(3)
        return seen

    assert drawn(pv.Streams.new(1), 0) == drawn(pv.Streams.new(1), 1)
    assert drawn(None, 0) != drawn(None, 0)


@check
def check_another_loss_is_checked_like_the_first() -> None:
    def coupled(model: Any, batch: Any) -> Tensor:
        values = loss(model, batch)
        return values - values.mean()

    loop = private()
    batches = loop.batches()
    batch = next(batches)
    must_raise(NotPerExample, lambda: loop.step(batch, coupled))
    assert loop.steps_done == 0
    assert not loop.ledger.spent(1e-5).epsilon
    loop.step(batch, loss)
    batch = next(batches)
    must_raise(NotPerExample, lambda: loop.step(batch, coupled))
    loop.step(batch)  # by the one before
    loop.step(next(batches), lambda model, batch: 2 * loss(model, batch))
    assert loop.steps_done == 3


@check
def check_a_factor_in_a_closure_makes_another_loss() -> None:
    """Of the same code, and on other values: what the values do is looked at anew."""

    def scaled(over_all: bool) -> Any:
        return lambda model, batch: (
            loss(model, batch) - (loss(model, batch).mean() if over_all else 0.0)
        )

    loop = private()
    batches = loop.batches()
    loop.step(next(batches), scaled(False))
    batch = next(batches)
    must_raise(NotPerExample, lambda: loop.step(batch, scaled(True)))


@check
def check_the_callers_optimizer_is_used_as_it_is() -> None:
    """Groups with rates of their own, a scheduler that holds it, and frozen parameters."""
    model = network()
    model[0].requires_grad_(False)  # type: ignore[index]
    held = weights(model[0])  # type: ignore[index]
    optimizer = torch.optim.SGD(
        [{"params": [model[3].weight], "lr": 0.5}, {"params": [model[3].bias], "lr": 0.0}],
        momentum=0.5,  # type: ignore[index]
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before = model[3].bias.detach().clone()  # type: ignore[index]
    loop = private(model, optimizer=optimizer)
    rates = []
    for epoch in loop:
        for batch in epoch:
            loop.step(batch, loss)
            rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    assert rates == [0.5] * 4 + [0.25] * 4
    assert torch.equal(weights(model[0]), held)  # type: ignore[index]
    assert torch.equal(model[3].bias, before)  # type: ignore[index]
    assert "momentum_buffer" in optimizer.state[model[3].weight]  # type: ignore[index]
    assert all(own.grad is None for own in model.parameters())


class Rows(Dataset[Any]):
    """Dictionaries with random changes, by every generator there is."""

    def __init__(self, x: Tensor, *, draws: bool = True) -> None:
        self.x, self.draws = x, draws

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> dict[str, Any]:
        move = (
            torch.rand(6) + float(np.random.rand()) + random.random()  # noqa: NPY002
            if self.draws
            else torch.zeros(6)
        )
        return {"x": self.x[row] + move, "y": int(self.x[row, 0] > 0)}


@check
def check_rows_change_from_step_to_step_and_with_no_other_row() -> None:
    """What a row draws follows from the batch's key and from itself: not from its place, its
    company or a generator.
    """
    key, other = lambda place: bytes([7] * 16), lambda place: bytes([8] * 16)

    def made(x: Tensor, indices: list[int], key: Any) -> Tensor:
        (rows,) = DatasetRows(Rows(x), fresh=True).ahead([np.array(indices)], key)
        return rows.fetch(torch.tensor(indices))[0]

    torch.manual_seed(1)
    one = made(X, [3, 4, 5], key)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert torch.equal(made(X, [5], key), one[2:])
    assert torch.equal(made(X.roll(1, 0), [4, 5, 6], key), one)
    moved = made(X, [3, 4, 5], other)
    assert not torch.isclose(moved, one).any()
    differences = one - X[3:6]
    assert not torch.isclose(differences[0], differences[1]).any()
    (frozen,) = DatasetRows(Rows(X)).ahead([np.array([3])], key)
    (again,) = DatasetRows(Rows(X)).ahead([np.array([3])], other)
    assert torch.equal(frozen.fetch(torch.tensor([3]))[0], again.fetch(torch.tensor([3]))[0])


def of_names(model: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


@check
def check_workers_and_interruptions_change_no_row() -> None:
    """Rows that change are the same from workers, and after an interruption."""
    expected = gone_through(private(None, DataLoader(Rows(X), batch_size=15)), of_names)
    assert torch.equal(
        gone_through(private(None, DataLoader(Rows(X), batch_size=15, num_workers=2)), of_names),
        expected,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Checkpoint(Path(folder) / "run", every=1e-9)
        given = {"given": DataLoader(Rows(X), batch_size=15), "loss": of_names, "checkpoint": path}
        with private(**given) as first:
            for batch in first.batches():
                first.step(batch)
                if first.steps_done == 5:
                    break
        again = private(**given)
        assert torch.equal(gone_through(again, None), expected)
        assert again.ledger.event == again.plan.event()


@check
def check_a_row_does_not_depend_on_its_company() -> None:
    """A collate function that packs, mixes or standardises rows is refused; one that stacks them is
    not.
    """
    plain = [{"x": x, "y": int(y)} for x, y in zip(X, Y, strict=True)]

    def stacked(rows: list[Any]) -> dict[str, Tensor]:
        return {
            "x": torch.stack([row["x"] for row in rows]),
            "y": torch.tensor([row["y"] for row in rows]),
        }

    def mixed(rows: list[Any]) -> dict[str, Tensor]:
        batch, share = stacked(rows), float(np.random.beta(1, 1))  # noqa: NPY002
        return {**batch, "x": share * batch["x"] + (1 - share) * batch["x"].flip(0)}

    def standardised(rows: list[Any]) -> dict[str, Tensor]:
        batch = stacked(rows)
        return {**batch, "x": batch["x"] - batch["x"].mean(0)}

    def packed(rows: list[Any]) -> dict[str, Tensor]:
        batch = stacked(rows)
        return {"x": batch["x"].flatten()[None, :6], "y": batch["y"][:1]}

    for collate in (standardised, packed, lambda rows: stacked(rows[::-1])):
        must_raise(
            BadInput,
            lambda: private(None, DataLoader(plain, batch_size=15, collate_fn=collate)),  # noqa: B023
        )
    loop = private(None, DataLoader(plain, batch_size=15, collate_fn=stacked))
    expected = gone_through(loop, of_names)
    assert torch.equal(
        gone_through(private(None, DataLoader(plain, batch_size=15)), of_names), expected
    )
    must_raise(BadInput, lambda: private(None, DataLoader(plain, batch_size=15, collate_fn=mixed)))


@check
def check_a_loop_left_early_claims_its_limit() -> None:
    with tempfile.TemporaryDirectory() as folder:
        loop = private()
        for batch in loop.batches():
            loop.step(batch, loss)
            if loop.steps_done == 3:
                break
        out = loop.publish(Path(folder) / "model")
        verified = pv.verify(out)
        assert verified.ok
        assert verified.epsilon == loop.plan.guarantee(1e-5).epsilon > loop.spent().epsilon
        assert "left early" in (out / "README.md").read_text()
        must_raise(BadInput, lambda: loop.step(batch, loss))


@check
def check_what_a_step_returns_is_kept_from_sight() -> None:
    loop = private()
    batch: Batch = next(loop.batches())
    seen = loop.step(batch, loss)
    assert seen["examples"] == len(batch.sample)
    assert str(seen["loss"])[:6] not in f"{seen} {seen!r} {loop!r} {batch!r}"
    with tempfile.TemporaryDirectory() as folder:
        must_raise(BadInput, lambda: loop.publish(Path(folder) / "model", test_metrics=seen))


@check
def check_a_resumed_loop_knows_what_it_spent() -> None:
    """Before its first batch, and between epochs: what the ledger was charged before, for the run's
    neighbours.
    """
    falling = pv.schedules.PerEpoch((1.5, 1.0, 0.8))
    for own in (
        {"adjacency": "zero_out"},
        {"sampling": "shuffle", "adjacency": "replace_one"},
        {"sampling": pv.Partition(4), "examples": 60, "adjacency": "add_remove"},
        {"rho": 0.5, "sampling": "full"},
    ):
        own |= {
            "delta": 1e-5,
            "epochs": 3,
            **({} if "rho" in own else {"epsilon": 3.0, "schedule": falling}),
        }
        assert private(**own).spent(1e-5).adjacency is private(**own).plan.neighbours
        steps = private(**own).steps
        for after in {1, steps - 1, steps // 3, steps // 2}:
            with tempfile.TemporaryDirectory() as folder:
                loop = private(loss=loss, checkpoint=Checkpoint(f"{folder}/run", every=1e-9), **own)
                batches = loop.batches()
                for _ in range(after):
                    loop.step(next(batches))
                next(batches)
                expected = loop.spent(1e-5)
                loop.close()
                again = private(loss=loss, checkpoint=f"{folder}/run", **own)
                assert again.spent(1e-5) == expected
                assert expected.epsilon > 0
                epoch = next(iter(again))
                assert again.spent(1e-5) == expected
                next(iter(epoch))
                assert again.spent(1e-5) == expected
                again.close()


@check
def check_steps_after_the_last_checkpoint_are_spent() -> None:
    """They were released, and are repeated with the same noise: no step counts twice."""
    options = {"adjacency": "zero_out", "delta": 1e-5, "epochs": 3, "epsilon": 3.0}
    for saved, after in ((0, 5), (3, 8), (4, 4)):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/run"
            loop = private(loss=loss, checkpoint=Checkpoint(path, every=1e9), **options)
            batches = loop.batches()
            for step in range(after):
                if step == saved:
                    loop.session.file._last = -1e9  # the next batch is preceded by a checkpoint
                loop.step(next(batches))
            expected = loop.spent()
            loop.close()
            again = private(loss=loss, checkpoint=path, **options)
            assert abs(again.spent().epsilon - expected.epsilon) < 1e-9
            repeated = again.batches()
            for _ in range(3):
                again.step(next(repeated))
                assert again.spent().epsilon >= expected.epsilon - 1e-9
            assert again.spent().epsilon < 2 * expected.epsilon
            again.close()


@check
def check_figures_of_training_rows_are_not_published() -> None:
    """Neither a figure that a step returned, nor what is computed from several, nor one with such a
    name.
    """
    loop, seen = private(), []
    for batch in loop.batches():
        seen.append(loop.step(batch, loss))
    losses = [figures["loss"] for figures in seen]
    mean = sum(losses) / len(losses)
    assert abs(mean - np.mean(losses)) < 1e-12
    after = loop.result().private_diagnostics["loss"]
    with tempfile.TemporaryDirectory() as folder:
        for name, value in {
            "loss": losses[-1],
            "mean": mean,
            "round": round(-mean, 2),
            "least": min(losses),
            "share": 1 - mean / 2,
            "epoch": after[-1],
            "left out": seen[0]["left_out"] + 1,
            "train_loss": float(mean),
            "Training": 0.5,
        }.items():
            said = str(
                must_raise(
                    BadInput, partial(loop.publish, f"{folder}/a", test_metrics={name: value})
                )
            )
            assert "pv.evaluate" in said
            assert not Path(folder, "a").exists()
        must_raise(
            BadInput,
            lambda: loop.publish(Path(folder) / "a", test_metrics=Metrics({"loss": mean}, 9)),
        )
        loop.publish(Path(folder) / "a", test_metrics={"accuracy": 0.5})


@check
def check_figures_are_those_of_the_batch() -> None:
    model = network()
    loop = private(model)
    for batch in loop.batches():
        own = torch.from_numpy(batch.sample.indices)
        expected = float(loss(model, (X[own], Y[own])).detach().mean())
        seen = loop.step(batch, loss)
        assert abs(seen["loss"] - expected) < 1e-5
        assert (seen["examples"], seen["left_out"]) == (len(own), 0)


@check
def check_batches_have_keys_of_their_own() -> None:
    """The same row is another in another batch, and no seed of the caller's says which."""
    loop = private(None, DataLoader(Rows(X), batch_size=60), epochs=3)
    seen = []
    for batch in loop.batches():
        seen.append(batch.rows.fetch(torch.tensor([0]))[0])
        loop.step(batch, of_names)
    assert len({tuple(row.flatten().tolist()) for row in seen}) == 3


@check
def check_hooks_that_are_put_in_on_the_way_are_looked_at() -> None:
    """Gradients stay those of single examples: what couples them is refused, and what has no rule
    warned of, once.
    """

    def patched(model: Any) -> None:
        forward = model[0].forward
        model[0].forward = lambda x: 2 * forward(x)

    def hooked(change: Callable[[Tensor], Tensor]) -> Callable[[Any], object]:
        return lambda model: model[0].register_forward_hook(lambda module, given, out: change(out))

    cases: list[tuple[Callable[[Any], object], str, int]] = [
        (hooked(lambda out: 2 * out), "layers", 0),
        (patched, "layers", 0),
        (
            lambda model: setattr(
                model[0], "forward", lambda x: model[0].bias - torch.cdist(x, model[0].weight)
            ),
            "vmap",
            1,
        ),
    ]
    for change, way, warned in cases:
        model = network()
        loop = private(model, sampling="full", noise_multiplier=1e-6, epochs=3, max_grad_norm=1e-3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in loop.batches():
                if loop.steps_done == 1:
                    change(model)
                before, expected = weights(model), torch.zeros(len(weights(model)))
                for row in range(60):
                    model.zero_grad()
                    loss(model, (X[row : row + 1], Y[row : row + 1])).sum().backward()
                    own = torch.cat(
                        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
                    )
                    expected += 1e-3 * own / max(float(own.norm()), 1e-3)
                model.zero_grad()
                loop.step(batch, loss)
                torch.testing.assert_close(
                    before - weights(model), 0.5 * expected / 60, rtol=5e-3, atol=1e-6
                )
        assert loop.task.gradients.way == way
        assert sum("training will be slow" in str(own.message) for own in caught) == warned
    loop = private()
    batches = loop.batches()
    loop.step(next(batches), loss)
    hooked(lambda out: out - out.mean(0))(loop.model)
    batch, spent = next(batches), loop.spent()
    must_raise(NotPerExample, lambda: loop.step(batch, loss))
    assert loop.spent() == spent


@check
def check_parts_that_are_put_in_on_the_way_are_refused() -> None:
    """They would be in no check, and what they keep of rows would be published: a mean of
    activations, say.
    """
    for change in (
        lambda model: model.append(nn.BatchNorm1d(3, affine=False)),
        lambda model: model.register_buffer("kept", torch.zeros(3)),
        lambda model: model.__setitem__(0, nn.Flatten()),
    ):
        model = nn.Sequential(nn.Identity(), *network())
        loop = private(model)
        for number, batch in enumerate(loop.batches()):
            if number == 1:
                change(model)  # type: ignore[no-untyped-call]
                must_raise(BadInput, lambda run=loop, own=batch: run.step(own, loss))  # type: ignore[misc]
                break
            loop.step(batch, loss)
        else:
            raise AssertionError("one batch alone")
