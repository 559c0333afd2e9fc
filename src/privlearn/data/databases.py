"""Tables of databases, by an address such as `sqlite:///clinic.db?table=patients`.

SQLite is read by Python's sqlite3, every other database by SQLAlchemy and a driver. Nothing but
SELECT is sent: one that asks for no row, for the names of the columns, and one for the columns that
are wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final
from urllib.parse import unquote

from privlearn.data import cells
from privlearn.errors import BadInput, first_line

#: The packages of drivers that are imported by another name, and those of kinds of databases.
_PACKAGES = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_DRIVERS = {"postgresql": " psycopg2-binary", "mysql": " mysqlclient", "mssql": " pyodbc"}
_TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
#: Rows that are read at once.
_CHUNK = 1 << 15
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]+)://")
#: Of a server: what stands between the scheme and the question mark.
_SERVER = re.compile(
    r"(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<place>(?:\[[^\]@]*\]|[^@/:\[]*)(?::[0-9]*)?(?:/[^@]*)?)"
)
_SELECT = re.compile(r"(?:select|with)\b\s", re.IGNORECASE)
_Read = TypeVar("_Read")
#: Sends a SELECT; gives the names of its columns, and its rows in parts.
_Send = Callable[[str], tuple[list[str], Iterator[Sequence[Any]]]]


@final
class Address(str):
    """Where a table of a database is.

    As text it is without its password and without what else only the driver needs. Messages,
    ledgers, files and copies hold this text.

    Attributes:
        scheme: the kind of database, and perhaps the driver.
        table: the name of a table, or of a view; None: a query is read.
        query: a SELECT, in its place.

    Raises:
        BadInput: it can't be read, names no table, or its query is not a single SELECT. Nothing of
            it is quoted.
    """

    scheme: str
    table: str | None
    query: str | None
    _connect: str
    _place: str
    _secrets: tuple[str, ...]

    def __new__(cls, text: str) -> Address:
        """Read an address; one that was read is given back as it is."""
        if isinstance(text, Address):
            return text
        visible, attributes = _parse(text)
        address = super().__new__(cls, visible)
        vars(address).update(attributes)
        return address

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, and what is written, have the text alone."""
        return str, (str.__str__(self),)

    @property
    def short(self) -> str:
        """What a card may call the data: the table and the database, without server and user."""
        database = self._place.rpartition("/")[2]
        return f"{self.table or 'a query'} of {database}"

    def says(self, error: BaseException) -> str:
        """What an error says of this database; its kind alone if it quotes what is secret."""
        text = str(error)
        secret = any(part in text for part in self._secrets)
        return type(error).__name__ if secret else first_line(error)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """What an address is as text, and its attributes.

    Raises:
        BadInput: as `Address`.
    """
    start = _SCHEME.match(text)
    if start is None:
        raise BadInput(_FORM)
    place, _, fields = text[start.end() :].partition("?")
    others, table, query = _read_fields(fields)
    password, visible = None, place
    if not place.startswith("/"):  # else no server is named, so no user
        server = _SERVER.fullmatch(place)
        if server is None:
            raise BadInput(_FORM)
        password = server["password"]
        visible = f"{server['user']}@{server['place']}" if server["user"] else server["place"]
    what = f"table={table}" if table is not None else f"query={query}"
    settings = [field.partition("=")[2] for field in others]
    # shorter ones (connect_timeout=3) are no secrets, and stand in many messages
    secrets = [part for part in (password, *(each for each in settings if len(each) > 3)) if part]
    return f"{start[0]}{visible}?{what}", {
        "scheme": start[1].lower(),
        "table": table,
        "query": query,
        "_connect": f"{start[0]}{place}{'?' * bool(others)}{'&'.join(others)}",
        "_place": visible,
        "_secrets": (*secrets, *map(unquote, secrets)),
    }


_FORM = (
    "the address of a database cannot be read: expected scheme://user:password@host/database?"
    "table=NAME, or sqlite:///FILE?table=NAME. In names and passwords write @ / : ? as %40 %2F %3A "
    "%3F"
)


def read_address(source: Any) -> Any:
    """What is given as a table, read as an address of a database if it is one.

    Raises:
        BadInput: as `Address`; or a path was made of an address.
    """
    if isinstance(source, Path) and re.match(r"[a-zA-Z][a-zA-Z0-9+.\-]+:/", source.as_posix()):
        raise BadInput("a path was made of an address: give the address of a database as text")
    if isinstance(source, str) and _SCHEME.match(source):
        return Address(source)
    return source


