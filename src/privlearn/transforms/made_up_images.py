"""Generated images: random strokes, shapes and textures, of which directions of public features are
learned.

The directions in which public features differ most, among generated images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from privlearn._storage import write_durably
from privlearn.errors import BadInput
from privlearn.transforms.signs import with_fixed_signs

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

#: Pixels are drawn so many times finer, and then averaged.
_FINER = 3
_COLOURS = 3


def made_up_images(shape: Sequence[int], number: int) -> NDArray[np.float32]:
    """Random images in [0, 1], always the same ones.

    Of three channels, which are colours: overlapping shapes of more or less colour and contrast,
    with a texture whose spectrum falls as that of photographs. Of another number: half of them
    strokes on black, half overlapping shapes.

    Args:
        shape: of one image, (height, width) or (channels, height, width).
        number: how many.
    """
    rng = np.random.default_rng(0)
    height, width = shape[-2:]
    channels = 1 if len(shape) == 2 else shape[0]
    images = np.empty((number, channels, height, width), np.float32)
    for index in range(number if channels != _COLOURS else 0):
        draw = _strokes if index % 2 else _shapes
        seed = int(rng.integers(2**63))  # channels share what is drawn, in colours of their own
        images[index] = [
            draw(
                np.random.default_rng((seed, 0)),
                np.random.default_rng((seed, 1 + channel)),
                height,
                width,
            )
            for channel in range(channels)
        ]
    if channels == _COLOURS:
        for index in range(number):
            images[index] = _photograph(rng, height, width)
    return images.reshape(number, *shape)


def _photograph(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float32]:
    """Shapes in colours, with a texture over them: (3, height, width)."""
    seed = int(rng.integers(2**63))
    shapes = np.stack(
        [
            _shapes(
                np.random.default_rng((seed, 0)),
                np.random.default_rng((seed, 1 + channel)),
                height,
                width,
            )
            for channel in range(_COLOURS)
        ]
    )
    grey = rng.uniform(0, 0.8)
    shapes = (1 - grey) * shapes + grey * shapes.mean(0)
    texture = rng.uniform(0, 0.2) * _texture(rng, height, width)
    image = np.clip(rng.uniform(0.3, 1) * shapes + texture + rng.uniform(0, 0.2), 0, 1)
    return np.asarray(image, np.float32)


def _texture(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """Noise with a power spectrum between 1/f^1.4 and 1/f^3.4, mostly grey: (3, height, width),
    mean 0, variance 1.
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    white = rng.normal(size=(1, height, width)) + 0.5 * rng.normal(size=(_COLOURS, height, width))
    falling = np.maximum(frequency, 1 / max(height, width)) ** -rng.uniform(0.7, 1.7)
    texture = np.fft.ifft2(np.fft.fft2(white) * falling).real
    texture -= texture.mean((1, 2), keepdims=True)
    return np.asarray(texture / texture.std())


def _strokes(
    rng: np.random.Generator, colours: np.random.Generator, height: int, width: int
) -> NDArray[np.float32]:
    """One to three curved strokes, bright on black."""
    image, draw = _canvas(height, width, 0)
    size = np.array([width, height]) * _FINER
    for _ in range(rng.integers(1, 4)):
        ends = rng.uniform(0.15, 0.85, (4, 2)) * size
        t = np.linspace(0, 1, 24)[:, None]
        curve = (
            (1 - t) ** 3 * ends[0]
            + 3 * (1 - t) ** 2 * t * ends[1]
            + 3 * (1 - t) * t**2 * ends[2]
            + t**3 * ends[3]
        )
        thick = rng.uniform(0.05, 0.14) * min(height, width) * _FINER
        draw.line(
            [(float(x), float(y)) for x, y in curve],
            fill=int(colours.integers(192, 256)),
            width=max(1, int(thick)),
        )
    return _pixels(image, height, width)


def _shapes(
    rng: np.random.Generator, colours: np.random.Generator, height: int, width: int
) -> NDArray[np.float32]:
    """Ellipses and polygons of many sizes that cover each other (a dead-leaves model)."""
    image, draw = _canvas(height, width, int(colours.integers(256)))
    size = np.array([width, height]) * _FINER
    for _ in range(rng.integers(3, 20)):
        centre = rng.uniform(0, 1, 2) * size
        extent = min(size) / rng.uniform(1.6, 16)
        colour = int(colours.integers(256))
        if rng.random() < 0.5:
            reach = extent * np.array([0.5, rng.uniform(0.2, 0.5)])
            (left, top), (right, bottom) = centre - reach, centre + reach
            draw.ellipse([float(left), float(top), float(right), float(bottom)], fill=colour)
        else:
            corners = centre + rng.normal(0, extent / 2, (4, 2))
            draw.polygon([(float(x), float(y)) for x, y in corners], fill=colour)
    return _pixels(image, height, width)


