"""`PrivacyEngine`: the calls that users of Opacus know, on a run of privlearn."""

from __future__ import annotations

import copy
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.data import SequentialSampler

from privlearn._checks import checked, count, positive, quoted, require_fit
from privlearn.core.clipping.clips import Clip, Flat, PerLayer, Quantile
from privlearn.core.plan import Plan
from privlearn.core.schedules import LEAST_NOISE
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, BudgetExceeded, warn
from privlearn.loop import make_private
from privlearn.opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from privlearn.opacus.module_validator import ModuleValidator, require_valid
from privlearn.opacus.planned_settings import ScriptedRun
from privlearn.opacus.script_checkpoint import ScriptCheckpoint
from privlearn.opacus.script_run import PrivateLoader, PrivateModule, PrivateOptimizer, ScriptRun
from privlearn.opacus.strange_attributes import NO_PRIVATE_STEP
from privlearn.publishing.publish import name_call
from privlearn.runs import compute
from privlearn.training.clip_only import ClipOnlyRun
from privlearn.training.run import Run

#: Epochs that a run has at most where their number is not given.
_MOST_EPOCHS = 100
#: Of a ledger in a file that has no room.
_SET_ASIDE = (
    "If this run was interrupted, its steps are set aside in the ledger: give make_private the "
    "file of its save_checkpoint, checkpoint=FILE"
)
#: Opacus's ways to compute. Here the run chooses by itself; "ghost" only says that the criterion is
#: returned, too.
_MODES = ("hooks", "functorch", "ew", "ghost")
#: What Opacus's arguments are where they are left out.
_DEFAULTS = {
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
#: Norms above are none of a gradient.
_MOST_NORM = 1e12
#: Opacus's arguments of adaptive clipping.
_ADAPTIVE = (
    "target_unclipped_quantile",
    "clipbound_learning_rate",
    "max_clipbound",
    "min_clipbound",
    "unclipped_num_std",
)
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
            noise_multiplier: of each step. 0 clips only, for finding faults: nothing can be claimed
                then, and after a step parameters have `grad`, `summed_grad` and `grad_sample`.
            max_grad_norm: the clipping norm, or with clipping="per_layer" that of each layer.
            epochs: how many passes over the loader there are at most: what a certificate claims.
            options: `criterion`, `batch_first`, `loss_reduction`, `poisson_sampling`, `clipping`
                and `grad_sample_mode` as of Opacus; all others as of `pv.make_private` (`examples`,
                `microbatch`, `ledger`, `streams`, ...). `checkpoint` is a file to keep progress
                in, from the first step on, about once a minute; if it is there, the run in it is
                continued. Once the script calls `save_checkpoint`, it is written by that alone.

        Raises:
            BadInput, NotPerExample: the model, the optimizer or the loader can't be private.
                Nothing was spent. The first step raises the same for the loss, before it spends
                anything.
        """
        if not noise_multiplier:
            warn(
                "noise_multiplier is 0: gradients are clipped, and no noise is added. That is for "
                "finding faults; nothing can be claimed for the model"
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
        max_grad_norm: float | Sequence[float],
        epochs: int | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """As `make_private`, with the noise that a target needs for so many epochs.

        Args:
            module, optimizer, data_loader, max_grad_norm: as of `make_private`.
            target_epsilon, target_delta: what all epochs together spend at most.
            epochs: how many passes over the loader there are.
            options: as of `make_private`; `total_steps`, in place of `epochs`, how many steps there
                are, of which the plan has whole passes; and `epsilon_tolerance`, by how much less
                may be spent at most (noise is solved for to 0.3 % of the target, or better).

        Raises:
            BadInput, NotPerExample: as of `make_private`; or less is spent than is tolerated.
        """
        total_steps = options.pop("total_steps", None)
        epsilon_tolerance = options.pop("epsilon_tolerance", None)
        if (epochs is None) == (total_steps is None):
            raise BadInput(
                "expected one of epochs=, the number of passes over the loader, and total_steps=: "
                "give one"
            )
        if total_steps is not None:
            epochs = -(-count("total_steps", total_steps) // len(data_loader))
        settings = {"epsilon": target_epsilon, "delta": target_delta, "epochs": epochs}
        private = self._make(module, optimizer, data_loader, max_grad_norm, options, settings)
        if epsilon_tolerance is not None:
            spent = self.run.plan.guarantee(target_delta).epsilon
            if target_epsilon - spent > positive("epsilon_tolerance", epsilon_tolerance):
                self._script = None
                raise BadInput(
                    f"epsilon_tolerance is {epsilon_tolerance:g}, and the noise that was solved "
                    f"for spends {spent:.6g} of {target_epsilon:g}: give a larger one, or leave it "
                    "out. No more than the target is spent"
                )
        return private

    def _make(
        self,
        module: nn.Module,
        optimizer: Any,
        loader: Any,
        norm: Any,
        options: dict[str, Any],
        settings: dict[str, Any],
    ) -> tuple[Any, ...]:
        module, optimizer, loader = _as_given(module, optimizer, loader, options.get("ledger"))
        file = _checkpoint_in(kept_in := options.pop("checkpoint", None))
        if self._script is not None:
            raise BadInput(
                "this engine has a run already: make another PrivacyEngine for another module. "
                "Runs on one data set belong on one ledger, ledger=pv.Ledger(budget)"
            )
        asked = {name: options.pop(name, usual) for name, usual in _DEFAULTS.items()}
        adaptive = {name: options.pop(name, None) for name in _ADAPTIVE}
        _require_known(asked)
        for name, kind in (("poisson_sampling", bool), ("batch_first", bool), ("clipping", str)):
            require_fit(name, asked[name], kind)
        require_valid(module)
        noise = settings.get("noise_multiplier")
        clip = _clip(asked["clipping"], norm, noise, adaptive)
        settings = {"clip": clip, **settings, **options}
        if not asked["poisson_sampling"]:
            shuffles = not isinstance(getattr(loader, "sampler", None), SequentialSampler)
            settings.setdefault("sampling", "shuffle" if shuffles else "fixed")
        if self._secure:
            settings.setdefault("streams", Streams.new(discrete=True))
        rows = loader if asked["batch_first"] else _rows_first(loader)
        repeated = {n: value for n, value in settings.items() if n not in _SAID_ELSEWHERE}
        clip_only = noise == 0
        if clip_only and (kept_in or settings.get("ledger") is not None):
            raise BadInput(
                f"{'checkpoint' if kept_in else 'ledger'}= was given, and noise_multiplier is 0: a "
                "run without noise can't be charged, and is not saved. Leave it out"
            )
        if clip_only:
            settings["noise_multiplier"] = LEAST_NOISE  # which isn't drawn
        resumed = {} if file is None else file.resumed(settings)
        try:
            planned = make_private(module, optimizer, rows, **{**settings, **resumed})
        except BudgetExceeded as error:
            error.add_note(_SET_ASIDE)
            raise
        _require_one_process(planned, clip_only=clip_only, checkpointed=kept_in is not None)

        def taken_by_script(planned: Run) -> ScriptedRun:
            run = ClipOnlyRun(planned) if clip_only else planned
            run.refuse_other_steps(NO_PRIVATE_STEP)
            return run

        def remake(before: ScriptedRun, plan: Plan, **resumed: Any) -> ScriptedRun:
            again = {**repeated, "plan": plan, "config": before.config}
            again |= {} if clip_only else {"ledger": before.ledger, **resumed}
            run = taken_by_script(make_private(module, optimizer, rows, **again))
            run.keep(**before.kept)
            return run

        self._script = script = ScriptRun(
            taken_by_script(planned), remake, batch_first=asked["batch_first"], kept_in=kept_in
        )
        if file is not None:
            script.go_on(file)
        criterion = (
            (asked["criterion"] or nn.CrossEntropyLoss(),)
            if asked["grad_sample_mode"] == "ghost"
            else ()
        )
        return (
            PrivateModule(script),
            PrivateOptimizer(script, optimizer),
            *criterion,
            PrivateLoader(script, loader),
        )

    @property
    def run(self) -> ScriptedRun:
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

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """The steps that were taken: noise multiplier, expected share of the rows, and number, for
        each change of the noise.

        For the eye: where batches are not drawn by Poisson's law the price does not follow from
        these. `run.ledger.event` is what was charged.
        """
        run = self.run
        adds_noise = not isinstance(run, ClipOnlyRun)
        noise = run.plan.noise_multipliers() if adds_noise else (0.0,) * run.plan.epochs
        rate = run.plan.sampling.expected_batch_size(run.examples) / run.examples
        history: list[tuple[float, float, int]] = []
        for epoch in range(-(-run.steps_done // run.steps_per_epoch)):
            begun = epoch * run.steps_per_epoch
            steps = min(run.steps_done - begun, run.steps_per_epoch)
            if history and history[-1][0] == noise[epoch]:
                steps += history.pop()[2]
            history.append((noise[epoch], rate, steps))
        return history

    def get_epsilon(self, delta: float, **options: Any) -> float:
        """The epsilon of what was charged so far, as if the number of steps had been fixed
        beforehand: an estimate.

        The guarantee, which a certificate claims, is for all epochs: `run.plan.guarantee(delta)`.
        Without noise there is none: infinite.
        """
        if isinstance(self.run, ClipOnlyRun):
            return math.inf
        return self.run.spent(delta).epsilon

    def close(self) -> None:
        """End the run, if there is one: what was not charged is given back. One that is kept in a
        file can be continued.
        """
        if self._script is not None:
            self._script.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *trace: object) -> None:
        """However the block ends, what was not charged is given back."""
        if self._script is not None:
            self._script.close(error)

    def publish(self, out: str | Path, **options: Any) -> Path:
        """End the run and write the module with its certificate; `options` are those of
        `pv.publish`.
        """
        with name_call("engine.publish("):
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

    @checked
    def save_checkpoint(
        self,
        *,
        path: str | Path | io.IOBase,
        module: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        checkpoint_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the run into a file, from which another process can go on with it.

        Guarantee: a run that goes on has the noise and the batches that it would have had, and is
        charged for all of its steps: it ends, bit for bit, where it would have ended. So the file
        holds the keys of the noise, and is as secret as the data. `publish` deletes it.

        Args:
            path: the file, the same for all calls. A stream is refused.
            module: the private one. With the optimizer it is saved in any case.
            optimizer: the private one.
            noise_scheduler: of the plan, and goes on with it.
            grad_clip_scheduler: of the plan, and goes on with it.
            checkpoint_dict: tensors and plain values of the script, which `load_checkpoint`
                returns.

        Raises:
            BadInput: a step is under way, or something can't be saved.
        """
        del noise_scheduler, grad_clip_scheduler  # parts of the plan, which the run goes on with
        script = self._of_run(module, optimizer)
        script.save(path, dict(checkpoint_dict or {}))

    @checked
    def load_checkpoint(
        self,
        *,
        path: str | Path | io.IOBase,
        module: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
    ) -> dict[str, Any]:
        """Go on with the run in a file that `save_checkpoint` wrote; what was given there as
        `checkpoint_dict`.

        It is called before the first pass over the loader, of an engine that was given the same
        arguments. The loader's next pass is that of the next epoch.

        Args:
            path: the file. A stream is refused.
            module: the private one. With the optimizer it gets the saved state in any case.
            optimizer: the private one.
            noise_scheduler: made as it was made then. It goes on with the run.
            grad_clip_scheduler: made as it was made then. It goes on with the run.

        Raises:
            BadInput: the file holds another run, or none; or this one has begun.
        """
        del noise_scheduler, grad_clip_scheduler  # parts of the plan, which the run goes on with
        script = self._of_run(module, optimizer)
        return dict(script.load(path))

    def _of_run(self, module: nn.Module | None, optimizer: Any) -> ScriptRun:
        """The script's run, of which these must be."""
        run = self.run
        if module is not None and getattr(module, "_module", module) is not run.model:
            raise BadInput(
                "module is not the one of this engine: expected the module that make_private "
                "returned, whose run the checkpoint holds. Leave it out, or give that one"
            )
        if optimizer is not None and (
            getattr(optimizer, "original_optimizer", optimizer) is not run.optimizer
        ):
            raise BadInput(
                "optimizer is not the one of this engine: expected the optimizer that make_private "
                "returned, whose run the checkpoint holds. Leave it out, or give that one"
            )
        assert self._script is not None
        return self._script


def _checkpoint_in(path: Any) -> ScriptCheckpoint | None:
    """What `save_checkpoint` wrote to a file, if it is there."""
    if path is not None and not isinstance(path, str | Path):
        raise BadInput(
            f"checkpoint is a {type(path).__name__}: expected the path of the file that "
            "engine.save_checkpoint(path=FILE) writes after a step"
        )
    return None if path is None or not Path(path).exists() else ScriptCheckpoint.load(path)


def _as_given(module: Any, optimizer: Any, loader: Any, ledger: Any) -> tuple[Any, Any, Any]:
    """What an earlier engine made private, as that one was given it."""
    if isinstance(module, PrivateModule):
        module = module.to_standard_module()
    if isinstance(module, DifferentiallyPrivateDistributedDataParallel):
        module = module.module
    if isinstance(optimizer, PrivateOptimizer):
        optimizer = optimizer.original_optimizer
    if type(module).__module__.startswith("opacus.") and hasattr(module, "_module"):
        raise BadInput(
            f"module is a {type(module).__name__} of Opacus', which reads the batch by itself: "
            "give the plain module that it was made of"
        )
    if not isinstance(loader, PrivateLoader):
        return module, optimizer, loader
    if ledger is None or loader.ledger is not ledger:
        warn(
            "the loader is one that another engine made private: two runs on the same rows add up, "
            "and the certificate of each claims its own part alone. Give both one "
            "ledger=pv.Ledger(pv.Budget(E, D))"
        )
    return module, optimizer, loader.original_loader


def _require_one_process(run: Run, *, clip_only: bool, checkpointed: bool) -> None:
    """Refuse several processes where a run takes one."""
    if clip_only and run.world.size > 1:
        raise BadInput(
            "noise_multiplier is 0, and there are several processes: a run without noise is "
            "for finding faults, in one process. Start one, or give a number above 0"
        )
    if checkpointed and run.world.size > 1:
        raise BadInput(
            "checkpoint= was given, and there are several processes: in this form a run is "
            "kept by one. To go on with a run on several use pv.make_private(checkpoint=FILE)"
        )


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


def _clip(clipping: str, norm: Any, noise_multiplier: float | None, adaptive: Any) -> Clip:
    """How gradients are clipped."""
    norms = set(norm) if isinstance(norm, Sequence) else {norm}
    if len(norms) != 1 or clipping not in ("flat", "per_layer", "adaptive"):
        raise BadInput(
            f"clipping is {clipping!r} with max_grad_norm {str(norm)[:40]}: expected 'flat' or "
            "'adaptive' with one norm, or 'per_layer' with one norm for all layers. For other "
            "clips give clip= to pv.make_private"
        )
    clip_norm = positive("max_grad_norm", norms.pop())
    if clip_norm > _MOST_NORM:
        if noise_multiplier != 0:
            warn(
                f"max_grad_norm is {clip_norm:g}, and {_MOST_NORM:g} is clipped to, which is no "
                "gradient's norm: noise is as large. Give about the norm of a gradient"
            )
        clip_norm = _MOST_NORM
    if clipping == "adaptive":
        return _adaptive(clip_norm, noise_multiplier, adaptive)
    if any(value is not None for value in adaptive.values()):
        name = next(name for name, value in adaptive.items() if value is not None)
        raise BadInput(
            f"{name} is for clipping='adaptive', and clipping is {clipping!r}: leave out one of "
            "them"
        )
    return Flat(clip_norm) if clipping == "flat" else PerLayer(clip_norm, parameters=True)


def _adaptive(clip_norm: float, noise_multiplier: float | None, asked: dict[str, Any]) -> Clip:
    """A clip that follows a quantile of the norms, by Opacus's arguments.

    The released count of unclipped examples has the standard deviation noise_multiplier
    sqrt(1 + share^2) / (2 share), which `unclipped_num_std` says; both are one release.
    """
    names = {
        "quantile": "target_unclipped_quantile",
        "rate": "clipbound_learning_rate",
        "least": "min_clipbound",
        "most": "max_clipbound",
    }
    settings = {name: float(asked[key]) for name, key in names.items() if asked[key] is not None}
    deviation = asked["unclipped_num_std"]
    if deviation is None:
        return Quantile(clip_norm, **settings)
    if not noise_multiplier:
        raise BadInput(
            "unclipped_num_std says the noise of the count beside that of the gradients, which is "
            "known with noise_multiplier= above 0: leave it out, for a share of a tenth"
        )
    if positive("unclipped_num_std", deviation) <= noise_multiplier / 2:
        raise BadInput(
            f"unclipped_num_std is {deviation:g}: expected more than half of noise_multiplier, "
            f"{noise_multiplier / 2:g}, or nothing is left for the gradients"
        )
    share = noise_multiplier / math.sqrt((2 * deviation) ** 2 - noise_multiplier**2)
    if not 1e-3 <= share <= 1:
        raise BadInput(
            f"unclipped_num_std is {deviation:g}, of which the count's share of the release is "
            f"{share:.2g}: expected a share from 0.001 to 1. Use about noise_multiplier x 5"
        )
    return Quantile(clip_norm, share=share, **settings)


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
