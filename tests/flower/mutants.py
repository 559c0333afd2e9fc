"""Planted bugs of teachers at sites, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("flwr", reason="Flower is not installed")

from privlearn.flower import requests, teacher_client, teachers
from privlearn.methods.pate import ensemble

CLAIM = "check_one_site_moves_counts_by_the_claim_whatever_it_sends"
REFUSED = "check_replaced_records_and_kept_keys_are_refused_at_sites"
MUTANTS = [
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
        "a site that fails stops the run",
        teachers._read,
        "return torch.from_numpy(np.array(unpack_answers(reply.content)))\n    except Exception:",
        "return torch.from_numpy(np.array(unpack_answers(reply.content)))\n    except MemoryError:",
        CLAIM,
    ),
    Mutant(
        "an absent site is waited for and then left out of the count",
        teachers.FlowerTeachers.answers,
        "yield from [None] * absent",
        "pass",
        "check_an_absent_site_counts_as_a_teacher",
    ),
    Mutant(
        "more sites than teachers are asked",
        requests.await_nodes,
        "if len(nodes) > count:",
        "if False:",
        "check_more_sites_than_teachers_are_refused_before_anything_is_asked",
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
        "a failure at a site is sent to the server",
        teacher_client.teacher_app,
        "answers = None",
        "raise",
        "check_no_text_of_an_error_leaves_a_site",
    ),
    Mutant(
        "a site sends the inputs in place of answers",
        teacher_client.teacher_app,
        "answers = _ask(load(context), unpack_inputs(message.content))",
        "answers = unpack_inputs(message.content)",
        "check_a_site_sends_its_answers_and_nothing_else",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(KeyError, TypeError, ValueError)
)
