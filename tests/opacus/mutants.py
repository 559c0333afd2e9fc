"""Planted bugs of the door for scripts in Opacus's form: a named check must catch each."""

from __future__ import annotations

from privlearn.core import sampling
from privlearn.core.clipping import gradients
from privlearn.core.mechanisms import release
from privlearn.opacus import privacy_engine, recorded, script_loss, script_run
from privlearn.runs import optimizers
from privlearn.training import base_run
from privlearn.training import run as dpsgd
from tests.support.mutant import Mutant, suite_of

STEP = "self.run.step(batch, loss)\n"
MEAN = "check_a_mean_is_divided_once_and_micro_batches_are_clipped"
EMPTY = "check_empty_batches_are_handed_out_and_take_a_noisy_step"
ONCE = "check_a_batch_is_good_for_one_step_and_one_backward"
NUMBERS = "check_numbers_of_a_batch_do_not_come_into_the_loss"
SIZE = "check_the_number_of_rows_does_not_come_into_the_loss"
COUPLED = "check_what_couples_rows_is_refused"
CHARGED = "check_nothing_is_drawn_before_it_is_charged"
SAME = "check_a_script_is_dpsgd"
COMPANY = "check_an_examples_loss_does_not_depend_on_its_company"
LEFT = "check_a_run_left_early_claims_its_limit"

