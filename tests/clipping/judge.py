"""One judge for all: the clipped sum over a small batch against a loop over single examples in
double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.clipping.bounded import kept
from privlearn.errors import PrivlearnError, first_line
from tests.clipping.architectures import EXAMPLES, Architecture, Batch
from tests.support.nets import flat_norm, one_sample

#: Relative difference of a parameter's sum up to which it is right; what is zero but for rounding
#: is measured by the whole.
EXACT, ROUNDING = 1e-6, 1e-6


@dataclass(frozen=True)
class Verdict:
    """What became of an architecture.

    Attributes:
        outcome: `layers`, `vmap` or `loop` (right, by this way), `right`, `refused`, `fails` (an
            error that names nothing that the model is made of), or `wrong`.
        reason: what falls back, is refused, fails or is wrong.
    """

    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Truth:
    """Each example's gradients, by a loop.

    Attributes:
        rows: for each example one tensor for each trained parameter.
        norms: of each example's gradients.
        clip_norm: half of the smallest: every example is clipped.
    """

    rows: list[list[Tensor]]
    norms: list[float]
    clip_norm: float

    def require(
        self, sums: Sequence[Tensor], names: Sequence[str], weight: Callable[[float], float]
    ) -> str:
        """The parameter whose clipped sum differs, if one does; `weight` is what an example of a
        norm counts.
        """
        weights = [weight(norm) for norm in self.norms]
        totals = [
            sum(w * g for w, g in zip(weights, own, strict=True))
            for own in zip(*self.rows, strict=True)
        ]
        whole = flat_norm(tuple(map(torch.as_tensor, totals)))
        for name, found, total in zip(names, sums, totals, strict=True):
            away = float((found.detach().double() - total).norm())
            if not away <= EXACT * (float(torch.as_tensor(total).norm()) + ROUNDING * whole):
                return f"{name}: {away / max(whole, 1e-300):.0e} of the sum"
        return ""


def made(architecture: Architecture) -> nn.Module:
    return architecture.make().double().train()


def truth(architecture: Architecture, batch: Batch) -> Truth:
    """By one backward pass for each example, which is all that its parameters' `.grad` hold."""
    model = made(architecture)
    trained, rows = [p for p in model.parameters() if p.requires_grad], []
    for number in range(EXAMPLES):
        own = {name: leaf[number : number + 1] for name, leaf in batch.items()}
        model.zero_grad()
        architecture.loss(model, own).sum().backward()
        rows.append([torch.zeros_like(p) if p.grad is None else p.grad.double() for p in trained])
    norms = [flat_norm(tuple(own)) for own in rows]
    assert all(0 < norm < 1e12 for norm in norms), f"{architecture.name}: norms {norms}"
    return Truth(rows, norms, min(norms) / 2)


def by_privlearn(architecture: Architecture, batch: Batch | None = None) -> Verdict:
    """What `pv.Run` clips by, with a loss of the model and the batch."""
    batch = architecture.batch() if batch is None else batch
    true = truth(architecture, batch) if architecture.outcome != "refused" else Truth([], [], 1.0)
    model = made(architecture)
    plan = pv.Plan(
        pv.sampling.FullBatch(),
        1,
        schedule=pv.schedules.Constant(1.0),
        clip=pv.Flat(true.clip_norm),
    )
    try:
        with pv.Run(plan, model, architecture.loss, batch) as run:
            task = run.task
            sums = task.gradients(one_sample(examples=EXAMPLES), task.rows).values
    except PrivlearnError as error:
        return Verdict("refused", first_line(error))
    limit = kept(true.clip_norm, {p.dtype for p in task.parameters})
    wrong = true.require(sums, list(task.gradients.parameters), lambda norm: min(1.0, limit / norm))
    if wrong:
        return Verdict("wrong", wrong)
    return Verdict(str(task.gradients.way), task.gradients.reason or "")


def with_group_norms(architecture: Architecture) -> Architecture:
    """The same with group norms in place of batch norms, as privlearn's message says."""
    return replace(
        architecture,
        make=lambda: pv.models.replace_batch_norm(architecture.make(), groups=1),
        outcome="layers",
    )


def changed_for_opacus(architecture: Architecture) -> Architecture:
    """The same as Opacus' users change it: by `ModuleValidator.fix`, nothing in place, positions
    for each example.
    """

    def make() -> nn.Module:
        from opacus.validators import ModuleValidator

        model: nn.Module = architecture.make()
        if ModuleValidator.validate(model, strict=False):
            model = ModuleValidator.fix(model)
        for module in model.modules():
            if hasattr(module, "inplace"):
                module.inplace = False
        return model

    batch = architecture.batch()
    if "input_ids" in batch:
        shape = batch["input_ids"].shape
        own = {
            "position_ids": torch.arange(shape[1]).expand(shape).clone(),
            "token_type_ids": torch.zeros(shape).long(),
        }
        takes = signature(architecture.make().forward).parameters
        batch |= {name: leaf for name, leaf in own.items() if name in takes}
    return replace(architecture, make=make, batch=lambda: batch)


def by_opacus(architecture: Architecture, ghost: bool) -> Verdict:
    """Opacus: the model is validated, wrapped and clipped as its engine does it, in either mode."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
    from opacus.validators import ModuleValidator

    batch = architecture.batch()
    model = made(architecture)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    try:
        true = truth(architecture, batch)
    except Exception:  # batch norm can't be computed for one example
        true = Truth([], [], 1.0)
    if errors := ModuleValidator.validate(model, strict=False):
        return Verdict("refused", first_line(errors[0]))
    options: dict[str, Any] = {
        "noise_multiplier": 0.0,
        "max_grad_norm": true.clip_norm,
        "expected_batch_size": EXAMPLES,
    }
    try:
        if ghost:
            wrapped = GradSampleModuleFastGradientClipping(
                model, max_grad_norm=true.clip_norm, use_ghost_clipping=True, loss_reduction="sum"
            )
        else:
            wrapped = GradSampleModule(model, loss_reduction="sum")
    except NotImplementedError as error:
        return Verdict("refused", first_line(error))
    except Exception as error:
        return Verdict("fails", first_line(error))
    try:
        trained = [p for p in wrapped.parameters() if p.requires_grad]
        descent = torch.optim.SGD(trained, lr=0.0)
        losses = architecture.loss(wrapped, batch)
        if ghost:
            optimizer = DPOptimizerFastGradientClipping(descent, loss_reduction="sum", **options)
            DPTensorFastGradientClipping(wrapped, optimizer, losses, "sum").backward()
            sums = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        else:
            losses.sum().backward()
            plain = DPOptimizer(descent, loss_reduction="sum", **options)
            plain.clip_and_accumulate()
            sums = [p.summed_grad for p in trained]
    except NotImplementedError as error:
        return Verdict("refused", first_line(error))
    except Exception as error:
        return Verdict("fails", first_line(error))
    if not true.rows:
        return Verdict("wrong", "the loss couples examples")
    wrong = true.require(sums, names, lambda norm: min(1.0, true.clip_norm / (norm + 1e-6)))
    return Verdict("wrong", wrong) if wrong else Verdict("right")
