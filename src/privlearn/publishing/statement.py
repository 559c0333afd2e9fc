"""What is said of a published model: what both of its cards, Markdown and HTML, are written
from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, final

from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Guarantee
from privlearn.core.accounting.tradeoff import TradeOff, tradeoff
from privlearn.core.plan import AbstractPlan
from privlearn.methods.statistics.metric_figures import Metrics
from privlearn.publishing.certificate import PAID


class AuditReport(Protocol):
    """What `privlearn.auditing` says of an attack."""

    public: bool

    @property
    def verdict(self) -> str:
        """What was found, in two sentences."""

    def rows(self) -> list[tuple[str, str]]:
        """A label and a text each."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""

    def to_markdown(self) -> str:
        """A section of a page."""


@final
@dataclass(frozen=True, repr=False)
class Statement:
    """Public values and released ones, of one run; nothing in it follows from a row without a
    release.

    Attributes:
        event, guarantee: what the claim is about, and the claim.
        plan: of the run.
        facts: public values that only the run could tell.
        seeded: whether anyone may know the seed.
        others: what the certificate says of other runs on the ledger, if there are any.
        test_metrics: figures from test data; of 0 rows where their number is not known.
        data: what to say of the data.
        model: the network's spec, if it has one.
        signed_by: fingerprint of the key that signs the certificate, if one does.
        audit: the report of an attack on the claim, if there is one.
        use: Python of another library that loads the model; none where privlearn's commands do.
        table: what the schema declares of the table that the rows came from; None: no table.
    """

    event: Event
    guarantee: Guarantee
    plan: AbstractPlan
    facts: dict[str, Any]
    seeded: bool
    others: dict[str, Any] | None
    test_metrics: Metrics
    data: dict[str, str]
    model: str | None
    signed_by: str | None = None
    audit: AuditReport | None = None
    use: tuple[str, ...] = ()
    table: dict[str, Any] | None = None

    @cached_property
    def curve(self) -> TradeOff:
        """The most that any attack on membership achieves."""
        return tradeoff(self.event, self.guarantee.adjacency, self.guarantee.group_size)

    @property
    def paid(self) -> float | None:
        """The noise multiplier of test figures that were released with noise; None where they are
        exact.
        """
        noise: float | None = self.facts.get(PAID)
        return noise

    @property
    def trained(self) -> AbstractPlan:
        """The plan that trained the model: of a choice among candidates, that of the one that was
        chosen.
        """
        return self.plan.trained(self.facts)
