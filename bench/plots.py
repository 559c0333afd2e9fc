"""Draws what `clipping.py --sweep` measured: `python bench/plots.py FILE.json [FOLDER]`.

The folder, by default `docs/figures`, gets `clipping-batch.png` and `clipping-parameters.png`: the
time and the peak memory of a step over the batch size, and over the number of parameters. The
exponents of powers that are fitted to the times are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
AXES = {"batch": "batch size (examples)", "parameters": "parameters"}
#: What is drawn: the field, its label, and its unit's share of the field's.
PANELS = (
    ("seconds", "time of a step (ms)", 1e3),
    ("peak_mib", "peak memory above the network's (MiB)", 1.0),
)
MARKERS = "osD^vP*X"


def draw(axis: str, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the rows of one axis into the file `path`."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    for panel, (field, label, scale) in zip(panels, PANELS, strict=True):
        _lines(panel, rows, field, scale)
        panel.set(xscale="log", yscale="log", xlabel=AXES[axis], ylabel=label)
        panel.grid(which="major", alpha=0.3)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        fontsize="small",
        frameon=False,
    )
    figure.savefig(path, dpi=150)


def _lines(panel: Axes, rows: Sequence[dict[str, Any]], field: str, scale: float) -> None:
    for place, variant in enumerate(dict.fromkeys(row["variant"] for row in rows)):
        # What did not grow at all has no place on a logarithmic axis.
        points = sorted(
            (row["size"], row[field] * scale)
            for row in rows
            if row["variant"] == variant
            if row[field] > 0
        )
        panel.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=variant,
            color=f"C{place}",
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            linewidth=1.2,
        )


def exponents(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By variant: the exponent b of the time a size^b, by least squares in logarithms."""
    fitted = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        points = [
            (math.log(row["size"]), math.log(row["seconds"]))
            for row in rows
            if row["variant"] == variant
        ]
        if len(points) > 1:
            fitted[variant] = statistics.linear_regression(*zip(*points, strict=True)).slope
    return fitted


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=Path(__file__).name, description="Draw a sweep of clipping.py."
    )
    parser.add_argument("file", type=Path, help="what clipping.py --sweep wrote")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=FIGURES, help="where the figures go"
    )
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    for axis, rows in json.loads(options.file.read_text()).items():
        path = options.folder / f"clipping-{axis}.png"
        draw(axis, rows, path)
        print(
            path, *(f"{label}: {power:.2f}" for label, power in exponents(rows).items()), sep="\n  "
        )


if __name__ == "__main__":
    main()
