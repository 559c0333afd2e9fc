"""Named checks of where features come from: folders, paid moments, heads from noisy sums; mutations
must fail them.
"""

from __future__ import annotations

import json
import math
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn._storage import digest
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.events import walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping import row_sums as statistics_module
from privlearn.core.clipping.row_sums import least_squares_sums, symmetric
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.methods.statistics.classifiers import Squares, release_squares, solved
from privlearn.methods.statistics.plan import FisherPlan, LeastSquaresPlan
from privlearn.publishing import publish
from privlearn.training import rules
from privlearn.training.train import facts_of
from privlearn.transforms import FeatureFolder, Precomputed, read_features
from privlearn.transforms.precomputed import PrecomputedRows, rows_digest
from tests.statistics.checks import (
    ADD,
    REPLACE,
    STRANGE,
    ZERO,
    K,
    R,
    neighbours,
    require_moves,
    settled,
    some_rows,
    with_last,
)
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws, one_sample
from tests.support.transcripts import require_alike, transcript
from tests.transforms import checks_encoders as encoder_checks
from tests.transforms.checks_encoders import LINEAR, code

C = 0.5


# Least squares: sensitivities, noise, what is solved


def sums(x: Tensor, y: Tensor, adjacency: Adjacency) -> list[tuple[Tensor, float]]:
    found = least_squares_sums(
        x, y, one_sample(examples=len(x)), adjacency, classes=K, norm=R, constant=C
    )
    return [(part.values[0], part.sensitivity) for part in found]


@check
def check_one_row_moves_least_squares_by_at_most_the_sensitivity() -> None:
    """X'Y and X'X, for every kind of neighbour; each bound is reached, and where a row comes or
    goes both at once.
    """
    length = math.hypot(R, C)
    golden = {
        ADD: (length, length**2),
        ZERO: (length, length**2),
        REPLACE: (2 * R, math.sqrt(2) * length**2),
    }
    for adjacency in Adjacency:
        stated = [sensitivity for _, sensitivity in sums(*some_rows(), adjacency)]
        np.testing.assert_allclose(stated, golden[adjacency], rtol=1e-12)
        rows = [(torch.tensor(row, dtype=torch.float64), label) for row, label in STRANGE]
        for size in (1.0, -1.0, 3.0):
            for axis, label in ((0, 0), (0, 1), (1, 1)):
                row = torch.zeros(4, dtype=torch.float64)
                row[axis] = size * R
                rows.append((row, label))
        # Their constants cancel in this pair's inner product, so that the matrices are as far apart
        # as can be.
        rows += [
            (torch.tensor([a, b, 0, 0], dtype=torch.float64), 2)
            for a, b in ((C, 1.9365), (-C, 1.9365), (-C, -1.9365))
        ]
        rows += [
            (
                torch.tensor(
                    [C * C / R, -math.sqrt(R * R - C**4 / R**2), 0, 0], dtype=torch.float64
                ),
                2,
            )
        ]
        rows += [(torch.tensor([-R, 0, 0, 0], dtype=torch.float64), 2)]
        best = [0.0, 0.0]
        for one, other in neighbours(adjacency, rows):
            pairs = zip(
                sums(*with_last(one), adjacency), sums(*with_last(other), adjacency), strict=True
            )
            moved = [float((a - b).norm()) / sensitivity for (a, sensitivity), (b, _) in pairs]
            assert max(moved) <= 1 + 1e-9, (adjacency, one, other, moved)
            if adjacency is not REPLACE and moved[0] > 1 - 1e-9:
                assert moved[1] > 1 - 1e-9
            best = [max(pair) for pair in zip(best, moved, strict=True)]
        assert min(best) > 1 - 1e-6, (adjacency, best)
    assert min(require_moves(lambda x, y: sums(x, y, ADD), ADD)) > 1 - 1e-9


