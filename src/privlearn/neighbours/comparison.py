"""A training function on neighbouring data: each release's change over its claimed sensitivity."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch

from privlearn._checks import checked, count, one_of, positive
from privlearn._display import Described, Summary
from privlearn.neighbours.coupled_draws import CoupledDraws
from privlearn.neighbours.library_releases import recorded_libraries
from privlearn.neighbours.neighbouring_rows import LARGE_ROWS, count_rows, make_neighbours
from privlearn.neighbours.recorder import ReleaseRecorder
from privlearn.neighbours.recording import (
    Diverged,
    NoisyTensor,
    Release,
    RunRecording,
    differs,
    in_words,
)

ADJACENCIES = ("add_remove", "replace_one", "zero_out")
#: Standard deviations by which the noise that is measured may miss the claimed one.
_DEVIATIONS = 5.0
_DIGITS = re.compile(r"\d+")
#: Problems that are listed; more are counted.
_MOST_PROBLEMS = 8
#: How many times as many runs there are for a row that took part in none before.
_MORE = 5
#: Numbers by which a scale is measured, and by which two noises are recognised as the same.
_FEWEST, _FEW = 8, 4


@final
@dataclass(frozen=True)
class Change:
    """What one release moved by between neighbouring data.

    Attributes:
        run: from 0, the run of those with other random numbers.
        neighbour: what the data's last row is.
        release: from 1, the release of the run.
        source: what released it.
        moved: L2 distance of the values before the noise.
        sensitivity: the claimed bound on it.
        ratio: `moved` over `sensitivity`; of values with sensitivities of their own the root of the
            sum of squares.
        rounding: how much of the ratio may be rounding.
    """

    run: int
    neighbour: str
    release: int
    source: str
    moved: float
    sensitivity: float
    ratio: float
    rounding: float

    @property
    def is_too_large(self) -> bool:
        """Whether the release moved by more than what is claimed."""
        return not self.ratio <= 1 + self.rounding


@final
@dataclass(frozen=True, repr=False)
class Comparison(Described):
    """What runs on neighbouring data showed.

    Attributes:
        changes: of each release, run and neighbour, the largest ratio first.
        problems: what contradicts the claim, one a text; empty: nothing does.
        releases: of the first run.
        noise_multiplier: the noise that was measured over the claimed sensitivity, over all
            releases; None where that can't be said.
        neighbours: data sets that were compared, over all runs.
        uncompared: what a run returned that could not be compared.
        seconds: of one run as it is, without anything recorded, and of all runs.
    """

    changes: tuple[Change, ...]
    problems: tuple[str, ...]
    releases: int
    noise_multiplier: float | None
    neighbours: int
    uncompared: tuple[str, ...]
    seconds: tuple[float, float]

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not self.problems

    @property
    def largest_ratio(self) -> float:
        """The largest change over the sensitivity that is claimed for it; NaN without releases."""
        return self.changes[0].ratio if self.changes else math.nan

    def require(self) -> None:
        """Raise `AssertionError` with the report if anything contradicts the claim."""
        if self.problems:
            raise AssertionError(self.report())

    def report(self) -> str:
        """All problems, and the largest changes."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for problem in self.problems[:_MOST_PROBLEMS]:
            yield f"- {problem}"
        if len(self.problems) > _MOST_PROBLEMS:
            yield f"- and {len(self.problems) - _MOST_PROBLEMS} more"
        yield (
            f"{self.releases} releases, {self.neighbours} neighbouring data sets; largest changes "
            "over their sensitivities:"
        )
        for change in self.changes[:5]:
            yield (
                f"  {change.ratio:10.4f}  release {change.release} ({change.source}), "
                f"{change.neighbour}: {change.moved:.4g} of {change.sensitivity:.4g}"
            )
        if self.noise_multiplier is not None:
            yield f"noise multiplier that was measured: {self.noise_multiplier:.4g}"
        if self.uncompared:
            yield f"not compared: {', '.join(self.uncompared)}"
        yield (
            f"{self.seconds[1]:.2f} s for all runs, {self.seconds[0]:.2f} s for one that is not "
            "recorded"
        )

    def _summary(self) -> Summary:
        verdict = "nothing contradicts the claim" if self.ok else f"{len(self.problems)} problems"
        return Summary(
            f"Neighbouring runs: {verdict}",
            [
                ("largest change", f"{self.largest_ratio:.4g} of the sensitivity"),
                ("releases", f"{self.releases}, on {self.neighbours} neighbouring data sets"),
                *[("problem", problem) for problem in self.problems[:1]],
            ],
        )


