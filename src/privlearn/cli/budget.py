"""`privlearn budget`: what a plan costs, or the noise that meets a target."""

from __future__ import annotations

import argparse
from typing import Any

from privlearn.cli import feature_costs, features, paid, screen, tuning, voting
from privlearn.cli.planning import figures, make_plan, warnings
from privlearn.cli.reacting import earliest_end, noisy_validations
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.schedules import Constant, spec
from privlearn.transforms.base import Transform
from privlearn.transforms.select import SelectFeatures

_NAMES = {"pca": "a PCA", "moments": "means and variances of the features"}


def run(options: argparse.Namespace) -> int:
    """Print the guarantee of the plan by every sound accountant."""
    voting.require_combinable(options)
    features.require_combinable(options)
    if options.method == "features":
        return feature_costs.show_cost(options)
    if options.method == "pate":
        return voting.run(options)
    if options.examples is None:
        raise BadInput("budget needs the number of examples: give --examples N, for example --examples 60000")
    if options.tune is not None:
        return tuning.show_cost(options)
    before: tuple[Transform, ...] = ()
    if options.select is not None or options.normalise not in (None, "none"):
        rows = features.declared(options)
        before = (*paid.normalisation(options, rows), *features.selection(options, rows))
    plan = make_plan(options, options.examples, before)
    answer = figures(plan, options.delta, options.examples)
    if options.plot:
        from privlearn.cli.plots import draw_plan

        draw_plan(plan, options.delta, options.plot)
    for warning in warnings(plan, options, options.examples):
        screen.asides.print(f"[yellow]warning[/]: {warning}")
    if options.json:
        screen.print_json(answer)
        return 0
    _show(answer, plan, options)
    return 0


def _show(answer: dict[str, Any], plan: Plan, options: argparse.Namespace) -> None:
    out = screen.answers
    kind = vars(plan.sampling)
    numbers = ", ".join(f"{key.replace('_', ' ')} {value:.6g}" for key, value in kind.items())
    steps = plan.sampling.steps(options.examples)
    out.print(
        f"{screen.at_most(plan)}[bold]{answer['epochs']}[/] epochs of {steps} {plan.sampling.kind} "
        f"batches{' (' + numbers + ')' if numbers else ''}, "
        f"noise multiplier [bold]{screen.noise_text(plan)}[/]"
    )
    if not isinstance(plan.schedule, Constant):
        out.print(f"schedule {spec(plan.schedule)}")
    if plan.filter:
        out.print(
            f"The noise follows accuracies, so it is not known beforehand: the run ends after {earliest_end(plan)} epochs if "
            f"it falls at every check, and has {answer['epochs']} if it never does. It stays within "
            f"{screen.limit_text(plan.filter)}, and all of that is claimed."
        )
        if told := noisy_validations(plan, options.examples):
            out.print(f"Validations are paid for: {told}.")
        else:
            out.print("It looks at public rows: train needs them (--public PATH).")
    for earlier in plan.releases:
        what = (
            f"a selection of {earlier.keep} features" if isinstance(earlier, SelectFeatures) else _NAMES[earlier.kind]
        )
        out.print(f"before it {what} with noise multiplier {earlier.noise_multiplier:.6g}")
    rho = "" if answer["rho"] is None else f", rho {answer['rho']:.6g}"
    out.print(f"delta {answer['delta']:g}, {answer['adjacency']} neighbours{rho}\n")
    out.print(screen.guarantee_table(answer))
    out.print(f"\n{screen.meaning(answer)}")
    if answer["unspent"] is not None:
        out.print(f"Of the target {max(0.0, answer['unspent']):.2%} is left unspent.")
    if options.plot:
        out.print(f"The plot is in {screen.plain(options.plot)}.")
