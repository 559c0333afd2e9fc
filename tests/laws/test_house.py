"""The laws of the house (CONTRIBUTING.md), over the syntax trees of the package.

A law yields its offenders. Those that it still has stand in `STILL`, by name: a new one fails, and
so does an entry that no longer offends. `python tests/laws/test_house.py` prints the table as it
would have to be today.
"""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import privlearn
from privlearn.core.accounting import mechanisms

#: Offenders that are known, by law. To shrink, not to grow.
STILL: dict[str, set[str]] = {
    "the_package_has_few_files": {
        "privlearn",
    },
    "functions_have_few_parameters": {
        "core/clipping/gradients.py: ClippedGradients.__init__",
        "core/clipping/row_sums.py: class_statistics",
        "methods/pate/autoencoder.py: Autoencoder.fit",
        "transforms/select.py: release_statistics",
    },
    "imports_are_few": {
        "privlearn",
    },
    "errors_are_short": {
        "training/validation.py: the validation rows that are declared public are a",
    },
}

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "privlearn"
#: A method that is found by its entry point: a package for which the laws hold, too.
SEGMENTATION = ROOT / "src" / "privlearn_segmentation"
#: What is not a test.
CODE = ("src", "bench", "examples")
#: Where options are named and things are printed.
COMMAND_LINE = ("cli/", "segmentation/pages/")
BANNED = {"found", "told", "asides", "born", "shown", "thing", "helper", "utils"}
#: They say how a value came about, and not what it is.
PARTICIPLES = {"own", "made", "given", "kept", "stated", "told", "shown", "found"}
#: Operations take their arguments as torch does, and the engine's tables pair them with torch's
#: names.
AS_TORCH_CALLS_THEM = "core/clipping/operations/"

Law = Callable[[], Iterator[str]]
LAWS: dict[str, Law] = {}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def law(function: Law) -> Law:
    LAWS[function.__name__] = function
    return function


@pytest.mark.parametrize("name", LAWS)
def test_law(name: str) -> None:
    offenders, known = set(LAWS[name]()), STILL.get(name, set())
    assert not offenders - known, f"new offenders: {sorted(offenders - known)}"
    assert not known - offenders, (
        f"no longer offend, take them out of STILL: {sorted(known - offenders)}"
    )


def test_laws_that_have_known_offenders_are_laws() -> None:
    assert set(STILL) <= set(LAWS)


# -- the trees


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of the package, by path below it."""
    paths = sorted([*PACKAGE.rglob("*.py"), *SEGMENTATION.rglob("*.py")])
    return {_below(path): ast.parse(path.read_text("utf-8")) for path in paths}


@cache
def lines() -> dict[str, list[str]]:
    return {name: _path(name).read_text("utf-8").splitlines() for name in trees()}


def _below(path: Path) -> str:
    if path.is_relative_to(SEGMENTATION):
        return f"segmentation/{path.relative_to(SEGMENTATION).as_posix()}"
    return path.relative_to(PACKAGE).as_posix()


def _path(name: str) -> Path:
    inner = name.removeprefix("segmentation/")
    return PACKAGE / name if inner == name else SEGMENTATION / inner


def nodes(name: str, *kinds: type[Any]) -> Iterator[Any]:
    return (node for node in _all_nodes(name) if isinstance(node, kinds))


@cache
def _all_nodes(name: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(trees()[name]))


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """All functions and methods, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        inner = within
        if isinstance(node, Function | ast.ClassDef):
            inner = f"{within}{node.name}."
            if isinstance(node, Function):
                yield f"{within}{node.name}", node
        yield from functions(node, inner)


def docstrings(name: str) -> set[int]:
    """The identities of the nodes of a file that are docstrings, or strings that stand alone."""
    return {
        id(node.value) for node in nodes(name, ast.Expr) if isinstance(node.value, ast.Constant)
    }


def texts(name: str, others: Iterable[int] = ()) -> Iterator[str]:
    """The literal texts of a file, but for its docstrings and for other nodes, by `id`."""
    apart = docstrings(name).union(others)
    for node in nodes(name, ast.Constant):
        if isinstance(node.value, str) and id(node) not in apart:
            yield node.value


def called(name: str, attribute: str) -> bool:
    """Whether a file calls a method of this name."""
    calls = (node.func for node in nodes(name, ast.Call))
    return any(
        isinstance(function, ast.Attribute) and function.attr == attribute for function in calls
    )


