"""Rows of methods as other packages have them, for entry points that checks make up."""

from __future__ import annotations

from privlearn.methods import Method

INSTALLED = Method("installed", {}, targets=frozenset({"values"}))
DPSGD = Method("dpsgd", {})
OTHER = Method("other", {})
TWICE = Method("twice", {})
