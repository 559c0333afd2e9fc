"""What scripts do around their steps: epochs that they count, averages, files, and losses that need
more than a forward pass.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.errors import BadInput, PrivacyWarning
from tests.loop.checks import X, Y, gone_through, loss, network, private, weights

SAVED = 1e-9


def in_epochs(run: Any, *, until: int, function: Any = None) -> None:
    for _ in range(run.epoch, until):
        for batch in run.next_epoch():
            run.step(batch, function)


def test_a_script_may_count_its_epochs() -> None:
    run = private()
    in_epochs(run, until=2, function=loss)
    assert torch.equal(weights(run.model), gone_through(private()))
    with pytest.raises(BadInput, match="all epochs are over"):
        run.next_epoch()


def test_a_run_that_is_over_says_how_to_go_on() -> None:
    """A new run of the same model, on a ledger with room for both."""
    ledger = pv.Ledger(pv.Budget(7, 1e-5))
    run = private(ledger=ledger)
    in_epochs(run, until=2, function=loss)
    with pytest.raises(
        BadInput, match=r"begin a new run .* pv\.make_private\(\.\.\., ledger=ledger"
    ):
        run.next_epoch()
    before = weights(run.model)
    again = private(run.model, ledger=ledger)
    in_epochs(again, until=2, function=loss)
    assert not torch.equal(weights(again.model), before)
    assert ledger.spent(1e-5).epsilon > 3


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_autocast_in_a_loss_is_named_where_it_slows(reduction: str) -> None:
    """And what is advised in its place is fast."""

    def cast(model: Any, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction=reduction)

    def plain(model: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction=reduction)

    with pytest.warns(UserWarning, match=r"enters torch\.autocast.* precision='bf16'"):
        in_epochs(private(), until=1, function=cast)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_epochs(private(precision="bf16"), until=1, function=plain)


def test_persons_of_a_loader_are_said_beside_it() -> None:
    """What a refusal advises works: a loader has no place for ids."""
    ids = torch.arange(len(X)).numpy() // 2
    with pytest.raises(BadInput, match="expected groups=ids beside the loader") as error:
        private(rows_per_person=2)
    assert "Dataset(" not in str(error.value)
    with pytest.raises(BadInput, match="rows_per_person=K, or leave out groups=ids"):
        private(groups=ids)
    run = private(groups=ids, rows_per_person=2)
    assert "person" in str(run.plan.guarantee(1e-5))
    in_epochs(run, until=1, function=loss)


def test_the_next_epoch_waits_for_all_batches_of_the_last() -> None:
    run = private()
    run.step(next(iter(run.next_epoch())), loss)
    with pytest.raises(BadInput, match="was left before its last batch"):
        run.next_epoch()


def test_a_resumed_run_says_where_it_is_and_skips_its_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kept() -> Any:
        checkpoint = pv.runs.Checkpoint(tmp_path / "run", every=SAVED)
        return private(loss=loss, checkpoint=checkpoint, epochs=3)

    run = kept()
    assert "resuming" not in capsys.readouterr().err
    in_epochs(run, until=2)
    run.close()
    again = kept()
    assert f"resuming at step 7 of {again.steps}\n" in capsys.readouterr().err
    again.begin()
    assert again.epoch == 1
    in_epochs(again, until=3)
    whole = private(loss=loss, epochs=3)
    in_epochs(whole, until=3)
    assert torch.equal(weights(again.model), weights(whole.model))


def test_an_average_of_the_scripts_own_stays_beside_the_model(tmp_path: Path) -> None:
    run = private(loss=loss)
    ema = torch.optim.swa_utils.AveragedModel(run.model)
    run.keep(ema=ema)
    for batch in run.batches():
        run.step(batch)
        ema.update_parameters(run.model)
    assert pv.verify(run.publish(tmp_path / "model")).ok


def test_an_average_that_is_copied_into_the_model_is_refused_with_what_to_do() -> None:
    run = private(loss=loss)
    batches = run.batches()
    run.step(next(batches))
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(0.5)
    with pytest.warns(PrivacyWarning, match=r"give average=0\.5"):
        run.step(next(batches))
    run.close()


@pytest.mark.parametrize("whole", [True, False])
def test_the_model_is_saved_between_steps(whole: bool) -> None:
    run = private()
    batches = run.batches()
    run.step(next(batches), loss)
    file = io.BytesIO()
    torch.save(run.model if whole else run.model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=not whole)
    expected = run.model.state_dict()
    held = loaded.state_dict() if whole else loaded
    assert all(torch.equal(held[name], value) for name, value in expected.items())
    run.step(next(batches))
    run.close()


def test_published_weights_have_the_networks_own_names(tmp_path: Path) -> None:
    run = private()
    gone_through(run)
    folder = run.publish(tmp_path / "model", classes=2)
    trained = run.model
    other = network()
    with torch.no_grad():
        other[0].weight.zero_()  # type: ignore[index]
    other.load_state_dict(pv.load_model(folder, network()).network.state_dict())
    assert torch.equal(weights(other), weights(trained))


def tanh() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def by_inputs(model: Any, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope.sum(1) - 1).square()


def residual(model: Any, batch: Any) -> Tensor:
    return by_inputs(model, batch[0].requires_grad_())


def residual_by_advice(model: Any, batch: Any) -> Tensor:
    with torch.enable_grad():
        return by_inputs(model, batch[0].detach().requires_grad_())


def penalty(model: Any, batch: Any) -> Tensor:
    """A mean over the batch, with a gradient penalty between rows that are real and made up."""
    with torch.enable_grad():
        real = batch[0]
        mixed = (0.5 * real).detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)
        norms = slope.flatten(1).norm(dim=1)
        return -model(real).mean() + 10 * (norms - 1).square().mean()


def test_a_loss_of_gradients_by_inputs_is_advised_and_runs_by_the_advice() -> None:
    run = private(tanh())
    batches = run.batches()
    batch = next(batches)
    with pytest.raises(BadInput, match=r"torch\.enable_grad\(\)") as caught:
        run.step(batch, residual)
    assert len(str(caught.value)) <= 420
    for function in (residual_by_advice, penalty):
        before = weights(run.model)
        assert run.step(batch, function)["left_out"] == 0
        assert not torch.equal(before, weights(run.model))
        batch = next(batches)
    run.close()


def test_advice_on_made_up_rows_leads_to_a_run() -> None:
    def marked(model: Any, batch: Any) -> Tensor:
        if not bool((batch[0][:, 0] == 7).all()):
            raise ValueError("rows begin with a 7")
        return loss(model, batch)

    def beginning(batch: Any) -> Any:
        batch[0][:, 0] = 7
        return batch

    rows = X.clone()
    rows[:, 0] = 7
    given = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, Y), batch_size=15)
    run = private(given=given)
    with pytest.raises(BadInput, match="give made_up, as an argument"):
        run.step(next(run.batches()), marked)
    run = private(given=given, made_up=beginning)
    assert run.step(next(run.batches()), marked)["left_out"] == 0
    marked.made_up = beginning  # type: ignore[attr-defined]
    run = private(given=given)
    assert run.step(next(run.batches()), marked)["left_out"] == 0
