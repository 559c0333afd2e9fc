"""What a ledger holds, and where that is kept: its state, its file, and how a large file grows."""
