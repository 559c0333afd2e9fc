"""`Request`: what a command line and its configuration file ask for, as one frozen value."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, final

from privlearn._checks import count
from privlearn.cli.option import Option, read_number, read_whole_number
from privlearn.cli.options import COMMANDS, DPSGD, USUAL, options_of
from privlearn.data.databases import hide_secrets
from privlearn.errors import BadInput
from privlearn.methods import METHODS
from privlearn.methods.installed import find_method, method_names

_EXAMPLES = """examples:
  privlearn budget --examples 60000 --epsilon 2
  privlearn train --data digits --epsilon 4 --out runs/digits
  privlearn verify runs/digits
"""
#: What headings and commands say of themselves.
_ABOUT = {
    "what is trained": "where it says `for METHOD`, for no other; for pate --model is the student",
    "commit": "Bind a run to its rows and its options before it begins, so that an auditor can "
    "check "
    "it afterwards.\nTakes the options of the run, as train does.",
    "key": (
        "Make a pair of keys to sign with; encrypted if PRIVLEARN_KEY_PASSPHRASE holds a "
        "passphrase."
    ),
    "completion": 'Print a script that completes commands and options: `eval "$(privlearn '
    'completion bash)"` in '
    "~/.bashrc, the same with zsh in ~/.zshrc, or `privlearn completion fish | source` in fish's "
    "config.",
    "predict": "Use a published model: index, prediction and score_0, score_1, ... of each row, as "
    "CSV. Scores add up to 1: estimates of probabilities where a temperature was fitted, "
    "as the model's card says.",
}
_LARGEST_CONFIG = 1 << 18
_TARGETS = {"epsilon", "rho"}


@final
@dataclass(frozen=True)
class Request:
    """What is asked for: a command, and the value of each of its options (`request.epochs`), given
    or by default.

    Attributes:
        command: its name.
        values: by the name of the option, with underscores.
    """

    command: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, command: str, **values: Any) -> Request:
        """A request with these options, and what is usual for the others."""
        return cls(
            command, {key: option.default for key, option in options_of(command).items()} | values
        )

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("values", {})  # empty while a copy is being made
        if name not in values:
            raise AttributeError(f"a request has no option {name}")
        return values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def given(self, name: str) -> bool:
        """Whether the option has another value than its default; False if the command has none of
        that name.
        """
        return name in self.values and bool(
            self.values[name] != options_of(self.command)[name].default
        )

    def replaced(self, **changes: Any) -> Request:
        """A request with other values."""
        return Request(self.command, {**self.values, **changes})

    def with_options(self, settings: Mapping[str, Any]) -> Request:
        """A request with options as a configuration file gives them, by name, such as `epochs`, in
        their place.

        Raises:
            BadInput: one that can't be read.
        """
        parser = _Parser(
            prog="privlearn train", allow_abbrev=False, argument_default=argparse.SUPPRESS
        )
        for option in options_of("train").values():
            if option.candidate:
                _add(parser, option, argparse.SUPPRESS)
        return self.replaced(
            **vars(parser.parse_args([f"--{name}={value}" for name, value in settings.items()]))
        )

    def require_suited(self) -> None:
        """Refuse options that the method does not take.

        Raises:
            BadInput: naming the first of them.
        """
        for option in options_of(self.command).values():
            if self.method in option.methods or self.values[option.key] == option.default:
                continue
            if DPSGD in option.methods:
                why = METHODS[self.method].unsuited
                raise BadInput(
                    f"--method {self.method} does not go with --{option.name}{why and f': {why}'}. "
                    "Leave it out, or train by dpsgd"
                )
            whose = option.methods[0]
            raise BadInput(
                f"--{option.name} is for --method {whose}: leave it out, or add --method {whose}"
            )


class _Parser(argparse.ArgumentParser):
    """Raises `BadInput` where argparse would print its usage and exit; says of a text that is no
    number how it is to be written.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.register("type", float, read_number)
        self.register("type", int, read_whole_number)

    def error(self, message: str) -> NoReturn:
        every = "-all" if self.prog.split()[-1] in USUAL else ""
        raise BadInput(f"{message}. See `{self.prog} --help{every}`")


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from privlearn import __version__

        print(f"privlearn {__version__}")
        parser.exit()


