"""Optimizers of `privlearn.optim` through every door, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.neighbours import ReleaseRecorder, compare_runs
from privlearn.optim import AdamBC, DiSK, NoiseAware
from privlearn.sklearn import DPLogisticRegression
from privlearn.training.train import optimizer_at, optimizer_kind
from tests.optim.checks_steps import OURS, descended, network, plan_of

BATCH, ROWS, CLIP = 8.0, 32, 0.05
X = np.random.default_rng(0).uniform(-1, 1, size=(1200, 4)).astype(np.float32)
Y = (X @ np.array([2.0, -1.5, 1.0, 0.0]) > 0).astype(np.int64)
DATA = pv.Dataset(X, Y, classes=2, low=-1.0, high=1.0)


def trained(**choices: Any) -> pv.Result:
    return pv.train(DATA, **{"epsilon": 3.0, "streams": pv.Streams.new(0), **choices})


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        said = model(torch.from_numpy(X)).argmax(1).numpy()
    return float(np.mean(said == Y))


@pytest.mark.parametrize("name", sorted(OURS))
def test_by_name_with_the_usual_learning_rate(name: str) -> None:
    result = trained(optimizer=name)
    assert result.facts["optimizer"]["name"].lower() == name
    assert accuracy(result.model) > max(0.8, accuracy(trained().model) - 0.03)


def test_numbers_behind_the_name() -> None:
    assert trained(optimizer="disk:kappa=0.3").facts["optimizer"]["kappa"] == 0.3
    assert trained(optimizer="AdamBC:floor=1").facts["optimizer"]["floor"] == 1.0
    given = trained(optimizer="adamw:weight_decay=0.5").facts["optimizer"]
    assert (given["name"], given["weight_decay"]) == ("AdamW", 0.5)


def test_the_rate_of_disk_is_that_of_sgd() -> None:
    assert trained(optimizer="disk").facts["optimizer"]["lr"] == pytest.approx(
        trained().facts["optimizer"]["lr"]
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("disc", "adambc or disk"),
        ("disk:gain=1", "cannot be made"),
        ("disk:kappa=2", "kappa"),
        ("disk:lr=1", "learning_rate=L"),
        ("disk:kappa", "cannot be read"),
        ("noiseaware", "cannot be used"),
    ],
)
def test_what_is_refused_by_name(spec: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        optimizer_at(spec, network().parameters(), 0.1, None)


def test_momentum_is_not_theirs() -> None:
    with pytest.raises(BadInput, match="takes none"):
        trained(optimizer="disk", momentum=0.9, learning_rate=0.1)


def test_a_new_one_is_known_by_its_name() -> None:
    """One class, and nothing else, makes it an option."""

    class Halved(NoiseAware):
        @classmethod
        def usual_rate(cls, rate: float, deviation: float) -> float:
            return 0.125

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for weights in self.param_groups[0]["params"]:
                weights.sub_(weights.grad, alpha=self.param_groups[0]["lr"] / 2)

    assert optimizer_kind("halved") is Halved
    assert trained(optimizer="halved").facts["optimizer"]["lr"] == 0.125


def test_torch_has_its_own_names() -> None:
    assert optimizer_kind("adam") is torch.optim.Adam


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    options = ["--data", str(tmp_path / "rows.npz"), "--classes", "2", "--range=-1,1"]
    target = ["--epsilon", "3", "--delta", "1e-4", "--out", str(tmp_path / "model")]
    code = main(["train", *options, *target, "--optimizer", "disk:kappa=0.3", "--explain"])
    printed = capsys.readouterr()
    assert code == 0, printed
    assert "DiSK" in printed.out + printed.err
    texts = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "model").glob("*.json")]
    assert any('"kappa": 0.3' in json.dumps(text) for text in texts)


@pytest.mark.parametrize("kind", [DiSK, AdamBC])
def test_in_a_loop_of_ones_own(kind: Any, tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=100
    )
    private = pv.make_private(
        model,
        kind(model.parameters(), lr=0.5 if kind is DiSK else 0.05),
        loader,
        epochs=5,
        epsilon=3.0,
        delta=1e-4,
        max_grad_norm=1.0,
    )
    for batch in private.batches():
        private.step(batch, nn.CrossEntropyLoss(reduction="none"))
    assert accuracy(model) > 0.8
    assert pv.verify(private.publish(tmp_path / "model")).ok


def test_in_scikit_learn() -> None:
    estimator = DPLogisticRegression(
        3.0, 1e-4, bounds=(-1.0, 1.0), classes=[0, 1], options={"optimizer": "disk"}
    )
    assert estimator.fit(X, Y).score(X, Y) > 0.8


def private_loop(kind: Any, rows: Any, recorder: ReleaseRecorder) -> Any:
    plan = pv.Plan(
        pv.Poisson(BATCH / ROWS),
        epochs=1,
        clip=pv.Flat(CLIP),
        schedule=pv.schedules.Constant(1.0),
        examples=ROWS,
    )
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    pv.dpsgd(
        plan,
        model,
        nn.CrossEntropyLoss(reduction="none"),
        rows,
        optimizer=lambda p: kind(p, lr=1.0),
    )
    return model


@pytest.mark.parametrize("kind", [DiSK, AdamBC])
def test_neighbours_move_a_release_by_the_clipping_norm(kind: Any) -> None:
    x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(0))
    comparison = compare_runs(
        lambda rows, recorder: private_loop(kind, rows, recorder), (x, (x[:, 0] > 0).long()), runs=1
    )
    assert comparison.ok, comparison.report()
    assert 0.9 < comparison.largest_ratio < 1.001, comparison.report()


def test_correlated_noise() -> None:
    """The filter takes it; what subtracts a variance does not."""
    banded = {"sampling": "cyclic-poisson", "mechanism": "banded", "adjacency": "zero_out"}
    assert trained(optimizer="disk", **banded).facts["optimizer"]["name"] == "DiSK"
    with pytest.raises(BadInput, match="mechanism='independent'"):
        trained(optimizer="adambc", **banded)


@pytest.mark.parametrize(("kind", "said"), [(DiSK, "computed at other"), (AdamBC, "was not told")])
def test_a_step_outside_of_a_run(kind: Any, said: str) -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(BadInput, match=said):
        kind(model.parameters(), lr=0.1).step()


def test_steps_that_are_not_of_dpsgd() -> None:
    with pytest.raises(BadInput, match="dpmac has others"):
        pv.train(DATA, epsilon=3.0, delta=1e-4, method="dpmac", model="mlp:5", optimizer="disk")


def test_numbers_out_of_range() -> None:
    parameters = list(network().parameters())
    for settings in ({"betas": 0.9}, {"betas": (0.9, 1.0)}, {"floor": 0.0}, {"eps": -1.0}):
        with pytest.raises(BadInput, match="expected"):
            AdamBC(parameters, **settings)  # type: ignore[arg-type]


def test_frozen_parameters_stay() -> None:
    for make in (lambda p: DiSK(p, 0.3), lambda p: AdamBC(p, 0.1)):
        model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
        model[0].requires_grad_(False)
        before = model[0].weight.clone()
        trainable = [each for each in model.parameters() if each.requires_grad]
        pv.dpsgd(
            plan_of(),
            model,
            nn.CrossEntropyLoss(reduction="none"),
            (torch.ones(12, 5).double(), torch.zeros(12, dtype=torch.long)),
            optimizer=make(trainable),
        )
        assert torch.equal(model[0].weight, before)


def test_adam_bc_without_noise_is_adam_nearly() -> None:
    """With a floor that hardly counts and noise that is small."""
    quiet = pv.Plan(
        pv.sampling.FullBatch(),
        epochs=20,
        clip=pv.Flat(0.5),
        examples=12,
        schedule=pv.schedules.Constant(1e-4),
    )
    ours = descended(lambda p: AdamBC(p, 0.05, floor=1e-6), plan=quiet)
    adam = descended(lambda p: torch.optim.Adam(p, 0.05), plan=quiet)
    for one, other in zip(
        ours.model.state_dict().values(), adam.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
