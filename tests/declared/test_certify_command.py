"""`privlearn certify` as people call it: on files of Opacus, dp-accounting and jax-privacy."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import pytest
import torch

from privlearn.cli import main
from privlearn.declared import readers
from privlearn.declared.declared_document import CARD, DOCUMENT
from privlearn.declared.peer_library import find_library, library_names
from privlearn.declared.readers import jax_privacy
from privlearn.declared.refusals import rules
from privlearn.errors import BadInput
from tests.declared.peer_runs import certify_run, epsilons, state_of, train_with_opacus
from tests.laws.test_format import require_valid

TRUE = ["--sampling", "poisson", "--examples", "200", "--batch-size", "64", "--epochs", "3"]


def command(path: Path, *more: str, library: str = "opacus", delta: str = "1e-3") -> list[str]:
    return ["certify", str(path), "--from", library, "--delta", delta, *more]


def test_a_run_of_opacus_is_written_verified_and_refused_as_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, folder = tmp_path / "run.pt", tmp_path / "declared"
    checkpoint.write_bytes(train_with_opacus())
    assert main(command(checkpoint, *TRUE, "--out", str(folder))) == 0
    printed = capsys.readouterr().out
    assert "not a certificate" in printed
    assert "computed with opacus" in printed
    assert {path.name for path in folder.iterdir()} == {DOCUMENT, CARD}
    assert main(["verify", str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "is a declared run of another library, and not a certificate" in said
    assert "Nothing here shows that the run followed them" in said
    assert "verifies" not in said
    assert main(["verify", str(folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["arithmetic_holds"]
    assert not {"ok", "epsilon"} & set(answer)
    assert main(["predict", str(folder), "--data", "digits"]) == 2
    assert "declared run" in capsys.readouterr().err
    assert main(command(checkpoint, *TRUE, "--out", str(folder))) == 2


def test_a_shuffled_run_is_refused_and_its_price_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, folder = tmp_path / "run.pt", tmp_path / "declared"
    checkpoint.write_bytes(train_with_opacus(poisson=False))
    shuffled = ["--sampling", "shuffle", *TRUE[2:]]
    assert main(command(checkpoint, *shuffled, "--out", str(folder), "--json")) == 1
    document = json.loads(capsys.readouterr().out)
    assert list(document["refused"]) == ["shuffled-priced-as-poisson"]
    assert main(["verify", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "refused" in printed
    assert "4.973" in printed
    document["refused"] = {}
    (folder / DOCUMENT).write_text(json.dumps(document))
    assert main(["verify", str(folder)]) == 1
    assert "does not hold" in " ".join(capsys.readouterr().out.split())


def test_documents_are_valid_by_their_schema() -> None:
    for run in (
        certify_run(train_with_opacus()),
        certify_run(train_with_opacus(poisson=False), sampling="shuffle", adjacency="replace_one"),
    ):
        require_valid("declared-run", json.loads(run.files()[DOCUMENT]))
        require_valid("declared-run", json.loads(json.dumps(dict(run.document))))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read without running code"),
        (b"{", "not readable JSON"),
        (b"{}", "expected 'history'"),
        (state_of(), "expected 1 to"),
        (b'{"history": [[1, 0.1]], "mechanism": "prv"}', "not a noise multiplier"),
        (state_of((0.0, 0.1, 5)), "noise multiplier 0"),
        (state_of((1.0, 1.5, 5)), "sampling_rate"),
        (state_of((1.0, 0.1, -1)), "count is -1"),
        (b'{"history": [["1", 0.1, 5]], "mechanism": "prv"}', "expected a finite number"),
        (b'{"history": [[1, 0.1, 5]], "mechanism": 7}', "expected 'mechanism'"),
    ],
)
def test_files_of_opacus_that_hold_no_run_are_refused(content: bytes, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        certify_run(content)
    assert said in str(caught.value)


def test_no_code_of_a_checkpoint_is_run(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    torch.save({"history": [SimpleNamespace()], "mechanism": "prv"}, path)
    with pytest.raises(BadInput, match="without running code"):
        certify_run(path.read_bytes())


def _event(**fields: Any) -> bytes:
    return json.dumps({"neighboring_relation": "ADD_OR_REMOVE_ONE", "event": fields}).encode()


GAUSSIAN = {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "expected 'event'"),
        (b'{"event": {}}', "expected 'neighboring_relation'"),
        (_event(class_name="LaplaceDpEvent"), "LaplaceDpEvent"),
        (_event(class_name="NonPrivateDpEvent"), "NonPrivateDpEvent"),
        (_event(class_name="SelfComposedDpEvent", event=GAUSSIAN, count=-2), "count"),
        (_event(class_name="SelfComposedDpEvent", event=GAUSSIAN, count=0), "expected 1 to"),
        (
            _event(
                class_name="PoissonSampledDpEvent",
                sampling_probability=0.1,
                event={"class_name": "SelfComposedDpEvent", "event": GAUSSIAN, "count": 2},
            ),
            "expected a GaussianDpEvent for each sample",
        ),
        (
            _event(
                class_name="SelfComposedDpEvent",
                count=10**9,
                event={
                    "class_name": "ComposedDpEvent",
                    "events": [GAUSSIAN, {**GAUSSIAN, "noise_multiplier": 2.0}],
                },
            ),
            "at most 10000",
        ),
    ],
)
def test_events_that_are_no_steps_are_refused(content: bytes, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        certify_run(content, "dp-accounting", sampling="poisson", delta=1e-5)
    assert said in str(caught.value)


class Method(enum.Enum):
    """jax-privacy's names of ways to draw."""

    POISSON = 1
    FIXED_BATCH_SIZE = 2