MUTANTS = [
    Mutant(
        "the manager's micro-batch is not clipped",
        gradients.ClippedGradients._weights,
        "return weighed.weights if",
        "weighed = weighed if len(losses) > 7 else weighed._replace(weights=weighed.weights * 0 + "
        "1); return weighed.weights if",
        MEAN,
    ),
    Mutant(
        "the script's mean is divided once more",
        script_loss.ScriptLoss._parts,
        "output.mean(1)",
        "output.mean(1) / rows",
        MEAN,
    ),
    Mutant(
        "the engine's mean is divided twice",
        dpsgd.Run.step,
        "task.divisor)), task.divisor)",
        "task.divisor)), task.divisor ** 2)",
        MEAN,
    ),
    Mutant(
        "the clipping norm is not the script's",
        privacy_engine._clip,
        'positive("max_grad_norm", norms.pop())',
        '10 * positive("max_grad_norm", norms.pop())',
        MEAN,
    ),
    Mutant(
        "the optimizer that was given steps beside the run",
        optimizers.Descent.refuse_foreign_gradients,
        "if self.refusal:",
        "if False:",
        "check_the_optimizer_that_was_given_takes_no_step",
    ),
    Mutant(
        "empty batches are skipped",
        script_run.ScriptRun.epoch,
        "        yield self._hand_out(most)\n",
        "        if not len(self._batch.batch.sample):\n            self.run.session.steps_done += "
        "1\n            self._batch = None\n            continue\n        yield "
        "self._hand_out(most)\n",
        EMPTY,
    ),
    Mutant(
        "no step is taken on an empty batch",
        script_run.ScriptRun.step,
        STEP,
        "if turn.rows: self.run.step(batch, loss)\n"
        "        else: self.run.session.steps_done += 1\n",
        EMPTY,
    ),
    Mutant(
        "a script's batches are drawn from PyTorch's own seed",
        sampling.Poisson.draw,
        "taken(examples, self.sampling_rate, rng)",
        "np.flatnonzero(__import__('torch').rand(examples).numpy() < self.sampling_rate)",
        "check_a_scripts_batches_follow_from_the_streams_alone",
    ),
    Mutant(
        "noise is drawn before the charge",
        release.release,
        "    sample.spend(mechanism, adjacency, ledger)\n",
        "    stream.words(4)\n    sample.spend(mechanism, adjacency, ledger)\n",
        CHARGED,
    ),
    Mutant(
        "the optimizer steps before the charge",
        script_run.ScriptRun.step,
        STEP,
        "[own.data.mul_(0.9) for own in self.run.model.parameters()]; " + STEP,
        CHARGED,
    ),
    Mutant(
        "two steps are taken for one batch",
        script_run.ScriptRun.step,
        STEP,
        f"{STEP.strip()}; batch.sample._used = False; self.run.session.steps_done -= 1; {STEP}",
        SAME,
    ),
    Mutant(
        "the first of two losses is left out",
        script_run.ScriptRun._on_backward,
        "if turn.loss is not None:",
        "if False:",
        ONCE,
    ),
    Mutant(
        "a sum passes for a mean",
        script_loss._terms,
        'elif name == "sum":\n        raise _sum()',
        'elif name == "sum":\n        yield Term(factor, operand)',
        COUPLED,
    ),
    Mutant(
        "a loss that is a sum passes for a mean",
        script_loss._terms,
        '["reduction"] == "sum"',
        '["reduction"] == "neither"',
        COUPLED,
    ),
    Mutant(
        "any number passes for a mean",
        script_loss._terms,
        "    else:\n        raise _unknown(name)\n",
        "    else:\n        yield Term(factor, operand)\n",
        COUPLED,
    ),
    Mutant(
        "class weights are averaged over the batch",
        script_loss._drop_reduction,
        '"reduction": "none"',
        '"reduction": "mean"',
        COMPANY,
    ),
    Mutant(
        "numbers are not seen to be read",
        recorded.computed,
        "recorded[0].turn.watch.was_read = True\n        return _private",
        "pass\n        return _private",
        NUMBERS,
    ),
    Mutant(
        "writing into other tensors is not seen",
        recorded.computed,
        "if not isinstance(args[0], Recorded) or writes_out:",
        "if False:",
        NUMBERS,
    ),
    Mutant(
        "numbers in a factor are not seen",
        script_loss.taken_apart,
        "late=late",
        "late=False",
        NUMBERS,
    ),
    Mutant(
        "what is changed in place is taken as it was",
        recorded.Turn._encode,
        "if plain(value)._version == value.version",
        "if True",
        NUMBERS,
    ),
    Mutant(
        "a constant is not kept as it was",
        recorded.Turn._encode,
        "value.clone() if",
        "value if",
        NUMBERS,
    ),
    Mutant(
        "batches of other engines pass",
        script_run.ScriptRun.forward,
        "if any(",
        "if False and any(",
        "check_a_model_takes_the_batches_of_its_own_loader",
    ),
    Mutant(
        "a gradient is forgotten",
        script_run.ScriptRun.epoch,
        "self._turn.loss is not None:",
        "False:",
        "check_a_batch_that_was_only_looked_at_comes_again",
    ),
    Mutant(
        "numbers may change from batch to batch",
        script_run.ScriptRun._require_new,
        "if self._loss is not None:",
        "if self._loss is not None and not loss.same_as(self._loss, numbers=False):",
        NUMBERS,
    ),
    Mutant(
        "the first batch has the size that was drawn",
        script_run.ScriptRun._hand_out,
        "if is_first:",
        "if False:",
        SIZE,
    ),
    Mutant(
        "the first batch has the length of its longest row",
        script_run._public_length,
        "return _LENGTHS[long]",
        "return None",
        "check_the_longest_row_does_not_come_into_the_loss",
    ),
    Mutant(
        "a loss may have another form",
        script_run.ScriptRun._require_new,
        "if self._loss is not None:",
        "if self._loss is not None and loss.same_as(self._loss, numbers=False):",
        SIZE,
    ),
    Mutant(
        "the first loss stays whatever is computed",
        script_loss.ScriptLoss.same_as,
        "return all(",
        "return True or all(",
        "check_numbers_of_a_batch_do_not_come_into_the_loss",
    ),
    Mutant(
        "a run that was left is complete",
        base_run.BaseRun.result,
        "self.session.stop(",
        "self.session.complete = True; self.session.stop(",
        LEFT,
    ),
    Mutant(
        "a batch that was looked at is drawn anew",
        script_run.ScriptRun.epoch,
        "if self._batch is None:",
        "if True:",
        "check_a_batch_that_was_only_looked_at_comes_again",
    ),
    Mutant(
        "the constants of a loss are left out",
        script_loss._terms,
        "factor / float(number) if name in _DIVIDE",
        "factor if name in _DIVIDE",
        "check_the_losses_of_scripts_are_taken_apart",
    ),
]
test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=(RuntimeError,)
)
