"""Planted bugs of data sets in a ledger: rows that go unrecognised, digests that tell of them,
budgets that mix, copies that are believed.
"""

from __future__ import annotations

from privlearn.core.accounting.ledgers import (
    addresses,
    anchors,
    data_versions,
    recognition,
    reservations,
)
from privlearn.core.accounting.ledgers.anchors import FileAnchor
from privlearn.core.accounting.ledgers.data_versions import DataVersion
from privlearn.core.accounting.ledgers.ledger_database import LedgerDatabase
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry
from privlearn.publishing import publish
from privlearn.runs import row_digests
from privlearn.runs.session import Session
from tests.support.mutant import Mutant, suite_of

KNOWN = "check_a_ledger_recognises_its_rows"
SECRET = "check_versions_tell_nothing_without_the_key"
COMPARED = "check_rows_are_compared_with_the_key_or_not_at_all"
REFUSED = "check_runs_are_refused_on_other_rows"
APART = "check_data_sets_have_ledgers_of_their_own"
ANCHORED = "check_an_older_copy_is_refused_by_its_anchor"
WAITING = "check_what_waits_has_an_owner_and_ends"
MUTANTS = [
    Mutant(
        "rows are known by their order",
        DataVersion.of,
        "np.sort(digests)",
        "digests",
        KNOWN,
    ),
    Mutant(
        "digests of rows have no key",
        data_versions._compute_hmac,
        "hmac.digest(key, ",
        "hmac.digest(b'', ",
        SECRET,
    ),
    Mutant(
        "slots without rows are alike",
        data_versions._least_of_slots,
        "least[:] = ordered[first[following]]",
        "least[slots.astype(int)] = ordered[first]",
        "check_what_versions_have_in_common_is_estimated",
    ),
    Mutant(
        "versions are not masked",
        data_versions._mask,
        "one ^ other",
        "one",
        SECRET,
    ),
    Mutant(
        "all versions have one mask",
        data_versions._mask,
        'seed = _compute_hmac(key, "mask", nonce)',
        'seed = _compute_hmac(key, "mask")',
        SECRET,
    ),
    Mutant(
        "a key that is gone is made anew",
        recognition.recognise,
        "create=not known or new_rows",
        "create=True",
        COMPARED,
    ),
    Mutant(
        "rows that can't be compared are believed",
        recognition._require_alike,
        "if share is None and known:",
        "if False:",
        COMPARED,
    ),
    Mutant(
        "the rows of another data set are taken",
        recognition._require_alike,
        "if same:",
        "if False:",
        KNOWN,
    ),
    Mutant(
        "a data set that its anchor knows is begun anew",
        LedgerDatabase.begin,
        "self._compare_with_anchor(execute)",
        "pass",
        ANCHORED,
    ),
    Mutant(
        "who runs what was reserved is not noted",
        RunEntry.taken_up,
        "by=_user(), ",
        "",
        WAITING,
    ),
    Mutant(
        "everybody may read the key",
        LedgerFile.key,
        "& 0o660",
        "| 0o004",
        COMPARED,
    ),
    Mutant(
        "other rows are changed ones",
        recognition.recognise,
        "if not new_rows:",
        "if False:",
        KNOWN,
    ),
    Mutant(
        "rows of other data sets are not compared",
        recognition.recognise,
        "if other is not None and other > _SHARED:",
        "if False:",
        KNOWN,
    ),
    Mutant(
        "changed rows are not noted",
        recognition.recognise,
        "state.versions = (*state.versions, version)[-MOST:]",
        "pass",
        KNOWN,
    ),
    Mutant(
        "a run says nothing of its rows",
        Session._require_data,
        "if self.ledger.path:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "rows that are fetched by index are not looked at",
        row_digests.digests_of,
        'looked_at.append(rows.identities(torch.tensor([place], device="cpu")))',
        "pass",
        REFUSED,
    ),
    Mutant(
        "a data set that was begun is the first one",
        LedgerDatabase._name,
        "if len(names) > 1:",
        "if False:",
        APART,
    ),
    Mutant(
        "charges go to another data set",
        LedgerDatabase.editing,
        "row = next_row(name, start, state, change)",
        "row = next_row(_names(execute)[0], start, state, change)",
        APART,
    ),
    Mutant(
        "an anchor is not compared",
        LedgerDatabase._compare_with_anchor,
        "heads = {} if self.anchor is None else self.anchor.heads()",
        "heads = {}",
        ANCHORED,
    ),
    Mutant(
        "the last line of an anchor is its latest row",
        anchors._read_heads,
        "int(number) > heads[name][0]",
        "True",
        ANCHORED,
    ),
    Mutant(
        "a ledger that is gone is begun anew",
        addresses.open_database,
        "if not there and database.anchor is not None and database.anchor.heads():",
        "if False:",
        ANCHORED,
    ),
    Mutant(
        "an anchor is not kept",
        LedgerDatabase.editing,
        "if self.anchor is not None and place != start:",
        "if False:",
        ANCHORED,
    ),
    Mutant(
        "an anchor that fails is passed over",
        FileAnchor.keep,
        "raise _explain_lost_head(str(self.path), str(error)) from error",
        "pass",
        ANCHORED,
    ),
    Mutant(
        "anybody begins what is reserved",
        LedgerState.waiting,
        'if entry.reserved_for in ("", _user())',
        "",
        WAITING,
    ),
    Mutant(
        "what waits never ends",
        LedgerState.current,
        "state.close(entry)",
        "pass",
        WAITING,
    ),
    Mutant(
        "a time without its zone is taken",
        reservations.write_expiry,
        "time.tzinfo is None or time <= datetime.now(UTC)",
        "False",
        WAITING,
    ),
    Mutant(
        "a certificate leaves out its ledger's head",
        publish.publish,
        "if (head := result.ledger.head)",
        "if (head := None)",
        "check_a_certificate_holds_its_ledgers_head",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
