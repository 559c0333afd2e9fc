"""JSON Schemas of the format, as far as these schemas need it (draft 2020-12)."""

from __future__ import annotations

import json
import math
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from privlearn_verify.strict_json import measure, write_canonical
from privlearn_verify.verdicts import Refusal, Unknown, demand

HERE = Path(__file__).resolve().parent


def find_schemas() -> Path:
    """Return the folder of the schemas: that of the wheel, or that of a source checkout.

    The environment variable PRIVLEARN_FORMAT names another one.
    """
    named = os.environ.get("PRIVLEARN_FORMAT")
    places = [Path(named)] if named else [HERE / "format", HERE.parents[1] / "docs" / "format"]
    return next((place for place in places if place.is_dir()), places[0])


@lru_cache
def read_schemas() -> dict[str, Any]:
    """Return the page's schemas by their names."""
    folder = find_schemas()
    demand(any(folder.glob("*.schema.json")), f"there are no schemas in {folder}", Unknown)
    roots = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.schema.json")]
    return {root["$id"]: root for root in roots}


def find_type(value: Any) -> set[str]:
    """Return JSON Schema's names for the type of a value; 4.0 is no whole number."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    names = {dict: "object", list: "array", str: "string", float: "number", type(None): "null"}
    return {names[type(value)]}


def resolve(rule: Any, root: Any) -> tuple[Any, Any]:
    """Follow references, to the root's definitions or to another schema."""
    while isinstance(rule, dict) and "$ref" in rule:
        name, _, pointer = rule["$ref"].partition("#")
        rule = root = read_schemas()[name] if name else root
        for part in pointer.split("/")[1:]:
            rule = rule[part]
    return rule, root


def check_schema(value: Any, rule: Any, where: str, root: Any = None) -> None:
    """Raise if a value does not satisfy a schema, as far as the page needs it."""
    rule, root = resolve(rule, root)
    if rule is True:
        return
    demand(rule is not False, f"{where} is an unknown field")
    if not set(rule) - {"description", "title"}:
        size, levels = measure(value)
        demand(size <= 200 and levels <= 4, f"{where} holds too much")
    check_value(value, rule, where)
    check_choice(value, rule.get("anyOf", ()), where, root)
    if isinstance(value, dict):
        for name, item in value.items():
            inner = rule.get("properties", {}).get(name, rule.get("additionalProperties", True))
            check_schema(item, inner, f"{where}.{name}", root)
            check_schema(name, rule.get("propertyNames", True), f"a name in {where}", root)
    if isinstance(value, list):
        rules = rule.get("prefixItems") or [rule.get("items", True)] * len(value)
        for place, (item, inner) in enumerate(zip(value, rules, strict=False)):
            check_schema(item, inner, f"{where}[{place}]", root)
    for condition in rule.get("allOf", ()):
        if satisfies(value, condition["if"], root):
            check_schema(value, condition["then"], where, root)


def check_value(value: Any, rule: Any, where: str) -> None:
    """Check the type and the size of a value, and what it may be."""
    types = rule.get("type", [])
    types = {types} if isinstance(types, str) else set(types)
    demand(not types or bool(types & find_type(value)), f"{where} is no {types}")
    allowed = [rule["const"]] if "const" in rule else rule.get("enum", [value])
    same = write_canonical(value) in map(write_canonical, allowed)
    demand(same, f"{where} is {value!r}", Unknown if where.endswith(".version") else Refusal)
    size, name = value, "imum"
    if isinstance(value, str | list | dict):
        names = {str: "Length", list: "Items", dict: "Properties"}
        size, name = len(value), names[type(value)]
    if isinstance(size, int | float):
        least, most = rule.get(f"min{name}", -math.inf), rule.get(f"max{name}", math.inf)
        demand(least <= size <= most, f"{where} is too small or too large")
        least, most = rule.get("exclusiveMinimum"), rule.get("exclusiveMaximum")
        demand(least is None or least < size, f"{where} is too small")
        demand(most is None or size < most, f"{where} is too large")
    if isinstance(value, str):
        pattern = rule.get("pattern", "").replace("$", r"\Z")
        demand(re.search(pattern, value) is not None, f"{where} is {value[:100]!r}")
    missing = set(rule.get("required", ())) - set(value if isinstance(value, dict) else ())
    demand(not isinstance(value, dict) or not missing, f"{where} lacks {sorted(missing)}")


def satisfies(value: Any, rule: Any, root: Any) -> bool:
    """Return whether a value satisfies a schema."""
    try:
        check_schema(value, rule, "a value", root)
    except (Refusal, Unknown):
        return False
    return True


def check_choice(value: Any, rules: Any, where: str, root: Any) -> None:
    """Check that one of some schemas is satisfied: that of the value's kind, if it has one."""
    options = [(rule, resolve(rule, root)[0]) for rule in rules]
    kinds = [rule.get("properties", {}).get("kind", {}).get("const") for _, rule in options]
    kind = value.get("kind") if isinstance(value, dict) else None
    if any(kinds) and isinstance(kind, str):
        alike = [option for option, name in zip(options, kinds, strict=False) if name == kind]
        options = alike or [option for option in options if "anyOf" in option[1]]
        demand(bool(options), f"{where} is of the unknown kind {kind[:100]}", Unknown)
    if len(options) == 1:
        check_schema(value, options[0][0], where, root)
    elif options:
        fits = any(satisfies(value, rule, root) for rule, _ in options)
        demand(fits, f"{where} is of none of the forms it may have")
