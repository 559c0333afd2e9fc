"""The studies by name: a folder for each paper.

A study that only computes is a module with a function `run(quick, seeds)` that returns `Findings`. Studies that train share
modules: `run(name, quick, seeds, sweep)` does one of them with the runs that `sweep` makes or remembers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, final

from privlearn._checks import count, one_of

if TYPE_CHECKING:
    from privlearn_studies.findings import Findings

_YU, _HARDER = "Yu et al. 2019", "Harder et al. 2019"
_FAY, _PAPERNOT = "Fay et al. 2020", "Papernot et al. 2018"
_SHEN = "Shen et al. 2021"
_SCHEDULES, _SWEEPS, _TASKS = "yu.schedules", "yu.sweeps", "yu.small_tasks"


@final
@dataclass(frozen=True)
class Study:
    """A table or figure that can be computed again.

    Attributes:
        name: what the command line calls it.
        source: paper, and where in it.
        what: one line on what it shows.
        module: where it is, if it trains; a study that only computes has a module of its own name, `yu-fig1` being `yu.fig1`.
    """

    name: str
    source: str
    what: str
    module: str | None = None

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
            quick: coarser curves, fewer seeds, fewer rows to train on; figures that only need computing stay the same.
            seeds: how many seeds to average over, where chance plays a part; None: as many as the study likes.
            folder: where runs that train are kept, and looked for; None: nowhere.
            jobs: how many of them at once; None: as many as there are processors.
            progress: called with (runs done, runs in all).

        Raises:
            BadInput: fewer than one seed or job.
        """
        for name, number in (("seeds", seeds), ("jobs", jobs)):
            if number is not None:
                count(name, number)
        found: Findings
        if self.module is None:
            found = import_module(f"privlearn_studies.{self.name.replace('-', '.', 1).replace('-', '_')}").run(
                quick, seeds
            )
            return found
        from privlearn_studies.sweep import Sweep

        sweep = Sweep(folder, jobs, progress)
        found = import_module(f"privlearn_studies.{self.module}").run(self.name, quick, seeds, sweep)
        return found


STUDIES = (
    Study("yu-fig1", f"{_YU}, Figure 1", "Renyi divergence against its order, with and without sampling"),
    Study("yu-fig2", f"{_YU}, Figure 2", "privacy loss over 400 epochs, by every way of accounting"),
    Study("yu-fig3", f"{_YU}, Figure 3", "privacy loss against the sampling ratio and the noise scale"),
    Study("yu-fig16", f"{_YU}, Figure 16", "where the conjectured bound on the divergence holds, and where it breaks"),
    Study("yu-table1", f"{_YU}, Table I", "what a shuffled loader, a Poisson sampler and a partition draw"),
    Study(
        "yu-table2",
        f"{_YU}, Table II",
        "accuracy by schedule under one budget, and what decay itself does",
        "yu.table2",
    ),
    Study("yu-table3", f"{_YU}, Table III", "decay rates that spend a budget in a given number of epochs"),
    Study("yu-fig4", f"{_YU}, Figure 4", "the noise over training under each schedule", _SCHEDULES),
    Study("yu-fig5", f"{_YU}, Figure 5", "the accuracy of each schedule, mean and range", _SCHEDULES),
    Study("yu-fig6", f"{_YU}, Figure 6", "accuracy at fixed training times", _SWEEPS),
    Study("yu-fig7-8", f"{_YU}, Figures 7 and 8", "accuracy and training time by decay rate", _SWEEPS),
    Study("yu-fig9", f"{_YU}, Figure 9", "accuracy by the learning rate at the end of its decay", _SWEEPS),
    Study("yu-fig10", f"{_YU}, Figure 10", "accuracy by hidden units", _SWEEPS),
    Study(
        "yu-fig11", f"{_YU}, Figure 11", "accuracy by initial noise, training time or decay rate held fixed", _SWEEPS
    ),
    Study("yu-fig12-13", f"{_YU}, Figures 12 and 13", "accuracy and privacy in training", _SCHEDULES),
    Study("yu-fig14", f"{_YU}, Figure 14", "uniform, exponential and validation-driven noise on Cancer", _TASKS),
    Study("yu-fig15", f"{_YU}, Figure 15", "uniform, exponential and validation-driven noise on CIFAR-10", _TASKS),
    Study("yu-layers", f"{_YU}, Table IV (appendix D)", "accuracy by the number of hidden layers", _SWEEPS),
    Study("dpmac-mnist", f"{_HARDER}, Table 1 (a), Figure 3", "DP-MAC's classifier on MNIST", "dpmac.mnist"),
    Study(
        "dpmac-usps", f"{_HARDER}, Table 1 (b), Figure 1", "DP-MAC's autoencoder on USPS, and DP-SGD's", "dpmac.usps"
    ),
    Study("dpmac-features", f"{_HARDER}, Figure 5", "hidden units' weights, with and without noise", "dpmac.features"),
    Study("dpmac-taylor", f"{_HARDER}, Figure 4", "one weight's objective, its expansions, and noise"),
    Study("pate-pca", f"{_FAY}, eq. 6 and 7", "the loss of principal components under noise, computed and measured"),
    Study("pate-activation", f"{_FAY}, Figures 1 and 2", "the bottleneck's activation fills the unit ball"),
    Study("pate-mnist", f"{_PAPERNOT}, Table 1", "students of noisy votes on MNIST", "pate.mnist"),
    Study(
        "best",
        "this library",
        "accuracy against epsilon with default settings, beside what is published",
        "best.accuracy",
    ),
    Study("pate-vectors", _FAY, "images as targets, by no reduction, PCA and an autoencoder", "pate.vectors"),
    Study("dfs-toy", f"{_SHEN}, toy model", "Fisher's classifier by dimension and noise, in a sparse Gaussian model"),
    Study("dfs-means", f"{_SHEN}, Figure 2", "class means of the toy model, and their distances as released"),
    Study(
        "dfs-cifar10",
        f"{_SHEN}, Figure 3",
        "features of CIFAR-10: released rows, statistics and DP-SGD",
        "dfs.features",
    ),
    Study("dfs-mnist", f"{_SHEN}, Figure 4", "MNIST: released rows, statistics and DP-SGD", "dfs.features"),
    Study("dfs-width", f"{_SHEN}, Figure 1", "DP-SGD on MNIST with wider networks", "dfs.sizes"),
    Study("dfs-depth", f"{_SHEN}, appendix A.1", "DP-SGD on MNIST with deeper networks", "dfs.sizes"),
    Study(
        "pate-segmentation", _FAY, "MRI volumes: teachers that segment, and what is public alone", "pate.segmentation"
    ),
)


def find(name: str) -> Study:
    """The study called `name`, or `BadInput` with the list of them."""
    one_of("the study", name, [study.name for study in STUDIES])
    return next(study for study in STUDIES if study.name == name)
