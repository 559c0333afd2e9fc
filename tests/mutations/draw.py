"""Mutations of the package: which there are, and which a seed draws.

A mutation changes one piece of a function's body: an operator, a comparison, a constant, a
condition, a statement, a returned value. What an error or a text says is left alone, and so are
annotations, defaults and decorators.
"""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "privlearn"

#: What is mutated, by room: files below the package, and how many mutations are drawn.
ROOMS: dict[str, tuple[tuple[str, ...], int]] = {
    "accounting": (("core/accounting/**/*.py",), 60),
    "clipping": (("core/clipping/**/*.py",), 60),
    "mechanisms": (("core/mechanisms/*.py",), 25),
    "sampling": (("core/sampling/*.py", "core/samples.py", "core/inclusion.py"), 25),
    "publishing": (("publishing/*.py",), 40),
    "methods' sums": (("*/sums.py",), 30),
}

_OTHER: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Pow: (ast.Mult,),
}
_CALLS = {
    ("min", "max"),
    ("any", "all"),
    ("minimum", "maximum"),
    ("floor", "ceil"),
    ("amin", "amax"),
    ("log", "log1p"),
    ("expm1", "exp"),
    ("lower", "upper"),
}
_NAMES = dict(_CALLS) | {after: before for before, after in _CALLS}


@dataclass(frozen=True)
class Mutation:
    """One change of a function.

    Attributes:
        file: the path below the package.
        function: the outermost function or method, by qualified name.
        before, after: what changes, as source; `nth` tells equal changes of one function apart.
        lines: the first and the last line of what changes, and the first of the statement that it
            stands in.
        place: the number of the piece in the file, and of the change among those of the piece.
    """

    room: str
    file: str
    function: str
    operator: str
    before: str
    after: str
    nth: int
    lines: tuple[int, int, int]
    place: tuple[int, int]

    @property
    def name(self) -> str:
        """What tells it from all others, and stays when other functions change."""
        again = f" ({self.nth + 1})" if self.nth else ""
        return f"{self.file}: {self.function}: {self.before} -> {self.after}{again}"

    def tree(self) -> ast.Module:
        """The file's syntax tree, with the change in it."""
        tree = ast.parse((PACKAGE / self.file).read_text("utf-8"))
        piece, put = list(_pieces(tree))[self.place[0]][1:3]
        put(list(_changes(piece))[self.place[1]][1])
        return ast.fix_missing_locations(tree)


def mutations(room: str) -> list[Mutation]:
    """All mutations of a room."""
    files = sorted({path for pattern in ROOMS[room][0] for path in PACKAGE.glob(pattern)})
    return [
        mutation
        for path in files
        for mutation in of_file(room, path.relative_to(PACKAGE).as_posix())
    ]


def drawn(
    room: str, seed: int, number: int | None = None, apart: set[str] | None = None
) -> list[Mutation]:
    """Mutations of a room that the seed draws: as many of each operator, as long as there are any.

    A hash of its name ranks each mutation, so that a change of one function hardly moves what is
    drawn elsewhere.

    Args:
        apart: functions as source; a mutation that makes one of them is not drawn (see `planted`).
    """
    by_operator: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in mutations(room):
        by_operator[mutation.operator].append(mutation)
    for those in by_operator.values():
        those.sort(
            key=lambda mutation: hashlib.sha256(f"{seed}: {mutation.name}".encode()).digest()
        )
    number, chosen = ROOMS[room][1] if number is None else number, []
    while len(chosen) < number and any(by_operator.values()):
        for those in by_operator.values():
            if (
                those
                and len(chosen) < number
                and _source(mutation := those.pop(0)) not in (apart or set())
            ):
                chosen.append(mutation)
    return chosen


