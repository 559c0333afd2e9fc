"""`PrivacyConfig`: each field is declared once. It reaches the command line, and every entry point
takes it or refuses it by its name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.cli.options import options_of
from privlearn.errors import BadInput
from privlearn.loop import LoopSettings
from privlearn.training.privacy_config import ALIASES, NAMES, PrivacyArguments, PrivacyConfig
from privlearn.training.train import settle_for

FIELDS = {field.name: field for field in dataclasses.fields(PrivacyConfig)}
EXAMPLES = 240
#: Of each field another value than the usual one, with what it needs beside it.
OTHERS: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 3.0},
    "rho": {"rho": 0.5, "epsilon": None, "sampling": "shuffle"},
    "delta": {"delta": 1e-4},
    "adjacency": {"adjacency": "zero_out", "examples": 250},
    "examples": {"examples": 250},
    "group_size": {"group_size": 2},
    "rows_per_person": {"rows_per_person": 3},
    "noise_multiplier": {"noise_multiplier": 4.0, "epsilon": None},
    "solve": {"solve": "rate", "noise_multiplier": 9.0, "schedule": "exp", "epochs": 20},
    "sampling": {"sampling": "partition"},
    "mechanism": {"mechanism": "banded:bands=2", "sampling": "fixed"},
    "batch_size": {"batch_size": 16},
    "epochs": {"epochs": 3},
    "schedule": {"schedule": "exp:k=0.1"},
    "clip": {"clip": "layer"},
    "clip_norm": {"clip_norm": 0.7},
}
USUAL: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3, "epochs": 2, "clip_norm": 1.0}


def chosen(name: str, **changes: Any) -> dict[str, Any]:
    """Arguments with another value of one field."""
    return {**USUAL, **OTHERS[name], **changes}


def loader(batch_size: int = 24) -> DataLoader[Any]:
    x = torch.linspace(0, 1, 4 * EXAMPLES).reshape(EXAMPLES, 4)
    return DataLoader(TensorDataset(x, torch.arange(EXAMPLES) % 3), batch_size=batch_size)


def persons(arguments: dict[str, Any]) -> Any:
    """A person's id for each row, where the arguments say how many rows of each are used."""
    privacy = arguments.get("privacy")
    rows = arguments.get("rows_per_person") or (privacy and privacy.rows_per_person)
    return np.arange(EXAMPLES) // 3 if rows else None


def loop(**arguments: Any) -> pv.Plan:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = {name: value for name, value in arguments.items() if value is not None}
    groups = persons(named)
    return pv.make_private(model, optimizer, loader(), groups=groups, **named).plan


def train(**arguments: Any) -> pv.Plan:
    x, y = loader().dataset.tensors  # type: ignore[attr-defined]
    groups = persons(arguments)
    data = pv.Dataset(x.numpy(), y.numpy(), classes=3, low=0, high=1, groups=groups)
    return settle_for(data, features="raw", temperature=0.0, **arguments)[0].plan


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"input_ids": [1, number % 7, 2], "labels": number % 2}