def hide_secrets(
    arguments: Sequence[str], ledgers: Collection[str] = ()
) -> tuple[list[str], dict[str, Address]]:
    """The arguments of a command line with addresses as they are shown; and the addresses by this
    text.

    Args:
        arguments: of the command line.
        ledgers: values among them that are addresses of ledgers, and of no table.

    Raises:
        BadInput: as `Address`, or two differ in what is hidden alone.
    """
    texts, addresses = [], dict[str, Address]()
    for argument in arguments:
        option, value = re.fullmatch(r"(--[^=]*=)?(.*)", argument, re.DOTALL).groups("")  # type: ignore[union-attr]
        is_table = _SCHEME.match(value) and re.search("@|[?&](?:table|query)=", value)
        if is_table and value not in ledgers:
            address = Address(value)
            if addresses.setdefault(str(address), address)._connect != address._connect:
                raise BadInput(
                    f"{address} was given twice, with other passwords or settings: give the same"
                )
            argument = option + address
        texts.append(argument)
    return texts, addresses


def _read_fields(fields: str) -> tuple[list[str], str | None, str | None]:
    """What stands behind the question mark: what the driver needs, and a table or a query. A query
    comes last, and is all that follows, as it is written.
    """
    before, is_query, query = re.fullmatch(  # type: ignore[union-attr]
        r"(.*?)(?:(?:^|(?<=&))(query=)(.*))?", fields, re.DOTALL
    ).groups("")
    parts = [part for part in before.split("&") if part]
    tables = [part.partition("=")[2] for part in parts if part.startswith("table=")]
    others = [part for part in parts if not part.startswith("table=")]
    if len(tables) + bool(is_query) != 1 or tables == [""]:
        raise BadInput(
            "the address of a database names no table, or several: add ?table=NAME or ?query=SELECT"
            " ... to it, a query last. A file is given by its path"
        )
    if not is_query:
        return others, unquote(tables[0]), None
    query = query.strip().removesuffix(";").rstrip()
    if ";" in query or not _SELECT.match(query):
        raise BadInput(
            "the query in the address of a database is not sent: expected a single SELECT, which "
            "begins with SELECT or WITH, as it is written, without a semicolon. For what needs "
            "more, make a view in the database: ?table=VIEW"
        )
    return others, None, query


def open_table(address: Address) -> tuple[list[str], Callable[[list[str], bool], Iterator[Any]]]:
    """The names of a table's columns, and what gives batches of Arrow with some of them.

    Rows come in the order in which the database gives them. They are not sorted by what they hold:
    one person's row would move the others, and some samplers take rows by their place.

    Raises:
        BadInput: it can't be read, or what reads it is not installed.
    """

    def columns(send: _Send, source: Callable[[str], str]) -> Iterator[list[str]]:
        yield send(source("*") + " WHERE 1 = 0")[0]

    def parts(
        names: list[str], send: _Send, source: Callable[[str], str], quote: Callable[[str], str]
    ) -> Iterator[Any]:
        _, rows = send(source(", ".join(map(quote, names))))
        for part in rows:
            yield _arrow_table(address, part, names)

    (known,) = _read(address, lambda send, source, quote: columns(send, source))

    def batches(names: list[str], whole: bool) -> Iterator[Any]:
        names = names or known[:1]
        tables = _read(address, partial(parts, names))
        if whole:
            yield _whole([*tables], names)
        else:
            yield from tables

    return known, batches


def _read(
    address: Address,
    work: Callable[[_Send, Callable[[str], str], Callable[[str], str]], Iterator[_Read]],
) -> Iterator[_Read]:
    """What `work` reads, of a connection that is open as long as it reads."""
    problem = None
    connect = _sqlite if address.scheme == "sqlite" else _alchemy
    try:
        with connect(address) as (send, quote):
            yield from work(send, partial(_select, address, quote), quote)
    except BadInput:
        raise
    except Exception as error:  # of the driver's own kinds
        problem = address.says(error)
    # Outside of the block: what it caught may hold the password.
    if problem is not None:
        raise BadInput(f"{_cut(address)} cannot be read: {problem[:120]}")


def _cut(address: Address) -> str:
    return address if len(address) <= 100 else f"{address[:97]}..."


def _select(address: Address, quote: Callable[[str], str], columns: str) -> str:
    """The one statement that there is, of these columns."""
    if address.query is not None:  # on a line of its own: it may end in a comment
        return f"SELECT {columns} FROM (\n{address.query}\n) {quote('rows_of_query')}"
    table = ".".join(map(quote, str(address.table).split(".")))
    return f"SELECT {columns} FROM {table}"


