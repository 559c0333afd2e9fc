"""Training loops that are compared on neighbouring data: sound ones, and each with one bug."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import opacus
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.neighbours import Comparison, ReleaseRecorder, compare_runs

#: Rows, of which the last differs; and what is expected in a batch.
ROWS, BATCH = 32, 8.0
CLIP = 0.05


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Inputs of five numbers, and two classes."""
    x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def clip_parts(gradients: list[Tensor]) -> list[Tensor]:
    length = torch.cat([part.flatten() for part in gradients]).norm()
    return [part * (CLIP / length).clamp(max=1.0) for part in gradients]


def plain_loop(rows: Any, recorder: ReleaseRecorder, bug: str = "", steps: int = 4) -> Any:
    """DP-SGD by hand, with noise of PyTorch; noise multiplier 1."""
    x, y = rows
    model = network()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=10.0)
    if bug == "mean of the data":
        x = x - x.mean(0)
    for _ in range(steps):
        drawn = torch.rand(len(x)) < BATCH / ROWS
        inputs, targets = x[drawn], y[drawn]
        if bug == "skipped batches" and not len(inputs):
            continue
        if bug == "batch statistics" and len(inputs) > 1:
            inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-3)
        if bug == "augmentation":
            with recorder.ignore():
                inputs = inputs + 0.1 * torch.randn_like(inputs)
        sums = _sums(model, parameters, inputs, targets, bug)
        if bug == "same noise":
            torch.manual_seed(1)
        for number, (parameter, total) in enumerate(zip(parameters, sums, strict=True)):
            noise = torch.randn_like(total) * CLIP
            if bug == "half of the noise":
                noise = noise / 2
            if bug == "no noise on biases" and total.dim() == 1:
                noise = 0.0 * total
            total += noise
            parameter.grad = total / (len(inputs) if bug == "batch size" else BATCH)
            if bug == "batch size in the rate" and number == 0:
                optimizer.param_groups[0]["lr"] = 10.0 * len(inputs) / BATCH
        if bug == "same noise":
            torch.seed()
        optimizer.step()
    if bug == "private output":
        return model, float(cross_entropy(model(x), y).detach())
    return model


def _sums(
    model: nn.Module, parameters: list[nn.Parameter], x: Tensor, y: Tensor, bug: str
) -> list[Tensor]:
    """Sums of clipped gradients."""
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    if bug == "clipped mean":
        if len(x):
            mean = torch.autograd.grad(cross_entropy(model(x), y), parameters)
            sums = [part * BATCH for part in clip_parts(list(mean))]
        return sums
    for row, target in zip(x, y, strict=True):
        loss = cross_entropy(model(row[None]), target[None])
        gradient = list(torch.autograd.grad(loss, parameters))
        if bug == "by layers":
            parts = [clip_parts([part])[0] for part in gradient]
        else:
            parts = clip_parts(gradient)
        for total, part in zip(sums, parts, strict=True):
            total += part
    return sums


def opacus_loop(rows: Any, recorder: ReleaseRecorder, bug: str = "", noise: float = 1.0) -> Any:
    """Opacus' engine."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(*rows), batch_size=int(BATCH)),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
    )
    if bug != "number of rows":
        optimizer.expected_batch_size = int(BATCH)
    for x, y in loader:
        if bug == "batch statistics" and len(x) > 1:
            x = (x - x.mean(0)) / (x.std(0) + 1e-3)
        optimizer.zero_grad()
        outputs = model(x)
        if bug == "coupled loss":
            outputs = outputs * x.abs().mean()
        cross_entropy(outputs, y).backward()
        optimizer.step()
    return model


def private_run(rows: Any, recorder: ReleaseRecorder, adjacency: str = "add_remove") -> Any:
    """`pv.dpsgd`, with dropout."""
    noise = pv.schedules.Constant(1.0)
    plan = pv.Plan(
        pv.Poisson(BATCH / ROWS),
        epochs=1,
        clip=pv.Flat(CLIP),
        schedule=noise,
        examples=ROWS,
        adjacency=adjacency,
    )
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 2))
    pv.dpsgd(plan, model, nn.CrossEntropyLoss(reduction="none"), rows)
    return model


def compare_loop(loop: Callable[..., Any], bug: str = "", **options: Any) -> Comparison:
    train = functools.partial(loop, bug=bug) if bug else loop
    chosen = {"noise_multiplier": 1.0, **options}
    return compare_runs(train, chosen.pop("rows", data()), **chosen)


def require_problem(comparison: Comparison, text: str) -> None:
    """One of the problems says so."""
    assert any(text in problem for problem in comparison.problems), comparison.report()
