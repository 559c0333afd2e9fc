"""Named checks of public features: each example alone, kept for the rows they are of, and certified
as they were.
"""

from __future__ import annotations

import json
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn._storage import digest
from privlearn.cli import jobs
from privlearn.core.accounting.events import walk
from privlearn.errors import BadInput, CertificateMismatch, NotPerExample
from privlearn.publishing import certificate
from privlearn.runs import front as front_module
from privlearn.runs.front import Front
from privlearn.transforms import (
    PrivatePCA,
    RandomUnits,
    Scattering,
    feature_cache,
    parse,
    read_features,
    usual,
)
from privlearn.transforms import made_up_images as directions_module
from privlearn.transforms.chain import features_of
from privlearn.transforms.made_up_images import made_up_images
from privlearn.transforms.modules import ExternalModule
from privlearn.transforms.scattering import scattered
from tests.support.checks import check, must_raise

SIZE = 16


def images(rows: int = 12, seed: int = 0) -> pv.Dataset:
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 256, (rows, SIZE, SIZE), dtype=np.uint8)
    x_test = np.random.default_rng(seed + 100).integers(0, 256, (6, SIZE, SIZE), dtype=np.uint8)
    return pv.Dataset(
        x,
        np.arange(rows) % 3,
        x_test,
        np.arange(6) % 3,
        classes=3,
        low=0.0,
        high=255.0,
        name="images",
    )


def encoder(spec: str, shape: Any = (), *cached: Any) -> Any:
    """The module of public features."""
    own = parse(spec)
    assert own is not None
    return own.module(shape, *cached)


def run(data: pv.Dataset, features: str = "raw", **more: Any) -> pv.Result:
    front, data = read_features(features, data)
    plan = pv.Plan(pv.Poisson(0.5), epochs=2, clip=pv.Flat(0.1), front=front).calibrate(
        epsilon=3.0, delta=1e-3
    )
    loss = nn.CrossEntropyLoss(reduction="none")
    make = lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0))  # noqa: E731
    return pv.dpsgd(plan, make, loss, data, streams=pv.Streams.new(0), **more)


@contextmanager
def code(text: str, name: str = "made_up_encoder") -> Iterator[str]:
    """A module on the path with a function `make`, which has `text` for its body."""
    with tempfile.TemporaryDirectory() as folder:
        body = "\n    ".join(text.splitlines())
        (Path(folder) / f"{name}.py").write_text(
            f"import torch\nfrom torch import nn\ndef make():\n    {body}\n"
        )
        sys.path.insert(0, folder)
        try:
            yield f"{name}:make"
        finally:
            sys.path.remove(folder)
            sys.modules.pop(name, None)


LINEAR = "torch.manual_seed(0)\nreturn nn.Sequential(nn.Flatten(), nn.Linear(256, 9))"


def random_units(mirror: int = 1) -> RandomUnits:
    with few_images():
        found = encoder(f"scatter-random:J=2,units=9,mirror={mirror},kept=20", (3, SIZE, SIZE))
    assert isinstance(found, RandomUnits)
    return found


