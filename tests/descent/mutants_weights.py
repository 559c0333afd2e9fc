"""Planted bugs in weights of classes, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core.clipping import clips
from privlearn.models import heads
from privlearn.runs import result
from privlearn.training import centring, choices, rules, train
from tests.support.mutant import Mutant, suite_of

ROWS, OWN, MOVE, SAID = (
    "check_weights_of_classes_are_not_read_off_the_rows",
    "check_an_examples_weighted_loss_is_its_own",
    "check_weights_of_classes_move_decisions",
    "check_weights_of_classes_cost_nothing_and_are_said",
)

MUTANTS = [
    Mutant(
        "weights are counted in the labels",
        train.settle_for,
        "request = TrainRequest.of(",
        "choices = choices | ({'class_weights': tuple(1 / np.bincount(np.asarray(dataset.y), "
        "minlength=2).clip(1))} if choices.get('class_weights') == 'balanced' else {})\n    "
        "request = TrainRequest.of(",
        ROWS,
    ),
    Mutant(
        "declared shares are made exact by the rows",
        train.fit,
        "data, row_loss = (replace(data,",
        "request = replace(request, class_weights=tuple(1 / np.bincount(data.y, "
        "minlength=2).clip(1)))\n    data, row_loss = (replace(data,",
        ROWS,
    ),
    Mutant(
        "balanced weights are the shares themselves",
        choices.weights_of,
        "1 / share for",
        "share for",
        ROWS,
    ),
    Mutant(
        "a loss is over the weights of its batch",
        heads.ClassHead.loss,
        'torch.nn.CrossEntropyLoss(weights, reduction="none", label_smoothing=smoothing)',
        '(lambda o, t, own=torch.nn.CrossEntropyLoss(weights, reduction="none"): '
        "own(o, t) / weights[t].mean())",
        OWN,
    ),
    Mutant(
        "weights multiply clipped gradients",
        clips.Flat.weights,
        ".clamp(max=1.0)",
        ".clamp(max=1.0) * 50",
        "check_a_weighted_example_is_clipped_as_any_other",
    ),
    Mutant(
        "weights are lost",
        heads.ClassHead.loss,
        "if request.class_weights is not None:",
        "if False:",
        MOVE,
    ),
    Mutant(
        "weighted gradients are clipped short",
        centring.clip_norm,
        " or request.class_weights is not None",
        " and request.class_weights is None",
        MOVE,
    ),
    Mutant(
        "a temperature is fitted to another population",
        rules._temperature,
        " and request.class_weights is None",
        "",
        MOVE,
    ),
    Mutant(
        "the certificate is silent about weights",
        result.accuracy_facts,
        "{} if weights is None else",
        "{} if True else",
        SAID,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
