"""Named checks of learning rates: what a private number may have set, however it was read, claims
nothing; what counts steps, or was declared public, is published.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler

import privlearn as pv
from privlearn.errors import BadInput
from tests.loop.checks import X, Y, loss, network, private, sgd
from tests.loop.checks_figures import (
    Use,
    in_scheduler,
    patient,
    plateau,
    published,
    published_by_a_script,
)
from tests.support.checks import check, must_raise

#: Reads of losses in C, and by their text: nothing hears of them.
UNSEEN: list[Callable[[list[Any]], Any]] = [
    lambda losses: torch.tensor(losses).mean(),
    lambda losses: torch.tensor(losses).mean().item(),
    math.fsum,
    lambda losses: float(str(losses[-1])),
    lambda losses: json.loads(json.dumps(losses))[-1],
    lambda losses: int(math.fsum(losses) * 3),
]


def is_low(losses: list[Any]) -> bool:
    """A decision on private losses that nothing hears of; on these rows it is true."""
    return bool(torch.tensor(losses).mean() < 100.0)


def claim(
    use: Use, scheduled: Any = None, optimizer: Any = None, **options: Any
) -> tuple[str, dict[str, Any]]:
    """Why nothing is claimed for a loop that does this after each step, empty where something is;
    and its facts.
    """
    model = network()
    optimizer = (optimizer or sgd)(model)
    scheduler = scheduled and scheduled(optimizer)
    loop, losses = private(model, optimizer=optimizer, noise_multiplier=1.0, **options), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in loop.batches():
            losses.append(loop.step(batch, loss)["loss"])
            use(losses, scheduler, optimizer)
        facts = loop.result().facts
    return facts.get("unclaimed", ""), facts


def each_epoch(use: Use) -> Use:
    """After the last step of each epoch alone; epochs have 4."""

    def at_the_end(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        if len(losses) % 4 == 0:
            use(losses, scheduler, optimizer)

    return at_the_end


def steps(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
    scheduler.step()


@check
def check_an_unseen_private_number_in_a_scheduler_claims_nothing() -> None:
    """Also where it changes nothing: on a neighbour's rows it might."""
    for metric in UNSEEN:
        for scheduled in (plateau, patient):
            assert "a scheduler was given a number" in claim(in_scheduler(metric), scheduled)[0]
    for metric in UNSEEN[2:]:
        for name in ("StepLR", "CosineAnnealingWarmRestarts"):
            kind = functools.partial(getattr(lr_scheduler, name), **COUNTING[name])
            assert "a scheduler was given a number" in claim(in_scheduler(metric), kind)[0], name
    refused, warned = published(each_epoch(in_scheduler(UNSEEN[0])), plateau, epochs=3)
    assert "pv.runs.declare_public" in refused
    assert len(warned) == 1
    assert "nothing will be claimed" in warned[0]


