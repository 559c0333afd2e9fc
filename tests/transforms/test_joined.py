"""Features by an encoder that was trained on drawn images (tests/transforms/checks_joined.py), and
its recipe.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from privlearn.transforms.drawn_encoder import DrawnEncoder
from tests.support.checks import CHECKS
from tests.transforms import checks_joined

OWN = sorted(name for name in vars(checks_joined) if name.startswith("check_"))
BENCH = Path(__file__).resolve().parents[2] / "bench"


def until_step(last: int, drawn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Images as they are drawn, until somebody interrupts."""
    steps = iter(range(last))

    def stopped(*arguments: object) -> torch.Tensor:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return drawn(*arguments)

    return stopped


@pytest.mark.parametrize("name", OWN)
def test_joined(name: str) -> None:
    CHECKS[name]()


def test_the_recipe_goes_on_where_it_stopped_and_exports_what_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    recipe = importlib.import_module("drawn_encoder")
    images = recipe.drawn(torch.Generator().manual_seed(3), 8)
    assert torch.equal(images, recipe.drawn(torch.Generator().manual_seed(3), 8))
    assert images.shape == (8, 3, 48, 48)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir()
    halves.mkdir()
    recipe.trained(whole, 4, 0, 32, 8, 2)
    with monkeypatch.context() as patched:
        patched.setattr(recipe, "drawn", until_step(3, recipe.drawn))
        with pytest.raises(KeyboardInterrupt):
            recipe.trained(halves, 4, 0, 32, 8, 2)
    assert torch.load(halves / "last.pt", weights_only=True)["step"] == 2
    recipe.trained(halves, 4, 0, 32, 8, 2)
    one, other = (torch.load(folder / "ema-4.pt", weights_only=True) for folder in (whole, halves))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value)
    encoder = recipe.Encoder(32)
    encoder.load_state_dict(one)
    weights = {
        name: value.float() for name, value in load(recipe.exported(whole / "ema-4.pt", 32)).items()
    }
    x = images[:4, :, :32, :32]
    with torch.no_grad():
        expected = encoder.eval()(x)[2]
    found = DrawnEncoder(False, weights, torch.zeros(0), torch.zeros(0)).answers(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
