"""`privlearn budget`: what a plan costs, or the noise that meets a target; without data and without
torch.

Pictures of plans, by matplotlib.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from privlearn._checks import count
from privlearn.cli import in_options, methods, screen, tune
from privlearn.cli.commands import sampler_comparison
from privlearn.cli.ledger_room import describe_room, open_ledger
from privlearn.cli.options import DPMAC, DPSGD, FEATURES, PATE
from privlearn.cli.request import Request
from privlearn.cli.screen import earliest_end
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.guarantee import hollow
from privlearn.core.plan import Plan
from privlearn.core.schedules import Constant, ReactingSchedule, spec
from privlearn.errors import BadInput
from privlearn.methods.dpmac.layers import decide_layers
from privlearn.methods.pate.plan import ConfidentVotes, PatePlan, Votes
from privlearn.methods.pate.votes import settle_votes
from privlearn.methods.statistics.plan import ClassifierPlan, LeastSquaresPlan, RowsPlan
from privlearn.training import rules
from privlearn.training.best_sampling import BEST
from privlearn.training.choices import Facts
from privlearn.transforms.select import SelectFeatures

_NAMES = {"pca": "a PCA", "moments": "means and variances of the features"}


def run(request: Request) -> int:
    """Print the guarantee of the plan by every sound accountant, or serve the page that plans in
    the browser; 1 if a ledger was named that has no room for it.
    """
    if request.serve:
        from privlearn.cli import planner

        return planner.serve(request)
    methods.require_combinable(request)
    pages = {DPSGD: _descent, DPMAC: _descent, PATE: _votes, FEATURES: _features}
    answer = pages.get(request.method, _method)(request)
    return 0 if answer.get("room", {"fits": True})["fits"] else 1


def _fit(plan: Planned, request: Request) -> dict[str, Any]:
    """Whether a ledger has room for the plan, if one is named; the plan is approved if that is
    asked for.
    """
    if request.ledger is None:
        if request.approve:
            raise BadInput("--approve needs the ledger that the run is to be charged to: --ledger")
        return {}
    ledger = open_ledger(request, "approved beforehand")
    if not request.approve:
        return describe_room(ledger, plan, request.delta, request.command)
    user = request.reserved_for
    ledger.approve(plan, reserved_for=user, expires=request.expires)
    answer = describe_room(ledger, plan, request.delta, request.command)
    until = "" if request.expires is None else f" until {request.expires:%Y-%m-%d %H:%M} UTC"
    waits = f"the run is approved, and waits for {user or 'anyone'} to run it{until}"
    room = answer["room"]
    # beside the one that was approved
    room |= {"fits": True, "approved": True, "text": f"{waits}; beside it {room['text']}"}
    return answer


def _require_no_ledger(request: Request) -> None:
    if request.ledger is not None:
        raise BadInput(
            "--ledger is compared with one plan of one run, and not with --sampling best, --tune "
            "or --maps: leave out one of the two"
        )


# Any method


def _method(request: Request) -> dict[str, Any]:
    facts = Facts(request.examples or 0, classes=request.classes, numbers=request.numbers or 0)
    plan = methods.method_plan(request, facts)
    prices = screen.priced(plan, request.delta)
    answer = {**prices, "plan": plan.to_json(), "unspent": screen.unspent(plan, prices)}
    answer |= _fit(plan, request)
    screen.warn(*hollow(request.epsilon, request.delta, request.examples))
    if request.json:
        screen.print_json(answer)
        return answer
    for label, text in plan.rows():
        screen.answers.print(screen.plain(f"{label}: {text}"))
    screen.guarantee_lines(answer)
    screen.answers.print(f"\n{screen.meaning(answer)}")
    return answer


# DP-SGD


def descent_plan(request: Request) -> Plan:
    """The plan of DP-SGD for a declared number of examples, without releases before training.

    Raises:
        BadInput: options that do not go together, or no number of examples.
    """
    methods.require_combinable(request)
    _require_examples(request)
    return rules.settle(methods.training_request(request), Facts(request.examples)).plan


def _require_examples(request: Request) -> None:
    if request.examples is None:
        raise BadInput(
            "budget needs the number of examples: give --examples N, for example --examples 60000"
        )


def _descent(request: Request) -> dict[str, Any]:
    _require_examples(request)
    if request.sampling == BEST or request.tune is not None:
        _require_no_ledger(request)
    if request.sampling == BEST:
        sampler_comparison.compare(request)
        return {}
    if request.tune is not None:
        tune.require_combinable(request)
        tune.show_cost(request)
        return {}
    releases = request.select is not None or request.normalise not in (None, "none")
    facts = methods.declared_facts(request) if releases else Facts(request.examples)
    if request.method == DPMAC:
        plan = decide_layers(methods.named_options(request), facts).plan
    else:
        plan = rules.settle(methods.training_request(request), facts).plan
    answer = screen.figures(plan, request.delta, request.examples) | _fit(plan, request)
    if request.plot:
        draw_plan(plan, request.delta, request.plot)
    screen.warn(*screen.warnings(plan, request.delta, request.examples))
    if request.json:
        screen.print_json(answer)
    else:
        _show_descent(answer, plan, request)
    return answer


def _show_descent(answer: dict[str, Any], plan: Plan, request: Request) -> None:
    out = screen.answers
    kind = vars(plan.sampling)
    numbers = ", ".join(f"{key.replace('_', ' ')} {value:.6g}" for key, value in kind.items())
    steps = plan.sampling.steps(request.examples)
    out.print(
        f"{screen.at_most(plan)}{screen.BOLD}{answer['epochs']}{screen.END} epochs of {steps} "
        f"{plan.sampling.kind} batches{' (' + numbers + ')' if numbers else ''}, noise multiplier "
        f"{screen.BOLD}{rules.noise_text(plan)}{screen.END}"
    )
    if plan.correlation is not None:
        out.print(_mechanism_text(plan, answer["plan"]["mechanism"]))
    if not isinstance(plan.schedule, Constant):
        out.print(f"schedule {spec(plan.schedule)}")
    if plan.filter:
        out.print(
            "The noise follows accuracies, so it is not known beforehand: the run ends after "
            f"{screen.earliest_end(plan)} epochs if it falls at every check, and has "
            f"{answer['epochs']} if it never does. It stays within "
            f"{screen.limit_text(plan.filter)}, and all of that is claimed."
        )
        if exactness := screen.noisy_validations(plan, request.examples):
            out.print(f"Validations are charged: {exactness}.")
        else:
            out.print("It looks at public rows: train needs them (--public PATH).")
    for earlier in plan.releases:
        what = (
            f"a selection of {earlier.keep} features"
            if isinstance(earlier, SelectFeatures)
            else _NAMES[earlier.kind]
        )
        out.print(f"before it {what} with noise multiplier {earlier.noise_multiplier:.6g}")
    screen.guarantee_lines(answer)
    out.print(f"\n{screen.meaning(answer)}")
    if answer["unspent"] is not None:
        out.print(f"Of the target {max(0.0, answer['unspent']):.2%} is left unspent.")
    if request.plot:
        out.print(f"The plot is in {screen.plain(request.plot)}.")


def _mechanism_text(plan: Plan, figures: dict[str, Any]) -> str:
    """What correlated noise wins."""
    assert plan.correlation is not None
    if "relative_noise" not in figures:
        return f"noise {plan.correlation.text()}"
    share = figures["relative_noise"]
    better = "" if share < 1 else ": independent noise is better here"
    return (
        f"noise {plan.correlation.text()}: {share:.2f} times that of independent noise in the "
        f"weights, at the same epsilon and on Poisson batches of this size{better}"
    )


# A classifier from noisy statistics


def _features(request: Request) -> dict[str, Any]:
    plan, why = methods.features_plan(request, methods.declared_facts(request))
    noise = None if isinstance(plan, RowsPlan) else plan.noise_of_sums
    prices = screen.priced(plan, request.delta)
    answer = prices | {
        "plan": plan.to_json(),
        **why,
        "class_sum_noise": noise,
        "class_mean_noise": None
        if request.examples is None or noise is None
        else noise * plan.classes / request.examples,
        "unspent": screen.unspent(plan, prices),
    }
    answer |= _fit(plan, request)
    screen.warn(*hollow(request.epsilon, request.delta, request.examples))
    if isinstance(plan, RowsPlan) and request.examples is not None:
        for warning in plan.noise_warnings(request.examples):
            screen.warn(in_options(warning, request.command))
    if request.json:
        screen.print_json(answer)
    else:
        _show_features(answer, plan, request)
    return answer


def _show_features(answer: dict[str, Any], plan: ClassifierPlan, request: Request) -> None:
    out = screen.answers
    features, how, norm = "all features", "from noisy statistics of", plan.row_norm
    if isinstance(plan, LeastSquaresPlan):
        how = "by least squares from noisy sums of products of"
    else:
        how = "from noisy rows with randomised labels, of" if isinstance(plan, RowsPlan) else how
        way = "Gumbel noise" if plan.selection.by_gumbel else "noisy class means"
        features = (
            f"{screen.BOLD}{plan.keep}{screen.END} of {plan.features} features, chosen by {way}"
            if plan.selects
            else features
        )
        norm = plan.row_norm if plan.in_one_release else plan.rest_norm
    out.print(
        f"a classifier of {plan.classes} classes {how} {features}, "
        f"noise multiplier {screen.BOLD}{plan.noise:.4g}{screen.END} for all together"
    )
    noise = answer["class_sum_noise"]
    summed = (
        ""
        if noise is None
        else f", and the sum of a class's rows has noise of {noise:.4g} in each number"
    )
    out.print(f"rows are clipped to norm {norm:.4g}{summed}")
    if answer["class_mean_noise"] is not None:
        out.print(
            f"with {request.examples / plan.classes:.4g} rows in each class its mean has "
            f"{answer['class_mean_noise']:.4g}"
        )
    screen.guarantee_lines(answer)
    out.print(f"\n{screen.meaning(answer)}")


# The votes of teachers


def _votes(request: Request) -> dict[str, Any]:
    if request.maps:
        _require_no_ledger(request)
        methods.map_pages().show_cost(request)
        return {}
    methods.require_no_codes(request)
    classes = (
        methods.CLASSES if request.classes is None else count("--classes", request.classes, least=2)
    )
    plan = settle_votes(methods.named_options(request), Facts(0, classes=classes))
    answer = methods.votes_figures(plan, request.delta) | _fit(plan, request)
    screen.warn(*methods.votes_warnings(plan, request.examples))
    if request.json:
        screen.print_json(answer)
    else:
        _show_votes(answer, plan)
    return answer


def _show_votes(answer: dict[str, Any], plan: PatePlan) -> None:
    out, aggregate = screen.answers, plan.aggregate
    assert isinstance(aggregate, Votes | ConfidentVotes)
    out.print(
        f"{screen.BOLD}{plan.queries}{screen.END} queries to "
        f"{screen.BOLD}{plan.teachers}{screen.END} teachers, who vote for one of "
        f"{aggregate.classes} classes"
    )
    if isinstance(aggregate, ConfidentVotes):
        out.print(
            f"At most {aggregate.answers} are answered, where the largest count, with noise of "
            f"{plan.test_noise:.4g} votes, reaches {aggregate.threshold:g}."
        )
    screen.guarantee_lines(answer)
    out.print(
        f"\nnoise of {screen.BOLD}{plan.noise_std:.4g}{screen.END} votes on each count, "
        f"{plan.noise_std / plan.teachers:.0%} of the "
        "teachers. It follows from queries and epsilon alone: twice the teachers, half the share.\n"
    )
    table = screen.Table()
    confident = ["answered"] if isinstance(aggregate, ConfidentVotes) else []
    for name in ("teachers that agree", *confident, "wins: others agree", "wins: others spread"):
        table.add_column(name, justify="right")
    for row in answer["votes"]:
        answered = [f"{row['answered']:.2f}"] if confident else []
        table.add_row(
            f"{row['agree']:.0%}",
            *answered,
            f"{row['wins_against_one']:.2f}",
            f"{row['wins_against_all']:.2f}",
        )
    out.print(table)
    out.print(f"\n{screen.meaning(answer)}")


def draw_plan(plan: Plan, delta: float, path: str) -> None:
    """Draw the noise of each epoch, and the epsilon spent by then, one line for each accountant.

    Raises:
        BadInput: the file cannot be written, or matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise BadInput('plots are drawn by matplotlib: pip install "privlearn[plots]"') from error

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (noise, spent) = plt.subplots(1, 2, figsize=(10, 3.8), dpi=130, layout="constrained")
    epochs = range(1, plan.epochs + 1)
    if isinstance(plan.schedule, ReactingSchedule):
        noise.step(
            epochs,
            [plan.schedule.start] * plan.epochs,
            where="mid",
            color="tab:blue",
            linestyle="--",
            label="never lowered",
        )
        fastest = [plan.schedule.after([0.0] * epoch) for epoch in range(earliest_end(plan))]
        noise.step(
            range(1, len(fastest) + 1),
            fastest,
            where="mid",
            color="tab:orange",
            linestyle="--",
            label="lowered at every check",
        )
        noise.legend(frameon=False)
        title = "Noise: between these, as validations have it"
    else:
        noise.step(epochs, plan.noise_multipliers(), where="mid", color="tab:blue")
        title = "Noise"
    noise.set(xlabel="epoch", ylabel="noise multiplier", title=title)
    noise.set_ylim(bottom=0)
    for method, points in spending(plan, delta).items():
        spent.plot(
            *zip(*points, strict=True), label=method, marker="." if len(points) < 3 else None
        )
    spent.set(
        xlabel="epoch",
        ylabel=f"epsilon at delta {delta:g}",
        title="Claimed as a whole" if plan.filter else "Spent by the end of the epoch",
    )
    spent.set_ylim(bottom=0)
    if plan.budget is not None and plan.budget.epsilon is not None:
        spent.axhline(plan.budget.epsilon, color="grey", linestyle=":", label="target")
    spent.legend(frameon=False, loc="best")
    for axes in (noise, spent):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    try:
        figure.savefig(Path(path))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"the plot cannot be written to {path}: {error}. Give a file that ends in .png"
        ) from error
    finally:
        plt.close(figure)


def spending(plan: Plan, delta: float, most: int = 24) -> dict[str, list[tuple[int, float]]]:
    """For each accountant (epoch, epsilon) at up to `most` epochs; under a filter its limit, from
    the start.
    """
    stops = sorted({1, *(max(1, round(plan.epochs * i / most)) for i in range(1, most + 1))})
    lines: dict[str, list[tuple[int, float]]] = {}
    for epochs in stops:
        for guarantee in replace(plan, epochs=epochs).guarantees(delta):
            lines.setdefault(guarantee.method, []).append((epochs, guarantee.epsilon))
    return lines
