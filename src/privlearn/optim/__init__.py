"""Optimizers for noisy gradients: what they do beyond torch.optim follows from released gradients
and public numbers, and costs no privacy.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
