"""Planted bugs in what may set a learning rate: a named check must catch each."""

from __future__ import annotations

from privlearn.runs import optimizers, public_numbers, readings, session, traced_settings
from tests.support.mutant import Mutant, suite_of

UNSEEN = "check_an_unseen_private_number_in_a_scheduler_claims_nothing"
HAND = "check_rates_that_are_set_by_hand_claim_nothing"
TURN = "check_a_private_number_decides_no_turn_of_a_scheduler"
READ = "check_what_a_scheduler_reads_stays_what_it_was"
FUNCTION = "check_no_function_that_is_given_a_scheduler_counts_as_one"
HOOKS = "check_hooks_of_an_optimizer_set_no_rates"
COUNTS = "check_schedulers_that_count_are_published"
NUMBERS = "check_numbers_that_count_are_published"
DECLARED = "check_numbers_that_were_declared_public_steer"
RESTART = "check_a_restart_forgets_no_declaration"
SCRIPT = "check_a_scripts_rates_follow_no_private_number"

TRACE, SETTINGS = traced_settings.SettingsTrace, traced_settings.TracedSettings

MUTANTS = [
    Mutant(
        "settings are looked at only once a private figure was seen to be read",
        optimizers.Descent._look_at_settings,
        "if denial := self.trace.denial(clean=not use):",
        "if (denial := self.trace.denial(clean=not use)) and use:",
        UNSEEN,
    ),
    Mutant(
        "a script in another form may set rates",
        TRACE.note_write,
        "group.deny(name, BY_HAND)",
        "group.accept(name, value)",
        SCRIPT,
    ),
    Mutant(
        "any number counts steps",
        TRACE._counts,
        "bool(history.counts)",
        "True",
        UNSEEN,
    ),
    Mutant(
        "a number may count by another rule each time",
        TRACE._counts,
        "history.counts = rules if history.counts is None else history.counts & rules",
        "history.counts = rules",
        NUMBERS,
    ),
    Mutant(
        "parts of epochs do not count",
        TRACE._counts,
        "(taken + offset) / epoch",
        "math.nan",
        NUMBERS,
    ),
    Mutant(
        "writes that no group sees are not looked for",
        TRACE.denial,
        "group.compare()",
        "pass",
        HAND,
    ),
    Mutant(
        "a state that is loaded may hold any settings",
        TRACE._are_in_place,
        'group.keys() - {"params"} != traced.known.keys() or not all(',
        "False and not all(",
        HAND,
    ),
    Mutant(
        "a group that a script held may be written to",
        SETTINGS.compare,
        "self[name] = value",
        "pass",
        HAND,
    ),
    Mutant(
        "a scheduler may be stepped at any time",
        TRACE.denial,
        "not history.cadence.is_regular(taken)",
        "False",
        TURN,
    ),
    Mutant(
        "a scheduler may begin at any time",
        traced_settings.Cadence.is_regular,
        "return not calls or taken - self._start <= self._epoch",
        "return True",
        TURN,
    ),
    Mutant(
        "a scheduler may skip turns",
        traced_settings.Cadence.is_regular,
        "return calls == (0 if since % self._gap else self._times)",
        "return calls in (0, self._times)",
        TURN,
    ),
    Mutant(
        "a scheduler may be stepped twice",
        traced_settings.Cadence.is_regular,
        "return calls == (0 if since % self._gap else self._times)",
        "return bool(calls) == (since % self._gap == 0)",
        TURN,
    ),
    Mutant(
        "a scheduler may be made in the midst of a run",
        TRACE._judge_call,
        "else LATE",
        "else str()",
        TURN,
    ),
    Mutant(
        "what schedulers read may change",
        traced_settings._History.reads_the_same,
        "return now == self.readings",
        "return True",
        READ,
    ),
    Mutant(
        "what functions captured is not looked at",
        readings._spell_function,
        "parts.append(cell.cell_contents)",
        "parts.append(None)",
        READ,
    ),
    Mutant(
        "attributes of what functions captured are not looked at",
        readings._parts,
        'attributes = getattr(value, "__dict__", {})',
        "attributes: dict[str, Any] = {}",
        READ,
    ),
    Mutant(
        "settings of schedulers are not looked at",
        readings.readings_of,
        "for value in (settings, *functions)",
        "for value in functions",
        READ,
    ),
    Mutant(
        "schedulers in schedulers are not looked at",
        readings.readings_of,
        "*map(readings_of, inner)",
        "",
        READ,
    ),
    Mutant(
        "a function that is given a scheduler counts as one",
        traced_settings._is_method,
        "return isinstance(of, kind) and any(",
        "return isinstance(of, kind) or False and any(",
        FUNCTION,
    ),
    Mutant(
        "within a step anybody may set rates",
        SETTINGS.__setitem__,
        "if self.trace.listens or self.trace.is_foreign(sys._getframe(1)):",
        "if self.trace.listens:",
        HOOKS,
    ),
    Mutant(
        "what was set within a step is forgotten",
        optimizers.Descent.step,
        "self._session.claim_nothing(self.trace.denied_in_a_step)",
        "pass",
        HOOKS,
    ),
    Mutant(
        "an optimizer's own settings count as set by hand",
        TRACE.is_foreign,
        "return not _is_method(frame, torch.optim.Optimizer)",
        "return True",
        HOOKS,
    ),
    Mutant(
        "rates that schedulers change in place count as set by hand",
        TRACE.note_read,
        "group.accept(name, value)",
        "pass",
        COUNTS,
    ),
    Mutant(
        "a private figure can be declared public",
        public_numbers.declare_public,
        "if isinstance(number, PrivateFigure):",
        "if False:",
        DECLARED,
    ),
    Mutant(
        "certificates do not state what was declared",
        session.TrainingSession.facts_of_leaving,
        "if self.declared_rates:",
        "if False:",
        DECLARED,
    ),
    Mutant(
        "a declaration outlives a change by hand",
        SETTINGS.deny,
        "self.unknown.setdefault(name, reason)",
        "name in self.known or self.unknown.setdefault(name, reason)",
        DECLARED,
    ),
    Mutant(
        "a restart forgets declarations",
        session.TrainingSession._restore,
        'self.declared_rates = marks.get("declared_rates", "").splitlines()',
        "pass",
        RESTART,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
