"""The page's diffs make scripts private: what comes out trains as the plain script does that clips
single examples.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import privlearn as pv
from tests.pages.page_blocks import ROOT, blocks

PAGE = "docs/your-own-loop.md"
SCRIPTS = sorted((ROOT / "docs" / "loops").glob("*.py"))
RUNS = [
    *((path.stem, "") for path in SCRIPTS),
    ("word_language_model", "transformer"),
]
#: Rows that a run is compared on: all of them are one batch.
_ROWS = 6
#: The clipping norm, less what a clip leaves for rounding.
_CLIP = 1.0 - 1 / 1024
#: What is made smaller, and the same in both runs: rows, and what is drawn at random.
_SMALLER = {
    "[:1200]": f"[:{_ROWS}]",
    "[:600]": f"[:{_ROWS}]",
    "x[600:1200]": f"x[600:{600 + _ROWS}]",
    "y[600:1200]": f"y[600:{600 + _ROWS}]",
    "nn.Dropout(0.25)": "nn.Dropout(0.0)",
    "nn.Dropout(0.2)": "nn.Dropout(0.0)",
    "(16, 2, 32, 0.2,": "(16, 2, 32, 0.0,",
    "width, 2, 32, 0.1,": "width, 2, 32, 0.0,",
    "torch.randn_like(std)": "torch.ones_like(std)",
    # Adam divides by the size of gradients: where they are zero, by that of the noise
    "optim.Adam(": "optim.Adam(eps=0.01, params=",
    "optim.AdamW(": "optim.AdamW(eps=0.01, params=",
    "range(3)": "range(2)",
    "epochs=3": "epochs=2",
}
#: The noise is that of no privacy, and nothing is published.
_WITHOUT_NOISE = {
    "make_private_with_epsilon(": "make_private(",
    "target_epsilon=8.0, target_delta=1e-5": "noise_multiplier=1e-6",
    "epsilon=8.0, delta=1e-5": "noise_multiplier=1e-6",
    "engine.publish(": "str(",
    "private.publish(": "str(",
}


def diffs() -> dict[str, str]:
    """The page's diffs, by the script's name."""
    found_blocks = [block.text for block in blocks(PAGE) if block.language == "diff"]
    return {
        text.splitlines()[0].rpartition("/")[2].removesuffix(".py"): text for text in found_blocks
    }


def hunks(diff: str) -> Iterator[tuple[str, str]]:
    """What each part of a diff stands for, before and after."""
    for part in diff.split("@@\n")[1:]:
        lines = part.splitlines()
        yield (
            "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+"),
            "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-"),
        )


def private(name: str) -> str:
    """The script after its diff."""
    text = (ROOT / "docs" / "loops" / f"{name}.py").read_text()
    for before, after in hunks(diffs()[name]):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def execute(text: str, words: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    before = sys.argv
    sys.argv = ["script", *words.split()]
    try:
        exec(compile(text, "script", "exec"), names)
    finally:
        sys.argv = before
    return names


def replaced(text: str, changes: dict[str, str]) -> str:
    for large, small in changes.items():
        text = text.replace(large, small)
    return text


@contextmanager
def single_examples_clipped(kinds: list[type[torch.optim.Optimizer]]) -> Iterator[None]:
    """A block in which a plain script's step on a batch of one example adds its clipped gradient to
    a sum, and each `_ROWS`-th one descends by their mean.
    """
    before = {kind: kind.step for kind in kinds}

    def step_of(kind: type[torch.optim.Optimizer]) -> Any:
        sums: list[Tensor] = []
        seen = 0

        def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
            nonlocal sums, seen
            parameters = [p for group in self.param_groups for p in group["params"]]
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            scale = (_CLIP / norm).clamp(max=1.0)
            clipped = [scale * gradient for gradient in gradients]
            sums = [a + b for a, b in zip(sums, clipped, strict=True)] if sums else clipped
            seen += 1
            if seen % _ROWS:
                return None
            for parameter, total in zip(parameters, sums, strict=True):
                parameter.grad = total / _ROWS
            sums = []
            return before[kind](self)

        return step

    for kind in kinds:
        kind.step = step_of(kind)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, step in before.items():
            kind.step = step  # type: ignore[method-assign]


def weights(names: dict[str, Any]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in names["model"].parameters()])


@pytest.mark.parametrize(("name", "words"), RUNS)
def test_without_noise_a_private_script_clips_single_examples(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = replaced((ROOT / "docs" / "loops" / f"{name}.py").read_text(), _SMALLER)
    kinds = [torch.optim.Adadelta, torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD]
    with single_examples_clipped(kinds):
        expected = weights(execute(plain.replace("batch_size=60", "batch_size=1"), words))
    text = replaced(private(name), {**_SMALLER, **_WITHOUT_NOISE})
    ours = weights(execute(text.replace("batch_size=60", f"batch_size={_ROWS}"), words))
    start = weights(execute(plain.replace("range(2)", "range(0)"), words))
    moved = (expected - start).norm()
    assert moved > 1e-3
    assert (ours - expected).norm() < 1e-3 * moved


@pytest.mark.parametrize("name", ["vae", "siamese"])
def test_a_private_script_publishes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    execute(
        replaced(
            private(name),
            {"[:1200]": "[:120]", "[:600]": "[:120]"}
            | {"x[600:1200]": "x[600:720]", "y[600:1200]": "y[600:720]"},
        ),
        "",
    )
    assert pv.verify(tmp_path / name).ok


def test_each_diff_has_at_most_four_statements_beside_imports() -> None:
    """New ones and changed ones; those that are left out come with others in their place."""
    import ast

    assert set(diffs()) == {path.stem for path in SCRIPTS}
    for path in SCRIPTS:
        plain, ours = (
            [
                ast.unparse(node).partition("\n")[0]
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom)
            ]
            for text in (path.read_text(), private(path.stem))
        )
        new = [line[2:] for line in difflib.ndiff(plain, ours) if line.startswith("+ ")]
        assert 0 < len(new) <= 4, (path.stem, new)
