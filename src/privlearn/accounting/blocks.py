"""Disjoint blocks as one example meets them: one block's events, and never another's.

Let examples be assigned to blocks independently of each other and of what they hold. Given the assignment, an example that
lies in block j takes part in block j's mechanism alone: what happens on other blocks before it is the same for neighbours,
and what happens there afterwards is post-processing. So the run is block j's mechanism composed with whatever is done
outside of the blocks, and the run as a whole is a mixture of those over j. A hockey-stick divergence is jointly convex:
that of the mixture is at most the largest of its parts, and epsilon is at most the largest epsilon of theirs, by whichever
method that was found. (Renyi divergences are quasi-convex, so for them the same holds order by order.)
"""

from __future__ import annotations

from privlearn.accounting.events import Composed, Event, Parallel, Repeated, tally
from privlearn.errors import UnsupportedEvent

#: Mechanisms in all alternatives together; each takes some milliseconds.
_MOST_KINDS = 1000


def alternatives(event: Event) -> list[Event]:
    """What one example may be confronted with: `event`, with one block's events in place of each `Parallel`.

    Raises:
        UnsupportedEvent: there are too many to price each by itself.
    """
    seen: dict[frozenset[tuple[Event, int]], dict[Event, int]] = {}
    todo, kinds = [tally(event)], 0
    while todo:
        counts = todo.pop()
        key = frozenset(counts.items())
        if key in seen:
            continue
        seen[key], kinds = counts, kinds + len(counts)
        if kinds > _MOST_KINDS:
            raise UnsupportedEvent("so many different blocks are priced in Renyi DP only", event=event)
        split = next((leaf for leaf in counts if isinstance(leaf, Parallel)), None)
        if split is not None:
            blocks = {frozenset(tally(block).items()): block for block in split.events}.values()
            # Each time anew an example falls into one of them; where all are alike, all times are the same.
            times = 1 if len(blocks) > 1 else counts[split]
            left = {leaf: n - times * (leaf == split) for leaf, n in counts.items()}
            todo += [tally(Composed((_tree(left), Repeated(block, times)))) for block in blocks]
    return [_tree(counts) for counts in seen.values() if not any(isinstance(leaf, Parallel) for leaf in counts)]


def _tree(counts: dict[Event, int]) -> Event:
    return Composed(tuple(Repeated(leaf, times) for leaf, times in counts.items()))
