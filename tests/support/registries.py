"""New kinds that are known only as long as a block runs, and examples of all kinds that are registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from privlearn import _public
from privlearn.accounting import events
from privlearn.clipping.operations import RULES
from privlearn.transforms import base


@contextmanager
def forgotten() -> Iterator[None]:
    """A block after which nothing is known that was registered in it."""
    base.kinds()  # those that are there are entered when they are first asked for
    with ExitStack() as held:
        for table in (_public._KINDS, events._KINDS, events._NAMES, events._FIELDS, RULES):
            held.enter_context(mock.patch.dict(table))
        yield
