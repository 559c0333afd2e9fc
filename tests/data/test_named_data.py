"""The named data sets, against what is published of them; and fetching them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.data import NAMES, catalogue, formats
from privlearn.data.catalogue import CATALOGUE
from privlearn.data.named import fetch
from privlearn.errors import BadInput
from tests.data.checks import offered, served


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, where nothing is yet."""
    monkeypatch.delenv("PRIVLEARN_DATA", raising=False)
    monkeypatch.setattr("privlearn._storage.cache", lambda: tmp_path / "cache")
    return tmp_path / "cache"


#: Name: shape of a row, rows to train on and to test on, how often each class comes in all. Counts
#: are the published ones: adult.names; breast-cancer-wisconsin.names, section 9; LeCun's page; 1100
#: of each digit in usps_all.mat.
PUBLISHED = {
    "mnist": ((28, 28), 60000, 10000, [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]),
    "fashion-mnist": ((28, 28), 60000, 10000, [7000] * 10),
    "usps": ((16, 16), 7291, 2007, [1553, 1269, 929, 824, 852, 716, 834, 792, 708, 821]),
    "usps-all": ((16, 16), 8800, 2200, [1100] * 10),
    "wisconsin": ((9,), 559, 140, [458, 241]),
    "adult": ((104,), 32561, 16281, [24720 + 12435, 7841 + 3846]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_what_was_published(name: str, data_dir: Path) -> None:
    shape, train, test, classes = PUBLISHED[name]
    data = pv.load(name, data_dir)
    assert data.x.shape == (train, *shape)
    assert data.x_test.shape == (test, *shape)
    assert np.bincount(np.concatenate([data.y, data.y_test])).tolist() == classes
    for rows in (data.x, data.x_test):
        assert (rows >= data.low).all()
        assert (rows <= data.high).all()


def test_images_of_usps_are_upright(data_dir: Path) -> None:
    """Other scans of the same digits: class means look alike as they lie (they slant otherwise),
    less so transposed.
    """
    means = []
    for name in ("usps", "usps-all"):
        data = pv.load(name, data_dir)
        x = np.asarray(data.x, dtype=float) / data.high
        means.append(np.stack([x[data.y == digit].mean(0).ravel() for digit in range(10)]))
    turned = means[1].reshape(10, 16, 16).transpose(0, 2, 1).reshape(10, -1)
    same, other = (np.diag(np.corrcoef(means[0], found)[:10, 10:]) for found in (means[1], turned))
    assert same.mean() > other.mean() + 0.2
    assert (same > other).sum() >= 8


def test_adult_has_the_categories_that_its_documentation_lists(data_dir: Path) -> None:
    documented = dict(
        re.findall(
            r"^([a-z-]+): (.*)\.$", (data_dir / "adult" / "adult.names").read_text(), re.MULTILINE
        )
    )
    schema = formats._schema("adult")
    assert {column.name for column in schema.features} == {*documented} - {"fnlwgt"}
    for column in schema.features:
        listed = documented[column.name]
        expected = (
            listed if listed == "continuous" else ", ".join(getattr(column, "categories", ()))
        )
        assert listed == expected
    x = pv.load("adult", data_dir).x
    low, _ = schema.bounds()
    ranges = [column.ranges() for column in schema.features]
    places = np.cumsum([0, *map(len, ranges)])
    assert len(low) == places[-1] == 104
    for column, start, end in zip(schema.features, places[:-1], places[1:], strict=True):
        if end - start > 1:  # one category a row, or none where it is missing
            count = x[:, start:end].sum(1)
            assert set(np.unique(count)) <= {0.0, 1.0}
            missing = {"workclass": 1836, "occupation": 1843, "native-country": 583}
            assert int((count == 0).sum()) == missing.get(column.name, 0)


def test_wisconsins_missing_values_count_as_the_middle(data_dir: Path) -> None:
    data = pv.load("wisconsin", data_dir)
    rows = np.concatenate([data.x, data.x_test])
    assert int((rows == 5.5).sum()) == int((rows[:, 5] == 5.5).sum()) == 16


def test_cifar10_features(data_dir: Path) -> None:
    data = pv.load("cifar10-features", data_dir)
    assert data.x.shape == (50000, 1024)
    assert np.bincount(data.y).tolist() == [5000] * 10
    assert data.high == pytest.approx(38.4)  # 6, where the network caps, in steps of 0.15625
    assert data.x.max() <= 38


@pytest.mark.nightly
def test_cifar10(data_dir: Path) -> None:
    data = pv.load("cifar10", data_dir)
    assert data.x.shape == (50000, 3, 32, 32)
    assert data.x_test.shape == (10000, 3, 32, 32)
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    # The means and deviations of the colours that everybody divides by.
    assert data.x.mean((0, 2, 3)) / 255 == pytest.approx([0.4914, 0.4822, 0.4465], abs=2e-4)
    assert data.x.std((0, 2, 3)) / 255 == pytest.approx([0.2470, 0.2435, 0.2616], abs=2e-4)


def test_the_binary_form_of_cifar10() -> None:
    """A made-up archive in the published layout: a label, then 1024 reds, greens and blues."""
    import io
    import tarfile

    made_up = np.random.default_rng(0)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            rows = made_up.integers(10, size=(4, 3073), dtype=np.uint8)
            rows[0, 0], rows[0, 1:] = 7, np.repeat(np.arange(3, dtype=np.uint8), 1024)
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = rows.nbytes
            archive.addfile(info, io.BytesIO(rows.tobytes()))
    data = formats.cifar10_binary({"cifar-10-binary.tar.gz": file.getvalue()}).checked()
    assert data.x.shape == (20, 3, 32, 32)
    assert data.x_test.shape == (4, 3, 32, 32)
    assert data.y[::4].tolist() == [7] * 5
    assert data.x[0].reshape(3, -1).tolist() == [[c] * 1024 for c in range(3)]


def test_files_may_lie_packed_or_not_and_in_any_of_the_places(
    data_dir: Path, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = (data_dir / "breast-cancer-wisconsin" / "breast-cancer-wisconsin.data").read_bytes()
    expected = pv.load("wisconsin", data_dir).x
    folders = [tmp_path / "given", tmp_path / "named", empty_cache]
    monkeypatch.setenv("PRIVLEARN_DATA", str(folders[1]))
    # the last to be looked at comes first: those before it are empty still
    for folder in reversed(folders):
        place = folder / "breast-cancer-wisconsin"
        place.mkdir(parents=True)
        (place / "breast-cancer-wisconsin.data.gz").write_bytes(gzip.compress(raw))
        assert np.array_equal(pv.load("wisconsin", folders[0]).x, expected)
        (place / "breast-cancer-wisconsin.data.gz").unlink()
        (place / "breast-cancer-wisconsin.data").write_bytes(
            raw.replace(b"1000025,5", b"1000025,6")
        )
        with pytest.raises(BadInput, match="is not the published file of wisconsin") as caught:
            pv.load("wisconsin", folders[0])
        assert str(place) in str(caught.value)
        assert "privlearn data fetch wisconsin" in str(caught.value)
        (place / "breast-cancer-wisconsin.data").write_bytes(raw)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"1,2,3\n", mtime=0)[:-9],
        gzip.compress(b"\0" * 10**7, mtime=0),
    ],
    ids=["empty", "no gzip", "cut short", "much of nothing"],
)
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "breast-cancer-wisconsin"
    folder.mkdir()
    (folder / "breast-cancer-wisconsin.data.gz").write_bytes(content)
    with pytest.raises(BadInput, match=r"cannot be read|not the published file"):
        pv.load("wisconsin", tmp_path)


