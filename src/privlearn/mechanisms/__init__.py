"""Mechanisms: where a bounded value meets its charge and its noise."""
