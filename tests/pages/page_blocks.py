"""The blocks of the documentation's pages: Python, commands and files of settings, in the order in
which they stand.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
)
#: What a block of Python that is not run says after the language, with the reason:
#: "```python not-run: needs a GPU".
NOT_RUN = "not-run:"
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
#: What only Python has at the beginning of a line.
_PYTHON = re.compile(
    r"^(import \w|from \w+(\.\w+)* import|def \w+\(|pv\.\w+|\w+ = pv\.)", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: the page's path below the repository.
        line: the line of the page on which the text begins.
        info: what stands behind the opening fence.
        text: what stands inside.
    """

    page: str
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info.split() else ""

    @property
    def looks_like_python(self) -> bool:
        return bool(_PYTHON.search(self.text))

    @property
    def reason_not_to_run(self) -> str | None:
        _, marked, reason = self.info.partition(NOT_RUN)
        return reason.strip() if marked else None

    def code(self, smaller: dict[str, str]) -> str:
        """The text as Python, on the page's own lines, with numbers of `smaller` in place of larger
        ones.
        """
        text = self.text
        for large, small in smaller.items():
            text = text.replace(large, small)
        return "\n" * (self.line - 1) + text


@dataclass(frozen=True)
class Command:
    """One command of a block, and the lines of output that the page shows below it, if the page
    shows any.
    """

    line: str
    output: tuple[str, ...]

    def words(self) -> list[str]:
        """The words of the line, without its comment; of `> FILE` the last two are ">" and FILE."""
        return shlex.split(self.line, comments=True)


def blocks(page: str) -> list[Block]:
    """The fenced blocks of `page`, in their order."""
    return split(page, (ROOT / page).read_text(encoding="utf-8"))


def split(page: str, text: str) -> list[Block]:
    """The fenced blocks of `text`."""
    return [
        Block(
            page, text[: found.start("text")].count("\n") + 1, found["info"].strip(), found["text"]
        )
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """The commands of a block without a language: lines that begin with `privlearn`, or with `$` in
    a transcript.
    """
    if block.language not in ("", "sh", "bash", "console"):
        return []
    found: list[Command] = []
    transcript = any(line.startswith("$ ") for line in block.text.splitlines())
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ ") or (not transcript and line.startswith("privlearn ")):
            found.append(Command(line.removeprefix("$ "), ()))
        elif transcript and found:
            found[-1] = Command(found[-1].line, (*found[-1].output, line))
    return found
