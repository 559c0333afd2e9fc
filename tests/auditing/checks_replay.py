"""Recorded runs: an honest one agrees in all parts; whatever was not computed as stated is found in
its part.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import privlearn as pv
from privlearn._storage import write_durably
from privlearn.auditing import Replay, Transcript, commit, is_committed, proof_of_row, replay
from privlearn.auditing.commitment import Tree
from privlearn.auditing.replaying import _choose
from privlearn.cli.commands import replay as command
from privlearn.cli.request import Request
from privlearn.core.mechanisms.release import release
from privlearn.core.streams import RandomStream, Streams
from privlearn.errors import BadInput
from privlearn.runs import transcript
from privlearn.runs.checkpoint import Saved
from privlearn.runs.result import Result
from privlearn.runs.transcript import CommittedSecret, Recording
from privlearn.training import run as dpsgd
from tests.support.checks import check, must_raise
from tests.support.steps import EachStep

STEPS, BETWEEN = 24, 4
#: How many seconds something that has to happen may take on a busy machine.
_PATIENCE = 300.0


def rows(seed: int = 0) -> pv.Dataset:
    rng = np.random.default_rng(seed)
    x = rng.random((40, 3), np.float32)
    return pv.Dataset(x, (x[:, 0] > 0.5).astype(np.int64), classes=2)


def train(
    checkpoint: Any,
    data: pv.Dataset | None = None,
    *,
    noise: float = 1.0,
    seed: int = 3,
    loss: Any = None,
    **options: Any,
) -> Result:
    """24 steps of a small network."""
    plan = pv.Plan(pv.sampling.Poisson(0.25), 6, pv.schedules.Constant(noise), examples=40)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    loss, given = loss or nn.CrossEntropyLoss(reduction="none"), data or rows()
    return pv.dpsgd(plan, network, loss, given, checkpoint=checkpoint, **options)


def small(checkpoint: Any) -> Result:
    """The same with more noise."""
    return train(checkpoint, noise=2.0)


def states(streams: Streams) -> dict[str, str]:
    """Where each stream is, as generators of its key."""
    generators = {name: getattr(streams, name) for name in ("sampling", "initialisation", "views")}
    generators["noise"] = RandomStream(streams.noise.key, True)
    return {name: str(generator.bit_generator.state) for name, generator in generators.items()}


def scaled(factor: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A loss that differs from another one by what it captured alone."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return factor * nn.functional.cross_entropy(outputs, targets, reduction="none")

    return loss


@contextmanager
def recorded(
    publisher: Callable[..., Result] = train, challenge: str = "07", **options: Any
) -> Iterator[Path]:
    """A folder with a transcript, and beside it the published model."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "transcript"
        commit(rows(), folder, publisher, discrete=bool(options.get("discrete")))
        result = publisher(Transcript(folder, challenge=challenge, steps=BETWEEN, **options))
        pv.publish(result, Path(place) / "model", delta=1e-5)
        yield folder


def replayed(
    folder: Path, steps: int = STEPS, train: Callable[..., Result] = train, **options: Any
) -> Replay:
    return replay(folder, train, rows(), steps=steps, published=folder.parent / "model", **options)


@contextmanager
def at_step(number: int, change: Callable[..., Any]) -> Iterator[None]:
    """A publisher whose release number `number` is another."""
    calls = iter(range(10**6))

    def forged(*args: Any, **options: Any) -> Any:
        return change(*args, **options) if next(calls) == number else release(*args, **options)

    with mock.patch.object(dpsgd, "release", forged):
        yield


def without_noise(clipped: Any, **options: Any) -> Any:
    """The noise is drawn, and taken off again."""
    sums = [value.clone() for value in clipped.values]
    (released,) = release(clipped, **options)
    for value, own in zip(released, sums, strict=True):
        value.copy_(own)
    return [released]


def with_noise_passed_over(
    clipped: Any, *, noise_multiplier: float, ledger: Any, stream: Any
) -> Any:
    stream.skip(64)  # noise that did not suit
    return release(clipped, noise_multiplier=noise_multiplier, ledger=ledger, stream=stream)


