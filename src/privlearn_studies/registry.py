"""The studies by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, final

from privlearn._checks import count, one_of

if TYPE_CHECKING:
    from privlearn_studies.report import Findings

_YU, _HARDER = "Yu et al. 2019", "Harder et al. 2019"
_FAY, _PAPERNOT = "Fay et al. 2020", "Papernot et al. 2018"
_SHEN = "Shen et al. 2021"


@final
@dataclass(frozen=True)
class Study:
    """A table or figure that can be computed again.

    Attributes:
        name: what the command line calls it.
        source: paper, and where in it.
        what: one line on what it shows.
        place: its function (quick, seeds, runs) -> Findings, as "module:name", or
            "module:name(argument)" for one that makes such a function of an argument.
        trains: whether it makes runs, which are kept.
    """

    name: str
    source: str
    what: str
    place: str
    trains: bool = True

    def run(
        self,
        quick: bool = False,
        seeds: int | None = None,
        *,
        folder: Path | None = None,
        jobs: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Findings:
        """Compute it.

        Args:
            quick: coarser curves, fewer seeds, fewer rows to train on; figures that only need
                computing stay the same.
            seeds: how many seeds to average over, where chance plays a part; None: as many as the
                study likes.
            folder: where runs that train are kept, and looked for; None: nowhere.
            jobs: how many of them at once; None: as many as there are processors.
            progress: called with (runs done, runs in all).

        Raises:
            BadInput: fewer than one seed or job.
        """
        for name, number in (("seeds", seeds), ("jobs", jobs)):
            if number is not None:
                count(name, number)
        from privlearn_studies import runs

        module, _, name = self.place.partition(":")
        name, _, argument = name.rstrip(")").partition("(")
        function = getattr(import_module(f"privlearn_studies.{module}"), name)
        findings: Findings = (function(argument) if argument else function)(
            quick, seeds, runs.Runs(folder, jobs, progress)
        )
        return findings


STUDIES = (
    Study(
        "yu-fig1",
        f"{_YU}, Figure 1",
        "Renyi divergence against its order, with and without sampling",
        "yu2019.accounting:fig1",
        False,
    ),
    Study(
        "yu-fig2",
        f"{_YU}, Figure 2",
        "privacy loss over 400 epochs, by every way of accounting",
        "yu2019.accounting:fig2",
        False,
    ),
    Study(
        "yu-fig3",
        f"{_YU}, Figure 3",
        "privacy loss against the sampling ratio and the noise scale",
        "yu2019.accounting:fig3",
        False,
    ),
    Study(
        "yu-fig16",
        f"{_YU}, Figure 16",
        "where the conjectured bound on the divergence holds, and where it breaks",
        "yu2019.accounting:fig16",
        False,
    ),
    Study(
        "yu-table1",
        f"{_YU}, Table I",
        "what a shuffled loader, a Poisson sampler and a partition draw",
        "yu2019.tables:table1",
        False,
    ),
    Study(
        "yu-table2",
        f"{_YU}, Table II",
        "accuracy by schedule under one budget, and what decay itself does",
        "yu2019.schedules:table2",
    ),
    Study(
        "yu-table3",
        f"{_YU}, Table III",
        "decay rates that spend a budget in a given number of epochs",
        "yu2019.tables:table3",
        False,
    ),
    Study(
        "yu-fig4",
        f"{_YU}, Figure 4",
        "the noise over training under each schedule",
        "yu2019.schedules:fig4",
    ),
    Study(
        "yu-fig5",
        f"{_YU}, Figure 5",
        "the accuracy of each schedule, mean and range",
        "yu2019.schedules:fig5",
    ),
    Study(
        "yu-fig6",
        f"{_YU}, Figure 6",
        "accuracy at fixed training times",
        "yu2019.sweeps:sweep(yu-fig6)",
    ),
    Study(
        "yu-fig7-8",
        f"{_YU}, Figures 7 and 8",
        "accuracy and training time by decay rate",
        "yu2019.sweeps:sweep(yu-fig7-8)",
    ),
    Study(
        "yu-fig9",
        f"{_YU}, Figure 9",
        "accuracy by the learning rate at the end of its decay",
        "yu2019.sweeps:sweep(yu-fig9)",
    ),
    Study(
        "yu-fig10", f"{_YU}, Figure 10", "accuracy by hidden units", "yu2019.sweeps:sweep(yu-fig10)"
    ),
    Study(
        "yu-fig11",
        f"{_YU}, Figure 11",
        "accuracy by initial noise, training time or decay rate held fixed",
        "yu2019.sweeps:sweep(yu-fig11)",
    ),
    Study(
        "yu-fig12-13",
        f"{_YU}, Figures 12 and 13",
        "accuracy and privacy in training",
        "yu2019.schedules:fig12_13",
    ),
    Study(
        "yu-fig14",
        f"{_YU}, Figure 14",
        "uniform, exponential and validation-driven noise on Cancer",
        "yu2019.tasks:on_task(cancer)",
    ),
    Study(
        "yu-fig15",
        f"{_YU}, Figure 15",
        "uniform, exponential and validation-driven noise on CIFAR-10",
        "yu2019.tasks:on_task(cifar10)",
    ),
    Study(
        "yu-fig15-vgg16",
        f"{_YU}, Figure 15",
        "the same on the features of VGG16, the paper's",
        "yu2019.tasks:on_task(cifar10-vgg16)",
    ),
    Study(
        "yu-layers",
        f"{_YU}, Table IV (appendix D)",
        "accuracy by the number of hidden layers",
        "yu2019.sweeps:sweep(yu-layers)",
    ),
    Study(
        "dpmac-mnist",
        f"{_HARDER}, Table 1 (a), Figure 3",
        "DP-MAC's classifier on MNIST",
        "harder2020.mnist:run",
    ),
    Study(
        "dpmac-mnist-raw",
        f"{_HARDER}, Table 1 (a)",
        "DP-MAC's classifier on MNIST, features as the released code has them",
        "harder2020.released_features:run",
    ),
    Study(
        "dpmac-usps",
        f"{_HARDER}, Table 1 (b), Figure 1",
        "DP-MAC's autoencoder on USPS, and DP-SGD's",
        "harder2020.usps:run",
    ),
    Study(
        "dpmac-thresholds",
        f"{_HARDER}, Algorithm 2",
        "thresholds learned from a histogram, beside given ones",
        "harder2020.thresholds:run",
    ),
    Study(
        "dpmac-features",
        f"{_HARDER}, Figure 5",
        "hidden units' weights, with and without noise",
        "harder2020.features:run",
    ),
    Study(
        "dpmac-taylor",
        f"{_HARDER}, Figure 4",
        "one weight's objective, its expansions, and noise",
        "harder2020.taylor:run",
        False,
    ),
    Study(
        "pate-pca",
        f"{_FAY}, eq. 6 and 7",
        "the loss of principal components under noise, computed and measured",
        "fay2020.pca:run",
        False,
    ),
    Study(
        "pate-activation",
        f"{_FAY}, Figures 1 and 2",
        "the bottleneck's activation fills the unit ball",
        "fay2020.activation:run",
        False,
    ),
    Study(
        "pate-mnist",
        f"{_PAPERNOT}, Table 1",
        "students of noisy votes on MNIST",
        "fay2020.votes:run",
    ),
    Study(
        "best",
        "this library",
        "accuracy against epsilon with default settings, beside what is published",
        "best:run",
    ),
    Study(
        "correlated-noise",
        "Choquette-Choo et al. 2023",
        "correlated, decaying and independent noise on MNIST",
        "correlated:run",
    ),
    Study(
        "preconditioning",
        "Molina Van den Bosch et al. 2026",
        "public curvature and scale norm beside plain DP-SGD",
        "preconditioning:run",
    ),
    Study(
        "better-steps",
        "Zhang et al. 2025, Tang et al. 2023",
        "optimizers at equal epsilon: SGD, momentum, DiSK, Adam and DP-AdamBC",
        "better_steps:run",
    ),
    Study(
        "persons",
        "Charles et al. 2024",
        "persons with 1 to 64 rows: rows are drawn, or persons",
        "persons:run",
    ),
    Study(
        "small-data",
        "this library",
        "default settings with few rows and small epsilon, beside no privacy",
        "small_data:run",
    ),
    Study(
        "calibration",
        "this library",
        "log loss of the defaults, beside that at the best temperature",
        "calibration:run",
    ),
    Study(
        "public-encoders",
        "this library",
        "encoders that packages ship, on CIFAR-10 and on slices of the hippocampus",
        "public_encoders:run",
    ),
    Study(
        "six-tables",
        "this library",
        "classifiers and regressors of six tables, beside other packages",
        "six_tables.comparison:run",
    ),
    Study(
        "pate-vectors",
        _FAY,
        "images as targets, by no reduction, PCA and an autoencoder",
        "fay2020.vectors:run",
    ),
    Study(
        "dfs-toy",
        f"{_SHEN}, toy model",
        "Fisher's classifier by dimension and noise, in a sparse Gaussian model",
        "shen2021.toy:run",
        False,
    ),
    Study(
        "dfs-means",
        f"{_SHEN}, Figure 2",
        "class means of the toy model, and their distances as released",
        "shen2021.toy:means",
        False,
    ),
    Study(
        "dfs-recovery",
        f"{_SHEN}, Theorem 8",
        "how many rows private selection needs to choose exactly the true features",
        "shen2021.recovery:run",
        False,
    ),
    Study(
        "dfs-cifar10",
        f"{_SHEN}, Figure 3",
        "features of CIFAR-10: released rows, statistics and DP-SGD",
        "shen2021.features:on_data(dfs-cifar10)",
    ),
    Study(
        "dfs-mnist",
        f"{_SHEN}, Figure 4",
        "MNIST: released rows, statistics and DP-SGD",
        "shen2021.features:on_data(dfs-mnist)",
    ),
    Study(
        "dfs-width",
        f"{_SHEN}, Figure 1",
        "DP-SGD on MNIST with wider networks",
        "shen2021.sizes:width",
    ),
    Study(
        "dfs-depth",
        f"{_SHEN}, appendix A.1",
        "DP-SGD on MNIST with deeper networks",
        "shen2021.sizes:depth",
    ),
    Study(
        "pate-segmentation",
        _FAY,
        "MRI volumes: teachers that segment, and what is public alone",
        "fay2020.segmentation:run",
    ),
    Study(
        "pate-from-nothing",
        f"{_FAY}, results",
        "MRI volumes: teachers, student and DP-SGD from nothing, as in the paper",
        "fay2020.from_nothing:run",
    ),
    Study(
        "pate-tumours",
        _FAY,
        "four classes and four channels, on tumours that a program draws",
        "fay2020.four_classes:run",
    ),
)


def find(name: str) -> Study:
    """The study called `name`, or `BadInput` with the list of them."""
    one_of("the study", name, [study.name for study in STUDIES])
    return next(study for study in STUDIES if study.name == name)
