"""User-level DP-FedAvg over Flower: clients train on their rows, the server adds noise to the sum
of their updates (McMahan et al. 2018), on the same ledger as every other run.

The server's optimizer takes the mean update, with its sign turned, as a gradient (Reddi et al.
2021): SGD at rate 1 is FedAvg, Adam is FedAdam. A clip may follow the updates (Andrew et al. 2021),
and noise may be correlated over rounds (Kairouz et al. 2021), as in every run of a `Plan`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, final

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from privlearn._checks import count, positive, require_fit, with_plain_numbers
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.clips import Clip, Quantile
from privlearn.core.devices import PROCESSOR
from privlearn.core.mechanisms.release import release
from privlearn.core.plan import Plan
from privlearn.core.processes import require_one_process
from privlearn.core.sampling import Sample
from privlearn.core.schedules import Constant
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, ProcessLost, TrainingWarning, warn
from privlearn.flower.requests import await_nodes
from privlearn.flower.summation import InTheClear, Summation, Total
from privlearn.flower.sums import bound_sum
from privlearn.flower.updates import UPDATE, UpdateGrid, pack_model, sum_squares
from privlearn.runs.checkpoint import Checkpoint, facts
from privlearn.runs.given import OptimizerFactory, gradient_clip, optimizer_from, require_finite
from privlearn.runs.optimizers import Descent, remember_released
from privlearn.runs.result import PrivateDiagnostics, Result, Scalars, training_facts
from privlearn.runs.session import TrainingSession
from privlearn.training.epoch_noise import planned_noise

_log = logging.getLogger(__name__)

#: Layers whose running statistics are no parameters, so that clients' never reach the server.
_RUNNING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class RunOptions(TypedDict, total=False):
    """How a run is charged, drawn and kept, by name: as of every run."""

    ledger: Ledger | None
    streams: Streams | None
    checkpoint: Checkpoint | str | Path | None


@with_plain_numbers
def train_federated(
    grid: Grid,
    model: nn.Module,
    plan: Plan,
    *,
    input_shape: Sequence[int],
    server_optimizer: OptimizerFactory | None = None,
    summation: Summation = InTheClear(),  # noqa: B008 - it keeps nothing
    timeout: float = 600.0,
    **options: Unpack[RunOptions],
) -> Result:
    """Train a model on the rows of the clients of a Flower federation, with differential privacy
    for each client: DP-FedAvg.

    Guarantee: the model is `plan.guarantee(delta)`-DP for the plan's adjacency, for a person with
    all their rows, if each person's rows are with one client and each node is another client. The
    ledger is charged exactly `plan.event()`, each round before its noise is drawn. A client moves
    the sum of a round by the clipping norm at most, whatever it sends; in a secure sum, where the
    server can't read what one sends, if it runs the app. How many rows it has is never asked for.
    Clients have places at random, so that one that is not there moves no other. Who was drawn, and
    who answered, is private: a client that is absent, fails or sends what is of no use counts as an
    update of zero, and sums are divided by the expected number of clients in a round, which is
    public. `Result.private_diagnostics` has how many were asked and how many answered.

    Args:
        grid: what Flower gives to the server app.
        model: the global network; its trainable parameters are trained, in place.
        plan: with `persons=True`, and `examples`, the declared number of clients. Its sampling
            draws the clients of each round at the server; an epoch has `plan.sampling.steps`
            rounds. Its clip is `pv.Flat` or `pv.Quantile`.
        input_shape: of one example, for those who load the model.
        server_optimizer: a function from parameters to an optimizer of torch.optim. By default SGD
            at rate 1: FedAvg.
        summation: how clients' updates are added up; the clients' has to be the same.
        timeout: seconds to wait for the clients to connect, and for the replies of each round.
        options: `ledger`, `streams` and `checkpoint`, as of `pv.Run`. A run that is resumed from
            its checkpoint, by the same call, charges nothing twice, and adds to each sum the noise
            that it had: sums are kept until the next one. Clients that were asked and had not
            answered are asked again. The noise of a new sum has a new key, so that a copy of the
            checkpoint never has it, too; not so with seeded streams. Nodes have to keep their
            numbers. An older copy is refused once the run has ended on a ledger in a file.

    Raises:
        BudgetExceeded: the plan does not fit the ledger; before any client is asked.
        BadInput: a plan of examples, a model with running statistics, no node or more than the
            declared clients, or a secure sum of clients that are sampled; before any client is
            asked. Or weights that are no longer finite.
        ProcessLost: no client is connected any more, or a secure sum failed, or is longer than
            clipped updates can make it.
    """
    require_one_process("federated training")
    require_fit("grid", grid, Grid)
    _require_plan(plan)
    _require_model(model)
    require_fit("summation", summation, Summation)
    _require_enough(plan, summation, int(plan.examples or 0))
    require_fit("input_shape", input_shape, Sequence[int])
    shape = [count("input_shape", size) for size in input_shape]
    run = _FederatedRun(
        _Federation(grid, summation, positive("timeout", timeout), int(plan.examples or 0)),
        model,
        _session(plan, options),
        _fedavg if server_optimizer is None else server_optimizer,
    )
    return run.run(shape)


def _fedavg(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def _require_plan(plan: Any) -> None:
    require_fit("plan", plan, Plan)
    if not plan.persons:
        raise BadInput(
            "the plan is for rows in one place: expected one for clients of a federation, with "
            "their public number, pv.Plan(..., persons=True, examples=300)"
        )
    if plan.examples is None:
        raise BadInput(
            "the plan does not say how many clients there are, which is public: expected "
            "pv.Plan(..., persons=True, examples=300)"
        )


def _require_enough(plan: Plan, summation: Summation, clients: int) -> None:
    """Refuse batches for which a secure sum may have too few clients: a run would stop at one."""
    drawn = plan.sampling.expected_batch_size(clients)
    if summation.least(clients) > 1 and drawn < clients:
        raise BadInput(
            f"{type(summation).__name__} needs a number of clients in each round that the plan's "
            f"{plan.sampling.kind} sampling does not promise: expected all of them. Use "
            "pv.sampling.FullBatch(), or InTheClear() at the clients and the server"
        )


def _require_model(model: Any) -> None:
    require_fit("model", model, nn.Module)
    for name, layer in model.named_modules():
        if isinstance(layer, _RUNNING) and layer.track_running_stats:
            raise BadInput(
                f"{name or 'the model'} is a {type(layer).__name__} with running statistics, which "
                "clients compute and do not send: expected a layer without, such as "
                "torch.nn.GroupNorm"
            )
    if not any(each.requires_grad for each in model.parameters()):
        raise BadInput("no parameter of the model requires a gradient: expected one to train")


def _session(plan: Plan, options: RunOptions) -> TrainingSession:
    """The session of a run, whose sums no one can compute again: clients answer once."""
    unknown = sorted(set(options) - set(RunOptions.__annotations__))
    if unknown:
        raise TypeError(f"train_federated() has no argument {unknown[0]!r}")
    file, streams = Checkpoint.of(options.get("checkpoint")), options.get("streams")
    ledger: Any = options.get("ledger")
    require_fit("streams", streams, Streams | None)
    if ledger is not None and not hasattr(ledger, "require_room"):
        require_fit("ledger", ledger, Ledger)
    if (file and file.replayable) or (streams and streams.noise.secret is not None):
        raise BadInput(
            "clients may answer otherwise when they are asked again, so that their sums can't be "
            "replayed: expected a plain checkpoint, or none, and streams of new keys"
        )
    return TrainingSession(plan, ledger, streams, file)


@final
class _Federation:
    """The clients: which node stands for which of the declared number, from the beginning on.

    Places are settled once, at random among all that are declared: which node has which follows
    from no one's wish. Whether a node is there moves no other to another place, and so to another
    batch: without it the other places are distributed as with it.
    """

    def __init__(self, grid: Grid, summation: Summation, timeout: float, clients: int) -> None:
        self.grid, self.summation = grid, summation
        self.timeout, self.clients = timeout, clients
        self._connected: list[int] = []
        self._nodes: dict[int, int] = {}  # by place

    def connect(self) -> None:
        """Wait for the clients.

        Raises:
            BadInput: there are more than were declared.
        """
        connected = len(list(self.grid.get_node_ids()))
        if connected > self.clients:
            raise BadInput(
                f"{connected} nodes are connected, and the plan declares {self.clients} clients: "
                f"nothing was asked or charged. Expected examples={connected} or more"
            )
        self._connected = await_nodes(self.grid, self.clients, self.timeout)
        if not self._connected:
            raise BadInput(
                f"no client was connected within {self.timeout:g} seconds: expected some. Nothing "
                "was charged. Start the clients, or give a longer timeout="
            )

    def settle_places(self, draws: np.random.Generator) -> None:
        """Give each node that is connected a place of its own.

        Args:
            draws: secret, as what draws batches.
        """
        places = draws.choice(self.clients, len(self._connected), replace=False)
        self._nodes = dict(zip(places.tolist(), self._connected, strict=True))

    def ask(
        self, places: Sequence[int], network: nn.Module, names: list[str], on: UpdateGrid
    ) -> Total:
        """The sum of the updates of the clients at these places, of those that answer.

        Raises:
            ProcessLost: none is connected, or so many clipped updates can't have the sum.
        """
        connected = set(self.grid.get_node_ids())
        if not connected & set(self._nodes.values()):
            raise ProcessLost(
                "none of the clients that this run began with is connected: expected nodes with "
                "the same numbers. In the simulation engine a new start gives them other numbers, "
                "and a run can't go on there. Connect them again, and resume from the checkpoint"
            )
        drawn = [self._nodes[place] for place in places if place in self._nodes]
        nodes = [node for node in drawn if node in connected]
        total = self.summation.requiring(on.fits).add_up(
            self.grid,
            nodes,
            UPDATE,
            pack_model(network, names, on),
            size=on.numbers,
            bound=on.most,
            timeout=self.timeout,
        )
        # before it is kept, or a run that is resumed would meet it again and again
        if sum_squares(total.values) > len(total.nodes) ** 2 * on.squares:
            raise ProcessLost(
                "the sum of a round is longer than clipped updates can make it: expected clients "
                "that all run training_app, which the server can't see under masks. Nothing was "
                "released of it. Go on from the checkpoint to ask again"
            )
        return total

    def state_dict(self) -> dict[str, Any]:
        """The places."""
        return {"nodes": [[place, str(node)] for place, node in self._nodes.items()]}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on with the places of a state."""
        self._nodes = {int(place): int(node) for place, node in state["nodes"]}


