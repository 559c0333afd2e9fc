"""A published model: one folder with weights, certificate, configuration and two cards, written all
or nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from privlearn._checks import checked, count, quoted
from privlearn._figures import PrivateFigure
from privlearn.core.accounting.events import Event, compose
from privlearn.errors import BadInput
from privlearn.methods.statistics.features import ReleasedRows
from privlearn.methods.statistics.metric_figures import Metrics
from privlearn.publishing import card, certificate, folder, model, new_folder, page, signing
from privlearn.publishing.folder import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_FILES,
    AUDIT,
    CARD,
    CERTIFICATE,
    CONFIG,
    LARGEST,
    MODEL_FILES,
    PAGE,
    RELEASED,
    WEIGHTS,
)
from privlearn.publishing.libraries import (
    lines_of_use,
    with_library,
    with_metadata,
)
from privlearn.publishing.signing import SigningKey, read_private
from privlearn.publishing.stated_shapes import unfit_facts, unfit_files
from privlearn.publishing.statement import AuditReport, Statement
from privlearn.publishing.verify import verify_contents
from privlearn.runs.result import PrivateDiagnostics, Result
from privlearn.runs.shards import whole_state

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.publishing.hub import HubPage

_TEST_FIGURES = (
    "Give figures of rows that were not trained on, such as test_metrics=pv.evaluate(model, "
    "test_data), or leave them out"
)

_Write = TypeVar("_Write", bound=Callable[..., Path])


def _by_the_first_process(write: _Write) -> _Write:
    """Of several processes that trained a model the first one writes; the others wait for it."""

    @wraps(write)
    def once(result: Result | ReleasedRows, *args: Any, **kwargs: Any) -> Path:
        _require_no_diagnostics(*args, *kwargs.values())
        result = result.publishable() if isinstance(result, ReleasedRows) else result
        return _once(result, lambda: write(result, *args, **kwargs))

    return cast(_Write, once)


def _once(result: Result, write: Callable[[], Path]) -> Path:
    if not isinstance(result, Result):
        return write()
    whole = whole_state(result.model, keep=result.world.rank == 0)  # by all processes, or none
    object.__setattr__(result, "_whole", whole)
    try:
        return result.world.once(write, "the publication")
    finally:
        object.__setattr__(result, "_whole", {})


@contextmanager
def name_call(call: str) -> Iterator[None]:
    """A block in which `publish` is called by another name, such as `trainer.publish(`: the refusal
    of a folder says that name.
    """
    try:
        yield
    except BadInput as error:
        error.args = (re.sub(r"unharmed: [\w.]+\((result, )?", f"unharmed: {call}", str(error)),)
        raise


def _require_free(out: str | Path) -> Path:
    """Return `out` as a path that is free; what is refused says that the result is not lost."""
    try:
        return new_folder.require_free(out)
    except BadInput as error:
        others = (f"{Path(out)}-{number}" for number in itertools.count(2))
        free = next(other for other in others if not os.path.lexists(other))
        other = repr(free) if os.path.lexists(out) else "another_folder"
        raise BadInput(
            f"{error}. The result is unharmed: pv.publish(result, {other}), with your other "
            "arguments, writes it"
        ) from None


@_by_the_first_process
@checked
def publish(
    result: Result | ReleasedRows,
    out: str | Path,
    *,
    delta: float | None = None,
    test_metrics: Mapping[str, float] | Metrics | None = None,
    test_rows: int | None = None,
    data: dict[str, str] | None = None,
    model_spec: str | None = None,
    classes: int | None = None,
    sign: str | Path | SigningKey | None = None,
    weights: Mapping[str, bytes] | None = None,
    audit: AuditReport | None = None,
    hub: str | HubPage | None = None,
) -> Path:
    """Write `result` as a folder of `model.safetensors`, `privacy.json`, `config.json` and a model
    card.

    The card is there twice: as Markdown (`README.md`), and as a page for people (`card.html`),
    which loads and runs nothing.

    The folder appears under its final name only when it is complete.

    Args:
        result: what a method returned. Of rows that `pv.statistics.release_features` returned the
            folder holds `rows.csv`, too, beside the classifier that is made of them.
        out: the folder to make.
        delta: where epsilon is stated; by default the plan's.
        test_metrics: figures from test data, for the card: what `evaluate` returned, or figures by
            name; never figures of the training rows, and no name that begins with "train" or
            "private". Those that were released with noise have to be on the result's ledger.
        test_rows: how many rows those figures are from, for the card; None: as `test_metrics` says,
            if it does.
        data: what to say of the data in the card.
        model_spec: how `models.build` can rebuild the network, if it can: needed for
            `privlearn predict`. None: as the result says (that of `pv.train`,
            `pv.statistics.fisher` and `pv.statistics.least_squares` does).
        classes: how many classes the model tells apart, for whom it is loaded by; needed with
            `model_spec`. None: as the result says.
        sign: the file of a private key (`privlearn key` makes one), or the key itself: the
            certificate is signed with it.
        weights: the files of another library's form of the model, by name, in place of
            `model.safetensors`: those of a model or of an adapter (`publishing.folder`). A
            `config.json` among them is completed.
        audit: the report of an attack on the claim (`pv.audit`, `privlearn.auditing`), on rows that
            are made up or public: `audit.json`, a section of the card, and signed with the rest.
        hub: `owner/name` of a repository of the Hugging Face Hub, to which the folder is then
            uploaded as by `publishing.hub.push_to_hub`; or a `publishing.hub.HubPage`, which also
            names the model's licence for the head of the card. None: nothing is uploaded. The head
            has test figures that were released with noise, too, as a `model-index`.

    Raises:
        BadInput: `out` is taken, private diagnostics or figures of them were passed, the name of a
            test figure begins with "train" or "private", no delta is known, the key cannot be read,
            `hub` is no such name, or huggingface_hub is missing: before anything is written. Or the
            upload fails, and the folder is there.
        UnsupportedEvent: the ledger holds something without a guarantee.
    """
    if not isinstance(result, Result):
        raise BadInput(
            f"result is a {type(result).__name__}: expected what a method such as dpsgd returned"
        )
    path = _require_free(out)
    on_hub = None if hub is None else _ready_page(hub)
    _require_claimable(result)
    _require_publishable(audit)
    key = read_private(sign) if isinstance(sign, str | Path) else sign
    for warning in key.warnings if key and key is not sign else ():
        warnings.warn(warning, stacklevel=2)
    model_spec = result.model_spec if model_spec is None else model_spec
    classes = result.classes if classes is None else classes
    if classes is not None:
        count("classes", classes, most=10**7)
    if model_spec is not None:
        model.require_rebuilt(result, model_spec, classes)
    stated_delta = result.stated_delta(delta)
    metrics = _metrics(test_metrics, test_rows)
    seeded, paid = result.seeded or metrics.seeded, metrics.plan
    facts = {
        "method": result.method,
        **result.facts,
        **({certificate.PAID: paid.noise} if paid else {}),
        **({certificate.HEAD: head} if (head := result.ledger.head) else {}),
    }
    config = model.describe(result, model_spec, classes)
    files = (
        {WEIGHTS: _weights(result), CONFIG: _json(config)}
        if weights is None
        else _complete_weights(weights, config)
    )
    files |= {} if result.released is None else {RELEASED: result.released()}
    event, guarantee, others = certificate.stated(result.ledger, result.plan.event(), stated_delta)
    _require_own_facts(result, facts, event)
    said = Statement(
        event,
        guarantee,
        result.plan,
        facts,
        seeded,
        others,
        metrics,
        data or {},
        model_spec,
        key.public.fingerprint if key else None,
        audit,
        tuple(lines_of_use(files)) if weights is not None else (),
        config.get("table"),
    )
    files = _complete(said, files, key, path, on_hub)
    _require_readable(files)
    new_folder.write(path, files)
    if result.checkpoint:
        result.checkpoint.delete()
    if on_hub is not None:
        _upload(path, on_hub)
    return path


def _require_readable(files: Mapping[str, bytes]) -> None:
    """Refuse files that are larger than readers take."""
    for name, most in LARGEST.items():
        if len(files.get(name, b"")) > most:
            raise BadInput(
                f"{name} would be larger than {most >> 20} MiB, and could not be read: shorten "
                "`data`"
            )


def _ready_page(hub: str | HubPage) -> HubPage:
    """Where the folder will be uploaded.

    Raises:
        BadInput: no such name, or huggingface_hub is missing.
    """
    from privlearn.publishing.hub import HubPage, require_ready  # seldom needed

    on_hub = HubPage(hub) if isinstance(hub, str) else hub
    require_ready(on_hub.name)
    return on_hub


def _upload(path: Path, on_hub: HubPage) -> None:
    """Upload the folder that was written; what fails says that it is there.

    Raises:
        BadInput: it is not uploaded.
    """
    from privlearn.publishing.hub import push_to_hub  # seldom needed

    try:
        push_to_hub(path, on_hub.name, private=on_hub.private)
    except BadInput as error:
        raise BadInput(
            f"{error}. The folder {str(path)[-60:]} is written and complete: "
            "privlearn.publishing.hub.push_to_hub uploads it"
        ) from error


def _require_claimable(result: Result) -> None:
    """Refuse weights that are not, or may not be, what the ledger was charged for."""
    if "unclaimed" in result.facts:
        raise BadInput(f"nothing can be claimed for this model: {result.facts['unclaimed']}")
    result.require_unchanged()
    if any(hasattr(part, "preconditioned_by") for part in result.model.modules()):
        raise BadInput(
            "layers of the model are in coordinates of public curvature, and the result does not "
            "state what that was estimated on: expected pv.models.fold(result), the ordinary model"
        )


def _require_no_diagnostics(*parts: object) -> None:
    """Refuse figures of a run that are for its curator's eyes."""
    for part in parts:
        if isinstance(part, PrivateDiagnostics):
            raise BadInput(
                "private diagnostics were passed to publish: they are not covered by the "
                "guarantee; leave them out"
            )
        named = (
            part.figures if isinstance(part, Metrics) else part if isinstance(part, Mapping) else {}
        )
        for name, value in named.items():
            if isinstance(value, PrivateFigure):
                raise BadInput(
                    (
                        f"{quoted(name)} is a figure of the private training rows without noise, "
                        "for the curator's eyes. "
                    )
                    + _TEST_FIGURES
                )


