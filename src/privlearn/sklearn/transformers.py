"""Transforms of rows that a release makes: scaling by noisy moments, noisy principal components, an
autoencoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from privlearn._checks import count
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.calibration import solve_gaussian
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.derivative_bounds import Derivatives
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.streams import Streams
from privlearn.core.transform import PrivateTransform
from privlearn.methods.dpmac.dpmac import dpmac
from privlearn.runs.session import Session
from privlearn.sklearn.estimator import ADJACENCY, Array, PrivateEstimator
from privlearn.transforms.modules import Project, Standardise
from privlearn.transforms.moments import Moments
from privlearn.transforms.pca import PrivatePCA

#: DP-MAC's settings for an autoencoder, as on docs/methods.md.
_RATE, _EPOCHS, _THRESHOLD = 0.2, 15, 1.0
_LEARNING_RATE, _MOMENTUM = 0.1, 0.9


@final
@dataclass(frozen=True, eq=False)
class ReleasedTransform:
    """The module that a release made, its plan, and the ledger that was charged."""

    module: nn.Module
    plan: Releases
    ledger: Ledger


class PrivateScaledTransformer(TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """A transformer whose release takes rows of numbers in [-1, 1]: scaled by the declared bounds,
    or squashed.
    """

    classes = None

    def _units(self) -> tuple[Array, Array]:
        """The middle and half the width of each number's bounds; of a squashed number, 0 and 1."""
        low, high = (
            np.broadcast_to(np.asarray(bound), (self.n_features_in_,)) for bound in self._bounds()
        )
        return (low + high) / 2, (high - low) / 2

    def _unit_rows(self, X: Array) -> Array:
        """Rows of numbers in [-1, 1], each row by itself; numbers beyond the bounds count as
        these.
        """
        middle, half = self._units()
        rows: Array = ((self._scaled_rows(X) - middle) / half).clip(-1, 1)
        return rows

    def _release_module(self, transform: PrivateTransform, rows: Array) -> Any:
        """The module of a transform, made by its release on these rows alone."""
        plan = Releases(transform.event(), ADJACENCY, budget=Budget(self.epsilon, self.delta))

        def release(ledger: Ledger, streams: Streams) -> ReleasedTransform:
            session = Session(plan, ledger, streams)
            session.count_examples(len(rows), None)  # without targets, as no other run
            with session.charging():
                module = transform.fit(
                    torch.from_numpy(rows), plan.neighbours, ledger, streams.noise
                )
            return ReleasedTransform(module, plan, ledger)

        return self._release(plan, (), release).module

    def _noise(self) -> float:
        """The noise multiplier of one Gaussian release that meets the target."""
        budget = Budget(self.epsilon, self.delta)
        return solve_gaussian(budget, lambda noise: budget.spent(Gaussian(noise), ADJACENCY))


