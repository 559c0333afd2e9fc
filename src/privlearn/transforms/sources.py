"""Features that privlearn does not make, as plans hold them: by the user's own module, or made
beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import checked, one_of, printable
from privlearn.core.transform import PublicTransform, Shape
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.core.row_transform import RowTransform

#: What is done to each row of features that were made elsewhere: mean 0 and variance 1, or nothing.
EACH_EXAMPLE, NONE = "of each example", "none"
_LONGEST, _PREFIX = 200, "precomputed by "


@final
@dataclass(frozen=True)
class External(PublicTransform):
    """A fixed module of the user's own, which `package.module:function`, called without arguments,
    returns.

    Naming it declares that it was made without the private rows. Its weights are not part of the
    published model: its name and a digest of them are, and the same are needed to predict.

    Attributes:
        name: `package.module:function`.
    """

    name: str

    kind: ClassVar[str] = "external"
    stated: ClassVar[frozenset[str]] = frozenset({"spec", "digest"})

    def __post_init__(self) -> None:
        module, _, function = (
            self.name.partition(":") if isinstance(self.name, str) else ("", "", "")
        )
        if not module or not function.isidentifier():
            raise BadInput(
                f"the features are {str(self.name)[:60]!r}: expected package.module:function"
            )

    @property
    def spec(self) -> str:
        """What `parse` reads."""
        return self.name

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of what it makes of a made-up row."""
        import torch

        with torch.no_grad():
            return tuple(self.module(shape)(torch.zeros(1, *shape, device="cpu")).shape[1:])

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """What the function returns."""
        from privlearn.transforms.modules import ExternalModule

        return ExternalModule(self.name)

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """The user's own encoder, if they name it, and it has the weights that it had."""
        import torch

        from privlearn.transforms.modules import ExternalModule

        if code != stated["spec"]:
            named = printable(stated["spec"][:80])
            raise BadInput(
                f"the model's features are made by {named}: if you trust that code and have it, "
                f"give it yourself with features={named}"
            )
        with torch.device("cpu"):  # it has its weights from elsewhere
            module = ExternalModule(str(code))
        if module.digest != stated["digest"]:
            raise BadInput(
                f"the weights of {code} are not those that the model was trained with: get the same"
            )
        return module


@checked
@final
@dataclass(frozen=True)
class Precomputed(PublicTransform):
    """Rows that are features, made elsewhere by a declared public encoder: as they are, or each
    normalised by itself.

    Naming the encoder declares that no private row had a part in it, and that each row's features
    were made of that row alone. Neither can be checked here.

    Attributes:
        name: what made the features, in words, such as "DINOv2 ViT-S/14, CLS token".
        digest: SHA-256 of the encoder's weights, if it is declared; 64 hexadecimal digits.
        normalisation: `of each example` or `none`.
    """

    name: str
    digest: str = ""
    normalisation: str = EACH_EXAMPLE

    kind: ClassVar[str] = "precomputed"
    stated: ClassVar[frozenset[str]] = frozenset({"spec", "digest", "normalisation"})

    def __post_init__(self) -> None:
        if (
            not isinstance(self.name, str)
            or not self.name.strip()
            or len(self.name) > _LONGEST
            or printable(self.name) != self.name
        ):
            raise BadInput(
                f"the encoder is {str(self.name)[:60]!r}: expected what made the features, in at "
                f"most {_LONGEST} characters"
            )
        if self.digest and not is_digest(self.digest):
            raise BadInput(
                f"the encoder's sha256 is {str(self.digest)[:70]!r}: expected 64 hexadecimal "
                "digits, or none"
            )
        one_of("normalisation", self.normalisation, (EACH_EXAMPLE, NONE))
        object.__setattr__(self, "name", self.name.strip())

    @property
    def spec(self) -> str:
        """What it is called."""
        return _PREFIX + self.name

    @property
    def normalises(self) -> bool:
        """Each row by itself if that was asked for."""
        return self.normalisation == EACH_EXAMPLE

    def output_shape(self, shape: Shape) -> Shape:
        """That of the row of features."""
        return shape

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for features of any shape."""
        from privlearn.transforms.precomputed import PrecomputedRows

        return PrecomputedRows(self)

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """The module itself: it keeps no numbers."""
        name = stated["spec"].removeprefix(_PREFIX)
        if not stated["spec"].startswith(_PREFIX):
            raise BadInput(
                f"precomputed features are {stated['spec'][:60]!r}: expected {_PREFIX!r} and an "
                "encoder"
            )
        return cls(name, stated["digest"], stated["normalisation"]).module(())


def is_digest(text: object) -> bool:
    """Whether a text can be a SHA-256: 64 hexadecimal digits."""
    return (
        isinstance(text, str) and len(text) == 64 and set(text.lower()) <= set("0123456789abcdef")
    )
