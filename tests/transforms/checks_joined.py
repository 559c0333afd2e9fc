"""Named checks of the encoder that was trained on drawn images, and of its features beside those of
random units.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

from privlearn.core.transform import from_json
from privlearn.errors import BadInput
from privlearn.transforms import ScatterRandom, parse
from privlearn.transforms import drawn_encoder as encoder_module
from privlearn.transforms.drawn_encoder import DrawnEncoder, WithEncoder
from tests.support.checks import check, must_raise
from tests.transforms.checks_encoders import SIZE, few_images

SHAPE = (3, SIZE, SIZE)


def joined(mirror: int = 1) -> WithEncoder:
    with few_images(60):
        found = ScatterRandom(units=9, mirror=mirror, kept=20, encoded=30).module(SHAPE)
    assert isinstance(found, WithEncoder)
    return found


def photographs(seed: int = 1, rows: int = 6) -> torch.Tensor:
    return torch.rand(rows, *SHAPE, generator=torch.Generator().manual_seed(seed))


@check
def check_the_encoder_by_hand() -> None:
    """Convolutions that are added to what they were given where shapes allow, averaged over 4 x 4
    parts.
    """
    weights = encoder_module._weights()
    x = photographs()
    maps = 2 * x.double() - 1
    for index in range(7):
        weight, bias = (weights[f"{name}{index}"].double() for name in ("weight", "bias"))
        made = F.conv2d(maps, weight, bias, 2 if index in (0, 3, 5) else 1, weight.shape[-1] // 2)
        maps = (maps + made if maps.shape == made.shape else made).relu()
    assert maps.shape == (6, 256, 2, 2)  # of 16 x 16 pixels
    plain = joined(mirror=0).encoder
    expected = maps.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(plain.answers(x), expected.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(plain(x).norm(dim=1), torch.full((6,), 30**0.5))


@check
def check_joined_features_of_an_example_are_its_own() -> None:
    made, x, others = joined(), photographs(), photographs(2)
    others[2] = x[2]
    torch.testing.assert_close(made(others)[2], made(x)[2], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(made(x[2:3])[0], made(x)[2], rtol=1e-3, atol=1e-3)
    assert made(x[:0]).shape == (0, 50)
    torch.testing.assert_close(made(x)[:, :20], made.units(x))
    # as `normalises` says
    torch.testing.assert_close(made(x).norm(dim=1), torch.full((6,), 50**0.5))


@check
def check_the_encoder_sees_mirror_images_alike_where_wanted() -> None:
    x = photographs()
    both, one = joined().encoder, joined(mirror=0).encoder
    torch.testing.assert_close(both(x.flip(-1)), both(x), rtol=1e-3, atol=1e-3)
    assert float((one(x.flip(-1)) - one(x)).abs().max()) > 0.05
    assert float((both(x.flip(-2)) - both(x)).abs().max()) > 0.05


@check
def check_shipped_weights_are_those_of_the_recipe() -> None:
    """Others are refused; a published model has its own."""
    encoder_module._weights.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "drawn_encoder.safetensors"
        found = bytearray(encoder_module._FILE.read_bytes())
        found[-1] ^= 1
        other.write_bytes(bytes(found))
        with mock.patch.object(encoder_module, "_FILE", other):
            must_raise(BadInput, encoder_module._weights)
    encoder_module._weights.cache_clear()
    made = joined()
    assert encoder_module.DIGEST in str(made.describe())
    empty = ScatterRandom.empty(
        {"spec": made.spec, "shape": made.units.shape, "local": made.units.local}
    )
    empty.load_state_dict(made.state_dict())
    torch.testing.assert_close(empty(photographs()), made(photographs()))


@check
def check_the_encoder_is_for_images_in_colour_and_written_where_it_is() -> None:
    own = ScatterRandom(encoded=500)
    assert own.output_shape((3, 32, 32)) == (2500,)
    assert parse(own.spec) == from_json(own.to_json()) == own
    # as before there was one
    assert "encoded" not in ScatterRandom().spec + str(ScatterRandom().to_json())
    odd: tuple[Any, ...] = ((32, 32), (1, 32, 32), (4, 32, 32))
    for shape in odd:
        must_raise(BadInput, lambda shape=shape: own.output_shape(shape))
        must_raise(BadInput, lambda shape=shape: own.module(shape))
    must_raise(BadInput, lambda: ScatterRandom(encoded=-1))
    must_raise(BadInput, lambda: DrawnEncoder.learned(True, 4097, SHAPE))