@check
def check_blocks_make_no_difference_to_least_squares() -> None:
    """One row at a time or all: X'Y and X'X of the sample's clipped rows and the constant; data
    untouched.
    """
    x, y = some_rows()
    before, sample = x.clone(), one_sample(pv.Poisson(0.5), len(x))
    own = torch.from_numpy(sample.indices)
    rows = x[own] * (R / x[own].norm(dim=1, keepdim=True)).clamp(max=1)
    rows = torch.cat([rows, torch.full((len(rows), 1), C, dtype=torch.float64)], 1)
    member = (y[own, None] == torch.arange(K)).double()
    usual = statistics_module._AT_ONCE
    try:
        for at_once in (1, 12, usual):
            statistics_module._AT_ONCE = at_once  # type: ignore[misc]
            products, gram = least_squares_sums(x, y, sample, ADD, classes=K, norm=R, constant=C)
            torch.testing.assert_close(products.values[0], rows.T @ member)
            torch.testing.assert_close(symmetric(gram.values[0], 5), rows.T @ rows)
    finally:
        statistics_module._AT_ONCE = usual  # type: ignore[misc]
    assert torch.equal(x, before)


@check
def check_noise_of_least_squares_has_the_stated_scale() -> None:
    """On no rows: noise alone; X'X's symmetric, louder on its diagonal, and the ridge is made of
    its spectral norm.
    """
    empty = torch.full((1, 300), math.nan), torch.zeros(1, dtype=torch.int64)
    for adjacency, factors in (
        (ADD, (1.0, 1.0)),
        (REPLACE, (2 * R / math.hypot(R, C), math.sqrt(2))),
    ):
        ledger = pv.Ledger()
        plan = LeastSquaresPlan(40, 300, R, adjacency, split=(0.6, 0.2), noise_multiplier=3.0)
        found = release_squares(plan, *empty, ledger, pv.Streams.new(1).noise)
        assert (
            ledger.event
            == pv.Plan(
                pv.sampling.FullBatch(), epochs=1, schedule=pv.schedules.Constant(start=3.0)
            ).event()
        )
        length = math.hypot(R, C)
        assert math.isclose(found.product_std, 3.0 * factors[0] * length / math.sqrt(0.75))
        assert math.isclose(found.gram_std, 3.0 * factors[1] * length**2 / math.sqrt(0.25))
        assert torch.equal(found.gram, found.gram.T)
        above = found.gram[tuple(torch.triu_indices(301, 301, 1))]
        for values, std in (
            (found.products, found.product_std),
            (above, found.gram_std / math.sqrt(2)),
            (found.gram.diag(), found.gram_std),
        ):
            assert abs(float(values.std()) / std - 1) < (
                0.15 if values.dim() == 1 and len(values) < 400 else 0.03
            )
        assert abs(float(torch.linalg.eigvalsh(found.gram).abs().max()) / found.loudest - 1) < 0.1


@check
def check_least_squares_is_what_it_says() -> None:
    """Hardly any noise: the normal equations, with intercept, for classes of any size; negative
    eigenvalues are 0.
    """
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(400, 4, generator=generator, dtype=torch.float64) + 1
    y = (x @ torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64) > 1.9).long() + 0
    norm = float(x.norm(dim=1).max()) + 1
    plan = LeastSquaresPlan(3, 4, norm, noise_multiplier=1e-4)
    found = pv.statistics.least_squares(plan, (x, y), streams=pv.Streams.new(0))
    constant = norm / 4
    longer = torch.cat([x, torch.full((400, 1), constant, dtype=torch.float64)], 1)
    targets = (y[:, None] == torch.arange(3)).double()
    truth = torch.linalg.solve(longer.T @ longer, longer.T @ (targets - 1 / 3))
    with torch.no_grad():
        torch.testing.assert_close(
            found.model(x.float()).double(), longer @ truth, atol=0.02, rtol=0
        )
    gram = torch.diag(torch.tensor([4.0, -3.0], dtype=torch.float64))
    weights = solved(
        Squares(torch.tensor([[2.0, -2.0], [1.0, -1.0]], dtype=torch.float64), gram, 1.0, 1.0), 0.5
    )
    torch.testing.assert_close(
        weights, torch.tensor([[2 / 4.5, -2 / 4.5], [2.0, -2.0]], dtype=torch.float64)
    )


