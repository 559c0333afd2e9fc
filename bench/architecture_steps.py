"""Private steps of six architectures of transformers beside plain ones; `architectures.py --steps`
runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from common import Case, Row, Run, Variant
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.mechanisms.release import release
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import Streams
from tests.clipping.architectures import Batch, configured

CLASSES = 10
PLAIN = "plain PyTorch"
OURS, NOISY, HOOKS, GHOST = (
    "privlearn, clip",
    "privlearn, clip and noise",
    "Opacus, hooks",
    "Opacus, ghost clipping",
)
#: Relative distance of a clipped sum, in single precision, from the loop's in double precision.
WITHIN = 2e-3


@dataclass(frozen=True)
class Network:
    """An architecture at a size where a step is work.

    Attributes:
        name: the architecture.
        make: builds it.
        batch: its examples.
        loss: (model, batch) to one value for each example.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]

    def built(self) -> nn.Module:
        """The model, always with the same weights."""
        return self.make().train()

    @property
    def clip(self) -> float:
        """The median of the gradients' norms, so that half of the examples are clipped."""
        return truth(self.name)[1]


def texts(examples: int, length: int, vocabulary: int, decoder: bool = False) -> Batch:
    """Padded texts, with the positions that Opacus needs for each example."""
    ids = torch.randint(
        2, vocabulary, (examples, length), generator=torch.Generator().manual_seed(0)
    )
    mask = (torch.arange(length) < length - torch.arange(examples)[:, None] % (length // 2)).long()
    ids = ids * mask
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}
    if decoder:
        return batch | {"decoder_input_ids": ids.roll(1, 1)}
    return batch | {"position_ids": torch.arange(length).expand(examples, length).clone()}


def _logits(model: nn.Module, batch: Batch, **options: Any) -> Tensor:
    logits: Tensor = model(
        **{name: leaf for name, leaf in batch.items() if name != "labels"}, **options
    ).logits
    return logits


def _of_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy of each token that is not padding, over the length."""
    each = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none", ignore_index=-100)
    return each.mean(1)


def of_classes(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of a class."""
    return F.cross_entropy(_logits(model, batch), batch["labels"], reduction="none")


def of_next_tokens(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each next token."""
    return _of_tokens(_logits(model, batch, use_cache=False)[:, :-1], batch["labels"][:, 1:])


def of_targets(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the target's tokens."""
    return _of_tokens(_logits(model, batch, use_cache=False), batch["labels"])


def networks(
    width: int, layers: int, length: int, vocabulary: int, examples: int
) -> tuple[Network, ...]:
    """The six."""
    heads = max(1, width // 64)
    text = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "intermediate_size": 4 * width,
        "max_position_embeddings": length,
        "pad_token_id": 0,
    }
    labels = {"labels": torch.arange(examples) % CLASSES}

    def of_texts(decoder: bool = False, classes: bool = False) -> Callable[[], Batch]:
        return lambda: texts(examples, length, vocabulary, decoder) | (labels if classes else {})

    def images(size: int) -> Callable[[], Batch]:
        pixels = torch.randn(examples, 3, size, size, generator=torch.Generator().manual_seed(0))
        return lambda: labels | {"pixel_values": pixels}

    gpt = {
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": length,
        "vocab_size": vocabulary,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    t5 = {
        "d_model": width,
        "d_kv": 64,
        "d_ff": 4 * width,
        "num_layers": layers // 2,
        "num_heads": heads,
        "vocab_size": vocabulary,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }
    vit = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_labels": CLASSES,
        "intermediate_size": 4 * width,
        "image_size": 64,
        "patch_size": 8,
    }
    bit = {
        "embedding_size": width // 4,
        "hidden_sizes": [width // 2, width],
        "depths": [2, 2],
        "num_labels": CLASSES,
        "num_groups": 4,
    }
    bert, llama = (
        configured("BertConfig", "BertForSequenceClassification", **text, num_labels=CLASSES),
        "LlamaForCausalLM",
    )
    return (
        Network("BERT", bert, of_texts(classes=True), of_classes),
        Network(
            "GPT-2", configured("GPT2Config", "GPT2LMHeadModel", **gpt), of_texts(), of_next_tokens
        ),
        Network("Llama", configured("LlamaConfig", llama, **text), of_texts(), of_next_tokens),
        Network(
            "T5",
            configured("T5Config", "T5ForConditionalGeneration", **t5),
            of_texts(decoder=True),
            of_targets,
        ),
        Network(
            "ViT",
            configured("ViTConfig", "ViTForImageClassification", **vit),
            images(64),
            of_classes,
        ),
        Network(
            "ResNet with group norms (BiT)",
            configured("BitConfig", "BitForImageClassification", **bit),
            images(32),
            of_classes,
        ),
    )


# Steps: each starts from the same weights and descends at learning rate 0


@dataclass(frozen=True)
class Step:
    """A step that can be taken again and again; `sums` gives the clipped sum that it descended
    by.
    """

    take: Callable[[Batch], None]
    sums: Callable[[], Sequence[Tensor]] | None = None


def _descent(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)


def plain(network: Network) -> Step:
    """PyTorch, without privacy."""
    model = network.built()
    optimizer = _descent(model)

    def take(batch: Batch) -> None:
        optimizer.zero_grad()
        network.loss(model, batch).mean().backward()
        optimizer.step()

    return Step(take)


def by_privlearn(network: Network, noise: bool) -> Step:
    """privlearn, its noise from AES and charged to a ledger."""
    model, examples = network.built(), len(network.batch()["labels"])
    gradients = ClippedGradients(
        model, network.loss, Flat(network.clip), Adjacency.ADD_REMOVE, expected=examples
    )
    sums, ledger, stream, optimizer = (
        gradients.buffers(),
        Ledger(),
        Streams.new().noise,
        _descent(model),
    )

    def take(batch: Batch) -> None:
        bounded = gradients(
            next(FullBatch().draw(len(batch["labels"]))), TensorRows(batch), out=sums
        )
        if noise:
            release(bounded, noise_multiplier=1.0, ledger=ledger, stream=stream)
        torch._foreach_div_(sums, examples)
        for parameter, total in zip(gradients.parameters.values(), sums, strict=True):
            parameter.grad = total
        optimizer.step()

    return Step(take, None if noise else lambda: [total * examples for total in sums])


def by_opacus(network: Network, ghost: bool) -> Step:
    """Opacus, without noise."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    model, examples = network.built(), len(network.batch()["labels"])
    options: dict[str, Any] = {
        "noise_multiplier": 0.0,
        "max_grad_norm": network.clip,
        "expected_batch_size": examples,
    }
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=network.clip)
        fast = DPOptimizerFastGradientClipping(_descent(wrapped), **options)

        def take(batch: Batch) -> None:
            fast.zero_grad(set_to_none=True)
            DPTensorFastGradientClipping(
                wrapped, fast, network.loss(wrapped, batch), "mean"
            ).backward()
            fast.step()

    else:
        wrapped = GradSampleModule(model)
        optimizer = DPOptimizer(_descent(wrapped), **options)

        def take(batch: Batch) -> None:
            optimizer.zero_grad(set_to_none=True)
            network.loss(wrapped, batch).mean().backward()
            optimizer.step()
            for parameter in optimizer.params:
                parameter.grad_sample = None  # or it would be held until the next step

    return Step(take, lambda: [p.grad * examples for p in wrapped.parameters() if p.requires_grad])


#: The six in use, by name.
_NETWORKS: dict[str, Network] = {}


@cache
def truth(name: str) -> tuple[list[list[Tensor]], float]:
    """Each example's gradients in double precision, one after another, and the median of their
    norms.
    """
    network = _NETWORKS[name]
    model, batch = network.built().double(), network.batch()
    trained, rows = [p for p in model.parameters() if p.requires_grad], []
    for number in range(len(batch["labels"])):
        example = {key: leaf[number : number + 1] for key, leaf in batch.items()}
        example = {
            key: leaf.double() if leaf.is_floating_point() else leaf
            for key, leaf in example.items()
        }
        gradients = torch.autograd.grad(
            network.loss(model, example).sum(), trained, allow_unused=True, materialize_grads=True
        )
        rows.append([part.float() for part in gradients])
    return rows, float(torch.tensor([_norm(gradients) for gradients in rows]).median())


def _norm(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def distance(network: Network, sums: Sequence[Tensor]) -> float:
    """How far a clipped sum is from the loop's, over the norm of that one."""
    rows, clip = truth(network.name)
    weights = [min(1.0, clip / _norm(parts)) for parts in rows]
    totals = [
        sum(w * part for w, part in zip(weights, parts, strict=True))
        for parts in zip(*rows, strict=True)
    ]
    apart = _norm(
        [
            clipped_sum.detach() - torch.as_tensor(total)
            for clipped_sum, total in zip(sums, totals, strict=True)
        ]
    )
    return apart / _norm([torch.as_tensor(total) for total in totals])


def cases(quick: bool, rounds: int) -> list[Case]:
    """A step of each, by each library."""
    six = networks(64, 2, 16, 200, 4) if quick else networks(256, 2, 64, 2000, 16)
    _NETWORKS.update({network.name: network for network in six})
    return [_case(network, rounds) for network in six]


def _case(network: Network, rounds: int) -> Case:
    def variant(name: str, make: Callable[[], Step], **options: Any) -> Variant:
        def prepared() -> Run:
            step, batch = make(), network.batch()
            step.take(
                {name: leaf[:2] for name, leaf in batch.items()}
            )  # allocates gradients, and loads what is loaded once
            sums = step.sums

            def run() -> float | Callable[[], float]:
                step.take(batch)
                return math.nan if sums is None else lambda: distance(network, sums())

            return run

        return Variant(name, prepared, prepared=True, **options)

    opacus: dict[str, Any] = {"needs": ("opacus",), "peer": True, "limit": WITHIN}
    return Case(
        network.name,
        "distance",
        (
            variant(PLAIN, lambda: plain(network)),
            variant(OURS, lambda: by_privlearn(network, noise=False), limit=WITHIN),
            variant(NOISY, lambda: by_privlearn(network, noise=True)),
            variant(HOOKS, lambda: by_opacus(network, ghost=False), **opacus),
            variant(GHOST, lambda: by_opacus(network, ghost=True), **opacus),
        ),
        rounds,
    )


def table(rows: Sequence[Row]) -> str:
    """Time and peak memory over those of the plain step, by network and library."""
    names = (OURS, NOISY, HOOKS, GHOST)
    lines = [
        "| | plain step | " + " | ".join(names) + " |",
        "| --- | ---: |" + " ---: |" * len(names),
    ]
    for case in dict.fromkeys(row.case for row in rows):
        by_variant = {row.variant: row for row in rows if row.case == case}
        base = by_variant[PLAIN]
        for unit, cells in (("time", "ratio"), ("memory", "peak_mib")):
            first = f"{base.seconds * 1e3:.0f} ms" if unit == "time" else f"{base.peak_mib:.0f} MiB"
            ratios = [_ratio(by_variant.get(name), base, cells) for name in names]
            lines.append(f"| {case}, {unit} | {first} | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def _ratio(row: Row | None, base: Row, figure: str) -> str:
    if row is None:
        return "not right"
    return f"{row.ratio:.2f}" if figure == "ratio" else f"{row.peak_mib / base.peak_mib:.2f}"
