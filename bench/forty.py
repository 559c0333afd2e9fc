"""Private steps of forty networks that people train beside plain ones, in their own loops.

`python bench/forty.py [--only NAME ...] [--rounds N] [--write DOCS] [--quick]`. Steps are
alternated, on one thread; the figure is the median over rounds of the ratio of processor times,
with quartiles: clip and update, without noise. Each clipped sum is compared with that of the loop
over single examples. Texts have 64 tokens of a vocabulary of 1,000, 16 at once; images 32 to 64
pixels, 16 at once. Weights are random, also those that a network begins with at zero, behind which
no gradient would flow; and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import networks
from architecture_steps import Batch, of_classes, of_next_tokens, of_targets, texts

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from tests.clipping.architectures import configured, still
from tests.support.vision import make_torchvision_importable

#: Relative distance of the clipped sum from the loop's, in single precision.
WITHIN = 2e-3
WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY, EXAMPLES, CLASSES = 256, 4, 4, 64, 1000, 16, 10
#: Clips about half of the examples, as random weights have it.
CLIP = 3.0
#: The rows of the page: kinds of networks that most people know, and the two dearest.
ON_THE_PAGE = (
    "unet: 3-D U-Net of 16, 32 and 64 channels, 32 voxels cubed, batch 4",
    "mlp-large: MLP 784-1000-1000-10, batch 1,024",
    "cnn: CNN of 26 thousand, batch 256",
    "mlp-small: MLP 60-1000-10, batch 600",
    "Llama",
    "BERT",
    "ResNet-18 with group norm (torchvision)",
    "vit_tiny_patch16_224 (timm)",
    "resnetv2_50x1_bit (timm)",
    "lstm: LSTM of 128, length 64, batch 64",
)


@dataclass(frozen=True)
class Network:
    """A network, its examples, and (model, batch) to one loss for each."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]


