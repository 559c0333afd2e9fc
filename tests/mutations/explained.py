"""Mutations that no test can notice, each with why: they change no figure, no release and no
refusal.
"""

from __future__ import annotations

_CLOSE = "a tie: both sides give the same value"

EXPLAINED: dict[str, str] = {
    (
        "core/accounting/comparisons.py: theorem_three: need <= rho * (top - 1) ** 2 -> "
        "need < rho * (top - 1) ** 2"
    ): _CLOSE,
    "core/accounting/pld/pairs.py: least_bound: (trial := bound(order * factor)) < best -> "
    "(trial := bound(order * factor)) <= best": _CLOSE,
    "core/accounting/events.py: require_adjacency: leaf.phrase or type(leaf).__name__ -> "
    "leaf.phrase and type(leaf).__name__": "a word of a message",
    "core/mechanisms/noise.py: _on_circles: 2 -> 3": (
        "one more row is allocated, and not handed out"
    ),
    "core/mechanisms/release.py: _factors: whole > 1 + 1e-09 -> whole >= 1 + 1e-09": (
        "noise is scaled up by what squares exceed 1, so that either is sound"
    ),
    "core/sampling/poisson.py: Poisson.steps: 1e-09 -> 1.01e-09": (
        "room for rounding of 1 / q, a millionth of it"
    ),
    (
        "publishing/certificate.py: contradictions: not _among(described, event) -> "
        "_among(described, event)"
    ): ("which of two problems is named; there is one either way"),
    "core/clipping/agreement.py: room: return _WORKING_SET -> return _WORKING_SET + 1": (
        "a byte more of memory for a batch"
    ),
    "core/clipping/per_example.py: worth_forming: "
    "positions ** 2 > 18 * outputs * inputs / (outputs + inputs) and outputs * inputs <= 1 << 22 "
    "-> positions ** 2 > 18 * outputs * inputs / (outputs + inputs) or "
    "outputs * inputs <= 1 << 22": (
        "which of two ways computes the same norm: time and memory alone"
    ),
    "core/clipping/operations/elementwise.py: expand: "
    "wide == 0 and input.shape[0] != 1 or len(shape) < 2 -> "
    "(wide == 0 and input.shape[0] != 1) and len(shape) < 2": (
        "more expansions are computed by the rule, with the same sums: time alone"
    ),
    "core/clipping/sharded/groups.py: Groups.scattered: True -> False (2)": (
        "`zip` of two lists of one length"
    ),
    "methods/dpmac/sums.py: BatchDerivatives.histograms: True -> False (2)": (
        "`zip` of two lists of one length"
    ),
}
