"""Planted bugs in how tables of databases are read, each of which a named check must catch."""

from __future__ import annotations

from privlearn.data import databases
from privlearn.data.databases import Address
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "an address shows its password",
        databases._parse,
        """f"{server['user']}@{server['place']}" if""",
        """f"{server['user']}:{password}@{server['place']}" if""",
        "check_the_text_of_an_address_has_no_password",
    ),
    Mutant(
        "an address shows the settings of its driver",
        databases._parse,
        'f"{start[0]}{visible}?{what}", {',
        """f"{start[0]}{visible}?{'&'.join(others)}&{what}", {""",
        "check_a_password_is_in_nothing_that_a_command_leaves",
    ),
    Mutant(
        "copies of an address hold its password",
        Address.__reduce__,
        "str.__str__(self)",
        "self._connect",
        "check_the_text_of_an_address_has_no_password",
    ),
    Mutant(
        "a driver's words are told with the password",
        Address.says,
        "part in text for part in self._secrets",
        "part in text for part in ()",
        "check_a_password_is_in_no_error",
    ),
    Mutant(
        "a password is looked for as it is written in the address alone",
        databases._parse,
        "(*secrets, *map(unquote, secrets))",
        "tuple(secrets[:0])",
        "check_a_password_is_in_no_error",
    ),
    Mutant(
        "an error of the driver comes along",
        databases._read,
        "problem = address.says(error)",
        "raise BadInput(address.says(error)) from error",
        "check_a_password_is_in_no_error",
    ),
    Mutant(
        "a server's address may be of any form",
        databases._parse,
        """server = _SERVER.fullmatch(place)
        if server is None:""",
        """server = _SERVER.fullmatch(place) or {"password": None, "user": None, "place": place}
        if server is None:""",
        "check_a_password_is_in_no_error",
    ),
    Mutant(
        "a path that was made of an address is quoted",
        databases.read_address,
        "isinstance(source, Path)",
        "isinstance(source, bytes)",
        "check_a_password_is_in_no_error",
    ),
    Mutant(
        "a command line keeps its passwords",
        databases.hide_secrets,
        "argument = option + address",
        "pass",
        "check_a_password_is_in_nothing_that_a_command_leaves",
    ),
    Mutant(
        "a query may be several statements",
        databases._read_fields,
        '";" in query or',
        "",
        "check_only_selects_of_wanted_columns_are_sent",
    ),
    Mutant(
        "a query may be any statement",
        databases._read_fields,
        "or not _SELECT.match(query)",
        "",
        "check_only_selects_of_wanted_columns_are_sent",
    ),
    Mutant(
        "all columns are asked for",
        databases.open_table,
        'source(", ".join(map(quote, names)))',
        'source("*")',
        "check_only_selects_of_wanted_columns_are_sent",
    ),
    Mutant(
        "all rows are asked for the names of columns",
        databases.open_table,
        '" WHERE 1 = 0"',
        '""',
        "check_only_selects_of_wanted_columns_are_sent",
    ),
    Mutant(
        "a database is opened to write",
        databases._sqlite,
        "mode=ro",
        "mode=rw",
        "check_a_connection_can_only_read",
    ),
    Mutant(
        "any statement is allowed",
        databases._reads_only,
        "sqlite3.SQLITE_DENY",
        "sqlite3.SQLITE_OK",
        "check_a_connection_can_only_read",
    ),
    Mutant(
        "rows are sorted by what they hold",
        databases._whole,
        "return pa.Table.from_arrays(columns, names=list(names))",
        "return pa.Table.from_arrays(columns, names=list(names)).sort_by(names[0])",
        "check_rows_of_a_database_are_not_sorted",
    ),
    Mutant(
        "all rows are fetched at once",
        databases._parts,
        "fetchmany(_CHUNK)",
        "fetchmany(10**9)",
        "check_some_rows_of_a_database_are_in_memory_at_once",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
