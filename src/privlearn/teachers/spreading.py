"""Label spreading over public inputs (Zhou et al. 2004): few labels, or noisy ones, reach all inputs that resemble theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privlearn._validate import between, count
from privlearn.data.dataset import Dataset, as_tensor
from privlearn.errors import BadInput
from privlearn.models import Scale
from privlearn.teachers.recipes import Predictor

_ROUNDS = 50
#: Public inputs that a record's label is given to.
_NEAREST = 5


@final
class Neighbourhood:
    """Which public inputs resemble each other: each is connected to its nearest ones, in principal components.

    Args:
        inputs: public inputs, shape (pool, ...).
        components: principal components of theirs that distances are taken in; 0: the inputs themselves.
        neighbours: how many each is connected to.
    """

    def __init__(self, inputs: Tensor, components: int = 50, neighbours: int = 10) -> None:
        import scipy.sparse
        from sklearn.decomposition import PCA
        from sklearn.neighbors import NearestNeighbors

        count("components", components, least=0), count("neighbours", neighbours)
        rows = inputs.flatten(1).double().numpy()
        if len(rows) < 2:
            raise BadInput(f"there are {len(rows)} public inputs: expected two or more, for labels to spread between")
        kept = min(components, *rows.shape)
        self._pca = PCA(kept, random_state=0).fit(rows) if kept else None
        self._index = NearestNeighbors(n_neighbors=min(neighbours, len(rows) - 1)).fit(self._reduced(rows))
        graph = self._index.kneighbors_graph()
        graph = graph.maximum(graph.T)
        scale = scipy.sparse.diags(1 / np.sqrt(np.asarray(graph.sum(1)).ravel()))
        self._steps = (scale @ graph @ scale).tocsr()
        self.size = len(rows)

    def _reduced(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows if self._pca is None else np.asarray(self._pca.transform(rows))

    def nearest(self, inputs: Tensor, number: int = 1) -> NDArray[np.int64]:
        """The places of the public inputs nearest to each of `inputs`, shape (rows, number)."""
        rows = self._reduced(inputs.flatten(1).double().numpy())
        found = self._index.kneighbors(rows, n_neighbors=min(number, self.size), return_distance=False)
        return np.asarray(found, dtype=np.int64)

    def spread(self, beliefs: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        """Spread beliefs, shape (pool, classes), along the connections; rows are then probabilities.

        Args:
            beliefs: how much each input is held to be of each class; 0 where nothing is known.
            alpha: how much of its label an input takes from its neighbours.
        """
        found = beliefs
        for _ in range(_ROUNDS):
            found = alpha * (self._steps @ found) + (1 - alpha) * beliefs
        # As much of each class in all, so that none wins by having had more labels.
        found = found / np.maximum(found.sum(0), 1e-300)
        whole = found.sum(1, keepdims=True)
        evenly: NDArray[np.float64] = np.full_like(found, 1 / beliefs.shape[1])
        np.divide(found, whole, out=evenly, where=whole > 0)
        return evenly


@final
@dataclass(frozen=True, eq=False)
class Spreading:
    """Teachers that spread the labels of their records over public inputs: good with few records each.

    A record gives its label to the public inputs that are nearest to it; spread from there, they answer.

    Attributes:
        public: public inputs to spread over, a `Dataset(..., public=True)` of the records' form; its targets are not used.
        classes: how many there are.
        alpha: how much of its label an input takes from its neighbours.
        components: principal components of the public inputs that distances are taken in.
        neighbours: how many neighbours an input is connected to.

    Raises:
        BadInput: data that are not declared public, or a number out of range.
    """

    public: Dataset
    classes: int
    alpha: float = 0.95
    components: int = 50
    neighbours: int = 10

    def __post_init__(self) -> None:
        if not isinstance(self.public, Dataset) or not self.public.public:
            raise BadInput(
                "labels are spread over public inputs: give data that are declared so, pv.Dataset(..., public=True)"
            )
        count("classes", self.classes, least=2), between("alpha", self.alpha, 1e-9, 1 - 1e-9)
        inputs = as_tensor(self.public.x, "the public inputs", whole_is_float=self.public.low is not None)
        if self.public.low is not None:
            inputs = Scale(*self.public.bounds())(inputs)
        object.__setattr__(self, "_near", Neighbourhood(inputs, self.components, self.neighbours))

    def __call__(self, x: Tensor, y: Tensor) -> Predictor:
        """Spread the labels of one shard."""
        near: Neighbourhood = self.__dict__["_near"]
        beliefs = np.zeros((near.size, self.classes))
        np.add.at(beliefs, (near.nearest(x, _NEAREST), y.numpy()[:, None]), 1.0)
        labels = near.spread(beliefs, self.alpha).argmax(1)
        return lambda inputs: labels[near.nearest(inputs)[:, 0]]
