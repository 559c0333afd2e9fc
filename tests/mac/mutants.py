"""Planted bugs in DP-MAC, each of which a named check must catch."""

from __future__ import annotations

import pytest

from privlearn.core import plan, sampling
from privlearn.core.clipping import derivative_bounds
from privlearn.core.mechanisms import release
from privlearn.methods.dpmac import analytic, coordinates, dpmac, expansion, network, sums
from privlearn.runs import session
from tests.mac.checks_coefficients import STILL, ZSTEPS, _moved
from tests.support.mutant import Mutant, suite_of

COUPLED = [
    Mutant(
        "losses of the batch are averaged in Z-steps",
        coordinates._gradients,
        "last @ layers",
        "last / len(y) @ layers",
        "check_coordinates_do_not_move_with_the_batch",
    ),
    Mutant(
        "gradients of Z-steps are clipped together",
        coordinates.fitted,
        "each.grad = gradient",
        "each.grad = gradient * min(1.0, 1e-3 / float(gradient.norm() + 1e-30))",
        "check_coordinates_do_not_move_with_the_batch",
    ),
    Mutant(
        "the rate of Z-steps follows the batch",
        coordinates.fitted,
        "descent.step()",
        (
            'descent.param_groups[0]["lr"] = settings.rate / (1 + float(z[-1].grad.norm())); '
            "descent.step()"
        ),
        "check_coordinates_do_not_move_with_the_batch",
    ),
]
SWEPT = [
    Mutant(
        "losses of the batch are averaged in sweeps",
        coordinates._sweep,
        "/ (-2 * mu)",
        "/ (-2 * mu * len(y))",
        "check_coordinates_do_not_move_with_the_batch",
    ),
    Mutant(
        "residuals of a sweep are scaled by the batch's longest",
        coordinates._sweep,
        "residuals = [residual]",
        "residual = residual / (1 + residual.abs().max()); residuals = [residual]",
        "check_coordinates_do_not_move_with_the_batch",
    ),
    Mutant(
        "mu is forgotten in sweeps",
        coordinates._sweep,
        "/ (-2 * mu)",
        "/ -2",
        "check_a_sweep_backpropagates",
    ),
    Mutant(
        "sweeps lay out each layer on the one before as it was",
        coordinates._sweep,
        "arguments(layer, updated[-1]) if updated else first",
        "u_k",
        "check_a_sweep_backpropagates",
    ),
    Mutant(
        "sweeps forget the activations' slopes",
        coordinates._sweep,
        "(layer.activation.slope(u_k) * residual)",
        "residual",
        "check_a_sweep_backpropagates",
    ),
    Mutant(
        "sweeps go all the way at any rate",
        coordinates._sweep,
        "+ rate * wanted",
        "+ wanted",
        "check_a_sweep_backpropagates",
    ),
    Mutant(
        "sweeps forget the residuals that were there",
        coordinates._sweep,
        "new + old_share +",
        "new +",
        "check_sweeps_end_where_the_objective_is_least",
    ),
    Mutant(
        "what sweeps lay out is not projected",
        coordinates._sweep,
        "projected(new + old_share + rate * wanted, radius)",
        "new + old_share + rate * wanted",
        "check_what_analytic_bounds_rest_on_is_projected",
    ),
]
MUTANTS = [
    *COUPLED,
    *SWEPT,
    Mutant(
        "coordinates are stored by place in the batch",
        sums.BatchDerivatives._fit,
        "stored[rows] = z_k",
        "stored[: len(rows)] = z_k",
        "check_stored_coordinates_stay_with_their_record",
    ),
    Mutant(
        "stored coordinates of strangers",
        sums.BatchDerivatives._fit,
        "stored[rows].where(met, z_k)",
        "stored[rows]",
        "check_stored_coordinates_stay_with_their_record",
    ),
    Mutant(
        "coordinates are not projected",
        coordinates.fitted,
        "each.copy_(projected(each, radius))",
        "pass",
        "check_what_analytic_bounds_rest_on_is_projected",
    ),
    Mutant(
        "inputs are not projected",
        sums.BatchDerivatives._parts,
        "projected(inputs, self._input_radius())",
        "inputs",
        "check_what_analytic_bounds_rest_on_is_projected",
    ),
    Mutant(
        "targets are not projected",
        sums.BatchDerivatives._parts,
        "projected(targets, bound.y_norm)",
        "targets",
        "check_what_analytic_bounds_rest_on_is_projected",
    ),
    Mutant(
        "the bias is left out of analytic bounds",
        analytic.with_bias,
        "math.hypot(norm, 1.0) if bias else norm",
        "norm",
        "check_the_bias_counts_in_every_norm",
    ),
    Mutant(
        "the bias is left out of norms",
        sums.Products.norms,
        "z = row_norms(self.inputs)",
        "z = row_norms(self.inputs[:, :-1])",
        "check_the_bias_counts_in_every_norm",
    ),
    Mutant(
        "the output layer is not counted",
        derivative_bounds.shares_of_parts,
        "for share in shares)",
        "for share in shares[:-1])",
        "check_the_joint_release_counts_every_layer",
    ),
    Mutant(
        "first and second parts share their share",
        derivative_bounds.shares_of_parts,
        " * bound.order)",
        ")",
        "check_the_joint_release_counts_every_layer",
    ),
    Mutant(
        "shares may add up to more than the whole",
        release._factors,
        "whole > 1 + 1e-9",
        "False",
        "check_shares_are_at_most_the_whole",
    ),
    Mutant(
        "shares are forgotten",
        release._factors,
        "math.sqrt(max(whole, 1.0)) / share",
        "1.0",
        "check_the_joint_release_counts_every_layer",
    ),
    Mutant(
        "every layer is a release of its own",
        dpmac.MacSteps._release,
        "noisy = release(",
        "noisy = (lambda *parts, shares, **rest: [release(part, **rest)[0] for part in parts])(",
        "check_a_batch_is_one_event",
    ),
    Mutant(
        "the cross term of b is dropped",
        expansion.Surrogate.around,
        "gradient - 2 * _times(C, weight)",
        "gradient",
        "check_surrogates_are_rebuilt_from_what_was_released",
    ),
    Mutant(
        "b is rebuilt with half of C",
        expansion.Surrogate.around,
        "gradient - 2 * _times(C, weight)",
        "gradient - _times(C, weight)",
        "check_coefficients_are_those_of_the_taylor_expansion",
    ),
    Mutant(
        "C is half of what it is for",
        expansion.hidden_second,
        "activation.slope(u).square()",
        "activation.slope(u).square() / 2",
        "check_coefficients_are_those_of_the_taylor_expansion",
    ),
    Mutant(
        "the 2 of the squared loss is forgotten",
        expansion.hidden_first,
        "2 * activation",
        "activation",
        "check_coefficients_are_those_of_the_taylor_expansion",
    ),
    Mutant(
        "mu is forgotten in Z-steps",
        coordinates._gradients,
        "mu * (z_k",
        "(z_k",
        "check_coordinates_follow_the_gradients_of_equation_two",
    ),
    Mutant(
        "mu is forgotten in analytic bounds",
        sums.BatchDerivatives.limits,
        "mu if number < last else 1.0",
        "1.0",
        "check_what_analytic_bounds_rest_on_is_projected",
    ),
    Mutant(
        "mu is forgotten in derivatives",
        sums.BatchDerivatives._products,
        "d = mu * hidden_first",
        "d = hidden_first",
        "check_derivatives_are_those_of_the_weighted_objective",
    ),
    Mutant(
        "Newton steps follow negative curvature",
        expansion.Surrogate.newton,
        "values.clamp(min=floor)",
        "values",
        "check_newton_steps_are_safe",
    ),
    Mutant(
        "the printed bound on b, without its cross term",
        analytic.hidden,
        "(_norm(sup.rest) + outputs * float(sup.tilt.max()))",
        "math.hypot(_norm(sup.rest), outputs * float(sup.tilt.max()))",
        "check_analytic_sensitivities_hold_for_the_worst_example",
    ),
    Mutant(
        "the printed bound on b, a factor of 2 taken as its root",
        analytic.hidden,
        "linear=2 * inputs",
        "linear=math.sqrt(2) * inputs",
        "check_analytic_sensitivities_hold_for_the_worst_example",
    ),
    Mutant(
        "the printed bound on a, slopes for values",
        analytic.hidden,
        "float(sup.constant.sum())",
        "float(sup.slope.sum())",
        "check_analytic_sensitivities_hold_for_the_worst_example",
    ),
    Mutant(
        "the bound on C for another C",
        analytic.hidden,
        "curvature=inputs**2",
        "curvature=0.5 * inputs**2",
        "check_analytic_sensitivities_hold_for_the_worst_example",
    ),
    Mutant(
        "the bound on dT forgets the targets",
        analytic.hidden,
        "(product + outputs * float(sup.slope.max()))",
        "product",
        "check_analytic_sensitivities_hold_for_the_worst_example",
    ),
    Mutant(
        "a bound on cross-entropy for targets of 0 only",
        analytic.binary,
        "linear=inputs * _norm(tilt)",
        "linear=inputs * _norm(tilt) / 2",
        "check_analytic_sensitivities_hold_for_the_worst_example",
    ),
    Mutant(
        "suprema end at the table's last point",
        network._softplus_suprema,
        "torch.maximum(tabulated[below], ends)",
        "tabulated[below]",
        "check_suprema_of_softplus_are_above_every_value",
    ),
    Mutant(
        "derivatives are not clipped",
        sums.DerivativeSums._lengths,
        "norms.clamp(max=kept(limit, [self._dtype]))",
        "norms",
        "check_one_example_moves_the_derivative_sums_by_at_most_the_sensitivity",
    ),
    Mutant(
        "limits leave no room for rounding",
        sums.DerivativeSums._lengths,
        "kept(limit, [self._dtype])",
        "limit",
        "check_clipped_derivatives_leave_room_for_rounding",
    ),
    Mutant(
        "derivatives of many examples are added up in single precision",
        sums.DerivativeSums.__init__,
        "like.double()",
        "like",
        "check_sums_of_many_derivatives_are_bounded",
    ),
    Mutant(
        "norms of outputs alone",
        sums.Products.norms,
        "[z * row_norms(self.first)]",
        "[row_norms(self.first)]",
        "check_derivative_sums_are_those_of_clipped_matrices",
    ),
    Mutant(
        "room for second derivatives that nobody wants",
        sums.DerivativeSums.__init__,
        "[like.new_zeros(outputs, *[inputs] * order) for order, _ in enumerate(layer, start=1)]",
        "[like.new_zeros(outputs, inputs), like.new_zeros(outputs, inputs, inputs)][: len(layer)]",
        "check_sums_of_first_order_have_no_room_for_second",
    ),
    Mutant(
        "second derivatives by the first power of inputs",
        sums.Products.norms,
        "[z * z * row_norms",
        "[z * row_norms",
        "check_derivative_sums_are_those_of_clipped_matrices",
    ),
    Mutant(
        "replaced examples move as little as removed ones",
        sums.DerivativeSums.bounded,
        "self._adjacency.sum_sensitivity(added.bound)",
        "added.bound",
        "check_one_example_moves_the_derivative_sums_by_at_most_the_sensitivity",
    ),
    Mutant(
        "NaN survives in a derivative",
        sums._units,
        "norms.isfinite() & lengths.isfinite() & ",
        "",
        "check_examples_that_are_not_finite_add_no_derivatives",
    ),
    Mutant(
        "sums are divided by the batch that was drawn",
        dpmac.MacTask.train,
        "batches.take(",
        "batches.weights.__dict__.update(divisor=len(sample) + 1e-9); batches.take(",
        "check_sums_are_divided_by_a_public_number",
    ),
    Mutant(
        "sums are divided by the number of rows",
        dpmac.MacTask.__init__,
        "_examples = plan.examples or len(x)",
        "_examples = len(x)",
        "check_sums_are_divided_by_a_public_number",
    ),
    Mutant(
        "the learned thresholds are for free",
        dpmac.MacSteps.learn,
        "self._release(parts, learned.noise_multiplier)",
        "[value for part in parts for value in part.values]",
        "check_thresholds_are_learned_and_paid_for",
    ),
    Mutant(
        "thresholds of C for those of second derivatives",
        sums.BatchDerivatives.histograms,
        "layer_norms * 2**kind",
        "layer_norms",
        "check_thresholds_are_learned_and_paid_for",
    ),
    Mutant(
        "histograms are learned again after an interruption",
        dpmac.MacSteps.learn,
        "if self.derivatives.learned:",
        "if False:",
        "check_mac_runs_in_pieces_end_where_the_whole_one_does",
    ),
    Mutant(
        "a replaced example moves a histogram by 1",
        sums.histogram,
        "2**0.5 if",
        "1.0 if",
        "check_histograms_of_norms_are_bounded",
    ),
    Mutant(
        "NaN is counted in a histogram",
        sums.histogram,
        "lengths[lengths.isfinite()]",
        "lengths",
        "check_histograms_of_norms_are_bounded",
    ),
    Mutant(
        "the histogram is left out of the certificate",
        plan.Plan.event,
        "during.insert(self.clip.learned.after, self.clip.learned.event())",
        "pass",
        "check_mac_certificates_are_recomputed",
    ),
    Mutant(
        "a run without noise looks like any other",
        session.TrainingSession.charging,
        "self.ledger.charge(NonPrivate",
        "(lambda *_: None)(NonPrivate",
        "check_runs_without_noise_are_never_published",
    ),
    Mutant(
        "fixed batches priced for more noise",
        sampling.FixedOrder.event,
        "FixedBatches(mechanism)",
        "FixedBatches(type(mechanism)(9 * mechanism.noise_multiplier))",
        "check_fixed_batches_are_not_amplified",
    ),
    Mutant(
        "the loss is printed",
        dpmac.MacSteps._release,
        "noisy = release(",
        "print(float(parts[0].values[0].sum())); noisy = release(",
        "check_neighbouring_mac_runs_look_the_same",
    ),
]


test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)


@pytest.mark.parametrize(
    "mutant", [*COUPLED, *SWEPT[:2]], ids=lambda mutant: mutant.name.replace(" ", "-")
)
def test_planted_couplings_exceed_the_tolerance_a_hundredfold(mutant: Mutant) -> None:
    with mutant.planted():
        for dtype, still in STILL.items():
            moved = [_moved(dtype, scale, None, own) for scale in (1.0, 1e-3) for own in ZSTEPS]
            assert max(moved) > 100 * still
