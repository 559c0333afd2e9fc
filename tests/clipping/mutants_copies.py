"""Planted bugs of copies of examples, mean weights and smoothed labels, each of which a named check
must catch.
"""

from __future__ import annotations

from privlearn.core import streams
from privlearn.core.clipping import backends, gradients, randomness, views
from privlearn.models import heads
from privlearn.publishing import card
from privlearn.runs import checkpoint, given, mean_weights, result, session
from privlearn.training import after_training, task
from tests.runs.checks_resuming import Stopped
from tests.support.mutant import Mutant, suite_of

CLIPPED, MOVED = (
    "check_views_of_an_example_are_averaged_and_then_clipped",
    "check_images_are_moved_as_their_spec_says",
)
OWN, FRESH = (
    "check_views_are_drawn_from_a_stream_of_their_own",
    ("check_views_do_not_depend_on_other_batches_and_are_never_repeated"),
)
WANTED = "check_published_weights_are_the_mean_that_was_asked_for"
AGAIN, SAME = (
    "check_runs_with_views_and_means_go_on_after_interruptions",
    ("check_a_run_goes_on_with_the_same_views_mean_and_labels_only"),
)
TOLD, REFUSED = (
    "check_what_was_done_for_accuracy_is_told",
    "check_copies_of_what_cannot_be_moved_are_refused",
)

POWER = "2 / share - 2"

MUTANTS = [
    Mutant(
        "the sum of the views in place of their mean",
        backends.Problem.losses,
        ".unflatten(0, (-1, self.copies)).mean(1)",
        ".unflatten(0, (-1, self.copies)).sum(1)",
        CLIPPED,
    ),
    Mutant(
        "views are clipped one by one",
        gradients.ClippedGradients._problem,
        "self.parameters, self._copies,",
        "self.parameters, 1,",
        "check_one_example_with_its_views_moves_a_sum_by_the_sensitivity_at_most",
    ),
    Mutant(
        "views of different examples are averaged",
        views.Views.__call__,
        "copied, *others = (leaf.repeat_interleave(self.copies, 0) for leaf in leaves)",
        "copied, *others = leaves[0].repeat(self.copies, *[1] * (leaves[0].dim() - 1)),"
        " *(leaf.repeat_interleave(self.copies, 0) for leaf in leaves[1:])",
        CLIPPED,
    ),
    Mutant(
        "views have another example's label",
        views.Views.__call__,
        "copied, *others = (leaf.repeat_interleave(self.copies, 0) for leaf in leaves)",
        "copied, *others = leaves[0].repeat_interleave(self.copies, 0), *(leaf.repeat(self.copies) "
        "for leaf in leaves[1:])",
        CLIPPED,
    ),
    Mutant(
        "one view is not clipped",
        gradients.ClippedGradients._squares,
        "gradient.squares",
        "gradient.squares / self._copies**2",
        CLIPPED,
    ),
    Mutant(
        "rows are not changed",
        views.Views.__call__,
        "self._change(copied, random)",
        "copied",
        CLIPPED,
    ),
    Mutant(
        "views come from the noise's stream",
        task.Task._gradients,
        "view_seeds=session.streams.views",
        "view_seeds=np.random.default_rng(int(session.streams.noise.words(1)[0]) % 2**32)",
        OWN,
    ),
    Mutant(
        "views come from the batches' stream",
        task.Task._gradients,
        "view_seeds=session.streams.views",
        "view_seeds=session.streams.sampling",
        OWN,
    ),
    Mutant(
        "views come from no stream of the run",
        task.Task._gradients,
        "view_seeds=session.streams.views",
        "view_seeds=None",
        OWN,
    ),
    Mutant(
        "every batch has the same views",
        randomness.RowRandom.begin,
        "self._key = key",
        "pass",
        FRESH,
    ),
    Mutant(
        "the views' stream begins anew after an interruption",
        streams.Streams.at,
        "initialisation, views, seeded",
        "initialisation, RandomStream(bytes(16), secret), seeded",
        AGAIN,
    ),
    Mutant("upside down", views.FlipAndShift.__call__, "places.flip(0)", "places", MOVED),
    Mutant(
        "what comes in is the other side",
        views.FlipAndShift.__call__,
        "F.pad(rows, (self.shift,) * 4)",
        "F.pad(rows, (self.shift,) * 4, mode='circular')",
        MOVED,
    ),
    Mutant(
        "shifts to one side only",
        views.FlipAndShift.__call__,
        "2 * self.shift + 1",
        "self.shift + 1",
        MOVED,
    ),
    Mutant(
        "all images of a batch move alike",
        views.FlipAndShift.__call__,
        "(drawn[:, 0] < 0.5)",
        "(drawn[:1, 0].expand(len(rows)) < 0.5)",
        MOVED,
    ),
    Mutant(
        "a whole column moves with its line",
        views.FlipAndShift.__call__,
        "shifts[:, :1]",
        "shifts[:, 1:]",
        MOVED,
    ),
    Mutant(
        "steps count alike, early or late", mean_weights.MeanWeights.__init__, POWER, "0.0", WANTED
    ),
    Mutant(
        "the steps before the share count as much",
        mean_weights.MeanWeights.__init__,
        POWER,
        "1 / share - 1",
        "check_a_mean_over_a_share_is_as_old_as_the_last_steps_are",
    ),
    Mutant(
        "the initial weights count",
        mean_weights.MeanWeights.after_step,
        "self._power + self.steps)",
        "self._power + self.steps + 1)",
        WANTED,
    ),
    Mutant(
        "the mean is not published",
        after_training.AfterTraining._process,
        "processor.after_run()",
        "pass",
        WANTED,
    ),
    Mutant(
        "the last step is published as well",
        mean_weights.MeanWeights.after_run,
        "self.means)",
        "[m.lerp(p, 0.5) for m, p in zip(self.means, self._parameters)])",
        WANTED,
    ),
    Mutant(
        "frozen weights and buffers are averaged, too",
        mean_weights.MeanWeights.after_run,
        "torch._foreach_copy_(self._parameters, self.means)",
        "[p.fill_(1.0) for p in self._parameters]",
        WANTED,
    ),
    Mutant(
        "the mean is lost",
        session.TrainingSession._restore,
        "part.load_state_dict(",
        "(part.load_state_dict if name != 'average' else lambda _: None)(",
        AGAIN,
    ),
    Mutant(
        "how many steps were averaged is lost",
        mean_weights.MeanWeights.load_state_dict,
        'self.steps = state["steps"]',
        "pass",
        AGAIN,
    ),
    Mutant("any copies will do to go on", checkpoint.facts, "_name(transform)", "''", SAME),
    Mutant(
        "any labels will do to go on",
        result.accuracy_facts,
        "if smoothing else {}",
        "if False else {}",
        SAME,
    ),
    Mutant(
        "nothing is smoothed",
        heads.ClassHead.loss,
        "label_smoothing=smoothing",
        "label_smoothing=0.0",
        "check_smoothed_labels_are_what_is_learned_from",
    ),
    Mutant("the card is silent", card.settings, "*_list_rows(plan, said.facts),", "", TOLD),
    Mutant(
        "features are moved as if they were images",
        given.require_no_features,
        "spec is not None",
        "False",
        REFUSED,
    ),
    Mutant(
        "maps stay where their images leave",
        given.require_changeable,
        "if y.dim() > 2:",
        "if False:",
        REFUSED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[Stopped]
)
