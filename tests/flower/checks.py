"""Named checks of teachers at sites; planted bugs must make them fail. They skip where Flower is
not installed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.flower import test_integers as integers
from tests.support.checks import check


def _parts() -> Any:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.flower import test_teachers

    return test_teachers


@check
def check_one_site_moves_sums_by_the_claim_whatever_it_sends() -> None:
    parts = _parts()
    for case in parts.CASES:
        parts.test_one_site_never_moves_sums_by_more_than_the_claim_whatever_it_sends(case)


@check
def check_a_site_bounds_what_its_teacher_says() -> None:
    parts = _parts()
    for case in parts.CASES:
        parts.test_a_site_bounds_whatever_its_teacher_says_where_the_server_cannot(case)


@check
def check_sums_over_flower_are_those_without_it() -> None:
    parts = _parts()
    for case in parts.CASES:
        if "votes" not in case:
            parts.test_codes_are_within_the_rounding_of_those_without_flower(case)
    with tempfile.TemporaryDirectory() as folder:
        parts.test_votes_are_those_of_teachers_that_are_asked_without_flower(
            Path(folder), parts.VOTES
        )


@check
def check_codes_are_in_the_ball_after_rounding() -> None:
    for size in integers.SIZES:
        integers.test_codes_are_in_the_ball_after_rounding(1.0, size)
    integers.test_a_code_above_the_ball_does_not_fit()


@check
def check_numbers_of_a_box_are_in_it_after_rounding() -> None:
    for centre in (0.0, 0.3, 1.0):
        integers.test_numbers_of_a_box_are_in_it_after_rounding(centre)


@check
def check_votes_are_one_for_a_class_or_none() -> None:
    integers.test_votes_are_one_for_a_class_or_none()


@check
def check_answers_above_their_bound_are_not_sent() -> None:
    integers.test_answers_above_their_bound_are_not_sent()


@check
def check_steps_of_sites_are_powers_of_two() -> None:
    integers.test_steps_are_powers_of_two_within_range()


@check
def check_sums_that_bounded_answers_cannot_have_are_refused() -> None:
    integers.test_sums_that_so_many_bounded_answers_cannot_have_are_refused()


@check
def check_a_site_does_not_answer_by_another_reducer() -> None:
    _parts().test_a_reducer_that_is_not_linear_stands_at_the_sites()


@check
def check_a_certificate_says_what_the_server_saw() -> None:
    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        parts.test_a_certificate_and_its_card_say_what_the_server_saw(Path(folder))


@check
def check_a_server_that_is_killed_neither_asks_nor_is_charged_twice() -> None:
    parts = _parts()
    for point in parts.KILLS:
        with tempfile.TemporaryDirectory() as folder:
            parts.test_a_server_that_is_killed_neither_asks_nor_is_charged_twice(
                Path(folder), "votes", point
            )


@check
def check_no_text_of_an_error_leaves_a_site() -> None:
    _parts().test_no_text_of_an_error_leaves_a_site()


@check
def check_a_site_sends_its_integers_and_nothing_else() -> None:
    parts = _parts()
    for case in parts.CASES:
        parts.test_what_a_site_sends_is_its_bounded_integers_and_nothing_else(case)


@check
def check_a_node_that_is_named_twice_is_one_site() -> None:
    _parts().test_a_node_that_is_named_twice_is_one_site()


@check
def check_more_sites_than_teachers_are_refused_before_anything_is_asked() -> None:
    parts = _parts()
    parts.test_more_sites_than_the_plan_has_teachers_are_refused_before_anything_is_asked()


@check
def check_replaced_records_and_kept_keys_are_refused_at_sites() -> None:
    _parts().test_replaced_records_kept_keys_and_single_answers_are_refused()


@check
def check_an_absent_site_counts_as_a_teacher() -> None:
    _parts().test_a_site_that_is_not_connected_counts_as_a_teacher_without_an_answer()


@check
def check_a_site_answers_for_itself_alone() -> None:
    _parts().test_a_site_cannot_answer_in_the_name_of_another()
