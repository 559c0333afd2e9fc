"""Calls whose arguments are replaced by hostile values, and what they are given."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from tests.support.nets import cross_entropy, small_net

X = np.random.default_rng(0).random((24, 5)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 24)
TARGET = {"epsilon": 2.0, "delta": 1e-5}
#: What all estimators are given; `...` takes a name out.
USUAL = {
    "X": X,
    "y": Y,
    "epsilon": 5.0,
    "delta": 1e-5,
    "bounds": (0.0, 1.0),
    "ledger": None,
    "random_state": 0,
    "preprocessing": None,
}
CLASSES = [0, 1, 2]
ONE_EPOCH = {"epochs": 1}
BOOST = {"bins": 4, "passes": 1, "trees": 0}


class Made:
    """A value that is made anew for each call."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self.make = partial(make, *given)


class Call:
    """A function and what it is given; what it may be given, too, follows from its signature.

    Args:
        function: what is called; with `on`, a method.
        on: makes the object whose method it is.
        given: the arguments; those that are `Made` are made anew for each call.
        more: names of options that the signature does not state.
    """

    def __init__(
        self, function: Any, on: Made | None = None, more: Sequence[str] = (), **given: Any
    ) -> None:
        self.function, self.on, self.given, self.more = function, on, given, more

    @cached_property
    def arguments(self) -> list[str]:
        """The names that may be given."""
        names = [*self.given, *self.more]
        for name, part in inspect.signature(self.function).parameters.items():
            if part.kind is part.VAR_KEYWORD:
                there = "Unpack" in str(part.annotation)
                where = dict(vars(sys.modules[self.function.__module__]))
                options = get_args(eval(part.annotation, where)) if there else ()
                names += get_type_hints(options[0]) if options else []
            elif part.kind not in (part.VAR_POSITIONAL, part.POSITIONAL_ONLY) and name != "self":
                names.append(name)
        return list(dict.fromkeys(names))

    def __call__(self, **hostile: Any) -> Any:
        """Call it, with some arguments replaced."""
        given = self.given | hostile
        made = {
            name: part.make() if isinstance(part, Made) else part for name, part in given.items()
        }
        return self.function(*([self.on.make()] if self.on else ()), **made)


def positional(function: Callable[..., Any], **given: Any) -> Call:
    """A call of a function that takes its first argument by place alone."""
    first = next(iter(given))
    return Call(lambda **own: function(own.pop(first), **own), **given)


def estimator(kind: str, **more: Any) -> Call:
    """An estimator made and fitted: scikit-learn wants its arguments kept as they are until
    then.
    """

    def fitted(*, X: Any, y: Any, **given: Any) -> Any:
        return getattr(pv.sklearn, kind)(**given).fit(X, y)

    return Call(
        fitted, **{name: value for name, value in (USUAL | more).items() if value is not ...}
    )


def data(**more: Any) -> pv.Dataset:
    return pv.Dataset(X, Y, X[::-1] / 2, Y, **{"classes": 3, "low": 0.0, "high": 1.0, **more})


def doubles() -> tuple[Any, Any]:
    return torch.from_numpy(X).double(), torch.from_numpy(Y)


def plan(**more: Any) -> pv.Plan:
    return pv.Plan(pv.Poisson(0.4), **{"epochs": 1, "examples": 24, **more}).calibrate(**TARGET)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def trained() -> pv.Result:
    return pv.dpsgd(plan(), small_net(), cross_entropy, doubles(), streams=pv.Streams.new(1))


def linear(shape: Sequence[int] = ()) -> nn.Module:
    return nn.Linear(5, 3)


def mac_net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def in_a_loop(names: tuple[str, str] = ("module", "data_loader"), **given: Any) -> dict[str, Any]:
    """A model and an optimizer of its parameters, as they are made together, and a loader."""
    model = nn.Linear(5, 3)
    batches = DataLoader(
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=8, shuffle=True
    )
    return {names[0]: model, "optimizer": sgd(model.parameters()), names[1]: batches, **given}


def opened_batches(**given: Any) -> None:
    """`BatchMemoryManager`, entered, with what `PrivacyEngine` made."""
    engine = in_a_loop(noise_multiplier=1.0, epochs=1, max_grad_norm=1.0)
    _, optimizer, loader = pv.opacus.PrivacyEngine().make_private(**engine)
    with pv.opacus.BatchMemoryManager(
        **{"data_loader": loader, "optimizer": optimizer, "max_physical_batch_size": 4, **given}
    ):
        pass


