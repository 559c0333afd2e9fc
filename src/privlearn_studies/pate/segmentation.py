"""Private segmentation of MRI volumes after Fay et al. 2020, beside the baselines that the paper leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from privlearn_studies.findings import Findings, Row
from privlearn_studies.pate.scans import Settings
from privlearn_studies.pate.segmentation_baselines import GradientOutcome, GradientSetting
from privlearn_studies.pate.segmentation_figure import drawn
from privlearn_studies.pate.segmentation_runs import CELLS, DELTA, WAYS, SegmentationOutcome, SegmentationSetting
from privlearn_studies.seeds import interval, mean_row
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table

_SEEDS, _QUICK_SEEDS = 3, 1
_TEACHERS = (8, 16, 32)
#: More teachers, with the first seed only.
_MANY = 64
#: Other numbers of public volumes with masks, and where students are taught there, by `_FEW` teachers; the first seed only.
_LABELLED, _FEW, _FEWER_CELLS = (4, 8), 32, ((8.0, 10), (8.0, 40))
_MOVED_ALONE = "DP-SGD from nothing, moved volumes"
_MOVED = "DP-SGD from the public U-Net, moved volumes"
_PAPERS = "DP-SGD from nothing, the paper's clip and noise"
#: What the paper's noise is on each layer, over its clip; and epochs that cost epsilon 8 where layers are not counted, or are.
_NOISE, _EPOCHS = math.sqrt(6.0), (118, 6)
_DICE = "Dice on the test volumes, mean of both classes"
_QUICK = Settings(public=200, teacher=25, alone=60, epochs=3)
Runs = dict[int, list[SegmentationOutcome]]


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Every ensemble by every way, and all that they are compared with."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    settings, others, gradients = _settings(quick)
    ensembles = sweep(list(settings.values()), numbers)
    runs: Runs = {count: ensembles[setting] for count, setting in settings.items()}
    descents = dict(zip(gradients, sweep_all(sweep, gradients, numbers), strict=True))
    if not quick:
        many = SegmentationSetting(_MANY)
        runs[_MANY] = sweep([many], numbers[:1])[many]
    few = {labelled: sweep([setting], numbers[:1])[setting] for labelled, setting in others.items()}
    rows = [*_baseline_rows(runs, descents), *[row for count, mine in runs.items() for row in _rows(count, mine)]]
    rows += [row for labelled, mine in few.items() for row in _rows(_FEW, mine, f"{labelled} public masks, ")]
    notes = [_about(len(numbers), quick), _baselines(runs, descents), _ensembles(runs), _students(runs), _ways(runs)]
    if few:
        notes.append(_labelled(few, runs))
    notes.append(_meaning(runs, descents))
    return Findings(tuple(rows), drawn(runs, descents), tuple(notes))


def _settings(
    quick: bool,
) -> tuple[dict[int, SegmentationSetting], dict[int, SegmentationSetting], dict[str, GradientSetting]]:
    """Ensembles by their number of teachers, those with other public volumes, and what is trained by descent."""
    if quick:
        short = {"first": 60, "settings": _QUICK}
        gradients = {
            "DP-SGD from nothing, epsilon 8": GradientSetting(8.0, epochs=4, learning_rate=1e-2, **short),  # type: ignore[arg-type]
            "DP-SGD from the public U-Net, epsilon 8": GradientSetting(8.0, "public", epochs=4, **short),  # type: ignore[arg-type]
            f"{_MOVED}, epsilon 8": GradientSetting(8.0, "public", epochs=2, copies=1, **short),  # type: ignore[arg-type]
            f"{_PAPERS}, 2 epochs": GradientSetting(None, epochs=2, clip=4.0, noise=_NOISE, **short),  # type: ignore[arg-type]
            "no privacy": GradientSetting(None, epochs=40, learning_rate=1e-2, **short),  # type: ignore[arg-type]
        }
        return {count: SegmentationSetting(count, **short) for count in (4, 16)}, {}, gradients  # type: ignore[arg-type]
    gradients = {"DP-SGD from nothing, epsilon 8": GradientSetting(8.0, epochs=80, learning_rate=1e-2)}
    moved = {f"{_MOVED_ALONE}, epsilon 8": replace(gradients["DP-SGD from nothing, epsilon 8"], copies=1)}
    for epsilon in (8.0, 4.0, 2.0, 1.0):
        label = f"DP-SGD from the public U-Net, epsilon {epsilon:g}"
        gradients[label] = GradientSetting(epsilon, "public", learning_rate=1e-3)
        moved[f"{_MOVED}, epsilon {epsilon:g}"] = replace(gradients[label], copies=1)
    gradients |= moved
    for epochs in _EPOCHS:
        papers = GradientSetting(None, epochs=epochs, learning_rate=1e-2, clip=4.0, noise=_NOISE)
        gradients[f"{_PAPERS}, {epochs} epochs"] = papers
    gradients["no privacy"] = GradientSetting(None, epochs=400, learning_rate=1e-2)
    others = {labelled: SegmentationSetting(_FEW, labelled, _FEWER_CELLS) for labelled in _LABELLED}
    return {count: SegmentationSetting(count) for count in _TEACHERS}, others, gradients


def sweep_all(
    sweep: Sweep, gradients: dict[str, GradientSetting], numbers: Sequence[int]
) -> list[list[GradientOutcome]]:
    """The outcomes of each, in their order."""
    found = sweep(list(gradients.values()), numbers)
    return [found[setting] for setting in gradients.values()]


def mean_of(dice: Sequence[float]) -> float:
    """The mean over classes."""
    return float(np.mean(dice))


def taught(mine: Sequence[SegmentationOutcome], way: str, epsilon: float, queries: int) -> list[float]:
    """The Dice of each seed's student in a cell; empty where none was taught."""
    cells = [
        cell for one in mine for cell in one.cells if (cell.way, cell.epsilon, cell.queries) == (way, epsilon, queries)
    ]
    return [mean_of(cell.student) for cell in cells if cell.student is not None]


