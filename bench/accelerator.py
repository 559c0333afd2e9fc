"""Private steps of eight networks beside plain ones and beside Opacus, on an accelerator.

`python bench/accelerator.py [--device cuda] [--small] [--only NAME ...] [--ways WAY ...]
[--seconds S] [--largest] [--profile] [--out FILE.jsonl] [--noise NUMBERS ...]`. Each network is
measured by itself and written as soon as it is measured, so that a limit of time loses nothing. A
network that fails is reported, and the next one is measured. Weights are random, and nothing is
downloaded. `--small` has the same networks in a size for a processor. A figure is the median of the
steps' times, device included; memory is the peak above the weights.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.core.mechanisms.noise import add_gaussian, add_on_grid
from tests.support.vision import make_torchvision_importable

CLASSES, CLIP_NORM = 10, 1.0
#: Steps that are not timed, and steps that are.
WARM_UP, STEPS = 3, 8
#: Doublings of the batch that `--largest` tries.
DOUBLINGS = 8

Batch = tuple[Tensor, Tensor]
Step = Callable[[], None]


@dataclass(frozen=True)
class Network:
    """A network, its batch, and (model, batch) to one loss for each example."""

    name: str
    make: Callable[[], nn.Module]
    batch: Batch
    loss: Callable[[nn.Module, Batch], Tensor]
    precision: str | None = None


@dataclass
class Row:
    """What was measured of one network: milliseconds, MiB, and what could not be measured."""

    network: str
    parameters: int = 0
    examples: int = 0
    milliseconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


# Networks


def draw_images(examples: int, size: int, channels: int = 3) -> Batch:
    """Random images and classes."""
    drawn = torch.Generator().manual_seed(0)
    return (
        torch.randn(examples, channels, size, size, generator=drawn),
        torch.randint(CLASSES, (examples,), generator=drawn),
    )


def draw_tokens(examples: int, length: int, vocabulary: int) -> Batch:
    """Random tokens and classes."""
    drawn = torch.Generator().manual_seed(0)
    return (
        torch.randint(vocabulary, (examples, length), generator=drawn),
        torch.randint(CLASSES, (examples,), generator=drawn),
    )


def number_positions(tokens: Tensor) -> Tensor:
    """Positions of each example: Opacus needs them beside every example."""
    return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)


def classify(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the class."""
    outputs = model(batch[0])
    scores = getattr(outputs, "logits", outputs).float()
    return F.cross_entropy(scores, batch[1], reduction="none")


def classify_text(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the class of a text."""
    scores = model(batch[0], position_ids=number_positions(batch[0])).logits.float()
    return F.cross_entropy(scores, batch[1], reduction="none")


def segment(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of maps: the class of a pixel is whether it is positive."""
    target = (batch[0][:, 0] > 0).long()
    return F.cross_entropy(model(batch[0]).float(), target, reduction="none").mean((1, 2))


def predict_tokens(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the next token."""
    scores = model(batch[0], position_ids=number_positions(batch[0])).logits.float()
    losses = F.cross_entropy(scores[:, :-1].transpose(1, 2), batch[0][:, 1:], reduction="none")
    return losses.mean(1)


def make_mlp() -> nn.Module:
    """An MLP of two hidden layers of 1,000."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 1000),
        nn.ReLU(),
        nn.Linear(1000, 1000),
        nn.ReLU(),
        nn.Linear(1000, CLASSES),
    )


class UNet(nn.Module):
    """A 2-D U-Net with group norm, three levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [
                self._block(3, width),
                self._block(width, 2 * width),
                self._block(2 * width, 4 * width),
            ]
        )
        self.up = nn.ModuleList([self._block(6 * width, 2 * width), self._block(3 * width, width)])
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(8, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(8, outputs),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores of two classes for each pixel."""
        levels = [self.down[0](x)]
        for block in list(self.down)[1:]:
            levels.append(block(F.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, levels.pop()], 1))
        scores: Tensor = self.head(x)
        return scores


class Residual(nn.Module):
    """A block of a ResNet: two convolutions, or a bottleneck of three, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        self.body = nn.Sequential(
            *(
                [*convolve(inputs, width, 1), nn.ReLU(), *convolve(width, width, 3, stride)]
                if bottleneck
                else convolve(inputs, width, 3, stride)
            ),
            nn.ReLU(),
            *convolve(width, outputs, 1 if bottleneck else 3),
        )
        is_same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if is_same else nn.Sequential(*convolve(inputs, outputs, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps."""
        return F.relu(self.body(x) + self.shortcut(x))


