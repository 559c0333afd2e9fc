"""Named checks of secure sums; planted bugs must make them fail. They skip where Flower is not
installed.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.checks import check


def _parts() -> Any:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.flower import test_secure_sum

    return test_secure_sum


@check
def check_secure_sums_are_exact_whoever_drops_out() -> None:
    parts = _parts()
    for nodes, neighbours in ((3, None), (12, 4)):
        parts.test_sums_are_those_in_the_clear(nodes, neighbours)
    for stage in parts.STAGES:
        parts.test_a_node_that_drops_out_leaves_the_sum_of_the_others(stage, parts._lose_replies)


@check
def check_one_wrong_share_does_not_spoil_a_secure_sum() -> None:
    _parts().test_one_site_that_reveals_wrong_shares_is_left_out_of_the_unmasking()


@check
def check_a_secure_sum_that_cannot_be_is_refused() -> None:
    _parts().test_a_sum_that_no_integers_can_have_is_refused()


@check
def check_a_secure_sum_in_two_parts_is_not_unmasked() -> None:
    _parts().test_a_sum_in_two_parts_that_no_mask_ties_together_is_not_unmasked()


@check
def check_masked_integers_are_uniform_and_new_in_each_round() -> None:
    _parts().test_masked_integers_are_uniform_and_other_ones_in_each_round()


@check
def check_late_integers_stay_masked() -> None:
    parts = _parts()
    with pytest.MonkeyPatch.context() as patch:
        parts.test_integers_that_arrive_after_the_node_was_said_to_have_dropped_out_stay_masked(
            patch
        )


@check
def check_integers_whose_seed_is_known_stay_masked() -> None:
    _parts().test_integers_whose_seed_is_known_stay_under_the_masks_of_pairs()


@check
def check_fewer_shares_than_the_threshold_give_nothing() -> None:
    _parts().test_fewer_shares_than_the_threshold_give_nothing()


@check
def check_secrets_of_a_round_are_forgotten() -> None:
    with pytest.MonkeyPatch.context() as patch:
        _parts().test_secrets_of_a_round_are_forgotten_when_it_ends(patch)


@check
def check_a_node_never_reveals_both_shares_of_another() -> None:
    _parts().test_a_node_reveals_one_share_of_each_node_and_never_both()


@check
def check_a_node_answers_each_stage_once() -> None:
    parts = _parts()
    parts.test_a_node_unmasks_once()
    for stage in parts.STAGES:
        parts.test_a_node_answers_each_stage_of_a_round_once(stage)


@check
def check_a_node_answers_stages_in_order() -> None:
    _parts().test_a_node_answers_stages_in_order_and_those_of_its_round()


@check
def check_a_new_round_has_new_keys() -> None:
    _parts().test_a_new_round_takes_the_place_of_an_old_one()


@check
def check_a_node_keeps_to_its_threshold() -> None:
    parts = _parts()
    parts.test_a_node_refuses_fewer_nodes_than_the_threshold()
    parts.test_a_node_keeps_to_a_threshold_above_one_half()
    parts.test_a_node_refuses_a_larger_group_than_its_threshold_is_for()


@check
def check_a_node_refuses_strangers_and_doubles() -> None:
    parts = _parts()
    parts.test_a_node_refuses_nodes_that_were_not_there_before()
    parts.test_a_node_refuses_nodes_and_keys_that_are_there_twice()
    parts.test_a_node_refuses_other_keys_in_its_name_and_keys_of_low_order()


@check
def check_a_node_adds_nothing_above_the_bound() -> None:
    parts = _parts()
    parts.test_a_site_without_integers_is_not_in_the_sum()
    parts.test_a_node_refuses_a_bound_whose_sum_may_not_fit()


@check
def check_no_text_of_an_error_leaves_a_site_of_a_secure_sum() -> None:
    _parts().test_no_text_of_an_error_leaves_a_site()


@check
def check_masks_are_of_the_whole_key() -> None:
    _parts().test_masks_are_the_key_stream_of_the_whole_key()


@check
def check_keys_are_bound_to_round_and_nodes() -> None:
    _parts().test_keys_of_pairs_are_one_key_bound_to_round_and_nodes()


@check
def check_a_node_knows_its_number_by_itself() -> None:
    _parts().test_a_node_knows_its_number_by_itself()


@check
def check_messages_between_nodes_have_a_key_for_each_direction() -> None:
    _parts().test_messages_between_nodes_have_a_key_for_each_direction()
