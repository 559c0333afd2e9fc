"""The options of every command, one row each: parser, configuration files, refusals and help follow
from the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from privlearn.cli.audit_options import AUDIT
from privlearn.cli.checking_options import CHECKING
from privlearn.cli.folder_options import FOLDERS, LEDGER_DATA
from privlearn.cli.option import (
    BUDGET,
    TRAIN,
    Option,
    by_class,
    column_list,
    expiry,
    group_of,
    paid_budget,
    value_range,
)
from privlearn.errors import BadInput
from privlearn.methods import BUILT_IN, METHODS
from privlearn.methods.installed import find_method
from privlearn.models.heads import HEADS
from privlearn.runs.compute import ComputeConfig, flags_of
from privlearn.runs.post_processing import ROWS
from privlearn.training import privacy_config
from privlearn.training.privacy_config import PrivacyConfig

#: The methods that have pages of their own here.
DPSGD, DPMAC, PATE, FEATURES, BOOSTING = "dpsgd", "dpmac", "pate", "features", "boosting"

#: What each command is for.
COMMANDS = {
    "train": "plan, train and publish a private model",
    "budget": "what a plan costs, or the noise that meets a target; no data",
    "verify": "recompute guarantee, hashes and signature of a folder",
    "export": "a certificate for others: in-toto, CycloneDX, a registry",
    "predict": "use a published model; writes CSV",
    "commit": "bind a run to rows and options beforehand, to be checked",
    "replay": "check a recorded run: take random parts of it again",
    "certify": "price another library's run, as declared: no certificate",
    "audit": "attack a release: what its noise proves about epsilon",
    "ledger": "what was spent on what, by whom, and what remains of a budget",
    "key": "make a pair of keys to sign with",
    "selfcheck": "check this installation in under a minute",
    "reproduce": "a table or figure of a paper, its numbers beside ours",
    "demo": "hospitals that keep their records, simulated by Flower; a minute",
    "data": "named data sets; templates for tables' schemas; packed tables",
    "completion": "a script that completes commands and options in your shell",
}
#: What `--help` shows of commands with many options; `--help-all` shows every one.
USUAL = {
    "train": (
        "data",
        "schema",
        "test-data",
        "classes",
        "range",
        "epsilon",
        "delta",
        "examples",
        "epochs",
        "method",
        "model",
        "ledger",
        "dry-run",
        "out",
    ),
    "budget": (
        "epsilon",
        "delta",
        "examples",
        "noise-multiplier",
        "batch-size",
        "epochs",
        "sampling",
        "method",
        "ledger",
        "serve",
        "plot",
        "json",
    ),
    "commit": (
        "data",
        "schema",
        "classes",
        "range",
        "epsilon",
        "delta",
        "examples",
        "epochs",
        "method",
        "model",
        "out",
    ),
    "ledger": (
        "epsilon",
        "rho",
        "delta",
        "group-size",
        "ledger-data",
        "owner",
        "measure",
        "close",
        "overlap",
        "anchor",
        "html",
        "csv",
        "plot",
        "json",
    ),
    "audit": (
        "noise-multiplier",
        "sampling",
        "examples",
        "batch-size",
        "code",
        "canaries",
        "delta",
        "trials",
        "out",
    ),
    "data": (
        "data-dir",
        "schema",
        "test-data",
        "classes",
        "range",
        "public",
        "target",
        "out",
    ),
}
_BOTH = (*TRAIN, *BUDGET)


_DATA = group_of(
    "data",
    TRAIN,
    Option(
        "data",
        "NAME_OR_PATH",
        "a named data set, an .npz with x and y, with --schema a table (a .csv or .parquet file, "
        "or sqlite:///FILE?table=NAME), a folder of NIfTI scans and masks (images, labels) with "
        "--grid, or one of .npy files, whose rows stay on disk (`privlearn data pack`)",
        needed=True,
    ),
    Option(
        "data-dir",
        "DIR",
        "where named data sets lie (default: PRIVLEARN_DATA, or where `privlearn data fetch` "
        "puts them)",
    ),
    Option("schema", "F.toml", "bounds, categories and classes of a table"),
    Option(
        "test-data", "PATH", "a file of the same columns to test on, not protected", argument="test"
    ),
    Option(
        "public",
        "NAME_OR_PATH",
        "rows of the same form that you declare public, for --schedule validation, "
        "--start and pate: not protected",
        argument="validation",
    ),
    Option(
        "grid",
        "AxBxC[/2]",
        "of a folder of NIfTI scans: declared size in voxels that each is padded or cropped "
        "to; with /2 blocks of 2 x 2 x 2 voxels become one",
    ),
    Option("classes", "K", "declared number of classes, for an .npz, .npy files or scans", int),
    Option(
        "range",
        "LO,HI",
        "declared range of the inputs, for an .npz or .npy files",
        value_range,
        argument="value_range",
    ),
    Option(
        "target-bounds",
        "LO,HI",
        "declared range of targets that are numbers, for an .npz, in place of --classes",
        value_range,
    ),
    Option(
        "target",
        "A,B",
        "the column to predict, or several labels or numbers, in place of what the schema names; "
        "for an .npz the names of the columns of y, of which each is 0 or 1, or with "
        "--target-bounds a number",
        column_list,
        (),
        argument="targets",
    ),
    part="data",
)


def _options_of(config: type, group: str) -> tuple[Option, ...]:
    """The options that are fields of a configuration and stand under this heading."""
    return tuple(
        Option(
            flag.name,
            flag.metavar,
            flag.help,
            _reader(flag.read),
            default,
            candidate=flag.candidate,
            choices=flag.choices,
            argument=None if flag.name.replace("-", "_") == field else field,
        )
        for flag, field, default in flags_of(config, group)
    )


def _reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """What reads a text as `read` does, and refuses it as the parser expects."""
    if isinstance(read, type):
        return read

    def reads(text: str) -> Any:
        try:
            return read(text)
        except BadInput as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reads


_SPENT = group_of(
    privacy_config.SPENT, _BOTH, *_options_of(PrivacyConfig, privacy_config.SPENT), part="plan"
)

_HOW = group_of(
    privacy_config.HOW,
    _BOTH,
    Option(
        "task",
        None,
        "what is learned: dpsgd learns every task, other methods some (default: classification, or "
        "regression of a number with declared bounds; docs/models.md)",
        choices=tuple(HEADS),
    ),
    *_options_of(PrivacyConfig, privacy_config.HOW),
    Option("pca", "L", "project onto L private principal directions first", int, candidate=True),
    Option("pca-noise", "S", "their noise multiplier (default: 16)", float, candidate=True),
    Option(
        "tune", "F.toml", "choose privately among the candidates in this file (docs/settings.md)"
    ),
    part="plan",
)
_CONFIG = group_of(
    None,
    _BOTH,
    Option("config", "F.toml", "read options from a TOML file; those given by hand win"),
    part="plan",
)

_ANCHOR = Option(
    "anchor",
    "WHERE",
    "with --ledger: a file outside of it, or command:PROGRAM, that keeps the ledger's head after "
    "each charge: an older copy that is put back is refused",
)
_NORMALISE = Option(
    "normalise",
    "SPEC",
    "before dpsgd: moments, standardise features by noisy means and variances "
    "(a twentieth of rho; moments:share=0.1), or none (default: moments for many numbers, where "
    "they pay)",
    part="plan",
)
_VOTES = (
    Option(
        "teachers",
        "K",
        "for pate: how many there are (default: 250; 32 for maps of classes)",
        int,
        part="plan",
    ),
    Option(
        "queries",
        "N",
        "for pate: public inputs that are asked about (default: 1000, of numbers 200, for maps of "
        "classes 20, or all there are)",
        int,
        part="plan",
    ),
    Option(
        "threshold",
        "V",
        "for pate: votes that must agree (noisily) for an answer",
        float,
        part="plan",
    ),
    Option(
        "answers", "N", "for pate, with --threshold: queries answered at most", int, part="plan"
    ),
    Option(
        "codes",
        "WAY",
        "for pate, of maps of classes: what teachers' maps are released as: corrections "
        "(default: of a public network's maps), pca or autoencoder, fitted on public maps",
        part="plan",
    ),
)

_FEATURES = group_of(
    "choosing features",
    _BOTH,
    Option("keep", "M", "for features: how many to keep (default: all)", int),
    Option("select", "M", "before dpsgd: train on M privately selected features", int),
    Option(
        "temperature",
        "F",
        "of rho, to turn scores into probabilities (default: 0.03; 0: none)",
        float,
    ),
    Option("select-share", "F", "of rho, for --select (default: 0.2)", float),
    Option(
        "row-norm",
        "R",
        "for features, --select and --normalise: declared bound on the norm of (scaled) rows "
        "(default: half the root of their length)",
        float,
    ),
    Option("coordinate-bound", "B", "and on single numbers (default: 1)", float),
    Option(
        "criterion",
        None,
        "what features are chosen by: class means' distance, t with pooled variances, or "
        "Welch's t (default: distance)",
        choices=("distance", "t", "welch"),
    ),
    Option(
        "mode",
        None,
        "for features: a classifier from noisy statistics (default), by least squares, from rows "
        "with randomised labels, or what public numbers favour",
        choices=("statistics", "least-squares", "rows", "auto"),
    ),
    part="plan",
)

_OTHERS = (
    *FOLDERS,
    *group_of(
        None,
        ("predict",),
        Option(
            "data",
            "NAME_OR_PATH",
            "a named data set, an .npz with x, a table (a .csv or .parquet file, or "
            "sqlite:///FILE?table=NAME), a NIfTI scan or a folder of scans, or a folder "
            "of features",
            needed=True,
        ),
        Option("data-dir", "DIR", "where named data sets lie"),
        Option(
            "schema",
            "F.toml",
            "what the columns of a table are (default: what the model holds)",
        ),
        Option("id", "COLUMN", "a column of the table that is written beside the predictions"),
        Option(
            "part",
            None,
            "which rows (default: test rows if named, x of an .npz)",
            choices=("train", "test"),
        ),
        Option("model", "SPEC", "package.module:function, for a model not built by name"),
        Option(
            "features", "SPEC", "package.module:function, for public features made by your own code"
        ),
        Option(
            "grid",
            "AxBxC[/2]",
            "of scans: the size that each is brought to (default: what the model holds)",
        ),
        Option(
            "windows",
            None,
            "of scans larger than that: predict overlapping windows, and average them",
            bool,
            False,
        ),
        Option(
            "out",
            "FILE",
            "a .csv or .npz file, in place of standard output; models that segment need one, "
            "--out maps.npz, or for scans a .nii.gz file or a new folder of masks",
        ),
    ),
    *group_of(
        None,
        ("ledger",),
        Option(
            "file", "FILE", "a ledger; begun if a budget is given and it isn't there", flag=False
        ),
        Option("epsilon", "E", "budget of a new ledger, everything together", float),
        Option("rho", "R", "budget of a new ledger in rho (zCDP)", float),
        Option("delta", "D", "(default: the budget's, or 1e-5)", float),
        Option("group-size", "K", "of a new ledger: examples that a person may have", int),
        Option(
            "measure",
            "M",
            "of a new ledger: what runs that are chosen after earlier results are counted by: "
            "gaussian (Gaussian releases alone, the tightest), renyi (any run), a Renyi order, or "
            "zcdp (default: as suits the first run)",
        ),
        Option("owner", "NAME", "of a new ledger: whose the data are, to be read by people"),
        Option(
            "ledger-data",
            "NAME",
            "the data set whose ledger it is, where FILE holds several; begun if a budget is given",
            argument="data_set",
        ),
        Option("close", "RUN", "end an interrupted run: what it has not spent is given back"),
        Option(
            "anchor",
            "WHERE",
            "a file, or command:PROGRAM, that keeps the ledger's head: an older copy is refused",
        ),
        Option(
            "overlap",
            "A,B",
            "what is guaranteed to persons who are in all of these data sets (or: all)",
        ),
        Option("html", "PAGE.html", "write a page for people, with a picture over time"),
        Option("csv", "RUNS.csv", "write a row for each run"),
        Option("plot", "F.png", "draw what was spent over time"),
    ),
    *AUDIT,
    Option(
        "out",
        "DIR",
        "the folder to write: the commitment, for the auditor, and its secret",
        commands=("commit",),
        needed=True,
    ),
    *CHECKING,
    *group_of(
        None,
        ("reproduce",),
        Option("name", "NAME", "which one; see --list", flag=False, optional=True),
        Option("list", None, "name every table and figure there is", bool, False),
        Option(
            "quick", None, "coarser curves, fewer seeds, fewer rows: under two minutes", bool, False
        ),
        Option("seeds", "N", "runs to average over (default: the study's own)", int),
        Option("jobs", "N", "training runs at once (default: one for each processor)", int),
        Option(
            "out",
            "DIR",
            "where the files go, and where finished runs are found again (default: results)",
        ),
    ),
    *group_of(
        None,
        ("demo",),
        Option("name", None, "what is shown", choices=("hospitals",), flag=False),
        Option("sites", "N", "hospitals, of which each has a teacher (default: 3)", int, 3),
        Option("epsilon", "E", "what may be spent (default: 8)", float, 8.0),
        Option("delta", "D", "at which delta (default: 0.001)", float, 1e-3),
        Option("out", "DIR", "the folder to write (default: hospitals)", default="hospitals"),
    ),
    *group_of(
        None,
        ("data",),
        Option(
            "action",
            None,
            "list: every data set, what and where it is; fetch NAME: get one; schema FILE: a "
            "template for a table (a file, or sqlite:///FILE?table=NAME), from its columns' names; "
            "check FILE: look at all rows once; pack FILE: write a table as a folder whose rows "
            "are fetched by index, for data that don't fit into memory",
            choices=("list", "fetch", "schema", "check", "pack"),
            flag=False,
        ),
        Option("name", "NAME_OR_FILE", "which data set, or which file", flag=False, optional=True),
        Option("data-dir", "DIR", "where named data sets lie (fetch: where to put them)"),
        Option(
            "paid",
            "epsilon=E",
            "schema: release bounds and categories of private rows, charged to --ledger, at "
            "this epsilon (and delta: epsilon=E,delta=D)",
            paid_budget,
        ),
        Option("numbers", "A,B", "schema, with --paid: the columns of numbers", column_list, ()),
        Option(
            "categories", "C,D", "schema, with --paid: the columns of categories", column_list, ()
        ),
        Option(
            "public",
            "PUBLIC",
            "schema: draft bounds and categories from this table, which you declare public; of "
            "FILE the header alone is read. The model's card says so",
        ),
        Option(
            "target",
            "A,B",
            "schema, with --paid or --public: the column to predict; with --public also several",
            column_list,
            (),
        ),
        Option(
            "ledger",
            "FILE",
            "schema, with --paid: what is charged, and later the training, too; begun by "
            "`privlearn ledger FILE --epsilon E --measure renyi`",
        ),
        LEDGER_DATA,
        _ANCHOR,
        Option(
            "schema",
            "F.toml",
            "check, pack: bounds, categories and classes of a table",
        ),
        Option(
            "test-data",
            "PATH",
            "pack: a file of the same columns to test on, not protected",
            argument="test",
        ),
        Option("out", "DIR", "pack: the folder to write"),
        Option("classes", "K", "check: declared number of classes, for an .npz", int),
        Option(
            "range",
            "LO,HI",
            "check: declared range of the inputs, for an .npz",
            value_range,
            argument="value_range",
        ),
    ),
    Option(
        "shell",
        None,
        "which one",
        choices=("bash", "zsh", "fish"),
        commands=("completion",),
        flag=False,
    ),
    Option(
        "json",
        None,
        "print one JSON object and nothing else",
        bool,
        False,
        commands=tuple(
            name for name in COMMANDS if name not in ("export", "predict", "completion")
        ),
    ),
)


class _Methods(tuple[str, ...]):
    """The methods that `--method` takes: those of this package, which are listed, and those that
    installed packages bring, which are looked up by their names.
    """

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        try:
            row = find_method(str(name))
        except BadInput:
            return False
        return row.name == name and not row.command


def _method() -> Option:
    return Option(
        "method",
        "NAME",
        f"{', '.join(BUILT_IN)} (default: dpsgd)",
        str,
        DPSGD,
        choices=_Methods(BUILT_IN),
        part="plan",
    )


def _fields() -> Iterator[Option]:
    """The options that methods have of their own."""
    for method in METHODS.values():
        for name, metavar, text, read in method.fields:
            yield Option(name.replace("_", "-"), metavar, text, read, part="plan")


def _without_data() -> tuple[Option, ...]:
    return group_of(
        None,
        BUDGET,
        _method(),
        Option(
            "classes",
            "K",
            "for pate: classes to vote for (default: 10); for features and --select: declared "
            "number of classes",
            int,
        ),
        Option("numbers", "P", "for features, --select and --normalise: numbers in a row", int),
        _NORMALISE,
        Option("plot", "F.png", "draw the noise and the spending over the epochs"),
        Option("ledger", "FILE", "say whether a ledger has room, and for how many such runs"),
        LEDGER_DATA,
        _ANCHOR,
        Option(
            "approve",
            None,
            "set this run aside in --ledger, as fixed beforehand if nothing was released yet; "
            "`train` with the same plan takes it up",
            bool,
            False,
        ),
        Option(
            "reserved-for",
            "USER",
            "with --approve: who alone may run it (default: everybody)",
            str,
            "",
        ),
        Option(
            "expires",
            "DATE",
            "with --approve: until when it waits, as 2027-01-31 or with a time, in UTC",
            expiry,
        ),
        Option(
            "serve",
            None,
            "plan in the browser, by sliders: a page that this machine alone can open",
            bool,
            False,
        ),
        Option("port", "P", "with --serve: its port (default: a free one)", int, 0),
        *_fields(),
        part="plan",
    )


_RECORDED = (
    Option(
        "transcript",
        "DIR",
        "record the run where `privlearn commit` wrote, for `privlearn replay`; as secret "
        "as the data",
    ),
    Option("challenge", "HEX", "with --transcript: what the auditor answered to the commitment"),
    Option(
        "transcript-steps",
        "K",
        "with --transcript: steps between two states that are kept (default: 50)",
        int,
        50,
    ),
)

_RUN = group_of(
    "the run",
    TRAIN,
    Option(
        "dry-run",
        None,
        "say the plan, its price, the expected time and memory, and whether gradients are slow; "
        "nothing is spent or written",
        bool,
        False,
    ),
    Option("explain", None, "for dpsgd: say what was chosen for you, and why", bool, False),
    Option(
        "jobs",
        "N",
        "for pate and --tune: teachers or candidates that are trained at once, in as many "
        "processes, -1 for all processors; the result is the same (default: 1)",
        int,
    ),
    *_options_of(ComputeConfig, "the run"),
    Option("seed", "S", "repeatable run; the certificate then warns", int),
    Option("discrete", None, "noise on a grid, free of floating-point traces", bool, False),
    Option("ledger", "FILE", "charge a ledger that outlives this run; see `privlearn ledger`"),
    LEDGER_DATA,
    _ANCHOR,
    Option(
        "new-rows",
        None,
        "with --ledger: the rows are of the same persons, though they are others than before",
        bool,
        False,
    ),
    Option(
        "resume", None, "go on with an interrupted run, as if nothing had happened", bool, False
    ),
    Option("checkpoint-every", "SECONDS", "(default: 60)", float, 60.0),
    *_RECORDED,
    part=None,
) + group_of(
    "what is published",
    TRAIN,
    Option(
        "metric",
        "NAME",
        "the test figure that is shown first (default: accuracy, of numbers rmse)",
        choices=(
            "accuracy",
            "log-loss",
            "auc",
            "calibration-error",
            "balanced-accuracy",
            "rmse",
            "mae",
            "r2",
            "f1",
            "subset-accuracy",
            "deviance",
        ),
    ),
    Option(
        "paid-metrics",
        "E",
        "release the test figures with noise, for epsilon E at --delta beside that of the "
        "training: the certificate is for both, and protects test rows, too",
        float,
    ),
    Option(
        "metrics-share",
        "S",
        "the same within --epsilon: training and figures together cost that, and the "
        "figures take this share of it (of its rho), such as 0.1",
        float,
    ),
    Option("sign", "KEY", "sign the certificate with this private key; see `privlearn key`"),
    Option("out", "DIR", "the folder to publish into", needed=True),
    part=None,
)


def _network() -> tuple[Option, ...]:
    """The options of what is trained."""
    return group_of(
        "what is trained",
        TRAIN,
        _method(),
        Option(
            "model",
            "SPEC",
            "linear (default), mlp:100, cnn, unet, or package.module:function, called with "
            "input_shape= and classes=",
            str,
            "linear",
            candidate=True,
        ),
        Option(
            "features",
            "SPEC",
            "public features to learn from: scatter:J=2,kept=1000, "
            "scatter-random:kept=2000,encoded=500 or norm:power=0.5 (usual for grey images, "
            "images in colour, and 256 numbers or more, with a linear model), raw, "
            "package:mobilenet-v2 or package:vgg16 (of a package that ships one), "
            "package.module:function, which returns a module, a FOLDER of them, or pca:L (as "
            "--pca L)",
            part="plan",
        ),
        Option(
            "features-cache",
            "DIR",
            "where to keep them, as secret as the rows (default: named data sets' in the "
            "user's cache, others' nowhere)",
        ),
        _NORMALISE,
        part=None,
    )


def _descent() -> tuple[Option, ...]:
    """The options of how it descends, with those of post-processing as they are now."""
    return group_of(
        "how it descends",
        TRAIN,
        Option(
            "optimizer",
            "NAME",
            "a class of torch.optim or privlearn.optim, such as Adam or disk:kappa=0.3 (default: "
            "SGD; Adam for dpmac)",
            candidate=True,
        ),
        Option(
            "learning-rate",
            "L",
            "(default: by a rule; for pate: of the student, 0.001)",
            float,
            candidate=True,
        ),
        Option("momentum", "M", "for SGD (default: 0)", float, candidate=True),
        Option(
            "lr-schedule",
            "SPEC",
            "as --schedule (default: linear to 0; to a fifth for dpmac)",
            candidate=True,
            argument="learning_rate_schedule",
        ),
        Option(
            "start",
            None,
            "for dpsgd on maps of classes: begin as a network that learns from --public first, "
            "volumes with masks (of hippocampus: its own)",
            choices=("public",),
        ),
        *(
            Option(name, row.metavar, row.help, row.read, candidate=True)
            for name, row in ROWS.items()
        ),
        *_options_of(ComputeConfig, "how it descends"),
        Option(
            "label-smoothing",
            "F",
            "for dpsgd: share of a label that is spread over all classes (default: 0)",
            float,
            candidate=True,
        ),
        Option(
            "class-weights",
            "C=W,..",
            "for dpsgd: public weights of the classes in the loss, yes=5,no=1; or "
            "balanced, one over --class-frequencies",
            by_class,
        ),
        Option(
            "class-frequencies",
            "C=F,..",
            "publicly known shares of the classes, for --class-weights balanced",
            by_class,
        ),
        part=None,
    )


def _other_methods() -> tuple[Option, ...]:
    """The options of other methods than DP-SGD, with the fields of the table of methods."""
    return group_of(
        "for other methods than dpsgd",
        TRAIN,
        Option(
            "z-steps",
            "N",
            ("for dpmac: fit coordinates by N steps of Adam, as in the paper (default: one sweep)"),
            int,
        ),
        Option("z-rate", "L", "for dpmac: their learning rate (default: 0.003)", float),
        *_VOTES,
        Option(
            "teacher",
            "SPEC",
            "for pate: spreading (default), logistic, forest, linear, mlp:100, cnn; of numbers "
            "ridge (default), forest, linear, mlp:100, cnn",
        ),
        *_fields(),
        part=None,
    )


def options() -> tuple[Option, ...]:
    """Every option, in the order of the help."""
    maps = Option(
        "maps",
        None,
        "for pate: teachers correct a public network's maps of --classes classes "
        "(docs/segmentation.md)",
        bool,
        False,
    )
    votes = group_of("votes of teachers", BUDGET, *_VOTES, maps, part="plan")
    return (
        *_DATA,
        *_SPENT,
        *_HOW,
        *_CONFIG,
        *_network(),
        *_descent(),
        *_other_methods(),
        *_RUN,
        *_FEATURES,
        *_without_data(),
        *votes,
        *_OTHERS,
    )


def options_of(command: str) -> dict[str, Option]:
    """The rows of a command, by what the request calls them. A commitment takes all that the run is
    made of.
    """
    taken = {option.key: option for option in options() if command in option.commands}
    return {**options_of("train"), **taken} if command == "commit" else taken
