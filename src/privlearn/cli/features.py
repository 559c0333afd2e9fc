"""`privlearn train --method features`, and `--select M` in front of DP-SGD: bounds, shares and what goes together."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from privlearn._checks import count, probability
from privlearn.accounting import zcdp
from privlearn.accounting.budget import Budget
from privlearn.accounting.guarantee import Adjacency
from privlearn.cli import screen
from privlearn.cli.planning import delta_warning, guaranteed
from privlearn.data import Dataset
from privlearn.descent import rules
from privlearn.errors import BadInput
from privlearn.statistics.advice import advised
from privlearn.statistics.plan import ClassifierPlan, FisherPlan, LeastSquaresPlan, RowsPlan
from privlearn.streams import Streams
from privlearn.transforms import select
from privlearn.transforms.select import SelectFeatures

if TYPE_CHECKING:
    from privlearn.cli.publication import Publication

#: The part of rho that choosing features takes in front of training.
_SHARE = 0.2
#: What a classifier from released statistics has no use for, with the value that means it was not given.
_ALIEN = {
    "tune": None, "public": None, "pca": None, "select": None, "batch_size": None, "epochs": None, "clip_norm": None,
    "optimizer": None, "learning_rate": None, "momentum": None, "lr_schedule": None, "rows_per_person": None, "solve": None,
    "schedule": "constant", "clip": "flat", "model": "linear", "sampling": "poisson", "resume": False,
    "explain": False, "normalise": None,
    "average": None, "views": None, "augment": None, "label_smoothing": None,
}  # fmt: skip


def require_combinable(options: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        BadInput: naming the first of them.
    """
    given = vars(options)
    if options.method == "features":
        alien = next((name for name, usual in _ALIEN.items() if given.get(name, usual) != usual), None)
        if alien is not None:
            raise BadInput(
                f"--method features does not go with {_option(alien)}: it makes a linear classifier from released statistics "
                "in one go. Leave it out, or train by dpsgd"
            )
        if options.mode == "least-squares" and options.keep is not None:
            raise BadInput("--mode least-squares takes all features: leave out --keep, or give rows of fewer")
        if options.mode == "auto" and options.keep is not None:
            raise BadInput("--mode auto says how many features to keep: leave out --keep, or --mode auto")
        if options.mode == "auto" and options.examples is None:
            raise BadInput(
                "--mode auto goes by public numbers alone, the number of rows among them: declare it, --examples N"
            )
        return
    if options.mode is not None:
        raise BadInput("--mode is for --method features: leave it out, or add that")
    if options.keep is not None:
        raise BadInput("--keep is for --method features: leave it out, or use --select M in front of dpsgd")
    if options.normalise is not None:
        if options.method != "dpsgd" or options.tune is not None:
            raise BadInput("--normalise stands in front of --method dpsgd, without --tune: leave one of them out")
        if options.select is not None or options.pca is not None:
            other = "--select" if options.select is not None else "--pca"
            raise BadInput(f"--normalise does not go with {other}, which has bounds of its own: leave one of them out")
    if options.select is None:
        for name in ("row_norm", "coordinate_bound", "criterion", "select_share"):
            if given[name] is not None and not (name == "row_norm" and options.normalise is not None):
                raise BadInput(
                    f"{_option(name)} is for --method features and --select M: leave it out, or add one of them"
                )
    elif options.method != "dpsgd" or options.tune is not None:
        raise BadInput("--select stands in front of --method dpsgd, without --tune: leave one of them out")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def selection(options: argparse.Namespace, data: Dataset) -> tuple[SelectFeatures, ...]:
    """The release that `--select M` puts in front of training, with its share of the target."""
    if options.select is None:
        return ()
    share = probability(
        "--select-share", _SHARE if options.select_share is None else options.select_share, open_top=True
    )
    noise = noise_for(options, share, "--select")
    norm, bound = bounds_of(options, data)
    found = SelectFeatures(options.select, noise, _classes(data), norm, bound, options.criterion or "distance")
    found.output_shape((features_of(data),))
    return (found,)


def noise_for(options: argparse.Namespace, share: float, what: str) -> float:
    """The noise multiplier of one Gaussian release that takes a share of the target's rho.

    Raises:
        BadInput: there is no target.
    """
    if options.epsilon is None and options.rho is None:
        # Poisson batches have no amplified guarantee in rho.
        targets = "--epsilon E" if options.sampling == "poisson" else "--epsilon E or --rho R"
        raise BadInput(f"{what} takes a share of a target: give {targets}")
    target = Budget(options.epsilon, options.delta, options.rho, options.group_size)
    rho = target.limit if target.epsilon is None else zcdp.rho_for(target.epsilon, options.delta)
    return float(options.group_size / math.sqrt(2 * share * rho))


def features_of(data: Dataset) -> int:
    """How many features a row has, after what stands in front: by a made-up one."""
    shape = data.x.shape[1:]
    if data.features is not None:
        import torch  # `budget` plans without

        shape = data.features.encoder(torch.zeros(1, *shape)).shape[1:]
    return math.prod(shape)


def _classes(data: Dataset) -> int:
    if data.classes is None:
        raise BadInput(
            "features are selected by classes, and the targets of these data are none: declare them with --classes"
        )
    return data.classes


