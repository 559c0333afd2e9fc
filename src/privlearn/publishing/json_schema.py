"""JSON Schemas of what privlearn publishes follow from the classes that read it.

A kind of event, a plan or a fact that is new stands in them by itself. They say which fields there
are and of which types: ranges, and what has to go together, the classes check. They are published
in `docs/format/`, and nothing that checks a certificate imports this file.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from importlib import import_module
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from privlearn import _public
from privlearn._shapes import LONGEST_LIST, LONGEST_TEXT, Epsilon, Open, Spelled, Within, fields_of
from privlearn.core import transform
from privlearn.core.accounting import events
from privlearn.core.accounting.guarantee import MOST_IN_A_GROUP, Adjacency, PrivacyUnit
from privlearn.core.accounting.ledgers import ledger_file, ledger_json, ledger_rows
from privlearn.core.accounting.ledgers.data_versions import DataVersion
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry
from privlearn.core.plan import AbstractPlan
from privlearn.declared import declared_document
from privlearn.methods import CHOICES, METHODS
from privlearn.publishing import certificate, keys
from privlearn.publishing.folder import ADAPTER_FILES, MODEL_FILES, OPTIONAL
from privlearn.publishing.stated_shapes import OTHER_LIBRARIES, AuditFacts, Configuration
from privlearn.runs.post_processing import ROWS

Schema: TypeAlias = dict[str, Any]
#: The schema of a class, or of another type that is made of no others.
OfClass: TypeAlias = Callable[[Any], Schema]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {float: "number", int: "integer", bool: "boolean", str: "string", types.NoneType: "null"}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def make_schemas() -> dict[str, Schema]:
    """The schemas by their names, in alphabetical order."""
    return {
        "audit": _audit(),
        "certificate": _certificate(),
        "configuration": _configuration(),
        "declared-run": _declared_run(),
        "events": _events(),
        "ledger": _ledger(),
        "plan": _plan(),
    }


def identifier(name: str) -> str:
    """The `$id` of a schema: it ends in the version of what it describes."""
    versions = {
        "audit": certificate.VERSION,
        "certificate": certificate.VERSION,
        "configuration": certificate.VERSION,
        "declared-run": declared_document.VERSION,
        "events": events.JSON_VERSION,
        "ledger": ledger_file.VERSION,
        "plan": certificate.VERSION,
    }
    return f"urn:privlearn:{name}:{versions[name]}"


def _head(name: str, title: str, description: str) -> Schema:
    return {
        "$schema": DIALECT,
        "$id": identifier(name),
        "title": title,
        "description": description,
    }


# Types


def _of_type(hint: Any, of_class: OfClass) -> Schema:
    """The schema of an annotation."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return of_class(Any)
    if origin is Annotated:
        return _add_limits(parts[0], parts[1:], of_class)
    if origin in (Union, types.UnionType):
        return _any_of(_of_type(part, of_class) for part in parts)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is list or (origin is tuple and parts[1:] == (...,)):
        most = {"maxItems": LONGEST_LIST} if origin is list else {}
        return {"type": "array", "items": _of_type(parts[0], of_class), **most}
    if origin is tuple:
        items = [_of_type(part, of_class) for part in parts]
        ends = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, **ends}
    if origin is dict:
        return {
            "type": "object",
            "propertyNames": _of_type(parts[0], of_class),
            "additionalProperties": _of_type(parts[1], of_class),
            "maxProperties": LONGEST_LIST,
        }
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return of_class(hint)


def _add_limits(inner: Any, limits: Iterable[Within | Spelled], of_class: OfClass) -> Schema:
    """The schema of a type with limits to its numbers, lengths or spelling."""
    schema = dict(_of_type(inner, of_class))
    low, high = {
        "array": ("minItems", "maxItems"),
        "object": ("minProperties", "maxProperties"),
        "string": ("minLength", "maxLength"),
    }.get(schema.get("type", ""), ("minimum", "maximum"))
    for limit in limits:
        if isinstance(limit, Spelled):
            schema["pattern"] = f"^({limit.pattern})$"
        else:
            schema |= {low: limit.low, high: limit.high}
    return schema


def _any_of(schemas: Iterable[Schema]) -> Schema:
    """One of several, each once."""
    different: list[Schema] = []
    for schema in schemas:
        for part in schema["anyOf"] if set(schema) == {"anyOf"} else [schema]:
            if part not in different:
                different.append(part)
    return different[0] if len(different) == 1 else {"anyOf": different}


def _reference(name: str, *, to: str = "") -> Schema:
    """What stands for a definition of a schema: of the same one, or of that called `to`."""
    return {"$ref": f"{identifier(to) if to else ''}#/$defs/{name}"}


# Classes


