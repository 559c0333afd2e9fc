"""Named checks of DP-FedAvg over Flower; planted bugs must make them fail. They skip where Flower
is not installed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

import privlearn as pv
from tests.support.checks import check


def _parts() -> Any:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.flower import test_federated

    return test_federated


@check
def check_a_round_adds_the_mean_of_clipped_updates_and_the_noise_once() -> None:
    _parts().test_a_round_adds_the_mean_of_clipped_updates_and_the_noise_once()


@check
def check_an_absent_client_does_not_move_the_divisor() -> None:
    _parts().test_a_client_that_does_not_answer_counts_as_an_update_of_zero()


@check
def check_the_server_draws_who_is_asked() -> None:
    _parts().test_those_who_are_asked_are_those_that_the_server_drew()


@check
def check_integers_are_within_the_norm() -> None:
    parts = _parts()
    for size in (1, 15, 5000):
        for share in (0.0, 0.1):
            parts.test_integers_are_within_the_norm_and_near_the_clipped_update(size, share)
    for value in (float("nan"), float("inf"), 1e308):
        parts.test_an_update_that_is_not_finite_is_none(value)


@check
def check_one_client_moves_a_sum_by_the_clip_whatever_it_sends() -> None:
    parts = _parts()
    for name in parts.FAULTS:
        parts.test_a_client_moves_the_sum_by_the_clip_at_most_whatever_it_sends(name)


@check
def check_the_noise_follows_the_kind_of_neighbour() -> None:
    parts = _parts()
    for adjacency in ("replace_one", "add_remove"):
        parts.test_a_client_with_other_rows_moves_the_sum_by_the_sensitivity_at_most(
            50.0, adjacency
        )


@check
def check_a_clip_follows_a_bit_of_each_client() -> None:
    _parts().test_a_clip_follows_the_updates_by_a_bit_of_each_client()


@check
def check_a_client_sends_integers_and_no_texts() -> None:
    parts = _parts()
    parts.test_a_client_sends_integers_of_its_update_and_nothing_else()
    parts.test_no_text_of_an_error_leaves_a_client()


@check
def check_rounds_are_charged_as_planned_and_before_the_noise() -> None:
    parts = _parts()
    parts.test_the_ledger_is_charged_what_the_plan_says()
    parts.test_no_noise_is_drawn_before_the_charge()
    parts.test_no_client_is_asked_and_no_noise_is_drawn_beyond_the_budget()


@check
def check_a_killed_server_charges_once_and_draws_no_noise_for_two_sums() -> None:
    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        parts.test_no_noise_is_drawn_for_two_sums_where_clients_answer_otherwise(Path(folder))


@check
def check_a_killed_server_in_memory_charges_what_it_released() -> None:
    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        parts.kill_everywhere(Path(folder), lambda points: range(8, points, 3), in_file=False)


@check
def check_places_are_settled_once() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _parts().test_a_resumed_run_has_the_clients_places_that_it_began_with(Path(folder))


@check
def check_an_absent_client_moves_no_other() -> None:
    _parts().test_a_client_that_is_not_there_moves_no_other_to_another_batch()


@check
def check_a_copied_checkpoint_has_other_noise_for_other_sums() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test = _parts().test_a_copy_of_a_checkpoint_has_no_noise_of_the_original_for_another_sum
        test(Path(folder))


@check
def check_an_older_checkpoint_is_refused_once_the_run_has_ended() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test = _parts().test_an_older_copy_of_a_checkpoint_is_refused_once_the_run_has_ended
        test(Path(folder))


@check
def check_an_impossible_sum_is_not_kept() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _parts().test_a_sum_that_clipped_updates_cannot_have_is_not_kept(Path(folder))


@check
def check_plans_for_clients_and_for_rows_are_kept_apart() -> None:
    parts = _parts()
    parts.test_a_plan_for_clients_is_refused_for_rows_in_one_place()
    parts.test_facts_of_rows_do_not_follow_a_plan_for_clients()


@check
def check_what_does_not_fit_a_federation_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _parts().test_what_does_not_fit_is_refused_before_any_client_is_asked(Path(folder))


@check
def check_secure_sums_of_clients_that_are_drawn_are_refused() -> None:
    _parts().test_secure_sums_of_clients_that_are_drawn_are_refused_before_the_charge(
        pv.Poisson(0.5)
    )
