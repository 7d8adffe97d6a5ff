"""Evaluates the commands of a pod's containers, each in its environment and with the files that are mounted in it.

A script in a ConfigMap is a script of the job: `bash /scripts/train.sh` runs it. Names and defaults are those of the
core API (v1 ConfigMapVolumeSource, VolumeMount; Kubernetes 1.33).
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from preflight._util.budget import spend, truncate
from preflight.model.job import Note, Unresolved
from preflight.sources.base import Script, SourceFile, Tree, UnknownKind, UnknownOrigin, WrittenFile
from preflight.sources.formats.structured import ComposedFile, Kind, Node, code_of, file_text_of
from preflight.sources.shell.evaluator import evaluate_words
from preflight.sources.shell.inner_shells import SHELLS
from preflight.sources.shell.shell_document import Document, FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.state import Kind as SlotKind
from preflight.sources.shell.state import Slot
from preflight.sources.shell.words import hole, origin_of

#: `$(NAME)` in a container's command, arguments and variables; `$$(NAME)` stays as it is.
_EXPANSION = re.compile(r"(?<!\$)\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
#: A placeholder for `envsubst`; Kubernetes itself would pass it on unchanged.
_PLACEHOLDER = re.compile(r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")
_FILLED_IN = UnknownOrigin(UnknownKind.PLACEHOLDER)
#: Variables that are read of one container; real configurations have fewer.
_MAX_VARIABLES = 400


@dataclass(slots=True)
class Containers:
    """Reads the containers of one file; `config_maps` are those in the manifest or its neighbours, by name."""

    file: SourceFile
    tree: Tree
    config_maps: Mapping[str, Node] = field(default_factory=dict)
    #: Variables used where no shell will expand them, with their location.
    unexpanded: list[tuple[str, Place]] = field(default_factory=list)
    _text: FileText = field(init=False)

    def __post_init__(self) -> None:
        self._text = file_text_of(self.file)

    def place(self, node: Node) -> Place:
        """The location of a value."""
        return Place(self._text, node.start, node.end)

    def environment(self, container: Node, given: Mapping[str, Slot]) -> dict[str, Slot]:
        """The variables a container starts with: the operator's, then those of ConfigMaps, then its own."""
        found = dict(given)
        sources = container.at("envFrom")
        for source in sources.items if sources is not None else ():
            self._from_map(found, source)
        listed = container.at("env")
        for item in truncate(listed.items if listed is not None else (), _MAX_VARIABLES, "variables of a container"):
            name = item.text("name")
            if name:
                found[name] = self._variable(item, found)
        return found

    def _variable(self, item: Node, known: Mapping[str, Slot]) -> Slot:
        value = item.at("value")
        if value is not None and value.kind in (Kind.SCALAR, Kind.TEMPLATE):
            place = self.place(value)
            text = () if value.value is None else _with_gaps(self._expand(code_of(self._text, value), known))
            return Slot(SlotKind.TEXT, place, text, exported=True)
        origin = item.at("valueFrom")
        place = self.place(origin if origin is not None else item)
        if origin is not None:
            reference = origin.at("configMapKeyRef")
            held = self.config_maps.get(reference.text("name")) if reference is not None else None
            node = held.at(reference.text("key")) if held is not None and reference is not None else None
            if node is not None and node.kind is Kind.SCALAR:
                return Slot(SlotKind.TEXT, self.place(node), code_of(self._text, node), exported=True)
            kind = next((member.key for member in origin.in_force), "valueFrom")
            text = hole(f"{kind} {origin.text('fieldRef', 'fieldPath')}".strip(), place, f"${item.text('name')}")
            return Slot(SlotKind.TEXT, place, text, exported=True)
        if value is None:
            return Slot(SlotKind.TEXT, place, (), exported=True)
        return Slot(SlotKind.TEXT, place, hole("no text", place, "value"), exported=True)

    def _from_map(self, environment: dict[str, Slot], source: Node) -> None:
        held = self.config_maps.get(source.text("configMapRef", "name"))
        prefix = source.text("prefix")
        for member in held.in_force if held is not None else ():
            if member.node.kind is Kind.SCALAR:
                text = code_of(self._text, member.node)
                environment[prefix + member.key] = Slot(SlotKind.TEXT, self.place(member.node), text, exported=True)

    def script(self, pod: Node, container: Node, environment: Mapping[str, Slot]) -> tuple[Script, Tree] | None:
        """The script that a container of the pod runs, and the tree as the container sees it; None if only the image
        determines the command.
        """
        words = [*self._words(container.at("command"), environment), *self._words(container.at("args"), environment)]
        if not words:
            return None
        if container.at("command") is None and _begins_with_option(words[0]):
            # Arguments of the image's own entry point.
            return None
        if not any(_is_shell(word) for word in words[:4]):
            for word in words:
                self.unexpanded.extend(_unexpanded_variables(word, environment))
            words = [_with_gaps(word) for word in words]
        first = container.at("command") or container.at("args")
        assert first is not None
        nodes = first.items if first.kind is Kind.ARRAY and first.items else (first,)
        return self._evaluate(words, environment, self.place(nodes[0]), pod, container)

    def _evaluate(
        self, words: Sequence[Text], environment: Mapping[str, Slot], place: Place, pod: Node, container: Node
    ) -> tuple[Script, Tree]:
        """Evaluate the words with the pod's ConfigMaps mounted."""
        mounted = self.mounted(pod, container)
        if not mounted:
            return evaluate_words(self.file, self.tree, words, environment, place), self.tree
        tree = PodTree(self.tree, self._text, mounted)
        script = evaluate_words(self.file, tree, words, environment, place, documents=tree.documents)
        # Scripts that were evaluated with the command are not read again.
        references = tuple(item for item in script.references if not tree.is_script(item.target))
        return replace(script, references=references, written=(*script.written, *tree.written())), tree

    def mounted(self, pod: Node, container: Node) -> dict[str, Mounted]:
        """The files that a container of the pod finds in its ConfigMaps, by their paths."""
        folder = posixpath.dirname(self.file.path)
        return mounted_files(pod, container, self.config_maps, folder, self._source_script)

    def _source_script(self, node: Node) -> str | None:
        """The script from which an entry of a ConfigMap was made; None if it is not a file of the tree."""
        if not isinstance(self.file, ComposedFile):
            return None
        middle = (node.start + node.end) // 2
        found = self.file.origins.at(middle, middle + 1)
        is_file = found is not None and found.exact and found.file.path.endswith((".sh", ".bash", ".py"))
        return found.file.path if found is not None and is_file else None

    def line(self, node: Node, environment: Mapping[str, Slot]) -> Script:
        """Evaluate a command that is written as one line (`entrypoint` of a RayJob)."""
        place = self.place(node)
        shell: Text = (Lit("sh", place, False),)
        option: Text = (Lit("-c", place, False),)
        return evaluate_words(self.file, self.tree, [shell, option, code_of(self._text, node)], environment, place)

    def _words(self, node: Node | None, environment: Mapping[str, Slot]) -> list[Text]:
        if node is None or (node.kind is Kind.SCALAR and node.value is None):
            return []
        if node.kind is Kind.ARRAY:
            return [self._expand(code_of(self._text, item), environment) for item in node.items]
        return [self._expand(code_of(self._text, node), environment)]

    def _expand(self, text: Text, environment: Mapping[str, Slot]) -> Text:
        """The text with `$(NAME)` replaced as by the kubelet; an unset name stays as written."""
        pieces: list[Piece] = []
        for piece in text:
            if not isinstance(piece, Lit) or "$(" not in piece.text:
                pieces.append(piece)
                continue
            at = 0
            for match in _EXPANSION.finditer(piece.text):
                slot = environment.get(match[1])
                if slot is None:
                    continue
                pieces.append(piece.cut(at, match.start()))
                place = piece.cut(match.start(), match.end()).place
                used = _text_at_use(slot, place, match[0])
                spend(len(used))
                pieces.extend(used)
                at = match.end()
            pieces.append(piece.cut(at, len(piece.text)))
        # Variables that each name the previous one twice double the text at every step.
        spend(len(pieces))
        return tuple(piece for piece in pieces if not isinstance(piece, Lit) or piece.text)


