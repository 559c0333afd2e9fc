"""Planted bugs of large ledger files: promises that are lost, edits that go unseen, charges that
are forgotten.
"""

from __future__ import annotations

from privlearn.core.accounting import events
from privlearn.core.accounting.ledgers import ledger_file, ledger_log, ledger_state
from tests.support.mutant import Mutant, suite_of

EDITED = "check_large_ledgers_that_were_edited_or_cut_are_refused"
DONE = "check_what_is_appended_reads_as_what_was_done"
CRASHED = "check_a_crash_at_any_byte_loses_nothing_promised"
OTHERS = "check_what_others_append_is_seen"
DISK = "check_a_large_ledgers_charge_is_on_the_disk_first"
SIZE = "check_large_files_stay_small_enough_to_be_read"
ADDED = "check_charges_one_by_one_add_up_to_all_of_them"
MUTANTS = [
    Mutant("lost lines go unseen", ledger_log.read_on, "if not intact:", "if False:", EDITED),
    Mutant(
        "edited lines are believed",
        ledger_log._body,
        "text == whole",
        "len(text) == len(whole)",
        EDITED,
    ),
    Mutant(
        "lines do not know what came before",
        ledger_log._chain,
        "before.encode() + body",
        "body",
        EDITED,
    ),
    Mutant(
        "edited marks are believed",
        ledger_log._read_mark,
        "mark == _mark(length, digest)",
        "True",
        CRASHED,
    ),
    Mutant(
        "promises are not noted",
        ledger_log.append,
        "_put(file, _older(file.read(HEAD)), _mark(end.length, end.digest))",
        "pass",
        EDITED,
    ),
    Mutant(
        "the newest promise is overwritten with an older one",
        ledger_log.append,
        "_mark(end.length, end.digest)",
        "_mark(start, end.digest)",
        EDITED,
    ),
    Mutant(
        "one mark alone is believed",
        ledger_log._read_longer_mark,
        "max(_read_mark(head[_WIDTH : 2 * _WIDTH]), ",
        "max((0, ''), ",
        CRASHED,
    ),
    Mutant(
        "a line that was cut off stops everything",
        ledger_log.read_on,
        "            break",
        "            raise ValueError",
        CRASHED,
    ),
    Mutant(
        "lines go after what a crash left",
        ledger_log.append,
        "start = end.length - len(text)",
        "start = path.stat().st_size",
        CRASHED,
    ),
    Mutant(
        "lines of others are not read",
        ledger_file.LedgerFile._read,
        "_keep(_apply(state, changes), place",
        "_keep(state, place",
        OTHERS,
    ),
    Mutant(
        "a line is not brought to the disk",
        ledger_log._put,
        "os.fsync(file.fileno())",
        "pass",
        DISK,
    ),
    Mutant(
        "errors of the disk pass for charges",
        ledger_log.append,
        "except OSError as error:",
        "except OSError as error:\n        return",
        DISK,
    ),
    Mutant(
        "lines grow past what is read",
        ledger_file.LedgerFile._append,
        "min(2 * document, _LARGEST)",
        "2 * document",
        SIZE,
    ),
    Mutant(
        "large files are never written as a whole",
        ledger_file.LedgerFile._append,
        "min(2 * document, _LARGEST)",
        "_LARGEST",
        SIZE,
    ),
    Mutant(
        "the second charge of an edit is forgotten",
        ledger_file._change,
        "for one in noted]",
        "for one in noted[1:]]",
        DONE,
    ),
    Mutant(
        "what was summed up is not written",
        ledger_file._change,
        (
            "if ids[: len(before.entries)] != [entry.id for entry in before.entries] or "
            "len({*ids}) < len(ids):"
        ),
        "if False:",
        "check_very_many_entries_of_a_large_ledger_are_summed_up",
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
