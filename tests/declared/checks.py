"""Named checks of `privlearn certify`: true runs are priced beside their library's figure, false
ones are refused by name, and no one takes a declared run for a certificate.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import dp_accounting as peer

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.declared.declared_document import (
    CARD,
    DOCUMENT,
    DeclaredRun,
    card,
    check_declared_run,
)
from privlearn.declared.subset_sampled import SubsetSampled
from privlearn.errors import BadInput, UnsupportedEvent
from privlearn.publishing import certificate
from tests.declared.peer_runs import (
    BATCH,
    DELTA,
    EPOCHS,
    EXAMPLES,
    NOISE,
    certify_run,
    epsilons,
    price_with_dp_accounting,
    state_of,
    train_with_opacus,
)
from tests.support.checks import check, must_raise

#: Steps of an epoch, and the rate at which Opacus draws.
STEPS = -(-EXAMPLES // BATCH)
RATE = 1 / STEPS


def price(rate: float, steps: int, noise: float = NOISE, delta: float = DELTA) -> float:
    """What Poisson samples cost."""
    event = Repeated(PoissonSampled(rate, Gaussian(noise)), steps)
    return accountant.guarantee(event, Adjacency.ADD_REMOVE, delta).epsilon


def require_refused(run: DeclaredRun, *names: str) -> str:
    """These mistakes are seen, and no others; what is said of them."""
    assert set(run.refusals) == set(names), run.refusals
    return " ".join(run.refusals.values())


def written(run: DeclaredRun, folder: Path) -> Path:
    """The folder of a declared run."""
    for name, content in run.files().items():
        (folder / name).write_bytes(content)
    return folder


@check
def check_true_runs_are_priced_beside_their_librarys_figure() -> None:
    for kind, most in (("prv", 1.01), ("rdp", 1.3)):
        run = certify_run(train_with_opacus(accountant=kind))
        require_refused(run)
        recorded, declared = epsilons(run)
        assert recorded == declared == price(RATE, EPOCHS * STEPS)
        (theirs,) = run.document["stated_by_others"]
        assert recorded <= theirs["epsilon"] <= recorded * most, kind
        assert not run.document["unchecked"]
    event = peer.SelfComposedDpEvent(
        peer.PoissonSampledDpEvent(0.01, peer.GaussianDpEvent(1.0)), 1000
    )
    run = certify_run(
        price_with_dp_accounting(event),
        "dp-accounting",
        sampling="poisson",
        examples=60_000,
        batch_size=600,
        epochs=10,
    )
    require_refused(run)
    assert epsilons(run)[1] == price(0.01, 1000, 1.0, 1e-5)


@check
def check_shuffled_batches_are_not_poisson_samples() -> None:
    """An example in one batch of each epoch meets one Gaussian release an epoch."""
    whole = accountant.guarantee(Repeated(Gaussian(NOISE), EPOCHS), Adjacency.ZERO_OUT, DELTA)
    for sampling in ("shuffle", "fixed"):
        run = certify_run(train_with_opacus(poisson=False), sampling=sampling)
        text = require_refused(run, "shuffled-priced-as-poisson")
        recorded, declared = epsilons(run)
        assert recorded == price(RATE, EPOCHS * STEPS)
        assert abs(declared / whole.epsilon - 1) < 1e-9
        assert "3.058" in text
        assert "4.973" in text
        without_epochs = certify_run(
            train_with_opacus(poisson=False), sampling=sampling, epochs=None
        )
        assert epsilons(without_epochs)[1] >= declared
    replaced = certify_run(
        train_with_opacus(poisson=False), sampling="shuffle", adjacency="replace_one"
    )
    twice = accountant.guarantee(Repeated(Gaussian(NOISE / 2), EPOCHS), Adjacency.ZERO_OUT, DELTA)
    assert abs(epsilons(replaced)[1] / twice.epsilon - 1) < 1e-9
    assert "neighbours-differ" in replaced.refusals
    few = certify_run(state_of((2.0, 0.5, 2)), sampling="shuffle", steps=2, epochs=9)
    nine = accountant.guarantee(Repeated(Gaussian(2.0), 9), Adjacency.ZERO_OUT, DELTA).epsilon
    assert abs(epsilons(few)[1] / nine - 1) < 1e-9
    must_raise(
        BadInput, lambda: certify_run(state_of((1.0, 0.1, 5)), sampling="shuffle", examples=None)
    )


@check
def check_other_batches_are_not_poisson_samples() -> None:
    run = certify_run(train_with_opacus(), sampling="without-replacement")
    assert "other-batches-priced-as-poisson" in run.refusals
    assert epsilons(run)[1] >= price(BATCH / EXAMPLES, EPOCHS * STEPS, NOISE / 2)
    full = certify_run(train_with_opacus(), sampling="full", batch_size=EXAMPLES, epochs=12)
    assert "other-batches-priced-as-poisson" in full.refusals
    whole = accountant.guarantee(Repeated(Gaussian(NOISE), 12), Adjacency.ADD_REMOVE, DELTA)
    assert abs(epsilons(full)[1] / whole.epsilon - 1) < 1e-9
    subset = peer.dp_event.SampledWithoutReplacementDpEvent(1000, 10, peer.GaussianDpEvent(4.0))
    content = price_with_dp_accounting(subset, "RdpAccountant", "REPLACE_ONE")
    run = certify_run(content, "dp-accounting", sampling="poisson")
    assert "fixed-size-declared-as-poisson" in run.refusals
    run = certify_run(content, "dp-accounting", sampling="shuffle", examples=1000, batch_size=10)
    assert "shuffled-priced-as-random-subsets" in run.refusals


@check
def check_the_rate_of_the_last_batch_is_refused() -> None:
    last = EXAMPLES % BATCH / EXAMPLES
    run = certify_run(state_of((NOISE, last, EPOCHS * STEPS)))
    require_refused(run, "rate-of-the-last-batch")
    recorded, declared = epsilons(run)
    assert recorded == price(last, EPOCHS * STEPS)
    assert declared == price(BATCH / EXAMPLES, EPOCHS * STEPS) > 2 * recorded
    mixed = certify_run(state_of((NOISE, RATE, 11), (NOISE, last, 1)))
    require_refused(mixed, "rate-of-the-last-batch")


@check
def check_a_rate_that_is_not_batch_over_examples_is_refused() -> None:
    """Such as that of one of four accumulated batches."""
    for rate in (RATE / 4, 0.9):
        run = certify_run(state_of((NOISE, rate, EPOCHS * STEPS)))
        require_refused(run, "rate-is-not-batch-size-over-examples")
        assert epsilons(run)[1] == price(max(rate, BATCH / EXAMPLES), EPOCHS * STEPS)
    for rate in (BATCH / EXAMPLES, RATE, 1 / (EXAMPLES // BATCH)):
        require_refused(certify_run(state_of((NOISE, rate, EPOCHS * STEPS))))


@check
def check_missing_steps_are_refused() -> None:
    """By declared epochs, by declared steps, and by the optimizer's own count."""
    whole = price(RATE, EPOCHS * STEPS)
    for declared in ({}, {"epochs": None, "steps": 12}, {"epochs": None}):
        run = certify_run(train_with_opacus(forgets=1), **declared)
        require_refused(run, "missing-steps")
        recorded, counted = epsilons(run)
        assert recorded == price(RATE, EPOCHS * STEPS - 1) < counted == whole
    require_refused(certify_run(state_of((NOISE, RATE, 11)), epochs=None, steps=11))
    rising = certify_run(state_of((0.8, RATE, 5), (NOISE, RATE, 6)))
    require_refused(rising, "missing-steps")
    assert (
        epsilons(rising)[1] > epsilons(certify_run(state_of((0.8, RATE, 5), (NOISE, RATE, 7))))[1]
    )


