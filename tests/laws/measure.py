"""The figures of the code's shape, each with its goal: `python -m tests.laws.measure`, from the
project's root.

A closure is what importing a file brings. It follows imports at module level (in class bodies, `if`
and `try`, too), but not those in functions nor those for types alone. A name that a package gives
lazily is imported from the module that the package's stub names. Lines are all lines of a file.
Tokens are names, operators, numbers and strings that are no docstrings.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from privlearn._lazy import names_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "privlearn"
#: The files whose closures are measured, by the place that each has or will have, and the most
#: lines and files.
CLOSURES = {
    "training.run": (("training/run.py",), 18_000, 75),
    "publishing.verify": (("publishing/verify.py",), 10_000, None),
    "mechanisms.release": (("core/mechanisms/release.py",), 5_500, None),
}
_PARTICIPLE = re.compile(r"_?[a-z]+(ed|en|ing)(_|$)")
_IRREGULAR = {"made", "given", "kept", "told", "held", "said", "drawn", "known", "left"}
_VAGUE = {"own", "made", "given", "kept", "stated"}

Graph = Mapping[str, frozenset[str]]


# -- imports


@cache
def sources() -> dict[str, str]:
    """The text of each file of the package, by its path below it."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def tree(file: str) -> ast.Module:
    """The syntax tree of a file of the package."""
    return ast.parse(sources()[file])


def module_of(file: str) -> str:
    """The full name of a file's module."""
    name = "privlearn." + file.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


@cache
def _files() -> dict[str, str]:
    """Module names, and the names that stubs give, with the files that they come from."""
    modules = {module_of(file): file for file in sources()}
    names = {}
    for stub in PACKAGE.rglob("__init__.pyi"):
        package = ".".join(("privlearn", *stub.parent.relative_to(PACKAGE).parts))
        for name, (home, original) in names_of(ast.parse(stub.read_text("utf-8"))).items():
            file = modules.get(f"{home}.{original}") or modules.get(home)
            if file is not None and home != package:
                names[f"{package}.{name}"] = file
    return names | modules


def file_of(module: str) -> str:
    """The file of a module of the package, by the module's full name."""
    return _files()[module]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(tree: ast.AST, *, types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when a file is imported; with `types`, those for types alone,
    too.
    """
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif _is_for_types(child) and not types:
            for other in getattr(child, "orelse", ()):
                yield from statements(ast.Module([other], []), types=types)
        else:
            yield from statements(child, types=types)


def imported(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """The files of the package that a statement imports."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        names = [
            str(statement.module),
            *(f"{statement.module}.{alias.name}" for alias in statement.names),
        ]
    return {_files()[name] for name in names if name in _files()}


@cache
def graph(*, types: bool = False) -> Graph:
    """Which files each file imports; with `types`, those whose names it only needs for annotations,
    too.
    """
    edges = {}
    for file in sources():
        targets = [imported(statement) for statement in statements(tree(file), types=types)]
        edges[file] = frozenset(set().union(*targets) - {file})
    return edges