def scheduler_named(name: str) -> Any:
    """A function that makes a scheduler of an optimizer that `PrivacyEngine` made."""

    def make(**given: Any) -> Any:
        engine = in_a_loop(noise_multiplier=1.0, epochs=1, max_grad_norm=1.0)
        _, optimizer, _ = pv.opacus.PrivacyEngine().make_private(**engine)
        return getattr(pv.opacus, name)(**{"optimizer": optimizer, **given})

    return make


def saved_by_a_script(**given: Any) -> None:
    """A checkpoint of an engine's run, after a step."""
    engine = pv.opacus.PrivacyEngine()
    made = in_a_loop(noise_multiplier=1.0, epochs=1, max_grad_norm=1.0)
    model, optimizer, loader = engine.make_private(**made)
    x, y = next(iter(loader))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    try:
        engine.save_checkpoint(**given)
    finally:
        engine.run.close()


def script_file(path: Any) -> Any:
    """Where a checkpoint of an engine's run is."""
    if not path.exists():
        saved_by_a_script(path=path)
    return path


def loaded_by_a_script(**given: Any) -> None:
    """`load_checkpoint` of an engine that has what the checkpoint's engine had."""
    engine = pv.opacus.PrivacyEngine()
    made = in_a_loop(noise_multiplier=1.0, epochs=1, max_grad_norm=1.0)
    engine.make_private(**made)
    try:
        engine.load_checkpoint(**given)
    finally:
        engine.run.close()


def kept_features(**given: Any) -> None:
    with pv.transforms.feature_cache(**given):
        pass


def columns() -> tuple[Any, ...]:
    return tuple(pv.boosting.Interval(0.0, 1.0, f"c{n}") for n in range(5))


def boosting() -> Any:
    own = {"bins": 4, "passes": 1, "trees": 1, "depth": 2, "noise_multiplier": 5.0}
    return pv.boosting.BoostingPlan(columns(), pv.boosting.Labels(3), **own)


def boosted() -> pv.Result:
    return pv.boosting.boost(boosting(), data())


def candidates() -> tuple[Any, ...]:
    return tuple(
        pv.tuning.Candidate(name, plan(), settings={"rate": 0.1}) for name in ("small", "large")
    )


def stopping() -> Any:
    return pv.tuning.RandomStopping(candidates(), 1.0).calibrate(epsilon=8.0, delta=1e-5)


def train_candidate(candidate: Any, rows: Any, ledger: Any, streams: Any) -> pv.Result:
    return pv.dpsgd(
        candidate.plan, nn.Linear(5, 3), cross_entropy, rows, ledger=ledger, streams=streams
    )


def votes() -> Any:
    return pv.teachers.PatePlan(3, 4, pv.teachers.Votes(3)).calibrate(epsilon=50.0, delta=1e-5)


def fit_nothing(model: nn.Module, x: Any, y: Any) -> nn.Module:
    return model


def recipe() -> Any:
    return pv.teachers.Network(linear, fit_nothing)


def taught() -> Any:
    return pv.teachers.Trained(data(), recipe(), 4)


def public() -> pv.Dataset:
    return pv.Dataset(1 - X[:6], Y[:6], public=True, classes=3, low=0.0, high=1.0)


def pupil() -> Any:
    return pv.teachers.Student(linear, epochs=1, batch_size=4)


def answered() -> Any:
    return pv.teachers.ask_teachers(votes(), taught(), None, public())


def statistics(kind: str) -> Any:
    return getattr(pv.statistics, kind)(classes=3, features=5, keep=2, row_norm=1.0).calibrate(
        **TARGET
    )


def file_of(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "arrays.npz", **arrays)
    return folder / "arrays.npz"


def volumes() -> tuple[Any, Any]:
    return torch.rand(2, 3, 4, 4, 4), torch.randint(0, 3, (2, 4, 4, 4))


def released(folder: Path) -> Path:
    return pv.publish(trained(), folder / "model", delta=1e-5)


def table(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_text("age,kind\n" + "".join(f"{age},{'ab'[age % 2]}\n" for age in range(20, 40)))
    return path
