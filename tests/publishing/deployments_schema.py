"""Writes the schema of the registry of deployments into a file, without its texts:
`python -m tests.publishing.deployments_schema CLONE`.

CLONE is a clone of https://github.com/opendp/deployments-registry-data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_suffix(".json")
_KEPT = {
    "type",
    "additionalProperties",
    "required",
    "properties",
    "enum",
    "format",
    "items",
    "minItems",
}


def without_texts(node: Any) -> Any:
    """A schema's structure: types, names of fields and values, and what is required."""
    if not isinstance(node, dict):
        return node
    return {
        name: {inner: without_texts(part) for inner, part in value.items()}
        if name == "properties"
        else without_texts(value)
        for name, value in node.items()
        if name in _KEPT
    }


def main(clone: Path) -> None:
    """Write the file."""
    schema = yaml.safe_load((clone / "schemas" / "deployments-schema.yaml").read_text("utf-8"))
    note = (
        "The structure of schemas/deployments-schema.yaml of opendp/deployments-registry-data, "
        "commit 3e9c812a924cf01d228f26f6c462c59c391c3f2a (15 July 2026). Copyright (c) 2025 OpenDP,"
        " MIT License. Descriptions are left out."
    )
    FILE.write_text(json.dumps({"$comment": note, **without_texts(schema)}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
