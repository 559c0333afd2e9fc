"""`card.html`: the model card as one page for people, with pictures; it loads nothing, runs nothing
and asks no one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import resources
from itertools import groupby

from privlearn._texts import for_html
from privlearn.core.accounting.events import Composed, compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit, rounded_up, times
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.tradeoff import RATES, percent_up
from privlearn.core.plan import Plan
from privlearn.errors import PrivlearnError
from privlearn.publishing import certificate, questions
from privlearn.publishing.accuracy import interval, of_one_answer
from privlearn.publishing.card import (
    audit_commands,
    check_command,
    describe_other_runs,
    figures_from,
    lines_of_use,
    noun,
    odds,
    reading,
    released_columns,
    settings,
    title_of,
    why_neighbours,
    words_on_columns,
    words_on_rows,
)
from privlearn.publishing.charts import interval_chart, line_chart, number_axis, percent_axis
from privlearn.publishing.columns import describe_columns
from privlearn.publishing.costs import Cost, costs
from privlearn.publishing.statement import Statement
from privlearn.publishing.verify import Verification

#: Nothing is loaded and nothing runs, whatever a page would come to hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
#: False-positive rates of the table beside the trade-off curve.
_RATES = (0.001, 0.01, 0.05, 0.1, 0.25)
#: Epochs that a picture of the noise shows at most.
_MOST_EPOCHS = 400


def write(said: Statement, checked: Verification) -> str:
    """Return the page.

    Guarantee: post-processing of what is published beside it. Every text that others chose is
    escaped.

    Args:
        said: what is said of the model.
        checked: what `verify` says of the folder without this page.
    """
    sections = {
        "trained": ("What was trained", _describe_training(said)),
        "meaning": ("What the guarantee means", _explain_guarantee(said)),
        "protected": ("What is protected, and what is not", _describe_protection(said)),
        "quality": ("How good the model is", _quality(said)),
        "noise": ("Where the privacy was spent", _spent(said)),
        "check": ("Checked, and how to check again", _check(said, checked)),
        **({"attack": ("Attack on the claim", _attack(said))} if said.audit else {}),
        "questions": ("The questions of NIST SP 800-226", _questions(said)),
        "settings": ("All settings", _settings(said)),
    }
    links = "".join(
        f'<li><a href="#{name}">{text(title)}</a></li>' for name, (title, _) in sections.items()
    )
    body = "".join(
        (
            f'<section aria-labelledby="{name}">\n<h2 '
            f'id="{name}">{text(title)}</h2>\n{inner}\n</section>\n'
        )
        for name, (title, inner) in sections.items()
    )
    style = resources.files(__package__).joinpath("card.css").read_text("utf-8")
    guarantee = said.guarantee
    claim = (
        guarantee.epsilon,
        guarantee.delta,
        guarantee.adjacency.value,
        guarantee.unit,
        said.signed_by,
    )
    return (
        f"{certificate.page_head(*claim)}"
        f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<header>\n{_top(said)}\n"
        f'</header>\n<nav aria-label="On this page">\n<ul>{links}</ul>\n</nav>\n'
        f"<main>\n{body}</main>\n</body>\n</html>\n"
    ).replace(" %", "&nbsp;%")


def text(content: object) -> str:
    """`content` for HTML, in an element or an attribute: on one line, control characters and markup
    escaped.
    """
    return for_html(content)


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def pairs_table(
    caption: str, rows: Iterable[tuple[object, object]], heads: tuple[str, str] | None = None
) -> str:
    """A table of a label and a text each."""
    cells = "".join(
        f'<tr><th scope="row">{text(label)}</th><td>{text(value)}</td></tr>'
        for label, value in rows
    )
    style = "" if heads else ' class="settings"'
    titles = "".join(f'<th scope="col">{text(title)}</th>' for title in heads or ())
    head = f"<thead><tr>{titles}</tr></thead>" * bool(heads)
    return f"<table{style}><caption>{text(caption)}</caption>{head}<tbody>{cells}</tbody></table>"


def _top(said: Statement) -> str:
    """The title, and the figures that most readers come for."""
    guarantee, unit = said.guarantee, said.guarantee.unit
    one, sure = noun(unit), percent_up(said.curve.success)
    figures = [
        (
            "Privacy loss (epsilon), at most",
            rounded_up(guarantee.epsilon),
            f"at delta {guarantee.delta:g}: a factor e^{rounded_up(guarantee.epsilon)}, "
            f"{times(guarantee.epsilon)}. A bound for the worst case; smaller is more private.",
        ),
        (
            "At worst",
            sure,
            f"is how often an attacker who is 50 % sure that one {one} took part guesses right at "
            "most. Tossing a coin gives 50 %.",
        ),
        ("Protected unit", "One person" if unit != PrivacyUnit() else "One example", _unit(unit)),
    ]
    ends = interval(said.test_metrics)
    if ends:
        accuracy = f"{said.test_metrics['accuracy'] * 100:.1f} %"
        constant = of_one_answer(said.test_metrics)
        beside = (
            "" if constant is None else f" Always the most frequent answer: {constant * 100:.1f} %."
        )
        figures.append(("Test accuracy", accuracy, f"95 % interval {_ends(*ends)}.{beside}"))
    signed = "Signed" if said.signed_by else "Not signed"
    who = said.signed_by or "Nothing here says who the publisher is."
    figures.append(("Publisher", signed, f"with the key {who}" if said.signed_by else who))
    tiles = "".join(
        (
            f"<div><dt>{text(label)}</dt><dd><span "
            f'class="value">{text(value)}</span><br>{text(words)}</dd></div>'
        )
        for label, value, words in figures
    )
    return (
        f"<h1>{text(title_of(said))} differential privacy</h1>\n"
        '<p class="lead">Random noise in the training limits what this model can tell of any one '
        f"{one} in its training data. How much it may tell is a number, the privacy loss, and "
        "anyone can compute it "
        f'again.</p>\n{_describe_seed(said)}<dl class="figures">{tiles}</dl>'
    )


def _unit(unit: PrivacyUnit) -> str:
    if unit == PrivacyUnit():
        return "One row of the training data. A person with several rows is protected less."
    if unit.rows_per_person is None:
        return (
            f"With up to {unit.group_size} rows of the training data. A person with more is "
            "protected less."
        )
    return f"{str(unit).removeprefix('one person (').removesuffix(')').capitalize()}."


def _describe_seed(said: Statement) -> str:
    if not said.seeded:
        return ""
    return (
        '<div class="note warn"><p><strong>This run used a fixed seed.</strong> Anyone who knows '
        "the seed can take the "
        "noise off the weights. Do not rely on the guarantee for data that matter.</p></div>\n"
    )


def _ends(low: float, high: float) -> str:
    return f"{low * 100:.1f} to {high * 100:.1f} %"


def _describe_training(said: Statement) -> str:
    """The publisher's words on the data, and the first of the settings."""
    task = [("task", said.facts["task"])] if "task" in said.facts else []
    rows = [
        *said.data.items(),
        *task,
        *settings(said, said.trained)[:2],
        ("protected", str(said.guarantee.unit)),
    ]
    words = pairs_table("Of the data, the publisher's own words", rows)
    if released := words_on_rows(said):
        columns = pairs_table(
            "The file of rows", released_columns(said), ("Column", "What it holds")
        )
        words += f"\n<h3>Released rows</h3>\n<p>{text(released)}</p>\n{columns}"
    if said.table is None:
        return words
    columns = pairs_table(
        "Columns", describe_columns(said.table), ("Column", "Kind, and what was declared")
    )
    return f"{words}\n<h3>Columns used</h3>\n<p>{text(words_on_columns(said))}</p>\n{columns}"


