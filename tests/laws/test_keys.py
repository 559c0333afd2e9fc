"""Laws of keys that outlive a call: two calls that differ in anything draw their noise by different
keys.

What a call is made of is enumerated: the fields of everything that is registered for plans, the
arguments and options of the functions that bind such keys, and every public function that takes
random streams.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn._public import enter_expected, kinds
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.methods.dpmac.dpmac import MacOptions
from privlearn.methods.dpmac.network import TANH
from privlearn.runs import compute
from privlearn.runs.checkpoint import whole_text
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import RunArguments
from privlearn.runs.transcript import Determined, RunToCommit
from tests.laws.hostile_names import calls

SECRET = bytes(range(64))
#: Arguments that no sum follows from, with the reason.
NO_MATTER = {
    "ledger": "what is charged",
    "checkpoint": "where the run is kept: its draft",
    "streams": "what is bound",
    "callbacks": "they see released numbers alone",
    "world": "the processes: sums are the same, but for rounding",
    "device": "a fact of the network, of which there is one here",
    "progress": "it is called with public numbers",
    "keep": "where answers are kept",
    "private": "a run without noise has no checkpoint",
    "group_size": "a part of the plan",
}


def secret_streams() -> Streams:
    return Streams.of_secret(SECRET, SECRET)


def key_of(determined: dict[str, str]) -> bytes:
    """The key of the noise of a run that all this determines."""
    streams = secret_streams()
    streams.bind(determined)
    return streams.noise.key


# Plans

enter_expected()  # so that all kinds are there


@pytest.mark.parametrize("kind", [*kinds(object)])
def test_every_field_of_what_plans_are_made_of_is_in_their_text(kind: str) -> None:
    """Of each registered class: whatever a field holds, another value of it makes another text, and
    another key.
    """
    cls = kinds(object)[kind]

    def holding(**changed: Any) -> Any:
        value = object.__new__(cls)
        for field in fields(cls):
            object.__setattr__(value, field.name, changed.get(field.name, 1.0))
        return value

    nested = pv.Plan(pv.Poisson(0.2), examples=10)
    texts = [whole_text(holding())]
    for field in fields(cls):
        texts += [
            whole_text(holding(**{field.name: other})) for other in (1.0 + 1e-15, None, nested)
        ]
        texts.append(whole_text(holding(**{field.name: (replace(nested, clip=pv.Flat(0.2)),)})))
        texts.append(whole_text(holding(**{field.name: np.arange(5000)})))
        texts.append(
            whole_text(holding(**{field.name: np.arange(5000) + (np.arange(5000) == 2500)}))
        )
    assert len(set(texts)) == len(texts)
    assert len({key_of({"plan": text}) for text in texts}) == len(texts)


def test_plans_of_two_kinds_have_two_texts() -> None:
    texts = []
    for cls in kinds(object).values():
        value = object.__new__(cls)
        for field in fields(cls):
            object.__setattr__(value, field.name, 1.0)
        texts.append(whole_text(value))
    assert len(set(texts)) == len(texts)


# Runs in steps


def rows(last: float = 0.3, *, groups: bool = False) -> pv.Dataset:
    rng = np.random.default_rng(0)
    x = rng.random((24, 4), np.float32)
    x[-1] = last
    return pv.Dataset(
        x,
        np.arange(24) % 3,
        classes=3,
        groups=np.arange(24) // 2 if groups else None,
        low=0,
        high=1,
    )


def plan(**changed: Any) -> pv.Plan:
    return pv.Plan(
        pv.Poisson(0.4),
        **{"epochs": 1, "examples": 24, "schedule": pv.schedules.Constant(3.0)} | changed,
    )


def net(seed: int = 0, *layers: nn.Module) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), *(layers or (nn.Tanh(),)), nn.Linear(5, 3))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def times(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: factor * loss(outputs, targets)


def shifted(inputs: Tensor, generator: torch.Generator) -> Tensor:
    return inputs + torch.rand(inputs.shape, generator=generator)


def determined_by(train: Callable[..., Any], **given: Any) -> dict[str, str]:
    """All that the sums of a run follow from, as it is bound to its streams."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Determined) as told:
            train(checkpoint=RunToCommit(Path("draft"), SECRET), **given)
    return dict(told.value.run)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