def _text_at_use(slot: Slot, place: Place, spelling: str) -> Text:
    value = slot.value()
    if isinstance(value, Unresolved):
        return hole(value.why, place, spelling, origin=origin_of(slot.text))
    return tuple(
        Lit(piece.text, place, False, spelling if index == 0 else "") if isinstance(piece, Lit) else piece
        for index, piece in enumerate(slot.scalar())
    )


def _unexpanded_variables(text: Text, environment: Mapping[str, Slot]) -> Iterator[tuple[str, Place]]:
    """A name that refers to a variable of the container itself, so that it is not a template's placeholder.

    The name is empty if that variable is also set elsewhere: then both may be placeholders.
    """
    for piece in text:
        for match in _PLACEHOLDER.finditer(piece.text) if isinstance(piece, Lit) else ():
            name = match[0].strip("${}")
            slot = environment.get(name)
            if slot is not None and isinstance(piece, Lit):
                yield "" if _is_filled_in(slot) else name, piece.cut(match.start(), match.end()).place


def _is_filled_in(slot: Slot) -> bool:
    return any(isinstance(piece, Hole) and piece.origin == _FILLED_IN for piece in slot.text)


def _with_gaps(text: Text) -> Text:
    """The text with each apparent shell variable as a gap: no shell will expand it."""
    pieces: list[Piece] = []
    for piece in text:
        at = 0
        for match in _PLACEHOLDER.finditer(piece.text) if isinstance(piece, Lit) else ():
            assert isinstance(piece, Lit)
            pieces.append(piece.cut(at, match.start()))
            cut = piece.cut(match.start(), match.end())
            why = f"{match[0]}, a placeholder that is replaced later"
            pieces.append(Hole(why, cut.place, match[0], origin=_FILLED_IN))
            at = match.end()
        pieces.append(piece.cut(at, len(piece.text)) if isinstance(piece, Lit) else piece)
    return tuple(piece for piece in pieces if not isinstance(piece, Lit) or piece.text)


