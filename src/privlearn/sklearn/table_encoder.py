"""A table's rows as features, by what a schema declares: a step of a pipeline that fits nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import validate_data

from privlearn._display import shortened
from privlearn.data.cells import array_of
from privlearn.data.encoding import UnmatchedCells, encode_features
from privlearn.data.schema import Schema, read_schema
from privlearn.data.tables import Table, is_frame, read_table
from privlearn.errors import BadInput, DataWarning, warn


@final
class DPTableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encodes a table by its schema, each row by itself, as `privlearn train` does: nothing is
    fitted or spent.

    It takes the place of `StandardScaler`, `OneHotEncoder` and `SimpleImputer`, which learn from
    private rows without noise. Bounds, categories and what a missing value counts as are those that
    the schema declares.

    Args:
        schema: a TOML file, or a `privlearn.data.schema.Schema` (docs/data.md).

    Attributes:
        schema_: what is declared, as it was read at the fit.
        n_features_in_: columns of the table that it was fitted on.
        feature_names_in_: what they are called, where the table has names.

    >>> from privlearn.data.schema import Category, Number
    >>> columns = (Number("age", 0, 110, missing=50), Category("sex", ("f", "m")))
    >>> schema = Schema("ill", ("no", "yes"), columns)
    >>> DPTableEncoder(schema).transform([[30, "f"], [None, "m"]]).tolist()
    [[30.0, 1.0, 0.0], [50.0, 0.0, 1.0]]
    """

    def __init__(self, schema: str | Path | Schema | None = None) -> None:
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> DPTableEncoder:
        """Read the schema; of the table nothing but the number and the names of its columns.

        Raises:
            BadInput: the schema can't be read, or the table lacks one of its columns.
        """
        self.schema_ = self._read_schema()
        self._table(X)
        validate_data(self, X, skip_check_array=True)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """The features of every row, shape (rows, features).

        Args:
            X: a data frame of pandas or polars, or a table of Arrow, with the schema's columns in
                any order, and others, which are not looked at; or rows of cells with just the
                schema's feature columns, in its order.

        Raises:
            BadInput: a column that is not there, or a cell that its column does not allow: for the
                data's curator.
        """
        schema, table = self._settle_schema(), self._table(X)
        features = encode_features(table, schema)
        for remark in UnmatchedCells.of(table, schema).remarks():
            warn(remark, DataWarning)
        return features

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """What the features are called; the schema says it, whatever the columns of the table."""
        del input_features
        return np.array(self._settle_schema().feature_names, dtype=object)

    @property
    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The declared bounds of the features, for an estimator's `bounds`."""
        return self._settle_schema().bounds()

    @property
    def classes(self) -> list[str]:
        """The declared classes of the target, for an estimator's `classes`; none where it is a
        number.
        """
        return list(self._settle_schema().classes)

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """The declared bounds of the target, for an estimator's `target_bounds`; None where it has
        classes.
        """
        return self._settle_schema().target_bounds

    @property
    def person(self) -> str | None:
        """The column that says whose row each is, for an estimator's `groups`; None: none does."""
        return self._settle_schema().person

    def _settle_schema(self) -> Schema:
        return self.schema_ if hasattr(self, "schema_") else self._read_schema()

    def _read_schema(self) -> Schema:
        if isinstance(self.schema, Schema):
            return self.schema
        if isinstance(self.schema, str | Path):
            return read_schema(self.schema)
        raise BadInput(
            f"schema is {shortened(repr(self.schema), 60)}: expected a TOML file, or a "
            "privlearn.data.schema.Schema. `privlearn data schema FILE` prints a template, from "
            "the columns' names alone"
        )

    def _table(self, X: Any) -> Table:
        names = [column.name for column in self._settle_schema().features]
        if is_frame(X):
            table = read_table(X, names)
            absent = [name for name in names if name not in table.columns]
            if absent:
                raise BadInput(
                    f"the data frame has no column {absent[0]!r}: expected all that the schema has "
                    "features of"
                )
            return table
        rows = (
            None
            if issparse(X)
            else np.asarray(X, dtype=None if isinstance(X, np.ndarray) else object)
        )
        if rows is None or rows.ndim != 2 or rows.shape[1] != len(names):
            raise BadInput(
                f"X is a {type(X).__name__} of shape {np.shape(X)}: expected a data frame, or rows "
                f"of {len(names)} cells, the schema's feature columns in its order"
            )
        return Table(
            "X",
            {name: array_of(rows[:, at].tolist(), _refuse) for at, name in enumerate(names)},
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn knows of it: nothing is fitted, and it takes tables, not any matrix of
        numbers.
        """
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        tags._skip_test = True  # scikit-learn's checks give matrices of any number of columns
        return tags


def _refuse(row: int, cell: Any) -> BadInput:
    return BadInput(
        f"X holds a {type(cell).__name__} in row {row + 1}: expected numbers, texts or booleans "
        "(dates as texts)"
    )
