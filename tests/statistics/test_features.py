"""Feature selection and release: what is refused, what the options do, and what comes out of it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn import cli
from privlearn.core.accounting.accountant import epsilon_bound, guarantee
from privlearn.core.accounting.events import Composed, Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, Selection
from privlearn.errors import AdjacencyMismatch, BadInput
from privlearn.methods.statistics import classifiers as fisher_module
from privlearn.methods.statistics.plan import FisherPlan, RowsPlan, SelectionPlan
from privlearn.publishing import certificate
from privlearn.sklearn import DPFeatureSelector, DPFisherClassifier, budget_for
from privlearn.transforms import select as mechanism
from privlearn_studies.shen2021.published import literal_release
from tests.statistics.checks import K, settled, some_rows
from tests.statistics.checks_runs import toy

X, Y = some_rows()
REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "more features than there are": (lambda: settled(keep=5), ("5 features", "of 4")),
    "no bound on rows": (lambda: settled(row_norm=None), ("row_norm is None", "read off")),
    "a bound of 0": (lambda: settled(row_norm=0.0), ("row_norm is 0.0", "from 1e-12")),
    "Gumbel noise without a bound": (
        lambda: settled(coordinate_bound=None, way="gumbel"),
        ("coordinate_bound", "way='means'"),
    ),
    "Gumbel noise on t statistics": (
        lambda: settled(criterion="t", way="gumbel"),
        ("criterion='distance'",),
    ),
    "Gumbel noise on Welch's": (
        lambda: settled(criterion="welch", way="gumbel"),
        ("criterion='distance'",),
    ),
    "an unknown criterion": (
        lambda: settled(criterion="f"),
        ("criterion is 'f'", "distance, t, welch"),
    ),
    "rows of a secret number": (
        lambda: settled(RowsPlan, adjacency=Adjacency.ADD_REMOVE),
        ("add_remove", "zero_out or replace_one"),
    ),
    "one class": (lambda: settled(classes=1), ("classes is 1", "at least 2")),
    "a split of two": (lambda: settled(split=(0.5, 0.5)), ("three numbers",)),
    "a split with nothing for sums": (
        lambda: settled(split=(0.5, 0.0, 0.5)),
        ("a part of the split is 0.0", "from 1e-06"),
    ),
    "all of it for selecting": (
        lambda: settled(selection_share=1.0),
        ("selection_share is 1.0", "(0, 1)"),
    ),
    "no noise yet": (lambda: settled(noise_multiplier=None).event(), ("no noise yet", "calibrate")),
    "a plan for something else": (
        lambda: pv.statistics.select_features(settled(), (X, Y)),
        ("a FisherPlan", "SelectionPlan("),
    ),
    "no plan": (lambda: pv.statistics.fisher("plan", (X, Y)), ("plan is 'plan'", "FisherPlan")),  # type: ignore[arg-type]
    "a label beyond the classes": (
        lambda: pv.statistics.fisher(settled(), (X, Y + 1)),
        ("labels from 1 to 3", "0 to 2"),
    ),
    "a label below": (
        lambda: pv.statistics.fisher(settled(), (X, Y - 1)),
        ("labels from -1 to 1",),
    ),
    "targets that are no classes": (
        lambda: pv.statistics.fisher(settled(), (X, Y.double())),
        ("float64", "its class"),
    ),
    "other classes than the plan's": (
        lambda: pv.statistics.fisher(settled(), pv.Dataset(X, Y, classes=4)),
        ("4 classes and the plan 3",),
    ),
    "rows of another length": (
        lambda: pv.statistics.fisher(settled(), (X[:, :3], Y)),
        ("3 features", "the plan says 4"),
    ),
    "no rows": (lambda: pv.statistics.fisher(settled(), (X[:0], Y[:0])), ("0 rows",)),
    "rows of persons": (
        lambda: pv.statistics.fisher(settled(), pv.Dataset(X, Y, groups=np.arange(40) // 2)),
        ("person ids", "group_size=K", "without groups"),
    ),
    "a selection of persons' rows before training": (
        lambda: pv.Plan(
            pv.Poisson(0.1),
            front=(pv.transforms.SelectFeatures(2, 3.0, K, 1.0),),
            rows_per_person=2,
        ),
        ("persons", "pv.transforms.SelectFeatures"),
    ),
    "a selection before dpmac": (
        lambda: pv.dpmac(
            pv.Plan(
                pv.Poisson(0.3),
                epochs=1,
                front=(pv.transforms.SelectFeatures(2, 3.0, K, 1.0),),
                clip=pv.mac.Derivatives(0.3),
            ),
            torch.nn.Linear(2, K),
            "binary_cross_entropy",
            (X, Y),
        ),
        ("dpmac", "pv.transforms.PrivatePCA"),
    ),
    "more features than there are before training": (
        lambda: pv.dpsgd(
            pv.Plan(
                pv.Poisson(0.3), epochs=1, front=(pv.transforms.SelectFeatures(5, 3.0, K, 1.0),)
            ),
            torch.nn.Linear(5, K),
            torch.nn.CrossEntropyLoss(reduction="none"),
            (X, Y),
        ),
        ("5 features", "of 4"),
    ),
    "the literal release of more features than there are": (
        lambda: literal_release((X, Y), classes=K, keep=9, epsilon=1.0, delta=1e-5),
        ("9 features", "of 4"),
    ),
    "other features in scikit-learn": (
        lambda: (
            DPFeatureSelector(plan=settled(SelectionPlan), ledger=pv.Ledger())
            .fit(X, Y)
            .transform(X[:, :2])
        ),
        ("4 features",),
    ),
    "labels of text that nobody declared": (
        lambda: DPFisherClassifier(plan=settled(), ledger=pv.Ledger()).fit(
            X, np.array(["a", "b", "c"])[Y]
        ),
        ("classes=[...]", "declare"),
    ),
    "more rows than labels in scikit-learn": (
        lambda: DPFisherClassifier(plan=settled(), ledger=pv.Ledger()).fit(X, Y[:9]),
        ("40, 9",),
    ),
    "a budget for nothing": (lambda: budget_for(), ("0 plans",)),
    "a budget for groups of several sizes": (
        lambda: budget_for(settled(), settled(group_size=2)),
        ("2 plans", "one group_size"),
    ),
    "rows without classes": (
        lambda: pv.statistics.fisher(settled(), pv.Dataset(X)),
        ("no targets", "Dataset(x, y)"),
    ),
    "rows of text": (
        lambda: pv.Dataset(X, np.array(["a"] * 40), name="study.npz").tensors(),
        ("y of study.npz", "<U1"),
    ),
    "rows of nothing": (
        lambda: pv.Dataset(X, name="study.npz").tensors(),
        ("y of study.npz", "Dataset(x, y)"),
    ),
    "names of other features": (
        lambda: pv.Dataset(X, Y, feature_names=("age",)),
        ("1 feature_names", "4 numbers"),
    ),
    "other features to predict": (
        lambda: DPFisherClassifier(plan=settled(), ledger=pv.Ledger()).fit(X, Y).predict(X[:, :2]),
        ("4 features",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_one_message(case: str) -> None:
    act, said = REFUSED[case]
    with pytest.raises(BadInput) as error:
        act()
    for words in said:
        assert words in str(error.value), error.value


def test_kinds_of_neighbour_do_not_mix_on_a_ledger() -> None:
    ledger = pv.Ledger()
    pv.statistics.fisher(settled(), (X, Y), ledger=ledger)
    with pytest.raises(AdjacencyMismatch, match="Give another ledger"):
        pv.statistics.release_features(settled(RowsPlan), (X, Y), ledger=ledger)
    with pytest.raises(AdjacencyMismatch, match=r"'add_remove' \(in training with examples=N\)"):
        pv.train(pv.Dataset(X, Y, classes=K, low=-9, high=9), epsilon=1, ledger=ledger)
    other = pv.Ledger()
    other.charge(Gaussian(9.0), Adjacency.REPLACE_ONE)
    with pytest.raises(AdjacencyMismatch, match="Give adjacency='replace_one'"):
        pv.statistics.release_features(settled(RowsPlan), (X, Y), ledger=other)
    replaced = settled(RowsPlan, adjacency="replace_one")
    pv.statistics.release_features(replaced, (X, Y), ledger=other)


def test_a_ledger_that_rows_cannot_go_on_is_refused_with_advice_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows have no guarantee for add/remove neighbours: no `--adjacency` helps."""
    monkeypatch.chdir(tmp_path)
    pv.Ledger.open("study.json", create=True).charge(Gaussian(9.0), Adjacency.ADD_REMOVE)
    words = ["train", "--method", "features", "--mode", "rows", "--data", "digits"]
    words += ["--row-norm", "1", "--epsilon", "5"]
    for more in ([], ["--paid-metrics", "1"]):
        assert cli.main([*words, *more, "--out", "rows", "--ledger", "study.json"]) == 2
        refusal = capsys.readouterr().err
        assert "--ledger is for add_remove neighbours" in refusal
        assert "Give another ledger, or a new one" in refusal
        assert "--adjacency" not in refusal
    assert cli.main([*words, "--out", "rows", "--ledger", "other.json"]) == 0


