"""Several examples of one person, and persons as examples: plans, training, publishing and the
command line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.guarantee import PrivacyUnit
from privlearn.data.dataset import persons_in, rows_of_persons
from privlearn.errors import BadInput
from tests.accounting.checks_groups import people
from tests.support.nets import cross_entropy, small_net


def run(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main([*options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(list(options)) == 2
    return capsys.readouterr().err


# Groups


@pytest.mark.parametrize("sampling", ["poisson", "partition", "shuffle", "full"])
def test_a_target_holds_for_the_group(capsys: pytest.CaptureFixture[str], sampling: str) -> None:
    size = () if sampling == "full" else ("--batch-size", "250")
    plan = ("--examples", "5000", "--sampling", sampling, *size, "--epsilon", "3", "--epochs", "20")
    one, five = (run(capsys, "budget", *plan, "--group-size", k) for k in ("1", "5"))
    assert 2.991 <= five["epsilon"] <= 3
    assert (one["group_size"], five["group_size"]) == (1, 5)
    assert five["noise_multipliers"][0] > 3 * one["noise_multipliers"][0]
    assert 0 <= five["unspent"] <= 0.003


@pytest.mark.parametrize(
    ("solve", "more"),
    [
        ("epochs", ()),
        ("rate", ("--schedule", "exp", "--epochs", "10", "--batch-size", "100")),
        ("batch-size", ("--epochs", "10")),
    ],
)
def test_every_unknown_is_solved_for_the_group(
    capsys: pytest.CaptureFixture[str], solve: str, more: tuple[str, ...]
) -> None:
    found = run(
        capsys,
        "budget",
        "--examples",
        "5000",
        "--noise-multiplier",
        "6",
        "--epsilon",
        "4",
        "--group-size",
        "4",
        "--solve",
        solve,
        *more,
    )
    assert found["epsilon"] <= 4
    assert found["unspent"] >= 0


def test_a_rho_for_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    plan = (
        "--examples",
        "5000",
        "--sampling",
        "shuffle",
        "--batch-size",
        "50",
        "--epochs",
        "8",
        "--rho",
        "0.5",
    )
    one, three = (run(capsys, "budget", *plan, "--group-size", k) for k in ("1", "3"))
    assert 0.5 * 0.997 <= three["rho"] <= 0.5
    assert three["noise_multipliers"][0] == pytest.approx(3 * one["noise_multipliers"][0], rel=2e-3)


def test_for_a_reader(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = [
        "budget",
        "--examples",
        "5000",
        "--epsilon",
        "3",
        "--group-size",
        "6",
        "--plot",
        str(tmp_path / "plan.png"),
    ]
    assert main(plan) == 0
    assert (
        "If examples of one person, up to 6 of them, are added or removed"
        in capsys.readouterr().out
    )
    assert (
        main([*plan[:5], "--sampling", "shuffle", "--batch-size", "50", "--group-size", "6"]) == 0
    )
    assert "up to 6 of them, are replaced by empty ones" in capsys.readouterr().out


def test_group_sizes_that_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ("budget", "--examples", "5000", "--epsilon", "3")
    for size in ("0", "-3", "10001"):
        assert "--group-size" in refused(capsys, *plan, "--group-size", size)
    assert "Leave out one of the two" in refused(
        capsys, *plan, "--group-size", "2", "--rows-per-person", "4"
    )


def test_training_for_a_group(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = (
        "--data",
        "digits",
        "--examples",
        "1437",
        "--epsilon",
        "6",
        "--epochs",
        "3",
        "--group-size",
        "4",
    )
    found = run(capsys, "train", *options, "--out", str(tmp_path / "model"))
    planned = run(capsys, "budget", *options[2:])
    assert {key: found[key] for key in planned} == planned
    verified = run(capsys, "verify", str(tmp_path / "model"))
    assert verified["unit"] == "up to 4 examples of one person"
    assert verified["epsilon"] == pytest.approx(found["epsilon"], rel=1e-9)
    claim = json.loads((tmp_path / "model" / "privacy.json").read_text())["claim"]
    assert claim["group_size"] == 4
    assert "a person with more is protected less" in (tmp_path / "model" / "README.md").read_text()
    assert main(["verify", str(tmp_path / "model")]) == 0
    assert "for up to 4 examples of one person" in capsys.readouterr().out


def test_claims_for_one_example_are_as_they_were(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = (
        "--data",
        "breast-cancer",
        "--epsilon",
        "5",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "model"),
    )
    run(capsys, "train", *options)
    claim = json.loads((tmp_path / "model" / "privacy.json").read_text())["claim"]
    assert set(claim) == {"epsilon", "delta", "adjacency", "method", "rho", "unit"}
    assert claim["unit"] == "one example (one row of the training data)"
    assert "unit:" not in (tmp_path / "model" / "README.md").read_text().split("---")[1]


def test_one_ledger_for_one_unit() -> None:
    x, y, ids = people(40)
    plans = [
        pv.Plan(pv.Poisson(0.5), epochs=1, **unit)
        for unit in ({}, {"group_size": 3}, {"rows_per_person": 2})
    ]
    plans = [plan.calibrate(epsilon=2.0, delta=1e-3) for plan in plans]
    for plan in plans:
        data = pv.Dataset(x, y, groups=ids if plan.rows_per_person else None)
        for other in plans:
            ledger = pv.Ledger()
            result = pv.dpsgd(plan, small_net(), cross_entropy, data, ledger=ledger)
            assert result.ledger.unit == plan.unit
            if other is not plan:
                others = pv.Dataset(x, y, groups=ids if other.rows_per_person else None)
                with pytest.raises(BadInput, match="no guarantee for the two together"):
                    pv.dpsgd(other, small_net(), cross_entropy, others, ledger=ledger)
                assert ledger.event == plan.event()
    shared = pv.Ledger(pv.Budget(epsilon=6.0, delta=1e-3, group_size=3), unit=PrivacyUnit(3))
    for _ in range(2):
        pv.dpsgd(plans[1], small_net(), cross_entropy, (x, y), ledger=shared)
    assert shared.guarantee(1e-3).epsilon <= 6.0
    assert "for up to 3 examples of one person" in str(shared.guarantee(1e-3))


# Persons


def test_rows_of_persons_with_few_rows_come_in_turn() -> None:
    ids = np.array(["b", "a", "b", "c", "a", "b"])
    assert rows_of_persons(ids, 4, b"key").tolist()[0] == [1, 4, 1, 4]
    assert rows_of_persons(ids, 4, b"key").tolist()[1] == [0, 2, 5, 0]
    assert rows_of_persons(ids, 4, b"key").tolist()[2] == [3, 3, 3, 3]
    assert persons_in(ids) == 3


def test_which_rows_are_kept_is_random_and_fair() -> None:
    """Forty rows of one person, ten kept: over keys, each is kept a quarter of the time."""
    kept = np.zeros(40)
    for run in range(2000):
        kept[rows_of_persons(np.zeros(40, int), 10, run.to_bytes(8, "big"))] += 1
    assert np.abs(kept / 2000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)


@pytest.mark.parametrize(
    "sampler",
    [pv.Poisson(0.3), pv.Partition(3), pv.Shuffle(15), pv.sampling.FullBatch()],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize("pca", [(), (pv.transforms.PrivatePCA(3, 8.0),)])
def test_training_with_persons(
    sampler: Any, pca: tuple[pv.transforms.PrivatePCA, ...], tmp_path: Path
) -> None:
    x, y, ids = people(60)
    plan = pv.Plan(sampler, epochs=2, front=pca, rows_per_person=3, examples=60).calibrate(
        epsilon=4.0, delta=1e-3
    )
    data = pv.Dataset(x.float(), y, groups=torch.from_numpy(ids))
    result = pv.dpsgd(plan, lambda shape: torch.nn.Linear(shape[0], 3), cross_entropy, data)
    assert result.ledger.event == plan.event()
    assert result.ledger.unit == PrivacyUnit(rows_per_person=3)
    out = pv.publish(result, tmp_path / "model")
    found = pv.verify(out)
    assert found.ok, found.problems
    assert found.unit == "one person (any number of rows, of which at most 3 are used)"
    card = (out / "README.md").read_text()
    assert "one person, with all their rows, is" in card
    assert "| persons (divisor of sums) | 60, declared by the publisher |" in card


def test_batches_are_of_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler draws among persons, and every default follows their number."""
    x, y, ids = people(30)
    drawn = []
    monkeypatch.setattr(pv.sampling.FullBatch, "draw", _seeing(pv.sampling.FullBatch.draw, drawn))
    plan = pv.Plan(pv.sampling.FullBatch(), epochs=1, rows_per_person=2).calibrate(
        epsilon=4.0, delta=1e-3
    )
    result = pv.dpsgd(plan, small_net(), cross_entropy, pv.Dataset(x, y, groups=ids))
    assert drawn == [30]
    assert result.facts["examples"] == 30 == pv.Dataset(x, y, groups=ids).examples