@check
def check_rates_that_are_set_by_hand_claim_nothing() -> None:
    """By any write, of any setting."""

    def tensor_rate(model: Any) -> Any:
        return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))

    def reloads(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        state = optimizer.state_dict()
        state["param_groups"][0]["lr"] = math.fsum(losses)
        optimizer.load_state_dict(state)

    def set_item(name: str) -> Use:
        return lambda losses, scheduler, optimizer: optimizer.param_groups[0].__setitem__(
            name, 0.5 / (1 + math.fsum(losses))
        )

    held: list[Any] = []

    def hold(optimizer: Any) -> None:
        held[:] = optimizer.param_groups

    for use in (
        set_item("lr"),
        set_item("momentum"),
        lambda losses, _, optimizer: optimizer.param_groups[0].update(lr=math.fsum(losses)),
        lambda losses, _, optimizer: optimizer.add_param_group({"params": torch.ones(1)}),
        reloads,
    ):
        assert "changed by hand" in claim(use)[0]
    scale: Use = lambda losses, _, optimizer: optimizer.param_groups[0]["lr"].mul_(  # noqa: E731
        1 / math.fsum(losses)
    )
    assert "changed by hand" in claim(scale, optimizer=tensor_rate)[0]
    late: Use = lambda losses, *_: held[0].__setitem__("lr", math.fsum(losses))  # noqa: E731
    assert "changed by hand" in claim(late, hold)[0]
    still: Use = lambda losses, _, optimizer: set_item("lr")([], _, optimizer)  # noqa: E731
    assert claim(still)[0] == ""
    same: Use = lambda losses, _, optimizer: optimizer.load_state_dict(  # noqa: E731
        optimizer.state_dict()
    )
    assert claim(same)[0] == ""


@check
def check_a_private_number_decides_no_turn_of_a_scheduler() -> None:
    """When a scheduler is stepped, how often, and when one is made."""

    def falling(optimizer: Any) -> Any:
        return lr_scheduler.ExponentialLR(optimizer, 0.5)

    def only_if(turns: Callable[[list[Any]], Any]) -> Use:
        return lambda losses, scheduler, _: is_low(losses) and turns(losses) and scheduler.step()

    for turns in (
        lambda losses: len(losses) in (3, 4),
        lambda losses: len(losses) == 6,
        lambda losses: len(losses) not in (3, 5),
        lambda losses: len(losses) < 5,
    ):
        assert "not stepped regularly" in claim(only_if(turns), falling)[0]
    twice: Use = lambda losses, scheduler, _: [  # noqa: E731
        scheduler.step() for _ in range(1 + (len(losses) == 3))
    ]
    assert "not stepped regularly" in claim(twice, falling)[0]

    def anew(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        if len(losses) == 4:
            lr_scheduler.StepLR(optimizer, 1, gamma=1 / (1 + math.fsum(losses))).step()

    assert "made after the first step" in claim(anew)[0]


@check
def check_what_a_scheduler_reads_stays_what_it_was() -> None:
    """What its functions captured, and its own settings."""

    def falling(optimizer: Any) -> Any:
        return lr_scheduler.ExponentialLR(optimizer, 0.5)

    keeps = types.SimpleNamespace(best=9.0, losses=[0.0])

    def reads(rate: Callable[[int], float]) -> Any:
        return lambda optimizer: lr_scheduler.LambdaLR(optimizer, rate)

    def remembers(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        keeps.best = math.fsum(losses)
        keeps.losses.append(keeps.best)
        scheduler.step()

    class Rate:
        def __init__(self) -> None:
            self.keeps = keeps

        def __call__(self, step: int) -> float:
            return 1 / (1 + self.keeps.best)

    for rate in (
        lambda step: 1 / (1 + keeps.best),
        lambda step: 1.0 if keeps.losses[-1] < 1 else 0.5,
        functools.partial(lambda kept, step: 1 / (1 + kept[-1]), keeps.losses),
        Rate(),
        Rate().__call__,
    ):
        assert "function reads has changed" in claim(remembers, reads(rate))[0]

    def in_another(optimizer: Any) -> Any:
        inner = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + keeps.best))
        return lr_scheduler.ChainedScheduler([inner, falling(optimizer)])

    assert "function reads has changed" in claim(remembers, in_another)[0]
    assert claim(remembers, reads(lambda step: 0.9**step))[0] == ""
    for name, value in (("gamma", 0.7), ("step_size", 1), ("base_lrs", [0.1])):

        def turns(
            losses: list[Any], scheduler: Any, _: Any, name: str = name, to: Any = value
        ) -> None:
            if len(losses) == 3:
                setattr(scheduler, name, to)
            scheduler.step()

        assert "a scheduler or its function reads" in claim(turns, counting("StepLR"))[0], name

    class Steered(lr_scheduler.LRScheduler):
        factor = 1.0

        def get_lr(self) -> list[Any]:
            return [base * self.factor for base in self.base_lrs]

    def steered(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        scheduler.factor = 1 / (1 + math.fsum(losses))
        scheduler.step()

    assert "a scheduler or its function reads" in claim(steered, Steered)[0]
    assert claim(steps, Steered)[0] == ""


@check
def check_no_function_that_is_given_a_scheduler_counts_as_one() -> None:
    """Nor does a method that a script puts in the place of the scheduler's own."""

    def sets(scheduler: Any, *_: Any) -> None:
        for group in scheduler.optimizer.param_groups:
            group["lr"] *= 0.9

    def with_metric(scheduler: Any, metric: Any) -> None:
        scheduler.step(float(str(metric)))

    given: Use = lambda losses, scheduler, _: sets(scheduler)  # noqa: E731
    assert "changed by hand" in claim(given, counting("StepLR"))[0]
    public = functools.partial(pv.runs.declare_public, because="a constant")
    declared: Use = lambda losses, scheduler, _: with_metric(scheduler, public(0.5))  # noqa: E731
    assert "given a number" in claim(declared, plateau)[0]

    def replaced(optimizer: Any) -> Any:
        scheduler = counting("StepLR")(optimizer)
        scheduler.step = types.MethodType(sets, scheduler)
        return scheduler

    assert "changed by hand" in claim(steps, replaced)[0]


@check
def check_hooks_of_an_optimizer_set_no_rates() -> None:
    """Within a step only the run and the optimizer itself change settings; in the last one, too."""
    rates = torch.optim.swa_utils.SWALR

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            out = super().step(closure)
            self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
            return out

    def own(model: Any) -> Any:
        return Own(model.parameters(), lr=0.5)

    assert claim(steps, counting("StepLR"), own)[0] == ""
    for hook in ("register_step_pre_hook", "register_step_post_hook"):
        for at in (3, 8):
            calls: list[int] = []

            def sets(optimizer: Any, *_: Any, calls: Any = calls, at: int = at) -> None:
                calls.append(1)
                if len(calls) == at:
                    optimizer.param_groups[0]["lr"] *= 0.5

            def hooked(model: Any, hook: str = hook, sets: Any = sets) -> Any:
                optimizer = sgd(model)
                getattr(optimizer, hook)(sets)
                return optimizer

            assert "changed by hand" in claim(lambda *_: None, None, hooked)[0]

    def in_a_hook(optimizer: Any) -> Any:
        scheduler = rates(optimizer, swa_lr=0.05)
        optimizer.register_step_post_hook(lambda *_: scheduler.step(5))
        return scheduler

    assert "given a number" in claim(lambda *_: None, in_a_hook)[0]


#: Schedulers that count, and what each needs.
COUNTING: dict[str, dict[str, Any]] = {
    "LambdaLR": {"lr_lambda": lambda step: 0.9**step},
    "MultiplicativeLR": {"lr_lambda": lambda step: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2, 5]},
    "ConstantLR": {"total_iters": 3},
    "LinearLR": {"total_iters": 3},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {"total_iters": 5},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 2},
    "OneCycleLR": {"max_lr": 0.5, "total_steps": 20},
    "SequentialLR": {"milestones": [3]},
    "ChainedScheduler": {},
}


