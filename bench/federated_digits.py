"""DP-FedAvg on digits dealt to 300 clients, beside Flower's strategy with fixed clipping at the
server, and FedAvg without privacy.

`python bench/federated_digits.py [--quick] [--out docs/measured/federated.json]`. All train the
same linear network, by the same clients: some steps on about five images each. Each method and
epsilon has the same tries, of how many clients take part in a round and of the clipping norm (for
FedAvg: of the clients' rate), which are chosen by accuracy on images that no client has. The test
images are others again.

Flower draws a fixed number of clients for each round, without replacement, by a generator that
anyone may seed. The accountant has no price for such rounds but that of rounds with all clients, so
Flower's noise multiplier is that of so many Gaussian releases, for zero-out neighbours. Its clients
say that they have one row each: weighed by rows, the mean would have another sensitivity. Ours are
drawn by Poisson sampling, or all take part.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from sklearn.datasets import load_digits
from torch import Tensor, nn

import privlearn as pv
from privlearn import flower
from tests.support.local_grid import LocalGrid

CLIENTS, DELTA, EPSILONS = 300, 1e-3, (2.0, 8.0)
ROUNDS, STEPS, RATE = 10, 5, 0.5
#: Shares of the clients that take part in a round, clipping norms, and rates of clients without
#: clipping.
SHARES, NORMS, RATES = (0.2, 1.0), (1.0, 3.0), (0.5, 2.0)
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Setting:
    """What a run is given.

    Attributes:
        epsilon: the target; infinite without privacy.
        share: of the clients in a round.
        norm: that updates are clipped to.
        rate: of the clients' steps.
        seed: of the deal, the noise and who is drawn.
    """

    epsilon: float
    share: float
    norm: float
    rate: float
    seed: int


class Deal:
    """The digits: dealt to clients, held out for the tries, and for the test."""

    def __init__(self, seed: int) -> None:
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(x))
        inputs = torch.tensor(x[order] / 16, dtype=torch.float32, device="cpu")
        targets = torch.tensor(y[order], device="cpu")
        self.tries = inputs[:180], targets[:180]
        self.test = inputs[180:360], targets[180:360]
        rows = np.array_split(np.arange(360, len(x)), CLIENTS)
        self.clients = [(inputs[each], targets[each]) for each in rows]


def build_model() -> nn.Module:
    """A linear network that begins at zero."""
    network = nn.utils.skip_init(nn.Linear, 64, 10)
    with torch.no_grad():
        for each in network.parameters():
            each.zero_()
    return network


def accuracy(network: nn.Module, rows: tuple[Tensor, Tensor]) -> float:
    """The share of rows that are told rightly."""
    with torch.no_grad():
        return float((network(rows[0]).argmax(1) == rows[1]).float().mean())


def train_on(deal: Deal, rate: float) -> Callable[[nn.Module, Context], None]:
    """What a client does."""

    def train(network: nn.Module, context: Context) -> None:
        x, y = deal.clients[int(context.node_config["client"])]
        weight, bias = network.parameters()
        with torch.no_grad():
            for _ in range(STEPS):  # of SGD on cross-entropy, by its gradient: ten times as fast
                error = torch.addmm(bias, x, weight.T).softmax(1)
                error[torch.arange(len(y), device="cpu"), y] -= 1
                weight.addmm_(error.T, x, alpha=-rate / len(y))
                bias.sub_(error.sum(0), alpha=rate / len(y))

    return train


NODES: list[dict[str, Any]] = [{"client": client} for client in range(CLIENTS)]


def run_ours(setting: Setting, deal: Deal) -> nn.Module:
    """`train_federated`, FedAvg at the server."""
    share = setting.share
    sampling = pv.sampling.FullBatch() if share == 1 else pv.Poisson(share)
    plan = pv.Plan(
        sampling,
        epochs=ROUNDS // sampling.steps(CLIENTS),
        clip=pv.Flat(setting.norm),
        examples=CLIENTS,
        persons=True,
    ).calibrate(epsilon=setting.epsilon, delta=DELTA)
    app = flower.training_app(build_model, train_on(deal, setting.rate))
    result = flower.train_federated(
        LocalGrid(app, NODES),
        build_model(),
        plan,
        input_shape=(64,),
        streams=pv.Streams.new(seed=setting.seed),
    )
    return result.model


def flower_app(deal: Deal, rate: float) -> ClientApp:
    """A client as Flower's strategies ask for it, with one row, it says."""
    app, train = ClientApp(), train_on(deal, rate)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        network = build_model()
        network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        train(network, context)
        content = {
            "arrays": ArrayRecord(network.state_dict()),  # type: ignore[arg-type]
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    return app


def run_flower(setting: Setting, deal: Deal) -> nn.Module:
    """Flower's FedAvg, with its fixed clipping and noise at the server where there is an
    epsilon.
    """
    drawn = round(setting.share * CLIENTS)
    strategy: Any = FedAvg(
        fraction_train=setting.share,
        fraction_evaluate=0.0,
        min_train_nodes=drawn,
        min_available_nodes=CLIENTS,
    )
    if np.isfinite(setting.epsilon):
        plan = pv.Plan(pv.sampling.FullBatch(), epochs=ROUNDS).calibrate(
            epsilon=setting.epsilon, delta=DELTA
        )
        sigma = plan.noise_multipliers()[0]
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, sigma, setting.norm, drawn)
    np.random.seed(setting.seed)  # noqa: NPY002 - what Flower draws its noise from
    network = build_model()
    arrays = ArrayRecord(network.state_dict())  # type: ignore[arg-type]
    grid = LocalGrid(flower_app(deal, setting.rate), NODES)
    outcome = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
    network.load_state_dict(outcome.arrays.to_torch_state_dict())
    return network