def test_volumes_are_rows_on_one_grid(data_dir: Path) -> None:
    """260 volumes, each from 0 to 1; 3.2 % of their voxels are hippocampus, slightly more anterior
    than posterior.
    """
    data = pv.load("hippocampus", data_dir)
    x, y = np.concatenate([data.x, data.x_test]), np.concatenate([data.y, data.y_test])
    assert (len(data.x), x.shape, y.shape) == (180, (260, 1, 20, 28, 20), (260, 20, 28, 20))
    assert x.min(axis=(1, 2, 3, 4)).max() == 0
    assert 0.8 < x.max(axis=(1, 2, 3, 4)).min() <= x.max() <= 1
    shares = np.bincount(y.ravel(), minlength=3) / y.size
    assert shares[1:] == pytest.approx([0.0177, 0.0155], abs=3e-4)
    assert (np.stack([(y == label).sum((1, 2, 3)) for label in (1, 2)]).min(1) > 20).all()
    again = pv.load("hippocampus", data_dir)
    assert np.array_equal(again.x_test, data.x_test)


def test_the_catalogue_is_sound() -> None:
    assert set(NAMES) == set(CATALOGUE)
    for named in CATALOGUE.values():
        for form in named.forms:
            for file in form.files:
                assert re.fullmatch("[0-9a-f]{64}", file.sha256)
                assert file.size > 0
                if file.source is not None:
                    assert re.fullmatch("[0-9a-f]{64}", file.source.sha256)
                    assert file.source.url.startswith("https://")
                    assert file.source.file in (file.name, f"{file.name}.gz")
                    assert (file.source.sha256 == file.sha256) == (file.source.file == file.name)