def _complete(
    said: Statement,
    files: dict[str, bytes],
    key: SigningKey | None,
    path: Path,
    on_hub: HubPage | None,
) -> dict[str, bytes]:
    """All files of a folder: `files`, the audit's report, both cards, and the certificate that
    speaks of them.
    """

    def certify(files: dict[str, bytes]) -> dict[str, bytes]:
        body = certificate.make(
            said.event, said.guarantee, said.plan, said.facts, said.seeded, files, said.others
        )
        return files | {CERTIFICATE: _json(signing.sign(body, key) if key else body)}

    report = {AUDIT: _json(said.audit.to_json())} if said.audit else {}
    written = with_library(card.write(said), files if said.use else {})
    licence = None if on_hub is None else on_hub.licence
    files = files | {CARD: with_metadata(written, licence, said.test_metrics)} | report
    for problem in unfit_files(folder.in_memory(path, files)):
        raise BadInput(f"{problem}. Publish the result and the report as privlearn returned them")
    checked = verify_contents(folder.in_memory(path, certify(files)))
    return certify(files | {PAGE: page.write(said, checked).encode()})


def _require_publishable(audit: AuditReport | None) -> None:
    """Refuse what is no report, or one that follows from private rows."""
    if audit is not None and not callable(getattr(audit, "to_markdown", None)):
        raise BadInput(
            f"audit is a {type(audit).__name__}: expected what pv.audit or privlearn.auditing "
            "returned"
        )
    if audit is not None and not audit.public:
        raise BadInput(
            "the audit ran on rows that were not declared public, so that its report is not a "
            "release: audit with made-up or public rows, Dataset(..., public=True)"
        )