@final
class _KeptSum:
    """The sum of the round that is under way, from before its noise is drawn: a resumed run adds
    that noise to this sum, and asks no client again.
    """

    def __init__(self) -> None:
        self._round: int | None = None
        self._sum = torch.zeros(0, dtype=torch.float64, device=PROCESSOR)
        self._nodes = 0

    def put(self, number: int, total: Tensor, nodes: int) -> None:
        """Keep the sum of a round."""
        self._round, self._sum, self._nodes = number, total.clone(), nodes

    def forget(self) -> None:
        """The sum was released."""
        self._round, self._sum, self._nodes = None, self._sum[:0], 0

    def get(self, number: int) -> tuple[Tensor, int] | None:
        """The sum of this round and how many nodes are in it; None if it is not there."""
        return (self._sum.clone(), self._nodes) if self._round == number else None

    def state_dict(self) -> dict[str, Any]:
        """The sum, as secret as the rows."""
        return {"round": self._round, "sum": self._sum.clone(), "nodes": self._nodes}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on with a sum that was kept."""
        self._round, self._sum, self._nodes = state["round"], state["sum"], state["nodes"]


@final
class _FederatedRun:
    """The rounds of one run."""

    def __init__(
        self,
        federation: _Federation,
        model: nn.Module,
        session: TrainingSession,
        server_optimizer: OptimizerFactory,
    ) -> None:
        plan = session.plan
        self.federation, self.model, self.training = federation, model, session
        self.clip: Clip = gradient_clip(plan)
        self.trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self.size = sum(each.numel() for each in self.trained.values())
        self.sums = [torch.zeros_like(each) for each in self.trained.values()]
        self.divisor = plan.sampling.expected_batch_size(federation.clients)
        self.steps = plan.sampling.steps(federation.clients)
        plan.sampling.require_rows(federation.clients)
        session.count_examples(federation.clients, None)
        session.draws(federation.clients)
        self.optimizer = optimizer_from(server_optimizer, list(self.trained.values()))
        if getattr(self.optimizer, "moves", False):
            raise BadInput(
                f"server_optimizer is {type(self.optimizer).__name__}, which has gradients "
                "computed at other weights than it steps from, and clients begin at the model's: "
                "expected another, such as torch.optim.SGD"
            )
        self.descent = Descent(self.optimizer, Constant(), list(self.trained.values()), session)
        self.noise = planned_noise(plan, session, federation.clients, self.steps)
        self.kept, self.norms = _KeptSum(), Scalars([self.clip.clip_norm])
        self.asked, self.answered = Scalars([]), Scalars([])
        session.parts |= {
            "network": model,
            "optimizer": self.descent,
            "federation": federation,
            "kept sum": self.kept,
            "clipping norm": self.norms,
            "asked": self.asked,
            "answered": self.answered,
        }
        self.public_facts = self._facts()

    def _facts(self) -> dict[str, Any]:
        """Public values of the run, for its certificate; a resumed run must have them in common."""
        plan, session = self.training.plan, self.training
        public = {
            **training_facts(
                self.federation.clients, plan.epochs * self.steps, self.optimizer, Constant(), []
            ),
            "noise": "on a grid" if session.streams.noise.discrete else "floating point",
            "federation": {"server_read": self.federation.summation.server_sees},
        }
        if session.file:
            names = ", ".join(self.trained)
            session.facts = facts(
                self.model, None, [], None, None, plan=plan, trained=names, **public
            )
        return public

    def run(self, input_shape: list[int]) -> Result:
        """All rounds, and the result."""
        session = self.training
        self.federation.connect()
        if session.saved is None:
            self.federation.settle_places(session.streams.sampling)
        with session.charging():
            session.account = self.noise.begin(session.agreed)
            for epoch, noise_multiplier in session.epochs(self.noise):
                self._run_epoch(epoch, noise_multiplier)
            session.end(session.plan.epochs)
        if not any(self.answered.values):
            warn(  # for the curator alone, as private_diagnostics are: who answered is private
                "no client's update arrived in any round, so that the model is noise alone: "
                "expected clients that answer. Look at the clients' logs, and whether their "
                "network and summation are the server's. Don't publish this model. This message "
                "is private: it says who answered",
                TrainingWarning,
            )
        self.descent.look()
        remember_released(self.trained.values())
        shapes = {"input_shape": input_shape, "network_input_shape": input_shape}
        return Result(
            model=nn.Sequential(self.model).eval(),
            ledger=session.ledger,
            plan=session.plan,
            method="dp-fedavg",
            facts=self.public_facts | session.facts_of_leaving(),
            architecture=shapes,
            seeded=session.streams.seeded,
            private_diagnostics=PrivateDiagnostics(
                {"asked": self.asked.values, "answered": self.answered.values}
            ),
            checkpoint=session.file,
        )

    def _run_epoch(self, epoch: int, noise_multiplier: float) -> None:
        session = self.training
        norm = self.clip.at(epoch)
        if norm is not None:
            self.norms.values[:] = [norm]
        drawn = session.drawn(epoch, noise_multiplier, self.federation.clients)
        for step, sample in drawn:
            self._run_round(epoch, step, sample, noise_multiplier)
        session.end_batches()
        with session.or_abandon():
            when = f"epoch {epoch + 1} of {session.plan.epochs}"
            require_finite(self.trained.values(), self.descent.first, when)

    def _run_round(self, epoch: int, step: int, sample: Sample, noise_multiplier: float) -> None:
        """Ask the clients that were drawn, charge the ledger, add noise, and let the server's
        optimizer step.
        """
        session, plan = self.training, self.training.plan
        on = self._grid()
        summed = self.kept.get(session.steps_done)
        if summed is None:
            self._require_chargeable()
            summed = self._ask(sample, on)
            self._renew_noise()
            self.kept.put(session.steps_done, *summed)
            session.keep(step, now=True)
        bound = self.clip.norm(on.clip_norm, 1)
        bounded = bound_sum(*summed, bound, plan.neighbours, sample)
        with session.generators(), self.descent.step(self.sums):
            ((noisy,),) = release(  # charged, then noised: public from here on
                bounded,
                noise_multiplier=noise_multiplier,
                ledger=session.account,
                stream=self.noise.stream,
            )
            self._put_gradient(noisy, on)
            self.descent.hand_over(noise_multiplier * bounded.sensitivity / self.divisor)
            self.optimizer.step()
        self.kept.forget()
        session.record(sample, (noisy,))
        _log.info("round %d of %d was released", session.steps_done, plan.epochs * self.steps)

    def _require_chargeable(self) -> None:
        """Refuse to ask for a new sum in a run that has ended: what was charged is for those that
        were released then.

        Raises:
            BadInput: it has, and its checkpoint is an older one.
        """
        if self.training.ledger.has_ended:
            raise BadInput(
                "the run has ended on its ledger, and this checkpoint is an older one: clients "
                "would give another sum, whose release nothing was charged for. Expected the "
                "checkpoint with which it ended; or begin anew, without it"
            )

    def _renew_noise(self) -> None:
        """Draw a new key for the noise of a sum that no one can compute again. A run that goes on
        from a copy of the checkpoint asks clients for another sum, which must not have this noise.
        """
        streams = self.training.streams
        if not streams.seeded:
            key, _, *others = streams.positions()
            streams.move_to((secrets.token_bytes(len(key)), 0, *others))

    def _grid(self) -> UpdateGrid:
        share = self.clip.share if isinstance(self.clip, Quantile) else 0.0
        return UpdateGrid(self.norms.values[0], self.size, share)

    def _ask(self, sample: Sample, on: UpdateGrid) -> tuple[Tensor, int]:
        """The sum of the clients that were drawn, and how many are in it."""
        names = list(self.trained)
        total = self.federation.ask(sample.indices.tolist(), self.model, names, on)
        self.asked.values.append(len(sample))
        self.answered.values.append(len(total.nodes))
        if not total.nodes and len(sample):
            _log.warning("no update arrived of the clients that were asked; see their logs")
        values = torch.from_numpy(total.values).double() * on.step
        return values, len(total.nodes)

    def _put_gradient(self, noisy: Tensor, on: UpdateGrid) -> None:
        """Turn the noisy sum into the gradient of the server's optimizer, and move the clip if it
        follows the updates.
        """
        with torch.no_grad():
            mean, start = noisy[: self.size] / -self.divisor, 0
            for gradient in self.sums:
                end = start + gradient.numel()
                gradient.copy_(mean[start:end].view_as(gradient))
                start = end
        if isinstance(self.clip, Quantile):
            reported = float(noisy[-1]) / (on.flag * on.step) * self.clip.share * on.clip_norm
            self.norms.values[:] = [self.clip.moved(on.clip_norm, reported, self.divisor)]
