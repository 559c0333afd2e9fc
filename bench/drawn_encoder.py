"""An encoder trained on images that a program draws, without labels: does it lift CIFAR-10's
default features?

`python bench/drawn_encoder.py [--steps 3000] [--folder DIR] [--seed 0] [--quick]` trains it. Each
batch is drawn anew from the seed and the step, so that an interrupted run goes on from its last
checkpoint with the same images. No data have a part in it: what it learns is public.
`bench/encoder_probe.py` judges its checkpoints.

Images are dead leaves, whose textures are noise with a falling spectrum and the output of small
random generators (Baradad et al. 2021, "Learning to see by looking at noise"). The loss is
alignment and uniformity (Wang and Isola 2020) of two views of each image.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Generator, Tensor, nn
from torch.nn import functional as F

CANVAS, SIDE = 48, 32
PAIRS, RATE, EMA = 128, 2e-3, 0.995


def uniform(g: Generator, low: float, high: float, *shape: int) -> Tensor:
    """Numbers between low and high."""
    return low + (high - low) * torch.rand(shape, generator=g)


def coloured(g: Generator, maps: Tensor) -> Tensor:
    """Maps (rows, 3, ...) in colours that mix by a random matrix of each row, mostly grey, in [0,
    1].
    """
    rows = len(maps)
    mix = torch.randn(rows, 3, 3, generator=g) * uniform(g, 0.1, 0.6, rows, 1, 1) + torch.tensor(
        [1.0, 0, 0]
    )
    mixed = torch.einsum("rij,rjhw->rihw", mix, maps)
    scale = uniform(g, 0.1, 0.35, rows, 1, 1, 1) / (mixed.std((1, 2, 3), keepdim=True) + 1e-3)
    return (mixed * scale + uniform(g, 0.2, 0.8, rows, 3, 1, 1)).clamp(0, 1)


def spectra(g: Generator, rows: int) -> Tensor:
    """Noise whose spectrum falls by a random power, faster along one axis than along the other."""
    steps = torch.fft.fftfreq(CANVAS)
    powers = uniform(g, 0.5, 2.2, rows, 1, 1, 1), uniform(g, 0.5, 2.2, rows, 1, 1, 1)
    angle, squeeze = uniform(g, 0, math.pi, rows, 1, 1, 1), uniform(g, 1, 4, rows, 1, 1, 1)
    across, along = steps[None, None, :, None], steps[None, None, None, :]
    u, v = angle.cos() * across + angle.sin() * along, angle.cos() * along - angle.sin() * across
    frequency = ((u * squeeze).square() + v.square()).sqrt().clamp(min=1 / CANVAS)
    falling = frequency ** -(powers[0] + powers[1]).div(2)
    maps = torch.fft.ifft2(
        torch.fft.fft2(torch.randn(rows, 3, CANVAS, CANVAS, generator=g)) * falling
    ).real
    maps = maps / maps.std((1, 2, 3), keepdim=True)
    bend = uniform(g, 0, 1, rows, 1, 1, 1)  # some with hard edges, where the noise changes its sign
    return coloured(g, bend * torch.tanh(4 * maps) + (1 - bend) * maps)


def generated(g: Generator, rows: int, groups: int = 4, width: int = 12) -> Tensor:
    """Output of small random convolutional generators, each of its own weights, with a style for
    each image.
    """
    parts = []
    for part in torch.arange(rows).chunk(groups):
        number = len(part)
        maps = torch.randn(number, width, 6, 6, generator=g)
        for _ in range(3):
            maps = F.interpolate(maps, scale_factor=2.0, mode="bilinear")
            weight = torch.randn(width, width, 3, 3, generator=g) / math.sqrt(9 * width)
            maps = F.conv2d(
                maps * (1 + 0.5 * torch.randn(number, width, 1, 1, generator=g)), weight, padding=1
            )
            noise = torch.randn(number, 1, *maps.shape[2:], generator=g) * uniform(
                g, 0, 0.4, number, 1, 1, 1
            )
            maps = F.leaky_relu(maps + noise + 0.5 * torch.randn(1, width, 1, 1, generator=g), 0.2)
            maps = maps / (maps.std((2, 3), keepdim=True) + 0.1)
        parts.append(F.conv2d(maps, torch.randn(3, width, 1, 1, generator=g) / math.sqrt(width)))
    return coloured(g, torch.cat(parts))


def leaves(g: Generator, textures: Tensor, number: int = 14) -> Tensor:
    """Ellipses, rectangles, diamonds and strokes that cover each other, each with a colour or a
    texture of its own.
    """
    rows = len(textures)
    line = torch.linspace(-1, 1, CANVAS)
    y, x = line[None, :, None], line[None, None, :]
    image = textures[torch.randperm(rows, generator=g)]
    for _ in range(number):
        angle = uniform(g, 0, math.pi, rows, 1, 1)
        size = uniform(g, math.log(0.08), math.log(0.8), rows, 1, 1).exp()
        narrow = uniform(g, math.log(0.15), 0, rows, 1, 1).exp()
        dx, dy = x - uniform(g, -1, 1, rows, 1, 1), y - uniform(g, -1, 1, rows, 1, 1)
        dy = dy + uniform(g, -1, 1, rows, 1, 1) * dx.square()  # curved
        u, v = (
            (angle.cos() * dx + angle.sin() * dy) / size,
            (angle.cos() * dy - angle.sin() * dx) / (size * narrow),
        )
        power = torch.tensor([1.0, 2.0, 2.0, 8.0])[torch.randint(4, (rows, 1, 1), generator=g)]
        inside = (
            ((u.abs() + 1e-6) ** power + (v.abs() + 1e-6) ** power)
            .sub(1)
            .mul(-8)
            .clamp(-6, 6)
            .sigmoid()
        )
        inside = inside.unsqueeze(1) * (uniform(g, 0, 1, rows, 1, 1, 1) < 0.85)
        plain, lit = (
            uniform(g, 0, 1, rows, 3, 1, 1),
            uniform(g, -0.3, 0.3, rows, 1, 1, 1) * u.unsqueeze(1).clamp(-1, 1),
        )
        share = uniform(g, 0, 1.3, rows, 1, 1, 1).clamp(0, 1)
        skin = share * textures[torch.randperm(rows, generator=g)] + (1 - share) * (plain + lit)
        image = image + inside * (skin - image)
    return image.clamp(0, 1)


def drawn(g: Generator, rows: int) -> Tensor:
    """Images (rows, 3, 48, 48) in [0, 1]: a quarter spectra, a quarter generated, half leaves with
    both as textures.
    """
    textures = torch.cat((spectra(g, rows // 4), generated(g, rows // 4)))
    more = torch.cat((textures, textures.flip(3)))[: rows - len(textures)]
    return torch.cat((textures, leaves(g, more)))


def view(g: Generator, images: Tensor) -> Tensor:
    """A crop of each image, 32 x 32, turned over at random, in other colours and contrast."""
    rows = len(images)
    scale = uniform(g, 0.15, 1, rows).sqrt()
    ratio = uniform(g, math.log(0.75), -math.log(0.75), rows).exp().sqrt()
    wide, high = (scale * ratio).clamp(max=1), (scale / ratio).clamp(max=1)
    mirror = 1 - 2 * torch.randint(2, (rows,), generator=g).float()
    theta = torch.zeros(rows, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = wide * mirror, high
    theta[:, 0, 2], theta[:, 1, 2] = (
        (1 - wide) * uniform(g, -1, 1, rows),
        (1 - high) * uniform(g, -1, 1, rows),
    )
    grid = F.affine_grid(theta, [rows, 3, SIDE, SIDE], align_corners=False)
    crops = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    mean = crops.mean((2, 3), keepdim=True)
    crops = (crops - mean) * uniform(g, 0.6, 1.4, rows, 1, 1, 1) + mean * uniform(
        g, 0.6, 1.4, rows, 1, 1, 1
    )
    grey = crops.mean(1, keepdim=True)
    colour = uniform(g, 0, 1.6, rows, 1, 1, 1) * (uniform(g, 0, 1, rows, 1, 1, 1) > 0.2)
    crops = grey + colour * (crops - grey) * uniform(g, 0.7, 1.3, rows, 3, 1, 1)
    return crops.clamp(0, 1)


class Block(nn.Module):
    """Convolution, batch norm and ReLU, added to its input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, size: int = 3):
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        self.norm, self.adds = nn.BatchNorm2d(outputs), inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs, h, w) to (rows, outputs, h / stride, w / stride)."""
        y = self.norm(self.convolution(x))
        return F.relu(x + y if self.adds else y)


class Encoder(nn.Module):
    """Seven convolutions. In evaluation, batch norm has fixed statistics of drawn images: rows do
    not meet.

    `forward` gives maps of 4 x 4 and of 8 x 8 places, averaged to 4 x 4; `codes` the points on the
    sphere of the loss.
    """

    def __init__(self, width: int = 32):
        super().__init__()
        w = width
        self.early = nn.Sequential(Block(3, w, 2, 5), Block(w, 2 * w, 1), Block(2 * w, 2 * w, 1))
        self.middle = nn.Sequential(Block(2 * w, 4 * w, 2), Block(4 * w, 4 * w, 1))
        self.late = nn.Sequential(Block(4 * w, 8 * w, 2), Block(8 * w, 8 * w, 1))
        self.head = nn.Sequential(nn.Linear(8 * w, 8 * w), nn.ReLU(), nn.Linear(8 * w, 128))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images (rows, 3, 32, 32) in [0, 1] to maps of 4 x 4 places, of the early, middle and late
        layers.
        """
        early = self.early((2 * images - 1).to(memory_format=torch.channels_last))
        middle = self.middle(early)
        return F.avg_pool2d(early, 4), F.avg_pool2d(middle, 2), self.late(middle)

    def codes(self, images: Tensor) -> Tensor:
        """Images to points of length 1, (rows, 128)."""
        return F.normalize(self.head(self(images)[2].mean((2, 3))), dim=1)


