"""Named checks of noise by the sites; planted bugs must make them fail. They skip where Flower is
not installed.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.checks import check


def _parts() -> Any:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.flower import test_site_noise

    return test_site_noise


def _in_folders(*tests: Any) -> None:
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))


@check
def check_no_sum_of_shares_costs_more_than_its_price() -> None:
    parts = _parts()
    for sigma in (0.5, 0.8, 1.7):
        for shares in (1, 2, 3):
            parts.test_no_renyi_divergence_of_shifted_sums_is_above_the_price(sigma, shares)


@check
def check_the_shares_that_have_to_be_there_pay_for_the_claim() -> None:
    parts = _parts()
    votes = parts.PLAN.aggregate
    for teachers, absent in ((2, 0), (10, 1), (250, 25)):
        parts.test_the_shares_that_have_to_be_there_pay_for_the_claim(votes, 1.0, teachers, absent)


@check
def check_shares_have_the_claimed_variance() -> None:
    _parts().test_the_sum_of_all_shares_but_the_absent_has_the_claimed_variance()


@check
def check_draws_of_shares_are_discrete_gaussians() -> None:
    _parts().test_draws_have_the_law_of_the_discrete_gaussian()


@check
def check_noise_by_sites_costs_more_than_gaussian_noise() -> None:
    _parts().test_a_guarantee_by_shares_is_above_that_of_as_much_gaussian_noise()


@check
def check_a_share_is_charged_before_it_is_drawn() -> None:
    with pytest.MonkeyPatch.context() as patch:
        _parts().test_a_share_is_drawn_after_the_charge_and_not_at_all_if_that_is_refused(patch)


@check
def check_the_same_question_gets_the_same_answer() -> None:
    _in_folders(_parts().test_the_same_question_gets_the_same_answer_and_is_charged_once)


@check
def check_another_question_gets_other_noise() -> None:
    test = _parts().test_another_question_gets_other_noise_and_is_charged
    _in_folders(*(lambda folder, other=other: test(folder, other) for other in ("name", "circle")))


@check
def check_rounds_of_one_name_have_other_noise() -> None:
    _in_folders(_parts().test_a_name_that_a_server_gives_to_two_rounds_gets_other_noise_in_each)


@check
def check_a_site_keeps_its_limit() -> None:
    _in_folders(_parts().test_a_site_has_no_answer_once_its_limit_is_reached)


@check
def check_a_site_takes_no_number_from_the_server() -> None:
    _in_folders(_parts().test_a_site_takes_no_number_from_the_server)


@check
def check_a_site_refuses_more_than_its_plan_is_priced_for() -> None:
    _parts().test_a_site_refuses_a_question_for_more_than_its_plan_is_priced_for()


@check
def check_a_teacher_that_fails_sends_noise_all_the_same() -> None:
    parts = _parts()
    logging.getLogger("privlearn.flower.site_shares").addFilter(_drop)
    try:
        test = parts.test_a_teacher_that_fails_sends_noise_all_the_same
        _in_folders(*(lambda folder, name=name: test(folder, name) for name in parts.FAILURES))
    finally:
        logging.getLogger("privlearn.flower.site_shares").removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return False


@check
def check_a_server_charges_before_it_asks_and_adds_no_noise() -> None:
    _in_folders(_parts().test_a_server_charges_once_before_it_asks_and_adds_no_noise)


@check
def check_a_sum_of_too_few_shares_is_refused() -> None:
    _in_folders(_parts().test_as_many_sites_as_declared_may_be_absent_and_no_more)


@check
def check_a_killed_server_asks_the_same_question_again() -> None:
    parts = _parts()
    _in_folders(parts.test_a_server_that_was_killed_asks_the_same_and_nothing_is_charged_twice)


@check
def check_an_older_copy_of_kept_answers_is_refused() -> None:
    _in_folders(_parts().test_an_older_copy_of_kept_answers_is_refused_once_they_are_there)


@check
def check_noisy_sums_are_not_made_by_hand() -> None:
    _parts().test_noisy_sums_are_received_and_not_made_by_hand()


@check
def check_sums_without_noise_are_not_released_by_a_plan_of_noise_by_sites() -> None:
    _parts().test_sums_without_noise_are_not_released_by_a_plan_of_noise_by_sites()


@check
def check_sites_that_share_a_ledger_send_different_shares() -> None:
    _in_folders(_parts().test_sites_that_share_a_ledger_by_mistake_send_different_shares)


@check
def check_a_site_refuses_sums_with_too_few_shares() -> None:
    parts = _parts()
    _in_folders(lambda folder: parts.test_a_site_refuses_sums_with_too_few_shares(folder, 1, b"a"))