def _is_shell(text: Text) -> bool:
    return len(text) == 1 and isinstance(text[0], Lit) and text[0].text.rpartition("/")[2] in SHELLS


def _begins_with_option(text: Text) -> bool:
    return bool(text) and isinstance(text[0], Lit) and text[0].text.startswith("-")


_MAX_MOUNTED = 200


@dataclass(frozen=True, slots=True)
class Mounted:
    """One file in a container: `name` is its path in the tree, distinct from those of real files."""

    path: str
    name: str
    node: Node


class PodTree:
    """The tree as a container sees it: mounted files at their absolute paths, all others as in the underlying tree."""

    def __init__(self, tree: Tree, text: FileText, mounted: Mapping[str, Mounted]) -> None:
        self._tree = tree
        self._mounted = mounted
        self._by_name = {item.name: item for item in mounted.values()}
        self._text = text
        #: The parsed texts, each character with its location in the manifest.
        self.documents = {name: self._document(item) for name, item in self._by_name.items() if not _is_python(name)}

    def _code(self, item: Mounted) -> Text:
        return code_of(self._text, item.node)

    def _document(self, item: Mounted) -> Document:
        return Document(self._code(item), Place(self._text, item.node.start, item.node.end))

    def _plain(self, item: Mounted) -> str:
        return "".join(piece.text if isinstance(piece, Lit) else "X" for piece in self._code(item))

    def read(self, path: str) -> SourceFile | Note:
        """A mounted file by its name, otherwise a file of the underlying tree."""
        item = self._by_name.get(path)
        below = self._tree.read(path)
        if item is None or isinstance(below, SourceFile):
            return below
        text = self._plain(item)
        return SourceFile(path, text, hashlib.sha256(text.encode()).hexdigest(), len(text))

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """The name of the file that is mounted at an absolute path; other paths as in the underlying tree."""
        item = self._mounted.get(posixpath.normpath(path)) if path.startswith("/") else None
        if item is None and relative_to in self._by_name and not path.startswith("/"):
            beside = posixpath.join(posixpath.dirname(self._by_name[relative_to].path), path)
            item = self._mounted.get(posixpath.normpath(beside))
        return item.name if item is not None else self._tree.resolve(path, relative_to=relative_to)

    def names(self, folder: str) -> tuple[str, ...]:
        """As in the underlying tree."""
        return self._tree.names(folder)

    def is_script(self, name: str) -> bool:
        """Whether this is the name of a mounted file that is read together with the command that runs it."""
        return name in self.documents

    def written(self) -> Iterator[WrittenFile]:
        """The mounted Python programs, so that references to them can be followed."""
        for name, item in self._by_name.items():
            if _is_python(name) and not isinstance(self._tree.read(name), SourceFile):
                code = self._code(item)
                first = next((piece for piece in code if isinstance(piece, Lit)), None)
                if first is not None:
                    yield WrittenFile(name, self._plain(item), first.place.span)


