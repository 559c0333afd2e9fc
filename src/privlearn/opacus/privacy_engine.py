"""`PrivacyEngine`: the calls that users of Opacus know, on a run of privlearn."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.utils._pytree import tree_map

from privlearn._checks import checked, quoted, require_fit
from privlearn.core.clipping.clips import Clip, Flat, PerLayer
from privlearn.core.clipping.model_check import require_separate
from privlearn.core.plan import Plan
from privlearn.core.processes import require_one_process
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.loop import make_private
from privlearn.opacus.module_validator import ModuleValidator
from privlearn.opacus.script_run import PrivateLoader, PrivateModule, PrivateOptimizer, ScriptRun
from privlearn.runs import compute
from privlearn.training.run import Run

#: Epochs that a run has at most where their number is not given.
_MOST_EPOCHS = 100
#: Opacus's ways to compute. Here the run chooses by itself; "ghost" only says that the criterion is
#: returned, too.
_MODES = ("hooks", "functorch", "ew", "ghost")
#: Arguments of `make_private` that a plan says, or the run's configuration.
_SAID_ELSEWHERE = {part.name for part in fields(Plan)} | {
    "epsilon",
    "max_grad_norm",
    "rho",
    "noise_multiplier",
    "mechanism",
    *compute.names(),
}


@final
class PrivacyEngine:
    """Takes a model, an optimizer and a loader, and makes them private, by the calls of Opacus's
    engine.

    Guarantee: that of `pv.Run`, for the model after each step. The script keeps its
    form: `zero_grad`, the model on a batch of the loader, the loss, `backward`, `step`. Its loss is
    taken apart into one value for each example (`script_loss`), whose gradients are clipped,
    charged and noised in `optimizer.step()`. What the script sees of a batch, its loss included, is
    private.

    Args:
        accountant: one of Opacus's names. The price is that of privlearn's accountant, whichever it
            is.
        secure_mode: noise on a grid of exact numbers, `Streams.new(discrete=True)`.
    """

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False) -> None:
        if not isinstance(accountant, str) or accountant not in ("prv", "rdp", "gdp"):
            raise BadInput(
                f"accountant is {quoted(accountant)}: expected 'prv', 'rdp' or 'gdp'; leave it out"
            )
        self._secure = secure_mode
        self._script: ScriptRun | None = None

    @checked
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Any,
        noise_multiplier: float,
        max_grad_norm: float | Sequence[float],
        epochs: int | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """The module, optimizer and loader of a run at this noise; with grad_sample_mode="ghost"
        also the criterion.

        Args:
            module: trained in place.
            optimizer: made from the module's parameters, and used as it is.
            data_loader: is read for its rows, collate function, workers and batch size.
            noise_multiplier: of each step.
            max_grad_norm: the clipping norm, or with clipping="per_layer" that of each layer.
            epochs: how many passes over the loader there are at most: what a certificate claims.
            options: `criterion`, `batch_first`, `loss_reduction`, `poisson_sampling`, `clipping`
                and `grad_sample_mode` as of Opacus; all others as of `pv.make_private` (`examples`,
                `microbatch`, `ledger`, `streams`, ...).

        Raises:
            BadInput, NotPerExample: the model, the optimizer or the loader can't be private.
                Nothing was spent. The first step raises the same for the loss, before it spends
                anything.
        """
        if not noise_multiplier:
            raise BadInput(
                "noise_multiplier is 0, which gives no privacy: expected a number above 0. To "
                "train without privacy use the module, the optimizer and the loader as they are"
            )
        if epochs is None:
            warnings.warn(
                f"make_private was given no epochs=: the run has at most {_MOST_EPOCHS}, and a "
                "certificate claims as much, however early it is left. Give epochs=, the number "
                "of passes over the loader",
                stacklevel=2,
            )
        settings = {"noise_multiplier": noise_multiplier, "epochs": epochs or _MOST_EPOCHS}
        return self._make(module, optimizer, data_loader, max_grad_norm, options, settings)

    @checked
    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Any,
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float | Sequence[float],
        **options: Any,
    ) -> tuple[Any, ...]:
        """As `make_private`, with the noise that a target needs for so many epochs."""
        settings = {"epsilon": target_epsilon, "delta": target_delta, "epochs": epochs}
        return self._make(module, optimizer, data_loader, max_grad_norm, options, settings)

    def _make(
        self,
        module: nn.Module,
        optimizer: Any,
        loader: Any,
        norm: Any,
        options: dict[str, Any],
        settings: dict[str, Any],
    ) -> tuple[Any, ...]:
        require_one_process("an engine of pv.opacus")
        if self._script is not None:
            raise BadInput(
                "this engine has a run already: make another PrivacyEngine for another module. "
                "Runs on one data set belong on one ledger, ledger=pv.Ledger(budget)"
            )
        defaults = {
            "criterion": None,
            "batch_first": True,
            "loss_reduction": "mean",
            "poisson_sampling": True,
            "clipping": "flat",
            "grad_sample_mode": "hooks",
            "noise_generator": None,
            "wrap_model": True,
            "rand_on_empty": False,
        }
        asked = {name: options.pop(name, usual) for name, usual in defaults.items()}
        _require_known(asked)
        for name, kind in (("poisson_sampling", bool), ("batch_first", bool), ("clipping", str)):
            require_fit(name, asked[name], kind)
        require_separate(module)
        settings = {"clip": _clip(asked["clipping"], norm), **settings, **options}
        if not asked["poisson_sampling"]:
            settings.setdefault("sampling", "shuffle")
        if self._secure:
            settings.setdefault("streams", Streams.new(discrete=True))
        rows = loader if asked["batch_first"] else _rows_first(loader)
        run = make_private(module, optimizer, rows, **settings)

        def remake(before: Run, plan: Plan) -> Run:
            kept = {name: value for name, value in settings.items() if name not in _SAID_ELSEWHERE}
            kept |= {"plan": plan, "ledger": before.ledger, "config": before.config}
            return make_private(module, optimizer, rows, **kept)

        self._script = script = ScriptRun(run, remake, batch_first=asked["batch_first"])
        criterion = (
            (asked["criterion"] or nn.CrossEntropyLoss(),)
            if asked["grad_sample_mode"] == "ghost"
            else ()
        )
        return (
            PrivateModule(script),
            PrivateOptimizer(script, optimizer),
            *criterion,
            PrivateLoader(script, loader.dataset),
        )

    @property
    def run(self) -> Run:
        """The run whose steps the script takes, with its plan and its ledger.

        Raises:
            BadInput: nothing was made private yet.
        """
        if self._script is None:
            raise BadInput(
                "nothing was made private yet: call make_private or make_private_with_epsilon first"
            )
        return self._script.run

    @property
    def accountant(self) -> PrivacyEngine:
        """What answers `get_epsilon`, and has as many entries as steps were taken: the engine
        itself.
        """
        return self

    def __len__(self) -> int:
        return self.run.steps_done

    def get_epsilon(self, delta: float, **options: Any) -> float:
        """The epsilon of what was charged so far, as if the number of steps had been fixed
        beforehand: an estimate.

        The guarantee, which a certificate claims, is for all epochs: `run.plan.guarantee(delta)`.
        """
        return self.run.spent(delta).epsilon

    def publish(self, out: str | Path, **options: Any) -> Path:
        """End the run and write the module with its certificate; `options` are those of
        `pv.publish`.
        """
        return self.run.publish(out, **options)

    @staticmethod
    def get_compatible_module(module: nn.Module) -> nn.Module:
        """A copy of the module with group norms for its batch norms."""
        return ModuleValidator.fix(module)

    @staticmethod
    def is_compatible(*, module: nn.Module, **others: Any) -> bool:
        """Whether no part of the module is known to couple examples."""
        return ModuleValidator.is_valid(module)

    @staticmethod
    def validate(*, module: nn.Module, **others: Any) -> None:
        """Raise `NotPerExample` for the first part of the module that is known to couple
        examples.
        """
        ModuleValidator.validate(module, strict=True)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Refused, as `load_checkpoint` is: a step that is taken again with new noise is a second
        release.
        """
        raise BadInput(
            "a run that goes on from a checkpoint of weights would release steps a second time and "
            "count them once. Use torch.save(module.state_dict(), FILE) to keep the model; to go "
            "on with a run use pv.make_private(checkpoint=FILE)"
        )

    load_checkpoint = save_checkpoint


