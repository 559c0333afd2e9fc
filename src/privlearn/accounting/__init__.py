"""What a run costs: events, the measures that price them, and the ledger that adds them up."""
