"""`ComputeConfig`: each field is declared once; it reaches the command line, and every door takes
it or refuses it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.cli.options import options_of
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.processes import World
from privlearn.errors import BadInput
from privlearn.methods import BUILT_IN, METHODS
from privlearn.runs import compute
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import ComputeArguments
from privlearn.training.choices import TrainRequest

FIELDS = {field.name: field for field in dataclasses.fields(ComputeConfig)}


def other_image(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows + torch.rand(rows.shape, generator=generator)


#: Of each argument another value than the usual one.
OTHERS: dict[str, Any] = {
    "microbatch": 3,
    "device": "cpu",
    "precision": "bf16",
    "augmentation": Augmentation(2, other_image),
    "world": World(),
    "average": 0.5,
}


def rows() -> pv.Dataset:
    x = np.random.default_rng(0).random((24, 4), np.float32)
    return pv.Dataset(x, np.arange(24) % 3, classes=3, low=0, high=1)


def plan(**changed: Any) -> pv.Plan:
    return pv.Plan(
        pv.Poisson(0.4),
        **{"epochs": 1, "examples": 24, "schedule": pv.schedules.Constant(3.0)} | changed,
    )


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def _loader() -> DataLoader[Any]:
    x, y = rows().tensors()
    return DataLoader(TensorDataset(x, y), batch_size=8)


def _loop(**named: Any) -> ComputeConfig:
    model = nn.Linear(4, 3)
    private = pv.make_private(
        model,
        sgd(model.parameters()),
        _loader(),
        epochs=1,
        noise_multiplier=3.0,
        max_grad_norm=1.0,
        **named,
    )
    return private.task.compute


def _opacus(**named: Any) -> ComputeConfig:
    model, engine = nn.Linear(4, 3), pv.opacus.PrivacyEngine()
    engine.make_private(
        module=model,
        optimizer=sgd(model.parameters()),
        data_loader=_loader(),
        noise_multiplier=3.0,
        max_grad_norm=1.0,
        epochs=1,
        **named,
    )
    return engine.run.task.compute


def _strategy(**named: Any) -> ComputeConfig:
    strategy = pv.lightning.PrivateStrategy(epsilon=3.0, delta=1e-3, max_grad_norm=1.0, **named)
    config = _loop(
        **{name: strategy._settings[name] for name in named if name in strategy._settings}
    )
    asked = named.get("device") or named.get("config", ComputeConfig()).device
    return dataclasses.replace(config, device=None if asked is None else str(strategy.root_device))


def _trainer(**named: Any) -> ComputeConfig:
    pv.huggingface.PrivateTrainer(
        nn.Linear(4, 3),
        train_dataset=TensorDataset(*rows().tensors()),
        epsilon=3.0,
        delta=1e-3,
        **named,
    )
    return ComputeConfig()


def _seen(target: str, call: Callable[[], Any]) -> ComputeConfig:
    """The config that a function hands on to `target`, which is not called."""

    class SeenError(Exception):
        pass

    with mock.patch(target, side_effect=SeenError) as inner, pytest.raises(SeenError):
        call()
    config: ComputeConfig = inner.call_args.kwargs["config"]
    return config


def _train(**named: Any) -> ComputeConfig:
    return _seen(
        "privlearn.training.train.dpsgd",
        lambda: pv.train(
            rows(), noise_multiplier=3.0, epochs=1, batch_size=8, features="raw", **named
        ),
    )


def _estimator(**named: Any) -> ComputeConfig:
    data = rows()
    estimator = pv.sklearn.DPClassifier(
        epsilon=3.0,
        delta=1e-3,
        bounds=(0, 1),
        classes=[0, 1, 2],
        options={"epochs": 1, "batch_size": 8, **named},
    )
    return _seen("privlearn.training.train.dpsgd", lambda: estimator.fit(data.x, data.y))


def _dpmac(**named: Any) -> ComputeConfig:
    settings = []

    class SeenError(Exception):
        pass

    def see(self: Any, session: Any, *arguments: Any) -> None:
        settings.append(arguments[-1])
        raise SeenError

    with (
        mock.patch("privlearn.methods.dpmac.dpmac.MacTask.__init__", see),
        pytest.raises(SeenError),
    ):
        pv.dpmac(
            plan(clip=pv.mac.Derivatives(0.3)),
            nn.Sequential(nn.Linear(4, 3)),
            "cross_entropy",
            rows(),
            **named,
        )
    config: ComputeConfig = settings[0].config
    return config


#: Every door, by name: it returns the config that the run computes by.
DOORS: dict[str, Callable[..., ComputeConfig]] = {
    "Run": lambda **named: (
        pv.Run(plan(), nn.Linear(4, 3), loss, rows(), optimizer=sgd, **named).task.compute
    ),
    "make_private": _loop,
    "train": _train,
    "dpmac": _dpmac,
    "opacus": _opacus,
    "lightning": _strategy,
    "huggingface": _trainer,
    "sklearn": _estimator,
}


def _answer(door: str, **named: Any) -> ComputeConfig | str:
    """The config that a run computes by, or what is refused."""
    try:
        return DOORS[door](**named)
    except BadInput as error:
        return str(error)


def test_every_field_has_another_value_here() -> None:
    assert set(OTHERS) == set(compute.names())


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_reaches_the_command_line_or_says_why_not(name: str) -> None:
    """By its flags, with its default and its help; and by the methods that it names, no others."""
    metadata, options = FIELDS[name].metadata, options_of("train")
    assert bool(metadata["flags"]) != bool(metadata["why"])
    for flag in metadata["flags"]:
        option = options[flag.name.replace("-", "_")]
        assert (option.help, option.metavar, option.default) == (
            flag.help,
            flag.metavar,
            FIELDS[name].default,
        )
        assert option.in_python == name
        assert option.group == metadata["group"]
        assert set(option.methods) == set(metadata["methods"]) <= set(METHODS)


def test_the_command_line_has_no_option_of_it_twice() -> None:
    """`pv.train` has each as a field of its config, and no other."""
    fields = {field.name for field in dataclasses.fields(TrainRequest)}
    assert not fields & set(compute.names())


def test_type_checkers_know_the_same_fields() -> None:
    """What functions take by name has the names of the fields, and what type checkers see of them
    is the same.
    """
    assert set(ComputeArguments.__annotations__) == {"config", *compute.names()}
    for name in set(FIELDS) - {"post_processing"}:
        stated = ComputeArguments.__annotations__[name]
        assert getattr(stated, "__forward_arg__", stated) == FIELDS[name].type, name


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", OTHERS)
def test_every_door_takes_a_field_or_refuses_it_by_its_name(door: str, name: str) -> None:
    """By its own name and in a config alike."""
    config = ComputeConfig.of({name: OTHERS[name]})
    taken, in_a_config = _answer(door, **{name: OTHERS[name]}), _answer(door, config=config)
    if isinstance(taken, str):
        assert taken.startswith((f"{name} is ", "post_processing is "))
        assert isinstance(in_a_config, str)
    else:
        assert taken == in_a_config == config


@pytest.mark.parametrize("door", [door for door in DOORS if door != "huggingface"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_field_beside_a_config_is_refused_by_its_name(door: str, name: str) -> None:
    with pytest.raises(BadInput, match=f"^{name} is given beside config="):
        DOORS[door](config=ComputeConfig(), **{name: OTHERS[name]})


@pytest.mark.parametrize("name", ["microbach", "workers"])
def test_an_unknown_field_is_refused_with_those_there_are(name: str) -> None:
    for make in (ComputeConfig, lambda **named: DOORS["Run"](**named), _loop):
        with pytest.raises(
            TypeError, match=f"there is no argument '{name}'.* microbatch, device, precision"
        ):
            make(**{name: 1})
    with pytest.raises(
        BadInput, match=f"train has no argument '{name}'.* microbatch, device, precision"
    ):
        _train(**{name: 1})


@pytest.mark.parametrize("method", BUILT_IN)
def test_an_argument_that_is_cut_short_leads_to_the_whole_name(method: str) -> None:
    data = pv.Dataset(np.zeros((8, 2), np.float32), np.zeros(8, np.int64), classes=2)
    with pytest.raises(BadInput, match=r"'eps': expected some of .*\. Did you mean epsilon\?$"):
        pv.train(data, method=method, eps=3)
    with pytest.raises(BadInput, match=r"'deltta'.*Did you mean delta"):
        pv.train(data, method=method, deltta=1e-5)
    with pytest.raises(
        BadInput, match=r"'zzzz': expected some of ([a-z_]+(, )?)+( and others)?\.$"
    ):
        pv.train(data, method=method, zzzz=3)


def test_a_list_of_arguments_ends_with_a_whole_name() -> None:
    with pytest.raises(BadInput) as caught:
        pv.train(pv.load("digits"), method="dpmac", zzzz=3)
    listed = str(caught.value).partition("some of ")[2].removesuffix(" and others.").split(", ")
    known = {field.name for field in dataclasses.fields(TrainRequest)} | METHODS["dpmac"].takes
    assert {*listed} <= known


@pytest.mark.parametrize("name", ["microbatch", "device", "precision", "augmentation", "world"])
def test_a_value_of_another_kind_is_refused_by_the_fields_name(name: str) -> None:
    for door in ("Run", "make_private"):
        with pytest.raises(BadInput, match=f"^{name} "):
            DOORS[door](**{name: object()})


def test_a_config_is_a_frozen_value() -> None:
    assert ComputeConfig(microbatch=3) == ComputeConfig(microbatch=3) != ComputeConfig()
    assert dataclasses.replace(ComputeConfig(microbatch=3), precision="bf16").microbatch == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        ComputeConfig().microbatch = 3  # type: ignore[misc]
    assert inspect.getdoc(ComputeConfig)
    assert get_type_hints(compute.Flag)