@checked
def compare_runs(
    train: Callable[[Any, ReleaseRecorder], Any],
    rows: Any,
    *,
    adjacency: str = "add_remove",
    noise_multiplier: float | None = None,
    sensitivity: float | None = None,
    runs: int = 2,
    neighbours: Mapping[str, Any] | None = None,
    absent: Any = None,
) -> Comparison:
    """Run a training function on neighbouring data with the same random numbers, and compare.

    Each run after the first gets the releases of the first in place of its own (adaptive
    composition: Dwork, Rothblum and Vadhan 2010), so that its state is the same at each step. What
    a release moved by before its noise, over the sensitivity that is claimed for it, must be at
    most 1, up to rounding. All else that can be seen must be the same: the number of releases,
    gradients and learning rates that optimizers take, what `train` returns or declares.

    Guarantee: none that the claim holds; a problem is a counterexample, but for what is said
    in docs/testing-privacy.md. Random numbers are known in these runs, so that nothing of them may
    be published.

    Args:
        train: takes rows and a `ReleaseRecorder`. What it returns counts as public: networks,
            tensors, arrays, numbers, texts, estimators, and containers of these are compared.
        rows: a tensor, an array, a table of pandas, or a tuple, list or dict of these. The last row
            is the one that differs.
        adjacency: "add_remove": the row is there or not. "replace_one": it is another.
            "zero_out": it is there, or `absent` is in its place.
        noise_multiplier: the claimed standard deviation of the noise over the sensitivity, of all
            releases; None: what the library claims of each.
        sensitivity: the claimed one, of noise that the function itself draws; None: the standard
            deviation of that noise over `noise_multiplier`.
        runs: with other random numbers each; up to five times as many until a large row takes part.
        neighbours: more rows to try, by name, each of the form of `rows[:1]`; a number in place of
            a row fills the last one: `{"a row of NaN": math.nan}`.
        absent: what counts as an absent row; None: NaN.

    Raises:
        BadInput: an argument that is out of range, or fewer than two rows.
    """
    one_of("adjacency", adjacency, ADJACENCIES)
    count("runs", runs)
    if noise_multiplier is not None:
        positive("noise_multiplier", noise_multiplier)
    if sensitivity is not None:
        positive("sensitivity", sensitivity)
    base, others = make_neighbours(rows, adjacency, neighbours or {}, absent)
    recorded = _RecordedTraining(train, noise_multiplier, sensitivity, count_rows(rows) + 1)
    started = time.perf_counter()
    changes: list[Change] = []
    differences: dict[str, list[str]] = {}
    firsts: list[RunRecording] = []
    for number in range(_MORE * runs):
        if number >= runs and any(
            change.moved for change in changes if change.neighbour in LARGE_ROWS
        ):
            break
        first = recorded.run(base, number)
        firsts.append(first)
        for name, data in others.items():
            second = recorded.run(data, number, first)
            changes += _changes(first, second, number, name)
            for kind, text in _other_differences(first, second):
                differences.setdefault(kind, []).append(f"{text} ({name})")
    taken = time.perf_counter() - started
    plain = _time_of(lambda: train(base, ReleaseRecorder()))
    changes.sort(key=lambda change: -change.ratio)
    measured, noise_problems = _check_noise(firsts, noise_multiplier)
    largest: dict[str, Change] = {}
    for change in changes:
        if change.is_too_large:
            largest.setdefault(change.neighbour, change)
    too_large = [_too_large(change, adjacency) for change in largest.values()]
    others_differ = [
        texts[0] + (f"; so it is in {len(texts) - 1} more runs" if len(texts) > 1 else "")
        for texts in differences.values()
    ]
    return Comparison(
        changes=tuple(changes),
        problems=tuple(
            dict.fromkeys(
                (*too_large, *others_differ, *_vacuous(firsts, changes, adjacency), *noise_problems)
            )
        ),
        releases=len(firsts[0].releases),
        noise_multiplier=measured,
        neighbours=len(others) * len(firsts),
        uncompared=tuple(dict.fromkeys(firsts[0].uncompared)),
        seconds=(plain, taken),
    )


