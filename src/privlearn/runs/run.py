"""How far a run has come: everything that training changes, taken down and put back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Account, Ledger
from privlearn.accounting.mechanisms import Gaussian
from privlearn.clipping.losses import Loss
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.runs.checkpoint import Checkpoint, Saved
from privlearn.runs.optimizers import MeanWeights
from privlearn.runs.task import leading
from privlearn.sampling import Sample
from privlearn.streams import Streams
from privlearn.transforms.base import PrivateTransform
from privlearn.transforms.modules import RowTransform


@final
class Diagnostics:
    """Collects, epoch by epoch, the mean loss, the share of clipped gradients, and how many examples were left out because
    they could not be computed or were not finite: private, for the curator.

    Only sums are kept: small tensors kept from every batch would split up the memory that the next ones need.
    """

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {"loss": [], "clipped_share": [], "left_out": []}
        self.clip_norm = math.inf
        self._drawn, self._rows, self._loss, self._clipped = 0, 0, 0.0, 0

    def begin(self, drawn: int, clip_norm: float) -> None:
        """A batch of `drawn` examples comes."""
        self._drawn += drawn
        self.clip_norm = clip_norm

    def see(self, losses: Tensor, norms: Tensor) -> None:
        """Some of its examples' losses and gradient norms."""
        self._rows += len(losses)
        self._loss += float(losses.sum(dtype=torch.float64))
        self._clipped += int((norms > self.clip_norm).sum())

    def end_epoch(self) -> None:
        """Add the epoch to `figures`."""
        if self._rows:
            self.figures["loss"].append(self._loss / self._rows)
            self.figures["clipped_share"].append(self._clipped / self._rows)
        self.figures["left_out"].append(self._drawn - self._rows)
        self._drawn, self._rows, self._loss, self._clipped = 0, 0, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {"figures": self.figures, "epoch": [self._drawn, self._rows, self._loss, self._clipped]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.figures = state["figures"]
        self._drawn, self._rows, self._loss, self._clipped = state["epoch"]


class Kept(Protocol):
    """What a run changes beside its weights: plain values, taken down and put back."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""


@final
class Run:
    """A run under way: what it changes as it goes, charged to its ledger, and kept in its checkpoint.

    Args:
        file: the checkpoint, if there is one.
        ledger: what is charged.
        network: the network.
        transforms: what stands in front of it; what is released before training is appended.
        gradients: the clipper.
        descent: the optimizer.
        streams: the random streams; of a run that is continued, at its state.
        figures: private figures.
        born: what was drawn from before it began: the initial weights, which may tell the learning rate, and which rows
            stand for whom.
        average: the mean of the weights, where one is published.

    Attributes:
        facts: what a run must have in common with its checkpoint.
        first: the epoch, and the step in it, that is to be released next.
        accuracies: of the validations after each epoch so far, public or released; empty where nothing looks at them.
    """

    def __init__(
        self,
        file: Checkpoint | None,
        ledger: Ledger,
        network: nn.Module,
        transforms: list[RowTransform],
        gradients: Kept,
        descent: torch.optim.Optimizer,
        streams: Streams,
        figures: Kept,
        born: dict[str, Any],
        average: MeanWeights | None = None,
    ) -> None:
        self._file, self._ledger = file, ledger
        self._network, self._transforms = network, transforms
        self._gradients, self._descent, self._streams, self._figures = gradients, descent, streams, figures
        self.facts: dict[str, str] = {}
        self.first = (0, 0)
        self.accuracies: list[float] = []
        self._epoch = 0
        self._drawn_from: Any = None
        self._born, self._average = born, average
        #: Released before the interruption: what each module states of itself, and its state.
        self._earlier: list[tuple[dict[str, Any], dict[str, Tensor]]] = []
        self._released: list[RowTransform] = []

    @contextmanager
    def charged(self, plan: Plan, saved: Saved | None) -> Iterator[None]:
        """A block in which the plan's event may be charged, and is under way from the checkpoint, if there is one.

        When the block ends, what was not charged is given back; an interrupted run that has a checkpoint keeps it.
        """
        with self._file.alone() if self._file else nullcontext():
            if saved is None:
                try:
                    self._ledger.begin(plan.event(), plan.neighbours, plan.unit)
                    self._save(0)
                except BaseException:
                    self._give_up()
                    raise
            else:
                require_same_run(saved, self.facts)
                self._ledger.resume(saved.plain["run"], plan.event(), plan.neighbours, plan.unit)
                self._restore(saved)
            try:
                yield
            except BaseException:
                if self._file is None:
                    self._ledger.settle()
                raise
            self._ledger.settle()

    def earlier(
        self,
        transform: PrivateTransform,
        x: Tensor,
        persons: Tensor | None,
        adjacency: Adjacency,
        y: Tensor | None = None,
    ) -> RowTransform:
        """The module that `transform` makes by a release of `x` (and of labels `y`), or made before the interruption."""
        if self._earlier:
            self._ledger.charge(transform.event(), adjacency)
            config, state = self._earlier.pop(0)
            module = transform.empty(config)
            module.load_state_dict(state, assign=True)  # in the type that they were released in
            self._add(module)
        else:
            module = transform.fit(x, adjacency, self._ledger, self._streams.noise, persons, y)
            self._add(module)
            self._save(0)
        return module

    def _add(self, released: RowTransform) -> None:
        self._released.append(released)
        self._transforms.append(released)

    def in_front(
        self, plan: Plan, public: Sequence[RowTransform | None], x: Tensor, y: Tensor | None, persons: Tensor | None
    ) -> Tensor:
        """`x` behind the transforms of the plan's front that follow the public ones at its beginning.

        Args:
            plan: with the front.
            public: the modules of its public transforms, and None for each that is made by a release.
            x: rows behind those at its beginning.
            y: their labels.
            persons: the rows of each person, where persons are examples.
        """
        first = len(leading(public))
        for transform, module in zip(plan.front[first:], public[first:], strict=True):
            if isinstance(transform, PrivateTransform):
                module = self.earlier(transform, x, persons, plan.neighbours, y)
            elif module is not None:
                self._transforms.append(module)
            assert module is not None
            with torch.no_grad():
                x = module(x)
        return x

    @contextmanager
    def ending_if_it_fails(self) -> Iterator[None]:
        """A block whose failure ends the run: there is no point in going on with it, and it keeps nothing.

        An interruption is no failure: what was spent would be lost.
        """
        try:
            yield
        except Exception:
            self._give_up()
            raise

    def _give_up(self) -> None:
        self._ledger.settle()
        if self._file:
            self._file.delete()

    def released(self, epoch: int) -> bool:
        """Whether all of the epoch was released before an interruption: whoever asks charges it, and does nothing else."""
        return epoch < self.first[0]

    def batches(
        self, plan: Plan, epoch: int, noise_multiplier: float, present: int, account: Account
    ) -> Iterator[tuple[int, Sample]]:
        """The batches of an epoch that are still to be released, each with its number.

        A batch that was released before an interruption is charged here. Before any other a checkpoint is written, if it
        is time.
        """
        self._begin_epoch(epoch)
        for step, sample in enumerate(plan.sampling.draw(present, self._streams.sampling)):
            if (epoch, step) < self.first:
                sample.spend(Gaussian(noise_multiplier), plan.neighbours, account)
                continue
            if self._file and self._file.due:
                self._save(step)
            yield step, sample

    def end(self, epochs: int) -> None:
        """Write the last checkpoint: nothing is left to release."""
        self._begin_epoch(epochs)
        self._save(0)

    def _begin_epoch(self, epoch: int) -> None:
        """Remember where the epoch's batches are drawn from."""
        self._epoch, self._drawn_from = epoch, self._streams.state()["sampling"]

    def _save(self, step: int) -> None:
        if self._file is None:
            return
        now = self._streams.state()
        tensors, optimizer = _flattened(self._descent)
        tensors |= {f"network.{name}": value for name, value in self._network.state_dict().items()}
        for number, transform in enumerate(self._released):
            tensors |= {f"front.{number}.{name}": value for name, value in transform.state_dict().items()}
        if self._average:
            tensors |= {f"average.{name}": value for name, value in self._average.tensors().items()}
        tensors["generator"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors |= {f"generator.{n}": state for n, state in enumerate(torch.cuda.get_rng_state_all())}
        plain = {
            "facts": self.facts,
            "run": self._ledger.run,
            "epoch": self._epoch,
            "step": step,
            "front": [transform.config() for transform in self._released],
            "streams": {
                **now,
                "sampling": self._drawn_from or now["sampling"],
                "initialisation": self._born["initialisation"],
            },
            "born": self._born,
            "optimizer": optimizer,
            "gradients": self._gradients.state_dict(),
            "figures": self._figures.state_dict(),
            "accuracies": self.accuracies,
            "averaged": self._average.steps if self._average else None,
        }
        self._file.write(Saved(tensors, plain))

    def _restore(self, saved: Saved) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            found = {name: value for name, value in saved.tensors.items() if name.startswith(prefix)}
            return {name.removeprefix(prefix): value for name, value in found.items()}

        self._network.load_state_dict(part("network."))
        _unflatten(self._descent, part("optimizer."), saved.plain["optimizer"])
        self._gradients.load_state_dict(saved.plain["gradients"])
        self._figures.load_state_dict(saved.plain["figures"])
        if self._average:
            self._average.restore(part("average."), saved.plain["averaged"])
        self._earlier = [(config, part(f"front.{number}.")) for number, config in enumerate(saved.plain["front"])]
        self.first = (saved.plain["epoch"], saved.plain["step"])
        torch.set_rng_state(saved.tensors["generator"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state_all(list(part("generator.").values()))


def facts(
    network: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    persons: Tensor | None,
    shown: tuple[Tensor, Tensor] | None,
    transform: object = None,
    **others: Any,
) -> dict[str, str]:
    """What a run must have in common with a checkpoint to go on from it, as texts to compare.

    Args:
        network: the network.
        loss: the loss.
        x: inputs.
        y: targets.
        persons: the rows of each person, where persons are examples.
        shown: public validation rows.
        transform: how copies of examples are changed.
        others: settings, by name.
    """
    shapes = {name: (tuple(value.shape), str(value.dtype)) for name, value in network.state_dict().items()}
    return {
        **{name.replace("_", " "): str(value) for name, value in others.items()},
        "network": f"{network} {shapes}",
        "loss": _name(loss),
        "copies": _name(transform),
        "device": str(next(network.parameters()).device),
        "data": _digest(x, y, *([] if persons is None else [persons])),
        "validation rows": _digest(*(shown or ())),
        "versions": f"privlearn {version('privlearn')}, torch {torch.__version__}",
        "number of threads": str(torch.get_num_threads()),
    }


def require_same_run(saved: Saved, now: dict[str, str]) -> None:
    """Refuse to go on with other data or settings: the same noise on other sums would give both away.

    Raises:
        BadInput: naming what differs.
    """
    then = saved.plain["facts"]
    differ = [name for name in now if then.get(name) != now[name]]
    differ = [name for name in differ if name != "plan"] or differ  # which says the same at length
    if differ or set(then) != set(now):
        shown = "; ".join(
            f"its {name} was {then.get(name)} and is {now[name]}"
            if len(str(then.get(name))) + len(now[name]) < 200
            else f"its {name} differs"
            for name in differ
        )
        raise BadInput(
            f"the checkpoint is of another run: {shown or 'it has other settings'}. Go on with what it began with, or delete "
            "it and begin anew (what it was charged stays charged)"
        )


def _name(given: object) -> str:
    """A module or a text as it is, a function by its name: two of one name can't be told apart."""
    if given is None or isinstance(given, nn.Module | str):
        return str(given)
    return str(getattr(given, "__qualname__", type(given).__qualname__))


def _digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _flattened(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by name, and plain values.

    Raises:
        BadInput: it keeps something else, so that it can't be saved without pickling.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {"groups": state["param_groups"], "numbers": {}}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                plain["numbers"][f"{index}.{name}"] = value
    try:
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{type(optimizer).__name__} keeps values that can't be saved without pickling: {error}. Train without a "
            "checkpoint, or with another optimizer"
        ) from error
    return tensors, plain


def _unflatten(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Put back what `_flattened` took."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **plain["numbers"]}.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": plain["groups"]})
