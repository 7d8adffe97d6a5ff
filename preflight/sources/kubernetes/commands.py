"""What the containers of a pod run, with the environment they run it in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from preflight.job import Unresolved
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Script, SourceFile, Tree
from preflight.sources.shell.document import FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.embedded import evaluate_words
from preflight.sources.shell.inner import SHELLS
from preflight.sources.shell.state import Kind as SlotKind
from preflight.sources.shell.state import Slot
from preflight.sources.shell.text import hole
from preflight.sources.structured import Kind, Node
from preflight.sources.yaml_code import code_of

#: `$(NAME)` in a container's command, arguments and variables; `$$(NAME)` stays as it is.
_EXPANSION = lazy_pattern(r"(?<!\$)\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
#: A placeholder that `envsubst` fills in; Kubernetes itself would hand it over as it stands.
_PLACEHOLDER = lazy_pattern(r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")
#: More variables of one container than this are no configuration anybody wrote.
_MOST_VARIABLES = 400


@dataclass(slots=True)
class Containers:
    """Reads the containers of one file; `config_maps` are those that stand in the same file, by name."""

    file: SourceFile
    tree: Tree
    config_maps: Mapping[str, Node] = field(default_factory=dict)
    #: Variables of a container that stand where no shell will put their value, with their place.
    unexpanded: list[tuple[str, Place]] = field(default_factory=list)
    _text: FileText = field(init=False)

    def __post_init__(self) -> None:
        self._text = FileText(self.file.path, self.file.text)

    def place(self, node: Node) -> Place:
        """Where a value stands."""
        return Place(self._text, node.start, node.end)

    def environment(self, container: Node, given: Mapping[str, Slot]) -> dict[str, Slot]:
        """The variables a container starts with: the operator's, then those of ConfigMaps, then its own."""
        found = dict(given)
        sources = container.at("envFrom")
        for source in sources.items if sources is not None else ():
            self._from_map(found, source)
        listed = container.at("env")
        for item in (listed.items if listed is not None else ())[:_MOST_VARIABLES]:
            name = item.text("name")
            if name:
                found[name] = self._variable(item, found)
        return found

    def _variable(self, item: Node, known: Mapping[str, Slot]) -> Slot:
        value = item.at("value")
        if value is not None and value.kind in (Kind.SCALAR, Kind.TEMPLATE):
            place = self.place(value)
            text = () if value.value is None else _gaps(self._expanded(code_of(self._text, value), known))
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

    def _from_map(self, found: dict[str, Slot], source: Node) -> None:
        held = self.config_maps.get(source.text("configMapRef", "name"))
        prefix = source.text("prefix")
        for member in held.in_force if held is not None else ():
            if member.node.kind is Kind.SCALAR:
                text = code_of(self._text, member.node)
                found[prefix + member.key] = Slot(SlotKind.TEXT, self.place(member.node), text, exported=True)

    def script(self, container: Node, environment: Mapping[str, Slot]) -> Script | None:
        """What the container runs; None where only its image knows."""
        words = [*self._words(container.at("command"), environment), *self._words(container.at("args"), environment)]
        if not words:
            return None
        if container.at("command") is None and _begins_with_option(words[0]):
            # The image's own entry point takes these.
            return None
        if not any(_is_shell(word) for word in words[:4]):
            for word in words:
                self.unexpanded.extend(_unexpanded(word, environment))
            words = [_gaps(word) for word in words]
        first = container.at("command") or container.at("args")
        assert first is not None
        nodes = first.items if first.kind is Kind.ARRAY and first.items else (first,)
        return evaluate_words(self.file, self.tree, words, environment, self.place(nodes[0]))

    def line(self, node: Node, environment: Mapping[str, Slot]) -> Script:
        """What a command comes to that is written as one line (`entrypoint` of a RayJob)."""
        place = self.place(node)
        shell: Text = (Lit("sh", place, False),)
        option: Text = (Lit("-c", place, False),)
        return evaluate_words(self.file, self.tree, [shell, option, code_of(self._text, node)], environment, place)

    def _words(self, node: Node | None, environment: Mapping[str, Slot]) -> list[Text]:
        if node is None or (node.kind is Kind.SCALAR and node.value is None):
            return []
        if node.kind is Kind.ARRAY:
            return [self._expanded(code_of(self._text, item), environment) for item in node.items]
        return [self._expanded(code_of(self._text, node), environment)]

    def _expanded(self, text: Text, environment: Mapping[str, Slot]) -> Text:
        """The text with `$(NAME)` replaced, as the kubelet does it; a name that is not set stays as written."""
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
                pieces.extend(_used_at(slot, place, match[0]))
                at = match.end()
            pieces.append(piece.cut(at, len(piece.text)))
        return tuple(piece for piece in pieces if not isinstance(piece, Lit) or piece.text)


def _used_at(slot: Slot, place: Place, spelling: str) -> Text:
    value = slot.value()
    if isinstance(value, Unresolved):
        return (Hole(value.why, place, spelling),)
    return tuple(
        Lit(piece.text, place, False, spelling if index == 0 else "") if isinstance(piece, Lit) else piece
        for index, piece in enumerate(slot.scalar())
    )


def _unexpanded(text: Text, environment: Mapping[str, Slot]) -> Iterator[tuple[str, Place]]:
    """What names a variable that the container itself has, so that no template is meant.

    The name is empty where that variable is filled in from outside too: then both may be placeholders.
    """
    for piece in text:
        for match in _PLACEHOLDER.finditer(piece.text) if isinstance(piece, Lit) else ():
            name = match[0].strip("${}")
            slot = environment.get(name)
            if slot is not None and isinstance(piece, Lit):
                yield "" if _is_filled_in(slot) else name, piece.cut(match.start(), match.end()).place


def _is_filled_in(slot: Slot) -> bool:
    value = slot.value()
    return isinstance(value, Unresolved) and "placeholder" in value.why


def _gaps(text: Text) -> Text:
    """The text with what looks like a shell's variable left open: no shell will see it."""
    pieces: list[Piece] = []
    for piece in text:
        at = 0
        for match in _PLACEHOLDER.finditer(piece.text) if isinstance(piece, Lit) else ():
            assert isinstance(piece, Lit)
            pieces.append(piece.cut(at, match.start()))
            cut = piece.cut(match.start(), match.end())
            pieces.append(Hole(f"{match[0]}, a placeholder that something fills in", cut.place, match[0]))
            at = match.end()
        pieces.append(piece.cut(at, len(piece.text)) if isinstance(piece, Lit) else piece)
    return tuple(piece for piece in pieces if not isinstance(piece, Lit) or piece.text)


def _is_shell(text: Text) -> bool:
    return len(text) == 1 and isinstance(text[0], Lit) and text[0].text.rpartition("/")[2] in SHELLS


def _begins_with_option(text: Text) -> bool:
    return bool(text) and isinstance(text[0], Lit) and text[0].text.startswith("-")
