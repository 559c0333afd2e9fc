"""Named checks of scripts that take a batch in physical batches; mutations must make them fail."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.errors import BadInput, BudgetExceeded, PrivacyWarning, PrivlearnError
from privlearn.opacus import BatchMemoryManager
from privlearn.opacus.recorded import plain
from tests.opacus.checks import X, Y, mean, network, private, trained, weights
from tests.support.checks import check, must_raise

#: The rows of a physical batch.
MOST = 4
#: With how many rows a model was called.
SEEN: list[int] = []


def in_parts(made: tuple[Any, ...], most: int = MOST) -> Any:
    """The loader of physical batches."""
    return BatchMemoryManager(
        data_loader=made[3], max_physical_batch_size=most, optimizer=made[2]
    ).__enter__()


def parts_of_a_batch(made: tuple[Any, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Physical batches up to the end of the first logical one."""
    for x, y in in_parts(made):
        yield x, y
        if not made[2].is_last_step_skipped:
            return


class Sized(nn.Module):
    """Notes how many rows it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() > 1:
            SEEN.append(len(x))
        return self.inner(x)


@check
def check_a_logical_batch_is_one_step() -> None:
    """The weights, the events and the noise are those of a run that is handed whole batches; the
    weights move at the last physical batch of each.
    """
    made = private()
    engine, model, optimizer, _ = made
    moved, skipped = 0, 0
    for _ in range(2):
        for x, y in in_parts(made):
            before = weights(model)
            optimizer.zero_grad()
            mean(model, x, y).backward()
            optimizer.step()
            moved += not torch.equal(before, weights(model))
            skipped += optimizer.is_last_step_skipped
            assert torch.equal(before, weights(model)) == optimizer.is_last_step_skipped
    whole = private(microbatch=MOST)
    assert torch.equal(trained(whole), weights(model))
    assert moved == len(engine.accountant) == 8 < skipped
    assert engine.run.ledger.event == whole[0].run.ledger.event == engine.run.plan.event()
    assert engine.run.session.streams.state() == whole[0].run.session.streams.state()


@check
def check_no_call_of_the_model_has_more_rows_than_a_physical_batch() -> None:
    """Neither the script's own nor the step's, once the loss was tried on made-up rows."""
    made = private(Sized())
    for number, (x, y) in enumerate(in_parts(made)):
        SEEN.clear()
        loss = mean(made[1], x, y)
        assert [len(x)] == SEEN
        assert len(x) <= MOST
        loss.backward()
        made[2].step()
        made[2].zero_grad()
        if number > 5:  # the first step was taken
            assert max(SEEN) <= MOST


@check
def check_a_step_is_charged_at_its_last_physical_batch() -> None:
    """Once, before noise is drawn; what a ledger refuses leaves weights and noise where they
    were.
    """
    engine, model, optimizer, _ = made = private()
    session, before, charges = engine.run.session, weights(model), list[Any]()

    class Refuses:
        def charge(self, *given: Any, **more: Any) -> None:
            charges.append(given)
            raise BudgetExceeded("the ledger refuses")

    for number, (x, y) in enumerate(in_parts(made)):
        if not number:
            noise = session.streams.state()["noise"]
            session.account = Refuses()
        mean(model, x, y).backward()
        try:
            optimizer.step()
            optimizer.zero_grad()
            assert not charges
            assert optimizer.is_last_step_skipped
        except BudgetExceeded:
            break
    assert number > 1
    assert len(charges) == 1
    assert session.streams.state()["noise"] == noise
    assert torch.equal(weights(model), before)


@check
def check_a_physical_batch_is_good_for_one_step() -> None:
    """None can be left out, stepped on twice, or mixed with another one."""
    engine, model, optimizer, _ = made = private()
    parts = iter(in_parts(made))
    x, y = next(parts)
    must_raise(BadInput, optimizer.step)  # without a loss
    first = mean(model, x, y)
    first.backward()
    must_raise(BadInput, lambda: next(parts))  # without a step
    made = private()
    engine, model, optimizer, _ = made
    parts = iter(in_parts(made))
    x, y = next(parts)
    (first := mean(model, x, y)).backward()
    optimizer.step()
    must_raise(BadInput, optimizer.step)
    must_raise(BadInput, first.backward)
    own, own_y = next(parts)
    both: Callable[[], Tensor] = lambda: mean(model, torch.cat([x, own]), torch.cat([y, own_y]))  # noqa: E731
    must_raise(PrivlearnError, lambda: both().backward())
    must_raise(PrivlearnError, lambda: (mean(model, own, own_y) + first).backward())
    must_raise(BadInput, optimizer.step)
    must_raise(BadInput, lambda: optimizer.signal_skip_step(do_skip=False))
    assert not len(engine.accountant)


@check
def check_a_loss_does_not_follow_from_physical_batches() -> None:
    """Neither from how many rows they have, nor from how many came before: both are private, and
    rows of one batch have one loss.
    """
    seen: list[int] = []

    def by_size(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return mean(m, x, y) * len(x)

    def by_number(m: Any, x: Tensor, y: Tensor) -> Tensor:
        seen.append(0)
        return mean(m, x, y) / len(seen)

    def alternating(m: Any, x: Tensor, y: Tensor) -> Tensor:
        seen.append(0)
        return F.cross_entropy(m(x) if len(seen) % 2 else m(x).relu(), y)

    for loss in (by_size, by_number, alternating):
        seen.clear()
        made = private()
        batches = in_parts(made)
        run = (*made[:3], batches)
        must_raise(BadInput, lambda run=run, loss=loss: trained(run, loss))
        assert len(made[0].accountant) <= 1


@check
def check_the_first_physical_batch_has_a_public_size() -> None:
    """From how many rows it has a number of the first loss may follow."""
    for most in (1, 4, 11, 40):
        made = private(streams=pv.Streams.new(most))
        x, _ = next(iter(in_parts(made, most)))
        assert len(x) == min(most, 15)


@check
def check_a_batch_that_was_left_between_physical_batches_goes_on() -> None:
    """What the script is through with does not come again, and the step is that of all rows."""
    made = private()
    engine, model, optimizer, loader = made
    rows = list[Tensor]()
    for x, y in in_parts(made):
        rows.append(plain(x))
        mean(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        break
    rows.append(plain(next(iter(in_parts(made)))[0]))  # looked at
    assert not any(torch.equal(first, later) for first in rows[0] for later in rows[1])
    for number, (x, y) in enumerate(loader):
        assert number or torch.equal(plain(x)[: len(rows[1])], rows[1])
        mean(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for x, y in loader:
        mean(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(weights(model), trained(private(microbatch=MOST)))
    assert engine.run.ledger.event == engine.run.plan.event()


@check
def check_a_scheduler_that_counts_physical_batches_is_not_claimed() -> None:
    """Their number follows from who was drawn. One that counts steps is claimed; so are weights
    that nothing else changed, between physical batches, too.
    """

    def every(optimizer: Any, scheduler: Any, model: Any) -> None:
        scheduler.step()

    def taken(optimizer: Any, scheduler: Any, model: Any) -> None:
        if not optimizer.is_last_step_skipped:
            scheduler.step()

    def written(optimizer: Any, scheduler: Any, model: Any) -> None:
        if optimizer.is_last_step_skipped:
            with torch.no_grad():
                next(model.parameters()).mul_(0.9)

    for act, claimed in ((every, False), (taken, True), (written, False)):
        made = private()
        engine, model, optimizer, _ = made
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            for _ in range(2):
                for x, y in in_parts(made):
                    mean(model, x, y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    act(optimizer, scheduler, model)
        assert (not engine.run.session.unclaimed) == claimed, act.__name__


@check
def check_the_step_of_physical_batches_is_the_mean_of_clipped_gradients() -> None:
    """At hardly any noise, of a loss that is a mean over each physical batch, divided by the
    expected size of the whole batch.
    """
    model = network()
    own = network()
    sums = [torch.zeros_like(parameter) for parameter in own.parameters()]
    for row in range(60):
        own.zero_grad()
        F.cross_entropy(own(X[row : row + 1]), Y[row : row + 1]).backward()
        gradients = [parameter.grad for parameter in own.parameters()]
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        for total, gradient in zip(sums, gradients, strict=True):
            assert gradient is not None
            total += gradient * min(1.0, 0.1 / float(norm))
    expected = weights(own) - 0.5 / 60 * torch.cat([total.flatten() for total in sums])
    made = private(model, noise_multiplier=1e-6, sampling="full", epochs=1, max_grad_norm=0.1)
    for x, y in parts_of_a_batch(made):
        mean(made[1], x, y).backward()
        made[2].step()
        made[2].zero_grad()
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-5)
