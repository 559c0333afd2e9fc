"""This file says which library's form a published folder has, and how that library loads its
model.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from privlearn._checks import quoted
from privlearn._storage import loads
from privlearn.errors import BadInput
from privlearn.methods.statistics.metric_figures import Metrics, MetricsPlan
from privlearn.publishing.folder import ADAPTER, ADAPTER_CONFIG, CONFIG

#: How PEFT calls what an adapter is for, and the class of transformers that loads its base.
_TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoModel",
}
#: A model on a hub: its name, or its owner's and its own.
_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
#: The last layers of classifiers, as transformers calls them.
_HEADS = ("classifier.weight", "score.weight", "out_proj.weight")


@final
@dataclass(frozen=True)
class Library:
    """What a folder is for.

    Attributes:
        name: as model hubs call it.
        base_model: of an adapter the model on a hub that it is for, if its configuration names one.
        loader: the class of transformers that loads the model, or an adapter's base; None: that is
            not known.
    """

    name: str = "privlearn"
    base_model: str | None = None
    loader: str | None = None


PRIVLEARN = Library()


def library_of(files: Mapping[str, bytes]) -> Library:
    """That of a folder's configurations, which strangers may have written."""
    if ADAPTER_CONFIG in files:
        config = _read(files[ADAPTER_CONFIG])
        base = config.get("base_model_name_or_path")
        named = isinstance(base, str) and _HUB.fullmatch(base)
        return Library("peft", str(base) if named else None, _base_class(config))
    config = _read(files.get(CONFIG, b""))
    if not isinstance(config.get("model_type"), str):
        return PRIVLEARN
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return Library("transformers", loader=_identifier(first) or "AutoModel")


def with_library(card: str, files: Mapping[str, bytes]) -> bytes:
    """A card that names the library in its head, as hubs read it, and the base of an adapter."""
    library = library_of(files)
    base = "" if library.base_model is None else f"\nbase_model: {library.base_model}"
    ours, theirs = (f"library_name: {name}" for name in (PRIVLEARN.name, f"{library.name}{base}"))
    return card.replace(ours, theirs, 1).encode()


def with_metadata(card: bytes, licence: str | None, metrics: Metrics) -> bytes:
    """A card whose head says what else hubs read there: the licence, and as a `model-index` the
    test figures, if they were released with noise.

    Exact figures of test rows are not protected: they stay in the text of the card alone.
    """
    lines = [] if licence is None else [f"license: {licence}"]
    # with a point, or YAML would take them for texts
    figures = [
        f'{{"type": "{name}", "value": {value:.6f}}}'
        for name, value in metrics.figures.items()
        if re.fullmatch(r"\w+", name, re.ASCII) and math.isfinite(value)
    ]
    if metrics.plan is not None and figures:
        task = "classification" if isinstance(metrics.plan, MetricsPlan) else "regression"
        lines.append(
            f'model-index: [{{"name": "model", "results": [{{"task": {{"type": "{task}"}}, '
            '"dataset": {"type": "private", "name": "test rows"}, '
            f'"metrics": [{", ".join(figures)}]}}]}}]'
        )
    return card.replace(b"\ntags: ", "\n".join(["", *lines, "tags: "]).encode(), 1)


def require_licence(licence: str | None) -> None:
    """Refuse what is no name of a licence.

    Raises:
        BadInput: it is none.
    """
    if licence is not None and re.fullmatch(r"[a-z0-9.-]{1,40}", licence, re.ASCII) is None:
        raise BadInput(
            f"licence is {quoted(licence)}: expected a name as model hubs have it, such as "
            "apache-2.0, mit or other"
        )


def lines_of_use(files: Mapping[str, bytes]) -> list[str]:
    """Python that loads the model of a folder with its library, from within the folder; none, where
    privlearn loads it.

    Args:
        files: all of the folder's.
    """
    library = library_of(files)
    if library.name == "transformers":
        return [
            f"from transformers import {library.loader}",
            "",
            f'model = {library.loader}.from_pretrained(".")',
        ]
    if library.name != "peft":
        return []
    if library.loader is None:
        return [
            "from peft import PeftModel",
            "",
            "# base_model: the model that the adapter was trained on, loaded as usual",
            'model = PeftModel.from_pretrained(base_model, ".")',
        ]
    labels = _labels_in(files[ADAPTER]) if "Classification" in library.loader else None
    options = "" if labels is None else f", num_labels={labels}"
    base, saved = json.dumps(library.base_model), list[str]()
    if library.base_model is None:
        base, saved = '"base_model"', ["# base_model: a folder with the model of the adapter"]
    return [
        "from peft import PeftModel",
        f"from transformers import {library.loader}",
        "",
        *saved,
        f"base_model = {library.loader}.from_pretrained({base}{options})",
        'model = PeftModel.from_pretrained(base_model, ".")',
    ]


def _base_class(config: Mapping[str, Any]) -> str | None:
    """The class that loads an adapter's base."""
    task, mapping = config.get("task_type"), config.get("auto_mapping")
    if isinstance(task, str) and task in _TASKS:
        return _TASKS[task]
    if not isinstance(mapping, dict):
        return None
    whole = str(mapping.get("parent_library")).partition(".")[0] == "transformers"
    return _identifier(mapping.get("base_model_class")) if whole else None


def _identifier(name: Any) -> str | None:
    return name if isinstance(name, str) and name.isidentifier() and name.isascii() else None


def _labels_in(adapter: bytes) -> int | None:
    """How many classes the last layer in an adapter's file tells apart; None if it has none."""
    return next(_sizes_of_heads(adapter), None)


def _sizes_of_heads(adapter: bytes) -> Iterator[int]:
    (length,) = struct.unpack("<Q", adapter[:8])
    for name, tensor in json.loads(adapter[8 : 8 + length]).items():
        if name.endswith(_HEADS) and ".lora_" not in name:
            yield tensor["shape"][0]


def _read(content: bytes) -> dict[str, Any]:
    """A configuration; nothing if it is none, which is said elsewhere."""
    try:
        config = loads(content)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
