"""Planted bugs in named tasks, each of which a named check must catch."""

from __future__ import annotations

from privlearn.models import heads, last_layers
from privlearn.publishing import model
from privlearn.runs import result
from privlearn.training import centring, rules
from tests.descent import checks_tasks
from tests.support.mutant import Mutant, suite_of

LEARNED, PRICE, CLIPPED, PUBLISHED, ORDER = (
    "check_tasks_are_learned_better_than_by_a_constant",
    "check_a_task_is_charged_for_its_plan_alone",
    "check_an_example_of_a_task_moves_the_sum_by_the_clipping_norm",
    "check_a_published_task_predicts_what_was_trained",
    "check_thresholds_stay_in_order",
)

MUTANTS = [
    Mutant(
        "any task gets a temperature",
        rules._temperature,
        "HEADS[request.task or CLASSIFICATION].tempered",
        "True",
        PRICE,
    ),
    Mutant(
        "thresholds cross where noise is loud",
        last_layers.CumulativeLogits.forward,
        "F.softplus(self.gaps) + _APART",
        "self.gaps",
        ORDER,
    ),
    Mutant(
        "the last class has what is left of another",
        last_layers.CumulativeLogits.forward,
        "above[:, -1:]]",
        "above[:, :1]]",
        ORDER,
    ),
    Mutant(
        "an ordinal loss is a mean over the batch",
        heads.OrdinalHead.loss,
        'reduction="none"',
        'reduction="mean"',
        CLIPPED,
    ),
    Mutant(
        "a loaded model has no thresholds",
        model._network,
        "head.published(head.complete(network))",
        "network",
        PUBLISHED,
    ),
    Mutant(
        "each label of an example is clipped for itself",
        heads.sum_of_labels,
        ".sum(1)",
        ".sum()",
        CLIPPED,
    ),
    Mutant(
        "probabilities of labels add up to 1",
        heads.LabelsHead.probabilities,
        "outputs.sigmoid()",
        "outputs.softmax(1)",
        "check_labels_are_predicted_one_by_one",
    ),
    Mutant(
        "only the likeliest label is predicted",
        heads.LabelsHead.predicted,
        "outputs > 0",
        "outputs == outputs.max(1, keepdim=True)[0]",
        "check_labels_are_predicted_one_by_one",
    ),
    Mutant(
        "labels are counted in the rows",
        heads.LabelsHead.prepared,
        "np.asarray(y, dtype=np.float32)",
        "np.asarray(y - y.mean(0), dtype=np.float32)",
        "check_targets_are_prepared_one_by_one",
    ),
    Mutant(
        "counts beyond the bound count as they are",
        heads.CountHead.prepared,
        ".clip(self.low, self.high)",
        "",
        "check_expected_counts_lie_within_the_declared_bounds",
    ),
    Mutant(
        "counts are relative to those of the rows",
        heads.CountHead.prepared,
        ".clip(self.low, self.high)",
        ".clip(self.low, self.high) - np.mean(y)",
        "check_targets_are_prepared_one_by_one",
    ),
    Mutant(
        "expected counts leave the bounds",
        last_layers.Rate.forward,
        ".clamp(max=self.high)",
        "",
        "check_expected_counts_lie_within_the_declared_bounds",
    ),
    Mutant(
        "derivatives of counts have no bound",
        heads.PoissonLoss.__call__,
        "logs.clamp(max=top).exp()",
        "logs.exp()",
        "check_counts_are_learned_by_their_likelihood",
    ),
    Mutant(
        "nothing is learned beyond the bound",
        heads.PoissonLoss.__call__,
        " * (1 + (logs - top).clamp(min=0.0))",
        "",
        "check_counts_are_learned_by_their_likelihood",
    ),
    Mutant(
        "gradients of counts are clipped short",
        centring.clip_norm,
        "head.skewed",
        "False",
        "check_rare_counts_are_not_taken_for_none",
    ),
    Mutant(
        "logarithms are published for counts",
        heads.CountHead.published,
        "nn.Sequential(network, Rate(math.sqrt(self.high), self.high))",
        "network",
        "check_expected_counts_lie_within_the_declared_bounds",
    ),
    Mutant(
        "a run of counts goes on with another bound",
        heads.PoissonLoss.__init__,
        'self.__qualname__ = f"PoissonLoss({high!r})"',
        "pass",
        "check_a_run_goes_on_with_the_same_loss_only",
    ),
    Mutant(
        "a run goes on with other weights of classes",
        result.accuracy_facts,
        "{} if weights is None else",
        "{} if True else",
        "check_a_run_goes_on_with_the_same_loss_only",
    ),
    Mutant(
        "weights of classes are compared by their first digits",
        result.accuracy_facts,
        ".9g",
        ".2g",
        "check_a_run_goes_on_with_the_same_loss_only",
    ),
    Mutant(
        "folders do not say the task",
        heads.Head.stated,
        "if self.named",
        "if not self.named",
        PUBLISHED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, caches=[checks_tasks.trained]
)
