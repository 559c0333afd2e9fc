"""A public encoder of the user's own: a network with fixed weights, named by the function that makes it."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from privlearn.errors import BadInput
from privlearn.models import first_line, require_per_example


@final
class External(nn.Module):
    """What `package.module:function`, called without arguments, returns: a module from rows to features.

    Whoever names it declares that it was made without the private rows. Its weights are not part of the published model: its
    name and a digest of them are, and whoever predicts must have the same.

    Attributes:
        spec: its name.
        digest: SHA-256 of its weights.

    Raises:
        BadInput: it can't be imported, or makes no module.
    """

    def __init__(self, spec: str) -> None:
        super().__init__()
        self.spec = spec
        made = _made(spec).eval().requires_grad_(False)
        self._held = (made,)  # in a tuple: not among this module's own weights
        self.digest = _digest(made)

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        return {"kind": "external", "spec": self.spec, "digest": self.digest}

    def forward(self, x: Tensor) -> Tensor:
        """Turn rows (batch, ...) into features (batch, ...)."""
        return cast(Tensor, self._held[0](x))

    def require_per_example(self, row: Tensor) -> None:
        """Refuse an encoder in which rows have a part in each other's features.

        Args:
            row: made-up, shape (1, ...), of the shape and type of the rows.

        Raises:
            NotPerExample: it mixes them, or remembers something.
            BadInput: it can't run on such rows.
        """
        require_per_example(self._held[0], row)


def _made(spec: str) -> nn.Module:
    module, _, function = spec.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"features {spec!r} cannot be imported: {error}. Expected package.module:function, importable from here"
        ) from error
    try:
        found = make()
    except Exception as error:
        raise BadInput(
            f"features {spec!r} failed: {type(error).__name__}: {first_line(error)}. The function is called without arguments"
        ) from error
    if not isinstance(found, nn.Module):
        raise BadInput(
            f"features {spec!r} returned a {type(found).__name__}: expected a torch.nn.Module from rows to features"
        )
    return found


def _digest(module: nn.Module) -> str:
    found = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        found.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
