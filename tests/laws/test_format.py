"""The schemas in docs/format are those of the classes, and refuse nothing that privlearn accepts.

They may accept more: ranges, and what has to go together, the classes check.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from referencing import Registry, Resource
from safetensors.torch import save

import privlearn as pv
from privlearn import _public
from privlearn._storage import loads
from privlearn.core.accounting import accountant, events
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian, Laplace, PoissonSampled
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.schedules import Constant
from privlearn.errors import PrivlearnError
from privlearn.publishing import certificate
from privlearn.publishing.folder import ADAPTER, ADAPTER_CONFIG, CERTIFICATE
from privlearn.publishing.json_schema import make_schemas
from tests.accounting.checks_ledger_database import charged, edit_at_random
from tests.laws import format as generated
from tests.publishing import test_fuzz_published as fuzzed
from tests.publishing.checks import body_of, key_in, published
from tests.publishing.checks_certificates import published as published_by_each_method
from tests.statistics import checks_released as released_rows
from tests.support import fuzz_json, registries

HOSTILE = Path(__file__).parent / "hostile"


def validator(name: str, schemas: dict[str, Any] | None = None) -> jsonschema.Draft202012Validator:
    known = schemas or stored()
    resources = [(schema["$id"], Resource.from_contents(schema)) for schema in known.values()]
    return jsonschema.Draft202012Validator(
        known[name], registry=Registry().with_resources(resources)
    )


@cache
def stored() -> dict[str, Any]:
    """The schemas as they are published."""
    paths = generated.FOLDER.glob("*.schema.json")
    return {path.name.partition(".")[0]: json.loads(path.read_text("utf-8")) for path in paths}


def require_valid(name: str, value: Any, what: object = "") -> None:
    error = next(validator(name).iter_errors(value), None)
    assert error is None, (what, error.json_path, error.message[:400])


def test_the_files_are_what_the_classes_say() -> None:
    """`python -m tests.laws.format` writes them."""
    files = generated.files()
    assert set(generated.FOLDER.glob("*.json")) == {*files, generated.PRICES}
    for path, text in files.items():
        assert path.read_text("utf-8") == text, path


def test_the_prices_are_what_the_accountant_says() -> None:
    """`python -m tests.laws.format` writes them."""
    rows = json.loads(generated.PRICES.read_text("utf-8"))
    for row, case in zip(rows, generated.list_cases(), strict=True):
        now = json.loads(json.dumps(generated.price(*case)))
        require_valid("events", row["events"])
        assert row.pop("by_method") == pytest.approx(now.pop("by_method"), rel=1e-9), row
        assert row.pop("epsilon") == pytest.approx(now.pop("epsilon"), rel=1e-9), row
        if row["rho"] is not None:
            assert row.pop("rho") == pytest.approx(now.pop("rho"), rel=1e-9), row
        assert now == row
    assert {kind for row in rows for kind in kinds_in(row["events"])} == set(priced_kinds())


def kinds_in(value: Any) -> set[str]:
    """The kinds of all events in a tree."""
    inner = [value.get("event"), *value.get("events", ())]
    return {value["kind"]}.union(*(kinds_in(each) for each in inner if each))


def priced_kinds() -> set[str]:
    return set(events.kinds()) - {"non_private"}


def test_they_are_schemas_and_say_their_version() -> None:
    for name, schema in stored().items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"].startswith(f"urn:privlearn:{name}:")
    assert stored()["certificate"]["$id"].endswith(f":{certificate.VERSION}")
    assert stored()["events"]["$id"].endswith(f":{events.JSON_VERSION}")


def test_certificates_of_every_method_are_valid(tmp_path: Path) -> None:
    for name, contents in published_by_each_method().items():
        require_valid("certificate", json.loads(contents.files[CERTIFICATE]), name)
    for name in fuzzed.BASES:
        require_valid("certificate", fuzzed.certified(name)[0], name)
    require_valid("certificate", body_of(published(tmp_path, sign=key_in(tmp_path))), "signed")


def test_adapters_released_rows_and_ensembles_have_one_shape(tmp_path: Path) -> None:
    """The same schema, and the same parts: only the names of files and the facts differ."""
    config = {"peft_type": "LORA", "base_model_name_or_path": "owner/base"}
    adapter = {
        ADAPTER: save({"weight": torch.zeros(2)}),
        ADAPTER_CONFIG: json.dumps(config).encode(),
    }
    folders = [published(tmp_path, "adapter", weights=adapter, model_spec=None, classes=None)]
    folders.append(pv.publish(released_rows.some_rows(), tmp_path / "rows"))
    columns = pv.Dataset(np.zeros((9, 2)), np.arange(9) % 2, classes=2, low=0.0, high=1.0)
    plan = pv.boosting.plan_for(columns).calibrate(epsilon=3.0, delta=1e-5)
    folders.append(pv.publish(pv.boosting.boost(plan, columns), tmp_path / "ensemble", delta=1e-5))
    for folder in folders:
        assert pv.verify(folder).ok, folder
        body = body_of(folder)
        require_valid("certificate", body, folder)
        configuration = json.loads((folder / "config.json").read_text("utf-8"))
        require_valid("configuration", configuration, folder)
        assert set(certificate.PARTS) < set(body)
    assert "rows.csv" in body_of(folders[1])["files"]


@pytest.mark.parametrize("unit", [{"group_size": 3}, {"rows_per_person": 2}])
def test_certificates_for_persons_are_valid(unit: dict[str, int]) -> None:
    plan = Plan(Poisson(0.1), 1, Constant(2.0), examples=100, **unit)  # type: ignore[arg-type]
    body = certificate.make(
        plan.event(),
        plan.guarantee(1e-5),
        plan,
        {"examples": 100, "steps": 10},
        True,
        dict.fromkeys(("model.safetensors", "config.json", "README.md"), b""),
    )
    assert set(unit) <= set(body["claim"])
    require_valid("certificate", body)


def test_what_is_added_or_missing_is_refused() -> None:
    """Of every object in a certificate, and a schema without one of its fields refuses it."""
    body, _ = fuzzed.certified("poisson")
    check = validator("certificate")
    objects = [value for where, name in fuzz_json.places(body) if (value := where[name])]
    tables = [value for value in [body, *objects] if isinstance(value, dict)]
    assert len(tables) > 10
    for table in tables:
        table["more"] = 1
        assert not check.is_valid(body), table
        del table["more"]
    for name in body["claim"]:
        less = {key: value for key, value in body["claim"].items() if key != name}
        assert check.is_valid({**body, "claim": less}) == (name == "ledger"), name
        schemas = copy.deepcopy(stored())
        del schemas["certificate"]["$defs"]["claim"]["properties"][name]
        assert not validator("certificate", schemas).is_valid(body), name


def test_other_versions_are_refused() -> None:
    body, _ = fuzzed.certified("poisson")
    for version in (certificate.VERSION - 1, certificate.VERSION + 1, "2", None):
        assert not validator("certificate").is_valid({**body, "version": version})


@pytest.mark.parametrize("name", fuzzed.BASES)
def test_no_forgery_that_verify_accepts_is_refused(name: str) -> None:
    """What is refused for its form is mostly refused by the schema, too: how often is printed."""
    body, files = fuzzed.certified(name)
    check, accepted, unreadable, refused = validator("certificate"), 0, 0, 0
    for text in fuzz_json.structures(body, 7, 100):
        try:
            forged = loads(text)
        except ValueError:
            continue  # no JSON
        readable = isinstance(forged, dict) and set(certificate.PARTS) <= set(forged)
        if readable:
            forged["digests"] = {
                part: certificate.digest(forged[part]) for part in certificate.PARTS
            }
        valid = check.is_valid(forged)
        if says_ok(forged, files):
            accepted += 1
            assert valid, text
        elif not readable or not is_read(forged):
            unreadable += 1
            refused += not valid
    print(f"{name}: {accepted} accepted, {refused} of {unreadable} unreadable ones refused")
    assert refused > 0


def says_ok(forged: Any, files: dict[str, bytes]) -> bool:
    found = fuzzed.checked(json.dumps(forged).encode(), files)
    return found is not None and found.ok


def is_read(forged: dict[str, Any]) -> bool:
    """Whether certificate, events and plan can be read at all."""
    try:
        certificate.parse(json.dumps(forged).encode())
        events.from_json(forged["events"])
        certificate.read_plan(forged["plan"])
    except PrivlearnError:
        return False
    return True


@pytest.mark.parametrize("kind", ["certificate", "plan"])
def test_hostile_files_are_refused(kind: str) -> None:
    read = 0
    for path in sorted((HOSTILE / kind).iterdir()):
        try:
            value = loads(path.read_bytes())
        except ValueError:
            continue  # no JSON
        read += 1
        assert not validator(kind).is_valid(value), path.name
    assert read > 1


def test_plans_that_can_be_read_are_valid() -> None:
    """Those of certificates, and what damage leaves readable."""
    texts = [plan.to_json() for _, _, plan in fuzzed.BASES.values()]
    texts += [
        json.loads(each.files[CERTIFICATE])["plan"] for each in published_by_each_method().values()
    ]
    check, readable = validator("plan"), 0
    for number, text in enumerate(texts):
        require_valid("plan", text, number)
        for content in fuzz_json.structures(text, number, 40):
            try:
                value = loads(content)
                certificate.read_plan(value)
            except (ValueError, PrivlearnError):
                continue
            readable += 1
            assert check.is_valid(value), content
    assert readable > len(texts)


def test_every_kind_of_event_and_of_plan_is_in_them() -> None:
    schemas = make_schemas()
    for name, cls in events.kinds().items():
        assert set(schemas["events"]["$defs"][name]["properties"]) == {
            "kind",
            *(part.name for part in fields(cls)),  # type: ignore[arg-type]
        }
    for kinds in ("samplers", "clips", "schedules", "correlations", "transforms"):
        for kind, cls in registries.REGISTRIES[kinds]().items():
            assert not _public.is_own(cls) or kind in schemas["plan"]["$defs"], kind


def test_rows_of_ledgers_are_valid(tmp_path: Path) -> None:
    writers: list[Callable[[Path], object]] = [charged, edit_at_random]
    content = validator("ledger")
    only_rows = {**stored()["ledger"], "anyOf": [{"$ref": "#/$defs/row"}]}
    row = validator("ledger", {**stored(), "ledger": only_rows})
    names = ("data", "number", "at", "whole", "content", "previous", "digest")
    forms = set()
    for number, write in enumerate(writers):
        path = tmp_path / f"{number}.db"
        write(path)
        with LedgerFile(path).reading() as execute:
            rows = list(execute(f"SELECT {', '.join(names)} FROM change"))
        assert len(rows) > 3
        for each in rows:
            assert row.is_valid(dict(zip(names, each, strict=True)))
            body = json.loads(each[4])
            error = next(content.iter_errors(body), None)
            assert error is None, (error.json_path, error.message[:300])
            assert not content.is_valid({**body, "more": 1})
            forms.add(each[3])
    assert forms == {0, 1}


def tables() -> list[list[list[str]]]:
    """The tables of the page: rows of cells, without their heads."""
    found: list[list[list[str]]] = [[]]
    for line in (generated.FOLDER / "README.md").read_text("utf-8").splitlines():
        if line.startswith("| "):
            found[-1].append([cell.strip().replace("`", "") for cell in line[1:-1].split(" | ")])
        elif found[-1]:
            found.append([])
    return found


def table(*head: str) -> list[list[str]]:
    """The rows of the table that begins with these columns."""
    (rows,) = (rows for rows in tables() if rows and tuple(rows[0][: len(head)]) == head)
    return rows[2:]


def named(rows: list[list[str]]) -> set[str]:
    """The kinds in the first column."""
    return {
        name.partition(" ")[0].strip("()") for row in rows for name in row[0].split(", ") if name
    }


def test_the_page_has_every_kind() -> None:
    """A new event, plan, sampler or schedule has no price there before somebody writes it down."""
    kinds = {name: cls for name, cls in events.kinds().items() if _public.is_own(cls)}
    mechanisms = {name for name, cls in kinds.items() if issubclass(cls, events.Mechanism)}
    assert named(table("kind", "fields")) == set(kinds)
    assert named(table("kind", "D(a)")) == mechanisms - {"non_private"}
    schemas = stored()
    plans = {part["$ref"].rpartition("/")[2] for part in schemas["plan"]["$defs"]["plan"]["anyOf"]}
    assert named(table("kind", "D")) == plans
    for registry, head in (("samplers", "sampling"), ("schedules", "schedule")):
        own = {
            kind for kind, cls in registries.REGISTRIES[registry]().items() if _public.is_own(cls)
        }
        assert named(table(head)) == own, registry


def test_the_page_says_which_neighbours_are_covered() -> None:
    columns = list(Adjacency)
    for name, _, *cells in table("kind", "fields"):
        cls = events.kinds()[name]
        if not issubclass(cls, events.Mechanism) or name == "non_private":
            continue
        for adjacency, cell in zip(columns, cells, strict=True):
            assert cell.startswith(("yes", "as")) == (adjacency in cls.adjacencies), (name, cell)


def test_the_page_has_the_ranges() -> None:
    """Both ends are read, and what is a little beyond is refused."""
    rows = table("kind", "field")
    bounded = {(name, field) for name, field, *_ in rows}
    for name, schema in stored()["events"]["$defs"].items():
        for field, part in schema.get("properties", {}).items():
            types = {part.get("type"), *(each.get("type") for each in part.get("anyOf", ()))}
            assert not types & {"number", "integer"} or (name, field) in bounded, (name, field)
    for name, field, least, most in rows:
        whole = stored()["events"]["$defs"][name]["properties"][field].get("type") == "integer"
        numbers = [float(end) for end in (least, most) if not end.startswith("min")]
        ends = [int(end) if whole else end for end in numbers]
        for end, beyond in zip(ends, (-1, 1) if len(ends) == 2 else (1,), strict=True):
            events.from_json(example(name, field, end))
            if math.isinf(end):
                continue
            outside = end + beyond if whole else end * (1 + 1e-6 * beyond) + 1e-30 * beyond
            with pytest.raises(PrivlearnError):
                events.from_json(example(name, field, outside))


def example(name: str, field: str, value: float) -> dict[str, Any]:
    """An event of a kind with one value of its own, by the schema."""
    noise = {"kind": "gaussian", "noise_multiplier": 1.0}
    usual = {"event": noise, "events": [noise], "orders": [], "bounds": [], "sampling_rate": 0.1}
    usual |= {"examples": 100, "maximum": 100, "categories": 2, "count": 1, "mean": 2, "shape": 1}
    more = {"maximum": 10**15} if field == "examples" and value > 100 else {}
    properties = stored()["events"]["$defs"][name]["properties"]
    parts = {key: usual.get(key, 1.0) for key in properties if key != "kind"}
    return {"kind": name, **parts, **more, field: value}


def test_the_page_has_every_method() -> None:
    listed = [row[0] for row in table("method", "covers")]
    runs = (
        compose([Laplace(3.0), PoissonSampled(0.1, Gaussian(2.0))]),
        Gaussian(2.0),
        Laplace(2.0),
    )
    known = {
        each.method
        for run in runs
        for each in accountant.guarantees(compose([run]), Adjacency.ADD_REMOVE, 1e-5)
    }
    assert known == set(listed)


def test_the_page_has_the_head_of_a_card() -> None:
    page = (generated.FOLDER / "README.md").read_text("utf-8")
    figures = (3.9987730830604704, 1e-05, "zero_out", PrivacyUnit(3), "SHA256:...")
    assert f"```\n{certificate.header(*figures).rstrip()}\n```" in page
    *lines, title = certificate.page_head(*figures).splitlines()
    assert f"```\n{chr(10).join(lines)}\n```" in page
    assert f"`{title.replace('3.9987730830604704', 'E').replace('1e-05', 'D')}`" in page
