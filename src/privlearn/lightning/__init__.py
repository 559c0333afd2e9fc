"""Private training:
`Trainer(strategy=pv.lightning.PrivateStrategy(epsilon=3, delta=1e-5, max_grad_norm=1.0))`.

lightning has to be installed (`pip install privlearn[lightning]`).
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