def _complete_weights(weights: Mapping[str, bytes], config: dict[str, Any]) -> dict[str, bytes]:
    """Files of another library's form, and in its configuration what privlearn's own says."""
    if {*weights, CONFIG, CARD} not in (MODEL_FILES, ADAPTER_FILES):
        raise BadInput(
            f"weights has the files {', '.join(sorted(weights))}: expected those of a model, "
            f"{WEIGHTS} and {CONFIG}, or of an adapter, {ADAPTER} and {ADAPTER_CONFIG}"
        )
    theirs = json.loads(weights[CONFIG]) if CONFIG in weights else {}
    taken = sorted(set(theirs) & set(config))
    if taken:
        raise BadInput(
            f"{CONFIG} has a field {taken[0]!r}, which privlearn's own would overwrite: rename it"
        )
    return {**weights, CONFIG: _json({**theirs, **config})}


def _require_own_facts(result: Result, facts: dict[str, Any], event: Event) -> None:
    """Refuse to publish what `verify` would find at odds with itself, or metrics that the ledger
    does not hold.
    """
    try:
        problems = unfit_facts(result.plan, json.loads(json.dumps(facts))) or result.plan.follows(
            facts
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problems = [f"the result's facts lack what its plan asks for: {error!r}"]
    if problems:
        raise BadInput(f"{problems[0]}. Publish what a method returned, as it is")
    absent = certificate.unpaid(facts, result.ledger.event, compose([]))
    for problem in absent or certificate.unpaid(facts, event, result.plan.event()):
        raise BadInput(
            f"{problem}. Charge both to one ledger, approved before the first release, "
            "ledger.approve(plan, paid), or begun with a budget"
        )


def _metrics(metrics: Mapping[str, float] | Metrics | None, rows: int | None) -> Metrics:
    """Test metrics, with the number of rows that is given for them; 0: none is known."""
    if not isinstance(metrics, Metrics):
        metrics = Metrics(
            {name: _figure(name, value) for name, value in (metrics or {}).items()}, 0
        )
    return metrics if rows is None else replace(metrics, rows=count("test_rows", rows))


def _figure(name: str, value: Any) -> float:
    # "private_loss" is what a Lightning strategy logs
    if str(name).lower().startswith(("train", "private")):
        raise BadInput(
            f"test_metrics has {quoted(name)}: a figure of training rows is private. "
            f"{_TEST_FIGURES}"
        )
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"test_metrics has {name!r}: {value!r}; expected a number") from error


def _weights(result: Result) -> bytes:
    from safetensors.torch import save

    state: Mapping[str, Tensor] = vars(result)["_whole"] or result.model.state_dict()
    return save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    )


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
