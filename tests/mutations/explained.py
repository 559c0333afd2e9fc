"""Mutations that no test can notice, each with why: they change no figure, no release and no refusal."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {}
