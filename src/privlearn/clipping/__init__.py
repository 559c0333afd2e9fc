"""Clipping: where per-example work becomes a bounded sum, and where its sensitivity is computed."""
