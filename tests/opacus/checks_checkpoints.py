"""Named checks of scripts that save their run and go on with it; mutations must make them fail."""

from __future__ import annotations

import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

import privlearn as pv
from privlearn.errors import BadInput, BudgetExceeded, PrivacyWarning
from privlearn.opacus import BatchMemoryManager
from privlearn.opacus.saved_loss import flattened_loss, whole_loss
from tests.opacus.checks import X, Y, apart, mean, network, private, sgd, trained, weights
from tests.support.checks import check, must_raise

#: Engines that were made for a check.
ENGINES: list[pv.opacus.PrivacyEngine] = []


@contextmanager
def file() -> Iterator[Path]:
    """Where a run is saved; then all runs are closed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder) / "kept.pt"
        finally:
            while ENGINES:
                ENGINES.pop().run.close()


def engine_of(**options: Any) -> tuple[Any, ...]:
    """An engine whose keys nobody knows, with dropout and momentum."""
    model = network(0.3)
    optimizer = sgd(model, momentum=0.9)
    made = private(model, **{"optimizer": optimizer, "streams": None, "epochs": 3, **options})
    ENGINES.append(made[0])
    return made


def take(made: tuple[Any, ...], steps: int, loss: Any = mean) -> None:
    """So many steps."""
    _, model, optimizer, batches = made
    for x, y in batches if steps else ():
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
        steps -= 1
        if not steps:
            return
    if steps:
        take(made, steps, loss)


@check
def check_a_saved_run_ends_where_it_would_have_ended() -> None:
    """Wherever it was saved: the weights, the events, the price, and what it claims."""
    for steps, passes in ((1, 0), (4, 0), (8, 2), (6, 1), (12, 3)):
        with file() as path:
            made = engine_of()
            if passes:
                trained(made, epochs=passes)
            take(made, steps - 4 * passes)
            made[0].save_checkpoint(path=path, module=made[1], optimizer=made[2])
            before = weights(made[1])
            take(made, 12 - steps)
            spent = made[0].get_epsilon(1e-5)  # also by the steps that will be repeated
            made[0].run.close()
            again = engine_of()
            nn.init.zeros_(next(again[1].parameters()))
            assert again[0].load_checkpoint(path=path) == {}
            assert torch.equal(weights(again[1]), before)
            assert abs(again[0].get_epsilon(1e-5) - spent) < 1e-9
            assert len(again[0].accountant) == steps
            take(again, 12 - steps)
            assert torch.equal(weights(again[1]), weights(made[1])), steps
            verified = pv.verify(again[0].publish(path.parent / "out"))
            assert again[0].run.ledger.event == again[0].run.plan.event()
            assert verified.ok
            assert verified.epsilon == again[0].run.plan.guarantee(1e-5).epsilon
            assert not path.exists()


@check
def check_the_steps_of_a_saved_run_are_taken_once() -> None:
    """Those since it was saved are repeated as they were, or not at all: with the same noise, and
    on the same sums.
    """
    cases: dict[str, dict[str, Any]] = {
        "as it was": {},
        "another rate": {"lr": 0.1},
        "other rows": {"data_loader": torch.utils.data.DataLoader(_other_rows(), batch_size=15)},
        "another loss": {"loss": lambda m, x, y: 2 * mean(m, x, y)},
        "another plan": {"epochs": 2},
    }
    for name, changed in cases.items():
        with file() as path:
            made = engine_of()
            take(made, 4)
            made[0].save_checkpoint(path=path)
            take(made, 3)
            after = weights(made[1])
            made[0].run.close()
            options = {key: value for key, value in changed.items() if key not in ("lr", "loss")}
            again = engine_of(**options)

            def go_on(again: Any = again, changed: Any = changed, path: Path = path) -> None:
                again[0].load_checkpoint(path=path)
                for group in again[2].param_groups:
                    group["lr"] = changed.get("lr", group["lr"])
                take(again, 3, changed.get("loss", mean))

            if changed:
                must_raise(BadInput, go_on)
                assert len(again[0].accountant) <= 4, name
            else:
                go_on()
                assert torch.equal(weights(again[1]), after)


def _other_rows() -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(X.flip(0), Y)


@check
def check_a_saved_run_is_in_one_file_and_in_one_process() -> None:
    with file() as path:
        made = engine_of()
        must_raise(BadInput, lambda: made[0].save_checkpoint(path=path))  # before a step
        take(made, 2)
        made[0].save_checkpoint(path=path, checkpoint_dict={"at": 2, "best": torch.ones(2)})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        must_raise(BadInput, lambda: made[0].save_checkpoint(path=path.with_name("other.pt")))
        must_raise(BadInput, lambda: made[0].load_checkpoint(path=path))  # it has begun
        again = engine_of()
        must_raise(BadInput, lambda: again[0].load_checkpoint(path=path))  # it is under way
        must_raise(BadInput, lambda: again[0].load_checkpoint(path=path.with_name("none.pt")))
        must_raise(BadInput, lambda: again[0].load_checkpoint(path=path, module=made[1]))
        made[0].run.close()
        path.with_name("other.pt").write_text("no checkpoint")
        must_raise(BadInput, lambda: again[0].load_checkpoint(path=path.with_name("other.pt")))
        loaded = again[0].load_checkpoint(path=path, module=again[1], optimizer=again[2])
        assert loaded["at"] == 2
        assert torch.equal(loaded["best"], torch.ones(2))


@check
def check_a_step_under_way_is_not_saved() -> None:
    """A batch that was only looked at comes again, also in a run that goes on."""
    with file() as path:
        made = engine_of()
        take(made, 2)
        x, y = next(iter(made[3]))
        made[0].save_checkpoint(path=path)
        made[2].zero_grad()
        mean(made[1], x, y).backward()
        must_raise(BadInput, lambda: made[0].save_checkpoint(path=path))
        made[2].step()
        take(made, 9)
        again = engine_of()
        made[0].run.close()
        again[0].load_checkpoint(path=path)
        take(again, 10)
        assert torch.equal(weights(again[1]), weights(made[1]))


@check
def check_physical_batches_of_a_saved_run_are_as_large() -> None:
    with file() as path:
        made, again = engine_of(), engine_of()

        def by(made: tuple[Any, ...]) -> tuple[Any, ...]:
            manager = BatchMemoryManager(
                data_loader=made[3], max_physical_batch_size=4, optimizer=made[2]
            )
            return (*made[:3], manager.__enter__())

        trained(by(made), epochs=1)
        made[0].save_checkpoint(path=path)
        trained(by(made), epochs=2)
        again[0].load_checkpoint(path=path)
        trained(by(again), epochs=2)
        assert torch.equal(weights(again[1]), weights(made[1]))


@check
def check_losses_are_saved_by_name() -> None:
    """What comes back computes the same, and is the same to the engine."""
    held = torch.tensor([1.0, 3.0])
    losses: list[Any] = [
        mean,
        lambda m, x, y: F.nll_loss(F.log_softmax(m(x.view(x.size(0), -1)), dim=1), y),
        lambda m, x, y: nn.CrossEntropyLoss(weight=held, label_smoothing=0.1)(m(x), y),
        lambda m, x, y: F.cross_entropy(m(x)[:, :2], y, reduction="none").mean() * 0.3,
        lambda m, x, y: (m(x)[..., 1].sigmoid() - y.to(torch.float32)).square().mean(),
        lambda m, x, y: F.mse_loss(m(x), F.one_hot(y, 2).float()) + 0.1 * m(x).T.abs().mean(),
    ]
    for number, loss in enumerate(losses):
        taken, tensors = apart(loss), dict[str, Tensor]()
        again = whole_loss(flattened_loss(taken, tensors), tensors)
        assert again.same_as(taken), number
        assert taken.same_as(again), number
        model = network()
        assert torch.equal(again(model, (X, Y)), taken(model, (X, Y)))


@check
def check_a_private_figure_in_a_file_is_noted() -> None:
    """It comes back as a plain number, which is not followed: a run that is left early then claims
    nothing.
    """
    for figure in (True, False):
        with file() as path:
            made = engine_of()
            x, y = next(iter(made[3]))
            (loss := mean(made[1], x, y)).backward()
            made[2].step()
            best = loss.detach().mean().item() if figure else 1.0
            made[0].save_checkpoint(path=path, checkpoint_dict={"best": best})
            made[0].run.close()
            again = engine_of()
            again[0].load_checkpoint(path=path)
            take(again, 1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrivacyWarning)
                again[0].run.result()
            assert bool(again[0].run.session.unclaimed) == figure


@check
def check_a_ledger_in_a_file_is_charged_once_for_a_saved_run() -> None:
    """What an interrupted run has set aside is for the run that goes on. Another one has no room,
    and is told how to go on.
    """
    with file() as path:
        budget, book = pv.Budget(3.001, 1e-5), path.with_name("ledger.json")

        def made(**options: Any) -> tuple[Any, ...]:
            return engine_of(ledger=pv.Ledger.open(book, budget), **options)

        one = made(checkpoint=path)
        trained(one, epochs=1)
        one[0].save_checkpoint(path=path, checkpoint_dict={"epochs": 1})
        take(one, 2)
        one[0].run.close()
        error = must_raise(BudgetExceeded, made)
        assert "checkpoint=FILE" in error.__notes__[0]
        again = made(checkpoint=path)
        assert again[0].load_checkpoint(path=path) == {"epochs": 1}
        take(again, 8)
        assert pv.verify(again[0].publish(path.parent / "out")).ok
        assert pv.Ledger.open(book).event == again[0].run.plan.event()


def _with_rates(made: tuple[Any, ...]) -> Any:
    """A scheduler whose rate follows from how often it was stepped."""
    return torch.optim.lr_scheduler.LambdaLR(made[2], lambda epoch: 1 / (1 + epoch) ** 2)


def _by_epoch(made: tuple[Any, ...], schedulers: list[Any], epochs: int) -> None:
    for _ in range(epochs):
        trained(made, epochs=1)
        for scheduler in schedulers:
            scheduler.step()


@check
def check_a_kept_scheduler_goes_on_with_a_saved_run() -> None:
    """Whether it is kept before the run is loaded or after, or by the run that make_private goes
    on with; and if others are.
    """
    for when in ("before", "after", "by make_private"):
        with file() as path:
            made = engine_of()
            schedulers = [_with_rates(made) for _ in range(2)]
            for scheduler in schedulers:
                made[0].run.keep(scheduler)
            _by_epoch(made, schedulers[:1], 1)
            made[0].save_checkpoint(path=path)
            _by_epoch(made, schedulers[:1], 2)
            made[0].run.close()
            again = engine_of(**({"checkpoint": path} if when == "by make_private" else {}))
            others = [_with_rates(again) for _ in range(2)]
            if when != "before":
                again[0].load_checkpoint(path=path)
            for scheduler in others:
                again[0].run.keep(scheduler)
            if when == "before":
                again[0].load_checkpoint(path=path)
            assert [each.last_epoch for each in others] == [1, 0], when
            _by_epoch(again, others[:1], 2)
            assert torch.equal(weights(again[1]), weights(made[1])), when
            error = must_raise(BadInput, partial(again[0].run.keep, _with_rates(again)))
            assert "after a step" in str(error)


@check
def check_a_kept_scheduler_outlives_what_is_set_later() -> None:
    """A setting before the first batch makes the run anew: it keeps what was kept."""
    with file() as path:
        made = engine_of(noise_multiplier=1.0)
        scheduler = _with_rates(made)
        made[0].run.keep(scheduler)
        made[2].noise_multiplier = 2.0
        _by_epoch(made, [scheduler], 1)
        made[0].save_checkpoint(path=path)
        assert made[0].run.kept == {"scheduler 0": scheduler}
        made[0].run.close()
        again = engine_of(noise_multiplier=2.0, checkpoint=path)
        made[0].run.close()
        again[0].run.keep(other := _with_rates(again))
        assert other.last_epoch == 1


@check
def check_a_run_with_a_file_is_kept_in_it() -> None:
    """From its first step on, by itself; once the script saves, what is loaded is what it saved."""
    for saves, ends in ((False, False), (False, True), (True, True)):
        with file() as path:
            made = engine_of(checkpoint=path, streams=pv.Streams.new(0))
            assert not path.exists()
            take(made, 5)
            assert path.exists()
            if saves:
                made[0].save_checkpoint(path=path, checkpoint_dict={"at": 5})
            take(made, 3)
            if ends:
                trained(made, epochs=1)
            made[0].close()
            again = engine_of(checkpoint=path)
            assert again[0].run.steps_done == (5 if saves else 12 if ends else 1)
            assert again[0].load_checkpoint(path=path) == ({"at": 5} if saves else {})
            take(again, 12 - again[0].run.steps_done)
            straight = engine_of(streams=pv.Streams.new(0))
            take(straight, 12)
            assert torch.equal(weights(again[1]), weights(straight[1]))
            assert pv.verify(again[0].publish(path.parent / "out")).ok
            assert not path.exists()


@check
def check_a_loss_that_cannot_be_saved_is_refused_before_a_step() -> None:
    """Where the run is to be kept in a file."""

    def unnamed(output: Tensor, y: Tensor) -> Tensor:
        if has_torch_function((output, y)):
            return handle_torch_function(unnamed, (output, y), output, y)
        return F.cross_entropy(output, y, reduction="none")

    with file() as path:
        made = engine_of(checkpoint=path)
        error = must_raise(BadInput, lambda: take(made, 1, lambda m, x, y: unnamed(m(x), y).mean()))
        assert "the loss can't be saved" in str(error)
        assert not made[0].run.ledger.event.events
        assert not path.exists()
