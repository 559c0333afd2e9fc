"""Named checks of how the studies of PATE are made: what releases cost, what is public, and what is
tested on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from privlearn.core.accounting import zcdp
from privlearn.core.streams import Streams
from privlearn.data.named import load
from privlearn.methods.pate.answers import Answers
from privlearn_studies import data
from privlearn_studies.data import Images
from privlearn_studies.fay2020 import pca, vectors, votes
from privlearn_studies.fay2020.kept import Kept
from privlearn_studies.runs import Outcome
from tests.studies.checks import reproduces


def small_run(seed: int = 0) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "LENGTHS", (1, 8))
        return vectors.train(
            seed, teachers=20, epsilon=3.0, queries=12, private=400, size=4, epochs=1
        )


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load("mnist")
    return np.asarray(data.x_test), np.asarray(data.y_test)


@reproduces
def check_votes_cost_what_is_stated() -> None:
    """All queries together cost epsilon 2, at noise that follows from the Gaussian curve; each is
    charged.
    """
    for queries, noise in ((400, 56.3935), (1000, 89.1660)):
        usual = votes.train.at()
        plan = votes.plan_of(queries, usual.teachers, usual.epsilon)
        assert plan.queries == queries
        assert plan.guarantee(1e-5).epsilon == pytest.approx(2.0, rel=1e-6)
        assert plan.noise_std == pytest.approx(noise, abs=1e-3)
        assert plan.noise_std == pytest.approx(
            math.sqrt(2 * queries) / zcdp.gaussian_mu_for(2.0, 1e-5), rel=1e-9
        )


@reproduces
def check_codes_cost_what_is_stated() -> None:
    """Each way's ledger ends at the epsilon of the setting, with noise of sensitivity 2 / K for all
    queries.
    """
    found = small_run()
    assert found.epsilons == pytest.approx((3.0,) * 3, rel=1e-6)
    mu = zcdp.gaussian_mu_for(3.0, 1e-5)
    assert found.autoencoder_noise == pytest.approx(math.sqrt(12) * 2 / 20 / mu, rel=1e-9)
    # No reduction: answers are off by the noise on 256 numbers, and little else.
    assert found.answers[0] == pytest.approx(256 * found.noise**2, rel=0.15)


@reproduces
def check_images_of_mnist_are_public_private_or_tested_on() -> None:
    """The first 9,000 test images are public, without their labels; the last 1,000 are tested on;
    none is a record.
    """
    found = votes.parts()
    x, y = digits()
    assert np.array_equal(found.pool.x, x[:9000])
    assert found.pool.public
    assert not np.asarray(found.pool.y).any()
    assert np.array_equal(found.test.numpy(), x[9000:])
    assert np.array_equal(found.test_labels.numpy(), y[9000:])
    assert np.array_equal(found.pool_labels.numpy(), y[:9000])
    assert (len(found.records.x), found.records.public) == (60_000, False)
    assert np.array_equal(found.records.x, load("mnist").x)


@reproduces
def check_images_of_usps_are_in_one_part() -> None:
    """Each image is in one of four parts, drawn by the seed."""
    parts = data.images(0)
    sizes = [len(part) for part in vars(parts).values()]
    assert sizes == [8000, 1000, 1000, 1000]
    everything = torch.cat(list(vars(parts).values()))
    assert sorted(map(bytes, everything.numpy())) == sorted(map(bytes, data.usps()[0].numpy()))
    assert not torch.equal(parts.test, data.images(1).test)
    assert torch.equal(parts.test, data.images(0).test)


@reproduces
def check_reducers_never_meet_private_images() -> None:
    """With other private images reducer, noise and rule are the same; only what teachers say
    differs.
    """
    whole = vectors.images

    def others(seed: int, private: int) -> Images:
        return replace(whole(seed, private), private=1 - whole(seed, private).private)

    one = small_run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "images", others)
        other = small_run()
    assert (one.noise, one.rule, one.expected, one.public) == (
        other.noise,
        other.rule,
        other.expected,
        other.public,
    )
    assert one.teacher != pytest.approx(other.teacher, rel=0.01)


@reproduces
def check_the_lower_half_is_hidden() -> None:
    """What teachers and students see has nothing below the middle, and the targets stay whole."""
    given = torch.rand(5, 256, generator=torch.Generator().manual_seed(0))
    before = given.clone()
    seen = data.covered(given)
    assert torch.equal(given, before)
    assert torch.equal(seen[:, :128], given[:, :128])
    assert not seen[:, 128:].any()


@reproduces
def check_kept_answers_are_those_of_their_queries() -> None:
    """The first queries get their own answers, a teacher without any stays without, the number of
    teachers stays.
    """
    said = [torch.arange(6.0)[:, None] + 10 * number for number in range(3)]
    kept = Kept([*said, None])
    assert kept.count == 4
    again = list(kept.answers(torch.zeros(2, 4), Streams.new(0)))
    assert [None if each is None else each.flatten().tolist() for each in again] == [
        [0, 1],
        [10, 11],
        [20, 21],
        None,
    ]


@reproduces
def check_measured_losses_are_sums_over_pixels() -> None:
    """With hardly any noise what is lost is the variance in the directions that were left out."""
    parts = data.images(0)
    from privlearn import Dataset
    from privlearn.methods.pate import Ball, PatePlan, PublicPCA

    every = PublicPCA.fit(Dataset(parts.public, parts.public, public=True))
    said = parts.pool[:50]
    quiet, loud = (PatePlan(50, 5, Ball(50.0), noise_multiplier=noise) for noise in (1e-6, 0.02))
    left = said - every.kept(8).decode(every.kept(8).encode(said))
    expected = float(left.square().sum(1).mean())
    found = pca.measured([quiet, loud], every.kept(8), said, 0)
    assert found[0] == pytest.approx(expected, rel=1e-4)
    assert found[1] == pytest.approx(expected + 8 * loud.noise_std**2, rel=0.02)


@reproduces
def check_winners_are_believed_and_counts_weighed() -> None:
    """From winners alone a narrow win counts as a sure one; from counts it does not."""
    beliefs: list[Tensor] = []

    def spread(answers: Answers) -> tuple[Tensor, Tensor]:
        beliefs.append(answers.beliefs(0.8))
        return answers.inputs, torch.zeros(len(answers.inputs), dtype=torch.int64)

    scores = torch.tensor([[51.0, 50.0, 2.0]], dtype=torch.float64)
    answers = Answers(
        torch.zeros(4, 2), scores.argmax(1), torch.ones(1, dtype=torch.bool), scores, expected=0.02
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(votes, "Spread", lambda: spread)
        found = [votes.learnable(way, answers) for way in votes.WAYS]
    assert beliefs[0].tolist() == [[1.0, 0.0, 0.0]]
    assert 0.4 < float(beliefs[1][0, 0]) < 0.6
    assert found[0] is answers
    assert [len(each.targets) for each in found[1:]] == [4, 4]


@reproduces
def check_students_learn_classes_in_every_way() -> None:
    """A small run: each way's student has a score for each class, and beats chance on labels that
    are right.
    """
    images, labels = (
        torch.from_numpy(digits()[0][:300].copy()),
        torch.from_numpy(digits()[1][:300]).long(),
    )
    scores = torch.zeros(200, 10, dtype=torch.float64)
    scores[torch.arange(200), labels[:200]] = 50.0
    answers = Answers(
        images.float() / 255, labels[:200], torch.ones(200, dtype=torch.bool), scores, expected=0.02
    )
    for way in votes.WAYS:
        network = votes.student(8, 0)(votes.learnable(way, answers))
        found = network(answers.inputs)
        assert found.shape == (300, 10), way
        assert float((found.argmax(1) == labels).double().mean()) > 0.4, way


@reproduces
def check_public_teachers_have_as_many_images() -> None:
    """A stand-in learns from as many images as a private teacher has in the mean, whatever their
    number.
    """
    for teachers, expected in ((20, 20), (100, 4)):
        seen: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                vectors,
                "completes",
                lambda x, y, seen=seen: seen.append(len(x)) or (lambda asked: asked),
            )
            vectors.public_teachers(data.images(0), teachers, 400)
        assert set(seen) == {expected}
        assert len(seen) == 1000 // expected