def public_classes() -> Iterator[tuple[str, str]]:
    """(file, class) for the classes of modules that other files may import."""
    for name, tree in trees().items():
        if not name.startswith(COMMAND_LINE):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield name, node.name


# -- places


@law
def batches_are_drawn_where_they_are_compared_with_their_event() -> Iterator[str]:
    for name in trees():
        for node in nodes(name, ast.Call):
            function = node.func
            if (
                isinstance(function, ast.Attribute)
                and function.attr == "draw"
                and name != "core/sampling/draws.py"
            ):
                source = function.value
                if getattr(source, "attr", getattr(source, "id", "")).lstrip("_") in {
                    "sampling",
                    "sampler",
                }:
                    yield name


@law
def sensitivities_are_written_where_clipping_is_done() -> Iterator[str]:
    for name in trees():
        written = any(
            isinstance(node.func, ast.Name) and node.func.id == "Bounded"
            for node in nodes(name, ast.Call)
        )
        if written and not name.startswith("core/clipping/") and not name.endswith("/sums.py"):
            yield name


@law
def charges_are_made_in_few_places() -> Iterator[str]:
    rooms = ("core/mechanisms/", "core/samples.py", "core/accounting/", "runs/", "methods/tuning/")
    yield from (n for n in trees() if called(n, "charge") and not n.startswith(rooms))


@law
def noise_is_drawn_by_mechanisms() -> Iterator[str]:
    room = "core/mechanisms/"
    yield from (name for name in trees() if called(name, "words") and not name.startswith(room))


@law
def mechanisms_are_told_apart_in_two_files() -> Iterator[str]:
    leaves = {
        kind.__name__
        for kind in vars(mechanisms).values()
        if isinstance(kind, type)
        and issubclass(kind, mechanisms.Mechanism)
        and kind is not mechanisms.Mechanism
    }
    for name in trees():
        if name in ("core/accounting/mechanisms.py", "core/accounting/trees.py"):
            continue
        tests = [node.cls for node in nodes(name, ast.MatchClass)]
        tests += [
            node.args[1]
            for node in nodes(name, ast.Call)
            if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
        ]
        if any(
            isinstance(node, ast.Name) and node.id in leaves
            for test in tests
            for node in ast.walk(test)
        ):
            yield name


@law
def argparse_stays_in_one_file() -> Iterator[str]:
    for name in trees():
        named = any(node.attr == "Namespace" for node in nodes(name, ast.Attribute))
        named |= any(
            alias.name == "Namespace"
            for node in nodes(name, ast.ImportFrom)
            for alias in node.names
        )
        if named and name != "cli/request.py":
            yield name


@law
def only_the_command_line_names_options() -> Iterator[str]:
    """Elsewhere messages name the Python argument. A `Flag` is an option; a model card is a page
    with commands on it.
    """
    options = {
        text
        for name in trees()
        if name.startswith(COMMAND_LINE)
        for text in texts(name)
        if text.startswith("--")
    }
    for name in trees():
        flags = [call for call in nodes(name, ast.Call) if ast.unparse(call.func) == "Flag"]
        helps = {id(node) for flag in flags for node in ast.walk(flag)}
        named = {
            option
            for text in texts(name, helps)
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
        }
        if options & named and not name.startswith(COMMAND_LINE) and name != "publishing/card.py":
            yield name


@law
def facts_are_read_by_publishing() -> Iterator[str]:
    """And by a plan: to compare a certificate with it (`follows`, `trained`), and to say them on a
    card.
    """
    readers = {
        "follows",
        "trained",
        "fact_rows",
        "card_words",
        "contradictions",
        "check_choices",
        "chosen_candidate",
        "public_features",
    }
    for name, tree in trees().items():
        if name.startswith(("publishing/", *COMMAND_LINE)):
            continue
        own = {
            id(part)
            for q, node in functions(tree)
            if q.split(".")[-1] in readers
            for part in ast.walk(node)
        }
        for node in nodes(name, ast.Subscript, ast.Call):
            read = (
                node.value
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
                else None
            )
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
            ):
                read = node.func.value
            if id(node) not in own and getattr(read, "attr", getattr(read, "id", None)) == "facts":
                yield name
                break


# -- sizes


