"""All rows checked at once: in memory they are refused as before training; by index, the unusable
ones are named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import privlearn as pv
from privlearn.cli import main
from privlearn.core.rows import TensorRows
from privlearn.data.torch_rows import check_rows
from privlearn.errors import BadInput


class Rows(TorchDataset[Any]):
    """Row 3 can't be made, row 5 is not finite, row 6 is of another type."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == 3:
            raise OSError("the file is gone")
        row = torch.full((2,), float("nan") if number == 5 else 1.0)
        return (row.double() if number == 6 else row), 0


def test_rows_that_would_be_absent_are_named() -> None:
    checked = check_rows(Rows())
    assert (checked.rows, [number for number, _ in checked.unusable]) == (8, [3, 5, 6])
    assert "the file is gone" in str(checked)


def test_rows_in_memory_are_named_in_every_form() -> None:
    x, y = np.ones((5, 2)), np.zeros(5)
    x[1, 0], y[4] = np.nan, np.inf
    for data in (
        (x, y),
        {"x": torch.tensor(x), "y": y},
        TensorDataset(torch.tensor(x), torch.tensor(y)),
    ):
        assert [number for number, _ in check_rows(data).unusable] == [1, 4]  # type: ignore[arg-type]
    assert repr(check_rows((x, y))) == str(check_rows((x, y)))


def test_rows_that_can_be_used_are_counted() -> None:
    assert str(check_rows(TensorRows({"x": torch.ones(4, 2)}))) == "4 rows, all can be used"
    assert check_rows(pv.load("digits")).rows == 1437


def test_rows_in_memory_are_refused_as_before_training() -> None:
    with pytest.raises(BadInput, match="not finite"):
        check_rows(pv.Dataset(np.array([[1.0], [np.nan]]), np.zeros(2, int), classes=2))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.ones((5, 2), np.float32), y=np.arange(5) % 2)
    assert main(["data", "check", str(path), "--classes", "2", "--range", "0,1"]) == 0
    out, err = capsys.readouterr()
    assert "5 rows, all can be used" in out
    assert "for the data's curator" in err
    assert main(["data", "check"]) == 2
    assert "needs NAME" in capsys.readouterr().err
