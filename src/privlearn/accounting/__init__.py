"""What a run costs, from its event tree: numpy alone, never torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.accounting.budget import Budget as Budget
    from privlearn.accounting.guarantee import Adjacency as Adjacency
    from privlearn.accounting.guarantee import Guarantee as Guarantee
    from privlearn.accounting.guarantee import PrivacyUnit as PrivacyUnit
    from privlearn.accounting.ledger import Ledger as Ledger

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Adjacency": "guarantee",
        "Budget": "budget",
        "Guarantee": "guarantee",
        "Ledger": "ledger",
        "PrivacyUnit": "guarantee",
    },
)
