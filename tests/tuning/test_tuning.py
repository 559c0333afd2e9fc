"""Private parameter selection on real data, on the command line, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from scipy import stats

import privlearn as pv
from privlearn.cli import main
from privlearn.core import streams as streams_module
from privlearn.core.accounting import accountant, rdp, zcdp
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.accounting.trees import OneOf, Parallel, RepeatAndSelect, one_of
from privlearn.errors import AdjacencyMismatch, BadInput, UnsupportedEvent
from privlearn.methods.tuning import sums
from privlearn.methods.tuning import tune as tune_module
from privlearn.runs.result import PrivateDiagnostics
from tests.support.nets import cross_entropy
from tests.tuning.checks import ADD, EMPTY, REPLACE, both_ways, candidates, data, train

GOOD_AND_HOPELESS = (
    '[[candidate]]\nname = "good"\n\n[[candidate]]\nname = "hopeless"\nlearning-rate = 1e-6\n'
)


def written(folder: Path, text: str) -> str:
    path = folder / "tune.toml"
    path.write_text(text)
    return str(path)


def command(*parts: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(list(parts))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(
    "head",
    ['way = "blocks"\n', 'way = "blocks"\nretrain = true\n', 'way = "random-stopping"\nmean = 6\n'],
)
def test_digits_choose_well_and_verify(
    head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = written(tmp_path, head + GOOD_AND_HOPELESS), tmp_path / "model"
    options = ("--examples", "1437", "--epsilon", "4", "--epochs", "10", "--tune", file)
    code, text, _ = command("budget", *options, "--json", capsys=capsys)
    planned = json.loads(text)
    assert code == 0
    assert planned["epochs"] is planned["steps"] is planned["noise_multipliers"] is None
    train_options = ("--data", "digits", *options, "--seed", "5", "--out", str(out), "--json")
    code, text, _ = command("train", *train_options, capsys=capsys)
    answer = json.loads(text)
    assert code == 0
    assert answer["epsilon"] == planned["epsilon"]
    assert 4 * (1 - 0.003) <= answer["epsilon"] <= 4
    assert answer["chosen"] == "good"
    assert answer["test_accuracy"] > 0.75
    assert (answer["seconds"] is None) == ("stopping" in head)
    code, text, _ = command("verify", str(out), "--json", capsys=capsys)
    assert code == 0, text
    assert json.loads(text)["epsilon"] == pytest.approx(answer["epsilon"], rel=1e-9)
    card = (out / "README.md").read_text()
    assert "## How the parameters were chosen" in card
    assert "| hopeless | learning-rate 1e-06 |" in card
    assert "Chosen: **good**" in card
    assert command("predict", str(out), "--data", "digits", capsys=capsys)[0] == 0


def test_wisconsin_with_networks_of_different_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    text = (
        'retrain = true\nshare = 0.3\n[[candidate]]\nmodel = "mlp:8"\npca = 4\nschedule = '
        '"exp:k=0.05"\n'
        "[[candidate]]\nepochs = 20\n"
    )
    options = (
        "--examples",
        "500",
        "--epsilon",
        "3",
        "--epochs",
        "10",
        "--tune",
        written(tmp_path, text),
    )
    out = tmp_path / "model"
    code, shown, errors = command(
        "train",
        "--data",
        "wisconsin",
        "--data-dir",
        str(data_dir),
        *options,
        "--out",
        str(out),
        "--json",
        capsys=capsys,
    )
    assert code == 0, errors
    answer = json.loads(shown)
    assert answer["test_accuracy"] > 0.8
    assert answer["chosen"] in ("model mlp:8, pca 4, schedule exp:k=0.05", "epochs 20")
    assert pv.verify(out).ok


def test_one_ledger_for_tuned_and_plain_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book, file = (
        str(tmp_path / "study.json"),
        written(tmp_path, "retrain = true\n" + GOOD_AND_HOPELESS),
    )
    assert command("ledger", book, "--epsilon", "5", capsys=capsys)[0] == 0
    common = ("--data", "breast-cancer", "--examples", "455", "--epochs", "3", "--ledger", book)
    assert (
        command(
            "train",
            *common,
            "--epsilon",
            "3",
            "--out",
            str(tmp_path / "a"),
            "--tune",
            file,
            capsys=capsys,
        )[0]
        == 0
    )
    code, _, errors = command(
        "train",
        *common,
        "--epsilon",
        "4",
        "--out",
        str(tmp_path / "b"),
        "--tune",
        file,
        capsys=capsys,
    )
    assert code == 2
    assert "does not fit on the ledger" in errors
    assert "% of its room" in errors
    assert "a budget of epsilon 5" in errors
    assert (
        command("train", *common, "--epsilon", "2", "--out", str(tmp_path / "c"), capsys=capsys)[0]
        == 0
    )
    assert pv.verify(tmp_path / "a").ok
    assert pv.verify(tmp_path / "c").ok
    together = Ledger.open(book)
    assert together.guarantee(1e-5).epsilon <= 5
    tuned = next(entry for entry in LedgerFile(book).read().entries if entry.what.endswith("tuned"))
    assert not tuned.open
    assert isinstance(tuned.spent.events[0], Parallel)


BAD_FILES = {
    "": "has no candidates",
    "way = 'luck'\n"
    + GOOD_AND_HOPELESS: "way in .* is 'luck': expected one of blocks, random-stopping",
    "retrain = 1\n" + GOOD_AND_HOPELESS: "retrain is 1: expected True or False",
    "mean = 4\n" + GOOD_AND_HOPELESS: "sets 'mean', which blocks does not have",
    "way = 'random-stopping'\nmean = 0.5\n"
    + GOOD_AND_HOPELESS: "mean is 0.5: expected a number from 1 to 1000",
    "way = 'random-stopping'\nshape = -1\n" + GOOD_AND_HOPELESS: "shape is -1: expected",
    "way = 'random-stopping'\nscore-noise = 0\n" + GOOD_AND_HOPELESS: "score_noise is 0: expected",
    "way = 'random-stopping'\nretrain = true\n"
    + GOOD_AND_HOPELESS: "sets 'retrain', which random-stopping",
    "selection-epsilon = 'x'\n" + GOOD_AND_HOPELESS: "selection_epsilon is 'x': expected",
    "share = 1\n" + GOOD_AND_HOPELESS: r"share is 1: expected a number in \(0, 1\)",
    "selection-epsilon = 50\n"
    + GOOD_AND_HOPELESS: "the selection alone costs? epsilon .* leave out selection_epsilon",
    "way = 'random-stopping'\nscore-noise = 0.5\n"
    + GOOD_AND_HOPELESS: "the scores alone costs? epsilon .* score_noise",
    "[[candidate]]\n": "there are 1 candidates: expected from 2",
    "[[candidate]]\n[[candidate]]\n": "two candidates are called 'as given'",
    "[candidate]\n": "has no candidates",
    "[[candidate]]\nepsilon = 3\n[[candidate]]\n": "sets 'epsilon', which it can't",
    "[[candidate]]\nout = 'x'\n[[candidate]]\n": "sets 'out', which it can't",
    "[[candidate]]\nepochs = true\n[[candidate]]\n": "sets epochs to True: expected its value",
    "[[candidate]]\nepochs = 'x'\n[[candidate]]\n": (
        "argument --epochs: 'x' cannot be read as a whole number"
    ),
    "[[candidate]]\nname = 3\nepochs = 3\n[[candidate]]\n": "a candidate's name is '3': expected",
    "[[candidate]]\nname = 'a|b'\n[[candidate]]\n": "a candidate's name is 'a|b': expected",
    "[[candidate]]\nsampling = 'shuffle'\n[[candidate]]\n": (
        "add_remove neighbours were given, and zero_out expected"
    ),
    "[[candidate]]\nschedule = 'up'\n[[candidate]]\n": "up",
    "[[candidate]\n": "cannot be read",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files_are_refused_with_a_remedy(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        "--examples",
        "1437",
        "--epsilon",
        "2",
        "--epochs",
        "3",
        "--tune",
        written(tmp_path, text),
    )
    code, out, errors = command("budget", *options, capsys=capsys)
    assert code == 2
    assert out == ""
    assert "Traceback" not in errors
    assert re.search(BAD_FILES[text], errors), errors


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--resume",), "--resume does not go with --tune"),
        (("--noise-multiplier", "3"), "--noise-multiplier does not go with --tune"),
        (("--solve", "epochs"), "--solve does not go with --tune"),
        (
            ("--adjacency", "replace_one", "--sampling", "shuffle"),
            "disjoint blocks has no sound accounting for replace_one",
        ),
        (("--rho", "0.1"), "either epsilon|exactly one"),
    ],
)
def test_options_that_do_not_go_with_it(
    more: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, GOOD_AND_HOPELESS)
    options = ("--data", "digits", "--epsilon", "3", "--out", str(tmp_path / "m"), "--tune", file)
    code, _, errors = command("train", *options, *more, capsys=capsys)
    assert code == 2
    assert re.search(message, errors), errors
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("optimizer = 'Luck'", "optimizer 'Luck' cannot be used"),
        ("model = 'huge'", "huge"),
        ("learning-rate = -1", "--learning-rate is -1.0"),
        ("lr-schedule = 'up'", "up"),
        ("pca = 100", "100 components of 64 features"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_charged(
    table: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book, file = (
        tmp_path / "study.json",
        written(tmp_path, f"[[candidate]]\n[[candidate]]\n{table}\n"),
    )
    options = (
        "--data",
        "digits",
        "--epsilon",
        "3",
        "--epochs",
        "2",
        "--ledger",
        str(book),
        "--tune",
        file,
    )
    code, _, errors = command("train", *options, "--out", str(tmp_path / "m"), capsys=capsys)
    assert code == 2
    assert message in errors
    assert not Ledger.open(book).event.events


def test_planning_needs_no_torch(tmp_path: Path) -> None:
    file = written(tmp_path, "retrain = true\n" + GOOD_AND_HOPELESS)
    code = (
        "import sys; from privlearn.cli import main;assert main(['budget', '--examples', '1437', "
        f"'--epsilon', '2', '--epochs', '2', '--tune', {file!r}]) == 0;assert 'torch' not in "
        "sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# In Python


def test_zero_out_and_other_batches() -> None:
    for sampler in (pv.Poisson(0.4), pv.Partition(3), pv.Shuffle(6), pv.sampling.FullBatch()):
        plan = pv.tuning.Blocks(candidates(sampling=sampler, adjacency=EMPTY)).calibrate(
            epsilon=3.0, delta=1e-5
        )
        result = pv.tune(plan, train, data(), streams=streams_module.Streams.new(1))
        assert result.ledger.event == plan.event()
        assert result.adjacency is EMPTY
    stopping = pv.tuning.RandomStopping(
        candidates(sampling=pv.Shuffle(6), adjacency=REPLACE), mean=2.0
    )
    stopping = stopping.calibrate(epsilon=3.0, delta=1e-5)
    assert (
        pv.tune(stopping, train, data(), streams=streams_module.Streams.new(1)).ledger.event
        == stopping.event()
    )


def test_persons_and_groups() -> None:
    x, y = data(60)
    ids = np.arange(60) // 3
    persons = pv.tuning.Blocks(candidates(rows_per_person=2, examples=20), retrain=True).calibrate(
        epsilon=3.0, delta=1e-5
    )
    result = pv.tune(
        persons, train, pv.Dataset(x, y, groups=ids), streams=streams_module.Streams.new(1)
    )
    assert result.ledger.unit.rows_per_person == 2
    with pytest.raises(BadInput, match="do not say whose rows"):
        pv.tune(persons, train, (x, y))
    groups = pv.tuning.Blocks(candidates(group_size=4, examples=60)).calibrate(
        epsilon=3.0, delta=1e-5
    )
    result = pv.tune(groups, train, (x, y), streams=streams_module.Streams.new(1))
    assert result.ledger.guarantee(1e-5).group_size == 4
    assert result.ledger.guarantee(1e-5).epsilon <= 3.0


def test_a_group_of_a_repeated_run_is_priced_as_one_example() -> None:
    run = compose([Repeated(PoissonSampled(0.1, Gaussian(8.0)), 20), Gaussian(50.0)])
    for event in (RepeatAndSelect(run, 4.0, 1.0), OneOf((run, Gaussian(30.0)))):
        one, four = (accountant.guarantee(event, ADD, 1e-6, k).epsilon for k in (1, 4))
        in_steps = 4 * accountant.guarantee(event, ADD, 1e-9, 1).epsilon
        assert one < four < in_steps


def test_rows_of_no_block_and_hardly_any_rows() -> None:
    """More blocks than rows: most are empty, and nothing tells."""
    plan = pv.tuning.Blocks(candidates(tuple(0.1 * i for i in range(1, 8)), examples=3)).calibrate(
        epsilon=3.0, delta=1e-5
    )
    result = pv.tune(plan, train, data(3), streams=streams_module.Streams.new(0))
    assert result.ledger.event == plan.event()


def test_the_ledger_keeps_what_was_charged_when_a_run_is_interrupted() -> None:
    plan = pv.tuning.Blocks(candidates(), retrain=True).calibrate(epsilon=3.0, delta=1e-5)
    ledger = Ledger(plan.budget)

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pv.tune(plan, interrupted, data(), ledger=ledger)
    assert ledger.event == compose([plan.choosing()])


def test_what_python_refuses() -> None:
    plan = pv.Plan(pv.Poisson(0.3), examples=8)
    a, b = pv.tuning.Candidate("a", plan), pv.tuning.Candidate("b", plan)
    with pytest.raises(UnsupportedEvent, match="replace_one"):
        pv.tuning.Blocks(
            tuple(pv.tuning.Candidate(n, pv.Plan(pv.Shuffle(5), adjacency=REPLACE)) for n in "ab")
        )
    with pytest.raises(AdjacencyMismatch):
        pv.tuning.Blocks((a, pv.tuning.Candidate("c", pv.Plan(pv.Shuffle(5)))))
    with pytest.raises(BadInput, match="one group_size"):
        pv.tuning.Blocks(
            (a, pv.tuning.Candidate("c", pv.Plan(pv.Poisson(0.3), group_size=2, examples=8)))
        )
    with pytest.raises(BadInput, match="declares 9 examples, and 'a' 8"):
        pv.tuning.Blocks((a, pv.tuning.Candidate("c", pv.Plan(pv.Poisson(0.3), examples=9))))
    with pytest.raises(BadInput, match="leave out again="):
        pv.tuning.RandomStopping((a, pv.tuning.Candidate("c", plan, again=plan)), mean=2.0)
    with pytest.raises(BadInput, match="not a tuple of candidates"):
        pv.tuning.Blocks([a, b])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="validation schedule"):
        pv.tuning.Candidate(
            "reacts", pv.Plan(pv.Poisson(0.1), schedule=pv.schedules.Validation(0.7))
        )
    with pytest.raises(BadInput, match="such as a privlearn Plan"):
        pv.tuning.Candidate("a", "plan")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="expected numbers and texts"):
        pv.tuning.Candidate("a", plan, settings={"x": torch.zeros(1)})
    with pytest.raises(BadInput, match="give selection_epsilon"):
        pv.tuning.Blocks((a, b)).event()
    with pytest.raises(BadInput, match=r"shape is .*: expected a number from 0 to 1000"):
        pv.tuning.RandomStopping((a, b), mean=2.0, shape=1e4)
    with pytest.raises(BadInput, match="give score_noise"):
        pv.tuning.RandomStopping((a, b), mean=2.0).event()
    with pytest.raises(
        BadInput, match=r"expected a pv.tuning.Blocks or a pv.tuning.RandomStopping"
    ):
        pv.tune(plan, train, data())  # type: ignore[arg-type]
    settled = pv.tuning.Blocks((a, b), selection_epsilon=1.0)
    with pytest.raises(BadInput, match="one whole number for each row"):
        pv.tune(settled, train, (torch.zeros(4, 5), torch.zeros(4)))
    with pytest.raises(BadInput, match="loader"):
        pv.tune(
            settled,
            train,
            torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), 5, shuffle=True),
        )  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="expected a Result"):
        pv.tune(settled, lambda *args: None, data())  # type: ignore[arg-type,return-value]


def test_too_many_mechanisms_are_refused_by_name() -> None:
    falling = {"schedule": pv.schedules.Exponential(k=0.001), "epochs": 300}
    with pytest.raises(UnsupportedEvent, match="or candidates"):
        pv.tuning.Blocks(candidates((1.0, 2.0, 3.0, 4.0), **falling), retrain=True).calibrate(
            epsilon=2.0, delta=1e-5
        )


# What it is worth


def test_figures_of_the_documentation() -> None:
    """docs/decisions/proofs-of-prices.md: a block by its privacy loss distribution, and a choice by
    random stopping.
    """
    run = Repeated(PoissonSampled(0.1, Gaussian(2.0)), 300)
    quieter = Repeated(PoissonSampled(0.1, Gaussian(2.5)), 300)
    blocks = Parallel((run, quieter))
    assert (
        accountant.guarantee(run, ADD, 1e-5).epsilon
        == accountant.guarantee(blocks, ADD, 1e-5).epsilon
    )
    assert round(accountant.guarantee(blocks, ADD, 1e-5).epsilon, 3) == 4.184
    assert round(rdp.epsilon(blocks, 1e-5), 3) == 4.564
    costs = [
        accountant.guarantee(RepeatAndSelect(run, 8.0, shape), ADD, 1e-5).epsilon
        for shape in (0.0, 1.0, math.inf)
    ]
    assert [round(cost, 2) for cost in costs] == [7.0, 7.95, 8.66]
    assert one_of([run, run]) == compose([run])
    assert zcdp.rho(Parallel((Gaussian(2.0), Gaussian(3.0)))) == 1 / 8


def test_the_better_candidate_wins_with_the_stated_odds() -> None:
    """Two candidates of fixed error counts, over many runs: the odds of the exponential mechanism,
    end to end.

    Half or twice the odds' exponent lies five standard deviations away. Six rows are enough, and
    keep it quick.
    """
    x, y = torch.zeros(6, 2), torch.zeros(6, dtype=torch.int64)

    class Fixed(torch.nn.Module):
        """Always says `answer`."""

        def __init__(self, answer: int) -> None:
            super().__init__()
            self.answer, self.weight = answer, torch.nn.Parameter(torch.zeros(1))

        def forward(self, rows: Any) -> Any:
            return (
                torch.nn.functional.one_hot(torch.full((len(rows),), self.answer), 3)
                + 0.0 * self.weight
            )

    def fixed(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        ledger.charge(candidate.plan.event(), candidate.plan.neighbours)
        model = Fixed(int(candidate.settings["answer"]))
        return pv.Result(
            model, ledger, candidate.plan, "fixed", {}, {}, False, PrivateDiagnostics({})
        )

    each = tuple(
        pv.tuning.Candidate(
            f"says {answer}",
            pv.Plan(pv.sampling.FullBatch(), epochs=1, adjacency=EMPTY),
            settings={"answer": answer},
        )
        for answer in (0, 2)
    )
    plan = pv.tuning.Blocks(each, selection_epsilon=0.6)
    streams, runs = streams_module.Streams.new(2), 400
    chosen = [
        pv.tune(plan, fixed, (x, y), streams=streams).facts["tuning"]["chosen"] for _ in range(runs)
    ]
    # A third of the rows is held out, all of class 0: no errors against one for each held row, so
    # odds e^{0.6 n}.
    held = np.arange(7)
    expected = float(stats.binom.pmf(held, 6, 1 / 3) @ (1 / (1 + np.exp(-0.6 * held))))
    assert abs(1 - np.mean(chosen) - expected) < 3 * math.sqrt(expected * (1 - expected) / runs)


def at_several(plan: Any, jobs: int | None) -> pv.Result:
    return pv.tune(plan, random_start, data(), streams=pv.Streams.new(4), jobs=jobs)


def random_start(candidate: Any, rows: Any, ledger: Any, streams: Any) -> pv.Result:
    """A model whose initial weights are PyTorch's, of no seed of its own."""
    model = torch.nn.Linear(5, 3).double()
    return pv.dpsgd(
        candidate.plan,
        model,
        cross_entropy,
        rows,
        ledger=ledger,
        streams=streams,
        optimizer=lambda p: torch.optim.SGD(p, lr=candidate.settings["rate"]),
    )


