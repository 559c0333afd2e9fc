"""The events that follow from a plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privlearn_verify.event_trees import Array, flatten
from privlearn_verify.verdicts import CLOCK, Unknown, demand


def make_gaussian(s: float) -> dict[str, Any]:
    """Return one Gaussian release."""
    return {"kind": "gaussian", "noise_multiplier": float(s)}


def repeat(event: Any, count: int) -> dict[str, Any]:
    """Return an event that is repeated."""
    return {"kind": "repeated", "event": event, "count": count}


def compose(events: list[Any]) -> dict[str, Any]:
    """Return all events, one after the other."""
    return {"kind": "composed", "events": events}


def choose_one(options: list[list[Any]]) -> list[Any]:
    """Return one of some lists of events: itself if all are equal."""
    if len({flatten(compose(option)) for option in options}) == 1:
        return options[0]
    return [{"kind": "one_of", "events": [compose(option) for option in options]}]


def list_selection_events(plan: Any, s: float, everything: bool = False) -> list[Any]:
    """Return the events of a selection of features at noise s."""
    if not is_by_gumbel(plan, everything):
        return [make_gaussian(s)]
    share = plan["split"][0] / sum(plan["split"])
    epsilon = math.sqrt(8 * (1 - share) / (2 * s * s) / plan["keep"])
    selection = repeat({"kind": "selection", "epsilon": epsilon}, plan["keep"])
    return [make_gaussian(s / math.sqrt(share)), selection]


def is_by_gumbel(plan: Any, everything: bool = False) -> bool:
    """Return whether features are selected by Gumbel noise."""
    bound, way = plan["coordinate_bound"], plan["way"]
    if not (everything or plan["keep"] < plan["features"]) or bound is None:
        return False
    small = 1.25 * (bound or 0) * math.sqrt(plan["keep"]) < plan["row_norm"]
    return plan["criterion"] == "distance" and (way == "gumbel" or (way == "auto" and small))


def list_events(plan: Any) -> list[Any]:
    """Return D, the events that a plan fixes."""
    CLOCK.check()
    s, kind = plan.get("noise_multiplier"), plan["kind"]
    match kind:
        case "gradients":
            return list_gradient_events(plan)
        case "pate":
            aggregate = plan["aggregate"]
            if plan.get("site_noise"):
                return list_shared_events(plan, s)
            if aggregate["kind"] != "confident-votes":
                return [repeat(make_gaussian(s), plan["queries"])]
            rho = aggregate["answers"] / (1 - aggregate["share"]) / (2 * s * s)
            return [{"kind": "gaussian_filter", "rho": rho}]
        case "least-squares" | "ridge":
            return [make_gaussian(s)]
        case "selection":
            return list_selection_events(plan, s)
        case "fisher" | "rows":
            return list_class_events(plan)
        case "boosting":
            rounds = plan["passes"] * (len(plan["columns"]) + plan["trees"])
            demand(rounds > 0, "boosting of nothing")
            return [repeat(make_gaussian(s * math.sqrt(rounds)), rounds)]
        case "blocks" | "random-stopping":
            return list_choice_events(plan)
    raise Unknown(f"a plan of kind {kind}")


def list_shared_events(plan: Any, s: float) -> list[Any]:
    """Return the events of a plan whose noise is added by the sites."""
    absent = plan["site_noise"]["absent"]
    demand(0 <= absent < plan["teachers"], "no site is left to add the noise")
    demand(plan["aggregate"]["kind"] != "confident-votes", "noise by sites on tests of counts")
    return [repeat({"kind": "zcdp", "rho": 1 / (2 * s * s)}, plan["queries"])]


def list_class_events(plan: Any) -> list[Any]:
    """Return the events of a plan for class statistics or released rows."""
    s, share, selects = plan["noise_multiplier"], plan["selection_share"], is_selecting(plan)
    rest = 1 - share if selects else 1
    if plan["kind"] == "fisher" and not is_by_gumbel(plan):
        return [make_gaussian(s)]
    events = list_selection_events(plan, s / math.sqrt(share)) if selects else []
    if plan["kind"] == "fisher":
        return [*events, make_gaussian(s / math.sqrt(rest))]
    for_labels = plan["label_share"] if plan["labels"] == "randomised" else 0
    events.append(make_gaussian(s / math.sqrt(rest * (1 - for_labels))))
    if for_labels:
        epsilon = math.sqrt(rest * for_labels) / s
        response = {"kind": "randomised_response", "epsilon": epsilon}
        events.append(response | {"categories": plan["classes"]})
    return events


def is_selecting(plan: Any) -> bool:
    """Return whether a plan selects features."""
    return "keep" in plan and plan["keep"] < plan["features"]


def list_choice_events(plan: Any) -> list[Any]:
    """Return the events of a choice among candidates."""
    candidates = plan["candidates"]
    demand(len(candidates) > 0, "a choice among no candidates")
    trained = [list_events(candidate["plan"]) for candidate in candidates]
    if plan["kind"] == "random-stopping":
        demand(plan["score_noise"] is not None, "random stopping has no noise")
        run = compose([*choose_one(trained), make_gaussian(plan["score_noise"])])
        rest = {"mean": plan["mean"], "shape": plan["shape"]}
        return [{"kind": "repeat_and_select", "event": run} | rest]
    demand(plan["selection_epsilon"] is not None, "blocks have no epsilon of the selection")
    selection = {"kind": "selection", "epsilon": plan["selection_epsilon"]}
    blocks = [compose(events) for events in trained]
    events = [{"kind": "parallel", "events": [*blocks, selection]}]
    if plan["retrain"]:
        events += choose_one([list_events(x["again"] or x["plan"]) for x in candidates])
    return events


def list_gradient_events(plan: Any) -> list[Any]:
    """Return the events of training by gradients."""
    events: list[Any] = []
    for transform in plan["front"]:
        if transform["kind"] in ("pca", "moments"):
            events.append(make_gaussian(transform["noise_multiplier"]))
        elif transform["kind"] == "select":
            events += list_selection_events(transform, transform["noise_multiplier"], True)
    if plan["schedule"]["kind"] == "validation":
        demand(plan["filter"] is not None, "a validation schedule without a filter")
        events.append(plan["filter"])
    else:
        noise, counts = np.unique(find_epoch_noise(plan), return_counts=True)
        demand(len(noise) <= 1000, "more than 1,000 noise levels")
        for s, count in zip(noise, counts, strict=False):
            events.append(repeat(make_epoch(plan["sampling"], s), int(count)))
    learned = plan["clip"].get("learned")
    if learned:
        events.append(make_gaussian(learned["noise_multiplier"]))
    if plan["temperature"]:
        events.append(make_gaussian(plan["temperature"]["noise_multiplier"]))
    return events


def find_epoch_noise(plan: Any) -> Array:
    """Return the noise of each epoch, which follows from the schedule."""
    x, kind = plan["schedule"], plan["schedule"]["kind"]
    start = x["values"][0] if kind == "per-epoch" else x["start"]
    demand(1e-6 <= start <= 1e12, f"the noise starts at {start}")
    i = np.arange(plan["epochs"])
    t = np.minimum(np.maximum(i, x.get("from_epoch", 0)), x.get("to_epoch", math.inf))
    t = t - x.get("from_epoch", 0)
    period = x.get("period")
    steps = np.floor(t / period) if period else t
    match kind:
        case "constant":
            noise = np.full(len(i), float(start))
        case "time":
            noise = start / (1 + x["k"] * steps)
        case "exp":
            noise = start * np.exp(-x["k"] * steps)
        case "step":
            noise = start * float(x["k"]) ** np.floor(t / period)
        case "poly":
            noise = (start - x["end"]) * np.maximum(0, 1 - t / period) ** x["k"] + x["end"]
        case "per-epoch":
            noise = np.array(x["values"], float)[np.minimum(i, len(x["values"]) - 1)]
        case _:
            raise Unknown(f"the schedule {kind}")
    demand(bool(np.all(np.isfinite(noise))), "the noise of an epoch is no number")
    return np.maximum(noise, 1e-6)


def count_batches(sampling: Any) -> int | None:
    """Return the batches of an epoch, where their number does not depend on the examples."""
    if sampling["kind"] in ("shuffle", "fixed"):
        return None
    if sampling["kind"] == "full":
        return 1
    steps = sampling.get("batches") or math.ceil(1 / sampling["sampling_rate"] - 1e-9)
    return steps * sampling.get("cycle", 1)


def make_epoch(sampling: Any, s: float) -> dict[str, Any]:
    """Return the events of one epoch with noise s."""
    kind, release = sampling["kind"], {"event": make_gaussian(s)}
    if kind == "full":
        return release["event"]
    if kind in ("shuffle", "fixed"):
        return {"kind": "fixed_batches"} | release
    if kind in ("partition", "cyclic-partition"):
        return {"kind": "partitioned", "batches": sampling["batches"]} | release
    event = {"kind": "poisson_sampled", "sampling_rate": sampling["sampling_rate"]} | release
    if kind == "truncated-poisson":
        rest = {"examples": sampling["examples"], "maximum": sampling["maximum"]}
        event |= {"kind": "truncated_poisson_sampled"} | rest
    return repeat(event, math.ceil(1 / sampling["sampling_rate"] - 1e-9))
