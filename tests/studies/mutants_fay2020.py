"""Planted bugs in the studies of PATE, each of which a named check must catch."""

from __future__ import annotations

from privlearn_studies import data
from privlearn_studies.fay2020 import kept, pca, vectors, votes
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "votes are priced at twice the epsilon",
        votes.plan_of,
        "epsilon=epsilon",
        "epsilon=2 * epsilon",
        "check_votes_cost_what_is_stated",
    ),
    Mutant(
        "one query is priced",
        votes.plan_of,
        "PatePlan(queries,",
        "PatePlan(1,",
        "check_votes_cost_what_is_stated",
    ),
    Mutant(
        "codes are priced at twice the epsilon",
        vectors.plan_of,
        "epsilon=epsilon",
        "epsilon=2 * epsilon",
        "check_codes_cost_what_is_stated",
    ),
    Mutant(
        "noise for a ball of half the size",
        vectors.train,
        "in_ball = plan_of(queries, teachers, Ball(1.0)",
        "in_ball = plan_of(queries, teachers, Ball(0.5)",
        "check_codes_cost_what_is_stated",
    ),
    Mutant(
        "public images are tested on",
        votes.parts,
        "data.x_test[-_TEST:]",
        "data.x_test[:_TEST]",
        "check_images_of_mnist_are_public_private_or_tested_on",
    ),
    Mutant(
        "labels of the pool are handed out",
        votes.parts,
        "np.zeros(len(pool), dtype=np.int64)",
        "np.asarray(data.y_test[:POOL]).astype(np.int64)",
        "check_images_of_mnist_are_public_private_or_tested_on",
    ),
    Mutant(
        "private images pass for public ones",
        data.images,
        "*parts[1:]",
        "parts[0][:PUBLIC], *parts[2:]",
        "check_images_of_usps_are_in_one_part",
    ),
    Mutant(
        "one split for every seed",
        data.images,
        "[seed, PRIVATE]",
        "[PRIVATE]",
        "check_images_of_usps_are_in_one_part",
    ),
    Mutant(
        "public teachers learn from private images",
        vectors.public_teachers,
        "data.public.split(rows)",
        "data.private.split(rows)",
        "check_reducers_never_meet_private_images",
    ),
    Mutant(
        "eigenvalues of private answers",
        vectors.train,
        "public = Dataset(inputs, torch.stack(proxies).mean(0), public=True)",
        "public = Dataset(inputs[: len(mean)], mean, public=True)",
        "check_reducers_never_meet_private_images",
    ),
    Mutant(
        "targets are hidden, too",
        data.covered,
        "whole.clone()",
        "whole",
        "check_the_lower_half_is_hidden",
    ),
    Mutant(
        "answers to other queries",
        kept.Kept.answers,
        "said[: len(inputs)]",
        "said[-len(inputs) :]",
        "check_kept_answers_are_those_of_their_queries",
    ),
    Mutant(
        "students of spread labels learn them as numbers",
        votes.student,
        '"cross_entropy", ',
        "",
        "check_students_learn_classes_in_every_way",
    ),
    Mutant(
        "losses are means over pixels",
        pca.measured,
        ".square().sum(1)",
        ".square().mean(1)",
        "check_measured_losses_are_sums_over_pixels",
    ),
    Mutant(
        "one noise for all plans",
        pca.measured,
        "for plan in plans]",
        "for plan in [plans[0]] * len(plans)]",
        "check_measured_losses_are_sums_over_pixels",
    ),
    Mutant(
        "winners keep their counts",
        votes.learnable,
        "way == WAYS[1]",
        "False",
        "check_winners_are_believed_and_counts_weighed",
    ),
    Mutant(
        "public teachers have twice the images",
        vectors.public_teachers,
        "private //",
        "2 * private //",
        "check_public_teachers_have_as_many_images",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError]
)
