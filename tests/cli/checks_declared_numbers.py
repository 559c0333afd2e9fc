"""Named checks of a declared number of examples that is not likely that of the data."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from pathlib import Path
from unittest import mock

from privlearn.cli import jobs, main
from tests.cli.checks_threads import write
from tests.support.checks import check

#: How the warning begins, and what in it is private.
SAID = "the data have {rows} examples"


def trained(folder: Path, rows: int, declared: int, *more: str) -> tuple[str, dict[str, bytes]]:
    """What a run on so many rows prints for its user, and what it publishes."""
    data = ["--data", str(write(folder / "rows.npz", rows)), "--classes", "2", "--range", "0,1"]
    run = ["--epsilon", "3", "--seed", "1", "--json"]
    if "--method" not in more:
        run += ["--epochs", "1", "--model", "linear"]
    number = ["--examples", str(declared), "--out", str(folder / "model")]
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert main(["train", *data, *run, *number, *more]) == 0, err.getvalue()
    files = {path.name: path.read_bytes() for path in sorted((folder / "model").rglob("*.*"))}
    files["standard output"] = out.getvalue().partition('"out"')[0].encode()
    return "\n".join([err.getvalue(), *(str(each.message) for each in caught)]), files


@check
def check_a_slip_of_the_declared_number_is_said() -> None:
    """Once, beyond a factor of two, whatever differs between neighbours and whatever is trained."""
    likely, unlikely = [(50, 100), (200, 100), (100, 100)], [(49, 100), (201, 100), (40, 4000)]
    others = (("--adjacency", "zero_out"), ("--method", "boosting", "--passes", "1"))
    cases: list[tuple[tuple[int, int], tuple[str, ...]]] = [
        (case, ()) for case in likely + unlikely
    ]
    cases += [(case, more) for case in ((200, 100), (201, 100)) for more in others]
    for (rows, declared), more in cases:
        with tempfile.TemporaryDirectory() as folder:
            said, _ = trained(Path(folder), rows, declared, *more)
        times = said.count(SAID.format(rows=rows))
        assert times == int((rows, declared) in unlikely), (rows, declared, more, said)


@check
def check_a_slip_changes_nothing_that_is_released() -> None:
    published = []
    for told in (True, False):
        quiet = mock.patch.object(jobs, "warn_of_number")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            if not told:
                stack.enter_context(quiet)
            said, files = trained(Path(folder), 37, 4000)
        assert (SAID.format(rows=37) in said) == told
        assert not [name for name, content in files.items() if b"37 examples" in content]
        published.append(files)
    assert published[0] == published[1]
