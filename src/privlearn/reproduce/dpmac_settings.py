"""Harder et al. 2019, section 3 and Table 2: the runs of each study, and the paper's numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from privlearn.reproduce.dpmac_runs import MacSetting

#: Table 1 (a): by epsilon, test accuracy and epochs of DP-SGD (Abadi et al. 2016), DP-CDBN (Phan et al. 2017) and DP-MAC.
MNIST_PAPER: dict[float, dict[str, tuple[float, int]]] = {
    0.5: {"DP-SGD": (0.90, 16), "DP-CDBN": (0.92, 162), "DP-MAC": (0.90, 10)},
    2.0: {"DP-SGD": (0.95, 120), "DP-CDBN": (0.95, 162), "DP-MAC": (0.95, 30)},
    8.0: {"DP-SGD": (0.97, 700), "DP-MAC": (0.97, 30)},
}
#: Table 2: by epsilon, noise multipliers of training and of the projection.
_MNIST_NOISE = {0.5: (8.0, 16.0), 2.0: (2.8, 8.0), 8.0: (1.0, 4.0)}
_QUICK = 6_000


def classifier(epsilon: float, quick: bool = False) -> MacSetting:
    """The paper's classifier with its noise; a quick one has a tenth of the rows in batches of the same share."""
    noise, pca = _MNIST_NOISE[epsilon]
    epochs, rate, decay = (10, 0.03, 0.7) if epsilon == 0.5 else (30, 0.01, 0.95)
    setting = MacSetting("mnist", epochs, 1000, rate, falling(decay), 0.3, noise=noise, pca_noise=pca)
    return replace(setting, first=_QUICK, batch_size=100, epochs=min(epochs, 10)) if quick else setting


def calibrated(setting: MacSetting, epsilon: float) -> MacSetting:
    """The same with as little noise as `epsilon` allows, everything counted."""
    return replace(setting, noise=None, epsilon=epsilon)


def falling(decay: float) -> str:
    """The spec of learning rates that are multiplied by `decay` in each epoch."""
    return f"exp:k={-math.log(decay)!r},start=1"


def tuned_classifier(epsilon: float, quick: bool = False) -> MacSetting:
    """The best that was found on the last 5,000 training images: see `dpmac_mnist`."""
    setting = calibrated(classifier(epsilon, quick), epsilon)
    return replace(setting, shares=(2.0, 1.0), z_steps=1, z_rate=1.0, z_optimizer="sweep")


def classifier_by_dpsgd(epsilon: float, quick: bool = False) -> MacSetting:
    """The same network by DP-SGD with the same batches, epochs and learning rates, the whole gradient clipped."""
    return replace(calibrated(classifier(epsilon, quick), epsilon), method="dpsgd", threshold=0.3)


def classifier_without_noise(quick: bool = False) -> MacSetting:
    """DP-MAC without noise in training, behind the projection of the largest epsilon."""
    return replace(classifier(8.0, quick), noise=None)
