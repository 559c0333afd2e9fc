"""What a reader asks of a guarantee: what is protected and what is not, what is known to be open,
and, in our words, the questions that NIST SP 800-226 (Guidelines for Evaluating Differential
Privacy Guarantees, 2025) asks.
"""

from __future__ import annotations

from collections.abc import Iterator

from privlearn.core.accounting.guarantee import rounded_up, times
from privlearn.publishing.card import neighbours, noun, protected, released_too, why_neighbours
from privlearn.publishing.statement import Statement


def is_protected(said: Statement) -> Iterator[str]:
    """What the guarantee covers, a sentence each."""
    one = noun(said.guarantee.unit)
    if said.guarantee.adjacency.value == "replace_one":
        yield f"What the data of any one {one} contained, up to the stated privacy loss."
    else:
        yield (
            f"Whether any one {one} took part, up to the stated privacy loss, and with it what "
            "its data contained."
        )
    figures = ", and the test figures, which were released with noise"
    yield (
        f"The weights, and the transforms stored with them{released_too(said)}"
        f"{figures if said.paid is not None else ''}."
    )
    yield (
        "Everything that is made of the published model later, such as its predictions: it tells "
        "no more of the training data than the model does."
    )
    yield (
        "This holds for attackers who know all other training data, and have unlimited "
        "computing power."
    )


def is_open(said: Statement) -> Iterator[str]:
    """What the guarantee does not cover, a sentence each."""
    one = noun(said.guarantee.unit)
    yield (
        "What is true of people in general. If the model shows that smokers fall ill more often, "
        "that can be concluded of any smoker, whether or not they took part."
    )
    if one == "example" and said.guarantee.group_size == 1:
        yield (
            "A person with several rows in the training data is protected less than the "
            "figures say."
        )
    elif said.guarantee.rows_per_person is None:
        yield (
            f"A person with more than {said.guarantee.group_size} rows is protected less than "
            "the figures say."
        )
    if said.guarantee.adjacency.value != "add_remove":
        yield f"The number of {one}s in the training data: it is public."
    if said.test_metrics.figures and said.paid is None:
        yield "The test data: their figures are exact."
    if more := said.trained.card_words(said.facts).get("Not protected"):
        yield more
    elif "public_start" in said.facts:
        yield (
            "The public volumes that the network had learned from before any private one was used."
        )
    yield (
        "Choices that were made by looking at the data, or at earlier private results outside "
        "of the listed events."
    )
    yield (
        "Other publications from the same data, unless this page speaks of them: their privacy "
        "losses add up."
    )
    yield (
        "Rows that are given to the model for a prediction, later: keep them as you keep other "
        "such data."
    )


def limits(said: Statement) -> Iterator[str]:
    """Known gaps, a sentence or two each."""
    yield (
        "The certificate proves arithmetic and files: that these events give this epsilon, and "
        "that these are the files. That the training was the one described, and that rows were "
        "assigned to the right people, is the publisher's word."
    )
    yield (
        "Numbers that the publisher declared (how many examples, bounds, rows of each person, "
        "which data are public) were taken as given."
    )
    if said.facts.get("noise") == "floating point":
        yield (
            "The noise was drawn in floating point, as in most software. Attacks on the lowest "
            "digits of such noise are known (Mironov 2012), and the proof does not cover them."
        )
    yield (
        "How long the training took, and how much memory, is not covered: it matters where "
        "attackers share a machine."
    )


def of_nist(said: Statement) -> Iterator[tuple[str, str]]:
    """Question and answer: the method's own, where it has one."""
    answers = said.trained.card_words(said.facts)
    yield from ((asked, answers.get(asked, usual)) for asked, usual in _usual(said))


def _usual(said: Statement) -> Iterator[tuple[str, str]]:
    guarantee = said.guarantee
    epsilon = rounded_up(guarantee.epsilon)
    rho = (
        ""
        if guarantee.rho is None
        else f" (and zero-concentrated differential privacy with rho {guarantee.rho:.4g})"
    )
    yield (
        "Privacy loss parameter",
        f"Epsilon {epsilon} with delta {guarantee.delta:g}: approximate differential privacy{rho}, "
        f"by the method {guarantee.method}. It is an upper bound for all events together. By the "
        f"factor e^{epsilon} ({times(guarantee.epsilon)}) the probability of any outcome may "
        "differ between neighbouring data sets, and by delta on top of that.",
    )
    yield (
        "Unit of privacy",
        f"{_capitalise(protected(guarantee.unit))} Neighbouring data sets: "
        f"{neighbours(guarantee)}. {why_neighbours(guarantee)}",
    )
    yield (
        "Trust model",
        "Central: the publisher held the training data in the clear and added the noise. The "
        "publisher has to be trusted, and everyone who could reach the data; those who get the "
        "model need not be.",
    )
    yield (
        "Mechanisms",
        "What each release was, with its noise, is listed under “Where the privacy was spent”, and "
        "in privacy.json, from which the figures can be computed again. What one example adds to a "
        "sum was bounded before noise came.",
    )
    yield "Composition", _composition(said)
    yield (
        "Utility",
        "Test figures, where there are any, are under “How good the model is”. Noise and clipping "
        "lower accuracy, more so with few examples and with a small epsilon.",
    )
    yield (
        "Bias",
        "Differential privacy does not remove bias that is in the data. Noise and clipping can "
        "cost small groups more accuracy than large ones. This page holds no figures by group: ask "
        "the publisher, before people are treated by the model's answers.",
    )
    yield "Implementation hazards", " ".join(_hazards(said))
    yield (
        "Data security, collection and access",
        "Outside of the guarantee, and not known to this page: how the data were collected, who "
        "can reach them, and when they are deleted. Ask the publisher. Checkpoints and recorded "
        "runs are as secret as the data.",
    )


def _capitalise(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _composition(said: Statement) -> str:
    if said.others:
        return (
            "Other runs on the same data are on the publisher's ledger: what the claim is for is "
            "said under “What the guarantee means”."
        )
    return (
        "The figures are for all releases of this run together, and for nothing else. Other runs "
        "on the same data add to them; here none are counted."
    )


def _hazards(said: Statement) -> Iterator[str]:
    if said.seeded:
        yield "The random seed was fixed: anyone who knows it can take the noise off."
    else:
        yield "Random numbers were seeded by the operating system, and the seed is not published."
    grid = said.facts.get("noise")
    if grid == "floating point":
        yield "The noise was drawn in floating point, with its known attacks on the lowest digits."
    elif grid == "on a grid":
        yield (
            "The noise was drawn on a grid of whole numbers, which avoids attacks on floating "
            "point."
        )
    yield "Running time and memory are not hardened against an observer."