def parse(argv: list[str]) -> Request:
    """Read a command line.

    Raises:
        BadInput: a command or an option that is unknown, missing or cannot be read.
    """
    if not argv:
        raise BadInput(
            f"expected a command\n\n{_EXAMPLES}\ncommands:\n{_commands()}\n`privlearn COMMAND "
            "--help` names its options"
        )
    argv = _with_ranges(_with_config(argv))
    # an address on the Hugging Face Hub (publishing/hub.py) holds no password, and is no table
    on_hub = {part for part in argv if part.startswith("hf://")}
    argv, addresses = hide_secrets(argv, _read_ledgers(argv) | on_hub)
    _find_method(argv)
    _require_known(argv)
    values = vars(_parser(every="--help-all" in argv, dry="--dry-run" in argv).parse_args(argv))
    values |= {
        name: addresses[value]
        for name, value in values.items()
        if isinstance(value, str) and value in addresses
    }
    if values.get("examples") is not None:
        count("--examples", values["examples"])
    return Request(values.pop("command"), values)


def _read_ledgers(argv: Sequence[str]) -> set[str]:
    """The ledgers that a command line names.

    Raises:
        BadInput: one is an address with a password: other users of the machine see command lines,
            and files keep them.
    """
    named = {part.removeprefix("--ledger=") for part in argv if part.startswith("--ledger=")}
    named |= {value for flag, value in pairwise(argv) if flag == "--ledger"}
    if argv[0] == "ledger":
        named |= {part for part in argv if "://" in part}
    for value in named:
        _, scheme, rest = value.partition("://")
        if scheme and (":" in rest.rpartition("@")[0] or "password=" in rest):
            raise BadInput(
                "the address of a ledger is given with a password: leave that out, and put it into "
                "PGPASSWORD or ~/.pgpass, or name a service (postgresql:///?service=NAME)"
            )
    return named


def _find_method(argv: Sequence[str]) -> None:
    """Enter the method that `--method` names into the table, where an installed package brings it:
    its options are known then.

    Raises:
        BadInput: that package cannot be imported.
    """
    for place, part in enumerate(argv):
        flag, equals, name = part.partition("=")
        if flag == "--method":
            name = name if equals else "".join(argv[place + 1 : place + 2])
            if name not in METHODS and name in method_names():
                find_method(name)


def _commands() -> str:
    """Every command with what it is for, a line each."""
    return "\n".join(f"  {name:10} {summary}" for name, summary in COMMANDS.items())


def _require_known(argv: Sequence[str]) -> None:
    """Refuse a command or an option that there is not, with the one that was probably meant.

    Raises:
        BadInput: there is none of that name.
    """
    command, *rest = argv
    if command.startswith("-"):
        return
    if command not in COMMANDS:
        raise BadInput(
            f"there is no command {command[:40]!r}.{_nearest(command, COMMANDS)} See `privlearn "
            "--help`"
        )
    known = [*_flags(command), "help", "help-all"]
    for part in rest:
        name = part.partition("=")[0].removeprefix("--")
        if part.startswith("--") and name not in known:
            near = _nearest(name, known, "--")
            raise BadInput(
                f"{command} has no option {part[:60]}.{near} See `privlearn {command} --help-all`"
            )


def _flags(command: str) -> list[str]:
    """The names of the options that a command takes."""
    return [option.name for option in options_of(command).values() if option.flag]


def _nearest(name: str, known: Collection[str], dashes: str = "") -> str:
    """What to say of the name that is most like this one, or has these initials; nothing if none
    is.
    """
    near = (
        [candidate for candidate in known if _initials(candidate) == name]
        or [candidate for candidate in known if candidate.startswith(name)]
        or get_close_matches(name, known, n=1, cutoff=0.65)
    )
    return f" Did you mean {dashes}{near[0]}?" if near else ""


def _initials(name: str) -> str:
    """`lr` of `learning-rate`; a single word has none."""
    words = name.split("-")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""


