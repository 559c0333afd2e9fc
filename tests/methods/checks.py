"""Named checks of `pv.train` by any method: it is what `privlearn train --method` does, and refuses
what a method does not take.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import privlearn as pv
from privlearn import _entry_points
from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.methods import BUILT_IN, METHODS, Method
from privlearn.methods.installed import find_method, installed_methods, method_names
from privlearn.training.choices import TrainRequest
from tests.support.checks import check, must_raise

ROWS, COLUMNS, CLASSES = 240, 6, 3
#: What each method is trained with: by the names of `pv.train`.
RUNS: dict[str, dict[str, Any]] = {
    "dpsgd": {"epochs": 2, "temperature": 0.0},
    "dpmac": {"epochs": 2, "model": "mlp:5", "batch_size": 60},
    "pate": {"teachers": 12, "queries": 40, "epochs": 3},
    "features": {"keep": 4},
    "boosting": {"trees": 4, "depth": 2},
}


def arrays(rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    draw = np.random.default_rng(seed)
    y = np.arange(rows) % CLASSES
    x = np.eye(COLUMNS)[y] + 0.2 * draw.standard_normal((rows, COLUMNS))
    return x.astype(np.float32), y


def rows() -> pv.Dataset:
    x, y = arrays()
    return pv.Dataset(x, y, classes=CLASSES, low=-2.0, high=3.0, name="rows.npz")


def public() -> pv.Dataset:
    return pv.Dataset(arrays(80, seed=1)[0], classes=CLASSES, low=-2.0, high=3.0, public=True)


def trained(method: str, **more: Any) -> pv.Result:
    """A run of `pv.train` by a method at epsilon 4."""
    given = {"public": public()} if method == "pate" else {}
    settings = {**RUNS[method], **given, "examples": ROWS, "streams": pv.Streams.new(0), **more}
    return pv.train(rows(), epsilon=4.0, method=method, **settings)


@contextmanager
def commanded(method: str) -> Iterator[Path]:
    """The folder that `privlearn train --method` publishes of the same rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x, y = arrays()
        np.savez(folder / "rows.npz", x=x, y=y)
        np.savez(folder / "public.npz", x=arrays(80, seed=1)[0])
        options = {**RUNS[method], "epsilon": 4, "seed": 0, "classes": CLASSES, "examples": ROWS}
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        if method == "pate":
            words.append(f"--public={folder / 'public.npz'}")
        data = [f"--data={folder / 'rows.npz'}", "--range=-2,3", f"--out={folder / 'model'}"]
        assert main(["train", *data, f"--method={method}", *words]) == 0
        yield folder / "model"


@check
def check_train_by_any_method_is_what_the_command_line_does() -> None:
    """The same plan and, by one seed, the same model."""
    inputs = torch.from_numpy(arrays(50, seed=2)[0])
    for method in RUNS:
        result = trained(method)
        with commanded(method) as folder:
            assert pv.verify(folder).ok
            certificate = json.loads((folder / "privacy.json").read_text())
            assert certificate["plan"] == result.plan.to_json(), method
            published = pv.load_model(folder)
            torch.testing.assert_close(published(inputs), result.model(inputs), msg=method)


@check
def check_results_of_any_method_are_published_as_they_are() -> None:
    """`pv.publish` needs nothing beside the result, and the certificate holds the target."""
    with tempfile.TemporaryDirectory() as name:
        for method in RUNS:
            result = trained(method)
            folder = pv.publish(result, Path(name) / method)
            report = pv.verify(folder)
            assert report.ok
            assert result.plan.guarantee(1e-5).epsilon <= 4.0
            assert result.ledger.event == result.plan.event(), method
            assert pv.load_model(folder).predict(rows().tensors()[0]).shape == (ROWS,)


@check
def check_methods_refuse_what_they_do_not_take() -> None:
    """Every option of one method is refused by the others that do not take it, by its name."""
    rows = {method: METHODS[method] for method in BUILT_IN}  # others may be installed
    taken = {m: row.takes | {name for name, *_ in row.fields} for m, row in rows.items()}
    every = set().union(*taken.values())
    usual = {field.name: field.default for field in fields(TrainRequest)}
    usual |= {"checkpoint": "kept.pt", "callbacks": print}
    tried = 0
    for method in rows:
        if method == "dpsgd":
            continue
        for option in sorted(every - taken[method] - {"model"}):
            value = 0.5 if usual.get(option) is None else usual[option]
            error = must_raise(BadInput, lambda m=method, o=option, v=value: trained(m, **{o: v}))
            assert re.search(rf"\b{option}\b", str(error)), (method, option, str(error))
            assert method in str(error), (method, option, str(error))
            tried += 1
    assert tried > 50


@check
def check_methods_refuse_settings_of_computing_that_they_do_not_have() -> None:
    """A field of `ComputeConfig` that a method's runs do not have is refused by its name, also
    within `config`.
    """
    config = pv.ComputeConfig(precision="bf16")
    for method in ("dpmac", "pate", "features", "boosting"):
        for given in ({"precision": "bf16"}, {"config": config}, {"average": 0.9}):
            error = must_raise(BadInput, lambda m=method, g=given: trained(m, **g))
            named = next(iter(given))
            assert ("precision" if named == "config" else named) in str(error), (method, str(error))


class ReachedError(AssertionError):
    """A method was asked for its plan."""