def _of_fields(
    cls: type[Any], of_class: OfClass, written: Iterable[Field[Any]], first: Schema
) -> Schema:
    """The schema of an object with the fields of a dataclass, behind those of `first`."""
    hints, texts = _hints(cls), _field_texts(cls)
    properties, required = dict(first), list(first)
    for part in written:
        schema = _of_type(hints[part.name], of_class)
        if part.name in texts:
            schema = {"description": texts[part.name], **schema}
        properties[part.name] = schema
        if "omitted" not in part.metadata:
            required.append(part.name)
        elif part.default is not MISSING:
            properties[part.name] = {**schema, "default": part.default}
    return {
        "title": cls.__name__,
        "description": _first_paragraph(cls),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _hints(cls: type[Any]) -> dict[str, Any]:
    """The types of a class's fields, of which some are imported for type checkers alone."""
    classes = {known.__name__: known for known in _find_registered().values()}
    classes |= {
        base.__name__: base for known in _find_registered().values() for base in known.__mro__
    }
    classes[DataVersion.__name__] = DataVersion
    missing: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(cls, localns=missing, include_extras=True)
        except NameError as error:
            if error.name not in classes or error.name in missing:
                raise
            missing[error.name] = classes[error.name]


def _first_paragraph(cls: type[Any]) -> str:
    return " ".join((inspect.getdoc(cls) or cls.__name__).split("\n\n")[0].split())


def _field_texts(cls: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of its fields."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        lines = (inspect.cleandoc(base.__doc__) if base.__doc__ else "").splitlines()
        begun = lines.index("Attributes:") + 1 if "Attributes:" in lines else len(lines)
        names: list[str] = []
        for line in lines[begun:]:
            if line and not line.startswith(" "):
                break
            if head := re.fullmatch(r"    (\w+(?:, \w+)*): (.*)", line):
                names = head[1].split(", ")
                texts |= dict.fromkeys(names, head[2])
            elif names and line.strip():
                texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


# Events


def _events() -> Schema:
    kinds = _event_classes()
    head = _head(
        "events",
        "An event",
        "What was done to the data: a tree whose leaves are mechanisms. At most 32 levels.",
    )
    definitions = {
        name: _of_fields(event, _of_event, fields(event), {"kind": {"const": name}})  # type: ignore[arg-type]
        for name, event in kinds.items()
    }
    definitions["event"] = _any_of(_reference(name) for name in kinds)
    return {**head, **_reference("event"), "$defs": definitions}


def _event_classes() -> dict[str, type[events.Event]]:
    """The kinds of event of this package, by name."""
    return {name: cls for name, cls in sorted(events.kinds().items()) if _public.is_own(cls)}


def _of_event(hint: Any, to: str = "") -> Schema:
    """The schema of a type that a field of an event has."""
    if isinstance(hint, type) and issubclass(hint, events.Event):
        named = [name for name, event in _event_classes().items() if issubclass(event, hint)]
        if hint is events.Event:
            return _reference("event", to=to)
        return _any_of(_reference(name, to=to) for name in named)
    return {"type": _PLAIN[hint]}


# Plans


def _find_registered() -> dict[str, type[Any]]:
    """The classes of this package that plans may hold, by kind."""
    transform.kinds()
    _public.enter_expected()
    entered = sorted(_public.kinds(object).items())
    return {kind: cls for kind, cls in entered if _public.is_own(cls)}


def _plan_classes() -> dict[str, type[AbstractPlan]]:
    """The plans that a certificate may carry, by kind: those of the methods of this package."""
    for method in METHODS.values():
        for module in method.plans.values():
            import_module(module)
    methods = {kind for method in METHODS.values() for kind in method.plans}
    entered = _find_registered()
    return {kind: entered[kind] for kind in sorted(methods | set(CHOICES)) if kind in entered}


def _plan() -> Schema:
    head = _head(
        "plan",
        "A plan",
        "Public numbers that fix every event of a run, as a certificate carries them.",
    )
    definitions: dict[str, Schema] = {
        kind: _of_fields(cls, _of_part, fields(cls), {"kind": {"const": kind}})
        for kind, cls in sorted(_find_registered().items())
    }
    infinity = {"kind": {"const": "infinity"}}
    definitions["infinity"] = _make_object(infinity)
    definitions["number"] = {"anyOf": [{"type": "number"}, _reference("infinity")]}
    simple = {"type": ["null", "boolean", "number", "string"]}
    definitions["value"] = {"anyOf": [simple, _reference("infinity"), _reference("plan")]}
    values = {"type": "object", "additionalProperties": _reference("value")}
    definitions["table"] = _make_object({"kind": {"const": "table"}, "values": values})
    definitions["plan"] = _any_of(_reference(kind) for kind in _plan_classes())
    used = _find_reachable(definitions, "plan")
    definitions = {name: schema for name, schema in definitions.items() if name in used}
    return {**head, **_reference("plan"), "$defs": definitions}


def _find_reachable(definitions: Mapping[str, Schema], name: str) -> set[str]:
    """The definitions that one of them refers to, itself among them."""
    reached, waiting = {name}, [name]
    while waiting:
        text = json.dumps(definitions[waiting.pop()])
        new = set(re.findall(r'"#/\$defs/([^"]+)"', text)) - reached
        reached |= new
        waiting += new
    return reached


def _of_part(hint: Any) -> Schema:
    """The schema of a type that a field of a plan, or of a part of one, has."""
    if hint is Any:
        return _reference("value")
    if hint is float:
        return _reference("number")
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if get_origin(hint) is Mapping:
        return _reference("table")
    if isinstance(hint, type) and issubclass(hint, events.Event):
        value = _of_event(hint, "events")
        return _make_object({"kind": {"const": "event"}, "value": value})
    return _any_of(
        _reference(kind) for kind, cls in _find_registered().items() if issubclass(cls, hint)
    )


def _make_object(properties: Schema, optional: Iterable[str] = ()) -> Schema:
    """An object with these fields and no others."""
    required = [name for name in properties if name not in set(optional)]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


# Facts and certificates


def _of_shape(hint: Any) -> Schema:
    """The schema of a type that a closed shape is made of."""
    if is_typeddict(hint):
        needed = [name for name in fields_of(hint) if name in hint.__required_keys__]
        return {
            "title": hint.__name__,
            "description": _first_paragraph(hint),
            "type": "object",
            "properties": {
                name: _of_type(part, _of_shape) for name, part in fields_of(hint).items()
            },
            "required": needed,
            "additionalProperties": False,
        }
    if hint is Epsilon:
        return {"type": "number", "minimum": 0}
    if hint in (Any, Open):
        return {}
    return {"type": _PLAIN[hint]} | ({"maxLength": LONGEST_TEXT} if hint is str else {})


def _facts(plan: type[AbstractPlan], plans: Iterable[type[AbstractPlan]]) -> Schema:
    """The schema of the facts of a plan's runs. A choice among plans has those of the chosen one,
    too.
    """
    shapes = [plan.facts_shape]
    if plan.trained is not AbstractPlan.trained:
        shapes += [other.facts_shape for other in plans]
    by_name: dict[str, list[Schema]] = {}
    for shape in shapes:
        for name, hint in fields_of(shape).items():
            by_name.setdefault(name, []).append(_of_type(hint, _of_shape))
    properties = {name: _any_of(schemas) for name, schemas in by_name.items()}
    properties |= {name: {"description": row.help} for name, row in ROWS.items()}
    return {
        "title": plan.facts_shape.__name__,
        "description": _first_paragraph(plan.facts_shape),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _unit_figures() -> Schema:
    """What a claim states of the unit of protection where that is not one row."""
    return {
        "group_size": {"type": "integer", "minimum": 2, "maximum": MOST_IN_A_GROUP},
        "rows_per_person": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}]},
    }


