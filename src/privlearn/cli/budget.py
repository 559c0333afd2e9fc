"""`privlearn budget`: what a plan costs, or the noise that meets a target."""

from __future__ import annotations

import argparse

from privlearn.cli import screen
from privlearn.cli.planning import figures, make_plan
from privlearn.errors import BadInput


def run(options: argparse.Namespace) -> int:
    """Print the guarantee of the plan by every sound accountant."""
    if options.examples is None:
        raise BadInput("budget needs the number of examples: give --examples N, for example --examples 60000")
    plan = make_plan(options, options.examples)
    answer = figures(plan, options.delta, options.examples)
    if options.json:
        screen.print_json(answer)
        return 0
    out = screen.answers
    kind = plan.sampling.describe()
    numbers = ", ".join(f"{key} {value:.6g}" for key, value in kind.items() if key != "kind")
    out.print(f"[bold]{answer['epochs']}[/] epochs of {plan.sampling.steps(options.examples)} {kind['kind']} batches"
              f"{' (' + numbers + ')' if numbers else ''}, noise multiplier [bold]{screen.noise_text(plan)}[/]")  # fmt: skip
    for earlier in plan.before:
        out.print(f"before it a PCA with noise multiplier {earlier.noise_multiplier:g}")
    rho = "" if answer["rho"] is None else f", rho {answer['rho']:.6g}"
    out.print(f"delta {answer['delta']:g}, {answer['adjacency']} neighbours{rho}\n")
    out.print(screen.guarantee_table(answer))
    out.print(f"\n{screen.meaning(answer)}")
    return 0
