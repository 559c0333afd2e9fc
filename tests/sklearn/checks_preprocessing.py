"""Named checks of steps before an estimator: encoders that fit nothing, and steps that learned from
private rows.
"""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier, StackingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

import privlearn as pv
from privlearn.data.schema import Category, Number, Schema
from privlearn.errors import BadInput, DataWarning, PrivacyWarning
from tests.runs.checks_targets import estimators
from tests.sklearn.checks_fits import DECLARED, X, Y, Z, targets
from tests.support.checks import check, must_raise

RNG = np.random.default_rng(3)
SCHEMA = Schema(
    "ill",
    ("no", "yes"),
    (Number("age", 0, 110, missing=50, indicator=True), Category("sex", ("f", "m", "x"))),
)
TABLE = pandas.DataFrame(
    {"age": [30.0, 70.0, np.nan, 180.0] * 15, "sex": ["f", "m", "m", "?"] * 15, "id": range(60)}
)
TOML = """
target = "ill"
[columns.age]
kind = "number"
low = 0
high = 110
missing = 50
indicator = true
[columns.sex]
kind = "category"
categories = ["f", "m", "x"]
[columns.ill]
kind = "target"
classes = ["no", "yes"]
"""


def fisher(**more: Any) -> Any:
    return DECLARED["DPFisherClassifier"](**more)


def claimed_nothing(fit: Callable[[], object]) -> list[str]:
    """The warnings that nothing is claimed because of what rows came through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    said = [str(each.message) for each in caught if issubclass(each.category, PrivacyWarning)]
    return [text for text in said if "rows came through" in text]


def require_unpublishable(publish: Callable[[Path], object]) -> None:
    """`publish` refuses, and leaves no folder behind."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        must_raise(BadInput, lambda: publish(out))
        assert not out.exists()


#: Steps that learn from rows, or that couple them.
FITTED: dict[str, Callable[[], Any]] = {
    "scaler": StandardScaler,
    "range": MinMaxScaler,
    "components": lambda: PCA(2),
    "imputer": SimpleImputer,
    "choice": lambda: SelectKBest(k=2),
    "categories": lambda: OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    "function of all rows": lambda: FunctionTransformer(lambda rows: rows - rows.mean(0)),
    "in a union": lambda: make_union(FunctionTransformer(), StandardScaler()),
    "in columns": lambda: make_column_transformer((StandardScaler(), [0]), ("passthrough", [1, 2])),
    "in a pipeline": lambda: make_pipeline(FunctionTransformer(), StandardScaler()),
    "behind one of ours": lambda: make_pipeline(DECLARED["DPStandardScaler"](), StandardScaler()),
    "seeded": lambda: DECLARED["DPStandardScaler"](random_state=0),
}
#: Steps that learn nothing, or whose release is charged.
PUBLIC: dict[str, Callable[[], Any]] = {
    "function": lambda: FunctionTransformer(np.tanh),
    "rows by their norm": Normalizer,
    "threshold": Binarizer,
    "products": lambda: PolynomialFeatures(2),
    "constant": lambda: SimpleImputer(strategy="constant", fill_value=0.0),
    "declared categories": lambda: make_column_transformer(
        (OneHotEncoder(categories=[[0.0, 1.0]], handle_unknown="ignore", sparse_output=False), [0]),
        ("passthrough", [1, 2]),
    ),
    "in a union": lambda: make_union(FunctionTransformer(), Normalizer()),
    "passed": lambda: "passthrough",
}


@check
def check_steps_that_learned_from_rows_are_seen() -> None:
    """Behind them nothing is claimed, and published; steps that learn nothing are not complained
    of.
    """
    for name, make in FITTED.items():
        line = make_pipeline(make(), fisher())
        said = claimed_nothing(lambda: line.fit(X, Y))  # noqa: B023
        assert len(said) == 1, (name, said)
        assert "true only if all of it was fitted to other, public rows" in said[0], said
        assert line[-1].privacy_.total is None, name
        require_unpublishable(line[-1].publish)
        result = line[-1].result_
        require_unpublishable(lambda out: pv.publish(result, out, delta=1e-5))  # noqa: B023
        ledger = pv.Ledger(pv.Budget(8.0, 1e-5), measure="renyi")
        charged = make_pipeline(make(), fisher(ledger=ledger))
        must_raise(BadInput, lambda: charged.fit(X, Y))  # noqa: B023
        assert not ledger.event.events, name
    for name, make in PUBLIC.items():
        line = make_pipeline(make(), fisher())
        assert claimed_nothing(lambda: line.fit(X, Y)) == [], name  # noqa: B023
        assert line[-1].privacy_.total is not None, name


