"""Planted bugs in what people and scripts call on the command line: a default, a choice, a key or a
code is another.
"""

from __future__ import annotations

from privlearn import cli
from privlearn.cli import options, request, screen
from privlearn.cli.commands import verify
from tests.support.mutant import Mutant, suite_of

OPTIONS = "check_options_of_the_command_line_are_as_frozen"
OUTPUTS = "check_keys_and_exit_codes_of_quick_commands_are_as_frozen"

MUTANTS = [
    Mutant("a default changed", options._network, 'str, "linear"', 'str, "cnn"', OPTIONS),
    Mutant(
        "the default of a number changed", options._without_data, "int, 0)", "int, 8080)", OPTIONS
    ),
    Mutant(
        "a number is read as text",
        options._descent,
        '"for SGD (default: 0)", float',
        '"for SGD (default: 0)", str',
        OPTIONS,
    ),
    Mutant(
        "a choice is gone",
        options._descent,
        'choices=("public",)',
        'choices=("private",)',
        OPTIONS,
    ),
    Mutant("an option is gone", options._other_methods, "*_fields(),", "", OPTIONS),
    Mutant(
        "what is needed may be left out",
        request._add,
        "required=option.needed,",
        "required=False,",
        OPTIONS,
    ),
    Mutant("a key vanished", screen.figures, '"epochs": plan.epochs,', "", OUTPUTS),
    Mutant(
        "a key has another name", screen.figures, '"expected_batch_size"', '"batch_size"', OUTPUTS
    ),
    Mutant(
        "a list became a number",
        screen.figures,
        "list(plan.noise_multipliers())",
        "plan.noise_multipliers()[0]",
        OUTPUTS,
    ),
    Mutant(
        "a failed verification ends with 0", verify._report, "0 if checked.ok else 1", "0", OUTPUTS
    ),
    Mutant("what is refused ends with 1", cli.main, "return 2", "return 1", OUTPUTS),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, AttributeError, TypeError]
)