def loss_of(one: Tensor, other: Tensor) -> Tensor:
    """Alignment plus uniformity, of points of length 1 (Wang and Isola 2020, alpha = 2, t = 2)."""
    spread = sum(torch.pdist(part).square().mul(-2).exp().mean().log() for part in (one, other)) / 2
    return (one - other).square().sum(1).mean() + spread


def trained(folder: Path, steps: int, seed: int, width: int, pairs: int, every: int) -> None:
    """Train to the last step, from the last checkpoint on; `ema-STEP.pt` are averaged weights to be
    judged.
    """
    torch.manual_seed(seed)
    encoder = Encoder(width).to(memory_format=torch.channels_last)
    average = torch.optim.swa_utils.AveragedModel(
        encoder, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA), use_buffers=True
    )
    descent = torch.optim.AdamW(encoder.parameters(), RATE, weight_decay=1e-2)
    last, first, began = folder / "last.pt", 0, time.monotonic()
    if last.exists():
        state = torch.load(last, weights_only=True)
        first = state["step"]
        encoder.load_state_dict(state["encoder"])
        average.load_state_dict(state["average"])
        descent.load_state_dict(state["descent"])
    for step in range(first, steps):
        g = torch.Generator().manual_seed(seed * 1_000_000_007 + step)
        images = drawn(g, pairs)
        rate = RATE * min(1, (step + 1) / 100) * (1 + math.cos(math.pi * step / steps)) / 2
        descent.param_groups[0]["lr"] = rate
        codes = encoder.codes(torch.cat((view(g, images), view(g, images))))
        loss = loss_of(*codes.chunk(2))
        descent.zero_grad()
        loss.backward()
        descent.step()
        average.update_parameters(encoder)
        if (step + 1) % 20 == 0:
            line = {
                "step": step + 1,
                "views": 2 * pairs * (step + 1),
                "loss": round(loss.item(), 4),
            }
            print(json.dumps(line | {"seconds": round(time.monotonic() - began)}), flush=True)
        if (step + 1) % every == 0 or step + 1 == steps:
            torch.save(
                {
                    "step": step + 1,
                    "encoder": encoder.state_dict(),
                    "average": average.state_dict(),
                    "descent": descent.state_dict(),
                },
                folder / "last.tmp",
            )
            (folder / "last.tmp").replace(last)
            torch.save(average.module.state_dict(), folder / f"ema-{step + 1}.pt")


