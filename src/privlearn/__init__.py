"""privlearn trains deep models under differential privacy, and publishes them with a certificate
that anyone can check.

Every touch of private data is one release, charged to one ledger before its noise is drawn.
"""

from __future__ import annotations

from typing import Any

from privlearn._lazy import lazy

_named, __dir__, __all__ = lazy(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow, and seldom asked for

        return version("privlearn")
    return _named(name)
