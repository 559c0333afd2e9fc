"""DP-MAC: what it refuses, what its options do, and what it learns."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn import cli
from privlearn.core.accounting.events import walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import NonPrivate
from privlearn.core.clipping.derivative_bounds import shares_of_parts
from privlearn.errors import BadInput, BudgetExceeded
from privlearn.methods.dpmac.network import SOFTPLUS, layers_of
from privlearn.methods.dpmac.sums import DerivativeSums
from tests.mac import checks_sensitivities as mac_sensitivity_checks
from tests.mac import nets as mac_nets
from tests.mac.checks_runs import settled
from tests.mac.nets import TANH, made_up, net

BCE = "binary_cross_entropy"
POISSON = pv.Poisson(0.3)


def run(
    model: Any = None,
    data: Any = None,
    loss: str = BCE,
    plan: pv.Plan | None = None,
    **options: Any,
) -> pv.Result:
    model = net(5, 4, 3) if model is None else model
    options = {
        "streams": pv.Streams.new(0),
        "coordinates": pv.mac.Coordinates(2, 0.003, "adam"),
        "mu": 1.0,
    } | options
    return pv.dpmac(plan or settled(POISSON), model, loss, data or made_up(12, 5, 3), **options)


# Refusals


class Residual(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x


def tied() -> nn.Module:
    shared = nn.Linear(5, 5)
    return nn.Sequential(shared, nn.ReLU(), shared)


def frozen() -> nn.Module:
    model = net(5, 4, 3)
    model[0].weight.requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = net(5, 4, 3)
    model[1].register_forward_hook(lambda *_: None)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a convolution": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3)),
        "Unflatten at '0'",
    ),
    "a convolution, first": (
        lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(6, 3)),
        "Conv1d at '0'",
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 3)),
        "Dropout at '2'",
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        "BatchNorm1d at '1'",
    ),
    "a custom module": (
        lambda: nn.Sequential(nn.Linear(5, 4), Residual(), nn.Linear(4, 3)),
        "Residual at '1'",
    ),
    "no sequence": (Residual, "Residual"),
    "no layer": (lambda: nn.Sequential(nn.Flatten()), "no Linear layer"),
    "an activation that is not known": (lambda: net(5, 4, 3, kind=nn.GELU), "GELU at '1'"),
    "an activation last": (lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU()), "relu, last"),
    "a sigmoid last": (lambda: nn.Sequential(nn.Linear(5, 3), nn.Sigmoid()), "Sigmoid at '1'"),
    "two activations": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 3)),
        "ReLU at '2'",
    ),
    "two linear layers": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)),
        "two Linear layers",
    ),
    "layers that do not fit": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(6, 3)),
        "the next takes 6",
    ),
    "other features": (lambda: net(6, 4, 3), "examples have 5 features"),
    "a softplus of another shape": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Softplus(beta=2), nn.Linear(4, 3)),
        "beta 2",
    ),
    "tied layers": (tied, "stands twice"),
    "a frozen layer": (frozen, "frozen"),
    "hooks": (hooked, "hooks"),
    "half precision": (lambda: net(5, 4, 3).half(), "float16"),
}


@pytest.mark.parametrize("name", MODELS)
def test_other_models_are_refused_before_anything_is_spent(name: str) -> None:
    make, message = MODELS[name]
    ledger = pv.Ledger()
    with pytest.raises(BadInput, match=message.replace("(", r"\(")):
        run(make(), ledger=ledger)
    assert not list(walk(ledger.event))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown loss": (lambda: run(loss="hinge"), "the loss of dpmac is 'hinge'"),
    "a loss of PyTorch": (lambda: run(loss=nn.MSELoss()), "the loss of dpmac is a MSELoss"),  # type: ignore[arg-type]
    "softmax at second order": (
        lambda: run(loss="cross_entropy", plan=settled(POISSON, clip=pv.mac.Derivatives(0.3, 0.3))),
        "couple the classes",
    ),
    "a plan for dpsgd": (
        lambda: run(plan=settled(POISSON, clip=pv.Flat(0.1))),
        "for gradients: dpmac needs",
    ),
    "no plan": (
        lambda: pv.dpmac("plan", net(5, 3), BCE, made_up(4, 5, 3)),
        "expected a privlearn Plan",
    ),  # type: ignore[arg-type]
    "a plan for dpmac in dpsgd": (
        lambda: pv.dpsgd(settled(POISSON), net(5, 3), nn.MSELoss(), made_up(12, 5, 3)),
        "for dpmac: dpsgd clips",
    ),
    "targets above 1": (
        lambda: run(data=(made_up(4, 5, 3)[0], 2 * torch.ones(4, 3))),
        r"targets in \[0, 1\]",
    ),
    "targets below 0": (
        lambda: run(data=(made_up(4, 5, 3)[0], -torch.ones(4, 3))),
        r"targets in \[0, 1\]",
    ),
    "targets of NaN": (
        lambda: run(data=(made_up(4, 5, 3)[0], math.nan * torch.ones(4, 3)), loss="mse"),
        "not finite",
    ),
    "labels for the squared error": (
        lambda: run(data=(made_up(4, 5, 3)[0], torch.tensor([0, 1, 2, 3])), loss="mse"),
        "mse takes numbers of shape",
    ),
    "targets of another size": (
        lambda: run(data=(made_up(4, 5, 3)[0], torch.ones(4, 2))),
        "2 numbers for each example",
    ),
    "labels beyond the outputs": (
        lambda: run(data=(made_up(4, 5, 3)[0], torch.tensor([0, 1, 2, 3]))),
        "labels from 0 to 3",
    ),
    "targets that are no probabilities": (
        lambda: run(data=(made_up(4, 5, 3)[0], torch.ones(4, 3)), loss="cross_entropy"),
        "do not add up to 1",
    ),
    "no bound on coordinates": (pv.mac.Analytic, "need a bound on the auxiliary coordinates"),
    "no bound on targets": (
        lambda: run(loss="mse", plan=settled(POISSON, clip=pv.mac.Analytic(z_norm=1.0))),
        r"give pv.mac.Analytic\(y_norm=",
    ),
    "an activation without bounds": (
        lambda: run(
            net(5, 4, 3, kind=nn.Tanh),
            plan=settled(POISSON, clip=pv.mac.Analytic(z_norm=1.0)),
            activations={nn.Tanh: replace(TANH, suprema=None)},
        ),
        "no bounds are known of the activation tanh",
    ),
    "third order": (lambda: pv.mac.Analytic(z_norm=1.0, order=3), "expected 1 or 2"),
    "thresholds for other layers": (
        lambda: run(plan=settled(POISSON, clip=pv.mac.Derivatives((0.1, 0.2, 0.3)))),
        "there are 3 thresholds",
    ),
    "no thresholds": (lambda: pv.mac.Derivatives(()), "no thresholds"),
    "a threshold of 0": (lambda: pv.mac.Derivatives(0.0), "the threshold first"),
    "shares for other layers": (
        lambda: run(plan=settled(POISSON, clip=pv.mac.Derivatives(0.3, shares=(1.0,)))),
        "there are 1 shares",
    ),
    "a share of 0": (lambda: pv.mac.Derivatives(0.3, shares=(1.0, 0.0)), "a layer's share is 0.0"),
    "a hopeless share": (
        lambda: pv.mac.Derivatives(0.3, shares=(1.0, 1e-9)),
        "within a factor of a million",
    ),
    "learned from nothing": (
        lambda: pv.mac.Derivatives(0.3, learned=1.0),
        r"expected a pv.mac.Histogram",
    ),  # type: ignore[arg-type]
    "learned at the end": (
        lambda: run(
            plan=settled(
                POISSON, clip=pv.mac.Derivatives(0.3, learned=pv.mac.Histogram(1.0, after=2))
            )
        ),
        "nothing would come",
    ),
    "a histogram upside down": (lambda: pv.mac.Histogram(1.0, low=1.0, high=0.1), "low below high"),
    "a validation schedule": (
        lambda: run(
            plan=pv.Plan(
                POISSON,
                schedule=pv.schedules.Validation(k=0.7, m=5, threshold=0.01, period=10, noise=20.0),
                clip=pv.mac.Derivatives(0.3),
            ).calibrate(epsilon=4, delta=1e-5)
        ),
        "no validation schedule",
    ),
    "Newton at first order": (lambda: run(newton=0.1), "Newton steps need second derivatives"),
    "a damping of 0": (
        lambda: run(newton=0.0, plan=settled(POISSON, clip=pv.mac.Derivatives(0.3, 0.3))),
        "newton is 0.0",
    ),
    "mu of 0": (lambda: run(mu=0.0), "mu is 0.0"),
    "no steps": (lambda: run(weight_steps=0), "weight_steps is 0"),
    "no coordinates": (lambda: run(coordinates=30), "coordinates is 30"),
    "no Z-steps": (lambda: pv.mac.Coordinates(0), "steps of the coordinates is 0"),
    "Z-steps that couple": (
        lambda: pv.mac.Coordinates(optimizer="lbfgs"),
        "expected one of adam, sgd",
    ),
    "a sweep beyond the end": (
        lambda: pv.mac.Coordinates(1, 1.5, "sweep"),
        "a sweep at rate 1 goes all the way",
    ),
    "persons": (lambda: run(plan=settled(POISSON, rows_per_person=2)), "dpmac protects rows"),
    "a checkpoint of stored coordinates": (
        lambda: run(coordinates=pv.mac.Coordinates(stored=True), checkpoint="run"),
        "can't be continued",
    ),
    "a checkpoint without noise": (
        lambda: run(private=False, checkpoint="run"),
        "can't be continued",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(name: str) -> None:
    action, message = REFUSED[name]
    with pytest.raises(BadInput, match=message):
        action()


def test_a_plan_beyond_the_budget_touches_no_data() -> None:
    ledger = pv.Ledger(pv.Budget(epsilon=0.1, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        run(ledger=ledger, data="no data at all")  # type: ignore[arg-type]


# What the options do


def test_thresholds_and_shares_by_layer() -> None:
    assert pv.mac.Derivatives((0.3, 0.1), 2.0).thresholds(2) == [[0.3, 0.1], [2.0, 2.0]]
    assert pv.mac.Derivatives((0.3, 0.1)).clip_norm == 0.3
    limits = mac_nets.derivatives(net(5, 4, 3), pv.mac.Derivatives((0.3, 0.1), 2.0)).limits()
    assert limits == [[0.3, 1.0], [0.1, 1.0]]  # of C = d2T / 2
    shares = shares_of_parts(pv.mac.Derivatives(0.3, 0.3, shares=(1.0, 2.0)), 2)
    assert shares == pytest.approx([1 / math.sqrt(10)] * 2 + [2 / math.sqrt(10)] * 2)


def test_thresholds_of_a_histogram() -> None:
    found = pv.mac.Histogram(1.0, low=1.0, high=100.0, bins=4)
    assert found.edges() == pytest.approx([1.0, 10.0, 100.0])
    assert found.threshold([0, 10, 0, 0], 0.3) == pytest.approx(10.0)
    assert found.threshold([5, 0, 0, 4], 0.3) == pytest.approx(1.0)
    assert found.threshold([1, 0, 0, 4], 0.3) == pytest.approx(100.0)
    assert found.threshold([-3, 1, 1, -4], 0.3) == 0.3


def test_the_plan_prices_the_histogram_where_it_comes() -> None:
    learned = pv.mac.Derivatives(0.3, learned=pv.mac.Histogram(7.0, after=1))
    plan = pv.Plan(
        pv.sampling.FullBatch(), epochs=3, clip=learned, schedule=pv.schedules.Constant(start=2.0)
    )
    assert [leaf.noise_multiplier for leaf, times in walk(plan.event()) for _ in range(times)] == [
        2.0,
        7.0,
        2.0,
        2.0,
    ]  # type: ignore[attr-defined]
    calibrated = plan.calibrate(epsilon=1.0, delta=1e-5)
    assert 0.99 <= calibrated.guarantee(1e-5).epsilon <= 1.0
    assert calibrated.schedule.start > 2.0
    assert plan.to_json()["clip"]["learned"] == {
        "kind": "histogram",
        **vars(pv.mac.Histogram(7.0, after=1)),
    }


def test_results_repeat_with_a_seed_and_in_parts() -> None:
    weights = [
        torch.cat(
            [
                p.flatten()
                for p in run(microbatch=size, streams=pv.Streams.new(4)).model.parameters()
            ]
        )
        for size in (None, None, 1)
    ]
    assert torch.equal(weights[0], weights[1])
    assert torch.allclose(weights[0], weights[2], atol=1e-9)
    other = torch.cat([p.flatten() for p in run(streams=pv.Streams.new(5)).model.parameters()])
    assert not torch.allclose(weights[0], other)


def test_one_step_on_a_first_order_objective_is_clipped_descent_by_layer() -> None:
    """With no hidden layer DP-MAC is DP-SGD with one layer: the same sums, up to the factor 2 of
    eq. 5.
    """
    x, y = made_up(12, 5, 3)
    quiet = {
        "sampling": pv.sampling.FullBatch(),
        "epochs": 1,
        "schedule": pv.schedules.Constant(start=1e-6),
        "examples": 12,
    }
    models = [net(5, 3) for _ in range(2)]
    bce = nn.BCEWithLogitsLoss(reduction="none")
    pv.dpmac(
        pv.Plan(clip=pv.mac.Derivatives(0.3), **quiet),
        models[0],
        BCE,
        (x, y),
        optimizer=lambda p: torch.optim.SGD(p, lr=2.0),
    )
    pv.dpsgd(
        pv.Plan(clip=pv.Flat(0.3), **quiet),
        models[1],
        lambda u, t: bce(u, t).sum(1),
        (x, y),
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
    )
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_several_steps_on_a_second_order_objective_differ_from_one() -> None:
    def end(**options: Any) -> Tensor:
        plan = settled(pv.sampling.FullBatch(), clip=pv.mac.Derivatives(10.0, 10.0))
        return next(
            iter(
                run(
                    plan=plan, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), **options
                ).model.parameters()
            )
        ).detach()

    assert not torch.allclose(end(weight_steps=1), end(weight_steps=3))
    assert bool(end(newton=0.01).isfinite().all())
    assert not torch.allclose(end(newton=0.01), end())


@pytest.mark.parametrize(
    "clip",
    [
        pv.mac.Derivatives(5.0),
        pv.mac.Derivatives(5.0, 5.0),
        pv.mac.Analytic(z_norm=2.0, y_norm=2.0, order=2),
    ],
)
def test_it_learns_without_noise_and_is_marked(clip: Any) -> None:
    """An autoencoder of two hidden layers: its loss falls by half, by gradients and by Newton
    steps.
    """
    x, _ = made_up(64, 6, 1)
    x = torch.tanh(
        x
        @ torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[:, :2]
        @ torch.eye(2, 6).double()
    )
    plan = pv.Plan(pv.sampling.FullBatch(), epochs=40, clip=clip)
    for more in (
        {},
        {"mu": pv.schedules.Exponential(k=0.01, start=1.0)},
        {"newton": 0.1} if clip.order == 2 else {},
    ):
        rate = 0.3 if "newton" in more else 0.02
        kind = torch.optim.SGD if "newton" in more else torch.optim.Adam
        result = run(
            net(6, 5, 4, 6),
            (x, x),
            "mse",
            plan,
            private=False,
            optimizer=lambda p: kind(p, lr=rate),  # noqa: B023
            coordinates=pv.mac.Coordinates(10, 0.03, "adam"),
            **more,
        )
        losses = result.private_diagnostics["loss"]
        assert losses[-1] < losses[0] / 2, (clip, more, losses[0], losses[-1])
        assert isinstance(next(leaf for leaf, _ in walk(result.ledger.event)), NonPrivate)


def test_diagnostics_are_by_layer_and_stay_private() -> None:
    result = run(plan=settled(POISSON, clip=pv.mac.Derivatives(1e-3)))
    figures = result.private_diagnostics
    assert [len(own) for own in figures["norms"]] == [2, 2]
    assert figures["clipped_shares"][-1][1] == 1.0
    assert figures["left_out"] == [0, 0]
    assert "norms" not in json.dumps(result.facts)


def test_labels_softmax_discrete_noise_and_groups() -> None:
    data = (made_up(12, 5, 3)[0], torch.arange(12) % 3)
    run(data=data, loss="cross_entropy", plan=settled(POISSON, clip=pv.mac.Analytic(z_norm=1.0)))
    run(data=data, streams=pv.Streams.new(0, discrete=True))
    plan = settled(POISSON, group_size=2)
    assert run(data=data, plan=plan).ledger.guarantee(1e-5).group_size == 2
    assert plan.guarantee(1e-5).epsilon > settled(POISSON).guarantee(1e-5).epsilon


def test_activations_of_ones_own() -> None:
    own = {nn.Tanh: TANH}
    assert [layer.activation for layer in layers_of(net(5, 4, 3, kind=nn.Tanh), own)] == [
        TANH,
        None,
    ]
    for clip in (pv.mac.Derivatives(0.3, 0.3), pv.mac.Analytic(z_norm=1.0, order=2)):
        run(net(5, 4, 3, kind=nn.Tanh), plan=settled(POISSON, clip=clip), activations=own)
    assert (
        layers_of(nn.Sequential(nn.Flatten(), nn.Identity(), net(5, 4, 3)))[0].activation
        is SOFTPLUS
    )


@pytest.mark.nightly
def test_analytic_bounds_hold_in_a_longer_search() -> None:
    mac_sensitivity_checks.require_bounds_hold(steps=150)


# Published folders


@pytest.mark.parametrize("kind", [nn.ReLU, nn.Softplus, nn.Tanh])
def test_a_published_network_needs_no_description(kind: type[nn.Module], tmp_path: Path) -> None:
    """Of values and of classes; `privlearn predict` reads the folder alone."""
    x = np.random.default_rng(0).uniform(-1, 1, (60, 6)).astype(np.float32)
    plan = pv.Plan(pv.Poisson(0.2), epochs=1, clip=pv.mac.Derivatives(0.3))
    plan = plan.calibrate(epsilon=4.0, delta=1e-3)
    for loss, y, outputs in (
        ("mse", x[:, 0], 1),
        ("binary_cross_entropy", np.arange(60) % 3, 3),
    ):
        network = nn.Sequential(nn.Linear(6, 5), kind(), nn.Linear(5, outputs))
        result = pv.dpmac(plan, network, loss, (x, y))
        out = pv.publish(result, tmp_path / loss)
        model = pv.load_model(out)
        assert torch.equal(model(torch.from_numpy(x)), result.model(torch.from_numpy(x)))
        assert model.predict(x).shape == (60,)
        assert model.predict(x).is_floating_point() is (outputs == 1)
        again = pv.load_model(out, network)
        assert torch.equal(again(torch.from_numpy(x)), model(torch.from_numpy(x)))
        np.savez(tmp_path / "new.npz", x=x)
        assert command("predict", out, "--data", tmp_path / "new.npz") == 0


def test_networks_that_no_text_describes_are_given(tmp_path: Path) -> None:
    """An autoencoder's outputs are no scores of classes, and a nested network has other names."""
    x = np.random.default_rng(0).uniform(-1, 1, (60, 6)).astype(np.float32)
    plan = pv.Plan(pv.Poisson(0.2), epochs=1, clip=pv.mac.Derivatives(0.3))
    plan = plan.calibrate(epsilon=4.0, delta=1e-3)
    coder = nn.Sequential(nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 6))
    nested = nn.Sequential(nn.Sequential(nn.Linear(6, 2), nn.Tanh()), nn.Linear(2, 1))
    for name, network, y in (("coder", coder, x), ("nested", nested, x[:, 0])):
        result = pv.dpmac(plan, network, "mse", (x, y))
        assert result.model_spec is None
        out = pv.publish(result, tmp_path / name)
        with pytest.raises(BadInput, match="give it yourself"):
            pv.load_model(out)
        outputs = pv.load_model(out, network)(torch.from_numpy(x))
        assert torch.equal(outputs, result.model(torch.from_numpy(x)))


