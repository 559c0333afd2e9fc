"""Forms that others read a certificate in: each module here is one form, under its own name."""

from __future__ import annotations

import pkgutil


def form_names() -> list[str]:
    """The names of all forms; none is imported for it."""
    return sorted(name.replace("_", "-") for _, name, _ in pkgutil.iter_modules(__path__))
