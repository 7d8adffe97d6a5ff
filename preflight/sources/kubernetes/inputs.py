"""Prepares a manifest: Kustomize overlays, its own objects, and those in other files that it names, joined.

The files are joined into one text, and the resulting objects point into it. Files outside the root, or at a URL, only
result in a note.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from preflight._util import toml
from preflight._util.budget import spend
from preflight.model.job import Note, NoteKind, Reference, Span
from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats import lenient_yaml
from preflight.sources.formats.structured import (
    Document,
    Kind,
    Member,
    Node,
    Origin,
    Piece,
    TooLong,
    compose_file,
    file_pieces,
    shift_node,
)
from preflight.sources.kubernetes.objects import GENERIC_KINDS, TRAINING_KINDS
from preflight.sources.shell.shell_document import FileText

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_MAX_OVERLAYS = 8
_MAX_FILES = 200
_HEADER = re.compile(r"[|>](?:[0-9][+-]?|[+-][0-9]?)?[ \t]*(?:#[^\n]*)?\r?\n")
_PATCH_KEYS = ("patchesStrategicMerge", "patches", "patchesJson6902")


@dataclass(slots=True)
class Overlay:
    """One kustomization under construction. `files` are those in the text."""

    tree: Tree
    pieces: list[Piece] = field(default_factory=list)
    files: dict[str, SourceFile] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    _length: int = 0
    _bases: dict[str, tuple[int, FileText]] = field(default_factory=dict)
    _text: list[str] = field(default_factory=list)

    def build(self, file: SourceFile, depth: int = 0) -> list[Node]:
        """Return the objects of a kustomization, in order."""
        spend(20)
        root = next(iter(self._roots(file)), None)
        if root is None or depth > _MAX_OVERLAYS:
            return []
        folder = posixpath.dirname(file.path)
        found: list[Node] = []
        for key in ("resources", "bases"):
            for item in _texts(root.items_at(key)):
                found.extend(self._resource(item, folder, depth, file))
        for item in _texts(root.items_at("components")):
            inner = self._kustomization(posixpath.join(folder, str(item.value)))
            if inner is not None:
                found = self._component(inner, found, depth)
        found.extend(self._generate(root, folder, file))
        return self._apply_changes(found, root, folder, file)

    def _component(self, file: SourceFile, objects: list[Node], depth: int) -> list[Node]:
        """Apply a component, which adds objects and whose patches change the objects so far; return the objects."""
        root = next(iter(self._roots(file)), None)
        if root is None or depth > _MAX_OVERLAYS:
            return objects
        folder = posixpath.dirname(file.path)
        for item in _texts(root.items_at("resources")):
            objects.extend(self._resource(item, folder, depth, file))
        objects.extend(self._generate(root, folder, file))
        return self._apply_changes(objects, root, folder, file)

    # -- files -------------------------------------------------------------------------------------------------------

    def _roots(self, file: SourceFile) -> list[Node]:
        """Return the documents of a file, at their offsets in the text."""
        base = self._add(file)
        return [shift_node(d.root, base) for d in lenient_yaml.parse_all(file.text) if d.root is not None]

    def _add(self, file: SourceFile) -> int:
        known = self._bases.get(file.path)
        if known is not None:
            return known[0]
        text = FileText(file.path, file.text)
        base = self._append(Piece(file.text, Origin(text, 0, len(file.text))))
        self._append(Piece("\n", Origin(text, len(file.text), len(file.text))))
        self._bases[file.path] = (base, text)
        self.files[file.path] = file
        return base

    def _append(self, piece: Piece) -> int:
        base = self._length
        self.pieces.append(piece)
        self._text.append(piece.text)
        self._length += len(piece.text)
        return base

    def _file(self, path: str) -> SourceFile | None:
        plain = posixpath.normpath(path)
        if plain.startswith(("..", "/")) or len(self.files) > _MAX_FILES:
            return None
        found = self.tree.read(plain)
        return found if isinstance(found, SourceFile) else None

    def _kustomization(self, folder: str) -> SourceFile | None:
        return next((file for name in NAMES if (file := self._file(posixpath.join(folder, name))) is not None), None)

    def _resource(self, item: Node, folder: str, depth: int, file: SourceFile) -> list[Node]:
        path = posixpath.join(folder, str(item.value))
        inner = self._kustomization(path)
        if inner is not None:
            return self.build(inner, depth + 1)
        plain = self._file(path)
        if plain is None:
            self._note(item, file, f"{item.value} is not in the tree; its content is unknown")
            return []
        return [root for root in self._roots(plain) if root.kind is Kind.OBJECT]

    def _note(self, node: Node, file: SourceFile, message: str) -> None:
        base, text = self._bases[file.path]
        span = text.span(node.start - base, node.end - base)
        self.notes.append(Note(NoteKind.MISSING, f"{file.path}: {message}", span))

    # -- generators --------------------------------------------------------------------------------------------------

    def _generate(self, root: Node, folder: str, file: SourceFile) -> Iterator[Node]:
        for generator in root.items_at("configMapGenerator"):
            name = generator.text("name")
            entries = list(self._entries(generator, folder))
            if not name or not entries:
                continue
            at = Origin(self._bases[file.path][1], generator.start - self._bases[file.path][0], 0, exact=False)
            at = replace(at, end=at.start)
            base = self._append(
                Piece(f"\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n", at)
            )
            for key, text in entries:
                self._append(Piece(f'  "{key}": |\n', at))
                for start, line in _lines(text.file.text if text.exact else ""):
                    origin = Origin(text.file, start, start + len(line))
                    self._append(Piece("    ", replace(origin, end=start)))
                    self._append(Piece(line, origin))
                self._append(Piece("\n", at))
            code = "".join(self._text)[base:]
            documents = lenient_yaml.parse_all(code)
            yield from (shift_node(document.root, base) for document in documents if document.root is not None)

    def _entries(self, generator: Node, folder: str) -> Iterator[tuple[str, Origin]]:
        """Yield the files of a generator by key."""
        for item in _texts(generator.items_at("files")):
            key, equals, path = str(item.value).partition("=")
            found = self._file(posixpath.join(folder, path if equals else key))
            if found is not None:
                self.files[found.path] = found
                text = FileText(found.path, found.text)
                yield key if equals else posixpath.basename(key), Origin(text, 0, len(found.text))

    # -- changes -----------------------------------------------------------------------------------------------------

    def _apply_changes(self, objects: list[Node], root: Node, folder: str, file: SourceFile) -> list[Node]:
        for key in _PATCH_KEYS:
            for item in root.items_at(key):
                objects = self._patch(objects, item, folder, file)
        return [self._transform(node, root) for node in objects]

    def _patch(self, objects: list[Node], item: Node, folder: str, file: SourceFile) -> list[Node]:
        """Apply one entry of a list of patches: a path, a string, or an object with `path` or `patch` and `target`."""
        source = item if item.kind is Kind.SCALAR else item.at("patch") or item.at("path")
        target = item.at("target") if item.kind is Kind.OBJECT else None
        if source is None:
            return objects
        for patch in self._patch_roots(source, item, folder):
            spend(10)
            made: list[Node] = []
            for node in objects:
                changed = node
                if _is_target(node, target, patch):
                    try:
                        changed = (
                            apply_operations(node, patch.items)
                            if patch.kind is Kind.ARRAY
                            else merge_patch(node, patch)
                        )
                    except PatchFault as fault:
                        self._note(item, file, f"this patch does not apply: {fault}")
                made.append(changed)
            deletes = patch.text("$patch") == "delete"
            objects = [n for n in made if not (deletes and _is_target(n, target, patch))]
        return objects

    def _patch_roots(self, source: Node, item: Node, folder: str) -> list[Node]:
        if source.kind is Kind.OBJECT or source.kind is Kind.ARRAY:
            return [source]
        text = "".join(self._text)[source.start : source.end]
        header = _HEADER.match(text)
        if header is not None:
            code, start = text[header.end() :], source.start + header.end()
            return [shift_node(d.root, start) for d in lenient_yaml.parse_all(code) if d.root is not None]
        if "\n" in str(source.value) or item.at("patch") is source:
            return []
        plain = self._file(posixpath.join(folder, str(source.value)))
        return self._roots(plain) if plain is not None else []

    def _transform(self, node: Node, root: Node) -> Node:
        name = node.text("metadata", "name")
        for part, key in (("commonLabels", "labels"), ("commonAnnotations", "annotations")):
            added = root.at(part)
            if added is not None:
                node = _with_metadata(node, key, added)
        for labels in root.items_at("labels"):
            pairs = labels.at("pairs")
            if pairs is not None:
                node = _with_metadata(node, "labels", pairs)
        namespace = root.member("namespace")
        if namespace is not None and node.at("metadata") is not None:
            node = _set_at_path(node, ("metadata", "namespace"), namespace.node)
        for entry in root.items_at("replicas"):
            count = entry.member("count")
            if count is not None and entry.text("name") == name and node.at("spec") is not None:
                node = _set_at_path(node, ("spec", "replicas"), count.node)
        images = {entry.text("name"): entry for entry in root.items_at("images")}
        if images:
            node = _replace_value(node, lambda key, value: _image(images, value) if key == "image" else None)
        prefix, suffix = root.text("namePrefix"), root.text("nameSuffix")
        there = node.at("metadata", "name")
        # The name of a ConfigMap matters only to those who mount it; both would change alike.
        if (prefix or suffix) and there is not None and name and node.text("kind") != "ConfigMap":
            node = _set_at_path(node, ("metadata", "name"), replace(there, value=f"{prefix}{name}{suffix}"))
        return node


def _image(images: dict[str, Node], node: Node) -> Node | None:
    """Return the image with the name or tag that the kustomization sets, located where it sets them."""
    written = str(node.value)
    name, _, tag = written.partition("@")[0].rpartition(":") if ":" in written.rpartition("/")[2] else (written, "", "")
    entry = images.get(name)
    if entry is None:
        return None
    new, digest = entry.at("newName"), entry.text("digest")
    tagged = entry.at("newTag")
    label = str(tagged.value) if tagged is not None else tag
    place = tagged or new or entry
    text = (str(new.value) if new is not None else name) + (f"@{digest}" if digest else f":{label}" if label else "")
    return Node(Kind.SCALAR, place.start, place.end, text)


def _replace_value(node: Node, change: Callable[[str, Node], Node | None], key: str = "") -> Node:
    spend()
    if node.kind is Kind.SCALAR:
        return change(key, node) or node
    members = tuple(replace(m, node=_replace_value(m.node, change, m.key)) for m in node.members)
    return replace(node, members=members, items=tuple(_replace_value(item, change) for item in node.items))


def _with_metadata(node: Node, key: str, added: Node) -> Node:
    metadata = node.at("metadata")
    if metadata is None:
        return node
    before = metadata.member(key)
    members = {m.key: m for m in (*(before.node.in_force if before is not None else ()), *added.in_force)}
    return _set_at_path(node, ("metadata", key), replace(added, members=tuple(members.values())))


def _set_at_path(node: Node, path: tuple[str, ...], value: Node) -> Node:
    """Return the object with a value at a path whose parents exist."""
    step, rest = path[0], path[1:]
    before = node.member(step)
    inner = value if not rest else _set_at_path(before.node, rest, value) if before is not None else value
    made = Member(step, inner.start, inner.start, inner)
    if before is not None and rest:
        made = replace(before, node=inner)
    kept = tuple(member for member in node.members if member.key != step)
    return replace(node, members=(*kept, made))


def _is_target(node: Node, target: Node | None, patch: Node) -> bool:
    if target is None:
        name, kind = patch.text("metadata", "name"), patch.text("kind")
        return bool(name) and node.text("kind") == kind and node.text("metadata", "name") == name
    group, _, version = node.text("apiVersion").rpartition("/")
    own = {
        "kind": node.text("kind"),
        "name": node.text("metadata", "name"),
        "namespace": node.text("metadata", "namespace"),
        "group": group,
        "version": version,
    }
    for member in target.in_force:
        if member.key in ("labelSelector", "annotationSelector"):
            if not _selects(str(member.node.value), node.at("metadata", member.key[: -len("Selector")] + "s")):
                return False
        elif member.key in own and str(member.node.value) not in (own[member.key], ".*"):
            return False
    return True


def _selects(selector: str, labels: Node | None) -> bool:
    for part in selector.split(","):
        key, equals, value = part.partition("=")
        found = labels.at(key.strip()) if labels is not None else None
        if found is None or (equals and str(found.value) != value.lstrip("=").strip()):
            return False
    return True


def _texts(items: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(item for item in items if item.kind is Kind.SCALAR and isinstance(item.value, str))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    at = 0
    for line in text.splitlines(keepends=True):
        yield at, line
        at += len(line)


#: The key that identifies the items of a list (the `patchMergeKey` of the core API's types).
_MERGE_KEYS: dict[str, str] = toml.beside(__file__, "names.toml")["merge-keys"]
#: Kinds whose lists are merged by key; in a custom resource a patch replaces whole lists.
_BUILT_IN = frozenset(("Job", "CronJob", "Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"))
_BUILT_IN_GROUPS = frozenset(("", "batch", "apps"))


class PatchFault(ValueError):
    """The patch does not apply to the object."""


def merge_patch(target: Node, patch: Node) -> Node:
    """Return the object with a strategic merge patch applied."""
    group = target.text("apiVersion").rpartition("/")[0]
    by_key = target.text("kind") in _BUILT_IN and group in _BUILT_IN_GROUPS
    return _merge(target, patch, by_key=by_key)


def _merge(target: Node, patch: Node, *, by_key: bool) -> Node:
    if patch.kind is not Kind.OBJECT or target.kind is not Kind.OBJECT or patch.text("$patch") == "replace":
        return patch
    members = {member.key: member for member in target.in_force}
    for member in patch.in_force:
        spend()
        if member.key.startswith("$"):
            continue
        before = members.get(member.key)
        is_null = member.node.kind is Kind.SCALAR and member.node.value is None
        if is_null or member.node.text("$patch") == "delete":
            members.pop(member.key, None)
        elif before is None:
            members[member.key] = member
        elif member.node.kind is Kind.ARRAY and before.node.kind is Kind.ARRAY:
            key = _MERGE_KEYS.get(member.key) if by_key else None
            items = _merged_items(before.node.items, member.node.items, key) if key is not None else member.node.items
            members[member.key] = replace(member, node=replace(member.node, items=items))
        elif member.node.kind is Kind.OBJECT and before.node.kind is Kind.OBJECT:
            members[member.key] = replace(before, node=_merge(before.node, member.node, by_key=by_key))
        else:
            members[member.key] = member
    return replace(target, members=tuple(members.values()))


_NO_VALUE = object()


def _merged_items(before: Sequence[Node], after: Sequence[Node], key: str) -> tuple[Node, ...]:
    """Return the items of both lists: the items that the patch names come first, in its order."""
    rest = list(before)
    first: list[Node] = []
    for item in after:
        spend()
        name = item.at(key)
        values = [each.value if (each := other.at(key)) and each.kind is Kind.SCALAR else _NO_VALUE for other in rest]
        at = values.index(name.value) if name is not None and name.value in values else None
        known = rest.pop(at) if at is not None else None
        if item.text("$patch") != "delete":
            first.append(item if known is None else _merge(known, item, by_key=True))
    return (*first, *rest)


def apply_operations(target: Node, operations: Sequence[Node]) -> Node:
    """Return the object with a JSON patch applied. Raises PatchFault."""
    for operation in operations:
        spend()
        path = _steps(operation.text("path"))
        kind = operation.text("op")
        if kind in ("add", "replace"):
            value = operation.at("value")
            if value is None:
                raise PatchFault("an operation without a value")
            target = _change(target, path, value, add=kind == "add")
        elif kind == "remove":
            target = _change(target, path, None, add=False)
        elif kind in ("copy", "move"):
            source = _steps(operation.text("from"))
            value = _at(target, source)
            if kind == "move":
                target = _change(target, source, None, add=False)
            target = _change(target, path, value, add=True)
        elif kind != "test":
            raise PatchFault(f"{kind!r} is not an operation")
    return target


def _steps(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise PatchFault(f"{pointer!r} is not a path")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")][:60]


def _at(node: Node, steps: Sequence[str]) -> Node:
    for step in steps:
        node = node.items[_index(node, step)] if node.kind is Kind.ARRAY else _member(node, step).node
    return node


def _member(node: Node, key: str) -> Member:
    found = node.member(key)
    if found is None:
        raise PatchFault(f"there is no {key}")
    return found


def _index(node: Node, step: str) -> int:
    if not step.isdecimal() or len(step) > 6 or int(step) >= len(node.items):
        raise PatchFault(f"the list has no item {step}")
    return int(step)


def _change(node: Node, steps: Sequence[str], value: Node | None, *, add: bool) -> Node:
    """Return the node with `value` at a path; if it is None, without the value at that path."""
    step, rest = steps[0], steps[1:]
    if node.kind is Kind.ARRAY:
        items = list(node.items)
        if rest:
            at = _index(node, step)
            items[at] = _change(items[at], rest, value, add=add)
        elif value is None:
            del items[_index(node, step)]
        elif add:
            at = len(items) if step == "-" else _index(node, step) if step != str(len(items)) else len(items)
            items.insert(at, value)
        else:
            items[_index(node, step)] = value
        return replace(node, items=tuple(items))
    if node.kind is not Kind.OBJECT:
        raise PatchFault(f"there is nothing under {step}")
    before = node.member(step)
    kept = tuple(member for member in node.members if member.key != step)
    if rest:
        inner = _change(_member(node, step).node, rest, value, add=add)
    elif value is None:
        _member(node, step)
        return replace(node, members=kept)
    elif before is None and not add:
        raise PatchFault(f"there is no {step} to replace")
    else:
        inner = value
    made = Member(step, inner.start, inner.start, inner) if before is None or not rest else replace(before, node=inner)
    return replace(node, members=(*kept, made))


# Prepares a manifest: its own objects, and those in other files that it names, as one composed text.
#
# A template of a chart is rendered first. Objects of other files follow the manifest's own in the text, so that all
# are read alike; each keeps the locations in its own file.
#
# They are searched near the file first: in its folder, in the folders below, then around each folder above it.


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
    """Return the manifest with every object that it names in the tree."""
    if is_kustomization(file.path):
        return _build_overlay(file, tree)
    first = _render(file, tree) or _parse_plain(file)
    return _join_neighbours(first, file, tree)


def is_kustomization(path: str) -> bool:
    """Return whether `path` is the file of a Kustomize overlay, by its name."""
    return path.rpartition("/")[2] in ("kustomization.yaml", "kustomization.yml", "Kustomization")


def _build_overlay(file: SourceFile, tree: Tree) -> PreparedManifest:
    """Return the objects of an overlay. Its files belong to it, and are not judged without it."""
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
    """Return the documents of a YAML or JSON file."""
    if file.path.lower().endswith(".json") and file.text.lstrip()[:1] in ("{", "["):
        from preflight.sources.formats import lenient_json

        return (lenient_json.parse(file.text),)
    return lenient_yaml.parse_all(file.text)


def _render(file: SourceFile, tree: Tree) -> PreparedManifest | None:
    """Return the template as its chart renders it; None if it is not a template of a chart, or cannot be rendered."""
    if "{{" not in file.text or "templates/" not in file.path:
        return None
    from preflight.sources.kubernetes.helm.chart import Chart, chart_folder

    folder = chart_folder(file.path, tree)
    if folder is None:
        return None
    chart = Chart(folder, tree)
    own = chart.render(file.path)
    if own is None:
        return replace(_parse_plain(file), notes=tuple(chart.notes))
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
    places = (piece.origin for piece in pieces if piece.origin.exact and piece.origin.file.path != file.path)
    paths = dict.fromkeys(place.file.path for place in places if place.file.path.endswith((".sh", ".bash")))
    return tuple(Reference(path, "script", Span(file.path, 1, 1, 1, 1)) for path in paths)


def _join_neighbours(first: PreparedManifest, file: SourceFile, tree: Tree) -> PreparedManifest:
    """Return the manifest with the objects that it refers to in other files, and with the objects that those refer
    to.
    """
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
    """Return the files in the same folder with objects that bind every pod of the namespaces of this file's jobs.

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
        if any(node.at("persistentVolumeClaim") is not None for node in walk(root)):
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


