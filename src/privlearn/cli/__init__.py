"""The command line: a thin shell around the library."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module

from privlearn._checks import printable
from privlearn.cli.options import options_of
from privlearn.cli.request import Request, parse
from privlearn.errors import PrivlearnError

#: Where a command is, if not in `run` of the module of its name.
_ELSEWHERE = {"key": ("verify", "make_key")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 fine, 1 a check failed, 2 bad input."""
    request = None
    try:
        request = parse(list(sys.argv[1:] if argv is None else argv))
        # Only when it runs: most commands import torch.
        module, function = _ELSEWHERE.get(request.command, (request.command, "run"))
        code: int = getattr(import_module(f"privlearn.cli.{module}"), function)(request)
        sys.stdout.flush()
    except PrivlearnError as error:
        # What strangers wrote may be quoted: no control characters, and no line of its own.
        message = "\n  ".join(map(printable, str(error).splitlines()))
        print(f"privlearn: {message}{_flags(message, request)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("privlearn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"privlearn: the system refused: {printable(error)}", file=sys.stderr)
        return 2
    return code


def _flags(message: str, request: Request | None) -> str:
    """The options that stand for the Python arguments which a message names, as `examples=N` or by its first word.

    The library knows nothing of the command line: this is the one place where its arguments become options.
    """
    if request is None:
        return ""
    advised, first = re.findall(r"\b([a-z_]+)=", message), message.partition(" is ")[0]
    options = [
        option
        for option in options_of(request.command).values()
        if option.flag and (option.in_python in advised or option.name != option.in_python == first)
    ]
    flags = [option.in_words for option in options if f"--{option.name}" not in message]
    return f". On the command line: {', '.join(flags)}" if flags else ""
