"""Harder et al. 2019, section 3 and Table 2: the runs of each study, and the paper's numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from privlearn.descent.rules import learning_rate
from privlearn_studies.dpmac.runs import MacSetting, examples_of, plan_of

#: Table 1 (a): by epsilon, test accuracy and epochs of DP-SGD (Abadi et al. 2016), DP-CDBN (Phan et al. 2017) and DP-MAC.
MNIST_PAPER: dict[float, dict[str, tuple[float, int]]] = {
    0.5: {"DP-SGD": (0.90, 16), "DP-CDBN": (0.92, 162), "DP-MAC": (0.90, 10)},
    2.0: {"DP-SGD": (0.95, 120), "DP-CDBN": (0.95, 162), "DP-MAC": (0.95, 30)},
    8.0: {"DP-SGD": (0.97, 700), "DP-MAC": (0.97, 30)},
}
#: Table 2: by epsilon, noise multipliers of training and of the projection.
_MNIST_NOISE = {0.5: (8.0, 16.0), 2.0: (2.8, 8.0), 8.0: (1.0, 4.0)}
#: Table 1 (b): by epsilon (infinite: no noise), the error of DP-SGD and of DP-MAC.
USPS_PAPER = {1.0: (11.8, 12.7), 2.0: (9.6, 10.9), 4.0: (7.9, 9.6), 8.0: (6.4, 8.4), math.inf: (3.6, 4.4)}
#: Table 2: noise multipliers of DP-MAC and of DP-SGD, and the batch size of both.
_USPS_NOISE = {1.0: (7.8, 11.0, 250), 2.0: (4.1, 5.7, 250), 4.0: (3.1, 4.3, 500), 8.0: (1.8, 2.4, 500)}
#: Ours, for each epsilon: epochs, learning rate and weight decay.
_USPS_OURS = {1.0: (40, 0.07, 0.012), 2.0: (80, 0.07, 0.008), 4.0: (80, 0.1, 0.004), 8.0: (160, 0.1, 0.002)}
_QUICK = 6_000
#: Settings that DP-MAC was tried with on the images held back, as far as there is a record: coordinates by 30, 10 and 5 steps
#: of Adam, by 5 and by one of SGD, by one sweep; shares of the unit of sensitivity evenly, and twice for the first layer.
MAC_TRIES = 8
OURS = "DP-MAC, our settings"


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
    """The best that was found on the last 5,000 training images: see `mnist`."""
    setting = calibrated(classifier(epsilon, quick), epsilon)
    return replace(setting, shares=(2.0, 1.0), mu=100.0, z_steps=1, z_rate=1.0, z_optimizer="sweep")


def classifier_by_dpsgd(epsilon: float, quick: bool = False) -> MacSetting:
    """The same network by DP-SGD with the same batches, epochs and learning rates, the whole gradient clipped."""
    return replace(calibrated(classifier(epsilon, quick), epsilon), method="dpsgd", threshold=0.3)


def tries_of_dpsgd(epsilon: float, quick: bool = False) -> dict[str, MacSetting]:
    """DP-SGD's settings that are tried on the images held back.

    Adam has DP-MAC's learning rates, or less or more than these; plain SGD and SGD with momentum have the rate that
    `pv.train` takes, falling linearly to 0; `pv.train` itself is plain SGD with clip norm 0.1 and batches of 4,000.
    """
    own = classifier_by_dpsgd(epsilon, quick)
    found = {}
    for clip, larger in ((0.1, 1), (1.0, 1), (0.1, 4)):
        start = replace(own, threshold=clip, batch_size=larger * own.batch_size)
        where = f"clip {clip:g}, batches of {start.batch_size}"
        found[f"Adam, DP-MAC's rates, {where}"] = start
        if larger > 1:
            found[f"Adam, three times these, {where}"] = replace(start, rate=own.rate * 3)
        else:
            found[f"Adam, a third of these, {where}"] = replace(start, rate=own.rate / 3)
        for momentum in (0.0, 0.9):
            descent = replace(start, optimizer="sgd", momentum=momentum, learning_rates=linearly(own.epochs))
            what = f"SGD with momentum {momentum:g}" if momentum else "plain SGD"
            rate = float(f"{(1 - momentum) * ruled_rate(descent):.3g}")
            found[f"{what}, the rule's rate, {where}"] = replace(descent, rate=rate)
    return found


def tries_of_dpmac(epsilon: float, quick: bool = False) -> dict[str, MacSetting]:
    """DP-MAC's settings that are tried beside them: ours, with larger batches and learning rates."""
    own = tuned_classifier(epsilon, quick)
    found = {f"{OURS}, batches of {own.batch_size}": own}
    for larger, more in ((2, 1.5), (4, 1.0), (4, 2.0), (4, 3.0)):
        setting = replace(own, batch_size=larger * own.batch_size, rate=more * own.rate)
        found[f"{OURS}, batches of {setting.batch_size}, rates x {more:g}"] = setting
    return found