def limited() -> pv.Ledger:
    return pv.Ledger(pv.Budget(8.0, 1e-5), measure="renyi")


@check
def check_private_steps_share_the_ledger_of_what_learns_from_them() -> None:
    """A certificate counts the steps before its model, or there is none."""
    scaler = DECLARED["DPStandardScaler"]
    wraps: dict[str, Callable[[Any], Any]] = {
        "alone": lambda step: step,
        "in a union": lambda step: make_union(step, FunctionTransformer()),
        "in columns": lambda step: make_column_transformer((step, [0, 1]), ("passthrough", [2])),
        "in a pipeline": lambda step: make_pipeline(step, FunctionTransformer()),
    }
    for name, wrap in wraps.items():
        ledger = limited()
        line = make_pipeline(wrap(scaler(ledger=ledger)), fisher(ledger=ledger))
        assert claimed_nothing(lambda: line.fit(X, Y)) == [], name  # noqa: B023
        both = line[-1].privacy_.total
        assert both is not None
        assert both.epsilon >= 1.3 * line[-1].privacy_.fit.epsilon, name
        line = make_pipeline(wrap(scaler()), fisher())
        said = claimed_nothing(lambda: line.fit(X, Y))  # noqa: B023
        assert len(said) == 1, (name, said)
        assert "same ledger" in said[0], said
        assert line[-1].privacy_.total is None, name
        require_unpublishable(line[-1].publish)
        unlimited = pv.Ledger()
        line = make_pipeline(wrap(scaler(ledger=unlimited)), fisher(ledger=unlimited))
        assert claimed_nothing(lambda: line.fit(X, Y)) == []  # noqa: B023
        assert line[-1].privacy_.total.kind == "estimate", name
        require_unpublishable(line[-1].publish)
        for one, other in ((limited(), limited()), (None, limited())):
            line = make_pipeline(wrap(scaler(ledger=one)), fisher(ledger=other))
            must_raise(BadInput, lambda: line.fit(X, Y))  # noqa: B023
            assert not other.event.events, name  # type: ignore[union-attr]
    ledger = limited()  # anyone who knows the seed takes the scaler's noise off
    line = make_pipeline(scaler(ledger=ledger, random_state=0), fisher(ledger=ledger))
    must_raise(BadInput, lambda: line.fit(X, Y))
    line = make_pipeline(scaler(), fisher(preprocessing="public"))
    assert claimed_nothing(lambda: line.fit(X, Y))