def referenced_names(roots: Sequence[Node]) -> set[Named]:
    """Return kinds and names of the objects that these objects name."""
    found: set[Named] = set()
    for root in roots:
        kind = root.text("kind")
        if kind == "ConfigMap":
            continue
        if kind in TRAINING_KINDS:
            found.add(("Namespace", root.text("metadata", "namespace")))
        if kind in ("TrainJob", "JobSet"):
            found.add(("Service", root.text("metadata", "name")))
        if kind == "TrainJob":
            name = root.text("spec", "runtimeRef", "name")
            found.add((root.text("spec", "runtimeRef", "kind") or "ClusterTrainingRuntime", name))
        elif kind == "LocalQueue":
            found.add(("ClusterQueue", root.text("spec", "clusterQueue")))
        for node in walk(root):
            found.update(_referenced_objects(node, kind))
    return {(kind, name) for kind, name in found if name}


def _referenced_objects(node: Node, kind: str) -> Iterator[Named]:
    """Yield the objects that one object of a manifest names."""
    for member in node.members:
        inner = member.node
        if inner.kind is Kind.SCALAR:
            if member.key == _QUEUE_LABEL and isinstance(inner.value, str):
                yield "LocalQueue", inner.value
            elif member.key == "queue" and kind == "Job" and isinstance(inner.value, str):
                yield "Queue", inner.value
            elif member.key == "resourceClaimTemplateName" and isinstance(inner.value, str):
                yield "ResourceClaimTemplate", inner.value
            elif member.key in ("serviceName", "subdomain") and isinstance(inner.value, str):
                yield "Service", inner.value
        elif inner.kind is Kind.OBJECT and member.key in ("configMap", "configMapRef", "configMapKeyRef"):
            yield "ConfigMap", inner.text("name")


