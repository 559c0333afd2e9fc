"""Named checks of scripts in Opacus's form; mutations must make them fail."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import BadInput, BudgetExceeded, PrivlearnError
from privlearn.opacus import BatchMemoryManager, PrivacyEngine
from privlearn.opacus.recorded import plain
from privlearn.opacus.script_loss import ScriptLoss
from tests.support.checks import check, must_raise

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()

#: A script's loss, of the model and a batch: one number.
ScriptsLoss = Callable[[Any, Tensor, Tensor], Tensor]


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 2))


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.5, **options})


class SumOfRow(nn.Module):
    """A row's sum, weighed by position; of up to so many numbers."""

    def __init__(self, most: int = 2000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.position, self.out = nn.Embedding(most, 1), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.position(torch.arange(x.shape[1]))[:, 0]
        return self.out((x * weights).sum(1, keepdim=True))


def padded(rows: list[Any]) -> tuple[Tensor, Tensor]:
    x = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
    return x, torch.tensor([y for _, y in rows])


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), **{"batch_size": 15, "shuffle": True, **options})


def private(model: nn.Module | None = None, **options: Any) -> tuple[Any, ...]:
    """The engine, the model, the optimizer and the loader."""
    model = network() if model is None else model
    given = {
        "module": model,
        "optimizer": options.pop("optimizer", None) or sgd(model),
        "data_loader": loader(),
        "epochs": 2,
        "max_grad_norm": 1.0,
        "streams": pv.Streams.new(0),
        **options,
    }
    engine = PrivacyEngine()
    if "noise_multiplier" in given:
        return engine, *engine.make_private(**given)
    return engine, *engine.make_private_with_epsilon(
        **{"target_epsilon": 3.0, "target_delta": 1e-5, **given}
    )


def mean(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return nn.CrossEntropyLoss()(model(x), y)


def trained(made: tuple[Any, ...], loss: ScriptsLoss = mean, epochs: int = 2) -> Tensor:
    """What the script's own loop makes of it."""
    _, model, optimizer, batches = made
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    return weights(model)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([own.detach().flatten() for own in model.parameters()])


def handed(made: tuple[Any, ...]) -> tuple[Any, Tensor, Tensor]:
    """The model and the first batch."""
    x, y = next(iter(made[3]))
    return made[1], x, y


def step_on(loss: ScriptsLoss, **options: Any) -> tuple[Any, ...]:
    made = private(**options)
    loss(*handed(made)).backward()
    made[2].step()
    return made


@check
def check_a_script_is_dpsgd() -> None:
    """The same plan and seed give the same weights, bit by bit, and the same events."""
    makers: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.9),
        lambda own: torch.optim.AdamW(own, lr=0.01, weight_decay=0.1),
    ]
    for make in makers:
        model = network(0.3)
        made = private(model, optimizer=make(model.parameters()))
        ours, loop = trained(made), made[0].run
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
def check_a_mean_is_divided_once_and_micro_batches_are_clipped() -> None:
    """Of all rows at hardly any noise: the mean of the clipped gradients, whatever is computed at
    once.
    """
    for norm in (1e-3, 1e3):
        each = torch.stack([gradient_of(row) for row in range(60)])
        expected = (each * (norm / each.norm(dim=1, keepdim=True)).clamp(max=1.0)).mean(0)
        for at_once in (7, 60):
            model = network()
            before = weights(model)
            made = private(
                model, noise_multiplier=1e-6, sampling="full", epochs=1, max_grad_norm=norm
            )
            with BatchMemoryManager(
                data_loader=made[3], max_physical_batch_size=at_once, optimizer=made[2]
            ) as batches:
                trained((*made[:3], batches), epochs=1)
            torch.testing.assert_close(
                before - weights(model), 0.5 * expected, rtol=5e-3, atol=1e-7 + 1e-7 * norm
            )


