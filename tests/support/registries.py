"""New kinds that are known only as long as a block runs, and examples of all kinds that are
registered.

An example is made from what every kind of its registry has: `of_size` of samplers, `tried` of
correlations, and of others a number for each field without a default. So a new kind takes part in
every law over `examples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, fields
from typing import Any, cast
from unittest import mock

from privlearn import _public
from privlearn.core import transform as base
from privlearn.core.accounting import events
from privlearn.core.clipping.clips import Clip
from privlearn.core.clipping.operations import RULES
from privlearn.core.mechanisms import matrices
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.plan import AbstractPlan
from privlearn.core.sampling import Sampler
from privlearn.core.schedules import NoiseSchedule, PerEpoch, Schedule, spec
from privlearn.methods import METHODS
from privlearn.methods.statistics import metric_figures
from privlearn.models.heads import HEADS

#: Where kinds are registered that nothing above imports.
HOMES = (matrices, METHODS, metric_figures)
_public.enter_expected()  # of which METHODS tell

Kinds = Callable[[], Mapping[str, type[Any]]]

#: What can be registered, each with all that is there.
REGISTRIES: dict[str, Kinds] = {
    "clips": lambda: _public.kinds(Clip),
    "samplers": lambda: _public.kinds(Sampler),
    "schedules": lambda: _public.kinds(NoiseSchedule),
    "correlations": lambda: _public.kinds(Correlation),
    "transforms": base.kinds,
    "mechanisms": lambda: {
        name: cls for name, cls in events._KINDS.items() if issubclass(cls, events.Mechanism)
    },
    "plans": lambda: _public.kinds(AbstractPlan),
    "heads": lambda: HEADS,
}


def by_fields(cls: type[Any]) -> Any:
    """An instance with a small number for each field that has no default."""
    values: dict[str, Any] = {}
    for part in fields(cls):
        if part.default is MISSING and part.default_factory is MISSING:
            kind = str(part.type)
            values[part.name] = (3.0, 1.5) if "tuple" in kind else 2 if kind == "int" else 0.5
    return cls(**values)


def by_size(cls: type[Sampler]) -> Sampler:
    """A sampler of batches of 20 out of 60 rows."""
    return cls.of_size(20, 60)


def by_tries(cls: type[Correlation]) -> Correlation:
    """A correlation as it is tried first where its bands are left open."""
    return cast(Any, cls)(cls.tried[0])


#: How an example is made, where every kind can be made alike.
EXAMPLES: dict[str, Callable[[Any], Any]] = {
    "clips": by_fields,
    "samplers": by_size,
    "schedules": by_fields,
    "correlations": by_tries,
}


def examples(registry: str) -> list[Any]:
    """One of each kind that is registered."""
    return [EXAMPLES[registry](cls) for cls in REGISTRIES[registry]().values()]


def completed(
    registry: str,
    listed: Iterable[Any],
    of: type[Any] = object,
    like: Callable[[Any], Any] = lambda example: example,
) -> list[Any]:
    """What a test lists, with numbers that it needs, and after that an example of every kind that
    it does not name.

    Args:
        registry: of which kinds.
        listed: instances, texts such as `exp:k=0.1`, or tuples that begin with one.
        of: only kinds of this class are added.
        like: what is listed in place of an example; of texts its name, or its spec if it is a
            schedule.
    """
    here = list(listed)
    first = [own[0] if isinstance(own, tuple) else own for own in here]
    texts = any(isinstance(own, str) for own in first)
    names = {
        own.partition(":")[0] if isinstance(own, str) else getattr(own, "kind", None)
        for own in first
    }
    for kind, cls in REGISTRIES[registry]().items():
        # which no text names
        if kind in names or not issubclass(cls, of) or (texts and cls is PerEpoch):
            continue
        example = EXAMPLES[registry](cls)
        text = spec(example) if isinstance(example, Schedule) else kind
        here.append(like(text if texts else example))
    return here


@contextmanager
def forgotten() -> Iterator[None]:
    """A block after which nothing is known that was registered in it."""
    base.kinds()  # those that are there are entered when they are first asked for
    _public.enter_expected()
    with ExitStack() as held:
        for table in (_public._KINDS, events._KINDS, events._NAMES, events._FIELDS, RULES):
            held.enter_context(mock.patch.dict(table))
        yield
