"""Refusals in Python and on the command line: what was given, expected and to do; nothing charged,
drawn or written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.cli import main
from privlearn.core import schedules
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping import clips
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.streams import Streams
from privlearn.errors import (
    AdjacencyMismatch,
    BadInput,
    NotPerExample,
    PrivlearnError,
    UnsupportedEvent,
)
from privlearn.publishing import new_folder
from tests.support.nets import cross_entropy, small_data
from tests.support.steps import EachStep

PLAN = pv.Plan(pv.Poisson(0.5), epochs=1, schedule=schedules.Constant(2.0))
X, Y = small_data(12)
X = X.float()


class Flat(schedules.Schedule):
    """A learning rate that starts at nothing."""

    start = 1.0

    def __call__(self, epoch: float) -> float:
        return 0.0


def before(*releases: Any) -> pv.Plan:
    return pv.Plan(pv.Poisson(0.5), 1, schedules.Constant(2.0), front=releases)


def net() -> nn.Module:
    return nn.Linear(5, 3)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


#: What is changed of a run that is fine, and what the message must contain.
TRAINING: dict[str, tuple[Callable[[], dict[str, Any]], tuple[str, ...]]] = {
    "no plan": (lambda: {"plan": None}, ("plan is None", "pv.Plan(")),
    "a plan in words": (lambda: {"plan": "dpsgd"}, ("plan is 'dpsgd'", "a privlearn Plan")),
    "no model": (lambda: {"model": None}, ("model is None", "torch.nn.Module")),
    "a class for a model": (
        lambda: {"model": nn.Linear},
        ("model is <class", "a function from the shape"),
    ),
    "a factory of nothing": (
        lambda: {"model": lambda shape: None},
        ("model made a NoneType", "(5,)", "torch.nn.Module"),
    ),
    "a model for other rows": (
        lambda: {"model": nn.Linear(7, 3)},
        ("cannot run on inputs of shape (5,)",),
    ),
    "a lazy model": (
        lambda: {"model": nn.LazyLinear(3)},
        ("'weight' has no shape yet", "Run the model once"),
    ),
    "a lazy model from a factory": (
        lambda: {"model": lambda shape: nn.LazyLinear(3)},
        ("has no shape yet", "not lazy"),
    ),
    "a model of half precision": (
        lambda: {"model": net().half(), "data": (X.half(), Y)},
        ("float16", "model.float()"),
    ),
    "nothing to train": (
        lambda: {"model": nn.Flatten()},
        ("no trainable parameter", "requires_grad"),
    ),
    "no loss": (lambda: {"loss": None}, ("given no loss", "reduction='none'")),
    "a mean loss": (
        lambda: {"loss": nn.CrossEntropyLoss()},
        ("the loss has shape () for a batch of 4", "shape (4,)", "reduction='none'"),
    ),
    "a loss in numpy": (
        lambda: {"loss": lambda out, y: np.zeros(len(y))},
        ("the loss is a ndarray", "one value for each example"),
    ),
    "a loss without gradients": (
        lambda: {"loss": lambda out, y: cross_entropy(out, y).detach()},
        ("made-up rows", "does not require grad", "through which gradients flow"),
    ),
    "a loss that counts": (
        lambda: {"loss": lambda out, y: out.argmax(1)},
        ("made-up rows", "gradients flow"),
    ),
    "labels beyond the outputs": (
        lambda: {"data": (X, Y + 1)},
        ("Target 3 is out of bounds", "below the number of outputs"),
    ),
    "negative labels": (
        lambda: {"data": (X, Y - 1)},
        ("Target -1 is out of bounds", "labels below"),
    ),
    "labels that are not whole": (
        lambda: {"data": (X, Y.double())},
        ("Double", "give y.long() of a tensor"),
    ),
    "tokens beyond the embedding": (
        lambda: {
            "model": nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 3)),
            "data": (torch.arange(24).view(12, 2), Y),
        },
        ("out of range", "tokens below the size"),
    ),
    "inputs of another precision": (
        lambda: {"data": (X.half(), Y)},
        ("Half", "type of the parameters"),
    ),
    "no rows": (lambda: {"data": (X[:0], Y[:0])}, ("0 rows", "at least one", "Plan(examples=N)")),
    "fewer targets": (
        lambda: {"data": (X, Y[:3])},
        ("12 inputs and 3 targets", "one target for each"),
    ),
    "three parts": (lambda: {"data": (X, Y, Y)}, ("a tuple", "a pair (inputs, targets)")),
    "a dictionary": (lambda: {"data": {"x": X}}, ("a dict", "a pair (inputs, targets)")),
    "single numbers": (lambda: {"data": (1, 2)}, ("shape ()", "one row for each example")),
    "ragged rows": (
        lambda: {"data": ([[1.0, 2.0], [1.0]], [0, 1])},
        ("differ in shape", "rows of one length"),
    ),
    "words": (
        lambda: {"data": (np.array(["a"] * 12), Y)},
        ("hold <U1 values", "expected numbers", "whole numbers"),
    ),
    "objects": (
        lambda: {"data": (np.array([None] * 12), Y)},
        ("hold object values", "expected numbers"),
    ),
    "an optimizer of other parameters": (
        lambda: {"optimizer": sgd([nn.Parameter(X)])},
        ("1 parameters that are not the model's", "Make it from model.parameters()"),
    ),
    "an optimizer by name": (
        lambda: {"optimizer": "SGD"},
        ("optimizer is a str", "torch.optim.SGD(parameters, lr=0.1)"),
    ),
    "an optimizer that needs a closure": (
        lambda: {"optimizer": torch.optim.LBFGS},
        ("made a LBFGS", "dense gradients"),
    ),
    "an optimizer for sparse gradients": (
        lambda: {"optimizer": torch.optim.SparseAdam},
        ("SparseAdam", "dense"),
    ),
    "no optimizer": (
        lambda: {"optimizer": lambda parameters: None},
        ("made a NoneType", "torch.optim"),
    ),
    "a negative rate": (
        lambda: {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=-1.0)},
        ("Invalid learning rate: -1.0", "parameters alone"),
    ),
    "a rate that starts at 0": (
        lambda: {"learning_rate_schedule": Flat()},
        ("schedule is 0 at epoch 0", "above 0"),
    ),
    "a number for a schedule": (
        lambda: {"learning_rate_schedule": 0.1},
        ("schedule is 0.1", "Exponential(k=0.1)"),
    ),
    "a number for a ledger": (lambda: {"ledger": 1.0}, ("ledger is 1.0", "Ledger")),
    "a seed for streams": (lambda: {"streams": 3}, ("streams is 3", "Streams.new()")),
    "a function for a callback": (
        lambda: {"callbacks": abs},
        ("callbacks has <built-in function abs>", "on_step"),
    ),
    "a class for a callback": (
        lambda: {"callbacks": [EachStep]},
        ("callbacks has <class", "an object of it"),
    ),
    "no device": (lambda: {"device": 3.5}, ("device is 3.5", "or None")),
    "true for a device": (lambda: {"device": True}, ("device is True", "or None")),
    "an accelerator that is not there": (
        lambda: {"device": 99},
        ("device 99 can't be used", "Expected cpu"),
    ),
    "a device without numbers": (
        lambda: {"device": "meta"},
        ("device 'meta'", "Expected cpu"),
    ),
    "a type for a precision": (
        lambda: {"precision": torch.float16},
        ("precision is a dtype", "float32, bf16"),
    ),
    "true for a micro-batch": (lambda: {"microbatch": True}, ("microbatch is True", "at least 1")),
    "a plain function for an augmentation": (
        lambda: {"augmentation": abs},
        ("augmentation is", "pv.clipping.Augmentation"),
    ),
    "an augmentation that takes no generator": (
        lambda: {"augmentation": Augmentation(2, lambda x: x)},  # type: ignore[arg-type,misc]
        ("fails on made-up rows", "2 were given"),
    ),
    "an augmentation that drops rows": (
        lambda: {"augmentation": Augmentation(2, lambda x, g: x[:1])},
        ("as many rows",),
    ),
    "an augmentation that drops columns": (
        lambda: {"augmentation": Augmentation(2, lambda x, g: x[:, :3])},
        ("(8, 5)", "(8, 3)", "of the same shape"),
    ),
    "more components than features": (
        lambda: {"plan": before(pv.transforms.PrivatePCA(9, 2.0)), "model": nn.Linear(9, 3)},
        ("9 components of 5 features", "at most 5"),
    ),
    "more components than are left": (
        lambda: {
            "plan": before(pv.transforms.PrivatePCA(3, 2.0), pv.transforms.PrivatePCA(4, 2.0)),
            "model": nn.Linear(4, 3),
        },
        ("4 components of 3 features", "at most 3"),
    ),
}


@pytest.mark.parametrize("case", TRAINING)
def test_training_is_refused_before_anything_is_spent(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, expected = TRAINING[case]

    def spent(*given: Any, **named: Any) -> None:
        raise AssertionError("something was charged")

    monkeypatch.setattr(pv.Ledger, "charge", spent)
    streams = Streams.new(0)
    arguments = {
        "plan": PLAN,
        "model": net(),
        "loss": cross_entropy,
        "data": (X, Y),
        "optimizer": sgd,
        "streams": streams,
    }
    arguments |= changes()
    parts = [arguments.pop(name) for name in ("plan", "model", "loss", "data")]
    drawn = torch.get_rng_state()
    with pytest.raises((BadInput, NotPerExample)) as found:
        pv.dpsgd(*parts, **arguments)
    for part in expected:
        assert part in str(found.value), str(found.value)
    if "model" not in case:  # a factory may draw
        assert torch.equal(torch.get_rng_state(), drawn)
    fresh = Streams.new(0)
    assert streams.sampling.random() == fresh.sampling.random()


VALUES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "a rate of nothing": (lambda: pv.Poisson(0.0), ("sampling_rate is 0.0", "(0, 1]")),
    "a rate above one": (lambda: pv.Poisson(1.5), ("sampling_rate is 1.5", "(0, 1]")),
    "a rate in words": (lambda: pv.Poisson("0.1"), ("'0.1'", "a number")),  # type: ignore[arg-type]
    "a rate that is no number": (lambda: pv.Poisson(math.nan), ("sampling_rate is nan", "(0, 1]")),
    "no batches": (lambda: pv.Partition(0), ("batches is 0", "at least 1")),
    "parts of batches": (lambda: pv.Partition(2.5), ("batches is 2.5", "a whole number")),  # type: ignore[arg-type]
    "a negative batch": (lambda: pv.Shuffle(-1), ("batch_size is -1", "at least 1")),
    "half an epoch": (
        lambda: pv.Plan(pv.Poisson(0.1), epochs=1.5),
        ("epochs is 1.5", "a whole number"),
    ),  # type: ignore[arg-type]
    "a million epochs": (
        lambda: pv.Plan(pv.Poisson(0.1), epochs=10**6),
        ("epochs is above", "100,000"),
    ),
    "a number for a sampler": (lambda: pv.Plan(0.1), ("sampling is 0.1", "pv.Poisson(")),  # type: ignore[arg-type]
    "a number for a clip": (
        lambda: pv.Plan(pv.Poisson(0.1), clip=1.0),
        ("clip is 1.0", "pv.Flat(0.1)"),
    ),  # type: ignore[arg-type]
    "a number for a noise schedule": (
        lambda: pv.Plan(pv.Poisson(0.1), schedule=2.0),  # type: ignore[arg-type]
        ("schedule is 2.0", "Exponential(k=0.01)"),
    ),
    "a release that is not in a tuple": (
        lambda: pv.Plan(pv.Poisson(0.1), front=pv.transforms.PrivatePCA(2, 3.0)),  # type: ignore[arg-type]
        ("front is PrivatePCA", "a tuple"),
    ),
    "a release in words": (
        lambda: pv.Plan(pv.Poisson(0.1), front=("pca",)),
        ("('pca',)", "pv.transforms.PrivatePCA(60, 16.0)"),
    ),  # type: ignore[arg-type]
    "a number for a budget": (
        lambda: pv.Plan(pv.Poisson(0.1), budget=3.0),
        ("budget is 3.0", "calibrate("),
    ),  # type: ignore[arg-type]
    "a number for a ledger's budget": (
        lambda: pv.Ledger(3.0),
        ("budget is 3.0", "expected a pv.Budget"),
    ),  # type: ignore[arg-type]
    "sampling for replace-one": (
        lambda: pv.Plan(pv.Poisson(0.1), adjacency=Adjacency.REPLACE_ONE),
        ("no sound accounting for replace_one", "add_remove, zero_out"),
    ),
    "no target": (lambda: PLAN.calibrate(), ("exactly one",)),
    "no delta": (lambda: PLAN.calibrate(epsilon=1.0), ("needs its delta", "1e-5")),
    "an impossible delta": (lambda: PLAN.guarantee(delta=2.0), ("delta is 2.0", "(0, 1)")),
    "noise that grows": (lambda: schedules.Exponential(k=-1.0), ("k is -1.0", "above 0")),
    "a clip without end": (lambda: pv.Flat(math.inf), ("clip_norm is inf", "1e+12")),
    "a quantile of two": (lambda: clips.Quantile(1.0, quantile=2.0), ("quantile is 2.0", "0 to 1")),
    "a count without a share": (lambda: clips.Quantile(1.0, share=0.0), ("share is 0.0", "0.001")),
    "no components": (lambda: pv.transforms.PrivatePCA(0, 1.0), ("components is 0", "at least 1")),
    "directions without noise": (
        lambda: pv.transforms.PrivatePCA(2, 0.0),
        ("noise_multiplier is 0.0", "above 0"),
    ),
    "no copies": (lambda: Augmentation(0, lambda x, g: x), ("copies is 0", "at least 1")),
    "copies without a change": (
        lambda: Augmentation(2, None),
        ("transform is None", "flip,shift:2", "(rows, generator)"),
    ),  # type: ignore[arg-type]
    "a model for a result": (lambda: pv.publish(net(), "out"), ("result is a Linear", "dpsgd")),  # type: ignore[arg-type]
    "a folder without a name": (
        lambda: new_folder.require_free(""),
        ("names no new folder", "runs/model"),
    ),
    "no classes": (
        lambda: pv.load("rows.npz", classes=0, value_range=(0, 1)),
        ("classes is 0", "at least 2"),
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_are_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, expected = VALUES[case]
    with pytest.raises((BadInput, UnsupportedEvent)) as found:
        make()
    for part in expected:
        assert part in str(found.value), str(found.value)
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_of_another_kind_of_neighbour_stays_as_it_was() -> None:
    ledger = pv.Ledger()
    ledger.charge(Gaussian(1.0), Adjacency.REPLACE_ONE)
    # Poisson batches have no price for replace-one neighbours: that advice would not work
    with pytest.raises(AdjacencyMismatch, match="Give another ledger, or a new one"):
        pv.dpsgd(
            replace(PLAN, adjacency=Adjacency.ADD_REMOVE, examples=len(X)),
            net(),
            cross_entropy,
            (X, Y),
            ledger=ledger,
        )
    assert ledger.event.events == (Gaussian(1.0),)


def test_figures_that_are_no_numbers_are_not_published(tmp_path: Path) -> None:
    result = pv.dpsgd(PLAN, net(), cross_entropy, (X, Y), optimizer=sgd)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"test_metrics": {"accuracy": "good"}}, "'accuracy': 'good'; expected a number"),
        ({"model_spec": "mlp:3"}, "without classes: give both"),
        ({"model_spec": "mlp:3", "classes": 3}, "another network"),
        ({"delta": 0.0}, r"delta is 0.0: expected a number in \(0, 1\)"),
        ({"delta": None}, "for example delta=1e-5"),
    ]
    for options, message in refused:
        with pytest.raises(PrivlearnError, match=message):
            pv.publish(result, tmp_path / "model", **{"delta": 1e-5, **options})
        assert list(tmp_path.iterdir()) == []


TRAIN = ("train", "--data", "digits", "--epochs", "1", "--noise-multiplier", "2")
BUDGET = ("budget", "--examples", "1000", "--epsilon", "1")
NPZ = ("train", "--data", "rows.npz", "--noise-multiplier", "2")

#: (options, what the message must contain)
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a batch size for full batches": (
        (*TRAIN, "--sampling", "full", "--batch-size", "5"),
        ("leave out --batch-size",),
    ),
    "noise for no PCA": ((*TRAIN, "--pca-noise", "4"), ("without --pca", "--pca 60")),
    "PCA without noise": (
        (*TRAIN, "--pca", "4", "--pca-noise", "0"),
        ("noise_multiplier is 0.0", "above 0"),
    ),
    "PCA of nothing": ((*TRAIN, "--pca", "0"), ("components is 0",)),
    "noise given and solved for": (
        (*BUDGET, "--solve", "noise", "--noise-multiplier", "2"),
        ("leave out --noise-multiplier", "--noise-multiplier S"),
    ),
    "epochs of no noise": (
        (*BUDGET, "--solve", "epochs"),
        ("give --noise-multiplier", "--noise-multiplier S"),
    ),
    "the rate of a constant": (
        (*BUDGET, "--solve", "rate", "--noise-multiplier", "2"),
        ("no rate", "another --schedule: time"),
    ),
    "batches that cost nothing": (
        (
            "budget",
            "--examples",
            "1000",
            "--rho",
            "1",
            "--solve",
            "batch-size",
            "--sampling",
            "shuffle",
            "--noise-multiplier",
            "2",
        ),
        ("does not depend on their size", "poisson or partition"),
    ),
    "an unknown unknown": ((*BUDGET, "--solve", "sigma"), ("--solve", "'sigma'", "noise")),
    "classes that are known": (
        (*TRAIN, "--classes", "10"),
        ("digits", "known", "leave out", "--classes"),
    ),
    "a range that is known": (
        (*TRAIN, "--range", "0,1"),
        ("digits", "known", "leave out", "--range"),
    ),
    "half a range": ((*TRAIN, "--range", "3"), ("'3' cannot be read", "LO,HI")),
    "a range upside down": (
        (*NPZ, "--classes", "2", "--range", "1,0"),
        ("1,0", "the smaller first"),
    ),
    "a range without end": ((*NPZ, "--classes", "2", "--range", "0,inf"), ("0,inf", "finite")),
    "one class": ((*NPZ, "--classes", "1", "--range", "0,1"), ("classes is 1", "at least 2")),
    "a configuration of tables": (
        (*TRAIN, "--config", "table.toml"),
        ("[plan] in table.toml", "plain options"),
    ),
    "a configuration with a stranger": (
        (*TRAIN, "--config", "typo.toml"),
        ("'epsilom' in typo.toml",),
    ),
    "a broken configuration": (
        (*TRAIN, "--config", "broken.toml"),
        ("broken.toml cannot be read", "TOML"),
    ),
    "a configuration of nothing": ((*TRAIN, "--config"), ("--config needs a file",)),
    "an optimizer with a closure": ((*TRAIN, "--optimizer", "LBFGS"), ("'LBFGS'", "SGD or Adam")),
    "no learning rate": ((*TRAIN, "--learning-rate", "0"), ("--learning-rate is 0.0", "above 0")),
    "a learning rate that is no number": (
        (*TRAIN, "--learning-rate", "nan"),
        ("--learning-rate is nan",),
    ),
    "negative momentum": ((*TRAIN, "--momentum", "-1"), ("--momentum is -1.0", "from 0 to 1")),
    "an unknown learning rate schedule": (
        (*TRAIN, "--lr-schedule", "cosine"),
        ("'cosine' is unknown", "exp:k=0.01"),
    ),
    "an unknown method": ((*TRAIN, "--method", "magic"), ("'magic'", "dpsgd")),
    "a model of nothing": (
        (*TRAIN, "--model", "refused_nets:nothing"),
        ("a NoneType", "torch.nn.Module"),
    ),
    "a model with few outputs": (
        (*TRAIN, "--model", "refused_nets:few"),
        ("(2, 3)", "expected (2, 10)"),
    ),
    "a model that fails": (
        (*TRAIN, "--model", "refused_nets:fails"),
        ("no such thing", "input_shape=(8, 8)"),
    ),
    "a lazy network": ((*TRAIN, "--model", "refused_nets:lazy"), ("has no shape yet", "not lazy")),
    "a frozen model": (
        (*TRAIN, "--model", "refused_nets:frozen"),
        ("no trainable parameter", "requires_grad"),
    ),
    "nobody": ((*TRAIN, "--examples", "0"), ("examples is 0", "at least 1")),
    "more than were declared": (
        (*TRAIN, "--examples", "100", "--batch-size", "300"),
        ("more than the 100 examples",),
    ),
    "noise that is no number": (
        ("train", "--data", "digits", "--noise-multiplier", "nan"),
        ("--noise-multiplier is nan", "1e-06"),
    ),
    "a clip that is no number": ((*TRAIN, "--clip-norm", "nan"), ("--clip-norm is nan",)),
    "a group of nobody": ((*BUDGET, "--group-size", "0"), ("--group-size is 0",)),
    "an option cut short": ((*TRAIN, "--eps", "1"), ("--eps.", "--epsilon")),
    "nothing to do": (("reproduce", "nothing"), ("'nothing'", "yu-fig1")),
    "steps that are too long": (
        (*TRAIN, "--learning-rate", "1e38", "--clip-norm", "100"),
        ("no longer finite", "after epoch 1 of 1", "smaller learning rate than 1e+38", "is spent"),
    ),
}
NETS = """
from torch import nn
def nothing(input_shape, classes): return None
def few(input_shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
def fails(input_shape, classes): raise RuntimeError("no such thing")
def lazy(input_shape, classes): return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
def frozen(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)
"""


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_are_refused(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        "refused_nets.py": NETS,
        "table.toml": "[plan]\nepsilon = 1\n",
        "typo.toml": "epsilom = 1\n",
        "broken.toml": "epsilon = [",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    options, expected = COMMANDS[case]
    at = options.index("--config") if "--config" in options else len(options)
    out = ("--out", "out") if options[0] == "train" else ()
    assert main([*options[:at], *out, *options[at:]]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    message = shown.err.strip().splitlines()[-1]
    assert message.startswith("privlearn: ")
    for part in expected:
        assert part in message, message
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == set(files)