def convolve(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """A convolution and its group norm."""
    padding = size // 2
    return [
        nn.Conv2d(inputs, outputs, size, stride, padding, bias=False),
        nn.GroupNorm(32, outputs),
    ]


def make_resnet(blocks: tuple[int, ...], bottleneck: bool) -> Callable[[], nn.Module]:
    """A ResNet (He et al. 2016) with group norm, without operations in place: Opacus has none."""

    def make() -> nn.Module:
        layers: list[nn.Module] = [*convolve(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        width, inputs = 64, 64
        for level, number in enumerate(blocks):
            for block in range(number):
                stride = 2 if level and block == 0 else 1
                layers.append(Residual(inputs, width, stride, bottleneck))
                inputs = 4 * width if bottleneck else width
            width *= 2
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
        return nn.Sequential(*layers, *head)

    return make


def make_vit(small: bool) -> nn.Module:
    """A vision transformer of timm."""
    make_torchvision_importable()
    import timm

    name, size = ("vit_tiny_patch16_224", 32) if small else ("vit_base_patch16_224", 224)
    model: nn.Module = timm.create_model(name, num_classes=CLASSES, img_size=size)
    return model


def make_bert(small: bool) -> nn.Module:
    """BERT-base with dropout."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    config = BertConfig(num_labels=CLASSES, **(sizes if small else {}))
    return BertForSequenceClassification(config)


def make_gpt2(small: bool, lora: bool = False) -> nn.Module:
    """GPT-2 small, whole or with LoRA."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**ends, **(sizes if small else {})))
    return add_lora(model, ["c_attn"]) if lora else model


def make_llama(small: bool) -> nn.Module:
    """A Llama of a billion parameters with LoRA."""
    from transformers import LlamaConfig, LlamaForCausalLM

    large = {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
    }
    little = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 1000,
    }
    model = LlamaForCausalLM(LlamaConfig(**(little if small else large)))
    return add_lora(model, ["q_proj", "v_proj"])


def add_lora(model: nn.Module, modules: list[str]) -> nn.Module:
    """The model with adapters of rank 8, which alone are trained."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=8, target_modules=modules, task_type="CAUSAL_LM")
    adapted: nn.Module = get_peft_model(model, config)  # type: ignore[arg-type]
    return adapted


def list_networks(small: bool) -> Iterator[Network]:
    """The eight networks; GPT-2 twice."""
    images = draw_images(2, 32) if small else draw_images(64, 224)
    little = draw_images(4, 32) if small else draw_images(512, 32)
    words = draw_tokens(2, 16, 1000) if small else draw_tokens(64, 128, 30_000)
    text = draw_tokens(2, 16, 1000) if small else draw_tokens(16, 512, 30_000)
    digits = draw_images(64 if small else 4096, 28, 1)
    scans = draw_images(2, 32) if small else draw_images(32, 128)
    yield Network("MLP 784-1000-1000-10", make_mlp, digits, classify)
    yield Network("ResNet-18, group norm", make_resnet((2, 2, 2, 2), False), little, classify)
    yield Network("ResNet-50, group norm", make_resnet((3, 4, 6, 3), True), images, classify)
    yield Network("ViT-B/16", lambda: make_vit(small), images, classify)
    yield Network("BERT-base", lambda: make_bert(small), words, classify_text)
    yield Network("GPT-2 small, whole", lambda: make_gpt2(small), text, predict_tokens)
    yield Network("GPT-2 small, LoRA", lambda: make_gpt2(small, True), text, predict_tokens)
    yield Network("Llama 1B, LoRA, bf16", lambda: make_llama(small), text, predict_tokens, "bf16")
    yield Network("U-Net", lambda: UNet(16 if small else 64), scans, segment)


# Steps


def move(batch: Batch, device: str) -> Batch:
    """The batch on a device."""
    return batch[0].to(device), batch[1].to(device)


def select_trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def build(network: Network, device: str) -> nn.Module:
    """The network on a device, where its weights are drawn, too: a billion take long elsewhere."""
    with torch.device(device):
        model = network.make()
    return model.to(device).train()


def make_plain(network: Network, device: str) -> Step:
    """PyTorch's step, without privacy."""
    model = build(network, device)
    optimizer = torch.optim.SGD(select_trained(model), lr=0.01)
    batch = move(network.batch, device)
    low = network.precision == "bf16"

    def step() -> None:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=low):
            value = network.loss(model, batch).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def make_private(network: Network, device: str) -> Step:
    """privlearn's step with secure noise, in the user's own loop."""
    model = build(network, device)
    optimizer = torch.optim.SGD(select_trained(model), lr=0.01)
    examples = len(network.batch[0])
    loader = DataLoader(TensorDataset(*network.batch), batch_size=examples)
    options = {} if network.precision is None else {"precision": network.precision}
    run = pv.make_private(
        model,
        optimizer,
        loader,
        epochs=1000,
        noise_multiplier=1.0,
        max_grad_norm=CLIP_NORM,
        sampling="full",
        adjacency="add_remove",
        examples=examples,
        **options,
    )
    batches = iter(run.batches())

    def step() -> None:
        run.step(next(batches), network.loss)

    return step


def make_hooks(network: Network, device: str) -> Step:
    """Opacus' step by hooks, with its fast noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(build(network, device), strict=False)
    optimizer = DPOptimizer(
        torch.optim.SGD(select_trained(model), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(network.batch[0]),
    )
    batch = move(network.batch, device)
    low = network.precision == "bf16"

    def step() -> None:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=low):
            value = network.loss(model, batch).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        for parameter in optimizer.params:
            parameter.grad_sample = None  # or it would be held until the next step

    return step


def make_ghost(network: Network, device: str) -> Step:
    """Opacus' step by ghost clipping and a second backward pass, with its fast noise."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        build(network, device), strict=False, max_grad_norm=CLIP_NORM
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(select_trained(model), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(network.batch[0]),
    )
    batch = move(network.batch, device)
    low = network.precision == "bf16"

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=low):
            losses = network.loss(model, batch)
        losses.mean().backward(retain_graph=True)
        weights = model.get_clipping_coef()
        optimizer.zero_grad(set_to_none=True)
        model.disable_hooks()
        (weights * losses).sum().backward()
        model.enable_hooks()
        optimizer.step()

    return step