@check
def check_a_large_delta_is_refused() -> None:
    require_refused(
        certify_run(train_with_opacus(), delta=1 / EXAMPLES), "delta-is-not-below-one-over-examples"
    )
    require_refused(certify_run(train_with_opacus(), delta=0.99 / EXAMPLES))


@check
def check_neighbours_of_another_kind_are_refused() -> None:
    run = certify_run(train_with_opacus(), adjacency="replace_one")
    require_refused(run, "neighbours-differ")
    recorded, declared = epsilons(run)
    # A sum that moves by one clipping norm once, and by another one in the second step
    assert declared > 1.5 * recorded
    require_refused(certify_run(train_with_opacus(), adjacency="zero_out"))
    shuffled = certify_run(
        train_with_opacus(poisson=False), sampling="shuffle", adjacency="add_remove"
    )
    require_refused(shuffled, "neighbours-differ", "shuffled-priced-as-poisson")


@check
def check_fewer_steps_than_were_counted_are_not_declared() -> None:
    for few in ({"epochs": 2}, {"epochs": None, "steps": 7}):
        run = certify_run(train_with_opacus(), sampling="poisson", **few)
        require_refused(run, "file-and-declaration-differ")
        assert "is priced with all that it holds" in run.refusals["file-and-declaration-differ"]


