"""Named checks that every way to spend warns of a target that promises next to nothing: once, and
no other target.
"""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module, util
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import numpy as np
import pandas
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import PrivacyWarning
from privlearn.methods.pate import Estimator, PatePlan, Student, Trained, Votes
from privlearn.methods.statistics import (
    FisherPlan,
    LeastSquaresPlan,
    MetricsPlan,
    RidgePlan,
    RowsPlan,
    SelectionPlan,
)
from privlearn.methods.tuning import Candidate, RandomStopping
from privlearn.sklearn.estimator import PrivateEstimator
from tests.support.checks import check, must_raise
from tests.support.vision import make_torchvision_importable

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (40, 3)).astype(np.float32)
Y = (X[:, 0] > 0.5).astype(np.int64)
DATA = pv.Dataset(X, Y, classes=2, low=0.0, high=1.0)
VALUES = pv.Dataset(X, X[:, 0], target_bounds=(0.0, 1.0), low=0.0, high=1.0)
Target = dict[str, Any]
#: One target that promises something, and one that promises nothing twice over.
GOOD, HOLLOW = {"epsilon": 4.0, "delta": 1e-3}, {"epsilon": 30.0, "delta": 0.03}
STEPS = pv.Plan(pv.Poisson(0.2), epochs=1, clip=pv.Flat(1.0))


def network() -> nn.Linear:
    return nn.Linear(3, 2)


def loader() -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=8, shuffle=True
    )


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def by_dpsgd(target: Target, folder: Path) -> None:
    pv.dpsgd(STEPS.calibrate(**target), network(), nn.CrossEntropyLoss(reduction="none"), DATA)


def by_run(target: Target, folder: Path) -> None:
    with pv.Run(
        STEPS.calibrate(**target), network(), nn.CrossEntropyLoss(reduction="none"), DATA
    ) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)


def by_make_private(target: Target, folder: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pv.make_private(
        model, optimizer, loader(), epochs=1, max_grad_norm=1.0, **target
    ) as private:
        for batch in private.batches():
            private.step(batch, loss_of)


def by_opacus(target: Target, folder: Path) -> None:
    model = network()
    model, optimizer, batches = pv.opacus.PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader(),
        epochs=1,
        max_grad_norm=1.0,
        target_epsilon=target["epsilon"],
        target_delta=target["delta"],
    )
    for x, y in batches:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(x), y).backward()
        optimizer.step()


def by_lightning(target: Target, folder: Path) -> None:
    import lightning.pytorch as pl

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.2)

    trainer = pl.Trainer(
        strategy=pv.lightning.PrivateStrategy(max_grad_norm=0.5, **target),
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Classifier(), loader())


def by_hugging_face(target: Target, folder: Path) -> None:
    from tests.support import texts

    texts_of = texts.texts()
    rows = len(texts_of)
    delta = target["delta"] if target is GOOD else 1.2 / rows
    trainer = pv.huggingface.PrivateTrainer(
        texts.gpt2(0),
        texts.arguments(folder / "progress", max_steps=-1, num_train_epochs=1),
        train_dataset=texts_of,
        data_collator=texts.padded,
        epsilon=target["epsilon"],
        delta=delta,
        max_length=texts.LENGTH,
    )
    trainer.train()


def by_dpmac(target: Target, folder: Path) -> None:
    plan = pv.Plan(pv.Poisson(0.2), epochs=1, clip=pv.mac.Derivatives(1.0)).calibrate(**target)
    pv.dpmac(plan, nn.Sequential(nn.Linear(3, 2)), "mse", (X, X[:, :2]))


def by_pate(target: Target, folder: Path, keep: str | None = None) -> None:
    from sklearn.naive_bayes import GaussianNB

    plan = PatePlan(10, 5, Votes(2), adjacency="zero_out").calibrate(**target)
    public = pv.Dataset(RNG.uniform(0, 1, (10, 3)).astype(np.float32), None, public=True)
    student = Student(lambda shape: nn.Linear(3, 2), epochs=1)
    pv.pate(
        plan,
        Trained(DATA, Estimator(GaussianNB), 5),
        None,
        public,
        student,
        keep=keep and folder / keep,
    )


