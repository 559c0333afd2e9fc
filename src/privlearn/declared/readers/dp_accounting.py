"""Runs that are events of Google's dp-accounting: JSON, as `describe` makes it of a `DpEvent`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from privlearn._storage import loads
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.declared.peer_library import PeerLibrary, number_of, part_of, whole_number_of
from privlearn.declared.recorded_run import (
    MOST_STEPS,
    RecordedRun,
    RecordedSteps,
    merge_steps,
)
from privlearn.errors import BadInput

#: dp-accounting's names of neighbours.
NEIGHBOURS = {
    "ADD_OR_REMOVE_ONE": Adjacency.ADD_REMOVE,
    "REPLACE_ONE": Adjacency.REPLACE_ONE,
    "REPLACE_SPECIAL": Adjacency.ZERO_OUT,
}
_WHERE = "dp-accounting, as privlearn.declared.readers.dp_accounting.describe makes it"
_DEEPEST = 20


def describe(event: Any, accountant: Any = None, **figures: Any) -> dict[str, Any]:
    """A `DpEvent` of dp-accounting as plain values for `json.dump`.

    Args:
        event: of dp-accounting.
        accountant: the accountant that priced it, which says the neighbours; None: add or remove
            one, as accountants of dp-accounting take it by default.
        figures: what the run states: `epsilon`, `delta`, `examples` and `batch_size`.
    """
    relation = "ADD_OR_REMOVE_ONE" if accountant is None else accountant.neighboring_relation.name
    return {
        "neighboring_relation": relation,
        "accountant": "" if accountant is None else type(accountant).__name__,
        **figures,
        "event": _fields_of_event(event.to_named_tuple()),
    }


def _fields_of_event(value: Any) -> Any:
    """The fields of a named tuple of dp-accounting, by name."""
    if hasattr(value, "class_name"):
        parts = {name: _fields_of_event(getattr(value, name)) for name in value._fields}
        del parts["module_name"]
        return parts
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_fields_of_event(part) for part in value]
    return value


def read(content: bytes) -> RecordedRun:
    """The run whose events `describe` wrote.

    Raises:
        BadInput: no such file, or an event that is no step of DP-SGD.
    """
    try:
        whole = loads(content)
    except ValueError as error:
        raise BadInput(f"the file is not readable JSON: {error}. Write it by json.dump") from error
    event = part_of(whole, "event", dict, _WHERE)
    return RecordedRun(
        library="dp-accounting",
        accountant=str(whole.get("accountant", ""))[:40],
        neighbours=_read_neighbours(whole),
        steps=merge_steps(read_steps(event)),
        **read_figures(whole),
    )


def _read_neighbours(whole: dict[str, Any]) -> Adjacency:
    relation = part_of(whole, "neighboring_relation", str, _WHERE)
    if relation not in NEIGHBOURS:
        raise BadInput(
            f"neighboring_relation is {relation[:40]!r}: expected one of {', '.join(NEIGHBOURS)}"
        )
    return NEIGHBOURS[relation]


def read_figures(whole: dict[str, Any]) -> dict[str, Any]:
    """The figures beside the events, where there are any."""
    figures: dict[str, Any] = {
        name: number_of(whole[name], name) for name in ("epsilon", "delta") if name in whole
    }
    return figures | {
        name: whole_number_of(whole[name], name)
        for name in ("examples", "batch_size")
        if name in whole
    }


def read_steps(event: Any, depth: int = 0) -> tuple[RecordedSteps, ...]:
    """The steps that a described event is made of, in their order.

    Raises:
        BadInput: an event that is no step of DP-SGD, or too many different ones.
    """
    if depth > _DEEPEST:
        raise BadInput(f"the events are nested too deeply: expected at most {_DEEPEST} levels")
    kind = part_of(event, "class_name", str, _WHERE)
    match kind:
        case "SelfComposedDpEvent":
            repeated = whole_number_of(event.get("count"), "count")
            if repeated < 0:
                raise BadInput(f"count in the file is {repeated}: expected 0 or more")
            return _repeat(read_steps(event.get("event"), depth + 1), repeated)
        case "ComposedDpEvent":
            parts = part_of(event, "events", list, _WHERE)
            return merge_steps(step for part in parts for step in read_steps(part, depth + 1))
        case "NoOpDpEvent":
            return ()
        case "GaussianDpEvent":
            return (RecordedSteps(1, "none", _noise_of(event), 1.0),)
        case "PoissonSampledDpEvent":
            rate = number_of(event.get("sampling_probability"), "sampling_probability")
            return (RecordedSteps(1, "poisson", _noise_of(event.get("event")), rate),)
        case "SampledWithoutReplacementDpEvent":
            size = whole_number_of(event.get("source_dataset_size"), "source_dataset_size")
            drawn = whole_number_of(event.get("sample_size"), "sample_size")
            if not 0 < drawn <= size:
                raise BadInput(f"sample_size in the file is {drawn}: expected 1 to {size}")
            noise = _noise_of(event.get("event"))
            return (RecordedSteps(1, "without-replacement", noise, drawn / size),)
        case _:
            raise BadInput(
                f"the events hold a {kind[:60]}: only steps of DP-SGD are priced here, which are "
                "Gaussian releases, Poisson samples of these, and samples without replacement"
            )


def _repeat(steps: tuple[RecordedSteps, ...], times: int) -> tuple[RecordedSteps, ...]:
    """The steps so many times in a row."""
    if len(steps) <= 1:
        return tuple(replace(part, count=part.count * times) for part in steps if times)
    if len(steps) * times > MOST_STEPS:
        raise BadInput(
            f"{len(steps)} different events are repeated {times} times: at most {MOST_STEPS} "
            "different steps are read. Give each kind of step one SelfComposedDpEvent"
        )
    return merge_steps(steps * times)


def _noise_of(event: Any) -> float:
    """The noise multiplier of a Gaussian release."""
    kind = part_of(event, "class_name", str, _WHERE)
    if kind != "GaussianDpEvent":
        raise BadInput(
            f"a sample is drawn for a {kind[:60]}: expected a GaussianDpEvent for each sample"
        )
    return number_of(event.get("noise_multiplier"), "noise_multiplier")


def compute_epsilon(run: RecordedRun, delta: float) -> tuple[float, str] | None:
    """What an accountant of dp-accounting says of the same events: the run's own, or the one by
    privacy loss distributions, or else by Renyi DP.
    """
    try:
        import dp_accounting as peer
    except ImportError:
        return None
    names = {adjacency: name for name, adjacency in NEIGHBOURS.items()}
    relation = peer.NeighboringRelation[names[run.neighbours]]
    accountants = {
        "PLDAccountant": peer.pld.PLDAccountant,
        "RdpAccountant": lambda relation: peer.rdp.RdpAccountant(neighboring_relation=relation),
    }
    for name in [run.accountant] if run.accountant in accountants else accountants:
        accountant = accountants[name](relation)
        try:
            for part in run.steps:
                accountant.compose(_peer_event(peer, part, run.examples), part.count)
            epsilon = float(accountant.get_epsilon(delta))
        except (peer.UnsupportedEventError, NotImplementedError, ValueError, ArithmeticError):
            continue
        return epsilon, f"computed with dp-accounting {version('dp-accounting')}, {name}"
    return None


def _peer_event(peer: Any, part: RecordedSteps, examples: int | None) -> Any:
    """One step as an event of dp-accounting."""
    gaussian = peer.GaussianDpEvent(part.noise_multiplier)
    if part.sampling == "poisson":
        return peer.PoissonSampledDpEvent(part.sampling_rate, gaussian)
    if part.sampling == "without-replacement":
        of = examples or 10**9  # accountants read the share alone
        drawn = max(1, round(part.sampling_rate * of))
        return peer.dp_event.SampledWithoutReplacementDpEvent(of, drawn, gaussian)
    return gaussian


LIBRARY = PeerLibrary(read, compute_epsilon)