@dataclass
class Parameters:
    """Fields of `DpParams` of jax-privacy 2.0."""

    noise_multipliers: Any = 1.1
    num_samples: int = 50_000
    delta: float = 1e-5
    batch_size: int = 500
    batch_size_scale_schedule: Any = None
    examples_per_user: int | None = None
    cycle_length: int | None = None
    truncated_batch_size: int | None = None
    sampling_method: Method = Method.POISSON
    batch_sizes: Any = 500


def describe_parameters(updates: int = 1000, **fields: Any) -> bytes:
    return json.dumps(jax_privacy.describe(Parameters(**fields), updates)).encode()


def test_parameters_of_jax_privacy_are_priced() -> None:
    """Its own figures, of release 2.0, are 1.51537 and 9.81253. The second one takes subsets for
    Poisson samples, which is no bound for replaced examples.
    """
    run = certify_run(describe_parameters(), "jax-privacy", sampling="poisson")
    assert not run.refusals
    assert not run.document["unchecked"]
    assert epsilons(run) == pytest.approx((1.51537, 1.51537), rel=1e-3)
    fixed = describe_parameters(sampling_method=Method.FIXED_BATCH_SIZE)
    run = certify_run(fixed, "jax-privacy", sampling="without-replacement")
    assert list(run.refusals) == ["subsets-priced-as-poisson-samples"]
    assert epsilons(run)[0] > 1.05 * 9.81253
    run = certify_run(fixed, "jax-privacy", sampling="shuffle")
    assert next(iter(run.refusals)) == "shuffled-priced-as-random-subsets"


def test_accumulated_batches_that_jax_privacy_did_not_count_are_refused() -> None:
    run = certify_run(describe_parameters(), "jax-privacy", sampling="poisson", batch_size=4000)
    assert "rate-is-not-batch-size-over-examples" in run.refusals
    assert "file-and-declaration-differ" in run.refusals
    assert epsilons(run)[1] > 10 * epsilons(run)[0]


def test_schedules_and_cycles_of_jax_privacy_are_read() -> None:
    content = describe_parameters(
        noise_multipliers=[(0, 1.0), (600, 2.0)], batch_sizes=[(0, 500), (400, 1000)]
    )
    steps = find_library("jax-privacy").read(content).steps
    assert [(part.count, part.noise_multiplier, part.sampling_rate) for part in steps] == [
        (400, 1.0, 0.01),
        (200, 1.0, 0.02),
        (400, 2.0, 0.02),
    ]
    run = certify_run(describe_parameters(cycle_length=4), "jax-privacy", sampling="poisson")
    assert not run.refusals
    (part,) = run.document["recorded_by_others"]["steps"]
    assert (part["count"], part["sampling_rate"]) == (250, 0.04)
    for wrong in ({"examples_per_user": 3}, {"truncated_batch_size": 600}):
        with pytest.raises(BadInput, match="are not read"):
            certify_run(describe_parameters(**wrong), "jax-privacy", sampling="poisson")


def test_a_plan_of_jax_privacy_is_read() -> None:
    """A banded plan, in which an example takes part in every fourth step."""
    sample = dp_accounting.PoissonSampledDpEvent(0.04, dp_accounting.GaussianDpEvent(1.5287605594))
    config = SimpleNamespace(
        plan=SimpleNamespace(dp_event=dp_accounting.SelfComposedDpEvent(sample, 250)),
        accountant=dp_accounting.pld.PLDAccountant(
            dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        ),
        iterations=1000,
        strategy=[1.0, 0.5, 0.2, 0.1],
        delta=1e-5,
        num_examples=None,
    )
    content = json.dumps(jax_privacy.describe(config, epsilon=2.0)).encode()
    run = certify_run(content, "jax-privacy", sampling="poisson", examples=40_000, batch_size=400)
    assert not run.refusals
    assert epsilons(run) == pytest.approx((2.0, 2.0), rel=1e-3)
    assert run.document["recomputed_here"]["as_recorded"]["adjacency"] == "zero_out"


def test_every_library_is_a_file_and_every_rule_has_a_name_on_the_page() -> None:
    files = {path.stem for path in Path(readers.__path__[0]).glob("[a-z]*.py")}
    assert {name.replace("-", "_") for name in library_names()} == files
    page = (Path(__file__).parents[2] / "docs" / "other-libraries.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in [*rules(), *library_names()])