VALIDATED = {
    "plan": plan(
        schedule=pv.schedules.Validation(start=3.0, k=0.5, noise=None), epochs=2
    ).calibrate(epsilon=3.0, delta=1e-3)
}
#: For each argument of `pv.dpsgd` other arguments than the usual ones, or two pairs of them.
DPSGD: dict[str, list[dict[str, Any]]] = {
    "plan": [
        {"plan": plan(clip=pv.Flat(0.2))},
        {"plan": plan(schedule=pv.schedules.Constant(3.1))},
    ],
    "model": [{"model": net(1)}, {"model": net(0, nn.ReLU())}],
    "loss": [
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        {"loss": times(1.0)},
        {"loss": times(1 + 1e-9)},
        {"loss": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)},
    ],
    "dataset": [
        {"dataset": rows(0.31)},
        {"dataset": replace(rows(), y=np.roll(rows().y, 1))},
        {"dataset": replace(rows(), high=2)},
        *(
            {"plan": plan(rows_per_person=1), "dataset": replace(rows(), groups=own)}
            for own in (np.arange(24), (np.arange(24) + 1) % 24)
        ),
    ],
    "optimizer": [
        {"optimizer": lambda own: torch.optim.SGD(own, lr=0.2)},
        {"optimizer": torch.optim.Adam},
    ],
    "learning_rate_schedule": [{"learning_rate_schedule": pv.schedules.Exponential(1.0, 0.1)}],
    "validation": [
        VALIDATED | {"validation": replace(rows(), x=rows().x * own, public=True)}
        for own in (0.9, 0.8)
    ],
    "augmentation": [
        {"augmentation": Augmentation(2, shifted)},
        {"augmentation": Augmentation(3, shifted)},
    ],
    "microbatch": [{"microbatch": 3}],
    "precision": [{"precision": "bf16"}],
    "average": [{"average": 0.5}],
    "config": [
        {"config": ComputeConfig(microbatch=5)},
        {"config": ComputeConfig(microbatch=5, precision="bf16")},
    ],
}
#: The same of `pv.dpmac`.
DPMAC: dict[str, list[dict[str, Any]]] = {
    "plan": [{"plan": plan(clip=pv.mac.Derivatives(0.4))}],
    "model": [{"model": net(1)}],
    "loss": [{"loss": "binary_cross_entropy"}],
    "dataset": [{"dataset": rows(0.31)}],
    "optimizer": DPSGD["optimizer"],
    "learning_rate_schedule": DPSGD["learning_rate_schedule"],
    "coordinates": [{"coordinates": pv.mac.Coordinates(3, 0.1, "adam")}],
    "mu": [{"mu": 90.0}, {"mu": pv.schedules.Constant(90.0)}],
    "weight_steps": [{"weight_steps": 2}],
    "newton": [
        {
            "plan": plan(clip=pv.mac.Derivatives(0.3, second=0.2)),
            "loss": "binary_cross_entropy",
            "newton": own,
        }
        for own in (None, 0.1, 0.2)
    ],
    "activations": [
        {"activations": {nn.Tanh: replace(TANH, **changed)}}
        for changed in ({"value": torch.sin}, {"slope": torch.cos})
    ],
    "microbatch": [{"microbatch": 3}],
    "config": [{"config": ComputeConfig(microbatch=5)}],
}


def usual(train: Callable[..., Any]) -> dict[str, Any]:
    own: dict[str, Any] = {
        "plan": plan(),
        "model": net(),
        "loss": loss,
        "dataset": rows(),
        "optimizer": sgd,
    }
    if train is pv.dpmac:
        own |= {"plan": plan(clip=pv.mac.Derivatives(0.3)), "loss": "cross_entropy", "mu": 100.0}
    return own


def arguments(function: Callable[..., Any], options: type | None = None) -> set[str]:
    """The arguments of a function that sums may follow from, with its options by name."""
    stated = inspect.signature(function).parameters.values()
    named = {each.name for each in stated if each.kind is not each.VAR_KEYWORD}
    return (named | set(get_type_hints(options) if options else ())) - set(NO_MATTER)


@pytest.mark.parametrize(
    ("train", "options", "others"),
    [(pv.dpsgd, RunArguments, DPSGD), (pv.dpmac, MacOptions, DPMAC)],
    ids=["dpsgd", "dpmac"],
)
def test_runs_that_differ_in_anything_have_different_keys(
    train: Callable[..., Any], options: type, others: dict[str, list[dict[str, Any]]]
) -> None:
    """In each argument and option that there is; and the same run has the same key again."""
    assert arguments(train, options) == set(others), "an argument that the law does not change"
    keys = {"as usual": key_of(determined_by(train, **usual(train)))}
    assert keys["as usual"] == key_of(determined_by(train, **usual(train)))
    for name, changes in others.items():
        for number, changed in enumerate(changes):
            keys[f"{name} {number}"] = key_of(determined_by(train, **(usual(train) | changed)))
    same = [name for name, key in keys.items() if list(keys.values()).count(key) > 1]
    assert not same, f"these have one key: {same}"


@pytest.mark.parametrize("name", [name for name in DPSGD if name in compute.names()])
def test_a_field_binds_alike_by_its_name_and_in_a_config(name: str) -> None:
    """The run is the same, and so is its key."""
    (changed,) = DPSGD[name][:1]
    named = determined_by(pv.dpsgd, **(usual(pv.dpsgd) | changed))
    config = ComputeConfig.of(changed)
    assert key_of(determined_by(pv.dpsgd, **(usual(pv.dpsgd) | {"config": config}))) == key_of(
        named
    )


