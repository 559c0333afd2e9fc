"""Planted bugs: compiled modules, and what mixes rows, pass for others."""

from __future__ import annotations

from privlearn.core.clipping import model_check
from privlearn.runs import given
from tests.support.mutant import Mutant, suite_of

COMPILED = "check_compiled_modules_are_refused_by_name_at_every_door"
MUTANTS = [
    Mutant(
        "TorchScript is taken for Python",
        model_check.require_separate,
        "exported or isinstance(module, torch.jit.ScriptModule)",
        "exported",
        COMPILED,
    ),
    Mutant(
        "exported modules are taken for others",
        model_check.require_separate,
        'isinstance(module, torch.fx.GraphModule) and "train" in vars(module)',
        "False",
        COMPILED,
    ),
    Mutant(
        "an exported program is taken for a function that makes a network",
        given.require_kinds,
        "type | torch.export.ExportedProgram",
        "type",
        COMPILED,
    ),
]
test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=(RuntimeError, AttributeError, KeyError)
)