def weights(result: pv.Result) -> bytes:
    return b"".join(own.detach().numpy().tobytes() for own in result.model.parameters())


def test_candidates_that_are_trained_at_once_are_those_of_one_job() -> None:
    """The same choice, model and charges, bit for bit, in both ways; also where joblib says how
    many.
    """
    for plan in both_ways():
        one = at_several(plan, 1)
        torch.manual_seed(1)
        with joblib.parallel_config("loky", n_jobs=2):
            for other in (at_several(plan, 2), at_several(plan, None)):
                assert other.facts == one.facts
                assert weights(other) == weights(one)
                assert other.ledger.event == one.ledger.event == plan.event()


def test_candidates_are_not_trained_in_threads() -> None:
    ledger = pv.Ledger()
    with (
        joblib.parallel_config("threading", n_jobs=2),
        pytest.raises(BadInput, match="candidates in threads"),
    ):
        pv.tune(both_ways()[0], random_start, data(), ledger=ledger, jobs=None)
    assert ledger.event == pv.Ledger().event


def killed(candidate: Any, rows: Any, ledger: Any, streams: Any) -> pv.Result:
    result = random_start(candidate, rows, ledger, streams)
    os.kill(os.getpid(), signal.SIGKILL)
    return result


def test_a_process_that_is_killed_ends_the_choice_and_stays_charged() -> None:
    ledger, plan = pv.Ledger(), both_ways()[0]
    with pytest.raises(pv.errors.ProcessLost, match="stays charged"):
        pv.tune(plan, killed, data(), ledger=ledger, jobs=2)
    assert ledger.event == plan.event()


