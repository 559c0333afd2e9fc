"""Named checks of private figures: they are shown and logged, and steer nothing that is claimed."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

import privlearn as pv
from privlearn.errors import BadInput, PrivacyWarning
from privlearn.opacus import PrivacyEngine
from tests.loop.checks import X, Y, loader, loss, network, private, sgd
from tests.support.checks import check, must_raise

#: What a script does after a step with the losses so far, the scheduler and the optimizer; True: it
#: leaves the loop.
Use = Callable[[list[Any], Any, torch.optim.Optimizer], Any]


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    return ReduceLROnPlateau(optimizer, patience=0, factor=0.5)


def patient(optimizer: torch.optim.Optimizer) -> Any:
    """It changes nothing in so short a run, on these rows."""
    return ReduceLROnPlateau(optimizer, patience=99)


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return CosineAnnealingLR(optimizer, T_max=8)


def published(use: Use, scheduled: Any = None, **options: Any) -> tuple[str, list[str]]:
    """Why a loop that does this is not published, empty if it is; and what was warned of."""
    model = network()
    optimizer = sgd(model)
    scheduler = scheduled and scheduled(optimizer)
    loop, losses = private(model, optimizer=optimizer, **options), []

    def train() -> None:
        for batch in loop.batches():
            losses.append(loop.step(batch, loss)["loss"])
            if use(losses, scheduler, optimizer):
                break

    return _outcome(train, loop.publish)


def published_by_a_script(use: Use, scheduled: Any = None) -> tuple[str, list[str]]:
    """The same of a script in Opacus's form, whose losses are tensors."""
    model, engine = network(), PrivacyEngine()
    module, optimizer, batches = engine.make_private_with_epsilon(
        module=model,
        optimizer=sgd(model),
        data_loader=loader(),
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
    )
    scheduler, losses = scheduled and scheduled(optimizer), []

    def train() -> None:
        for x, y in batches:
            optimizer.zero_grad()
            value = torch.nn.functional.cross_entropy(module(x), y)
            value.backward()
            optimizer.step()
            losses.append(value)
            if use(losses, scheduler, optimizer):
                break

    return _outcome(train, engine.publish)


def _outcome(train: Callable[[], None], publish: Callable[[Path], Any]) -> tuple[str, list[str]]:
    refused = ""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
        try:
            publish(Path(folder) / "model")
        except BadInput as error:
            refused = str(error)
    return refused, [
        str(each.message) for each in caught if issubclass(each.category, PrivacyWarning)
    ]