@check
def check_subsets_are_priced_in_both_directions_at_once() -> None:
    """The price of several releases against a composition on a grid of its own, and of one release,
    which is the Poisson sample's. The golden numbers are of a Fourier transform of the second
    derivatives of the symmetric curve, with steps of 2e-4.
    """
    for rate, noise, releases, golden in (
        (0.01, 0.5, 100, 6.640842),
        (0.01, 1.0, 1000, 2.198926),
        (0.1, 1.0, 50, 5.538342),
        (0.1, 1.0, 10, 2.925259),
        (0.1, 0.5, 1, 6.575538),
    ):
        sampled = SubsetSampled(rate, Gaussian(noise))
        for neighbours in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE):
            found = accountant.guarantee(Repeated(sampled, releases), neighbours, 1e-5).epsilon
            assert golden * (1 - 1e-5) <= found <= golden * (1 + 3e-4), (rate, noise, releases)
        poisson = Repeated(PoissonSampled(rate, Gaussian(noise)), releases)
        one_sided = accountant.guarantee(poisson, Adjacency.ADD_REMOVE, 1e-5).epsilon
        assert found >= one_sided * (1 - 1e-9)
    must_raise(UnsupportedEvent, lambda: accountant.guarantee(sampled, Adjacency.ADD_REMOVE, 1e-5))


@check
def check_replaced_examples_move_a_sum_by_two_norms() -> None:
    """dp-accounting 0.6 lets them move it by one in Renyi DP (google/differential-privacy #378)."""
    releases = peer.SelfComposedDpEvent(peer.GaussianDpEvent(10.0), 10)
    subset = peer.dp_event.SampledWithoutReplacementDpEvent(60_000, 600, peer.GaussianDpEvent(1.0))
    for event, sampling in (
        (releases, "full"),
        (peer.SelfComposedDpEvent(subset, 100), "without-replacement"),
    ):
        run = certify_run(
            price_with_dp_accounting(event, "RdpAccountant", "REPLACE_ONE"),
            "dp-accounting",
            sampling=sampling,
        )
        require_refused(run, "sensitivity-not-doubled")
    sampled = Repeated(SubsetSampled(0.01, Gaussian(0.5)), 100)
    assert epsilons(run)[0] == accountant.guarantee(sampled, Adjacency.REPLACE_ONE, 1e-5).epsilon
    by_pld = certify_run(
        price_with_dp_accounting(releases, "PLDAccountant", "REPLACE_ONE"),
        "dp-accounting",
        sampling="full",
    )
    require_refused(by_pld)
    truth = accountant.guarantee(Repeated(Gaussian(5.0), 10), Adjacency.REPLACE_ONE, 1e-5).epsilon
    assert epsilons(by_pld) == (truth, truth)
    replaced = certify_run(
        price_with_dp_accounting(
            peer.SelfComposedDpEvent(
                peer.PoissonSampledDpEvent(0.01, peer.GaussianDpEvent(1.0)), 100
            ),
            "PLDAccountant",
            "REPLACE_ONE",
        ),
        "dp-accounting",
        sampling="poisson",
    )
    (theirs, _) = replaced.document["stated_by_others"]
    assert epsilons(replaced)[0] >= theirs["epsilon"]  # which is exact


@check
def check_a_claim_below_its_events_is_refused() -> None:
    """Such as one that was rounded down, and that of the central limit theorem."""
    content = state_of((1.0, 0.01, 1000), mechanism="gdp")
    sizes = {"examples": 60_000, "batch_size": 600, "epochs": 10, "delta": 1e-5}
    run = certify_run(content, **sizes)
    text = require_refused(run, "claims-less-than-its-events-cost")
    assert "1.61771" in text
    assert "1.829" in text
    require_refused(certify_run(content, **sizes, epsilon=1.84))
    honest = state_of((1.0, 0.01, 1000))
    require_refused(certify_run(honest, **sizes, epsilon=1.84))
    require_refused(certify_run(honest, **sizes, epsilon=1.8), "claims-less-than-its-events-cost")
    one_step = certify_run(honest, **sizes, epsilon=price(0.01, 1, 1.0, 1e-5))
    require_refused(one_step, "claims-less-than-its-events-cost")