@check
def check_heads_from_statistics_stand_behind_public_features() -> None:
    """As on precomputed features, for both heads and rows; named in the certificate, recomputed by
    verification.
    """
    data = encoder_checks.images(30)
    made = encoder_checks.Scattering(1)(torch.from_numpy(data.x).float() / 255)
    numbers = math.prod(made.shape[1:])
    direct = replace(data, x=made, x_test=None, y_test=None, low=None, high=None)
    norm = math.sqrt(numbers)
    for uncalibrated, act in (
        (FisherPlan(3, numbers, numbers, norm), pv.statistics.fisher),
        (LeastSquaresPlan(3, numbers, norm), pv.statistics.least_squares),
    ):
        plain: Any = uncalibrated.calibrate(rho=50.0)
        plan = replace(plain, front=(pv.transforms.Scatter(J=1),))
        with tempfile.TemporaryDirectory() as folder:
            ours = act(plan, data, streams=pv.Streams.new(0))
            theirs = act(plain, direct, streams=pv.Streams.new(0))
            x = torch.from_numpy(data.x).float()
            torch.testing.assert_close(ours.model(x), theirs.model(made), rtol=1e-3, atol=1e-3)
            out = publish.publish(
                ours, Path(folder) / "model", delta=1e-5, model_spec="linear", classes=3
            )
            facts = json.loads((out / "privacy.json").read_text())["facts"]
            assert facts["public_features"] == encoder_checks.Scattering(1).describe()
            assert "| public features | scatter:J=1" in (out / "README.md").read_text()
            assert pv.verify(out).ok
            assert torch.equal(pv.load_model(out)(x), ours.model(x))
            assert plan.follows(ours.facts) == plain.follows(theirs.facts) == []
            for own, others in ((plan, theirs.facts), (plain, ours.facts)):
                assert "public features" in " ".join(own.follows(others))
            assert ours.ledger.event == plan.event()
            assert math.isclose(zcdp.rho(plan.event()), 50.0)
    wrong = pv.statistics.FisherPlan(
        3, 256, 256, 16.0, front=(pv.transforms.Scatter(J=1),)
    ).calibrate(rho=1.0)
    ledger = pv.Ledger()
    must_raise(BadInput, lambda: pv.statistics.fisher(wrong, data, ledger=ledger))
    # it would not be paid for
    must_raise(BadInput, lambda: replace(wrong, front=(pv.transforms.PrivatePCA(4, 1.0),)))
    assert not list(walk(ledger.event))


# Paid moments


def moments(noise: float = 3.0, norm: float = R) -> pv.Moments:
    return pv.transforms.Moments(4, noise, norm)


def with_moments(noise: float = 3.0, adjacency: Adjacency = ADD) -> pv.Plan:
    return pv.Plan(
        pv.Poisson(0.3),
        epochs=1,
        schedule=pv.schedules.Constant(start=2.0),
        front=(moments(noise),),
        examples=30,
        adjacency=adjacency,
    )


def trained(plan: pv.Plan, data: Any, **more: Any) -> pv.Result:
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(reduction="none")
    return pv.dpsgd(plan, nn.Linear(4, K), loss, data, **{"streams": pv.Streams.new(0)} | more)


@check
def check_moments_are_those_of_clipped_rows() -> None:
    """Hardly any noise: mean and deviation of clipped rows, by coordinate; then rows are clipped
    and of one length.
    """
    x = some_rows(400)[0].float()
    clipped = x * (R / x.norm(dim=1, keepdim=True)).clamp(max=1)
    made = moments(1e-5).fit(x, ADD, pv.Ledger(), pv.Streams.new(0).noise)
    torch.testing.assert_close(made.get_buffer("mean"), clipped.mean(0), atol=1e-3, rtol=0)
    torch.testing.assert_close(
        made.get_buffer("deviation"), clipped.std(0, correction=0), atol=1e-3, rtol=0
    )
    expected = (clipped - clipped.mean(0)) / clipped.std(0, correction=0)
    found = made(x)
    torch.testing.assert_close(
        found, expected / expected.norm(dim=1, keepdim=True) * 2, atol=0.01, rtol=0
    )
    torch.testing.assert_close(found.norm(dim=1), torch.full((400,), 2.0))
    torch.testing.assert_close(made(x[3:4]), found[3:4])


