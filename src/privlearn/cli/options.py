"""The options of every command."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from privlearn.errors import BadInput

_EPILOG = """examples:
  privlearn train --data digits --epsilon 4 --out runs/digits
  privlearn budget --examples 60000 --batch-size 600 --noise-multiplier 6 --epochs 400
  privlearn verify runs/digits
  privlearn key signing-key
  privlearn predict runs/digits --data digits
"""


_LARGEST_CONFIG = 1 << 18
_METHODS = ["dpsgd", "dpmac", "pate", "features"]
_TARGETS = {"--epsilon", "--rho"}
_TRAINING_ONLY = {
    "--data", "--data-dir", "--schema", "--test-data", "--range", "--model", "--optimizer", "--learning-rate",
    "--momentum", "--lr-schedule", "--z-steps", "--z-rate", "--microbatch", "--device", "--precision", "--seed", "--out",
    "--sign", "--ledger", "--discrete", "--resume", "--checkpoint-every", "--public", "--teacher", "--average", "--views",
    "--augment", "--label-smoothing",
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """Raises `BadInput` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}. See `{self.prog} --help`")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read a command line; `run` in the result is the command.

    Raises:
        BadInput: an option that is unknown, missing or cannot be read.
    """
    return _parser().parse_args(_with_ranges(_with_config(argv)))


def _with_ranges(argv: list[str]) -> list[str]:
    """Let `--range -4,7` be written without an equals sign, though its value looks like an option."""
    joined: list[str] = []
    for part in argv:
        if joined and joined[-1] == "--range":
            joined[-1] = f"--range={part}"
        else:
            joined.append(part)
    return joined


def _with_config(argv: list[str]) -> list[str]:
    """Put the options of a --config file in front of those given by hand, which win."""
    at = [place for place, part in enumerate(argv) if part.partition("=")[0] == "--config"]
    if not at:
        return argv
    if len(at) > 1:
        raise BadInput("--config is given twice: put all into one file, or give the rest by hand")
    before, (_, equals, path), after = argv[: at[0]], argv[at[0]].partition("="), argv[at[0] + 1 :]
    if not equals:
        if not after:
            raise BadInput("--config needs a file: give the path of a TOML file whose keys are the options' names")
        path, after = after[0], after[1:]
    if not before or before[0].startswith("-"):
        raise BadInput("--config stands in front of the command: expected `privlearn COMMAND --config F.toml ...`")
    by_hand = {part.partition("=")[0] for part in argv}
    given: list[str] = []
    for option, value in _settings(Path(path)).items():
        if option in by_hand or (option in _TARGETS and by_hand & _TARGETS):
            continue
        if before[0] == "budget" and (option in _TRAINING_ONLY or (option == "--method" and value != "pate")):
            continue  # one file may serve both commands
        if value is True:
            given.append(option)
        elif value is not False:
            given.append(f"{option}={value}")
    return [before[0], *given, *before[1:], *after]


def _settings(path: Path) -> dict[str, Any]:
    """The options in a TOML file, by name and with plain values.

    Raises:
        BadInput: no readable TOML, or something in it that is no option's value.
    """
    return as_options(read_toml(path), path)


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds.

    Raises:
        BadInput: it is no readable TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_CONFIG + 1)
        if len(content) > _LARGEST_CONFIG:
            raise ValueError(f"it is larger than {_LARGEST_CONFIG >> 10} KiB")
        return tomllib.loads(content.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"the configuration {path} cannot be read: {error}. Expected a TOML file") from error


def as_options(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """The options that a table of the TOML file at `path` holds, by name and with plain values.

    Raises:
        BadInput: something in it that is no option's value.
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        option = "--" + key.replace("_", "-")
        if option in found:
            raise BadInput(f"{key} stands twice in {path}, once with _ and once with -: keep one of them")
        if option in ("--config", "--help") or not key.isascii() or not option[2:].replace("-", "a").isalnum():
            raise BadInput(
                f"{key[:40]!r} in {path} is no option: expected names as on the command line, such as epsilon"
            )
        if isinstance(value, dict):
            raise BadInput(f"[{key}] in {path} is a table: expected plain options, as on the command line")
        found[option] = ",".join(str(part) for part in value) if isinstance(value, list) else value
    return found


