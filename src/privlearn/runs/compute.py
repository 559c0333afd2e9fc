"""`ComputeConfig` says how a run computes: nothing here decides a guarantee, and each option of it
is declared here, once.

A field carries its type, its default and what `privlearn train --help-all` says of it. The command
line makes its options of the fields, and Python's functions take them by their names. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import checked, count, one_of
from privlearn.errors import BadInput
from privlearn.runs import post_processing

if TYPE_CHECKING:
    import torch

    from privlearn.core.clipping.augmentation import Augmentation
    from privlearn.core.processes import World

#: What a model may be run in.
PRECISIONS = ("float32", "bf16")


@final
@dataclass(frozen=True)
class Flag:
    """An option of the command line that a field is read from; its default is the field's.

    Attributes:
        name: without dashes.
        metavar: what stands for the value in the help; None: a switch, with `read=bool`, or
            choices.
        help: a line of `privlearn train --help-all`.
        read: the value of a text.
        candidate: whether a candidate of `--tune` may set it.
        choices: its values, if these are few.
    """

    name: str
    metavar: str | None
    help: str
    read: Callable[[str], Any] = str
    candidate: bool = False
    choices: tuple[str, ...] | None = None


def _declare(
    *flags: Flag,
    methods: tuple[str, ...],
    group: str = "",
    unit: str = "",
    why: str = "",
    compared: str = "",
) -> dict[str, Any]:
    """The metadata of a field of `ComputeConfig`.

    Args:
        flags: what it is read from.
        methods: the methods that have it.
        group: the heading of its flags in the help: one that `cli.options` has.
        unit: of its values, if they have one.
        why: why it has no flag, where it has none.
        compared: why its value is not compared when a run is resumed. By default it is, because
            the same noise must not serve sums that another value rounds differently.
    """
    return {
        "flags": flags,
        "methods": methods,
        "group": group,
        "unit": unit,
        "why": why,
        "compared": compared,
    }


def _examples_at_once(text: str) -> int | None:
    """A number of examples, or None for `auto`."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"{text!r} is neither a whole number of examples nor auto") from None


