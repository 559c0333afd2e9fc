"""Audits of whole trainings: what one run with a thousand canaries proves, for each method, and
what canaries cost.

`python bench/audits.py [--part dpsgd|again|dpmac|boosting|pate|lira|steps] [--canaries N]
[--quick]`
prints a line of JSON for each audit. MNIST and Adult have to be there (`PRIVLEARN_DATA`). Tables
made of it are on docs/measured/audits.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import privlearn as pv
from privlearn.auditing import Audit, audit_training, infer_membership
from privlearn.auditing.distinguishing import Claim, projected
from privlearn.data.dataset import Dataset

DELTA, CONFIDENCE = 1e-5, 0.99
ENTROPY = nn.CrossEntropyLoss(reduction="none")
PIXELS, CLASSES = 784, 10


@dataclass(frozen=True)
class Size:
    """How large the audits are.

    Attributes:
        rows: examples of MNIST, or of Adult.
        canaries: besides them.
        epochs: of DP-SGD and DP-MAC.
        trials: of PATE's release.
        shadows: models.
        epsilons: that are claimed.
        repetitions: of the audit of a step.
        step_trials: of each; None: as by default.
        seeds: with which one audit is repeated.
    """

    rows: int
    canaries: int
    epochs: int
    trials: int
    shadows: int
    epsilons: tuple[float, ...]
    repetitions: int
    step_trials: int | None
    seeds: int


FULL = Size(5_000, 1_000, 10, 1_000, 4, (1.0, 4.0, 8.0), 20, None, 12)
QUICK = Size(300, 100, 2, 50, 2, (8.0,), 1, 100, 1)


def digits(size: Size) -> tuple[Dataset, torch.Tensor, torch.Tensor]:
    """The first rows of MNIST as public numbers from 0 to 1, and test rows."""
    data = pv.load("mnist")
    x, x_test = (
        np.asarray(part, np.float32).reshape(len(part), -1) / 255 for part in (data.x, data.x_test)
    )
    y, y_test = np.asarray(data.y), np.asarray(data.y_test)
    first = Dataset(x[: size.rows], y[: size.rows], classes=CLASSES, public=True)
    return first, torch.tensor(x_test), torch.tensor(y_test)


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The share of right answers."""
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def linear() -> nn.Module:
    """A linear classifier, always the same at first."""
    torch.manual_seed(0)
    return nn.Linear(PIXELS, CLASSES)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of all runs of DP-SGD."""
    return torch.optim.SGD(parameters, lr=1.0)


def of_dpsgd(size: Size) -> Iterator[dict[str, Any]]:
    """White box, with gradient canaries: Poisson sampling and partitions."""
    data, x, y = digits(size)
    for sampler in (pv.Poisson(0.05), pv.Partition(20)):
        for epsilon in size.epsilons:
            plan = pv.Plan(sampler, size.epochs, examples=size.rows + size.canaries).calibrate(
                epsilon=epsilon, delta=DELTA
            )
            model, bare = linear(), linear()
            report = audit_training(
                plan,
                lambda _, network=model: network,
                ENTROPY,
                data,
                canaries=size.canaries,
                delta=DELTA,
                confidence=CONFIDENCE,
                streams=pv.Streams.new(int(epsilon)),
                optimizer=sgd,
            )
            without = replace(plan, examples=size.rows)
            bare = pv.dpsgd(
                without, bare, ENTROPY, data, optimizer=sgd, streams=pv.Streams.new(1)
            ).model
            yield line(
                f"DP-SGD, {sampler.kind}", report, accuracy(model, x, y), accuracy(bare, x, y)
            )


def of_seeds(size: Size) -> Iterator[dict[str, Any]]:
    """DP-SGD under Poisson sampling at epsilon 4, with other seeds: an audit that refuted,
    repeated.
    """
    data = digits(size)[0]
    plan = pv.Plan(pv.Poisson(0.05), size.epochs, examples=size.rows + size.canaries)
    plan = plan.calibrate(epsilon=4.0, delta=DELTA)
    for seed in range(1001, 1001 + size.seeds):
        report = audit_training(
            plan,
            lambda _: linear(),
            ENTROPY,
            data,
            canaries=size.canaries,
            delta=DELTA,
            confidence=CONFIDENCE,
            streams=pv.Streams.new(seed),
            optimizer=sgd,
        )
        yield line(f"DP-SGD, Poisson, seed {seed}", report)


def with_own_column(size: Size, data: Dataset, label: int) -> tuple[Dataset, Dataset]:
    """Rows with a further column for each canary, which is 0; and canaries, each alone in its
    column.
    """
    x = np.asarray(data.x, np.float32)
    wide = np.concatenate([x, np.zeros((len(x), size.canaries), np.float32)], 1)
    columns = np.concatenate(
        [
            np.zeros((size.canaries, x.shape[1]), np.float32),
            np.eye(size.canaries, dtype=np.float32),
        ],
        1,
    )
    canaries = Dataset(columns, np.full(size.canaries, label), classes=data.classes, public=True)
    return replace(data, x=wide, x_test=None, y_test=None), canaries


def joined(rows: Dataset, members: Dataset) -> Dataset:
    """Rows and those canaries that take part."""
    both = (torch.cat(pair).numpy() for pair in zip(rows.tensors(), members.tensors(), strict=True))
    return Dataset(*both, classes=rows.classes)


def of_dpmac(size: Size) -> Iterator[dict[str, Any]]:
    """Black box, with input canaries, each of which has an input of its own."""
    data, x, y = digits(size)
    rows, canaries = with_own_column(size, data, 0)
    canaries = replace(canaries, x=np.asarray(canaries.x) * 10)

    def network(inputs: int) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    for epsilon in size.epsilons:
        plan = pv.Plan(
            pv.Poisson(0.1),
            size.epochs,
            clip=pv.mac.Derivatives(0.3),
            examples=size.rows + size.canaries,
        ).calibrate(epsilon=epsilon, delta=DELTA)
        trained: list[nn.Module] = []

        def train(
            members: Dataset, plan: pv.Plan = plan, models: list[nn.Module] = trained
        ) -> nn.Module:
            models.append(mac(plan, network(PIXELS + size.canaries), joined(rows, members)))
            return models[-1]

        report = infer_membership(
            train,
            canaries,
            plan,
            shadows=0,
            delta=DELTA,
            confidence=CONFIDENCE,
            streams=pv.Streams.new(1),
        )
        bare = mac(replace(plan, examples=size.rows), network(PIXELS), data)
        wide = torch.cat([x, torch.zeros(len(x), size.canaries)], 1)
        yield line("DP-MAC, Poisson", report, accuracy(trained[0], wide, y), accuracy(bare, x, y))


def mac(plan: pv.Plan, model: nn.Module, data: Dataset) -> nn.Module:
    """A run of DP-MAC."""
    result = pv.dpmac(
        plan,
        model,
        "binary_cross_entropy",
        data,
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
        streams=pv.Streams.new(2),
    )
    return result.model


def of_boosting(size: Size) -> Iterator[dict[str, Any]]:
    """Black box, with rows that have a category of their own, on Adult."""
    adult = pv.load("adult")
    y_test = torch.as_tensor(np.asarray(adult.y_test))
    columns = pv.boosting.columns_of(adult)
    data = Dataset(
        np.array(adult.x[: size.rows], np.float32),
        np.array(adult.y[: size.rows]),
        classes=2,
        public=True,
    )
    rows, canaries = with_own_column(size, data, 1)
    x_test = torch.as_tensor(np.asarray(adult.x_test, np.float32))
    wide = torch.cat([x_test, torch.zeros(len(x_test), size.canaries)], 1)
    for epsilon in size.epsilons:
        settings: dict[str, Any] = {"target": pv.boosting.Labels(2), "passes": 2, "trees": 0}
        wide_columns = (*columns, pv.boosting.Levels(size.canaries, "canary"))
        plan = pv.boosting.BoostingPlan(columns=wide_columns, **settings).calibrate(
            epsilon=epsilon, delta=DELTA
        )
        trained: list[nn.Module] = []

        def train(
            members: Dataset, plan: Any = plan, models: list[nn.Module] = trained
        ) -> nn.Module:
            models.append(
                pv.boosting.boost(plan, joined(rows, members), streams=pv.Streams.new(2)).model
            )
            return models[-1]

        report = infer_membership(
            train,
            canaries,
            plan,
            shadows=0,
            delta=DELTA,
            confidence=CONFIDENCE,
            streams=pv.Streams.new(1),
        )
        without = pv.boosting.BoostingPlan(columns=columns, **settings).calibrate(
            epsilon=epsilon, delta=DELTA
        )
        plain = Dataset(np.asarray(data.x), np.asarray(data.y), classes=2)
        bare = pv.boosting.boost(without, plain, streams=pv.Streams.new(2)).model
        yield line(
            "boosting", report, accuracy(trained[0], wide, y_test), accuracy(bare, x_test, y_test)
        )


def of_pate(size: Size) -> Iterator[dict[str, Any]]:
    """Many releases of 20 queries to 50 teachers, one of which votes otherwise where the record is
    there.
    """
    queries, teachers = 20, 50
    for epsilon in size.epsilons:
        plan = pv.teachers.PatePlan(
            queries=queries, teachers=teachers, aggregate=pv.teachers.Votes(classes=2)
        ).calibrate(epsilon=epsilon, delta=DELTA)
        pool = Dataset(np.zeros((queries, 1), np.float32), np.zeros(queries, int), public=True)
        scores: dict[bool, list[np.ndarray]] = {False: [], True: []}
        for _ in range(size.trials):
            for took_part, scores_so_far in scores.items():
                votes = pv.teachers.ask_teachers(
                    plan, Ensemble(teachers, queries, took_part), None, pool
                ).scores
                scores_so_far.append(np.asarray(votes, float))
        absent, present = projected(np.stack(scores[False]), np.stack(scores[True]))
        claim = Claim(
            lambda factor, plan=plan: plan.scaled(factor).event(), plan.neighbours, 1.0, DELTA
        )
        yield line("PATE, votes", claim.judged(absent, present, CONFIDENCE, "releases of votes"))


class Ensemble(pv.teachers.Teachers):
    """Teachers that agree, but for the first one where the record took part."""

    def __init__(self, teachers: int, queries: int, took_part: bool) -> None:
        self._teachers, self._queries, self._took_part = teachers, queries, took_part

    @property
    def count(self) -> int:
        """How many there are."""
        return self._teachers

    def require_covered(self, adjacency: Any, unit: Any) -> None:
        """Nothing is refused: the record is one teacher's."""

    def answers(
        self, inputs: Any, streams: Any, progress: Any = None, shapes: Any = None
    ) -> Iterator[torch.Tensor]:
        """The votes of one teacher after another."""
        for number in range(self._teachers):
            yield torch.full((self._queries,), int(number == 0 and self._took_part))


