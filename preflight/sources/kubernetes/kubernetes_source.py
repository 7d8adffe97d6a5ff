"""Kubernetes manifests: YAML or JSON, one object or many, with or without template placeholders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from preflight.model.job import WHOLE_JOB, Note, NoteKind, Places, Scope, Suppression
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.formats.claim_redaction import secrets_of, without_secrets
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.structured import Kind, Node
from preflight.sources.formats.tree import TEMPLATE_SUFFIXES
from preflight.sources.kubernetes.inputs import is_kustomization
from preflight.sources.kubernetes.objects import GENERIC_KINDS, TRAINING_KINDS, WRAPPER_KINDS
from preflight.sources.secrets import secrets_of_files

if TYPE_CHECKING:
    from preflight.sources.kubernetes.inputs import PreparedManifest
    from preflight.sources.kubernetes.workloads import Manifest


#: Objects of a queue, which may be wrong without a job beside them.
_QUEUE_KINDS = frozenset(
    ("PodGroup", "ClusterQueue", "LocalQueue", "ResourceFlavor", "Cohort", "WorkloadPriorityClass")
)
_KINDS = "|".join(sorted(TRAINING_KINDS | GENERIC_KINDS | WRAPPER_KINDS | _QUEUE_KINDS))
_YAML_KIND = re.compile(
    rf"^(?: {{0,4}}- +| {{1,4}})?kind:[ \t]*[\"']?(?:{_KINDS})[\"']?[ \t]*(?:#|\r?$)", re.MULTILINE | re.IGNORECASE
)
_JSON_KIND = re.compile(rf'"kind"[ \t]*:[ \t]*"(?:{_KINDS})"')
_DEFINITION = re.compile(r"^kind:[ \t]*CustomResourceDefinition\b", re.MULTILINE)
_OVERLAY = re.compile(r"^(?:resources|bases|components):", re.MULTILINE)
#: The beginning of a manifest that has no file name, such as the output of `helm template`.
_BARE = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:---[^\n]*\s+(?:#[^\n]*\n\s*)*)?(?:apiVersion|kind|metadata|spec):")
_SUFFIXES = (".yaml", ".yml", ".json", ".yaml.tpl", ".yml.tpl", ".tmpl", ".j2", ".jinja2", *TEMPLATE_SUFFIXES)
_MAX_NOTES = 20


class KubernetesSource:
    """Reads one file of manifests."""

    name = "kubernetes"
    roles = ("manifest",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether the file contains an object that starts pods, or a group of them."""
        path = file.path.lower()
        if is_kustomization(file.path):
            return _OVERLAY.search(file.text) is not None
        if "apiVersion" not in file.text:
            return False
        if "." not in path.rpartition("/")[2]:
            # Standard input has no name that shows its kind.
            return _BARE.match(file.text) is not None and _YAML_KIND.search(file.text) is not None
        if not path.endswith(_SUFFIXES):
            return False
        if path.endswith(".json"):
            return _JSON_KIND.search(file.text) is not None
        return _YAML_KIND.search(file.text) is not None and _DEFINITION.search(file.text) is None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the requests of the file's jobs, and the claims of their containers' commands."""
        from preflight.sources.kubernetes.inputs import prepare_manifest
        from preflight.sources.kubernetes.workloads import Manifest

        ready = prepare_manifest(file, tree)
        roots = [document.root for document in ready.documents if document.root is not None]
        unsound = frozenset(item.root.start for item in ready.documents if item.root is not None and item.faults)
        manifest = Manifest(ready.file, tree, roots, ready.own_end, unsound)
        manifest.read()
        found: list[Suppression] = list(suppressions(file))
        for root in manifest.objects:
            found.extend(suppressions_of(manifest.places, root))
        reading = replace(
            manifest.reading,
            notes=(*ready.notes, *_faults(file, ready, manifest), *manifest.reading.notes),
            suppressions=tuple(found),
            references=(*manifest.reading.references, *ready.references),
        )
        secrets = secrets_of(manifest.commands)
        if len(ready.files) > 1:
            secrets |= secrets_of_files(ready.files)
        return without_secrets(reading, secrets)


def _faults(file: SourceFile, ready: PreparedManifest, manifest: Manifest) -> Iterator[Note]:
    number = 0
    is_template = "{{" in file.text and not ready.rendered
    for document in ready.documents:
        for fault in document.faults:
            if fault.start >= ready.own_end:
                continue
            number += 1
            if number > _MAX_NOTES:
                return
            span = manifest.places.span(fault.start, fault.end)
            kind = NoteKind.TEMPLATE if fault.template or is_template else NoteKind.MALFORMED
            yield Note(kind, f"{file.path} line {span.line}: {fault.message}", span)


KEY = "preflight/ignore"
#: Lines of one object that a suppression can cover.
_MAX_LINES = 5000
_ID = re.compile(r"[A-Za-z]{3}[0-9]{3}")


def suppressions_of(places: Places, root: Node) -> Iterator[Suppression]:
    """The suppressions of one object; each covers every line of the object it annotates.

    The text begins with ids or names, joined by commas; what follows is the reason.
    """
    for holder, carried in _annotated_objects(root):
        member = carried.member(KEY)
        if member is None or not isinstance(member.node.value, str):
            continue
        names, reason = _parse(member.node.value)
        span = places.span(member.key_start, member.node.end)
        around = places.span(holder.start, max(holder.start, holder.end - 1))
        lines = range(around.line, min(around.end_line, around.line + _MAX_LINES) + 1)
        for line in (span.line, *(each for each in lines if each != span.line)):
            yield Suppression(around.path, line, names, reason, span)


def _annotated_objects(node: Node) -> Iterator[tuple[Node, Node]]:
    """Every object below `node` that carries annotations."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if here.kind is Kind.OBJECT:
            annotations = here.at("metadata", "annotations")
            if annotations is not None and annotations.kind is Kind.OBJECT:
                yield here, annotations
        waiting.extend(member.node for member in here.members)
        waiting.extend(here.items)


def _parse(text: str) -> tuple[tuple[str, ...], str]:
    words = text.split()
    names: list[str] = []
    goes_on = False
    while words:
        # `KUB003, KUB004 reason`: after a comma, or before another id, the list of names continues.
        found = [part for part in words[0].split(",") if part]
        if names and not goes_on and not all(_ID.fullmatch(part) for part in found):
            break
        goes_on = words.pop(0).endswith(",")
        names.extend(found)
    return tuple(dict.fromkeys(names)), " ".join(words)