def trainer(folder: Path, **arguments: Any) -> pv.Plan:
    """The plan of a trainer: `TrainingArguments` says the epochs and the batch size."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
    )
    named = {name: value for name, value in arguments.items() if value is not None}
    settings = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=named.pop("epochs"),
        per_device_train_batch_size=24,
        report_to=[],
        use_cpu=True,
    )
    return pv.huggingface.PrivateTrainer(  # type: ignore[no-any-return]
        transformers.BertForSequenceClassification(config),
        settings,
        train_dataset=Texts(),
        groups=persons(named),
        **named,
    ).plan


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"batch_size", "epochs"}))
def test_a_trainer_takes_every_field(name: str, tmp_path: Path) -> None:
    """It makes the plan that a loop makes."""
    arguments = chosen(name)
    assert trainer(tmp_path, **arguments) == loop(**arguments)


def test_a_trainer_has_a_config_and_refuses_what_its_settings_say(tmp_path: Path) -> None:
    privacy = {name: value for name, value in USUAL.items() if name != "epochs"}
    plan = trainer(tmp_path, epochs=2, privacy=PrivacyConfig(**privacy))
    assert plan == trainer(tmp_path, **USUAL)
    for more, message in (
        ({"batch_size": 3}, "^batch_size is what TrainingArguments"),
        ({"privacy": PrivacyConfig(**USUAL)}, "^epochs is what TrainingArguments"),
        ({**privacy, "plan": plan}, "^plan= and clip_norm= are both given"),
        ({**privacy, "noise_multiplier": 2.0}, "^epsilon and noise_multiplier are both given"),
        ({"epsilon": 2.0}, "needs its delta"),
        ({}, "^nothing says how much privacy may be spent"),
    ):
        usual = privacy if "batch_size" in more else {}
        with pytest.raises(BadInput, match=message):
            trainer(tmp_path, epochs=2, **usual, **more)


def test_every_field_has_another_value_here() -> None:
    assert set(OTHERS) == set(FIELDS)
    for name, values in OTHERS.items():
        assert values[name] != FIELDS[name].default


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_an_option_of_the_command_line(name: str) -> None:
    (flag,) = FIELDS[name].metadata["flags"]
    for command in ("train", "budget"):
        option = options_of(command)[flag.name.replace("-", "_")]
        assert (option.help, option.metavar, option.default, option.group) == (
            flag.help,
            flag.metavar,
            FIELDS[name].default,
            FIELDS[name].metadata["group"],
        )
        assert option.key == name


def test_type_checkers_know_the_same_fields() -> None:
    """Those that `make_private` writes out itself are not among what it takes by name."""
    written_out = {"epsilon", "delta", "epochs"}
    assert set(PrivacyArguments.__annotations__) == {"privacy", *NAMES} - written_out
    assert set(PrivacyArguments.__annotations__) <= set(LoopSettings.__annotations__)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("entry", [loop, train])
def test_a_field_by_its_name_and_in_a_config_makes_the_same_plan(
    entry: Callable[..., pv.Plan], name: str
) -> None:
    arguments = chosen(name)
    if entry is loop and name == "batch_size":
        with pytest.raises(BadInput, match=r"^batch_size is 16, and the loader says"):
            loop(**arguments)
        return
    if entry is train:
        arguments.setdefault("batch_size", 24)
    plan = entry(**arguments)
    assert entry(privacy=PrivacyConfig(**arguments)) == plan
    usual = {**USUAL, "batch_size": 24} if entry is train else USUAL
    # delta belongs to epsilon: it moves the noise
    assert plan != entry(**usual)


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"batch_size"}))
def test_entry_points_make_the_same_plan(name: str) -> None:
    """A loop's batches have the size that the loader says."""
    arguments = chosen(name)
    assert loop(**arguments) == train(**arguments, batch_size=24)
    if name != "rows_per_person":
        planned = PrivacyConfig(**arguments, batch_size=24).plan(EXAMPLES)
        assert loop(**arguments) == planned


@pytest.mark.parametrize("entry", [loop, train])
def test_objects_are_taken_in_place_of_texts(entry: Callable[..., pv.Plan]) -> None:
    texts: dict[str, Any] = {
        **USUAL,
        "sampling": "fixed",
        "mechanism": "banded:bands=2",
        "schedule": "constant",
        "clip": "layer",
    }
    plan = entry(**texts, **({"batch_size": 24} if entry is train else {}))
    objects = texts | {
        "sampling": plan.sampling,
        "mechanism": pv.mechanisms.Banded(2),
        "schedule": pv.schedules.Constant(),
        "clip": pv.clipping.PerLayer(1.0),
        "clip_norm": None,
    }
    assert entry(**objects) == plan


@pytest.mark.parametrize("entry", [loop, train])
def test_the_clipping_norm_has_two_names(entry: Callable[..., pv.Plan]) -> None:
    assert ALIASES == {"max_grad_norm": "clip_norm"}
    arguments = {**USUAL, "clip_norm": None}
    assert entry(**arguments, max_grad_norm=1.0) == entry(**USUAL)
    with pytest.raises(BadInput, match="max_grad_norm and clip_norm are the same"):
        entry(**USUAL, max_grad_norm=1.0)


@pytest.mark.parametrize("entry", [loop, train])
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_beside_a_config_is_refused_by_its_name(
    entry: Callable[..., pv.Plan], name: str
) -> None:
    value = OTHERS[name][name]
    with pytest.raises(BadInput, match=f"^{name} is given beside privacy="):
        entry(privacy=PrivacyConfig(**USUAL), **{name: value})


def test_another_method_refuses_what_it_does_not_take() -> None:
    x, y = loader().dataset.tensors  # type: ignore[attr-defined]
    data = pv.Dataset(x.numpy(), y.numpy(), classes=3, low=0, high=1)
    privacy = PrivacyConfig(epsilon=2.0, delta=1e-3, sampling="partition")
    with pytest.raises(BadInput, match=r"^sampling does not go with method='features'"):
        pv.train(data, method="features", privacy=privacy)
    result = pv.train(data, method="features", privacy=PrivacyConfig(epsilon=2.0, delta=1e-3))
    assert result.plan.budget == pv.Budget(epsilon=2.0, delta=1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epsilon": 1.0, "clip": "soft"}, "^clip is 'soft': expected one of"),
        ({"epsilon": 1.0, "clip": pv.Flat(1.0), "clip_norm": 1.0}, "both say the clipping norm"),
        ({}, "^nothing says how much privacy may be spent"),
        (
            {"noise_multiplier": 2.0, "schedule": pv.schedules.Constant(3.0)},
            "both say what the noise is",
        ),
        ({"epsilon": 1.0, "solve": "magic"}, "^solve is 'magic': expected"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        PrivacyConfig(**values).plan(EXAMPLES)
