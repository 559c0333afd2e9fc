"""Named checks of published rows: what the folder holds, what `verify` notices, and when rows are
too noisy to learn from.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import privlearn as pv
from privlearn._storage import digest
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.mechanisms.selection import truth
from privlearn.errors import BadInput, PrivacyWarning, UnsupportedEvent
from privlearn.methods.statistics.features import ReleasedRows
from privlearn.methods.statistics.plan import RowsPlan
from privlearn_studies.shen2021.published import literal_release
from tests.support.checks import check

NAMES = ("age", "dose, in mg", "cells", "weight")
LOW, HIGH = [0.0, -2.0, 0.0, 10.0], [90.0, 1.0, 1.0, 120.0]


def some_data(rows: int = 50) -> pv.Dataset:
    """Rows of four named numbers with bounds, of three classes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(LOW, HIGH, (rows, 4)).astype(np.float32)
    y = rng.integers(3, size=rows)
    return pv.Dataset(x, y, classes=3, low=LOW, high=HIGH, feature_names=NAMES)


def some_rows(labels: str = "randomised", adjacency: str = "zero_out", keep: int = 2) -> Any:
    """Released rows, with a note of what they are."""
    plan = RowsPlan(3, 4, keep, 2.0, 1.0, labels=labels, adjacency=Adjacency.parse(adjacency))
    plan = plan.calibrate(epsilon=9.0, delta=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pv.statistics.release_features(plan, some_data())


@contextmanager
def published(rows: ReleasedRows) -> Iterator[Path]:
    """The folder that `publish` writes of rows."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "rows"
        pv.publish(rows, out)
        yield out


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a certificate, and give its parts new digests, as a forger would."""
    file = folder / "privacy.json"
    body = json.loads(file.read_text())
    change(body)
    body["digests"] = {part: digest(body[part]) for part in body["digests"]}
    file.write_text(json.dumps(body))


@check
def check_published_rows_are_the_released_ones() -> None:
    """Numbers to the last digit, labels, names, bounds, and the noise that was drawn; the claim is
    the plan's.
    """
    for labels in ("public", "randomised"):
        for adjacency in ("zero_out", "replace_one"):
            for keep in (2, 4):
                rows = some_rows(labels, adjacency, keep)
                with published(rows) as folder:
                    verified = pv.verify(folder)
                    loaded = pv.load_model(folder).released_rows()
                    card = (folder / "README.md").read_text()
                places = rows.indices.tolist()
                assert np.array_equal(loaded.x, rows.x.float().numpy())
                assert np.array_equal(loaded.y, rows.y.numpy())
                assert loaded.columns == tuple(NAMES[place] for place in places)
                assert loaded.bounds == tuple((LOW[place], HIGH[place]) for place in places)
                assert loaded.classes == ("0", "1", "2")
                assert loaded.noise_std == pytest.approx(rows.noise_std)
                said = 1.0 if labels == "public" else truth(rows.plan.label_epsilon, 3)
                assert loaded.label_truth == pytest.approx(said)
                assert verified.ok
                assert verified.epsilon == pytest.approx(rows.plan.guarantee(1e-6).epsilon)
                assert (verified.delta, verified.adjacency) == (1e-6, adjacency)
                assert "# Rows, and a model of them, released with (" in card
                assert ("labels are declared public" in card) is (labels == "public")
                assert f"standard deviation {rows.noise_std:.4g}" in card
                assert "dose, in mg" in card or 1 not in places


@check
def check_changed_rows_are_noticed() -> None:
    """A number, a label, a row more or less, another order, another file, or none."""
    rows = some_rows()
    with published(rows) as folder:
        file = folder / "rows.csv"
        content = file.read_text()
        head, first, second, *others = content.splitlines()
        label = first[-1]
        for changed in (
            "\n".join([head, f"9{first}", second, *others, ""]),
            "\n".join([head, first[:-1] + str((int(label) + 1) % 3), second, *others, ""]),
            "\n".join([head, second, first, *others, ""]),
            "\n".join([head, second, *others, ""]),
            content + first + "\n",
            "",
        ):
            file.write_text(changed)
            assert not pv.verify(folder).ok
            with pytest.raises(pv.errors.CertificateMismatch):
                pv.load_model(folder)
        file.unlink()
        assert pv.verify(folder).problems[0] == "rows.csv is missing"
        file.write_text(content)
        assert pv.verify(folder).ok
        model = pv.load_model(folder)
        file.write_text(content[:-2] + content[-2:].replace(content[-2], "7"))
        with pytest.raises(pv.errors.CertificateMismatch):
            model.released_rows()


@check
def check_every_price_of_rows_is_recomputed() -> None:
    """A certificate that leaves out the price of the selection, of the rows or of the labels does
    not verify, whatever its claim; nor one for other neighbours, or a plan with less noise.
    """

    def without(place: int) -> Callable[[dict[str, Any]], Any]:
        return lambda body: body["events"]["events"].pop(place)

    def claiming(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda body: body["claim"].update({name: value})

    def planned(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda body: body["plan"].update({name: value})

    rows = some_rows()
    changes = [without(place) for place in range(len(rows.plan.event().events))]
    assert len(changes) >= 3
    changes += [claiming("epsilon", 8.0), claiming("adjacency", "replace_one")]
    changes += [claiming("adjacency", "add_remove"), planned("noise_multiplier", 0.1)]
    changes += [planned("labels", "public"), planned("keep", 4)]
    for change in changes:
        with published(rows) as folder:
            rewrite(folder, change)
            assert not pv.verify(folder).ok


@check
def check_facts_of_rows_are_those_of_the_file() -> None:
    """Names, bounds, classes and the number of rows that are stated must be the file's and the
    plan's; and rows are stated if and only if there are some.
    """

    def stated(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda body: body["facts"]["released_rows"].update({name: value})

    changes: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
        (stated("columns", ["age", "height"]), "other columns"),
        (stated("columns", ["age"]), "other features"),
        (stated("label", "class"), "other columns"),
        (stated("classes", ["0", "1"]), "other features or classes"),
        (stated("classes", ["0", "1", "3"]), "labels that"),
        (stated("bounds", [[0.0, 1.0]]), "bounds are stated"),
        (stated("more", 1), "more"),
        (lambda body: body["facts"].update(examples=49), "50 released rows"),
        (lambda body: body["facts"].pop("released_rows"), "the certificate states none"),
        (lambda body: body["files"].pop("rows.csv"), "does not speak of exactly"),
    ]
    rows = some_rows()
    for change, words in changes:
        with published(rows) as folder:
            rewrite(folder, change)
            problems = pv.verify(folder).problems
            assert any(words in problem for problem in problems), (words, problems)
    with published(rows) as folder:
        (folder / "rows.csv").unlink()
        rewrite(folder, lambda body: body["files"].pop("rows.csv"))
        assert any("the folder has none" in problem for problem in pv.verify(folder).problems)


@check
def check_only_rows_as_released_are_published() -> None:
    """Neither changed rows nor those of the published algorithm, which is not private."""
    for name in ("x", "y", "indices"):
        rows = some_rows()
        getattr(rows, name).add_(1)
        with pytest.raises(BadInput, match="changed after their release"), published(rows):
            pass
    literal = literal_release(some_data(), classes=3, keep=2, epsilon=1.0, delta=1e-6)
    with pytest.raises(UnsupportedEvent), tempfile.TemporaryDirectory() as place:
        pv.publish(literal, Path(place) / "rows", delta=1e-6)


def _made_up(seed: int, rows: int, features: int, classes: int) -> tuple[Any, ...]:
    """Classes whose means lie .4 of the norm from their middle; rows to learn from and to test."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((classes, features))
    means *= 0.4 / np.linalg.norm(means, axis=1, keepdims=True)
    y = rng.integers(classes, size=rows + 1000)
    noise = rng.standard_normal((len(y), features)) * math.sqrt((1 - 0.4**2) / features)
    x = torch.from_numpy(means[y] + noise).float()
    return x[:rows], torch.from_numpy(y[:rows]), x[rows:].numpy(), y[rows:]


@check
def check_warned_rows_teach_nothing_and_others_do() -> None:
    """At twice the noise that is warned of rows teach hardly anything, at a quarter much: the
    warning comes of public numbers alone, as the noise, the number of rows and labels go.
    """
    gains: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(6):
        for labels in ("public", "randomised"):
            rows, classes = 900, 3
            x, y, test_x, test_y = _made_up(seed, rows, 20, classes)
            plan = RowsPlan(
                classes, 20, 20, 1.2, labels=labels, noise_multiplier=1.0, label_share=0.9
            )
            low, high = 1e-3, 1e3
            for wanted, drowned in ((4.0, True), (0.5, False)):
                low, high = 1e-3, 1e3  # the noise in a mean grows with that of the plan
                for _ in range(60):
                    middle = math.sqrt(low * high)
                    below = replace(plan, noise_multiplier=middle).noise_of_means(rows) < wanted
                    low, high = (middle, high) if below else (low, middle)
                noisy = replace(plan, noise_multiplier=high)
                assert noisy.noise_of_means(rows) == pytest.approx(wanted, rel=1e-3)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    out = pv.statistics.release_features(
                        noisy, (x, y), streams=pv.Streams.new(seed)
                    )
                told = [each for each in caught if "hardly be better" in str(each.message)]
                assert bool(told) is drowned
                assert all(issubclass(each.category, PrivacyWarning) for each in told)
                assert all(len(str(each.message)) <= 300 for each in told)
                fitted = LogisticRegression(max_iter=300).fit(out.x.numpy(), out.y.numpy())
                base = float(np.bincount(test_y).max()) / len(test_y)
                gains[drowned].append((fitted.score(test_x, test_y) - base) / (1 - base))
    assert float(np.mean(gains[True])) < 0.05
    assert float(np.mean(gains[False])) > 0.25


@check
def check_the_noise_in_means_is_that_of_the_release() -> None:
    """Of rows that are all 0, class means have this norm, in parts of the clip; with randomised
    labels in parts of what is left between classes.
    """
    y = torch.arange(3).repeat(2000)
    for adjacency in ("zero_out", "replace_one"):
        for labels in ("public", "randomised"):
            plan = RowsPlan(
                3,
                50,
                50,
                7.0,
                labels=labels,
                adjacency=Adjacency.parse(adjacency),
                noise_multiplier=0.5,
                label_share=0.4,
            )
            zeros = torch.zeros(6000, 50)
            out = pv.statistics.release_features(plan, (zeros, y), streams=pv.Streams.new(0))
            means = torch.stack([out.x[out.y == one].double().mean(0) for one in range(3)])
            said = float(means.norm(dim=1).square().mean().sqrt()) / 7.0
            left = plan.label_truth - (1 - plan.label_truth) / 2
            assert plan.noise_of_means(6000) == pytest.approx(said / left, rel=0.2)


@check
def check_rows_of_a_secret_number_are_refused() -> None:
    """Their number is published: nothing holds for neighbours that differ in it."""
    with pytest.raises(BadInput, match="add_remove"):
        RowsPlan(3, 4, 2, 2.0, 1.0, adjacency=Adjacency.ADD_REMOVE)
