"""What a method returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.budget import Budget
from privlearn.accounting.ledger import Ledger
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

    from privlearn.methods.checkpoint import Checkpoint


@final
class PrivateDiagnostics(Mapping[str, Any]):
    """Figures computed on private data without a release: for the curator's eyes. `publish` refuses them."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self._figures = dict(figures)

    def __getitem__(self, key: str) -> Any:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"PrivateDiagnostics with [{', '.join(map(repr, self._figures))}]: not covered by the guarantee"


@final
@dataclass(frozen=True)
class Result:
    """A trained model with everything needed to publish it.

    Attributes:
        model: takes raw inputs; its weights are covered by the guarantee.
        ledger: what was spent, this run included.
        adjacency: the kind of neighbour.
        delta: where epsilon is stated.
        budget: the target that was set, if any.
        method: the name of the method.
        settings: public numbers of the run, for the certificate and the card.
        architecture: how to rebuild the model (`publish` fills in what it can).
        seeded: whether somebody may know the random streams' seed.
        private_diagnostics: not covered by the guarantee.
        checkpoint: the file that the run was kept in, which `publish` deletes.
        model_spec: what `models.build` makes the network of, where the method built it by a name; else None.
        classes: how many it has then.
    """

    model: nn.Module
    ledger: Ledger
    adjacency: Adjacency
    delta: float | None
    budget: Budget | None
    method: str
    settings: dict[str, Any]
    architecture: dict[str, Any]
    seeded: bool
    private_diagnostics: PrivateDiagnostics
    checkpoint: Checkpoint | None = None
    model_spec: str | None = None
    classes: int | None = None

    def stated_delta(self, delta: float | None = None) -> float:
        """The delta to state epsilon at: `delta`, else the plan's.

        Raises:
            BadInput: neither is there.
        """
        found = delta if delta is not None else self.delta
        if found is None:
            raise BadInput("the plan was not calibrated to a delta: give one, for example delta=1e-5")
        return found
