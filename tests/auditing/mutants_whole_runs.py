"""Broken builds of class statistics, PATE and boosting, which an audit of whole runs refutes, or in
which the run itself stops; and bugs of the audit.
"""

from __future__ import annotations

from privlearn.auditing import steps, whole_runs
from privlearn.cli.commands import audit
from privlearn.core.accounting import guarantee, mechanisms
from privlearn.core.clipping import row_sums
from privlearn.core.mechanisms import noise, release, selection
from privlearn.methods import neighbouring_runs
from privlearn.methods.boosting import rounds
from privlearn.methods.boosting import sums as histograms
from privlearn.methods.pate import answers, made_up_teachers, plan
from privlearn.methods.pate import sums as teachers_sums
from privlearn.methods.statistics import made_up_rows
from privlearn.methods.statistics import sums as products
from tests.support.mutant import Mutant, suite_of

SQUARES, BOOSTING = "check_least_squares_keep_their_claim", "check_boosting_keeps_its_claim"
VOTES, BALL = "check_votes_keep_their_claim", "check_codes_in_a_ball_keep_their_claim"
BOX = "check_codes_in_a_box_keep_their_claim"
ROWS, ANSWERS = "check_released_rows_keep_their_claim", "check_random_answers_keep_their_claim"
RIDGE = "check_ridge_with_a_row_in_another_ones_place_keeps_its_claim"
REPLACED = "check_boosting_with_a_row_in_another_ones_place_keeps_its_claim"
PUBLISHED = "check_published_runs_of_every_method_are_attacked_as_a_whole"

HALF = ("half of the noise of", noise.add_gaussian, "alpha=std", "alpha=std / 2")
MUTANTS = [
    *(
        Mutant(f"{HALF[0]} {name}", *HALF[1:], check)
        for name, check in (
            ("least squares", SQUARES),
            ("class statistics", "check_class_statistics_keep_their_claim"),
            ("released rows", ROWS),
            ("boosting", BOOSTING),
            ("votes", VOTES),
            ("codes", BALL),
        )
    ),
    # Sensitivities
    Mutant(
        "targets of ridge move sums by one length",
        products.ridge_sums,
        "adjacency.sum_sensitivity(length)",
        "length",
        RIDGE,
    ),
    Mutant(
        "another row moves a histogram by one norm",
        guarantee.Adjacency.sum_sensitivity,
        "2.0 * norm",
        "norm",
        REPLACED,
    ),
    Mutant(
        "a box is as wide as one number",
        teachers_sums.box_sensitivity,
        "return math.sqrt(dimensions)",
        "return 1.0",
        BOX,
    ),
    Mutant("votes move one count by half", plan.Votes.sensitivity, "math.sqrt(2)", "1.0", VOTES),
    Mutant("a ball is as wide as its radius", plan.Ball.sensitivity, "2 *", "", BALL),
    Mutant(
        "labels are reported as they are",
        selection.randomised,
        "speaks_true >= truth(epsilon, categories)",
        "speaks_true >= 1.0",
        ANSWERS,
    ),
    Mutant(
        "features are drawn with a tenth of the noise",
        mechanisms.gumbel_scale,
        "2 *",
        "0.2 *",
        "check_features_drawn_by_noise_keep_their_claim",
    ),
    # What the run itself notices
    Mutant(
        "rows of least squares are not clipped",
        row_sums.least_squares_sums,
        ".clamp_(min=limit)",
        ".clamp_(min=limit, max=limit)",
        SQUARES,
    ),
    Mutant(
        "codes are not clipped",
        teachers_sums.clip_to_ball,
        ".clamp(min=radius)",
        ".clamp(min=radius, max=radius)",
        BALL,
    ),
    Mutant(
        "gradients of boosting are not clipped",
        histograms.gradient_histogram,
        ".clamp(min=limit)",
        ".clamp(min=limit, max=limit)",
        BOOSTING,
    ),
    # Noise of single methods
    Mutant(
        "boosting releases with a third of the noise",
        rounds._rounds,
        "release(\n                sums, noise_multiplier=plan.release_noise",
        "release(\n                sums, noise_multiplier=plan.release_noise / 3",
        BOOSTING,
    ),
    Mutant(
        "answers are released with half of the noise",
        answers._release,
        "noise_multiplier=noise",
        "noise_multiplier=noise / 2",
        VOTES,
    ),
    Mutant(
        "parts of a release have half of the noise",
        release._factors,
        "math.sqrt(max(whole, 1.0)) / share",
        "math.sqrt(max(whole, 1.0)) / share / 2",
        SQUARES,
    ),
    # The audit
    Mutant(
        "the example is in both data sets",
        neighbouring_runs.neighbouring_rows,
        "False: [others,",
        "False: [others, example,",
        SQUARES,
    ),
    Mutant(
        "the example is short",
        made_up_rows.runs_of,
        "_BEYOND * max",
        "0.1 * max",
        SQUARES,
    ),
    Mutant(
        "a score knows what the run drew in secret",
        whole_runs._scores,
        "absent, present = fixed or _both(attacked, again, run)",
        "absent, present = (other := _both(attacked, again, run)) and ("
        "(other[0], run) if took_part else (run, other[1]))",
        "check_a_score_follows_from_what_was_released_alone",
    ),
    Mutant(
        "replayed runs draw anew",
        whole_runs._Run.draw,
        "after = self.like.draws[place].after",
        "after = make_draw()",
        BOOSTING,
    ),
    Mutant(
        "a run is attacked at the price of another noise",
        whole_runs.audit_run,
        "event = plan.event()",
        "event = plan.scaled(0.5).event()",
        PUBLISHED,
    ),
    Mutant(
        "a model is attacked that the plan has none of",
        steps._require_no_model,
        "if any(value is not None for value in model_arguments):",
        "if False:",
        "check_plans_that_do_not_say_how_they_are_run_are_refused",
    ),
    Mutant(
        "noise by sites is taken for noise of the sum",
        made_up_teachers.runs_of,
        "if plan.site_noise is not None:",
        "if False:",
        "check_plans_that_do_not_say_how_they_are_run_are_refused",
    ),
    Mutant(
        "a whole run is called one release",
        audit._attack_published,
        "return report, _WHOLE_RUN",
        "return report, _ONE_RELEASE",
        PUBLISHED,
    ),
]
test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