def settings_of(epsilon: float) -> Iterable[Setting]:
    """The tries of a method."""
    if np.isfinite(epsilon):
        return [Setting(epsilon, share, norm, RATE, 0) for share, norm in product(SHARES, NORMS)]
    return [Setting(epsilon, share, np.inf, rate, 0) for share, rate in product(SHARES, RATES)]


def compare(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each method and epsilon: what was chosen, and accuracies on the test images."""
    rows = []
    for name, epsilon, run in (
        ("DP-FedAvg, privlearn", 2.0, run_ours),
        ("fixed clipping at the server, Flower", 2.0, run_flower),
        ("DP-FedAvg, privlearn", 8.0, run_ours),
        ("fixed clipping at the server, Flower", 8.0, run_flower),
        ("FedAvg, Flower", np.inf, run_flower),
    ):
        deal = Deal(0)
        tried = {each: accuracy(run(each, deal), deal.tries) for each in settings_of(epsilon)}
        best = max(tried, key=lambda each: tried[each])
        tests = []
        for seed in seeds:
            deal, setting = Deal(seed), Setting(epsilon, best.share, best.norm, best.rate, seed)
            tests.append(accuracy(run(setting, deal), deal.test))
        rows.append(
            {
                "method": name,
                "epsilon": epsilon if np.isfinite(epsilon) else None,
                "share": best.share,
                "norm": best.norm if np.isfinite(best.norm) else None,
                "rate": best.rate,
                "tries": {
                    f"{each.share:g} {each.norm:g} {each.rate:g}": round(figure, 4)
                    for each, figure in tried.items()
                },
                "accuracies": [round(each, 4) for each in tests],
                "mean": round(statistics.mean(tests), 4),
                "deviation": round(statistics.stdev(tests), 4) if len(tests) > 1 else None,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--out", type=Path, help="a file to write")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows = compare(SEEDS[:1] if options.quick else SEEDS)
    if options.out:
        comparison = {"clients": CLIENTS, "rounds": ROUNDS, "delta": DELTA, "rows": rows}
        options.out.write_text(json.dumps(comparison, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
