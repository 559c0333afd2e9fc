"""Planted bugs in PATE, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import pate_checks  # noqa: F401 - registers the checks
import teachers_checks  # noqa: F401 - registers the checks

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

P = "privlearn."
CODES, PLAN = P + "clipping.codes:", P + "methods.ensemble.plan:"
ENSEMBLES, ASK = P + "clipping.ensembles:", P + "methods.ensemble.aggregator:"
TEACH, REDUCE = P + "teachers.", P + "reducers."
MOVES = "check_one_teacher_moves_codes_by_at_most_the_sensitivity"
VOTES = "check_one_teacher_moves_votes_by_at_most_the_sensitivity"

MUTANTS = [
    # Sensitivities
    Mutant("a teacher's whole answer changes, booked as one radius", ENSEMBLES + "Ball.sensitivity", "2 * self.radius",
           "self.radius", MOVES),
    Mutant("codes are not clipped", CODES + "CodeSums._clipped", "clip_to_ball(codes, self._radius)", "codes", MOVES),
    Mutant("codes are clipped number by number", CODES + "clip_to_ball", "codes * (radius / lengths.clamp(min=radius))",
           "codes.clamp(-radius, radius)", MOVES),
    Mutant("targets are not clipped to the box", CODES + "CodeSums._clipped", "own.clamp(0, 1) if self._box else own", "own",
           MOVES),
    Mutant("a box is as wide as one of its sides", CODES + "box_sensitivity", "math.sqrt(dimensions) * norm", "norm",
           "check_box_bounds_hold_for_every_corner"),
    Mutant("a box through the identity is as wide as one of its sides", CODES + "box_sensitivity",
           "return math.sqrt(dimensions)", "return 1.0", MOVES),
    Mutant("the norm of the map is forgotten", CODES + "box_sensitivity", "math.sqrt(dimensions) * norm",
           "math.sqrt(dimensions)", "check_box_bounds_hold_for_every_corner"),
    Mutant("the centre lies outside the box", CODES + "CodeSums.__init__", "centre.nan_to_num().clamp(0, 1)", "centre",
           "check_centres_lie_in_the_box"),
    Mutant("a box for an encoder that is not linear", CODES + "_require_box",
           "encoder.matrix is None and not encoder.is_identity", "False", "check_box_bounds_hold_for_every_corner"),
    Mutant("NaN reaches the sum", CODES + "CodeSums._clipped",
           "torch.where((finite & codes.isfinite().all(1))[:, None], codes, 0.0)",
           "codes", MOVES),
    Mutant("a broken answer to one query silences a teacher", CODES + "CodeSums._clipped", "isfinite().all(1)\n",
           "isfinite().all(1).all().expand(len(targets))\n", "check_a_teacher_that_cannot_be_used_gives_the_centre"),
    Mutant("a moved vote changes one count", ENSEMBLES + "Votes.sensitivity", "math.sqrt(2)", "1.0", VOTES),
    Mutant("fractions of a class vote", CODES + "VoteCounts.add", "& (numbers == numbers.floor())", "", VOTES),
    Mutant("scores that are not finite vote", CODES + "VoteCounts.add", "found.isfinite().all(1)",
           "found.argmax(1) >= 0", VOTES),
    Mutant("teachers vote twice", CODES + "VoteCounts.add", "+= valid.double()", "+= 2 * valid.double()", VOTES),
    # Prices
    Mutant("one event for all queries", PLAN + "PatePlan.event", "Repeated(Gaussian(self.noise), self.queries)",
           "Gaussian(self.noise)", "check_the_plan_is_every_query"),
    Mutant("tests of confidence are free", PLAN + "PatePlan._weight", "self.aggregate.answers / (1 - self.aggregate.share)",
           "float(self.aggregate.answers)", "check_the_plan_is_every_query"),
    Mutant("tests of confidence have too little noise", PLAN + "PatePlan.test_noise",
           "math.sqrt(self.queries / self.aggregate.answers * (1 - share) / share)",
           "math.sqrt((1 - share) / share)", "check_the_plan_is_every_query"),
    Mutant("the paper's formula without its root of 2", PLAN + "paper_noise_multiplier",
           'math.sqrt(count("queries", queries) / 2)', 'math.sqrt(count("queries", queries))',
           "check_noise_is_that_of_the_paper_and_of_exact_composition"),
    Mutant("only what is answered is charged", ASK + "_confident",
           "_released(test, plan.test_noise, account, streams)", "test.values[0]", "check_confident_votes_pay_for_every_test"),
    Mutant("asked on when all that was paid for is given", ASK + "_confident", "break", "pass",
           "check_confident_votes_pay_for_every_test"),
    Mutant("all counts are given away", ASK + "_confident", "torch.zeros_like(counts.counts)", "counts.counts.clone()",
           "check_confident_votes_pay_for_every_test"),
    Mutant("all queries get the same noise", ASK + "_released", "stream=streams.noise",
           "stream=type(streams.noise)(streams.noise.key)", "check_the_noise_is_fresh_and_of_the_size_that_was_planned"),
    Mutant("means over the teachers, noise for one more", ASK + "_codes", "/ plan.teachers", "/ (plan.teachers + 1)",
           "check_the_noise_is_fresh_and_of_the_size_that_was_planned"),
    Mutant("noise is drawn after one charge", ASK + "_released", "ledger=account",
           "ledger=type('Free', (), {'charge': lambda *_: None})()",
           "check_every_query_is_charged_before_its_noise"),
    # Teachers
    Mutant("shards overlap", TEACH + "shards:by_rows", "bool((found[rows] >= 0).any())", "False",
           "check_each_record_is_with_one_teacher"),
    Mutant("a row is twice in a shard", TEACH + "shards:by_rows", "len(np.unique(rows)) < len(rows) or ", "",
           "check_each_record_is_with_one_teacher"),
    Mutant("a person is with two teachers", TEACH + "shards:drawn", "if data.groups is None:",
           "block_of = assign(len(data.x), teachers, rng)\n    if True:", "check_each_record_is_with_one_teacher"),
    Mutant("persons at two sites are not noticed", TEACH + "shards:_require_persons_apart",
           "if data.groups is None:", "if True:", "check_each_record_is_with_one_teacher"),
    Mutant("records are assigned in their order", TEACH + "shards:drawn",
           "assign(data.examples, count(\"teachers\", teachers), rng)", "np.sort(assign(data.examples, teachers, rng))",
           "check_each_record_is_with_one_teacher"),
    Mutant("sites for replaced records", TEACH + "trained:Trained.require_covered", "self._sites and", "False and",
           "check_sites_are_not_for_replaced_records"),
    Mutant("teachers share numpy's generator", TEACH + "recipes:isolated", "np.random.seed(seed % 2**32)", "pass",
           "check_a_record_reaches_no_other_teacher"),
    Mutant("teachers share Python's generator", TEACH + "recipes:isolated", "random.seed(seed)\n", "pass\n",
           "check_a_record_reaches_no_other_teacher"),
    Mutant("a failing teacher ends the run", TEACH + "recipes:taught", "return None", "raise",
           "check_a_teacher_that_fails_says_nothing"),
    Mutant("a teacher that knows fewer classes ends the run", CODES + "VoteCounts.add", "return False",
           "raise ValueError(predictions)",
           "check_a_teacher_of_fewer_classes_says_nothing"),
    Mutant("answers of another shape end the run", CODES + "plain", "return None", "raise ValueError(type(said))",
           "check_what_a_teacher_says_is_never_refused"),
    Mutant("numbers that overflow are refused", CODES + "plain", 'np.errstate(all="ignore")', 'np.errstate(all="raise")',
           "check_what_a_teacher_says_is_never_refused"),
    Mutant("an encoder tells what it failed on", CODES + "CodeSums._tried", "except Exception:", "except KeyError:",
           "check_an_encoder_that_fails_on_a_teacher_says_nothing"),
    Mutant("a teacher can leave", TEACH + "recipes:taught", "(Exception, SystemExit)", "Exception",
           "check_a_teacher_that_leaves_says_nothing"),
    Mutant("columns of the classes a teacher met, as they come", TEACH + "recipes:Estimator.__call__",
           "known[there]", "np.arange(len(known))[there]", "check_a_teacher_of_fewer_classes_says_nothing"),
    Mutant("one estimator for all teachers", TEACH + "recipes:Estimator.require_apart", "is self.make()", "is None",
           "check_teachers_are_no_one_object"),
    Mutant("parameters that teachers share", TEACH + "recipes:Network.require_apart", "places[0] & places[1]", "False",
           "check_teachers_are_no_one_object"),
    Mutant("a file counts twice", TEACH + "source:Given.__init__", "len(set(same)) < len(same)", "False",
           "check_given_predictions_are_read_one_by_one"),
    Mutant("a folder of other records is taken", TEACH + "trained:Trained._resumed", "facts[\"digest\"] == digest", "True",
           "check_interrupted_teachers_go_on"),
    Mutant("all teachers' answers are held", ASK + "collect", "teachers.answers(inputs, streams, progress, sums.shapes)",
           "list(teachers.answers(inputs, streams, progress, sums.shapes))", "check_one_teacher_is_held_at_a_time"),
    Mutant("a teacher's warnings are shown", TEACH + "recipes:isolated", 'warnings.simplefilter("ignore")', "pass",
           "check_neighbours_leave_the_same_traces"),
    Mutant("how many teachers failed is stated", P + "methods.pate:pate", "len(raw), streams)",
           "len(raw) + silent, streams)", "check_neighbours_leave_the_same_traces"),
    # Reducers
    Mutant("reducers are fitted on private data", REDUCE + "reducer:public_targets", "or not public.public", "",
           "check_reducers_are_fitted_on_public_data"),
    Mutant("labels are spread over private inputs", TEACH + "spreading:Spreading.__post_init__",
           "or not self.public.public", "", "check_reducers_are_fitted_on_public_data"),
    Mutant("components by standard deviation", REDUCE + "linear:PCA.best", "noise_std**2", "noise_std",
           "check_components_are_chosen_by_the_noise"),
    Mutant("the loss counts all components", REDUCE + "linear:PCA.loss", "self.eigenvalues[kept:]", "self.eigenvalues",
           "check_the_closed_form_loss_is_what_is_measured"),
    Mutant("the radius overflows", REDUCE + "activation:unit_ball",
           "torch.exp(-F.softplus(-_SLOPE * o[:, :1]) / size)", "(1 + torch.exp(-_SLOPE * o[:, :1])) ** (-1 / size)",
           "check_the_activation_fills_the_unit_ball"),
    Mutant("the radius forgets the dimension", REDUCE + "activation:unit_ball", "/ size)", ")",
           "check_the_activation_fills_the_unit_ball"),
    Mutant("no noise in the bottleneck", REDUCE + "autoencoder:_train", "noise_std * ", "0 * ",
           "check_autoencoders_code_into_the_ball"),
    Mutant("a certificate may speak of other queries", P + "publishing.verification:described_run",
           "return ensemble.described(settings)", "return compose([])", "check_what_is_published_is_what_was_asked"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, RuntimeError, ZeroDivisionError]
)