@final
class DPStandardScaler(OneToOneFeatureMixin, PrivateScaledTransformer):  # type: ignore[misc]
    """Takes off each feature's mean and divides by its deviation, from one release of noisy
    moments.

    Guarantee: of a fit, a Gaussian release at the target (`privlearn.transforms.Moments`); of
    several, see `privacy_`.

    Args:
        epsilon, delta: the target of one fit.
        bounds: (low, high) of the numbers in rows, public, or arrays of one for each feature;
            numbers are clipped. None: each number x becomes x / (1 + |x|), and moments are of that.
        ledger: what fits are charged to; None: one that the estimator shares with its clones,
            without a limit.
        random_state: None for noise from the operating system, or `pv.Streams`. With a seed nothing
            is claimed.
        preprocessing: "public", or None: as of every estimator here (`PrivateEstimator`).

    Attributes:
        mean_, scale_, var_: of each feature, as released, in the units of the rows (squashed ones,
            without bounds).
        result_, privacy_, n_features_in_, feature_names_in_: as of every estimator here.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: Any = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.bounds = epsilon, delta, bounds
        self.ledger, self.random_state = ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any = None) -> DPStandardScaler:
        """Release the moments of rows, shape (rows, features).

        Raises:
            BudgetExceeded: the ledger has no room; before anything is drawn.
            BadInput: bounds that are none, or rows that are not finite; before anything is spent.
        """
        rows = self._unit_rows(self._validated(X))
        features = self.n_features_in_
        module = self._release_module(Moments(features, self._noise(), math.sqrt(features)), rows)
        assert isinstance(module, Standardise)
        middle, half = self._units()
        self.mean_ = middle + half * module.get_buffer("mean").double().numpy()
        self.scale_ = half * module.get_buffer("deviation").double().numpy()
        self.var_ = self.scale_**2
        return self

    def transform(self, X: Any) -> Array:
        """Standardised rows, shape (rows, features)."""
        check_is_fitted(self, "scale_")
        return np.asarray(
            (self._scaled_rows(self._validated(X, reset=False)) - self.mean_) / self.scale_
        )


@final
class DPPCA(ClassNamePrefixFeaturesOutMixin, PrivateScaledTransformer):  # type: ignore[misc]
    """Projects rows on principal components, from one release of their noisy second moments.

    Numbers are scaled to [-1, 1] by the declared bounds, so that the middle of the bounds takes the
    place of the mean, which is not released. Components are of rows scaled like this.

    Guarantee: of each fit, one Gaussian release at the target, as
    `privlearn.transforms.PrivatePCA`; of several, see `privacy_`.

    Args:
        n_components: how many; at most as many as features are kept.
        epsilon, delta, bounds, ledger, random_state, preprocessing: as of `DPStandardScaler`.

    Attributes:
        components_: orthonormal, shape (n_components, features), the largest variance first.
        n_components_: how many there are.
        result_, privacy_, n_features_in_, feature_names_in_: as of every estimator here.
    """

    def __init__(
        self,
        n_components: int = 2,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: Any = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta, self.bounds = (
            n_components,
            epsilon,
            delta,
            bounds,
        )
        self.ledger, self.random_state = ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any = None) -> DPPCA:
        """Release components of rows, shape (rows, features). Errors as of
        `DPStandardScaler.fit`.
        """
        rows = self._unit_rows(self._validated(X))
        features = self.n_features_in_
        self.n_components_ = min(count("n_components", self.n_components), features)
        module = self._release_module(
            PrivatePCA(self.n_components_, self._noise()), rows / math.sqrt(features)
        )
        assert isinstance(module, Project)
        vectors = module.get_buffer("components").double()
        self.components_ = (vectors / torch.linalg.vector_norm(vectors, dim=0)).T.numpy()
        return self

    def transform(self, X: Any) -> Array:
        """Coordinates on the components, shape (rows, n_components)."""
        check_is_fitted(self, "components_")
        return np.asarray(self._unit_rows(self._validated(X, reset=False)) @ self.components_.T)

    def inverse_transform(self, X: Any) -> Array:
        """Rows with these coordinates, shape (rows, features); squashed ones, without bounds."""
        check_is_fitted(self, "components_")
        middle, half = self._units()
        return np.asarray(middle + half * (np.asarray(X, np.float64) @ self.components_))

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)


@final
class DPAutoencoder(ClassNamePrefixFeaturesOutMixin, PrivateScaledTransformer):  # type: ignore[misc]
    """Short codes of rows by an autoencoder with one hidden layer, trained by DP-MAC, layer by
    layer.

    Guarantee: of each fit as that of `privlearn.dpmac`; of several, see `privacy_`.

    Args:
        n_components: numbers in a code.
        options: other fields of the plan (`privlearn.Plan`): `{"epochs": 30, "examples": 1000}`.
        epsilon, delta, bounds, ledger, random_state, preprocessing: as of `DPStandardScaler`.

    Attributes:
        module_: the autoencoder, of rows whose bounds are -1 and 1.
        result_: what `privlearn.publish` takes.
        privacy_, n_features_in_, feature_names_in_: as of every estimator here.
    """

    def __init__(
        self,
        n_components: int = 2,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: Any = None,
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta, self.bounds = (
            n_components,
            epsilon,
            delta,
            bounds,
        )
        self.options, self.ledger, self.random_state = options, ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any = None) -> DPAutoencoder:
        """Train on rows, shape (rows, features). Errors as of `DPStandardScaler.fit`, and as of
        `privlearn.dpmac`.
        """
        rows = self._unit_rows(self._validated(X)).astype(np.float32)
        features, size = self.n_features_in_, count("n_components", self.n_components)
        fields = self._options(Plan, epochs=_EPOCHS, sampling=Poisson(_RATE))
        plan = Plan(clip=Derivatives(_THRESHOLD), **fields).calibrate(
            epsilon=self.epsilon, delta=self.delta
        )

        def release(ledger: Ledger, streams: Streams) -> Any:
            with torch.random.fork_rng():
                torch.manual_seed(int(streams.initialisation.integers(2**63)))
                network = nn.Sequential(
                    nn.Linear(features, size, device="cpu"),
                    nn.Tanh(),
                    nn.Linear(size, features, device="cpu"),
                )
            return dpmac(
                plan,
                network,
                "mse",
                (rows, rows),
                ledger=ledger,
                streams=streams,
                optimizer=lambda parameters: torch.optim.SGD(
                    parameters, lr=_LEARNING_RATE, momentum=_MOMENTUM
                ),
            )

        self.module_ = self._release(plan, (), release).model.double().eval()
        return self

    def _said(self) -> dict[str, str]:
        scaled = "scaled so that their bounds are -1 and 1"
        return {"rows": ", then ".join([*super()._said().values(), scaled])}

    def _layers(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        check_is_fitted(self, "module_")
        first, activation, last = self.module_[-1]
        return first, activation, last

    def transform(self, X: Any) -> Array:
        """Codes of rows, shape (rows, n_components), of numbers in (-1, 1)."""
        first, activation, _ = self._layers()
        rows = torch.from_numpy(self._unit_rows(self._validated(X, reset=False)))
        with torch.no_grad():
            return np.asarray(activation(first(rows)).numpy())

    def inverse_transform(self, X: Any) -> Array:
        """Rows of these codes, shape (rows, features); squashed ones, without bounds."""
        *_, last = self._layers()
        middle, half = self._units()
        with torch.no_grad():
            return np.asarray(
                middle + half * last(torch.as_tensor(X, dtype=torch.float64, device="cpu")).numpy()
            )

    @property
    def _n_features_out(self) -> int:
        return int(self.module_[-1][0].out_features)