def _is_python(name: str) -> bool:
    return name.endswith(".py")


#: The path in the tree of the file that a value of the manifest was made of, if it was.
SourceOf: TypeAlias = Callable[[Node], "str | None"]


def mounted_files(
    pod: Node, container: Node, config_maps: Mapping[str, Node], folder: str, made_of: SourceOf = lambda node: None
) -> dict[str, Mounted]:
    """The files that are mounted in a container from ConfigMaps, by absolute path; `folder` is that of the manifest."""
    volumes: dict[str, dict[str, Mounted]] = {}
    listed = pod.at("volumes")
    for volume in listed.items if listed is not None else ():
        found = dict(_entries(volume.at("configMap"), config_maps, folder, made_of))
        sources = volume.at("projected", "sources")
        for source in sources.items if sources is not None else ():
            found.update(_entries(source.at("configMap"), config_maps, folder, made_of))
        if found:
            volumes[volume.text("name")] = found
    result: dict[str, Mounted] = {}
    mounts = container.at("volumeMounts")
    for mount in mounts.items if mounts is not None else ():
        entries = volumes.get(mount.text("name"))
        where, below = mount.text("mountPath"), mount.text("subPath")
        if not entries or not where.startswith("/") or len(result) >= _MAX_MOUNTED:
            continue
        if below:
            item = entries.get(posixpath.normpath(below))
            if item is not None:
                path = posixpath.normpath(where)
                result[path] = Mounted(path, item.name, item.node)
            continue
        for relative, item in entries.items():
            path = posixpath.normpath(posixpath.join(where, relative))
            result[path] = Mounted(path, item.name, item.node)
    return result


def _entries(
    source: Node | None, config_maps: Mapping[str, Node], folder: str, made_of: SourceOf
) -> Iterator[tuple[str, Mounted]]:
    """The entries of one ConfigMap by their path in the volume."""
    name = source.text("name") if source is not None else ""
    data = config_maps.get(name)
    if source is None or data is None:
        return
    items = source.at("items")
    chosen = {item.text("key"): item.text("path") for item in items.items} if items is not None else None
    for member in data.in_force:
        if member.node.kind is not Kind.SCALAR or not isinstance(member.node.value, str):
            continue
        relative = member.key if chosen is None else chosen.get(member.key, "")
        relative = posixpath.normpath(relative) if relative else ""
        if relative and not relative.startswith(("..", "/")):
            kept = made_of(member.node) or posixpath.join(folder, name, relative)
            yield relative, Mounted(relative, kept, member.node)
