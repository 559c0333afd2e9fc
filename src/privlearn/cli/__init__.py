"""The command line: a thin shell around the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from privlearn._checks import printable
from privlearn.cli.options import parse
from privlearn.errors import PrivlearnError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 fine, 1 a check failed, 2 bad input."""
    try:
        options = parse(list(sys.argv[1:] if argv is None else argv))
        code: int = options.run(options)
        sys.stdout.flush()
    except PrivlearnError as error:
        # What strangers wrote may be quoted: no control characters, and no line of its own.
        print("privlearn: " + "\n  ".join(map(printable, str(error).splitlines())), file=sys.stderr)
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