def _baseline_rows(runs: Runs, descents: dict[str, list[GradientOutcome]]) -> list[Row]:
    mine = next(iter(runs.values()))
    known = {f"{_PAPERS}, {_EPOCHS[0]} epochs": 0.53}
    rows = [
        mean_row("mean of the public masks", _DICE, [mean_of(one.mean) for one in mine]),
        mean_row("public U-Net", _DICE, [mean_of(one.public) for one in mine]),
        mean_row("public U-Net, taught by itself", _DICE, [mean_of(one.itself) for one in mine]),
    ]
    for label, found in descents.items():
        # The paper's number is for brain tumours.
        rows.append(mean_row(label, _DICE, [mean_of(one.test) for one in found], known.get(label)))
        spent = [one.spent for one in found if one.spent is not None]
        if spent:
            rows.append(mean_row(label, f"epsilon spent, at delta {DELTA:g}", spent))
    return rows


def _rows(count: int, mine: Sequence[SegmentationOutcome], more: str = "") -> list[Row]:
    """All numbers of one ensemble."""
    label = f"{more}K {count}"
    rows = [
        mean_row(label, "Dice of one teacher on the test volumes (private)", [mean_of(one.teacher) for one in mine],
                 0.547 if count == 8 and not more else None),
        mean_row(label, "Dice of the teachers' mean there (private)", [mean_of(one.ensemble) for one in mine]),
        mean_row(label, "Dice of a student of that mean, of 40 volumes (private)", [mean_of(one.taught) for one in mine]),
    ]  # fmt: skip
    for at, cell in enumerate(mine[0].cells):
        cells = [one.cells[at] for one in mine]
        own = f"{label}, {cell.way}, epsilon {cell.epsilon:g}, N {cell.queries}"
        rows.append(
            mean_row(own, "Dice of the answers on the queried volumes", [mean_of(each.answers) for each in cells])
        )
        if cell.student is not None:
            rows.append(mean_row(own, _DICE, [mean_of(each.student or ()) for each in cells]))
            for label_of_class in range(len(cell.student)):
                values = [(each.student or ())[label_of_class] for each in cells]
                rows.append(mean_row(own, f"Dice of class {label_of_class + 1} on the test volumes", values))
        if cell.alone is not None:
            rows.append(mean_row(f"{own}, student from nothing", _DICE, [mean_of(each.alone or ()) for each in cells],
                                 0.561 if count == 8 and not more else None))  # fmt: skip
    return rows


