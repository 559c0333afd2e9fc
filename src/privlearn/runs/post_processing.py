"""A table of arguments, options and facts says what may be done with released weights, at no cost
in privacy.

A row is all that a run needs to know: it gives the argument of `pv.dpsgd`, `pv.Run` and `pv.train`,
the option of `privlearn train`, the fact in the certificate, and the line of the card. Plans and
`verify` read it without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, final

from privlearn._checks import between

if TYPE_CHECKING:
    from torch import nn


class PostProcessed(TypedDict, total=False):
    """The arguments of the rows, for type checkers.

    Keys:
        average: publish the mean of the weights of about this last share of the steps
            (`runs.mean_weights.MeanWeights`).
    """

    average: float | None


class PostProcessor(Protocol):
    """What a run keeps of a row; it gets the parameters, and so sees nothing but what was
    released.
    """

    def after_step(self) -> None:
        """A step was taken."""

    def after_run(self) -> None:
        """The run is over: the parameters are to be what is published. May be called again on what
        it made.
        """

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Go on from a state."""


@final
@dataclass(frozen=True)
class PostProcessing:
    """A row of the table.

    Guarantee: as what it makes is given parameters alone, it costs nothing.

    Attributes:
        name: the argument, the option and the fact.
        make: what a run keeps, of the parameters and the argument's value.
        check: returns a value, or raises `BadInput`.
        metavar: what stands for the value in the help.
        help: a line.
        read: the value of a text.
        label: what the card calls it.
        text: what the card says of a value.
        setting: what `--explain` calls it.
        usual: what it says where there is none.
        why: and why that is usual.
    """

    name: str
    make: Callable[[Sequence[nn.Parameter], Any], PostProcessor]
    check: Callable[[Any], Any]
    metavar: str
    help: str
    read: Callable[[str], Any]
    label: str
    text: Callable[[Any], str]
    setting: str
    usual: str
    why: str


def chosen(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that are in the table and not None, checked, by name."""
    return {
        name: row.check(arguments[name])
        for name, row in ROWS.items()
        if arguments.get(name) is not None
    }


def processors(
    parameters: Sequence[nn.Parameter], arguments: Mapping[str, Any]
) -> dict[str, PostProcessor]:
    """What a run keeps of those."""
    return {name: ROWS[name].make(parameters, value) for name, value in chosen(arguments).items()}


def _mean_weights(parameters: Sequence[nn.Parameter], share: float) -> PostProcessor:
    from privlearn.runs.mean_weights import MeanWeights

    return MeanWeights(parameters, share)


#: The table, by name.
ROWS = {
    "average": PostProcessing(
        name="average",
        make=_mean_weights,
        # less is hardly more than the last step
        check=lambda share: between("average", share, 0.001, 1.0),
        metavar="F",
        help="for dpsgd: publish the mean of the weights over about this last share of the "
        "steps (default: the last step's)",
        read=float,
        label="published weights",
        text=lambda share: f"a mean over about the last {share:g} of the steps",
        setting="weights",
        usual="of the last step",
        why="where the rate falls to 0, a mean gains nothing",
    ),
}
