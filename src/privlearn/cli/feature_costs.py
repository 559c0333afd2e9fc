"""`privlearn budget --method features`: what a classifier from noisy statistics costs, without data or torch."""

from __future__ import annotations

import argparse
from typing import Any

from privlearn.cli import screen
from privlearn.cli.features import advised_plan, declared
from privlearn.cli.planning import delta_warning, guaranteed
from privlearn.statistics.plan import ClassifierPlan, LeastSquaresPlan, RowsPlan


def show_cost(options: argparse.Namespace) -> int:
    """Print the guarantee of the plan by every sound accountant, and how much noise that is."""
    plan, why = advised_plan(options, declared(options))
    noise = None if isinstance(plan, RowsPlan) else plan.noise_of_sums
    answer = guaranteed(plan.guarantees(options.delta)) | {
        "plan": plan.to_json(),
        **why,
        "class_sum_noise": noise,
        "class_mean_noise": None
        if options.examples is None or noise is None
        else noise * plan.classes / options.examples,
        "unspent": None
        if plan.budget is None
        else 1 - plan.budget.spent(plan.event(), plan.neighbours) / plan.budget.limit,
    }
    for warning in () if options.examples is None else delta_warning(options, options.examples):
        screen.asides.print(f"[yellow]warning[/]: {warning}")
    if options.json:
        screen.print_json(answer)
    else:
        _show(answer, plan, options)
    return 0


def _show(answer: dict[str, Any], plan: ClassifierPlan, options: argparse.Namespace) -> None:
    out = screen.answers
    kept, made, norm = "all features", "from noisy statistics of", plan.row_norm
    if isinstance(plan, LeastSquaresPlan):
        made = "by least squares from noisy sums of products of"
    else:
        made = "from noisy rows with randomised labels, of" if isinstance(plan, RowsPlan) else made
        way = "Gumbel noise" if plan.selection.by_gumbel else "noisy class means"
        kept = f"[bold]{plan.keep}[/] of {plan.features} features, chosen by {way}" if plan.selects else kept
        norm = plan.row_norm if plan.in_one_release else plan.rest_norm
    out.print(
        f"a classifier of {plan.classes} classes {made} {kept}, "
        f"noise multiplier [bold]{plan.noise:.4g}[/] for all together"
    )
    noise = answer["class_sum_noise"]
    summed = "" if noise is None else f", and the sum of a class's rows has noise of {noise:.4g} in each number"
    out.print(f"rows are clipped to norm {norm:.4g}{summed}")
    if answer["class_mean_noise"] is not None:
        out.print(
            f"with {options.examples / plan.classes:.4g} rows in each class its mean has {answer['class_mean_noise']:.4g}"
        )
    rho = "" if answer["rho"] is None else f", rho {answer['rho']:.6g}"
    out.print(f"delta {answer['delta']:g}, {answer['adjacency']} neighbours{rho}\n")
    out.print(screen.guarantee_table(answer))
    out.print(f"\n{screen.meaning(answer)}")
