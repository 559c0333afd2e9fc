"""Planted bugs in what is noticed beside a private run: a named check must catch each."""

from __future__ import annotations

from privlearn.core import streams
from privlearn.core.mechanisms import release
from privlearn.publishing import model, publish
from privlearn.runs import checkpoint, optimizers, repeats, result, session
from privlearn.training import after_training, run
from tests.support.mutant import Mutant, suite_of

OWN, TAKEN = (
    "check_a_step_on_gradients_of_ones_own_is_refused",
    "check_opacus_calls_whose_result_was_not_taken_are_refused",
)
CHANGED = "check_weights_that_something_else_changed_are_not_published"
SAME_SUM = "check_a_repeated_step_has_the_same_sum"
SCALED, NOTED = (
    "check_a_scaled_loss_repeats_no_step",
    "check_what_noise_is_for_is_noted_before_it_is_drawn",
)
TOLD = "check_a_noted_sum_is_told_from_any_other"
SECOND, REPEATED = (
    "check_a_second_run_on_the_same_weights_claims_nothing_or_both",
    "check_a_repeated_step_is_the_same_step",
)
LOADED = "check_published_weights_that_are_trained_further_are_warned_of"
AVERAGED = "check_averaged_and_scaled_weights_are_the_runs_own"
INTERRUPTED = "check_an_interruption_forgets_no_change_and_is_no_earlier_run"