def bounds_of(options: argparse.Namespace, data: Dataset) -> tuple[float, float | None]:
    """The norm that rows are clipped to, and the bound on their numbers: as declared, or by the declared range.

    Public features have the norm that normalising each row gave them, and no bound on single numbers.
    """
    scaled = data.low is not None and data.features is None
    if data.features is not None:
        from privlearn.transforms import row_norm

        known = row_norm(data.features.encoder, features_of(data))
    else:
        known = rules.SCALED_NORM * math.sqrt(features_of(data)) if scaled else None
    norm = known if options.row_norm is None else options.row_norm
    if norm is None:
        raise BadInput(
            "these rows have no declared range, or features of which no norm is known: they need a public bound. Give "
            "--row-norm R"
        )
    usual = 1.0 if scaled else None
    return norm, usual if options.coordinate_bound is None else options.coordinate_bound


def make_plan(options: argparse.Namespace, data: Dataset) -> ClassifierPlan:
    """The plan of `--method features`, settled.

    Raises:
        BadInput: numbers out of range, or not exactly one of a target and a noise multiplier.
    """
    target = options.epsilon is not None or options.rho is not None
    if target is (options.noise_multiplier is not None):
        raise BadInput(
            "give what may be spent, --epsilon E or --rho R, or the noise of all together, --noise-multiplier S: one of them"
        )
    features = features_of(data)
    norm, bound = bounds_of(options, data)
    shared: dict[str, Any] = {
        "classes": _classes(data), "features": features, "row_norm": norm, "group_size": options.group_size,
        "noise_multiplier": options.noise_multiplier,
        "adjacency": None if options.adjacency is None else Adjacency.parse(options.adjacency),
    }  # fmt: skip
    if options.mode == "least-squares":
        plan: ClassifierPlan = LeastSquaresPlan(**shared)
    else:
        shared |= {"keep": features if options.keep is None else options.keep, "coordinate_bound": bound}
        shared |= {"criterion": options.criterion or "distance"}
        plan = RowsPlan(**shared, labels="randomised") if options.mode == "rows" else FisherPlan(**shared)
    if not target:
        return plan
    return plan.calibrate(
        epsilon=options.epsilon, delta=None if options.epsilon is None else options.delta, rho=options.rho
    )


def advised_plan(options: argparse.Namespace, data: Dataset) -> tuple[ClassifierPlan, dict[str, str]]:
    """`make_plan`, and with `--mode auto` what that makes of it, which is printed; and why, for the JSON answer."""
    plan = make_plan(options, data)
    if options.mode != "auto":
        return plan, {}
    assert isinstance(plan, FisherPlan)
    advice = advised(plan, options.examples)
    screen.asides.print(f"mode auto: {advice.why}")
    return advice.plan, {"why": advice.why}


def declared(options: argparse.Namespace) -> Dataset:
    """No rows, of as many numbers in [0, 1] and as many classes as are declared: enough to plan with.

    Raises:
        BadInput: one of the two is missing that is needed: moments (`--normalise`) are of numbers, whatever the classes.
    """
    by_class = options.method == "features" or options.select is not None
    if options.numbers is None:
        raise BadInput(
            "a release of features costs by how many there are: give --numbers P, how many numbers a row has"
        )
    if by_class and options.classes is None:
        raise BadInput("features are chosen by classes: give --classes K")
    count("--numbers", options.numbers, most=10**9)
    if options.classes is not None:
        count("--classes", options.classes, least=2, most=10**6)
    nothing = np.broadcast_to(np.float32(0), (0, options.numbers))
    return Dataset(nothing, np.empty(0, np.int64), classes=options.classes, low=0.0, high=1.0)


def chosen(facts: dict[str, Any], kept: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Which features a run chose, `kept` in number, for its JSON answer and its table; empty if it chose none."""
    if not facts.get("chosen"):
        return {}, {}
    first = facts["chosen"][0]
    listed = [screen.plain(line) for line in select.choice_lines(first)]
    return {"chosen": first}, {"features": "\n".join([f"{kept}, the best first:", *listed])}


def run(options: argparse.Namespace) -> int:
    """Release, publish; print where, and what it is worth."""
    # `privlearn budget` plans with this module, and needs no torch.
    from privlearn.cli.encoding import encoded
    from privlearn.cli.publication import Publication
    from privlearn.cli.training import data_of

    publication = Publication.begin(options)
    with encoded(options, data_of(options)) as data:
        return _on_data(options, data, publication)


def _on_data(options: argparse.Namespace, data: Dataset, publication: Publication) -> int:
    """Plan, release, publish."""
    from privlearn.cli.training import seed_warning
    from privlearn.statistics.classifiers import fisher, least_squares
    from privlearn.statistics.release import release_features

    plan, why = advised_plan(options, data)
    answer = guaranteed(plan.guarantees(options.delta)) | {"plan": plan.to_json()} | why
    publication.warn(*delta_warning(options, options.examples or data.examples), *seed_warning(options))
    screen.asides.print(
        f"plan: {plan.keep} of {plan.features} features, noise multiplier {plan.noise:.4g} for all together, epsilon "
        f"{answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    ledger, streams = publication.ledger, Streams.new(options.seed, discrete=options.discrete)
    if isinstance(plan, RowsPlan):
        result = release_features(plan, data, ledger=ledger, streams=streams).classifier()
    elif isinstance(plan, LeastSquaresPlan):
        result = least_squares(plan, data, ledger=ledger, streams=streams)
    else:
        result = fisher(plan, data, ledger=ledger, streams=streams)
    told, listed = chosen(result.facts, f"{plan.keep} of {plan.features}")
    publication.end(result, data, answer | told, listed or {"features": f"all {plan.features}"}, "linear")
    return 0