def exported(checkpoint: Path, width: int) -> bytes:
    """The convolutions as `privlearn.transforms.drawn_encoder` takes them: batch norm folded in, in
    half precision.
    """
    encoder, weights = Encoder(width), {}
    encoder.load_state_dict(torch.load(checkpoint, weights_only=True))
    blocks = [module for module in encoder.modules() if isinstance(module, Block)]
    for index, block in enumerate(blocks):
        norm = block.norm
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        weights[f"weight{index}"] = (
            (block.convolution.weight * scale[:, None, None, None]).detach().half()
        )
        weights[f"bias{index}"] = (norm.bias - norm.running_mean * scale).detach().half()
    return save({name: value.contiguous() for name, value in weights.items()})


def main() -> None:
    """Train, with a line of the loss every 20 steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("encoder"))
    parser.add_argument("--quick", action="store_true", help="two steps of a small one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.quick:
        options.steps, options.width, options.pairs = 2, 8, 16
    trained(
        options.folder, options.steps, options.seed, options.width, options.pairs, options.every
    )
    weights = exported(options.folder / f"ema-{options.steps}.pt", options.width)
    (options.folder / "drawn_encoder.safetensors").write_bytes(weights)
    print(json.dumps({"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)}))


if __name__ == "__main__":
    main()
