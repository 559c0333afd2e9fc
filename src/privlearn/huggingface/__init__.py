"""Private training with Hugging Face's transformers and PEFT: `PrivateTrainer`, and models that are published for them.

transformers has to be installed (`pip install privlearn[huggingface]`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.huggingface.example_losses import ExampleLoss as ExampleLoss
    from privlearn.huggingface.pretrained import load_pretrained as load_pretrained
    from privlearn.huggingface.pretrained import publish_pretrained as publish_pretrained
    from privlearn.huggingface.trainer import PrivateTrainer as PrivateTrainer

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "ExampleLoss": "example_losses",
        "PrivateTrainer": "trainer",
        "load_pretrained": "pretrained",
        "publish_pretrained": "pretrained",
    },
)
