"""Planted bugs of DP-FedAvg over Flower, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("flwr", reason="Flower is not installed")

from privlearn.core.plan import Plan
from privlearn.flower import client_training, federated, summation, sums, updates
from privlearn.runs import given

ONCE = "check_a_round_adds_the_mean_of_clipped_updates_and_the_noise_once"
ABSENT = "check_an_absent_client_does_not_move_the_divisor"
DRAWN = "check_the_server_draws_who_is_asked"
NORM = "check_integers_are_within_the_norm"
MOVED = "check_one_client_moves_a_sum_by_the_clip_whatever_it_sends"
CHARGED = "check_rounds_are_charged_as_planned_and_before_the_noise"
KILLED = "check_a_killed_server_charges_once_and_draws_no_noise_for_two_sums"
BIT = "check_a_clip_follows_a_bit_of_each_client"
SENT = "check_a_client_sends_integers_and_no_texts"
APART = "check_plans_for_clients_and_for_rows_are_kept_apart"
REFUSED = "check_what_does_not_fit_a_federation_is_refused"
MUTANTS = [
    Mutant(
        "an update is not clipped at the client",
        updates.UpdateGrid.encode,
        "factor = min(1.0, within / norm) if norm else 1.0",
        "factor = 1.0",
        NORM,
    ),
    Mutant(
        "rounding takes an update beyond the norm",
        updates.UpdateGrid.encode,
        "- self.step * math.sqrt(self.size) / 2\n",
        "\n",
        NORM,
    ),
    Mutant(
        "the server does not look at the norm",
        federated._Federation.ask,
        "self.summation.requiring(on.fits).add_up(",
        "self.summation.add_up(",
        MOVED,
    ),
    Mutant(
        "the server lets through any length",
        updates.UpdateGrid.fits,
        "sum_squares(integers) <= self.squares",
        "True",
        MOVED,
    ),
    Mutant(
        "the noise is for half the norm",
        sums.bound_sum,
        "adjacency.sum_sensitivity(bound),",
        "adjacency.sum_sensitivity(bound) / 2,",
        ONCE,
    ),
    Mutant(
        "a client that is replaced counts as one that leaves",
        sums.bound_sum,
        "adjacency.sum_sensitivity(bound),",
        "bound,",
        "check_the_noise_follows_the_kind_of_neighbour",
    ),
    Mutant(
        "noise is added twice",
        federated._FederatedRun._run_round,
        "self._put_gradient(noisy, on)",
        "self._put_gradient(noisy + torch.randn_like(noisy), on)",
        ONCE,
    ),
    Mutant(
        "the sum goes on without noise",
        federated._FederatedRun._run_round,
        "self._put_gradient(noisy, on)",
        "self._put_gradient(self.kept._sum, on)",
        ONCE,
    ),
    Mutant(
        "noise is drawn before the charge",
        federated._FederatedRun._run_round,
        "bound = self.clip.norm(on.clip_norm, 1)",
        "bound = self.clip.norm(on.clip_norm, 1 + 0 * len(session.streams.noise.words(8)))",
        CHARGED,
    ),
    Mutant(
        "a round is charged to another ledger",
        federated._FederatedRun._run_round,
        "ledger=session.account,",
        "ledger=Ledger(),",
        CHARGED,
    ),
    Mutant(
        "absent clients shrink the divisor",
        federated._FederatedRun._put_gradient,
        "/ -self.divisor",
        "/ -max(self.answered.values[-1], 1)",
        ABSENT,
    ),
    Mutant(
        "all clients that are connected are asked",
        federated._Federation.ask,
        "nodes = [node for node in drawn if node in connected]",
        "nodes = sorted(connected)",
        DRAWN,
    ),
    Mutant(
        "places follow from who is connected now",
        federated._Federation.load_state_dict,
        'self._nodes = {int(place): int(node) for place, node in state["nodes"]}',
        "pass",
        "check_places_are_settled_once",
    ),
    Mutant(
        "a client that is absent moves the others up",
        federated._Federation.settle_places,
        "draws.choice(self.clients, len(self._connected), replace=False)",
        "draws.permutation(len(self._connected))",
        "check_an_absent_client_moves_no_other",
    ),
    Mutant(
        "a copy of a checkpoint has the noise of the original",
        federated._FederatedRun._renew_noise,
        "if not streams.seeded:",
        "if False:",
        "check_a_copied_checkpoint_has_other_noise_for_other_sums",
    ),
    Mutant(
        "an older checkpoint releases sums that nothing is charged for",
        federated._FederatedRun._require_chargeable,
        "if self.training.ledger.has_ended:",
        "if False:",
        "check_an_older_checkpoint_is_refused_once_the_run_has_ended",
    ),
    Mutant(
        "a sum that no clipped updates have is kept",
        federated._Federation.ask,
        "if sum_squares(total.values) > len(total.nodes) ** 2 * on.squares:",
        "if False:",
        "check_an_impossible_sum_is_not_kept",
    ),
    Mutant(
        "a sum is not kept before its noise is drawn",
        federated._FederatedRun._run_round,
        "session.keep(step, now=True)",
        "pass",
        KILLED,
    ),
    Mutant(
        "a resumed round asks again",
        federated._KeptSum.get,
        "if self._round == number else None",
        "if False else None",
        KILLED,
    ),
    Mutant(
        "a later round takes the sum of an earlier one",
        federated._KeptSum.forget,
        "self._round, self._sum, self._nodes = None, self._sum[:0], 0",
        "self._round += 1",
        DRAWN,
    ),
    Mutant(
        "a resumed round is charged again",
        federated._FederatedRun.run,
        "for epoch, noise_multiplier in session.epochs(self.noise):",
        (
            "if session.first > (0, 0):\n"
            "            session.agreed.charge(session.plan.event(), session.plan.neighbours)\n"
            "        for epoch, noise_multiplier in session.epochs(self.noise):"
        ),
        KILLED,
    ),
    Mutant(
        "a resumed round is not charged",
        federated._FederatedRun.run,
        "session.account = self.noise.begin(session.agreed)",
        "session.account = Ledger() if session.first > (0, 0) else session.agreed",
        "check_a_killed_server_in_memory_charges_what_it_released",
    ),
    Mutant(
        "the clip does not move",
        federated._FederatedRun._put_gradient,
        "if isinstance(self.clip, Quantile):",
        "if False:",
        BIT,
    ),
    Mutant(
        "each client says that it was not clipped",
        updates.UpdateGrid.encode,
        "flag = self.flag if norm <= self.clip_norm else -self.flag",
        "flag = self.flag",
        BIT,
    ),
    Mutant(
        "a client sends its parameters in place of its update",
        client_training.training_app,
        "update = flatten(network, names) - before",
        "update = flatten(network, names)",
        ONCE,
    ),
    Mutant(
        "what fails at a client is sent to the server",
        summation.try_to_compute,
        "return None",
        "raise",
        SENT,
    ),
    Mutant(
        "rows in one place are trained by a plan for clients",
        given.require_same_examples,
        "or (isinstance(plan, Plan) and plan.persons)",
        "",
        APART,
    ),
    Mutant(
        "a plan for rows is certified for clients",
        Plan.follows,
        'if self.persons != ("federation" in facts):',
        "if False:",
        APART,
    ),
    Mutant(
        "running statistics of clients are left out silently",
        federated._require_model,
        "if isinstance(layer, _RUNNING) and layer.track_running_stats:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "keys that outlive the run meet other answers",
        federated._session,
        "(streams and streams.noise.secret is not None)",
        "False",
        REFUSED,
    ),
    Mutant(
        "a secure sum may have too few clients in a round",
        federated._require_enough,
        "and drawn < clients",
        "and False",
        "check_secure_sums_of_clients_that_are_drawn_are_refused",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(KeyError, TypeError, ValueError)
)
