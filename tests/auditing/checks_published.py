"""What `replay` says of the published folder: it holds the weights of the recorded run, however
early that was left.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn._storage import digest
from privlearn.auditing import Replay, Transcript, commit, replay
from privlearn.auditing.replaying import _close
from privlearn.runs.result import Result
from privlearn.runs.transcript import Recording
from tests.auditing.checks_replay import BETWEEN, STEPS, recorded, replayed, rows, train
from tests.support.checks import check

#: Steps after which runs are left: within an epoch of 4 steps, at a kept state, at an epoch's end,
#: at the first step.
EARLY = (10, 8, 12, 1)


class StopAt(pv.runs.Callback):
    """Stops a run after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, progress: pv.runs.TrainingProgress) -> None:
        if progress.step == self.steps:
            progress.stop()


def stopped(steps: int) -> Callable[[Any], Result]:
    """A training that a callback stops."""
    return lambda checkpoint: train(checkpoint, callbacks=StopAt(steps))


def broken_off(steps: int, *, closed: bool = False) -> Callable[[Any], Result]:
    """A custom loop that is left; `closed` says that the run is closed before its result is asked
    for.
    """

    def own(checkpoint: Any) -> Result:
        plan = pv.Plan(pv.sampling.Poisson(0.25), 6, pv.schedules.Constant(1.0), examples=40)
        torch.manual_seed(3)
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        loss = nn.CrossEntropyLoss(reduction="none")
        taken = 0
        with pv.Run(plan, network, loss, rows(), checkpoint=checkpoint, average=0.5) as run:
            for epoch in run:
                for batch in epoch:
                    run.step(batch)
                    taken += 1
                    if taken == steps:
                        break
                if taken == steps:
                    break
            if not closed:
                return run.result()
        return run.result()

    return own


def scripted(steps: int) -> Callable[[Any], Result]:
    """A custom script around `make_private`."""

    def own(checkpoint: Any) -> Result:
        data = rows()
        x, y = data.tensors()
        torch.manual_seed(3)
        network = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)
        loader = DataLoader(TensorDataset(x, y), batch_size=10)
        private = pv.make_private(
            network,
            optimizer,
            loader,
            epochs=6,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            delta=1e-3,
            examples=40,
            loss=nn.CrossEntropyLoss(reduction="none"),
            checkpoint=checkpoint,
        )
        for batch in private.batches():
            private.step(batch)
            if private.steps_done == steps:
                break
        return private.result()

    return own


def by_layers(steps: int) -> Callable[[Any], Result]:
    """A run of DP-MAC that a callback stops."""

    def own(checkpoint: Any) -> Result:
        plan = pv.Plan(
            pv.sampling.Poisson(0.25),
            4,
            pv.schedules.Constant(2.0),
            clip=pv.mac.Derivatives(0.3),
            examples=40,
        )
        torch.manual_seed(3)
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        return pv.dpmac(
            plan,
            network,
            "binary_cross_entropy",
            rows(),
            checkpoint=checkpoint,
            callbacks=StopAt(steps),
        )

    return own


