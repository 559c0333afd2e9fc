"""Planted bugs of teachers at sites, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("flwr", reason="Flower is not installed")

from privlearn.flower import requests, summation, teacher_client, teacher_question, teachers
from privlearn.methods.pate import answers, ensemble, integers, sums

CLAIM = "check_one_site_moves_sums_by_the_claim_whatever_it_sends"
BOUNDED = "check_a_site_bounds_what_its_teacher_says"
IN_BALL = "check_codes_are_in_the_ball_after_rounding"
IN_BOX = "check_numbers_of_a_box_are_in_it_after_rounding"
SAME = "check_sums_over_flower_are_those_without_it"
KILLED = "check_a_server_that_is_killed_neither_asks_nor_is_charged_twice"
REFUSED = "check_replaced_records_and_kept_keys_are_refused_at_sites"
POSSIBLE = "check_sums_that_bounded_answers_cannot_have_are_refused"
MUTANTS = [
    # Requests and replies
    Mutant(
        "a site answers in the name of another",
        requests.collect_replies,
        "if asked_nodes.get(asked) == reply.metadata.src_node_id:",
        "if asked in asked_nodes:",
        "check_a_site_answers_for_itself_alone",
    ),
    Mutant(
        "the last reply of a site counts",
        requests.collect_replies,
        "replies.setdefault(asked, reply)",
        "replies[asked] = reply",
        CLAIM,
    ),
    Mutant(
        "a site that sends no array stops the run",
        summation.read_integers,
        "integers = unpack_answers(reply.content)\n    except Exception:",
        "integers = unpack_answers(reply.content)\n    except MemoryError:",
        CLAIM,
    ),
    Mutant(
        "a site is counted twice",
        summation.InTheClear.add_up,
        "values += integers",
        "values += 2 * integers",
        SAME,
    ),
    Mutant(
        "the server adds what it could see is out of bounds",
        summation.InTheClear.add_up,
        "(self.fits is None or self.fits(integers))",
        "True",
        CLAIM,
    ),
    Mutant(
        "other types are added",
        summation.read_integers,
        "integers.dtype != np.int64 or integers.shape",
        "integers.shape",
        CLAIM,
    ),
    Mutant(
        "an absent site is no teacher",
        teachers.FlowerTeachers.add_answers,
        "return self._count - teachers",
        "return len(nodes) - teachers",
        "check_an_absent_site_counts_as_a_teacher",
    ),
    Mutant(
        "a node that is named twice is two sites",
        requests.await_nodes,
        "sorted(set(grid.get_node_ids()))",
        "sorted(grid.get_node_ids())",
        "check_a_node_that_is_named_twice_is_one_site",
    ),
    Mutant(
        "more sites than teachers are asked",
        requests.await_nodes,
        "if len(nodes) > count:",
        "if False:",
        "check_more_sites_than_teachers_are_refused_before_anything_is_asked",
    ),
    Mutant(
        "a failure at a site is sent to the server",
        summation.try_to_compute,
        "return None",
        "raise",
        "check_no_text_of_an_error_leaves_a_site",
    ),
    Mutant(
        "a site sends the inputs in place of answers",
        teacher_client.teacher_app,
        "answers = _ask(load(context), question.inputs)",
        "answers = question.inputs",
        "check_a_site_sends_its_integers_and_nothing_else",
    ),
    # What a site bounds
    Mutant(
        "a site does not clip codes",
        integers.CodesInIntegers._of,
        "clip_to_ball(totals.sums, self._inner_radius)",
        "totals.sums",
        BOUNDED,
    ),
    Mutant(
        "nothing is taken off the radius for rounding",
        integers.CodesInIntegers.__init__,
        "radius - root * self.step / 2",
        "radius",
        IN_BALL,
    ),
    Mutant(
        "codes are rounded up, beyond the ball",
        integers.CodesInIntegers._of,
        "(codes / self.step).round()",
        "(codes / self.step).ceil()",
        IN_BALL,
    ),
    Mutant(
        "numbers of a box are rounded beyond it",
        integers.TargetsInIntegers._of,
        "nearest.clamp(self._least, self._most)",
        "nearest",
        IN_BOX,
    ),
    Mutant(
        "a ball is one step too large",
        integers.CodesInIntegers.__init__,
        "self._most_squared = math.floor((Fraction(radius) / Fraction(self.step)) ** 2)",
        "self._most_squared = math.floor((Fraction(radius) / Fraction(self.step) + 1) ** 2)",
        IN_BALL,
    ),
    Mutant(
        "squares wrap around",
        integers.CodesInIntegers.fits,
        "small & (squares.sum(1) <= self._most_squared)",
        "squares.sum(1) <= self._most_squared",
        IN_BALL,
    ),
    Mutant(
        "a teacher votes for all classes",
        integers.VotesInIntegers.fits,
        "within.all(1) & (integers.sum(1) <= 1)",
        "within.all(1)",
        "check_votes_are_one_for_a_class_or_none",
    ),
    Mutant(
        "a site sends answers above their bound",
        integers.IntegerAnswers.of,
        "integers is not None and not self.fits(integers)",
        "False",
        "check_answers_above_their_bound_are_not_sent",
    ),
    # The step
    Mutant(
        "the server takes another step than the sites",
        teachers.FlowerTeachers.add_answers,
        "totals.add_sum(values, teachers, integers.step)",
        "totals.add_sum(values, teachers, integers.step / 2)",
        SAME,
    ),
    Mutant(
        "sites are asked for another step",
        teacher_question.pack_question,
        "integers_for(aggregate, encoder).step",
        "integers_for(aggregate, encoder).step / 2",
        SAME,
    ),
    Mutant(
        "the step is any number",
        integers._require_step,
        "!= 0.5 or step > most",
        "== 0.0",
        "check_steps_of_sites_are_powers_of_two",
    ),
    # Sums
    Mutant(
        "sums of codes are added twice",
        sums.CodeSums.add_sum,
        "self.sums += self.encode_sum(numbers)",
        "self.sums += 2 * self.encode_sum(numbers)",
        SAME,
    ),
    Mutant(
        "sums are added whatever they are",
        sums._require_possible,
        "if not possible:",
        "if False:",
        POSSIBLE,
    ),
    Mutant(
        "negative counts are added",
        sums.VoteCounts.add_sum,
        "(counts >= 0).all(1) & (counts.sum(1) <= teachers)",
        "counts.sum(1) <= teachers",
        POSSIBLE,
    ),
    # What is stated, refused and kept
    Mutant(
        "a site answers by another reducer than the server's",
        teacher_question.unpack_question,
        'reducer_fingerprint(reducer) != bounds["reducer"]',
        "False",
        "check_a_site_does_not_answer_by_another_reducer",
    ),
    Mutant(
        "the card does not say what the server saw",
        teachers.FlowerTeachers.describe,
        "self._summation.server_sees",
        '"nothing"',
        "check_a_certificate_says_what_the_server_saw",
    ),
    Mutant(
        "a record may move from site to site",
        ensemble.PredictedElsewhere.require_covered,
        "if adjacency is Adjacency.REPLACE_ONE:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "kept keys may meet other answers",
        teachers.FlowerTeachers.determined,
        "raise BadInput(",
        "return {} and BadInput(",
        REFUSED,
    ),
    Mutant(
        "a resumed server asks again",
        answers.keep_answers,
        '_total(totals).copy_(saved.tensors["sums"])',
        "totals = sums()",
        KILLED,
    ),
    Mutant(
        "a resumed server is charged again",
        answers.keep_answers,
        'ledger.resume(saved.plain["run"], plan.event(), plan.adjacency, plan.unit)',
        "ledger.begin(plan.event(), plan.adjacency, plan.unit)",
        KILLED,
    ),
    Mutant(
        "a resumed server draws other noise",
        answers.keep_answers,
        'Streams.at(saved.plain["streams"])',
        "streams",
        KILLED,
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(KeyError, TypeError, ValueError)
)