@check
def check_moments_are_in_the_price() -> None:
    """One Gaussian release, charged first, of the whole noise; constant features not blown up;
    published, verified.
    """
    plan = with_moments()
    assert math.isclose(zcdp.rho(plan.front[0].event()), 0.5 / 9)
    x, y = some_rows(30)
    x = x.float() / (1 + x.float().abs())
    result = trained(plan, (x, y))
    assert result.ledger.event == plan.event()
    assert next(walk(plan.event())) == (Gaussian(3.0), 1)
    assert result.plan == plan
    with tempfile.TemporaryDirectory() as name:
        out = publish.publish(result, Path(name) / "model", delta=1e-5, model_spec=None)
        assert pv.verify(out).ok
        assert "means and variances of 4 features" in (out / "README.md").read_text()
        content = json.loads((out / "privacy.json").read_text())
        content["plan"]["front"][0]["noise_multiplier"] = 30.0
        content["digests"]["plan"] = digest(content["plan"])
        (out / "privacy.json").write_text(json.dumps(content))
        assert not pv.verify(out).ok
    flat = moments(1.0).fit(torch.zeros(50, 4), ADD, pv.Ledger(), pv.Streams.new(0).noise)
    assert float(flat.get_buffer("deviation").min()) > 0.1  # what the noise alone gives
    ledger = pv.Ledger(pv.Budget(rho=0.05))
    stream: Any = NoDraws()
    must_raise(pv.errors.BudgetExceeded, lambda: moments().fit(x, ADD, ledger, stream))
    assert not list(walk(ledger.event))


@check
def check_moments_have_the_stated_noise() -> None:
    """On no rows: sums and squares of noise alone, of z times the sensitivity over the root of the
    part of rho.
    """
    from unittest import mock

    from privlearn.transforms import moments as module

    seen: list[Any] = []
    real = module.release_statistics

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(real(*args, **kwargs))
        return seen[-1]

    for adjacency, factor in ((ADD, 1.0), (REPLACE, 2.0)):
        with mock.patch.object(module, "release_statistics", watched):
            made = pv.transforms.Moments(20_000, 2.0, R)
            made.fit(
                torch.full((1, 20_000), math.nan), adjacency, pv.Ledger(), pv.Streams.new(2).noise
            )
        for values, stated, size in (
            (seen[-1].sums, seen[-1].sum_std, factor * R / math.sqrt(0.19)),
            (
                seen[-1].moments,
                seen[-1].moment_std,
                R**2 / math.sqrt(0.8) * (math.sqrt(2) if factor == 2 else 1),
            ),
        ):
            assert math.isclose(stated, 2.0 * size)
            assert abs(float(values.std()) / stated - 1) < 0.03


@check
def check_neighbouring_runs_with_moments_look_the_same() -> None:
    """By record and replay: whatever a row holds, nothing but the released numbers follows from
    it.
    """
    for adjacency in (ADD, ZERO):
        plan = with_moments(adjacency=adjacency)

        def training(last: Any, plan: pv.Plan = plan) -> Any:
            x, y = with_last(last)
            data = (x.float(), y)

            def run(streams: Any, folder: Path) -> None:
                result = trained(plan, data, streams=streams)
                publish.publish(result, folder / "model", delta=1e-5)

            return run

        empty = None if adjacency is ADD else (torch.full((4,), math.nan, dtype=torch.float64), 0)
        base = transcript(training(empty))
        assert len(base.released) > 1, base.seen[-3:]
        for row, label in STRANGE:
            found = transcript(
                training((torch.tensor(row, dtype=torch.float64), label)), replay=base
            )
            require_alike(base, found, (adjacency, row), rounding=1e-5)


@check
def check_rates_know_rows_of_public_norm() -> None:
    """After moments, and for a folder's normalised features, all rows have one norm: the rule for
    score noise holds.
    """
    plan = pv.Plan(pv.Poisson(0.1), epochs=3, clip=pv.Flat(0.1)).calibrate(epsilon=2.0, delta=1e-5)
    data = pv.Dataset(np.zeros((40, 4), np.float32), np.zeros(40, int), classes=3)

    def rate(plan: pv.Plan, data: pv.Dataset, *front: pv.transforms.PublicTransform) -> float:
        plan = replace(plan, front=(*front, *plan.front))
        return rules.learning_rate(
            "SGD", plan, 40, "linear", 0.0, rules.public_norm(plan, facts_of(data, None, front))
        )

    plain = rate(plan, data)
    behind = replace(plan, front=(moments(1e3),))
    assert math.isclose(rate(behind, data) / plain, 5.0 / 2 / 0.6)
    for normalisation, factor in (("of each example", 5.0 / 2 / 0.6), ("none", 1.0)):
        features = Precomputed("anything", "", normalisation)
        assert math.isclose(rate(plan, data, features) / plain, factor)