def counting(name: str) -> Any:
    """A maker of a scheduler of PyTorch."""
    kind = getattr(lr_scheduler, name)

    def make(optimizer: Any) -> Any:
        inner = [
            lr_scheduler.LinearLR(optimizer, total_iters=2),
            lr_scheduler.StepLR(optimizer, 2),
        ]
        if name == "ChainedScheduler":
            return kind(inner)
        if name == "SequentialLR":
            return kind(optimizer, inner, **COUNTING[name])
        return kind(optimizer, **COUNTING[name])

    return make


@check
def check_schedulers_that_count_are_published() -> None:
    """Every one of PyTorch, step by step or epoch by epoch, with any optimizer."""
    known = {*COUNTING, "ReduceLROnPlateau", "LRScheduler"}
    assert set(lr_scheduler.__all__) <= known

    def adam(model: Any) -> Any:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def tensor_rate(model: Any) -> Any:
        return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))

    def momentum(model: Any) -> Any:
        return sgd(model, momentum=0.9)

    for name in COUNTING:
        assert claim(steps, counting(name), momentum)[0] == "", name
    for name in ("OneCycleLR", "CosineAnnealingWarmRestarts", "SequentialLR"):
        assert claim(steps, counting(name), tensor_rate)[0] == "", name
        assert claim(each_epoch(steps), counting(name), momentum)[0] == "", name
    assert claim(steps, counting("OneCycleLR"), adam)[0] == ""
    twice: Use = lambda losses, scheduler, _: (scheduler.step(), scheduler.step())  # noqa: E731
    assert claim(twice, counting("CosineAnnealingWarmRestarts"))[0] == ""
    end: Use = lambda losses, scheduler, _: len(losses) < 8 and scheduler.step()  # noqa: E731
    assert claim(end, counting("StepLR"))[0] == ""
    swa = functools.partial(torch.optim.swa_utils.SWALR, swa_lr=0.05)
    assert claim(steps, swa)[0] == ""


