"""`privlearn train`: open, settle, say, run, publish; the same five steps for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from privlearn.cli import dry_run, in_options, methods, pate, screen, tune
from privlearn.cli.checkpoints import KeptCheckpoint, kept_of
from privlearn.cli.jobs import (
    Job,
    Opened,
    data_of,
    descent_request,
    featured,
    loss_of,
    public_rows,
    seed_warning,
    test_metrics,
)
from privlearn.cli.options import DPMAC, DPSGD, FEATURES, PATE
from privlearn.cli.request import Request
from privlearn.cli.threads import limit_threads
from privlearn.cli.tuned import tuned_job
from privlearn.core.accounting.guarantee import Adjacency, hollow, readable
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import Plan
from privlearn.core.streams import Streams
from privlearn.core.transform import shape_after
from privlearn.data import Dataset
from privlearn.methods import METHODS
from privlearn.methods.dpmac.layer_training import train_layers
from privlearn.methods.dpmac.layers import decide_layers
from privlearn.methods.statistics.features import train_classifier
from privlearn.methods.statistics.plan import RowsPlan
from privlearn.models import networks
from privlearn.publishing import certificate
from privlearn.publishing.folder import CERTIFICATE, RELEASED
from privlearn.publishing.publish import publish
from privlearn.runs.given import require_same_examples
from privlearn.runs.result import Result
from privlearn.training import rules
from privlearn.training.best_sampling import BEST
from privlearn.training.rules import Settled
from privlearn.training.train import (
    facts_of,
    fit,
    length_of,
    network_for,
    optimizer_kind,
)
from privlearn.transforms.select import choice_lines


def run(request: Request) -> int:
    """Train and publish; print where, and what it is worth."""
    world = methods.world_of(request)
    request = methods.with_pca(request)
    _require_known(request)
    if request.dry_run:
        with settled_job(request, data_of(request)) as job:
            methods.require_metric(request, job.data)
            _say(job)
            return dry_run.show(request, job)
    checkpoint = pate.kept_of(request) if request.method == PATE else kept_of(request)
    if request.resume and world.once(
        lambda: checkpoint.published(request.out), "what is published"
    ):
        return 0
    opened = Opened.by_the_first(request, checkpoint, world)
    try:
        with settled_job(request, world.in_turn(lambda: data_of(request), "the data")) as job:
            methods.require_metric(request, job.data)
            first = opened
            opened = world.in_turn(lambda: first.approved(job), "the metrics")
            _say(job, *(opened.key.warnings if opened.key else ()))
            if world.size == 1 and not request.resume:
                dry_run.say_time(job)
            result = job.run(opened)
            if world.rank:
                publish(result, opened.out)  # waits for the first process, which publishes
            else:
                _publish(job, opened, result, job.rows(result))
    except BaseException as error:
        checkpoint.interrupted(error)
        raise
    checkpoint.done()
    return 0


def _require_known(request: Request) -> None:
    """Refuse what can be refused before a ledger is begun or features are made, which takes
    long.
    """
    methods.require_combinable(request)
    if request.tune is not None:
        tune.require_combinable(request)
    networks.require_known(request.model)
    if request.method == DPSGD:
        descent_request(request)
        if request.start is not None:
            methods.map_pages().require_startable(request)
    if request.optimizer is not None:
        optimizer_kind(request.optimizer)
    if request.method == PATE:
        pate.require_public(request)


def settled_job(request: Request, data: Dataset) -> AbstractContextManager[Job]:
    """What the method makes of options and data; public features are made while it lasts."""
    if request.tune is not None:
        return tuned_job(request, data)
    jobs = {DPSGD: descent_job, DPMAC: descent_job, PATE: pate.pate_job, FEATURES: features_job}
    return jobs.get(request.method, method_job)(request, data)


def _say(job: Job, *warnings: str) -> None:
    """Print what is going to be done, and what to be warned of."""
    screen.warn(*job.warnings, *warnings)
    if job.headline is not None:
        screen.notes.print(f"plan: {job.headline}")
    for note in job.notes:
        note()


def _publish(job: Job, opened: Opened, result: Result, rows: Mapping[str, str]) -> None:
    """Publish, and print the answer: one JSON object, or a table."""
    data, answer, request = job.data, job.answer, opened.request
    metrics = test_metrics(result, data, opened)
    facts = {"data": data.name, **({"what is known of it": data.note} if data.note else {})}
    publish(
        result,
        opened.out,
        delta=request.delta,
        test_metrics=metrics,
        data=facts,
        model_spec=job.model or result.model_spec,
        classes=data.classes or result.classes,
        sign=opened.key,
    )
    if metrics is not None and metrics.plan is not None:
        answer["paid_metrics"] = {
            "epsilon": metrics.plan.guarantee(request.delta).epsilon,
            **metrics.to_json(),
        }
    if opened.ledger is not None:
        answer["ledger"] = {"file": request.ledger, **_read_claim(opened.out, opened.ledger)}
    answer |= {
        "test_metrics": {} if metrics is None else dict(metrics.figures),
        "test_confusion_matrix": None if metrics is None else metrics.confusion_matrix,
        "test_accuracy": None if metrics is None else metrics.figures.get("accuracy"),
        "test_rows": None if metrics is None else metrics.rows,
        "out": str(opened.out),
        "seconds": time.perf_counter() - opened.started if job.timed else None,
    }
    if request.json:
        screen.print_json(answer)
    else:
        _show(answer, {**screen.metric_rows(metrics, request.metric), **rows})


def _read_claim(folder: Path, ledger: Ledger) -> dict[str, Any]:
    """What the certificate of a run on a shared ledger claims."""
    claim = certificate.parse((folder / CERTIFICATE).read_bytes())["claim"]
    limit = (
        "as its ledger has no limit"
        if ledger.budget is None
        else f"the only one on its ledger so far, which limits all runs together to {ledger.budget}"
    )
    runs = claim["ledger"]["runs"] if "ledger" in claim else f"for this run alone, {limit}"
    return {"epsilon": claim["epsilon"], "method": claim["method"], "runs": runs}


def _show(answer: dict[str, Any], more: Mapping[str, str]) -> None:
    seconds, ledger = answer["seconds"], answer.get("ledger")
    at, how = f"at delta {answer['delta']:g}", f"({answer['adjacency']}, by {answer['method']})"
    guarantee = f"epsilon {readable(answer['epsilon'])}{screen.END} {at} {how}"
    if ledger:  # which other runs share: the certificate is for all of them
        certified = (
            f"{screen.BOLD}epsilon {readable(ledger['epsilon'])}{screen.END} {at}, {ledger['runs']}"
        )
        rows = {"certified": certified, "this run by itself": f"{screen.style('')}{guarantee}"}
    else:
        rows = {"guarantee": f"{screen.BOLD}{guarantee}"}
    rows |= more
    rows["seconds"] = (
        "not printed: they would tell how many runs there were"
        if seconds is None
        else f"{seconds:.1f}"
    )
    rows["published in"] = f"{screen.BOLD}{screen.plain(answer['out'])}{screen.END}"
    table = screen.Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    screen.answers.print(table)
    # The bound on attacks is the run's own: where the ledger's limit is certified, it is not said
    # beside that.
    claim = {**answer, "epsilon": ledger["epsilon"], "attack": None} if ledger else answer
    screen.answers.print(f"\n{screen.meaning(claim)}")
    screen.answers.print(
        f"Anyone can check it, without the data:  privlearn verify {screen.plain(answer['out'])}"
    )


# Any method


@contextmanager
def method_job(request: Request, data: Dataset) -> Iterator[Job]:
    """A run of a method that has no page of its own: what its plan says, and what it trains."""
    train = METHODS[request.method].train
    assert train is not None
    plan = methods.sharing(
        request, methods.method_plan(request, facts_of(data, request.examples)), data
    )
    answer = screen.priced(plan, request.delta) | {"plan": plan.to_json()}
    said = ", ".join(f"{label} {text}" for label, text in plan.rows())

    def run(opened: Opened) -> Result:
        with screen.notes.status("training"):
            trained: Result = train(
                plan,
                data,
                methods.named_options(request),
                ledger=opened.ledger,
                streams=opened.streams(),
            )
        return trained

    yield Job(
        data,
        answer,
        (
            f"{said}, epsilon {answer['epsilon']:.4f} at delta {request.delta:g} "
            f"({answer['adjacency']})"
        ),
        (
            *hollow(request.epsilon, request.delta, methods.public_examples(request, plan, data)),
            *seed_warning(request),
        ),
        None,
        run,
        lambda result: {},
        plan=plan,
    )


# DP-SGD and DP-MAC


@contextmanager
def descent_job(request: Request, data: Dataset) -> Iterator[Job]:
    """A run of DP-SGD or DP-MAC."""
    chosen = (
        methods.training_request(request) if request.method == DPMAC else descent_request(request)
    )
    with featured(request, data, chosen) as (data, front):
        public = None if request.public is None or request.start else public_rows(request, data)
        facts = facts_of(data, request.examples, front)
        mac = request.method == DPMAC
        settled = (
            decide_layers(methods.named_options(request), facts)
            if mac
            else rules.settle(chosen, facts)
        )
        settled = replace(settled, plan=methods.sharing(request, settled.plan, data))
        pages = None if request.start is None else methods.map_pages()
        labelled = None if pages is None else pages.labelled_volumes(request, data)
        initial = None if pages is None else pages.initial_weights(settled, data, labelled)

        def run(opened: Opened) -> Result:
            if pages is None or initial is None:
                return _descend(settled, data, public, answer, opened)
            initialised = replace(settled, initial=initial())
            result = _descend(initialised, data, None, answer, opened)
            begun: Result = pages.stated(result, initialised, data, labelled, answer)
            return begun

        plan, examples = settled.plan, facts.examples
        require_same_examples(plan, data)
        # Where neighbours differ in the number of rows, what is printed follows from the declared
        # one.
        answer = screen.figures(
            plan,
            request.delta,
            examples if plan.neighbours is Adjacency.ADD_REMOVE else data.examples,
        )
        with limit_threads([settled], data):
            yield Job(
                data,
                answer,
                f"{_describe_sampler(request, plan)}{screen.at_most(plan)}{plan.epochs} epochs, "
                f"noise multiplier {rules.noise_text(plan)}, epsilon {readable(answer['epsilon'])} "
                f"at delta {request.delta:g} ({answer['adjacency']})",
                (*screen.warnings(plan, request.delta, examples), *seed_warning(request)),
                request.model,
                run,
                lambda result: (
                    _descent_rows(request, plan, answer, result)
                    | (
                        {}
                        if pages is None
                        else pages.beside(result, data, answer, "trained model's", "volumes")
                    )
                ),
                (lambda: _say_more(request, settled, data, initial),),
                plan=plan,
                settled=None if mac else settled,
                loss=None if mac else loss_of(data, settled.request),
            )


def _describe_sampler(request: Request, plan: Plan) -> str:
    """What `--sampling best` chose."""
    if request.sampling != BEST:
        return ""
    noise = "independent noise" if plan.correlation is None else f"noise {plan.correlation.text()}"
    return f"{plan.sampling.kind} batches with {noise}, "


def _say_more(
    request: Request, settled: Settled, data: Dataset, initial: Callable[[], dict[str, Any]] | None
) -> None:
    """What was chosen, where that is asked for; how exact validations are; and when the budget
    ends.
    """
    plan, examples = settled.plan, settled.facts.examples
    if request.explain:
        kind = optimizer_kind(settled.optimizer).__name__
        settled = settled if initial is None else replace(settled, initial=initial())
        shape = shape_after(plan.front, np.shape(data.x)[1:])
        made_up = network_for(settled, data, Streams.new(0), shape)
        screen.explanation(settled.settings(kind, length_of(made_up.parameters())))
    if exactness := screen.noisy_validations(plan, examples):
        screen.notes.print(exactness)
    if request.epochs is not None and plan.epochs < request.epochs:
        screen.notes.print(
            f"the budget ends after {plan.epochs} of {request.epochs} epochs at this noise"
        )


def _descend(
    settled: Settled, data: Dataset, public: Dataset | None, answer: dict[str, Any], opened: Opened
) -> Result:
    """Train, with a progress bar; what a run that reacted made of its plan goes into the answer."""
    checkpoint = cast(KeptCheckpoint, opened.kept).checkpoint
    with screen.progress_bar("training") as progress:
        if opened.request.method == DPMAC:
            result = train_layers(
                settled.plan,
                data,
                methods.named_options(opened.request),
                ledger=opened.ledger,
                streams=opened.streams(),
                callbacks=screen.Steps(progress),
                checkpoint=checkpoint,
            )
        else:
            result = fit(
                settled,
                data,
                opened.streams(),
                loss=loss_of(data, settled.request),
                ledger=opened.ledger,
                callbacks=screen.Steps(progress),
                checkpoint=checkpoint,
                validation=public,
            )
    if settled.plan.filter:
        screen.notes.print(screen.how_it_ended(settled.plan, result.facts))
        answer |= {
            name: result.facts[name]
            for name in ("epochs", "steps", "noise_multipliers", "validation")
        }
    return result


def _descent_rows(
    request: Request, plan: Plan, answer: dict[str, Any], result: Result
) -> dict[str, str]:
    chosen, listed = _list_features(result, f"{request.select} chosen")
    answer |= chosen
    noise = rules.noise_text(plan, answer["noise_multipliers"])
    return {
        "training": f"{answer['epochs']} epochs, {answer['steps']} steps, noise multiplier {noise}",
        **listed,
    }


# Class statistics


@contextmanager
def features_job(request: Request, data: Dataset) -> Iterator[Job]:
    """A classifier from released statistics of classes."""
    with featured(request, data) as (data, front):
        facts = facts_of(data, request.examples, front)
        plan, why = methods.features_plan(request, facts)
        plan = methods.sharing(request, plan, data)
        answer = screen.priced(plan, request.delta) | {"plan": plan.to_json()} | why

        def release(opened: Opened) -> Result:
            options, streams = methods.named_options(request), opened.streams()
            return train_classifier(plan, data, options, ledger=opened.ledger, streams=streams)

        def rows(result: Result) -> dict[str, str]:
            chosen, listed = _list_features(result, f"{plan.keep} of {plan.features}")
            answer.update(chosen)
            released = {}
            if isinstance(plan, RowsPlan) and result.released is not None:
                labels = f"labels are true with probability {plan.label_truth:.4g}"
                released = {"released rows": f"{len(data.x):,} in {RELEASED}; {labels}"}
            return (listed or {"features": f"all {plan.features}"}) | released

        yield Job(
            data,
            answer,
            f"{plan.keep} of {plan.features} features, noise multiplier {plan.noise:.4g} for all "
            f"together, epsilon {readable(answer['epsilon'])} at delta {request.delta:g} "
            f"({answer['adjacency']})",
            (
                *hollow(
                    request.epsilon, request.delta, methods.public_examples(request, plan, data)
                ),
                *seed_warning(request),
                # the release itself warns
                *(
                    [in_options(warning, "train") for warning in plan.noise_warnings(len(data.x))]
                    if request.dry_run and isinstance(plan, RowsPlan)
                    else ()
                ),
            ),
            "linear",
            release,
            rows,
            plan=plan,
        )


def _list_features(result: Result, number: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Which features a run chose, `number` of them, for its JSON answer and its table; empty if it
    chose none.
    """
    if not result.facts.get("chosen"):
        return {}, {}
    choice = result.facts["chosen"][0]
    listed = [screen.plain(line) for line in choice_lines(choice)]
    return {"chosen": choice}, {
        "features": screen.BREAK.join([f"{number}, the best first:", *listed])
    }