def test_data_of_any_kind_make_the_same_classifier() -> None:
    x, y = X / 100, Y
    plan = settled()
    kinds = [
        (x, y),
        (x.numpy(), y.numpy()),
        (x.view(-1, 2, 2), y),
        torch.utils.data.TensorDataset(x, y),
        pv.Dataset(x, y, classes=K),
    ]
    found = [pv.statistics.fisher(plan, data, streams=pv.Streams.new(0)).model for data in kinds]
    for model in found[1:]:
        assert torch.allclose(model(x.float()), found[0](x.float()), rtol=1e-4, atol=1e-4)
    bounded = pv.statistics.fisher(
        plan, pv.Dataset(x, y, low=-1.0, high=1.0), streams=pv.Streams.new(0)
    ).model
    assert torch.allclose(bounded(x.float()), found[0](x.float()), rtol=1e-4, atol=1e-4)


def test_searches_price_selections_as_tightly_as_guarantees() -> None:
    plan = settled(way="gumbel", noise_multiplier=None).calibrate(epsilon=2.0, delta=1e-5)
    assert 2.0 * 0.997 <= plan.guarantee(1e-5).epsilon <= 2.0
    for event in (Repeated(Selection(0.1), 30), plan.event(), Composed((Selection(2.0),))):
        for size in (1, 3):
            exact = guarantee(event, Adjacency.ADD_REMOVE, 1e-5, size).epsilon
            assert exact <= epsilon_bound(event, Adjacency.ADD_REMOVE, 1e-5, size) * (1 + 1e-12)


