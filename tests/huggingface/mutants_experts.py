"""Planted bugs of experts that are computed for a whole batch, each of which a named check must
catch.
"""

from __future__ import annotations

from tests.support import texts as made
from tests.support.mutant import Mutant, suite_of

made.require_transformers()

from privlearn.huggingface import experts, routing  # noqa: E402

AT_ONCE = "check_experts_are_computed_for_a_batch_at_once"
NORMS = "check_a_weight_of_experts_has_each_examples_norm"
MUTANTS = [
    Mutant(
        "an expert's rows of all examples are one gradient",
        routing.RoutedProducts.__init__,
        "keys, order = (owner * total + experts).flatten().sort(stable=True)",
        "keys, order = (0 * owner * total + experts).flatten().sort(stable=True)",
        NORMS,
    ),
    Mutant(
        "the norm is that of one expert alone",
        routing.RoutedProducts.__init__,
        "add_rows(squares, self._keys[part] // total, row_norms(products).square())",
        "squares.index_copy_(0, self._keys[part] // total, row_norms(products).square())",
        NORMS,
    ),
    Mutant(
        "products that are formed again belong to other experts",
        routing.RoutedProducts._formed,
        "yield part, torch.stack",
        "yield slice(start, start + 1) if start else part, torch.stack",
        NORMS,
    ),
    Mutant(
        "sums forget the weights of examples",
        routing.RoutedProducts.add_weighted,
        "* weights[owners, None, None]",
        "* weights.sign()[owners, None, None]",
        NORMS,
    ),
    Mutant(
        "gradients of a weight the other way round are turned",
        routing.Routed.backward,
        "rows, columns = columns, rows",
        "rows, columns = rows, columns",
        AT_ONCE,
    ),
    Mutant(
        "experts are given the rows of their neighbours",
        routing._by_expert,
        "order = experts.argsort(stable=True)",
        "order = experts.argsort(stable=True); x = x.roll(1, 0)",
        AT_ONCE,
    ),
    Mutant(
        "shares of experts are left out",
        experts._compute,
        "weighted = each.view(tokens, choices, -1) * shares[..., None]",
        "weighted = each.view(tokens, choices, -1) * shares[..., None].detach()",
        AT_ONCE,
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(RuntimeError, IndexError)
)