def closure(start: str, edges: Graph | None = None) -> set[str]:
    """The files that are imported with a file, itself among them."""
    edges = graph() if edges is None else edges
    reached, waiting = {start}, [start]
    while waiting:
        new = edges[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def circles(edges: Graph) -> list[list[str]]:
    """The groups of files that import each other, directly or by way of others; the largest
    first.
    """
    reach = {file: closure(file, edges) for file in edges}
    groups = {frozenset(other for other in reach[file] if file in reach[other]) for file in edges}
    return sorted(
        (sorted(group) for group in groups if len(group) > 1),
        key=lambda group: (-len(group), group),
    )


def entry(name: str) -> str:
    """The file that a row of `CLOSURES` is about, where it lies today."""
    return next(place for place in CLOSURES[name][0] if place in sources())


def closure_size(name: str) -> tuple[int, int]:
    """The lines and files of a row of `CLOSURES`."""
    files = closure(entry(name))
    return sum(sources()[file].count("\n") for file in files), len(files)


# -- private names


def private_accesses(file: str) -> Iterator[str]:
    """The accesses to private attributes that other files of the package define: `run._task`, by
    expression.

    An attribute counts as the file's where one of its classes, functions or assignments has the
    name, or where a method reaches its object (`self`, `cls`, `super()`). What torch's own classes
    have by the name doesn't count.
    """
    defined = _private_definitions(file)
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in defined:
            root = ast.unparse(node.value)
            if root not in ("self", "cls", "super()") and node.attr in _private_names():
                yield f"{file}: {ast.unparse(node)}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def _private_definitions(file: str) -> frozenset[str]:
    """The private names that a file gives to functions, classes, fields and attributes of
    `self`.
    """
    names = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            names.add(node.attr)
    return frozenset(name for name in names if _is_private(name))


@cache
def _private_names() -> frozenset[str]:
    """The private names that some file of the package defines, but for those of torch and of tuples
    with names.
    """
    import torch

    foreign = (
        torch.nn.Module(),
        torch.zeros(1),
        torch.ops.aten.add.default,
        namedtuple("Pair", "x"),
    )
    defined = set().union(*map(_private_definitions, sources()))
    return frozenset(defined.difference(*map(dir, foreign)))


# -- text


def room_of(file: str) -> str:
    """The folder directly below the package that a file lies in; "(top)" for files beside it."""
    return file.split("/")[0] if "/" in file else "(top)"


def tokens(text: str) -> tuple[int, int]:
    """The tokens of a file, and the lines that have one."""
    number, lines = 0, set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        counted = token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
        docstring = token.type == tokenize.STRING and token.string.lstrip("rRbBfFuU").startswith(
            '"""'
        )
        if counted and not docstring:
            number += 1
            lines.add(token.start[0])
    return number, len(lines)


def _studies() -> dict[str, str]:
    files = sorted((ROOT / "src").glob("privlearn_*/**/*.py"))
    return {path.relative_to(ROOT / "src").as_posix(): path.read_text("utf-8") for path in files}


def _names(texts: Mapping[str, str]) -> tuple[int, int, int]:
    """Functions, those named by a participle, and assignments to words that say nothing."""
    functions = participles = vague = 0
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                first = node.name.strip("_").split("_")[0]
                participles += bool(_PARTICIPLE.match(node.name)) or first in _IRREGULAR
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                vague += node.id in _VAGUE
    return functions, participles, vague


def _describe(groups: Sequence[Sequence[str]]) -> str:
    return (
        f"{len(groups)} ({', '.join(str(len(group)) for group in groups)} files)" if groups else "0"
    )


def figures() -> Iterator[tuple[str, str, str]]:
    """Each figure: what it is, what it is today, and its goal."""
    for name, (_, most_lines, most_files) in CLOSURES.items():
        lines, files = closure_size(name)
        goal = f"{most_lines:,}" + (f" / {most_files}" if most_files else "")
        yield f"closure of {name} (lines / files)", f"{lines:,} / {files}", goal
    yield "import circles of files", _describe(circles(graph())), "0"
    yield "the same, imports for types included", _describe(circles(graph(types=True))), "0"
    yield "files in the package", str(len(sources())), "145"
    yield (
        "lines in the package",
        f"{sum(text.count(chr(10)) for text in sources().values()):,}",
        "-",
    )

    texts = sources() | _studies()
    counts = {file: tokens(text) for file, text in texts.items()}
    number, lines = (sum(count[i] for count in counts.values()) for i in (0, 1))
    yield "tokens, studies included", f"{number:,}", "390,000"
    yield "tokens in a line of code", f"{number / lines:.2f}", "8.5"
    rooms: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file, count in counts.items():
        rooms[room_of(file)].append(count)
    for room, files in sorted(rooms.items()):
        yield (
            f"  in {room}",
            f"{sum(n for n, _ in files) / max(sum(line for _, line in files), 1):.2f}",
            "8.5",
        )
    yield (
        "lines with `fmt: skip`",
        str(sum(text.count("fmt: skip") for text in texts.values())),
        "0",
    )
    wide = sum(len(line) > 100 for text in texts.values() for line in text.splitlines())
    yield "lines over 100 columns", f"{wide:,}", "0"
    functions, participles, vague = _names(texts)
    share = participles / functions
    yield "functions named by a participle", f"{participles} of {functions:,} ({share:.1%})", "3 %"
    yield f"assignments to {', '.join(sorted(_VAGUE))}", str(vague), "0"
    accesses = [access for file in sources() for access in private_accesses(file)]
    yield "private attributes of other modules", str(len(accesses)), "0"
    pages = sorted((ROOT / "docs").glob("*.md"))
    yield "pages in docs/", str(len(pages)), "22"
    yield (
        "words in docs/",
        f"{sum(len(page.read_text('utf-8').split()) for page in pages):,}",
        "40,000",
    )


def main() -> None:
    """Print the table."""
    print(f"{'figure':55} {'today':>24} {'goal':>14}")
    for name, value, goal in figures():
        print(f"{name:55} {value:>24} {goal:>14}")


if __name__ == "__main__":
    main()