@check
def check_features_of_an_example_are_its_own() -> None:
    for shape in ((6, SIZE, SIZE), (6, 3, SIZE, 20)):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        together = Scattering()(x)
        for row in range(6):
            alone = Scattering()(x[row : row + 1])
            torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-4)
            others = torch.rand(shape, generator=torch.Generator().manual_seed(2)) * 100
            others[row] = x[row]
            torch.testing.assert_close(
                Scattering()(others)[row], together[row], rtol=1e-4, atol=1e-4
            )
    made = random_units()
    x = torch.rand(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    others = torch.rand(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2))
    others[2] = x[2]
    torch.testing.assert_close(made(others)[2], made(x)[2], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(made(x[2:3])[0], made(x)[2], rtol=1e-3, atol=1e-3)
    assert made(x[:0]).shape == (0, 20)


@check
def check_scattering_is_what_kymatio_and_a_group_norm_make() -> None:
    from kymatio.scattering2d.frontend.numpy_frontend import ScatteringNumPy2D

    x = np.random.default_rng(0).random((3, SIZE, SIZE)).astype(np.float32)
    raw = ScatteringNumPy2D(J=2, shape=(SIZE, SIZE))(x).reshape(3, 27, -1)
    by_hand = (raw - raw.mean(2, keepdims=True)) / np.sqrt(raw.var(2, keepdims=True) + 1e-5)
    found = Scattering()(torch.from_numpy(x))
    assert found.shape == (3, 81, 4, 4)
    np.testing.assert_allclose(found.numpy().reshape(3, 27, -1), by_hand, rtol=1e-2, atol=1e-2)


@contextmanager
def few_images(number: int = 300) -> Iterator[None]:
    """Directions of fewer made-up images, in a moment."""
    with mock.patch.object(directions_module, "_IMAGES", number):
        yield


@check
def check_directions_are_of_made_up_images_alone() -> None:
    """The same ones whenever and for whomever; by hand, from the same images; rows of one
    length.
    """
    with few_images():
        one, other = (Scattering.learned(2, 20, (SIZE, SIZE)) for _ in range(2))
    assert torch.equal(one.get_buffer("components"), other.get_buffer("components"))
    made_up = torch.from_numpy(made_up_images((SIZE, SIZE), 300))
    assert made_up.shape == (300, SIZE, SIZE)
    assert 0 <= float(made_up.min()) < float(made_up.max()) <= 1
    rows = Scattering(2)(made_up).flatten(1).double()
    torch.testing.assert_close(one.get_buffer("mean").double(), rows.mean(0), rtol=1e-3, atol=1e-4)
    spread = torch.linalg.eigvalsh(
        (rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows)
    ).flip(0)[:20]
    projected = (rows - rows.mean(0)) @ one.get_buffer("components").double()
    expected = spread * (spread + 0.1 * spread.mean()) ** -0.7
    torch.testing.assert_close(projected.square().mean(0), expected, rtol=1e-2, atol=1e-3)
    x = torch.from_numpy(images().x).float() / 255
    assert one(x).shape == (12, 20)
    torch.testing.assert_close(one(x).norm(dim=1), torch.full((12,), 20**0.5))
    torch.testing.assert_close(one(x[3:4]), one(x)[3:4], rtol=1e-3, atol=1e-3)


@contextmanager
def mirrored_vectors() -> Iterator[None]:
    """A block in which eigenvectors and singular vectors have the other sign."""
    eigh, svd, svd_lowrank = torch.linalg.eigh, torch.linalg.svd, torch.svd_lowrank

    def mirrored_eigh(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        values, vectors = eigh(*args, **options)
        return values, -vectors

    def mirrored_svd(*args: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        left, lengths, right = svd(*args, **options)
        return -left, lengths, -right

    def mirrored_svd_lowrank(*args: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        left, lengths, right = svd_lowrank(*args, **options)
        return -left, lengths, -right

    with (
        mock.patch.object(torch.linalg, "eigh", mirrored_eigh),
        mock.patch.object(torch.linalg, "svd", mirrored_svd),
        mock.patch.object(torch, "svd_lowrank", mirrored_svd_lowrank),
    ):
        yield


@check
def check_directions_have_fixed_signs() -> None:
    """Where a processor computes eigenvectors of the other sign, the directions are the same."""
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    public = pv.Dataset(x, x, public=True)

    def make_linear(shape: tuple[int, ...]) -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(*shape, 2)

    def learn() -> list[Tensor]:
        plan = pv.Plan(pv.Partition(1), 1, front=(PrivatePCA(3, 1.0),), examples=40)
        private = pv.dpsgd(
            plan,
            make_linear,
            nn.CrossEntropyLoss(reduction="none"),
            pv.Dataset(x, np.arange(40) % 2, classes=2),
            streams=pv.Streams.new(0),
        )
        with few_images():
            drawn = Scattering.learned(2, 20, (SIZE, SIZE)).get_buffer("components")
        components = private.model.state_dict().values()
        return [*components, drawn, pv.teachers.PublicPCA.fit(public, 3).components]

    ours = learn()
    with mirrored_vectors():
        theirs = learn()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@check
def check_kept_directions_are_those_of_this_shape() -> None:
    with few_images(), tempfile.TemporaryDirectory() as folder:
        begun: list[bool] = []
        begin = lambda: begun.append(True)  # noqa: E731
        small = encoder("scatter:J=2,kept=20", (SIZE, SIZE), Path(folder))
        wide = encoder("scatter:J=2,kept=20", (SIZE, 20), Path(folder))
        assert isinstance(small, Scattering)
        assert isinstance(wide, Scattering)
        assert (small.shape, wide.shape) == ([1296, 20], [1620, 20])
        again = encoder("scatter:J=2,kept=20", (SIZE, SIZE), Path(folder), begin)
        assert not begun
        assert isinstance(again, Scattering)
        assert torch.equal(again.get_buffer("components"), small.get_buffer("components"))
        (damaged,) = Path(folder).glob("*16x16*")
        damaged.write_bytes(b"nothing")
        mended = encoder("scatter:J=2,kept=20", (SIZE, SIZE), Path(folder), begin)
        assert begun == [True]
        assert isinstance(mended, Scattering)
        assert torch.equal(mended.get_buffer("components"), small.get_buffer("components"))
        must_raise(BadInput, lambda: encoder("scatter:J=2,kept=400", (SIZE, SIZE)))


@check
def check_random_units_by_hand() -> None:
    """Logarithms, whitened at each place, units' answers averaged over a grid, from made-up images
    alone.
    """
    made = random_units(mirror=0)
    assert (made.local, made.shape) == ([243, 9], [144, 20])
    x = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    answers = made.answers(x)
    assert answers.shape == (2, 9, 4, 4)
    logarithms = (scattered(x, 2) + 0.01).log()
    place = (logarithms[1, :, 3, 0] - made.get_buffer("local_mean")) @ made.get_buffer("whitening")
    # the grid is as fine as the maps
    expected = (place / place.norm() @ made.get_buffer("units")).clamp(min=0)
    torch.testing.assert_close(answers[1, :, 3, 0], expected, rtol=1e-3, atol=1e-4)
    made_up = torch.from_numpy(made_up_images((3, SIZE, SIZE), 300))
    assert 0 <= float(made_up.min()) < float(made_up.max()) <= 1
    places = (
        (scattered(made_up, 2).clamp(min=0) + 0.01).log().permute(0, 2, 3, 1).flatten(0, 2).double()
    )
    torch.testing.assert_close(
        places.mean(0), made.get_buffer("local_mean").double(), rtol=1e-3, atol=1e-4
    )
    white = torch.cov(((places - places.mean(0)) @ made.get_buffer("whitening").double()).T)
    spread = torch.linalg.eigvalsh(torch.cov(places.T))
    expected = (spread / (spread + 0.1 * spread.mean()).sqrt()).sort().values
    torch.testing.assert_close(torch.linalg.eigvalsh(white), expected, rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(made.get_buffer("units").norm(dim=0), torch.ones(9))
    torch.testing.assert_close(
        made.get_buffer("mean"), made.answers(made_up).flatten(1).mean(0), rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(made(x).norm(dim=1), torch.full((2,), 20**0.5))
    wide = RandomUnits.empty(2, False, made.local, made.shape)
    wide.load_state_dict(made.state_dict())
    # averaged in parts of larger images
    assert wide.answers(torch.rand(2, 3, 40, 50)).shape == (2, 9, 4, 4)


@check
def check_mirror_images_have_the_same_features_where_wanted() -> None:
    x = torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    both, one = random_units(), random_units(mirror=0)
    torch.testing.assert_close(both(x.flip(-1)), both(x), rtol=1e-3, atol=1e-3)
    assert float((one(x.flip(-1)) - one(x)).abs().max()) > 0.05
    assert float((both(x.flip(-2)) - both(x)).abs().max()) > 0.05


@check
def check_what_is_usual_follows_from_public_facts() -> None:
    assert usual((28, 28), 0.0) == usual((1, 28, 28), 0.0) == "scatter:J=2,kept=1000"
    assert usual((3, 32, 32), 0.0) == "scatter-random:J=2,units=400,mirror=1,kept=2000,encoded=500"
    assert usual((16, 16), 0.0) == "scatter:J=2"
    assert usual((64, 64), 0.0) == "scatter:J=2,kept=1000"
    assert (
        usual((3, 65, 64), 0.0)
        is usual((224, 224), 0.0)
        is usual((3, 64, 65), 0.0)
        is usual((), 0.0)
        is None
    )
    assert usual((28, 28), 0.0, 2999.0) == "scatter:J=2,kept=300"
    assert usual((3, 32, 32), 0.0, 2999.0) == "scatter-random:J=2,units=400,mirror=1,kept=300"
    assert usual((3, 32, 32), 0.0, 3000.0) == usual((3, 32, 32), 0.0)
    assert usual((300,), 0.0) == "norm:power=0.5"
    assert (
        usual((3, 12, 12), 0.0)
        is usual((300,), -1.0)
        is usual((300,), None)
        is usual((30,), 0.0)
        is None
    )


@check
def check_published_directions_come_back() -> None:
    grey = images()
    colours = replace(grey, x=np.stack([grey.x] * 3, 1), x_test=np.stack([grey.x_test] * 3, 1))
    for data, spec in (
        (grey, "scatter:J=2,kept=20"),
        (colours, "scatter-random:J=2,units=9,mirror=1,kept=20"),
    ):
        with few_images(), tempfile.TemporaryDirectory() as folder:
            result = run(data, spec)
            out = Path(folder) / "model"
            pv.publish(result, out, model_spec="linear", classes=3)
            assert pv.verify(out).ok
            assert spec in (out / "README.md").read_text()
            model = pv.load_model(out)
            x = torch.from_numpy(data.x).float()
            assert torch.equal(model(x), result.model(x))


@check
def check_training_on_images_is_training_on_their_features() -> None:
    """The same noise, and the same weights, whether the features were made beforehand or on the
    way: scaled images.
    """
    data = images()
    made = Scattering()(torch.from_numpy(data.x).float() / 255)
    direct = run(replace(data, x=made, x_test=None, y_test=None, low=None, high=None))
    through = run(data, "scatter:J=2")
    ours, theirs = through.model[-1].state_dict(), direct.model[-1].state_dict()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-4)
    x = torch.from_numpy(data.x).float()
    torch.testing.assert_close(through.model(x), direct.model(made), rtol=1e-3, atol=1e-3)
    expected = float((through.model(x[:6]).argmax(1) == torch.arange(6) % 3).float().mean())
    found = jobs.test_metrics(through.model, data)
    assert abs(found["accuracy"] - expected) < 1e-6
    with code("return nn.Flatten()") as spec:
        front = Front(read_features(spec, data)[0], data, x)
    torch.testing.assert_close(front.rows, x.flatten(1) / 255)


@check
def check_kept_features_are_those_of_these_rows() -> None:
    """By another encoder, or of other rows, they are made anew; and nobody else may read them."""
    with tempfile.TemporaryDirectory() as folder:
        done: list[tuple[int, int]] = []

        def features(data: pv.Dataset, spec: str) -> Tensor:
            with feature_cache(folder, lambda *own: done.append(own)):
                return features_of(
                    encoder(spec, (SIZE, SIZE)), torch.from_numpy(data.x).float() / 255
                )

        first = features(images(), "scatter:J=2")
        assert done == [(12, 12)]
        assert torch.equal(features(images(), "scatter:J=2"), first)
        assert done == [(12, 12)]
        assert features(images(), "scatter:J=1").shape == (12, 9, 8, 8)
        changed = images()
        changed.x[5, 3, 3] ^= 1
        other = features(changed, "scatter:J=2")
        assert not torch.equal(other[5], first[5])
        assert len(done) == 3
        files = list(Path(folder).iterdir())
        assert len(files) == 3
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


@check
def check_long_data_are_encoded_in_blocks() -> None:
    x = torch.rand(300, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    found = features_of(encoder("scatter:J=1", (SIZE, SIZE)), x)
    torch.testing.assert_close(found, Scattering(1)(x), rtol=1e-4, atol=1e-4)


@check
def check_an_encoder_that_mixes_rows_is_refused() -> None:
    for body in (
        "return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(256, track_running_stats=False))",
        (
            "class Mean(nn.Module):\n    def forward(self, x): return x.flatten(1) - "
            "x.flatten(1).mean(0)\nreturn Mean()"
        ),
    ):
        with code(body) as spec:
            # Before anything is charged, for the features are made before.
            ledger = pv.Ledger()
            must_raise(NotPerExample, lambda: run(images(), spec, ledger=ledger))  # noqa: B023
            assert not list(walk(ledger.event))


@check
def check_an_encoder_that_is_another_each_time_is_refused() -> None:
    """Also if it takes numbers of its own; before anything is charged, for nobody could predict."""
    linear = "return nn.Sequential(nn.Flatten(), nn.Linear(256, 9))"
    for body in (linear, "with torch.random.fork_rng():\n    " + linear, "torch.seed()\n" + linear):
        with code(body) as spec:
            assert "seed" in str(must_raise(BadInput, lambda: run(images(), spec)))
    with code(LINEAR) as spec:
        before = torch.get_rng_state()
        run(images(), spec)
        assert torch.equal(torch.get_rng_state(), before)


@check
def check_features_that_are_no_numbers_are_refused_before_anything_is_spent() -> None:
    """Of all rows, or of one that is finite itself; test rows, which are looked at afterwards, end
    no run.
    """
    bad, body = (
        images(),
        "class Bad(nn.Module):\n    def forward(self, x): return x.flatten(1) / {}\nreturn Bad()",
    )
    bad.x[3] = 0
    for divisor, said in (("0.0", "made-up"), ("x.flatten(1).sum(1, keepdim=True)", "some rows")):
        with code(body.format(divisor)) as spec:
            ledger = pv.Ledger()
            told = str(must_raise(BadInput, lambda: run(bad, spec, ledger=ledger)))  # noqa: B023
            assert said in told
            assert "row 3" not in told
            assert not list(walk(ledger.event))
    broken = (
        LINEAR.replace("return ", "made = ")
        + "\nmade[1].weight.data[2, 3] = float('nan')\nreturn made"
    )
    with code(broken) as spec:
        assert "1.weight" in str(must_raise(BadInput, lambda: run(bad, spec)))
    with code(body.format("x.flatten(1).sum(1, keepdim=True)")) as spec:
        good = replace(images(seed=1), x_test=bad.x, y_test=bad.y)
        good.x[3] = 1
        # figures would not be of all rows
        assert jobs.test_metrics(run(good, spec).model, good) is None


BATCH_NORM = (
    "torch.manual_seed(0)\nnorm = "
    "nn.BatchNorm1d(256)\nnorm.running_mean.uniform_()\nnorm.running_var.uniform_(0.5, 2)\nreturn "
    "nn.Sequential(nn.Flatten(), norm, nn.Linear(256, 9))"
)


@check
def check_batch_norm_of_an_encoder_is_a_fixed_map() -> None:
    """By its running statistics, in whatever mode the model is; unlike that of a network that is
    trained.
    """
    with code(BATCH_NORM) as spec, tempfile.TemporaryDirectory() as folder:
        result = run(images(), spec)
        pv.publish(result, Path(folder) / "model", model_spec="linear", classes=3)
        model = pv.load_model(Path(folder) / "model", features=spec)
        x = torch.from_numpy(images().x).float()
        expected = result.model(x)
        for own in (result.model, model):
            found = own.train()(x)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(found[2:3], own(x[2:3]), rtol=1e-4, atol=1e-4)
        encoder = result.model[1]  # type: ignore[index]
        (held,) = encoder._held
        before = encoder(x[:2])
        held.train()  # by somebody who has it, too
        torch.testing.assert_close(encoder(x[:2]), before)
        assert not held.training
        held.train()
        must_raise(NotPerExample, lambda: pv.models.require_per_example(held, x[:1]))


@check
def check_an_encoder_of_ones_own_is_named_and_not_published() -> None:
    with tempfile.TemporaryDirectory() as folder, code(LINEAR) as spec:
        out = Path(folder) / "model"
        pv.publish(run(images(), spec), out, model_spec="linear", classes=3)
        facts = json.loads((out / "privacy.json").read_text())["facts"]
        told = encoder(spec)
        assert isinstance(told, ExternalModule)
        assert facts["public_features"] == {"kind": "external", "spec": spec, "digest": told.digest}
        assert told.digest in (out / "README.md").read_text()
        assert (out / "model.safetensors").stat().st_size < 1500  # 9 x 3 numbers, and no 256 x 9
        assert pv.verify(out).ok
        model = pv.load_model(out, features=spec)
        assert model(torch.zeros(2, SIZE, SIZE)).shape == (2, 3)


@check
def check_a_file_never_names_the_code_that_runs() -> None:
    with tempfile.TemporaryDirectory() as folder, code(LINEAR) as spec:
        out = Path(folder) / "model"
        pv.publish(run(images(), spec), out, model_spec="linear", classes=3)
        sys.modules.pop("made_up_encoder")
        assert "features=" in str(must_raise(BadInput, lambda: pv.load_model(out)))
        must_raise(BadInput, lambda: pv.load_model(out, features="os:getcwd"))
        assert "made_up_encoder" not in sys.modules


@check
def check_another_encoder_of_that_name_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        with code(LINEAR) as spec:
            pv.publish(run(images(), spec), out, model_spec="linear", classes=3)
        with code(LINEAR.replace("manual_seed(0)", "manual_seed(1)")) as spec:
            assert "weights" in str(must_raise(BadInput, lambda: pv.load_model(out, features=spec)))


@check
def check_other_features_than_the_certified_ones_do_not_verify() -> None:
    """Certificate and configuration must name the same features, also where all digests are
    right.
    """
    changes: list[tuple[Callable[[Any], Any], str]] = [
        (lambda facts: facts.pop("public_features"), "than config.json"),
        (lambda facts: facts["public_features"].update(spec="scatter:J=3"), "than config.json"),
        (lambda facts: facts.update(public_features="scatter:J=2"), "do not say"),
    ]
    for change, said in changes:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "model"
            pv.publish(run(images(), "scatter:J=2"), out, model_spec="linear", classes=3)
            assert pv.verify(out).ok
            content = json.loads((out / "privacy.json").read_text())
            change(content["facts"])
            content["digests"]["facts"] = digest(content["facts"])
            (out / "privacy.json").write_text(json.dumps(content))
            assert certificate.parse((out / "privacy.json").read_bytes())
            found = pv.verify(out)
            assert not found.ok
            assert any(said in problem for problem in found.problems), found.problems
            must_raise(CertificateMismatch, lambda: pv.load_model(out))  # noqa: B023


@check
def check_a_front_is_made_in_its_order_and_users_code_comes_first() -> None:
    """Public transforms of a plan: as by hand, before a release and behind it; kept by what they
    were made of.
    """
    data = replace(images(), low=None, high=None)
    x = torch.from_numpy(data.x).float()
    transforms = pv.transforms
    scaled, paid = transforms.Rescale(0.0, 255.0), transforms.PrivatePCA(256, 1.0)
    with code(LINEAR) as spec, tempfile.TemporaryDirectory() as folder:
        own = transforms.External(spec)

        def trained(*front: transforms.Transform, **more: Any) -> pv.Result:
            plan = pv.Plan(
                pv.Poisson(0.5), epochs=1, schedule=pv.schedules.Constant(start=1.0), front=front
            )
            make = lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0))  # noqa: E731
            loss = nn.CrossEntropyLoss(reduction="none")
            return pv.dpsgd(
                plan, make, loss, (x, torch.from_numpy(data.y)), streams=pv.Streams.new(0), **more
            )

        result = trained(scaled, own, transforms.PrivatePCA(4, 1.0), transforms.RowNorm(power=1.0))
        by_hand = own.module(x.shape[1:])(scaled.module(x.shape[1:])(x))
        behind = result.model[2](by_hand)  # type: ignore[index]
        expected = (behind - behind.mean(1, keepdim=True)) / behind.std(
            1, keepdim=True, correction=0
        )
        torch.testing.assert_close(result.model[:4](x), expected, rtol=1e-3, atol=1e-3)  # type: ignore[index]
        assert result.plan.follows(result.facts) == []
        (stated, norm) = result.facts["public_features"]
        for others in ([stated], [norm, stated], {**norm, "spec": "norm:power=0.5"}):
            (problem,) = result.plan.follows(result.facts | {"public_features": others})
            assert "norm:power=1" in problem
        ledger = pv.Ledger()
        must_raise(BadInput, lambda: trained(scaled, paid, own, ledger=ledger))
        assert not list(walk(ledger.event))
        with transforms.feature_cache(folder):
            for most in (255.0, 100.0):
                range_ = transforms.Rescale(0.0, most)
                found = trained(range_, transforms.RowNorm(power=1.0)).model
                torch.testing.assert_close(
                    front_module.encoded([range_.module(x.shape[1:])], x),
                    range_.module(x.shape[1:])(x),
                )
                assert float(found[0].get_buffer("high")) == most  # type: ignore[index]


def refusals() -> list[Callable[[], Any]]:
    small = pv.Dataset(np.zeros((4, 5, 5), np.uint8), np.zeros(4, int), classes=3, low=0, high=255)
    flat = pv.Dataset(np.zeros((4, 50), np.uint8), np.zeros(4, int), classes=3, low=0, high=255)
    return [
        lambda: encoder("scatter:J=0"),
        lambda: encoder("scatter:J=9"),
        lambda: encoder("scatter:J=1.5"),
        lambda: encoder("scatter:K=2"),
        lambda: encoder("scatterx"),
        lambda: encoder("scatter-random:units=9,kept=20,mirror=2", (3, SIZE, SIZE)),
        lambda: encoder("scatter-random:units=0,kept=20", (3, SIZE, SIZE)),
        lambda: encoder("scatter-random:units=9,kept=20.5", (3, SIZE, SIZE)),
        lambda: encoder("scatter-random:units=9,kept=20", (SIZE,)),
        lambda: encoder("no_such_module:make"),
        lambda: encoder("math:sqrt"),
        lambda: encoder("math:no_such"),
        lambda: read_features(5, small),  # type: ignore[arg-type]
        lambda: run(small, "scatter:J=2"),
        lambda: run(flat, "scatter:J=2"),
    ]


@check
def check_features_that_cannot_be_made_are_refused() -> None:
    for refused in refusals():
        must_raise(BadInput, refused)
    assert read_features("raw", small := images()) == ((), small)