def _require_known(asked: dict[str, Any]) -> None:
    """Refuse what a run of privlearn has no answer to, by name."""
    if asked["grad_sample_mode"] not in _MODES:
        raise BadInput(
            f"grad_sample_mode is {asked['grad_sample_mode']!r}: expected one of "
            f"{', '.join(_MODES)}. The run chooses by itself how gradients are computed, in one "
            "process; leave it out"
        )
    if asked["loss_reduction"] != "mean":
        raise BadInput(
            f"loss_reduction is {asked['loss_reduction']!r}: expected 'mean'. Use a loss with "
            "reduction='mean', and multiply the learning rate by the batch size"
        )
    if asked["noise_generator"] is not None:
        raise BadInput(
            "noise_generator can be drawn again by all who know its seed: leave it out. "
            "streams=pv.Streams.new(seed) repeats a run, and its certificate says so"
        )
    if not asked["wrap_model"]:
        raise BadInput(
            "wrap_model is False: expected True, since the loss is told by what the wrapped model "
            "computes. Leave it out, and train the module that make_private returns"
        )


def _clip(clipping: str, norm: Any) -> Clip:
    """How gradients are clipped."""
    norms = set(norm) if isinstance(norm, Sequence) else {norm}
    if len(norms) == 1 and clipping in ("flat", "per_layer"):
        return (Flat if clipping == "flat" else PerLayer)(float(norms.pop()))
    raise BadInput(
        f"clipping is {clipping!r} with max_grad_norm {str(norm)[:40]}: expected 'flat' with one "
        "norm, or 'per_layer' with one norm for all layers. For adaptive clipping give clip= to "
        "pv.make_private"
    )


def _rows_first(loader: Any) -> Any:
    """A loader whose inputs have the rows along the first axis, not the second."""
    collate, turned = loader.collate_fn, copy.copy(loader)

    def rows_first(rows: list[Any]) -> Any:
        inputs, targets = collate(rows)
        return tree_map(
            lambda leaf: leaf.transpose(0, 1) if leaf.dim() > 1 else leaf, inputs
        ), targets

    turned.collate_fn = rows_first
    return turned
