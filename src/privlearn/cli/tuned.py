"""`privlearn train --tune`: a private choice among candidates, of which the chosen one is
published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from privlearn.cli import methods, screen, tune
from privlearn.cli.jobs import Job, Opened, descent_request, loss_of, seed_warning
from privlearn.cli.request import Request
from privlearn.cli.threads import limit_threads
from privlearn.cli.tune import Tuning, make_choice
from privlearn.core.accounting.guarantee import readable
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.model_check import require_per_example
from privlearn.core.clipping.separation.meeting import name_meeting
from privlearn.core.streams import Streams
from privlearn.core.transform import shape_after
from privlearn.data import Dataset
from privlearn.methods.tuning.blocks import Blocks
from privlearn.methods.tuning.stopping import Candidate
from privlearn.methods.tuning.tune import tune as tuning_run
from privlearn.models import networks
from privlearn.models.heads import head_of
from privlearn.runs.given import require_changeable, require_same_examples
from privlearn.runs.result import Result
from privlearn.training.choices import TrainRequest
from privlearn.training.rules import Settled
from privlearn.training.train import facts_of, fit, network_for, optimizer_of


@contextmanager
def tuned_job(request: Request, data: Dataset) -> Iterator[Job]:
    """A private choice among the candidates of a file, of which the chosen one is published."""
    examples = request.examples or data.examples
    facts = facts_of(data, request.examples)
    choice = make_choice(request, facts)
    plan = methods.sharing(request, choice.plan, data)
    first = plan.candidates[0].plan
    require_same_examples(first, data)
    settled = {
        candidate.name: Settled(_make_request(candidate_request, data), facts, candidate.plan)
        for candidate, candidate_request in zip(plan.candidates, choice.requests, strict=True)
    }
    _rehearse(settled.values(), data)
    answer = tune.figures(plan, request.delta)

    def rows(result: Result) -> dict[str, str]:
        answer["chosen"] = plan.candidates[result.facts["tuning"]["chosen"]].name
        name = screen.plain(answer["chosen"])
        return {
            "chosen": (
                f"{screen.BOLD}{name}{screen.END}, from {tune.headline(plan)}; choosing is "
                "charged, too"
            )
        }

    with limit_threads(settled.values(), data):
        yield Job(
            data,
            answer,
            f"{tune.headline(plan)}, epsilon {readable(answer['epsilon'])} at delta "
            f"{request.delta:g} ({answer['adjacency']})",
            (*screen.warnings(first, request.delta, examples), *seed_warning(request)),
            None,
            lambda opened: _tune(
                plan, settled, data, opened, 1 if request.jobs is None else request.jobs
            ),
            rows,
            # With random stopping the time would tell how many runs there were.
            timed=isinstance(plan, Blocks),
            plan=plan,
        )


def _make_request(request: Request, data: Dataset) -> TrainRequest:
    """What a candidate's options say, of the task that the data say."""
    chosen = descent_request(request)
    return replace(chosen, task=head_of(chosen.task, data).task)


def _tune(
    plan: Tuning, settled: Mapping[str, Settled], data: Dataset, opened: Opened, jobs: int
) -> Result:
    # What candidates need of the data: all of it would go to each process.
    examples, losses = (
        data.examples,
        {name: loss_of(data, settled_run.request) for name, settled_run in settled.items()},
    )

    def train(candidate: Candidate, rows: Dataset, ledger: Ledger, streams: Streams) -> Result:
        settled_run, plan = settled[candidate.name], candidate.plan
        settled_run = replace(
            settled_run,
            plan=plan,
            facts=replace(settled_run.facts, examples=plan.examples or examples),
        )
        return fit(settled_run, rows, streams, loss=losses[candidate.name], ledger=ledger)

    on_blocks = isinstance(plan, Blocks)
    if not on_blocks:
        screen.notes.print("training; how often is decided at random and not printed")
    with screen.progress_bar("training candidates") if on_blocks else nullcontext() as bar:
        return tuning_run(
            plan,
            train,
            data,
            ledger=opened.ledger,
            streams=opened.streams(),
            progress=bar,
            jobs=jobs,
        )


def _rehearse(every: Iterable[Settled], data: Dataset) -> None:
    """Make every candidate's network and optimizer once, so that what can't be made is refused
    before anything is charged.

    Raises:
        BadInput, NotPerExample: one that can't be made.
    """
    x, y = data.tensors()
    for settled in every:
        request, plan = settled.request, settled.plan
        shape = shape_after(plan.front, tuple(x.shape[1:]))
        networks.require_known(str(request.model))
        made_up = network_for(settled, data, Streams.new(0), shape)
        require_per_example(made_up, torch.zeros(1, *shape, device="cpu"), explain=name_meeting)
        optimizer_of(settled)(made_up.parameters())
        settled.learning_rate_schedule  # noqa: B018 - what can't be read is refused
        loss_of(data, request)
        require_changeable(request.config.augmentation, plan, x, y)
