"""What a guarantee rests on: accounting, sampling, clipping, mechanisms, plans and streams.

Nothing here imports methods, integrations, publishing or the command line.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
