"""Private training with Hugging Face's transformers and PEFT: `PrivateTrainer`, and models that are
published for them.

transformers has to be installed (`pip install privlearn[huggingface]`).
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
