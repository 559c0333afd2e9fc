"""Harder et al. 2019, Figure 5: what hidden units of the classifier look for, with and without noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from privlearn_studies import plots
from privlearn_studies.dpmac.runs import MacSetting, task_of, train
from privlearn_studies.dpmac.settings import classifier_without_noise, tuned_classifier
from privlearn_studies.findings import Findings, Row
from privlearn_studies.sweep import Sweep
from privlearn_studies.tasks import projection

_LABELS = (0, 3, 5, 6, 8)
_EPSILONS = (8.0, 2.0, 0.5)
_SIDE = 28


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """One network for each epsilon and one without noise, by the same seed; for each label its most significant unit."""
    settings: dict[str, MacSetting] = {"no noise": classifier_without_noise(quick)}
    settings |= {f"epsilon {epsilon:g}": tuned_classifier(epsilon, quick) for epsilon in _EPSILONS}
    rows: list[Row] = []
    found: dict[str, list[Tensor]] = {}
    accuracies: dict[str, float] = {}
    for label, setting in settings.items():
        outcome, network = train(setting, 0)
        found[label] = _features(setting, network)
        accuracies[label] = outcome.test[-1]
        rows += [
            Row(label, "test accuracy", outcome.test[-1]),
            Row(label, "contrast: mean over the shown features of their deviation over pixels",
                float(np.mean([float(each.std()) for each in found[label]]))),
            Row(label, "share of their energy above a quarter of the highest frequency",
                float(np.mean([_high(each) for each in found[label]]))),
        ]  # fmt: skip
    figure, axes = plots.panels("The most significant hidden unit of each label", 9, 8, len(settings), len(_LABELS))
    for ax, (label, digit) in zip(axes, ((label, digit) for label in settings for digit in _LABELS), strict=True):
        image = found[label][_LABELS.index(digit)].reshape(_SIDE, _SIDE)
        ax.imshow(image, cmap="gray", vmin=-_limit(found[label]), vmax=_limit(found[label]))
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        if label == next(iter(settings)):
            ax.set_title(str(digit), fontsize=10)
        if digit == _LABELS[0]:
            ax.set_ylabel(f"{label}\naccuracy {accuracies[label]:.3f}", fontsize=9)
    notes = (
        "Weights of hidden units, brought back from the projected features to pixels. For each label it is the unit with the "
        "largest product of its output weight for the label and the length of its own weights. One seed; each row has a grey "
        "scale of its own, to the largest weights in it. Images of private networks are functions of what was released: they "
        "cost nothing more.",
        "All features lie in the private projection's 60 directions, also those without noise: see epsilon 8.",
    )
    return Findings(tuple(rows), figure, notes)


def _features(setting: MacSetting, network: nn.Module) -> list[Tensor]:
    """The chosen units' weights as images, of shape (pixels,)."""
    task = task_of(setting)
    directions = projection(task, 0, task.rows(0, False).x[: setting.first]).get_buffer("components")
    first, last = (module for module in network.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        weights = first.weight @ directions.T.to(first.weight)
        significant = last.weight * weights.norm(dim=1)
        return [weights[significant[digit].argmax()] for digit in _LABELS]


def _limit(features: list[Tensor]) -> float:
    """The end of the grey scale of one network's features."""
    return float(np.percentile(np.abs(np.concatenate([each.numpy() for each in features])), 99.5))


def _high(feature: Tensor) -> float:
    """The share of an image's energy at high frequencies."""
    energy = np.abs(np.fft.fft2(feature.reshape(_SIDE, _SIDE).numpy())) ** 2
    along: Sequence[float] = np.abs(np.fft.fftfreq(_SIDE)).tolist()
    far = np.hypot(*np.meshgrid(along, along)) > 0.125
    return float(energy[far].sum() / energy.sum())
