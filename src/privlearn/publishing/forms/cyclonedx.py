"""A bill of materials for machine learning (CycloneDX 1.6): the model, its files, and a model card
with its guarantee.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from privlearn import __version__
from privlearn._storage import loads
from privlearn.core.accounting.guarantee import rounded_up
from privlearn.errors import BadInput
from privlearn.publishing.card import neighbours, protected
from privlearn.publishing.envelopes import require_package
from privlearn.publishing.folder import CERTIFICATE, CONFIG
from privlearn.publishing.form import ExportForm, Published, Signature

#: What serial numbers are made from, beside the certificate: the same folder, the same number.
_NAMESPACE = uuid.UUID("6d1f8a52-7f0d-5c39-9a57-1f3f6f0a7d16")
_REFERENCE = "model"


def write(published: Published, signature: Signature | None, about: Mapping[str, Any]) -> bytes:
    """The bill, valid by the schema of CycloneDX.

    cyclonedx-python-lib writes all but the model card, for which it has no class.
    """
    bill = loads(_write_without_card(published, about).encode())
    bill["components"][0]["modelCard"] = make_model_card(published)
    text = json.dumps(bill, indent=1)
    schema = require_package("cyclonedx.schema").SchemaVersion.V1_6
    validation = require_package("cyclonedx.validation.json")
    try:
        invalid = validation.JsonStrictValidator(schema).validate_str(text)
    except require_package("cyclonedx.exception").MissingOptionalDependencyException as error:
        raise BadInput(
            "the schema of CycloneDX can't be checked: pip install 'privlearn[bom]'"
        ) from error
    if invalid is not None:
        raise BadInput(f"the bill of materials is not valid: {str(invalid)[:120]}. Report it")
    return text.encode() + b"\n"


def _write_without_card(published: Published, about: Mapping[str, Any]) -> str:
    bom, component = map(require_package, ("cyclonedx.model.bom", "cyclonedx.model.component"))
    model, schema = map(require_package, ("cyclonedx.model", "cyclonedx.schema"))
    output, digests = require_package("cyclonedx.output"), published.contents.digests

    def describe(name: str, kind: str, version: str | None = None, **more: Any) -> Any:
        return component.Component(
            name=name, type=component.ComponentType[kind], version=version, **more
        )

    def hashes(name: str) -> list[Any]:
        return [model.HashType(alg=model.HashAlgorithm.SHA_256, content=digests[name])]

    files = [
        describe(name, "FILE", hashes=hashes(name), bom_ref=f"file:{name}")
        for name in sorted(digests)
    ]
    released = describe(
        str(about.get("name", published.contents.path.resolve().name)),
        "MACHINE_LEARNING_MODEL",
        str(about["version"]) if "version" in about else None,
        bom_ref=_REFERENCE,
        components=files,
    )
    bill = bom.Bom(
        components=[released], serial_number=uuid.uuid5(_NAMESPACE, digests[CERTIFICATE])
    )
    bill.metadata.tools.components.add(describe("privlearn", "LIBRARY", __version__))
    written = output.make_outputter(
        bill, output.OutputFormat.JSON, schema.SchemaVersion.V1_6
    ).output_as_string()
    return str(written)


def make_model_card(published: Published) -> dict[str, Any]:
    """What the bill says of the model: figures as properties, and sentences as considerations."""
    claim, guarantee = published.certificate["claim"], published.guarantee
    figures = {
        "epsilon": repr(claim["epsilon"]),
        "delta": repr(claim["delta"]),
        "adjacency": claim["adjacency"],
        "unit": claim["unit"],
        "group_size": str(guarantee.group_size),
        "accounting_method": claim["method"],
        "randomness": published.certificate["randomness"],
        "certificate:sha256": published.contents.digests[CERTIFICATE],
    }
    figures |= {} if claim["rho"] is None else {"rho": repr(claim["rho"])}
    figures |= {"other_runs": claim["ledger"]["runs"]} if "ledger" in claim else {}
    signed_by = published.verification.signed_by
    figures |= {} if signed_by is None else {"certificate:signed_by": signed_by}
    config = loads(published.contents.files[CONFIG])
    architecture = config.get("model")
    return {
        "modelParameters": (
            {"modelArchitecture": architecture} if isinstance(architecture, str) else {}
        ),
        "considerations": {
            "technicalLimitations": [
                "The certificate proves arithmetic and files. That this was the run is the "
                "publisher's word.",
                *published.verification.warnings,
            ],
            "performanceTradeoffs": [
                "Clipping and noise lower accuracy, more so with few examples, a small epsilon and "
                "for small groups."
            ],
            "ethicalConsiderations": [
                {
                    "name": "The model may disclose its training data.",
                    "mitigationStrategy": (
                        f"Trained with ({rounded_up(guarantee.epsilon)}, {guarantee.delta:g})-"
                        f"differential privacy: {neighbours(guarantee)}. Protected is "
                        f"{protected(guarantee.unit)}"
                    ),
                }
            ],
        },
        "properties": [
            {"name": f"privlearn:{name}", "value": value} for name, value in figures.items()
        ],
    }


FORM = ExportForm(
    write,
    fields={"name": "of the model (default: the folder's)", "version": "of the model"},
)