@contextmanager
def _sqlite(address: Address) -> Iterator[tuple[_Send, Callable[[str], str]]]:
    """SQLite by Python's own module, opened to read alone."""
    import sqlite3

    path = Path(address._connect.partition("?")[0].partition("://")[2][1:])
    if "?" in address._connect:
        raise BadInput(f"{_cut(address)} has other settings: SQLite takes table= or query= alone")
    if not path.is_file():
        raise BadInput(f"there is no database {path}: expected a file of SQLite", path=str(path))
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    def send(statement: str) -> tuple[list[str], Iterator[Sequence[Any]]]:
        try:
            cursor = connection.execute(statement)
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            names = [row[0] for row in connection.execute(_TABLES)]
            raise BadInput(
                f"{_cut(address)} cannot be read: {first_line(error)[:80]}. The database has "
                f"{', '.join(map(repr, names[:6])) or 'no tables'}"
                f"{f' and {len(names) - 6} others' * (len(names) > 6)}"
            ) from None
        return [each[0] for each in cursor.description], _parts(cursor)

    try:
        connection.set_authorizer(_reads_only)
        yield send, lambda name: '"' + name.replace('"', '""') + '"'
    finally:
        connection.close()


def _reads_only(action: int, *_: Any) -> int:
    """Whether a statement may do something, as SQLite asks: reading is allowed, nothing else."""
    import sqlite3

    reading = (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
    return sqlite3.SQLITE_OK if action in reading else sqlite3.SQLITE_DENY


@contextmanager
def _alchemy(address: Address) -> Iterator[tuple[_Send, Callable[[str], str]]]:
    """Any other database by SQLAlchemy, in a transaction that is rolled back."""
    try:
        import sqlalchemy
    except ImportError:
        raise BadInput(
            f"{_cut(address)} is read by SQLAlchemy, which is not installed: pip install "
            f"sqlalchemy{_DRIVERS.get(address.scheme, ', and a driver of the database')}"
        ) from None
    try:
        engine = sqlalchemy.create_engine(
            address._connect, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True
        )
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{_cut(address)} needs the driver {error.name}, which is not installed: pip install "
            f"{_PACKAGES.get(str(error.name), error.name)}, or name another one, as in "
            "postgresql+psycopg2://"
        ) from None
    except sqlalchemy.exc.NoSuchModuleError:
        raise BadInput(
            f"{_cut(address)} cannot be read: SQLAlchemy has no {address.scheme}. Expected a kind "
            "of database such as postgresql, mysql, mariadb, mssql or oracle"
        ) from None
    with engine.connect() as connection:
        options = {"stream_results": True, "max_row_buffer": _CHUNK, "postgresql_readonly": True}
        connection = connection.execution_options(**options)

        def send(statement: str) -> tuple[list[str], Iterator[Sequence[Any]]]:
            result = connection.exec_driver_sql(statement)
            return list(result.keys()), _parts(result)

        yield send, engine.dialect.identifier_preparer.quote_identifier
        connection.rollback()


def _parts(cursor: Any) -> Iterator[Sequence[Any]]:
    """Some rows at a time."""
    while rows := cursor.fetchmany(_CHUNK):
        yield rows


def _arrow_table(address: Address, rows: Sequence[Any], names: Sequence[str]) -> Any:
    import pyarrow as pa

    def refuse(name: str, row: int, cell: Any) -> BadInput:
        return BadInput(
            f"{_cut(address)}, a cell of column {name!r} holds a {type(cell).__name__}: expected "
            "numbers, text, booleans or dates; convert it, as in ?query=SELECT CAST(...), or take "
            "it out of the schema",
            column=name,
        )

    columns = [
        cells.array_of((row[at] for row in rows), partial(refuse, name))
        for at, name in enumerate(names)
    ]
    return pa.Table.from_arrays(columns, names=list(names))


def _whole(tables: Sequence[Any], names: Sequence[str]) -> Any:
    """All rows in one."""
    import pyarrow as pa

    columns = [_join_parts([table.column(at) for table in tables]) for at in range(len(names))]
    return pa.Table.from_arrays(columns, names=list(names))


def _join_parts(parts: Sequence[Any]) -> Any:
    """One column of its parts; of parts of several types the cells are read together."""
    import pyarrow as pa

    typed = [part for part in parts if not pa.types.is_null(part.type)]
    types = {part.type for part in typed}
    if not types:
        return pa.nulls(sum(map(len, parts)))
    if len(types) == 1:
        (only,) = types
        return pa.chunked_array([chunk for part in parts for chunk in part.cast(only).chunks], only)
    values = [cell for part in parts for cell in cells.values_of(part)]
    return cells.array_of(values, lambda row, cell: BadInput(f"a cell is a {type(cell).__name__}"))
