"""DP-MAC by options: what it takes of those of DP-SGD, and its plan from public numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privlearn.core.clipping.derivative_bounds import Derivatives
from privlearn.core.plan import Plan
from privlearn.errors import BadInput
from privlearn.training import rules
from privlearn.training.best_sampling import INDEPENDENT
from privlearn.training.choices import Facts, TrainRequest, require_momentum_of
from privlearn.training.rules import Settled

#: The usual class of torch.optim.
OPTIMIZER = "Adam"
#: The paper's settings for its classifier (Harder et al. 2019, Table 2).
_THRESHOLD, _BATCHES, _LEAST_BATCH = 0.3, 60, 256


def require_combinable(options: Any) -> None:
    """Refuse options that do not go together.

    Raises:
        BadInput: naming the first of them.
    """
    if getattr(options, "z_rate", None) is not None and options.z_steps is None:
        raise BadInput(
            "z_rate is that of Adam's steps on the coordinates: add z_steps=30, or leave it out"
        )
    chosen = TrainRequest.of_options(options)
    if chosen.momentum is not None and chosen.optimizer is None:
        require_momentum_of(OPTIMIZER)


def decide_layers(options: Any, facts: Facts) -> Settled:
    """Decide everything of a run of DP-MAC: batches are smaller than for DP-SGD unless their size
    is given, and derivatives are clipped.

    Args:
        options: by name.
        facts: what is public of the rows.

    Raises:
        BadInput: as `training.rules.settle`.
    """
    size, examples = options.batch_size, facts.examples
    if size is None and options.sampling != "full":
        size = min(examples, max(_LEAST_BATCH, round(examples / _BATCHES)))
    mechanism = options.mechanism or INDEPENDENT  # correlated noise is for a norm that stays
    asked = TrainRequest.of_options(options)
    chosen = replace(asked, batch_size=size, temperature=0.0, mechanism=mechanism)
    settled = rules.settle(chosen, facts)
    threshold = _THRESHOLD if options.clip_norm is None else options.clip_norm
    return replace(settled, plan=replace(settled.plan, clip=Derivatives(threshold)))


def settle_layers(options: Any, facts: Facts) -> Plan:
    """The plan of DP-MAC, with its noise.

    Args:
        options: by name.
        facts: what is public of the rows.

    Raises:
        BadInput: as `training.rules.settle`.
    """
    return decide_layers(options, facts).plan