@check
def check_rows_of_persons_are_fitted_by_persons() -> None:
    """Where a table's schema says whose row each is, rows by themselves are refused."""
    schema = replace(SCHEMA, person="id")
    encoder = pv.sklearn.DPTableEncoder(schema)
    declared = {"classes": encoder.classes, "bounds": encoder.bounds}
    labels = ["no", "yes"] * 30
    epochs = {"epochs": 2}
    for learner in (
        pv.sklearn.DPClassifier(options=epochs, **declared),
        pv.sklearn.DPLogisticRegression(options=epochs, **declared),
        pv.sklearn.DPBoostingClassifier(**declared),
        pv.sklearn.DPStandardScaler(bounds=encoder.bounds),
    ):
        line = make_pipeline(encoder, learner)
        said = must_raise(BadInput, lambda: line.fit(TABLE, labels))  # noqa: B023
        assert "'id'" in str(said), said
        assert not learner._shared().require_ledger().event.events
    by_person = pv.sklearn.DPClassifier(options={"rows_per_person": 2, **epochs}, **declared)
    line = make_pipeline(encoder, by_person)
    line.fit(TABLE, labels, dpclassifier__groups=TABLE["id"] // 2)
    assert by_person.privacy_.total is not None
    plain = pv.sklearn.DPTableEncoder(SCHEMA)
    make_pipeline(plain, pv.sklearn.DPClassifier(options=epochs, **declared)).fit(TABLE, labels)


@check
def check_estimators_around_that_change_rows_or_targets_are_seen() -> None:
    """What hands rows on as they are is not complained of."""
    ridge = DECLARED["DPRidge"]
    search = lambda line, name: GridSearchCV(line, {name: [1.0]}, cv=2, error_score="raise")  # noqa: E731
    for number, (made, y, seen) in enumerate(
        (
            (StackingClassifier([("a", LogisticRegression())], final_estimator=fisher()), Y, True),
            (BaggingClassifier(fisher(), n_estimators=1, random_state=0), Y, True),
            (TransformedTargetRegressor(ridge(), transformer=StandardScaler()), Z, True),
            (
                search(make_pipeline(StandardScaler(), fisher()), "dpfisherclassifier__epsilon"),
                Y,
                True,
            ),
            (make_pipeline(StandardScaler(), search(fisher(), "epsilon")), Y, True),
            (Pipeline([("a", StandardScaler()), ("b", Pipeline([("c", fisher())]))]), Y, True),
            (MultiOutputRegressor(ridge()), np.stack([Z, Z], 1), False),
            (
                search(
                    make_pipeline(FunctionTransformer(), fisher()), "dpfisherclassifier__epsilon"
                ),
                Y,
                False,
            ),
            (search(fisher(), "epsilon"), Y, False),
            (
                make_column_transformer(
                    (DECLARED["DPStandardScaler"](), [0, 2]), ("passthrough", [1])
                ),
                None,
                False,
            ),
        )
    ):
        assert bool(claimed_nothing(lambda: made.fit(X, y))) == seen, number  # noqa: B023


@check
def check_names_of_columns_tell_of_transforms_before() -> None:
    """Those of `set_output`; not those of a table as people have it, or of privlearn's own
    steps.
    """
    made = fisher()
    transformed = make_column_transformer((StandardScaler(), ["a"]), ("passthrough", ["b", "c"]))
    table = pandas.DataFrame(X, columns=["a", "b", "c"])
    named = transformed.set_output(transform="pandas").fit_transform(table)
    assert claimed_nothing(lambda: clone(made).fit(named, Y))
    assert claimed_nothing(
        lambda: clone(made).fit(PCA(3).set_output(transform="pandas").fit_transform(X), Y)
    )
    for names in (
        ["a", "b", "c"],
        ["x0", "x1", "x2"],
        ["dptableencoder__a", "remainder__b", "remainder__c"],
    ):
        assert claimed_nothing(lambda: fisher().fit(pandas.DataFrame(X, columns=names), Y)) == []  # noqa: B023
    for prefix in ("dpstandardscaler", "dppca-2"):
        names = [f"{prefix}__a", "remainder__b", "remainder__c"]
        said = claimed_nothing(lambda: fisher().fit(pandas.DataFrame(X, columns=names), Y))  # noqa: B023
        assert len(said) == 1, prefix


@check
def check_every_estimator_sees_the_steps_before_it() -> None:
    """Of the whole registry; and by its parameter, which clones keep, it takes the user's word."""
    for name, kind in estimators().items():
        if name == "DPSearchCV":
            made = kind(
                pv.sklearn.DPRidge(target_bounds=(-2, 3)),
                {"options": [{"row_norm": 1.0}, {"row_norm": 2.0}]},
            )
        else:
            made = DECLARED[name]()
        line = make_pipeline(StandardScaler(), made)
        y = Z if name == "DPSearchCV" else targets(made)
        assert len(claimed_nothing(lambda: line.fit(X, y))) == 1, name  # noqa: B023
        declared = clone(clone(line).set_params(**{f"{name.lower()}__preprocessing": "public"}))
        declared[-1].__dict__.pop("_fits", None)  # that knows of the fit before
        assert declared[-1].preprocessing == "public", name
        assert claimed_nothing(lambda: declared.fit(X, y)) == [], name  # noqa: B023
        assert declared[-1].privacy_.total is not None, name
        must_raise(BadInput, lambda: clone(made).set_params(preprocessing="private").fit(X, y))  # noqa: B023


@check
def check_a_card_repeats_that_the_preprocessing_was_declared_public() -> None:
    """In both cards; and not where nothing was declared."""
    with tempfile.TemporaryDirectory() as folder:
        for number, more in enumerate(({"preprocessing": "public"}, {})):
            made = make_pipeline(StandardScaler() if more else Normalizer(), fisher(**more)).fit(
                X, Y
            )
            out = made[-1].publish(
                Path(folder) / str(number), data={"preprocessing": "none at all"} if more else {}
            )
            assert pv.verify(out).ok
            for card in ("README.md", "card.html"):
                said = "declared the preprocessing public" in (out / card).read_text("utf-8")
                assert said == bool(more), (card, more)


@check
def check_an_encoder_of_tables_gives_the_features_of_train() -> None:
    """Of every kind of table, fitted or not, to any rows: the features that `pv.load` gives, each
    row's by itself.
    """
    whole = TABLE.assign(ill=["no", "yes"] * 30)
    expected = np.asarray(pv.load(whole, schema=SCHEMA).x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.toml"
        path.write_text(TOML)
        for given in (SCHEMA, path, str(path)):
            made = pv.sklearn.DPTableEncoder(given)
            cells = TABLE[["age", "sex"]]
            for table in (
                TABLE,
                whole,
                TABLE[["sex", "age"]],
                polars.from_pandas(TABLE),
                cells.to_numpy(object),
                cells.to_numpy(object).tolist(),
            ):
                got = clone(made).transform(table)
                assert got.dtype == np.float32
                assert np.array_equal(got, expected)
                assert np.array_equal(clone(made).fit(table[:1]).transform(table), expected)
            low, high = made.bounds
            assert np.array_equal(low, SCHEMA.bounds()[0])
            assert np.array_equal(high, SCHEMA.bounds()[1])
            assert made.classes == ["no", "yes"]
        fitted = pv.sklearn.DPTableEncoder(path).fit(TABLE)
        path.unlink()
        kept = pickle.loads(pickle.dumps(fitted))
        assert np.array_equal(kept.transform(TABLE[5:9]), expected[5:9])
    assert (fitted.n_features_in_, fitted.feature_names_in_.tolist()) == (3, ["age", "sex", "id"])
    assert fitted.get_feature_names_out().tolist() == [
        "age",
        "age is missing",
        "sex=f",
        "sex=m",
        "sex=x",
    ]
    framed = fitted.set_output(transform="pandas").transform(TABLE)
    assert list(framed.columns) == fitted.get_feature_names_out().tolist()


@check
def check_what_is_said_of_cells_is_at_the_users_line_and_has_no_numbers_of_rows() -> None:
    """At the fit and at predictions, also where scikit-learn wraps what is called."""
    encoder = pv.sklearn.DPTableEncoder(SCHEMA)
    line = make_pipeline(
        encoder, pv.sklearn.DPFisherClassifier(classes=encoder.classes, bounds=encoder.bounds)
    )
    y = np.array(["no", "yes"])[np.arange(60) % 2]
    strange = TABLE.assign(sex=["f", "m", "other", "f"] * 15)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line.fit(strange, y)
        line.predict(strange)
        clone(encoder).set_output(transform="pandas").fit_transform(strange)
    said = [each for each in caught if issubclass(each.category, DataWarning)]
    of_sex = [each for each in said if "'sex'" in str(each.message)]
    assert len(of_sex) == 3
    for each in said:
        assert each.filename == __file__, each.filename
    for each in of_sex:
        text = str(each.message)
        assert "about 25 % of the cells of column 'sex'" in text
        assert "for the data's curator, and not for publication" in text
        assert "15" not in text
        assert "60" not in text


@check
def check_a_pipeline_of_tables_is_private_and_published() -> None:
    """An encoder and a classifier: searched, pickled, published with a claim, the same
    predictions.
    """
    encoder = pv.sklearn.DPTableEncoder(SCHEMA).set_output(transform="pandas")
    made = pv.sklearn.DPFisherClassifier(
        classes=encoder.classes, bounds=encoder.bounds, epsilon=8.0
    )
    y = np.array(["no", "yes"])[np.arange(60) % 2]
    line = make_pipeline(encoder, made)
    assert claimed_nothing(lambda: line.fit(TABLE, y)) == []
    assert line[-1].privacy_.total.kind == "bound"
    with tempfile.TemporaryDirectory() as folder:
        out = line[-1].publish(Path(folder) / "people")
        rows = encoder.transform(TABLE)
        assert pv.load_model(out).predict(rows).tolist() == line.predict(TABLE).tolist()
    again = pickle.loads(pickle.dumps(line))
    assert again.predict(TABLE[:4]).tolist() == line.predict(TABLE[:4]).tolist()
    search = GridSearchCV(
        clone(line), {"dpfisherclassifier__epsilon": [1.0, 2.0]}, cv=2, error_score="raise"
    )
    assert claimed_nothing(lambda: search.fit(TABLE, y)) == []
    assert search.predict(TABLE[:3]).shape == (3,)


@check
def check_an_encoder_refuses_what_no_schema_declares() -> None:
    """No schema, columns that are not there, and rows of another width."""
    for make, rows in (
        (pv.sklearn.DPTableEncoder(), TABLE),
        (pv.sklearn.DPTableEncoder("nowhere.toml"), TABLE),
        (pv.sklearn.DPTableEncoder(5), TABLE),
        (pv.sklearn.DPTableEncoder(SCHEMA), TABLE[["age"]]),
        (pv.sklearn.DPTableEncoder(SCHEMA), np.zeros((3, 3))),
        (pv.sklearn.DPTableEncoder(SCHEMA), np.zeros(3)),
        (pv.sklearn.DPTableEncoder(SCHEMA), [[30, object()]]),
        (pv.sklearn.DPTableEncoder(SCHEMA), [["old", "f"]]),
    ):
        must_raise(BadInput, lambda: make.transform(rows))  # noqa: B023
        must_raise(BadInput, lambda: make.fit(rows).transform(rows))  # noqa: B023
