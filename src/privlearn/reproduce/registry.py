"""The studies by name. A study is a module with a function `run(quick, seeds)` that returns `Findings`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, final

from privlearn._validate import count, one_of

if TYPE_CHECKING:
    from privlearn.reproduce.findings import Findings

_YU = "Yu et al. 2019"


@final
@dataclass(frozen=True)
class Study:
    """A table or figure that can be computed again.

    Attributes:
        name: what the command line calls it.
        source: paper, and where in it.
        what: one line on what it shows.
    """

    name: str
    source: str
    what: str

    def run(self, quick: bool = False, seeds: int | None = None) -> Findings:
        """Compute it.

        Args:
            quick: coarser curves and fewer seeds; the figures beside the paper's stay the same.
            seeds: how many seeds to average over, where chance plays a part; None: as many as the study likes.

        Raises:
            BadInput: fewer than one seed.
        """
        if seeds is not None:
            count("seeds", seeds)
        module = import_module(f"privlearn.reproduce.{self.name.replace('-', '_')}")
        found: Findings = module.run(quick, seeds)
        return found


STUDIES = (
    Study("yu-fig1", f"{_YU}, Figure 1", "Renyi divergence against its order, with and without sampling"),
    Study("yu-fig2", f"{_YU}, Figure 2", "privacy loss over 400 epochs, by every way of accounting"),
    Study("yu-fig3", f"{_YU}, Figure 3", "privacy loss against the sampling ratio and the noise scale"),
    Study("yu-fig16", f"{_YU}, Figure 16", "where the conjectured bound on the divergence holds, and where it breaks"),
    Study("yu-table1", f"{_YU}, Table I", "what a shuffled loader, a Poisson sampler and a partition draw"),
    Study("yu-table3", f"{_YU}, Table III", "decay rates that spend a budget in a given number of epochs"),
)


def find(name: str) -> Study:
    """The study called `name`, or `BadInput` with the list of them."""
    one_of("the study", name, [study.name for study in STUDIES])
    return next(study for study in STUDIES if study.name == name)
