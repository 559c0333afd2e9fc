"""Record and replay: everything that can be seen of a run.

A run is recorded on some data. On neighbouring data it is run again with the same random numbers,
and each of its releases is replaced by the recorded one. Everything that can be seen of both, but
for the time they took, must then be the same, byte by byte: calls of the random streams, charges,
releases (noise, sensitivity, shapes), progress, output, warnings, errors, files, weights. What the
sums were before the noise may differ by the sensitivity. That is what composition asks for: given
what was released so far, the next release is the same mechanism on both.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from privlearn import metrics
from privlearn.auditing import installation
from privlearn.core import streams as streams_module
from privlearn.core.accounting.filters import PrivacyFilter
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.mechanisms import release as release_module
from privlearn.methods.boosting import rounds
from privlearn.methods.dpmac import dpmac
from privlearn.methods.pate import answers
from privlearn.methods.statistics import classifiers, draft, features, regression
from privlearn.methods.tuning import tune
from privlearn.runs.given import ABSENT
from privlearn.training import fitted_temperature, validation
from privlearn.training import run as dpsgd
from privlearn.transforms import pca, select

#: All modules that release. Imported before a run is recorded: their calls of `release` are.
RELEASING = (
    answers,
    classifiers,
    draft,
    dpmac,
    dpsgd,
    features,
    fitted_temperature,
    installation,
    metrics,
    pca,
    regression,
    rounds,
    select,
    tune,
    validation,
)
if find_spec("flwr") is not None:
    from privlearn.flower import federated

    RELEASING += (federated,)

#: More rows than any data here have: with the same key, row i draws the same numbers whoever else
#: is there.
_MOST_ROWS = 64
#: What differs between two runs on the same data: how long they took.
_TIMES = re.compile(r'"seconds": [\d.e-]+|seconds +[\d.]+|\d:\d\d:\d\d|-:--:--')


@dataclass
class Transcript:
    """What can be seen of a run (`seen`, in order), what it released, and, unseen, its sums before
    the noise.
    """

    seen: list[Any] = field(default_factory=list)
    released: list[list[Tensor]] = field(default_factory=list)
    sums: list[list[Tensor]] = field(default_factory=list)
    sensitivities: list[float] = field(default_factory=list)


class Stream:
    """A random stream that records what is asked of it. With `rows`, how many rows ask for numbers
    stays secret.
    """

    def __init__(self, name: str, stream: Any, seen: list[Any], rows: bool = False) -> None:
        self._name, self._stream, self._seen, self._rows = name, stream, seen, rows

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._rows and name in ("random", "integers"):
                self._seen.append((self._name, name))
                if name == "random":
                    return found(_MOST_ROWS)[: args[0]]
                return found(*args, **{**kwargs, "size": _MOST_ROWS})[: kwargs["size"]]
            # Sums before their noise are compared by `require_alike`: what is seen of them is their
            # shapes.
            noted = tree_map_only(
                torch.Tensor, lambda values: (tuple(values.shape), values.dtype), (args, kwargs)
            )
            self._seen.append((self._name, name, *noted))
            return found(*args, **kwargs)

        return call


def transcript(
    run: Callable[[streams_module.Streams, Path], Any], *, replay: Transcript | None = None
) -> Transcript:
    """Run `run` on watched streams, in an empty folder, with the releases of `replay` if it is
    given.
    """
    record = Transcript()
    seen = record.seen
    streams = _watched(streams_module.Streams.new(3), seen)
    torch.manual_seed(11)
    random.seed(11)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(contextlib.chdir(folder))
        texts = [stack.enter_context(kind(io.StringIO())) for kind in (_out, _err)]
        warned = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(_logged(seen))
        stack.enter_context(_charges(seen))
        stack.enter_context(_releases(record, replay))
        stack.enter_context(_parts(seen))
        real = streams_module.NoiseStream.is_one
        watched = lambda stream: isinstance(stream, Stream) or real(stream)  # noqa: E731
        stack.enter_context(mock.patch.object(streams_module.NoiseStream, "is_one", watched))
        try:
            run(streams, folder)
        except Exception as error:
            seen.append(("error", type(error).__name__, str(error)))
        found = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
    seen += [("text", _TIMES.sub("", text.getvalue().replace(name, ""))) for text in texts]
    # But for the one of a look at rows before anything is spent, which only their curator sees: it
    # is outside the guarantee.
    seen += [
        ("warning", str(warning.message)) for warning in warned if str(warning.message) != ABSENT
    ]
    seen += [("file", path, content) for path, content in sorted(found.items())]
    seen.append(("generators", torch.get_rng_state().tolist()[:32], random.random()))
    return record


_out, _err = contextlib.redirect_stdout, contextlib.redirect_stderr


def _watched(real: streams_module.Streams, seen: list[Any]) -> streams_module.Streams:
    """The streams, recording what is asked of them."""
    return streams_module.Streams(
        Stream("sampling", real.sampling, seen, rows=True),  # type: ignore[arg-type]
        Stream("noise", real.noise, seen),  # type: ignore[arg-type]
        Stream("initialisation", real.initialisation, seen),  # type: ignore[arg-type]
        Stream("views", real.views, seen),  # type: ignore[arg-type]
        seeded=True,
    )


@contextlib.contextmanager
def _parts(seen: list[Any]) -> Iterator[None]:
    """Streams that are made of others, for one of several runs, are watched, too."""
    real = streams_module.Streams.part
    with mock.patch.object(streams_module.Streams, "part", lambda self: _watched(real(self), seen)):
        yield


@contextlib.contextmanager
def _logged(seen: list[Any]) -> Iterator[None]:
    class Handler(logging.Handler):
        def emit(self, line: logging.LogRecord) -> None:
            seen.append(("log", line.name, line.getMessage()))

    handler, root = Handler(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextlib.contextmanager
def _charges(seen: list[Any]) -> Iterator[None]:
    def watched(real: Callable[..., None]) -> Callable[..., None]:
        def charge(self: Any, event: Any, adjacency: Adjacency) -> None:
            seen.append(("charge", event, adjacency))
            real(self, event, adjacency)

        return charge

    with contextlib.ExitStack() as stack:
        for kind in (Ledger, PrivacyFilter):
            stack.enter_context(mock.patch.object(kind, "charge", watched(kind.charge)))
        yield


@contextlib.contextmanager
def _releases(record: Transcript, replay: Transcript | None) -> Iterator[None]:
    real = release_module.release

    def release(
        *parts: Any, noise_multiplier: float, ledger: Any, stream: Any, **split: Any
    ) -> Any:
        values = [value for part in parts for value in part.values]
        record.sums.append([value.clone() for value in values])
        record.sensitivities.append(math.hypot(*(part.sensitivity for part in parts)))
        shapes = [(tuple(value.shape), value.dtype) for value in values]
        record.seen.append(
            ("release", noise_multiplier, [part.sensitivity for part in parts], shapes)
        )
        found = real(
            *parts, noise_multiplier=noise_multiplier, ledger=ledger, stream=stream, **split
        )
        number = len(record.released)
        record.released.append([value.clone() for value in values])
        record.seen.append("released")
        if replay is not None:
            if number >= len(replay.released):
                raise AssertionError("there are more releases than on the neighbouring data")
            for value, recorded in zip(values, replay.released[number], strict=True):
                value.copy_(recorded)
        return found

    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("privlearn") and vars(module).get("release") is real:
                stack.enter_context(mock.patch.object(module, "release", release))
        yield


def require_alike(one: Transcript, other: Transcript, what: Any, rounding: float = 1e-9) -> None:
    """Everything seen is the same, and sums differ by at most the sensitivity (and `rounding` of
    their length).
    """
    for number, (a, b) in enumerate(zip(one.seen, other.seen, strict=False)):
        assert a == b, f"{what}: {_difference(a, b)} tell neighbouring data apart (item {number})"
    assert len(one.seen) == len(other.seen), (
        f"{what}: {len(one.seen)} and {len(other.seen)} things were seen"
    )
    for a, b, sensitivity in zip(one.sums, other.sums, one.sensitivities, strict=True):
        moved = math.sqrt(
            sum(float((p.double() - q.double()).square().sum()) for p, q in zip(a, b, strict=True))
        )
        length = math.sqrt(sum(float(p.double().square().sum()) for p in a))
        assert moved <= sensitivity * (1 + 1e-9) + rounding * (1 + length), (
            f"{what}: a sum moved by {moved}"
        )


def _difference(one: Any, other: Any) -> str:
    """Where two items begin to differ."""
    a, b = repr(one), repr(other)
    start = next(
        (place for place, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), 0
    )
    place = max(0, start - 60)
    return f"{a[:40]} ... {a[place : start + 100]} and {b[place : start + 100]}"