def test_the_list_names_all(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    assert main(["data", "list", "--data-dir", str(data_dir), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["datasets"]
    assert [one["name"] for one in listed] == list(NAMES)
    assert all(one["found"] and one["where"] and one["what"] and one["licence"] for one in listed)
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert "privlearn data fetch mnist" in shown
    assert "comes with scikit-learn" in shown


def published(folder: Path, content: bytes = b"published", name: str = "rows.data") -> bytes:
    folder.mkdir()
    (folder / name).write_bytes(content)
    return content


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_fetching(tmp_path: Path, empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = published(tmp_path / "source")
    with served(tmp_path / "source") as address, offered(address, content):
        assert main(["data", "fetch", "made-up"]) == 0
        shown = capsys.readouterr()
        assert "found there without --data-dir" in shown.out
        assert f"fetching {address}rows.data" in shown.err
        assert (empty_cache / "folder" / "rows.data").read_bytes() == content
        assert main(["data", "fetch", "made-up", "--json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["files"] == [str(empty_cache / "folder" / "rows.data")]
        assert "is there" in shown.err
        assert address not in shown.err
        assert main(["data", "fetch", "made-up", "--data-dir", str(tmp_path / "mine")]) == 0
        assert left(tmp_path / "mine") == ["rows.data"]
    assert main(["data", "fetch", "digits"]) == 0
    assert "nothing to fetch" in capsys.readouterr().err


def test_fetching_another_file(tmp_path: Path, empty_cache: Path) -> None:
    published(tmp_path / "source", b"another one")
    with served(tmp_path / "source") as address, offered(address, b"published"):
        with pytest.raises(BadInput, match="is not the published file of made-up") as caught:
            fetch("made-up")
        assert "nothing was kept" in str(caught.value)
        assert left(empty_cache) == []


def test_fetching_what_is_gone(tmp_path: Path, empty_cache: Path) -> None:
    published(tmp_path / "source", name="other.data")
    with (
        served(tmp_path / "source") as address,
        offered(address, b"published"),
        pytest.raises(BadInput, match="404"),
    ):
        fetch("made-up")
    assert left(empty_cache) == []


def test_fetching_from_nowhere(
    tmp_path: Path, empty_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(tmp_path / "source")
    with served(tmp_path / "source") as address:
        pass  # whoever served there has gone: the connection is refused
    with offered(address, b"published"):
        assert main(["data", "fetch", "made-up"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    for part in (
        "rows.data cannot be fetched",
        "refused",
        "Check the connection",
        str(empty_cache / "folder"),
        "SHA-256",
    ):
        assert part in message
    assert left(empty_cache) == []


def test_a_file_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    content = published(tmp_path / "source")
    (tmp_path / "mine").mkdir()
    published(tmp_path / "mine" / "folder", b"precious")
    refused = pytest.raises(BadInput, match="Move it away and get it again")
    with served(tmp_path / "source") as address, offered(address, content), refused:
        fetch("made-up", tmp_path / "mine")
    assert (tmp_path / "mine" / "folder" / "rows.data").read_bytes() == b"precious"


def test_fetching_into_a_file(tmp_path: Path) -> None:
    content = published(tmp_path / "source")
    (tmp_path / "mine").write_text("")
    refused = pytest.raises(BadInput, match="cannot be written to")
    with served(tmp_path / "source") as address, offered(address, content), refused:
        fetch("made-up", tmp_path / "mine")


def test_real_files_have_the_digests_that_are_fetched_for(data_dir: Path, tmp_path: Path) -> None:
    """What lies in the data directory is offered at the addresses of the catalogue, as their
    servers do.
    """
    for name in ("mnist", "adult"):
        for form in CATALOGUE[name].forms:
            for file in form.files:
                path = file.find(data_dir / CATALOGUE[name].folder)
                assert path is not None
                assert file.source is not None
                copy = tmp_path / file.source.file
                if copy.name == path.name:
                    shutil.copy(path, copy)
                else:
                    copy.write_bytes(gzip.decompress(path.read_bytes()))
                plain = catalogue.File(copy.name, copy.stat().st_size, file.source.sha256)
                assert len(plain.read(copy, name)) == copy.stat().st_size
