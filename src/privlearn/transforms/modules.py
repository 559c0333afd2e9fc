"""The fixed transforms in front of a network, as modules: each row by itself, and published with
the model.

Among them a public encoder of the user's own: a network with fixed weights, named by the function
that makes it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._user_code import import_function
from privlearn.core.clipping.model_check import require_per_example
from privlearn.core.clipping.separation.meeting import name_meeting
from privlearn.core.row_transform import RowTransform as RowTransform
from privlearn.core.row_transform import Scale as Scale
from privlearn.errors import BadInput, first_line
from privlearn.transforms.select import choice_json
from privlearn.transforms.sources import External
from privlearn.transforms.specs import RowNorm


@final
class Centred(RowTransform):
    """Take numbers from [0, 1] to [-1, 1] where `own`, shape (features,), is 1, and leave them
    where it is 0.
    """

    kind = "centre"

    def __init__(self, indicator: Tensor) -> None:
        super().__init__()
        self.register_buffer("own", indicator)

    def forward(self, x: Tensor) -> Tensor:
        """Centre `x`, shape (batch, features)."""
        indicator = self.get_buffer("own")
        return x.to(indicator) * (1 + indicator) - indicator


@final
class Project(RowTransform):
    """Clip rows to norm 1, multiply by `components` (features, kept), and bring every row to norm
    sqrt(kept).

    A feature is then of order one, and each example keeps to itself.
    """

    kind = "pca"

    def __init__(self, components: Tensor) -> None:
        super().__init__()
        # As it is read back from a file: another layout makes other last digits.
        self.register_buffer("components", components.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """Project `x`, shape (batch, ...), to shape (batch, kept)."""
        rows = x.flatten(1)
        components = self.get_buffer("components")
        rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1.0)
        projected = rows @ components
        tiny = torch.finfo(projected.dtype).tiny
        lengths = torch.linalg.vector_norm(projected, dim=1, keepdim=True).clamp(min=tiny)
        return cast(Tensor, projected / lengths * math.sqrt(projected.shape[1]))


@final
class Standardise(RowTransform):
    """Clip rows to `norm`, take off `mean`, divide by `deviation`, and bring every row to norm
    sqrt(features).

    A feature is then of order one, and each example keeps to itself.
    """

    kind = "moments"

    def __init__(self, mean: Tensor, deviation: Tensor, norm: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.register_buffer("norm", norm)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise `x`, shape (batch, ...), to shape (batch, features)."""
        mean, norm = self.get_buffer("mean"), self.get_buffer("norm")
        rows = x.flatten(1).to(mean)
        rows = rows * (norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=norm))
        rows = (rows - mean) / self.get_buffer("deviation")
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(
            min=torch.finfo(rows.dtype).tiny
        )
        return cast(Tensor, rows / lengths * math.sqrt(rows.shape[1]))