def _explain_guarantee(said: Statement) -> str:
    guarantee, one = said.guarantee, noun(said.guarantee.unit)
    replaced = guarantee.adjacency is Adjacency.REPLACE_ONE
    other = "had other values" if replaced else "were missing from the training data"
    attack = said.curve.describe(guarantee.unit).replace("\n", " ")
    points = [(rate, said.curve.true_positive_rate(rate)) for rate in RATES]
    picture = line_chart(
        "tradeoff",
        "The limit on every attack",
        "The share of those who took part that an attack detects at most, over its share of false "
        f"alarms. At 1 % false alarms it is {percent_up(said.curve.true_positive_rate(0.01))}.",
        (percent_axis("False alarms"), percent_axis("Detected at most")),
        {"guess": [(0, 0), (1, 1)], "curve": points},
    )
    rates = [
        (f"{rate * 100:g} %", percent_up(said.curve.true_positive_rate(rate))) for rate in _RATES
    ]
    lines = describe_other_runs(said.others) if said.others else []
    others = "".join(f"<p>{text(line)}</p>\n" for line in lines if line)
    return (
        f"<p>Suppose one {one} {other}. The training, which is random, would then give the same "
        "model with another "
        f"probability. The privacy loss limits how far the two probabilities may lie apart. "
        f"{text(guarantee.meaning)}</p>\n"
        f"<p>{text(odds(guarantee))}</p>\n"
        f"<p>{text(attack)} This holds for attackers who know all other training "
        f"data.</p>\n<p>{text(why_neighbours(guarantee))}</p>\n{others}"
        f'<div class="pair"><figure>{picture}<figcaption>An attacker tries to tell whether one '
        f"{one} took part. "
        "No attack lies above the solid line; the dashed line is guessing without the "
        "model.</figcaption></figure>\n"
        f"{pairs_table('The same in figures', rates, ('False alarms', 'Detected at most'))}</div>"
    )