def _pillow() -> tuple[Any, Any]:
    """Pillow's modules Image and ImageDraw.

    Raises:
        BadInput: it is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise BadInput(
            "made-up images, of which directions are learned, are drawn by Pillow, which is not "
            "installed: pip install 'privlearn[scattering]'. Or use features without kept="
        ) from error
    return Image, ImageDraw


def _canvas(height: int, width: int, grey: int) -> tuple[Image, ImageDraw]:
    pillow, draw = _pillow()
    image = pillow.new("L", (width * _FINER, height * _FINER), grey)
    return image, draw.Draw(image)


def _pixels(image: Image, height: int, width: int) -> NDArray[np.float32]:
    small = np.asarray(image.resize((width, height), _pillow()[0].Resampling.BOX), dtype=np.float32)
    return small / np.float32(255)


#: Made-up images, and what is added to a variance, as a part of the mean of those kept, before its
#: root is divided by.
_IMAGES, _ADDED = 12_000, 0.1
#: 1 would make all directions vary alike, 0 would leave them as they are.
_WHITENED = 0.7
_ROWS_AT_ONCE = 256


def learned(
    name: str,
    shape: Sequence[int],
    cache: Path | None,
    learn: Callable[[], dict[str, Tensor]],
    begin: Callable[[], None] | None = None,
) -> dict[str, Tensor]:
    """What `learn` learns from made-up images, from the cache where it was learned before.

    Args:
        name: of the features.
        shape: of one image.
        cache: a folder to keep tensors in, for learning takes a minute; None: nowhere.
        learn: called where there is nothing in the cache.
        begin: called before that.
    """
    sizes = "x".join(map(str, shape))
    # Everything that they follow from stands in the name.
    title = f"{name}-{sizes}-{_IMAGES}-{_ADDED}-{_WHITENED}".replace(":", "-").replace(",", "-")
    path = None if cache is None else cache / f"{title}.safetensors"
    if path is not None and path.exists():
        try:
            return load_file(path)
        except (SafetensorError, OSError):
            path.unlink()
    if begin:
        begin()
    tensors = learn()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(tensors))
    return tensors


def directions(
    features: Callable[[Tensor], Tensor], shape: Sequence[int], dimensions: int
) -> dict[str, Tensor]:
    """`mean` (features,) of features of made-up images, and `components` (features, kept): their
    principal directions.

    Each is over a power of its variance. That is most of whitening: directions in which features
    hardly differ count for more, and not for as much as the others. No data have a part in it.

    Args:
        features: images (rows, *shape) to features (rows, ...).
        shape: of one image.
        dimensions: how many directions.

    Raises:
        BadInput: fewer features, or made-up images, than directions.
    """
    parts, numbers = images(shape), features(images(shape, 1)[0]).numel()
    if dimensions > min(numbers, sum(map(len, parts))):
        raise BadInput(
            f"{dimensions} directions are to be kept, and there are {numbers} features: expected "
            "fewer"
        )
    rows = torch.cat([features(part).flatten(1) for part in parts])
    mean = rows.mean(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # In double precision, so that all processors have the same directions in single precision.
        _, spread, components = torch.svd_lowrank(
            (rows - mean).double(), q=min(dimensions + 100, *rows.shape), niter=3
        )
    variances = spread[:dimensions].square() / len(rows)
    scales = (variances + _ADDED * variances.mean()) ** (-_WHITENED / 2)
    scaled = components[:, :dimensions] * scales
    return {"mean": mean, "components": with_fixed_signs(scaled).to(rows).contiguous()}


def projected(features: Tensor, mean: Tensor, components: Tensor) -> Tensor:
    """Features (rows, ...) along the directions, each row brought to norm sqrt(kept): shape (rows,
    kept).
    """
    rows = (features.flatten(1) - mean) @ components
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(
        min=torch.finfo(rows.dtype).tiny
    )
    return cast(Tensor, rows / lengths * math.sqrt(rows.shape[1]))


def images(shape: Sequence[int], most: int | None = None) -> tuple[Tensor, ...]:
    """Made-up images of `shape`, all or the first `most`, in blocks."""
    pictures = torch.from_numpy(made_up_images(shape, min(_IMAGES, most or _IMAGES)))
    return pictures.split(_ROWS_AT_ONCE)  # type: ignore[no-any-return, no-untyped-call]
