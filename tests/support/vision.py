"""torchvision beside a PyTorch that it was not built for.

Where PyTorch is a build for processors alone and torchvision comes from the package registry,
torchvision's own operators can't be loaded, and importing it (or transformers or timm, which import
it) fails for want of two of them. Networks for classification use neither: they are declared here,
without anything behind them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

#: Holds the declarations for as long as the process runs.
_DECLARED: list[Any] = []


def make_torchvision_importable() -> None:
    """Load torchvision's operators, or else declare those that its import asks for."""
    spec = find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations or _DECLARED:
        return
    for library in sorted(Path(spec.submodule_search_locations[0]).glob("_C*")):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            continue
        return
    own = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        own.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(own)