def test_jobs_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of jobs goes on to joblib, and the model is the same; without candidates it is
    refused.
    """
    given: list[Any] = []
    pickled = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

    def noted(jobs: int | None, work: Any, tasks: Any) -> list[Any]:
        given.append((jobs, len(tasks)))
        return [
            pickled.loads(pickled.dumps(work(*pickled.loads(pickled.dumps(task)))))
            for task in tasks
        ]

    monkeypatch.setattr(tune_module, "at_once", noted)
    words = [
        "train",
        "--data",
        "digits",
        "--examples",
        "1437",
        "--epsilon",
        "4",
        "--seed",
        "1",
        "--epochs",
        "1",
    ]
    tuned = [*words, "--tune", written(tmp_path, GOOD_AND_HOPELESS)]
    for jobs in ("1", "2"):
        assert main([*tuned, "--jobs", jobs, "--out", str(tmp_path / jobs)]) == 0
    assert given == [(2, 2)]
    one, two = ((tmp_path / jobs / "model.safetensors").read_bytes() for jobs in ("1", "2"))
    assert one == two
    assert main([*words, "--jobs", "2", "--out", str(tmp_path / "none")]) == 2
    assert "--tune" in capsys.readouterr().err


def test_candidates_of_numbers_are_chosen_by_their_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).random((150, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=x.sum(1), x_test=1 - x, y_test=2 - x.sum(1))
    (tmp_path / "tune.toml").write_text("[[candidate]]\nepochs = 1\n[[candidate]]\nepochs = 2\n")
    given = [
        "train",
        "--data",
        str(tmp_path / "a.npz"),
        "--range",
        "0,1",
        "--target-bounds",
        "0,2",
        "--epsilon",
        "3",
    ]
    given += ["--tune", str(tmp_path / "tune.toml"), "--out", str(tmp_path / "model")]
    for metric, said in (
        ("auc", "Give --metric rmse or mae"),
        ("log-loss", "Give --metric rmse or mae"),
    ):
        assert main([*given, "--metric", metric]) == 2
        assert said in capsys.readouterr().err
    assert main([*given, "--metric", "mae"]) == 0
    assert "clipped errors" in (tmp_path / "model" / "README.md").read_text()
    assert pv.verify(tmp_path / "model").ok


@pytest.mark.parametrize(("metric", "loss"), [("mae", 0.4), ("rmse", 0.16)])
def test_errors_of_numbers_are_measured_against_the_declared_bounds(
    metric: str, loss: float
) -> None:
    """An error of a tenth of the bounds' distance is .4 of the largest that counts, wherever the
    bounds are.
    """
    data = pv.Dataset(
        np.zeros((3, 1), np.float32), np.array([13.0, 12.5, 17.0]), target_bounds=(10.0, 15.0)
    )
    answers = torch.nn.Linear(1, 1)
    with torch.no_grad():
        answers.bias.fill_(12.5)
    losses = sums._losses(answers, data, metric)
    np.testing.assert_allclose(losses, [loss, 0.0, 1.0], atol=1e-9)


def test_targets_that_a_metric_does_not_fit_are_refused() -> None:
    rows = np.zeros((2, 1), np.float32)
    for y, metric in (
        (np.array([0, 1]), "mae"),
        (np.array([[0, 1], [1, 0]]), "accuracy"),
        (rows[:, 0], "accuracy"),
    ):
        with pytest.raises(BadInput, match="targets are"):
            sums.require_targets(pv.Dataset(rows, y), metric)
