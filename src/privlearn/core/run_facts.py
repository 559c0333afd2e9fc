"""This file declares the facts that runs state in certificates, their names, kinds and ranges, once
for those who write and who read.

A plan's class names its shape, `facts_shape`. `publish` refuses facts that do not fit it, and
`verify` finds them.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from privlearn._shapes import Count, Digest, Open, Positive, Share, Spelled, Within


class TranscriptFacts(TypedDict):
    """What a recorded run was bound to, and the digest of its transcript."""

    commitment: Digest
    challenge: Annotated[str, Spelled("([0-9a-f]{2})*")]
    digest: Digest


class ChosenFeatures(TypedDict, total=False):
    """Features that a release chose, the best first."""

    indices: list[Count]
    names: list[str]
    scores: list[float]
    noise_std: list[Positive]


class PublicStart(TypedDict, total=False):
    """The public network that training began with."""

    volumes_with_masks: Count
    student_began_as_it: bool
    test_metrics: dict[str, float]
    test_rows: Count


class RunFacts(TypedDict, total=False):
    """What runs of all methods may state beside their plan."""

    method: str
    noise: Literal["floating point", "on a grid"]
    public_features: Open  # each kind of public transform says what it was made by
    chosen: list[ChosenFeatures]
    target_bounds: tuple[float, float]
    target_ranges: list[tuple[str, float, float]]
    task: str
    labels: list[str]
    public_start: PublicStart
    paid_metrics: Positive
    ledger_head: Digest


class Validations(TypedDict):
    """Accuracies that a schedule reacted to."""

    rows: Count
    public: bool
    noise: Positive | None
    accuracies: list[float]


class CoordinateFacts(TypedDict):
    """How auxiliary coordinates were fitted."""

    steps: Count
    rate: Positive
    optimizer: str
    stored: bool


class FederationFacts(TypedDict):
    """How clients of a federation were asked."""

    server_read: str


class GradientFacts(RunFacts, total=False):
    """What runs of many steps state: DP-SGD, and DP-MAC from `objective` on."""

    examples: Annotated[int, Within(1, 1e15)]
    steps: Count
    epochs: Count
    left_early: Literal[True]
    weights_of_step: Count
    transcript: TranscriptFacts
    processes: Annotated[int, Within(1, 1e6)]
    optimizer: Open
    learning_rate_schedule: str
    rates_declared_public: list[str]
    preconditioned_by: str
    precision: Literal["float32", "bf16"]
    augmentation_copies: Annotated[int, Within(1, 1e6)]
    augmentation: str
    label_smoothing: Share
    class_weights: list[Positive]
    fitted_temperature: Positive
    noise_multipliers: list[Positive]
    validation: Validations
    objective: str
    coordinates: CoordinateFacts
    mu: Positive | str
    weight_steps: Count
    newton: Positive | None
    thresholds: list[list[Positive]]
    federation: FederationFacts