@checked
@final
@dataclass(frozen=True)
class ComputeConfig:
    """How a run computes: `pv.train(..., config=pv.ComputeConfig(microbatch=64))`, or each field by
    its own name.

    Guarantee: none is touched by it.

    Attributes:
        microbatch: examples computed at once, or None for what fits into memory; the result is the
            same.
        device: where to compute, for example "cuda", or the number of an accelerator, as
            `torch.device` takes it; by default where the model is. The result is on the CPU.
        precision: "float32", or "bf16" to run the model in bfloat16; norms, sums and noise stay in
            single precision.
        augmentation: changed copies of each row, whose gradients are averaged before clipping. Rows
            are changed as the network gets them: scaled; not in front of public features, whose
            images a change would have to come before.
        world: the processes that train together; by default those that torchrun started, or this
            one alone.
        post_processing: what is done with released weights, by its name in `runs.post_processing`:
            `{"average": 0.5}` publishes their mean over about the last half of the steps. Functions
            also take the names by themselves.

    Raises:
        BadInput: a value out of range, by its name.
        TypeError: there is no such field.
    """

    # These are checked below by their values, not by their annotations.
    _parsed: ClassVar[tuple[str, ...]] = ("microbatch", "precision")

    microbatch: int | None = field(
        default=None,
        metadata=_declare(
            Flag(
                "microbatch",
                "N|auto",
                (
                    "examples computed at once; the result is the same (default: auto, what fits "
                    "into memory)"
                ),
                _examples_at_once,
            ),
            methods=("dpsgd", "dpmac"),
            group="the run",
            unit="examples",
        ),
    )
    device: str | int | torch.device | None = field(
        default=None,
        metadata=_declare(
            Flag("device", "D", "where to compute: cpu (default) or cuda"),
            methods=("dpsgd", "dpmac"),
            group="the run",
            compared="the device of the network is",
        ),
    )
    precision: str = field(
        default="float32",
        metadata=_declare(
            Flag("precision", "P", "float32 (default), or bf16 to run the model in bfloat16"),
            methods=("dpsgd",),
            group="the run",
        ),
    )
    augmentation: Augmentation | None = field(
        default=None,
        metadata=_declare(
            Flag(
                "views",
                "K",
                (
                    "for dpsgd, with --augment: gradients of K changed copies of each example are "
                    "averaged before clipping"
                ),
                int,
                candidate=True,
            ),
            Flag(
                "augment",
                "SPEC",
                "how images are changed: flip (left to right), shift:2 (pixels), or flip,shift:2",
                candidate=True,
            ),
            methods=("dpsgd",),
            group="how it descends",
            compared="its name and its code are",
        ),
    )
    world: World | None = field(
        default=None,
        metadata=_declare(
            methods=("dpsgd",),
            why="torchrun starts the processes, and says how many there are",
            compared="a checkpoint says how many processes wrote it",
        ),
    )
    post_processing: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=_declare(
            methods=("dpsgd",),
            why="each row of runs.post_processing is an option by its own name",
            compared="it follows the release, and no sum follows from it",
        ),
    )

    def __new__(cls, *values: Any, **named: Any) -> ComputeConfig:
        """An object without values yet: names that are no fields are refused first."""
        row = next((name for name in named if name in post_processing.ROWS), None)
        if row is not None:
            raise BadInput(
                f"{row} is what is done with released weights: write "
                f"post_processing={{{row!r}: ...}}, or give {row}= beside the other arguments"
            )
        _require_known(named, [known.name for known in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if self.microbatch is not None:
            count("microbatch", self.microbatch)
        one_of("precision", self.precision, PRECISIONS)
        for name in self.post_processing:
            one_of("post_processing", name, post_processing.ROWS)
        object.__setattr__(self, "post_processing", post_processing.chosen(self.post_processing))

    def compared(self) -> dict[str, Any]:
        """The values that a resumed run must have in common with its beginning, by name. The key of
        its noise follows from them.
        """
        names = (known.name for known in fields(self) if not known.metadata["compared"])
        return {name: getattr(self, name) for name in names}

    def of_method(self, method: str) -> ComputeConfig:
        """Itself, if a method's runs have all that is set.

        Raises:
            BadInput: another field is set, by its name.
        """
        for known in fields(self):
            value, usual = getattr(self, known.name), getattr(_USUAL, known.name)
            if value != usual and method not in known.metadata["methods"]:
                raise BadInput(
                    f"{known.name} is {repr(value)[:60]}, and runs of {method} have no "
                    f"{known.name}: leave it out, or train by {known.metadata['methods'][0]}"
                )
        return self

    @classmethod
    def of(cls, arguments: Mapping[str, Any], others: Iterable[str] = ()) -> ComputeConfig:
        """What a function was given: `config`, or fields and rows of `runs.post_processing` by
        their own names.

        Args:
            arguments: by name.
            others: arguments that the function has besides, for what it says of one that it has
                not.

        Raises:
            BadInput: both, or a value out of range, by the field's name.
            TypeError: there is no such field.
        """
        config, settings = arguments.get("config"), [name for name in arguments if name != "config"]
        _require_known(settings, [*others, "config", *names()])
        if config is not None and not isinstance(config, cls):
            raise BadInput(
                f"config is {repr(config)[:60]}: expected a pv.ComputeConfig, or its fields by "
                "their names"
            )
        if config is not None:
            if not settings:
                return config
            beside = settings[0]
            written = (
                f"post_processing={{{beside!r}: ...}}"
                if beside in post_processing.ROWS
                else f"{beside}=..."
            )
            raise BadInput(
                f"{beside} is given beside config=, which says how the run computes: write "
                f"config=pv.ComputeConfig({written}), or leave config out"
            )
        rows = {name: arguments[name] for name in settings if name in post_processing.ROWS}
        named = {name: arguments[name] for name in settings if name not in rows}
        return cls(**named, post_processing=rows) if rows else cls(**named)


def _require_known(named: Iterable[str], known: list[str]) -> None:
    """Raise `TypeError` for the first name that is none of those known, with all of these."""
    unknown = next((name for name in named if name not in known), None)
    if unknown is not None:
        near = get_close_matches(unknown, known, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        if "streams" in known:
            from privlearn.core.streams import Streams  # to name what it takes

            if unknown in signature(Streams.new).parameters:
                meant = f" The random streams take it: streams=pv.Streams.new({unknown}=...)"
        raise TypeError(
            f"there is no argument {unknown!r}: expected one of {', '.join(known)}.{meant}"
        )


def names() -> list[str]:
    """What functions take by name: the fields, and the rows of `runs.post_processing` in place of
    their field.
    """
    return [
        *(known.name for known in fields(ComputeConfig) if known.name != "post_processing"),
        *post_processing.ROWS,
    ]


def flags_of(config: type, group: str) -> Iterator[tuple[Flag, str, Any]]:
    """Each flag of a configuration under one heading of the help, with its field's name and
    default.
    """
    for known in fields(config):
        if known.metadata["group"] == group:
            for flag in known.metadata["flags"]:
                yield flag, known.name, known.default


def options_of(method: str) -> frozenset[str]:
    """What the command line calls the options of a method's runs that are fields here."""
    return frozenset(
        flag.name.replace("-", "_")
        for known in fields(ComputeConfig)
        for flag in known.metadata["flags"]
        if method in known.metadata["methods"]
    )


#: What is usual.
_USUAL = ComputeConfig()