def test_groups_are_paid_for() -> None:
    one = settled(noise_multiplier=None).calibrate(epsilon=2.0, delta=1e-5)
    three = settled(noise_multiplier=None, group_size=3).calibrate(epsilon=2.0, delta=1e-5)
    assert three.noise == pytest.approx(3 * one.noise, rel=3e-3)
    result = pv.statistics.fisher(three, (X, Y))
    assert result.ledger.guarantee(1e-5).group_size == 3


def test_fewer_features_are_better_under_noise() -> None:
    """Noisy rows of the toy model: the chosen few beat all, and the classifier comes near the
    closed form.
    """
    x, y = toy(0, n=1500, p=400)
    accuracy = {}
    for keep in (20, 400):
        plan = pv.statistics.RowsPlan(
            2, 400, keep, 11.0, 1.0, kept_norm=0.55 * math.sqrt(keep), noise_multiplier=3.0
        )
        result = pv.statistics.release_features(
            plan, (x, y), streams=pv.Streams.new(0)
        ).classifier()
        fresh, labels = toy(1, n=1000, p=400)
        with torch.no_grad():
            accuracy[keep] = float((result.model(fresh).argmax(1) == labels).float().mean())
    assert accuracy[20] > 0.9, accuracy
    assert accuracy[20] > accuracy[400] + 0.1, accuracy


def test_noise_on_a_grid() -> None:
    result = pv.statistics.fisher(
        settled(way="gumbel"), (X, Y), streams=pv.Streams.new(0, discrete=True)
    )
    assert result.facts["noise"] == "on a grid"


def test_a_pipeline_of_selection_and_classifier() -> None:
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    x, y = (part.numpy() for part in toy(0, n=300, p=50))
    first = pv.statistics.SelectionPlan(2, 50, 20, 4.0, 1.0).calibrate(rho=0.4)
    second = pv.statistics.FisherPlan(2, 20, 20, 3.5).calibrate(rho=0.4)
    ledger = pv.Ledger(pv.Budget(rho=0.8))
    line = make_pipeline(
        DPFeatureSelector(plan=first, ledger=ledger), DPFisherClassifier(plan=second, ledger=ledger)
    ).fit(x, y)
    assert line.score(x, y) > 0.9
    assert line.predict_proba(x).shape == (600, 2)
    assert line[-1].decision_function(x[:, :20]).shape == (600,)
    assert len(line[0].get_feature_names_out()) == 20
    search = GridSearchCV(
        DPFisherClassifier(plan=second, ledger=ledger),
        {"plan": [second]},
        cv=2,
        error_score="raise",
    )
    with pytest.raises(pv.errors.BudgetExceeded):
        search.fit(x[:, :20], y)


