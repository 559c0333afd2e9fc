"""The options of commands that look at runs of others: `replay` and `certify`."""

from __future__ import annotations

from privlearn.cli.option import Option, group_of
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.declared.peer_library import library_names
from privlearn.declared.recorded_run import DRAWN

#: Their rows.
CHECKING = (
    *group_of(
        None,
        ("replay",),
        Option(
            "folder", "DIR", "the folder of the transcript, with its secret and states", flag=False
        ),
        Option("data", "NAME_OR_PATH", "the rows, where they lie elsewhere than in the run"),
        Option("data-dir", "DIR", "where named data sets lie"),
        Option("schema", "F.toml", "the schema, where it lies elsewhere than in the run"),
        Option(
            "test-data",
            "PATH",
            "the test rows, where they lie elsewhere than in the run",
            argument="test",
        ),
        Option(
            "model",
            "SPEC",
            "package.module:function, where the run's model is made by code that you trust",
        ),
        Option("features", "SPEC", "package.module:function, where the run's features are"),
        Option("steps", "N", "how many steps to take again, at least (default: 200)", int, 200),
        Option(
            "choice",
            "TEXT",
            "decides which: a text that was not known when the transcript was fixed (default: "
            "random numbers of the operating system)",
        ),
        Option(
            "tolerance",
            "T",
            "let numbers differ by this share, on another kind of processor (default: 0, equal "
            "bits)",
            float,
            0.0,
        ),
        Option("published", "DIR", "the published folder, to be compared with the transcript"),
    ),
    *group_of(
        None,
        ("certify",),
        Option(
            "file",
            "FILE",
            "what the library's accountant holds: for opacus a checkpoint, or the accountant's "
            "state; for others JSON (docs/other-libraries.md)",
            flag=False,
        ),
        Option(
            "from",
            "LIBRARY",
            f"what made the run: {', '.join(library_names())}",
            choices=library_names(),
            needed=True,
        ),
        Option(
            "sampling",
            "WAY",
            f"how batches were drawn, as you declare it: {', '.join(DRAWN)}",
            choices=tuple(DRAWN),
            needed=True,
        ),
        Option("examples", "N", "declared number of examples", int),
        Option("batch-size", "B", "declared (expected) examples in a batch", int),
        Option("epochs", "N", "declared passes over the data", int),
        Option("steps", "N", "declared steps of the optimizer", int),
        Option(
            "adjacency",
            None,
            "neighbours of the claim (default: the library's)",
            choices=tuple(member.value for member in Adjacency),
        ),
        Option("delta", "D", "where epsilon was claimed (default: as the file states)", float),
        Option("claimed-epsilon", "E", "what was claimed for the run", float, argument="epsilon"),
        Option("out", "DIR", "write the declared run and its card into this new folder"),
    ),
)
