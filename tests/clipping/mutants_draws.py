"""Planted bugs of random numbers of each example's own, of state, and of known streams; a named
check catches each.
"""

from __future__ import annotations

from privlearn.core import rows, streams
from privlearn.core.clipping import agreement, backends, evaluation, gradients, randomness, views
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.training import task
from tests.support.mutant import Mutant, suite_of

MASKS, PERSONS = "check_masks_of_other_rows_do_not_move", "check_masks_of_other_persons_do_not_move"
ANOTHER = "check_rows_keep_their_masks_when_one_makes_the_model_go_another_way"
FAIR, LAWS = "check_masks_are_fresh_and_fair", "check_numbers_have_their_distributions"
COPIES, LOSSES = (
    "check_copies_mix_no_rows_by_whatever_randomness",
    "check_losses_carry_nothing_from_batch_to_batch",
)
KNOWN = "check_known_streams_are_told"

MUTANTS = [
    Mutant(
        "dropout and copies by the place in the batch",
        gradients.ClippedGradients._identify,
        "data.identities(rows)",
        "np.arange(len(rows), dtype=np.uint64)",
        MASKS,
    ),
    Mutant(
        "copies by the place in the batch",
        views.Views.__call__,
        "self._change(copied, random)",
        "self._run(copied, torch.Generator().manual_seed(int.from_bytes(random._key[:7], 'big')))",
        MASKS,
    ),
    Mutant(
        "dropout from PyTorch's own generator",
        randomness.RowRandom._draw_by_key,
        "self.active or purpose",
        "purpose",
        MASKS,
    ),
    Mutant(
        "copies draw from numpy by the place in the batch",
        views.Views._one_by_one,
        "random.seed(number)",
        "number",
        COPIES,
    ),
    Mutant(
        "dropout is seeded with the initial weights, for the whole run",
        backends.PerOperation._compute,
        "problem.random.together(seen.drawn)",
        "__import__('contextlib').nullcontext()",
        MASKS,
    ),
    Mutant(
        "calls of layers by the place",
        randomness._Keyed._by_aes,
        "plain[:, :, 0], plain",
        "plain[:, :, 0], _ = np.arange(number)[:, None], 0\n    plain[:, :, 1], plain",
        MASKS,
    ),
    Mutant(
        "persons by their place in the batch",
        gradients.ClippedGradients._identify,
        "digests(torch.from_numpy(identities.view(np.int64).reshape(examples, -1)))",
        "np.arange(examples, dtype=np.uint64)",
        PERSONS,
    ),
    Mutant(
        "rows of a run by their place in the batch",
        rows.TensorRows.identities,
        "self._digests[rows.cpu().numpy()]",
        "np.arange(len(rows), dtype=np.uint64) + np.uint64(1000)",
        "check_rows_have_their_digests_as_they_were_fetched",
    ),
    Mutant(
        "rows after the transforms name themselves",
        task.Task.fit,
        ", self.data.tensors())",
        ")",
        "check_rows_have_their_digests_as_they_were_fetched",
    ),
    Mutant(
        "draws on some data only go unseen",
        gradients.ClippedGradients._compute,
        "self._random.active or all(",
        "True or all(",
        ANOTHER,
    ),
    Mutant(
        "one by one other numbers are drawn",
        randomness.RowRandom.alone,
        "self._examples.digests[number : number + 1]",
        "self._examples.digests[number : number + 1] + np.uint64(1)",
        ANOTHER,
    ),
    Mutant(
        "calls draw the same",
        randomness._Keyed.__torch_dispatch__,
        'int(torch.randint(2**63 - 1, (), device="cpu"))',
        "7",
        FAIR,
    ),
    Mutant(
        "copies draw what the model draws",
        randomness._Keyed.__init__,
        "key[8 * purpose :][:8]",
        "key[:8]",
        FAIR,
    ),
    Mutant("samples draw the same", randomness.RowRandom.begin, "self._key = key", "pass", FAIR),
    Mutant(
        "all rows draw the same",
        randomness._Keyed._by_aes,
        "self._examples[:, None]",
        "self._examples[:1, None]",
        FAIR,
    ),
    Mutant(
        "too many are kept",
        randomness._below,
        "math.ceil(share * 2.0**32)",
        "math.ceil(1.03 * share * 2.0**32)",
        FAIR,
    ),
    Mutant(
        "wide noise",
        randomness._fill,
        'arguments.get("std", 1.0)',
        '1.03 * arguments.get("std", 1.0)',
        LAWS,
    ),
    Mutant(
        "numbers to the wrong bound", randomness._fill, "(high - low) + low", "high + low", LAWS
    ),
    Mutant(
        "leaks where nothing leaks",
        randomness._fill,
        'slopes.where(arguments["self"] <= 0, 1.0)',
        "slopes",
        LAWS,
    ),
    Mutant(
        "numbers are named by counting",
        randomness._Keyed.__torch_dispatch__,
        'int(torch.randint(2**63 - 1, (), device="cpu"))',
        "self.__dict__.setdefault('n', []).append(0) or len(self.n)",
        "check_what_is_computed_again_in_the_backward_pass_draws_the_same",
    ),
    Mutant(
        "accuracies of models that draw are computed together",
        evaluation.RightAnswers._can_be_together,
        "not self._apart or all(",
        "True or all(",
        "check_paid_accuracies_do_not_follow_others_random_numbers",
    ),
    Mutant(
        "accuracies one by one go on drawing",
        evaluation.RightAnswers._alone,
        "draw_from(0)",
        "pass",
        "check_paid_accuracies_do_not_follow_others_random_numbers",
    ),
    Mutant(
        "numpy is not seeded",
        randomness.generators_at,
        "np.random.seed(seed % 2**32)",
        "pass",
        COPIES,
    ),
    Mutant("random is not seeded", randomness.generators_at, "random.seed(seed)", "pass", COPIES),
    Mutant(
        "numpy stays seeded",
        randomness.generators_at,
        "np.random.set_state(legacy)",
        "pass",
        COPIES,
    ),
    Mutant(
        "random stays seeded", randomness.generators_at, "random.setstate(plain)", "pass", COPIES
    ),
    Mutant(
        "copies are never compared with those after other rows",
        views.Views.prepare,
        "change(larger(rows))",
        "pass",
        COPIES,
    ),
    Mutant(
        "copies are never compared beside other rows",
        views.Views.prepare,
        "others = rows.roll(size, 0)",
        "others = rows.clone()",
        COPIES,
    ),
    Mutant(
        "a transform is given all rows whatever it draws",
        views.Views.prepare,
        "close(at_once, apart, rounding_of(apart))",
        "True",
        COPIES,
    ),
    Mutant(
        "a loss's buffers are not put back",
        FrozenState.__init__,
        "isinstance(o, nn.Module)",
        "False",
        LOSSES,
    ),
    Mutant(
        "nor those of a method's module",
        FrozenState.__init__,
        'getattr(loss, "__self__", None)',
        "None",
        LOSSES,
    ),
    Mutant(
        "buffers are put back after the whole batch only",
        backends.Loop.each,
        "problem.computing(problem.random.alone(number))",
        "problem.random.alone(number)",
        LOSSES,
    ),
    Mutant(
        "losses that remember are let through",
        agreement._require_same,
        "not torch.allclose(",
        "None and torch.allclose(",
        LOSSES,
    ),
    Mutant(
        "losses that draw from numpy are let through",
        agreement.require_uncoupled,
        "if foreign:",
        "if False:",
        LOSSES,
    ),
    Mutant(
        "a known stream of copies is not told",
        streams.Streams.__post_init__,
        "self.initialisation, self.views)",
        "self.initialisation)",
        KNOWN,
    ),
    Mutant(
        "only the noise's key counts",
        streams.Streams.__post_init__,
        "(self.sampling, self.noise, self.initialisation, self.views)",
        "(self.noise,)",
        KNOWN,
    ),
    Mutant(
        "a given word is believed",
        streams.Streams.__post_init__,
        "self.seeded or not secret",
        "self.seeded",
        KNOWN,
    ),
    Mutant(
        "a seeded run gone on with is not told",
        streams.Streams.at,
        'not state["seeded"]',
        "True",
        KNOWN,
    ),
    Mutant(
        "only noise gets a fresh key after a fork",
        streams._fresh_keys,
        "stream._start(secrets.token_bytes(16))",
        "isinstance(stream, NoiseStream) and stream._start(secrets.token_bytes(16))",
        "check_streams_that_were_taken_off_draw_other_numbers_in_a_forked_process",
    ),
    Mutant(
        "a noise stream by itself is not known",
        streams.NoiseStream.__init__,
        "_ALIVE.add(self)",
        "pass",
        "check_streams_that_were_taken_off_draw_other_numbers_in_a_forked_process",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[TypeError]
)