def of_lira(size: Size) -> Iterator[dict[str, Any]]:
    """Membership of the rows themselves, with shadow models: of DP-SGD, and of training without
    noise.
    """
    data = digits(size)[0]
    half = size.rows // 2

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def plainly(rows: Dataset) -> nn.Module:
        model, (inputs, targets) = network(), rows.tensors()
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(100):
            optimizer.zero_grad()
            ENTROPY(model(inputs), targets).mean().backward()
            optimizer.step()
        return model

    for epsilon in (*size.epsilons, None):
        plan = pv.Plan(pv.Poisson(0.05), size.epochs, examples=half)
        plan = plan.calibrate(epsilon=epsilon or 8.0, delta=DELTA)

        def train(rows: Dataset, plan: pv.Plan = plan) -> nn.Module:
            return pv.dpsgd(plan, network(), ENTROPY, rows, optimizer=sgd).model

        method = "no privacy" if epsilon is None else "DP-SGD, poisson"
        report = infer_membership(
            plainly if epsilon is None else train,
            data,
            plan,
            shadows=size.shadows,
            delta=DELTA,
            confidence=CONFIDENCE,
            streams=pv.Streams.new(3),
        )
        yield line(method, report)


def of_steps(size: Size) -> Iterator[dict[str, Any]]:
    """One step, many times, with default settings; again and again."""
    for repetition in range(size.repetitions):
        for noise in (0.5, 1.0, 4.0):
            plan = pv.Plan(
                pv.sampling.FullBatch(), schedule=pv.schedules.Constant(noise), examples=10
            )
            streams = pv.Streams.new(1000 * repetition + int(10 * noise))
            report = pv.audit(plan, trials=size.step_trials, confidence=CONFIDENCE, streams=streams)
            yield line(f"a step, noise multiplier {noise:g}", report)


PARTS: dict[str, Callable[[Size], Iterator[dict[str, Any]]]] = {
    "dpsgd": of_dpsgd,
    "again": of_seeds,
    "dpmac": of_dpmac,
    "boosting": of_boosting,
    "pate": of_pate,
    "lira": of_lira,
    "steps": of_steps,
}


def line(
    method: str, report: Audit, with_canaries: float | None = None, without: float | None = None
) -> dict[str, Any]:
    """What is printed of an audit."""
    return {
        "method": method,
        "accuracy": with_canaries,
        "accuracy_without_canaries": without,
        **report.to_json(),
    }


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--canaries", type=int)
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    size = replace(size, canaries=options.canaries or size.canaries)
    for name in options.part or PARTS:
        began = time.perf_counter()
        for answer in PARTS[name](size):
            sys.stdout.write(
                json.dumps({**answer, "seconds": round(time.perf_counter() - began, 1)}) + "\n"
            )
            sys.stdout.flush()
            began = time.perf_counter()


if __name__ == "__main__":
    main()