@check
def check_an_honest_run_agrees_in_all_parts() -> None:
    """Bit for bit, with the published model; on a grid, too. Its certificate states the
    transcript.
    """
    for discrete in (False, True):
        with recorded(discrete=discrete) as folder:
            found = replayed(folder)
            assert found.ok, found.problems
            assert found.bits
            assert (found.steps, found.replayed, found.parts) == (STEPS, STEPS, STEPS // BETWEEN)
            stated = json.loads((folder.parent / "model" / "privacy.json").read_text())["facts"][
                "transcript"
            ]
            assert stated["digest"] == Recording(folder).digest
            assert pv.verify(folder.parent / "model").ok
            assert not train(None).facts.get("transcript")


@check
def check_a_step_without_noise_is_found() -> None:
    """In the part that it lies in, and in no other."""
    with at_step(9, without_noise), recorded() as folder:
        pass_through = replayed(folder, steps=0)
        assert pass_through.ok
        found = replayed(folder)
    assert any("steps 9 to 12" in problem for problem in found.problems), found.problems
    assert not any("steps 1 to" in problem or "steps 13" in problem for problem in found.problems)


@check
def check_noise_that_was_passed_over_is_found() -> None:
    """Keys that can't be chosen would not help if a publisher could go on in the stream until the
    noise suits.
    """
    with at_step(5, with_noise_passed_over), recorded() as folder:
        found = replayed(folder)
    assert any("random streams" in problem for problem in found.problems), found.problems


@check
def check_a_batch_that_was_not_drawn_is_found() -> None:
    drawn = pv.sampling.Poisson.draw

    def chosen(self: Any, examples: int, rng: np.random.Generator) -> Iterator[Any]:
        for step, sample in enumerate(drawn(self, examples, rng)):
            if step == 2:
                sample.indices = np.arange(10)
            yield sample

    honest = mock.patch.object(pv.sampling.Poisson, "draw", drawn)
    with mock.patch.object(pv.sampling.Poisson, "draw", chosen), recorded() as folder, honest:
        found = replayed(folder)
    assert any("had another batch" in problem for problem in found.problems), found.problems


@check
def check_a_certificate_of_another_plan_is_found() -> None:
    """A run with less noise than is certified: it agrees with itself in all parts, and the folder
    verifies.
    """

    def published_otherwise(checkpoint: Any) -> Result:
        result = train(checkpoint)
        claimed = replace(result.plan, schedule=pv.schedules.Constant(9.0))
        ledger = pv.Ledger()
        ledger.charge(claimed.event(), claimed.neighbours)
        facts = {name: value for name, value in result.facts.items() if name != "noise_multipliers"}
        return replace(result, plan=claimed, ledger=ledger, facts=facts)

    with recorded(published_otherwise) as folder:
        assert pv.verify(folder.parent / "model").ok
        found = replayed(folder)
        assert found.commitment == CommittedSecret(folder).commitment
        assert found.challenge == "07"
    assert any("another plan" in problem for problem in found.problems), found.problems


@check
def check_other_rows_are_found() -> None:
    """A run on rows that were not committed to; and rows that are shown in place of those of the
    run.
    """
    with recorded(lambda checkpoint: train(checkpoint, rows(1))) as folder:
        found = replayed(folder, train=lambda checkpoint: train(checkpoint, rows(1)))
        # the rows that were shown are committed to, and the run agrees with itself, but
        assert found.ok
        must_raise(BadInput, lambda: replayed(folder))  # not with these rows
        others = replay(folder, lambda checkpoint: train(checkpoint, rows(1)), rows(1), steps=4)
        assert any("committed" in problem for problem in others.problems)


@check
def check_a_recorded_run_of_dpmac_agrees() -> None:
    plan = pv.Plan(
        pv.sampling.Poisson(0.25),
        2,
        pv.schedules.Constant(2.0),
        clip=pv.mac.Derivatives(0.3),
        examples=40,
    )

    def by_layers(checkpoint: Any) -> Result:
        torch.manual_seed(3)
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        return pv.dpmac(plan, network, "binary_cross_entropy", rows(), checkpoint=checkpoint)

    with recorded(by_layers) as folder:
        found = replayed(folder, train=by_layers)
        assert found.ok, found.problems
        assert found.replayed == 8


@check
def check_streams_follow_from_the_commitment() -> None:
    """From the secret, the rows, the run and the challenge: keys can't be chosen, and no two runs
    have the same.
    """
    with TemporaryDirectory() as place:
        keys = set()
        runs: list[Callable[..., Result]] = [train, train, train, train, small]
        cases = zip(
            (rows(), rows(), rows(1), rows(1), rows(1)),
            ("00", "01", "00", "00", "00"),
            runs,
            strict=True,
        )
        for number, (data, challenge, run) in enumerate(cases):
            folder = Path(place) / str(number)
            with mock.patch("privlearn.auditing.commitment.new_secret", return_value=bytes(32)):
                commit(data, folder, run)
            first = Transcript(folder, challenge=challenge).streams()
            must_raise(BadInput, lambda first=first: first.noise.words(1))  # type: ignore[misc]
            streams = CommittedSecret(folder).bound(bytes.fromhex(challenge), False)
            assert not streams.seeded
            assert streams.noise.key != first.noise.key
            assert states(streams)["sampling"] != states(first)["sampling"]
            keys.add(streams.noise.key)
            assert all(len(set(states(own).values())) == 4 for own in (first, streams))
        assert len(keys) == 4
        folder = Path(place) / "own"
        commit(rows(), folder, train)
        committed = CommittedSecret(folder)
        key, committed.secret = committed.bound(b"", False).noise.key, bytes(32)
        # nor does it follow from what is public
        assert committed.bound(b"", False).noise.key != key
        must_raise(BadInput, lambda: train(Transcript(folder), streams=Streams.new()))
        sharded = {
            "streams": CommittedSecret(folder).bound(b"", False).state(),
            "shards": {"folder": "x"},
        }
        must_raise(BadInput, lambda: Transcript(folder).write(Saved({}, sharded)))
        assert not train(Transcript(folder, steps=BETWEEN)).seeded


@check
def check_a_commitment_is_to_one_run() -> None:
    """Of another plan, options, rows, loss or first weights none begins: one challenge serves one
    run.
    """

    def halved(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0.5 * nn.functional.cross_entropy(outputs, targets, reduction="none")

    others: dict[str, Callable[..., Result]] = {
        "optimizer": small,  # whose rate follows from the plan
        "data": lambda checkpoint: train(checkpoint, rows(1)),
        "microbatch": lambda checkpoint: train(checkpoint, microbatch=7),
        "initial state": lambda checkpoint: train(checkpoint, seed=4),
        "loss": lambda checkpoint: train(checkpoint, loss=halved),
        "code": lambda checkpoint: train(checkpoint, loss=scaled(2.0)),
    }
    with TemporaryDirectory() as place:
        for name, other in others.items():
            folder = Path(place) / name
            commit(
                rows(), folder, (lambda c: train(c, loss=scaled(1.0))) if name == "code" else train
            )
            error = must_raise(BadInput, lambda f=folder, o=other: o(Transcript(f, challenge="07")))  # type: ignore[misc]
            assert "not the run that was committed to" in str(error)
            assert name in str(error)
            assert not (folder / "transcript.jsonl").exists()
        must_raise(
            BadInput, lambda: commit(rows(), Path(place) / "none", lambda checkpoint: train(None))
        )
        must_raise(BadInput, lambda: commit(rows(), Path(place) / "none", 3))  # type: ignore[arg-type]
        assert not (Path(place) / "none").exists()


@check
def check_two_runs_of_one_challenge_share_no_noise() -> None:
    """In copies of the folder, with clips of 1 and 2: one is refused; committed to anew, it has
    other noise.
    """

    def clipped(norm: float) -> Callable[[Any], Result]:
        plan = pv.Plan(
            pv.sampling.FullBatch(), 1, pv.schedules.Constant(50.0), clip=pv.Flat(norm), examples=40
        )

        def run(checkpoint: Any) -> Result:
            network = nn.Linear(3, 2)
            nn.init.constant_(network.weight, 0.1)
            nn.init.zeros_(network.bias)
            loss = nn.CrossEntropyLoss(reduction="none")
            return pv.dpsgd(
                plan,
                network,
                loss,
                rows(),
                checkpoint=checkpoint,
                optimizer=lambda own: torch.optim.SGD(own, lr=1.0),
            )

        return run

    def moved(result: Result) -> torch.Tensor:
        return torch.cat([own.detach().flatten() for own in result.model.parameters()])

    with TemporaryDirectory() as place:
        folder, secret = (
            Path(place) / "committed",
            mock.patch("privlearn.auditing.commitment.new_secret", return_value=bytes(range(32))),
        )
        with secret:
            commit(rows(), folder, clipped(1.0))
            commit(rows(), Path(place) / "anew", clipped(2.0))
        for number in range(2):
            shutil.copytree(folder, Path(place) / str(number))
        first = moved(clipped(1.0)(Transcript(Path(place) / "0", challenge="5f3a9c")))
        error = must_raise(
            BadInput, lambda: clipped(2.0)(Transcript(Path(place) / "1", challenge="5f3a9c"))
        )
        assert "not the run that was committed to" in str(error)
        again = moved(clipped(1.0)(Transcript(Path(place) / "1", challenge="5f3a9c")))
        assert torch.equal(first, again)  # the same run: the same release
        second = moved(clipped(2.0)(Transcript(Path(place) / "anew", challenge="5f3a9c")))
        begun = torch.tensor([0.1] * 6 + [0.0] * 2)
        # the noise of both is in it
        assert float((2 * (first - begun) - (second - begun)).norm()) * 40 > 50


@check
def check_a_recorded_run_that_begins_anew_repeats_no_noise() -> None:
    """Interrupted, its lines deleted, and changed in a way that nothing tells: the noise goes to no
    other sum.
    """
    plain = nn.functional.cross_entropy

    def doubled(*given: Any, **options: Any) -> torch.Tensor:
        return 2 * plain(*given, **options)

    def stop(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with TemporaryDirectory() as place:
        folder = Path(place) / "transcript"
        commit(rows(), folder, train)
        must_raise(KeyboardInterrupt, lambda: train(Transcript(folder), callbacks=EachStep(stop)))  # type: ignore[arg-type]
        (folder / "transcript.jsonl").unlink()
        with mock.patch.object(nn.functional, "cross_entropy", doubled):
            error = must_raise(BadInput, lambda: train(Transcript(folder)))
        assert "with the same noise on other sums" in str(error)
        (folder / "transcript.jsonl").unlink()
        train(Transcript(folder))  # the same sums: the same release


@check
def check_a_secret_is_one() -> None:
    """One that is empty or short could be guessed, and an edited run is another one: refused,
    whatever is stated.
    """
    for secret in (b"", bytes(8), bytes(65)):
        with TemporaryDirectory() as place:
            folder = Path(place)
            commit(rows(), folder / "committed", train)
            stated, kept = (
                json.loads((folder / "committed" / name).read_text())
                for name in ("commitment.json", "secret.json")
            )
            stated["secret"] = hashlib.sha256(secret).hexdigest()
            kept["secret"] = secret.hex()
            (folder / "committed" / "commitment.json").write_text(json.dumps(stated))
            (folder / "committed" / "secret.json").write_text(json.dumps(kept))
            said = str(must_raise(BadInput, lambda: CommittedSecret(Path(place) / "committed")))
            assert f"the secret has {len(secret)} bytes" in said
    with TemporaryDirectory() as place:
        folder = Path(place) / "committed"
        commit(rows(), folder, train)
        kept = json.loads((folder / "secret.json").read_text())
        (folder / "secret.json").write_text(
            json.dumps(kept | {"run": kept["run"] | {"plan": "another"}})
        )
        must_raise(BadInput, lambda: CommittedSecret(folder))
        stated = json.loads((folder / "commitment.json").read_text())
        (folder / "commitment.json").write_text(
            json.dumps({n: v for n, v in stated.items() if n != "run"})
        )
        assert "earlier version" in str(must_raise(BadInput, lambda: CommittedSecret(folder)))


@check
def check_keys_of_a_run_are_used_once() -> None:
    """A second run on one commitment would draw the same noise; one that is interrupted goes on
    instead.
    """
    with recorded() as folder:
        must_raise(BadInput, lambda: train(Transcript(folder, challenge="07", steps=BETWEEN)))
        must_raise(BadInput, lambda: commit(rows(), folder, train))
    with TemporaryDirectory() as place:
        folder = Path(place) / "transcript"
        commit(rows(), folder, train)
        must_raise(BadInput, lambda: commit(rows(), folder, train))

        def stop(done: int, _: int) -> None:
            if done == 10:
                raise KeyboardInterrupt

        must_raise(
            KeyboardInterrupt,  # type: ignore[arg-type]
            lambda: train(Transcript(folder, steps=BETWEEN), callbacks=EachStep(stop)),
        )
        result = train(Transcript(folder, steps=BETWEEN))
        pv.publish(result, Path(place) / "model", delta=1e-5)
        found = replayed(folder)
        assert found.ok, found.problems
        assert found.replayed == STEPS


@check
def check_a_state_that_is_not_on_disk_is_not_stated() -> None:
    """States are written beside training: the first before anything is drawn, and one that fails
    ends the run.
    """
    written: list[str] = []
    went_on = Event()

    class Waited(Thread):
        def join(self, timeout: float | None = None) -> None:
            went_on.set()
            super().join(timeout)

    def noted(clipped: Any, **options: Any) -> Any:
        lines = folder / "transcript.jsonl"
        written.append(lines.read_text() if lines.exists() else "")
        went_on.set()
        return release(clipped, **options)

    def full(path: Path, content: bytes, **options: Any) -> None:
        if path.name == "00000003":
            raise BadInput("no space")
        if path.name == "00000000":
            # a slow disk: either training waits for it, or it goes on before
            went_on.wait(_PATIENCE)
        write_durably(path, content, **options)

    with TemporaryDirectory() as place:
        folder = Path(place) / "transcript"
        commit(rows(), folder, train)
        with (
            mock.patch.object(transcript, "write_durably", full),
            mock.patch.object(transcript, "Thread", Waited),
            mock.patch.object(dpsgd, "release", noted),
        ):
            must_raise(BadInput, lambda: train(Transcript(folder, steps=BETWEEN)))
        assert '"state":0' in written[0]
        assert len(Recording(folder).states) == 3
        pv.publish(train(Transcript(folder, steps=BETWEEN)), Path(place) / "model", delta=1e-5)
        found = replayed(folder)
        assert found.ok, found.problems
        assert found.replayed == STEPS


@check
def check_what_lies_in_the_folder_is_what_was_stated() -> None:
    """A state, a line, the secret, the model: whichever was changed afterwards."""
    with recorded() as folder, recorded() as other:
        shutil.copy(other / "states" / "00000003", folder / "states" / "00000003")
        must_raise(BadInput, lambda: replayed(folder))
    with recorded() as folder:
        lines = (folder / "transcript.jsonl").read_text().splitlines(keepends=True)
        (folder / "transcript.jsonl").write_text("".join(lines[:-1]))
        shortened = replayed(folder)
        assert any("certificate" in problem for problem in shortened.problems)
        (folder / "transcript.jsonl").write_text("".join([*lines[:4], *lines[5:]]))
        must_raise(BadInput, lambda: replayed(folder))
    with recorded() as folder, recorded() as other:
        shutil.copy(other / "secret.json", folder / "secret.json")
        assert "committed to" in str(must_raise(BadInput, lambda: replayed(folder)))
    with recorded() as folder, recorded() as other:
        found = replay(folder, train, rows(), steps=0, published=other.parent / "model")
        assert any("this transcript" in problem for problem in found.problems), found.problems
        assert any("weights" in problem for problem in found.problems), found.problems


@check
def check_a_folder_does_not_choose_the_code_that_runs() -> None:
    """Of a model or of features: the auditor names it, too."""
    with TemporaryDirectory() as place:
        for name, spec in (("model", "os:system"), ("features", "os:getcwd")):
            (Path(place) / "options.json").write_text(json.dumps({"data": "digits", name: spec}))
            said = str(
                must_raise(BadInput, lambda: command._training(Request.of("replay", folder=place)))
            )
            assert "if you trust that code" in said
            own = Request.of("replay", folder=place, **{name: spec})
            assert command._training(own).values[name] == spec
        for wrong in ({"epochs": "many"}, {"evil": 1}, []):
            (Path(place) / "options.json").write_text(json.dumps(wrong))
            must_raise(BadInput, lambda: command._training(Request.of("replay", folder=place)))


@check
def check_a_transcript_tells_nothing_without_its_secret() -> None:
    """Two commitments to the same rows, and two runs on them, have not a digest in common; files
    are the owner's.
    """
    with recorded() as folder, recorded() as other:
        for name in ("commitment.json", "transcript.jsonl"):
            ours, theirs = (
                {w for w in (at / name).read_text().split('"') if len(w) >= 64}
                for at in (folder, other)
            )
            assert ours
            assert not ours & theirs
        ours, theirs = (
            CommittedSecret(at).step(0, np.arange(3), [torch.zeros(2)]) for at in (folder, other)
        )
        assert ours["sample"] != theirs["sample"]
        assert ours["released"] != theirs["released"]
        leaves = [
            set(Tree.of(rows(), CommittedSecret(at).secret)._levels[0]) for at in (folder, other)
        ]
        assert not leaves[0] & leaves[1]
        for path in (folder / "secret.json", *(folder / "states").iterdir()):
            assert path.stat().st_mode & 0o77 == 0, path


@check
def check_a_row_can_be_shown_to_be_committed_to() -> None:
    """By its salt and the digests beside it; another row, or another place, is not."""
    data = rows()
    with TemporaryDirectory() as place:
        commit(data, place, train)
        stated = json.loads((Path(place) / "commitment.json").read_text())["rows"]
        for index in (0, 17, 39):
            proof = proof_of_row(data, place, index)
            assert len(proof.beside) == 6
            assert is_committed(proof, (data.x[index], data.y[index]), stated)
            assert not is_committed(proof, (data.x[index], 1 - data.y[index]), stated)
            assert not is_committed(proof, (data.x[index - 1], data.y[index - 1]), stated)
        must_raise(BadInput, lambda: proof_of_row(rows(1), place, 0))
        assert CommittedSecret(Path(place)).rows == stated


@check
def check_forged_parts_pass_as_often_as_said() -> None:
    """400 audits of 3 of 50 parts, of which 1, 2 or 10 are forged: binomial, at 5 standard
    deviations.
    """
    lengths, rng = [0] + [20] * 50, np.random.default_rng(4)
    for forged in (1, 2, 10):
        caught = 0
        for _ in range(400):
            chosen = _choose(range(1, 51), lengths, 50, rng)
            assert len(set(chosen)) == 3
            caught += any(part <= forged for part in chosen)
        expected = 1 - math.comb(50 - forged, 3) / math.comb(50, 3)
        assert math.isclose(1 - Replay(1000, 60, 50, 3, (), True, False).escape(forged), expected)
        assert abs(caught - 400 * expected) < 5 * math.sqrt(400 * expected * (1 - expected)), (
            forged,
            caught,
        )
    assert Replay(1000, 60, 50, 3, (), True, False).escape(48) == 0


@check
def check_a_tolerance_lets_rounding_pass_and_no_more() -> None:
    """As on another processor: every sum off by a part in 10^6, and one step's noise missing."""

    def rounded(clipped: Any, **options: Any) -> Any:
        released = release(clipped, **options)
        for part in released:
            torch._foreach_mul_(list(part), 1 + 1e-6)
        return released

    exact = mock.patch.object(dpsgd, "release", release)
    with mock.patch.object(dpsgd, "release", rounded), recorded() as folder, exact:
        assert not replayed(folder).ok
        found = replayed(folder, tolerance=1e-3)
        assert found.ok, found.problems
        assert not found.bits
    with at_step(9, without_noise), recorded() as folder:
        found = replayed(folder, tolerance=1e-3)
        assert any("another network" in problem for problem in found.problems), found.problems
    with recorded() as folder, mock.patch("torch.get_num_threads", return_value=7):
        said = str(must_raise(BadInput, lambda: replayed(folder)))
        assert "its setting 'number of threads' was" in said
        assert "is 7" in said
        assert replayed(folder, tolerance=1e-3).ok
    for wrong in ({"tolerance": -1.0}, {"published": folder / "nowhere"}, {"steps": -1}):
        must_raise(BadInput, lambda wrong=wrong: replay(folder, train, rows(), **wrong))  # type: ignore[arg-type, misc]
    must_raise(BadInput, lambda: replay(folder, 3, rows()))  # type: ignore[arg-type]
