"""Runs of jax-privacy: JSON, as `describe` makes it of its configurations `DpParams` and
`BandMFExecutionPlanConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from privlearn._storage import loads
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.declared.peer_library import PeerLibrary, number_of, part_of, whole_number_of
from privlearn.declared.readers import dp_accounting
from privlearn.declared.recorded_run import RecordedRun, RecordedSteps, merge_steps
from privlearn.errors import BadInput

_WHERE = "jax-privacy, as privlearn.declared.readers.jax_privacy.describe makes it"
#: Fields of `DpParams` that decide its price.
_DECISIVE = (
    "noise_multipliers",
    "num_samples",
    "delta",
    "batch_size",
    "batch_size_scale_schedule",
    "examples_per_user",
    "cycle_length",
    "truncated_batch_size",
)


def describe(config: Any, num_updates: int | None = None, **figures: Any) -> dict[str, Any]:
    """A configuration of jax-privacy as plain values for `json.dump`.

    Args:
        config: a `DpParams`, or a `BandMFExecutionPlanConfig`, whose noise is calibrated now if it
            has a target.
        num_updates: steps of the run, for `DpParams`.
        figures: what the run states, such as `epsilon`.
    """
    if hasattr(config, "plan"):
        described = dp_accounting.describe(config.plan.dp_event, config.accountant)
        figures = {name: getattr(config, name) for name in ("delta",) if getattr(config, name)}
        examples = {} if config.num_examples is None else {"examples": config.num_examples}
        return {
            "class_name": "BandMFExecutionPlanConfig",
            **described,
            "iterations": config.iterations,
            "bands": len(config.strategy),
            **figures,
            **examples,
            **figures,
        }
    values = {name: getattr(config, name) for name in _DECISIVE}
    values["batch_sizes"] = _plain(config.batch_sizes)
    return {
        "class_name": "DpParams",
        **{name: _plain(value) for name, value in values.items()},
        "sampling_method": config.sampling_method.name,
        "num_updates": num_updates,
        **figures,
    }


def _plain(value: Any) -> Any:
    """Numbers of jax and numpy, in lists or alone, as Python's."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def read(content: bytes) -> RecordedRun:
    """The run whose configuration `describe` wrote.

    Raises:
        BadInput: no such file, or a configuration whose events are not priced here.
    """
    try:
        whole = loads(content)
    except ValueError as error:
        raise BadInput(f"the file is not readable JSON: {error}. Write it by json.dump") from error
    kind = part_of(whole, "class_name", str, _WHERE)
    if kind == "BandMFExecutionPlanConfig":
        run = dp_accounting.read(content)
        bands = whole_number_of(whole.get("bands"), "bands")
        iterations = whole_number_of(whole.get("iterations"), "iterations")
        return replace(run, library="jax-privacy", cycle=bands, iterations=iterations)
    if kind != "DpParams":
        raise BadInput(
            f"the file describes a {kind[:60]}: expected DpParams or BandMFExecutionPlanConfig. "
            "Give the events of another plan, plan.dp_event, as a run of dp-accounting"
        )
    return _read_parameters(whole)


def _read_parameters(whole: dict[str, Any]) -> RecordedRun:
    """The run of a `DpParams`, as `DpsgdTrainingAccountant` prices it."""
    for name in ("examples_per_user", "truncated_batch_size"):
        if whole.get(name) not in (None, 1):
            raise BadInput(
                f"{name} is {str(whole[name])[:20]} in the configuration: such runs are not read. "
                f"Expected no {name}"
            )
    updates = whole_number_of(whole.get("num_updates"), "num_updates")
    examples = whole_number_of(whole.get("num_samples"), "num_samples")
    cycle = whole_number_of(whole.get("cycle_length") or 1, "cycle_length")
    if not 1 <= cycle <= examples:
        raise BadInput(f"cycle_length is {cycle} of {examples} samples: expected 1 to num_samples")
    poisson = {"POISSON": True, "FIXED_BATCH_SIZE": False}.get(
        part_of(whole, "sampling_method", str, _WHERE)
    )
    if poisson is None:
        raise BadInput("sampling_method is unknown: expected POISSON or FIXED_BATCH_SIZE")
    steps = [
        RecordedSteps(
            -(-count // cycle),
            "poisson" if poisson else "without-replacement",
            number_of(noise, "a noise multiplier"),
            min(1.0, number_of(size, "a batch size") / (examples // cycle)),
        )
        for count, noise, size in _segments(whole, updates)
    ]
    sizes = {size for _, _, size in _segments(whole, updates)}
    return RecordedRun(
        library="jax-privacy",
        accountant="DpsgdTrainingAccountant",
        neighbours=Adjacency.ADD_REMOVE if poisson else Adjacency.REPLACE_ONE,
        steps=merge_steps(steps),
        cycle=cycle,
        iterations=updates,
        examples=examples,
        batch_size=whole_number_of(min(sizes), "batch_size") if len(sizes) == 1 else None,
        delta=number_of(whole.get("delta"), "delta"),
        epsilon=number_of(whole["epsilon"], "epsilon") if "epsilon" in whole else None,
    )


def _segments(whole: dict[str, Any], updates: int) -> Iterator[tuple[int, Any, Any]]:
    """Number of steps, noise multiplier and batch size of each part of the run."""
    noises = _by_start(whole.get("noise_multipliers"), "noise_multipliers")
    sizes = _by_start(whole.get("batch_sizes", whole.get("batch_size")), "batch_sizes")
    starts = sorted({start for start in (*noises, *sizes) if start < updates})
    for place, start in enumerate(starts):
        end = starts[place + 1] if place + 1 < len(starts) else updates
        noise = noises[max(at for at in noises if at <= start)]
        size = sizes[max(at for at in sizes if at <= start)]
        yield end - start, noise, size


def _by_start(value: Any, name: str) -> dict[int, Any]:
    """A number, or pairs of a step and the number from there on, by step."""
    pairs = value if isinstance(value, list) else [[0, value]]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadInput(f"{name} in the file is not a number or a list of pairs: expected [[0, x]]")
    starts = {whole_number_of(start, f"a step of {name}"): number for start, number in pairs}
    if min(starts, default=-1) != 0:
        raise BadInput(f"{name} in the file does not begin at step 0: expected [[0, x], ...]")
    return starts


def compute_epsilon(run: RecordedRun, delta: float) -> tuple[float, str] | None:
    """What dp-accounting, which jax-privacy calls, says of the same events.

    For batches of a fixed size `DpsgdTrainingAccountant` takes Poisson samples at half the noise.
    """
    if run.accountant == "DpsgdTrainingAccountant":
        steps = [
            replace(part, sampling="poisson", noise_multiplier=part.noise_multiplier / 2)
            if part.sampling == "without-replacement"
            else part
            for part in run.steps
        ]
        run = replace(
            run, steps=tuple(steps), neighbours=Adjacency.ADD_REMOVE, accountant="PLDAccountant"
        )
    return dp_accounting.compute_epsilon(run, delta)


LIBRARY = PeerLibrary(read, compute_epsilon)