def in_scheduler(metric: Callable[[list[Any]], Any]) -> Use:
    def use(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        scheduler.step(metric(losses))

    return use


@check
def check_a_private_figure_in_a_scheduler_claims_nothing() -> None:
    """Also where the scheduler leaves the rate as it is: on a neighbour's rows it might not."""
    for metric in (
        lambda losses: losses[-1],
        lambda losses: sum(losses) / len(losses),
        lambda losses: round(-losses[-1] * 2, 3),
        lambda losses: math.floor(losses[-1] ** 2 // 1) + losses[-1].real,
        lambda losses: np.exp(losses[-1]),
        lambda losses: np.float64(2) * losses[-1],
    ):
        refused, warned = published(in_scheduler(metric), patient, epochs=1)
        assert "in ReduceLROnPlateau" in refused
        assert "metric of public rows" in refused
        assert len(warned) == 1


@check
def check_a_plain_number_of_a_private_figure_is_traced_into_a_scheduler() -> None:
    """`float` and NumPy make plain numbers: what takes a number afterwards may take that one."""
    for scheduled in (plateau, patient):
        for metric in (
            lambda losses: float(losses[-1]),
            np.mean,
            lambda losses: torch.ones(1) * losses[-1],
        ):
            refused, warned = published(in_scheduler(metric), scheduled, epochs=1)
            assert "a scheduler was given a number" in refused
            assert "checks_figures.py:" in refused
            assert warned


@check
def check_a_public_metric_may_steer_a_scheduler() -> None:
    """While the training loss is shown, logged and averaged, and beside schedulers that are given
    nothing.
    """

    def shows(losses: list[Any]) -> None:
        texts = [f"{losses[-1]:.4f}", str(losses[-1]), json.dumps(losses), repr(max(losses[-1:]))]
        assert all(texts)
        assert json.loads(texts[2]) == [float(text) for text in map(repr, losses)]
        assert math.isfinite(sum(losses) / len(losses))

    def public(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        shows(losses)
        with torch.no_grad():
            metric = torch.nn.functional.cross_entropy(network()(X[:9]), Y[:9])
        scheduler.step(pv.runs.declare_public(metric, because="of public rows"))

    def scheduled(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        shows(losses)
        assert float(losses[-1]) + np.mean(losses) > 0
        scheduler.step()

    assert published(public, plateau) == ("", [])
    refused, warned = published(scheduled, cosine)
    assert refused == ""
    assert len(warned) == 1  # of float(), once


@check
def check_comparing_a_private_figure_is_warned_of_and_decides_nothing() -> None:
    """The whole run may be published, one that is left early or gets other rates then may not."""

    def compares(losses: list[Any]) -> bool:
        return bool(losses[-1] < 100.0)

    def by_hand(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        if compares(losses):
            optimizer.param_groups[0]["lr"] *= 0.5

    refused, warned = published(lambda losses, *_: compares(losses) and None)
    assert refused == ""
    assert len(warned) == 1
    assert "checks_figures.py:" in warned[0]
    assert "left early" in published(lambda losses, *_: compares(losses))[0]
    assert "left early" in published(lambda losses, *_: np.mean(losses) < 100.0)[0]
    assert "changed by hand" in published(by_hand)[0]
    # left early, by a script that looks at no figure
    assert published(lambda losses, *_: True) == ("", [])
    rates = pv.schedules.Exponential(k=0.1)
    assert (
        published(lambda losses, *_: compares(losses) and None, learning_rate_schedule=rates)[0]
        == ""
    )


@check
def check_a_private_figure_sets_nothing() -> None:
    """No setting of an optimizer, no plan, no argument of a publication."""

    def sets(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 * losses[-1]

    assert "a setting of the optimizer is a private figure" in published(sets, epochs=1)[0]
    loop = private(epochs=1)
    figure = [loop.step(batch, loss) for batch in loop.batches()][-1]["loss"]
    for refused in (
        lambda: pv.Flat(figure),
        lambda: pv.Plan(pv.Poisson(0.1), epochs=round(figure)),
        lambda: pv.Budget(figure, 1e-5),
        lambda: private(epsilon=figure, delta=1e-5),
        lambda: loop.publish("nowhere", delta=figure),
    ):
        said = str(must_raise(BadInput, refused))
        assert "private figure" in said
        assert f"{figure:.3f}" not in said


@check
def check_private_figures_stay_out_of_steps() -> None:
    """A loss that looks at what a step before returned, or that changes the optimizer while it is
    computed.
    """
    model = network()
    optimizer = sgd(model)
    last: list[Any] = [1.0]

    def weighted(model: Any, batch: Any) -> Any:
        return loss(model, batch) * (2.0 if last[-1] > 0.5 else 1.0)

    def turning(model: Any, batch: Any) -> Any:
        optimizer.param_groups[0]["lr"] = float(optimizer.param_groups[0]["lr"]) * 0.5
        return loss(model, batch)

    for function, said in (
        (weighted, "in a step"),
        (turning, "while a step's gradients were computed"),
    ):
        loop = private(
            model if function is turning else None,
            optimizer=optimizer if function is turning else None,
        )

        def train(loop: Any = loop, function: Any = function) -> None:
            for batch in loop.batches():
                last.append(loop.step(batch, function)["loss"])

        assert said in _outcome(train, loop.publish)[0]


@check
def check_a_scripts_losses_are_private_figures() -> None:
    """In Opacus's form: as tensors and as numbers of them."""
    for metric in (
        lambda losses: losses[-1],
        lambda losses: losses[-1].item(),
        lambda losses: losses[-1].tolist() / 2,
    ):
        assert "in ReduceLROnPlateau" in published_by_a_script(in_scheduler(metric), patient)[0]
    for metric in (
        lambda losses: float(losses[-1]),
        lambda losses: losses[-1].detach(),
        lambda losses: losses[-1].detach().numpy(),
        lambda losses: losses[-1].numpy(),
    ):
        assert (
            "a scheduler was given a number"
            in published_by_a_script(in_scheduler(metric), patient)[0]
        )
        leaves = published_by_a_script(lambda losses, *_, read=metric: read(losses) is not None)
        assert "left early" in leaves[0]
    refused, warned = published_by_a_script(lambda losses, *_: losses[-1] < 100.0)
    assert "left early" in refused
    assert any("was compared at checks_figures.py" in each for each in warned)

    def logs(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> bool:
        assert (
            f"{losses[-1]:.3f} {losses[-1].item():.3f} "
            f"{sum(one.item() for one in losses) / len(losses)}"
        )
        scheduler.step(pv.runs.declare_public(1.0, because="a constant"))
        return len(losses) == 3  # and leaves, which it may not after a use

    assert published_by_a_script(logs, plateau) == ("", [])


@check
def check_a_restart_forgets_no_use_of_a_private_figure() -> None:
    """A run that is killed after a use, before another checkpoint is written, and goes on without
    it.
    """

    def run(place: Path, use: Use, at: int) -> Any:
        model = network()
        optimizer = sgd(model)
        scheduler, losses = patient(optimizer), []
        loop = private(model, optimizer=optimizer, loss=loss, checkpoint=place)
        for batch in loop.batches():
            losses.append(loop.step(batch)["loss"])
            if loop.steps_done == at:
                use(losses, scheduler, optimizer)
                loop._epochs.close()  # as a process that is killed leaves it
                return None
        return loop

    def steers(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        scheduler.step(losses[-1])

    def compares(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        assert losses[-1] < 100.0

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        place = Path(folder)
        run(place / "steered", steers, 3)
        loop = run(place / "steered", steers, 99)
        assert "in ReduceLROnPlateau" in str(
            must_raise(BadInput, lambda: loop.publish(place / "a"))
        )
        run(place / "compared", compares, 3)
        again = private(network(), loss=loss, checkpoint=place / "compared")
        for batch in again.batches():
            again.step(batch)
            if again.steps_done == 5:
                break
        assert "left early" in str(must_raise(BadInput, lambda: again.publish(place / "b")))
        assert list(place.glob("compared*"))
        pv.runs.Checkpoint(place / "compared").delete()
        assert not list(place.glob("compared*"))
        run(place / "compared", lambda *_: None, 3)
        run(place / "compared", compares, 99).publish(place / "c")
        assert pv.verify(place / "c").ok


@check
def check_several_runs_under_way_note_a_use_and_one_warns_of_it() -> None:
    """A run that a script left is under way until it is collected: it must not warn again of what a
    later run warns of, and it can't be published after the use.
    """

    def compares(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        assert losses[-1] < 100.0

    for use, scheduled in ((compares, None), (in_scheduler(lambda losses: losses[-1]), patient)):
        earlier = []
        for _ in range(3):
            loop = private(network(), loss=loss)
            loop.step(next(iter(loop.batches())))
            earlier.append(loop)
        for _ in range(2):
            warned = published(use, scheduled, epochs=1)[1]
            assert len(warned) == 1, warned
        for loop in earlier:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "model"
                refused = must_raise(BadInput, lambda loop=loop, to=place: loop.publish(to))
            assert "a private figure was" in str(refused)


@check
def check_a_run_whose_folder_was_deleted_lets_others_compare() -> None:
    """A notebook's run that was left, and its checkpoint's folder deleted, notes a use, too."""
    with tempfile.TemporaryDirectory() as folder:
        earlier = private(network(), loss=loss, checkpoint=Path(folder) / "run.ckpt")
        earlier.step(next(iter(earlier.batches())))

    def compares(losses: list[Any], scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        assert losses[-1] < 100.0

    assert not published(compares, epochs=1)[0]
    with tempfile.TemporaryDirectory() as folder:
        refused = must_raise(BadInput, lambda: earlier.publish(Path(folder) / "model"))
        assert "a private figure was compared" in str(refused)
