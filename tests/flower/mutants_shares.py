"""Planted bugs of noise by the sites, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("flwr", reason="Flower is not installed")

from privlearn.core.mechanisms import discrete_gaussian, noise_shares
from privlearn.flower import secure_stages, share_questions, site_shares
from privlearn.methods.pate import answers, site_noise
from privlearn.methods.pate import plan as teachers_plan

PAY = "check_the_shares_that_have_to_be_there_pay_for_the_claim"
PRICE = "check_no_sum_of_shares_costs_more_than_its_price"
LAW = "check_draws_of_shares_are_discrete_gaussians"
SAME = "check_the_same_question_gets_the_same_answer"
SERVER = "check_a_server_charges_before_it_asks_and_adds_no_noise"
MUTANTS = [
    # Prices
    Mutant(
        "sums of discrete Gaussians cost what one does",
        discrete_gaussian.price_sum,
        "whole + distance_of_sum(sigma, shares) * count(",
        "whole + 0 * count(",
        PRICE,
    ),
    Mutant(
        "the price counts a share too many",
        discrete_gaussian.price_sum,
        "(2 * shares * sigma**2)",
        "(2 * (shares + 1) * sigma**2)",
        PRICE,
    ),
    Mutant(
        "the noise is priced with all sites, though some may be absent",
        site_noise.NoiseGrid.fit,
        "needed = teachers - absent",
        "needed = teachers",
        PAY,
    ),
    Mutant(
        "each site adds all of the noise",
        site_noise.NoiseGrid.fit,
        "/ math.sqrt(needed) ",
        "",
        PAY,
    ),
    Mutant(
        "sums of shares are priced as Gaussian noise",
        teachers_plan.PatePlan.event,
        "ZCDP(0.5 / self.noise**2)",
        "Gaussian(self.noise)",
        "check_noise_by_sites_costs_more_than_gaussian_noise",
    ),
    Mutant(
        "sites that share a folder send the same share",
        site_shares.SiteShares.answer,
        "{circle.node} ",
        "",
        "check_sites_that_share_a_ledger_send_different_shares",
    ),
    Mutant(
        "sums of too few sites are opened",
        site_shares.SiteShares._require_enough,
        "if circle.name and circle.least < enough:",
        "if False:",
        "check_a_site_refuses_sums_with_too_few_shares",
    ),
    # Draws
    Mutant(
        "nobody adds noise",
        noise_shares.release_share,
        "return integers + share",
        "return integers",
        "check_shares_have_the_claimed_variance",
    ),
    Mutant(
        "each share is added twice",
        noise_shares.release_share,
        "return integers + share",
        "return integers + 2 * share",
        "check_shares_have_the_claimed_variance",
    ),
    Mutant(
        "no noise at all comes twice as often",
        discrete_gaussian._draw_laplace,
        "if size or not negative:",
        "if True:",
        LAW,
    ),
    Mutant(
        "every Laplace draw is accepted",
        discrete_gaussian._draw,
        "if _is_exponential((abs(value) * centre - above) ** 2, unit, bits):",
        "if True:",
        LAW,
    ),
    Mutant(
        "a share is drawn before it is charged",
        noise_shares.release_share,
        "ledger.charge(event, adjacency)\n    # Only from here on is anything drawn.\n"
        "    with stream.drawing_for([integers]):\n"
        "        share = draw_discrete_gaussian(len(integers), sigma, stream)\n",
        "with stream.drawing_for([integers]):\n"
        "        share = draw_discrete_gaussian(len(integers), sigma, stream)\n"
        "    ledger.charge(event, adjacency)\n",
        "check_a_share_is_charged_before_it_is_drawn",
    ),
    # A site
    Mutant(
        "the same question gets other noise",
        site_shares.SiteShares.answer,
        "if answer_file.exists():",
        "if False:",
        SAME,
    ),
    Mutant(
        "an answer is not kept",
        site_shares.SiteShares.answer,
        "write_durably(answer_file, _spell(noisy), mode=0o600)",
        "pass",
        SAME,
    ),
    Mutant(
        "the same answer goes into sums of other sites",
        site_shares.SiteShares.answer,
        ".encode() + circle.name",
        ".encode()",
        "check_another_question_gets_other_noise",
    ),
    Mutant(
        "a server tells rounds apart for the sites",
        secure_stages.name_circle,
        "derive_key(round_.seed, _CIRCLE, round_.name)",
        "round_.name",
        "check_rounds_of_one_name_have_other_noise",
    ),
    Mutant(
        "a site's limit is ignored",
        site_shares.SiteShares._release,
        'Ledger.open(self._path, what="a share of the noise of PATE")',
        "Ledger()",
        "check_a_site_keeps_its_limit",
    ),
    Mutant(
        "a site believes the server's number of absent sites",
        site_shares.SiteShares._require_declared,
        "(plan.teachers, shares.absent) != (self._teachers, self._absent)",
        "plan.teachers != self._teachers",
        "check_a_site_takes_no_number_from_the_server",
    ),
    Mutant(
        "a site answers within other bounds than the plan's",
        share_questions.unpack_share_question,
        "if asked.aggregate != plan.aggregate:",
        "if False:",
        "check_a_site_refuses_more_than_its_plan_is_priced_for",
    ),
    Mutant(
        "a site whose teacher fails sends no noise",
        site_shares._try_to_compute,
        "return np.zeros(question.size, np.int64)",
        "raise ValueError",
        "check_a_teacher_that_fails_sends_noise_all_the_same",
    ),
    Mutant(
        "answers beyond the bound are sent",
        site_shares.require_bounded,
        "if not question.asked.integers.fits(answers):",
        "if False:",
        "check_a_teacher_that_fails_sends_noise_all_the_same",
    ),
    # The server
    Mutant(
        "the server adds noise, too",
        answers.receive_answers,
        ".double().mul_(grid.step)",
        ".double().mul_(grid.step).add_(torch.randn(size))",
        SERVER,
    ),
    Mutant(
        "the server asks before it charges",
        noise_shares.NoisySum.receive,
        "ledger.charge(event, adjacency)\n    total = ask()",
        "total = ask()\n    ledger.charge(event, adjacency)",
        SERVER,
    ),
    Mutant(
        "a sum of too few shares is released",
        noise_shares.NoisySum.receive,
        "if len(set(total.nodes)) < needed:",
        "if False:",
        "check_a_sum_of_too_few_shares_is_refused",
    ),
    Mutant(
        "a killed server asks another question",
        answers.keep_received,
        'question = saved.plain["question"]',
        "question = new_question()",
        "check_a_killed_server_asks_the_same_question_again",
    ),
    Mutant(
        "a killed server is charged again",
        answers.keep_received,
        'ledger.resume(saved.plain["run"], plan.event(), plan.adjacency, plan.unit)',
        "ledger.begin(plan.event(), plan.adjacency, plan.unit)",
        "check_a_killed_server_asks_the_same_question_again",
    ),
    Mutant(
        "an older copy of kept answers is gone on from",
        answers.keep_received,
        "if ledger.has_ended:",
        "if False:",
        "check_an_older_copy_of_kept_answers_is_refused",
    ),
    Mutant(
        "noisy sums are made by hand",
        noise_shares.NoisySum.__post_init__,
        "if self._received is not _RECEIVED:",
        "if False:",
        "check_noisy_sums_are_not_made_by_hand",
    ),
    Mutant(
        "sums without noise are released",
        answers.release_answers,
        "if plan.site_noise is not None:",
        "if False:",
        "check_sums_without_noise_are_not_released_by_a_plan_of_noise_by_sites",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(KeyError, TypeError, ValueError, AssertionError)
)