@check
def check_numbers_that_count_are_published() -> None:
    """Epochs and parts of them, from 0 or 1."""
    restarts = counting("CosineAnnealingWarmRestarts")
    for number in (
        lambda losses: (len(losses) - 1) / 4,
        lambda losses: len(losses) / 4,
        lambda losses: (len(losses) - 1) // 4 + (len(losses) - 1) % 4 / 4,
        len,
        lambda losses: len(losses) - 1,
    ):
        assert claim(in_scheduler(number), restarts)[0] == ""
    for offset in (-1, 0):
        epochs = in_scheduler(lambda losses, offset=offset: len(losses) // 4 + offset)
        for name in ("CosineAnnealingWarmRestarts", "StepLR", "LambdaLR"):
            assert claim(each_epoch(epochs), counting(name))[0] == "", name
    mixed = in_scheduler(lambda losses: len(losses) - len(losses) % 2)
    assert "a scheduler was given a number" in claim(mixed, restarts)[0]


@check
def check_numbers_that_were_declared_public_steer() -> None:
    """The certificate and the card say why they are public. Nothing private can be declared."""

    def metric(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        with torch.no_grad():
            value = torch.nn.functional.cross_entropy(network()(X[:9]), Y[:9])
        scheduler.step(pv.runs.declare_public(value, because="a loss of public rows"))

    def by_hand(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        group = optimizer.param_groups[0]
        group["lr"] = pv.runs.declare_public(
            0.5 * 0.9 ** len(losses), because="follows from the step"
        )

    def after(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        if len(losses) in (2, 5):
            scheduler.step()
        by_hand(losses, scheduler, optimizer)

    def undone(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        by_hand(losses, scheduler, optimizer)
        optimizer.param_groups[0]["lr"] *= 0.5

    def halved(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        scheduler.step(pv.runs.declare_public(1.0, because="a constant") * math.fsum(losses))

    for use, scheduled, said in (
        (metric, plateau, ["a loss of public rows"]),
        (by_hand, None, ["follows from the step"]),
        (after, counting("StepLR"), ["follows from the step"]),
    ):
        unclaimed, facts = claim(use, scheduled)
        assert unclaimed == ""
        assert facts.get("rates_declared_public") == said
    assert "rates_declared_public" not in claim(steps, counting("StepLR"))[1]
    assert "changed by hand" in claim(undone)[0]
    assert "given a number" in claim(halved, plateau)[0]
    with tempfile.TemporaryDirectory() as folder:
        model = network()
        optimizer = sgd(model)
        loop = private(model, optimizer=optimizer)
        for batch in loop.batches():
            figure = loop.step(batch, loss)["loss"]
            by_hand([1.0] * loop.steps_done, None, optimizer)
        assert type(optimizer.param_groups[0]["lr"]) is float
        out = loop.publish(Path(folder) / "model")
        assert pv.verify(out).ok
        assert "declares public | follows from the step |" in (out / "README.md").read_text()
    for value in (figure, 2 * figure, True, "1", None, [1.0], torch.ones(2)):
        must_raise(BadInput, lambda value=value: pv.runs.declare_public(value, because="so"))
    for because in ("", "  ", None, "two\nlines", "x" * 201):
        must_raise(BadInput, lambda because=because: pv.runs.declare_public(1.0, because=because))
    assert pv.runs.declare_public(3, because="so") + 1 == 4
    assert f"{pv.runs.declare_public(torch.tensor(0.5), because='so'):.2f}" == "0.50"


@check
def check_a_restart_forgets_no_declaration() -> None:
    """Nor that settings were changed by hand; and a scheduler that counts goes on counting."""

    def run(place: Path, use: Use, scheduled: Any, at: int) -> dict[str, Any]:
        model = network()
        optimizer = sgd(model)
        scheduler, losses = scheduled(optimizer), []
        loop = private(model, optimizer=optimizer, loss=loss, checkpoint=place)
        if not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):  # it holds an infinity
            loop.keep(scheduler)
        for batch in loop.batches():
            losses.append(loop.step(batch)["loss"])
            if loop.steps_done == at:
                loop._epochs.close()  # as a process that is killed leaves it
                return {}
            use(losses, scheduler, optimizer)
        facts: dict[str, Any] = loop.result().facts
        return facts

    def declares(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        if len(losses) == 2:
            optimizer.param_groups[0]["lr"] = pv.runs.declare_public(0.5, because="so")

    def given(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        scheduler.step(float(len(losses) % 2))

    def nothing(*_: Any) -> None:
        pass

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def resumed(name: str, first: Use, then: Use, scheduled: Any = patient) -> dict[str, Any]:
            run(Path(folder) / name, first, scheduled, 4)
            return run(Path(folder) / name, then, scheduled, 99)

        facts = resumed("declared", declares, nothing)
        assert facts.get("rates_declared_public") == ["so"]
        assert "unclaimed" not in facts
        assert "given a number" in resumed("given", given, nothing)["unclaimed"]
        assert "unclaimed" not in resumed("steps", steps, steps, counting("StepLR"))


@check
def check_a_scripts_rates_follow_no_private_number() -> None:
    """In Opacus's form, whose losses are tensors; schedulers hold the private optimizer."""

    def detached(losses: list[Any]) -> Any:
        return float(str(losses[-1].item()))

    def halves(losses: list[Any], scheduler: Any, optimizer: Any) -> None:
        if float(str(losses[-1].item())) < 100.0:
            optimizer.param_groups[0]["lr"] *= 0.5

    refused, _ = published_by_a_script(in_scheduler(detached), plateau)
    assert "a scheduler was given a number" in refused
    assert "changed by hand" in published_by_a_script(halves)[0]
    for name in ("OneCycleLR", "SequentialLR"):
        assert published_by_a_script(steps, counting(name)) == ("", [])