def _claim() -> Schema:
    rho = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]}
    others = _make_object(
        {
            "runs": {"enum": [certificate.FIXED, certificate.ADAPTIVE, certificate.ALONE]},
            "run_epsilon": {"type": "number"},
            "run_method": {"type": "string"},
            "run_rho": rho,
        }
    )
    figures = _unit_figures()
    return _make_object(
        {
            "epsilon": {"type": "number"},
            "delta": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "adjacency": {"enum": [member.value for member in Adjacency]},
            "method": {"description": "The accountant that gives epsilon.", "type": "string"},
            "rho": {"description": "The zCDP parameter; null where there is none.", **rho},
            "unit": {"description": "Whose data are protected, in words.", "type": "string"},
            **figures,
            "ledger": {"description": "Where other runs were charged, too.", **others},
        },
        {*figures, "ledger"},
    )


def _certificate() -> Schema:
    plans = _plan_classes()
    names = [_files(MODEL_FILES), _files(ADAPTER_FILES)]
    signature = _make_object(
        {
            "algorithm": {"const": keys.ALGORITHM},
            "public_key": {"type": "string", "pattern": "^[A-Za-z0-9+/]{43}=$"},
            "value": {"type": "string", "pattern": "^[A-Za-z0-9+/]{86}==$"},
        }
    )
    parts = {
        "claim": _reference("claim"),
        "plan": {"$ref": identifier("plan")},
        "facts": {"type": "object"},
        "events": {"$ref": identifier("events")},
        "randomness": {"enum": list(certificate.RANDOMNESS)},
        "files": {"description": "SHA-256 of each file of the folder.", "anyOf": names},
    }
    assert tuple(parts) == certificate.PARTS
    body = {
        "format": {"const": certificate.FORMAT},
        "version": {"const": certificate.VERSION},
        **parts,
        "digests": _make_object(dict.fromkeys(certificate.PARTS, _DIGEST)),
        "signature": signature,
    }
    facts = {_facts_name(plan): _facts(plan, plans.values()) for plan in plans.values()}
    head = _head(
        "certificate",
        "A certificate",
        "privacy.json of a published folder: what is claimed of a run, and what it follows from.",
    )
    return {
        **head,
        **_make_object(body, ["signature"]),
        "allOf": [_facts_of(kind, plan) for kind, plan in plans.items()],
        "$defs": {"claim": _claim(), **facts},
    }


