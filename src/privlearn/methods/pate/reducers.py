"""What every reducer can do, and what it may be fitted on: data that are declared public.

Linear reducers: principal components, a random projection, and none.

The bottleneck of the autoencoder: an activation that fills the unit ball (Fay et al. 2020,
appendix).

For standard normal inputs the direction is uniform on the sphere, exactly, and the radius to the
power of the dimension is uniform on [0, 1] up to 0.0177, which is how far the logistic function is
from the normal distribution's.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn._checks import as_plain, checked, count, probability, with_plain_numbers
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.transforms.signs import with_fixed_signs

_ROWS_AT_ONCE = 256


class Reducer:
    """A public map from targets to short codes and back. Codes are what teachers' answers are
    averaged and released as.

    What is fitted on data must be fitted on public data: a map that was fitted on private targets
    would give them away.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers in a code."""

    @property
    @abstractmethod
    def centre(self) -> Tensor:
        """The public target that stands in for one that can't be used."""

    @property
    def code_centre(self) -> Tensor:
        """The public code that codes are clipped about and that replaces an unusable teacher's,
        shape (size,).

        It is the centre's code; 0 for reducers whose codes are bounded, which are not shifted
        before they are clipped.
        """
        return self.encode(self.centre[None])[0]

    @property
    def matrix(self) -> Tensor | None:
        """The linear map (size, numbers in a target), applied after the centre is taken off; None
        if not linear.
        """
        return None

    @property
    def is_identity(self) -> bool:
        """Whether codes are the targets themselves, less the centre."""
        return False

    @abstractmethod
    def encode(self, targets: Tensor) -> Tensor:
        """Codes, shape (rows, size), of targets (rows, *shape)."""

    @abstractmethod
    def decode(self, codes: Tensor) -> Tensor:
        """Targets, shape (rows, *shape), that belong to codes (rows, size)."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Its kind and public numbers, for certificates."""

    def radius(self, public: Dataset, share: float = 1.0) -> float:
        """The radius about `code_centre` within which this share of public targets' codes lie, for
        `pv.teachers.Ball`.

        Raises:
            BadInput: data that are not declared public, or targets of another shape.
        """
        targets = public_targets(public)
        if tuple(targets.shape[1:]) != self.shape:
            raise BadInput(
                f"targets have shape {tuple(targets.shape[1:])}: this reducer takes {self.shape}"
            )
        centre, parts = self.code_centre, targets.split(_ROWS_AT_ONCE)  # type: ignore[no-untyped-call]
        lengths = [(self.encode(part) - centre).norm(dim=1) for part in parts]
        return float(torch.quantile(torch.cat(lengths).double(), probability("share", share)))


def public_targets(public: Dataset) -> Tensor:
    """The targets of public data as floating-point numbers, shape (rows, ...).

    Raises:
        BadInput: data that are not declared public, or targets that are no finite numbers or
            labels.
    """
    if not isinstance(public, Dataset) or not public.public:
        raise BadInput(
            "a reducer is fitted on data that are declared public, pv.Dataset(x, y, public=True): "
            "fitted on private targets it would give them away, unpaid. Those of the teachers' "
            "records are private"
        )
    _, targets = public.tensors()
    if targets.dim() < 2 or len(targets) < 2 or math.prod(targets.shape[1:]) < 1:
        raise BadInput(
            f"the public targets have shape {tuple(targets.shape)}: expected at least two rows, "
            "each a target of one or more dimensions. For labels ask for votes, "
            "pv.teachers.Votes(classes), which need no reducer"
        )
    targets = targets if targets.is_floating_point() else targets.float()
    if not bool(targets.isfinite().all()):
        raise BadInput("the public targets hold values that are not finite: leave such rows out")
    return targets


_MOST = 10**10