# The command line


def command(*arguments: object) -> int:
    return cli.main([str(part) for part in arguments])


def test_train_verify_and_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    assert (
        command(
            "train",
            "--method",
            "dpmac",
            "--data",
            "digits",
            "--examples",
            1437,
            "--model",
            "mlp:20",
            "--epsilon",
            8,
            "--epochs",
            15,
            "--z-steps",
            5,
            "--z-rate",
            0.02,
            "--seed",
            0,
            "--json",
            "--out",
            out,
        )
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["clip"] == {"kind": "derivatives", "norm": 0.3}
    assert answer["test_accuracy"] > 0.6
    assert command("verify", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["epsilon"] == answer["epsilon"] <= 8
    body = json.loads((out / "privacy.json").read_text())
    assert body["facts"]["method"] == "dpmac"
    assert body["facts"]["coordinates"] == {
        "steps": 5,
        "rate": 0.02,
        "optimizer": "adam",
        "stored": False,
    }
    assert body["plan"]["sampling"]["sampling_rate"] == pytest.approx(256 / 1437)
    assert "| method | dpmac |" in (out / "README.md").read_text()
    assert command("predict", out, "--data", "digits") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--z-steps", 3), "--z-steps is for --method dpmac"),
        (("--method", "dpmac", "--clip", "layer"), "does not go with --clip"),
        (("--method", "dpmac", "--tune", "tune.toml"), "does not go with --tune"),
        (("--method", "dpmac", "--precision", "bf16"), "does not go with --precision"),
        (("--method", "dpmac", "--optimizer", "SGD"), "give --learning-rate"),
        (("--method", "dpmac", "--z-steps", 3, "--z-rate", -1), "rate of the coordinates is -1.0"),
        (("--method", "dpmac", "--z-steps", 0), "steps of the coordinates is 0"),
        (("--method", "dpmac", "--z-rate", 0.1), "add --z-steps 30"),
        (("--method", "voting"), "invalid choice: 'voting'"),
    ],
)
def test_options_that_do_not_fit(
    options: tuple[object, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = (
        "train",
        "--data",
        "digits",
        "--examples",
        1437,
        "--epsilon",
        4,
        "--epochs",
        1,
        "--out",
        tmp_path / "model",
    )
    assert command(*base, *options) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "model").exists()


def test_fixed_batches_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command(
            "budget",
            "--examples",
            60000,
            "--batch-size",
            1000,
            "--sampling",
            "fixed",
            "--noise-multiplier",
            2.8,
            "--epochs",
            30,
            "--pca",
            60,
            "--pca-noise",
            8,
            "--json",
        )
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    by_method = {row["method"]: row["epsilon"] for row in answer["guarantees"]}
    assert by_method["zcdp-2016"] == pytest.approx(11.3269, abs=1e-3)
    assert answer["adjacency"] == "zero_out"


@pytest.mark.parametrize(
    "limits", [[[0.3, 0.0]], [[0.3, -1.0]], [[0.3, math.inf]], [[0.3, 0.2], [0.1, 0.1]]]
)
def test_each_limit_is_a_positive_number(limits: list[list[float]]) -> None:
    with pytest.raises(BadInput, match="positive numbers"):
        DerivativeSums([(3, 4)], limits, torch.zeros(2), Adjacency.ADD_REMOVE)


def test_momentum_is_refused_where_the_optimizer_takes_none() -> None:
    """The usual one is Adam. What the refusal advises works."""
    rows = np.random.default_rng(0).random((40, 3))
    data = pv.Dataset(rows, np.arange(40) % 2, classes=2, low=0, high=1)
    ledger = pv.Ledger()
    train = partial(
        pv.train, data, method="dpmac", epsilon=8, epochs=1, momentum=0.9, ledger=ledger
    )
    for chosen in ({}, {"optimizer": "Adam"}, {"optimizer": "adagrad"}):
        with pytest.raises(BadInput, match="give optimizer='SGD' and learning_rate=L"):
            train(**chosen)
    assert ledger.event.events == ()
    train(optimizer="SGD", learning_rate=0.1)
    assert ledger.event.events != ()
