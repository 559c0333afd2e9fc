"""Writes the schemas in docs/format, which follow from the classes:
`python -m tests.laws.format`.
"""

from __future__ import annotations

import json
from pathlib import Path

from privlearn.publishing.json_schema import make_schemas

FOLDER = Path(__file__).parents[2] / "docs" / "format"


def files() -> dict[Path, str]:
    """The text of each schema, by where it belongs."""
    return {
        FOLDER / f"{name}.schema.json": json.dumps(schema, indent=1) + "\n"
        for name, schema in make_schemas().items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