def _seeing(draw: Any, seen: list[int]) -> Any:
    def seeing(self: Any, examples: int, rng: Any = None) -> Any:
        seen.append(examples)
        return draw(self, examples, rng)

    return seeing


def test_augmented_copies_of_a_persons_rows() -> None:
    """Copies that change nothing leave the sums as they are: rows and copies are one mean."""
    from tests.accounting.checks_groups import person_sums

    x, y, ids = people()
    plain = person_sums(x, y, ids).values
    copied = person_sums(
        x, y, ids, augmentation=pv.clipping.Augmentation(3, lambda rows, generator: rows * 1.0)
    ).values
    for a, b in zip(plain, copied, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_data_and_plan_must_agree_on_persons() -> None:
    x, y, ids = people(20)
    rows = pv.Plan(pv.Poisson(0.5), epochs=1).calibrate(epsilon=2.0, delta=1e-3)
    persons = pv.Plan(pv.Poisson(0.5), epochs=1, rows_per_person=2).calibrate(
        epsilon=2.0, delta=1e-3
    )
    for plan, groups, said in (
        (rows, ids, "carry person ids"),
        (persons, None, "do not say whose rows"),
        (persons, ids[:-1], "one person's id"),
        (persons, ids.astype(float), "whole numbers or texts"),
        (persons, ids[:, None], "one person's id"),
    ):
        ledger = pv.Ledger()
        with pytest.raises(BadInput, match=said):
            pv.dpsgd(
                plan, small_net(), cross_entropy, pv.Dataset(x, y, groups=groups), ledger=ledger
            )
        assert ledger.event.events == ()
    with pytest.raises(BadInput, match="rows_per_person"):
        pv.Plan(pv.Poisson(0.5), rows_per_person=0)


def test_persons_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made_up = np.random.default_rng(0)
    ids = np.repeat(np.arange(300), made_up.integers(1, 6, 300))
    y = made_up.integers(3, size=300)[ids]
    x = made_up.normal(size=(len(ids), 5)) + 3 * np.eye(3, 5)[y]
    np.savez(tmp_path / "rows.npz", x=x, y=y, groups=np.char.add("patient-", ids.astype(str)))
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    np.savez(tmp_path / "short.npz", x=x, y=y, groups=ids[1:])
    declared = ("--classes", "3", "--range=-4,7", "--epsilon", "6", "--epochs", "4")
    out = tmp_path / "model"
    rows = ("--rows-per-person", "3")
    found = run(
        capsys, "train", "--data", str(tmp_path / "rows.npz"), *declared, *rows, "--out", str(out)
    )
    assert found["rows_per_person"] == 3
    assert found["steps"] == 4 * 2  # 256 of 300 persons in a batch
    assert found["adjacency"] == "zero_out"  # nobody declared how many persons there are
    assert (
        run(capsys, "verify", str(out))["unit"]
        == "one person (any number of rows, of which at most 3 are used)"
    )
    assert "patient" not in "".join(
        path.read_text() for path in out.iterdir() if path.suffix != ".safetensors"
    )
    planned = run(
        capsys,
        "budget",
        "--examples",
        "300",
        "--epsilon",
        "6",
        "--epochs",
        "4",
        "--adjacency",
        "zero_out",
        "--clip-norm",
        "1",
        *rows,
    )
    assert {key: found[key] for key in planned} == planned
    scores = tmp_path / "scores.npz"
    assert (
        main(["predict", str(out), "--data", str(tmp_path / "rows.npz"), "--out", str(scores)]) == 0
    )
    assert np.mean(np.load(scores)["prediction"] == y) > 0.7
    capsys.readouterr()
    for name, more, said in (
        ("rows", (), "--rows-per-person K"),
        ("plain", rows, "groups in an .npz"),
        ("short", rows, "one person's id for each of the"),
    ):
        options = (
            "--data",
            str(tmp_path / f"{name}.npz"),
            *declared,
            *more,
            "--out",
            str(tmp_path / "other"),
        )
        assert said in refused(capsys, "train", *options)
    assert not (tmp_path / "other").exists()
