"""Linear reducers: principal components, a random projection, and none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from privlearn._validate import count
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.reducers.reducer import Reducer, public_targets

_MOST = 10**10


@final
@dataclass(frozen=True, eq=False, repr=False)
class PCA(Reducer):
    """The first principal components of public targets (Fay et al. 2020, Algorithm 1).

    Attributes:
        target_shape: the shape of one target.
        mean: the public targets' mean, shape (numbers in a target,).
        components: the kept directions, orthonormal rows: shape (size, numbers in a target).
        eigenvalues: variances along all directions that were found, the largest first. The rest, where there are fewer rows
            than numbers in a target, are 0.
    """

    target_shape: tuple[int, ...]
    mean: Tensor
    components: Tensor
    eigenvalues: Tensor

    @classmethod
    def fit(cls, public: Dataset, components: int | None = None) -> PCA:
        """Find the principal components of the targets of `public`.

        Args:
            public: a data set that is declared public; its targets y are looked at.
            components: how many are kept; None: all, for `for_noise` to choose from.

        Raises:
            BadInput: data that are not declared public, or more components than there are.
        """
        targets = public_targets(public)
        rows = targets.flatten(1)
        mean = rows.mean(0)
        _, lengths, directions = torch.linalg.svd(rows - mean, full_matrices=False)
        found = cls(tuple(targets.shape[1:]), mean, directions, lengths.double().square() / (len(rows) - 1))
        return found if components is None else found.kept(components)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return self.target_shape

    @property
    def size(self) -> int:
        """Numbers in a code."""
        return len(self.components)

    @property
    def centre(self) -> Tensor:
        """The mean of the public targets."""
        return self.mean.view(self.target_shape)

    @property
    def matrix(self) -> Tensor:
        """The components."""
        return self.components

    def kept(self, components: int) -> PCA:
        """The same with the first `components` directions only.

        Raises:
            BadInput: more than there are.
        """
        if count("components", components) > self.size:
            raise BadInput(
                f"{components} components are wanted, and {self.size} were found: choose at most {self.size}"
            )
        return replace(self, components=self.components[:components].clone())

    def best(self, noise_std: float) -> int:
        """How many components lose least to noise of `noise_std` in each: those with a larger variance than the noise.

        Fay et al. (2020, eq. 7), with their index read as a count. It may be 0.
        """
        return int((self.eigenvalues > noise_std**2).sum())

    def for_noise(self, noise_std: float) -> PCA:
        """The same with the `best` number of components for that noise.

        Raises:
            BadInput: it is 0: the public mean, which costs nothing, is better than any answer.
        """
        best = min(self.best(noise_std), self.size)
        if not best:
            raise BadInput(
                f"no component has a variance above the noise's: the noise of {noise_std:.4g} is a variance of "
                f"{noise_std**2:.4g}, and the largest component has {float(self.eigenvalues[0]):.4g}. One component would "
                f"lose {self.loss(noise_std, 1):.4g}, the public mean alone {self.loss(noise_std, 0):.4g}: asking brings "
                "nothing. Use more teachers, fewer queries, a larger epsilon or a smaller radius (or kept(1), to go on anyway)"
            )
        return self.kept(best)

    def loss(self, noise_std: float, components: int | None = None) -> float:
        """The expected squared error of a target that was encoded, got noise and was decoded (Fay et al. 2020, sec. Utility).

        The variance along the directions that were left out, plus one noise variance for each that was kept; clipping left
        aside.

        Args:
            noise_std: standard deviation of the noise on each number of the code: `plan.noise_std`.
            components: how many are kept; by default as many as there are.
        """
        kept = self.size if components is None else count("components", components, least=0)
        return float(self.eigenvalues[kept:].sum()) + kept * noise_std**2

    def encode(self, targets: Tensor) -> Tensor:
        """Codes: components times what is left when the mean is taken off."""
        return (targets.flatten(1).to(self.mean) - self.mean) @ self.components.T

    def decode(self, codes: Tensor) -> Tensor:
        """The mean plus the components, each times its number."""
        return (codes.to(self.components) @ self.components + self.mean).view(-1, *self.target_shape)

    def describe(self) -> dict[str, Any]:
        """Its kind and public numbers."""
        return {"kind": "pca", "size": self.size}

    def __repr__(self) -> str:
        """Sizes only."""
        return f"PCA({self.size} of {len(self.eigenvalues)} components of targets of shape {self.target_shape})"


@final
@dataclass(frozen=True, eq=False)
class RandomProjection(Reducer):
    """A random subspace: orthonormal directions that look at no data.

    Attributes:
        target_shape: the shape of one target.
        size: numbers in a code.
        seed: where the directions come from; public.
    """

    target_shape: tuple[int, ...]
    codes: int
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_shape", _shape(self.target_shape))
        if count("codes", self.codes) > math.prod(self.target_shape):
            raise BadInput(
                f"codes of {self.codes} numbers are wanted of targets of {math.prod(self.target_shape)}: choose at most that"
            )
        count("seed", self.seed, least=0, most=2**63 - 1)
        generator = torch.Generator().manual_seed(self.seed)
        directions, _ = torch.linalg.qr(torch.randn(math.prod(self.target_shape), self.codes, generator=generator))
        object.__setattr__(self, "_directions", directions.T.contiguous())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return self.target_shape

    @property
    def size(self) -> int:
        """Numbers in a code."""
        return self.codes

    @property
    def centre(self) -> Tensor:
        """Zeros."""
        return torch.zeros(self.target_shape)

    @property
    def matrix(self) -> Tensor:
        """The directions, orthonormal rows."""
        found: Tensor = self.__dict__["_directions"]
        return found

    def encode(self, targets: Tensor) -> Tensor:
        """Codes: the directions times targets."""
        return targets.flatten(1).to(self.matrix) @ self.matrix.T

    def decode(self, codes: Tensor) -> Tensor:
        """The point of the subspace that has this code."""
        return (codes.to(self.matrix) @ self.matrix).view(-1, *self.target_shape)

    def describe(self) -> dict[str, Any]:
        """Its kind and public numbers."""
        return {"kind": "random-projection", "size": self.size, "seed": self.seed}


@final
@dataclass(frozen=True, eq=False)
class Identity(Reducer):
    """No reduction: codes are the targets, less a public centre.

    Attributes:
        target_shape: the shape of one target.
        origin: the centre, a number for all or an array of one target's shape; public.
    """

    target_shape: tuple[int, ...]
    origin: Any = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_shape", _shape(self.target_shape))
        try:
            centre = torch.as_tensor(self.origin, dtype=torch.float32).expand(self.target_shape)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"origin can't be a target of shape {self.target_shape}: {error}") from error
        object.__setattr__(self, "_centre", centre)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return self.target_shape

    @property
    def size(self) -> int:
        """Numbers in a code."""
        return math.prod(self.target_shape)

    @property
    def centre(self) -> Tensor:
        """The centre that was given."""
        found: Tensor = self.__dict__["_centre"]
        return found

    @property
    def is_identity(self) -> bool:
        """Codes are targets."""
        return True

    def encode(self, targets: Tensor) -> Tensor:
        """Targets, flat, less the centre."""
        return targets.flatten(1) - self.centre.flatten()

    def decode(self, codes: Tensor) -> Tensor:
        """Codes plus the centre, in the shape of targets."""
        return (codes + self.centre.flatten()).view(-1, *self.target_shape)

    def describe(self) -> dict[str, Any]:
        """Its kind."""
        return {"kind": "identity", "size": self.size}


def _shape(given: Sequence[int]) -> tuple[int, ...]:
    """`given` as a shape."""
    if not isinstance(given, tuple | list | torch.Size) or not given:
        raise BadInput(f"target_shape is {given!r}: expected the shape of one target, such as (64, 64)")
    return tuple(count("a size of target_shape", int(size), most=_MOST) for size in given)