@law
def files_are_short() -> Iterator[str]:
    for name, text in lines().items():
        if len(text) > 1_000:
            yield name
    if len(lines()["training/run.py"]) > 190:
        yield "training/run.py"


@law
def the_package_has_few_files() -> Iterator[str]:
    if len(trees()) > 140:
        yield "privlearn"


@law
def functions_are_short() -> Iterator[str]:
    """Docstrings are not counted: what a public function has to say about its arguments is no part
    of its logic.
    """
    for name, tree in trees().items():
        for function, node in functions(tree):
            text = node.body[0] if ast.get_docstring(node) is not None else None
            said = 0 if text is None else (text.end_lineno or 0) - text.lineno + 1
            if (node.end_lineno or 0) - node.lineno + 1 - said > 80:
                yield f"{name}: {function}"


@law
def functions_have_few_parameters() -> Iterator[str]:
    """Names in front, and estimators, whose settings scikit-learn wants one by one, have up to
    12.
    """
    front = {*privlearn.__all__, *privlearn.sklearn.__all__}
    for name, tree in trees().items():
        if name.startswith(AS_TORCH_CALLS_THEM):
            continue
        for function, node in functions(tree):
            own = [
                arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            ]
            number = len([arg for arg in own if arg not in ("self", "cls")])
            if number > (12 if function.removesuffix(".__init__") in front else 8):
                yield f"{name}: {function}"


@law
def imports_are_few() -> Iterator[str]:
    imports = sum(
        (node.end_lineno or 0) - node.lineno + 1
        for name in trees()
        for node in nodes(name, ast.Import, ast.ImportFrom)
    )
    if imports > 0.06 * sum(map(len, lines().values())):
        yield "privlearn"


@law
def the_front_is_small() -> Iterator[str]:
    modules = {
        name for name in privlearn.__all__ if isinstance(getattr(privlearn, name), type(ast))
    }
    if len(set(privlearn.__all__) - modules) > 27:
        yield "names"
    if len(modules) > 19:
        yield "modules"


