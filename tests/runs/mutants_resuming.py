"""Planted bugs in checkpoints and ledger files: each must make a named check fail."""

from __future__ import annotations

from privlearn import _storage
from privlearn.core import streams
from privlearn.core.accounting import ledger
from privlearn.core.accounting.ledgers import addresses, ledger_rows, ledger_run, ledger_state
from privlearn.publishing import publish
from privlearn.runs import checkpoint, session
from tests.runs.checks_resuming import Stopped
from tests.support.mutant import Mutant, suite_of

WHOLE = "check_a_run_in_pieces_ends_where_the_whole_one_does"
PAPER = "check_a_ledger_file_is_never_behind"

PARTS, LOST = "self.parts.items():", "((n, p) for n, p in self.parts.items() if n != {!r}):"

MUTANTS = [
    Mutant(
        "batches are drawn on from where they were",
        session.TrainingSession._save,
        '"sampling": self._drawn_from or now["sampling"]',
        '"sampling": now["sampling"]',
        WHOLE,
    ),
    Mutant(
        "noise is fresh after an interruption",
        session.TrainingSession._save,
        '"initialisation": self.origin["initialisation"]',
        (
            '"initialisation": now["initialisation"], "noise": {"key": "00" * 16, "position": 0, '
            '"discrete": False}'
        ),
        "check_no_noise_goes_to_two_sums",
    ),
    Mutant(
        "an older copy of a run that has ended is gone on from",
        session.TrainingSession._begin,
        "recall(ended=self.ledger.has_ended)",
        "recall()",
        "check_an_older_copy_is_not_gone_on_from_once_the_run_has_ended",
    ),
    Mutant(
        "a step is taken twice",
        session.TrainingSession._restore,
        '(saved.plain["epoch"], saved.plain["step"])',
        '(saved.plain["epoch"], max(0, saved.plain["step"] - 1))',
        WHOLE,
    ),
    Mutant(
        "momentum is forgotten",
        session.TrainingSession._restore,
        PARTS,
        LOST.format("optimizer"),
        WHOLE,
    ),
    Mutant(
        "the moving clip is forgotten",
        session.TrainingSession._restore,
        PARTS,
        LOST.format("gradients"),
        WHOLE,
    ),
    Mutant(
        "dropout goes on with other numbers",
        streams.Streams.at,
        '("sampling", "initialisation", "views")',
        '("sampling", "initialisation", "initialisation")',
        WHOLE,
    ),
    Mutant(
        "the directions are released again",
        session.TrainingSession.fitted,
        "self._save(0)",
        "pass",
        "check_a_checkpoint_stands_before_anything_is_drawn",
    ),
    Mutant(
        "no checkpoint before the first draw",
        session.TrainingSession._begin,
        "self._save(0)",
        "None",
        "check_a_checkpoint_stands_before_anything_is_drawn",
    ),
    Mutant(
        "an interruption after an epoch gives the run up",
        session.TrainingSession.or_abandon,
        "except Exception",
        "except BaseException",
        "check_an_interruption_between_epochs_gives_nothing_up",
    ),
    Mutant(
        "other data are welcome",
        checkpoint.facts,
        "digest_of(*data, *([] if persons is None else [persons]))",
        '""',
        "check_a_checkpoint_of_another_run_is_refused",
    ),
    Mutant(
        "only the shape of the data counts",
        checkpoint.digest_of,
        "digest.update(tensor.detach()",
        "(lambda _: None)(tensor.detach()",
        "check_a_checkpoint_of_another_run_is_refused",
    ),
    Mutant(
        "other settings are welcome",
        checkpoint.require_same_run,
        "if then != now:",
        "if False:",
        "check_a_checkpoint_of_another_run_is_refused",
    ),
    Mutant(
        "everybody reads the keys",
        checkpoint.Checkpoint.write,
        "mode=0o600",
        "mode=0o644",
        "check_checkpoints_are_for_their_owner_only",
    ),
    Mutant(
        "damage goes unseen",
        checkpoint.unpacked,
        "if head != ",
        "if False and head != ",
        "check_damaged_checkpoints_are_refused",
    ),
    Mutant(
        "the keys stay behind",
        publish.publish,
        "result.checkpoint.delete()",
        "pass",
        "check_publishing_deletes_the_checkpoint",
    ),
    Mutant(
        "paper follows the draw", ledger_run.LedgerRun.pay, "max(times, self._block)", "0", PAPER
    ),
    Mutant(
        "nothing is set aside",
        ledger_run.LedgerRun.begin,
        "RunEntry.new(what, approved=approved)",
        "RunEntry.new(what, approved=type(approved)(()))",
        PAPER,
    ),
    Mutant(
        "what is set aside does not count",
        ledger_state.RunEntry.counts,
        "self.approved if self.open else self.spent",
        "self.spent",
        "check_two_runs_are_not_promised_the_same_budget",
    ),
    Mutant(
        "what was set aside is never given back",
        ledger_run.LedgerRun._close,
        "if known and known[0].open:",
        "if False:",
        "check_two_runs_are_not_promised_the_same_budget",
    ),
    Mutant(
        "a settled run forgets what it may have drawn before",
        ledger_run.LedgerRun._close,
        "max(self._used, self._least)",
        "self._used",
        "check_charges_on_paper_run_ahead_and_are_settled",
    ),
    Mutant(
        "a slip in a name begins a ledger without a limit",
        addresses.open_database,
        "budget is None and not create",
        "False",
        "check_a_slip_in_a_ledgers_name_is_no_new_ledger",
    ),
    Mutant(
        "a ledger shows its own process alone",
        ledger.Ledger._summary,
        "walk(self.event)",
        "walk(compose([]))",
        "check_a_ledger_shows_what_is_in_it",
    ),
    Mutant(
        "closed runs go on",
        ledger_run.LedgerRun.pay,
        "if not entry.open:",
        "if False:",
        "check_charges_on_paper_run_ahead_and_are_settled",
    ),
    Mutant(
        "resuming pays again",
        ledger_run.LedgerRun.resume,
        "self._start(entry, adjacency)",
        "self.begin(approved, adjacency, state.protects, entry.what)",
        "check_a_run_gone_on_with_is_paid_for_once",
    ),
    Mutant(
        "resuming pays nothing more",
        ledger_run.LedgerRun._start,
        "self._written = self._least = sum(times for _, times in walk(entry.spent))",
        "self._written = self._least = 10**9",
        PAPER,
    ),
    Mutant(
        "any ledger will do to go on",
        ledger.Ledger.resume,
        "if self.path or run is not None:",
        "if False:",
        "check_a_run_gone_on_with_is_paid_for_once",
    ),
    Mutant(
        "a forked ledger spends on",
        ledger.Ledger._require_own_process,
        "if self._process == os.getpid():",
        "if True:",
        "check_spending_in_files_is_never_forked",
    ),
    Mutant(
        "edits of a ledger go unseen",
        ledger_rows.follow,
        "if row.digest != compute_digest(row):",
        "if False:",
        "check_edited_ledgers_are_refused",
    ),
    Mutant(
        "files are written in place",
        _storage.write_durably,
        "draft = draft_of(path)",
        "draft = path",
        "check_a_full_disk_stops_before_the_draw",
    ),
    Mutant(
        "two processes go on with one run",
        checkpoint.Checkpoint.alone,
        "lock.acquire()",
        "pass",
        "check_one_process_at_a_time_goes_on_with_a_run",
    ),
    Mutant(
        "errors of the disk are ignored",
        _storage.write_durably,
        "except OSError as error:",
        "except OSError as error:\n        return",
        "check_a_full_disk_stops_before_the_draw",
    ),
    Mutant(
        "a resumed run needs its budget twice",
        session.TrainingSession._require_room,
        "if not (self.saved and self.ledger.path):",
        "if True:",
        "check_a_run_that_takes_the_whole_budget_is_gone_on_with",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[Stopped]
)