# Folders of features


def folder_of(path: Path, data: pv.Dataset, spec: str, **more: Any) -> FeatureFolder:
    """Features of images by an encoder that is not at hand afterwards, as numbers in a folder."""
    found = encoder_checks.encoder(spec)
    made = [found(torch.from_numpy(part).float() / 255).numpy() for part in (data.x, data.x_test)]
    return pv.transforms.save_features(
        path, *made, encoder="a net of ours", of=data, **{"normalise": False} | more
    )


@check
def check_a_folder_trains_what_its_encoder_trains() -> None:
    """The same weights as with the encoder at work; certified under the declared name, with nothing
    of the rows.
    """
    data = encoder_checks.images()
    with tempfile.TemporaryDirectory() as name, code(LINEAR) as spec:
        path, out = Path(name) / "features", Path(name) / "model"
        kept = folder_of(path, data, spec, sha256="ab" * 32)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        _, found = read_features(str(path), data)
        assert found.low is None
        ours = encoder_checks.run(data, str(path))
        theirs = encoder_checks.run(data, spec)
        for key, value in theirs.model[-1].state_dict().items():  # type: ignore[index]
            torch.testing.assert_close(
                ours.model[-1].state_dict()[key], value, rtol=1e-4, atol=1e-5
            )  # type: ignore[index]
        pv.publish(ours, out, model_spec="linear", classes=3)
        assert pv.verify(out).ok
        facts = json.loads((out / "privacy.json").read_text())["facts"]
        stated = {
            "kind": "precomputed",
            "spec": "precomputed by a net of ours",
            "digest": "ab" * 32,
            "normalisation": "none",
        }
        assert facts["public_features"] == stated
        assert "a net of ours, weights with SHA-256 abab" in (out / "README.md").read_text()
        published = b"".join(file.read_bytes() for file in out.iterdir())
        assert not any(found.encode() in published for found in kept.rows.values())
        model = pv.load_model(out)
        assert torch.equal(
            model(torch.from_numpy(found.x[:5])), ours.model(torch.from_numpy(found.x[:5]))
        )


@check
def check_rows_of_features_are_normalised_one_by_one() -> None:
    x = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0)) * 40 + 7
    found = PrecomputedRows(Precomputed("anything"))(x)
    torch.testing.assert_close(
        found.flatten(1).norm(dim=1), torch.full((6,), math.sqrt(15)), rtol=1e-3, atol=0
    )
    torch.testing.assert_close(PrecomputedRows(Precomputed("anything"))(x[2:3]), found[2:3])
    others = x * 100
    others[2] = x[2]
    torch.testing.assert_close(PrecomputedRows(Precomputed("anything"))(others)[2], found[2])
    assert torch.equal(PrecomputedRows(Precomputed("anything", "", "none"))(x), x)


@check
def check_features_of_other_rows_are_refused() -> None:
    """Another number, another order, one changed pixel, another type. Without digests, by number
    alone.
    """
    data = encoder_checks.images()
    assert rows_digest(data.x) == rows_digest(data.x.copy(order="F"))
    assert rows_digest(torch.from_numpy(data.x)) == rows_digest(data.x)
    import hashlib

    by_hand = hashlib.sha256(b"(12, 16, 16) uint8\n" + data.x.tobytes()).hexdigest()
    assert rows_digest(data.x) == by_hand
    with tempfile.TemporaryDirectory() as name, code(LINEAR) as spec:
        told, untold = Path(name) / "told", Path(name) / "untold"
        folder_of(told, data, spec)
        folder_of(untold, data, spec)
        about = json.loads((untold / "features.json").read_text())
        (untold / "features.json").write_text(json.dumps(about | {"rows": {}}))
        changed = data.x.copy()
        changed[5, 3, 3] ^= 1
        for x in (data.x[::-1], changed, data.x.astype(np.int16)):
            must_raise(BadInput, lambda x=x: read_features(str(told), replace(data, x=x)))  # type: ignore[misc]
            assert read_features(str(untold), replace(data, x=x))[1].x.shape == (12, 9)
        other = replace(data, x_test=changed[:6])
        must_raise(BadInput, lambda: read_features(str(told), other))
        for kept in (told, untold):
            few = replace(data, x=data.x[:11], y=data.y[:11])
            assert "11" in str(
                must_raise(BadInput, lambda kept=kept, few=few: read_features(str(kept), few))
            )  # type: ignore[misc]