@dataclass(frozen=True, repr=False)
class _RecordedTraining:
    """A training function, what is claimed for the noise that it draws itself, and the most rows
    that it is run on.
    """

    train: Callable[[Any, ReleaseRecorder], Any]
    noise_multiplier: float | None
    sensitivity: float | None
    rows: int

    def run(self, data: Any, number: int, replay: RunRecording | None = None) -> RunRecording:
        """Run it on data with the random numbers of this number, and record it."""
        recording = RunRecording(replay)
        draws = CoupledDraws(
            recording, noise_multiplier=self.noise_multiplier, sensitivity=self.sensitivity
        )
        with _keep_generators():
            _seed_generators(number)
            with recorded_libraries(recording, number, self.rows), draws:
                try:
                    output = self.train(data, ReleaseRecorder(recording))
                    recording.note("what the function returns", output)
                except Diverged as error:
                    recording.diverged = str(error)
                except Exception as error:
                    if replay is None:
                        raise
                    recording.diverged = f"it raises {type(error).__name__}: {error}"
        return recording


def _changes(
    first: RunRecording, second: RunRecording, run: int, neighbour: str
) -> Iterator[Change]:
    for place, (one, other) in enumerate(zip(first.releases, second.releases, strict=False)):
        if len(one.pieces) == len(other.pieces) and one.is_claimed:
            moved, ratio, rounding = one.compare(other)
            yield Change(
                run, neighbour, place + 1, one.source, moved, one.sensitivity, ratio, rounding
            )


def _other_differences(first: RunRecording, second: RunRecording) -> Iterator[tuple[str, str]]:
    """What differs besides the releases' values: a kind, and a text; the first of each kind."""
    if second.diverged is not None:
        yield (
            "departs",
            f"the run departs from the other: {second.diverged}. Expected the same releases and "
            "steps whatever the rows are: of empty batches, too",
        )
        return
    if len(first.releases) != len(second.releases):
        yield (
            "releases",
            f"there are {len(second.releases)} releases, and {len(first.releases)} on the other "
            "data. Expected as many: their number must not depend on the rows",
        )
    for one, other in zip(first.releases, second.releases, strict=False):
        if _claims(one) != _claims(other):
            yield (
                "claims",
                f"a release of {one.source} has another sensitivity or noise: {_claim(other)}, and "
                f"{_claim(one)} on the other data. Expected the same: both are public",
            )
            break
    for (name, value), (other_name, other_value) in zip(
        first.outputs, second.outputs, strict=False
    ):
        if name != other_name:
            yield "outputs", f"something else changed: {other_name} is there in place of {name}"
            return
        if differs(value, other_value):
            yield (
                _DIGITS.sub("", name),
                f"something else changed: {name} has {in_words(value, other_value)}. It follows "
                "from rows, and not from releases alone. Look for a value without noise, a number "
                "of rows, or a statistic of the data",
            )
            return
    if len(first.outputs) != len(second.outputs):
        yield "outputs", "something else changed: the run has more steps, or fewer, or outputs"


def _claims(release: Release) -> list[tuple[float | None, float | None]]:
    return [(piece.sensitivity, piece.noise_std) for piece in release.pieces]


def _claim(release: Release) -> str:
    stds = [piece.noise_std for piece in release.pieces if piece.noise_std is not None]
    return f"sensitivity {release.sensitivity:.4g}, noise {max(stds, default=math.nan):.4g}"


def _too_large(change: Change, adjacency: str) -> str:
    twice = (
        " A sensitivity for rows that are added or removed is half of that for replaced ones."
        if adjacency == "replace_one" and change.ratio < 2.01
        else ""
    )
    if not math.isfinite(change.moved):
        advice = (
            "count rows without finite numbers as absent, before the sum"
            if adjacency != "zero_out"
            else "the absent row is NaN unless absent= says what counts as absent"
        )
    else:
        advice = (
            "clip each row's contribution before the sum, over all parameters together, or add "
            "more noise"
        )
    return (
        f"release {change.release} ({change.source}) moved by {change.moved:.4g} with "
        f"{change.neighbour}; claimed is {change.sensitivity:.4g}: {change.ratio:.4g} times as "
        f"much. Expected at most 1: {advice}.{twice}"
    )