def gradient_of(row: int) -> Tensor:
    model = network()
    F.cross_entropy(model(X[row : row + 1]), Y[row : row + 1]).backward()
    return torch.cat([own.grad.flatten() for own in model.parameters() if own.grad is not None])


@check
def check_empty_batches_are_handed_out_and_take_a_noisy_step() -> None:
    """With hardly any rows a batch: a pass has the plan's number of batches; each is charged and
    moves the weights.
    """
    engine, model, optimizer, batches = private(
        noise_multiplier=1.0,
        sampling=pv.Poisson(0.05),
        examples=60,
        epochs=1,
        adjacency="zero_out",
        data_loader=DataLoader(TensorDataset(X[:4], Y[:4])),
    )
    sizes, before = [], weights(model)
    for x, y in batches:
        sizes.append(len(x))
        mean(model, x.view(x.size(0), -1).reshape(len(x), 2, -1).flatten(1), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not torch.equal(weights(model), before)
        before = weights(model)
    assert len(sizes) == len(batches) == len(engine.accountant) == 20
    assert sizes.count(0) > 10
    assert engine.run.ledger.event == engine.run.plan.event()


@check
def check_a_scripts_batches_follow_from_the_streams_alone() -> None:
    """PyTorch's own seed says nothing of who is drawn: neither at one seed of it, nor by drawing
    from it.
    """

    def drawn(streams: Any, seed: int) -> list[float]:
        made = private(streams=streams, epochs=1)
        torch.manual_seed(seed)
        seen = []
        for x, y in made[3]:
            seen.append(float(x.sum()) if seen else 0.0)
            mean(made[1], x, y).backward()
            made[2].step()
            made[2].zero_grad()
            torch.rand(3)
        return seen

    assert drawn(pv.Streams.new(1), 0) == drawn(pv.Streams.new(1), 1)
    assert drawn(None, 0) != drawn(None, 0)


@check
def check_a_batch_is_good_for_one_step_and_one_backward() -> None:
    engine, model, optimizer, batches = private()
    iterator = iter(batches)
    x, y = next(iterator)
    loss = mean(model, x, y)
    loss.backward()
    must_raise(BadInput, lambda: mean(model, x, y).backward())
    optimizer.step()
    after = weights(model)
    must_raise(BadInput, optimizer.step)
    must_raise(BadInput, loss.backward)
    assert torch.equal(weights(model), after)
    assert len(engine.accountant) == 1
    next(iterator)
    must_raise(BadInput, optimizer.step)  # without backward()
    must_raise(BadInput, lambda: next(iterator))  # without a step
    assert len(engine.accountant) == 1


@check
def check_a_batch_that_was_only_looked_at_comes_again() -> None:
    made = private()
    model, x, y = handed(made)
    mean(model, x, y).backward()
    must_raise(BadInput, lambda: next(iter(made[3])))  # a gradient that would be forgotten
    made = private()
    first, again = (plain(next(iter(made[3]))[0]) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(trained(made), trained(private()))


@check
def check_nothing_is_drawn_before_it_is_charged() -> None:
    """A ledger that refuses the charge of a step leaves the weights and the noise where they
    were.
    """
    engine, model, optimizer, batches = private()
    x, y = next(iter(batches))
    mean(model, x, y).backward()
    session, before = engine.run.session, weights(model)
    noise = session.streams.state()["noise"]

    class Refuses:
        def charge(self, *given: Any, **more: Any) -> None:
            raise BudgetExceeded("the ledger refuses")

    session.account = Refuses()
    must_raise(BudgetExceeded, optimizer.step)
    assert session.streams.state()["noise"] == noise
    assert torch.equal(weights(model), before)


@check
def check_the_losses_of_scripts_are_taken_apart() -> None:
    """Means in all their forms are what they are written as; an example's part of one is its
    own.
    """
    weigh = torch.tensor([1.0, 3.0])

    class Module(nn.Module):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return (output.softmax(1)[:, 1] - target.float()).square().mean()

    forms: list[tuple[ScriptsLoss, Callable[[Any, Any], Tensor]]] = [
        (lambda m, x, y: F.nll_loss(F.log_softmax(m(x.view(x.size(0), -1)), dim=1), y), cross),
        (lambda m, x, y: 2 * mean(m, x, y) / 2 - 0.0, cross),
        (lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").mean(), cross),
        (lambda m, x, y: 0.5 * mean(m, x, y) + mean(m, x, y) * 0.5, cross),
        (lambda m, x, y: -(-mean(m, x.to("cpu"), y.long())).squeeze(), cross),
        (
            lambda m, x, y: F.kl_div(
                F.log_softmax(m(x), 1), F.one_hot(y, 2).float(), reduction="batchmean"
            ),
            cross,
        ),
        (
            lambda m, x, y: nn.CrossEntropyLoss(weight=weigh)(m(x), y),
            lambda m, b: F.cross_entropy(
                m(b[0]), b[1], weight=weigh.to(b[0].dtype), reduction="none"
            ),
        ),
        (
            lambda m, x, y: Module()(m(x), y),
            lambda m, b: (m(b[0]).softmax(1)[:, 1] - b[1].to(b[0].dtype)).square(),
        ),
    ]
    for script, own in forms:
        made = pv.make_private(
            model := network(),
            sgd(model),
            loader(),
            epsilon=3.0,
            delta=1e-5,
            epochs=2,
            max_grad_norm=1.0,
            streams=pv.Streams.new(0),
            loss=own,
        )
        for batch in made.batches():
            made.step(batch)
        torch.testing.assert_close(trained(private(), script), weights(model), rtol=1e-4, atol=1e-6)


def cross(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def apart(loss: ScriptsLoss, **options: Any) -> ScriptLoss:
    """What a loss is taken apart into."""
    made = private(**options)
    loss(*handed(made)).backward()
    taken: ScriptLoss = made[0]._script._turn.loss
    return taken


@check
def check_an_examples_loss_does_not_depend_on_its_company() -> None:
    """Neither by the weights of others' classes, nor by how many of their tokens count."""
    tokens = torch.randint(0, 2, (60, 5), generator=torch.Generator().manual_seed(1))
    tokens[::3, 2:] = -100
    tagger = nn.Sequential(nn.Linear(6, 10), nn.Unflatten(1, (5, 2)))
    cases: list[tuple[ScriptsLoss, dict[str, Any], Tensor, nn.Module]] = [
        (
            lambda m, x, y: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))(m(x), y),
            {},
            Y,
            network(),
        ),
        (
            lambda m, x, y: F.cross_entropy(m(x).reshape(-1, 2), y.reshape(-1)),
            {"data_loader": DataLoader(TensorDataset(X, tokens), batch_size=15), "model": tagger},
            tokens,
            tagger,
        ),
    ]
    for script, options, targets, model in cases:
        loss = apart(script, **options)
        whole = loss(model, (X, targets))
        for part in (slice(0, 1), slice(3, 7)):
            torch.testing.assert_close(loss(model, (X[part], targets[part])), whole[part])


@check
def check_what_couples_rows_is_refused() -> None:
    """Sums whose divisor is the number that was drawn, and values that are centred over the
    batch.
    """
    losses: list[ScriptsLoss] = [
        lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / len(x),
        lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").sum(),
        lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").max(),
        lambda m, x, y: mean(m, x, y) * mean(m, x, y),
        lambda m, x, y: F.cross_entropy(m(x) - m(x).mean(0), y),
        lambda m, x, y: m(x).square().mean(0).norm(),
        lambda m, x, y: mean(m, x, y) + 0.1 * m._module[3].weight.norm() * x.mean(),
    ]
    for loss in losses:
        made = private()
        must_raise(PrivlearnError, lambda: (loss(*handed(made)).backward(), made[2].step()))  # noqa: B023
        assert not made[0].run.ledger.event.events


@check
def check_numbers_of_a_batch_do_not_come_into_the_loss() -> None:
    """Read out and put in again they would couple rows, and the engine could not see it."""

    def by_value(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return mean(m, x, y) * float(y.float().mean())

    def without_gradient(m: Any, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            share = y.float().mean()
        return share * mean(m, x, y)

    def written(m: Any, x: Tensor, y: Tensor) -> Tensor:
        share = torch.zeros(1)
        share += y.float().mean()
        return share * mean(m, x, y)

    def in_place(m: Any, x: Tensor, y: Tensor) -> Tensor:
        x -= x.mean(0)
        return mean(m, x, y)

    def branched(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return mean(m, x, y) if y.float().mean() > 0.5 else 0.5 * mean(m, x, y)

    held = torch.ones(1)

    def held_and_written(m: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(m(x) * held, y)
        held.mul_(0.5).add_(y.float().mean())
        return loss

    made = private()
    must_raise(PrivlearnError, lambda: trained(made, held_and_written))
    assert len(made[0].accountant) <= 1
    for loss in (by_value, without_gradient, written, in_place, branched):
        made = private()
        must_raise(PrivlearnError, lambda: (loss(*handed(made)).backward(), made[2].step()))  # noqa: B023
        assert not made[0].run.ledger.event.events
    made = private()
    must_raise(BadInput, lambda: trained(made, lambda m, x, y: mean(m, x, y) * len(x)))
    seen: list[Any] = []

    def of_the_batch_before(m: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = mean(m, x, y) * (seen[-1] if seen else 1.0)
        seen.append(loss.detach())
        return loss

    made = private()
    must_raise(PrivlearnError, lambda: trained(made, of_the_batch_before))
    assert len(made[0].accountant) <= 1


@check
def check_the_number_of_rows_does_not_come_into_the_loss() -> None:
    """The first batch is handed out at the expected size, and no loss of another form follows."""
    sizes: list[int] = []

    def scaled(m: Any, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return mean(m, x, y) / len(x)

    def scaled_later(m: Any, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return mean(m, x, y) if len(sizes) == 1 else F.cross_entropy(m(x) / len(x), y)

    def branched_later(m: Any, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        output = m(x) if len(x) % 2 else m(x).relu()
        return F.cross_entropy(output, y)

    for loss in (scaled, scaled_later, branched_later):
        sizes.clear()
        made = private()
        must_raise(BadInput, lambda made=made, loss=loss: trained(made, loss))
        assert sizes[0] == 15
        other = next(
            number
            for number, size in enumerate(sizes)
            if number and (size % 2 == 0 or loss is not branched_later)
        )
        assert len(made[0].accountant) == other


@check
def check_the_longest_row_does_not_come_into_the_loss() -> None:
    """Rows of different lengths have a public one in the first batch: 64 for tokens, 1,024 for
    sequences of floats. A model that needs another one is told so.
    """
    for kind, expected in ((torch.int64, 64), (torch.float32, 1024)):
        rows = [(torch.ones(1 + n % 5, dtype=kind), n % 2) for n in range(60)]
        lengths: list[int] = []

        def scaled(m: Any, x: Tensor, y: Tensor) -> Tensor:
            lengths.append(x.shape[1])  # noqa: B023
            return mean(m, x, y) / x.shape[1]

        batches = DataLoader(rows, 15, collate_fn=padded)  # type: ignore[arg-type]
        made = private(SumOfRow(), data_loader=batches)
        must_raise(BadInput, lambda made=made: trained(made, scaled))
        assert lengths[0] == expected
        assert max(lengths[1:]) <= 5
        assert len(made[0].accountant) == 1
        made = private(SumOfRow(most=8), data_loader=batches)
        error = must_raise(IndexError, lambda made=made: trained(made))
        assert f"the public length {expected}" in error.__notes__[0]


@check
def check_a_model_takes_the_batches_of_its_own_loader() -> None:
    """What another engine drew is priced elsewhere, and a step of this one would not be its."""
    one, other = private(), private()
    x, y = next(iter(one[3]))
    own, _ = next(iter(other[3]))
    must_raise(BadInput, lambda: other[1](x))
    must_raise(PrivlearnError, lambda: mean(lambda x: other[1](own), x, y).backward())
    mean(one[1], x, y).backward()
    must_raise(BadInput, other[2].step)
    one[2].step()
    assert (len(one[0].accountant), len(other[0].accountant)) == (1, 0)


@check
def check_the_first_loss_is_looked_at_like_any() -> None:
    """Figures may be read once the loss is computed, and the loss may then be computed after others
    were read.
    """

    def logged(m: Any, x: Tensor, y: Tensor) -> Tensor:
        output = m(x)
        loss = F.cross_entropy(output, y)
        figures.append(
            float(loss)
            + output.argmax(1).eq(y).float().mean().item()
            + output.detach().numpy().sum()
        )
        return loss

    figures: list[float] = []
    assert torch.equal(trained(private(), logged), trained(private()))
    assert len(figures) == 8


@check
def check_a_run_left_early_claims_its_limit() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for epochs in (1, 2):
            made = private(streams=None)
            engine = made[0]
            trained(made, epochs=epochs)
            spent = engine.get_epsilon(1e-5)
            out = engine.publish(Path(folder) / str(epochs))
            verified = pv.verify(out)
            assert verified.ok
            assert verified.epsilon == engine.run.plan.guarantee(1e-5).epsilon >= spent
            assert ("left early" in (out / "README.md").read_text()) == (epochs == 1)
            must_raise(BadInput, lambda: trained(made))  # noqa: B023


@check
def check_what_a_scripts_forward_writes_is_undone() -> None:
    """A script's own call of the model on a batch changes no weight, and does not show in what the
    run claims.
    """

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            if bool((x.detach() == X[3, 0]).any()):  # in no made-up row
                with torch.no_grad():
                    self.layer.weight.mul_(3.0)
            return self.layer(x)

    net = Writes()
    engine, model, _, batches = made = private(
        net, data_loader=loader(batch_size=60), noise_multiplier=1.0, sampling="full"
    )
    before = weights(net)
    for x, y in batches:
        mean(model, x, y).backward()
        assert torch.equal(weights(net), before), "the script's forward changed the weights"
        break
    made[2].step()
    made[2].zero_grad()
    x, y = next(iter(batches))
    mean(model, x, y).backward()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made[2].step()
        made[2].zero_grad()
    assert not [own for own in said if issubclass(own.category, pv.errors.PrivacyWarning)]
    assert not engine.run.session.unclaimed


@check
def check_the_optimizer_that_was_given_takes_no_step() -> None:
    """Of a run that is not over: it would move by nothing, or by gradients without noise."""
    for noise in (1.0, 0.0):
        model = network()
        optimizer = sgd(model, momentum=0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pv.errors.PrivacyWarning)
            made = private(model, optimizer=optimizer, noise_multiplier=noise)
            made[2].max_grad_norm = 0.5  # the run is made anew
        before = weights(model)
        must_raise(BadInput, optimizer.step)
        x, y = next(iter(made[3]))
        mean(made[1], x, y).backward()
        must_raise(BadInput, optimizer.step)
        made[2].zero_grad()
        mean(model, X, Y).backward()
        must_raise(BadInput, optimizer.step)
        assert torch.equal(weights(model), before)
        assert not len(made[0].accountant)
        made[2].zero_grad()
        made[2].step()
        made[2].zero_grad()
        for x, y in made[3]:
            mean(made[1], x, y).backward()
            made[2].step()
            made[2].zero_grad()
        trained(made, epochs=1)
        assert not torch.equal(weights(model), before)
        mean(model, X, Y).backward()
        optimizer.step()