def test_the_example_for_scikit_learn_runs_and_costs_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    example = page.split("## In scikit-learn")[1].split("```python\n")[1].split("```")[0]
    exec(compile(example, "docs/methods.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()[0]
    assert f"print(budget)  # {printed}" in example


def test_absurd_numbers_in_the_plan_of_a_certificate_are_refused_or_priced() -> None:
    """Whoever verifies reads what strangers wrote: nothing but errors of privlearn's own."""
    plan = settled().to_json()
    before = pv.Plan(
        pv.Poisson(0.1), front=(pv.transforms.SelectFeatures(2, 3.0, K, 1.0, 0.5),)
    ).to_json()
    absurd = [
        None,
        "x",
        -1,
        0,
        1e-300,
        1e300,
        math.nan,
        [],
        {},
        True,
        10**400,
        [1e-300, 1e300, 1],
        [1, 2],
    ]
    refused = 0
    for whole, numbers in ((plan, plan), (before, before["front"][0])):
        for name, kept in list(numbers.items()):
            for value in absurd:
                numbers[name] = value
                try:
                    certificate.read_plan(whole).event()
                except pv.errors.PrivlearnError:
                    refused += 1
            numbers[name] = kept
        certificate.read_plan(whole).event()
    assert refused > 200


# The command line


def told(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert cli.main(["train", "--data", "digits", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_classifier_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    answer = told(
        capsys,
        "--method",
        "features",
        "--epsilon",
        "3",
        "--keep",
        "40",
        "--out",
        str(out),
        "--seed",
        "1",
    )
    assert answer["epochs"] is answer["steps"] is answer["noise_multipliers"] is None
    assert 2.99 <= answer["epsilon"] <= 3
    assert answer["test_accuracy"] > 0.85
    assert pv.verify(out).ok
    assert len(answer["chosen"]["indices"]) == len(answer["chosen"]["scores"]) == 40
    assert (
        cli.main(["predict", str(out), "--data", "digits", "--out", str(tmp_path / "p.csv")]) == 0
    )
    capsys.readouterr()


@pytest.mark.parametrize("way", ["means", "gumbel"])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_noise_of_sums_is_known_beforehand(
    way: str, adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[float] = []
    usual = fisher_module.release_statistics

    def seen(*given: Any, **more: Any) -> Any:
        found = usual(*given, **more)
        released.append(found.sum_std)
        return found

    monkeypatch.setattr(fisher_module, "release_statistics", seen)
    monkeypatch.setattr(mechanism, "release_statistics", seen)
    for keep in (2, 4):
        plan = settled(way=way, adjacency=adjacency, keep=keep, split=(0.2, 0.5, 0.4))
        pv.statistics.fisher(plan, (X, Y))
        assert plan.noise_of_sums == pytest.approx(released[-1])


def test_budgets_are_those_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`budget` knows of public numbers alone what `train` spends, and prints it with its noise."""
    public = ("--numbers", "64", "--classes", "10")
    for number, options in enumerate(
        (
            ("--method", "features", "--epsilon", "3", "--keep", "7"),
            (
                "--method",
                "features",
                "--rho",
                "0.1",
                "--adjacency",
                "replace_one",
                "--row-norm",
                "5",
                "--criterion",
                "t",
            ),
            (
                "--select",
                "9",
                "--epsilon",
                "4",
                "--examples",
                "1437",
                "--epochs",
                "1",
                "--select-share",
                "0.3",
            ),
        )
    ):
        assert cli.main(["budget", *options, *public, "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)
        trained = told(capsys, *options, "--out", str(tmp_path / f"m{number}"))
        assert planned["epsilon"] == trained["epsilon"]
        assert planned["guarantees"] == trained["guarantees"]
        assert planned["plan"] == trained["plan"]
        assert cli.main(["budget", *options, *public, "--examples", "1437"]) == 0
        shown = capsys.readouterr().out
        expected = (
            "before it a selection of 9 features"
            if "--select" in options
            else "with 143.7 rows in each class"
        )
        assert expected in shown
    for options, said in (
        (["--method", "features", "--epsilon", "1"], "--numbers P"),
        (["--select", "3", "--epsilon", "1", "--examples", "9"], "--numbers P"),
        (["--method", "features", "--epsilon", "1", *public, "--epochs", "3"], "--epochs"),
        (["--keep", "3", "--epsilon", "1", "--examples", "9"], "add --method features"),
    ):
        assert cli.main(["budget", *options]) == 2
        assert said in capsys.readouterr().err


def test_a_budget_needs_no_torch() -> None:
    code = (
        "import sys; from privlearn import cli; cli.main(sys.argv[1:]); assert 'torch' not in "
        "sys.modules"
    )
    for options in (["--method", "features"], ["--select", "3", "--examples", "1000"]):
        command = [
            sys.executable,
            "-c",
            code,
            "budget",
            *options,
            "--epsilon",
            "2",
            "--numbers",
            "9",
            "--classes",
            "2",
        ]
        assert subprocess.run(command, capture_output=True, check=True).stdout


def test_a_selection_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ledger.json"
    answer = told(
        capsys,
        "--select",
        "30",
        "--epsilon",
        "6",
        "--epochs",
        "5",
        "--out",
        str(tmp_path / "model"),
        "--seed",
        "1",
        "--ledger",
        str(file),
        "--select-share",
        "0.1",
    )
    (select,) = answer["plan"]["before"]
    assert select["kind"] == "select"
    assert answer["ledger"]["epsilon"] == pytest.approx(answer["epsilon"])
    assert answer["test_accuracy"] > 0.7
    assert len(set(answer["chosen"]["indices"])) == 30
    assert pv.verify(tmp_path / "model").ok


@pytest.mark.parametrize(
    "options", [("--method", "features", "--keep", "4"), ("--select", "4", "--epochs", "1")]
)
def test_names_of_chosen_features_are_shown(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    data = ("--data", "breast-cancer", "--epsilon", "20", "--seed", "3", "--out", str(out))
    assert cli.main(["train", *data, *options]) == 0
    shown = capsys.readouterr().out
    (chosen,) = json.loads((out / "privacy.json").read_text())["facts"]["chosen"]
    names = pv.load("breast-cancer").feature_names
    assert [names[index] for index in chosen["indices"]] == chosen["names"]
    assert all(f"{index} {names[index]}" in shown for index in chosen["indices"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "features", "--keep", "70", "--epsilon", "1"], "70 features"),
        (["--method", "features", "--epochs", "3", "--epsilon", "1"], "--epochs"),
        (["--method", "features", "--model", "mlp:9", "--epsilon", "1"], "--model"),
        (["--method", "features"], "--epsilon E or --rho R"),
        (["--keep", "3", "--epsilon", "1"], "add --method features"),
        (["--row-norm", "3", "--epsilon", "1"], "--row-norm"),
        (["--select", "3", "--noise-multiplier", "1"], "give --epsilon E\n"),
        (["--select", "3", "--epsilon", "1", "--method", "dpmac"], "train by dpsgd"),
        (["--select", "65", "--epsilon", "1"], "65 features"),
        (["--mode", "auto", "--epsilon", "1"], "--method features"),
        (["--method", "features", "--mode", "auto", "--epsilon", "1"], "--examples N"),
        (
            [
                "--method",
                "features",
                "--mode",
                "auto",
                "--examples",
                "9",
                "--keep",
                "3",
                "--epsilon",
                "1",
            ],
            "leave out --keep",
        ),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--data", "digits", "--out", str(tmp_path / "m"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


# Which way, by public numbers


def advice(examples: int, epsilon: float = 1.0, **others: Any) -> Any:
    plan = pv.statistics.FisherPlan(
        **{"classes": 10, "features": 1000, "keep": 1000, "row_norm": 6.0, "coordinate_bound": 1.0}
        | others
    )
    return pv.statistics.advised(plan.calibrate(epsilon=epsilon, delta=1e-5), examples)


def test_all_features_where_noise_is_small_and_few_where_it_is_large() -> None:
    """All up to t = z k sqrt(p) / n = 0.4, else a quarter of them; for one target, whatever is
    chosen.
    """
    z = pv.statistics.FisherPlan(10, 1000, 1000, 6.0).calibrate(epsilon=1.0, delta=1e-5).noise
    limit = z * 10 * math.sqrt(1000) / 0.4
    for examples, expected in (
        (50_000, 1000),
        (math.ceil(limit), 1000),
        (math.floor(limit), 250),
        (200, 250),
    ):
        found = advice(examples)
        assert found.plan.keep == pytest.approx(expected, abs=1)
        assert isinstance(found.plan, FisherPlan)
        assert 0.997 <= found.plan.guarantee(1e-5).epsilon <= 1.0
        assert found.plan.in_one_release == (expected == 1000)
        assert f"{found.plan.keep:,}" in found.why
    close = math.ceil(limit)
    assert advice(close - 1, epsilon=10.0).plan.keep == 1000
    # Larger rows are clipped to more and have as much more noise: nothing changes.
    assert advice(close, row_norm=60.0, coordinate_bound=10.0).plan.keep == 1000
    assert advice(close, group_size=2).plan.keep == 250


def test_few_features_need_a_bound_and_rows_fewer_of_them_than_classes() -> None:
    for others in ({"coordinate_bound": None}, {"criterion": "t"}, {"criterion": "welch"}):
        found = advice(2000, **others)
        assert found.plan.keep == 1000
        assert "declared bound" in found.why
    assert advice(3, features=4, keep=2, classes=2).plan.keep == 4  # never more than there are
    rows = advice(8)
    assert (rows.plan.kind, rows.plan.labels) == ("rows", "randomised")
    assert rows.plan.guarantee(1e-5).epsilon <= 1.0
    settled_by_noise = pv.statistics.advised(
        pv.statistics.FisherPlan(10, 1000, 10, 6.0, noise_multiplier=2.0), 50_000
    )
    assert (settled_by_noise.plan.noise, settled_by_noise.plan.keep) == (2.0, 1000)
    with pytest.raises(BadInput, match="no noise yet"):
        pv.statistics.advised(pv.statistics.FisherPlan(10, 1000, 10, 6.0), 50_000)
    with pytest.raises(BadInput, match="examples"):
        advice(0)


def test_few_features_are_better_where_the_rule_says_so() -> None:
    """Rows of 400 numbers between 0 and 1, a quarter of which tell classes apart: on fresh rows,
    three seeds.
    """
    generator = torch.Generator().manual_seed(0)
    middle = torch.full((4, 400), 0.5)
    middle[torch.arange(100) % 4, torch.arange(100)] += 0.3
    y = torch.arange(2400) % 4
    x = (middle[y] + torch.randn(2400, 400, generator=generator) / 10).clamp(0, 1)
    plan = pv.statistics.FisherPlan(4, 400, 400, 11.0, 1.0).calibrate(epsilon=2.0, delta=1e-5)
    few = pv.statistics.advised(plan, 300).plan
    assert few.keep == 100
    reached = []
    for own in (few, plan):
        for seed in range(3):
            model = pv.statistics.fisher(
                own, (x[:300], y[:300]), streams=pv.Streams.new(seed)
            ).model
            reached.append(float((model(x[300:]).argmax(1) == y[300:]).double().mean()))
    assert sum(reached[:3]) > sum(reached[3:]) + 0.06, reached
    assert pv.statistics.advised(plan, 4000).plan.keep == 400


def test_modes_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--method", "features", "--seed", "1", "--examples", "1437")
    out = [str(tmp_path / name) for name in ("all", "few", "rows")]
    answer = told(capsys, *common, "--mode", "auto", "--epsilon", "3", "--out", out[0])
    assert (answer["plan"]["keep"], answer["plan"]["kind"]) == (64, "fisher")
    assert answer["why"].startswith("statistics of all 64 features")
    answer = told(capsys, *common, "--mode", "auto", "--epsilon", "0.2", "--out", out[1])
    assert answer["plan"]["keep"] < 32
    assert answer["epsilon"] <= 0.2
    answer = told(
        capsys, *common, "--mode", "rows", "--keep", "20", "--epsilon", "5", "--out", out[2]
    )
    assert (answer["plan"]["kind"], answer["plan"]["labels"]) == ("rows", "randomised")
    assert (answer["adjacency"], answer["epsilon"] <= 5) == ("zero_out", True)
    assert all(pv.verify(folder).ok for folder in out)
