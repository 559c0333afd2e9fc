"""Planted bugs in `privlearn budget --serve`, each of which a named check must catch."""

from __future__ import annotations

from privlearn.cli import planner
from tests.support.mutant import Mutant, suite_of

OWN = "check_only_the_planners_own_page_is_answered"
SEVERAL = "check_several_runs_are_priced_as_several"
EXPORTS = "check_what_the_planner_gives_away_runs"

MUTANTS = [
    Mutant(
        "any host is answered",
        planner.Planner.is_own,
        "return host in",
        "return True or host in",
        OWN,
    ),
    Mutant(
        "a host is known by its beginning",
        planner.Planner.is_own,
        "return host in (",
        "return host.startswith(HOST) or host in (",
        OWN,
    ),
    Mutant(
        "any page may ask",
        planner._Handler.do_GET,
        "same_origin = same_origin and",
        "same_origin = same_origin or",
        OWN,
    ),
    Mutant(
        "other sites may ask",
        planner._Handler.do_GET,
        'or site not in ("none", "same-origin")',
        "",
        OWN,
    ),
    Mutant(
        "every machine may ask", planner.Planner.__init__, "(HOST, port)", '("0.0.0.0", port)', OWN
    ),
    Mutant("two runs cost what one costs", planner.several, "* runs", "* 1", SEVERAL),
    Mutant(
        "runs that follow results are added up",
        planner.several,
        "if runs > 1:",
        "if False:",
        SEVERAL,
    ),
    Mutant(
        "one run's attack for all",
        planner.several,
        "percent_up(tradeoff(total,",
        "percent_up(tradeoff(plan.event(),",
        SEVERAL,
    ),
    Mutant(
        "the snippet leaves a release out",
        planner.snippet,
        "if plan.temperature is not None:",
        "if False:",
        EXPORTS,
    ),
    Mutant(
        "the command forgets the batch size",
        planner._words,
        "for name in OPTIONS:",
        'for name in (n for n in OPTIONS if n != "batch-size"):',
        EXPORTS,
    ),
    Mutant(
        "the headline is rounded down",
        planner.figures,
        'rounded_up(answer["epsilon"])',
        'str(int(1000 * answer["epsilon"]) / 1000)',
        "check_the_planner_answers_as_the_command_line",
    ),
    Mutant(
        "the table shows the plan that is chosen",
        planner.samplings,
        'applicable | {"sampling": kind}',
        "applicable",
        "check_the_planners_curves_end_at_its_figures",
    ),
    Mutant(
        "the least epsilon of any epoch",
        planner.spent,
        "points = sorted(least.items())",
        "points = sorted(least.items())[:-1]",
        "check_the_planners_curves_end_at_its_figures",
    ),
    Mutant(
        "a number twice",
        planner._answer_query,
        "if len(dict(pairs)) < len(pairs):",
        "if False:",
        "check_the_planner_refuses_in_the_command_lines_words",
    ),
    Mutant(
        "any option may be asked for",
        planner._request,
        "if name not in OPTIONS",
        "if not name",
        "check_the_planner_refuses_in_the_command_lines_words",
    ),
    Mutant(
        "the page runs what it likes",
        planner.page,
        "script-src '{_digest(files['js'])}'",
        "script-src 'unsafe-inline'",
        "check_the_planners_page_loads_nothing_and_computes_nothing",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
