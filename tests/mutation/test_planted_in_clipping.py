"""Planted bugs of the clipping engine, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import clipping_checks  # noqa: F401 - registers its checks

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

from privlearn.clipping import kernels

C = "privlearn.clipping."
ENGINE = C + "gradients:ClippedGradients."
MUTANTS = [
    Mutant("Gram sums that cancel are believed", C + "examples:Gram.__init__", "_CANCELLED *", "-1.0 *",
           "check_terms_that_cancel_keep_their_norm"),
    Mutant("examples that were formed apart are added twice", C + "examples:Gram.add_weighted",
           "weights.index_fill(0, self._apart, 0.0)", "weights", "check_terms_that_cancel_keep_their_norm"),
    Mutant("one of two factors can't be squared", C + "examples:Gram.__init__", " & squarable", "",
           "check_norms_that_leave_single_precision"),
    Mutant("no room for what Gram products lose", C + "examples:Gram.__init__", "_GRAM_LOST *", "0 *",
           "check_norms_that_leave_single_precision"),
    Mutant("norms that underflow", C + "examples:row_norms", "float(low) > _SAFE[0]", "True",
           "check_norms_that_leave_single_precision"),
    Mutant("norms that overflow", C + "examples:row_norms", "float(high) < _SAFE[1]", "True",
           "check_norms_that_leave_single_precision"),
    Mutant("squares of a long row one after another", C + "examples:row_norms", "if whole:",
           "whole, norms = 0, torch.linalg.vector_norm(flat, dim=1)\n    if whole:",
           "check_norms_that_leave_single_precision"),
    Mutant("no room for the rounding of norms", ENGINE + "_add_clipped", "_ROUNDINGS *", "0 *",
           "check_clipped_examples_leave_room_for_rounding"),
    Mutant("norms of so few digits as the model runs in", C + "examples:row_norms", "return norms.double()",
           "return norms.bfloat16().double()", "check_low_precision_keeps_the_bound"),
    Mutant("uses of one parameter are normed apart", C + "examples:together", "before[1] <= after[0]", "True",
           "check_rules_give_each_examples_gradient"),
    Mutant("pieces that overlap are taken for disjoint", C + "examples:together", "before[1] <= after[0]",
           "before != after", "check_rules_give_each_examples_gradient"),
    Mutant("only a parameter's first piece counts", C + "examples:Pieces.__init__", ".sum(0)", "[0]",
           "check_every_kind_of_gradient_is_what_it_stands_for"),
    Mutant("tokens of different examples are merged", C + "examples:Rows.__init__", "owner * total", "owner * 0",
           "check_every_kind_of_gradient_is_what_it_stands_for"),
    Mutant("tokens are added unclipped", C + "examples:Rows.add_weighted", " * weights[owners, None]", "",
           "check_every_kind_of_gradient_is_what_it_stands_for"),
    Mutant("biases are left out", C + "capture:Found.keep", "self.uses", "parameter.dim() > 1 and self.uses",
           "check_rules_give_each_examples_gradient"),
    Mutant("a layout from one batch size", C + "capture:Layout.between",
           "one[0] * batches[1] == other[0] * batches[0]", "True", "check_rules_give_each_examples_gradient"),
    Mutant("the batch second, read as if first", C + "capture:Call.grouped", "t.transpose(0, 1)",
           "t.reshape(t.shape[1], t.shape[0], *t.shape[2:])", "check_rules_give_each_examples_gradient"),
    Mutant("another sequence of operations passes", C + "ways:Layers.__call__", "if capture.trace != self._trace:",
           "if False:", "check_branches_that_only_real_data_take_change_nothing"),
    Mutant("rows may move", C + "order:moved", "tensor = source(func, args, kwargs)", "tensor = None",
           "check_branches_that_only_real_data_take_change_nothing"),
    Mutant("a use without a rule passes", C + "ways:Layers.__call__", "if flow is not None:", "if False:",
           "check_branches_that_only_real_data_take_change_nothing"),
    Mutant("memory in use is used again", C + "scratch:Scratch.empty", "_cdata) == 1", "_cdata) >= 1",
           "check_memory_in_use_is_not_used_again"),
    Mutant("the count is left out of the sensitivity", C + "styles:Quantile.norm",
           "clip_norm * math.hypot(1.0, self.share)", "clip_norm",
           "check_one_example_moves_every_clip_by_at_most_its_sensitivity"),
    Mutant("automatic weights without the norm", C + "styles:Automatic.weights", "(norms + self.stability)",
           "(0.0 * norms + self.stability)", "check_one_example_moves_every_clip_by_at_most_its_sensitivity"),
    Mutant("the clip moves by the true count", ENGINE + "__call__", "values = (*sums, clipped) if",
           "self.clip_norm *= 0.9 if float(clipped) > 0 else 1.1; values = (*sums, clipped) if",
           "check_the_clip_moves_only_by_what_was_released"),
    Mutant("the count is released without noise", "privlearn.mechanisms.release:_noised",
           "add_gaussian(part.values,", "add_gaussian(part.values[: -1 if len(part.values) > 1 else None],",
           "check_every_released_tensor_is_noisy"),
    Mutant("biases are released without noise", "privlearn.mechanisms.release:_noised",
           "add_gaussian(part.values,", "add_gaussian([value for value in part.values if value.dim() > 1],",
           "check_every_released_tensor_is_noisy"),
    Mutant("copies are clipped one by one", ENGINE + "_problem", "self._copies", "1",
           "check_copies_of_an_example_are_one_example"),
    Mutant("copies are added, not averaged", C + "ways:Problem.losses", ".mean(1)", ".sum(1)",
           "check_copies_of_an_example_are_one_example"),
    Mutant("micro-batches share a row", ENGINE + "__call__", "sample.indices[start:stop]",
           "sample.indices[max(start - 1, 0):stop]", "check_micro_batches_take_every_row_once"),
    Mutant("micro-batches drop a row", ENGINE + "__call__", "sample.indices[start:stop]",
           "sample.indices[start : max(stop - 1, start + 1)]", "check_micro_batches_take_every_row_once"),
    Mutant("what buffers held stays in the sums", ENGINE + "__call__", "total.zero_()", "total",
           "check_buffers_are_cleared_before_use"),
    Mutant("a layer is clipped by the first one's norm", ENGINE + "_add_clipped", "[layer]", "[0]",
           "check_one_example_moves_the_sum_by_at_most_the_sensitivity"),
    Mutant("the examples beside NaN are lost with it", ENGINE + "_add_clipped", "not finite.any()", "not finite.all()",
           "check_examples_beside_one_that_is_not_finite_stay"),
    Mutant("those that stand in for rows of NaN are counted", ENGINE + "_add_clipped", "(squares) * finite", "(squares)",
           "check_examples_beside_one_that_is_not_finite_stay"),
    Mutant("a fast product need not be right", C + "kernels:_probe", "if not torch.allclose",
           "if False and not torch.allclose", "check_wrong_products_are_not_used"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS, caches=[kernels._probe])