def overridden(options: argparse.Namespace, settings: dict[str, Any]) -> argparse.Namespace:
    """`options` with those of `settings` (by name, such as --epochs) in their place.

    Raises:
        BadInput: one that is unknown or cannot be read.
    """
    parser = _Parser(prog="privlearn train", allow_abbrev=False)
    _add_plan(parser)
    _add_training(parser)
    _add_features(parser)
    given = [f"{option}={value}" for option, value in settings.items()]
    return parser.parse_args([*given, "--out=."], argparse.Namespace(**vars(options)))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="privlearn",
        description="Train models under differential privacy, and publish them with a certificate anyone can check.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"privlearn {version('privlearn')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = _command(commands, "train", "plan, train and publish a private model")
    _add_data(train)
    _add_plan(train)
    _add_training(train)
    _add_features(train)

    budget = _command(commands, "budget", "what a plan costs, or the noise that meets a target; needs no data")
    _add_plan(budget)
    budget.add_argument("--method", default="dpsgd", choices=_METHODS, help="(default: dpsgd)")
    budget.add_argument("--classes", type=int, metavar="K", help="for pate: classes to vote for (default: 10); for features "
                        "and --select: declared number of classes")  # fmt: skip
    budget.add_argument(
        "--numbers", type=int, metavar="P", help="for features, --select and --normalise: numbers in a row"
    )
    _add_normalise(budget)
    _add_features(budget)
    _add_votes(budget.add_argument_group("votes of teachers"))
    budget.add_argument("--plot", metavar="F.png", help="draw the noise and the spending over the epochs")

    verify = _command(commands, "verify", "recompute the guarantee, the hashes and the signature of a published model")
    verify.add_argument("folder", metavar="DIR", help="a published model")
    _add_key(verify)

    predict = _command(commands, "predict", "use a published model; writes CSV")
    predict.description = (
        "Use a published model: index, prediction and score_0, score_1, ... of each row, as CSV. Scores add up to 1 and rank "
        "the classes; they are not calibrated probabilities."
    )
    predict.add_argument("folder", metavar="DIR", help="a published model")
    predict.add_argument("--data", required=True, metavar="NAME_OR_PATH", help="a named data set, an .npz with x, a "
                         ".csv or .parquet file with --schema, or a folder of features")  # fmt: skip
    predict.add_argument("--data-dir", metavar="DIR", help="where named data sets lie")
    predict.add_argument("--schema", metavar="F.toml", help="what the columns of a .csv or .parquet file are")
    predict.add_argument(
        "--part",
        choices=["train", "test"],
        help="which rows (default: test rows if named, x of an .npz)",
    )
    predict.add_argument("--model", metavar="SPEC", help="package.module:function, for a model not built by name")
    _add_key(predict)
    predict.add_argument("--features", metavar="SPEC", help="package.module:function, for public features made by your own "
                         "code")  # fmt: skip
    predict.add_argument("--out", metavar="FILE", help="a .csv or .npz file, in place of standard output; models "
                         "that segment need one, --out maps.npz")  # fmt: skip

    ledger = _command(commands, "ledger", "what was spent on what, by whom, and what remains of a budget")
    ledger.add_argument("file", metavar="FILE", help="a ledger; begun if a budget is given and it isn't there")
    ledger.add_argument("--epsilon", type=float, metavar="E", help="budget of a new ledger, everything together")
    ledger.add_argument("--rho", type=float, metavar="R", help="budget of a new ledger in rho (zCDP)")
    ledger.add_argument("--delta", type=float, metavar="D", help="(default: the budget's, or 1e-5)")
    ledger.add_argument("--group-size", type=int, metavar="K", help="of a new ledger: examples that a person may have")
    ledger.add_argument(
        "--measure",
        metavar="M",
        help="of a new ledger: what runs that are chosen after earlier results are counted by: gaussian (Gaussian releases "
        "alone, the tightest), renyi (any run), a Renyi order, or zcdp (default: as suits the first run)",
    )
    ledger.add_argument("--close", metavar="RUN", help="end an interrupted run: what it has not spent is given back")
    key = _command(
        commands, "key", "make a pair of keys to sign with; encrypted if PRIVLEARN_KEY_PASSPHRASE holds a passphrase"
    )
    key.add_argument(
        "file", metavar="FILE", help="for the private key, which must not be there yet; the public one: FILE.pub"
    )

    study = _command(commands, "reproduce", "a table or figure of a paper, its numbers beside ours")
    study.add_argument("name", nargs="?", metavar="NAME", help="which one; see --list")
    study.add_argument("--list", action="store_true", help="name every table and figure there is")
    study.add_argument(
        "--quick", action="store_true", help="coarser curves, fewer seeds, fewer rows: under two minutes"
    )
    study.add_argument("--seeds", type=int, metavar="N", help="runs to average over (default: the study's own)")
    study.add_argument("--jobs", type=int, metavar="N", help="training runs at once (default: one for each processor)")
    study.add_argument("--out", metavar="DIR", help="where the files go, and where finished runs are found again "
                       "(default: results)")  # fmt: skip

    data = _command(commands, "data", "the named data sets; a template for a table's schema")
    data.add_argument("action", choices=["list", "fetch", "schema"], help="list: every data set, what and where it is; "
                      "fetch NAME: get one; schema FILE: a template for a .csv or .parquet file, "
                      "from its columns' names alone")  # fmt: skip
    data.add_argument("name", nargs="?", metavar="NAME_OR_FILE", help="which data set, or which file")
    data.add_argument("--data-dir", metavar="DIR", help="where named data sets lie (fetch: where to put them)")
    return parser


def _command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.set_defaults(run=_lazily(name))
    if name != "predict":
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", metavar="PUBLIC", help="the publisher's public key, which must have signed it")


def _microbatch(text: str) -> int | None:
    """A number of examples, or None for `auto`."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number of examples nor auto") from None


def _lazily(name: str) -> Callable[[argparse.Namespace], int]:
    """Import a command's module only when it runs: most of them import torch."""

    def run(options: argparse.Namespace) -> int:
        code: int = import_module(f"privlearn.cli.{name}").run(options)
        return code

    return run


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data", required=True, metavar="NAME_OR_PATH", help="a named data set, an .npz with x and y, or a .csv or "
        ".parquet file with --schema"
    )  # fmt: skip
    group.add_argument("--data-dir", metavar="DIR", help="where named data sets lie (default: PRIVLEARN_DATA, or "
                       "where `privlearn data fetch` puts them)")  # fmt: skip
    group.add_argument("--schema", metavar="F.toml", help="bounds, categories and classes of a .csv or .parquet file")
    group.add_argument("--test-data", metavar="PATH", help="a file of the same columns to test on, not protected")
    group.add_argument("--public", metavar="NAME_OR_PATH", help="rows of the same form that you declare public, for "
                       "--schedule validation and pate: not protected")  # fmt: skip
    group.add_argument("--classes", type=int, metavar="K", help="declared number of classes, for an .npz")
    group.add_argument("--range", type=_range, metavar="LO,HI", help="declared range of the inputs, for an .npz")


