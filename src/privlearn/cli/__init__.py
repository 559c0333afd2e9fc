"""The command line: a thin shell around the library."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from privlearn._checks import printable
from privlearn.cli.option import Option
from privlearn.cli.options import options_of
from privlearn.cli.outlets import forget_reader, perhaps_unread, require_outlets
from privlearn.cli.request import parse
from privlearn.errors import DataWarning, PrivacyWarning, PrivlearnError, TrainingWarning

_usual_format = warnings.formatwarning
#: Where a command is, if not in `run` of the module of its name.
_ELSEWHERE = {
    "key": ("verify", "make_key"),
    "selfcheck": ("audit", "check_installation"),
    "commit": ("replay", "make_commitment"),
}
#: What an interruption leaves: of commands that charge a ledger, and of others.
_CHARGED = "what a ledger was charged stays charged"
_INTERRUPTED = {
    **dict.fromkeys(("budget", "verify", "completion"), "nothing was changed"),
    "train": _CHARGED,
    "data": _CHARGED,
    "audit": "the attack proves nothing before its end",
    **dict.fromkeys(("predict", "export"), "nothing was written"),
    "reproduce": "runs that are finished are kept, and the same command goes on with the others",
}


def _as_a_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
    *,
    command: str,
) -> str:
    """What a warning is printed as: those of privlearn with the options of the command, and without
    the line of code that they arose in.
    """
    if issubclass(category, PrivacyWarning | DataWarning | TrainingWarning):
        return f"warning: {in_options(printable(str(message)), command)}\n"
    return _usual_format(message, category, filename, lineno, line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 fine, 1 a check failed, 2 bad input."""
    request = None
    require_outlets()
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # a process of its own
        warnings.formatwarning = partial(_as_a_line, command=words[0] if words else "")
    try:
        request = parse(words)
        # Only when it runs: most commands import torch.
        module, function = _ELSEWHERE.get(request.command, (request.command, "run"))
        code: int = getattr(import_module(f"privlearn.cli.commands.{module}"), function)(request)
        with perhaps_unread():
            pass  # what is still to be written
    except PrivlearnError as error:
        if not _says_why():
            return 2
        # What strangers wrote may be quoted: no control characters, and no line of its own.
        message = "\n  ".join(map(printable, str(error).splitlines()))
        print(
            f"privlearn: {message if request is None else in_options(message, request.command)}",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        left = _INTERRUPTED.get(request.command if request else "")
        print(f"privlearn: interrupted{f'; {left}' if left else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        forget_reader(sys.stdout)
        return 0
    except OSError as error:
        if not _says_why():
            return 2
        print(f"privlearn: the system refused: {printable(error)}", file=sys.stderr)
        return 2
    return code


def _says_why() -> bool:
    """Whether this process says why it fails: of several that train together, the first."""
    if "RANK" not in os.environ:
        return True
    from privlearn.runs.process_group import first_to_fail

    return first_to_fail()


#: A Python call, such as Plan(examples=N): what stands in it stays as it is.
_CALL = re.compile(r"(\w\((?:[^()]|\([^()]*\))*\))")
_ARGUMENT = re.compile(r"(?<![\w.:,-])([a-z_]+)=('[^']*'|\([^()]*\)|\w*)")


def in_options(message: str, command: str) -> str:
    """`message` with options of a command for the Python arguments that it names, as `examples=N`
    or as first word.

    Where an argument stands in a call, or is made of several options, these follow the message. The
    library knows nothing of the command line: this is the one place where its arguments become
    options.
    """
    named: dict[str, list[Option]] = defaultdict(list)
    for option in options_of(command).values():
        if option.flag:
            named[option.in_python].append(option)

    def option_of(argument: re.Match[str]) -> str:
        options = named.get(argument[1], [])
        if len(options) != 1:
            return argument[0]
        value = argument[2].strip("'()").replace(", ", ",")
        if options[0].kind is bool:  # it is there or left out: it takes no value
            name = f"--{options[0].name}"
            return f"no {name}" if value == "False" else name
        return f"--{options[0].name} {value}".rstrip()

    start = re.match(r"(?:the )?([a-z_]+(?: [a-z]+)??)(?= is | ')", message)
    first = start[1].replace(" ", "_") if start else ""
    if start and len(named.get(first, [])) == 1:
        message = f"--{named[first][0].name}{message[start.end() :]}"
    parts = _CALL.split(message)  # every second one is a call
    message = "".join(
        part if place % 2 else _ARGUMENT.sub(option_of, part) for place, part in enumerate(parts)
    )
    left = {first, *re.findall(r"(?<![\w.:,])([a-z_]+)=", message)}
    flags = [
        option.in_words
        for name in named
        if name in left
        for option in named[name]
        if f"--{option.name}" not in message
    ]
    return f"{message}. On the command line: {', '.join(flags)}" if flags else message