def by_tune(target: Target, folder: Path) -> None:
    def train(candidate: Candidate, rows: Any, ledger: Any, streams: Any) -> Any:
        loss = nn.CrossEntropyLoss(reduction="none")
        return pv.dpsgd(candidate.plan, network(), loss, rows, ledger=ledger, streams=streams)

    plan = RandomStopping((Candidate("one", STEPS), Candidate("two", STEPS)), mean=1.0).calibrate(
        **target
    )
    pv.tune(plan, train, DATA)


def by_draft(target: Target, folder: Path) -> None:
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    pv.statistics.draft_schema(frame, target="b", budget=pv.Budget(**target), numbers=["a", "b"])


def classes(kind: Any, release: Any, **more: Any) -> Callable[[Target, Path], object]:
    return lambda target, folder: release(
        kind(2, 3, row_norm=2.0, **more).calibrate(**target), DATA
    )


def by_evaluate(target: Target, folder: Path) -> None:
    pv.evaluate(network(), X, Y, paid=MetricsPlan(2).calibrate(**target))


def by_boost(target: Target, folder: Path) -> None:
    pv.boosting.boost(pv.boosting.plan_for(DATA, adjacency="zero_out").calibrate(**target), DATA)


#: By the name of what is called.
DOORS: dict[str, Callable[[Target, Path], object]] = {
    "train": lambda target, folder: pv.train(DATA, epochs=1, features="raw", **target),
    "dpsgd": by_dpsgd,
    "Run": by_run,
    "make_private": by_make_private,
    "PrivacyEngine": by_opacus,
    "PrivateStrategy": by_lightning,
    "PrivateTrainer": by_hugging_face,
    "dpmac": by_dpmac,
    "boost": by_boost,
    "pate": by_pate,
    "ask_teachers": lambda target, folder: by_pate(target, folder, keep="answers"),
    "tune": by_tune,
    "draft_schema": by_draft,
    "fisher": classes(FisherPlan, pv.statistics.fisher, keep=2, adjacency="zero_out"),
    "select_features": classes(
        SelectionPlan, pv.statistics.select_features, keep=2, adjacency="zero_out"
    ),
    "least_squares": classes(LeastSquaresPlan, pv.statistics.least_squares, adjacency="zero_out"),
    "ridge": lambda target, folder: pv.statistics.ridge(
        RidgePlan(3, row_norm=2.0, low=0.0, high=1.0, adjacency="zero_out").calibrate(**target),
        VALUES,
    ),
    "release_features": classes(
        RowsPlan, pv.statistics.release_features, keep=2, adjacency="zero_out"
    ),
    "evaluate": by_evaluate,
}


def estimators() -> dict[str, type[PrivateEstimator]]:
    """All that there are."""
    each = {name: getattr(pv.sklearn, name) for name in pv.sklearn.__all__}
    return {
        name: kind
        for name, kind in each.items()
        if isinstance(kind, type) and issubclass(kind, PrivateEstimator)
    }


def by_estimator(name: str, target: Target) -> None:
    from sklearn.base import is_regressor

    made = estimators()[name]().set_params(**target)
    declared = {"classes": [0, 1], "bounds": (0, 1), "target_bounds": (0, 1), "options": None}
    made.set_params(
        **{own: value for own, value in declared.items() if own in made.get_params(deep=False)}
    )
    if "param_grid" in made.get_params(deep=False):
        made.set_params(
            estimator=pv.sklearn.DPRidge(bounds=(0, 1), target_bounds=(0, 1)),
            param_grid={"options": [{"row_norm": 1.0}, {"row_norm": 2.0}]},
        )
    made.fit(X, X[:, 0] if is_regressor(made) else Y)