WAYS: dict[str, Callable[[Network, str], Step]] = {
    "plain": make_plain,
    "privlearn": make_private,
    "Opacus hooks": make_hooks,
    "Opacus ghost": make_ghost,
}


# Measuring


def wait(device: str) -> None:
    """Wait for the device."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize()


def free(device: str) -> None:
    """Give memory back that nothing uses."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def measure_step(step: Step, device: str, steps: int) -> tuple[float, float | None]:
    """The median milliseconds of a step, and its peak memory above what there was, MiB."""
    cuda = torch.device(device).type == "cuda"
    for _ in range(min(WARM_UP, steps)):
        step()
    wait(device)
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        wait(device)
        times.append(1e3 * (time.perf_counter() - start))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else None
    return statistics.median(times), peak


def find_largest(network: Network, way: str, device: str) -> int:
    """The largest batch, by doublings, that a step has memory for."""
    largest = 0
    for doubling in range(DOUBLINGS):
        times = 1 << doubling
        rows = (network.batch[0].repeat(times, *[1] * (network.batch[0].dim() - 1)),)
        batch = rows[0], network.batch[1].repeat(times)
        wider = Network(network.name, network.make, batch, network.loss, network.precision)
        try:
            step = WAYS[way](wider, device)
            step()
            wait(device)
        except torch.OutOfMemoryError:
            break
        finally:
            step = None  # type: ignore[assignment] # or its memory would be held
            free(device)
        largest = len(batch[0])
    return largest


def measure(
    network: Network, device: str, steps: int, largest: bool, ways: Sequence[str] = tuple(WAYS)
) -> Row:
    """All that is measured of one network."""
    row = Row(network.name, examples=len(network.batch[0]))
    try:
        row.parameters = sum(weight.numel() for weight in select_trained(build(network, device)))
    except Exception as error:
        row.failed["network"] = describe_error(error)
        return row
    for way in ways:
        make = WAYS[way]
        try:
            torch.manual_seed(0)
            step = make(network, device)
            milliseconds, peak = measure_step(step, device, steps)
            row.milliseconds[way] = round(milliseconds, 2)
            if peak is not None:
                row.memory[way] = round(peak)
            del step
            free(device)
            if largest and way in ("plain", "privlearn"):
                row.largest[way] = find_largest(network, way, device)
        except Exception as error:  # the next way is measured all the same
            row.failed[way] = describe_error(error)
        free(device)
    return row


