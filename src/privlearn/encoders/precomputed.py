"""Features that were made elsewhere, by a declared public encoder: what is said of them, and what is still done to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._validate import one_of, printable
from privlearn.errors import BadInput

#: What is done to each row of features: mean 0 and variance 1, or nothing.
EACH_EXAMPLE, NONE = "of each example", "none"
_LONGEST, _PREFIX = 200, "precomputed by "


@final
class Precomputed(nn.Module):
    """Takes rows of features as they are, or brings each by itself to mean 0 and variance 1.

    Whoever names the encoder declares that no private row had a part in it, and that each row's features were made of that row
    alone. Neither can be checked here.

    Args:
        name: what made the features, in words, such as "DINOv2 ViT-S/14, CLS token".
        digest: SHA-256 of the encoder's weights, if it is declared; 64 hexadecimal digits.
        normalisation: `of each example` or `none`.

    Raises:
        BadInput: no name, no digest, or another normalisation.
    """

    def __init__(self, name: str, digest: str = "", normalisation: str = EACH_EXAMPLE) -> None:
        super().__init__()
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST or printable(name) != name:
            raise BadInput(
                f"the encoder is {str(name)[:60]!r}: expected what made the features, in at most {_LONGEST} characters"
            )
        if digest and not is_digest(digest):
            raise BadInput(f"the encoder's sha256 is {str(digest)[:70]!r}: expected 64 hexadecimal digits, or none")
        self.name, self.digest = name.strip(), digest
        self.normalisation = one_of("normalisation", normalisation, (EACH_EXAMPLE, NONE))

    @classmethod
    def told(cls, config: Mapping[str, Any]) -> Precomputed:
        """The one that `describe` described.

        Raises:
            BadInput: it described another.
        """
        name = config["spec"].removeprefix(_PREFIX)
        if not config["spec"].startswith(_PREFIX):
            raise BadInput(f"precomputed features are {config['spec'][:60]!r}: expected {_PREFIX!r} and an encoder")
        return cls(name, config["digest"], config["normalisation"])

    @property
    def spec(self) -> str:
        """What it is called."""
        return _PREFIX + self.name

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it: nothing that depends on a row."""
        return {"kind": "precomputed", "spec": self.spec, "digest": self.digest, "normalisation": self.normalisation}

    def forward(self, x: Tensor) -> Tensor:
        """Hand on rows of features (batch, ...)."""
        return x if self.normalisation == NONE else F.layer_norm(x.float(), x.shape[1:])


def is_digest(text: object) -> bool:
    """Whether a text can be a SHA-256: 64 hexadecimal digits."""
    return isinstance(text, str) and len(text) == 64 and set(text.lower()) <= set("0123456789abcdef")