def _parser(*, every: bool, dry: bool) -> argparse.ArgumentParser:
    """The parser of all commands: its help shows `every` option, or the usual ones; `dry` runs need
    no --out.
    """
    parser = _Parser(
        prog="privlearn",
        usage="privlearn COMMAND [options]",
        description="Train models under differential privacy, and publish them with a certificate\n"
        "that anyone can check.",
        epilog=f"{_EXAMPLES}\n`privlearn COMMAND --help` names the options of a command",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=20
        ),
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show the version, and exit",
    )
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", dest="command"
    )
    for name, summary in COMMANDS.items():
        about = _ABOUT.get(name, summary)
        command = commands.add_parser(
            name, prog=f"privlearn {name}", help=summary, description=about, allow_abbrev=False
        )
        usual, needed = (
            None if every else USUAL.get(name),
            [o for o in options_of(name).values() if o.needed or not o.flag],
        )
        command.usage = " ".join(
            [f"privlearn {name}", *(argument.in_usage for argument in needed), "[options]"]
        )
        groups: dict[str | None, Any] = {None: command}
        for option in options_of(name).values():
            visible = usual is None or option.name in usual or not option.flag
            option = replace(option, needed=option.needed and not (dry and option.name == "out"))
            group = option.group if visible else None
            if group not in groups:
                groups[group] = command.add_argument_group(
                    group, _ABOUT.get(str(group)) if usual is None else None
                )
            _add(
                groups[group],
                option if visible else replace(option, help=argparse.SUPPRESS),
                option.default,
            )
        text = (
            f"all {len(options_of(name))} options, in groups"
            if name in USUAL
            else argparse.SUPPRESS
        )
        command.add_argument("--help-all", action="help", help=text)
    return parser


def _add(parser: Any, option: Option, default: Any) -> None:
    """Let the parser read an option."""
    if not option.flag:
        several = {"nargs": "?"} if option.optional else {}
        parser.add_argument(
            option.name, metavar=option.metavar, choices=option.choices, help=option.help, **several
        )
    elif option.kind is bool:
        parser.add_argument(
            f"--{option.name}", action="store_true", default=default, help=option.help
        )
    else:
        parser.add_argument(
            f"--{option.name}",
            type=option.kind,
            default=default,
            metavar=option.metavar,
            choices=option.choices,
            required=option.needed,
            help=option.help,
        )


def _with_ranges(argv: list[str]) -> list[str]:
    """Let `--range -4,7` and `--target-bounds -1,3` be written so, though their values look like
    options.
    """
    joined: list[str] = []
    for part in argv:
        if joined and joined[-1] in ("--range", "--target-bounds"):
            joined[-1] = f"{joined[-1]}={part}"
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
            raise BadInput(
                "--config needs a file: give the path of a TOML file whose keys are the options' "
                "names"
            )
        path, after = after[0], after[1:]
    if not before or before[0].startswith("-"):
        raise BadInput(
            "--config was given before the command: expected `privlearn COMMAND --config F.toml "
            "...`"
        )
    by_hand = {part.partition("=")[0][2:] for part in argv if part.startswith("--")}
    arguments: list[str] = []
    for name, value in plain_options(read_toml(Path(path)), Path(path)).items():
        if name in by_hand or (name in _TARGETS and by_hand & _TARGETS):
            continue
        if before[0] == "budget" and _is_for_training(name):
            continue
        if before[0] in COMMANDS and name not in (known := _flags(before[0])):
            raise BadInput(
                f"{name[:40]!r} in {path} is not an option of {before[0]}."
                f"{_nearest(name, known)} See `privlearn {before[0]} --help-all`"
            )
        if value is True:
            arguments.append(f"--{name}")
        elif value is not False:
            arguments.append(f"--{name}={value}")
    return [before[0], *arguments, *before[1:], *after]


def _is_for_training(name: str) -> bool:
    """Whether `budget` passes over an option of a file that serves both commands: it changes no
    plan.
    """
    key = name.replace("-", "_")
    option = options_of("train").get(key)
    return option is not None and key not in options_of("budget") and option.part != "plan"


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
        raise BadInput(
            f"the configuration {path} cannot be read: {error}. Expected a TOML file"
        ) from error


def plain_options(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The options that a table of the TOML file at `path` holds, by name and with plain values.

    Raises:
        BadInput: something in it that is no option's value.
    """
    plain: dict[str, Any] = {}
    for key, value in settings.items():
        name = key.replace("_", "-")
        if name in plain:
            raise BadInput(
                f"{key} stands twice in {path}, once with _ and once with -: keep one of them"
            )
        if (
            name in ("config", "help", "help-all")
            or not key.isascii()
            or not name.replace("-", "a").isalnum()
        ):
            raise BadInput(
                f"{key[:40]!r} in {path} is not an option: expected names as on the command line, "
                "such as epsilon"
            )
        if isinstance(value, dict):
            raise BadInput(
                f"[{key}] in {path} is a table: expected plain options, as on the command line"
            )
        plain[name] = ",".join(str(part) for part in value) if isinstance(value, list) else value
    return plain