MUTANTS = [
    Mutant(
        "gradients of a loop beside the run are taken",
        optimizers.Descent.refuse_foreign_gradients,
        "if any(parameter.grad is not None for parameter in self._parameters):",
        "if False:",
        OWN,
    ),
    Mutant(
        "a run that has not begun refuses nothing",
        optimizers.Descent.refuse_foreign_gradients,
        '== "over"',
        '!= "under way"',
        TAKEN,
    ),
    Mutant(
        "the optimizer has no guard",
        optimizers.Descent.__init__,
        "inner.register_step_pre_hook(_refuse_foreign_gradients)",
        "pass",
        OWN,
    ),
    Mutant(
        "changes between steps are not looked at",
        optimizers.Descent.look,
        "self._versions not in (None, versions(self._parameters))",
        "False",
        CHANGED,
    ),
    Mutant(
        "changes after the last step are not looked at",
        after_training.AfterTraining._process,
        "self._descent.look()",
        "pass",
        CHANGED,
    ),
    Mutant(
        "changes after the run are not looked at",
        result.Result.require_unchanged,
        "self._versions != self._versions_now()",
        "False",
        CHANGED,
    ),
    Mutant(
        "a copied result counts as changed",
        result.Result.__setstate__,
        "self.__post_init__()",
        "pass",
        CHANGED,
    ),
    Mutant(
        "averages are taken for a change",
        after_training.AfterTraining._process,
        "self._descent.seen()",
        "pass",
        AVERAGED,
    ),
    Mutant(
        "what nothing can be claimed for is published",
        publish._require_claimable,
        '"unclaimed" in result.facts',
        "False",
        SECOND,
    ),
    Mutant(
        "earlier runs are forgotten",
        optimizers.Descent._look_for_earlier_runs,
        "if parameter in _TRAINED]",
        "if False]",
        SECOND,
    ),
    Mutant(
        "a ledger without a limit covers two runs",
        optimizers.Descent._look_for_earlier_runs,
        " or (earlier and ledger.budget is None)",
        "",
        SECOND,
    ),
    Mutant(
        "a shared ledger covers nothing",
        optimizers.Descent._look_for_earlier_runs,
        "other() is not ledger for",
        "True for",
        SECOND,
    ),
    Mutant(
        "published weights are trained on in silence",
        optimizers.Descent._look_for_earlier_runs,
        "_LOADED and not ledger",
        "False and not ledger",
        LOADED,
    ),
    Mutant(
        "a loaded model is not remembered",
        model.load_model,
        "remember_released(loaded.parameters())",
        "pass",
        LOADED,
    ),
    Mutant(
        "what a run trained is not remembered",
        run.Run._outcome,
        "remember_released(task.parameters)",
        "pass",
        "check_copies_of_trained_weights_are_warned_of",
    ),
    Mutant(
        "copies of published weights are not recognised",
        optimizers._of_values,
        "values.numpy().tobytes()",
        "str(id(parameter)).encode()",
        LOADED,
    ),
    Mutant(
        "fresh norms are taken for published ones",
        optimizers.remember_released,
        " and bool((weight != weight.reshape(-1)[0]).any())",
        "",
        LOADED,
    ),
    Mutant(
        "a run on the ledger of the first is warned of",
        optimizers.Descent._look_for_earlier_runs,
        "and not ledger.event.events ",
        "",
        LOADED,
    ),
    Mutant(
        "a resumed run is taken for a second one",
        optimizers.Descent._look_for_earlier_runs,
        "if self._session.saved or",
        "if",
        INTERRUPTED,
    ),
    Mutant(
        "settings of steps are not compared",
        repeats.Repeats.see,
        "elif then[0] != now[0]:",
        "elif False:",
        REPEATED,
    ),
    Mutant(
        "settings of steps are not written down",
        checkpoint.Checkpoint.note,
        "os.write(file, ",
        "str(",
        REPEATED,
    ),
    Mutant(
        "sums of repeated steps are not compared",
        session.TrainingSession._watch,
        "self.streams.noise.watch = self.repeats.see",
        "pass",
        SAME_SUM,
    ),
    Mutant(
        "any sum is near enough", repeats.Repeats.see, "elif then != now:", "elif False:", SAME_SUM
    ),
    Mutant(
        "a sum is compared with itself",
        repeats.Repeats.see,
        "then = self._noted.get(place)",
        "then = now",
        SAME_SUM,
    ),
    Mutant(
        "a difference that is small beside the sum is passed over",
        repeats.fingerprint,
        "flat = value.detach().reshape(-1)",
        (
            "flat = value.detach().reshape(-1)\n        flat = (flat / (1e-4 * flat.norm() + "
            "1e-30)).round()"
        ),
        SCALED,
    ),
    Mutant(
        "a difference that is small beside the clipping norm is passed over",
        repeats.fingerprint,
        "flat = value.detach().reshape(-1)",
        "flat = (value.detach().reshape(-1) * 1e6).round()",
        SCALED,
    ),
    Mutant(
        "a sum is noted after its noise",
        streams.NoiseStream.drawing_for,
        "    if self.watch is not None:\n        self.watch(self, values, places)\n"
        "    self._drawing = True\n    try:\n        yield\n",
        "    self._drawing = True\n    try:\n        yield\n"
        "        if self.watch is not None:\n            self.watch(self, values, places)\n",
        NOTED,
    ),
    Mutant(
        "noise is drawn that nobody was shown",
        release._add_noise,
        "with stream.drawing_for(values, places):",
        "stream._drawing = True\n    if True:",
        SCALED,
    ),
    Mutant(
        "the place of a number does not matter",
        repeats._add_up,
        "(mixed.view(height, _WIDTH) * columns)",
        "mixed.view(height, _WIDTH)",
        TOLD,
    ),
    Mutant(
        "high bits alone are forgotten",
        repeats._add_up,
        ".bitwise_xor(words[at : at + size] >> 16)",
        ".bitwise_and(0x7FFFFF)",
        TOLD,
    ),
    Mutant(
        "parts of a sum have no places",
        repeats.fingerprint,
        "before + start * each",
        "before",
        TOLD,
    ),
    Mutant(
        "an interruption forgets a change",
        session.TrainingSession._restore,
        'self.unclaimed = marks.get("unclaimed", "")',
        "pass",
        INTERRUPTED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