def _add_plan(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument_group("what may be spent")
    target.add_argument("--epsilon", type=float, metavar="E", help="target epsilon, everything included")
    target.add_argument("--rho", type=float, metavar="R", help="target rho (zCDP), in place of epsilon")
    target.add_argument("--delta", type=float, default=1e-5, metavar="D", help="(default: 1e-5)")
    target.add_argument("--adjacency", metavar="A", help="add_remove (for dpsgd and dpmac with --examples), zero_out "
                        "or replace_one (default: the first of these that goes with the rest)")  # fmt: skip
    target.add_argument("--examples", type=int, metavar="N", help="declared public number of examples")
    target.add_argument("--group-size", type=int, default=1, metavar="K",
                        help="declared most examples of one person: protect all of them together (default: 1)")  # fmt: skip
    target.add_argument("--rows-per-person", type=int, metavar="K",
                        help="for data with person ids (groups): examples are persons, of whose rows K are used")  # fmt: skip
    plan = parser.add_argument_group("how it is spent")
    plan.add_argument("--noise-multiplier", type=float, metavar="S", help="noise of the first epoch; else solved for")
    plan.add_argument(
        "--solve",
        choices=["noise", "rate", "epochs", "batch-size"],
        help="what meets the target: the noise (default), the epochs (default with --noise-multiplier), the "
        "schedule's k, or the batch size",
    )
    plan.add_argument(
        "--sampling", default="poisson", metavar="NAME", help="poisson (default), partition, shuffle, fixed, full"
    )
    plan.add_argument("--batch-size", type=int, metavar="B", help="expected examples in a batch (default: by a rule)")
    plan.add_argument("--epochs", type=int, metavar="N", help="(default: 30, above epsilon 4 60, or until the budget ends; "
                      "for pate: of the student, about 1000 steps)")  # fmt: skip
    plan.add_argument("--schedule", default="constant", metavar="SPEC", help="constant, time:k=0.05, exp:k=0.01, "
                      "step:k=0.6,period=10, poly:k=3,end=2,period=100 (each with from=, to= epochs), or "
                      "validation:k=0.7,m=5,threshold=0.01,period=10, which needs --public or noise=")  # fmt: skip
    plan.add_argument("--clip", default="flat", metavar="STYLE", help="flat (default), layer, automatic or quantile")
    plan.add_argument("--clip-norm", type=float, metavar="C", help="(default: 0.1; 0.3 for dpmac)")
    plan.add_argument("--pca", type=int, metavar="L", help="project onto L private principal directions first")
    plan.add_argument("--pca-noise", type=float, metavar="S", help="their noise multiplier (default: 16)")
    plan.add_argument(
        "--tune", metavar="F.toml", help="choose privately among the candidates in this file (docs/tuning.md)"
    )
    parser.add_argument("--config", metavar="F.toml", help="read options from a TOML file; those given by hand win")


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "training", "where it says `for METHOD`, for no other; for pate --model is the student"
    )
    group.add_argument("--method", default="dpsgd", choices=_METHODS, help="(default: dpsgd)")
    group.add_argument("--model", default="linear", metavar="SPEC", help="linear (default), mlp:100, cnn, unet, or "
                       "package.module:function, called with input_shape= and classes=")  # fmt: skip
    group.add_argument("--features", metavar="SPEC", help="public features to learn from: scatter:J=2,kept=1000, "
                       "scatter-random:kept=2000 or norm:power=0.5 (usual for grey images, images in colour, and 256 numbers "
                       "or more, with a linear model), raw, "
                       "package.module:function, which returns a module, a FOLDER of them, or pca:L (as --pca L)")  # fmt: skip
    group.add_argument("--features-cache", metavar="DIR", help="where to keep them, as secret as the rows (default: named "
                       "data sets' in the user's cache, others' nowhere)")  # fmt: skip
    _add_normalise(group)
    group.add_argument("--explain", action="store_true", help="for dpsgd: say what was chosen for you, and why")
    group.add_argument("--optimizer", metavar="NAME", help="a class of torch.optim (default: SGD; Adam for dpmac)")
    group.add_argument(
        "--learning-rate", type=float, metavar="L", help="(default: by a rule; for pate: of the student, 0.001)"
    )
    group.add_argument("--momentum", type=float, metavar="M", help="for SGD (default: 0)")
    group.add_argument(
        "--lr-schedule", metavar="SPEC", help="as --schedule (default: linear to 0; to a fifth for dpmac)"
    )
    group.add_argument("--average", type=float, metavar="F", help="for dpsgd: publish the mean of the weights over about "
                       "this last share of the steps (default: the last step's)")  # fmt: skip
    group.add_argument("--views", type=int, metavar="K", help="for dpsgd, with --augment: gradients of K changed copies of "
                       "each example are averaged before clipping")  # fmt: skip
    group.add_argument("--augment", metavar="SPEC", help="how images are changed: flip (left to right), shift:2 (pixels), "
                       "or flip,shift:2")  # fmt: skip
    group.add_argument("--label-smoothing", type=float, metavar="F", help="for dpsgd: share of a label that is spread over "
                       "all classes (default: 0)")  # fmt: skip
    group.add_argument(
        "--z-steps",
        type=int,
        metavar="N",
        help="for dpmac: fit coordinates by N steps of Adam, as in the paper (default: one sweep)",
    )
    group.add_argument("--z-rate", type=float, metavar="L", help="for dpmac: their learning rate (default: 0.003)")
    _add_votes(group)
    group.add_argument(
        "--teacher", metavar="SPEC", help="for pate: spreading (default), logistic, forest, linear, mlp:100, cnn"
    )
    group.add_argument(
        "--microbatch",
        type=_microbatch,
        metavar="N|auto",
        help="examples computed at once; the result is the same (default: auto, what fits into memory)",
    )
    group.add_argument("--device", metavar="D", help="where to compute: cpu (default) or cuda")
    group.add_argument("--precision", default="float32", metavar="P",
                       help="float32 (default), or bf16 to run the model in bfloat16")  # fmt: skip
    group.add_argument("--seed", type=int, metavar="S", help="repeatable run; the certificate then warns")
    group.add_argument("--discrete", action="store_true", help="noise on a grid, free of floating-point traces")
    group.add_argument(
        "--ledger", metavar="FILE", help="charge a ledger that outlives this run; see `privlearn ledger`"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with an interrupted run, as if nothing had happened"
    )
    group.add_argument("--checkpoint-every", type=float, default=60.0, metavar="SECONDS", help="(default: 60)")
    group.add_argument("--sign", metavar="KEY", help="sign the certificate with this private key; see `privlearn key`")
    group.add_argument("--out", required=True, metavar="DIR", help="the folder to publish into")