@check
def check_a_folder_is_read_in_every_form() -> None:
    """.npy (not read before it is used), .npz and .safetensors, of single and half precision: the
    same features.
    """
    from safetensors.numpy import save_file

    data = encoder_checks.images()
    with tempfile.TemporaryDirectory() as name, code(LINEAR) as spec:
        path = Path(name) / "features"
        expected = np.array(folder_of(path, data, spec).part("train"))
        assert isinstance(FeatureFolder.read(path).part("train"), np.memmap)
        (path / "train.npy").unlink()
        np.savez(path / "train.npz", expected)
        np.testing.assert_array_equal(FeatureFolder.read(path).part("train"), expected)
        (path / "train.npz").unlink()
        save_file({"x": expected.astype(np.float16)}, path / "train.safetensors")
        np.testing.assert_allclose(
            FeatureFolder.read(path).part("train"), expected, rtol=1e-3, atol=1e-3
        )
        (path / "test.npy").unlink()
        _, found = read_features(str(path), data)
        assert found.x_test is None
        assert found.y_test is None
        assert "test" in found.remarks[-1]


@check
def check_a_certificate_of_a_folder_names_its_encoder() -> None:
    """Another name, digest or kind than configured does not verify, also where all digests of parts
    are right.
    """
    data = encoder_checks.images()
    for change in ({"spec": "precomputed by theirs"}, {"digest": "cd" * 32}, {"kind": "scatter"}):
        with tempfile.TemporaryDirectory() as name, code(LINEAR) as spec:
            path, out = Path(name) / "features", Path(name) / "model"
            folder_of(path, data, spec, sha256="ab" * 32)
            result = encoder_checks.run(data, str(path))
            pv.publish(result, out, model_spec="linear", classes=3)
            content = json.loads((out / "privacy.json").read_text())
            content["facts"]["public_features"] |= change
            content["digests"]["facts"] = digest(content["facts"])
            (out / "privacy.json").write_text(json.dumps(content))
            found = pv.verify(out)
            assert not found.ok
            assert all("public features" in problem for problem in found.problems)
            must_raise(CertificateMismatch, lambda out=out: pv.load_model(out))  # type: ignore[misc]


def bad_folders() -> dict[str, tuple[Callable[[Path], Any], str]]:
    """What is done to a good folder, and what the message then names."""

    def about(**changes: Any) -> Callable[[Path], Any]:
        def change(path: Path) -> None:
            found = json.loads((path / "features.json").read_text()) | changes
            told = {name: value for name, value in found.items() if value is not None}
            (path / "features.json").write_text(json.dumps(told))

        return change

    def rows(values: Any) -> Callable[[Path], Any]:
        return lambda path: np.save(path / "train.npy", values, allow_pickle=True)

    good = np.zeros((12, 9), np.float32)
    broken = good.copy()
    broken[7, 2] = np.nan
    return {
        "no description": (lambda path: (path / "features.json").unlink(), "features.json"),
        "no JSON": (lambda path: (path / "features.json").write_text("{"), "JSON"),
        "a list": (lambda path: (path / "features.json").write_text("[]"), "encoder"),
        "no encoder": (about(encoder=None), "encoder"),
        "a field too many": (about(row={}), "row"),
        "an empty name": (about(encoder=" "), "encoder"),
        "a name of two lines": (about(encoder="a\nb"), "encoder"),
        "a digest that is none": (about(sha256="12"), "64"),
        "a shape that is none": (about(shape=9), "shape"),
        "another shape": (about(shape=[8]), "(8,)"),
        "a size that is none": (about(shape=["9"]), "shape"),
        "rows that are none": (about(rows={"train": "x"}), "rows"),
        "a part that is none": (about(rows={"all": "ab" * 32}), "rows"),
        "a normalisation that is none": (about(normalise="yes"), "normalise"),
        "no rows": (lambda path: (path / "train.npy").unlink(), "train.npy"),
        "rows in two files": (lambda path: np.savez(path / "train.npz", good), "one of them"),
        "whole numbers": (rows(np.zeros((12, 9), int)), "floating-point"),
        "flat rows": (rows(np.zeros(108, np.float32)), "shape"),
        "pickled rows": (rows(np.array([{}] * 12)), "train.npy"),
        "no number": (rows(broken), "row"),
        "a file cut short": (
            lambda path: (path / "train.npy").write_bytes(b"\x93NUMPY"),
            "train.npy",
        ),
    }