def _describe_protection(said: Statement) -> str:
    return (
        '<div class="pair">'
        f"<div><h3>Protected</h3>{_list(questions.is_protected(said))}</div>\n"
        f"<div><h3>Not protected</h3>{_list(questions.is_open(said))}</div></div>\n"
        f"<h3>Known gaps</h3>{_list(questions.limits(said))}"
    )


def _quality(said: Statement) -> str:
    metrics = said.test_metrics
    if not metrics.figures:
        return "<p>The publisher gave no test figures.</p>"
    ends, constant = interval(metrics), of_one_answer(metrics)
    picture = ""
    if ends:
        share = metrics["accuracy"]
        rows = [(f"This model: {share * 100:.1f} % ({_ends(*ends)})", ends[0], share, ends[1])]
        if constant is not None:
            rows.append(
                (
                    f"Always the most frequent answer: {constant * 100:.1f} %",
                    constant,
                    constant,
                    constant,
                )
            )
        about = (
            "an estimate, the noise of the figures counted in"
            if metrics.plan
            else "Clopper and Pearson"
        )
        names = "; ".join(row[0] for row in rows)
        chart = interval_chart("accuracy", "Accuracy on test data", names, rows)
        picture = (
            f"<figure>{chart}"
            "<figcaption>Accuracy on the test data, with its 95 % confidence interval "
            f"({about}), if these are a random sample of independent rows.</figcaption></figure>\n"
        )
    rows_of = f" on {metrics.rows:,} rows" if metrics.rows else ""
    figures = [(name.replace("_", " "), metrics.text(name)) for name in metrics.figures]
    return (
        f"{picture}{pairs_table(f'Test figures{rows_of}', figures, ('Figure', 'Value'))}\n"
        f"<p>{text(figures_from(said.paid))}</p>\n<p>{text(reading(said.facts))}</p>"
    )


def _spent(said: Statement) -> str:
    listed = costs(_of_run(said), said.guarantee.delta)
    if words := said.trained.card_words(said.facts).get("Releases"):
        last = len(listed) - (said.paid is not None)  # that of the test figures keeps its name
        listed = [replace(cost, what=words) for cost in listed[:last]] + listed[last:]
    known = all(cost.share is not None for cost in listed)
    share = '<th scope="col">Share of the privacy loss</th>' if known else ""
    rows, first = "", 1
    for what, alike in groupby(listed, lambda cost: cost.what):
        rows += (
            '<tbody><tr><th class="group" scope="rowgroup" '
            f'colspan="{2 + known}">{text(what)}</th></tr>'
        )
        for cost in alike:
            rows += _cost_row(cost, first, known=known)
            first += cost.times
        rows += "</tbody>"
    note = (
        "Shares are of the Rényi divergence at the order that gives epsilon. There the costs of "
        "releases add up; epsilons do not."
        if known
        else "Shares are not known: some release has no price that adds up."
    )
    return (
        f"{_noise(said)}<h3>What each release cost</h3>\n<p>All that was published of the "
        "training data in "
        "this run came from these releases.</p>\n"
        '<table><caption>Releases, in their order</caption><thead><tr><th scope="col">Release</th>'
        f'<th scope="col">Noise multiplier</th>{share}</tr></thead>{rows}</table>\n<p '
        f'class="quiet">{note}</p>'
    )


def _of_run(said: Statement) -> Composed:
    """The events of this run, and the release of its test figures if they were released with
    noise.
    """
    return compose([said.plan.event(), *([] if said.paid is None else [Gaussian(said.paid)])])


def _cost_row(cost: Cost, first: int, *, known: bool) -> str:
    """A row of releases, of which the first is the `first` of the run."""
    last = first + cost.times - 1
    number = f"{first:,}" if last == first else f"{first:,} to {last:,}"
    noise = (
        ""
        if cost.noise is None
        else " to ".join(dict.fromkeys(f"{multiplier:.4g}" for multiplier in cost.noise))
    )
    cells = f'<td class="number">{noise}</td>'
    if known:
        width = 100 * (cost.share or 0.0)
        bar = (
            '<span class="track" aria-hidden="true"><span class="bar" style="width: '
            f'{width:.1f}%"></span></span>'
        )
        cells += (
            f'<td><span class="share"><span class="number">{width:.1f} %</span>{bar}</span></td>'
        )
    return f'<tr><th scope="row" class="number">{number}</th>{cells}</tr>'


