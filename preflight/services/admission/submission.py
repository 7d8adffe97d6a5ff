"""A submitted object as a file that lint reads, and where its lines are in the object."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

Object = Mapping[str, Any]

#: The folder of objects without a namespace; no namespace has such a name.
CLUSTER = "_cluster"
#: Parts that the API server or clients add, which say nothing about the job.
_IRRELEVANT = ("managedFields", "resourceVersion", "uid", "selfLink", "generation", "creationTimestamp")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MAX_PATH = 160


class NotWritable(Exception):
    """An object cannot be written as a manifest."""


class _Dumper(_DUMPER):  # type: ignore[misc]
    """Writes texts of several lines as such, so that scripts are read line by line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


@dataclass(frozen=True)
class ObjectFile:
    """One object as a YAML file.

    Args:
        path: `NAMESPACE/KIND-NAME.yaml`.
        text: the file.
        kind: of the object.
    """

    path: str
    text: str
    kind: str = ""

    @cached_property
    def _starts(self) -> tuple[list[int], list[str]]:
        found = list(_field_starts(yaml.compose(self.text, Loader=_LOADER)))
        return [line for line, _ in found], [name for _, name in found]

    def field_at(self, line: int) -> str:
        """The field whose text contains a line (1-based): `spec.template.spec.containers[0].args[2]`."""
        lines, names = self._starts
        position = bisect.bisect_right(lines, line) - 1
        return names[position] if position >= 0 else ""


def object_file(value: Object, namespace: str) -> ObjectFile:
    """The file of an object of a namespace; an empty namespace for objects of the whole cluster.

    Raises:
        NotWritable: the object is nested too deeply, or holds characters that YAML cannot.
    """
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = _file_part(metadata.get("name") or metadata.get("generateName"))
    path = f"{_file_part(namespace) or CLUSTER}/{_file_part(value.get('kind'))}-{name}.yaml"
    kept = {key: part for key, part in value.items() if key not in ("metadata", "status")}
    about = {key: part for key, part in metadata.items() if key not in _IRRELEVANT}
    annotations = about.get("annotations")
    if isinstance(annotations, Mapping):
        about["annotations"] = {key: part for key, part in annotations.items() if key != _APPLIED}
    if namespace:
        about.setdefault("namespace", namespace)
    ordered: dict[Any, Any] = {key: kept.pop(key) for key in ("apiVersion", "kind") if key in kept}
    document: dict[Any, Any] = {**ordered, "metadata": about, **kept}
    try:
        text = yaml.dump(
            document, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=2**20
        )
    except RecursionError:
        raise NotWritable("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError):
        raise NotWritable("it holds characters that no manifest can") from None
    kind = value.get("kind")
    return ObjectFile(path, text, kind if isinstance(kind, str) else "")


def _file_part(value: object) -> str:
    """A name as part of a path: without separators, and short."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", value if isinstance(value, str) else "").strip(".")[:120]


def _field_starts(root: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """The first line of each field (1-based) in order, with its path."""
    waiting: list[tuple[int, yaml.Node, str]] = [(0, root, "")] if root is not None else []
    while waiting:
        line, node, path = waiting.pop()
        if path:
            yield line, path
        below: list[tuple[int, yaml.Node, str]] = []
        if isinstance(node, yaml.MappingNode):
            below = [(key.start_mark.line + 1, value, _joined(path, str(key.value))) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            below = [(item.start_mark.line + 1, item, f"{path}[{number}]") for number, item in enumerate(node.value)]
        waiting.extend(reversed(below))


def _joined(path: str, key: str) -> str:
    step = key if re.fullmatch(r"[\w-]{1,80}", key) else f"[{key[:80]}]"
    if not path:
        return step
    return f"{path}{step}" if step.startswith("[") else f"{path}.{step}"[-_MAX_PATH:]
