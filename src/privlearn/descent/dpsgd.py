"""DP-SGD: clipped per-example gradients, one Gaussian release a batch (Abadi et al. 2016; Yu et al. 2019, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import one_of
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.augmentation import Augmentation
from privlearn.clipping.gradients import ClippedGradients
from privlearn.clipping.losses import Loss
from privlearn.data.dataset import Dataset, require_groups, rows_of_persons
from privlearn.data.rows import TensorRows
from privlearn.descent.epoch_noise import paced, public_rows, require_scores
from privlearn.mechanisms.release import release
from privlearn.models.check import require_per_example
from privlearn.plan import Plan
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.optimizers import MeanWeights, RateSchedule
from privlearn.runs.result import PrivateDiagnostics, Result, accuracy_facts, choice_facts, training_facts
from privlearn.runs.run import Diagnostics, Run, facts
from privlearn.runs.task import (
    OptimizerFactory,
    Rows,
    described,
    device_of,
    encoded,
    front,
    gradient_clip,
    leading,
    network_from,
    optimizer_from,
    public_modules,
    require_changeable,
    require_finite,
    require_kinds,
    require_labels_to_select,
    require_public_numbers,
    require_same_examples,
    require_usable,
    rows,
    through,
)
from privlearn.schedules import Constant, Schedule, Validation
from privlearn.streams import Streams
from privlearn.transforms.chain import Encoding
from privlearn.world import require_one_process


def dpsgd(
    plan: Plan,
    model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
    loss: Loss,
    dataset: Rows,
    *,
    optimizer: OptimizerFactory = torch.optim.SGD,
    learning_rate_schedule: Schedule = Constant(),  # noqa: B008 - a frozen value
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    microbatch: int | None = None,
    augmentation: Augmentation | None = None,
    average: float | None = None,
    device: str | torch.device | None = None,
    precision: str = "float32",
    progress: Callable[[int, int], None] | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    validation: Dataset | None = None,
) -> Result:
    """Train `model` with differential privacy.

    Guarantee: the returned model (its weights and the transforms in front of it) is `plan.guarantee(delta)`-DP for
    the plan's adjacency and `plan.unit`: one example, up to `group_size` examples of one person, or one person with all
    their rows (where the data have `groups`). The ledger is charged exactly `plan.event()`. Nothing else that is
    returned is covered. Before anything is spent, the data are looked at once to refuse what can't be used, which is
    outside the guarantee; from then on nothing that is raised, drawn or called depends on what an example holds.

    Args:
        plan: what will be spent, and how.
        model: a network, or a function from the shape of one (transformed) example to one. Trained in place.
        loss: (outputs, targets) to one loss for each example, shape (batch,).
        dataset: a `Dataset`, a pair (inputs, targets) of arrays or tensors with one row for each example, or a map-style
            `torch.utils.data.Dataset` of such pairs. That is read once, so random transforms are frozen: use
            `augmentation`. Of a `DataLoader` only the rows are used; it must shuffle, and the plan's sampling be
            `pv.Shuffle` with its batch size.
        optimizer: makes the optimizer from the parameters; any of torch.optim.
        learning_rate_schedule: the optimizer's learning rates are multiplied by its value over its value at epoch 0.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        microbatch: examples computed at once, or None for what fits into memory; the result is the same.
        augmentation: changed copies of each row, whose gradients are averaged before clipping. Rows are changed as the network
            gets them: scaled; not in front of public features, whose images a change would have to come before.
        average: publish the mean of the weights, of about this last share of the steps (0.5, say), in place of the last
            step's (`averaging.Average`): it costs nothing, and evens out noise where the learning rate does not fall.
            Validations are of the weights as they are trained.
        device: where to compute, for example "cuda"; by default where the model is. The result is on the CPU.
        precision: "float32", or "bf16" to run the model in bfloat16; norms, sums and noise stay in single precision.
        progress: called with (steps done, steps in all) after each step.
        checkpoint: a file to keep progress in, about once a minute. If it is there, the run in it is continued, and ends
            bit for bit where it would have ended. It is as secret as the data; `publish` deletes it.
        validation: for `schedules.Validation` without noise: rows to validate on, of the same form as the training rows, not
            protected. Whoever gives them must have declared them public, `Dataset(..., public=True)`.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        NotPerExample: the model or the loss couples examples.
        BadInput: inputs and targets that do not fit each other, or the plan; person ids that the plan does not speak of, or
            the other way round; before anything is spent. Or weights that are no longer finite at the end of an epoch,
            because steps were too long.
    """
    require_one_process()
    require_kinds(plan, model, loss, learning_rate_schedule, ledger, streams, augmentation, progress)
    ledger = Ledger(plan.budget) if ledger is None else ledger
    ledger.require_room(plan.event(), plan.neighbours, plan.unit)
    file = Checkpoint(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    saved = file.read() if file else None
    streams = Streams.at(saved.plain["streams"]) if saved else streams or Streams.new()

    data = rows(dataset, plan.sampling)
    x, y = data.tensors()
    require_same_examples(plan, data)
    shown = public_rows(plan, validation, data, x, y)
    born = saved.plain["born"] if saved else _born(plan, streams)
    persons = _rows_of_examples(plan, data, bytes.fromhex(born["persons"]))
    require_changeable(augmentation, plan, data, x, y)
    present = len(x) if persons is None else len(persons)
    examples = plan.examples or present
    transforms, x = front(data, x)
    bounded = len(transforms)
    public, shape = public_modules(plan, tuple(x.shape[1:]))
    x = encoded(map(Encoding.usual, leading(public)), x)
    transforms += leading(public)

    # Whatever can be refused is refused here, before anything is spent.
    require_public_numbers(examples, learning_rate_schedule)
    require_labels_to_select(plan, y)
    network = model if isinstance(model, nn.Module) else network_from(model, shape)
    network.to(device_of(device, network)).train()
    require_per_example(network, x.new_zeros(1, *shape).to(device_of(None, network)))
    watched = Diagnostics()
    gradients = ClippedGradients(
        network,
        loss,
        gradient_clip(plan),
        plan.neighbours,
        microbatch=microbatch,
        expected=plan.sampling.expected_batch_size(examples),
        augmentation=augmentation,
        view_seeds=streams.views,
        autocast=torch.bfloat16 if one_of("precision", precision, ["float32", "bf16"]) == "bf16" else None,
        rows=persons,
        fast_kernels=saved.plain["gradients"]["fast_kernels"] if saved else None,
        observe=watched.see,
    )
    require_usable(network, loss, x.new_zeros(0, *shape) if plan.releases else x, y)
    gradients.prepare(x.new_zeros(1, *shape), y)
    if isinstance(plan.schedule, Validation):
        require_scores(network, x.new_zeros(1, *shape).to(device_of(None, network)))
    parameters = list(gradients.parameters.values())
    descent = optimizer_from(optimizer, parameters)
    rates = RateSchedule(descent, learning_rate_schedule)
    mean = None if average is None else MeanWeights(parameters, average)
    divisor = plan.sampling.expected_batch_size(examples)
    steps = plan.sampling.steps(present)
    run_facts = {
        **training_facts(
            examples,
            plan.epochs * steps,
            descent,
            learning_rate_schedule,
            described([*transforms, *public[len(leading(public)) :]]),
        ),
        "precision": precision,
        **accuracy_facts(augmentation, average, loss),
        "noise": "on a grid" if streams.noise.discrete else "floating point",
    }

    sums = gradients.buffers()
    run = Run(file, ledger, network, transforms, gradients, descent, streams, watched, born, mean)
    if file:
        changes = augmentation.transform if augmentation else None
        run.facts = facts(network, loss, x, y, persons, shown, changes, plan=plan, microbatch=microbatch, **run_facts)
    run.accuracies += saved.plain.get("accuracies", []) if saved else []
    pace = paced(
        plan, network, shown, lambda rows: through(transforms, rows), run.accuracies, examples=examples, present=present,
        persons=persons, stream=streams.noise, at_once=microbatch, computed=gradients.fixed.restore,
    )  # fmt: skip
    with _leaving_nothing_behind(parameters, streams), run.charged(plan, saved):
        x = run.in_front(plan, public, x, y, persons)
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
        batch_rows = TensorRows((x, y), data.tensors())
        account = pace.begin(ledger)
        for epoch, noise_multiplier in pace:
            if run.released(epoch):
                account.charge(plan.epoch_event(noise_multiplier), plan.neighbours)
                continue
            for step, sample in run.batches(plan, epoch, noise_multiplier, present, account):
                watched.begin(len(sample), gradients.clip_norm)
                clipped_sum = gradients(sample, batch_rows, out=sums)
                (noisy,) = release(clipped_sum, noise_multiplier=noise_multiplier, ledger=account, stream=streams.noise)
                torch._foreach_div_(list(gradients.released(noisy, divisor)), divisor)
                rates.at(epoch + step / steps)
                descent.step()
                if mean:
                    mean.add()
                if progress:
                    progress(epoch * steps + step + 1, plan.epochs * steps)
            watched.end_epoch()
            gradients.fixed.restore(thoroughly=True)
            with run.ending_if_it_fails():
                require_finite(parameters, rates.first, f"epoch {epoch + 1} of {plan.epochs}")
            pace.end_epoch(x, y)
        run.end(pace.epochs)
        if mean:
            mean.put()
    network.to("cpu" if device is not None else device_of(None, network)).eval()

    return Result(
        model=nn.Sequential(*transforms, network).eval(),
        ledger=ledger,
        plan=plan,
        method="dpsgd",
        facts=run_facts | pace.facts(steps) | choice_facts(plan.front, transforms[bounded:], data),
        architecture={"input_shape": list(data.x.shape[1:]), "network_input_shape": list(x.shape[1:])}
        | ({"schema": data.schema} if data.schema else {}),
        seeded=streams.seeded,
        private_diagnostics=PrivateDiagnostics(watched.figures),
        checkpoint=file,
    )


def _rows_of_examples(plan: Plan, data: Dataset, key: bytes) -> Tensor | None:
    """Where examples are persons: the rows that stand for each, shape (persons, rows_per_person)."""
    if plan.rows_per_person is None:
        return None
    groups = np.asarray(data.groups)
    require_groups(data.name, groups, len(data.x))
    return torch.from_numpy(rows_of_persons(groups, plan.rows_per_person, key))


def _born(plan: Plan, streams: Streams) -> dict[str, Any]:
    """What is drawn from before the run: the initial weights, and which rows stand for whom."""
    persons = streams.sampling.bytes(32) if plan.rows_per_person else b""
    return {"initialisation": streams.state()["initialisation"], "persons": persons.hex()}


@contextmanager
def _leaving_nothing_behind(parameters: Iterable[nn.Parameter], streams: Streams) -> Iterator[None]:
    """However the block ends, no sum without noise stays in the gradients, and PyTorch's own generators are where they were.

    What an optimizer or the caller's own functions draw in the block follows from a seed of the initialisation stream.
    Dropout and augmentations don't draw from it (`clipping.randomness`).
    """
    with torch.random.fork_rng():
        torch.manual_seed(int(streams.initialisation.integers(2**63)))
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.grad = None
