"""Planted bugs of what a trainer looks at before it trains or goes on, each of which a named check
must catch.
"""

from __future__ import annotations

from tests.support import texts as made
from tests.support.mutant import Mutant, suite_of

made.require_transformers()

from privlearn.data import torch_rows  # noqa: E402
from privlearn.huggingface import number_ranges, trainer, trainer_state, unsupported  # noqa: E402

SIZES = "check_rows_beyond_a_models_sizes_are_refused_before_anything_is_spent"
RESUMED = "check_schedulers_and_callbacks_of_a_trainer_go_on_where_they_were"
FIGURES = "check_no_figure_of_training_rows_comes_out_of_a_trainer"
MUTANTS = [
    Mutant(
        "a label one beyond the last class passes",
        number_ranges.NumberRange.require,
        "values >= self.size",
        "values > self.size",
        SIZES,
    ),
    Mutant(
        "negative tokens pass",
        number_ranges.NumberRange.require,
        "(values < 0) |",
        "",
        SIZES,
    ),
    Mutant(
        "labels are not compared with the number of classes",
        number_ranges.ranges_of,
        "kind is LabelKind.CLASSES",
        "False",
        SIZES,
    ),
    Mutant(
        "rows are looked at after the run has begun",
        trainer.PrivateTrainer._check_rows,
        "ranges_of(self.model, usual_loss=usual)",
        "{}",
        SIZES,
    ),
    Mutant(
        "predictions of training rows are given",
        trainer.PrivateTrainer._require_public,
        "require_public(self.train_dataset",
        'name == "eval_dataset" and require_public(self.train_dataset',
        FIGURES,
    ),
    Mutant(
        "rows that datasets selects are taken for others",
        torch_rows._originals,
        'hasattr(dataset, "with_format")',
        "False",
        FIGURES,
    ),
    Mutant(
        "of selected rows the first of the table are taken",
        torch_rows._originals_in_arrow,
        "if chosen is None",
        "if True",
        FIGURES,
    ),
    Mutant(
        "where a slice of a table begins is not followed",
        torch_rows._place_of,
        "chunk.offset + ",
        "",
        FIGURES,
    ),
    Mutant(
        "settings that were never looked at pass",
        unsupported._require_known_settings,
        "value != getattr(usual, name)",
        "False",
        "check_a_setting_that_was_never_looked_at_keeps_its_default",
    ),
    Mutant(
        "a scheduler's milestones come back as texts",
        trainer_state._as_text,
        "_itemised(state)",
        '{"items": [[key, {"items": [[str(k), v] for k, v in part.items()]} if isinstance(part, '
        "dict) else part] for key, part in state.items()]}",
        RESUMED,
    ),
    Mutant(
        "callbacks begin anew",
        trainer_state.TrainerState.load_state_dict,
        "_restore(callback, callbacks[name])",
        "pass",
        RESUMED,
    ),
    Mutant(
        "nothing is said of callbacks that are not kept",
        trainer_state.TrainerState.warn_of_unkept,
        "not in stateful and not library",
        "in stateful and not library",
        RESUMED,
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(TypeError, AttributeError)
)
