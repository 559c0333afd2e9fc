"""Anything that is run on one of two neighbouring data sets, attacked through its outputs.

The attack is told which data set was which in a share of the trials, from which it learns a
direction and a threshold; the others are counted. It works on the code as it is, whatever that
does, and needs no access to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privlearn._checks import between, count
from privlearn.auditing.bounds import Floats, epsilon_of_form, measured
from privlearn.auditing.report import Audit
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.tradeoff import tradeoff
from privlearn.errors import BadInput

#: The share of the trials from which outputs of several numbers get a direction.
_FOR_DIRECTION = 0.2


def distinguish(
    run: Callable[[bool], Any],
    event: Event,
    adjacency: Adjacency,
    *,
    delta: float = 1e-5,
    trials: int = 1_000,
    confidence: float = 0.99,
    attack: str = "outputs of custom code on neighbouring data sets",
) -> Audit:
    """Attack `run` through its outputs: can they tell whether the example took part better than
    `event` allows?

    Args:
        run: called with True to run with the example and with False to run without it, each time
            with fresh noise; returns a number, or a tensor of numbers of one shape: a released sum,
            weights, scores.
        event: what the outputs are claimed to cost: `plan.event()` of a whole run, say.
        adjacency: the kind of neighbour that the example makes.
        delta: where epsilon is stated.
        trials: of each kind.
        confidence: of all that is said.
        attack: what was attacked, for the report.

    Returns:
        A report that is not for publication: `replace(report, public=True)` declares that `run`
        uses no private rows.

    Raises:
        BadInput: outputs of several shapes, or that are no numbers.
        UnsupportedEvent: no sound accountant covers the event.
    """
    trials = count("trials", trials)
    outputs: dict[bool, list[NDArray[np.float64]]] = {False: [], True: []}
    for _ in range(trials):  # alternated, so that nothing that drifts tells them apart
        for took_part, vectors in outputs.items():
            vectors.append(_numbers(run(took_part)))
    if len({one.shape for vectors in outputs.values() for one in vectors}) != 1:
        raise BadInput(
            "run returned outputs of several shapes: expected one number, or tensors of one shape"
        )
    absent, present = projected(np.stack(outputs[False]), np.stack(outputs[True]))
    report = Claim(lambda _: event, adjacency, None, delta).judged(
        absent, present, confidence, attack
    )
    return replace(report, public=False)


@final
@dataclass(frozen=True)
class Claim:
    """What is claimed of that which is attacked.

    Attributes:
        event: by its noise multiplier, or by a factor on its noise.
        adjacency: the kind of neighbour.
        noise: the claimed multiplier or factor; None: the claim has no form, and `event` is of
            anything.
        delta: where epsilon is stated.
        assumes: what is taken for granted where the claim has a form.
    """

    event: Callable[[float], Event]
    adjacency: Adjacency
    noise: float | None
    delta: float
    assumes: str = "the mechanism is the claimed one with some other noise"

    def judged(self, absent: Floats, present: Floats, confidence: float, attack: str) -> Audit:
        """What scores of independent trials prove.

        Args:
            absent: scores without the example, in the order of the trials.
            present: scores with it.
            confidence: of the rates' bounds.
            attack: what was attacked, for the report.
        """
        between("delta", self.delta, 0.0, 1.0)
        claim = self.event(self.noise or 1.0)
        curve = tradeoff(claim, self.adjacency)
        rates = measured(absent, present, curve, confidence)
        free = lower = rates.epsilon(self.delta)
        if self.noise is not None:
            lower = max(
                free,
                epsilon_of_form(rates.refute, self.event, self.adjacency, self.noise, self.delta),
            )
        return Audit(
            attack=attack,
            epsilon_lower=lower,
            epsilon_any=free,
            epsilon_claimed=accountant.guarantees(claim, self.adjacency, self.delta)[0].epsilon,
            delta=self.delta,
            confidence=confidence,
            ok=not rates.refute(curve),
            false_positive_rate=rates.false_positive,
            true_positive_rate=rates.true_positive,
            true_positive_rate_claimed=curve.true_positive_rate(rates.false_positive),
            trials=min(len(absent), len(present)),
            assumes="nothing: of rates alone" if self.noise is None else self.assumes,
            curve=curve,
        )


def projected(absent: Floats, present: Floats) -> tuple[Floats, Floats]:
    """Outputs, shape (trials, ...), as scores: their products with the direction in which the first
    of them differ.

    Outputs of one number are scores as they are.
    """
    absent, present = absent.reshape(len(absent), -1), present.reshape(len(present), -1)
    if absent.shape[1] == 1:
        return absent[:, 0], present[:, 0]
    first = max(1, int(_FOR_DIRECTION * min(len(absent), len(present))))
    spread = np.concatenate([absent[:first], present[:first]]).std(0) + 1e-12
    direction = (present[:first].mean(0) - absent[:first].mean(0)) / spread**2
    return absent[first:] @ direction, present[first:] @ direction


def _numbers(output: Any) -> NDArray[np.float64]:
    if isinstance(output, Tensor):
        output = output.detach().cpu().numpy()
    elif isinstance(output, Sequence) and output and isinstance(output[0], Tensor):
        output = np.concatenate([one.detach().cpu().numpy().ravel() for one in output])
    try:
        return np.asarray(output, np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"run returned a {type(output).__name__}: expected a number or a tensor"
        ) from error
