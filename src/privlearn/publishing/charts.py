"""Small pictures for a page, as SVG that takes its colours from the page's style: no script, and no
library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from privlearn._texts import for_html

_WIDTH, _HEIGHT = 360.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 22.0, 12.0, 44.0

Points = Sequence[tuple[float, float]]


@final
@dataclass(frozen=True)
class Axis:
    """One axis of a picture: its label, its ends, and its ticks, each a place and a text."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def at(self, value: float) -> float:
        """Where `value` lies, from 0 at the low end to 1 at the high one."""
        return (value - self.low) / (self.high - self.low)


def percent_axis(label: str) -> Axis:
    """An axis of shares."""
    return Axis(label, 0.0, 1.0, [(share / 4, f"{share * 25} %") for share in range(5)])


def number_axis(label: str, low: float, high: float, *, whole: bool = False) -> Axis:
    """An axis with some four ticks at round numbers, from `low` to `high` or a little beyond."""
    high = high if high > low else low + 1.0
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    step = max(1.0, round(step)) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(
        label, low, high, [(tick * step, f"{tick * step:.4g}") for tick in range(first, last + 1)]
    )


def line_chart(
    name: str, title: str, description: str, axes: tuple[Axis, Axis], lines: dict[str, Points]
) -> str:
    """Lines over two axes.

    Args:
        name: of letters, and on no other picture of the page.
        title, description: what those are told who do not see it.
        axes: across and up.
        lines: the points of each, by its class in the page's style.
    """
    across, up = axes

    def x(value: float) -> float:
        return _LEFT + across.at(value) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - up.at(value) * (_HEIGHT - _TOP - _BOTTOM)

    floor, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value, text in up.ticks:
        parts.append(
            f'<line class="grid" x1="{_LEFT:g}" x2="{right:g}" y1="{y(value):.1f}" '
            f'y2="{y(value):.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{_LEFT - 6:g}" y="{y(value) + 4:.1f}" '
            f'text-anchor="end">{text}</text>'
        )
    for value, text in across.ticks:
        parts.append(
            f'<text class="tick" x="{x(value):.1f}" y="{floor + 17:g}" '
            f'text-anchor="middle">{text}</text>'
        )
    parts.append(
        f'<line class="axis" x1="{_LEFT:g}" x2="{right:g}" y1="{floor:g}" y2="{floor:g}"/>'
    )
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 6, across.label))
    middle = (_TOP + floor) / 2
    parts.append(_text(13, middle, up.label, f' transform="rotate(-90 13 {middle:g})"'))
    for style, points in lines.items():
        drawn = " ".join(f"{x(one):.1f},{y(other):.1f}" for one, other in points)
        parts.append(f'<polyline class="{for_html(style)}" points="{drawn}"/>')
    return _picture(name, title, description, _HEIGHT, parts)


def interval_chart(
    name: str, title: str, description: str, rows: Iterable[tuple[str, float, float, float]]
) -> str:
    """Shares with intervals, one below the other: a label, the low end, the share and the high end
    each.
    """
    parts, height = [], 8.0

    def x(share: float) -> float:
        return 10 + share * (_WIDTH - 28)

    for label, low, share, high in rows:
        parts.append(
            f'<text class="tick" x="{x(0):g}" y="{height + 10:g}">{for_html(label)}</text>'
        )
        parts.append(
            f'<line class="grid" x1="{x(0):g}" x2="{x(1):g}" y1="{height + 24:g}" '
            f'y2="{height + 24:g}"/>'
        )
        ends = f'x1="{x(low):.1f}" x2="{x(high):.1f}"'
        parts.append(f'<line class="span" {ends} y1="{height + 24:g}" y2="{height + 24:g}"/>')
        parts.append(f'<circle class="dot" cx="{x(share):.1f}" cy="{height + 24:g}" r="4.5"/>')
        height += 44
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        place = f'x="{x(share):.1f}" y="{height + 8:g}" text-anchor="{anchor}"'
        parts.append(f'<text class="tick" {place}>{share * 100:.0f} %</text>')
    return _picture(name, title, description, height + 16, parts)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return (
        f'<text class="label" x="{x:g}" y="{y:g}" '
        f'text-anchor="middle"{more}>{for_html(text)}</text>'
    )


def _picture(name: str, title: str, description: str, height: float, parts: list[str]) -> str:
    drawn = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-text">\n'
        f'<title id="{name}-title">{for_html(title)}</title>\n'
        f'<desc id="{name}-text">{for_html(description)}</desc>\n'
        f"{drawn}\n</svg>"
    )