def functions_of(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions and methods, by qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{within}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{within}{node.name}.")


def _source(mutation: Mutation) -> str:
    """The function as the mutation makes it."""
    return next(
        ast.unparse(node)
        for name, node in functions_of(mutation.tree())
        if name == mutation.function
    )


def of_file(room: str, file: str) -> Iterator[Mutation]:
    tree = ast.parse((PACKAGE / file).read_text("utf-8"))
    seen: dict[tuple[str, str, str], int] = defaultdict(int)
    for number, (function, piece, _, statement) in enumerate(_pieces(tree)):
        for which, (operator, new) in enumerate(_changes(piece)):
            before, after = _line(piece), _line(new)
            nth, seen[function, before, after] = (
                seen[function, before, after],
                seen[function, before, after] + 1,
            )
            lines = (piece.lineno, piece.end_lineno or piece.lineno, statement)
            yield Mutation(
                room, file, function, operator, before, after, nth, lines, (number, which)
            )


def _line(node: ast.AST) -> str:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return f"raise {ast.unparse(node.exc.func)}(...)"
    first, *more = ast.unparse(node).splitlines()
    return f"{first} ..." if more else first


Piece = tuple[str, ast.expr | ast.stmt, Callable[[ast.AST], None], int]


def _pieces(tree: ast.Module) -> Iterator[Piece]:
    """The statements and expressions of all functions, each with what puts another in its place."""
    for name, function in functions_of(tree):
        for number, statement in enumerate(function.body):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text:
                put = _putting(function, "body", number)
                yield from (
                    (name, *piece)
                    for piece in _below(statement, put, statement.lineno, function.returns)
                )


def _below(
    node: ast.AST, put: Callable[[ast.AST], None], statement: int, returns: ast.expr | None
) -> Iterator[tuple[ast.expr | ast.stmt, Callable[[ast.AST], None], int]]:
    if isinstance(node, ast.stmt):
        statement = node.lineno
    if isinstance(node, ast.Return):
        node.returns = returns  # type: ignore[attr-defined]
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        returns = getattr(node, "returns", None)
    if isinstance(node, ast.expr | ast.stmt):
        yield node, put, statement
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return  # texts
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "args", "decorator_list", "slice") and not isinstance(
            node, ast.Call
        ):
            continue
        inner = value if isinstance(value, list) else [value]
        for number, child in enumerate(inner):
            if isinstance(child, ast.AST):
                place = _putting(node, field, number if isinstance(value, list) else None)
                yield from _below(child, place, statement, returns)


def _putting(node: ast.AST, field: str, number: int | None) -> Callable[[ast.AST], None]:
    def put(new: ast.AST) -> None:
        if number is None:
            setattr(node, field, new)
        else:
            getattr(node, field)[number] = new

    return put


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What may take the node's place, with the name of the operator of mutation."""
    match node:
        case ast.Compare(ops=operators):
            for number, operator in enumerate(operators):
                for other in _OTHER[type(operator)]:
                    yield (
                        "comparison",
                        _with(node, ops=[*operators[:number], other(), *operators[number + 1 :]]),
                    )
        case ast.BinOp(op=operator, left=left) if type(operator) in _OTHER and not _is_text(left):
            for other in _OTHER[type(operator)]:
                yield "arithmetic", _with(node, op=other())
        case ast.BoolOp(op=ast.And()):
            yield "and, or", _with(node, op=ast.Or())
        case ast.BoolOp():
            yield "and, or", _with(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation", operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "negation", operand
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield "constant", ast.Constant(value * 1.01 or 0.01)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield "min, max and others", _with(node, func=ast.Name(_NAMES[name], ast.Load()))
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in _NAMES:
            yield "min, max and others", _with(node, func=_with(function, attr=_NAMES[name]))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Expr(value=ast.Call()) if "super()" in ast.unparse(node):
            return  # without it a method would have another closure, which can't be planted
        case (
            ast.Expr(value=ast.Call())
            | ast.AugAssign()
            | ast.Raise()
            | ast.Continue()
            | ast.Break()
        ):
            yield "statement", ast.copy_location(ast.Pass(), node)
        case ast.Return(value=ast.expr() as value):
            yield from (
                ("returned value", _with(node, value=new)) for new in _returned(value, node)
            )


def _returned(value: ast.expr, node: ast.Return) -> Iterator[ast.expr]:
    """Another value of the type that the function is annotated with, where this is a number or a
    truth.
    """
    returns = getattr(node, "returns", None)
    match ast.unparse(returns) if returns is not None else "":
        case "float" | "Tensor" | "np.ndarray" | "Array" | "FloatArray":
            yield ast.BinOp(value, ast.Mult(), ast.Constant(1.01))
        case "int":
            yield ast.BinOp(value, ast.Add(), ast.Constant(1))
        case "bool":
            yield ast.UnaryOp(ast.Not(), value)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = deepcopy(node)
    for field, value in fields.items():
        setattr(new, field, value)
    return ast.copy_location(new, node)