def _vacuous(firsts: list[RunRecording], changes: list[Change], adjacency: str) -> Iterator[str]:
    """Where the comparison shows nothing."""
    releases = [release for first in firsts for release in first.releases]
    if not releases:
        yield (
            "no release was recorded: noise that NumPy draws, or another library, can't be seen. "
            "Hand the values to recorder.release(...)"
        )
        return
    sources = dict.fromkeys(release.source for release in releases if not release.is_claimed)
    for source in sources:
        yield (
            f"{source} is added to values without a claimed sensitivity: give noise_multiplier= "
            "or sensitivity=, or draw it inside recorder.ignore() if it is no release"
        )
    others = {each for first in firsts for each in first.adjacencies} - {adjacency}
    if others:
        yield (
            f"privlearn's releases are claimed for {', '.join(sorted(others))} neighbours, and "
            f"these data are {adjacency} ones: give adjacency={sorted(others)[0]!r}, or another "
            "plan"
        )
    for release in dict.fromkeys(each for first in firsts for each in first.unclaimed):
        yield f"{release}, which is not compared: test the other releases by themselves"
    moved = {change.neighbour for change in changes if change.moved}
    if changes and not moved:
        yield (
            "no release moved: the row that differs took part in no batch. Give more steps, a "
            "larger sampling rate, or more runs, and take out seeds that the function sets: each "
            "run is to draw other batches"
        )
    elif changes and not moved & set(LARGE_ROWS):
        yield (
            "no large row moved a release, so that clipping was not tested: they were in no batch, "
            "had no gradient, or counted as absent. Give more runs, or a large row of your own by "
            "neighbours="
        )


def _check_noise(
    firsts: list[RunRecording], claimed: float | None
) -> tuple[float | None, list[str]]:
    """The noise multiplier that was measured, and where noise is not what is claimed."""
    problems = list(_find_constant_noise(firsts))
    squares, numbers = 0.0, 0
    for first in firsts:
        before: torch.Tensor | None = None
        for place, release in enumerate(first.releases):
            if any(piece.noise_std == 0 for piece in release.pieces):
                problems.append(f"{release.source} releases with noise of standard deviation 0")
            pieces = [piece for piece in release.pieces if piece.noise_std and piece.sensitivity]
            if not pieces:
                before = None
                continue
            noise = torch.cat([piece.noise(piece.noise_std) for piece in pieces])
            problems += _false_noise(noise, release, place + 1)
            problems += _false_multiplier(pieces, release.source, claimed)
            if before is not None and _is_same(before, noise):
                problems.append(
                    f"releases {place} and {place + 1} have the same noise: their difference has "
                    "none. Draw it anew for each"
                )
            before = noise
            squares += sum(float(piece.noise(piece.sensitivity).square().sum()) for piece in pieces)
            numbers += len(noise)
    return math.sqrt(squares / numbers) if numbers else None, list(dict.fromkeys(problems))


def _find_constant_noise(firsts: list[RunRecording]) -> Iterator[str]:
    """Noise that is the same in runs with other random numbers; privlearn's certificates say so."""
    for one, other in pairwise(firsts):
        for a, b in zip(one.releases, other.releases, strict=False):
            pieces = [[p for p in each.pieces if p.noise_std] for each in (a, b)]
            if a.source == "privlearn" or not all(pieces):
                continue
            noise = [torch.cat([p.noise(p.noise_std or 1.0) for p in part]) for part in pieces]
            if _is_same(*noise):
                yield (
                    f"{a.source} is the same in two runs with other random numbers: the function "
                    "sets a seed, and who knows it can take the noise off. Draw noise without one"
                )
                return


def _false_multiplier(
    pieces: list[NoisyTensor], source: str, claimed: float | None
) -> Iterator[str]:
    """A noise multiplier that is not the claimed one."""
    parts = {piece.part: piece.noise_std / piece.sensitivity for piece in pieces}  # type: ignore[operator]
    multiplier = 1 / math.hypot(*(1 / each for each in parts.values()))
    if claimed is not None and not math.isclose(multiplier, claimed, rel_tol=1e-6):
        yield (
            f"releases of {source} have noise multiplier {multiplier:.4g}, and {claimed:.4g} is "
            "claimed. Expected the same"
        )


def _false_noise(noise: torch.Tensor, release: Release, number: int) -> Iterator[str]:
    """Noise over its claimed standard deviation, where that is not 1."""
    size = len(noise)
    measured = float(noise.square().mean().sqrt())
    room = _DEVIATIONS / math.sqrt(2 * size) + 0.001
    if measured < 1e-6 or (size >= _FEWEST and abs(measured - 1) > room):
        yield (
            f"release {number} ({release.source}) has noise of {measured:.4g} times the claimed "
            f"standard deviation, over {size} numbers. Expected 1: scale it by sensitivity x noise "
            "multiplier"
        )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two noises are the same, up to rounding."""
    if len(one) != len(other) or len(one) < _FEW:
        return False
    return float((one - other).norm()) < 1e-3 * float(one.norm())


def _time_of(function: Callable[[], Any]) -> float:
    with _keep_generators():
        _seed_generators(0)
        started = time.perf_counter()
        function()
        return time.perf_counter() - started


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


@contextmanager
def _keep_generators() -> Iterator[None]:
    """A block after which the global generators are where they were before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
