"""`BatchMemoryManager`: a batch is handed out in parts, so that memory holds few rows at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, final

from privlearn._checks import checked, count
from privlearn.opacus.script_run import PrivateLoader, PrivateOptimizer


@final
class PhysicalLoader:
    """The batches of a run in parts of a few rows, physical batches. What it yields is private.

    `optimizer.step()` takes the run's step at the last part of a batch, and else none.

    Attributes:
        dataset: the rows.
        batch_size: the most rows of a part.
    """

    def __init__(self, loader: PrivateLoader, most: int) -> None:
        self._loader, self.batch_size = loader, most
        self.dataset, self.sample_rate = loader.dataset, loader.sample_rate

    def __iter__(self) -> Iterator[Any]:
        return self._loader.script.epoch(self.batch_size)

    def __len__(self) -> int:
        """How many parts are expected in an epoch: how many there are is private."""
        script = self._loader.script
        return math.ceil(len(self._loader) * script.divisor / self.batch_size)


@final
class BatchMemoryManager:
    """A block whose loader hands out physical batches of a bounded size, in which the model is
    called and gradients are computed.

    Guarantee: that of the run. Each example of a batch is clipped once, and noise is added once, in
    the `optimizer.step()` at the last physical batch. The step is that of the whole batch.

    Args:
        data_loader: the private one.
        max_physical_batch_size: examples at once.
        optimizer: the private one.
    """

    @checked
    def __init__(
        self,
        *,
        data_loader: PrivateLoader,
        max_physical_batch_size: int,
        optimizer: PrivateOptimizer,
    ) -> None:
        self._loader, self._size = (
            data_loader,
            count("max_physical_batch_size", max_physical_batch_size),
        )

    def __enter__(self) -> PhysicalLoader:
        self._loader.script.compute_at_once(self._size)
        return PhysicalLoader(self._loader, self._size)

    def __exit__(self, *error: object) -> None:
        """Gradients stay computed for so many at once: the result is the same."""
