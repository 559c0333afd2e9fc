"""Planted bugs of secure sums, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("flwr", reason="Flower is not installed")

from cryptography.exceptions import InvalidTag

from privlearn.flower import secure_keys, secure_stages, secure_sum, secure_terms

EXACT = "check_secure_sums_are_exact_whoever_drops_out"
NEW_MASKS = "check_masked_integers_are_uniform_and_new_in_each_round"
THRESHOLD = "check_a_node_keeps_to_its_threshold"
STRANGERS = "check_a_node_refuses_strangers_and_doubles"
BOUND = "check_a_node_adds_nothing_above_the_bound"
KEYS = "check_keys_are_bound_to_round_and_nodes"
ONCE = "check_a_node_answers_each_stage_once"
MUTANTS = [
    Mutant(
        "a node reveals both shares of another",
        secure_stages.send_unmasking,
        "if not np.array_equal(np.sort(np.concatenate([staying, dropped])), group):",
        "if not np.isin(group, np.concatenate([staying, dropped])).all():",
        "check_a_node_never_reveals_both_shares_of_another",
    ),
    Mutant(
        "shares of private keys are revealed for nodes that stayed",
        secure_stages.send_unmasking,
        "np.isin(group, staying)",
        "np.isin(group, dropped)",
        EXACT,
    ),
    Mutant(
        "a pair's mask is added at one side and not taken off at the other",
        secure_stages.add_pair_mask,
        "values -= mask",
        "pass",
        EXACT,
    ),
    Mutant(
        "no masks of pairs",
        secure_stages.add_pair_mask,
        "mask = expand_mask(key, len(values))",
        "mask = np.zeros_like(values)",
        "check_integers_whose_seed_is_known_stay_masked",
    ),
    Mutant(
        "masks of pairs do not cancel where a node dropped out",
        secure_sum._Gathering.unmask,
        "self._take_off_pair_masks(total, node, others)",
        "pass",
        EXACT,
    ),
    Mutant(
        "a node leaves its own mask out",
        secure_stages.send_masked,
        "values += expand_mask(seed_mask_key(round_.seed, round_.name, node), len(values))",
        "pass",
        EXACT,
    ),
    Mutant(
        "node and server leave the node's own mask out",
        secure_stages.seed_mask_key,
        "derive_key(seed, _SEED_MASK,",
        "derive_key(bytes(32), _SEED_MASK,",
        KEYS,
    ),
    Mutant(
        "the same masks in each round",
        secure_keys.expand_mask,
        "algorithms.AES(key)",
        "algorithms.AES(bytes(32))",
        NEW_MASKS,
    ),
    Mutant(
        "masks of a few bits",
        secure_keys.expand_mask,
        ".astype(np.uint64, copy=False)",
        ">> np.uint64(16)",
        NEW_MASKS,
    ),
    Mutant(
        "the key is folded",
        secure_keys.expand_mask,
        "algorithms.AES(key)",
        "algorithms.AES(bytes(a ^ b for a, b in zip(key[:16], key[16:], strict=True)))",
        "check_masks_are_of_the_whole_key",
    ),
    Mutant(
        "the same keys in each round",
        secure_stages.send_keys,
        "draw_secret(), draw_secret())",
        "derive_key(bytes(32), _PAIR_MASK), derive_key(bytes(32), _SHARES))",
        "check_a_new_round_has_new_keys",
    ),
    Mutant(
        "keys are not bound to the round",
        secure_stages.pair_mask_key,
        "_PAIR_MASK, name, *parties",
        "_PAIR_MASK, *parties",
        KEYS,
    ),
    Mutant(
        "fewer shares than the threshold give the secret",
        secure_keys.split_secret,
        "range(threshold - 1)",
        "range(threshold - 2)",
        "check_fewer_shares_than_the_threshold_give_nothing",
    ),
    Mutant(
        "a node ignores the threshold",
        secure_stages._require_nodes,
        "if len(nodes) < least:",
        "if len(nodes) < 2:",
        THRESHOLD,
    ),
    Mutant(
        "a threshold below one half",
        secure_terms.Terms.least,
        "if not least <= group < 2 * least:",
        "if not least <= group:",
        THRESHOLD,
    ),
    Mutant(
        "a group may be larger than the threshold is for",
        secure_stages.send_shares,
        "len(group) > terms.group_size(round_.nodes) or len(keys)",
        "len(keys)",
        THRESHOLD,
    ),
    Mutant(
        "a node may be there twice",
        secure_stages._require_nodes,
        "nodes[1:] > nodes[:-1]",
        "nodes[1:] >= nodes[:-1]",
        STRANGERS,
    ),
    Mutant(
        "a public key may be there twice",
        secure_stages.send_shares,
        "!= 2 * len(group):",
        "> 2 * len(group):",
        STRANGERS,
    ),
    Mutant(
        "the server may put in other keys in a node's name",
        secure_stages.send_shares,
        "if keys[group == node].tobytes() != _public_keys(round_):",
        "if False:",
        STRANGERS,
    ),
    Mutant(
        "a stage is answered again",
        secure_sum._Site._begin,
        "context.state[self._record] = Round(name).record()",
        "pass",
        ONCE,
    ),
    Mutant(
        "a round begins again under its name",
        secure_sum._Site._begin,
        "if name == round_.name:",
        "if False:",
        ONCE,
    ),
    Mutant(
        "private keys are remembered when masks are on",
        secure_stages.send_masked,
        "round_.nodes,\n        group=",
        "round_.nodes,\n        round_.mask_secret,\n        group=",
        "check_secrets_of_a_round_are_forgotten",
    ),
    Mutant(
        "a site may add what is above the bound",
        secure_stages.send_masked,
        "if not bool(((integers >= -bound) & (integers <= bound)).all()):",
        "if False:",
        BOUND,
    ),
    Mutant(
        "a sum may not fit into 64 bits",
        secure_stages.send_masked,
        "if not 0 <= int(bound) * round_.nodes < 2**63:",
        "if False:",
        BOUND,
    ),
    Mutant(
        "a sum beyond all bounds is returned",
        secure_sum.SecureSum.add_up,
        "limit = bound * len(gathering.masked)",
        "limit = 2**62",
        "check_a_secure_sum_that_cannot_be_is_refused",
    ),
    Mutant(
        "a sum in two parts is unmasked",
        secure_sum._Gathering.collect_masked,
        "if not are_connected(staying, staying):",
        "if False:",
        "check_a_secure_sum_in_two_parts_is_not_unmasked",
    ),
    Mutant(
        "one wrong share spoils the sum",
        secure_sum._Gathering._join,
        "(None, *sorted(shares))",
        "(None,)",
        "check_one_wrong_share_does_not_spoil_a_secure_sum",
    ),
    Mutant(
        "a node takes the number that the server calls it by",
        secure_sum._Site._answer,
        "context.node_id",
        "message.metadata.dst_node_id",
        "check_a_node_knows_its_number_by_itself",
    ),
    Mutant(
        "messages between nodes have one key both ways",
        secure_stages._message_key,
        "in_order = parties if sends else parties[::-1]",
        "in_order = sorted(parties)",
        "check_messages_between_nodes_have_a_key_for_each_direction",
    ),
    Mutant(
        "a failure at a site is sent to the server",
        secure_sum._Site.answers,
        "content = RecordDict()",
        "raise",
        "check_no_text_of_an_error_leaves_a_site_of_a_secure_sum",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(IndexError, InvalidTag, KeyError, TypeError, ValueError)
)
