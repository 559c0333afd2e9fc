"""`privlearn budget --sampling best`: the same plan under every sampler, and with correlated
noise.
"""

from __future__ import annotations

from typing import Any

from privlearn.cli import methods, screen
from privlearn.cli.options import DPSGD
from privlearn.cli.request import Request
from privlearn.core import solving
from privlearn.core.accounting.guarantee import hollow
from privlearn.core.plan import Plan
from privlearn.errors import BadInput, PrivlearnError
from privlearn.training import rules
from privlearn.training.best_sampling import BEST, choices
from privlearn.training.choices import Facts


def compare(request: Request) -> None:
    """Print what batches of this size cost, or the noise that they need, by sampler; the best one
    first.

    With a target they are ordered by the noise that the weights of SGD add up at the same
    guarantee, and else by epsilon. Samplers that the plan does not go with are listed with the
    reason.

    Raises:
        BadInput: another method than DP-SGD, a target that is met by something else than the noise,
            or no sampler that the plan goes with.
    """
    target = request.epsilon is not None or request.rho is not None
    if request.method != DPSGD or request.tune is not None:
        raise BadInput(
            f"--sampling {BEST} compares samplers for dpsgd: leave out --method and --tune"
        )
    if target and (request.noise_multiplier is not None or request.solve not in (None, "noise")):
        raise BadInput(
            f"--sampling {BEST} compares the noise that meets a target, or what given noise costs: "
            "leave out --noise-multiplier and --solve, or the target"
        )
    if request.plot:
        raise BadInput(
            f"--plot draws one plan, and --sampling {BEST} compares several: name the sampler to "
            "draw it"
        )
    rows, refused = [], {}
    for sampler, mechanism in choices(request.mechanism, correlated=target):
        variant = request.replaced(sampling=sampler, mechanism=mechanism)
        try:
            plan = rules.settle(methods.training_request(variant), Facts(request.examples)).plan
            rows.append(_row(plan, request))
        except PrivlearnError as error:
            refused[sampler if mechanism == "independent" else f"{sampler}, {mechanism}"] = str(
                error
            )
    if not rows:
        raise BadInput(f"no sampler goes with this plan: {next(iter(refused.values()))}")
    rows.sort(key=lambda row: row["noise_in_weights" if target else "epsilon"])
    screen.warn(*hollow(request.epsilon, request.delta, request.examples))
    answer = {
        "best": rows[0]["sampling"],
        "samplers": rows,
        "refused": refused,
        "train": _choose(rows, request),
    }
    if request.json:
        screen.print_json(answer)
    else:
        _show(answer, target)


def _choose(rows: list[dict[str, Any]], request: Request) -> dict[str, Any] | None:
    """The row that `train --sampling best` takes: the best for the neighbours of Poisson batches,
    or those given.
    """
    usual = request.adjacency or next(
        (row["adjacency"] for row in rows if row["sampling"] == "poisson"), None
    )
    return next((row for row in rows if row["adjacency"] == usual), None)


def _row(plan: Plan, request: Request) -> dict[str, Any]:
    best = min(
        plan.guarantees(request.delta),
        key=lambda guarantee: (guarantee.kind != "bound", guarantee.epsilon),
    )
    return {
        "sampling": plan.sampling.kind,
        "mechanism": "independent" if plan.correlation is None else plan.correlation.kind,
        **({} if plan.correlation is None else vars(plan.correlation)),
        "adjacency": plan.neighbours.value,
        "noise_multiplier": plan.noise_multipliers()[0],
        "noise_in_weights": solving.noise_in_weights(plan, request.examples),
        "epsilon": best.epsilon,
        "delta": request.delta,
        "epochs": plan.epochs,
        "steps": plan.epochs * plan.sampling.steps(request.examples),
    }


def _show(answer: dict[str, Any], target: bool) -> None:
    out, first = screen.answers, answer["samplers"][0]
    table = screen.Table(room=1)
    for name in ("sampling", "mechanism", "neighbours"):
        table.add_column(name, no_wrap=True)
    for name in ("noise", "in weights" if target else "epsilon", "steps"):
        table.add_column(name, justify="right")
    for row in answer["samplers"]:
        named = _number(row)
        share = row["noise_in_weights"] / first["noise_in_weights"]
        figure = f"{share:.3f} x" if target else f"{row['epsilon']:.4g}"
        noise = f"{row['noise_multiplier']:.4g}"
        table.add_row(
            row["sampling"],
            row["mechanism"] + named,
            row["adjacency"],
            noise,
            figure,
            str(row["steps"]),
        )
    out.print(table)
    said = (
        "in weights: the noise that the steps of SGD add up, relative to the first row's"
        if target
        else f"epsilon at delta {first['delta']:g}"
    )
    out.print(
        f"\nnoise: its multiplier; {said}. Guarantees for other neighbours are other guarantees."
    )
    if target and (taken := answer["train"]):
        what = f"{taken['sampling']} batches with {taken['mechanism']}{_number(taken)} noise"
        out.print(
            f"train --examples N --sampling {BEST} takes {what}: the first row for "
            f"{taken['adjacency']} neighbours."
        )
    for name, why in answer["refused"].items():
        out.print(screen.plain(f"not {name}: {why}"))


def _number(row: dict[str, Any]) -> str:
    """The number of bands or buffers of a mechanism that has some."""
    return next((f":{name}={row[name]}" for name in ("bands", "buffers") if name in row), "")
