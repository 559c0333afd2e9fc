"""What all scikit-learn estimators share: rows and labels as declared, the ledger, `privacy_` and
`publish`.
"""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from privlearn._checks import as_plain, one_of, positive, require_fit
from privlearn._display import shortened
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import AbstractPlan
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.encoding import listed
from privlearn.data.sparse_matrix import refuse_dense
from privlearn.data.target_forms import as_array, require_one_each
from privlearn.errors import BadInput
from privlearn.publishing.publish import publish
from privlearn.runs.result import Result
from privlearn.sklearn.missing_values import NOT_FINITE_TARGETS, describe_not_finite
from privlearn.sklearn.preprocessing import is_behind_release, person_column, reasons_of
from privlearn.sklearn.spending import FitPrivacy, Held, SharedFits, spend

Array = NDArray[Any]

#: The kind of neighbour where nothing else is chosen: that of DP-SGD without a declared number of
#: examples, so that the steps of a pipeline fit on one ledger. How many rows there are is public.
ADJACENCY = Adjacency.ZERO_OUT

NO_CLASSES = "the classes were read off the labels: declare them, classes=[...]"
NO_TARGET_BOUNDS = (
    "the bounds of the target were read off the targets: declare them, target_bounds=(low, high)"
)
#: So many numbers of sparse rows are made dense together.
_AT_ONCE = 1 << 23
#: What `preprocessing` may declare, and what the card then says.
PUBLIC = "public"
_DECLARED = (
    "the person who published this declared the preprocessing public: that it learned nothing "
    "from these rows"
)
_SQUASHED = "x / (1 + |x|), number by number: no bounds were declared"


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators: each `fit` is one release, charged to one ledger.

    Without `ledger=` fits are charged to a ledger that the estimator shares with its clones and
    copies, and with nothing else. It has no limit: the first fit has the guarantee that was asked
    for, each further one adds to it, which `privacy_` says and a `PrivacyWarning`. With `ledger=`
    all fits are charged there, and refused beyond its budget. An estimator that was pickled without
    a ledger in a file predicts, and takes no fit.

    Neighbours differ in one row, replaced by an empty one (`zero_out`): how many rows there are is
    public. Where an estimator has options, `{"adjacency": "add_remove"}` is another kind, for
    DP-SGD with a declared `{"examples": N}`.

    Rows that hold no finite numbers, and labels outside the declared classes, are refused before
    anything is spent.

    Args:
        preprocessing: "public": you declare that what transformed the rows before `fit` learned
            nothing from private rows; the card of the published model repeats it. None: where steps
            are seen that may have learned from them, as in a pipeline, nothing is claimed.

    Attributes:
        privacy_: what the fit guarantees, and all fits together (`FitPrivacy`).
        n_features_in_: numbers in a row.
        feature_names_in_: what they are called, where rows come in a table with names.
    """

    # Parameters that every estimator has.
    epsilon: float
    delta: float
    bounds: Any
    classes: Any
    ledger: Ledger | None
    random_state: Any
    preprocessing: str | None
    #: Whether rows of a sparse matrix are taken as they are; else they are refused.
    _takes_sparse: ClassVar[bool] = False

    # -- one ledger for an estimator and its clones

    def _shared(self) -> SharedFits:
        """What clones have in common: made at the first fit, clone, copy or pickle."""
        if "_fits" not in vars(self):
            self._fits = SharedFits(Ledger())
        return self._fits

    def __sklearn_clone__(self) -> Any:
        cloned = BaseEstimator.__sklearn_clone__(self)
        cloned._fits = self._shared()
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        self._shared()
        state: dict[str, Any] = BaseEstimator.__getstate__(self)
        return state

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's checks know of it."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse
        return tags

    # -- what is declared

    def _validated(self, X: Any, y: Any = "no_validation", *, reset: bool = True) -> Any:
        """Rows of finite numbers, and targets if there are some; rows unlike the fit's are refused,
        unless `reset`.
        """
        if reset and self._plan is None:
            positive("epsilon", self.epsilon)
        if not isinstance(y, str):
            y = as_array(y, "the targets")
            shape = tuple(getattr(y, "shape", ()))
            if shape[1:] != (1,):
                require_one_each(shape, "the targets")
        if issparse(X) and not self._takes_sparse:
            refuse_dense(X.shape, type(self).__name__)
        try:
            return validate_data(self, X, y, reset=reset, dtype=np.float64, accept_sparse="csr")
        except BadInput:
            raise
        except ValueError as error:
            if str(error).startswith("could not convert"):  # it quotes a cell
                raise BadInput(
                    "X holds values that are not numbers: encode texts first, and leave out ids"
                ) from None
            if str(error).startswith("Input X contains"):
                raise BadInput(describe_not_finite(X)) from None
            if str(error).startswith("Input y contains"):
                raise BadInput(NOT_FINITE_TARGETS) from None
            raise BadInput(str(error)) from error

    def _labelled(self, X: Any, y: Any) -> tuple[Array, Array, tuple[str, ...]]:
        """Rows, labels as the classes' numbers, and what was read off the private rows; sets
        `classes_`.

        Raises:
            BadInput: labels outside the declared classes, or fewer than two classes.
        """
        X, y = self._validated(X, y)
        if self.classes is None:
            try:
                check_classification_targets(y)
            except ValueError as error:
                raise BadInput(str(error)) from error
        self.classes_, labels, reasons = numbered(
            column_or_1d(y, warn=True), self.classes, self._plan
        )
        if len(self.classes_) < 2:
            raise BadInput("the labels are of 1 class: expected two or more, classes=[...]")
        return X, labels, reasons

    @property
    def _plan(self) -> Any:
        """The plan that was given, by which rows are clipped as they are; None: there is none."""
        return getattr(self, "plan", None)

    @property
    def _squashed(self) -> bool:
        """Whether rows go through a fixed public map, for want of declared bounds."""
        return self.bounds is None and self._plan is None

    def _scaled_rows(self, X: Any) -> Any:
        """Rows as the release takes them: as they are where bounds are declared, else each number x
        / (1 + |x|).
        """
        if self._squashed and issparse(X):  # zeros stay zeros
            return _squash_stored(X)
        return X / (1 + np.abs(X)) if self._squashed else X

    def _dataset(self, X: Array, y: Array | None, classes: int | None = None) -> Dataset:
        """Rows with all that is declared of them."""
        low, high = self._bounds()
        names = tuple(map(str, getattr(self, "feature_names_in_", ())))
        return Dataset(
            self._scaled_rows(X), y, classes=classes, low=low, high=high, feature_names=names
        )

    def _bounds(self) -> tuple[Any, Any]:
        """The declared bounds, numbers or arrays of one for each feature; (-1, 1) for squashed
        rows.

        Raises:
            BadInput: something else.
        """
        if self.bounds is None:
            return (-1.0, 1.0) if self._squashed else (None, None)
        return pair("bounds", self.bounds, self.n_features_in_)

    def _streams(self) -> Streams:
        """The random streams of one fit."""
        state = as_plain(self.random_state, int)
        if isinstance(state, Streams):
            return state
        if isinstance(state, np.random.RandomState):
            return Streams.new(int(state.randint(2**31)))
        if state is not None and (
            isinstance(state, bool) or not isinstance(state, numbers.Integral)
        ):
            raise BadInput(
                f"random_state is {shortened(repr(state), 60)}: expected None, a whole number or "
                "pv.Streams.new()"
            )
        return Streams.new(None if state is None else int(state))

    @property
    def _discrete(self) -> bool:
        """Whether noise is drawn on a grid."""
        return isinstance(self.random_state, Streams) and self.random_state.noise.discrete

    def _options(self, *kinds: type[Any], **usual: Any) -> dict[str, Any]:
        """The options, and the usual ones; with kinds, none but their fields (and the usual ones).

        Raises:
            BadInput: others, or no mapping.
        """
        options = getattr(self, "options", None)
        options = {} if options is None else options
        if not isinstance(options, Mapping):
            raise BadInput(
                f"options is {shortened(repr(options), 60)}: expected a dictionary of settings by "
                "name, or None"
            )
        known = {*usual, *(field.name for kind in kinds for field in fields(kind))}
        unknown = [name for name in options if kinds and name not in known]
        if unknown:
            raise BadInput(
                f"options has {str(unknown[0])[:40]!r}: expected some of {', '.join(sorted(known))}"
            )
        return usual | {name: as_plain(value, int | float) for name, value in options.items()}

    def _weights(self, weights: Any, rows: int) -> Array | None:
        """Weights from 0 to 1, one for each row; None where none are given.

        Raises:
            BadInput: others, or none above 0.
        """
        if weights is None:
            return None
        values = np.asarray(weights)
        if values.ndim == 0 and values.dtype.kind in "fiub":
            values = np.full(rows, values)
        if (
            values.dtype.kind not in "fiub"
            or values.shape != (rows,)
            or not np.isfinite(values).all()
            or (values < 0).any()
        ):
            raise BadInput(
                f"sample_weight holds {values.dtype} values of shape {values.shape}: expected a "
                f"finite number of at least 0 for each of the {rows} rows"
            )
        if not (values > 0).any():
            raise BadInput(
                "sample_weight is zero for every row: expected at least one row with a weight "
                "above zero"
            )
        return np.asarray(values.clip(0, 1))

    # -- the release

    def _release(
        self, plan: Planned, reasons: tuple[str, ...], release: Callable[[Ledger, Streams], Any]
    ) -> Any:
        """Carry out the release of a fit; `privacy_` says what it cost."""
        one_of(
            "preprocessing",
            "None" if self.preprocessing is None else self.preprocessing,
            ("None", PUBLIC),
        )
        declared = self.preprocessing == PUBLIC
        reasons = (*reasons, *reasons_of(self, PrivateEstimator, declared=declared))
        self._behind_release = is_behind_release(self, PrivateEstimator)
        person = person_column(self)
        if person and plan.unit.rows_per_person is None:
            takes_groups = "groups" in signature(type(self).fit).parameters
            use = 'give groups= and options={"rows_per_person": K}, or ' if takes_groups else ""
            raise BadInput(
                f"the table's schema says that column {person[:40]!r} tells whose row each is, "
                f"and this fit protects single rows: {use}leave `person` out of the schema if no "
                "one has more than one row"
            )
        streams = self._streams()
        result, privacy = spend(
            self._shared(),
            self.ledger,
            plan,
            reasons,
            streams,
            self.delta,
            lambda ledger: release(ledger, streams),
        )
        self.privacy_: FitPrivacy = privacy
        if reasons and isinstance(result, Result):  # `pv.publish` refuses it, too
            result = replace(result, facts={**result.facts, "unclaimed": "; ".join(reasons)})
        self._held = Held(result)
        return result

    @property
    def result_(self) -> Any:
        """What the release returned: free to use."""
        check_is_fitted(self, "_held")
        if self._held.result is None:
            raise BadInput(
                "this estimator was pickled after its fit, and what was released stayed with the "
                "ledger: publish it where it was fitted, or keep the ledger in a file, "
                "pv.Ledger.open(path, budget)"
            )
        return self._held.result

    def publish(self, out: str | Path, **arguments: Any) -> Path:
        """Publish the fitted model as a folder with its certificate: arguments and errors as of
        `privlearn.publish`.

        The model takes rows as `fit` does where bounds are declared. Without, it takes each number
        x as x / (1 + |x|), and the card says so.

        Raises:
            BadInput: nothing is claimed, because something was not declared; or what was fitted is
                no model.
        """
        result = self.result_
        if not isinstance(result, Result):
            raise BadInput(
                f"{type(self).__name__} makes no model of its own: publish the estimator that "
                "comes after it, whose model takes the rows that this one makes"
            )
        if self.privacy_.total is None:
            raise BadInput(
                "nothing can be claimed for this model: "
                f"{'; '.join(self.privacy_.undeclared)[:200]}"
            )
        if self._behind_release and self.privacy_.total.kind != "bound":
            raise BadInput(
                "the certificate would be for this fit alone, and leave out what private steps "
                "before it released about the same rows: expected one ledger with a budget for all "
                "of them, ledger=pv.Ledger(pv.Budget(E, D))"
            )
        result.require_unchanged()
        said = {**self._said(), **(arguments.pop("data", None) or {})}
        said |= {"preprocessing": _DECLARED} if self.preprocessing == PUBLIC else {}
        named = replace(result, architecture=result.architecture | self._names(result))
        return publish(named, out, data=said, **arguments)

    def _names(self, result: Result) -> dict[str, list[str]]:
        """What the published model calls its classes and the columns of a data frame, where these
        have names.
        """
        classes, columns = getattr(self, "classes_", None), getattr(self, "feature_names_in_", None)
        names = {}
        if classes is not None and list(classes) != list(range(len(classes))):
            names["class_names"] = [str(label) for label in classes]
        taken = math.prod(result.architecture.get("input_shape", ()))
        if columns is not None and not self._squashed and len(columns) == taken:
            names["columns"] = [str(name) for name in columns]
        return names

    def _said(self) -> dict[str, str]:
        """What the card says of the rows that the published model takes."""
        return {"rows": _SQUASHED} if self._squashed else {}


#: Carries out one run by a plan, on rows, charged to a ledger, with random streams.
Train = Callable[[Any, Dataset, Ledger, Streams], Result]


class NetworkEstimator(PrivateEstimator):
    """An estimator that predicts by a released module."""

    def _declared(self, X: Any, y: Any) -> tuple[Dataset, tuple[str, ...]]:
        """Rows and targets with what is declared of them, and what was read off the private
        rows.
        """
        raise NotImplementedError

    def _planned(
        self, data: Dataset, weights: Array | None = None, usual: Mapping[str, Any] | None = None
    ) -> tuple[AbstractPlan, Dataset, Train]:
        """The settled plan of a fit, the rows to learn from, and what carries it out.

        Args:
            data: rows and targets.
            weights: of the rows, from 0 to 1; None: 1 each.
            usual: settings of those that `options` may hold, where it does not; and whether noise
                is `discrete`, where another's random streams are used.
        """
        raise NotImplementedError

    def _learn(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> None:
        """Fit by the estimator's plan."""
        data, reasons = self._declared(X, y)
        weights = self._weights(sample_weight, data.examples)
        plan, data, train = self._planned(self._of_persons(data, groups), weights)
        result = self._release(
            plan, reasons, lambda ledger, streams: train(plan, data, ledger, streams)
        )
        self._keep(result.model)

    def _of_persons(self, data: Dataset, groups: Any) -> Dataset:
        """The rows with the ids of the persons that they belong to, where these are given.

        Raises:
            BadInput: ids without a number of rows of each person, or that without ids.
        """
        rows_per_person = self._options().get("rows_per_person")
        if (groups is None) is (rows_per_person is None):
            ids = None if groups is None else np.asarray(groups)
            if (
                ids is not None
                and ids.dtype.kind == "O"
                and all(isinstance(person, str) for person in ids.tolist())
            ):
                ids = ids.astype(str)  # of a column of a data frame
            return replace(data, groups=ids)
        if rows_per_person is None:
            raise BadInput(
                "groups= says whose row each is, and nothing says how many rows of a person are "
                "used: give the "
                'estimator options={"rows_per_person": K}, a public number. A person is then one '
                "example"
            )
        raise BadInput(
            "options has rows_per_person, and nothing says whose row each is: fit(X, y, "
            "groups=ids), a whole number or a text for each row"
        )

    def _outputs(self, X: Any) -> torch.Tensor:
        """What the module makes of rows, in double precision."""
        check_is_fitted(self, "module_")
        scaled = self._scaled_rows(self._validated(X, reset=False))
        step = max(1, _AT_ONCE // scaled.shape[1]) if issparse(scaled) else len(scaled)
        with torch.no_grad():
            outputs = torch.cat(
                [
                    self.module_(torch.from_numpy(_dense(scaled[start : start + step]))).double()
                    for start in range(0, scaled.shape[0], step)
                ]
            )
        if not bool(outputs.isfinite().all()):
            raise BadInput(
                "the model's outputs for some rows are not finite, so that they have no "
                "prediction: scale the rows down, or declare bounds, beyond which numbers count as "
                "these"
            )
        return outputs

    def _keep(self, module: torch.nn.Module) -> None:
        self.module_ = copy.deepcopy(module).double().eval()

    def _linear(self, bounds: tuple[Any, Any]) -> tuple[Array, Array]:
        """Slopes, shape (outputs, features), and the outputs of a row of zeros, of a module that is
        linear near 0.
        """
        low, high = (np.broadcast_to(bound, (self.n_features_in_,)) for bound in bounds)
        middle = (low + high) / 2
        row = torch.from_numpy(middle[None]).requires_grad_()
        outputs = self.module_(row)[0].double()
        slopes = np.concatenate(
            [torch.autograd.grad(output, row, retain_graph=True)[0].numpy() for output in outputs]
        )
        return slopes, outputs.detach().numpy() - slopes @ middle


class PrivateClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    """A classifier whose module gives a score for each class.

    Attributes:
        classes_: the declared classes, sorted.
    """

    def _declared(self, X: Any, y: Any) -> tuple[Dataset, tuple[str, ...]]:
        X, labels, reasons = self._labelled(X, y)
        return self._dataset(X, labels, len(self.classes_)), reasons

    def decision_function(self, X: Any) -> Array:
        """The score of each class, shape (rows, classes); of two, that of the second less the
        first's, (rows,).
        """
        scores = self._outputs(X).numpy()
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, shape (rows, classes)."""
        return np.asarray(self._outputs(X).softmax(1).numpy())

    def predict(self, X: Any) -> Array:
        """The most likely class of each row."""
        scores = self._outputs(X)
        return np.asarray(self.classes_[scores.argmax(1).numpy()])

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's checks know of it: scores are as poor as noise makes them."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


def _dense(rows: Any) -> Array:
    return np.ascontiguousarray(rows.toarray() if issparse(rows) else rows)


def _squash_stored(rows: Any) -> Any:
    """Each number x as x / (1 + |x|): zeros, which are not stored, stay zeros."""
    squashed = rows.copy()
    squashed.data = rows.data / (1 + np.abs(rows.data))
    return squashed


def pair(name: str, bounds: Any, features: int = 1) -> tuple[Any, Any]:
    """Two bounds, the lower one first, numbers or arrays with one for each feature.

    Raises:
        BadInput: something else.
    """
    try:
        low, high = (np.asarray(bound, dtype=np.float64) for bound in bounds)
        shapes = {low.shape, high.shape} <= {(), (features,)}
    except (TypeError, ValueError):
        shapes = False
    if not shapes or not (
        np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()
    ):
        raise BadInput(
            f"{name} is {shortened(repr(bounds), 60)}: expected (low, high), public numbers or "
            f"arrays of one for each of the {features} features, the lower one first"
        )
    low, high = np.broadcast_arrays(low, high)
    return (float(low), float(high)) if not low.shape else (low.copy(), high.copy())


def numbered(labels: Array, classes: Any, plan: Any = None) -> tuple[Array, Array, tuple[str, ...]]:
    """The classes, sorted as scikit-learn has them; labels as their numbers; and what was read off
    the labels.

    Args:
        labels: one for each row.
        classes: those that are declared; None: none are.
        plan: declares so many classes, from 0 on where none are declared.

    Raises:
        BadInput: labels outside the declared classes, or not as many as the plan's: for the data's
            curator.
    """
    require_fit("plan", plan, AbstractPlan | None)
    if classes is None and plan is None:
        seen, inverse = np.unique(labels, return_inverse=True)
        return seen, inverse.reshape(-1).astype(np.int64), (NO_CLASSES,)
    if classes is None:
        if labels.dtype.kind not in "iub":
            raise BadInput(
                f"the labels are {labels.dtype} values: declare the {plan.classes} that there may "
                "be, classes=[...], or number them from 0"
            )
        return np.arange(plan.classes), labels, ()
    try:
        declared = np.unique(np.asarray(classes))
        places_of = {label: number for number, label in enumerate(declared.tolist())}
        places = [places_of.get(label, -1) for label in labels.tolist()]
    except TypeError as error:
        raise BadInput(
            f"classes or labels can't be compared: {error}. Expected texts or numbers"
        ) from error
    if np.ndim(classes) != 1 or (plan is not None and len(declared) != plan.classes):
        expected = (
            "a list of labels"
            if plan is None
            else f"a list of {plan.classes} labels, as the plan says"
        )
        raise BadInput(f"classes is {shortened(repr(classes), 60)}: expected {expected}")
    if -1 in places:
        kinds = ["texts" if part.dtype.kind in "US" else "numbers" for part in (labels, declared)]
        differ = kinds[0] != kinds[1] and "O" not in (labels.dtype.kind, declared.dtype.kind)
        why = (
            f". The labels are {kinds[0]}, the classes {kinds[1]}: give both as one kind"
            if differ
            else ""
        )
        row = places.index(-1)
        raise BadInput(
            f"the labels, row {row + 1}, hold {listed([labels[row]])}, outside the declared "
            f"classes: expected one of them, {listed(declared.tolist())[:100]}{why}"
        )
    return declared, np.array(places, dtype=np.int64), ()