def _reach(*_: Any) -> Any:
    raise ReachedError


@check
def check_public_inputs_are_not_private_rows() -> None:
    """Rows that are given as public are refused where they are the private ones, and where they
    were not declared so, whatever the method does with them.
    """
    x = arrays()[0]
    asking = Method("asking", {}, frozenset({"public"}), settle=_reach, train=_reach)
    with mock.patch.dict(METHODS, asking=asking):
        for pool, reached in (
            (public(), True),
            (replace(public(), x=x[:80]), False),
            (replace(public(), x_test=x[:80]), False),
            (replace(public(), public=False), False),
            (public().x, False),
        ):
            error = must_raise(
                ReachedError if reached else BadInput,
                lambda pool=pool: pv.train(rows(), epsilon=4.0, method="asking", public=pool),
            )
            assert reached or "public" in str(error)
    error = must_raise(BadInput, lambda: trained("pate", public=None))
    assert "give public=" in str(error)


@check
def check_what_is_released_beside_any_method_is_within_the_target() -> None:
    """A method and a release of metrics beside it are approved together, and cost the target
    together.
    """
    for method in ("pate", "features", "boosting", "dpmac"):
        alone = trained(method)
        unit = {"adjacency": alone.plan.neighbours, "group_size": 1}
        paid = pv.statistics.MetricsPlan(CLASSES, **unit).taking(0.3, pv.Budget(4.0, 1e-5))
        result = trained(method, beside=paid)
        both = pv.Ledger(pv.Budget(4.0, 1e-5))
        both.approve(result.plan, paid)
        assert result.ledger.budget is not None
        spent = result.plan.guarantee(1e-5).epsilon
        assert 0.5 < spent < alone.plan.guarantee(1e-5).epsilon - 0.1, method


@check
def check_targets_that_a_method_does_not_learn_are_refused() -> None:
    """Numbers are refused by methods for classes, before anything is spent."""
    x, y = arrays()
    numbers = pv.Dataset(x, y.astype(float), target_bounds=(0.0, 2.0), low=-2.0, high=3.0)
    for method, row in METHODS.items():
        if "values" not in row.targets:
            given = {"public": public()} if method == "pate" else {}
            error = must_raise(
                BadInput,
                lambda m=method, g=given: pv.train(numbers, epsilon=4.0, method=m, **g),
            )
            assert "the targets are numbers" in str(error), str(error)
    for method in ("dpmac", "features", "boosting"):
        error = must_raise(BadInput, lambda m=method: trained(m, task="ordinal"))
        assert "task is 'ordinal'" in str(error), str(error)


@check
def check_votes_have_as_many_teachers_as_asked_for() -> None:
    """The plan of votes has the teachers and the queries that were given."""
    plan = trained("pate").plan
    assert (plan.teachers, plan.queries) == (12, 40)


@check
def check_options_of_layers_reach_the_plan() -> None:
    """The clipping norm that is given is the threshold of DP-MAC's derivatives."""
    assert trained("dpmac", clip_norm=0.7).plan.clip == pv.mac.Derivatives(0.7)


@check
def check_any_method_charges_the_ledger_that_is_given() -> None:
    """A ledger that is given is charged, by every method."""
    for method in RUNS:
        ledger = pv.Ledger(pv.Budget(8.0, 1e-5))
        result = trained(method, ledger=ledger)
        assert ledger.event == result.plan.event(), method


@contextmanager
def entry_points(**places: str) -> Iterator[None]:
    """A block in which installed packages have these entry points, by name, and no others."""
    group = _entry_points.METHODS
    points = EntryPoints(
        EntryPoint(name.partition("__")[0], place, group) for name, place in places.items()
    )
    with (
        mock.patch.object(_entry_points, "entry_points", points.select),
        mock.patch.dict(METHODS),
    ):
        for name in METHODS.keys() - {*BUILT_IN}:
            del METHODS[name]
        yield


@check
def check_methods_of_installed_packages_are_found_by_their_names() -> None:
    """One is imported when it is asked for, and none takes the place of a method of privlearn."""
    rows = "tests.methods.installed_rows"
    with entry_points(installed=f"{rows}:INSTALLED", dpsgd=f"{rows}:DPSGD"):
        assert "installed" not in METHODS
        assert [*BUILT_IN, "installed"] == method_names()
        assert find_method("installed").targets == {"values"}
        assert find_method("dpsgd").takes
        assert installed_methods()["dpsgd"].takes


@check
def check_broken_packages_break_no_other_method() -> None:
    """One that cannot be imported, that is no row or has another name, and two of one name are
    warned of, and refused by their names; all others are there.
    """
    rows = "tests.methods.installed_rows"
    broken = {
        "missing": "no_such_module:METHOD",
        "odd": "json:loads",
        "renamed": f"{rows}:OTHER",
        "twice": f"{rows}:TWICE",
        "twice__again": f"{rows}:OTHER",
    }
    with entry_points(installed=f"{rows}:INSTALLED", **broken):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert {*BUILT_IN, "installed"} == installed_methods().keys()
        assert all("left out" in str(warning.message) for warning in caught)
        assert len(caught) == len({name.partition("__")[0] for name in broken})
        for name in ("missing", "odd", "renamed", "twice"):
            error = must_raise(BadInput, lambda name=name: find_method(name))
            assert repr(name) in str(error), str(error)
