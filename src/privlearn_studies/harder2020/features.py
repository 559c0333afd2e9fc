"""Harder et al. 2019, Figure 5: what hidden units of the classifier look for, with and without
noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from privlearn_studies.charts import Figure, Image, Panel
from privlearn_studies.data import projection
from privlearn_studies.harder2020.mnist import classifier_without_noise, tuned_classifier
from privlearn_studies.harder2020.training import Setting, task_of, trained
from privlearn_studies.report import Findings, Row, mean, page
from privlearn_studies.runs import Runs

_LABELS = (0, 3, 5, 6, 8)
_SIDE = 28


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """A network for each epsilon and one without noise, by the same seed; for each label its most
    significant unit.
    """
    calls = {"no noise": classifier_without_noise(quick)}
    calls |= {
        f"epsilon {epsilon:g}": tuned_classifier(epsilon, quick) for epsilon in (8.0, 2.0, 0.5)
    }
    rows: list[Row] = []
    panels: list[Panel] = []
    for label, call in calls.items():
        outcome, network = trained(call.setting, 0)
        units, accuracy = features(call.setting, network), outcome["test"][-1]
        rows += [
            Row(label, "test accuracy", accuracy),
            Row(
                label,
                "contrast: mean over the shown features of their deviation over pixels",
                mean(float(unit.std()) for unit in units),
            ),
            Row(
                label,
                "share of their energy above a quarter of the highest frequency",
                mean(_high(unit) for unit in units),
            ),
        ]
        limit = float(np.percentile(np.abs(np.concatenate([unit.numpy() for unit in units])), 99.5))
        for digit, unit in zip(_LABELS, units, strict=True):
            name = f"{label}\naccuracy {accuracy:.3f}" if digit == _LABELS[0] else ""
            image = Image(unit.reshape(_SIDE, _SIDE).numpy(), limit)
            panels.append(Panel([image], "", name, str(digit) if label == "no noise" else ""))
    figure = Figure("The most significant hidden unit of each label", panels, 9, 8, len(_LABELS))
    return Findings(tuple(rows), figure, page("dpmac-features"))


def features(setting: Setting, network: nn.Module) -> list[Tensor]:
    """The chosen units' weights as images, of shape (pixels,)."""
    task = task_of(setting)
    directions = projection(task, 0, task.rows(0, False).x[: setting.first]).get_buffer(
        "components"
    )
    first, last = (module for module in network.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        weights = first.weight @ directions.T.to(first.weight)
        significant = last.weight * weights.norm(dim=1)
        return [weights[significant[digit].argmax()] for digit in _LABELS]


def _high(feature: Tensor) -> float:
    """The share of an image's energy at high frequencies."""
    energy = np.abs(np.fft.fft2(feature.reshape(_SIDE, _SIDE).numpy())) ** 2
    along: Sequence[float] = np.abs(np.fft.fftfreq(_SIDE)).tolist()
    far = np.hypot(*np.meshgrid(along, along)) > 0.125
    return float(energy[far].sum() / energy.sum())
