"""privlearn: train deep models under differential privacy, and publish them with a certificate anyone can check.

Every touch of private data is one release, charged to one ledger before its noise is drawn.
"""

from __future__ import annotations

from importlib.metadata import version

from privlearn._lazy import lazy

__version__ = version("privlearn")
__getattr__, __dir__, __all__ = lazy(__name__, __file__)