def ruled_rate(setting: MacSetting) -> float:
    """The learning rate that `pv.train` would take for plain SGD: by public numbers alone."""
    return learning_rate("SGD", plan_of(setting), examples_of(setting), "mlp", 0.0)


def held_back(setting: MacSetting) -> MacSetting:
    """The same on all but the last 5,000 training images, judged on these."""
    return replace(setting, held=True)


def classifier_without_noise(quick: bool = False) -> MacSetting:
    """DP-MAC without noise in training, behind the projection of the largest epsilon."""
    return replace(classifier(8.0, quick), noise=None)


def autoencoder(epsilon: float, quick: bool = False) -> MacSetting:
    """The paper's autoencoder with its noise, or without any."""
    noise, _, size = _USPS_NOISE.get(epsilon, (None, None, 500))
    epochs, threshold = (6 if quick else 50), 0.001 if noise else 1e6
    return MacSetting("usps", epochs, size, 0.003, falling(0.97), threshold, noise=noise, z_rate=0.001, gain=1.0)


def tuned_autoencoder(epsilon: float, quick: bool = False) -> MacSetting:
    """Sweeps, and the rest as found on the images that are in neither set: see `usps`."""
    if math.isinf(epsilon):
        epochs = 6 if quick else 80
        return MacSetting(
            "usps", epochs, 100, 0.001, linearly(epochs), 1e6, gain=1.0, middle=1.0,
            mu=1000.0, z_steps=1, z_rate=1.0, z_optimizer="sweep",
        )  # fmt: skip
    epochs, rate, decay = _USPS_OURS[epsilon]
    epochs = 20 if quick else epochs
    return MacSetting(
        "usps", epochs, 1000, rate, linearly(epochs), (1.0, 1.2, 3.0, 3.0, 1.2, 1.0), epsilon=epsilon,
        optimizer="sgd", momentum=0.9, weight_decay=decay, gain=0.7, middle=0.5,
        shares=(2.5, 2.0, 1.0, 1.0, 2.0, 2.5), mu=100.0, z_steps=1, z_rate=1.0, z_optimizer="sweep",
    )  # fmt: skip


def autoencoder_by_dpsgd(epsilon: float, quick: bool = False) -> MacSetting:
    """DP-SGD as the paper compares it, its learning rate read over its clip norm."""
    _, noise, size = _USPS_NOISE.get(epsilon, (None, None, 500))
    rate, epochs = (0.03 if noise is None else 0.03 / 0.01), 20 if quick else 100
    return MacSetting("usps", epochs, size, rate, "constant:start=1", 0.01, "dpsgd", noise, optimizer="sgd", gain=1.0)


def tuned_autoencoder_by_dpsgd(epsilon: float, quick: bool = False) -> MacSetting:
    """DP-SGD from our setting's weights with its batches, epochs and weight decay; clip norm and rate of its own."""
    own = tuned_autoencoder(epsilon, quick)
    rate = own.rate if math.isinf(epsilon) else 0.05
    return MacSetting(
        "usps", own.epochs, own.batch_size, rate, own.learning_rates, 3.0, "dpsgd", epsilon=own.epsilon,
        optimizer=own.optimizer, momentum=own.momentum, weight_decay=own.weight_decay, gain=own.gain, middle=own.middle,
    )  # fmt: skip


def linearly(epochs: int) -> str:
    """The spec of learning rates that fall to 0 over `epochs`."""
    return f"poly:k=1,end=0,period={epochs},start=1"
