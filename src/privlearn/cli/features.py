"""`privlearn train --method features`, and `--select M` in front of DP-SGD: bounds, shares and what goes together."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from privlearn._validate import count, probability
from privlearn.accounting import zcdp
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.budget import Budget
from privlearn.cli import screen
from privlearn.cli.planning import delta_warning, guaranteed
from privlearn.data import Dataset
from privlearn.errors import BadInput
from privlearn.mechanisms import choice
from privlearn.mechanisms.features import Select
from privlearn.methods.features.advice import advised
from privlearn.methods.features.plan import FeaturesPlan
from privlearn.publishing import features as published
from privlearn.rng import Streams

#: The part of rho that choosing features takes in front of training.
_SHARE = 0.2
#: Rows scaled to [0, 1] are clipped to this times the root of their length.
_USUAL = 0.5
#: What a classifier from released statistics has no use for, with the value that means it was not given.
_ALIEN = {
    "tune": None, "public": None, "pca": None, "select": None, "batch_size": None, "epochs": None, "clip_norm": None,
    "optimizer": None, "learning_rate": None, "momentum": None, "lr_schedule": None, "rows_per_person": None, "solve": None,
    "schedule": "constant", "clip": "flat", "model": "linear", "sampling": "poisson", "resume": False,
    "features": None, "features_cache": None, "explain": False,
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
    if options.select is None:
        for name in ("row_norm", "coordinate_bound", "criterion", "select_share"):
            if given[name] is not None:
                raise BadInput(
                    f"{_option(name)} is for --method features and --select M: leave it out, or add one of them"
                )
    elif options.method != "dpsgd" or options.tune is not None:
        raise BadInput("--select stands in front of --method dpsgd, without --tune: leave one of them out")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def selection(options: argparse.Namespace, data: Dataset) -> tuple[Select, ...]:
    """The release that `--select M` puts in front of training, with its share of the target."""
    if options.select is None:
        return ()
    if options.epsilon is None and options.rho is None:
        raise BadInput("--select takes a share of a target: give --epsilon E or --rho R")
    target = Budget(options.epsilon, options.delta, options.rho, options.group_size)
    share = probability(
        "--select-share", _SHARE if options.select_share is None else options.select_share, open_top=True
    )
    rho = target.limit if target.epsilon is None else zcdp.rho_for(target.epsilon, options.delta)
    noise = options.group_size / math.sqrt(2 * share * rho)
    norm, bound = _bounds(options, data)
    found = Select(options.select, noise, _classes(data), norm, bound, options.criterion or "distance")
    found.require_fit(_features(data))
    return (found,)


def _features(data: Dataset) -> int:
    return math.prod(data.x.shape[1:])


def _classes(data: Dataset) -> int:
    if data.classes is None:
        raise BadInput(
            "features are selected by classes, and the targets of these data are none: declare them with --classes"
        )
    return data.classes


def _bounds(options: argparse.Namespace, data: Dataset) -> tuple[float, float | None]:
    """The norm that rows are clipped to, and the bound on their numbers: as declared, or by the declared range."""
    scaled = data.low is not None
    if options.row_norm is None and not scaled:
        raise BadInput("these data have no declared range, so rows need a public bound: give --row-norm R")
    norm = _USUAL * math.sqrt(_features(data)) if options.row_norm is None else options.row_norm
    usual = 1.0 if scaled else None
    return norm, usual if options.coordinate_bound is None else options.coordinate_bound


def make_plan(options: argparse.Namespace, data: Dataset) -> FeaturesPlan:
    """The plan of `--method features`, settled.

    Raises:
        BadInput: numbers out of range, or not exactly one of a target and a noise multiplier.
    """
    target = options.epsilon is not None or options.rho is not None
    if target is (options.noise_multiplier is not None):
        raise BadInput(
            "give what may be spent, --epsilon E or --rho R, or the noise of all together, --noise-multiplier S: one of them"
        )
    features = _features(data)
    norm, bound = _bounds(options, data)
    rows = options.mode == "rows"
    plan = FeaturesPlan(
        _classes(data), features, features if options.keep is None else options.keep, norm, bound,
        criterion=options.criterion or "distance", noise_multiplier=options.noise_multiplier, group_size=options.group_size,
        adjacency=None if options.adjacency is None else Adjacency.parse(options.adjacency),
        purpose="rows" if rows else "classifier", labels="randomised" if rows else "public",
    )  # fmt: skip
    if not target:
        return plan
    return plan.calibrate(
        epsilon=options.epsilon, delta=None if options.epsilon is None else options.delta, rho=options.rho
    )


def advised_plan(options: argparse.Namespace, data: Dataset) -> tuple[FeaturesPlan, dict[str, str]]:
    """`make_plan`, and with `--mode auto` what that makes of it, which is printed; and why, for the JSON answer."""
    plan = make_plan(options, data)
    if options.mode != "auto":
        return plan, {}
    advice = advised(plan, options.examples)
    screen.asides.print(f"mode auto: {advice.why}")
    return advice.plan, {"why": advice.why}


def declared(options: argparse.Namespace) -> Dataset:
    """No rows, of as many numbers in [0, 1] and as many classes as are declared: enough to plan with.

    Raises:
        BadInput: one of the two is missing.
    """
    if options.numbers is None or options.classes is None:
        raise BadInput(
            "features are chosen among a number of them, by classes: give --numbers P, how many numbers a row has, and "
            "--classes K"
        )
    count("--numbers", options.numbers, most=10**9)
    count("--classes", options.classes, least=2, most=10**6)
    nothing = np.broadcast_to(np.float32(0), (0, options.numbers))
    return Dataset(nothing, np.empty(0, np.int64), classes=options.classes, low=0.0, high=1.0)


def chosen(settings: dict[str, Any], kept: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Which features a run chose, `kept` in number, for its JSON answer and its table; empty if it chose none."""
    found = published.chosen(settings)
    if found is None:
        return {}, {}
    listed = [screen.plain(line) for line in choice.lines(found)]
    return {"chosen": found}, {"features": "\n".join([f"{kept}, the best first:", *listed])}


def run(options: argparse.Namespace) -> int:
    """Release, publish; print where, and what it is worth."""
    # `privlearn budget` plans with this module, and needs no torch.
    from privlearn.cli import training
    from privlearn.cli.publication import Publication
    from privlearn.methods.features.fisher import fisher
    from privlearn.methods.features.rows import release_features

    publication = Publication.begin(options)
    data = training.data_of(options)
    plan, why = advised_plan(options, data)
    answer = guaranteed(plan.guarantees(options.delta)) | {"plan": plan.describe()} | why
    publication.warn(*delta_warning(options, options.examples or data.examples), *training.seed_warning(options))
    screen.asides.print(
        f"plan: {plan.keep} of {plan.features} features, noise multiplier {plan.noise:.4g} for all together, epsilon "
        f"{answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    ledger, streams = publication.ledger, Streams.new(options.seed, discrete=options.discrete)
    if plan.purpose == "rows":
        result = release_features(plan, data, ledger=ledger, streams=streams).classifier()
    else:
        result = fisher(plan, data, ledger=ledger, streams=streams)
    told, listed = chosen(result.settings, f"{plan.keep} of {plan.features}")
    publication.end(result, data, answer | told, listed or {"features": f"all {plan.features}"}, "linear")
    return 0
