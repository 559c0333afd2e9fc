"""Planted bugs of what a script sets on its optimizer, and of runs without noise."""

from __future__ import annotations

from privlearn.core.clipping import clips, gradients
from privlearn.opacus import planned_settings, privacy_engine, script_loss, script_run
from privlearn.training import clip_only
from privlearn.training import run as dpsgd
from tests.support.mutant import Mutant, suite_of

ACTS = "check_a_setting_acts_or_is_refused"
NOISE = "check_a_noise_schedule_is_charged_as_drawn"
CLIP = "check_a_clip_schedule_has_the_sensitivity_of_its_step"
STEP = "check_a_scheduler_out_of_step_is_refused"
NOTHING = "check_without_noise_nothing_is_claimed"
OWN = "check_a_models_own_loss_is_that_of_each_row_alone"

MUTANTS = [
    Mutant(
        "a clip set on the optimizer is read and not used",
        planned_settings.PlannedSettings.set,
        "self._changed.add(name)",
        "setting.values = (value,) * len(setting.values)",
        ACTS,
    ),
    Mutant(
        "a setting after the first batch is accepted",
        planned_settings.PlannedSettings.require_open,
        "if self._epoch is not None:",
        "if False:",
        ACTS,
    ),
    Mutant(
        "noise lower than a target's may be set",
        planned_settings.PlannedSettings.set,
        "self._run.plan.budget is not None",
        "False",
        ACTS,
    ),
    Mutant(
        "an attribute without effect may be set",
        script_run.PrivateOptimizer.__setattr__,
        'not (name in _SETTABLE or name.startswith("_"))',
        "False",
        ACTS,
    ),
    Mutant(
        "a scheduler that is made is not planned",
        planned_settings.PlannedSettings.attach,
        "self._changed.add(name)",
        "pass",
        NOISE,
    ),
    Mutant(
        "the plan has a schedule's first noise in all epochs",
        planned_settings.PlannedSetting.values_for,
        "self.base * factor for factor",
        "self.base for factor",
        NOISE,
    ),
    Mutant(
        "a scheduler may be stepped as a script likes",
        planned_settings.PlannedSettings.require_planned,
        "scheduler is None or",
        "True or",
        STEP,
    ),
    Mutant(
        "a scheduler may be stepped between a batch and its step",
        script_run.ScriptRun.step,
        "self.planned.require_planned(in_hand.batch.epoch)",
        "pass",
        STEP,
    ),
    Mutant(
        "a target is met without its schedule",
        planned_settings._with_noise,
        "if budget is None:",
        "if True:",
        "check_a_target_holds_whatever_the_schedule_is",
    ),
    Mutant(
        "a step is clipped without its schedule",
        dpsgd.Run.step,
        "task.gradients.at(batch.epoch)",
        "pass",
        CLIP,
    ),
    Mutant(
        "the sensitivity is that of the first epoch's norm",
        gradients.ClippedGradients._begin_sum,
        "self._bounds.get(self.clip_norm) or self.clip.norm(self.clip_norm, layers)",
        "self.clip.norm(self.clip.clip_norm, layers)",
        CLIP,
    ),
    Mutant(
        "the noise of a smaller norm is divided twice",
        clips.Flat.norm,
        "return clip_norm",
        "return clip_norm * clip_norm / self.clip_norm",
        CLIP,
    ),
    Mutant(
        "a run without noise is charged as if it had some",
        clip_only.ClipOnlyRun.__init__,
        "charged=False",
        "charged=True",
        NOTHING,
    ),
    Mutant(
        "a run without noise has a result",
        clip_only.ClipOnlyRun._outcome,
        "raise BadInput(_NOTHING)",
        "return None",
        NOTHING,
    ),
    Mutant(
        "a run without noise has the epsilon of its plan",
        privacy_engine.PrivacyEngine.get_epsilon,
        "return math.inf",
        "return self.run.plan.guarantee(delta).epsilon",
        NOTHING,
    ),
    Mutant(
        "each parameter is clipped, and noise is for a layer",
        gradients.ClippedGradients._begin_sum,
        "layers = len(self._layers)",
        "layers = 1",
        "check_each_parameter_is_clipped_by_itself_within_its_bound",
    ),
    Mutant(
        "the count's share of the release is too small",
        privacy_engine._adaptive,
        "(2 * deviation) ** 2 - noise_multiplier**2",
        "(2 * deviation) ** 2",
        "check_adaptive_clipping_is_priced_as_one_release",
    ),
    Mutant(
        "gradients of several steps pass as added up",
        script_run.PrivateOptimizer.step,
        "self._require_cleared()",
        "pass",
        "check_gradients_after_a_step_are_the_released_ones",
    ),
    Mutant(
        "the sign of a difference is lost",
        script_loss._of_mean,
        "sign * factor",
        "factor",
        "check_a_mean_of_a_difference_is_taken_apart",
    ),
    Mutant(
        "a model's own loss may depend on other rows",
        script_loss.ScriptLoss.require_mean,
        "if not torch.allclose(mean, of_batch, rtol=1e-3, atol=1e-6):",
        "if False:",
        OWN,
    ),
    Mutant(
        "a model's own loss is taken of the whole batch",
        script_loss.ScriptLoss.__call__,
        "self.is_of_model and rows > 1",
        "False",
        OWN,
    ),
    Mutant(
        "a batch that was looked at is lost",
        script_run.ScriptRun.epoch,
        "yield from self._rows_in_order(most)",
        "yield from self._rows_in_order(most); self._batch = None",
        "check_a_pass_without_steps_shows_rows_and_draws_none",
    ),
    Mutant(
        "a second engine on the same rows is not said",
        privacy_engine._as_given,
        "ledger is None or loader.ledger is not ledger",
        "False",
        "check_a_private_loader_serves_another_engine_on_the_same_rows",
    ),
    Mutant(
        "a tolerance of epsilon is not looked at",
        privacy_engine.PrivacyEngine.make_private_with_epsilon,
        "if epsilon_tolerance is not None:",
        "if False:",
        "check_a_tolerance_of_epsilon_is_kept",
    ),
    Mutant(
        "a clip with a schedule is for correlated noise",
        clips.ScheduledClip.moves.fget,
        "return self.schedule is not None",
        "return False",
        "check_a_clips_schedule_is_followed_and_published",
    ),
]

test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(RuntimeError, TypeError)
)
