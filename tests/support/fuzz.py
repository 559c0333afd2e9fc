"""Fuzzing of file formats: seeded ways of damaging a file that somebody might send.

A reader that is given a damaged file must read it as what it says now, or refuse it with an error
of its own:

    for damaged in mutations(content, seed=0, count=300):
        path.write_bytes(damaged)
        try:
            read(path)
        except PrivlearnError:
            pass  # refused: any other error fails the test
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

#: What parsers trip over: numbers at the edge, delimiters, bytes that are no text, code.
TOKENS = (
    b"nan",
    b"NaN",
    b"inf",
    b"-inf",
    b"Infinity",
    b"1e999",
    b"-1e999",
    b"1e-400",
    b"-1",
    b"-0",
    b"0",
    b"0x10",
    b"1_0",
    b"2147483648",
    b"9223372036854775808",
    b"9" * 400,
    b"1" * 5000,
    b"true",
    b"false",
    b"null",
    b"None",
    b"",
    b'"',
    b"'",
    b'"""',
    b",",
    b";",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\x00",
    b"\xff",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    "\u202e".encode(),
    "\u0663".encode(),
    b"[",
    b"]",
    b"{",
    b"}",
    b"[[" * 200,
    b'{"a":' * 200,
    b"=",
    b"#",
    b"\\",
    b"\\ud800",
    b"../",
    b"/dev/zero",
    b"__proto__",
    b"__class__",
    b"__import__('os').abort()",
    b"\x80\x04cos\nabort\n(tR.",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b" " * 3000,
)

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def mutations(content: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` damaged versions of `content`, each different from it; the same ones for the
    same seed.

    Each takes one to three steps out of `WAYS`, chosen at random.
    """
    draw = random.Random(seed)
    made = 0
    while made < count:
        damaged = content
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            damaged = draw.choice(WAYS)(damaged, draw)
        if damaged != content:
            made += 1
            yield damaged


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    """One to eight bits, anywhere."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8)) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def truncate(content: bytes, draw: random.Random) -> bytes:
    """The end is lost, or now and then the beginning."""
    at = draw.randrange(len(content) + 1)
    return content[at:] if draw.random() < 0.2 else content[:at]


def splice(content: bytes, draw: random.Random) -> bytes:
    """A piece is written over another place, pushed in there, or taken out."""
    start, end = _piece(len(content), draw)
    piece = content[start:end]
    at = draw.randrange(len(content) + 1)
    match draw.randrange(3):
        case 0:
            return content[:at] + piece + content[at + len(piece) :]
        case 1:
            return content[:at] + piece + content[at:]
    return content[:start] + content[end:]


def insert_token(content: bytes, draw: random.Random) -> bytes:
    """One of `TOKENS`, anywhere."""
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.choice(TOKENS) + content[at:]


def disturb_lines(content: bytes, draw: random.Random) -> bytes:
    """A line is deleted, doubled or moved."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    line = lines.pop(draw.randrange(len(lines)))
    at = draw.randrange(len(lines) + 1)
    match draw.randrange(3):
        case 0:
            lines.insert(at, line)
        case 1:
            lines[at:at] = [line, line]
    return b"".join(lines)


def replace_number(content: bytes, draw: random.Random) -> bytes:
    """A number becomes another one of the file, or one of `TOKENS`."""
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    place = draw.choice(found)
    new = draw.choice(found).group() if draw.random() < 0.5 else draw.choice(TOKENS)
    return content[: place.start()] + new + content[place.end() :]


def _piece(length: int, draw: random.Random) -> tuple[int, int]:
    """A stretch of a content, mostly a short one."""
    start = draw.randrange(length + 1)
    longest = draw.choice((4, 32, 256, length))
    return start, min(length, start + draw.randrange(longest + 1))


#: The ways of damaging a file.
WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bits,
    truncate,
    splice,
    insert_token,
    disturb_lines,
    replace_number,
)
