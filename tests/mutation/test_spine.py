"""Planted privacy bugs of the spine, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from checks import CHECKS

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant

from privlearn.errors import PrivlearnError

P = "privlearn."
MUTANTS = [
    Mutant("noise is never drawn", P + "mechanisms.noise:gaussian", ".mul_(std)", ".mul_(0.0)",
           "check_noise_has_the_stated_scale"),
    Mutant("noise 3% too small", P + "mechanisms.noise:gaussian", ".mul_(std)", ".mul_(0.97 * std)",
           "check_noise_has_the_stated_scale"),
    Mutant("noise ignores the sensitivity", P + "mechanisms.release:_noised", "multiplier * part.sensitivity",
           "multiplier", "check_noise_has_the_stated_scale"),
    Mutant("joint parts each noised as if alone", P + "mechanisms.release:release", " * math.sqrt(len(parts))", "",
           "check_joint_release_pays_for_its_parts"),
    Mutant("the charge is forgotten", P + "mechanisms.release:release", "ledger.charge(due, adjacency)", "pass",
           "check_every_release_is_charged"),
    Mutant("noise before the charge", P + "mechanisms.release:release", "    if due is not None:",
           "    [_noised(part, noise_multiplier, stream) for part in parts]\n    if due is not None:",
           "check_nothing_is_drawn_over_budget"),
    Mutant("a sample may be released twice", P + "sampling:Sample.spend", "self._used = True", "pass",
           "check_a_sample_is_good_for_one_release"),
    Mutant("later batches of an epoch may have less noise", P + "sampling:_Unit.due",
           "if self._charged != mechanism:", "if False:", "check_an_epoch_keeps_its_noise"),
    Mutant("one key for every stream", P + "rng:_generator", "spawn_key=(purpose,)", "spawn_key=()",
           "check_noise_is_fresh_and_streams_are_apart"),
    Mutant("a forgotten fixed key", P + "rng:_generator", "secrets.randbits(128)", "1234",
           "check_noise_is_fresh_and_streams_are_apart"),
    Mutant("layers clipped at C each, noise for C", P + "clipping.bounded:PerLayer.norm",
           'self.clip_norm * math.sqrt(count("the number of layers", layers))', "self.clip_norm",
           "check_sensitivity_follows_clip_and_adjacency"),
    Mutant("replace-one priced as add/remove", P + "accounting.adjacency:Adjacency.sum_sensitivity",
           "2.0 * norm if", "norm if", "check_sensitivity_follows_clip_and_adjacency"),
    Mutant("gradients are not clipped", P + "clipping.gradients:ClippedGradients._clipped_sum",
           "(self.clip.clip_norm / norms).clamp(max=1.0)", "torch.ones_like(norms)",
           "check_one_example_moves_the_sum_by_at_most_the_sensitivity"),
    Mutant("flat clipping by each layer's norm", P + "clipping.gradients:ClippedGradients._clipped_sum",
           "isinstance(self.clip, Flat)", "False", "check_one_example_moves_the_sum_by_at_most_the_sensitivity"),
    Mutant("the bias is left out of the norm", P + "clipping.layers:_LinearRows.squared_norms",
           ' + ("bias" in self._wanted)', "", "check_one_example_moves_the_sum_by_at_most_the_sensitivity"),
    Mutant("NaN survives the clip", P + "clipping.gradients:ClippedGradients._clipped_sum", "not finite.all()",
           "False", "check_examples_that_are_not_finite_contribute_zero"),
    Mutant("a physical batch is clipped as one example", P + "clipping.gradients:ClippedGradients._clipped_sum",
           "squares.sum(0, keepdim=True) if", "squares.sum().expand(1, len(x)) if", "check_microbatches_change_nothing"),
    Mutant("tokens are not merged before the norm", P + "clipping.layers:_EmbeddingRows.squared_norms",
           "return norms.index_add_(0, keys // self._layer.num_embeddings, merged.square().sum(1))",
           "return self._gradient.square().sum((1, 2))", "check_repeated_tokens_are_merged_before_the_norm"),
    Mutant("PCA rows are not clipped", P + "clipping.rows:second_moment", "clip_rows(x[sample.indices], norm)",
           "x[sample.indices]", "check_pca_moment_is_bounded"),
    Mutant("running statistics pass", P + "models:require_per_example", "not torch.equal(buffer, before[name])", "False",
           "check_models_that_couple_examples_are_refused"),
    Mutant("coupled outputs pass", P + "models:require_per_example", "atol=1e-9 * scale", "atol=1e-3 * scale",
           "check_models_that_couple_examples_are_refused"),
    Mutant("batches of fixed size called Poisson", P + "sampling:Poisson.draw",
           "np.flatnonzero(rng.random(examples) < self.sampling_rate)",
           "rng.choice(examples, int(examples * self.sampling_rate), replace=False)",
           "check_poisson_draws_independently_at_its_rate"),
    Mutant("empty batches are skipped", P + "sampling:Poisson.draw", "yield Sample(",
           "if len(chosen): yield Sample(", "check_empty_batches_are_drawn"),
    Mutant("a partition of equal sizes", P + "sampling:Partition.draw",
           "rng.integers(self.batches, size=examples)", "rng.permutation(np.arange(examples) % self.batches)",
           "check_partition_assigns_independently"),
    Mutant("shuffled batches priced as sampled", P + "sampling:Shuffle.event", "FixedBatches(mechanism)",
           "PoissonSampled(0.01, mechanism)", "check_samplers_state_their_own_event"),
    Mutant("the realised batch size as divisor", P + "methods.dpsgd:dpsgd", "parameter.grad = total / divisor",
           "parameter.grad = total / max(1, len(sample))", "check_the_divisor_is_public"),
    Mutant("empty batches take no step", P + "methods.dpsgd:dpsgd", "            clipped_sum = gradients(",
           "            if len(sample) == 0:\n                continue\n            clipped_sum = gradients(",
           "check_every_step_is_noisy_and_paid"),
    Mutant("data read before the budget", P + "methods.dpsgd:dpsgd",
           "ledger.approve(plan.event(), plan.neighbours)", "len(dataset[0])",
           "check_training_refuses_before_touching_data"),
    Mutant("the first epochs are not in the plan", P + "plan:Plan.noise_multipliers", "range(self.epochs)",
           "range(1, self.epochs + 1)", "check_table_two_of_yu"),
    Mutant("the schedule runs an epoch ahead", P + "methods.dpsgd:dpsgd", "enumerate(plan.noise_multipliers())",
           "enumerate(plan.noise_multipliers()[1:] + plan.noise_multipliers()[-1:])",
           "check_the_ledger_ends_where_the_plan_said"),
    Mutant("a count is dropped", P + "accounting.events:tally", "inner * times for", "inner for",
           "check_counts_are_priced"),
    Mutant("rounding to the near side", P + "accounting.pld:_split", "q[1:] += right", "q[:-1] += right",
           "check_epsilon_is_never_below_the_exact_gaussian"),
    Mutant("adjacencies mix", P + "accounting.adjacency:require_same", "if first is not second:", "if False:",
           "check_adjacencies_never_mix"),
    Mutant("shuffling is covered for add/remove", P + "accounting.events:require_adjacency",
           "if adjacency not in leaf.adjacencies:", "if False:", "check_shuffling_is_not_amplified"),
    Mutant("the budget looks at the new charge alone", P + "accounting.ledger:Ledger._check",
           "compose([self.event, event])", "compose([event])", "check_the_ledger_holds_its_budget"),
    Mutant("approval is never used up", P + "accounting.ledger:Ledger._take_approved", "self._approved.pop()", "pass",
           "check_approval_covers_only_what_was_approved"),
    Mutant("approval covers any event", P + "accounting.ledger:Ledger._take_approved", "if event != leaf:",
           "if False:", "check_approval_covers_only_what_was_approved"),
    Mutant("a deep copy is a fork", P + "accounting.ledger:Ledger.__deepcopy__", "return self",
           "return Ledger(self.budget)", "check_spending_is_never_forked"),
    Mutant("calibration on the wrong side", P + "accounting.calibrate:_acceptable", "<= 0", "<= 0.004",
           "check_calibration_stays_below_its_target"),
    Mutant("releases before training are free", P + "plan:Plan.event", "*(release.event() for release in self.before), ",
           "", "check_the_ledger_ends_where_the_plan_said"),
    Mutant("the claim is not recomputed", P + "publishing.certificate:_contradictions",
           "not math.isclose(stated, found.epsilon, rel_tol=_AGREE, abs_tol=_AGREE)", "False",
           "check_changes_to_a_published_model_are_found"),
    Mutant("weights are not hashed", P + "publishing.certificate:_changed_files", "files.get(name) != _file_digest(path)",
           "False", "check_changes_to_a_published_model_are_found"),
    Mutant("private figures are published", P + "publishing.bundle:publish", "isinstance(given, PrivateDiagnostics)",
           "False", "check_private_figures_are_not_published"),
    Mutant("a seed is kept quiet", P + "publishing.certificate:make", '"seeded" if seeded', '"seeded" if False',
           "check_seeded_runs_say_so"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_planted_bug_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises((AssertionError, PrivlearnError)):  # a NameError would be a broken mutant, not a catch
        CHECKS[mutant.caught_by]()


def test_every_mutant_names_a_check_that_exists() -> None:
    assert {mutant.caught_by for mutant in MUTANTS} <= set(CHECKS)
