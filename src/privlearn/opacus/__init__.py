"""Scripts that were written for Opacus: `from privlearn.opacus import PrivacyEngine`.

Opacus need not be installed. What is the same and what is not: docs/coming-from-opacus.md.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
