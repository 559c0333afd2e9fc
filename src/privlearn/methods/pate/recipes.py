"""How one teacher is trained: from the records of its shard to a function that answers.

A teacher may be anything, as long as nothing of it reaches another teacher. So the global random
generators are set to a seed of the teacher's own while it is trained, whatever it draws; its
warnings, which tell of its records, are not printed; and one that fails has no answers.

Label spreading over public inputs (Zhou et al. 2004): few labels, or noisy ones, reach all inputs
that resemble theirs.

How teachers are made, in public words: what is compared before a run is gone on with, and what a
certificate says of
    them.

Only the recipe is described, which is the caller's code and its parameters; nothing here meets a
record.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn._checks import between, checked, count
from privlearn.core.clipping.model_check import made_up_batch
from privlearn.core.clipping.randomness import generators_at
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput, first_line
from privlearn.methods.pate.sums import Shapes, plain
from privlearn.models import networks
from privlearn.runs.code_digest import name_of, named
from privlearn.transforms.modules import Scale

#: From public inputs to a row for each: labels, scores, or targets of any shape.
Predictor = Callable[[Tensor], Any]
#: From the inputs and targets of a shard to its teacher.
Recipe = Callable[[Tensor, Tensor], Predictor]

_REHEARSED = 60  # made-up rows
_ROWS_AT_ONCE = 1024


@checked
@final
@dataclass(frozen=True)
class Estimator:
    """Teachers that are scikit-learn estimators, or anything with `fit(x, y)` and `predict(x)`.

    Rows are given flat, as numpy arrays.

    Attributes:
        make: makes a new one for each teacher, for example `lambda: LogisticRegression(C=0.1)`.
        classes: None: what `predict` says. Else the number of classes: a teacher then gives the
            probability of each by `predict_proba`, 0 for classes that it never saw.
    """

    make: Callable[[], Any]
    classes: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise BadInput(
                f"make is {str(self.make)[:60]}: expected a function that makes an estimator, for "
                "example lambda: LogisticRegression()"
            )
        if self.classes is not None:
            count("classes", self.classes, least=2)

    def __call__(self, x: Tensor, y: Tensor) -> Predictor:
        """Fit one."""
        fitted = self.make()
        fitted.fit(x.flatten(1).numpy(), y.numpy())

        def predict(inputs: Tensor) -> NDArray[Any]:
            rows = inputs.flatten(1).numpy()
            if self.classes is None:
                return np.asarray(fitted.predict(rows))
            scores = np.zeros((len(rows), self.classes))
            known = np.asarray(fitted.classes_, dtype=np.int64)
            there = (known >= 0) & (known < self.classes)  # -1 would be the last one
            scores[:, known[there]] = np.asarray(fitted.predict_proba(rows))[:, there]
            return scores

        return predict

    def require_apart(self) -> None:
        """Raise `BadInput` if two teachers would be one object."""
        if self.make() is self.make():
            raise BadInput(
                "make gives the same estimator twice: teachers would go on where others ended. "
                "Make a new one at each call"
            )


@checked
@final
@dataclass(frozen=True)
class Network:
    """Teachers that are torch modules, of any kind and size.

    Attributes:
        make: makes a new module for each teacher.
        fit: trains it in place, `fit(module, x, y)`.
    """

    make: Callable[[], nn.Module]
    fit: Callable[[nn.Module, Tensor, Tensor], Any]

    def __post_init__(self) -> None:
        if not callable(self.make) or isinstance(self.make, nn.Module) or not callable(self.fit):
            raise BadInput(
                "make is a function that makes a torch.nn.Module, and fit one that trains it: "
                "expected Network(make, fit) with fit(module, x, y)"
            )

    def __call__(self, x: Tensor, y: Tensor) -> Predictor:
        """Train one."""
        module = self.make()
        module.train()
        self.fit(module, x, y)
        module.eval()

        def predict(inputs: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.cat([module(batch) for batch in inputs.split(_ROWS_AT_ONCE)])  # type: ignore[no-untyped-call]

        return predict

    def require_apart(self) -> None:
        """Raise `BadInput` if two teachers would share parameters, or if `make` makes no module."""
        one, two = self.make(), self.make()
        if not isinstance(one, nn.Module):
            raise BadInput(f"make gives a {type(one).__name__}: expected a torch.nn.Module")
        places = [
            {tensor.data_ptr() for tensor in module.state_dict().values() if tensor.numel()}
            for module in (one, two)
        ]
        if one is two or places[0] & places[1]:
            raise BadInput(
                "make gives modules that share parameters: teachers would go on where others "
                "ended. Make new ones at each call"
            )


def network_recipe(
    spec: str,
    shape: tuple[int, ...],
    outputs: int,
    fit: Callable[[nn.Module, Tensor, Tensor], Any],
) -> Network:
    """Teachers that are networks of one spec, such as `mlp:100`, trained by `fit`.

    Initial weights follow from the teacher's own seed, not from teachers before it: they are the
    same in any process, and where an interrupted run goes on.

    Args:
        spec: a built-in network.
        shape: of a row.
        outputs: how many numbers a teacher says of a row.
        fit: trains a module in place, as of `Network`.
    """
    return Network(partial(_build, spec, shape, outputs), fit)


def _build(spec: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network with initial weights that follow from torch's global generator (`isolated`)."""
    seed = int(torch.randint(2**62, (), device="cpu"))
    return networks.build(spec, shape, outputs, np.random.default_rng(seed))


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """For the block: the global random generators at `seed`, and no warnings printed. All are then
    what they were.
    """
    with generators_at(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def taught(recipe: Recipe, x: Tensor, y: Tensor, inputs: Tensor, seed: int) -> Tensor | None:
    """What a teacher that learns from `x` and `y` says to `inputs`; None if it fails, which its
    records may make it do.

    Or if what it says is no array of real numbers; which they may make it, too.
    """
    with isolated(seed):
        try:
            return plain(recipe(x, y)(inputs.clone()))
        except (Exception, SystemExit):
            return None


def rehearse(
    recipe: Recipe, x: Tensor, y: Tensor, inputs: Tensor, shapes: Shapes | None = None
) -> None:
    """Train a teacher on made-up rows: mistakes in a recipe show here, where no record is met, and
    nowhere else.

    Made-up labels are of two classes only, as those of a shard may be.

    Args:
        recipe: how one teacher is trained.
        x: inputs, looked at for their shape and type only.
        y: targets, likewise.
        inputs: what is asked about, likewise.
        shapes: what the shape of one answer must be among; None: any.

    Raises:
        BadInput: it fails, has no row for each input or rows of another shape, or makes teachers
            that are one object.
    """
    with isolated(0):
        if isinstance(recipe, Estimator | Network):
            recipe.require_apart()
        made_up, targets = made_up_batch(x, y, _REHEARSED)
        asked, _ = made_up_batch(inputs, y, 6)
        try:
            answers = as_tensor(recipe(made_up, targets)(asked))
        except Exception as error:
            raise BadInput(
                f"the teachers' recipe fails on {_REHEARSED} made-up rows of the data's shape and "
                f"type: {type(error).__name__}: {first_line(error)}. Expected a function recipe(x, "
                "y) that gives a function predict(inputs)"
            ) from error
    if len(answers.shape) < 1 or len(answers) != 6:
        raise BadInput(
            f"a teacher turns 6 inputs into shape {tuple(answers.shape)}: expected a row for each "
            "input"
        )
    if shapes is not None and tuple(answers.shape[1:]) not in [tuple(shape) for shape in shapes]:
        raise BadInput(
            "a teacher that learned from made-up rows of two classes turns 6 inputs into shape "
            f"{tuple(answers.shape)}: expected "
            f"{' or '.join(str((6, *shape)) for shape in shapes)}, whatever the records hold. "
            "(predict_proba has a column for each class that a teacher met: "
            "pv.teachers.Estimator(make, classes=K) puts them in their places.)"
        )


_ROUNDS = 50
#: Public inputs that a record's label is given to.
_NEAREST = 5


@checked
@final
class Neighbourhood:
    """Which public inputs resemble each other: each is connected to its nearest ones, in principal
    components.

    Args:
        inputs: public inputs, shape (pool, ...).
        components: principal components of theirs that distances are taken in; 0: the inputs
            themselves.
        neighbours: how many each is connected to.
    """

    def __init__(self, inputs: Tensor, components: int = 50, neighbours: int = 10) -> None:
        import scipy.sparse
        from sklearn.decomposition import PCA
        from sklearn.neighbors import NearestNeighbors

        count("components", components, least=0), count("neighbours", neighbours)
        rows = (inputs if inputs.dim() > 1 else inputs.reshape(-1, 1)).flatten(1).double().numpy()
        if len(rows) < 2:
            raise BadInput(
                f"there are {len(rows)} public inputs: expected two or more, for labels to spread "
                "between"
            )
        dimensions = min(components, *rows.shape)
        self._pca = PCA(dimensions, random_state=0).fit(rows) if dimensions else None
        self._index = NearestNeighbors(n_neighbors=min(neighbours, len(rows) - 1)).fit(
            self._reduce(rows)
        )
        graph = self._index.kneighbors_graph()
        graph = graph.maximum(graph.T)
        scale = scipy.sparse.diags(1 / np.sqrt(np.asarray(graph.sum(1)).ravel()))
        self._steps = (scale @ graph @ scale).tocsr()
        self.size = len(rows)

    def _reduce(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows if self._pca is None else np.asarray(self._pca.transform(rows))

    def nearest(self, inputs: Tensor, number: int = 1) -> NDArray[np.int64]:
        """The places of the public inputs nearest to each of `inputs`, shape (rows, number)."""
        rows = self._reduce(inputs.flatten(1).double().numpy())
        places = self._index.kneighbors(
            rows, n_neighbors=min(number, self.size), return_distance=False
        )
        return np.asarray(places, dtype=np.int64)

    def spread(self, beliefs: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        """Spread beliefs, shape (pool, classes), along the connections; rows are then
        probabilities.

        Args:
            beliefs: how much each input is held to be of each class; 0 where nothing is known.
            alpha: how much of its label an input takes from its neighbours.
        """
        reached = beliefs
        for _ in range(_ROUNDS):
            reached = alpha * (self._steps @ reached) + (1 - alpha) * beliefs
        # As much of each class in all, so that none wins by having had more labels.
        reached = reached / np.maximum(reached.sum(0), 1e-300)
        whole = reached.sum(1, keepdims=True)
        evenly: NDArray[np.float64] = np.full_like(reached, 1 / beliefs.shape[1])
        np.divide(reached, whole, out=evenly, where=whole > 0)
        return evenly


@checked
@final
@dataclass(frozen=True, eq=False)
class Spreading:
    """Teachers that spread the labels of their records over public inputs: good with few records
    each.

    A record gives its label to the public inputs that are nearest to it; spread from there, they
    answer.

    Attributes:
        public: public inputs to spread over, a `Dataset(..., public=True)` of the records' form;
            its targets are not used.
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
                "labels are spread over public inputs: give data that are declared so, "
                "pv.Dataset(..., public=True)"
            )
        count("classes", self.classes, least=2), between("alpha", self.alpha, 1e-9, 1 - 1e-9)
        inputs = self.inputs
        if self.public.low is not None:
            inputs = Scale(*self.public.bounds())(inputs)
        object.__setattr__(self, "_near", Neighbourhood(inputs, self.components, self.neighbours))

    @property
    def inputs(self) -> Tensor:
        """The public inputs, as they were given."""
        return as_tensor(
            self.public.x, "the public inputs", whole_is_float=self.public.low is not None
        )

    def __call__(self, x: Tensor, y: Tensor) -> Predictor:
        """Spread the labels of one shard."""
        near: Neighbourhood = self.__dict__["_near"]
        beliefs = np.zeros((near.size, self.classes))
        np.add.at(beliefs, (near.nearest(x, _NEAREST), y.numpy()[:, None]), 1.0)
        labels = near.spread(beliefs, self.alpha).argmax(1)
        return lambda inputs: labels[near.nearest(inputs)[:, 0]]


_LONGEST = 300  # characters of a text


def described(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain values: its kind, and what tells it from others of that kind.

    Two functions are distinguished by their names and their code, not by values that they captured.
    """
    # one that can't be made is refused where teachers are trained
    with isolated(0), suppress(Exception):
        match recipe:
            case Estimator():
                estimator = recipe.make()
                facts = {
                    "class": name_of(type(estimator)),
                    "parameters": _short(repr(estimator)),
                    "classes": recipe.classes,
                }
                return {"kind": "estimator", **facts}
            case Network():
                module = recipe.make()
                size = sum(each.numel() for each in module.parameters())
                layers = {
                    "class": name_of(type(module)),
                    "layers": _short(str(module)),
                    "parameters": size,
                }
                return {"kind": "network", **layers, "fit": named(recipe.fit)}
            case Spreading():
                names = ("classes", "alpha", "components", "neighbours")
                return {"kind": "spreading", **{name: getattr(recipe, name) for name in names}}
    return {"kind": "function", **named(recipe)}


def _short(text: str) -> str:
    """A text in one line, without addresses of objects; a long one is cut, and its end replaced by
    a digest.
    """
    line = re.sub(r" at 0x[0-9A-Fa-f]+", "", " ".join(text.split()))
    if len(line) <= _LONGEST:
        return line
    return f"{line[:_LONGEST]}... (SHA-256 {hashlib.sha256(line.encode()).hexdigest()[:16]})"
