"""Training functions of any library, run on neighbouring data: how far does each release move, for
the sensitivity that is claimed for it?

`pytest --dp-neighbours` runs marked tests so; `compare_runs` does without pytest. How to use both:
docs/testing-privacy.md.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