def describe_error(error: Exception) -> str:
    """The kind and the beginning of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def describe(row: Row) -> str:
    """A line of the table."""
    plain = row.milliseconds.get("plain")
    cells = [f"{row.network:24s}{row.parameters / 1e6:8.2f}{row.examples:7d}"]
    for way in WAYS:
        time_of_step = row.milliseconds.get(way)
        if time_of_step is None:
            cells.append(f"{'–':>17s}")
            continue
        ratio = f"({time_of_step / plain:.2f})" if plain and way != "plain" else ""
        cells.append(f"{time_of_step:10.1f}{ratio:>7s}")
    for way in WAYS:
        cells.append(f"{row.memory.get(way, '–'):>8}")
    if row.largest:
        cells.append("  largest batch " + ", ".join(f"{k} {v}" for k, v in row.largest.items()))
    return "".join([*cells, *(f"\n    {way}: {why}" for way, why in row.failed.items())])


def measure_noise(numbers: int, device: str, steps: int) -> dict[str, Any]:
    """Milliseconds of noise on a tensor of so many numbers: torch's, which is not secure, and a
    release's.
    """
    row: dict[str, Any] = {"noise on": numbers}
    try:
        value = torch.zeros(numbers, device=device)
        stream = pv.Streams.new(cipher="chacha20").noise
        row["torch"], _ = measure_step(lambda: value.add_(torch.randn_like(value)), device, steps)
        for way, ours in (("float", False), ("grid", True)):
            value.zero_()
            add = add_on_grid if ours else add_gaussian
            options = (1.0, 1.0) if ours else (1.0,)
            row[way], row[f"{way} MiB"] = measure_step(
                lambda add=add, options=options: add([value], *options, stream), device, steps
            )
    except Exception as error:
        row["failed"] = describe_error(error)
    free(device)
    return row


def profile(network: Network, device: str, steps: int) -> str:
    """Where a private step's time goes: launches and waits, and the longest kernels."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.device(device).type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    torch.manual_seed(0)
    step = make_private(network, device)
    for _ in range(WARM_UP):
        step()
    wait(device)
    with torch.profiler.profile(activities=kinds) as profiler:
        for _ in range(steps):
            step()
        wait(device)
    events = profiler.key_averages()
    calls = {event.key: event.count / steps for event in events}
    asked = {
        name: round(number, 1)
        for name, number in calls.items()
        if any(word in name for word in ("LaunchKernel", "Synchronize", "Memcpy", "Malloc"))
    }
    by = "self_device_time_total" if len(kinds) > 1 else "self_cpu_time_total"
    longest = events.table(sort_by=by, row_limit=12, max_name_column_width=60)
    return f"{network.name}: a step asks for {asked}\n{longest}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Private steps beside plain ones on a device.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a processor")
    parser.add_argument("--only", nargs="*", default=[], help="networks whose names contain one")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no network after that")
    parser.add_argument("--largest", action="store_true", help="find the largest batches, too")
    parser.add_argument("--profile", action="store_true", help="say where a step's time goes")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, help="write rows to this file, as JSON lines")
    parser.add_argument(
        "--noise", type=int, nargs="*", metavar="NUMBERS", help="measure noise of these sizes alone"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for numbers in options.noise or ():
        print(measure_noise(numbers, options.device, options.steps), flush=True)
    if options.noise is not None:
        return
    start = time.perf_counter()
    titles = "".join(f"{way:>17s}" for way in WAYS)
    print(f"{'network':24s}{'params M':>8s}{'batch':>7s}{titles}    MiB of each", flush=True)
    for network in list_networks(options.small):
        if options.only and not any(part in network.name for part in options.only):
            continue
        if time.perf_counter() - start > options.seconds:
            print(f"{network.name:24s} left out: no time", flush=True)
            continue
        if options.profile:
            print(profile(network, options.device, options.steps), flush=True)
            continue
        row = measure(network, options.device, options.steps, options.largest, options.ways)
        print(describe(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    main()
