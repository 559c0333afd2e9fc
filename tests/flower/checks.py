"""Named checks of teachers at sites; planted bugs must make them fail. They skip where Flower is
not installed.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.checks import check


def _parts() -> Any:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.flower import test_teachers

    return test_teachers


@check
def check_one_site_moves_counts_by_the_claim_whatever_it_sends() -> None:
    parts = _parts()
    for name in parts.FAULTS:
        parts.test_one_site_never_moves_counts_by_more_than_the_claim_whatever_it_sends(name)


@check
def check_no_text_of_an_error_leaves_a_site() -> None:
    _parts().test_no_text_of_an_error_leaves_a_site()


@check
def check_a_site_sends_its_answers_and_nothing_else() -> None:
    _parts().test_what_a_site_sends_is_its_answers_and_nothing_else()


@check
def check_more_sites_than_teachers_are_refused_before_anything_is_asked() -> None:
    parts = _parts()
    parts.test_more_sites_than_the_plan_has_teachers_are_refused_before_anything_is_asked()


@check
def check_replaced_records_and_kept_keys_are_refused_at_sites() -> None:
    _parts().test_replaced_records_and_kept_keys_are_refused()


@check
def check_an_absent_site_counts_as_a_teacher() -> None:
    _parts().test_a_site_that_is_not_connected_counts_as_a_teacher_without_an_answer()


@check
def check_a_site_answers_for_itself_alone() -> None:
    _parts().test_a_site_cannot_answer_in_the_name_of_another()
