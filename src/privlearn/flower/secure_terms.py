"""The terms of a secure sum that nodes and server know beforehand: with whom each node exchanges
masks, and how many of them have to stay.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from privlearn._checks import between, count
from privlearn.errors import BadInput

#: Room for a float such as 2 / 3, times a number of nodes, being above a whole number.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Terms:
    """A group is a node with those that it exchanges masks with; its threshold is how many of a
    group have to stay.

    Attributes:
        threshold: a fraction of a group above one half (float), or a number of nodes (int).
        neighbours: with how many other nodes each exchanges masks, even; None for all.
    """

    threshold: float | int
    neighbours: int | None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            BadInput: one is out of range.
        """
        if isinstance(self.threshold, float):
            share = between("threshold", self.threshold, 0, 1)
            if share <= 0.5:
                raise BadInput(
                    f"threshold is {share:g}: expected a fraction of the sites above 0.5, so that "
                    "no two groups of sites are disjoint. Use 2 / 3"
                )
        else:
            count("threshold", self.threshold, least=2)
        if self.neighbours is not None and count("neighbours", self.neighbours, least=2) % 2:
            raise BadInput(
                f"neighbours is {self.neighbours}: expected an even number, half on each side. "
                f"Use {self.neighbours + 1}"
            )

    def group_size(self, nodes: int) -> int:
        """How many nodes a group has, the node itself included."""
        return nodes if self.neighbours is None else min(nodes, self.neighbours + 1)

    def least(self, nodes: int) -> int:
        """How many nodes of each group have to stay, of so many nodes in all.

        Raises:
            BadInput: no such number is above one half of a group and within it.
        """
        group = self.group_size(nodes)
        if isinstance(self.threshold, float):
            least = max(2, math.ceil(self.threshold * group - _ROUNDING))
        else:
            least = self.threshold
        if not least <= group < 2 * least:
            raise BadInput(
                f"{least} of {group} sites have to stay in a secure sum: expected at least 2 "
                "sites, and a threshold above one half of them. Wait for more sites, or use "
                "threshold=2 / 3",
                threshold=least,
                group=group,
            )
        return least

    def draw_groups(self, nodes: Sequence[int]) -> dict[int, set[int]]:
        """The group of each node, itself included.

        With fewer neighbours than nodes these are the nearest on a circle in random order (Bell et
        al., "Secure single-server aggregation with (poly)logarithmic overhead", CCS 2020).
        """
        size = self.group_size(len(nodes))
        if size == len(nodes):
            return {node: set(nodes) for node in nodes}
        circle = list(nodes)
        secrets.SystemRandom().shuffle(circle)
        half = size // 2
        return {
            node: {circle[(at + step) % len(circle)] for step in range(-half, half + 1)}
            for at, node in enumerate(circle)
        }


def leave_out_lonely(
    groups: dict[int, set[int]], nodes: Collection[int], least: int
) -> dict[int, set[int]]:
    """The groups of those that have at least so many in their group, counted without the others."""
    staying = set(nodes)
    while True:
        alone = {node for node in staying if len(groups[node] & staying) < least}
        if not alone:
            return {node: groups[node] & staying for node in sorted(staying)}
        staying -= alone


def are_connected(groups: dict[int, set[int]], nodes: Collection[int]) -> bool:
    """Whether masks tie all nodes together: otherwise each part would have a sum of its own."""
    reached: set[int] = set()
    ahead = {min(nodes)} if nodes else set()
    while ahead:
        reached |= ahead
        ahead = set().union(*(groups[node] for node in ahead)) & set(nodes) - reached
    return len(reached) == len(nodes)
