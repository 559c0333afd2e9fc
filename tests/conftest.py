from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # checks.py is shared by tests and mutations
torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of real data sets: PRIVLEARN_DATA, or shared/data beside the project."""
    found = Path(os.environ.get("PRIVLEARN_DATA") or ROOT.parent / "shared" / "data")
    if not found.is_dir():
        pytest.skip(f"real data sets are not here: neither PRIVLEARN_DATA nor {found}")
    return found