def _add_normalise(group: argparse._ActionsContainer) -> None:
    group.add_argument("--normalise", metavar="SPEC", help="before dpsgd: moments, standardise features by noisy means and "
                       "variances (a twentieth of rho; moments:share=0.1), or none (default: moments for many numbers, "
                       "where they pay)")  # fmt: skip


def _add_features(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("choosing features")
    group.add_argument("--keep", type=int, metavar="M", help="for features: how many to keep (default: all)")
    group.add_argument("--select", type=int, metavar="M", help="before dpsgd: train on M privately selected features")
    group.add_argument("--select-share", type=float, metavar="F", help="of rho, for --select (default: 0.2)")
    group.add_argument("--row-norm", type=float, metavar="R", help="for features, --select and --normalise: "
                       "declared bound on the norm of (scaled) rows (default: half the root of their length)")  # fmt: skip
    group.add_argument("--coordinate-bound", type=float, metavar="B", help="and on single numbers (default: 1)")
    group.add_argument("--criterion", choices=["distance", "t", "welch"], help="what features are chosen by: class means' "
                       "distance, t with pooled variances, or Welch's t (default: distance)")  # fmt: skip
    group.add_argument("--mode", choices=["statistics", "least-squares", "rows", "auto"], help="for features: a "
                       "classifier from noisy statistics (default), by least squares, from rows with randomised labels, or "
                       "what public numbers favour")  # fmt: skip


def _add_votes(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--teachers", type=int, metavar="K", help="for pate: how many there are (default: 250; 32 for maps "
                       "of classes)")  # fmt: skip
    group.add_argument("--queries", type=int, metavar="N", help="for pate: public inputs that are asked about (default: "
                       "1000, for maps of classes 20, or all there are)")  # fmt: skip
    group.add_argument(
        "--threshold", type=float, metavar="V", help="for pate: votes that must agree (noisily) for an answer"
    )
    group.add_argument("--answers", type=int, metavar="N", help="for pate, with --threshold: queries answered at most")


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(",")
    try:
        return float(low), float(high)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: expected LO,HI, for example 0,255") from None
