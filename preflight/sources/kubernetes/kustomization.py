"""Kustomize overlays: the objects of their resources with every patch applied, as `kustomize build` does it.

The files are joined into one text, and the resulting objects point into it. Files outside the root, or at a URL, only
result in a note.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import spend
from preflight.model.job import Note, NoteKind
from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats import lenient_yaml
from preflight.sources.formats.structured import Kind, Member, Node, Origin, Piece, shift_node
from preflight.sources.shell.shell_document import FileText

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_MAX_DEPTH = 8
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
        """The objects of a kustomization, in order."""
        spend(20)
        root = next(iter(self._roots(file)), None)
        if root is None or depth > _MAX_DEPTH:
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
        """A component adds objects, and its patches apply to the objects so far."""
        root = next(iter(self._roots(file)), None)
        if root is None or depth > _MAX_DEPTH:
            return objects
        folder = posixpath.dirname(file.path)
        for item in _texts(root.items_at("resources")):
            objects.extend(self._resource(item, folder, depth, file))
        objects.extend(self._generate(root, folder, file))
        return self._apply_changes(objects, root, folder, file)

    # -- files -------------------------------------------------------------------------------------------------------

    def _roots(self, file: SourceFile) -> list[Node]:
        """The documents of a file, at their offsets in the text."""
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
        generators = root.at("configMapGenerator")
        for generator in generators.items if generators is not None else ():
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
        """The files of a generator by key."""
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
            listed = root.at(key)
            for item in listed.items if listed is not None else ():
                objects = self._patch(objects, item, folder, file)
        result = []
        for node in objects:
            result.append(self._transform(node, root))
        return result

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
    """The image with the name or tag that the kustomization sets, located where it sets them."""
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
    """The object with a value at a path whose parents exist."""
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
_MERGE_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "env", "volumes"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
}
#: Kinds whose lists are merged by key; in a custom resource a patch replaces whole lists.
_BUILT_IN = frozenset(("Job", "CronJob", "Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"))
_BUILT_IN_GROUPS = frozenset(("", "batch", "apps"))


class PatchFault(ValueError):
    """The patch does not apply to the object."""


def merge_patch(target: Node, patch: Node) -> Node:
    """The object with a strategic merge patch applied."""
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


def _merged_items(before: Sequence[Node], after: Sequence[Node], key: str) -> tuple[Node, ...]:
    """The items of both lists: the items that the patch names come first, in its order."""
    rest = list(before)
    first: list[Node] = []
    for item in after:
        spend()
        name = item.at(key)
        at = next((n for n, other in enumerate(rest) if name is not None and _equal(other.at(key), name)), None)
        known = rest.pop(at) if at is not None else None
        if item.text("$patch") != "delete":
            first.append(item if known is None else _merge(known, item, by_key=True))
    return (*first, *rest)


def _equal(first: Node | None, second: Node) -> bool:
    return first is not None and first.kind is Kind.SCALAR and first.value == second.value


def apply_operations(target: Node, operations: Sequence[Node]) -> Node:
    """The object with a JSON patch applied. Raises PatchFault."""
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
    """The node with `value` at a path; if it is None, without the value at that path."""
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
        raise PatchFault(f"there is nothing below {step}")
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
