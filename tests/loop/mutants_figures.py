"""Planted bugs in what becomes of private figures: a named check must catch each."""

from __future__ import annotations

from privlearn import _checks, _figures
from privlearn.opacus import recorded
from privlearn.runs import checkpoint, optimizers, session, traced_settings
from tests.support.mutant import Mutant, suite_of

SCHEDULER = "check_a_private_figure_in_a_scheduler_claims_nothing"
TRACED = "check_a_plain_number_of_a_private_figure_is_traced_into_a_scheduler"
PUBLIC = "check_a_public_metric_may_steer_a_scheduler"
COMPARED = "check_comparing_a_private_figure_is_warned_of_and_decides_nothing"
SET, STEPS = "check_a_private_figure_sets_nothing", "check_private_figures_stay_out_of_steps"
SCRIPT = "check_a_scripts_losses_are_private_figures"
SEVERAL = "check_several_runs_under_way_note_a_use_and_one_warns_of_it"
DELETED = "check_a_run_whose_folder_was_deleted_lets_others_compare"
RESTART = "check_a_restart_forgets_no_use_of_a_private_figure"

MUTANTS = [
    Mutant(
        "arithmetic forgets that a figure is private",
        _figures.as_figures,
        "figures = private_figures(result)",
        "return result",
        SCHEDULER,
    ),
    Mutant(
        "NumPy's functions are not followed",
        _figures.PrivateFigure.__array_ufunc__,
        "return followed(lambda",
        "return (lambda function, name, *values: function(*plain(values)))(lambda",
        SCHEDULER,
    ),
    Mutant(
        "a scheduler may take a private figure",
        optimizers.Descent.figure_used,
        "isinstance(use.by, torch.optim.Optimizer | LRScheduler)",
        "False",
        SCHEDULER,
    ),
    Mutant(
        "runs do not hear of uses",
        optimizers.Descent.__init__,
        "watch_figures(self)",
        "pass",
        SCHEDULER,
    ),
    Mutant("plain numbers are not noted", _figures.as_figures, "note(PLAIN)", "pass", TRACED),
    Mutant(
        "a scheduler that is given a number passes",
        traced_settings.SettingsTrace._judge_call,
        "return NUMBER",
        "return str()",
        TRACED,
    ),
    Mutant(
        "a scheduler that leaves a rate as it is passes",
        traced_settings.SettingsTrace.note_read,
        "group.deny(name, reason)",
        "pass",
        TRACED,
    ),
    Mutant(
        "settings are not looked at between steps",
        optimizers.Descent.step,
        "self._look_at_settings()",
        "pass",
        TRACED,
    ),
    Mutant(
        "every scheduler counts as given a number",
        traced_settings.SettingsTrace._judge_call,
        "if _select_declared(arguments) or",
        "if arguments and",
        PUBLIC,
    ),
    Mutant(
        "what is shown counts as used",
        _figures.as_figures,
        "isinstance(result, str)",
        "False",
        SCRIPT,
    ),
    Mutant("comparisons are not noted", _figures.as_figures, "note(COMPARED)", "pass", COMPARED),
    Mutant(
        "a run may be left early after a use",
        session.TrainingSession.facts_of_leaving,
        "if self.figure_use and not self.complete:",
        "if False:",
        COMPARED,
    ),
    Mutant(
        "rates that are set by hand are not looked at",
        traced_settings.SettingsTrace.note_write,
        "group.deny(name, BY_HAND)",
        "group.accept(name, value)",
        COMPARED,
    ),
    Mutant(
        "the run's own rates count as set by hand",
        traced_settings.SettingsTrace.in_a_step,
        "self.listens, self._call = False, None",
        "self._call = None",
        COMPARED,
    ),
    Mutant(
        "a place is warned of again and again",
        optimizers.Descent.figure_used,
        "self._places.add(use.place)",
        "pass",
        COMPARED,
    ),
    Mutant(
        "a rate may be a private figure",
        optimizers.Descent._look_at_settings,
        "isinstance(value, PrivateFigure)",
        "False",
        SET,
    ),
    Mutant(
        "plans take private figures",
        _checks.require_public,
        "isinstance(value, PrivateFigure)",
        "False",
        SET,
    ),
    Mutant(
        "an error quotes a private figure",
        _checks.require_public,
        "{name} is a private figure",
        "{name} is a private figure {value:.3f}",
        SET,
    ),
    Mutant(
        "a loss may look at private figures",
        optimizers.Descent.figure_used,
        "if self._stepping or",
        "if",
        STEPS,
    ),
    Mutant(
        "settings may change in a step",
        optimizers.Descent.at,
        "[*map(id, now)] !=",
        "[*map(id, self._values)] !=",
        STEPS,
    ),
    Mutant(
        "numbers of a script's tensors are plain",
        recorded._private,
        "return as_figures(out, name)",
        "return out",
        SCRIPT,
    ),
    Mutant(
        "tensors leave a script's tape unnoticed",
        recorded._private,
        "note(PLAIN, silent=True)",
        "pass",
        SCRIPT,
    ),
    Mutant(
        "a script's comparisons are not warned of",
        recorded._private,
        "leaf.dtype is torch.bool",
        "False",
        SCRIPT,
    ),
    Mutant(
        "the mark is lost between checkpoints",
        session.TrainingSession._restore,
        "self.file.marks() if self.keeps else {}",
        "{}",
        RESTART,
    ),
    Mutant(
        "the mark is not written down",
        session.TrainingSession._mark,
        "self.file.mark(",
        "str(",
        RESTART,
    ),
    Mutant(
        "a run whose folder was deleted stops the others",
        checkpoint.Checkpoint.mark,
        "self.path.parent.is_dir()",
        "True",
        DELETED,
    ),
    Mutant(
        "a restart forgets where a figure was used",
        session.TrainingSession._restore,
        'self.figure_use = marks.get("figure_use", "")',
        "pass",
        RESTART,
    ),
    Mutant(
        "marks outlive their run",
        checkpoint.Checkpoint.delete,
        "self._notes, self._marks,",
        "self._notes,",
        RESTART,
    ),
    Mutant(
        "every run under way warns of a use",
        _figures.note,
        "warn=not warned",
        "warn=True",
        SEVERAL,
    ),
    Mutant(
        "only the run that warns notes a use",
        _figures.note,
        "warned |= watch.figure_used(use, warn=not warned)",
        "warned = warned or watch.figure_used(use, warn=True)",
        SEVERAL,
    ),
    Mutant(
        "a run that can claim nothing is taken to have warned",
        session.TrainingSession.claim_nothing,
        "return False",
        "return warn",
        SEVERAL,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
