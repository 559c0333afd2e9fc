"""Small runs that were made with other libraries, as files that `privlearn certify` reads."""

from __future__ import annotations

import io
import json
import warnings
from functools import cache
from typing import Any

import dp_accounting
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.declared.declared_document import DeclaredRun, certify
from privlearn.declared.readers.dp_accounting import describe
from privlearn.declared.recorded_run import RunDeclaration

EXAMPLES, BATCH, EPOCHS, NOISE, DELTA = 200, 64, 3, 1.2, 1e-3
#: What is true of the runs of Opacus here.
TRUE: dict[str, Any] = {
    "sampling": "poisson",
    "examples": EXAMPLES,
    "batch_size": BATCH,
    "epochs": EPOCHS,
    "delta": DELTA,
}


@cache
def train_with_opacus(poisson: bool = True, accountant: str = "prv", forgets: int = 0) -> bytes:
    """The checkpoint of a run of Opacus; its accountant forgets the last steps if asked to."""
    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, 5)
    rows = TensorDataset(x, (x[:, 0] > 0).long())
    model: Any = nn.Linear(5, 2)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine(accountant=accountant)
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(rows, batch_size=BATCH, shuffle=True),
            noise_multiplier=NOISE,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
        if forgets:
            noise, rate, steps = engine.accountant.history[-1]
            engine.accountant.history[-1] = (noise, rate, steps - forgets)
        file = io.BytesIO()
        engine.save_checkpoint(path=file, module=model, optimizer=optimizer)
    return file.getvalue()


def state_of(*history: tuple[float, float, int], mechanism: str = "prv") -> bytes:
    """The state of an accountant of Opacus, as JSON."""
    return json.dumps({"history": history, "mechanism": mechanism}).encode()


def price_with_dp_accounting(
    event: Any, kind: str = "PLDAccountant", relation: str = "ADD_OR_REMOVE_ONE", **figures: Any
) -> bytes:
    """Events of dp-accounting as JSON, with the epsilon that it states at delta 1e-5."""
    neighbours = dp_accounting.NeighboringRelation[relation]
    accountant: Any = (
        dp_accounting.pld.PLDAccountant(neighbours)
        if kind == "PLDAccountant"
        else dp_accounting.rdp.RdpAccountant(neighboring_relation=neighbours)
    )
    accountant.compose(event)
    epsilon = float(accountant.get_epsilon(1e-5))
    described = describe(event, accountant, **{"delta": 1e-5, "epsilon": epsilon, **figures})
    return json.dumps(described).encode()


def certify_run(content: bytes, library: str = "opacus", **declared: Any) -> DeclaredRun:
    """A run as it is certified; true declarations of the runs of Opacus where nothing else is."""
    values = {**(TRUE if library == "opacus" else {}), **declared}
    if isinstance(values.get("adjacency"), str):
        values["adjacency"] = Adjacency.parse(values["adjacency"])
    return certify(content, library, RunDeclaration(**values))


def epsilons(run: DeclaredRun) -> tuple[float, float]:
    """The prices of the events as recorded, and as declared."""
    recomputed = run.document["recomputed_here"]
    return recomputed["as_recorded"]["epsilon"], recomputed["as_declared"]["epsilon"]