def _about(seeds: int, quick: bool) -> str:
    private = "60 of 180" if quick else "180"
    return (
        f"{private} private volumes of the hippocampus, on 20 x 28 x 20 voxels of 2 mm, are shared by K teachers; 2 "
        "public ones have masks (others for each seed, of 8); 40 public ones are without, of which N are asked about: "
        "for N = 80 their mirror images, too. **A query is a whole volume**, and is paid for as one. 32 volumes are "
        f"for the figures. Seeds: {seeds} (K = 64 and other numbers of public masks: 1). All "
        f"epsilons are at delta {DELTA:g}, by exact composition; each release is "
        "priced by itself. (The paper's brain tumours are not at hand: its numbers stand beside ours for what they "
        "are, on other images.)\n\n"
        "Networks are MONAI's U-Net (16, 32, 64 channels, group norm), with mirrored, turned, stretched and shifted "
        "volumes, but for DP-SGD where nothing is said of that. All teachers begin as the U-Net that learned from the "
        "public masks, and so do students, which learn from those masks beside the answers.\n\n"
        "**Corrections** are our addition: the public U-Net's own prediction for each query is taken off the "
        "teachers' answers; what is left is coded in 40 smooth directions at its borders, and clipped to twice the "
        "length that such codes have for public stand-ins. The noise is held back by empirical Bayes, over the "
        "queries. Principal components and the autoencoder (8 numbers, unit ball, trained with the release's noise) "
        "are fitted on moved public masks and on the public U-Net's predictions. Settings were chosen on one seed, on "
        "another split of the same volumes, with test figures in view: the figures are a little kind to corrections "
        "and to DP-SGD, each tried with a few settings."
    )


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "")


def _baselines(runs: Runs, descents: dict[str, list[GradientOutcome]]) -> str:
    mine = next(iter(runs.values()))

    def line(label: str, values: Sequence[Sequence[float]], spent: str = "–") -> tuple[str, ...]:
        means = [mean_of(each) for each in values]
        return (label, spent, _spread(means), *(f"{np.mean([each[at] for each in values]):.3f}" for at in range(2)))

    lines = [
        line("mean of the public masks, for every volume", [one.mean for one in mine]),
        line("U-Net on the public masks alone", [one.public for one in mine]),
        line("the same, taught by its own predictions for 40 volumes", [one.itself for one in mine]),
        *(
            line(label, [one.test for one in found], "–" if found[0].spent is None else f"{found[0].spent:.3g}")
            for label, found in descents.items()
        ),
    ]
    return (
        "**Without teachers.** Dice on the test volumes; the first three cost no privacy.\n\n"
        + table(("what", "epsilon spent", "Dice", "anterior", "posterior"), lines)
        + "\n\n"
        + TRIED
    )


#: What is said of the settings of DP-SGD.
TRIED = (
    "*Moved volumes* are mirrored, turned, stretched and shifted anew in each step, with their masks, as teachers' "
    "are; all other DP-SGD has volumes as they are. In so few steps it loses by being moved. *The paper's clip and "
    "noise*: each layer's gradient is clipped to 4, and each layer's sum has noise of 2.45 (variance 6) times that. "
    "The paper gives neither batches nor epochs nor a learning rate: a fifth of the volumes in a batch, and Adam at "
    "0.01, as DP-SGD from nothing has here. If layers are not counted, 118 epochs cost epsilon 8, but the nine layers "
    "are one release, and so these cost 52; 6 epochs cost 8. (Read as noise of variance 6 on the sum itself, 2 epochs "
    "are called 8 and cost 77.) Tries: a few for DP-SGD with volumes as they are, as for corrections (how many is not "
    "on record); moved volumes have the same settings, and the paper's clip and noise had two (a tenth of the rate, "
    "in one seed, learned nothing either): neither is tuned."
)


def _ensembles(runs: Runs) -> str:
    lines = [
        (str(count), *(_spread([mean_of(pick(one)) for one in mine]) for pick in _PICKS))
        for count, mine in runs.items()
    ]
    return (
        "**Teachers**, without noise: exact figures of private answers. The student of the teachers' mean shows what a "
        "release without noise and without codes would give.\n\n"
    ) + table(("K", "one teacher", "teachers' mean", "student of the mean of 40 volumes"), lines)


_PICKS: tuple[Callable[[SegmentationOutcome], Sequence[float]], ...] = (
    lambda one: one.teacher,
    lambda one: one.ensemble,
    lambda one: one.taught,
)