def walk(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        here = waiting.pop()
        if here.kind is Kind.OBJECT:
            yield here
        waiting.extend(member.node for member in here.members)
        waiting.extend(here.items)


#: Kind and name of an object.
Named: TypeAlias = tuple[str, str]

_MAX_FOLDERS = 120
#: Levels below each folder on the way up.
_MAX_DEPTH = 3
_DOCUMENT = re.compile(r"^---[^\n]*$", re.MULTILINE)
_KIND = re.compile(r"^kind:[ \t]*[\"']?(\w+)", re.MULTILINE)


def _in_metadata(key: str) -> re.Pattern[str]:
    return re.compile(
        rf"^metadata:[ \t]*(?:#[^\n]*)?\n(?:[ \t]+[^\n]*\n|[ \t]*#[^\n]*\n|\n)*?[ \t]{{1,8}}{key}:[ \t]*[\"']?([\w.-]+)"
        rf"|^metadata:[ \t]*\{{[^}}\n]*\b{key}:[ \t]*[\"']?([\w.-]+)",
        re.MULTILINE,
    )


_NAME, _NAMESPACE = _in_metadata("name"), _in_metadata("namespace")
_SKIPPED = frozenset(("node_modules/", "vendor/", "third_party/", "venv/", "site-packages/", "__pycache__/", "crds/"))

#: The objects that each file of a tree defines, cached.
_DEFINITIONS: weakref.WeakKeyDictionary[Tree, dict[str, frozenset[Named]]] = weakref.WeakKeyDictionary()


def find_definitions(tree: Tree, path: str, names: Collection[Named]) -> list[SourceFile]:
    """Return the files near `path` that define the wanted objects; the nearest if there are several, the first of
    equally near ones.
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
    """Return the other files in the folder of `path` that define an object of these kinds in a namespace.

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
    """Yield the kind and namespace of each object of a file; an empty namespace where it names none."""
    for kind, document in () if "{{" in file.text else _kinds(file):
        namespace = _NAMESPACE.search(document)
        yield kind, (namespace[1] or namespace[2]) if namespace is not None else ""


def _objects(file: SourceFile) -> Iterator[Named]:
    for kind, document in _kinds(file):
        name = _NAME.search(document)
        if name is not None:
            yield kind, name[1] or name[2]


def _kinds(file: SourceFile) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each object of a file."""
    if "apiVersion" not in file.text or "kind" not in file.text:
        return
    spend(len(file.text) // 256)
    for document in _DOCUMENT.split(file.text)[:100]:
        kind = _KIND.search(document)
        if kind is not None:
            yield kind[1], document


def _around(tree: Tree, folder: str) -> Iterator[str]:
    """Yield the YAML files near a folder, the nearest first."""
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