def warned(action: Callable[[], object]) -> list[str]:
    """What an action warns of privacy."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    caught = [each for each in caught if issubclass(each.category, PrivacyWarning)]
    package = Path(inspect.getfile(pv)).parent
    # at the caller's line
    assert not [each for each in caught if Path(each.filename).is_relative_to(package)]
    return [str(each.message) for each in caught]


def require_warnings_once(name: str, spend: Callable[[Target], object]) -> None:
    """Both warnings of the hollow target, once each; of the other target none."""
    assert warned(lambda: spend(GOOD)) == [], name
    said = warned(lambda: spend(HOLLOW))
    assert len(said) == 2, (name, said)
    assert "not below one over the" in said[0], (name, said)
    assert "promises next to nothing" in said[1], (name, said)


def in_a_folder(spend: Callable[[Target, Path], object], place: Path, target: Target) -> None:
    """Spend this way, with a folder of its own."""
    own = place / str(target["epsilon"])
    own.mkdir(parents=True)
    spend(target, own)


@check
def check_every_way_to_spend_warns_of_a_hollow_target_once() -> None:
    """All public functions that take a ledger, and the doors of other libraries."""
    make_torchvision_importable()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, spend) in enumerate(DOORS.items()):
            missing = {"PrivateStrategy": "lightning", "PrivateTrainer": "transformers"}.get(
                name, "torch"
            )
            if util.find_spec(missing) is None:
                continue
            require_warnings_once(name, partial(in_a_folder, spend, Path(folder) / str(number)))


@check
def check_every_estimator_warns_of_a_hollow_target_once() -> None:
    """Whatever `pv.sklearn` names, its search among them."""
    for name in estimators():
        require_warnings_once(name, partial(by_estimator, name))


@check
def check_no_way_to_spend_is_forgotten() -> None:
    """Every public function or run that takes a ledger is a door above, or an estimator."""
    rooms = [
        pv,
        *(
            import_module(f"privlearn.{room.name}")
            for room in iter_modules(pv.__path__)
            if room.ispkg
        ),
        *(room for name in pv.__all__ if isinstance(room := getattr(pv, name), ModuleType)),
    ]
    known = {*DOORS, *estimators(), "release"}  # `release` draws one noise, by no plan
    for room in rooms:
        for name in getattr(room, "__all__", ()):
            named = getattr(room, name)
            function = inspect.isfunction(named) or hasattr(named, "step")
            if function and "ledger" in inspect.signature(named).parameters:
                assert name in known, name


@check
def check_nothing_is_charged_before_the_examples_are_counted() -> None:
    """A method that forgets to say how many there are can't charge anything."""
    from privlearn.runs.session import Session

    session = Session(STEPS.calibrate(**GOOD), None, None)
    must_raise(AssertionError, lambda: session.charging().__enter__())
    session.count_examples(40, None)
    with session.charging():
        pass


@check
def check_warnings_follow_from_no_private_number_of_rows() -> None:
    """Where neighbours differ in the number of rows, it is not looked at."""
    plan = FisherPlan(2, 3, 2, row_norm=2.0, adjacency="add_remove").calibrate(
        epsilon=1.0, delta=0.03
    )
    assert warned(lambda: pv.statistics.fisher(plan, DATA)) == []


@check
def check_a_plan_without_a_target_is_measured_by_its_ledger() -> None:
    """Noise that was given is charged to a budget, and that is what is promised."""
    plan = pv.Plan(
        pv.Poisson(0.2), epochs=1, schedule=pv.schedules.Constant(5.0), clip=pv.Flat(1.0)
    )
    loss = nn.CrossEntropyLoss(reduction="none")
    for budget, number in ((pv.Budget(30.0, 0.03), 2), (pv.Budget(4.0, 1e-3), 0)):
        said = warned(lambda: pv.dpsgd(plan, network(), loss, DATA, ledger=pv.Ledger(budget)))  # noqa: B023
        assert len(said) == number, said