def _noise(said: Statement) -> str:
    """The noise of each epoch, where the plan has epochs."""
    plan = said.trained
    if not isinstance(plan, Plan):
        return ""
    try:
        sigmas = said.facts.get("noise_multipliers") or plan.noise_multipliers()
    except PrivlearnError:
        return ""
    sigmas = [float(sigma) for sigma in sigmas]
    if len(sigmas) < 2 or len(sigmas) > _MOST_EPOCHS:
        return ""
    points = [(epoch + side, sigma) for epoch, sigma in enumerate(sigmas) for side in (0.5, 1.5)]
    first, last = f"{sigmas[0]:.4g}", f"{sigmas[-1]:.4g}"
    course = (
        f"{first} in all of them"
        if len(set(sigmas)) == 1
        else f"{first} in the first, {last} in the last"
    )
    picture = line_chart(
        "noise",
        "Noise by epoch",
        f"The noise multiplier in each of {len(sigmas)} epochs: {course}.",
        (
            number_axis("Epoch", 0.5, len(sigmas) + 0.5, whole=True),
            number_axis("Noise multiplier", 0.0, 1.08 * max(sigmas)),
        ),
        {"curve": points},
    )
    return (
        f"<h3>Noise by epoch</h3>\n<figure>{picture}<figcaption>The noise multiplier is the "
        f"noise's standard deviation over the most that one {noun(said.guarantee.unit)} "
        f"can change a sum by: {course}.</figcaption></figure>\n"
    )


def _check(said: Statement, checked: Verification) -> str:
    kind, word = (
        ("good", "It agreed with its certificate.") if checked.ok else ("warn", "It did not agree.")
    )
    epsilon = "none" if checked.epsilon is None else f"{checked.epsilon:.6g}"
    results = [
        (
            "Epsilon, computed again",
            f"{epsilon} at delta {said.guarantee.delta:g}, by {checked.method}",
        ),
        *(("Problem", problem) for problem in checked.problems),
        *(("Warning", warning) for warning in checked.warnings),
    ]
    use = "\n".join(text(line) for line in lines_of_use(said))
    checks = "\n".join(text(line) for line in (check_command(said), *audit_commands(said)))
    signature = (
        "The certificate is not signed: nothing in this folder says who the publisher is."
        if said.signed_by is None
        else f"The certificate is signed with the Ed25519 key {said.signed_by}. The holder of "
        "that key says that this was the run, and no one else has edited the certificate "
        "or these files since, this page included. That it is the publisher's key can "
        "only be learnt from the publisher: get it from them. A signature does not prove "
        "that the statement is true."
    )
    return (
        f'<div class="note {kind}"><p><strong>This folder was checked when published. '
        f"{word}</strong></p></div>\n"
        f"{pairs_table('What the check gave', results, ('What', 'Result'))}\n"
        "<p>That was then. A page can be edited, so check again: it takes seconds, needs no "
        "data, and covers this "
        f"page, too. In this folder run</p>\n<pre><code>{checks}</code></pre>\n"
        f"<p>and to use the model</p>\n<pre><code>{use}</code></pre>\n"
        f"<h3>Who says so</h3>\n<p>{text(signature)}</p>"
    )


def _attack(said: Statement) -> str:
    assert said.audit is not None
    table = pairs_table("What the attack reached", said.audit.rows(), ("What", "Result"))
    return f"<p>{text(said.audit.verdict)}</p>\n{table}"


def _questions(said: Statement) -> str:
    answers = "".join(
        f"<div><dt>{text(asked)}</dt><dd>{text(answer)}</dd></div>"
        for asked, answer in questions.of_nist(said)
    )
    return (
        '<p class="quiet">NIST SP 800-226, “Guidelines for Evaluating Differential Privacy '
        "Guarantees”, says what to "
        "ask of a claim like this one. The questions are put in our words, and NIST has not "
        "reviewed this page.</p>\n"
        f'<dl class="questions">{answers}</dl>'
    )


def _settings(said: Statement) -> str:
    plan = said.trained
    tables = []
    if plan is not said.plan:
        chosen = said.plan.rows()[said.facts["tuning"]["chosen"]][0]
        tables.append(
            f"<p>{text(said.plan.summary)} All of that is in the guarantee. Chosen: "
            f"{text(chosen)}.</p>"
        )
        tables.append(pairs_table("Candidates", said.plan.rows()))
    tables += [f"<p>{text(plan.summary)}</p>"] if plan.summary else []
    tables.append(pairs_table("How it was trained", settings(said, plan)))
    return "\n".join(tables)
