"""Planted bugs of ledgers in a database: promises that are lost, edits that go unseen, charges that
are forgotten.
"""

from __future__ import annotations

from privlearn.core.accounting import events
from privlearn.core.accounting.ledgers import (
    former_files,
    ledger_json,
    ledger_rows,
    ledger_state,
)
from privlearn.core.accounting.ledgers.ledger_database import LedgerDatabase
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from tests.support.mutant import Mutant, suite_of

EDITED = "check_databases_that_were_edited_or_cut_are_refused"
FORMER = "check_former_files_that_were_edited_or_cut_are_refused"
MIGRATED = "check_ledgers_of_version_0_1_are_gone_on_with"
DONE = "check_what_is_appended_reads_as_what_was_done"
OTHERS = "check_what_others_append_is_seen"
DISK = "check_a_charge_is_on_the_disk_first"
FULL = "check_a_full_disk_charges_nothing"
ADDED = "check_charges_one_by_one_add_up_to_all_of_them"
MUTANTS = [
    Mutant(
        "rows that nothing rests on are not looked at",
        LedgerDatabase.check,
        "_, place = follow(place, row)",
        "pass",
        "check_edits_of_rows_that_nothing_rests_on_are_noticed",
    ),
    Mutant(
        "triggers that are gone go unseen",
        LedgerFile._connection,
        "if _triggers_of(connection) != _usual_triggers():",
        "if False:",
        "check_edits_of_rows_that_nothing_rests_on_are_noticed",
    ),
    Mutant(
        "a row may be missing",
        ledger_rows.follow,
        "if (number, row.previous) != (place.number + 1, place.digest):",
        "if False:",
        EDITED,
    ),
    Mutant(
        "edited rows are believed",
        ledger_rows.follow,
        "if row.digest != compute_digest(row):",
        "if False:",
        EDITED,
    ),
    Mutant(
        "digests leave out what a row says of itself",
        ledger_rows.compute_digest,
        "row[:-1]",
        "[row.data, row.number, row.content, row.previous]",
        EDITED,
    ),
    Mutant(
        "last rows that are gone go unseen",
        LedgerDatabase._read,
        "if tuple(head) != (place.number, place.digest): raise",
        "if False: raise",
        EDITED,
    ),
    Mutant(
        "any database is a ledger",
        LedgerFile._connection,
        "if application != _APPLICATION:",
        "if False:",
        EDITED,
    ),
    Mutant(
        "any version is read",
        LedgerFile._connection,
        "if version != VERSION:",
        "if False:",
        EDITED,
    ),
    Mutant(
        "a file that was moved is charged",
        LedgerFile._connection,
        "if self._local.file != _file_of(self.path):",
        "if False:",
        OTHERS,
    ),
    Mutant(
        "rows of others are not read",
        ledger_rows.read_rows,
        "changes.append(value)",
        "pass",
        OTHERS,
    ),
    Mutant(
        "commits do not wait for the disk",
        LedgerFile._connection,
        "PRAGMA synchronous = EXTRA",
        "PRAGMA synchronous = OFF",
        DISK,
    ),
    Mutant(
        "commits wait for a drive's cache alone",
        LedgerFile._connection,
        "PRAGMA fullfsync = ON",
        "PRAGMA fullfsync = OFF",
        DISK,
    ),
    Mutant(
        "a charge that was not written counts",
        LedgerFile.writing,
        "except sqlite3.Error as error:\n"
        "            raise self._explain_failed_write(error) from error",
        "except sqlite3.Error as error:\n            pass",
        FULL,
    ),
    Mutant(
        "the whole is never written again",
        ledger_rows.next_row,
        "place.since + len(content) > 2 * place.whole",
        "False",
        DONE,
    ),
    Mutant(
        "the second charge of an edit is forgotten",
        ledger_json.change_between,
        "for one in noted]",
        "for one in noted[1:]]",
        DONE,
    ),
    Mutant(
        "what was summed up is not written",
        ledger_json.change_between,
        (
            "if ids[: len(before.entries)] != [entry.id for entry in before.entries] or "
            "len({*ids}) < len(ids):"
        ),
        "if False:",
        "check_very_many_entries_of_a_database_are_summed_up",
    ),
    Mutant(
        "reading a former file changes it",
        LedgerFile._read_former,
        "if not self._is_former():",
        "self._migrate()\n        if not self._is_former():",
        MIGRATED,
    ),
    Mutant(
        "a former file is thrown away",
        LedgerFile._migrate,
        "os.link(self.path, former)",
        "pass",
        MIGRATED,
    ),
    Mutant(
        "digests of former files are not compared",
        former_files._read_document,
        'if data.get("digest") != digest(body):',
        "if False:",
        FORMER,
    ),
    Mutant(
        "lines of a former file may be missing",
        former_files._read_lines,
        "if not intact:",
        "if False:",
        FORMER,
    ),
    Mutant(
        "what is changed as a whole is noted as a charge",
        ledger_state.LedgerState.put,
        "self.changes[entry.id] = None",
        "self.changes.setdefault(entry.id, [])",
        DONE,
    ),
    Mutant(
        "a charge is noted beside the whole",
        ledger_state.LedgerState._note,
        "if noted is not None:",
        "if noted is None:\n        self.changes[id] = noted = []\n    if True:",
        DONE,
    ),
    Mutant(
        "counts replace each other",
        events.added,
        "times + (there.count if isinstance(there, Repeated) else 1)",
        "times",
        ADDED,
    ),
    Mutant(
        "a charge like the last one replaces it",
        events.appended,
        "compose([*before.events[-1:], event])",
        "compose([event])",
        ADDED,
    ),
    Mutant(
        "counting trusts an edit that was given up",
        ledger_state.LedgerState.charge,
        "if counted is not entry.spent or len(places) != len(counted.events):",
        "if counted is not entry.spent:",
        ADDED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