def of_tensor(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of a class, of a model of one tensor."""
    return F.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


def _classes(decoder: bool = False) -> Batch:
    return texts(EXAMPLES, LENGTH, VOCABULARY, decoder) | {
        "labels": torch.arange(EXAMPLES) % CLASSES
    }


def _without_positions(batch: Batch) -> Batch:
    return {name: leaf for name, leaf in batch.items() if name != "position_ids"}


def _images(size: int) -> Callable[[], Batch]:
    drawn = torch.Generator().manual_seed(0)
    return lambda: {
        "x": torch.randn(EXAMPLES, 3, size, size, generator=drawn),
        "labels": torch.arange(EXAMPLES) % CLASSES,
    }


_USUAL: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "intermediate_size": 4 * WIDTH,
    "max_position_embeddings": LENGTH + 8,
    "pad_token_id": 0,
    "num_labels": CLASSES,
}
_GPT: dict[str, Any] = {
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": LENGTH,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_T5: dict[str, Any] = {
    "d_model": WIDTH,
    "d_kv": 64,
    "d_ff": 4 * WIDTH,
    "num_layers": LAYERS // 2,
    "num_heads": HEADS,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
#: Encoders with a class, by name: their configuration, and what differs from the usual one.
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertConfig", "BertForSequenceClassification", {}),
    "RoBERTa": ("RobertaConfig", "RobertaForSequenceClassification", {}),
    "DistilBERT": (
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 4 * WIDTH},
    ),
    "ALBERT": ("AlbertConfig", "AlbertForSequenceClassification", {"embedding_size": WIDTH // 2}),
    "ELECTRA": (
        "ElectraConfig",
        "ElectraForSequenceClassification",
        {"embedding_size": WIDTH // 2},
    ),
    "DeBERTa-v2": ("DebertaV2Config", "DebertaV2ForSequenceClassification", {}),
    "MPNet": ("MPNetConfig", "MPNetForSequenceClassification", {}),
    "ConvBERT": ("ConvBertConfig", "ConvBertForSequenceClassification", {"embedding_size": WIDTH}),
    "FNet": ("FNetConfig", "FNetForSequenceClassification", {}),
}
#: Decoders with the next token.
DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", _GPT),
    "OPT": ("OPTConfig", "OPTForCausalLM", {"ffn_dim": 4 * WIDTH, "word_embed_proj_dim": WIDTH}),
    "BLOOM": ("BloomConfig", "BloomForCausalLM", {"n_layer": LAYERS, "n_head": HEADS}),
    "GPT-NeoX": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "Phi": ("PhiConfig", "PhiForCausalLM", {}),
    "Llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "Mistral": ("MistralConfig", "MistralForCausalLM", {"num_key_value_heads": 2}),
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"num_key_value_heads": 2}),
    "Gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", {"num_key_value_heads": 2, "head_dim": 64}),
    "Mamba": ("MambaConfig", "MambaForCausalLM", {"state_size": 8}),
}
#: Models of timm, with the size of their images.
IMAGES: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (64, {"img_size": 64, "patch_size": 8}),
    "cait_xxs24_224": (64, {"img_size": 64, "patch_size": 8, "depth": 6}),
    "swin_tiny_patch4_window7_224": (64, {"img_size": 64, "window_size": 4}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56}),
    "mixer_s16_224": (64, {"img_size": 64}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "poolformer_s12": (64, {}),
    "convnext_atto": (64, {}),
    "resnetv2_50x1_bit": (64, {}),
    "nf_resnet26": (64, {}),
}


def _transformer(config: str, model: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    return configured(config, model, **({} if settings is _GPT else _USUAL) | settings)


def _of_timm(name: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        torch.manual_seed(0)
        return still(timm.create_model(name, num_classes=CLASSES, **options))

    return make


def _resnet(layers: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        torch.manual_seed(0)
        network: nn.Module = getattr(torchvision.models, f"resnet{layers}")(
            num_classes=CLASSES, norm_layer=lambda width: nn.GroupNorm(min(32, width), width)
        )
        return network

    return make


class _LastState(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.head(self.layer(x)[0][:, -1])
        return scores


def _recurrent(kind: type[nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return _LastState(kind(64, 128, batch_first=True))

    return make


def _of_bench(network: networks.Network) -> Network:
    def batch() -> Batch:
        x, y = network.rows("cpu")
        return {"x": x, "labels": y}

    def loss(model: nn.Module, rows: Batch) -> Tensor:
        losses: Tensor = networks.losses(model(rows["x"]), rows["labels"])
        return losses

    return Network(network.title, lambda: network.built("cpu"), batch, loss)


def every() -> list[Network]:
    """All forty."""
    forty = [_of_bench(network) for network in networks.FULL if network.name != "resnet"]
    forty += [
        Network(
            f"ResNet-{layers} with group norm (torchvision)",
            _resnet(layers),
            _images(64),
            of_tensor,
        )
        for layers in (18, 50)
    ]
    forty += [
        Network(name, _transformer(*settings), lambda: _without_positions(_classes()), of_classes)
        for name, settings in ENCODERS.items()
    ]
    forty += [
        Network(
            name,
            _transformer(*settings),
            lambda: _without_positions(texts(EXAMPLES, LENGTH, VOCABULARY)),
            of_next_tokens,
        )
        for name, settings in DECODERS.items()
    ]
    forty.append(
        Network(
            "T5",
            configured("T5Config", "T5ForConditionalGeneration", **_T5),
            lambda: texts(EXAMPLES, LENGTH, VOCABULARY, decoder=True),
            of_targets,
        )
    )
    forty += [
        Network(f"{name} (timm)", _of_timm(name, settings), _images(size), of_tensor)
        for name, (size, settings) in IMAGES.items()
    ]
    drawn = torch.Generator().manual_seed(0)
    series = {"x": torch.randn(64, 64, 64, generator=drawn), "labels": torch.arange(64) % CLASSES}
    forty.append(
        Network("GRU 128, length 64, batch 64", _recurrent(nn.GRU), lambda: dict(series), of_tensor)
    )
    return forty


@dataclass(frozen=True)
class Measured:
    """A network's ratios, in order; how its gradients are computed; and what went wrong, if
    something did.
    """

    name: str
    parameters: int
    way: str
    plain: float
    ratios: Sequence[float]
    reason: str = ""


def measured(network: Network, rounds: int) -> Measured:
    """Alternated steps: processor time of private ones over that of plain ones."""
    torch.manual_seed(0)
    models = [network.make().train() for _ in range(2)]
    for parameter in models[0].parameters():
        if parameter.dim() > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    models[1].load_state_dict(models[0].state_dict())
    batch = network.batch()
    examples = len(batch["labels"])
    number = sum(p.numel() for p in models[0].parameters())
    try:
        gradients = ClippedGradients(
            models[1], network.loss, Flat(CLIP), Adjacency.ADD_REMOVE, expected=examples
        )
        rows, sums = TensorRows(batch), gradients.buffers()
        gradients(next(FullBatch().draw(examples)), rows, out=sums)
    except Exception as error:
        return Measured(
            network.name, number, "refused", 0.0, (), f"{type(error).__name__}: {error}"[:200]
        )
    apart = _distance(network, models[1], batch)
    for parameter, total in zip(gradients.parameters.values(), sums, strict=True):
        parameter.grad = total
    steps = [torch.optim.SGD(model.parameters(), lr=0.0) for model in models]

    def plain() -> None:
        steps[0].zero_grad()
        network.loss(models[0], batch).mean().backward()
        steps[0].step()

    def private() -> None:
        gradients(next(FullBatch().draw(examples)), rows, out=sums)
        torch._foreach_div_(sums, examples)
        steps[1].step()

    times: list[list[float]] = [[], []]
    for step in (plain, private):
        step()
    for _ in range(rounds):
        for step, seconds in zip((plain, private), times, strict=True):
            begun = time.process_time()
            step()
            seconds.append(time.process_time() - begun)
    ratios = sorted(two / one for one, two in zip(*times, strict=True))
    wrong = "" if apart < WITHIN else f"sums are {apart:.2g} apart"
    return Measured(
        network.name, number, str(gradients.way), statistics.median(times[0]), ratios, wrong
    )


def _distance(network: Network, model: nn.Module, batch: Batch) -> float:
    """How far the clipped sum over two examples is from that of single backward passes, relative to
    it.
    """
    two = {name: leaf[:2] for name, leaf in batch.items()}
    ours = ClippedGradients(model, network.loss, Flat(CLIP), Adjacency.ADD_REMOVE, expected=2)
    clipped_sum = ours(next(FullBatch().draw(2)), TensorRows(two)).values
    trained = list(ours.parameters.values())
    totals = [torch.zeros_like(p) for p in trained]
    for row in range(2):
        loss = network.loss(model, {name: leaf[row : row + 1] for name, leaf in two.items()}).sum()
        gradients = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        norm = float(
            torch.sqrt(sum(((part.double() ** 2).sum() for part in gradients), torch.zeros(())))
        )
        for total, part in zip(totals, gradients, strict=True):
            total.add_(part, alpha=min(1.0, CLIP / max(norm, 1e-12)))
    apart = sum(
        float(((one - other).double() ** 2).sum())
        for one, other in zip(clipped_sum, totals, strict=True)
    )
    whole = sum(float((other.double() ** 2).sum()) for other in totals)
    return float((apart / max(whole, 1e-30)) ** 0.5)


def figures(row: Measured) -> dict[str, Any]:
    """What was measured of a network, as `docs/forty-networks.json` has it; without figures of one
    that is refused.
    """
    measured_figures: dict[str, Any] = {
        "network": row.name,
        "parameters_millions": round(row.parameters / 1e6, 2),
    }
    if row.ratios:
        low, _, high = statistics.quantiles(row.ratios, n=4)
        measured_figures["plain_ms"] = round(row.plain * 1e3)
        measured_figures["private_over_plain"] = round(statistics.median(row.ratios), 2)
        measured_figures["quartiles"] = [round(low, 2), round(high, 2)]
    return measured_figures | {"computed": row.reason or row.way}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of `figures`, the dearest last."""
    lines = [
        "| network | parameters | plain step, ms | private over plain | quartiles | computed |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in sorted(rows, key=lambda row: row.get("private_over_plain", 99.0)):
        cells = [
            row["network"],
            f"{row['parameters_millions']:.2f} M",
            "–",
            "–",
            "–",
            row["computed"],
        ]
        if "plain_ms" in row:
            low, high = row["quartiles"]
            cells[2:5] = [
                row["plain_ms"],
                f"{row['private_over_plain']:.2f}",
                f"{low:.2f} to {high:.2f}",
            ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def write(rows: Sequence[dict[str, Any]], docs: Path) -> None:
    """Write all rows into `forty-networks.json`, and those of `ON_THE_PAGE` into the table of
    `performance.md`.
    """
    from architectures import write as write_table

    lines = ",\n".join(f" {json.dumps(row, ensure_ascii=False)}" for row in rows)
    (docs / "forty-networks.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    on_the_page = [row for row in rows if row["network"] in ON_THE_PAGE]
    write_table(docs / "performance.md", "forty", table(on_the_page))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Private steps of forty networks beside plain ones."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=None,
        metavar="NAME",
        help="networks whose names hold one of these",
    )
    parser.add_argument("--rounds", type=int, default=15, help="how often every step is timed")
    parser.add_argument("--quick", action="store_true", help="three networks, two rounds")
    parser.add_argument(
        "--write",
        type=Path,
        default=None,
        metavar="DOCS",
        help="write the figures into the pages of this folder",
    )
    options = parser.parse_args()
    make_torchvision_importable()
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    chosen = ("MLP 60", "BERT", "GRU") if options.quick else options.only
    rows = []
    for network in every():
        if chosen is None or any(name in network.name for name in chosen):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows.append(figures(measured(network, 2 if options.quick else options.rounds)))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    if options.write:
        write(rows, options.write)
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