def forged(folder: Path, change: Callable[[dict[str, Tensor]], None], **facts: Any) -> None:
    """Change the weights of a published folder and facts of its certificate, and mend all
    digests.
    """
    file, certificate = folder / "model.safetensors", folder / "privacy.json"
    weights = load(file.read_bytes())
    change(weights)
    file.write_bytes(save(weights))
    body = json.loads(certificate.read_text())
    body["facts"] = {
        name: value for name, value in (body["facts"] | facts).items() if value is not None
    }
    body["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    body["digests"] = {part: digest(body[part]) for part in body["digests"]}
    certificate.write_text(json.dumps(body))


def to_rows(weights: dict[str, Tensor]) -> None:
    """Weights that are private rows."""
    for value in weights.values():
        value.copy_(torch.as_tensor(rows().x).reshape(-1)[: value.numel()].reshape(value.shape))


@check
def check_weights_without_noise_are_found_however_a_run_is_said_to_have_ended() -> None:
    """A run to the end that is said to have been left early, and weights that are private rows:
    `verify` can't know.
    """
    with recorded() as folder:
        model = folder.parent / "model"
        forged(model, to_rows, left_early=True)
        assert pv.verify(model).ok
        report = replayed(folder)
    assert not report.ok
    assert report.weights
    assert any("weights" in problem for problem in report.problems), report.problems
    assert any("left_early" in problem for problem in report.problems), report.problems


@contextmanager
def recorded_with(publisher: Callable[[Any], Result]) -> Iterator[Path]:
    with TemporaryDirectory() as place:
        folder = Path(place) / "transcript"
        commit(rows(), folder, publisher)
        pv.publish(publisher(Transcript(folder, steps=BETWEEN)), Path(place) / "model", delta=1e-5)
        yield folder


def early_ends() -> Iterator[tuple[str, int, Callable[[Any], Result]]]:
    for steps in EARLY:
        yield f"a callback, {steps}", steps, stopped(steps)
        yield f"a loop, {steps}", steps, broken_off(steps)
    yield "a loop that is closed", 10, broken_off(10, closed=True)
    yield "a script", 10, scripted(10)
    yield "DP-MAC", 6, by_layers(6)


@check
def check_an_early_end_is_compared_at_its_own_step() -> None:
    """An honest one agrees bit for bit; other weights are found, as the state was kept at the step
    of the end.
    """
    for name, steps, publisher in early_ends():
        with recorded_with(publisher) as folder:
            report = replayed(folder, train=publisher)
            assert report.ok, (name, report.problems)
            assert report.bits, name
            assert report.weights, name
            assert report.steps == report.replayed == steps, name
            assert Recording(folder).taken[-1] == steps
            model = folder.parent / "model"
            assert json.loads((model / "privacy.json").read_text())["facts"]["steps"] == steps
            forged(model, to_rows)
            assert pv.verify(model).ok
            assert not replayed(folder, train=publisher, steps=0).ok, name


@check
def check_an_early_end_that_the_auditors_training_does_not_take_is_compared_too() -> None:
    """A run that was left by the clock is taken again by a training that would go on."""
    for steps in EARLY:
        with recorded_with(stopped(steps)) as folder:
            report = replayed(folder, train=train)
            assert report.ok, (steps, report.problems)
            assert report.steps == report.replayed == steps


@check
def check_a_run_that_was_left_can_go_on() -> None:
    """From the state that was kept at its end, also at the end of an epoch; all of it is
    replayed.
    """
    for steps in EARLY:
        with TemporaryDirectory() as place:
            folder, clock = Path(place) / "transcript", Path(place) / "time is up"

            def interrupted(checkpoint: Any, steps: int = steps, clock: Path = clock) -> Result:
                return broken_off(steps if clock.exists() else 10**6)(checkpoint)

            commit(rows(), folder, interrupted)
            clock.touch()
            interrupted(Transcript(folder, steps=BETWEEN))
            clock.unlink()
            pv.publish(
                interrupted(Transcript(folder, steps=BETWEEN)), Path(place) / "model", delta=1e-5
            )
            report = replayed(folder, train=interrupted)
            assert report.ok, (steps, report.problems)
            assert report.steps == report.replayed == STEPS


@check
def check_a_report_without_weights_is_not_ok() -> None:
    """Nothing published was compared, and the report says so; so it does of whatever else it leaves
    out.
    """
    with recorded() as folder:
        report = replay(folder, train, rows(), steps=STEPS)
        assert report.agrees
        assert not report.ok
        assert not report.weights
        assert not report.to_json()["ok"]
        assert any("published" in text for text in report.not_compared), report.not_compared
        assert "not compared" in report.verdict
        whole = replayed(folder)
        assert whole.ok
        assert any("weights" in text for text in whole.compared)
        without_rows = replay(folder, train, steps=0, published=folder.parent / "model")
        assert any("rows" in text for text in without_rows.not_compared)
        assert not any("parts" in text for text in without_rows.compared)


@check
def check_no_tolerance_lets_pass_what_is_not_finite() -> None:
    """Nor does one large number make room for others."""

    def one_is(value: float) -> Callable[[dict[str, Tensor]], None]:
        def change(weights: dict[str, Tensor]) -> None:
            to_rows(weights)
            for own in weights.values():
                own.view(-1)[0] = value

        return change

    for value in (float("inf"), float("nan"), 3e38):
        with recorded() as folder:
            forged(folder.parent / "model", one_is(value))
            for tolerance in (0.0, 1e-4, 1.0):
                report: Replay = replayed(folder, steps=0, tolerance=tolerance)
                assert not report.ok, (value, tolerance)
    own = torch.ones(3)
    assert _close(own, own + 1e-5, 1e-4)
    assert not _close(own, torch.full((3,), np.inf), 1.0)
    assert not _close(torch.tensor([np.inf, 1.0]), torch.tensor([1.0, 5.0]), 1e-4)


@check
def check_facts_and_configuration_are_those_of_the_training() -> None:
    """A value that verifies, and is not what the training says; another number of steps than the
    transcript's.
    """
    nothing: Callable[[dict[str, Tensor]], None] = lambda _: None  # noqa: E731
    for facts in ({"precision": "bf16"}, {"label_smoothing": 0.25}, {"noise": "on a grid"}):
        with recorded() as folder:
            model = folder.parent / "model"
            forged(model, nothing, **facts)
            assert pv.verify(model).ok, facts
            report = replayed(folder, steps=0)
            assert any(next(iter(facts)) in problem for problem in report.problems), report.problems
    with recorded_with(stopped(10)) as folder:
        forged(folder.parent / "model", nothing, steps=11)
        report = replayed(folder, train=stopped(10), steps=0)
        assert any("11 steps" in problem for problem in report.problems), report.problems
    with recorded() as folder:
        model = folder.parent / "model"
        config = json.loads((model / "config.json").read_text()) | {"input_shape": [3, 1]}
        (model / "config.json").write_text(json.dumps(config))
        body = json.loads((model / "privacy.json").read_text())
        body["files"]["config.json"] = hashlib.sha256(
            (model / "config.json").read_bytes()
        ).hexdigest()
        body["digests"]["files"] = digest(body["files"])
        (model / "privacy.json").write_text(json.dumps(body))
        assert pv.verify(model).ok
        report = replayed(folder, steps=0)
        assert any("input_shape" in problem for problem in report.problems), report.problems
