"""The files of a folder beside the certificate."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from privlearn_verify.schema_rules import check_schema, read_schemas
from privlearn_verify.strict_json import (
    BYTES_AT_MOST,
    ENVELOPES,
    compute_digest,
    measure,
    read_json,
    write_canonical,
)
from privlearn_verify.verdicts import Unknown, demand

PARTS = ("claim", "plan", "facts", "events", "randomness", "files")
DTYPES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2}
DTYPES |= {"BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8}


def check_digests(certificate: Any, files: Mapping[str, bytes]) -> None:
    """Compare the digests of parts and files, and the names of the files."""
    for name in PARTS:
        same = compute_digest(write_canonical(certificate[name])) == certificate["digests"][name]
        demand(same, f"the digest of {name} is another one")
    listed = certificate["files"]
    names = {name for name in files if not name.startswith(".")}
    odd = (names - set(ENVELOPES)) ^ {"privacy.json", *listed}
    demand(not odd, f"not both in the folder and in the certificate: {sorted(odd)}")
    for name in names & set(ENVELOPES):
        demand(len(files[name]) <= BYTES_AT_MOST[name], f"{name} is too large")
    for name, expected in listed.items():
        demand(compute_digest(files[name]) == expected, f"the digest of {name} is another one")
        demand(len(files[name]) <= BYTES_AT_MOST.get(name, math.inf), f"{name} is too large")


def name_unit(claim: Any) -> str:
    """Return the words for what the claim protects."""
    rows, group = claim.get("rows_per_person"), claim.get("group_size")
    if rows is not None:
        used = "all of which" if rows == "all" else f"of which at most {rows} are"
        used += " may be used" if rows == "all" else " used"
        return f"one person (any number of rows, {used})"
    if group:
        return f"up to {group} examples of one person"
    return "one example (one row of the training data)"


def check_cards(claim: Any, signed_by: str | None, files: Mapping[str, bytes]) -> None:
    """Compare the first lines of README.md and card.html with the claim."""
    lines = {"epsilon": json.dumps(claim["epsilon"]), "delta": json.dumps(claim["delta"])}
    lines["adjacency"] = claim["adjacency"]
    if claim["unit"] != name_unit({}):
        lines["unit"] = claim["unit"]
    if signed_by:
        lines["signed_by"] = signed_by
    text = "".join(f"{name}: {value}\n" for name, value in lines.items())
    library = r"(privlearn|transformers|peft(\nbase_model: [A-Za-z0-9_./-]+)?)"
    figure = r'\{"type": "[A-Za-z0-9_]+", "value": [0-9.e+-]+\}'
    index = r'\[\{"name": "model", "results": \[\{"task": \{"type": "[a-z-]+"\}, "dataset": '
    index += r'\{"type": "private", "name": "test rows"\}, "metrics": '
    index += rf"\[((, )?{figure})+\]\}}\]\}}\]"
    more = rf"(\nlicense: [a-z0-9.-]{{1,40}})?(\nmodel-index: {index})?"
    pattern = rf"---\nlibrary_name: {library}{more}\ntags: \[differential-privacy\]\n"
    pattern += re.escape(text) + r"---\n\n"
    readme = bytes(files["README.md"])
    demand(re.match(pattern.encode(), readme) is not None, "README.md begins with other lines")
    readme.decode()
    head = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    for name, value in lines.items():
        head += f'<meta name="{name}" content="{value}">\n'
    head += "<title>A model trained with differential privacy: "
    head += f"epsilon {lines['epsilon']}, delta {lines['delta']}</title>\n"
    card = bytes(files.get("card.html", head.encode()))
    demand(card.startswith(head.encode()), "card.html begins with other lines")


def check_weights(data: bytes) -> None:
    """Check that weights are one safetensors file without gaps."""
    size = int.from_bytes(data[:8], "little")
    demand(8 <= 8 + size <= len(data) and size <= 2**24, "the weights have no header")
    text = bytes(data[8 : 8 + size])
    body = text.rstrip(b" ")
    demand(body[:1] == b"{" and len(text) - len(body) <= 7, "the header of the weights is another")
    header, ends = read_json("the header of the weights", body), []
    metadata = header.pop("__metadata__", {})
    demand(metadata in ({}, {"format": "pt"}), "the weights have other metadata")
    for name, tensor in header.items():
        demand(len(name) <= 512 and name.isprintable(), "a tensor's name is not printable")
        exact = isinstance(tensor, dict) and set(tensor) == {"dtype", "shape", "data_offsets"}
        demand(exact, f"the tensor {name} has other fields")
        for numbers in (tensor["shape"], tensor["data_offsets"]):
            whole = isinstance(numbers, list) and all(type(x) is int and x >= 0 for x in numbers)
            demand(whole, f"the tensor {name} has no whole numbers")
        demand(len(tensor["data_offsets"]) == 2, f"the tensor {name} has other offsets")
        demand(tensor["dtype"] in list(DTYPES), f"the type of the tensor {name}", Unknown)
        start, end = tensor["data_offsets"]
        fits = math.prod(tensor["shape"]) * DTYPES[tensor["dtype"]] == end - start
        demand(fits, f"the tensor {name} has another size")
        ends.append((start, end))
    place = 0
    for start, end in sorted(ends):
        demand(start == place, "the weights have gaps or overlaps")
        place = end
    demand(8 + size + place == len(data), "the weights have gaps or overlaps")


def check_other_files(files: Mapping[str, bytes], public: Any) -> None:
    """Check weights, configurations and the report of an audit."""
    adapter = "adapter_model.safetensors" in files
    check_weights(files["adapter_model.safetensors" if adapter else "model.safetensors"])
    if "audit.json" in files:
        names = ("epsilon_lower", "epsilon_any", "epsilon_claimed", "epsilon_curve")
        audit = read_json("audit.json", files["audit.json"], names)
        check_schema(audit, {"$ref": "urn:privlearn:audit:2"}, "audit.json")
    configuration = read_json("config.json", files["config.json"])
    check_schema(configuration, {"$ref": "urn:privlearn:configuration:2"}, "config.json")
    foreign = {"model_type", "peft_type", "architectures"} & set(configuration)
    large = [configuration] if foreign else []
    if adapter:
        large.append(read_json("adapter_config.json", files["adapter_config.json"]))
    for value in large:
        size, levels = measure(value)
        demand(size <= 50_000 and levels <= 8, "a configuration holds too much")
    check_transforms(configuration.get("transforms", []), public)
    if "table" in configuration:
        expected = compute_digest(write_canonical(configuration["table"]))
        same = configuration.get("schema") == expected
        demand(same, "the digest of the table is another one")
        raise Unknown("config.json has a table")


def check_transforms(transforms: Any, public: list[Any]) -> None:
    """Compare the transforms of the configuration with the public features of the facts."""
    demand(isinstance(transforms, list), "transforms is no list")
    kinds = set(read_schemas()["urn:privlearn:plan:2"]["$defs"])
    for item in transforms:
        shaped = isinstance(item, dict) and isinstance(item.get("kind"), str)
        demand(shaped, "a transform has no kind")
        demand(item["kind"] in kinds, f"the transform {item['kind']}", Unknown)
    featured = [item for item in transforms if "spec" in item]
    demand(len(featured) == len(public), "config.json has other public features")
    for item, feature in zip(featured, public, strict=False):
        names = ("kind", "spec", "digest") if "digest" in feature else ("kind", "spec")
        same = all(item.get(name) == feature.get(name) for name in names)
        demand(same, "config.json has other public features")


def check_rows(files: Mapping[str, bytes], certificate: Any) -> None:
    """Compare rows.csv with the facts and the plan."""
    facts, plan = certificate["facts"], certificate["plan"]
    released = facts.get("released_rows")
    demand(("rows.csv" in files) == (released is not None), "not both rows.csv and released_rows")
    if released is None:
        return
    rows = list(csv.reader(io.StringIO(bytes(files["rows.csv"]).decode(), newline=""), strict=True))
    demand(rows[:1] == [[*released["columns"], released["label"]]], "rows.csv has other names")
    demand(len(rows) - 1 == facts.get("examples", len(rows) - 1), "rows.csv has more or less rows")
    for row in rows[1:]:
        demand(len(row) == len(rows[0]), "a row of rows.csv is of another length")
        demand(all(math.isfinite(float(x)) for x in row[:-1]), "rows.csv: an infinite number")
        demand(row[-1] in released["classes"], "rows.csv has a label that is no class")
    count = len(released["columns"])
    demand(len(released["bounds"]) in (0, count), "bounds are not those of all columns")
    if plan["kind"] == "rows":
        same = (count, len(released["classes"])) == (plan["keep"], plan["classes"])
        demand(same, "rows.csv has other columns or classes than the plan")
