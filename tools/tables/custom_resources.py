"""Writes `custom_resources.json`: what the API server accepts in the custom resources that contain training jobs.

    python -m tools.tables.custom_resources FOLDER

FOLDER contains one folder for each release of an operator (`jobset-v0.12.0`) with its CustomResourceDefinitions;
`ORIGINS` says where each comes from. Descriptions are left out and equal parts are kept once, so that 26 releases take
100 KB.
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from preflight.sources.tables import FOLDER

TARGET = FOLDER / "custom_resources.json"
_CONDITIONS = Path(__file__).with_name("conditions.yaml")


class Origin(NamedTuple):
    """The repository of an operator, the folder of its definitions, and the releases, oldest first."""

    repository: str
    folder: str
    releases: tuple[str, ...]


ORIGINS = {
    "training-operator": Origin("kubeflow/trainer", "manifests/base/crds", ("v1.7.0", "v1.8.1", "v1.9.3")),
    "trainer": Origin("kubeflow/trainer", "manifests/base/crds", ("v2.0.1", "v2.1.0", "v2.2.1", "v2.3.0")),
    "jobset": Origin(
        "kubernetes-sigs/jobset", "config/components/crd/bases", ("v0.6.0", "v0.8.2", "v0.10.1", "v0.12.0")
    ),
    "kueue": Origin("kubernetes-sigs/kueue", "config/components/crd/bases", ("v0.12.0", "v0.15.0", "v0.19.2")),
    "volcano": Origin("volcano-sh/volcano", "config/crd/volcano/bases", ("v1.10.0", "v1.12.0", "v1.15.1")),
    "kuberay": Origin("ray-project/kuberay", "ray-operator/config/crd/bases", ("v1.2.2", "v1.4.2", "v1.7.0")),
    "mpi-operator": Origin("kubeflow/mpi-operator", "manifests/base", ("v0.4.0", "v0.6.0", "v0.8.0")),
    "lws": Origin("kubernetes-sigs/lws", "config/crd/bases", ("v0.5.1", "v0.7.0", "v0.10.0")),
    "paddle-operator": Origin("PaddleFlow/paddle-operator", "config/crd/bases", ("v0.3.5",)),
}
#: By API group the versions that only releases before those above served.
FORMER = {
    "kubeflow.org": ["v1alpha1", "v1alpha2", "v1beta1", "v1beta2", "v2alpha1"],
    "kueue.x-k8s.io": ["v1alpha1", "v1alpha2"],
    "jobset.x-k8s.io": ["v1alpha1"],
    "batch.paddlepaddle.org": ["v1alpha1"],
}
#: Required fields that an operator's mutating webhook fills in before the schema is looked at (jobset v0.12.0,
#: pkg/webhooks/jobset_webhook.go).
FILLED_BY_WEBHOOK = {"JobSet": (("failurePolicy", "rules", "name"),)}
#: Kinds that such a webhook decodes and writes again: a quantity of 0.5 becomes "500m", and an empty text is dropped.
#: Kueue's webhooks do the same to any job with the label of a queue. Read from lws v0.10.0, trainer v2.3.0, jobset
#: v0.12.0, volcano v1.15.1 and kueue v0.19.2 (pkg/webhooks, pkg/controller/jobframework).
REWRITTEN = ("JobSet", "LeaderWorkerSet", "TrainJob", "Job")
#: Kinds that users write; the others belong to controllers and administrators.
KINDS = frozenset(
    (
        *("PyTorchJob", "MPIJob", "PaddleJob", "TFJob", "XGBoostJob", "JAXJob"),
        *("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "JobSet", "LeaderWorkerSet"),
        *("ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor", "Topology", "WorkloadPriorityClass"),
        *("Job", "CronJob", "PodGroup", "Queue", "RayCluster", "RayJob", "RayService", "RayCronJob"),
    )
)
_LIMITS = (
    *("pattern", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("minProperties", "maxProperties", "nullable"),
)
#: Lists of pods in which Kubernetes itself refuses two equal names, whether or not an older definition says so.
_UNIQUE_IN_PODS = frozenset(("containers", "initContainers", "volumes", "volumeMounts"))
_UNIQUE = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")
#: Operators whose older releases check in a webhook what the newest says in its definition (volcano v1.10.0,
#: pkg/webhooks/admission/jobs/validate: names, minAvailable, events and actions of policies, the queue).
_CHECKED_BY_WEBHOOK = frozenset(("volcano",))
_FORMATS = frozenset(("date-time", "int32", "int64"))
#: Of every object; from the validation of metadata in k8s.io/apimachinery 0.36 (pkg/api/validation/objectmeta.go).
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = rf"^({_DNS_LABEL}(\.{_DNS_LABEL})*/)?([A-Za-z0-9][-A-Za-z0-9_.]{{0,61}})?[A-Za-z0-9]$"
_TEXT: dict[str, Any] = {"type": "string"}
METADATA: dict[str, Any] = {
    "type": "object",
    "x-name": True,
    "properties": {
        "name": {**_TEXT, "pattern": rf"^{_DNS_LABEL}(\.{_DNS_LABEL})*$", "maxLength": 253},
        "generateName": _TEXT,
        "namespace": {**_TEXT, "pattern": f"^{_DNS_LABEL}$", "maxLength": 63},
        "labels": {
            "type": "object",
            "x-key-pattern": _QUALIFIED,
            "additionalProperties": {
                **_TEXT,
                "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
                "maxLength": 63,
            },
        },
        "annotations": {"type": "object", "x-key-pattern": "(?i)" + _QUALIFIED, "additionalProperties": _TEXT},
        "finalizers": {"type": "array", "items": _TEXT},
        "ownerReferences": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "managedFields": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "generation": {"type": "integer"},
        "deletionGracePeriodSeconds": {"type": "integer"},
        **dict.fromkeys(("uid", "resourceVersion", "selfLink", "creationTimestamp", "deletionTimestamp"), _TEXT),
    },
}


class Untranslated(ValueError):
    """A CEL rule that `conditions.yaml` does not contain."""


@functools.cache
def conditions() -> dict[str, tuple[list[Any], str]]:
    """Return, by the text of a rule, the condition that must hold and the key at which a refusal is reported."""
    rows = yaml.safe_load(_CONDITIONS.read_text(encoding="utf-8"))
    return {row["rule"]: (row["holds"], row.get("at", "")) for row in rows}


class Parts:
    """Schemas as rows that refer to each other by number, without duplicates."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}

    def add(self, schema: dict[str, Any], *, is_object: bool = False) -> int:
        """Return the number of a schema. `is_object`: of a whole object, whose metadata all objects share."""
        row: dict[str, Any] = {"type": schema.get("type", "")}
        if schema.get("x-kubernetes-int-or-string"):
            row["type"] = "int-or-string"
        row.update((key, schema[key]) for key in _LIMITS if key in schema)
        if schema.get("format") in _FORMATS or ("format" in schema and schema.get("type") == "string"):
            row["format"] = schema["format"]
        if schema.get("x-kubernetes-list-type") in ("map", "set"):
            row["unique"] = schema.get("x-kubernetes-list-map-keys") or []
        if schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("additionalProperties") is True:
            row["open"] = True
        for key, name in (("x-key-pattern", "key-pattern"), ("x-name", "named")):
            if key in schema:
                row[name] = schema[key]
        properties: dict[str, Any] = dict(schema.get("properties") or {})
        if is_object:
            properties.pop("status", None)
            properties |= {"metadata": METADATA, "apiVersion": _TEXT, "kind": _TEXT}
            schema = {**schema, "required": [*schema.get("required", ()), "metadata"]}
        if properties:
            row["keys"] = {key: self.add(value) for key, value in properties.items()}
        row["required"] = [key for key in schema.get("required", ()) if "default" not in properties.get(key, {})]
        defaults = {key: value["default"] for key, value in properties.items() if "default" in value}
        defaults = {key: value for key, value in defaults.items() if not isinstance(value, (dict, list))}
        if defaults:
            row["defaults"] = defaults
        if "items" in schema:
            row["items"] = self.add(schema["items"])
        if isinstance(schema.get("additionalProperties"), dict):
            row["values"] = self.add(schema["additionalProperties"])
        rules = list(_rules(schema, is_object=is_object))
        if rules:
            row["rules"] = rules
        row = {key: value for key, value in row.items() if value not in ("", []) or key == "unique"}
        text = json.dumps(row, sort_keys=True)
        if text not in self._numbers:
            self._numbers[text] = len(self.rows)
            self.rows.append(row)
        return self._numbers[text]