@checked
@final
@dataclass(frozen=True, eq=False, repr=False)
class PublicPCA(Reducer):
    """The first principal components of public targets (Fay et al. 2020, Algorithm 1).

    Attributes:
        target_shape: the shape of one target.
        mean: the public targets' mean, shape (numbers in a target,).
        components: the kept directions, orthonormal rows: shape (size, numbers in a target).
        eigenvalues: variances along all directions that were found, the largest first. The rest,
            where there are fewer rows than numbers in a target, are 0.
    """

    target_shape: tuple[int, ...]
    mean: Tensor
    components: Tensor
    eigenvalues: Tensor

    @classmethod
    @with_plain_numbers
    def fit(cls, public: Dataset, components: int | None = None) -> PublicPCA:
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
        directions = with_fixed_signs(directions.mT).mT.contiguous()
        fitted = cls(
            tuple(targets.shape[1:]), mean, directions, lengths.double().square() / (len(rows) - 1)
        )
        return fitted if components is None else fitted.kept(components)

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

    def kept(self, components: int) -> PublicPCA:
        """The same with the first `components` directions only.

        Raises:
            BadInput: more than there are.
        """
        if count("components", components) > self.size:
            raise BadInput(
                f"{components} components are wanted, and {self.size} were found: choose at most "
                f"{self.size}"
            )
        return replace(self, components=self.components[:components].clone())

    def best(self, noise_std: float) -> int:
        """How many components lose least to noise of `noise_std` in each: those with a larger
        variance than the noise.

        Fay et al. (2020, eq. 7), with their index read as a count. It may be 0.
        """
        return int((self.eigenvalues > noise_std**2).sum())

    def for_noise(self, noise_std: float) -> PublicPCA:
        """The same with the `best` number of components for that noise.

        Raises:
            BadInput: it is 0: the public mean, which costs nothing, is better than any answer.
                A smaller radius of the codes lowers the noise, too, and `kept(1)` goes on anyway.
        """
        best = min(self.best(noise_std), self.size)
        if not best:
            raise BadInput(
                f"no component has a variance above the noise's, {noise_std**2:.4g}: the largest "
                f"has {float(self.eigenvalues[0]):.4g}. Then the public mean alone is better than "
                "answers: use more teachers=, fewer queries= or a larger epsilon="
            )
        return self.kept(best)

    def loss(self, noise_std: float, components: int | None = None) -> float:
        """The expected squared error of a target that was encoded, noised and decoded (Fay et al.
        2020, sec. Utility).

        The variance along the directions that were left out, plus one noise variance for each that
        was kept; clipping left aside.

        Args:
            noise_std: standard deviation of the noise on each number of the code: `plan.noise_std`.
            components: how many are kept; by default as many as there are.
        """
        size = self.size if components is None else count("components", components, least=0)
        return float(self.eigenvalues[size:].sum()) + size * noise_std**2

    def encode(self, targets: Tensor) -> Tensor:
        """Codes: components times what is left when the mean is taken off."""
        return (targets.flatten(1).to(self.mean) - self.mean) @ self.components.T

    def decode(self, codes: Tensor) -> Tensor:
        """The mean plus the components, each times its number."""
        return (codes.to(self.components) @ self.components + self.mean).view(
            -1, *self.target_shape
        )

    def describe(self) -> dict[str, Any]:
        """Its kind and public numbers."""
        return {"kind": "pca", "size": self.size}

    def __repr__(self) -> str:
        """Sizes only."""
        return (
            f"PCA({self.size} of {len(self.eigenvalues)} components of targets of shape "
            f"{self.target_shape})"
        )


@checked
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
                f"codes of {self.codes} numbers are wanted of targets of "
                f"{math.prod(self.target_shape)}: choose at most that"
            )
        count("seed", self.seed, least=0, most=2**63 - 1)
        generator = torch.Generator().manual_seed(self.seed)
        directions, _ = torch.linalg.qr(
            torch.randn(math.prod(self.target_shape), self.codes, generator=generator, device="cpu")
        )
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
        return torch.zeros(self.target_shape, device="cpu")

    @property
    def matrix(self) -> Tensor:
        """The directions, orthonormal rows."""
        directions: Tensor = self.__dict__["_directions"]
        return directions

    def encode(self, targets: Tensor) -> Tensor:
        """Codes: the directions times targets."""
        return targets.flatten(1).to(self.matrix) @ self.matrix.T

    def decode(self, codes: Tensor) -> Tensor:
        """The point of the subspace that has this code."""
        return (codes.to(self.matrix) @ self.matrix).view(-1, *self.target_shape)

    def describe(self) -> dict[str, Any]:
        """Its kind and public numbers."""
        return {"kind": "random-projection", "size": self.size, "seed": self.seed}


@checked
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
            object.__setattr__(self, "origin", as_plain(self.origin, float))
            centre = torch.as_tensor(self.origin, dtype=torch.float32, device="cpu").expand(
                self.target_shape
            )
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(
                f"origin can't be a target of shape {self.target_shape}: {error}"
            ) from error
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
        centre: Tensor = self.__dict__["_centre"]
        return centre

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


def _shape(sizes: Sequence[int]) -> tuple[int, ...]:
    """`given` as a shape."""
    if not isinstance(sizes, tuple | list | torch.Size) or not sizes:
        raise BadInput(
            f"target_shape is {sizes!r}: expected the shape of one target, such as (64, 64)"
        )
    return tuple(count("a size of target_shape", int(size), most=_MOST) for size in sizes)


_SLOPE = math.sqrt(8 / math.pi)


@checked
def unit_ball(o: Tensor) -> Tensor:
    """Map `o`, shape (rows, l + 1), into the unit ball in l dimensions: shape (rows, l).

    The first number says how far from the origin, logistic(o_0 sqrt(8 / pi)) ^ (1 / l), the others
    in which direction. It is computed as exp(-softplus(-o_0 sqrt(8 / pi)) / l), which has no
    overflow at either end. The last step is a hard clip, so that no rounding leaves the ball.
    """
    if o.dim() != 2 or o.shape[1] < 2:
        raise BadInput(
            f"o has shape {tuple(o.shape)}: expected (rows, l + 1), of at least two numbers each"
        )
    size = o.shape[1] - 1
    radius = torch.exp(-F.softplus(-_SLOPE * o[:, :1]) / size)
    direction = F.normalize(o[:, 1:], dim=1, eps=torch.finfo(o.dtype).tiny)
    z = radius * direction
    inside: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=1.0)
    return inside