def test_each_part_of_what_determines_a_run_is_in_its_key() -> None:
    determined = determined_by(pv.dpsgd, **usual(pv.dpsgd))
    keys = {key_of(determined)} | {
        key_of(determined | {name: text + "."}) for name, text in determined.items()
    }
    keys |= {
        key_of({name: text for name, text in determined.items() if name != left})
        for left in determined
    }
    assert len(keys) == 1 + 2 * len(determined)


# PATE


POOL = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
HALVES = pv.teachers.PublicPCA.fit(pv.Dataset(rows().x, rows().x, public=True), 2)
OTHER = pv.teachers.PublicPCA.fit(pv.Dataset(rows().x[:20], rows().x[:20], public=True), 2)


def votes(**changed: Any) -> pv.teachers.PatePlan:
    return replace(
        pv.teachers.PatePlan(8, 4, pv.teachers.Votes(3), noise_multiplier=3.0), **changed
    )


def said(folder: Path, seed: int = 0) -> pv.teachers.Given:
    """Predictions of four teachers, of whom the last one's follow from the seed."""
    folder.mkdir(exist_ok=True)
    for number in range(4):
        answers = np.random.default_rng(number if number < 3 else [3, seed]).integers(0, 3, 8)
        np.savez(folder / f"{number}.npz", predictions=answers)
    return pv.teachers.Given(folder)


def first(x: Tensor, y: Tensor) -> Any:
    return lambda inputs: (inputs[:, 0] * 3).long().clamp(0, 2)


def second(x: Tensor, y: Tensor) -> Any:
    return lambda inputs: (inputs[:, 1] * 3).long().clamp(0, 2)


def asked(folder: Path, **changed: Any) -> bytes:
    """The key of the noise that answers get from a folder that is kept."""
    usual: dict[str, Any] = {
        "plan": votes(),
        "teachers": said(folder / "t"),
        "reducer": None,
        "public_inputs": POOL,
    }
    streams = secret_streams()
    pv.teachers.ask_teachers(**(usual | changed), streams=streams)
    assert streams.noise.secret is None
    return streams.noise.key


def test_questions_that_differ_in_anything_have_different_keys(tmp_path: Path) -> None:
    codes = votes(aggregate=pv.teachers.Ball(1.0))
    maps = pv.teachers.Trained(rows(), lambda x, y: lambda inputs: inputs, 4)
    others: dict[str, list[dict[str, Any]]] = {
        "plan": [
            {"plan": votes(noise_multiplier=6.0)},
            {"plan": votes(adjacency="zero_out")},
            {"plan": votes(group_size=2)},
        ],
        "teachers": [
            {"teachers": said(tmp_path / "other", seed=1)},
            *(
                {"teachers": pv.teachers.Trained(own, recipe, 4)}
                for own in (rows(), rows(0.31), rows(groups=True))
                for recipe in (first, second)
            ),
            {"teachers": pv.teachers.Trained(rows(), first, sites=np.arange(24) % 4)},
            {"teachers": pv.teachers.Trained(rows(), first, sites=np.arange(24) // 6)},
            {
                "teachers": pv.teachers.Trained(
                    rows(), first, shards=list(np.arange(24).reshape(4, 6)[::-1])
                )
            },
        ],
        "reducer": [{"plan": codes, "teachers": maps, "reducer": own} for own in (HALVES, OTHER)],
        "public_inputs": [{"public_inputs": POOL + 1}, {"public_inputs": POOL[:10]}],
    }
    assert arguments(pv.teachers.ask_teachers) == set(others), (
        "an argument that the law does not change"
    )
    keys = {"as usual": asked(tmp_path)}
    assert asked(tmp_path) == keys["as usual"]
    for name, changes in others.items():
        keys |= {
            f"{name} {number}": asked(tmp_path, **changed) for number, changed in enumerate(changes)
        }
    same = [name for name, key in keys.items() if list(keys.values()).count(key) > 1]
    assert not same, f"these have one key: {same}"


# Everything else


def taking_streams() -> list[str]:
    """Every public call that takes random streams."""
    return [
        name
        for name, call in calls(Path("nowhere")).items()
        if {"streams", "stream"} & set(call.arguments)
    ]


@pytest.mark.parametrize("name", taking_streams())
def test_streams_of_a_secret_draw_no_noise_for_what_does_not_bind_them(
    name: str, tmp_path: Path
) -> None:
    """Every public call that takes streams binds those that outlive it, or refuses them; none draws
    by them.
    """
    call, streams = calls(tmp_path)[name], secret_streams()
    given = {"streams": streams} if "streams" in call.arguments else {"stream": streams.noise}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(BadInput):
            call(**given)
    assert streams.noise.secret is None or streams.noise.position == 0