def _facts_of(kind: str, plan: type[AbstractPlan]) -> Schema:
    """Where the plan is of a kind, the facts are those of its runs."""
    condition = {"properties": {"plan": {"properties": {"kind": {"const": kind}}}}}
    return {"if": condition, "then": {"properties": {"facts": _reference(_facts_name(plan))}}}


def _facts_name(plan: type[AbstractPlan]) -> str:
    """What the facts of a plan's runs are called: by their shape alone, where that is all."""
    name: str = plan.facts_shape.__name__
    return name


def _files(names: frozenset[str]) -> Schema:
    return _make_object(dict.fromkeys(sorted(names | OPTIONAL), _DIGEST), OPTIONAL)


def _configuration() -> Schema:
    """Fields of other libraries may stand in it where it names one of them."""
    shape = _of_shape(Configuration)
    del shape["additionalProperties"]
    theirs = [{"required": [name]} for name in sorted(OTHER_LIBRARIES)]
    ours = {"propertyNames": {"enum": list(shape["properties"])}}
    head = _head("configuration", "A configuration", "config.json of a published folder.")
    return {**shape, **head, "anyOf": [ours, *theirs]}


def _audit() -> Schema:
    head = _head("audit", "The report of an audit", "audit.json of a published folder.")
    return {**_of_shape(AuditFacts), **head}


# Declared runs


def _declared_run() -> Schema:
    """The schema of a run of another library, which is no certificate."""
    head = _head(
        "declared-run",
        "A declared run, which is not a certificate",
        "declared-run.json of a folder of `privlearn certify`: what a run of another library costs "
        "if it was as declared.",
    )
    schema = _of_type(declared_document.DeclaredRunShape, _of_shape)
    prices = schema["properties"]["recomputed_here"]["properties"]
    for name in ("as_recorded", "as_declared"):
        prices[name]["properties"]["event"] = {"$ref": identifier("events")}
    return {**schema, **head}


# Ledgers


def _ledger() -> Schema:
    head = _head(
        "ledger",
        "The content of a row of a ledger",
        "A change, or the whole state where the row's `whole` is 1.",
    )
    unit = _of_fields(PrivacyUnit, _of_record, fields(PrivacyUnit), {})
    scope = {
        "adjacency": _any_of([_of_type(Adjacency, _of_record), {"type": "null"}]),
        "unit": _any_of([unit, {"type": "null"}]),
    }
    entry = _of_fields(RunEntry, _of_record, fields(RunEntry), {})
    entry["required"] = [name for name in entry["required"] if name not in ledger_json.LATER]
    version = _of_type(DataVersion, _of_record)
    compared_fields = [part for part in fields(LedgerState) if part.compare]
    state = _of_fields(LedgerState, _of_record, compared_fields, {})
    state["required"] = [
        name for name in state["required"] if name not in ledger_json.LATER_OF_STATE
    ]
    state["properties"] |= {**scope, "entries": {"type": "array", "items": _reference("entry")}}
    one = {"anyOf": [{"type": "integer"}, _reference("event", to="events")]}
    charges = _make_object({"id": {"type": "string"}, "done": {"type": "array", "items": one}})
    changed = {"type": "array", "items": {"anyOf": [_reference("entry"), charges]}}
    change = _make_object({**scope, "version": version, "entries": changed}, [*scope, "version"])
    row = _make_object({name: _of_record(hint) for name, hint in _hints(ledger_rows.Row).items()})
    row["properties"]["content"] |= {
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_reference("state"), _reference("change")]},
    }
    return {
        **head,
        "anyOf": [_reference("state"), _reference("change")],
        "$defs": {"state": state, "change": change, "entry": entry, "row": row},
    }


def _of_record(hint: Any) -> Schema:
    """The schema of a type that a field of a ledger's state has."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if issubclass(hint, events.Event):
        return _of_event(hint, "events")
    return _of_fields(hint, _of_record, fields(hint), {})