@final
class Keep(RowTransform):
    """The features at `indices`, of flattened rows."""

    kind = "select"

    def __init__(self, indices: Tensor) -> None:
        super().__init__()
        self.register_buffer("indices", indices)

    def forward(self, x: Tensor) -> Tensor:
        """Pick from `x`, shape (batch, ...), to shape (batch, kept)."""
        return x.flatten(1)[:, self.get_buffer("indices")]

    def choice(self, names: Sequence[str]) -> dict[str, Any]:
        """The features that it keeps."""
        return choice_json(self.get_buffer("indices").tolist(), names)

    def names_after(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the features that it keeps."""
        return tuple(names[index] for index in self.get_buffer("indices").tolist()) if names else ()


@final
class ClipRows(RowTransform):
    """Flatten rows, and scale those longer than `norm` down to it."""

    kind = "clip"

    def __init__(self, norm: Tensor) -> None:
        super().__init__()
        self.register_buffer("norm", norm)

    def forward(self, x: Tensor) -> Tensor:
        """Clip `x`, shape (batch, ...), to shape (batch, features)."""
        rows, norm = x.flatten(1), self.get_buffer("norm")
        rows = rows.to(norm)
        return cast(
            Tensor,
            rows * (norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=norm)),
        )


@final
class Normalised(RowTransform):
    """Numbers raised to a power (negative ones count as 0), then each example brought to mean 0 and
    variance 1.

    The root tames the few large numbers in which networks' features differ most; all rows then have
    the same norm, so that clipping treats them alike and the noise in a score is known beforehand.

    Args:
        power: 0.5 is the root; 1 leaves numbers as they are, negative ones too.

    Raises:
        BadInput: a power out of range.
    """

    kind = RowNorm.kind

    def __init__(self, power: float = 0.5) -> None:
        super().__init__()
        self.power = RowNorm(power).power

    @property
    def spec(self) -> str:
        """What `specs.parse` reads."""
        return RowNorm(self.power).spec

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        return {"kind": self.kind, "spec": self.spec, "power": self.power}

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return {"kind": self.kind, "spec": self.spec}

    def forward(self, x: Tensor) -> Tensor:
        """Normalise rows (batch, ...), to shape (batch, numbers)."""
        rows = x.flatten(1).float()
        rows = rows if self.power == 1 else rows.clamp(min=0) ** self.power
        return F.layer_norm(rows, rows.shape[1:])


_ROWS_AT_ONCE = 4096


@final
class ExternalModule(RowTransform):
    """What `package.module:function`, called without arguments, returns: a module from rows to
    features.

    Naming it declares that it was made without the private rows. Its weights are not part of the
    published model: its name and a digest of them are, and the same are needed to predict.

    It is frozen and always in evaluation mode, whatever the mode of the model that it is a part of:
    batch norm then is a fixed affine map by its running statistics.

    Attributes:
        name: `package.module:function`.
        digest: SHA-256 of its weights.

    Raises:
        BadInput: it can't be imported, makes no module, or another one each time.
    """

    kind = External.kind
    is_users_code = True

    def __init__(self, spec: str) -> None:
        super().__init__()
        self.name = spec
        module = _call_function(spec, seed=0).eval().requires_grad_(False)
        # in a tuple: not among this module's own weights, and left alone by train()
        self._held = (module,)
        self.digest = _digest(module)
        # To predict, the function is called again, in another process.
        if _digest(_call_function(spec, seed=1)) != self.digest:
            raise BadInput(
                f"features {spec!r} made other weights when the function was called a second time: "
                "expected the same ones, or it could not be used to predict. Fix the seed in it "
                "(torch.manual_seed(0)), or load saved weights"
            )

    @property
    def spec(self) -> str:
        """What it is called."""
        return self.name

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        return {"kind": self.kind, "spec": self.name, "digest": self.digest}

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return self.describe()

    def forward(self, x: Tensor) -> Tensor:
        """Turn rows (batch, ...) into features (batch, ...)."""
        # The caller may hold the module, too.
        return cast(Tensor, self._held[0].eval()(x))

    def require_per_example(self, row: Tensor) -> None:
        """Refuse an encoder in which rows have a part in each other's features.

        Args:
            row: made-up, shape (1, ...), of the shape and type of the rows.

        Raises:
            NotPerExample: it mixes them, or remembers something.
            BadInput: it can't run on such rows, or has weights that are no numbers.
        """
        for name, value in self._held[0].state_dict().items():
            if bool(value.isnan().any()):
                raise BadInput(
                    f"features {self.name!r} have weights that are not numbers (NaN), in {name!r}: "
                    "mend the encoder"
                )
        require_per_example(self._held[0], row, fixed=True, explain=name_meeting)

    def require_finite(self, features: Tensor, rows: Tensor) -> None:
        """Refuse an encoder that makes numbers of rows that are none: for the data's curator,
        before anything is spent.

        Args:
            features: of private rows, shape (rows, ...).
            rows: these; only shape and type are looked at, for a made-up row to tell whether it is
                the encoder's fault.

        Raises:
            BadInput: there are such; it does not say of which rows.
        """
        if all(bool(part.isfinite().all()) for part in features.split(_ROWS_AT_ONCE)):  # type: ignore[no-untyped-call]
            return
        made_up = (
            torch.linspace(0.1, 1, math.prod(rows.shape[1:]), device="cpu")
            .view(1, *rows.shape[1:])
            .to(rows.dtype)
        )
        with torch.no_grad():
            always = not bool(self(made_up).isfinite().all())
        whose, what = (
            "some rows",
            "bound what it divides by, and what it takes roots and logarithms of",
        )
        if always:
            whose, what = "a made-up row, too", "mend it: are its weights finite?"
        raise BadInput(
            f"features {self.name!r} are not finite (NaN or infinity) of {whose}: expected numbers "
            f"for every row. In the encoder, {what}"
        )


def _call_function(spec: str, seed: int) -> nn.Module:
    """What the function returns, with random numbers that it has not asked for from `seed` on."""
    make = import_function("features", spec)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            encoder = make()
    except Exception as error:
        raise BadInput(
            f"features {spec!r} failed: {type(error).__name__}: {first_line(error)}. The function "
            "is called without arguments"
        ) from error
    if not isinstance(encoder, nn.Module):
        raise BadInput(
            f"features {spec!r} returned a {type(encoder).__name__}: expected a torch.nn.Module "
            "from rows to features"
        )
    return encoder


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