def _students(runs: Runs) -> str:
    lines = []
    for count, mine in runs.items():
        for epsilon, queries in sorted(CELLS):
            found = taught(mine, WAYS[-1], epsilon, queries)
            if not found:
                continue
            noise = next(
                c.noise for c in mine[0].cells if (c.way, c.epsilon, c.queries) == (WAYS[-1], epsilon, queries)
            )
            public, itself = [mean_of(one.public) for one in mine], [mean_of(one.itself) for one in mine]
            lines.append((str(count), f"{epsilon:g}", str(queries), f"{noise:.3f}", _spread(found),
                          _against(found, public), _against(found, itself)))  # fmt: skip
    return (
        "**Students of corrections**, where they are better than what is public alone, and where not. Noise is on each "
        "number, over the radius. Differences are of pairs with the same seed, with Student's 95 % interval, which three "
        "seeds leave wide, and how many of the pairs are above.\n\n"
    ) + table(("K", "epsilon", "N", "noise", "Dice", "above the public U-Net", "above the one taught by itself"), lines)


def _against(values: Sequence[float], others: Sequence[float]) -> str:
    """The mean difference of pairs, its interval, and in how many of them `values` are above."""
    middle, half = interval(values, others)
    wide = "" if math.isinf(half) else f" ± {half:.3f}"
    return f"{middle:+.3f}{wide}, {sum(np.greater(values, others))} of {len(values)} above"


def _ways(runs: Runs) -> str:
    lines = []
    for count, mine in runs.items():
        for epsilon, queries in CELLS[:3]:
            cells = [_spread(found) if (found := taught(mine, way, epsilon, queries)) else "–" for way in WAYS]
            if any(cell != "–" for cell in cells):
                lines.append((str(count), f"{epsilon:g}", str(queries), *cells))
    alone = [
        f"{_spread(from_nothing)} at K = {count}"
        for count, mine in runs.items()
        if (from_nothing := [mean_of(cell.alone) for one in mine for cell in one.cells if cell.alone is not None])
    ]
    said = (
        f"\n\nStudents of the autoencoder's answers that begin from nothing, N = 80, epsilon 8: {'; '.join(alone)}."
        if alone
        else ""
    )
    return (
        "**By what is released.** All students begin as the public U-Net.\n\n"
        + table(("K", "epsilon", "N", *WAYS), lines)
        + said
    )


def _labelled(few: dict[int, list[SegmentationOutcome]], runs: Runs) -> str:
    lines = []
    everything = {**few, 2: runs[_FEW][:1]}
    for labelled, mine in sorted(everything.items()):
        public = [mean_of(one.public) for one in mine]
        itself = [mean_of(one.itself) for one in mine]
        for epsilon, queries in _FEWER_CELLS:
            found = taught(mine, WAYS[-1], epsilon, queries)
            lines.append((str(labelled), f"{epsilon:g}", str(queries), _spread(public), _spread(found),
                          _against(found, public), _against(found, itself)))  # fmt: skip
    return f"**More public masks, less to gain**, at K = {_FEW}.\n\n" + table(
        (
            "public masks",
            "epsilon",
            "N",
            "public U-Net",
            "student of corrections",
            "above it",
            "above the one taught by itself",
        ),
        lines,
    )


def _meaning(runs: Runs, descents: dict[str, list[GradientOutcome]]) -> str:
    """Where students of corrections are above all that is public, in every seed, and what descent reaches."""
    above: dict[int, list[str]] = {}
    below: dict[int, list[str]] = {}
    best = (0.0, "")
    for count, mine in runs.items():
        public = [max(mean_of(one.public), mean_of(one.itself), mean_of(one.mean)) for one in mine]
        for epsilon, queries in sorted(CELLS):
            found = taught(mine, WAYS[-1], epsilon, queries)
            where = above if found and all(np.greater(found, public)) else below
            where.setdefault(count, []).append(f"({epsilon:g}, {queries})")
            best = max(best, (float(np.mean(found or [0.0])), f"K = {count}, epsilon {epsilon:g}, N = {queries}"))
    said = [f"Above all three public baselines in every seed: {_listed(above)}", f"not so: {_listed(below)}"]
    descent = {label: float(np.mean([mean_of(one.test) for one in found])) for label, found in descents.items()}
    return (
        "**What it comes to.** Students of corrections, as (epsilon, N). "
        + "; ".join(said)
        + f". The best, {best[0]:.3f}, is at {best[1]}. Beside it: "
        + "; ".join(f"{label} {value:.3f}" for label, value in descent.items())
        + "."
    )


def _listed(places: dict[int, list[str]]) -> str:
    return ", ".join(f"K = {count} at {' '.join(cells)}" for count, cells in places.items()) or "nowhere"
