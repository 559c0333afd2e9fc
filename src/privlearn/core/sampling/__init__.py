"""A sampler draws its own batches and says itself what a release on them amounts to.

There is no second place where a sampling rate is written down, so what is charged is what was
drawn.
"""

from __future__ import annotations

import math
from dataclasses import replace

from privlearn._checks import count, one_of
from privlearn._public import kinds
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.samples import EpochCharge as EpochCharge
from privlearn.core.samples import Indices as Indices
from privlearn.core.samples import Sample as Sample
from privlearn.core.samples import require_covered
from privlearn.core.sampling.fixed_size import FixedOrder as FixedOrder
from privlearn.core.sampling.fixed_size import FullBatch as FullBatch
from privlearn.core.sampling.fixed_size import Shuffle as Shuffle
from privlearn.core.sampling.partitions import CyclicPartition as CyclicPartition
from privlearn.core.sampling.partitions import Partition as Partition
from privlearn.core.sampling.partitions import assign as assign
from privlearn.core.sampling.poisson import CyclicPoisson as CyclicPoisson
from privlearn.core.sampling.poisson import Poisson as Poisson
from privlearn.core.sampling.poisson import TruncatedPoisson as TruncatedPoisson
from privlearn.core.sampling.sampler import Sampler as Sampler
from privlearn.errors import BadInput


def require_priced(name: Sampler | str, adjacency: Adjacency) -> None:
    """Raise `UnsupportedEvent` if the sampler, or the one called so, has no price for such
    neighbours.
    """
    sampler = name if isinstance(name, Sampler) else kinds(Sampler).get(name.partition(":")[0])
    if sampler is not None:
        require_covered(f"{sampler.kind} batches", adjacency, sampler.adjacencies)


def named(name: Sampler | str, batch_size: int, examples: int) -> Sampler:
    """The sampler called `name` with batches of about `batch_size` out of `examples` rows.

    `truncated-poisson:maximum=700` says how many rows of a batch are kept at most. A sampler is
    taken as it is.

    Raises:
        BadInput: an unknown name or number, or a batch larger than the data.
    """
    if isinstance(name, Sampler):
        return name
    count("the batch size", batch_size)
    if batch_size > examples:
        raise BadInput(
            (
                f"the batch size is {batch_size}, more than the {examples} examples: choose at "
                f"most {examples}"
            ),
            batch_size=batch_size,
            examples=examples,
        )
    known: dict[str, type[Sampler]] = kinds(Sampler)
    from privlearn._short_specs import parse_spec  # only where a text is given

    kind, numbers = parse_spec("sampling", name)
    sampler = known[one_of("sampling", kind, known)].of_size(batch_size, examples)
    if not numbers:
        return sampler
    maximum = numbers.get("maximum", math.nan)
    if not isinstance(sampler, TruncatedPoisson) or len(numbers) > 1 or not maximum.is_integer():
        raise BadInput(
            f"sampling {name!r} cannot be read: expected a name, or truncated-poisson:maximum=ROWS"
        )
    return replace(sampler, maximum=int(maximum))
