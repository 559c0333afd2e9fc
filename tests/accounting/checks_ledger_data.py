"""Named checks of data sets in a ledger: whose rows they are, what waits, and copies put back."""

from __future__ import annotations

import pickle
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import privlearn as pv
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.ledgers import ledger_state
from privlearn.core.accounting.ledgers.data_versions import DataVersion
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput, BudgetExceeded, DataWarning
from privlearn.publishing import certificate
from privlearn.publishing.folder import CERTIFICATE
from tests.support.checks import check, must_raise

ADD = Adjacency.ADD_REMOVE
BUDGET = Budget(8.0, 1e-5)
KEY = bytes(range(32))


@contextmanager
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "ledger.db")


def digests(rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 2**64, rows, np.uint64, endpoint=False)


def said_of(action: Callable[[], Any]) -> list[str]:
    """The warnings for the data's curator."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in caught if each.category is DataWarning]


def pairs(text: str) -> list[str]:
    """The bytes of a text in hexadecimal digits."""
    return [text[place : place + 2] for place in range(0, len(text), 2)]


def rows(seed: int, number: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(number, 4, generator=torch.Generator().manual_seed(seed)).clamp(-3, 3)
    return x, (x[:, 0] > 0).long()


@check
def check_a_ledger_recognises_its_rows() -> None:
    """In any order. Changed rows are warned of with how much changed, once, and other ones are
    refused unless their data set is named.
    """
    first = digests(1000)
    with place() as path:
        ledger = Ledger.open(path, BUDGET)
        assert not said_of(lambda: ledger.require_data(first))
        assert not said_of(lambda: Ledger.open(path).require_data(first[::-1]))
        changed = np.concatenate([first[:900], digests(100, 1)])
        said = said_of(lambda: Ledger.open(path).require_data(changed))
        assert len(said) == 1
        share = int(said[0].partition("about ")[2].partition("%")[0])
        assert abs(share - 82) < 15, said
        assert not said_of(lambda: Ledger.open(path).require_data(changed))
        assert len(LedgerFile(path).read().versions) == 2
        other = digests(1000, 2)
        before = LedgerFile(path).read()
        for open_again in (Ledger.open, partial(Ledger.open, data_set="data")):
            error = must_raise(BadInput, lambda a=open_again: a(path).require_data(other))
            assert "is for other rows" in str(error)
        assert LedgerFile(path).read() == before
        new = Ledger.open(path, BUDGET, data_set="other")
        assert "those of the data set 'data'" in str(
            must_raise(BadInput, lambda: new.require_data(first))
        )
        assert not LedgerFile(path, "other").read().versions
        assert not said_of(lambda: new.require_data(other))
        declared = Ledger.open(path, data_set="data", new_rows=True)
        both = said_of(lambda: pickle.loads(pickle.dumps(declared)).require_data(other))
        assert len(both) == 2
        assert "next to none are in both" in both[0]
        assert "also in the data set 'other'" in both[1]


@check
def check_rows_are_compared_with_the_key_or_not_at_all() -> None:
    """It is made with the ledger, and is for its readers alone. Where it is gone, or another one,
    a run is refused unless its rows are declared.
    """
    with place() as path:
        Ledger.open(path, BUDGET)
        key = path.with_name("ledger.db.key")
        assert not key.stat().st_mode & 0o007
        Ledger.open(path).require_data(digests(1000))
        content = key.read_bytes()
        for left in (None, content[::-1]):
            key.unlink()
            if left:
                key.write_bytes(left)
            for seed in range(2):
                error = must_raise(
                    BadInput, lambda seed=seed: Ledger.open(path).require_data(digests(1000, seed))
                )
                assert "new_rows=True" in str(error)
            assert key.exists() == (left is not None)
            Ledger.open(path, new_rows=True).require_data(digests(1000))
        key.write_bytes(content)
        assert not said_of(lambda: Ledger.open(path).require_data(digests(1000)))


@check
def check_versions_tell_nothing_without_the_key() -> None:
    """Two versions of the same rows have nothing in common that is to be seen, and how many rows
    there are is not to be seen either: not even that there is one, or none.
    """
    for number in (0, 1, 2, 100, 10_000):
        versions = [DataVersion.of(digests(number), key) for key in (KEY, KEY, KEY[::-1])]
        for one, two in pairwise(versions):
            equal = [a == b for a, b in zip(pairs(one.masked), pairs(two.masked), strict=True)]
            assert sum(equal) < 8, number  # 288 bytes, one in 256 by chance
        assert len({*pairs(versions[0].masked)}) > 120, number  # of 256
        assert versions[0].share_in_common(versions[1], KEY) == 1
        assert versions[0].key == versions[1].key != versions[2].key
        assert DataVersion.from_json(versions[0].to_json()) == versions[0]
    single = DataVersion.of(digests(2), KEY)
    for broken in ({**single.to_json(), "masked": "00"}, {"key": single.key}, [], "text"):
        must_raise(ValueError, lambda data=broken: DataVersion.from_json(data))


@check
def check_what_versions_have_in_common_is_estimated() -> None:
    """Within 0.15, at any number of rows; few rows that differ have nothing in common."""
    few = [DataVersion.of(digests(20, seed), KEY) for seed in range(2)]
    assert few[0].share_in_common(few[1], KEY) < 0.05
    for number in (200, 20_000):
        for share in (0.9, 0.5, 0.1):
            for seed in range(3):
                common = round(2 * number * share / (1 + share))
                every = digests(3 * number, seed)
                one, two = every[:number], every[number - common : 2 * number - common]
                versions = [DataVersion.of(rows, KEY) for rows in (one, two)]
                estimate = versions[0].share_in_common(versions[1], KEY)
                assert abs(estimate - share) < 0.15, (number, share, estimate)


def _descend(data: Any, ledger: Ledger) -> None:
    plan = pv.Plan(epochs=1, clip=pv.Flat(1.0), sampling=pv.Poisson(0.1), examples=300)
    pv.dpsgd(
        plan.calibrate(epsilon=0.5, delta=1e-5),
        torch.nn.Linear(4, 2),
        torch.nn.CrossEntropyLoss(reduction="none"),
        data,
        ledger=ledger,
    )


def _descend_by_index(data: Any, ledger: Ledger) -> None:
    _descend(_Listed(data), ledger)


class _Listed(torch.utils.data.Dataset[Any]):
    """Rows that are fetched by index."""

    def __init__(self, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, row: int) -> Any:
        return self.data[0][row] * 1, self.data[1][row]


def _train_by(method: str) -> Callable[[Any, Ledger], None]:
    def train(data: Any, ledger: Ledger) -> None:
        table = pv.Dataset(data[0].numpy(), data[1].numpy(), low=-3.0, high=3.0, classes=2)
        pv.train(table, epsilon=0.5, method=method, examples=300, ledger=ledger)

    return train


@check
def check_runs_are_refused_on_other_rows() -> None:
    """Before anything is charged, whatever the method; a run on the same rows goes on."""
    methods = map(_train_by, ("dpsgd", "features", "boosting", "dpmac"))
    for train in (_descend, _descend_by_index, *methods):
        with place() as path:
            train(rows(0), Ledger.open(path, BUDGET))
            train(rows(0), Ledger.open(path))
            before = LedgerFile(path).read()
            assert len(before.entries) == 2
            must_raise(BadInput, lambda train=train, path=path: train(rows(1), Ledger.open(path)))
            assert LedgerFile(path).read() == before


@check
def check_data_sets_have_ledgers_of_their_own() -> None:
    """In one database, with a budget each; one without its name is opened where there is one."""
    with place() as path:
        LedgerFile(path, "first").begin(BUDGET, owner="Ada")
        first = Ledger.open(path, BUDGET, data_set="first")
        first.charge(Gaussian(1.0), ADD)
        assert Ledger.open(path).event == first.event
        second = Ledger.open(path, Budget(1.0, 1e-5), data_set="second")
        assert second.event.events == ()
        must_raise(BudgetExceeded, lambda: second.charge(Gaussian(1.0), ADD))
        second.charge(Gaussian(9.0), ADD)
        assert LedgerFile(path).names() == ["first", "second"]
        assert "data_set=NAME" in str(must_raise(BadInput, lambda: Ledger.open(path)))
        must_raise(BadInput, lambda: Ledger.open(path, data_set="third"))
        must_raise(BadInput, lambda: Ledger.open(path, Budget(2.0, 1e-5), data_set="second"))
        for name in ("", " first", "a\nb", "x" * 101):
            must_raise(BadInput, lambda name=name: Ledger.open(path, BUDGET, data_set=name))
        copied = pickle.loads(pickle.dumps(second))
        copied.charge(Gaussian(9.0), ADD)
        assert second.event == copied.event != first.event
        states = {name: LedgerFile(path, name).check() for name in LedgerFile(path).names()}
        assert [state.owner for state in states.values()] == ["Ada", ""]
        heads = {LedgerFile(path, name).head()[1] for name in states}
        assert len(heads) == 2
        number, digest = LedgerFile(path, "first").head()
        assert LedgerFile(path, "first").number_of(digest) == number
        assert LedgerFile(path, "second").number_of(digest) is None


@check
def check_an_older_copy_is_refused_by_its_anchor() -> None:
    """Also where a program keeps the heads. A head that can't be kept stops before the draw, and
    the charge counts.
    """
    with place() as path:
        heads = path.with_name("heads")
        program = path.with_name("keep.py")
        program.write_text(
            "import pathlib, sys\n"
            f"file, line = pathlib.Path({str(path.with_name('log'))!r}), sys.stdin.read()\n"
            "text = file.read_text() if file.exists() else ''\n"
            "file.write_text(text + line) if line else print(text)\n"
        )
        for anchor in (heads, f"command:{sys.executable} {program}"):
            for old in (path, path.with_name(f"{path.name}.key"), heads):
                old.unlink(missing_ok=True)
            ledger = Ledger.open(path, BUDGET, anchor=anchor)
            ledger.charge(Gaussian(9.0), ADD)
            older = shutil.copy(path, path.with_name("older.db"))
            ledger.charge(Gaussian(9.0), ADD)
            Ledger.open(path, anchor=anchor).charge(Gaussian(9.0), ADD)
            if heads.exists():  # two processes may keep theirs in another order
                heads.write_text("".join(sorted(heads.read_text().splitlines(True), reverse=True)))
            shutil.copy(older, path)
            assert Ledger.open(path).event  # without its anchor it goes unseen
            error = must_raise(BadInput, lambda anchor=anchor: Ledger.open(path, anchor=anchor))
            assert "an older copy" in str(error)
            for name in ("data", "other"):  # of which the anchor has no head, but of the first
                must_raise(
                    BadInput,
                    lambda a=anchor, n=name: Ledger.open(path, BUDGET, data_set=n, anchor=a),
                )
            assert LedgerFile(path).names() == ["data"]
            path.unlink()
            path.with_name(f"{path.name}.key").unlink()
            must_raise(BadInput, lambda anchor=anchor: Ledger.open(path, BUDGET, anchor=anchor))
            assert not path.exists(), "a ledger was begun that its anchor does not know"
        for old in (path, path.with_name(f"{path.name}.key")):
            old.unlink(missing_ok=True)
        folder = path.with_name("folder")
        ledger = Ledger.open(path, BUDGET, anchor=heads.with_name("new"))
        ledger._run.store.anchor.path = folder  # type: ignore[attr-defined]
        folder.mkdir()
        error = must_raise(BadInput, lambda: ledger.charge(Gaussian(9.0), ADD))
        assert "nothing was drawn" in str(error)
        assert len(LedgerFile(path).read().entries) == 1
        folder.rmdir()
        folder.write_text("no head\n")
        must_raise(BadInput, lambda: Ledger.open(path, anchor=folder))
        must_raise(BadInput, lambda: Ledger.open(path, anchor="command:/no/such/program"))


@check
def check_what_waits_has_an_owner_and_ends() -> None:
    """A run that is reserved is begun by its owner alone. After its time it is closed, for good:
    what was approved after a release is free again, what was approved before any stays claimed.
    """
    plan, small = Releases(Gaussian(1.0), ADD), Releases(Gaussian(50.0), ADD)
    with place() as path, mock.patch.object(ledger_state, "_user", return_value="bob"):
        ledger = Ledger.open(path, BUDGET)
        later = datetime.now(UTC) + timedelta(hours=1)
        ledger.approve(plan, reserved_for="ann", expires=later)
        ledger.begin(plan.event(), ADD)
        entries = LedgerFile(path).read().entries
        assert [entry.waiting for entry in entries] == [True, False], "bob has one of his own"
        ledger.settle()
        with mock.patch.object(ledger_state, "_user", return_value="ann"):
            Ledger.open(path).begin(plan.event(), ADD)
        entries = LedgerFile(path).read().entries
        assert [entry.waiting for entry in entries] == [False, False]
        assert [(entry.by, entry.expires) for entry in entries] == [("ann", ""), ("bob", "")]
        for time in (datetime.now(), datetime.now(UTC) - timedelta(seconds=1)):
            must_raise(BadInput, lambda time=time: ledger.approve(plan, expires=time))
    for released in (False, True):
        with place() as path:
            ledger = Ledger.open(path, Budget(1.2, 1e-5), measure="gaussian")
            if released:
                ledger.charge(small.events, ADD)
            large = Releases(Gaussian(4.1), ADD)
            ledger.approve(large, expires=datetime.now(UTC) + timedelta(hours=1))
            claimed = ledger.guarantee(1e-5).epsilon
            must_raise(BudgetExceeded, lambda ledger=ledger: ledger.charge(Gaussian(4.0), ADD))
            after = (datetime.now(UTC) + timedelta(hours=2)).isoformat(timespec="seconds")
            with mock.patch.object(ledger_state, "read_clock", return_value=after):
                assert ledger.fits(Releases(Gaussian(4.0), ADD))
                ledger.charge(small.events, ADD)
            (entry,) = [each for each in LedgerFile(path).read().entries if each.expires]
            assert (entry.open, entry.waiting) == (False, False)
            ledger.charge(Gaussian(4.0), ADD)  # also for a clock that went back
            if released:
                assert ledger.guarantee(1e-5).epsilon == claimed


@check
def check_a_certificate_holds_its_ledgers_head() -> None:
    """Two folders of one ledger are found in it, in the order in which they were published."""
    with place() as path:
        numbers = []
        for run in range(2):
            plan = pv.Plan(epochs=1, clip=pv.Flat(1.0), sampling=pv.Poisson(0.1), examples=300)
            ledger = Ledger.open(path, BUDGET) if not run else Ledger.open(path)
            result = pv.dpsgd(
                plan.calibrate(epsilon=0.5, delta=1e-5),
                torch.nn.Linear(4, 2),
                torch.nn.CrossEntropyLoss(reduction="none"),
                rows(0),
                ledger=ledger,
            )
            folder = path.with_name(f"model-{run}")
            pv.publish(result, folder, classes=2)
            assert pv.verify(folder).ok
            facts = certificate.parse((folder / CERTIFICATE).read_bytes())
            numbers.append(LedgerFile(path).number_of(facts["facts"].get("ledger_head", "")))
        assert None not in numbers
        assert numbers[0] < numbers[1] == LedgerFile(path).head()[0]
