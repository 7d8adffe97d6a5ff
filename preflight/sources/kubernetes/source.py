"""Kubernetes manifests: YAML or JSON, one object or many, with or without a template's placeholders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from preflight.job import WHOLE_JOB, Note, NoteKind, Scope, Suppression
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.kubernetes.kinds import GENERIC_KINDS, TRAINING_KINDS
from preflight.sources.redaction import secrets_of, without_secrets

if TYPE_CHECKING:
    from preflight.sources.kubernetes.workloads import Manifest
    from preflight.sources.structured import Document

_KINDS = "|".join(sorted(TRAINING_KINDS | GENERIC_KINDS | {"PodGroup"}))
_YAML_KIND = lazy_pattern(
    rf"^(?: {{0,4}}- +| {{1,4}})?kind:[ \t]*[\"']?(?:{_KINDS})[\"']?[ \t]*(?:#|\r?$)", re.MULTILINE
)
_JSON_KIND = lazy_pattern(rf'"kind"[ \t]*:[ \t]*"(?:{_KINDS})"')
_DEFINITION = lazy_pattern(r"^kind:[ \t]*CustomResourceDefinition\b", re.MULTILINE)
_SUFFIXES = (".yaml", ".yml", ".json", ".yaml.tpl", ".yml.tpl", ".tmpl", ".j2")
_MOST_NOTES = 20


class KubernetesSource:
    """Reads one file of manifests."""

    name = "kubernetes"
    roles = ("manifest",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether the file holds an object that starts pods, or a group of them."""
        path = file.path.lower()
        if not path.endswith(_SUFFIXES) or "apiVersion" not in file.text:
            return False
        if path.endswith(".json"):
            return _JSON_KIND.search(file.text) is not None
        return _YAML_KIND.search(file.text) is not None and _DEFINITION.search(file.text) is None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State what the file's jobs ask for, and what their containers run."""
        from preflight.sources.kubernetes.annotations import suppressions_of
        from preflight.sources.kubernetes.workloads import Manifest

        documents = _documents(file)
        manifest = Manifest(file, tree, [document.root for document in documents if document.root is not None])
        manifest.read()
        found: list[Suppression] = list(suppressions(file))
        for root in manifest.objects:
            found.extend(suppressions_of(file.path, manifest.places, root))
        reading = replace(
            manifest.reading,
            notes=(*_faults(file, documents, manifest), *manifest.reading.notes),
            suppressions=tuple(found),
        )
        return without_secrets(reading, secrets_of(manifest.commands))


def _documents(file: SourceFile) -> Sequence[Document]:
    if file.path.lower().endswith(".json"):
        from preflight.sources import lenient_json

        return (lenient_json.parse(file.text),)
    from preflight.sources import lenient_yaml

    return lenient_yaml.parse_all(file.text)


def _faults(file: SourceFile, documents: Iterable[Document], manifest: Manifest) -> Iterator[Note]:
    number = 0
    is_template = "{{" in file.text
    for document in documents:
        for fault in document.faults:
            number += 1
            if number > _MOST_NOTES:
                return
            span = manifest.places.span(fault.start, fault.end)
            kind = NoteKind.TEMPLATE if fault.template or is_template else NoteKind.MALFORMED
            yield Note(kind, f"{file.path} line {span.line}: {fault.message}", span)
