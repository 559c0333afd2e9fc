"""Planted bugs of ledgers on a server: writers at once, charges that are not on the disk, rows that
can be changed, connections that are shared or lost.
"""

from __future__ import annotations

from privlearn.core.accounting.ledgers import ledger_server
from privlearn.core.accounting.ledgers.ledger_database import LedgerDatabase
from privlearn.core.accounting.ledgers.ledger_server import LedgerServer
from tests.accounting import checks_ledger_server
from tests.support.mutant import Mutant, suite_of

ALONE = "check_writers_on_a_server_are_alone"
DISK = "check_a_charge_on_a_server_is_on_the_disk_first"
EDITED = "check_a_ledger_on_a_server_that_was_edited_is_refused"
LOST = "check_a_lost_connection_loses_no_charge"
ROLES = "check_analysts_append_and_auditors_read"
ROWS = "check_rows_on_a_server_are_appended_and_never_changed"
SECRETS = "check_addresses_of_servers_show_no_secret"
BEGIN = "self._begin(_WRITE, check=check)"
MUTANTS = [
    Mutant(
        "writers take no lock",
        LedgerServer._writing,
        BEGIN,
        'self._begin(_WRITE.partition("SELECT")[0], check=check)',
        ALONE,
    ),
    Mutant(
        "writers see what was there before they waited",
        LedgerServer._writing,
        BEGIN,
        'self._begin(_WRITE.replace("READ COMMITTED", "SERIALIZABLE"), check=check)',
        ALONE,
    ),
    Mutant(
        "commits on a server do not wait for the disk",
        LedgerServer._writing,
        BEGIN,
        'self._begin(_WRITE.replace("_commit = on", "_commit = off"), check=check)',
        DISK,
    ),
    Mutant(
        "a server that loses charges is trusted",
        ledger_server._require_usual,
        'if fsync != "on":',
        "if False:",
        DISK,
    ),
    Mutant(
        "rows may be updated",
        ledger_server._statements_of_schema,
        "if part.strip()",
        'if part.strip() and "changes_are_kept" not in part',
        ROWS,
    ),
    Mutant(
        "tables may be truncated",
        ledger_server._statements_of_schema,
        "if part.strip()",
        'if part.strip() and "not_truncated" not in part',
        ROWS,
    ),
    Mutant(
        "rows need not follow the head",
        ledger_server._statements_of_schema,
        "if part.strip()",
        'if part.strip() and "changes_follow_the_last_one" not in part',
        ROWS,
    ),
    Mutant(
        "everyone may call what acts for the owner",
        ledger_server._statements_of_schema,
        "if part.strip()",
        'if part.strip() and "REVOKE" not in part',
        ROLES,
    ),
    Mutant(
        "analysts may update rows",
        checks_ledger_server.roles,
        'ROLES.read_text("utf-8")',
        'ROLES.read_text("utf-8").replace("SELECT, INSERT", "SELECT, UPDATE, INSERT")',
        ROLES,
    ),
    Mutant(
        "analysts begin data sets with budgets of their own",
        checks_ledger_server.roles,
        'ROLES.read_text("utf-8")',
        'ROLES.read_text("utf-8").replace("SELECT ON privlearn.head,", '
        '"SELECT, INSERT ON privlearn.head,")',
        ROLES,
    ),
    Mutant(
        "auditors may read the key",
        checks_ledger_server.roles,
        'ROLES.read_text("utf-8")',
        'ROLES.read_text("utf-8").replace("privlearn.head TO", "privlearn.head, privlearn.data_key TO")',  # noqa: E501
        ROLES,
    ),
    Mutant(
        "triggers that are gone from a server go unseen",
        ledger_server._require_usual,
        "definitions != _usual_definitions()",
        "False",
        EDITED,
    ),
    Mutant(
        "tables that lose or hide rows are trusted",
        ledger_server._require_usual,
        "not plain or",
        "",
        EDITED,
    ),
    Mutant(
        "triggers may be off for a session",
        ledger_server._require_usual,
        'if role != "origin":',
        "if False:",
        EDITED,
    ),
    Mutant(
        "any version on a server is read",
        ledger_server._require_usual,
        "if version != _VERSION:",
        "if False:",
        EDITED,
    ),
    Mutant(
        "the head is not compared",
        LedgerDatabase._read,
        "if tuple(head) != (place.number, place.digest): raise",
        "if False: raise",
        EDITED,
    ),
    Mutant(
        "a connection is kept through a fork",
        LedgerServer._connection,
        "held.process == os.getpid()",
        "True",
        "check_a_connection_is_not_carried_through_a_fork",
    ),
    Mutant(
        "a lost connection is used again",
        LedgerServer._connection,
        "and not held.connection.closed",
        "",
        LOST,
    ),
    Mutant(
        "a connection that was lost meanwhile ends the run",
        LedgerServer._begin,
        "if not connection.closed:",
        "if True:",
        LOST,
    ),
    Mutant(
        "a commit without an answer counts",
        LedgerServer._commit,
        "except psycopg.Error as error:",
        "except psycopg.OperationalError:\n        return\n    except psycopg.Error as error:",
        LOST,
    ),
    Mutant(
        "a change that was rolled back counts",
        LedgerServer._commit,
        'if done.statusmessage != "COMMIT":',
        "if False:",
        "check_a_change_that_was_rolled_back_raises",
    ),
    Mutant(
        "all fields of an address are shown",
        ledger_server._write_visible,
        "for name in _VISIBLE if name in fields",
        "for name in fields",
        SECRETS,
    ),
    Mutant(
        "what may be a password is taken for a server",
        ledger_server._read_address,
        'if "@" in others or server.count("@") > 1:',
        "if False:",
        SECRETS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
