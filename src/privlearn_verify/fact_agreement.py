"""Facts of a run that have to agree with its plan."""

from __future__ import annotations

import math
from typing import Any

from privlearn_verify.claimed_figures import check_fit
from privlearn_verify.event_trees import flatten
from privlearn_verify.plan_events import (
    compose,
    count_batches,
    is_selecting,
    make_epoch,
    make_gaussian,
    repeat,
)
from privlearn_verify.verdicts import Unknown, demand


def list_public_features(facts: Any) -> list[Any]:
    """Return the public features of the facts as a list of objects."""
    features = facts.get("public_features", [])
    features = features if isinstance(features, list) else [features]
    demand(
        all(isinstance(x, dict) and "spec" in x for x in features), "public features state no spec"
    )
    return features


def write_spec(transform: Any) -> str | None:
    """Return how facts call a public transform; None for one that they leave out."""
    kind = transform["kind"]
    if kind in ("external", "precomputed"):
        return ("precomputed by " if kind == "precomputed" else "") + transform["name"]
    if kind == "packaged":
        size = f",size={transform['size']}" if transform["size"] else ""
        return f"package:{transform['encoder']}{size}"
    if kind not in ("norm", "scatter", "scatter-random"):
        return transform.get("spec")
    optional = ("kept", "encoded")  # left out where they are 0
    names = [x for x in transform if x != "kind" and (transform[x] or x not in optional)]
    return f"{kind}:" + ",".join(f"{name}={transform[name]}" for name in names)


def check_facts(plan: Any, facts: Any) -> None:
    """Check the facts that have to agree with the plan."""
    if "candidates" in plan:
        check_choice_facts(plan, facts)
        return
    selections = [plan] if is_selecting(plan) else []
    selections += [x for x in plan.get("front", []) if x["kind"] == "select"]
    listed = facts.get("chosen", [])
    demand(len(listed) == len(selections), "other choices of features than the plan's")
    for choice, selection in zip(listed, selections, strict=False):
        indices = choice.get("indices", [])
        different = len(set(indices)) == len(indices) == min(selection["keep"], 10_000)
        demand(different, "a choice of features has other indices")
    specs = [spec for spec in map(write_spec, plan.get("front", [])) if spec is not None]
    listed = [x["spec"] for x in list_public_features(facts)]
    demand(len(listed) == len(specs), "public features are not the plan's")
    demand(listed == specs, "the words for public features", Unknown)
    if plan["kind"] == "gradients":
        check_gradient_facts(plan, facts)
    if plan["kind"] == "pate":
        check_teacher_facts(plan, facts)


def check_choice_facts(plan: Any, facts: Any) -> None:
    """Check the facts of a choice among candidates, and of the chosen one's run."""
    tuning = facts.get("tuning", {})
    place = tuning.get("chosen", -1)
    demand(0 <= place < len(plan["candidates"]), "the chosen one is no candidate")
    chosen = plan["candidates"][place]
    blocks, inner = plan["kind"] == "blocks", chosen["plan"]
    if blocks:
        demand("examples" in tuning, "the number of all examples is missing")
        declared = inner.get("examples")
        demand(declared in (None, tuning["examples"]), "another number of all examples")
        if plan["retrain"]:
            inner = chosen["again"] or inner
        elif inner["kind"] == "gradients":
            inner = inner | {"examples": None}
    check_facts(inner, {name: x for name, x in facts.items() if name != "tuning"})


def check_gradient_facts(plan: Any, facts: Any) -> None:
    """Check the facts of training by gradients."""
    missing = {"examples", "steps"} - set(facts)
    demand(not missing, f"the facts lack {sorted(missing)}")
    demand(plan["examples"] in (None, facts["examples"]), "another number of examples")
    most = plan["sampling"].get("maximum") and plan["sampling"]["examples"]
    demand(not most or facts["examples"] <= most, "more examples than the sampler is for")
    federated = bool(plan.get("persons"))
    demand(("federation" in facts) == federated, "clients of a federation, or none")
    early, reacting = "left_early" in facts, plan["schedule"]["kind"] == "validation"
    fitted = plan["temperature"] is not None and not early
    demand(("fitted_temperature" in facts) == fitted, "a temperature is missing, or too much")
    demand(facts.get("weights_of_step", 0) <= facts["steps"], "the weights are of no step")
    if reacting:
        check_validation(plan, facts)
    else:
        odd = {"validation", "noise_multipliers"} & set(facts)
        demand(not odd, f"the facts have {sorted(odd)}")
    batches = count_batches(plan["sampling"])
    if batches is not None:
        most = batches * (facts["epochs"] if reacting else plan["epochs"])
        right = facts["steps"] <= most if early else facts["steps"] == most
        demand(right, "another number of steps")


def check_validation(plan: Any, facts: Any) -> None:
    """Check that the noise follows from the accuracies, and that all epochs fit into the filter."""
    x, validation = plan["schedule"], facts.get("validation")
    noise, epochs = facts.get("noise_multipliers", []), facts.get("epochs", -1)
    complete = validation is not None and len(noise) == epochs <= plan["epochs"]
    demand(complete, "no facts of validations")
    demand(validation["noise"] == x["noise"], "another noise of accuracies")
    demand(validation["public"] == (x["noise"] is None), "public accuracies have no noise")
    accuracies = validation["accuracies"]
    demand(len(accuracies) <= epochs, "more accuracies than epochs")
    expected, before = float(x["start"]), 0.0
    for i, level in enumerate(noise):
        if i and i % x["period"] == 0:
            demand(len(accuracies) >= i, "accuracies are missing")
            mean = math.fsum(accuracies[i - x["m"] : i]) / x["m"]
            if not mean - before > x["threshold"]:
                expected = max(expected * x["k"], 1e-6)
            before = mean
        demand(math.isclose(level, expected, rel_tol=1e-9), "noise that does not follow")
    charged = [make_epoch(plan["sampling"], s) for s in noise]
    if x["noise"] is not None:
        charged.append(repeat(make_gaussian(x["noise"]), epochs))
    check_fit(plan["filter"], flatten(compose(charged)))


def check_teacher_facts(plan: Any, facts: Any) -> None:
    """Check the facts of a run of PATE."""
    missing = {"noise_std", "answered", "teacher"} - set(facts)
    demand(not missing, f"the facts lack {sorted(missing)}")
    x, teacher = plan["aggregate"], facts["teacher"]
    s, kind = plan["noise_multiplier"], x["kind"]
    sensitivity = math.sqrt(2)
    if kind in ("ball", "box"):
        sensitivity = 2 * x["radius"] if kind == "ball" else math.sqrt(x["dimensions"])
        sensitivity /= plan["teachers"]
    same = math.isclose(facts["noise_std"], s * sensitivity, rel_tol=1e-9)
    demand(same, "another noise_std than the plan's")
    demand(facts["answered"] <= x.get("answers", plan["queries"]), "too many answers")
    test_noise = facts.get("test_noise_multiplier")
    demand((test_noise is not None) == (kind == "confident-votes"), "a test's noise, or none")
    if test_noise is not None:
        share = (1 - x["share"]) / x["share"]
        tested = s * math.sqrt(plan["queries"] / x["answers"] * share)
        demand(math.isclose(test_noise, tested, rel_tol=1e-9), "another test_noise_multiplier")
    if plan["adjacency"] == "replace_one" and teacher.get("source") == "trained":
        demand(teacher.get("records") != "by site", "records by site under replace-one")
        by_row = teacher.get("assigned_by") == "row" or plan["persons"]
        demand(by_row, "records that are not assigned by row under replace-one")
