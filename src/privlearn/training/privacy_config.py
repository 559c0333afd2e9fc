"""`PrivacyConfig` says what decides the guarantee of a run: each option of it is declared here,
once.

A field carries its type, its default and what `privlearn train --help-all` says of it. The command
line makes its options of the fields, and Python's functions take them by their names. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

from privlearn._checks import checked, count, one_of, with_plain_numbers
from privlearn._public import kinds
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Clip
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.plan import UNDECLARED
from privlearn.core.sampling import Sampler, require_priced
from privlearn.core.schedules import NoiseSchedule
from privlearn.errors import BadInput, UnsupportedEvent
from privlearn.runs.compute import Flag

if TYPE_CHECKING:
    from privlearn.core.plan import Plan

SPENT, HOW = "what may be spent", "how it is spent"
#: What solving for one number of a plan may leave open.
UNKNOWNS = ("noise", "rate", "epochs", "batch-size")
#: A second name of a field, which users of Opacus know.
ALIASES = {"max_grad_norm": "clip_norm"}


def _declare(group: str, flag: Flag) -> dict[str, Any]:
    """The metadata of a field: its option of the command line, and the heading in the help."""
    return {"flags": (flag,), "group": group}


def _names_of_clips() -> str:
    """The names of the registered clips, as a help text lists them."""
    *first, last = [f"{name} (default)" if name == "flat" else name for name in kinds(Clip)]
    return f"{', '.join(first)} or {last}"


@checked
@dataclass(frozen=True)
class PrivacyConfig:
    """What decides the guarantee of a run:
    `pv.train(..., privacy=pv.PrivacyConfig(epsilon=3, epochs=20))`, or each field by its own name.

    Guarantee: none by itself. `plan` makes the plan, which has one.

    Attributes:
        epsilon: the target, for everything together; or `rho`, or the noise itself,
            `noise_multiplier`.
        rho: the target in zero-concentrated DP.
        delta: belongs to epsilon; below one over the number of examples.
        adjacency: `add_remove` (which needs `examples`), `zero_out` or `replace_one`; None: the
            first of these that goes with the rest.
        examples: the declared public number of examples; None: that of the data, which is then
            published.
        group_size: the declared most examples of one person, protected together.
        rows_per_person: where the data have person ids: examples are persons, of each of whom so
            many rows are used.
        noise_multiplier: the noise of the first epoch; with a target, training ends when that is
            spent.
        solve: what meets the target: `noise`, `epochs`, `rate` (the schedule's k) or `batch-size`.
        sampling: `poisson`, `truncated-poisson` (`truncated-poisson:maximum=700` to say how many
            rows of a batch are kept at most), `cyclic-poisson`, `cyclic-partition`, `partition`,
            `shuffle`, `fixed`, `full`; or `best`: of those priced for the same neighbours, with any
            mechanism, what leaves the least noise in the weights of torch's SGD. Or one of
            `pv.sampling`, which is taken as it is.
        mechanism: `independent` noise, or noise that is correlated over steps
            (`pv.mechanisms`): `banded:bands=8,momentum=0.9` with `cyclic-partition`,
            `cyclic-poisson` or `fixed` sampling, `bisr:bands=8` or `blt:buffers=2` with `fixed`
            sampling; or one of `pv.mechanisms`, `Banded(8)`. None: independent noise; with `best`
            sampling any.
        batch_size: expected examples in a batch.
        epochs: how many, or at most.
        schedule: of the noise: `constant`, `exp:k=0.01`, ..., or one of `pv.schedules`.
        clip: the name of a registered clip, such as `flat` or `layer`; or one of `pv.clipping`,
            such as `pv.clipping.PerLayer(1.0)`, which says the norm, too.
        clip_norm: the clipping norm of each example's gradient. Python's functions also take it as
            `max_grad_norm`.

    Raises:
        BadInput: choices out of range, or that do not go together.
    """

    # The adjacency may be a text, too.
    _parsed: ClassVar[tuple[str, ...]] = ("adjacency",)

    epsilon: float | None = field(
        default=None,
        metadata=_declare(
            SPENT, Flag("epsilon", "E", "target epsilon, everything included", float)
        ),
    )
    rho: float | None = field(
        default=None,
        metadata=_declare(SPENT, Flag("rho", "R", "target rho (zCDP), in place of epsilon", float)),
    )
    delta: float = field(
        default=1e-5, metadata=_declare(SPENT, Flag("delta", "D", "(default: 1e-5)", float))
    )
    adjacency: Adjacency | str | None = field(
        default=None,
        metadata=_declare(
            SPENT,
            Flag(
                "adjacency",
                "A",
                "add_remove (for dpsgd and dpmac with --examples), zero_out or replace_one "
                "(default: the first of these that goes with the rest)",
            ),
        ),
    )
    examples: int | None = field(
        default=None,
        metadata=_declare(SPENT, Flag("examples", "N", "declared public number of examples", int)),
    )
    group_size: int = field(
        default=1,
        metadata=_declare(
            SPENT,
            Flag(
                "group-size",
                "K",
                "declared most examples of one person: protect all of them together (default: 1)",
                int,
            ),
        ),
    )
    rows_per_person: int | None = field(
        default=None,
        metadata=_declare(
            SPENT,
            Flag(
                "rows-per-person",
                "K",
                "for data with person ids (groups): examples are persons, of whose rows K are used",
                int,
            ),
        ),
    )
    noise_multiplier: float | None = field(
        default=None,
        metadata=_declare(
            HOW, Flag("noise-multiplier", "S", "noise of the first epoch; else solved for", float)
        ),
    )
    solve: str | None = field(
        default=None,
        metadata=_declare(
            HOW,
            Flag(
                "solve",
                None,
                "what meets the target: the noise (default), the epochs (default with "
                "--noise-multiplier), the schedule's k, or the batch size",
                choices=UNKNOWNS,
            ),
        ),
    )
    sampling: Sampler | str = field(
        default="poisson",
        metadata=_declare(
            HOW,
            Flag(
                "sampling",
                "NAME",
                "poisson (default), truncated-poisson (with :maximum=700: rows of a batch), "
                "cyclic-poisson, cyclic-partition, partition, shuffle, fixed, full; or best: what "
                "leaves the least noise, with any mechanism (budget compares them)",
                candidate=True,
            ),
        ),
    )
    mechanism: Correlation | str | None = field(
        default=None,
        metadata=_declare(
            HOW,
            Flag(
                "mechanism",
                "SPEC",
                "independent noise (default), or correlated over steps: banded:bands=8 with "
                "cyclic-partition, cyclic-poisson or fixed sampling, bisr:bands=8 or blt:buffers=2 "
                "with fixed; each also with momentum=0.9. --sampling best tries all of them unless "
                "one is given",
            ),
        ),
    )
    batch_size: int | None = field(
        default=None,
        metadata=_declare(
            HOW,
            Flag(
                "batch-size",
                "B",
                "expected examples in a batch (default: by a rule)",
                int,
                candidate=True,
            ),
        ),
    )
    epochs: int | None = field(
        default=None,
        metadata=_declare(
            HOW,
            Flag(
                "epochs",
                "N",
                "(default: 30, or 60 above epsilon 4, or until the budget ends; for pate: of the "
                "student, about 1000 steps)",
                int,
                candidate=True,
            ),
        ),
    )
    schedule: NoiseSchedule | str = field(
        default="constant",
        metadata=_declare(
            HOW,
            Flag(
                "schedule",
                "SPEC",
                "constant, time:k=0.05, exp:k=0.01, step:k=0.6,period=10, "
                "poly:k=3,end=2,period=100 (each with from=, to= epochs), or "
                "validation:k=0.7,m=5,threshold=0.01,period=10, which needs --public or noise=",
                candidate=True,
            ),
        ),
    )
    clip: Clip | str = field(
        default="flat",
        metadata=_declare(HOW, Flag("clip", "STYLE", _names_of_clips(), candidate=True)),
    )
    clip_norm: float | None = field(
        default=None,
        metadata=_declare(
            HOW,
            Flag(
                "clip-norm",
                "C",
                "(default: 0.1; 1 for tables; 0.3 for dpmac)",
                float,
                candidate=True,
            ),
        ),
    )

    def __post_init__(self) -> None:
        if self.examples is not None:
            count("examples", self.examples)
        if self.solve is not None:
            one_of("solve", self.solve, UNKNOWNS)
        if isinstance(self.clip, Clip) and self.clip_norm is not None:
            raise BadInput(
                f"clip is {self.clip!r} and clip_norm (or max_grad_norm) is {self.clip_norm:g}: "
                "both say the clipping norm. Give one of them, or the name of a clip, such as "
                "clip='flat'"
            )
        adjacency = None if self.adjacency is None else Adjacency.parse(str(self.adjacency))
        object.__setattr__(self, "adjacency", adjacency)
        if adjacency is not None:
            _require_priced(self.sampling, adjacency)
        if adjacency is Adjacency.ADD_REMOVE and self.examples is None:
            raise BadInput(UNDECLARED)

    @property
    def target(self) -> Budget | None:
        """What may be spent; None where the noise itself is given.

        Raises:
            BadInput: nothing says how much may be spent.
        """
        if self.epsilon is not None or self.rho is not None:
            return Budget(self.epsilon, self.delta, self.rho, self.group_size)
        if self.noise_multiplier is None:
            raise BadInput(
                "nothing says how much privacy may be spent: give epsilon=E (with delta=D), rho=R, "
                "or the noise itself with noise_multiplier=S"
            )
        Budget(epsilon=1.0, delta=self.delta)
        return None

    def require_target(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments of a loop or a trainer that say twice how much is spent, or leave out
        delta.

        Args:
            arguments: what this was made of, by name.

        Raises:
            BadInput: a target and a noise without `solve`, or an epsilon without a delta.
        """
        target = next((name for name in ("epsilon", "rho") if name in arguments), None)
        if target is not None and self.noise_multiplier is not None and self.solve is None:
            raise BadInput(
                f"{target} and noise_multiplier are both given, and each says how much is spent: "
                "leave one out. Or say what else meets the target: solve='epochs', 'rate' or "
                "'batch-size'"
            )
        if target == "epsilon" and "delta" not in arguments:
            raise BadInput("a budget of epsilon needs its delta: give delta too, for example 1e-5")

    @property
    def unknown(self) -> str:
        """The one number that a target is met by: one of `UNKNOWNS`."""
        return self.solve or ("noise" if self.noise_multiplier is None else "epochs")

    @with_plain_numbers
    def plan(self, examples: int) -> Plan:
        """The plan of a run with these choices; the others follow by the rules of `pv.train`.

        Guarantee: it follows from public numbers alone.

        Args:
            examples: how many examples there are, a public number. It is not declared thereby.

        Raises:
            BadInput: choices that do not go together, no target and no noise, or a target that
                can't be met.
        """
        from privlearn.training import planning  # imports what solves, and torch

        return planning.plan_of(self, examples)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """What a function was given: `privacy`, or fields by their own names, or by `ALIASES`.

        Raises:
            BadInput: both, a field by two names, or a value out of range, by the field's name.
        """
        return cls(**by_field(arguments))


def _require_priced(sampling: Sampler | str, adjacency: Adjacency) -> None:
    """As `sampling.require_priced`, naming what goes together.

    Raises:
        UnsupportedEvent: the sampler has no price for such neighbours.
    """
    try:
        require_priced(sampling, adjacency)
    except UnsupportedEvent as error:
        samplers: dict[str, type[Sampler]] = kinds(Sampler)
        priced = [name for name, kind in samplers.items() if adjacency in kind.adjacencies]
        name = sampling.partition(":")[0] if isinstance(sampling, str) else sampling.kind
        fit = sampling.adjacencies if isinstance(sampling, Sampler) else samplers[name].adjacencies
        raise UnsupportedEvent(
            f"{name} sampling has no sound accounting for {adjacency.value} neighbours. "
            f"With adjacency {adjacency.value} choose sampling {', '.join(priced)}; "
            f"{name} goes with adjacency {', '.join(sorted(fit))}",
            adjacency=adjacency,
        ) from error


class PrivacyArguments(TypedDict, total=False):
    """What functions take by name: `privacy`, or the fields of `PrivacyConfig` by their names."""

    privacy: PrivacyConfig | None
    rho: float | None
    adjacency: Adjacency | str | None
    examples: int | None
    group_size: int
    rows_per_person: int | None
    noise_multiplier: float | None
    solve: str | None
    sampling: Sampler | str | None
    mechanism: Correlation | str | None
    batch_size: int | None
    schedule: NoiseSchedule | str | None
    clip: Clip | str | None
    clip_norm: float | None


def by_field(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of fields, in place of `ALIASES` and `privacy`.

    Raises:
        BadInput: a field by both of its names, or beside `privacy`; or another `privacy` than a
            `PrivacyConfig`.
    """
    values = {name: value for name, value in arguments.items() if name not in ALIASES}
    for alias, name in ALIASES.items():
        if arguments.get(alias) is None:
            continue
        if values.get(name) is not None:
            raise BadInput(f"{alias} and {name} are the same: give one of them")
        values[name] = arguments[alias]
    privacy = values.pop("privacy", None)
    if privacy is None:
        return values
    if not isinstance(privacy, PrivacyConfig):
        raise BadInput(
            f"privacy is {repr(privacy)[:60]}: expected a pv.PrivacyConfig, or its fields by their "
            "names"
        )
    beside = next((name for name in values if name in NAMES), None)
    if beside is not None:
        raise BadInput(
            f"{beside} is given beside privacy=, which says what decides the guarantee: write "
            f"privacy=pv.PrivacyConfig({beside}=...), or leave privacy out"
        )
    defaults = {known.name: known.default for known in fields(PrivacyConfig)}
    chosen = {name: getattr(privacy, name) for name in NAMES}
    return values | {name: value for name, value in chosen.items() if value != defaults[name]}


def require_only_plan(names: Iterable[str]) -> None:
    """Refuse arguments that a plan, which is given beside them, says already.

    Raises:
        BadInput: naming the first of them.
    """
    for name in names:
        raise BadInput(
            f"plan= and {name}= are both given, and the plan says what {name} says: leave one out"
        )


#: The fields, in order.
NAMES = tuple(known.name for known in fields(PrivacyConfig))
