"""Prepares a manifest: its own objects, and those in other files that it names, as one composed text.

A template of a chart is rendered first. Objects of other files follow the manifest's own in the text, so that all are
read alike; each keeps the locations in its own file.

They are searched near the file first: in its folder, in the folders below, then around each folder above it.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from preflight._util.budget import spend
from preflight.model.job import Note, Reference, Span
from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats.structured import Document, Kind, Node, Origin, Piece, TooLong, compose_file, file_pieces
from preflight.sources.kubernetes.objects import GENERIC_KINDS, TRAINING_KINDS
from preflight.sources.shell.shell_document import FileText

#: Kinds of objects in a chart's other templates that matter to a workload.
_RELATED_KINDS = re.compile(
    r"\bkind:[ \t]*[\"']?(?:ConfigMap|PodGroup|LocalQueue|ClusterQueue|Queue|ResourceClaimTemplate|ComputeDomain"
    r"|TrainingRuntime|ClusterTrainingRuntime|PriorityClass|Service)\b"
)
#: Rounds in which objects lead to further objects: a label to a queue, that to its ClusterQueue, that to its flavors.
_MAX_ROUNDS = 3
_MAX_REFERENCES = 60


@dataclass(frozen=True, slots=True)
class PreparedManifest:
    """A manifest ready to be read: the text, its documents, and where its own objects end.

    `files` are all files that the text comes from.
    """

    file: SourceFile
    documents: tuple[Document, ...]
    own_end: int
    notes: tuple[Note, ...] = ()
    files: tuple[SourceFile, ...] = ()
    rendered: bool = False
    #: Scripts whose text a template contains; they belong to the job and are not jobs of their own.
    references: tuple[Reference, ...] = ()


def prepare_manifest(file: SourceFile, tree: Tree) -> PreparedManifest:
    """The manifest with every object that it names in the tree."""
    if is_kustomization(file.path):
        return _build_overlay(file, tree)
    first = _render(file, tree) or _parse_plain(file)
    return _join_neighbours(first, file, tree)


def is_kustomization(path: str) -> bool:
    """Whether this is the file of a Kustomize overlay, by its name."""
    return path.rpartition("/")[2] in ("kustomization.yaml", "kustomization.yml", "Kustomization")


def _build_overlay(file: SourceFile, tree: Tree) -> PreparedManifest:
    """The objects of an overlay. Its files belong to it, and are not judged without it."""
    from preflight.sources.kubernetes.kustomization import Overlay

    overlay = Overlay(tree)
    objects = overlay.build(file)
    try:
        text = compose_file(file, overlay.pieces)
    except TooLong:
        return PreparedManifest(file, (), 0)
    place = Span(file.path, 1, 1, 1, 1)
    references = tuple(Reference(path, "composed", place) for path in overlay.files if path != file.path)
    documents = tuple(Document(node, ()) for node in objects)
    files = tuple(overlay.files.values())
    return PreparedManifest(
        text, documents, len(text.text), tuple(overlay.notes), files, rendered=True, references=references
    )


def _parse_plain(file: SourceFile) -> PreparedManifest:
    return PreparedManifest(file, documents_of(file), len(file.text), files=(file,))


def documents_of(file: SourceFile) -> tuple[Document, ...]:
    """The documents of a YAML or JSON file."""
    if file.path.lower().endswith(".json") and file.text.lstrip()[:1] in ("{", "["):
        from preflight.sources.formats import lenient_json

        return (lenient_json.parse(file.text),)
    from preflight.sources.formats import lenient_yaml

    return lenient_yaml.parse_all(file.text)


def _render(file: SourceFile, tree: Tree) -> PreparedManifest | None:
    """The template as its chart renders it; None if it is not a template of a chart, or cannot be rendered."""
    if "{{" not in file.text or "templates/" not in file.path:
        return None
    from preflight.sources.kubernetes.helm.chart import Chart, chart_folder

    folder = chart_folder(file.path, tree)
    if folder is None:
        return None
    chart = Chart(folder, tree)
    own = chart.render(file.path)
    if own is None:
        found = _parse_plain(file)
        return PreparedManifest(found.file, found.documents, found.own_end, tuple(chart.notes), found.files)
    pieces = list(own.pieces)
    notes = tuple(chart.notes)
    own_end = sum(len(piece.text) for piece in pieces)
    for path in chart.templates:
        if path != file.path and _RELATED_KINDS.search(chart.files[path].text):
            beside = chart.render(path)
            if beside is not None and beside.pieces:
                pieces.extend((Piece("\n---\n", beside.pieces[0].cut(0, 0).origin), *beside.pieces))
    try:
        text = compose_file(file, pieces)
    except TooLong:
        return None
    files = tuple(chart.files.values())
    return PreparedManifest(
        text, documents_of(text), own_end, notes, files, rendered=True, references=_scripts(pieces, file)
    )


def _scripts(pieces: Sequence[Piece], file: SourceFile) -> tuple[Reference, ...]:
    found: dict[str, Reference] = {}
    for piece in pieces:
        path = piece.origin.file.path
        if piece.origin.exact and path != file.path and path.endswith((".sh", ".bash")) and path not in found:
            place = Span(file.path, 1, 1, 1, 1)
            found[path] = Reference(path, "script", place)
    return tuple(found.values())


def _join_neighbours(first: PreparedManifest, file: SourceFile, tree: Tree) -> PreparedManifest:
    """The manifest with the objects that it refers to in other files, and with the objects that those refer to."""
    found = first
    asked: set[Named] = set()
    beside = _objects_beside(found, file, tree)
    if beside:
        found = _append_files(found, beside)
    for _ in range(_MAX_ROUNDS):
        roots = [document.root for document in found.documents if document.root is not None]
        wanted = referenced_names(roots) - asked
        asked |= wanted
        wanted -= {(root.text("kind"), root.text("metadata", "name")) for root in roots}
        more = [
            other
            for other in (find_definitions(tree, file.path, sorted(wanted)[:_MAX_REFERENCES]) if wanted else ())
            if all(other.path != known.path for known in found.files)
        ]
        if not more:
            break
        found = _append_files(found, more)
    return found


def _objects_beside(manifest: PreparedManifest, file: SourceFile, tree: Tree) -> list[SourceFile]:
    """The files in the same folder with objects that bind every pod of the namespaces of this file's jobs.

    Nothing names a quota or a policy: it binds a job by its namespace alone. A job without a namespace is joined only
    with what its pods name.
    """
    found: dict[str, SourceFile] = {}
    for document in manifest.documents:
        root = document.root
        if root is None or root.text("kind") not in TRAINING_KINDS | GENERIC_KINDS:
            continue
        namespace = root.text("metadata", "namespace")
        kinds = _NAMESPACE_KINDS if namespace else frozenset()
        if any(node.at("persistentVolumeClaim") is not None for node in _walk(root)):
            kinds |= {"PersistentVolumeClaim"}
        for other in find_beside(tree, file.path, kinds, namespace) if kinds else ():
            found[other.path] = other
    return [found[path] for path in sorted(found)]


def _append_files(manifest: PreparedManifest, more: Sequence[SourceFile]) -> PreparedManifest:
    pieces = list(file_pieces(manifest.file))
    for other in more:
        pieces.append(Piece("\n---\n", Origin(FileText(other.path, other.text), 0, 0)))
        pieces.extend(file_pieces(other))
    try:
        text = compose_file(manifest.file, pieces)
    except TooLong:
        return manifest
    files = (*manifest.files, *more)
    return replace(manifest, file=text, documents=documents_of(text), files=files)


#: Objects that bind the pods of their namespace without being named by them, and the queues that jobs may name there.
_NAMESPACE_KINDS = frozenset(("ResourceQuota", "NetworkPolicy", "CiliumNetworkPolicy", "LocalQueue"))
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_PODLESS = frozenset(("LocalQueue", "ClusterQueue", "ResourceFlavor"))


def referenced_names(roots: Sequence[Node]) -> set[Named]:
    """Kinds and names of the objects that these objects name."""
    found: set[Named] = set()
    for root in roots:
        kind = root.text("kind")
        if kind == "ConfigMap":
            continue
        if kind in TRAINING_KINDS:
            found.add(("Namespace", root.text("metadata", "namespace")))
        if kind == "TrainJob":
            name = root.text("spec", "runtimeRef", "name")
            found.add((root.text("spec", "runtimeRef", "kind") or "ClusterTrainingRuntime", name))
        elif kind == "LocalQueue":
            found.add(("ClusterQueue", root.text("spec", "clusterQueue")))
        for node in _walk(root):
            found.update(_referenced_objects(node, kind))
    return {(kind, name) for kind, name in found if name}


def _referenced_objects(node: Node, kind: str) -> Iterator[Named]:
    """The objects that one object of a manifest names."""
    for member in node.members:
        inner = member.node
        if inner.kind is Kind.SCALAR:
            if member.key == _QUEUE_LABEL and isinstance(inner.value, str):
                yield "LocalQueue", inner.value
            elif member.key == "queue" and kind == "Job" and isinstance(inner.value, str):
                yield "Queue", inner.value
            elif member.key == "resourceClaimTemplateName" and isinstance(inner.value, str):
                yield "ResourceClaimTemplate", inner.value
            elif member.key == "priorityClassName" and isinstance(inner.value, str) and kind not in _PODLESS:
                continue
        elif inner.kind is Kind.OBJECT and member.key in ("configMap", "configMapRef", "configMapKeyRef"):
            yield "ConfigMap", inner.text("name")


def _walk(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        here = waiting.pop()
        if here.kind is Kind.OBJECT:
            yield here
        waiting.extend(member.node for member in here.members)
        waiting.extend(here.items)


#: Kind and name of an object.
Named: TypeAlias = tuple[str, str]

#: Files and folders that are searched for one manifest.
_MAX_FILES = 200
_MAX_FOLDERS = 120
#: Levels below each folder on the way up.
_MAX_DEPTH = 3
_DOCUMENT = re.compile(r"^---[^\n]*$", re.MULTILINE)
_KIND = re.compile(r"^kind:[ \t]*[\"']?(\w+)", re.MULTILINE)
_NAME = re.compile(
    r"^metadata:[ \t]*(?:#[^\n]*)?\n(?:[ \t]+[^\n]*\n|[ \t]*#[^\n]*\n|\n)*?[ \t]{1,8}name:[ \t]*[\"']?([\w.-]+)"
    r"|^metadata:[ \t]*\{[^}\n]*\bname:[ \t]*[\"']?([\w.-]+)",
    re.MULTILINE,
)
_NAMESPACE = re.compile(
    r"^metadata:[ \t]*(?:#[^\n]*)?\n(?:[ \t]+[^\n]*\n|[ \t]*#[^\n]*\n|\n)*?[ \t]{1,8}namespace:[ \t]*[\"']?([\w.-]+)"
    r"|^metadata:[ \t]*\{[^}\n]*\bnamespace:[ \t]*[\"']?([\w.-]+)",
    re.MULTILINE,
)
_SKIPPED = frozenset(("node_modules/", "vendor/", "third_party/", "venv/", "site-packages/", "__pycache__/", "crds/"))

#: The objects that each file of a tree defines, cached.
_DEFINITIONS: weakref.WeakKeyDictionary[Tree, dict[str, frozenset[Named]]] = weakref.WeakKeyDictionary()


def find_definitions(tree: Tree, path: str, names: Collection[Named]) -> list[SourceFile]:
    """The files near `path` that define the wanted objects; the nearest if there are several, the first of equally near
    ones.
    """
    missing = set(names)
    found: list[SourceFile] = []
    known: dict[str, frozenset[Named]] = {}
    with contextlib.suppress(TypeError):
        known = _DEFINITIONS.setdefault(tree, known)
    for number, candidate in enumerate(_around(tree, posixpath.dirname(path))):
        if not missing or number >= _MAX_FILES:
            break
        if candidate == path:
            continue
        spend(4)
        if candidate not in known:
            file = tree.read(candidate)
            known[candidate] = frozenset(_objects(file)) if isinstance(file, SourceFile) else frozenset()
        if known[candidate] & missing:
            missing -= known[candidate]
            file = tree.read(candidate)
            if isinstance(file, SourceFile):
                found.append(file)
    return found


def find_beside(tree: Tree, path: str, kinds: Collection[str], namespace: str) -> list[SourceFile]:
    """The other files in the folder of `path` that define an object of these kinds in a namespace.

    Only that folder is searched: objects of this namespace elsewhere may belong to another cluster.
    """
    folder, found = posixpath.dirname(path), []
    names = [name for name in tree.names(folder) if name.endswith((".yaml", ".yml"))]
    for name in names[:_MAX_FILES]:
        candidate = posixpath.join(folder, name)
        spend(4)
        file = tree.read(candidate) if candidate != path else None
        if isinstance(file, SourceFile) and any(
            kind in kinds and where == namespace for kind, where in _placed_objects(file)
        ):
            found.append(file)
    return found


def _placed_objects(file: SourceFile) -> Iterator[tuple[str, str]]:
    """The kind and namespace of each object of a file; an empty namespace where it names none."""
    if "apiVersion" not in file.text or "{{" in file.text:
        return
    spend(len(file.text) // 256)
    for document in _DOCUMENT.split(file.text)[:100]:
        kind, namespace = _KIND.search(document), _NAMESPACE.search(document)
        if kind is not None:
            yield kind[1], (namespace[1] or namespace[2]) if namespace is not None else ""


def _objects(file: SourceFile) -> Iterator[Named]:
    if "apiVersion" not in file.text or "kind" not in file.text:
        return
    spend(len(file.text) // 256)
    for document in _DOCUMENT.split(file.text)[:100]:
        kind, name = _KIND.search(document), _NAME.search(document)
        if kind is not None and name is not None:
            yield kind[1], name[1] or name[2]


def _around(tree: Tree, folder: str) -> Iterator[str]:
    """The YAML files near a folder, the nearest first."""
    seen: set[str] = set()
    here: str | None = folder
    while here is not None and len(seen) < _MAX_FOLDERS:
        waiting = [(here, 0)]
        while waiting and len(seen) < _MAX_FOLDERS:
            at, depth = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            for name in tree.names(at):
                path = posixpath.join(at, name)
                if not name.endswith("/"):
                    if name.endswith((".yaml", ".yml")):
                        yield path
                elif depth < _MAX_DEPTH and name not in _SKIPPED:
                    waiting.append((path.rstrip("/"), depth + 1))
        here = posixpath.dirname(here) if here else None