@check
def check_bad_folders_are_refused_in_one_message() -> None:
    data = encoder_checks.images()
    for name, (spoil, said) in bad_folders().items():
        with tempfile.TemporaryDirectory() as above, code(LINEAR) as spec:
            path = Path(above) / "features"
            folder_of(path, data, spec)
            spoil(path)
            assert said in str(
                must_raise(BadInput, lambda path=path: read_features(str(path), data))
            ), name  # type: ignore[misc]
    must_raise(BadInput, lambda: read_features("no/such/folder", data))
    with tempfile.TemporaryDirectory() as above:
        good = np.zeros((12, 4), np.float32)
        for bad in (
            lambda: pv.transforms.save_features(above, good, encoder="ours"),  # it is there already
            lambda: pv.transforms.save_features(f"{above}/a", good[:, 0], encoder="ours"),
            lambda: pv.transforms.save_features(f"{above}/b", good, good[:, :2], encoder="ours"),
            lambda: pv.transforms.save_features(f"{above}/c", good[:3], encoder="ours", of=data),
            lambda: pv.transforms.save_features(f"{above}/d", good, encoder=""),
        ):
            must_raise(BadInput, bad)
        assert not list(Path(above).iterdir())


@check
def check_paid_components_are_no_encoder() -> None:
    """`pca:L` is a release: by `pv.train` the plan of PCA(L, 16) in front; elsewhere refused,
    saying what to give.
    """
    x = np.random.default_rng(0).random((300, 6), dtype=np.float32)
    data = pv.Dataset(x, np.arange(300) % 3, classes=3, low=0.0, high=1.0)
    result = pv.train(data, epsilon=3.0, delta=1e-4, features="pca:4", streams=pv.Streams.new(0))
    assert next(walk(result.ledger.event)) == (Gaussian(16.0), 1)
    assert result.plan.front == (pv.transforms.PrivatePCA(4, 16.0),)
    assert "public_features" not in result.facts
    assert result.ledger.guarantee(1e-4).epsilon <= 3.0
    assert "front" in str(must_raise(BadInput, lambda: read_features("pca:4", data)))
    for bad in ("pca:", "pca", "pca:0", "pca:x", "pca:1.5"):
        must_raise(BadInput, lambda bad=bad: pv.train(data, epsilon=3.0, features=bad))  # type: ignore[misc]


@check
def check_least_squares_refuses_what_it_can_not_do() -> None:
    for bad in (
        {"features": 20_000},
        {"classes": 1},
        {"row_norm": None},
        {"row_norm": -1.0},
        {"split": (1.0, 0.0)},
        {"split": (1.0, 1.0, 1.0)},
        {"noise_multiplier": 0.0},
    ):
        must_raise(BadInput, lambda bad=bad: settled(LeastSquaresPlan, **bad))  # type: ignore[misc]
    plan = settled(LeastSquaresPlan)
    must_raise(BadInput, lambda: pv.statistics.fisher(plan, some_rows()))
    must_raise(BadInput, lambda: pv.statistics.least_squares(settled(), some_rows()))
    for adjacency in Adjacency:
        plan = settled(LeastSquaresPlan, adjacency=adjacency)
        found = release_squares(plan, *some_rows(), pv.Ledger(), pv.Streams.new(0).noise)
        assert math.isclose(found.product_std, plan.noise_of_sums)