@law
def lines_are_short() -> Iterator[str]:
    """In Markdown, but for tables, addresses and printed output. ruff holds code to 100."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    for page in sorted(pages):
        fenced = False
        for line in page.read_text("utf-8").splitlines():
            fenced ^= line.lstrip().startswith("```")
            if (
                len(line) > 120
                and not fenced
                and not line.startswith("|")
                and not re.search(r"\S{80}", line)
            ):
                yield page.relative_to(ROOT).as_posix()
                break
    assert "line-length = 100" in (ROOT / "pyproject.toml").read_text("utf-8")


@law
def code_on_pages_is_narrow() -> Iterator[str]:
    """The site shows 80 columns of a line of code: of blocks on pages, and of tutorials but for
    their text.
    """
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for block in re.findall(
            r"^```[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            if any(len(line) > 80 for line in block.splitlines()):
                yield page.relative_to(ROOT).as_posix()
    for tutorial in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        lines_of_code = (
            line for line in tutorial.read_text("utf-8").splitlines() if not line.startswith("#")
        )
        if any(len(line) > 80 for line in lines_of_code):
            yield tutorial.relative_to(ROOT).as_posix()


@law
def nothing_is_written_twice() -> Iterator[str]:
    """No run of 12 equal lines stands in two places: blank lines, imports and docstrings are not
    counted.
    """
    seen: dict[tuple[str, ...], str] = {}
    for name, text in lines().items():
        apart = {
            number
            for node in nodes(name, ast.Import, ast.ImportFrom, ast.Expr)
            if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant)
            for number in range(node.lineno - 1, node.end_lineno or 0)
        }
        own = [
            line.strip() for number, line in enumerate(text) if number not in apart and line.strip()
        ]
        for start in range(len(own) - 11):
            run = tuple(own[start : start + 12])
            if seen.setdefault(run, name) != name:
                yield f"{name} and {seen[run]}"


@law
def pages_are_light() -> Iterator[str]:
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file() and path.stat().st_size > 250_000:
            yield path.relative_to(ROOT).as_posix()


# -- names


@law
def modules_have_names_of_their_own() -> Iterator[str]:
    """But for `plan` and `sums`, which many rooms have, and the files of the command line, called
    like its commands.
    """
    named: dict[str, list[str]] = defaultdict(list)
    for name in trees():
        if not name.startswith(COMMAND_LINE):
            named[Path(name).stem].append(name)
    for stem, files in named.items():
        if len(files) > 1 and stem not in ("plan", "sums", "__init__"):
            yield " and ".join(files)


@law
def classes_have_names_of_their_own() -> Iterator[str]:
    named: dict[str, list[str]] = defaultdict(list)
    for name, own in public_classes():
        named[own].append(name)
    yield from (f"{own}: {' and '.join(files)}" for own, files in named.items() if len(files) > 1)


@law
def public_classes_are_explained_in_the_reference() -> Iterator[str]:
    """Those that stand in front, or that a room gives by its name: docs/api.md has a sentence for
    each, as it is built.

    The sentence is the first one of the docstring, which `help()` and editors show, too.
    """
    hooks = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))
    source = (ROOT / "docs" / "api.md").read_text("utf-8")
    page = hooks["on_page_markdown"](
        source, SimpleNamespace(file=SimpleNamespace(src_uri="api.md"))
    )
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page, re.MULTILINE)
    explained = {
        name for name, sentence in rows if sentence.endswith(".") and len(sentence.split()) >= 4
    }
    yield from (f"{name}: no sentence of four words" for name, _ in rows if name not in explained)
    for name in trees():
        if name.endswith("__init__.py") and not name.startswith(COMMAND_LINE):
            parts = ("privlearn", *Path(name).parent.parts)
            room = import_module(".".join(parts).replace("privlearn.seg", "privlearn_seg"))
            for public in getattr(room, "__all__", ()):
                if isinstance(getattr(room, public), type) and public not in explained:
                    yield f"{name}: {public}"


@law
def texts_are_escaped_in_one_place() -> Iterator[str]:
    """For HTML in `_texts.py` alone; for terminals where `rich` is, in `cli/screen.py`, but for
    errors and versions.
    """
    for name, tree in trees().items():
        modules = {part for node in ast.walk(tree) for part in _imported(node)}
        if "html" in modules and name != "_texts.py":
            yield f"{name} imports html"
        if any(part.split(".")[0] == "rich" for part in modules) and name != "cli/screen.py":
            yield f"{name} imports rich"
        writes = {ast.unparse(node.func) for node in nodes(name, ast.Call)} & {
            "print",
            "sys.stdout.write",
        }
        if (
            name.startswith(COMMAND_LINE)
            and writes
            and name not in ("cli/__init__.py", "cli/request.py", "cli/screen.py")
        ):
            yield f"{name} writes by itself"


def _imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [own.name for own in node.names] if isinstance(node, ast.Import) else []


@law
def names_say_what_a_value_is() -> Iterator[str]:
    for name in trees():
        used = {node.id for node in nodes(name, ast.Name)} | {
            node.arg for node in nodes(name, ast.arg)
        }
        used |= {
            node.attr for node in nodes(name, ast.Attribute) if isinstance(node.ctx, ast.Store)
        }
        used |= {node.name for node in nodes(name, ast.FunctionDef, ast.ClassDef)} | {
            Path(name).stem
        }
        if {own.strip("_").lower() for own in used} & BANNED:
            yield name


@law
def variables_say_what_they_hold() -> Iterator[str]:
    """Variables, parameters and private attributes, in all code that is not a test: `outcomes`, and
    not `made`.

    Fields of classes and parameters of public functions may have any name, as callers write it.
    """
    public = _public_parameters()
    for path in sorted(path for top in CODE for path in (ROOT / top).rglob("*.py")):
        tree, place = ast.parse(path.read_text("utf-8")), path.relative_to(ROOT)
        module = ".".join(place.with_suffix("").parts[1:]).removesuffix(".__init__")
        exempt = {id(node) for node in _fields(tree)}
        for function, node in functions(tree):
            exempt |= {
                id(part)
                for part in ast.walk(node.args)
                if isinstance(part, ast.arg) and (module, function, part.arg) in public
            }
        for node in ast.walk(tree):
            name = "" if id(node) in exempt else _assigned_name(node)
            if name.strip("_") in PARTICIPLES:
                yield f"{place.as_posix()}: {name}"


def _assigned_name(node: ast.AST) -> str:
    """The variable, parameter or private attribute that a node assigns; empty if it assigns
    none.
    """
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.Attribute(attr=name, ctx=ast.Store()) if name.startswith("_"):
            return name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return name
        case ast.ExceptHandler(name=str(name)):
            return name
    return ""


def _fields(tree: ast.AST) -> Iterator[ast.AST]:
    """What the bodies of classes assign."""
    for node in ast.walk(tree):
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(line, ast.AnnAssign):
                yield line.target
            elif isinstance(line, ast.Assign):
                yield from line.targets


@cache
def _public_parameters() -> frozenset[tuple[str, str, str]]:
    """(module, function, parameter) of all that rooms export, with the methods of classes."""
    public: set[tuple[str, str, str]] = set()
    for stub in (ROOT / "src").rglob("__init__.pyi"):
        room = import_module(".".join(stub.parent.relative_to(ROOT / "src").parts))
        for exported in (getattr(room, name) for name in getattr(room, "__all__", ())):
            members = [exported]
            if isinstance(exported, type):
                members = [
                    inspect.getattr_static(exported, name)
                    for name in dir(exported)
                    if name == "__init__" or not name.startswith("_")
                ]
            for member in members:
                function = inspect.unwrap(getattr(member, "__func__", member))
                if inspect.isfunction(function):
                    home = (function.__module__, function.__qualname__)
                    public |= {(*home, name) for name in inspect.signature(function).parameters}
    return frozenset(public)


@law
def generated_reprs_print_no_rows() -> Iterator[str]:
    """A dataclass that holds tensors, arrays, cells or bytes writes its own repr, or none of its
    fields.
    """
    for name, tree in trees().items():
        for node in tree.body:
            made = [
                ast.unparse(own)
                for own in getattr(node, "decorator_list", [])
                if "dataclass" in ast.unparse(own)
            ]
            if not isinstance(node, ast.ClassDef) or not made or "repr=False" in made[0]:
                continue
            fields = [
                ast.unparse(own.annotation) for own in node.body if isinstance(own, ast.AnnAssign)
            ]
            held = any(
                re.search(r"\b(Tensor|NDArray|bytes|Cell)\b", re.sub(r"Callable\[.*", "", own))
                for own in fields
            )
            if held and not any(getattr(own, "name", "") == "__repr__" for own in node.body):
                yield f"{name}: {node.name}"


@law
def no_name_of_a_room_hides_a_module() -> Iterator[str]:
    """A public name and a module of one name would be either, by the order of imports."""
    for stub in PACKAGE.rglob("__init__.pyi"):
        package = ".".join(("privlearn", *stub.parent.relative_to(PACKAGE).parts))
        for node in ast.parse(stub.read_text("utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module != package:
                for own in (alias.name for alias in node.names):
                    if (stub.parent / f"{own}.py").exists() or (stub.parent / own).is_dir():
                        yield f"{_below(stub)}: {own}"


# -- words

#: A private dialect, or riddles: docstrings, comments and messages say who and what in the field's
#: words (the data's curator, a person, the caller, a user; a transform in front of the network;
#: charged to the ledger).
DIALECT = re.compile(
    r"\b(whoever|somebody|nobody|anybody|stands? in front|paid for|asides|born|one's own)\b",
    re.IGNORECASE,
)
#: "the schema is no TOML": an error says "is not valid TOML".
TELEGRAM = re.compile(r"(?<!there )\b(is|are) (no (?!longer|more)|none\b(?! of))")


@law
def words_are_the_fields() -> Iterator[str]:
    for name, text in lines().items():
        if any(DIALECT.search(line) for line in text):
            yield name


@law
def errors_say_what_is_not() -> Iterator[str]:
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = _filled_in(node.exc.args[0])
                if TELEGRAM.search(text):
                    yield f"{name}: {text[:50]}"


@law
def errors_are_short() -> Iterator[str]:
    """At most three sentences and 300 characters, each value that is filled in taken for eight."""
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = _filled_in(node.exc.args[0])
                if len(text) > 300 or len(re.findall(r"[.!?](?= [A-Z`])", text)) > 2:
                    yield f"{name}: {text[:50]}"


def _filled_in(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_filled_in, parts))
        case ast.BinOp(left=left, right=right):
            return _filled_in(left) + _filled_in(right)
    return "12345678"


if __name__ == "__main__":
    print("STILL: dict[str, set[str]] = {")
    for name, offenders in LAWS.items():
        if known := sorted(set(offenders())):
            print(f'    "{name}": {{')
            print(*(f'        "{offender}",' for offender in known), "    },", sep="\n")
    print("}")
