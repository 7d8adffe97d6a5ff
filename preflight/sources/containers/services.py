"""Compose files: services with their environment, their command, and the resources of their containers.

Keys as in the Compose specification (compose-spec, 2025). Claims about a service have the scope of the launch it runs,
or a separate scope.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import truncate
from preflight.model.job import Known, Note, NoteKind, Reference, Scope, Span, Unresolved, as_int, lift
from preflight.sources.base import Command, Reading, SourceFile, Tree, set_by_caller
from preflight.sources.configs.dotenv import variables_in
from preflight.sources.formats.claim_redaction import secrets_of, without_secrets
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.located_text import code_of
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.launchers.installs import mebibytes
from preflight.sources.shell.evaluator import evaluate_code, evaluate_words
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Place, Text
from preflight.sources.shell.state import Kind as SlotKind
from preflight.sources.shell.state import Slot, place_of, slots_from_environment
from preflight.sources.shell.words import hole, replace_spans

_INTERPOLATION = re.compile(r"(?<!\$)\$(?:\{[^{}\n]{1,200}\}|[A-Za-z_]\w*)")
_GPU_DEVICE = re.compile(r"/dev/nvidia|nvidia\.com/gpu|/dev/kfd|/dev/dri|/dev/davinci|/dev/accel")
_MAX_SERVICES = 200
_MAX_NOTES = 10


def read_services(file: SourceFile, tree: Tree) -> Reading:
    """State the resources and the command of each service of a file."""
    from preflight.sources.formats import lenient_yaml

    document = lenient_yaml.parse(file.text)
    services = _Services(file, tree)
    root = document.root.at("services") if document.root is not None else None
    for member in truncate(root.in_force, _MAX_SERVICES, "services") if root is not None else ():
        if member.node.kind is Kind.OBJECT:
            services.read(member)
    places = services.node_claims.places
    notes = [
        Note(NoteKind.MALFORMED, f"{file.path}: {fault.message}", places.span(fault.start, fault.end))
        for fault in document.faults[:_MAX_NOTES]
    ]
    reading = replace(
        services.reading,
        claims=(*services.node_claims.claims, *services.reading.claims),
        notes=(*notes, *services.reading.notes),
        suppressions=suppressions(file),
    )
    return without_secrets(reading, secrets_of(services.commands))


@dataclass(slots=True)
class _Services:
    """The state of reading one Compose file."""

    file: SourceFile
    tree: Tree
    reading: Reading = field(default_factory=Reading)
    commands: list[Command] = field(default_factory=list)
    node_claims: NodeClaims = field(init=False)
    _text: FileText = field(init=False)

    def __post_init__(self) -> None:
        self.node_claims = NodeClaims(self.file, "compose")
        self._text = FileText(self.file.path, self.file.text)

    def read(self, service: Member) -> None:
        """State one service."""
        from preflight.sources.launchers.launch_lines import read_commands

        node = service.node
        files = tuple(self._environment_files(node.at("env_file")))
        environment = {**self._of_files(files), **dict(self._environment(node.at("environment")))}
        found = Reading()
        words = [*self._words(node.at("entrypoint")), *self._words(node.at("command"))]
        code = self._code(node.at("command")) if node.at("entrypoint") is None else None
        place = Place(self._text, service.key_start, service.key_end)
        script = None
        if code is not None:
            script = evaluate_code(self.file, self.tree, code, environment, place)
        elif words:
            script = evaluate_words(self.file, self.tree, words, environment, place)
        if script is not None:
            self.commands.extend(script.commands)
            found = read_commands(script.commands, {}, self.tree, batch=False)
            found = replace(found, references=(*script.references, *found.references))
        own = Scope(launch=f"{self.file.path}:{self.node_claims.places.line(service.key_start)}")
        for scope in [launch.scope for launch in found.launches] or [own]:
            self._state_resources(service, scope)
            found = replace(
                found,
                references=(
                    *found.references,
                    *(Reference(target, "environment", span, scope) for target, span in files),
                ),
            )
        self.reading = replace(
            self.reading,
            claims=(*self.reading.claims, *found.claims),
            launches=(*self.reading.launches, *found.launches),
            references=(*self.reading.references, *found.references),
            notes=(*self.reading.notes, *found.notes),
        )

    def _environment_files(self, node: Node | None) -> Iterator[tuple[str, Span]]:
        """The paths of `env_file`: a path, a list of paths, or a list of `path` and `required`; the last one wins."""
        for item in (node.items or (node,)) if node is not None else ():
            path = item.at("path") if item.kind is Kind.OBJECT else item
            required = item.at("required") if item.kind is Kind.OBJECT else None
            if path is None or not path.text():
                continue
            span = self.node_claims.places.span(path.start, path.end)
            target = self.tree.resolve(path.text(), relative_to=self.file.path) if path.kind is Kind.SCALAR else None
            if target is not None and isinstance(self.tree.read(target), SourceFile):
                yield target, span
            elif required is None or required.value is not False:
                message = f"env_file {path.text()} is not in the tree; its variables are not known"
                self._note(Note(NoteKind.MISSING, message, span))

    def _note(self, note: Note) -> None:
        self.reading = replace(self.reading, notes=(*self.reading.notes, note))

    def _of_files(self, files: Sequence[tuple[str, Span]]) -> dict[str, Slot]:
        found: dict[str, Slot] = {}
        for target, _ in files:
            file = self.tree.read(target)
            if isinstance(file, SourceFile):
                for variable in variables_in(file):
                    place = place_of(variable, FileText(file.path, file.text))
                    found.update(slots_from_environment({variable.name: variable}, place))
        return found

    def _environment(self, node: Node | None) -> Iterator[tuple[str, Slot]]:
        """`NAME: value` or `- NAME=value`; a name without a value comes from the shell that runs Compose."""
        for member in node.in_force if node is not None else ():
            yield member.key, self._slot(member.key, member.node)
        for item in node.items if node is not None else ():
            text = code_of(self._text, item)
            name, equals, _ = str(item.value).partition("=")
            if equals and text and isinstance(text[0], Lit) and "=" in text[0].text:
                at = text[0].text.index("=") + 1
                pieces: Text = (text[0].cut(at, len(text[0].text)), *text[1:])
                place = Place(self._text, item.start, item.end)
                yield name, Slot(SlotKind.TEXT, place, _unresolve_interpolations(pieces), exported=True)
            elif name and not equals:
                yield name, self._slot(name, None, item)

    def _slot(self, name: str, node: Node | None, item: Node | None = None) -> Slot:
        at = node or item
        assert at is not None
        place = Place(self._text, at.start, at.end)
        if node is None or node.value is None:
            text = hole(f"${name}, which the caller sets", place, name, origin=set_by_caller(name))
            return Slot(SlotKind.TEXT, place, text, exported=True)
        return Slot(SlotKind.TEXT, place, _unresolve_interpolations(code_of(self._text, node)), exported=True)

    def _words(self, node: Node | None) -> list[Text]:
        if node is None or node.kind is not Kind.ARRAY:
            return []
        return [_unresolve_interpolations(code_of(self._text, item)) for item in node.items]

    def _code(self, node: Node | None) -> Text | None:
        """A command written as one string: split at blanks as by a shell, with Compose's own variables unresolved."""
        if node is None or node.kind not in (Kind.SCALAR, Kind.TEMPLATE) or node.value is None:
            return None
        return _unresolve_interpolations(code_of(self._text, node))

    def _state_resources(self, service: Member, scope: Scope) -> None:
        node_claims, node = self.node_claims, service.node
        key = Node(Kind.SCALAR, service.key_start, service.key_end, service.key)
        service = Member(service.key, service.key_start, service.key_end, key)
        image = node.member("image")
        name = value_of(image.node) if image is not None else Unresolved("built here")
        node_claims.add("container_run", name, image or service, scope=scope)
        command = node.member("command")
        if command is not None:
            text = " ".join(self.file.text[command.node.start : command.node.end].split())
            node_claims.add("container_command", Known(text.strip("[]\"'")[:1000]), command, scope=scope)
        self._state_gpus(node, scope)
        size, ipc = node.member("shm_size"), node.member("ipc")
        node_claims.add_member("shm_mib", size, lambda value: lift(mebibytes, value), scope=scope)
        if ipc is not None and ipc.node.value not in ("private", "none", "shareable"):
            node_claims.add(
                "shm_mib", Unresolved("the /dev/shm of the host, or of another container"), ipc, scope=scope
            )
        self._state_mounts(node, scope)
        network = node.member("network_mode")
        if network is not None:
            node_claims.add_member("container_network", network, scope=scope)
        else:
            # Compose gives the services of a file a network of their own, on which they find each other by name.
            node_claims.add("container_network", Known("compose"), service, scope=scope)
        memlock = node.member("ulimits", "memlock")
        if memlock is not None:
            node_claims.add("container_memlock", Known("memlock"), memlock, scope=scope)
        for item in node.items_at("cap_add"):
            node_claims.add(
                "pod_capability", value_of(item), Member("cap_add", item.start, item.end, item), scope=scope
            )
        privileged = node.member("privileged")
        if privileged is not None and privileged.node.value is not False:
            node_claims.add("pod_capability", Known("privileged"), privileged, scope=scope)
            node_claims.add("container_gpus", Known("privileged"), privileged, scope=scope)

    def _state_gpus(self, node: Node, scope: Scope) -> None:
        node_claims = self.node_claims
        for device in node.items_at("deploy", "resources", "reservations", "devices"):
            member = device.member("capabilities") or device.member("driver")
            if member is None:
                continue
            node_claims.add("container_gpus", Known("reserved"), member, scope=scope)
            ids = device.at("device_ids")
            count = device.member("count")
            if ids is not None and ids.kind is Kind.ARRAY and (listed := device.member("device_ids")) is not None:
                node_claims.add("gpus_per_node", Known(len(ids.items)), listed, scope=scope)
            elif count is not None and count.node.value != "all":
                node_claims.add_member("gpus_per_node", count, as_int, scope=scope)
        gpus, runtime = node.member("gpus"), node.member("runtime")
        if gpus is not None:
            node_claims.add("container_gpus", Known("gpus"), gpus, scope=scope)
        elif runtime is not None and runtime.node.value != "runc":
            node_claims.add_member("container_gpus", runtime, scope=scope)
        for item in node.items_at("devices"):
            member = Member("devices", item.start, item.end, item)
            if _GPU_DEVICE.search(str(item.value)):
                node_claims.add("container_gpus", value_of(item), member, scope=scope)
            if "/dev/infiniband" in str(item.value):
                node_claims.add("host_path", value_of(item), member, scope=scope)

    def _state_mounts(self, node: Node, scope: Scope) -> None:
        for key in ("volumes", "tmpfs"):
            for item in node.items_at(key):
                text = str(item.value) if item.kind is Kind.SCALAR else item.text("target")
                if re.search(r"(?:^|:)/dev/shm(?:$|:)", text):
                    member = Member(key, item.start, item.end, item)
                    self.node_claims.add("shm_mib", Unresolved("a volume mounted there"), member, scope=scope)


def _unresolve_interpolations(text: Text) -> Text:
    """The text with Compose's `${NAME}` unresolved and its `$$` as one `$`."""
    pieces = replace_spans(
        text,
        lambda literal: (match.span() for match in _INTERPOLATION.finditer(literal)),
        lambda found: [Hole(f"{found.text} is filled in by Compose", found.place, found.text)],
    )
    halves = [half for piece in pieces for half in (_unescape_dollars(piece) if isinstance(piece, Lit) else (piece,))]
    return tuple(piece for piece in halves if not isinstance(piece, Lit) or piece.text)


def _unescape_dollars(piece: Lit) -> Iterator[Lit]:
    """`$$` is Compose's notation for one `$`."""
    at = 0
    while (double := piece.text.find("$$", at)) >= 0:
        yield piece.cut(at, double + 1)
        at = double + 2
    yield piece.cut(at, len(piece.text))
