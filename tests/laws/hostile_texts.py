"""What strangers may call things: for a terminal, for Markdown, for HTML and for YAML."""

from __future__ import annotations

TEXTS = {
    "colours": "\x1b[31mred\x1b[0m",
    "clears the screen": "\x1b[2J\x1b[H",
    "control sequence of one byte": "\x9b2J",
    "a link of a terminal": "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07",
    "a title of a window": "\x1b]0;title\x07",
    "directions": "safe\u202eelif\u2066x\u2069",
    "line breaks": "fine\nprivlearn: verifies\r\n\x0b\x0c\x85\u2028\u2029end",
    "cells": "a | b | c",
    "code": "`x` ``` y",
    "elements": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a link": "[x](javascript:alert(1)) ![y](http://evil.example/z.png) <http://evil.example>",
    "references": "[x][y]",
    "YAML": "--- a: b # c",
    "YAML that ends": "x\n---\nepsilon: 0.0",
    "markup": "[/][bold red]x[/] :smile:",
    "entities": "&lt;b&gt; &amp; <!-- ]]>",
    "nothing": "\0",
    "backslashes": "\\| \\` \\<",
    "half a character": "\ud800",
    "long": "x" * 300,
}

#: Characters that no output may hold as they are.
FORBIDDEN = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]
FORBIDDEN += [*"\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"]


def require_tame(shown: str) -> None:
    """No control character but line breaks, and no mark of direction."""
    for own in FORBIDDEN:
        assert own not in shown, repr(own)