def _rules(schema: dict[str, Any], *, is_object: bool) -> Iterator[list[Any]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        text = " ".join(rule["rule"].split())
        if "oldSelf" in text or (is_object and "self.status" in text):
            # Of a change to an object, or of what only a controller writes.
            continue
        if text not in conditions():
            raise Untranslated(text)
        condition, at = conditions()[text]
        yield [condition, rule.get("message", text), at]


def definitions(folder: Path) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield operator, release, `group/version/Kind` and schema of each served version of each kind."""
    for operator, origin in ORIGINS.items():
        for release in origin.releases:
            for path in sorted((folder / f"{operator}-{release}").glob("*.yaml")):
                for document in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
                    if not document or document.get("kind") != "CustomResourceDefinition":
                        continue
                    spec = document["spec"]
                    for version in spec["versions"]:
                        if version.get("served") and spec["names"]["kind"] in KINDS:
                            name = f"{spec['group']}/{version['name']}/{spec['names']['kind']}"
                            yield operator, release, name, version["schema"]["openAPIV3Schema"]


def _without_filled(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    found = copy.deepcopy(schema) if kind in FILLED_BY_WEBHOOK else schema
    for *above, name in FILLED_BY_WEBHOOK.get(kind, ()):
        here = found["properties"]["spec"]
        for key in above:
            here = here.get("properties", {}).get(key, {})
            here = here.get("items", here)
        if name in here.get("required", ()):
            here["required"] = [key for key in here["required"] if key != name]
    return found


def _with_limits(
    schema: dict[str, Any], newest: dict[str, Any], *, all_of_them: bool, name: str = ""
) -> dict[str, Any]:
    """Return the schema of an older release with limits of the newest that also held there."""
    wanted = (*_UNIQUE, *(_LIMITS if all_of_them else ())) if name in _UNIQUE_IN_PODS or all_of_them else ()
    found = {**schema, **{key: newest[key] for key in wanted if key in newest and key != "nullable"}}
    for key in ("properties", "additionalProperties", "items"):
        inner, other = schema.get(key), newest.get(key)
        if not isinstance(inner, dict) or not isinstance(other, dict):
            continue
        if key == "properties":
            found[key] = {
                one: _with_limits(value, other.get(one, {}), all_of_them=all_of_them, name=one)
                for one, value in inner.items()
            }
        else:
            found[key] = _with_limits(inner, other, all_of_them=all_of_them)
    return found


def table(folder: Path) -> dict[str, Any]:
    """Return the table of all definitions below `folder`."""
    parts = Parts()
    kinds: dict[str, dict[str, int]] = {}
    found = list(definitions(folder))
    newest = {(operator, name): schema for operator, _, name, schema in found}
    for operator, release, name, schema in found:
        schema = _without_filled(schema, name.rpartition("/")[2])
        schema = _with_limits(schema, newest[operator, name], all_of_them=operator in _CHECKED_BY_WEBHOOK)
        kinds.setdefault(name, {})[f"{operator} {release.lstrip('v')}"] = parts.add(schema, is_object=True)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "sources": {name: f"{o.repository}, {o.folder}, {', '.join(o.releases)}" for name, o in ORIGINS.items()},
        "former": FORMER,
        "rewritten": REWRITTEN,
        "kinds": {name: kinds[name] for name in sorted(kinds)},
        "parts": parts.rows,
    }


def main(folder: Path) -> None:
    found = table(folder)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in found.pop("parts"))
    kinds = ",\n".join(f"{json.dumps(name)}:{json.dumps(releases)}" for name, releases in found.pop("kinds").items())
    head = json.dumps(found, ensure_ascii=False, indent=1)[:-2]
    TARGET.write_text(f'{head},\n "kinds": {{\n{kinds}\n}},\n "parts": [\n{rows}\n]}}\n', encoding="utf-8")
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