@check
def check_what_was_not_declared_is_listed_as_unchecked() -> None:
    run = certify_run(state_of((NOISE, RATE / 9, 1)), examples=None, batch_size=None, epochs=None)
    require_refused(run)
    assert set(run.document["unchecked"]) == {
        "rate-of-the-last-batch",
        "rate-is-not-batch-size-over-examples",
        "missing-steps",
        "delta-is-not-below-one-over-examples",
    }
    assert all(name in card(run.document) for name in run.document["unchecked"])


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where numbers, texts and lists of a document stand."""
    if isinstance(value, dict):
        return [place for key, part in value.items() for place in _places(part, (*path, key))]
    if isinstance(value, list) and value:
        return [
            path,
            *(place for key, part in enumerate(value) for place in _places(part, (*path, key))),
        ]
    return [path]


def _change(document: Any, path: tuple[Any, ...]) -> Any:
    """The document with another value at one place."""
    changed = copy.deepcopy(document)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    value = parent[path[-1]]
    match value:
        case bool():
            parent[path[-1]] = not value
        case int() | float():
            parent[path[-1]] = value * 1.01 if isinstance(value, float) else value + 1
        case str():
            parent[path[-1]] = f"{value}."
        case list() | dict():
            parent[path[-1]] = type(value)()
        case _:
            parent[path[-1]] = 7
    return changed


#: What others say of the run: a document is about what stands there.
OTHERS = {"file_sha256", "recorded_by_others", "declared_by_others", "stated_by_others"}


@check
def check_a_changed_document_does_not_hold() -> None:
    """Neither its figures nor its refusals, with a card that goes with them or without."""
    _require_fixed(certify_run(train_with_opacus()))
    _require_fixed(certify_run(train_with_opacus(poisson=False), sampling="shuffle"))


def _require_fixed(run: DeclaredRun) -> None:
    """What a document derives from the rest of it cannot be changed."""
    document = dict(run.document)
    derived = [place for place in _places(document) if place[0] not in OTHERS]
    assert len(derived) > 20
    decisive = [("recorded_by_others", "steps", 0, name) for name in ("noise_multiplier", "count")]
    changes = [_change(document, place) for place in [*derived, *decisive]]
    changes += [{**document, "refused": {"missing-steps": "none"}}]
    changes += [{**document, "refused": {}}] if run.refusals else []
    with tempfile.TemporaryDirectory() as folder:
        where = written(run, Path(folder))
        read = check_declared_run(where)
        assert not read.problems
        assert read.refusals == run.refusals
        (where / CARD).write_text(run.files()[CARD].decode().replace("not a certificate", "safe"))
        assert check_declared_run(where).problems
        for changed in changes:
            (where / DOCUMENT).write_text(json.dumps(changed))
            try:
                (where / CARD).write_text(card(changed))
                problems = check_declared_run(where).problems
            except (BadInput, LookupError, TypeError, AttributeError, ValueError):
                continue  # it can't be read
            assert problems, changed


@check
def check_a_declared_run_is_not_a_certificate() -> None:
    """No reader of certificates takes it, and it has no word of one's claim."""
    run = certify_run(train_with_opacus())
    assert not hasattr(run, "ok")
    assert not set(run.document) & {"claim", "plan", "facts", "events", "digests", "epsilon"}
    must_raise(BadInput, lambda: certificate.parse(run.files()[DOCUMENT]))
    with tempfile.TemporaryDirectory() as folder:
        where = written(run, Path(folder))
        error = must_raise(BadInput, lambda: pv.verify(where))
        assert "declared run" in str(error)
        must_raise(BadInput, lambda: pv.load_model(where, None))
        assert main(["verify", str(where)]) == 0
        assert main(["verify", str(where), "--key", str(where / CARD)]) == 2
        (where / "privacy.json").write_bytes(run.files()[DOCUMENT])
        must_raise(BadInput, lambda: pv.verify(where))
    text = run.files()[CARD].decode()
    assert text.startswith("# Declared run: not a certificate\n")
    assert "-DP" not in text
    assert "epsilon:" not in text
