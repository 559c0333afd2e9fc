"""`privlearn export`: what a published folder certifies, in the form that others read."""

from __future__ import annotations

from pathlib import Path

from privlearn.cli import screen
from privlearn.cli.request import Request, read_toml
from privlearn.errors import BadInput
from privlearn.publishing.folder import reason_of
from privlearn.publishing.form import export, require_place


def run(request: Request) -> int:
    """Write the form into a file, or on standard output."""
    out = None if request.out is None else Path(request.out)
    if out is not None:
        require_place(request.folder, out)
    about = None if request.about is None else read_toml(Path(request.about))
    content = export(
        request.folder,
        request.to,
        sign=request.sign,
        keyless=request.keyless,
        trust_config=request.trust_config,
        about=about,
    )
    if out is None:
        screen.print_for_scripts(content.decode())
        return 0
    try:
        with out.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise BadInput(
            f"{out} exists already: choose another --out; nothing is overwritten"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{out} cannot be written: {reason_of(error)}. Choose another --out"
        ) from error
    screen.answers.print(
        f"{request.to} of {screen.plain(request.folder)} is in {screen.plain(out)}"
    )
    return 0
