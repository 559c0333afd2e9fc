"""Planted bugs of layers that are computed as one operation, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn.core.clipping import agreement
from privlearn.core.clipping.operations import sequential
from privlearn.core.clipping.operations.sequential import (
    FromInput,
    FromOutput,
    FusedLayers,
    MaxPool,
    Tape,
)
from tests.support.mutant import Mutant, suite_of

EACH = "check_runs_of_layers_are_what_each_layer_is"
HELD = "check_runs_leave_what_others_hold"
CHANGED = "check_layers_that_were_changed_are_called"

MUTANTS = [
    Mutant(
        "the input of a run is overwritten",
        FromOutput.forward,
        "x if free else x.clone()",
        "x",
        HELD,
    ),
    Mutant(
        "what comes back is overwritten",
        FromOutput.backward,
        "if free else {}",
        "if True else {}",
        HELD,
    ),
    Mutant(
        "an output that is held is overwritten",
        FromOutput.forward,
        "(out,), False",
        "(out,), True",
        EACH,
    ),
    Mutant(
        "an input that is held is overwritten",
        FromInput.forward,
        "layer.forward(x), (x,)",
        "layer.forward(x), (x.mul_(2),)",
        EACH,
    ),
    Mutant(
        "a derivative is of another layer's input",
        Tape.backward,
        "start = end - count",
        "start = 0",
        EACH,
    ),
    Mutant(
        "a run ends with what others hold",
        FusedLayers._trim,
        "isinstance(run[end - 1], nn.Flatten)",
        "False",
        HELD,
    ),
    Mutant(
        "a run begins with what overwrites its input",
        FusedLayers._runs,
        'not getattr(layer, "inplace", False)',
        "True",
        HELD,
    ),
    Mutant(
        "hooks are left out",
        sequential._is_altered,
        "any(attributes.get(name) for name in _HOOKS)",
        "False",
        CHANGED,
    ),
    Mutant(
        "forwards of their own are left out",
        sequential._is_altered,
        '"forward" in attributes',
        "False",
        CHANGED,
    ),
    Mutant(
        "frozen layers are trained",
        FusedLayers._is_stock,
        "id(p) in self._trained",
        "True",
        CHANGED,
    ),
    Mutant(
        "pools are of other sizes",
        MaxPool._sizes,
        "layer.stride, layer.padding",
        "layer.padding, layer.stride",
        EACH,
    ),
    Mutant(
        "numbers with channels last are read as if channels came first",
        MaxPool.forward,
        "x.contiguous(memory_format=torch.channels_last)",
        "x.permute(0, 2, 3, 1).reshape(x.shape)",
        EACH,
    ),
    Mutant(
        "layers that overwrite what is held are in runs",
        FusedLayers._is_stock,
        "not in_place and",
        "",
        EACH,
    ),
    Mutant(
        "layers on positions are a run",
        FusedLayers.__init__,
        "if batched",
        "if True",
        "check_layers_on_positions_are_no_run",
    ),
    Mutant(
        "what runs hold is not counted",
        agreement.held_by,
        "else holding:",
        "else nullcontext():",
        "check_what_runs_hold_counts_as_memory",
    ),
    Mutant(
        "other weights are taken for parameters",
        sequential._through,
        "not trained.issuperset(map(id, parameters))",
        "False",
        "check_other_weights_in_the_places_of_parameters_are_used",
    ),
    Mutant(
        "global hooks are left out",
        sequential._through,
        "usual = hooked or",
        "usual =",
        "check_a_hook_that_comes_later_is_called",
    ),
    Mutant(
        "the model's own forward is not put back",
        FusedLayers._instead,
        'vars(module).pop("forward", None)',
        "pass",
        "check_a_hook_that_comes_later_is_called",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=(RuntimeError,)
)
