"""`Audit`: what an attack found, as a value: for reading, as JSON, as a page and as a picture."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from privlearn._display import Described, Summary
from privlearn._texts import for_markdown
from privlearn.core.accounting.tradeoff import TradeOff

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@final
@dataclass(frozen=True)
class Detected:
    """How many members an attack finds at a rate of false positives, beside the claimed limit of
    every attack.

    Attributes:
        false_positive_rate: the share of others that the attack takes for members at most.
        false_positive_rate_high: an upper bound on that share of new examples.
        true_positive_rate: the share of members that it finds.
        true_positive_rate_low: a lower bound on that share of new examples.
        true_positive_rate_high: an upper bound on it.
        limit: the most that the claim's trade-off curve allows at `false_positive_rate`.
    """

    false_positive_rate: float
    false_positive_rate_high: float
    true_positive_rate: float
    true_positive_rate_low: float
    true_positive_rate_high: float
    limit: float

    def row(self) -> tuple[str, str]:
        """A label and a text."""
        return (
            f"finds at {self.false_positive_rate:.1%}",
            f"{self.true_positive_rate:.2%} ({self.true_positive_rate_low:.2%} to "
            f"{self.true_positive_rate_high:.2%}) of members; the claim allows {self.limit:.2%}",
        )


@final
@dataclass(frozen=True, repr=False)
class Audit(Described):
    """What an attack on neighbouring data sets proves about a privacy claim, at a stated
    confidence.

    Attributes:
        attack: what was attacked, and how.
        epsilon_lower: epsilon is at least this, at the confidence, under what `assumes` says.
        epsilon_any: the same without any assumption.
        epsilon_claimed: by the accountant, for what was attacked.
        delta: where all three are stated.
        confidence: that nothing here is said wrongly by chance.
        ok: False if the claim is refuted, at the confidence and without any assumption (but that
            trials are independent; of one run: that its canaries are, if only `epsilon_lower`
            exceeds the claim).
        false_positive_rate: of the attack: at most this.
        true_positive_rate: at least this.
        true_positive_rate_claimed: the most that the claim allows at that false-positive rate.
        trials: runs without the example, and as many with it.
        assumes: what `epsilon_lower` rests on.
        curve: the claimed trade-off curve.
        epsilon_curve: of one run, without taking its canaries for independent trials: epsilon is at
            least this if the run has the claimed trade-off curve, or that for some other noise.
            None: not of one run.
        detected: of membership inference: how many members are found at low rates of false
            positives.
        public: whether the rows that were run on are made up, or declared public: else the report
            is no release.
    """

    attack: str
    epsilon_lower: float
    epsilon_any: float
    epsilon_claimed: float
    delta: float
    confidence: float
    ok: bool
    false_positive_rate: float
    true_positive_rate: float
    true_positive_rate_claimed: float
    trials: int
    assumes: str
    curve: TradeOff
    epsilon_curve: float | None = None
    detected: tuple[Detected, ...] = ()
    public: bool = True

    def to_json(self) -> dict[str, Any]:
        """Everything but the curve, as plain values."""
        plain = {name: value for name, value in asdict(self).items() if name != "curve"}
        return {**plain, "detected": list(plain["detected"])}

    def to_markdown(self) -> str:
        """A section for a page or a model card."""
        rows = "\n".join(
            f"| {for_markdown(label)} | {for_markdown(text)} |" for label, text in self.rows()
        )
        return (
            f"## Attack on the privacy claim\n\n{for_markdown(self.verdict)}\n\n| | |\n| --- | "
            f"--- |\n{rows}\n"
        )

    @property
    def verdict(self) -> str:
        """What was found, in two sentences."""
        one_run = self.epsilon_curve is not None
        tried = f"{self.trials:,} trials with and without one example"
        if one_run:
            tried = f"Guesses at who took part, of some {2 * self.trials:,} by fair coins,"
        if self.ok:
            return (
                f"{tried} do not contradict the claim. They prove that epsilon is at least "
                f"{self.epsilon_lower:.3g}; they do not prove that it is no more."
            )
        if one_run:
            return (
                f"{tried} refute the claim: epsilon is at least {self.epsilon_lower:.3g}, and "
                f"claimed is {self.epsilon_claimed:.3g}. This holds at confidence "
                f"{self.confidence:g}."
            )
        return (
            f"{tried} refute the claim: the attack finds {self.true_positive_rate:.2%} of those "
            f"who took part, and the claim allows at most {self.true_positive_rate_claimed:.2%}. "
            f"This holds at confidence {self.confidence:g}."
        )

    def plot(self, axes: Axes | None = None) -> Axes:
        """The claimed limit on every attack, and what this one reached; on new axes by default."""
        axes = self.curve.plot(axes)
        axes.plot(
            [self.false_positive_rate],
            [self.true_positive_rate],
            "o",
            color="C2" if self.ok else "C3",
            label=f"this attack, at confidence {self.confidence:g}",
        )
        axes.set_title(self.attack)
        axes.title.set_fontsize(9)
        axes.legend(loc="lower right", fontsize=8)
        return axes

    def rows(self) -> list[tuple[str, str]]:
        """What was found, a label and a text each."""

        def figure(epsilon: float) -> str:
            return "unlimited" if math.isinf(epsilon) else f"{epsilon:.4g}"

        of_curve = (
            []
            if self.epsilon_curve is None
            else [
                (
                    "without independence",
                    f"{figure(self.epsilon_curve)}, if the trade-off curve has the claimed form",
                )
            ]
        )
        return [
            ("attack", self.attack),
            ("epsilon claimed", f"{figure(self.epsilon_claimed)} at delta {self.delta:g}"),
            ("epsilon at least", f"{figure(self.epsilon_lower)}, if {self.assumes}"),
            *of_curve,
            ("without any assumption", figure(self.epsilon_any)),
            *(each.row() for each in self.detected),
            (
                "rates",
                f"false positives at most {self.false_positive_rate:.4f}, true positives at least "
                f"{self.true_positive_rate:.4f}, at confidence {self.confidence:g}",
            ),
        ]

    def _summary(self) -> Summary:
        return Summary(f"Audit: {'not refuted' if self.ok else 'REFUTED'}", self.rows())
